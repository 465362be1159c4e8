--- The functions of flow.np that give places and take them: where something is not 0, and what is picked, written or
-- left out there; and arrays as indices, a[x], a[x] = value, a:at(x, y) and a:set(x, y, value).

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"

local evaluate, cast, as_array, axis_of = ndarray.evaluate, ndarray.cast, ndarray.as_array, ndarray.axis_of
local is_array, part, metatable = ndarray.is_array, ndarray.part, core.ndarray_metatable
local signature, fail = arguments.signature, errors.raise

-- Writes the places of what is 1 and not 0. One more is written than there are.
local function write_places(holds, count, places)
  local found = 0
  for i = 0, count - 1 do
    places[found] = i
    found = found + holds[i]
  end
end

local flatnonzero_signature = signature("np.flatnonzero", { { "a", "any" } })
--- The places in the flattened array of what is not 0, in order.
function np.flatnonzero(a, ...)
  if ... ~= nil then flatnonzero_signature:too_many(1 + select("#", ...)) end
  local holds = ndarray.exact(a, "np.flatnonzero"):ravel():ne(0)
  local count = holds:sum()
  local places = core.empty("int64", { count + 1 })
  write_places(holds:ptr(), #holds, places:ptr())
  return places:rows(0, count)
end

-- The places along each axis of those of a flattened array of this shape.
local function unravelled(places, shape)
  local found = {}
  for axis = #shape, 1, -1 do
    local size = math.max(shape[axis], 1)
    found[axis] = places % size
    places = cast(np.floor_divide(places, size), "int64")
  end
  return found
end

local nonzero_signature = signature("np.nonzero", { { "a", "any" } })
--- The places of what is not 0, an array for each axis: `local rows, columns = np.nonzero(a:gt(0))`.
function np.nonzero(a, ...)
  if ... ~= nil then nonzero_signature:too_many(1 + select("#", ...)) end
  a = ndarray.exact(a, "np.nonzero")
  return unpack(unravelled(np.flatnonzero(a), a.shape:table()))
end

local argwhere_signature = signature("np.argwhere", { { "a", "any" } })
--- The places of what is not 0, one in each row: (count, rank).
function np.argwhere(a, ...)
  if ... ~= nil then argwhere_signature:too_many(1 + select("#", ...)) end
  a = ndarray.exact(a, "np.argwhere")
  if a.rank == 0 then return np.zeros({ a:ne(0):sum(), 0 }, "int64") end
  return np.stack({ np.nonzero(a) }, 1)
end

-- The sizes of an array, and how many elements it has.
local function sizes_of(shape, called)
  local sizes, count = arguments.flat_list(shape), 1
  for _, size in ipairs(sizes) do
    if type(size) ~= "number" or size < 0 or size % 1 ~= 0 then
      fail("invalid_argument", called .. ": a size is a whole number from 0 on, got " .. arguments.describe(size))
    end
    count = count * size
  end
  return sizes, count
end

-- Places as they are given, int64, each of which is to be one of `size`.
local function places_within(indices, size, called, axis)
  local places = cast(ndarray.places(indices, 0, called), "int64")
  local least, most = 0, -1
  if places.nbytes > 0 then least, most = places:min(), places:max() end
  if least < 0 or most >= size then
    fail("out_of_range", ("%s: index %d is out of range for %s%d"):format(called, least < 0 and least or most,
      axis and "axis " .. axis .. " of size " or "an array whose number of elements is ", size))
  end
  return places
end

local unravel_signature = signature("np.unravel_index", { { "indices", "any" }, { "shape", "list" } })
--- Of places in a flattened array of this shape those along each axis, an array for each:
--- `local row, column = np.unravel_index(np.argmax(a), a.shape)`. Of a number numbers.
--- @return any
--- @error a place that is not in the array
function np.unravel_index(...)
  local given = unravel_signature:parse(...)
  local sizes, count = sizes_of(given.shape, "np.unravel_index")
  local found = unravelled(places_within(given.indices, count, "np.unravel_index"), sizes)
  if type(given.indices) == "number" then
    for i, places in ipairs(found) do found[i] = places:item() end
  end
  return unpack(found)
end

local ravel_signature = signature("np.ravel_multi_index", { { "multi_index", "entries" }, { "shape", "list" },
  { "mode", "string", "raise" } })
--- What np.unravel_index undoes: of places along each axis, a list of numbers or of arrays that broadcast, those in
--- the flattened array of this shape. Places outside are an error, with `mode = "wrap"` counted on from the other
--- end, and with "clip" the nearest inside. Of numbers a number.
--- @return any
--- @error another number of lists than axes; with "raise" a place that is not in the array
function np.ravel_multi_index(...)
  local given = ravel_signature:parse(...)
  local called, list, mode = "np.ravel_multi_index", given.multi_index, given.mode
  local sizes = sizes_of(given.shape, called)
  if #list ~= #sizes or #list == 0 then
    fail("shape_mismatch", ("%s: %d lists of places for %d axes"):format(called, #list, #sizes))
  elseif mode ~= "raise" and mode ~= "wrap" and mode ~= "clip" then
    fail("invalid_argument", called .. ": the mode is \"raise\", \"wrap\" or \"clip\", got '" .. mode .. "'"
      .. arguments.suggestion(mode, { "raise", "wrap", "clip" }))
  end
  local flat, is_number = nil, true
  for i, size in ipairs(sizes) do
    local places = list[i]
    is_number = is_number and type(places) == "number"
    if mode == "raise" then
      places = places_within(places, size, called, i - 1)
    else
      places = cast(ndarray.places(places, 0, called), "int64")
      places = mode == "wrap" and places % math.max(size, 1) or np.clip(places, 0, math.max(size - 1, 0))
    end
    flat = flat and flat * size + places or places
  end
  return is_number and flat:item() or flat
end

local compress_signature = signature("np.compress",
  { { "condition", "any" }, { "a", "any" }, { "axis", "integer?" } })
--- The slices along `axis` where `condition` is not 0, such as the rows of a class, `np.compress(y:eq(3), x, 0)`;
--- without an axis the elements.
function np.compress(...)
  local given = compress_signature:parse(...)
  local condition, a = ndarray.exact(given.condition, "np.compress"), as_array(given.a, "np.compress")
  local axis = given.axis and axis_of(a, given.axis, "np.compress")
  local size = axis and a.shape[axis] or a.shape:count()
  if condition.shape:count() ~= size then
    fail("shape_mismatch", ("np.compress: a condition %s for %d %s"):format(tostring(condition.shape), size,
      axis and "slices along axis " .. axis or "elements"))
  end
  local places = np.flatnonzero(condition)
  if not axis then a, axis = a:ravel(), 0 end
  return (evaluate("gather", { a, places }, { axis = axis }, "np.compress"))
end

local putmask_signature = signature("np.putmask", { { "a", "ndarray" }, { "mask", "any" }, { "values", "any" } })
--- Puts values in the place of those where `mask` is not 0: `np.putmask(a, a:lt(0), 0)`. The array is changed itself;
--- nothing is given back.
--- shapes: the mask that of `a`; the values broadcast to it
--- dtypes: integers take no fractions, and nothing outside their range
--- @return nil
--- @error the mask has another shape
function np.putmask(...)
  local given = putmask_signature:parse(...)
  local a, mask, values = given.a, as_array(given.mask, "np.putmask"), given.values
  if mask.shape ~= a.shape then
    fail("shape_mismatch", ("np.putmask: the mask is %s, the array %s"):format(tostring(mask.shape),
      tostring(a.shape)))
  end
  values = ndarray.fitted(values, a.dtype, a.shape:table(), "np.putmask")
  a:set("...", np.where(mask, values, a))
end

local put_along_signature = signature("np.put_along_axis",
  { { "a", "ndarray" }, { "indices", "any" }, { "values", "any" }, { "axis", "integer" } })
--- Writes what np.take_along_axis reads: a[i, indices[i, j]] = values[i, j] for axis 1. The array is changed itself;
--- nothing is given back.
--- shapes: the indices that of `a` but along the axis; the values broadcast to them
--- dtypes: integers take no fractions, and nothing outside their range
--- @return nil
--- @error an index that is out of range; indices or values that do not fit
function np.put_along_axis(...)
  local given = put_along_signature:parse(...)
  local called, a = "np.put_along_axis", given.a
  local axis = axis_of(a, given.axis, called)
  local size = a.shape[axis]
  local places = ndarray.places(given.indices, size, called)
  local shape = places.shape:table()
  local fits = #shape == a.rank
  for i = 1, fits and a.rank or 0 do fits = fits and (i == axis + 1 or shape[i] == a.shape[i - 1]) end
  if not fits then
    fail("shape_mismatch", ("%s: the indices are %s, the array %s, and all axes but %d are to be the same"):format(
      called, tostring(places.shape), tostring(a.shape), axis))
  end
  places = places_within(places, size, called, axis)
  -- In the flattened array: a step along an axis passes over all elements of those behind it.
  local step = 1
  local flat
  for i = a.rank - 1, 0, -1 do
    local of_axis = places
    if i ~= axis then
      local line = {}
      for k = 1, a.rank do line[k] = k == i + 1 and a.shape[i] or 1 end
      of_axis = np.arange(a.shape[i]):reshape(line)
    end
    flat = flat and flat + of_axis * step or of_axis * step
    step = step * a.shape[i]
  end
  if a.shape:count() == 0 or places.shape:count() == 0 then return end
  core.write_rows(a:reshape({ -1 }), flat:ravel(), ndarray.fitted(given.values, a.dtype, shape, called):ravel())
end

local insert_signature = signature("np.insert",
  { { "a", "any" }, { "places", "any" }, { "values", "any" }, { "axis", "integer?" } })
--- A copy with slices of `values` put in before these places along `axis`, without an axis elements into the flattened
--- array: `np.insert(x, 0, row, 0)` puts a row before the others. One place takes all values, of several each its own;
--- they count in the array as it was, negative ones from its end.
--- @error a place that is out of range; values that do not fit
function np.insert(...)
  local given = insert_signature:parse(...)
  local called = "np.insert"
  local a, values = ndarray.both(given.a, given.values, called)
  if not given.axis then a = a:ravel() end
  local axis = axis_of(a, given.axis or 0, called)
  local size, is_one = a.shape[axis], type(given.places) == "number"
  local places = cast(ndarray.places(given.places, size, called), "int64"):ravel()
  if #places == 0 then return a:copy() end
  if places:min() < 0 or places:max() > size then
    fail("out_of_range", ("%s: slices go in before the places 0 to %d, got %d"):format(called, size,
      places:min() < 0 and places:min() or places:max()))
  end
  if is_one and values.rank == a.rank - 1 and values.rank > 0 then values = np.expand_dims(values, axis) end
  local shape = a.shape:table()
  shape[axis + 1] = is_one and values.rank == a.rank and values.shape[axis]
    or is_one and a.rank == 1 and values.shape:count() or #places
  values = ndarray.fitted(values, a.dtype, shape, called)
  if is_one then
    local place = places[0]
    return np.concat({ part(a, axis, 0, place), values, part(a, axis, place, size) }, axis)
  end
  -- What goes in before one place stays in order, and each is moved on by all that go in before it.
  local order = np.argsort(places)
  local to, from = places:take(order, 0) + np.arange(#places), np.ones({ size + #places }, "int64")
  core.write_rows(from, to, np.zeros({ #places }, "int64"))
  from = np.cumsum(from) - 1
  core.write_rows(from, to, order + size)
  return np.concat({ a, values }, axis):take(from, axis)
end

-- The places of a triangle of a matrix (n, m).
local function define_triangle(name, triangle)
  local called = "np." .. name
  local own = signature(called, { { "n", "integer" }, { "k", "integer", 0 }, { "m", "integer?" } })
  np[name] = function(...)
    local given = own:parse(...)
    local n, m = given.n, given.m or given.n
    if n < 0 or m < 0 then
      fail("invalid_argument", ("%s: sizes must be at least 0, got %d and %d"):format(called, n, m))
    end
    return np.nonzero(triangle(np.ones({ n, m }, "int8"), given.k))
  end
end
--- The places below a diagonal of a matrix with `n` rows and `m` columns, `n` where it is not said, and on it: rows and
--- columns, `local rows, columns = np.tril_indices(3)`. `k` is 0 for the main diagonal, 1 for the one above it.
--- @return ndarray, ndarray
define_triangle("tril_indices", function(a, k) return np.tril(a, k) end)
--- The places above a diagonal of a matrix with `n` rows and `m` columns, `n` where it is not said, and on it: rows and
--- columns: `a:at(np.triu_indices(3))`. `k` is 0 for the main diagonal, 1 for the one above it.
--- @return ndarray, ndarray
define_triangle("triu_indices", function(a, k) return np.triu(a, k) end)

local select_signature = signature("np.select",
  { { "conditions", "entries" }, { "choices", "entries" }, { "default", "any", 0 } })
--- Of each place the choice that stands with the first of the conditions that is not 0 there, else `default`. All
--- broadcast: `np.select({ x:lt(0), x:lt(10) }, { 0, x * x }, 100)`.
--- @error another number of choices than of conditions
function np.select(...)
  local given = select_signature:parse(...)
  if #given.conditions ~= #given.choices or #given.choices == 0 then
    fail("invalid_argument", ("np.select: %d choices for %d conditions"):format(#given.choices, #given.conditions))
  end
  local result = given.default
  for i = #given.choices, 1, -1 do result = np.where(given.conditions[i], given.choices[i], result) end
  return result
end

local delete_signature = signature("np.delete", { { "a", "any" }, { "places", "any" }, { "axis", "integer?" } })
--- What is left without the slices at these places along `axis`, such as the rows that a fold holds back,
--- `np.delete(x, fold, 0)`; without an axis of the flattened array. Negative places count from the end. An int8
--- array, as comparisons give it, is a mask: `np.delete(x, x:lt(0))`.
function np.delete(...)
  local given = delete_signature:parse(...)
  local a = as_array(given.a, "np.delete")
  if not given.axis then a = a:ravel() end
  local axis = axis_of(a, given.axis or 0, "np.delete")
  local size = a.shape[axis]
  if is_array(given.places) and given.places.dtype == "int8" then
    local mask = given.places:ravel()
    if #mask ~= size then
      fail("shape_mismatch", ("np.delete: a mask of %d for an axis of size %d; int8 is a mask, :astype(flow.int64) "
        .. "makes places"):format(#mask, size))
    end
    return np.compress(mask:eq(0), a, axis)
  end
  local places = ndarray.places(given.places, size, "np.delete"):ravel()
  local wrong = np.flatnonzero(places:lt(0) + places:ge(size))
  if #wrong > 0 then
    local index = as_array(given.places, "np.delete"):ravel()[wrong[0]]
    fail("out_of_range", ("np.delete: index %g is out of range for axis %d of size %d"):format(index, axis, size))
  end
  if #places == 1 then
    local place = places[0]
    return np.concat({ part(a, axis, 0, place), part(a, axis, place + 1, size) }, axis)
  end
  local stays = np.ones({ size }, "int8")
  core.write_rows(stays, cast(places, "int64"), np.zeros({ #places }, "int8"))
  return np.compress(stays, a, axis)
end

-- ---- arrays as indices --------------------------------------------------------------------------------------------

-- The places that a mask names among those of its axes, which are the axes of `a` from `axis` on, and how many there
-- are in all. A mask is int8, as comparisons give it.
local function places_of_mask(mask, a, axis)
  local fits = mask.rank > 0 and axis + mask.rank <= a.rank
  for i = 0, fits and mask.rank - 1 or -1 do fits = fits and mask.shape[i] == a.shape[axis + i] end
  if not fits then
    fail("shape_mismatch", ("index: a mask %s from axis %d on of an array %s; int8 is a mask, :astype(flow.int64) "
      .. "makes places"):format(tostring(mask.shape), axis, tostring(a.shape)))
  end
  if mask.nbytes > 0 and (mask:min() < 0 or mask:max() > 1) then
    fail("invalid_argument", ("index: int8 is a mask of 0 and 1, and has numbers from %d to %d; :ne(0) makes a mask, "
      .. ":astype(flow.int64) places"):format(mask:min(), mask:max()))
  end
  return np.flatnonzero(mask), mask.shape:count()
end

-- The places that a number or an array of integers names along an axis, from 0 on, and how many there are.
local function places_along(index, a, axis)
  if axis >= a.rank then
    fail("invalid_argument", ("index: an ndarray of shape %s takes at most %d indices"):format(tostring(a.shape),
      a.rank))
  end
  if type(index) == "number" and index % 1 == 0 then
    index = core.array(index, "int64", {})
  elseif not is_array(index) then
    fail("invalid_argument", "index: beside an array each index is an array or a whole number, got "
      .. arguments.describe(index) .. "; a slice stands alone")
  elseif dtypes.floating[index.dtype] then
    fail("dtype_mismatch", ("index: %s is no index; integers are places, int8 is a mask as a:gt(0) gives it, and "
      .. ":astype(flow.int64) makes places"):format(arguments.describe(index)))
  end
  local size = a.shape[axis]
  local least, most = 0, -1
  if index.nbytes > 0 then least, most = index:min(), index:max() end
  if least < -size or most >= size then
    fail("out_of_range", ("index: %d is out of range for axis %d of size %d"):format(most >= size and most or least,
      axis, size))
  end
  index = cast(index, "int64")
  return least < 0 and np.where(index:lt(0), index + size, index) or index, size
end

-- What `count` indices name of `a`: `a` as rows, one for each place of the axes that they take, which of these, and
-- the shape of the whole.
local function named(a, indices, count)
  local axis, rows, places = 0, 1, nil
  for i = 1, count do
    local index = indices[i]
    local is_mask = is_array(index) and index.dtype == "int8"
    local some, size = (is_mask and places_of_mask or places_along)(index, a, axis)
    axis, rows = axis + (is_mask and index.rank or 1), rows * size
    places = places and places * size + some or some
  end
  local shape, whole = { rows }, places.shape:table()
  for i = axis, a.rank - 1 do
    shape[#shape + 1], whole[#whole + 1] = a.shape[i], a.shape[i]
  end
  return a:reshape(shape), places, whole
end

--- What a:at and a[i] do where an index is an array.
function metatable.pick(a, ...)
  local rows, places, shape = named(a, { ... }, select("#", ...))
  local result = evaluate("gather", { rows, places }, { axis = 0 }, "index")
  return #shape == 0 and result:item() or result:reshape(shape)
end

local assign_slice = metatable.assign
--- What a:set and a[i] = value do that C leaves to Lua: slices, or where an index is an array this.
function metatable.assign(a, ...)
  local given, count, has_array = { ... }, select("#", ...) - 1, false
  for i = 1, count do has_array = has_array or is_array(given[i]) end
  if not has_array or not is_array(a) then return assign_slice(a, ...) end
  local rows, places, shape = named(a, given, count)
  core.write_rows(rows, places, ndarray.fitted(given[count + 1], a.dtype, shape, "a:set"))
end

local add_at_signature = signature("np.add_at", { { "a", "ndarray" }, { "places", "any" }, { "values", "any" } })
--- Adds values to elements or rows of `a`, in its place, and where one is named several times all that are for it:
--- NumPy's np.add.at, what a finite element or a particle gives its nodes. a[places] = a[places] + values adds only
--- the last.
---   np.add_at(forces, nodes, shares)  -- nodes (n), shares (n, 3): forces[nodes[i]] + shares[i] for each i
---   np.add_at(stiffness, { rows, columns }, entries)
--- @param a ndarray               of any dtype; integers wrap around
--- @param places ndarray|table    indices along the first axis, negative ones from the end, or a list of as many arrays
---   as there are axes to name
--- @param values ndarray|table|number  of the places' shape and the axes that are not named, or broadcast to it
--- @return nil
--- @error an index that is out of range; values that do not fit
function np.add_at(...)
  local given = add_at_signature:parse(...)
  local a, list = given.a, given.places
  local is_list = type(list) == "table" and (is_array(list[1]) or type(list[1]) == "table")
  list = is_list and { unpack(list) } or { list }
  for i, places in ipairs(list) do
    if type(places) == "table" then list[i] = errors.blaming("np.add_at", core.array, places, "int64") end
  end
  local rows, places, shape = named(a, list, #list)
  local sizes = rows.shape:table()
  sizes[1] = places.shape:count()
  local values = errors.blaming("np.add_at", ndarray.fitted, given.values, a.dtype, shape, "np.add_at"):reshape(sizes)
  local sums = evaluate("unsorted_segment_sum", { values, places:ravel() }, { num_segments = #rows }, "np.add_at")
  rows:set("...", rows + sums)
end
