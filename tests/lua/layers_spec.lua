-- Layers and composed ops: names, shapes, values, defaults.
local checks = require "checks"
local flow = require "moonflow"
local session = require "moonflow.session"
local np, tp = flow.np, flow.typing
local near = checks.near

-- What a job of `body` gives for one array.
local function run(x, body, options) return checks.run({ x }, body, options) end

before_each(function()
  flow.clear_default_session()
  flow.set_seed(3)
end)

describe("dense", function()
  it("is x . weight^T + bias, then the activation", function()
    local x = np.array({ { 1, 2 }, { -3, 1 } }, flow.float)
    local y = run(x, function(b)
      return flow.layers.dense(b, 3, {
        name = "d", activation = flow.nn.relu,
        kernel_initializer = flow.ones_initializer(), bias_initializer = flow.constant_initializer(0.5),
      })
    end)
    assert.is_true(y == np.array({ { 3.5, 3.5, 3.5 }, { 0, 0, 0 } }, flow.float))
    assert.same({ "d-bias (3)", "d-weight (3, 2)" }, checks.variables())
  end)

  it("applies to the last axis of higher ranks", function()
    local x = np.ones({ 2, 5, 4 })
    local y = run(x, function(b)
      return flow.layers.dense(b, 3, { use_bias = false, kernel_initializer = flow.ones_initializer() })
    end)
    assert.is_true(y == np.full({ 2, 5, 3 }, 4))
  end)

  it("starts from xavier uniform", function()
    run(np.ones({ 1, 100 }), function(b) return flow.layers.dense(b, 50, { name = "d" }) end)
    local w = session.handle():read("d-weight")
    local limit = math.sqrt(6 / 150)
    assert.truthy(w:max() <= limit and w:min() >= -limit)
    assert.truthy(w:max() > 0.9 * limit and w:min() < -0.9 * limit)
  end)

  it("takes a Lua function as its activation", function()
    local y = run(np.array({ { -1 } }, flow.float), function(b)
      return flow.layers.dense(b, 1, {
        kernel_initializer = flow.ones_initializer(), activation = function(v) return v * 10 end,
      })
    end)
    assert.equal(-10, y:at(0, 0))
  end)
end)

describe("embedding", function()
  local function embedded(x, options)
    return run(x, function(b) return flow.layers.embedding(b, 4, 3, options) end)
  end

  it("picks the vectors of numbers, in any shape and integer dtype", function()
    local y = embedded(np.array({ { 3, 0 }, { 3, 1 } }, flow.int64), { name = "e" })
    assert.same({ "e-weight (4, 3)" }, checks.variables())
    local w = session.handle():read("e-weight")
    assert.equal("float32 (2, 2, 3)", y.dtype .. " " .. tostring(y.shape))
    assert.is_true(y:slice("0, 0") == w[3] and y:slice("1, 0") == w[3])
    assert.is_true(y:slice("0, 1") == w[0] and y:slice("1, 1") == w[1])
  end)

  it("starts from the normal distribution, or as it is told", function()
    run(np.zeros({ 1 }, flow.int32), function(b) return flow.layers.embedding(b, 1000, 20, { name = "e" }) end)
    local w = session.handle():read("e-weight")
    assert.truthy(math.abs(w:mean()) < 0.03 and math.abs(w:std() - 1) < 0.02) -- four deviations of 20,000 draws
    flow.clear_default_session()
    local y = embedded(np.zeros({ 2 }, flow.int8), { embeddings_initializer = flow.ones_initializer(),
                                                     dtype = flow.double })
    assert.is_true(y == np.ones({ 2, 3 }, flow.double))
  end)

  it("learns the vectors that were picked, each as often as it was", function()
    local job = flow.global_function {
      type = "train", inputs = { x = tp.Numpy.Placeholder({ 4 }, { dtype = flow.int32 }) }, returns = tp.Numpy,
    } (function(x)
      local y = flow.layers.embedding(x, 4, 3, { name = "e", embeddings_initializer = flow.ones_initializer() })
      flow.optimizer.SGD(1, { momentum = 0 }):minimize(y)  -- the mean of 12 elements
      return y
    end)
    job(np.array({ 2, 0, 2, 2 }, flow.int32))
    near(session.handle():read("e-weight"), 1 - np.array({ { 1 }, { 0 }, { 3 }, { 0 } }) * np.ones({ 1, 3 }) / 12, 1e-6)
  end)

  it("stays as it is where it is not trainable", function()
    local job = flow.global_function {
      type = "train", inputs = { x = tp.Numpy.Placeholder({ 2 }, { dtype = flow.int32 }) }, returns = tp.Numpy,
    } (function(x)
      local y = flow.layers.embedding(x, 4, 3, {
        name = "e", trainable = false, embeddings_initializer = flow.ones_initializer() })
      flow.optimizer.SGD(1):minimize(flow.layers.dense(y, 1, { name = "d" }))
      return y
    end)
    job(np.array({ 2, 0 }, flow.int32))
    assert.is_true(session.handle():read("e-weight") == np.ones({ 4, 3 }))
  end)

  it("says what it cannot take", function()
    local function fails(pattern, x, ...)
      local more = { ... }
      local fine, problem = pcall(run, x, function(b) return flow.layers.embedding(b, unpack(more)) end)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find(pattern, 1, true), tostring(problem))
      assert.truthy(problem.where:find("layers_spec.lua:", 1, true))
    end
    local x = np.array({ 0, 4 }, flow.int32)
    fails("flow.layers.embedding: inputs are numbers of rows, integers, and 'b' is float32", x:astype(flow.float), 4, 3)
    fails("must be at least 1, got 0 and 3", x, 0, 3)
    fails("must be at least 1, got 3 and 0", x, 3, 0)
    fails("gather 'e': ", x, 4, 3, { name = "e" })
  end)
