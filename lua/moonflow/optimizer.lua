--- Optimizers: what a train job does with its gradients, appended to the job's graph when its body has run.
-- The gradient is that of the sum of the losses' elements. For each trainable variable it is then, in this order:
-- divided by the element count of the loss, unscaled, regularised, clipped, and given to the update.
-- `variables` of an optimizer leaves the others as they are: a list of names, of variables or of the layers and
-- namespaces they are in. So two jobs that share variables may train a part of them each, and so may the parts of a
-- CombinedOptimizer in one job.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local errors = require "moonflow.errors"
local schedule = require "moonflow.schedule"
local session = require "moonflow.session"
local trace = require "moonflow.trace"
local variable = require "moonflow.variable"

local optimizer = { grad_clipping = {}, loss_scale = {}, warmup = schedule.warmup }
for name, value in pairs(schedule) do
  if type(value) == "function" and name:match("^%u") then optimizer[name] = value end
end

-- ---- clipping and scaling -----------------------------------------------------------------------------------------

local Clipping = { kind = "clipping" }
local clip_signature = arguments.signature("flow.optimizer.grad_clipping.by_global_norm", { { "clip_norm", "number" } })

--- Multiplies every gradient by min(1, clip_norm / norm), with the norm over all of them together.
function optimizer.grad_clipping.by_global_norm(...)
  local given = clip_signature:parse(...)
  local norm = given.clip_norm
  if norm <= 0 or norm ~= norm then clip_signature:fail(": clip_norm must be above 0, got " .. norm) end
  return setmetatable({ clip_norm = given.clip_norm }, Clipping)
end

local LossScale = { kind = "loss_scale" }
local scale_signature = arguments.signature("flow.optimizer.loss_scale.static_loss_scale",
  { { "loss_scale_factor", "finite" } })

--- Multiplies the loss's gradient by a factor that is divided out again before the update.
function optimizer.loss_scale.static_loss_scale(...)
  local given = scale_signature:parse(...)
  if given.loss_scale_factor <= 0 then scale_signature:fail(": the factor must be above 0") end
  return setmetatable({ factor = given.loss_scale_factor }, LossScale)
end

local dynamic_signature = arguments.signature("flow.optimizer.loss_scale.dynamic_loss_scale",
  { { "initial_loss_scale", "finite", 2 ^ 30 }, { "increment_period", "integer", 2000 },
    { "multiplier", "finite", 2 } })

--- A loss scale that finds its own size, for gradients in half precision. A step with an infinity or a NaN in any
--- variable's gradient changes nothing, as if it had not been, and divides the scale by `multiplier` (down to 1).
--- `increment_period` steps in a row without one multiply it. Scale and count of steps are variables of the session,
--- and so belong to a checkpoint.
function optimizer.loss_scale.dynamic_loss_scale(...)
  local given = dynamic_signature:parse(...)
  local function check(name, holds, wanted)
    if not holds(given[name]) then dynamic_signature:fail(": " .. name .. " must be " .. wanted .. ", got "
      .. given[name]) end
  end
  check("initial_loss_scale", function(x) return x >= 1 and x < 2 ^ 128 end, "at least 1, and a number of float32")
  check("increment_period", function(x) return x >= 1 end, "at least 1")
  check("multiplier", function(x) return x > 1 end, "above 1")
  return setmetatable({ dynamic = given }, LossScale)
end

-- ---- updates ------------------------------------------------------------------------------------------------------

-- One op of the update of a variable.
local function append(u, op, inputs, attrs, word)
  return (u.t:append(op, inputs, attrs, u.name .. "-" .. word, u.site))
end

-- A slot: a variable of the optimizer that belongs to the variable being updated, starting at zero.
local function slot(u, word)
  return variable.system(u.t, u.name .. "-" .. word, u.dtype, u.shape, 0)
end

-- A number as a constant of the variable's dtype.
local function number(u, value, word)
  return u.t:constant(core.array(value, u.dtype), nil, u.name .. "-" .. word, "")
end

-- A value of dtype `from` in dtype `to`.
local function in_dtype(u, id, from, to, word)
  return from == to and id or append(u, "cast", { id }, { dtype = to }, word)
end

-- A float32 scalar, such as the learning rate, in the variable's dtype, for ops that mix the two.
local function typed(u, id, word) return in_dtype(u, id, "float32", u.dtype, word) end

-- Is decoupled weight decay meant for this variable? Parts of names, taken as they are.
local function decays(options, name)
  if not options.weight_decay or options.weight_decay == 0 then return false end
  local function any(parts)
    for _, words in ipairs(type(parts) == "table" and parts or { parts }) do
      if name:find(words, 1, true) then return true end
    end
    return false
  end
  if options.weight_decay_includes then return any(options.weight_decay_includes) end
  if options.weight_decay_excludes then return not any(options.weight_decay_excludes) end
  return true
