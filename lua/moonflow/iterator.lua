-- Iterators with a length: objects that a `for` loop calls and `#` counts, so that a progress bar knows the end.
-- They give a counter from 0 first, then the values. Proxies, because Lua 5.1 has no `#` for tables of its own.

local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"

local iterator = {}

--- Makes an iterator.
--- @param count number or nil  how many steps it will make; nil when that is not known
--- @param step function        called for each step; nil ends
--- @param fields? table        what `it.name` gives
function iterator.new(count, step, fields)
  local it = newproxy(true)
  local meta = getmetatable(it)
  meta.__call = function() return step() end
  meta.__len = function() return count or 0 end
  meta.__index = fields or {}
  return it
end

--- Makes a set that is gone through by iterators of its own: `#` counts what is in it.
--- @param fields table      what `set.name` gives
--- @param count number
--- @param instead string    what a loop that calls the set itself is told
--- @param text function     gives what it prints as
function iterator.set(fields, count, instead, text)
  local set = newproxy(true)
  local meta = getmetatable(set)
  meta.__index = fields
  meta.__len = function() return count end
  meta.__tostring = text
  meta.uncallable = true
  meta.__call = function() errors.raise("invalid_argument", instead) end
  return set
end

--- How many steps `source` will make, or nil.
function iterator.count(source)
  if type(source) == "number" then return source end
  if type(source) == "userdata" then return #source > 0 and #source or nil end
  if type(source) == "table" and not getmetatable(source) then return #source end
  return nil
end

--- A step function (counter from 0, then values) over what a loop may want to go through: an iterator, the rows of an
--- array, a list, or a number of turns.
function iterator.step_of(source, what)
  if arguments.kind(source) == "ndarray" then return source:rows() end
  if arguments.is_callable(source) then return source end
  local i = -1
  if type(source) == "number" then
    return function()
      i = i + 1
      if i < source then return i end
    end
  elseif type(source) == "table" and not getmetatable(source) then
    arguments.check_list(source, what .. ": the list")
    return function()
      i = i + 1
      if source[i + 1] ~= nil then return i, source[i + 1] end
    end
  end
  return errors.raise("invalid_argument", what .. " cannot go through " .. arguments.describe(source)
    .. "; it takes iterators, arrays, lists and numbers")
end

-- The values of a step after its counter, put behind those that are there already.
local function append(values, count, counter, ...)
  if counter == nil then return nil end
  local more = select("#", ...)
  for k = 1, more do values[count + k] = (select(k, ...)) end
  return count + more
end

--- Goes through several things side by side, to the end of the shortest.
--- `for i, x, y in flow.zip(xs, ys) do`: i from 0, then the values of each.
function iterator.zip(...)
  local steps, shortest = {}, nil
  for k = 1, select("#", ...) do
    local source = select(k, ...)
    steps[k] = iterator.step_of(source, "flow.zip")
    local count = iterator.count(source)
    if count and (not shortest or count < shortest) then shortest = count end
  end
  if #steps == 0 then errors.raise("invalid_argument", "flow.zip wants at least one iterator, array or list") end
  local i = -1
  return iterator.new(shortest, function()
    local values, count = {}, 0
    for k = 1, #steps do
      count = append(values, count, steps[k]())
      if not count then return nil end
    end
    i = i + 1
    return i, unpack(values, 1, count)
  end)
end

return iterator
