--- Images taken at places that are computed: flow.nn.grid_sample and affine_grid, and ONNX's GridSample and AffineGrid.
--
-- `tools` computes: apply(op, inputs, attrs, word), where `word` names a step on the way and the last one has none.

local core = require "moonflow.core"
local dtypes = require "moonflow.dtypes"

local sampling = {}

-- In two bytes places of a larger image would not be told apart.
local function widened(tools, x, grid)
  local wanted = dtypes.narrow[x.dtype] and "float32" or dtypes.floating[x.dtype] and x.dtype
    or dtypes.narrow[grid.dtype] and "float32" or grid.dtype
  return grid.dtype == wanted and grid or tools:apply("cast", { grid }, { dtype = wanted }, "grid")
end

--- Samples x (batch, channels, height, width) at the places of grid (batch, rows, columns, 2), column before row.
function sampling.at_grid(tools, x, grid, mode, padding, is_aligned)
  return tools:apply("grid_sample", { x, widened(tools, x, grid) },
    { mode = mode, padding_mode = padding, align_corners = is_aligned })
end

-- Rows of places (width, height, depth) that lie inside of a volume of these sizes, or are as good as such.
local function inside(tools, places, sizes, padding, is_aligned)
  local function line(list) return core.array(list, places.dtype) end
  local function apply(op, one, other, word) return tools:apply(op, { one, other }, nil, word) end
  if padding == "reflection" then  -- there and back again, between the outermost middles or the edges
    local first, period = {}, {}
    for i, size in ipairs(sizes) do
      first[i] = is_aligned and 0 or -0.5
      period[i] = is_aligned and math.max(1, 2 * (size - 1)) or 2 * size
    end
    local way = apply("mod", apply("subtract", places, line(first), "way"), line(period), "way_in_period")
    way = apply("minimum", way, apply("subtract", line(period), way, "way_back"), "way_reflected")
    places = apply("add", way, line(first), "reflected")
  end
  local last = {}
  for i, size in ipairs(sizes) do last[i] = size - 1 end
  return apply("maximum", apply("minimum", places, line(last), "not_behind"), line { 0, 0, 0 }, "inside")
end

--- The same of a volume (batch, channels, depth, height, width) and a grid (batch, depths, rows, columns, 3); mode is
--- "nearest" or "bilinear". Places of all channels are rows, which are picked at the corners around each place of the
--- grid and summed with the weights of these.
function sampling.in_volume(tools, x, grid, mode, padding, is_aligned)
  local function apply(op, inputs, attrs, word) return tools:apply(op, inputs, attrs, word) end
  local batch, channels, depth, height, width = unpack(x.shape:table())
  local _, depths, rows, columns = unpack(grid.shape:table())
  local count, sizes = batch * depths * rows * columns, { width, height, depth }
  grid = widened(tools, x, grid)
  local half, middle = {}, {}
  for i, size in ipairs(sizes) do
    half[i], middle[i] = (is_aligned and size - 1 or size) / 2, (size - 1) / 2
  end
  local function line(list, dtype) return core.array(list, dtype or grid.dtype) end
  local places = apply("reshape", { grid }, { shape = { count, 3 } }, "rows")
  places = apply("add", { apply("multiply", { places, line(half) }, nil, "scaled"), line(middle) }, nil, "places")
  if padding ~= "zeros" then places = inside(tools, places, sizes, padding, is_aligned) end

  local lines = apply("transpose", { x }, { perm = { 0, 2, 3, 4, 1 } }, "channels_last")
  lines = apply("reshape", { lines }, { shape = { batch * depth * height * width, channels } }, "lines")
  local firsts = {}
  for i = 0, batch - 1 do firsts[i + 1] = i * depth * height * width end
  firsts = core.array(firsts, "int64", { batch, 1 })

  -- What the corners at `at`, whole numbers, add: with no weight where they lie outside.
  local function at_corner(at, weights)
    local there = inside(tools, at, sizes, "border")
    local is_there = apply("cast", { apply("equal", { there, at }, nil, "is_there") }, { dtype = grid.dtype }, "there")
    weights = weights and apply("multiply", { weights, is_there }, nil, "weights") or is_there
    local weight = apply("reduce_prod", { weights }, { axis = { 1 }, keepdims = true }, "weight")
    local steps = apply("multiply", { apply("cast", { there }, { dtype = "int64" }, "whole"),
      line({ 1, width, width * height }, "int64") }, nil, "steps")
    local place = apply("reshape", { apply("reduce_sum", { steps }, { axis = { 1 } }, "place") },
      { shape = { batch, count / batch } }, "place_of_sample")
    place = apply("reshape", { apply("add", { place, firsts }, nil, "place_of_all") }, { shape = { count } }, "index")
    local picked = apply("gather", { lines, place }, { axis = 0 }, "picked")
    if weight.dtype ~= x.dtype then weight = apply("cast", { weight }, { dtype = x.dtype }, "weight_narrow") end
    return apply("multiply", { picked, weight }, nil, "corner")
  end

  local sum
  if mode == "nearest" then
    sum = at_corner(apply("round", { places }, nil, "nearest"))
  else
    local first = apply("floor", { places }, nil, "first")
    local part = apply("subtract", { places, first }, nil, "part")
    local rest = apply("subtract", { line { 1, 1, 1 }, part }, nil, "rest")
    for corner = 0, 7 do
      local offset = { corner % 2, math.floor(corner / 2) % 2, math.floor(corner / 4) }
      local weights = apply("where", { line(offset, "int8"), part, rest }, nil, "shares")
      local value = at_corner(apply("add", { first, line(offset) }, nil, "at"), weights)
      sum = sum and apply("add", { sum, value }, nil, "sum") or value
    end
  end
  local shape = { batch, depths, rows, columns, channels }
  return apply("transpose", { apply("reshape", { sum }, { shape = shape }, "volume") }, { perm = { 0, 4, 1, 2, 3 } })
end

-- Where the middle of a place lies between -1 and 1, the edges of an axis, or with is_aligned its outermost middles.
local function middle(place, size, is_aligned)
  if not is_aligned then return (2 * place + 1) / size - 1 end
  return size == 1 and 0 or 2 * place / (size - 1) - 1
end

--- The places that theta (batch, axes, axes + 1) * (x, y.., 1) names for each place of an image of these sizes, row by
--- row: (batch, sizes.., axes), the last axis of the image first.
function sampling.affine_grid(tools, theta, sizes, is_aligned)
  local batch, count, places = theta.shape[0], #sizes, 1
  for _, size in ipairs(sizes) do places = places * size end
  tools:check_list(places * (count + 1))
  local list = {}
  for place = 0, places - 1 do
    local rest = place
    for i = count, 1, -1 do
      list[#list + 1] = middle(rest % sizes[i], sizes[i], is_aligned)
      rest = math.floor(rest / sizes[i])
    end
    list[#list + 1] = 1
  end
  local line = core.array(list, theta.dtype, { places, count + 1 })
  local rows = tools:apply("reshape", { theta }, { shape = { batch * count, count + 1 } }, "rows")
  local grid = tools:apply("matmul", { rows, line }, { transpose_b = true, precise = true }, "places")
  local shape, perm = { batch, count, unpack(sizes) }, { 0 }
  for axis = 2, count + 1 do perm[axis] = axis end
  perm[count + 2] = 1
  return tools:apply("transpose", { tools:apply("reshape", { grid }, { shape = shape }, "image") }, { perm = perm })
end

return sampling
