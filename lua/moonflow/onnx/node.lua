--- A node of an ONNX graph as its operator sees it while a job is traced: the values that come in, the attributes, and
--- `apply`, which computes.
-- A value is a blob of the job, or an ndarray where it is known already: a constant of the file, a shape, whatever
-- follows from them. What is applied to ndarrays alone is computed at once, so that the chains of Shape, Gather and
-- Concat that exporters write before a Reshape leave nothing in the job.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local ops = require "moonflow.ops"
local types = require "moonflow.onnx.types"

local Node = {}
Node.__index = Node

--- A name of a file as one of ours: without slashes, which no variable has, since checkpoints make files of them.
local function plain(name)
  local text = name:gsub("^[/.]+", ""):gsub("[/\\]", "."):gsub("%c", "_")
  return text == "" and "unnamed" or text
end

--- Makes one.
--- @param raw table       as core.onnx_read gives it
--- @param reading table   of the whole model, of which are used: file (its name), opset, trace, constants (a table),
---                        widens (is float16 float32 in it?), in_bytes (may layers compute in bytes?), floats (a
---                        table, from whole numbers to the floats they were rounded to), dequantized (a table, from
---                        floats to the whole numbers, scale and zero point that they come of), narrow (a table, from
---                        arrays of the file to the name of their type where no dtype is so narrow), layers_in_bytes
---                        (a table, of onnx/in_bytes), value(name), constant(name), inner(graph, values),
---                        inputs_behind(name), readers(name)
local function new(raw, reading)
  local name = raw.name ~= "" and raw.name or raw.outputs[1] or ""
  return setmetatable({ raw = raw, reading = reading, name = name, op = raw.op, opset = reading.opset, asked = {} },
    Node)
end

--- "policy.onnx: node '/conv1/Conv' (Conv)".
function Node:describe()
  return ("%s: node '%s' (%s)"):format(self.reading.file, self.name, self.op)
end

--- Raises an error about this node.
function Node:fail(text, code)
  errors.raise(code or "unsupported", self:describe() .. ": " .. text)
end

-- ---- what comes in ------------------------------------------------------------------------------------------------

--- The value, which an operator cannot do without.
function Node:need(value, what)
  if value == nil then self:fail("it has no " .. what, "invalid_argument") end
  return value
end

--- How many inputs and outputs are named, with those left out between them.
function Node:input_count() return #self.raw.inputs end
function Node:output_count() return #self.raw.outputs end

--- Is the i-th output, from 1 on, asked for by anybody?
function Node:is_wanted(i)
  local name = self.raw.outputs[i]
  return name ~= nil and name ~= "" and self.reading.wanted[name] == true
end

-- The opset by which attributes are that do not come from a file.
local kNewestOpset = 24

--- This node with other values in the place of its inputs, for an operator that is another one at heart; and with other
--- attributes, where that one has others, in the form of its newest opset.
function Node:taking(values, attributes)
  local node = setmetatable({}, Node)
  for field, value in pairs(self) do node[field] = value end
  node.values = values
  if attributes then
    node.raw = setmetatable({ attributes = attributes }, { __index = self.raw })
    node.opset = kNewestOpset
  end
  return node
end

-- What operators of sequences hand on: a list of values, which is none itself.
local Sequence = {}

--- A sequence of the values in a list.
function Node.sequence_of(list) return setmetatable(list, Sequence) end

function Node.is_sequence(value) return getmetatable(value) == Sequence end

--- The i-th input, from 1 on, whatever it is; nil where it is left out.
function Node:any(i)
  if self.values then return self.values[i] end
  local name = self.raw.inputs[i]
  if not name or name == "" then return nil end
  return self.reading:value(name)
end

-- The value that it must be, and not a sequence.
local function checked(self, i, value)
  if self.is_sequence(value) then
    self:fail(("input %d is a sequence, wanted a tensor"):format(i), "invalid_argument")
  end
  return value
end

--- The values in the i-th input, which is a sequence.
function Node:sequence(i)
  local value = self:need(self:any(i), "input " .. i)
  if not self.is_sequence(value) then
    self:fail(("input %d is a tensor, wanted a sequence"):format(i), "invalid_argument")
  end
  return { unpack(value) }
end

