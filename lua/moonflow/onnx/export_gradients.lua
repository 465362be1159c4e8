--- Ops of gradients as ONNX has them, for nets that tell how their result hangs on their input: a table as that of
--- export_ops. Each is named after the op that it is the gradient of, and takes dy first.

local core = require "moonflow.core"
local types = require "moonflow.onnx.types"

local ops = {}

-- Writes formulas: each of these gives the name of a value.
local Formula = {}
Formula.__index = Formula
local function formula_of(w) return setmetatable({ writer = w }, Formula) end

function Formula:emit(operator, inputs) return self.writer:emit(operator, inputs, nil, operator:lower()) end
function Formula:number(value) return self.writer:number(value) end
function Formula:plus(a, b) return self:emit("Add", { a, b }) end
function Formula:minus(a, b) return self:emit("Sub", { a, b }) end
function Formula:times(a, b) return self:emit("Mul", { a, b }) end
function Formula:square(a) return self:times(a, a) end
function Formula:of(operator, a) return self:emit(operator, { a }) end
function Formula:is_above(a, number) return self:emit("Greater", { a, self:number(number) }) end
-- The sum along an axis, which stays.
function Formula:sum_along(axis, a)
  return self.writer:emit("ReduceSum", { a, self.writer:ints { axis } }, { keepdims = { i = 1 } }, "sum")
end

-- dy times what `slope(f, v)` says of the op's input or output, whichever the catalog has it of.
local function by_slope(name, slope)
  ops[name .. "_grad"] = function(w)
    local f = formula_of(w)
    return w:emit("Mul", { w:input(1), slope(f, w:input(2), w.attrs) })
  end
end

by_slope("square", function(f, x) return f:plus(x, x) end)
by_slope("abs", function(f, x) return f:of("Sign", x) end)
by_slope("exp", function(_, y) return y end)
by_slope("log", function(f, x) return f:of("Reciprocal", x) end)
by_slope("sqrt", function(f, y) return f:emit("Div", { f:number(0.5), y }) end)
by_slope("rsqrt", function(f, y) return f:times(f:times(f:square(y), y), f:number(-0.5)) end)
by_slope("reciprocal", function(f, y) return f:of("Neg", f:square(y)) end)
by_slope("sin", function(f, x) return f:of("Cos", x) end)
by_slope("cos", function(f, x) return f:of("Neg", f:of("Sin", x)) end)
by_slope("tanh", function(f, y) return f:minus(f:number(1), f:square(y)) end)
by_slope("sigmoid", function(f, y) return f:minus(y, f:square(y)) end)
by_slope("softplus", function(f, x) return f:of("Sigmoid", x) end)
by_slope("log_sigmoid", function(f, x) return f:of("Sigmoid", f:of("Neg", x)) end)
by_slope("reciprocal_no_nan", function(f, y) return f:of("Neg", f:square(y)) end)
by_slope("expm1", function(f, y) return f:plus(y, f:number(1)) end)
by_slope("log1p", function(f, x) return f:of("Reciprocal", f:plus(x, f:number(1))) end)
by_slope("tan", function(f, y) return f:plus(f:square(y), f:number(1)) end)
by_slope("sinh", function(f, x) return f:of("Cosh", x) end)
by_slope("cosh", function(f, x) return f:of("Sinh", x) end)

-- 1 / sqrt(a * b)
local function over_root(f, a, b) return f:of("Reciprocal", f:of("Sqrt", f:times(a, b))) end
local function over_root_of_rest(f, x) return over_root(f, f:minus(f:number(1), x), f:plus(x, f:number(1))) end
by_slope("asin", over_root_of_rest)
by_slope("acos", function(f, x) return f:of("Neg", over_root_of_rest(f, x)) end)
by_slope("atan", function(f, x) return f:of("Reciprocal", f:plus(f:square(x), f:number(1))) end)
by_slope("asinh", function(f, x) return f:of("Reciprocal", f:of("Sqrt", f:plus(f:square(x), f:number(1)))) end)
by_slope("acosh", function(f, x) return over_root(f, f:minus(x, f:number(1)), f:plus(x, f:number(1))) end)
by_slope("atanh", function(f, x) return f:of("Reciprocal", f:minus(f:number(1), f:square(x))) end)

local function slope_of_erf(f, x, factor)
  return f:times(f:of("Exp", f:of("Neg", f:square(x))), f:number(factor * 2 / math.sqrt(math.pi)))
