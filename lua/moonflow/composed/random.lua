--- The functions of flow.random that are put together from ops.

local dtypes = require "moonflow.dtypes"
local ops = require "moonflow.ops"

local flow = ops.functions

-- A random order of `count` rows, as int64. Ties among numbers of 53 bits do not happen.
local function random_order(count, given)
  local keys = ops.apply("random_uniform", {}, { shape = { count }, dtype = "float64" }, given.name, given.seed)
  return ops.apply("argsort", { keys })
end

local function rows_of(value, signature)
  if #value.shape == 0 then signature:fail(": '" .. value.name .. "' has no axis to shuffle along") end
  return value.shape[0]
end

ops.define("random.shuffle", { { "value", "blob" }, { "seed", "integer?" } }, [[
The rows of a value, along its first axis, in a random order, another one in each run. The gradient goes back to the
rows.]],
  function(given, _, signature)
    local order = random_order(rows_of(given.value, signature), { seed = given.seed })
    return ops.apply("gather", { given.value, order }, { axis = 0 }, given.name)
  end)

ops.define("random.generate_random_batch_permutation_indices", { { "value", "blob" }, { "seed", "integer?" } }, [[
The numbers of a value's rows in a random order, another one in each run; flow.gather(x, it) takes rows in it.
dtypes: int32]],
  function(given, _, signature)
    local order = random_order(rows_of(given.value, signature), { seed = given.seed })
    return ops.apply("cast", { order }, { dtype = "int32" }, given.name)
  end)

ops.define("random.coin_flip", {
  { "batch_size", "integer", 1 }, { "seed", "integer?" }, { "probability", "finite", 0.5 },
}, [[
So many coin flips, thrown anew in each run: 1 with the probability that is given, else 0.
shapes: -> (batch_size)
dtypes: int8]],
  function(given, _, signature)
    if given.probability < 0 or given.probability > 1 then
      signature:fail(": probability must lie in [0, 1], got " .. given.probability)
    end
    local u = ops.apply("random_uniform", {}, { shape = { given.batch_size }, dtype = "float64" }, nil, given.seed)
    return ops.apply("less", { u, flow.constant_scalar(given.probability, "float64") }, nil, given.name)
  end)

ops.define("random.categorical", { { "logits", "blob" }, { "dtype", "dtype", "int32" }, { "seed", "integer?" } }, [[
One class of each row, drawn anew in each run with the probabilities softmax(logits). No gradient. The logarithm of the
probability of what was drawn is -flow.nn.sparse_softmax_cross_entropy_with_logits(out, logits).
  out = argmax(logits - log(-log(u))), with u uniform in [0, 1)
shapes: logits (..., classes) -> (...)
dtypes: logits of a floating dtype -> int32, or int64 with `dtype`
note: flow.masked_fill(logits, mask, -1e9) leaves out the classes where the mask is not 0; so does -inf, which makes an
  entropy NaN
errors: logits of an integer dtype or without a class; in a run, a row with a NaN or with nothing but -inf
source: the Gumbel-max trick, as in Maddison, Tarlow and Minka, A* Sampling, NIPS 2014]],
  function(given, _, signature)
    local logits, dtype, name = given.logits, given.dtype, given.name
    local shape = logits.shape:table()
    if not dtypes.floating[logits.dtype] or #shape == 0 or shape[#shape] == 0 then
      signature:fail((": logits are floating (..., classes), '%s' is %s %s"):format(logits.name, logits.dtype,
        tostring(logits.shape)))
    elseif dtype ~= "int32" and dtype ~= "int64" then
      signature:fail(": dtype can be int32 or int64, got " .. dtype)
    end
    -- In two bytes too few numbers lie between 0 and 1.
    logits = ops.widened(logits)
    local u = ops.apply("random_uniform", {}, { shape = shape, dtype = logits.dtype }, name and name .. "-uniform",
      given.seed)
    -- 0, which may come of 24 bits, is as good as half of the next: else a class could lose to those that are left out.
    u = ops.apply("clip_by_value", { u }, { min = logits.dtype == "float64" and 2 ^ -54 or 2 ^ -25 })
    local race = logits - ops.apply("log", { -ops.apply("log", { u }) })
    local drawn = ops.apply("argmax", { race }, { axis = -1 })
    return ops.apply("drawn_class", { drawn, logits }, { dtype = dtype }, name)
  end)
