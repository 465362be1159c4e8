--- Losses of the oldest dialect: marked here, minimised as config.train says.

local arguments = require "moonflow.arguments"
local optimizer = require "moonflow.optimizer"

local losses = {}

local signature = arguments.signature("flow.losses.add_loss", { { "loss", "any" } })

--- Marks a value as a loss of the job, which config.train's settings minimise. Each of several gets a call of its own.
function losses.add_loss(loss, ...)
  if ... ~= nil then signature:too_many(1 + select("#", ...), "; each loss gets a call of its own") end
  return optimizer.add_loss(loss, "flow.losses.add_loss")
end

return losses
