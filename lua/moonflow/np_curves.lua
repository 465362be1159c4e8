--- The functions of flow.np on curves, values that follow one another along an axis: differences, and what lies between
-- the points.

local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"

local cast, as_array, axis_of, cut = ndarray.cast, ndarray.as_array, ndarray.axis_of, ndarray.cut
local signature, fail = arguments.signature, errors.raise

return function(np)
  local diff_signature = signature("np.diff", { { "a", "any" }, { "axis", "integer", -1 } })
  --- Each element less the one before it along `axis`.
  function np.diff(...)
    local given = diff_signature:parse(...)
    local a = as_array(given.a, "np.diff")
    local axis = axis_of(a, given.axis, "np.diff")
    local size = a.shape[axis]
    return cut(a, axis, { 1, size }) - cut(a, axis, { 0, math.max(size - 1, 0) })
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
end
