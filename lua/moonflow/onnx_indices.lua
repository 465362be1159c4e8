--- ONNX operators that pick and put by indices, which count from the end too where they are below 0: a table from an
--- operator's name to the function that applies it to a node.

local operators = {}

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

-- Coordinates that count from the end too.
local function coordinates(node, indices, x)
  local depth = indices.shape[#indices.shape - 1]
  local sizes = {}
  for i = 1, depth do sizes[i] = x.shape[i - 1] end
  local ends = node:cast(node.array(sizes, "int64"), indices.dtype)
  local below = node:apply("less", { indices, node:filled(0, indices.dtype) }, nil, "below")
  return node:apply("where", { below, node:apply("add", { indices, ends }, nil, "moved"), indices }, nil, "indices")
end

function operators.GatherND(node)
  node:expect("batch_dims", "i", 0)
  local x, indices = node:input(1), node:input(2)
  return node:apply("gather_nd", { x, coordinates(node, indices, x) })
end

local function scattered(node, x, indices, updates)
  local reduction = node:text("reduction", "none")
  if reduction ~= "add" then node:expect("reduction", "s", "none") end
  return node:apply(reduction == "add" and "tensor_scatter_nd_add" or "tensor_scatter_nd_update",
    { x, coordinates(node, indices, x), updates })
end

function operators.ScatterND(node) return scattered(node, node:input(1), node:input(2), node:input(3)) end

-- An update goes to the place that it has among the updates, but for one axis, along which its index says where.
function operators.ScatterElements(node)
  local x, indices, updates = node:input(1), node:input(2), node:input(3)
  local rank, sizes = #x.shape, indices.shape:table()
  local axis = node:axis_of(node:int("axis", 0), rank)
  local column = indices.shape:table()
  column[rank + 1] = 1
  local parts = {}
  for i = 0, rank - 1 do
    local place = indices
    if i ~= axis then
      local line = {}
      for j = 1, rank do line[j] = j - 1 == i and sizes[j] or 1 end
      local range = node:apply("range", {}, { start = 0, stop = sizes[i + 1], dtype = indices.dtype }, "range_" .. i)
      place = node:spread(node:reshape(range, line, "line_" .. i), sizes, "places_" .. i)
    end
    parts[i + 1] = node:reshape(place, column, "column_" .. i)
  end
  local places = rank == 1 and parts[1] or node:apply("concat", parts, { axis = rank }, "places")
  return scattered(node, x, places, updates)
end

-- values is { off, on }; an index outside of the depth is an error of the run, where ONNX lets it pass.
function operators.OneHot(node)
  local indices, depth, values = node:input(1), node:need(node:number(2), "depth"), node:numbers(3)
  if not values or #values ~= 2 then node:fail("its values must be two", "shape_mismatch") end
  local axis = node:axis_of(node:int("axis", -1), #indices.shape + 1)
  indices = node:from_the_start(node:cast(indices, "int64", "indices"), depth)
  return node:apply("one_hot", { indices },
    { depth = depth, off_value = values[1], on_value = values[2], axis = axis, dtype = node:input(3).dtype })
end

return operators
