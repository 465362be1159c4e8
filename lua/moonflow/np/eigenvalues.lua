--- Eigenvalues of matrices that need not be symmetric, in flow.np.linalg: eig and eigvals, and np.roots, which are
-- those of a matrix. In double precision. A complex number is a pair, real and imaginary, along a last axis.

local arguments = require "moonflow.arguments"
local core = require "moonflow.core"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"
local panels = require "moonflow.np.panels"
local reflections = require "moonflow.np.reflections"
local rotations = require "moonflow.np.rotations"
local stacks = require "moonflow.np.stacks"

local as_array, cast, floating, product = ndarray.as_array, ndarray.cast, ndarray.floating, panels.product
local abs, floor, log, max, min, sqrt = math.abs, math.floor, math.log, math.max, math.min, math.sqrt
local fail, signature = errors.raise, arguments.signature

local EPSILON = 2 ^ -52

-- ---- to the form of Schur ------------------------------------------------------------------------------------------

-- Divides rows of a matrix by powers of two and multiplies columns by them, until a row and the column of its number
-- are about as large: B. N. Parlett and C. Reinsch, "Balancing a matrix for calculation of eigenvalues and
-- eigenvectors", Numerische Mathematik 1969. Gives what the rows of eigenvectors are multiplied by.
local function balance(h, n)
  local factors = {}
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
  return factors
end

-- Reflects `count` rows of n numbers, of which p[row] begins the first, by I - tau v v^T, from column `first` on.
local function reflect_rows(p, row, n, first, v, tau, count)
  for j = first, n - 1 do
    local sum = 0
    for k = 0, count - 1 do sum = sum + v[k] * p[row + k * n + j] end
    sum = sum * tau
    for k = 0, count - 1 do p[row + k * n + j] = p[row + k * n + j] - sum * v[k] end
  end
end

-- Reflects `count` columns from number `column` on in the rows up to number `last`.
local function reflect_columns(p, column, n, last, v, tau, count)
  for at = column, last * n + column, n do
    local sum = 0
    for k = 0, count - 1 do sum = sum + v[k] * p[at + k] end
    sum = sum * tau
    for k = 0, count - 1 do p[at + k] = p[at + k] - sum * v[k] end
  end
end

-- Makes the matrix zero below what is beside its diagonal, h = z h' z^T.
local function to_hessenberg(h, z, n)
  local vector = core.zeros("float64", { n })
  local v = vector:ptr()
  for k = 0, n - 3 do
    local count = n - k - 1
    local tau = reflections.of(h, (k + 1) * n + k, n, count)
    v[0] = 1
    for i = 1, count - 1 do
      v[i], h[(k + 1 + i) * n + k] = h[(k + 1 + i) * n + k], 0
    end
    reflect_rows(h, (k + 1) * n, n, k + 1, v, tau, count)
    reflect_columns(h, k + 1, n, n - 1, v, tau, count)
    reflect_columns(z, k + 1, n, n - 1, v, tau, count)
  end
end

-- One step of the QR algorithm with two shifts at once, of the rows `first` to `last`, three or more: J. G. F. Francis,
-- "The QR transformation", The Computer Journal 1961. The shifts have that sum and that product.
local function step(h, z, n, first, last, sum, shift_product, v)
  local function at(i, j) return h[i * n + j] end
  local f = first
  v[0] = at(f, f) * (at(f, f) - sum) + at(f, f + 1) * at(f + 1, f) + shift_product
  v[1] = at(f + 1, f) * (at(f, f) + at(f + 1, f + 1) - sum)
  v[2] = at(f + 1, f) * at(f + 2, f + 1)
  for k = f, last - 1 do
    local count = min(3, last - k + 1)
    if k > f then
      for i = 0, count - 1 do v[i] = h[(k + i) * n + k - 1] end
    end
    local tau = reflections.of(v, 0, 1, count)
    if k > f then
      h[k * n + k - 1] = v[0]
      for i = 1, count - 1 do h[(k + i) * n + k - 1] = 0 end
    end
    v[0] = 1
    reflect_rows(h, k * n, n, k, v, tau, count)
    reflect_columns(h, k, n, min(k + 3, last), v, tau, count)
    reflect_columns(z, k, n, n - 1, v, tau, count)
  end
end

-- Of the block in the rows m - 1 and m half the difference of its diagonal, and the square of half that of its
-- eigenvalues, which is negative where they are complex.
local function halves(h, n, m)
  local half = (h[(m - 1) * n + m - 1] - h[m * n + m]) / 2
  return half, half * half + h[(m - 1) * n + m] * h[m * n + m - 1]
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
  local function turn_columns(p, last)
    for i = m, last * n + m, n do
      local f, g = p[i - 1], p[i]
      p[i - 1], p[i] = c * f + s * g, c * g - s * f
    end
  end
  turn_columns(h, m)
  turn_columns(z, n - 1)
  h[m * n + m - 1] = 0
end

