--- ONNX's recurrent layers, RNN, GRU and LSTM: a table from an operator's name to the function that applies it to a
--- node.
-- They are traced step by step, as flow's own layers are. The inputs of all steps are multiplied at once.

local operators = {}

-- Inputs by their place. The states at the beginning stand side by side: the hidden one, and an LSTM's cell.
local kX, kWeight, kRecurrence, kBias, kLengths, kStates, kPeepholes = 1, 2, 3, 4, 5, 6, 8

-- The part of a value for one direction, without its axis of directions.
local function of_direction(node, i, index, word)
  local value = node:optional(i)
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

local function check_lengths(node, steps)
  for _, length in ipairs(node:numbers(kLengths) or {}) do
    if length ~= steps then node:fail("sequences of several lengths are not supported") end
  end
end

-- One gate of rows that have all of them side by side.
local function gate(node, rows, place, size, word)
  return node:cut(rows, 1, place * size, size, word)
end

-- One direction of a layer with `count` gates. `step(inputs, weights, states, size)` gives the states after a step, of
-- which the first goes out. Gives the outputs in the order of the steps, and the states at the end.
local function run_direction(node, count, index, is_reverse, states, step)
  local x = node:input(kX)
  local steps, batch, width = unpack(x.shape:table())
  local weights = { recurrence = of_direction(node, kRecurrence, index, "recurrence") }
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
    states = step(node:cut(rows, 0, at * batch, batch, "step"), weights, states, size)
    outputs[at + 1] = node:reshape(states[1], { 1, 1, batch, size }, "output")
  end
  return #outputs == 1 and outputs[1] or node:apply("concat", outputs, { axis = 0 }, "outputs"), states
end

-- The whole layer: outputs (steps, directions, batch, size), and the states at the end, (directions, batch, size) each.
local function recurrent(node, count, state_count, step)
  node:expect("layout", "i", 0)
  node:ignore("hidden_size")
  if node:float("clip") then node:fail("clip is not supported") end
  local x = node:input(kX)
  if #x.shape ~= 3 or #node:input(kWeight).shape ~= 3 or #node:input(kRecurrence).shape ~= 3 then
    node:fail("it wants (steps, batch, in), and weights of three axes", "shape_mismatch")
  end
  local steps, batch, size = x.shape[0], x.shape[1], node:input(kRecurrence).shape[2]
  if steps < 1 then node:fail("it has no steps", "shape_mismatch") end
  check_lengths(node, steps)
  local direction = node:text("direction", "forward")
  local directions = ({ forward = { false }, reverse = { true }, bidirectional = { false, true } })[direction]
  if not directions then node:fail("direction = " .. direction .. " is not supported") end
  local all, ends = {}, {}
  for d, is_reverse in ipairs(directions) do
    local states = {}
    for i = 1, state_count do
      states[i] = of_direction(node, kStates + i - 1, d - 1, "first_" .. i) or node:filled(0, x.dtype, { batch, size })
    end
    local outputs
    outputs, states = run_direction(node, count, d - 1, is_reverse, states, step)
    all[d] = outputs
    for i = 1, state_count do
      ends[i] = ends[i] or {}
      ends[i][d] = node:reshape(states[i], { 1, batch, size }, "end_" .. i)
    end
  end
  local function joined(values, axis, word)
    return #values == 1 and values[1] or node:apply("concat", values, { axis = axis }, word)
  end
  for i = 1, state_count do ends[i] = joined(ends[i], 0, "ends_" .. i) end
  return joined(all, 1), unpack(ends)
end

local function sum(node, a, b, word) return node:apply("add", { a, b }, nil, word) end
local function product(node, a, b, word) return node:apply("multiply", { a, b }, nil, word) end
local function sigmoid(node, x, word) return node:apply("sigmoid", { x }, nil, word) end
local function tanh(node, x, word) return node:apply("tanh", { x }, nil, word) end

function operators.RNN(node)
  local names = node:attribute("activations", "strings")
  local name = names and names[1] == "Relu" and "Relu" or "Tanh"
  check_activations(node, { name })
  return recurrent(node, 1, 1, function(inputs, weights, states)
    local back = layer(node, states[1], weights.recurrence, weights.bias, "back")
    return { node:apply(name:lower(), { sum(node, inputs, back, "sum") }, nil, "state") }
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
    local gates = sigmoid(node, sum(node, node:cut(inputs, 1, 0, 2 * size, "gates_in"), back, "gates_sum"), "gates")
    local update, reset = gate(node, gates, 0, size, "update"), gate(node, gates, 1, size, "reset")
    local kept = resets_product and state or product(node, reset, state, "kept")
    local memory = layer(node, kept, weights.last.weight, weights.last.bias, "memory")
    if resets_product then memory = product(node, reset, memory, "reset_memory") end
    local candidate = tanh(node, sum(node, gate(node, inputs, 2, size, "candidate_in"), memory, "candidate_sum"),
      "candidate")
    -- (1 - update) * candidate + update * state
    local difference = node:apply("subtract", { state, candidate }, nil, "difference")
    return { sum(node, candidate, product(node, update, difference, "change"), "state") }
  end)
end

-- The gates are input, output, forget and cell.
function operators.LSTM(node)
  check_activations(node, { "Sigmoid", "Tanh", "Tanh" })
  node:expect("input_forget", "i", 0)
  if node:optional(kPeepholes) then node:fail("peepholes are not supported") end
  return recurrent(node, 4, 2, function(inputs, weights, states, size)
    local back = layer(node, states[1], weights.recurrence, weights.bias, "back")
    local gates = sum(node, inputs, back, "gates")
    local function open(place, word) return sigmoid(node, gate(node, gates, place, size, word .. "_gate"), word) end
    local new = product(node, open(0, "input"), tanh(node, gate(node, gates, 3, size, "cell_gate"), "new"), "written")
    local cell = sum(node, product(node, open(2, "forget"), states[2], "kept"), new, "cell")
    return { product(node, open(1, "output"), tanh(node, cell, "shown"), "state"), cell }
  end)
end

return operators
