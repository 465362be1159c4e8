-- Transposed convolution along one to three axes: against its definition, and as what its convolution turned around is.
local checks = require "checks"
local flow = require "moonflow"
local np, tp = flow.np, flow.typing
local count_up, near, refuses, run = checks.count_up, checks.near, checks.refuses, checks.run

local function one(x, body) return run({ x }, body) end

before_each(function()
  flow.clear_default_session()
  flow.set_seed(3)
end)

describe("conv2d_transpose", function()
  local function transposed(x, filter, options)
    return run({ x, filter }, function(b, f) return flow.nn.conv2d_transpose(b, f, options) end)
  end

  -- By its definition: each place is spread over its window. NCHW, one image, one group.
  local function spread(x, filter, height, width, strides, before, dilations)
    local _, channels, rows, columns = unpack(x.shape:table())
    local _, filters, kernel_rows, kernel_columns = unpack(filter.shape:table())
    local out = np.zeros({ 1, filters, height, width })
    for c = 0, channels - 1 do for y = 0, rows - 1 do for z = 0, columns - 1 do
      for f = 0, filters - 1 do for i = 0, kernel_rows - 1 do for j = 0, kernel_columns - 1 do
        local to_y = y * strides[1] - before[1] + i * dilations[1]
        local to_x = z * strides[2] - before[2] + j * dilations[2]
        if to_y >= 0 and to_y < height and to_x >= 0 and to_x < width then
          out:set(0, f, to_y, to_x, out:at(0, f, to_y, to_x) + x:at(0, c, y, z) * filter:at(c, f, i, j))
        end
      end end end
    end end end
    return out
  end

  it("spreads each place over a window", function()
    -- By hand: 1 and 2 in steps of 2, each times (1, 10, 100); they meet in the third column.
    local y = transposed(np.array({ { { { 1, 2 } } } }, flow.float), np.array({ { { { 1, 10, 100 } } } }, flow.float),
      { strides = { 1, 2 } })
    assert.is_true(y == np.array({ { { { 1, 10, 102, 20, 200 } } } }, flow.float))
  end)

  it("is its definition for any strides, dilations and padding", function()
    np.random.seed(1)
    local x = np.random.uniform(-1, 1, { 1, 3, 4, 5 }):astype(flow.float)
    local filter = np.random.uniform(-1, 1, { 3, 2, 3, 2 }):astype(flow.float)
    local function check(before, sizes, options)
      local strides, dilations = options.strides or { 1, 1 }, options.dilations or { 1, 1 }
      near(transposed(x, filter, options), spread(x, filter, sizes[1], sizes[2], strides, before, dilations), 1e-5)
    end
    check({ 0, 0 }, { 6, 6 }, { strides = { 1, 1 } })
    check({ 0, 0 }, { 9, 10 }, { strides = { 2, 2 } })
    check({ 0, 0 }, { 10, 11 }, { strides = { 2, 2 }, output_shape = { 1, 2, 10, 11 } })
    check({ 0, 0 }, { 10, 9 }, { strides = { 2, 1 }, dilations = { 1, 4 }, output_shape = { 1, 2, 10, 9 } })
    -- A window of 3 in steps of 2 is one too many, which goes to the bottom: SAME pads small at the top.
    check({ 0, 0 }, { 8, 10 }, { strides = { 2, 2 }, padding = "SAME" })
    check({ 1, 0 }, { 8, 10 }, { strides = { 2, 2 }, padding = "SAME_LOWER" })
    check({ 1, 0 }, { 7, 9 }, { strides = { 2, 2 }, padding = "SAME", output_shape = { 1, 2, 7, 9 } })
    check({ 1, 2 }, { 6, 6 }, { strides = { 2, 2 }, padding = { { 0, 0 }, { 0, 0 }, { 1, 2 }, { 2, 2 } } })
    check({ 1, 1 }, { 7, 8 }, { strides = { 2, 2 }, padding = 1 })
  end)

  it("turns conv2d around: what one gives the other takes, with the same filter", function()
    np.random.seed(2)
    local image = np.random.uniform(-1, 1, { 2, 4, 7, 7 }):astype(flow.float)
    local filter = np.random.uniform(-1, 1, { 6, 2, 3, 3 }):astype(flow.float)
    local value = np.random.uniform(-1, 1, { 2, 6, 4, 4 }):astype(flow.float)
    local forth, back = run({ image, filter, value }, function(i, f, v)
      local options = { strides = 2, groups = 2, padding = "SAME_UPPER" }
      local small = flow.nn.conv2d(i, f, options)
      options.output_shape = i.shape
      return small, flow.nn.conv2d_transpose(v, f, options)
    end, { returns = tp.Tuple { tp.Numpy, tp.Numpy } })
    assert.near(np.sum(forth * value), np.sum(image * back), 1e-3)
  end)

  it("takes channels last", function()
    np.random.seed(3)
    local x = np.random.uniform(-1, 1, { 2, 3, 4, 5 }):astype(flow.float)
    local filter = np.random.uniform(-1, 1, { 5, 3, 2, 4 }):astype(flow.float)
    local last = transposed(x, filter, { strides = 2, data_format = "NHWC", output_shape = { 2, 7, 9, 4 } })
    local first = transposed(x:transpose({ 0, 3, 1, 2 }):copy(), filter:transpose({ 0, 3, 1, 2 }):copy(),
      { strides = 2, output_shape = { 2, 4, 7, 9 } })
    near(last, first:transpose({ 0, 2, 3, 1 }), 1e-5)
  end)

  it("has gradients of value and filter", function()
    -- The loss is the sum of 0 to 15 times the output, so the gradients are conv2d of that, and its filter gradient.
    local weights = count_up({ 1, 1, 4, 4 })
    local seen = {}
    run({ np.array({ { { { 1, 2 }, { 3, 4 } } } }, flow.float), weights }, function(x, w)
      local filter = flow.get_variable("filter", { shape = { 1, 1, 2, 2 }, initializer = flow.ones_initializer() })
      local y = flow.nn.conv2d_transpose(x * 1, filter, { strides = 2 })
      flow.watch_diff(y, function(d) seen.y = d end)
      flow.watch_diff(filter, function(d) seen.filter = d end)
      local scaled = x * flow.get_variable("one", { shape = { 1, 1, 2, 2 }, initializer = flow.ones_initializer() })
      flow.watch_diff(scaled, function(d) seen.x = d end)
      flow.optimizer.SGD(0):minimize((y + flow.nn.conv2d_transpose(scaled, filter, { strides = 2 })) * w)
      return y
    end, { type = "train" })
    assert.is_true(seen.y == weights)
    assert.is_true(seen.x == np.array({ { { { 10, 18 }, { 42, 50 } } } }, flow.float))
    -- filter[0, 0]: 1*0 + 2*2 + 3*8 + 4*10, for both of the two outputs
    assert.is_true(seen.filter == np.array({ { { { 68, 78 }, { 108, 118 } } } }, flow.float) * 2)
  end)

  it("computes in mixed precision where conv2d does", function()
    np.random.seed(4)
    local x = np.random.uniform(-1, 1, { 1, 8, 6, 6 }):astype(flow.float)
    local filter = np.random.uniform(-1, 1, { 8, 8, 3, 3 }):astype(flow.float)
    local config = flow.function_config()
    config:enable_auto_mixed_precision(true)
    local function body(b, f) return flow.nn.conv2d_transpose(b, f, { strides = 2, padding = "SAME" }) end
    local inputs = { x, filter }
    -- 72 products of numbers below 1, each within 2^-8.
    near(run(inputs, body, { function_config = config }), run(inputs, body), 0.2)
  end)

  it("says what does not fit", function()
    local x, filter = np.ones({ 1, 3, 4, 4 }), np.ones({ 3, 2, 3, 3 })
    local function fails(pattern, options, other)
      refuses(pattern, function() transposed(x, other or filter, options) end)
    end
    fails("'b' (1, 3, 4, 4) has 3 channels, filter 'f' (2, 3, 3, 3) is for 2", {}, np.ones({ 2, 3, 3, 3 }))
    fails("'f' is (3, 3), wanted rank 4, (channels, filters / groups, kernel height, kernel width)", {},
      np.ones({ 3, 3 }))
    fails("output_shape {1, 2, 11, 9} has height 11; 'b' (1, 3, 4, 4) in steps of 2 comes from 9 to 10",
      { strides = 2, output_shape = { 1, 2, 11, 9 } })
    fails("output_shape {1, 2, 7, 6} has width 6; 'b' (1, 3, 4, 4) in steps of 2 comes from 7 to 8",
      { strides = 2, padding = "SAME", output_shape = { 1, 2, 7, 6 } })
    fails("output_shape is {1, 5, 6, 6}, wanted {1, 2, 6, 6}", { output_shape = { 1, 5, 6, 6 } })
    fails("output_shape is {6, 6}, wanted {1, 2, 6, 6}", { output_shape = { 6, 6 } })
    fails("3 channels cannot be split into 2 groups", { groups = 2 })
    fails("data_format is 'NCWH', wanted 'NCHW' or 'NHWC'", { data_format = "NCWH" })
    fails("padding has 3 numbers", { padding = { 1, 2, 3 } })
    fails("padding leaves nothing of 'b'", { padding = 3 })
    fails("strides must be whole numbers from 1", { strides = 0 })
    fails("padding is \"same\"", { padding = "same" })
    fails("has no option 'stride'; did you mean 'strides'?", { stride = 2 })
  end)

  it("is a layer too", function()
    local y = one(np.ones({ 2, 4, 5, 5 }), function(b)
      return flow.layers.conv2d_transpose(b, 6, 3, {
        name = "up", strides = 2, padding = "SAME", groups = 2, activation = flow.nn.relu,
        kernel_initializer = flow.ones_initializer(), bias_initializer = flow.constant_initializer(0.5),
      })
    end)
    assert.same({ "up-bias (6)", "up-weight (4, 3, 3, 3)" }, checks.variables())
    assert.equal("(2, 6, 10, 10)", tostring(y.shape))
    assert.equal(8.5, y:at(1, 5, 2, 2)) -- four windows of two channels meet
    assert.equal(2.5, y:at(1, 5, 1, 1)) -- one
  end)
end)

