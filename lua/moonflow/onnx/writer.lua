--- What is put together when a job is written as ONNX: nodes, initializers, and the names of values.
-- A bool is an int8 here, and a type of its own in ONNX. A value that is one has its bool there, and its int8 once
-- somebody asks for it.

local core = require "moonflow.core"
local errors = require "moonflow.errors"
local types = require "moonflow.onnx.types"

local Writer = {}
Writer.__index = Writer

--- Makes one.
--- @param graph userdata  the graph that is written
--- @param what string     "job:export_onnx: lenet", for errors
local function new(graph, what)
  return setmetatable({
    graph = graph, what = what, nodes = {}, initializers = {},
    names = {},   -- id of a value -> its name
    bools = {},   -- id of a value -> the name of its bool
    makers = {},  -- id of a value -> the node that another one may take over
    uses = {},    -- id of a value -> how many read it
    given = {},   -- id of a value -> true, where it is there before all nodes: an input or a weight
    weights = {}, -- name of an initializer -> true, where it is one
    taken = {}, made = {}, known = {},
  }, Writer)
end

--- A fresh name like this one.
function Writer:fresh(name)
  local free, i = name, 1
  while self.taken[free] or free == "" do free, i = name .. "_" .. i, i + 1 end
  self.taken[free] = true
  return free
end

--- Adds an initializer and gives its name: a weight, or sizes and numbers, which have no fraction or no axis. What
--- else is constant is a node, so that whoever reads the file does not take it for a weight.
function Writer:initializer(name, array)
  name = self:fresh(name)
  self.initializers[#self.initializers + 1] = { name = name, value = array }
  return name
end

--- Adds a weight and gives its name.
function Writer:weight(name, array)
  name = self:initializer(name, array)
  self.weights[name] = true
  return name
end

-- ---- the op that is being written ---------------------------------------------------------------------------------

--- Goes on to the next op of the graph; what is emitted from here on belongs to it.
function Writer:begin(op)
  self.op = op
  local _, attrs = self.graph:made_by(op.outputs[1], op.op)
  self.attrs = attrs
end

function Writer:fail(text, code)
  local op = self.op
  errors.raise(code or "unsupported", ("%s: %s '%s'%s %s"):format(self.what, op.op, op.name,
    op.site ~= "" and " (" .. op.site .. ")" or "", text))
end

--- Adds a node and gives the name of its output, or the names of several.
--- @param operator string     of ONNX
--- @param inputs table        names; "" for one that is left out
--- @param attributes? table   { name = { kind = value } }
--- @param word? string        of a step on the way; without it the node has the op's name
--- @param outputs? number     default 1
function Writer:emit(operator, inputs, attributes, word, outputs)
  local name = self:fresh(word and self.op.name .. "_" .. word or self.op.name)
  local node = { op = operator, name = name, inputs = inputs, outputs = { name }, attributes = attributes or {} }
  for i = 2, outputs or 1 do node.outputs[i] = self:fresh(name .. "_" .. i) end
  self.nodes[#self.nodes + 1], self.last = node, node
  for _, output in ipairs(node.outputs) do self.made[output] = node end
  return unpack(node.outputs)
end

--- A constant with this array in it.
function Writer:array(array, word)
  return self:emit("Constant", {}, { value = { t = array } }, word)
end

local function list_array(list, dtype)
  return #list == 0 and core.zeros(dtype, { 0 }) or core.array(list, dtype)
end

--- Sizes, axes or places as a constant.
function Writer:ints(list)
  local key = "ints " .. table.concat(list, " ")
  self.known[key] = self.known[key] or self:initializer("sizes_" .. table.concat(list, "_"), list_array(list, "int64"))
  return self.known[key]
end

--- A number of this dtype (default: that of the first input) as a constant.
function Writer:number(value, dtype)
  dtype = dtype or self:dtype(1)
  local key = dtype .. (" %.17g"):format(value)
  self.known[key] = self.known[key] or self:initializer("number", core.array(value, dtype, {}))
  return self.known[key]
end

--- Gives values other names, which are free: { old = new }.
function Writer:rename(names)
  for _, node in ipairs(self.nodes) do
    for _, list in ipairs { node.inputs, node.outputs } do
      for i, name in ipairs(list) do list[i] = names[name] or name end
    end
  end
end

-- ---- its values ---------------------------------------------------------------------------------------------------

--- The name of a value of the graph.
function Writer:name_of(id)
  if not self.names[id] and self.bools[id] then
    local op = self.op
    self.op = { name = self.bools[id], op = "cast", site = "" }
    self.names[id] = self:emit("Cast", { self.bools[id] }, { to = types.attribute("int8") }, "int8")
    self.op = op
  end
  return self.names[id]
end

--- Is the i-th input there?
function Writer:has(i) return self.op.inputs[i] and true or false end

--- The name of the i-th input, from 1 on.
function Writer:input(i) return self:name_of(self.op.inputs[i]) end
--- The names of all of them.
function Writer:inputs()
  local names = {}
  for i = 1, #self.op.inputs do names[i] = self:input(i) end
  return names
end

--- The name of the i-th input as a bool.
function Writer:flag(i)
  local id = self.op.inputs[i]
  if not self.bools[id] then
    self.bools[id] = self:emit("Cast", { self:input(i) }, { to = types.attribute("bool") }, "bool_" .. i)
  end
  return self.bools[id]
end

--- The name of the i-th input as indices, which ONNX takes in int64 everywhere.
function Writer:indices(i)
  if self:dtype(i) == "int64" then return self:input(i) end
  return self:emit("Cast", { self:input(i) }, { to = types.attribute("int64") }, "indices")
end

function Writer:type(i) return self.graph:type(self.op.inputs[i]) end
function Writer:dtype(i) return (self.graph:type(self.op.inputs[i])) end
function Writer:sizes(i)
  local _, shape = self.graph:type(self.op.inputs[i])
  return shape:table()
end

--- Dtype and sizes of the result.
function Writer:result(i)
  local dtype, shape = self.graph:type(self.op.outputs[i or 1])
  return dtype, shape:table()
end

--- An axis, counted from 0; a negative one counts from the end.
function Writer.axis(_, axis, rank) return axis < 0 and axis + rank or axis end

--- The node that makes the i-th input, if it is one of this operator and nobody else reads what it makes: it may be
--- changed to do this op's work too.
function Writer:maker(i, operator)
  local id = self.op.inputs[i]
  local node = self.makers[id]
  return node and node.op == operator and self.uses[id] == 1 and node or nil
end

return { new = new }
