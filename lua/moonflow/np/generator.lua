--- The generator of random arrays, which flow.np.random is one of: what all of its draws have in common.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"

local evaluate, as_array = ndarray.evaluate, ndarray.as_array
local signature, flat_list = arguments.signature, arguments.flat_list
local fail = errors.raise

local generator = {}

local Generator = {}
Generator.__index = Generator
generator.Generator = Generator

--- "a generator of seed 7 after 3 draws".
function Generator:__tostring()
  return ("a generator of seed %d after %d draws"):format(self.seed, self.draws)
end

local MOST = 2 ^ 53  -- up to there every whole number is one of Lua's

--- A generator of this seed. `called` is what was given it.
function generator.of_seed(seed, called)
  if not arguments.is_integer(seed) then
    fail("invalid_argument", ("%s wants a whole number as seed, got %s"):format(called, arguments.describe(seed))
      .. (type(seed) == "number" and seed % 1 == 0 and "; up to 2^53 each is one of Lua's" or ""))
  end
  return setmetatable({ seed = seed, draws = 0 }, Generator)
end

-- Draws are counted: the seed and the number of a draw give its values, whatever was drawn before.
-- Without a shape a draw is one number.
function Generator:draw(op, given, attrs, called)
  local seed, step = core.array(self.seed, "int64", {}), core.array(self.draws, "int64", {})
  self.draws = self.draws + 1
  attrs.shape, attrs.dtype, attrs.key = given.shape and flat_list(given.shape) or {}, given.dtype, "np.random"
  local result = evaluate(op, { seed, step }, attrs, called)
  return given.shape and result or result:item()
end

-- The same of one number of the dtype that is not said, which takes no array, and leaves nothing to collect. `draw` is
-- a function of the core, and `a` and `b` are what it is given by.
function Generator:draw_one(draw, a, b)
  local draws = self.draws
  self.draws = draws + 1
  return draw(self.seed, draws, a, b)
end

--- The two numbers that a distribution is given by, where a call asks for one draw of it and all is as usual; else nil,
--- and the signature says what there is to it. Numbers that are left out are `first` and `second`.
function generator.two_numbers(first, second, a, b, shape, ...)
  if shape ~= nil or select("#", ...) > 0 then return nil end
  if a == nil then a = first end
  if b == nil then b = second end
  if type(a) == "number" and type(b) == "number" and a - a == 0 and b - b == 0 then return a, b end
end

--- The same of whole numbers of which there is one from the first on below the second; one alone is the second.
function generator.whole_bounds(low, high, ...)
  if high == nil then low, high = 0, low end
  low, high = generator.two_numbers(nil, nil, low, high, ...)
  if low and low % 1 == 0 and high % 1 == 0 and low >= -MOST and low < high and high <= MOST then return low, high end
end

--- The sizes that a call has asked for, in a list of their own, or these where it has not.
function generator.shape_of(shape, called, otherwise)
  if not shape then return otherwise end
  local sizes = flat_list(shape, called)
  for _, size in ipairs(sizes) do
    if size < 0 or size % 1 ~= 0 then
      fail("invalid_argument", ("%s: a size of the shape is a whole number from 0 on, got %g"):format(called, size))
    end
  end
  return sizes
end
local shape_of = generator.shape_of

-- What a distribution is given by, as float64 arrays where one of them is an array or a list; the shape of the draws is
-- then that of them together, unless another is given. nil where all are numbers.
local function arrays_of(given, names, called)
  local are_numbers, arrays = true, {}
  for _, name in ipairs(names) do are_numbers = are_numbers and type(given[name]) == "number" end
  if are_numbers then return nil end
  for i, name in ipairs(names) do arrays[i] = ndarray.value_for(given[name], "float64", called) end
  local together = arrays[1]
  for i = 2, #arrays do together = ndarray.binary("add", together, arrays[i], called) end
  local shape = shape_of(given.shape, called, together.shape:table())
  for i, array in ipairs(arrays) do
    local fits, spread = pcall(evaluate, "broadcast_to", { array }, { shape = shape }, called)
    if not fits and not (errors.is_error(spread) and spread.code == "shape_mismatch") then error(spread, 0) end
    if not fits then
      fail("shape_mismatch", ("%s: %s is %s, which does not go into draws of shape (%s)"):format(called, names[i],
        tostring(array.shape), table.concat(shape, ", ")))
    end
    arrays[i] = spread
  end
  return arrays, shape
