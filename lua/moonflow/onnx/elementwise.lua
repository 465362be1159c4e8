--- ONNX operators that compute element by element, or along axes: a table from an operator's name to the function that
--- applies it to a node.
-- Where an operator is one op of the catalog under another name, the table of names says so, and nothing more.

local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local fractional = require("moonflow.onnx.node").fractional

local operators = {}

-- ---- of one value -------------------------------------------------------------------------------------------------

local unary = {
  Abs = "abs", Acos = "acos", Acosh = "acosh", Asin = "asin", Asinh = "asinh", Atan = "atan", Atanh = "atanh",
  Ceil = "ceil", Cos = "cos", Cosh = "cosh", Erf = "erf", Exp = "exp", Floor = "floor", HardSwish = "hardswish",
  Log = "log", Mish = "mish", Neg = "negative", Not = "logical_not", Reciprocal = "reciprocal", Relu = "relu",
  Round = "round", Sigmoid = "sigmoid", Sin = "sin", Sinh = "sinh", Softplus = "softplus",
  Sqrt = "sqrt", Tan = "tan", Tanh = "tanh",
}
for name, op in pairs(unary) do
  operators[name] = function(node) return node:apply(op, { node:input(1) }) end
end

function operators.Identity(node) return node:need(node:any(1), "input 1") end

-- Of NaN it is NaN, as for ONNX Runtime; that of our own op is 0, as PyTorch's.
function operators.Sign(node)
  local x = node:input(1)
  if not node.is_floating(x) then return node:apply("sign", { x }) end
  local is_number = node:apply("equal", { x, x }, nil, "is_number")
  return node:apply("where", { is_number, node:apply("sign", { x }, nil, "sign"), x })
end

-- A model is read as it predicts.
function operators.Dropout(node)
  node:ignore("ratio", "seed", "is_test")
  local x = node:input(1)
  if (node:number(3) or 0) ~= 0 then node:fail("training_mode is not supported; export the model in its eval mode") end
  return x, node:is_wanted(2) and node:filled(1, "int8", x.shape:table()) or nil
end

function operators.LeakyRelu(node)
  return node:apply("leaky_relu", { node:input(1) }, { alpha = node:float("alpha", 0.01) })
end

function operators.Elu(node) return node:apply("elu", { node:input(1) }, { alpha = node:float("alpha", 1) }) end

function operators.Selu(node)
  local gamma = node:float("gamma", 1.05070102214813232421875)
  local alpha = node:float("alpha", 1.67326319217681884765625)
  return node:multiply(node:apply("elu", { node:input(1) }, { alpha = alpha }, "elu"), gamma)
end

function operators.Celu(node)
  local alpha = node:float("alpha", 1)
  if alpha <= 0 then node:fail("alpha = " .. alpha .. " is not supported, only those above 0") end
  return node:multiply(node:apply("elu", { node:multiply(node:input(1), 1 / alpha, "inner") }, nil, "elu"), alpha)
end

-- That of mobile networks, whose slope is 1/6, has an op of its own.
function operators.HardSigmoid(node)
  local x, alpha, beta = node:input(1), node:float("alpha", 0.2), node:float("beta", 0.5)
  if math.abs(alpha - 1 / 6) < 1e-7 and beta == 0.5 then return node:apply("hardsigmoid", { x }) end
  local line = node:add(node:multiply(x, alpha, "scale"), beta, "shift")
  return node:apply("clip_by_value", { line }, { min = 0, max = 1 })
end

-- By tanh: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))).
local function gelu_by_tanh(node, x)
  local square = node:apply("square", { x }, nil, "square")
  local factor = node:add(node:multiply(square, 0.044715, "cubic"), 1, "factor")
  local inner = node:multiply(node:multiply(x, factor, "product"), math.sqrt(2 / math.pi), "inner")
  local weight = node:add(node:apply("tanh", { inner }, nil, "tanh"), 1, "weight")
  return node:multiply(node:multiply(x, 0.5, "half"), weight)
end

function operators.Gelu(node)
  local x, approximate = node:input(1), node:text("approximate", "none")
  if approximate == "tanh" then return gelu_by_tanh(node, x) end
  node:expect("approximate", "s", "none")
  return node:apply("gelu", { x })
