-- Recurrent layers and their cells: values against the formulas written out, gradients against differences in float64.
local checks = require "checks"
local flow = require "moonflow"
local np, tp = flow.np, flow.typing
local near = checks.near

before_each(function()
  flow.clear_default_session()
  flow.set_seed(5)
end)

local function sigmoid(x) return 1 / (1 + np.exp(-x)) end

-- The blocks of `x . weight^T + bias` for one sequence, each a row.
local function blocks(x, weight, bias, count)
  local sum = np.matmul(x:reshape({ 1, x.shape:count() }), weight:transpose())[0] + bias
  local list, units = {}, sum.shape:count() / count
  for i = 1, count do list[i] = sum:rows((i - 1) * units, units) end
  return list
end

-- One step of one sequence, by the formulas of the documentation: states -> states.
local steps = {}

function steps.lstm(x, states, w)
  local a, b = blocks(x, w.weight, w.bias, 4), blocks(states[1], w.recurrent_weight, w.recurrent_bias, 4)
  local cell = sigmoid(a[2] + b[2]) * states[2] + sigmoid(a[1] + b[1]) * np.tanh(a[3] + b[3])
  return { sigmoid(a[4] + b[4]) * np.tanh(cell), cell }
end

function steps.gru(x, states, w)
  local a, b = blocks(x, w.weight, w.bias, 3), blocks(states[1], w.recurrent_weight, w.recurrent_bias, 3)
  local keep, new = sigmoid(a[2] + b[2]), np.tanh(a[3] + sigmoid(a[1] + b[1]) * b[3])
  return { (1 - keep) * new + keep * states[1] }
end

-- out and the last states of a batch, sequence by sequence.
local function written_out(kind, x, states, w, lengths, reverse)
  local batch, count, units = x.shape[0], x.shape[1], states[1].shape[1]
  local out, last = np.zeros({ batch, count, units }, x.dtype), {}
  for s = 1, #states do last[s] = states[s]:copy() end
  for row = 0, batch - 1 do
    local length, now = lengths and lengths[row] or count, {}
    for s = 1, #states do now[s] = states[s][row] end
    for k = 0, length - 1 do
      local t = reverse and length - 1 - k or k
      now = steps[kind](x[row][t], now, w)
      out[row][t] = now[1]
    end
    for s = 1, #states do last[s][row] = now[s] end
  end
  return out, last
end

local BATCH, STEPS, FEATURES, UNITS = 3, 4, 2, 3
local parts = { "weight", "recurrent_weight", "bias", "recurrent_bias" }
local gates, state_count = { lstm = 4, gru = 3 }, { lstm = 2, gru = 1 }

local function random(shape) return np.random.normal(0, 0.7, shape):astype(flow.double) end

-- What a layer is given: x and what it begins with; and its variables.
local function draw(kind)
  local rows = gates[kind] * UNITS
  local given = { x = random({ BATCH, STEPS, FEATURES }), first = random({ BATCH, UNITS }),
                  second = random({ BATCH, UNITS }), lengths = np.array({ 2, 4, 0 }, flow.int32) }
  local w = { weight = random({ rows, FEATURES }), recurrent_weight = random({ rows, UNITS }),
              bias = random({ rows }), recurrent_bias = random({ rows }) }
  return given, w
end

-- The layer over all that it can be given: out and the last states.
local function applied(kind, x, first, second, lengths, reverse)
  local options = { name = "net", lengths = lengths, reverse = reverse }
  if kind == "gru" then
    options.initial_state = first
  else
    options.initial_hidden, options.initial_cell = first, second
  end
  return { flow.layers[kind](x, UNITS, options) }
end

local function inputs_of(given)
  local inputs = {}
  for name, value in pairs(given) do
    inputs[name] = tp.Numpy.Placeholder(value.shape:table(), { dtype = value.dtype })
  end
  return inputs
end

local function load(w)
  local values = {}
  for name, value in pairs(w) do values["net-" .. name] = value end
  flow.load_variables(values, { ignore_mismatch = false })
end

