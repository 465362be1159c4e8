--- The functions of flow.np that sum up data: weighted means, what is left without NaN, classes of values.

local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"
local between = require "moonflow.np.between"

local as_array, floating = ndarray.as_array, ndarray.floating
local signature, fail = arguments.signature, errors.raise

local average_signature = signature("np.average", { { "a", "any" }, { "axis", "integer?" }, { "weights", "any?" } })
--- The mean along `axis`, or of all elements, each counted by its weight. `weights` are shaped as the array, or one
--- for each place along the axis.
--- @return any
--- @error weights of another shape; weights whose sum is 0
function np.average(...)
  local given = average_signature:parse(...)
  local weights = given.weights
  local a, of_weights
  if weights == nil then
    a = floating(ndarray.exact(given.a, "np.average"))
    return given.axis and ndarray.as_made(a:mean(given.axis), given.a) or a:mean()
  end
  a, of_weights = ndarray.both_exact(given.a, weights, "np.average")
  a, of_weights = floating(a), floating(of_weights)
  local axis = given.axis and ndarray.axis_of(a, given.axis, "np.average")
  if of_weights.shape ~= a.shape then
    if of_weights.rank ~= 1 or not axis or #of_weights ~= a.shape[axis] then
      fail("shape_mismatch", ("np.average: weights are %s for %s; one for each place along an axis, or for each "
        .. "element"):format(tostring(of_weights.shape), tostring(a.shape)))
    end
    local shape = {}
    for i = 1, a.rank do shape[i] = i - 1 == axis and #of_weights or 1 end
    of_weights = of_weights:reshape(shape) + np.zeros_like(a)
  end
  local function total(x) return axis and x:sum(axis) or x:sum() end
  local sums = total(of_weights)
  if axis and not sums:all() or sums == 0 then
    fail("invalid_argument", "np.average: the weights have the sum 0, which nothing is divided by")
  end
  return ndarray.as_made(total(a * of_weights) / sums, given.a, weights)
end

-- Over an axis an array, else a number.
local function summed(a, axis)
  if axis then return a:sum(axis) end
  return a:sum()
end

