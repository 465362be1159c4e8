--- The functions of flow.np on curves, values that follow one another along an axis: differences, slopes, areas,
-- smoothing, and what lies between the points.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"

local cast, as_array, axis_of, part = ndarray.cast, ndarray.as_array, ndarray.axis_of, ndarray.part
local signature, fail = arguments.signature, errors.raise

-- Neighbours along an axis: all but the first, and all but the last.
local function neighbours(a, axis)
  local size = a.shape[axis]
  return part(a, axis, 1, size), part(a, axis, 0, math.max(size - 1, 0))
end

local diff_signature = signature("np.diff", { { "a", "any" }, { "n", "integer", 1 }, { "axis", "integer", -1 },
  { "prepend", "any?" }, { "append", "any?" } })
--- Each element less the one before it along `axis`, and of these again, `n` times over. `prepend` and `append` are
--- what stands before the first and behind the last, a number or slices: `np.diff(counts, { prepend = 0 })`.
--- @error n below 0; slices that do not fit
function np.diff(...)
  local given = diff_signature:parse(...)
  local a = ndarray.exact(given.a, "np.diff")
  local axis = axis_of(a, given.axis, "np.diff")
  if given.n < 0 then fail("invalid_argument", ("np.diff: n must be at least 0, got %d"):format(given.n)) end
  local function at_end(more)
    if more == nil then return part(a, axis, 0, 0) end
    if type(more) ~= "number" then return more end
    local sizes = a.shape:table()
    sizes[axis + 1] = 1
    return np.full(sizes, more, (dtypes.floating[a.dtype] or more % 1 == 0) and a.dtype or "float64")
  end
  if given.n > 0 and (given.prepend ~= nil or given.append ~= nil) then
    a = np.concat({ at_end(given.prepend), a, at_end(given.append) }, axis)
  end
  for _ = 1, math.min(given.n, a.shape[axis]) do
    local later, earlier = neighbours(a, axis)
    a = later - earlier
  end
  return ndarray.as_made(a, given.a, ndarray.is_array(given.prepend) and given.prepend or given.append)
end

-- The slopes along an axis: inside each is that of the parabola through a point and its neighbours; at the ends that of
-- the line through the last two, or with `edge_order` 2 of the parabola through the last three.

-- At the end p[i] of points that follow in steps of `step`.
local function slope_at_end(p, i, step, d, edge_order)
  local near = (p[i + step] - p[i]) / d
  if edge_order == 1 then return near end
  return near + (near - (p[i + 2 * step] - p[i + step]) / d) / 2
end

-- Of points that are `d` apart, which may lie `step` elements apart. The point itself is no part of its own slope, so a
-- NaN there does not matter.
local function even_slopes(p, size, count, step, d, edge_order, out)
  local length, width = count * step, 2 * d
  for first = 0, size - length, length do
    local last = first + length - step
    for i = first + step, last - 1 do out[i] = (p[i + step] - p[i - step]) / width end
    for i = 0, step - 1 do
      out[first + i] = slope_at_end(p, first + i, step, d, edge_order)
      out[last + i] = slope_at_end(p, last + i, -step, -d, edge_order)
    end
  end
end

-- Of `f` where `d` is how far each point is from the next.
local function uneven_slopes(f, axis, d, edge_order)
  local count = f.shape[axis]
  local function points(first, last) return part(f, axis, first, last) end
  local function apart(first, last) return part(d, axis, first, last) end
  local function lines(first, last) return (points(first + 1, last + 1) - points(first, last)) / apart(first, last) end

  local before, behind = apart(0, count - 2), apart(1, count - 1)
  local uneven = (lines(0, count - 2) * behind + lines(1, count - 1) * before) / (before + behind)
  local even = (points(2, count) - points(0, count - 2)) / (before + behind)
  local inner = np.where(before:eq(behind), even, uneven)

  local function at_end(i, next)
    local near = lines(i, i + 1)
    if edge_order == 1 then return near end
    -- The slope of a parabola changes evenly, and in the middle between two points it is that of their line.
    local of_near, of_far = apart(i, i + 1), apart(next, next + 1)
    return near + (near - lines(next, next + 1)) * of_near / (of_near + of_far)
  end
  return np.concat({ at_end(0, 1), inner, at_end(count - 2, count - 3) }, axis)
