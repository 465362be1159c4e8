--- Source: the text a function was compiled from: its file, the chunk itself, or what was typed at a prompt.
-- Plain Lua, no engine.

setfenv(1, require "moonflow.builtins")

local io = io

local source = {}

local typed = {}  -- chunk name -> list of lines

--- Keeps the lines of a chunk that has no file, under its chunk name ("=stdin").
function source.remember(name, lines)
  typed[name] = lines
end

--- The lines of a text.
function source.split(text)
  local lines = {}
  for line in (text .. "\n"):gmatch("([^\n]*)\n") do lines[#lines + 1] = line end
  return lines
end

--- The lines of a chunk by the `source` of debug.getinfo, or nil where there is no text.
function source.lines(name)
  local first = name:sub(1, 1)
  if first == "=" then return typed[name] end
  if first ~= "@" then return source.split(name) end
  local file = io.open(name:sub(2), "r")
  if not file then return nil end
  local lines = {}
  for line in file:lines() do lines[#lines + 1] = line end
  file:close()
  return lines
end

--- The comment that ends above line `at`: its lines without dashes, or nil.
function source.comment_above(lines, at)
  local first = at
  while first > 1 and lines[first - 1]:find("^%s*%-%-") do first = first - 1 end
  if first == at or lines[first]:find("^%s*%-%- %-%-%-") then return nil end
  local text = {}
  for i = first, at - 1 do text[#text + 1] = lines[i]:match("^%s*%-%-%-? ?(.-)%s*$") end
  return text
end

return source
