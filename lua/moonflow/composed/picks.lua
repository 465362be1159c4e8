--- What is picked by an index or by its size, where that is more than an op of the catalog: flow.gather within a batch,
-- flow.dim_gather in both orders of its arguments, sorting along any axis.

local blob = require "moonflow.blob"
local ops = require "moonflow.ops"

local flow = ops.functions

-- In an array of these sizes the place of each element along one axis, with a last axis of one.
local function places_along(axis, sizes, dtype)
  local line, column = {}, {}
  for i, size in ipairs(sizes) do line[i], column[i] = i == axis + 1 and size or 1, size end
  line[#line + 1], column[#column + 1] = 1, 1
  local range = ops.apply("range", {}, { start = 0, stop = sizes[axis + 1], dtype = dtype })
  return (ops.apply("broadcast_to", { ops.apply("reshape", { range }, { shape = line }) }, { shape = column }))
end

-- By coordinates, of which the leading ones are where in the batch an index stands.
local function gather_within(given, t, signature)
  local params = blob.of(given.params, t, nil, "flow.gather")
  local indices = blob.of(given.indices, t, nil, "flow.gather")
  local count, rank = given.batch_dims, #params.shape
  count = count < 0 and count + #indices.shape or count
  local axis = given.axis or count
  axis = axis < 0 and axis + rank or axis
  if count < 0 or count >= rank or count > #indices.shape then
    signature:fail((": batch_dims is %d; params are %s and indices %s"):format(count, tostring(params.shape),
      tostring(indices.shape)))
  end
  if axis ~= count then
    signature:fail((": axis is %d, wanted that behind the batch, %d; flow.transpose puts another one there")
      :format(axis, count))
  end
  for i = 0, count - 1 do
    if params.shape[i] ~= indices.shape[i] then
      -- The original counted at most all axes of the indices but the last one.
      local meant = count == #indices.shape and count > 1
        and ("; to pick for each of the last axis of indices it is axis = %d, batch_dims = %d"):format(count - 1,
          count - 1)
      signature:fail((": the leading %d axes are a batch, and axis %d differs: params are %s, indices %s")
        :format(count, i, tostring(params.shape), tostring(indices.shape)) .. (meant or ""))
    end
  end
  if rank == count + 1 then
    local sizes = indices.shape:table()
    local line = { unpack(sizes, 1, count) }
    line[rank] = -1
    local picked = ops.apply("dim_gather", { params, ops.apply("reshape", { indices }, { shape = line }) },
      { dim = count }, given.name)
    return (ops.apply("reshape", { picked }, { shape = sizes }))
  end
  -- Of a small dtype the places in a batch could be too large for it.
  local dtype, sizes = indices.dtype == "int64" and "int64" or "int32", indices.shape:table()
  local coordinates = {}
  for i = 0, count - 1 do coordinates[i + 1] = places_along(i, sizes, dtype) end
  if indices.dtype ~= dtype then indices = ops.apply("cast", { indices }, { dtype = dtype }) end
  sizes[#sizes + 1] = 1
  coordinates[count + 1] = ops.apply("reshape", { indices }, { shape = sizes })
  return (ops.apply("gather_nd", { params, ops.apply("concat", coordinates, { axis = #sizes - 1 }) }, nil, given.name))
end

local one_index_for_all = flow.gather
ops.define("gather", {
  { "params", "operand" }, { "indices", "operand" },
  { "axis", "integer?", engine_default = "batch_dims",
    text = "the axis that is picked from; negative counts from the last" },
  { "name", "string?" },
  { "batch_dims", "integer", 0,
    text = "how many leading axes of params and indices are a batch; negative counts from the end of indices" },
}, [[
Rows of params picked by index.
  out[a..., i..., b...] = params[a..., indices[i...], b...], where a are the axes before `axis`
With batch_dims the leading axes n are a batch, each part of which has indices of its own:
  out[n..., i..., b...] = params[n..., indices[n..., i...], b...]
shapes: params (10, 4), indices (2, 3), axis = 0 -> out (2, 3, 4);
  params (8, 10, 4), indices (8, 3), batch_dims = 1 -> out (8, 3, 4)
dtypes: params any -> the same; indices of an integer dtype
defaults: axis = batch_dims, the only one that it may be where that is not 0
errors: an index outside [0, params.shape[axis]) names its position, nothing is written; a batch of another size]],
function(given, t, signature)
  if given.batch_dims ~= 0 then return gather_within(given, t, signature) end
  return one_index_for_all { params = given.params, indices = given.indices, axis = given.axis, name = given.name }
end)

-- dim_gather of the original takes the axis before the index, that of the catalog after it.
local by_index = flow.dim_gather
ops.define("dim_gather", {
  { "x", "blob" }, { "dim", "integer", text = "the axis that is picked from; negative counts from the last" },
  { "index", "operand", text = "where along it, counted from 0" },
}, [[
Elements of x, each from its own place but for the axis `dim`, along which an index says where:
  out[i, j, k] = x[i, index[i, j, k], k] for dim = 1
Also with the axis last: flow.dim_gather(x, index, dim).
shapes: x (3, 10, 4), index (3, 5, 4) -> (3, 5, 4); the other axes agree
dtypes: x any -> the same; index of an integer dtype
errors: shapes that differ along another axis; an index out of bounds names its position, nothing is written]],
function(given, t)
  local index = blob.of(given.index, t, "int64", "flow.dim_gather")
  return ops.apply("dim_gather", { given.x, index }, { dim = given.dim }, given.name)
end, function(_, index_or_dim)
  return type(index_or_dim) ~= "number" and by_index
end)

-- A function of the last axis as one of any: `axis` is added to its parameters, and another one is brought to the end.
for _, path in ipairs { "sort", "argsort", "math.top_k" } do
  local of_last, list = ops.at(path), {}
  for i, known in ipairs(ops.signature(of_last).parameters) do
    list[i] = { known.name, known.required and known.kind or known.kind .. "?", known.default,
                engine_default = known.engine_default, text = known.text }
  end
  list[#list + 1] = { "axis", "integer", -1, text = "the axis along which, from 0; negative counts from the end" }
  ops.define(path, list, ops.doc(of_last) .. "\nAnother axis is brought to the end and back.",
  function(given, _, signature)
    local rank, axis, named = blob.is(given.x) and #given.x.shape or 0, given.axis, given.name
    given.axis = nil
    if rank > 0 then axis = signature:axis(axis, rank) end
    if rank == 0 or axis == rank - 1 then return of_last(given) end
    local swapped = {}
    for i = 1, rank do swapped[i] = i - 1 end
    swapped[axis + 1], swapped[rank] = rank - 1, axis
    given.x, given.name = ops.apply("transpose", { given.x }, { perm = swapped }), nil
    return ops.apply("transpose", { of_last(given) }, { perm = swapped }, named)
  end)
end
