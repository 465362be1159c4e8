-- Rewrites: what looks as if it could be fused and is another thing gives what its ops give one by one.
local checks = require "checks"
local flow = require "moonflow"
local np, tp = flow.np, flow.typing
local run = checks.run

-- A rate of exactly 1, so that a step is the gradient.
local rate = flow.optimizer.PiecewiseConstantScheduler({}, { 1 })

before_each(function() flow.clear_default_session() end)

local function same(expected, got)
  assert.is_true(got == np.array(expected, got.dtype), tostring(got))
end

describe("a sum of bordered values is no concatenation", function()
  it("where the borders are no zeros", function()
    same({ 15, 25, 31, 41 }, run({ np.array { 10, 20 }, np.array { 30, 40 } }, function(a, b)
      return flow.pad(a, { paddings = { 0, 2 }, constant_value = 1 })
        + flow.pad(b, { paddings = { 2, 0 }, constant_value = 5 })
    end))
  end)

  it("where they lie over each other", function()
    same({ 10, 50, 0 }, run({ np.array { 10, 20 }, np.array { 30 } }, function(a, b)
      return flow.pad(a, { paddings = { 0, 1 } }) + flow.pad(b, { paddings = { 1, 1 } })
    end))
  end)

  it("where they are side by side along two axes", function()
    same({ { 10, 20 }, { 0, 30 } }, run({ np.array { { 10, 20 } }, np.array { { 30 } } }, function(a, b)
      return flow.pad(a, { paddings = { 0, 1, 0, 0 } }) + flow.pad(b, { paddings = { 1, 0, 1, 0 } })
    end))
  end)
end)

describe("behind a convolution", function()
  local images = np.zeros({ 1, 1, 3, 3 })

  local function three_channels(x)
    local filter = flow.get_variable("f", { shape = { 3, 1, 1, 1 }, initializer = flow.ones_initializer() })
    return flow.nn.conv2d(x, filter, { strides = 1, padding = "VALID" })
  end

  local function bias() return flow.get_variable("bias", { shape = { 3 }, initializer = flow.zeros_initializer() }) end

  it("a bias of another axis, of as many elements, is none of the channels", function()
    local y = run({ images }, function(a)
      return flow.nn.bias_add(three_channels(a), bias() + flow.range(3), { data_format = "NHWC" })
    end)
    for channel = 0, 2 do
      for row = 0, 2 do same({ 0, 1, 2 }, y[0][channel][row]) end
    end
  end)

  it("nor is its gradient", function()
    run({ images, np.arange(27):reshape({ 1, 3, 3, 3 }):astype(flow.float) }, function(a, b)
      local y = flow.nn.bias_add(three_channels(a), bias(), { data_format = "NHWC" })
      local loss = flow.math.reduce_sum(y * b)
      flow.optimizer.SGD(rate, { momentum = 0 }):minimize(loss)
      return loss
    end, { type = "train" })
    same({ -108, -117, -126 }, flow.get_all_variables().bias)
  end)

  it("a normalisation along another axis is not that of the filters", function()
    local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 1, 1, 3, 3 }) }, returns = tp.Numpy } (
      function(x)
        return flow.layers.batch_normalization(three_channels(x), { axis = 3, training = false, name = "bn" })
      end)
    job(images)
    flow.load_variables { ["bn-beta"] = np.arange(3):astype(flow.float) }
    local y = job(images)
    for channel = 0, 2 do
      for row = 0, 2 do same({ 0, 1, 2 }, y[0][channel][row]) end
    end
  end)
end)

