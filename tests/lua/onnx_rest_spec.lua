-- Operators of ONNX of the less frequent kinds, on numbers that are followed by hand; ONNX Runtime gives the same.
local flow = require "moonflow"
local models = require "onnx_models"

local np = flow.np
local floats, whole, node, value = models.floats, models.whole, models.node, models.value
local result_of, raises, same = models.result_of, models.raises, models.same

before_each(models.begin)
after_each(models.finish)

-- What a node gives for `x` and for `others`, the arrays of its further inputs: the result at `place`, or the first.
local function given(op, x, attributes, others, place)
  local inputs, outputs, weights = { "x" }, {}, {}
  for i, array in ipairs(others or {}) do
    inputs[1 + i] = "other" .. i
    weights[inputs[1 + i]] = array
  end
  for i = 1, (place or 1) - 1 do outputs[i] = "result" .. i end
  outputs[#outputs + 1] = "y"
  return result_of(x, { opset = 21, weights = weights, nodes = { node(op, inputs, outputs, attributes) } })
end

local function near(wanted, array)
  wanted = np.array(wanted):astype(array.dtype)
  assert.same(wanted.shape:table(), array.shape:table())
  assert.is_true(np.abs(wanted - array):max() < 1e-5, tostring(array))
end

local function counted(...)
  local shape, count = { ... }, 1
  for _, size in ipairs(shape) do count = count * size end
  return np.arange(1, count + 1):reshape(shape):astype("float32")
end

describe("rarer operators", function()
  it("have no sign of what is no number", function()
    local signs = given("Sign", floats { -2, 0, 3, 0 / 0, -math.huge })
    same({ -1, 0, 1, 0, -1 }, np.nan_to_num(signs))
    same({ 0, 0, 0, 1, 0 }, np.isnan(signs))
    same({ -1, 0, 1 }, given("Sign", whole { -2, 0, 3 }))
  end)

  it("keep in a cell what is not written, where the gates are one", function()
    local w = np.zeros({ 1, 4, 1 }):astype("float32")
    local y = result_of(floats { { { 0.5 } } }, {
      weights = { w = w + 1, r = w, c = floats { { { 2 } } } },
      nodes = { node("LSTM", { "x", "w", "r", "", "", "", "c" }, { "y" }, { input_forget = { i = 1 } }) },
    })
    local gate, new = 1 / (1 + math.exp(-0.5)), np.tanh(np.array(0.5)):item()
    near({ { { { gate * np.tanh(np.array(gate * new + (1 - gate) * 2)):item() } } } }, y)
  end)

  it("cut and fill up about the middle", function()
    local x = counted(2, 5)
    same({ { 0, 0 }, { 2, 3 }, { 7, 8 }, { 0, 0 }, { 0, 0 } }, given("CenterCropPad", x, {}, { whole { 5, 2 } }))
    same({ { 0, 1, 2, 3, 4, 5, 0, 0 }, { 0, 6, 7, 8, 9, 10, 0, 0 } },
      given("CenterCropPad", x, { axes = { ints = { -1 } } }, { whole { 8 } }))
    raises("1 sizes for 2 axes", function() given("CenterCropPad", x, {}, { whole { 8 } }) end)
  end)

  it("resize to no size that is a mistake or an attack", function()
    local x, all = counted(1, 1, 2, 3), floats { 0, 0, 0, 0, 1, 1, 1, 1 }
    for _, mode in ipairs { "nearest", "linear", "cubic" } do
      for _, transformation in ipairs { "half_pixel", "tf_crop_and_resize" } do
        raises("axis 3 would have size 1.09951e+12, wanted 1 to 2^24 - 1", function()
          given("Resize", x, { mode = { s = mode }, coordinate_transformation_mode = { s = transformation } },
            { all, floats {}, whole { 1, 1, 2, 2 ^ 40 } })
        end)
      end
    end
    raises("axis 3 would have size nan", function()
      given("Resize", x, {}, { floats {}, floats { 1, 1, 1, 0 / 0 } })
    end)
  end)

  it("find the largest or the least numbers, and say where they are", function()
    local x, two, least = floats { { 3, 1, 2 } }, { whole { 2 } }, { largest = { i = 0 } }
    same({ { 3, 2 } }, given("TopK", x, {}, two))
    same({ { 0, 2 } }, given("TopK", x, {}, two, 2))
    same({ { 1, 2 } }, given("TopK", x, least, two))
    same({ { 1, 2 } }, given("TopK", x, least, two, 2))
    same({ { 3, 1, 2 } }, given("TopK", x, { axis = { i = 0 } }, { whole { 1 } }))
  end)

  it("make channels places, and places channels", function()
    local function places(mode)
      return given("DepthToSpace", counted(1, 8, 1, 1), { blocksize = { i = 2 }, mode = mode and { s = mode } })
    end
    same({ { { { 1, 3 }, { 5, 7 } }, { { 2, 4 }, { 6, 8 } } } }, places())
    same({ { { { 1, 2 }, { 3, 4 } }, { { 5, 6 }, { 7, 8 } } } }, places "CRD")
    local channels = given("SpaceToDepth", counted(1, 2, 2, 2), { blocksize = { i = 2 } })
    assert.same({ 1, 8, 1, 1 }, channels.shape:table())
    same({ 1, 5, 2, 6, 3, 7, 4, 8 }, channels:reshape(-1))
  end)

  it("spread each place over a window", function()
    same({ { { 1, 3, 2 } } }, given("ConvTranspose", floats { { { 1, 2 } } }, {}, { floats { { { 1, 1 } } } }))
    local function spread(attributes)
      attributes.strides = { ints = { 1, 2 } }
      return given("ConvTranspose", floats { { { { 1, 2 } } } }, attributes, { floats { { { { 1, 10 } } } } })
    end
    same({ { { { 1, 10, 2, 20 } } } }, spread {})
    same({ { { { 1, 10, 2, 20, 0 } } } }, spread { output_padding = { ints = { 0, 1 } } })
    same({ { { { 10, 2 } } } }, spread { pads = { ints = { 0, 1, 0, 1 } } })
    same({ { { { 1, 10, 2 } } } }, spread { output_shape = { ints = { 1, 3 } }, auto_pad = { s = "SAME_UPPER" } })
  end)

  it("spread each place of a volume as of an image", function()
    local x, filter = counted(2, 4, 3, 5), counted(4, 3, 2, 3)
    -- An axis of size 1 at each place among the three, with the numbers that change nothing along it.
    local function spread(at)
      local function wider(list, number)
        local all = { unpack(list) }
        if at then table.insert(all, at, number) end
        return all
      end
      local function volume(image)
        local sizes = wider({ unpack(image.shape:table(), 3) }, 1)
        return image:reshape { image.shape[0], image.shape[1], unpack(sizes) }
      end
      local before, after = wider({ 1, 0 }, 0), wider({ 0, 1 }, 0)
      for _, number in ipairs(after) do before[#before + 1] = number end
      return given("ConvTranspose", volume(x), {
        strides = { ints = wider({ 2, 1 }, 1) }, dilations = { ints = wider({ 3, 1 }, 1) }, pads = { ints = before },
        output_padding = { ints = wider({ 1, 0 }, 0) }, group = { i = 2 },
      }, { volume(filter), floats { 1, 2, 3, 4, 5, 6 } })
    end
    local wanted = spread():reshape { -1 }
    for at = 1, 3 do near(wanted:totable(), spread(at):reshape { -1 }) end
    assert.same({ 2, 6, 8, 6, 1 }, spread(3).shape:table())
  end)

  it("make an image of windows over it", function()
    local function image(x, sizes, block, attributes)
      return given("Col2Im", x, attributes or {}, { whole(sizes), whole(block) })
    end
    -- Columns are windows: (1, 2) at the first place, then (3, 4), (5, 6).
    local line = floats { { { 1, 3, 5 }, { 2, 4, 6 } } }
    same({ { { 1, 5, 9, 6 } } }, image(line, { 4 }, { 2 }))
    same({ { { { 1, 5, 9, 6 } } } }, image(line, { 1, 4 }, { 1, 2 }))
    same({ { { { { 1 }, { 5 }, { 9 }, { 6 } } } } }, image(line, { 1, 4, 1 }, { 1, 2, 1 }))
    same({ { { 1, 3, 7, 4, 6 } } }, image(line, { 5 }, { 2 }, { dilations = { ints = { 2 } } }))
    local apart = { strides = { ints = { 2 } }, pads = { ints = { 1, 0 } } }
    same({ { { 2, 3, 4, 5, 6 } } }, image(line, { 5 }, { 2 }, apart))
    -- Two channels of blocks of 2 x 2, each of which stands for itself.
    same({ { { { 1, 2 }, { 3, 4 } }, { { 5, 6 }, { 7, 8 } } } }, image(counted(1, 8, 1), { 2, 2 }, { 2, 2 }))
    raises("(1, 2, 3) for 4 places of windows of 2", function() image(line, { 5 }, { 2 }) end)
    raises("strides is { 0 }, wanted 1 whole numbers from 1 on", function()
      image(line, { 4 }, { 2 }, { strides = { ints = { 0 } } })
    end)
  end)

  it("norm channels, groups of them, and each by its neighbours", function()
    local x, others = floats { { { 1, 3 }, { 5, 1 } } }, { floats { 2, 1 }, floats { 1, 0 } }
    near({ { { -1, 3 }, { 1, -1 } } }, given("InstanceNormalization", x, { epsilon = { f = 0 } }, others))
    near({ { { -1, 3 }, { 1, -1 } } }, given("GroupNormalization", x,
      { epsilon = { f = 0 }, num_groups = { i = 2 } }, others))
    near({ { { 1 / 6 }, { 2 / 10 }, { 2 / 9 } } }, given("LRN", floats { { { 1 }, { 2 }, { 2 } } },
      { size = { i = 3 }, alpha = { f = 3 }, beta = { f = 1 }, bias = { f = 1 } }))
  end)

  it("take norms, by which they divide or which they give", function()
    local by_sum = { p = { i = 1 } }
    near({ { 0.25, 0.75 } }, given("LpNormalization", floats { { 1, 3 } }, by_sum))
    near({ { 0.6, 0.8 } }, given("LpNormalization", floats { { 3, 4 } }))
    near({ { { 5 } } }, given("GlobalLpPool", floats { { { 3, 4 } } }))
    near({ { { 7 } } }, given("GlobalLpPool", floats { { { 3, -4 } } }, by_sum))
  end)

  it("pad by a mirror, the border, the other end, or zeros", function()
    local function padded(mode, before, behind)
      return given("Pad", floats { 1, 2, 3 }, { mode = mode and { s = mode } }, { whole { before, behind } })
    end
    same({ 3, 2, 1, 2, 3, 2, 1 }, padded("reflect", 2, 2))
    same({ 1, 1, 1, 2, 3, 3, 3 }, padded("edge", 2, 2))
    same({ 2, 3, 1, 2, 3, 1, 2 }, padded("wrap", 2, 2))
    same({ 2, 3, 3 }, padded("edge", -1, 1))
    same({ 0, 1, 2, 3 }, padded(nil, 1, 0))
    raises("mode = mirror is not supported", function() padded("mirror", 2, 2) end)
  end)

  it("make diagonals and triangles, and repeat", function()
    local x = counted(2, 3)
    same({ { 0, 1, 0 }, { 0, 0, 1 } }, given("EyeLike", x, { k = { i = 1 } }))
    same({ { 1, 2, 3 }, { 0, 5, 6 } }, given("Trilu", x))
    same({ { 1, 0, 0 }, { 4, 5, 0 } }, given("Trilu", x, { upper = { i = 0 } }))
    same({ { 1, 2, 1, 2 } }, given("Tile", floats { { 1, 2 } }, {}, { whole { 1, 2 } }))
  end)

  it("tell what is infinite or no number", function()
    local x = floats { 0, math.huge, -math.huge, 0 / 0 }
    same({ 0, 1, 1, 0 }, given("IsInf", x))
    same({ 0, 1, 0, 0 }, given("IsInf", x, { detect_negative = { i = 0 } }))
    same({ 0, 0, 1, 0 }, given("IsInf", x, { detect_positive = { i = 0 } }))
    same({ 0, 0, 0, 1 }, given("IsNaN", x))
  end)

  it("bend each number", function()
    same({ -0.75, 0, 0.75 }, given("Shrink", floats { -1, 0.25, 1 }, { bias = { f = 0.25 } }))
    same({ 6, 0, -6 }, given("Shrink", np.array({ 7, 0, -7 }, "int32"), { bias = { f = 0.5 } }))
    same({ 0, 1.5 }, given("ThresholdedRelu", floats { 1, 1.5 }))
    same({ -0.5, 0.5 }, given("Softsign", floats { -1, 1 }))
    same({ -0.5, 1 }, given("PRelu", floats { -1, 1 }, {}, { floats { 0.5 } }))
    near({ -1.7580993, 1.050701 }, given("Selu", floats { -1e3, 1 }))
    near({ -2, 1 }, given("Celu", floats { -1e3, 1 }, { alpha = { f = 2 } }))
    near({ -0.158808, 0.841192 }, given("Gelu", floats { -1, 1 }, { approximate = { s = "tanh" } }))
  end)

  it("put two values together", function()
    same({ -2, 2 }, given("Mod", floats { -5, 5 }, { fmod = { i = 1 } }, { floats { 3, -3 } }))
    same({ 2, 3 }, given("Mean", floats { 1, 2 }, {}, { floats { 3, 4 } }))
    same(14, given("Einsum", floats { 1, 2, 3 }, { equation = { s = "i, i ->" } }, { floats { 1, 2, 3 } }))
    local cast = given("CastLike", floats { 1.5, 2.5 }, {}, { whole { 0 } })
    assert.equal("int64", cast.dtype)
    same({ 1, 2 }, cast)
  end)

  it("divide the least whole number as others", function()
    local x, d = np.array({ -2 ^ 31, -2 ^ 31, 7, -7 }, "int32"), np.array({ 5, -7, -2, -2 }, "int32")
    local function of(op, attributes)
      return result_of(x, { outputs = { value("y", nil, "int32") }, weights = { d = d },
                            nodes = { node(op, { "x", "d" }, { "y" }, attributes) } })
    end
    same({ -429496729, 306783378, -3, 3 }, of("Div"))
    same({ -3, -2, 1, -1 }, of("Mod", { fmod = { i = 1 } }))
  end)

  it("divide bytes without a sign", function()
    same({ 66, 2 }, result_of(np.array { 200, 7 }:astype("uint8"), {
      outputs = { value("y", nil, "uint8") }, weights = { d = np.array { 3 }:astype("uint8") },
      nodes = { node("Div", { "x", "d" }, { "y" }) },
    }))
  end)

  it("take whole numbers where fractions come in between, and give such", function()
    local function long(list) return np.array(list):astype("int32") end
    same({ { 7 }, { -9 } }, given("MatMul", whole { { 1, 2 }, { -1, -3 } }, {}, { whole { { 3 }, { 2 } } }))
    same({ { 12, 11 } }, given("Gemm", long { { 1, 2 } }, { alpha = { f = 2 } },
      { long { { 1, 2 }, { 2, 1 } }, long { 2, 3 } }))
    -- 2^24 + 1, which float32 has not.
    same({ 16777217 }, given("MatMul", whole { 2 ^ 24, 1 }, {}, { whole { { 1 }, { 1 } } }))
    same({ 2, -2 }, given("ReduceMean", whole { { 2, 3 }, { -2, -3 } }, { keepdims = { i = 0 } }, { whole { 1 } }))
    same({ 5 }, given("ReduceL2", long { { 3, 4 } }, { keepdims = { i = 0 } }, { whole { 1 } }))
    same({ 2 }, given("ReduceLogSum", long { { 5, 4 } }, { keepdims = { i = 0 } }, { whole { 1 } }))

    local bytes = np.array { { { { 0, 255 } } } }:astype("uint8")
    local function resized(mode, more)
      more.mode = { s = mode }
      return given("Resize", bytes, more, { floats {}, floats {}, whole { 1, 1, 1, 4 } })
    end
    assert.equal("uint8", resized("linear", {}).dtype)
    same({ { { { 0, 63, 191, 255 } } } }, resized("linear", {}))
    same({ { { { 0, 57, 197, 255 } } } }, resized("cubic", {}))  -- -26.9, 57.8, 197.2, 281.9
    same({ { { { 0, 0, 255, 255 } } } }, resized("nearest", {}))
  end)

  it("give the statistics of a layer norm in the dtype that it says", function()
    local x = floats { { 1, 3 } }:astype("float64")
    local one = np.ones({ 2 }, "float64")
    local function statistic(place, attributes)
      return given("LayerNormalization", x, attributes, { one, one }, place)
    end
    assert.equal("float64", statistic(1, {}).dtype)
    for place = 2, 3 do
      assert.equal("float32", statistic(place, {}).dtype)
      assert.equal("float64", statistic(place, { stash_type = { i = 11 } }).dtype)
    end
    same({ { 2 } }, statistic(2, {}))
  end)

  it("resize by the middles of pixels, and to one pixel by the first", function()
    local function resized(width)
      return result_of(floats { { 1, 3, 3, 5 } }, {
        opset = 19, weights = { sizes = whole { 1, width } },
        nodes = { node("Resize", { "x", "", "", "sizes" }, { "y" },
          { mode = { s = "linear" }, coordinate_transformation_mode = { s = "pytorch_half_pixel" } }) },
      })
    end
    same({ { 2, 4 } }, resized(2))
    same({ { 1 } }, resized(1))
  end)

  it("reverse sequences that have a length each", function()
    local function reversed(lengths, attributes)
      return given("ReverseSequence", floats { { 1, 2 }, { 3, 4 } }, attributes, { whole(lengths) })
    end
    same({ { 1, 4 }, { 3, 2 } }, reversed { 1, 2 })
    raises("whose time is axis 0", function() reversed { { 1, 2 } } end)
    raises("whose time is axis 1", function() reversed({ 1, 2 }, { time_axis = { i = 1 } }) end)
  end)

  it("say where each pixel of an image or a volume comes from", function()
    local theta = floats { { { 2, 0, 0 }, { 0, 1, 0.5 } } }
    local aligned = { align_corners = { i = 1 } }
    near({ { { { -2, -0.5 }, { 2, -0.5 } }, { { -2, 0.5 }, { 2, 0.5 } }, { { -2, 1.5 }, { 2, 1.5 } } } },
      given("AffineGrid", theta, aligned, { whole { 1, 5, 3, 2 } }))
    near({ { { { -1, 0 }, { 1, 0 } }, { { -1, 1 }, { 1, 1 } } } },
      given("AffineGrid", theta, {}, { whole { 1, 5, 2, 2 } }))
    theta = floats { { { 1, 0, 0, 0 }, { 0, 1, 0, 0 }, { 0, 0, 1, 0.5 } } }
    near({ { { { { -1, 0, 0.5 }, { 1, 0, 0.5 } } } } },
      given("AffineGrid", theta, aligned, { whole { 1, 1, 1, 1, 2 } }))
    raises("theta is (1, 3, 4) for images of 2 axes of places, wanted (1, 2, 3) of 2 or 3", function()
      given("AffineGrid", theta, {}, { whole { 1, 1, 1, 2 } })
    end)
  end)

  it("tell how unlikely the classes of targets are, by their weights", function()
    local x, targets = floats { { -1, -2 }, { -3, -4 }, { -5, -6 } }, whole { 0, 1, 1 }
    local function loss(reduction, others, ignored)
      return given("NegativeLogLikelihoodLoss", x, {
        reduction = reduction and { s = reduction }, ignore_index = ignored and { i = ignored } }, others)
    end
    same({ 1, 4, 6 }, loss("none", { targets }))
    near(11, loss("sum", { targets }))
    near(11 / 3, loss(nil, { targets }))
    near((2 + 4 + 6) / 4, loss("mean", { targets, floats { 2, 1 } }))
    near((4 + 6) / 2, loss("mean", { targets }, 0))
    -- What is ignored may lie outside of the classes, and be infinite.
    same({ 0, 12, 18 }, loss("none", { whole { -100, 1, 1 }, floats { math.huge, 3 } }, -100))
    near(3, loss("mean", { whole { 1, 1, -1 } }, -1))
    -- One image of 1 x 2 places, whose classes are alike likely at the first.
    x = floats { { { { 0, -math.huge } }, { { 0, 0 } } } }
    local function crossed(place) return given("SoftmaxCrossEntropyLoss", x, {}, { whole { { { 1, 1 } } } }, place) end
    near(math.log(2) / 2, crossed(1))
    assert.same({ 1, 2, 1, 2 }, crossed(2).shape:table())
    raises("targets (3) for (1, 2, 1, 2), wanted (batch, places...)", function() loss("none", { targets }) end)
    raises("reduction = most is not supported", function() loss("most", { whole { { { 1, 1 } } } }) end)
  end)

  it("take a volume at places that are computed, as an image of each depth", function()
    local x, at = counted(2, 1, 3, 4) / 16, { { { -0.9, 0.3 }, { 0.1, -2 }, { 0.99, 0.8 } } }
    local line = floats { at[1], { { 0, 0 }, { 0.5, 0.5 }, { -0.3, 1.7 } } }:reshape { 2, 1, 3, 2 }
    local middle = np.zeros({ 2, 1, 3, 1 }):astype("float32")
    local deep = np.concatenate({ line, middle }, 3):reshape { 2, 1, 1, 3, 3 }
    -- Values, and how they change with the image and the grid.
    local function sampled(image, places, attributes)
      flow.clear_default_session()
      local model = flow.onnx.load(models.write {
        opset = 20, nodes = { node("GridSample", { "x", "grid" }, { "y" }, attributes) },
        inputs = { value("x", image.shape:table()), value("grid", places.shape:table()) },
      })
      local job = flow.global_function {
        inputs = { volume = flow.typing.Numpy.Placeholder(image.shape:table()),
                   grid = flow.typing.Numpy.Placeholder(places.shape:table()) },
        returns = flow.typing.Tuple { flow.typing.Numpy, flow.typing.Numpy, flow.typing.Numpy },
      } (function(volume, grid)
        local y = model(volume, grid)
        local gradients = flow.gradients(y * y, attributes.mode.s == "linear" and { volume, grid } or { volume })
        return y, gradients[1], gradients[2] or grid
      end)
      return { job(image, places) }
    end
    for _, mode in ipairs { "linear", "nearest" } do
      for _, padding in ipairs { "zeros", "border", "reflection" } do
        for is_aligned = 0, 1 do
          local attributes = { mode = { s = mode }, padding_mode = { s = padding }, align_corners = { i = is_aligned } }
          local wanted = sampled(x, line, attributes)
          local got = sampled(x:reshape { 2, 1, 1, 3, 4 }, deep, attributes)
          near(wanted[1]:reshape({ 2, 1, 1, 1, 3 }):totable(), got[1])
          near(wanted[2]:reshape({ 2, 1, 1, 3, 4 }):totable(), got[2])
          near(wanted[3]:reshape({ 2, 1, 1, 3, 2 }):totable(), got[3]:slice("..., :2"))
        end
      end
    end
    raises("mode = cubic is not supported", function()
      sampled(x:reshape { 2, 1, 1, 3, 4 }, np.zeros { 2, 1, 1, 3, 3 }, { mode = { s = "cubic" } })
    end)
  end)
end)

-- As scikit-learn's models come down to; ONNX Runtime gives the same.
describe("operators of tables", function()
  local function of_table(op, x, attributes, others, place)
    local own = node(op, { "x" }, { "y" }, attributes)
    own.domain = "ai.onnx.ml"
    local weights = {}
    for i, array in ipairs(others or {}) do own.inputs[1 + i], weights["other" .. i] = "other" .. i, array end
    if place == 2 then own.outputs = { "label", "y" } end
    return result_of(x, { opset = 18, weights = weights, nodes = { own } })
  end

  it("scale, fill, pick and measure columns", function()
    local x = floats { { 1, 2 }, { 3, 0 / 0 } }
    same({ { 0, 4 }, { 1, 8 } }, of_table("Scaler", whole { { 1, 2 }, { 3, 3 } },
      { offset = { floats = { 1, 1 } }, scale = { floats = { 0.5, 4 } } }))
    same({ { 2, 4 } }, of_table("Scaler", floats { { 1, 2 } }, { scale = { floats = { 2 } } }))
    same({ { 1, 2 }, { 3, 7 } }, of_table("Imputer", x,
      { imputed_value_floats = { floats = { 5, 7 } }, replaced_value_float = { f = 0 / 0 } }))
    same({ { 9, 2 } }, of_table("Imputer", whole { { 0, 2 } }, { imputed_value_int64s = { ints = { 9 } } }))
    same({ { 0, 0, 1 } }, of_table("Binarizer", floats { { 1, 2, 3 } }, { threshold = { f = 2 } }))
    same({ { 0.25, -0.75 }, { 0, 0 } }, of_table("Normalizer", floats { { 1, -3 }, { 0, 0 } }, { norm = { s = "L1" } }))
    near({ { 0.6, -0.8 } }, of_table("Normalizer", floats { { 3, -4 } }, { norm = { s = "L2" } }))
    same({ { 0.5, 1 } }, of_table("Normalizer", floats { { 2, 4 } }, {}))
    same({ { 3, 1 } }, of_table("ArrayFeatureExtractor", floats { { 1, 2, 3 } }, {}, { whole { 2, 0 } }))
    same({ { 20, 10 } }, of_table("ArrayFeatureExtractor", whole { 10, 20 }, {}, { whole { { 1 }, { 0 } } }))
  end)

  it("are linear models", function()
    local x = floats { { 1, 2 }, { 3, 1 } }
    local coefficients, intercepts = { floats = { 1, 0, 0, 2 } }, { floats = { 1, -2 } }
    same({ { 2, 2 }, { 4, 0 } }, of_table("LinearRegressor", x,
      { coefficients = coefficients, intercepts = intercepts, targets = { i = 2 } }))
    local function classified(transform, place)
      return of_table("LinearClassifier", x, {
        coefficients = coefficients, intercepts = { floats = { 0, 0 } }, classlabels_ints = { ints = { 7, 9 } },
        post_transform = transform and { s = transform }, multi_class = { i = 1 },
      }, nil, place)
    end
    same({ 9, 7 }, classified("SOFTMAX"))
    same({ { 1, 4 }, { 3, 2 } }, classified(nil, 2))
    local function sigmoid(z) return 1 / (1 + math.exp(-z)) end
    near({ { sigmoid(1), sigmoid(4) }, { sigmoid(3), sigmoid(2) } }, classified("LOGISTIC", 2))
    near({ { sigmoid(-3), sigmoid(3) }, { sigmoid(1), sigmoid(-1) } }, classified("SOFTMAX", 2))
  end)

  it("say what does not fit, and which outputs are texts", function()
    raises("offset has 3 numbers for 2 columns", function()
      of_table("Scaler", floats { { 1, 2 } }, { offset = { floats = { 1, 2, 3 } } })
    end)
    raises("coefficients has 3 numbers, wanted 1 of each of 2 columns", function()
      of_table("LinearRegressor", floats { { 1, 2 } }, { coefficients = { floats = { 1, 2, 3 } } })
    end)
    raises("it gives texts; outputs of flow.onnx.load may name its scores alone, 'scores'", function()
      local own = node("LinearClassifier", { "x" }, { "y", "scores" }, {
        coefficients = { floats = { 1, 2 } }, classlabels_strings = { strings = { "cat" } },
      })
      own.domain = "ai.onnx.ml"
      result_of(floats { { 1, 2 } }, { nodes = { own } })
    end)
  end)
end)
