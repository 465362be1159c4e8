--- Optimizers, as a script makes them and minimises a loss with them. What follows from that is descent's.
-- `variables` of an optimizer leaves the others as they are: a list of names, of variables or of the layers and
-- namespaces they are in. So two jobs that share variables may train a part of them each, and so may the parts of a
-- CombinedOptimizer in one job.

local answer = require "moonflow.answer"
local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local choices = require "moonflow.choices"
local errors = require "moonflow.errors"
local loss_scale = require "moonflow.loss_scale"
local schedule = require "moonflow.schedule"
local trace = require "moonflow.trace"
local update = require "moonflow.update"

local optimizer = { grad_clipping = {}, loss_scale = loss_scale.policies, warmup = schedule.warmup }
for name, value in pairs(schedule) do
  if type(value) == "function" and name:match("^%u") then optimizer[name] = value end
end

-- ---- clipping -----------------------------------------------------------------------------------------------------

local Clipping = { kind = "clipping" }
local function norm_signature(name, whose)
  return arguments.signature("flow.optimizer.grad_clipping." .. name,
    { { "clip_norm", "number", text = "what the norm of " .. whose .. " is kept to, above 0" } })
end

local function by_norm(signature, each, ...)
  local norm = signature:parse(...).clip_norm
  if norm <= 0 or norm ~= norm then signature:fail(": clip_norm must be above 0, got " .. norm) end
  return setmetatable({ clip_norm = norm, each = each }, Clipping)
end

local global_signature = norm_signature("by_global_norm", "all gradients together")

--- Multiplies every gradient by min(1, clip_norm / norm), with the norm over all of them together: the root of the sum
--- of squares. What regularizers add to the gradients is in them before, unlike PyTorch's weight decay, which comes
--- after clip_grad_norm_; what `weight_decay` takes off is not.
function optimizer.grad_clipping.by_global_norm(...) return by_norm(global_signature, false, ...) end

local own_signature = norm_signature("by_norm", "each gradient")
--- Multiplies every gradient by min(1, clip_norm / norm) with its own norm, as Keras' clipnorm does; else as
--- by_global_norm.
function optimizer.grad_clipping.by_norm(...) return by_norm(own_signature, true, ...) end

local value_signature = arguments.signature("flow.optimizer.grad_clipping.by_value",
  { { "clip_value", "finite", text = "the largest size of an element, above 0" } })

--- Cuts every element of every gradient, with what regularizers add to it, to lie between -clip_value and clip_value.
function optimizer.grad_clipping.by_value(...)
  local given = value_signature:parse(...)
  if given.clip_value <= 0 then value_signature:fail(": clip_value must be above 0, got " .. given.clip_value) end
  return setmetatable({ clip_value = given.clip_value }, Clipping)
end

-- ---- the classes --------------------------------------------------------------------------------------------------

local Optimizer = { kind = "optimizer" }
Optimizer.__index = Optimizer
arguments.publish("Optimizer", "optimizer", Optimizer, "minimize")

local steps = "optimizer:minimize(loss) in the body of a train job says what is trained, and each call of the job is a "
  .. "step"
local rate = "it keeps the rate that it was made with, or a schedule that goes by the step; a rate that the script "
  .. "sets is an input of the job, flow.optimizer.SGD(rate), and a job that is defined again with another one keeps "
  .. "its weights"
local kept = "it keeps the options that it was made with to itself; a job that is defined again with others keeps its "
  .. "weights"
answer(Optimizer, "an optimizer", {
  momentum = kept, beta1 = kept, beta2 = kept, epsilon = kept, weight_decay = kept, grad_clipping = kept,
  variables = kept, loss_scale_factor = kept,
  step = steps, zero_grad = steps, backward = steps, apply_gradients = steps,
  lr = rate, learning_rate = rate, param_groups = rate,
  state_dict = "its moments are variables, which a checkpoint has beside the weights",
})

