--- Losses of the oldest dialect: marked here, minimised as config.train says.

local optimizer = require "moonflow.optimizer"

local losses = {}

--- Marks a value as a loss of the job, which config.train's settings minimise.
function losses.add_loss(loss)
  return optimizer.add_loss(loss, "flow.losses.add_loss")
end

return losses
