--- Eigenvalues of matrices that need not be symmetric, in flow.np.linalg: eig and eigvals, and np.roots, which are
-- those of a matrix. In double precision. A complex number is a pair, real and imaginary, along a last axis.

local arguments = require "moonflow.arguments"
local core = require "moonflow.core"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"
local reflections = require "moonflow.np.reflections"
local rotations = require "moonflow.np.rotations"
local stacks = require "moonflow.np.stacks"

local as_array, cast, floating = ndarray.as_array, ndarray.cast, ndarray.floating
local abs, floor, log, max, min, sqrt = math.abs, math.floor, math.log, math.max, math.min, math.sqrt
local fail, signature = errors.raise, arguments.signature

local EPSILON = 2 ^ -52

-- ---- to the form of Schur ------------------------------------------------------------------------------------------

-- Divides rows of a matrix by powers of two and multiplies columns by them, until a row and the column of its number
-- are about as large: B. N. Parlett and C. Reinsch, "Balancing a matrix for calculation of eigenvalues and
-- eigenvectors", Numerische Mathematik 1969. `factors` is what the rows of eigenvectors are multiplied by then.
local function balance(h, n, factors)
  for i = 0, n - 1 do factors[i] = 1 end
  for _ = 1, 100 do
    local is_done = true
    for i = 0, n - 1 do
      local row, column = 0, 0
      for j = 0, n - 1 do
        if j ~= i then row, column = row + abs(h[i * n + j]), column + abs(h[j * n + i]) end
      end
      if min(row, column) > 1e-100 then
        local factor = 2 ^ floor(log(row / column) / log(4) + 0.5)
        if column * factor + row / factor < 0.95 * (column + row) then
          is_done, factors[i] = false, factors[i] * factor
          for j = 0, n - 1 do h[i * n + j] = h[i * n + j] / factor end
          for j = 0, n - 1 do h[j * n + i] = h[j * n + i] * factor end
        end
      end
    end
    if is_done then break end
  end
end

-- Reflects `count` rows of n numbers, of which p[row] begins the first, by I - tau v v^T, in the columns `first` to
-- `last`. `sums` has room for n numbers.
local function reflect_rows(p, row, n, first, last, v, tau, count, sums)
  if count == 3 then  -- as in all but a few steps
    local b, c, next_row, third = v[1], v[2], row + n, row + 2 * n
    for j = first, last do
      local sum = tau * (p[row + j] + b * p[next_row + j] + c * p[third + j])
      p[row + j], p[next_row + j], p[third + j] = p[row + j] - sum, p[next_row + j] - sum * b, p[third + j] - sum * c
    end
    return
  end
  for j = first, last do sums[j] = 0 end
  for k = 0, count - 1 do
    local factor, at = v[k], row + k * n
    for j = first, last do sums[j] = sums[j] + factor * p[at + j] end
  end
  for k = 0, count - 1 do
    local factor, at = tau * v[k], row + k * n
    for j = first, last do p[at + j] = p[at + j] - factor * sums[j] end
  end
end

-- Reflects `count` columns from number `column` on in the rows `first` to `last`.
local function reflect_columns(p, column, n, first, last, v, tau, count)
  if count == 3 then
    local b, c = v[1], v[2]
    for at = first * n + column, last * n + column, n do
      local sum = tau * (p[at] + b * p[at + 1] + c * p[at + 2])
      p[at], p[at + 1], p[at + 2] = p[at] - sum, p[at + 1] - sum * b, p[at + 2] - sum * c
    end
    return
  end
  for at = first * n + column, last * n + column, n do
    local sum = 0
    for k = 0, count - 1 do sum = sum + v[k] * p[at + k] end
    sum = sum * tau
    for k = 0, count - 1 do p[at + k] = p[at + k] - sum * v[k] end
  end
end

