--- The systems of linear equations of flow.np.linalg, solve, inv, det and slogdet, and matrix_power, which may need an
-- inverse. By elimination in double precision.
-- A matrix is kept as panels, as panels.lua tells; one is eliminated at a time, by halves.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local panels = require "moonflow.np.panels"
local stacks = require "moonflow.np.stacks"

local as_array, floating = ndarray.as_array, ndarray.floating
local subtract_product, solve_lower, solve_upper = panels.subtract_product, panels.solve_lower, panels.solve_upper
local abs, floor, fail, signature = math.abs, math.floor, errors.raise, arguments.signature

local FEW = 8  -- columns that are eliminated one by one

-- ---- elimination --------------------------------------------------------------------------------------------------

local function swap_rows(p, width, i, j)
  if i == j then return end
  local one, other = i * width, j * width
  for k = 0, width - 1 do p[one + k], p[other + k] = p[other + k], p[one + k] end
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

-- Takes the product of these rows of a panel with as many rows of `other` as it has columns from other rows of that.
local function subtract_part(other, rows, count, panel, from)
  if count == 0 then return end
  panels.subtract(other, rows, panels.product(panel.array:rows(rows, count), other.array:rows(from, panel.width)))
end

-- The panels of P a = L U, both triangles in the place of `a`, the order P that its rows have there, the sign of that,
-- and whether `a` is regular.
local function factors_of(a)
  local n, list, regular = a.shape[0], panels.of(a), true
  local rows, order, sign = {}, {}, 1
  for i = 0, n - 1 do order[i + 1] = i end
  for number, panel in ipairs(list) do
    local k, width = panel.first, panel.width
    regular = eliminate_panel(panel, n, 0, width, rows) and regular
    for i = k, k + width - 1 do
      local j = rows[i]
      order[i + 1], order[j + 1] = order[j + 1], order[i + 1]
      if i ~= j then sign = -sign end
    end
    for other_number, other in ipairs(list) do
      if other_number ~= number then
        for i = k, k + width - 1 do swap_rows(other.p, other.width, i, rows[i]) end
      end
      if other_number > number then
        solve_lower(panel.p, k * width, width, width, other.p, k * other.width, other.width, other.width)
        subtract_part(other, k + width, n - k - width, panel, k)
      end
    end
  end
  return list, order, sign, regular
end

-- Solves L U x = b for each panel of `right`, which is b, in its place. With `from_diagonal` b is 0 above its diagonal.
local function substitute(list, right, n, from_diagonal)
  for _, x in ipairs(right) do
    for _, panel in ipairs(list) do
      local k, width = panel.first, panel.width
      if not (from_diagonal and k + width <= x.first) then
        solve_lower(panel.p, k * width, width, width, x.p, k * x.width, x.width, x.width)
        subtract_part(x, k + width, n - k - width, panel, k)
      end
    end
    for i = #list, 1, -1 do
      local panel = list[i]
      local k, width = panel.first, panel.width
      solve_upper(panel.p, k * width, width, width, x.p, k * x.width, x.width, x.width)
      subtract_part(x, 0, k, panel, k)
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
  local list, order, _, regular = factors_of(a)
  if not regular then fail("invalid_argument", called .. ": the matrix is singular") end
  return list, core.array(order, "int64")
end

-- ---- stacks of small matrices -------------------------------------------------------------------------------------

-- A stack (count, n, n) as double precision of its own, where one panel holds a matrix; nil of any other. Such matrices
-- are eliminated in one array: to make arrays of one takes a hundred times as long as to compute with its numbers.
local function small_stack(a)
  local n = a.shape[1]
  if #a == 0 or n == 0 or n ~= a.shape[2] or n > panels.WIDTH then return nil end
  return a:astype("float64")
end

-- Eliminates each of such a stack in its place: visit(i, p, rows, whole), where the factors of the i-th one are at `p`.
local function eliminate_each(a, visit)
  local n, p, rows = a.shape[1], a:ptr(), {}
  local panel = { first = 0, width = n }
  for i = 0, #a - 1 do
    panel.p = p + i * n * n
    local whole = eliminate_panel(panel, n, 0, n, rows)
    visit(i, panel.p, rows, whole)
  end
