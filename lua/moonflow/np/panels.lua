--- Matrices of float64 as panels, for the factors of flow.np.linalg.
--
-- A panel is an array of all rows and some columns side by side. What a factor does within one it does by loops; what
-- one panel does to the others is a product of matrices, which the engine computes. So nearly all of the work is the
-- engine's, and between two panels a script can be interrupted. The loops read memory by pointers, counted in elements
-- from the beginning of an array, which LuaJIT turns into code without garbage.

local ndarray = require "moonflow.ndarray"

local cut, evaluate, min = ndarray.cut, ndarray.evaluate, math.min

local panels = {}

-- Columns of a panel. The square of it is in the first cache, and a product is worth a call of the engine.
panels.WIDTH = 64

--- A matrix as panels { array, p = its pointer, first = its first column, width }, copied.
function panels.of(a)
  local list, columns = {}, a.shape[1]
  for first = 0, columns - 1, panels.WIDTH do
    local width = min(panels.WIDTH, columns - first)
    local array = cut(a, 1, { first, first + width })
    list[#list + 1] = { array = array, p = array:ptr(), first = first, width = width }
  end
  return list
end

--- The matrix of at least one panel.
function panels.joined(list)
  local arrays = {}
  for i, panel in ipairs(list) do arrays[i] = panel.array end
  return (evaluate("concat", arrays, { axis = 1 }))
end

--- The product of two matrices, or of the transpose of the first with the second.
function panels.product(a, b, transpose_a)
  return (evaluate("matmul", { a, b }, { transpose_a = transpose_a or false }))
end

--- c -= a b for a part of memory each, which begins at an element and has its rows so far apart.
function panels.subtract_product(c, c_at, c_apart, a, a_at, a_apart, b, b_at, b_apart, rows, inner, columns)
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

--- Takes a product, which is given up then, from the rows of a panel from `row` on.
function panels.subtract(panel, row, product)
  local p, q, at = panel.p, product:ptr(), row * panel.width
  for i = 0, product.shape:count() - 1 do p[at + i] = p[at + i] - q[i] end
  product:release()
end

return panels
