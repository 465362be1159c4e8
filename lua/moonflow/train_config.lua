--- config.train of the oldest dialect, as the optimizer that its tables ask for.
-- They are the original's messages: where one of those is one form of several, a table has one key.

local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local optimizer = require "moonflow.optimizer"
local schedule = require "moonflow.schedule"

local train_config = {}

local function refuse(path, text, ...)
  errors.raise("invalid_argument", "model_update_conf" .. path .. " " .. text:format(...))
end

local function check_table(path, given)
  if type(given) ~= "table" then refuse(path, "wants a table, got %s", arguments.describe(given)) end
end

local function check_key(path, key, choices)
  if choices[key] then return end
  local names = arguments.sorted_keys(choices)
  local advice = arguments.suggestion(tostring(key), names)
  if advice == "" then advice = "; it has " .. (#names > 0 and table.concat(names, ", ") or "none") end
  refuse(path, "has no entry '%s'%s", tostring(key), advice)
end

-- What a table says, under our names: `names` has ours for each of the original's.
local function fields(path, given, names)
  check_table(path, given)
  local options = {}
  for key, value in pairs(given) do
    check_key(path, key, names)
    options[names[key]] = value
  end
  return options
end

-- The choice that a table makes, and what stands under it; nil where it makes none. `known` has its keys where it has
-- others than the choices.
local function choice(path, given, choices, known)
  check_table(path, given)
  local found = {}
  for key in pairs(given) do
    check_key(path, key, known or choices)
    if choices[key] then found[#found + 1] = key end
  end
  table.sort(found)
  if #found > 1 then refuse(path, "has %s, and one of them is meant", table.concat(found, " and ")) end
  return found[1], given[found[1]]
end

-- ---- learning rates -----------------------------------------------------------------------------------------------

local decaying = { decay_batches = "steps", decay_rate = "decay_rate", staircase = "staircase" }
local decays = {
  exponential_conf = { "ExponentialScheduler", decaying },
  inverse_time_conf = { "InverseTimeScheduler", decaying },
  natural_exp_conf = { "NaturalExpScheduler", decaying },
  cosine_conf = { "CosineScheduler", { decay_batches = "steps", alpha = "alpha" } },
  linear_cosine_conf = { "LinearCosineScheduler",
    { decay_batches = "steps", num_periods = "num_periods", alpha = "alpha", beta = "beta" } },
  polynomial_conf = { "PolynomialScheduler",
    { decay_batches = "steps", end_learning_rate = "end_learning_rate", power = "power", cycle = "cycle" } },
  piecewise_constant_conf = { "PiecewiseConstantScheduler", { boundaries = "boundaries", values = "values" } },
  piecewise_scaling_conf = { "PiecewiseConstantScheduler", { boundaries = "boundaries", scales = "values" } },
}

local warmups = {
  constant_conf = { "constant", { warmup_batches = "steps", multiplier = "multiplier" } },
  linear_conf = { "linear", { warmup_batches = "steps", start_multiplier = "start_multiplier" } },
}

-- The learning rate of step 0, decayed and warmed up as the tables say.
local function scheduler(base_lr, conf)
  local warmup
  if conf.warmup_conf then
    local name, given = choice(".warmup_conf", conf.warmup_conf, warmups)
    if name then
      local make, names = unpack(warmups[name])
      warmup = schedule.warmup[make](fields(".warmup_conf." .. name, given, names))
    end
  end
  local name, given
  if conf.learning_rate_decay then name, given = choice(".learning_rate_decay", conf.learning_rate_decay, decays) end
  if not name then return schedule.PiecewiseConstantScheduler({}, { base_lr }, { warmup = warmup }) end
  local make, names = unpack(decays[name])
  local options = fields(".learning_rate_decay." .. name, given, names)
  if name == "piecewise_scaling_conf" then
    for i, scale in ipairs(arguments.flat_list(options.values or {})) do
      if i == 1 then options.values = {} end
      options.values[i] = base_lr * scale
    end
  elseif name ~= "piecewise_constant_conf" then
    options.base_lr = base_lr
  end
  options.warmup = warmup
  return schedule[make](options)
end

-- ---- updates ------------------------------------------------------------------------------------------------------

-- Of each form the class, the class that has its decoupled weight decay too, and its fields.
local adam = { beta1 = "beta1", beta2 = "beta2", epsilon = "epsilon", do_bias_correction = "do_bias_correction" }
local moments = { beta1 = "beta1", beta2 = "beta2", epsilon = "epsilon" }
local updates = {
  naive_conf = { "SGD", "SGDW", {} },
  momentum_conf = { "SGD", "SGDW", { beta = "momentum" } },
  adam_conf = { "Adam", "AdamW", adam },
  lazy_adam_conf = { "LazyAdam", nil, moments },
  rmsprop_conf = { "RMSProp", nil, { decay_rate = "decay_rate", epsilon = "epsilon", centered = "centered" } },
  lars_conf = { "LARS", "LARS",
    { momentum_beta = "momentum_beta", epsilon = "epsilon", lars_coefficient = "lars_coefficient" } },
  lamb_conf = { "LAMB", "LAMB", moments },
}

local entries = { learning_rate_decay = true, warmup_conf = true, clip_conf = true, weight_decay_conf = true }
for name in pairs(updates) do entries[name] = true end

local function clipping(conf)
  local path = ".clip_conf"
  local form, given = choice(path, conf, { clip_by_global_norm = true })
  if not form then return nil end
  return optimizer.grad_clipping.by_global_norm(
    fields(path .. "." .. form, given, { clip_norm = "clip_norm" }))
end

local function put_decay(conf, options)
  local path = ".weight_decay_conf"
  local own = fields(path, conf, { weight_decay_rate = "rate", includes = "includes", excludes = "excludes" })
  options.weight_decay = own.rate
  for _, which in ipairs { "includes", "excludes" } do
    local given = own[which]
    if given then
      options["weight_decay_" .. which] = fields(path .. "." .. which, given, { pattern = "pattern" }).pattern
    end
  end
end

--- The optimizer that a job of the oldest dialect is trained by.
--- @param t Trace
--- @param config table  primary_lr; secondary_lr, that of the biases, model_update_conf and loss_scale_factor if given
function train_config.optimizer(t, config)
  local conf = config.model_update_conf or { naive_conf = {} }
  local form, given = choice("", conf, updates, entries)
  if not form then
    refuse("", "names no optimizer; naive_conf, momentum_conf, adam_conf, lazy_adam_conf, rmsprop_conf, lars_conf or "
      .. "lamb_conf is wanted")
  end
  if not config.primary_lr then
    errors.raise("invalid_argument", "the job '" .. t.job .. "' has a " .. (config.model_update_conf
      and "model_update_conf" or "secondary_lr") .. " but no learning rate; call config.train:primary_lr(0.1)")
  end
  local plain, with_decay, names = unpack(updates[form], 1, 3)
  local options = fields("." .. form, given, names)
  if form == "naive_conf" then options.momentum = 0 end
  options.lr_scheduler = scheduler(config.primary_lr, conf)
  options.loss_scale_factor = config.loss_scale_factor
  options.grad_clipping = conf.clip_conf and clipping(conf.clip_conf)
  local class = plain
  if conf.weight_decay_conf then
    if not with_decay then
      errors.raise("unsupported", "model_update_conf.weight_decay_conf goes with adam_conf, lamb_conf, lars_conf, "
        .. "momentum_conf and naive_conf; regularizer = flow.regularizers.l2(rate) of a variable or layer decays it "
        .. "under any")
    end
    class = with_decay
    put_decay(conf.weight_decay_conf, options)
  end
  local made = optimizer[class](options)
  made.bias_scheduler = config.secondary_lr and scheduler(config.secondary_lr, conf)
  return made
end

return train_config
