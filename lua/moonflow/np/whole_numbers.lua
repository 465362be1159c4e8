--- The functions of flow.np that only whole numbers have: their bits and their divisors. Two arrays broadcast, and
-- what comes has the dtype that holds both.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"

local cast, evaluate = ndarray.cast, ndarray.evaluate
local signature, fail = arguments.signature, errors.raise

local function check_whole(a, called)
  if dtypes.floating[a.dtype] then
    fail("dtype_mismatch", ("%s is for whole numbers, got %s; :astype(flow.int64) makes them"):format(called, a.dtype))
  end
end

-- The op of that name, of two. Of two numbers it gives one. `check` is called with the second before.
local function of_two(name, check)
  local called = "np." .. name
  local two = signature(called, {
    { "a", "any", text = "whole numbers: an array, a table or a number" }, { "b", "any", text = "likewise" },
  })
  np[name] = function(...)
    local given = two:parse(...)
    local a, b = given.a, given.b
    local is_number = type(a) == "number" and type(b) == "number"
    if not ndarray.holds_arrays(a) and not ndarray.holds_arrays(b) then
      a = errors.blaming(called, core.array, a, "int64", type(a) == "number" and {} or nil)
    end
    a, b = ndarray.both(a, b, called)
    check_whole(a, called)
    check_whole(b, called)
    if check then check(b, called) end
    local dtype = dtypes.promote(a.dtype, b.dtype)
    local out = evaluate(name, { cast(a, dtype), cast(b, dtype) }, nil, called)
    return is_number and out:item() or out
  end
end

-- ---- bits ---------------------------------------------------------------------------------------------------------

--- The bits that are 1 in both: `np.bitwise_and(flags, 4)`. In the dtype that holds both.
of_two("bitwise_and")
--- The bits that are 1 in either. In the dtype that holds both.
of_two("bitwise_or")
--- The bits that are 1 in just one of the two. In the dtype that holds both.
of_two("bitwise_xor")

local function check_shift(places, called)
  if places.nbytes > 0 and (places:min() < 0 or places:max() > 63) then
    fail("out_of_range", called .. ": bits are shifted by 0 to 63 places")
  end
end

--- `a` moved up by `b` bits, a * 2^b, where zeros come in and what goes beyond the dtype is lost.
--- @error a `b` that is not from 0 to 63
of_two("left_shift", check_shift)
--- `a` moved down by `b` bits: the greatest whole number of at most a / 2^b.
--- @error a `b` that is not from 0 to 63
of_two("right_shift", check_shift)

local not_signature = signature("np.bitwise_not", { { "x", "any" } })
--- Each bit the other way round; of numbers with a sign that is -x - 1.
--- @return any
function np.bitwise_not(...)
  local x = not_signature:parse(...).x
  if type(x) == "number" and x % 1 == 0 then return -x - 1 end
  x = ndarray.as_array(x, "np.bitwise_not", type(x) == "table" and "int64" or nil)
  check_whole(x, "np.bitwise_not")
  return cast(-1 - cast(x, "int64"), x.dtype)
end

-- ---- divisors -----------------------------------------------------------------------------------------------------

--- The greatest whole number that divides both; of 0 and x it is |x|. In the dtype that holds both.
of_two("gcd")
--- The least whole number above 0 that both divide, and 0 where one is 0. In the dtype that holds both.
of_two("lcm")
