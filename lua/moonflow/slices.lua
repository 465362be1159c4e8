--- Slices as scripts write them: NumPy's text for all axes, "0:10, ::2, -1", or for each axis a number or a table
-- { start, stop, step }. Half open, counted from 0, negative from the end.

local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"

local slices = {}

local ceil, min, max = math.ceil, math.min, math.max
local fail = errors.raise

-- One entry of a slice: a whole number picks one position and drops the axis; { start, stop, step } keeps it, each part
-- may be nil; ALL stands for every position.
local ALL = {}
local ELLIPSIS = {}

local function not_a_slice(text, piece)
  local instead = (piece == "None" or piece:find("newaxis", 1, true))
      and "; np.expand_dims(a, axis) adds an axis, and in a job flow.expand_dims"
    or piece:find("^%[") and "; a:take({ 0, 2 }, axis) picks several, and in a job flow.gather" or ""
  fail("invalid_argument", ("slice \"%s\": '%s' is not start, start:stop or start:stop:step%s"):format(text, piece,
    instead))
end

local function parse_slice(text)
  local entries = {}
  for piece in (text .. ","):gmatch("%s*(.-)%s*,") do
    local parts = {}
    for part in (piece .. ":"):gmatch("%s*(.-)%s*:") do parts[#parts + 1] = part end
    local numbers = {}
    for i, part in ipairs(parts) do
      if part ~= "" then
        numbers[i] = part:match("^[+-]?%d+$") and tonumber(part)
        if not numbers[i] and piece ~= "..." then
          not_a_slice(text, piece)
        end
      end
    end
    if piece == "..." then
      entries[#entries + 1] = ELLIPSIS
    elseif piece == "" or #parts > 3 then
      not_a_slice(text, piece)
    else
      entries[#entries + 1] = #parts == 1 and numbers[1] or numbers
    end
  end
  return entries
end

local parsed_slices, parsed_count = {}, 0
local function slice_entries(first, ...)
  if type(first) ~= "string" then return { first, ... } end
  if select("#", ...) > 0 then
    fail("invalid_argument", "slice wants one text for all axes, as in a:slice(\"0:10, ::2\"), or tables and numbers")
  end
  local entries = parsed_slices[first]
  if not entries then
    entries = parse_slice(first)
    if parsed_count >= 256 then parsed_slices, parsed_count = {}, 0 end
    parsed_slices[first], parsed_count = entries, parsed_count + 1
  end
  return entries
end

local entry_keys = { true, true, true, start = true, stop = true, step = true }

local function check_whole(number, axis)
  if number == nil or type(number) == "number" and number % 1 == 0 then return end
  fail("invalid_argument", ("slice: axis %d: %s is not a whole number"):format(axis, arguments.describe(number)))
end

-- Start, step and count of the positions that `entry` picks of `size`, as Python counts them.
local function positions(entry, axis, size)
  if type(entry) == "number" then
    local at = entry < 0 and entry + size or entry
    if at < 0 or at >= size or at % 1 ~= 0 then
      fail("out_of_range", ("slice: index %g is out of range for axis %d of size %d (0..%d; arrays count from 0, Lua "
        .. "tables from 1)"):format(entry, axis, size, size - 1))
    end
    return at, 1, 1
  end
  if type(entry) == "string" then
    fail("invalid_argument", ("slice: the entry of axis %d is '%s'; a text stands alone and is for all axes, as in "
      .. "a:slice(\"0, 1:3\") and a:set(\"0, 1:3\", value), and among numbers 1:3 is the table { 1, 3 }"):format(
      axis, entry))
  end
  if type(entry) ~= "table" or getmetatable(entry) then
    fail("invalid_argument", ("slice: the entry of axis %d is %s; it wants a number or { start, stop, step }%s")
      :format(axis, arguments.describe(entry), arguments.kind(entry) == "blob"
        and ", known before a run, and flow.gather takes places that are values" or ""))
  end
  for key in pairs(entry) do
    if not entry_keys[key] then
      fail("invalid_argument", ("slice: the entry of axis %d has '%s'; it is { start, stop, step }"):format(axis,
        tostring(key)))
    end
  end
  local start, stop, step = entry[1] or entry.start, entry[2] or entry.stop, entry[3] or entry.step or 1
  check_whole(start, axis)
  check_whole(stop, axis)
  check_whole(step, axis)
  if step == 0 then fail("invalid_argument", ("slice: the step of axis %d is 0"):format(axis)) end
  local first, last, lowest, highest = 0, size, 0, size -- where nothing is said, and what may be
  if step < 0 then first, last, lowest, highest = size - 1, -1, -1, size - 1 end
  if start then first = max(lowest, min(highest, start < 0 and start + size or start)) end
  if stop then last = max(lowest, min(highest, stop < 0 and stop + size or stop)) end
  return first, step, max(0, ceil((last - first) / step))
end

-- One entry for each axis: an ellipsis stands for as many whole axes as are missing, and so does the end.
local function spread(entries, count, rank)
  local ellipsis
  for i = 1, count do
    if entries[i] == ELLIPSIS then
      if ellipsis then fail("invalid_argument", "slice: \"...\" may stand only once") end
      ellipsis = i
    end
  end
  local given = ellipsis and count - 1 or count
  if given > rank then
    fail("out_of_range", ("slice: %d entries for an array of rank %d"):format(given, rank))
  end
  local full = {}
  for axis = 1, rank do
    if not ellipsis or axis < ellipsis then
      full[axis] = axis <= count and entries[axis] or ALL
    else
      full[axis] = axis < ellipsis + rank - given and ALL or entries[axis - rank + count]
    end
  end
  return full
end

--- Where a slice of this shape lies.
--- @return table  the first position of each axis
--- @return table  the step from one to the next
--- @return table  how many they are
--- @return table  the sizes of the axes that it keeps
function slices.picked(shape, ...)
  local entries, rank = slice_entries(...), #shape
  local full = spread(entries, type((...)) == "string" and #entries or select("#", ...), rank)
  local starts, steps, sizes, kept = {}, {}, {}, {}
  for axis = 1, rank do
    starts[axis], steps[axis], sizes[axis] = positions(full[axis], axis - 1, shape[axis - 1])
    if type(full[axis]) ~= "number" then kept[#kept + 1] = sizes[axis] end
  end
  return starts, steps, sizes, kept
end

return slices
