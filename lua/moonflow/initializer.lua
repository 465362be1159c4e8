--- Initialisers: how the first value of a variable is made, by one op of the graph that initialises variables; or an
-- array, which is written as it is. Random ones are keyed by (seed, name of the variable), so a variable starts equal
-- on every machine.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"

local initializer = {}

local Initializer = { kind = "initializer" }
Initializer.__index = Initializer

function Initializer.__tostring(self)
  return self.text
end

-- `lower(shape, dtype)` gives the op and its attributes, or the value as an array; shape is a list. `misfit_of` is as
-- Initializer:misfit.
local function new(text, lower, misfit_of)
  return setmetatable({ text = text, lower = lower, misfit_of = misfit_of }, Initializer)
end

--- Is `value` an initialiser?
function initializer.is(value)
  return getmetatable(value) == Initializer
end

--- The op and the attributes that fill a variable of this shape (a list) and dtype; or an array, which is its value.
function Initializer:op(shape, dtype)
  local op, attrs = self.lower(shape, dtype)
  if attrs then attrs.shape, attrs.dtype = shape, dtype end
  return op, attrs
end

--- Does it give the same first values as another one?
function Initializer:is_like(other)
  return self == other or self.text == other.text and (not self.array or self.array == other.array)
end

--- What is wrong with a variable of this shape (a list) and dtype; nil or false where it suits. One that it does not
--- suit could never be given a value, nor, with it, any other one of the session.
function Initializer:misfit(shape, dtype)
  return self.misfit_of(shape, dtype)
end

-- What draws floating numbers.
local function floating_alone(_, dtype)
  return not dtypes.floating[dtype] and "it draws floating numbers"
end

-- Of numbers that have to be such of the dtype.
local function numbers_alone(...)
  local numbers = { ... }
  return function(_, dtype)
    for _, number in ipairs(numbers) do
      local fine, problem = pcall(core.array, number, dtype)
      local is_out = problem == "not enough memory" or errors.is_error(problem) and problem.code == "out_of_memory"
      if not fine and is_out then error(problem, 0) end
      if not fine then return number .. " is no " .. dtype end
    end
  end
end

-- Of a standard deviation, or a variance.
local function check_no_negative(signature, name, value)
  if value < 0 then signature:fail((": %s must be 0 or more, got %g"):format(name, value)) end
end

local function check_choice(signature, name, value, choices)
  if choices[value] then return end
  local names = arguments.sorted_keys(choices)
  signature:fail(": " .. name .. " must be one of " .. table.concat(names, ", ") .. ", got '" .. tostring(value) .. "'"
    .. arguments.suggestion(value, names))
end

local formats = { NCW = true, NCHW = true, NCDHW = true, NWC = true, NHWC = true, NDHWC = true }

local function define(name, parameters, make)
  local signature = arguments.signature("flow." .. name, parameters)
  signature:instead { seed = "; the variable has it: flow.get_variable takes random_seed, and flow.set_seed(n) is for "
    .. "all" }
  initializer[name] = function(...)
    local given = signature:parse(...)
    if (given.data_format or "") ~= "" then check_choice(signature, "data_format", given.data_format, formats) end
    return make(given, signature)
  end
end

--- The elements of an array, which must not change from here on. Floating variables round them.
function initializer.from_array(array)
  local self = new("constant(" .. arguments.describe(array) .. ")", function(_, dtype) return array:astype(dtype) end,
    function(shape, dtype)
      if array.shape ~= core.shape(shape) then return "its value is " .. tostring(array.shape) end
      if dtype == array.dtype or dtypes.floating[dtype] then return nil end
      local is_cut = array:astype(dtype):astype(array.dtype) ~= array
      return is_cut and ("some of its elements are no %s; value:astype(flow.%s) cuts them to be such")
        :format(dtype, dtype)
    end)
  self.array = array
  return self
end

--- Every element is `value`, a number; or the variable begins as a copy of `value`, an array of its shape, such as
--- vectors of words that another program has learned. A `dtype` changes nothing, here and in other initializers: the
--- variable has its own.
define("constant_initializer", { { "value", "any", 0 }, { "dtype", "dtype?" } }, function(given, signature)
  local value = given.value
  if type(value) == "number" then
    return new("constant(" .. value .. ")", function() return "constant", { value = value } end, numbers_alone(value))
  elseif arguments.kind(value) ~= "ndarray" then
    signature:fail(": argument 1 ('value') must be a number or an ndarray, got " .. arguments.describe(value)
      .. (arguments.kind(value) == "table" and "; np.array(it) makes one" or ""))
  end
  return initializer.from_array(value:copy())
end)

--- Every element is 0. A `dtype` changes nothing.
define("zeros_initializer", { { "dtype", "dtype?" } }, function()
  return initializer.constant_initializer(0)
end)

--- Every element is 1. A `dtype` changes nothing.
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

