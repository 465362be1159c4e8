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

--- A power of two near the greatest element, or 1 of nothing but 0. Divided by it, squares are neither too large nor
--- too small. Raises where elements are not finite.
function rotations.scale_of(a, called)
  local most = a.nbytes > 0 and np.abs(a):max() or 0
  if not np.isfinite(a):all() then
    fail("invalid_argument", called .. ": the matrix has elements that are not finite")
  end
  if most == 0 then return 1 end
  local _, exponent = math.frexp(most)
  return 2 ^ max(exponent, -1000)
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

-- Rotates the rows of `w` (n, n) until each is at right angles with all others, and those of `v` with them: one-sided
-- Jacobi, M. R. Hestenes, "Inversion of matrices by biorthogonalization and related results", Journal of the Society
-- for Industrial and Applied Mathematics 1958. The products of all rows, which tell where there is something to do, are
-- one product of matrices. Most matrices need a few sweeps; what is rounding beside the longest row, and not at right
-- angles by then, has rows of rounding of its own, and those theirs, and is taken for the 0 that it stands for.
local function make_orthogonal(w, v, n, called)
  local p, q, tolerance = w:ptr(), v:ptr(), 4 * sqrt(n) * 2 ^ -52
  for sweep = 1, 60 do
    local products, is_done = product(w, w:transpose()), true
    local g = products:ptr()
    if sweep == 12 then
      local most = 0
      for i = 0, n - 1 do most = max(most, g[i * n + i]) end
      for i = 0, n - 1 do
        if g[i * n + i] <= most * n * 2 ^ -104 then
          g[i * n + i] = 0
          for k = 0, n - 1 do p[i * n + k] = 0 end
        end
      end
    end
    for i = 0, n - 2 do
      local x = i * n
      for j = i + 1, n - 1 do
        local limit = tolerance * sqrt(g[x + i]) * sqrt(g[j * n + j])
        if g[x + i] > NOTHING ^ 2 and g[j * n + j] > NOTHING ^ 2 and abs(g[x + j]) > limit / 2 then
          local y, xx, yy, xy = j * n, 0, 0, 0
          for k = 0, n - 1 do
            local f, h = p[x + k], p[y + k]
            xx, yy, xy = xx + f * f, yy + h * h, xy + f * h
          end
          if abs(xy) > tolerance * sqrt(xx) * sqrt(yy) then
            local zeta = (yy - xx) / (2 * xy)
            local t = (zeta < 0 and -1 or 1) / (abs(zeta) + sqrt(1 + zeta * zeta))
            local c = 1 / sqrt(1 + t * t)
            rotate(p, x, y, n, c, c * t)
            rotate(q, x, y, n, c, c * t)
            is_done = false
          end
        end
      end
    end
    if is_done then return end
  end
  fail("invalid_argument", called .. ": the singular values are not found")
end

-- Fills the rows of `u` (n, n) from `from` on, so that all are of length 1 and at right angles: each from the axis that
-- has the least share in those before it.
local function complete_rows(u, from, n)
  local p = u:ptr()
  for row = from, n - 1 do
    local least, axis = math.huge, 0
    for j = 0, n - 1 do
      local share = 0
      for i = 0, row - 1 do share = share + p[i * n + j] * p[i * n + j] end
      if share < least then least, axis = share, j end
    end
    for j = 0, n - 1 do p[row * n + j] = j == axis and 1 or 0 end
    for _ = 1, 2 do  -- the second time for what rounding has left
      for i = 0, row - 1 do
        local dot = 0
        for j = 0, n - 1 do dot = dot + p[i * n + j] * p[row * n + j] end
        for j = 0, n - 1 do p[row * n + j] = p[row * n + j] - dot * p[i * n + j] end
      end
    end
    local sum = 0
    for j = 0, n - 1 do sum = sum + p[row * n + j] * p[row * n + j] end
    for j = 0, n - 1 do p[row * n + j] = p[row * n + j] / sqrt(sum) end
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
  complete_rows(u, np.count_nonzero(s), n)
  u = u:transpose()
  return q and product(q, u) or u, s * scale, v:take(order, 0)
end

return rotations
