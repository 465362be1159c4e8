--- ONNX's QuantizeLinear and DequantizeLinear, between which quantised models keep what layers compute with, and the
--- layers that take whole numbers themselves. A table from an operator's name to the function that applies it to a
--- node.
-- Those of the domain com.microsoft are ONNX Runtime's, whose quantiser writes them.
-- Convolutions and products by weights are computed in bytes where a job predicts on a processor (onnx/in_bytes). Other
-- layers are computed in floats: in float32 where they give bytes, which are rounded much more than sums are, and so
-- that no sum is rounded where they give sums.

local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local in_bytes = require "moonflow.onnx.in_bytes"
local onnx_elementwise = require "moonflow.onnx.elementwise"
local onnx_layers = require "moonflow.onnx.layers"
local onnx_products = require "moonflow.onnx.products"
local onnx_recurrent = require "moonflow.onnx.recurrent"

local operators = {}

local is_quantized = { int8 = true, uint8 = true, int32 = true }

-- A scale or zero point in a shape that broadcasts to x: one number, one of each place along an axis, or one of each
-- block of `block_size` neighbours there.
local function aligned(node, x, value, word)
  local sizes, rank = value.shape:table(), #x.shape
  node:ignore("axis", "block_size")  -- they are there for one number too
  if value.shape:count() == 1 then return node:reshape(value, {}, word) end
  local axis, block = node:axis_of(node:int("axis", 1), rank), node:int("block_size", 0)
  local extent = x.shape[axis]
  if #sizes == 1 then
    if sizes[1] ~= extent then
      node:fail(("%s has %d numbers for %d places of axis %d"):format(word, sizes[1], extent, axis), "shape_mismatch")
    end
    return node:along(value, rank, axis, word)
  end
  if block < 1 or #sizes ~= rank or sizes[axis + 1] ~= math.ceil(extent / block) then
    node:fail(("%s is %s for %s in blocks of %d"):format(word, tostring(value.shape), tostring(x.shape), block),
      "shape_mismatch")
  end
  local places = {}
  for at = 0, extent - 1 do places[at + 1] = math.floor(at / block) end
  return node:pick(value, axis, places, word)
end

-- What is quantised is mostly dequantised at once, which then takes the floats that were rounded: of the whole numbers
-- nothing is left in the job, and one chain of simple ops between two layers.

-- Types of fewer bits than the dtype that they are read as.
local narrow_types = {
  int16 = { dtype = "int32", least = -32768, most = 32767 }, uint16 = { dtype = "int32", least = 0, most = 65535 },
  int4 = { dtype = "int8", least = -8, most = 7 }, uint4 = { dtype = "uint8", least = 0, most = 15 },
}

-- round(places) + zero, halves to the even number, and the nearest there is in this dtype, or in this narrower type.
local function settled(node, places, zero, dtype, narrow)
  local range = narrow or { least = dtypes.least[dtype], most = dtypes.most[dtype] }
  places = node:apply("round", { places }, nil, "rounded")
  if zero then places = node:add(places, node:cast(zero, "float32", "zero_wide"), "moved") end
  local cut = node:apply("clip_by_value", { places }, { min = range.least, max = range.most }, "cut")
  local settled_places = node:apply("cast", { cut }, { dtype = dtype })
  node.reading.floats[settled_places] = cut
  return settled_places
end

-- Whole numbers as floats of this dtype: float32 without one.
local function in_floats(node, value, word, dtype)
  return node:cast(node.reading.floats[value] or value, dtype or "float32", word)
end

local function is_array(value) return arguments.kind(value) == "ndarray" end

-- A scale or zero point of all, in float32.
local function single(node, value, word) return node:reshape(node:cast(value, "float32", word .. "_wide"), {}, word) end

-- round(x / scale) + zero_point. Of a layer in bytes that nobody else reads it is a part.
function operators.QuantizeLinear(node)
  node:ignore("precision", "axis", "block_size")
  node:expect("saturate", "i", 1)
  local x, scale, zero = node:input(1), node:input(2), node:optional(3)
  local narrow = narrow_types[zero and node.reading.narrow[zero] or not zero and node:type_name("output_dtype")]
  if zero then node:ignore("output_dtype") end
  local dtype = zero and zero.dtype or narrow and narrow.dtype or node:dtype("output_dtype", "uint8")
  if not is_quantized[dtype] then node:fail("it gives " .. dtype .. ", only int8, uint8 and int32 are supported") end
  local bytes = scale.shape:count() == 1 and not narrow
    and in_bytes.bytes(node, 1, single(node, scale, "scale"), in_bytes.about(node, zero, dtype))
  if bytes then return bytes end
  x = node:cast(x, "float32", "x")
  local places = node:apply("divide", { x, aligned(node, x, node:cast(scale, "float32", "scale_wide"), "scale") }, nil,
    "places")
  return settled(node, places, zero and aligned(node, x, zero, "zero_point"), dtype, narrow)
