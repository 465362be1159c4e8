--- The functions of flow.np that sum up data: weighted means, what is left without NaN, classes of values.

local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"

local as_array, floating = ndarray.as_array, ndarray.floating
local signature, fail = arguments.signature, errors.raise

return function(np)
  local average_signature = signature("np.average", { { "a", "any" }, { "axis", "integer?" }, { "weights", "any?" } })
  --- The mean along `axis`, or of all elements, each counted by its weight. `weights` are shaped as the array, or one
  --- for each place along the axis.
  --- @return any
  function np.average(...)
    local given = average_signature:parse(...)
    local a = floating(as_array(given.a, "np.average"))
    if given.weights == nil then return given.axis and a:mean(given.axis) or a:mean() end
    local weights = as_array(given.weights, "np.average")
    if weights.rank == 1 and a.rank > 1 then
      local axis = given.axis and ndarray.axis_of(a, given.axis, "np.average")
      if not axis or #weights ~= a.shape[axis] then
        fail("shape_mismatch", ("np.average: weights are %s for %s; one for each place along an axis, or for each "
          .. "element"):format(tostring(weights.shape), tostring(a.shape)))
      end
      local shape = {}
      for i = 1, a.rank do shape[i] = i - 1 == axis and #weights or 1 end
      weights = weights:reshape(shape)
    end
    weights = floating(weights) + np.zeros_like(a)
    if given.axis then return (a * weights):sum(given.axis) / weights:sum(given.axis) end
    return (a * weights):sum() / weights:sum()
  end

  local function without_nan(name, of)
    local where = "np." .. name
    local own = signature(where, { { "a", "any" }, { "axis", "integer?" } })
    np[name] = function(...)
      local given = own:parse(...)
      local a = as_array(given.a, where)
      return of(a, np.isnan(a), given.axis)
    end
  end
  -- Over an axis an array, else a number.
  local function summed(a, axis)
    if axis then return a:sum(axis) end
    return a:sum()
  end
  --- The sum along `axis`, or of all elements, without those that are NaN.
  --- @return any
  without_nan("nansum", function(a, missing, axis) return summed(np.where(missing, 0, a), axis) end)
  --- The mean along `axis`, or of all elements, without those that are NaN.
  --- @return any
  without_nan("nanmean", function(a, missing, axis)
    return summed(np.where(missing, 0, floating(a)), axis) / summed(1 - missing, axis)
  end)
  --- The greatest element along `axis`, or of all, without those that are NaN; -inf where all are.
  --- @return any
  without_nan("nanmax", function(a, missing, axis)
    local rest = np.where(missing, -math.huge, a)
    if axis then return rest:max(axis) end
    return rest:max()
  end)
  --- The least element along `axis`, or of all, without those that are NaN; inf where all are.
  --- @return any
  without_nan("nanmin", function(a, missing, axis)
    local rest = np.where(missing, math.huge, a)
    if axis then return rest:min(axis) end
    return rest:min()
  end)

  local digitize_signature = signature("np.digitize",
    { { "a", "any" }, { "bins", "any" }, { "right", "boolean", false } })
  --- Which of the classes between rising bounds each element is in, int64: 0 is below the first bound, and one that is
  --- equal to a bound is above it, or below it with `right`.
  function np.digitize(...)
    local given = digitize_signature:parse(...)
    local a = as_array(given.a, "np.digitize")
    return np.searchsorted(given.bins, a, given.right and "left" or "right")
  end
end
