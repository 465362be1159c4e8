--- Draws of flow.np.random that are a formula of others: mostly the quantile of the distribution at a uniform draw.

local arguments = require "moonflow.arguments"
local generators = require "moonflow.np.generator"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"

local Generator, composed = generators.Generator, generators.composed
local check_all, check_above_0 = generators.check_all, generators.check_above_0
local evaluate, cast, signature = ndarray.evaluate, ndarray.cast, arguments.signature

local function apply(op, ...) return (evaluate(op, { ... })) end

-- What the formula makes of a uniform draw in (0, 1) and of what these names are given as in a call of this signature.
local function by_formula(generator, called, names, check, formula, ...)
  return composed(called:parse(...), names, called.where, check, function(shape, ...)
    -- 0, of which there may be one among 2^53, is as good as half of the next.
    return formula(np.maximum(generator:uniform(0, 1, shape, "float64"), 2 ^ -54), ...)
  end)
end

local function located(called)
  return signature(called,
    { { "loc", "numbers", 0 }, { "scale", "numbers", 1 }, { "shape", "list?" }, { "dtype", "floating", "float32" } })
end

-- loc + scale * what the formula makes of a uniform draw.
local function located_draw(generator, called, formula, ...)
  return by_formula(generator, called, { "loc", "scale" },
    function(loc, scale)
      generators.check_finite(loc, "loc", called.where)
      check_above_0(scale, "scale", called.where)
    end,
    function(u, loc, scale) return formula(u) * scale + loc end, ...)
end

local laplace_signature = located "np.random.laplace"
--- Laplace around `loc`: two exponentials of mean `scale` back to back, the noise of differential privacy. Without a
--- shape one number, or one for each where one of these is an array.
--- @return any
--- @error a scale that is not above 0
function Generator:laplace(...)
  arguments.check_self(self, Generator, "generator:laplace")
  return located_draw(self, laplace_signature, function(u)
    return apply("where", u:lt(0.5), apply("log", u * 2), -apply("log", (1 - u) * 2))
  end, ...)
end

local logistic_signature = located "np.random.logistic"
--- Logistic around `loc`, whose distribution is a sigmoid of (x - loc) / scale. Without a shape one number, or one for
--- each where one of these is an array.
--- @return any
--- @error a scale that is not above 0
function Generator:logistic(...)
  arguments.check_self(self, Generator, "generator:logistic")
  return located_draw(self, logistic_signature, function(u)
    return apply("log", u) - apply("log1p", -u)
  end, ...)
end

local gumbel_signature = located "np.random.gumbel"
--- Gumbel, the greatest of many: added to logits, the largest is a draw of their softmax. Without a shape one number,
--- or one for each where one of loc and scale is an array.
--- @return any
--- @error a scale that is not above 0
function Generator:gumbel(...)
  arguments.check_self(self, Generator, "generator:gumbel")
  return located_draw(self, gumbel_signature, function(u)
    return -apply("log", -apply("log", u))
  end, ...)
end

-- One that is given by one positive number or by an array of such.
local function of_one(generator, called, name, formula, ...)
  local function check(value) check_above_0(value, name, called.where) end
  return by_formula(generator, called, { name }, check, formula, ...)
end

local pareto_signature = signature("np.random.pareto",
  { { "a", "numbers" }, { "shape", "list?" }, { "dtype", "floating", "float32" } })
--- Pareto from 0 on (Lomax), P(x > t) = (1 + t)^-a: `1 + np.random.pareto(a)` is the one from 1 on. Without a shape one
--- number, or one for each where `a` is an array.
--- @return any
--- @error an a that is not above 0
function Generator:pareto(...)
  arguments.check_self(self, Generator, "generator:pareto")
  return of_one(self, pareto_signature, "a", function(u, a)
    return apply("expm1", -apply("log1p", -u) / a)
  end, ...)
end

local weibull_signature = signature("np.random.weibull",
  { { "a", "numbers" }, { "shape", "list?" }, { "dtype", "floating", "float32" } })
--- Weibull, P(x > t) = exp(-t^a): how long things last. Without a shape one number, or one for each where `a` is an
--- array.
--- @return any
--- @error an a that is not above 0
function Generator:weibull(...)
  arguments.check_self(self, Generator, "generator:weibull")
  return of_one(self, weibull_signature, "a", function(u, a)
    return (-apply("log1p", -u)) ^ (1 / a)
  end, ...)
end

local rayleigh_signature = signature("np.random.rayleigh",
  { { "scale", "numbers", 1 }, { "shape", "list?" }, { "dtype", "floating", "float32" } })
--- Rayleigh, the length of two normal numbers of deviation `scale`. Without a shape one number, or one for each where
--- `scale` is an array.
--- @return any
--- @error a scale that is not above 0
function Generator:rayleigh(...)
  arguments.check_self(self, Generator, "generator:rayleigh")
  return of_one(self, rayleigh_signature, "scale", function(u, scale)
    return apply("sqrt", apply("log1p", -u) * -2) * scale
  end, ...)
