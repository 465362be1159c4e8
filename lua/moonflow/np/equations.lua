--- What flow.linalg computes in jobs, in flow.np.linalg: solve, inv, det, slogdet, cholesky and expm, and matrix_power,
-- which may need an inverse. In double precision.

local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local exponentials = require "moonflow.formulas.exponentials"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"
local stacks = require "moonflow.np.stacks"
local tools_of = require "moonflow.np.tools"

local as_array, cast, evaluate, floating = ndarray.as_array, ndarray.cast, ndarray.evaluate, ndarray.floating
local abs, floor, fail, signature = math.abs, math.floor, errors.raise, arguments.signature

-- Square matrices of a dtype with fractions: one, or a stack of them in the last two axes.
local function square(a, called, dtype)
  a = floating(as_array(a, called, dtype))
  local rank, sizes = a.rank, a.shape:table()
  if rank < 2 or sizes[rank] ~= sizes[rank - 1] then
    fail("shape_mismatch", ("%s wants a square matrix, got (%s)"):format(called,
      table.concat(sizes, ", ", math.max(rank - 1, 1))))
  end
  return a
end

-- One matrix, in double precision, and the dtype of what is made of it.
local function one_square(a, called)
  a = square(a, called)
  if a.rank > 2 then fail("shape_mismatch", called .. " wants a square matrix, got " .. tostring(a.shape)) end
  return cast(a, "float64"), a.dtype
end

local linalg = np.linalg

-- Right sides that are no rows for a square matrix of n.
local function check_rows(n, matrix, right, given)
  if right.rank >= 2 and right.shape[right.rank - 2] == n then return end
  fail("shape_mismatch", ("np.linalg.solve: a is %s, b is %s, wanted (%d) or (%d, columns)"):format(
    tostring(matrix.shape), tostring(given.shape), n, n))
end

local solve_signature = signature("np.linalg.solve", { { "a", "any" }, { "b", "any" } })
--- The x with a x = b, for a square matrix `a` and `b` (n) or (n, columns). Computed in double precision, by
--- elimination with the greatest pivot of each column; of the dtype that `a` and `b` have together. Of a stack of
--- matrices in the last two axes each is solved: `b` is one vector (n) for all, or a stack (..., n, columns).
--- @error the matrix is singular
function linalg.solve(...)
  local given = solve_signature:parse(...)
  local a, b = ndarray.both(given.a, given.b, "np.linalg.solve")
  a, b = square(a, "np.linalg.solve"), floating(b)
  local dtype, n = dtypes.promote(a.dtype, b.dtype), a.shape[a.rank - 1]
  local right = b.rank == 1 and b:reshape({ #b, 1 }) or b
  check_rows(n, a, right, b)
  local outer
  if a.rank > 2 or b.rank > 2 then a, right, outer = stacks.along_one(a, right) end
  local x = evaluate("linear_solve", { cast(a, dtype), cast(right, dtype) }, nil, "np.linalg.solve")
  if outer then x = stacks.spread(x, outer) end
  return b.rank == 1 and np.squeeze(x, -1) or x
end

local inv_signature = signature("np.linalg.inv", { { "a", "any" } })
--- The inverse of a square matrix, or of each of a stack (..., n, n), computed as np.linalg.solve computes.
--- @error the matrix is singular
function linalg.inv(...)
  local a = square(inv_signature:parse(...).a, "np.linalg.inv")
  return (evaluate("matrix_inverse", { a }, nil, "np.linalg.inv"))
end

local det_signature = signature("np.linalg.det", { { "a", "any" } })
--- The determinant of a square matrix, or an array of those of a stack (..., n, n).
--- @return any
function linalg.det(...)
  local a = square(det_signature:parse(...).a, "np.linalg.det", "float64")
  if a.rank > 2 then return (evaluate("determinant", { a }, nil, "np.linalg.det")) end
  return evaluate("determinant", { cast(a, "float64") }, nil, "np.linalg.det"):item()
end

local slogdet_signature = signature("np.linalg.slogdet", { { "a", "any" } })
--- The sign of the determinant of a square matrix, and the logarithm of its size, where the determinant itself may be
--- too large or too small for a number: `local sign, log_size = np.linalg.slogdet(a)`. Of a singular matrix 0, -inf.
--- Of a stack (..., n, n) arrays of both.
--- @return any
function linalg.slogdet(...)
  local a = square(slogdet_signature:parse(...).a, "np.linalg.slogdet", "float64")
  if a.rank > 2 then return evaluate("slogdet", { a }, nil, "np.linalg.slogdet") end
  local sign, log_size = evaluate("slogdet", { cast(a, "float64") }, nil, "np.linalg.slogdet")
  return sign:item(), log_size:item()
end

local cholesky_signature = signature("np.linalg.cholesky", { { "a", "any" } })
--- The lower triangular L with L L^T = a, for a symmetric and positive definite matrix `a`, of which the lower
--- triangle is read. Computed in double precision.
--- shapes: (..., n, n) -> (..., n, n)
--- @error the matrix is not positive definite; it has elements that are not finite
function linalg.cholesky(...)
  local a = square(cholesky_signature:parse(...).a, "np.linalg.cholesky")
  local fine, result = pcall(evaluate, "cholesky", { a }, { symmetrize = false }, "np.linalg.cholesky")
  if fine then return result end
  if not np.isfinite(np.tril(a)):all() then
    fail("invalid_argument", "np.linalg.cholesky: the matrix has elements that are not finite")
  end
  error(result, 0)
end

local power_signature = signature("np.linalg.matrix_power", { { "a", "any" }, { "n", "integer" } })
--- The square matrix `a` multiplied with itself, n times over; the identity for n = 0, and for negative n the power
--- of the inverse.
--- @error n below 0 and a singular matrix
function linalg.matrix_power(...)
  local given = power_signature:parse(...)
  local a, dtype = one_square(given.a, "np.linalg.matrix_power")
  local n, result = abs(given.n), np.eye(a.shape[0], "float64")
  if given.n < 0 then a = evaluate("matrix_inverse", { a }, nil, "np.linalg.matrix_power") end
  while n > 0 do
    if n % 2 == 1 then result = np.matmul(result, a) end
    n = floor(n / 2)
    if n > 0 then a = np.matmul(a, a) end
  end
  return cast(result, dtype)
end

local expm_signature = signature("np.linalg.expm", { { "a", "any" } })
--- exp of a square matrix, the sum of a^k / k! with powers of the matrix: x' = a x has the solution
--- x(t) = expm(a t) x(0). Of a stack (..., n, n) that of each. Where an element is not finite the result is NaN.
function linalg.expm(...)
  local a = square(expm_signature:parse(...).a, "np.linalg.expm")
  if a.nbytes == 0 then return np.zeros_like(a) end
  local x = cast(a, "float64")
  -- Of each matrix, for one that is not finite is not to be that of all.
  local norms = np.max(np.sum(np.abs(x), -1), -1)
  local norm = np.max(np.where(np.isfinite(norms), norms, 0))
  local eye = np.eye(x.shape[x.rank - 1], "float64")
  return cast(exponentials.of(tools_of(expm_signature), x, eye, exponentials.halvings(norm)), a.dtype)
end
