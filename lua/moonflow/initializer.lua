--- Initialisers: how the first value of a variable is made, as one op of the graph that initialises variables.
-- Random ones are keyed by (seed, name of the variable), so a variable starts equal on every machine.

local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"

local initializer = {}

local Initializer = { kind = "initializer" }
Initializer.__index = Initializer

function Initializer.__tostring(self)
  return self.text
end

-- `lower(shape, dtype)` gives the op and its attributes; shape is a list.
local function new(text, lower)
  return setmetatable({ text = text, lower = lower }, Initializer)
end

--- Is `value` an initialiser?
function initializer.is(value)
  return getmetatable(value) == Initializer
end

--- The op and the attributes that fill a variable of this shape (a list) and dtype.
function Initializer:op(shape, dtype)
  local op, attrs = self.lower(shape, dtype)
  attrs.shape, attrs.dtype = shape, dtype
  return op, attrs
end

local function define(name, parameters, make)
  local signature = arguments.signature("flow." .. name, parameters)
  initializer[name] = function(...)
    return make(signature:parse(...), signature)
  end
end

--- Every element is `value`.
define("constant_initializer", { { "value", "number", 0 }, { "dtype", "dtype?" } }, function(given)
  return new("constant(" .. given.value .. ")", function() return "constant", { value = given.value } end)
end)

--- Every element is 0.
define("zeros_initializer", { { "dtype", "dtype?" } }, function()
  return initializer.constant_initializer(0)
end)

--- Every element is 1.
define("ones_initializer", { { "dtype", "dtype?" } }, function()
  return initializer.constant_initializer(1)
end)

local function uniform(low, high)
  return "random_uniform", { low = low, high = high }
end

local function normal(mean, stddev)
  return "random_normal", { mean = mean, stddev = stddev }
end

-- Rejects beyond two standard deviations.
local function truncated(mean, stddev)
  return "truncated_normal", { mean = mean, stddev = stddev }
end

--- Uniform in [minval, maxval).
define("random_uniform_initializer", { { "minval", "finite", 0 }, { "maxval", "finite", 1 }, { "dtype", "dtype?" } },
  function(given)
    return new("random_uniform(" .. given.minval .. ", " .. given.maxval .. ")", function(_, dtype)
      if not arguments.floating[dtype] then
        return "random_int", { low = given.minval, high = given.maxval }
      end
      return uniform(given.minval, given.maxval)
    end)
  end)

--- Normal with this mean and standard deviation.
define("random_normal_initializer", { { "mean", "finite", 0 }, { "stddev", "finite", 1 }, { "dtype", "dtype?" } },
  function(given)
    return new("random_normal(" .. given.mean .. ", " .. given.stddev .. ")", function()
      return normal(given.mean, given.stddev)
    end)
  end)

--- Normal, drawn again beyond two standard deviations from the mean.
define("truncated_normal_initializer", { { "mean", "finite", 0 }, { "stddev", "finite", 1 } }, function(given)
  return new("truncated_normal(" .. given.mean .. ", " .. given.stddev .. ")", function()
    return truncated(given.mean, given.stddev)
  end)
end)

--- truncated_normal_initializer with mean 0.
define("truncated_normal", { { "stddev", "finite", 1 } }, function(given)
  return initializer.truncated_normal_initializer(0, given.stddev)
end)

-- Weights are (out, in, spatial...) or, channels last, (out, spatial..., in).
local function fans(shape, data_format)
  local inner = 1
  for i = 2, #shape do inner = inner * shape[i] end
  local spatial = 1
  local channels_last = data_format ~= "" and data_format:sub(-1) == "C"
  for i = channels_last and 2 or 3, channels_last and #shape - 1 or #shape do spatial = spatial * shape[i] end
  return inner, (shape[1] or 1) * spatial
end

local function fan_of(mode, shape, data_format)
  local fan_in, fan_out = fans(shape, data_format)
  if mode == "fan_in" then return fan_in end
  if mode == "fan_out" then return fan_out end
  return (fan_in + fan_out) / 2
end

local modes = { fan_in = true, fan_out = true, fan_avg = true }
local distributions = { truncated_normal = true, random_normal = true, random_uniform = true }

