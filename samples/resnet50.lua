-- Trains ResNet-50 on images of 3x224x224 and tells how many it takes in a second. The images are made here: each
-- class is a colour with noise on it, so that the loss can be seen to fall, and the share of images to rise whose class
-- is among the five likeliest. Products and convolutions compute in bfloat16 where the device is faster so; weights and
-- sums stay float32.
-- usage: moonflow resnet50.lua [steps, default 20] [batch, default 32] [device, "gpu" or "cpu"] [size, default 224]
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

local STEPS = tonumber(arg[1]) or 20
local BATCH_SIZE = tonumber(arg[2]) or 32
local DEVICE = arg[3] or "gpu"
local SIZE = tonumber(arg[4]) or 224
local CLASSES = 1000
local WARM_UP = math.min(5, STEPS - 1)  -- steps that are not timed: the first ones also compile

-- ---- the network ----------------------------------------------------------------------------------------------------

-- Deviation sqrt(2 / (filters * size^2)), which keeps gradients alike from layer to layer (He and others, 2015).
local function conv(x, filters, size, strides, name)
  local pad = math.floor(size / 2)
  local y = flow.layers.conv2d(x, filters, size, {
    strides = strides, padding = { pad, pad }, use_bias = false, name = name,
    kernel_initializer = flow.variance_scaling_initializer(2, "fan_out", "random_normal"),
  })
  return flow.layers.batch_normalization(y, { momentum = 0.9, epsilon = 1e-5, name = name .. "-norm" })
end

-- A narrow 3x3 convolution between two of single pixels, beside a shortcut. The stride is the 3x3's.
local function bottleneck(x, width, strides, name)
  local y = flow.nn.relu(conv(x, width, 1, 1, name .. "-1"))
  y = flow.nn.relu(conv(y, width, 3, strides, name .. "-2"))
  y = conv(y, 4 * width, 1, 1, name .. "-3")
  if x.shape[1] ~= 4 * width then x = conv(x, 4 * width, 1, strides, name .. "-shortcut") end
  return flow.nn.relu(y + x)
end

local function resnet50(images)
  local x = flow.nn.relu(conv(images, 64, 7, 2, "stem"))
  x = flow.nn.max_pool2d(x, { ksize = 3, strides = 2, padding = { 1, 1 }, name = "stem-pool" })
  for stage, blocks in ipairs { 3, 4, 6, 3 } do
    for block = 1, blocks do
      local strides = stage > 1 and block == 1 and 2 or 1
      x = bottleneck(x, 32 * 2 ^ stage, strides, ("stage%d-%d"):format(stage, block))
    end
  end
  return flow.layers.dense(flow.math.reduce_mean(x, { axis = { 2, 3 } }), CLASSES, { name = "output" })
end

local config = flow.FunctionConfig()
config:enable_auto_mixed_precision(true)

local train_job = flow.global_function {
  type = "train", function_config = config, placement = { DEVICE, "0:0" },
  inputs = {
    images = tp.Numpy.Placeholder({ BATCH_SIZE, 3, SIZE, SIZE }),
    labels = tp.Numpy.Placeholder({ BATCH_SIZE }, { dtype = flow.int32 }),
  },
  returns = tp.Callback[tp.Tuple { tp.Numpy, tp.Numpy }],
} (function(images, labels)
  local logits = resnet50(images)
  local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
  flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler({}, { 0.005 }), { momentum = 0.9 }):minimize(loss)
  return loss, flow.math.in_top_k(labels, logits, 5)
end)

-- ---- the images -----------------------------------------------------------------------------------------------------

flow.set_seed(1)
local colours = np.random.uniform(-1, 1, { CLASSES, 3, 1, 1 })

local function batch()
  local labels = np.random.randint(0, CLASSES, { BATCH_SIZE })
  local noise = np.random.uniform(-1, 1, { BATCH_SIZE, 3, SIZE, SIZE })
  return np.take(colours, labels, 0) + noise, labels:astype(flow.int32)
end

-- Made beforehand, so that what is timed is the training.
local batches = {}
for i = 1, 4 do batches[i] = { batch() } end

-- ---- the training ---------------------------------------------------------------------------------------------------

flow.train.CheckPoint():init()
local started
for step = 0, STEPS - 1 do
  if step == WARM_UP then
    flow.sync()
    started = flow.clock()
  end
  local images, labels = unpack(batches[step % #batches + 1])
  train_job(images, labels)(function(loss, in_top_5)
    if step % 5 == 0 or step == STEPS - 1 then
      print(("step %d, loss %.4f, %.1f%% in the top 5"):format(step, loss:mean(), 100 * in_top_5:mean()))
    end
  end)
end
flow.sync()
local seconds = flow.clock() - started
print(("%.1f images in a second"):format((STEPS - WARM_UP) * BATCH_SIZE / seconds))
