-- flow.np.random: generators of random arrays, and the one that all scripts share.

local core = require "moonflow.core"
local answer = require "moonflow.answer"
local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local generators = require "moonflow.np.generator"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"
local counts = require "moonflow.np.random_counts"
local random_seed = require "moonflow.random_seed"
local trace = require "moonflow.trace"

local evaluate, as_array, is_array = ndarray.evaluate, ndarray.as_array, ndarray.is_array
local signature = arguments.signature
local fail = errors.raise

local Generator, arrays_of, composed = generators.Generator, generators.arrays_of, generators.composed
local check_all, check_above_0, check_range = generators.check_all, generators.check_above_0, generators.check_range
local shape_of, two_numbers, whole_bounds = generators.shape_of, generators.two_numbers, generators.whole_bounds

require "moonflow.np.random_formulas"
require "moonflow.np.random_gamma"

local random = {}

local DRAWS = "uniform normal randint integers exponential gamma beta dirichlet binomial poisson multinomial "
  .. "multivariate_normal random standard_normal rand randn permutation shuffle choice lognormal laplace logistic "
  .. "gumbel pareto weibull rayleigh triangular geometric chisquare standard_t zipf"
arguments.publish("Generator", "generator", Generator, DRAWS .. " get_state set_state")
answer(Generator, "a generator")

local uniform_signature = signature("np.random.uniform",
  { { "low", "numbers", 0 }, { "high", "numbers", 1 }, { "shape", "list?" }, { "dtype", "floating", "float32" } })
--- Uniform in [low, high). Without a shape one number, or one for each where a bound is an array.
--- @return any
--- @error low above high
function Generator:uniform(...)
  arguments.check_self(self, Generator, "generator:uniform")
  local from, to = two_numbers(0, 1, ...)
  if from and from <= to then return self:draw_one(core.draw_uniform, from, to) end
  local given = uniform_signature:parse(...)
  local bounds, shape = arrays_of(given, { "low", "high" }, "np.random.uniform")
  if bounds then
    local low, high = unpack(bounds)
    generators.check_finite(low, "low", "np.random.uniform")
    generators.check_finite(high, "high", "np.random.uniform")
    local takes_shape = type(given.low) == "table" and not given.shape
    check_all(high, low:gt(high), "high", "at least low", "np.random.uniform", takes_shape and "; the list is taken as "
      .. "low, for a draw of each: that of sizes is named, { size = { 2, 3 } }" or nil)
    local u = self:uniform(0, 1, shape, "float64")
    local drawn = ndarray.cast(np.maximum(low * (1 - u) + high * u, low), given.dtype)  -- high - low may be infinite
    -- What is rounded up to `high` is drawn as seldom as `low` is.
    low, high = ndarray.cast(low, given.dtype), ndarray.cast(high, given.dtype)
    return np.where(drawn:ge(high), low, drawn)
  end
  return self:draw("random_uniform", given, { low = given.low, high = given.high }, "np.random.uniform")
end

local normal_signature = signature("np.random.normal",
  { { "mean", "numbers", 0 }, { "stddev", "numbers", 1 }, { "shape", "list?" }, { "dtype", "floating", "float32" } })
--- Normal with this mean and standard deviation. Without a shape one number, or one for each where one of these is an
--- array: `np.random.normal(predicted, 0.1)`.
--- @return any
--- @error a stddev below 0
function Generator:normal(...)
  arguments.check_self(self, Generator, "generator:normal")
  local centre, deviation = two_numbers(0, 1, ...)
  if centre and deviation >= 0 then return self:draw_one(core.draw_normal, centre, deviation) end
  return generators.normal(self, normal_signature:parse(...), "np.random.normal")
end

-- Whole numbers in [low, high), or in [0, low).
local function whole_numbers(generator, given, called)
  local low, high = given.low, given.high
  if not high then low, high = 0, low end
  if given.endpoint then high = high + 1 end
  if high <= low then
    fail("invalid_argument", ("%s: no whole number lies in [%d, %d)"):format(called, low, high))
  end
  return generator:draw("random_int", given, { low = low, high = high }, called)
