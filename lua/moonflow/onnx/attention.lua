--- ONNX operators of transformers, since opset 23: Attention, and RotaryEmbedding, which turns what attention compares.
--- A table from an operator's name to the function that applies it to a node.
-- Heads are taken as (batch, length, heads, width), as the op of the catalog has them. ONNX has them so where a value
-- has three axes, and with heads before length where it has four.

local attention = require "moonflow.formulas.attention"
local rotations = require "moonflow.formulas.rotations"

local operators = {}

-- ---- heads --------------------------------------------------------------------------------------------------------

local function lengths_first(node, x, word) return node:transpose(x, { 0, 2, 1, 3 }, word) end

-- (batch, length, heads, width) of a value of three or four axes, of which `heads` names how many heads it has.
local function heads_of(node, x, heads, word)
  local sizes = x.shape:table()
  if #sizes == 4 then return lengths_first(node, x, word) end
  if #sizes ~= 3 then node:fail(word .. " has " .. #sizes .. " axes, wanted 3 or 4", "shape_mismatch") end
  local count = node:need(heads, "number of heads for " .. word .. ", which has three axes")
  if count < 1 or sizes[3] % count ~= 0 then
    node:fail(("%s has %d columns for %d heads"):format(word, sizes[3], count), "shape_mismatch")
  end
  return node:reshape(x, { sizes[1], sizes[2], count, sizes[3] / count }, word)
end

-- As many heads as queries have.
local function shared(node, x, heads, word)
  local own = x.shape[2]
  if own ~= heads and (own == 0 or heads % own ~= 0) then
    node:fail(("%d heads of %s for %d of queries"):format(own, word, heads), "shape_mismatch")
  end
  return attention.with_heads(node, x, heads, word)
end

-- What keys or values of earlier calls and those of this one are together.
local function after_past(node, x, past, word)
  if not past then return x end
  return node:apply("concat", { lengths_first(node, past, word .. "_past"), x }, { axis = 1 }, word .. "_all")
end

-- ---- which keys a query looks at ----------------------------------------------------------------------------------

local function places(node, count, shape, word)
  return node:reshape(node:apply("range", {}, { start = 0, stop = count, dtype = "int64" }, word), shape, word)
end

local function both(node, one, other, word)
  return one and other and node:apply("logical_and", { one, other }, nil, word) or one or other
end

