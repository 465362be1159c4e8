--- Help: what the catalog and the library's own comments say about a function, offline.
-- `flow.help(flow.layers.conv2d)` gives the text; the prompt's `?` shows it.

local absent = require "moonflow.absent"
local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local foreign_names = require "moonflow.foreign_names"
local interrupts = require "moonflow.interrupts"
local ndarray = require "moonflow.ndarray"
local ops = require "moonflow.ops"
local source = require "moonflow.source"
local debug, package, require = debug, package, require

-- What runs once need not be compiled: a first search takes a quarter of the time so.
if jit then jit.off(true, true) end

local foreign, foreign_of_arrays = foreign_names.of_values, foreign_names.of_arrays

local help = {}

-- ---- functions written in Lua -------------------------------------------------------------------------------------

-- The line that defines the function at `path`: one that says the end of the path, else an assignment to its last name,
-- or a call such as `define("leaf", ...)` that made it; nil where none is found.
local function line_of(lines, path)
  local leaf = path and path:match("([%a_][%w_]*)$")
  if not leaf then return nil end
  local tail = path:match("([%a_][%w_]*%.[%a_][%w_]*)$")
  tail = tail and "^[%w_.]-%f[%w_]" .. tail:gsub("%.", "%%.") .. "%s*="
  for i, line in ipairs(lines) do
    if tail and line:find(tail) then return i end
  end
  for i, line in ipairs(lines) do
    if line:find("^%s*[%a_][%w_]*%(\"" .. leaf .. "\"") or line:find("^[%w_.]+%." .. leaf .. "%s*=")
      or line:find("^function [%w_]+[.:]" .. leaf .. "%s*%(") or line:find("^local function " .. leaf .. "%s*%(") then
      return i
    end
  end
end

-- Does a line define a function of this name itself: "function CheckPoint:save("?
local function defines(line, leaf)
  return line and (line:find("^function [%w_.]+[.:]" .. leaf .. "%s*%(")
    or line:find("^local function " .. leaf .. "%s*%("))
end

-- "@param name type  text" and the like as plain lines; nil for what is for editors alone.
local function without_marks(line)
  local name, kind, rest = line:match("^@param%s+(%S+)%s+(%S+)%s*(.*)$")
  if name then return ("  %s (%s)%s"):format(name, kind, rest ~= "" and ": " .. rest or "") end
  local word, text = line:match("^@(%a+)%s+(.*)$")
  if word == "return" then return text ~= "nil" and "  gives " .. text:gsub("%s+", " ") or nil end
  if word == "error" then return "errors: " .. text end
  if word ~= "overload" then return line end
end

-- The comment above a line, or above the loop or function that it begins.
local function comment_at(lines, at)
  local text = source.comment_above(lines, at)
  for above = at - 1, math.max(1, at - 4), -1 do
    if text or not lines[above]:find("^%s*for ") and not lines[above]:find("^%s*local ") then break end
    text = source.comment_above(lines, above)
  end
  return text
end

local own_lines = {}  -- by the files of the library that have been read

local function lines_of(info)
  if info.what == "C" then return nil end
  local lines = own_lines[info.source] or source.lines(info.source)
  if errors.is_own(info.source) then own_lines[info.source] = lines end
  return lines
end

--- The lines of the comment about a function, as they stand there; nil where there is none. Those of the methods that
--- are written in C begin with how they are called.
function help.comment(f, path)
  if ndarray.texts[f] then return source.split(ndarray.texts[f]) end
  local info = debug.getinfo(f, "S")
  local lines = lines_of(info)
  if not lines then return nil end
  local leaf = path and path:match("([%a_][%w_]*)$")
  local at = not (leaf and defines(lines[info.linedefined], leaf)) and line_of(lines, path)
  return at and comment_at(lines, at) or comment_at(lines, info.linedefined)
end

