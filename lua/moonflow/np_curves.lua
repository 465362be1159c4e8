--- The functions of flow.np on curves, values that follow one another along an axis: differences, areas, smoothing,
-- polynomials, and what lies between the points.

local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"

local cast, as_array, axis_of, cut = ndarray.cast, ndarray.as_array, ndarray.axis_of, ndarray.cut
local signature, fail = arguments.signature, errors.raise

return function(np)
  -- Neighbours along an axis: all but the first, and all but the last.
  local function neighbours(a, axis)
    local size = a.shape[axis]
    return cut(a, axis, { 1, size }), cut(a, axis, { 0, math.max(size - 1, 0) })
  end

  local diff_signature = signature("np.diff", { { "a", "any" }, { "n", "integer", 1 }, { "axis", "integer", -1 } })
  --- Each element less the one before it along `axis`, and of these again, `n` times over.
  --- @error n below 0
  function np.diff(...)
    local given = diff_signature:parse(...)
    local a = as_array(given.a, "np.diff")
    local axis = axis_of(a, given.axis, "np.diff")
    if given.n < 0 then fail("invalid_argument", ("np.diff: n must be at least 0, got %d"):format(given.n)) end
    for _ = 1, given.n do
      local later, earlier = neighbours(a, axis)
      a = later - earlier
    end
    return a
  end

  local trapezoid_signature = signature("np.trapezoid",
    { { "y", "any" }, { "x", "any?" }, { "dx", "number", 1 }, { "axis", "integer", -1 } })
  --- The area under the straight pieces between points along `axis`, `dx` apart or at the places `x`: one for each
  --- point along the axis, or shaped as `y`. Where no axis is left a number.
  --- @return any
  --- @error x that is not one for each point
  function np.trapezoid(...)
    local given = trapezoid_signature:parse(...)
    local y = ndarray.floating(as_array(given.y, "np.trapezoid"))
    local axis, width = axis_of(y, given.axis, "np.trapezoid"), given.dx
    if given.x ~= nil then
      local x = as_array(given.x, "np.trapezoid")
      if x.rank == 1 and #x == y.shape[axis] then
        local sizes = {}
        for i = 1, y.rank do sizes[i] = i - 1 == axis and #x or 1 end
        x = x:reshape(sizes)
      elseif x.shape ~= y.shape then
        fail("shape_mismatch", ("np.trapezoid: x is %s for y %s along axis %d"):format(tostring(x.shape),
          tostring(y.shape), axis))
      end
      local later, earlier = neighbours(x, axis)
      width = later - earlier
    end
    local later, earlier = neighbours(y, axis)
    local area = ((later + earlier) * width / 2):sum(axis)
    return area.rank == 0 and area:item() or area
  end

  local convolve_signature = signature("np.convolve",
    { { "a", "any" }, { "v", "any" }, { "mode", "string", "full" } })
  --- The sums of products of one curve with another that runs backwards past it, such as a moving average:
  --- `np.convolve(a, np.ones(5) / 5, "valid")`. "full" has each place where they meet, "same" of these as many as the
  --- longer one has, in the middle, and "valid" those where the shorter one is inside the longer one. In double
  --- precision, in the dtype of both together; integers as int64, exact up to 2^53.
  --- @error an array without elements, or of another rank than 1
  function np.convolve(...)
    local given = convolve_signature:parse(...)
    local a, v, dtype = ndarray.operands(as_array(given.a, "np.convolve"), as_array(given.v, "np.convolve"),
      "np.convolve")
    if a.rank ~= 1 or v.rank ~= 1 or #a == 0 or #v == 0 then
      fail("shape_mismatch", ("np.convolve wants two arrays of one axis with elements, got %s and %s"):format(
        tostring(a.shape), tostring(v.shape)))
    end
    if #v > #a then a, v = v, a end
    local count, width, first, last = #a, #v, 0, #a + #v - 1
    if given.mode == "same" then
      first = math.floor((width - 1) / 2)
      last = first + count
    elseif given.mode == "valid" then
      first, last = width - 1, count
    elseif given.mode ~= "full" then
      fail("invalid_argument", "np.convolve: the mode is \"full\", \"same\" or \"valid\", got '" .. given.mode .. "'"
        .. arguments.suggestion(given.mode, { "full", "same", "valid" }))
    end
    a, v = cast(a, "float64"), cast(v, "float64")
    local out = np.empty({ last - first }, "float64")
    local p, q, sums = a:ptr(), v:ptr(), out:ptr()
    for i = first, last - 1 do
      local sum = 0
      for k = math.max(0, i - count + 1), math.min(i, width - 1) do sum = sum + p[i - k] * q[k] end
      sums[i - first] = sum
    end
    return cast(out, arguments.floating[dtype] and dtype or "int64")
  end

  local polyfit_signature = signature("np.polyfit", { { "x", "any" }, { "y", "any" }, { "deg", "integer" } })
  --- The polynomial of degree `deg` that comes nearest to the points (x[i], y[i]), by least squares: its coefficients,
  --- float64, that of the highest power first, as np.polyval takes them.
  --- shapes: x (n), y (n) or (n, curves) -> (deg + 1) or (deg + 1, curves)
  --- @error deg below 0; x and y of other shapes or without points
  function np.polyfit(...)
    local given = polyfit_signature:parse(...)
    local x, y = as_array(given.x, "np.polyfit"):astype("float64"), as_array(given.y, "np.polyfit"):astype("float64")
    if given.deg < 0 then
      fail("invalid_argument", ("np.polyfit: deg must be at least 0, got %d"):format(given.deg))
    end
    if x.rank ~= 1 or #x == 0 or y.rank < 1 or y.rank > 2 or #y ~= #x then
      fail("shape_mismatch", ("np.polyfit: x is %s and y is %s, wanted (n) and (n) or (n, curves)"):format(
        tostring(x.shape), tostring(y.shape)))
    end
    local powers, power = {}, np.ones_like(x)
    for i = given.deg + 1, 1, -1 do
      powers[i] = power
      power = power * x
    end
    -- Powers are of very different sizes; as vectors of length 1 they are told apart.
    local columns = np.stack(powers, 1)
    local length = np.sqrt((columns * columns):sum(0))
    length = np.where(length:eq(0), 1, length)
    local fit = np.linalg.lstsq(columns / length, y, #x * 2 ^ -52)
    return fit / (y.rank == 2 and length:reshape({ -1, 1 }) or length)
  end

  local polyval_signature = signature("np.polyval", { { "p", "any" }, { "x", "any" } })
  --- The polynomial with these coefficients, that of the highest power first, at `x`; of a number a number.
  --- @return any
  function np.polyval(...)
    local given = polyval_signature:parse(...)
    local p = as_array(given.p, "np.polyval")
    if p.rank ~= 1 then
      fail("shape_mismatch", "np.polyval wants coefficients along one axis, got " .. tostring(p.shape))
    end
    local x, value = given.x, 0
    if type(x) ~= "number" then
      x = as_array(x, "np.polyval")
      if ndarray.is_array(given.p) then x = cast(x, ndarray.promote(x.dtype, p.dtype)) end
      value = np.zeros_like(x)
    end
    local coefficients = ndarray.is_array(given.p) and p:totable() or given.p
    for _, coefficient in ipairs(coefficients) do value = value * x + coefficient end
    return value
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