describe("a relu", function()
  it("before a sum is not one behind it", function()
    local shape = { 2, 32, 24, 24 }
    local y = run({ np.ones(shape), np.full(shape, -1) }, function(a, b)
      local filter = flow.get_variable("f", { shape = { 32, 32, 3, 3 }, initializer = flow.constant_initializer(-1) })
      local bias = flow.get_variable("bias", { shape = { 32 }, initializer = flow.zeros_initializer() })
      return flow.nn.relu(flow.nn.bias_add(flow.nn.conv2d(a, filter, { strides = 1, padding = "SAME" }), bias)) + b
    end)
    assert.equal(-1, y:min())
    assert.equal(-1, y:max())
  end)

  it("of another value than what is pooled lets its own gradient by", function()
    local image = np.full({ 1, 1, 4, 4 }, -1)
    image:set(0, 0, 0, 0, 5)
    run({ image }, function(a)
      local y = flow.nn.relu(a + flow.get_variable("s", { shape = { 1 }, initializer = flow.zeros_initializer() }))
      local loss = flow.math.reduce_sum(flow.nn.max_pool2d(y + 1, { ksize = 2, strides = 2, padding = "VALID" }))
      flow.optimizer.SGD(rate, { momentum = 0 }):minimize(loss)
      return loss
    end, { type = "train" })
    same({ -1 }, flow.get_all_variables().s)  -- one window of four passes it
  end)

  it("whose gradient is watched shows it, behind a normalisation and a sum too", function()
    local shape, seen = { 4, 3, 5, 5 }, nil
    local generator = np.random.default_rng(1)
    run({ generator:uniform(-1, 1, shape):astype(flow.float), generator:uniform(-1, 1, shape):astype(flow.float) },
      function(a, b)
        local s = flow.get_variable("s", { shape = { 1 }, initializer = flow.ones_initializer() })
        local normal = flow.layers.batch_normalization(a * s, { axis = 1, name = "bn" })
        local y = flow.nn.relu(normal + b * s)
        flow.watch(y, function(value) seen = value end)
        flow.watch_diff(y, function(gradient)
          assert.is_true(np.allclose(gradient, 2 + 2 * seen, { atol = 1e-5 }))
          seen = "both"
        end)
        local loss = flow.math.reduce_sum(y * 2) + flow.math.reduce_sum(flow.math.square(y))
        flow.optimizer.SGD(rate, { momentum = 0 }):minimize(loss)
        return loss
      end, { type = "train" })
    flow.sync()
    assert.equal("both", seen)
  end)
end)

describe("a dense layer behind a relu", function()
  it("and a sum does not take the relu for what it reads", function()
    local labels = np.array({ 0, 1, 1, 1 }, "int32")
    flow.global_function { type = "train", returns = tp.None, inputs = {
      { "x", tp.Numpy.Placeholder({ 4, 3 }) }, { "wanted", tp.Numpy.Placeholder({ 4 }, "int32") } },
    } (function(x, wanted)
      local y = flow.nn.relu(x + flow.get_variable("s", { shape = { 3 }, initializer = flow.zeros_initializer() })) + 1
      local w = flow.get_variable("w", { shape = { 2, 3 }, initializer = flow.random_uniform_initializer(-1, 1) })
      local b = flow.get_variable("b", { shape = { 2 }, initializer = flow.zeros_initializer() })
      local logits = flow.nn.bias_add(flow.matmul(y, w, { transpose_b = true }), b)
      flow.optimizer.SGD(1, { momentum = 0 }):minimize(flow.nn.sparse_softmax_cross_entropy_with_logits(wanted, logits))
    end)(np.full({ 4, 3 }, -1), labels)
    same({ 0, 0, 0 }, flow.get_all_variables().s)
  end)

  it("may show its classes, and have its loss squared", function()
    for _, squared in ipairs { false, true } do
      flow.clear_default_session()
      local loss, classes = flow.global_function {
        type = "train", returns = tp.Tuple { tp.Numpy, tp.Numpy }, inputs = {
          { "x", tp.Numpy.Placeholder({ 4, 3 }) }, { "wanted", tp.Numpy.Placeholder({ 4 }, "int32") } },
      } (function(x, wanted)
        local w = flow.get_variable("w", { shape = { 2, 3 }, initializer = flow.ones_initializer() })
        local b = flow.get_variable("b", { shape = { 2 }, initializer = flow.zeros_initializer() })
        local logits = flow.nn.bias_add(flow.matmul(x, w, { transpose_b = true }), b)
        local of_each = flow.nn.sparse_softmax_cross_entropy_with_logits(wanted, logits)
        if squared then of_each = of_each * of_each end
        flow.optimizer.SGD(1, { momentum = 0 }):minimize(of_each)
        return of_each, flow.math.argmax(logits)
      end)(np.full({ 4, 3 }, -1), np.array({ 0, 1, 1, 1 }, "int32"))
      local wanted = squared and math.log(2) ^ 2 or math.log(2)
      assert.is_true(np.allclose(loss, np.full({ 4 }, wanted), { atol = 1e-6 }))
      same({ 0, 0, 0, 0 }, classes)
      -- Three of four labels are 1, and each row has gone half the way to its own.
      local step = (squared and 2 * math.log(2) or 1) / 4
      assert.is_true(np.allclose(flow.get_all_variables().b, np.array { -step, step }, { atol = 1e-6 }))
    end
  end)
end)