end

local randint_signature = signature("np.random.randint",
  { { "low", "integer" }, { "high", "integer?" }, { "shape", "list?" }, { "dtype", "dtype", "int64" } })
--- Whole numbers in [low, high); with one number, in [0, low). Without a shape one of them.
--- @return any
--- @error no whole number between them, or one that the dtype does not have
function Generator:randint(...)
  arguments.check_self(self, Generator, "generator:randint")
  local low, high = whole_bounds(...)
  if low then return self:draw_one(core.draw_integer, low, high) end
  return whole_numbers(self, randint_signature:parse(...), "np.random.randint")
end

local integers_signature = signature("np.random.integers", { { "low", "integer" }, { "high", "integer?" },
  { "shape", "list?" }, { "dtype", "dtype", "int64" }, { "endpoint", "boolean", false } })
--- Whole numbers in [low, high), or with one number in [0, low), as np.random.randint draws them; with
--- `endpoint = true` up to and with the upper end.
--- @return any
--- @error those of np.random.randint
function Generator:integers(...)
  arguments.check_self(self, Generator, "generator:integers")
  local low, high = whole_bounds(...)
  if low then return self:draw_one(core.draw_integer, low, high) end
  return whole_numbers(self, integers_signature:parse(...), "np.random.integers")
end

local exponential_signature = signature("np.random.exponential",
  { { "scale", "numbers", 1 }, { "shape", "list?" }, { "dtype", "floating", "float32" } })
--- Exponential with this mean: the times between what happens at random. Without a shape one number, or one for each
--- where `scale` is an array.
--- @return any
--- @error a scale that is not above 0
function Generator:exponential(...)
  arguments.check_self(self, Generator, "generator:exponential")
  return composed(exponential_signature:parse(...), { "scale" }, "np.random.exponential",
    function(scale) check_above_0(scale, "scale", "np.random.exponential") end,
    function(shape, scale)
      return evaluate("log1p", { -self:uniform(0, 1, shape, "float64") }) * -scale
    end)
end

local MOST = 2 ^ 53  -- up to there every whole number is one of Lua's

local binomial_signature = signature("np.random.binomial",
  { { "n", "numbers" }, { "p", "numbers" }, { "shape", "list?" }, { "dtype", "dtype", "int64" } })
--- How many of `n` tries succeed, each with chance `p`. Without a shape one number, or one for each where one of these
--- is an array.
--- @return any
--- @error an n that is no whole number from 0 on; p outside [0, 1]; a variance above 1e10; a count beyond the dtype
function Generator:binomial(...)
  arguments.check_self(self, Generator, "generator:binomial")
  local called = "np.random.binomial"
  return composed(binomial_signature:parse(...), { "n", "p" }, called,
    function(n, p)
      check_range(n, "n", 0, MOST, "from 0 to 2^53", called)
      check_range(p, "p", 0, 1, "a chance from 0 to 1", called)
      local part = n % 1
      if type(n) == "number" and part ~= 0 then fail("invalid_argument", called .. ": n must be whole, got " .. n) end
      if type(n) ~= "number" then check_all(n, part:ne(0), "n", "whole", called) end
    end,
    function(shape, n, p)
      local draw = type(n) == "number" and counts.binomial or counts.binomial_of_each
      return draw(n, p, self:uniform(0, 1, shape, "float64"), called)
    end)
end

local poisson_signature = signature("np.random.poisson",
  { { "lam", "numbers", 1 }, { "shape", "list?" }, { "dtype", "dtype", "int64" } })
