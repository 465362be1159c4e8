--- ONNX's QuantizeLinear and DequantizeLinear, between which quantised models keep what layers compute with, and the
--- layers that take whole numbers themselves. A table from an operator's name to the function that applies it to a
--- node.
-- Layers are computed in floats: between the two in float32, and those of whole numbers so that no sum is rounded.

local onnx_layers = require "moonflow.onnx_layers"
local onnx_node = require "moonflow.onnx_node"

local operators = {}

local ranges = { int8 = { -128, 127 }, uint8 = { 0, 255 }, int32 = { -2 ^ 31, 2 ^ 31 - 1 } }

-- A scale or zero point in a shape that broadcasts to x: one number, one of each place along an axis, or one of each
-- block of `block_size` neighbours there.
local function aligned(node, x, value, word)
  local sizes, rank = value.shape:table(), #x.shape
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

-- round(places) + zero, halves to the even number, and the nearest there is in this dtype.
local function settled(node, places, zero, dtype)
  places = node:apply("round", { places }, nil, "rounded")
  if zero then places = node:apply("add", { places, node:cast(zero, "float32", "zero_wide") }, nil, "moved") end
  local cut = node:apply("clip_by_value", { places }, { min = ranges[dtype][1], max = ranges[dtype][2] }, "cut")
  local settled_places = node:apply("cast", { cut }, { dtype = dtype })
  node.reading.floats[settled_places] = cut
  return settled_places
end

-- round(x / scale) + zero_point.
function operators.QuantizeLinear(node)
  node:ignore("precision")
  node:expect("saturate", "i", 1)
  local x, scale, zero = node:input(1), node:input(2), node:optional(3)
  local dtype = zero and zero.dtype or node:dtype("output_dtype", "uint8")
  if not ranges[dtype] then node:fail("it gives " .. dtype .. ", only int8, uint8 and int32 are supported") end
  x = node:cast(x, "float32", "x")
  local places = node:apply("divide", { x, aligned(node, x, node:cast(scale, "float32", "scale_wide"), "scale") }, nil,
    "places")
  return settled(node, places, zero and aligned(node, x, zero, "zero_point"), dtype)
end

-- (x - zero_point) * scale
function operators.DequantizeLinear(node)
  local x, scale, zero = node:input(1), node:input(2), node:optional(3)
  local dtype = node:dtype("output_dtype", scale.dtype)
  if not ranges[x.dtype] then node:fail("it takes " .. x.dtype .. ", only int8, uint8 and int32 are supported") end
  local wide = node.reading.floats[x] or node:cast(x, "float32", "wide")
  if zero then
    zero = aligned(node, x, node:cast(zero, "float32", "zero_wide"), "zero_point")
    wide = node:apply("subtract", { wide, zero }, nil, "moved")
  end
  local y = node:apply("multiply", { wide, aligned(node, x, node:cast(scale, "float32", "scale_wide"), "scale") }, nil,
    "scaled")
  return node:cast(y, dtype)
end

-- The scale and zero point of a uint8 that take what is there, and 0, in.
function operators.DynamicQuantizeLinear(node)
  local x = node:input(1)
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

-- The dtype that has each sum of so many products of two bytes exactly.
local function exact_dtype(count) return count * 255 * 255 < 2 ^ 24 and "float32" or "float64" end

-- One number, or one of each place along an axis, in a shape that broadcasts.
local function number_or_line(node, value, rank, axis, word)
  if value.shape:count() > 1 then return node:along(value, rank, axis, word) end
  return node:reshape(value, {}, word)
end

-- A value without its zero point, which is one number, or one of each place along an axis.
local function without_zero(node, value, zero, axis, dtype, word)
  value = node:cast(value, dtype, word .. "_wide")
  if not zero then return value end
  if zero.shape:count() > 1 and zero.shape:count() ~= value.shape[axis] then
    node:fail(("%s has zero points %s"):format(word, tostring(zero.shape)), "shape_mismatch")
  end
  zero = number_or_line(node, node:cast(zero, dtype, word .. "_zero_wide"), #value.shape, axis, word .. "_zero")
  return node:apply("subtract", { value, zero }, nil, word .. "_moved")
end

local function product(node, a, a_zero, b, b_zero)
  if #a.shape < 1 or #b.shape < 1 then node:fail("a scalar cannot be multiplied as a matrix", "shape_mismatch") end
  local dtype = exact_dtype(a.shape[#a.shape - 1])
  return onnx_layers.MatMul(node:taking {
    without_zero(node, a, a_zero, #a.shape - 2, dtype, "a"), without_zero(node, b, b_zero, #b.shape - 1, dtype, "b"),
  })
end

local function convolution(node, x, x_zero, filter, filter_zero, bias)
  if #filter.shape < 1 then node:fail("its filter is a scalar", "shape_mismatch") end
  local sizes = filter.shape:table()
  local dtype = exact_dtype(onnx_node.count_of { unpack(sizes, 2) } + 1)
  if bias then dtype = "float64" end
  return onnx_layers.Conv(node:taking {
    without_zero(node, x, x_zero, 1, dtype, "x"), without_zero(node, filter, filter_zero, 0, dtype, "filter"),
    bias and node:cast(bias, dtype, "bias_wide"),
  })
end

function operators.MatMulInteger(node)
  return node:cast(product(node, node:input(1), node:optional(3), node:input(2), node:optional(4)), "int32")
end

function operators.ConvInteger(node)
  return node:cast(convolution(node, node:input(1), node:optional(3), node:input(2), node:optional(4)), "int32")
end

-- Sums of products of places as places of the result: what one of them is worth, by the scales of both sides. That of
-- the second is one number, or one of each place along an axis of the result.
local function rescaled(node, sums, one, other, axis, scale, zero)
  if other.shape:count() > 1 and other.shape:count() ~= sums.shape[axis] then
    node:fail(("scales %s for %d places of axis %d"):format(tostring(other.shape), sums.shape[axis], axis),
      "shape_mismatch")
  end
  local function single(value, word) return node:reshape(node:cast(value, "float32", word .. "_wide"), {}, word) end
  other = number_or_line(node, node:cast(other, "float32", "other_wide"), #sums.shape, axis, "other_scale")
  local both = node:apply("multiply", { single(one, "one_scale"), other }, nil, "scales")
  local factor = node:apply("divide", { both, single(scale, "scale") }, nil, "factor")
  local places = node:apply("multiply", { node:cast(sums, "float32", "sums"), factor }, nil, "places")
  if not ranges[zero.dtype] then node:fail("it gives " .. zero.dtype .. ", only int8 and uint8 are supported") end
  return settled(node, places, node:reshape(zero, {}, "zero"), zero.dtype)
end

function operators.QLinearMatMul(node)
  local a, b = node:input(1), node:input(4)
  local sums = product(node, a, node:input(3), b, node:input(6))
  return rescaled(node, sums, node:input(2), node:input(5), #sums.shape - 1, node:input(7), node:input(8))
end

function operators.QLinearConv(node)
  local sums = convolution(node, node:input(1), node:input(3), node:input(4), node:input(6), node:optional(9))
  return rescaled(node, sums, node:input(2), node:input(5), 1, node:input(7), node:input(8))
end

return operators
