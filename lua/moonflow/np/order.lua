--- The functions of flow.np that sort, count and find. All in the array's own dtype, but for what counts and for
-- places, which are int64.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"
local between = require "moonflow.np.between"

local evaluate, cast, as_array = ndarray.evaluate, ndarray.cast, ndarray.as_array
local axis_of, part, readable = ndarray.axis_of, ndarray.part, ndarray.readable
local signature, flat_list, fail = arguments.signature, arguments.flat_list, errors.raise

-- Applies what works along the last axis along another one.
local function along(a, axis, apply)
  if axis == a.rank - 1 then return apply(a) end
  local swapped = {}
  for i = 1, a.rank do swapped[i] = i - 1 end
  swapped[axis + 1], swapped[a.rank] = a.rank - 1, axis
  return apply(a:transpose(swapped)):transpose(swapped)
end

local MOST_OF_TABLE = 2 ^ 20  -- entries of what tells which integers there are

-- ---- loops over memory --------------------------------------------------------------------------------------------

-- What an op of the catalog does not do in one pass. Each array is kept in a local for as long as its pointer is used.

-- Marks those of `count` integers that a table of 0 and 1 has, which begins with that for `least`.
local function look_up(a, count, is_there, least, most, out)
  for i = 0, count - 1 do
    local x = tonumber(a[i])
    if x >= least and x <= most then out[i] = is_there[x - least] end
  end
end

-- Writes to each place, in their order, how many first ones there have been before the last one.
local function number_places(is_first, order, count, numbers)
  local number = -1
  for i = 0, count - 1 do
    number = number + is_first[i]
    numbers[tonumber(order[i])] = number
  end
end

-- Multiplies each of `count` slices of `inner` elements with what the ones before it come to.
local function accumulate(p, outer, count, inner, products)
  for i = 0, outer - 1 do
    local at = i * count * inner
    for j = 0, inner - 1 do products[j] = p[at + j] end
    for _ = 1, count - 1 do
      at = at + inner
      for j = 0, inner - 1 do
        local product = products[j] * p[at + j]
        products[j], p[at + j] = product, product
      end
    end
  end
end

-- Counts how often each of the numbers 0, 1, ... occurs among integers.
local function count_all(a, count, counts)
  for i = 0, count - 1 do
    local x = tonumber(a[i])
    counts[x] = counts[x] + 1
  end
end

-- Adds up the weights of each of the numbers 0, 1, ... among integers.
local function weigh_all(a, count, weights, sums)
  for i = 0, count - 1 do
    local x = tonumber(a[i])
    sums[x] = sums[x] + weights[i]
  end
end

-- Counts how many values are in each of `bins` bins, which are equally wide, `scale` of them in one unit. What is
-- computed may be a bin beside the right one, where the edges were rounded.
local function count_in_bins(a, count, edges, bins, scale, counts)
  local least, most, last = edges[0], edges[bins], bins - 1
  for i = 0, count - 1 do
    local x = a[i]
    if x >= least and x <= most then
      local bin = math.min(math.floor((x - least) * scale), last)
      while x < edges[bin] do bin = bin - 1 end
      while bin < last and x >= edges[bin + 1] do bin = bin + 1 end
      counts[bin] = counts[bin] + 1
    end
  end
end

-- ---- order --------------------------------------------------------------------------------------------------------

--- np.sort(a, axis): the values in their order, NaN last; np.argsort: their places, equal ones in theirs. With
--- `descending = true`, which NumPy has not, the greatest first, NaN before them, and equal ones in their order too.
for name, op in pairs({ sort = "sort_values", argsort = "argsort" }) do
  local called = "np." .. name
  local signed = signature(called, { { "a", "any" }, { "axis", "integer", -1 }, { "descending", "boolean", false } })
  np[name] = function(...)
    local given = signed:parse(...)
    local a = (name == "argsort" and ndarray.exact or as_array)(given.a, called)
    local attrs = { direction = given.descending and "DESCENDING" or "ASCENDING" }
    return along(a, axis_of(a, given.axis, called), function(rows)
      return (evaluate(op, { rows }, attrs, called))
    end)
  end
end

