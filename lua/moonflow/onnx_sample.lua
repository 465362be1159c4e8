--- ONNX's GridSample, which takes an image at places that are computed: a table from its name to the function that
--- applies it to a node.
-- Along each axis a sample is a weighted sum of what lies at whole places around it. These places, and weights, are
-- values of the run, of the shape (batch, rows, columns) that the grid has.

local operators = {}

local function times(node, a, b, word) return node:apply("multiply", { a, b }, nil, word) end
local function plus(node, a, b, word) return node:apply("add", { a, b }, nil, word) end

-- A place of the grid, from -1 to 1 over all of an axis, as one of the axis: from the middle of its first number to
-- that of its last, or from edge to edge.
local function unfolded(node, place, size, is_aligned)
  local function number(x) return node:filled(x, place.dtype) end
  local half = is_aligned and (size - 1) / 2 or size / 2
  return plus(node, times(node, place, number(half), "half"), number((size - 1) / 2), "place")
end

-- ---- what is summed: lists of { place, weight }, without a weight where it is 1 ------------------------------------

local kinds = {}

function kinds.nearest(node, x) return { { node:apply("round", { x }, nil, "nearest") } } end

function kinds.linear(node, x)
  local low, one = node:apply("floor", { x }, nil, "low"), node:filled(1, x.dtype)
  local part = node:apply("subtract", { x, low }, nil, "part")
  return { { low, node:apply("subtract", { one, part }, nil, "rest") }, { plus(node, low, one, "high"), part } }
end

-- Keys, 1981, with -0.75: of what lies up to 1 off, and up to 2.
function kinds.cubic(node, x)
  local low, a = node:apply("floor", { x }, nil, "low"), -0.75
  local part, list = node:apply("subtract", { x, low }, nil, "part"), {}
  local function number(value) return node:filled(value, x.dtype) end
  local function polynomial(d, factors)
    local sum = number(factors[1])
    for i = 2, #factors do sum = plus(node, times(node, sum, d, "power"), number(factors[i]), "cubic") end
    return sum
  end
  for offset = -1, 2 do
    -- The distance, which is not below 0.
    local d = offset > 0 and node:apply("subtract", { number(offset), part }, nil, "distance")
      or plus(node, part, number(-offset), "distance")
    local is_near = offset == 0 or offset == 1
    list[#list + 1] = { plus(node, low, number(offset), "around"),
      polynomial(d, is_near and { a + 2, -(a + 3), 0, 1 } or { a, -5 * a, 8 * a, -4 * a }) }
  end
  return list
end

kinds.bilinear, kinds.bicubic = kinds.linear, kinds.cubic  -- as they are called before opset 20

-- ---- what lies outside ---------------------------------------------------------------------------------------------

local function cut(node, place, size)
  return node:apply("clip_by_value", { place }, { min = 0, max = size - 1 }, "cut")
end

-- There and back again, between the first and last number, or their edges.
local function reflected(node, place, size, is_aligned)
  local function number(x) return node:filled(x, place.dtype) end
  local first = is_aligned and 0 or -0.5
  local width = size - 1 - 2 * first
  if width == 0 then return times(node, place, number(0), "reflected") end
  local off = node:apply("abs", { plus(node, place, number(-first), "from_edge") }, nil, "off")
  local phase = node:apply("mod", { off, number(2 * width) }, nil, "phase")
  local beyond = node:apply("abs", { plus(node, phase, number(-width), "from_end") }, nil, "beyond")
  return node:apply("subtract", { number(width + first), beyond }, nil, "reflected")
end

-- A place inside of the axis, and the weight with which it counts.
local function inside(node, tap, size, padding, is_aligned)
  local place, weight = tap[1], tap[2]
  if padding == "zeros" then
    local kept = cut(node, place, size)
    local is_there = node:cast(node:apply("equal", { kept, place }, nil, "is_there"), place.dtype, "is_there_wide")
    return kept, weight and times(node, weight, is_there, "weight") or is_there
  end
  if padding == "reflection" then place = reflected(node, place, size, is_aligned) end
  return cut(node, place, size), weight
end

-- ---- the operator --------------------------------------------------------------------------------------------------

function operators.GridSample(node)
  local x, grid = node:input(1), node:input(2)
  local sizes, points = x.shape:table(), grid.shape:table()
  if #sizes ~= 4 or #points ~= 4 then node:fail("only images of two axes of places are supported") end
  if points[4] ~= 2 or points[1] ~= sizes[1] or sizes[3] < 1 or sizes[4] < 1 then
    node:fail(("a grid %s for an image %s"):format(tostring(grid.shape), tostring(x.shape)), "shape_mismatch")
  end
  local mode = node:text("mode", node.opset < 20 and "bilinear" or "linear")
  local padding = node:text("padding_mode", "zeros")
  local is_aligned = node:int("align_corners", 0) ~= 0
  if not kinds[mode] then node:fail("mode = " .. mode .. " is not supported", "invalid_argument") end
  if padding ~= "zeros" and padding ~= "border" and padding ~= "reflection" then
    node:fail("padding_mode = " .. padding .. " is not supported", "invalid_argument")
  end

  local shape = { points[1], points[2], points[3], 1 }
  local function taps(coordinate, size)
    local place = node:cut(grid, 3, coordinate, 1, "coordinate_" .. coordinate)
    local list = {}
    for i, tap in ipairs(kinds[mode](node, unfolded(node, place, size, is_aligned))) do
      local at, weight = inside(node, tap, size, padding, is_aligned)
      list[i] = { node:cast(at, "int64", "index"), weight }
    end
    return list
  end
  local rows, columns = taps(1, sizes[3]), taps(0, sizes[4])
  local batch = node:apply("range", {}, { start = 0, stop = sizes[1], dtype = "int64" }, "batch")
  batch = node:spread(node:reshape(batch, { sizes[1], 1, 1, 1 }, "batch_column"), shape, "batches")
  local channels_last = node:transpose(x, { 0, 2, 3, 1 }, "channels_last")

  local sum
  for _, row in ipairs(rows) do
    for _, column in ipairs(columns) do
      local at = node:apply("concat", { batch, row[1], column[1] }, { axis = 3 }, "at")
      local value = node:apply("gather_nd", { channels_last, at }, nil, "there")
      for _, weight in ipairs { row[2], column[2] } do  -- both have one, or neither
        value = times(node, value, node:cast(weight, value.dtype, "weight_as_is"), "weighted")
      end
      sum = sum and plus(node, sum, value, "sum") or value
    end
  end
  return node:transpose(sum, { 0, 3, 1, 2 })
end

return operators
