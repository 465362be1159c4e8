-- What quantised models in ONNX files compute, ONNX's own and ONNX Runtime's.
local core = require "moonflow.core"
local flow = require "moonflow"
local models = require "onnx_models"

local np, tp = flow.np, flow.typing
local floats, node = models.floats, models.node
local write, job_of, result_of, raises, same =
  models.write, models.job_of, models.result_of, models.raises, models.same

-- On a card layers are computed in floats; on a processor in bytes here, also where it is faster in floats.
local on_gpu = os.getenv("MOONFLOW_TEST_PLACEMENT") == "gpu"
local multiplies_bytes = core.multiplies_bytes

before_each(function()
  models.begin()
  core.multiplies_bytes = function() return true end
end)
after_each(function()
  core.multiplies_bytes = multiplies_bytes
  models.finish()
end)

describe("quantised models", function()
  it("round halves to the even number, and stay in range", function()
    local function whole_numbers(zero, dtype)
      return result_of(floats { -3, -1, 1, 3, 1000 }, {
        weights = { scale = floats { 2 }, zero = np.array { zero }:astype(dtype) },
        nodes = { node("QuantizeLinear", { "x", "scale", "zero" }, { "y" }) },
      })
    end
    same({ -1, 1, 1, 3, 127 }, whole_numbers(1, "int8"))
    same({ 8, 10, 10, 12, 255 }, whole_numbers(10, "uint8"))
  end)

  -- A file in which x is quantised about a zero point of a type that models.write cannot write, and dequantised.
  local function narrow_file(kind, bytes)
    local function message(number, body)
      local size = #body < 128 and string.char(#body) or string.char(128 + #body % 128, math.floor(#body / 128))
      return string.char(number * 8 + 2) .. size .. body
    end
    local function whole(number, value) return string.char(number * 8, value) end
    local function named(name, shape)
      return message(1, name) .. message(2, message(1, whole(1, 1) .. message(2, shape)))
    end
    local function quantizer(op, x, y)
      return message(1, message(1, x) .. message(1, "scale") .. message(1, "zero") .. message(2, y) .. message(4, op))
    end
    local scale = whole(2, 1) .. message(8, "scale") .. message(9, "\0\0\0\63")  -- 0.5
    local zero = whole(2, kind) .. message(8, "zero") .. message(9, bytes)
    return whole(1, 9) .. message(8, whole(2, 21)) .. message(7, quantizer("QuantizeLinear", "x", "q")
      .. quantizer("DequantizeLinear", "q", "y") .. message(5, scale) .. message(5, zero)
      .. message(11, named("x", message(1, whole(1, 4)))) .. message(12, named("y", message(1, whole(1, 4)))))
  end

  it("stay in the range of 16 bits, and of 4", function()
    local function given(kind, bytes)
      flow.clear_default_session()
      local model = flow.onnx.load_memory(narrow_file(kind, bytes))
      return job_of(model, { 4 })(floats { -1e6, -0.3, 1.2, 1e6 })
    end
    same({ -16384.5, -0.5, 1, 16383 }, given(5, "\1\0"))
    same({ -16383.5, -0.5, 1, 16384 }, given(5, "\255\255"))  -- -1
    same({ 0, 0, 1, 32767.5 }, given(4, "\0\0"))
    same({ -32767.5, -0.5, 0, 0 }, given(4, "\255\255"))
    same({ -3.5, -0.5, 1, 4 }, given(22, "\15"))  -- -1
    same({ -0.5, -0.5, 1, 7 }, given(21, "\1"))
    raises("tensor 'zero' of int16 takes 2 bytes; it has 1", function() given(5, "\1") end)
  end)

  it("are refused where they are not to stay in range", function()
    raises("saturate = 0 is not supported, only 1", function()
      result_of(floats { 1000 }, {
        opset = 19, weights = { scale = floats { 2 }, zero = np.array { 0 }:astype("uint8") },
        nodes = { node("QuantizeLinear", { "x", "scale", "zero" }, { "y" }, { saturate = { i = 0 } }) },
      })
    end)
  end)

  it("have no whole numbers in a job that dequantises what it has quantised", function()
    local model = flow.onnx.load(write {
      shape = { 3 }, weights = { scale = floats { 0.5 }, zero = np.array { 3 }:astype("uint8") }, nodes = {
        node("QuantizeLinear", { "x", "scale", "zero" }, { "places" }),
        node("DequantizeLinear", { "places", "scale", "zero" }, { "y" }),
      },
    })
    local job = job_of(model, { 3 })
    same({ -1.5, 1, 126 }, job(floats { -9, 1.1, 1000 }))
    assert.truthy(job:summary { plan = true }:find(" 1 steps,", 1, true))
  end)

  local function bytes(list, dtype) return np.array(list):astype(dtype or "uint8") end
  local function number(x, dtype) return np.array(x):astype(dtype or "float32") end

  it("find the range of what they take, with 0 in it", function()
    local function found(x, output)
      local outputs = { "q", "scale", "zero" }
      return result_of(floats(x), { nodes = {
        node("DynamicQuantizeLinear", { "x" }, outputs), node("Identity", { outputs[output] }, { "y" }) } })
    end
    same({ 0, 51, 255 }, found({ -1, 0, 4 }, 1))
    assert.near(5 / 255, found({ -1, 0, 4 }, 2):item(), 1e-8)
    assert.equal(51, found({ -1, 0, 4 }, 3):item())
    same({ 128, 255 }, found({ 1.28, 2.55 }, 1))
    same({ 0, 0 }, found({ 0, 0 }, 1))
  end)

  it("multiply bytes without rounding a sum", function()
    local row, column = {}, {}
    for i = 1, 1001 do row[i], column[i] = 255, { 255 } end  -- the sum is 1001 * 255^2, beyond 2^24 and odd
    local function product(weights, zeros)
      local inputs = { "x", "b" }
      for i, name in ipairs(zeros) do inputs[2 + i] = name end
      return result_of(bytes { row }, { weights = weights, nodes = { node("MatMulInteger", inputs, { "y" }) } })
    end
    local y = product({ b = bytes(column) }, {})
    assert.equal("int32", y.dtype)
    same({ { 65090025 } }, y)
    local ones = np.ones({ 1001, 1 }):astype("uint8")
    local zeros = { za = number(5, "uint8"), zb = number(4, "uint8"), b = ones }
    same({ { 1001 * 250 * -3 } }, product(zeros, { "za", "zb" }))
    -- A zero point that only a run knows.
    local model = flow.onnx.load(models.write {
      inputs = { models.value("x", { 1, 2 }, "uint8"), models.value("z", {}, "uint8") },
      weights = { w = bytes { { 1 }, { 2 } } }, nodes = { node("MatMulInteger", { "x", "w", "z" }, { "y" }) },
    })
    local job = flow.global_function {
      inputs = { x = tp.Numpy.Placeholder({ 1, 2 }, { dtype = "uint8" }),
                 z = tp.Numpy.Placeholder({}, { dtype = "uint8" }) }, returns = tp.Numpy,
    } (function(x, z) return (model { x = x, z = z }) end)
    same({ { 2 * 1 + 3 * 2 } }, job(bytes { { 3, 4 } }, number(1, "uint8")))
  end)

  it("have layers from bytes to bytes", function()
    local function given(more)
      local weights = { xs = number(0.5), xz = number(120, "uint8"), ys = number(0.5) }
      for name, array in pairs(more) do weights[name] = array end
      return weights
    end
    -- (10, -20) times 3 and -2, of which the first has 5 more; 0.25 and 2 are what a place is worth.
    same({ { { { 209, 186 } }, { { 160, 255 } } } }, result_of(bytes { { { { 130, 100 } } } }, {
      weights = given {
        w = bytes({ { { { 3 } } }, { { { -2 } } } }, "int8"), ws = floats { 0.25, 2 }, wz = bytes({ 0, 0 }, "int8"),
        yz = number(200, "uint8"), b = np.array { 5, 0 }:astype("int32"),
      },
      nodes = { node("QLinearConv", { "x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b" }, { "y" }) },
    }))
    same({ { 85, 105 } }, result_of(bytes { { 130, 100 } }, {
      weights = given {
        w = bytes({ { 1, 5 }, { 2, 2 } }, "int8"), ws = floats { 0.5, 0.5 }, wz = bytes({ 0, 0 }, "int8"),
        yz = number(100, "uint8"),
      },
      nodes = { node("QLinearMatMul", { "x", "xs", "xz", "w", "ws", "wz", "ys", "yz" }, { "y" }) },
    }))
  end)

  it("pad with what stands for zero", function()
    same({ { { { 0, -15, 0 } } } }, result_of(bytes { { { { 10, 20, 10 } } } }, {
      weights = { w = bytes({ { { { 3, 3, 3 } } } }, "int8"), xz = number(15, "uint8") },
      nodes = { node("ConvInteger", { "x", "w", "xz" }, { "y" }, { pads = { ints = { 0, 1, 0, 1 } } }) },
    }))
  end)

  it("round no sum of a convolution of bytes", function()
    local channels, size = 32, 16
    local x = (np.arange(channels * size * size) * 91 % 251):astype("uint8"):reshape { 1, channels, size, size }
    local w = (np.arange(channels * channels * 9) * 53 % 253 - 126):astype("int8"):reshape { channels, channels, 3, 3 }
    local y = result_of(x, {
      weights = { w = w, xz = number(128, "uint8") }, nodes = { node("ConvInteger", { "x", "w", "xz" }, { "y" }) },
    })
    local places, taps = x:totable()[1], w:totable()
    for filter = 1, channels do
      for row = 1, size - 2 do
        for column = 1, size - 2 do
          local sum = 0
          for channel = 1, channels do
            for i = 0, 2 do
              for k = 0, 2 do
                sum = sum + (places[channel][row + i][column + k] - 128) * taps[filter][channel][i + 1][k + 1]
              end
            end
          end
          assert.equal(sum, y:at(0, filter - 1, row - 1, column - 1))
        end
      end
    end
  end)

  -- The sums of a convolution of {1, channels, rows, columns} by {filters, channels / groups, 3, 3} with a border of
  -- one, as a nested table.
  local function sums_of(x, x_zero, w, w_zero, groups)
    local places, taps = x:totable()[1], w:totable()
    local rows, columns, own = #places[1], #places[1][1], #taps[1]
    local all = {}
    for f, filter in ipairs(taps) do
      local first = math.floor((f - 1) / (#taps / groups)) * own
      all[f] = {}
      for row = 1, rows do
        all[f][row] = {}
        for column = 1, columns do
          local sum = 0
          for c = 1, own do
            for i = -1, 1 do
              for k = -1, 1 do
                local place = (places[first + c][row + i] or {})[column + k]
                if place then sum = sum + (place - x_zero) * (filter[c][i + 2][k + 2] - w_zero) end
              end
            end
          end
          all[f][row][column] = sum
        end
      end
    end
    return { all }
  end

  local function layer_given(dtype, filter_dtype, channels, filters, groups, columns)
    local x = (np.arange(channels * 5 * columns) * 91 % 256):astype("int64")
    local w = (np.arange(filters * channels / groups * 9) * 53 % 256):astype("int64")
    return x:astype(dtype):reshape { 1, channels, 5, columns },
      w:astype(filter_dtype):reshape { filters, channels / groups, 3, 3 }
  end

  local bordered = { pads = { ints = { 1, 1, 1, 1 } } }

  local function is_in_bytes(job) return job:summary { plan = true }:find("quantized_conv2d", 1, true) ~= nil end

  it("convolve in floats where the processor is faster so", function()
    core.multiplies_bytes = function() return false end
    local x, w = layer_given("uint8", "int8", 8, 3, 1, 6)
    local job = job_of(flow.onnx.load(write {
      inputs = { models.value("x", x.shape:table(), "uint8") }, weights = { w = w, xz = number(9, "uint8") },
      nodes = { node("ConvInteger", { "x", "w", "xz" }, { "y" }, bordered) },
    }), x.shape:table(), "uint8")
    same(sums_of(x, 9, w, 0, 1), job(x))
    assert.is_false(is_in_bytes(job))
  end)

  it("convolve what they dequantise in bytes, exactly", function()
    for _, case in ipairs {
      { "uint8", 128, "int8", 0, 16, 20, 1, 6 }, { "int8", -3, "int8", 0, 5, 4, 1, 7 },
      { "uint8", 7, "uint8", 128, 6, 6, 6, 6 }, { "int8", -128, "uint8", 128, 64, 16, 1, 9 },
    } do
      local dtype, zero, filter_dtype, filter_zero, channels, filters, groups, columns = unpack(case)
      local x, w = layer_given(dtype, filter_dtype, channels, filters, groups, columns)
      local scales, bias = {}, {}
      for f = 1, filters do scales[f], bias[f] = f % 3 == 0 and 0.5 or 2, f - 2 end
      local function given(scale)
        return {
          inputs = { models.value("x", x.shape:table(), dtype) }, nodes = {
            node("DequantizeLinear", { "x", "xs", "xz" }, { "xf" }),
            node("DequantizeLinear", { "w", "ws", "wz" }, { "wf" }, { axis = { i = 0 } }),
            node("Conv", { "xf", "wf", "b" }, { "y" }, { pads = bordered.pads, group = { i = groups } }),
          }, weights = {
            xs = number(0.25), xz = number(zero, dtype), w = w, ws = floats(scale), b = floats(bias),
            wz = np.full({ filters }, filter_zero):astype(filter_dtype),
          },
        }
      end
      local job = job_of(flow.onnx.load(write(given(scales))), x.shape:table(), dtype)
      local y, sums = job(x):totable()[1], sums_of(x, zero, w, filter_zero, groups)[1]
      assert.equal(not on_gpu, is_in_bytes(job))
      -- All of these numbers are float32's: sums below 2^24 and powers of two.
      for f = 1, filters do
        for row = 1, 5 do
          for column = 1, columns do
            assert.equal(sums[f][row][column] * 0.25 * scales[f] + bias[f], y[f][row][column])
          end
        end
      end
      flow.clear_default_session()
    end
  end)

  it("have layers that dequantise, convolve and quantise as one op, where nobody else wants the floats", function()
    local x, w = layer_given("uint8", "int8", 16, 20, 1, 6)
    local sums, bias, scales = sums_of(x, 128, w, 0, 1)[1], {}, {}
    for f = 1, 20 do scales[f], bias[f] = f % 3 == 0 and 0.5 or 0.125, f - 2 end
    local function job(outputs)
      flow.clear_default_session()
      return job_of(flow.onnx.load(write {
        inputs = { models.value("x", x.shape:table(), "uint8") }, nodes = {
          node("DequantizeLinear", { "x", "xs", "xz" }, { "xf" }),
          node("DequantizeLinear", { "w", "ws" }, { "wf" }, { axis = { i = 0 } }),
          node("Conv", { "xf", "wf", "b" }, { "sums" }, bordered),
          node("QuantizeLinear", { "sums", "ys", "yz" }, { "y" }),
        }, weights = {
          xs = number(0.25), xz = number(128, "uint8"), w = w, ws = floats(scales), b = floats(bias), ys = number(64),
          yz = number(-5, "int8"),
        }, outputs = outputs,
      }), x.shape:table(), "uint8")
    end
    local quantized = job { models.value("y", nil, "int8") }
    local y = quantized(x)
    assert.equal("int8", y.dtype)
    for f, plane in ipairs(y:totable()[1]) do
      for row, places in ipairs(plane) do
        for column, place in ipairs(places) do
          local worth = (sums[f][row][column] * 0.25 * scales[f] + bias[f]) / 64
          local whole = math.floor(worth + 0.5)
          if whole - worth == 0.5 and whole % 2 == 1 then whole = whole - 1 end
          assert.equal(math.max(-128, math.min(127, whole - 5)), place)
        end
      end
    end
    assert.equal(not on_gpu, quantized:summary { plan = true }:find("quantized_conv2d '[^\n]* int8") ~= nil)
    if not on_gpu then assert.is_nil(quantized:summary { plan = true }:find("round", 1, true)) end
    local path = os.tmpname()
    quantized:export_onnx(path)
    same(y:totable(), job_of(flow.onnx.load(path, { name = "again" }), x.shape:table(), "uint8")(x))
    os.remove(path)
    local both = job { models.value("y", nil, "int8"), models.value("sums") }
    both(x)
    assert.equal(not on_gpu, both:summary { plan = true }:find("quantized_conv2d '[^\n]* float32") ~= nil)
  end)

  it("have a relu as part of a convolution where the least byte stands for zero", function()
    local x, w = layer_given("uint8", "int8", 8, 4, 1, 6)
    local sums = sums_of(x, 100, w, 0, 1)[1]
    for _, case in ipairs { { 0, "uint8", true }, { -128, "int8", true }, { 3, "uint8", false } } do
      local zero, dtype, is_part = unpack(case)
      flow.clear_default_session()
      local job = job_of(flow.onnx.load(write {
        inputs = { models.value("x", x.shape:table(), "uint8") }, nodes = {
          node("DequantizeLinear", { "x", "one", "xz" }, { "xf" }),
          node("DequantizeLinear", { "w", "one" }, { "wf" }),
          node("Conv", { "xf", "wf" }, { "sums" }, bordered),
          node("Relu", { "sums" }, { "positive" }),
          node("QuantizeLinear", { "positive", "ys", "yz" }, { "y" }),
        }, weights = { one = number(1), xz = number(100, "uint8"), w = w, ys = number(1024), yz = number(zero, dtype) },
        outputs = { models.value("y", nil, dtype) },
      }), x.shape:table(), "uint8")
      local y = job(x):totable()[1]
      for f = 1, 4 do
        for row = 1, 5 do
          for column = 1, 6 do
            local worth = math.max(0, sums[f][row][column]) / 1024
            local whole = math.floor(worth + 0.5)
            if whole - worth == 0.5 and whole % 2 == 1 then whole = whole - 1 end
            assert.equal(math.min(dtype == "int8" and 127 or 255, whole + zero), y[f][row][column])
          end
        end
      end
      local in_bytes = job:summary { plan = true }:find("quantized_conv2d '[^\n]* " .. dtype) ~= nil
      assert.equal(is_part and not on_gpu, in_bytes)
    end
  end)

  it("are computed in floats where only a run knows their weights, and where a job trains", function()
    local given, weights = layer_given("uint8", "int8", 4, 4, 1, 6)
    local sizes = given.shape:table()
    local function model(is_known)
      return flow.onnx.load(write {
        inputs = {
          models.value("x", sizes, "uint8"), not is_known and models.value("w", { 4, 4, 3, 3 }, "int8") or nil,
        },
        nodes = {
          node("DequantizeLinear", { "x", "xs", "xz" }, { "xf" }),
          node("DequantizeLinear", { "w", "ws" }, { "wf" }, { axis = { i = 0 } }),
          node("Conv", { "xf", "wf" }, { "y" }, bordered),
        }, weights = {
          xs = number(0.5), xz = number(3, "uint8"), w = is_known and weights or nil, ws = floats { 1, 2, 1, 2 },
        },
      })
    end
    local images = flow.typing.Numpy.Placeholder(sizes, { dtype = "uint8" })
    local filters = flow.typing.Numpy.Placeholder({ 4, 4, 3, 3 }, { dtype = "int8" })
    local unknown = model(false)
    local by_any = flow.global_function {
      inputs = { x = images, w = filters }, returns = tp.Numpy,
    } (function(x, w)
      return (unknown { x = x, w = w })
    end)
    by_any(given, weights)
    assert.is_false(is_in_bytes(by_any))
    flow.clear_default_session()
    local net = model(true)
    local train = flow.global_function {
      name = "train", type = "train", inputs = { x = images }, returns = flow.typing.Numpy,
    } (function(x)
      local loss = flow.math.reduce_mean(net(x))
      flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler({}, { 0.1 })):minimize(loss)
      return loss
    end)
    train(given)
    assert.is_false(is_in_bytes(train))
  end)

  it("have layers and sums in bytes, which are written and read again", function()
    local x, w = layer_given("uint8", "int8", 8, 3, 1, 6)
    local sums = sums_of(x, 9, w, 0, 1)
    local job = job_of(flow.onnx.load(write {
      inputs = { models.value("x", x.shape:table(), "uint8") }, weights = { w = w, xz = number(9, "uint8") },
      nodes = { node("ConvInteger", { "x", "w", "xz" }, { "y" }, bordered) },
    }), x.shape:table(), "uint8")
    same(sums, job(x))
    assert.equal(not on_gpu, is_in_bytes(job))
    local path = os.tmpname()
    job:export_onnx(path)
    local again = job_of(flow.onnx.load(path, { name = "again" }), x.shape:table(), "uint8")
    same(sums, again(x))
    assert.equal(not on_gpu, is_in_bytes(again))
    os.remove(path)
    local whole = result_of(x, {
      weights = {
        w = w, xz = number(9, "uint8"), xs = number(0.5), ws = floats { 0.5, 0.25, 0.5 },
        wz = bytes({ 0, 0, 0 }, "int8"), ys = number(64), yz = number(100, "uint8"),
        b = np.array { 64, -32, 0 }:astype("int32"),
      },
      nodes = { node("QLinearConv", { "x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b" }, { "y" }, bordered) },
    }):totable()[1]
    local function nearest(place)  -- halves to the even one
      local below = math.floor(place)
      if place - below == 0.5 then return below % 2 == 0 and below or below + 1 end
      return math.floor(place + 0.5)
    end
    for f, scale in ipairs { 0.25, 0.125, 0.25 } do
      for row = 1, 5 do
        for column = 1, 6 do
          local place = nearest((sums[1][f][row][column] + ({ 64, -32, 0 })[f]) * scale / 64) + 100
          assert.equal(math.max(0, math.min(255, place)), whole[f][row][column])
        end
      end
    end
  end)

  it("have operators of ONNX Runtime's own", function()
    local function given(op, inputs, attributes)
      local own = node(op, inputs, { "y" }, attributes)
      own.domain = "com.microsoft"
      return result_of(bytes { { 10, 20, 30 } }, {
        weights = {
          half = number(0.5), two = number(2), none = number(0, "uint8"), ten = number(10, "uint8"),
          thirty = number(30, "uint8"),
          b = bytes { { 12, 10, 11 } }, rows = bytes { { 10, 11, 12 }, { 12, 10, 10 } }, scales = floats { 2, 4 },
          tens = bytes { 10, 10 }, bias = np.array { 3, -1 }:astype("int32"),
        },
        nodes = { own },
      })
    end
    -- x is (0, 5, 10), and b is (4, 0, 2).
    same({ { 8, 10, 24 } }, given("QLinearAdd", { "x", "half", "ten", "b", "two", "ten", "half", "none" }))
    same({ { 10, 10, 50 } }, given("QLinearMul", { "x", "half", "ten", "b", "two", "ten", "half", "ten" }))
    same({ { 6, 8, 10 } }, given("QLinearLeakyRelu", { "x", "half", "thirty", "half", "ten" }, { alpha = { f = 0.2 } }))
    same({ { 0, 2, 5, 2, 0, 1 } }, given("QLinearConcat",
      { "two", "none", "x", "half", "ten", "b", "two", "ten" }, { axis = { i = 1 } }))
    -- The rows are (0, 2, 4) and (8, 0, 0) by their scales; the bias is 3 of 1 and -1 of 2.
    same({ { 53, -2 } }, given("QGemm", { "x", "half", "ten", "rows", "scales", "tens", "bias" },
      { transB = { i = 1 } }))
    same({ { 116, 6 } }, given("QGemm", { "x", "half", "ten", "rows", "scales", "tens", "bias", "half", "ten" },
      { transB = { i = 1 } }))
  end)

  it("have a scale of all, of each place along an axis, or of each block there", function()
    local function real_numbers(scale, zero, attributes)
      return result_of(np.array { { 1, 2, 3 }, { 4, 5, 6 } }:astype("int8"), {
        opset = 23, weights = { scale = floats(scale), zero = np.array(zero):astype("int8") },
        nodes = { node("DequantizeLinear", { "x", "scale", "zero" }, { "y" }, attributes) },
      })
    end
    same({ { 0, 0.5, 1 }, { 1.5, 2, 2.5 } }, real_numbers({ 0.5 }, { 1 }))
    same({ { 1, 2, 3 }, { 6, 8, 10 } }, real_numbers({ 1, 2 }, { 0, 1 }, { axis = { i = 0 } }))
    same({ { 1, 2, 30 }, { 8, 10, 60 } }, real_numbers({ { 1, 10 }, { 2, 10 } }, { { 0, 0 }, { 0, 0 } },
      { axis = { i = 1 }, block_size = { i = 2 } }))
    raises("zero_point has 2 numbers for 3 places of axis 1", function() real_numbers({ 1, 2 }, { 0, 0 }) end)
  end)
end)
