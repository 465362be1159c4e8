-- config.train of the oldest dialect: each of its tables trains as the optimizer does that it names, and a name that
-- there is not is an error.
local flow = require "moonflow"
local np, tp = flow.np, flow.typing
local o = flow.optimizer

local function config(conf, rate, scale)
  local c = flow.function_config()
  c.train:primary_lr(rate or 0.01)
  if conf then c.train:model_update_conf(conf) end
  if scale then c.train:loss_scale_factor(scale) end
  return c
end

-- What a weight and a bias are after some steps of a job with this config, or with this optimizer.
local function trained(function_config, optimizer)
  flow.clear_default_session()
  local job = flow.global_function {
    name = "train", type = "train", inputs = { x = tp.Numpy.Placeholder { 2, 3 } }, returns = tp.None,
    function_config = function_config,
  } (function(x)
    local y = flow.layers.dense(x, 2, { name = "fc", kernel_initializer = flow.constant_initializer(0.2),
                                        bias_initializer = flow.constant_initializer(0.3) })
    local loss = flow.math.square(y)
    if optimizer then optimizer:minimize(loss) else flow.losses.add_loss(loss) end
  end)
  for t = 1, 8 do job(np.array { { 1, 0.5 * t, -1 }, { 0.25, 2, 0.1 * t } }) end
  local values = flow.get_all_variables()
  return { weight = values["fc-weight"], bias = values["fc-bias"] }
end

local function refuses(message, ...)
  local fine, problem = pcall(trained, config(...))
  assert.is_false(fine, message)
  assert.truthy(tostring(problem):find(message, 1, true), tostring(problem))
end

