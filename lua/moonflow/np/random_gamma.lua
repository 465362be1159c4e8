--- Draws of flow.np.random that are made of gamma draws: gamma, beta and Dirichlet, chi squared and Student's t.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local generators = require "moonflow.np.generator"
local ndarray = require "moonflow.ndarray"

local Generator, composed, check_above_0 = generators.Generator, generators.composed, generators.check_above_0
local evaluate, signature, flat_list = ndarray.evaluate, arguments.signature, arguments.flat_list
local fail = errors.raise

-- The logarithms of gamma draws with form `form` and scale 1, by squeezing: G. Marsaglia and W. W. Tsang, "A simple
-- method for generating gamma variables", ACM Transactions on Mathematical Software 2000. Below 1 a draw of form + 1 is
-- brought down, with a small form so far that only its logarithm is a number other than 0.
local function log_gamma_draws(generator, form, shape)
  local d = (form < 1 and form + 1 or form) - 1 / 3
  local c = 1 / math.sqrt(9 * d)
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
  if form >= 1 then return result end
  return result + evaluate("log", { generator:uniform(0, 1, shape, "float64") }) / form
end

local gamma_signature = signature("np.random.gamma",
  { { "form", "number" }, { "scale", "number", 1 }, { "shape", "list?" }, { "dtype", "floating", "float32" } })
--- Gamma with this form, which NumPy calls its shape, and scale; its mean is their product. Without a shape one number.
--- @return any
--- @error a form or a scale that is not above 0
function Generator:gamma(...)
  arguments.check_self(self, Generator, "generator:gamma")
  local given = gamma_signature:parse(...)
  check_above_0(given.form, "form", "np.random.gamma")
  check_above_0(given.scale, "scale", "np.random.gamma")
  return composed(given, "np.random.gamma", function(shape)
    return evaluate("exp", { log_gamma_draws(self, given.form, shape) }) * given.scale
  end)
end

local beta_signature = signature("np.random.beta",
  { { "a", "number" }, { "b", "number" }, { "shape", "list?" }, { "dtype", "floating", "float32" } })
--- Beta in [0, 1], with mean a / (a + b): the shares that mixup draws. Without a shape one number.
--- @return any
--- @error an a or a b that is not above 0
function Generator:beta(...)
  arguments.check_self(self, Generator, "generator:beta")
  local given = beta_signature:parse(...)
  check_above_0(given.a, "a", "np.random.beta")
  check_above_0(given.b, "b", "np.random.beta")
  return composed(given, "np.random.beta", function(shape)
    local x, y = log_gamma_draws(self, given.a, shape), log_gamma_draws(self, given.b, shape)
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
  local shape, logarithms = given.shape and flat_list(given.shape) or {}, {}
  for i, form in ipairs(alpha:totable()) do
    check_above_0(form, "each alpha", "np.random.dirichlet")
    logarithms[i] = log_gamma_draws(self, form, shape)
  end
  return ndarray.cast(evaluate("softmax", { evaluate("stack", logarithms, { axis = -1 }) }), given.dtype)
end

local chisquare_signature = signature("np.random.chisquare",
  { { "df", "number" }, { "shape", "list?" }, { "dtype", "floating", "float32" } })
--- Chi squared: the sum of the squares of `df` normal numbers, of whatever number above 0. Without a shape one number.
--- @return any
--- @error a df that is not above 0
function Generator:chisquare(...)
  arguments.check_self(self, Generator, "generator:chisquare")
  local given = chisquare_signature:parse(...)
  check_above_0(given.df, "df", "np.random.chisquare")
  return self:gamma(given.df / 2, 2, given.shape, given.dtype)
end

local standard_t_signature = signature("np.random.standard_t",
  { { "df", "number" }, { "shape", "list?" }, { "dtype", "floating", "float32" } })
--- Student's t with `df` degrees of freedom: normal with tails, the heavier the fewer these are. Without a shape one
--- number.
--- @return any
--- @error a df that is not above 0
function Generator:standard_t(...)
  arguments.check_self(self, Generator, "generator:standard_t")
  local given = standard_t_signature:parse(...)
  check_above_0(given.df, "df", "np.random.standard_t")
  return composed(given, "np.random.standard_t", function(shape)
    local squares = self:chisquare(given.df, shape, "float64") / given.df
    return self:normal(0, 1, shape, "float64") / evaluate("sqrt", { squares })
  end)
end