end
by_slope("erf", function(f, x) return slope_of_erf(f, x, 1) end)
by_slope("erfc", function(f, x) return slope_of_erf(f, x, -1) end)
-- Beyond 1000, infinity has the limit, in place of the product of it and 0.
by_slope("swish", function(f, x, attrs)
  local inner = attrs.beta == 1 and x or f:times(x, f:number(attrs.beta))
  local s, bounded = f:of("Sigmoid", inner), f:emit("Clip", { inner, f:number(-1000), f:number(1000) })
  return f:plus(s, f:times(bounded, f:minus(s, f:square(s))))
end)
by_slope("mish", function(f, x)
  local t, s = f:of("Tanh", f:of("Softplus", x)), f:of("Sigmoid", x)
  local bounded = f:emit("Clip", { x, f:number(-1000), f:number(1000) })
  return f:plus(t, f:times(f:times(bounded, s), f:minus(f:number(1), f:square(t))))
end)
by_slope("gelu", function(f, x)
  local below = f:plus(f:of("Erf", f:times(x, f:number(math.sqrt(0.5)))), f:number(1))
  local bell = f:of("Exp", f:times(f:square(x), f:number(-0.5)))
  return f:plus(f:times(below, f:number(0.5)), f:times(f:times(x, bell), f:number(1 / math.sqrt(2 * math.pi))))
end)

-- dy where a condition holds, and elsewhere dy times a slope, or 0.
local function passing(name, condition, slope)
  ops[name .. "_grad"] = function(w)
    local f = formula_of(w)
    local dy, v = w:input(1), w:input(2)
    return w:emit("Where", { condition(f, v), dy, slope and f:times(dy, slope(f, v, w.attrs)) or f:number(0) })
  end
end
local function is_positive(f, v) return f:is_above(v, 0) end
passing("relu", is_positive)
local function is_between(least, most)
  return function(f, x) return f:emit("And", { f:is_above(x, least), f:emit("Less", { x, f:number(most) }) }) end
end
passing("relu6", is_between(0, 6))
passing("hardtanh", is_between(-1, 1))
passing("leaky_relu", is_positive, function(f, _, attrs) return f:number(attrs.alpha) end)
passing("elu", is_positive, function(f, x, attrs) return f:times(f:number(attrs.alpha), f:of("Exp", x)) end)

function ops.negative_grad(w) return w:emit("Neg", { w:input(1) }) end

function ops.hardsigmoid_grad(w)
  local f = formula_of(w)
  return w:emit("Where", { is_between(-3, 3)(f, w:input(2)), f:times(w:input(1), f:number(1 / 6)), f:number(0) })
end

function ops.hardswish_grad(w)
  local f = formula_of(w)
  local dy, x = w:input(1), w:input(2)
  local slope = f:times(f:plus(f:plus(x, x), f:number(3)), f:number(1 / 6))
  local above = f:emit("Where", { f:emit("GreaterOrEqual", { x, f:number(3) }), dy, f:times(dy, slope) })
  return w:emit("Where", { f:is_above(x, -3), above, f:number(0) })
end

-- dy at the bounds too.
function ops.clip_by_value_grad(w)
  local f, attrs, x = formula_of(w), w.attrs, w:input(2)
  local function holds(operator, bound)
    return math.abs(bound) < math.huge and f:emit(operator, { x, f:number(bound) }) or nil
  end
  local is_in, is_below = holds("GreaterOrEqual", attrs.min), holds("LessOrEqual", attrs.max)
  is_in = is_in and is_below and f:emit("And", { is_in, is_below }) or is_in or is_below
  if not is_in then return w:emit("Identity", { w:input(1) }) end
  return w:emit("Where", { is_in, w:input(1), f:number(0) })
end

-- dy, labels, logits
function ops.sigmoid_cross_entropy_grad(w)
  local f = formula_of(w)
  return w:emit("Mul", { w:input(1), f:minus(f:of("Sigmoid", w:input(3)), w:input(2)) })
end

-- dy, prediction, label
function ops.smooth_l1_loss_grad(w)
  local f, beta = formula_of(w), w.attrs.beta
  local difference = f:minus(w:input(2), w:input(3))
  if beta == 0 then return w:emit("Mul", { w:input(1), f:of("Sign", difference) }) end
  local slope = f:emit("Clip", { f:times(difference, f:number(1 / beta)), f:number(-1), f:number(1) })
  return w:emit("Mul", { w:input(1), slope })
end

-- dy one for each row, labels and logits; labels need not sum up to 1.
function ops.softmax_cross_entropy_grad(w)
  local f, rank = formula_of(w), #w:sizes(3)
  local shares = w:emit("Softmax", { w:input(3) }, { axis = { i = -1 } }, "softmax")
  local slope = f:minus(f:times(shares, f:sum_along(-1, w:input(2))), w:input(2))
  local dy = #w:sizes(1) < rank and f:emit("Unsqueeze", { w:input(1), w:ints { -1 } }) or w:input(1)
  return w:emit("Mul", { slope, dy })
end