describe("a stack of weights", function()
  it("learns as a whole", function()
    run({ np.arange(6):reshape({ 2, 1, 3 }):astype(flow.float) }, function(a)
      local w = flow.get_variable("w", { shape = { 2, 3, 4 }, initializer = flow.ones_initializer() })
      local loss = flow.math.reduce_sum(flow.matmul(a, w))
      flow.optimizer.SGD(rate, { momentum = 0 }):minimize(loss)
      return loss
    end, { type = "train" })
    local w = flow.get_all_variables().w
    for i = 0, 5 do same({ 1 - i, 1 - i, 1 - i, 1 - i }, w[math.floor(i / 3)][i % 3]) end
  end)
end)

-- Between layers images may lie in blocks of channels, which not every op keeps whole.
describe("a convolved image", function()
  local generator = np.random.default_rng(1)
  local images = generator:uniform(-1, 1, { 2, 32, 12, 12 }):astype(flow.float)
  local some = generator:uniform(0, 1, { 2, 20, 12, 12 }):astype(flow.float)
  local more = generator:uniform(0, 1, { 2, 12, 12, 12 }):astype(flow.float)

  -- relu of what `form` makes of it.
  local function formed(name, form)
    return run({ images, some, more }, function(a, b, c)
      local filter = flow.get_variable("f", { shape = { 32, 32, 3, 3 },
                                              initializer = flow.random_uniform_initializer(-1, 1) })
      return flow.nn.relu(form(flow.nn.conv2d(a, filter, { strides = 1, padding = "SAME" }), b, c))
    end, { name = name })
  end

  local function check(wanted, form)
    local got = formed("formed", form)
    assert.equal(tostring(wanted.shape), tostring(got.shape))
    assert.is_true(np.allclose(got, wanted, { atol = 1e-3 }))
  end

  it("may be cut, joined to others, and take another shape", function()
    local whole = formed("whole", function(y) return y end)
    check(whole:slice(":, :, 2:7, 3:9"), function(y) return flow.slice(y, { 0, 0, 2, 3 }, { 2, 32, 5, 6 }) end)
    check(whole:slice(":, :20"), function(y) return flow.slice(y, { 0, 0, 0, 0 }, { 2, 20, 12, 12 }) end)
    check(np.concatenate({ whole, some, more }, 1), function(y, b, c) return flow.concat({ y, b, c }, { axis = 1 }) end)
    check(whole:reshape({ 2, 64, 72 }), function(y) return flow.reshape(y, { 2, 64, 72 }) end)
  end)
end)

describe("behind a convolution and its bias", function()
  local shape = { 2, 32, 24, 24 }

  local function convolved(x)
    local filter = flow.get_variable("f", { shape = { 32, 32, 3, 3 }, initializer = flow.ones_initializer() })
    local bias = flow.get_variable("b", { shape = { 32 }, initializer = flow.zeros_initializer() })
    return flow.nn.bias_add(flow.nn.conv2d(x, filter, { strides = 1, padding = "SAME" }), bias)
  end

  local function pooled(x, size)
    return flow.nn.max_pool2d(x, { ksize = size, strides = size, padding = "VALID" })
  end

  it("there may be two poolings", function()
    local y, z = run({ np.ones(shape) }, function(a)
      local rectified = flow.nn.relu(convolved(a))
      return pooled(rectified, 3), pooled(rectified, 2)
    end, { returns = tp.Tuple { tp.Numpy, tp.Numpy } })
    assert.equal("(2, 32, 8, 8) 288", tostring(y.shape) .. " " .. y:max())
    assert.equal("(2, 32, 12, 12) 288", tostring(z.shape) .. " " .. z:max())
  end)

  it("a pooling may follow another activation than relu", function()
    local y = run({ np.ones(shape) }, function(a) return pooled(flow.nn.relu6(convolved(a)), 2) end)
    assert.equal(6, y:min())
    assert.equal(6, y:max())
  end)
end)

