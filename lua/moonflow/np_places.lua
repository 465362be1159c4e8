--- The functions of flow.np that give places and take them: where something is not 0, and what is picked, written or
-- left out there.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"

local evaluate, cast, as_array, axis_of = ndarray.evaluate, ndarray.cast, ndarray.as_array, ndarray.axis_of
local signature, fail = arguments.signature, errors.raise

-- Writes the places of what is 1 and not 0. One more is written than there are.
local function write_places(holds, count, places)
  local found = 0
  for i = 0, count - 1 do
    places[found] = i
    found = found + holds[i]
  end
end

return function(np)
  --- The places in the flattened array of what is not 0, in order.
  function np.flatnonzero(a)
    local holds = as_array(a, "np.flatnonzero"):ravel():ne(0)
    local count = holds:sum()
    local places = core.empty("int64", { count + 1 })
    write_places(holds:ptr(), #holds, places:ptr())
    return places:rows(0, count)
  end

  --- The places of what is not 0, an array for each axis: `local rows, columns = np.nonzero(a:gt(0))`.
  function np.nonzero(a)
    a = as_array(a, "np.nonzero")
    local rest, found = np.flatnonzero(a), {}
    for axis = a.rank, 1, -1 do
      local size = a.shape[axis - 1]
      found[axis] = rest % math.max(size, 1)
      rest = cast((rest - found[axis]) / math.max(size, 1), "int64")
    end
    return unpack(found)
  end

  --- The places of what is not 0, one in each row: (count, rank).
  function np.argwhere(a)
    a = as_array(a, "np.argwhere")
    if a.rank == 0 then return np.zeros({ a:ne(0):sum(), 0 }, "int64") end
    return np.stack({ np.nonzero(a) }, 1)
  end

  local compress_signature = signature("np.compress",
    { { "condition", "any" }, { "a", "any" }, { "axis", "integer?" } })
  --- The slices along `axis` where `condition` is not 0, such as the rows of a class, `np.compress(y:eq(3), x, 0)`;
  --- without an axis the elements.
  function np.compress(...)
    local given = compress_signature:parse(...)
    local condition, a = as_array(given.condition, "np.compress"), as_array(given.a, "np.compress")
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

  -- An array in the dtype of its place, where nothing would be lost but digits of a fraction.
  local function fitting(values, dtype, called)
    if arguments.floating[dtype] or values.dtype == dtype then return cast(values, dtype) end
    if arguments.floating[values.dtype] then
      fail("dtype_mismatch", ("%s: the place is %s, the values are %s; :astype says that they are to be cut"):format(
        called, dtype, values.dtype))
    end
    if values.nbytes > 0 and (values:min() < ndarray.least[dtype] or values:max() > ndarray.most[dtype]) then
      fail("out_of_range", ("%s: the values are from %d to %d, and the place is %s"):format(called, values:min(),
        values:max(), dtype))
    end
    return cast(values, dtype)
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
    if ndarray.is_array(values) then
      values = fitting(values, a.dtype, "np.putmask")
    else
      as_array(values, "np.putmask")
      values = core.array(values, a.dtype, type(values) == "number" and {} or nil)
    end
    values = evaluate("broadcast_to", { values }, { shape = a.shape:table() }, "np.putmask")
    a:set("...", np.where(mask, values, a))
  end

  local delete_signature = signature("np.delete", { { "a", "any" }, { "places", "any" }, { "axis", "integer?" } })
  --- What is left without the slices at these places along `axis`, such as the rows that a fold holds back,
  --- `np.delete(x, fold, 0)`; without an axis of the flattened array. Negative places count from the end.
  function np.delete(...)
    local given = delete_signature:parse(...)
    local a = as_array(given.a, "np.delete")
    if not given.axis then a = a:ravel() end
    local axis = axis_of(a, given.axis or 0, "np.delete")
    local size = a.shape[axis]
    local places = ndarray.places(given.places, size, "np.delete"):ravel()
    local wrong = np.flatnonzero(places:lt(0) + places:ge(size))
    if #wrong > 0 then
      local index = as_array(given.places, "np.delete"):ravel()[wrong[0]]
      fail("out_of_range", ("np.delete: index %g is out of range for axis %d of size %d"):format(index, axis, size))
    end
    return np.compress(1 - np.isin(np.arange(size), places), a, axis)
  end
end
