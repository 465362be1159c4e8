--- Ops of gradients as ONNX has them, for nets that tell how their result hangs on their input: a table as that of
--- export_ops. Each is named after the op that it is the gradient of, and takes dy first.

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
-- Beyond 1000, infinity has the limit, in place of the product of it and 0.
by_slope("swish", function(f, x, attrs)
  local inner = attrs.beta == 1 and x or f:times(x, f:number(attrs.beta))
  local s, bounded = f:of("Sigmoid", inner), f:emit("Clip", { inner, f:number(-1000), f:number(1000) })
  return f:plus(s, f:times(bounded, f:minus(s, f:square(s))))
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
passing("relu6", function(f, y)
  return f:emit("And", { is_positive(f, y), f:emit("Less", { y, f:number(6) }) })
end)
passing("leaky_relu", is_positive, function(f, _, attrs) return f:number(attrs.alpha) end)
passing("elu", is_positive, function(f, x, attrs) return f:times(f:number(attrs.alpha), f:of("Exp", x)) end)

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
