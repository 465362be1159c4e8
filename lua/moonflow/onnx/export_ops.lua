--- The ops of the catalog as ONNX has them: a table from an op's name to the function that writes it and gives the name
--- of its output, or of several; `nil, name` where that is a bool in ONNX. An op that is not here has no counterpart.

local core = require "moonflow.core"
local ndarray = require "moonflow.ndarray"
local types = require "moonflow.onnx.types"

local ops = {}

local kWithout = -2 ^ 62  -- a bound of a slice below this is not given

-- ---- element by element -------------------------------------------------------------------------------------------

for op, operator in pairs {
  abs = "Abs", acos = "Acos", acosh = "Acosh", asin = "Asin", asinh = "Asinh", atan = "Atan", atanh = "Atanh",
  ceil = "Ceil", cos = "Cos", cosh = "Cosh", erf = "Erf", exp = "Exp", floor = "Floor",
  identity = "Identity", log = "Log", reciprocal = "Reciprocal", rint = "Round", round = "Round", sigmoid = "Sigmoid",
  sign = "Sign", sin = "Sin", sinh = "Sinh", softplus = "Softplus", sqrt = "Sqrt", stop_gradient = "Identity",
  tanh = "Tanh",
} do
  ops[op] = function(w) return w:emit(operator, { w:input(1) }) end
end

-- An operator that ONNX has not for numbers of a byte goes over them as int32; cut to the byte, that is the same.
local function through_int32(w, operator, attributes, further)
  local dtype = w:dtype(1)
  if dtype ~= "int8" and dtype ~= "uint8" then return w:emit(operator, { w:input(1), further }, attributes) end
  local wide = w:emit("Cast", { w:input(1) }, { to = types.attribute("int32") }, "wide")
  return w:emit("Cast", { w:emit(operator, { wide, further }, attributes, "of_wide") },
    { to = types.attribute(dtype) })
end
function ops.negative(w) return through_int32(w, "Neg") end
function ops.relu(w)
  if w:dtype(1) == "int64" then return w:emit("Max", { w:input(1), w:number(0) }) end
  return through_int32(w, "Relu")
end

for op, operator in pairs {
  add = "Add", subtract = "Sub", multiply = "Mul", divide = "Div", pow = "Pow", maximum = "Max", minimum = "Min",
} do
  ops[op] = function(w) return w:emit(operator, { w:input(1), w:input(2) }) end
end

for op, operator in pairs {
  equal = "Equal", less = "Less", less_equal = "LessOrEqual", greater = "Greater", greater_equal = "GreaterOrEqual",
} do
  ops[op] = function(w) return nil, w:emit(operator, { w:input(1), w:input(2) }) end
end

function ops.not_equal(w) return nil, w:emit("Not", { w:emit("Equal", { w:input(1), w:input(2) }, nil, "equal") }) end
function ops.logical_not(w) return nil, w:emit("Not", { w:flag(1) }) end
function ops.logical_and(w) return nil, w:emit("And", { w:flag(1), w:flag(2) }) end
function ops.logical_or(w) return nil, w:emit("Or", { w:flag(1), w:flag(2) }) end

function ops.where(w) return w:emit("Where", { w:flag(1), w:input(2), w:input(3) }) end

-- Floats beyond the whole numbers become their ends, and a NaN 0, of which a Cast promises nothing. A float64 has all
-- ends but the upper one of int64, which is chosen.
local function to_whole(w, to)
  local from, is_byte = w:dtype(1), to == "int8" or to == "uint8"
  local dtype = (from == "float64" or not is_byte) and "float64" or "float32"
  local bits = to == "int64" and 64 or to == "int32" and 32 or 8
  local least, above = to == "uint8" and 0 or -2 ^ (bits - 1), to == "uint8" and 2 ^ 8 or 2 ^ (bits - 1)
  local x = w:input(1)
  if from ~= dtype then x = w:emit("Cast", { x }, { to = types.attribute(dtype) }, "wide") end
  x = w:emit("Where", { w:emit("IsNaN", { x }, nil, "is_nan"), w:number(0, dtype), x }, nil, "numbers")
  local most = to == "int64" and above - 1024 or above - 1
  local inside = w:emit("Clip", { x, w:number(least, dtype), w:number(most, dtype) }, nil, "inside")
  if to ~= "int64" then return w:emit("Cast", { inside }, { to = types.attribute(to) }) end
  local is_above = w:emit("GreaterOrEqual", { x, w:number(above, dtype) }, nil, "is_above")
  local whole = w:emit("Cast", { inside }, { to = types.attribute(to) }, "whole")
  local last = w:array(ndarray.cast(core.array(math.huge, dtype, {}), to), "last")
  return w:emit("Where", { is_above, last, whole })