--- Uniform in [minval, maxval); whole numbers in an integer dtype. A `dtype` changes nothing.
define("random_uniform_initializer", { { "minval", "finite", 0 }, { "maxval", "finite", 1 }, { "dtype", "dtype?" } },
  function(given, signature)
    local low, high = given.minval, given.maxval
    if low > high then signature:fail((": minval must not be above maxval, got %g and %g"):format(low, high)) end
    -- Whole numbers stay below the upper bound, which itself need be none of the dtype.
    local no_whole = numbers_alone(low, high % 1 == 0 and high - 1 or high)
    return new("random_uniform(" .. low .. ", " .. high .. ")", function(_, dtype)
      if not dtypes.floating[dtype] then return "random_int", { low = low, high = high } end
      return uniform(low, high)
    end, function(shape, dtype)
      if dtypes.floating[dtype] then return nil end
      return low == high and "no whole number lies in it" or no_whole(shape, dtype)
    end)
  end)

--- Normal with this mean, and the standard deviation `stddev`. A `dtype` changes nothing.
define("random_normal_initializer", { { "mean", "finite", 0 }, { "stddev", "finite", 1 }, { "dtype", "dtype?" } },
  function(given, signature)
    check_no_negative(signature, "stddev", given.stddev)
    return new("random_normal(" .. given.mean .. ", " .. given.stddev .. ")", function()
      return normal(given.mean, given.stddev)
    end, floating_alone)
  end)

--- Normal, drawn again beyond two standard deviations from the mean, which leaves a deviation of 0.88 * stddev.
define("truncated_normal_initializer", { { "mean", "finite", 0 }, { "stddev", "finite", 1 } },
  function(given, signature)
    check_no_negative(signature, "stddev", given.stddev)
    return new("truncated_normal(" .. given.mean .. ", " .. given.stddev .. ")", function()
      return truncated(given.mean, given.stddev)
    end, floating_alone)
  end)

--- truncated_normal_initializer with mean 0.
define("truncated_normal", { { "stddev", "finite", 1 } }, function(given, signature)
  check_no_negative(signature, "stddev", given.stddev)
  return initializer.truncated_normal_initializer(0, given.stddev)
end)

-- Weights are (out, in, spatial...) or, channels last, (out, spatial..., in). Both fans of a vector are its length, as
-- in TensorFlow; the original has none of one.
local function fans(shape, data_format)
  if #shape == 1 then return shape[1], shape[1] end
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

--- Variance `scale / fan`, with the fan that `mode` says, "fan_in", "fan_out" or their mean, "fan_avg", and the
--- distribution "truncated_normal" (corrected for what is cut off), "random_normal" or "random_uniform". Of a weight
--- (out, in, ...) fan_in is the number of elements of one output, and fan_out that of outputs times places; of a
--- vector, such as a bias, both are its length. A data_format that ends in C, as "NHWC", says that the weight is
--- (out, ..., in), on which fan_out depends.
define("variance_scaling_initializer", {
  { "scale", "finite", 1 }, { "mode", "string", "fan_in" }, { "distribution", "string", "truncated_normal" },
  { "data_format", "string", "" },
}, function(given, signature)
  check_no_negative(signature, "scale", given.scale)
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
    end, floating_alone)
end)

local function xavier(distribution)
  return function(given)
    return initializer.variance_scaling_initializer(1, "fan_avg", distribution, given.data_format)
  end
end

--- Glorot's initialisation: uniform in +-sqrt(6 / (fan_in + fan_out)), with the fans, and the data_format, of
--- variance_scaling_initializer.
define("xavier_uniform_initializer", { { "data_format", "string", "" } }, xavier("random_uniform"))
--- Glorot's initialisation: normal with variance 2 / (fan_in + fan_out), with the fans, and the data_format, of
--- variance_scaling_initializer.
define("xavier_normal_initializer", { { "data_format", "string", "" } }, xavier("random_normal"))
--- xavier_uniform_initializer by its author's other name: uniform in +-sqrt(6 / (fan_in + fan_out)).
initializer.glorot_uniform_initializer = initializer.xavier_uniform_initializer
--- xavier_normal_initializer by its author's other name: normal with variance 2 / (fan_in + fan_out).
initializer.glorot_normal_initializer = initializer.xavier_normal_initializer

--- He's initialisation as Keras has it, for layers before a relu: truncated normal of variance 2 / fan_in. data_format
--- changes nothing, here and where else a fan_in alone counts.
define("he_normal_initializer", { { "data_format", "string", "" } }, function(given)
  return initializer.variance_scaling_initializer(2, "fan_in", "truncated_normal", given.data_format)
end)
--- He's initialisation: uniform in +-sqrt(6 / fan_in).
define("he_uniform_initializer", { { "data_format", "string", "" } }, function(given)
  return initializer.variance_scaling_initializer(2, "fan_in", "random_uniform", given.data_format)
end)
--- LeCun's initialisation, for layers before a selu: truncated normal of variance 1 / fan_in.
define("lecun_normal_initializer", { { "data_format", "string", "" } }, function(given)
  return initializer.variance_scaling_initializer(1, "fan_in", "truncated_normal", given.data_format)
end)
--- LeCun's initialisation: uniform in +-sqrt(3 / fan_in).
define("lecun_uniform_initializer", { { "data_format", "string", "" } }, function(given)
  return initializer.variance_scaling_initializer(1, "fan_in", "random_uniform", given.data_format)
end)

