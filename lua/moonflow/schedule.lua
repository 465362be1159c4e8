--- Learning-rate schedules and warm-ups, as ops of the graph: step (int64, from 0) -> learning rate (float32 scalar).
-- While a warm-up lasts it overrides the schedule, which is not shifted by it.

local core = require "moonflow.core"
local answer = require "moonflow.answer"
local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"

local schedule = { warmup = {} }

local Scheduler = { kind = "scheduler" }
Scheduler.__index = Scheduler
arguments.publish("Scheduler", "scheduler", Scheduler, "at")
answer(Scheduler, "a schedule", {
  step = "it follows the steps of the job that trains", get_lr = "what it gives is rate:at(step)",
  get_last_lr = "what it gives is rate:at(step)",
})

--- "0.1", or "schedule_cosine from 0.1".
function Scheduler:__tostring()
  if self.blob then return "'" .. self.blob.name .. "'" end
  return (self.op and self.op .. " from " or "") .. self.base_lr .. (self.warmup and ", after a warmup" or "")
end

local Warmup = { kind = "warmup" }
Warmup.__index = Warmup

local function scalar(t, value)
  return t:constant(core.array(value, "float32"))
end

local function append(t, op, inputs, attrs)
  local name = t:claim(nil, op, "")
  return (t:append(op, inputs, attrs, name, ""))
end

-- A value of the job as a float32 scalar.
local function lower_blob(t, rate, where)
  local id = blob.id_of(rate, t, where)
  if rate.dtype ~= "float32" then id = append(t, "cast", { id }, { dtype = "float32" }) end
  return #rate.shape == 0 and id or append(t, "reshape", { id }, { shape = {} })
end

--- The id of the learning rate in the graph of a train job.
function Scheduler:lower(t)
  if self.blob then return lower_blob(t, self.blob, self.where) end
  local rate = self.op and append(t, self.op, { t:step_id() }, self.attrs) or scalar(t, self.base_lr)
  local warmup = self.warmup
  if not warmup then return rate end
  warmup.attrs.base_lr = self.base_lr
  return append(t, warmup.op, { t:step_id(), rate }, warmup.attrs)
end

local at_signature = arguments.signature("scheduler:at", { { "step", "integer" } })
--- The rate that step `step` has, from 0 on, as a number: for a log, or to see a schedule before it is used.
--- @return number
--- @error a step below 0; a rate that is a value of the job
function Scheduler:at(...)
  local number = at_signature:parse(...).step
  if number < 0 then at_signature:fail(": steps count from 0, got " .. number) end
  local step = core.array(number, "int64", {})
  if self.blob then
    errors.raise("wrong_state", ("the learning rate is '%s', a value of the job; watch or return it")
      :format(self.blob.name))
  end
  local rate = self.op and ndarray.evaluate(self.op, { step }, self.attrs) or core.array(self.base_lr, "float32", {})
  local warmup = self.warmup
  if warmup then
    warmup.attrs.base_lr = self.base_lr
    rate = ndarray.evaluate(warmup.op, { step, rate }, warmup.attrs)
  end
  return rate:item()
end

local function new(op, base_lr, attrs, warmup)
  if warmup and warmup.attrs.steps == 0 then warmup = nil end
  return setmetatable({ op = op, base_lr = base_lr, attrs = attrs, warmup = warmup }, Scheduler)
end

--- A scheduler out of one, a fixed learning rate out of a number, or what a value of the job is in each run.
function schedule.from(value, where)
  if getmetatable(value) == Scheduler then return value end
  if type(value) == "number" then
    if value - value ~= 0 then
      errors.raise("invalid_argument", where .. ": a learning rate must be a finite number, got " .. tostring(value))
    elseif value < 0 then
      errors.raise("invalid_argument", where .. ": a learning rate must be 0 or more, got " .. value
        .. "; minimize(-x) makes x grow")
    end
    return new(nil, value)
  end
  if blob.is(value) then
    if not dtypes.floating[value.dtype] or value.shape:count() ~= 1 then
      errors.raise("invalid_argument", where .. ": a learning rate is one floating-point number, and '" .. value.name
        .. "' is " .. value.dtype .. " " .. tostring(value.shape))
    end
    return setmetatable({ blob = value, where = where }, Scheduler)
  end
  errors.raise("invalid_argument", where .. ": lr_scheduler must be a scheduler such as "
    .. "flow.optimizer.CosineScheduler, a number, or a value of the job, got " .. arguments.describe(value))