describe("model_update_conf", function()
  local function decay(excludes) return { weight_decay_rate = 0.1, excludes = excludes } end

  for title, case in pairs {
    ["no table"] = { nil, o.SGD(0.01, { momentum = 0 }) },
    naive_conf = { { naive_conf = {} }, o.SGD(0.01, { momentum = 0 }) },
    momentum_conf = { { momentum_conf = { beta = 0.5 } }, o.SGD(0.01, { momentum = 0.5 }) },
    adam_conf = { { adam_conf = { beta1 = 0.8, do_bias_correction = false } },
                  o.Adam(0.01, { beta1 = 0.8, do_bias_correction = false }) },
    lazy_adam_conf = { { lazy_adam_conf = { beta2 = 0.9 } }, o.LazyAdam(0.01, { beta2 = 0.9 }) },
    rmsprop_conf = { { rmsprop_conf = { centered = true } }, o.RMSProp(0.01, { centered = true }) },
    lars_conf = { { lars_conf = { lars_coefficient = 0.1 } }, o.LARS(0.01, { lars_coefficient = 0.1 }) },
    lamb_conf = { { lamb_conf = { beta1 = 0.8 } }, o.LAMB(0.01, { beta1 = 0.8 }) },
    clip_conf = { { naive_conf = {}, clip_conf = { clip_by_global_norm = { clip_norm = 0.5 } } },
                  o.SGD(0.01, { momentum = 0, grad_clipping = o.grad_clipping.by_global_norm(0.5) }) },
    ["decay of momentum"] = { { momentum_conf = {}, weight_decay_conf = decay() },
                              o.SGDW(0.01, { weight_decay = 0.1 }) },
    ["decay of descent"] = { { naive_conf = {}, weight_decay_conf = decay() },
                             o.SGDW(0.01, { momentum = 0, weight_decay = 0.1 }) },
    ["decay of lars"] = { { lars_conf = {}, weight_decay_conf = decay() }, o.LARS(0.01, { weight_decay = 0.1 }) },
    ["decay of adam"] = { { adam_conf = {}, weight_decay_conf = decay { pattern = { "bias" } } },
                          o.AdamW(0.01, { weight_decay = 0.1, weight_decay_excludes = { "bias" } }) },
    exponential_conf = {
      { naive_conf = {},
        learning_rate_decay = { exponential_conf = { decay_batches = 2, decay_rate = 0.5, staircase = true } },
        warmup_conf = { constant_conf = { warmup_batches = 3, multiplier = 0.1 } } },
      o.SGD(o.ExponentialScheduler(0.01, 2, 0.5, true, { warmup = o.warmup.constant(3, 0.1) }), { momentum = 0 }),
    },
    polynomial_conf = {
      { naive_conf = {}, learning_rate_decay = { polynomial_conf = { decay_batches = 5, power = 2 } },
        warmup_conf = { linear_conf = { warmup_batches = 2, start_multiplier = 0 } } },
      o.SGD(o.PolynomialScheduler(0.01, 5, { power = 2, warmup = o.warmup.linear(2, 0) }), { momentum = 0 }),
    },
    cosine_conf = { { naive_conf = {}, learning_rate_decay = { cosine_conf = { decay_batches = 5, alpha = 0.1 } } },
                    o.SGD(o.CosineScheduler(0.01, 5, 0.1), { momentum = 0 }) },
    piecewise_constant_conf = {
      { naive_conf = {},
        learning_rate_decay = { piecewise_constant_conf = { boundaries = { 2, 4 }, values = { 0.1, 0.2, 0.05 } } } },
      o.SGD(o.PiecewiseConstantScheduler({ 2, 4 }, { 0.1, 0.2, 0.05 }), { momentum = 0 }),
    },
    -- One scale more than boundaries, as the original's message has.
    piecewise_scaling_conf = {
      { naive_conf = {},
        learning_rate_decay = { piecewise_scaling_conf = { boundaries = { 2, 4 }, scales = { 1, 0.5, 0.25 } } } },
      o.SGD(o.PiecewiseScalingScheduler(0.01, { 2, 4 }, { 0.5, 0.25 }), { momentum = 0 }),
    },
  } do
    it("trains as it says: " .. title, function()
      local got, wanted = trained(config(case[1])), trained(nil, case[2])
      assert.same(wanted.weight:totable(), got.weight:totable())
      assert.same(wanted.bias:totable(), got.bias:totable())
    end)
  end

  it("divides a loss scale out again", function()
    assert.same(trained(config(nil)).weight:totable(), trained(config(nil, nil, 64)).weight:totable())
  end)

  it("loses nothing that it was told", function()
    refuses("model_update_conf has no entry 'learning_rate_decy'; did you mean 'learning_rate_decay'?",
      { naive_conf = {}, learning_rate_decy = {} })
    refuses("model_update_conf names no optimizer", { warmup_conf = {} })
    refuses("model_update_conf has adam_conf and naive_conf, and one of them is meant",
      { naive_conf = {}, adam_conf = {} })
    refuses("model_update_conf.naive_conf has no entry 'momentum'; it has none", { naive_conf = { momentum = 0.9 } })
    refuses("model_update_conf.momentum_conf has no entry 'bet'; did you mean 'beta'?",
      { momentum_conf = { bet = 0.9 } })
    refuses("model_update_conf.clip_conf has no entry 'clip_by_globalnorm'; did you mean 'clip_by_global_norm'?",
      { naive_conf = {}, clip_conf = { clip_by_globalnorm = { clip_norm = 1 } } })
    refuses("model_update_conf.weight_decay_conf has no entry 'decay'; it has excludes, includes, weight_decay_rate",
      { naive_conf = {}, weight_decay_conf = { decay = 0.1 } })
    refuses("model_update_conf.weight_decay_conf.excludes has no entry 'patterns'; did you mean 'pattern'?",
      { naive_conf = {}, weight_decay_conf = { weight_decay_rate = 0.1, excludes = { patterns = { "bias" } } } })
    refuses("model_update_conf.weight_decay_conf.includes wants a table, got",
      { naive_conf = {}, weight_decay_conf = { weight_decay_rate = 0.1, includes = "bias" } })
    refuses("weight_decay_conf goes with adam_conf, lamb_conf, lars_conf, momentum_conf and naive_conf",
      { rmsprop_conf = {}, weight_decay_conf = { weight_decay_rate = 0.1 } })
    local both = { cosine_conf = { decay_batches = 2 }, polynomial_conf = { decay_batches = 2 } }
    refuses("model_update_conf.learning_rate_decay has cosine_conf and polynomial_conf, and one of them is meant",
      { naive_conf = {}, learning_rate_decay = both })
    refuses("model_update_conf.learning_rate_decay wants a table, got 'cosine_conf'",
      { naive_conf = {}, learning_rate_decay = "cosine_conf" })
    refuses("model_update_conf.learning_rate_decay.cosine_conf has no entry 'decay_steps'; it has alpha",
      { naive_conf = {}, learning_rate_decay = { cosine_conf = { decay_steps = 2 } } })
    refuses("3 boundaries need 4 values, got 3", { naive_conf = {}, learning_rate_decay = {
      piecewise_scaling_conf = { boundaries = { 1, 2, 3 }, scales = { 1, 0.5, 0.1 } } } })
  end)
end)

