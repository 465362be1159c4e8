-- Writes what editors know about the library, as annotations that a language server reads (LuaCATS). It is put together
-- from the catalog of ops and from the comments in lua/moonflow, as help is. The build calls it.
--   build/moonflow docs/write_editor.lua build/editor/moonflow.lua
local flow = require "moonflow"
local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local help = require "moonflow.help"
local ops = require "moonflow.ops"

local tp = flow.typing

-- ---- types --------------------------------------------------------------------------------------------------------

-- Kinds of arguments, where the word is not the type.
local KINDS = {
  operand = "moonflow.Operand", operands = "moonflow.Operand[]", finite = "number", dtype = "moonflow.DType",
  floating = "moonflow.DType", stored = "moonflow.DType|\"int16\"|\"uint16\"",
  numbers = "number|table|moonflow.NdArray",
  list = "number|table", callable = "function", dictionary = "table<string, any>",
  blob = "moonflow.Blob", ndarray = "moonflow.NdArray", initializer = "moonflow.Initializer",
  regularizer = "moonflow.Regularizer", clipping = "moonflow.Clipping", loss_scale = "moonflow.LossScale",
  warmup = "moonflow.Warmup", rate = "any",
}

-- What comments call our own objects.
local OURS = { ndarray = "moonflow.NdArray", placement = "moonflow.Placement" }
for _, word in ipairs { "Blob", "Job", "Watch", "Task", "Server", "Regularizer", "Initializer", "Type", "Generator",
                        "Log", "Dataset", "Batches", "CheckPoint", "Progress", "Pending", "Prepared", "Decorator" } do
  OURS[word] = "moonflow." .. word
end

local function written(type_text)
  return (type_text:gsub("[%a_]+", OURS))
end

-- What is given by functions of which neither the catalog nor their comment tells: by patterns of paths, of which the
-- first counts.
local GIVES = {
  { "_initializer$", "moonflow.Initializer" }, { "^flow%.truncated_normal$", "moonflow.Initializer" },
  { "Scheduler$", "moonflow.Scheduler" }, { "%.warmup%.", "moonflow.Warmup" },
  { "%.grad_clipping%.", "moonflow.Clipping" }, { "%.loss_scale%.", "moonflow.LossScale" },
  { "^flow%.optimizer%.%u", "moonflow.Optimizer" }, { "^flow%.regularizers%.", "moonflow.Regularizer" },
  { "Placeholder$", "moonflow.Placeholder" }, { "TensorDef$", "moonflow.Placeholder" },
  { "^flow%.typing%.%u", "moonflow.Type" }, { "^flow%.np%.", "moonflow.NdArray" },
  { "^moonflow%.NdArray:", "moonflow.NdArray" }, { "^moonflow%.Generator:", "moonflow.NdArray" },
  { "^moonflow%.Blob:", "moonflow.Blob" }, { "^flow%.config%." }, { "^flow%.profiler%." },
  { "%.lstm$", "moonflow.Blob, moonflow.Blob, moonflow.Blob" },
  { "%.lstm_cell$", "moonflow.Blob, moonflow.Blob" }, { "%.gru$", "moonflow.Blob, moonflow.Blob" },
}

local catalog = {}  -- "flow.nn.relu" -> what the catalog says about the op
for _, op in ipairs(core.session { threads = 1 }:ops()) do
  if op.lua then catalog["flow." .. op.lua] = op end
end

local function gives(path, f)
  for _, entry in ipairs(GIVES) do
    if path:find(entry[1]) then return entry[2] end
  end
  return ops.doc(f) and "moonflow.Blob" or "any"
end

-- ---- what is known about a function -------------------------------------------------------------------------------