-- A text in lines of at most 100 columns, where it has a blank; those after the first are indented.
local function wrapped(text)
  local lines, line = {}, ""
  for blanks, word in text:gmatch("(%s*)(%S+)") do
    if #line + #blanks + #word > 100 and line:find("%S") then
      lines[#lines + 1] = line
      line, blanks = "   ", " "
    end
    line = line .. blanks .. word
  end
  lines[#lines + 1] = line
  return table.concat(lines, "\n")
end

-- The whole text about a function: how it is called, what is said of it, and what of its parameters.
local function whole(called, lines, signature)
  local parts, texts = { called }, { "parameters:" }
  for _, line in ipairs(lines) do parts[#parts + 1] = line end
  for _, parameter in ipairs(signature and signature.parameters or {}) do
    if parameter.text then
      texts[#texts + 1] = wrapped("  " .. arguments.parameter_text(parameter) .. ": " .. parameter.text)
    end
  end
  return table.concat(parts, "\n") .. (#texts > 1 and "\n" .. table.concat(texts, "\n") or "")
end

-- "(a, [b], ...)"; a method's without the value before the colon, which flow.np.random's have not. The comment tells
-- what may be left out, and what is behind those that have a name.
local function parameters_text(f, info, path, comment)
  local names, told, shown = {}, {}, {}
  for _, line in ipairs(comment) do
    local name, mark = line:match("^@param%s+([%a_][%w_]*)(%??)")
    if name then
      told[#told + 1] = name
      shown[name] = mark == "?" and "[" .. name .. "]" or name
    end
  end
  local is_method = path and path:find(":", 1, true) or debug.getlocal(f, 1) == "self"
  for i = is_method and 2 or 1, info.nparams do
    local name = debug.getlocal(f, i) or "?"
    names[#names + 1] = shown[name] or name
  end
  local count = #names
  for i = count + 1, info.isvararg and #told or 0 do names[i] = shown[told[i]] end
  if info.isvararg and #names == count then names[count + 1] = "..." end
  return "(" .. table.concat(names, ", ") .. ")"
end

--- The method that a function of flow.np stands for, and how it is called: one of a generator, or one of arrays where
--- nothing is said about the function itself. Else nil.
function help.method(f, path)
  local folder, leaf = (path or ""):match("^(flow%.np[%w_.]*)%.([%w_]+)$")
  if folder == "flow.np.random" then
    local Generator = getmetatable(package.loaded.moonflow.np.random.default_rng(0))
    return rawget(Generator, leaf), path
  end
  local method = folder == "flow.np" and not help.comment(f, path) and rawget(core.ndarray_methods, leaf)
  if method and method ~= f then return method, "a:" .. leaf end
end

local path_of

local function function_text(f, path)
  local doc = ops.doc(f)
  if doc then return whole(ops.signature(f):text(), source.split((doc:gsub("%s+$", ""))), ops.signature(f)) end
  path = path or path_of(f)
  local method, method_path = help.method(f, path)
  if method then f, path = method, method_path end
  local info = debug.getinfo(f, "Su")
  local is_lua = info.what ~= "C"
  if not is_lua and not ndarray.texts[f] then return (path or "function") .. "(...)\na function written in C" end
  local signature = arguments.signature_of(f)
  local lines = {}
  local is_parameter, comment = false, help.comment(f, path) or {}
  for _, line in ipairs(comment) do
    is_parameter = line:find("^@param") ~= nil or is_parameter and line:find("^%s") ~= nil
    -- What goes on about a parameter stands under its text in the source.
    lines[#lines + 1] = without_marks(is_parameter and line:gsub("^%s+", "    ") or line)
  end
  -- The comment of a method in C begins with how it is called.
  if not is_lua then return table.concat(lines, "\n") end
  if signature and path and path:find(":", 1, true) then signature = signature:called(path) end
  local called = signature and signature:text() or (path or "function") .. parameters_text(f, info, path, comment)
  local place = info.source:match(".*(moonflow/[%w_/]+%.lua)$") or info.short_src
  return whole(called, lines, signature) .. ("\ndefined at %s:%d"):format(place, info.linedefined)
end

-- ---- other values -------------------------------------------------------------------------------------------------

local is_type = { type = true, generic = true }

-- What is said of a type where flow.typing makes it; nil of one that a script has put together.
local function type_text(value, path)
  local lines = lines_of(debug.getinfo(package.loaded["moonflow.typing"].Tuple, "S"))
  path = path or path_of(value)
  local at = lines and path and line_of(lines, path)
  local comment = at and comment_at(lines, at)
  return comment and path .. "\n" .. table.concat(comment, "\n")
end

-- Names that the original has misspelt beside the right ones: they are there for its scripts, and nobody else is told.
local misspelt = { PolynomialSchduler = true }

-- The names in a folder that users are told, in alphabetical order.
local function names_in(folder)
  local names = {}
  for name in next, folder do
    if type(name) == "string" and name:sub(1, 1) ~= "_" and not misspelt[name] then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

-- The fields of a table of functions with the first line about each.
local function folder_text(folder, path)
  local names = names_in(folder)
  if #names == 0 then return nil end
  local lines, line = { (path or "a table") .. " has" }, " "
  for _, name in ipairs(names) do
    if #line + #name > 78 then
      lines[#lines + 1] = line
      line = " "
    end
    line = line .. " " .. name
  end
  lines[#lines + 1] = line
  return table.concat(lines, "\n")
end

--- The help text of a value: a function or job of the library or of the user, an array, a folder of functions.
--- @param value? any     what to explain; a string is a path such as "layers.conv2d", or words to find in all help;
---                       left out, it is `flow`
--- @param path? string   how the user called it
--- @return string|nil    nil when nothing is known
function help.text(value, path)
  if value == nil then value, path = package.loaded.moonflow, "flow" end
  local kind = arguments.kind(value)
  if kind == "function" then return function_text(value, path) end
  if kind == "string" and path == nil then
    local found, full = help.find(value)
    return found ~= nil and help.text(found, full) or help.found_text(value, 80)
  end
  if is_type[kind] then return type_text(value, path) end
  if kind == "job" then return tostring(value) .. "\ndefined at " .. (value.site or "?") end
  if kind == "ndarray" then return "an ndarray " .. value.dtype .. " " .. tostring(value.shape) end
  local meta = debug.getmetatable(value)
  local made_by = type(meta) == "table" and arguments.is_callable(value) and rawget(meta, "__call")
  if kind == "table" and not made_by then return folder_text(value, path) end
  if type(made_by) == "function" then return function_text(made_by, path) end
  return nil
end

--- The help text of a function without where it is defined, or that of a type; nil of all else.
function help.text_only(value, path)
  if type(value) == "function" then return (function_text(value, path):gsub("\ndefined at [^\n]*$", "")) end
  return is_type[arguments.kind(value)] and type_text(value, path) or nil
end

--- The text of the function itself, or of what it hands its work to.
function help.source_text(value)
  if type(value) ~= "function" then return nil end
  local made_of = ops.made_of(value)
  if type(made_of) == "string" then return "the op '" .. made_of .. "' of the engine, which is no Lua" end
  value = made_of or value
  local info = debug.getinfo(value, "S")
  local lines = info.what ~= "C" and source.lines(info.source)
  if not lines then return nil end
  local text = {}
  for i = info.linedefined, info.lastlinedefined do text[#text + 1] = lines[i] end
  return table.concat(text, "\n") .. "\n" .. info.short_src .. ":" .. info.linedefined
end

-- ---- finding by name ----------------------------------------------------------------------------------------------

--- Every path below `flow`, once: { path = value }.
function help.paths()
  local paths, seen = {}, {}
  local function walk(folder, path, depth)
    if seen[folder] or depth > 3 then return end
    seen[folder] = true
    for name, value in next, folder do
      if type(name) == "string" and name:sub(1, 1) ~= "_" then
        paths[path .. "." .. name] = value
        local kind = arguments.kind(value)
        if kind == "table" then walk(value, path .. "." .. name, depth + 1) end
        if kind == "type" then paths[path .. "." .. name .. ".Placeholder"] = rawget(value, "Placeholder") end
      end
    end
  end
  walk(package.loaded.moonflow or {}, "flow", 1)
  return paths
end

--- The methods of all that scripts hold: { ["optimizer:minimize"] = function }.
function help.methods()
  pcall(require, "moonflow.log_file")  -- read when it is first needed; a host may have taken away what it needs
  local methods = {}
  for _, known in ipairs(arguments.classes) do
    for _, name in ipairs(known.methods) do
      methods[known.receiver .. ":" .. name] = rawget(known.class, name)
    end
  end
  return methods
end

-- The first of the paths of a function, in their order, or that of a method; nil where it is none of the library's.
function path_of(f)
  local first
  for _, found in ipairs({ help.paths(), help.methods() }) do
    for path, value in pairs(found) do
      if value == f and (not first or path < first) then first = path end
    end
    if first then return first end
  end
end

--- The value of `flow` at a path, with or without "flow." before it, or the method of a path such as
--- "optimizer:minimize".
--- @return any, string  the value and its full path; nil when there is none
function help.find(path)
  local method = help.methods()[path]
  if method then return method, path end
  local full = path:match("^flow%.") and path or "flow." .. path
  local value = help.paths()[full]
  return value, full
end

local function is_of_arrays(path) return path:find("^flow%.np") ~= nil end

--- What a wrong path may have meant: methods of what the function before its last name gives, else paths below `flow`.
function help.meant(path)
  local before, leaf = path:match("^(.*)[.:]([%w_]+)$")
  local ours = leaf and (is_of_arrays(before) and foreign_of_arrays or foreign)[leaf:lower()]
  if ours then return { ours } end
  local made, found = before and help.find(before), {}
  for method in pairs(type(made) == "function" and help.methods() or {}) do
    if method:match("[%w_]+$") == leaf then found[#found + 1] = method end
  end
  table.sort(found)
  return #found > 0 and found or help.nearest(path)
end

--- Paths below `flow` that a wrong one may have meant, nearest first; at most five.
function help.nearest(path)
  local leaf = path:match("([%w_]+)$") or path
  local exact, leaves, by_leaf = {}, {}, {}
  for full in pairs(help.paths()) do
    local last = full:match("([%w_]+)$")
    if last == leaf then exact[#exact + 1] = full end
    if not by_leaf[last] then
      by_leaf[last] = {}
      leaves[#leaves + 1] = last
    end
    table.insert(by_leaf[last], full)
  end
  table.sort(leaves)
  local found = exact
  if #found == 0 then found = by_leaf[arguments.nearest(leaf, leaves)] or {} end
  table.sort(found)
  for i = #found, 6, -1 do found[i] = nil end
  return found
end

--- The function of a job with this name, or what a method of this name in other libraries is called here; else nil.
function help.in_job(name)
  local ours = foreign[name]
  if ours and not is_of_arrays(ours) then return ours end
  for _, full in ipairs(help.nearest(name)) do
    if full:match("[%w_]+$") == name and ops.doc(help.paths()[full]) then return full end
  end
end

-- ---- finding by words ---------------------------------------------------------------------------------------------

-- A text as words: small letters, without "_" and with one blank before, between and behind them; "isation" is
-- "ization".
local function as_words(text)
  return " " .. text:lower():gsub("[^%w]+", " "):gsub("is(at?i)", "iz%1"):gsub("is(e)", "iz%1") .. " "
end

-- A text about what stands at `path`, as words; its head are the first two lines: how it is called and what it does.
local function read(path, text)
  local leaf = path:match("[%w_]+$")
  -- top_k is "topk" too, and PixelShuffle "pixel shuffle".
  local name = as_words(leaf .. " " .. leaf:gsub("_", "") .. " " .. leaf:gsub("(%l)(%u)", "%1 %2"))
  return { path = path, text = text, path_words = as_words(path), leaf = as_words(leaf), name = name,
           head = as_words(text:match("^[^\n]*\n?[^\n]*")), all = as_words(text) .. name }
end

-- How well a text answers words, whose forms are lists of " padding ", " paddings "; nil where it lacks one of them.
-- Its name counts most, then its head; and whether each word is in one of these.
local function score_of(forms, phrase, it)
  local name, head, all = it.name, it.head, it.all
  local score, is_told = all:find(phrase, 1, true) and 10 or 0, true
  if head:find(phrase, 1, true) then score = score + 10 end
  for _, word in ipairs(forms) do
    local in_all, found = 0, 0
    for _, form in ipairs(word) do
      local at = 1
      while at do
        at = all:find(form, at, true)
        if at then in_all, at = in_all + 1, at + 1 end
      end
      if it.leaf == form then found = math.max(found, 50) end
      if name:find(form, 1, true) then found = math.max(found, 20) end
      if it.path_words:find(form, 1, true) then found = math.max(found, 10) end
      if head:find(form, 1, true) then found = math.max(found, 6) end
    end
    if in_all == 0 then return nil end
    score, is_told = score + found + math.min(in_all, 5), is_told and found > 0
  end
  return score, is_told
end

-- Lists of the forms of words that a text is looked through for: one and many of each, or all that begins with it.
local function forms_of(words, begin)
  local forms = {}
  for word in as_words(words):gmatch("%w+") do
    local one = #word > 3 and word:match("^(.*[^s])s$") or word
    forms[#forms + 1] = begin and { " " .. word }
      or { " " .. one .. " ", " " .. one .. "s ", word ~= one and " " .. word .. " " or nil }
  end
  return forms
end

local known_texts  -- of all functions, when somebody has searched them

local function all_texts()
  if known_texts then return known_texts end
  local texts = {}
  for _, values in ipairs({ help.paths(), help.methods() }) do
    for path, value in pairs(values) do
      local text = help.text_only(value, path)
      if text then texts[#texts + 1] = read(path, text) end
    end
  end
  known_texts = texts  -- when there are all: a search may be stopped
  return texts
end

local function search(words, forms)
  local phrase, by_text, found, is_told = as_words(words), {}, {}, false
  local known = foreign[words:lower()]
  for _, it in ipairs(all_texts()) do
    local path, text = it.path, it.text
    local score, in_head = score_of(forms, phrase, it)
    if path == known then score, in_head = 1000, true end
    is_told = is_told or in_head
    -- Of several names of one function that which its text gives it.
    local same = score and by_text[text]
    if score and not same then
      by_text[text] = { path = path, score = score, text = text }
      found[#found + 1] = by_text[text]
    elseif same and (text:find(path .. "(", 1, true) == 1 or same.score < score) then
      same.path, same.score = path, math.max(same.score, score)
    end
  end
  table.sort(found, function(one, other)
    if one.score ~= other.score then return one.score > other.score end
    return one.path < other.path
  end)
  local list = {}
  for i, entry in ipairs(found) do list[i] = { entry.path, entry.text:match("^[^\n]*\n([^\n]*)") or "" } end
  return list, is_told
end

--- The functions and methods in whose help all of some words are, best first: a list of { path, what it does }. Where
--- no name and no beginning has them, also those with words that begin so.
function help.search(words)
  local forms = forms_of(words, false)
  if #forms == 0 then return {} end
  local found, is_told = search(words, forms)
  if not is_told and #words:match("%w+") >= 3 then found = search(words, forms_of(words, true)) end
  return found
end

--- The recipes that all of some words are about, as `search` gives functions: { file, what stands there }.
function help.recipes(words)
  local list, forms, phrase = {}, forms_of(words, false), as_words(words)
  if #forms == 0 then return list end
  for _, recipe in ipairs(require "moonflow.recipes") do
    local score = score_of(forms, phrase, read(recipe[1], table.concat(recipe, " ")))
    if score then list[#list + 1] = { recipe[1], recipe[2] } end
  end
  return list
end

--- What to write in place of what there is none of, by its path or the last name of that; nil where nothing is known.
function help.advice(path)
  local lines, told = {}, {}
  local full = absent[path] and path or "flow." .. path
  for _, known in ipairs(absent[full] and { full } or arguments.sorted_keys(absent)) do
    local advice = absent[known]
    if (known == full or known:match("[%w_]+$") == path) and not told[advice] then
      told[advice] = true
      lines[#lines + 1] = wrapped(("there is no %s; %s"):format(known, advice))
    end
  end
  return #lines > 0 and table.concat(lines, "\n") or nil
end

local kScreen = 20  -- lines

--- What `search` finds as lines for a screen of this width, advice above and recipes below; nil when that is nothing.
function help.found_text(words, width)
  local found, told, shown = help.search(words), help.recipes(words), {}
  for i = 1, math.min(#found, kScreen) do shown[i] = found[i] end
  local functions = #shown
  for _, recipe in ipairs(told) do shown[#shown + 1] = recipe end
  local lines, widest = {}, 0
  for _, entry in ipairs(shown) do widest = math.max(widest, #entry[1]) end
  for i, entry in ipairs(shown) do
    local line = entry[1] .. (" "):rep(widest + 2 - #entry[1]) .. entry[2]
    lines[#lines + 1] = #line > width and line:sub(1, width - 3) .. "..." or line
    if i == functions and #found > functions then lines[#lines + 1] = ("and %d more"):format(#found - functions) end
  end
  local advice = help.advice(words)
  if advice then table.insert(lines, 1, advice) end
  return #lines > 0 and table.concat(lines, "\n") or nil
end
interrupts.keep_open(help.found_text)  -- a first search may be stopped

-- ---- names that there are not -------------------------------------------------------------------------------------

local kTelling = 4  -- letters of a name; what resembles a shorter one, anywhere, resembles it by chance

-- What may have been meant by a name that the folder at `path` lacks: the same in other letters, the same elsewhere,
-- what resembles it here, or anywhere. Functions of arrays stand for none of values in a job, nor the other way round.
local function meant(path, folder, key)
  local names, of_arrays = names_in(folder), is_of_arrays(path)
  for _, name in ipairs(names) do
    if name:lower() == key:lower() then return { path .. "." .. name } end
  end
  local ours = (of_arrays and foreign_of_arrays or foreign)[key:lower()]
  if ours then return { ours } end
  local elsewhere = {}
  for _, full in ipairs(help.nearest(key)) do
    if is_of_arrays(full) == of_arrays then elsewhere[#elsewhere + 1] = full end
  end
  if elsewhere[1] and elsewhere[1]:match("[%w_]+$") == key then return elsewhere end
  local near = arguments.nearest(key, names)
  if near then return { path .. "." .. near } end
  return #key >= kTelling and elsewhere or {}
end

-- "; it has a, b" of a folder with few names; nothing of one that would fill the screen.
local function all_of(folder)
  local names = names_in(folder)
  return #names <= 24 and "; it has " .. table.concat(names, ", ") or ""
end

--- Makes it an error to read what a folder of the library, or one below it, does not have: a misspelt name would be
--- nil, and a misspelt type no type at all. rawget asks without an error.
function help.close(path, folder)
  if getmetatable(folder) ~= nil then return end
  setmetatable(folder, { folder = path, __index = function(_, key)
    local advice = absent[path .. "." .. tostring(key)]
    if advice then errors.raise("not_found", path .. " has no '" .. key .. "'; " .. advice) end
    local near = type(key) == "string" and meant(path, folder, key) or {}
    errors.raise("not_found", path .. " has no '" .. tostring(key) .. "'"
      .. (near[1] and "; did you mean " .. table.concat(near, ", ") .. "?" or all_of(folder)))
  end })
  for name, value in next, folder do
    if type(name) == "string" and type(value) == "table" then help.close(path .. "." .. name, value) end
  end
end

return help
