--- Images taken at places that are computed: flow.nn.grid_sample, and ONNX's GridSample.
-- Along each axis a sample is a weighted sum of what lies at whole places around it. These places, and weights, are
-- values of the run, of the shape (batch, rows, columns, 1) that the grid has without its last axis.
--
-- `tools` computes: apply(op, inputs, attrs, word), where `word` names a step on the way and the last one has none.

local dtypes = require "moonflow.dtypes"

local sampling = {}

local function times(tools, a, b, word) return tools:apply("multiply", { a, b }, nil, word) end
local function plus(tools, a, b, word) return tools:apply("add", { a, b }, nil, word) end
local function less(tools, a, b, word) return tools:apply("subtract", { a, b }, nil, word) end

-- A number as a value of the dtype that another one has.
local function number(tools, x, like)
  return tools:apply("constant", {}, { value = x, dtype = like.dtype, shape = {} }, "number")
end

local function cast(tools, value, dtype, word)
  return value.dtype == dtype and value or tools:apply("cast", { value }, { dtype = dtype }, word)
end

-- A place of the grid, from -1 to 1 over all of an axis, as one of the axis: from the middle of its first number to
-- that of its last, or from edge to edge.
local function unfolded(tools, place, size, is_aligned)
  local half = is_aligned and (size - 1) / 2 or size / 2
  return plus(tools, times(tools, place, number(tools, half, place), "half"), number(tools, (size - 1) / 2, place),
    "place")
end

-- ---- what is summed: lists of { place, weight }, without a weight where it is 1 ------------------------------------

local kinds = {}

function kinds.nearest(tools, x) return { { tools:apply("round", { x }, nil, "nearest") } } end

function kinds.bilinear(tools, x)
  local low, one = tools:apply("floor", { x }, nil, "low"), number(tools, 1, x)
  local part = less(tools, x, low, "part")
  return { { low, less(tools, one, part, "rest") }, { plus(tools, low, one, "high"), part } }
end

-- Keys, "Cubic convolution interpolation for digital image processing", 1981, with -0.75: of what lies up to 1 off, and
-- up to 2.
function kinds.bicubic(tools, x)
  local low, a = tools:apply("floor", { x }, nil, "low"), -0.75
  local part, list = less(tools, x, low, "part"), {}
  local function polynomial(d, factors)
    local sum = number(tools, factors[1], x)
    for i = 2, #factors do
      sum = plus(tools, times(tools, sum, d, "power"), number(tools, factors[i], x), "cubic")
    end
    return sum
  end
  for offset = -1, 2 do
    -- The distance, which is not below 0.
    local d = offset > 0 and less(tools, number(tools, offset, x), part, "distance")
      or plus(tools, part, number(tools, -offset, x), "distance")
    local is_near = offset == 0 or offset == 1
    list[#list + 1] = { plus(tools, low, number(tools, offset, x), "around"),
      polynomial(d, is_near and { a + 2, -(a + 3), 0, 1 } or { a, -5 * a, 8 * a, -4 * a }) }
  end
  return list
end

-- ---- what lies outside ---------------------------------------------------------------------------------------------

local function cut(tools, place, size)
  return tools:apply("clip_by_value", { place }, { min = 0, max = size - 1 }, "cut")
end

-- There and back again, between the first and last number, or their edges.
local function reflected(tools, place, size, is_aligned)
  local first = is_aligned and 0 or -0.5
  local width = size - 1 - 2 * first
  if width == 0 then return times(tools, place, number(tools, 0, place), "reflected") end
  local off = tools:apply("abs", { plus(tools, place, number(tools, -first, place), "from_edge") }, nil, "off")
  local phase = tools:apply("mod", { off, number(tools, 2 * width, place) }, nil, "phase")
  local beyond = tools:apply("abs", { plus(tools, phase, number(tools, -width, place), "from_end") }, nil, "beyond")
  return less(tools, number(tools, width + first, place), beyond, "reflected")
end

-- A place inside of the axis, and the weight with which it counts.
local function inside(tools, tap, size, padding, is_aligned)
  local place, weight = tap[1], tap[2]
  if padding == "zeros" then
    local kept = cut(tools, place, size)
    local is_there = tools:apply("equal", { kept, place }, nil, "is_there")
    is_there = cast(tools, is_there, place.dtype, "is_there_wide")
    return kept, weight and times(tools, weight, is_there, "weight") or is_there
  end
  if padding == "reflection" then place = reflected(tools, place, size, is_aligned) end
  return cut(tools, place, size), weight
end

-- ---- the image -----------------------------------------------------------------------------------------------------

--- Modes and ways to pad, by name.
sampling.modes = kinds
sampling.paddings = { zeros = true, border = true, reflection = true }

--- Samples x (batch, channels, height, width) at the places of grid (batch, rows, columns, 2), column before row. In
--- two bytes places of a larger image would not be told apart.
function sampling.at_grid(tools, x, grid, mode, padding, is_aligned)
  if dtypes.narrow[grid.dtype] then grid = cast(tools, grid, "float32", "grid") end
  local sizes, points = x.shape:table(), grid.shape:table()
  local shape = { points[1], points[2], points[3], 1 }
  local function taps(coordinate, size)
    local place = tools:apply("slice", { grid }, { begin = { 0, 0, 0, coordinate }, size = shape },
      coordinate == 0 and "columns" or "rows")
    local list = {}
    for i, tap in ipairs(kinds[mode](tools, unfolded(tools, place, size, is_aligned))) do
      local at, weight = inside(tools, tap, size, padding, is_aligned)
      list[i] = { cast(tools, at, "int64", "index"), weight }
    end
    return list
  end
  local rows, columns = taps(1, sizes[3]), taps(0, sizes[4])
  local batch = tools:apply("range", {}, { start = 0, stop = sizes[1], dtype = "int64" }, "batch")
  batch = tools:apply("reshape", { batch }, { shape = { sizes[1], 1, 1, 1 } }, "batch_column")
  batch = tools:apply("broadcast_to", { batch }, { shape = shape }, "batches")
  local channels_last = tools:apply("transpose", { x }, { perm = { 0, 2, 3, 1 } }, "channels_last")

  local sum
  for _, row in ipairs(rows) do
    for _, column in ipairs(columns) do
      local at = tools:apply("concat", { batch, row[1], column[1] }, { axis = 3 }, "at")
      local value = tools:apply("gather_nd", { channels_last, at }, nil, "there")
      if row[2] then  -- both have a weight, or neither
        local weight = times(tools, row[2], column[2], "share")
        value = times(tools, value, cast(tools, weight, value.dtype, "share_as_is"), "weighted")
      end
      sum = sum and plus(tools, sum, value, "sum") or value
    end
  end
  return tools:apply("transpose", { sum }, { perm = { 0, 3, 1, 2 } })
end

return sampling
