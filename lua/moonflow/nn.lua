--- The part of flow.nn that is put together from ops: dropout, normalisation with given statistics, losses.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local errors = require "moonflow.errors"
local ops = require "moonflow.ops"
local trace = require "moonflow.trace"

local nn = {}

local function define(name, parameters, doc, make)
  local where = "flow.nn." .. name
  parameters[#parameters + 1] = { "name", "string?" }
  local signature = arguments.signature(where, parameters)
  nn[name] = function(...)
    local t = trace.need(where)
    return make(signature:parse(...), t, signature)
  end
  ops.document(nn[name], where, signature, doc)
end

local function check_rate(rate, signature)
  if rate < 0 or rate >= 1 then signature:fail(": rate must lie in [0, 1), got " .. rate) end
end

-- ---- random -------------------------------------------------------------------------------------------------------

define("dropout", { { "x", "blob" }, { "rate", "number" }, { "noise_shape", "list?" }, { "seed", "integer?" } }, [[
Sets elements to zero with probability `rate` and scales the others by 1 / (1 - rate), in train jobs.
In a predict job, or with rate 0, it is the identity. The mask depends on the seed, the op's name and the step.]],
function(given, t, signature)
  check_rate(given.rate, signature)
  if given.noise_shape then signature:fail(": noise_shape is not supported") end
  if t.type ~= "train" or given.rate == 0 then
    return given.x
  end
  return (ops.apply("dropout", { given.x }, { rate = given.rate }, given.name, given.seed))
end)

define("random_mask_like", { { "like", "blob" }, { "rate", "number" }, { "seed", "integer?" },
                             { "noise_shape", "list?" } }, [[
A mask of int8, 1 with probability 1 - rate, of the shape of `like`.]],
function(given, _, signature)
  check_rate(given.rate, signature)
  if given.noise_shape then signature:fail(": noise_shape is not supported") end
  return ops.apply("random_mask_like", { given.like }, { rate = given.rate }, given.name, given.seed)
end)

-- ---- attention ----------------------------------------------------------------------------------------------------

define("dot_product_attention", {
  { "query", "blob" }, { "key", "blob" }, { "value", "blob" }, { "mask", "blob?" }, { "causal", "boolean", false },
  { "scale", "number?" }, { "rate", "number", 0 }, { "seed", "integer?" },
}, [[
softmax(scale * query . key^T) . value for each head, as one op: the weights are never stored.
shapes: query (batch, queries, heads, width), key and value (batch, keys, heads, width) -> as query. That is a dense
  layer's (batch, length, heads * width) under another shape, so a reshape is all that it needs.
mask: int8 that broadcasts to (batch, heads, queries, keys); where it is 0 a query does not look at a key
causal: query i looks at the keys 0 to i only
rate: of dropout on the weights, in train jobs, as in flow.nn.dropout
defaults: scale 1 / sqrt(width)]],
function(given, t, signature)
  check_rate(given.rate, signature)
  local query, key = given.query, given.key
  for _, x in ipairs { query, key, given.value } do
    if #x.shape ~= 4 then
      signature:fail(": '" .. x.name .. "' is " .. tostring(x.shape) .. ", wanted (batch, length, heads, width)")
    end
  end
  local rate, kept = given.rate, false
  if t.type == "train" and rate > 0 then
    kept = ops.apply("random_mask", {}, {
      rate = rate, shape = { query.shape[0], query.shape[2], query.shape[1], key.shape[1] },
    }, given.name and given.name .. "-kept", given.seed)
  else
    rate = 0
  end
  return (ops.apply("dot_product_attention", { query, key, given.value, given.mask or false, kept }, {
    scale = given.scale or query.shape[3] ^ -0.5, causal = given.causal, rate = rate,
  }, given.name))
end)

-- ---- normalisation ------------------------------------------------------------------------------------------------

define("batch_normalization", {
  { "x", "blob" }, { "mean", "blob" }, { "variance", "blob" }, { "offset", "blob?" }, { "scale", "blob?" },
  { "variance_epsilon", "number", 1e-5 }, { "axis", "integer", 1 },
}, "scale * (x - mean) / sqrt(variance + variance_epsilon) + offset, along `axis`.",
function(given, t)
  local function filled(value, size)
    local array = core.zeros(given.mean.dtype, { size })
    for i = 0, size - 1 do array[i] = value end
    return blob.new(t, t:constant(array), "constant", errors.site())
  end
  local size = given.mean.shape[0]
  local gamma, beta = given.scale or filled(1, size), given.offset or filled(0, size)
  return ops.apply("batch_norm_infer", { given.x, gamma, beta, given.mean, given.variance },
    { axis = given.axis, epsilon = given.variance_epsilon }, given.name)
end)

define("layer_norm", {
  { "inputs", "blob" }, { "gamma", "blob?" }, { "beta", "blob?" }, { "begin_norm_axis", "integer", 1 },
  { "begin_params_axis", "integer", -1 }, { "epsilon", "number", 1e-5 },
}, "Normalises each sample over the axes from begin_norm_axis on, then gamma * x + beta where they are given.",
function(given)
  local rank = #given.inputs.shape
  local function wrap(axis) return axis < 0 and axis + rank or axis end
  local attrs = { begin_norm_axis = wrap(given.begin_norm_axis), epsilon = given.epsilon }
  if wrap(given.begin_params_axis) == wrap(given.begin_norm_axis) then
    local inputs = { given.inputs, given.gamma or false, given.beta or false }
    return (ops.apply("layer_norm_core", inputs, attrs, given.name))
  end
  local out = ops.apply("layer_norm_core", { given.inputs, false, false }, attrs, given.name)
  if given.gamma then out = out * given.gamma end
  if given.beta then out = out + given.beta end
  return out
end)

define("GroupNorm", { { "x", "blob" }, { "num_groups", "integer", 32 }, { "eps", "number", 1e-5 } },
  "Normalises each group of channels of each sample (channels on axis 1); without scale and shift.",
function(given, _, signature)
  local sizes = given.x.shape:table()
  if #sizes < 3 or sizes[2] % given.num_groups ~= 0 then
    signature:fail(": " .. tostring(given.x.shape) .. " cannot be split into " .. given.num_groups
      .. " groups of channels")
  end
  local grouped = ops.apply("reshape", { given.x }, { shape = { sizes[1], given.num_groups, -1 } })
  local normal = ops.apply("layer_norm_core", { grouped, false, false }, { begin_norm_axis = 2, epsilon = given.eps })
  return ops.apply("reshape", { normal }, { shape = sizes }, given.name)
end)

for _, dims in ipairs { "1d", "2d", "3d" } do
  define("InstanceNorm" .. dims, { { "x", "blob" }, { "eps", "number", 1e-5 } },
    "Normalises each channel of each sample (channels on axis 1); without scale and shift.",
    function(given)
      return (ops.apply("layer_norm_core", { given.x, false, false }, { begin_norm_axis = 2, epsilon = given.eps },
        given.name))
    end)
end

-- ---- losses -------------------------------------------------------------------------------------------------------

local function reduced(value, reduction, name, signature)
  if reduction == "none" then return value end
  if reduction == "mean" then return ops.apply("reduce_mean", { value }, nil, name) end
  if reduction == "sum" then return ops.apply("reduce_sum", { value }, nil, name) end
  signature:fail(": reduction must be 'mean', 'sum' or 'none', got '" .. reduction .. "'")
end

local function define_loss(name, extra, doc, make)
  local parameters = { { "input", "blob" }, { "target", "blob" } }
  for _, parameter in ipairs(extra) do parameters[#parameters + 1] = parameter end
  parameters[#parameters + 1] = { "reduction", "string", "mean" }
  define(name, parameters, doc .. "\nreduction: \"mean\" (default), \"sum\", \"none\"", function(given, _, signature)
    return reduced(make(given), given.reduction, given.name, signature)
  end)
end

define_loss("L1Loss", {}, "|input - target|.", function(given)
  return ops.apply("abs", { given.input - given.target })
end)

define_loss("MSELoss", {}, "(input - target)^2.", function(given)
  return ops.apply("squared_difference", { given.input, given.target })
end)

define_loss("BCELoss", { { "weight", "blob?" } }, "-(target * log(input) + (1 - target) * log(1 - input)).",
  function(given)
    local x, y = given.input, given.target
    local loss = -(y * ops.apply("log", { x }) + (1 - y) * ops.apply("log", { 1 - x }))
    return given.weight and loss * given.weight or loss
  end)

define_loss("BCEWithLogitsLoss", { { "weight", "blob?" } }, "BCELoss of sigmoid(input), without overflow.",
  function(given)
    local loss = ops.apply("sigmoid_cross_entropy_with_logits", { given.target, given.input })
    return given.weight and loss * given.weight or loss
  end)

define_loss("KLDivLoss", { { "log_target", "boolean", false } },
  "target * (log(target) - input), with input as log probabilities.",
  function(given)
    local x, y = given.input, given.target
    if given.log_target then return ops.apply("exp", { y }) * (y - x) end
    return ops.apply("xlogy", { y, y }) - y * x
  end)

return nn