end

function ops.cast(w)
  local from, to = w:dtype(1), w.attrs.dtype
  if from == to then return w:emit("Identity", { w:input(1) }) end
  if from:match("float") and not to:match("float") then return to_whole(w, to) end
  return w:emit("Cast", { w:input(1) }, { to = types.attribute(to) })
end

-- Operators refuse no values; those of a row without a class are as its race has them.
ops.drawn_class = ops.cast

-- The angle of the point (y, x), of the smaller side over the larger: y is the second input.
function ops.atan2(w)
  local x, y = w:input(1), w:input(2)
  local function is_below_0(name, word) return w:emit("Less", { name, w:number(0) }, nil, word) end
  local height, width = w:emit("Abs", { x }, nil, "height"), w:emit("Abs", { y }, nil, "width")
  local less, more = w:emit("Min", { height, width }, nil, "less"), w:emit("Max", { height, width }, nil, "more")
  local slope = w:emit("Where", { w:emit("Equal", { less, more }, nil, "is_diagonal"),
    w:emit("Sign", { more }, nil, "diagonal"), w:emit("Div", { less, more }, nil, "quotient") }, nil, "slope")
  local angle = w:emit("Atan", { slope }, nil, "flat")
  angle = w:emit("Where", { w:emit("Greater", { height, width }, nil, "is_steep"),
    w:emit("Sub", { w:number(math.pi / 2), angle }, nil, "steep"), angle }, nil, "acute")
  angle = w:emit("Where", { is_below_0(y, "is_left"), w:emit("Sub", { w:number(math.pi), angle }, nil, "left"), angle },
    nil, "above")
  return w:emit("Where", { is_below_0(x, "is_below"), w:emit("Neg", { angle }, nil, "below"), angle })
end

function ops.square(w) return w:emit("Mul", { w:input(1), w:input(1) }) end
function ops.rsqrt(w) return w:emit("Reciprocal", { w:emit("Sqrt", { w:input(1) }, nil, "root") }) end

-- `near` where x is near 0, where what is told is mostly rounded away, and else `far`.
local function near_zero(w, near, far, word)
  local is_near = w:emit("Less", { w:emit("Abs", { w:input(1) }, nil, "abs"), w:number(0.5) }, nil, "is_near")
  return w:emit("Where", { is_near, near, far }, nil, word)
end

-- With u = 1 + x log(u) x / (u - 1): both parts of the quotient lose the same (W. Kahan).
function ops.log1p(w)
  local x, one = w:input(1), w:number(1)
  local sum = w:emit("Add", { x, one }, nil, "sum")
  local log, kept = w:emit("Log", { sum }, nil, "log"), w:emit("Sub", { sum, one }, nil, "kept")
  local near = w:emit("Div", { w:emit("Mul", { log, x }, nil, "product"), kept }, nil, "quotient")
  local is_lost = w:emit("Equal", { kept, w:number(0) }, nil, "is_lost")
  return near_zero(w, w:emit("Where", { is_lost, x, near }, nil, "near"), log)
end

-- 2 t / (1 - t) with t = tanh(x / 2)
local function expm1(w, word)
  local x, one = w:input(1), w:number(1)
  local t = w:emit("Tanh", { w:emit("Mul", { x, w:number(0.5) }, nil, "half") }, nil, "tanh")
  local near = w:emit("Div", { w:emit("Add", { t, t }, nil, "twice"), w:emit("Sub", { one, t }, nil, "rest") }, nil,
    "near")
  return near_zero(w, near, w:emit("Sub", { w:emit("Exp", { x }, nil, "exp"), one }, nil, "far"), word)
