--- The file of a log, metrics.jsonl, and how it is written: each line by one write of the system, so that whoever reads
-- while it grows, or after its process was killed, finds whole lines. What cannot be written does not stop a training:
-- the log sink is told once.
--
-- A line with a `kind` is a run (the first one, and one more wherever a run goes on), a histogram, images or a job. A
-- line without is a row of numbers: its step, the seconds since its run began, and what the script has written.

local core = require "moonflow.core"
local answer = require "moonflow.answer"
local arguments = require "moonflow.arguments"
local drawing = require "moonflow.drawing"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np"
local random_seed = require "moonflow.random_seed"
local session = require "moonflow.session"

local huge = math.huge

local log_file = {}

local kBins = 32            -- of a histogram
local kMostImages = 64      -- on one sheet
local kLongestName = 60     -- bytes; the name of a file holds three for each that is no letter

local reserved = { kind = true, seconds = true, not_finite = true }

local Log = { kind = "log" }
Log.__index = Log
arguments.publish("Log", "log", Log, "write histogram histogram_of images job close")
answer(Log, "a log")

-- ---- lines --------------------------------------------------------------------------------------------------------

-- Nine digits tell all float32 apart, and 17 all float64. JSON has no word for what is not finite.
local function number_text(x)
  if x - x ~= 0 then return "null" end
  if x % 1 == 0 and x >= -2 ^ 53 and x <= 2 ^ 53 then return ("%.0f"):format(x) end
  local short = ("%.9g"):format(x)
  if tonumber(short) == x or core.array(x, "float32"):item() == x then return short end
  return ("%.17g"):format(x)
end

local function rounded(x) return tonumber(number_text(x)) end

-- '{"step":3,"seconds":1.25' and the fields of `rest`, if there are any.
local function line_of(head, rest)
  return "{" .. head .. (rest == "{}" and "" or ",") .. rest:sub(2) .. "\n"
end

local function time_text(self, step)
  return (step and '"step":' .. number_text(step) .. "," or "") .. ('"seconds":%.3f'):format(core.clock() - self.start)
end

