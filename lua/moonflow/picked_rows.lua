--- Tables trained by the rows that a step picks, as an embedding's are by gather: the others have a gradient of 0.

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

local function count_of(u, indices)
  local count = 0
  for _, id in ipairs(indices) do count = count + select(2, u.t.graph:type(id)):count() end
  return count
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

--- Makes the gradient that of several processes, their mean, by exchanging the rows that each has picked. False where
--- those are as much as the table is, or are not all of its gradient.
function picked_rows.share(u, processes)
  local dy, indices = picked_rows.of(u)
  if not dy then return false end
  for _, id in ipairs(indices) do
    if #select(2, u.t.graph:type(id)) == 0 then return false end
  end
  if count_of(u, indices) * processes >= u.shape[1] then return false end
  local share, sum = u:number(1 / processes, "share"), nil
  for i, id in ipairs(indices) do
    local rows = u:append("all_gather", { u:multiply(dy[i], share, "picked_share") }, nil, "of_all")
    local gradient = u:append("gather_grad", { rows, u:append("all_gather", { id }, nil, "picks_of_all") },
      { shape = u.shape }, "gradient_of_all")
    sum = sum and u:add(sum, gradient, "gradients_of_all") or gradient
  end
  u.gradient = sum
  return true
end

--- A table from which several gathers pick has a gradient for each of them, and their sum: all of its size. Where they
-- pick fewer rows than it has, they become one, which an update may then take in row by row.
function picked_rows.join_gathers(u)
  local dy, indices = picked_rows.of(u)
  if not dy or #dy == 1 or u.finite then return end  -- what has to be finite is the gradient as it was
  if count_of(u, indices) > u.shape[1] then return end
  local rows = picked_rows.joined(u, dy, indices)
  u.gradient = u:append("gather_grad", { rows.dy, rows.indices }, { shape = u.shape }, "all_picked_gradient")
end

--- The picks of a table whose update reads no more of its gradient: `dy` and `indices`, or nil.
function picked_rows.to_clip(u, part)
  if u.rows then return u.rows end
  local regularised = u.regularizer and (u.regularizer.l1 ~= 0 or u.regularizer.l2 ~= 0)
  if regularised or u.finite or not update.keeps_rest(part) then return nil end
  local dy, indices = picked_rows.of(u)
  if not dy or #dy > 1 then return nil end  -- those of more picks than rows have not been joined
  if count_of(u, indices) <= u.shape[1] then return { dy = dy[1], indices = indices[1] } end
end

--- The gradient's rows that have been picked, each in the place of its first pick, and 0 in the places of its others:
--- divided and unscaled, and at least float32. So what is to be clipped has the size of the picks.
function picked_rows.sums(u, picks, scale)
  picks.dtype = u.dtype == "float64" and u.dtype or "float32"
  local dy = u:in_dtype(picks.dy, u.dtype, picks.dtype, "wide_picked")
  local sums = u:append("sum_picks", { dy, picks.indices, u:order_of(picks) }, nil, "sums_of_rows")
  if scale ~= 1 then
    sums = u:multiply(sums, u:number(scale, "scale", picks.dtype), "share_of_row")
  end
  if u.unscale then
    sums = u:multiply(sums, u:in_dtype(u.unscale, "float32", picks.dtype, "unscale"), "true_row")
  end
  return sums
end

--- Makes of `sums`, which have been clipped, what the update takes.
function picked_rows.take(u, picks, sums)
  local dy = u:in_dtype(sums, picks.dtype, u.dtype, "narrow_picked")
  if u.rows then
    u.rows.dy, u.rows.scale, u.unscale = dy, 1, u.finite  -- a factor of 0 leaves out the step
  else
    u.gradient = u:append("gather_grad", { dy, picks.indices }, { shape = u.shape }, "clipped")
  end
end

return picked_rows