-- A mask that is too short for the keys is filled up with what lets none of the others be looked at.
local function padded(node, mask, keys, number)
  local sizes = mask.shape:table()
  if #sizes < 2 or #sizes > 4 then node:fail("its mask has " .. #sizes .. " axes, wanted 2 to 4", "shape_mismatch") end
  local lacks = keys - sizes[#sizes]
  if lacks <= 0 then return mask end
  sizes[#sizes] = lacks
  return node:apply("concat", { mask, node:filled(number, mask.dtype, sizes) }, { axis = #sizes - 1 }, "mask_padded")
end

-- An int8 mask of what the node's attributes and the lengths of its sequences allow, or nil; and does a query, besides,
-- look at no key behind it, none of them being of an earlier call?
local function allowed_keys(node, queries, keys, past)
  local lengths = node:optional(7)
  local is_causal = node:int("is_causal", 0) ~= 0
  local left, right = node:int("left_window_size", -1), node:int("right_window_size", -1)
  if not lengths and not past and left < 0 and right < 0 then return nil, is_causal end

  local column = places(node, keys, { 1, 1, 1, keys }, "keys")
  local row = places(node, queries, { 1, 1, queries, 1 }, "queries")
  if lengths then lengths = node:reshape(node:cast(lengths, "int64", "lengths"), { -1, 1, 1, 1 }, "lengths") end
  if past then
    row = node:add(row, node:filled(past.shape[2], "int64"), "rows")
  elseif lengths then
    local first = node:apply("subtract", { lengths, node:filled(queries, "int64") }, nil, "first_rows")
    row = node:add(row, first, "rows")
  end
  local function bounded(word, by, op)
    local bound = by == 0 and row or node:add(row, node:filled(by, "int64"), word .. "_bounds")
    return node:apply(op, { column, bound }, nil, word)
  end
  local allowed = is_causal and bounded("before", 0, "less_equal") or nil
  if left >= 0 then allowed = both(node, allowed, bounded("not_far_before", -left, "greater_equal"), "window_left") end
  if right >= 0 then allowed = both(node, allowed, bounded("not_far_behind", right, "less_equal"), "window_right") end
  if lengths then
    allowed = both(node, allowed, node:apply("less", { column, lengths }, nil, "there"), "window_there")
  end
  return allowed, false
end

-- ---- the operators ------------------------------------------------------------------------------------------------

-- softmax(scale * query . key^T + mask) . value for each head, with keys and values of earlier calls before them.
function operators.Attention(node)
  node:ignore("softmax_precision")  -- sums are in float32 or wider
  local x = node:input(1)
  local query = heads_of(node, x, node:int("q_num_heads"), "query")
  local key = heads_of(node, node:input(2), node:int("kv_num_heads"), "key")
  local value = heads_of(node, node:input(3), node:int("kv_num_heads"), "value")
  local past, mask = node:optional(5), node:optional(4)
  key, value = after_past(node, key, past, "key"), after_past(node, value, node:optional(6), "value")
  local queries, keys, heads = query.shape[1], key.shape[1], query.shape[2]

  local given = { scale = node:float("scale", query.shape[3] ^ -0.5), softcap = node:float("softcap", 0),
                  word = "sums_first" }
  given.allowed, given.is_causal = allowed_keys(node, queries, keys, past)
  if mask and node.is_floating(mask) then
    given.bias = padded(node, mask, keys, -math.huge)
  elseif mask then
    given.allowed = both(node, padded(node, mask, keys, 0), given.allowed, "allowed_mask")
  end

  local all_keys, all_values = shared(node, key, heads, "key"), shared(node, value, heads, "value")
  local mode, asked = node:int("qk_matmul_output_mode", 0), {}
  local y
  if given.bias or given.softcap > 0 or node:is_wanted(4) then
    y, asked = attention.in_steps(node, query, all_keys, all_values, given)
  else
    y = node:apply("dot_product_attention", { query, all_keys, all_values, given.allowed or false, false },
      { scale = given.scale, causal = given.is_causal, rate = 0 }, "heads")
  end
  if #x.shape == 3 then
    y = node:reshape(y, { x.shape[0], queries, heads * value.shape[3] })
  else
    y = lengths_first(node, y)
  end
  return y, node:is_wanted(2) and lengths_first(node, key, "present_key") or nil,
    node:is_wanted(3) and lengths_first(node, value, "present_value") or nil,
    node:is_wanted(4) and node:need(asked[mode], "qk_matmul_output_mode " .. mode) or nil
end

function operators.RotaryEmbedding(node)
  local x, cos, sin, at = node:input(1), node:input(2), node:input(3), node:optional(4)
  local heads = node:int("num_heads", 0)
  local rows = heads_of(node, x, heads > 0 and heads or nil, "heads")
  local width = rows.shape[3]
  local turned = node:int("rotary_embedding_dim", 0)
  if turned == 0 then turned = width end
  if turned < 0 or turned > width or turned % 2 ~= 0 then
    node:fail(("rotary_embedding_dim is %d of %d, wanted an even number of them"):format(turned, width), "out_of_range")
  end
  local function angles(table, word)
    if at then table = node:apply("gather", { table, at }, { axis = 0 }, word) end
    local sizes = table.shape:table()
    if #sizes ~= 3 or sizes[3] ~= turned / 2 then
      node:fail(("%s is %s, wanted %d of each place"):format(word, tostring(table.shape), turned / 2), "shape_mismatch")
    end
    return node:reshape(table, { sizes[1], sizes[2], 1, sizes[3] }, word .. "_column")
  end
  cos, sin = angles(cos, "cos"), angles(sin, "sin")

  local result = rotations.turned(node, rows, cos, sin, node:int("interleaved", 0) ~= 0)
  if #x.shape == 3 then return node:reshape(result, x.shape:table()) end
  return lengths_first(node, result)
end

return operators
