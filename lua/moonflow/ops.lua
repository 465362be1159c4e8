--- Ops: one function per public op of the catalog, made from what the session says about it.
-- Inputs and attributes may be given by position, in that order, or by name in the trailing options; `name` names the
-- op. Ops with random numbers get their seed and step from the job. Helper ops have no function here; layers and
-- optimizers append them with `ops.apply`.

local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local errors = require "moonflow.errors"
local trace = require "moonflow.trace"

local ops = {}

local definitions = {}                              -- name -> what the session says about the op
local help = setmetatable({}, { __mode = "k" })     -- function -> { path, signature, doc }

-- Attribute types as kinds of arguments.
local kinds = { bool = "boolean", int = "integer", float = "number", string = "string", dtype = "dtype",
                ints = "list", floats = "list" }

-- Attributes that another one fills in through its table form, or that the job supplies.
local function hidden_attrs(def)
  local hidden = {}
  for _, attr in ipairs(def.attrs) do
    if attr.table_form and attr.table_form ~= "" then hidden[attr.table_form] = true end
    if def.random and attr.name == "key" then hidden.key = true end
  end
  return hidden
end

--- Learns the ops of a session.
function ops.learn(list)
  for _, def in ipairs(list) do
    local attrs = {}
    for _, attr in ipairs(def.attrs) do attrs[attr.name] = attr end
    def.attr_of = attrs
    def.hidden = hidden_attrs(def)
    definitions[def.name] = def
  end
end

--- Is there an op of this name in the catalog?
function ops.has(name)
  return definitions[name] ~= nil
end

-- Attributes as the graph wants them: lists are flat, a table given for a string goes to its other attribute.
local function attributes(def, given)
  local attrs = {}
  for name, value in pairs(given) do
    local attr = def.attr_of[name]
    if not attr then
      attrs[name] = value  -- the engine names the unknown attribute
    elseif attr.table_form and attr.table_form ~= "" and type(value) == "table" then
      attrs[attr.table_form] = arguments.flat_list(value)
    elseif attr.type == "ints" or attr.type == "floats" then
      attrs[name] = arguments.flat_list(value)
    else
      attrs[name] = value
    end
  end
  return attrs
end

-- The outputs users see: "out" where the op has one of that name, else all of them.
local function public_outputs(def, t, name, site, ...)
  for i, output in ipairs(def.outputs) do
    if output == "out" then return blob.new(t, (select(i, ...)), name, site) end
  end
  local blobs = {}
  for i = 1, select("#", ...) do blobs[i] = blob.new(t, (select(i, ...)), name, site) end
  return unpack(blobs)
end

-- Adds seed, step and key to an op with random numbers.
local function supply_random(def, t, ids, attrs, name, seed)
  for i, input in ipairs(def.inputs) do
    if input.name == "seed" then
      ids[i] = seed and t:constant(seed, "int64", nil, "") or t:seed_id()
    elseif input.name == "step" then
      ids[i] = t:step_id()
    end
  end
  if def.attr_of.key then attrs.key = name end
end

--- Appends an op by its internal name and gives its public outputs as blobs.
--- @param op string     internal name
--- @param inputs table  blobs, `false` for a left-out optional input; without the seed and step of random ops
--- @param attrs table   attributes by name
--- @param name? string  the user's name, taken as it is apart from the open namespaces
--- @param seed? number  of a random op: its own seed instead of the session's
function ops.apply(op, inputs, attrs, name, seed)
  local def = definitions[op] or errors.raise("not_found", "no op '" .. op .. "' in this build")
  local t = trace.need(op)
  local site = errors.site()
  local ids = {}
  for i, input in ipairs(inputs) do ids[i] = input and blob.id_of(input, t, op) end
  local full = t:claim(name, op, site)
  attrs = attributes(def, attrs or {})
  if def.random then supply_random(def, t, ids, attrs, full, seed) end
  return public_outputs(def, t, full, site, t:append(op, ids, attrs, full, site))
end

-- The signature of the public function: inputs, attributes, name.
local function signature_of(def, where)
  local list = {}
  for _, input in ipairs(def.inputs) do
    if input.kind == "many" then
      list[#list + 1] = { input.name, "operands" }
    elseif not (def.random and (input.name == "seed" or input.name == "step")) then
      list[#list + 1] = { input.name, input.kind == "optional" and "operand?" or "operand" }
    end
  end
  for _, attr in ipairs(def.attrs) do
    if not def.hidden[attr.name] then
      local kind = kinds[attr.type]
      if attr.table_form and attr.table_form ~= "" then kind = "any" end
      if attr.required then
        list[#list + 1] = { attr.name, kind }
      else
        list[#list + 1] = { attr.name, kind .. "?" }
      end
    end
  end
  if def.random then list[#list + 1] = { "seed", "integer?" } end
  list[#list + 1] = { "name", "string?" }
  return arguments.signature(where, list)
end

-- The dtype that a number among the inputs takes: that of the last blob, for a condition comes first.
local function operand_dtype(values)
  for i = #values, 1, -1 do
    if blob.is(values[i]) then return values[i].dtype end
  end
  return "float32"
end

local function make_function(def, where)
  local signature = signature_of(def, where)
  local many = def.inputs[1] and def.inputs[1].kind == "many"
  local names = {}
  for _, input in ipairs(def.inputs) do names[#names + 1] = input.name end

  local function call(...)
    local t = trace.need(where)
    local values = signature:parse(...)
    local site = errors.site()
    local given = {}
    if many then
      given = values[names[1]]
    else
      for i, name in ipairs(names) do given[i] = values[name] or false end
    end
    local dtype = operand_dtype(given)
    local ids = {}
    for i, value in ipairs(given) do
      ids[i] = value and blob.operand(value, t, dtype, where)
    end
    local attrs = {}
    for name in pairs(def.attr_of) do attrs[name] = values[name] end
    attrs = attributes(def, attrs)
    local name = t:claim(values.name, def.name, site)
    if def.random then supply_random(def, t, ids, attrs, name, values.seed) end
    return public_outputs(def, t, name, site, t:append(def.name, ids, attrs, name, site))
  end
  help[call] = { path = where, signature = signature, doc = def.doc }
  return call
end

--- Puts `value` at a path such as "nn.relu" under `root`, unless something is there.
function ops.place(root, path, value)
  local folder = root
  for part in path:gmatch("([^.]+)%.") do
    folder[part] = rawget(folder, part) or {}
    folder = folder[part]
  end
  local leaf = path:match("([^.]+)$")
  if rawget(folder, leaf) == nil then folder[leaf] = value end
  return folder[leaf]
end

--- Makes the functions of all public ops under `flow`.
function ops.expose(flow)
  for _, def in pairs(definitions) do
    if def.lua and def.lua ~= "" then
      def.call = ops.place(flow, def.lua, make_function(def, "flow." .. def.lua))
    end
  end
end

--- Notes the help text of a function that is written in Lua.
function ops.document(call, path, signature, doc)
  help[call] = { path = path, signature = signature, doc = doc }
end

--- The help text of a function of `flow`, or nil.
function ops.help(call)
  local entry = help[call]
  if not entry then return nil end
  return entry.signature:text() .. "\n" .. (entry.doc or "")
end

return ops