--- "flow.optimizer.Adam(0.001)".
function Optimizer:__tostring()
  local inner = {}
  for i, part in ipairs(self.parts) do inner[i] = tostring(part == self and part.scheduler or part) end
  return self.where .. "(" .. table.concat(inner, ", ") .. ")"
end

local scale_parameters = {
  { "loss_scale_factor", "finite?", engine_default = 1,
    text = "what multiplies the loss on the way to the gradients and is divided out of them again" },
  { "loss_scale_policy", "loss_scale?",
    text = "the same as a policy, such as flow.optimizer.loss_scale.dynamic_loss_scale(), for half precision; beside a "
      .. "loss_scale_factor, as OneFlow has it, it is what counts" },
}
local shared_parameters = {
  scale_parameters[1],
  { "grad_clipping", "clipping?", text = "what becomes of long gradients before the update: "
    .. "flow.optimizer.grad_clipping.by_global_norm(1), by_norm(1) or by_value(1); nothing when left out" },
  scale_parameters[2],
  { "variables", "any?", text = "what it trains: names of variables, or of the layers and namespaces they are in, "
    .. "which stand before a '-', '.' or '/'; all that are trainable when left out" },
  { "regularizer", "regularizer?", text = "of variables that have none of their own, such as "
    .. "flow.regularizers.l2(1e-4): what other systems' SGD calls weight decay" },
}

local function loss_scale_of(options, signature)
  local factor = options.loss_scale_factor
  if factor and factor <= 0 then signature:fail(": loss_scale_factor must be above 0, got " .. factor) end
  return options.loss_scale_policy or { factor = options.loss_scale_factor or 1 }
end

-- What other libraries call by other names, or have where we have a class of its own.
local function instead(name)
  local decays = { Adam = "AdamW", LazyAdam = "AdamW" }
  local clip = "; grad_clipping = flow.optimizer.grad_clipping.by_global_norm(x) does it"
  local by_value = "; grad_clipping = flow.optimizer.grad_clipping.by_value(x) does it"
  local first = "; the learning rate is the first argument, or 'lr_scheduler'"
  local schedule_first = "; a schedule such as flow.optimizer.InverseTimeScheduler(rate, steps, decay) is the first "
    .. "argument"
  local decay = decays[name] and ("; flow.optimizer.%s has it"):format(decays[name])
    or "; regularizer = flow.regularizers.l2(rate) adds it to the gradients"
      .. (name == "SGD" and ", as PyTorch's SGD and Torch7's do, and flow.optimizer.SGDW keeps it out of the momentum"
        .. "; where gradients are clipped the decay counts in their norm, and PyTorch's comes after clip_grad_norm_"
        or "")
  return {
    max_grad_norm = clip, max_norm = clip, clip_norm = clip, global_clipnorm = clip, grad_clip = clip,
    clipnorm = "; grad_clipping = flow.optimizer.grad_clipping.by_norm(x) does it",
    clip_value = by_value, clipvalue = by_value, decay = schedule_first,
    rho = name == "RMSProp" and "; it is 'decay_rate'" or nil,
    use_ema = "; a job of its own averages the variables by flow.assign, which docs/networks.md has under \"A net that "
      .. "follows another one\"",
    weight_decay = decay, weightDecay = decay, lr = first, learning_rate = first, learningRate = first,
    learningRateDecay = "; the rate flow.optimizer.InverseTimeScheduler(rate, 1, decay) falls so",
    dampening = "; the rate times 1 - dampening is the rate with it",
    betas = (name:find("Adam") or name == "LAMB") and "; they are 'beta1' and 'beta2'" or nil,
    alpha = name == "RMSProp" and "; it is 'decay_rate'" or nil,
    amsgrad = "; it is not there, and PyTorch leaves it out too where nothing is said; a train job with flow.gradients "
      .. "and flow.assign has a rule of its own",
    maximize = "; minimize(-x) makes x grow",
    params = "; 'variables' takes a list of names, and without it all are trained",
  }
end

