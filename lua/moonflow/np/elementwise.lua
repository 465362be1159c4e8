--- The functions of flow.np that go element by element: of one array, of two that broadcast, of three.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"

local evaluate, cast, floating, as_array, is_array =
  ndarray.evaluate, ndarray.cast, ndarray.floating, ndarray.as_array, ndarray.is_array
local signature = arguments.signature

-- ---- of one array -------------------------------------------------------------------------------------------------
-- These and those of two take their arguments by position alone, and what is given beyond them would be lost without a
-- word: the third array of a maximum, the base of a logarithm, NumPy's `out`.

local function elementwise(name, apply)
  local one = signature("np." .. name,
    { { "x", "any", text = "an array, or a table; of a number the result is one, in double precision" } })
  np[name] = function(x, ...)
    if ... ~= nil then one:too_many(1 + select("#", ...)) end
    if type(x) == "number" then return apply(core.array(x, "float64", {})):item() end
    return apply(as_array(x, "np." .. name))
  end
end

-- By the op of that name, of integers in float64.
local function by_op(name, op)
  elementwise(name, function(a) return (evaluate(op or name, { floating(a) }, {})) end)
end

--- e^x. Integers give float64.
by_op("exp")
--- e^x - 1, exact near 0. Integers give float64.
by_op("expm1")
--- The natural logarithm: -inf of 0, NaN below. Integers give float64.
by_op("log")
--- log(1 + x), exact near 0. Integers give float64.
by_op("log1p")
--- The square root: NaN below 0. Integers give float64.
by_op("sqrt")
--- 1 / x. Integers give float64, unlike NumPy's.
by_op("reciprocal")
--- The sine of an angle in radians. Integers give float64.
by_op("sin")
--- The cosine of an angle in radians. Integers give float64.
by_op("cos")
--- The tangent of an angle in radians. Integers give float64.
by_op("tan")
--- The angle in [-pi/2, pi/2] whose sine is x: NaN outside [-1, 1]. Integers give float64.
by_op("arcsin", "asin")
--- The angle in [0, pi] whose cosine is x: NaN outside [-1, 1]. Integers give float64.
by_op("arccos", "acos")
--- The angle in [-pi/2, pi/2] whose tangent is x; np.arctan2 knows the quadrant. Integers give float64.
by_op("arctan", "atan")
--- (e^x - e^-x) / 2. Integers give float64.
by_op("sinh")
--- (e^x + e^-x) / 2. Integers give float64.
by_op("cosh")
--- sinh(x) / cosh(x), in [-1, 1]. Integers give float64.
by_op("tanh")
--- The number whose sinh is x: log(x + sqrt(x^2 + 1)). Integers give float64.
by_op("arcsinh", "asinh")
--- The number of at least 0 whose cosh is x: NaN below 1. Integers give float64.
by_op("arccosh", "acosh")
--- The number whose tanh is x: NaN outside [-1, 1]. Integers give float64.
by_op("arctanh", "atanh")

-- Integers are whole already.
local function whole(name)
  elementwise(name, function(a) return dtypes.floating[a.dtype] and evaluate(name, { a }, {}) or a:copy() end)
end
--- The greatest whole number of at most x, in x's dtype.
whole("floor")
--- The least whole number of at least x, in x's dtype.
whole("ceil")
--- The nearest whole number, of halves the even one, in x's dtype.
whole("rint")
--- The nearest whole number towards 0, in x's dtype.
whole("trunc")

--- 1 above 0, -1 below, 0 of 0 and NaN of NaN, in x's dtype.
elementwise("sign", function(a)
  return np.where(a:eq(a), cast((evaluate("sign", { floating(a) }, {})), a.dtype), a)
end)
--- |x|, in x's dtype.
elementwise("abs", function(a) return (evaluate("abs", { a }, {})) end)
--- |x|, in x's dtype.
np.absolute = np.abs
--- -x, in x's dtype.
elementwise("negative", function(a) return -a end)
--- x * x, in x's dtype.
elementwise("square", function(a) return a * a end)
--- 1 where x is NaN, else 0, int8. Of a number 0 or 1, and 0 is true in Lua.
elementwise("isnan", function(a) return a:ne(a) end)
--- 1 where x is neither infinite nor NaN, else 0, int8. Of a number 0 or 1, and 0 is true in Lua.
elementwise("isfinite", function(a) return dtypes.floating[a.dtype] and evaluate("isfinite", { a }, {}) or a:eq(a) end)
--- 1 where x is inf or -inf, else 0, int8. Of a number 0 or 1, and 0 is true in Lua.
elementwise("isinf", function(a) return dtypes.floating[a.dtype] and evaluate("isinf", { a }, {}) or a:ne(a) end)
--- 1 where x is 0, else 0, int8. Of a number 0 or 1, and 0 is true in Lua.
elementwise("logical_not", function(a) return a:eq(0) end)
--- Degrees as radians: x * pi / 180. Integers give float64.
elementwise("deg2rad", function(a) return floating(a) * (math.pi / 180) end)
--- Radians as degrees: x * 180 / pi. Integers give float64.
elementwise("rad2deg", function(a) return floating(a) * (180 / math.pi) end)