end

-- Puts the solutions of each of such a stack in the place of the right sides `x`, (count, n, columns).
local function solve_each(a, x, called)
  local n, columns, q = a.shape[1], x.shape[2], x:ptr()
  eliminate_each(a, function(i, p, rows, whole)
    if not whole then fail("invalid_argument", called .. ": the matrix at " .. i .. " of the stack is singular") end
    local right = q + i * n * columns
    for k = 0, n - 1 do swap_rows(right, columns, k, rows[k]) end
    solve_lower(p, 0, n, n, right, 0, columns, columns)
    solve_upper(p, 0, n, n, right, 0, columns, columns)
  end)
  return x
end

return function(np)
  local linalg = np.linalg

  -- The solutions of a stack of equations.
  local function solutions(a, b)
    local one, other, outer = stacks.along_one(np, a, b)
    local small = other.shape[1] == one.shape[1] and other.nbytes > 0 and small_stack(one)
    if not small then return stacks.each(np, linalg.solve, a, b) end
    local x = solve_each(small, other:astype("float64"), "np.linalg.solve")
    return stacks.spread(ndarray.cast(x, dtypes.promote(floating(a).dtype, floating(b).dtype)), outer)
  end

  local solve_signature = signature("np.linalg.solve", { { "a", "any" }, { "b", "any" } })
  --- The x with a x = b, for a square matrix `a` and `b` (n) or (n, columns). Computed in double precision, by
  --- elimination with the greatest pivot of each column; of the dtype that `a` and `b` have together. Of a stack of
  --- matrices in the last two axes each is solved: `b` is one vector (n) for all, or a stack (..., n, columns).
  --- @error the matrix is singular
  function linalg.solve(...)
    local given = solve_signature:parse(...)
    local a, b = ndarray.both(given.a, given.b, "np.linalg.solve")
    if stacks.is(a) or stacks.is(b) then
      if b.rank ~= 1 then return solutions(a, b) end
      return np.squeeze(solutions(a, b:reshape({ -1, 1 })), -1)
    end
    local dtype, n
    a, dtype = square(a, "np.linalg.solve")
    b, n = floating(b), a.shape[0]
    if b.rank < 1 or b.rank > 2 or b.shape[0] ~= n then
      fail("shape_mismatch", ("np.linalg.solve: a is %s, b is %s, wanted (%d) or (%d, columns)"):format(
        tostring(a.shape), tostring(b.shape), n, n))
    end
    dtype = dtypes.promote(dtype, b.dtype)
    if b.nbytes == 0 then return np.zeros(b.shape:table(), dtype) end
    local list, order = regular_factors(a, "np.linalg.solve")
    local right = panels.of(b:reshape({ n, -1 }):astype("float64"):take(order, 0))
    substitute(list, right, n)
    return ndarray.cast(panels.joined(right), dtype):reshape(b.shape:table())
  end

  local function inverse_of(a, called)
    local n = a.shape[0]
    if n == 0 then return a end
    local list, order = regular_factors(a, called)
    local right = panels.of(np.eye(n, "float64"))
    substitute(list, right, n, true)
    -- That is the inverse of the matrix with its rows in order, which has the columns in that order.
    return panels.joined(right):take(np.argsort(order), 1)
  end

  local inv_signature = signature("np.linalg.inv", { { "a", "any" } })
  --- The inverse of a square matrix, or of each of a stack (..., n, n), computed as np.linalg.solve computes.
  --- @error the matrix is singular
  function linalg.inv(...)
    local given = inv_signature:parse(...)
    if stacks.is(given.a) then
      local one, _, outer = stacks.along_one(np, given.a)
      local small, n = small_stack(one), one.shape[1]
      if not small then return stacks.each(np, linalg.inv, given.a) end
      local eyes = np.broadcast_to(np.eye(n, "float64"), { #one, n, n })
      return stacks.spread(ndarray.cast(solve_each(small, eyes, "np.linalg.inv"), floating(one).dtype), outer)
    end
    local a, dtype = square(given.a, "np.linalg.inv")
    return inverse_of(a, "np.linalg.inv"):astype(dtype)
  end

  -- Of each matrix of a stack numbers of its own dtype: what `of_pivots` gives of the signs of their orders, (count),
  -- and of their pivots, (count, n), or `compute` of one.
  local function numbers_of_each(compute, a, of_pivots)
    local one, _, outer = stacks.along_one(np, a)
    local small, dtype, n = small_stack(one), floating(one).dtype, one.shape[1]
    if not small then return stacks.each(np, compute, a, nil, dtype) end
    local signs, pivots = np.ones({ #one }, "float64"), core.zeros("float64", { #one, n })
    local s, q = signs:ptr(), pivots:ptr()
    eliminate_each(small, function(i, p, rows)
      for k = 0, n - 1 do
        if rows[k] ~= k then s[i] = -s[i] end
        q[i * n + k] = p[k * (n + 1)]
      end
    end)
    local function finished(numbers, ...)
      if numbers then return stacks.spread(ndarray.cast(numbers, dtype), outer), finished(...) end
    end
    return finished(of_pivots(signs, pivots))
  end

  local det_signature = signature("np.linalg.det", { { "a", "any" } })
  --- The determinant of a square matrix, or an array of those of a stack (..., n, n).
  --- @return any
  function linalg.det(...)
    local given = det_signature:parse(...)
    if stacks.is(given.a) then
      return numbers_of_each(linalg.det, given.a, function(signs, pivots) return signs * pivots:prod(1) end)
    end
    local list, _, product = factors_of((square(given.a, "np.linalg.det")))
    for _, panel in ipairs(list) do
      for i = 0, panel.width - 1 do product = product * panel.p[(panel.first + i) * panel.width + i] end
    end
    return product
  end

  local slogdet_signature = signature("np.linalg.slogdet", { { "a", "any" } })
  --- The sign of the determinant of a square matrix, and the logarithm of its size, where the determinant itself may be
  --- too large or too small for a number: `local sign, log_size = np.linalg.slogdet(a)`. Of a singular matrix 0, -inf.
  --- Of a stack (..., n, n) arrays of both.
  --- @return any
  function linalg.slogdet(...)
    local given = slogdet_signature:parse(...)
    if stacks.is(given.a) then
      return numbers_of_each(linalg.slogdet, given.a, function(signs, pivots)
        return signs * np.sign(pivots):prod(1), np.log(np.abs(pivots)):sum(1)
      end)
    end
    local list, _, sign = factors_of((square(given.a, "np.linalg.slogdet")))
    local sum = 0
    for _, panel in ipairs(list) do
      for i = 0, panel.width - 1 do
        local pivot = panel.p[(panel.first + i) * panel.width + i]
        sign = pivot < 0 and -sign or pivot == 0 and 0 or sign
        sum = sum + math.log(abs(pivot))
      end
    end
    return sign, sum
  end

  local power_signature = signature("np.linalg.matrix_power", { { "a", "any" }, { "n", "integer" } })
  --- The square matrix `a` multiplied with itself, n times over; the identity for n = 0, and for negative n the power
  --- of the inverse.
  --- @error n below 0 and a singular matrix
  function linalg.matrix_power(...)
    local given = power_signature:parse(...)
    local a, dtype = square(given.a, "np.linalg.matrix_power")
    local n, result = abs(given.n), np.eye(a.shape[0], "float64")
    if given.n < 0 then a = inverse_of(a, "np.linalg.matrix_power") end
    while n > 0 do
      if n % 2 == 1 then result = panels.product(result, a) end
      n = floor(n / 2)
      if n > 0 then a = panels.product(a, a) end
    end
    return ndarray.cast(result, dtype)
  end
end
