--- Inspect: a value as a person at the prompt wants to see it.
-- Tables by their sorted keys, with limits on depth, width and number, each table once. Metamethods other than
-- __tostring are not called. Plain Lua, no engine.

setfenv(1, require "moonflow.builtins")

local tokens = require "moonflow.tokens"
local debug, package = debug, package

local inspect = {}

local kDepth = 4       -- tables inside tables
local kEntries = 60    -- of one table
local kTotal = 600     -- entries of all
local kString = 200    -- characters of a string inside a table

local function quoted(text)
  local shown = #text > kString and text:sub(1, kString) or text
  shown = ("%q"):format(shown):gsub("\\\n", "\\n"):gsub("\r", "\\r"):gsub("%z", "\\0")
    :gsub("[\1-\8\11\12\14-\31\127]", function(c) return ("\\%d"):format(c:byte()) end)
  return #text > kString and shown .. "... (" .. #text .. " bytes)" or shown
end

-- Is it an array of the library? Without asking for the library: the prompt starts without it.
local function as_array(value)
  local core = package.loaded["moonflow.core"]
  return type(value) == "userdata" and type(core) == "table" and getmetatable(value) == core.ndarray_metatable and value
end

local function type_line(array)
  return array.dtype .. " " .. tostring(array.shape)
end

local function function_text(value)
  local info = debug.getinfo(value, "S")
  if info.what == "C" then return tostring(value) end
  local place = info.source:match(".*(moonflow/[%w_/]+%.lua)$") or info.short_src
  return ("function <%s:%d>"):format(place, info.linedefined)
end

local function described(value)
  local fine, text = pcall(tostring, value)
  return fine and tostring(text) or "(a " .. type(value) .. " whose __tostring fails)"
end

local function has_text(value)
  local meta = debug.getmetatable(value)
  return type(meta) == "table" and rawget(meta, "__tostring") ~= nil
end

local order = { number = 1, string = 2, boolean = 3 }
local function before(a, b)
  local kind_a, kind_b = type(a), type(b)
  if kind_a ~= kind_b then return (order[kind_a] or 9) < (order[kind_b] or 9) end
  if kind_a == "number" or kind_a == "string" then return a < b end
  return tostring(a) < tostring(b)
end

local function key_text(key, nested)
  if type(key) == "string" then
    if key:find("^[%a_][%w_]*$") and not tokens.keywords[key] then return key end
    return "[" .. quoted(key) .. "]"
  end
  return "[" .. nested(key) .. "]"
end

local function leaf(value)
  local kind = type(value)
  if kind == "string" then return quoted(value) end
  if kind == "function" then return function_text(value) end
  local array = as_array(value)
  if array then
    local fine, text = pcall(type_line, array)
    if not fine then return "a released ndarray" end
    if array.rank == 1 and array.shape[0] <= 8 then return described(value) .. " " .. text end
    return "ndarray " .. text
  end
  return described(value)
end

local function table_text(root, width)
  local seen, total = {}, 0
  local nested

  local function entries_of(value, depth)
    local keys, list = {}, {}
    local length = 0
    while rawget(value, length + 1) ~= nil do length = length + 1 end
    for key in next, value do
      local listed = type(key) == "number" and key >= 1 and key <= length and key % 1 == 0
      if not listed then keys[#keys + 1] = key end
    end
    table.sort(keys, before)
    local left = length + #keys
    local function add(text)
      list[#list + 1], total, left = text, total + 1, left - 1
    end
    local function full() return #list >= kEntries or total >= kTotal end
    for i = 1, length do
      if full() then break end
      add(nested(rawget(value, i), depth + 1))
    end
    for _, key in ipairs(keys) do
      if full() then break end
      add(key_text(key, leaf) .. " = " .. nested(rawget(value, key), depth + 1))
    end
    if left > 0 then list[#list + 1] = "... " .. left .. " more" end
    return list
  end

  function nested(value, depth)
    if type(value) ~= "table" then return leaf(value) end
    if has_text(value) and depth > 0 then return (described(value):match("^[^\n]*")) end
    if seen[value] then return "<" .. (seen[value] == "open" and "cycle" or "shown above") .. ">" end
    if next(value) == nil then return "{}" end
    if depth >= kDepth then return "{ ... }" end
    seen[value] = "open"
    local list = entries_of(value, depth)
    seen[value] = "shown"
    local line = "{ " .. table.concat(list, ", ") .. " }"
    if #line + 2 * depth <= width and not line:find("\n", 1, true) then return line end
    local indent = ("  "):rep(depth + 1)
    return "{\n" .. indent .. table.concat(list, ",\n" .. indent) .. "\n" .. ("  "):rep(depth) .. "}"
  end

  return nested(root, 0)
end

--- The text of a value: strings as they are, tables by their fields, arrays with their dtype and shape in a last line.
--- @param width? number  columns of the terminal (default 80)
function inspect.text(value, width)
  if type(value) == "string" then return value end
  if rawequal(value, _G) then return "_G, the table of all globals; `:who` lists yours" end
  local array = as_array(value)
  if array then
    local fine, text = pcall(type_line, array)
    return fine and described(value) .. "\n" .. text or "a released ndarray"
  end
  if type(value) == "table" and not has_text(value) then return table_text(value, width or 80) end
  return leaf(value)
end

--- A value in one line, for lists of many.
function inspect.line(value)
  return as_array(value) and leaf(value) or inspect.text(value, math.huge):match("^[^\n]*")
end

--- Several values: on one line while they are short, else one below the other.
function inspect.values(values, count, width)
  local texts, length = {}, 0
  for i = 1, count do
    texts[i] = inspect.text(values[i], width)
    length = length + #texts[i] + 8
  end
  local line = table.concat(texts, "\t")
  local short = length <= (width or 80) + 8 and not line:find("\n", 1, true)
  return short and line or table.concat(texts, "\n")
end

return inspect
