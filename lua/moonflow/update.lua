--- Updates: what a train job does with the gradient of one variable, as ops appended to its graph.
-- An update `u` has the trace `t`; the variable's `id`, `name`, `dtype`, `shape`, `regularizer` and `site`; its
-- `gradient`; the learning `rate`; the `part` of the optimizer that it belongs to; with a dynamic loss scale `finite`,
-- whether it is to happen, and `unscale`, what its gradient is multiplied by; and `rows` where it is by rows.

local core = require "moonflow.core"
local trace = require "moonflow.trace"
local variable = require "moonflow.variable"

local update = {}

local Update = {}
Update.__index = Update

--- One variable's, out of its fields.
function update.new(fields) return setmetatable(fields, Update) end

-- One op of it.
function Update:append(op, inputs, attrs, word)
  return (self.t:append(op, inputs, attrs, self.name .. "-" .. word, self.site))
end

-- What slots are called behind the name of their variable.
local is_slot_word = { momentum = true, m = true, v = true, mean_square = true, mean_gradient = true,
                       square_sum = true }

-- A slot: a variable of the optimizer that belongs to the variable being updated, starting at zero or at `value`.
function Update:slot(word, value)
  assert(is_slot_word[word], word)
  return variable.system(self.t, self.name .. "-" .. word, self.dtype, self.shape, value or 0)
end

--- Does a name look like that of a slot of another one of `values`, { name = ndarray }, whose shape it has?
function update.is_slot(name, values)
  local of, word = name:match("^(.+)%-([%w_]+)$")
  return is_slot_word[word] ~= nil and values[of] ~= nil and values[of].shape == values[name].shape
end

