-- One process of those that tests/bench/processes.sh starts: prints the milliseconds of a step of LeNet's training,
-- batch 100 a process, and with the word "reduce" how fast values of several sizes are reduced.
local here = arg[0]:match("^(.*)/") or "."
package.path = here .. "/?.lua;" .. package.path
local flow = require "moonflow"
local models = require "models"

local np, tp = flow.np, flow.typing
local rank, size = flow.distributed.join()

-- The shortest of some rounds, of a call of `work`, in seconds.
local function best_of(rounds, calls, work)
  local best = math.huge
  for _ = 1, rounds do
    flow.distributed.barrier()
    local begin = flow.clock()
    for _ = 1, calls do work() end
    best = math.min(best, (flow.clock() - begin) / calls)
  end
  return best
end

if ... == "reduce" then
  for _, bytes in ipairs { 4, 2 ^ 14, 2 ^ 20, 2 ^ 22, 2 ^ 24 } do
    local x = np.ones({ bytes / 4 })
    local seconds = best_of(10, bytes > 2 ^ 20 and 2 or 20, function() flow.distributed.all_reduce(x) end)
    if rank == 0 then
      print(("%d processes reduce %8d bytes: %9.1f us, %6.3f GB/s"):format(size, bytes, seconds * 1e6,
        bytes / seconds / 1e9))
    end
  end
  return
end

local train = flow.global_function {
  name = "train", type = "train", returns = tp.Numpy,
  inputs = { images = tp.Numpy.Placeholder({ 100, 1, 28, 28 }),
             labels = tp.Numpy.Placeholder({ 100 }, { dtype = flow.int32 }) },
} (function(images, labels)
  local logits = models.lenet(images, true, flow.truncated_normal(0.1))
  local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
  flow.optimizer.SGD(0.1):minimize(loss)
  return loss
end)
local rng = np.random.default_rng(rank)
local images = rng:uniform(0, 1, { 100, 1, 28, 28 }, "float32")
local labels = rng:randint(0, 10, { 100 }):astype("int32")
local function step() train(images, labels) end
best_of(1, 3, step)
local seconds = best_of(4, 5, step)
if rank == 0 then print(seconds * 1e3) end