end

-- (x - zero_point) * scale
function operators.DequantizeLinear(node)
  local x, scale, zero = node:input(1), node:input(2), node:optional(3)
  local dtype = node:dtype("output_dtype", scale.dtype)
  if not is_quantized[x.dtype] then
    node:fail("it takes " .. x.dtype .. ", only int8, uint8 and int32 are supported")
  end
  local wide = in_floats(node, x, "wide")
  if zero then
    zero = aligned(node, x, node:cast(zero, "float32", "zero_wide"), "zero_point")
    wide = node:apply("subtract", { wide, zero }, nil, "moved")
  end
  local y = node:multiply(wide, aligned(node, x, node:cast(scale, "float32", "scale_wide"), "scale"), "scaled")
  y = node:cast(y, dtype)
  node.reading.dequantized[y] = { places = x, scale = scale, zero = node:optional(3),
    axis = #x.shape > 0 and node:int("axis", 1) % #x.shape, is_in_blocks = node:int("block_size", 0) > 0 }
  return y
end

-- The scale and zero point of a uint8 that take what is there, and 0, in.
function operators.DynamicQuantizeLinear(node)
  local x = node:input(1)
  if node.reading.in_bytes then return node:apply("dynamic_quantize", { x }) end
  local zero, all = node:filled(0, "float32"), { axis = {} }
  local most = node:apply("maximum", { node:apply("reduce_max", { x }, all, "max"), zero }, nil, "most")
  local least = node:apply("minimum", { node:apply("reduce_min", { x }, all, "min"), zero }, nil, "least")
  local width = node:apply("subtract", { most, least }, nil, "width")
  local scale = node:apply("divide", { width, node:filled(255, "float32") }, nil, "step")
  local is_flat = node:apply("equal", { width, zero }, nil, "is_flat")
  scale = node:apply("where", { is_flat, node:filled(1, "float32"), scale }, nil, "scale")
  local function places(value, word) return node:apply("divide", { value, scale }, nil, word) end
  local lowest = node:apply("negative", { places(least, "least_place") }, nil, "lowest")
  local point = settled(node, lowest, nil, "uint8")
  return settled(node, places(x, "places"), point, "uint8"), scale, point
end

-- ---- layers of whole numbers --------------------------------------------------------------------------------------

-- One number, or one of each place along an axis, in a shape that broadcasts.
local function number_or_line(node, value, rank, axis, word)
  if value.shape:count() > 1 then return node:along(value, rank, axis, word) end
  return node:reshape(value, {}, word)
end

-- A value without its zero point, which is one number, or one of each place along an axis.
local function without_zero(node, value, zero, axis, dtype, word)
  value = in_floats(node, value, word .. "_wide", dtype)
  if not zero then return value end
  if zero.shape:count() > 1 and zero.shape:count() ~= value.shape[axis] then
    node:fail(("%s has zero points %s"):format(word, tostring(zero.shape)), "shape_mismatch")
  end
  zero = number_or_line(node, node:cast(zero, dtype, word .. "_zero_wide"), #value.shape, axis, word .. "_zero")
  return node:apply("subtract", { value, zero }, nil, word .. "_moved")
end

-- The dtype that has all sums exactly that weigh bytes by these weights, each over the axes of a list: float32 where
-- even the greatest bytes stay below what it counts to.
local function exact_dtype(node, weights, zero, axis, axes)
  local most = 255
  for _, at in ipairs(axes) do most = most * weights.shape[at] end
  if is_array(weights) and (zero == nil or is_array(zero)) and weights.shape:count() > 0 then
    local size = node:apply("abs", { without_zero(node, weights, zero, axis, "float32", "weights") })
    local sums = node:apply("reduce_sum", { size }, { axis = axes })
    most = node.list_of(node:apply("reduce_max", { sums }, { axis = {} }))[1]
  end
  return most * 255 < 2 ^ 24 and "float32" or "float64"
end

-- ---- layers of floats that come from bytes --------------------------------------------------------------------------

-- The value of a layer of the first two inputs, whose filters are on an axis of the weights and on one of the value.
-- `make(x, x_zero, weights, weights_zero)` makes it in bytes; `bias` is one number of each filter, or none; `factor` is
-- a number that all are multiplied by.
local function of_dequantized(node, weight_axis, axis, make, bias, factor)
  local known = node.reading.dequantized
  local x, weights = known[node:input(1)], known[node:input(2)]
  local fits = x and weights and x.scale.shape:count() == 1 and not x.is_in_blocks and not weights.is_in_blocks
    and (weights.scale.shape:count() == 1 or weights.axis == weight_axis)
    and node:input(1).dtype == "float32" and (bias == nil or bias.dtype == "float32")
  local ended = fits and make(x.places, x.zero, weights.places, weights.zero)
  if not ended then return nil end
  local scale = node:multiply(single(node, x.scale, "x_scale"),
    node:cast(weights.scale, "float32", "weights_scale_wide"), "scales")
  if factor ~= 1 then scale = node:multiply(scale, factor, "factor") end
  return in_bytes.value(node, ended, axis, scale, bias)
end

local function is_line(value, count) return #value.shape == 1 and value.shape[0] == count end

function operators.Conv(node)
  local filter, bias = node:input(2), node:optional(3)
  local y = (bias == nil or is_line(bias, filter.shape[0])) and of_dequantized(node, 0, 1, function(...)
    return in_bytes.convolution(node, ...)
  end, bias, 1)
  return y or onnx_layers.Conv(node)
end

function operators.MatMul(node)
  local x = node:input(1)
  return of_dequantized(node, 1, #x.shape - 1, function(...) return in_bytes.product(node, ...) end, nil, 1)
    or onnx_products.MatMul(node)
end

function operators.Gemm(node)
  local weights, bias, beta = node:input(2), node:optional(3), node:float("beta", 1)
  local is_turned, y = node:int("transB", 0) ~= 0, nil
  local axis = is_turned and 0 or 1
  if #weights.shape == 2 and node:int("transA", 0) == 0 then
    local units = weights.shape[axis]
    local fits = bias == nil or beta == 0 or is_line(bias, units)
      or #bias.shape == 2 and bias.shape[0] == 1 and bias.shape[1] == units
    if bias and fits then bias = beta ~= 0 and node:reshape(bias, { units }, "bias_line") or nil end
    if bias and beta ~= 1 then bias = node:multiply(bias, beta, "bias_times_beta") end
    y = fits and of_dequantized(node, axis, 1, function(x, x_zero, matrix, matrix_zero)
      return in_bytes.product(node, x, x_zero, matrix, matrix_zero, is_turned)
    end, bias, node:float("alpha", 1))
  end
  return y or onnx_products.Gemm(node)
end

-- ---- what may be part of a layer in bytes ---------------------------------------------------------------------------

function operators.Relu(node) return in_bytes.positive(node, onnx_elementwise.Relu(node)) end

function operators.Cast(node)
  local y = onnx_elementwise.Cast(node)
  return y.dtype == "float32" and in_bytes.floats(node) or y
end

function operators.Mul(node) return in_bytes.scaled(node) or onnx_elementwise.Mul(node) end
function operators.Add(node) return in_bytes.with_bias(node) or onnx_elementwise.Add(node) end

-- ---- products ------------------------------------------------------------------------------------------------------

local function product(node, a, a_zero, b, b_zero, dtype)
  if #a.shape < 1 or #b.shape < 1 then node:fail("a scalar cannot be multiplied as a matrix", "shape_mismatch") end
  dtype = dtype or exact_dtype(node, b, b_zero, #b.shape - 1, { math.max(0, #b.shape - 2) })
  return onnx_products.MatMul(node:taking {
    without_zero(node, a, a_zero, #a.shape - 2, dtype, "a"), without_zero(node, b, b_zero, #b.shape - 1, dtype, "b"),
  })
end

-- That of the sums of a convolution.
local function exact_dtype_of_filter(node, filter, zero)
  if #filter.shape < 1 then node:fail("its filter is a scalar", "shape_mismatch") end
  local axes = {}
  for i = 1, #filter.shape - 1 do axes[i] = i end
  return exact_dtype(node, filter, zero, 0, axes)
end

-- Without a dtype, so that no sum is rounded: also by no algorithm that multiplies less, as Winograd's does.
local function convolution(node, x, x_zero, filter, filter_zero, bias, dtype)
  local algorithm = not dtype and "direct" or nil
  dtype = dtype or exact_dtype_of_filter(node, filter, filter_zero)
  return onnx_layers.Conv(node:taking {
    without_zero(node, x, x_zero, 1, dtype, "x"), without_zero(node, filter, filter_zero, 0, dtype, "filter"),
    bias and node:cast(bias, dtype, "bias_wide"),
  }, algorithm)
end

function operators.MatMulInteger(node)
  local a, a_zero, b, b_zero = node:input(1), node:optional(3), node:input(2), node:optional(4)
  local ended = in_bytes.product(node, a, a_zero, b, b_zero)
  return ended and in_bytes.value(node, ended, #a.shape - 1) or node:cast(product(node, a, a_zero, b, b_zero), "int32")
end

function operators.ConvInteger(node)
  local x, x_zero, filter, filter_zero = node:input(1), node:optional(3), node:input(2), node:optional(4)
  local ended = in_bytes.convolution(node, x, x_zero, filter, filter_zero)
  return ended and in_bytes.value(node, ended, 1)
    or node:cast(convolution(node, x, x_zero, filter, filter_zero), "int32")
end

-- Places as whole numbers about their zero point, of its dtype.
local function moved(node, places, zero)
  if not is_quantized[zero.dtype] then node:fail("it gives " .. zero.dtype .. ", only int8 and uint8 are supported") end
  return settled(node, places, node:reshape(zero, {}, "zero"), zero.dtype)
end

-- Sums of products of places as places of the result: what one of them is worth, by the scales of both sides. That of
-- the second is one number, or one of each place along an axis of the result.
local function rescaled(node, sums, one, other, axis, scale, zero)
  if other.shape:count() > 1 and other.shape:count() ~= sums.shape[axis] then
    node:fail(("scales %s for %d places of axis %d"):format(tostring(other.shape), sums.shape[axis], axis),
      "shape_mismatch")
  end
  other = number_or_line(node, node:cast(other, "float32", "other_wide"), #sums.shape, axis, "other_scale")
  local both = node:multiply(single(node, one, "one_scale"), other, "scales")
  local factor = node:apply("divide", { both, single(node, scale, "scale") }, nil, "factor")
  return moved(node, node:multiply(node:cast(sums, "float32", "sums"), factor, "places"), zero)
end

-- A layer in bytes as places of a result of this scale and zero point.
local function places_of(node, ended, one, other, bias, scale, zero, factor)
  local worth = node:multiply(single(node, one, "one_scale"), node:cast(other, "float32", "other_scale"), "worth")
  if factor ~= 1 then worth = node:multiply(worth, factor, "worth_times_factor") end
  worth = node:apply("divide", { worth, single(node, scale, "scale") }, nil, "worth_in_places")
  bias = bias and node:multiply(node:cast(bias, "float32", "bias_wide"), worth, "bias_in_places")
  local out = in_bytes.about(node, zero, zero and zero.dtype or "uint8")
  return out and ended(worth, bias, out) or moved(node, ended(worth, bias), zero)
end

-- One number for all filters, or one of each.
local function is_of_filters(value, filters) return value.shape:count() == 1 or is_line(value, filters) end

function operators.QLinearMatMul(node)
  local a, b, b_scale = node:input(1), node:input(4), node:input(5)
  local ended = #b.shape == 2 and is_of_filters(b_scale, b.shape[1])
    and in_bytes.product(node, a, node:input(3), b, node:input(6))
  if ended then return places_of(node, ended, node:input(2), b_scale, nil, node:input(7), node:input(8), 1) end
  local sums = product(node, a, node:input(3), b, node:input(6), "float32")
  return rescaled(node, sums, node:input(2), b_scale, #sums.shape - 1, node:input(7), node:input(8))
end

function operators.QLinearConv(node)
  local x, filter, filter_scale, bias = node:input(1), node:input(4), node:input(5), node:optional(9)
  local filters = #filter.shape > 0 and filter.shape[0]
  local ended = filters and is_of_filters(filter_scale, filters) and (bias == nil or is_line(bias, filters))
    and in_bytes.convolution(node, x, node:input(3), filter, node:input(6))
  if ended then return places_of(node, ended, node:input(2), filter_scale, bias, node:input(7), node:input(8), 1) end
  local sums = convolution(node, x, node:input(3), filter, node:input(6), bias, "float32")
  return rescaled(node, sums, node:input(2), filter_scale, 1, node:input(7), node:input(8))
end

-- ---- ONNX Runtime's own -------------------------------------------------------------------------------------------

-- (x - zero point) * scale of three inputs from the i-th on.
local function real(node, i, word)
  local x, zero = node:input(i), node:optional(i + 2)
  local y = in_floats(node, x, word .. "_wide")
  if zero then y = node:apply("subtract", { y, single(node, zero, word .. "_zero") }, nil, word .. "_moved") end
  return node:multiply(y, single(node, node:input(i + 1), word .. "_scale"), word)
end

-- The places of y, whose scale and zero point are the i-th input and the one behind it.
local function quantized(node, y, i)
  local zero = node:optional(i + 1)
  local dtype = zero and zero.dtype or "uint8"
  if not is_quantized[dtype] then node:fail("it gives " .. dtype .. ", only int8 and uint8 are supported") end
  local places = node:apply("divide", { y, single(node, node:input(i), "scale") }, nil, "places")
  return settled(node, places, zero and node:reshape(zero, {}, "zero_point"), dtype)
end

-- An op of two values.
local function of_two(op)
  return function(node)
    return quantized(node, node:apply(op, { real(node, 1, "a"), real(node, 4, "b") }, nil, "real"), 7)
  end
end

-- An operator of one value, which `apply` computes with for a node and gives as floats.
local function of_one(apply)
  return function(node) return quantized(node, apply(node:taking { real(node, 1, "x") }), 4) end
end

local function expect_channels_first(node) node:expect("channels_last", "i", 0) end

local own = {
  QLinearAdd = of_two "add",
  QLinearMul = of_two "multiply",
  QLinearSigmoid = of_one(function(node) return node:apply("sigmoid", { node:input(1) }, nil, "real") end),
  QLinearLeakyRelu = of_one(onnx_elementwise.LeakyRelu),
}

function own.QLinearSoftmax(node)
  local x = real(node, 1, "x")
  local axis = node:axis_of(node:int("axis", -1), #x.shape)
  if node:int("opset", 13) < 13 and axis ~= #x.shape - 1 then
    node:fail("opset below 13 with an axis other than the last is not supported")
  end
  return quantized(node, node:apply("softmax", { x }, { axis = axis }, "real"), 4)
end

function own.QLinearGlobalAveragePool(node)
  expect_channels_first(node)
  return quantized(node, onnx_layers.GlobalAveragePool(node:taking { real(node, 1, "x") }), 4)
end

function own.QLinearAveragePool(node)
  expect_channels_first(node)
  return quantized(node, onnx_layers.AveragePool(node:taking { real(node, 1, "x") }), 4)
end

-- Scale and zero point of the result come first, then each value with its own.
function own.QLinearConcat(node)
  local values = {}
  for i = 3, node:input_count() - 2, 3 do values[#values + 1] = real(node, i, "part_" .. i) end
  if #values == 0 then node:fail("it has no input", "invalid_argument") end
  local axis = node:axis_of(node:need(node:int("axis"), "axis"), #values[1].shape)
  return quantized(node, node:apply("concat", values, { axis = axis }, "real"), 1)
end

-- That of a QGemm in bytes, or nil.
local function gemm_in_bytes(node, turns_b, bias, alpha)
  local b, b_scale, axis = node:input(4), node:input(5), turns_b and 0 or 1
  if node:int("transA", 0) ~= 0 or #b.shape ~= 2 then return nil end
  local units = b.shape[axis]
  if not is_of_filters(b_scale, units) or bias and not is_line(bias, units) then return nil end
  local ended = in_bytes.product(node, node:input(1), node:optional(3), b, node:optional(6), turns_b)
  if not ended then return nil end
  if node:optional(8) then
    return places_of(node, ended, node:input(2), b_scale, bias, node:input(8), node:optional(9), alpha)
  end
  local worth = node:multiply(single(node, node:input(2), "a_worth"), node:cast(b_scale, "float32", "b_worth"), "worth")
  if alpha ~= 1 then worth = node:multiply(worth, alpha, "worth_times_alpha") end
  bias = bias and node:multiply(node:cast(bias, "float32", "bias_wide"), worth, "bias")
  return in_bytes.value(node, ended, 1, worth, bias)
end

-- The bias is in whole numbers of what a product of two places is worth. Without a scale the result is in floats.
function own.QGemm(node)
  local turns_b, bias, alpha = node:int("transB", 0) ~= 0, node:optional(7), node:float("alpha", 1)
  local in_whole_numbers = gemm_in_bytes(node, turns_b, bias, alpha)
  if in_whole_numbers then return in_whole_numbers end
  local b = without_zero(node, node:input(4), node:optional(6), turns_b and 0 or 1, "float32", "b")
  local b_scale = node:cast(node:input(5), "float32", "b_scale_wide")
  local y = node:apply("matmul", { real(node, 1, "a"),
    node:multiply(b, number_or_line(node, b_scale, 2, turns_b and 0 or 1, "b_scale"), "b") },
    { transpose_a = node:int("transA", 0) ~= 0, transpose_b = turns_b }, "product")
  if bias then
    local worth = node:multiply(single(node, node:input(2), "a_worth"), b_scale, "worth")
    bias = node:multiply(node:cast(bias, "float32", "bias_wide"), worth, "bias")
    y = node:add(y, bias, "sum")
  end
  if alpha ~= 1 then y = node:multiply(y, alpha, "scaled") end
  return node:optional(8) and quantized(node, y, 8) or y
end

-- Sums of products of places in floats, by one scale of a and one of b or of each of its columns, and a bias.
local function product_in_floats(node, a, a_scale, a_zero, b, b_scale, b_zero, bias)
  local axis, columns = #a.shape - 1, b.shape[#b.shape - 1]
  local scale = node:multiply(single(node, a_scale, "a_scale"), node:cast(b_scale, "float32", "b_scale"), "scales")
  local ended = is_of_filters(b_scale, columns) and (bias == nil or is_line(bias, columns))
    and in_bytes.product(node, a, a_zero, b, b_zero)
  if ended then return in_bytes.value(node, ended, axis, scale, bias) end
  local y = node:multiply(node:cast(product(node, a, a_zero, b, b_zero), "float32", "sums"), scale, "scaled")
  return bias and node:add(y, bias, "with_bias") or y
end

function own.MatMulIntegerToFloat(node)
  return product_in_floats(node, node:input(1), node:input(3), node:optional(5), node:input(2), node:input(4),
    node:optional(6), node:optional(7))
end

-- Of floats, which are quantised first.
function own.DynamicQuantizeMatMul(node)
  local a, a_scale, a_zero = operators.DynamicQuantizeLinear(node:taking { node:input(1) })
  return product_in_floats(node, a, a_scale, a_zero, node:input(2), node:input(3), node:optional(4), node:optional(5))
end

-- An LSTM whose weights are bytes. They lie the other way round than those of the operator of ONNX: (directions, in,
-- 4 * units). A scale is one number, one of each direction, or one of each of their columns.
function own.DynamicQuantizeLSTM(node)
  local function weight(i, scale, word)
    local x, factor, zero = node:input(i), node:input(scale), node:optional(scale + 1)
    local function spread(value, what)
      local sizes = value.shape:table()
      value = node:cast(value, "float32", what .. "_wide")
      if value.shape:count() == 1 then return node:reshape(value, {}, what) end
      return node:reshape(value, { sizes[1], 1, sizes[2] or 1 }, what)
    end
    local wide = node:cast(x, "float32", word .. "_wide")
    if zero then wide = node:apply("subtract", { wide, spread(zero, word .. "_zero") }, nil, word .. "_moved") end
    wide = node:multiply(wide, spread(factor, word .. "_scale"), word .. "_scaled")
    return node:swapped(wide, 1, 2, word)
  end
  local values = {}
  for i = 1, 8 do values[i] = node:optional(i) end
  values[2], values[3] = weight(2, 9, "weight"), weight(3, 11, "recurrence")
  return onnx_recurrent.LSTM(node:taking(values))
end

-- Of types that ONNX itself had not before opset 21.
own.QuantizeLinear, own.DequantizeLinear = operators.QuantizeLinear, operators.DequantizeLinear

for name, apply in pairs(own) do operators["com.microsoft." .. name] = apply end

return operators
