-- flow.data.load_mnist: MNIST from its files, or digits drawn in its place.
-- Real data is never replaced silently: files that were asked for and are missing or bad are errors; synthetic digits
-- are made only when nobody named a folder and none is found, and then one line on the log sink says so.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local dataset = require "moonflow.dataset"
local digits = require "moonflow.digits"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local session = require "moonflow.session"
local io, os = io, os

local fail = errors.raise

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
--- @param drop_last? boolean         a rest that fills none: left out (true), a shorter batch (false), else an error
--- @param train_examples? integer    only the first so many; so for test_examples
--- @param synthetic? boolean|integer  synthetic digits in any case; a number is their seed
--- @return Dataset, Dataset
--- @error files missing in a folder that was named; damaged files; counts that differ; a label outside 0..9
local function load_mnist(...)
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
    dataset.check_batch(#images, batch_size, given.drop_last, WHAT)
    local options = { batch_size = batch_size, shuffle = shuffle, drop_last = given.drop_last, what = WHAT }
    return dataset.new({ scaled(images, given.data_format == "NHWC"), labels }, { "images", "labels" }, options)
  end
  return half("train", given.train_batch_size, given.shuffle), half("test", given.test_batch_size, nil)
end

return load_mnist
