--- The least value of a function of which gradients are known, by L-BFGS: np.minimize.
-- Each iteration goes along a direction made of the last steps, and of how the gradient changed in them (Nocedal,
-- Wright, "Numerical Optimization", 2006, algorithms 7.4, 3.5 and 3.6). How far, a line search says: to where the value
-- is less by enough, and the slope is flatter by enough (Wolfe's conditions), which keeps the next direction one of
-- descent.

local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"

local abs, huge, max, min, sqrt = math.abs, math.huge, math.max, math.min, math.sqrt

local kEnough = 1e-4   -- of the decrease that the first slope promises
local kFlatter = 0.9   -- what is left of the first slope
local kMostTries = 25  -- values of one line search

-- Where the cubic with the values and slopes of two points is least, kept a tenth of their distance inside; their
-- middle where there is no such place, as beside an infinity.
local function between(a, b)
  local low, high = min(a.t, b.t), max(a.t, b.t)
  local slopes = a.slope + b.slope - 3 * (a.value - b.value) / (a.t - b.t)
  local root = sqrt(slopes * slopes - a.slope * b.slope) * (b.t > a.t and 1 or -1)
  local t = b.t - (b.t - a.t) * (b.slope + root - slopes) / (b.slope - a.slope + 2 * root)
  local inside = 0.1 * (high - low)
  if t ~= t or abs(t) == huge then return (low + high) / 2 end
  return max(low + inside, min(high - inside, t))
end

-- A point along a direction that fulfils Wolfe's conditions, or is less at least; nil where there is none. `at(t)`
-- gives a point, with its place t, its value and its slope along the direction; the first try is at `t`.
local function search_line(at, start, t)
  local tries = 0
  local function try(place)
    tries = tries + 1
    return at(place)
  end
  local function is_high(point, than)
    return point.value > start.value + kEnough * point.t * start.slope or point.value >= than.value
  end
  local function is_flat(point) return abs(point.slope) <= -kFlatter * start.slope end

  -- Between `low`, the least point so far with enough of a decrease, and `high` is a good one.
  local function narrow(low, high)
    while tries < kMostTries do
      local point = try(between(low, high))
      if is_high(point, low) then
        high = point
      elseif is_flat(point) then
        return point
      else
        if point.slope * (high.t - low.t) >= 0 then high = low end
        low = point
      end
    end
    return low.t > 0 and low or nil
  end

  local before = start
  while tries < kMostTries do
    local point = try(t)
    if is_high(point, before) then
      return narrow(before, point)
    elseif is_flat(point) then
      return point
    elseif point.slope >= 0 then
      return narrow(point, before)
    end
    before, t = point, 4 * t
  end
  return before.t > 0 and before or nil
end

local signature = arguments.signature("np.minimize", {
  { "f", "callable", text = "a function of an array like x that gives the value there, a number, and the gradient" },
  { "x", "any", text = "where the search begins" },
  { "iterations", "integer", 100, text = "how many at most" },
  { "tolerance", "finite", 1e-5, text = "no element of the gradient is larger at the end" },
  { "history", "integer", 10, text = "how many steps the next direction is made of" },
  { "callback", "callable?", text = "called with x, the value and the iteration, from 1 on, after each; what it "
    .. "gives ends the search, where that is true" },
})

-- The value and gradient of f at x, or infinity where it has none.
local function values_of(f, x, shape)
  local value, gradient = f(x:reshape(shape))
  if ndarray.is_array(value) and value.shape:count() == 1 then value = value:item() end
  if type(value) ~= "number" then
    signature:fail(": f must give a number and a gradient, got " .. arguments.describe(value))
  end
  if not ndarray.is_array(gradient) or gradient.shape ~= shape then
    signature:fail((": f must give a gradient of the shape %s beside the value, got %s"):format(tostring(shape),
      arguments.describe(gradient)))
  end
  gradient = ndarray.cast(gradient, x.dtype):ravel()
  if value ~= value or not np.isfinite(gradient):all() then value = huge end
  return value, gradient
end

-- The direction from a gradient: less the gradient times what the last steps say of the inverse of its derivative.
local function direction_of(gradient, steps)
  local q, parts = gradient, {}
  for i = #steps, 1, -1 do
    local step = steps[i]
    parts[i] = np.dot(step.by, q) / step.product
    q = q - parts[i] * step.change
  end
  local last = steps[#steps]
  if last then q = q * (last.product / np.dot(last.change, last.change)) end
  for i, step in ipairs(steps) do q = q + (parts[i] - np.dot(step.change, q) / step.product) * step.by end
  return -q
end

--- Looks for the x at which f is least, from a first one, by L-BFGS: f gives a value and its gradient, as a job does
--- that returns a loss and flow.gradients(loss, x). It suits what is smooth and the same at each call: all examples
--- and no dropout. Where the value is NaN or the gradient not finite it counts as too large, so f may be undefined in
--- places.
---   local x, least = np.minimize(function(x) return np.sum((x - 3) ^ 2), 2 * (x - 3) end, np.zeros({ 5 }))
--- An error of f ends the search. Where it is one of the place alone, as of a matrix that is not positive definite
--- there, f gives infinity in its place, and any gradient:
---   local fine, value, gradient = pcall(fit_job, x)
---   if fine then return value, gradient end
---   if not tostring(value):find("not positive definite") then error(value, 0) end
---   return math.huge, x
--- @return ndarray, number, table  x; the value there; and how it went: `iterations`, `calls` of f, `gradient`, the
---   largest element of the gradient, `converged`, and where that is false `why`
--- @error x without elements; what f gives is no number with a gradient like x; no finite value and gradient where it
---   begins
--- source: Nocedal, Mathematics of Computation 35, 1980; a line search for Wolfe's conditions
function np.minimize(...)
  local given = signature:parse(...)
  local x = ndarray.as_array(given.x, "np.minimize")
  if not dtypes.floating[x.dtype] or dtypes.narrow[x.dtype] then x = x:astype("float64") end
  for _, word in ipairs { "iterations", "history" } do
    if given[word] < 1 then signature:fail((": %s must be at least 1, got %d"):format(word, given[word])) end
  end
  if x.nbytes == 0 then signature:fail((": x is %s and has no elements to choose"):format(tostring(x.shape))) end
  local shape, how = x.shape, { iterations = 0, calls = 0, converged = false }
  local precision = x.dtype == "float64" and 2.3e-16 or 1.2e-7

  local function point_at(place)
    how.calls = how.calls + 1
    local value, gradient = values_of(given.f, place, shape)
    return { t = 0, x = place, value = value, gradient = gradient }
  end
  local point, steps = point_at(x:ravel():copy()), {}
  if abs(point.value) == huge then signature:fail(": f has no finite value and gradient where the search begins") end

  local function flat_enough()
    how.gradient = np.max(np.abs(point.gradient))
    return how.gradient <= given.tolerance
  end
  how.converged = flat_enough()
  while not how.converged and how.iterations < given.iterations do
    local direction = direction_of(point.gradient, steps)
    point.t, point.slope = 0, np.dot(point.gradient, direction)
    local next_point = point.slope < 0 and search_line(function(t)
      local there = point_at(point.x + t * direction)
      there.t, there.slope = t, there.value < huge and np.dot(there.gradient, direction) or huge
      return there
    end, point, #steps > 0 and 1 or min(1, 1 / np.sum(np.abs(point.gradient))))
    if next_point then
      how.iterations = how.iterations + 1
      local by, change = next_point.x - point.x, next_point.gradient - point.gradient
      local product, gained = np.dot(by, change), point.value - next_point.value
      if product > precision * np.dot(change, change) then
        if #steps == given.history then table.remove(steps, 1) end
        steps[#steps + 1] = { by = by, change = change, product = product }
      end
      point = next_point
      how.converged = flat_enough()
      if given.callback and given.callback(point.x:reshape(shape), point.value, how.iterations) then
        how.why = "the callback has ended it"
        break
      end
      if not how.converged and gained <= precision * max(abs(point.value), 1e-300) then
        how.why = "the value no longer falls by more than its dtype tells apart"
        break
      end
    elseif #steps > 0 then
      steps = {}  -- what they say is of another place: once more along the gradient
    else
      how.why = "no smaller value was found along the gradient"
      break
    end
  end
  if not how.converged then how.why = how.why or "it has come to the last iteration" end
  return point.x:reshape(shape), point.value, how
end