local function define(name, parameters, rule, settle)
  local where = "flow.optimizer." .. name
  local list = { { "lr_scheduler", "rate", text = "the learning rate: a number, a schedule such as "
    .. "flow.optimizer.CosineScheduler(0.1, 1000), or a value of the job" } }
  for _, parameter in ipairs(parameters) do list[#list + 1] = parameter end
  for _, parameter in ipairs(shared_parameters) do list[#list + 1] = parameter end
  local signature = arguments.signature(where, list)
  signature:instead(instead(name))
  optimizer[name] = function(...)
    local options = signature:parse(...)
    for _, word in ipairs({ "epsilon", "weight_decay" }) do
      local value = options[word]
      if value and value < 0 then signature:fail((": %s must be at least 0, got %g"):format(word, value)) end
    end
    if settle then settle(options, signature) end
    local self = {
      where = where, options = options, rule = rule, scheduler = schedule.from(options.lr_scheduler, where),
      clipping = options.grad_clipping, chosen = choices.read(options.variables, signature, "variables"),
      loss_scale = loss_scale_of(options, signature), bias_scheduler = false,
    }
    self.parts = { self }
    return setmetatable(self, Optimizer)
  end
end

local function one_choice(options, signature)
  for _, option in ipairs { "weight_decay_includes", "weight_decay_excludes" } do
    local given, parts = options[option], {}
    for i, part in ipairs(type(given) == "table" and given or { given }) do
      if type(part) ~= "string" then
        signature:fail((": %s wants parts of names, got %s"):format(option, arguments.describe(part)))
      end
      parts[i] = part
    end
    if type(given) == "table" then options[option] = parts end  -- the caller's own may change
  end
  if options.weight_decay_includes and options.weight_decay_excludes then
    signature:fail(": weight_decay_includes and weight_decay_excludes exclude each other")
  end
end

local decay_parameters = {
  { "weight_decay", "finite?", engine_default = 0,
    text = "share of itself, times the formula's rate, that a step takes off a variable (PyTorch's AdamW: 0.01)" },
  { "weight_decay_includes", "any?", text = "parts of names, taken as they are: only variables with one of them in "
    .. "their name decay" },
  { "weight_decay_excludes", "any?", text = "parts of names: only variables without any of them decay, such as "
    .. '{ "bias", "gamma", "beta" }; not beside weight_decay_includes' },
}

local function with(parameters, more)
  for _, parameter in ipairs(more) do parameters[#parameters + 1] = parameter end
  return parameters
end

local function adam_parameters()
  return {
    { "beta1", "finite", 0.9, text = "share of the mean gradient m that a step keeps, in [0, 1)" },
    { "beta2", "finite", 0.999, text = "share of the mean square v that a step keeps, in [0, 1)" },
    { "epsilon", "finite", 1e-8, text = "added to sqrt(v), before the correction" },
    { "do_bias_correction", "boolean", true, text = "make up for m and v starting at 0 (the original: false)" },
  }
end
local lazy_parameters = adam_parameters()
lazy_parameters[4] = nil

local function momentum_parameter(name)
  return { name, "finite", 0.9, text = "share of the last step that is added to the next one; "
    .. "the rate is inside of it" }
end

local function sgd_parameters()
  return {
    momentum_parameter "momentum",
    { "nesterov", "boolean?", engine_default = false, text = "move on as if the next step had the same gradient" },
  }
end

-- A share of the past above 1 grows without end.
local function check_share(name)
  return function(options, signature)
    local share = options[name]
    if share < 0 or share > 1 then
      signature:fail((": %s must lie in [0, 1], got %g"):format(name, share) .. (share > 1 and name == "momentum"
        and "; a loss scale is given by name, loss_scale_factor = " .. share or ""))
    end
  end
end

-- What several checks look at, one after the other.
local function all(...)
  local checks = { ... }
  return function(options, signature)
    for _, check in ipairs(checks) do check(options, signature) end
  end
end

local function check_nesterov(options, signature)
  if options.nesterov and options.momentum == 0 then
    signature:fail ": nesterov looks ahead along the momentum, and momentum is 0; give it, such as 0.9"
  end
end

-- Outside of [0, 1) a mean over past gradients grows without end, or its square root has no real value.
local function check_betas(options, signature)
  for _, name in ipairs { "beta1", "beta2" } do
    local beta = options[name]
    if beta < 0 or beta >= 1 then signature:fail((": %s must lie in [0, 1), got %g"):format(name, beta)) end
  end
end

--- Gradient descent with momentum, of 0.9 where none is given (PyTorch's SGD: 0).
---   m = momentum * m - rate * g,  w = w + m;  with momentum 0  w = w - rate * g
---   nesterov: w = w + momentum * m - rate * g, with the m just made (Sutskever and others, "On the importance of
---   initialization and momentum in deep learning", 2013, at the point looked ahead to, as PyTorch has it)
define("SGD", sgd_parameters(), update.sgd, all(check_share "momentum", check_nesterov))
--- SGD with decoupled weight decay, where w is that from before the step:
---   m = momentum * m - rate * g,  w = w + m - rate * weight_decay * w
---   nesterov as in flow.optimizer.SGD
define("SGDW", with(sgd_parameters(), decay_parameters), update.sgdw,
  all(check_share "momentum", check_nesterov, one_choice))
--- Adam (Kingma and Ba, arXiv:1412.6980).
---   m = beta1 * m + (1 - beta1) * g,  v = beta2 * v + (1 - beta2) * g^2
---   w = w - rate * c * m / (sqrt(v) + epsilon)
---   with c = sqrt(1 - beta2^t) / (1 - beta1^t) in step t, from 1 on; c = 1 without do_bias_correction
--- epsilon is added to sqrt(v) before the correction, which the rate carries, as in section 2 of the paper. PyTorch
--- adds it after that: this one stands for one there that is 1 / sqrt(1 - beta2^t) times as large, 32 times in the
--- first step and no larger in the end.
define("Adam", adam_parameters(), update.adam, check_betas)
--- Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101), which is 0 where none is given.
---   m = beta1 * m + (1 - beta1) * g,  v = beta2 * v + (1 - beta2) * g^2
---   w = w - rate * c * m / (sqrt(v) + epsilon) - rate * weight_decay * w
---   with c = sqrt(1 - beta2^t) / (1 - beta1^t) in step t, from 1 on; c = 1 without do_bias_correction
--- epsilon is added to sqrt(v) before the correction, which the rate carries, as flow.optimizer.Adam has it.
define("AdamW", with(adam_parameters(), decay_parameters), update.adam, all(check_betas, one_choice))
--- Adam, always with bias correction. Of a variable from which rows are picked, as an embedding's weight is by
--- flow.gather along axis 0 and in no other way, a step changes only the rows it has picked, and of `m` and `v` only
--- theirs, clipped or not. A regularizer gives every row a gradient, and so makes it Adam.
define("LazyAdam", lazy_parameters, update.lazy_adam, function(options, signature)
  check_betas(options, signature)
  options.do_bias_correction = true
end)
--- LAMB (You and others, arXiv:1904.00962): Adam with a rate of its own for each variable, for large batches.
---   r = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay * w, m and v as in Adam, t from 1
---   w = w - rate * |w| / |r| * r, with |x| the root of the sum of squares; where one of them is 0 the ratio is 1
define("LAMB", with({
  { "beta1", "finite", 0.9, text = "share of the mean gradient m that a step keeps, in [0, 1)" },
  { "beta2", "finite", 0.999, text = "share of the mean square v that a step keeps, in [0, 1)" },
  { "epsilon", "finite", 1e-6, text = "added to the root" },
}, decay_parameters), update.lamb, all(check_betas, one_choice))
--- The gradient over the root of its mean square.
---   s = decay_rate * s + (1 - decay_rate) * g^2,  w = w - rate * g / sqrt(s + epsilon)
---   centered: a = decay_rate * a + (1 - decay_rate) * g,  w = w - rate * g / sqrt(max(s - a^2, 0) + epsilon)
define("RMSProp", {
  { "decay_rate", "finite", 0.99, text = "share of the means that a step keeps" },
  { "epsilon", "finite", 1e-8, text = "added to the mean square, inside the root (PyTorch: to the root)" },
  { "centered", "boolean", false, text = "subtract the square of the mean gradient" },
}, update.rmsprop, check_share "decay_rate")
--- Adagrad (Duchi, Hazan, Singer, JMLR 12, 2011): each element has a rate of its own, which falls with all the
--- gradients it has had. What a step gives no gradient stays as it is, so of a table of which rows are picked, as an
--- embedding's weight is by flow.gather, a step changes these and `square_sum` of these alone.
---   s = s + g^2,  w = w - rate * g / (sqrt(s) + epsilon)
define("Adagrad", {
  { "initial_accumulator_value", "finite", 0, text = "what s begins with (TensorFlow: 0.1)" },
  { "epsilon", "finite", 1e-10, text = "added to the root" },
}, update.adagrad, function(options, signature)
  local first = options.initial_accumulator_value
  if first < 0 then signature:fail((": initial_accumulator_value must be at least 0, got %g"):format(first)) end
end)
--- Momentum with a rate of its own for each variable (You and others, arXiv:1708.03888).
---   local_rate = rate * lars_coefficient * |w| / (|g| + weight_decay * |w| + epsilon), with |x| the root of the mean
---   of squares; where |w| or |g| is 0, as a bias is at first, rate
---   m = momentum_beta * m - local_rate * g,  w = w + m - local_rate * weight_decay * w
define("LARS", with({
  momentum_parameter "momentum_beta",
  { "epsilon", "finite", 1e-9, text = "added to the size of the gradient" },
  { "lars_coefficient", "finite", 0.0001, text = "the rate where weight and gradient are equally large, over the rate "
    .. "that is given" },
}, decay_parameters), update.lars, all(check_share "momentum_beta", one_choice))

local combined_signature = arguments.signature("flow.optimizer.CombinedOptimizer", {
  { "optimizers", "entries", text = "a list of optimizers, each with `variables`, but one at most" },
  scale_parameters[1],
  { "grad_clipping", "clipping?", text = "of all gradients together, whichever of the optimizers they are for" },
  scale_parameters[2],
})

--- Several optimizers for one loss, each for its `variables`, with its own rate, decay and clipping. One of them may
--- leave these out, and trains all others; where none does, flow.config.log is told of what is trained by none. A loss
--- scale is that of the whole, and so is `grad_clipping` where it is given here: by_global_norm(1) of each of them only
--- keeps that one's gradients to 1.
function optimizer.CombinedOptimizer(...)
  local given = combined_signature:parse(...)
  local parts, places, rest = {}, {}, nil
  for i, part in ipairs(given.optimizers) do
    local place = ": entry " .. i .. " of the optimizers "
    if getmetatable(part) ~= Optimizer or part.parts[1] ~= part then
      combined_signature:fail(place .. "must be one such as flow.optimizer.Adam(0.001), got "
        .. arguments.describe(part))
    elseif places[part] then
      combined_signature:fail(place .. "is entry " .. places[part] .. " again")
    elseif part.options.loss_scale_factor or part.options.loss_scale_policy then
      combined_signature:fail(place .. "has a loss scale of its own; give it to CombinedOptimizer")
    elseif part.clipping and given.grad_clipping then
      combined_signature:fail(place .. "has a grad_clipping of its own, beside that of all together; leave one out")
    elseif not part.chosen and rest then
      combined_signature:fail(place .. "names no variables, nor does entry " .. rest .. ", which trains all others")
    elseif not part.chosen then
      rest = i
    end
    parts[i], places[part] = part, i
  end
  if #parts == 0 then combined_signature:fail(": a list of optimizers is wanted, and it is empty") end
  return setmetatable({ where = "flow.optimizer.CombinedOptimizer", parts = parts, clipping = given.grad_clipping,
                        loss_scale = loss_scale_of(given, combined_signature) }, Optimizer)
end

-- ---- marking losses -----------------------------------------------------------------------------------------------

local kTrains = "; give it type = \"train\""

-- Raises unless a value can be a loss beside `first`, another one, if there is any.
local function check_loss(loss, first, t, where)
  if not blob.is(loss) then
    errors.raise("invalid_argument", where .. " wants a blob, got " .. arguments.describe(loss))
  end
  blob.id_of(loss, t, where)
  if loss.dtype ~= "float32" and loss.dtype ~= "float64" then
    errors.raise("dtype_mismatch", where .. ": the loss '" .. loss.name .. "' is " .. loss.dtype
      .. "; a loss is float32 or float64, and flow.cast(loss, flow.float) makes it one")
  end
  if first and (first.shape ~= loss.shape or first.dtype ~= loss.dtype) then
    errors.raise("shape_mismatch", where .. ": the losses of a job must be alike: '" .. first.name .. "' is "
      .. first.dtype .. " " .. tostring(first.shape) .. ", '" .. loss.name .. "' is " .. loss.dtype .. " "
      .. tostring(loss.shape) .. (first.dtype ~= loss.dtype
        and "; flow.cast(loss, \"" .. first.dtype .. "\") makes them so"
        or "; flow.math.reduce_mean(loss) of each makes one number of it"))
  end
end

-- A loss that is named twice would count twice.
local function check_new(loss, losses, where)
  for _, earlier in ipairs(losses) do
    if earlier.id == loss.id then
      errors.raise("wrong_state", where .. ": '" .. loss.name .. "' is a loss of the job already, and would count "
        .. "twice; leave one of them out, or minimize 2 * loss")
    end
  end
end

--- Marks a value as a loss of the job.
function optimizer.add_loss(loss, where)
  where = where or "flow.losses.add_loss"
  local t = trace.need(where)
  t:need_training(where, kTrains)
  check_loss(loss, t.losses[1], t, where)
  check_new(loss, t.losses, where)
  t.losses[#t.losses + 1] = loss
end

local minimize_signature = arguments.signature("minimize", { { "loss", "any" } })

--- Makes the job minimise the mean over all elements of a loss, or the sum of the means of several alike.
--- @param loss Blob|table  a blob or a list of blobs
--- @error a loss of another dtype than float32 and float64; flow.cast(loss, flow.float) makes it one
function Optimizer:minimize(loss, ...)
  arguments.check_self(self, Optimizer, "optimizer:minimize")
  local where = self.where .. ":minimize"
  if ... ~= nil then
    minimize_signature:called(where):too_many(1 + select("#", ...),
      "; several losses go to it as a list, and what is to be trained to the optimizer's 'variables'")
  end
  local t = trace.need(where)
  t:need_training(where, kTrains)
  if t.optimizer then
    errors.raise("wrong_state", where .. ": the job '" .. t.job .. "' already minimises its loss (since "
      .. (t.optimizer_site or "?") .. "). Losses that are to be added up go to minimize as a list, optimizers for "
      .. "several groups of variables to flow.optimizer.CombinedOptimizer, and a loss that only some variables are to "
      .. "follow into a job of its own")
  end
  if t.config.trains then
    errors.raise("wrong_state", where .. ": the job '" .. t.job .. "' has config.train in its function_config, which "
      .. "is an optimizer too; leave that out, or mark the loss by flow.losses.add_loss")
  end
  local losses = blob.is(loss) and { loss } or loss
  if type(losses) ~= "table" or #losses == 0 then
    errors.raise("invalid_argument", where .. " wants a blob or a list of blobs, got " .. arguments.describe(loss))
  end
  local all_losses = { unpack(t.losses) }
  for _, item in ipairs(arguments.check_list(losses, where .. ": the list of losses")) do
    check_loss(item, all_losses[1], t, where)
    check_new(item, all_losses, where)
    all_losses[#all_losses + 1] = item
  end
  -- From here on nothing fails, so a script that catches an error has a job as it was.
  t.losses = all_losses
  t.optimizer, t.optimizer_site = self, errors.site()
end

return optimizer
