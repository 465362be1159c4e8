--- Draws of flow.np.random that are made of gamma draws: gamma, beta and Dirichlet, chi squared and Student's t.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local generators = require "moonflow.np.generator"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"

local Generator, composed, check_above_0 = generators.Generator, generators.composed, generators.check_above_0
local evaluate, signature = ndarray.evaluate, arguments.signature
local fail = errors.raise

-- The logarithms of gamma draws with form `form`, a number or an array of this shape, and scale 1, by squeezing:
-- G. Marsaglia and W. W. Tsang, "A simple method for generating gamma variables", ACM Transactions on Mathematical
-- Software 2000. Below 1 a draw of form + 1 is brought down, with a small form so far that only its logarithm is a
-- number other than 0.
local function log_gamma_draws(generator, form, shape)
  local is_small = type(form) == "number" and (form < 1 and 1 or 0) or form:lt(1)
  local d = form + is_small - 1 / 3
  local c = (d * 9) ^ -0.5
  local result = core.zeros("float64", shape)
  local pending = result:eq(0)
  while pending:any() do
    local x, u = generator:normal(0, 1, shape, "float64"), generator:uniform(0, 1, shape, "float64")
    local root = x * c + 1
    local v = root * root * root
    local log_v = evaluate("log", { evaluate("where", { v:gt(0), v, 1 + v * 0 }) })
    local fits = v:gt(0) * evaluate("log", { u }):lt(x * x * 0.5 + d * (1 - v + log_v)) * pending
    result = evaluate("where", { fits, v * d, result })
    pending = pending - fits
  end
  result = evaluate("log", { result })
  if is_small == 0 then return result end
  local lowered = result + evaluate("log", { generator:uniform(0, 1, shape, "float64") }) / form
  return is_small == 1 and lowered or evaluate("where", { is_small, lowered, result })
end

local function check_all_above_0(names, called)
  return function(...)
    for i, name in ipairs(names) do check_above_0(select(i, ...), name, called) end
  end
end

local GAMMA = { "form", "scale" }
local gamma_signature = signature("np.random.gamma",
  { { "form", "numbers" }, { "scale", "numbers", 1 }, { "shape", "list?" }, { "dtype", "floating", "float32" } })
--- Gamma with this form, which NumPy calls its shape, and scale; its mean is their product. Without a shape one number,
--- or one for each where one of these is an array.
--- @return any
--- @error a form or a scale that is not above 0
function Generator:gamma(...)
  arguments.check_self(self, Generator, "generator:gamma")
  local called = gamma_signature.where
  return composed(gamma_signature:parse(...), GAMMA, called, check_all_above_0(GAMMA, called),
    function(shape, form, scale)
      return evaluate("exp", { log_gamma_draws(self, form, shape) }) * scale
    end)
end

-- What forms are multiplied by of which the greatest is so near to 0 that the logarithms of all draws may be infinite:
-- there one draw has all, and which one that is depends on their proportions alone.
local function enlarged(greatest)
  if type(greatest) == "number" then return greatest < 1e-200 and 1e-200 / greatest or 1 end
  return np.where(greatest:lt(1e-200), 1e-200 / greatest, 1)
end

local BETA = { "a", "b" }
local beta_signature = signature("np.random.beta",
  { { "a", "numbers" }, { "b", "numbers" }, { "shape", "list?" }, { "dtype", "floating", "float32" } })
--- Beta in [0, 1], with mean a / (a + b): the shares that mixup draws. Without a shape one number, or one for each
--- where one of these is an array: `np.random.beta(won + 1, lost + 1)`.
--- @return any
--- @error an a or a b that is not above 0
function Generator:beta(...)
  arguments.check_self(self, Generator, "generator:beta")
  local called = beta_signature.where
  return composed(beta_signature:parse(...), BETA, called, check_all_above_0(BETA, called), function(shape, a, b)
    local by = enlarged(type(a) == "number" and math.max(a, b) or np.maximum(a, b))
    local x, y = log_gamma_draws(self, a * by, shape), log_gamma_draws(self, b * by, shape)
    return evaluate("sigmoid", { x - y })
  end)
end

local dirichlet_signature = signature("np.random.dirichlet",
  { { "alpha", "any" }, { "shape", "list?" }, { "dtype", "floating", "float32" } })
--- Shares that add up to 1, whose means are in proportion to `alpha`; the smaller these are, the more one share has of
--- all. So a search tries what its policy thinks little of:
--- `0.75 * p + 0.25 * np.random.dirichlet(np.full({ #p }, 0.3))`.
--- shapes: alpha (n) -> (shape..., n), without a shape (n)
--- @error an alpha that is not above 0
function Generator:dirichlet(...)
  arguments.check_self(self, Generator, "generator:dirichlet")
  local given = dirichlet_signature:parse(...)
  local alpha = ndarray.value_for(given.alpha, "float64", "np.random.dirichlet")
  if alpha.rank ~= 1 or #alpha == 0 then
    fail("shape_mismatch", "np.random.dirichlet wants an alpha of one axis with elements, got "
      .. tostring(alpha.shape))
  end
  local shape, logarithms = generators.shape_of(given.shape, "np.random.dirichlet", {}), {}
  check_above_0(alpha, "each alpha", "np.random.dirichlet")
  for i, form in ipairs((alpha * enlarged(alpha:max())):totable()) do
    logarithms[i] = log_gamma_draws(self, form, shape)
  end
  return ndarray.cast(evaluate("softmax", { evaluate("stack", logarithms, { axis = -1 }) }), given.dtype)
end

-- Draws of chi squared with so many degrees of freedom.
local function chi_squares(generator, df, shape)
  return evaluate("exp", { log_gamma_draws(generator, df / 2, shape) }) * 2
end

local DF = { "df" }
local chisquare_signature = signature("np.random.chisquare",
  { { "df", "numbers" }, { "shape", "list?" }, { "dtype", "floating", "float32" } })
--- Chi squared: the sum of the squares of `df` normal numbers, of whatever number above 0. Without a shape one number,
--- or one for each where `df` is an array.
--- @return any
--- @error a df that is not above 0
function Generator:chisquare(...)
  arguments.check_self(self, Generator, "generator:chisquare")
  local called = chisquare_signature.where
  return composed(chisquare_signature:parse(...), DF, called, check_all_above_0(DF, called), function(shape, df)
    return chi_squares(self, df, shape)
  end)
end

local standard_t_signature = signature("np.random.standard_t",
  { { "df", "numbers" }, { "shape", "list?" }, { "dtype", "floating", "float32" } })
--- Student's t with `df` degrees of freedom: normal with tails, the heavier the fewer these are. Without a shape one
--- number, or one for each where `df` is an array.
--- @return any
--- @error a df that is not above 0
function Generator:standard_t(...)
  arguments.check_self(self, Generator, "generator:standard_t")
  local called = standard_t_signature.where
  return composed(standard_t_signature:parse(...), DF, called, check_all_above_0(DF, called), function(shape, df)
    local squares = chi_squares(self, df, shape) / df
    return self:normal(0, 1, shape, "float64") / evaluate("sqrt", { squares })
  end)
end