-- A function of an array, of where it is NaN, of an axis or none, and of what it is called with. Counts are int64,
-- which makes float64 of what they divide; along an axis that gets the array's own dtype again. `share` is a
-- parameter before the axis.
local function without_nan(name, parameters, of, share)
  local where = "np." .. name
  parameters = { { "a", "any" }, { "axis", "list?" }, unpack(parameters) }
  parameters[#parameters + 1] = { "keepdims", "boolean", false }
  if share then table.insert(parameters, 2, share) end
  local own = signature(where, parameters)
  np[name] = function(...)
    local given = own:parse(...)
    local axes, a, axis, ones = arguments.flat_list(given.axis or {}), ndarray.exact(given.a, where)
    local dtype = a.dtype
    if dtypes.narrow[dtype] then a = ndarray.cast(a, "float32") end  -- nothing is rounded before the end
    if #axes > 0 or given.keepdims then a, axis, ones = ndarray.with_one_axis(a, axes, where) end
    local result = of(a, np.isnan(a), axis, given)
    if axis and dtypes.floating[dtype] then result = ndarray.as_made(ndarray.cast(result, dtype), given.a) end
    return given.keepdims and result:reshape(ones) or result
  end
end
--- The sum along `axis`, or of all elements, without those that are NaN.
--- @return any
without_nan("nansum", {}, function(a, missing, axis) return summed(np.where(missing, 0, a), axis) end)
--- The mean along `axis`, or of all elements, without those that are NaN.
--- @return any
without_nan("nanmean", {}, function(a, missing, axis)
  return summed(np.where(missing, 0, floating(a)), axis) / summed(1 - missing, axis)
end)
--- The greatest element along `axis`, or of all, without those that are NaN; -inf where all are.
--- @return any
without_nan("nanmax", {}, function(a, missing, axis)
  local rest = dtypes.floating[a.dtype] and np.where(missing, -math.huge, a) or a
  if axis then return rest:max(axis) end
  return rest:max()
end)
--- The least element along `axis`, or of all, without those that are NaN; inf where all are.
--- @return any
without_nan("nanmin", {}, function(a, missing, axis)
  local rest = dtypes.floating[a.dtype] and np.where(missing, math.huge, a) or a
  if axis then return rest:min(axis) end
  return rest:min()
end)

-- The variance of what is not NaN, divided by `ddof` less than there is of it; NaN where that is nothing.
local function variance(a, missing, axis, given)
  a = floating(a)
  local count = np.sum(1 - missing, { axis = axis, keepdims = true })
  local mean = np.sum(np.where(missing, 0, a), { axis = axis, keepdims = true }) / count
  local distance = np.where(missing, 0, a - ndarray.cast(mean, a.dtype))
  local divisor = summed(1 - missing, axis) - given.ddof
  if not axis then return divisor > 0 and summed(distance * distance) / divisor or np.nan end
  return np.where(divisor:gt(0), summed(distance * distance, axis) / divisor, np.nan)
end
--- The variance along `axis`, or of all elements, without those that are NaN: the mean of the squared distances from
--- their mean, divided by `ddof` less than there are of them. NaN where that is nothing.
--- @return any
without_nan("nanvar", { { "ddof", "integer", 0 } }, variance)
--- The standard deviation along `axis`, or of all elements, without those that are NaN: the root of np.nanvar.
--- @return any
without_nan("nanstd", { { "ddof", "integer", 0 } }, function(...) return np.sqrt(variance(...)) end)

--- The product along `axis`, or of all elements, without those that are NaN.
--- @return any
without_nan("nanprod", {}, function(a, missing, axis)
  local rest = np.where(missing, 1, a)
  if axis then return rest:prod(axis) end
  return rest:prod()
end)

-- What a share of the values that are not NaN are not above, between two of them by their distances; NaN where all are.
local function quantile_of_rest(name, a, missing, axis, share)
  if not (share >= 0 and share <= 1) then
    fail("out_of_range", ("np.%s: %g is beyond the ends of all values"):format(name, share))
  end
  local whole = axis == nil
  if whole then a, missing, axis = a:ravel(), missing:ravel(), 0 end
  a, axis = floating(a), ndarray.axis_of(a, axis, "np." .. name)
  local sorted, count = np.sort(a, axis), np.sum(1 - missing, { axis = axis, keepdims = true })
  if sorted.shape[axis] == 0 then
    fail("invalid_argument", ("np.%s of no values, along axis %d of size 0"):format(name, axis))
  end
  -- NaN stand last, so where there is nothing else the first one is what is picked.
  local place = np.maximum(count - 1, 0) * share
  local first = np.floor(place)
  local below = np.take_along_axis(sorted, first:astype("int64"), axis)
  local above = np.take_along_axis(sorted, np.ceil(place):astype("int64"), axis)
  local result = np.squeeze(between(below, above, place - first), axis)
  return whole and result:item() or result
end

--- The value in the middle of those along `axis`, or of all elements, without those that are NaN, or between the two
--- that are; NaN where all are.
--- @return any
without_nan("nanmedian", {}, function(a, missing, axis) return quantile_of_rest("nanmedian", a, missing, axis, 0.5) end)
--- np.quantile of those along `axis`, or of all elements, that are not NaN: what a share `q` of them, from 0 to 1, are
--- not above; NaN where all are.
--- @return any
without_nan("nanquantile", {}, function(a, missing, axis, given)
  return quantile_of_rest("nanquantile", a, missing, axis, given.q)
end, { "q", "number" })
--- np.percentile of those along `axis`, or of all elements, that are not NaN: what `q` percent of them are not above;
--- NaN where all are.
--- @return any
without_nan("nanpercentile", {}, function(a, missing, axis, given)
  return quantile_of_rest("nanpercentile", a, missing, axis, given.q / 100)
end, { "q", "number" })

-- Without an axis the place in the flattened array, a number, as np.argmax has it.
local function place_without_nan(name, worst, find)
  local own = signature("np." .. name, { { "a", "any" }, { "axis", "integer?" } })
  np[name] = function(...)
    local given = own:parse(...)
    local a = ndarray.exact(given.a, "np." .. name)
    local missing = np.isnan(a)
    local is_lost = np.all(missing, { axis = given.axis })
    if is_lost == true or ndarray.is_array(is_lost) and is_lost:any() then
      fail("invalid_argument", ("np.%s: there are NaN alone%s"):format(name,
        given.axis and " in a row along axis " .. given.axis or ""))
    end
    if not dtypes.floating[a.dtype] then return find(a, given.axis) end
    local place = find(np.where(missing, worst, a), given.axis)
    -- Where the best is the worst there is, the first that is no NaN.
    local first, rest = np.argmax(1 - missing, given.axis), np.where(a:eq(worst), 1, missing)
    local is_worst = np.all(rest, { axis = given.axis })
    if type(place) == "number" then return is_worst and first or place end
    return np.where(is_worst, first, place)
  end
end
--- The place of the greatest element along `axis`, or of all, that is not NaN.
--- @return any
--- @error NaN alone
place_without_nan("nanargmax", -math.huge, function(a, axis) return np.argmax(a, axis) end)
--- The place of the least element along `axis`, or of all, that is not NaN.
--- @return any
--- @error NaN alone
place_without_nan("nanargmin", math.huge, function(a, axis) return np.argmin(a, axis) end)

local nancumsum_signature = signature("np.nancumsum", { { "a", "any" }, { "axis", "integer?" } })
--- np.cumsum where NaN count as 0.
function np.nancumsum(...)
  local given = nancumsum_signature:parse(...)
  local a = as_array(given.a, "np.nancumsum")
  return np.cumsum(np.where(np.isnan(a), 0, a), given.axis)
end

local ptp_signature = signature("np.ptp", { { "a", "any" }, { "axis", "list?" }, { "keepdims", "boolean", false } })
--- From the least element to the greatest one, along `axis` or of all: their difference.
--- @return any
function np.ptp(...)
  local given = ptp_signature:parse(...)
  local a, options = ndarray.exact(given.a, "np.ptp"), { axis = given.axis, keepdims = given.keepdims }
  return ndarray.as_made(np.max(a, options) - np.min(a, options), given.a)
end

local digitize_signature = signature("np.digitize",
  { { "a", "any" }, { "bins", "any" }, { "right", "boolean", false } })
--- Which of the classes between rising or falling bounds each element is in, int64: 0 is before the first bound. One
--- that is equal to a bound is in the class above it, or with `right` in that below. Of a number a number.
--- @return any
--- @error bounds that do neither
function np.digitize(...)
  local given = digitize_signature:parse(...)
  local a, bins = ndarray.both_exact(given.a, given.bins, "np.digitize")
  local side = given.right and "left" or "right"
  local steps = bins.rank == 1 and np.diff(bins)
  local function given_back(places) return type(given.a) == "number" and places:item() or places end
  if not steps or np.all(steps:ge(0)) then return given_back(np.searchsorted(bins, a, side)) end
  if not np.all(steps:le(0)) then digitize_signature:fail(": the bounds neither rise nor fall") end
  return given_back(#bins - np.searchsorted(np.flip(bins, 0), a, side))
end
