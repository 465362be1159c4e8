--- Products, norms, losses and attention as ONNX has them: a table as that of export_ops.

local core = require "moonflow.core"
local ndarray = require "moonflow.ndarray"
local types = require "moonflow.onnx.types"

local ops = {}

local function matrices_turned(w, i, word)
  local perm, rank = {}, #w:sizes(i)
  for axis = 1, rank do perm[axis] = axis - 1 end
  perm[rank - 1], perm[rank] = rank - 1, rank - 2
  return w:emit("Transpose", { w:input(i) }, { perm = { ints = perm } }, word)
end

function ops.matmul(w)
  local turns_a, turns_b = w.attrs.transpose_a, w.attrs.transpose_b
  if #w:sizes(1) == 2 then
    return w:emit("Gemm", { w:input(1), w:input(2) },
      { transA = turns_a and { i = 1 } or nil, transB = turns_b and { i = 1 } or nil })
  end
  return w:emit("MatMul", {
    turns_a and matrices_turned(w, 1, "left") or w:input(1), turns_b and matrices_turned(w, 2, "right") or w:input(2),
  })
end

function ops.determinant(w) return w:emit("Det", { w:input(1) }) end

-- Rows over the root of the mean of their squares, about their means or about 0, and these means. For the norm about 0
-- ONNX has a word from opset 23 on, and none for what gradients read: the means and 1 over the roots.
local function normalised(w, axes)
  local outputs, x, mean, inverse = w.op.outputs, w:input(1), nil, nil
  if w.attrs.centred then
    mean = w:emit("ReduceMean", { x }, { axes = { ints = axes } }, "mean")
    x = w:emit("Sub", { x, mean }, nil, "difference")
  end
  local square = w:emit("Mul", { x, x }, nil, "square")
  local variance = w:emit("ReduceMean", { square }, { axes = { ints = axes } }, "variance")
  local root = w:emit("Sqrt", { w:emit("Add", { variance, w:number(w.attrs.epsilon) }, nil, "safe") }, nil, "root")
  if w.uses[outputs[2]] then
    local dtype, sizes = w:result(2)
    mean = mean and w:emit("Squeeze", { mean, w:ints(axes) }, nil, "means")
      or w:emit("ConstantOfShape", { w:ints(sizes) }, { value = { t = core.array({ 0 }, dtype) } }, "means")
  end
  if w.uses[outputs[3]] then
    inverse = w:emit("Reciprocal", { w:emit("Squeeze", { root, w:ints(axes) }, nil, "roots") }, nil, "inverse_roots")
  end
  local y = w:emit("Div", { x, root }, nil, (w:has(2) or w:has(3)) and "rows" or nil)
  if w:has(2) then y = w:emit("Mul", { y, w:input(2) }, nil, w:has(3) and "scaled" or nil) end
  return w:has(3) and w:emit("Add", { y, w:input(3) }) or y, mean, inverse
end

