--- ONNX's recurrent layers, RNN, GRU and LSTM: a table from an operator's name to the function that applies it to a
--- node.
-- They are traced step by step, as flow's own layers are. The inputs of all steps are multiplied at once.

local arguments = require "moonflow.arguments"
local onnx_elementwise = require "moonflow.onnx.elementwise"

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

-- The activations there are, and how many of alpha and beta each has.
local parameter_counts = { Sigmoid = 0, Tanh = 0, Relu = 0, Softplus = 0, Softsign = 0, Elu = 1, LeakyRelu = 1,
                           ThresholdedRelu = 1, HardSigmoid = 2, Affine = 2, ScaledTanh = 2 }

-- Those that are no operators; alpha and beta have no defaults.
local formulas = {}

-- alpha * x + beta
function formulas.Affine(node, x, alpha, beta, word)
  return node:add(node:multiply(x, alpha, word .. "_scaled"), beta, word)
end

-- alpha * tanh(beta * x)
function formulas.ScaledTanh(node, x, alpha, beta, word)
  local inner = node:multiply(x, beta, word .. "_inner")
  return node:multiply(node:apply("tanh", { inner }, nil, word .. "_tanh"), alpha, word)
end

-- For each direction its activations, fn(sums, word): those of the node, or the usual ones. Sums of gates are cut to
-- clip before; an LSTM's cell is not, as ONNX Runtime has it.
local function activations(node, usual, directions)
  local names, clip = node:attribute("activations", "strings") or {}, node:float("clip")
  local alphas, betas, all = node:floats("activation_alpha", {}), node:floats("activation_beta", {}), {}
  local function next_of(list)
    local number = table.remove(list, 1)
    return number and { f = number }
  end
  alphas, betas = { unpack(alphas) }, { unpack(betas) }
  for d = 1, directions do
    all[d] = {}
    for k, own in ipairs(usual) do
      local name = names[(d - 1) * #usual + k] or own
      local count = parameter_counts[name]
      if not count then
        node:fail(("activation %s is not supported, only %s"):format(name,
          table.concat(arguments.sorted_keys(parameter_counts), ", ")))
      end
      local parameters = { alpha = count > 0 and next_of(alphas) or nil, beta = count > 1 and next_of(betas) or nil }
      if formulas[name] and not (parameters.alpha and parameters.beta) then
        node:fail(("activation %s wants an activation_alpha and an activation_beta"):format(name), "invalid_argument")
      end
      all[d][k] = function(x, word)
        if clip and k < 3 then
          x = node:apply("clip_by_value", { x }, { min = -clip, max = clip }, word .. "_cut")
        end
        if count == 0 and name ~= "Softsign" then return node:apply(name:lower(), { x }, nil, word) end
        if formulas[name] then return formulas[name](node, x, parameters.alpha.f, parameters.beta.f, word) end
        return onnx_elementwise[name](node:taking({ x }, parameters))
      end
    end
  end
  return all
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

-- One direction of a layer with `count` gates. `step(inputs, weights, states, size, bend)` gives the states after a
-- step, of which the first goes out; `bend` are the activations. Gives the outputs in the order of the steps, and the
-- states at the end. Behind the end of a sequence its states stay, so that backwards it begins there, and 0 goes out.
local function run_direction(node, x, count, index, is_reverse, states, step, bend, lengths)
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
    states = step(node:cut(rows, 0, at * batch, batch, "step"), weights, before, size, bend)
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
local function recurrent(node, count, state_count, usual, step)
  local batch_first = node:int("layout", 0) ~= 0
  node:ignore("hidden_size")
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
  local all, ends, bends = {}, {}, activations(node, usual, #directions)
  for d, is_reverse in ipairs(directions) do
    local states = {}
    for i = 1, state_count do
      local given = turned(node:optional(kStates + i - 1), "first_turned_" .. i)
      states[i] = given and of_direction(node, nil, d - 1, "first_" .. i, given)
        or node:filled(0, x.dtype, { batch, size })
    end
    local outputs
    outputs, states = run_direction(node, x, count, d - 1, is_reverse, states, step, bends[d], lengths)
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

function operators.RNN(node)
  return recurrent(node, 1, 1, { "Tanh" }, function(inputs, weights, states, _, bend)
    local back = layer(node, states[1], weights.recurrence, weights.bias, "back")
    return { bend[1](node:add(inputs, back, "sum"), "state") }
  end)
end

-- The gates are update, reset and candidate. What the reset takes away is taken from the state, or from its product.
function operators.GRU(node)
  local resets_product = node:int("linear_before_reset", 0) ~= 0
  return recurrent(node, 3, 1, { "Sigmoid", "Tanh" }, function(inputs, weights, states, size, bend)
    local state = states[1]
    if not weights.both then  -- of the gates, and of the candidate, once for all steps
      local function part(value, first, count)
        return value and node:cut(value, 0, first * size, count * size, "part")
      end
      weights.both = { weight = part(weights.recurrence, 0, 2), bias = part(weights.bias, 0, 2) }
      weights.last = { weight = part(weights.recurrence, 2, 1), bias = part(weights.bias, 2, 1) }
    end
    local back = layer(node, state, weights.both.weight, weights.both.bias, "back")
    local gates = bend[1](node:add(node:cut(inputs, 1, 0, 2 * size, "gates_in"), back, "gates_sum"), "gates")
    local update, reset = gate(node, gates, 0, size, "update"), gate(node, gates, 1, size, "reset")
    local kept = resets_product and state or node:multiply(reset, state, "kept")
    local memory = layer(node, kept, weights.last.weight, weights.last.bias, "memory")
    if resets_product then memory = node:multiply(reset, memory, "reset_memory") end
    local candidate = bend[2](node:add(gate(node, inputs, 2, size, "candidate_in"), memory, "candidate_sum"),
      "candidate")
    -- (1 - update) * candidate + update * state
    local difference = node:apply("subtract", { state, candidate }, nil, "difference")
    return { node:add(candidate, node:multiply(update, difference, "change"), "state") }
  end)
end

-- The gates are input, output, forget and cell. With peepholes the cell opens them too: as it was, but for the output.
-- With input_forget = 1 what is not written is what is kept.
function operators.LSTM(node)
  local is_coupled = node:int("input_forget", 0) ~= 0
  return recurrent(node, 4, 2, { "Sigmoid", "Tanh", "Tanh" }, function(inputs, weights, states, size, bend)
    local back = layer(node, states[1], weights.recurrence, weights.bias, "back")
    local gates = node:add(inputs, back, "gates")
    local function open(place, word, cell)
      local sums = gate(node, gates, place, size, word .. "_gate")
      if weights.peepholes then
        local looked = node:cut(weights.peepholes, 0, place * size, size, word .. "_peephole")
        sums = node:add(sums, node:multiply(cell, looked, word .. "_looked"), word .. "_sums")
      end
      return bend[1](sums, word)
    end
    local before = states[2]
    local input = open(0, "input", before)
    local forget = is_coupled and node:apply("subtract", { node:filled(1, input.dtype), input }, nil, "forget")
      or open(2, "forget", before)
    local new = node:multiply(input, bend[2](gate(node, gates, 3, size, "cell_gate"), "new"), "written")
    local cell = node:add(node:multiply(forget, before, "kept"), new, "cell")
    return { node:multiply(open(1, "output", cell), bend[3](cell, "shown"), "state"), cell }
  end)
end

return operators
