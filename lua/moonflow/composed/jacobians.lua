--- All partial derivatives of a value of the job: flow.jacobian, and for each sample of a batch flow.batch_jacobian.

local blob = require "moonflow.blob"
local errors = require "moonflow.errors"
local gradients = require "moonflow.gradients"
local ops = require "moonflow.ops"

local flow = ops.functions

-- Raises where there is no gradient, and why. The first one is dropped.
local function check_derivative(y, x, t, signature)
  local from, to = blob.id_of(x, t, signature.where), blob.id_of(y, t, signature.where)
  if not t.graph:computed_from({ from }, { to })[1] then
    local is_reverse = t.graph:computed_from({ to }, { from })[1]
    signature:fail((": '%s' does not depend on '%s'%s"):format(y.name, x.name, is_reverse
      and "; y, which is computed from x, is the first argument"
      or '; with unconnected_gradients = "zero" what changes with nothing gives zeros'))
  end
  local fine, problem = pcall(gradients, y, x)
  if fine then return end
  if errors.is_error(problem) then problem.message = problem.message:gsub("^flow%.gradients", signature.where) end
  error(problem, 0)
end

-- y's elements, one of each of `rows` at a time, have a gradient each, which are put side by side.
local function derivatives(given, rows, elements, axis, shape, t, signature)
  local count = 1
  for _, size in ipairs(elements) do count = count * size end
  if count == 0 then signature:fail((": '%s' %s has no elements"):format(given.y.name, tostring(given.y.shape))) end
  signature:check_list(count)
  local options = { unconnected_gradients = given.unconnected_gradients }
  if options.unconnected_gradients ~= "zero" then check_derivative(given.y, given.x, t, signature) end
  local flat = flow.reshape(given.y, { rows, count })
  local parts = {}
  for i = 1, count do parts[i] = gradients(flow.slice(flat, { 0, i - 1 }, { rows, 1 }), given.x, options) end
  return flow.reshape(flow.stack(parts, axis), shape, { name = given.name or t:unnamed("Jacobian") })
end

local function joined(...)
  local sizes = {}
  for _, list in ipairs { ... } do
    for _, size in ipairs(list) do sizes[#sizes + 1] = size end
  end
  return sizes
end

local unconnected = { "unconnected_gradients", "string", "none" }

local how_text = [[
defaults: unconnected_gradients = "none"; with "zero" what does not change with x, as the slope of what is linear, gives
  zeros in place of an error
dtypes: float32, float64, bfloat16 or float16
errors: y has no elements; what flow.gradients refuses
note: one way back for each element of y, so it is for a few dozen of them, and a plan grows with their number]]

ops.define("jacobian", { { "y", "blob" }, { "x", "blob" }, unconnected }, [[
How each element of y changes with each element of x.
  out[i..., j...] = d y[i...] / d x[j...]
The Hessian of a loss is flow.jacobian(flow.gradients(loss, x), x).
shapes: y (a...), x (b...) -> (a..., b...)
]] .. how_text,
function(given, t, signature)
  local y, x = given.y.shape:table(), given.x.shape:table()
  return derivatives(given, 1, y, 0, joined(y, x), t, signature)
end)

ops.define("batch_jacobian", { { "y", "blob" }, { "x", "blob" }, unconnected }, [[
How each element of a sample of y changes with each element of the same sample of x, where samples do not depend on one
another.
  out[n, i..., j...] = d y[n, i...] / d x[n, j...]
shapes: y (batch, a...), x (batch, b...) -> (batch, a..., b...)
]] .. how_text .. "; samples that do depend on one another, as by a batch norm in training, are summed over",
function(given, t, signature)
  local y, x = given.y.shape:table(), given.x.shape:table()
  local rows = table.remove(y, 1)
  if not rows or table.remove(x, 1) ~= rows then
    signature:fail((": '%s' is %s and '%s' is %s, wanted one batch as the first axis of both"):format(given.y.name,
      tostring(given.y.shape), given.x.name, tostring(given.x.shape)))
  end
  return derivatives(given, rows, y, 1, joined({ rows }, y, x), t, signature)
end)
