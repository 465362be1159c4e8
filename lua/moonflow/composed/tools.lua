--- How the body of a job computes, for formulas.

local core = require "moonflow.core"
local blob = require "moonflow.blob"
local ops = require "moonflow.ops"

local Tools = {}
Tools.__index = Tools

--- One op, of values and of arrays, which are constants of the job.
--- @param word? string  what its name ends in, which may come more than once; without one it has the name of the whole
function Tools:apply(op, inputs, attrs, word)
  for i, value in ipairs(inputs) do
    if not blob.is(value) then inputs[i] = ops.constant(self.trace, value) end
  end
  if not word then return (ops.apply(op, inputs, attrs, self.name)) end
  self.count = self.count + 1
  return (ops.apply(op, inputs, attrs, self.name .. "-" .. word .. self.count))
end

--- The places with these numbers along an axis.
function Tools:pick(x, axis, indices, word)
  return self:apply("gather", { x, core.array(indices, "int64") }, { axis = axis }, word)
end

function Tools:check_list(count) self.signature:check_list(count) end

local tools = {}

--- Those of one function that is called `name`.
function tools.new(t, signature, name)
  return setmetatable({ trace = t, signature = signature, name = name, count = 0 }, Tools)
end

--- make(tools, ...) of volumes and filters whose channels come first. With `is_last` they, and what it gives, have
--- them last.
function tools.with_channels_first(t, signature, values, name, is_last, make)
  if not is_last then return make(tools.new(t, signature, name), unpack(values)) end
  local of_job, firsts = tools.new(t, signature, name .. "-first"), {}
  for i, value in ipairs(values) do
    firsts[i] = of_job:apply("transpose", { value }, { perm = { 0, 4, 1, 2, 3 } }, "channels_first")
  end
  return (ops.apply("transpose", { make(of_job, unpack(firsts)) }, { perm = { 0, 2, 3, 4, 1 } }, name))
end

return tools
