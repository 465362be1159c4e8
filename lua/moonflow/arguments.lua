--- Arguments: any parameter may be given by position or as a key of a trailing options table.
-- A signature is made once per function; parsing checks names (with suggestions), kinds, and fills in defaults.
--
-- A parameter is { name, kind, default, text = what help says of it }. A kind that ends in "?" may be left out; so may
-- one with a default. `engine_default` is one that the engine fills in, for help. A table in the place of a dictionary
-- is not the options.

local core = require "moonflow.core"
local call_forms = require "moonflow.call_forms"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local debug, io_type = debug, io.type

local arguments = {}

local shape_metatable = getmetatable(core.shape { 1 })

-- Of a userdata this one is asked: where the other is compiled, LuaJIT 2.1.0-beta3 reads wild for a file of io.
local metatable_of = debug.getmetatable

--- What a value is, as a word: a Lua type, or "blob", "ndarray", "initializer", ... for the library's own objects.
function arguments.kind(value)
  local kind = type(value)
  if kind == "table" then
    local meta = getmetatable(value)
    return type(meta) == "table" and rawget(meta, "kind") or kind
  elseif kind == "userdata" then
    local meta = metatable_of(value)
    if meta == core.ndarray_metatable then return "ndarray" end
    if meta == shape_metatable then return "shape" end
  end
  return kind
end
local kind_of = arguments.kind

--- The path of a folder of the library, such as flow.nn; nil for everything else.
function arguments.folder(value)
  local meta = type(value) == "table" and getmetatable(value)
  return type(meta) == "table" and rawget(meta, "folder") or nil
end

-- What C has made: "5LL", "a cdata<int [3]>", or an object that the functions here do not know.
local function describe_foreign(value, kind)
  if kind == "cdata" then
    local text = tostring(value)
    local type_of = text:match("^cdata%b<>")
    return text:match("^%-?%d+U?LL$") or type_of and "a " .. type_of or "a cdata"
  end
  local file = io_type(value)
  if file then return file == "file" and "an open file" or "a " .. file end
  local meta = metatable_of(value)
  local name = type(meta) == "table" and rawget(meta, "__name")
  local ours = type(name) == "string" and name:match("^moonflow (.*)$")
  if not ours then return "a userdata" end
  return (ours == "ndarray" and "an " or "a ") .. ours .. " of another copy of the library, which is loaded twice here"
end

local kQuoted = 60  -- bytes of a string that a message shows

local function is_utf8(text)
  return not text:gsub("[\194-\223][\128-\191]", ""):gsub("[\224-\239][\128-\191][\128-\191]", "")
    :gsub("[\240-\244][\128-\191][\128-\191][\128-\191]", ""):find("[\128-\255]")
end

-- Whatever a string holds, it is a few words of text: bytes that are none as "\255", and of many the first ones.
local function string_text(text)
  local shown = text
  if #text > kQuoted then shown = text:sub(1, kQuoted):gsub("[\192-\247][\128-\191]*$", "") end
  local strange = is_utf8(shown) and "[%c\127]" or "[%c\127-\255]"
  shown = shown:gsub(strange, function(byte) return byte == "\n" and "\\n" or ("\\%d"):format(byte:byte()) end)
  shown = "'" .. shown .. "'"
  return #text > kQuoted and ("%s... (%d bytes)"):format(shown, #text) or shown
end

--- A value in a few words, for messages: "a blob", "an ndarray float32 (100, 10)", "'text'", "nil".
function arguments.describe(value)
  local kind = kind_of(value)
  if kind == "userdata" or kind == "cdata" then return describe_foreign(value, kind) end
  if kind == "nil" or kind == "boolean" or kind == "number" then return tostring(value) end
  if kind == "string" then return string_text(value) end
  if kind == "ndarray" and value.released then return "a released ndarray" end
  if kind == "ndarray" then return "an ndarray " .. value.dtype .. " " .. tostring(value.shape) end
  local folder = arguments.folder(value)
  if folder then return folder .. ", as a call with ':' in place of '.' gives it" end
  local article = kind:find("^[aeiou]") and "an " or "a "
  return article .. kind
end

