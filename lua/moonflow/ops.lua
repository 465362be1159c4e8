--- Ops: one function per public op of the catalog, made from what the session says about it, and how those functions
-- are made that are put together from several (`composed`).
-- Inputs and attributes may be given by position, in that order, or by name in the trailing options; `name` names the
-- op. Ops with random numbers get their seed and step from the job. Helper ops have no function here; layers and
-- optimizers append them with `ops.apply`.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local trace = require "moonflow.trace"
local windows = require "moonflow.formulas.windows"

local ops = {}

--- All of these functions, in folders, as scripts see them: `flow` is this table.
ops.functions = {}

local paths = {}                                 -- name of every op -> its path under `flow`, or false
local definitions = {}                           -- what is used of them, by name
local help = setmetatable({}, { __mode = "k" })  -- function -> { path, signature, doc }
local handle                                     -- gives the core session, which has the catalog

-- What help says of parameters that mean the same throughout.
local texts = { seed = "a seed of its own, in place of that of flow.set_seed" }

-- Attribute types as kinds of arguments.
local kinds = { bool = "boolean", int = "integer", float = "number", string = "string", dtype = "dtype",
                ints = "list", floats = "list" }

-- Attributes for the few, which are words as the name is: by position it comes before them.
local behind_name = { algorithm = true, precise = true, mixed = true, rounds_to = true }

-- Whether an op with it makes floats of nothing but numbers.
local function makes_floats(attr) return attr.name == "dtype" and attr.default == "float32" and not attr.required end

