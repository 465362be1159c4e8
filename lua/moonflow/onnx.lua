--- flow.onnx: networks from other systems. `flow.onnx.load` reads an ONNX file and gives a model, which is called in
--- the body of a job as a layer is.
-- A model is traced anew by each job that calls it: the job says the shapes, and its nodes become ops of the job.
-- Weights become variables of the session, with the values of the file as their first ones.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local initializer = require "moonflow.initializer"
local scope = require "moonflow.scope"
local session = require "moonflow.session"
local trace = require "moonflow.trace"
local variable = require "moonflow.variable"

local onnx = {}

-- Loaded when a model is: most scripts read none.
local function all_operators() return require "moonflow.onnx.operators" end
local function nodes_module() return require "moonflow.onnx.node" end

local kOldest, kNewest = 6, 28  -- opsets whose operators are known

local Model = { kind = "onnx model" }
Model.__index = Model
arguments.publish("Model", "model", Model, "summary")

-- ---- loading ------------------------------------------------------------------------------------------------------

-- Calls visit(node) for all nodes, and for those of the graphs in them.
local function each_node(nodes, visit)
  for _, raw in ipairs(nodes) do
    visit(raw)
    for _, attribute in pairs(raw.attributes) do
      if attribute.g then each_node(attribute.g.nodes, visit) end
    end
  end
end

-- Operators of other domains are of no opset.
local function check_opset(where, opset, nodes)
  local is_used = opset > 0
  each_node(nodes, function(raw) is_used = is_used or raw.domain == "" end)
  if not is_used or opset >= kOldest and opset <= kNewest then return end
  errors.raise("unsupported", ("%s is of opset %d, and those from %d to %d are read; export it with "
    .. "opset_version = 17"):format(where, opset, kOldest, kNewest))
end

-- The name under which an operator is known here.
local function name_of(raw) return raw.domain == "" and raw.op or raw.domain .. "." .. raw.op end