--- "; np.array(0.5) makes one", of a number or a table in the place of an array of this dtype and shape, or nothing.
function arguments.maker(value, dtype, shape)
  local kind = kind_of(value)
  if kind ~= "table" and not (kind == "number" and #shape == 0) then return "" end
  return ("; np.array(%s%s) makes one"):format(kind == "number" and value or "it",
    dtype == "float32" and "" or ", flow." .. dtype)
end

--- The candidate nearest to `name`, or nil when none is near: half of it must be the same. The beginning of a word
--- counts as near to it.
arguments.nearest = core.nearest

--- "; did you mean 'x'?", or nothing.
function arguments.suggestion(name, candidates)
  local near = type(name) == "string" and arguments.nearest(name, candidates)
  return near and "; did you mean '" .. near .. "'?" or ""
end

--- The keys of a table, in alphabetical order.
function arguments.sorted_keys(of)
  local keys = {}
  for key in pairs(of) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  return keys
end

--- Some of a list of names, at most so many, and how many others there are: "a, b and 3 more".
function arguments.some_of(names, most)
  local text = table.concat(names, ", ", 1, math.min(#names, most))
  return #names > most and text .. " and " .. #names - most .. " more" or text
end

--- The same of names between quotes: "'a', 'b' and 3 more".
function arguments.some_quoted(names, most)
  local quoted = {}
  for i, name in ipairs(names) do quoted[i] = "'" .. tostring(name) .. "'" end
  return arguments.some_of(quoted, most)
end

-- Beyond 2^53 a number is no longer exact, so what it was meant to be is unknown.
local function is_integer(value)
  return type(value) == "number" and value % 1 == 0 and value >= -2 ^ 53 and value <= 2 ^ 53
end
arguments.is_integer = is_integer

-- What has a __call only to say that it cannot be called is marked `uncallable`.
local function is_callable(value)
  local kind = type(value)
  if kind == "function" then return true end
  local meta = kind == "userdata" and metatable_of(value) or kind == "table" and getmetatable(value)
  return type(meta) == "table" and type(meta.__call) == "function" and not rawget(meta, "uncallable")
end
arguments.is_callable = is_callable

--- Raises where a value cannot be called. `wanted` begins the error: "flow.spawn wants a function".
function arguments.check_callable(value, wanted)
  if not is_callable(value) then
    errors.raise("invalid_argument", wanted .. ", got " .. arguments.describe(value))
  end
end

--- Is it a size of an axis that is not empty?
function arguments.is_size(value)
  return is_integer(value) and value >= 1
end

--- Bytes and what comes after them, but for their number: love.filesystem.read gives it too.
function arguments.of_bytes(...)
  local bytes, size = ...
  if type(bytes) == "string" and size == #bytes then return bytes, select(3, ...) end
  return ...
end

--- How many places or weights a list may have that is made number by number, in a script.
arguments.most_listed = 2 ^ 24

local function is_of_kind(kind)
  return function(value) return kind_of(value) == kind end
end

-- kind -> { test, what is wanted }. A kind that is not here is the word that `kind` gives.
local checks = {
  any = { function(value) return value ~= nil end, "a value" },
  integer = { is_integer, "an integer" },
  finite = { function(value) return type(value) == "number" and value - value == 0 end, "a finite number" },
  callable = { is_callable, "a function" },
  dtype = { dtypes.is, "a dtype such as flow.float32" },
  floating = { function(value) return dtypes.floating[value] == true end, "a floating dtype such as flow.float32" },
  stored = { dtypes.is_stored, 'a dtype such as flow.float32, or "int16" or "uint16"' },
  list = { function(value)
    local kind = kind_of(value)
    return kind == "table" or kind == "number" or kind == "shape"
  end, "a number or a list" },
  operand = { function(value)
    local kind = kind_of(value)
    return kind == "blob" or kind == "number" or kind == "ndarray"
  end, "a blob" },
  operands = { is_of_kind "table", "a list of blobs" },
  numbers = { function(value)
    local kind = kind_of(value)
    return kind == "number" or kind == "ndarray" or kind == "table"
  end, "a number or an array" },
  ndarray = { is_of_kind "ndarray", "an ndarray" },
  entries = { is_of_kind "table", "a list" },
  dictionary = { is_of_kind "table", "a table with names as keys" },
  rate = { function(value) return value ~= nil end, "a learning rate such as 0.001 or a scheduler" },
  clipping = { is_of_kind "clipping", "a clipping such as flow.optimizer.grad_clipping.by_global_norm(1)" },
  regularizer = { is_of_kind "regularizer", "a regularizer such as flow.regularizers.l2(0.01)" },
}

local function fits(kind, value)
  local check = checks[kind]
  if check then return check[1](value) end
  return kind_of(value) == kind
end

local function wanted(kind)
  local check = checks[kind]
  if check then return check[2] end
  return (kind:find("^[aeiou]") and "an " or "a ") .. kind
end

--- Raises where ipairs would leave out something of a list without a word. `what` begins the error.
function arguments.check_list(list, what)
  local flaw = core.list_flaw(list)
  if flaw then errors.raise("invalid_argument", what .. flaw) end
  return list
end

local kDeepest = 8  -- of nested lists; those of arrays have no more

local function append_flat(flat, list, depth, what)
  if depth > kDeepest then errors.raise("invalid_argument", what .. ": lists are nested more than 8 deep") end
  for i, item in ipairs(arguments.check_list(list, what)) do
    local kind = kind_of(item)
    if kind == "table" then
      append_flat(flat, item, depth + 1, what)
    elseif kind == "number" then
      flat[#flat + 1] = item
    elseif kind == "cdata" and tonumber(item) and math.abs(tonumber(item)) <= 2 ^ 53 then  -- 5LL
      flat[#flat + 1] = tonumber(item)
    else
      errors.raise("invalid_argument", ("%s: entry %d of a list is %s, wanted numbers"):format(what, i,
        arguments.describe(item)))
    end
  end
  return flat
end

--- A list of numbers out of a number, a shape, or a list that may be nested.
--- @param what? string  begins the error: the function and its argument
--- @error a hole, a key that is no place in a list, what is no number, a list that holds itself
function arguments.flat_list(value, what)
  local kind = kind_of(value)
  if kind == "shape" then return value:table() end
  if kind ~= "table" then return { value } end
  return append_flat({}, value, 1, what or "a list")
end

--- Classes of which scripts hold objects, for help: { name, receiver, class, methods }.
arguments.classes = {}

--- Tells help which methods of a class are for scripts.
--- @param name string      of the class: "Job"
--- @param receiver string  what help writes before the colon: "job"
--- @param class table      which has the methods, then or later
--- @param methods string   their names, with blanks between them
function arguments.publish(name, receiver, class, methods)
  local list = {}
  for method in methods:gmatch("%S+") do list[#list + 1] = method end
  table.sort(list)
  table.insert(arguments.classes, { name = name, receiver = receiver, class = class, methods = list })
end

--- Raises that a method was called with ".".
function arguments.want_colon(called)
  errors.raise("invalid_argument", called .. " is a method: call it with ':'")
end

--- Checks what a method is called on; `called` is how: "job:prepare".
--- @error a call with "." in place of ":"
function arguments.check_self(self, class, called)
  if type(self) ~= "table" or getmetatable(self) ~= class then arguments.want_colon(called) end
end

-- Is a last argument the options? They have only string keys and no metatable of their own, so they are neither a list
-- nor an object. An empty table is both options and a list: it is what the parameter at its place takes, or would need.
local function is_options(value, parameter, form)
  if type(value) ~= "table" or getmetatable(value) ~= nil or value[1] ~= nil then return false end
  if parameter and parameter.kind == "dictionary" then
    -- One of arrays has no table in it, so what is the parameter under its own name there is an option.
    for name, of in pairs(form and form.of or {}) do
      if of == parameter and kind_of(value[name]) == "table" then return true end
    end
    return form ~= nil and kind_of(value[parameter.name]) == "table"
  end
  if parameter and parameter.kind == "any" and type(next(value)) == "number" then return false end  -- a hole first
  return next(value) ~= nil or parameter == nil or not (parameter.required or fits(parameter.kind, value))
end

local is_list = { list = true, operands = true, entries = true }  -- kinds whose tables count from 1 to their end

local Signature = {}
Signature.__index = Signature

--- Gives parameters that have no text of their own that of their name.
--- @param list table   parameters, as a signature is made of them
--- @param texts table  { name = text }, of what means the same throughout
function arguments.explain(list, texts)
  for _, parameter in ipairs(list) do parameter.text = parameter.text or texts[parameter[1]] end
end

-- The original's form of a call: by name what is another parameter here, and in its order all parameters.
local function form_of(where, by_name)
  local list = call_forms[where]
  if not list then return nil end
  local form = { order = {}, of = {}, named_after = list.named_after }
  for i, entry in ipairs(list) do
    if type(entry) == "table" then
      form.order[i] = { name = entry[1], kind = entry[2], only = entry[3], hint = entry[4], foreign = true }
      form.of[entry[1]] = form.order[i]
    else
      local name, ours = entry:match("^([%w_]+)=?([%w_]*)$")
      form.order[i] = by_name[ours ~= "" and ours or name]
      form.of[name] = form.order[i]
    end
  end
  return form
end

-- A signature of which nothing has been asked yet. There are hundreds, of which a script uses some.
local Unread = {}

function Unread.__index(self, key)
  local list = rawget(self, "list")
  local parameters, by_name, names = {}, {}, {}
  for i, entry in ipairs(list) do
    local kind, optional = entry[2]:gsub("%?$", "")
    local parameter = { name = entry[1], kind = kind, default = entry[3], engine_default = entry.engine_default,
                        text = entry.text, required = optional == 0 and entry[3] == nil }
    parameters[i], by_name[entry[1]], names[i] = parameter, parameter, entry[1]
  end
  self.parameters, self.by_name, self.names, self.form = parameters, by_name, names, form_of(self.where, by_name)
  setmetatable(self, Signature)  -- last, so that whoever was interrupted begins anew
  self.list = nil
  return self[key]
end

--- Makes a signature.
--- @param where string    what the user calls, such as "flow.layers.dense"
--- @param list table      parameters in their order: { name, kind, default }
function arguments.signature(where, list)
  return setmetatable({ where = where, list = list }, Unread)
end

--- The same parameters under another name of the function.
function Signature:called(where)
  return setmetatable({ where = where, parameters = self.parameters, by_name = self.by_name, names = self.names,
                        elsewhere = self.elsewhere, form = self.form }, Signature)
end

--- An axis of a value of this rank, counted from the beginning; a negative one counts from the end.
function Signature:axis(axis, rank)
  if type(axis) ~= "number" or axis % 1 ~= 0 then
    self:fail(": an axis is a whole number, got " .. arguments.describe(axis))
  end
  local wrapped = axis < 0 and axis + rank or axis
  if wrapped < 0 or wrapped >= rank then
    self:fail(": axis " .. axis .. " is out of range for rank " .. rank .. " (axes 0.." .. rank - 1 .. ")")
  end
  return wrapped
end

--- Refuses a list of so many numbers, made one by one in a script, that no memory may hold it.
function Signature:check_list(count)
  if count > arguments.most_listed then self:fail((": it would need a list of %g numbers"):format(count)) end
end

--- What to write in place of options that there are not: name -> "; ..." at the end of the error.
function Signature:instead(elsewhere)
  self.elsewhere = elsewhere
end

function Signature:fail(message, site)
  errors.raise("invalid_argument", self.where .. message, site)
end

-- What options are called elsewhere that have one name throughout here.
local foreign = {
  dim = "axis", dims = "axis", axes = "axis", kernel_size = "ksize", is_causal = "causal", attn_mask = "mask",
  attention_mask = "mask", key_padding_mask = "mask", dropout_p = "rate", hidden_size = "units", out_features = "units",
  n_fft = "fft_length", win_length = "frame_length", hop_length = "frame_step", n_mels = "num_mel_bins",
  f_min = "lower_edge_hertz", f_max = "upper_edge_hertz", sr = "sample_rate", deviation = "stddev",
  pool_size = "ksize", go_backwards = "reverse", output_padding = "output_shape",
  initial_hidden = "initial_state", initial_state = "initial_hidden", bias = "use_bias", p = "rate",
  initializer = "kernel_initializer", regularizer = "kernel_regularizer",
}
-- What others have as an option, and what does the same here.
local foreign_advice = {
  padding_idx = "; times flow.cast(flow.expand_dims(ids:ne(0), -1), flow.float) the vectors of the padding, here of id "
    .. "0, are 0 and have no gradient",
}

-- An option that there is not: the nearest one, else all of them. A list without a first entry looks like options.
local function fail_option(self, name)
  if type(name) == "number" then
    self:fail((": a list has a hole: nothing stands at 1, but something at %g"):format(name)
      .. (self.by_name.shape and "; sizes cannot be left open" or ""))
  end
  local near = self.elsewhere and self.elsewhere[name]
  if not near and self.by_name[foreign[name]] then near = "; did you mean '" .. foreign[name] .. "'?" end
  near = near or foreign_advice[name] or arguments.suggestion(name, self.names)
  if near == "" then near = "; its parameters are " .. table.concat(self.names, ", ") end
  self:fail(" has no option '" .. tostring(name) .. "'" .. near)
end

--- Fails where the path is what files begin with, patterns: then it is the bytes of `what`, which another function
--- takes.
function Signature:refuse_bytes(path, beginnings, what, instead)
  for _, beginning in ipairs(beginnings) do
    if path:find(beginning) then
      self:fail(": the path is the bytes of " .. what .. ", which " .. instead .. "(bytes) takes")
    end
  end
end

--- Raises that there are `count` arguments, more than parameters.
--- @param hint? string  "; ..." at the end of the error
function Signature:too_many(count, hint)
  self:fail((" takes at most %d %s (%s), got %d"):format(#self.parameters,
    #self.parameters == 1 and "argument" or "arguments", table.concat(self.names, ", "), count) .. (hint or ""))
end

--- What to do about a value of another kind than the one wanted, as the end of a message.
--- @param name? string          of the parameter
--- @param by_position? boolean  whether it was given so
function arguments.hint_of(wanted_kind, value, name, by_position)
  local kind = kind_of(value)
  if kind == "table" and (wanted_kind == "blob" or wanted_kind == "operand") then
    if kind_of(rawget(value, 1)) == "blob" then return "; flow.stack(it) and flow.concat(it) make one of several" end
    return wanted_kind == "operand" and "; np.array(it) is a constant of the job, and goes here" or ""
  elseif kind == "boolean" and (wanted_kind == "blob" or wanted_kind == "operand") then
    return "; x:eq(y), x:gt(y) and their like compare elements, and == tells whether two values are the same one"
  elseif wanted_kind == "blob" and kind == "ndarray" then
    return "; inside a job body values are blobs: take it as an input of the job, or where it stays the same for ever "
      .. "as the constant flow.identity(it)"
  elseif wanted_kind == "number" and kind == "ndarray" then
    return "; a:item() is the number of an array of one element, and in a job body an array is a constant as it is"
  elseif wanted_kind == "string" and io_type(value) then
    return name == "path" and "; it takes the path, and opens the file itself"
      or name == "bytes" and "; file:read(\"*a\") gives those of a file" or ""
  elseif name == "name" and kind == "number" and by_position then
    return "; several numbers are one argument as a list, such as { 2, 3 }"
  elseif wanted_kind == "callable" and kind == "string" then
    return "; write the function itself, such as flow.nn.relu"
  elseif wanted_kind == "initializer" and kind == "string" then
    return "; write what makes it, such as flow.zeros_initializer()"
  elseif wanted_kind == "initializer" and kind == "function" then
    return "; such a function gives one when it is called, as flow.zeros_initializer() does"
  elseif wanted_kind == "floating" and dtypes.is(value) then
    return "; of real numbers :astype makes whole ones"
  elseif (wanted_kind == "dtype" or wanted_kind == "floating" or wanted_kind == "stored") and kind == "string" then
    local near = dtypes.from_elsewhere[value]
    return near and "; did you mean '" .. near .. "'?" or arguments.suggestion(value, dtypes.names)
  end
  return ""
end
local hint_of = arguments.hint_of

-- Does each of `count` values fit the parameter at its place?
local function all_fit(parameters, count, ...)
  if count > #parameters then return false end
  for i = 1, count do
    local value = select(i, ...)
    if value ~= nil and not fits(parameters[i].kind, value) then return false end
  end
  return true
end

-- The parameters that `count` values given by position are for: ours, or the original's where only these fit.
local function order_of(self, count, ...)
  local form, ours = self.form, self.parameters
  if not form then return ours end
  if form.named_after and count > form.named_after then
    self:fail((": arguments after the first %d go by name, as OneFlow has them in another order: { %s = ... }"):format(
      form.named_after, ours[form.named_after + 1].name))
  end
  if all_fit(ours, count, ...) or not all_fit(form.order, count, ...) then return ours end
  -- What looks like a dtype is no name.
  for i = 1, math.min(count, #ours) do
    if ours[i].kind == "dtype" and hint_of("dtype", (select(i, ...))) ~= "" then return ours end
  end
  return form.order
end

-- Of a parameter that there is none of here: passes over its value where that changes nothing.
local function pass_over(self, parameter, value)
  if not fits(parameter.kind, value) or parameter.only ~= nil and value ~= parameter.only then
    self:fail((": '%s' can only be %s here, got %s"):format(parameter.name,
      parameter.only == nil and wanted(parameter.kind) or tostring(parameter.only), arguments.describe(value))
      .. (parameter.hint and "; " .. parameter.hint or ""))
  end
end

local function fail_twice(self, parameter, order, count)
  local how = "under two names"
  for i = 1, count do
    if order[i] == parameter then how = "by position and as an option" end
  end
  self:fail(": '" .. parameter.name .. "' is given " .. how)
end

--- The arguments by name, checked, with defaults filled in.
function Signature:parse(...)
  local count = select("#", ...)
  if arguments.folder((...)) then self:fail(" is no method: call it with '.' in place of ':'") end
  local values = {}
  local parameters = self.parameters
  local options = count > 0 and select(count, ...) or nil
  if is_options(options, parameters[count], self.form) then count = count - 1 else options = nil end
  local order = order_of(self, count, ...)
  if count > #order then self:too_many(count) end
  for i = 1, count do
    local value = select(i, ...)
    if not order[i].foreign then
      values[order[i].name] = value
    elseif value ~= nil then
      pass_over(self, order[i], value)
    end
  end
  if options then
    for name, value in pairs(options) do
      local parameter = self.by_name[name] or self.form and self.form.of[name] or fail_option(self, name)
      if parameter.foreign then
        pass_over(self, parameter, value)
      elseif values[parameter.name] ~= nil then
        fail_twice(self, parameter, order, count)
      else
        values[parameter.name] = value
      end
    end
  end

  for i = 1, #parameters do
    local parameter = parameters[i]
    local value = values[parameter.name]
    if value == nil then
      if parameter.required then
        self:fail(": argument " .. i .. " ('" .. parameter.name .. "') must be " .. wanted(parameter.kind)
          .. ", got nil")
      end
      values[parameter.name] = parameter.default
    elseif not fits(parameter.kind, value) then
      self:fail(": argument " .. i .. " ('" .. parameter.name .. "') must be " .. wanted(parameter.kind) .. ", got "
        .. arguments.describe(value) .. hint_of(parameter.kind, value, parameter.name, i <= count))
    elseif is_list[parameter.kind] and kind_of(value) == "table" then
      local what = self.where .. ": argument " .. i .. " ('" .. parameter.name .. "')"
      if parameter.kind == "list" then
        arguments.flat_list(value, what)
      else
        arguments.check_list(value, what)
      end
    end
  end
  return values
end

--- A value as a script writes it: "VALID", {1, 2}, 0.9.
function arguments.written(value)
  if type(value) == "string" then return '"' .. value .. '"' end
  if type(value) ~= "table" then return tostring(value) end
  local items = {}
  for i, item in ipairs(value) do items[i] = arguments.written(item) end
  return "{" .. table.concat(items, ", ") .. "}"
end

--- What a parameter is when it is left out, or nil.
function arguments.default_of(parameter)
  if parameter.default ~= nil then return parameter.default end
  return parameter.engine_default
end

--- A parameter as help writes it: "x", "{ inputs... }", "padding = "VALID"", "[name]".
function arguments.parameter_text(parameter)
  local default = arguments.default_of(parameter)
  if default ~= nil then return parameter.name .. " = " .. arguments.written(default) end
  local name = parameter.kind == "operands" and "{ " .. parameter.name .. "... }" or parameter.name
  return parameter.required and name or "[" .. name .. "]"
end

--- "flow.nn.max_pool2d(x, ksize, strides = {}, padding = "VALID", [name])", for help.
function Signature:text()
  local parts = {}
  for i, parameter in ipairs(self.parameters) do parts[i] = arguments.parameter_text(parameter) end
  return self.where .. "(" .. table.concat(parts, ", ") .. ")"
end

--- Option names of functions that check their options themselves, for help and completion.
arguments.options = setmetatable({}, { __mode = "k" })

--- The signature that a function of the library parses its arguments with, or nil. It is one of its upvalues.
function arguments.signature_of(f)
  for i = 1, 60 do
    local name, value = debug.getupvalue(f, i)
    if not name then return nil end
    local class = getmetatable(value)
    if class == Signature or class == Unread then return value end
  end
end

return arguments
