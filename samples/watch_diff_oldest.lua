-- Looks at a value and at its gradient, in the oldest dialect. Port of the first test_watch_diff.py.
-- The original drew its labels from [-10, 10); of ten classes only [0, 10) exist, and a label outside is an error here.
local flow = require "moonflow"
local np = flow.np

local function get_cb(bn)
  return function(x)
    local blob = x:ndarray()
    print(bn, blob.shape, blob.dtype)
    -- print(blob)
  end
end

local function get_train_config()
  local config = flow.function_config()
  config:default_data_type(flow.float)
  config.train:primary_lr(0.1)
  config.train:model_update_conf({ naive_conf = {} })
  return config
end

local train_job = flow.global_function {
  function_config = get_train_config(),
  inputs = {
    images = flow.FixedTensorDef({ 8, 1, 28, 28 }, { dtype = flow.float }),
    labels = flow.FixedTensorDef({ 8 }, { dtype = flow.int32 }),
  },
} (function(images, labels)
  local initializer = flow.truncated_normal(0.1)
  local reshape = flow.reshape(images, { images.shape[0], -1 })
  local hidden = flow.layers.dense(reshape, 512, { activation = flow.nn.relu, kernel_initializer = initializer })
  local logits = flow.layers.dense(hidden, 10, { kernel_initializer = initializer })
  local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
  flow.losses.add_loss(loss)

  flow.watch(logits, get_cb("logits"))
  flow.watch_diff(logits, get_cb("logits_grad"))

  return loss
end)

flow.train.CheckPoint():init()
local images = np.random.uniform(-10, 10, { 8, 1, 28, 28 }):astype(flow.float)
local labels = np.random.randint(0, 10, { 8 }):astype(flow.int32)
local loss = train_job(images, labels):get():mean()
print("loss", loss)
