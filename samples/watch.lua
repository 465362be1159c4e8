-- Looks at a value inside a job while it runs. Port of test_watch.py.
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

local function watch_handler(y)
  print("out:", y)
end

local ReluJob = flow.global_function {
  inputs = { x = tp.Numpy.Placeholder({ 5 }) },
  returns = tp.None,
} (function(x)
  local y = flow.nn.relu(x)
  flow.watch(y, watch_handler)
end)

flow.config.gpu_device_num(1)
local data = np.random.uniform(-1, 1, { 5 }):astype(flow.float)
print("in:", data)
ReluJob(data)