local lexsort_signature = signature("np.lexsort", { { "keys", "any" }, { "axis", "integer", -1 } })
--- The places that put several keys in order at once: by the last one, what is equal there by the one before it, and
--- so on; `np.lexsort({ second, first })`. Keys are a list of arrays of one shape, or the rows of an array, and each
--- is sorted along `axis`.
--- @error no key; keys of different shapes
function np.lexsort(...)
  local given = lexsort_signature:parse(...)
  local keys, order = given.keys, nil
  if ndarray.is_array(keys) then
    local rows = {}
    for i, row in keys:rows() do rows[i + 1] = row end
    keys = rows
  end
  if type(keys) ~= "table" or #keys == 0 then
    fail("invalid_argument", "np.lexsort wants a list of arrays, the last of which comes first, got "
      .. arguments.describe(given.keys) .. (type(keys) == "table" and " without one" or ""))
  end
  local first = as_array(keys[1], "np.lexsort")
  for i, key in ipairs(keys) do
    key = ndarray.exact(key, "np.lexsort")
    if key.shape ~= first.shape then
      fail("shape_mismatch", ("np.lexsort: key %d is %s, the first one is %s"):format(i, tostring(key.shape),
        tostring(first.shape)))
    end
    local axis = axis_of(key, given.axis, "np.lexsort")
    -- Equal ones stay in their order, which is that of the keys before.
    local further = np.argsort(order and np.take_along_axis(key, order, axis) or key, axis)
    order = order and np.take_along_axis(order, further, axis) or further
  end
  return order
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
  local a, v = ndarray.both_exact(given.a, given.v, "np.searchsorted")
  if a.rank ~= 1 then
    fail("shape_mismatch", "np.searchsorted looks in an array of one axis, got " .. tostring(a.shape))
  end
  if given.side ~= "left" and given.side ~= "right" then
    fail("invalid_argument", "np.searchsorted: the side is \"left\" or \"right\", got '" .. given.side .. "'"
      .. arguments.suggestion(given.side, { "left", "right" }))
  end
  local one, other = ndarray.operands(a, v, "np.searchsorted")
  local places = evaluate("search_sorted", { one, other }, { right = given.side == "right" }, "np.searchsorted")
  return type(given.v) == "number" and places:item() or places
end