end
function ops.expm1(w) return expm1(w) end

function ops.erfc(w) return w:emit("Sub", { w:number(1), w:emit("Erf", { w:input(1) }, nil, "erf") }) end

function ops.log_sigmoid(w)
  return w:emit("Neg", { w:emit("Softplus", { w:emit("Neg", { w:input(1) }, nil, "negative") }, nil, "softplus") })
end

function ops.squared_difference(w)
  local difference = w:emit("Sub", { w:input(1), w:input(2) }, nil, "difference")
  return w:emit("Mul", { difference, difference })
end

-- The square of the distance over 2 beta up to beta, beyond it the distance less beta / 2.
function ops.smooth_l1_loss(w)
  local beta, difference = w.attrs.beta, w:emit("Sub", { w:input(1), w:input(2) }, nil, "difference")
  local distance = w:emit("Abs", { difference }, nil, "distance")
  if beta == 0 then return w:emit("Identity", { distance }) end
  local square = w:emit("Mul", { difference, difference }, nil, "square")
  return w:emit("Where", {
    w:emit("Less", { distance, w:number(beta) }, nil, "is_near"),
    w:emit("Mul", { square, w:number(1 / (2 * beta)) }, nil, "near"),
    w:emit("Sub", { distance, w:number(beta / 2) }, nil, "far"),
  })
end

-- What is named, but 0 where x is 0.
local function unless_zero(w, y)
  return w:emit("Where", { w:emit("Equal", { w:input(1), w:number(0) }, nil, "is_zero"), w:number(0), y })
end

function ops.reciprocal_no_nan(w) return unless_zero(w, w:emit("Reciprocal", { w:input(1) }, nil, "reciprocal")) end
function ops.xdivy(w) return unless_zero(w, w:emit("Div", { w:input(1), w:input(2) }, nil, "quotient")) end

function ops.xlogy(w)
  local log = w:emit("Log", { w:input(2) }, nil, "log")
  return unless_zero(w, w:emit("Mul", { w:input(1), log }, nil, "product"))
end

-- Attributes are float32, and of some operators ONNX Runtime has none for float64: of such they are formulas.
local function is_double(w) return w:dtype(1) == "float64" end

local function x_if_positive(w, other)
  return w:emit("Where", { w:emit("Greater", { w:input(1), w:number(0) }, nil, "is_positive"), w:input(1), other })
end

function ops.elu(w)
  if not is_double(w) then return w:emit("Elu", { w:input(1) }, { alpha = { f = w.attrs.alpha } }) end
  return x_if_positive(w, w:emit("Mul", { expm1(w, "expm1"), w:number(w.attrs.alpha) }, nil, "below"))
end

function ops.leaky_relu(w)
  if not is_double(w) then return w:emit("LeakyRelu", { w:input(1) }, { alpha = { f = w.attrs.alpha } }) end
  return x_if_positive(w, w:emit("Mul", { w:input(1), w:number(w.attrs.alpha) }, nil, "below"))
end

-- min(max(x + 3, 0), 6) / 6
local function straight_sigmoid(w, word)
  local moved = w:emit("Add", { w:input(1), w:number(3) }, nil, "moved")
  return w:emit("Div", { w:emit("Clip", { moved, w:number(0), w:number(6) }, nil, "sixfold"), w:number(6) }, nil, word)
end

function ops.hardsigmoid(w)
  if is_double(w) then return straight_sigmoid(w) end
  return w:emit("HardSigmoid", { w:input(1) }, { alpha = { f = 1 / 6 }, beta = { f = 0.5 } })
end

function ops.hardswish(w)
  if is_double(w) then return w:emit("Mul", { w:input(1), straight_sigmoid(w, "share") }) end
  return w:emit("HardSwish", { w:input(1) })
end

