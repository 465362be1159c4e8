--- Regularisers: what is added to the gradient of a variable, l1 * sign(w) + l2 * w.

local arguments = require "moonflow.arguments"

local regularizer = {}

local Regularizer = { kind = "regularizer" }
Regularizer.__index = Regularizer

function Regularizer.__tostring(self)
  return "l1_l2(" .. self.l1 .. ", " .. self.l2 .. ")"
end

local function new(l1, l2)
  return setmetatable({ l1 = l1, l2 = l2 }, Regularizer)
end

local l1 = arguments.signature("flow.regularizers.l1", { { "l", "finite", 0.01 } })
local l2 = arguments.signature("flow.regularizers.l2", { { "l", "finite", 0.01 } })
local l1_l2 = arguments.signature("flow.regularizers.l1_l2", { { "l1", "finite", 0.01 }, { "l2", "finite", 0.01 } })

--- L1 regularisation: adds l * sign(w) to the gradient of w, which is the gradient of l * |w|.
function regularizer.l1(...) return new(l1:parse(...).l, 0) end
--- L2 regularisation: adds l * w to the gradient of w, which is the gradient of l / 2 * w^2 (Keras: of l * w^2).
function regularizer.l2(...) return new(0, l2:parse(...).l) end

--- L1 and L2 regularisation: adds l1 * sign(w) + l2 * w to the gradient of w.
function regularizer.l1_l2(...)
  local given = l1_l2:parse(...)
  return new(given.l1, given.l2)
end

return regularizer