-- The parameters of the public function: inputs, attributes, the seed of random ops, name. Not those attributes that
-- another one fills in through its table form, or that the job supplies.
local function parameters_of(op)
  local list, hidden = {}, { key = op.random }
  for _, attr in ipairs(op.attrs) do
    if attr.table_form then hidden[attr.table_form] = true end
  end
  for _, input in ipairs(op.inputs) do
    if input.kind == "many" then
      list[#list + 1] = { input.name, "operands" }
    elseif not (op.random and (input.name == "seed" or input.name == "step")) then
      list[#list + 1] = { input.name, input.kind == "optional" and "operand?" or "operand" }
    end
  end
  local behind = {}
  for _, attr in ipairs(op.attrs) do
    if not hidden[attr.name] then
      local kind = attr.table_form and "any" or kinds[attr.type]
      local part = behind_name[attr.name] and behind or list
      -- The engine fills in what is left out, and some defaults are one only where a job does not choose.
      if attr.required then
        part[#part + 1] = { attr.name, kind, text = attr.doc }
      elseif makes_floats(attr) then
        part[#part + 1] = { attr.name, kind .. "?", text = attr.doc .. "; the job's default_data_type when left out" }
      else
        part[#part + 1] = { attr.name, kind .. "?", engine_default = attr.default, text = attr.doc }
      end
    end
  end
  if op.random then
    list[#list + 1] = { "seed", "integer?" }
  end
  list[#list + 1] = { "name", "string?" }
  for _, parameter in ipairs(behind) do list[#list + 1] = parameter end
  arguments.explain(list, texts)
  return list
end

-- What is needed of an op, made when it is used first.
local function definition_of(name)
  local def = definitions[name]
  if def then return def end
  if paths[name] == nil then errors.raise("not_found", "no op '" .. name .. "' in this build") end
  local op = handle():op(name)
  def = { name = name, random = op.random, outputs = op.outputs, inputs = {}, attrs = {},
          many = op.inputs[1] ~= nil and op.inputs[1].kind == "many" }
  for i, input in ipairs(op.inputs) do def.inputs[i] = input.name end
  for i, attr in ipairs(op.attrs) do
    def.attrs[i] = attr.name
    if op.random and attr.name == "key" then def.has_key = true end
    if attr.name == "algorithm" then def.has_algorithm = true end
    if attr.name == "data_format" then def.data_format = attr.default end
    if makes_floats(attr) then def.makes_floats = true end
  end
  if op.lua then def.signature = arguments.signature("flow." .. op.lua, parameters_of(op)) end
  definitions[name] = def
  return def
end

local function all_outputs(_, t, name, site, ...)
  local blobs = {}
  for i = 1, select("#", ...) do blobs[i] = blob.new(t, (select(i, ...)), name, site) end
  return unpack(blobs)
end

-- The outputs users see: "out" where the op has one of that name, else all of them.
local function public_outputs(def, t, name, site, ...)
  for i, output in ipairs(def.outputs) do
    if output == "out" then return blob.new(t, (select(i, ...)), name, site) end
  end
  return all_outputs(def, t, name, site, ...)
end

-- Adds seed, step and key to an op with random numbers. Ops of two jobs draw different numbers, unless they are given
-- one seed.
local function supply_random(def, t, ids, attrs, name, seed)
  for i, input in ipairs(def.inputs) do
    if input == "seed" then
      ids[i] = seed and t:constant(seed, "int64", nil, "") or t:seed_id()
    elseif input == "step" then
      ids[i] = t:step_id()
    end
  end
  if def.has_key then attrs.key = seed and name or t.draws_as .. "/" .. name end
end

-- A job may forbid what its ops would choose, or have it tried out.
local function supply_algorithm(def, t, attrs)
  if not def.has_algorithm or attrs.algorithm ~= nil or not t.config then return end
  if t.config.winograd == false then
    attrs.algorithm = "direct"
  elseif t.config.times_convolutions then
    attrs.algorithm = "timed"
  end
end

--- The sizes that two lists of sizes broadcast to; nil where they do not fit.
function ops.broadcast(one, other)
  local sizes, rank = {}, math.max(#one, #other)
  for i = 1, rank do
    local x, y = one[#one - rank + i] or 1, other[#other - rank + i] or 1
    if x ~= y and x ~= 1 and y ~= 1 then return nil end
    sizes[i] = x == 1 and y or x
  end
  return sizes
end

--- The dtype of what says none and is made of numbers.
function ops.default_dtype(t) return t.config and t.config.default_data_type or "float32" end
--- The parameter that says another one.
ops.result_dtype = { "dtype", "dtype?", text = "of the result; the job's default_data_type when left out" }

-- Pads as pairs of the axes of places are spelled out for all axes: in the engine four numbers are one for each axis.
local function supply_pads(def, attrs)
  local format = attrs.data_format or def.data_format
  local pads = format and windows.pairs_of_places(attrs.padding, #format - 2)
  if not pads then return end
  if def.name == "reflection_pad2d" then
    attrs.padding = { pads[2], pads[1] }
  else
    attrs.padding = windows.listed(pads, #format, format:sub(2, 2) == "C" and 2 or 1)
  end
end

local function append(op, inputs, attrs, name, seed)
  local t = trace.need(op)
  local def = definition_of(op)
  local site = errors.site()
  local ids = {}
  for i, input in ipairs(inputs) do ids[i] = input and blob.id_of(input, t, op) end
  local full = t:claim(name, op, site)
  attrs = attrs or {}
  if def.random then supply_random(def, t, ids, attrs, full, seed) end
  supply_algorithm(def, t, attrs)
  supply_pads(def, attrs)
  return def, t, full, site, t:append(op, ids, attrs, full, site)
end

--- Appends an op by its internal name and gives its public outputs as blobs.
--- @param op string     internal name
--- @param inputs table  blobs, `false` for a left-out optional input; without the seed and step of random ops
--- @param attrs? table  attributes by name; lists may be nested
--- @param name? string  the user's name; the open namespaces are put before it
--- @param seed? number  of a random op: its own seed instead of the session's
function ops.apply(op, inputs, attrs, name, seed)
  return public_outputs(append(op, inputs, attrs, name, seed))
end

--- As `ops.apply`, with those outputs too that users do not see.
function ops.apply_whole(op, inputs, attrs, name)
  return all_outputs(append(op, inputs, attrs, name))
end

--- x in float32 where its dtype is a narrow one: half precision cannot count far, nor hold squares.
function ops.widened(x)
  return dtypes.narrow[x.dtype] and ops.apply("cast", { x }, { dtype = "float32" }) or x
end

--- As `ops.apply` of what was widened: the output is `dtype`, which x had, again.
function ops.apply_narrowed(op, inputs, dtype, name)
  if not dtypes.narrow[dtype] then return ops.apply(op, inputs, nil, name) end
  return ops.apply("cast", { ops.apply(op, inputs) }, { dtype = dtype }, name)
end

--- An array as a constant of the job.
function ops.constant(t, array)
  return blob.new(t, t:constant(array), "constant", errors.site())
end

--- A vector of one number, `size` times, as a constant of the job.
function ops.filled(t, value, dtype, size)
  local array = core.zeros(dtype, { size })
  if size > 0 then array:set(":", value) end
  return ops.constant(t, array)
end

-- The dtype that a number among the inputs takes: that of the last blob beside it, else of the last array. A condition
-- is beside nothing.
local function operand_dtype(def, values, t)
  local of_array
  for i = #values, 1, -1 do
    local value = def.inputs[i] ~= "condition" and values[i]
    if blob.is(value) then return value.dtype end
    of_array = of_array or arguments.kind(value) == "ndarray" and value.dtype
  end
  return of_array or ops.default_dtype(t)
end

-- Losses whose first two inputs, labels and logits, are of one type.
local by_labels = { softmax_cross_entropy_with_logits = true, sigmoid_cross_entropy_with_logits = true }

local function call(name, signature, ...)
  local where = signature.where
  local t = trace.need(where)
  local def = definition_of(name)
  local values = signature:parse(...)
  local site = errors.site()
  local given = {}
  if def.many then
    given = values[def.inputs[1]]
  else
    for i, input in ipairs(def.inputs) do given[i] = values[input] or false end
  end
  local dtype = operand_dtype(def, given, t)
  local ids, attrs = {}, {}
  if blob.comparisons[name] then
    ids[1], ids[2] = blob.compared(t, given[1], given[2], dtype, where, site)
  else
    for i, value in ipairs(given) do ids[i] = value and blob.operand(value, t, dtype, where) end
  end
  for _, attr in ipairs(def.attrs) do attrs[attr] = values[attr] end
  if def.makes_floats and not attrs.dtype then attrs.dtype = ops.default_dtype(t) end
  local full = t:claim(values.name, name, site)
  if def.random then supply_random(def, t, ids, attrs, full, values.seed) end
  supply_algorithm(def, t, attrs)
  supply_pads(def, attrs)
  if by_labels[name] and blob.is(given[1]) and blob.is(given[2]) then
    t:note_target(where, def.inputs, given[1], given[2])
  end
  return public_outputs(def, t, full, site, t:append(name, ids, attrs, full, site))
end

local function make_function(name, where)
  local signature
  local function public(...)
    signature = signature or definition_of(name).signature:called(where)
    return call(name, signature, ...)
  end
  help[public] = name
  return public
end

--- The function at a path, such as "nn.relu", or nil.
function ops.at(path)
  local value = ops.functions
  for part in path:gmatch("[^.]+") do value = value and rawget(value, part) end
  return value
end

-- Puts a function at its path.
local function place(path, public)
  local folder = ops.functions
  for part in path:gmatch("([^.]+)%.") do
    folder[part] = folder[part] or {}
    folder = folder[part]
  end
  folder[path:match("([^.]+)$")] = public
end

--- Makes the functions of all public ops. `session_handle()` gives the core session; it is asked again for each op in
--- use.
function ops.learn(session_handle)
  handle, definitions, paths = session_handle, {}, session_handle():op_paths()
  for name, path in pairs(paths) do
    -- Where the library is loaded once more, what stands there may be more than the op's.
    if path and not ops.at(path) then place(path, make_function(name, "flow." .. path)) end
  end
end

--- Puts the function at a path under another one too. One of the catalog is called by that in its errors.
function ops.alias(path, of)
  local public = ops.at(of)
  local entry = help[public]
  place(path, type(entry) == "string" and make_function(entry, "flow." .. path) or public)
end

-- What a composed function gives: the errors of its ops name it too.
local function finish_composed(t, where, fine, ...)
  t.composing[#t.composing] = nil
  if fine then return ... end
  local problem = ...
  if errors.is_error(problem) and problem.op and problem.op ~= "" then
    local inner = rawget(problem, "inner_op") or problem.op
    problem.inner_op = inner
    if inner:match("^[%w_]+") ~= where:match("[%w_]+$") then problem.op = where .. ": " .. inner end
  end
  error(problem, 0)
end

local function compose(path, signature, doc, make, other, shown)
  local where = signature.where
  local function composed(...)
    local instead = other and other(...)
    if instead then return instead(...) end
    local t = trace.need(where)
    local given = signature:parse(...)
    t.composing[#t.composing + 1] = where
    return finish_composed(t, where, pcall(make, given, t, signature))
  end
  ops.document(composed, where, signature, doc, shown or make)
  place(path, composed)
end

-- A list of parameters with `name` behind them where it is not among them.
local function named(parameters)
  local list = { unpack(parameters) }
  arguments.explain(list, texts)
  for _, parameter in ipairs(list) do
    if parameter[1] == "name" then return list end
  end
  list[#list + 1] = { "name", "string?" }
  return list
end

--- Makes a function that is put together from ops, in the place of one of the catalog where there is one.
--- @param path string       such as "nn.dropout"
--- @param parameters table  as arguments.signature takes them; `name` is the last where it is not among them
--- @param doc string        what help says
--- @param make function     make(given, t, signature) gives the results, from the arguments by name and the trace
--- @param other? function   other(...) gives a function that takes this call instead, where there is one
--- @param shown? function  what is shown as its text, where that is not `make`
function ops.define(path, parameters, doc, make, other, shown)
  compose(path, arguments.signature("flow." .. path, named(parameters)), doc, make, other, shown)
end

--- Lets a function of the catalog do more than its op does, by the same arguments.
--- @param doc string     what help says of that, behind the rest
--- @param make function  make(as_it_is, given, trace, signature) gives the results
function ops.extend(path, doc, make)
  local as_it_is = ops.at(path)
  compose(path, ops.signature(as_it_is):called("flow." .. path), ops.doc(as_it_is) .. "\n" .. doc,
    function(given, t, signature) return make(as_it_is, given, t, signature) end)
end

--- Notes the help text of a function that is written in Lua.
--- @param make? function  what computes, where that is another one
function ops.document(public, path, signature, doc, make)
  help[public] = { path = path, signature = signature, doc = doc, make = make }
end

--- The function that a function made here hands its work to, or the name of the op of the engine that it is, or nil.
function ops.made_of(public)
  local entry = help[public]
  return type(entry) == "table" and entry.make or type(entry) == "string" and entry or nil
end

--- The signature of a function made here or documented by `document`, or nil.
function ops.signature(public)
  local entry = help[public]
  if type(entry) == "string" then return definition_of(entry).signature end
  return entry and entry.signature
end

--- What is said of a function made here or documented by `document`, or nil.
function ops.doc(public)
  local entry = help[public]
  if type(entry) == "string" then return handle():op(entry).doc end
  return entry and (entry.doc or "")
end

return ops
