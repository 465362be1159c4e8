--- The functions of flow.np that sort, count and find. All in the array's own dtype, but for what counts and for
-- places, which are int64.

local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"

local evaluate, cast, as_array = ndarray.evaluate, ndarray.cast, ndarray.as_array
local axis_of, cut = ndarray.axis_of, ndarray.cut
local signature, flat_list, fail = arguments.signature, arguments.flat_list, errors.raise

-- Applies what works along the last axis along another one.
local function along(a, axis, apply)
  if axis == a.rank - 1 then return apply(a) end
  local swapped = {}
  for i = 1, a.rank do swapped[i] = i - 1 end
  swapped[axis + 1], swapped[a.rank] = a.rank - 1, axis
  return apply(a:transpose(swapped)):transpose(swapped)
end

return function(np)
  -- ---- order --------------------------------------------------------------------------------------------------------

  --- np.sort(a, axis): the values in their order, NaN last; np.argsort: their places, equal ones in theirs. With
  --- `descending = true`, which NumPy has not, the greatest first, NaN before them, and equal ones in their order too.
  for _, op in ipairs({ "sort", "argsort" }) do
    local called = "np." .. op
    local signed = signature(called, { { "a", "any" }, { "axis", "integer", -1 }, { "descending", "boolean", false } })
    np[op] = function(...)
      local given = signed:parse(...)
      local a = as_array(given.a, called)
      local attrs = { direction = given.descending and "DESCENDING" or "ASCENDING" }
      return along(a, axis_of(a, given.axis, called), function(rows)
        return (evaluate(op, { rows }, attrs, called))
      end)
    end
  end

  local along_signature = signature("np.take_along_axis",
    { { "a", "any" }, { "indices", "any" }, { "axis", "integer" } })
  --- Elements at places along an axis, as np.argsort gives them: out[i, j] = a[i, indices[i, j]] for axis 1. The other
  --- axes of both agree.
  function np.take_along_axis(...)
    local given = along_signature:parse(...)
    local a = as_array(given.a, "np.take_along_axis")
    local axis = axis_of(a, given.axis, "np.take_along_axis")
    local places = ndarray.places(given.indices, a.shape[axis], "np.take_along_axis")
    return (evaluate("dim_gather", { a, places }, { dim = axis }, "np.take_along_axis"))
  end

  local search_signature = signature("np.searchsorted",
    { { "a", "any" }, { "v", "any" }, { "side", "string", "left" } })
  --- Where in the ascending `a` each value of `v` would stand: before those that are equal to it, or with
  --- `side = "right"` behind them. Of a number a number.
  function np.searchsorted(...)
    local given = search_signature:parse(...)
    local a, v = as_array(given.a, "np.searchsorted"), as_array(given.v, "np.searchsorted")
    if a.rank ~= 1 then
      fail("shape_mismatch", "np.searchsorted looks in an array of one axis, got " .. tostring(a.shape))
    end
    if given.side ~= "left" and given.side ~= "right" then
      fail("invalid_argument", "np.searchsorted: the side is \"left\" or \"right\", got '" .. given.side .. "'"
        .. arguments.suggestion(given.side, { "left", "right" }))
    end
    if type(given.v) == "number" then a, v = ndarray.operands(a, given.v, "np.searchsorted") end
    -- A NaN is above all numbers, as np.sort has it.
    local function is_before(one, other)
      return np.logical_or(one:lt(other), np.isnan(other) * (1 - np.isnan(one)))
    end
    local count, step = #a, 1
    local places = np.zeros(v.shape:table(), "int64")
    while 2 * step <= count do step = 2 * step end
    -- As far as all before it is before the value, in steps of halving length.
    while count > 0 and step >= 1 do
      local further = places + step
      local last = a:take(np.minimum(further, count) - 1)
      local goes_on = given.side == "left" and is_before(last, v) or 1 - is_before(v, last)
      places = np.where(further:le(count) * goes_on, further, places)
      step = step / 2
    end
    return type(given.v) == "number" and places:item() or places
  end

  local interp_signature = signature("np.interp",
    { { "x", "any" }, { "xp", "any" }, { "fp", "any" }, { "left", "number?" }, { "right", "number?" } })
  --- At `x` the value of the straight pieces between the points (xp[i], fp[i]), with xp ascending. Before the first one
  --- `left`, behind the last one `right`, which without a word are the values there. Computed in float64; of a number a
  --- number.
  --- @return any
  function np.interp(...)
    local given = interp_signature:parse(...)
    local xp, fp = as_array(given.xp, "np.interp"):astype("float64"), as_array(given.fp, "np.interp"):astype("float64")
    local is_number = type(given.x) == "number"
    local x = is_number and np.array(given.x, "float64") or ndarray.floating(as_array(given.x, "np.interp"))
    local dtype, count = x.dtype, xp.rank == 1 and #xp or 0
    x = x:astype("float64")
    if count == 0 or xp.shape ~= fp.shape then
      fail("shape_mismatch", ("np.interp: xp is %s and fp is %s, wanted one axis of the same size"):format(
        tostring(xp.shape), tostring(fp.shape)))
    end
    if not np.diff(xp):ge(0):all() then fail("invalid_argument", "np.interp: xp must ascend") end
    local place = np.maximum(np.searchsorted(xp, x, "right") - 1, 0)
    local behind = np.minimum(place + 1, count - 1)
    local x0, f0 = xp:take(place), fp:take(place)
    local share = (x - x0) / np.where(behind:eq(place), 1, xp:take(behind) - x0)
    -- At a point its own value, also where the next one is infinite.
    local result = np.where(x:eq(x0), f0, f0 + share * (fp:take(behind) - f0))
    result = np.where(x:lt(xp[0]), given.left or fp[0], result)
    result = np.where(x:gt(xp[count - 1]), given.right or fp[count - 1], result)
    result = np.where(np.isnan(x), np.nan, result)
    return is_number and result:item() or cast(result, dtype)
  end

  -- The values that this share of the others is not above. Of a list of shares, one slice for each of them.
  local function quantiles(given, whole, called)
    local a, q = ndarray.floating(as_array(given.a, called)), given.q
    local axis = given.axis and axis_of(a, given.axis, called) or 0
    if not given.axis and given.keepdims then
      local ones = {}
      for i = 1, a.rank do ones[i] = 1 end
      local flat = quantiles({ a = a, q = q }, whole, called)
      return type(flat) == "number" and np.array(flat, a.dtype):reshape(ones)
        or flat:reshape({ flat.shape[0], unpack(ones) })
    end
    if not given.axis then a = a:ravel() end
    local count = a.shape[axis]
    if count == 0 then fail("invalid_argument", called .. " of no values") end
    local sorted = np.sort(a, axis)
    local function at(i) return cut(sorted, axis, { i, i + 1 }) end
    local is_unknown = np.isnan(at(count - 1))
    local function one(share)
      if not (share >= 0 and share <= whole) then
        fail("invalid_argument", ("%s: q is from 0 to %d, got %g"):format(called, whole, share))
      end
      local place = (count - 1) * share / whole
      local below = at(math.floor(place))
      local result = place % 1 == 0 and below or below + (at(math.ceil(place)) - below) * (place % 1)
      result = np.where(is_unknown, np.nan, result)
      return given.keepdims and result or np.squeeze(result, axis)
    end
    if type(q) == "number" then
      local result = one(q)
      return given.axis and result or result:item()
    end
    local results = {}
    if not ndarray.is_array(q) then q = np.array(q, "float64") end
    for i, share in ipairs(q:ravel():totable()) do results[i] = one(share) end
    return np.stack(results)
  end

  local percentile_signature = signature("np.percentile",
    { { "a", "any" }, { "q", "any" }, { "axis", "integer?" }, { "keepdims", "boolean", false } })
  --- What `q` percent of the values are not above, between two of them by their distances. Without an axis a number.
  --- Of a list of percentages an array, with an axis for them before the others.
  --- @return any
  function np.percentile(...)
    return quantiles(percentile_signature:parse(...), 100, "np.percentile")
  end

  local quantile_signature = signature("np.quantile",
    { { "a", "any" }, { "q", "any" }, { "axis", "integer?" }, { "keepdims", "boolean", false } })
  --- np.percentile with shares from 0 to 1 in place of percentages.
  --- @return any
  function np.quantile(...)
    return quantiles(quantile_signature:parse(...), 1, "np.quantile")
  end

  local median_signature = signature("np.median",
    { { "a", "any" }, { "axis", "integer?" }, { "keepdims", "boolean", false } })
  --- The value in the middle of the others, or between the two that are. Without an axis a number.
  --- @return any
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

  --- The places of what is not 0, one in each row: (count, rank).
  function np.argwhere(a)
    a = as_array(a, "np.argwhere")
    if a.rank == 0 then return np.zeros({ a:ne(0):sum(), 0 }, "int64") end
    return np.stack({ np.nonzero(a) }, 1)
  end

  local isin_signature = signature("np.isin", { { "a", "any" }, { "values", "any" } })
  --- 1 where an element of `a` is one of `values`, int8.
  function np.isin(...)
    local given = isin_signature:parse(...)
    local a, values = ndarray.operands(as_array(given.a, "np.isin"), as_array(given.values, "np.isin"), "np.isin")
    local sorted = np.sort(values:ravel())
    if #sorted == 0 then return np.zeros(a.shape:table(), "int8") end
    -- Of a number that searchsorted was given it would give a number.
    return sorted:take(np.minimum(np.searchsorted(sorted, a), #sorted - 1)):eq(a)
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

  local setdiff_signature = signature("np.setdiff1d", { { "a", "any" }, { "b", "any" } })
  --- The values of `a` that are not in `b`, each once, sorted.
  function np.setdiff1d(...)
    local given = setdiff_signature:parse(...)
    local values = np.unique(as_array(given.a, "np.setdiff1d"))
    return np.compress(1 - np.isin(values, given.b), values)
  end

  local intersect_signature = signature("np.intersect1d", { { "a", "any" }, { "b", "any" } })
  --- The values of `a` that are in `b` too, each once, sorted.
  function np.intersect1d(...)
    local given = intersect_signature:parse(...)
    local values = np.unique(as_array(given.a, "np.intersect1d"))
    return np.compress(np.isin(values, given.b), values)
  end

  local union_signature = signature("np.union1d", { { "a", "any" }, { "b", "any" } })
  --- The values of either, each once, sorted.
  function np.union1d(...)
    local given = union_signature:parse(...)
    local a, b = ndarray.operands(as_array(given.a, "np.union1d"), as_array(given.b, "np.union1d"), "np.union1d")
    return (np.unique(np.concat({ a:ravel(), b:ravel() })))
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

  -- What `join` makes of all elements up to each one along an axis; `neutral` changes nothing there.
  local function cumulative(given, name, join, neutral)
    local a = as_array(given.a, name)
    if not given.axis then a = a:ravel() end
    local axis = axis_of(a, given.axis or 0, name)
    if not arguments.floating[a.dtype] then a = cast(a, "int64") end
    local joined, size, reach = a:copy(), a.shape[axis], 1
    local before = {}
    for i = 1, 2 * a.rank do before[i] = 0 end
    -- Each step joins what lies as far back as the results reach, so they reach twice as far after it.
    while reach < size do
      before[2 * axis + 1] = reach
      local earlier = cut(joined, axis, { 0, size - reach })
      joined = join(joined, evaluate("pad", { earlier }, { paddings = before, constant_value = neutral }, name))
      reach = 2 * reach
    end
    return joined
  end

  local cumsum_signature = signature("np.cumsum", { { "a", "any" }, { "axis", "integer?" } })
  --- The sums of the elements up to each one along `axis`, or of the flattened array; integers as int64.
  function np.cumsum(...)
    return cumulative(cumsum_signature:parse(...), "np.cumsum", function(a, b) return a + b end, 0)
  end

  local cumprod_signature = signature("np.cumprod", { { "a", "any" }, { "axis", "integer?" } })
  --- The products of the elements up to each one along `axis`, or of the flattened array; integers as int64.
  function np.cumprod(...)
    return cumulative(cumprod_signature:parse(...), "np.cumprod", function(a, b) return a * b end, 1)
  end

  local diff_signature = signature("np.diff", { { "a", "any" }, { "axis", "integer", -1 } })
  --- Each element less the one before it along `axis`.
  function np.diff(...)
    local given = diff_signature:parse(...)
    local a = as_array(given.a, "np.diff")
    local axis = axis_of(a, given.axis, "np.diff")
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

  local histogram_signature = signature("np.histogram",
    { { "a", "any" }, { "bins", "any", 10 }, { "range", "list?" }, { "density", "boolean", false } })
  -- The edges of `bins` equally wide bins over the range, which without a word is that of the values.
  local function equal_edges(a, bins, range)
    local least, most = 0, 1
    if range then
      least, most = unpack(flat_list(range))
    elseif #a > 0 then
      least, most = a:min(), a:max()
    end
    if bins % 1 ~= 0 or bins < 1 then
      fail("invalid_argument", ("np.histogram: there must be at least one bin, got %g"):format(bins))
    end
    if type(least) ~= "number" or type(most) ~= "number" or not (most - least >= 0 and most - least < math.huge) then
      fail("invalid_argument", ("np.histogram: %s from %s to %s is no range; range = { least, most } gives one"):format(
        range and "the range" or "the values", tostring(least), tostring(most)))
    end
    if least == most then least, most = least - 0.5, most + 0.5 end
    return np.linspace(least, most, bins + 1, a.dtype)
  end

  --- How many values lie in each bin, int64, and the edges of the bins: `local counts, edges = np.histogram(a, 20)`.
  --- A bin has its lower edge and not its upper one; the last has both. `bins` is how many equally wide ones, over
  --- `range`, or the edges themselves, ascending. With `density = true` the counts are such that the area is 1.
  function np.histogram(...)
    local given = histogram_signature:parse(...)
    local a = ndarray.floating(as_array(given.a, "np.histogram")):ravel()
    local edges = type(given.bins) == "number" and equal_edges(a, given.bins, given.range)
      or as_array(given.bins, "np.histogram")
    if edges.rank ~= 1 or #edges < 2 or not np.diff(edges):ge(0):all() then
      fail("invalid_argument", "np.histogram: the edges must be two or more numbers, ascending")
    end
    local sorted, inner = np.sort(a), cut(edges, 0, { 0, #edges - 1 })
    local below = np.concat({ np.searchsorted(sorted, inner), np.searchsorted(sorted, edges:rows(#edges - 1, 1),
      { side = "right" }) })
    local counts = np.diff(below)
    if given.density then counts = counts / np.diff(edges) / counts:sum() end
    return counts, edges
  end

  local count_signature = signature("np.count_nonzero", { { "a", "any" }, { "axis", "list?" } })
  --- How many elements are not 0.
  function np.count_nonzero(...)
    local given = count_signature:parse(...)
    return as_array(given.a, "np.count_nonzero"):ne(0):sum({ axis = given.axis })
  end
end
