--- Images taken at places that are computed: flow.nn.grid_sample and affine_grid, and ONNX's GridSample and AffineGrid.
--
-- `tools` computes: apply(op, inputs, attrs, word), where `word` names a step on the way and the last one has none.

local core = require "moonflow.core"
local dtypes = require "moonflow.dtypes"

local sampling = {}

--- Samples x (batch, channels, height, width) at the places of grid (batch, rows, columns, 2), column before row. In
--- two bytes places of a larger image would not be told apart.
function sampling.at_grid(tools, x, grid, mode, padding, is_aligned)
  local wanted = dtypes.narrow[x.dtype] and "float32" or dtypes.floating[x.dtype] and x.dtype
    or dtypes.narrow[grid.dtype] and "float32" or grid.dtype
  if grid.dtype ~= wanted then grid = tools:apply("cast", { grid }, { dtype = wanted }, "grid") end
  return tools:apply("grid_sample", { x, grid }, { mode = mode, padding_mode = padding, align_corners = is_aligned })
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
