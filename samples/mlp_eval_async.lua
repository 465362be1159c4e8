-- Tests the MLP that mlp_train_async.lua saved; each call's two results come to a function. Port of async_batch_job.py.
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

local BATCH_SIZE = 100

local function mlp(data)
  local initializer = flow.truncated_normal(0.1)
  local reshape = flow.reshape(data, { data.shape[0], -1 })
  local hidden = flow.layers.dense(reshape, 512, {
    activation = flow.nn.relu,
    kernel_initializer = initializer,
    name = "hidden",
  })
  return flow.layers.dense(hidden, 10, { kernel_initializer = initializer, name = "output" })
end

local eval_job = flow.global_function {
  type = "predict",
  inputs = {
    images = tp.Numpy.Placeholder({ BATCH_SIZE, 1, 28, 28 }, { dtype = flow.float }),
    labels = tp.Numpy.Placeholder({ BATCH_SIZE }, { dtype = flow.int32 }),
  },
  returns = tp.Callback[tp.Tuple { tp.Numpy, tp.Numpy }],
} (function(images, labels)
  local logits = flow.scope.placement("cpu", "0:0", function()
    return mlp(images)
  end)
  return labels, logits
end)

local g_total = 0
local g_correct = 0

local function acc(labels, logits)
  local predictions = np.argmax(logits, 1)
  local right_count = np.sum(predictions:eq(labels))
  g_total = g_total + labels.shape[0]
  g_correct = g_correct + right_count
end

local check_point = flow.train.CheckPoint()
check_point:load("./mlp_models_1")
local _, test = flow.data.load_mnist(BATCH_SIZE)
for _, images, labels in test:batches() do
  eval_job(images, labels)(acc)
end

flow.sync_default_session() -- the last results are still on their way
print(("accuracy: %.1f%%"):format(g_correct * 100 / g_total))
