--- The functions of flow.np that only whole numbers have: their bits and their divisors. Two arrays broadcast, and
-- what comes has the dtype that holds both.

local bit = require "bit"

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"

local cast = ndarray.cast
local signature, fail = arguments.signature, errors.raise

local function check_whole(a, called)
  if dtypes.floating[a.dtype] then
    fail("dtype_mismatch", ("%s is for whole numbers, got %s; :astype(flow.int64) makes them"):format(called, a.dtype))
  end
end

-- A function of two, of which compute(a, b, called) is given int64 arrays of one shape. Of two numbers it gives one.
local function of_two(name, compute)
  local called = "np." .. name
  local two = signature(called, {
    { "a", "any", text = "whole numbers: an array, a table or a number" }, { "b", "any", text = "likewise" },
  })
  np[name] = function(...)
    local given = two:parse(...)
    local a, b = given.a, given.b
    local is_number = type(a) == "number" and type(b) == "number"
    if not ndarray.is_array(a) and not ndarray.is_array(b) then
      a = errors.blaming(called, core.array, a, "int64", type(a) == "number" and {} or nil)
    end
    a, b = ndarray.both(a, b, called)
    check_whole(a, called)
    check_whole(b, called)
    local dtype = dtypes.promote(a.dtype, b.dtype)
    a, b = cast(a, "int64"), cast(b, "int64")
    if a.shape ~= b.shape then
      local zeros = ndarray.binary("add", a * 0, b * 0, called)  -- of the shape to which both broadcast
      a, b = a + zeros, b + zeros
    end
    local out = compute(a, b, called)
    return is_number and out:item() or cast(out, dtype)
  end
end

-- ---- bits ---------------------------------------------------------------------------------------------------------

-- Each array is kept in a local for as long as its pointer is used.
local function combine(op, count, a, b, out)
  for i = 0, count - 1 do out[i] = op(a[i], b[i]) end
end

local function bitwise(op, check)
  return function(a, b, called)
    if check then check(b, called) end
    local out = core.zeros("int64", a.shape:table())
    combine(op, a.shape:count(), a:ptr(), b:ptr(), out:ptr())
    return out
  end
end

--- The bits that are 1 in both: `np.bitwise_and(flags, 4)`. In the dtype that holds both.
of_two("bitwise_and", bitwise(bit.band))
--- The bits that are 1 in either. In the dtype that holds both.
of_two("bitwise_or", bitwise(bit.bor))
--- The bits that are 1 in just one of the two. In the dtype that holds both.
of_two("bitwise_xor", bitwise(bit.bxor))

local function check_shift(places, called)
  if places.nbytes > 0 and (places:min() < 0 or places:max() > 63) then
    fail("out_of_range", called .. ": bits are shifted by 0 to 63 places")
  end
end

--- `a` moved up by `b` bits, a * 2^b, where zeros come in and what goes beyond the dtype is lost.
--- @error a `b` that is not from 0 to 63
of_two("left_shift", bitwise(function(a, places) return bit.lshift(a, tonumber(places)) end, check_shift))
--- `a` moved down by `b` bits: the greatest whole number of at most a / 2^b.
--- @error a `b` that is not from 0 to 63
of_two("right_shift", bitwise(function(a, places) return bit.arshift(a, tonumber(places)) end, check_shift))

local not_signature = signature("np.bitwise_not", { { "x", "any" } })
--- Each bit the other way round; of numbers with a sign that is -x - 1.
--- @return any
function np.bitwise_not(...)
  local x = not_signature:parse(...).x
  if type(x) == "number" then return -x - 1 end
  x = ndarray.as_array(x, "np.bitwise_not")
  check_whole(x, "np.bitwise_not")
  return cast(-1 - cast(x, "int64"), x.dtype)
end

-- ---- divisors -----------------------------------------------------------------------------------------------------

-- By Euclid: what divides a and b divides b and what a leaves when it is divided by b.
local function divisor(a, b)
  a, b = np.abs(a), np.abs(b)
  while b:any() do
    local divides = b:ne(0)
    a, b = np.where(divides, b, a), np.where(divides, a % np.where(divides, b, 1), 0)
  end
  return a
end

--- The greatest whole number that divides both; of 0 and x it is |x|. In the dtype that holds both.
of_two("gcd", divisor)
--- The least whole number above 0 that both divide, and 0 where one is 0. In the dtype that holds both.
of_two("lcm", function(a, b) return np.abs(np.floor_divide(a, np.maximum(divisor(a, b), 1)) * b) end)
