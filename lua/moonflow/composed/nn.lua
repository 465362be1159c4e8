--- The part of flow.nn that is put together from ops: dropout, attention, normalisation with given statistics. What is
-- about images, about volumes and what is a loss have files of their own.

local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local dtypes = require "moonflow.dtypes"
local ops = require "moonflow.ops"

-- What help says of parameters that mean the same throughout.
local texts = {
  rate = "share of the elements that become 0, in [0, 1)",
  noise_shape = "the shape of the mask, with a size of 1 along each axis whose elements share one choice, as "
    .. "{ rows, 1, 1, channels } for whole channels of (rows, height, width, channels)",
  seed = "a seed of its own, in place of that of flow.set_seed",
  epsilon = "added to the variance under the root",
  variance_epsilon = "added to the variance under the root",
}

local function define(name, parameters, doc, make)
  arguments.explain(parameters, texts)
  ops.define("nn." .. name, parameters, doc, make)
end

local function check_rate(rate, signature)
  if rate < 0 or rate >= 1 then signature:fail(": rate must lie in [0, 1), got " .. rate) end
end

-- ---- random -------------------------------------------------------------------------------------------------------

-- The shape of a mask for x, where it is not that of x; nil where it is.
local function mask_shape(given, x, signature)
  if not given.noise_shape then return nil end
  local shape, rank = arguments.flat_list(given.noise_shape), #x.shape
  local fits = #shape == rank
  for axis = 1, fits and rank or 0 do fits = fits and (shape[axis] == 1 or shape[axis] == x.shape[axis - 1]) end
  if not fits then
    signature:fail((": noise_shape (%s) does not fit '%s' of shape %s, whose sizes or ones are wanted"):format(
      table.concat(shape, ", "), x.name, tostring(x.shape)))
  end
  return shape
end