end

-- What help says of parameters that mean the same in several schedules.
local texts = {
  base_lr = "the learning rate at the beginning",
  steps = "how many steps it takes",
  boundaries = "the last step of each piece but the last one, rising",
  decay_rate = "strength of the decay",
  staircase = "decay in jumps, every `steps` steps",
  warmup = "what the first steps have in its place, such as flow.optimizer.warmup.linear(100, 0.1)",
}

local function define(name, parameters, make)
  parameters[#parameters + 1] = { "warmup", "warmup?" }
  arguments.explain(parameters, texts)
  local signature = arguments.signature("flow.optimizer." .. name, parameters)
  schedule[name] = function(...)
    local given = signature:parse(...)
    if given.steps and given.steps < 1 then signature:fail(": steps must be at least 1, got " .. given.steps) end
    for _, word in ipairs { "base_lr", "end_learning_rate", "decay_rate", "power", "alpha", "beta" } do
      local may_grow = word == "decay_rate" and name == "NaturalExpScheduler"  -- exp(t) is a rate as good as any
      if (given[word] or 0) < 0 and not may_grow then
        signature:fail((": %s must be 0 or more, got %g"):format(word, given[word]))
      end
    end
    return make(given, signature)
  end
end

-- The numbers of a list, finite and none of them below 0.
local function no_negative(list, name, signature)
  local numbers = arguments.flat_list(list)
  for _, number in ipairs(numbers) do
    if not (number >= 0 and number < math.huge) then
      signature:fail((": %s are finite and 0 or more, got %g"):format(name, number))
    end
  end
  return numbers
end

-- The steps at which pieces end.
local function boundaries_of(given, signature)
  local list = no_negative(given.boundaries, "boundaries", signature)
  for i, step in ipairs(list) do
    if step % 1 ~= 0 then signature:fail((": boundaries are steps, whole numbers, got %g"):format(step)) end
    if i > 1 and step <= list[i - 1] then signature:fail(": boundaries must rise") end
  end
  return list
end

--- Learning rates by pieces: values[i] up to and including step boundaries[i], with steps from 0 on; the last value
--- afterwards.
--- `PiecewiseConstantScheduler({}, { 0.1 })` is a fixed rate.
define("PiecewiseConstantScheduler", {
  { "boundaries", "list" }, { "values", "list", text = "learning rates, one more than boundaries" },
}, function(given, signature)
  local boundaries = boundaries_of(given, signature)
  local values = no_negative(given.values, "values", signature)
  if #values ~= #boundaries + 1 then
    signature:fail(": " .. #boundaries .. " boundaries need " .. #boundaries + 1 .. " values, got " .. #values)
  end
  if #boundaries == 0 then return new(nil, values[1], nil, given.warmup) end
  return new("schedule_piecewise_constant", values[1], { boundaries = boundaries, values = values }, given.warmup)
end)

--- A learning rate by pieces: base_lr, times scale[i] from after step boundaries[i] on; one number scales again at each
--- boundary.
define("PiecewiseScalingScheduler", {
    { "base_lr", "finite" }, { "boundaries", "list" },
    { "scale", "list", text = "a factor of base_lr for each boundary, or one number" },
  },
  function(given, signature)
    local boundaries = boundaries_of(given, signature)
    local scale = no_negative(given.scale, "scale", signature)
    if type(given.scale) == "number" then
      for i = 2, #boundaries do scale[i] = scale[1] ^ i end
    end
    if #scale ~= #boundaries then
      signature:fail(": " .. #boundaries .. " boundaries need as many scales, got " .. #scale)
    end
    return new("schedule_piecewise_scaling", given.base_lr,
      { base_lr = given.base_lr, boundaries = boundaries, scale = scale }, given.warmup)
  end)

-- Those whose attributes are the arguments as they are.
local function plain(name, op, parameters)
  table.insert(parameters, 1, { "base_lr", "finite" })
  table.insert(parameters, 2, { "steps", "integer" })
  define(name, parameters, function(given)
    local attrs = {}
    for key, value in pairs(given) do
      if key ~= "warmup" then attrs[key] = value end
    end
    return new(op, given.base_lr, attrs, given.warmup)
  end)
end

--- Cosine annealing: a rate that falls by half a wave, from base_lr to alpha * base_lr at step `steps`, and stays:
---   base_lr * ((1 - alpha) * (1 + cos(pi * min(t, steps) / steps)) / 2 + alpha) in step t, from 0 on.
plain("CosineScheduler", "schedule_cosine",
  { { "alpha", "finite", 0, text = "share of base_lr that is left at the end" } })
--- A learning rate that goes by a cosine wave under a falling line:
---   base_lr * ((alpha + 1 - p) * (1 + cos(2 pi * num_periods * p)) / 2 + beta), p = min(t, steps) / steps.
plain("LinearCosineScheduler", "schedule_linear_cosine", {
  { "num_periods", "finite", 0.5, text = "how many waves" }, { "alpha", "finite", 0, text = "added to the line" },
  { "beta", "finite", 0.001, text = "added to the product" },
})
--- A learning rate that decays: base_lr * decay_rate ^ (t / steps) in step t, from 0 on; staircase: whole powers only.
plain("ExponentialScheduler", "schedule_exponential", { { "decay_rate", "finite" }, { "staircase", "boolean", false } })
--- A learning rate that decays with time: base_lr / (1 + decay_rate * t / steps) in step t, from 0 on; staircase: with
--- floor(t / steps).
plain("InverseTimeScheduler", "schedule_inverse_time",
  { { "decay_rate", "finite" }, { "staircase", "boolean", false } })
--- A learning rate that decays: base_lr * exp(-decay_rate * t / steps) in step t, from 0 on; staircase: with
--- floor(t / steps).
plain("NaturalExpScheduler", "schedule_natural_exp", { { "decay_rate", "finite" }, { "staircase", "boolean", false } })
--- A learning rate that falls from base_lr to end_learning_rate, in step t from 0 on:
---   (base_lr - end_learning_rate) * (1 - min(t, n) / n) ^ power + end_learning_rate
---   with n = steps, or with cycle steps * max(1, ceil(t / steps))
plain("PolynomialScheduler", "schedule_polynomial", {
  { "end_learning_rate", "finite", 0.0001, text = "the learning rate at the end" },
  { "power", "finite", 1, text = "1 is a straight line" },
  { "cycle", "boolean", false, text = "start again each time the end is reached, over one length more" },
})
--- PolynomialScheduler in the original's spelling.
schedule.PolynomialSchduler = schedule.PolynomialScheduler

-- ---- warm-ups -----------------------------------------------------------------------------------------------------

local function define_warmup(name, parameter, make)
  local signature = arguments.signature("flow.optimizer.warmup." .. name, {
    { "steps", "integer", text = "how many steps it lasts; 0 is no warm-up" },
    { parameter, "finite", text = "share of the schedule's base_lr at the beginning" },
  })
  schedule.warmup[name] = function(...)
    local given = signature:parse(...)
    if given.steps < 0 then signature:fail(": steps must be 0 or more, got " .. given.steps) end
    return setmetatable(make(given, signature), Warmup)
  end
end

--- A lower learning rate at first: base_lr * multiplier while t < steps; then the schedule as it is from there on.
define_warmup("constant", "multiplier", function(given, signature)
  if given.multiplier <= 0 or given.multiplier >= 1 then
    signature:fail(": multiplier must lie between 0 and 1, got " .. given.multiplier)
  end
  return { op = "schedule_warmup_constant", attrs = { steps = given.steps, multiplier = given.multiplier } }
end)

--- A learning rate that rises in a line, from base_lr * start_multiplier to base_lr, while t < steps; then the schedule
--- as it is from there on.
define_warmup("linear", "start_multiplier", function(given, signature)
  if given.start_multiplier < 0 or given.start_multiplier >= 1 then
    signature:fail(": start_multiplier must lie in [0, 1), got " .. given.start_multiplier)
  end
  return { op = "schedule_warmup_linear",
           attrs = { steps = given.steps, start_multiplier = given.start_multiplier } }
end)

return schedule