describe("a value within what is fused", function()
  local slow = flow.optimizer.PiecewiseConstantScheduler({}, { 0.1 })
  local generator = np.random.default_rng(2)
  local images = generator:uniform(-1, 1, { 2, 32, 12, 12 }):astype(flow.float)
  local labels = np.array({ 1, 3 }, "int32")

  -- Two steps of a small residual network: what is seen of the values and gradients with these numbers, by name.
  local function seen(asked)
    flow.clear_default_session()
    flow.set_seed(3)
    local found = {}
    local job = flow.global_function { type = "train", returns = tp.None, inputs = {
      { "x", tp.Numpy.Placeholder({ 2, 32, 12, 12 }) }, { "wanted", tp.Numpy.Placeholder({ 2 }, "int32") } },
    } (function(x, wanted)
      local count = 0
      local function note(value)
        count = count + 1
        local name = tostring(count)
        if asked[name] then flow.watch(value, function(y) found[name] = y end) end
        if asked["d" .. name] then flow.watch_diff(value, function(dy) found["d" .. name] = dy end) end
        return value
      end
      local function variable(name, size, of) return flow.get_variable(name, { shape = size, initializer = of }) end
      local random = flow.random_normal_initializer(0, 0.1)
      local scaled = note(x * variable("s", { 1 }, flow.ones_initializer()))
      local y = note(flow.nn.conv2d(scaled, variable("f", { 32, 32, 3, 3 }, random), { strides = 1, padding = "SAME" }))
      y = note(flow.nn.relu(note(flow.nn.bias_add(y, variable("b", { 32 }, random)))))
      y = note(flow.nn.max_pool2d(y, { ksize = 2, strides = 2, padding = "VALID" }))
      local normal = note(flow.layers.batch_normalization(y, { axis = 1, name = "bn" }))
      y = note(flow.nn.relu(note(normal + y)))
      normal = note(flow.layers.batch_normalization(y, { axis = 1, name = "again" }))
      y = note(flow.nn.relu(normal))
      y = note(flow.reshape(y, { 2, -1 }))
      y = note(flow.nn.bias_add(flow.matmul(y, variable("w", { 8, 1152 }, random), { transpose_b = true }),
        variable("c", { 8 }, random)))
      y = note(flow.nn.relu(y))
      y = note(flow.nn.bias_add(flow.matmul(y, variable("v", { 4, 8 }, random), { transpose_b = true }),
        variable("d", { 4 }, random)))
      local loss = note(flow.nn.sparse_softmax_cross_entropy_with_logits(wanted, y))
      flow.optimizer.SGD(slow):minimize(loss)
      found.count = count
    end)
    job(images, labels)
    job(images, labels)
    flow.sync()
    return found
  end

  it("is what it is when all others are watched too, and so is its gradient", function()
    local all = seen(setmetatable({}, { __index = function() return true end }))
    assert.equal(15, all.count)
    for i = 1, all.count do
      for _, name in ipairs { tostring(i), "d" .. i } do
        local alone = seen({ [name] = true })[name]
        local size = math.max(1, np.abs(all[name]):max())
        assert.is_true(np.allclose(alone, all[name], { rtol = 0, atol = 1e-4 * size }), name)
      end
    end
  end)
end)

describe("a sum of two products", function()
  it("is one of joined matrices, transposed or not", function()
    local six, twelve = np.arange(6):astype(flow.float), np.arange(12):astype(flow.float)
    for _, turned in ipairs { { false, false }, { false, true }, { true, false }, { true, true } } do
      local left = six:reshape(turned[1] and { 3, 2 } or { 2, 3 })
      local right = twelve:reshape(turned[2] and { 4, 3 } or { 3, 4 })
      local options = { transpose_a = turned[1], transpose_b = turned[2] }
      local sum = run({ left, right, left, right }, function(a, b, c, d)
        return flow.matmul(a, b, options) + flow.matmul(c, d, options)
      end)
      local one = np.matmul(turned[1] and left:transpose() or left, turned[2] and right:transpose() or right)
      assert.is_true(sum == one * 2, tostring(sum))
    end
  end)

  it("may be part of a longer chain of element-wise ops", function()
    local x, y = np.arange(12):reshape({ 4, 3 }):astype(flow.float), np.ones({ 5, 3 })
    local pooled = run({ x, y }, function(a, b)
      return (flow.matmul(a, a, { transpose_a = true }) + flow.matmul(b, b, { transpose_a = true }) + 1) * 2
    end)
    assert.is_true(pooled == (np.matmul(x:transpose(), x) + np.matmul(y:transpose(), y) + 1) * 2, tostring(pooled))
  end)
end)