function ops.tan(w)
  if not is_double(w) then return w:emit("Tan", { w:input(1) }) end
  return w:emit("Div", { w:emit("Sin", { w:input(1) }, nil, "sine"), w:emit("Cos", { w:input(1) }, nil, "cosine") })
end

function ops.swish(w)
  local x, beta = w:input(1), w.attrs.beta
  local inner = beta == 1 and x or w:emit("Mul", { x, w:number(beta) }, nil, "inner")
  return w:emit("Mul", { x, w:emit("Sigmoid", { inner }, nil, "sigmoid") })
end

function ops.mish(w)
  local x = w:input(1)
  return w:emit("Mul", { x, w:emit("Tanh", { w:emit("Softplus", { x }, nil, "softplus") }, nil, "tanh") })
end

-- As exporters write it, so that a runtime knows it again.
function ops.gelu(w)
  local x = w:input(1)
  local erf = w:emit("Erf", { w:emit("Div", { x, w:number(math.sqrt(2)) }, nil, "inner") }, nil, "erf")
  local product = w:emit("Mul", { x, w:emit("Add", { erf, w:number(1) }, nil, "sum") }, nil, "product")
  return w:emit("Mul", { product, w:number(0.5) })
end

-- Bounds of whole numbers are cut to such, as a cast does it.
local function clip(w, least, most)
  local dtype = w:dtype(1)
  local function bound(value, word)
    if dtype:match("float") then return w:number(value) end
    return w:array(ndarray.cast(core.array(value, "float64", {}), dtype), word)
  end
  if least == -math.huge and most == math.huge then return w:emit("Identity", { w:input(1) }) end
  return w:emit("Clip", { w:input(1), least > -math.huge and bound(least, "least") or "",
    most < math.huge and bound(most, "most") or nil })
end

function ops.clip_by_value(w) return clip(w, w.attrs.min, w.attrs.max) end
function ops.relu6(w) return clip(w, 0, 6) end
function ops.hardtanh(w) return clip(w, -1, 1) end

-- ---- along axes ---------------------------------------------------------------------------------------------------

local function along_axis(operator)
  return function(w) return w:emit(operator, { w:input(1) }, { axis = { i = w.attrs.axis } }) end
end
ops.softmax = along_axis("Softmax")
ops.log_softmax = along_axis("LogSoftmax")

local function extreme(operator)
  return function(w)
    return w:emit(operator, { w:input(1) }, { axis = { i = w.attrs.axis }, keepdims = { i = 0 } })
  end
end
ops.argmax = extreme("ArgMax")
ops.argmin = extreme("ArgMin")

local function keepdims(w) return { i = w.attrs.keepdims and 1 or 0 } end

