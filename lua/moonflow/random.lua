--- The functions of flow.random that are put together from ops. They are added to `flow` through math's `define`.

local ops = require "moonflow.ops"

-- A random order of `count` rows, as int64. Ties among numbers of 53 bits do not happen.
local function random_order(count, given)
  local keys = ops.apply("random_uniform", {}, { shape = { count }, dtype = "float64" }, given.name, given.seed)
  return ops.apply("argsort", { keys })
end

local function rows_of(value, signature)
  if #value.shape == 0 then signature:fail(": '" .. value.name .. "' has no axis to shuffle along") end
  return value.shape[0]
end

--- Adds them.
return function(flow, define)
  define("random.shuffle", { { "value", "blob" }, { "seed", "integer?" } }, [[
The rows of a value, along its first axis, in a random order, another one in each run. The gradient goes back to the
rows.]],
    function(given, _, signature)
      local order = random_order(rows_of(given.value, signature), { seed = given.seed })
      return ops.apply("gather", { given.value, order }, { axis = 0 }, given.name)
    end)

  define("random.generate_random_batch_permutation_indices", { { "value", "blob" }, { "seed", "integer?" } }, [[
The numbers of a value's rows in a random order, another one in each run; flow.gather(x, it) takes rows in it.
dtypes: int32]],
    function(given, _, signature)
      local order = random_order(rows_of(given.value, signature), { seed = given.seed })
      return ops.apply("cast", { order }, { dtype = "int32" }, given.name)
    end)

  define("random.coin_flip", {
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
  ops.place(flow, "random.CoinFlip", flow.random.coin_flip)
end