end

-- Of `f` in its own dtype, computed in double precision.
local function slopes(f, axis, d, edge_order)
  if type(d) ~= "number" then return cast(uneven_slopes(cast(f, "float64"), axis, d, edge_order), f.dtype) end
  local points, step = ndarray.readable(f), 1
  local out = core.zeros(points.dtype, f.shape:table())
  for i = axis + 1, f.rank - 1 do step = step * f.shape[i] end
  if step > 0 then
    even_slopes(points:ptr(), f.shape:count(), f.shape[axis], step, d, edge_order, out:ptr())
  end
  return cast(out, f.dtype)
end

-- How far the points along an axis are apart: `spacing` everywhere, a number, or what lies between places.
local function distances(f, axis, spacing)
  local count, sizes = f.shape[axis], {}
  for i = 1, f.rank do sizes[i] = i - 1 == axis and count - 1 or 1 end
  if type(spacing) == "number" then return spacing end
  local places = as_array(spacing, "np.gradient", "float64")
  if places.rank == 0 then return places:item() end
  if places.rank ~= 1 or #places ~= count then
    fail("shape_mismatch", ("np.gradient: the places along axis %d are %s for %d points"):format(axis,
      tostring(places.shape), count))
  end
  return np.diff(cast(places, "float64")):reshape(sizes)
end

local gradient_signature = signature("np.gradient",
  { { "f", "any" }, { "spacing", "any?" }, { "axis", "list?" }, { "edge_order", "integer", 1 } })
