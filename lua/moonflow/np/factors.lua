--- Factors of matrices in flow.np.linalg, qr, eigh and svd, and what is made of them: lstsq, pinv and
-- matrix_rank.
-- All in double precision, with loops over memory and products of the engine, as panels.lua tells.

local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"
local panels = require "moonflow.np.panels"
local reflections = require "moonflow.np.reflections"
local rotations = require "moonflow.np.rotations"
local stacks = require "moonflow.np.stacks"

local as_array, floating, cast, product = ndarray.as_array, ndarray.floating, ndarray.cast, panels.product
local max, min, fail, signature = math.max, math.min, errors.raise, arguments.signature

-- The distance from 1 to the next number of a dtype.
local EPSILON = { float32 = 2 ^ -23, float64 = 2 ^ -52, bfloat16 = 2 ^ -7, float16 = 2 ^ -10 }

-- A matrix in double precision, and the dtype of results.
local function matrix_of(a, called)
  a = floating(as_array(a, called))
  if a.rank ~= 2 then fail("shape_mismatch", called .. " wants a matrix, got " .. tostring(a.shape)) end
  return cast(a, "float64"), a.dtype
end

local function square(a, called)
  local matrix, dtype = matrix_of(a, called)
  if matrix.shape[0] ~= matrix.shape[1] then
    fail("shape_mismatch", called .. " wants a square matrix, got " .. tostring(matrix.shape))
  end
  return matrix, dtype
end

local linalg = np.linalg

-- What `compute` gives of all matrices of an array at a time, where they are small, in the dtype of results; else nil.
local function of_small(compute, a, is_square, called)
  local whole = floating(as_array(a, called))
  if whole.rank < 2 then return end
  local rows, columns = whole.shape[whole.rank - 2], whole.shape[whole.rank - 1]
  local least = min(rows, columns)
  if least == 0 or least > rotations.SMALL or (is_square and rows ~= columns) then return end
  local stack, _, outer = stacks.along_one(whole)
  local results = { compute(cast(stack, "float64"), called) }
  for i, result in ipairs(results) do results[i] = cast(stacks.spread(result, outer), whole.dtype) end
  return results
end

local qr_signature = signature("np.linalg.qr", { { "a", "any" } })
--- Q and R with Q R = a, where the columns of Q have length 1 and are at right angles, and R is upper triangular:
--- `local q, r = np.linalg.qr(a)`. By Householder's reflections, in double precision.
--- shapes: a (..., m, n) -> q (..., m, k), r (..., k, n), with k the smaller of m and n
--- @return ndarray, ndarray
function linalg.qr(...)
  local given = qr_signature:parse(...)
  local small = of_small(reflections.small_factors, given.a, false, "np.linalg.qr")
  if small then return unpack(small) end
  if stacks.is(given.a) then return stacks.each(linalg.qr, given.a) end
  local a, dtype = matrix_of(given.a, "np.linalg.qr")
  local k = min(a.shape[0], a.shape[1])
  if k == 0 then return np.zeros({ a.shape[0], 0 }, dtype), np.zeros({ 0, a.shape[1] }, dtype) end
  local q, r = reflections.factors(a)
  return cast(q, dtype), cast(r, dtype)
end

local eigh_signature = signature("np.linalg.eigh", { { "a", "any" } })
--- The eigenvalues of a symmetric matrix, ascending, and its eigenvectors as columns of length 1 in the same order:
--- `local values, vectors = np.linalg.eigh(a)`, with a v = v * values. The lower triangle is read. Reduced to three
--- diagonals and rotated by implicit QL, or with up to 8 rows by Jacobi's rotations; in double precision.
--- shapes: (..., n, n) -> (..., n) and (..., n, n)
--- @return ndarray, ndarray
--- @error elements that are not finite
function linalg.eigh(...)
  local given = eigh_signature:parse(...)
  local small = of_small(rotations.small_symmetric, given.a, true, "np.linalg.eigh")
  if small then return unpack(small) end
  if stacks.is(given.a) then return stacks.each(linalg.eigh, given.a) end
  local a, dtype = square(given.a, "np.linalg.eigh")
  local n = a.shape[0]
  if n == 0 then return np.zeros({ 0 }, dtype), np.zeros({ 0, 0 }, dtype) end
  a = np.tril(a)
  local scale = rotations.scale_of(a, "np.linalg.eigh")
  a = a / scale
  local values, vectors = rotations.symmetric_factors(a + np.tril(a, -1):transpose(), "np.linalg.eigh")
  return cast(values * scale, dtype), cast(vectors:transpose(), dtype)
end

-- What np.linalg.svd gives, in double precision, also of matrices without elements.
local function svd(a, called)
  local rows, columns = a.shape[0], a.shape[1]
  if min(rows, columns) > 0 then return rotations.singular_factors(a, called) end
  return np.zeros({ rows, 0 }, "float64"), np.zeros({ 0 }, "float64"), np.zeros({ 0, columns }, "float64")
end

local svd_signature = signature("np.linalg.svd", { { "a", "any" } })
--- The singular values of a matrix: `local u, s, vt = np.linalg.svd(a)`, with a = u diag(s) vt, the columns of u and
--- the rows of vt of length 1 and at right angles, and s descending, none negative. This is the thin form, NumPy's
--- `full_matrices=False`. By rotations in double precision; what rounding loses of any s is as for the greatest.
--- shapes: a (..., m, n) -> u (..., m, k), s (..., k), vt (..., k, n), with k the smaller of m and n
--- @return ndarray, ndarray, ndarray
--- @error elements that are not finite
function linalg.svd(...)
  local given = svd_signature:parse(...)
  local small = of_small(rotations.small_singular, given.a, false, "np.linalg.svd")
  if small then return unpack(small) end
  if stacks.is(given.a) then return stacks.each(linalg.svd, given.a) end
  local a, dtype = matrix_of(given.a, "np.linalg.svd")
  local u, s, vt = svd(a, "np.linalg.svd")
  return cast(u, dtype), cast(s, dtype), cast(vt, dtype)