-- The command line as a shell would take it; nil in a host.
local function command_text()
  local given = rawget(_G, "arg")
  if type(given) ~= "table" then return nil end
  local first, words = 0, {}
  while given[first - 1] do first = first - 1 end
  while given[first] do
    local word = tostring(given[first])
    words[#words + 1] = word:find("^[%w_./=:@%%+-]+$") and word or "'" .. word:gsub("'", "'\\''") .. "'"
    first = first + 1
  end
  return #words > 0 and table.concat(words, " ") or nil
end

-- Made with the first line and not when the log is opened: until then a script may set its seed, or load it.
local function run_line(self)
  local device = session.handle():device()
  return '{"kind":"run","format":1,' .. core.json_write({
    name = self.name, command = command_text(), config = self.config, device = device,
    moonflow = core.version, seed = random_seed.value(), threads = tonumber(device:match("(%d+) threads?")),
    time = self.time,
  }):sub(2) .. "\n"
end

-- A file that is new, because the script's one was moved away or emptied meanwhile, begins as that did.
local function append(self, line)
  local head = self.head or run_line(self)
  local text = (self.torn and "\n" or "") .. (self.head and "" or head) .. line
  local fine, problem = pcall(core.text_append, self.file, text, self.head or nil)
  if fine then
    self.head, self.torn = head, false
    return
  end
  if not errors.is_error(problem) then error(problem, 0) end
  if not self.warned then
    session.log("moonflow: the log of the run is not whole: " .. problem.message)
  end
  self.warned, self.torn = true, true
end

-- ---- opening ------------------------------------------------------------------------------------------------------

local kEnd = 2 ^ 16  -- bytes that are looked at first for the last row

-- The last step of the log that is there, if it has one, its size, and that without the line at its end that a kill has
-- torn; nothing where there is no log. Its rows may be those of a year, so it is read from its end on.
local function earlier(file)
  local last = kEnd
  while true do
    local fine, text, size = pcall(core.text_read, file, last)
    if not fine then
      if errors.is_error(text) and text.code == "not_found" then return nil end
      error(text, 0)
    end
    local whole = text:match("^.*\n") or ""
    local step = whole:match('.*\n{[^\n]*"step":(%d+)')
    if step then return tonumber(step), size, size - #text + #whole end
    if #text == size then return -1, size, #whole end
    last = 16 * last
  end
end

--- Opens a log. `given` is what flow.log.open was given, `time` now, `remove` os.remove.
function log_file.open(given, time, remove)
  local path = given.path:gsub("(.)/+$", "%1")
  local file = path .. "/metrics.jsonl"
  if given.overwrite and given.append then
    errors.raise("invalid_argument", "flow.log.open: either overwrite or append")
  end
  local step, size, whole = earlier(file)
  if step and not given.overwrite and not given.append then
    errors.raise("io", "flow.log.open: '" .. path .. "' has the log of a run; { overwrite = true } replaces it, "
      .. "{ append = true } goes on in it")
  end
  local self = setmetatable({
    path = path, file = file, name = path:match("[^/]+$") or path, time = time, start = core.clock(),
    config = given.config, step = -1, head = false, torn = false, warned = false, closed = false,
    waiting = {},
  }, Log)
  if given.config then
    local fine, problem = pcall(core.json_write, given.config)
    if not fine then
      if not errors.is_error(problem) then error(problem, 0) end
      local why = problem.message:gsub("^value: ", "")
      errors.raise(problem.code, "flow.log.open: config cannot be kept as JSON: " .. why)
    end
  end
  core.make_directory(path)
  if step and given.append then
    if whole < size then core.text_cut(file, whole) end
    self.step = step
  else
    core.text_write(file, "")
    for _, name in ipairs(core.list_directory(path .. "/images") or {}) do
      if name:find("^[%w_%%-]+%-%d+%.png$") then remove(path .. "/images/" .. name) end
    end
  end
  return self
end

local function check(self, called)
  arguments.check_self(self, Log, called)
  if self.closed then errors.raise("wrong_state", called .. ": the log '" .. self.path .. "' is closed") end
end

local function check_step(step, called)
  if type(step) ~= "number" or step < 0 or step % 1 ~= 0 or step > 2 ^ 53 then
    errors.raise("invalid_argument", called .. ": the step must be a whole number from 0 on, got "
      .. arguments.describe(step))
  end
  return step
end

local function check_name(name, called)
  if type(name) ~= "string" or name == "" or #name > kLongestName then
    errors.raise("invalid_argument", called .. ": a name must be a string of 1 to " .. kLongestName .. " bytes, got "
      .. arguments.describe(name))
  end
  return name
end

-- Writes by `put(step)`: at once for a step that was given, else with the row that comes next.
local function at_step(self, what, step, called, put)
  if step then return put(check_step(step, called)) end
  self.waiting[what] = put
end

-- ---- rows of numbers ----------------------------------------------------------------------------------------------

local function number_of(name, value)
  if type(value) == "number" then return value end
  if ndarray.is_array(value) and not value.released and value.shape:count() == 1 then return tonumber(value:item()) end
  errors.raise("invalid_argument", "log:write: '" .. name .. "' must be a number, got " .. arguments.describe(value)
    .. (ndarray.is_array(value) and "; log its mean, array:mean(), or log:histogram(name, array)" or ""))
end

-- What was given without a step is of the row that comes next.
local function write_waiting(self, step)
  for _, name in ipairs(arguments.sorted_keys(self.waiting)) do
    local write = self.waiting[name]
    self.waiting[name] = nil
    write(step)
  end
end

--- Writes a row of numbers: `log:write { step = i, loss = loss:mean(), accuracy = 0.98 }`. NaN and the infinities are
--- written as null, and what they were stands beside them: "not_finite": { "loss": "nan" }.
--- @param values table  numbers, or arrays of one element, by names of your own; `step`, a whole number, is one more
---                      than that of the row before unless it is given
--- @error an array of more elements; a name that the log needs itself (kind, seconds, not_finite); a closed log
function Log:write(values)
  check(self, "log:write")
  if arguments.kind(values) ~= "table" then
    errors.raise("invalid_argument", "log:write wants a table such as { step = i, loss = loss }, got "
      .. arguments.describe(values))
  end
  local names, numbers = {}, {}
  for name, value in pairs(values) do
    if reserved[name] then
      errors.raise("invalid_argument", "log:write: '" .. name .. "' is a word of the log itself; take another name")
    end
    numbers[check_name(name, "log:write")] = number_of(name, value)
    if name ~= "step" then names[#names + 1] = name end
  end
  table.sort(names)
  local step = numbers.step and check_step(numbers.step, "log:write") or self.step + 1
  local fields, strange = {}, {}
  for i, name in ipairs(names) do
    local x = numbers[name]
    fields[i] = core.json_write(name) .. ":" .. number_text(x)
    if x - x ~= 0 then strange[name] = x ~= x and "nan" or x > 0 and "inf" or "-inf" end
  end
  if next(strange) then fields[#fields + 1] = '"not_finite":' .. core.json_write(strange) end
  self.step = step
  append(self, line_of(time_text(self, step), "{" .. table.concat(fields, ",") .. "}"))
  write_waiting(self, step)
end

-- ---- histograms ---------------------------------------------------------------------------------------------------

-- In float64, where no distance of two float32 overflows and none of them vanishes.
local function histogram_record(name, array)
  local all = array:ravel():astype("float64")
  local fine = np.isfinite(all)
  local a = fine:all() and all or np.compress(fine, all)
  local count = #a
  local record = { name = name, count = count, not_finite = #all > count and #all - count or nil }
  if count == 0 then return record end
  local low, high = a:min(), a:max()
  record.mean, record.std = rounded(a:mean()), count > 1 and rounded(a:std()) or 0
  if kBins / (high - low) == huge then low, high = low - 0.5, high + 0.5 end  -- all are the same
  record.low, record.high = rounded(low), rounded(high)
  local places = np.nan_to_num(np.floor((a - low) * (kBins / (high - low))))
  places = np.clip(places, 0, kBins - 1):astype("int64")
  record.counts = np.bincount(places, { minlength = kBins }):totable()
  return record
end

local function put_histogram(self, record, step)
  append(self, line_of('"kind":"histogram",' .. time_text(self, step), core.json_write(record)))
end

local histogram_signature = arguments.signature("log:histogram",
  { { "name", "string" }, { "array", "any" }, { "step", "integer?" } })

--- Writes how the values of an array are distributed: 32 counts between the least and the greatest, mean and standard
--- deviation, and how many values are not finite.
--- @param name string    what it is called
--- @param array ndarray  of any shape and dtype
--- @param step? integer  without one it is of the row that is written next; of several under one name the last
--- @error no array; a closed log
function Log:histogram(...)
  check(self, "log:histogram")
  local given = histogram_signature:parse(...)
  check_name(given.name, "log:histogram")
  local record = histogram_record(given.name, ndarray.as_array(given.array, "log:histogram"))
  at_step(self, "histogram " .. given.name, given.step, "log:histogram", function(step)
    put_histogram(self, record, step)
  end)
end

--- A handler for watches that writes the histogram of what it is given with the next row:
--- `train_job:watch("conv1-weight", log:histogram_of("conv1-weight")):every(100)`.
--- @param name string
--- @return function
function Log:histogram_of(name)
  check(self, "log:histogram_of")
  check_name(name, "log:histogram_of")
  return function(array)
    if self.closed then return end
    self.waiting["histogram " .. name] = function(step) put_histogram(self, histogram_record(name, array), step) end
  end
end

-- ---- images -------------------------------------------------------------------------------------------------------

-- (pictures, channels, height, width), whatever of the usual forms it comes in.
local function pictures_of(array)
  local shape = array.shape
  -- Filters of a layer, which are square, are so narrow, but no pictures.
  if array.rank == 3 and (shape[2] == 3 or shape[2] == 4) and shape[1] > shape[2] then
    errors.raise("shape_mismatch", ("log:images: %s is one colour picture with its channels last, or %d pictures of %d "
      .. "columns; np.expand_dims(it, 0) is the one (with 1 or 3 channels), and np.expand_dims(it, 1) are the others")
      :format(tostring(shape), shape[0], shape[2]))
  end
  if array.rank == 2 then return array:reshape({ 1, 1, shape[0], shape[1] }) end
  if array.rank == 3 then return array:reshape({ shape[0], 1, shape[1], shape[2] }) end
  if array.rank == 4 and (shape[1] == 1 or shape[1] == 3) then return array end
  if array.rank == 4 and (shape[3] == 1 or shape[3] == 3) then return array:transpose({ 0, 3, 1, 2 }) end
  errors.raise("shape_mismatch", "log:images wants (height, width), (pictures, height, width) or (pictures, channels, "
    .. "height, width) with 1 or 3 channels, got " .. tostring(shape))
end

-- As numbers from 0 to 1: bytes by 255, others as they are, or from the least to the greatest where some lie outside.
local function light_of(array)
  if array.dtype == "uint8" then return array:astype("float32") / 255 end
  local light = np.nan_to_num(array:astype("float32"))
  local low, high = light:min(), light:max()
  if low >= 0 and high <= 1 then return light end
  return (light - low) / (high > low and high - low or 1)
end

-- All of them side by side in one picture, (height, width, channels) with how opaque it is as the last channel: nothing
-- shows between them.
local function sheet_of(array)
  local pictures = pictures_of(array)
  if pictures.shape:count() == 0 then
    errors.raise("shape_mismatch", "log:images: there is nothing in " .. tostring(array.shape))
  end
  local count = math.min(pictures.shape[0], kMostImages)
  local light = light_of(pictures:rows(0, count))
  local opaque = np.ones({ count, 1, pictures.shape[2], pictures.shape[3] })
  return np.join_pictures(np.concat({ light, opaque }, 1), { gap = 1, data_format = "NCHW" }), count
end

-- Another file for each name and step, whatever letters the name has.
local function file_name(name, step)
  local safe = name:gsub("[^%w_-]", function(letter) return ("%%%02X"):format(letter:byte()) end)
  return ("images/%s-%.0f.png"):format(safe, step)
end

local function put_images(self, name, sheet, count, step)
  local file = file_name(name, step)
  local fine, problem = pcall(function()
    core.make_directory(self.path .. "/images")
    core.png_write(self.path .. "/" .. file, sheet)
  end)
  if fine then
    local record = { name = name, file = file, count = count, height = sheet.shape[0], width = sheet.shape[1] }
    return append(self, line_of('"kind":"images",' .. time_text(self, step), core.json_write(record)))
  end
  if not errors.is_error(problem) or problem.code ~= "io" then error(problem, 0) end
  session.log("moonflow: log:images: " .. problem.message)
end

local images_signature = arguments.signature("log:images",
  { { "name", "string" }, { "array", "any" }, { "step", "integer?" } })

--- Writes up to 64 pictures side by side, as a PNG file beside the log.
--- Bytes are shown as they are and other numbers from 0 to 1; where some lie outside, as those of a filter do, from the
--- least of all to the greatest.
--- @param name string    what they are called
--- @param array ndarray  (height, width), (pictures, height, width), or (pictures, channels, height, width) with 1 or 3
---                       channels, which may also come last; one colour picture is np.expand_dims(picture, 0)
--- @param step? integer  without one they are of the row that is written next; of several under one name the last
--- @error no array of such a shape; a closed log
function Log:images(...)
  check(self, "log:images")
  local given = images_signature:parse(...)
  local name = check_name(given.name, "log:images")
  local sheet, count = sheet_of(ndarray.as_array(given.array, "log:images"))
  at_step(self, "images " .. name, given.step, "log:images", function(step)
    put_images(self, name, sheet, count, step)
  end)
end

-- ---- jobs, and the end --------------------------------------------------------------------------------------------

--- Writes what job:summary() tells, the graph of the job, and the steps of its plan. Written again, as after a profile,
--- which has measured the steps, it counts in the place of what was written before.
--- @param job Job
--- @error no job; a closed log
function Log:job(job)
  check(self, "log:job")
  if arguments.kind(job) ~= "job" then
    errors.raise("invalid_argument", "log:job wants a job, got " .. arguments.describe(job))
  end
  append(self, line_of('"kind":"job",' .. time_text(self), core.json_write(drawing.record(job))))
end

--- Writes what still waits for a row, and ends the log. What is written is in the file before, so that a script that
--- is killed, or forgets this, loses nothing else.
function Log:close()
  arguments.check_self(self, Log, "log:close")
  if self.closed then return end
  write_waiting(self, math.max(self.step, 0))
  self.closed = true
end

function Log:__tostring()
  return "log '" .. self.path .. "'" .. (self.closed and " (closed)" or "")
end

log_file.Log = Log  -- for what editors are told

return log_file