--- 2^x. Integers give float64.
by_op("exp2")
--- The logarithm to base 2: -inf of 0, NaN below. Integers give float64.
by_op("log2")
--- The logarithm to base 10: -inf of 0, NaN below. Integers give float64.
by_op("log10")
--- The number whose third power is x, of x's sign. Integers give float64.
by_op("cbrt")
--- sin(pi x) / (pi x), and 1 of 0. Integers give float64.
elementwise("sinc", function(a)
  a = floating(a)
  local angle = (dtypes.narrow[a.dtype] and cast(a, "float32") or a) * math.pi
  return cast(np.where(angle:eq(0), 1, np.sin(angle) / np.where(angle:eq(0), 1, angle)), a.dtype)
end)

local GREATEST = { float32 = 2 ^ 128 - 2 ^ 104, float64 = 1.7976931348623157e308, bfloat16 = 2 ^ 128 - 2 ^ 120,
                   float16 = 65504 }
local number_signature = signature("np.nan_to_num",
  { { "x", "any" }, { "nan", "number", 0 }, { "posinf", "number?" }, { "neginf", "number?" } })
--- With `nan` in place of what is not a number, and in place of infinities `posinf` and `neginf`, or else the greatest
--- and least number of the dtype. Of a number a number.
--- @return any
function np.nan_to_num(...)
  local given = number_signature:parse(...)
  local x = as_array(given.x, "np.nan_to_num", type(given.x) == "number" and "float64" or nil)
  local most = GREATEST[x.dtype]
  if not most then return x:copy() end
  x = np.where(np.isnan(x), given.nan, x)
  x = np.where(x:eq(math.huge), given.posinf or most, x)
  x = np.where(x:eq(-math.huge), given.neginf or -most, x)
  return type(given.x) == "number" and x:item() or x
end

local round_signature = signature("np.round", { { "x", "any" }, { "decimals", "integer", 0 } })
--- Rounded to `decimals` places, halves to even; below 0 to tens, hundreds and so on. Integers stay integers.
function np.round(...)
  local given = round_signature:parse(...)
  local x, decimals = given.x, given.decimals
  if decimals == 0 then return np.rint(x) end
  if type(x) ~= "number" then x = as_array(x, "np.round") end
  if decimals < 0 then
    local rounded = np.rint(x / 10 ^ -decimals) * 10 ^ -decimals
    return type(x) == "number" and rounded or cast(rounded, x.dtype)
  end
  if type(x) ~= "number" and not dtypes.floating[x.dtype] then return x:copy() end
  return np.rint(x * 10 ^ decimals) / 10 ^ decimals
end

-- ---- of two arrays ------------------------------------------------------------------------------------------------

-- `of_tables` is the dtype that two tables are read in.
local function pairwise(name, compute, of_tables)
  local called = "np." .. name
  local two = signature(called, {
    { "a", "any", text = "an array, a table or a number; of two numbers the result is one, in double precision" },
    { "b", "any", text = "likewise; the two broadcast, and their dtypes meet as under the operators" },
  })
  np[name] = function(a, b, ...)
    if ... ~= nil then two:too_many(2 + select("#", ...)) end
    if type(a) == "number" and type(b) == "number" then
      return compute(core.array(a, "float64", {}), core.array(b, "float64", {})):item()
    end
    -- One of the two becomes an array, so that dtypes meet as they do in the operators.
    if not is_array(a) and (type(a) ~= "number" or not is_array(b)) then
      a = as_array(a, called, is_array(b) and b.dtype or of_tables)
    end
    if type(b) ~= "number" then b = as_array(b, called, is_array(a) and a.dtype) end
    return compute(a, b, called)
  end
end

-- By the operator of arrays that has this op.
local function by_operator(name, op)
  pairwise(name, function(a, b, called) return ndarray.binary(op or name, a, b, called) end)
end
--- a + b.
by_operator("add")
--- a - b.
by_operator("subtract")
--- a * b.
by_operator("multiply")
--- a / b. Integers give float64.
pairwise("divide", ndarray.divide)
--- The greatest whole number of at most a / b; of integers divided by 0 it is 0.
by_operator("floor_divide", "floordiv")
--- a - b * floor(a / b), which has the sign of b; of integers divided by 0 it is 0.
by_operator("mod")
--- a^b. Integers stay integers where b is one whole number from 0 on, and else give float64.
pairwise("power", ndarray.pow)
--- The greater of a and b; NaN where either is.
by_operator("maximum")
--- The lesser of a and b; NaN where either is.
by_operator("minimum")
-- By the op of that name, of integers in float64.
local function of_floats(name, op)
  pairwise(name, function(a, b, called)
    a, b = ndarray.operands(a, b, called)
    return (evaluate(op or name, { floating(a), floating(b) }, {}, called))
  end)