define("dropout", { { "x", "blob" }, { "rate", "finite" }, { "noise_shape", "list?" }, { "seed", "integer?" } }, [[
Sets elements to zero with probability `rate` and scales the others by 1 / (1 - rate), in train jobs.
In a predict job, or with rate 0, it is the identity. The mask depends on the seed, the op's name and the step.]],
function(given, t, signature)
  check_rate(given.rate, signature)
  local x, shape = given.x, mask_shape(given, given.x, signature)
  if t.type ~= "train" or given.rate == 0 then
    return x
  end
  if shape then
    local kept = ops.apply("random_mask", {}, { rate = given.rate, shape = shape },
      given.name and given.name .. "-kept", given.seed)
    local factor = ops.apply("cast", { kept }, { dtype = x.dtype }) * (1 / (1 - given.rate))
    return ops.apply("multiply", { x, factor }, nil, given.name)
  end
  return (ops.apply("dropout", { given.x }, { rate = given.rate }, given.name, given.seed))
end)

define("random_mask_like", { { "like", "blob" }, { "rate", "finite" }, { "seed", "integer?" },
                             { "noise_shape", "list?" } }, [[
A mask of int8, 1 with probability 1 - rate, of the shape of `like` or of noise_shape.]],
function(given, _, signature)
  check_rate(given.rate, signature)
  local shape = mask_shape(given, given.like, signature)
  if shape then
    return ops.apply("random_mask", {}, { rate = given.rate, shape = shape }, given.name, given.seed)
  end
  return ops.apply("random_mask_like", { given.like }, { rate = given.rate }, given.name, given.seed)
end)

-- ---- attention ----------------------------------------------------------------------------------------------------

define("dot_product_attention", {
  { "query", "blob" }, { "key", "blob" }, { "value", "blob" }, { "mask", "blob?" }, { "causal", "boolean", false },
  { "scale", "finite?" }, { "rate", "finite", 0, text = "share of the weights that dropout sets to 0, in train jobs" },
  { "seed", "integer?" },
}, [[
softmax(scale * query . key^T) . value for each head, as one op: the weights are never stored.
shapes: query (batch, queries, heads, width), key and value (batch, keys, heads, width) -> as query. That is a dense
  layer's (batch, length, heads * width) under another shape, so a reshape is all that it needs.
mask: int8 that broadcasts to (batch, heads, queries, keys); where it is 0 a query does not look at a key. A query that
  looks at none gives 0
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
  { "variance_epsilon", "finite", 1e-5 }, { "axis", "integer", 1, text = "that of the channels" },
}, "scale * (x - mean) / sqrt(variance + variance_epsilon) + offset, along `axis`.",
function(given, t)
  local dtype, size = given.mean.dtype, given.mean.shape[0]
  local gamma, beta = given.scale or ops.filled(t, 1, dtype, size), given.offset or ops.filled(t, 0, dtype, size)
  return ops.apply("batch_norm_infer", { given.x, gamma, beta, given.mean, given.variance },
    { axis = given.axis, epsilon = given.variance_epsilon }, given.name)
end)

define("layer_norm", {
  { "inputs", "blob" }, { "gamma", "blob?" }, { "beta", "blob?" }, { "begin_norm_axis", "integer", 1 },
  { "begin_params_axis", "integer", -1 }, { "epsilon", "finite", 1e-5 },
}, "Normalises each sample over the axes from begin_norm_axis on, then gamma * x + beta where they are given.",
function(given, _, signature)
  local rank, gamma, beta, name = #given.inputs.shape, given.gamma, given.beta, given.name
  local attrs = { begin_norm_axis = signature:axis(given.begin_norm_axis, rank), epsilon = given.epsilon }
  if signature:axis(given.begin_params_axis, rank) == attrs.begin_norm_axis then
    return (ops.apply("layer_norm_core", { given.inputs, gamma or false, beta or false }, attrs, name))
  end
  local out = ops.apply("layer_norm_core", { given.inputs, false, false }, attrs, name)
  if gamma then out = ops.apply("multiply", { out, gamma }, nil, name and name .. "-scale") end
  if beta then out = ops.apply("add", { out, beta }, nil, name and name .. "-shift") end
  return out
end)

define("rms_norm", {
  { "inputs", "blob" }, { "gamma", "blob?" },
  { "begin_norm_axis", "integer", -1, text = "the first axis of what is normalised together" },
  { "epsilon", "finite", 1e-5, text = "added to the mean of the squares under the root" },
}, [[
Divides each row by the root of its mean square, then multiplies by gamma where it is given: a layer_norm that takes no
mean off. A row is everything from begin_norm_axis on, the last axis unless said.
  out = inputs / sqrt(mean(inputs^2) + epsilon) * gamma
shapes: inputs (..., n...), gamma shaped like the last axes of it, none before begin_norm_axis -> as inputs
dtypes: float32, float64
source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019]],
function(given, _, signature)
  local axis = signature:axis(given.begin_norm_axis, #given.inputs.shape)
  return (ops.apply("layer_norm_core", { given.inputs, given.gamma or false, false },
    { begin_norm_axis = axis, epsilon = given.epsilon, centred = false }, given.name))
end)

-- ---- element by element -------------------------------------------------------------------------------------------

ops.extend("nn.sigmoid_cross_entropy_with_logits", "Labels of 0 and 1 may be of an integer dtype.",
function(as_it_is, given)
  local labels, logits = given.labels, given.logits
  if blob.is(labels) and blob.is(logits) and not dtypes.floating[labels.dtype] then
    given.labels = ops.apply("cast", { labels }, { dtype = logits.dtype })
  end
  return as_it_is(given)
end)

local within_one = ops.functions.nn.hardtanh
define("hardtanh", {
  { "x", "blob" }, { "min_val", "finite", -1, text = "the smallest result" },
  { "max_val", "finite", 1, text = "the largest" },
}, [[
Identity between two bounds.
  out = min(max(x, min_val), max_val)
shapes: x of any shape -> out of the same shape
dtypes: float32, float64]],
function(given, _, signature)
  if given.min_val == -1 and given.max_val == 1 then return within_one { x = given.x, name = given.name } end
  if given.min_val > given.max_val then signature:fail(": min_val is above max_val") end
  return (ops.apply("clip_by_value", { given.x }, { min = given.min_val, max = given.max_val }, given.name))
end)
