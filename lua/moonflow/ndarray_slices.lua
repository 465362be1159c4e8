-- Slices of ndarrays: a:slice, a:set and a[i] = value with places, and a:rows.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local slices = require "moonflow.slices"

local methods, metatable = core.ndarray_methods, core.ndarray_metatable
local fail = errors.raise

local WHOLE = {}  -- the entry of an axis that is kept as it is

-- What there is in place of setting a property.
local instead_of = { shape = "a:reshape(sizes) is the same memory in another shape",
                     dtype = "a:astype(dtype) is a copy in another dtype" }

return function(ndarray)
  local own, evaluate, cast, is_array = ndarray.own, ndarray.evaluate, ndarray.cast, ndarray.is_array
  local core_rows = methods.rows

  --- Part of an array, as a copy: NumPy's text for all axes, `a:slice("0:10, ::2, -1")`, or for each a number or a
  --- table { start, stop, step }, `a:slice({ low, high }, {}, 3)`. Half open, negative from the end, "..." for axes
  --- between. A number drops its axis; numbers for all axes give the element. A view of whole rows is
  --- `a:rows(first, count)`.
  --- @return any
  function methods.slice(a, ...)
    own(a, "slice")
    local begin, steps, sizes, kept = slices.picked(a.shape, ...)
    local stop, reversed, plain, of_rows, shape = {}, {}, true, a.rank > 0, a.shape
    for axis, size in ipairs(sizes) do
      -- Backwards is forwards and then reversed.
      if steps[axis] < 0 and size > 0 then
        begin[axis], steps[axis] = begin[axis] + (size - 1) * steps[axis], -steps[axis]
        reversed[#reversed + 1] = axis - 1
      end
      stop[axis] = begin[axis] + (size - 1) * steps[axis] + 1
      plain = plain and steps[axis] == 1
      of_rows = of_rows and steps[axis] == 1 and (axis == 1 or size == shape[axis - 1])
    end
    for _, size in ipairs(sizes) do
      if size == 0 then return core.empty(a.dtype, kept) end
    end
    local result
    if a.rank == 0 then
      result = a:copy()
    elseif of_rows and #reversed == 0 then
      result = core_rows(a, begin[1], sizes[1]):copy()
    elseif plain then
      result = evaluate("slice", { a }, { begin = begin, size = sizes })
    else
      result = evaluate("strided_slice", { a }, { start = begin, stop = stop, step = steps })
    end
    if #reversed > 0 then result = evaluate("reverse", { result }, { axis = reversed }) end
    if #kept == 0 and a.rank > 0 then return result:item() end
    return result:reshape(kept)
  end

  --- The axis counted from the front.
  function ndarray.axis_of(a, axis, called)
    if type(axis) ~= "number" or axis % 1 ~= 0 then
      fail("invalid_argument", called .. ": an axis is a whole number, got " .. arguments.describe(axis))
    end
    local counted = axis < 0 and axis + a.rank or axis
    if counted < 0 or counted >= a.rank then
      fail("out_of_range", ("%s: axis %d of an array of rank %d"):format(called, axis, a.rank))
    end
    return counted
  end

  --- The array with these axes as one, or with all where the list is empty: the array, that axis, and the old shape
  --- with 1 in their places.
  function ndarray.with_one_axis(a, axes, called)
    local is_taken, perm, sizes, ones = {}, {}, {}, a.shape:table()
    for i, axis in ipairs(axes) do
      axis = ndarray.axis_of(a, axis, called)
      if is_taken[axis] then fail("invalid_argument", ("%s: axis %d is named twice"):format(called, axis)) end
      is_taken[axis], ones[axis + 1], axes[i] = true, 1, axis
    end
    if #axes == 1 then return a, axes[1], ones end
    if #axes == 0 then
      for i = 1, a.rank do ones[i] = 1 end
      return a:ravel(), 0, ones
    end
    for axis = 0, a.rank - 1 do
      if not is_taken[axis] then perm[#perm + 1], sizes[#sizes + 1] = axis, a.shape[axis] end
    end
    local last = 1
    for _, axis in ipairs(axes) do perm[#perm + 1], last = axis, last * a.shape[axis] end
    sizes[#sizes + 1] = last
    return a:transpose(perm):reshape(sizes), #sizes - 1, ones
  end

  --- A slice along one axis, { start, stop, step }, with the whole of the others.
  function ndarray.cut(a, axis, entry)
    local entries = {}
    for i = 1, a.rank do entries[i] = i == axis + 1 and entry or WHOLE end
    return a:slice(unpack(entries))
  end

  --- The same of neighbours, from `first` up to `last`, to be read only: whole rows share the memory of the array.
  function ndarray.part(a, axis, first, last)
    if axis == 0 and first < last then return core_rows(a, first, last - first) end
    return ndarray.cut(a, axis, { first, last })
  end

  --- A value for a place, as an array of this dtype. What would be lost is refused, as it is of a single number.
  function ndarray.value_for(value, dtype, called)
    if type(value) == "number" then return core.array(value, dtype, {}) end
    if ndarray.holds_arrays(value) then value = ndarray.as_array(value, called) end
    if type(value) == "table" and not getmetatable(value) then return core.array(value, dtype) end
    if not is_array(value) then
      fail("invalid_argument", called .. ": the value must be a number, a table or an ndarray, got "
        .. arguments.describe(value))
    end
    if dtypes.floating[dtype] or value.dtype == dtype then return cast(value, dtype) end
    if dtypes.floating[value.dtype] then
      fail("dtype_mismatch", ("%s: the place is %s, the value is %s; :astype says that it is to be cut"):format(
        called, dtype, value.dtype))
    end
    if value.nbytes > 0 and (value:min() < dtypes.least[dtype] or value:max() > dtypes.most[dtype]) then
      fail("out_of_range", ("%s: the value has numbers from %d to %d, and the place is %s"):format(
        called, value:min(), value:max(), dtype))
    end
    return cast(value, dtype)
  end

  -- Without axes of size 1 at the front, down to this rank.
  local function without_leading_ones(a, rank)
    local sizes = a.shape:table()
    while #sizes > rank and sizes[1] == 1 do table.remove(sizes, 1) end
    return #sizes < a.rank and a:reshape(sizes) or a
  end

  --- The value for a place of this shape, a list, and dtype, repeated into it by NumPy's rules. As there, axes of size
  --- 1 that the place has not may stand before its own: the (1, n) that a job gives of a batch of one goes into a row.
  function ndarray.fitted(value, dtype, shape, called)
    local source = without_leading_ones(ndarray.value_for(value, dtype, called), #shape)
    local from, missing = source.shape, #shape - source.rank
    local is_same, fits = missing == 0, missing >= 0
    for axis = 1, source.rank do
      local size, wanted = from[axis - 1], shape[axis + missing]
      is_same, fits = is_same and size == wanted, fits and (size == wanted or size == 1)
    end
    if is_same then return source end
    if not fits then
      fail("shape_mismatch", ("%s: the place is %s (%s), the value is %s %s"):format(called, dtype,
        table.concat(shape, ", "), source.dtype, tostring(from)))
    end
    return (evaluate("broadcast_to", { source }, { shape = shape }))
  end

  --- What a:set and a[i] = value do with slices, tables, and arrays that are not as their place is.
  function metatable.assign(a, ...)
    own(a, "set")
    local given, count = { ... }, select("#", ...)
    local place, row = given[1], given[2]
    if count == 2 and type(place) == "number" and type(row) == "table" and not getmetatable(row)
        and not ndarray.holds_arrays(row) then
      a[place] = core.array(row, a.dtype)  -- which comes back here where it has to be repeated
      return
    end
    local starts, steps, sizes, kept = slices.picked(a.shape, unpack(given, 1, count - 1))
    core.write_places(a, starts, steps, sizes, ndarray.fitted(given[count], a.dtype, kept, "a:set"))
  end

  -- A text is no place: that of a slice is for a:set, and fields an array has none of its own.
  local set_element = metatable.__newindex
  function metatable.__newindex(a, place, value)
    if type(place) == "string" then
      local is_slice = place:find("^[%d%s:,.+-]+$")
      fail("invalid_argument", ("an ndarray has no field '%s' that can be set; %s"):format(place, instead_of[place]
        or is_slice and ('a:set("%s", value) sets such a part'):format(place)
        or "a[i] = value and a:set(i, j, value) set elements, from 0 on"))
    end
    return set_element(a, place, value)
  end

  --- `a:rows(first, count)`: these rows, sharing memory. `for i, row in a:rows() do`: every row, i from 0.
  --- @overload fun(a: ndarray): any
  function methods.rows(a, first, count)
    if first ~= nil then return core_rows(own(a, "rows"), first, count) end
    local i, n = -1, #own(a, "rows")
    return function()
      i = i + 1
      if i < n then return i, a[i] end
    end
  end
end
