--- Rotations of pairs of rows, by which flow.np.linalg finds eigenvalues and singular values.

local core = require "moonflow.core"
local errors = require "moonflow.errors"
local np = require "moonflow.np.functions"
local panels = require "moonflow.np.panels"
local reflections = require "moonflow.np.reflections"

local product = panels.product
local abs, max, min, sqrt, fail = math.abs, math.max, math.min, math.sqrt, errors.raise

local rotations = {}

-- ---- eigenvalues --------------------------------------------------------------------------------------------------

-- Makes a symmetric matrix `a` tridiagonal, T = Q^T a Q, by reflections. Gives the diagonal of T, what is beside it,
-- and the blocks of Q.
local function tridiagonal(a)
  local n = a.shape[0]
  local p, blocks, taus = a:ptr(), {}, {}
  local diagonal, beside = core.zeros("float64", { n }), core.zeros("float64", { n })
  local d, e, sums = diagonal:ptr(), beside:ptr(), core.zeros("float64", { n })
  local w = sums:ptr()
  for k = 0, n - 2 do
    -- The reflection's vector stays in the row, and the matrix below it is reflected from both sides.
    local row, first, count = k * n, k + 1, n - k - 1
    local tau = reflections.of(p, row + first, 1, count)
    taus[k + 1], d[k], e[k] = tau, p[row + k], p[row + first]
    p[row + first] = 1
    for j = first, n - 1 do w[j] = 0 end
    panels.subtract_product(w, first, n, p, row + first, n, p, first * n + first, n, 1, tau == 0 and 0 or count, count)
    local sum = 0
    for j = first, n - 1 do
      w[j] = -tau * w[j]
      sum = sum + w[j] * p[row + j]
    end
    for j = first, n - 1 do w[j] = w[j] - tau / 2 * sum * p[row + j] end
    for i = first, tau == 0 and 0 or n - 1 do
      local at, v, u = i * n, p[row + i], w[i]
      for j = first, n - 1 do p[at + j] = p[at + j] - v * w[j] - u * p[row + j] end
    end
  end
  d[n - 1] = p[n * n - 1]
  for from = 0, n - 2, panels.WIDTH do
    local count, some = min(panels.WIDTH, n - 1 - from), {}
    local v = core.zeros("float64", { n - 1 - from, count })
    local to = v:ptr()
    for j = 0, count - 1 do
      some[j + 1] = taus[from + j + 1]
      for i = j, n - 2 - from do to[i * count + j] = p[(from + j) * n + from + 1 + i] end
    end
    blocks[#blocks + 1] = reflections.block(v, some, from + 1)
  end
  return diagonal, beside, blocks
end

-- Rotates two rows: x = c x - s y, y = s x + c y.
local function rotate(p, x, y, count, c, s)
  for k = 0, count - 1 do
    local f, g = p[x + k], p[y + k]
    p[x + k], p[y + k] = c * f - s * g, s * f + c * g
  end
end

-- Cosine and sine of the rotation of x and y that leaves xy = 0 of their products, and so of a matrix { { xx, xy },
-- { xy, yy } }.
local function rotation_of(xx, yy, xy)
  local zeta = (yy - xx) / (2 * xy)
  local t = (zeta < 0 and -1 or 1) / (abs(zeta) + sqrt(1 + zeta * zeta))
  local c = 1 / sqrt(1 + t * t)
  return c, c * t
end

-- Of a matrix with elements about 1 what is as good as 0, and has a square that is a number yet.
local NOTHING = 1e-150

-- The eigenvalues of a tridiagonal matrix in the place of its diagonal, by implicit QL, with the rotations applied to
-- the rows of `z`: H. Bowdler, R. S. Martin, C. Reinsch and J. H. Wilkinson, "The QR and QL algorithms for symmetric
-- matrices", Numerische Mathematik 1968. What is rounding beside the greatest element of the matrix counts as 0: among
-- eigenvalues that are nothing but rounding themselves, as those of a matrix of low rank, there would be no end.
local function rotate_to_diagonal(d, e, z, n, called)
  local nothing = 0
  for i = 0, n - 1 do nothing = max(nothing, 2 ^ -53 * abs(d[i]), i < n - 1 and 2 ^ -53 * abs(e[i]) or 0) end
  for l = 0, n - 1 do
    for attempt = 1, 100 do
      local m = l
      while m < n - 1 and abs(e[m]) > max(2 ^ -53 * (abs(d[m]) + abs(d[m + 1])), nothing) do m = m + 1 end
      if m == l then break end
      if attempt == 100 then fail("invalid_argument", called .. ": the eigenvalues are not found") end
      local g = (d[l + 1] - d[l]) / (2 * e[l])
      local r = sqrt(g * g + 1)
      g = d[m] - d[l] + e[l] / (g + (g < 0 and -r or r))
      local s, c, p, done = 1, 1, 0, true
      for i = m - 1, l, -1 do
        local f, b = s * e[i], c * e[i]
        r = sqrt(f * f + g * g)
        e[i + 1] = r
        if r == 0 then
          d[i + 1], e[m], done = d[i + 1] - p, 0, false
          break
        end
        s, c = f / r, g / r
        g = d[i + 1] - p
        r = (d[i] - g) * s + 2 * c * b
        p = s * r
        d[i + 1], g = g + p, c * r - b
        rotate(z, i * n, (i + 1) * n, n, c, s)
      end
      if done then d[l], e[l], e[m] = d[l] - p, g, 0 end
    end
  end
end

local function check_finite(a, called)
  if not np.isfinite(a):all() then
    fail("invalid_argument", called .. ": the matrix has elements that are not finite")
  end
end

--- A power of two near the greatest element, or 1 of nothing but 0. Divided by it, squares are neither too large nor
--- too small. Raises where elements are not finite.
function rotations.scale_of(a, called)
  local most = a.nbytes > 0 and np.abs(a):max() or 0
  check_finite(a, called)
  if most == 0 then return 1 end
  local _, exponent = math.frexp(most)
  return 2 ^ max(min(exponent, 1023), -1000)  -- 2^1024 would be infinite
end

--- Eigenvalues, ascending, (n), and eigenvectors as rows (n, n), of a symmetric matrix that has elements.
function rotations.symmetric_factors(a, called)
  local n = a.shape[0]
  local diagonal, beside, blocks = tridiagonal(a:copy())
  local rows = reflections.product(blocks, n, n):transpose()
  rotate_to_diagonal(diagonal:ptr(), beside:ptr(), rows:ptr(), n, called)
  local order = np.argsort(diagonal)
  return diagonal:take(order, 0), rows:take(order, 0)
end

-- ---- singular values ----------------------------------------------------------------------------------------------

local function square_of(p, at, width)
  local sum = 0
  for k = at, at + width - 1 do sum = sum + p[k] * p[k] end
  return sum
end

-- Most matrices need a few sweeps of the rotations below. What is rounding beside the longest of n rows, and not at
-- right angles by then, has rows of rounding of its own, and those theirs, and is taken for the 0 that it stands for.
local FEW_SWEEPS = 12
local function drop_rounding(p, at, n, width)
  local most, last = 0, at + (n - 1) * width
  for row = at, last, width do most = max(most, square_of(p, row, width)) end
  for row = at, last, width do
    if square_of(p, row, width) <= most * n * 2 ^ -104 then
      for k = row, row + width - 1 do p[k] = 0 end
    end
  end
end

-- Rotates the rows of `width` numbers at p[x] and p[y] where they are not at right angles, and those of n numbers at
-- q[x_too] and q[y_too] with them. Tells whether it did.
local function turn_apart(p, x, y, width, q, x_too, y_too, n, tolerance)
  local xx, yy, xy = 0, 0, 0
  for k = 0, width - 1 do
    local f, h = p[x + k], p[y + k]
    xx, yy, xy = xx + f * f, yy + h * h, xy + f * h
  end
  if not (min(xx, yy) > NOTHING ^ 2 and abs(xy) > tolerance * sqrt(xx) * sqrt(yy)) then return false end
  local c, s = rotation_of(xx, yy, xy)
  rotate(p, x, y, width, c, s)
  rotate(q, x_too, y_too, n, c, s)
  return true
end

-- Rotates the rows of `w` (n, n) until each is at right angles with all others, and those of `v` with them: one-sided
-- Jacobi, M. R. Hestenes, "Inversion of matrices by biorthogonalization and related results", Journal of the Society
-- for Industrial and Applied Mathematics 1958. The products of all rows, which tell where there is something to do, are
-- one product of matrices.
local function make_orthogonal(w, v, n, called)
  local p, q, tolerance = w:ptr(), v:ptr(), 4 * sqrt(n) * 2 ^ -52
  for sweep = 1, 60 do
    if sweep == FEW_SWEEPS then drop_rounding(p, 0, n, n) end
    local products, is_done = product(w, w:transpose()), true
    local g = products:ptr()
    for i = 0, n - 2 do
      local x = i * n
      for j = i + 1, n - 1 do
        local limit = tolerance * sqrt(g[x + i]) * sqrt(g[j * n + j])
        if g[x + i] > NOTHING ^ 2 and g[j * n + j] > NOTHING ^ 2 and abs(g[x + j]) > limit / 2 then
          if turn_apart(p, x, j * n, n, q, x, j * n, n, tolerance) then is_done = false end
        end
      end
    end
    if is_done then return end
  end
  fail("invalid_argument", called .. ": the singular values are not found")
end

-- Fills the rows of `width` numbers, n of them from p[at] on, from the one numbered `from` on, so that all are of
-- length 1 and at right angles: each from the axis that has the least share in those before it.
local function complete_rows(p, at, from, n, width)
  for row = at + from * width, at + (n - 1) * width, width do
    local least, axis = math.huge, 0
    for j = 0, width - 1 do
      local share = 0
      for i = at, row - 1, width do share = share + p[i + j] * p[i + j] end
      if share < least then least, axis = share, j end
    end
    for j = 0, width - 1 do p[row + j] = j == axis and 1 or 0 end
    for _ = 1, 2 do  -- the second time for what rounding has left
      for i = at, row - 1, width do
        local dot = 0
        for j = 0, width - 1 do dot = dot + p[i + j] * p[row + j] end
        for j = 0, width - 1 do p[row + j] = p[row + j] - dot * p[i + j] end
      end
    end
    local sum = 0
    for j = 0, width - 1 do sum = sum + p[row + j] * p[row + j] end
    for j = 0, width - 1 do p[row + j] = p[row + j] / sqrt(sum) end
  end
end

--- u (rows, k), s (k) descending, and v transposed (k, columns) of a matrix with elements. A tall one is reduced to its
--- triangular factor R. The eigenvectors V of R^T R make the columns of R V nearly orthogonal, but for those of small
--- singular values, and rotations do the rest.
function rotations.singular_factors(a, called)
  local rows, n = a.shape[0], a.shape[1]
  if rows < n then
    local u, s, v = rotations.singular_factors(a:transpose(), called)
    return v:transpose(), s, u:transpose()
  end
  local scale, q = rotations.scale_of(a, called), nil
  local r = a / scale
  if rows > n then q, r = reflections.factors(r) end
  local _, v = rotations.symmetric_factors(product(r, r, true), called)
  v = np.flip(v, 0)  -- the greatest first, as the rotations want them
  local w = product(v, r:transpose())
  make_orthogonal(w, v, n, called)
  local lengths = np.sqrt(np.sum(w * w, 1))
  lengths = np.where(lengths:gt(NOTHING), lengths, 0)
  local order = np.argsort(-lengths)
  local s = lengths:take(order, 0)
  local u = w:take(order, 0) / np.where(s:gt(0), s, 1):reshape({ -1, 1 })
  complete_rows(u:ptr(), 0, np.count_nonzero(s), n, n)
  u = u:transpose()
  return q and product(q, u) or u, s * scale, v:take(order, 0)
end

-- ---- many small matrices -------------------------------------------------------------------------------------------

--- Matrices of up to so many rows or columns are taken by what follows, a stack of them at a time: for each by itself
--- the arrays that the others need would take a hundred times as long.
rotations.SMALL = 8

--- A power of two near the greatest element of each matrix, (count, 1, 1); see scale_of.
function rotations.scales_of(stack, called)
  check_finite(stack, called)
  local most = np.max(np.abs(stack), { 1, 2 }, { keepdims = true })
  return 2 ^ np.clip(np.ceil(np.log2(np.where(most:eq(0), 1, most))), -1000, 1023)
end

-- A symmetric matrix with elements up to 1 at p[at], of which the lower triangle is read, made diagonal by rotations
-- that are applied to the rows of `q` at the same place: C. G. J. Jacobi, "Über ein leichtes Verfahren, die in der
-- Theorie der Säcularstörungen vorkommenden Gleichungen numerisch aufzulösen", Journal für die reine und angewandte
-- Mathematik 1846.
local function make_diagonal(p, q, at, n)
  for i = 0, n - 1 do
    for j = i + 1, n - 1 do p[at + i * n + j] = p[at + j * n + i] end
  end
  for _ = 1, 40 do
    local is_done = true
    for i = 0, n - 2 do
      for j = i + 1, n - 1 do
        local x, y = at + i * n, at + j * n
        if abs(p[x + j]) > max(2 ^ -53 * (abs(p[x + i]) + abs(p[y + j])), 2 ^ -56) then
          local c, s = rotation_of(p[x + i], p[y + j], p[x + j])
          rotate(p, x, y, n, c, s)
          for k = at, at + n * n - n, n do
            local f, g = p[k + i], p[k + j]
            p[k + i], p[k + j] = c * f - s * g, s * f + c * g
          end
          rotate(q, x, y, n, c, s)
          is_done = false
        end
      end
    end
    if is_done then return end
  end
end

-- Sorts numbers d[at ..], with the rows of p and of q, if there is any, that belong to them.
local function sort(d, at, n, is_before, p, p_at, width, q, q_at)
  local function swap(list, one, other) list[one], list[other] = list[other], list[one] end
  for i = 0, n - 2 do
    local first = i
    for j = i + 1, n - 1 do
      if is_before(d[at + j], d[at + first]) then first = j end
    end
    if first ~= i then
      swap(d, at + i, at + first)
      for k = 0, width - 1 do swap(p, p_at + i * width + k, p_at + first * width + k) end
      for k = 0, q and n - 1 or -1 do swap(q, q_at + i * n + k, q_at + first * n + k) end
    end
  end
end

local function is_less(a, b) return a < b end
local function is_more(a, b) return a > b end

--- (count, n, n)
function rotations.identities(count, n) return np.broadcast_to(np.eye(n, "float64"), { count, n, n }):copy() end

--- Eigenvalues, ascending, (count, n), and eigenvectors as columns (count, n, n), of symmetric matrices (count, n, n),
--- of which the lower triangles are read.
function rotations.small_symmetric(stack, called)
  local count, n = stack.shape[0], stack.shape[1]
  stack = np.tril(stack)
  local scales = rotations.scales_of(stack, called)
  stack = stack / scales
  local values, rows = core.empty("float64", { count, n }), rotations.identities(count, n)
  local p, q, d = stack:ptr(), rows:ptr(), values:ptr()
  for m = 0, count - 1 do
    local at = m * n * n
    make_diagonal(p, q, at, n)
    for i = 0, n - 1 do d[m * n + i] = p[at + i * n + i] end
    sort(d, m * n, n, is_less, q, at, n)
  end
  return values * scales:reshape({ count, 1 }), rows:transpose(0, 2, 1)
end

-- Rotates the rows of a small matrix (n, width) at p[at] as make_orthogonal does, and those of `q` (n, n) with them.
local function make_rows_orthogonal(p, at, q, q_at, n, width)
  local tolerance = 2 ^ -52 * sqrt(width)
  for sweep = 1, 60 do
    if sweep == FEW_SWEEPS then drop_rounding(p, at, n, width) end
    local is_done = true
    for i = 0, n - 2 do
      for j = i + 1, n - 1 do
        local x, y, x_too, y_too = at + i * width, at + j * width, q_at + i * n, q_at + j * n
        if turn_apart(p, x, y, width, q, x_too, y_too, n, tolerance) then is_done = false end
      end
    end
    if is_done then return end
  end
end

--- u (count, rows, k), s (count, k) descending, and v transposed (count, k, columns), of matrices (count, rows,
--- columns).
function rotations.small_singular(stack, called)
  local count, width, n = stack.shape[0], stack.shape[1], stack.shape[2]
  if width < n then
    local u, s, v = rotations.small_singular(stack:transpose(0, 2, 1), called)
    return v:transpose(0, 2, 1), s, u:transpose(0, 2, 1)
  end
  local scales = rotations.scales_of(stack, called)
  local w, v = (stack / scales):transpose(0, 2, 1):copy(), rotations.identities(count, n)
  local s = core.empty("float64", { count, n })
  local p, q, d = w:ptr(), v:ptr(), s:ptr()
  for m = 0, count - 1 do
    local at, rank = m * n * width, 0
    make_rows_orthogonal(p, at, q, m * n * n, n, width)
    for i = 0, n - 1 do
      local length = sqrt(square_of(p, at + i * width, width))
      d[m * n + i] = length > NOTHING and length or 0
    end
    sort(d, m * n, n, is_more, p, at, width, q, m * n * n)
    for i = 0, n - 1 do
      local length = d[m * n + i]
      if length > 0 then
        rank = rank + 1
        for k = at + i * width, at + (i + 1) * width - 1 do p[k] = p[k] / length end
      end
    end
    complete_rows(p, at, rank, n, width)
  end
  return w:transpose(0, 2, 1), s * scales:reshape({ count, 1 }), v
end

return rotations