end)

describe("conv2d", function()
  it("has weights (filters, channels / groups, kernel)", function()
    local y = run(np.ones({ 1, 4, 5, 5 }), function(b)
      return flow.layers.conv2d(b, 6, 3, { name = "c", groups = 2, padding = "SAME", kernel_initializer =
        flow.ones_initializer() })
    end)
    assert.same({ "c-bias (6)", "c-weight (6, 2, 3, 3)" }, checks.variables())
    assert.equal("(1, 6, 5, 5)", tostring(y.shape))
    assert.equal(18, y:at(0, 0, 2, 2))
    assert.equal(8, y:at(0, 0, 0, 0))
  end)

  it("has weights (filters, kernel, channels) when channels come last", function()
    local y = run(np.ones({ 1, 5, 5, 4 }), function(b)
      return flow.layers.conv2d(b, 6, { 3, 2 }, { name = "c", data_format = "NHWC", strides = 2,
                                                  kernel_initializer = flow.ones_initializer() })
    end)
    assert.same({ "c-bias (6)", "c-weight (6, 3, 2, 4)" }, checks.variables())
    assert.equal("(1, 2, 2, 6)", tostring(y.shape))
    assert.equal(24, y:at(0, 1, 1, 5))
  end)

  it("splits channels into groups, wherever they stand", function()
    local y = run(np.ones({ 1, 5, 5, 4 }), function(b)
      return flow.layers.conv2d(b, 6, { 3, 2 }, { name = "c", data_format = "NHWC", groups = 2,
                                                  kernel_initializer = flow.ones_initializer() })
    end)
    assert.same({ "c-bias (6)", "c-weight (6, 3, 2, 2)" }, checks.variables())
    assert.equal(12, y:at(0, 1, 1, 5))
  end)

  it("puts the odd pad of SAME at the top and left", function()
    local x = np.arange(4):astype(flow.float):reshape({ 1, 1, 2, 2 })
    local function conv(padding)
      flow.clear_default_session()
      return run(x, function(b)
        return flow.layers.conv2d(b, 1, 2, { padding = padding, kernel_initializer = flow.ones_initializer() })
      end)
    end
    assert.is_true(conv("SAME") == np.array({ { { { 0, 1 }, { 2, 6 } } } }, flow.float))
    assert.is_true(conv("SAME_UPPER") == np.array({ { { { 6, 4 }, { 5, 3 } } } }, flow.float))
    assert.is_true(conv({ { 0, 0 }, { 0, 0 }, { 1, 0 }, { 1, 0 } }) == conv("SAME"))
  end)

  it("can have the names of its variables given wholly", function()
    run(np.ones({ 1, 1, 3, 3 }), function(b)
      return flow.scope.namespace("n", function()
        return flow.layers.conv2d(b, 1, { name = "c", weight_name = "the-weight", bias_name = "the-bias" })
      end)
    end)
    assert.same({ "the-bias (1)", "the-weight (1, 1, 1, 1)" }, checks.variables())
  end)
end)