--- How often something happens that happens `lam` times on average, each time by itself. Without a shape one number, or
--- one for each where `lam` is an array: `np.random.poisson(np.exp(x))`.
--- @return any
--- @error lam below 0 or above 1e10; a count that the dtype does not have
function Generator:poisson(...)
  arguments.check_self(self, Generator, "generator:poisson")
  local called = "np.random.poisson"
  return composed(poisson_signature:parse(...), { "lam" }, called,
    function(lam) check_range(lam, "lam", 0, math.huge, "at least 0", called) end,
    function(shape, lam)
      local draw = type(lam) == "number" and counts.poisson or counts.poisson_of_each
      return draw(lam, self:uniform(0, 1, shape, "float64"), called)
    end)
end

-- The sums of the chances up to each of n places, or of however many there are, float64. They are used in proportion.
local function summed_chances(p, n, called)
  local chances = as_array(p, called, "float64")
  if chances.rank ~= 1 or #chances ~= (n or #chances) or #chances == 0 then
    fail("invalid_argument", ("%s: p must be %s, one for each, and has the shape %s"):format(called,
      n and n .. " chances" or "chances along one axis", tostring(chances.shape)))
  end
  local sums, total = chances:astype("float64"), 0  -- a copy
  local values = sums:ptr()
  for i = 0, #sums - 1 do
    local chance = values[i]
    if not (chance >= 0 and chance < math.huge) then
      fail("invalid_argument", ("%s: a chance is at least 0, and that of %d is %g"):format(called, i, chance))
    end
    total = total + chance
    values[i] = total
  end
  if math.abs(total - 1) > 1e-3 then
    fail("invalid_argument", ("%s: the chances add up to %g, not to 1"):format(called, total))
  end
  return sums
end

local kFew = 1000  -- for more a sort is faster than a search for each

-- For each of an array of draws from [0, 1) the first place whose sum is above that share of the whole.
local function places_of(sums, shares)
  local count, values = #sums, sums:ptr()
  local total = values[count - 1]
  if shares.shape:count() > kFew then
    -- The last sum itself may come of rounding.
    return np.minimum(np.searchsorted(sums, shares * total, "right"), count - 1)
  end
  local places = shares:ravel():totable()
  for i, share in ipairs(places) do
    local low, high = 0, count - 1
    while low < high do
      local middle = math.floor((low + high) / 2)
      if values[middle] > share * total then high = middle else low = middle + 1 end
    end
    places[i] = low
  end
  return core.array(places, "int64", shares.shape:table())
end

local multinomial_signature = signature("np.random.multinomial",
  { { "n", "integer" }, { "p", "any" }, { "shape", "list?" } })
