--- ONNX operators of sequences, as exporters write them for the lists of a script: a table from an operator's name to
--- the function that applies it to a node.
-- What is in a sequence is known while a job is traced, so that it leaves nothing in the job.

local core = require "moonflow.core"

local operators = {}

function operators.SequenceEmpty(node)
  node:ignore("dtype")
  return node.sequence_of {}
end

function operators.SequenceConstruct(node) return node.sequence_of(node:all_inputs()) end

-- The place in a list that the i-th input says, from 1 on; the default is what is left out.
local function place_in(node, i, count, default)
  local place = node:number(i) or default
  local from_start = place < 0 and place + count or place
  if from_start < 0 or from_start > math.max(count - 1, default) then
    node:fail(("place %d of a sequence of %d"):format(place, count), "out_of_range")
  end
  return from_start + 1
end

function operators.SequenceInsert(node)
  local list = node:sequence(1)
  table.insert(list, place_in(node, 3, #list, #list), node:input(2))
  return node.sequence_of(list)
end

function operators.SequenceErase(node)
  local list = node:sequence(1)
  table.remove(list, place_in(node, 2, #list, #list - 1))
  return node.sequence_of(list)
end

function operators.SequenceAt(node)
  local list = node:sequence(1)
  return list[place_in(node, 2, #list, -1)]
end

function operators.SequenceLength(node) return core.array(#node:sequence(1), "int64", {}) end

-- Parts of the sizes that a list says, of one size but for the last, or of one place each.
function operators.SplitToSequence(node)
  local x, sizes = node:input(1), node:numbers(2)
  local axis = node:axis_of(node:int("axis", 0), #x.shape)
  local keeps, extent = node:int("keepdims", 1) ~= 0 or sizes ~= nil, x.shape[axis]
  if not sizes or #node:constant(2).shape == 0 then
    local size = sizes and sizes[1] or 1
    if size < 1 then node:fail(("parts of %d"):format(size), "out_of_range") end
    sizes = {}
    for first = 0, extent - 1, size do sizes[#sizes + 1] = math.min(size, extent - first) end
  end
  local parts, first = {}, 0
  for i, size in ipairs(sizes) do
    if size < 0 or first + size > extent then
      node:fail(("parts { %s } of %d places"):format(table.concat(sizes, ", "), extent), "shape_mismatch")
    end
    local part = node:cut(x, axis, first, size, "part_" .. i - 1)
    if not keeps then part = node:apply("squeeze", { part }, { axis = { axis } }, "place_" .. i - 1) end
    parts[i], first = part, first + size
  end
  return node.sequence_of(parts)
end

function operators.ConcatFromSequence(node)
  local list, axis = node:sequence(1), node:need(node:int("axis"), "axis")
  if #list == 0 then node:fail("there is nothing in its sequence", "shape_mismatch") end
  local rank, is_new = #list[1].shape, node:int("new_axis", 0) ~= 0
  if is_new then return (node:apply("stack", list, { axis = node:axis_of(axis, rank + 1) })) end
  return #list == 1 and list[1] or node:apply("concat", list, { axis = node:axis_of(axis, rank) })
end

return operators
