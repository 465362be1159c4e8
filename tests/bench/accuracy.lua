-- Do kernels cost accuracy? Trains the LeNet of the samples on the real MNIST with several seeds, each with direct
-- convolutions, with Winograd's and in bfloat16, and prints how many of the test digits each gets right. A seed moves
-- one run's accuracy by a tenth of a percent, as any other order of rounding does: only means compare kernels. One
-- process with one thread for each run, as many at a time as there are jobs; MNIST as data.load_mnist finds it.
-- The learning rate is constant, as the original's, or falls by a cosine to 0 at the end, without momentum or with it.
--   build/moonflow tests/bench/accuracy.lua [seeds = 5] [epochs = 20] [jobs = 2] [constant | cosine | momentum]
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

local VARIANTS = { "direct", "winograd", "bfloat16" }
local CONFIGS = {
  direct = { winograd = false },
  winograd = {},
  bfloat16 = { enable_auto_mixed_precision = true },
}

local folder = arg[0]:match("^(.*/)")
package.path = folder .. "?.lua;" .. package.path
local models = require "models"

local BATCH, BATCHES = 100, 600
local function falling(rate, epochs) return flow.optimizer.CosineScheduler(rate, epochs * BATCHES) end
local OPTIMIZERS = {
  constant = function()
    return flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler({}, { 0.1 }), { momentum = 0 })
  end,
  cosine = function(epochs) return flow.optimizer.SGD(falling(0.1, epochs), { momentum = 0 }) end,
  momentum = function(epochs) return flow.optimizer.SGD(falling(0.02, epochs), { momentum = 0.9 }) end,
}

-- The number of test digits that are right after so many epochs of the samples' training.
local function right_after(variant, seed, epochs, optimizer)
  local digits = {
    images = tp.Numpy.Placeholder({ BATCH, 1, 28, 28 }),
    labels = tp.Numpy.Placeholder({ BATCH }, { dtype = flow.int32 }),
  }
  flow.set_seed(seed)
  local train_job = flow.global_function {
    type = "train", function_config = CONFIGS[variant], inputs = digits, returns = tp.Numpy,
  } (function(images, labels)
    local logits = models.lenet(images, true, flow.truncated_normal(0.1))
    local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    OPTIMIZERS[optimizer](epochs):minimize(loss)
    return loss
  end)
  local predict_job = flow.global_function {
    type = "predict", function_config = CONFIGS[variant], inputs = { images = digits.images }, returns = tp.Numpy,
  } (function(images)
    return models.lenet(images, false, flow.truncated_normal(0.1))
  end)

  local train, test = flow.data.load_mnist(BATCH, BATCH)
  for _ = 1, epochs do
    for _, images, labels in train:batches() do
      train_job(images, labels)
    end
  end
  local right = 0
  for _, images, labels in test:batches() do
    right = right + np.sum(np.argmax(predict_job(images), 1):eq(labels))
  end
  return right
end

if CONFIGS[arg[1]] then
  print(right_after(arg[1], tonumber(arg[2]), tonumber(arg[3]), arg[4]))
  os.exit(0)
end

local SEEDS, EPOCHS, JOBS = tonumber(arg[1]) or 5, tonumber(arg[2]) or 20, tonumber(arg[3]) or 2
local OPTIMIZER = arg[4] or "constant"
if not OPTIMIZERS[OPTIMIZER] then
  error("the optimizer is \"" .. OPTIMIZER .. "\", wanted constant, cosine or momentum", 0)
end
local runs = {}
for seed = 1, SEEDS do
  for _, variant in ipairs(VARIANTS) do
    runs[#runs + 1] = { variant = variant, seed = seed }
  end
end

local function start(run)
  run.output = assert(io.popen(("OMP_NUM_THREADS=1 build/moonflow %s %s %d %d %s"):format(
    arg[0], run.variant, run.seed, EPOCHS, OPTIMIZER)))
end

local totals = {}
for i, run in ipairs(runs) do
  if i == 1 then
    for j = 1, math.min(JOBS, #runs) do start(runs[j]) end
  end
  local right = tonumber(run.output:read("*a")) or error(run.variant .. ", seed " .. run.seed .. ": the run failed", 0)
  run.output:close()
  if runs[i + JOBS] then start(runs[i + JOBS]) end
  print(("%-9s seed %d: %.2f %%"):format(run.variant, run.seed, right / 100))
  local total = totals[run.variant] or { sum = 0, least = right, most = right }
  totals[run.variant] = total
  total.sum, total.least, total.most = total.sum + right, math.min(total.least, right), math.max(total.most, right)
end
for _, variant in ipairs(VARIANTS) do
  local total = totals[variant]
  print(("%-9s mean %.3f %% (%.2f to %.2f)"):format(
    variant, total.sum / SEEDS / 100, total.least / 100, total.most / 100))
end