-- The types that a text begins with: words, of which all but the last end in a comma.
local function types_at(text)
  local types = {}
  for word in text:gmatch("%S+") do
    types[#types + 1] = word
    if word:sub(-1) ~= "," then break end
  end
  return table.concat(types, " ")
end

-- Of a comment: its text, the type and text of each parameter by name, their names, what is given, and other ways to
-- call the function.
local function read_comment(lines)
  local said = { text = {}, params = {}, names = {}, overloads = {} }
  local param
  for _, line in ipairs(lines) do
    local name, kind, text = line:match("^@param%s+([%w_]+%??)%s+(%S+)%s*(.*)$")
    local word, rest = line:match("^@(%a+)%s*(.*)$")
    if param and line:find("^%s%s+%S") then
      param.text = param.text .. " " .. line:match("^%s*(.*)$")
    else
      param = nil
    end
    if name then
      param = { optional = name:find("?", 1, true) ~= nil, type = written(kind), text = text }
      name = name:gsub("%?", "")
      said.params[name] = param
      said.names[#said.names + 1] = name
    elseif word == "return" then
      said.gives = written(types_at(rest))
    elseif word == "overload" then
      said.overloads[#said.overloads + 1] = written(rest)
    elseif word == "error" then
      said.text[#said.text + 1] = "errors: " .. rest
    elseif not param then
      said.text[#said.text + 1] = line
    end
  end
  return said
end

-- The parameters of a function with a signature: by position or as a key of a trailing table.
local function by_signature(signature, said)
  local list = {}
  for i, parameter in ipairs(signature.parameters) do
    local comment = said.params[parameter.name]
    local kind = KINDS[parameter.kind] or parameter.kind
    local text = comment and comment.text or parameter.text or ""
    local default = arguments.default_of(parameter)
    if default ~= nil and default ~= "" then
      text = text .. (text ~= "" and "; " or "") .. "default " .. arguments.written(default)
    end
    list[i] = { name = parameter.name, type = kind == "any" and comment and comment.type or kind,
                optional = not parameter.required, text = text }
  end
  return list
end

-- Those that its comment tells, or else that it has.
local function by_comment(f, said, is_method)
  local list = {}
  for i, name in ipairs(said.names) do
    local param = said.params[name]
    list[i] = { name = name, type = param.type, optional = param.optional, text = param.text }
  end
  if #list > 0 then return list end
  local info = debug.getinfo(f, "u")
  for i = is_method and 2 or 1, info.nparams do
    list[#list + 1] = { name = debug.getlocal(f, i), type = "any", optional = true, text = "" }
  end
  if info.isvararg then list[#list + 1] = { name = "...", type = "any", text = "" } end
  return list
end

-- ---- writing ------------------------------------------------------------------------------------------------------

local out = {}
local function put(line) out[#out + 1] = line end

-- "units? integer # how many".
local function described(parameter, optional)
  return ("%s%s %s"):format(parameter.name, optional and "?" or "", parameter.type)
    .. (parameter.text ~= "" and " # " .. parameter.text or "")
end

local function listed(parameters, count)
  local parts = {}
  for i = 1, count do parts[i] = parameters[i].name .. ": " .. parameters[i].type end
  return table.concat(parts, ", ")
end

-- The other ways to call a function with a signature: the first arguments by position, then a table with the rest.
local function put_overloads(parameters, class, result, receiver, is_overloaded)
  local required = 0
  while parameters[required + 1] and not parameters[required + 1].optional do required = required + 1 end
  local function overload(count, last)
    local parts = { receiver }
    if count > 0 then parts[#parts + 1] = listed(parameters, count) end
    parts[#parts + 1] = last
    put(("---@overload fun(%s)%s"):format(table.concat(parts, ", "), result and ": " .. result or ""))
  end
  for count = math.min(1, required), required do overload(count, "options: " .. class) end
  if #parameters - required > 1 and not is_overloaded then overload(required, "...: any") end
end

-- What the catalog, or else a comment, says in words.
local function text_of(f, said)
  local doc = ops.doc(f)
  if not doc then return said.text end
  local lines = {}
  for line in doc:gmatch("[^\n]+") do lines[#lines + 1] = line end
  return lines
end

-- What a function of the catalog gives: the output "out" where there is one, or all of them.
local function outputs_of(op)
  local outputs = {}
  for i, output in ipairs(op.outputs) do
    if output == "out" then return "moonflow.Blob" end
    outputs[i] = "moonflow.Blob"
  end
  return table.concat(outputs, ", ")
end

-- One function: at `path`, "flow.nn.relu" or "moonflow.Job:summary", written as a function of `owner`.
local function put_function(path, owner, f)
  local method, called = help.method(f, path)
  f = method or f
  local signature = ops.signature(f) or arguments.signature_of(f)
  local op = signature and catalog[signature.where]
  local said = read_comment(help.comment(f, called or path) or {})
  local is_method = method ~= nil or path:find(":", 1, true) ~= nil
  local parameters = signature and by_signature(signature, said) or by_comment(f, said, is_method)
  local result = op and outputs_of(op) or said.gives or gives(path, f)
  local class = path:gsub("^flow%.", "moonflow."):gsub(":", ".") .. ".Options"
  if signature then
    put("---@class " .. class)
    for _, p in ipairs(parameters) do put("---@field " .. described(p, true)) end
    put("")
  end
  -- Two spaces keep the end of a line in Markdown.
  for _, line in ipairs(text_of(f, said)) do put("---" .. line .. "  ") end
  local names, receiver = {}, path:find(":", 1, true) and "self: " .. path:match("^[^:]+") or nil
  if called and called:find(":", 1, true) then
    names[1], receiver = "a", "a: moonflow.Array"
    put("---@param a moonflow.Array")
  end
  -- The comment's own way to call is the one without arguments, which gives something else.
  if signature and #said.overloads > 0 then parameters[1].optional = false end
  for _, p in ipairs(parameters) do
    names[#names + 1] = p.name
    put("---@param " .. described(p, p.optional))
  end
  if result then put("---@return " .. result) end
  for _, overload in ipairs(said.overloads) do
    put("---@overload " .. (receiver and overload:gsub("fun%(a: [%w.]+", "fun(" .. receiver, 1) or overload))
  end
  if signature then put_overloads(parameters, class, result, receiver, #said.overloads > 0) end
  put(("function %s%s(%s) end\n"):format(owner, path:match("[.:][%w_]+$"), table.concat(names, ", ")))
end

-- ---- objects ------------------------------------------------------------------------------------------------------

-- One of each kind whose methods are written in Lua.
local objects = {}
objects.Job = flow.global_function {
  type = "train", name = "described", inputs = { x = tp.Numpy.Placeholder({ 1, 1 }) },
} (function(x)
  objects.Blob = flow.layers.dense(x, 1)
  objects.Watch = flow.watch(objects.Blob, function() end)
  objects.Optimizer = flow.optimizer.SGD(0.1)
  objects.Optimizer:minimize(objects.Blob)
  return objects.Blob
end)
objects.Pending = objects.Job(flow.np.zeros({ 1, 1 }))
objects.Pending:get()
objects.Prepared = flow.global_function { inputs = {} } (function() end):prepare()
objects.Task = flow.spawn(function() end)
objects.Generator = flow.np.random.default_rng(1)
objects.CheckPoint = flow.train.CheckPoint()
objects.NdArray = flow.np.zeros({ 1 })
objects.Log = require("moonflow.log_file").Log

local function operators(of, with)
  local lines = {}
  for i, name in ipairs { "add", "sub", "mul", "div", "mod", "pow" } do
    lines[i] = ("---@operator %s(%s): %s"):format(name, with, of)
  end
  lines[#lines + 1] = "---@operator unm: " .. of
  lines[#lines + 1] = "---@operator concat(any): string"
  return table.concat(lines, "\n")
end

-- What there is beside functions, in the order in which it is written. The methods of each are those of its object.
local CLASSES = {
  { "NdArray", [[
---Numbers in memory: a[i] is the row or the number at i, from 0, and #a counts the rows.
---@class moonflow.NdArray
---@field shape moonflow.Shape
---@field dtype moonflow.DType
---@field rank integer
---@field nbytes integer
---@field released boolean
---@field [integer] any
---@operator len: integer
]] .. operators("moonflow.NdArray", "moonflow.Array") },
  { "Blob", [[
---A value of a job while the job is traced. It has a shape, a dtype and a name, and no data.
---@class moonflow.Blob
---@field shape moonflow.Shape
---@field dtype moonflow.DType
---@field name string
---@field site string
---@field logical_blob_name string
---@field op_name string
---@field blob_name string
]] .. operators("moonflow.Blob", "moonflow.Operand") },
  { "Job", [[
---A job function: called with arrays it runs and gives what it was declared to return.
---@class moonflow.Job: function
---@overload fun(...): any]] },
  { "Decorator", [[
---What takes the body of a job function, `(function(x) ... end)`, and gives the job.
---@class moonflow.Decorator: function
---@overload fun(body: function): moonflow.Job]] },
  { "Pending", [[
---A result that may not be there yet; called with a function it is delivered to that.
---@class moonflow.Pending: function
---@overload fun(...): any]] },
  { "Prepared", [[
---A job with buffers and weights of its own; called with arrays, or with none, it runs on them at once.
---@class moonflow.Prepared: function
---@field inputs table<integer|string, moonflow.NdArray>
---@field outputs moonflow.NdArray[]
---@overload fun(...): any]] },
  { "Watch", "---@class moonflow.Watch" },
  { "Task", "---@class moonflow.Task" },
  { "Optimizer", "---@class moonflow.Optimizer" },
  { "CheckPoint", "---@class moonflow.CheckPoint" },
  { "Log", "---@class moonflow.Log" },
  { "Generator", "---@class moonflow.Generator" },
}

put [[
---@meta moonflow
-- Written by docs/write_editor.lua. A language server takes the folder of this file as a library: "workspace.library"
-- in .luarc.json.

---@alias moonflow.DType
---| "float32"
---| "float64"
---| "bfloat16"
---| "float16"
---| "int8"
---| "uint8"
---| "int32"
---| "int64"

---What computes with a value of a job: another one, or a number or an array, of which a constant is made.
---@alias moonflow.Operand moonflow.Blob|number|moonflow.NdArray

---What an array is made of: another one, a number, a (nested) table of numbers.
---@alias moonflow.Array moonflow.NdArray|number|table

---@class moonflow.Initializer
---@class moonflow.Regularizer
---@class moonflow.Scheduler
---@class moonflow.Warmup
---@class moonflow.Clipping
---@class moonflow.LossScale
---@class moonflow.Placeholder
---@class moonflow.Placement
---@class moonflow.Type
---@field [moonflow.Type] moonflow.Type
---@operator call: moonflow.Type

---The sizes of a value from shape[0] on; #shape counts the axes.
---@class moonflow.Shape
---@field [integer] integer
---@operator len: integer
local Shape = {}

---How many elements there are.
---@return integer
function Shape:count() end

---The sizes as a list, from 1.
---@return integer[]
function Shape:table() end

---What goes through data in a `for` loop: a counter from 0, then the values. # counts its steps.
---@class moonflow.Batches
---@operator len: integer
---@operator call: any

---Arrays with equally many rows; # counts these.
---@class moonflow.Dataset
---@field arrays moonflow.NdArray[]
---@field images moonflow.NdArray
---@field labels moonflow.NdArray
---@operator len: integer
local Dataset = {}
]]
put_function("moonflow.Dataset:batches", "Dataset", flow.data.Dataset({ objects.NdArray }).batches)
local methods_of = {}
for _, class in ipairs(arguments.classes) do methods_of[class.name] = class.methods end
for _, class in ipairs(CLASSES) do
  local name, head = unpack(class)
  put(head)
  put(("local %s = {}\n"):format(name))
  for _, method in ipairs(methods_of[name] or {}) do
    put_function(("moonflow.%s:%s"):format(name, method), name, objects[name][method])
  end
end
put [[
---@class moonflow.Progress: moonflow.Batches
local Progress = {}
---What is shown after the numbers: a table of values, or a format and its values.
function Progress:set(...) end
---As print does, on a line above the bar.
function Progress:print(...) end
---@param n? integer
function Progress:update(n) end
function Progress:close() end

---@class moonflow.Server
local Server = {}
---Ends the sessions of who is attached, and removes the socket.
function Server:close() end
]]

-- ---- the library --------------------------------------------------------------------------------------------------

local function put_folder(folder, path)
  local names = {}
  for name in next, folder do
    if type(name) == "string" and not name:find("^_") then names[#names + 1] = name end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local value, place = folder[name], path .. "." .. name
    local kind = arguments.kind(value)
    if kind == "function" then
      put_function(place, path, value)
    elseif kind == "table" then
      put(("---@class moonflow.%s\n%s = {}\n"):format(place:gsub("^flow%.", ""), place))
      put_folder(value, place)
    elseif kind == "type" or kind == "generic" then
      put(("---@type moonflow.Type%s\n%s = nil\n"):format(
        rawget(value, "Placeholder") and " | { Placeholder: fun(...): moonflow.Placeholder }" or "", place))
    else
      put(("---@type %s\n%s = nil\n"):format(type(value) == "string" and dtypes.is(value) and "moonflow.DType"
        or type(value), place))
    end
  end
end

put "---@class moonflow\nlocal flow = {}\n"
put_folder(flow, "flow")
put "return flow"
put ""
local file = arg[1] and assert(io.open(arg[1], "w")) or io.stdout
assert(file:write(table.concat(out, "\n")))
assert(file:flush())
