--- Householder's reflections, of which orthogonal factors of matrices are made, for flow.np.linalg.
-- Those of a panel are applied to the others as one block, by products of the engine.

local core = require "moonflow.core"
local np = require "moonflow.np.functions"
local panels = require "moonflow.np.panels"

local product = panels.product
local abs, max, min, sqrt = math.abs, math.max, math.min, math.sqrt

local reflections = {}

--- A reflection I - tau v v^T, with 1 as the first element of v, that leaves nothing of `count` numbers, which lie
--- `apart` from each other, but the first. That is put in its place and the rest of v in the place of the others.
--- Gives tau.
function reflections.of(p, at, apart, count)
  local most = 0
  for i = 1, count - 1 do most = max(most, abs(p[at + i * apart])) end
  if most == 0 then return 0 end
  most = max(most, abs(p[at]))
  -- In shares of the largest no square is too large or too small, and of numbers with few digits left, as those below
  -- the normal ones, it is a reflection still.
  local head, sum = p[at] / most, 0
  for i = 0, count - 1 do
    local share = p[at + i * apart] / most
    sum = sum + share * share
  end
  local length = (head > 0 and -1 or 1) * sqrt(sum)
  local scale = 1 / (head - length)
  for i = 1, count - 1 do p[at + i * apart] = p[at + i * apart] / most * scale end
  p[at] = length * most
  return (length - head) / length
end

-- Makes the columns of a panel triangular from its diagonal down. Gives the tau of each reflection.
local function reflect_panel(panel, rows)
  local p, first, width, taus = panel.p, panel.first, panel.width, {}
  local sums = core.zeros("float64", { width })
  local s = sums:ptr()
  for c = 0, min(width, rows - first) - 1 do
    local top = (first + c) * width
    local tau = reflections.of(p, top + c, width, rows - first - c)
    taus[c + 1] = tau
    for j = c + 1, width - 1 do s[j] = p[top + j] end
    for i = first + c + 1, rows - 1 do
      local at = i * width
      local v = p[at + c]
      for j = c + 1, width - 1 do s[j] = s[j] + v * p[at + j] end
    end
    for j = c + 1, width - 1 do p[top + j] = p[top + j] - tau * s[j] end
    for i = first + c + 1, rows - 1 do
      local at = i * width
      local v = tau * p[at + c]
      for j = c + 1, width - 1 do p[at + j] = p[at + j] - v * s[j] end
    end
  end
  return taus
end

--- Reflections one after the other as one product, I - V T V^T: R. Schreiber and C. Van Loan, "A storage-efficient WY
--- representation for products of Householder transformations", SIAM Journal on Scientific and Statistical Computing
--- 1989. `v` (rows, count) has the vectors as columns, and is applied to the rows from `first` on.
function reflections.block(v, taus, first)
  local count = #taus
  local products, t = product(v, v, true), core.zeros("float64", { count, count })
  local g, p = products:ptr(), t:ptr()
  for j = 0, count - 1 do
    for i = 0, j - 1 do
      local sum = 0
      for k = i, j - 1 do sum = sum + p[i * count + k] * g[k * count + j] end
      p[i * count + j] = -taus[j + 1] * sum
    end
    p[j * count + j] = taus[j + 1]
  end
  return { v = v, v_transposed = v:transpose(), t = t, t_transposed = t:transpose(), first = first }
end

-- The vectors of a panel's reflections, with their ones, and zeros above them.
local function block_of_panel(panel, rows, taus)
  local first, width, count = panel.first, panel.width, #taus
  local v = core.zeros("float64", { rows - first, count })
  local to, from = v:ptr(), panel.p
  for i = 0, rows - first - 1 do
    for j = 0, min(i, count) - 1 do to[i * count + j] = from[(first + i) * width + j] end
    if i < count then to[i * count + i] = 1 end
  end
  return reflections.block(v, taus, first)
end

-- Applies a block of reflections to a panel, or with the transposed `t` those in the other order.
local function reflect(panel, block, t)
  local part = panel.array:rows(block.first, block.v.shape[0])
  panels.subtract(panel, block.first, product(block.v, product(t, product(block.v_transposed, part))))
end

--- The first columns of the product of blocks, (rows, columns).
function reflections.product(blocks, rows, columns)
  local list = panels.of(np.arange(rows):reshape({ -1, 1 }):eq(np.arange(columns)):astype("float64"))
  for i = #blocks, 1, -1 do
    for _, panel in ipairs(list) do
      -- Before, a column is that of the identity, on whose zeros the block does nothing.
      if panel.first + panel.width > blocks[i].first then reflect(panel, blocks[i], blocks[i].t) end
    end
  end
  return panels.joined(list)
end

--- Q (rows, k) and R (k, columns) of a matrix that has elements, where k is the smaller of its sizes.
function reflections.factors(a)
  local rows, columns = a.shape[0], a.shape[1]
  local k, list, blocks = min(rows, columns), panels.of(a), {}
  for number, panel in ipairs(list) do
    if panel.first >= k then break end
    local block = block_of_panel(panel, rows, reflect_panel(panel, rows))
    blocks[number] = block
    for i = number + 1, #list do reflect(list[i], block, block.t_transposed) end
  end
  return reflections.product(blocks, rows, k), np.triu(panels.joined(list):rows(0, k))
end

-- Applies a reflection, whose vector lies below the 1 at p[at] with its numbers `apart`, to the columns from `first` up
-- to `width` of `count` rows of which q[row] begins the first.
local function reflect_beside(p, at, apart, tau, q, row, width, first, count)
  for j = row + first, row + width - 1 do
    local sum = q[j]
    for i = 1, count - 1 do sum = sum + p[at + i * apart] * q[j + i * width] end
    sum = sum * tau
    q[j] = q[j] - sum
    for i = 1, count - 1 do q[j + i * width] = q[j + i * width] - sum * p[at + i * apart] end
  end
end

--- Q (count, rows, k) and R (count, k, columns) of small matrices (count, rows, columns), one after the other.
function reflections.small_factors(stack)
  local count, rows, columns = stack.shape[0], stack.shape[1], stack.shape[2]
  local k, r = min(rows, columns), stack:copy()
  local q = core.zeros("float64", { count, rows, k })
  local p, o, taus = r:ptr(), q:ptr(), {}
  for m = 0, count - 1 do
    local at, to = m * rows * columns, m * rows * k
    for c = 0, k - 1 do
      local top = at + c * columns
      taus[c + 1] = reflections.of(p, top + c, columns, rows - c)
      reflect_beside(p, top + c, columns, taus[c + 1], p, top, columns, c + 1, rows - c)
    end
    for c = k - 1, 0, -1 do
      o[to + c * k + c] = 1
      reflect_beside(p, at + c * columns + c, columns, taus[c + 1], o, to + c * k, k, c, rows - c)
    end
  end
  return q, np.triu(r:slice({}, { 0, k }, {}))
end

return reflections