-- All operators that there are not here are named at once, and what goes into the first of them.
local function check_operators(where, file, nodes)
  local unknown, is_named, values, is_weight = {}, {}, nil, {}
  for _, entry in ipairs(file.initializers) do is_weight[entry.name] = true end
  each_node(nodes, function(raw)
    local op = name_of(raw)
    if not all_operators()[op] and not is_named[op] then
      is_named[op] = true
      unknown[#unknown + 1] = ("%s (node '%s')"):format(op, raw.name ~= "" and raw.name or raw.outputs[1] or "")
      if not values then
        values = {}
        for _, input in ipairs(raw.inputs) do
          if input ~= "" and not is_weight[input] then values[#values + 1] = "'" .. input .. "'" end
        end
      end
    end
  end)
  if #unknown == 0 then return end
  local remedy = "An exporter may write it by others, with another opset or after a change of the network"
  if #values > 0 then
    remedy = ("%s; and outputs = { ... } takes values from before it, %s, for a script to go on with, and inputs = { "
      .. "... } begins behind it"):format(remedy, arguments.some_of(values, 4))
  end
  errors.raise("unsupported", ("%s, of opset %d, uses what is not supported: %s; flow.onnx.operators() "
    .. "lists what is. %s"):format(where, file.opset, table.concat(unknown, ", "), remedy))
end

--- The names of the operators that a model may consist of, in their order.
--- @return string[]
function onnx.operators()
  return arguments.sorted_keys(all_operators())
end

-- What is not learned by descent, by its places among the inputs: statistics, and the bounds and exponents of a
-- formula, which TensorFlow's exporter gives an axis.
local kept_of = { BatchNormalization = { 4, 5 }, Max = { 1, 2 }, Min = { 1, 2 }, Clip = { 2, 3 }, Pow = { 2 } }

-- The scale and the shift of a norm.
local scales_of = {
  BatchNormalization = { 2, 3 }, GroupNormalization = { 2, 3 }, InstanceNormalization = { 2, 3 },
  LayerNormalization = { 2, 3 }, RMSNormalization = { 2 }, SimplifiedLayerNormalization = { 2 },
}

local function has_fractions(array)
  return dtypes.floating[array.dtype] and #array.shape > 0 and array.shape:count() > 0
end

-- Some exporters write weights as Constant nodes, or into the graphs of an If. These become initializers of the model,
-- but for single numbers, which belong to the formula, and for arrays whose name two graphs have. What we write
-- ourselves as a Constant is one.
local function gather_weights(file, nodes)
  if file.producer == "moonflow" then return end
  local found, uses = {}, {}
  local function note(name, array)
    uses[name] = (uses[name] or 0) + 1
    if array and has_fractions(array) and array.shape:count() > 1 then
      found[#found + 1] = { name = name, value = array }
    end
  end
  each_node(nodes, function(raw)
    if raw.op == "Constant" and raw.attributes.value then note(raw.outputs[1], raw.attributes.value.t) end
    for _, attribute in pairs(raw.attributes) do
      for _, entry in ipairs(attribute.g and attribute.g.initializers or {}) do note(entry.name, entry.value) end
    end
  end)
  for _, entry in ipairs(found) do
    if uses[entry.name] == 1 then table.insert(file.initializers, entry) end
  end
end

-- The weights: initializers with a fraction that have an axis or more. Single numbers belong to the formula, and whole
-- numbers are sizes, axes and places.
local function weights_of(file, wanted, nodes, given)
  local weights, by_variable, prefix = {}, {}, given.name and given.name .. "-" or ""
  for _, entry in ipairs(file.initializers) do
    local value = entry.value
    if wanted[entry.name] and has_fractions(value) then
      local name = prefix .. nodes_module().plain(entry.name)
      local base, number = name, 1
      while by_variable[name] do  -- of "a/b" and "a.b", which are one name here
        number = number + 1
        name = base .. "_" .. number
      end
      local weight = { name = name, value = value, initializer = initializer.from_array(value),
                       trainable = given.trainable }
      if arguments.is_callable(given.trainable) then weight.trainable = given.trainable(name) and true or false end
      weight.initializer.file = given.path
      by_variable[name], weights[entry.name] = value, weight
    end
  end
  local again = setmetatable({}, { __index = weights })  -- also by the names that an Identity gives them
  each_node(nodes, function(raw)
    if raw.op == "Identity" then again[raw.outputs[1]] = again[raw.inputs[1]] end
    for _, i in ipairs(kept_of[raw.op] or {}) do
      local weight = again[raw.inputs[i]]
      if weight then weight.was_trainable, weight.trainable = weight.was_trainable or weight.trainable, false end
    end
    for _, i in ipairs(scales_of[raw.op] or {}) do
      local weight = again[raw.inputs[i]]
      if weight then weight.norms = (weight.norms or 0) + 1 end
    end
  end)
  return weights, by_variable
end

local function check_options(given, signature)
  if type(given.trainable) ~= "boolean" and not arguments.is_callable(given.trainable) then
    signature:fail(": argument 3 ('trainable') must be true, false or a function, got "
      .. arguments.describe(given.trainable))
  end
  if given.name == "" then signature:fail(": argument 2 ('name') must not be empty") end
end

-- Notes which arrays are of a type of the file that is narrower than their dtype.
local function note_narrow(narrow, initializers)
  for _, entry in ipairs(initializers or {}) do narrow[entry.value] = entry.narrow end
end

local function model_of(file, given, signature)
  local nodes, wanted = require("moonflow.onnx.part").cut(file, given, signature)
  local where = ("%s: %s"):format(signature.where, given.file)
  check_opset(where, file.opset, nodes)
  check_operators(where, file, nodes)
  gather_weights(file, nodes)
  local weights, variables = weights_of(file, wanted, nodes, given)
  local constants, narrow = {}, {}
  note_narrow(narrow, file.initializers)
  for _, entry in ipairs(file.initializers) do constants[entry.name] = entry.value end
  each_node(nodes, function(raw)
    for _, attribute in pairs(raw.attributes) do note_narrow(narrow, attribute.g and attribute.g.initializers) end
  end)
  return setmetatable({
    path = given.path, file = given.file, name = given.name, opset = file.opset, producer = file.producer,
    inputs = file.inputs, outputs = file.outputs, variables = variables,
    _nodes = nodes, _wanted = wanted, _weights = weights, _constants = constants, _narrow = narrow,
  }, Model)
end

local load_signature = arguments.signature("flow.onnx.load",
  { { "path", "string" }, { "name", "string?" }, { "trainable", "any", true }, { "outputs", "entries?" },
    { "inputs", "entries?" } })

--- Reads a network that another system has written as ONNX: `local policy = flow.onnx.load("policy.onnx")`. The model
--- is called in the body of a job, with its inputs in their order or by name, and gives its outputs: `policy(obs)`,
--- `policy { obs = x, state = h }`. `policy.inputs` and `policy.outputs` say names, dtypes and shapes, `policy.opset`
--- the version of its operators; printing it shows all, and `policy:summary()` what it computes in between. Sizes that
--- the file leaves open come from the placeholders of the job. An input whose values decide about shapes is given as an
--- ndarray. A bool is an int8.
--- Its weights become variables with the names they have in the file, "/" as ".", and its values. They are saved in
--- checkpoints, published to prepared calls, and trained by train jobs. Those of an earlier load keep their values;
--- `flow.load_variables(policy.variables)` gives them the file's again. Batch norms and dropouts are as in a
--- prediction, also in train jobs. Weights are initializers, and arrays of Constant nodes where another system wrote
--- the file.
--- @param path string        the file; data that it keeps in others must lie in its folder
--- @param name? string       stands before all names, as in "name-fc.weight"; two models whose weights have the same
---                           names need it
--- @param trainable? boolean|function  default true; false freezes all weights, a function decides by a variable's
---                           name. Statistics of batch norms, bounds and exponents are always frozen. A file does not
---                           tell weights from other tables that the network only reads, such as encodings of positions
--- @param outputs? table     names of values of the graph, given in this order in place of the file's outputs. What
---                           only others need is left out, inputs too: so a detector loses an end that is not
---                           supported, such as NonMaxSuppression
--- @param inputs? table      names of values of the graph that are given, in this order, in place of the file's inputs;
---                           what makes them is left out
--- @return Model
--- @error a damaged file; texts; an opset, an operator or an attribute that there is not here
function onnx.load(...)
  local given = load_signature:parse(...)
  check_options(given, load_signature)
  given.file = given.path:match("([^/\\]*)$")
  return model_of(errors.blaming("flow.onnx.load", core.onnx_read, given.path), given, load_signature)
end

local load_memory_signature = arguments.signature("flow.onnx.load_memory",
  { { "bytes", "string" }, { "name", "string?" }, { "trainable", "any", true }, { "outputs", "entries?" },
    { "inputs", "entries?" } })

--- The same of a string with the bytes of such a file, as a game finds it in its archive:
--- `flow.onnx.load_memory(love.filesystem.read("policy.onnx"))`.
--- @param bytes string       all of the model; data in other files are not found
--- @param name? string       as of flow.onnx.load
--- @param trainable? boolean|function  as of flow.onnx.load
--- @param outputs? table     as of flow.onnx.load
--- @param inputs? table      as of flow.onnx.load
--- @return Model
--- @error damaged bytes; texts; an opset, an operator or an attribute that there is not here
function onnx.load_memory(...)
  local given = load_memory_signature:parse(arguments.of_bytes(...))
  check_options(given, load_memory_signature)
  given.path = ("(%d bytes)"):format(#given.bytes)
  given.file = given.path
  return model_of(errors.blaming("flow.onnx.load_memory", core.onnx_decode, given.bytes), given, load_memory_signature)
end

local export_memory_signature = arguments.signature("flow.onnx.export_memory",
  { { "job", "any" }, { "outputs", "entries?" }, { "any_batch", "boolean", false } })

--- What job:export_onnx writes, as a string: `flow.onnx.load_memory(flow.onnx.export_memory(policy_job))`, or for a
--- file system of one's own.
--- @param job Job
--- @param outputs? table      as of job:export_onnx
--- @param any_batch? boolean  as of job:export_onnx
--- @return string
--- @error what job:export_onnx refuses
function onnx.export_memory(...)
  local given = export_memory_signature:parse(...)
  if arguments.kind(given.job) ~= "job" then
    export_memory_signature:fail(": wants a job, got " .. arguments.describe(given.job))
  end
  local exported = require "moonflow.onnx.exported"
  return errors.blaming(export_memory_signature.where, core.onnx_encode,
    exported(given.job, given, export_memory_signature))
end

-- ---- looking at it ------------------------------------------------------------------------------------------------

local function value_text(value)
  local sizes = {}
  for i, size in ipairs(value.shape or {}) do sizes[i] = size == "" and "?" or tostring(size) end
  return value.name .. ": " .. (value.dtype or "?") .. (value.shape and "[" .. table.concat(sizes, ",") .. "]" or "")
end

local function values_text(values)
  local texts = {}
  for i, value in ipairs(values) do texts[i] = value_text(value) end
  return table.concat(texts, ", ")
end

--- "policy.onnx(obs: float32[batch,8]) -> action: float32[batch,2]  [opset 17, 5 nodes, 4 variables]".
function Model:__tostring()
  local count = 0
  for _ in pairs(self.variables) do count = count + 1 end
  return ("%s(%s) -> %s  [opset %d, %d %s, %d %s]"):format(self.file, values_text(self.inputs),
    values_text(self.outputs), self.opset, #self._nodes, #self._nodes == 1 and "node" or "nodes", count,
    count == 1 and "variable" or "variables")
end

--- The table of its values with the operators that give them, so that one can be named in `outputs` of flow.onnx.load:
--- `print(model:summary())`. Where jobs have called the model, also their shapes in the last of these, and what was
--- known before that ran is left out.
--- @return string
function Model:summary()
  arguments.check_self(self, Model, "model:summary")
  return require("moonflow.onnx.summary").text(self)
end

-- ---- tracing ------------------------------------------------------------------------------------------------------

-- One call of a model in a job: its values by name, as far as they have been made, and the nodes that have made them.
local Reading = {}
Reading.__index = Reading

-- Warns where another file of the same path has been loaded since.
local function note_change(model, weight, known)
  if model.noted or known == weight.initializer or known.array == weight.value then return end
  model.noted = true
  session.log(("flow.onnx: %s has changed since it was loaded before; its variables keep their values, and "
    .. "flow.load_variables(model.variables) gives them the file's"):format(model.file))
end

-- Warns where one weight of a train job stands for several. Exporters make one of initializers that are equal.
local function note_tied(reading, weight)
  local model, norms = reading.model, weight.norms or 0
  if model.noted_tied or norms == 0 or reading.trace.type ~= "train" then return end
  local what = weight.was_trainable and "for scales or shifts of norms and for their statistics, which are not trained"
    or weight.trainable and norms > 1 and ("for %d norms, which are trained as one"):format(norms)
  if not what then return end
  model.noted_tied = true
  session.log(("flow.onnx: %s has one '%s' %s; exporters merge weights that are equal, as those of an untrained net "
    .. "are"):format(model.file, weight.name, what))
end

-- The variable of a weight, in whatever namespace the model is called. One of the same name that does not come from the
-- same file is another's.
local function make_variable(self, weight)
  local full = weight.name
  local known, site = variable.first_value(self.trace, full)
  if known and known.file ~= self.model.path then
    errors.raise("invalid_argument", ("%s: the variable '%s' is there already, made at %s; give the model a name of "
      .. "its own: flow.onnx.load(\"%s\", { name = \"...\" })"):format(self.file, full, site or "?", self.model.path))
  end
  if known then note_change(self.model, weight, known) end
  note_tied(self, weight)
  return variable.get(self.file, {
    name = full, shape = weight.value.shape, dtype = weight.value.dtype, initializer = weight.initializer,
    trainable = weight.trainable,
  })
end

-- A node of no file, to compute with.
local function bare_node(name, reading)
  return nodes_module().new({ name = name, op = "Identity", inputs = {}, outputs = {}, attributes = {} }, reading)
end

-- A processor computes float16 in float32, and would widen and round at each op. So all is wide there between the
-- inputs and the outputs; the variables are as the file has them. (Some multiply bfloat16 as it is.)
local function widened(reading, value, name)
  if not reading.widens or value == nil or value.dtype ~= "float16" then return value end
  return bare_node(name, reading):cast(value, "float32", "wide")
end

--- The value of a name, as a blob or an ndarray.
function Reading:value(name)
  local value = self.values[name]
  if value == nil then
    local weight = self.model._weights[name]
    value = widened(self, weight and make_variable(self, weight) or self.model._constants[name], name)
    self.values[name] = value
  end
  return value
end

-- What follows from weights and from arrays alone, each weight being what the file says; nil where there is more to it.
-- TensorFlow's exporter cuts the ends of a slice to what an int32 holds, by tables of floats.
local function of_weights(reading, name)
  local known = {}
  for other, value in pairs(reading.values) do
    if not blob.is(value) then known[other] = value end
  end
  local inner = setmetatable({
    values = known, model = setmetatable({ _weights = {} }, { __index = reading.model }),
  }, { __index = reading })
  local function find(value)
    if value == "" or known[value] ~= nil or reading.model._constants[value] then return true end
    local raw = reading.makers[value]
    if not raw then return false end
    for _, attribute in pairs(raw.attributes) do
      if attribute.g then return false end
    end
    for _, input in ipairs(raw.inputs) do
      if not find(input) then return false end
    end
    inner:run { raw }
    return not blob.is(known[value])
  end
  return find(name) and inner:value(name) or nil
end

--- The ndarray of a name, or nil where only a run knows it. A weight is what the file says.
function Reading:constant(name)
  local value = self.values[name]
  if blob.is(value) or value == nil then value = self.model._constants[name] or of_weights(self, name) end
  return value
end

--- How many nodes and outputs of the model read a name.
function Reading:readers(name)
  local counts = self.model._readers
  if not counts then
    counts = {}
    local function count(value) counts[value] = (counts[value] or 0) + 1 end
    each_node(self.model._nodes, function(raw)
      for _, input in ipairs(raw.inputs) do count(input) end
      for _, attribute in pairs(raw.attributes) do
        for _, output in ipairs(attribute.g and attribute.g.outputs or {}) do count(output.name) end
      end
    end)
    for _, output in ipairs(self.model.outputs) do count(output.name) end
    self.model._readers = counts
  end
  return counts[name] or 0
end

--- The names of the inputs of the model whose values a value of a run follows from.
function Reading:inputs_behind(name)
  local seen, is_input, found = {}, {}, {}
  for _, input in ipairs(self.model.inputs) do is_input[input.name] = true end
  local function visit(value)
    local made = self.values[value]
    if seen[value] or made == nil or arguments.kind(made) == "ndarray" then return end
    seen[value] = true
    if is_input[value] then found[#found + 1] = value end
    local raw = self.makers[value]
    for _, input in ipairs(raw and raw.inputs or {}) do visit(input) end
    for _, attribute in pairs(raw and raw.attributes or {}) do
      for _, output in ipairs(attribute.g and attribute.g.outputs or {}) do visit(output.name) end
    end
  end
  visit(name)
  return found
end

local function check_input(model, declared, value)
  local what = model.file .. ": input '" .. declared.name .. "'"
  if not (blob.is(value) or arguments.kind(value) == "ndarray") then
    errors.raise("invalid_argument", what .. " must be a blob, got " .. arguments.describe(value))
  end
  if declared.dtype and value.dtype ~= declared.dtype then
    errors.raise("dtype_mismatch", what .. " is " .. declared.dtype .. ", got " .. value.dtype)
  end
  local sizes = value.shape:table()
  local fits = not declared.shape or #declared.shape == #sizes
  for i, size in ipairs(fits and declared.shape or {}) do
    fits = fits and (type(size) == "string" or size == sizes[i])
  end
  if not fits then
    errors.raise("shape_mismatch", ("%s wants %s, got %s; an exporter leaves a size open where it is told to, as in "
      .. "dynamic_axes = {\"%s\": {0: \"batch\"}}"):format(what, value_text(declared), tostring(value.shape),
      declared.name))
  end
end

local function names_of(values)
  local names = {}
  for i, value in ipairs(values) do names[i] = value.name end
  return names
end

-- The arguments of a call by the names of the inputs: in their order, or in one table.
local function bind(model, ...)
  local count, values = select("#", ...), {}
  local first = ...
  if count == 1 and type(first) == "table" and getmetatable(first) == nil then
    local names = names_of(model.inputs)
    for name, value in pairs(first) do values[name] = value end
    for name in pairs(values) do
      local is_known = false
      for _, known in ipairs(names) do is_known = is_known or known == name end
      if not is_known then
        errors.raise("invalid_argument", model.file .. " has no input '" .. tostring(name) .. "'"
          .. (arguments.nearest(tostring(name), names) and arguments.suggestion(tostring(name), names)
            or "; its inputs are " .. table.concat(names, ", ")))
      end
    end
  elseif count ~= #model.inputs then
    errors.raise("invalid_argument", ("%s takes %d %s (%s), got %d"):format(model.file, #model.inputs,
      #model.inputs == 1 and "input" or "inputs", values_text(model.inputs), count))
  else
    for i, input in ipairs(model.inputs) do values[input.name] = (select(i, ...)) end
  end
  for _, input in ipairs(model.inputs) do check_input(model, input, values[input.name]) end
  return values
end

-- Gives the outputs of a node their names.
local function keep(reading, node, ...)
  for i, name in ipairs(node.raw.outputs) do
    local value = (select(i, ...))
    if name ~= "" then
      if value == nil and reading.wanted[name] then
        node:fail("output " .. i .. ", '" .. name .. "', is not supported")
      end
      reading.values[name], reading.makers[name] = widened(reading, value, name), node.raw
    end
  end
end

-- What an operator gives. An error of an op that it has put in knows of no node, so it is told.
local function given_by(node, fine, ...)
  if fine then return ... end
  local problem = (...)
  if errors.is_error(problem) and not tostring(problem):find(node.reading.file .. ": node '", 1, true) then
    local op = problem.op and problem.op ~= "" and problem.op .. ": " or ""
    problem = errors.new(problem.code, node:describe() .. ": " .. op .. problem.message, problem.where)
  end
  error(problem, 0)
end

--- Applies nodes in their order, but for those that give weights.
function Reading:run(nodes)
  for _, raw in ipairs(nodes) do
    if not self.model._weights[raw.outputs[1]] then
      local node = nodes_module().new(raw, self)
      keep(self, node, given_by(node, pcall(all_operators()[name_of(raw)], node)))
      node:check_attributes()
    end
  end
end

--- The outputs of a graph in a node, which takes these values and those of the graphs around it. No name in it is one
--- of theirs, and nothing behind it reads one that is made in it. What it has of its own are constants.
function Reading:inner(graph, values)
  for i, input in ipairs(graph.inputs) do self.values[input.name] = values[i] end
  for _, entry in ipairs(graph.initializers) do
    if not self.model._weights[entry.name] then self.values[entry.name] = widened(self, entry.value, entry.name) end
  end
  self:run(graph.nodes)
  local outputs = {}
  for i, output in ipairs(graph.outputs) do outputs[i] = self:value(output.name) end
  return outputs
end

local function run(reading, values)
  local model = reading.model
  reading.values, reading.makers = {}, {}
  for name, value in pairs(values) do reading.values[name] = widened(reading, value, name) end
  reading:run(model._nodes)
  local results = {}
  local last = bare_node("output", reading)
  for i, output in ipairs(model.outputs) do
    local value = reading:value(output.name)
    if last.is_sequence(value) then
      errors.raise("unsupported", ("%s: output '%s' is a sequence, which a job does not give; choose values that are "
        .. "made of it by flow.onnx.load(..., { outputs = { ... } })"):format(model.file, output.name))
    end
    if output.dtype == "float16" then value = last:cast(value, output.dtype, tostring(i - 1)) end
    results[i] = last:blob(value)
  end
  model.types = {}
  for name, value in pairs(reading.values) do
    if blob.is(value) then model.types[name] = value.dtype .. " " .. tostring(value.shape) end
  end
  return unpack(results, 1, #model.outputs)
end

local function within_name(name, body)
  if name then return scope.namespace(name, body) end
  return body()
end

--- The outputs for these inputs, as values of the job that is being traced.
--- @error outside of a job's body; inputs of another number, dtype or shape
function Model:__call(...)
  local t = trace.need(self.file)
  local values = bind(self, ...)
  local placed = t.placements[#t.placements]
  local where = placed and placed.where or t.where
  local on_cpu = type(where) ~= "number"  -- the index of a gpu
  local reading = setmetatable({
    widens = on_cpu, in_bytes = on_cpu and t.type == "predict" and core.multiplies_bytes(),
    model = self, file = self.file, opset = self.opset, trace = t, wanted = self._wanted, constants = {}, floats = {},
    narrow = self._narrow,
    dequantized = {}, layers_in_bytes = {},
  }, Reading)
  -- What is called twice has its ops numbered, as layers that share their variables.
  return scope.reuse_variables(function()
    return within_name(self.name, function()
      return trace.within(t.composing, self.file, function() return run(reading, values) end)
    end)
  end)
end

return onnx