function ops.layer_norm_core(w)
  local outputs, sizes, axes = w.op.outputs, w:sizes(1), {}
  local axis = w:axis(w.attrs.begin_norm_axis, #sizes)
  if not w.attrs.centred or w.uses[outputs[2]] or w.uses[outputs[3]] then
    for i = axis, #sizes - 1 do axes[#axes + 1] = i end
    return normalised(w, axes)
  end
  local ones = { value = 1, dtype = w:dtype(1), shape = { unpack(sizes, axis + 1) } }
  local gamma = w:has(2) and w:input(2) or w:array((ndarray.evaluate("constant", {}, ones)), "ones")
  return w:emit("LayerNormalization", { w:input(1), gamma, w:has(3) and w:input(3) or nil },
    { axis = { i = axis }, epsilon = { f = w.attrs.epsilon } })
end

-- Both cross entropies take labels and logits.
local function along_classes(w, operator, word) return w:emit(operator, { w:input(2) }, { axis = { i = -1 } }, word) end

function ops.softmax_cross_entropy_with_logits(w)
  local weighed = w:emit("Mul", { w:input(1), along_classes(w, "LogSoftmax", "logs") }, nil, "weighed")
  return w:emit("Neg", { w:emit("ReduceSum", { weighed, w:ints { -1 } }, { keepdims = { i = 0 } }, "sum") })
end

-- labels, logits
function ops.sigmoid_cross_entropy_with_logits(w)
  local softplus = w:emit("Softplus", { w:input(2) }, nil, "softplus")
  return w:emit("Sub", { softplus, w:emit("Mul", { w:input(1), w:input(2) }, nil, "product") })
end

-- Gives the probabilities too, which only a gradient reads.
function ops.sparse_softmax_cross_entropy_with_logits(w)
  local rank = #w:sizes(2)
  local is_column, axis = #w:sizes(1) == rank, w:ints { rank - 1 }
  local labels, logs = w:indices(1), along_classes(w, "LogSoftmax", "logs")
  if not is_column then labels = w:emit("Unsqueeze", { labels, axis }, nil, "column") end
  local of_labels = w:emit("GatherElements", { logs, labels }, { axis = { i = rank - 1 } }, "of_labels")
  if not is_column then of_labels = w:emit("Squeeze", { of_labels, axis }, nil, "of_rows") end
  local probabilities = w.uses[w.op.outputs[1]] and along_classes(w, "Softmax", "probabilities")
  return probabilities or logs, w:emit("Neg", { of_labels })
end

-- The int8 of a triangle: 1 where the key is not behind the query.
local function causal_mask(queries, keys)
  local rows = ndarray.evaluate("reshape", { ndarray.evaluate("range", {}, { start = 0, stop = queries,
    dtype = "int64" }) }, { shape = { queries, 1 } })
  local columns = ndarray.evaluate("range", {}, { start = 0, stop = keys, dtype = "int64" })
  return (ndarray.evaluate("less_equal", { columns, rows }))
end

-- As the formula has it, for each head: softmax(scale * query . key^T) . value. A query that may look at nothing has
-- weights of 0; a softmax of nothing but minus infinities is a NaN.
function ops.dot_product_attention(w)
  if w:has(5) then w:fail("has a dropout; write a predict job") end
  local function heads_first(i, perm, word)
    return w:emit("Transpose", { w:input(i) }, { perm = { ints = perm } }, word)
  end
  local query, key = heads_first(1, { 0, 2, 1, 3 }, "query"), heads_first(2, { 0, 2, 3, 1 }, "key")
  local value = heads_first(3, { 0, 2, 1, 3 }, "value")
  local scores = w:emit("MatMul", { query, key }, nil, "scores")
  scores = w:emit("Mul", { scores, w:number(w.attrs.scale) }, nil, "scaled")
  local is_seen = w:has(4) and w:flag(4)
  if w.attrs.causal then
    local triangle = w:array(causal_mask(w:sizes(1)[2], w:sizes(2)[2]), "causal")
    triangle = w:emit("Cast", { triangle }, { to = types.attribute("bool") }, "triangle")
    is_seen = is_seen and w:emit("And", { is_seen, triangle }, nil, "seen") or triangle
  end
  if is_seen then scores = w:emit("Where", { is_seen, scores, w:number(-math.huge) }, nil, "masked") end
  local weights = w:emit("Softmax", { scores }, { axis = { i = -1 } }, "weights")
  if w:has(4) then weights = w:emit("Where", { is_seen, weights, w:number(0) }, nil, "kept") end
  local log_sum = w.uses[w.op.outputs[2]]
    and w:emit("ReduceLogSumExp", { scores }, { axes = { ints = { -1 } }, keepdims = { i = 0 } }, "log_sum")
  return w:emit("Transpose", { w:emit("MatMul", { weights, value }, nil, "sums") },
    { perm = { ints = { 0, 2, 1, 3 } } }), log_sum
end

return ops
