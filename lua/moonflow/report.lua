--- flow.report: reads the logs of runs (log_file.lua writes them) and makes one page of them, which needs nothing
-- beside itself: what it shows is in it as JSON, and the script in it (report_page.lua) draws. So that pages stay
-- small, long curves are thinned here, and of many histograms and pictures only some are taken.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local page = require "moonflow.report_page"

local io = io

local ceil, floor, huge, max, min = math.ceil, math.floor, math.huge, math.max, math.min

local report = {}

local kMostPoints = 600      -- of a curve
local kMostHistograms = 24   -- of one name
local kMostImages = 8        -- of one name
local kDeepest = 3           -- folders below the one given

local GAP = false            -- where a curve has no value; Lua has no null

-- ---- finding the logs ---------------------------------------------------------------------------------------------

-- The names in a folder below that of a log; none where it may not be read, or is no folder.
local function list(folder)
  local fine, names = pcall(core.list_directory, folder)
  if not fine and not errors.is_error(names) then error(names, 0) end
  return fine and names or {}
end

-- Adds the logs in a folder and in those below it to `found`, as { folder, name }.
local function find(folder, name, depth, found)
  local names = name and list(folder) or core.list_directory(folder) or {}
  for _, file in ipairs(names) do
    if file == "metrics.jsonl" then found[#found + 1] = { folder = folder, name = name or folder:match("[^/]+$") } end
  end
  for _, inner in ipairs(depth > 0 and names or {}) do
    find(folder .. "/" .. inner, name and name .. "/" .. inner or inner, depth - 1, found)
  end
end

local function find_all(runs)
  if type(runs) == "string" then runs = { runs } end
  if type(runs) ~= "table" or #runs == 0 then
    errors.raise("invalid_argument", "flow.report wants the folder of a log, or a list of such, got "
      .. arguments.describe(runs))
  end
  local found, folders = {}, {}
  for i, folder in ipairs(runs) do
    if type(folder) ~= "string" or folder == "" then
      errors.raise("invalid_argument", "flow.report wants folders as text, got " .. arguments.describe(folder))
    end
    folders[i] = folder:gsub("(.)/+$", "%1")
    local before = #found
    find(folders[i], nil, kDeepest, found)
    if #found == before then
      errors.raise("not_found", "flow.report: there is no log (metrics.jsonl) in '" .. folder .. "' or below it; "
        .. "flow.log.open writes one")
    end
  end
  local taken = {}
  for _, run in ipairs(found) do taken[run.name] = (taken[run.name] or 0) + 1 end
  for _, run in ipairs(found) do
    if taken[run.name] > 1 then run.name = run.folder end
  end
  return found, folders[1]
end

-- ---- reading one --------------------------------------------------------------------------------------------------

local Run = {}
Run.__index = Run

local function member(all, name, made)
  if not all[name] then all[name] = made end
  return all[name]
end

local function drop_from(rows, step)
  while #rows > 0 and rows[#rows].step >= step do rows[#rows] = nil end
end

-- A run that goes on from a checkpoint does once more what it had done since: what is written then counts.
function Run:forget_from(step)
  for _, kind in ipairs { self.series, self.histograms, self.images } do
    for _, rows in pairs(kind) do drop_from(rows, step) end
  end
end

local function is_number(value) return type(value) == "number" end

-- A row of numbers: each is of the curve of its name.
function Run:take_row(row, seconds)
  local strange = type(row.not_finite) == "table" and row.not_finite or {}
  for name, value in pairs(row) do
    if is_number(value) and name ~= "step" and name ~= "seconds" then
      table.insert(member(self.series, name, {}), { step = row.step, seconds = seconds, value = value })
    end
  end
  for name, what in pairs(strange) do
    table.insert(member(self.series, name, {}), { step = row.step, seconds = seconds, strange = tostring(what) })
  end
end

function Run:take(record)
  if record.kind == "run" then
    self.info = self.info or record
    self.parts, self.seconds_before = self.parts + 1, self.seconds
    return
  end
  local seconds = self.seconds_before + (is_number(record.seconds) and record.seconds or 0)
  self.seconds = max(self.seconds, seconds)
  if record.kind == "job" and record.name and type(record.ops) == "table" then
    if not self.jobs[record.name] then self.job_names[#self.job_names + 1] = record.name end
    self.jobs[record.name] = record
  end
  if not is_number(record.step) then return end
  if self.parts > self.begun then
    self.begun = self.parts
    self:forget_from(record.step)
  end
  self.last_step = record.step
  if record.kind == nil then
    self:take_row(record, seconds)
  elseif record.kind == "histogram" and type(record.name) == "string" then
    table.insert(member(self.histograms, record.name, {}), record)
  elseif record.kind == "images" and type(record.name) == "string" and type(record.file) == "string" then
    table.insert(member(self.images, record.name, {}), record)
  end
end

-- A line that is no JSON is that of a writer that was killed, or whose disk was full.
local function read_run(found)
  local self = setmetatable({ name = found.name, folder = found.folder, parts = 0, begun = 0, seconds = 0,
                              seconds_before = 0, series = {}, histograms = {}, images = {}, jobs = {}, job_names = {},
                              torn = 0 }, Run)
  for line in core.text_read(found.folder .. "/metrics.jsonl"):gmatch("[^\n]+") do
    local record = core.json_read(line)
    if type(record) == "table" then self:take(record) else self.torn = self.torn + 1 end
  end
  return self
end

-- ---- making it small ----------------------------------------------------------------------------------------------

-- Six digits are more than can be seen.
local function short(x) return x - x == 0 and tonumber(("%.6g"):format(x)) or GAP end

-- The curve in at most kMostPoints points. Each stands for as many rows: it is at their last one, and has their mean,
-- least and greatest value. What is not finite is a gap, and listed.
local function thinned(rows)
  local width = ceil(#rows / kMostPoints)
  local curve = { step = {}, seconds = {}, mean = {}, count = #rows, width = width }
  if width > 1 then curve.low, curve.high = {}, {} end
  for first = 1, #rows, width do
    local last = min(first + width - 1, #rows)
    local sum, count, low, high = 0, 0, huge, -huge
    for i = first, last do
      local row = rows[i]
      if row.strange then
        curve.strange = curve.strange or {}
        if #curve.strange < 100 then
          table.insert(curve.strange, { step = row.step, seconds = row.seconds, what = row.strange })
        end
      else
        sum, count, low, high = sum + row.value, count + 1, min(low, row.value), max(high, row.value)
      end
    end
    local at = #curve.step + 1
    curve.step[at], curve.seconds[at] = rows[last].step, short(rows[last].seconds)
    curve.mean[at] = count > 0 and short(sum / count) or GAP
    if width > 1 then curve.low[at], curve.high[at] = short(low), short(high) end
  end
  return curve
end

-- At most `count` of a list, evenly, with the first and the last.
local function some_of(rows, count)
  if #rows <= count then return rows end
  local some = {}
  for i = 1, count do some[i] = rows[floor((i - 1) * (#rows - 1) / (count - 1) + 1.5)] end
  return some
end

local DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

local function base64(bytes)
  local function four(a, b, c)
    local all = a:byte() * 65536 + (b:byte() or 0) * 256 + (c:byte() or 0)
    local text = {}
    for i = 1, 4 do
      local digit = floor(all / 64 ^ (4 - i)) % 64 + 1
      text[i] = DIGITS:sub(digit, digit)
    end
    if c == "" then text[4] = "=" end
    if b == "" then text[3] = "=" end
    return table.concat(text)
  end
  return (bytes:gsub("(.)(.?)(.?)", four))
end

-- A picture as it stands in the page, or nothing where its file is gone. No log makes a page of files that are not its
-- own.
local function image_of(run, record)
  if not record.file:find("^images/[^/]+%.png$") then return nil end
  local fine, bytes = pcall(core.text_read, run.folder .. "/" .. record.file)
  if not fine and not (errors.is_error(bytes) and bytes.code == "not_found") then error(bytes, 0) end
  if not fine then return nil end
  return { step = record.step, count = record.count, width = record.width, height = record.height,
           source = "data:image/png;base64," .. base64(bytes) }
end

local function is_empty(rows) return #rows == 0 end

-- What the page has to know of a run.
local function record_of(run)
  local info = run.info or {}
  local record = { name = run.name, folder = run.folder, command = info.command, config = info.config,
                   device = info.device, seed = info.seed, moonflow = info.moonflow, time = info.time,
                   seconds = short(run.seconds), last_step = run.last_step, parts = run.parts,
                   torn = run.torn > 0 and run.torn or nil, series = {}, histograms = {}, images = {}, jobs = {} }
  for name, rows in pairs(run.series) do
    if not is_empty(rows) then record.series[name] = thinned(rows) end
  end
  for name, rows in pairs(run.histograms) do
    if not is_empty(rows) then record.histograms[name] = some_of(rows, kMostHistograms) end
  end
  for name, rows in pairs(run.images) do
    local images = {}
    for _, row in ipairs(some_of(rows, kMostImages)) do images[#images + 1] = image_of(run, row) end
    if not is_empty(images) then record.images[name] = images end
  end
  for i, name in ipairs(run.job_names) do record.jobs[i] = run.jobs[name] end
  return record
end

-- ---- writing ------------------------------------------------------------------------------------------------------

--- Writes the page of the logs in `runs`, a folder or a list of folders, and of those in the folders below them.
--- @return string  its path: `path`, or report.html in the first folder
function report.write(runs, path)
  local found, folder = find_all(runs)
  local records = {}
  for i, run in ipairs(found) do records[i] = record_of(read_run(run)) end
  path = path or folder .. "/report.html"
  core.text_write(path, page.text(folder:match("[^/]+$") or folder, core.json_write({ runs = records })))
  return path
end

--- `moonflow report folder... [-o page.html]`: says where the page is, or why there is none.
--- @param words string[]
--- @return boolean  whether there is one
function report.command(words)
  local folders, path, next_is_path = {}, nil, false
  for _, word in ipairs(words) do
    if next_is_path then
      path, next_is_path = word, false
    elseif word == "-o" then
      next_is_path = true
    else
      folders[#folders + 1] = word
    end
  end
  if next_is_path then
    io.stderr:write("moonflow report: -o wants the file to write, as in: moonflow report runs -o page.html\n")
    return false
  end
  local fine, result = pcall(report.write, folders, path)
  if not fine and not errors.is_error(result) then error(result, 0) end
  local stream = fine and io.stdout or io.stderr
  stream:write(fine and result or result.message:gsub("^flow%.", "moonflow "), "\n")
  return fine
end

return report