end
--- The angle in [-pi, pi] of the point (b, a), whose tangent is a / b. Integers give float64.
of_floats("arctan2", "atan2")
--- |a| with the sign of b, also of one that is 0. Integers give float64.
of_floats("copysign")
--- The length of the vector (a, b), sqrt(a^2 + b^2), element by element.
of_floats("hypot")
--- log(exp(a) + exp(b)), element by element, also where exp(a) is too large or too small for a number.
of_floats("logaddexp")
--- What is left of a when it is divided by b, with the sign of a, as math.fmod has it; np.mod has that of b.
by_operator("fmod")
--- The greater of a and b, of which a NaN is none; np.maximum gives NaN where either is.
by_operator("fmax")
--- The lesser of a and b, of which a NaN is none; np.minimum gives NaN where either is.
by_operator("fmin")
--- 0 where a is below 0, 1 where it is above, and b where it is 0. Integers give float64.
pairwise("heaviside", function(a, b)
  a, b = ndarray.operands(a, b, "np.heaviside")
  a = floating(a)
  return np.where(a:eq(0), b, np.where(np.isnan(a), a, cast(a:gt(0), a.dtype)))
end)

local function comparison(name)
  pairwise(name, function(a, b, called) return ndarray.compare(ndarray.comparisons[name], a, b, called) end, "float64")
end
--- 1 where a == b, else 0, int8. Of two numbers 0 or 1, and 0 is true in Lua.
comparison("eq")
--- 1 where a is not b, else 0, int8. Of two numbers 0 or 1, and 0 is true in Lua.
comparison("ne")
--- 1 where a < b, else 0, int8. Of two numbers 0 or 1, and 0 is true in Lua.
comparison("lt")
--- 1 where a <= b, else 0, int8. Of two numbers 0 or 1, and 0 is true in Lua.
comparison("le")
--- 1 where a > b, else 0, int8. Of two numbers 0 or 1, and 0 is true in Lua.
comparison("gt")
--- 1 where a >= b, else 0, int8. Of two numbers 0 or 1, and 0 is true in Lua.
comparison("ge")
--- np.eq by its long name: 1 where a == b, else 0, int8.
np.equal = np.eq
--- np.ne by its long name: 1 where a is not b, else 0, int8.
np.not_equal = np.ne
--- np.lt by its long name: 1 where a < b, else 0, int8.
np.less = np.lt
--- np.le by its long name: 1 where a <= b, else 0, int8.
np.less_equal = np.le
--- np.gt by its long name: 1 where a > b, else 0, int8.
np.greater = np.gt
--- np.ge by its long name: 1 where a >= b, else 0, int8.
np.greater_equal = np.ge
--- 1 where neither a nor b is 0, else 0, int8.
by_operator("logical_and")
--- 1 where a or b is not 0, else 0, int8.
by_operator("logical_or")
--- 1 where just one of a and b is not 0, else 0, int8.
pairwise("logical_xor", function(a, b)
  a, b = ndarray.operands(a, b, "np.logical_xor")
  return a:ne(0):ne(b:ne(0))
end)

-- ---- of three -----------------------------------------------------------------------------------------------------

local where_signature = signature("np.where", { { "condition", "any" }, { "x", "any?" }, { "y", "any?" } })
--- `x` where `condition` is not 0, else `y`; the three broadcast. Of a condition alone the places where it is not 0, an
--- array for each axis, as np.nonzero gives them.
--- @return any
function np.where(condition, x, y, ...)
  if ... ~= nil then where_signature:too_many(3 + select("#", ...)) end
  if x == nil and y == nil then return np.nonzero(condition) end
  condition = ndarray.exact(condition, "np.where")
  if condition.dtype ~= "int8" then condition = condition:ne(0) end
  if not is_array(x) and not is_array(y) then x = as_array(x, "np.where") end
  x, y = ndarray.operands(x, y, "np.where")
  return (evaluate("where", { condition, x, y }, {}, "np.where"))
end

local clip_signature = signature("np.clip", { { "a", "any" }, { "a_min", "any?" }, { "a_max", "any?" } })
--- Elements below `a_min` become `a_min`, those above `a_max` become `a_max`; either may be nil, a number or an array.
function np.clip(...)
  local given = clip_signature:parse(...)
  local a, low, high = given.a, given.a_min, given.a_max
  if low == nil and high == nil then return type(a) == "number" and a or as_array(a, "np.clip"):copy() end
  if is_array(a) and dtypes.floating[a.dtype] and type(low) == "number" and type(high) == "number" and low <= high then
    return (evaluate("clip_by_value", { a }, { min = low, max = high }, "np.clip"))
  end
  local function limit(x) return type(x) == "number" and x or as_array(x, "np.clip", is_array(a) and a.dtype) end
  if low ~= nil then a = np.maximum(a, limit(low)) end
  return high ~= nil and np.minimum(a, limit(high)) or a
end

