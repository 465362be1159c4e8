--- Recurrent layers, and their cells: one step of a layer. A layer is its cell laid over the steps, so both find the
-- same variables under one name, in one job or in two. What a layer makes of its inputs is one product for all steps;
-- a step adds what it makes of the state.

local blob = require "moonflow.blob"
local initializer = require "moonflow.initializer"
local parts = require "moonflow.composed.layer"
local ops = require "moonflow.ops"

local define, naming, part = parts.define, parts.naming, parts.part
local xavier = initializer.xavier_uniform_initializer()
local zeros = initializer.zeros_initializer()

-- The end of every parameter list.
local shared_parameters = {
  { "use_bias", "boolean", true }, { "kernel_initializer", "initializer?" },
  { "recurrent_initializer", "initializer?" }, { "bias_initializer", "initializer?" },
  { "kernel_regularizer", "regularizer?" }, { "recurrent_regularizer", "regularizer?" },
  { "bias_regularizer", "regularizer?" },
  { "trainable", "boolean", true }, { "name", "string?" },
}

local function parameters(list)
  for _, parameter in ipairs(shared_parameters) do list[#list + 1] = parameter end
  return list
end

local function linear(x, weight, bias, name)
  local out = ops.apply("matmul", { x, weight }, { transpose_b = true }, name)
  return bias and ops.apply("bias_add", { out, bias }, nil, name .. "_bias") or out
end

-- The parts of a value side by side along its last axis.
local function gates_of(value, count, name)
  local batch, units = value.shape[0], value.shape[1] / count
  local gates = {}
  for i = 1, count do
    gates[i] = ops.apply("slice", { value }, { begin = { 0, (i - 1) * units }, size = { batch, units } },
      name .. "_" .. i)
  end
  return unpack(gates)
end

-- ---- the two kinds ------------------------------------------------------------------------------------------------
-- `gates`: how many blocks of rows the weights have. `states`: what a step hands on, as a layer's result and a cell's
-- inputs name it; the first one is what the layer gives for the step. `step` takes the inputs' part of the gates.

local lstm = { name = "lstm", kind = "Lstm", gates = 4, states = { "hidden", "cell" } }

-- Both biases are only added here, so they are added to all steps at once.
function lstm.inputs(x, w, name)
  local bias = w.bias and ops.apply("add", { w.bias, w.recurrent_bias }, nil, name .. "_biases")
  return linear(x, w.weight, bias, name)
end

function lstm.step(inputs, states, w, named)
  local hidden, cell = states[1], states[2]
  local sum = ops.apply("add", { inputs, linear(hidden, w.recurrent_weight, nil, named "state") }, nil, named "sum")
  local take, keep, new, show = gates_of(sum, 4, named "gate")
  take, keep = ops.apply("sigmoid", { take }, nil, named "take"), ops.apply("sigmoid", { keep }, nil, named "keep")
  new, show = ops.apply("tanh", { new }, nil, named "new"), ops.apply("sigmoid", { show }, nil, named "show")
  cell = ops.apply("add", {
    ops.apply("multiply", { keep, cell }, nil, named "kept"), ops.apply("multiply", { take, new }, nil, named "taken"),
  }, nil, named "cell")
  hidden = ops.apply("multiply", { show, ops.apply("tanh", { cell }, nil, named "shown") }, nil, named "hidden")
  return { hidden, cell }
end

local gru = { name = "gru", kind = "Gru", gates = 3, states = { "state" } }

function gru.inputs(x, w, name)
  return linear(x, w.weight, w.bias, name)
end

function gru.step(inputs, states, w, named)
  local state = states[1]
  local reset, keep, new = gates_of(inputs, 3, named "input_gate")
  local old_reset, old_keep, old = gates_of(linear(state, w.recurrent_weight, w.recurrent_bias, named "state"), 3,
    named "gate")
  reset = ops.apply("sigmoid", { ops.apply("add", { reset, old_reset }, nil, named "reset_sum") }, nil, named "reset")
  keep = ops.apply("sigmoid", { ops.apply("add", { keep, old_keep }, nil, named "keep_sum") }, nil, named "keep")
  old = ops.apply("multiply", { reset, old }, nil, named "old")
  new = ops.apply("tanh", { ops.apply("add", { new, old }, nil, named "new_sum") }, nil, named "new")
  local kept = ops.apply("multiply", { keep, ops.apply("subtract", { state, new }, nil, named "apart") }, nil,
    named "kept")
  return { ops.apply("add", { new, kept }, nil, named "next") }
end

-- ---- layers and cells ---------------------------------------------------------------------------------------------

-- The variables of a layer or a cell.
local function variables(weight, cell, given, features, units)
  local rows, dtype = cell.gates * units, given.inputs.dtype
  local function get(word, shape, init, regularizer)
    return weight(word, shape, init, { dtype = dtype, regularizer = regularizer, trainable = given.trainable })
  end
  local w = {
    weight = get("weight", { rows, features }, given.kernel_initializer or xavier, given.kernel_regularizer),
    recurrent_weight = get("recurrent_weight", { rows, units }, given.recurrent_initializer or xavier,
      given.recurrent_regularizer),
  }
  if given.use_bias then
    w.bias = get("bias", { rows }, given.bias_initializer or zeros, given.bias_regularizer)
    w.recurrent_bias = get("recurrent_bias", { rows }, given.bias_initializer or zeros, given.bias_regularizer)
  end
  return w
end

local function need_inputs(x, rank, wanted, signature)
  if #x.shape ~= rank then
    signature:fail(": inputs must be " .. wanted .. ", '" .. x.name .. "' is " .. tostring(x.shape))
  end
end

local function need_state(value, what, dtype, batch, units, signature)
  local shape = value.shape
  if value.dtype ~= dtype or #shape ~= 2 or shape[0] ~= batch or units and shape[1] ~= units then
    signature:fail((": %s must be %s (%d, %s) as the inputs are, '%s' is %s %s"):format(what, dtype, batch,
      units or "units", value.name, value.dtype, tostring(shape)))
  end
end

-- For each step (batch, 1), int8: 1 where a sequence is so long. And (batch, steps, 1) of them all.
local function masks(lengths, batch, steps, named, signature)
  local counted = lengths.dtype == "int32" or lengths.dtype == "int64"
  if not counted or #lengths.shape ~= 1 or lengths.shape[0] ~= batch then
    signature:fail((": lengths must be int32 or int64 (%d), one for each sequence, '%s' is %s %s"):format(batch,
      lengths.name, lengths.dtype, tostring(lengths.shape)))
  end
  -- Picked from all there can be, so that one which cannot be is an error of the run.
  local possible = ops.apply("range", {}, { start = 0, stop = steps + 1, dtype = lengths.dtype }, named "possible")
  lengths = ops.apply("gather", { possible, lengths }, { axis = 0 }, named "lengths")
  local counts = ops.apply("range", {}, { start = 0, stop = steps, dtype = lengths.dtype }, named "counts")
  local column = ops.apply("expand_dims", { lengths }, { axis = 1 }, named "column")
  local all = ops.apply("less", { counts, column }, nil, named "mask")
  local each = {}
  for i = 1, steps do
    each[i] = ops.apply("slice", { all }, { begin = { 0, i - 1 }, size = { batch, 1 } }, named("mask_" .. i - 1))
  end
  return each, ops.apply("expand_dims", { all }, { axis = 2 }, named "all_masks")
end

-- What a layer begins with.
local function first_states(cell, given, batch, units, named, signature)
  local states, dtype = {}, given.inputs.dtype
  for i, name in ipairs(cell.states) do
    local option = "initial_" .. name
    local state = given[option]
    if state then need_state(state, option, dtype, batch, units, signature) end
    states[i] = state
      or ops.apply("constant", {}, { value = 0, dtype = dtype, shape = { batch, units } }, named(option))
  end
  return states
end

-- The states after each step, from 1 on, and after the last one. `inputs` is (batch, steps, width).
local function go_through(cell, inputs, states, w, is_there, reverse, named)
  local batch, steps, width = inputs.shape[0], inputs.shape[1], inputs.shape[2]
  local outs = {}
  for k = 1, steps do
    local i = reverse and steps - k or k - 1
    local function of_step(word) return named(word .. "_" .. i) end
    local now = ops.apply("slice", { inputs }, { begin = { 0, i, 0 }, size = { batch, 1, width } }, of_step "inputs")
    now = ops.apply("reshape", { now }, { shape = { batch, width } }, of_step "input")
    local new = cell.step(now, states, w, of_step)
    if is_there then
      for s, state in ipairs(new) do
        new[s] = ops.apply("where", { is_there[i + 1], state, states[s] }, nil, of_step("next_" .. cell.states[s]))
      end
    end
    states, outs[i + 1] = new, new[1]
  end
  return outs, states
end

local function variables_of(t, where, names, cell, given, features, units)
  return variables(function(...) return parts.weight(t, where, names, ...) end, cell, given, features, units)
end

local function layer(cell, list, doc)
  define(cell.name, parameters(list), doc, function(given, t, signature)
    local x, units = given.inputs, given.units
    need_inputs(x, 3, "(batch, steps, features)", signature)
    if units < 1 then signature:fail(": units must be at least 1, got " .. units) end
    local batch, steps, features = x.shape[0], x.shape[1], x.shape[2]
    if steps < 1 then signature:fail(": '" .. x.name .. "' is " .. tostring(x.shape) .. ", it has no step") end

    local names = naming(t, given.name, cell.kind)
    local function named(word) return part(names, word) end
    -- Before the ops, for the error of a name that is taken is to be that of a variable.
    local w = variables_of(t, signature.where, names, cell, given, features, units)
    local states = first_states(cell, given, batch, units, named, signature)
    local is_there, all_there, nothing
    if given.lengths then
      local lengths = blob.of(given.lengths, t, "int64", signature.where .. ": lengths")
      is_there, all_there = masks(lengths, batch, steps, named, signature)
      nothing = ops.apply("constant", {}, { value = 0, dtype = x.dtype, shape = {} }, named "nothing")
      -- A NaN that fills a sequence up would come back to the weights, as 0 times NaN.
      x = ops.apply("where", { all_there, x, nothing }, nil, named "there")
    end

    local flat = ops.apply("reshape", { x }, { shape = { batch * steps, features } }, named "flat")
    local inputs = ops.apply("reshape", { cell.inputs(flat, w, named "inputs") },
      { shape = { batch, steps, cell.gates * units } }, named "input_gates")
    local outs
    outs, states = go_through(cell, inputs, states, w, is_there, given.reverse, named)
    if not is_there then return ops.apply("stack", outs, { axis = 1 }, names.name), unpack(states) end
    local out = ops.apply("stack", outs, { axis = 1 }, named "states")
    return ops.apply("where", { all_there, out, nothing }, nil, names.name), unpack(states)
  end)
end

local function one_step(cell, list, doc)
  define(cell.name .. "_cell", parameters(list), doc, function(given, t, signature)
    local x = given.inputs
    need_inputs(x, 2, "(batch, features)", signature)
    local states, units = {}, nil
    for i, name in ipairs(cell.states) do
      need_state(given[name], name, x.dtype, x.shape[0], units, signature)
      states[i], units = given[name], given[name].shape[1]
    end
    local names = naming(t, given.name, cell.kind .. "Cell")
    local function named(word) return part(names, word) end
    local w = variables_of(t, signature.where, names, cell, given, x.shape[1], units)
    return unpack(cell.step(cell.inputs(x, w, named "inputs"), states, w, named))
  end)
end

layer(lstm, {
  { "inputs", "blob" }, { "units", "integer" },
  { "initial_hidden", "blob?", text = "before the first step; zeros when left out" },
  { "initial_cell", "blob?", text = "before the first step; zeros when left out" },
  { "lengths", "operand?" }, { "reverse", "boolean", false },
}, [[
A long short-term memory over the steps of sequences: out, hidden, cell = flow.layers.lstm(x, units).
  i, f, g, o = the four blocks of x[:, t] . weight^T + bias + hidden . recurrent_weight^T + recurrent_bias
  cell = sigmoid(f) * cell + sigmoid(i) * tanh(g)
  hidden = sigmoid(o) * tanh(cell), which is out[:, t]
Formulas and order of the blocks are those of PyTorch's LSTM: weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0.
shapes: inputs (batch, steps, features) -> out (batch, steps, units), and hidden and cell of the last step (batch,
  units), as the initial ones; weight (4 * units, features); recurrent_weight (4 * units, units); biases (4 * units)
lengths: int32 or int64 (batch). A sequence keeps its state from there on, and its out is 0; what fills it up may be
  anything, NaN too
reverse: from the last step to the first; with lengths, from that of each sequence. Both ways are two layers:
  flow.concat({ flow.layers.lstm(x, 8), (flow.layers.lstm(x, 8, { reverse = true })) }, -1)
defaults: initial_hidden and initial_cell zeros; kernel_initializer and recurrent_initializer xavier uniform,
  bias_initializer zeros
errors: inputs of another rank; an initial state or lengths of another shape or dtype; in a run, a length outside of
  [0, steps], with its position
variables: name-weight, name-recurrent_weight, name-bias, name-recurrent_bias, as of flow.layers.lstm_cell; ops: name]])

one_step(lstm, { { "inputs", "blob" }, { "hidden", "blob" }, { "cell", "blob" } }, [[
One step of flow.layers.lstm, whose variables it shares under one name: hidden, cell = lstm_cell(x, hidden, cell).
shapes: inputs (batch, features), hidden and cell (batch, units) -> hidden, cell of the same shape
defaults: as flow.layers.lstm
variables: name-weight, name-recurrent_weight, name-bias, name-recurrent_bias]])

layer(gru, {
  { "inputs", "blob" }, { "units", "integer" },
  { "initial_state", "blob?", text = "before the first step; zeros when left out" }, { "lengths", "operand?" },
  { "reverse", "boolean", false },
}, [[
Gated recurrent units over the steps of sequences: out, state = flow.layers.gru(x, units).
  a, b, c = the three blocks of x[:, t] . weight^T + bias
  d, e, f = those of state . recurrent_weight^T + recurrent_bias
  new = tanh(c + sigmoid(a + d) * f)
  state = new + sigmoid(b + e) * (state - new), which is out[:, t]
Formulas and order of the blocks are those of PyTorch's GRU: weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0.
shapes: inputs (batch, steps, features) -> out (batch, steps, units), and the state of the last step (batch, units), as
  the initial one; weight (3 * units, features); recurrent_weight (3 * units, units); biases (3 * units)
lengths, reverse: as flow.layers.lstm
defaults: initial_state zeros; kernel_initializer and recurrent_initializer xavier uniform, bias_initializer zeros
errors: those of flow.layers.lstm
variables: name-weight, name-recurrent_weight, name-bias, name-recurrent_bias, as of flow.layers.gru_cell; ops: name]])

one_step(gru, { { "inputs", "blob" }, { "state", "blob" } }, [[
One step of flow.layers.gru, whose variables it shares under one name: state = gru_cell(x, state).
shapes: inputs (batch, features), state (batch, units) -> state of the same shape
defaults: as flow.layers.gru
variables: name-weight, name-recurrent_weight, name-bias, name-recurrent_bias]])
