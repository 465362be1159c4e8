--- The part of flow.math that is put together from ops, and flow.matmul.

local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local dtypes = require "moonflow.dtypes"
local ops = require "moonflow.ops"
local stacks = require "moonflow.composed.stacks"

local flow = ops.functions

-- ---- products -----------------------------------------------------------------------------------------------------

local function rank_of(operand) return type(operand) == "number" and 0 or #operand.shape end

-- The product of each matrix of a stack with one matrix: that of all their rows, so nothing is repeated. A stack whose
-- matrices are to be transposed is transposed first.
local function stack_by_matrix(given, t, signature)
  local a, b = blob.of(given.a, t, nil, "flow.matmul"), blob.of(given.b, t, nil, "flow.matmul")
  local rank = rank_of(a)
  if given.transpose_a then
    local turned = {}
    for axis = 1, rank do turned[axis] = axis - 1 end
    turned[rank - 1], turned[rank] = rank - 1, rank - 2
    a = ops.apply("transpose", { a }, { perm = turned })
  end
  local sizes = a.shape:table()
  local inner, columns = b.shape[0], b.shape[1]
  if given.transpose_b then inner, columns = columns, inner end
  if sizes[rank] ~= inner then
    signature:fail((": inner sizes differ: a is %s, b is %s, so %d against %d"):format(
      tostring(given.a.shape), tostring(b.shape), sizes[rank], inner))
  end
  local rows = 1
  for axis = 1, rank - 1 do rows = rows * sizes[axis] end
  local flat = ops.apply("reshape", { a }, { shape = { rows, inner } })
  local out = ops.apply("matmul", { flat, b }, { transpose_b = given.transpose_b }, given.name)
  sizes[rank] = columns
  return ops.apply("reshape", { out }, { shape = sizes })
end

local equal_ranks = flow.matmul
ops.define("matmul", {
  { "a", "operand" }, { "b", "operand" },
  { "transpose_a", "boolean", false, text = "take the transpose of a's last two axes" },
  { "transpose_b", "boolean", false, text = "take the transpose of b's last two axes" },
}, [[
Matrix product, or the products of two stacks of matrices pair by pair, whose leading axes broadcast.
  out[..., i, j] = sum over k of a[..., i, k] * b[..., k, j]
shapes: a (..., rows, inner), b (..., inner, columns) -> (..., rows, columns); with transpose_a a is
  (..., inner, rows), with transpose_b b is (..., columns, inner)
dtypes: float32, float64, bfloat16 or float16, both inputs alike; sums of the last two are float32
errors: inner sizes differ, leading ones do not broadcast; a rank below 2]],
function(given, t, signature)
  for _, name in ipairs { "a", "b" } do
    if rank_of(given[name]) == 1 then
      signature:fail((": %s is %s, wanted a matrix or a stack of them; flow.expand_dims(%s, %d) makes one of a vector")
        :format(name, tostring(given[name].shape), name, name == "a" and 0 or -1))
    end
  end
  if rank_of(given.a) > 2 and rank_of(given.b) == 2 then return stack_by_matrix(given, t, signature) end
  if rank_of(given.a) > 2 or rank_of(given.b) > 2 then
    given.a, given.b = stacks.alike(given, "a", "b", t, signature)
  end
  return equal_ranks(given)
end)


-- ---- sums ---------------------------------------------------------------------------------------------------------

-- A value of few bits as one that sums of it fit into.
local function widened(x)
  local wide = blob.is(x) and dtypes.sums[x.dtype]
  return wide and ops.apply("cast", { x }, { dtype = wide }) or x
end

for name, summed in pairs { reduce_sum = "x", reduce_prod = "x", cumsum = "x", unsorted_segment_sum = "data" } do
  ops.extend("math." .. name, "int8 and uint8, as comparisons give them, are taken as int64.",
    function(as_it_is, given)
      given[summed] = widened(given[summed])
      return as_it_is(given)
    end)
end

ops.define("math.add_n", { { "inputs", "operands" } }, "The sum of a list of blobs of one shape.",
  function(given, _, signature)
    local inputs = given.inputs
    if #inputs == 0 then signature:fail(": inputs must be a list of blobs, got an empty one") end
    for i, input in ipairs(inputs) do
      if not blob.is(input) then
        signature:fail((": entry %d of inputs must be a blob, got %s"):format(i, arguments.describe(input)))
      end
    end
    local sum = inputs[1]
    for i = 2, #inputs - 1 do sum = sum + inputs[i] end
    if #inputs == 1 then return ops.apply("identity", { sum }, nil, given.name) end
    return ops.apply("add", { sum, inputs[#inputs] }, nil, given.name)
  end)

-- ---- triangles ----------------------------------------------------------------------------------------------------

ops.define("math.tril", { { "x", "blob" }, { "diagonal", "integer", 0 }, { "fill_value", "number", 0 } }, [[
The lower triangle of the matrices in the last two axes of x, and `fill_value` above it:
  out[..., i, j] = x[..., i, j] where j <= i + diagonal, else fill_value]],
  function(given, _, signature)
    local x, diagonal = given.x, given.diagonal
    local rank = #x.shape
    if rank < 2 then signature:fail(": x is " .. tostring(x.shape) .. ", it needs two axes for its matrices") end
    local rows, columns = x.shape[rank - 2], x.shape[rank - 1]
    diagonal = math.max(-rows, math.min(diagonal, columns))  -- beyond, nothing changes and int32 ends
    local function numbers(first, count, shape)
      local range = ops.apply("range", {}, { start = first, stop = first + count, dtype = "int32" })
      return ops.apply("reshape", { range }, { shape = shape })
    end
    local kept = numbers(0, columns, { 1, columns }):le(numbers(diagonal, rows, { rows, 1 }))
    return flow.where(kept, x, given.fill_value, given.name)
  end)
