-- Trains an MLP without waiting for each result: the job's results come to a function. Port of async_single_job.py.
-- usage: moonflow mlp_train_async.lua [epochs]
local flow = require "moonflow"
local tp = flow.typing

local BATCH_SIZE = 100
local EPOCHS = tonumber(arg[1]) or 20

local train_job = flow.global_function {
  type = "train",
  inputs = {
    images = tp.Numpy.Placeholder({ BATCH_SIZE, 1, 28, 28 }, { dtype = flow.float }),
    labels = tp.Numpy.Placeholder({ BATCH_SIZE }, { dtype = flow.int32 }),
  },
  returns = tp.Callback[tp.Numpy],
} (function(images, labels)
  -- mlp
  local initializer = flow.truncated_normal(0.1)
  local reshape = flow.reshape(images, { images.shape[0], -1 })
  local hidden = flow.layers.dense(reshape, 512, {
    activation = flow.nn.relu,
    kernel_initializer = initializer,
    name = "hidden",
  })
  local logits = flow.layers.dense(hidden, 10, { kernel_initializer = initializer, name = "output" })

  local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits, { name = "softmax_loss" })
  local lr_scheduler = flow.optimizer.PiecewiseConstantScheduler({}, { 0.1 })
  flow.optimizer.SGD(lr_scheduler, { momentum = 0 }):minimize(loss)
  return loss
end)

local g_i = 0

local function cb_print_loss(result)
  if g_i % 20 == 0 then
    print(result:mean())
  end
  g_i = g_i + 1
end

local check_point = flow.train.CheckPoint()
check_point:init()

local train = flow.data.load_mnist(BATCH_SIZE)
for _ = 1, EPOCHS do
  for _, images, labels in train:batches() do
    train_job(images, labels)(cb_print_loss)
  end
end

check_point:save("./mlp_models_1", { overwrite = true })