end
generator.arrays_of = arrays_of

local function check_all(array, bad, name, wanted, called, hint)
  if bad:any() then
    fail("invalid_argument", ("%s: %s must be %s, got %g%s"):format(called, name, wanted, array[bad]:ravel()[0],
      hint or ""))
  end
end
generator.check_all = check_all

-- Draws in the dtype that they are asked for in. Counts that an integer dtype does not hold are refused.
local function as_asked(drawn, dtype, called)
  if drawn.dtype == dtype then return drawn end
  if not dtypes.floating[dtype] and drawn.nbytes > 0 then
    local greatest = drawn:max()
    if greatest >= (dtype == "int64" and 2 ^ 63 or dtypes.most[dtype] + 1) then
      fail("out_of_range", ("%s: a draw of %.17g does not fit %s; dtype = flow.%s holds it"):format(called, greatest,
        dtype, greatest < 2 ^ 63 and "int64" or "float64"))
    end
  end
  return ndarray.cast(drawn, dtype)
end

--- Draws of a distribution made of others. `make(shape, ...)` gives them in double precision, or as int64, of what
--- these names are given as, numbers or arrays, and `check` is called with that first. Without a shape one number, or
--- one for each where one of them is an array.
function generator.composed(given, names, called, check, make)
  local each, shape = arrays_of(given, names, called)
  local values = each or {}
  if not each then
    shape = shape_of(given.shape, called, { 1 })
    for i, name in ipairs(names) do values[i] = given[name] end
  end
  check(unpack(values))
  local drawn = make(shape, unpack(values))
  return (each or given.shape) and as_asked(drawn, given.dtype, called) or drawn:item()
end

--- Checks what a distribution is given by, a number or an array of float64: from `least` to `most`, which is `wanted`.
function generator.check_range(value, name, least, most, wanted, called)
  if type(value) ~= "number" then
    check_all(value, 1 - value:ge(least) * value:le(most), name, wanted, called)
  elseif not (value >= least and value <= most) then
    fail("invalid_argument", ("%s: %s must be %s, got %g"):format(called, name, wanted, value))
  end
end

local LEAST, GREATEST = 2 ^ -1074, (2 - 2 ^ -52) * 2 ^ 1023  -- of the finite numbers above 0

function generator.check_above_0(value, name, called)
  generator.check_range(value, name, LEAST, GREATEST, "above 0", called)
end

function generator.check_finite(value, name, called)
  generator.check_range(value, name, -GREATEST, GREATEST, "finite", called)
end

--- Draws of a normal distribution by the mean and the deviation that a call has given, numbers or arrays.
function generator.normal(of, given, called)
  local each, shape = arrays_of(given, { "mean", "stddev" }, called)
  if not each then return of:draw("random_normal", given, { mean = given.mean, stddev = given.stddev }, called) end
  local mean, stddev = unpack(each)
  generator.check_finite(mean, "mean", called)
  check_all(stddev, 1 - stddev:ge(0) * stddev:lt(math.huge), "stddev", "at least 0", called)
  local standard = of:draw("random_normal", { shape = shape, dtype = "float64" }, { mean = 0, stddev = 1 }, called)
  return ndarray.cast(mean + stddev * standard, given.dtype)
end

local get_state_signature = signature("np.random.get_state", {})
--- What the draws to come depend on, int64 (2): the seed and how many draws there have been. Kept beside a checkpoint,
--- it lets a script that is started again go on with the draws that it would have had:
--- `np.save("draws", np.random.get_state())`, and then `np.random.set_state(np.load("draws.npy"))`.
function Generator:get_state(...)
  get_state_signature:parse(...)
  return core.array({ self.seed, self.draws }, "int64")
end

local set_state_signature = signature("np.random.set_state", { { "state", "any" } })
--- Goes on with the draws that followed when `get_state` gave this state, which may be a list of its two numbers.
--- @return nil
function Generator:set_state(...)
  local state = as_array(set_state_signature:parse(...).state, "np.random.set_state", "int64")
  if #state.shape ~= 1 or #state ~= 2 or not arguments.is_integer(state[0])
    or not arguments.is_integer(state[1]) or state[1] < 0 then
    fail("invalid_argument", "np.random.set_state wants what np.random.get_state gives, two whole numbers")
  end
  self.seed, self.draws = state[0], state[1]
end

return generator
