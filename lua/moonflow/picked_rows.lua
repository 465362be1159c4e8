--- Tables trained by the rows that a step picks, as an embedding's are by gather: the others have a gradient of 0.

local core = require "moonflow.core"
local update = require "moonflow.update"

local picked_rows = {}

--- What a step has picked from a table: lists of `dy`, a row for each of `indices`. That is known where all of the
-- gradient comes from gathers of whole rows, as an embedding is one; else nil.
function picked_rows.of(u)
  local graph, dy, indices = u.t.graph, {}, {}
  local function is_picked(id)
    local inputs, attrs = graph:made_by(id, "gather_grad")
    if inputs then
      dy[#dy + 1], indices[#indices + 1] = unpack(inputs)
      return attrs.axis % #u.shape == 0
    end
    inputs = graph:made_by(id, "add")
    return inputs and is_picked(inputs[1]) and is_picked(inputs[2])
  end
  if is_picked(u.gradient) then return dy, indices end
end

--- Several picks as one: `dy` and `indices`.
function picked_rows.joined(u, dy, indices)
  if #dy == 1 then return { dy = dy[1], indices = indices[1] } end
  local graph, columns, common = u.t.graph, { unpack(u.shape) }, nil
  for _, id in ipairs(indices) do
    local dtype = graph:type(id)
    common = (common == nil or common == dtype) and dtype or "int64"
  end
  for i = 1, #dy do
    local dtype, shape = graph:type(indices[i])
    columns[1] = shape:count()
    dy[i] = u:append("reshape", { dy[i] }, { shape = columns }, "picked")
    indices[i] = u:in_dtype(u:append("reshape", { indices[i] }, { shape = { columns[1] } }, "picks"), dtype, common,
      "wide_picks")
  end
  return { dy = u:append("concat", dy, { axis = 0 }, "all_picked"),
           indices = u:append("concat", indices, { axis = 0 }, "all_picks") }
end

--- A table from which several gathers pick has a gradient for each of them, and their sum: all of its size. Where they
-- pick fewer rows than it has, they become one, which an update may then take in row by row.
function picked_rows.join_gathers(u)
  local dy, indices = picked_rows.of(u)
  if not dy or #dy == 1 or u.finite then return end  -- what has to be finite is the gradient as it was
  local picks = 0
  for _, id in ipairs(indices) do
    local _, shape = u.t.graph:type(id)
    picks = picks + shape:count()
  end
  if picks > u.shape[1] then return end
  local rows = picked_rows.joined(u, dy, indices)
  u.gradient = u:append("gather_grad", { rows.dy, rows.indices }, { shape = u.shape }, "all_picked_gradient")
end

--- Lets the picks of `u.rows` sum to `u.gradient`, which is what they have summed to, prepared and cut: a row that is
--- picked n times has an n-th of it from each.
function picked_rows.take_gradient(u)
  local rows = u.rows
  local ones = u:append("cast", { u:append("equal", { rows.indices, rows.indices }, nil, "ones") },
    { dtype = u.dtype }, "ones")
  local count = u:append("gather_grad", { ones, rows.indices }, { shape = { u.shape[1] } }, "picks_of_row")
  for _ = 2, #u.shape do count = u:append("expand_dims", { count }, { axis = -1 }, "picks_of_row") end
  -- A row of no picks is 0 / 0, which is never picked.
  local share = u:append("divide", { u.gradient, count }, nil, "share_of_pick")
  rows.dy = u:append("gather", { share, rows.indices }, { axis = 0 }, "cut_picked")
  rows.scale, u.unscale = 1, u.finite  -- a factor of 0 leaves out the step
end

--- The picks of a table whose update reads no more of its gradient: `dy` and `indices`, or nil.
function picked_rows.to_clip(u, part)
  if u.unscale then return nil end
  if u.rows then return u.rows end
  local regularised = u.regularizer and (u.regularizer.l1 ~= 0 or u.regularizer.l2 ~= 0)
  local dy, indices = picked_rows.of(u)
  if update.keeps_rest(part) and not regularised and dy and #dy == 1 then return { dy = dy[1], indices = indices[1] } end
end

--- What has the norm of the gradient that `picks` are summed to, without anything of the table's size: for each pick
-- the sum of all that share its row, divided by the root of how many they are. nil where comparing all picks with one
-- another takes longer than the table does.
function picked_rows.sums(u, picks, dtype, scale)
  local _, shape = u.t.graph:type(picks.indices)
  local count, width = shape:count(), 1
  for axis = 2, #u.shape do width = width * u.shape[axis] end
  if count == 0 or count * count > 8 * u.shape[1] then return nil end
  local function placed(to, word) return u:append("reshape", { picks.indices }, { shape = to }, word) end
  local alike = u:append("equal", { placed({ count, 1 }, "picks_down"), placed({ 1, count }, "picks_across") }, nil,
    "same_row")
  alike = u:append("cast", { alike }, { dtype = dtype }, "same_row")
  local number_of = u:append("reduce_sum", { alike }, { axis = { 1 }, keepdims = true }, "picks_of_row")
  local dy = u:in_dtype(picks.dy, u.dtype, dtype, "wide_picked")
  dy = u:append("reshape", { dy }, { shape = { count, width } }, "picked")
  local sums = u:append("matmul", { alike, dy }, nil, "sums_of_rows")
  local share = u:append("rsqrt", { number_of }, nil, "share_of_row")
  if scale ~= 1 then
    local factor = u.t:constant(core.array(scale, dtype), nil, u.name .. "-scale", "")
    share = u:append("multiply", { share, factor }, nil, "share_of_row")
  end
  return u:append("multiply", { sums, share }, nil, "sums_of_rows")
end

return picked_rows
