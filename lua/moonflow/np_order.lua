--- The functions of flow.np that sort, count, find, cut and repeat. All in the array's own dtype, but for what counts
-- and for places, which are int64.

local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"

local evaluate, cast, as_array = ndarray.evaluate, ndarray.cast, ndarray.as_array
local signature, flat_list, fail = arguments.signature, arguments.flat_list, errors.raise

-- The axis counted from the front.
local function axis_of(a, axis, called)
  local counted = axis < 0 and axis + a.rank or axis
  if counted < 0 or counted >= a.rank then
    fail("out_of_range", ("%s: axis %d of an array of rank %d"):format(called, axis, a.rank))
  end
  return counted
end

-- A slice along one axis: { start, stop, step }, whatever the others are.
local function cut(a, axis, entry)
  local entries = {}
  for i = 1, a.rank do entries[i] = i == axis + 1 and entry or {} end
  return a:slice(unpack(entries))
end

-- Applies what works along the last axis along another one.
local function along(a, axis, apply)
  if axis == a.rank - 1 then return apply(a) end
  local swapped = {}
  for i = 1, a.rank do swapped[i] = i - 1 end
  swapped[axis + 1], swapped[a.rank] = a.rank - 1, axis
  return apply(a:transpose(swapped)):transpose(swapped)
end

-- An array and an axis, which without a word is the last.
local function along_signature(called)
  return signature(called, { { "a", "any" }, { "axis", "integer", -1 } })
end

-- The two, parsed.
local function parse(signed, ...)
  local given = signed:parse(...)
  local a = as_array(given.a, signed.where)
  return a, axis_of(a, given.axis, signed.where)
end

