--- What job:export_onnx writes where the batch is open: one graph made of several, the job's for batches of some sizes.
--- What differs between them is made of the size of the first input when the file runs.

local errors = require "moonflow.errors"
local np = require "moonflow.np"
local types = require "moonflow.onnx.types"

local batch = {}

--- The sizes of batches by which a job is traced: two for a straight line, and two to see that it is one. By 4 each
--- leaves another rest, so what is odd or half of a batch lies on no line.
batch.sizes = { 12, 17, 26, 31 }

-- By which whole `offset + slope * size of the batch` gives these values, one for each size; nil where it does not.
local function line_through(values)
  local sizes = batch.sizes
  local slope = (values[2] - values[1]) / (sizes[2] - sizes[1])
  local offset = values[1] - slope * sizes[1]
  if slope % 1 ~= 0 or offset % 1 ~= 0 then return nil end
  for i, value in ipairs(values) do
    if value ~= offset + slope * sizes[i] then return nil end
  end
  return offset, slope
end

local kRounding = { float32 = 2 ^ -22, float64 = 2 ^ -48 }  -- how far floats may be from what they were rounded from

local function rounded(number) return tonumber(("%.5f"):format(number)) end

-- The same of floats, which are rounded: a line of few digits, one through 0 or else any.
local function rounded_line_through(values, dtype)
  local sizes, count = batch.sizes, #values
  local slope = (values[count] - values[1]) / (sizes[count] - sizes[1])
  local few = rounded(slope)
  local lines = {
    { rounded(values[1] - few * sizes[1]), few }, { 0, values[1] / sizes[1] }, { values[1] - slope * sizes[1], slope },
  }
  for _, line in ipairs(lines) do
    local fits = true
    for i, value in ipairs(values) do
      fits = fits and math.abs(line[1] + line[2] * sizes[i] - value) <= kRounding[dtype] * math.abs(value)
    end
    if fits then return unpack(line) end
  end
end

-- The k-th of each list.
local function across(lists, k)
  local values = {}
  for i, list in ipairs(lists) do values[i] = list[k] end
  return values
end

local Merger = {}
Merger.__index = Merger

function Merger:fail(node, text)
  errors.raise("unsupported", ("%s: with any_batch %s '%s' %s"):format(self.writer.what, node.op, node.name, text))
end

-- A node before all others, and the name of its output.
function Merger:emit(operator, inputs, word, attributes)
  local name = self.writer:fresh(word)
  self.first[#self.first + 1] = { op = operator, name = name, inputs = inputs, outputs = { name },
                                  attributes = attributes or {} }
  return name
end

-- The size of the batch, as a list of one number.
function Merger:size()
  if not self.source then
    errors.raise("unsupported", self.writer.what .. ": with any_batch its results depend on the size of the batch, and "
      .. "none reads an input that has it")
  end
  if not self.size_name then
    local shape = self:emit("Shape", { self.source.name }, "batch_shape")
    self.size_name = self:emit("Gather", { shape, self.writer:ints { self.source.axis } }, "batch_size")
  end
  return self.size_name
end