describe("batch normalisation", function()
  it("can have the names of its variables given wholly", function()
    run(np.ones({ 2, 3 }), function(x)
      return flow.layers.batch_normalization(x, {
        name = "bn", gamma_name = "g", beta_name = "b", moving_mean_name = "m", moving_variance_name = "v",
      })
    end)
    assert.same({ "b (3)", "g (3)", "m (3)", "v (3)" }, checks.variables())
  end)

  local function normal(kind, options)
    return function(b)
      options = options or {}
      options.name = "bn"
      local y = flow.layers.batch_normalization(b, options)
      if kind == "train" then flow.optimizer.SGD(0.0):minimize(y) end
      return y
    end
  end

  it("uses the batch in a train job, and moves the running statistics", function()
    np.random.seed(5)
    local x = np.random.normal(3, 2, { 8, 2, 3, 3 }):astype(flow.float)
    local y = run(x, normal("train"), { type = "train" })
    local flat = y:transpose({ 1, 0, 2, 3 }):reshape({ 2, 72 })
    near(flat:mean(1), np.zeros({ 2 }), 1e-5)
    near(flat:std(1), np.ones({ 2 }), 1e-3)
    local read = session.handle()
    local channels = x:transpose({ 1, 0, 2, 3 }):reshape({ 2, 72 })
    near(read:read("bn-moving_mean"), channels:mean(1) * 0.01, 1e-6)
    local unbiased = channels:std(1) ^ 2 * (72 / 71)
    near(read:read("bn-moving_variance"), unbiased * 0.01 + 0.99, 1e-5)
  end)

  it("uses the running statistics in a predict job", function()
    local x = np.full({ 2, 3 }, 2)
    near(run(x, normal("predict", { epsilon = 0 })), x, 1e-6) -- mean 0, variance 1
    assert.same({ "bn-beta (3)", "bn-gamma (3)", "bn-moving_mean (3)", "bn-moving_variance (3)" }, checks.variables())
  end)

  it("may lack scale and shift", function()
    local x = np.full({ 2, 3 }, 2)
    near(run(x, normal("predict", { center = false, scale = false, epsilon = 0 })), x, 1e-6)
    assert.same({ "bn-moving_mean (3)", "bn-moving_variance (3)" }, checks.variables())
  end)

  it("takes statistics that it is given, along any axis", function()
    local function channels(...) return np.array({ ... }, flow.float) end
    local mean, variance = channels(1, 2, 3), channels(0.75, 3.75, 8.75)
    local scale, offset = channels(2, 3, 4), channels(5, 6, 7)
    local C = tp.Numpy.Placeholder({ 3 })
    local function normed(given, axis, is_scaled)
      return flow.global_function {
        inputs = { x = tp.Numpy.Placeholder(given.shape:table()), m = C, v = C, s = C, o = C }, returns = tp.Numpy,
      } (function(x, m, v, s, o)
        return flow.nn.batch_normalization(x, m, v, { scale = is_scaled and s or nil, offset = is_scaled and o or nil,
                                                      variance_epsilon = 0.25, axis = axis })
      end)(given, mean, variance, scale, offset)
    end
    local x = np.arange(12):reshape({ 2, 3, 2 }):astype(flow.float)
    local plain = (x - mean:reshape({ 3, 1 })) / mean:reshape({ 3, 1 })  -- the roots are 1, 2 and 3 too
    near(normed(x, -2), plain, 1e-5)
    local scaled = plain * scale:reshape({ 3, 1 }) + offset:reshape({ 3, 1 })
    near(normed(x, 1, true), scaled, 1e-5)
    near(normed(x:transpose({ 0, 2, 1 }), 2, true), scaled:transpose({ 0, 2, 1 }), 1e-5)
  end)

  it("fuses with relu and an addend", function()
    local x = np.array({ { -2, 1 } }, flow.float)
    local y = run(x, function(b) return flow.layers.batch_normalization_relu(b, { name = "bn", epsilon = 0 }) end)
    near(y, np.array({ { 0, 1 } }, flow.float), 1e-6)
    flow.clear_default_session()
    y = run(x, function(b) return flow.layers.batch_normalization_add_relu(b, b, { name = "bn", epsilon = 0 }) end)
    near(y, np.array({ { 0, 2 } }, flow.float), 1e-6)
  end)
end)

describe("layer normalisation", function()
  it("normalises the axes from begin_norm_axis on", function()
    np.random.seed(5)
    local x = np.random.normal(3, 2, { 4, 5, 6 }):astype(flow.float)
    local y = run(x, function(b) return flow.layers.layer_norm(b, { name = "ln" }) end)
    assert.same({ "ln-beta (6)", "ln-gamma (6)" }, checks.variables())
    near(y:reshape({ 4, 30 }):mean(1), np.zeros({ 4 }), 1e-5)
    near(y:reshape({ 4, 30 }):std(1), np.ones({ 4 }), 1e-4)
    flow.clear_default_session()
    local rows = run(x, function(b) return flow.layers.layer_norm(b, { name = "ln", begin_norm_axis = -1 }) end)
    near(rows:mean(2), np.zeros({ 4, 5 }), 1e-5)
  end)

  it("scales and shifts", function()
    local y = run(np.array({ { 1, 3 } }, flow.float), function(b)
      local g = flow.get_variable("g", { shape = { 2 }, initializer = flow.constant_initializer(2) })
      local s = flow.get_variable("s", { shape = { 2 }, initializer = flow.constant_initializer(10) })
      return flow.nn.layer_norm(b, g, s)
    end)
    near(y, np.array({ { 8, 12 } }, flow.float), 1e-4)
  end)

  it("adds 1e-5 to a variance, which may be smaller", function()
    local x = np.array({ { -0.001, 0.001 } }, flow.float)
    near(run(x, function(b) return flow.nn.layer_norm(b) end), x / math.sqrt(1e-6 + 1e-5), 1e-5)
  end)
end)

describe("prelu", function()
  it("has a slope per element below zero", function()
    local y = run(np.array({ { -2, 4 } }, flow.float), function(b)
      return flow.layers.prelu(b, { name = "p", alpha_initializer = flow.constant_initializer(0.25) })
    end)
    assert.is_true(y == np.array({ { -0.5, 4 } }, flow.float))
    assert.same({ "p-alpha (2)" }, checks.variables())
  end)

  it("shares it over axes", function()
    run(np.ones({ 2, 3, 4, 4 }), function(b) return flow.layers.prelu(b, { name = "p", shared_axes = { 2, 3 } }) end)
    assert.same({ "p-alpha (3, 1, 1)" }, checks.variables())
  end)
end)