local function gain_of(nonlinearity, slope)
  if nonlinearity == "relu" then return math.sqrt(2) end
  if nonlinearity == "leaky_relu" then return math.sqrt(2 / (1 + slope * slope)) end
  if nonlinearity == "tanh" then return 5 / 3 end
  if nonlinearity == "selu" then return 3 / 4 end
  return 1
end

local nonlinearities = { linear = true, sigmoid = true, tanh = true, relu = true, leaky_relu = true, selu = true }

-- With the fan of given.shape, or without one of the variable's.
local function kaiming(given, distribution, signature)
  check_choice(signature, "mode", given.mode, modes)
  check_choice(signature, "nonlinearity", given.nonlinearity, nonlinearities)
  local gain, fixed = gain_of(given.nonlinearity, given.negative_slope), given.shape
  return new("kaiming(" .. distribution .. ", " .. given.mode .. ")", function(shape)
    local stddev = gain / math.sqrt(fan_of(given.mode, fixed or shape, given.data_format))
    if distribution == "random_uniform" then
      local limit = math.sqrt(3) * stddev
      return uniform(-limit, limit)
    end
    return normal(0, stddev)
  end, floating_alone)
end

local kaiming_parameters = {
  { "mode", "string", "fan_in" }, { "nonlinearity", "string", "leaky_relu" }, { "negative_slope", "finite", 0 },
  { "data_format", "string", "NCHW" },
}

--- He's initialisation as PyTorch has it: normal with the standard deviation gain / sqrt(fan). By `nonlinearity` the
--- gain is sqrt(2) of "relu", sqrt(2 / (1 + negative_slope^2)) of "leaky_relu", 5/3 of "tanh", 3/4 of "selu", and 1 of
--- "sigmoid" and "linear". `mode` and data_format are those of variance_scaling_initializer.
define("kaiming_normal_initializer", kaiming_parameters, function(given, signature)
  return kaiming(given, "random_normal", signature)
end)
--- Uniform in +-gain * sqrt(3 / fan), with the gains and all options of kaiming_normal_initializer.
define("kaiming_uniform_initializer", kaiming_parameters, function(given, signature)
  return kaiming(given, "random_uniform", signature)
end)

--- kaiming_normal_initializer, or of the distribution "random_uniform" kaiming_uniform_initializer, in the original's
--- form: with the fan of a `shape`; without one it is that of the variable.
define("kaiming_initializer", {
  { "shape", "list?" }, { "distribution", "string", "random_normal" }, unpack(kaiming_parameters),
}, function(given, signature)
  check_choice(signature, "distribution", given.distribution, { random_normal = true, random_uniform = true })
  given.shape = given.shape and arguments.flat_list(given.shape)
  for _, size in ipairs(given.shape or {}) do
    if not arguments.is_size(size) then
      signature:fail(": shape must be a list of sizes from 1 on, one of them is " .. arguments.describe(size))
    end
  end
  return kaiming(given, given.distribution, signature)
end)

--- A random matrix (the first axis, all others) with orthogonal rows of length `gain`, or where there are more rows
--- than columns such columns: what a layer does with it again and again neither grows nor fades, as in recurrent nets
--- and deep policies. A gain of sqrt(2) suits layers before a relu, 0.01 the last one of a policy.
define("orthogonal_initializer", { { "gain", "finite", 1 }, { "dtype", "dtype?" } }, function(given)
  return new("orthogonal(" .. given.gain .. ")", function() return "random_orthogonal", { gain = given.gain } end,
    function(shape, dtype) return #shape < 2 and "a matrix has two axes or more" or floating_alone(shape, dtype) end)
end)

--- `gain` on the diagonal of a matrix and 0 elsewhere.
define("identity_initializer", { { "gain", "finite", 1 }, { "dtype", "dtype?" } }, function(given)
  local no_gain = numbers_alone(given.gain)
  return new("identity(" .. given.gain .. ")", function(shape, dtype)
    local rows, columns = unpack(shape)
    local flat = core.zeros(dtype, { rows * columns })
    for i = 0, math.min(rows, columns) - 1 do flat[i * (columns + 1)] = given.gain end
    return flat:reshape(shape)
  end, function(shape, dtype) return #shape ~= 2 and "a matrix has two axes" or no_gain(shape, dtype) end)
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
  local is_value = type(value) == "number" or arguments.kind(value) == "ndarray"
  errors.raise("invalid_argument", where .. " wants an initialiser such as flow.truncated_normal(0.1), got "
    .. arguments.describe(value) .. (is_value and "; flow.constant_initializer(it) makes one" or ""))
end

return initializer
