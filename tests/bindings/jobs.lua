--- What the hosts of these tests load.
local flow = require "moonflow"
local tp = flow.typing

flow.global_function {
  name = "scale",
  inputs = { x = tp.Numpy.Placeholder({ 3 }) },
  returns = tp.Numpy,
} (function(x)
  local factor = flow.get_variable("factor", { shape = { 3 }, initializer = flow.constant_initializer(2) })
  return flow.math.multiply(x, factor)
end)

flow.global_function {
  name = "pick",
  inputs = { rows = tp.Numpy.Placeholder({ 2, 2 }), index = tp.Numpy.Placeholder({ 2 }, { dtype = flow.int32 }) },
  returns = tp.Tuple { tp.Numpy, tp.Numpy },
} (function(rows, index)
  return flow.gather(rows, index), index
end)

flow.global_function {
  name = "learn",
  type = "train",
  inputs = { x = tp.Numpy.Placeholder({ 4, 8 }), wanted = tp.Numpy.Placeholder({ 4, 2 }) },
  returns = tp.Numpy,
} (function(x, wanted)
  local hidden = flow.layers.dense(x, 16, { activation = flow.math.tanh, name = "hidden" })
  local loss = flow.math.squared_difference(flow.layers.dense(hidden, 2, { name = "output" }), wanted)
  flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler({}, { 0.1 }), { momentum = 0 }):minimize(loss)
  return flow.math.reduce_mean(loss)
end)

flow.global_function {
  name = "predict",
  inputs = { x = tp.Numpy.Placeholder({ 1, 8 }) },
  returns = tp.Numpy,
} (function(x)
  local hidden = flow.layers.dense(x, 16, { activation = flow.math.tanh, name = "hidden" })
  return flow.layers.dense(hidden, 2, { name = "output" })
end)
