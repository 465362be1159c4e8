-- flow.gradients: what it gives in predict and train jobs, compared with differences in float64, and what it refuses.
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

before_each(function()
  flow.clear_default_session()
end)

-- The values that `body(b)` returns, a list of blobs, for one array.
local function run(x, body, kind)
  return flow.global_function {
    type = kind, returns = tp.List[tp.Numpy],
    inputs = { b = tp.Numpy.Placeholder(x.shape:table(), { dtype = x.dtype }) },
  } (body)(x)
end

local function near(a, b, tolerance)
  assert.equal(tostring(b.shape), tostring(a.shape))
  local worst = np.max(np.abs(a - b))
  assert.truthy(worst <= tolerance, "differs by " .. worst)
end

local x = np.array({ { 0.5, -0.25, 1 }, { 0.75, 0.3, -1.5 } }, flow.double)

local function weight(name, shape)
  return flow.get_variable(name, { shape = shape, dtype = flow.double, initializer = flow.constant_initializer(0.7) })
end

describe("flow.gradients", function()
  it("is of the sum, with respect to inputs, values between and variables, as they are listed", function()
    local got = run(x, function(b)
      local w = weight("w", { 3 })
      local h = b * w
      local g = flow.gradients(flow.math.tanh(h), { w, b, h })
      assert.equal(3, #g)
      return { g[1], g[2], g[3] }
    end)
    local dh = 1 - np.tanh(x * 0.7) ^ 2
    near(got[1], (dh * x):sum(0), 1e-14)
    near(got[2], dh * 0.7, 1e-14)
    near(got[3], dh, 1e-14)
  end)

  it("gives a value for a value, and a list for a list", function()
    local got = run(x, function(b)
      local y = b ^ 2
      return { flow.gradients(y, b, { name = "slope" }), (flow.gradients({ y }, { b }))[1] }
    end)
    near(got[1], 2 * x, 0)
    near(got[2], 2 * x, 0)
  end)

  it("sums the gradients of several losses, each from what it is to start with", function()
    local got = run(x, function(b)
      local square, cube = b ^ 2, b * b * b
      local start = flow.constant_like(b, 3)
      return { flow.gradients({ square, cube }, b), flow.gradients(square, b, { grad_ys = 2 }),
               flow.gradients({ square, cube }, b, { grad_ys = { 0.5, start } }),
               flow.gradients(square, b, { grad_ys = x }), flow.gradients(b, b) }
    end)
    near(got[1], 2 * x + 3 * x ^ 2, 1e-14)
    near(got[2], 4 * x, 1e-14)
    near(got[3], x + 9 * x ^ 2, 1e-14)
    near(got[4], 2 * x ^ 2, 1e-14)
    near(got[5], np.ones({ 2, 3 }, flow.double), 0)
  end)

  it("is of the sum in a train job too, and leaves what is trained as it would be", function()
    local function trained(with_gradients)
      flow.clear_default_session()
      local seen
      run(x, function(b)
        local w = weight("w", { 3 })
        local loss = (b * w) ^ 2
        if with_gradients then flow.watch(flow.gradients(loss, w), function(g) seen = g end) end
        flow.optimizer.SGD(0.1, { momentum = 0 }):minimize(loss)
        return { loss }
      end, "train")
      return flow.get_all_variables().w, seen
    end
    local w, seen = trained(true)
    near(seen, (2 * 0.7 * x ^ 2):sum(0), 1e-14)
    assert.is_true(w == (trained(false)))
  end)

  it("makes a fast gradient sign step", function()
    np.random.seed(3)
    local images, labels = np.random.uniform(0, 1, { 4, 6 }), np.array({ 0, 1, 2, 1 }, flow.int32)
    local function loss_of(pixels)
      local hidden = flow.layers.dense(pixels, 8, { name = "a", activation = flow.nn.relu,
                                                    kernel_initializer = flow.random_normal_initializer(0, 1) })
      local logits = flow.layers.dense(hidden, 3, { name = "b",
                                                    kernel_initializer = flow.random_normal_initializer(0, 1) })
      return flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    end
    local attack = flow.global_function {
      returns = tp.Tuple { tp.Numpy, tp.Numpy }, inputs = { pixels = tp.Numpy.Placeholder({ 4, 6 }) },
    } (function(pixels)
      local loss = loss_of(pixels)
      return loss, pixels + 0.05 * flow.math.sign(flow.gradients(loss, pixels))
    end)
    local before, worse = attack(images)
    local after = attack(worse)
    assert.truthy(after:sum() > before:sum() + 0.01)
  end)

  it("gives the mean of a batch to a step that the script makes itself", function()
    local job = flow.global_function {
      returns = tp.Numpy, inputs = { b = tp.Numpy.Placeholder({ 4 }) },
    } (function(b)
      local w = flow.get_variable("w", { shape = { 1 }, initializer = flow.constant_initializer(2) })
      local loss = flow.math.reduce_mean((b * w) ^ 2)
      flow.assign(w, w - 0.1 * flow.clip(flow.gradients(loss, w), { min = -1, max = 1 }))
      return loss
    end)
    job(np.ones({ 4 }))
    assert.near(1.9, flow.get_all_variables().w[0], 1e-6)
  end)

  it("goes through dropout by the same draws", function()
    local got = run(x, function(b)
      local y = flow.nn.dropout(b, { rate = 0.5 })
      return { y, flow.gradients(y, b) }
    end, nil)
    near(got[2] * x, got[1], 1e-14)
  end)
end)