--- The slopes of `f` at its points, shaped as `f`, along each axis: `local dy, dx = np.gradient(height)`. Behind `f`
--- may stand how far the points are apart, 1 without a word: one number for all axes, or one after the other for each
--- axis a number or the places of its points: `np.gradient(position, times)`. A last `{ axis = 0 }` or
--- `{ axis = { 0, 2 } }` has only these axes. Each slope is that of the parabola through a point and both neighbours,
--- at the ends that of the line to the neighbour, or with `edge_order = 2` of the parabola. In double precision.
--- @return any
--- @error fewer points along an axis than edge_order + 1; spacings for another number of axes
function np.gradient(f, ...)
  local spacings, count = { ... }, select("#", ...)
  local options = spacings[count]
  if type(options) == "table" and not getmetatable(options) and type(next(options)) == "string" then
    count = count - 1
  else
    options = {}
  end
  local given = gradient_signature:parse(f, nil, nil, nil, options)
  if given.spacing ~= nil then spacings, count = { given.spacing }, 1 end
  f = ndarray.floating(as_array(f, "np.gradient"))
  local axes = given.axis and arguments.flat_list(given.axis) or {}
  for axis = 1, given.axis and 0 or f.rank do axes[axis] = axis - 1 end
  if #axes == 0 then fail("shape_mismatch", "np.gradient: there is no axis to go along") end
  if count > 1 and count ~= #axes then
    fail("invalid_argument", ("np.gradient: %d spacings for %d axes; it wants one for all or one for each"):format(
      count, #axes))
  elseif given.edge_order ~= 1 and given.edge_order ~= 2 then
    fail("invalid_argument", ("np.gradient: edge_order can be 1 or 2, got %d"):format(given.edge_order))
  end
  local results = {}
  for i, axis in ipairs(axes) do
    axis = axis_of(f, axis, "np.gradient")
    if f.shape[axis] < given.edge_order + 1 then
      fail("shape_mismatch", ("np.gradient: axis %d has %d points, and edge_order %d needs %d"):format(axis,
        f.shape[axis], given.edge_order, given.edge_order + 1))
    end
    local d = distances(f, axis, count == 0 and 1 or spacings[count == 1 and 1 or i])
    results[i] = slopes(f, axis, d, given.edge_order)
  end
  return unpack(results)
end

local unwrap_signature = signature("np.unwrap", { { "p", "any" }, { "discont", "number?" },
  { "axis", "integer", -1 }, { "period", "number", 2 * math.pi } })
--- Angles that run on where they jump: each step along `axis` that is longer than half a `period`, and than
--- `discont`, is shortened by whole periods. In double precision.
--- @error a period that is not above 0
function np.unwrap(...)
  local given = unwrap_signature:parse(...)
  local p, period = ndarray.floating(as_array(given.p, "np.unwrap")), given.period
  local axis, half = axis_of(p, given.axis, "np.unwrap"), period / 2
  if not (period > 0 and period < math.huge) then
    fail("invalid_argument", ("np.unwrap: the period must be above 0, got %g"):format(period))
  end
  if p.shape[axis] < 2 then return p:copy() end
  local exact = cast(p, "float64")
  local step = np.diff(exact, { axis = axis })
  local short = (step + half) % period - half
  -- Half a period up stays one up.
  short = np.where(np.logical_and(short:eq(-half), step:gt(0)), half, short)
  local correction = np.where(np.abs(step):lt(math.max(given.discont or half, half)), 0, short - step)
  local corrections = np.concat({ np.zeros_like(part(exact, axis, 0, 1)), np.cumsum(correction, axis) }, axis)
  return cast(exact + corrections, p.dtype)
end

local trapezoid_signature = signature("np.trapezoid",
  { { "y", "any" }, { "x", "any?" }, { "dx", "number", 1 }, { "axis", "integer", -1 } })
--- The area under the straight pieces between points along `axis`, `dx` apart or at the places `x`: one for each
--- point along the axis, or shaped as `y`. Where no axis is left a number.
--- @return any
--- @error x that is not one for each point
function np.trapezoid(...)
  local given = trapezoid_signature:parse(...)
  local x = given.x
  local y = ndarray.floating(as_array(given.y, "np.trapezoid", ndarray.is_array(x) and x.dtype or "float64"))
  local axis, width = axis_of(y, given.axis, "np.trapezoid"), given.dx
  if x ~= nil then
    x = as_array(x, "np.trapezoid", ndarray.is_array(given.y) and y.dtype or "float64")
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
  return area.rank == 0 and area:item() or ndarray.as_made(area, given.y, given.x)
end

-- Adds to each of the sums from `first` on those of the products p[i - k] q[k] that there are. One k after the other in
-- a long loop, over as many sums as the nearest cache holds.
local function add_products(p, count, q, width, first, last, sums)
  local BLOCK = 1024
  for start = first, last - 1, BLOCK do
    local stop = math.min(start + BLOCK, last)
    for k = 0, width - 1 do
      local factor = q[k]
      for i = math.max(start, k), math.min(stop, k + count) - 1 do
        sums[i - first] = sums[i - first] + p[i - k] * factor
      end
    end
  end
end

-- The sums of products of one curve with another that runs backwards past it, in one of three modes.
local function convolved(a, v, mode, called)
  local dtype
  a, v = ndarray.both(a, v, called)
  a, v, dtype = ndarray.operands(a, v, called)
  if a.rank ~= 1 or v.rank ~= 1 or #a == 0 or #v == 0 then
    fail("shape_mismatch", ("%s wants two arrays of one axis with elements, got %s and %s"):format(called,
      tostring(a.shape), tostring(v.shape)))
  end
  if #v > #a then a, v = v, a end
  local count, width, first, last = #a, #v, 0, #a + #v - 1
  if mode == "same" then
    first = math.floor((width - 1) / 2)
    last = first + count
  elseif mode == "valid" then
    first, last = width - 1, count
  elseif mode ~= "full" then
    fail("invalid_argument", called .. ": the mode is \"full\", \"same\" or \"valid\", got '" .. mode .. "'"
      .. arguments.suggestion(mode, { "full", "same", "valid" }))
  end
  a, v = cast(a, "float64"), cast(v, "float64")
  local out = core.zeros("float64", { last - first })
  add_products(a:ptr(), count, v:ptr(), width, first, last, out:ptr())
  return cast(out, dtypes.floating[dtype] and dtype or "int64")
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
  return convolved(given.a, given.v, given.mode, "np.convolve")
end

local correlate_signature = signature("np.correlate",
  { { "a", "any" }, { "v", "any" }, { "mode", "string", "valid" } })
--- The sums of products of one curve with another that is moved along it: how alike they are at each distance.
---   out[k] = sum over n of a[n + k] * v[n]
--- Modes, dtypes and precision are those of np.convolve; "full" begins with the last element of `v` on the first one
--- of `a`.
--- @error an array without elements, or of another rank than 1
function np.correlate(...)
  local given = correlate_signature:parse(...)
  local a, v = ndarray.both(given.a, given.v, "np.correlate")
  -- With the longer one first, so that the middle of "same" is rounded as NumPy has it.
  if v.rank == 1 and a.rank == 1 and #v > #a then
    return np.flip(convolved(v, np.flip(a), given.mode, "np.correlate"))
  end
  return convolved(a, v.rank == 1 and np.flip(v) or v, given.mode, "np.correlate")
end

local interp_signature = signature("np.interp",
  { { "x", "any" }, { "xp", "any" }, { "fp", "any" }, { "left", "number?" }, { "right", "number?" },
    { "period", "finite?" } })
--- At `x` the value of the straight pieces between the points (xp[i], fp[i]), with xp ascending. Before the first one
--- `left`, behind the last one `right`, which without a word are the values there. With a `period`, 360 of angles in
--- degrees, the points come again after it, in any order, and nothing is before or behind them. Computed in float64; of
--- a number a number.
--- @return any
function np.interp(...)
  local given = interp_signature:parse(...)
  local xp, fp = as_array(given.xp, "np.interp", "float64"), as_array(given.fp, "np.interp", "float64")
  xp, fp = xp:astype("float64"), fp:astype("float64")
  local is_number = type(given.x) == "number"
  local x = ndarray.floating(ndarray.exact(given.x, "np.interp"))
  local dtype, count = x.dtype, xp.rank == 1 and #xp or 0
  x = x:astype("float64")
  if count == 0 or xp.shape ~= fp.shape then
    fail("shape_mismatch", ("np.interp: xp is %s and fp is %s, wanted one axis of the same size"):format(
      tostring(xp.shape), tostring(fp.shape)))
  end
  if given.period then
    local period = given.period
    if period <= 0 then fail("invalid_argument", ("np.interp: the period must be above 0, got %g"):format(period)) end
    local order = np.argsort(xp % period)
    xp, fp, x = (xp % period):take(order), fp:take(order), x % period
    xp = np.concat({ xp:rows(count - 1, 1) - period, xp, xp:rows(0, 1) + period })
    fp = np.concat({ fp:rows(count - 1, 1), fp, fp:rows(0, 1) })
    count = count + 2
  end
  if not np.diff(xp):ge(0):all() then fail("invalid_argument", "np.interp: xp must ascend") end
  local place = np.maximum(np.searchsorted(xp, x, "right") - 1, 0)
  local behind = np.minimum(place + 1, count - 1)
  local x0, f0, f1 = xp:take(place), fp:take(place), fp:take(behind)
  local share = (x - x0) / np.where(behind:eq(place), 1, xp:take(behind) - x0)
  local result = f0 + share * (f1 - f0)
  -- Beside an infinite one from the other end; at a point its own value, also where the next one is infinite.
  result = np.where(np.isnan(result), f1 + (share - 1) * (f1 - f0), result)
  result = np.where(np.logical_or(x:eq(x0), f0:eq(f1)), f0, result)
  result = np.where(x:lt(xp[0]), given.left or fp[0], result)
  result = np.where(x:gt(xp[count - 1]), given.right or fp[count - 1], result)
  result = np.where(np.isnan(x), np.nan, result)
  return is_number and result:item() or ndarray.as_made(cast(result, dtype), given.x)
end
