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
--- @return Progress
local function progress(...)
  local given = signature:parse(...)
  local inner = iterator.step_of(given.iterator, "flow.progress")
  local total = given.total or iterator.count(given.iterator)
  local write = given.write or function(text) io.stderr:write(text) end
  local clock = given.clock or core.clock
  local terminal = given.terminal
  if terminal == nil then terminal = core.isatty(2) end
  local columns = core.terminal_columns and terminal and core.terminal_columns(2) or 80
  local blocks = environment_is_utf8()
  local head = given.desc ~= "" and given.desc .. ": " or ""

  local done, start, drawn, tenths, open = 0, nil, nil, 0, false
  local postfix = ""

  local function numbers(now)
    local elapsed = max(now - start, 1e-9)
    local rate = done / elapsed
    local eta = total and (rate > 0 and time_text((total - done) / rate) or "?")
    local tail = given.postfix and given.postfix() or postfix
    return time_text(elapsed), eta, rate_text(rate), tail and tail ~= "" and ", " .. tail or ""
  end

  local function draw_bar(now)
    local elapsed, eta, rate, tail = numbers(now)
    local line
    if total then
      local share = total > 0 and min(1, done / total) or 1
      local before = ("%s%3d%%|"):format(head, floor(share * 100))
      local after = ("| %d/%d [%s<%s, %s%s]"):format(done, total, elapsed, eta, rate, tail)
      local cells = max(0, min(BAR_CELLS, columns - 1 - #before - #after))
      line = before .. bar_text(share, cells, blocks) .. after
    else
      line = ("%s%d [%s, %s%s]"):format(head, done, elapsed, rate, tail)
    end
    write("\r" .. line .. "\27[K")
    drawn, open = now, true
  end

  local function plain_line(now)
    local elapsed, eta, rate, tail = numbers(now)
    if total then
      write(("%s%3d%% %d/%d [%s<%s, %s%s]\n"):format(head, total > 0 and floor(100 * done / total) or 100, done, total,
        elapsed, eta, rate, tail))
    else
      write(("%s%d [%s, %s%s]\n"):format(head, done, elapsed, rate, tail))
    end
    drawn = now
  end

  local function begin()
    start = clock()
    if terminal then draw_bar(start) else drawn = start end
  end

  local function advance(steps)
    if not start then begin() end
    done = done + steps
    if not terminal and total then
      local reached = total > 0 and floor(10 * done / total) or 10
      if reached > tenths then
        tenths = reached
        plain_line(clock())
      end
      return
    end
    local now = clock()
    if terminal then
      if now - drawn >= REDRAW_SECONDS then draw_bar(now) end
    elseif now - drawn >= LINE_SECONDS then
      plain_line(now)
    end
  end

  local closed = false
  local function close()
    if closed or not start then return end
    closed = true
    if terminal then
      draw_bar(clock())
      write("\n")
      open = false
    elseif not total then
      plain_line(clock())
    end
  end

  local running = false
  local function pass(counter, ...)
    if counter == nil then
      if not start then begin() end
      close()
      return nil
    end
    running = true
    return counter, ...
  end
  local function step()
    if running then advance(1) elseif not start then begin() end
    return pass(inner())
  end

  local methods = {}
  function methods.set(_, text, ...)
    if type(text) == "table" then
      postfix = table_text(text)
    else
      postfix = select("#", ...) > 0 and formatted(text, ...) or text
    end
  end
  function methods.print(_, ...)
    if open then write("\r\27[K") end
    print(...)
    if open then
      io.stdout:flush() -- before the bar comes back under it
      draw_bar(clock())
    end
  end
  function methods.update(_, steps) advance(steps or 1) end
  function methods.close() close() end
  return iterator.new(total, step, methods)
end

return progress