local function reduction(operator)
  return function(w)
    local axes = w.attrs.axis
    if #w:sizes(1) == 0 then return w:emit("Identity", { w:input(1) }) end
    return through_int32(w, operator, { keepdims = keepdims(w), axes = #axes > 0 and { ints = axes } or nil })
  end
end
ops.reduce_mean = reduction("ReduceMean")
ops.reduce_max = reduction("ReduceMax")
ops.reduce_min = reduction("ReduceMin")
ops.reduce_prod = reduction("ReduceProd")
ops.reduce_logsumexp = reduction("ReduceLogSumExp")

-- Its axes are an input since opset 13.
function ops.reduce_sum(w)
  local axes = w.attrs.axis
  if #w:sizes(1) == 0 then return w:emit("Identity", { w:input(1) }) end
  return through_int32(w, "ReduceSum", { keepdims = keepdims(w) }, #axes > 0 and w:ints(axes) or nil)
end

-- What a gradient is of a value that was repeated along axes: the sums along these, of which the first are dropped.
function ops.sum_to_shape(w)
  local sizes, shape, first, axes = w:sizes(1), w.attrs.shape, {}, {}
  for axis = 0, #sizes - 1 do
    local size = shape[axis + 1 + #shape - #sizes]
    if not size then first[#first + 1] = axis end
    if not size or size == 1 and sizes[axis + 1] ~= 1 then axes[#axes + 1] = axis end
  end
  if #axes == 0 then return w:emit("Identity", { w:input(1) }) end
  if #axes == #first then return through_int32(w, "ReduceSum", { keepdims = { i = 0 } }, w:ints(axes)) end
  local sums = through_int32(w, "ReduceSum", { keepdims = { i = 1 } }, w:ints(axes))
  return #first == 0 and sums or w:emit("Squeeze", { sums, w:ints(first) })
end

-- Whether the most, or the least, of what is 0 or 1 is 1.
local function decision(operator)
  return function(w)
    local axes = w.attrs.axis
    if #w:sizes(1) == 0 then return nil, w:flag(1) end
    local bytes = w:emit("Cast", { w:flag(1) }, { to = types.attribute("uint8") }, "bytes")
    local byte = w:emit(operator, { bytes }, { keepdims = keepdims(w), axes = #axes > 0 and { ints = axes } or nil },
      "byte")
    return nil, w:emit("Cast", { byte }, { to = types.attribute("bool") })
  end
end
ops.reduce_any = decision("ReduceMax")
ops.reduce_all = decision("ReduceMin")

-- The mean of the squares of what is left without the mean.
local function variance(w, axes, word)
  axes = #axes > 0 and { ints = axes } or nil
  local mean = w:emit("ReduceMean", { w:input(1) }, { keepdims = { i = 1 }, axes = axes }, "mean")
  local difference = w:emit("Sub", { w:input(1), mean }, nil, "difference")
  local square = w:emit("Mul", { difference, difference }, nil, "square")
  return w:emit("ReduceMean", { square }, { keepdims = keepdims(w), axes = axes }, word)
end

function ops.reduce_variance(w) return variance(w, w.attrs.axis) end
function ops.reduce_std(w) return w:emit("Sqrt", { variance(w, w.attrs.axis, "variance") }) end

function ops.moments(w)
  local axes = w.attrs.axes
  local mean = w:emit("ReduceMean", { w:input(1) },
    { keepdims = keepdims(w), axes = #axes > 0 and { ints = axes } or nil })
  return mean, variance(w, axes, "variance")
end

function ops.l2_normalize(w)
  local x = w:input(1)
  local square = w:emit("Mul", { x, x }, nil, "square")
  local sum = w:emit("ReduceSum", { square, w:ints { w.attrs.axis } }, { keepdims = { i = 1 } }, "sum")
  local norm = w:emit("Sqrt", { w:emit("Max", { sum, w:number(w.attrs.epsilon) }, nil, "least") }, nil, "norm")
  return w:emit("Div", { x, norm })
end

function ops.cumsum(w)
  local attrs = { reverse = { i = w.attrs.reverse and 1 or 0 }, exclusive = { i = w.attrs.exclusive and 1 or 0 } }
  return w:emit("CumSum", { w:input(1), w:ints { w.attrs.axis } }, attrs)
end

function ops.top_k(w)
  local _, places = w:emit("TopK", { w:input(1), w:ints { w.attrs.k } }, nil, nil, 2)
  return places
end

-- All of a row are its largest, in their order.
function ops.sort(w)
  local sizes = w:sizes(1)
  local largest = w.attrs.direction == "DESCENDING" and 1 or 0
  return w:emit("TopK", { w:input(1), w:ints { sizes[#sizes] } }, { largest = { i = largest } }, nil, 2)
end

function ops.argsort(w)
  local _, places = ops.sort(w)
  return places
end

-- ---- shapes and parts ---------------------------------------------------------------------------------------------

local function reshaped(w)
  local _, sizes = w:result()
  return w:emit("Reshape", { w:input(1), w:ints(sizes) }, { allowzero = { i = 1 } })
end
ops.reshape, ops.flatten, ops.squeeze, ops.expand_dims = reshaped, reshaped, reshaped, reshaped

function ops.transpose(w)
  local perm = w.attrs.perm
  return w:emit("Transpose", { w:input(1) }, #perm > 0 and { perm = { ints = perm } } or nil)
end

function ops.concat(w) return w:emit("Concat", w:inputs(), { axis = { i = w.attrs.axis } }) end

function ops.stack(w)
  local names, _, sizes = w:inputs(), w:result()
  local axis = w:axis(w.attrs.axis, #sizes)
  for i, name in ipairs(names) do
    names[i] = w:emit("Unsqueeze", { name, w:ints { axis } }, nil, tostring(i))
  end
  return w:emit("Concat", names, { axis = { i = axis } })
end

-- Along the axes that are not taken whole.
local function slice(w, sizes, starts, ends, steps)
  local first, last, axes, by = {}, {}, {}, steps and {}
  for i, start in ipairs(starts) do
    local step = steps and steps[i] or 1
    if start ~= 0 or ends[i] < sizes[i] or step ~= 1 then
      local k = #axes + 1
      first[k], last[k], axes[k] = start, ends[i], i - 1
      if by then by[k] = step end
    end
  end
  if #axes == 0 then return w:emit("Identity", { w:input(1) }) end
  return w:emit("Slice", { w:input(1), w:ints(first), w:ints(last), w:ints(axes), by and w:ints(by) or nil })
end

function ops.slice(w)
  local sizes, _, result = w:sizes(1), w:result()
  local starts, ends = {}, {}
  for i, begin in ipairs(w.attrs.begin) do
    starts[i] = begin < 0 and begin + sizes[i] or begin
    ends[i] = starts[i] + result[i]
  end
  return slice(w, sizes, starts, ends)
end

function ops.strided_slice(w)
  local sizes, starts, ends, steps = w:sizes(1), {}, {}, {}
  for i, start in ipairs(w.attrs.start) do
    local step, stop = w.attrs.step[i] or 1, w.attrs.stop[i]
    steps[i] = step
    starts[i] = start >= kWithout and start or step > 0 and 0 or sizes[i] - 1
    ends[i] = stop >= kWithout and stop or step > 0 and sizes[i] or -sizes[i] - 1
  end
  return slice(w, sizes, starts, ends, steps)
end

function ops.reverse(w)
  local axes, sizes = w.attrs.axis, w:sizes(1)
  local starts, ends, steps = {}, {}, {}
  for i, axis in ipairs(axes) do
    starts[i], ends[i], steps[i] = -1, -sizes[w:axis(axis, #sizes) + 1] - 1, -1
  end
  return w:emit("Slice", { w:input(1), w:ints(starts), w:ints(ends), w:ints(axes), w:ints(steps) })
end

function ops.broadcast_to(w)
  local _, sizes = w:result()
  return w:emit("Expand", { w:input(1), w:ints(sizes) })
end

function ops.tile(w)
  local _, result = w:result()
  local x, sizes, repeats = w:input(1), w:sizes(1), {}
  if #sizes < #result then
    for _ = #sizes + 1, #result do table.insert(sizes, 1, 1) end
    x = w:emit("Reshape", { x, w:ints(sizes) }, nil, "shape")
  end
  for i, size in ipairs(sizes) do repeats[i] = size > 0 and result[i] / size or 1 end
  return w:emit("Tile", { x, w:ints(repeats) })
end

function ops.pad(w)
  local pads, rank = {}, #w:sizes(1)
  for i = 1, rank do pads[i], pads[rank + i] = w.attrs.paddings[2 * i - 1], w.attrs.paddings[2 * i] end
  return w:emit("Pad", { w:input(1), w:ints(pads), w:number(w.attrs.constant_value) })
end

-- Left, right, top and bottom of the axes of places.
function ops.reflection_pad2d(w)
  local list, first = w.attrs.padding, w.attrs.data_format == "NHWC" and 1 or 2
  if #list == 1 then list = { list[1], list[1], list[1], list[1] } end
  local pads = { 0, 0, 0, 0, 0, 0, 0, 0 }
  pads[first + 1], pads[first + 5], pads[first + 2], pads[first + 6] = list[3], list[4], list[1], list[2]
  return w:emit("Pad", { w:input(1), w:ints(pads) }, { mode = { s = "reflect" } })
end

function ops.gather(w) return w:emit("Gather", { w:input(1), w:indices(2) }, { axis = { i = w.attrs.axis } }) end
function ops.gather_nd(w) return w:emit("GatherND", { w:input(1), w:indices(2) }) end

function ops.dim_gather(w)
  return w:emit("GatherElements", { w:input(1), w:indices(2) }, { axis = { i = w.attrs.dim } })
end

-- ONNX Runtime has the operator for few combinations of dtypes: of places in int64 it gives float32 and int64. Of the
-- place of a scalar it wants a list, whose axis is dropped again.
local function one_hot(w, places, values, word)
  local depth, axis = w:number(w.attrs.depth, "int64"), w.attrs.axis
  local _, sizes = w:result()
  if #sizes > 1 then return w:emit("OneHot", { places, depth, values }, { axis = { i = axis } }, word) end
  places = w:emit("Reshape", { places, w:ints { 1 } }, nil, "place")
  local row = w:emit("OneHot", { places, depth, values }, { axis = { i = -1 } }, "row")
  return w:emit("Reshape", { row, w:ints { -1 } }, nil, word)
end

function ops.one_hot(w)
  local attrs = w.attrs
  local places = w:indices(1)
  if attrs.dtype == "float32" or attrs.dtype == "int64" then
    local values = w:array(core.array({ attrs.off_value, attrs.on_value }, attrs.dtype), "values")
    return one_hot(w, places, values)
  end
  local is_on = one_hot(w, places, w:ints { 0, 1 }, "ones")
  is_on = w:emit("Cast", { is_on }, { to = types.attribute("bool") }, "on")
  return w:emit("Where", { is_on, w:number(attrs.on_value, attrs.dtype), w:number(attrs.off_value, attrs.dtype) })
end

local function filled(w, value, word)
  local dtype, sizes = w:result()
  return w:emit("ConstantOfShape", { w:ints(sizes) }, { value = { t = core.array({ value }, dtype) } }, word)
end

local added = { reduction = { s = "add" } }

function ops.tensor_scatter_nd_update(w) return w:emit("ScatterND", { w:input(1), w:indices(2), w:input(3) }) end
function ops.tensor_scatter_nd_add(w) return w:emit("ScatterND", { w:input(1), w:indices(2), w:input(3) }, added) end
function ops.scatter_nd(w) return w:emit("ScatterND", { filled(w, 0, "zeros"), w:indices(1), w:input(2) }, added) end

function ops.unsorted_segment_sum(w)
  if w.attrs.axis ~= 0 then w:fail(("along axis %d is not written, only along axis 0"):format(w.attrs.axis)) end
  local places = w:emit("Unsqueeze", { w:indices(2), w:ints { -1 } }, nil, "places")
  return w:emit("ScatterND", { filled(w, 0, "zeros"), places, w:input(1) }, added)
end

function ops.constant(w) return filled(w, w.attrs.value) end
function ops.ones_like(w) return filled(w, 1) end
function ops.zeros_like(w) return filled(w, 0) end

function ops.range(w)
  local attrs, dtype = w.attrs, w.attrs.dtype
  local is_whole = attrs.start % 1 == 0 and attrs.stop % 1 == 0 and attrs.step % 1 == 0
  local function of_whole(as, word)
    return w:emit("Range", { w:number(attrs.start, as), w:number(attrs.stop, as), w:number(attrs.step, as) }, nil, word)
  end
  if is_whole and (dtype == "int64" or dtype == "int32") then return of_whole(dtype) end
  if is_whole and (dtype == "float32" or dtype == "float64") then  -- whole, so that its end may follow from a batch
    return w:emit("Cast", { of_whole("int64", "whole") }, { to = types.attribute(dtype) })
  end
  return w:array((ndarray.evaluate("range", {}, w.attrs)), "range")
end

for _, more in ipairs { "division", "gradients", "images", "layers", "random", "sequences", "spectra" } do
  for op, write in pairs(require("moonflow.onnx.export_" .. more)) do ops[op] = write end
end

return ops