end

local geometric_signature = signature("np.random.geometric",
  { { "p", "numbers" }, { "shape", "list?" }, { "dtype", "dtype", "int64" } })
--- How many tries there are up to the first that succeeds, and with it, each with chance `p`. Without a shape one
--- number, or one for each where `p` is an array.
--- @return any
--- @error p outside of (0, 1]; a count that the dtype does not have
function Generator:geometric(...)
  arguments.check_self(self, Generator, "generator:geometric")
  return by_formula(self, geometric_signature, { "p" }, function(p)
    local chances = np.asarray(p, "float64"):reshape({ -1 })
    local is_bad = 1 - chances:gt(0) * chances:le(1)
    check_all(chances, is_bad, "p", "a chance above 0 and up to 1", geometric_signature.where)
  end, function(u, p)
    return np.maximum(apply("ceil", apply("log1p", -u) / apply("log1p", -np.asarray(p, "float64"))), 1)
  end, ...)
end

local triangular_signature = signature("np.random.triangular", { { "left", "numbers" }, { "mode", "numbers" },
  { "right", "numbers" }, { "shape", "list?" }, { "dtype", "floating", "float32" } })
--- From `left` to `right`, likeliest at `mode`, less so by straight lines. Without a shape one number, or one for each
--- where one of these is an array.
--- @return any
--- @error not left <= mode <= right, or left and right are one
function Generator:triangular(...)
  arguments.check_self(self, Generator, "generator:triangular")
  return by_formula(self, triangular_signature, { "left", "mode", "right" },
    function(left, mode, right)
      left, mode, right = np.asarray(left, "float64"), np.asarray(mode, "float64"), np.asarray(right, "float64")
      if not (left:le(mode) * mode:le(right) * left:lt(right) * left:gt(-math.huge) * right:lt(math.huge)):all() then
        triangular_signature:fail(": left, mode and right must come in this order, and left be below right")
      end
    end,
    function(u, left, mode, right)
      -- By halves, as the width may be beyond any number, and by roots, as its square may be.
      local width, rising, falling = right / 2 - left / 2, mode / 2 - left / 2, right / 2 - mode / 2
      local root = np.sqrt(width)
      return apply("where", (u * width):lt(rising), apply("sqrt", u * rising) * root * 2 + left,
        -apply("sqrt", (1 - u) * falling) * root * 2 + right)
    end, ...)
end

local lognormal_signature = signature("np.random.lognormal",
  { { "mean", "numbers", 0 }, { "stddev", "numbers", 1 }, { "shape", "list?" }, { "dtype", "floating", "float32" } })
--- What has a normal logarithm, with this mean and standard deviation of the logarithm. Without a shape one number, or
--- one for each where one of these is an array.
--- @return any
--- @error a stddev below 0
function Generator:lognormal(...)
  arguments.check_self(self, Generator, "generator:lognormal")
  local given = lognormal_signature:parse(...)
  local dtype = given.dtype
  given.dtype = "float64"
  local logarithm = generators.normal(self, given, lognormal_signature.where)
  return type(logarithm) == "number" and math.exp(logarithm) or cast(apply("exp", logarithm), dtype)
end

local zipf_signature = signature("np.random.zipf",
  { { "a", "numbers" }, { "shape", "list?" }, { "dtype", "dtype", "int64" } })
--- Zipf: whole numbers from 1 to 2^62, k in proportion to k^-a, as words and things people take are by their rank.
--- Without a shape one number, or one for each where `a` is an array. By rejection: L. Devroye, "Non-Uniform Random
--- Variate Generation", 1986, chapter X.6.
--- @return any
--- @error an a that is not above 1; a count that the dtype does not have
function Generator:zipf(...)
  arguments.check_self(self, Generator, "generator:zipf")
  local most, log_2 = 2 ^ 62, math.log(2)
  return composed(zipf_signature:parse(...), { "a" }, zipf_signature.where,
    function(a) generators.check_range(a, "a", 1 + 2 ^ -52, 2 ^ 1023, "above 1", zipf_signature.where) end,
    function(shape, a)
      a = np.asarray(a, "float64") - 1
      local result = np.zeros(shape, "float64")
      local pending = result:eq(0)
      -- What is above u = most^-a comes to most at most. With a near 0 that is next to 1, so all is by what lacks to 1.
      local width, base = -np.expm1(a * -math.log(most)), np.expm1(a * log_2)
      while pending:any() do
        local x = np.floor(np.exp(np.log1p(-self:uniform(0, 1, shape, "float64") * width) / -a))
        local more = np.expm1(np.log1p(1 / x) * a)
        local v = self:uniform(0, 1, shape, "float64")
        local fits = (v * x * more * (base + 1)):le((more + 1) * base) * x:le(most) * pending
        result = apply("where", fits, x, result)
        pending = pending - fits
      end
      return result
    end)
end