--- The i-th input, from 1 on, or nil where it is left out.
function Node:optional(i) return checked(self, i, self:any(i)) end

--- Is this node all that reads its i-th input?
function Node:is_sole_reader(i) return self.reading:readers(self.raw.inputs[i]) == 1 end

--- The i-th input.
function Node:input(i)
  return self:need(self:optional(i), "input " .. i)
end

--- All inputs in a list.
function Node:all_inputs()
  local list = {}
  for i = 1, self:input_count() do list[i] = self:input(i) end
  if #list == 0 then self:fail("it has no input", "invalid_argument") end
  return list
end

--- The i-th input as an ndarray, or nil where it is left out. One that only a run knows is an error.
function Node:constant(i)
  local name, value = self.raw.inputs[i]
  if self.values then
    if self.values[i] == nil then return nil end
    name, value = name or "", not blob.is(self.values[i]) and self.values[i]
  else
    if not name or name == "" then return nil end
    value = self.reading:constant(name)
  end
  if not value then self:refuse_computed(i, name) end
  return checked(self, i, value)
end

--- Raises the error that the i-th input, of this name, is known in a run alone; `more` says what else there is to it.
function Node:refuse_computed(i, name, more)
  local inputs = self.reading:inputs_behind(name)
  local remedy = "export the model with sizes that do not depend on values"
  if #inputs > 0 then
    remedy = ("it follows from the values of input '%s': give it as an ndarray if it is the same in each run, or %s, "
      .. "or load the parts before and behind this node, by outputs and inputs of flow.onnx.load"):format(
      table.concat(inputs, "', '"), remedy)
  end
  self:fail(("input %d, '%s', is computed in each run, and must be known when the job is traced%s; %s"):format(i, name,
    more or "", remedy))
end

-- Beyond this a whole number means "to the end" in ONNX, and here.
local kFar = 2 ^ 53

--- The numbers of an ndarray in a list, those of int64 cut to what Lua has exactly.
function Node.list_of(array)
  local list = ndarray.evaluate("reshape", { ndarray.cast(array, "float64") }, { shape = { -1 } }):totable()
  if array.dtype == "int64" then
    for i, number in ipairs(list) do list[i] = math.max(-kFar, math.min(kFar, number)) end
  end
  return list
end

--- Those of the i-th input, or nil where it is left out.
function Node:numbers(i)
  local array = self:constant(i)
  if not array then return nil end
  if array.shape:count() > 65536 then self:fail("input " .. i .. " has too many numbers to be a list of sizes") end
  return self.list_of(array)
end

--- The single number of the i-th input, or nil where it is left out.
function Node:number(i)
  local list = self:numbers(i)
  if list and #list ~= 1 then self:fail("input " .. i .. " must be one number", "invalid_argument") end
  return list and list[1]
end

-- ---- attributes ---------------------------------------------------------------------------------------------------

local kind_texts = {
  i = "a whole number", f = "a number", s = "text", t = "a tensor", g = "a graph", ints = "a list of whole numbers",
  floats = "a list of numbers", strings = "a list of texts",
}

--- The attribute of this name and kind, as ONNX calls kinds, or `default`.
function Node:attribute(name, kind, default)
  self.asked[name] = true
  local entry = self.raw.attributes[name]
  if not entry then return default end
  local value = entry[kind]
  if value == nil then self:fail("attribute '" .. name .. "' is not " .. kind_texts[kind], "invalid_argument") end
  return value
end

function Node:int(name, default) return self:attribute(name, "i", default) end
function Node:float(name, default) return self:attribute(name, "f", default) end
function Node:text(name, default) return self:attribute(name, "s", default) end
function Node:ints(name, default) return self:attribute(name, "ints", default) end
function Node:floats(name, default) return self:attribute(name, "floats", default) end

