-- Jobs for the specs of the prompt, as text to type or to load: `job` runs relu on four numbers, `later` is slower and
-- asynchronous.
return [[
flow = require "moonflow"
tp = flow.typing
job = flow.global_function {
  inputs = { x = tp.Numpy.Placeholder({ 4 }) }, returns = tp.Numpy,
} (function(x) return flow.nn.relu(x, { name = "rectified" }) end)
later = flow.global_function {
  inputs = { x = tp.Numpy.Placeholder({ 256, 256 }) }, returns = tp.Callback[tp.Numpy],
} (function(x)
  local y = x
  for _ = 1, 20 do y = flow.matmul(y, x) end
  return y
end)
x = flow.np.array({ 1, -1, 2, -2 }):astype(flow.float)
square = flow.np.zeros({ 256, 256 }):astype(flow.float)
]]
