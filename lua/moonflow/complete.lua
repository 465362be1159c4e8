--- Complete: what could stand at the end of a half-typed text.
-- Names along tables and along metatables whose __index is a table, read raw, so that completing never runs anything;
-- option names inside the table of a call; files inside strings. Plain Lua; what needs the engine is left out
-- without it.

setfenv(1, require "moonflow.builtins")

local tokens = require "moonflow.tokens"
local debug, package = debug, package

local complete = {}

-- ---- looking without touching -------------------------------------------------------------------------------------

-- The table in which the fields of a value are found, when that needs no function to run.
local function fields_of(value)
  if type(value) == "table" then return value end
  local core = package.loaded["moonflow.core"]
  local meta = debug.getmetatable(value)
  if type(core) == "table" and meta ~= nil and meta == core.ndarray_metatable then return core.ndarray_methods end
  local index = type(meta) == "table" and rawget(meta, "__index")
  return type(index) == "table" and index or nil
end

local function next_fields(fields)
  local meta = debug.getmetatable(fields)
  local index = type(meta) == "table" and rawget(meta, "__index")
  return type(index) == "table" and index or nil
end

--- The field `key` of a value by raw look-ups alone, or nil.
function complete.field(value, key)
  local fields, steps = fields_of(value), 0
  while fields and steps < 10 do
    local found = rawget(fields, key)
    if found ~= nil then return found end
    fields, steps = next_fields(fields), steps + 1
  end
  return nil
end

-- The methods of a class that are meant for users; nil for what is no class of the library.
local function public_methods(fields)
  local arguments = package.loaded["moonflow.arguments"]
  for _, known in ipairs(type(arguments) == "table" and arguments.classes or {}) do
    if known.class == fields then return known.methods end
  end
end

-- Calls add(name, value) for the string keys of a value.
local function each_field(value, add)
  local core, fields, steps = package.loaded["moonflow.core"], fields_of(value), 0
  if type(core) == "table" and fields == core.ndarray_methods then
    for name in pairs(core.ndarray_properties) do add(name) end
  end
  while fields and steps < 10 do
    local methods = public_methods(fields)
    for _, name in ipairs(methods or {}) do add(name, rawget(fields, name)) end
    for key, field in next, methods and {} or fields do
      if type(key) == "string" and key:find("^[%a_][%w_]*$") then add(key, field) end
    end
    fields, steps = next_fields(fields), steps + 1
  end
end

--- The value that a path such as "flow.layers.conv2d" or "job:summary" leads to.
--- @param roots table  list of tables in which the first name is looked up
function complete.resolve(path, roots)
  local value
  for part in path:gmatch("[%w_]+") do
    if value == nil then
      for _, root in ipairs(roots) do
        value = complete.field(root, part)
        if value ~= nil then break end
      end
    else
      value = complete.field(value, part)
    end
    if value == nil then return nil end
  end
  return value
end

-- ---- reading backwards --------------------------------------------------------------------------------------------

-- The path of names that ends with token `last`; nil when something else (a call, an index) is part of it.
local function path_before(list, last)
  local parts, i = {}, last
  while true do
    if not list[i] or list[i].kind ~= "name" then return nil end
    table.insert(parts, 1, list[i].text)
    local joint = list[i - 1] and list[i - 1].text
    if joint ~= "." and joint ~= ":" then return table.concat(parts, "."), i end
    i = i - 2
  end
end

-- The function whose option table is open at the end of the tokens: `f(a, { x = 1, <here>` or `f { <here>`.
local function called_with_options(list)
  local depth, i = 0, #list
  while i > 0 do
    local text = list[i].kind == "symbol" and list[i].text
    if text == "}" or text == ")" or text == "]" then
      depth = depth + 1
    elseif text == "{" or text == "(" or text == "[" then
      if depth == 0 then break end
      depth = depth - 1
    end
    i = i - 1
  end
  if i == 0 or list[i].text ~= "{" then return nil end
  local direct = path_before(list, i - 1)
  if direct then return direct end
  depth, i = 0, i - 1
  while i > 0 do
    local text = list[i].kind == "symbol" and list[i].text
    if text == "}" or text == ")" or text == "]" then
      depth = depth + 1
    elseif text == "(" and depth == 0 then
      return (path_before(list, i - 1))
    elseif text == "{" or text == "(" or text == "[" then
      if depth == 0 then return nil end
      depth = depth - 1
    end
    i = i - 1
  end
  return nil
end

