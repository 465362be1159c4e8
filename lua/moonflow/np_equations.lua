--- The systems of linear equations of flow.np.linalg: solve, inv, det and slogdet, by elimination in double precision.
--
-- A matrix is kept as panels, arrays of all rows and some columns side by side. A panel is made triangular by loops
-- here; what it takes from the panels right of it is a product of matrices, which the engine computes. So nearly all of
-- the work is the engine's, and between two panels a script can be interrupted. The loops read memory by pointers,
-- counted in elements from the beginning of a panel, which LuaJIT turns into code without garbage.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"

local as_array, floating, cut, evaluate = ndarray.as_array, ndarray.floating, ndarray.cut, ndarray.evaluate
local abs, floor, min, fail, signature = math.abs, math.floor, math.min, errors.raise, arguments.signature

local PANEL = 64  -- columns: its square is in the first cache, and a product of panels worth a call of the engine
local FEW = 8     -- columns that are eliminated one by one

-- ---- panels -------------------------------------------------------------------------------------------------------

-- A matrix as panels { array, p = its pointer, first = its first column, width }, copied.
local function panels_of(a)
  local panels, columns = {}, a.shape[1]
  for first = 0, columns - 1, PANEL do
    local width = min(PANEL, columns - first)
    local array = cut(a, 1, { first, first + width })
    panels[#panels + 1] = { array = array, p = array:ptr(), first = first, width = width }
  end
  return panels
end

local function joined(panels)
  local arrays = {}
  for i, panel in ipairs(panels) do arrays[i] = panel.array end
  return (evaluate("concat", arrays, { axis = 1 }))
end

-- c -= a b for a part of memory each, which begins at an element and has its rows so far apart.
local function subtract_product(c, c_at, c_apart, a, a_at, a_apart, b, b_at, b_apart, rows, inner, columns)
  local last = columns - 1
  for _ = 1, rows do
    local k, b_row = 0, b_at
    -- Four at once, since what is stored is read again by the next.
    while k + 3 < inner do
      local f, g, h, l = a[a_at + k], a[a_at + k + 1], a[a_at + k + 2], a[a_at + k + 3]
      local b1, b2, b3 = b_row + b_apart, b_row + 2 * b_apart, b_row + 3 * b_apart
      for j = 0, last do
        c[c_at + j] = c[c_at + j] - f * b[b_row + j] - g * b[b1 + j] - h * b[b2 + j] - l * b[b3 + j]
      end
      k, b_row = k + 4, b_row + 4 * b_apart
    end
    while k < inner do
      local f = a[a_at + k]
      for j = 0, last do c[c_at + j] = c[c_at + j] - f * b[b_row + j] end
      k, b_row = k + 1, b_row + b_apart
    end
    c_at, a_at = c_at + c_apart, a_at + a_apart
  end
end

-- Takes the product of these rows of a panel with `count` rows of another one from as many rows of the other.
local function subtract_rows(other, rows, row_count, panel, from)
  if row_count == 0 then return end
  local product = evaluate("matmul", { panel.array:rows(rows, row_count), other.array:rows(from, panel.width) })
  local p, q, at = other.p, product:ptr(), rows * other.width
  for i = 0, row_count * other.width - 1 do p[at + i] = p[at + i] - q[i] end
  product:release()
end

local function swap_rows(p, width, i, j)
  if i == j then return end
  local one, other = i * width, j * width
  for k = 0, width - 1 do p[one + k], p[other + k] = p[other + k], p[one + k] end
end

-- ---- elimination --------------------------------------------------------------------------------------------------

-- x = L^-1 x for `count` rows of `x` from this element on, where L has ones on its diagonal, at an element of `p`.
local function solve_lower(p, at, apart, count, x, x_at, x_apart, columns)
  for i = 1, count - 1 do
    subtract_product(x, x_at + i * x_apart, x_apart, p, at + i * apart, apart, x, x_at, x_apart, 1, i, columns)
  end
end

-- x = U^-1 x likewise, where U is upper triangular.
local function solve_upper(p, at, apart, count, x, x_at, x_apart, columns)
  for i = count - 1, 0, -1 do
    local row, diagonal = x_at + i * x_apart, at + i * (apart + 1)
    subtract_product(x, row, x_apart, p, diagonal + 1, apart, x, row + x_apart, x_apart, 1, count - 1 - i, columns)
    local pivot = p[diagonal]
    for j = row, row + columns - 1 do x[j] = x[j] / pivot end
  end
end

-- Eliminates `count` columns of a panel one by one, the greatest pivot first. Below the diagonal stay the factors of
-- rows. `rows[i]` becomes the row that i has changed places with. Gives whether every pivot is other than 0.
local function eliminate_few(panel, n, from, count, rows)
  local p, width, first, whole = panel.p, panel.width, panel.first, true
  for column = from, from + count - 1 do
    local k = first + column
    local best, most = k, abs(p[k * width + column])
    for i = k + 1, n - 1 do
      local size = abs(p[i * width + column])
      if size > most then best, most = i, size end
    end
    rows[k] = best
    swap_rows(p, width, k, best)
    local pivot, above = p[k * width + column], k * width
    if pivot == 0 then
      whole = false
    else
      local beside = from + count - 1 - column
      for i = k + 1, n - 1 do
        local at = i * width + column
        local factor = p[at] / pivot
        p[at] = factor
        for j = 1, beside do p[at + j] = p[at + j] - factor * p[above + column + j] end
      end
    end
  end
  return whole
end

-- The same by halves: what the left one takes from the right one is a product. S. Toledo, "Locality of reference in LU
-- decomposition with partial pivoting", SIAM Journal on Matrix Analysis and Applications 1997.
local function eliminate_panel(panel, n, from, count, rows)
  if count <= FEW then return eliminate_few(panel, n, from, count, rows) end
  local left = floor(count / 2)
  local right, p, width, k = count - left, panel.p, panel.width, panel.first + from
  local whole = eliminate_panel(panel, n, from, left, rows)
  local beside = k * width + from + left
  solve_lower(p, k * width + from, width, left, p, beside, width, right)
  local below = (k + left) * width
  subtract_product(p, below + from + left, width, p, below + from, width, p, beside, width, n - k - left, left, right)
  return eliminate_panel(panel, n, from + left, right, rows) and whole
end

-- The panels of P a = L U, both triangles in the place of `a`, the order P that its rows have there, the sign of that,
-- and whether `a` is regular.
local function factors_of(a)
  local n, panels, regular = a.shape[0], panels_of(a), true
  local rows, order, sign = {}, {}, 1
  for i = 0, n - 1 do order[i + 1] = i end
  for number, panel in ipairs(panels) do
    local k, width = panel.first, panel.width
    regular = eliminate_panel(panel, n, 0, width, rows) and regular
    for i = k, k + width - 1 do
      local j = rows[i]
      order[i + 1], order[j + 1] = order[j + 1], order[i + 1]
      if i ~= j then sign = -sign end
    end
    for other_number, other in ipairs(panels) do
      if other_number ~= number then
        for i = k, k + width - 1 do swap_rows(other.p, other.width, i, rows[i]) end
      end
      if other_number > number then
        solve_lower(panel.p, k * width, width, width, other.p, k * other.width, other.width, other.width)
        subtract_rows(other, k + width, n - k - width, panel, k)
      end
    end
  end
  return panels, order, sign, regular
end

-- Solves L U x = b for each panel of `b`, in its place. With `from_diagonal` what is above the diagonal of b is 0.
local function substitute(panels, right, n, from_diagonal)
  for _, x in ipairs(right) do
    for _, panel in ipairs(panels) do
      local k, width = panel.first, panel.width
      if not (from_diagonal and k + width <= x.first) then
        solve_lower(panel.p, k * width, width, width, x.p, k * x.width, x.width, x.width)
        subtract_rows(x, k + width, n - k - width, panel, k)
      end
    end
    for i = #panels, 1, -1 do
      local panel = panels[i]
      local k, width = panel.first, panel.width
      solve_upper(panel.p, k * width, width, width, x.p, k * x.width, x.width, x.width)
      subtract_rows(x, 0, k, panel, k)
    end
  end
end

-- A square matrix in double precision, and the dtype of results.
local function square(a, called)
  a = floating(as_array(a, called))
  if a.rank ~= 2 or a.shape[0] ~= a.shape[1] then
    fail("shape_mismatch", called .. " wants a square matrix, got " .. tostring(a.shape))
  end
  return ndarray.cast(a, "float64"), a.dtype
end

local function regular_factors(a, called)
  local panels, order, _, regular = factors_of(a)
  if not regular then fail("invalid_argument", called .. ": the matrix is singular") end
  return panels, core.array(order, "int64")
end

return function(np)
  local linalg = np.linalg

  local solve_signature = signature("np.linalg.solve", { { "a", "any" }, { "b", "any" } })
  --- The x with a x = b, for a square matrix `a` and `b` (n) or (n, columns). Computed in double precision, by
  --- elimination with the greatest pivot of each column; of the dtype that `a` and `b` have together.
  --- @error the matrix is singular
  function linalg.solve(...)
    local given = solve_signature:parse(...)
    local a, dtype = square(given.a, "np.linalg.solve")
    local b, n = floating(as_array(given.b, "np.linalg.solve")), a.shape[0]
    if b.rank < 1 or b.rank > 2 or b.shape[0] ~= n then
      fail("shape_mismatch", ("np.linalg.solve: a is %s, b is %s, wanted (%d) or (%d, columns)"):format(
        tostring(a.shape), tostring(b.shape), n, n))
    end
    dtype = ndarray.promote(dtype, b.dtype)
    if b.nbytes == 0 then return np.zeros(b.shape:table(), dtype) end
    local panels, order = regular_factors(a, "np.linalg.solve")
    local right = panels_of(b:reshape({ n, -1 }):astype("float64"):take(order, 0))
    substitute(panels, right, n)
    return ndarray.cast(joined(right), dtype):reshape(b.shape:table())
  end

  local inv_signature = signature("np.linalg.inv", { { "a", "any" } })
  --- The inverse of a square matrix, computed as np.linalg.solve computes.
  --- @error the matrix is singular
  function linalg.inv(...)
    local a, dtype = square(inv_signature:parse(...).a, "np.linalg.inv")
    local n = a.shape[0]
    if n == 0 then return np.zeros({ 0, 0 }, dtype) end
    local panels, order = regular_factors(a, "np.linalg.inv")
    local right = panels_of(np.eye(n, "float64"))
    substitute(panels, right, n, true)
    -- That is the inverse of the matrix with its rows in order, which has the columns in that order.
    return ndarray.cast(joined(right):take(np.argsort(order), 1), dtype)
  end

  local det_signature = signature("np.linalg.det", { { "a", "any" } })
  --- The determinant of a square matrix.
  --- @return number
  function linalg.det(...)
    local panels, _, product = factors_of((square(det_signature:parse(...).a, "np.linalg.det")))
    for _, panel in ipairs(panels) do
      for i = 0, panel.width - 1 do product = product * panel.p[(panel.first + i) * panel.width + i] end
    end
    return product
  end

  local slogdet_signature = signature("np.linalg.slogdet", { { "a", "any" } })
  --- The sign of the determinant of a square matrix, and the logarithm of its size, where the determinant itself may be
  --- too large or too small for a number: `local sign, log_size = np.linalg.slogdet(a)`. Of a singular matrix 0, -inf.
  --- @return number, number
  function linalg.slogdet(...)
    local panels, _, sign = factors_of((square(slogdet_signature:parse(...).a, "np.linalg.slogdet")))
    local sum = 0
    for _, panel in ipairs(panels) do
      for i = 0, panel.width - 1 do
        local pivot = panel.p[(panel.first + i) * panel.width + i]
        sign = pivot < 0 and -sign or pivot == 0 and 0 or sign
        sum = sum + math.log(abs(pivot))
      end
    end
    return sign, sum
  end
end
