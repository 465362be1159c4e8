-- LAMB, against its formula (You and others, arXiv:1904.00962) written out here.
local flow = require "moonflow"
local session = require "moonflow.session"
local np, tp = flow.np, flow.typing

before_each(function()
  flow.clear_default_session()
end)

local kSteps = 5

-- The gradients of w in step t, from 1 on: the loss is x * w, of two elements.
local function x_of(t)
  return { 2 * t, -3 + t }
end

-- w after each step, and m after the last one. `config` is of the oldest dialect, in place of options.
local function train(options, start, dtype, config)
  dtype = dtype or flow.double
  local job = flow.global_function {
    name = "train", type = "train", inputs = { x = tp.Numpy.Placeholder({ 2 }, { dtype = dtype }) }, returns = tp.Numpy,
    function_config = config,
  } (function(x)
    local w = flow.get_variable("w", { 2 }, dtype, flow.constant_initializer(np.array(start, dtype)))
    local loss = x * w
    if config then flow.losses.add_loss(loss) else flow.optimizer.LAMB(0.1, options):minimize(loss) end
    return loss
  end)
  local seen = {}
  for t = 1, kSteps do
    job(np.array(x_of(t), dtype))
    seen[t] = session.handle():read("w"):totable()
  end
  return seen, session.handle():read("w-m"):totable()
end

local function length(a)
  return math.sqrt(a[1] * a[1] + a[2] * a[2])
end

local function formula(w, beta1, beta2, epsilon, decay)
  local m, v, seen = { 0, 0 }, { 0, 0 }, {}
  for t = 1, kSteps do
    local x, r = x_of(t), {}
    for i = 1, 2 do
      local g = x[i] / 2
      m[i] = beta1 * m[i] + (1 - beta1) * g
      v[i] = beta2 * v[i] + (1 - beta2) * g * g
      r[i] = m[i] / (1 - beta1 ^ t) / (math.sqrt(v[i] / (1 - beta2 ^ t)) + epsilon) + decay * w[i]
    end
    local ratio = length(w) > 0 and length(r) > 0 and length(w) / length(r) or 1
    w = { w[1] - 0.1 * ratio * r[1], w[2] - 0.1 * ratio * r[2] }
    seen[t] = w
  end
  return seen, m
end

local function check(seen, wanted, tolerance)
  for t = 1, #wanted do
    for i = 1, 2 do
      local got, value = seen[t][i], wanted[t][i]
      assert.truthy(math.abs(got - value) <= tolerance, ("step %d: %.10f, wanted %.10f"):format(t, got, value))
    end
  end
end

describe("LAMB", function()
  -- The learning rate is float32, 0.1 rounded by 1.5e-8 of it.
  it("steps along Adam's direction, by a share of the variable's length", function()
    local seen, m = train({}, { 3, -4 })
    local wanted, wanted_m = formula({ 3, -4 }, 0.9, 0.999, 1e-6, 0)
    check(seen, wanted, 1e-6)
    check({ m }, { wanted_m }, 1e-12)
  end)

  it("takes the rate itself where the variable is 0", function()
    local seen = train({}, { 0, 0 })
    check(seen, formula({ 0, 0 }, 0.9, 0.999, 1e-6, 0), 1e-6)
    assert.truthy(math.abs(seen[1][1] + 0.1) < 1e-6)  -- the first direction is the sign of the gradient
  end)

  it("has what decays in the direction, where the name says so", function()
    check(train({ beta1 = 0.8, beta2 = 0.99, epsilon = 0.01, weight_decay = 0.5 }, { 1, 2 }),
      formula({ 1, 2 }, 0.8, 0.99, 0.01, 0.5), 1e-6)
    flow.clear_default_session()
    check(train({ weight_decay = 0.5, weight_decay_excludes = "w" }, { 1, 2 }),
      formula({ 1, 2 }, 0.9, 0.999, 1e-6, 0), 1e-6)
  end)

  it("works in float32, where the first corrections are small differences", function()
    check(train({ weight_decay = 0.1 }, { 3, -4 }, flow.float), formula({ 3, -4 }, 0.9, 0.999, 1e-6, 0.1), 1e-5)
  end)

  it("is lamb_conf in the oldest dialect", function()
    local config = flow.function_config()
    config.train:primary_lr(0.1)
    config.train:model_update_conf { lamb_conf = { beta1 = 0.8 }, weight_decay_conf = { weight_decay_rate = 0.5 } }
    check(train(nil, { 1, 2 }, flow.double, config), formula({ 1, 2 }, 0.8, 0.999, 1e-6, 0.5), 1e-6)
  end)

  it("refuses shares that are none, and OneFlow's order where it is another one", function()
    local fine, problem = pcall(flow.optimizer.LAMB, 0.1, { beta1 = 1 })
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("flow.optimizer.LAMB: beta1 must lie in [0, 1), got 1", 1, true))
    fine, problem = pcall(flow.optimizer.LAMB, 0.1, 0.9, 0.999, 1e-6, 1024)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("arguments after the first 4 go by name", 1, true))
  end)
end)
