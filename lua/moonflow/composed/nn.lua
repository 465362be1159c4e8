--- The part of flow.nn that is put together from ops: dropout, attention, normalisation with given statistics. What is
-- about images, about volumes and what is a loss have files of their own.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local attention = require "moonflow.formulas.attention"
local dtypes = require "moonflow.dtypes"
local ops = require "moonflow.ops"
local rotations = require "moonflow.formulas.rotations"
local tools = require "moonflow.composed.tools"

local flow = ops.functions

-- What help says of parameters that mean the same throughout.
local texts = {
  rate = "share of the elements that become 0, in [0, 1)",
  noise_shape = "the shape of the mask, with a size of 1 along each axis whose elements share one choice, as "
    .. "{ rows, 1, 1, channels } for whole channels of (rows, height, width, channels), and { rows, 1, 1, 1 } for the "
    .. "branch of a sample (stochastic depth, drop path)",
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

define("dropout", {
  { "x", "blob" }, { "rate", "finite" }, { "noise_shape", "list?" }, { "seed", "integer?" },
  { "training", "boolean?", text = "true: in a predict job too; false: in no job; that of the job when left out" },
}, [[
Sets elements to zero with probability `rate` and scales the others by 1 / (1 - rate), in train jobs.
In a predict job, or with rate 0, it is the identity; with training = true it draws there as well, so that many runs of
one input tell how sure a net is (Gal and Ghahramani, arXiv:1506.02142). The mask depends on the seed, the op's name and
the step.]],
function(given, t, signature)
  check_rate(given.rate, signature)
  local x, shape = given.x, mask_shape(given, given.x, signature)
  local draws = given.training
  if draws == nil then draws = t.type == "train" end
  if not draws or given.rate == 0 then return x end
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

-- Does a mask say of all queries the same, whatever their head?
local function is_of_keys(mask)
  local rank = #mask.shape
  return (rank < 2 or mask.shape[rank - 2] == 1) and (rank < 3 or mask.shape[rank - 3] == 1)
end

-- Attention by `attend(query)` of heads of queries that share keys, as queries of one head: so keys are not copied. All
-- of them look at the same ones.
local function among_queries(query, own, name, attend)
  local batch, length, heads, width = unpack(query.shape:table())
  local shares = heads / own
  local parts = flow.transpose(flow.reshape(query, { batch, length, own, shares, width }), { 0, 1, 3, 2, 4 })
  local out, log_sum = attend(flow.reshape(parts, { batch, length * shares, own, width }))
  out = flow.transpose(flow.reshape(out, { batch, length, shares, own, out.shape[3] }), { 0, 1, 3, 2, 4 })
  log_sum = flow.transpose(flow.reshape(log_sum, { batch, own, length, shares }), { 0, 1, 3, 2 })
  return flow.reshape(out, { batch, length, heads, out.shape[4] }, { name = name }),
    flow.reshape(log_sum, { batch, heads, length })
end

-- What is seen of two parts of the keys, of each of which the sums have been divided by those of its own weights. The
-- logarithms of these say how much a part counts; one without any is -infinity.
local function joined(seen, log_sum, past, past_log_sum, dtype, name)
  local below = -math.huge
  local ratio = flow.where(past_log_sum:gt(below), past_log_sum - log_sum, below)
  local share = flow.expand_dims(flow.transpose(flow.math.sigmoid(ratio), { 0, 2, 1 }), 3)
  return ops.apply_narrowed("add", { seen, share * (past - seen) }, dtype, name)
end

local function check_mask(given, parameter, keys, signature)
  local mask, query = given[parameter], given.query
  local wanted = { query.shape[0], query.shape[2], query.shape[1], keys }
  local sizes = mask and mask.shape:table() or {}
  local fits = #sizes <= 4
  for i = 1, #sizes do
    fits = fits and (sizes[#sizes + 1 - i] == 1 or sizes[#sizes + 1 - i] == wanted[5 - i])
  end
  if not fits then
    signature:fail((": %s is %s, which cannot be repeated to (batch, heads, queries, keys) = (%s)"):format(parameter,
      tostring(mask.shape), table.concat(wanted, ", ")))
  end
end

-- Is this a mask that is added to scores?
local function is_added(mask, query) return mask and mask.dtype == query.dtype end

-- Keys with their values and what a mask says of them, for attention.in_steps.
local function part_of(given, prefix, of_job, signature)
  local query, key, value, mask = given.query, given[prefix .. "key"], given[prefix .. "value"], given[prefix .. "mask"]
  check_mask(given, prefix .. "mask", key.shape[1], signature)
  local heads, adds = query.shape[2], is_added(mask, query)
  return {
    key = attention.with_heads(of_job, key, heads, prefix .. "key"),
    value = attention.with_heads(of_job, value, heads, prefix .. "value"),
    bias = adds and mask or nil, allowed = not adds and mask or nil,
  }
end

-- With weights that are stored: a mask that is added, or scores that are bounded.
local function in_steps(given, t, signature, scale)
  if given.softcap < 0 then signature:fail(": softcap must be at least 0, got " .. given.softcap) end
  local of_job, name = tools.new(t, signature, given.name or t:unnamed("DotProductAttention")), given.name
  local part = part_of(given, "", of_job, signature)
  part.past = given.past_key and part_of(given, "past_", of_job, signature)
  part.scale, part.softcap, part.is_causal = scale, given.softcap, given.causal
  function part.kept(weights)
    return flow.nn.dropout(weights, { rate = given.rate, seed = given.seed, name = name and name .. "-kept" })
  end
  return (attention.in_steps(of_job, given.query, part.key, part.value, part))
end

define("dot_product_attention", {
  { "query", "blob" }, { "key", "blob" }, { "value", "blob" }, { "mask", "operand?" }, { "causal", "boolean", false },
  { "scale", "finite?" }, { "rate", "finite", 0, text = "share of the weights that dropout sets to 0, in train jobs" },
  { "seed", "integer?" }, { "past_key", "blob?" }, { "past_value", "blob?" }, { "past_mask", "operand?" },
  { "softcap", "finite", 0 },
}, [[
Multi-head attention: softmax(scale * query . key^T) . value for each head, as one op, which stores no weights.
shapes: query (batch, queries, heads, width), key and value (batch, keys, heads, width) -> as query. That is a dense
  layer's (batch, length, heads * width) under another shape, so a reshape is all that it needs. Keys and values may
  have fewer heads, each of which is that of as many neighbouring heads of queries (grouped queries)
mask: a blob or an array that broadcasts to (batch, heads, queries, keys). One of int8 says by a 0 where a query does
  not look at a key; one of the query's dtype is added to the scores before the softmax, as slopes and tables of
  distances are (ALiBi, T5). A query that looks at none gives 0. Keys and values that nobody looks at are to be finite
  all the same, as 0 times NaN is NaN
softcap: bounds the scores, before a mask counts: softcap * tanh(scores / softcap). With it, or with a mask that is
  added, the weights are stored, and earlier keys and values copied
causal: query i looks at the keys 0 to i only
past_key, past_value (batch, past, heads, width): keys and values of earlier calls, to which every query looks too, as
  far as past_mask lets it, which is to them what mask is to the others. They are read where they lie, and not copied
  behind the others
rate: of dropout on the weights, in train jobs, as in flow.nn.dropout
defaults: scale 1 / sqrt(width)]],
function(given, t, signature)
  check_rate(given.rate, signature)
  local query, name, dtype = given.query, given.name, given.query.dtype
  for _, x in ipairs { query, given.key, given.value, given.past_key, given.past_value } do
    if #x.shape ~= 4 then
      signature:fail(": '" .. x.name .. "' is " .. tostring(x.shape) .. ", wanted (batch, length, heads, width)")
    end
  end
  for _, parameter in ipairs { "mask", "past_mask" } do
    if arguments.kind(given[parameter]) == "ndarray" then given[parameter] = ops.constant(t, given[parameter]) end
  end
  local scale, heads = given.scale or query.shape[3] ^ -0.5, query.shape[2]
  local function attend(queries, key, value, mask, causal, own_name)
    local own = key.shape[2]
    local is_shared = own < queries.shape[2] and own > 0 and heads % own == 0 and value.shape[2] == own
    if is_shared and not causal and (not mask or is_of_keys(mask)) then
      return among_queries(queries, own, own_name, function(rows)
        return attend(rows, key, value, mask, causal, own_name and own_name .. "-shared")
      end)
    end
    if key.shape[2] ~= queries.shape[2] or value.shape[2] ~= queries.shape[2] then
      local of_job = tools.new(t, signature, own_name or t:unnamed("DotProductAttention"))
      key = attention.with_heads(of_job, key, queries.shape[2], "key")
      value = attention.with_heads(of_job, value, queries.shape[2], "value")
    end
    local rate, kept = given.rate, false
    if t.type == "train" and rate > 0 then
      kept = ops.apply("random_mask", {}, {
        rate = rate, shape = { queries.shape[0], queries.shape[2], queries.shape[1], key.shape[1] },
      }, own_name and own_name .. "-kept", given.seed)
    else
      rate = 0
    end
    return ops.apply_whole("dot_product_attention", { queries, key, value, mask or false, kept },
      { scale = scale, causal = causal, rate = rate }, own_name)
  end
  if given.past_mask and not given.past_key and not given.past_value then
    signature:fail(": past_mask is of past_key and past_value, which are not given")
  end
  if (given.past_key == nil) ~= (given.past_value == nil) then
    signature:fail(": past_key and past_value go together, and " .. (given.past_key and "past_value" or "past_key")
      .. " is missing")
  end
  if is_added(given.mask, query) or is_added(given.past_mask, query) or given.softcap ~= 0 then
    return in_steps(given, t, signature, scale)
  end
  if not given.past_key then return (attend(query, given.key, given.value, given.mask, given.causal, name)) end
  -- In float32 where the dtype is a narrow one, for shares are made of sums of exponentials.
  local wide = ops.widened(query)
  local seen, log_sum = attend(wide, ops.widened(given.key), ops.widened(given.value), given.mask, given.causal,
    name and name .. "-new")
  local past, past_log_sum = attend(wide, ops.widened(given.past_key), ops.widened(given.past_value), given.past_mask,
    false, name and name .. "-past")
  return joined(seen, log_sum, past, past_log_sum, dtype, name)
end)

-- By how much the angle of each pair grows from place to place.
local function frequencies(base, pairs)
  local list = {}
  for i = 0, pairs - 1 do list[i + 1] = base ^ (-i / pairs) end
  return list
end

-- Cosines and sines (1, length, 1, pairs) of the places from 0 on, as constants of the job.
local function table_of_angles(t, length, base, pairs, dtype)
  local cos, sin = {}, {}
  local steps = frequencies(base, pairs)
  for place = 0, length - 1 do
    for i = 1, pairs do
      local angle = place * steps[i]
      cos[#cos + 1], sin[#sin + 1] = math.cos(angle), math.sin(angle)
    end
  end
  local shape = { 1, length, 1, pairs }
  return ops.constant(t, core.array(cos, dtype, shape)), ops.constant(t, core.array(sin, dtype, shape))
end

-- The same of places that a run knows, whose shape is { batch or 1, length }.
local function angles_at(of_job, places, shape, base, pairs, dtype)
  local column = of_job:apply("reshape", { places }, { shape = { shape[1], shape[2], 1, 1 } }, "column")
  -- As exact as those of the table: far from the beginning float32 has few bits left for what is beyond whole turns.
  local angles = of_job:apply("multiply", { of_job:apply("cast", { column }, { dtype = "float64" }, "places"),
    core.array(frequencies(base, pairs), "float64") }, nil, "angles")
  local function of(op)
    local value = of_job:apply(op, { angles }, nil, op)
    return dtype == "float64" and value or of_job:apply("cast", { value }, { dtype = dtype }, op .. "_cast")
  end
  return of("cos"), of("sin")
end

define("rotary_embedding", {
  { "x", "blob" }, { "places", "blob?" },
  { "base", "finite", 10000, text = "how much slower each pair turns than the one before is base^(-2 / width)" },
  { "interleaved", "boolean", false, text = "a pair is two neighbours, and not the i-th numbers of both halves" },
  { "width", "integer?", text = "how many numbers of a head are turned, from the first on; all when left out" },
}, [[
Rotary positional encoding: turns each pair of a head's numbers by an angle that grows with the place in the sequence,
so that attention sees how far apart a query and a key are. It is for both of them, and not for the values.
  out[p] = x[p] cos(a) - x[q] sin(a), out[q] = x[p] sin(a) + x[q] cos(a), where p and q are the i-th pair of `width`
  numbers and a = place * base^(-2i / width)
shapes: x (batch, length, heads, width), as flow.nn.dot_product_attention has it -> alike; places (length),
  (1, length) or (batch, length)
dtypes: x of a floating dtype, places of an integer one
defaults: places 0, 1, ... length - 1. Where a text is gone on with word by word, give the place of each word, from 0
source: Su and others, RoFormer, 2021. Halves are as Llama and GPT-NeoX have them, neighbours as GPT-J and RoFormer]],
function(given, t, signature)
  local x, places = given.x, given.places
  if #x.shape ~= 4 then
    signature:fail(": '" .. x.name .. "' is " .. tostring(x.shape) .. ", wanted (batch, length, heads, width)")
  end
  local batch, length, _, all = unpack(x.shape:table())
  local width = given.width or all
  if width < 2 or width > all or width % 2 ~= 0 then
    signature:fail((": width is %d, wanted an even number from 2 to %d, which each head has"):format(width, all))
  end
  if given.base <= 0 then signature:fail(": base must be above 0, got " .. given.base) end
  local of_job = tools.new(t, signature, given.name or t:unnamed("RotaryEmbedding"))
  local cos, sin
  if places then
    local sizes = places.shape:table()
    if #sizes == 1 then sizes = { 1, sizes[1] } end
    if dtypes.floating[places.dtype] or #sizes ~= 2 or sizes[2] ~= length or sizes[1] ~= 1 and sizes[1] ~= batch then
      signature:fail((": places is %s %s, wanted integers (%d, %d), one for each word of '%s'"):format(places.dtype,
        tostring(places.shape), batch, length, x.name))
    end
    cos, sin = angles_at(of_job, places, sizes, given.base, width / 2, x.dtype)
  else
    cos, sin = table_of_angles(t, length, given.base, width / 2, x.dtype)
  end
  return rotations.turned(of_job, x, cos, sin, given.interleaved)
end)

-- ---- normalisation ------------------------------------------------------------------------------------------------

define("batch_normalization", {
  { "x", "blob" }, { "mean", "blob" }, { "variance", "blob" }, { "offset", "blob?" }, { "scale", "blob?" },
  { "variance_epsilon", "finite", 1e-5 }, { "axis", "integer", 1, text = "that of the channels" },
}, "scale * (x - mean) / sqrt(variance + variance_epsilon) + offset, along `axis`.",
function(given, t)
  -- What is of the channels is float32 beside a narrow x, also what flow.nn.moments has rounded.
  local function of_channels(value)
    return dtypes.narrow[value.dtype] and ops.apply("cast", { value }, { dtype = "float32" }) or value
  end
  local mean, variance = of_channels(given.mean), of_channels(given.variance)
  local function filled(value) return ops.filled(t, value, mean.dtype, mean.shape[0]) end
  local gamma = given.scale and of_channels(given.scale) or filled(1)
  local beta = given.offset and of_channels(given.offset) or filled(0)
  return ops.apply("batch_norm_infer", { given.x, gamma, beta, mean, variance },
    { axis = given.axis, epsilon = given.variance_epsilon }, given.name)
end)

define("layer_norm", {
  { "inputs", "blob" }, { "gamma", "blob?" }, { "beta", "blob?" }, { "begin_norm_axis", "integer", 1 },
  { "begin_params_axis", "integer", -1 }, { "epsilon", "finite", 1e-5 },
}, [[
Normalises each sample over the axes from begin_norm_axis on, then gamma * x + beta where they are given.
  out = (inputs - mean) / sqrt(variance + epsilon) * gamma + beta, with the variance over the number of elements
shapes: inputs (batch, ...) -> as inputs; gamma and beta have the sizes of the axes from begin_params_axis on]],
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
