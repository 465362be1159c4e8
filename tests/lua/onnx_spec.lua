-- flow.onnx: networks that other systems have written, whose files are made here out of tables.
local flow = require "moonflow"
local models = require "onnx_models"

local np, tp = flow.np, flow.typing
local floats, whole, node, value = models.floats, models.whole, models.node, models.value
local write, job_of, result_of, raises, same =
  models.write, models.job_of, models.result_of, models.raises, models.same

local path
-- A field of a message of Protocol Buffers, and a file of bytes.
local function field(number, text)
  local length = #text < 128 and string.char(#text) or string.char(128 + #text % 128, math.floor(#text / 128))
  return string.char(number * 8 + 2) .. length .. text
end

local function write_bytes(file_path, bytes)
  local file = assert(io.open(file_path, "wb"))
  file:write(bytes)
  file:close()
end

before_each(function() path = models.begin() end)
after_each(models.finish)

-- y = x weight^T + bias
local function dense_model(opset)
  return write {
    opset = opset, shape = { "batch", 3 },
    weights = { ["fc/weight"] = floats { { 1, 2, 3 }, { 4, 5, 6 } }, ["fc/bias"] = floats { 10, 20 } },
    nodes = { node("Gemm", { "x", "fc/weight", "fc/bias" }, { "y" }, { transB = { i = 1 } }) },
  }
