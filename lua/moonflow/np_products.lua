--- The products of flow.np: of matrices, of vectors, of all pairs, and the trace.

local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"

local as_array, is_array, floating, evaluate = ndarray.as_array, ndarray.is_array, ndarray.floating, ndarray.evaluate
local cut, signature, fail = ndarray.cut, arguments.signature, errors.raise

return function(np)
  local matmul_signature = signature("np.matmul", { { "a", "any" }, { "b", "any" } })
  --- Matrix product of two arrays of rank 2, of batches of them, or of a batch and one matrix.
  function np.matmul(a, b, ...)
    if ... ~= nil then matmul_signature:too_many(2 + select("#", ...), "; a:transpose() turns a matrix") end
    if not is_array(a) and not is_array(b) then a = as_array(a, "np.matmul") end
    a, b = ndarray.operands(a, b, "np.matmul")
    local sizes, rank = a.shape:table(), a.rank
    if rank > 2 and b.rank == 2 and sizes[rank] == b.shape[0] then
      local flat = a:reshape({ a.shape:count() / math.max(sizes[rank], 1), sizes[rank] })
      sizes[rank] = b.shape[1]
      return np.matmul(flat, b):reshape(sizes)
    end
    return (evaluate("matmul", { floating(a), floating(b) }, {}, "np.matmul"))
  end

  local dot_signature = signature("np.dot", { { "a", "any" }, { "b", "any" } })
  --- The sum of the products of two arrays of rank 1, a number; of two matrices their product.
  --- @return any
  function np.dot(a, b, ...)
    if ... ~= nil then dot_signature:too_many(2 + select("#", ...)) end
    a, b = as_array(a, "np.dot"), as_array(b, "np.dot")
    if a.rank ~= 1 or b.rank ~= 1 then return np.matmul(a, b) end
    if #a ~= #b then
      fail("shape_mismatch", ("np.dot: a has %d elements, b has %d"):format(#a, #b))
    end
    return np.matmul(a:reshape({ 1, -1 }), b:reshape({ -1, 1 })):item()
  end

  local outer_signature = signature("np.outer", { { "a", "any" }, { "b", "any" } })
  --- The product of each element of one array with each of another, both flattened: (m, n).
  function np.outer(...)
    local given = outer_signature:parse(...)
    return as_array(given.a, "np.outer"):reshape({ -1, 1 }) * as_array(given.b, "np.outer"):ravel()
  end

  local trace_signature = signature("np.trace", { { "a", "any" } })
  --- The sum of the main diagonal of a matrix.
  --- @return number
  function np.trace(...)
    local a = as_array(trace_signature:parse(...).a, "np.trace")
    if a.rank ~= 2 then fail("shape_mismatch", "np.trace wants a matrix, got " .. tostring(a.shape)) end
    return np.diag(a):sum()
  end

  local kron_signature = signature("np.kron", { { "a", "any" }, { "b", "any" } })
  --- Kronecker's product of two matrices: b times each element of a, side by side as a's elements are.
  function np.kron(...)
    local given = kron_signature:parse(...)
    local a, b = as_array(given.a, "np.kron"), as_array(given.b, "np.kron")
    if a.rank ~= 2 or b.rank ~= 2 then
      fail("shape_mismatch", ("np.kron wants two matrices, got %s and %s"):format(tostring(a.shape), tostring(b.shape)))
    end
    local rows, columns, others, across = a.shape[0], a.shape[1], b.shape[0], b.shape[1]
    return (a:reshape({ rows, 1, columns, 1 }) * b:reshape({ 1, others, 1, across })):reshape({ rows * others,
      columns * across })
  end

  local cross_signature = signature("np.cross", { { "a", "any" }, { "b", "any" } })
  --- The vector product of the last axis, of size 3; the others broadcast.
  function np.cross(...)
    local given = cross_signature:parse(...)
    local a, b = ndarray.operands(as_array(given.a, "np.cross"), as_array(given.b, "np.cross"), "np.cross")
    for _, x in ipairs({ a, b }) do
      if x.rank == 0 or x.shape[x.rank - 1] ~= 3 then
        fail("shape_mismatch", "np.cross wants a last axis of size 3, got " .. tostring(x.shape))
      end
    end
    local function part(x, i) return cut(x, x.rank - 1, { i, i + 1 }) end
    local parts = {}
    for i = 0, 2 do
      local j, k = (i + 1) % 3, (i + 2) % 3
      parts[i + 1] = part(a, j) * part(b, k) - part(a, k) * part(b, j)
    end
    return np.concat(parts, -1)
  end
end
