-- flow.progress: a bar for long loops. On a terminal one line that is drawn again at most ten times a second; elsewhere
-- (a pipe, a file, CI) a plain line for every tenth of the way. To standard error, so that results stay by themselves.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local iterator = require "moonflow.iterator"
local io, os = io, os

local floor, max, min = math.floor, math.max, math.min

local REDRAW_SECONDS = 0.1
local LINE_SECONDS = 10  -- between plain lines when the length is not known
local BAR_CELLS = 30
local EIGHTHS = { "▏", "▎", "▍", "▌", "▋", "▊", "▉" }

local function time_text(seconds)
  seconds = floor(seconds + 0.5)
  local minutes = floor(seconds / 60)
  if minutes < 60 then return ("%02d:%02d"):format(minutes, seconds % 60) end
  return ("%d:%02d:%02d"):format(floor(minutes / 60), minutes % 60, seconds % 60)
end

local function rate_text(rate)
  if rate > 0 and rate < 1 then return ("%.2f s/it"):format(1 / rate) end
  return (rate < 100 and "%.1f it/s" or "%.0f it/s"):format(rate)
end

local function bar_text(share, cells, blocks)
  local full = share * cells
  local whole = floor(full)
  if not blocks then return ("#"):rep(whole) .. ("-"):rep(cells - whole) end
  local part = EIGHTHS[floor((full - whole) * 8)] or ""
  return ("█"):rep(whole) .. part .. (" "):rep(cells - whole - (part == "" and 0 or 1))
end

local function environment_is_utf8()
  local locale = os.getenv("LC_ALL") or os.getenv("LC_CTYPE") or os.getenv("LANG") or ""
  return locale:upper():find("UTF%-?8") ~= nil
end

-- string.format, for which an array of one element is its number.
local function formatted(text, ...)
  local values, count = { ... }, select("#", ...)
  for i = 1, count do
    if arguments.kind(values[i]) == "ndarray" then values[i] = values[i]:item() end
  end
  local fine, line = pcall(string.format, text, unpack(values, 1, count))
  if not fine then
    errors.raise("invalid_argument", ("progress:set: the values do not fit '%s': %s"):format(text,
      tostring(line):match("%((.*)%)$") or tostring(line)))
  end
  return line
end

-- "loss=0.25, step=3" of a table, in the order of the names.
local function table_text(values)
  local names = arguments.sorted_keys(values)
  for i, name in ipairs(names) do
    local value = values[name]
    names[i] = name .. "=" .. (type(value) == "number" and ("%.4g"):format(value) or tostring(value))
  end
  return table.concat(names, ", ")
end

-- ---- the bar ------------------------------------------------------------------------------------------------------

local Bar = {}
Bar.__index = Bar

-- How many steps of how many, the time, the rate, and what the script says.
function Bar:numbers(now)
  local done, total, elapsed = self.done, self.total, max(now - self.start, 1e-9)
  local rate, said = done / elapsed, self.postfix and self.postfix() or self.said
  local tail = rate_text(rate) .. (said and said ~= "" and ", " .. said or "")
  if not total then return ("%d [%s, %s]"):format(done, time_text(elapsed), tail) end
  local left = rate > 0 and time_text((total - done) / rate) or "?"
  return ("%d/%d [%s<%s, %s]"):format(done, total, time_text(elapsed), left, tail)
end

-- Of a total that is known.
function Bar:percent()
  return self.total > 0 and floor(100 * self.done / self.total) or 100
end