-- Makes the matrix zero below what is beside its diagonal, h = z h' z^T, if there is a z.
local function to_hessenberg(h, z, n, v, sums)
  for k = 0, n - 3 do
    local count = n - k - 1
    local tau = reflections.of(h, (k + 1) * n + k, n, count)
    v[0] = 1
    for i = 1, count - 1 do
      v[i], h[(k + 1 + i) * n + k] = h[(k + 1 + i) * n + k], 0
    end
    reflect_rows(h, (k + 1) * n, n, k + 1, n - 1, v, tau, count, sums)
    reflect_columns(h, k + 1, n, 0, n - 1, v, tau, count)
    if z then reflect_columns(z, k + 1, n, 0, n - 1, v, tau, count) end
  end
end

-- One step of the QR algorithm with two shifts at once, of the rows `first` to `last`, three or more: J. G. F. Francis,
-- "The QR transformation", The Computer Journal 1961. The shifts have that sum and that product. Without a z none asks
-- for what stands beside these rows and columns, and it stays behind.
local function step(h, z, n, first, last, sum, shift_product, v, sums)
  local above, behind = z and 0 or first, z and n - 1 or last
  local top, next_row = first * n + first, (first + 1) * n + first
  v[0] = h[top] * (h[top] - sum) + h[top + 1] * h[next_row] + shift_product
  v[1] = h[next_row] * (h[top] + h[next_row + 1] - sum)
  v[2] = h[next_row] * h[next_row + n + 1]
  for k = first, last - 1 do
    local count = min(3, last - k + 1)
    if k > first then
      for i = 0, count - 1 do v[i] = h[(k + i) * n + k - 1] end
    end
    local tau = reflections.of(v, 0, 1, count)
    if k > first then
      h[k * n + k - 1] = v[0]
      for i = 1, count - 1 do h[(k + i) * n + k - 1] = 0 end
    end
    v[0] = 1
    reflect_rows(h, k * n, n, k, behind, v, tau, count, sums)
    reflect_columns(h, k, n, above, min(k + 3, last), v, tau, count)
    if z then reflect_columns(z, k, n, 0, n - 1, v, tau, count) end
  end
end

-- Of the block in the rows m - 1 and m half the difference of its diagonal, and the square of half that of its
-- eigenvalues, which is negative where they are complex.
local function halves(h, n, m)
  local half = (h[(m - 1) * n + m - 1] - h[m * n + m]) / 2
  return half, half * half + h[(m - 1) * n + m] * h[m * n + m - 1]
end

-- Rotates two neighbouring columns in the rows up to number `last`, of which p[at] is in the second column.
local function turn_columns(p, at, n, last, c, s)
  for i = at, at + last * n, n do
    local f, g = p[i - 1], p[i]
    p[i - 1], p[i] = c * f + s * g, c * g - s * f
  end
end

-- Turns such a block so that it is triangular, where its eigenvalues are real.
local function split_block(h, z, n, m)
  local half, square = halves(h, n, m)
  if square < 0 then return end
  local low = h[m * n + m - 1]
  local high = half + (half < 0 and -1 or 1) * sqrt(square)
  local most = max(abs(low), abs(high))
  local s, c = low / most, high / most
  local length = sqrt(s * s + c * c)
  s, c = s / length, c / length
  local x, y = (m - 1) * n, m * n
  for j = m - 1, n - 1 do
    local f, g = h[x + j], h[y + j]
    h[x + j], h[y + j] = c * f + s * g, c * g - s * f
  end
  turn_columns(h, m, n, m, c, s)
  if z then turn_columns(z, m, n, n - 1, c, s) end
  h[m * n + m - 1] = 0
end

