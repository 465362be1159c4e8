--- The loss scale of a job: gradients in half precision are those of a loss that was multiplied, so that small ones
--- have a place there, and are divided again before they are used.

local arguments = require "moonflow.arguments"
local core = require "moonflow.core"
local trace = require "moonflow.trace"
local variable = require "moonflow.variable"

local loss_scale = { policies = {} }

-- ---- what a script says --------------------------------------------------------------------------------------------

local LossScale = { kind = "loss_scale" }
local scale_signature = arguments.signature("flow.optimizer.loss_scale.static_loss_scale",
  { { "loss_scale_factor", "finite", text = "the factor, above 0" } })

--- Multiplies the loss's gradient by a factor that is divided out again before the update.
function loss_scale.policies.static_loss_scale(...)
  local given = scale_signature:parse(...)
  local factor = given.loss_scale_factor
  if factor <= 0 then scale_signature:fail(": the factor must be above 0, got " .. factor) end
  return setmetatable({ factor = factor }, LossScale)
end

local dynamic_signature = arguments.signature("flow.optimizer.loss_scale.dynamic_loss_scale",
  { { "initial_loss_scale", "finite", 2 ^ 30, text = "the scale at the beginning, at least 1" },
    { "increment_period", "integer", 2000, text = "steps in a row without an overflow after which it grows" },
    { "multiplier", "finite", 2, text = "what it grows and falls by, above 1" } })

--- A loss scale that finds its own size, for gradients in half precision. A step with an infinity or a NaN in any
--- variable's gradient changes nothing of weights, slots, running statistics and steps, and divides the scale by
--- `multiplier` (down to 1); what the body itself assigns it does assign.
--- `increment_period` steps in a row without one multiply it. Scale and count of steps are variables of the session,
--- and so belong to a checkpoint.
function loss_scale.policies.dynamic_loss_scale(...)
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

-- ---- what a job does ------------------------------------------------------------------------------------------------

-- What multiplies the seed of the gradients and is divided out of them again.
local Scaling = {}
Scaling.__index = Scaling

--- What a job does by the policy of its optimizer.
function loss_scale.of(t, policy)
  local self = setmetatable({ t = t, factor = policy.factor, dynamic = policy.dynamic }, Scaling)
  if not self.dynamic then return self end
  self.name = "System-Train-DynamicLossScale-" .. trace.variable_part(t.job)
  self.scale = variable.system(t, self.name .. "-LossScale", "float32", {}, self.dynamic.initial_loss_scale)
  self.good_steps = variable.system(t, self.name .. "-GoodStepCounter", "int64", {}, 0)
  return self
end

--- What it does in the gradients that a body asks for itself.
function loss_scale.for_body(t, policy, where)
  if policy.dynamic then
    t:need_training(where .. ": a dynamic loss scale is that of a train job's optimizer",
      "; a static_loss_scale serves in any")
    t.scaled_by = policy
  end
  return loss_scale.of(t, policy)
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

return loss_scale