end

-- The least singular value that counts as one, as a share of the greatest, and itself: the rest is what rounding leaves
-- of 0.
local function share_of(a, dtype, share)
  return share or max(a.shape[a.rank - 2], a.shape[a.rank - 1]) * EPSILON[dtype]
end
local function threshold(a, s, dtype, share) return share_of(a, dtype, share) * (#s > 0 and s:max() or 0) end

-- One over each singular value above the threshold, 0 for the others, and how many are above.
local function reciprocals(s, least)
  local counts = s:gt(least)
  return np.where(counts, 1 / np.where(counts, s, 1), 0), counts:sum()
end

local rank_signature = signature("np.linalg.matrix_rank", { { "a", "any" }, { "tol", "number?" } })
--- How many singular values of a matrix are above `tol`, which without a word is the greatest one times the larger
--- size times the distance from 1 to the next number of the dtype: what rounding may leave of 0. Of an array of one
--- axis 1, or 0 where all is 0.
--- @return integer
function linalg.matrix_rank(...)
  local given = rank_signature:parse(...)
  local whole = as_array(given.a, "np.linalg.matrix_rank")
  if whole.rank < 2 then return whole:ne(0):any() and 1 or 0 end
  local a, dtype = matrix_of(whole, "np.linalg.matrix_rank")
  local _, s = svd(a, "np.linalg.matrix_rank")
  return s:gt(given.tol or threshold(a, s, dtype)):sum()
end

local pinv_signature = signature("np.linalg.pinv", { { "a", "any" }, { "rcond", "number?" } })
--- Moore's and Penrose's inverse of a matrix of any shape and rank: x = pinv(a) b is the shortest x with the least
--- |a x - b|. Singular values up to `rcond` times the greatest count as 0; `rcond` is without a word the larger size
--- times the distance from 1 to the next number of the dtype.
--- shapes: (..., m, n) -> (..., n, m)
function linalg.pinv(...)
  local given = pinv_signature:parse(...)
  local function small_inverses(stack, called)
    local u, s, vt = rotations.small_singular(stack, called)
    local dtype = floating(as_array(given.a)).dtype
    local least = np.max(s, 1, { keepdims = true }) * share_of(stack, dtype, given.rcond)
    local parts = vt:transpose(0, 2, 1) * reciprocals(s, least):reshape({ #s, 1, s.shape[1] })
    return np.matmul(parts, u:transpose(0, 2, 1))
  end
  local small = of_small(small_inverses, given.a, false, "np.linalg.pinv")
  if small then return unpack(small) end
  if stacks.is(given.a) then
    return stacks.each(function(a) return linalg.pinv(a, given.rcond) end, given.a)
  end
  local a, dtype = matrix_of(given.a, "np.linalg.pinv")
  local u, s, vt = svd(a, "np.linalg.pinv")
  if #s == 0 then return np.zeros({ a.shape[1], a.shape[0] }, dtype) end
  return cast(product(vt:transpose() * reciprocals(s, threshold(a, s, dtype, given.rcond)), u:transpose()), dtype)
end

local lstsq_signature = signature("np.linalg.lstsq", { { "a", "any" }, { "b", "any" }, { "rcond", "number?" } })
--- The x with the least |a x - b|, of several the shortest:
--- `local x, residuals, rank, s = np.linalg.lstsq(a, b)`. Singular values up to `rcond` times the greatest count as
--- 0, as for np.linalg.pinv. The residuals are the sums of the squares of a x - b, of which there are none where the
--- rank is below n or m is not above n, as NumPy has it; s are the singular values of a.
--- shapes: a (m, n), b (m) or (m, columns) -> x (n) or (n, columns), residuals (1) or (columns) or (0), s (k)
--- @return ndarray, ndarray, integer, ndarray
--- @error a and b differ in rows
function linalg.lstsq(...)
  local given = lstsq_signature:parse(...)
  local left, b = ndarray.both(given.a, given.b, "np.linalg.lstsq")
  local a, dtype = matrix_of(left, "np.linalg.lstsq")
  b = floating(b)
  local rows, columns = a.shape[0], a.shape[1]
  if b.rank < 1 or b.rank > 2 or b.shape[0] ~= rows then
    fail("shape_mismatch", ("np.linalg.lstsq: a is %s, b is %s, wanted (%d) or (%d, columns)"):format(
      tostring(a.shape), tostring(b.shape), rows, rows))
  end
  dtype = dtypes.promote(dtype, b.dtype)
  local u, s, vt = svd(a, "np.linalg.lstsq")
  local factors, rank = reciprocals(s, threshold(a, s, dtype, given.rcond))
  local count = b.rank == 2 and b.shape[1] or 1
  local right = cast(b, "float64"):reshape({ rows, count })
  local x = np.matmul(vt:transpose(), np.matmul(u:transpose(), right) * factors:reshape({ -1, 1 }))
  local residuals = np.zeros({ 0 }, "float64")
  if rank == columns and rows > columns then residuals = np.sum((np.matmul(a, x) - right) ^ 2, 0) end
  if b.rank == 1 then x = x:ravel() end
  return cast(x, dtype), cast(residuals, dtype), rank, cast(s, dtype)
end
