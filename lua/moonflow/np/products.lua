--- The products of flow.np: of matrices, of vectors, of all pairs, and the trace.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local einsum = require "moonflow.einsum"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"

local is_array, floating, evaluate = ndarray.is_array, ndarray.floating, ndarray.evaluate
local signature, flat_list, fail = arguments.signature, arguments.flat_list, errors.raise

-- The leading axes of two stacks of matrices, broadcast; these are lists of sizes, with those of the matrices.
local function batch_of(left, right, called)
  local batch, most = {}, math.max(#left, #right) - 2
  for i = 1, most do
    local one, other = left[#left - 2 - most + i] or 1, right[#right - 2 - most + i] or 1
    if one ~= other and one ~= 1 and other ~= 1 then
      fail("shape_mismatch", ("%s: the stacks do not broadcast: a is (%s), b is (%s)"):format(called,
        table.concat(left, ", "), table.concat(right, ", ")))
    end
    batch[i] = one == 1 and other or one
  end
  return batch
end

local function spread(x, batch, rows, columns)
  local sizes = { unpack(batch) }
  sizes[#sizes + 1], sizes[#sizes + 2] = rows, columns
  return x.shape == core.shape(sizes) and x or (evaluate("broadcast_to", { x }, { shape = sizes }))
end

-- What `compute` gives of two arrays, which tables are made. Two tables are multiplied in float64.
local function of_two(a, b, called, compute)
  if is_array(a) or is_array(b) then
    a, b = ndarray.both(a, b, called)
    return compute(a, b, called)
  end
  return ndarray.as_made(compute(ndarray.exact(a, called), ndarray.exact(b, called), called), a, b)
end

-- The products of matrices, where an array of one axis on the left is a row and on the right a column that the result
-- is without. Where no axis is left, a number.
local function product(a, b, called)
  a, b = ndarray.operands(a, b, called)
  if a.rank == 0 or b.rank == 0 then
    fail("shape_mismatch", ("%s wants arrays with an axis: a is %s, b is %s; a * b multiplies by a number"):format(
      called, tostring(a.shape), tostring(b.shape)))
  end
  a, b = floating(a), floating(b)
  local left, right = a.shape:table(), b.shape:table()
  local inner, other, is_row, is_column = left[#left], right[math.max(#right - 1, 1)], #left == 1, #right == 1
  if inner ~= other then
    fail("shape_mismatch", ("%s: inner sizes differ: a is %s, b is %s, so %d against %d"):format(called,
      tostring(a.shape), tostring(b.shape), inner, other))
  end
  if is_row then left = { 1, inner } end
  if is_column then right = { inner, 1 } end
  local rows, columns = left[#left - 1], right[#right]
  local sizes = batch_of(left, right, called)
  if #right == 2 then
    -- One matrix for all of a stack: its rows are those of one large matrix.
    local count = rows
    for _, size in ipairs(sizes) do count = count * size end
    a, b = a:reshape({ count, inner }), b:reshape(right)
  else
    a, b = spread(a:reshape(left), sizes, rows, inner), spread(b, sizes, inner, columns)
  end
  if not is_row then sizes[#sizes + 1] = rows end
  if not is_column then sizes[#sizes + 1] = columns end
  local result = evaluate("matmul", { a, b }, {}, called)
  return #sizes == 0 and result:item() or result:reshape(sizes)
end

local matmul_signature = signature("np.matmul", { { "a", "any" }, { "b", "any" } })
--- Matrix product of two arrays.
---   out[..., i, j] = sum over k of a[..., i, k] * b[..., k, j]
--- shapes: a (..., rows, inner), b (..., inner, columns) -> (..., rows, columns), and the leading axes broadcast; of
---   a vector, (inner), on the left (..., columns), on the right (..., rows); of two vectors a number
--- dtypes: that of both together; of integers float64
--- @return any
--- @error the inner sizes differ; an array without an axis
function np.matmul(a, b, ...)
  if ... ~= nil then matmul_signature:too_many(2 + select("#", ...), "; a:transpose() turns a matrix") end
  if is_array(a) and is_array(b) then return product(a, b, "np.matmul") end
  return of_two(a, b, "np.matmul", product)
end

-- The sizes of these axes, and what they make together.
local function sizes_at(a, axes)
  local sizes, count = {}, 1
  for i, axis in ipairs(axes) do
    sizes[i] = a.shape[axis]
    count = count * sizes[i]
  end
  return sizes, count
end

-- Sums over pairs of axes, counted from the front: the rest of a's axes, and then of b's.
local function contracted(a, b, axes, others, called)
  local function rest_of(x, without)
    local is_summed, rest = {}, {}
    for _, axis in ipairs(without) do is_summed[axis] = true end
    for axis = 0, x.rank - 1 do rest[#rest + 1] = not is_summed[axis] and axis or nil end
    return rest
  end
  local function ordered(x, first, second)
    local order = { unpack(first) }
    for _, axis in ipairs(second) do order[#order + 1] = axis end
    local _, rows = sizes_at(x, first)
    local _, columns = sizes_at(x, second)
    return (#order > 1 and x:transpose(order) or x):reshape({ rows, columns })
  end
  local rest_of_a, rest_of_b = rest_of(a, axes), rest_of(b, others)
  local result = product(ordered(a, rest_of_a, axes), ordered(b, others, rest_of_b), called)
  local sizes = sizes_at(a, rest_of_a)
  for _, size in ipairs((sizes_at(b, rest_of_b))) do sizes[#sizes + 1] = size end
  return #sizes == 0 and result:item() or result:reshape(sizes)
end

-- The product of a number with an array, of two numbers a number.
local function scaled(a, b)
  local result = a * b
  return result.rank == 0 and result:item() or result
end

local function dotted(a, b, called)
  if a.rank == 0 or b.rank == 0 then return scaled(a, b) end
  if b.rank <= 2 then return product(a, b, called) end
  if a.shape[a.rank - 1] ~= b.shape[b.rank - 2] then
    fail("shape_mismatch", ("np.dot: the last axis of a, %s, and the last but one of b, %s, differ in size"):format(
      tostring(a.shape), tostring(b.shape)))
  end
  return contracted(a, b, { a.rank - 1 }, { b.rank - 2 }, called)
end

local dot_signature = signature("np.dot", { { "a", "any" }, { "b", "any" } })
--- The sum of products over the last axis of `a` and the last but one of `b`, or its only one. So of two vectors a
--- number, of two matrices their product, and of more axes all pairs, where np.matmul goes through stacks together.
--- Of a number and an array their product. Products of integers are float64.
--- @return any
--- @error the sizes of the two axes differ
function np.dot(a, b, ...)
  if ... ~= nil then dot_signature:too_many(2 + select("#", ...)) end
  return of_two(a, b, "np.dot", dotted)
end

local function multiplied_inside(a, b, called)
  if a.rank == 0 or b.rank == 0 then return scaled(a, b) end
  if a.shape[a.rank - 1] ~= b.shape[b.rank - 1] then
    fail("shape_mismatch", ("np.inner: the last axes differ in size: a is %s, b is %s"):format(tostring(a.shape),
      tostring(b.shape)))
  end
  return contracted(a, b, { a.rank - 1 }, { b.rank - 1 }, called)
end

local inner_signature = signature("np.inner", { { "a", "any" }, { "b", "any" } })
--- The sum of products over the last axes of two arrays, for all pairs of the others: of (m, k) and (n, k) that is
--- (m, n), of two vectors a number. Of a number and an array their product. Products of
--- integers are float64.
--- @return any
--- @error the last axes differ in size
function np.inner(...)
  local given = inner_signature:parse(...)
  return of_two(given.a, given.b, "np.inner", multiplied_inside)
end

local vdot_signature = signature("np.vdot", { { "a", "any" }, { "b", "any" } })
--- The sum of the products of all elements of two arrays of as many, both flattened: a number.
--- @return number
function np.vdot(...)
  local given = vdot_signature:parse(...)
  local a, b = ndarray.both_exact(given.a, given.b, "np.vdot")
  return product(a:ravel(), b:ravel(), "np.vdot")
end

local tensordot_signature = signature("np.tensordot", { { "a", "any" }, { "b", "any" }, { "axes", "any", 2 } })
--- The sum of products over some axes of two arrays: with a number the last so many of `a` with the first of `b`,
--- with { axes of a, axes of b } these pairs. The result has the other axes of `a` and then those of `b`; without any
--- it is a number. Products of integers are float64. `np.tensordot(a, b, { { 0, 2 }, { 1, 0 } })`.
--- @return any
--- @error the axes of a pair differ in size; an axis twice; more axes than an array has
function np.tensordot(...)
  local given = tensordot_signature:parse(...)
  local a, b = ndarray.both_exact(given.a, given.b, "np.tensordot")
  local axes, others = {}, {}
  if type(given.axes) == "number" then
    local most = math.min(#a.shape, #b.shape)
    if given.axes < 0 or given.axes > most or given.axes % 1 ~= 0 then
      fail("invalid_argument", ("np.tensordot: a is %s and b %s, so axes is a whole number from 0 to %d, got %g")
        :format(tostring(a.shape), tostring(b.shape), most, given.axes))
    end
    for i = 1, given.axes do axes[i], others[i] = i - 1 - given.axes, i - 1 end
  else
    local pair = type(given.axes) == "table" and given.axes or {}
    if #pair ~= 2 then
      fail("invalid_argument", "np.tensordot: axes is how many, or two lists of them, got "
        .. arguments.describe(given.axes))
    end
    axes, others = flat_list(pair[1]), flat_list(pair[2])
  end
  local known, known_other = {}, {}
  for i = 1, math.max(#axes, #others) do
    local axis, other = axes[i], others[i]
    if axis == nil or other == nil then
      fail("invalid_argument", ("np.tensordot: %d axes of a and %d of b"):format(#axes, #others))
    end
    axis, other = ndarray.axis_of(a, axis, "np.tensordot"), ndarray.axis_of(b, other, "np.tensordot")
    if known[axis] or known_other[other] then
      fail("invalid_argument", ("np.tensordot: axis %d of %s stands twice"):format(known[axis] and axis or other,
        known[axis] and "a" or "b"))
    end
    if a.shape[axis] ~= b.shape[other] then
      fail("shape_mismatch", ("np.tensordot: axis %d of a has size %d, axis %d of b has size %d"):format(axis,
        a.shape[axis], other, b.shape[other]))
    end
    axes[i], others[i], known[axis], known_other[other] = axis, other, true, true
  end
  return ndarray.as_made(contracted(a, b, axes, others, "np.tensordot"), given.a, given.b)
end

np.einsum = einsum.of_arrays

local outer_signature = signature("np.outer", { { "a", "any" }, { "b", "any" } })
--- The product of each element of one array with each of another, both flattened: (m, n).
function np.outer(...)
  local given = outer_signature:parse(...)
  local a, b = ndarray.both(given.a, given.b, "np.outer")
  return a:reshape({ -1, 1 }) * b:ravel()
end

local trace_signature = signature("np.trace", { { "a", "any" } })
--- The sum of the main diagonal of a matrix.
--- @return number
function np.trace(...)
  local a = ndarray.exact(trace_signature:parse(...).a, "np.trace")
  if a.rank ~= 2 then fail("shape_mismatch", "np.trace wants a matrix, got " .. tostring(a.shape)) end
  return np.diag(a):sum()
end

local kron_signature = signature("np.kron", { { "a", "any" }, { "b", "any" } })
--- Kronecker's product of two matrices: b times each element of a, side by side as a's elements are.
function np.kron(...)
  local given = kron_signature:parse(...)
  local a, b = ndarray.both(given.a, given.b, "np.kron")
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
  local a, b = ndarray.both(given.a, given.b, "np.cross")
  for _, x in ipairs({ a, b }) do
    if x.rank == 0 or x.shape[x.rank - 1] ~= 3 then
      fail("shape_mismatch", "np.cross wants a last axis of size 3, got " .. tostring(x.shape))
    end
  end
  local once, twice = np.array({ 1, 2, 0 }, "int64"), np.array({ 2, 0, 1 }, "int64")  -- turned round the axes
  return a:take(once, -1) * b:take(twice, -1) - a:take(twice, -1) * b:take(once, -1)
end
