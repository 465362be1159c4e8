-- Optimizers, schedules, clipping, regularisers: the numbers of a few steps, against the formulas written out here.
local flow = require "moonflow"
local session = require "moonflow.session"
local np, tp = flow.np, flow.typing

before_each(function()
  flow.clear_default_session()
end)

-- Trains w (starting at `start`) for `steps` steps on loss = x * w; with x = (g1, g2) the gradient of w before division
-- is x itself, and the loss has two elements. Gives w after each step.
local function train(make_optimizer, options)
  options = options or {}
  local dtype = options.dtype or flow.double
  local job = flow.global_function {
    name = "train", type = "train", inputs = { x = tp.Numpy.Placeholder({ 2 }, dtype) }, returns = tp.Numpy,
    function_config = options.function_config,
  } (function(x)
    local w = flow.get_variable("w", {
      shape = { 2 }, dtype = dtype, initializer = flow.constant_initializer(options.start or 1),
      regularizer = options.regularizer,
    })
    local loss = x * w
    if make_optimizer then make_optimizer():minimize(loss) else flow.losses.add_loss(loss) end
    return w
  end)
  local seen = {}
  for t = 1, options.steps or 4 do
    job(np.array(options.gradient and options.gradient(t) or { 2, 4 * t }, dtype))
    seen[t] = session.handle():read("w"):totable()
  end
  return seen
end

-- The same by the formula `update(w, g, t, slots)` -> w, with g already divided; t from 0.
local function check(seen, update, options, tolerance)
  options = options or {}
  local w, slots = { options.start or 1, options.start or 1 }, { {}, {} }
  for t = 1, #seen do
    local x = options.gradient and options.gradient(t) or { 2, 4 * t }
    for i = 1, 2 do
      w[i] = update(w[i], x[i] / 2, t - 1, slots[i])
      local difference = math.abs(seen[t][i] - w[i])
      -- The learning rate is float32, so a step carries its rounding: about 1e-7 of the step.
      assert.truthy(difference <= (tolerance or 2e-6), ("step %d: %.9f, wanted %.9f"):format(t, seen[t][i], w[i]))
    end
  end
end

describe("an optimizer", function()
  it("leaves a job as it was where its losses are refused", function()
    local job = flow.global_function { type = "train", returns = tp.Numpy } (function()
      local w = flow.get_variable("w", { shape = { 2 }, initializer = flow.constant_initializer(1) })
      assert.falsy((pcall(function() flow.optimizer.SGD(1):minimize({ w, flow.math.reduce_mean(w) }) end)))
      assert.falsy((pcall(function() flow.optimizer.SGD(1):minimize("w") end)))
      flow.optimizer.SGD(0.5, { momentum = 0 }):minimize(w)
      return w
    end)
    job()
    assert.same({ 0.75, 0.75 }, job():totable())  -- one loss, whose mean has a gradient of a half
  end)
end)

describe("a loss", function()
  it("is one of the job's once, and has one optimizer", function()
    local function refused(message, body, config)
      flow.clear_default_session()
      local make = flow.global_function { name = "j", type = "train", returns = tp.None, function_config = config }
      local fine, problem = pcall(make, function()
        body(flow.get_variable("w", { shape = { 2 }, initializer = flow.zeros_initializer() }))
      end)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find(message, 1, true), tostring(problem))
    end
    local sgd = flow.optimizer.SGD(0.1)
    local twice = "'w' is a loss of the job already, and would count twice"
    refused("flow.optimizer.SGD:minimize: " .. twice, function(w) sgd:minimize { w, w } end)
    refused("flow.optimizer.SGD:minimize: " .. twice, function(w)
      flow.losses.add_loss(w)
      sgd:minimize(w)
    end)
    refused("flow.losses.add_loss: " .. twice, function(w)
      flow.losses.add_loss(w)
      flow.losses.add_loss(w)
    end)
    refused("the job 'j' has config.train in its function_config, which is an optimizer too",
      function(w) sgd:minimize(w) end, { train = { primary_lr = 0.1 } })
  end)
end)

