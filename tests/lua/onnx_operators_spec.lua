-- What the operators of ONNX mean.
local flow = require "moonflow"
local models = require "onnx_models"

local np = flow.np
local floats, whole, node, value = models.floats, models.whole, models.node, models.value
local write, job_of, result_of, raises, same =
  models.write, models.job_of, models.result_of, models.raises, models.same

before_each(models.begin)
after_each(models.finish)

describe("operators", function()
  it("pad at one side, and average without the pads", function()
    local x = floats { { { { 1, 2, 3 }, { 4, 5, 6 }, { 7, 8, 9 } } } }
    same({ { { { 1, 2.5 }, { 5.5, 7 } } } }, result_of(x, {
      nodes = { node("AveragePool", { "x" }, { "y" },
        { kernel_shape = { ints = { 2, 2 } }, strides = { ints = { 2, 2 } }, auto_pad = { s = "SAME_LOWER" } }) },
    }))
    same({ { { { 0, 1, 3, 5 } } } }, result_of(floats { { { { 1, 2, 3 } } } }, {
      weights = { w = floats { { { { 1, 1 } } } } },
      nodes = { node("Conv", { "x", "w" }, { "y" }, { pads = { ints = { 0, 2, 0, 0 } } }) },
    }))
  end)

  it("convolve a small image with holes as wide as it is", function()
    local function convolved(hole, pads)
      return result_of(floats { { { 1, 2, 3 } } }, {
        weights = { w = floats { { { 5, 7, 9 } } } },
        nodes = { node("Conv", { "x", "w" }, { "y" }, { dilations = { ints = { hole } }, pads = { ints = pads } }) },
      })
    end
    same({ { { 7, 14, 21 } } }, convolved(3, { 3, 3 }))
    same({ { { 34, 14, 26 } } }, convolved(2, { 2, 2 }))
    same({ { { 27, 7, 14, 21 } } }, convolved(3, { 4, 3 }))
    same({ { { 0, 9, 18, 27, 0 } } }, convolved(4, { 9, 1 }))
  end)

  it("convolve an image of width 1 along its height", function()
    same({ { { { 3 }, { 7 }, { 5 } } } }, result_of(floats { { { { 1 }, { 2 }, { 3 }, { 4 }, { 5 } } } }, {
      weights = { w = floats { { { { 1 }, { 1 } } } }, b = floats { 1 } },
      nodes = { node("Conv", { "x", "w", "b" }, { "y" },
        { strides = { ints = { 2, 1 } }, dilations = { ints = { 2, 1 } }, pads = { ints = { 1, 0, 2, 0 } } }) },
    }))
  end)

  it("have windows with holes", function()
    local x = floats { { { 1, 5, 2, 4, 3 } } }
    local function pooled(op, attributes)
      attributes.kernel_shape, attributes.dilations = { ints = { 2 } }, { ints = { 3 } }
      return result_of(x, { opset = 19, nodes = { node(op, { "x" }, { "y" }, attributes) } })
    end
    local function padded(more)
      more.pads = { ints = { 1, 2 } }
      return more
    end
    same({ { { 4, 5 } } }, pooled("MaxPool", {}))
    same({ { { 2.5, 4 } } }, pooled("AveragePool", {}))
    -- Of (0 1 5 2 4 3 0 0), without and with its zeros.
    same({ { { 2, 4, 5, 2, 4 } } }, pooled("MaxPool", padded {}))
    same({ { { 2, 2.5, 4, 2, 4 } } }, pooled("AveragePool", padded {}))
    same({ { { 1, 2.5, 4, 1, 2 } } }, pooled("AveragePool", padded { count_include_pad = { i = 1 } }))
    same({ { { 2, 4, 4 } } }, pooled("AveragePool",  -- the last window sticks out
      { pads = { ints = { 1, 1 } }, strides = { ints = { 2 } }, ceil_mode = { i = 1 } }))
    same({ { { 5, 8 } } }, pooled("LpPool", { p = { i = 1 } }))
    raises("a window of 2000 places is not supported where it is folded, only of 1024", function()
      result_of(x, { nodes = { node("LpPool", { "x" }, { "y" },
        { kernel_shape = { ints = { 2000 } }, pads = { ints = { 1000, 1000 } } }) } })
    end)
    raises("a window that reaches over 4 places does not fit axis 2, which has 3", function()
      x = floats { { { 1, 2, 3 } } }
      pooled("MaxPool", {})
    end)
  end)

  it("say which number of a window is the largest, and put it back there", function()
    local x = floats { { { { 1, 7, 3, 3 }, { 7, 2, 3, 3 } } } }
    local function model(outputs, attributes)
      attributes = attributes or {}
      attributes.kernel_shape, attributes.strides = { ints = { 2, 2 } }, { ints = { 2, 2 } }
      return { opset = 12, nodes = { node("MaxPool", { "x" }, { "p", "at" }, attributes), outputs } }
    end
    local function at(attributes) return result_of(x, model(node("Identity", { "at" }, { "y" }), attributes)) end
    same({ { { { 1, 2 } } } }, at())  -- the first of those that are alike
    same({ { { { 2, 4 } } } }, at { storage_order = { i = 1 } })
    local unpool = node("MaxUnpool", { "p", "at" }, { "y" },
      { kernel_shape = { ints = { 2, 2 } }, strides = { ints = { 2, 2 } } })
    same({ { { { 0, 7, 3, 0 }, { 0, 0, 0, 0 } } } }, result_of(x, model(unpool)))
  end)

  it("refuse windows that no one can have, along any number of axes", function()
    local function convolved(attributes)
      local x = floats { { { { { 1 }, { 2 }, { 3 } } } } }
      return result_of(x, { weights = { w = floats { { { { { 1 } } } } } },
                            nodes = { node("Conv", { "x", "w" }, { "y" }, attributes) } })
    end
    same({ { { { { 1 }, { 3 } } } } }, convolved { strides = { ints = { 1, 2, 1 } } })
    raises("strides has 0, wanted whole numbers from 1 on", function()
      convolved { strides = { ints = { 0, 1, 1 } } }
    end)
    raises("dilations has -1, wanted", function() convolved { dilations = { ints = { -1, 1, 1 } } } end)
    raises("pads has -1, wanted", function() convolved { pads = { ints = { -1, 0, 0, 0, 0, 0 } } } end)
    raises("strides has 0 numbers, wanted 3", function() convolved { strides = { ints = {} } } end)
    raises("strides has 2 numbers, wanted 3", function() convolved { strides = { ints = { 1, 1 } } } end)
  end)

  it("split into as many parts as there are outputs", function()
    local function split(count)
      return result_of(floats { 1, 2, 3 }, { opset = 18, nodes = {
        node("Split", { "x" }, { "y", "z" }, { num_outputs = { i = count } }) } })
    end
    same({ 1, 2 }, split(2))
    raises("num_outputs is 9007199254740992, but it has 2 outputs", function() split(2 ^ 53) end)
  end)

  it("mean what they mean at the file's opset", function()
    local x = floats { { { 1, 1 }, { 1, 1 } } }
    local nodes = { node("Softmax", { "x" }, { "y" }) }
    same({ { { 0.25, 0.25 }, { 0.25, 0.25 } } }, result_of(x, { opset = 11, nodes = nodes }))
    same({ { { 0.5, 0.5 }, { 0.5, 0.5 } } }, result_of(x, { opset = 13, nodes = nodes }))
  end)

  it("divide whole numbers towards zero", function()
    same({ -3, 3, 3 }, result_of(whole { -7, 7, -7 }, {
      weights = { d = whole { 2, 2, -2 } }, nodes = { node("Div", { "x", "d" }, { "y" }) },
    }))
  end)

  it("raise to powers, by products where they are small", function()
    local function raised(x, exponent) return result_of(x, {
      weights = { e = exponent }, nodes = { node("Pow", { "x", "e" }, { "y" }) } })
    end
    local function scalar(number, dtype) return np.array(number):astype(dtype) end
    for _, power in ipairs { 0, 1, 2, 3, 4, 5, -1, -2 } do
      same({ (-2) ^ power, 0.5 ^ power, 1 }, raised(floats { -2, 0.5, 1 }, scalar(power, "float32")))
    end
    same({ 2, 0.5 }, raised(floats { 4, 0.25 }, scalar(0.5, "float32")))
    same({ 0.5, 2 }, raised(floats { 4, 0.25 }, scalar(-0.5, "float32")))
    -- 3^35 is beyond the whole numbers that float64 has.
    assert.equal(0, (raised(whole { 3 }, scalar(35, "int64")) - raised(whole { 3 }, scalar(34, "int64")) * 3)[0])
    same({ 1, -1, 1 }, raised(whole { 0, -1, 2 }, whole { 0, 3, 0 }))
    same({ 1, 2, 2 }, raised(whole { 3, 4, 8 }, scalar(0.5, "float32")))
  end)

  it("count indices from the end", function()
    same({ 3, 1 }, result_of(floats { 1, 2, 3 }, {
      weights = { at = whole { -1, 0 } }, nodes = { node("Gather", { "x", "at" }, { "y" }) },
    }))
  end)

  it("slice backwards and to the end", function()
    same({ 4, 2 }, result_of(floats { 1, 2, 3, 4 }, {
      weights = { from = whole { -1 }, to = whole { -2 ^ 40 }, axes = whole { 0 }, steps = whole { -2 } },
      nodes = { node("Slice", { "x", "from", "to", "axes", "steps" }, { "y" }) },
    }))
  end)

  it("put updates where their indices say, along one axis", function()
    local function scattered(attributes)
      return result_of(floats { { 1, 2, 3 }, { 4, 5, 6 } }, {
        opset = 18, weights = { at = whole { { -1, 0 } }, new = floats { { 10, 20 } } },
        nodes = { node("ScatterElements", { "x", "at", "new" }, { "y" }, attributes) },
      })
    end
    same({ { 20, 2, 10 }, { 4, 5, 6 } }, scattered { axis = { i = 1 } })
    same({ { 1, 22, 3 }, { 14, 5, 6 } }, scattered { axis = { i = 0 }, reduction = { s = "add" } })
  end)

  it("reduce all updates of one place with what is there", function()
    local function elements(reduction)
      return result_of(floats { 2, 3, 5, 7 }, {
        opset = 18, weights = { at = whole { 3, 0, -1, 3, 0 }, new = floats { 4, 0.5, 3, 10, -1 } },
        nodes = { node("ScatterElements", { "x", "at", "new" }, { "y" }, { reduction = { s = reduction } }) },
      })
    end
    same({ -1, 3, 5, 840 }, elements "mul")
    same({ 2, 3, 5, 10 }, elements "max")
    same({ -1, 3, 5, 3 }, elements "min")
    same({ 1.5, 3, 5, 24 }, elements "add")
    raises("reduction = mean is not supported", function() elements "mean" end)
    local function rows(reduction)
      return result_of(floats { { 1, 2 }, { 3, 4 }, { 5, 6 } }, {
        opset = 18, weights = { at = whole { { 2 }, { 0 }, { -1 } }, new = floats { { 9, 1 }, { 7, 0 }, { 2, 8 } } },
        nodes = { node("ScatterND", { "x", "at", "new" }, { "y" }, { reduction = { s = reduction } }) },
      })
    end
    same({ { 7, 0 }, { 3, 4 }, { 90, 48 } }, rows "mul")
    same({ { 7, 2 }, { 3, 4 }, { 9, 8 } }, rows "max")
    same({ { 1, 0 }, { 3, 4 }, { 2, 1 } }, rows "min")
  end)

  it("take indices that only a run knows, to reduce by", function()
    local model = flow.onnx.load(write {
      opset = 18, inputs = { value("at", { 3 }, "int64") },
      weights = { old = floats { 1, 1 }, new = floats { 2, 3, 5 } },
      nodes = { node("ScatterElements", { "old", "at", "new" }, { "y" }, { reduction = { s = "mul" } }) },
    })
    local job = job_of(model, { 3 }, "int64")
    same({ 10, 3 }, job(whole { 0, 1, 0 }))
    same({ 1, 30 }, job(whole { -1, 1, 1 }))
  end)

  it("pick by coordinates within a batch", function()
    local function picked(at, batch)
      return result_of(floats { { { 1, 2 }, { 3, 4 } }, { { 5, 6 }, { 7, 8 } } }, {
        weights = { at = at }, nodes = { node("GatherND", { "x", "at" }, { "y" }, { batch_dims = { i = batch } }) },
      })
    end
    same({ { 3, 4 }, { 5, 6 } }, picked(whole { { 1 }, { 0 } }, 1))
    same({ { 2, 3 }, { 6, 7 } }, picked(whole { { { -1 }, { 0 } }, { { 1 }, { 0 } } }, 2))
    raises("batch_dims is 2 of 3 axes and 2 of indices", function() picked(whole { { 1 }, { 0 } }, 2) end)
    raises("axis 0 of a batch has size 2, and 1 in the indices", function() picked(whole { { 1 } }, 1) end)
  end)

  it("have classes as lines, and nothing for an index beyond them", function()
    local function hot(axis)
      return result_of(whole { 1, -1, 3, -4 }, {
        weights = { depth = whole(3), values = floats { 0.5, 2 } },
        nodes = { node("OneHot", { "x", "depth", "values" }, { "y" }, { axis = { i = axis } }) },
      })
    end
    local n, y = 0.5, 2
    same({ { n, y, n }, { n, n, y }, { n, n, n }, { n, n, n } }, hot(-1))
    same({ { n, n, n, n }, { y, n, n, n }, { n, y, n, n } }, hot(0))
  end)

  it("turn sequences around, as far as they go", function()
    same({ { 2, 6 }, { 1, 5 }, { 3, 4 } }, result_of(floats { { 1, 4 }, { 2, 5 }, { 3, 6 } }, {
      weights = { lengths = whole { 2, 3 } }, nodes = { node("ReverseSequence", { "x", "lengths" }, { "y" }) } }))
    same({ { 2, 1, 3 } }, result_of(floats { { 1, 2, 3 } }, {
      weights = { lengths = whole { 2 } }, nodes = { node("ReverseSequence", { "x", "lengths" }, { "y" },
        { batch_axis = { i = 0 }, time_axis = { i = 1 } }) } }))
  end)

  it("keep what a known condition or array names", function()
    local flags = np.array { 0, 1, 1 }:astype("int8")
    local function kept(attributes)
      return result_of(floats { { 1, 2, 3 }, { 4, 5, 6 } }, {
        weights = { flags = flags }, nodes = { node("Compress", { "x", "flags" }, { "y" }, attributes) } })
    end
    same({ { 2, 3 }, { 5, 6 } }, kept { axis = { i = -1 } })
    same({ 2, 3 }, kept {})
    raises("a condition of 3 for 2 places", function() kept { axis = { i = 0 } } end)
    same({ { 0, 1, 2 }, { 1, 1, 0 } }, result_of(floats { 0 }, {
      weights = { a = whole { { 0, 3 }, { 0, 5 }, { 7, 0 } } },
      nodes = { node("NonZero", { "a" }, { "at" }), node("Cast", { "at" }, { "real" }, { to = { i = 1 } }),
                node("Add", { "x", "real" }, { "y" }) },
    }))
  end)

  it("say where the first of the largest is", function()
    local x = floats { { { 1, 3 }, { 3, 2 } } }
    local nodes = { node("Hardmax", { "x" }, { "y" }) }
    same({ { { 0, 1 }, { 1, 0 } } }, result_of(x, { opset = 13, nodes = nodes }))
    same({ { { 0, 1 }, { 0, 0 } } }, result_of(x, { opset = 11, nodes = nodes }))
  end)

  it("take the mean and the deviation away", function()
    same({ { { { -1, 1 } } }, { { { -1, 1 } } } }, result_of(floats { { { { 1, 5 } } }, { { { 1, 5 } } } }, {
      nodes = { node("MeanVarianceNormalization", { "x" }, { "y" }) } }))
    same({ { -1, -1 }, { 1, 1 } }, result_of(floats { { 1, 2 }, { 3, 8 } }, { nodes = {
      node("MeanVarianceNormalization", { "x" }, { "y" }, { axes = { ints = { 0 } } }) } }))
  end)

  it("weigh the samples of a signal", function()
    local function window(op, size, periodic)
      return result_of(floats { 0 }, { weights = { size = whole(size) }, nodes = {
        node(op, { "size" }, { "w" }, { periodic = { i = periodic } }), node("Add", { "x", "w" }, { "y" }) } })
    end
    for op, ends in pairs { HannWindow = 0, HammingWindow = 4 / 46, BlackmanWindow = 0 } do
      local round, flat = window(op, 4, 1), window(op, 3, 0)
      assert.near(ends, round[0], 1e-6)
      assert.near(1, round[2], 1e-6)
      assert.near(round[1], round[3], 1e-6)
      for i, at in ipairs { ends, 1, ends } do assert.near(at, flat[i - 1], 1e-6) end
    end
    assert.near(0.5, window("HannWindow", 4, 1)[1], 1e-6)
  end)

  it("divide rows by their root mean square", function()
    same({ { 0.5, 3.5 } }, result_of(floats { { 1, 7 } }, {
      opset = 23, weights = { scale = floats { 2.5, 2.5 } },
      nodes = { node("RMSNormalization", { "x", "scale" }, { "y" }, { epsilon = { f = 0 } }) },
    }))
  end)

  it("go from step to step, in both directions", function()
    -- One unit, whose gates have weights of 1 for the input and 0.5 for the state, and no biases.
    local function sigmoid(x) return 1 / (1 + math.exp(-x)) end
    local function lstm(inputs)
      local h, c = 0, 0
      for _, x in ipairs(inputs) do
        local g = x + 0.5 * h
        c = sigmoid(g) * c + sigmoid(g) * math.tanh(g)
        h = sigmoid(g) * math.tanh(c)
      end
      return h
    end
    local function gru(inputs)
      local h = 0
      for _, x in ipairs(inputs) do
        local z = sigmoid(x + 0.5 * h)
        h = (1 - z) * math.tanh(x + 0.5 * z * h) + z * h
      end
      return h
    end
    for op, by_hand in pairs { LSTM = lstm, GRU = gru } do
      local gates = op == "LSTM" and 4 or 3
      local weight = np.ones({ 2, gates, 1 }):astype("float32")
      flow.clear_default_session()
      local got = result_of(floats { { { 0.3 } }, { { -0.8 } } }, {
        weights = { w = weight, r = weight * 0.5 },
        nodes = { node(op, { "x", "w", "r" }, { "y" }, { direction = { s = "bidirectional" } }) },
      })
      assert.same({ 2, 2, 1, 1 }, got.shape:table())
      assert.near(by_hand { 0.3, -0.8 }, got:at(1, 0, 0, 0), 1e-6)
      assert.near(by_hand { -0.8, 0.3 }, got:at(0, 1, 0, 0), 1e-6)
    end
  end)

  -- One unit, whose next state is tanh(x + state).
  local function rnn(given)
    local one = np.ones({ given.both and 2 or 1, 1, 1 }):astype("float32")
    local weights, inputs = { w = one, r = one }, { "x", "w", "r" }
    if given.lengths then weights.lengths, inputs[4], inputs[5] = given.lengths, "", "lengths" end
    local attributes = given.attributes or {}
    attributes.layout = { i = given.layout or 0 }
    attributes.direction = { s = given.both and "bidirectional" or "forward" }
    return result_of(given.x, { opset = 14, weights = weights, nodes = {
      node("RNN", inputs, given.outputs, attributes) } })
  end
  local tanh = math.tanh

  it("take sequences of several lengths", function()
    local lengths = np.array { 2, 1 }:astype("int32")
    local x = floats { { { 0.5 }, { 0.25 } }, { { 1 }, { 9 } } }  -- (steps, batch, in)
    local y = rnn { x = x, lengths = lengths, both = true, outputs = { "y" } }
    local function near(wanted, ...) assert.near(wanted, y:at(...), 1e-6) end
    near(tanh(1 + tanh(0.5)), 1, 0, 0, 0)
    near(tanh(0.5 + tanh(1)), 0, 1, 0, 0)
    for direction = 0, 1 do  -- the second has one step
      near(tanh(0.25), 0, direction, 1, 0)
      near(0, 1, direction, 1, 0)
    end
    y = rnn { x = x, lengths = lengths, both = true, outputs = { "", "y" } }
    near(tanh(0.25), 0, 1, 0)
    near(tanh(0.25), 1, 1, 0)
    near(tanh(0.5 + tanh(1)), 1, 0, 0)
    raises("a sequence of 3 steps of 2", function()
      rnn { x = x, lengths = np.array { 3, 1 }:astype("int32"), outputs = { "y" } }
    end)
    raises("its lengths are (1) for 2 sequences", function()
      rnn { x = x, lengths = np.array { 2 }:astype("int32"), outputs = { "y" } }
    end)
  end)

  it("take sequences whose batch comes first", function()
    local x = floats { { { 1 }, { 2 } }, { { 3 }, { 4 } }, { { 5 }, { 6 } } }  -- (batch, steps, in)
    local y = rnn { x = x, layout = 1, both = true, outputs = { "y" } }
    assert.same({ 3, 2, 2, 1 }, y.shape:table())  -- (batch, steps, directions, units)
    assert.near(tanh(4 + tanh(3)), y:at(1, 1, 0, 0), 1e-6)
    assert.near(tanh(3 + tanh(4)), y:at(1, 0, 1, 0), 1e-6)
    y = rnn { x = x, layout = 1, both = true, outputs = { "", "y" } }
    assert.same({ 3, 2, 1 }, y.shape:table())
    assert.near(tanh(6 + tanh(5)), y:at(2, 0, 0), 1e-6)
    assert.near(tanh(5 + tanh(6)), y:at(2, 1, 0), 1e-6)
  end)

  it("bend sums by other activations, and cut them before", function()
    local function last(attributes)
      return rnn { x = floats { { { 0.5 } }, { { 2 } } }, outputs = { "", "y" }, attributes = attributes }
    end
    local function named(...) return { strings = { ... } } end
    same({ { { 2.5 } } }, last { activations = named "Relu" })
    assert.near(0.7, last { activations = named "HardSigmoid", activation_alpha = { floats = { 0.1 } },
                            activation_beta = { floats = { 0.5 } }, clip = { f = 2 } }:item(), 1e-6)
    -- Each direction has its own, and takes as many numbers of the lists as they have.
    same({ { { 2 } }, { { -0.25 } } }, rnn {
      x = floats { { { -2.5 } }, { { 2 } } }, outputs = { "", "y" }, both = true,
      attributes = { activations = named("ThresholdedRelu", "LeakyRelu"), activation_alpha = { floats = { 1, 0.5 } } },
    })
    assert.near(tanh(0.75), last({ clip = { f = 0.75 } }):item(), 1e-6)
    local two, half = { floats = { 2 } }, { floats = { 0.5 } }
    local affine, scaled = named "Affine", named "ScaledTanh"
    same({ { { 7.5 } } }, last { activations = affine, activation_alpha = two, activation_beta = half })
    assert.near(2 * tanh(0.5 * (2 + 2 * tanh(0.25))),
      last({ activations = scaled, activation_alpha = two, activation_beta = half }):item(), 1e-6)
    raises("activation Affine wants an activation_alpha and an activation_beta", function()
      last { activations = affine, activation_alpha = two }
    end)
    raises("activation Sine is not supported, only Affine, Elu, HardSigmoid,", function()
      last { activations = named "Sine" }
    end)
  end)

  it("let a cell open its own gates", function()
    local w = np.zeros({ 1, 4, 1 }):astype("float32")
    local y = result_of(floats { { { 0 } } }, {
      weights = { w = w, r = w, h = floats { { { 0 } } }, c = floats { { { 2 } } }, p = floats { { 7, 3, -0.25 } } },
      nodes = { node("LSTM", { "x", "w", "r", "", "", "h", "c", "p" }, { "y" }) },
    })
    local function sigmoid(z) return 1 / (1 + math.exp(-z)) end
    local cell = sigmoid(-0.25 * 2) * 2  -- p is of the input, output and forget gate
    assert.near(sigmoid(3 * cell) * tanh(cell), y:at(0, 0, 0, 0), 1e-6)
  end)

  it("resize by sums of places", function()
    local function resized(attributes, sizes)
      return result_of(floats { { { { 0, 3 } } } }, {
        weights = { sizes = whole(sizes) }, nodes = { node("Resize", { "x", "", "", "sizes" }, { "y" }, attributes) },
      })
    end
    same({ { { { 0, 1, 2, 3 } } } }, resized(
      { mode = { s = "linear" }, coordinate_transformation_mode = { s = "align_corners" } }, { 1, 1, 1, 4 }))
    same({ { { { 0, 0, 3 } } } }, resized(
      { mode = { s = "nearest" }, coordinate_transformation_mode = { s = "asymmetric" },
        nearest_mode = { s = "floor" }, cubic_coeff_a = { f = -0.75 } }, { 1, 1, 1, 3 }))  -- as PyTorch writes it
    same({ { { { 0, 0, 3, 3 } } } }, result_of(floats { { { { 0, 3 } } } }, {
      weights = { scales = floats { 1, 1, 1, 2 } }, nodes = { node("Resize", { "x", "", "scales" }, { "y" },
        { mode = { s = "nearest" }, keep_aspect_ratio_policy = { s = "stretch" } }) },  -- as PyTorch writes it
    }))
  end)

  it("resize smooths what becomes smaller, and cuts parts out", function()
    local function resized(x, roi, size, attributes)
      return result_of(floats { { { x } } }, {
        opset = 18, weights = { roi = np.array(roi):astype("float64"), sizes = whole { 1, 1, 1, size } },
        nodes = { node("Resize", { "x", "roi", "", "sizes" }, { "y" }, attributes) },
      }):reshape(-1)
    end
    local all = { 0, 0, 0, 0, 1, 1, 1, 1 }
    -- By weights of 1/4, 3/4, 3/4 and 1/4, the border being there twice.
    same({ 1.625, 3.375 }, resized({ 1, 2, 3, 4 }, all, 2, { mode = { s = "linear" }, antialias = { i = 1 } }))
    raises("antialias is not supported for the nearest place", function()
      resized({ 1, 2, 3, 4 }, all, 2, { antialias = { i = 1 } })
    end)

    local crop = { mode = { s = "linear" }, coordinate_transformation_mode = { s = "tf_crop_and_resize" },
                   extrapolation_value = { f = 9 } }
    same({ 0, 2, 9, 9 }, resized({ 0, 1, 2, 3 }, { 0, 0, 0, 0, 1, 1, 1, 2 }, 4, crop))
    same({ 3, 1.5 }, resized({ 0, 1, 2, 3 }, { 0, 0, 0, 1, 1, 1, 1, 0.5 }, 2, crop))
    raises("roi has 2 numbers for 4 axes", function() resized({ 0, 1 }, { 0, 1 }, 2, crop) end)
    crop.mode, crop.nearest_mode = { s = "nearest" }, { s = "ceil" }  -- 0.8 of a file is a little more
    same({ 0, 4 }, resized({ 0, 1, 2, 3, 4, 5 }, { 0, 0, 0, 0, 1, 1, 1, 0.8 }, 2, crop))
  end)

  it("take an image at places that are computed", function()
    -- The grid goes over a row of four, with the places -1, 0.25, 3 and 5 where its ends are the outer edges.
    local function place(x) return { (x + 0.5) / 2 - 1, 0 } end
    local grid = floats { { { place(-1), place(0.25), place(3), place(5) } } }
    local function sampled(attributes)
      return result_of(floats { { { { 1, 2, 3, 4 } } } }, {
        opset = 20, weights = { grid = grid }, nodes = { node("GridSample", { "x", "grid" }, { "y" }, attributes) } })
    end
    same({ { { { 0, 1.25, 4, 0 } } } }, sampled {})
    same({ { { { 1, 1.25, 4, 4 } } } }, sampled { padding_mode = { s = "border" } })
    same({ { { { 1, 1.25, 4, 3 } } } }, sampled { padding_mode = { s = "reflection" } })
    same({ { { { 0, 1, 4, 0 } } } }, sampled { mode = { s = "nearest" } })
    local cubic = sampled { mode = { s = "cubic" }, padding_mode = { s = "border" } }
    -- By hand, with the weights of Keys for 1.25, 0.25, 0.75 and 1.75 of (1, 1, 2, 3).
    assert.near(-0.10546875 + 0.87890625 + 2 * 0.26171875 - 3 * 0.03515625, cubic:at(0, 0, 0, 1), 1e-6)
    grid = floats { { { { -1, 0 }, { 0, 0 }, { 1, 0 } } } }  -- from the middle of the first number to that of the last
    same({ { { { 1, 2.5, 4 } } } }, sampled { align_corners = { i = 1 } })
    raises("a grid (1, 1, 3, 2) for an image (2, 1, 1, 1)", function()
      result_of(floats { { { { 1 } } }, { { { 1 } } } }, { opset = 20, weights = { grid = grid },
        nodes = { node("GridSample", { "x", "grid" }, { "y" }) } })
    end)
  end)

  it("resize between two places that are as near as in float32", function()
    local function row(from, scale, where, which)
      return result_of(np.arange(from):reshape({ 1, 1, 1, from }):astype("float32"), {
        weights = { scales = floats { 1, 1, 1, scale } }, nodes = { node("Resize", { "x", "", "scales" }, { "y" },
          { coordinate_transformation_mode = { s = where }, nearest_mode = { s = which } }) },
      }):reshape(-1)
    end
    -- Of 0.7 and 1.2, float32 has the first a little below, the second a little above.
    same({ 0, 1, 2, 3 }, row(4, 1.2, "asymmetric", "round_prefer_ceil"))
    same({ 0, 2, 3, 4 }, row(6, 0.7, "half_pixel", "round_prefer_floor"))
  end)

  it("resize to the nearest place as ONNX Runtime does, also before there was a word for it", function()
    local function row(from, scale)
      return result_of(np.arange(from):reshape({ 1, 1, 1, from }):astype("float32"), {
        opset = 10, weights = { scales = floats { 1, 1, 1, scale } },
        nodes = { node("Resize", { "x", "scales" }, { "y" }) },
      }):reshape(-1)
    end
    same({ 0, 2 }, row(4, 0.6))
    same({ 0, 2, 3, 4, 6, 7 }, row(8, 0.75))
    same({ 0, 0, 1, 1, 2 }, row(3, 1.7))
  end)

  it("resize to the whole number that a float32 scale means", function()
    local function width(from, scale, where)
      return result_of(np.zeros({ 1, 1, 1, from }):astype("float32"), {
        weights = { scales = floats { 1, 1, 1, scale } }, nodes = { node("Resize", { "x", "", "scales" }, { "y" },
          { mode = { s = "linear" }, coordinate_transformation_mode = { s = where } }) },
      }).shape[3]
    end
    assert.equal(7, width(10, 0.7, "half_pixel"))  -- 0.7 as a float32 is below 0.7
    assert.equal(6, width(10, 0.69, "half_pixel"))
    assert.equal(3, width(5, 0.6, "align_corners"))
    assert.equal(3, width(5, 0.7, "align_corners"))
  end)
end)

