--- ONNX operators that cut, join and lay out arrays, and those that make them: a table from an operator's name to the
--- function that applies it to a node.
-- Shapes are known while a job is traced, so what computes with them here is computed then.

local core = require "moonflow.core"
local blob = require "moonflow.blob"
local borders = require "moonflow.formulas.borders"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np"
local onnx_node = require "moonflow.onnx.node"

local operators = {}

local count_of = onnx_node.count_of

-- ---- made from nothing, or from shapes ----------------------------------------------------------------------------

function operators.Constant(node)
  local attributes = node.raw.attributes
  if attributes.value then return node:attribute("value", "t") end
  if attributes.value_float then return core.array(node:float("value_float"), "float32", {}) end
  if attributes.value_int then return core.array(node:int("value_int"), "int64", {}) end
  if attributes.value_floats then return node.array(node:floats("value_floats"), "float32") end
  if attributes.value_ints then return node.array(node:ints("value_ints"), "int64") end
  node:fail("a constant of text, or one that is sparse, is not supported")
end

function operators.ConstantOfShape(node)
  local shape, value = node:need(node:numbers(1), "input 1"), node:attribute("value", "t")
  if not value then return node:filled(0, "float32", shape) end
  return node:filled(node:need(node.list_of(value)[1], "value"), value.dtype, shape)
end