--- How often each of several things happens in `n` tries, each of which gives one of them: int64. `p` has the chance of
--- each.
--- shapes: p (things) -> (shape..., things), without a shape (things)
--- @error n below 0; chances below 0 or that do not add up to 1
function Generator:multinomial(...)
  arguments.check_self(self, Generator, "generator:multinomial")
  local given = multinomial_signature:parse(...)
  if given.n < 0 then
    fail("invalid_argument", ("np.random.multinomial: n must be at least 0, got %d"):format(given.n))
  end
  local sums = summed_chances(given.p, nil, "np.random.multinomial")
  local things, shape, rows = #sums, shape_of(given.shape, "np.random.multinomial", {}), 1
  for _, size in ipairs(shape) do rows = rows * size end
  shape[#shape + 1] = things
  if things > given.n then  -- each try by itself
    local found = places_of(sums, self:uniform(0, 1, { rows, given.n }, "float64"))
    local counted = found + np.arange(rows):reshape({ -1, 1 }) * things
    return np.bincount(counted, { minlength = rows * things }):reshape(shape)
  end
  -- Of the tries that are left how many give the next thing.
  local result, left, before, whole = {}, np.full({ rows }, given.n, "float64"), 0, sums[things - 1]
  for i = 0, things - 2 do
    local share = before < whole and math.min((sums[i] - before) / (whole - before), 1) or 0
    local count = counts.binomial_of_each(left, np.full({ rows }, share, "float64"),
      self:uniform(0, 1, { rows }, "float64"), "np.random.multinomial")
    result[i + 1], left, before = count, left - count, sums[i]
  end
  result[things] = left:astype("int64")
  return np.stack(result, 1):reshape(shape)
end

local multivariate_signature = signature("np.random.multivariate_normal",
  { { "mean", "any" }, { "cov", "any" }, { "shape", "list?" }, { "dtype", "floating", "float32" } })
--- Normal vectors with this mean and these covariances. By the eigenvectors of `cov`, which may be singular.
--- shapes: mean (n), cov (n, n) -> (shape..., n), without a shape (n)
--- @error the mean or cov is not finite; cov is not symmetric, or gives a direction a variance below 0
function Generator:multivariate_normal(...)
  arguments.check_self(self, Generator, "generator:multivariate_normal")
  local given = multivariate_signature:parse(...)
  local called = "np.random.multivariate_normal"
  local mean, cov = np.asarray(given.mean, "float64"), np.asarray(given.cov, "float64")
  local n = #mean
  if mean.rank ~= 1 or cov.rank ~= 2 or cov.shape[0] ~= n or cov.shape[1] ~= n then
    fail("shape_mismatch", ("%s: the mean is %s and cov is %s, wanted (n) and (n, n)"):format(called,
      tostring(mean.shape), tostring(cov.shape)))
  elseif not np.isfinite(cov):all() then
    fail("invalid_argument", called .. ": cov has elements that are not finite")
  elseif not np.isfinite(mean):all() then
    fail("invalid_argument", called .. ": the mean has elements that are not finite")
  elseif not np.allclose(cov, cov:transpose()) then
    fail("invalid_argument", called .. ": cov is not symmetric; (cov + cov:transpose()) / 2 is")
  end
  local variances, directions = np.linalg.eigh(cov)
  if n > 0 and variances:min() < -1e-6 * math.max(variances:max(), 0) then
    fail("invalid_argument", ("%s: cov gives a direction the variance %g, and none is below 0"):format(called,
      variances:min()))
  end
  local shape = shape_of(given.shape, called, {})
  shape[#shape + 1] = n
  local draws = self:normal(0, 1, shape, "float64") * np.sqrt(np.maximum(variances, 0))
  return ndarray.cast(np.matmul(draws, directions:transpose()) + mean, given.dtype)
end

local random_signature = signature("np.random.random", { { "shape", "list?" }, { "dtype", "floating", "float32" } })
--- Uniform in [0, 1). Without a shape one number.
--- @return any
function Generator:random(...)
  arguments.check_self(self, Generator, "generator:random")
  if select("#", ...) == 0 then return self:draw_one(core.draw_uniform, 0, 1) end
  return self:draw("random_uniform", random_signature:parse(...), { low = 0, high = 1 }, "np.random.random")
end

local standard_signature = signature("np.random.standard_normal",
  { { "shape", "list?" }, { "dtype", "floating", "float32" } })
--- Normal with mean 0 and deviation 1. Without a shape one number.
--- @return any
function Generator:standard_normal(...)
  arguments.check_self(self, Generator, "generator:standard_normal")
  if select("#", ...) == 0 then return self:draw_one(core.draw_normal, 0, 1) end
  return self:draw("random_normal", standard_signature:parse(...), { mean = 0, stddev = 1 },
    "np.random.standard_normal")
end

--- Uniform in [0, 1); sizes as arguments, as NumPy's older functions have them: rand(2, 3).
--- @return any
function Generator:rand(...)
  arguments.check_self(self, Generator, "generator:rand")
  return self:uniform(0, 1, select("#", ...) > 0 and shape_of({ ... }, "np.random.rand") or nil)
end
--- Normal with mean 0 and deviation 1; sizes as arguments.
--- @return any
function Generator:randn(...)
  arguments.check_self(self, Generator, "generator:randn")
  return self:normal(0, 1, select("#", ...) > 0 and shape_of({ ... }, "np.random.randn") or nil)
end

local permutation_signature = signature("np.random.permutation", { { "n", "any" }, { "axis", "integer", 0 } })
--- The numbers 0 .. n - 1 in random order, int64; or the rows of an array, or its slices along another axis.
function Generator:permutation(n, ...)
  arguments.check_self(self, Generator, "generator:permutation")
  local axis = select("#", ...) > 0 and permutation_signature:parse(n, ...).axis or 0
  if is_array(n) then
    axis = permutation_signature:axis(axis, n.rank)
    return n:take(self:permutation(n.shape[axis]), axis)
  end
  if type(n) ~= "number" or n < 0 or n % 1 ~= 0 then
    fail("invalid_argument", "np.random.permutation wants an array or how many numbers, got " .. arguments.describe(n))
  end
  permutation_signature:axis(axis, 1)
  if n == 0 then return core.empty("int64", { 0 }) end
  -- Zeros, as memory that nothing has been written to may hold what LuaJIT reads as no number.
  local chances, order = self:uniform(0, 1, { n }, "float64"), core.zeros("float64", { n })
  local chance, place = chances:ptr(), order:ptr()
  for i = 0, n - 1 do
    local j = math.floor(chance[i] * (i + 1))
    place[i] = place[j]
    place[j] = i
  end
  return order:astype("int64")
end

local shuffle_signature = signature("np.random.shuffle", { { "a", "any" }, { "axis", "integer", 0 } })
--- Puts the rows of an array, or its slices along another axis, or the entries of a list in random order, in their own
--- place: the order of `permutation`.
--- @return nil
function Generator:shuffle(a, ...)
  arguments.check_self(self, Generator, "generator:shuffle")
  local axis = select("#", ...) > 0 and shuffle_signature:parse(a, ...).axis or 0
  if not is_array(a) and (type(a) ~= "table" or getmetatable(a)) then
    fail("invalid_argument", "np.random.shuffle wants an array or a list, got " .. arguments.describe(a))
  end
  axis = shuffle_signature:axis(axis, is_array(a) and a.rank or 1)
  if is_array(a) then return a:set("...", self:permutation(a, axis)) end
  arguments.check_list(a, "np.random.shuffle: a list")
  local before = {}
  for i, entry in ipairs(a) do before[i] = entry end
  for i, place in ipairs(self:permutation(#a):totable()) do a[i] = before[place + 1] end
end

-- `count` of n places, each of which may come again.
local function with_replacement(generator, n, count, sums)
  if not sums then return generator:randint(0, n, { count }) end
  return places_of(sums, generator:uniform(0, 1, { count }, "float64"))
end

local function check_enough(count, possible, of)
  if count > possible then
    fail("invalid_argument", ("np.random.choice: %d cannot be drawn without replacement from %d%s"):format(
      count, possible, of))
  end
end

-- `count` different ones of n places: the first of a permutation, of which only those are known that are not where they
-- were, so few of many take no longer than few.
local function equally_likely(generator, n, count)
  check_enough(count, n, "")
  local chances, moved, list = generator:uniform(0, 1, { count }, "float64"):totable(), {}, {}
  for i = 1, count do
    local j = i + math.floor(chances[i] * (n - i + 1))
    list[i] = (moved[j] or j) - 1
    moved[j] = moved[i] or i
  end
  return core.array(list, "int64", { count })
end

-- The same with chances: each place waits for a time of its own, exponential with its chance as the rate, and who waits
-- least comes first: P. S. Efraimidis and P. G. Spirakis, "Weighted random sampling with a reservoir", Information
-- Processing Letters 2006.
local function by_chances(generator, n, count, sums)
  local chances = np.concat({ sums:rows(0, 1), np.diff(sums) }, 0)
  check_enough(count, np.count_nonzero(chances), " with a chance")
  local waits = -np.log(1 - generator:uniform(0, 1, { n }, "float64"))
  return np.argsort(np.where(chances:gt(0), waits / chances, math.huge)):rows(0, count)
end

local function without_replacement(generator, n, count, sums)
  if sums then return by_chances(generator, n, count, sums) end
  return equally_likely(generator, n, count)
end

local function row_of(rows, place)
  local row = rows and rows[place] or place
  return is_array(row) and row:copy() or row
end

local choice_signature = signature("np.random.choice",
  { { "a", "any" }, { "shape", "list?" }, { "replace", "boolean", true }, { "p", "any?" } })
--- Draws from the numbers 0 .. a - 1, int64, or copies of the rows of an array; without a shape, one. Of a list of
--- numbers one draw is the number itself, and several are those of the array that np.array makes of it. `p` has the
--- chance of each, and all are equal without it. `replace = false` draws none twice.
--- @return any
--- @error chances below 0, that do not add up to 1 or are not as many; more without replacement than there are
function Generator:choice(...)
  arguments.check_self(self, Generator, "generator:choice")
  local given = choice_signature:parse(...)
  local of_numbers = type(given.a) == "table" and type(given.a[1]) == "number"
  local rows = type(given.a) ~= "number"
    and as_array(given.a, "np.random.choice", not given.shape and of_numbers and "float64" or nil) or nil
  local n = not rows and given.a or rows.rank > 0 and rows.shape[0]
  if not n or n < 1 or n > MOST or n % 1 ~= 0 then
    fail("invalid_argument", "np.random.choice wants an array with a row, or how many numbers, got "
      .. arguments.describe(given.a))
  end
  local shape, count = shape_of(given.shape, "np.random.choice", {}), 1
  for _, size in ipairs(shape) do count = count * size end
  if not given.shape and given.replace and given.p == nil then
    return row_of(rows, self:randint(n))
  end
  local sums = given.p ~= nil and summed_chances(given.p, n, "np.random.choice") or nil
  local places = (given.replace and with_replacement or without_replacement)(self, n, count, sums)
  if not given.shape then
    return row_of(rows, places:item())
  end
  places = places:reshape(shape)
  return rows and rows:take(places, 0) or places
end

-- The generator of np.random itself follows the one seed: flow.set_seed makes its draws repeatable. A script has one
-- seed for that and for generators of its own, so its own is far from theirs, and from those of jobs.
local shared
local BEHIND_JOBS = 2 ^ 19 + 1

local function shared_generator_of(seed, called)
  shared = generators.of_seed(seed, called)
  shared.seed = random_seed.apart(seed, BEHIND_JOBS)
end

local seed_signature = signature("np.random.seed", { { "seed", "any" } })
--- Sets the seed of np.random alone: a whole number up to 2^53.
--- @return nil
function random.seed(...)
  shared_generator_of(seed_signature:parse(...).seed, "np.random.seed")
end
random_seed.on_set(random.seed)

local function of_all_scripts()
  if not shared then shared_generator_of(random_seed.value()) end
  return shared
end

local default_rng_signature = signature("np.random.default_rng", { { "seed", "any?" } })
--- A generator of its own: equal seeds give equal draws, other ones than np.random does after flow.set_seed with that
--- seed. `np.random.default_rng(7):uniform(-1, 1, { 5 })`. Without a seed it has one that np.random draws, so that all
--- of them differ, and follow flow.set_seed.
--- @return Generator
--- @error a seed that is no whole number up to 2^53; none in the body of a job
function random.default_rng(...)
  local seed = default_rng_signature:parse(...).seed
  if seed == nil then seed = random.integers(0, MOST) end
  return generators.of_seed(seed, "np.random.default_rng")
end

for _, name in ipairs({ "get_state", "set_state" }) do
  random[name] = function(...) return Generator[name](of_all_scripts(), ...) end
end

for name in DRAWS:gmatch("%S+") do
  random[name] = function(...)
    -- The body of a job runs once, so what looks like noise would be one array, the same in every run.
    if trace.current() then
      fail("wrong_state", "np.random." .. name .. " in the body of a job would draw once for all runs; flow.random "
        .. "draws anew in each, and np.random.default_rng(seed)'s numbers are constants")
    end
    return Generator[name](of_all_scripts(), ...)
  end
end

return random