describe("a number that an optimizer cannot use", function()
  it("is an error that says what it may be", function()
    for _, case in ipairs {
      { "SGD", "momentum", 128, "lie in [0, 1]", "; a loss scale is given by name, loss_scale_factor = 128" },
      { "SGDW", "momentum", -0.5, "lie in [0, 1]" }, { "LARS", "momentum_beta", 1.5, "lie in [0, 1]" },
      { "RMSProp", "decay_rate", 9, "lie in [0, 1]" }, { "SGD", "loss_scale_factor", 0, "be above 0" },
      { "Adam", "loss_scale_factor", -2, "be above 0" }, { "Adam", "epsilon", -1e-8, "be at least 0" },
      { "LARS", "epsilon", -1, "be at least 0" }, { "AdamW", "weight_decay", -0.01, "be at least 0" },
    } do
      local name, option, value, wanted, advice = unpack(case)
      local fine, problem = pcall(flow.optimizer[name], 0.1, { [option] = value })
      assert.is_false(fine)
      local message = ("%s must %s, got %g%s"):format(option, wanted, value, advice or "")
      assert.truthy(tostring(problem):find(message, 1, true), tostring(problem))
    end
  end)
end)

describe("SGD", function()
  it("without momentum subtracts rate times gradient", function()
    check(train(function() return flow.optimizer.SGD(0.1, { momentum = 0 }) end),
      function(w, g) return w - 0.1 * g end)
  end)

  it("has momentum 0.9, with the rate inside", function()
    local rate = flow.optimizer.PiecewiseConstantScheduler({ 1 }, { 0.1, 0.01 })
    check(train(function() return flow.optimizer.SGD(rate) end),
      function(w, g, t, s)
        s.m = 0.9 * (s.m or 0) - (t <= 1 and 0.1 or 0.01) * g
        return w + s.m
      end)
  end)

  it("looks ahead with Nesterov's momentum", function()
    for _, name in ipairs { "SGD", "SGDW" } do
      flow.clear_default_session()
      check(train(function() return flow.optimizer[name](0.1, 0.8, { nesterov = true }) end), function(w, g, _, s)
        s.m = 0.8 * (s.m or 0) - 0.1 * g
        return w + 0.8 * s.m - 0.1 * g
      end)
      local fine, problem = pcall(flow.optimizer[name], 0.1, { momentum = 0, nesterov = true })
      assert.is_false(fine)
      assert.truthy(tostring(problem):find("and momentum is 0", 1, true), tostring(problem))
    end
  end)

  it("takes an empty table behind the rate for options", function()
    check(train(function() return flow.optimizer.SGD(0.1, {}) end), function(w, g, _, s)
      s.m = 0.9 * (s.m or 0) - 0.1 * g
      return w + s.m
    end)
  end)

  it("works in float32 too", function()
    check(train(function() return flow.optimizer.SGD(0.1) end, { dtype = flow.float }), function(w, g, _, s)
      s.m = 0.9 * (s.m or 0) - 0.1 * g
      return w + s.m
    end, nil, 1e-5)
  end)

  it("decays weights beside the gradient as SGDW", function()
    check(train(function() return flow.optimizer.SGDW(0.1, { weight_decay = 0.5, momentum = 0 }) end),
      function(w, g) return w - 0.1 * g - 0.1 * 0.5 * w end)
    flow.clear_default_session()
    check(train(function()
      return flow.optimizer.SGDW(0.1, { weight_decay = 0.5, momentum = 0, weight_decay_excludes = { "w" } })
    end), function(w, g) return w - 0.1 * g end)
  end)
end)

local function adam(corrected, decay)
  return function(w, g, t, s)
    s.m = 0.9 * (s.m or 0) + 0.1 * g
    s.v = 0.999 * (s.v or 0) + 0.001 * g * g
    local rate = 0.01
    if corrected then rate = rate * math.sqrt(1 - 0.999 ^ (t + 1)) / (1 - 0.9 ^ (t + 1)) end
    return w - rate * (s.m / (math.sqrt(s.v) + 1e-8) + (decay or 0) * w)
  end
end

