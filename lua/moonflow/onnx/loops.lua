--- ONNX operators that run a graph over and over, Loop and Scan: a table from an operator's name to the function that
--- applies it to a node.
-- A plan is a list of steps, so each round is traced anew: how many there are must be known by then.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"

local operators = {}

local kMostRounds = 1024  -- as many, and as large a job

local function check_rounds(node, count)
  if count > kMostRounds then
    node:fail(("%g rounds are not supported, only up to %d: a job has the ops of each of them"):format(count,
      kMostRounds))
  end
end

-- The `count` first values of a list and, in a list of its own, the others.
local function parted(node, list, count)
  if count < 0 or count > #list then
    node:fail(("%d of %d values cannot be carried on"):format(count, #list), "shape_mismatch")
  end
  return { unpack(list, 1, count) }, { unpack(list, count + 1) }
end

-- Adds the values that a round has given to the lists of all rounds.
local function collect(lists, values, is_reverse)
  for i, value in ipairs(values) do
    lists[i] = lists[i] or {}
    table.insert(lists[i], is_reverse and is_reverse(i) and 1 or #lists[i] + 1, value)
  end
end

-- Does a loop go on? A run cannot say.
local function goes_on(node, condition)
  if arguments.kind(condition) ~= "ndarray" then
    node:fail("whether it goes on is computed in each run, and must be known when the job is traced; export the model "
      .. "with a loop of a fixed number of rounds")
  end
  return condition:astype("float64"):item() ~= 0
end

-- The body takes the number of the round, the condition and what is carried on; it gives a condition, what is carried
-- on, and what is kept of each round.
function operators.Loop(node)
  node:ignore("body")
  local most, condition = node:number(1) or math.huge, node:constant(2)
  local carried, kept, round = {}, {}, 0
  for i = 3, node:input_count() do carried[i - 2] = node:need(node:any(i), "input " .. i) end
  while round < most and (condition == nil or goes_on(node, condition)) do
    check_rounds(node, round + 1)
    local outputs = node:outputs_of("body", { core.array(round, "int64", {}), condition or core.array(1, "int8", {}),
                                              unpack(carried) })
    local values
    condition = table.remove(outputs, 1)
    carried, values = parted(node, outputs, #carried)
    collect(kept, values)
    round = round + 1
  end
  for i = #carried + 1, node:output_count() do
    local parts = kept[i - #carried]
    if node:is_wanted(i) and not parts then node:fail("it has no round that would give output " .. i) end
    carried[i] = parts and node:apply("stack", parts, { axis = 0 }, "output_" .. i) or nil
  end
  return unpack(carried, 1, node:output_count())
end

-- A number of the node for each of `count` values: the axis that is gone along, or whether it is backwards.
local function each_of(node, name, count)
  local list = node:ints(name)
  if list and #list ~= count then
    node:fail(("%s has %d numbers, wanted %d"):format(name, #list, count), "invalid_argument")
  end
  return function(i) return list and list[i] or 0 end
end

-- The body takes what is carried on and a place of each value that is gone along; it gives what is carried on, and what
-- is kept of each place.
function operators.Scan(node)
  node:ignore("body")
  if node.opset < 9 then node:fail("it is supported from opset 9 on") end
  local count = node:need(node:int("num_scan_inputs"), "num_scan_inputs")
  local carried, values = parted(node, node:all_inputs(), node:input_count() - count)
  local axis_in, backwards_in = each_of(node, "scan_input_axes", count), each_of(node, "scan_input_directions", count)
  local results = node:output_count() - #carried
  local axis_out = each_of(node, "scan_output_axes", results)
  local backwards_out = each_of(node, "scan_output_directions", results)
  local axes, rounds, kept = {}, nil, {}
  for i, value in ipairs(values) do
    axes[i] = node:axis_of(axis_in(i), #value.shape)
    local size = value.shape[axes[i]]
    if rounds and size ~= rounds then
      node:fail(("it goes along %d and along %d places"):format(rounds, size), "shape_mismatch")
    end
    rounds = size
  end
  if not rounds or rounds < 1 then node:fail("it has no place to go along", "shape_mismatch") end
  check_rounds(node, rounds)

  for round = 0, rounds - 1 do
    local taken = { unpack(carried) }
    for i, value in ipairs(values) do
      local at, sizes = backwards_in(i) ~= 0 and rounds - 1 - round or round, value.shape:table()
      table.remove(sizes, axes[i] + 1)
      taken[#taken + 1] = node:reshape(node:cut(value, axes[i], at, 1, "place"), sizes, "taken")
    end
    local given
    carried, given = parted(node, node:outputs_of("body", taken), #carried)
    collect(kept, given, function(i) return backwards_out(i) ~= 0 end)
  end
  for i, parts in ipairs(kept) do
    local rank = #parts[1].shape + 1
    carried[#carried + 1] = node:apply("stack", parts, { axis = node:axis_of(axis_out(i), rank) }, "output_" .. i)
  end
  return unpack(carried, 1, node:output_count())
end

return operators
