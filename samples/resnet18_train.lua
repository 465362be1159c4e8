-- Trains ResNet-18 in the size that CIFAR-10 has (images of 3x32x32, a 3x3 stem without pooling), then tells how many
-- test images it reads right. The images are MNIST's digits, with a border of two and the same in all three channels,
-- since that data set is here: the network and its cost are CIFAR's, the task is an easier one.
-- usage: moonflow resnet18_train.lua [steps, default 600: one epoch] [batch, default 100]
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

local STEPS = tonumber(arg[1]) or 600
local BATCH_SIZE = tonumber(arg[2]) or 100
local TEST_IMAGES = 10 * BATCH_SIZE

-- Deviation sqrt(2 / (filters * size^2)), which keeps gradients alike from layer to layer (He and others, 2015).
local function conv(x, filters, size, strides, name)
  local pad = math.floor(size / 2)
  local y = flow.layers.conv2d(x, filters, size, {
    strides = strides, padding = { pad, pad }, use_bias = false, name = name,
    kernel_initializer = flow.variance_scaling_initializer(2, "fan_out", "random_normal"),
  })
  return flow.layers.batch_normalization(y, { momentum = 0.9, epsilon = 1e-5, name = name .. "-norm" })
end

-- Two convolutions beside a shortcut. Where the size changes, the shortcut is a convolution of single pixels.
local function block(x, filters, strides, name)
  local y = flow.nn.relu(conv(x, filters, 3, strides, name .. "-conv1"))
  y = conv(y, filters, 3, 1, name .. "-conv2")
  if x.shape[1] ~= filters then x = conv(x, filters, 1, strides, name .. "-shortcut") end
  return flow.nn.relu(y + x)
end

local function resnet18(digits)
  local padded = flow.pad(digits, { { 0, 0 }, { 0, 0 }, { 2, 2 }, { 2, 2 } })
  local x = flow.nn.relu(conv(flow.concat({ padded, padded, padded }, { axis = 1 }), 64, 3, 1, "stem"))
  for stage, filters in ipairs { 64, 128, 256, 512 } do
    x = block(x, filters, stage > 1 and 2 or 1, ("stage%d-1"):format(stage))
    x = block(x, filters, 1, ("stage%d-2"):format(stage))
  end
  return flow.layers.dense(flow.math.reduce_mean(x, { axis = { 2, 3 } }), 10, { name = "output" })
end

local inputs = {
  images = tp.Numpy.Placeholder({ BATCH_SIZE, 1, 28, 28 }, { dtype = flow.float }),
  labels = tp.Numpy.Placeholder({ BATCH_SIZE }, { dtype = flow.int32 }),
}

local train_job = flow.global_function { type = "train", inputs = inputs, returns = tp.Numpy } (function(images, labels)
  local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, resnet18(images))
  local lr_scheduler = flow.optimizer.PiecewiseConstantScheduler({ 400, 520 }, { 0.05, 0.01, 0.002 })
  flow.optimizer.SGD(lr_scheduler, { momentum = 0.9 }):minimize(loss)
  return loss
end)

local test_job = flow.global_function {
  type = "predict", inputs = { images = inputs.images }, returns = tp.Numpy,
} (function(images) return resnet18(images) end)

flow.train.CheckPoint():init()
local train, test = flow.data.load_mnist(BATCH_SIZE, BATCH_SIZE, { drop_last = true })

local step = 0
while step < STEPS do
  for _, images, labels in train:batches() do
    if step == STEPS then break end
    local loss = train_job(images, labels)
    if step % 20 == 0 then print(step, loss:mean()) end
    step = step + 1
  end
end

local right, seen = 0, 0
for _, images, labels in test:batches() do
  if seen == TEST_IMAGES then break end
  right = right + np.sum(np.argmax(test_job(images), 1):eq(labels))
  seen = seen + BATCH_SIZE
end
print(("accuracy on %d test images: %.1f%%"):format(seen, 100 * right / seen))