-- Makes the matrix triangular but for blocks of two rows, whose eigenvalues are complex: h = z h' z^T.
local function to_schur(h, z, n, called)
  to_hessenberg(h, z, n)
  local norm = 0
  for i = 0, n * n - 1 do norm = max(norm, abs(h[i])) end
  local vector = core.zeros("float64", { 3 })
  local last, tries, v = n - 1, 0, vector:ptr()
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
      step(h, z, n, first, last, sum, shift_product, v)
    end
  end
end

-- ---- eigenvalues and vectors ---------------------------------------------------------------------------------------

-- The eigenvalues of what to_schur made, real and imaginary parts; of a pair the one above the axis first.
local function values_of(h, n)
  local real, imaginary = {}, {}
  local m = 0
  while m < n do
    real[m], imaginary[m] = h[m * n + m], 0
    if m + 1 < n and h[(m + 1) * n + m] ~= 0 then
      local half, square = halves(h, n, m + 1)
      real[m], imaginary[m] = h[(m + 1) * n + m + 1] + half, sqrt(-square)
      real[m + 1], imaginary[m + 1] = real[m], -imaginary[m]
      m = m + 1
    end
    m = m + 1
  end
  return real, imaginary
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
  -- What the numbers behind `from` give of a row, negative.
  local function rest(row, from)
    local a, b = 0, 0
    for j = from + 1, m do
      local factor = h[row * n + j]
      a, b = a - factor * x[j], b - factor * y[j]
    end
    return a, b
  end
  local function not_nothing(a, b, limit)
    if abs(a) + abs(b) < limit then return limit, 0 end
    return a, b
  end
  while i >= 0 do
    local top = i
    local a, b = rest(i, i)
    if i > 0 and h[i * n + i - 1] ~= 0 then
      top = i - 1
      local c, d = rest(top, i)
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

-- Columns of length 1, of each the largest number real.
local function normalized(real, imaginary)
  local most = np.maximum(np.max(np.maximum(np.abs(real), np.abs(imaginary)), 0), 2 ^ -1000)
  real, imaginary = real / most, imaginary / most
  local squares = real * real + imaginary * imaginary
  local length = np.sqrt(np.sum(squares, 0))
  local place = np.argmax(squares, 0):reshape({ 1, -1 })
  local turn_real, turn = np.take_along_axis(real, place, 0), np.take_along_axis(imaginary, place, 0)
  local size = np.sqrt(turn_real * turn_real + turn * turn) * length
  -- Those that are real stay as they are, with the sign they have.
  local is_real = np.max(np.abs(imaginary), 0):eq(0)
  turn_real, turn = np.where(is_real, 1 / length, turn_real / size), np.where(is_real, 0, turn / size)
  return real * turn_real + imaginary * turn, imaginary * turn_real - real * turn
end

-- The eigenvalues (n, 2) of one matrix, and with `wants_vectors` its eigenvectors (n, n, 2), in double precision.
local function factors(a, called, wants_vectors)
  local n = a.shape[0]
  if n == 0 then return np.zeros({ 0, 2 }, "float64"), np.zeros({ 0, 0, 2 }, "float64") end
  local scale = rotations.scale_of(a, called)
  local matrix, turned = (a / scale):copy(), np.eye(n, "float64")
  local h, z = matrix:ptr(), turned:ptr()
  local rows = balance(h, n)
  to_schur(h, z, n, called)
  local real, imaginary = values_of(h, n)
  local values = core.zeros("float64", { n, 2 })
  local to = values:ptr()
  for m = 0, n - 1 do to[2 * m], to[2 * m + 1] = real[m], imaginary[m] end
  if not wants_vectors then return values * scale end
  local x, y = core.zeros("float64", { n, n }), core.zeros("float64", { n, n })  -- a row for each
  local p, q = x:ptr(), y:ptr()
  for m = 0, n - 1 do
    if imaginary[m] >= 0 then
      back(h, n, imaginary[m] > 0 and m + 1 or m, real[m], imaginary[m], p + m * n, q + m * n)
    end
  end
  for m = 0, n - 1 do
    if imaginary[m] < 0 then
      for j = m * n, m * n + n - 1 do p[j], q[j] = p[j - n], -q[j - n] end
    end
  end
  local factor = core.zeros("float64", { n, 1 })
  for i = 0, n - 1 do factor:ptr()[i] = rows[i] end
  local back_real, back_imaginary = product(turned, x:transpose()) * factor, product(turned, y:transpose()) * factor
  return values * scale, np.stack({ normalized(back_real, back_imaginary) }, -1)
end

-- What `factors` gives of each matrix of an array.
local function of_each(given_a, called, wants_vectors)
  local whole = floating(as_array(given_a, called))
  local rank = whole.rank
  if rank < 2 or whole.shape[rank - 1] ~= whole.shape[rank - 2] then
    fail("shape_mismatch", ("%s wants a square matrix, got %s"):format(called, tostring(whole.shape)))
  end
  local function of_one(a) return factors(a, called, wants_vectors) end
  local results = { stacks.each(of_one, cast(whole, "float64")) }
  for i, result in ipairs(results) do results[i] = cast(result, whole.dtype) end
  return unpack(results)
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
  local values = factors(companion, "np.roots", false)
  return cast(np.concat({ values, np.zeros({ #p - 1 - last, 2 }, "float64") }, 0), p.dtype)
end