-- Numbers that lie on lines, by what `array` is in the first graph.
function Merger:numbers(offsets, slopes, array)
  local key = table.concat({ table.concat(offsets, " "), table.concat(slopes, " "), array.dtype, #array.shape }, "/")
  if not self.made[key] then
    local writer = self.writer
    local name = self:emit("Mul", { self:size(), writer:ints(slopes) }, "batch_times")
    name = self:emit("Add", { name, writer:ints(offsets) }, "batch_sizes")
    if #array.shape == 0 then name = self:emit("Squeeze", { name, writer:ints { 0 } }, "batch_number") end
    if array.dtype ~= "int64" then
      name = self:emit("Cast", { name }, "batch_as_" .. array.dtype, { to = types.attribute(array.dtype) })
    end
    self.made[key] = name
  end
  return self.made[key]
end

-- The name of one float that lies on a line, or 1 over which does, computed in float64; nil where it does not.
function Merger:float(arrays)
  local a, values, parts = arrays[1], {}, {}
  if not kRounding[a.dtype] then return nil end
  for i, array in ipairs(arrays) do
    if array.dtype ~= a.dtype or array.shape:count() ~= 1 or #array.shape ~= #a.shape then return nil end
    values[i] = array:reshape({}):item()
    parts[i] = 1 / values[i]
  end
  local offset, slope = rounded_line_through(values, a.dtype)
  local is_part = not offset
  if is_part then offset, slope = rounded_line_through(parts, a.dtype) end
  if not offset then return nil end
  local key = table.concat({ "float", offset, slope, tostring(is_part), a.dtype, #a.shape }, "/")
  if not self.made[key] then
    local writer, shape = self.writer, {}
    for axis = 1, #a.shape do shape[axis] = 1 end
    local name = self:emit("Cast", { self:size() }, "batch_as_float64", { to = types.attribute("float64") })
    name = self:emit("Mul", { name, writer:number(slope, "float64") }, "batch_times")
    name = self:emit("Add", { name, writer:number(offset, "float64") }, "batch_plus")
    if is_part then name = self:emit("Reciprocal", { name }, "part_of_batch") end
    name = self:emit("Reshape", { name, writer:ints(shape) }, "batch_number")
    self.made[key] = self:emit("Cast", { name }, "batch_as_" .. a.dtype, { to = types.attribute(a.dtype) })
  end
  return self.made[key]
end

local function all_equal(arrays)
  for i = 2, #arrays do
    local a, b = arrays[1], arrays[i]
    if a.dtype ~= b.dtype or not np.array_equal(a, b) then return false end
  end
  return true
end

-- The name of what takes the place of initializers that differ, as this input of the node.
function Merger:of_batch(node, place, arrays)
  local float = self:float(arrays)
  if float then return float end
  local a, lists = arrays[1], {}
  local is_whole = (a.dtype == "int64" or a.dtype == "int32") and #a.shape <= 1
  for i, array in ipairs(arrays) do
    if not is_whole or #array.shape ~= #a.shape or array.shape:count() ~= a.shape:count() then
      self:fail(node, "has a constant that depends on the batch")
    end
    lists[i] = #array.shape == 0 and { array:item() } or array:totable()
  end
  local offsets, slopes, changing = {}, {}, {}
  for k = 1, #lists[1] do
    offsets[k], slopes[k] = line_through(across(lists, k))
    if not offsets[k] then self:fail(node, "has a size that is no multiple of the batch") end
    if slopes[k] ~= 0 then changing[#changing + 1] = k end
  end
  if node.op == "Reshape" and place == 2 and #changing == 1 then
    local sizes, is_open = {}, false
    for k, size in ipairs(lists[1]) do
      sizes[k] = k == changing[1] and -1 or size
      is_open = is_open or size <= 0
    end
    if not is_open then return self.writer:ints(sizes) end
  end
  return self:numbers(offsets, slopes, a)
end

-- One input of a node, by what it is in each graph: a weight, a constant, or what another node makes.
function Merger:input(nodes, place)
  local name = nodes[1].inputs[place]
  local arrays = {}
  for i, node in ipairs(nodes) do arrays[i] = self.arrays[i][node.inputs[place]] end
  if #arrays == 0 then return name end
  return all_equal(arrays) and name or self:of_batch(nodes[1], place, arrays)
end

-- Of arrays that change with the batch: the first places along the axes that do, and the size along each axis in each
-- graph. Whole numbers may also grow from place to place along the first such axis, as those of the samples do: then
-- that axis, and by what. Nil where there is more to it.
local function line_of(arrays)
  local first, sizes, changing = {}, {}, {}
  for i, array in ipairs(arrays) do
    if array.dtype ~= arrays[1].dtype or #array.shape ~= #arrays[1].shape then return nil end
    first[i] = array
  end
  for axis = 0, #arrays[1].shape - 1 do
    local list = {}
    for i, array in ipairs(arrays) do list[i] = array.shape[axis] end
    sizes[axis + 1] = list
    if list[1] ~= list[2] then changing[#changing + 1] = axis end
  end
  if #changing == 0 then return nil end
  local grown = np.take(arrays[1], { 1 }, changing[1])
  for k, axis in ipairs(changing) do
    if k > 1 then grown = np.take(grown, { 0 }, axis) end
    for i, array in ipairs(first) do first[i] = np.take(array, { 0 }, axis) end
  end
  local is_whole = arrays[1].dtype == "int64" or arrays[1].dtype == "int32"
  local steps = is_whole and not np.array_equal(grown, first[1]) and grown - first[1] or nil
  for _, array in ipairs(arrays) do
    local whole = first[1]
    if steps then
      local along = {}
      for axis = 1, #array.shape do along[axis] = axis - 1 == changing[1] and -1 or 1 end
      whole = whole + np.arange(array.shape[changing[1]]):astype(array.dtype):reshape(along) * steps
    end
    if not np.array_equal(array, np.broadcast_to(whole, array.shape:table())) then return nil end
  end
  return first[1], sizes, steps, changing[1]
end

-- A constant that others take nothing of; its name.
function Merger:constant(array, word) return self:emit("Constant", {}, word, { value = { t = array } }) end

-- Whole numbers 0, 1, ... along one axis of so many, as many as its sizes say.
function Merger:places(sizes, axis, dtype)
  local writer, along = self.writer, {}
  for i = 1, #sizes do along[i] = i - 1 == axis and -1 or 1 end
  local offset, slope = line_through(sizes[axis + 1])
  local count = self:numbers({ offset }, { slope }, np.array(0):astype("int64"))
  local places = self:emit("Range", { writer:number(0, "int64"), count, writer:number(1, "int64") }, "batch_places")
  if dtype ~= "int64" then
    places = self:emit("Cast", { places }, "batch_places_as_" .. dtype, { to = types.attribute(dtype) })
  end
  return self:emit("Reshape", { places, writer:ints(along) }, "batch_places_along")
end

-- Makes constants of other sizes out of the part for one sample. False where that cannot be.
function Merger:is_constant_of_batch(nodes)
  local arrays = {}
  for i, node in ipairs(nodes) do arrays[i] = node.attributes.value.t end
  if all_equal(arrays) then return false end
  local float = self:float(arrays)
  if float then
    nodes[1].op, nodes[1].attributes, nodes[1].inputs = "Identity", {}, { float }
    return true
  end
  local first, sizes, steps, axis = line_of(arrays)
  if not first then return false end
  local offsets, slopes = {}, {}
  for i, list in ipairs(sizes) do
    offsets[i], slopes[i] = line_through(list)
    if not offsets[i] then self:fail(nodes[1], "has a size that is no multiple of the batch") end
  end
  local name = nodes[1].name
  local part = self:constant(first, name .. "_part")
  if steps then
    local grown = self:emit("Mul", { self:places(sizes, axis, first.dtype), self:constant(steps, name .. "_step") },
      name .. "_steps")
    part = self:emit("Add", { part, grown }, name .. "_whole")
  end
  nodes[1].op, nodes[1].attributes = "Expand", {}
  nodes[1].inputs = { part, self:numbers(offsets, slopes, np.array { 0 }:astype("int64")) }
  return true
end

-- Fills with a float that depends on the batch. False where that cannot be.
function Merger:is_filled_by_batch(nodes)
  local arrays = {}
  for i, node in ipairs(nodes) do arrays[i] = node.attributes.value and node.attributes.value.t:reshape {} end
  if #arrays < #nodes or all_equal(arrays) then return false end
  local float = self:float(arrays)
  if not float then return false end
  nodes[1].inputs = { float, self:input(nodes, 1) }
  nodes[1].op, nodes[1].attributes = "Expand", {}
  return true
end

local function check_attributes(self, nodes)
  for name, value in pairs(nodes[1].attributes) do
    for kind, content in pairs(value) do
      local contents = {}
      for i, node in ipairs(nodes) do contents[i] = (node.attributes[name] or {})[kind] end
      local is_same = #contents == #nodes
      if is_same and kind == "t" then
        is_same = all_equal(contents)
      else
        for _, other in ipairs(contents) do
          local both = type(content) == "table" and { table.concat(content, " "), table.concat(other, " ") }
            or { content, other }
          is_same = is_same and both[1] == both[2]
        end
      end
      if not is_same then self:fail(nodes[1], "has a value that depends on the batch") end
    end
  end
end

-- Sizes of an input or a result: the batch by that name, and what depends on it otherwise left open.
local function open_sizes(values)
  local sizes = {}
  for axis = 1, #values[1].shape do
    local list = {}
    for i, value in ipairs(values) do list[i] = value.shape[axis] end
    local offset, slope = line_through(list)
    sizes[axis] = slope == 0 and list[1] or (offset == 0 and slope == 1) and "batch" or ""
  end
  return sizes
end

local function drop_unread(writer)
  local read = {}
  for _, node in ipairs(writer.nodes) do
    for _, name in ipairs(node.inputs) do read[name] = true end
  end
  local kept = {}
  for _, initializer in ipairs(writer.initializers) do
    if read[initializer.name] then kept[#kept + 1] = initializer end
  end
  writer.initializers = kept
end

--- Makes one graph of those of a job for batches of batch.sizes: each is its inputs, its outputs and the writer of the
--- rest.
--- @param graphs table  list of them; the first becomes the result
--- @param axes table    by the name of an input: the axis of the batch
--- @error what else than sizes depends on the batch, by its name
function batch.merge(graphs, axes)
  local graph, writer = graphs[1], graphs[1].writer
  local self = setmetatable({ writer = writer, first = {}, made = {}, arrays = {} }, Merger)
  for i, each in ipairs(graphs) do
    local other = each.writer
    if #other.nodes ~= #writer.nodes then
      errors.raise("unsupported", ("%s: with any_batch it has %d nodes for a batch of %d and %d for one of %d"):format(
        writer.what, #writer.nodes, batch.sizes[1], #other.nodes, batch.sizes[i]))
    end
    self.arrays[i] = {}
    for _, initializer in ipairs(other.initializers) do
      if not other.weights[initializer.name] then self.arrays[i][initializer.name] = initializer.value end
    end
  end
  for _, input in ipairs(graph.inputs) do
    if not self.source and axes[input.name] then self.source = { name = input.name, axis = axes[input.name] } end
  end

  for k, node in ipairs(writer.nodes) do
    local nodes = {}
    for i, each in ipairs(graphs) do nodes[i] = each.writer.nodes[k] end
    for _, other in ipairs(nodes) do
      if other.op ~= node.op or #other.inputs ~= #node.inputs then
        self:fail(node, "is another operator for another batch")
      end
    end
    if not (node.op == "Constant" and self:is_constant_of_batch(nodes)
        or node.op == "ConstantOfShape" and self:is_filled_by_batch(nodes)) then
      check_attributes(self, nodes)
      local inputs = {}
      for place = 1, #node.inputs do inputs[place] = self:input(nodes, place) end
      node.inputs = inputs
    end
  end
  for _, list in ipairs { "inputs", "outputs" } do
    for k, value in ipairs(graph[list]) do
      local values = {}
      for i, each in ipairs(graphs) do values[i] = each[list][k] end
      value.shape = open_sizes(values)
    end
  end
  for i = #self.first, 1, -1 do table.insert(writer.nodes, 1, self.first[i]) end
  drop_unread(writer)
  return graph
end

return batch