describe("dropout", function()
  it("is the identity in predict jobs and with rate 0", function()
    local x = np.ones({ 100 })
    assert.is_true(run(x, function(b) return flow.nn.dropout(b, 0.5) end) == x)
    local guess = flow.global_function {
      inputs = { v = tp.Numpy.Placeholder { 400 } }, returns = tp.Numpy,
    } (function(v) return flow.nn.dropout(v, 0.5, { training = true }) end)
    local one, other = guess(np.ones { 400 }), guess(np.ones { 400 })
    assert.is_true(one ~= other and math.abs(one:mean() - 1) < 0.2 and other:max() == 2, tostring(one))
    local job = flow.global_function { type = "train", inputs = { b = tp.Numpy.Placeholder({ 100 }) },
                                       returns = tp.Numpy } (function(b)
      local y = flow.nn.dropout(b, 0)
      flow.optimizer.SGD(0):minimize(y * flow.get_variable("w", { shape = {}, initializer = flow.ones_initializer() }))
      return y
    end)
    assert.is_true(job(x) == x)
  end)

  it("drops and scales in train jobs, other elements in each step", function()
    local job = flow.global_function {
      type = "train", inputs = { x = tp.Numpy.Placeholder({ 10000 }) }, returns = tp.Numpy,
    } (function(x)
      local y = flow.nn.dropout(x, { rate = 0.25, name = "drop" })
      local w = flow.get_variable("w", { shape = { 1 }, initializer = flow.ones_initializer() })
      flow.optimizer.SGD(0.0):minimize(w * y)
      return y
    end)
    local x = np.ones({ 10000 })
    local a, b = job(x), job(x)
    assert.is_false(a == b)
    for _, y in ipairs { a, b } do
      local kept = np.sum(y:gt(0))
      assert.truthy(math.abs(kept - 7500) < 200) -- four standard deviations of the binomial are 173
      assert.truthy(math.abs(y:max() - 1 / 0.75) < 1e-6)
    end
  end)
end)

describe("attention", function()
  local function heads(b) return flow.reshape(b, { 2, 6, 2, 4 }) end
  local x

  before_each(function() x = np.random.uniform(-1, 1, { 2, 6, 8 }):astype(flow.float) end)

  it("is softmax of the products of each head, times the values", function()
    local fused = run(x, function(b) return flow.nn.dot_product_attention(heads(b), heads(b), heads(b)) end)
    local composed = run(x, function(b)
      local rows = flow.transpose(heads(b), { perm = { 0, 2, 1, 3 } })
      local weights = flow.nn.softmax(flow.matmul(rows, rows, { transpose_b = true }) * 0.5)
      return flow.transpose(flow.matmul(weights, rows), { perm = { 0, 2, 1, 3 } })
    end)
    near(fused, composed, 1e-6)
  end)

  it("looks back only where it is causal, as with a mask that says so", function()
    local causal = run(x, function(b)
      return flow.nn.dot_product_attention(heads(b), heads(b), heads(b), { causal = true })
    end)
    local masked = run(x, function(b)
      local queries, keys = flow.expand_dims(flow.range(0, 6), { axis = 1 }), flow.range(0, 6)
      return flow.nn.dot_product_attention(heads(b), heads(b), heads(b), { mask = queries:greater_equal(keys) })
    end)
    near(causal, masked, 0)
    near(causal:slice("0, 0"), x:reshape({ 2, 6, 2, 4 }):slice("0, 0"), 0)
  end)

  it("drops weights in train jobs only, and has a gradient then", function()
    local function attend(b)
      local h = heads(b)
      local out = flow.nn.dot_product_attention(h, h, h, { rate = 0.5, name = "attend" })
      return out
    end
    local plain = run(x, function(b) return flow.nn.dot_product_attention(heads(b), heads(b), heads(b)) end)
    near(run(x, attend), plain, 0)
    local dropped, slope
    run(x, function(b)
      local out = attend(b * flow.get_variable("scale", { shape = { 1 }, initializer = flow.ones_initializer() }))
      flow.watch(out, function(y) dropped = y:copy() end)
      flow.watch_diff(b, function(y) slope = y:copy() end)
      flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler({}, { 0.1 }), { momentum = 0 }):minimize(out)
      return out
    end, { type = "train" })
    assert.truthy(np.max(np.abs(dropped - plain)) > 0.1)
    assert.truthy(np.max(np.abs(slope)) > 0.1)
  end)

  -- With two layers: what one makes of earlier words is kept, and what it makes of the new one is put among it.
  it("sees of kept keys and values, word by word, what it sees of the whole text at once", function()
    local LENGTH, WORDS, HEADS, WIDTH = 7, 11, 2, 8
    local function logits(words, length, attend)
      local function heads_of(h, name)
        return flow.reshape(flow.layers.dense(h, WIDTH, { name = name }), { 1, length, HEADS, WIDTH / HEADS })
      end
      local h = flow.layers.embedding(words, WORDS, WIDTH, { name = "table" })
      for layer = 1, 2 do
        local query, key = heads_of(h, "query" .. layer), heads_of(h, "key" .. layer)
        local seen = attend(layer, query, key, heads_of(h, "value" .. layer))
        h = h + flow.reshape(seen, { 1, length, WIDTH })
      end
      return flow.layers.dense(flow.reshape(h, { length, WIDTH }), WORDS, { name = "logits" })
    end

    local whole_job = flow.global_function {
      inputs = { words = tp.Numpy.Placeholder({ 1, LENGTH }, { dtype = flow.int32 }) }, returns = tp.Numpy,
    } (function(words)
      return logits(words, LENGTH, function(_, query, key, value)
        return flow.nn.dot_product_attention(query, key, value, { causal = true })
      end)
    end)
    local one = tp.Numpy.Placeholder({ 1, 1 }, { dtype = flow.int32 })
    local next_job = flow.global_function {
      inputs = { word = one, place = one }, returns = tp.Numpy,
    } (function(word, place)
      local function with_earlier(name, new)
        local rows = flow.get_variable(name, {
          shape = { LENGTH, HEADS, WIDTH / HEADS }, trainable = false, initializer = flow.zeros_initializer() })
        local now = flow.tensor_scatter_nd_update(rows, place, flow.squeeze(new, { 0 }))
        flow.assign(rows, now)
        return flow.expand_dims(now, 0)
      end
      local is_there = flow.math.less_equal(flow.range(0, LENGTH, { dtype = flow.int32 }), place)
      return logits(word, 1, function(layer, query, key, value)
        return flow.nn.dot_product_attention(query, with_earlier("keys" .. layer, key),
          with_earlier("values" .. layer, value), { mask = flow.reshape(is_there, { 1, 1, 1, LENGTH }) })
      end)
    end)

    -- A second text writes over what is left of the first one, which its mask hides until then.
    for _ = 1, 2 do
      local text = np.random.randint(0, WORDS, { 1, LENGTH }, { dtype = flow.int32 })
      local whole = whole_job(text)
      for place = 0, LENGTH - 1 do
        local now = next_job(np.array({ { text[0][place] } }, flow.int32), np.array({ { place } }, flow.int32))
        near(now[0], whole[place], 1e-5) -- sums of 8 in float32, through two layers
      end
    end
  end)

  it("says which input has the wrong shape", function()
    local ok, message = pcall(run, x, function(b) return flow.nn.dot_product_attention(b, heads(b), heads(b)) end)
    assert.falsy(ok)
    assert.truthy(tostring(message):find("wanted (batch, length, heads, width)", 1, true))
  end)