function operators.Shape(node)
  local sizes = node:input(1).shape:table()
  local function bound(name, default)
    local at = node:int(name, default)
    return math.max(0, math.min(#sizes, at < 0 and at + #sizes or at))
  end
  local part = {}
  for i = bound("start", 0) + 1, bound("end", #sizes) do part[#part + 1] = sizes[i] end
  return node.array(part, "int64")
end

function operators.Size(node) return core.array(node:input(1).shape:count(), "int64", {}) end

function operators.Range(node)
  local start, stop = node:need(node:number(1), "start"), node:need(node:number(2), "limit")
  local step = node:need(node:number(3), "delta")
  node:check_list((stop - start) / step)
  return node:apply("range", {}, { start = start, stop = stop, step = step, dtype = node:input(1).dtype })
end

-- Weights for the samples of a signal: a sum of cosines over one period, or over one sample less.
local function window(factors)
  return function(node)
    local size, dtype = node:need(node:number(1), "size"), node:dtype("output_datatype", "float32")
    if size < 0 or size % 1 ~= 0 then node:fail(("a window of %g"):format(size), "out_of_range") end
    node:check_list(size)
    local period, list = math.max(1, node:int("periodic", 1) ~= 0 and size or size - 1), {}
    for at = 0, size - 1 do
      local sum = 0
      for k, factor in ipairs(factors) do sum = sum + factor * math.cos(2 * math.pi * (k - 1) * at / period) end
      list[at + 1] = sum
    end
    return node.array(list, dtype)
  end
end
operators.HannWindow = window { 0.5, -0.5 }
operators.HammingWindow = window { 25 / 46, -21 / 46 }
operators.BlackmanWindow = window { 0.42, -0.5, 0.08 }

-- An int8 for each place of a matrix: 1 where column - row compares as `op` says with k.
local function diagonal_mask(node, rows, columns, op, k)
  local function numbers(first, count, shape)
    local range = ndarray.evaluate("range", {}, { start = first, stop = first + count, dtype = "int64" })
    return ndarray.evaluate("reshape", { range }, { shape = shape })
  end
  k = math.max(-rows, math.min(k, columns))  -- beyond, nothing changes
  return (ndarray.evaluate(op, { numbers(0, columns, { 1, columns }), numbers(k, rows, { rows, 1 }) }, {},
    node:describe()))
end

function operators.EyeLike(node)
  local x = node:input(1)
  if #x.shape ~= 2 then node:fail("its input has " .. #x.shape .. " axes, wanted 2", "shape_mismatch") end
  local mask = diagonal_mask(node, x.shape[0], x.shape[1], "equal", node:int("k", 0))
  return node:cast(mask, node:dtype("dtype", x.dtype))
end

-- Half of a stack of matrices, with zeros in the other.
function operators.Trilu(node)
  local x, k = node:input(1), node:number(2) or 0
  local rank = #x.shape
  if rank < 2 then node:fail("its input has " .. rank .. " axes, wanted 2 or more", "shape_mismatch") end
  local op = node:int("upper", 1) ~= 0 and "greater_equal" or "less_equal"
  local mask = diagonal_mask(node, x.shape[rank - 2], x.shape[rank - 1], op, k)
  return node:apply("where", { mask, x, node:filled(0, x.dtype) })
end

-- ---- one of two graphs --------------------------------------------------------------------------------------------

local function branch_of(node, name)
  local outputs = node:outputs_of(name)
  if #outputs < node:output_count() then
    node:fail(("%s gives %d values, wanted %d"):format(name, #outputs, node:output_count()), "shape_mismatch")
  end
  return outputs
end

-- Both branches, and of each value the one that the condition chooses in a run. It has one shape, so they must agree.
local function chosen_in_run(node)
  local function refuse(why)
    node:refuse_computed(1, node.raw.inputs[1], "; a run can choose only between branches of one shape, and " .. why)
  end
  local fine, yes, no = pcall(function() return branch_of(node, "then_branch"), branch_of(node, "else_branch") end)
  if not fine then
    if not errors.is_error(yes) then error(yes, 0) end
    refuse("one of these fails (" .. yes.message .. ")")
  end
  local condition, outputs = node:reshape(node:input(1), {}, "condition"), {}
  for i = 1, node:output_count() do
    local one, other = yes[i], no[i]
    if node.is_sequence(one) or node.is_sequence(other) then refuse("these give sequences") end
    local is_alike = one.dtype == other.dtype and tostring(one.shape) == tostring(other.shape)
    if not is_alike then
      refuse(("these give %s %s and %s %s"):format(one.dtype, tostring(one.shape), other.dtype, tostring(other.shape)))
    end
    outputs[i] = node:apply("where", { condition, one, other }, nil, tostring(i - 1))
  end
  return unpack(outputs, 1, node:output_count())
end

-- What decides is mostly a shape, which is known by now; only the branch that it takes is there then.
function operators.If(node)
  node:ignore("then_branch", "else_branch")
  if blob.is(node:input(1)) then return chosen_in_run(node) end
  local branch = node:number(1) ~= 0 and "then_branch" or "else_branch"
  return unpack(branch_of(node, branch), 1, node:output_count())
end

-- ---- joined and split ---------------------------------------------------------------------------------------------

function operators.Concat(node)
  local values = node:all_inputs()
  local axis = node:axis_of(node:int("axis", 1), #values[1].shape)
  return #values == 1 and values[1] or node:apply("concat", values, { axis = axis })
end

-- The sizes of the parts: a list of the node, or as many as it has outputs, of which the last may be smaller.
local function part_sizes(node, size)
  local count = node:output_count()
  if node:int("num_outputs", count) ~= count then
    node:fail(("num_outputs is %d, but it has %d outputs"):format(node:int("num_outputs"), count), "invalid_argument")
  end
  local sizes = node:list("split", 2)
  if sizes then return sizes end
  local part = math.ceil(size / count)
  sizes = {}
  for i = 1, count do sizes[i] = math.min(part, size - part * (i - 1)) end
  return sizes
end

function operators.Split(node)
  local x = node:input(1)
  local axis = node:axis_of(node:int("axis", 0), #x.shape)
  local sizes, first, parts = part_sizes(node, x.shape[axis]), 0, {}
  if #sizes < node:output_count() then node:fail("it has more outputs than parts", "shape_mismatch") end
  for i, size in ipairs(sizes) do
    if size < 0 or first + size > x.shape[axis] then break end
    parts[i], first = node:cut(x, axis, first, size, tostring(i - 1)), first + size
  end
  if #parts < #sizes or first ~= x.shape[axis] then
    node:fail(("parts { %s } do not add up to the %d of axis %d"):format(table.concat(sizes, ", "), x.shape[axis],
      axis), "shape_mismatch")
  end
  return unpack(parts)
end

-- ---- other shapes -------------------------------------------------------------------------------------------------

-- 0 is the size that is there, unless allowzero says that it is 0; one -1 is what is left.
function operators.Reshape(node)
  local x = node:input(1)
  local shape = node:need(node:numbers(2), "shape")
  local keeps_zero = node:int("allowzero", 0) ~= 0
  local sizes = {}
  for i, size in ipairs(shape) do
    local copied = size == 0 and not keeps_zero
    if copied and i > #x.shape then node:fail("size " .. i .. " copies an axis that the input has not") end
    sizes[i] = copied and x.shape[i - 1] or size
  end
  for i, size in ipairs(sizes) do  -- where another axis is empty, the op would not know what is left
    if size == -1 then
      sizes[i] = 1
      local others = count_of(sizes)
      sizes[i] = others > 0 and x.shape:count() / others or 0
      if sizes[i] % 1 ~= 0 then sizes[i] = -1 end
    end
  end
  return node:reshape(x, sizes)
end

function operators.Flatten(node)
  local x = node:input(1)
  local axis = node:int("axis", 1)
  return node:flattened(x, axis == #x.shape and axis or node:axis_of(axis, #x.shape))
end

function operators.Transpose(node)
  local x = node:input(1)
  local perm = node:ints("perm")
  if not perm then
    perm = {}
    for i = 1, #x.shape do perm[i] = #x.shape - i end
  end
  if #perm ~= #x.shape then node:fail(("perm names %d of %d axes"):format(#perm, #x.shape), "shape_mismatch") end
  return node:transpose(x, perm)
end

local function set_of(list)
  local set = {}
  for _, entry in ipairs(list) do set[entry] = true end
  return set
end

function operators.Squeeze(node)
  local x = node:input(1)
  local axes, sizes = node:list("axes", 2), {}
  local dropped = axes and set_of(node:axes_of(axes, #x.shape))
  for i, size in ipairs(x.shape:table()) do
    local is_dropped = size == 1
    if dropped then is_dropped = dropped[i - 1] end
    if is_dropped and size ~= 1 then node:fail(("axis %d has size %d"):format(i - 1, size), "shape_mismatch") end
    if not is_dropped then sizes[#sizes + 1] = size end
  end
  return node:reshape(x, sizes)
end

function operators.Unsqueeze(node)
  local x = node:input(1)
  local axes = node:need(node:list("axes", 2), "axes")
  local old, rank, sizes = x.shape:table(), #x.shape + #axes, {}
  local is_new = set_of(node:axes_of(axes, rank))
  for axis = 0, rank - 1 do sizes[axis + 1] = is_new[axis] and 1 or table.remove(old, 1) end
  return node:reshape(x, sizes)
end

function operators.Expand(node)
  local x = node:input(1)
  return node:spread(x, node:broadcast(x.shape:table(), node:need(node:numbers(2), "shape")))
end

function operators.Tile(node)
  local x, repeats = node:input(1), node:need(node:numbers(2), "repeats")
  if #repeats ~= #x.shape then
    node:fail(("%d numbers of repetitions for %d axes"):format(#repeats, #x.shape), "shape_mismatch")
  end
  return node:apply("tile", { x }, { reps = repeats })
end

-- Blocks of channels become blocks of places, or the other way round.
local function rearranged(node, x, apart, perm, shape)
  return node:reshape(node:transpose(node:reshape(x, apart, "apart"), perm, "turned"), shape)
end

local function image_sizes(node, x)
  if #x.shape ~= 4 then node:fail("its input has " .. #x.shape .. " axes, wanted 4", "shape_mismatch") end
  return unpack(x.shape:table())
end

function operators.DepthToSpace(node)
  local x, block = node:input(1), node:need(node:int("blocksize"), "blocksize")
  local batch, channels, height, width = image_sizes(node, x)
  local depth = channels / (block * block)
  local shape = { batch, depth, height * block, width * block }
  if node:text("mode", "DCR") == "CRD" then
    return rearranged(node, x, { batch, depth, block, block, height, width }, { 0, 1, 4, 2, 5, 3 }, shape)
  end
  return rearranged(node, x, { batch, block, block, depth, height, width }, { 0, 3, 4, 1, 5, 2 }, shape)
end

function operators.SpaceToDepth(node)
  local x, block = node:input(1), node:need(node:int("blocksize"), "blocksize")
  local batch, channels, height, width = image_sizes(node, x)
  local perm = node:text("mode", "DCR") == "CRD" and { 0, 1, 3, 5, 2, 4 } or { 0, 3, 5, 1, 2, 4 }
  return rearranged(node, x, { batch, channels, height / block, block, width / block, block }, perm,
    { batch, channels * block * block, height / block, width / block })
end

-- ---- parts --------------------------------------------------------------------------------------------------------

-- Bounds are cut to the axis, so what is meant by "to the end" may be any large number.
function operators.Slice(node)
  local x = node:input(1)
  local rank = #x.shape
  local first, last = node:need(node:list("starts", 2), "starts"), node:need(node:list("ends", 3), "ends")
  local axes, steps = node:list("axes", 4), node:numbers(5)
  local start, stop, step, is_whole = {}, {}, {}, true
  if #last ~= #first or axes and #axes ~= #first or steps and #steps ~= #first then
    node:fail("starts, ends, axes and steps differ in length", "shape_mismatch")
  end
  for i = 1, rank do start[i], stop[i], step[i] = 0, x.shape[i - 1], 1 end
  for i, from in ipairs(first) do
    local axis = node:axis_of(axes and axes[i] or i - 1, rank)
    local by, to, size = steps and steps[i] or 1, last[i], x.shape[axis]
    if by == 0 then node:fail("a step of 0", "invalid_argument") end
    if from < 0 then from = from + size end
    if to < 0 then to = to + size end
    local least, most = by > 0 and 0 or -1, by > 0 and size or size - 1
    from, to = math.max(0, math.min(from, most)), math.max(least, math.min(to, most))
    is_whole = is_whole and by == 1 and from == 0 and to == size
    -- An end of -1 is before the first for us, and behind the last for the op.
    start[axis + 1], stop[axis + 1], step[axis + 1] = from, to < 0 and -size - 1 or to, by
  end
  if is_whole then return x end
  return node:apply("strided_slice", { x }, { start = start, stop = stop, step = step })
end

-- Which places of an axis of size `size` stand there where it has borders of `before` and `after`.
local function border_places(node, mode, size, before, after)
  node:check_list(before + size + after)
  if mode == "reflect" and size == 1 then node:fail("mode = reflect on an axis of size 1") end
  return borders[mode](np.arange(-before, size + after), size)
end

local function pads_of(node, rank)
  local pads = node:list("pads", 2)
  local axes = node.opset >= 18 and node:numbers(4)
  if not axes then
    axes = {}
    for i = 1, rank do axes[i] = i - 1 end
  end
  if not pads or #pads ~= 2 * #axes then node:fail("it has not two pads for each axis", "invalid_argument") end
  local before, after = {}, {}
  for i = 1, rank do before[i], after[i] = 0, 0 end
  for i, axis in ipairs(node:axes_of(axes, rank)) do
    before[axis + 1], after[axis + 1] = pads[i], pads[#axes + i]
  end
  return before, after
end

-- What negative pads leave.
local function cropped(node, x, before, after)
  local begin, size, is_any = {}, x.shape:table(), false
  for i = 1, #size do
    begin[i] = math.max(0, -before[i])
    size[i] = size[i] - begin[i] - math.max(0, -after[i])
    is_any = is_any or size[i] ~= x.shape[i - 1]
  end
  return is_any and node:apply("slice", { x }, { begin = begin, size = size }, "crop") or x
end

function operators.Pad(node)
  local x = node:input(1)
  local rank, mode = #x.shape, node:text("mode", "constant")
  local before, after = pads_of(node, rank)
  x = cropped(node, x, before, after)
  local paddings, is_any = {}, false
  for i = 1, rank do
    paddings[2 * i - 1], paddings[2 * i] = math.max(0, before[i]), math.max(0, after[i])
    is_any = is_any or paddings[2 * i - 1] + paddings[2 * i] > 0
  end
  if not is_any then
    node:ignore("value")
    return x
  end
  if mode == "constant" then
    local value = node.opset < 11 and node:float("value", 0) or node.opset >= 11 and node:number(3) or 0
    return node:apply("pad", { x }, { paddings = paddings, constant_value = value })
  end
  node:ignore("value")
  if mode ~= "reflect" and mode ~= "edge" and mode ~= "wrap" then
    node:fail("mode = " .. mode .. " is not supported")
  end
  for i = 1, rank do
    local first, last = paddings[2 * i - 1], paddings[2 * i]
    if first + last > 0 then
      local places = border_places(node, mode, x.shape[i - 1], first, last)
      x = node:apply("gather", { x, places }, { axis = i - 1 }, mode .. "_" .. i - 1)
    end
  end
  return x
end

-- Cut or filled up with zeros about its middle; what is left over of an odd number is at the end.
function operators.CenterCropPad(node)
  local x, sizes, axes = node:input(1), node:need(node:numbers(2), "shape"), node:ints("axes")
  local rank = #x.shape
  if #sizes ~= (axes and #axes or rank) then
    node:fail(("%d sizes for %d axes"):format(#sizes, axes and #axes or rank), "shape_mismatch")
  end
  local before, after, paddings = {}, {}, {}
  for i = 1, rank do before[i], after[i] = 0, 0 end
  for i, size in ipairs(sizes) do
    local axis = node:axis_of(axes and axes[i] or i - 1, rank)
    local more = size - x.shape[axis]
    if size < 0 then node:fail(("axis %d would have size %g"):format(axis, size), "shape_mismatch") end
    local first = more < 0 and math.ceil(more / 2) or math.floor(more / 2)
    before[axis + 1], after[axis + 1] = first, more - first
  end
  x = cropped(node, x, before, after)
  for i = 1, rank do paddings[2 * i - 1], paddings[2 * i] = math.max(0, before[i]), math.max(0, after[i]) end
  return node:apply("pad", { x }, { paddings = paddings })
end

return operators