-- Makes the matrix triangular but for blocks of two rows, whose eigenvalues are complex: h = z h' z^T. Without a z only
-- these blocks and the diagonal are those of h'. `v` has room for 2 n numbers, and for 6.
local function to_schur(h, z, n, v, called)
  local sums = v + max(n, 3)
  to_hessenberg(h, z, n, v, sums)
  local norm = 0
  for i = 0, n * n - 1 do norm = max(norm, abs(h[i])) end
  local last, tries = n - 1, 0
  while last >= 0 do
    local first = last
    while first > 0 do
      local around = abs(h[(first - 1) * n + first - 1]) + abs(h[first * n + first])
      if abs(h[first * n + first - 1]) <= EPSILON * (around > 0 and around or norm) then
        h[first * n + first - 1] = 0
        break
      end
      first = first - 1
    end
    if first >= last - 1 then
      if first < last then split_block(h, z, n, last) end
      last, tries = first - 1, 0
    else
      tries = tries + 1
      if tries == 100 then fail("invalid_argument", called .. ": the eigenvalues are not found") end
      local x, y = h[(last - 1) * n + last - 1], h[last * n + last]
      local sum, shift_product = x + y, x * y - h[last * n + last - 1] * h[(last - 1) * n + last]
      if tries % 10 == 0 then  -- others, where these go round in circles
        local size = abs(h[last * n + last - 1]) + abs(h[(last - 1) * n + last - 2])
        sum, shift_product = 1.5 * size, size * size
      end
      step(h, z, n, first, last, sum, shift_product, v, sums)
    end
  end
end

-- Compiled loops do not notice a Ctrl-C, so these are none, around others that are.
if jit then
  jit.off(to_hessenberg)
  jit.off(to_schur)
end

-- ---- eigenvalues and vectors ---------------------------------------------------------------------------------------

-- Writes the eigenvalues of what to_schur made, real and imaginary parts in turn; of a pair the one above the axis
-- first.
local function write_values(h, n, values)
  local m = 0
  while m < n do
    local real, imaginary, has_pair = h[m * n + m], 0, m + 1 < n and h[(m + 1) * n + m] ~= 0
    if has_pair then
      local half, square = halves(h, n, m + 1)
      real, imaginary = h[(m + 1) * n + m + 1] + half, sqrt(-square)
      values[2 * m + 2], values[2 * m + 3] = real, -imaginary
    end
    values[2 * m], values[2 * m + 1] = real, imaginary
    m = m + (has_pair and 2 or 1)
  end
end

local function times(a, b, c, d) return a * c - b * d, a * d + b * c end

-- (a + b i) / (c + d i), in shares of the larger part.
local function over(a, b, c, d)
  if abs(c) >= abs(d) then
    local share = d / c
    local whole = c + d * share
    return (a + b * share) / whole, (b - a * share) / whole
  end
  local share = c / d
  local whole = c * share + d
  return (a * share + b) / whole, (b * share - a) / whole
end

-- What h[at + j] for j from `first` to `last` give of a row, times x and y, negative.
local function rest(h, at, first, last, x, y)
  local a, b = 0, 0
  for j = first, last do
    local factor = h[at + j]
    a, b = a - factor * x[j], b - factor * y[j]
  end
  return a, b
end

local function not_nothing(a, b, limit)
  if abs(a) + abs(b) < limit then return limit, 0 end
  return a, b
end

