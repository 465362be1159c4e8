--- ONNX operators that are products of matrices. A table from an operator's name to the function that applies it to a
--- node.

local einsum = require("moonflow.einsum").of_values
local onnx_node = require "moonflow.onnx.node"

local operators = {}

local function times(node, x, number, word)
  return number == 1 and x or node:multiply(x, number, word)
end

-- A bias of one number for each column is added as layers do it, so that a plan computes both in one step.
operators.Gemm = onnx_node.fractional(function(node)
  node:ignore("broadcast")
  local a, b, c = node:input(1), node:input(2), node:optional(3)
  local alpha, beta = node:float("alpha", 1), node:float("beta", 1)
  local turns_a, turns_b = node:int("transA", 0) ~= 0, node:int("transB", 0) ~= 0
  local adds = c and beta ~= 0
  local product = node:apply("matmul", { a, b }, { transpose_a = turns_a, transpose_b = turns_b },
    (adds or alpha ~= 1) and "product" or nil)
  product = times(node, product, alpha, adds and "alpha" or nil)
  if not adds then return product end
  c = times(node, c, beta, "beta")
  local is_bias = #c.shape == 1 and c.shape[0] == product.shape[1]
  return node:apply(is_bias and "bias_add" or "add", { product, c })
end, 3)

-- Stacks of matrices whose leading axes broadcast. One matrix for all of a stack multiplies all of its rows at once.
local function product(node, a, b)
  local left, right = a.shape:table(), b.shape:table()
  if #left == 2 and #right == 2 then return node:apply("matmul", { a, b }, {}) end
  if #right == 2 then
    local rows = node:flattened(a, #left - 1, "rows")
    left[#left] = right[2]
    return node:reshape(node:apply("matmul", { rows, b }, {}), left, "stack")
  end
  local stack = node:broadcast({ unpack(left, 1, #left - 2) }, { unpack(right, 1, #right - 2) })
  local function spread(value, sizes, word)
    local shape = { unpack(stack) }
    shape[#stack + 1], shape[#stack + 2] = sizes[#sizes - 1], sizes[#sizes]
    return node:spread(value, shape, word)
  end
  return node:apply("matmul", { spread(a, left, "left"), spread(b, right, "right") }, {})
end

function operators.Det(node) return node:apply("determinant", { node:input(1) }) end

-- As NumPy has it: a value of one axis is a row on the left and a column on the right, and the result lacks its axis.
operators.MatMul = onnx_node.fractional(function(node)
  local a, b = node:input(1), node:input(2)
  local is_row, is_column = #a.shape == 1, #b.shape == 1
  if is_row then a = node:reshape(a, { 1, a.shape[0] }, "row") end
  if is_column then b = node:reshape(b, { b.shape[0], 1 }, "column") end
  if #a.shape < 2 or #b.shape < 2 then node:fail("a scalar cannot be multiplied as a matrix", "shape_mismatch") end
  local result = product(node, a, b)
  local sizes = result.shape:table()
  if is_column then table.remove(sizes) end
  if is_row then table.remove(sizes, #sizes - (is_column and 0 or 1)) end
  return (is_row or is_column) and node:reshape(result, sizes, "vector") or result
end, 2)

function operators.Einsum(node)
  local values = node:all_inputs()
  for i, value in ipairs(values) do values[i] = node:blob(value) end
  return einsum((node:text("equation", ""):gsub("%s", "")), values, { name = onnx_node.plain(node.name) })
end

return operators