-- dy one for each label, labels and probabilities.
function ops.sparse_softmax_cross_entropy_grad(w)
  local f, sizes, classes = formula_of(w), w:sizes(3), {}
  for k = 1, sizes[#sizes] do classes[k] = k - 1 end
  local function as_column(i, name)
    return #w:sizes(i) < #sizes and f:emit("Unsqueeze", { name, w:ints { -1 } }) or name
  end
  local is_label = f:emit("Equal", { as_column(2, w:indices(2)), w:array(core.array(classes, "int64"), "classes") })
  local ones = w:emit("Cast", { is_label }, { to = types.attribute(w:dtype(3)) }, "ones")
  return w:emit("Mul", { f:minus(w:input(3), ones), as_column(1, w:input(1)) })
end

-- Where the norm is held at epsilon it is a constant.
function ops.l2_normalize_grad(w)
  local f, axis = formula_of(w), w.attrs.axis
  local dy, x, epsilon = w:input(1), w:input(2), f:number(w.attrs.epsilon)
  local square = f:sum_along(axis, f:square(x))
  local kept = f:emit("Max", { square, epsilon })
  local share = f:emit("Div", { f:sum_along(axis, f:times(dy, x)), kept })
  local along = f:emit("Where", { f:emit("Greater", { square, epsilon }), share, f:number(0) })
  return w:emit("Div", { f:minus(dy, f:times(x, along)), f:of("Sqrt", kept) })
end

-- x, mean, dmean, dvariance, of which either gradient may be left out.
function ops.moments_grad(w)
  local f, sizes, axes, count = formula_of(w), w:sizes(1), {}, 1
  local is_averaged = {}
  for _, axis in ipairs(w.attrs.axes) do is_averaged[w:axis(axis, #sizes)] = true end
  for axis = 0, #sizes - 1 do
    if #w.attrs.axes == 0 or is_averaged[axis] then axes[#axes + 1], count = axis, count * sizes[axis + 1] end
  end
  local function beside(i)
    return #w:sizes(i) < #sizes and f:emit("Unsqueeze", { w:input(i), w:ints(axes) }) or w:input(i)
  end
  local of_mean = w:has(3) and f:times(beside(3), f:number(1 / count)) or nil
  local of_variance = w:has(4)
    and f:times(f:times(beside(4), f:number(2 / count)), f:minus(w:input(1), beside(2))) or nil
  if of_mean and of_variance then return w:emit("Add", { of_mean, of_variance }) end
  return of_variance or w:emit("Expand", { of_mean, w:ints(sizes) })
end

-- x, mean, inv_std and dy; gamma, dmean and dinv_std may be left out. Without dinv_std and dmean: inv_std times what is
-- left of dy * gamma without its mean and its share along the normal rows.
function ops.layer_norm_grad(w)
  local f, sizes, axes, count = formula_of(w), w:sizes(1), {}, 1
  for axis = w:axis(w.attrs.begin_norm_axis, #sizes), #sizes - 1 do
    axes[#axes + 1], count = axis, count * sizes[axis + 1]
  end
  local function beside(i) return f:emit("Unsqueeze", { w:input(i), w:ints(axes) }) end
  local function mean(a) return w:emit("ReduceMean", { a }, { axes = { ints = axes } }, "mean") end
  local inverse, dy = beside(3), w:input(4)
  local rows = f:times(f:minus(w:input(1), beside(2)), inverse)
  if w:has(5) then dy = f:times(dy, w:input(5)) end
  local along = f:times(rows, mean(f:times(dy, rows)))
  local dx = f:times(inverse, f:minus(w.attrs.centred and f:minus(dy, mean(dy)) or dy, along))
  if w.attrs.centred and w:has(6) then dx = f:plus(dx, f:times(beside(6), f:number(1 / count))) end
  if w:has(7) then
    local share = f:times(f:times(beside(7), f:square(inverse)), f:number(1 / count))
    dx = f:minus(dx, f:times(share, rows))
  end
  return w:emit("Identity", { dx })
end

-- dy, x, gamma, mean, variance: what comes of the statistics and the scale is known beforehand, so dx is scaled dy.
function ops.batch_norm_infer_grad(w)
  for i = 2, 5 do
    if w.uses[w.op.outputs[i]] then w:fail("is asked for the gradient of a parameter, which is not written") end
  end
  local f, sizes, shape = formula_of(w), w:sizes(2), {}
  for axis = 1, #sizes do shape[axis] = 1 end
  shape[w:axis(w.attrs.axis, #sizes) + 1] = w:sizes(3)[1]
  local root = f:of("Sqrt", f:plus(w:input(5), f:number(w.attrs.epsilon)))
  local scale = f:emit("Div", { w:input(3), root })
  return w:emit("Mul", { w:input(1), f:emit("Reshape", { scale, w:ints(shape) }) })
end

function ops.dropout_grad(w)
  local f = formula_of(w)
  return w:emit("Where", { w:flag(2), f:times(w:input(1), f:number(1 / (1 - w.attrs.rate))), f:number(0) })
end

function ops.softmax_grad(w)
  local f = formula_of(w)
  local dy, y = w:input(1), w:input(2)
  return w:emit("Mul", { y, f:minus(dy, f:sum_along(w.attrs.axis, f:times(dy, y))) })
end

function ops.log_softmax_grad(w)
  local f = formula_of(w)
  local dy, y = w:input(1), w:input(2)
  return w:emit("Sub", { dy, f:times(f:of("Exp", y), f:sum_along(w.attrs.axis, dy)) })
end

return ops