-- The eigenvector of the eigenvalue number m of what to_schur made: x (real) and y (imaginary) with h (x + i y) =
-- (lr + i li) (x + i y), from the end. Where two eigenvalues are equal what would be a division by 0 is one by little.
local function back(h, n, m, lr, li, x, y)
  local least = 0
  for i = 0, m do
    for j = i, m do least = max(least, abs(h[i * n + j])) end
  end
  least = max(least * EPSILON, 2 ^ -900)
  for i = 0, n - 1 do x[i], y[i] = 0, 0 end
  x[m] = 1
  local i = m - 1
  if li ~= 0 then
    x[m], y[m] = h[m * n + m - 1], 0
    x[m - 1], y[m - 1] = lr - h[m * n + m], li
    i = m - 2
  end
  while i >= 0 do
    local top = i
    local a, b = rest(h, i * n, i + 1, m, x, y)
    if i > 0 and h[i * n + i - 1] ~= 0 then
      top = i - 1
      local c, d = rest(h, top * n, i + 1, m, x, y)
      local first, right, low, second = h[top * n + top] - lr, h[top * n + i], h[i * n + top], h[i * n + i] - lr
      local e, f = times(first, -li, second, -li)
      local size = max(abs(first), abs(second), abs(right), abs(low), abs(li), least)
      e, f = not_nothing(e - right * low, f, least * size)
      local g, k = times(c, d, second, -li)
      local o, p = times(a, b, first, -li)
      x[top], y[top] = over(g - right * a, k - right * b, e, f)
      x[i], y[i] = over(o - low * c, p - low * d, e, f)
    else
      x[i], y[i] = over(a, b, not_nothing(h[i * n + i] - lr, -li, least))
    end
    local most = max(abs(x[i]), abs(y[i]), abs(x[top]), abs(y[top]))
    if most > 2 ^ 300 then  -- what follows would be no numbers
      for j = top, m do x[j], y[j] = x[j] / most, y[j] / most end
    end
    i = top - 1
  end
end

-- Columns of length 1 of each matrix, the largest number of each real.
local function normalized(real, imaginary)
  local along = { axis = 1, keepdims = true }
  local most = np.maximum(np.max(np.maximum(np.abs(real), np.abs(imaginary)), along), 2 ^ -1000)
  real, imaginary = real / most, imaginary / most
  local squares = real * real + imaginary * imaginary
  local length = np.sqrt(np.sum(squares, along))
  local place = np.expand_dims(np.argmax(squares, 1), 1)
  local turn_real, turn = np.take_along_axis(real, place, 1), np.take_along_axis(imaginary, place, 1)
  local size = np.sqrt(turn_real * turn_real + turn * turn) * length
  -- Those that are real stay as they are, with the sign they have.
  local is_real = np.max(np.abs(imaginary), along):eq(0)
  turn_real, turn = np.where(is_real, 1 / length, turn_real / size), np.where(is_real, 0, turn / size)
  return real * turn_real + imaginary * turn, imaginary * turn_real - real * turn
end

-- The eigenvectors of what to_schur made, one in each row of x (real) and y (imaginary).
local function write_vectors(h, n, values, x, y)
  for m = 0, n - 1 do
    local real, imaginary = values[2 * m], values[2 * m + 1]
    if imaginary >= 0 then
      back(h, n, imaginary > 0 and m + 1 or m, real, imaginary, x + m * n, y + m * n)
    else  -- conjugate to the one before
      for j = m * n, m * n + n - 1 do x[j], y[j] = x[j - n], -y[j - n] end
    end
  end
end

-- The eigenvalues (count, n, 2) of matrices (count, n, n), and with `wants_vectors` their eigenvectors (count, n, n,
-- 2), in double precision.
local function factors(stack, called, wants_vectors)
  local count, n = stack.shape[0], stack.shape[1]
  local values = core.zeros("float64", { count, n, 2 })
  if count * n == 0 then return values, core.zeros("float64", { count, n, n, 2 }) end
  local scales = rotations.scales_of(stack, called)
  local matrices, turned = stack / scales, wants_vectors and rotations.identities(count, n)
  local rows, x, y = core.zeros("float64", { count, n, 1 }), nil, nil
  if wants_vectors then x, y = core.zeros("float64", { count, n, n }), core.zeros("float64", { count, n, n }) end
  local room = core.zeros("float64", { 2 * max(n, 3) })
  local h, z, v, d, w = matrices:ptr(), turned and turned:ptr(), values:ptr(), rows:ptr(), room:ptr()
  local p, q = x and x:ptr(), y and y:ptr()
  for m = 0, count - 1 do
    local at = m * n * n
    balance(h + at, n, d + m * n)
    to_schur(h + at, z and z + at, n, w, called)
    write_values(h + at, n, v + 2 * m * n)
    if p then write_vectors(h + at, n, v + 2 * m * n, p + at, q + at) end
  end
  local told = values * scales
  if not wants_vectors then return told end
  local function turned_back(vectors) return np.matmul(turned, vectors:transpose(0, 2, 1)) * rows end
  return told, np.stack({ normalized(turned_back(x), turned_back(y)) }, -1)
