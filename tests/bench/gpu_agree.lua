-- Do two devices train alike? LeNet with dropout and the MLP, from one seed on the same images, on one device once and
-- on the other one twice: the losses must agree, and those of the other device be the same bits again.
--   moonflow tests/bench/gpu_agree.lua [steps, default 100] [device, "gpu"] [beside, "cpu"] [model, else both]
package.path = arg[0]:match("^(.*/)") .. "?.lua;" .. package.path
local flow = require "moonflow"
local models = require "models"
local np, tp = flow.np, flow.typing

local STEPS, DEVICE, BESIDE = tonumber(arg[1]) or 100, arg[2] or "gpu", arg[3] or "cpu"
local BATCH, BATCHES = 100, 10
-- Sums in another order differ in their last digit, and a relu near zero lets that grow: on a CPU with one thread and
-- with two, LeNet's losses are 2e-6 apart over thirty steps of this rate, and 6e-5 over a hundred.
local RATE = 0.001
local FEW, TOLERANCE_OF_FEW, TOLERANCE = 10, 1e-5, 1e-3

-- Noise with a bright bar whose place tells the class.
local function batch()
  local images = np.random.uniform(0, 1, { BATCH, 1, 28, 28 }):astype(flow.float)
  local labels = np.random.randint(0, 10, { BATCH }):astype(flow.int32)
  local pixels = images:ptr()
  for i = 0, BATCH - 1 do
    local first = i * 784 + (4 + 2 * labels[i]) * 28
    for j = first, first + 55 do pixels[j] = pixels[j] + 1 end
  end
  return { images, labels }
end

local function train(model, device)
  flow.clear_default_session()
  flow.config.strict_placement(true)
  flow.set_seed(7)
  np.random.seed(1)
  local job = flow.global_function {
    type = "train",
    placement = { device, "0:0" },
    inputs = { images = tp.Numpy.Placeholder({ BATCH, 1, 28, 28 }),
               labels = tp.Numpy.Placeholder({ BATCH }, { dtype = flow.int32 }) },
    returns = tp.Callback[tp.Numpy],
  } (function(images, labels)
    local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, true))
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler({}, { RATE }), { momentum = 0.9 }):minimize(loss)
    return loss
  end)
  local batches = {}
  for i = 1, BATCHES do batches[i] = batch() end
  local losses, bytes = {}, {}
  for i = 1, STEPS do
    job(unpack(batches[(i - 1) % BATCHES + 1]))(function(loss)
      losses[#losses + 1], bytes[#bytes + 1] = loss:mean(), loss:tobytes()
    end)
  end
  flow.sync()
  return losses, table.concat(bytes)
end

local function distance(a, b, count)
  local difference, size = 0, 0
  for i = 1, count do difference, size = difference + (a[i] - b[i]) ^ 2, size + a[i] ^ 2 end
  return math.sqrt(difference / size)
end

for _, device in ipairs { DEVICE, BESIDE } do
  local _, reason = flow.config.gpu_devices()
  if device == "gpu" and reason then
    print("no GPU: " .. reason)
    os.exit(1)
  end
end

local fine = true
local function check(holds, ...)
  fine = fine and holds
  print((holds and "ok      " or "FAILED  ") .. string.format(...))
end

for _, name in ipairs(arg[4] and { arg[4] } or { "mlp", "lenet" }) do
  local expected = train(models[name], BESIDE)
  local got, bytes = train(models[name], DEVICE)
  for _, limit in ipairs { { math.min(FEW, STEPS), TOLERANCE_OF_FEW }, { STEPS, TOLERANCE } } do
    local apart = distance(expected, got, limit[1])
    check(apart < limit[2], "%s: losses of %d steps on %s and %s are %.1e apart, at most %.0e may be", name, limit[1],
      DEVICE, BESIDE, apart, limit[2])
  end
  check(got[#got] < got[1] or STEPS < 20, "%s: the loss on %s goes from %.4f to %.4f", name, DEVICE, got[1], got[#got])
  local _, again = train(models[name], DEVICE)
  check(bytes == again, "%s: two runs on %s give the same bits", name, DEVICE)
end
os.exit(fine and 0 or 1)