local function check_choice(signature, name, value, choices)
  if choices[value] then return end
  local names = {}
  for choice in pairs(choices) do names[#names + 1] = choice end
  table.sort(names)
  signature:fail(": " .. name .. " must be one of " .. table.concat(names, ", ") .. ", got '" .. tostring(value) .. "'"
    .. arguments.suggestion(value, names))
end

--- Variance `scale / fan` (truncated: corrected for what is cut off; uniform: with the same variance).
define("variance_scaling_initializer", {
  { "scale", "finite", 1 }, { "mode", "string", "fan_in" }, { "distribution", "string", "truncated_normal" },
  { "data_format", "string", "" },
}, function(given, signature)
  check_choice(signature, "mode", given.mode, modes)
  check_choice(signature, "distribution", given.distribution, distributions)
  return new("variance_scaling(" .. given.scale .. ", " .. given.mode .. ", " .. given.distribution .. ")",
    function(shape)
      local fan = fan_of(given.mode, shape, given.data_format)
      local stddev = math.sqrt(given.scale / fan)
      if given.distribution == "random_uniform" then
        local limit = math.sqrt(3) * stddev
        return uniform(-limit, limit)
      elseif given.distribution == "random_normal" then
        return normal(0, stddev)
      end
      return truncated(0, stddev / 0.87962566103423978)  -- the deviation left after cutting at two deviations
    end)
end)

local function xavier(distribution)
  return function(given)
    return initializer.variance_scaling_initializer(1, "fan_avg", distribution, given.data_format)
  end
end

--- Uniform in +-sqrt(6 / (fan_in + fan_out)).
define("xavier_uniform_initializer", { { "data_format", "string", "" } }, xavier("random_uniform"))
--- Normal with variance 2 / (fan_in + fan_out).
define("xavier_normal_initializer", { { "data_format", "string", "" } }, xavier("random_normal"))
--- Another name of xavier_uniform_initializer.
initializer.glorot_uniform_initializer = initializer.xavier_uniform_initializer
--- Another name of xavier_normal_initializer.
initializer.glorot_normal_initializer = initializer.xavier_normal_initializer

local function gain_of(nonlinearity, slope)
  if nonlinearity == "relu" then return math.sqrt(2) end
  if nonlinearity == "leaky_relu" then return math.sqrt(2 / (1 + slope * slope)) end
  if nonlinearity == "tanh" then return 5 / 3 end
  return 1
end

local nonlinearities = { linear = true, sigmoid = true, tanh = true, relu = true, leaky_relu = true }

--- He initialisation: standard deviation gain / sqrt(fan).
define("kaiming_initializer", {
  { "shape", "list" }, { "distribution", "string", "random_normal" }, { "mode", "string", "fan_in" },
  { "nonlinearity", "string", "leaky_relu" }, { "negative_slope", "finite", 0 }, { "data_format", "string", "NCHW" },
}, function(given, signature)
  check_choice(signature, "mode", given.mode, modes)
  check_choice(signature, "distribution", given.distribution, { random_normal = true, random_uniform = true })
  check_choice(signature, "nonlinearity", given.nonlinearity, nonlinearities)
  local shape = arguments.flat_list(given.shape)
  for _, size in ipairs(shape) do
    if type(size) ~= "number" then
      signature:fail(": shape must be a list of sizes, one of them is " .. arguments.describe(size))
    end
  end
  local fan = fan_of(given.mode, shape, given.data_format)
  local stddev = gain_of(given.nonlinearity, given.negative_slope) / math.sqrt(fan)
  return new("kaiming(" .. given.distribution .. ", " .. given.mode .. ")", function()
    if given.distribution == "random_uniform" then
      local limit = math.sqrt(3) * stddev
      return uniform(-limit, limit)
    end
    return normal(0, stddev)
  end)
end)

-- The spelling of the oldest dialect: { constant_conf = { value = 1 } }.
local confs = {
  constant_conf = function(conf) return initializer.constant_initializer(conf.value or 0) end,
  constant_int_conf = function(conf) return initializer.constant_initializer(conf.value or 0) end,
  random_uniform_conf = function(conf) return initializer.random_uniform_initializer(conf.min or 0, conf.max or 1) end,
  random_normal_conf = function(conf) return initializer.random_normal_initializer(conf.mean or 0, conf.std or 1) end,
  truncated_normal_conf = function(conf)
    return initializer.truncated_normal_initializer(conf.mean or 0, conf.std or 1)
  end,
}

--- An initialiser out of one, or out of the table of the oldest dialect.
function initializer.from(value, where)
  if value == nil or initializer.is(value) then return value end
  if type(value) == "table" then
    local name, conf = next(value)
    if confs[name] and type(conf) == "table" then return confs[name](conf) end
  end
  errors.raise("invalid_argument", where .. " wants an initialiser such as flow.truncated_normal(0.1), got "
    .. arguments.describe(value))
end

return initializer