end

-- The same of the matrices of any array, in its dtype.
local function of_each(a, called, wants_vectors)
  a = floating(as_array(a, called))
  local rank = a.rank
  if rank < 2 or a.shape[rank - 1] ~= a.shape[rank - 2] then
    fail("shape_mismatch", ("%s wants a square matrix, got %s"):format(called, tostring(a.shape)))
  end
  local stack, _, outer = stacks.along_one(cast(a, "float64"))
  local values, vectors = factors(stack, called, wants_vectors)
  local function shaped(whole) return cast(stacks.spread(whole, outer), a.dtype) end
  return shaped(values), vectors and shaped(vectors)
end

local linalg = np.linalg

local eig_signature = signature("np.linalg.eig", { { "a", "any" } })
--- The eigenvalues of a square matrix, in no order, and its eigenvectors as columns of length 1:
--- `local values, vectors = np.linalg.eig(a)`, with a v = v * value for each. Those of a real matrix may be complex, so
--- each number is a pair, real and imaginary, along a last axis: `values:slice(":, 0")` are the real parts. Two that
--- are conjugate stand side by side, the one with the positive imaginary part first. Of a matrix without as many
--- eigenvectors as rows some are nearly the same. Of a symmetric one np.linalg.eigh gives real numbers, and faster.
--- By the QR algorithm with two shifts, in double precision.
--- shapes: a (..., n, n) -> values (..., n, 2), vectors (..., n, n, 2)
--- @return ndarray, ndarray
--- @error elements that are not finite
function linalg.eig(...) return of_each(eig_signature:parse(...).a, "np.linalg.eig", true) end

local eigvals_signature = signature("np.linalg.eigvals", { { "a", "any" } })
--- The eigenvalues of np.linalg.eig alone. x' = a x comes to rest where all real parts are below 0, and
--- x[k + 1] = a x[k] where `np.sqrt(np.sum(values ^ 2, -1)):max()` is below 1.
--- shapes: a (..., n, n) -> (..., n, 2)
--- @return ndarray
--- @error elements that are not finite
function linalg.eigvals(...) return (of_each(eigvals_signature:parse(...).a, "np.linalg.eigvals", false)) end

local roots_signature = signature("np.roots", { { "p", "any" } })
--- Where the polynomial p[0] x^n + p[1] x^(n - 1) + ... + p[n] is 0, in no order: pairs, real and imaginary, along a
--- last axis. They are the eigenvalues of a matrix that is made of `p`.
--- shapes: p (n + 1) -> (n, 2); fewer where the first of `p` are 0
--- @return ndarray
--- @error more than one axis
function np.roots(...)
  local p = floating(as_array(roots_signature:parse(...).p, "np.roots", "float64"))
  if p.rank ~= 1 then
    fail("shape_mismatch", "np.roots wants the coefficients along one axis, got " .. tostring(p.shape))
  end
  local places = np.flatnonzero(p)
  if #places == 0 then return np.zeros({ 0, 2 }, p.dtype) end
  local first, last = places[0], places[#places - 1]
  local x = cast(p, "float64"):rows(first, last - first + 1)
  local n = #x - 1
  local companion = np.eye(n, n, -1, "float64")
  if n > 0 then companion[0] = -x:rows(1, n) / x[0] end
  local values = factors(np.expand_dims(companion, 0), "np.roots", false)
  return cast(np.concat({ values[0], np.zeros({ #p - 1 - last, 2 }, "float64") }, 0), p.dtype)
end
