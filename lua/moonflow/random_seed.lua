--- The seed of everything random: what flow.set_seed was given, else what a checkpoint had, else one from the system.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local io, os = io, os

local random_seed = {}

local value             -- known from the first use on
local arrays = {}       -- that hold it, by whose it is
local is_chosen = false  -- by the script
local followers = {}

local function from_system()
  local file = io.open("/dev/urandom", "rb")
  local bytes = file and file:read(6)
  if file then file:close() end
  if not bytes then return os.time() end
  local drawn = 0
  for i = 1, #bytes do drawn = drawn * 256 + bytes:byte(i) end
  return drawn
end

-- Those that would draw alike draw from seeds that are so far apart. Of a million of them no two meet, nor do they meet
-- another seed of 32 bits.
local kApart = 2 ^ 33

--- The seed of the n-th one of those that would draw alike from this one, n above 1.
function random_seed.apart(seed, number)
  return (seed + (number - 1) * kApart) % 2 ^ 53
end

--- The seed in use. With a number that of the n-th one of those that would draw alike; the first has the seed itself.
function random_seed.value(number)
  value = value or from_system()
  if not number or number == 1 then return value end
  return random_seed.apart(value, number)
end

--- The seed in use with all its digits; tostring would give 14.
function random_seed.text()
  return ("%.0f"):format(random_seed.value())
end

--- The same as the feed of jobs.
function random_seed.array(number)
  number = number or 1
  local array = arrays[number]
  if not array then
    array = core.array(random_seed.value(number), "int64")
    arrays[number] = array
  end
  return array
end

--- Sets the seed of everything random: initialisers, dropout, random ops, flow.np.random. Without it the seed differs
--- from process to process. What draws without a step to go by begins anew: np.random, and jobs that do not train.
function random_seed.set(number)
  if not arguments.is_integer(number) then
    errors.raise("invalid_argument", "flow.set_seed wants a whole number below 2^53, got "
      .. arguments.describe(number))
  end
  random_seed.share(number)
  is_chosen = true
end

--- Takes over the seed of another one of the processes that compute together.
function random_seed.share(number)
  value, arrays = number, {}
  for _, follow in ipairs(followers) do follow(number) end
end

--- Takes over the seed of a checkpoint, so that training goes on as if it had not stopped; a chosen seed stays.
function random_seed.adopt(number)
  if arguments.is_integer(number) and not is_chosen then value, arrays = number, {} end
end

--- Calls `follow` with each seed that the script sets, or shares.
function random_seed.on_set(follow)
  followers[#followers + 1] = follow
end

return random_seed
