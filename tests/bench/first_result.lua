-- The shortest program: its start to its end is what the row "start of the process to the first relu(x + 1)" times.
local flow = require "moonflow"
local tp = flow.typing

local job = flow.global_function {
  inputs = { x = tp.Numpy.Placeholder({ 5 }) },
  returns = tp.Numpy,
} (function(x) return flow.nn.relu(x + 1) end)

print(job(flow.np.array { -2, -1, 0, 1, 2 }))
