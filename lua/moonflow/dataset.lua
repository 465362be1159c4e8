-- Data sets in memory that are gone through in batches: flow.data.Dataset and flow.data.batches.

local answer = require "moonflow.answer"
local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local iterator = require "moonflow.iterator"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np"
local session = require "moonflow.session"

local evaluate = ndarray.evaluate
local fail = errors.raise

local dataset = {}

local Dataset = {}
arguments.publish("Dataset", "dataset", Dataset, "batches")
answer(Dataset, "a data set", {
  shuffle = "flow.data.Dataset(arrays, size, { shuffle = true }) takes its rows in random order",
  batch = "set:batches() goes through its batches", map = "a loop over set:batches() changes what it gets",
})

-- A step function that gives the counter and one view (or gathered copy, when shuffled) of each array: of each `of`
-- batches that with the number `own`.
local function batch_steps(arrays, count, size, order, begin, own, of)
  local i, first = begin - 1, (begin * of + own) * size
  return function()
    if first >= count then return nil end
    local rows = math.min(size, count - first)
    local picked = order and order:rows(first, rows)
    local batch = {}
    for k, a in ipairs(arrays) do
      batch[k] = picked and evaluate("gather", { a, picked }, { axis = 0 }) or a:rows(first, rows)
    end
    i, first = i + 1, first + rows + (of - 1) * size
    return i, unpack(batch, 1, #arrays)
  end
end

-- The generator of an order, once per data set, so that every epoch has another one: of a seed, or the shared one of
-- np.random for `shuffle = true`. An order is one draw, so that of an epoch follows from the seed and its number.
local function shuffler(shuffle, what)
  if shuffle == nil or shuffle == false then return nil end
  if shuffle == true then
    return function(n, epoch)
      if epoch then
        fail("invalid_argument", what .. ": orders of np.random have no numbers; give shuffle a seed")
      end
      return np.random.permutation(n)
    end
  end
  if type(shuffle) ~= "number" then
    fail("invalid_argument", what .. ": shuffle must be a seed (a whole number), true or false, got "
      .. arguments.describe(shuffle))
  end
  local rng = np.random.default_rng(shuffle)
  return function(n, epoch)
    rng.draws = epoch or rng.draws
    return rng:permutation(n)
  end
end

local function check_size(size, what)
  if size < 1 then fail("invalid_argument", ("%s: the batch size must be at least 1, got %d"):format(what, size)) end
end

--- Raises where batches of this size do not divide so many examples, and nothing is said of the rest.
function dataset.check_batch(count, size, drop_last, what)
  check_size(size, what)
  local rest = count % size
  if drop_last == nil and rest ~= 0 then
    fail("invalid_argument", ("%s: batches of %d do not divide %d examples; { drop_last = true } leaves out the last "
      .. "%d, { drop_last = false } gives them as a shorter batch"):format(what, size, count, rest))
  end
end

local function share_of(share)
  local rank, size = unpack(share)
  if #share ~= 2 or size < 1 or rank < 0 or rank >= size then
    fail("invalid_argument", "dataset:batches: share must be { rank, size } with rank from 0 to size - 1, got { "
      .. table.concat(share, ", ") .. " }")
  end
  return rank, size
end

local batches_signature = arguments.signature("dataset:batches",
  { { "batch_size", "integer?" }, { "shuffle", "any?" }, { "drop_last", "boolean?" }, { "epoch", "integer?" },
    { "first", "integer", 0 }, { "share", "list?" } })

--- Goes through the data set once: `for i, images, labels in train:batches() do`, i from 0. `#train:batches()` counts.
--- Without shuffling the batches are views of the arrays.
--- @param batch_size? integer  default: the one the data set was made with
--- @param shuffle? integer     a seed: another order in every epoch, the same in every run; true: from np.random
--- @param drop_last? boolean   what to do with a rest that fills no batch: leave it out (true) or give it (false); it
---                             is an error where nothing is said
--- @param epoch? integer       the order of this epoch, from 0, for a script that goes on where another one stopped;
---                             default: the one after the last
--- @param first? integer       the batch to begin with, and so the first i: for a script that goes on within an epoch
--- @param share? integer[]     { rank, size }: of each `size` batches that with the number `rank`, from 0, so that
---                             processes which compute together have as many, and each its own, of one order. What
---                             does not come to all of them is left out
--- @return Batches
function Dataset:batches(...)
  if type(self) ~= "userdata" then arguments.want_colon("dataset:batches") end
  local given = batches_signature:parse(...)
  local size = given.batch_size or self.batch_size
  if not size then
    fail("invalid_argument", "dataset:batches needs a batch size, here or where the data set is made")
  end
  local drop_last = given.drop_last
  if drop_last == nil then drop_last = self.drop_last end
  if drop_last == nil and given.share then drop_last = true end
  dataset.check_batch(self.count, size, drop_last, "dataset:batches")
  local permutation = self.permutation
  if given.shuffle ~= nil then
    permutation = self.by_seed[given.shuffle] or shuffler(given.shuffle, "dataset:batches")
    self.by_seed[given.shuffle] = permutation
  end
  if given.epoch and given.epoch < 0 then
    fail("invalid_argument", ("dataset:batches: the epoch must be at least 0, got %d"):format(given.epoch))
  end

  local own, of = share_of(given.share or { 0, 1 })
  local unit = of * size  -- what comes to all
  local count = (drop_last or of > 1) and self.count - self.count % unit or self.count
  local total = math.ceil(count / unit)
  if total == 0 and self.count > 0 then
    session.log(("moonflow: dataset:batches: %d examples do not fill %s of %d, so %s leaves no batch")
      :format(self.count, of == 1 and "a batch" or of .. " batches", size, of == 1 and "drop_last" or "share"))
  end
  if given.first < 0 or given.first > total then
    fail("out_of_range", ("dataset:batches: there are %d batches, it cannot begin with batch %d")
      :format(total, given.first))
  end
  local order = permutation and permutation(self.count, given.epoch)
  return iterator.new(total - given.first, batch_steps(self.arrays, count, size, order, given.first, own, of))
end

-- Names lead to arrays, so they may hide nothing that a data set has.
local hidden_by_names = { arrays = true, count = true, batch_size = true, drop_last = true, permutation = true,
                          batches = true, by_seed = true }
local function check_names(names, count, what)
  if #names > count then
    fail("invalid_argument", ("%s: there are %d names for %d array%s"):format(what, #names, count,
      count == 1 and "" or "s"))
  end
  for i, name in ipairs(names) do
    if type(name) ~= "string" or hidden_by_names[name] then
      fail("invalid_argument", ("%s: name %d must be a string that a data set has no field of, got %s"):format(what, i,
        arguments.describe(name)))
    end
  end
end

--- A data set of arrays that have been checked.
--- @param names string[]  of the first arrays
--- @param options table   batch_size, shuffle, drop_last, and `what` for errors
function dataset.new(arrays, names, options)
  local fields = setmetatable({
    arrays = arrays,
    count = #arrays[1],
    batch_size = options.batch_size,
    drop_last = options.drop_last,
    permutation = shuffler(options.shuffle, options.what),
    by_seed = {},  -- the generators of orders that batches have asked for: each goes on from epoch to epoch
  }, { __index = Dataset })
  for i, name in ipairs(names) do fields[name] = arrays[i] end

  local instead = "a data set is gone through by its batches: for i, x, y in set:batches() do"
  return iterator.set(fields, fields.count, instead, function()
    local parts = {}
    for i, a in ipairs(arrays) do parts[i] = ("%s: %s %s"):format(names[i] or i, a.dtype, tostring(a.shape)) end
    return ("Dataset(%d examples; %s)"):format(fields.count, table.concat(parts, ", "))
  end)
end

local dataset_signature = arguments.signature("flow.data.Dataset", {
  { "arrays", "entries" }, { "batch_size", "integer?" }, { "shuffle", "any?" }, { "drop_last", "boolean?" },
  { "names", "entries", {} },
})

--- A data set of own arrays with equally many rows: `flow.data.Dataset({ xs, ys }, { batch_size = 32, shuffle = 1 })`.
--- `#set` counts the examples, `set:batches()` goes through them, `set.arrays` holds the arrays and
--- `{ names = { "x", "y" } }` makes them `set.x` and `set.y`. The other options are defaults of `:batches`.
--- @return Dataset
function dataset.Dataset(...)
  local given = dataset_signature:parse(...)
  local what = "flow.data.Dataset"
  for i, a in ipairs(given.arrays) do
    if not ndarray.is_array(a) or a.rank == 0 then
      fail("invalid_argument", ("%s: array %d must be an ndarray with rows, got %s")
        :format(what, i, arguments.describe(a)))
    end
    if #a ~= #given.arrays[1] then
      fail("shape_mismatch", ("%s: array %d has %d rows, array 1 has %d"):format(what, i, #a, #given.arrays[1]))
    end
  end
  if #given.arrays == 0 then fail("invalid_argument", what .. " wants at least one array") end
  check_names(given.names, #given.arrays, what)
  if given.batch_size then check_size(given.batch_size, what) end
  given.what = what
  return dataset.new(given.arrays, given.names, given)
end

--- Batches of own arrays: `for i, x, y in flow.data.batches({ xs, ys }, 32) do`. Options as for `dataset:batches`, but
--- no call knows of the one before it: with a seed `epoch` says which order is meant, and without it it is the first.
--- @return Batches
function dataset.batches(arrays, ...)
  return dataset.Dataset(arrays):batches(...)
end

return dataset
