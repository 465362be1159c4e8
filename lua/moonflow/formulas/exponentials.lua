--- exp of matrices, the sum of x^k / k!: flow.linalg.expm and np.linalg.expm. By Padé's quotient of degree 13 of the
--- matrix divided by a power of two, squared as often: N. J. Higham, "The scaling and squaring method for the matrix
--- exponential revisited", SIAM Journal on Matrix Analysis and Applications 2005.
--
-- `tools` computes, by apply(op, inputs, attrs, word).

local core = require "moonflow.core"

local exponentials = {}

-- Up to this norm the quotient is exact to the last bits of float64.
local GREATEST = 5.371920351148152

-- The coefficients of the quotient's numerator; in its denominator every other one is negative.
local COEFFICIENTS = { [0] = 1 }
for k = 1, 13 do COEFFICIENTS[k] = COEFFICIENTS[k - 1] * (14 - k) / (k * (27 - k)) end

--- How often a matrix of that norm, the greatest sum of the sizes in a row, has to be halved. Not at all where nothing
--- helps.
function exponentials.halvings(norm)
  if norm == math.huge then return 0 end
  local count = 0
  while norm > GREATEST * 2 ^ count do count = count + 1 end
  return count
end

--- exp of each matrix of x (..., n, n), halved `most` times at the most: NaN where its norm wants more.
--- @param eye any   (n, n), of the dtype of x
function exponentials.of(tools, x, eye, most)
  local function apply(word, op, inputs, attrs) return tools:apply(op, inputs, attrs, word) end
  local function number(value) return core.array(value, x.dtype) end
  local function product(a, b) return apply("product", "matmul", { a, b }, { precise = true }) end

  local sums = apply("sums", "reduce_sum", { apply("sizes", "abs", { x }) }, { axis = { -1 }, keepdims = true })
  local norm = apply("norm", "reduce_max", { sums }, { axis = { -2 }, keepdims = true })
  local is_over, share = {}, number(1)
  for k = 1, most + 1 do
    is_over[k] = apply("over", "greater", { norm, number(GREATEST * 2 ^ (k - 1)) })
    local less = number(k <= most and 2 ^ -k or 0 / 0)
    share = apply("share", "where", { is_over[k], less, share })
  end
  x = apply("scaled", "multiply", { x, share })

  local powers = { [0] = eye, [2] = product(x, x) }
  powers[4] = product(powers[2], powers[2])
  powers[6] = product(powers[4], powers[2])
  -- c[offset + from] x^from + ... + c[offset + 6] x^6
  local function sum_of(offset, from)
    local sum
    for power = from, 6, 2 do
      local term = apply("term", "multiply", { powers[power], number(COEFFICIENTS[offset + power]) })
      sum = sum and apply("sum", "add", { sum, term }) or term
    end
    return sum
  end
  local function part(first)
    return apply("part", "add", { product(powers[6], sum_of(first + 6, 2)), sum_of(first, 0) })
  end
  local even, odd = part(0), product(x, part(1))
  local result = apply(most > 0 and "quotient" or nil, "linear_solve",
    { apply("denominator", "subtract", { even, odd }), apply("numerator", "add", { even, odd }) })
  for k = most, 1, -1 do
    result = apply(k > 1 and "squared" or nil, "where", { is_over[k], product(result, result), result })
  end
  return result
end

return exponentials
