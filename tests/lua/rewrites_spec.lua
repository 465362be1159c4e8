-- Rewrites: what looks as if it could be fused and is another thing gives what its ops give one by one.
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

before_each(function() flow.clear_default_session() end)

-- What a body gives of these arrays.
local function run(arrays, body, given)
  local inputs = {}
  for i, name in ipairs { "a", "b", "c", "d" } do
    inputs[i] = arrays[i] and { name, tp.Numpy.Placeholder(arrays[i].shape:table()) }
  end
  local options = { inputs = inputs, returns = tp.Numpy }
  for name, value in pairs(given or {}) do options[name] = value end
  return flow.global_function(options)(body)(unpack(arrays))
end

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

  local function bias() return flow.get_variable("b", { shape = { 3 }, initializer = flow.zeros_initializer() }) end

  it("a bias of another axis, of as many elements, is none of the channels", function()
    local y = run({ images }, function(a)
      return flow.nn.bias_add(three_channels(a), bias() + flow.range(3), { data_format = "NHWC" })
    end)
    for channel = 0, 2 do
      for row = 0, 2 do same({ 0, 1, 2 }, y[0][channel][row]) end
    end
  end)

  it("nor is its gradient", function()
    local rate = flow.optimizer.PiecewiseConstantScheduler({}, { 1 })
    run({ images, np.arange(27):reshape({ 1, 3, 3, 3 }):astype(flow.float) }, function(a, b)
      local y = flow.nn.bias_add(three_channels(a), bias(), { data_format = "NHWC" })
      local loss = flow.math.reduce_sum(y * b)
      flow.optimizer.SGD(rate, { momentum = 0 }):minimize(loss)
      return loss
    end, { type = "train" })
    same({ -108, -117, -126 }, flow.get_all_variables().b)
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
  local rate = flow.optimizer.PiecewiseConstantScheduler({}, { 1 })

  it("before a sum is not one behind it", function()
    local shape = { 2, 32, 24, 24 }
    local y = run({ np.ones(shape), np.full(shape, -1) }, function(a, b)
      local filter = flow.get_variable("f", { shape = { 32, 32, 3, 3 }, initializer = flow.constant_initializer(-1) })
      local bias = flow.get_variable("b", { shape = { 32 }, initializer = flow.zeros_initializer() })
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

describe("a stack of weights", function()
  it("learns as a whole", function()
    local rate = flow.optimizer.PiecewiseConstantScheduler({}, { 1 })
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

describe("a part of an image behind a convolution", function()
  it("is that part", function()
    local images = np.random.default_rng(1):uniform(-1, 1, { 2, 32, 12, 12 }):astype(flow.float)
    local function convolved(cut)
      return run({ images }, function(a)
        local filter = flow.get_variable("f", { shape = { 32, 32, 3, 3 },
                                                initializer = flow.random_uniform_initializer(-1, 1) })
        local y = flow.nn.conv2d(a, filter, { strides = 1, padding = "SAME" })
        return flow.nn.relu(cut and flow.slice(y, { 0, 0, 2, 3 }, { 2, 32, 5, 6 }) or y)
      end, { name = cut and "cut" or "whole" })
    end
    local whole = convolved(false)
    assert.is_true(np.allclose(convolved(true), whole:slice(":, :, 2:7, 3:9"), { atol = 1e-3 }))
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
end)
