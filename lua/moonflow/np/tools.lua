--- How arrays compute, for formulas.

local core = require "moonflow.core"
local ndarray = require "moonflow.ndarray"

local Tools = {}
Tools.__index = Tools

function Tools:apply(op, inputs, attrs) return (ndarray.evaluate(op, inputs, attrs, self.signature.where)) end

function Tools:pick(x, axis, indices)
  return self:apply("gather", { x, core.array(indices, "int64") }, { axis = axis })
end

function Tools:check_list(count) self.signature:check_list(count) end

--- Those of the function with that signature, which their errors name.
return function(signature) return setmetatable({ signature = signature }, Tools) end