for _, kind in ipairs({ "lstm", "gru" }) do
  describe(kind, function()
    it("takes no notice of what fills a sequence up", function()
      local given, w = draw(kind)
      local job = flow.global_function {
        inputs = inputs_of(given), returns = tp.List[tp.Numpy],
      } (function(x, first, second, lengths)
        local results = applied(kind, x, first, second, lengths)
        local of = { x }
        for _, name in ipairs(parts) do of[#of + 1] = flow.get_variable("net-" .. name) end
        return { results[1], results[2], unpack(flow.gradients(results[1] + results[1], of)) }
      end)
      load(w)
      local filled = given.x:copy()
      for row = 0, BATCH - 1 do
        for i = given.lengths[row], STEPS - 1 do filled[row][i] = i % 2 == 0 and 0 / 0 or math.huge end
      end
      local wanted, got = job(given.x, given.first, given.second, given.lengths),
        job(filled, given.first, given.second, given.lengths)
      for i = 1, #wanted do assert.is_true(wanted[i] == got[i], "result " .. i) end
    end)

    it("takes an array of lengths that stay as they are", function()
      local given, w = draw(kind)
      local fixed = given.lengths
      local job = flow.global_function { inputs = inputs_of(given), returns = tp.Tuple { tp.Numpy, tp.Numpy } } (
        function(x, first, second, lengths)
          local out = applied(kind, x, first, second, lengths)[1]
          return out, flow.scope.reuse_variables(function() return applied(kind, x, first, second, fixed)[1] end)
        end)
      load(w)
      local wanted, got = job(given.x, given.first, given.second, given.lengths)
      assert.is_true(wanted == got)
    end)

    for _, with in ipairs({ "", "lengths", "reverse", "lengths, reverse" }) do
      local has_lengths, reverse = with:find("lengths") ~= nil, with:find("reverse") ~= nil

      it(("computes its formulas%s"):format(with == "" and "" or ", with " .. with), function()
        local given, w = draw(kind)
        local job = flow.global_function {
          inputs = inputs_of(given), returns = tp.List[tp.Numpy],
        } (function(x, first, second, lengths)
          return applied(kind, x, first, second, has_lengths and lengths or nil, reverse)
        end)
        load(w)
        local got = job(given.x, given.first, given.second, given.lengths)
        local states = kind == "lstm" and { given.first, given.second } or { given.first }
        local out, last = written_out(kind, given.x, states, w, has_lengths and given.lengths or nil, reverse)
        near(got[1], out, 1e-12, "out")
        for s = 1, #last do near(got[1 + s], last[s], 1e-12, "state") end
      end)

      it(("has its gradients%s"):format(with == "" and "" or ", with " .. with), function()
        local given, w = draw(kind)
        local values = { x = given.x, first = given.first, second = given.second }
        for name, value in pairs(w) do values[name] = value end
        -- Weights for all results, so that no two gradients are alike.
        local of_out = random({ BATCH, STEPS, UNITS })
        local of_states = { random({ BATCH, UNITS }), random({ BATCH, UNITS }) }
        local order = { "x", "first", "weight", "recurrent_weight", "bias", "recurrent_bias" }
        if kind == "lstm" then order[#order + 1] = "second" end

        local job = flow.global_function {
          inputs = inputs_of(given), returns = tp.List[tp.Numpy],
        } (function(x, first, second, lengths)
          local results = applied(kind, x, first, second, has_lengths and lengths or nil, reverse)
          local loss = flow.math.reduce_sum(results[1] * of_out)
          for s = 2, #results do loss = loss + flow.math.reduce_sum(results[s] * of_states[s - 1]) end
          local of = { x = x, first = first, second = second }
          for _, name in ipairs(parts) do of[name] = flow.get_variable("net-" .. name) end
          local wanted = {}
          for i, name in ipairs(order) do wanted[i] = of[name] end
          return { loss, unpack(flow.gradients(loss, wanted)) }
        end)
        local function results()
          load({ weight = values.weight, recurrent_weight = values.recurrent_weight, bias = values.bias,
                 recurrent_bias = values.recurrent_bias })
          return job(values.x, values.first, values.second, given.lengths)
        end

        local slopes, step = results(), 1e-5
        for i, name in ipairs(order) do
          local at = values[name]
          for _ = 1, 3 do  -- along random directions, in which each element has a part
            local direction = random(at.shape:table())
            local function loss_at(distance)
              values[name] = at + distance * direction
              return results()[1]:item()
            end
            local difference = (loss_at(step) - loss_at(-step)) / (2 * step)
            -- The third derivative times the step's square, and the last digits of float64 divided by the step.
            local slope = np.sum(slopes[1 + i] * direction)
            assert.truthy(math.abs(slope - difference) <= 1e-8, name .. ": " .. slope .. " against " .. difference)
          end
          values[name] = at
        end
      end)
    end

    it("takes one step as the cell of its name, in another job as in the same", function()
      local x = np.random.normal(0, 1, { BATCH, STEPS, FEATURES })
      local function step(of, ...) return flow.layers[kind .. "_cell"](of, ...) end
      local function start() return flow.zeros({ BATCH, UNITS }) end
      local all = flow.global_function {
        inputs = { b = tp.Numpy.Placeholder(x.shape:table()) }, returns = tp.Tuple { tp.Numpy, tp.Numpy },
      } (function(b)
        local out = flow.layers[kind](b, UNITS, { name = "net" })
        local first = flow.squeeze(flow.slice(b, { 0, 0 }, { -1, 1 }), { 1 })
        return out, (flow.scope.reuse_variables(function()
          if kind == "gru" then return step(first, start(), { name = "net" }) end
          return step(first, start(), start(), { name = "net" })
        end))
      end)
      local out, first = all(x)
      near(first, out:slice(":, 0"), 1e-6)
      assert.equal(4, #checks.variables())

      local state = tp.Numpy.Placeholder({ BATCH, UNITS })
      local inputs = { now = tp.Numpy.Placeholder({ BATCH, FEATURES }), a = state }
      local one
      if kind == "gru" then
        one = flow.global_function { inputs = inputs, returns = tp.List[tp.Numpy] } (function(now, a)
          return { step(now, a, { name = "net" }) }
        end)
      else
        inputs.b = state
        one = flow.global_function { inputs = inputs, returns = tp.List[tp.Numpy] } (function(now, a, b)
          return { step(now, a, b, { name = "net" }) }
        end)
      end
      assert.equal(4, #checks.variables())
      local states = {}
      for s = 1, state_count[kind] do states[s] = np.zeros({ BATCH, UNITS }) end
      for t = 0, STEPS - 1 do
        states = one(x:slice(":, " .. t):copy(), unpack(states))
        near(states[1], out:slice(":, " .. t), 1e-6)
      end
    end)

    it("has variables as PyTorch's has, and zeros for what it is not given", function()
      local x = np.random.normal(0, 1, { 2, 3, 5 })
      local job = flow.global_function {
        inputs = { b = tp.Numpy.Placeholder({ 2, 3, 5 }) }, returns = tp.Numpy,
      } (function(b)
        local zeros = flow.zeros({ 2, 4 })
        local out = flow.layers[kind](b, 4, { name = "net" })
        return out - flow.scope.reuse_variables(function()
          if kind == "gru" then return (flow.layers.gru(b, 4, zeros, { name = "net" })) end
          return (flow.layers.lstm(b, 4, zeros, zeros, { name = "net" }))
        end)
      end)
      assert.equal(0, np.max(np.abs(job(x))))
      local rows = gates[kind] * 4
      assert.same({ ("net-bias (%d)"):format(rows), ("net-recurrent_bias (%d)"):format(rows),
                    ("net-recurrent_weight (%d, 4)"):format(rows), ("net-weight (%d, 5)"):format(rows) },
        checks.variables())
      local values = flow.get_all_variables()
      assert.is_true(values["net-bias"] == np.zeros({ rows }))
      local limit = math.sqrt(6 / (rows + 4))
      local most = np.max(np.abs(values["net-recurrent_weight"]))
      assert.truthy(most <= limit and most > 0.8 * limit)
    end)

    it("may lack biases, begin as it is told, and stay as it is", function()
      local job = flow.global_function {
        type = "train", inputs = { b = tp.Numpy.Placeholder({ 2, 3, 5 }) }, returns = tp.Numpy,
      } (function(b)
        local out = flow.layers[kind](b, 4, {
          name = "net", use_bias = false, trainable = false, kernel_initializer = flow.constant_initializer(0.5),
          recurrent_initializer = flow.zeros_initializer(),
        })
        flow.optimizer.SGD(1):minimize(flow.layers.dense(out, 1, { name = "head" }))
        return out
      end)
      local before = job(np.ones({ 2, 3, 5 }))
      assert.is_true(job(np.ones({ 2, 3, 5 })) == before)
      local values = flow.get_all_variables({ slots = false })
      assert.is_nil(values["net-bias"])
      assert.is_true(values["net-weight"] == np.full({ gates[kind] * 4, 5 }, 0.5))
      assert.is_true(values["net-recurrent_weight"] == np.zeros({ gates[kind] * 4, 4 }))
    end)

    it("grows by as many ops for each further step", function()
      local function ops(count)
        flow.clear_default_session()
        local job = flow.global_function {
          type = "train", inputs = { b = tp.Numpy.Placeholder({ 2, count, 3 }) }, returns = tp.Numpy,
        } (function(b)
          local out = flow.layers[kind](b, 4, { name = "net" })
          flow.optimizer.SGD(0.1):minimize(out)
          return out
        end)
        return tonumber(tostring(job):match("(%d+) ops"))
      end
      local few, more, many = ops(10), ops(20), ops(40)
      assert.equal(2 * (more - few), many - more)
    end)

    it("learns what stood at the beginning", function()
      local rows = 16
      local job = flow.global_function {
        type = "train", returns = tp.Numpy,
        inputs = { x = tp.Numpy.Placeholder({ rows, 6, 2 }),
                   y = tp.Numpy.Placeholder({ rows }, { dtype = flow.int32 }) },
      } (function(x, y)
        local _, state = flow.layers[kind](x, 8, { name = "net" })
        local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y,
          flow.layers.dense(state, 2, { name = "classes" }))
        flow.optimizer.Adam(0.03):minimize(loss)
        return loss
      end)
      local x, y = np.random.normal(0, 1, { rows, 6, 2 }), np.zeros({ rows }, flow.int32)
      for row = 0, rows - 1 do
        y[row] = row % 2
        x:set(row, 0, 0, 4 * (row % 2) - 2)
      end
      local first = job(x, y):mean()
      for _ = 1, 150 do job(x, y) end
      assert.truthy(job(x, y):mean() < 0.1 * first)
    end)

    it("says which length no sequence can have", function()
      local job = flow.global_function {
        returns = tp.Numpy,
        inputs = { x = tp.Numpy.Placeholder { 2, 3, 4 }, lengths = tp.Numpy.Placeholder({ 2 }, { dtype = "int32" }) },
      } (function(x, lengths) return (flow.layers[kind](x, 5, { lengths = lengths, name = "net" })) end)
      local x = np.ones { 2, 3, 4 }
      job(x, np.array({ 3, 0 }, flow.int32))
      for _, wrong in ipairs { { 3, 4 }, { 3, -1 } } do
        local fine, problem = pcall(job, x, np.array(wrong, flow.int32))
        assert.is_false(fine, "there was no error")
        assert.truthy(tostring(problem):find("net-lengths", 1, true), tostring(problem))
        assert.truthy(tostring(problem):find(tostring(wrong[2]), 1, true), tostring(problem))
      end
    end)

    it("says what it cannot take", function()
      local function fails(pattern, shape, body)
        flow.clear_default_session()
        local fine, problem = pcall(function()
          flow.global_function { inputs = { x = tp.Numpy.Placeholder(shape) }, returns = tp.Numpy } (function(x)
            return (body(x))
          end)
        end)
        assert.is_false(fine)
        assert.truthy(tostring(problem):find(pattern, 1, true), tostring(problem))
        assert.truthy(problem.where:find("recurrent_spec.lua:", 1, true))
      end
      local layer, cell = flow.layers[kind], flow.layers[kind .. "_cell"]
      local state = kind == "gru" and "state" or "hidden"
      fails("flow.layers." .. kind .. ": inputs must be (batch, steps, features), 'x' is (2, 5)", { 2, 5 },
        function(x) return layer(x, 3) end)
      fails("flow.layers." .. kind .. "_cell: inputs must be (batch, features), 'x' is (2, 5, 3)", { 2, 5, 3 },
        function(x) return kind == "gru" and cell(x, x) or cell(x, x, x) end)
      fails(": inputs must be of a floating dtype", { 2, 5, 3 },
        function(x) return layer(flow.cast(x, flow.int32), 3) end)
      fails(": units must be at least 1, got 0", { 2, 5, 3 }, function(x) return layer(x, 0) end)
      fails("it has no step", { 2, 5, 3 }, function(x) return layer(flow.slice(x, { 0, 0 }, { -1, 0 }), 3) end)
      fails(": initial_" .. state .. " must be float32 (2, 4) as the inputs are, 'Constant_0' is float32 (2, 3)",
        { 2, 5, 3 }, function(x)
          return layer(x, 4, { ["initial_" .. state] = flow.constant(0, { shape = { 2, 3 } }) })
        end)
      fails(": " .. state .. " must be float32 (2, units) as the inputs are", { 2, 3 },
        function(x)
          local of = flow.zeros({ 1, 3 })
          return kind == "gru" and cell(x, of) or cell(x, of, of)
        end)
      for _, dtype in ipairs { flow.float, flow.int8 } do  -- the latter would end before 200 steps do
        fails(": lengths must be int32 or int64 (2), one for each sequence", { 2, 200, 3 },
          function(x) return layer(x, 4, { lengths = flow.zeros({ 2 }, dtype) }) end)
      end
      fails("has no option 'length'; did you mean 'lengths'?", { 2, 5, 3 },
        function(x) return layer(x, 4, { length = flow.zeros({ 2 }) }) end)
    end)
  end)
end