function Bar:draw(now)
  local line = self:numbers(now)
  if self.total then
    local before, after = ("%3d%%|"):format(min(100, self:percent())), "| " .. line
    local cells = max(0, min(BAR_CELLS, self.columns - 1 - #self.head - #before - #after))
    local share = self.total > 0 and min(1, self.done / self.total) or 1
    line = before .. bar_text(share, cells, self.blocks) .. after
  end
  self.write("\r" .. self.head .. line .. "\27[K")
  self.drawn, self.is_shown = now, true
end

function Bar:write_line(now)
  local before = self.total and ("%3d%% "):format(self:percent()) or ""
  self.write(self.head .. before .. self:numbers(now) .. "\n")
  self.drawn = now
end

function Bar:begin()
  if self.start then return end
  self.start = self.clock()
  if self.is_terminal then self:draw(self.start) else self.drawn = self.start end
end

function Bar:advance(steps)
  self:begin()
  self.done = self.done + steps
  if not self.is_terminal and self.total then
    local tenths = floor(self:percent() / 10)
    if tenths > self.tenths then
      self.tenths = tenths
      self:write_line(self.clock())
    end
    return
  end
  local now = self.clock()
  if self.is_terminal then
    if now - self.drawn >= REDRAW_SECONDS then self:draw(now) end
  elseif now - self.drawn >= LINE_SECONDS then
    self:write_line(now)
  end
end

function Bar:close()
  if self.is_closed or not self.start then return end
  self.is_closed = true
  if self.is_terminal then
    self:draw(self.clock())
    self.write("\n")
    self.is_shown = false
  elseif not self.total then
    self:write_line(self.clock())
  end
end

-- A step is done when the loop asks for the next one.
function Bar:pass(counter, ...)
  if counter == nil then
    self:close()
    return nil
  end
  self.is_running = true
  return counter, ...
end

function Bar:print(...)
  if self.is_shown then self.write("\r\27[K") end
  print(...)
  if self.is_shown then
    io.stdout:flush() -- before the bar comes back under it
    self:draw(self.clock())
  end
end

-- ---- flow.progress ------------------------------------------------------------------------------------------------

local signature = arguments.signature("flow.progress", {
  { "iterator", "any" }, { "desc", "string", "" }, { "postfix", "callable?" }, { "total", "integer?" },
  -- For tests and for programs with an output of their own.
  { "write", "callable?" }, { "terminal", "boolean?" }, { "clock", "callable?" },
})

--- Goes through `iterator` and shows how far it is: `for i, images, labels in flow.progress(train:batches()) do`.
--- The object it gives is called by the loop, `#` counts its steps, and it has
---   :set("loss %.3f", loss), :set { loss = loss }   what is shown after the numbers
---   :print(...)                                     as print does, on a line above the bar
---   :update(n)                                      n more steps done, for loops of another form
---   :close()                                        ends the line early; a loop that runs to its end needs it not
--- @param iterator any        batches, flow.zip, an array (its rows), a list, or a number of turns (i from 0)
--- @param desc? string        shown first
--- @param postfix? function   gives the text after the numbers; called only when something is drawn
--- @param total? integer      how many steps there are, where the iterator cannot tell
--- @param write? function     where the text goes, for a program with an output of its own; default: standard error
--- @param terminal? boolean   one line that is drawn again (true), or plain ones; default: what standard error is
--- @param clock? function     gives seconds; default: flow.clock
--- @return Progress
local function progress(...)
  local given = signature:parse(...)
  local inner = iterator.step_of(given.iterator, "flow.progress")
  local is_terminal = given.terminal
  if is_terminal == nil then is_terminal = core.isatty(2) end
  local bar = setmetatable({
    total = given.total or iterator.count(given.iterator), done = 0, tenths = 0, said = "", postfix = given.postfix,
    head = given.desc ~= "" and given.desc .. ": " or "", is_terminal = is_terminal, blocks = environment_is_utf8(),
    columns = core.terminal_columns and is_terminal and core.terminal_columns(2) or 80,
    write = given.write or function(text) io.stderr:write(text) end, clock = given.clock or core.clock,
  }, Bar)
  local function step()
    if bar.is_running then bar:advance(1) else bar:begin() end
    return bar:pass(inner())
  end
  return iterator.new(bar.total, step, {
    set = function(_, text, ...)
      bar.said = type(text) == "table" and table_text(text) or select("#", ...) > 0 and formatted(text, ...) or text
    end,
    print = function(_, ...) bar:print(...) end,
    update = function(_, steps) bar:advance(steps or 1) end,
    close = function() bar:close() end,
  })
end

return progress
