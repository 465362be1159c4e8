--- Gradients as values of a job: flow.gradients. The engine appends them while the body is traced, so what it gives may
-- be returned, watched, computed with, and minimised.

local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local loss_scale = require "moonflow.loss_scale"
local ops = require "moonflow.ops"
local trace = require "moonflow.trace"

local where = "flow.gradients"

local signature = arguments.signature(where, {
  { "losses", "any" }, { "values", "any" }, { "grad_ys", "any?" }, { "name", "string?" },
  { "loss_scale_policy", "loss_scale?" }, { "unconnected_gradients", "string", "none" },
})

local kDeepest = 8  -- of nested lists; one may hold itself

-- Appends what `given`, a blob or a list that may hold lists, has of blobs to `list`. `entry` is its place, "2.1".
local function collect(given, list, name, entry, depth)
  if depth > kDeepest then signature:fail(": " .. name .. " are nested more than 8 deep") end
  if blob.is(given) then
    list[#list + 1] = given
  elseif type(given) ~= "table" or getmetatable(given) then
    signature:fail(": " .. (entry and "entry " .. entry .. " of " or "") .. name .. " must be a blob"
      .. (entry and "" or " or a list of blobs") .. ", got " .. arguments.describe(given))
  else
    for i, value in ipairs(arguments.check_list(given, where .. ": the list of " .. name)) do
      collect(value, list, name, (entry and entry .. "." or "") .. i, depth + 1)
    end
  end
  return list
end

-- The entries of `list` in the form of `given`, from the place after `taken` on.
local function in_form_of(given, list, taken)
  if blob.is(given) then return list[taken + 1], taken + 1 end
  local form = {}
  for i, part in ipairs(given) do form[i], taken = in_form_of(part, list, taken) end
  return form, taken
end

-- A blob, or the blobs of a list and of the lists in it, as a list.
local function list_of(given, name, t)
  local list = collect(given, {}, name, nil, 0)
  if #list == 0 then signature:fail(": " .. name .. " must be a blob or a list of blobs, got an empty one") end
  for _, value in ipairs(list) do
    blob.id_of(value, t, where)
    if not dtypes.floating[value.dtype] then
      errors.raise("dtype_mismatch", where .. ": '" .. value.name .. "' among the " .. name .. " is " .. value.dtype
        .. "; only floats have gradients")
    end
  end
  return list
end

-- The gradient that a loss starts with: ones, or what the caller gives.
local function start_of(loss, given, t, site)
  if not given or type(given) == "number" then
    return (t:append("constant", {}, { value = given or 1, dtype = loss.dtype, shape = loss.shape:table() },
      t:scoped(t:unnamed("GradientStart")), site))
  end
  local id = blob.operand(given, t, loss.dtype, where .. ": grad_ys")
  local dtype, shape = t.graph:type(id)
  if dtype ~= loss.dtype or shape ~= loss.shape then
    errors.raise("shape_mismatch", where .. ": the entry of grad_ys for '" .. loss.name .. "' is " .. dtype .. " "
      .. tostring(shape) .. ", and the loss is " .. loss.dtype .. " " .. tostring(loss.shape))
  end
  return id
end

local function starts_of(losses, grad_ys, scaling, t, site)
  local given = grad_ys
  if type(given) ~= "table" or getmetatable(given) then given = { grad_ys } end
  if grad_ys ~= nil and #given ~= #losses then
    signature:fail((": grad_ys must be one for each loss, got %d for %d"):format(#given, #losses))
  end
  local starts = {}
  for i, loss in ipairs(losses) do
    local start = start_of(loss, given[i], t, site)
    starts[i] = scaling and scaling:times(start, loss.dtype, t:scoped(t:unnamed("GradientScale")), site) or start
  end
  return starts
end

local function names_of(list)
  local names = {}
  for i, value in ipairs(list) do names[i] = "'" .. value.name .. "'" end
  return table.concat(names, ", ")
end

-- Raises that a value has no gradient, and why, where zeros are not wanted then. Where all ops on the way have one, it
-- is 0 by their own rules.
local function zeros_or_why_not(losses, ids, value, t, name, site, wants_zeros)
  local function zeros() return (t:append("zeros_like", { value.id }, nil, name .. "_zeros", site)) end
  if wants_zeros then return zeros() end
  local told, one = where .. ": " .. names_of(losses), #losses == 1
  local made = value.site and value.site ~= "" and " (made at " .. value.site .. ")" or ""
  local depends = false
  for _, is in ipairs(t.graph:computed_from({ value.id }, ids)) do depends = depends or is end
  if not depends then
    errors.raise("invalid_argument", told .. (one and " does" or " do") .. " not depend on '" .. value.name
      .. "'" .. made .. ", so there is no gradient; compute the loss from it, leave it out of the values, or say "
      .. 'unconnected_gradients = "zero"', site)
  end
  local op, line = t.graph:stops_gradient(ids, value.id)
  if op then
    errors.raise("invalid_argument", told .. (one and " depends" or " depend") .. " on '" .. value.name .. "'" .. made
      .. " only by ways that let no gradient by, such as " .. op .. (line ~= "" and " (" .. line .. ")" or "")
      .. "; use an op that has a gradient there, leave it out of the values, or say "
      .. 'unconnected_gradients = "zero"', site)
  end
  return zeros()
end

--- Gradients of the sum of all elements of `losses`, as values of the job.
local function gradients(...)
  local t = trace.need(where)
  local given = signature:parse(...)
  local unconnected = given.unconnected_gradients
  if unconnected ~= "none" and unconnected ~= "zero" then
    signature:fail((': unconnected_gradients is "none" or "zero", got "%s"'):format(unconnected))
  end
  local site = errors.site()
  local losses, values = list_of(given.losses, "losses", t), list_of(given.values, "values", t)
  local loss_ids, value_ids = {}, {}
  for i, loss in ipairs(losses) do loss_ids[i] = loss.id end
  for i, value in ipairs(values) do value_ids[i] = value.id end
  t.asks_gradients = true
  local scaling = given.loss_scale_policy and loss_scale.for_body(t, given.loss_scale_policy, where)
  local found = t.graph:gradients(loss_ids, starts_of(losses, given.grad_ys, scaling, t, site), value_ids)
  local results = {}
  for i, value in ipairs(values) do
    local name = t:claim(given.name and #values > 1 and given.name .. "_" .. i or given.name, "gradients", site)
    local id = found[i] or zeros_or_why_not(losses, loss_ids, value, t, name, site, unconnected == "zero")
    if scaling and found[i] then id = scaling:undone(id, value.dtype, name .. "_unscaled", site) end
    results[i] = blob.new(t, t:append("identity", { id }, nil, name, site), name, site)
  end
  return (in_form_of(given.values, results, 0))
end

ops.document(gradients, where, signature, [[
The gradients of losses with respect to values of the job, as values of the job.
  out[i] = d(sum over all losses l of sum(l * grad_y of l)) / d(values[i])
They are returned, watched and computed with like any others. A loss made of them may be minimised, or differentiated
again, by ops whose gradients have gradients; flow.stop_gradient makes a constant of one. They are of the whole sum,
whatever an optimizer of the job does: neither divided by the number of losses, nor scaled, nor clipped. A train job
that takes them may minimise nothing and make the step itself, with flow.assign.
With a loss_scale_policy, as optimizers take it, the way back is scaled in between and the result is not: in float16
what would vanish on the way comes through. A dynamic one is the optimizer's own, and both are given the same: where
gradients overflow that the loss is made of, the step is left out and the scale falls.
shapes: losses and values are a blob or a list of blobs, which may be nested: inputs, results of ops, variables -> a
  blob or a list in the form of `values`, each of its value's shape
dtypes: float32, float64, bfloat16, float16
defaults: grad_ys = ones; else a number, array or blob for each loss, of its shape; no loss_scale_policy;
  unconnected_gradients = "none", with "zero" the first errors below are zeros
errors: a value that no loss depends on, or only through ops that let no gradient by (argmax, stop_gradient, floor);
  an op on the way of a second gradient that has none. Where that is 0 all over, as of relu, it is zeros]])

return gradients
