--- Losses of the oldest dialect: marked here, minimised as config.train says.

local optimizer = require "moonflow.optimizer"

return { add_loss = function(loss) return optimizer.add_loss(loss, "flow.losses.add_loss") end }