-- The steps that have moved the moment `m` before this one: the job's, and those of the jobs before it that train the
-- variable with moments too. A job that is defined later adds its own, and its steps are not in what this one counts.
function Update:steps_of_moments()
  local t, names = self.t, {}
  for _, job in ipairs(variable.moved_by(t, self.name .. "-m")) do
    if job ~= t.job then names[#names + 1] = trace.step_name(job) end
  end
  local key = table.concat(names, " ")
  if not t.sums_of_steps[key] then  -- one sum for all variables with the same history
    local sum = t:step_id()
    for _, name in ipairs(names) do
      sum = t:append("add", { sum, variable.system(t, name, "int64", {}, 0) }, nil, "System-Train-AllSteps", "")
    end
    t.sums_of_steps[key] = sum
  end
  return t.sums_of_steps[key]
end

-- The places of picks in the order of the rows that they name.
function Update:order_of(picks)
  picks.order = picks.order or self:append("picks_by_row", { picks.indices }, { rows = self.shape[1] }, "order")
  return picks.order
end

-- A number as a constant, of the variable's dtype where none is said.
function Update:number(value, word, dtype)
  return self.t:constant(core.array(value, dtype or self.dtype), nil, self.name .. "-" .. word, "")
end

-- Of two values of one dtype.
for _, op in ipairs { "add", "multiply", "divide" } do
  Update[op] = function(self, a, b, word) return self:append(op, { a, b }, nil, word) end
end

-- A value of dtype `from` in dtype `to`.
function Update:in_dtype(id, from, to, word)
  return from == to and id or self:append("cast", { id }, { dtype = to }, word)
end

-- A float32 scalar, such as the learning rate, in the variable's dtype, for ops that mix the two.
function Update:typed(id, word) return self:in_dtype(id, "float32", self.dtype, word) end

-- ---- rules ---------------------------------------------------------------------------------------------------------
-- Each is called with an update and the options of its optimizer.

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

function update.sgd(u, options)
  if options.momentum == 0 then
    u:append("sgd_update", { u.id, u.gradient, u.rate, u.finite }, nil, "update")
  else
    u:append("momentum_update", { u.id, u:slot("momentum"), u.gradient, u.rate, u.finite },
      { beta = options.momentum, nesterov = options.nesterov }, "update")
  end
end

--- w = w + (what SGD does) - rate * weight_decay * w, with w from before the step.
function update.sgdw(u, options)
  if decays(options, u.name) then
    local decay = u:number(-options.weight_decay, "weight_decay")
    local factor = u:multiply(u:typed(u.rate, "rate"), decay, "decay_rate")
    if u.finite then
      factor = u:multiply(factor, u:typed(u.finite, "finite"), "decay_or_not")
    end
    local change = u:multiply(u.id, factor, "decay")
    update.sgd(u, options)
    u:append("assign_add", { u.id, change }, nil, "decay_update")
  else
    update.sgd(u, options)
  end
end

function update.adam(u, options)
  local m, v = u:slot("m"), u:slot("v")
  u:append("adam_update", { u.id, m, v, u.gradient, u.rate, u:steps_of_moments(), u.finite }, {
    beta1 = options.beta1, beta2 = options.beta2, epsilon = options.epsilon,
    bias_correction = options.do_bias_correction, weight_decay = decays(options, u.name) and options.weight_decay or 0,
  }, "update")
end

--- Of a table from which rows are picked only these; of any other variable as Adam.
function update.lazy_adam(u, options)
  local rows = u.rows
  if not rows then return update.adam(u, options) end
  local m, v = u:slot("m"), u:slot("v")
  u:append("rows_adam_update", { u.id, m, v, rows.dy, u.rate, u:steps_of_moments(), u.unscale, rows.indices,
    u:order_of(rows) }, {
    beta1 = options.beta1, beta2 = options.beta2, epsilon = options.epsilon, gradient_scale = rows.scale,
    bias_correction = true }, "update")
end

-- 1 - beta^t in step t, from 1 on, as a scalar of the variable's dtype: what a mean that started at 0 lacks. It is
-- computed in float64, as it is a small difference at first.
local function correction(u, beta, word)
  local t, steps = u.t, u:steps_of_moments()
  local key = ("%s %.17g %s"):format(steps, beta, u.dtype)
  if not t.corrections[key] then
    local function number(value) return u:number(value, word, "float64") end
    local count = u:add(u:in_dtype(steps, "int64", "float64", word .. "_steps"), number(1), word .. "_count")
    local power = u:append("pow", { number(beta), count }, nil, word .. "_power")
    t.corrections[key] = u:in_dtype(u:append("subtract", { number(1), power }, nil, word), "float64", u.dtype,
      word .. "_cast")
  end
  return t.corrections[key]
end

-- A mean of gradients after this step, `share` of which is the one before it.
local function next_mean(u, slot, share, of, word)
  local old = u:multiply(slot, u:number(share, word .. "_share"), word .. "_old")
  local new = u:multiply(of, u:number(1 - share, word .. "_rest"), word .. "_new")
  return u:add(old, new, word .. "_next")
end

-- Root of the sum of squares, or of their mean: `reduction` is of either.
local function norm(u, id, reduction, word)
  local square = u:append("square", { id }, nil, word .. "_square")
  return u:append("sqrt", { u:append(reduction, { square }, nil, word .. "_reduced") }, nil, word .. "_norm")
end

-- `value` where both norms are above 0, else `otherwise`.
local function where_both(u, weight, gradient, value, otherwise)
  local both = u:multiply(weight, gradient, "ratio_or_not")
  return u:append("where", { u:append("greater", { both, u:number(0, "zero") }, nil, "has_ratio"), value, otherwise },
    nil, "trust")
end

--- Adam's direction, and what decays, as long as the variable times the learning rate.
function update.lamb(u, options)
  local m, v, zero, one = u:slot("m"), u:slot("v"), u:number(0, "zero"), u:number(1, "one")
  local next_m = next_mean(u, m, options.beta1, u.gradient, "m")
  local next_v = next_mean(u, v, options.beta2, u:append("square", { u.gradient }, nil, "gradient_square"), "v")
  local mean = u:divide(next_m, correction(u, options.beta1, "m_correction"), "m_mean")
  local square = u:divide(next_v, correction(u, options.beta2, "v_correction"), "v_mean")
  local root = u:append("sqrt", { square }, nil, "v_root")
  root = u:add(root, u:number(options.epsilon, "epsilon"), "v_below")
  local direction = u:divide(mean, root, "direction")
  if decays(options, u.name) then
    local decay = u:multiply(u.id, u:number(options.weight_decay, "weight_decay"), "decay")
    direction = u:add(direction, decay, "direction_and_decay")
  end
  local weight, step = norm(u, u.id, "reduce_sum", "weight"), norm(u, direction, "reduce_sum", "direction")
  local ratio = u:divide(weight, step, "ratio")
  ratio = where_both(u, weight, step, ratio, one)
  local rate = u:multiply(u:typed(u.rate, "rate"), ratio, "trusted_rate")
  local change = u:append("negative", { u:multiply(direction, rate, "step") }, nil, "change")
  if u.finite then
    local happens = u:append("greater", { u:typed(u.finite, "finite"), zero }, nil, "happens")
    local function or_else(new, old, word) return u:append("where", { happens, new, old }, nil, word) end
    change, next_m, next_v = or_else(change, zero, "change_or_not"), or_else(next_m, m, "m_or_not"),
      or_else(next_v, v, "v_or_not")
  end
  u:append("assign_add", { u.id, change }, nil, "update")
  u:append("assign", { m, next_m }, nil, "m_update")
  u:append("assign", { v, next_v }, nil, "v_update")
end

function update.rmsprop(u, options)
  local mean_gradient = options.centered and u:slot("mean_gradient") or false
  u:append("rmsprop_update", { u.id, u:slot("mean_square"), mean_gradient, u.gradient, u.rate, u.finite },
    { decay_rate = options.decay_rate, epsilon = options.epsilon, centered = options.centered }, "update")
end

function update.adagrad(u, options)
  u:append("adagrad_update", { u.id, u:slot("square_sum", options.initial_accumulator_value), u.gradient, u.rate,
    u.finite }, { epsilon = options.epsilon }, "update")
end

--- Does the rule of an optimizer leave what has no gradient as it is, so that of a table a step need only touch the
--- rows it has picked? LazyAdam does not, and is made to.
function update.keeps_rest(part)
  return part.rule == update.sgd and part.options.momentum == 0 or part.rule == update.adagrad
end

--- The learning rate times coefficient * |w| / (epsilon + |g| + decay * |w|), then momentum, with decoupled decay.
function update.lars(u, options)
  local decay = decays(options, u.name) and options.weight_decay
  local weight, gradient = norm(u, u.id, "reduce_mean", "weight"), norm(u, u.gradient, "reduce_mean", "gradient")
  local above = u:multiply(weight, u:number(options.lars_coefficient, "coefficient"), "lars_above")
  local below = u:add(gradient, u:number(options.epsilon, "epsilon"), "lars_below")
  if decay then
    local part = u:multiply(weight, u:number(decay, "weight_decay"), "lars_decay")
    below = u:add(below, part, "lars_below")
  end
  local ratio = u:divide(above, below, "lars_ratio")
  ratio = where_both(u, weight, gradient, ratio, u:number(1, "one"))
  ratio = u:in_dtype(ratio, u.dtype, "float32", "lars_cast")
  u.rate = u:multiply(u.rate, ratio, "lars_rate")
  update.sgdw(u, { momentum = options.momentum_beta, weight_decay = decay or 0 })
end

return update