end
describe("a loaded model", function()
  it("may call the domain of ONNX by its name", function()
    -- y = Neg(x), with the opset 13 of the domain "ai.onnx"
    local text = "08083a320a0b0a017812017922034e65671201675a0f0a0178120a0a08080112040a020802620f0a0179120a0a0808011204"
      .. "0a020802420b0a0761692e6f6e6e78100d"
    write_bytes(path, (text:gsub("..", function(byte) return string.char(tonumber(byte, 16)) end)))
    assert.truthy(tostring(flow.onnx.load(path)):find("[opset 13,", 1, true), tostring(flow.onnx.load(path)))
  end)

  it("says what goes in and out, its opset, and how much it is", function()
    local model = flow.onnx.load(dense_model())
    local name = path:match("[^/]*$")
    assert.equal(name .. "(x: float32[batch,3]) -> y: float32  [opset 17, 1 node, 2 variables]", tostring(model))
    assert.equal("x", model.inputs[1].name)
    assert.same({ "batch", 3 }, model.inputs[1].shape)
    same({ 10, 20 }, model.variables["fc.bias"])
  end)

  it("is read from bytes as well", function()
    dense_model()
    local file = assert(io.open(path, "rb"))
    local bytes = file:read "*a"
    file:close()
    local model = flow.onnx.load_memory(bytes, #bytes, { name = "bytes" })  -- as love.filesystem.read gives them
    assert.truthy(tostring(model):find("(x: float32[batch,3]) -> y: float32  [opset 17, 1 node, 2 variables]", 1, true))
    same({ 10, 20 }, model.variables["bytes-fc.bias"])
    raises("this is no ONNX model but text: 'garbage'", function() flow.onnx.load_memory "garbage" end)
  end)

  it("takes a clip from 0 to 6 for the relu6 that it is", function()
    local model = flow.onnx.load(write {
      shape = { 4 }, weights = { least = np.array(0):astype("float32"), most = np.array(6):astype("float32") },
      nodes = { node("Clip", { "x", "least", "most" }, { "y" }) },
    })
    local job = job_of(model, { 4 })
    same({ 0, 0.5, 6, 6 }, job(floats { -1, 0.5, 6, 7 }))
    assert.truthy(job:summary():find(" relu6 ", 1, true))
  end)

  it("computes in a job, for the sizes of its placeholders", function()
    local model = flow.onnx.load(dense_model())
    same({ { 16, 35 } }, job_of(model, { 1, 3 })(np.ones({ 1, 3 }):astype("float32")))
    same({ { 16, 35 }, { 16, 35 } }, job_of(model, { 2, 3 })(np.ones({ 2, 3 }):astype("float32")))
  end)

  it("has variables with the values of the file, which a train job changes", function()
    local model = flow.onnx.load(dense_model(), { trainable = function(name) return name == "fc.bias" end })
    local train = flow.global_function {
      name = "train", type = "train", inputs = { x = tp.Numpy.Placeholder({ 1, 3 }) }, returns = tp.Numpy,
    } (function(x)
      local loss = flow.math.reduce_sum(model(x))
      flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler({}, { 0.5 })):minimize(loss)
      return loss
    end)
    train(np.ones({ 1, 3 }):astype("float32"))
    local values = flow.get_all_variables(false)
    same({ 9.5, 19.5 }, values["fc.bias"])
    same({ { 1, 2, 3 }, { 4, 5, 6 } }, values["fc.weight"])
    same({ 10, 20 }, model.variables["fc.bias"])
    flow.load_variables(model.variables)
    same({ 10, 20 }, flow.get_all_variables()["fc.bias"])
  end)

  it("keeps statistics, bounds and exponents, which have an axis as weights do", function()
    local model = flow.onnx.load(write {
      shape = { 1, 2, 1, 1 },
      weights = {
        one = floats { 1, 1 }, none = floats { 0, 0 }, least = floats { { { { -4 } } } }, power = floats { 3 },
        w = floats { { { { 2 } } } },
      },
      nodes = {
        node("BatchNormalization", { "x", "one", "none", "none", "one" }, { "a" }, { epsilon = { f = 0 } }),
        node("Max", { "a", "least" }, { "b" }), node("Mul", { "b", "w" }, { "c" }),
        node("Pow", { "c", "power" }, { "y" }),
      },
    })
    flow.global_function {
      name = "train", type = "train", inputs = { x = tp.Numpy.Placeholder { 1, 2, 1, 1 } }, returns = tp.Numpy,
    } (function(x)
      local loss = model(x)
      flow.optimizer.SGD(0.01):minimize(loss)
      return loss
    end)(floats { { { { 1 } }, { { -9 } } } })
    for name, array in pairs(flow.get_all_variables(false)) do
      assert.equal(name == "w", not np.array_equal(array, model.variables[name]), name)
    end
  end)

  it("has variables for the arrays of Constant nodes and of branches, but not for single numbers", function()
    local function constant(name, array) return node("Constant", {}, { name }, { value = { t = array } }) end
    local branch = { name = "", initializers = { { name = "shift", value = floats { 1, 2 } } }, inputs = {},
                     outputs = { value("moved") }, nodes = { node("Add", { "scaled", "shift" }, { "moved" }) } }
    local other = { name = "", initializers = {}, inputs = {}, outputs = { value("other") }, nodes = {
      constant("same", floats { 5, 5 }), node("Sub", { "scaled", "same" }, { "other" }) } }
    local model = flow.onnx.load(write {
      shape = { 2 }, weights = { yes = np.array(1):astype("int8") }, nodes = {
        constant("scale", floats { 3, 4 }), constant("half", floats { 0.5 }),
        node("Mul", { "x", "scale" }, { "scaled" }),
        node("If", { "yes" }, { "chosen" }, { then_branch = { g = branch }, else_branch = { g = other } }),
        node("Mul", { "chosen", "half" }, { "y" }),
      },
    })
    local names = {}
    for name in pairs(model.variables) do names[#names + 1] = name end
    table.sort(names)
    assert.same({ "same", "scale", "shift" }, names)
    local job = job_of(model, { 2 })
    same({ 2, 5 }, job(floats { 1, 2 }))
    flow.load_variables { shift = floats { 5, 0 } }
    same({ 4, 4 }, job(floats { 1, 2 }))
  end)

  it("computes float16 in float32 on a processor, and gives what the file says", function()
    local model = flow.onnx.load(write {
      inputs = { value("x", { 1, 2 }, "float16") }, outputs = { value("y", nil, "float16") },
      weights = { w = floats({ { 1 }, { 2 } }):astype("float16"), b = floats({ 0.5 }):astype("float16") },
      nodes = {
        node("MatMul", { "x", "w" }, { "product" }), node("Cast", { "product" }, { "same" }, { to = { i = 10 } }),
        node("Add", { "same", "b" }, { "y" }),
      },
    })
    assert.equal("float16", model.variables.w.dtype)
    local job = job_of(model, { 1, 2 }, "float16")
    local y = job(floats { { 1, 2 } }:astype("float16"))
    assert.equal("float16", y.dtype)
    same({ { 5.5 } }, y)
    local on_gpu = os.getenv("MOONFLOW_TEST_PLACEMENT") == "gpu"
    assert.equal(on_gpu and "float16" or "float32", job:summary():match("MatMul%s+matmul%s+(%S+)"))
  end)

  it("shares its variables with other jobs that call it, and with other calls", function()
    local model = flow.onnx.load(dense_model())
    local twice = flow.global_function {
      name = "twice", inputs = { x = tp.Numpy.Placeholder({ 1, 3 }) }, returns = tp.Numpy,
    } (function(x) return model(x) + model(x) end)
    same({ { 32, 70 } }, twice(np.ones({ 1, 3 }):astype("float32")))
    job_of(model, { 1, 3 })
    local count = 0
    for _ in pairs(flow.get_all_variables()) do count = count + 1 end
    assert.equal(2, count)
  end)

  it("keeps the values that its variables have when the file has changed, and says so", function()
    job_of(flow.onnx.load(dense_model()), { 1, 3 })(floats { { 0, 0, 0 } })
    local said = {}
    flow.config.log(function(text) said[#said + 1] = text end)
    write {
      shape = { 1, 3 },
      weights = { ["fc/weight"] = floats { { 0, 0, 0 }, { 0, 0, 0 } }, ["fc/bias"] = floats { 7, 8 } },
      nodes = { node("Gemm", { "x", "fc/weight", "fc/bias" }, { "y" }, { transB = { i = 1 } }) },
    }
    local model = flow.onnx.load(path)
    local job = job_of(model, { 1, 3 })
    flow.config.log(nil)
    assert.equal(1, #said)
    assert.truthy(said[1]:find("has changed since it was loaded before", 1, true))
    same({ { 10, 20 } }, job(floats { { 0, 0, 0 } }))
    flow.load_variables(model.variables)
    same({ { 7, 8 } }, job(floats { { 0, 0, 0 } }))
  end)

  it("tells once of a scale that several norms have and a train job moves, as exporters merge those that are equal",
    function()
      write {
        shape = { 2, 3 },
        weights = { one = floats { 1, 1, 1 }, none = floats { 0, 0, 0 } },
        nodes = { node("Identity", { "one" }, { "two" }), node("LayerNormalization", { "x", "one", "none" }, { "a" }),
                  node("LayerNormalization", { "a", "two" }, { "y" }) },
      }
      local said = {}
      flow.config.log(function(text) said[#said + 1] = text end)
      local model, frozen = flow.onnx.load(path), flow.onnx.load(path, { trainable = false })
      job_of(model, { 2, 3 })(floats { { 1, 2, 3 }, { 4, 5, 7 } })
      for i, one in ipairs { frozen, model, model } do
        flow.global_function {
          type = "train", name = "train" .. i, inputs = { x = tp.Numpy.Placeholder { 2, 3 } }, returns = tp.Numpy,
        } (function(x)
          local loss = flow.layers.dense(one(x), 1, { name = "head" }) ^ 2
          flow.optimizer.SGD(0.1):minimize(loss)
          return loss
        end)
        assert.equal(i == 1 and 0 or 1, #said, table.concat(said, "\n"))
      end
      flow.config.log(nil)
      assert.truthy(said[1]:find(" has one 'one' for 2 norms, which are trained as one; exporters merge weights that "
        .. "are equal, as those of an untrained net are", 1, true), said[1])
    end)

  it("tells of a scale that is a statistic too, and trains neither", function()
    for _, name in ipairs { "one", "two" } do
      flow.clear_default_session()
      write {
        shape = { 2, 3 }, weights = { one = floats { 1, 1, 1 }, none = floats { 0, 0, 0 } },
        nodes = { node("Identity", { "one" }, { "two" }),
                  node("BatchNormalization", { "x", "one", "none", "none", name }, { "y" }) },
      }
      local said = {}
      flow.config.log(function(text) said[#said + 1] = text end)
      local model = flow.onnx.load(path)
      local job = flow.global_function {
        type = "train", inputs = { x = tp.Numpy.Placeholder { 2, 3 } }, returns = tp.Numpy,
      } (function(x)
        local loss = flow.layers.dense(model(x), 1, { name = "head" }) ^ 2
        flow.optimizer.SGD(0.1):minimize(loss)
        return loss
      end)
      job(floats { { 1, 2, 3 }, { 4, 5, 7 } })
      flow.config.log(nil)
      assert.equal(1, #said, table.concat(said, "\n"))
      assert.truthy(said[1]:find(" for scales or shifts of norms and for their statistics, which are not trained; ", 1,
        true), said[1])
      same({ 1, 1, 1 }, flow.get_all_variables().one)
    end
  end)

  it("puts its own name before those of its variables", function()
    local model = flow.onnx.load(dense_model(), { name = "policy" })
    job_of(model, { 1, 3 })
    assert.is_truthy(model.variables["policy-fc.weight"])
    assert.is_truthy(flow.get_all_variables()["policy-fc.weight"])
  end)

  it("refuses a variable of another's", function()
    local model = flow.onnx.load(dense_model())
    flow.global_function { name = "other", inputs = {}, returns = tp.Numpy } (function()
      return flow.get_variable("fc.bias", { shape = { 2 }, initializer = flow.zeros_initializer() })
    end)
    raises("give the model a name of its own", function() job_of(model, { 1, 3 }) end)
  end)

  it("takes inputs by name, and says which there are", function()
    local model = flow.onnx.load(write {
      inputs = { value("left", { 2 }), value("right", { 2 }) }, nodes = { node("Sub", { "left", "right" }, { "y" }) },
    })
    local job = flow.global_function {
      name = "job", inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Numpy,
    } (function(x)
      raises("has no input 'lef'; did you mean 'left'?", function() model { lef = x, right = x } end)
      raises("takes 2 inputs (left: float32[2], right: float32[2]), got 1", function() model(x) end)
      raises("input 'right' must be a blob, got nil", function() model { left = x } end)
      return model { right = x, left = flow.math.multiply(x, x) }
    end)
    same({ 2, 6 }, job(floats { 2, 3 }))
    raises("outside of a job function", function() model(1, 2) end)
  end)

  it("refuses another dtype or shape than the file has", function()
    local model = flow.onnx.load(dense_model())
    raises("input 'x' is float32, got float64", function() job_of(model, { 1, 3 }, "float64") end)
    raises("wants x: float32[batch,3], got (1, 4)", function() job_of(model, { 1, 4 }) end)
  end)

  it("leaves nothing of shape arithmetic in the job", function()
    local model = flow.onnx.load(write {
      shape = { "batch", 2, 3 }, weights = { zero = whole(0), rest = whole { -1 } },
      nodes = {
        node("Shape", { "x" }, { "shape" }), node("Gather", { "shape", "zero" }, { "batch" }),
        node("Constant", {}, { "axes" }, { value_ints = { ints = { 0 } } }),
        node("Unsqueeze", { "batch", "axes" }, { "first" }),
        node("Concat", { "first", "rest" }, { "wanted" }, { axis = { i = 0 } }),
        node("Reshape", { "x", "wanted" }, { "y" }),
      },
    })
    local job = job_of(model, { 4, 2, 3 })
    assert.equal("job(x: float32[4,2,3]) -> Numpy  [predict, 1 op]", tostring(job))
    assert.same({ 4, 6 }, job(np.ones({ 4, 2, 3 }):astype("float32")).shape:table())
  end)

  -- TensorFlow's exporter writes the ends of slices so, for opsets whose Max takes floats alone.
  it("knows sizes that weights have a part in", function()
    local model = flow.onnx.load(write {
      shape = { "rows", 4 },
      weights = { most = floats { 1e9, 2 }, start = whole { 0, 0 }, axes = whole { 0, 1 }, scale = floats { 1, 2 } },
      nodes = {
        node("Shape", { "x" }, { "shape" }), node("Cast", { "shape" }, { "sizes" }, { to = { i = 1 } }),
        node("Min", { "sizes", "most" }, { "cut" }), node("Cast", { "cut" }, { "ends" }, { to = { i = 7 } }),
        node("Slice", { "x", "start", "ends", "axes" }, { "part" }), node("Mul", { "part", "scale" }, { "y" }),
      },
    })
    same({ { 1, 4 }, { 5, 12 } }, job_of(model, { 2, 4 })(floats { { 1, 2, 3, 4 }, { 5, 6, 7, 8 } }))
  end)

  -- y = x + w where x has one row, which is its first size compared with 1; else what `other` says.
  local function choosing(other, condition)
    local function graph(nodes)
      return { g = { name = "", nodes = nodes, initializers = {}, inputs = {}, outputs = { value("made") } } }
    end
    return write {
      shape = { "rows", 2 }, weights = { w = floats { 10, 20 }, first = whole(0), one = whole(1), nought = floats(0) },
      nodes = {
        node("Shape", { "x" }, { "shape" }), node("Gather", { "shape", "first" }, { "rows" }),
        node("Equal", { "rows", "one" }, { "is_one" }),
        node("ReduceMax", { "x" }, { "most" }, { keepdims = { i = 0 } }),
        node("Greater", { "most", "nought" }, { "is_some" }),
        node("If", { condition or "is_one" }, { "y" }, {
          then_branch = graph { node("Add", { "x", "w" }, { "made" }) }, else_branch = graph(other),
        }),
      },
    }
  end

  it("takes the branch that shapes decide about", function()
    local model = flow.onnx.load(choosing {
      node("Constant", {}, { "factor" }, { value_float = { f = 3 } }), node("Mul", { "x", "factor" }, { "made" }),
    })
    local job = job_of(model, { 1, 2 })
    assert.equal("job(x: float32[1,2]) -> Numpy  [predict, 1 op]", tostring(job))
    same({ { 11, 22 } }, job(floats { { 1, 2 } }))
    same({ { 3, 6 }, { 9, 12 } }, job_of(model, { 2, 2 })(floats { { 1, 2 }, { 3, 4 } }))
  end)

  it("chooses in a run between branches of one shape", function()
    local job = job_of(flow.onnx.load(choosing({ node("Neg", { "x" }, { "made" }) }, "is_some")), { 2, 2 })
    same({ { 11, 22 }, { 13, 24 } }, job(floats { { 1, 2 }, { 3, 4 } }))
    same({ { 1, 2 }, { 3, 0 } }, job(floats { { -1, -2 }, { -3, 0 } }))
  end)

  it("says what is wrong with a branch by its node", function()
    raises("BitShift (node '/BitShift')", function()
      flow.onnx.load(choosing { node("BitShift", { "x" }, { "made" }) })
    end)
    raises("branches of one shape, and these give float32 (3, 2) and float32 (2, 3)", function()
      job_of(flow.onnx.load(choosing({ node("Transpose", { "x" }, { "made" }) }, "is_some")), { 3, 2 })
    end)
    raises("matmul 'MatMul': inner sizes differ", function()
      job_of(flow.onnx.load(choosing({ node("MatMul", { "x", "x" }, { "made" }) }, "is_some")), { 3, 2 })
    end)
    local endless = { name = "", initializers = {}, inputs = {}, outputs = {} }
    endless.nodes = { node("If", { "x" }, { "y" }, { then_branch = { g = endless } }) }
    raises("attribute 'then_branch' is a graph, in more than 8 others", function()
      write { shape = { 1 }, nodes = endless.nodes }
    end)
  end)

  it("takes an array where its values decide about shapes", function()
    local model = flow.onnx.load(write {
      inputs = { value("x", { 2 }), value("shape", { "rank" }, "int64") },
      nodes = { node("Expand", { "x", "shape" }, { "y" }) },
    })
    local function job(shape)
      return flow.global_function {
        name = "job", inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Numpy,
      } (function(x) return model(x, shape(x)) end)
    end
    same({ { 1, 2 }, { 1, 2 } }, job(function() return whole { 2, 1 } end)(floats { 1, 2 }))
    raises("input 2, 'shape', is computed in each run, and must be known when the job is traced; it follows from the "
      .. "values of input 'shape': give it as an ndarray", function()
      job(function(x) return flow.cast(x, "int64") end)
    end)
  end)

  it("names what a value in a branch follows from, by the node in it alone", function()
    local function branch(output, ...)
      return { g = { name = "", nodes = { ... }, initializers = {}, inputs = {}, outputs = { value(output) } } }
    end
    local model = flow.onnx.load(write {
      inputs = { value("x", { 2 }), value("a", { 2 }, "int64"), value("b", { 2 }, "int64") },
      weights = { yes = whole(1) },
      nodes = { node("If", { "yes" }, { "y" }, {
        else_branch = branch("made", node("Neg", { "x" }, { "made" })),
        then_branch = branch("made",
          node("If", { "yes" }, { "size" }, { then_branch = branch("own", node("Abs", { "b" }, { "own" })) }),
          node("Expand", { "x", "size" }, { "made" })),
      }) },
    })
    local fine, problem = pcall(flow.global_function, {
      name = "job", inputs = { x = tp.Numpy.Placeholder({ 2 }) },
    }, function(x)
      local size = flow.cast(x, "int64")
      return model(x, size, size)
    end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("node '/Expand' (Expand): input 2, 'size', is computed in each run, and must "
      .. "be known when the job is traced; it follows from the values of input 'b': give it as an ndarray", 1, true),
      tostring(problem))
    assert.falsy(tostring(problem):find("(If)", 1, true))
  end)

  it("names the inputs that a value follows from, and no others", function()
    local model = flow.onnx.load(write {
      inputs = { value("x", { 2 }), value("a", { 2 }, "int64"), value("b", { 2 }, "int64"), value("c", { 2 }) },
      weights = { w = whole { 1, 1 } },
      nodes = {
        node("Shape", { "c" }, { "size" }), node("Mul", { "a", "b" }, { "ab" }), node("Add", { "ab", "w" }, { "sum" }),
        node("Mul", { "sum", "size" }, { "shape" }), node("Expand", { "x", "shape" }, { "y" }),
      },
    })
    raises("it follows from the values of input 'a', 'b': give", function()
      flow.global_function {
        name = "job", inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Numpy,
      } (function(x) return model(x, flow.cast(x, "int64"), flow.cast(x, "int64"), x) end)
    end)
  end)

  it("gives other values of its graph in place of its outputs, and takes what they need", function()
    local file = write {
      inputs = { value("x", { 2 }), value("size", { 1 }) }, weights = { w = floats { 2, 3 } },
      nodes = {
        node("Mul", { "x", "w" }, { "scaled" }), node("Neg", { "scaled" }, { "less" }),
        node("Mul", { "less", "size" }, { "boxes" }), node("Picking", { "boxes" }, { "y" }),
      },
    }
    raises("takes values from before it, 'boxes', for a script to go on with", function() flow.onnx.load(file) end)
    local model = flow.onnx.load(file, { outputs = { "less", "scaled" } })
    assert.truthy(tostring(model):find("(x: float32[2]) -> less: ?, scaled: ?", 1, true), tostring(model))
    local job = flow.global_function {
      name = "job", inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Tuple { tp.Numpy, tp.Numpy },
    } (function(x) return model(x) end)
    local less, scaled = job(floats { 1, 2 })
    same({ -2, -6 }, less)
    same({ 2, 6 }, scaled)
    local function choose(...) flow.onnx.load(file, { outputs = { ... } }) end
    raises("has no value 'scale'; did you mean 'scaled'?", function() choose("scale") end)
    raises("no value 'features'; loaded without outputs, its model:summary() names them", function()
      choose("features")
    end)
    raises("argument 4 ('outputs') must name a value or more", function() choose() end)
  end)

  it("begins behind an operator that there is not, at values that it is given", function()
    local file = write {
      inputs = { value("x", { 2 }), value("size", { 2 }) }, weights = { w = floats { 2, 3 } },
      nodes = {
        node("Mul", { "x", "w" }, { "scaled" }), node("Picking", { "scaled", "size" }, { "picked" }),
        node("Split", { "picked" }, { "one", "other" }), node("Add", { "one", "other" }, { "sum" }),
        node("Mul", { "sum", "size" }, { "y" }),
      },
    }
    local function given(inputs, ...)
      local model = flow.onnx.load(file, { inputs = inputs })
      local arrays, list = { ... }, {}
      for i, array in ipairs(arrays) do list[i] = array end
      return flow.global_function { name = "job", inputs = {}, returns = tp.Numpy } (function()
        return model(unpack(list))
      end)()
    end
    same({ 30, 60 }, given({ "size", "picked" }, floats { 10, 20 }, floats { 1, 2 }))
    same({ 110, 220 }, given({ "size", "picked", "other" }, floats { 10, 20 }, floats { 1, 2 }, floats { 10 }))
    same({ 110, 110 }, given({ "one", "other", "size" }, floats { 1 }, floats { 10 }, floats { 10, 10 }))
    local model = flow.onnx.load(file, { inputs = { "picked" }, outputs = { "sum" } })
    assert.equal("(picked: ?) -> sum: ?  [opset 17, 2 nodes, 0 variables]", tostring(model):match("%(.*"))
    raises("has no value 'pick'; did you mean 'picked'?", function() given { "pick" } end)
    raises("without 'size' the outputs cannot be computed, so inputs must name it too", function()
      given { "picked" }
    end)
    raises("argument 5 ('inputs') must name a value or more", function() given {} end)
  end)

  it("names its values with their operators, and with the shapes of its last job", function()
    local model = flow.onnx.load(write {
      shape = { "rows", 2 }, weights = { w = floats { 2, 3 } },
      nodes = {
        node("Constant", {}, { "one" }, { value_float = { f = 1 } }), node("Mul", { "x", "w" }, { "scaled" }),
        node("Shape", { "scaled" }, { "shape" }), node("Add", { "scaled", "one" }, { "moved" }),
        node("Reshape", { "moved", "shape" }, { "y" }),
      },
    })
    local function has(...)
      local text = model:summary()
      for _, line in ipairs { ... } do assert.truthy(text:find(line, 1, true), text) end
    end
    has("x: float32[rows,2]", "  scaled  Mul                        2\n", "  shape   Shape\n",
      "parameters: 2; shapes are known once a job has called it")
    job_of(model, { 5, 2 })
    has("  scaled  Mul       float32 (5, 2)           2\n", "  y       Reshape   float32 (5, 2)\n")
    assert.falsy(model:summary():find("  shape ", 1, true))
    assert.falsy(model:summary():find("  one ", 1, true))
  end)
end)

it("lists the operators there are, as the recipe does", function()
  local file = assert(io.open(os.getenv("MOONFLOW_SOURCE") .. "/docs/onnx.md"))
  local block = file:read("*a"):match("These operators are read[^\n]*\n\n```\n(.-)```")
  file:close()
  local listed = {}
  for name in block:gmatch("%S+") do listed[#listed + 1] = name end
  assert.same(flow.onnx.operators(), listed)
end)

describe("what is refused", function()
  it("is an operator that there is not, by its node, with all others like it", function()
    write { shape = { 2 }, nodes = { node("BitShift", { "x" }, { "d" }), node("Unique", { "d" }, { "y" }) } }
    raises("of opset 17, uses what is not supported: BitShift (node '/BitShift'), Unique (node '/Unique'); "
      .. "flow.onnx.operators() lists what is", function() flow.onnx.load(path) end)
  end)

  it("is an attribute that nobody here asks for, since it may mean anything", function()
    raises("node '/Relu' (Relu): attribute 'slope' is not supported", function()
      result_of(floats { 1 }, { nodes = { node("Relu", { "x" }, { "y" }, { slope = { f = 1 } }) } })
    end)
  end)

  it("is what an op of ours does not take, by the node that it is of", function()
    raises("node '/Softmax' (Softmax): softmax 'Softmax': ", function()
      result_of(whole { 1, 2 }, { nodes = { node("Softmax", { "x" }, { "y" }) } })
    end)
  end)

  it("is a type of elements that there is not here, by its name", function()
    local function cast_to(number)
      return result_of(floats { 0.5, 0 }, { nodes = { node("Cast", { "x" }, { "y" }, { to = { i = number } }) } })
    end
    same({ 1, 0 }, cast_to(9))
    raises("node '/Cast' (Cast): to is uint16, which there is none of here", function() cast_to(4) end)
    raises("to is float8e4m3fn, which", function() cast_to(17) end)
    raises("to is the type of number 99, which", function() cast_to(99) end)
  end)

  it("is a batch norm that trains", function()
    raises("export the model in its eval mode", function()
      local c = floats { 1 }
      result_of(floats { { 1 } }, {
        weights = { c = c },
        nodes = { node("BatchNormalization", { "x", "c", "c", "c", "c" }, { "y" }, { training_mode = { i = 1 } }) },
      })
    end)
  end)

  it("is an opset of other times", function()
    dense_model(3)
    raises("is of opset 3, and those from 6 to", function() flow.onnx.load(path) end)
    local function of_one_node(domain)  -- y = Neg(x)
      local operator = field(1, "x") .. field(2, "y") .. field(4, "Neg") .. field(7, domain)
      write_bytes(path, field(8, field(1, "ai.onnx.ml") .. "\16\3")
        .. field(7, field(1, operator) .. field(11, field(1, "x")) .. field(12, field(1, "y"))))
    end
    of_one_node ""
    raises("is of opset 0, and those from 6 to", function() flow.onnx.load(path) end)
    of_one_node "ai.onnx.ml"  -- whose operators have opsets of their own
    raises("uses what is not supported: ai.onnx.ml.Neg (node 'y')", function() flow.onnx.load(path) end)
  end)

  it("is data outside of the model's folder", function()
    -- A tensor "w" whose data lies in "../x", in a graph that has y = w.
    local tensor = "\8\1\16\1" .. field(8, "w") .. field(13, field(1, "location") .. field(2, "../x")) .. "\112\1"
    write_bytes(path, field(8, "\16\17") .. field(7, field(5, tensor) .. field(12, field(1, "w"))))
    raises("keeps its data in '../x'; only files in the model's folder are read", function() flow.onnx.load(path) end)
  end)

  it("is a small file that is the data of many tensors", function()
    local function load_with(count)
      local tensors = {}
      for i = 1, count do
        tensors[i] = field(5, "\8\2\16\1" .. field(8, "w" .. i)
          .. field(13, field(1, "location") .. field(2, path:match("[^/]*$") .. ".data")) .. "\112\1")
      end
      write_bytes(path, field(8, "\16\17") .. field(7, table.concat(tensors) .. field(12, field(1, "w1"))))
      return flow.onnx.load(path)
    end
    write_bytes(path .. ".data", "\0\0\128\63\0\0\0\64")
    load_with(8)
    raises("has 8 bytes, of which 72 or more are to be made", function() load_with(9) end)
  end)
end)

it("reads data that lies in a file beside the model", function()
  local name = path:match("[^/]*$") .. ".data"
  local entries = field(13, field(1, "location") .. field(2, name)) .. field(13, field(1, "offset") .. field(2, "4"))
  local tensor = "\8\2\16\1" .. field(8, "w") .. entries .. "\112\1"
  local graph = field(11, field(1, "x")) .. field(5, tensor) .. field(12, field(1, "y"))
    .. field(1, field(1, "x") .. field(1, "w") .. field(2, "y") .. field(4, "Add"))
  write_bytes(path, field(8, "\16\17") .. field(7, graph))
  write_bytes(path .. ".data", "????" .. "\0\0\128\63" .. "\0\0\0\64")
  same({ 11, 22 }, job_of(flow.onnx.load(path), { 2 })(floats { 10, 20 }))
  write_bytes(path .. ".data", "????")
  raises("has 4 bytes, and the model wants 8 from byte 4 on", function() flow.onnx.load(path) end)
end)
