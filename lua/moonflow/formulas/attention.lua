--- Attention in simple ops, one after another: for what the op of the catalog does not do, a bias that is added to the
--- scores, scores that are bounded, and where somebody asks for them. flow.nn.dot_product_attention, and ONNX's
--- Attention.
--
-- `tools` computes, by apply(op, inputs, attrs, word).

local attention = {}

local function number(tools, x, dtype)
  return tools:apply("constant", {}, { value = x, dtype = dtype, shape = {} }, "fill")
end

local function heads_first(tools, x, word) return tools:apply("transpose", { x }, { perm = { 0, 2, 1, 3 } }, word) end

local function places(tools, count, shape, word)
  local range = tools:apply("range", {}, { start = 0, stop = count, dtype = "int64" }, word)
  return tools:apply("reshape", { range }, { shape = shape }, word)
end

local function triangle(tools, queries, keys)
  return tools:apply("less_equal", { places(tools, keys, { 1, keys }, "keys"),
    places(tools, queries, { queries, 1 }, "queries") }, nil, "triangle")
end

-- Minus infinity where a query may not look.
local function limited(tools, bias, allowed, dtype)
  return tools:apply("where", { allowed, bias or number(tools, 0, dtype), number(tools, -math.huge, dtype) }, nil,
    "bias")
end

-- What is added to the scores of all queries at `keys` keys, or nil.
local function bias_of(tools, part, queries, keys, dtype)
  local bias = part.bias
  if part.allowed then bias = limited(tools, bias, part.allowed, dtype) end
  if part.is_causal then bias = limited(tools, bias, triangle(tools, queries, keys), dtype) end
  return bias
end

-- The biases of earlier keys and of those behind them as that of all keys.
local function of_all_keys(tools, past, past_keys, bias, keys, dtype)
  if not past and not bias then return nil end
  local parts, axes = { past or number(tools, 0, dtype), bias or number(tools, 0, dtype) }, { 1, 1, 1 }
  for _, part in ipairs(parts) do
    for axis = #part.shape - 2, 0, -1 do
      local place = axis + 5 - #part.shape
      axes[place] = math.max(axes[place], part.shape[axis])
    end
  end
  for i, count in ipairs { past_keys, keys } do
    parts[i] = tools:apply("broadcast_to", { parts[i] }, { shape = { axes[1], axes[2], axes[3], count } }, "part")
  end
  return tools:apply("concat", parts, { axis = 3 }, "bias")
end

-- A query that may look at nothing has weights of 0.
local function weights_of(tools, scores, bias, dtype)
  if not bias then return tools:apply("softmax", { scores }, { axis = -1 }, "weights") end
  local most = tools:apply("reduce_max", { bias }, { axis = { -1 }, keepdims = true }, "most")
  local is_any = tools:apply("greater", { most, number(tools, -math.huge, dtype) }, nil, "looks_at_any")
  local safe = tools:apply("where", { is_any, scores, number(tools, 0, dtype) }, nil, "safe")
  return tools:apply("where", { is_any, tools:apply("softmax", { safe }, { axis = -1 }, "softmax"),
    number(tools, 0, dtype) }, nil, "weights")
end

--- Keys or values with as many heads as queries have: each of theirs is that of as many neighbouring ones of queries.
--- Unchanged where the one number does not divide the other.
function attention.with_heads(tools, x, heads, word)
  local batch, length, own, width = unpack(x.shape:table())
  if own == heads or own == 0 or heads % own ~= 0 then return x end
  local column = tools:apply("reshape", { x }, { shape = { batch, length, own, 1, width } }, word .. "_column")
  local repeated = tools:apply("broadcast_to", { column }, { shape = { batch, length, own, heads / own, width } },
    word .. "_columns")
  return tools:apply("reshape", { repeated }, { shape = { batch, length, heads, width } }, word .. "_shared")
end

--- weights . value for each head, with weights = softmax(cap(scale * query . key^T) + bias), and cap(x) = softcap *
--- tanh(x / softcap).
--- @param query any    (batch, queries, heads, width), key and value (batch, keys, heads, width)
--- @param given table  `scale`; `softcap`, 0 for none; `bias` and the int8 `allowed`, which broadcast to (batch, heads,
---                     queries, keys), or nil; `is_causal`; `kept`, what is made of the weights, or nil;
---                     `word`, of the last op; `past`, of earlier keys, which all queries may look at, or nil: its
---                     `key` and `value`, `bias` and `allowed`
--- @return any         (batch, queries, heads, width)
--- @return table       the scores as they are scaled [0], bounded [1], biased [2], and the weights [3]
function attention.in_steps(tools, query, key, value, given)
  local dtype, queries, keys, past = query.dtype, query.shape[1], key.shape[1], given.past
  if past then
    key = tools:apply("concat", { past.key, key }, { axis = 1 }, "keys")
    value = tools:apply("concat", { past.value, value }, { axis = 1 }, "values")
  end
  query, key, value = heads_first(tools, query, "query_heads"), heads_first(tools, key, "key_heads"),
    heads_first(tools, value, "value_heads")
  local scores = tools:apply("matmul", { query, key }, { transpose_b = true }, "scores")
  scores = tools:apply("multiply", { scores, number(tools, given.scale, dtype) }, nil, "scaled")
  local stages = { [0] = scores }
  if given.softcap > 0 then
    local cap = number(tools, given.softcap, dtype)
    local tanh = tools:apply("tanh", { tools:apply("divide", { scores, cap }, nil, "part") }, nil, "tanh")
    scores = tools:apply("multiply", { tanh, cap }, nil, "capped")
  end
  stages[1] = scores

  local bias = bias_of(tools, given, queries, keys, dtype)
  if past then
    local past_keys = past.key.shape[1]
    bias = of_all_keys(tools, bias_of(tools, past, queries, past_keys, dtype), past_keys, bias, keys, dtype)
  end
  if bias then scores = tools:apply("add", { scores, bias }, nil, "biased") end
  local weights = weights_of(tools, scores, bias, dtype)
  stages[2], stages[3] = scores, weights
  if given.kept then weights = given.kept(weights) end
  return heads_first(tools, tools:apply("matmul", { weights, value }, {}, "sums"), given.word), stages
end

return attention