--- The outputs of the graph that an attribute is, for these values of its inputs.
function Node:outputs_of(name, values)
  local graph = self:need(self:attribute(name, "g"), name)
  values = values or {}
  if #graph.inputs ~= #values then
    self:fail(("%s has %d inputs, wanted %d"):format(name, #graph.inputs, #values), "invalid_argument")
  end
  return self.reading:inner(graph, values)
end

--- What ONNX calls the type that an attribute names by its number; nil where it names none.
function Node:type_name(name)
  local entry = types.of_number(self:int(name, 0))
  return entry and entry.name
end

--- The dtype that an attribute names by ONNX's number, or `default`; and is it a bool?
function Node:dtype(name, default)
  local number = self:int(name)
  if not number then return default, false end
  local entry = types.of_number(number)
  if not (entry and entry.dtype) then
    self:fail(("%s is %s, which there is none of here"):format(name, entry and entry.name
      or "the type of number " .. number))
  end
  local is_widened = entry.dtype == "float16" and self.reading.widens
  return is_widened and "float32" or entry.dtype, types.is_bool(number)
end

--- A list that older operators have as an attribute, and newer ones as an input; nil where it is left out.
function Node:list(name, i)
  return self:ints(name) or self:numbers(i)
end

--- Refuses an attribute that has another value than the only one there is here.
function Node:expect(name, kind, only)
  local value = self:attribute(name, kind, only)
  if value ~= only then
    self:fail(("%s = %s is not supported, only %s"):format(name, tostring(value), tostring(only)))
  end
end

--- Says of attributes that they mean nothing here.
function Node:ignore(...)
  for i = 1, select("#", ...) do self.asked[select(i, ...)] = true end
end

--- Refuses attributes that nobody has asked for: they may change what the operator means.
function Node:check_attributes()
  for name in pairs(self.raw.attributes) do
    if not self.asked[name] then self:fail("attribute '" .. name .. "' is not supported") end
  end
end

--- An axis, counted from 0; a negative one counts from the end of `rank` axes.
function Node:axis_of(axis, rank)
  local wrapped = axis < 0 and axis + rank or axis
  if wrapped < 0 or wrapped >= rank then
    self:fail(("it names axis %d of %d"):format(axis, rank), "out_of_range")
  end
  return wrapped
end

--- Axes of a list in the same way.
function Node:axes_of(axes, rank)
  local list = {}
  for i, axis in ipairs(axes) do list[i] = self:axis_of(axis, rank) end
  return list
end

-- ---- computing ----------------------------------------------------------------------------------------------------

--- Refuses to make a list of so many numbers, if they are too many.
function Node:check_list(count)
  if count > arguments.most_listed or count ~= count then
    self:fail(("it would need a list of %g numbers"):format(count), "out_of_range")
  end
end

-- Arrays larger than this are made in the run, as whatever computes with them is.
local kMostFolded = 2 ^ 20

local function count_of(shape)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  return count
end

--- The value as a blob: a constant of the job where it is an ndarray.
function Node:blob(value)
  if blob.is(value) then return value end
  local constants, t = self.reading.constants, self.reading.trace
  if not constants[value] then
    constants[value] = blob.new(t, t:constant(value, nil, nil, errors.site()), "constant", errors.site())
  end
  return constants[value]
end

-- An op applied to ndarrays alone is computed now, unless it makes much of little.
local function is_folded(inputs, attrs)
  for _, value in ipairs(inputs) do
    if blob.is(value) then return false end
  end
  return not (attrs and attrs.shape) or count_of(attrs.shape) <= kMostFolded
end

--- Applies an op of the catalog and gives its public outputs.
--- @param op string       internal name
--- @param inputs table    values, `false` for one that is left out
--- @param attrs? table
--- @param word? string    of a step on the way: its op is called "<node>_<word>"; without it the op has the node's name
function Node:apply(op, inputs, attrs, word)
  if is_folded(inputs, attrs) then return ndarray.evaluate(op, inputs, attrs or {}, self:describe()) end
  local blobs = {}
  for i, value in ipairs(inputs) do blobs[i] = value and self:blob(value) end
  return ops.apply(op, blobs, attrs, plain(self.name) .. (word and "_" .. word or ""))
end

--- Applies an op that takes nothing and draws random numbers, which are others in each run.
function Node:draw(op, attrs, word) return ops.apply(op, {}, attrs, plain(self.name) .. "_" .. word) end

--- A constant of this dtype and shape (a list; default: a scalar), each element of which is `number`.
function Node:filled(number, dtype, shape)
  return self:apply("constant", {}, { value = number, dtype = dtype, shape = shape or {} }, "fill")
end

-- A number beside a value is one of its dtype.
local function operand(self, x, other)
  return type(other) == "number" and self:filled(other, x.dtype) or other
end

--- The sum with another value, or a number.
function Node:add(x, other, word) return self:apply("add", { x, operand(self, x, other) }, nil, word) end

--- The product with another value, or a number.
function Node:multiply(x, other, word) return self:apply("multiply", { x, operand(self, x, other) }, nil, word) end

--- An ndarray out of a list of numbers.
function Node.array(list, dtype)
  if #list == 0 then return core.zeros(dtype, { 0 }) end
  return core.array(list, dtype)
end

function Node:cast(value, dtype, word)
  if value.dtype == dtype then return value end
  return self:apply("cast", { value }, { dtype = dtype }, word or "cast")
end

function Node:reshape(value, shape, word)
  return self:apply("reshape", { value }, { shape = shape }, word)
end

--- The elements of a value along one axis of so many, so that they broadcast along all others.
function Node:along(value, rank, axis, word)
  local sizes = {}
  for i = 1, rank do sizes[i] = i - 1 == axis and value.shape:count() or 1 end
  return self:reshape(value, sizes, word)
end

--- The axes of a value in another order, from 0 on; as it is where that is the order it has.
function Node:transpose(value, perm, word)
  for i, axis in ipairs(perm) do
    if axis ~= i - 1 then return self:apply("transpose", { value }, { perm = perm }, word) end
  end
  return value
end

--- The matrix with the axes before `axis` as rows and the others as columns.
function Node:flattened(value, axis, word)
  local rows, columns = 1, 1
  for i, size in ipairs(value.shape:table()) do
    if i <= axis then rows = rows * size else columns = columns * size end
  end
  return self:reshape(value, { rows, columns }, word)
end

--- The value with two axes in each other's place.
function Node:swapped(value, one, other, word)
  local perm = {}
  for i = 1, #value.shape do perm[i] = i - 1 end
  perm[one + 1], perm[other + 1] = other, one
  return self:transpose(value, perm, word)
end

--- Indices of an axis of `size`, which may count from its end, as such that do not.
function Node:from_the_start(indices, size)
  local below = self:apply("less", { indices, self:filled(0, indices.dtype) }, nil, "below")
  local moved = self:add(indices, size, "moved")
  return self:apply("where", { below, moved, indices }, nil, "indices")
end

--- The box of a value that begins at `first` along one axis and has `size` there.
function Node:cut(value, axis, first, size, word)
  local begin, extent = {}, value.shape:table()
  for i = 1, #extent do begin[i] = 0 end
  begin[axis + 1], extent[axis + 1] = first, size
  return self:apply("slice", { value }, { begin = begin, size = extent }, word)
end

--- The places of a value along one axis that `indices` (a list, from 0 on) names.
function Node:pick(value, axis, indices, word)
  return self:apply("gather", { value, self.array(indices, "int64") }, { axis = axis }, word)
end

--- The shape that two broadcast to, as lists.
function Node:broadcast(a, b)
  return ops.broadcast(a, b) or self:fail(("shapes (%s) and (%s) do not broadcast"):format(table.concat(a, ", "),
    table.concat(b, ", ")), "shape_mismatch")
end

--- A value repeated to a shape, as it is where it has it.
function Node:spread(value, shape, word)
  local sizes = value.shape:table()
  local is_same = #sizes == #shape
  for i, size in ipairs(shape) do is_same = is_same and sizes[i] == size end
  if is_same then return value end
  return self:apply("broadcast_to", { value }, { shape = shape }, word)
end

--- Is the dtype of a value one with fractions?
function Node.is_floating(value)
  return dtypes.floating[value.dtype] == true
end

--- An operator that computes with fractions, as one for whole numbers too: its first inputs, as many as `count`, are
--- float64 then, which has all of these up to 2^53, and what it gives is cut towards 0.
local function fractional(apply, count)
  return function(node)
    local dtype, values = node:input(1).dtype, {}
    if dtypes.floating[dtype] then return apply(node) end
    for i = 1, node:input_count() do
      local value = node:optional(i)
      values[i] = value and i <= count and node:cast(value, "float64", "wide_" .. i) or value
    end
    return node:cast(apply(node:taking(values)), dtype, "whole")
  end
end

return { new = new, plain = plain, count_of = count_of, fractional = fractional }
