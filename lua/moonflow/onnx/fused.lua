--- What ONNX Runtime's optimizers put in the place of several operators of ONNX, in transformers above all: a table
--- from an operator's name, with its domain, to the function that applies it to a node.
-- Each is the operators that it stands for, as far as ONNX has them now.

local onnx_attention = require "moonflow.onnx.attention"
local onnx_elementwise = require "moonflow.onnx.elementwise"
local onnx_indices = require "moonflow.onnx.indices"
local onnx_layers = require "moonflow.onnx.layers"
local onnx_products = require "moonflow.onnx.products"

local operators = {}

-- ---- activations --------------------------------------------------------------------------------------------------

function operators.Gelu(node) return node:apply("gelu", { node:input(1) }) end

function operators.BiasGelu(node) return node:apply("gelu", { node:add(node:input(1), node:input(2), "sum") }) end

function operators.FastGelu(node)
  local x, bias = node:input(1), node:optional(2)
  return onnx_elementwise.Gelu(node:taking({ bias and node:add(x, bias, "sum") or x },
    { approximate = { s = "tanh" } }))
end

-- x * sigmoid(alpha * x)
function operators.QuickGelu(node)
  local x = node:input(1)
  local inner = node:multiply(x, node:float("alpha", 1.702), "scaled")
  return node:multiply(x, node:apply("sigmoid", { inner }, nil, "gate"))
end

-- ---- sums of a residual net, and their norms ----------------------------------------------------------------------

-- The norm of input + skip + bias, which is also the last output; `apply` takes a node of the values of the norm.
local function of_sum(node, bias, apply, ...)
  local all = node:add(node:input(1), node:input(2), "sum")
  if bias then all = node:add(all, bias, "biased") end
  return apply(node:taking { all, ... }), nil, nil, all
end

local kUsualEpsilon = 1e-12  -- of a skip's norm, whose attribute has no other default

local function epsilon_of(node) return node:float("epsilon", kUsualEpsilon) end