describe("Adam", function()
  it("corrects its bias unless told otherwise", function()
    check(train(function() return flow.optimizer.Adam(0.01) end), adam(true))
    flow.clear_default_session()
    check(train(function() return flow.optimizer.Adam(0.01, { do_bias_correction = false }) end), adam(false))
    flow.clear_default_session()
    check(train(function() return flow.optimizer.LazyAdam(0.01) end), adam(true))
  end)

  it("decays weights beside the gradient as AdamW, where the name says so", function()
    check(train(function()
      return flow.optimizer.AdamW(0.01, { weight_decay = 0.3, do_bias_correction = false })
    end), adam(false, 0.3))
    flow.clear_default_session()
    check(train(function()
      return flow.optimizer.AdamW(0.01, {
        weight_decay = 0.3, do_bias_correction = false, weight_decay_includes = "bias",
      })
    end), adam(false))
  end)

  it("says where no name has what is to decay in it", function()
    local lines = {}
    flow.config.log(function(line) lines[#lines + 1] = line end)
    finally(function() flow.config.log(nil) end)
    local function warned(options)
      lines = {}
      flow.clear_default_session()
      options.weight_decay = 0.3
      train(function() return flow.optimizer.AdamW(0.01, options) end)
      return #lines
    end
    assert.equal(1, warned { weight_decay_excludes = { "biass", "norm" } })
    assert.truthy(lines[1]:find("flow.optimizer.AdamW: nothing of weight_decay_excludes { biass, norm } is part of "
      .. "a name "
      .. "that it trains: w", 1, true), lines[1])
    assert.equal(0, warned { weight_decay_excludes = { "biass", "w" } })
    assert.equal(0, warned {})
  end)
end)

-- Stages of training, each a job that trains w by Adam: the moments are w's, and so is the number of their steps.
describe("Adam in several jobs", function()
  local function stage(name, rate, make)
    local define = flow.global_function {
      name = name, type = "train", inputs = { x = tp.Numpy.Placeholder({ 2 }, flow.double) }, returns = tp.None,
    }
    return define(function(x)
      local w = flow.get_variable("w", { shape = { 2 }, dtype = flow.double, initializer = flow.ones_initializer() })
      ;(make or flow.optimizer.Adam)(rate):minimize(x * w)
    end)
  end

  -- w after each of these jobs, in turn.
  local function train_in(jobs)
    local seen = {}
    for t, job in ipairs(jobs) do
      job(np.array({ 2, 4 * t }, flow.double))
      seen[t] = session.handle():read("w"):totable()
    end
    return seen
  end

  it("goes on in a later one where the first has left off", function()
    for _, make in ipairs { flow.optimizer.Adam, flow.optimizer.LazyAdam } do
      flow.clear_default_session()
      local head, all = stage("head", 0.01, make), stage("all", 0.01, make)
      check(train_in { head, head, head, all, all }, adam(true))
      assert.equal(3, session.handle():read("System-Train-TrainStep-head"):item())
      assert.equal(2, session.handle():read("System-Train-TrainStep-all"):item())  -- its schedule is its own
    end
  end)

  it("counts the steps of all that are defined before it, once each", function()
    local first, second, third = stage("first", 0.01), stage("second", 0.01), stage("third", 0.01)
    check(train_in { first, second, third, third }, adam(true))
    flow.clear_default_session()
    stage("first", 0.01)
    second = stage("second", 0.01)
    first = stage("first", 0.01)  -- defined anew, it knows of the second
    check(train_in { first, second, first, second }, adam(true))
  end)

  it("says where one name counts the steps of two nets", function()
    local lines = {}
    flow.config.log(function(line) lines[#lines + 1] = line end)
    finally(function() flow.config.log(nil) end)
    local function net(name, job_name)
      local job = flow.global_function { name = job_name, type = "train", returns = tp.None } (function()
        local w = flow.get_variable(name, { shape = { 2 }, initializer = flow.ones_initializer() })
        flow.optimizer.Adam(0.1):minimize(w)
      end)
      job()
    end
    net("a")
    net("a")  -- defined anew
    assert.same({}, lines)
    net("b")
    assert.equal(2, #lines)
    assert.truthy(lines[2]:find("'b-m' begins at 0 while the steps of 'job' go on from 2.", 1, true), lines[2])
    assert.truthy(lines[1]:find("optimizer_spec.lua:%d+: a train job before this one is called 'job' too, and trains "
      .. "other variables %(a%)"), lines[1])
    net("c", "of its own")
    flow.clear_default_session()
    net("d")
    assert.equal(2, #lines)
  end)

  it("refuses jobs of two names whose steps one variable would count", function()
    local function define(name, step)
      return flow.global_function { name = name, type = "train", returns = tp.None } (function()
        local w = flow.get_variable(name .. "-w", { shape = { 2 }, initializer = flow.ones_initializer() })
        flow.optimizer.SGD(0.1):minimize(w * step)
      end)
    end
    define("net a", 1)
    define("net a", 2)
    local fine, problem = pcall(define, "net:a", 1)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("optimizer_spec.lua:%d+: the jobs 'net a' and 'net:a' would count their steps "
      .. "in one variable, 'System%-Train%-TrainStep%-net_a'"), tostring(problem))
    define("net.a", 1)
    flow.clear_default_session()
    define("net:a", 1)
  end)

  it("says where its moments are younger than the steps", function()
    local lines = {}
    flow.config.log(function(line) lines[#lines + 1] = line end)
    finally(function() flow.config.log(nil) end)
    local function train_by(optimizer)
      local job = flow.global_function { name = "train", type = "train", returns = tp.None } (function()
        local w = flow.get_variable("w", { shape = { 2 }, initializer = flow.ones_initializer() })
        optimizer:minimize(w)
      end)
      job()
    end
    train_by(flow.optimizer.SGD(0.1))
    train_by(flow.optimizer.RMSProp(0.1))  -- which corrects nothing
    assert.same({}, lines)
    train_by(flow.optimizer.Adam(0.1))
    train_by(flow.optimizer.Adam(0.2))
    assert.equal(1, #lines)
    assert.truthy(lines[1]:find("'w-m' begins at 0 while the steps of 'train' go on from 2.", 1, true), lines[1])
  end)

  it("begins anew with what another has not trained so", function()
    local plain = stage("plain", 0.01, function(rate) return flow.optimizer.SGD(rate, { momentum = 0 }) end)
    local later = stage("later", 0.01)
    plain(np.zeros({ 2 }, flow.double))
    check(train_in { later, later }, adam(true))
  end)
end)

describe("a printed optimizer", function()
  it("says what it is and by which rate it goes", function()
    assert.equal("flow.optimizer.Adam(0.001)", tostring(flow.optimizer.Adam(0.001)))
    local rate = flow.optimizer.CosineScheduler(0.1, 100, { warmup = flow.optimizer.warmup.linear(10, 0.1) })
    assert.equal("flow.optimizer.SGD(schedule_cosine from 0.1, after a warmup)", tostring(flow.optimizer.SGD(rate)))
  end)
end)

describe("a loss without an element", function()
  it("is refused, for its mean is a NaN", function()
    local rows = tp.ListNumpy.Placeholder({ 4, 2 })
    local job = flow.global_function { type = "train", inputs = { x = rows }, returns = tp.ListNumpy } (function(x)
      local y = x * flow.get_variable("w", { shape = { 2 }, initializer = flow.ones_initializer() })
      flow.optimizer.SGD(0.5, { momentum = 0 }):minimize(y)
      return y
    end)
    local fine, problem = pcall(job, { np.ones({ 0, 2 }) })
    assert.is_false(fine)
    assert.equal("invalid_argument", problem.code)
    assert.truthy(tostring(problem):find("its loss 'Multiply_0' is (0, 2), and without an element there is nothing", 1,
      true), tostring(problem))
    job { np.ones({ 1, 2 }) }
    assert.is_true(flow.get_all_variables().w == np.array { 0.75, 0.75 })
  end)
end)

describe("RMSProp", function()
  it("divides by the root of the mean square", function()
    check(train(function() return flow.optimizer.RMSProp(0.01) end), function(w, g, _, s)
      s.s = 0.99 * (s.s or 0) + 0.01 * g * g
      return w - 0.01 * g / math.sqrt(s.s + 1e-8)
    end)
  end)

  it("may be centred", function()
    check(train(function() return flow.optimizer.RMSProp(0.01, { centered = true }) end), function(w, g, _, s)
      s.s = 0.99 * (s.s or 0) + 0.01 * g * g
      s.m = 0.99 * (s.m or 0) + 0.01 * g
      return w - 0.01 * g / math.sqrt(s.s - s.m * s.m + 1e-8)
    end)
  end)
end)

describe("Adagrad", function()
  it("divides by the root of the sum of squares", function()
    for _, case in ipairs { { 0, 1e-10 }, { 0.1, 1e-3 } } do
      local first, epsilon = unpack(case)
      flow.clear_default_session()
      local options = first > 0 and { initial_accumulator_value = first, epsilon = epsilon } or nil
      check(train(function() return flow.optimizer.Adagrad(0.01, options) end), function(w, g, _, s)
        s.s = (s.s or first) + g * g
        return w - 0.01 * g / (math.sqrt(s.s) + epsilon)
      end)
    end
  end)

  it("begins with no sum below 0", function()
    local fine, problem = pcall(flow.optimizer.Adagrad, 0.1, { initial_accumulator_value = -1 })
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("initial_accumulator_value must be at least 0, got -1", 1, true))
  end)
end)

describe("LARS", function()
  it("scales the rate by the norms of weight and gradient", function()
    local seen = train(function() return flow.optimizer.LARS(0.5, { lars_coefficient = 0.1, momentum_beta = 0 }) end,
      { steps = 1 })
    local norm = math.sqrt((1 + 4) / 2)
    local rate = 0.5 * 0.1 * 1 / (norm + 1e-9)
    assert.truthy(math.abs(seen[1][1] - (1 - rate * 1)) < 1e-6)
    assert.truthy(math.abs(seen[1][2] - (1 - rate * 2)) < 1e-6)
  end)

  it("decays weights beside the gradient, and in the rate", function()
    local seen = train(function()
      return flow.optimizer.LARS(0.5, { lars_coefficient = 0.1, momentum_beta = 0.9, weight_decay = 0.3 })
    end, { steps = 3 })
    local w, m = { 1, 1 }, { 0, 0 }
    for t = 1, 3 do
      local g = { 1, 2 * t }
      local function norm(x) return math.sqrt((x[1] ^ 2 + x[2] ^ 2) / 2) end
      local rate = 0.5 * 0.1 * norm(w) / (norm(g) + 0.3 * norm(w) + 1e-9)
      for i = 1, 2 do
        m[i] = 0.9 * m[i] - rate * g[i]
        w[i] = w[i] + m[i] - rate * 0.3 * w[i]
        assert.truthy(math.abs(seen[t][i] - w[i]) < 1e-6, seen[t][i] .. " for " .. w[i])
      end
    end
    flow.clear_default_session()
    seen = train(function() return flow.optimizer.LARS(0.5, { weight_decay = 0.3, weight_decay_excludes = "w" }) end)
    flow.clear_default_session()
    assert.same(train(function() return flow.optimizer.LARS(0.5) end), seen)
  end)

  it("takes the rate as it is for what is all 0, and leaves it so without a gradient", function()
    local function first(gradient)
      flow.clear_default_session()
      return train(function() return flow.optimizer.LARS(0.5, { lars_coefficient = 0.1 }) end,
        { steps = 1, start = 0, gradient = function() return gradient end })[1]
    end
    assert.same({ -0.5, -1 }, first { 2, 4 })
    assert.same({ 0, 0 }, first { 0, 0 })
  end)
end)

describe("the way of a gradient", function()
  it("divides, unscales, regularises, clips, updates, in this order", function()
    local function update(w, g, norm)
      g = g + 0.1 * (w > 0 and 1 or -1) + 0.2 * w
      return w - g * math.min(1, 0.5 / norm)
    end
    local seen = train(function()
      return flow.optimizer.SGD(1, { momentum = 0, loss_scale_factor = 1024,
                                     grad_clipping = flow.optimizer.grad_clipping.by_global_norm(0.5) })
    end, { regularizer = flow.regularizers.l1_l2(0.1, 0.2), steps = 1 })
    local g1, g2 = 1 + 0.1 + 0.2, 2 + 0.1 + 0.2
    local norm = math.sqrt(g1 * g1 + g2 * g2)
    assert.truthy(math.abs(seen[1][1] - update(1, 1, norm)) < 1e-6)
    assert.truthy(math.abs(seen[1][2] - update(1, 2, norm)) < 1e-6)
  end)

  it("leaves a gradient below the norm alone", function()
    check(train(function()
      return flow.optimizer.SGD(0.1, { momentum = 0, grad_clipping = flow.optimizer.grad_clipping.by_global_norm(100) })
    end), function(w, g) return w - 0.1 * g end)
  end)

  it("clips variables of several dtypes by one norm", function()
    for _, dtypes in ipairs { { "float32", "bfloat16" }, { "float16", "float16" }, { "bfloat16", "float64" } } do
      flow.clear_default_session()
      local job = flow.global_function { type = "train", returns = tp.Numpy } (function()
        local parts = {}
        for i, dtype in ipairs(dtypes) do
          local w = flow.get_variable("w" .. i, { shape = { 1 }, dtype = dtype,
                                                  initializer = flow.constant_initializer(1) })
          parts[i] = flow.cast(w, flow.float) * ((i == 1 and 3 or 4) * 14336)  -- their norm is beyond float16
        end
        local loss = parts[1] + parts[2]
        flow.optimizer.SGD(1, { momentum = 0, grad_clipping = flow.optimizer.grad_clipping.by_global_norm(0.625) })
          :minimize(loss)
        return loss
      end)
      job()
      assert.truthy(math.abs(session.handle():read("w1")[0] - 0.625) < 1e-6)
      assert.truthy(math.abs(session.handle():read("w2")[0] - 0.5) < 1e-6)
    end
  end)

  it("passes by variables that are not trainable, and those no loss depends on", function()
    local unused
    local job = flow.global_function {
      type = "train", inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Numpy,
    } (function(x)
      local function one(name, trainable)
        return flow.get_variable(name, {
          shape = { 2 }, initializer = flow.ones_initializer(), trainable = trainable,
        })
      end
      local loss = x * one("trained") * one("fixed", false)
      flow.watch(one("unused"), function(value) unused = value end)
      flow.optimizer.SGD(0.1, { momentum = 0 }):minimize(loss)
      return loss
    end)
    for _ = 1, 2 do job(np.ones({ 2 })) end
    local values = flow.get_all_variables()
    assert.same({ 1, 1 }, values.fixed:totable())
    assert.same({ 1, 1 }, unused:totable())
    assert.near(0.9, values.trained[0], 1e-6)
  end)

  it("adds the means of several losses", function()
    local T = tp.Numpy.Placeholder({ 2 })
    local job = flow.global_function { type = "train", inputs = { x = T }, returns = tp.Numpy } (
      function(x)
        local w = flow.get_variable("w", { shape = { 1 }, initializer = flow.constant_initializer(1) })
        flow.optimizer.SGD(1, { momentum = 0 }):minimize({ w * x, w * x * 3 })
        return w
      end)
    job(np.array({ 1, 3 }, flow.float))
    assert.equal(1 - (2 + 6), session.handle():read("w")[0])
  end)

  it("shows the loss scale in watch_diff", function()
    local seen
    local T = tp.Numpy.Placeholder({ 2 })
    local job = flow.global_function { type = "train", inputs = { x = T }, returns = tp.Numpy } (
      function(x)
        local w = flow.get_variable("w", { shape = { 2 }, initializer = flow.constant_initializer(1) })
        flow.watch_diff(w, function(g) seen = g end)
        flow.optimizer.SGD(0.1, { loss_scale_policy = flow.optimizer.loss_scale.static_loss_scale(8) }):minimize(w * x)
        return w
      end)
    job(np.array({ 1, 3 }, flow.float))
    assert.is_true(seen == np.array({ 8, 24 }, flow.float))
  end)
end)

describe("a learning rate", function()
  it("does not go up", function()
    local fine, problem = pcall(flow.optimizer.SGD, -0.1)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("flow.optimizer.SGD: a learning rate must be 0 or more, got -0.1; "
      .. "minimize(-x) "
      .. "makes x grow", 1, true), tostring(problem))
  end)

  local function define(make)
    return flow.global_function {
      name = "train", type = "train", returns = tp.Numpy,
      inputs = { x = tp.Numpy.Placeholder({ 1 }), rate = tp.Numpy.Placeholder({ 1 }, { dtype = flow.double }) },
    } (function(x, rate)
      local w = flow.get_variable("w", { shape = { 1 }, initializer = flow.zeros_initializer() })
      flow.optimizer.SGD(make(rate), { momentum = 0 }):minimize(x * w)
      return w
    end)
  end

  it("may be an input, or what the job computes", function()
    local job = define(function(rate) return rate * 2 end)
    for _, rate in ipairs { 0.5, 0.25, 0 } do job(np.ones({ 1 }), np.array({ rate }, flow.double)) end
    assert.equal(-1.5, session.handle():read("w")[0])
  end)

  it("may be a variable, which the script sets between steps", function()
    local job = define(function()
      return flow.get_variable("speed", {
        shape = {}, trainable = false, initializer = flow.constant_initializer(0.5) })
    end)
    local one, none = np.ones({ 1 }), np.zeros({ 1 }, flow.double)
    job(one, none)
    flow.load_variables({ speed = np.array(0.125) })
    job(one, none)
    assert.equal(-0.625, session.handle():read("w")[0])
  end)

  it("is one floating-point number", function()
    for _, make in ipairs {
      function(rate) return flow.concat({ rate, rate }) end, function(rate) return flow.cast(rate, flow.int32) end,
    } do
      local fine, problem = pcall(define, make)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find("flow.optimizer.SGD: a learning rate is one floating-point number", 1, true))
    end
  end)
end)

describe("schedules", function()
  -- The rate of each step, seen through SGD on a gradient of one.
  local function rates(scheduler, steps)
    flow.clear_default_session()
    local seen = train(function() return flow.optimizer.SGD(scheduler, { momentum = 0 }) end,
      { steps = steps, gradient = function() return { 2, 2 } end, start = 0 })
    local list, before = {}, 0
    for t, w in ipairs(seen) do
      list[t] = before - w[1]
      before = w[1]
    end
    return list
  end

  local function check_rates(scheduler, formula, steps)
    for t, rate in ipairs(rates(scheduler, steps or 8)) do
      local wanted = formula(t - 1)
      assert.truthy(math.abs(rate - wanted) < 1e-6, ("t = %d: %.8f, wanted %.8f"):format(t - 1, rate, wanted))
    end
  end

  local o = flow.optimizer

  it("count from 0 and follow their formulas", function()
    check_rates(o.PiecewiseConstantScheduler({ 2, 4 }, { 0.3, 0.2, 0.1 }),
      function(t) return t <= 2 and 0.3 or t <= 4 and 0.2 or 0.1 end)
    check_rates(o.PiecewiseScalingScheduler(0.4, { 2, 4 }, { 0.5, 0.1 }),
      function(t) return 0.4 * (t <= 2 and 1 or t <= 4 and 0.5 or 0.1) end)
    check_rates(o.CosineScheduler(0.4, 5, { alpha = 0.1 }), function(t)
      return 0.4 * (0.9 * 0.5 * (1 + math.cos(math.pi * math.min(t, 5) / 5)) + 0.1)
    end)
    check_rates(o.ExponentialScheduler(0.4, 3, 0.5), function(t) return 0.4 * 0.5 ^ (t / 3) end)
    check_rates(o.ExponentialScheduler(0.4, 3, 0.5, true), function(t) return 0.4 * 0.5 ^ math.floor(t / 3) end)
    check_rates(o.InverseTimeScheduler(0.4, 3, 0.5), function(t) return 0.4 / (1 + 0.5 * t / 3) end)
    check_rates(o.NaturalExpScheduler(0.4, 3, { decay_rate = 0.5 }),
      function(t) return 0.4 * math.exp(-0.5 * t / 3) end)
    check_rates(o.PolynomialScheduler(0.4, 5, { end_learning_rate = 0.1, power = 2 }),
      function(t) return 0.3 * (1 - math.min(t, 5) / 5) ^ 2 + 0.1 end)
    check_rates(o.LinearCosineScheduler(0.4, 5, { num_periods = 1, alpha = 0.1, beta = 0.01 }), function(t)
      t = math.min(t, 5)
      return 0.4 * ((0.1 + (5 - t) / 5) * 0.5 * (1 + math.cos(2 * math.pi * t / 5)) + 0.01)
    end)
  end)

  it("scale by one number again at each boundary", function()
    local scheduler = o.PiecewiseScalingScheduler(1, { 2, 4 }, 0.5)
    assert.same({ 1, 0.5, 0.25 }, { scheduler:at(2), scheduler:at(4), scheduler:at(5) })
    assert.error_matches(function() scheduler:at(-1) end, "scheduler:at: steps count from 0, got %-1")
  end)

  it("have boundaries that rise", function()
    assert.error_matches(function() o.PiecewiseConstantScheduler({ 3, 3 }, { 1, 2, 3 }) end, "boundaries must rise")
    assert.error_matches(function() o.PiecewiseScalingScheduler(1, { 4, 3 }, { 1, 2 }) end, "boundaries must rise")
    assert.error_matches(function() o.PiecewiseConstantScheduler({ 37.5 }, { 1, 2 }) end,
      "PiecewiseConstantScheduler: boundaries are steps, whole numbers, got 37.5")
    assert.error_matches(function() o.PiecewiseScalingScheduler(1, { 37.5 }, { 1 }) end, "whole numbers, got 37.5")
  end)

  it("have no rate below 0", function()
    assert.error_matches(function() o.CosineScheduler(0.1, 10, -1) end,
      "CosineScheduler: alpha must be 0 or more, got %-1")
    assert.error_matches(function() o.LinearCosineScheduler(0.1, 10, 0.5, 0, -1) end, "beta must be 0 or more, got %-1")
  end)

  it("give way to a warm-up while it lasts, and are not shifted by it", function()
    check_rates(o.CosineScheduler(0.4, 6, { warmup = o.warmup.linear(3, 0.1) }), function(t)
      if t < 3 then return 0.4 * (0.1 + 0.9 * t / 3) end
      return 0.4 * 0.5 * (1 + math.cos(math.pi * math.min(t, 6) / 6))
    end)
    check_rates(o.PiecewiseConstantScheduler({}, { 0.4 }, { warmup = o.warmup.constant(2, 0.5) }),
      function(t) return t < 2 and 0.2 or 0.4 end)
  end)

  it("have no warm-up in one of 0 steps", function()
    check_rates(o.CosineScheduler(0.4, 6, { warmup = o.warmup.linear(0, 0.1) }), function(t)
      return 0.4 * 0.5 * (1 + math.cos(math.pi * math.min(t, 6) / 6))
    end)
    assert.has_error(function() o.warmup.linear(-1, 0.1) end)
  end)

  it("keep their step in a variable of the job", function()
    train(function() return o.SGD(o.CosineScheduler(0.1, 10)) end, { steps = 3 })
    local step = session.handle():read("System-Train-TrainStep-train")
    assert.equal("int64", step.dtype)
    assert.equal(3, step:item())
  end)
end)

describe("an optimizer", function()
  it("keeps to the names that it was given, whatever becomes of the list", function()
    flow.clear_default_session()
    local trained, decayed = { "first" }, { "first" }
    local sgd = flow.optimizer.SGD(0.5, { variables = trained, momentum = 0 })
    local kept = flow.optimizer.AdamW(0.5, { weight_decay = 0.5, weight_decay_includes = decayed })
    trained[1], decayed[1] = "second", "second"
    local function step(name, optimizer)
      return flow.global_function { name = name, type = "train", returns = tp.None } (function()
        local function one(which) return flow.get_variable(which, {}, { initializer = flow.ones_initializer() }) end
        optimizer:minimize(one("first") * one("second"))
      end)
    end
    step("sgd", sgd)()
    local values = flow.get_all_variables({ slots = false })
    assert.same({ 0.5, 1 }, { values.first:item(), values.second:item() })
    flow.load_variables { first = np.array(1):astype("float32") }
    step("adam", kept)()
    values = flow.get_all_variables({ slots = false })
    assert.near(0.25, values.first:item(), 1e-3)
    assert.near(0.5, values.second:item(), 1e-3)
  end)
end)