end

function operators.Softsign(node)
  local x = node:input(1)
  return node:apply("divide", { x, node:add(node:apply("abs", { x }, nil, "abs"), 1, "shift") })
end

function operators.ThresholdedRelu(node)
  local x = node:input(1)
  local above = node:apply("greater", { x, node:filled(node:float("alpha", 1), x.dtype) }, nil, "above")
  return node:apply("where", { above, x, node:filled(0, x.dtype) })
end

-- A slope for each channel; older files have it as a list, newer ones in a shape that broadcasts.
function operators.PRelu(node)
  local x, slope = node:input(1), node:input(2)
  if #slope.shape == 1 and #x.shape > 2 and node.opset < 7 then
    local sizes = { slope.shape[0] }
    for i = 2, #x.shape - 1 do sizes[i] = 1 end
    slope = node:reshape(slope, sizes, "slope")
  end
  local below = node:apply("minimum", { x, node:filled(0, x.dtype) }, nil, "below")
  return node:add(node:apply("relu", { x }, nil, "above"), node:multiply(below, slope, "scaled"))
end

function operators.IsInf(node)
  local x = node:input(1)
  local takes_below, takes_above = node:int("detect_negative", 1) ~= 0, node:int("detect_positive", 1) ~= 0
  if not takes_below or not takes_above then
    x = node:apply(takes_above and "relu" or "negative", { x }, nil, "side")
    if takes_below then x = node:apply("relu", { x }, nil, "below") end
    if not takes_above and not takes_below then return node:filled(0, "int8", x.shape:table()) end
  end
  return node:apply("equal", { node:apply("abs", { x }, nil, "abs"), node:filled(math.huge, x.dtype) })
end

function operators.Swish(node)
  return node:apply("swish", { node:input(1) }, { beta = node:float("alpha", 1) })
end

function operators.Shrink(node)
  local given, limit, bias = node:input(1), node:float("lambd", 0.5), node:float("bias", 0)
  local x = dtypes.floating[given.dtype] and given or node:cast(given, "float64", "wide")
  local above = node:apply("greater", { x, node:filled(limit, x.dtype) }, nil, "above")
  local below = node:apply("less", { x, node:filled(-limit, x.dtype) }, nil, "below")
  local lowered, raised = node:add(x, -bias, "lowered"), node:add(x, bias, "raised")
  local rest = node:apply("where", { below, raised, node:filled(0, x.dtype) }, nil, "rest")
  return node:cast(node:apply("where", { above, lowered, rest }, nil, x ~= given and "shrunk" or nil), given.dtype)
end

function operators.IsNaN(node)
  local x = node:input(1)
  return node:apply("not_equal", { x, x })
end

-- Between numbers. From 0 to 6 it is how relu6 is written, which convolutions take along.
local function clipped(node, x, least, most)
  if least == 0 and most == 6 then return node:apply("relu6", { x }) end
  return node:apply("clip_by_value", { x }, { min = math.min(least, most), max = most })
end

-- Numbers of the node, as older files have them, or values that come in, as newer ones do.
function operators.Clip(node)
  local x = node:input(1)
  if node.opset < 11 then return clipped(node, x, node:float("min", -math.huge), node:float("max", math.huge)) end
  local least, most = node:optional(2), node:optional(3)
  local least_known = least == nil or arguments.kind(least) == "ndarray"
  local most_known = most == nil or arguments.kind(most) == "ndarray"
  if node.is_floating(x) and least_known and most_known then
    return clipped(node, x, node:number(2) or -math.huge, node:number(3) or math.huge)
  end
  if least then x = node:apply("maximum", { x, least }, nil, "least") end
  return most and node:apply("minimum", { x, most }) or x
end

function operators.Cast(node)
  local x = node:input(1)
  node:ignore("saturate", "round_mode")  -- of types that there are not here
  local dtype, is_bool = node:dtype("to")
  if not dtype then node:fail("it has no type to cast to", "invalid_argument") end
  if is_bool then return node:apply("not_equal", { x, node:filled(0, x.dtype) }) end
  return x.dtype == dtype and x or node:apply("cast", { x }, { dtype = dtype })
