-- A dynamic loss scale: steps that overflow leave no trace but a smaller scale, and the others go as without one.
local flow = require "moonflow"
local process = require "process"
local session = require "moonflow.session"
local np, tp = flow.np, flow.typing

local SCALE = "System-Train-DynamicLossScale-train-LossScale"
local GOOD = "System-Train-DynamicLossScale-train-GoodStepCounter"
local STEP = "System-Train-TrainStep-train"

before_each(function()
  flow.clear_default_session()
  flow.set_seed(3)
end)

local function read(name) return session.handle():read(name):totable() end

local dynamic = flow.optimizer.loss_scale.dynamic_loss_scale

-- loss = sum over rows of (x w + b), for which the gradient of w is the sum of x; w has two columns.
local function train_job(make, options)
  options = options or {}
  local dtype = options.dtype or flow.float
  return flow.global_function {
    name = "train", type = "train", inputs = { x = tp.Numpy.Placeholder({ 4, 3 }, dtype) }, returns = tp.Numpy,
  } (function(x)
    local w = flow.get_variable("w", { shape = { 3, 2 }, dtype = dtype, regularizer = options.regularizer,
                                       initializer = flow.random_uniform_initializer(-1, 1) })
    local b = flow.get_variable("b", { shape = { 2 }, dtype = dtype, initializer = flow.constant_initializer(0.5) })
    local y = flow.nn.bias_add(flow.matmul(x, w), b)
    if options.watch then flow.watch_diff(y, options.watch) end
    local loss = y * y
    make(options.policy):minimize(loss)
    return loss
  end)
end

local function feed(step, dtype)
  return np.random.default_rng(step):uniform(-1, 1, { 4, 3 }):astype(dtype or flow.float)
end

local function overflow(dtype)
  local x = feed(1):totable()
  x[2][3] = dtype == flow.double and 1e200 or 3e38
  return np.array(x, dtype or flow.float)
end

local function with(class, options)
  return function(policy)
    local all = { loss_scale_policy = policy }
    for key, value in pairs(options or {}) do all[key] = value end
    return flow.optimizer[class](0.05, next(all) and all or nil)
  end
end

local clipped = { grad_clipping = flow.optimizer.grad_clipping.by_global_norm(0.5) }
local optimizers = {
  SGD = with("SGD", { momentum = 0 }), momentum = with("SGD"), Adam = with("Adam"), RMSProp = with("RMSProp"),
  centered = with("RMSProp", { centered = true }), LARS = with("LARS", { lars_coefficient = 0.1 }),
  AdamW = with("AdamW", { weight_decay = 0.1 }), SGDW = with("SGDW", { weight_decay = 0.1 }),
  LazyAdam = with("LazyAdam"), LAMB = with("LAMB", { weight_decay = 0.1 }), Adagrad = with("Adagrad"),
  clipped = with("SGD", clipped), clipped_Adam = with("Adam", clipped),
}

-- All variables of the session by name, without those of the loss scale.
local function variables()
  local values = {}
  for _, entry in ipairs(session.handle():variables()) do
    if not entry.name:find("LossScale", 1, true) then values[entry.name] = read(entry.name) end
  end
  return values
end

local function assert_near(expected, got, tolerance)
  if type(expected) == "number" then
    assert.truthy(math.abs(expected - got) <= tolerance * math.max(1, math.abs(expected)), expected .. " " .. got)
    return
  end
  for key, value in pairs(expected) do assert_near(value, got[key], tolerance) end
end