describe("config.train", function()
  it("has a rate for biases, decayed and warmed up as that of the weights", function()
    local conf = { momentum_conf = {}, learning_rate_decay = { cosine_conf = { decay_batches = 12 } },
                   warmup_conf = { linear_conf = { warmup_batches = 3, start_multiplier = 0.1 } } }
    local c = config(conf, 0.01)
    c.train:secondary_lr(0.002)
    local function rate(base) return o.CosineScheduler(base, 12, { warmup = o.warmup.linear(3, 0.1) }) end
    local got = trained(c)
    local wanted = trained(nil, o.CombinedOptimizer { o.SGD(rate(0.01)),
                                                      o.SGD(rate(0.002), { variables = "fc-bias" }) })
    assert.same(wanted.weight:totable(), got.weight:totable())
    assert.same(wanted.bias:totable(), got.bias:totable())
  end)

  it("counts a variable among the biases whose model_name says so, and clips all together", function()
    flow.clear_default_session()
    local c = config({ naive_conf = {}, clip_conf = { clip_by_global_norm = { clip_norm = 0.5 } } }, 1)
    c.train:secondary_lr(2)
    local job = flow.global_function { name = "train", type = "train", returns = tp.None, function_config = c } (
      function()
        local function variable(name)
          return flow.get_variable(name, { shape = { 1 }, model_name = name, initializer = flow.zeros_initializer() })
        end
        flow.losses.add_loss(3 * variable("weight") + 4 * variable("bias"))
      end)
    job()
    local values = flow.get_all_variables()
    assert.truthy(math.abs(values.weight:item() + 0.3) < 1e-6)
    assert.truthy(math.abs(values.bias:item() + 0.8) < 1e-6)
  end)

  it("needs a learning rate", function()
    local c = flow.function_config()
    c.train:secondary_lr(0.1)
    local fine, problem = pcall(trained, c)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("the job 'train' has a secondary_lr but no learning rate", 1, true),
      tostring(problem))
  end)

  it("is checked in a plain table too", function()
    for option, case in pairs {
      primary_lr = { "0.1", "function_config.train.primary_lr wants a number, got '0.1'" },
      model_update_conf = { "naive_conf", "function_config.train.model_update_conf wants a table, got 'naive_conf'" },
    } do
      local fine, problem = pcall(trained, { train = { [option] = case[1] } })
      assert.is_false(fine)
      assert.truthy(tostring(problem):find(case[2], 1, true), tostring(problem))
    end
    assert.same(trained(config { naive_conf = {} }).weight:totable(),
      trained({ train = { primary_lr = 0.01, model_update_conf = { naive_conf = {} } } }).weight:totable())
  end)

  it("refuses what it cannot do", function()
    local c = config { naive_conf = {} }
    c.train:num_gradient_accumulation_steps(4)
    assert.error_matches(function() trained(c) end, "num_gradient_accumulation_steps: gradients are not added up")
    assert.error_matches(function() flow.function_config().train:primary_lr(0.1, 0.2) end,
      "config.train:primary_lr takes one argument, got 2")
    assert.error_matches(function() flow.function_config():winograd(true, false) end,
      "config:winograd takes one argument, got 2")
  end)

  it("has no loss scale for an optimizer that is made beside it", function()
    local fine, problem = pcall(trained, { train = { loss_scale_factor = 8 } }, o.SGD(0.1))
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("train.loss_scale_factor is that of the optimizer which train.primary_lr "
      .. "makes, and there is none; beside an optimizer of flow.optimizer it is an option of that, "
      .. "flow.optimizer.SGD(0.1, { loss_scale_factor = 8 })", 1, true), tostring(problem))
  end)
end)