end

local function update_sgd(u, options)
  if options.momentum == 0 then
    append(u, "sgd_update", { u.id, u.gradient, u.rate, u.finite }, nil, "update")
  else
    append(u, "momentum_update", { u.id, slot(u, "momentum"), u.gradient, u.rate, u.finite },
      { beta = options.momentum }, "update")
  end
end

-- w = w + (what SGD does) - rate * weight_decay * w, with w from before the step.
local function update_sgdw(u, options)
  if decays(options, u.name) then
    local decay = number(u, -options.weight_decay, "weight_decay")
    local factor = append(u, "multiply", { typed(u, u.rate, "rate"), decay }, nil, "decay_rate")
    if u.finite then
      factor = append(u, "multiply", { factor, typed(u, u.finite, "finite") }, nil, "decay_or_not")
    end
    local change = append(u, "multiply", { u.id, factor }, nil, "decay")
    update_sgd(u, options)
    append(u, "assign_add", { u.id, change }, nil, "decay_update")
  else
    update_sgd(u, options)
  end
end

local function update_adam(u, options)
  append(u, "adam_update", { u.id, slot(u, "m"), slot(u, "v"), u.gradient, u.rate, u.t:step_id(), u.finite }, {
    beta1 = options.beta1, beta2 = options.beta2, epsilon = options.epsilon,
    bias_correction = options.do_bias_correction, weight_decay = decays(options, u.name) and options.weight_decay or 0,
  }, "update")
end