describe("conv1d_transpose and conv3d_transpose", function()
  local function values(shape, seed)
    np.random.seed(seed)
    return np.random.uniform(-1, 1, shape):astype(flow.float)
  end
  local paddings = { "VALID", "SAME", "SAME_LOWER", 1 }

  it("spread each place over a window", function()
    -- By hand: 1 and 2 in steps of 2, each times (1, 10, 100); they meet in the third place.
    local x, filter = np.array({ { { 1, 2 } } }, flow.float), np.array({ { { 1, 10, 100 } } }, flow.float)
    local function signal(b, f) return flow.nn.conv1d_transpose(b, f, { strides = 2 }) end
    assert.same({ { { 1, 10, 102, 20, 200 } } }, run({ x, filter }, signal):totable())
    local function volume(b, f) return flow.nn.conv3d_transpose(b, f, { strides = { 2, 1, 1 } }) end
    x, filter = x:reshape(1, 1, 2, 1, 1), filter:reshape(1, 1, 3, 1, 1)
    assert.same({ 1, 10, 102, 20, 200 }, run({ x, filter }, volume):ravel():totable())
  end)

  it("of one axis is that of images of height 1", function()
    local x, filter = values({ 2, 4, 5 }, 1), values({ 4, 3, 4 }, 2)
    for _, padding in ipairs(paddings) do
      local options = { strides = 3, dilations = 2, groups = 2, padding = padding }
      local flat, image = run({ x, filter }, function(b, f)
        local wide = { strides = { 1, 3 }, dilations = { 1, 2 }, groups = 2 }
        wide.padding = type(padding) == "number" and { 0, padding } or padding
        return flow.nn.conv1d_transpose(b, f, options), flow.nn.conv2d_transpose(flow.reshape(b, { 2, 4, 1, 5 }),
          flow.reshape(f, { 4, 3, 1, 4 }), wide)
      end, { returns = tp.Tuple { tp.Numpy, tp.Numpy } })
      near(flat, image:reshape(flat.shape:table()), 1e-5)
    end
  end)

  it("turn their convolutions around, channels first and last", function()
    local image, filter = values({ 2, 4, 7, 6, 5 }, 3), values({ 6, 2, 3, 2, 3 }, 4)
    for _, padding in ipairs { "VALID", "SAME_UPPER", "SAME_LOWER", { 1, 0, 1 } } do
      local options = { strides = { 2, 1, 2 }, groups = 2, padding = padding, dilations = { 1, 2, 1 } }
      local small = run({ image, filter }, function(b, f) return flow.nn.conv3d(b, f, options) end)
      local value = values(small.shape:table(), 5)
      options.output_shape = image.shape
      local back, last = run({ value, filter }, function(v, f)
        local of_last = { data_format = "NDHWC", output_shape = { 2, 7, 6, 5, 4 } }
        for name, option in pairs(options) do of_last[name] = of_last[name] or option end
        local perm = { 0, 2, 3, 4, 1 }
        return flow.nn.conv3d_transpose(v, f, options), flow.nn.conv3d_transpose(
          flow.transpose(v, perm), flow.transpose(f, perm), of_last)
      end, { returns = tp.Tuple { tp.Numpy, tp.Numpy } })
      assert.near(np.sum(small * value), np.sum(image * back), 1e-3)
      near(last, back:transpose { 0, 2, 3, 4, 1 }, 1e-5)
    end
  end)

  it("have gradients", function()
    local signal = values({ 1, 2, 4 }, 6):astype(flow.double)
    local filter = values({ 2, 1, 3 }, 7):astype(flow.double)
    local function loss_of(x) return flow.math.reduce_sum(x * x * x) end
    local function job(is_volume)
      return function(b, f)
        local y
        if is_volume then
          y = flow.nn.conv3d_transpose(flow.reshape(b, { 1, 2, 4, 1, 1 }), flow.reshape(f, { 2, 1, 3, 1, 1 }),
            { strides = { 2, 1, 1 } })
        else
          y = flow.nn.conv1d_transpose(b, f, { strides = 2 })
        end
        local loss = loss_of(y)
        local of_b, of_f = unpack(flow.gradients(loss, { b, f }))
        return loss, of_b, of_f
      end
    end
    for _, is_volume in ipairs { false, true } do
      local function at(x, f)
        return run({ x, f }, job(is_volume), { returns = tp.Tuple { tp.Numpy, tp.Numpy, tp.Numpy } })
      end
      local _, of_x, of_f = at(signal, filter)
      for i, pair in ipairs { { signal, of_x }, { filter, of_f } } do
        local x, gradient, step = pair[1], pair[2], 1e-5
        for at_place = 0, x.shape:count() - 1 do
          local function moved(by)
            local other = x:copy():ravel()
            other[at_place] = other[at_place] + by
            other = other:reshape(x.shape:table())
            if i == 1 then return at(other, filter):item() end
            return at(signal, other):item()
          end
          assert.near((moved(step) - moved(-step)) / (2 * step), gradient:ravel()[at_place], 1e-6)
        end
      end
    end
  end)

  it("say what does not fit", function()
    local x, filter = np.ones { 1, 3, 4 }, np.ones { 2, 2, 3 }
    refuses("flow.nn.conv1d_transpose: 'b' (1, 3, 4) has 3 channels, filter 'f' (2, 2, 3) is for 2", function()
      run({ x, filter }, function(b, f) return flow.nn.conv1d_transpose(b, f) end)
    end)
    refuses("'b' is (1, 3, 4), wanted rank 5, NCDHW", function()
      run({ x, filter }, function(b, f) return flow.nn.conv3d_transpose(b, f) end)
    end)
    refuses("output_shape {1, 3, 9} has width 9; 'b' (1, 2, 4) in steps of 1 comes from 6 to 6", function()
      run({ np.ones { 1, 2, 4 }, np.ones { 2, 3, 3 } }, function(b, f)
        return flow.nn.conv1d_transpose(b, f, { output_shape = { 1, 3, 9 } })
      end)
    end)
  end)

  it("are layers too", function()
    local signal, volume = run({ np.ones { 2, 4, 5 }, np.ones { 2, 4, 3, 2, 2 } }, function(b, f)
      return flow.layers.conv1d_transpose(b, 6, 4, { name = "up", strides = 2, padding = 1 }),
        flow.layers.conv3d_transpose(f, 3, 2, { name = "grow", strides = 2, padding = "SAME" })
    end, { returns = tp.Tuple { tp.Numpy, tp.Numpy } })
    assert.equal("(2, 6, 10)", tostring(signal.shape))
    assert.equal("(2, 3, 6, 4, 4)", tostring(volume.shape))
    assert.same({ "grow-bias (3)", "grow-weight (4, 3, 2, 2, 2)", "up-bias (6)", "up-weight (4, 6, 4)" },
      checks.variables())
  end)
end)
