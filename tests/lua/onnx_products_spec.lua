-- Products and convolutions of quantised models in ONNX files, in bytes. Each is computed in floats too, which have all
-- of these sums.
local core = require "moonflow.core"
local flow = require "moonflow"
local models = require "onnx_models"

local np, tp = flow.np, flow.typing
local node, write, same = models.node, models.write, models.same

local on_gpu = os.getenv("MOONFLOW_TEST_PLACEMENT") == "gpu"  -- where all is computed in floats
local multiplies_bytes = core.multiplies_bytes

before_each(models.begin)
after_each(function()
  core.multiplies_bytes = multiplies_bytes
  models.finish()
end)

local function floats(array) return array:astype("float32") end
local function number(x, dtype) return np.array(x):astype(dtype or "float32") end

local function spread_bytes(shape, dtype, step)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  return ((np.arange(count):astype("int64") * step) % 256):astype(dtype):reshape(shape)
end

local function own(name, inputs, attributes)
  local made = node(name, inputs, { "y" }, attributes)
  made.domain = "com.microsoft"
  return made
end

-- What the job of a file gives for `inputs` (arrays by name), its plan, and what the file gives that it is written to.
local function computed(file, inputs, is_in_bytes_there)
  flow.clear_default_session()
  core.multiplies_bytes = function() return is_in_bytes_there end
  file.inputs = {}
  local types, names = {}, {}
  for name in pairs(inputs) do names[#names + 1] = name end
  table.sort(names)
  local called_so = { "first", "second", "third" }
  for i, name in ipairs(names) do
    local array = inputs[name]
    file.inputs[i] = models.value(name, array.shape:table(), array.dtype)
    types[i] = { called_so[i], tp.Numpy.Placeholder(array.shape:table(), { dtype = array.dtype }) }
  end
  local model = flow.onnx.load(write(file))
  local called = function(...)
    local values = {}
    for i, name in ipairs(names) do values[name] = select(i, ...) end
    return (model(values))
  end
  local bodies = {
    function(first) return called(first) end, function(first, second) return called(first, second) end,
    function(first, second, third) return called(first, second, third) end,
  }
  local job = flow.global_function { inputs = types, returns = tp.Numpy } (bodies[#names])
  local arrays = {}
  for i, name in ipairs(names) do arrays[i] = inputs[name] end
  local y, plan = job(unpack(arrays)), job:summary { plan = true }
  local path = os.tmpname()
  job:export_onnx(path)
  local copy = flow.onnx.load(path, { name = "again" })
  os.remove(path)
  called = function(...) return (copy(...)) end
  local again = flow.global_function { name = "again", inputs = types, returns = tp.Numpy } (bodies[#names])
  return y, plan, again(unpack(arrays))
end

-- Computes a file both ways. `is_one`: in bytes it is one step, but for what is computed once.
local function agree(file, inputs, is_one)
  local y, plan, again = computed(file, inputs, true)
  if not on_gpu then
    assert.truthy(plan:find("quantized_", 1, true))
    local steps, kept = plan:match(" (%d+) steps, the first (%d+) kept")
    if is_one then assert.equal(1, steps - kept, plan) end
  end
  same(y:totable(), again)
  local other = computed(file, inputs, false)
  assert.equal(other.dtype, y.dtype)
  if y.dtype == "float32" then
    assert.is_true(np.abs(y - other):max() <= 1e-6 * np.abs(other):max())
  else
    same(other:totable(), y)
  end
  return y
end

local function products(dtype, weight_dtype, rows, units, terms)
  return spread_bytes({ 2, rows, terms }, dtype, 91), spread_bytes({ terms, units }, weight_dtype, 53)
end

describe("products of quantised models", function()
  it("multiply bytes in bytes, whatever stands for zero on either side", function()
    for _, case in ipairs {
      { "uint8", 7, "int8", 0, 1, 33, 100 }, { "int8", -3, "int8", 5, 5, 16, 64 },
      { "uint8", 128, "uint8", 128, 2, 4, 6 },
      { "uint8", 0, "uint8", 100, 17, 20, 192 }, { "int8", 127, "uint8", 255, 3, 7, 1001 },
    } do
      local dtype, zero, weight_dtype, weight_zero, rows, units, terms = unpack(case)
      local x, w = products(dtype, weight_dtype, rows, units, terms)
      local of_each = (np.arange(units) % 3 + weight_zero - 2):astype("int64")
      for _, zeros in ipairs { number(weight_zero, weight_dtype), of_each:astype(weight_dtype) } do
        local nodes = { node("MatMulInteger", { "x", "w", "xz", "wz" }, { "y" }) }
        local y = agree({ nodes = nodes, weights = { w = w, wz = zeros, xz = number(zero, dtype) } }, { x = x }, true)
        assert.equal("int32", y.dtype)
        same(y:totable(), agree({ nodes = nodes, weights = { w = w, wz = zeros } },
          { x = x, xz = number(zero, dtype) }, true))
      end
    end
  end)

  it("have layers that are quantised in the run as one op behind the bytes", function()
    local _, w = products("uint8", "uint8", 1, 18, 70)
    local x = floats(np.arange(2 * 3 * 70) % 37):reshape { 2, 3, 70 } / 9 - 1.5
    local function layer(first, second)
      return {
        node("DynamicQuantizeLinear", { "x" }, { "q", "xs", "xz" }),
        node("MatMulInteger", { "q", "w", "xz", "wz" }, { "sums" }),
        node("Cast", { "sums" }, { "wide" }, { to = { i = 1 } }),
        node("Mul", { "xs", "ws" }, { "scales" }),
        node("Mul", first, { "scaled" }),
        node("Add", second, { "y" }),
      }
    end
    local plain = { w = w, wz = number(90, "uint8"), ws = number(0.01), b = floats(np.arange(18)) / 4 }
    local y = agree({ nodes = layer({ "wide", "scales" }, { "scaled", "b" }), weights = plain }, { x = x })
    same(y:totable(), agree({ nodes = layer({ "scales", "wide" }, { "b", "scaled" }), weights = plain }, { x = x }))
    if not on_gpu then
      local file = { nodes = layer({ "wide", "scales" }, { "scaled", "b" }), weights = plain }
      local _, plan = computed(file, { x = x }, true)
      assert.is_nil(plan:find("int32", 1, true))
      assert.is_nil(plan:find("add '", 1, true))
    end
    local dynamic = own("DynamicQuantizeMatMul", { "x", "w", "ws", "wz", "b" })
    same(y:totable(), agree({ nodes = { dynamic }, weights = plain }, { x = x }))
    local whole = own("MatMulIntegerToFloat", { "q", "w", "xs", "ws", "xz", "wz", "b" })
    same(y:totable(), agree({
      nodes = { node("DynamicQuantizeLinear", { "x" }, { "q", "xs", "xz" }), whole }, weights = plain,
    }, { x = x }))
    -- A scale, and a zero point, of each column.
    plain.ws, plain.wz = floats(np.arange(18)) / 64 + 1, (np.arange(18) + 100):astype("uint8")
    y = agree({ nodes = layer({ "wide", "scales" }, { "scaled", "b" }), weights = plain }, { x = x })
    same(y:totable(), agree({ nodes = { dynamic }, weights = plain }, { x = x }))
  end)

  it("keep sums that somebody else reads", function()
    local x, w = products("uint8", "int8", 2, 5, 12)
    local y = agree({
      nodes = {
        node("MatMulInteger", { "x", "w" }, { "sums" }), node("Cast", { "sums" }, { "wide" }, { to = { i = 1 } }),
        node("Mul", { "wide", "half" }, { "scaled" }), node("Mul", { "scaled", "wide" }, { "y" }),
      }, weights = { w = w, half = number(0.5) },
    }, { x = x })
    assert.equal("float32", y.dtype)
  end)

  it("multiply what they dequantise in bytes, and give bytes", function()
    local x, w = products("uint8", "int8", 3, 20, 64)
    for _, dtype in ipairs { "uint8", "int8" } do
      for _, scale in ipairs { number(0.25), floats(np.arange(20)) / 8 + 0.5 } do
        local weights = {
          w = w, xs = number(0.5), xz = number(120, "uint8"), ws = scale, b = floats(np.arange(20)) - 3,
          ys = number(2048), yz = number(dtype == "int8" and -5 or 100, dtype),
        }
        local nodes = {
          node("DequantizeLinear", { "x", "xs", "xz" }, { "xf" }),
          node("DequantizeLinear", { "w", "ws" }, { "wf" }, { axis = { i = -1 } }),
          node("MatMul", { "xf", "wf" }, { "product" }), node("Add", { "b", "product" }, { "sum" }),
          node("QuantizeLinear", { "sum", "ys", "yz" }, { "y" }),
        }
        local file = { nodes = nodes, weights = weights, outputs = { models.value("y", nil, dtype) } }
        agree(file, { x = x }, true)
      end
    end
  end)

  it("have a Gemm in bytes, with its factors and its weights either way", function()
    local rows = spread_bytes({ 5, 24 }, "int8", 91)
    for _, turned in ipairs { 0, 1 } do
      local sizes = turned == 1 and { 10, 24 } or { 24, 10 }
      local weights = {
        w = spread_bytes(sizes, "uint8", 53), wz = number(77, "uint8"), xs = number(0.5), xz = number(-4, "int8"),
        ws = number(0.25), b = floats(np.arange(10) - 3):reshape { 1, 10 },
      }
      agree({
        nodes = {
          node("DequantizeLinear", { "x", "xs", "xz" }, { "xf" }),
          node("DequantizeLinear", { "w", "ws", "wz" }, { "wf" }),
          node("Gemm", { "xf", "wf", "b" }, { "y" },
            { transB = { i = turned }, alpha = { f = 0.5 }, beta = { f = 2 } }),
        }, weights = weights,
      }, { x = rows }, true)
    end
  end)

  it("have ONNX's and ONNX Runtime's products of bytes in them", function()
    local rows, w = spread_bytes({ 5, 24 }, "uint8", 91), spread_bytes({ 24, 10 }, "uint8", 53)
    local weights = {
      w = w, wz = number(77, "uint8"), xs = number(0.5), xz = number(4, "uint8"), ws = number(0.25), ys = number(64),
      yz = number(100, "uint8"), b = (np.arange(10) * 50):astype("int32"),
    }
    local out = { models.value("y", nil, "uint8") }
    agree({ nodes = { node("QLinearMatMul", { "x", "xs", "xz", "w", "ws", "wz", "ys", "yz" }, { "y" }) },
            weights = weights, outputs = out }, { x = rows }, true)
    local inputs = { "x", "xs", "xz", "w", "ws", "wz", "b" }
    agree({ nodes = { own("QGemm", inputs, { alpha = { f = 0.5 } }) }, weights = weights }, { x = rows }, true)
    inputs[8], inputs[9] = "ys", "yz"
    agree({ nodes = { own("QGemm", inputs) }, weights = weights, outputs = out }, { x = rows }, true)
  end)

  it("convolve in bytes with zero points of filters, and with one of x that only a run knows", function()
    local x, w = spread_bytes({ 1, 6, 5, 7 }, "uint8", 91), spread_bytes({ 8, 3, 3, 3 }, "uint8", 53)
    local nodes = {
      node("ConvInteger", { "x", "w", "xz", "wz" }, { "sums" },
        { pads = { ints = { 1, 1, 1, 1 } }, group = { i = 2 } }),
      node("Cast", { "sums" }, { "wide" }, { to = { i = 1 } }), node("Mul", { "wide", "xs" }, { "scaled" }),
      node("Add", { "scaled", "b" }, { "y" }),
    }
    local weights = { w = w, wz = number(60, "uint8"), b = floats(np.arange(8) - 3):reshape { 1, 8, 1, 1 } }
    local inputs = { x = x, xz = number(13, "uint8"), xs = number(0.5) }
    agree({ nodes = nodes, weights = weights }, inputs, true)
    nodes[1].outputs[1] = "y"
    agree({ nodes = { nodes[1] }, weights = weights }, { x = x, xz = inputs.xz }, true)
  end)
end)
