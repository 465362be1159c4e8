--- The functions of flow.np that cut, join and repeat arrays or lay them out anew, in their own dtype.

local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"

local evaluate, as_array = ndarray.evaluate, ndarray.as_array
local axis_of, cut = ndarray.axis_of, ndarray.cut
local signature, flat_list, fail = arguments.signature, arguments.flat_list, errors.raise

return function(np)
  -- ---- cutting and repeating ----------------------------------------------------------------------------------------

  local split_signature = signature("np.split",
    { { "a", "any" }, { "parts", "list" }, { "axis", "integer", 0 } })
  --- A list of parts along `axis`: so many equal ones, or cut before each of a list of places.
  function np.split(...)
    local given = split_signature:parse(...)
    local a = as_array(given.a, "np.split")
    local axis = axis_of(a, given.axis, "np.split")
    local size, places = a.shape[axis], flat_list(given.parts)
    if type(given.parts) == "number" then
      local count = given.parts
      if count < 1 or count % 1 ~= 0 or size % count ~= 0 then
        fail("invalid_argument", ("np.split: axis %d of size %d does not divide into %g equal parts; a list gives the "
          .. "places to cut at"):format(axis, size, count))
      end
      places = {}
      for i = 1, count - 1 do places[i] = i * size / count end
    end
    local parts = {}
    for i = 0, #places do parts[i + 1] = cut(a, axis, { places[i] or 0, places[i + 1] or size }) end
    return parts
  end

  local tile_signature = signature("np.tile", { { "a", "any" }, { "reps", "list" } })
  --- The array laid side by side, so often along each axis.
  function np.tile(...)
    local given = tile_signature:parse(...)
    return (evaluate("tile", { as_array(given.a, "np.tile") }, { reps = flat_list(given.reps) }, "np.tile"))
  end

  local flip_signature = signature("np.flip", { { "a", "any" }, { "axis", "list?" } })
  --- The array running backwards along these axes, or all.
  function np.flip(...)
    local given = flip_signature:parse(...)
    local a = as_array(given.a, "np.flip")
    local axes = given.axis and flat_list(given.axis) or {}
    for axis = 1, given.axis and 0 or a.rank do axes[axis] = axis - 1 end
    return (evaluate("reverse", { a }, { axis = axes }, "np.flip"))
  end

  local roll_signature = signature("np.roll",
    { { "a", "any" }, { "shift", "integer" }, { "axis", "integer?" } })
  --- The elements moved on by `shift` places along `axis`, those at the end to the beginning; without an axis as if
  --- there were one.
  function np.roll(...)
    local given = roll_signature:parse(...)
    local a = as_array(given.a, "np.roll")
    local flat = given.axis and a or a:ravel()
    local axis = axis_of(flat, given.axis or 0, "np.roll")
    local size = flat.shape[axis]
    local first = size == 0 and 0 or (-given.shift) % size
    return np.concat({ cut(flat, axis, { first, size }), cut(flat, axis, { 0, first }) }, axis):reshape(a.shape:table())
  end

  local pad_signature = signature("np.pad",
    { { "a", "any" }, { "pad_width", "list" }, { "constant_values", "number", 0 } })
  --- The array within a border of one value: so wide on all sides, { before, after } along each axis, or a list of such
  --- pairs, one for each axis.
  function np.pad(...)
    local given = pad_signature:parse(...)
    local a, widths = as_array(given.a, "np.pad"), flat_list(given.pad_width)
    if #widths == 1 then widths = { widths[1], widths[1] } end
    for i = 3, #widths == 2 and 2 * a.rank or 0 do widths[i] = widths[i - 2] end
    if a.rank == 0 then return a:copy() end
    return (evaluate("pad", { a }, { paddings = widths, constant_value = given.constant_values }, "np.pad"))
  end
end