-- Where a net has diverged, a zero would hide it: the loss would go on falling.
describe("an activation with what is before it lets a NaN through", function()
  local none = 0 / 0

  -- What `body` gives alone, and beside the value that its activation is given, where nothing can be taken together.
  local function agrees(what, arrays, before, activation)
    local alone = run(arrays, function(a, b) return flow.nn[activation](before(a, b)) end)
    flow.clear_default_session()
    local _, wanted = run(arrays, function(a, b)
      local y = before(a, b)
      return y, flow.nn[activation](y)
    end, { returns = tp.Tuple { tp.Numpy, tp.Numpy } })
    flow.clear_default_session()
    local lost = wanted:ne(wanted)
    assert.is_true(lost:sum() > 0, what)
    assert.is_true(alone:ne(alone) == lost, what .. ": " .. tostring(alone:ne(alone):sum()) .. " NaN, wanted "
      .. tostring(lost:sum()))
    assert.is_true(np.allclose(np.where(lost, 0, alone), np.where(lost, 0, wanted), { rtol = 1e-4, atol = 1e-4 }), what)
  end

  it("behind a convolution", function()
    np.random.seed(4)
    for _, data_format in ipairs { "NCHW", "NHWC" } do
      for _, case in ipairs { { 3, 1, 1 }, { 1, 2, 1 }, { 3, 2, 1 }, { 3, 1, 16 }, { 5, 1, 1 } } do
        local size, strides, groups = unpack(case)
        local last = data_format == "NHWC"
        local x = np.random.normal(0, 1, last and { 2, 9, 9, 16 } or { 2, 16, 9, 9 }):astype(flow.float)
        x:set(1, 4, 4, 4, none)
        local filters = groups == 1 and 24 or 16
        local w = np.random.normal(0, 0.2, last and { filters, size, size, 16 / groups }
          or { filters, 16 / groups, size, size }):astype(flow.float)
        for _, activation in ipairs { "relu", "relu6" } do
          for _, with_bias in ipairs { false, true } do
            agrees(("%s %d strides %d groups %d %s"):format(data_format, size, strides, groups, activation), { x, w },
              function(a, b)
                local y = flow.nn.conv2d(a, b,
                  { strides = strides, padding = "SAME", groups = groups, data_format = data_format })
                if not with_bias then return y end
                local bias = flow.get_variable("bias", { shape = { filters }, initializer = flow.ones_initializer() })
                return flow.nn.bias_add(y, bias, { data_format = data_format })
              end, activation)
          end
        end
      end
    end
  end)

  it("behind a product", function()
    np.random.seed(5)
    for _, shape in ipairs { { 1, 7, 5 }, { 64, 300, 128 }, { 300, 784, 512 } } do
      local rows, inner, columns = unpack(shape)
      local x = np.random.normal(0, 1, { rows, inner }):astype(flow.float)
      x:set(rows - 1, 3, none)
      for _, transposed in ipairs { false, true } do
        local w = np.random.normal(0, 0.1, transposed and { columns, inner } or { inner, columns }):astype(flow.float)
        agrees(("%d x %d x %d, %s"):format(rows, inner, columns, transposed), { x, w }, function(a, b)
          local bias = flow.get_variable("bias", { shape = { columns }, initializer = flow.ones_initializer() })
          return flow.nn.bias_add(flow.matmul(a, b, { transpose_b = transposed }), bias)
        end, "relu")
      end
    end
  end)
end)