-- What a step has picked from a table: lists of `dy`, a row for each of `indices`. That is known where all of the
-- gradient comes from gathers of whole rows, as an embedding is one; else nil.
local function picks_of(u)
  local graph, dy, indices = u.t.graph, {}, {}
  local function is_picked(id)
    local inputs, attrs = graph:made_by(id, "gather_grad")
    if inputs then
      dy[#dy + 1], indices[#indices + 1] = unpack(inputs)
      return attrs.axis % #u.shape == 0
    end
    inputs = graph:made_by(id, "add")
    return inputs and is_picked(inputs[1]) and is_picked(inputs[2])
  end
  if is_picked(u.gradient) then return dy, indices end
end

-- Several picks as one: `dy` and `indices`.
local function joined(u, dy, indices)
  if #dy == 1 then return { dy = dy[1], indices = indices[1] } end
  local graph, columns, common = u.t.graph, { unpack(u.shape) }, nil
  for _, id in ipairs(indices) do
    local dtype = graph:type(id)
    common = (common == nil or common == dtype) and dtype or "int64"
  end
  for i = 1, #dy do
    local dtype, shape = graph:type(indices[i])
    columns[1] = shape:count()
    dy[i] = append(u, "reshape", { dy[i] }, { shape = columns }, "picked")
    indices[i] = in_dtype(u, append(u, "reshape", { indices[i] }, { shape = { columns[1] } }, "picks"), dtype, common,
      "wide_picks")
  end
  return { dy = append(u, "concat", dy, { axis = 0 }, "all_picked"),
           indices = append(u, "concat", indices, { axis = 0 }, "all_picks") }
end

-- Of a table from which rows are picked only these; of any other variable as Adam.
local function update_lazy_adam(u, options)
  local rows = u.rows
  if not rows then return update_adam(u, options) end
  local order = append(u, "picks_by_row", { rows.indices }, { rows = u.shape[1] }, "order")
  append(u, "rows_adam_update", { u.id, slot(u, "m"), slot(u, "v"), rows.dy, u.rate, u.t:step_id(), u.unscale,
                                  rows.indices, order }, {
    beta1 = options.beta1, beta2 = options.beta2, epsilon = options.epsilon, gradient_scale = rows.scale,
    bias_correction = true }, "update")
end

local function update_rmsprop(u, options)
  local mean_gradient = options.centered and slot(u, "mean_gradient") or false
  append(u, "rmsprop_update", { u.id, slot(u, "mean_square"), mean_gradient, u.gradient, u.rate, u.finite },
    { decay_rate = options.decay_rate, epsilon = options.epsilon, centered = options.centered }, "update")
end

-- Root of the mean of squares.
local function rms(u, id, word)
  local square = append(u, "square", { id }, nil, word .. "_square")
  local mean = append(u, "reduce_mean", { square }, nil, word .. "_mean")
  return append(u, "sqrt", { mean }, nil, word .. "_norm")
end

-- The learning rate times coefficient * |w| / (epsilon + |g|), then momentum.
local function update_lars(u, options)
  local weight, gradient = rms(u, u.id, "weight"), rms(u, u.gradient, "gradient")
  local above = append(u, "multiply", { weight, number(u, options.lars_coefficient, "coefficient") }, nil, "lars_above")
  local below = append(u, "add", { gradient, number(u, options.epsilon, "epsilon") }, nil, "lars_below")
  local ratio = append(u, "divide", { above, below }, nil, "lars_ratio")
  if u.dtype ~= "float32" then ratio = append(u, "cast", { ratio }, { dtype = "float32" }, "lars_cast") end
  u.rate = append(u, "multiply", { u.rate, ratio }, nil, "lars_rate")
  append(u, "momentum_update", { u.id, slot(u, "momentum"), u.gradient, u.rate, u.finite },
    { beta = options.momentum_beta }, "update")
end

-- ---- the classes --------------------------------------------------------------------------------------------------

local Optimizer = { kind = "optimizer" }
Optimizer.__index = Optimizer

local shared_parameters = {
  { "loss_scale_factor", "finite?" }, { "grad_clipping", "clipping?" }, { "loss_scale_policy", "loss_scale?" },
  { "variables", "any?" },
}

-- The names that an optimizer is to keep to, or nil for all.
local function chosen_names(value, signature)
  if value == nil then return nil end
  local list = type(value) == "table" and value or { value }
  for i, name in ipairs(list) do
    if type(name) ~= "string" then
      signature:fail(": variables must be a list of names, entry " .. i .. " is " .. arguments.describe(name))
    end
  end
  if #list == 0 then
    signature:fail(": variables must name at least one variable, layer or namespace; without it all are trained")
  end
  return list
end

local function loss_scale_of(options)
  return options.loss_scale_policy or { factor = options.loss_scale_factor or 1 }
end

local function define(name, parameters, update, settle)
  local where = "flow.optimizer." .. name
  local list = { { "lr_scheduler", "any" } }
  for _, parameter in ipairs(parameters) do list[#list + 1] = parameter end
  for _, parameter in ipairs(shared_parameters) do list[#list + 1] = parameter end
  local signature = arguments.signature(where, list)
  optimizer[name] = function(...)
    local options = signature:parse(...)
    if settle then settle(options, signature) end
    local self = {
      where = where, options = options, update = update, scheduler = schedule.from(options.lr_scheduler, where),
      clipping = options.grad_clipping, chosen = chosen_names(options.variables, signature),
      loss_scale = loss_scale_of(options),
    }
    self.parts = { self }
    return setmetatable(self, Optimizer)
  end
end

local function one_choice(options, signature)
  if options.weight_decay_includes and options.weight_decay_excludes then
    signature:fail(": weight_decay_includes and weight_decay_excludes exclude each other")
  end
end

local decay_parameters = {
  { "weight_decay", "finite?" }, { "weight_decay_includes", "any?" }, { "weight_decay_excludes", "any?" },
}

local function with(parameters, more)
  for _, parameter in ipairs(more) do parameters[#parameters + 1] = parameter end
  return parameters
end

local function adam_parameters(epsilon)
  return { { "beta1", "finite", 0.9 }, { "beta2", "finite", 0.999 }, { "epsilon", "finite", epsilon or 1e-8 },
           { "do_bias_correction", "boolean", true } }
end

-- Outside of [0, 1) a mean over past gradients grows without end, or its square root has no real value.
local function check_betas(options, signature)
  for _, name in ipairs { "beta1", "beta2" } do
    local beta = options[name]
    if beta < 0 or beta >= 1 then signature:fail((": %s must lie in [0, 1), got %g"):format(name, beta)) end
  end
end

--- momentum 0: w = w - rate * g. Else m = momentum * m - rate * g, w = w + m.
define("SGD", { { "momentum", "finite", 0.9 } }, update_sgd)
--- SGD with decoupled weight decay: additionally w = w - rate * weight_decay * w.
define("SGDW", with({ { "momentum", "finite", 0.9 } }, decay_parameters), update_sgdw, one_choice)
--- w = w - rate * m / (sqrt(v) + epsilon); bias correction is on by default (the original: off).
define("Adam", adam_parameters(), update_adam, check_betas)
--- Adam with decoupled weight decay.
define("AdamW", with(adam_parameters(), decay_parameters), update_adam, function(options, signature)
  check_betas(options, signature)
  one_choice(options, signature)
end)
--- Adam, always with bias correction. Of a variable from which rows are picked, as an embedding's weight is by
--- flow.gather along axis 0 and in no other way, a step changes only the rows it has picked, and of `m` and `v` only
--- theirs. A regularizer gives every row a gradient, and so makes it Adam.
define("LazyAdam", { { "beta1", "finite", 0.9 }, { "beta2", "finite", 0.999 }, { "epsilon", "finite", 1e-8 } },
  update_lazy_adam, function(options, signature)
    check_betas(options, signature)
    options.do_bias_correction = true
  end)
--- w = w - rate * g / sqrt(mean square [- mean gradient^2] + epsilon).
define("RMSProp", { { "decay_rate", "finite", 0.99 }, { "epsilon", "finite", 1e-8 }, { "centered", "boolean", false } },
  update_rmsprop)
--- Momentum with a rate per variable: rate * lars_coefficient * |w| / (epsilon + |g|).
define("LARS", { { "momentum_beta", "finite", 0.9 }, { "epsilon", "finite", 1e-9 },
                 { "lars_coefficient", "finite", 0.0001 } }, update_lars)

local combined_signature = arguments.signature("flow.optimizer.CombinedOptimizer",
  { { "optimizers", "table" }, { "loss_scale_factor", "finite?" }, { "loss_scale_policy", "loss_scale?" } })

--- Several optimizers for one loss, each for its `variables`, with its own rate, decay and clipping. One of them may
--- leave these out, and trains all others. A loss scale is that of the whole.
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
    elseif not part.chosen and rest then
      combined_signature:fail(place .. "names no variables, nor does entry " .. rest .. ", which trains all others")
    elseif not part.chosen then
      rest = i
    end
    parts[i], places[part] = part, i
  end
  if #parts == 0 then combined_signature:fail(": a list of optimizers is wanted, and it is empty") end
  return setmetatable({ where = "flow.optimizer.CombinedOptimizer", parts = parts, loss_scale = loss_scale_of(given) },
    Optimizer)
end

-- ---- marking losses -----------------------------------------------------------------------------------------------

local function need_training(t, where)
  if t.type ~= "train" then
    errors.raise("wrong_state", where .. ": the job '" .. t.job .. "' has type 'predict'; give it type = \"train\"")
  end
end

--- Marks a value as a loss of the job.
function optimizer.add_loss(loss, where)
  where = where or "flow.losses.add_loss"
  local t = trace.need(where)
  need_training(t, where)
  if not blob.is(loss) then
    errors.raise("invalid_argument", where .. " wants a blob, got " .. arguments.describe(loss))
  end
  blob.id_of(loss, t, where)
  if loss.dtype ~= "float32" and loss.dtype ~= "float64" then
    errors.raise("dtype_mismatch", where .. ": the loss '" .. loss.name .. "' is " .. loss.dtype
      .. "; a loss is float32 or float64")
  end
  local first = t.losses[1]
  if first and (first.shape ~= loss.shape or first.dtype ~= loss.dtype) then
    errors.raise("shape_mismatch", where .. ": the losses of a job must be alike: '" .. first.name .. "' is "
      .. first.dtype .. " " .. tostring(first.shape) .. ", '" .. loss.name .. "' is " .. loss.dtype .. " "
      .. tostring(loss.shape))
  end
  t.losses[#t.losses + 1] = loss
end

--- Makes the job minimise the mean over all elements of a loss, or the sum of the means of several alike.
--- @param loss Blob|table  a blob or a list of blobs
function Optimizer:minimize(loss)
  if getmetatable(self) ~= Optimizer then
    errors.raise("invalid_argument", "use ':' to call it: optimizer:minimize(loss)")
  end
  local where = self.where .. ":minimize"
  local t = trace.need(where)
  need_training(t, where)
  if t.optimizer then
    errors.raise("wrong_state", where .. ": the job '" .. t.job .. "' already minimises its loss (since "
      .. (t.optimizer_site or "?") .. "); give minimize a list of losses, or flow.optimizer.CombinedOptimizer a list "
      .. "of optimizers, each with its variables")
  end
  t.optimizer, t.optimizer_site = self, errors.site()
  local losses = blob.is(loss) and { loss } or loss
  if type(losses) ~= "table" or #losses == 0 then
    errors.raise("invalid_argument", where .. " wants a blob or a list of blobs, got " .. arguments.describe(loss))
  end
  for _, item in ipairs(losses) do optimizer.add_loss(item, where) end
end

-- ---- the optimizer of the oldest dialect --------------------------------------------------------------------------

local function from_train_config(t, config)
  local conf = config.model_update_conf or { naive_conf = {} }
  if not config.primary_lr then
    errors.raise("invalid_argument", "the job '" .. t.job .. "' has a model_update_conf but no learning rate; "
      .. "call config.train:primary_lr(0.1)")
  end
  local rate = schedule.from_conf(config.primary_lr, conf)
  local options = { loss_scale_factor = config.loss_scale_factor }
  local clip = conf.clip_conf and conf.clip_conf.clip_by_global_norm
  if clip then options.grad_clipping = optimizer.grad_clipping.by_global_norm(clip.clip_norm) end
  local decay = conf.weight_decay_conf
  local function pick(name, allowed)
    local given = conf[name]
    for key, value in pairs(given) do
      if not allowed[key] then
        errors.raise("invalid_argument", "model_update_conf." .. name .. " has no option '" .. tostring(key) .. "'")
      end
      options[allowed[key]] = value
    end
    options.lr_scheduler = rate
  end
  local adam = { beta1 = "beta1", beta2 = "beta2", epsilon = "epsilon", do_bias_correction = "do_bias_correction" }
  if conf.momentum_conf then
    pick("momentum_conf", { beta = "momentum" })
    return optimizer.SGD(options)
  elseif conf.adam_conf then
    pick("adam_conf", adam)
    if not decay then return optimizer.Adam(options) end
    options.weight_decay = decay.weight_decay_rate
    options.weight_decay_includes = decay.includes and decay.includes.pattern
    options.weight_decay_excludes = decay.excludes and decay.excludes.pattern
    return optimizer.AdamW(options)
  elseif conf.lazy_adam_conf then
    pick("lazy_adam_conf", { beta1 = "beta1", beta2 = "beta2", epsilon = "epsilon" })
    return optimizer.LazyAdam(options)
  elseif conf.rmsprop_conf then
    pick("rmsprop_conf", { decay_rate = "decay_rate", epsilon = "epsilon", centered = "centered" })
    return optimizer.RMSProp(options)
  elseif conf.lars_conf then
    pick("lars_conf", { momentum_beta = "momentum_beta", epsilon = "epsilon", lars_coefficient = "lars_coefficient" })
    return optimizer.LARS(options)
  elseif conf.naive_conf then
    pick("naive_conf", {})
    options.momentum = 0
    return optimizer.SGD(options)
  end
  errors.raise("invalid_argument", "model_update_conf names no optimizer; naive_conf, momentum_conf, adam_conf, "
    .. "lazy_adam_conf, rmsprop_conf or lars_conf is wanted")
end

-- ---- after the body -----------------------------------------------------------------------------------------------

-- The loss scale of a job: what multiplies the seed of the gradients and is divided out of them again.
local Scaling = {}
Scaling.__index = Scaling

local function scaling_of(t, policy)
  local self = setmetatable({ t = t, factor = policy.factor, dynamic = policy.dynamic }, Scaling)
  if not self.dynamic then return self end
  self.name = "System-Train-DynamicLossScale-" .. trace.variable_part(t.job)
  self.scale = variable.system(t, self.name .. "-LossScale", "float32", {}, self.dynamic.initial_loss_scale)
  self.good_steps = variable.system(t, self.name .. "-GoodStepCounter", "int64", {}, 0)
  return self
end

--- What a loss scale does in the gradients that a body asks for itself.
function optimizer.scaling(t, policy, where)
  if policy.dynamic then
    if t.type ~= "train" then
      errors.raise("wrong_state", where .. ": a dynamic loss scale is that of a train job's optimizer, and the job '"
        .. t.job .. "' has type 'predict'; a static_loss_scale serves in any")
    end
    t.scaled_by = policy
  end
  return scaling_of(t, policy)
end

-- The scale as a scalar of this dtype.
function Scaling:number(dtype, name, site)
  if not self.dynamic then
    return (self.t:append("constant", {}, { value = self.factor, dtype = dtype, shape = {} }, name, site))
  end
  return dtype == "float32" and self.scale or (self.t:append("cast", { self.scale }, { dtype = dtype }, name, site))
end

--- A value of this dtype times the scale, and divided by it. What is narrow is divided in float32: there the reciprocal
--- of a scale, or the scale itself, need not have a place.
function Scaling:times(id, dtype, name, site)
  return (self.t:append("multiply", { id, self:number(dtype, name, site) }, nil, name, site))
end

function Scaling:undone(id, dtype, name, site)
  local t, wide = self.t, dtype == "float64" and dtype or "float32"
  if wide ~= dtype then id = t:append("cast", { id }, { dtype = wide }, name, site) end
  id = t:append("divide", { id, self:number(wide, name, site) }, nil, name, site)
  return wide == dtype and id or (t:append("cast", { id }, { dtype = dtype }, name, site))
end

-- The gradient of a loss with respect to itself.
function Scaling:seed(loss, name)
  local t, shape = self.t, loss.shape:table()
  if not self.dynamic then
    return (t:append("constant", {}, { value = self.factor, dtype = loss.dtype, shape = shape }, name, ""))
  end
  local scale = self.scale
  if loss.dtype ~= "float32" then scale = t:append("cast", { scale }, { dtype = loss.dtype }, name .. "-Cast", "") end
  return (t:append("broadcast_to", { scale }, { shape = shape }, name, ""))
end

-- Looks at all gradients, and notes on each update whether it is to happen and what unscales its gradient.
function Scaling:watch_over(updates)
  local t = self.t
  if not self.dynamic or #updates == 0 then return end
  local gradients = {}
  for i, u in ipairs(updates) do gradients[i] = u.gradient end
  local finite = t:append("all_finite", gradients, nil, self.name .. "-AllFinite", "")
  local unscale = t:append("divide", { finite, self.scale }, nil, self.name .. "-Unscale", "")
  for _, u in ipairs(updates) do u.finite, u.unscale = finite, unscale end
  t:append("dynamic_loss_scale_update", { self.scale, self.good_steps, finite },
    { increment_period = self.dynamic.increment_period, multiplier = self.dynamic.multiplier },
    self.name .. "-Schedule", "")
  self.finite = finite
end

-- How many steps a step is: none where it has been left out, so that schedules and Adam's correction count updates.
function Scaling:step()
  if not self.finite then return self.t:constant(core.array(1, "int64"), nil, "System-Train-One", "") end
  return (self.t:append("cast", { self.finite }, { dtype = "int64" }, "System-Train-OneOrNone", ""))
end

-- A table from which several gathers pick has a gradient for each of them, and their sum: all of its size. Where they
-- pick fewer rows than it has, they become one, which an update may then take in row by row.
local function join_gathers(u)
  local dy, indices = picks_of(u)
  if not dy or #dy == 1 or u.finite then return end  -- what has to be finite is the gradient as it was
  local picks = 0
  for _, id in ipairs(indices) do
    local _, shape = u.t.graph:type(id)
    picks = picks + shape:count()
  end
  if picks > u.shape[1] then return end
  local rows = joined(u, dy, indices)
  u.gradient = append(u, "gather_grad", { rows.dy, rows.indices }, { shape = u.shape }, "all_picked_gradient")
end

-- The picks of a table whose update reads no more of its gradient: `dy` and `indices`, or nil.
local function picks_to_clip(u, part)
  if u.unscale then return nil end
  if u.rows then return u.rows end
  local plain = part.update == update_sgd and part.options.momentum == 0
  local regularised = u.regularizer and (u.regularizer.l1 ~= 0 or u.regularizer.l2 ~= 0)
  local dy, indices = picks_of(u)
  if plain and not regularised and dy and #dy == 1 then return { dy = dy[1], indices = indices[1] } end
end

-- What has the norm of the gradient that `picks` are summed to, without anything of the table's size: for each pick the
-- sum of all that share its row, divided by the root of how many they are. nil where comparing all picks with one
-- another takes longer than the table does.
local function sums_of_rows(u, picks, dtype, scale)
  local _, shape = u.t.graph:type(picks.indices)
  local count, width = shape:count(), 1
  for axis = 2, #u.shape do width = width * u.shape[axis] end
  if count == 0 or count * count > 8 * u.shape[1] then return nil end
  local function placed(to, word) return append(u, "reshape", { picks.indices }, { shape = to }, word) end
  local alike = append(u, "equal", { placed({ count, 1 }, "picks_down"), placed({ 1, count }, "picks_across") }, nil,
    "same_row")
  alike = append(u, "cast", { alike }, { dtype = dtype }, "same_row")
  local number_of = append(u, "reduce_sum", { alike }, { axis = { 1 }, keepdims = true }, "picks_of_row")
  local dy = in_dtype(u, picks.dy, u.dtype, dtype, "wide_picked")
  dy = append(u, "reshape", { dy }, { shape = { count, width } }, "picked")
  local sums = append(u, "matmul", { alike, dy }, nil, "sums_of_rows")
  local share = append(u, "rsqrt", { number_of }, nil, "share_of_row")
  if scale ~= 1 then
    local factor = u.t:constant(core.array(scale, dtype), nil, u.name .. "-scale", "")
    share = append(u, "multiply", { share, factor }, nil, "share_of_row")
  end
  return append(u, "multiply", { sums, share }, nil, "sums_of_rows")
end

-- divide, unscale, regularise; then clip all together.
local function prepare(t, updates, scale, part, name)
  local function scaled(u, l1, l2)
    if scale == 1 and l1 == 0 and l2 == 0 and not u.unscale then return end
    u.gradient = append(u, "prepare_gradient", { u.gradient, u.id, false, u.unscale },
      { scale = scale, l1 = l1, l2 = l2 }, "gradient")
  end
  local clipping = part.clipping
  for _, u in ipairs(updates) do
    local l1, l2 = 0, 0
    if u.regularizer then l1, l2 = u.regularizer.l1, u.regularizer.l2 end
    local dy, indices
    if part.update == update_lazy_adam and l1 == 0 and l2 == 0 then dy, indices = picks_of(u) end
    if dy then
      u.rows = joined(u, dy, indices)
      u.rows.scale = scale
    else
      join_gathers(u)
    end
    u.picks = clipping and picks_to_clip(u, part)
    scaled(u, l1, l2)
  end
  if not clipping or #updates == 0 then return end
  -- Variables may differ in dtype. The norm is of the widest, and of float32 where that is narrow: there it would
  -- overflow, or be rounded to a few bits.
  local dtype, wide = "float32", {}
  for _, u in ipairs(updates) do
    if u.dtype == "float64" then dtype = u.dtype end
  end
  for i, u in ipairs(updates) do
    u.by_rows = u.picks and sums_of_rows(u, u.picks, dtype, scale)
    wide[i] = u.by_rows or in_dtype(u, u.gradient, u.dtype, dtype, "wide_gradient")
  end
  local norm = t:append("global_norm", wide, nil, name .. "-GlobalNorm", "")
  local factor = t:append("clip_factor", { norm }, { clip_norm = clipping.clip_norm }, name .. "-ClipFactor", "")
  for i, u in ipairs(updates) do
    local function clipped_rows(dy)
      dy = append(u, "multiply", { in_dtype(u, dy, u.dtype, dtype, "wide_picked"), factor }, nil, "clipped_rows")
      return in_dtype(u, dy, dtype, u.dtype, "narrow_picked")
    end
    if u.rows then
      u.rows.dy = clipped_rows(u.rows.dy)
    elseif u.by_rows then
      local dy = clipped_rows(u.picks.dy)
      u.gradient = append(u, "gather_grad", { dy, u.picks.indices }, { shape = u.shape }, "clipped")
      scaled(u, 0, 0)
    else
      local clipped = append(u, "multiply", { wide[i], factor }, nil, "clipped")
      u.gradient = in_dtype(u, clipped, dtype, u.dtype, "narrow_gradient")
    end
  end
end

-- Is `chosen` this variable, or a layer or namespace that it is in?
local function covers(chosen, name)
  return name == chosen or name:sub(1, #chosen + 1) == chosen .. "-"
end

local function names_of(variables)
  local names = {}
  for i, entry in ipairs(variables) do names[i] = entry.record.name end
  return names
end

-- The trainable variables of the job that its optimizer is to train, and which part of it trains each.
local function trained(t)
  local variables, owners, rest = {}, {}, nil
  for _, entry in ipairs(t.variable_list) do
    local dtype = entry.record.dtype
    if entry.trainable and arguments.floating[dtype] then variables[#variables + 1] = entry end
  end
  for _, part in ipairs(t.optimizer.parts) do
    if not part.chosen then rest = part end
    for _, chosen in ipairs(part.chosen or {}) do
      local found = false
      for _, entry in ipairs(variables) do
        local name = entry.record.name
        if covers(chosen, name) then
          if owners[entry] and owners[entry] ~= part then
            errors.raise("invalid_argument", t.optimizer.where .. ": two of the optimizers train '" .. name .. "', "
              .. owners[entry].where .. " and " .. part.where .. "; a variable belongs to one", t.optimizer_site)
          end
          owners[entry], found = part, true
        end
      end
      if not found then
        errors.raise("not_found", part.where .. ": the job '" .. t.job .. "' has no trainable variable '" .. chosen
          .. "', and none in a layer or namespace of this name" .. arguments.suggestion(chosen, names_of(variables)),
          t.optimizer_site)
      end
    end
  end
  local list = {}
  for _, entry in ipairs(variables) do
    owners[entry] = owners[entry] or rest
    if owners[entry] then list[#list + 1] = entry end
  end
  return list, owners
end

-- A target and a prediction of one type can be told apart by what is trained alone.
local function warn_of_swapped(t, variables)
  if #t.targets == 0 then return end
  local sources, given = {}, {}
  for i, entry in ipairs(variables) do sources[i] = entry.id end
  for i, noted in ipairs(t.targets) do given[2 * i - 1], given[2 * i] = noted.target.id, noted.prediction.id end
  local learns = t.graph:computed_from(sources, given)
  for i, noted in ipairs(t.targets) do
    if learns[2 * i - 1] and not learns[2 * i] then
      local target, prediction = unpack(noted.names)
      session.log(("moonflow: %s: %s: its %s, '%s', depends on what is trained, and its %s, '%s', does not; were they "
        .. "given in the wrong order?"):format(noted.site, noted.loss, target, noted.target.name, prediction,
        noted.prediction.name))
    end
  end
end

-- Up to four names, and how many others there are.
local function listed(names)
  local text = table.concat(names, ", ", 1, math.min(#names, 4))
  return #names > 4 and text .. " and " .. #names - 4 .. " more" or text
end

-- Raises that a train job would change nothing, and what keeps it from that.
local function refuse_idle(t, variables, site)
  local losses = {}
  for i, loss in ipairs(t.losses) do losses[i] = "'" .. loss.name .. "'" end
  local why
  if #variables > 0 then
    why = "no gradient reaches what is to be trained (" .. listed(names_of(variables))
      .. "). Compute the loss from it, by ops that have a gradient"
  elseif #t.variable_list > 0 then
    why = "all variables of the job stay as they are (" .. listed(names_of(t.variable_list))
      .. "). Leave out trainable = false where one is to learn"
  else
    why = "the job has no variables. Make some, with flow.layers or flow.get_variable"
  end
  errors.raise("wrong_state", t.job .. ": minimising " .. listed(losses) .. " changes nothing, for " .. why
    .. ", or give the job type = \"predict\"", site)
end

--- Appends gradients and updates to the graph of a train job whose body has run.
--- Gives watched blob -> id of its gradient (false: no gradient).
--- @param t Trace
--- @param site string  of the job's definition
function optimizer.finish(t, site)
  if not t.optimizer and #t.losses > 0 and t.config.trains then
    t.optimizer = from_train_config(t, t.config.train)
  end
  if not t.optimizer or #t.losses == 0 then
    errors.raise("wrong_state", "the job '" .. t.job .. "' has type 'train' but minimises no loss; call "
      .. "flow.optimizer.SGD(0.1):minimize(loss) in its body, or give it type = \"predict\"", site)
  end
  local this = t.optimizer
  if t.scaled_by and t.scaled_by ~= this.loss_scale then
    errors.raise("invalid_argument", "the job '" .. t.job .. "' asks for gradients by a dynamic loss scale that its "
      .. "optimizer does not have, so it would never change; give " .. this.where .. " the same loss_scale_policy",
      t.optimizer_site or site)
  end

  local variables, owners = trained(t)
  warn_of_swapped(t, variables)
  local wanted, losses, seeds = {}, {}, {}
  for i, entry in ipairs(variables) do wanted[i] = entry.id end
  for _, watched in ipairs(t.diff_watches) do wanted[#wanted + 1] = watched.blob.id end
  local scaling = scaling_of(t, this.loss_scale)
  for i, loss in ipairs(t.losses) do
    losses[i] = loss.id
    seeds[i] = scaling:seed(loss, "System-Train-Seed-" .. i)
  end
  local gradients = t.graph:gradients(losses, seeds, wanted)

  local scale = 1 / (t.losses[1].shape:count() * (scaling.factor or 1))
  local rates, updates = {}, {}
  for _, part in ipairs(this.parts) do rates[part] = part.scheduler:lower(t) end
  for i, entry in ipairs(variables) do
    if gradients[i] then
      local part = owners[entry]
      updates[#updates + 1] = { t = t, id = entry.id, name = entry.record.name, dtype = entry.record.dtype,
                                shape = entry.record.shape, gradient = gradients[i], rate = rates[part], part = part,
                                regularizer = entry.regularizer, site = entry.record.site or "",
                                finite = false, unscale = false }
    end
  end
  local shows_gradient = false  -- which is then what the job is for
  for i = #variables + 1, #wanted do shows_gradient = shows_gradient or gradients[i] end
  if #updates == 0 and not shows_gradient then refuse_idle(t, variables, t.optimizer_site or site) end
  scaling:watch_over(updates)
  for i, part in ipairs(this.parts) do
    local own = {}
    for _, u in ipairs(updates) do own[#own + 1] = u.part == part and u or nil end
    prepare(t, own, scale, part, #this.parts == 1 and "System-Train" or "System-Train-" .. i)
    for _, u in ipairs(own) do part.update(u, part.options) end
  end

  -- The step counts up when everything that reads it has run.
  local step_name = trace.step_name(t.job)
  local step = variable.system(t, step_name, "int64", {}, 0)
  t:append("assign_add", { step, scaling:step() }, nil, "System-Train-NextStep", "")

  local watched = {}
  for i, handle in ipairs(t.diff_watches) do watched[handle] = gradients[#variables + i] or false end
  return watched
end

return optimizer