end)

describe("stop_gradient", function()
  it("gives what it is given, and a gradient to nothing behind it", function()
    local x, slopes = np.array({ 2, 3 }, flow.float), {}
    local y = run(x, function(b)
      local w = flow.get_variable("w", { shape = { 1 }, initializer = flow.constant_initializer(5) })
      local stopped = b * w
      local out = flow.stop_gradient(stopped) * w
      flow.watch_diff(w, function(slope) slopes.w = slope[0] end)
      flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler({}, { 0.1 }), { momentum = 0 }):minimize(out)
      return out
    end, { type = "train" })
    assert.is_true(y == x * 25)
    assert.equal(10 + 15, slopes.w) -- through both factors it would be twice that
  end)
end)

describe("composed ops", function()
  it("multiply each matrix of a stack with one matrix, turned or not, and give it all their gradients", function()
    flow.set_seed(2)
    local stack, matrix = np.random.normal(0, 1, { 2, 3, 4, 5 }), np.random.normal(0, 1, { 5, 6 })
    for i = 0, 3 do
      local turn_a, turn_b = i % 2 == 1, i > 1
      local a = turn_a and stack:transpose({ 0, 1, 3, 2 }) or stack
      local b = turn_b and matrix:transpose() or matrix
      local function product(of)
        return flow.global_function {
          inputs = { x = tp.Numpy.Placeholder(a.shape:table()), w = tp.Numpy.Placeholder(b.shape:table()) },
          returns = tp.List[tp.Numpy],
        } (function(x, w)
          local y = of(x, w)
          local slopes = flow.gradients(y * y, { x, w })
          return { y, slopes[1], slopes[2] }
        end)(a, b)
      end
      local got = product(function(x, w) return flow.matmul(x, w, { transpose_a = turn_a, transpose_b = turn_b }) end)
      local pairwise = product(function(x, w)
        local many = flow.broadcast_to(w, { 2, 3, w.shape[0], w.shape[1] })
        return flow.linalg.matmul(x, many, turn_a, turn_b)
      end)
      assert.equal("(2, 3, 4, 6)", tostring(got[1].shape))
      for k = 1, 3 do assert.is_true(np.allclose(got[k], pairwise[k], 1e-4, 1e-4)) end
    end
    local one, wanted = matrix:astype(flow.float), np.matmul(stack, matrix)
    for _, of in ipairs {
      function(x) return flow.matmul(x, one) end, -- an array, as a constant
      function(x) return flow.linalg.matmul { a = x, b = one:transpose(), transpose_b = true } end,
    } do
      assert.is_true(np.allclose(run(stack:astype(flow.float), of), wanted, 1e-4, 1e-4))
    end
    local fine, problem = pcall(run, stack, function(x) return flow.matmul(x, flow.ones({ 4, 5 })) end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find(
      "flow.matmul: inner sizes differ: a is (2, 3, 4, 5), b is (4, 5), so 5 against 4", 1, true), tostring(problem))
    assert.truthy(problem.where:find("layers_spec.lua:", 1, true))
  end)

  it("multiply stacks whose leading axes broadcast", function()
    local rng = np.random.default_rng(2)
    for _, shapes in ipairs {
      { { 3, 4 }, { 5, 4, 2 } }, { { 5, 1, 3, 4 }, { 6, 4, 2 } }, { { 1, 3, 4 }, { 7, 4, 2 } },
    } do
      local a, b = rng:normal(0, 1, shapes[1], "float64"), rng:normal(0, 1, shapes[2], "float64")
      local product, slope = checks.run({ a, b }, function(x, y)
        local z = flow.matmul(x, y)
        return z, flow.gradients(z * z, x)
      end, { returns = tp.Tuple { tp.Numpy, tp.Numpy } })
      checks.near(np.matmul(a, b), product)
      assert.equal(tostring(a.shape), tostring(slope.shape))
    end
    checks.refuses("flow.matmul: a is (2, 5, 3), b is (3, 3, 4), whose axes before the last two do not broadcast",
      function()
        checks.run({ np.ones { 2, 5, 3 }, np.ones { 3, 3, 4 } }, function(x, y) return flow.matmul(x, y) end)
      end)
  end)

  it("compute what their names say", function()
    local x = np.array({ { 1, -2 }, { 3, 0.5 } }, flow.float)
    local function with(body)
      return run(x, function(b) return body(b, flow.cast(flow.math.greater(b, 1), flow.float)) end)
    end
    local target = np.array({ { 0, 0 }, { 1, 0 } }, flow.float)
    assert.is_true(with(function(b, t) return flow.nn.L1Loss(b, t, { reduction = "none" }) end) == np.abs(x - target))
    assert.equal(1.375, with(function(b, t) return flow.nn.L1Loss(b, t) end):item())
    assert.equal(9.25, with(function(b, t) return flow.nn.MSELoss(b, t, { reduction = "sum" }) end):item())
    assert.is_true(run(x, function(b) return flow.math.add_n({ b, b, b }) end) == x * 3)
    assert.is_true(run(x, function(b) return flow.ones({ 2, 2 }) + b end) == x + 1)
    assert.is_true(run(x, function(b) return flow.constant_like(b, 3) - b end) == 3 - x)
    assert.is_true(run(x, function(b) return 2 / (b * b) ^ 0.5 - -b % 2 end) == 2 / np.abs(x) - (-x) % 2)
    assert.is_true(run(x, function(b) return flow.linalg.matmul(b, b) end)
      == run(x, function(b) return flow.matmul(b, b) end))
    assert.equal("int8", run(x, function(b) return b:less(1) end).dtype)
  end)

  it("know the binary cross entropies", function()
    local p = np.array({ 0.2, 0.9 }, flow.float)
    local loss = run(p, function(b) return flow.nn.BCELoss(b, flow.ones({ 2 }), { reduction = "none" }) end)
    near(loss, np.array({ -math.log(0.2), -math.log(0.9) }, flow.float), 1e-6)
    local logits = run(p, function(b) return flow.nn.BCEWithLogitsLoss(b, flow.ones({ 2 }), { reduction = "none" }) end)
    near(logits, np.array({ math.log(1 + math.exp(-0.2)), math.log(1 + math.exp(-0.9)) }, flow.float), 1e-6)
  end)

  it("normalise by themselves in every precision", function()
    local x = np.array({ { 1, 2, 4 }, { 3, 6, 5 }, { 8, 1, 0 } }, flow.float)
    local function normal(dtype)
      return checks.run({ x:astype(dtype) }, function(b)
        local mean, variance = flow.nn.moments(b, { 0 })
        return flow.nn.batch_normalization(b, mean, variance)
      end):astype(flow.double)
    end
    checks.near(normal(flow.float), normal(flow.bfloat16), 0.05)
    checks.near(normal(flow.float), normal(flow.float16), 0.01)
  end)

  it("give several outputs as several values", function()
    local mean, variance = run(np.array({ { 1, 3 }, { 2, 2 } }, flow.float), function(b)
      return flow.nn.moments(b, { 1 })
    end, { returns = tp.Tuple { tp.Numpy, tp.Numpy } })
    assert.is_true(mean == np.array({ 2, 2 }, flow.float))
    assert.is_true(variance == np.array({ 1, 0 }, flow.float))
  end)
end)

