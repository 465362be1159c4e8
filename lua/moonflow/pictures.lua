-- flow.data.Pictures: pictures in files, with labels, that are read in batches while the script does something else.

local core = require "moonflow.core"
local answer = require "moonflow.answer"
local arguments = require "moonflow.arguments"
local dataset = require "moonflow.dataset"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local iterator = require "moonflow.iterator"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np"
local reading = require "moonflow.picture_reading"
local session = require "moonflow.session"

local fail = errors.raise
local WHAT = "flow.data.Pictures"

local Pictures = {}
arguments.publish("Pictures", "pictures", Pictures, "batches split")
answer(Pictures, "a set of pictures", {
  class_to_idx = "set.classes has the names, that of label k at k + 1", samples = "set.paths and set.labels are lists",
  targets = "set.labels has them", imgs = "set.paths and set.labels are lists",
  map = "a loop over set:batches() changes what it gets", transform = "set:batches() crops and mirrors, and the job "
    .. "changes colours",
})

-- ---- folders ------------------------------------------------------------------------------------------------------

local READ = { jpg = true, jpeg = true, jpe = true, jfif = true, png = true }
-- Such as the ._a.jpg that a Mac puts beside a.jpg.
local function is_hidden(name) return name:sub(1, 1) == "." end

-- Adds the paths of all pictures in a folder and below it, and counts the other files by their endings.
local function collect(folder, paths, others)
  local files, folders = errors.blaming(WHAT, core.folder_names, folder)
  for _, name in ipairs(files) do
    local ending = name:match("%.(%w+)$") or ""
    if READ[ending:lower()] and not is_hidden(name) then
      paths[#paths + 1] = folder .. "/" .. name
    elseif not is_hidden(name) then
      others[ending] = (others[ending] or 0) + 1
    end
  end
  for _, name in ipairs(folders) do
    if not is_hidden(name) then collect(folder .. "/" .. name, paths, others) end
  end
end

local function say_others(others)
  local said = {}
  for ending, count in pairs(others) do
    said[#said + 1] = ("%d %s"):format(count, ending == "" and "without an ending" or "." .. ending)
  end
  if #said == 0 then return end
  table.sort(said)
  session.log(("moonflow: %s: only JPEG and PNG files are read; left out: %s"):format(WHAT, table.concat(said, ", ")))
end

-- Paths, a label of each, and the names of the classes: those of the folders, or the ones that are given.
local function read_folder(root, classes)
  root = root:gsub("(.)/+$", "%1")
  local _, folders = errors.blaming(WHAT, core.folder_names, root)
  local names, number_of = classes or {}, {}
  for k, name in ipairs(names) do number_of[name] = k - 1 end
  local paths, labels, others = {}, {}, {}
  for _, name in ipairs(folders) do
    if not is_hidden(name) then
      local before = #paths
      collect(root .. "/" .. name, paths, others)
      if not classes then
        number_of[name] = #names
        names[#names + 1] = name
        if #paths == before then
          fail("not_found", ("%s: folder '%s/%s' has no JPEG or PNG picture, and would be a class"):format(WHAT, root,
            name))
        end
      elseif not number_of[name] and #paths > before then
        fail("not_found", ("%s: folder '%s/%s' is none of the %d classes that are given"):format(WHAT, root, name,
          #classes))
      end
      for i = before + 1, #paths do labels[i] = number_of[name] end
    end
  end
  if #paths == 0 then
    fail("not_found", ("%s: '%s' has no folders with pictures; each folder in it is a class, or give a list of paths "
      .. "and labels"):format(WHAT, root))
  end
  say_others(others)
  return paths, core.array(labels, "int32", { #labels }), names
end

-- ---- sets ---------------------------------------------------------------------------------------------------------

local function pictures_of(paths, labels, classes, masks)
  local numbers = np.arange(#paths, { dtype = "int64" })
  local fields = setmetatable({
    paths = paths, labels = labels, classes = classes, masks = masks, broken = {},
    order = dataset.Dataset({ numbers, labels }),
    epochs = {},  -- the number of the next one, by its seed
  }, { __index = Pictures })
  local instead = "a set of pictures is gone through by its batches: for i, pictures, labels in "
    .. "set:batches { batch_size = 32, size = 224 } do"
  return iterator.set(fields, #paths, instead, function()
    return ("Pictures(%d files%s)"):format(#paths, classes and ("; %d classes"):format(#classes) or "")
  end)
end

local function check_self(self, called)
  if type(self) ~= "userdata" then arguments.want_colon(called) end
end

-- Whole numbers of shape (n), by which sets are split and balanced.
local function are_classes(labels) return labels.rank == 1 and not dtypes.floating[labels.dtype] end

-- The entries of a list at these places, from 0.
local function picked(list, numbers)
  local entries = {}
  for i, number in ipairs(numbers) do entries[i] = list[number + 1] end
  return entries
end

local split_signature = arguments.signature("pictures:split", { { "share", "finite" }, { "seed", "integer", 0 } })

--- Two sets of the pictures, `local train, valid = set:split(0.9, 1)`: of each class so large a share comes to the
--- first, drawn by the seed, the same in every run. Where labels are no classes, of all.
--- @param share number  of the first set, above 0 and below 1
--- @param seed? integer
--- @return Pictures, Pictures
function Pictures:split(...)
  check_self(self, "pictures:split")
  local given = split_signature:parse(...)
  if not (given.share > 0 and given.share < 1) then
    split_signature:fail(": share is above 0 and below 1, got " .. given.share)
  end
  local labels = are_classes(self.labels) and self.labels:totable() or {}
  local members, order = {}, np.random.default_rng(given.seed):permutation(#self):totable()
  for _, number in ipairs(order) do
    local class = labels[number + 1] or 0
    members[class] = members[class] or {}
    table.insert(members[class], number)
  end
  local parts = { {}, {} }
  for _, numbers in pairs(members) do
    local first = math.floor(given.share * #numbers + 0.5)
    for k, number in ipairs(numbers) do table.insert(parts[k <= first and 1 or 2], number) end
  end
  for k, numbers in ipairs(parts) do
    if #numbers == 0 then
      fail("invalid_argument", ("pictures:split: a share of %g of %d pictures leaves none for part %d"):format(
        given.share, #self, k))
    end
    table.sort(numbers)
    parts[k] = pictures_of(picked(self.paths, numbers), self.labels:take(core.array(numbers, "int64", { #numbers }), 0),
      self.classes, self.masks and picked(self.masks, numbers))
  end
  return parts[1], parts[2]
end

local batches_signature = arguments.signature("pictures:batches", {
  { "batch_size", "integer" }, { "size", "list" }, { "shuffle", "any?" }, { "drop_last", "boolean?" },
  { "epoch", "integer?" }, { "first", "integer", 0 }, { "share", "list?" }, { "weights", "any?" },
  { "skip_broken", "boolean", false }, { "workers", "integer?" }, unpack(reading.parameters),
})

-- The chance of each picture: as it is given, or the same for each class.
local function chances_of(self, weights)
  if weights ~= "balanced" then
    if type(weights) == "string" then
      batches_signature:fail((": weights is 'balanced' or a number for each picture, got '%s'"):format(weights))
    end
    weights = ndarray.as_array(weights, "pictures:batches"):astype("float64")
    if weights.rank ~= 1 or #weights ~= #self then
      batches_signature:fail((": weights is %s, wanted (%d), one for each picture"):format(tostring(weights.shape),
        #self))
    end
    if not (weights:min() >= 0 and weights:sum() > 0 and weights:sum() < math.huge) then
      batches_signature:fail(": weights are numbers from 0 on, not all 0")
    end
    return weights / weights:sum()
  end
  if not are_classes(self.labels) then
    batches_signature:fail(": weights = 'balanced' is for labels that are classes, whole numbers of shape (pictures)")
  end
  local count, of, labels = {}, 0, self.labels:totable()
  for _, label in ipairs(labels) do
    if not count[label] then of = of + 1 end
    count[label] = (count[label] or 0) + 1
  end
  for i, label in ipairs(labels) do labels[i] = 1 / (of * count[label]) end
  return core.array(labels, "float64", { #labels })
end

-- The batches of numbers and labels. What is drawn with weights is as many as there are, some twice and some not.
local function order_of(self, given, epoch)
  local options = { batch_size = given.batch_size, drop_last = given.drop_last, first = given.first,
                    share = given.share }
  if given.weights == nil then
    options.shuffle, options.epoch = given.shuffle, epoch
    return self.order:batches(options)
  end
  if type(given.shuffle) ~= "number" then
    batches_signature:fail(": weights draw by a seed; give shuffle one, such as shuffle = 1")
  end
  local rng = np.random.default_rng(given.shuffle)
  rng.draws = epoch
  local numbers = rng:choice(#self, { #self }, { p = chances_of(self, given.weights) })
  return dataset.Dataset({ numbers, self.labels:take(numbers, 0) }):batches(options)
end

-- Which picture of a batch stands in each place: its own, or for one that cannot be read the next that can.
local function places_of(count, broken)
  local places = {}
  for i = 1, count do
    local from = i
    while broken[from] do from = from % count + 1 end
    places[i] = from - 1
  end
  return core.array(places, "int64", { count })
end

-- Says each file once; where none of a batch can be read there is nothing to put in their place.
local function note_broken(self, coming, broken, skips)
  for k = 1, #coming.paths do
    local path = coming.paths[k]
    if broken[k] and not skips then
      fail("io", ("pictures:batches: %s; { skip_broken = true } puts another one of the batch in its place")
        :format(broken[k]))
    elseif broken[k] and not self.broken[path] then
      self.broken[path] = broken[k]
      session.log(("moonflow: pictures:batches: another picture of the batch stands for one that cannot be read: %s")
        :format(broken[k]))
    end
  end
  for k = 1, #coming.paths do
    if not broken[k] then return end
  end
  fail("io", "pictures:batches: none of a batch can be read: " .. broken[1])
end

--- Goes through the set once, `for i, pictures, labels, numbers in set:batches { batch_size = 32, size = 224 } do`: i
--- from 0, pictures uint8 (batch, height, width, channels) as np.load_pictures gives them, their labels, and which they
--- are, so that `set.paths[numbers[k] + 1]` is the file of the one in place k; and of a set that has masks, after these
--- four, the masks, uint8 (batch, height, width), cut, mirrored and resized as their pictures are. The next batch is
--- read by threads of its own while the script works on this one, so there are two in memory and no more. With
--- `shuffle` a seed, the order and all that is drawn follow from it, the epoch and the batch, also where a script goes
--- on; else from np.random.
--- @param batch_size integer
--- @param size table|number   { height, width } of each, or one number for both
--- @param shuffle? integer    as `drop_last`, `epoch`, `first` and `share` those of dataset:batches
--- @param drop_last? boolean
--- @param epoch? integer
--- @param first? integer
--- @param share? integer[]
--- @param weights? ndarray|string  chances by which pictures are drawn, one for each, as many as there are and some
---                            more than once; "balanced": each class as often. It needs a seed in `shuffle`
--- @param skip_broken? boolean  true: another picture of the batch stands for one that cannot be read, with its label
---                            and number; the log says so once, and `set.broken` has what is wrong, by the path.
---                            Default: false, an error
--- @param workers? integer    threads that read, beside the script's own where it waits; default: one less than
---                            there are cores, but 1 at least. 0: nothing is read ahead
--- @param crop? any           as all that follows of np.load_pictures
--- @param aspect? table
--- @param mirror? number
--- @param channels? number
--- @param apply_exif_orientation? boolean
--- @param raw? boolean
--- @return Batches
--- @error a file that is missing, no picture or damaged, with its path
function Pictures:batches(...)
  check_self(self, "pictures:batches")
  local given = batches_signature:parse(...)
  if given.epoch and given.epoch < 0 then
    batches_signature:fail(": the epoch must be at least 0, got " .. given.epoch)
  end
  local manner, workers, seed = reading.manner(given, batches_signature), given.workers, given.shuffle
  if workers and (workers < 0 or workers > 256) then
    batches_signature:fail(": workers is from 0 to 256, got " .. workers)
  end
  local epoch, rng = given.epoch, nil
  if type(seed) == "number" then
    epoch = epoch or self.epochs[seed] or 0
    rng = np.random.default_rng(seed + 1)  -- not the numbers that the order is drawn by
  end
  local order = order_of(self, given, epoch)
  if rng then self.epochs[seed] = epoch + 1 end  -- of a call that is refused none is used up
  local total = given.first + #order
  local function uniform(...)
    if rng then return rng:uniform(...) end
    return np.random.uniform(...)
  end

  local function begin()
    local i, numbers, labels = order()
    if not i then return nil end
    if rng then rng.draws = (epoch * total + i) * reading.most_draws end
    local places = numbers:totable()
    local paths = picked(self.paths, places)
    return { i = i, numbers = numbers, labels = labels, paths = paths,
             pictures = manner:begin(paths, true, uniform, workers, true, self.masks and picked(self.masks, places)) }
  end
  local coming
  return iterator.new(#order, function()
    local this = coming or begin()
    if not this then return nil end
    local pictures, broken, masks = core.pictures_take(this.pictures)
    coming = workers ~= 0 and begin() or nil
    if next(broken) == nil then return this.i, pictures, this.labels, this.numbers, masks end
    note_broken(self, this, broken, given.skip_broken)
    local places = places_of(#this.paths, broken)
    return this.i, pictures:take(places, 0), this.labels:take(places, 0), this.numbers:take(places, 0),
      masks and masks:take(places, 0)
  end)
end

local pictures_signature = arguments.signature(WHAT, {
  { "source", "any" }, { "labels", "any?" }, { "classes", "entries?" }, { "masks", "entries?" },
})

-- A list of paths, when it is one.
local function checked_paths(list, what)
  arguments.check_list(list, WHAT .. ": the list of " .. what .. "s")
  local paths = {}
  for i, path in ipairs(list) do
    if type(path) ~= "string" then
      pictures_signature:fail((": %s %d must be a string, got %s"):format(what, i, arguments.describe(path)))
    end
    paths[i] = path
  end
  return paths
end

local function checked_masks(list, count)
  if not list then return nil end
  local masks = checked_paths(list, "mask")
  if #masks ~= count then
    fail("shape_mismatch", ("%s: there are %d paths, and %d masks"):format(WHAT, count, #masks))
  end
  return masks
end

--- Pictures in files, with a label of each: `local set = flow.data.Pictures("photographs")`. `#set` counts them, and
--- `set:batches { batch_size = 32, size = 224 }` reads them. `set.paths` is a list, `set.labels` an array with as
--- many rows, `set.classes` the list of names.
--- @param source string|table  a folder: each folder in it is a class, in the order of their names, with all JPEG and
---                             PNG files in it and below it, the hidden ones left out; or a list of paths
--- @param labels? ndarray|table  of a list of paths: for each a class, or whatever is wanted of it. A list of whole
---                             numbers is int32
--- @param classes? string[]    the names in the order of their labels, where not those that are found: such as
---                             `train.classes` for a second folder, which may then lack some
--- @param masks? string[]      for each picture the path of a PNG of its size, grey or with a palette, whose numbers
---                             are classes of pixels; where the source is a folder, in the order of `set.paths`
--- @return Pictures
--- @error a folder that is missing, or has no pictures; another number of labels or masks
local function new(...)
  local given = pictures_signature:parse(...)
  local source, labels = given.source, given.labels
  if type(source) == "string" then
    if labels ~= nil then pictures_signature:fail(": labels go with a list of paths; of a folder its folders are") end
    local paths, of_folders, classes = read_folder(source, given.classes)
    return pictures_of(paths, of_folders, classes, checked_masks(given.masks, #paths))
  end
  if type(source) ~= "table" or getmetatable(source) or #source == 0 then
    pictures_signature:fail(": wanted a folder or a list of paths, got "
      .. (type(source) == "table" and next(source) == nil and "an empty list" or arguments.describe(source)))
  end
  local paths = checked_paths(source, "path")
  if labels == nil then labels = np.zeros({ #paths }, "int32") end
  if not ndarray.is_array(labels) then
    labels = np.array(labels, "float64")  -- which holds whole numbers up to 2^53
    local dtype = "float32"
    for _, whole in ipairs { "int64", "int32" } do
      if labels:astype(whole):astype("float64") == labels then dtype = whole end
    end
    labels = labels:astype(dtype)
  end
  if labels.rank == 0 or #labels ~= #paths then
    fail("shape_mismatch", ("%s: there are %d paths, and labels are %s"):format(WHAT, #paths, tostring(labels.shape)))
  end
  return pictures_of(paths, labels, given.classes, checked_masks(given.masks, #paths))
end

return new