describe("an order", function()
  it("has NaN behind the smallest, and before the largest", function()
    local function places(largest)
      return result_of(floats { { 0 / 0, 1, 2, -math.huge } }, {
        weights = { k = whole { 2 } }, outputs = { value("y", nil, "int64") },
        nodes = { node("TopK", { "x", "k" }, { "values", "y" }, { largest = { i = largest } }) },
      })
    end
    same({ { 3, 1 } }, places(0))
    same({ { 0, 2 } }, places(1))
  end)
end)

describe("attention", function()
  -- Two queries of 0 look at all keys alike, so each one's sum is the mean of the values it may look at.
  local function seen(given)
    local weights = { k = floats { { { { 1 }, { 2 } } } }, v = floats { { { { 2 }, { 4 } } } } }
    local inputs = { "x", "k", "v", "", "", "", "" }
    for name, at in pairs { mask = 4, past_k = 5, past_v = 6, lengths = 7 } do
      if given[name] then inputs[at], weights[name] = name, given[name] end
    end
    for name, array in pairs(given.weights or {}) do weights[name] = array end
    return result_of(given.x or floats { { { { 0 }, { 0 } } } }, {
      opset = 25, weights = weights, nodes = { node("Attention", inputs, { "y" }, given.attributes) },
    })
  end
  local function both(one, other) return { { { { one }, { other } } } } end

  it("looks where it is allowed to", function()
    same(both(3, 3), seen {})
    same(both(2, 3), seen { attributes = { is_causal = { i = 1 } } })
    same(both(4, 0), seen { mask = np.array { { 0, 1 }, { 0, 0 } }:astype("int8") })
    same(both(2, 2), seen { mask = np.array { { 1 }, { 1 } }:astype("int8") })
    same(both(2, 4), seen { attributes = { left_window_size = { i = 0 }, right_window_size = { i = 0 } } })
    same(both(2, 2), seen { lengths = whole { 1 } })
    same(both(0, 2), seen { lengths = whole { 1 }, attributes = { is_causal = { i = 1 } } })
    raises("its mask has 0 axes, wanted 2 to 4", function() seen { mask = np.array(1):astype("int8") } end)
  end)

  it("adds a bias to what it compares", function()
    local below = -math.huge
    same(both(4, 0), seen { mask = floats { { below, 0 }, { below, below } } })
    same(both(2, 4), seen { mask = floats { { 0, 0 }, { below, 0 } }, attributes = { is_causal = { i = 1 } } })
  end)

  it("looks at keys of calls before it", function()
    local past = { past_k = floats { { { { 5 } } } }, past_v = floats { { { { 6 } } } } }
    same(both(4, 4), seen(past))
    past.attributes = { is_causal = { i = 1 } }
    same(both(4, 4), seen(past))  -- (6 + 2) / 2 and (6 + 2 + 4) / 3
  end)

  it("takes heads side by side, and keys that several of them share", function()
    local weights = { k = floats { { { 1 }, { 2 } } }, v = floats { { { 2 }, { 4 } } } }
    same({ { { 2, 2 }, { 3, 3 } } }, seen { x = floats { { { 0, 0 }, { 0, 0 } } }, weights = weights, attributes = {
      q_num_heads = { i = 2 }, kv_num_heads = { i = 1 }, is_causal = { i = 1 } } })
    raises("query has 3 columns for 2 heads", function()
      seen { x = floats { { { 0, 0, 0 } } }, weights = weights, attributes = {
        q_num_heads = { i = 2 }, kv_num_heads = { i = 1 } } }
    end)
  end)

  it("bounds scores, and gives them where they are asked for", function()
    local function scores(mode)
      local model = flow.onnx.load(write {
        opset = 23, shape = { 1, 1, 1, 1 }, outputs = { value("s") },
        weights = { k = floats { { { { 1 }, { 2 } } } }, v = floats { { { { 2 }, { 4 } } } } },
        nodes = { node("Attention", { "x", "k", "v" }, { "y", "", "", "s" }, {
          scale = { f = 3 }, softcap = { f = 5 }, qk_matmul_output_mode = { i = mode } }) },
      })
      return job_of(model, { 1, 1, 1, 1 })(floats { { { { 1 } } } }):reshape(-1)
    end
    same({ 3, 6 }, scores(0))
    for i, x in ipairs { 3, 6 } do assert.near(5 * math.tanh(x / 5), scores(1)[i - 1], 1e-6) end
    local e = math.exp(5 * math.tanh(6 / 5) - 5 * math.tanh(3 / 5))
    assert.near(e / (1 + e), scores(3)[1], 1e-6)
  end)

  it("turns pairs of numbers by the place they have", function()
    local function turned(attributes)
      return result_of(floats { { { { 1, 2, 3, 4, 5 } } } }, {
        opset = 23, weights = { cos = floats { { 9, 9 }, { 0, 1 } }, sin = floats { { 9, 9 }, { 1, 0 } },
          at = whole { { 1 } } },
        nodes = { node("RotaryEmbedding", { "x", "cos", "sin", "at" }, { "y" }, attributes) },
      })
    end
    same({ { { { -3, 2, 1, 4, 5 } } } }, turned { rotary_embedding_dim = { i = 4 } })
    same({ { { { -2, 1, 3, 4, 5 } } } }, turned { rotary_embedding_dim = { i = 4 }, interleaved = { i = 1 } })
    raises("cos is (1, 1, 2), wanted 1 of each place", function() turned { rotary_embedding_dim = { i = 2 } } end)
  end)
end)