describe("initialisers", function()
  local function first(init, shape, dtype)
    flow.clear_default_session()
    flow.set_seed(11)
    local job = flow.global_function { returns = tp.Numpy } (function()
      return flow.get_variable("v", { shape = shape or { 100, 200 }, initializer = init, dtype = dtype })
    end)
    return job()
  end

  -- Tolerances: 20,000 draws, so about 4 standard errors.
  it("draw from what they name", function()
    assert.is_true(first(flow.constant_initializer(1.5)) == np.full({ 100, 200 }, 1.5))
    local u = first(flow.random_uniform_initializer(-2, 4))
    assert.truthy(u:min() >= -2 and u:max() < 4 and math.abs(u:mean() - 1) < 0.05)
    local n = first(flow.random_normal_initializer(1, 2))
    assert.truthy(math.abs(n:mean() - 1) < 0.06 and math.abs(n:std() - 2) < 0.05 and n:max() > 6)
    local t = first(flow.truncated_normal(0.1))
    assert.truthy(t:max() <= 0.2 and t:min() >= -0.2 and math.abs(t:std() - 0.08796) < 0.002)
    local he = first(flow.variance_scaling_initializer(2, "fan_in", "random_normal"))
    assert.truthy(math.abs(he:std() - math.sqrt(2 / 200)) < 0.002)
    local cut = first(flow.variance_scaling_initializer(1, "fan_out"))
    assert.truthy(math.abs(cut:std() - math.sqrt(1 / 100)) < 0.002)
    local x = first(flow.xavier_uniform_initializer())
    assert.truthy(x:max() <= math.sqrt(6 / 300) and math.abs(x:std() - math.sqrt(2 / 300)) < 0.002)
    local k = first(flow.kaiming_initializer({ 100, 200 }, { nonlinearity = "relu", mode = "fan_out" }))
    assert.truthy(math.abs(k:std() - math.sqrt(2 / 100)) < 0.003)
  end)

  it("have the names that users of other libraries look for", function()
    local function std(init) return first(init):std() end
    local function draws(wanted, init) assert.truthy(math.abs(std(init) - wanted) < 0.03 * wanted, std(init)) end
    draws(math.sqrt(2 / 200), flow.he_normal_initializer())
    draws(math.sqrt(2 / 200), flow.he_uniform_initializer())
    draws(math.sqrt(1 / 200), flow.lecun_normal_initializer())
    draws(math.sqrt(1 / 200), flow.lecun_uniform_initializer())
    draws(math.sqrt(2 / 100), flow.kaiming_normal_initializer { mode = "fan_out", nonlinearity = "relu" })
    draws(3 / 4 / math.sqrt(200), flow.kaiming_uniform_initializer { nonlinearity = "selu" })
    for _, plain in ipairs { "linear", "sigmoid" } do
      draws(1 / math.sqrt(200), flow.kaiming_normal_initializer { nonlinearity = plain })
    end
    draws(math.sqrt(2 / 200), flow.kaiming_initializer())  -- without a shape that of the variable
    draws(math.sqrt(2 / 300), flow.glorot_normal_initializer())
    assert.is_true(first(flow.identity_initializer(2), { 2, 3 }) == np.array({ { 2, 0, 0 }, { 0, 2, 0 } }))
  end)

  it("make matrices that neither stretch nor shrink", function()
    local q = first(flow.orthogonal_initializer(2))
    assert.is_true(np.allclose(np.matmul(q, q:transpose()), 4 * np.eye(100), { atol = 1e-5 }))
    local filter = first(flow.orthogonal_initializer(), { 4, 3, 2, 2 }):reshape({ 4, -1 })
    assert.is_true(np.allclose(np.matmul(filter, filter:transpose()), np.eye(4), { atol = 1e-6 }))
    assert.is_true(first(flow.orthogonal_initializer(), { 30, 20 }) == first(flow.orthogonal_initializer(), { 30, 20 }))
  end)

  it("begin with an array, as it was when they were made", function()
    local vectors = np.arange(6):reshape({ 2, 3 })
    local init = flow.constant_initializer(vectors)
    vectors[0] = 7
    assert.is_true(first(init, { 2, 3 }) == np.arange(6):reshape({ 2, 3 }):astype("float32"))
  end)

  it("say what does not fit, where the variable is made", function()
    local function refuses(message, init, shape, dtype)
      local fine, problem = pcall(first, init, shape, dtype)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find("layers_spec.lua:%d+: flow.get_variable: the initializer "), problem)
      assert.truthy(tostring(problem):find(message, 1, true), tostring(problem))
    end
    refuses("orthogonal(1) does not fit the variable 'v', float32 (3): a matrix has two axes or more",
      flow.orthogonal_initializer(), { 3 })
    refuses("identity(1) does not fit the variable 'v', float32 (3, 1, 1): a matrix has two axes",
      flow.identity_initializer(), { 3, 1, 1 })
    refuses("does not fit the variable 'v', float32 (3): its value is (2)",
      flow.constant_initializer(np.zeros { 2 }), { 3 })
    refuses("identity(0.5) does not fit the variable 'v', int32 (2, 2): 0.5 is no int32",
      flow.identity_initializer(0.5), { 2, 2 }, "int32")
    refuses("300 is no int8", flow.constant_initializer(300), { 2 }, "int8")
    refuses("-0.5 is no int64", flow.random_uniform_initializer(-0.5, 3), { 2 }, "int64")
    refuses("random_uniform(3, 3) does not fit the variable 'v', int64 (2): no whole number lies in it",
      flow.random_uniform_initializer(3, 3), { 2 }, "int64")
    refuses("128 is no int8", flow.random_uniform_initializer(0, 129), { 2 }, "int8")
    refuses("some of its elements are no int8; value:astype(flow.int8) cuts them to be such",
      flow.constant_initializer(np.array { 1, 2.7 }), { 2 }, "int8")
    refuses("some of its elements are no uint8", flow.constant_initializer(np.array({ 1, 300 }, "int32")), { 2 },
      "uint8")
    assert.same({ 1, 2 }, first(flow.constant_initializer(np.array { 1, 2 }), { 2 }, "int8"):totable())
    assert.equal("int8", first(flow.random_uniform_initializer(0, 128), { 2 }, "int8").dtype)
    for _, name in ipairs { "random_normal", "truncated_normal", "xavier_uniform", "kaiming_normal", "orthogonal" } do
      refuses("'v', int32 (2, 2): it draws floating numbers", flow[name .. "_initializer"](), { 2, 2 }, "int32")
    end
    assert.is_true(first(flow.identity_initializer(3), { 2, 2 }, "int32") == np.array({ { 3, 0 }, { 0, 3 } }, "int32"))
    assert.equal("int32", first(flow.random_uniform_initializer(0, 9), { 2 }, "int32").dtype)
  end)

  it("say what they take", function()
    local function refuses(message, ...)
      local fine, problem = pcall(...)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find(message, 1, true), tostring(problem))
    end
    refuses("flow.random_uniform_initializer: minval must not be above maxval, got 0.1 and -0.1",
      flow.random_uniform_initializer, 0.1, -0.1)
    refuses("flow.random_normal_initializer: stddev must be 0 or more, got -1", flow.random_normal_initializer, 0, -1)
    refuses("flow.truncated_normal: stddev must be 0 or more, got -1", flow.truncated_normal, -1)
    refuses("flow.truncated_normal_initializer: stddev must", flow.truncated_normal_initializer, 0, -1)
    refuses("flow.variance_scaling_initializer: scale must be 0 or more, got -1", flow.variance_scaling_initializer, -1)
    refuses("must be a number or an ndarray, got a table; np.array(it) makes one", flow.constant_initializer, { 1, 2 })
    refuses("wants an initialiser such as flow.truncated_normal(0.1), got an ndarray float32 (2); "
      .. "flow.constant_initializer(it) makes one", first, np.ones { 2 }, { 2 })
    refuses("got 0; flow.constant_initializer(it) makes one", first, 0, { 2 })
    refuses("mode must be one of", flow.kaiming_initializer, { mode = "fan_up" })
    refuses("has no option 'seed'; the variable has it: flow.get_variable takes random_seed",
      flow.identity_initializer, { gain = 1, seed = 3 })
  end)

  it("take the length of a vector for both of its fans", function()
    for _, mode in ipairs { "fan_in", "fan_out", "fan_avg" } do
      local bias = first(flow.variance_scaling_initializer(1, mode, "random_normal"), { 10000 })
      assert.near(0.01, bias:std(), 0.0005)
    end
  end)

  it("count the fans of convolutions", function()
    local nchw = first(flow.variance_scaling_initializer(1, "fan_out", "random_normal"), { 64, 32, 3, 3 })
    assert.truthy(math.abs(nchw:std() - math.sqrt(1 / (64 * 9))) < 0.001)
    local nhwc = first(flow.variance_scaling_initializer { mode = "fan_out", distribution = "random_normal",
                                                           data_format = "NHWC" }, { 64, 3, 3, 32 })
    assert.truthy(math.abs(nhwc:std() - math.sqrt(1 / (64 * 9))) < 0.001)
  end)
