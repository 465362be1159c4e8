--- ONNX's recurrent layers, RNN, GRU and LSTM: a table from an operator's name to the function that applies it to a
--- node.
-- They are traced step by step, as flow's own layers are. The inputs of all steps are multiplied at once.

local arguments = require "moonflow.arguments"

local operators = {}

-- Inputs by their place. The states at the beginning stand side by side: the hidden one, and an LSTM's cell.
local kX, kWeight, kRecurrence, kBias, kLengths, kStates, kPeepholes = 1, 2, 3, 4, 5, 6, 8

-- The part of a value for one direction, without its axis of directions, which is the first.
local function of_direction(node, i, index, word, given)
  local value = given or node:optional(i)
  if not value then return nil end
  local sizes = value.shape:table()
  table.remove(sizes, 1)
  return node:reshape(node:cut(value, 0, index, 1, word .. "_cut"), sizes, word)
end

-- A product of rows with a matrix (units, in), and a bias where there is one.
local function layer(node, rows, weight, bias, word)
  local product = node:apply("matmul", { rows, weight }, { transpose_b = true }, word .. "_product")
  return bias and node:apply("bias_add", { product, bias }, nil, word) or product
end

-- Refuses activations other than the operator has by itself.
local function check_activations(node, usual)
  node:ignore("activation_alpha", "activation_beta")
  for i, name in ipairs(node:attribute("activations", "strings") or {}) do
    if name ~= usual[(i - 1) % #usual + 1] then
      node:fail("activation " .. name .. " is not supported, only " .. table.concat(usual, ", "))
    end
  end
end

-- How many steps each sequence of the batch has, as a column; nil where all have all of them.
local function lengths_of(node, steps, batch)
  local lengths = node:optional(kLengths)
  if not lengths then return nil end
  if #lengths.shape ~= 1 or lengths.shape[0] ~= batch then
    node:fail(("its lengths are %s for %d sequences"):format(tostring(lengths.shape), batch), "shape_mismatch")
  end
  local is_known, are_all = arguments.kind(lengths) == "ndarray", true
  for _, length in ipairs(is_known and node.list_of(lengths) or {}) do
    if length < 0 or length > steps then
      node:fail(("a sequence of %d steps of %d"):format(length, steps), "out_of_range")
    end
    are_all = are_all and length == steps
  end
  if is_known and are_all then return nil end
  return node:reshape(node:cast(lengths, "int64", "lengths"), { batch, 1 }, "lengths_column")
end

-- One gate of rows that have all of them side by side.
local function gate(node, rows, place, size, word)
  return node:cut(rows, 1, place * size, size, word)
end

-- One direction of a layer with `count` gates. `step(inputs, weights, states, size)` gives the states after a step, of
-- which the first goes out. Gives the outputs in the order of the steps, and the states at the end. Behind the end of a
-- sequence its states stay, so that backwards it begins there, and 0 goes out.
local function run_direction(node, x, count, index, is_reverse, states, step, lengths)
  local steps, batch, width = unpack(x.shape:table())
  local weights = { recurrence = of_direction(node, kRecurrence, index, "recurrence"),
                    peepholes = of_direction(node, kPeepholes, index, "peepholes") }
  local size, biases, input_bias = weights.recurrence.shape[1], of_direction(node, kBias, index, "biases"), nil
  if biases then
    input_bias = node:cut(biases, 0, 0, count * size, "input_bias")
    weights.bias = node:cut(biases, 0, count * size, count * size, "recurrence_bias")
  end
  local rows = node:reshape(x, { steps * batch, width }, "rows")
  rows = layer(node, rows, of_direction(node, kWeight, index, "weight"), input_bias, "inputs")
  local outputs = {}
  for i = 0, steps - 1 do
    local at = is_reverse and steps - 1 - i or i
    local before = states
    states = step(node:cut(rows, 0, at * batch, batch, "step"), weights, before, size)
    local output = states[1]
    if lengths then
      local is_there = node:apply("less", { node:filled(at, "int64"), lengths }, nil, "is_there")
      output = node:apply("where", { is_there, output, node:filled(0, x.dtype) }, nil, "shown")
      for k, state in ipairs(states) do
        states[k] = node:apply("where", { is_there, state, before[k] }, nil, "kept_" .. k)
      end
    end
    outputs[at + 1] = node:reshape(output, { 1, 1, batch, size }, "output")
  end
  return #outputs == 1 and outputs[1] or node:apply("concat", outputs, { axis = 0 }, "outputs"), states
end

-- The whole layer: outputs (steps, directions, batch, size), and the states at the end, (directions, batch, size) each.
-- With layout = 1 the batch is the first axis of all of them, and of the input and the first states.
local function recurrent(node, count, state_count, step)
  local batch_first = node:int("layout", 0) ~= 0
  node:ignore("hidden_size")
  if node:float("clip") then node:fail("clip is not supported") end
  local x = node:input(kX)
  if #x.shape ~= 3 or #node:input(kWeight).shape ~= 3 or #node:input(kRecurrence).shape ~= 3 then
    node:fail("it wants (steps, batch, in), and weights of three axes", "shape_mismatch")
  end
  local function turned(value, word) return batch_first and value and node:swapped(value, 0, 1, word) or value end
  x = turned(x, "steps_first")
  local steps, batch, size = x.shape[0], x.shape[1], node:input(kRecurrence).shape[2]
  if steps < 1 then node:fail("it has no steps", "shape_mismatch") end
  local lengths = lengths_of(node, steps, batch)
  local direction = node:text("direction", "forward")
  local directions = ({ forward = { false }, reverse = { true }, bidirectional = { false, true } })[direction]
  if not directions then node:fail("direction = " .. direction .. " is not supported") end
  local all, ends = {}, {}
  for d, is_reverse in ipairs(directions) do
    local states = {}
    for i = 1, state_count do
      local given = turned(node:optional(kStates + i - 1), "first_turned_" .. i)
      states[i] = given and of_direction(node, nil, d - 1, "first_" .. i, given)
        or node:filled(0, x.dtype, { batch, size })
    end
    local outputs
    outputs, states = run_direction(node, x, count, d - 1, is_reverse, states, step, lengths)
    all[d] = outputs
    for i = 1, state_count do
      ends[i] = ends[i] or {}
      ends[i][d] = node:reshape(states[i], { 1, batch, size }, "end_" .. i)
    end
  end
  local function joined(values, axis, word)
    return #values == 1 and values[1] or node:apply("concat", values, { axis = axis }, word)
  end
  for i = 1, state_count do ends[i] = turned(joined(ends[i], 0, "ends_" .. i), "ends_turned_" .. i) end
  local y = joined(all, 1, batch_first and "steps" or nil)
  return batch_first and node:transpose(y, { 2, 0, 1, 3 }) or y, unpack(ends)
end

local function sigmoid(node, x, word) return node:apply("sigmoid", { x }, nil, word) end
local function tanh(node, x, word) return node:apply("tanh", { x }, nil, word) end

function operators.RNN(node)
  local names = node:attribute("activations", "strings")
  local name = names and names[1] == "Relu" and "Relu" or "Tanh"
  check_activations(node, { name })
  return recurrent(node, 1, 1, function(inputs, weights, states)
    local back = layer(node, states[1], weights.recurrence, weights.bias, "back")
    return { node:apply(name:lower(), { node:add(inputs, back, "sum") }, nil, "state") }
  end)
end

-- The gates are update, reset and candidate. What the reset takes away is taken from the state, or from its product.
function operators.GRU(node)
  check_activations(node, { "Sigmoid", "Tanh" })
  local resets_product = node:int("linear_before_reset", 0) ~= 0
  return recurrent(node, 3, 1, function(inputs, weights, states, size)
    local state = states[1]
    if not weights.both then  -- of the gates, and of the candidate, once for all steps
      local function part(value, first, count)
        return value and node:cut(value, 0, first * size, count * size, "part")
      end
      weights.both = { weight = part(weights.recurrence, 0, 2), bias = part(weights.bias, 0, 2) }
      weights.last = { weight = part(weights.recurrence, 2, 1), bias = part(weights.bias, 2, 1) }
    end
    local back = layer(node, state, weights.both.weight, weights.both.bias, "back")
    local gates = sigmoid(node, node:add(node:cut(inputs, 1, 0, 2 * size, "gates_in"), back, "gates_sum"), "gates")
    local update, reset = gate(node, gates, 0, size, "update"), gate(node, gates, 1, size, "reset")
    local kept = resets_product and state or node:multiply(reset, state, "kept")
    local memory = layer(node, kept, weights.last.weight, weights.last.bias, "memory")
    if resets_product then memory = node:multiply(reset, memory, "reset_memory") end
    local candidate = tanh(node, node:add(gate(node, inputs, 2, size, "candidate_in"), memory, "candidate_sum"),
      "candidate")
    -- (1 - update) * candidate + update * state
    local difference = node:apply("subtract", { state, candidate }, nil, "difference")
    return { node:add(candidate, node:multiply(update, difference, "change"), "state") }
  end)
end

-- The gates are input, output, forget and cell. With peepholes the cell opens them too: as it was, but for the output.
function operators.LSTM(node)
  check_activations(node, { "Sigmoid", "Tanh", "Tanh" })
  node:expect("input_forget", "i", 0)
  return recurrent(node, 4, 2, function(inputs, weights, states, size)
    local back = layer(node, states[1], weights.recurrence, weights.bias, "back")
    local gates = node:add(inputs, back, "gates")
    local function open(place, word, cell)
      local sums = gate(node, gates, place, size, word .. "_gate")
      if weights.peepholes then
        local looked = node:cut(weights.peepholes, 0, place * size, size, word .. "_peephole")
        sums = node:add(sums, node:multiply(cell, looked, word .. "_looked"), word .. "_sums")
      end
      return sigmoid(node, sums, word)
    end
    local before = states[2]
    local new = node:multiply(open(0, "input", before), tanh(node, gate(node, gates, 3, size, "cell_gate"), "new"),
      "written")
    local cell = node:add(node:multiply(open(2, "forget", before), before, "kept"), new, "cell")
    return { node:multiply(open(1, "output", cell), tanh(node, cell, "shown"), "state"), cell }
  end)
end

return operators
