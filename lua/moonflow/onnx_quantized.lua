--- ONNX's QuantizeLinear and DequantizeLinear, between which quantised models keep what layers compute with. The layers
--- themselves are computed in float. A table from an operator's name to the function that applies it to a node.

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
    local shape = {}
    for i = 1, rank do shape[i] = i - 1 == axis and extent or 1 end
    if sizes[1] ~= extent then
      node:fail(("%s has %d numbers for %d places of axis %d"):format(word, sizes[1], extent, axis), "shape_mismatch")
    end
    return node:reshape(value, shape, word)
  end
  if block < 1 or #sizes ~= rank or sizes[axis + 1] ~= math.ceil(extent / block) then
    node:fail(("%s is %s for %s in blocks of %d"):format(word, tostring(value.shape), tostring(x.shape), block),
      "shape_mismatch")
  end
  local places = {}
  for at = 0, extent - 1 do places[at + 1] = math.floor(at / block) end
  return node:pick(value, axis, places, word)
end

-- round(x / scale) + zero_point, halves to the even number, and the nearest there is in the result's dtype.
function operators.QuantizeLinear(node)
  node:ignore("precision")
  node:expect("saturate", "i", 1)
  local x, scale, zero = node:input(1), node:input(2), node:optional(3)
  local dtype = zero and zero.dtype or node:dtype("output_dtype", "uint8")
  local range = ranges[dtype]
  if not range then node:fail("it gives " .. dtype .. ", only int8, uint8 and int32 are supported") end
  x = node:cast(x, "float32", "x")
  local places = node:apply("divide", { x, aligned(node, x, node:cast(scale, "float32", "scale_wide"), "scale") }, nil,
    "places")
  places = node:apply("round", { places }, nil, "rounded")
  if zero then
    zero = aligned(node, x, node:cast(zero, "float32", "zero_wide"), "zero_point")
    places = node:apply("add", { places, zero }, nil, "moved")
  end
  local cut = node:apply("clip_by_value", { places }, { min = range[1], max = range[2] }, "cut")
  return node:apply("cast", { cut }, { dtype = dtype })
end

-- (x - zero_point) * scale
function operators.DequantizeLinear(node)
  local x, scale, zero = node:input(1), node:input(2), node:optional(3)
  local dtype = node:dtype("output_dtype", scale.dtype)
  if not ranges[x.dtype] then node:fail("it takes " .. x.dtype .. ", only int8, uint8 and int32 are supported") end
  local wide = node:cast(x, "float32", "wide")
  if zero then
    zero = aligned(node, x, node:cast(zero, "float32", "zero_wide"), "zero_point")
    wide = node:apply("subtract", { wide, zero }, nil, "moved")
  end
  local y = node:apply("multiply", { wide, aligned(node, x, node:cast(scale, "float32", "scale_wide"), "scale") }, nil,
    "scaled")
  return node:cast(y, dtype)
end

return operators