describe("a dynamic loss scale", function()
  it("has the original's defaults, by position and by name", function()
    train_job(optimizers.SGD, { policy = dynamic() })(feed(1))
    assert.equal(2 ^ 30, read(SCALE))
    assert.equal(1, read(GOOD))
    flow.clear_default_session()
    local job = train_job(optimizers.SGD, { policy = dynamic(64, 2, 4) })
    job(feed(1))
    job(feed(2))
    assert.equal(256, read(SCALE))
    flow.clear_default_session()
    local named = dynamic { initial_loss_scale = 64, multiplier = 4, increment_period = 1 }
    job = train_job(optimizers.SGD, { policy = named })
    job(feed(1))
    assert.equal(256, read(SCALE))
  end)

  it("refuses what makes no sense", function()
    local function message(...)
      local ok, problem = pcall(dynamic, ...)
      assert.is_false(ok)
      return tostring(problem)
    end
    local where = "flow.optimizer.loss_scale.dynamic_loss_scale: "
    assert.truthy(message(0.5):find(where .. "initial_loss_scale must be at least 1", 1, true))
    assert.truthy(message(1e300):find("initial_loss_scale must be at least 1, and a number of float32", 1, true))
    assert.truthy(message(2, 0):find(where .. "increment_period must be at least 1, got 0", 1, true))
    assert.truthy(message(2, 1, 1):find(where .. "multiplier must be above 1, got 1", 1, true))
    assert.truthy(message { increment_periods = 1 }:find("increment_period", 1, true))
  end)

  it("changes nothing of what is learned while nothing overflows", function()
    for name, make in pairs(optimizers) do
      for _, regularizer in ipairs { false, flow.regularizers.l2(0.1) } do
        local results = {}
        for i, policy in ipairs { false, dynamic(2 ^ 20) } do
          flow.clear_default_session()
          flow.set_seed(3)
          local job = train_job(make, { policy = policy or nil, regularizer = regularizer or nil })
          for step = 1, 5 do job(feed(step)) end
          results[i] = variables()
        end
        assert.equal(5, results[1][STEP])
        local ok, problem = pcall(assert_near, results[1], results[2], 1e-5)
        assert.is_true(ok, name .. ": " .. tostring(problem))
      end
    end
  end)

  it("leaves running statistics as they are in a step that is left out, and not what the body assigns", function()
    local job = flow.global_function {
      name = "train", type = "train", inputs = { x = tp.Numpy.Placeholder({ 4, 3 }), s = tp.Numpy.Placeholder({}) },
    } (function(x, s)
      local counter = flow.get_variable("counter", { shape = {}, initializer = flow.zeros_initializer(),
                                                     trainable = false })
      flow.assign_add(counter, 1)
      local y = flow.layers.batch_normalization(x, { axis = 1, name = "norm" })
      flow.optimizer.SGD(0.1, { loss_scale_policy = dynamic(1024) }):minimize(flow.layers.dense(y, 1) * s)
    end)
    job(feed(1), 1)
    local mean, variance = read("norm-moving_mean"), read("norm-moving_variance")
    assert.not_same({ 0, 0, 0 }, mean)
    job(feed(2), 3e38)  -- with a finite batch
    job(np.full({ 4, 3 }, math.huge), 1)
    assert.same(mean, read("norm-moving_mean"))
    assert.same(variance, read("norm-moving_variance"))
    assert.equal(1, read(STEP))
    assert.equal(3, read("counter"))
    job(feed(2), 1)
    assert.not_same(mean, read("norm-moving_mean"))
  end)

  it("leaves out a step that overflows, to the bit, and halves", function()
    for name, make in pairs(optimizers) do
      for _, dtype in ipairs { flow.float, flow.double } do
        flow.clear_default_session()
        flow.set_seed(3)
        local job = train_job(make, { policy = dynamic(1024), dtype = dtype, regularizer = flow.regularizers.l2(0.1) })
        job(feed(1, dtype))
        local before = variables()
        assert.equal(1, before[STEP])
        job(overflow(dtype))
        assert.same(before, variables(), name)
        assert.equal(512, read(SCALE))
        assert.equal(0, read(GOOD))
        -- The next one goes on as if nothing had been.
        job(feed(2, dtype))
        local after = variables()
        flow.clear_default_session()
        flow.set_seed(3)
        job = train_job(make, { policy = dynamic(512), dtype = dtype, regularizer = flow.regularizers.l2(0.1) })
        job(feed(1, dtype))
        job(feed(2, dtype))
        assert_near(variables(), after, 1e-6)
      end
    end
  end)

  it("falls from far too much until gradients are finite", function()
    local job = train_job(optimizers.momentum, { policy = dynamic(2 ^ 127) })
    local first = variables()
    for _ = 1, 40 do job(feed(1)) end
    assert.is_false(pcall(assert.same, first, variables()))
    -- Gradients of a loss around 1: a few more powers of two than that are enough.
    local scale = read(SCALE)
    assert.truthy(scale < 2 ^ 127 and scale >= 2 ^ 120, tostring(scale))
    local left_out = 0
    while scale * 2 ^ left_out < 2 ^ 127 do left_out = left_out + 1 end
    assert.equal(40 - left_out, read(STEP))
  end)

  it("is not below 1", function()
    local job = train_job(optimizers.SGD, { policy = dynamic(3, 2000, 2) })
    for _ = 1, 3 do job(overflow()) end
    assert.equal(1, read(SCALE))
  end)

  it("shows the scaled gradient in watch_diff, as a fixed one does", function()
    local seen = {}
    for _, policy in ipairs { dynamic(8), flow.optimizer.loss_scale.static_loss_scale(8) } do
      flow.clear_default_session()
      flow.set_seed(3)
      train_job(optimizers.SGD, { policy = policy, watch = function(g) seen[#seen + 1] = g:totable() end })(feed(1))
    end
    assert.equal(2, #seen)
    assert.same(seen[2], seen[1])
  end)

  it("takes a fixed factor's place where both are given", function()
    local job = train_job(with("SGD", { loss_scale_factor = 3 }), { policy = dynamic(64, 1) })
    job(feed(1))
    assert.equal(128, read(SCALE))
  end)

  it("goes on from a checkpoint with its scale and its count", function()
    local folder = process.folder("loss_scale") .. "/saved"
    local job = train_job(optimizers.Adam, { policy = dynamic(1024, 3) })
    job(overflow())
    job(feed(1))
    job(feed(2))
    flow.train.CheckPoint():save(folder)
    job(feed(3))
    local expected, scale = variables(), read(SCALE)
    assert.equal(1024, scale)

    flow.clear_default_session()
    flow.set_seed(3)
    job = train_job(optimizers.Adam, { policy = dynamic(1024, 3) })
    flow.train.CheckPoint():load(folder)
    assert.equal(512, read(SCALE))
    assert.equal(2, read(GOOD))
    job(feed(3))
    assert.same(expected, variables())
    assert.equal(1024, read(SCALE))
    assert.equal(0, read(GOOD))
  end)

  it("updates all variables of a step together", function()
    local plan = train_job(optimizers.momentum, { policy = dynamic() }):summary { plan = true }
    local _, updates = plan:gsub("momentum_update", "")
    assert.equal(1, updates, plan)
    assert.falsy(plan:find("prepare_gradient", 1, true))
  end)
end)

describe("flow.gradients by a loss scale", function()
  -- The slope of 1e-8 has no place in float16, on the way there from float32 and back.
  local function through_float16(x)
    return flow.cast(flow.cast(x, flow.float16) * 1e-4 * 1e-4, flow.float)
  end
  local static = flow.optimizer.loss_scale.static_loss_scale

  it("keeps what would vanish on the way, and gives it in true units", function()
    local got = flow.global_function {
      inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.List[tp.Numpy],
    } (function(x)
      local y = through_float16(x)
      return { flow.gradients(y, x), flow.gradients(y, x, { loss_scale_policy = static(4096) }),
               flow.gradients({ y, y }, x, { loss_scale_policy = static(4096), grad_ys = { 1, 2 } }) }
    end)(np.ones({ 2 }))
    assert.same({ 0, 0 }, got[1]:totable())
    for i = 0, 1 do
      assert.near(1, got[2]:at(i) / 1e-8, 1e-3)
      assert.near(1, got[3]:at(i) / 3e-8, 1e-3)
    end
  end)

  it("leaves out a step whose loss is made of gradients that overflow, until the scale fits", function()
    local policy = dynamic(2 ^ 18)
    local job = flow.global_function {
      name = "train", type = "train", inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Numpy,
    } (function(x)
      local w = flow.get_variable("w", { shape = { 2 }, initializer = flow.constant_initializer(0.5) })
      local y = flow.cast(flow.cast(x * w, flow.float16) ^ 2, flow.float)
      local slope = flow.gradients(y, x, { loss_scale_policy = policy })
      local loss = flow.math.reduce_sum(slope)
      flow.optimizer.SGD(0.125, { momentum = 0, loss_scale_policy = policy }):minimize(loss)
      return slope
    end)
    local x = np.ones({ 2 })
    job(x)
    assert.equal(2 ^ 17, read(SCALE))
    assert.same({ 0.5, 0.5 }, read("w"))
    while read(STEP) == 0 do job(x) end
    -- slope = 2 x w^2, whose slope for w is 4 x w.
    assert.truthy(read(SCALE) < 2 ^ 16)
    assert.same({ 0.5 - 0.125 * 2, 0.5 - 0.125 * 2 }, read("w"))
    assert.same({ 0.125, 0.125 }, job(x):totable())
  end)

  it("is that of the job's optimizer where it is dynamic", function()
    local function define(kind, policy, own)
      return pcall(flow.global_function { type = kind, inputs = { x = tp.Numpy.Placeholder({ 2 }) },
                                          returns = tp.Numpy }, function(x)
        local y = x * flow.get_variable("w", { shape = { 2 }, initializer = flow.constant_initializer(0.5) })
        local slope = flow.gradients(y, x, { loss_scale_policy = policy })
        if kind == "train" then flow.optimizer.SGD(0.1, { loss_scale_policy = own }):minimize(y) end
        return slope
      end)
    end
    local policy = dynamic()
    local function problem_of(...)
      local fine, job = define(...)
      if fine then fine, job = pcall(job, np.ones({ 2 })) end
      return fine and "none" or tostring(job)
    end
    assert.truthy(problem_of("predict", policy):find("has type 'predict'; a static_loss_scale serves in any", 1, true))
    assert.truthy(problem_of("train", policy):find("give flow.optimizer.SGD the same loss_scale_policy", 1, true))
    assert.equal("none", problem_of("train", policy, policy))
    assert.equal("none", problem_of("predict", static(8)))
  end)
end)

-- A gradient above 65504 is infinite in float16, so what is scaled too much shows, and is left out.
describe("a dynamic loss scale in float16", function()
  local on_gpu = os.getenv("MOONFLOW_TEST_PLACEMENT") == "gpu"
  local MIXED = { enable_auto_mixed_precision = true, mixed_precision_dtype = flow.float16 }
  local THROUGHOUT = { default_data_type = flow.float16 }

  local function network_job(config, policy)
    local dtype = config and config.default_data_type or flow.float
    return flow.global_function {
      name = "train", type = "train", function_config = config, returns = tp.Numpy,
      inputs = { x = tp.Numpy.Placeholder({ 32, 48 }, dtype), labels = tp.Numpy.Placeholder({ 32 }, flow.int32) },
    } (function(x, labels)
      local init = flow.random_uniform_initializer(-0.2, 0.2)
      local hidden = flow.layers.dense(x, 40, { activation = flow.nn.relu, kernel_initializer = init, name = "hidden" })
      local logits = flow.layers.dense(hidden, 5, { kernel_initializer = init, name = "out" })
      local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, flow.cast(logits, flow.float))
      flow.optimizer.SGD(0.3, { momentum = 0, loss_scale_policy = policy }):minimize(loss)
      return loss
    end)
  end

  -- Rows around five centres.
  local function batch(step, dtype)
    local random = np.random.default_rng(step)
    local labels = random:randint(0, 5, { 32 }):astype("int32")
    local centres = np.random.default_rng(1):uniform(-1, 1, { 5, 48 })
    return (np.take(centres, labels, 0) + random:uniform(-0.5, 0.5, { 32, 48 })):astype(dtype or flow.float), labels
  end

  -- The losses of some steps from the same beginning.
  local function losses(steps, config, policy)
    flow.clear_default_session()
    flow.set_seed(3)
    local job, all = network_job(config, policy), {}
    for step = 1, steps do all[step] = job(batch(step, config and config.default_data_type)):mean() end
    return all
  end

  local function falls_and_learns(config)
    local job = network_job(config, dynamic())
    flow.train.CheckPoint():init()
    local first = variables()
    job(batch(1, config.default_data_type))
    assert.same(first, variables())
    assert.equal(2 ^ 29, read(SCALE))
    assert.equal(0, read(GOOD))
    assert.equal(0, read(STEP))
    local learned = {}
    for step = 2, 40 do learned[step] = job(batch(step, config.default_data_type)):mean() end
    local scale, left_out = read(SCALE), 0
    assert.truthy(scale <= 2 ^ 17 and scale >= 2 ^ 8, tostring(scale))
    while scale * 2 ^ left_out < 2 ^ 30 do left_out = left_out + 1 end
    assert.equal(40 - left_out, read(STEP))
    assert.equal(40 - left_out, read(GOOD))
    assert.truthy(learned[40] < 0.3 * learned[2], learned[2] .. " " .. learned[40])
  end

  it("falls until gradients fit, and the job learns", function() falls_and_learns(THROUGHOUT) end)

  if on_gpu then
    it("falls until the products of mixed precision fit", function()
      assert.truthy(network_job(MIXED, dynamic()):summary({ plan = true }):find("in float16", 1, true))
      flow.clear_default_session()
      flow.set_seed(3)
      falls_and_learns(MIXED)
    end)

    it("changes little of what mixed precision learns, as a fixed one does", function()
      local wide = losses(5)
      for _, policy in ipairs { dynamic(1024), flow.optimizer.loss_scale.static_loss_scale(1024) } do
        for step, loss in ipairs(losses(5, MIXED, policy)) do
          assert.truthy(math.abs(loss - wide[step]) < 0.01 * wide[step], step .. ": " .. loss .. " " .. wide[step])
        end
      end
    end)
  else
    it("stays where it is where mixed precision computes in float32", function()
      local wide = losses(5, nil, dynamic())
      assert.same(wide, losses(5, MIXED, dynamic()))
      assert.equal(2 ^ 30, read(SCALE))
    end)
  end
end)