end)

describe("a batch of one", function()
  it("leaves a moving variance that is a number, and is said to train nothing, once", function()
    local lines = {}
    flow.config.log(function(line) lines[#lines + 1] = line end)
    finally(function() flow.config.log(nil) end)
    local job = flow.global_function {
      type = "train", inputs = { x = tp.Numpy.Placeholder({ 1, 2 }) }, returns = tp.None,
    } (function(x)
      local y = flow.layers.batch_normalization(x, { axis = 1, name = "bn" })
      y = flow.layers.batch_normalization_relu(y, { axis = 1, name = "next" })
      flow.optimizer.SGD(0, { momentum = 0 }):minimize(flow.math.reduce_sum(y))
    end)
    for _ = 1, 2 do job(np.array { { 1, 2 } }) end
    local variance = flow.get_all_variables()["bn-moving_variance"]
    assert.is_true(np.allclose(variance, np.array { 0.9801, 0.9801 }, { atol = 1e-6 }), tostring(variance))
    assert.equal(1, #lines)
    local told = "layers_spec.lua:%d+: flow.layers.batch_normalization: inputs 'x' is %(1, 2%), one value for each "
      .. "channel of axis 1. Trained with, it gives beta whatever it is, and moves the running variance towards 0; "
    assert.truthy(lines[1]:find(told), lines[1])
  end)
end)

describe("a normalised vector below epsilon", function()
  it("is the vector by the root of that, and so is its gradient", function()
    flow.global_function { type = "train", inputs = { x = tp.Numpy.Placeholder({ 1, 2 }) }, returns = tp.None } (
      function(x)
        local w = flow.get_variable("w", { shape = { 1, 2 }, initializer = flow.constant_initializer(0.1) })
        local rate = flow.optimizer.PiecewiseConstantScheduler({}, { 1 })
        flow.optimizer.SGD(rate, { momentum = 0 }):minimize(
          flow.math.reduce_sum(flow.math.l2_normalize(w, { axis = 1, epsilon = 1 }) * x))
      end)(np.ones { 1, 2 })
    assert.is_true(np.allclose(flow.get_all_variables().w, np.array { { -0.9, -0.9 } }, { atol = 1e-6 }))
  end)
end)