return function(np)
  -- ---- order --------------------------------------------------------------------------------------------------------

  --- np.sort(a, axis): the values in their order, NaN last; np.argsort: their places, equal ones in theirs.
  for _, op in ipairs({ "sort", "argsort" }) do
    local called = "np." .. op
    local signed = along_signature(called)
    np[op] = function(...)
      local a, axis = parse(signed, ...)
      return along(a, axis, function(rows) return (evaluate(op, { rows }, {}, called)) end)
    end
  end

  local percentile_signature = signature("np.percentile",
    { { "a", "any" }, { "q", "number" }, { "axis", "integer?" }, { "keepdims", "boolean", false } })
  --- What `q` percent of the values are not above, between two of them by their distances. Without an axis a number.
  function np.percentile(...)
    local given = percentile_signature:parse(...)
    local a, q = ndarray.floating(as_array(given.a, "np.percentile")), given.q
    if not (q >= 0 and q <= 100) then
      fail("invalid_argument", ("np.percentile: q is from 0 to 100, got %g"):format(q))
    end
    local axis = given.axis and axis_of(a, given.axis, "np.percentile") or 0
    if not given.axis then a = a:ravel() end
    local count = a.shape[axis]
    if count == 0 then fail("invalid_argument", "np.percentile of no values") end
    local sorted, place = np.sort(a, axis), (count - 1) * q / 100
    local function at(i) return cut(sorted, axis, { i, i + 1 }) end
    local below = at(math.floor(place))
    local result = below + (at(math.ceil(place)) - below) * (place % 1)
    result = np.where(np.isnan(at(count - 1)), np.nan, place % 1 == 0 and below or result)
    if not given.axis and not given.keepdims then return result:item() end
    return given.keepdims and result or np.squeeze(result, axis)
  end

  local median_signature = signature("np.median",
    { { "a", "any" }, { "axis", "integer?" }, { "keepdims", "boolean", false } })
  --- The value in the middle of the others, or between the two that are. Without an axis a number.
  function np.median(...)
    local given = median_signature:parse(...)
    return np.percentile(given.a, 50, { axis = given.axis, keepdims = given.keepdims })
  end

  -- ---- places -------------------------------------------------------------------------------------------------------

  --- The places in the flattened array of what is not 0, in order.
  function np.flatnonzero(a)
    local holds = as_array(a, "np.flatnonzero"):ravel():ne(0)
    -- Of what is 0 the place is behind all others.
    local places = np.sort(np.where(holds, np.arange(#holds), #holds))
    return places:slice({ 0, holds:sum() })
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
    return a:take(np.flatnonzero(condition), axis)
  end

  local unique_signature = signature("np.unique",
    { { "a", "any" }, { "return_inverse", "boolean", false }, { "return_counts", "boolean", false } })
  --- The values that occur, each once, sorted. On demand also the place among them of each element of `a`, flattened,
  --- and how often each occurs: `local classes, counts = np.unique(labels, { return_counts = true })`.
  function np.unique(...)
    local given = unique_signature:parse(...)
    local a = as_array(given.a, "np.unique"):ravel()
    local sorted, count = np.sort(a), #a
    local one, other = sorted:slice({ 1, count }), sorted:slice({ 0, math.max(count - 1, 0) })
    -- A NaN, which is not even equal to itself, counts as equal to the NaN before it.
    local differs = one:ne(other) * (1 - np.isnan(one) * np.isnan(other))
    local is_first = np.concat({ np.ones({ math.min(count, 1) }, "int8"), differs })
    local firsts = np.flatnonzero(is_first)
    local results = { sorted:take(firsts, 0) }
    if given.return_inverse then
      results[#results + 1] = (np.cumsum(is_first) - 1):take(np.argsort(np.argsort(a)), 0)
    end
    if given.return_counts then results[#results + 1] = np.diff(np.concat({ firsts, np.array({ count }, "int64") })) end
    return unpack(results)
  end

  -- ---- sums and counts ----------------------------------------------------------------------------------------------

  local cumsum_signature = signature("np.cumsum", { { "a", "any" }, { "axis", "integer?" } })
  --- The sums of the elements up to each one along `axis`, or of the flattened array; integers as int64.
  function np.cumsum(...)
    local given = cumsum_signature:parse(...)
    local a = as_array(given.a, "np.cumsum")
    if not given.axis then a = a:ravel() end
    local axis = axis_of(a, given.axis or 0, "np.cumsum")
    if not arguments.floating[a.dtype] then a = cast(a, "int64") end
    local sums, size, reach = a:copy(), a.shape[axis], 1
    local before = {}
    for i = 1, 2 * a.rank do before[i] = 0 end
    -- Each step adds what lies as far back as the sums reach, so they reach twice as far after it.
    while reach < size do
      before[2 * axis + 1] = reach
      sums = sums + evaluate("pad", { cut(sums, axis, { 0, size - reach }) }, { paddings = before }, "np.cumsum")
      reach = 2 * reach
    end
    return sums
  end

  local diff_signature = along_signature("np.diff")
  --- Each element less the one before it along `axis`.
  function np.diff(...)
    local a, axis = parse(diff_signature, ...)
    local size = a.shape[axis]
    return cut(a, axis, { 1, size }) - cut(a, axis, { 0, math.max(size - 1, 0) })
  end

  local bincount_signature = signature("np.bincount",
    { { "a", "any" }, { "weights", "any?" }, { "minlength", "integer", 0 } })
  --- How often each of the numbers 0, 1, ... occurs among the integers `a`, or the sums of their weights.
  function np.bincount(...)
    local given = bincount_signature:parse(...)
    local a = as_array(given.a, "np.bincount"):ravel()
    if arguments.floating[a.dtype] then
      fail("dtype_mismatch", "np.bincount wants integers, got " .. a.dtype .. "; cast them first, with :astype")
    end
    if #a > 0 and a:min() < 0 then
      fail("out_of_range", ("np.bincount counts from 0, and got %d"):format(a:min()))
    end
    local weights = given.weights and as_array(given.weights, "np.bincount"):ravel() or np.ones({ #a }, "int64")
    local bins = math.max(#a > 0 and a:max() + 1 or 0, given.minlength)
    return (evaluate("unsorted_segment_sum", { weights, cast(a, "int64") }, { num_segments = bins }, "np.bincount"))
  end

  local count_signature = signature("np.count_nonzero", { { "a", "any" }, { "axis", "list?" } })
  --- How many elements are not 0.
  function np.count_nonzero(...)
    local given = count_signature:parse(...)
    return as_array(given.a, "np.count_nonzero"):ne(0):sum({ axis = given.axis })
  end

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

  --- The product of each element of one array with each of another, both flattened: (m, n).
  function np.outer(a, b)
    return as_array(a, "np.outer"):reshape({ -1, 1 }) * as_array(b, "np.outer"):ravel()
  end
end
