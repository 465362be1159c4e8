-- Looks at a value inside a job while it runs, in the oldest dialect. Port of the first test_watch.py.
local flow = require "moonflow"
local np = flow.np

local function cb(y)
  print("out", y:ndarray())
end

local ReluJob = flow.global_function {
  inputs = { x = flow.FixedTensorDef({ 10 }) },
} (function(x)
  local y = flow.nn.relu(x)
  flow.watch(y, cb)
end)

flow.config.gpu_device_num(1)
local data = np.random.uniform(-1, 1, { 10 }):astype(flow.float)
print("in: ", data)
ReluJob(data)