local function normal(node)
  return (node:apply("layer_norm_core", { node:input(1), node:optional(2) or false, node:optional(3) or false },
    { begin_norm_axis = #node:input(1).shape - 1, epsilon = epsilon_of(node) }))
end

function operators.SkipLayerNormalization(node)
  return of_sum(node, node:optional(5), normal, node:input(3), node:optional(4))
end

function operators.SkipSimplifiedLayerNormalization(node)
  return of_sum(node, node:optional(4), onnx_layers.RMSNormalization, node:input(3))
end

-- Words, their places and their kinds, each a row of a table, and the norm of their sum. How many words there are in a
-- sequence follows from a mask.
function operators.EmbedLayerNormalization(node)
  local words, kinds, mask, places = node:input(1), node:optional(2), node:optional(8), node:optional(9)
  node:ignore("mask_index_type")
  local function rows(table, at) return onnx_indices.Gather(node:taking({ table, at }, {})) end
  local all = rows(node:input(3), words)
  if not places then
    places = node:apply("range", {}, { start = 0, stop = words.shape[1], dtype = words.dtype }, "places")
  end
  all = node:add(all, rows(node:input(4), places), "placed")
  if kinds and node:optional(5) then all = node:add(all, rows(node:input(5), kinds), "of_kinds") end
  local counts
  if node:is_wanted(2) then
    counts = mask and node:apply("reduce_sum", { mask }, { axis = { 1 } }, "counts")
      or node:filled(0, "int32", { words.shape[0] })
  end
  return normal(node:taking { all, node:input(6), node:input(7) }), counts, all
end

-- ---- products and convolutions ------------------------------------------------------------------------------------

function operators.FusedMatMul(node)
  local a, b, alpha = node:input(1), node:input(2), node:float("alpha", 1)
  -- The first axis may be that of the rows, before those of the batch; then rows and columns may be turned.
  local function turned(x, name)
    local rank = #x.shape
    if node:int("transBatch" .. name, 0) ~= 0 and rank > 2 then
      local perm = {}
      for i = 1, rank - 2 do perm[i] = i end
      perm[rank - 1], perm[rank] = 0, rank - 1
      x = node:transpose(x, perm, "rows_of_" .. name:lower())
    end
    if node:int("trans" .. name, 0) == 0 or rank < 2 then return x end
    return node:swapped(x, rank - 2, rank - 1, "turned_" .. name:lower())
  end
  local y = onnx_products.MatMul(node:taking { turned(a, "A"), turned(b, "B") })
  return alpha == 1 and y or node:multiply(y, alpha, "scaled")
end

-- The activation that a node says behind what it computes, with these parameters.
local function activated(node, y, parameters)
  local name = node:text("activation", "")
  if name == "" then return y end
  if name == "Clip" then
    return node:apply("clip_by_value", { y }, { min = parameters[1], max = parameters[2] }, "activation")
  elseif name == "Relu" or name == "Sigmoid" or name == "Tanh" then
    return node:apply(name:lower(), { y }, nil, "activation")
  elseif name ~= "LeakyRelu" and name ~= "HardSigmoid" then
    node:fail("activation = " .. name .. " is not supported")
  end
  return onnx_elementwise[name](node:taking({ y }, {
    alpha = parameters[1] and { f = parameters[1] }, beta = parameters[2] and { f = parameters[2] },
  }))
end

-- A convolution, to which a fourth input is added.
function operators.FusedConv(node)
  local y, other = onnx_layers.Conv(node:taking { node:input(1), node:input(2), node:optional(3) }), node:optional(4)
  if other then y = node:add(y, other, "with_other") end
  return activated(node, y, node:floats("activation_params", {}))
end

-- A Gemm, whose attributes it has.
function operators.FusedGemm(node)
  local parameters = {}
  for i, name in ipairs { "activation_alpha", "activation_beta" } do parameters[i] = node:float(name) end
  return activated(node, onnx_products.Gemm(node), parameters)
end

-- ---- attention ----------------------------------------------------------------------------------------------------

-- One part of the rows that stand side by side, in a bias or in a value of several axes.
local function columns(node, x, first, size, word) return node:cut(x, #x.shape - 1, first, size, word) end

-- 0 is the usual scale, as none is.
local function scale_of(node)
  local scale = node:float("scale", 0)
  return scale ~= 0 and { f = scale } or nil
end

-- What the mask of a sequence's keys and what is added to the scores are together, as the mask of ONNX's Attention. A
-- mask is (batch, keys), (batch, queries, keys), or how many keys of each sequence of the batch are there.
local function masked(node, mask, bias, keys, dtype)
  node:ignore("mask_filter_value")
  if not mask then return bias end
  local sizes = mask.shape:table()
  if #sizes == 1 then
    local places = node:apply("range", {}, { start = 0, stop = keys, dtype = mask.dtype }, "keys")
    mask = node:apply("less", { node:reshape(places, { 1, 1, 1, keys }, "keys_row"),
      node:reshape(mask, { sizes[1], 1, 1, 1 }, "lengths") }, nil, "there")
  elseif #sizes == 2 or #sizes == 3 then
    mask = node:reshape(mask, { sizes[1], 1, #sizes == 3 and sizes[2] or 1, sizes[#sizes] }, "mask")
    mask = node:apply("not_equal", { mask, node:filled(0, mask.dtype) }, nil, "there")
  else
    node:fail("a mask " .. tostring(mask.shape) .. " is not supported")
  end
  if not bias then return mask end
  return node:apply("where", { mask, bias, node:filled(-math.huge, dtype) }, nil, "masked")
end

-- Queries, keys and values out of one product; a past has keys and values one behind the other.
function operators.Attention(node)
  local x, heads = node:input(1), node:need(node:int("num_heads"), "num_heads")
  node:expect("do_rotary", "i", 0)
  local rows = node:add(onnx_products.MatMul(node:taking { x, node:input(2) }), node:input(3), "rows")
  local width = rows.shape[2] / 3
  local widths = node:ints("qkv_hidden_sizes", { width, width, width })
  local parts, first = {}, 0
  for i, size in ipairs(widths) do parts[i], first = columns(node, rows, first, size, "part_" .. i), first + size end
  local past, pasts = node:optional(5), {}
  for i = 1, past and 2 or 0 do
    pasts[i] = node:reshape(node:cut(past, 0, i - 1, 1, "past_cut_" .. i), { unpack(past.shape:table(), 2) },
      "past_" .. i)
  end
  local keys = x.shape[1] + (past and past.shape[3] or 0)
  local mask = masked(node, node:optional(4), node:optional(6), keys, x.dtype)
  local y = onnx_attention.Attention(node:taking({ parts[1], parts[2], parts[3], mask, pasts[1], pasts[2] }, {
    q_num_heads = { i = heads }, kv_num_heads = { i = heads }, is_causal = { i = node:int("unidirectional", 0) },
    scale = scale_of(node),
  }))
  if not node:is_wanted(2) then return y end
  local present = {}
  for i = 1, 2 do
    local part = node:reshape(parts[i + 1], { x.shape[0], x.shape[1], heads, widths[i + 1] / heads }, "heads_" .. i)
    part = node:transpose(part, { 0, 2, 1, 3 }, "heads_first_" .. i)
    if past then part = node:apply("concat", { pasts[i], part }, { axis = 2 }, "present_" .. i) end
    present[i] = node:reshape(part, { 1, unpack(part.shape:table()) }, "present_whole_" .. i)
  end
  return y, node:apply("concat", present, { axis = 0 }, "present")
end

function operators.MultiHeadAttention(node)
  local heads = node:need(node:int("num_heads"), "num_heads")
  local query, key, value = node:input(1), node:optional(2), node:optional(3)
  local bias = node:optional(4)
  if not key or not value or #query.shape ~= 3 or #value.shape ~= #key.shape then
    node:fail("packed queries, keys and values are not supported; export the model without them")
  end
  if bias then
    local width, value_width = query.shape[2], bias.shape[0] - 2 * query.shape[2]
    query = node:add(query, columns(node, bias, 0, width, "query_bias"), "query_biased")
    if #key.shape == 3 then
      key = node:add(key, columns(node, bias, width, width, "key_bias"), "key_biased")
      value = node:add(value, columns(node, bias, 2 * width, value_width, "value_bias"), "value_biased")
    end
  end
  local past = node:optional(7)
  local keys = (#key.shape == 4 and key.shape[2] or key.shape[1]) + (past and past.shape[2] or 0)
  local mask = masked(node, node:optional(5), node:optional(6), keys, query.dtype)
  return onnx_attention.Attention(node:taking({ query, key, value, mask, past, node:optional(8) }, {
    q_num_heads = { i = heads }, kv_num_heads = { i = heads }, is_causal = { i = node:int("unidirectional", 0) },
    scale = scale_of(node),
  }))
end

-- The places of the queries, behind what past calls have left.
local function places_after(node, past, length)
  local first = past and past.shape[2] or 0
  local row = node:apply("range", {}, { start = first, stop = first + length, dtype = "int64" }, "places")
  return node:reshape(row, { 1, length }, "places_row")
end

local function rotated(node, x, heads, cos, sin, at, word)
  local own = node:taking({ x, cos, sin, at }, { num_heads = { i = heads },
    interleaved = { i = node:int("rotary_interleaved", 0) }, rotary_embedding_dim = { i = 2 * cos.shape[1] } })
  own.name = node.name .. "_" .. word
  return onnx_attention.RotaryEmbedding(own)
end

-- Ainslie and others, 2023: several heads of queries share a head of keys and values. How long the sequence is follows
-- from the shapes, so seqlens_k and total_sequence_length are not looked at: they differ where a batch is padded.
function operators.GroupQueryAttention(node)
  local heads = node:need(node:int("num_heads"), "num_heads")
  local shared = node:need(node:int("kv_num_heads"), "kv_num_heads")
  local query, key, value = node:input(1), node:optional(2), node:optional(3)
  local past, past_value = node:optional(4), node:optional(5)
  local batch, length = query.shape[0], query.shape[1]
  if batch ~= 1 then node:fail("a batch of " .. batch .. " is not supported, whose sequences may differ in length") end
  if node:int("smooth_softmax", 0) > 0 then node:fail("smooth_softmax is not supported") end
  if not key then  -- side by side in one
    local width = query.shape[2] / (heads + 2 * shared)
    local all = query
    query = columns(node, all, 0, heads * width, "query")
    key = columns(node, all, heads * width, shared * width, "key")
    value = columns(node, all, (heads + shared) * width, shared * width, "value")
  end
  if past and past.shape[2] == 0 then past, past_value = nil, nil end
  if node:int("do_rotary", 0) ~= 0 then
    local cos, sin = node:input(8), node:input(9)
    local at = node:optional(10) or places_after(node, past, length)
    query = rotated(node, query, heads, cos, sin, at, "query_turned")
    key = rotated(node, key, shared, cos, sin, at, "key_turned")
  else
    node:ignore("rotary_interleaved")
  end
  local window = node:int("local_window_size", -1)
  return onnx_attention.Attention(node:taking({ query, key, value, node:optional(11), past, past_value }, {
    q_num_heads = { i = heads }, kv_num_heads = { i = shared }, is_causal = { i = 1 }, scale = scale_of(node),
    softcap = { f = node:float("softcap", 0) }, left_window_size = { i = window > 0 and window - 1 or -1 },
  }))
end

-- The same as ONNX's, with its inputs in another order, and places of one number for the first of all.
function operators.RotaryEmbedding(node)
  node:expect("scale", "f", 1)
  node:expect("is_packed_batching", "i", 0)
  local x, at = node:input(1), node:input(2)
  local length = #x.shape == 4 and x.shape[2] or x.shape[1]
  if at.shape:count() == 1 and (#at.shape ~= 2 or length ~= 1) then
    local steps = node:apply("range", {}, { start = 0, stop = length, dtype = at.dtype }, "steps")
    at = node:reshape(node:add(node:reshape(at, {}, "first"), steps, "places"), { 1, length }, "places_row")
    at = node:spread(at, { x.shape[0], length }, "places_rows")
  end
  return onnx_attention.RotaryEmbedding(node:taking { x, node:input(3), node:input(4), at })
end

-- ---- weights of few bits ------------------------------------------------------------------------------------------

-- x times the transpose of (N, K) weights, whose numbers of 4 or 8 bits lie in blocks, each with a scale and a zero
-- point of its own. They are made floats when the job is traced.
function operators.MatMulNBits(node)
  local function size_of(name)
    local size = node:need(node:int(name), name)
    if size < 1 then node:fail(("%s is %g, wanted 1 or more"):format(name, size), "out_of_range") end
    return size
  end
  local rows, columns_, size, bits = size_of("N"), size_of("K"), size_of("block_size"), node:int("bits", 4)
  node:ignore("accuracy_level")
  if bits ~= 4 and bits ~= 8 then node:fail("bits = " .. bits .. " is not supported, only 4 and 8") end
  if node:optional(5) then node:fail("an order of columns, g_idx, is not supported") end
  local blocks = math.ceil(columns_ / size)
  local x, scales = node:input(1), node:reshape(node:input(3), { rows, blocks, 1 }, "scales")

  -- Bytes (..., n) as numbers (..., count): the lower half of a byte comes first.
  local function numbers(bytes, shape, word)
    local wide = node:cast(bytes, "float32", word .. "_wide")
    if bits == 4 then
      local sixteen = node:filled(16, "float32")
      local high = node:apply("floor", { node:apply("divide", { wide, sixteen }, nil, word .. "_part") }, nil,
        word .. "_high")
      local low = node:apply("subtract", { wide, node:multiply(high, sixteen, word .. "_most") }, nil, word .. "_low")
      local sizes = bytes.shape:table()
      sizes[#sizes + 1] = 1
      wide = node:apply("concat", { node:reshape(low, sizes, word .. "_lows"), node:reshape(high, sizes,
        word .. "_highs") }, { axis = #sizes - 1 }, word .. "_halves")
    end
    return node:reshape(wide, shape, word)
  end

  local places = numbers(node:input(2), { rows, blocks, size }, "weights")
  local zero = node:optional(4)
  if not zero then
    zero = node:filled(2 ^ (bits - 1), "float32")
  elseif node.is_floating(zero) then
    zero = node:reshape(node:cast(zero, "float32", "zero_wide"), { rows, blocks, 1 }, "zero")
  else  -- in whole bytes for each row
    local per_row = zero.shape:count() / rows * 8 / bits
    local all = numbers(node:reshape(zero, { rows, -1 }, "zero_rows"), { rows, per_row }, "zeros")
    zero = node:reshape(node:cut(all, 1, 0, blocks, "zeros_cut"), { rows, blocks, 1 }, "zero")
  end
  places = node:apply("subtract", { places, zero }, nil, "moved")
  local weight = node:multiply(places, node:cast(scales, "float32", "scales_wide"), "scaled")
  weight = node:reshape(weight, { rows, blocks * size }, "padded")
  if blocks * size > columns_ then weight = node:cut(weight, 1, 0, columns_, "weight") end
  weight = node:cast(weight, x.dtype, "weight_cast")

  local sizes = x.shape:table()
  sizes[#sizes] = rows
  local y = node:apply("matmul", { node:flattened(x, #x.shape - 1, "rows"), weight }, { transpose_b = true }, "product")
  if node:optional(6) then y = node:apply("bias_add", { y, node:input(6) }, nil, "biased") end
  return node:reshape(y, sizes, "shape")
end

local named = { SimplifiedLayerNormalization = onnx_layers.RMSNormalization }  -- of no domain, as it is written
for name, apply in pairs(operators) do named["com.microsoft." .. name] = apply end

return named
