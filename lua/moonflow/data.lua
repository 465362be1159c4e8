-- flow.data: data sets in memory that are gone through in batches, MNIST, and records of OneFlow's files; pictures.lua
-- adds those in files.
-- Real data is never replaced silently: files that were asked for and are missing or bad are errors; synthetic digits
-- are made only when nobody named a folder and none is found, and then one line on the log sink says so.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local digits = require "moonflow.digits"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local iterator = require "moonflow.iterator"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np"
local session = require "moonflow.session"
local io, os = io, os

local evaluate = ndarray.evaluate
local fail = errors.raise

local data = {}

-- ---- data sets and batches ----------------------------------------------------------------------------------------

local Dataset = {}
arguments.publish("Dataset", "set", Dataset, "batches")
arguments.answer(Dataset, "a data set", {
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

local function check_batch(count, size, drop_last, what)
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
  check_batch(self.count, size, drop_last, "dataset:batches")
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

-- A data set is a proxy, so that `#` gives its number of examples.
local function dataset(arrays, names, options)
  local fields = setmetatable({
    arrays = arrays,
    count = #arrays[1],
    batch_size = options.batch_size,
    drop_last = options.drop_last,
    permutation = shuffler(options.shuffle, options.what),
    by_seed = {},  -- the generators of orders that batches have asked for: each goes on from epoch to epoch
  }, { __index = Dataset })
  for i, name in ipairs(names) do fields[name] = arrays[i] end

  local set = newproxy(true)
  local meta = getmetatable(set)
  meta.__index = fields
  meta.uncallable = true
  meta.__call = function()
    fail("invalid_argument", "a data set is gone through by its batches: for i, x, y in set:batches() do")
  end
  meta.__len = function() return fields.count end
  meta.__tostring = function()
    local parts = {}
    for i, a in ipairs(arrays) do parts[i] = ("%s: %s %s"):format(names[i] or i, a.dtype, tostring(a.shape)) end
    return ("Dataset(%d examples; %s)"):format(fields.count, table.concat(parts, ", "))
  end
  return set
end

local dataset_signature = arguments.signature("flow.data.Dataset", {
  { "arrays", "entries" }, { "batch_size", "integer?" }, { "shuffle", "any?" }, { "drop_last", "boolean?" },
  { "names", "entries", {} },
})

--- A data set of own arrays with equally many rows: `flow.data.Dataset({ xs, ys }, { batch_size = 32, shuffle = 1 })`.
--- `#set` counts the examples, `set:batches()` goes through them, `set.arrays` holds the arrays and
--- `{ names = { "x", "y" } }` makes them `set.x` and `set.y`. The other options are defaults of `:batches`.
--- @return Dataset
function data.Dataset(...)
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
  return dataset(given.arrays, given.names, given)
end

--- Batches of own arrays: `for i, x, y in flow.data.batches({ xs, ys }, 32) do`. Options as for `dataset:batches`, but
--- no call knows of the one before it: with a seed `epoch` says which order is meant, and without it it is the first.
--- @return Batches
function data.batches(arrays, ...)
  return data.Dataset(arrays):batches(...)
end

-- ---- MNIST --------------------------------------------------------------------------------------------------------

local SIDE, CLASSES = 28, 10
local WHAT = "flow.data.load_mnist"
local NPZ = "mnist.npz"
local STEMS = {
  train_images = "train-images", train_labels = "train-labels",
  test_images = "t10k-images", test_labels = "t10k-labels",
}
local NPZ_KEYS = { train_images = "x_train", train_labels = "y_train", test_images = "x_test", test_labels = "y_test" }
local PARTS = { "train_images", "train_labels", "test_images", "test_labels" }

local function exists(path)
  local file = io.open(path, "rb")
  if file then file:close() end
  return file ~= nil
end

-- The file of one part in the spellings that are about: dash or dot before "idx", packed or not.
local function idx_file(folder, part)
  local kind = part:find("images") and "idx3" or "idx1"
  for _, mark in ipairs({ "-", "." }) do
    for _, ending in ipairs({ ".gz", "" }) do
      local path = folder .. "/" .. STEMS[part] .. mark .. kind .. "-ubyte" .. ending
      if exists(path) then return path end
    end
  end
  return nil
end

local function holds_mnist(folder)
  if exists(folder .. "/" .. NPZ) then return true end
  for _, part in ipairs(PARTS) do
    if idx_file(folder, part) then return true end
  end
  return false
end

local function first_holding(folders)
  for _, folder in ipairs(folders) do
    if holds_mnist(folder) then return folder end
  end
  return nil
end

-- The folder to read, or nil when nobody named one and none is found. A named one without the files is an error.
local function find_folder(dir)
  local source, folders
  local from_environment = os.getenv("MOONFLOW_DATA")
  if dir then
    source, folders = "the folder given", { dir, dir .. "/mnist" }
  elseif from_environment and from_environment ~= "" then
    source, folders = "MOONFLOW_DATA", { from_environment .. "/mnist", from_environment }
  else
    return first_holding({ "../shared/data/mnist" })
  end
  local folder = first_holding(folders)
  if not folder then
    fail("not_found", ("%s: no MNIST files in '%s' nor in '%s' (%s); wanted %s or %s-idx3-ubyte[.gz] and so on")
      :format(WHAT, folders[1], folders[2], source, NPZ, STEMS.train_images))
  end
  return folder
end

-- The four arrays as they are stored, and the name of each one's file for messages.
local function read_folder(folder)
  local arrays, files = {}, {}
  local packed = folder .. "/" .. NPZ
  if exists(packed) then
    local found = errors.blaming(WHAT, core.npz_read, packed)
    for _, part in ipairs(PARTS) do
      local key = NPZ_KEYS[part]
      if not found[key] then fail("io", ("%s: %s has no array '%s'"):format(WHAT, packed, key)) end
      arrays[part], files[part] = found[key], packed .. " (" .. key .. ")"
    end
  else
    for _, part in ipairs(PARTS) do
      local path = idx_file(folder, part)
      if not path then
        fail("not_found", ("%s: '%s' has no %s-%s-ubyte[.gz], while other MNIST files are there")
          :format(WHAT, folder, STEMS[part], part:find("images") and "idx3" or "idx1"))
      end
      arrays[part], files[part] = errors.blaming(WHAT, core.idx_read, path), path
    end
  end
  return arrays, files
end

local function check_half(images, labels, images_file, labels_file)
  local shape = images.shape
  if images.dtype ~= "uint8" or #shape ~= 3 or shape[1] ~= SIDE or shape[2] ~= SIDE or shape[0] == 0 then
    fail("shape_mismatch", ("%s: %s holds %s %s, wanted uint8 (n, %d, %d)")
      :format(WHAT, images_file, images.dtype, tostring(shape), SIDE, SIDE))
  end
  if dtypes.floating[labels.dtype] or labels.rank ~= 1 then
    fail("shape_mismatch", ("%s: %s holds %s %s, wanted whole numbers of shape (n)")
      :format(WHAT, labels_file, labels.dtype, tostring(labels.shape)))
  end
  if #labels ~= shape[0] then
    fail("shape_mismatch", ("%s: %s holds %d images, but %s holds %d labels")
      :format(WHAT, images_file, shape[0], labels_file, #labels))
  end
  labels = labels:astype("int32")
  local bad = labels:lt(0) + labels:ge(CLASSES)
  if bad:any() then
    local at = bad:argmax()
    fail("out_of_range", ("%s: %s: label %d at position %d is outside [0, %d)")
      :format(WHAT, labels_file, labels[at], at, CLASSES))
  end
  return labels
end

local function synthetic_half(count, seed)
  local pixels, labels = digits.draw(count, seed)
  return core.array(pixels, "uint8", { count, SIDE, SIDE }), core.array(labels, "uint8", { count }):astype("int32")
end

-- Grey levels 0..255 as float32 0..1. What it goes through is as large as the result, so it is released at once.
local function scaled(pixels, nhwc)
  local count = #pixels
  local levels = ndarray.cast(pixels, "float32")
  local result = levels / 255
  levels:release()
  return result:reshape(nhwc and { count, SIDE, SIDE, 1 } or { count, 1, SIDE, SIDE })
end

local mnist_signature = arguments.signature(WHAT, {
  { "train_batch_size", "integer", 100 }, { "test_batch_size", "integer", 100 },
  { "data_format", "string", "NCHW" }, { "dir", "string?" },
  { "shuffle", "any?" }, { "drop_last", "boolean?" },
  { "train_examples", "integer?" }, { "test_examples", "integer?" }, { "synthetic", "any?" },
})
mnist_signature:instead {
  url = "; nothing is downloaded, dir is the folder of the files",
  hash_check = "; nothing is downloaded, dir is the folder of the files",
}

--- MNIST as two data sets: `local train, test = flow.data.load_mnist(100)`.
--- `train:batches()` gives i (from 0), images float32 (batch, 1, 28, 28) with pixel / 255, labels int32 (batch), in the
--- order of the files. `train.images` and `train.labels` are the whole arrays.
--- Reads mnist.npz or the four IDX files (packed or not) of `dir`, else of MOONFLOW_DATA (the folder that holds
--- mnist/), else of ../shared/data/mnist. With none of them it makes synthetic handwritten-like digits, and says so on
--- the log sink.
--- @param train_batch_size? integer  default 100
--- @param test_batch_size? integer   default 100
--- @param data_format? string        "NCHW" or "NHWC" (batch, 28, 28, 1)
--- @param dir? string                the folder with the files
--- @param shuffle? integer           a seed: the training batches come in another order in every epoch
--- @param drop_last? boolean         a rest that fills no batch: left out (true) or a shorter batch (false)
--- @param train_examples? integer    only the first so many; so for test_examples
--- @param synthetic? boolean|integer  synthetic digits in any case; a number is their seed
--- @return Dataset, Dataset
--- @error files missing in a folder that was named; damaged files; counts that differ; a label outside 0..9
function data.load_mnist(...)
  local given = mnist_signature:parse(...)
  if given.data_format ~= "NCHW" and given.data_format ~= "NHWC" then
    fail("invalid_argument", WHAT .. ": data_format must be 'NCHW' or 'NHWC', got '" .. given.data_format .. "'")
  end
  for _, option in ipairs({ "train_examples", "test_examples" }) do
    if given[option] and given[option] < 1 then
      fail("invalid_argument", ("%s: %s must be at least 1, got %d"):format(WHAT, option, given[option]))
    end
  end
  local folder = not given.synthetic and find_folder(given.dir)
  local arrays
  if folder then
    local files
    arrays, files = read_folder(folder)
    for _, half in ipairs({ "train", "test" }) do
      local images, labels = half .. "_images", half .. "_labels"
      arrays[labels] = check_half(arrays[images], arrays[labels], files[images], files[labels])
    end
  else
    local seed = type(given.synthetic) == "number" and given.synthetic or 1
    local train_count, test_count = given.train_examples or 60000, given.test_examples or 10000
    if not given.synthetic then
      session.log(("%s: no MNIST found (no folder given, MOONFLOW_DATA not set, no ../shared/data/mnist); "
        .. "using %d + %d synthetic digits"):format(WHAT, train_count, test_count))
    end
    arrays = {}
    arrays.train_images, arrays.train_labels = synthetic_half(train_count, 2 * seed)
    arrays.test_images, arrays.test_labels = synthetic_half(test_count, 2 * seed + 1)
  end

  local function half(name, batch_size, shuffle)
    local images, labels = arrays[name .. "_images"], arrays[name .. "_labels"]
    local wanted = given[name .. "_examples"]
    if wanted then
      if wanted > #images then
        fail("out_of_range", ("%s: %s_examples is %d, there are %d"):format(WHAT, name, wanted, #images))
      end
      images, labels = images:rows(0, wanted), labels:rows(0, wanted)
    end
    check_batch(#images, batch_size, given.drop_last, WHAT)
    local options = { batch_size = batch_size, shuffle = shuffle, drop_last = given.drop_last, what = WHAT }
    return dataset({ scaled(images, given.data_format == "NHWC"), labels }, { "images", "labels" }, options)
  end
  return half("train", given.train_batch_size, given.shuffle), half("test", given.test_batch_size, nil)
end

-- ---- OFRecord -----------------------------------------------------------------------------------------------------

local ofrecords_signature = arguments.signature("flow.data.ofrecords", { { "paths", "any" } })

--- Goes through the records of OFRecord files, OneFlow's data sets, one after the other:
--- `for i, record in flow.data.ofrecords({ "train/part-0", "train/part-1" }) do`, i from 0.
--- `record.name` is the feature of that name: of numbers an array (count) of float32, float64, int32 or int64, of bytes
--- a string, or a list where there are several. `np.from_string(record.image, { 28, 28 }, "uint8")` makes an array of
--- raw ones.
--- @param paths string|string[]  one file, or several in their order
--- @return iterator
--- @error a file that is missing, cut short or damaged, with the byte where its record begins
function data.ofrecords(...)
  local paths = ofrecords_signature:parse(...).paths
  if type(paths) == "string" then paths = { paths } end
  if type(paths) ~= "table" or #paths == 0 then
    fail("invalid_argument", "flow.data.ofrecords wants a path or a list of paths, got " .. arguments.describe(paths))
  end
  local i, part, offset = -1, 1, 0
  return iterator.new(nil, function()
    while paths[part] do
      local record, next_offset = errors.blaming("flow.data.ofrecords", core.ofrecord_read, paths[part], offset)
      if record then
        i, offset = i + 1, next_offset
        return i, record
      end
      part, offset = part + 1, 0
    end
  end)
end

require "moonflow.pictures" (data)

return data