-- The values that this share of the others is not above. Of a list of shares, one slice for each of them.
local function quantiles(given, whole, called)
  local a, q, axis, ones = ndarray.exact(given.a, called), given.q
  local axes = given.axis and flat_list(given.axis) or {}
  a, axis, ones = ndarray.with_one_axis(a, axes, called)
  local count = a.shape[axis]
  if count == 0 then fail("invalid_argument", called .. " of no values") end
  local shares = q
  if type(q) ~= "number" then
    if not ndarray.is_array(q) then q = np.array(q, "float64") end
    shares = q:ravel():totable()
  end
  -- Only what stands beside the shares is put in its place.
  local wanted, places = {}, {}
  for _, share in ipairs(type(shares) == "number" and { shares } or shares) do
    if not (share >= 0 and share <= whole) then
      fail("invalid_argument", ("%s: q is from 0 to %d, got %g"):format(called, whole, share))
    end
    local place = (count - 1) * share / whole
    wanted[math.floor(place)], wanted[math.ceil(place)] = true, true
  end
  for place in pairs(wanted) do places[#places + 1] = place end
  table.sort(places)
  for i, place in ipairs(places) do wanted[place] = i - 1 end
  local sorted = along(a, axis, function(rows)
    return (evaluate("order_statistics", { rows }, { places = places }, called))
  end)
  local is_unknown = dtypes.floating[a.dtype] and np.isnan(np.max(a, { axis = axis, keepdims = true }))
  local function at(i) return ndarray.floating(part(sorted, axis, wanted[i], wanted[i] + 1)) end
  local function one(share, is_number)
    local place = (count - 1) * share / whole
    local result = at(math.floor(place))
    if place % 1 ~= 0 then result = between(result, at(math.ceil(place)), place % 1) end
    if is_unknown then result = np.where(is_unknown, np.nan, result) end
    result = np.squeeze(result, axis)
    if not is_number then result = ndarray.as_made(result, given.a) end
    return given.keepdims and result:reshape(ones) or result
  end
  if type(q) == "number" then
    if #axes == 0 and not given.keepdims then return one(q, true):item() end
    return one(q)
  end
  local results = {}
  for i, share in ipairs(shares) do results[i] = one(share) end
  local stacked, shape = np.stack(results), q.shape:table()
  for i = 1, stacked.rank - 1 do shape[#shape + 1] = stacked.shape[i] end
  return stacked:reshape(shape)
end

local percentile_signature = signature("np.percentile",
  { { "a", "any" }, { "q", "any" }, { "axis", "list?" }, { "keepdims", "boolean", false } })
--- What `q` percent of the values are not above, between two of them by their distances. Without an axis a number.
--- Of a list of percentages an array, with an axis for them before the others.
--- @return any
function np.percentile(...)
  return quantiles(percentile_signature:parse(...), 100, "np.percentile")
end

local quantile_signature = signature("np.quantile",
  { { "a", "any" }, { "q", "any" }, { "axis", "list?" }, { "keepdims", "boolean", false } })
--- np.percentile with shares from 0 to 1 in place of percentages.
--- @return any
function np.quantile(...)
  return quantiles(quantile_signature:parse(...), 1, "np.quantile")
end

local median_signature = signature("np.median",
  { { "a", "any" }, { "axis", "list?" }, { "keepdims", "boolean", false } })
--- The value in the middle of the others, or between the two that are. Without an axis a number.
--- @return any
function np.median(...)
  local given = median_signature:parse(...)
  given.q = 50
  return quantiles(given, 100, "np.median")
end

-- ---- sets ---------------------------------------------------------------------------------------------------------

-- Those of these values that an integer may be equal to, as int64.
local function whole_values(values)
  if not dtypes.floating[values.dtype] then return cast(values, "int64") end
  return cast(np.compress(values:eq(np.rint(values)) * np.abs(values):le(2 ^ 53), values), "int64")
end

local isin_signature = signature("np.isin", { { "a", "any" }, { "values", "any" } })
--- 1 where an element of `a` is one of `values`, else 0, int8. Of a number a number.
--- @return any
function np.isin(...)
  local given = isin_signature:parse(...)
  local a, values = ndarray.both_exact(given.a, given.values, "np.isin")
  values = values:ravel()
  local is_whole = not dtypes.floating[a.dtype]
  if is_whole then values = whole_values(values) end
  local function given_back(out) return type(given.a) == "number" and out:item() or out end
  if #values == 0 then return given_back(np.zeros(a.shape:table(), "int8")) end
  -- Far from 2^53, from where on whole numbers share one of Lua's.
  if is_whole and values:ge(-2 ^ 52):all() and values:le(2 ^ 52):all() then
    local least, most = values:min(), values:max()
    if most - least < MOST_OF_TABLE then
      local is_there, out = np.bincount(values - least):ne(0), core.zeros("int8", a.shape:table())
      look_up(a:ptr(), a.shape:count(), is_there:ptr(), least, most, out:ptr())
      return given_back(out)
    end
  end
  a, values = ndarray.operands(a, values, "np.isin")
  local sorted = np.sort(values)
  -- Of a number that searchsorted was given it would give a number.
  return given_back(sorted:take(np.minimum(np.searchsorted(sorted, a), #sorted - 1)):eq(a))
end

local setdiff_signature = signature("np.setdiff1d", { { "a", "any" }, { "b", "any" } })
--- The values of `a` that are not in `b`, each once, sorted.
function np.setdiff1d(...)
  local given = setdiff_signature:parse(...)
  local a, b = ndarray.both(given.a, given.b, "np.setdiff1d")
  local values = np.unique(a)
  return np.compress(1 - np.isin(values, b), values)
end

local intersect_signature = signature("np.intersect1d", { { "a", "any" }, { "b", "any" } })
--- The values of `a` that are in `b` too, each once, sorted.
function np.intersect1d(...)
  local given = intersect_signature:parse(...)
  local a, b = ndarray.both(given.a, given.b, "np.intersect1d")
  local values = np.unique(a)
  return np.compress(np.isin(values, b), values)
end

local setxor_signature = signature("np.setxor1d", { { "a", "any" }, { "b", "any" } })
--- The values that are in just one of the two, each once, sorted.
function np.setxor1d(...)
  local given = setxor_signature:parse(...)
  local a, b = ndarray.both(given.a, given.b, "np.setxor1d")
  return (np.unique(np.concat({ np.setdiff1d(a, b), np.setdiff1d(b, a) })))
end

local union_signature = signature("np.union1d", { { "a", "any" }, { "b", "any" } })
--- The values of either, each once, sorted.
function np.union1d(...)
  local given = union_signature:parse(...)
  local a, b = ndarray.both(given.a, given.b, "np.union1d")
  return (np.unique(np.concat({ a:ravel(), b:ravel() })))
end

local unique_signature = signature("np.unique",
  { { "a", "any" }, { "return_inverse", "boolean", false }, { "return_counts", "boolean", false },
    { "return_index", "boolean", false } })
--- The values that occur, each once, sorted. On demand also, in this order, the place in `a`, flattened, where each
--- stands first, the place among them of each element of `a`, and how often each occurs:
--- `local classes, counts = np.unique(labels, { return_counts = true })`.
function np.unique(...)
  local given = unique_signature:parse(...)
  local a = as_array(given.a, "np.unique"):ravel()
  local count = #a
  local order = (given.return_index or given.return_inverse) and np.argsort(a)  -- equal ones in that of their places
  local sorted = order and evaluate("gather", { a, order }, { axis = 0 }, "np.unique") or np.sort(a)
  local one, other = sorted:slice({ 1, count }), sorted:slice({ 0, math.max(count - 1, 0) })
  local differs = one:ne(other)
  -- A NaN, which is not even equal to itself, counts as equal to the NaN before it.
  local last = count > 0 and sorted[count - 1]
  if last ~= last then differs = differs * (1 - np.isnan(one) * np.isnan(other)) end
  local is_first = np.concat({ np.ones({ math.min(count, 1) }, "int8"), differs })
  local firsts = np.flatnonzero(is_first)
  local results = { (evaluate("gather", { sorted, firsts }, { axis = 0 }, "np.unique")) }
  if given.return_index then results[#results + 1] = order:take(firsts, 0) end
  if given.return_inverse then
    local inverse = core.empty("int64", { count })
    number_places(is_first:ptr(), order:ptr(), count, inverse:ptr())
    results[#results + 1] = inverse
  end
  if given.return_counts then results[#results + 1] = np.diff(np.concat({ firsts, np.array({ count }, "int64") })) end
  return unpack(results)
end

-- ---- sums and counts ----------------------------------------------------------------------------------------------

-- An array and the axis that the elements up to each one are joined along, and whether they are floats. These are
-- joined in double precision, integers as int64.
local function to_accumulate(given, name)
  local a = as_array(given.a, name)
  if not given.axis then a = a:ravel() end
  return a, axis_of(a, given.axis or 0, name), dtypes.floating[a.dtype]
end

local cumsum_signature = signature("np.cumsum", { { "a", "any" }, { "axis", "integer?" } })
--- The sums of the elements up to each one along `axis`, or of the flattened array; integers as int64.
function np.cumsum(...)
  local a, axis, is_floating = to_accumulate(cumsum_signature:parse(...), "np.cumsum")
  local sums = evaluate("cumsum", { is_floating and readable(a) or cast(a, "int64") }, { axis = axis }, "np.cumsum")
  return is_floating and cast(sums, a.dtype) or sums
end

local cumprod_signature = signature("np.cumprod", { { "a", "any" }, { "axis", "integer?" } })
--- The products of the elements up to each one along `axis`, or of the flattened array; integers as int64.
function np.cumprod(...)
  local a, axis, is_floating = to_accumulate(cumprod_signature:parse(...), "np.cumprod")
  local dtype = a.dtype
  local joined = is_floating and readable(a) or cast(a, "int64")
  if rawequal(joined, a) then joined = a:copy() end
  local outer, inner = 1, 1
  for i = 0, a.rank - 1 do
    if i < axis then outer = outer * a.shape[i] elseif i > axis then inner = inner * a.shape[i] end
  end
  if a.nbytes > 0 then
    local sums = core.zeros(is_floating and "float64" or "int64", { inner })
    accumulate(joined:ptr(), outer, a.shape[axis], inner, sums:ptr())
  end
  return is_floating and cast(joined, dtype) or joined
end

local bincount_signature = signature("np.bincount",
  { { "a", "any" }, { "weights", "any?" }, { "minlength", "integer", 0 } })
--- How often each of the numbers 0, 1, ... occurs among the integers `a`, or the sums of their weights; whole ones as
--- int64.
function np.bincount(...)
  local given = bincount_signature:parse(...)
  local a = as_array(given.a, "np.bincount", "int64"):ravel()
  if dtypes.floating[a.dtype] then
    fail("dtype_mismatch", "np.bincount wants integers, got " .. a.dtype .. "; cast them first, with :astype")
  end
  if #a > 0 and a:min() < 0 then
    fail("out_of_range", ("np.bincount counts from 0, and got %d"):format(a:min()))
  end
  local bins = math.max(#a > 0 and a:max() + 1 or 0, given.minlength)
  if given.weights == nil then
    local counts = core.zeros("int64", { bins })
    count_all(a:ptr(), #a, counts:ptr())
    return counts
  end
  local weights = as_array(given.weights, "np.bincount"):ravel()
  local dtype = dtypes.floating[weights.dtype] and weights.dtype or "int64"
  if #weights ~= #a then
    fail("shape_mismatch", ("np.bincount: the weights are %d for %d integers"):format(#weights, #a))
  end
  -- One float32 after the other, a sum would end where the next weight is less than half of its last bit.
  local sums = core.zeros(dtype == "int64" and dtype or "float64", { bins })
  weights = readable(weights)
  weigh_all(a:ptr(), #a, weights:ptr(), sums:ptr())
  return cast(sums, dtype)
end

local histogram_signature = signature("np.histogram",
  { { "a", "any" }, { "bins", "any", 10 }, { "range", "list?" }, { "density", "boolean", false },
    { "weights", "any?" } })
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

-- How many values are between each two edges, or the sums of their weights.
local function count_between(a, edges, weights)
  local last = #edges - 1
  -- What is below all edges is in a bin before the others, and what is above in one behind them.
  local bin = np.where(a:eq(edges:at(last)), last, np.searchsorted(edges, a, "right"))
  return np.bincount(bin, weights, last + 2):rows(1, last)
end

--- How many values lie in each bin, int64, and the edges of the bins: `local counts, edges = np.histogram(a, 20)`.
--- A bin has its lower edge and not its upper one; the last has both. `bins` is how many equally wide ones, over
--- `range`, or the edges themselves, ascending. With `density = true` the counts are such that the area is 1. With
--- `weights`, one for each value, it is the sum of these in each bin, float64.
--- @error other edges; weights of another shape than the values
function np.histogram(...)
  local given = histogram_signature:parse(...)
  local of_edges = ndarray.is_array(given.bins) and given.bins.dtype
  local a = ndarray.floating(as_array(given.a, "np.histogram", of_edges)):ravel()
  local edges = type(given.bins) == "number" and equal_edges(a, given.bins, given.range)
    or as_array(given.bins, "np.histogram", a.dtype)
  if edges.rank ~= 1 or #edges < 2 or not np.diff(edges):ge(0):all() then
    fail("invalid_argument", "np.histogram: the edges must be two or more numbers, ascending")
  end
  local bins = #edges - 1
  if given.weights ~= nil then
    local weights = as_array(given.weights, "np.histogram", "float64")
    if weights.shape:count() ~= #a then
      fail("shape_mismatch", ("np.histogram: the weights are %s for %d values"):format(tostring(weights.shape), #a))
    end
    local sums = count_between(a, edges, cast(weights, "float64"))
    if given.density then sums = sums / np.diff(edges) / sums:sum() end
    return sums, edges
  end
  local counts
  local scale = type(given.bins) == "number" and bins / (edges[bins] - edges[0])
  if scale and scale < math.huge then
    counts = core.zeros("int64", { bins })
    local values, bounds = readable(a), readable(edges)
    count_in_bins(values:ptr(), #a, bounds:ptr(), bins, scale, counts:ptr())
  else
    counts = count_between(a, edges)
  end
  if given.density then counts = counts / np.diff(edges) / counts:sum() end
  return counts, edges
end

local count_signature = signature("np.count_nonzero", { { "a", "any" }, { "axis", "list?" } })
--- How many elements are not 0.
function np.count_nonzero(...)
  local given = count_signature:parse(...)
  return ndarray.exact(given.a, "np.count_nonzero"):ne(0):sum({ axis = given.axis })
end
