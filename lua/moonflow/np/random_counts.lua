--- Draws of counts for flow.np.random: binomial and Poisson, by looking up one uniform draw among the summed chances.
-- Where all draws have one distribution its sums are made once; where each has its own, they are gone through twice.

local core = require "moonflow.core"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"

local exp, floor, max, min, sqrt = math.exp, math.floor, math.max, math.min, math.sqrt

local counts = {}

local MOST_VARIANCE = 1e10  -- of which the chances take some 16 MB

-- The sums of the chances of the counts from `low` on, up to a factor. Those further than ten deviations and fifty from
-- the mode are less likely than a uniform draw can tell. `up(k)` is the chance of k + 1 divided by that of k.
local function summed(mode, deviation, most, up)
  local reach = floor(10 * deviation) + 50
  local low, high = max(0, mode - reach), min(most, mode + reach)
  local sums = core.zeros("float64", { high - low + 1 })
  local p, top = sums:ptr(), mode - low
  p[top] = 1
  for i = top - 1, 0, -1 do p[i] = p[i + 1] / up(low + i) end
  for i = top + 1, high - low do p[i] = p[i - 1] * up(low + i - 1) end
  for i = 1, high - low do p[i] = p[i] + p[i - 1] end
  return sums, low
end

local function draw(sums, low, uniform)
  local last = #sums - 1
  local places = np.searchsorted(sums, uniform * sums[last], "right")
  -- The last sum itself may come of rounding.
  return low + (ndarray.evaluate("minimum", { places, core.array(last, "int64", {}) }))
end

local function check_variance(variance, called)
  if variance > MOST_VARIANCE then
    errors.raise("out_of_range", ("%s: the variance is %g, and must be at most %g"):format(called, variance,
      MOST_VARIANCE))
  end
end

--- How many of n tries succeed, each with chance p, for each element of a float64 array of draws from [0, 1): int64.
function counts.binomial(n, p, uniform, called)
  if p > 0.5 then return n - counts.binomial(n, 1 - p, uniform, called) end
  local variance = n * p * (1 - p)
  check_variance(variance, called)
  local odds = p / (1 - p)
  local sums, low = summed(min(n, floor((n + 1) * p)), sqrt(variance), n, function(k)
    return (n - k) / (k + 1) * odds
  end)
  return draw(sums, low, uniform)
end

--- How often something happens that happens `mean` times on average: int64.
function counts.poisson(mean, uniform, called)
  check_variance(mean, called)
  local sums, low = summed(floor(mean), sqrt(mean), math.huge, function(k) return mean / (k + 1) end)
  return draw(sums, low, uniform)
end

local FEW = 30  -- that the mode may be at, so that the chance of 0 is a number and a sum from there is short

-- The first count at which the chances, from the least one on, come to a share of all. That of 0 is `none`, and that of
-- k + 1 is that of k times (a - b k) / (k + 1).
local function drawn(mode, deviation, most, none, a, b, share)
  local reach = floor(10 * deviation) + 50
  local low, high = max(0, mode - reach), min(most, mode + reach)
  local chance, wanted = none, share
  if mode > FEW then  -- from the mode, whose chance is 1 then, to both sides
    local all = 1
    chance = 1
    for k = mode, high - 1 do
      chance = chance * (a - b * k) / (k + 1)
      all = all + chance
    end
    chance = 1
    for k = mode - 1, low, -1 do
      chance = chance * (k + 1) / (a - b * k)
      all = all + chance
    end
    wanted = share * all
  end
  local sum = chance
  for k = low, high - 1 do
    if sum > wanted then return k end
    chance = chance * (a - b * k) / (k + 1)
    sum = sum + chance
  end
  return high
end

-- A compiled loop does not notice a Ctrl-C, so this one is none: it goes through `count` draws by some at a time.
local function in_parts(count, draw_some)
  for first = 0, count - 1, 256 do draw_some(first, min(first + 256, count) - 1) end
end
if jit then jit.off(in_parts) end

--- As `binomial`, of an n and a p for each draw, float64 arrays.
function counts.binomial_of_each(n, p, uniform, called)
  local result = core.zeros("int64", uniform.shape:table())
  if p.nbytes == 0 then return result end
  check_variance((n * p * (1 - p)):max(), called)
  local to, all_tries, chances, shares = result:ptr(), n:ptr(), p:ptr(), uniform:ptr()
  in_parts(p.nbytes / 8, function(first, last)
    for i = first, last do
      local tries, chance = all_tries[i], min(chances[i], 1 - chances[i])
      local odds = chance / (1 - chance)
      local deviation = sqrt(tries * chance * (1 - chance))
      local count = drawn(min(tries, floor((tries + 1) * chance)), deviation, tries, (1 - chance) ^ tries,
        tries * odds, odds, shares[i])
      to[i] = chances[i] > 0.5 and tries - count or count
    end
  end)
  return result
end

--- As `poisson`, of a mean for each draw.
function counts.poisson_of_each(mean, uniform, called)
  local result = core.zeros("int64", uniform.shape:table())
  if mean.nbytes == 0 then return result end
  check_variance(mean:max(), called)
  local to, means, shares = result:ptr(), mean:ptr(), uniform:ptr()
  in_parts(mean.nbytes / 8, function(first, last)
    for i = first, last do
      local wanted = means[i]
      to[i] = drawn(floor(wanted), sqrt(wanted), math.huge, exp(-wanted), wanted, 0, shares[i])
    end
  end)
  return result
end

return counts