describe("max pooling takes a NaN where a window holds nothing else", function()
  local none, places = 0 / 0, { { 0, 0 }, { 0, 1 }, { 1, 0 }, { 1, 1 } }

  it("behind a convolution with relu, whatever is taken together", function()
    for _, channels in ipairs { 1, 16 } do
      for _, place in ipairs(places) do
        -- The infinity makes -infinity of three places of the first window, and NaN of this one.
        local x, w = np.zeros { 1, channels, 8, 8 }, np.full({ 16, channels, 3, 3 }, -1)
        x:set(0, 0, 0, 0, math.huge)
        w:set(("..., %d, %d"):format(1 - place[1], 1 - place[2]), 0)
        local function body(shown)
          return function(a, b)
            local y = flow.nn.relu(flow.nn.bias_add(flow.nn.conv2d(a, b, { padding = "SAME" }), np.zeros { 16 }))
            local pooled = flow.nn.max_pool2d(y, { ksize = 2, strides = 2 })
            if shown then return y, pooled end
            return pooled
          end
        end
        local config = { winograd = false }
        local y, apart = run({ x, w }, body(true),
          { returns = tp.Tuple { tp.Numpy, tp.Numpy }, function_config = config })
        assert.equal(16, np.isnan(y):sum())
        local what = ("%d channels, place %d, %d"):format(channels, unpack(place))
        assert.is_true(apart == np.zeros { 1, 16, 4, 4 }, what)
        assert.is_true(run({ x, w }, body(false), { function_config = config }) == apart, what)
        -- A NaN of the image is in all four, and in no other window.
        x:set(0, 0, 0, 0, none)
        w:set("...", 1)
        local pooled = run({ x, w }, body(false), { function_config = config })
        assert.equal(16, np.isnan(pooled:slice("..., 0, 0")):sum(), what)
        flow.clear_default_session()
      end
    end
  end)

  it("and its gradient goes to a number", function()
    for _, channels in ipairs { 4, 8, 16, 40 } do
      for _, with_relu in ipairs { false, true } do
        for i, place in ipairs(places) do
          local x, largest = np.ones { 1, 2, 2, channels }, places[i % 4 + 1]
          x:set(0, place[1], place[2], 0, none)
          x:set(0, largest[1], largest[2], 0, 5)
          x:set(("0, :, :, %d"):format(channels - 1), none)
          local pooled, gradient = run({ x }, function(a)
            local y = with_relu and flow.nn.relu(a) or a
            y = flow.nn.max_pool2d(y, { ksize = 2, strides = 2, data_format = "NHWC" })
            return y, flow.gradients(y, a)
          end, { returns = tp.Tuple { tp.Numpy, tp.Numpy } })
          local what = ("%d channels, %s, place %d"):format(channels, tostring(with_relu), i)
          assert.equal(5, pooled:at(0, 0, 0, 0), what)
          assert.equal(channels - 1, gradient:slice((":, :, :, :%d"):format(channels - 1)):sum(), what)
          assert.equal(1, gradient:at(0, largest[1], largest[2], 0), what)
          -- Where there is nothing but NaN the first one has it, and relu lets nothing by.
          same({ { with_relu and 0 or 1, 0 }, { 0, 0 } }, gradient:slice(("0, :, :, %d"):format(channels - 1)))
          flow.clear_default_session()
        end
      end
    end
  end)
end)

-- What is taken together is there at once, so nothing in it may wait for another part of it.
describe("gradients that a net computes with", function()
  it("may come into the convolution whose bias they are of", function()
    local x, w, b = np.ones { 1, 2, 5, 5 }, np.full({ 3, 2, 3, 3 }, 0.5), np.zeros { 3 }
    local function conv(a, f) return flow.nn.conv2d(a, f, { padding = "SAME" }) end
    local of_bias, of_filter = run({ x, w, b }, function(a, f, c)
      local of_bias = flow.gradients(flow.nn.bias_add(conv(a, f), c), c)
      return of_bias, flow.gradients(conv(a * flow.math.reduce_sum(of_bias), f), f)
    end, { returns = tp.Tuple { tp.Numpy, tp.Numpy } })
    same({ 25, 25, 25 }, of_bias)
    assert.equal(75 * 25, of_filter:at(0, 0, 1, 1))
  end)

  it("may be added to the norm that they go through", function()
    local x = np.random.default_rng(1):normal(0, 1, { 2, 4, 5, 5 }):astype(flow.float)
    local function given(with_relu)
      flow.clear_default_session()
      return run({ x }, function(a)
        local y = flow.layers.batch_normalization(a, { name = "norm" })
        local sum = y + flow.gradients(flow.math.reduce_sum(y ^ 3), a)
        flow.optimizer.SGD(rate, { momentum = 0 }):minimize(flow.math.reduce_sum(sum))
        return with_relu and flow.nn.relu(sum) or sum
      end, { type = "train" })
    end
    local sum = given(false)
    checks.near(np.maximum(sum, 0), given(true), 1e-5)
  end)
end)

