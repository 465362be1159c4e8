--- ONNX operators that pick and put by indices, which count from the end too where they are below 0: a table from an
--- operator's name to the function that applies it to a node.

local onnx_node = require "moonflow.onnx.node"

local operators = {}

local count_of = onnx_node.count_of

-- ---- pick ---------------------------------------------------------------------------------------------------------

function operators.Gather(node)
  local x, indices = node:input(1), node:input(2)
  local axis = node:axis_of(node:int("axis", 0), #x.shape)
  return node:apply("gather", { x, node:from_the_start(indices, x.shape[axis]) }, { axis = axis })
end

-- As many of x as there are indices on the axes that are not picked from.
function operators.GatherElements(node)
  local x, indices = node:input(1), node:input(2)
  local axis = node:axis_of(node:int("axis", 0), #x.shape)
  local begin, size, is_whole = {}, indices.shape:table(), true
  for i = 1, #x.shape do
    begin[i] = 0
    if i - 1 == axis then size[i] = x.shape[axis] end
    is_whole = is_whole and size[i] == x.shape[i - 1]
  end
  if not is_whole then x = node:apply("slice", { x }, { begin = begin, size = size }, "part") end
  return node:apply("dim_gather", { x, node:from_the_start(indices, x.shape[axis]) }, { dim = axis })
end

-- Coordinates that count from the end too, of the axes of x from `first` on.
local function coordinates(node, indices, x, first)
  local depth = indices.shape[#indices.shape - 1]
  if first + depth > #x.shape then
    node:fail(("%d coordinates from axis %d on of %d axes"):format(depth, first, #x.shape), "shape_mismatch")
  end
  local sizes = {}
  for i = 1, depth do sizes[i] = x.shape[first + i - 1] end
  local ends = node:cast(node.array(sizes, "int64"), indices.dtype)
  local below = node:apply("less", { indices, node:filled(0, indices.dtype) }, nil, "below")
  return node:apply("where", { below, node:add(indices, ends, "moved"), indices }, nil, "indices")
end

-- In an array of these sizes each element's own place along one axis, in a column.
local function own_places(node, sizes, axis, dtype)
  local column = { unpack(sizes) }
  column[#sizes + 1] = 1
  local range = node:apply("range", {}, { start = 0, stop = sizes[axis + 1], dtype = dtype }, "range_" .. axis)
  local places = node:spread(node:along(range, #sizes, axis, "line_" .. axis), sizes, "places_" .. axis)
  return node:reshape(places, column, "column_" .. axis)
end

-- The leading axes of a batch are coordinates too, in which each tuple stays where it is.
function operators.GatherND(node)
  local x, indices, batch = node:input(1), node:input(2), node:int("batch_dims", 0)
  local rank = #indices.shape
  if batch < 0 or batch >= rank or batch >= #x.shape then
    node:fail(("batch_dims is %d of %d axes and %d of indices"):format(batch, #x.shape, rank), "out_of_range")
  end
  for i = 0, batch - 1 do
    if x.shape[i] ~= indices.shape[i] then
      node:fail(("axis %d of a batch has size %d, and %d in the indices"):format(i, x.shape[i], indices.shape[i]),
        "shape_mismatch")
    end
  end
  local parts, sizes = {}, indices.shape:table()
  table.remove(sizes)
  for axis = 0, batch - 1 do parts[axis + 1] = own_places(node, sizes, axis, indices.dtype) end
  parts[batch + 1] = coordinates(node, indices, x, batch)
  local all = batch == 0 and parts[1] or node:apply("concat", parts, { axis = rank - 1 }, "coordinates")
  return node:apply("gather_nd", { x, all })
end

-- The places of an axis, or of all in a row, where the condition says so, which is known.
function operators.Compress(node)
  local x, condition = node:input(1), node:need(node:numbers(2), "condition")
  local axis, places = node:int("axis"), {}
  if not axis then x, axis = node:reshape(x, { x.shape:count() }, "row"), 0 end
  axis = node:axis_of(axis, #x.shape)
  if #condition > x.shape[axis] then
    node:fail(("a condition of %d for %d places"):format(#condition, x.shape[axis]), "shape_mismatch")
  end
  for i, number in ipairs(condition) do
    if number ~= 0 then places[#places + 1] = i - 1 end
  end
  return node:pick(x, axis, places)
end

-- The coordinates of what is not 0, a column each, in the order of the rows; of an array that is known.
function operators.NonZero(node)
  local numbers, sizes = node:need(node:numbers(1), "input 1"), node:input(1).shape:table()
  local rows, count, strides = {}, 0, {}
  for i = #sizes, 1, -1 do strides[i] = i == #sizes and 1 or strides[i + 1] * sizes[i + 1] end
  for _, number in ipairs(numbers) do count = count + (number ~= 0 and 1 or 0) end
  for i, stride in ipairs(strides) do
    for at, number in ipairs(numbers) do
      if number ~= 0 then rows[#rows + 1] = math.floor((at - 1) / stride) % sizes[i] end
    end
  end
  return node:reshape(node.array(rows, "int64"), { #sizes, count })
end

-- The first places of the axis of time backwards, as many as each sequence of the batch has.
function operators.ReverseSequence(node)
  local x, lengths = node:input(1), node:input(2)
  local rank, sizes = #x.shape, x.shape:table()
  local time, batch = node:axis_of(node:int("time_axis", 0), rank), node:axis_of(node:int("batch_axis", 1), rank)
  if time == batch or #lengths.shape ~= 1 or lengths.shape[0] ~= sizes[batch + 1] then
    node:fail(("lengths %s for %s, whose time is axis %d and whose batch is axis %d"):format(tostring(lengths.shape),
      tostring(x.shape), time, batch), "shape_mismatch")
  end
  local range = node:apply("range", {}, { start = 0, stop = sizes[time + 1], dtype = "int64" }, "range")
  local at = node:along(range, rank, time, "places")
  lengths = node:along(node:cast(lengths, "int64", "lengths"), rank, batch, "lengths_column")
  local last = node:apply("subtract", { lengths, node:filled(1, "int64") }, nil, "last")
  local back = node:apply("where", { node:apply("less", { at, lengths }, nil, "is_there"),
    node:apply("subtract", { last, at }, nil, "turned"), at }, nil, "back")
  return node:apply("dim_gather", { x, node:spread(back, sizes, "all") }, { dim = time })
end

-- ---- put ----------------------------------------------------------------------------------------------------------

local reductions = { mul = "multiply", max = "maximum", min = "minimum" }

-- Rows of updates, each with the reduction of all before it that go to the same place, in the order of their places,
-- and the rows of coordinates that belong to them. Sorted by place, those of one place are neighbours; each step then
-- takes in what lies as far off as the steps before have reached.
local function reduced_by_place(node, op, x, places, updates)
  local count, depth = unpack(places.shape:table())
  local strides, stride = {}, 1
  for i = depth, 1, -1 do strides[i], stride = stride, stride * x.shape[i - 1] end
  local wide = node:cast(places, "int64", "places_wide")
  local lines = node:multiply(wide, node.array(strides, "int64"), "lines")
  local line = node:apply("reduce_sum", { lines }, { axis = { 1 }, keepdims = false }, "line")
  local order = node:apply("argsort", { line }, { direction = "ASCENDING" }, "order")
  local function ordered(value, word)
    return node:apply("gather", { value, order }, { axis = 0 }, word .. "_ordered")
  end
  line, places, updates = ordered(line, "line"), ordered(places, "places"), ordered(updates, "updates")

  local reach = 1
  while reach < count do
    local rest = count - reach
    local is_same = node:apply("equal", { node:cut(line, 0, reach, rest, "line_here"),
      node:cut(line, 0, 0, rest, "line_before") }, nil, "is_same_" .. reach)
    local here, before = node:cut(updates, 0, reach, rest, "here"), node:cut(updates, 0, 0, rest, "before")
    local both = node:apply("where", { node:reshape(is_same, { rest, 1 }, "is_same"),
      node:apply(op, { before, here }, nil, "both"), here }, nil, "reduced_" .. reach)
    updates = node:apply("concat", { node:cut(updates, 0, 0, reach, "first"), both }, { axis = 0 }, "updates_" .. reach)
    reach = 2 * reach
  end
  return places, updates
end

-- Updates at coordinates. Of several for one place the last stays, or all are reduced with what is there.
local function scattered(node, x, indices, updates)
  local reduction = node:text("reduction", "none")
  local places = coordinates(node, indices, x, 0)
  if reduction == "none" then return node:apply("tensor_scatter_nd_update", { x, places, updates }) end
  if reduction == "add" then return node:apply("tensor_scatter_nd_add", { x, places, updates }) end
  local op = reductions[reduction]
  if not op then node:fail("reduction = " .. reduction .. " is not supported", "invalid_argument") end

  local sizes, wanted = x.shape:table(), indices.shape:table()
  local depth = table.remove(wanted)
  local count, row = count_of(wanted), { unpack(sizes, depth + 1) }
  for _, size in ipairs(row) do wanted[#wanted + 1] = size end
  if table.concat(wanted, ",") ~= table.concat(updates.shape:table(), ",") then
    node:fail(("updates are %s, wanted (%s)"):format(tostring(updates.shape), table.concat(wanted, ", ")),
      "shape_mismatch")
  end
  if count == 0 or count_of(row) == 0 then return x end
  local rows
  places, rows = reduced_by_place(node, op, x, node:reshape(places, { count, depth }, "tuples"),
    node:reshape(updates, { count, count_of(row) }, "rows"))
  table.insert(row, 1, count)
  local there = node:apply("gather_nd", { x, places }, nil, "there")
  local reduced = node:apply(op, { there, node:reshape(rows, row, "reduced_rows") }, nil, "reduced")
  return node:apply("tensor_scatter_nd_update", { x, places, reduced })
end

function operators.ScatterND(node) return scattered(node, node:input(1), node:input(2), node:input(3)) end

-- An update goes to the place that it has among the updates, but for one axis, along which its index says where.
function operators.ScatterElements(node)
  local x, indices, updates = node:input(1), node:input(2), node:input(3)
  local rank, sizes = #x.shape, indices.shape:table()
  local axis = node:axis_of(node:int("axis", 0), rank)
  if #sizes ~= rank then node:fail(("indices of %d axes for %d"):format(#sizes, rank), "shape_mismatch") end
  local column = indices.shape:table()
  column[rank + 1] = 1
  local parts = {}
  for i = 0, rank - 1 do
    parts[i + 1] = i == axis and node:reshape(indices, column, "column_" .. i)
      or own_places(node, sizes, i, indices.dtype)
  end
  local places = rank == 1 and parts[1] or node:apply("concat", parts, { axis = rank }, "places")
  return scattered(node, x, places, updates)
end

operators.Scatter = operators.ScatterElements  -- as it was called before opset 11

-- values is { off, on }. An index outside of the depth has off alone.
function operators.OneHot(node)
  local indices, depth, values = node:input(1), node:need(node:number(2), "depth"), node:input(3)
  if values.shape:count() ~= 2 then node:fail("its values must be two", "shape_mismatch") end
  if depth < 1 or depth % 1 ~= 0 then node:fail(("a depth of %g"):format(depth), "out_of_range") end
  local axis = node:axis_of(node:int("axis", -1), #indices.shape + 1)
  indices = node:from_the_start(node:cast(indices, "int64", "indices"), depth)
  local column = indices.shape:table()
  table.insert(column, axis + 1, 1)
  local classes = node:apply("range", {}, { start = 0, stop = depth, dtype = "int64" }, "classes")
  local line = node:along(classes, #column, axis, "line")
  local is_on = node:apply("equal", { node:reshape(indices, column, "column"), line }, nil, "is_on")
  local function value(at, word) return node:reshape(node:cut(values, 0, at, 1, word .. "_value"), {}, word) end
  return node:apply("where", { is_on, value(1, "on"), value(0, "off") })
end

return operators