--- The path of the function that a text calls: that whose arguments its end is among, else the first one; nil where it
--- calls none.
function complete.function_called(text)
  local open, first = {}, nil
  local list = tokens.scan(text)
  for i, token in ipairs(list) do
    local symbol = token.kind == "symbol" and token.text
    if symbol == "(" or symbol == "{" then
      local path = path_before(list, i - 1)
      first = first or path
      open[#open + 1] = path or false
    elseif symbol == ")" or symbol == "}" then
      open[#open] = nil
    end
  end
  for i = #open, 1, -1 do
    if open[i] then return open[i] end
  end
  return first
end

local function option_names(f)
  local arguments = package.loaded["moonflow.arguments"]
  if type(f) ~= "function" or not arguments then return nil end
  if arguments.options[f] then return arguments.options[f] end
  local signature = package.loaded["moonflow.ops"].signature(f) or arguments.signature_of(f)
  return signature and signature.names
end

-- ---- the kinds of words -------------------------------------------------------------------------------------------

local function files(typed)
  local folder, word = typed:match("^(.*/)([^/]*)$")
  folder, word = folder or "", word or typed
  local found, is_folder = {}, {}
  -- Of a folder that one may not list there is nothing to complete.
  local fine, names = pcall(function()
    local core, path = require("moonflow.core"), folder == "" and "." or folder
    local _, folders = core.folder_names(path)
    for _, name in ipairs(folders) do is_folder[name] = true end
    return core.list_directory(path)
  end)
  for _, name in ipairs(fine and names or {}) do
    if name:sub(1, #word) == word and (word ~= "" or name:sub(1, 1) ~= ".") then
      found[#found + 1] = folder .. name .. (is_folder[name] and "/" or "")
    end
  end
  return typed, found
end

local function matching(word, fill)
  local found, seen = {}, {}
  fill(function(name)
    if name:sub(1, #word) == word and not seen[name] and (word ~= "" or name:sub(1, 1) ~= "_") then
      seen[name] = true
      found[#found + 1] = name
    end
  end)
  table.sort(found)
  return word, found
end

local commands = { "help", "load", "quit", "summary", "time", "watch", "who" }

local function of_command(text, roots)
  local word = text:match("^:(%a*)$")
  if word then
    return matching(word, function(add)
      for _, name in ipairs(commands) do add(name) end
    end)
  end
  local command, rest = text:match("^:(%a+)%s+(.*)$")
  if command == "load" then return files(rest) end
  local job_path, value_name = (rest or ""):match("^([%w_.]-)%.([^.]*)$")
  local job = command == "watch" and job_path and complete.resolve(job_path, roots)
  if type(job) == "table" and rawget(debug.getmetatable(job) or {}, "kind") == "job" then
    return matching(value_name, function(add)
      for _, name in ipairs(job:value_names()) do add(name) end
    end)
  end
  return nil
end

--- What could end `text`.
--- @param roots table  where global names are looked up: a list of tables
--- @return string, table  the word at the end, and sorted texts that could stand in its place
function complete.candidates(text, roots)
  if text:find("^:%a") or text == ":" then
    local word, found = of_command(text, roots)
    if word then return word, found end
    text = text:gsub("^:%a*", "")
  end
  local asked, marks = text:gsub("^%s*%?+", "")
  if marks > 0 then  -- as in "?layers.conv2d"
    text, roots = asked, { unpack(roots) }
    roots[#roots + 1] = package.loaded.moonflow
  end

  local list, open = tokens.scan(text)
  if open then
    if open.kind ~= "string" or not text:find("^[\"']", open.from) then return "", {} end
    local typed = text:sub(open.from + 1)
    local path = list[1] and list[#list].text == "[" and path_before(list, #list - 1)
    local owner = path and complete.resolve(path, roots)
    if type(owner) ~= "table" then return files(typed) end
    return matching(typed, function(add)
      for key in next, owner do
        if type(key) == "string" then add(key) end
      end
    end)
  end
  local last = list[#list]
  local at_word = last and (last.kind == "name" or last.kind == "keyword") and last.to == #text
  local word = at_word and last.text or ""
  if at_word then list[#list] = nil end

  local joint = list[#list] and list[#list].text
  if joint == "." or joint == ":" then
    local path = path_before(list, #list - 1)
    local owner = path and complete.resolve(path, roots)
    if owner == nil then return word, {} end
    return matching(word, function(add)
      each_field(owner, function(name, value)
        if joint == "." or type(value) == "function" then add(name) end
      end)
    end)
  end

  if joint == "{" or joint == "," then
    local path = called_with_options(list)
    local names = path and option_names(complete.resolve(path, roots))
    if names then
      return matching(word, function(add)
        for _, name in ipairs(names) do add(name) end
      end)
    end
  end
  if word == "" then return "", {} end
  return matching(word, function(add)
    for _, root in ipairs(roots) do each_field(root, add) end
    for keyword in pairs(tokens.keywords) do add(keyword) end
  end)
end

return complete
