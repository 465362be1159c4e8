-- Looks at the gradient of a value inside a training job. Port of test_watch_diff.py.
-- It is the gradient of the sum of the losses, so each row of the logits' gradient sums to zero.
local flow = require "moonflow"
local tp = flow.typing

local BATCH_SIZE = 100

local function watch_diff_handler(blob)
  print("watch_diff_handler:", blob, blob.shape, blob.dtype)
end

local function get_train_config()
  local config = flow.function_config()
  config:default_data_type(flow.float)
  return config
end

local train_job = flow.global_function {
  type = "train",
  function_config = get_train_config(),
  inputs = {
    images = tp.Numpy.Placeholder({ BATCH_SIZE, 1, 28, 28 }, { dtype = flow.float }),
    labels = tp.Numpy.Placeholder({ BATCH_SIZE }, { dtype = flow.int32 }),
  },
  returns = tp.Numpy,
} (function(images, labels)
  local logits, loss = flow.scope.placement("cpu", "0:0", function()
    local initializer = flow.truncated_normal(0.1)
    local reshape = flow.reshape(images, { images.shape[0], -1 })
    local hidden = flow.layers.dense(reshape, 512, {
      activation = flow.nn.relu,
      kernel_initializer = initializer,
      name = "hidden",
    })
    local logits = flow.layers.dense(hidden, 10, { kernel_initializer = initializer, name = "output" })
    local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return logits, loss
  end)

  local lr_scheduler = flow.optimizer.PiecewiseConstantScheduler({}, { 0.1 })
  flow.optimizer.SGD(lr_scheduler, { momentum = 0 }):minimize(loss)
  flow.watch_diff(logits, watch_diff_handler)
  return loss
end)

local check_point = flow.train.CheckPoint()
check_point:init()

local train = flow.data.load_mnist(BATCH_SIZE)
for i, images, labels in train:batches() do
  local loss = train_job(images, labels)
  if i % 20 == 0 then print(loss:mean()) end
end
