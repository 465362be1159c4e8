-- flow.gradients: what it gives in predict and train jobs, compared with differences in float64, and what it refuses.
local checks = require "checks"
local flow = require "moonflow"
local np, tp = flow.np, flow.typing
local near = checks.near

local function start_anew()
  flow.clear_default_session()
  flow.set_seed(7)
end

before_each(start_anew)

-- The values that `body(b)` returns, a list of blobs, for one array.
local function run(x, body, kind) return checks.run({ x }, body, { type = kind, returns = tp.List[tp.Numpy] }) end

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

  it("of an exponent is 0 where the base is not above 0, also where the power is not finite", function()
    local exponents = np.array({ -1, -0.5, 2, 0.5, 3, 2 }, flow.double)
    local got = flow.global_function {
      returns = tp.Numpy, inputs = { b = tp.Numpy.Placeholder({ 6 }, { dtype = flow.double }),
                                     e = tp.Numpy.Placeholder({ 6 }, { dtype = flow.double }) },
    } (function(b, e) return flow.gradients(flow.math.pow(b, e), e) end)(
      np.array({ 0, 0, 0, -4, -1e200, 3 }, flow.double), exponents)
    near(got, np.array({ 0, 0, 0, 0, 0, 9 * math.log(3) }, flow.double), 1e-14)
  end)

  it("of a power is 0 where the exponent is, and so is that of the gradient of a first power", function()
    local bases = { 0, 2, 5e-324, 1 / 0, 0 / 0 }  -- the reciprocal of the third is infinite
    local got = run(np.array(bases, flow.double), function(b)
      local slope = flow.gradients(b ^ 1, b)
      local exponents = flow.zeros_like(b)
      return { flow.gradients(b ^ 0, b), flow.gradients(flow.math.pow(b, exponents), b), slope,
               flow.gradients(slope, b) }
    end)
    for i, wanted in ipairs({ 0, 0, 1, 0 }) do assert.is_true(np.array_equal(np.full({ #bases }, wanted), got[i])) end
  end)

  it("of a mean in half precision is rounded once, however many elements there are", function()
    for _, dtype in ipairs { flow.float16, flow.bfloat16 } do
      for _, count in ipairs { 3, 1000000 } do
        local got = run(np.array({ 1024 }), function(b)
          local zeros = flow.zeros({ count }, dtype)
          local mean = flow.cast(flow.math.reduce_mean(zeros), flow.float)
          return { flow.slice(flow.gradients(mean * b, zeros), { 0 }, { 1 }) }
        end)[1]
        assert.is_true(np.array_equal(np.array({ 1024 / count }):astype(dtype), got))
      end
    end
  end)

  it("of an angle is 0 at the origin, and that of a point beside it as ever", function()
    local got = run(np.array({ 0, 3, 0 }, flow.double), function(b)
      local across = flow.stop_gradient(b * 4 / 3)
      local slope = flow.gradients(flow.math.atan2(b, across), b)
      return { slope, flow.gradients(slope, b) }
    end)
    assert.same({ 0, 4 / 25, 0 }, got[1]:totable())
    near(got[2], np.array({ 0, -2 * 3 * 4 / 25 ^ 2, 0 }, flow.double), 1e-15)
  end)

  it("of a standard deviation is 0 where all elements are equal, and beside that as ever", function()
    local rows = np.array({ { 2, 2, 2 }, { 1, 2, 3 } }, flow.double)
    local slope = run(rows, function(b) return { flow.gradients(flow.math.reduce_std(b, 1), b) } end)[1]
    local side = 1 / math.sqrt(6)
    near(slope, np.array({ { 0, 0, 0 }, { -side, 0, side } }, flow.double), 1e-12)
  end)

  -- What no path leads to, in a sum over the paths through a sequence.
  it("of a sum of exponentials is 0 where all of them are 0, and beside that as ever", function()
    local none = -math.huge
    local got = run(np.array({ { none, none, none }, { 0, none, 1 } }, flow.double), function(b)
      local sum = flow.math.reduce_logsumexp(b, 1)
      return { sum, flow.gradients(sum, b), flow.gradients(flow.where(sum:gt(-1), sum, 0), b) }
    end)
    assert.equal(none, got[1][0])
    local share = np.array({ { 0, 0, 0 }, { 1 / (1 + math.exp(1)), 0, 1 / (1 + math.exp(-1)) } }, flow.double)
    near(got[2], share, 1e-15)
    near(got[3], share, 1e-15)
  end)

  it("of a sum of exponentials is no number where one of them is none", function()
    local got = run(np.array({ { 0 / 0, 1, 2 }, { 0, 0, 0 } }, flow.double), function(b)
      return { flow.gradients(flow.math.reduce_logsumexp(b, 1), b) }
    end)
    for i = 0, 2 do
      assert.is_true(got[1]:at(0, i) ~= got[1]:at(0, i))
      assert.near(1 / 3, got[1]:at(1, i), 1e-15)
    end
  end)

  it("of activations have their limits far out, as the activations have", function()
    for dtype, most in pairs { float32 = 3e38, float64 = 1e308 } do
      for name, call in pairs {
        ["swish of a beta"] = function(b) return flow.nn.swish(b, 3) end,
        swish = flow.nn.swish, mish = flow.nn.mish, gelu = flow.nn.gelu,
      } do
        local far = np.array({ most, -most, 1 / 0, -1 / 0, 0 / 0 }, dtype)
        local got = run(far, function(b)
          local y = call(b)
          return { y, flow.gradients(y, b) }
        end)
        for i, slope in ipairs { 1, 0, 1, 0 } do
          assert.equal(slope == 1 and far[i - 1] or 0, got[1][i - 1], name)
          assert.equal(slope, got[2][i - 1], name)
        end
        assert.is_true(got[1][4] ~= got[1][4] and got[2][4] ~= got[2][4], name)
      end
    end
  end)

  it("gives them in the form of the values, lists in lists", function()
    local got = run(x, function(b)
      local square, cube = b ^ 2, b * b * b
      local of = flow.gradients({ { square }, cube }, { b, { square, { cube } } })
      assert.equal(2, #of)
      assert.equal(2, #of[2])
      return { of[1], of[2][1], of[2][2][1] }
    end)
    near(got[1], 2 * x + 3 * x ^ 2, 1e-14)
    near(got[2], np.ones({ 2, 3 }, flow.double), 0)
    near(got[3], np.ones({ 2, 3 }, flow.double), 0)
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
      start_anew()
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
    local ones = np.ones({ 100 })
    local job = flow.global_function {
      type = "train", inputs = { x_in = tp.Numpy.Placeholder({ 100 }) }, returns = tp.Tuple { tp.Numpy, tp.Numpy },
    } (function(x_in)
      local y = flow.nn.dropout(x_in, { rate = 0.5 })
      flow.optimizer.SGD(0):minimize(y * flow.get_variable("w", { shape = {}, initializer = flow.ones_initializer() }))
      return y, flow.gradients(y, x_in)
    end)
    local y, dx = job(ones)
    local kept = y:gt(0):sum()
    assert.truthy(kept > 20 and kept < 80, kept)
    assert.is_true(dx == y)
  end)
end)

describe("gradients of what the job minimises", function()
  np.random.seed(4)
  local images = np.random.uniform(-1, 1, { 6, 1, 8, 8 })
  local labels = np.array({ 0, 1, 2, 1, 0, 2 }, flow.int32)

  -- Two steps of a network beside what `asks(loss, weights)` shows of it; tells the losses, and what the plan is like.
  local function trained(asks)
    start_anew()
    local job = flow.global_function {
      type = "train", returns = tp.Numpy,
      inputs = { pixels = tp.Numpy.Placeholder({ 6, 1, 8, 8 }),
                 y = tp.Numpy.Placeholder({ 6 }, { dtype = flow.int32 }) },
    } (function(pixels, y)
      local h = flow.layers.conv2d(pixels, 4, 3, { name = "conv", padding = "SAME", activation = flow.nn.relu })
      h = flow.layers.dense(flow.reshape(h, { 6, 256 }), 16, { name = "hidden", activation = flow.nn.relu })
      h = flow.nn.dropout(h, { rate = 0.25 })
      local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, flow.layers.dense(h, 3, { name = "out" }))
      local weights = flow.scope.reuse_variables(function()
        return { flow.get_variable("conv-weight", { shape = { 4, 1, 3, 3 } }),
                 flow.get_variable("hidden-weight", { shape = { 16, 256 } }),
                 flow.get_variable("out-weight", { shape = { 3, 16 } }) }
      end)
      asks(loss, weights)
      flow.optimizer.SGD(0.1, { momentum = 0.9 }):minimize(loss)
      return loss
    end)
    local losses = { job(images, labels), job(images, labels) }
    local text = job:summary { plan = true }
    return { losses = losses, variables = flow.get_all_variables(), steps = text:match("(%d+) steps, "),
             merged = tonumber(text:match("(%d+) ops computed with equal ones") or 0) }
  end

  it("are computed once for both", function()
    local asked_for, watched = {}, {}
    local asked = trained(function(loss, weights)
      for i, dw in ipairs(flow.gradients(loss, weights)) do flow.watch(dw, function(value) asked_for[i] = value end) end
    end)
    local as_watched = trained(function(_, weights)
      for i, w in ipairs(weights) do flow.watch_diff(w, function(value) watched[i] = value end) end
    end)
    assert.equal(as_watched.steps, asked.steps)
    assert.equal(0, as_watched.merged)
    assert.truthy(asked.merged > 10)
    for i = 1, 3 do assert.is_true(asked_for[i] == watched[i]) end
    local alone = trained(function() end)
    for i = 1, 2 do assert.is_true(asked.losses[i] == alone.losses[i]) end
    for name, value in pairs(asked.variables) do assert.is_true(value == alone.variables[name], name) end
  end)
end)

-- The slope of `value(at)`, a number, along each element, by central differences. Half the digits of float64.
local function slopes(at, value)
  local shape, step = at.shape:table(), 1e-5
  local moved, found = at:copy():ravel(), np.zeros({ at.shape:count() }, flow.double)
  for i = 0, at.shape:count() - 1 do
    local center = moved[i]
    moved[i] = center + step
    local above = value(moved:reshape(shape))
    moved[i] = center - step
    found[i] = (above - value(moved:reshape(shape))) / (2 * step)
    moved[i] = center
  end
  return found:reshape(shape)
end

-- Checks the gradient of `loss(b)`, which is made of gradients, against differences of its value: the third derivative
-- times the step's square is what they are off by.
local function check_second(inputs, loss)
  local job = flow.global_function {
    returns = tp.Tuple { tp.Numpy, tp.Numpy },
    inputs = { b = tp.Numpy.Placeholder(inputs.shape:table(), { dtype = inputs.dtype }) },
  } (function(b)
    local value = flow.math.reduce_sum(loss(b))
    return value, flow.gradients(value, b)
  end)
  local _, slope = job(inputs)
  local wanted = slopes(inputs, function(moved) return (job(moved)):item() end)
  near(slope, wanted, 1e-7 * np.max(np.abs(wanted)))
end

local wide = flow.random_normal_initializer(0, 0.5)

describe("a gradient of a gradient", function()
  it("goes through a dense layer and its activation", function()
    for _, name in ipairs { "relu", "leaky_relu", "elu", "swish", "mish", "gelu", "sigmoid", "tanh", "softmax",
                            "logsoftmax", "hardswish" } do
      start_anew()
      check_second(x, function(b)
        local hidden = flow.layers.dense(b, 4, { name = "hidden", activation = flow.nn[name],
                                                 kernel_initializer = wide })
        return flow.gradients(hidden ^ 2 * hidden, b) ^ 2
      end)
    end
  end)

  it("goes through a convolution, poolings and what moves elements", function()
    np.random.seed(5)
    check_second(np.random.normal(0, 1, { 2, 2, 5, 4 }, flow.double), function(b)
      local y = flow.layers.conv2d(b, 3, 3, { name = "conv", padding = "SAME", kernel_initializer = wide,
                                              activation = flow.nn.tanh })
      y = flow.nn.max_pool2d(y, 2, 1, "SAME") + y
      y = flow.nn.avg_pool2d(y, 2, 2, "VALID")
      y = flow.concat({ flow.transpose(y, { 0, 2, 3, 1 }), flow.transpose(y * y, { 0, 2, 3, 1 }) }, -1)
      y = flow.gather(flow.reshape(y, { 2, -1 }), np.array({ 0, 3, 3, 11, 20 }, flow.int32), 1)
      return flow.gradients(y ^ 3, b) ^ 2
    end)
  end)

  it("of max pooling takes the place that the first one gave to, among equal ones too", function()
    -- Linear maps and their transposes: (gradient of g . T(dy) for dy) . dy = g . T(dy).
    local function check(size, window, strides, padding)
      np.random.seed(size)
      local image = np.floor(np.random.uniform(0, 3, { 2, 2, size, size + 2 }, flow.double))
      local places = np.random.normal(0, 1, { 2, 2, size, size + 2 }, flow.double)
      local got = run(image, function(b)
        local y = flow.nn.max_pool2d(b, window, strides, padding)
        local dy = flow.math.sin(flow.reshape(flow.range(0, y.shape:count(), { dtype = flow.double }),
                                              y.shape:table()))
        local dx = flow.gradients(y, b, { grad_ys = dy })
        local picked = flow.gradients(dx, dy, { grad_ys = places })
        return { flow.math.reduce_sum(picked * dy), flow.math.reduce_sum(dx * places) }
      end)
      assert.near(got[2]:item(), got[1]:item(), 1e-12)
    end
    for _, padding in ipairs { "VALID", "SAME" } do
      check(8, 2, 2, padding)
      check(9, 3, 2, padding)
      check(9, 3, 1, padding)
      check(11, { 5, 7 }, { 2, 3 }, padding)
      check(6, { 1, 4 }, { 2, 4 }, padding)
      check(14, 14, 14, padding)
    end
  end)

  it("costs few ops per window of max pooling, however large it is", function()
    local job = flow.global_function {
      returns = tp.Numpy, inputs = { b = tp.Numpy.Placeholder({ 1, 2, 16, 16 }) },
    } (function(b)
      return flow.gradients(flow.gradients(flow.nn.max_pool2d(b ^ 2, 16, 16, "VALID"), b), b)
    end)
    job(np.random.normal(0, 1, { 1, 2, 16, 16 }))
    assert.truthy(tonumber(job:summary({ plan = true }):match("(%d+) steps, ")) < 100)
  end)

  it("goes through norms and losses", function()
    local labels = np.array({ 2, 0 }, flow.int32)
    local target = np.array({ { 0.2, 0.5, 0.3 }, { 0.1, 0.1, 0.8 } }, flow.double)
    for name, loss in pairs {
      layer_norm = function(b) return flow.layers.layer_norm(b) ^ 3 end,
      rms_norm = function(b) return flow.layers.rms_norm(b) ^ 3 end,
      batch_norm = function(b) return flow.layers.batch_normalization(b, { axis = 1, training = true }) ^ 3 end,
      moments = function(b)
        local mean, variance = flow.nn.moments(b, { axes = { 1 }, keepdims = true })
        return (b - mean) ^ 3 / variance
      end,
      l2_normalize = function(b) return flow.math.l2_normalize(b, 1) ^ 3 end,
      sparse = function(b) return flow.nn.sparse_softmax_cross_entropy_with_logits(labels, b) end,
      dense = function(b) return flow.nn.softmax_cross_entropy_with_logits(target, b) end,
      sigmoid = function(b) return flow.nn.sigmoid_cross_entropy_with_logits(target, b) end,
      probabilities = function(b) return flow.nn.sparse_cross_entropy(labels, flow.nn.softmax(b)) end,
      smooth = function(b) return flow.smooth_l1_loss(b, target, { beta = 0.5 }) end,
    } do
      start_anew()
      local fine, problem = pcall(check_second, x, function(b) return flow.gradients(loss(b), b) ^ 2 end)
      assert(fine, name .. ": " .. tostring(problem))
    end
  end)

  it("goes through lgamma and digamma", function()
    local positive = np.abs(x) + 0.2
    check_second(positive, function(b) return flow.gradients(flow.math.lgamma(b) ^ 2, b) ^ 2 end)
    check_second(positive, function(b) return flow.math.digamma(b) ^ 2 end)
  end)

  it("goes through a product along any axes, where factors are 0 too, and a third one does", function()
    local factors = np.array({ 0.5, 0, -1.5, 0, 1.1, 0, 1e-6, 3, 0.7 }, flow.double):reshape({ 3, 1, 3 })
    for i, axes in ipairs { { 2 }, { 0 }, { 0, 2 }, { 0, 1, 2 } } do
      check_second(factors, function(b)
        local y = flow.math.reduce_prod(b, axes, i % 2 == 0)
        return flow.gradients(y ^ 2 + y, b) ^ 2
      end)
    end
    check_second(x:rows(0, 1), function(b)
      local slope = flow.gradients(flow.math.reduce_prod(b, 1) ^ 2, b)
      return flow.gradients(slope ^ 2, b) ^ 2
    end)
  end)

  it("goes through attention, with whatever it leaves out", function()
    np.random.seed(6)
    local function nothing_for_one() -- no key is left to query 1 of sample 1
      local mask = np.ones({ 2, 1, 3, 2 })
      mask[0][0][2][1] = 0
      mask[1][0][1] = np.zeros({ 2 })
      return flow.math.equal(flow.ones({ 2, 1, 3, 2 }), mask)
    end
    for name, options in pairs { causal = { causal = true }, masked = { masked = true, scale = 2 },
                                 both = { causal = true, masked = true } } do
      start_anew()
      local fine, problem = pcall(check_second, np.random.normal(0, 1, { 2, 3, 2, 2 }, flow.double), function(b)
        local key = flow.slice(b, { 0, 0, 0, 0 }, { 2, 2, 2, 2 })
        local value = flow.slice(b ^ 2, { 0, 1, 0, 1 }, { 2, 2, 2, 1 })
        local y = flow.nn.dot_product_attention(b * 0.7, key, value, {
          causal = options.causal, scale = options.scale, mask = options.masked and nothing_for_one() or nil })
        return flow.gradients(y ^ 2, b) ^ 2
      end)
      assert(fine, name .. ": " .. tostring(problem))
    end
  end)

  it("is zero where the ops say so", function()
    local got = run(x, function(b)
      return { flow.gradients(flow.gradients(flow.nn.relu(b), b), b) }
    end)
    near(got[1], np.zeros({ 2, 3 }, flow.double), 0)
    local steps = {
      maximum = function(b) return flow.math.maximum(b, 0) end,
      minimum = function(b) return flow.math.minimum(b, 0.5) end,
      reduce_max = function(b) return flow.math.reduce_max(b, 1) end,
      where = function(b) return flow.where(b:gt(0), b, 2 * b) end,
      abs = flow.math.abs,
    }
    for name, step in pairs(steps) do
      local slope, second = unpack(run(x, function(b)
        local g = flow.gradients(step(b), b)
        return { g, flow.gradients(g * g, b) }
      end))
      assert.is_true(np.abs(slope):max() > 0, name)
      near(second, np.zeros({ 2, 3 }, flow.double), 0)
    end
    -- Beside a comparison that the script makes of the value it is a mistake.
    checks.refuses("only by ways that let no gradient by, such as greater 'Greater_0'", function()
      run(x, function(b) return { flow.gradients(flow.cast(b:gt(0), flow.double), b) } end)
    end)
  end)

  it("is zero where that is asked for", function()
    local zero = { unconnected_gradients = "zero" }
    local got = run(x, function(b)
      local floor = flow.math.floor(b)
      return { flow.gradients(flow.ones({ 2 }, { dtype = flow.double }), b, zero), flow.gradients(floor, b, zero),
               flow.jacobian(flow.gradients(b * 3, b), b, zero), flow.batch_jacobian(floor, b, zero),
               flow.gradients({ b * 2, floor }, { b }, zero)[1] }
    end)
    near(got[1], np.zeros({ 2, 3 }, flow.double), 0)
    near(got[2], np.zeros({ 2, 3 }, flow.double), 0)
    near(got[3], np.zeros({ 2, 3, 2, 3 }, flow.double), 0)
    near(got[4], np.zeros({ 2, 3, 3 }, flow.double), 0)
    near(got[5], np.full({ 2, 3 }, 2, flow.double), 0)
    checks.refuses('flow.gradients: unconnected_gradients is "none" or "zero", got "zeros"', function()
      run(x, function(b) return { flow.gradients(b, b, { unconnected_gradients = "zeros" }) } end)
    end)
  end)

  it("holds a net to its equation: u'' = -u with u(0) = 0 and u'(0) = 1", function()
    np.random.seed(1)
    local points = np.array({ 0, 0.2, 0.4, 0.6, 0.8, 1, 1.2, 1.4 }):reshape({ 8, 1 })
    local function u_of(t)
      local h = flow.layers.dense(t, 16, { name = "h", activation = flow.math.tanh, kernel_initializer = wide })
      h = flow.layers.dense(h, 16, { name = "i", activation = flow.math.sin, kernel_initializer = wide })
      return flow.layers.dense(h, 1, { name = "u", kernel_initializer = wide })
    end
    local train_job = flow.global_function {
      type = "train", returns = tp.Numpy, inputs = { t = tp.Numpy.Placeholder({ 8, 1 }) },
    } (function(t)
      local u = u_of(t)
      local du = flow.gradients(u, t)
      local ddu = flow.gradients(du, t)
      local loss = flow.math.reduce_mean((ddu + u) ^ 2) + flow.math.reduce_sum(flow.slice(u, { 0, 0 }, { 1, 1 }) ^ 2)
        + flow.math.reduce_sum((flow.slice(du, { 0, 0 }, { 1, 1 }) - 1) ^ 2)
      flow.optimizer.Adam(0.01):minimize(loss)
      return loss
    end)
    for _ = 1, 600 do train_job(points) end
    local solution = flow.global_function {
      returns = tp.Numpy, inputs = { t = tp.Numpy.Placeholder({ 8, 1 }) },
    } (function(t) return u_of(t) end)(points)
    assert.truthy(np.max(np.abs(solution - np.sin(points))) < 0.05)
  end)

  it("penalises the slope of a critic, as a sum over its weights would have it", function()
    -- The score is a^T leaky(W x), so its slope is W^T (a * s) with s = 1 or 0.2; the penalty is (|slope| - 1)^2.
    np.random.seed(2)
    local images = np.random.normal(0, 1, { 3, 4 }, flow.double)
    local penalty
    local train_job = flow.global_function {
      type = "train", returns = tp.Numpy, inputs = { b = tp.Numpy.Placeholder({ 3, 4 }, { dtype = flow.double }) },
    } (function(b)
      local w = flow.get_variable("w", { shape = { 5, 4 }, dtype = flow.double, initializer = wide })
      local a = flow.get_variable("a", { shape = { 5, 1 }, dtype = flow.double, initializer = wide })
      local score = flow.matmul(flow.nn.leaky_relu(flow.matmul(b, w, { transpose_b = true })), a)
      local slope = flow.gradients(score, b)
      local length = flow.math.sqrt(flow.math.reduce_sum(slope ^ 2, 1))
      local loss = (length - 1) ^ 2
      flow.watch(flow.gradients(loss, w), function(g) penalty = g end)
      flow.optimizer.SGD(0.125, { momentum = 0 }):minimize(loss)
      return loss
    end)
    local before = flow.get_all_variables()
    local first = train_job(images)
    local function loss_of(w)
      local total = 0
      for i = 0, 2 do
        local hidden = np.matmul(w, images[i]:reshape({ 4, 1 })):ravel()
        local weighted = np.zeros({ 1, 5 }, flow.double)
        for k = 0, 4 do weighted[0][k] = before.a[k][0] * (hidden[k] > 0 and 1 or 0.2) end
        total = total + (math.sqrt(np.sum(np.matmul(weighted, w) ^ 2)) - 1) ^ 2
      end
      return total
    end
    assert.near(loss_of(before.w), first:sum(), 1e-12)
    near(penalty, slopes(before.w, loss_of), 1e-8)
    near(flow.get_all_variables().w, before.w - 0.125 / 3 * penalty, 1e-12)
  end)

  it("penalises the slope of a critic that convolves", function()
    np.random.seed(4)
    local genuine, drawn = np.random.normal(0, 1, { 4, 1, 8, 8 }), np.random.normal(0, 1, { 4, 1, 8, 8 })
    local train_job = flow.global_function {
      type = "train", returns = tp.Numpy,
      inputs = { real = tp.Numpy.Placeholder({ 4, 1, 8, 8 }), made = tp.Numpy.Placeholder({ 4, 1, 8, 8 }) },
    } (function(real, made)
      local function critic(images)
        return flow.scope.reuse_variables(function()
          local y = flow.layers.conv2d(images, 4, 3, { name = "c", strides = 2, padding = "SAME",
                                                       kernel_initializer = wide, activation = flow.nn.leaky_relu })
          return flow.layers.dense(flow.reshape(y, { 4, -1 }), 1, { name = "score", kernel_initializer = wide })
        end)
      end
      local part = flow.random.uniform({ shape = { 4, 1, 1, 1 } })
      local between = part * real + (1 - part) * made
      local slope = flow.reshape(flow.gradients(critic(between), between), { 4, -1 })
      local penalty = (flow.math.sqrt(flow.math.reduce_sum(slope ^ 2, 1)) - 1) ^ 2
      flow.optimizer.Adam(0.01):minimize(penalty)
      return penalty
    end)
    local first = train_job(genuine, drawn):mean()
    for _ = 1, 60 do train_job(genuine, drawn) end
    assert.truthy(train_job(genuine, drawn):mean() < first / 4)
  end)
end)

describe("a Jacobian", function()
  -- By differences, of f: ndarray -> ndarray in float64.
  local function differences(f, at)
    local columns, step = {}, 1e-6
    for i = 0, at.shape:count() - 1 do
      local function moved(by)
        local there = at:copy()
        local flat = there:reshape(there.shape:count())
        flat[i] = flat[i] + by
        return f(there)
      end
      columns[i + 1] = ((moved(step) - moved(-step)) / (2 * step)):ravel()
    end
    return np.stack(columns, 1)
  end

  local matrix = np.array({ { 1, -2, 0.5 }, { 0.25, 3, -1 } }, flow.double)
  local function f(a)
    return flow.math.tanh(flow.matmul(a, np.transpose(matrix))) * flow.math.exp(a:slice(":, 1:3"))
  end
  local function values(at) return checks.run({ at }, f) end

  it("has how each element of a value changes with each of another", function()
    local got = checks.run({ x }, function(a) return flow.jacobian(f(a), a) end)
    assert.same({ 2, 2, 2, 3 }, got.shape:table())
    near(differences(values, x):reshape(2, 2, 2, 3), got, 1e-8)
    local of_sum = checks.run({ x }, function(a) return flow.jacobian(flow.math.reduce_sum(f(a)), a) end)
    near(got:reshape(4, 2, 3):sum(0), of_sum, 1e-12)
  end)

  it("is one for each sample of a batch", function()
    local whole = checks.run({ x }, function(a) return flow.jacobian(f(a), a) end)
    local got = checks.run({ x }, function(a) return flow.batch_jacobian(f(a), a) end)
    assert.same({ 2, 2, 3 }, got.shape:table())
    for n = 0, 1 do near(whole[n]:slice((":, %d"):format(n)), got[n], 1e-12) end
    assert.same({ 2, 3 }, checks.run({ x }, function(a)
      return flow.batch_jacobian(flow.math.reduce_sum(f(a), 1), a)
    end).shape:table())
  end)

  it("of a gradient is a Hessian", function()
    local at = x[0]
    local hessian = checks.run({ at }, function(a)
      local loss = flow.math.reduce_prod(a) + flow.math.reduce_sum(a ^ 3)
      return flow.jacobian(flow.gradients(loss, a), a)
    end)
    local a, b, c = at[0], at[1], at[2]
    near(np.array({ { 6 * a, c, b }, { c, 6 * b, a }, { b, a, 6 * c } }, flow.double), hessian, 1e-12)
  end)

  it("trains what it is made of", function()
    local job = flow.global_function {
      type = "train", inputs = { a = tp.Numpy.Placeholder { 4, 2 } }, returns = tp.Numpy,
    } (function(a)
      local y = flow.layers.dense(a, 3, { name = "map", activation = flow.math.tanh })
      local loss = flow.math.reduce_mean(flow.math.square(flow.batch_jacobian(y, a) - 0.5))
      flow.optimizer.SGD(1, { momentum = 0 }):minimize(loss)
      return loss
    end)
    local points = np.random.default_rng(1):normal(0, 0.1, { 4, 2 }):astype(flow.float)
    local first = job(points):item()
    for _ = 1, 50 do job(points) end
    assert.is_true(job(points):item() < 0.05 * first)
  end)

  it("names what does not fit", function()
    local function refused(message, body)
      checks.refuses(message, function() checks.run({ x }, body) end)
    end
    refused("flow.batch_jacobian: 'Slice_0' is (1, 3) and 'a' is (2, 3), wanted one batch as the first axis of both",
      function(a) return flow.batch_jacobian(flow.slice(a, { 0, 0 }, { 1, 3 }), a) end)
    refused("has no elements", function(a) return flow.jacobian(flow.slice(a, { 0, 0 }, { 0, 3 }), a) end)
    refused("flow.jacobian: 'Constant_0' does not depend on 'a'; with unconnected_gradients = \"zero\" what changes "
      .. "with nothing gives zeros", function(a) return flow.jacobian(flow.ones { 2 }, a) end)
    refused("flow.batch_jacobian: 'a' does not depend on 'Exp_0'; y, which is computed from x, is the first argument",
      function(a) return flow.batch_jacobian(a, flow.math.exp(a)) end)
    refused("checks.lua:15) only by ways that let no gradient by, such as floor 'Floor_0' (",
      function(a) return flow.jacobian(flow.math.floor(a), a) end)
  end)
end)

describe("a train job that minimises nothing", function()
  -- Two parts of a step in gradients that are added up, over dropout and a batch norm.
  local function define(kind)
    return flow.global_function {
      name = "part", type = kind, inputs = { a = tp.Numpy.Placeholder({ 64, 2 }, { dtype = flow.double }) },
      returns = tp.Tuple { tp.Numpy, tp.Numpy },
    } (function(a)
      local w = weight("w", { 2, 2 })
      local y = flow.layers.batch_normalization(flow.matmul(a, w), { axis = 1, momentum = 0.5, name = "n" })
      local dropped = flow.nn.dropout(y, 0.5)
      local loss = flow.math.reduce_mean(dropped ^ 2)
      local sum = flow.get_variable("sum", {
        shape = { 2, 2 }, dtype = flow.double, trainable = false, initializer = flow.zeros_initializer() })
      local slope = flow.gradients(loss, w)
      flow.assign_add(sum, slope)
      return dropped, slope
    end)
  end

  it("makes the step itself, and trains as others do", function()
    np.random.seed(2)
    local batch = np.random.normal(3, 2, { 64, 2 }, flow.double)
    local part = define "train"
    local first, one = part(batch)
    local second, two = part(batch)
    local variables = flow.get_all_variables()
    near(one + two, variables.sum)
    assert.is_true(variables["n-moving_mean"][0] ~= 0)
    assert.is_true(first ~= second, "its steps count, so dropout drops others in each")
    assert.near(0.5, first:eq(0):sum() / first.shape:count(), 0.2)

    flow.clear_default_session()
    local kept = define "predict"(batch)
    assert.equal(0, kept:eq(0):sum())
    near(np.zeros({ 2 }), flow.get_all_variables()["n-moving_mean"], 0)
  end)

  it("has no gradients to watch, and no optimizer to change a loss scale", function()
    local function define_with(body)
      flow.clear_default_session()
      return flow.global_function({ name = "own", type = "train", returns = tp.Numpy }, function()
        local w = weight("w", { 2 })
        return body(w)
      end)
    end
    checks.raises("wrong_state", "the job 'own' minimises no loss that would have a gradient there", function()
      define_with(function(w)
        flow.watch_diff(w, print)
        return flow.gradients(w * w, w)
      end)()
    end)
    checks.refuses("by a dynamic loss scale, which an optimizer changes, and it has none", function()
      local policy = flow.optimizer.loss_scale.dynamic_loss_scale()
      define_with(function(w) return flow.gradients(w * w, w, { loss_scale_policy = policy }) end)()
    end)
  end)
end)
