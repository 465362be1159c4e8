-- What ONNX Runtime's optimizers put in the place of several operators of ONNX.
local flow = require "moonflow"
local models = require "onnx_models"

local np, tp = flow.np, flow.typing
local floats, value, raises, same = models.floats, models.value, models.raises, models.same

before_each(models.begin)
after_each(models.finish)

local function own(op, inputs, outputs, attributes)
  local node = models.node(op, inputs, outputs, attributes)
  node.domain = "com.microsoft"
  return node
end

-- What a node gives for the arrays of a list { { "x", array }... }, those of `weights` being the model's.
local function given(node, inputs, weights)
  local file, placeholders, names, arrays = {}, {}, {}, {}
  for i, input in ipairs(inputs) do
    file[i] = value(input[1], input[2].shape:table(), input[2].dtype)
    placeholders[i] = { input[1], tp.Numpy.Placeholder(input[2].shape:table(), { dtype = input[2].dtype }) }
    names[i], arrays[i] = input[1], input[2]
  end
  local outputs, returns = {}, {}
  for _, name in ipairs(node.outputs) do
    if name ~= "" then
      outputs[#outputs + 1] = value(name)
      returns[#outputs] = tp.Numpy
    end
  end
  flow.clear_default_session()
  local model = flow.onnx.load(models.write { inputs = file, outputs = outputs, weights = weights, nodes = { node } })
  local body = loadstring(("local model = ...; return function(%s) return model(%s) end"):format(
    table.concat(names, ", "), table.concat(names, ", ")))(model)
  local job = flow.global_function { name = "job", inputs = placeholders, returns = tp.Tuple(returns) } (body)
  return job(unpack(arrays))
end

local function near(wanted, array)
  assert.same(wanted.shape:table(), array.shape:table())
  assert.is_true(np.abs(wanted - array):max() < 1e-5, tostring(array))
end

np.random.seed(1)
local function normal(...) return np.random.normal(0, 1, { ... }):astype("float32") end

describe("a model that has been optimized", function()
  it("adds and norms at once, and gives the sum too", function()
    local y, sum = given(own("SkipLayerNormalization", { "x", "skip", "gamma", "", "bias" }, { "y", "", "", "sum" }),
      { { "x", floats { { 1, 2 } } }, { "skip", floats { { 0, 3 } } } },
      { gamma = floats { 2, 2 }, bias = floats { 1, 1 } })
    same({ { 2, 6 } }, sum)
    near(floats { { -2, 2 } }, y)
    y = given(own("SkipSimplifiedLayerNormalization", { "x", "skip", "gamma" }, { "y" }),
      { { "x", floats { { 1, 0 } } }, { "skip", floats { { 6, 1 } } } }, { gamma = floats { 5, 10 } })
    near(floats { { 7, 2 } }, y)
  end)

  it("multiplies what is turned and scaled", function()
    same({ { 5.5 } }, (given(own("FusedMatMul", { "x", "w" }, { "y" }, { transB = { i = 1 }, alpha = { f = 0.5 } }),
      { { "x", floats { { 1, 2 } } } }, { w = floats { { 3, 4 } } })))
  end)

  it("multiplies what has its rows before its batch", function()
    local x, w = normal(3, 2, 4), normal(4, 5)
    local wanted = given(models.node("MatMul", { "x", "w" }, { "y" }), { { "x", x:transpose { 1, 0, 2 } }, { "w", w } })
    near(wanted, (given(own("FusedMatMul", { "x", "w" }, { "y" }, { transBatchA = { i = 1 } }),
      { { "x", x }, { "w", w } })))
  end)

  it("convolves, with an activation behind it", function()
    local function activated(name, parameters)
      return (given(own("FusedConv", { "x", "w", "b" }, { "y" }, {
        activation = { s = name }, activation_params = parameters and { floats = parameters },
      }), { { "x", floats { { { { 2, -2 } } } } } }, { w = floats { { { { 2 } } } }, b = floats { 1 } }))
    end
    same({ { { { 5, 0 } } } }, activated "Relu")
    same({ { { { 3, -1 } } } }, activated("Clip", { -1, 3 }))
    same({ { { { 5, -1.5 } } } }, activated("LeakyRelu", { 0.5 }))
    same({ { { { 1, 0.25 } } } }, activated("HardSigmoid", { 0.125, 0.625 }))
    raises("activation = Tan is not supported", function() activated "Tan" end)
  end)

  it("multiplies, with an activation behind it", function()
    local function activated(attributes)
      return (given(own("FusedGemm", { "x", "w", "b" }, { "y" }, attributes), { { "x", floats { { 2, -2 } } } },
        { w = floats { { 1, 0 }, { 0, 1 } }, b = floats { 1, 1 } }))
    end
    same({ { 3, 0 } }, activated { activation = { s = "Relu" } })
    same({ { 3, -0.5 } }, activated { activation = { s = "LeakyRelu" }, activation_alpha = { f = 0.5 } })
    same({ { 5, -3 } }, activated { alpha = { f = 2 } })
  end)

  it("has weights of 4 bits, the lower ones of a byte first", function()
    local bytes = np.array { { { 0x98, 0x7a } }, { { 0x88, 0x8f } } }:astype("uint8")
    local function product(inputs, more)
      return (given(own("MatMulNBits", inputs, { "y" }, { N = { i = 2 }, K = { i = 3 }, block_size = { i = 4 } }),
        { { "x", floats { { 1, 10, 100 } } } }, { b = bytes, s = floats { 0.5, 2 }, more = more }))
    end
    same({ { 105, 1400 } }, product({ "x", "b", "s" }))  -- rows (0, 1, 2) and (0, 0, 7)
    same({ { 49.5, 1622 } }, product({ "x", "b", "s", "more" }, np.array { { 9 }, { 7 } }:astype("uint8")))
    raises("g_idx, is not supported", function()
      product({ "x", "b", "s", "", "more" }, np.zeros({ 3 }):astype("int32"))  -- the block of each column
    end)
  end)

  it("have weights of few bits of sizes that the file says", function()
    local sizes = { N = { i = 2 }, K = { i = 3 }, block_size = { i = 4 } }
    local function product()
      given(own("MatMulNBits", { "x", "b", "s" }, { "y" }, sizes), { { "x", floats { { 1, 10, 100 } } } },
        { b = np.zeros({ 2, 1, 2 }):astype("uint8"), s = floats { 0.5, 2 } })
    end
    for _, name in ipairs { "N", "K", "block_size" } do
      local known = sizes[name]
      sizes[name] = nil
      raises("it has no " .. name, product)
      sizes[name] = { i = 0 }
      raises(name .. " is 0, wanted 1 or more", product)
      sizes[name] = known
    end
  end)

  it("attends as the operators do that it stands for, behind the keys of earlier calls", function()
    local query, key, other = normal(1, 2, 16), normal(1, 2, 8), normal(1, 2, 8)
    local past, past_value, rows = normal(1, 2, 3, 4), normal(1, 2, 3, 4), normal(24)
    local inputs = { { "q", query }, { "k", key }, { "v", other }, { "p", past }, { "pv", past_value } }
    local y, keys = given(own("GroupQueryAttention", { "q", "k", "v", "p", "pv", "", "" }, { "y", "keys", "values" },
      { num_heads = { i = 4 }, kv_num_heads = { i = 2 } }), inputs)
    local plain = models.node("Attention", { "q", "k", "v", "", "p", "pv" }, { "y", "keys", "values" },
      { q_num_heads = { i = 4 }, kv_num_heads = { i = 2 }, is_causal = { i = 1 } })
    local wanted, wanted_keys = given(plain, inputs)
    near(wanted, y)
    near(wanted_keys, keys)

    inputs = { { "q", key }, { "k", other }, { "v", other } }
    y = given(own("MultiHeadAttention", { "q", "k", "v", "b" }, { "y" }, { num_heads = { i = 2 } }), inputs,
      { b = rows })
    plain = models.node("Attention", { "q", "k", "v" }, { "y" }, { q_num_heads = { i = 2 }, kv_num_heads = { i = 2 } })
    near(given(plain, { { "q", key + rows:slice("0:8") }, { "k", other + rows:slice("8:16") },
      { "v", other + rows:slice("16:24") } }), y)
    raises("a batch of 2 is not supported, whose sequences may differ in length", function()
      given(own("GroupQueryAttention", { "q", "q", "q" }, { "y" }, { num_heads = { i = 2 }, kv_num_heads = { i = 2 } }),
        { { "q", normal(2, 1, 8) } })
    end)
  end)

  it("makes queries, keys and values at once, and leaves out what a mask or a length does", function()
    local x, past = normal(1, 2, 4), normal(2, 1, 2, 3, 2)
    local weights = { w = normal(4, 12), b = normal(12), count = np.array { 4 }:astype("int32") }
    local function attended(inputs, more)
      return given(own("Attention", inputs, { "y", "present" }, { num_heads = { i = 2 } }), more, weights)
    end
    local inputs = { { "x", x }, { "p", past } }
    local mask = { "m", np.array { { 1, 1, 1, 1, 0 } }:astype("int32") }
    local y, present = attended({ "x", "w", "b", "m", "p" }, { inputs[1], inputs[2], mask })
    near(y, (attended({ "x", "w", "b", "count", "p" }, inputs)))  -- four keys of five are there
    assert.same({ 2, 1, 2, 5, 2 }, present.shape:table())
    near(past, present:slice(":, :, :, 0:3"))

    local rows = np.matmul(x, weights.w) + weights.b
    local function part(from, to) return rows:slice((":, :, %d:%d"):format(from, to)):copy() end
    local bias = np.array { { { { 0, 0, 0, 0, -1e9 }, { 0, 0, 0, 0, -1e9 } } } }:astype("float32")
    local plain = own("MultiHeadAttention", { "q", "k", "v", "", "", "bias", "pk", "pv" }, { "y" },
      { num_heads = { i = 2 } })
    near(y, (given(plain, { { "q", part(0, 4) }, { "k", part(4, 8) }, { "v", part(8, 12) }, { "bias", bias },
      { "pk", past:slice("0"):copy() }, { "pv", past:slice("1"):copy() } })))
  end)

  it("embeds words, places and kinds at once", function()
    local function whole(list) return np.array(list):astype("int32") end
    near(floats { { { -1, 1 }, { 1, -1 } } }, (given(own("EmbedLayerNormalization", { "ids", "kinds", "w", "p", "k",
      "g", "b" }, { "y", "" }), { { "ids", whole { { 1, 0 } } }, { "kinds", whole { { 0, 1 } } } }, {
        w = floats { { 1, 0 }, { 0, 1 } }, p = floats { { 0, 5 }, { 5, 0 } }, k = floats { { 0, 9 }, { 9, 0 } },
        g = floats { 1, 1 }, b = floats { 0, 0 },
      })))
  end)

  it("turns heads from a place on", function()
    local cos, sin = floats { { 9 }, { 0 }, { 1 } }, floats { { 9 }, { 1 }, { 0 } }
    near(floats { { { -2, 1 }, { 3, 4 } } }, (given(own("RotaryEmbedding", { "x", "at", "cos", "sin" }, { "y" },
      { num_heads = { i = 1 } }), { { "x", floats { { { 1, 2 }, { 3, 4 } } } } },
      { cos = cos, sin = sin, at = models.whole { 1 } })))
  end)
end)