end

function operators.CastLike(node)
  node:ignore("saturate", "round_mode")
  local x, dtype = node:input(1), node:input(2).dtype
  if dtype == "int8" then node:fail("a cast to what may be int8 or bool is not supported") end
  return x.dtype == dtype and x or node:apply("cast", { x }, { dtype = dtype })
end

-- ---- of two or more -----------------------------------------------------------------------------------------------

-- Before opset 7 the second value broadcasts only where the node says so, and may then begin at any axis of the first.
local function operands(node)
  node:ignore("broadcast")
  local a, b = node:input(1), node:input(2)
  local axis = node.opset < 7 and node:int("axis")
  if axis then
    local sizes = b.shape:table()
    for _ = node:axis_of(axis, #a.shape) + #sizes + 1, #a.shape do sizes[#sizes + 1] = 1 end
    b = node:reshape(b, sizes, "operand")
  end
  return a, b
end

local binary = {
  Add = "add", Sub = "subtract", Mul = "multiply", And = "logical_and", Or = "logical_or", Xor = "not_equal",
  Equal = "equal", Less = "less", LessOrEqual = "less_equal", Greater = "greater", GreaterOrEqual = "greater_equal",
}
for name, op in pairs(binary) do
  operators[name] = function(node) return node:apply(op, { operands(node) }) end
end

-- The rest of whole numbers by floor division, and 1 where its sign is not that of a, else 0. There a quotient that is
-- cut towards 0 is 1 more. Absolute values would wrap at the least number.
local function floored_rest(node, a, b)
  local rest = node:apply("mod", { a, b }, nil, "rest")
  local signs = node:multiply(node:apply("sign", { a }, nil, "a_sign"), node:apply("sign", { rest }, nil, "rest_sign"),
    "signs")
  return rest, node:cast(node:apply("less", { signs, node:filled(0, a.dtype) }, nil, "is_turned"), a.dtype, "turned")
end

-- Quotients of whole numbers are cut towards 0.
local function truncated_quotient(node, a, b)
  if a.dtype == "uint8" then return node:apply("floordiv", { a, b }) end
  local _, turned = floored_rest(node, a, b)
  return node:add(node:apply("floordiv", { a, b }, nil, "floor"), turned)
end

function operators.Div(node)
  local a, b = operands(node)
  if not node.is_floating(a) then return truncated_quotient(node, a, b) end
  return node:apply("divide", { a, b })
end

-- The remainder has the sign of b; with fmod that of a, as in C.
function operators.Mod(node)
  local a, b = operands(node)
  if node:int("fmod", 0) == 0 or a.dtype == "uint8" then return node:apply("mod", { a, b }) end
  if not node.is_floating(a) then
    local rest, turned = floored_rest(node, a, b)
    return node:apply("subtract", { rest, node:multiply(b, turned, "moved") })
  end
  local size = node:apply("mod", { node:apply("abs", { a }, nil, "a"), node:apply("abs", { b }, nil, "b") }, nil,
    "size")
  return node:multiply(size, node:apply("sign", { a }, nil, "sign"))
end

-- The number that all elements of a value are known to be, or nil.
local function known_number(value)
  if arguments.kind(value) ~= "ndarray" or value.shape:count() ~= 1 then return nil end
  return value:astype("float64"):item()
end

-- x to a whole power of 1 or more, by squaring: exact where x has whole numbers, which wrap around as its products do.
local function product_of(node, x, power)
  local result, square = nil, x
  for bit = 0, 5 do
    if bit > 0 and power >= 2 ^ bit then square = node:apply("square", { square }, nil, "power_" .. 2 ^ bit) end
    if math.floor(power / 2 ^ bit) % 2 == 1 then
      result = result and node:multiply(result, square, "product_" .. bit) or square
    end
  end
  return result
end

local roots = { [0.5] = "sqrt", [-0.5] = "rsqrt", [-1] = "reciprocal" }

-- The exponent may be of another dtype than what is raised. Squares, cubes and roots are what networks have of powers,
-- and products are faster.
function operators.Pow(node)
  local x, exponent = operands(node)
  local is_floating, number = node.is_floating(x), known_number(exponent)
  if number and #exponent.shape <= #x.shape then
    if number == 0 then return node:filled(1, x.dtype, x.shape:table()) end
    local most = is_floating and 4 or 63
    if number % 1 == 0 and number > 0 and number <= most then return product_of(node, x, number) end
    if is_floating and roots[number] then return node:apply(roots[number], { x }) end
  end
  if is_floating then return node:apply("pow", { x, node:cast(exponent, x.dtype, "exponent") }) end
  local power = node:apply("pow", { node:cast(x, "float64", "base"), node:cast(exponent, "float64", "exponent") }, nil,
    "power")
  -- A power of whole numbers is one, but for the last bit; any other is cut, as a cast does.
  if not node.is_floating(exponent) then power = node:apply("round", { power }, nil, "round") end
  return node:cast(power, x.dtype)
end

local function folded(node, op, values)
  local result = values[1]
  for i = 2, #values do
    result = node:apply(op, { result, values[i] }, nil, i < #values and tostring(i) or nil)
  end
  return result
end

function operators.Sum(node) return folded(node, "add", node:all_inputs()) end
function operators.Max(node) return folded(node, "maximum", node:all_inputs()) end
function operators.Min(node) return folded(node, "minimum", node:all_inputs()) end

function operators.Mean(node)
  local values = node:all_inputs()
  return node:multiply(folded(node, "add", values), 1 / #values, "mean")
end

function operators.Where(node) return node:apply("where", { node:input(1), node:input(2), node:input(3) }) end

-- ---- along axes ---------------------------------------------------------------------------------------------------

-- The axes of a reduction, in a list, and whether there is one at all. Opset 13 made them an input of ReduceSum, 18 of
-- the others; where none is named that is all of them, or none.
local function reduced_axes(node, x)
  local axes, takes_all = node:list("axes", 2), node:int("noop_with_empty_axes", 0) == 0
  if axes and #axes > 0 then return node:axes_of(axes, #x.shape), true end
  return {}, takes_all and #x.shape > 0
end

-- A reduction by `op` of `before(node, x)`.
local function reduction(op, before, after)
  return function(node)
    local x = node:input(1)
    local axes, is_any = reduced_axes(node, x)
    local keepdims = node:int("keepdims", 1) ~= 0
    if before then x = before(node, x) end
    if is_any then x = node:apply(op, { x }, { axis = axes, keepdims = keepdims }, after and "sum" or nil) end
    return after and after(node, x) or x
  end
end

local function absolute(node, x) return node:apply("abs", { x }, nil, "abs") end
local function squared(node, x) return node:apply("square", { x }, nil, "square") end
local function rooted(node, x) return node:apply("sqrt", { x }) end
local function logarithm(node, x) return node:apply("log", { x }) end

operators.ReduceSum = reduction("reduce_sum")
operators.ReduceMean = fractional(reduction("reduce_mean"), 1)
operators.ReduceMax = reduction("reduce_max")
operators.ReduceMin = reduction("reduce_min")
operators.ReduceProd = reduction("reduce_prod")
operators.ReduceLogSumExp = fractional(reduction("reduce_logsumexp"), 1)
operators.ReduceL1 = reduction("reduce_sum", absolute)
operators.ReduceL2 = fractional(reduction("reduce_sum", squared, rooted), 1)
operators.ReduceSumSquare = reduction("reduce_sum", squared)
operators.ReduceLogSum = fractional(reduction("reduce_sum", nil, logarithm), 1)

-- The place of the first of the largest, or of the last.
local function extreme(op)
  return function(node)
    local x = node:input(1)
    local axis = node:axis_of(node:int("axis", 0), #x.shape)
    local is_last = node:int("select_last_index", 0) ~= 0
    if is_last then x = node:apply("reverse", { x }, { axis = { axis } }, "reverse") end
    local place = node:apply(op, { x }, { axis = axis }, "place")
    if is_last then
      place = node:apply("subtract", { node:filled(x.shape[axis] - 1, "int64"), place }, nil, "from_the_end")
    end
    return node:int("keepdims", 1) ~= 0 and node:apply("expand_dims", { place }, { axis = axis }) or place
  end
end
operators.ArgMax = extreme("argmax")
operators.ArgMin = extreme("argmin")

-- Before opset 13 an axis stands for itself and all behind it. `compute(node, x, axis)` is what is done there.
local function along_axis(compute)
  return function(node)
    local x = node:input(1)
    local rank = #x.shape
    local axis = node:axis_of(node:int("axis", node.opset < 13 and 1 or -1), rank)
    if node.opset >= 13 or axis == rank - 1 then return compute(node, x, axis) end
    return node:reshape(compute(node, node:flattened(x, axis, "flat"), 1), x.shape:table(), "shape")
  end
end
operators.Softmax = along_axis(function(node, x, axis) return node:apply("softmax", { x }, { axis = axis }) end)
operators.LogSoftmax = along_axis(function(node, x, axis) return node:apply("log_softmax", { x }, { axis = axis }) end)

-- 1 at the first of the largest, 0 elsewhere.
operators.Hardmax = along_axis(function(node, x, axis)
  local places = node:apply("range", {}, { start = 0, stop = x.shape[axis], dtype = "int64" }, "places")
  local first = node:apply("expand_dims", { node:apply("argmax", { x }, { axis = axis }, "first") }, { axis = axis },
    "column")
  return node:cast(node:apply("equal", { first, node:along(places, #x.shape, axis, "line") }, nil, "is_first"), x.dtype)
end)

-- The k largest, or smallest, and their places; of equal ones the first come first.
function operators.TopK(node)
  node:ignore("sorted")
  local x = node:input(1)
  local rank = #x.shape
  local axis = node:axis_of(node:int("axis", -1), rank)
  local k, is_largest = node.opset < 10 and node:int("k") or node:number(2), node:int("largest", 1) ~= 0
  if not k or k < 0 or k > x.shape[axis] then
    node:fail(("k = %s of %d elements"):format(tostring(k), x.shape[axis]), "out_of_range")
  end
  if k == 0 then
    local none = node:cut(x, axis, 0, 0, "none")
    return none, node:cast(none, "int64")
  end
  local turned = node:swapped(x, axis, rank - 1, "rows")
  local places
  if is_largest then
    places = node:apply("top_k", { turned }, { k = k }, "places")
  else  -- not of the negative: the least whole number has none, and a NaN would come first
    places = node:cut(node:apply("argsort", { turned }, { direction = "ASCENDING" }, "order"), rank - 1, 0, k, "places")
  end
  local values = node:apply("dim_gather", { turned, places }, { dim = rank - 1 }, "values")
  return node:swapped(values, axis, rank - 1), node:swapped(places, axis, rank - 1)
end

function operators.CumSum(node)
  local x = node:input(1)
  return node:apply("cumsum", { x }, {
    axis = node:axis_of(node:need(node:number(2), "axis"), #x.shape),
    reverse = node:int("reverse", 0) ~= 0,
    exclusive = node:int("exclusive", 0) ~= 0,
  })
end

-- (x - mean) / deviation, over some axes.
function operators.MeanVarianceNormalization(node)
  local x = node:input(1)
  local over = { axis = node:axes_of(node:ints("axes", { 0, 2, 3 }), #x.shape), keepdims = true }
  local centred = node:apply("subtract", { x, node:apply("reduce_mean", { x }, over, "mean") }, nil, "centred")
  local variance = node:apply("reduce_mean", { squared(node, centred) }, over, "variance")
  local deviation = node:add(node:apply("sqrt", { variance }, nil, "root"), 1e-9, "deviation")
  return node:apply("divide", { centred, deviation })
end

function operators.LpNormalization(node)
  local x, p = node:input(1), node:int("p", 2)
  local axis = node:axis_of(node:int("axis", -1), #x.shape)
  if p ~= 1 and p ~= 2 then node:fail("p = " .. p .. " is not supported, only 1 and 2") end
  local powers = p == 1 and absolute(node, x) or squared(node, x)
  local sum = node:apply("reduce_sum", { powers }, { axis = { axis }, keepdims = true }, "sum")
  local norm = p == 1 and sum or node:apply("sqrt", { sum }, nil, "norm")
  return node:multiply(x, node:apply("reciprocal_no_nan", { norm }, nil, "factor"))
end

return operators