describe("a filter that is computed", function()
  local nn = flow.nn

  -- What a body gives for arrays of these shapes, where `rows` is a function that leaves a value as it is, and where it
  -- has a value go by rows.
  local function alike(shapes, body)
    local inputs = {}
    for i, shape in ipairs(shapes) do
      np.random.seed(i)
      inputs[i] = np.random.uniform(-1, 1, shape):astype(flow.float)
    end
    local function by_rows(value)
      return flow.reshape(flow.reshape(value, { value.shape:count() }), value.shape:table())
    end
    local function as_it_is(value) return value end
    local got = run(inputs, function(x, w, f) return body(as_it_is, x, w, f) end)
    local wanted = run(inputs, function(x, w, f) return body(by_rows, x, w, f) end)
    checks.near(wanted, got, 1e-3)
  end

  it("by a convolution is one for Winograd's algorithm", function()
    alike({ { 1, 16, 17, 17 }, { 16, 16, 3, 3 }, { 16, 16, 1, 1 } }, function(rows, x, w, f)
      return nn.conv2d(x, rows(nn.conv2d(w, f)))
    end)
  end)

  it("is one for groups, along one axis too", function()
    alike({ { 2, 48, 9, 9 }, { 48, 16, 3, 3 }, { 16, 16, 1, 1 } }, function(rows, x, w, f)
      return nn.conv2d(x, rows(nn.conv2d(w, f)), { groups = 3, padding = "SAME" })
    end)
    alike({ { 2, 48, 9, 9 }, { 48, 1, 3, 3 }, { 1, 1, 1, 1 } }, function(rows, x, w, f)
      return nn.conv2d(x, rows(nn.conv2d(w, f)), { groups = 48, padding = "SAME" })
    end)
    alike({ { 2, 48, 9 }, { 48, 16, 3 }, { 16, 16, 1 } }, function(rows, x, w, f)
      return nn.conv1d(x, rows(nn.conv1d(w, f)), { groups = 3, padding = "SAME" })
    end)
  end)

  it("has gradients of both", function()
    alike({ { 3, 2, 6, 3 }, { 12, 2, 3, 1 }, { 2, 2, 2, 2 } }, function(rows, x, w, f)
      local one = nn.conv2d(x, w, { padding = "SAME", data_format = "NHWC", groups = 3 })
      local other = nn.conv2d_transpose(rows(w), f)
      return flow.gradients({ flow.math.reduce_sum(nn.relu(one)), flow.math.reduce_sum(nn.relu(other)) }, w)
    end)
  end)
end)

describe("images whose channels come first and last by turns", function()
  for _, dtype in ipairs { "float32", "bfloat16", "float16" } do
    it("are read as they are written, in " .. dtype, function()
      local function flow_of(shapes, body)
        local inputs = {}
        for i, shape in ipairs(shapes) do
          np.random.seed(i)
          inputs[i] = np.random.uniform(-1, 1, shape):astype(dtype)
        end
        local function through(wide)
          local given = {}
          for i, x in ipairs(inputs) do given[i] = wide and x:astype(flow.double) or x end
          return run(given, body):astype(flow.double)
        end
        checks.near(through(true), through(false), dtype == "float32" and 1e-4 or 0.15)
      end
      flow_of({ { 1, 8, 4, 3 }, { 16, 8, 1, 1 }, { 5, 1, 1, 3 } }, function(x, a, b)
        return flow.nn.conv2d(flow.nn.conv2d(x, a), b, { data_format = "NHWC" })
      end)
      flow_of({ { 3, 8, 4, 3 }, { 8, 4, 1, 1 }, { 5, 1, 1, 3 } }, function(x, a, b)
        return flow.nn.conv2d(flow.nn.conv2d_transpose(x, a), b, { data_format = "NHWC" })
      end)
      flow_of({ { 3, 4, 3, 8 }, { 8, 1, 1, 4 }, { 5, 4, 1, 1 } }, function(x, a, b)
        return flow.nn.conv2d(flow.nn.conv2d_transpose(x, a, { data_format = "NHWC" }), b)
      end)
    end)
  end
end)
