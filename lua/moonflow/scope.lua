--- Scopes: where and under which names the ops of a part of the body are made.
-- Each takes a closure, runs it and gives what it returns; the scope ends also when the closure raises.

local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local session = require "moonflow.session"
local trace = require "moonflow.trace"

local scope = {}

local within = trace.within

local function need_body(where, body)
  arguments.check_callable(body, where .. ": the last argument must be the function that runs in the scope")
end

-- ---- placement ----------------------------------------------------------------------------------------------------

local Placement = { kind = "placement" }
Placement.__index = Placement

function Placement.__tostring(self)
  return self.device .. " " .. self.ids
end

-- The index of the gpu that a placement means, which is opened when first asked for. Where there is none the CPU takes
-- its place, which is told once, or refused; then it gives nil.
local function open_gpu(placement)
  local what = "placement \"gpu\", \"" .. placement.ids .. "\""
  local machine, index = placement.ids:match("^(%d+):(%d+)")
  if tonumber(machine) ~= 0 then errors.raise("out_of_range", what .. ": there is one machine, machine 0") end
  if placement.ids:find("[-,]") then
    session.log_once(what .. " runs on gpu " .. index .. " alone; a job on several devices is not possible yet")
  end
  local there, reason, code = session.handle():open_gpu(tonumber(index))
  if there then return tonumber(index) end
  if code ~= "unsupported" then errors.raise(code, what .. ": " .. reason) end
  if session.settings.strict_placement then
    errors.raise("unsupported", "placement \"gpu\" cannot be had: " .. reason
      .. " (flow.config.strict_placement(false) lets it run on the CPU)")
  end
  session.log_once("placement \"gpu\" runs on the CPU: " .. reason)
end

--- A placement: a device tag, "cpu" or "gpu", and "machine:device" numbers.
function scope.new_placement(device, ids, where)
  if device ~= "cpu" and device ~= "gpu" then
    errors.raise("invalid_argument", where .. ": the device must be \"cpu\" or \"gpu\", got "
      .. arguments.describe(device) .. arguments.suggestion(device, { "cpu", "gpu" }))
  end
  if ids == nil then ids = "0:0" end
  local list = type(ids) == "table" and ids or { ids }
  if next(list) == nil then errors.raise("invalid_argument", where .. ": the list of devices is empty") end
  for _, id in ipairs(arguments.check_list(list, where .. ": the list of devices")) do
    if type(id) ~= "string" or not id:match("^%d+:%d+$") and not id:match("^%d+:%d+%-%d+$") then
      errors.raise("invalid_argument", where .. ": devices are named \"machine:device\" or \"machine:first-last\", got "
        .. arguments.describe(id))
    end
  end
  return setmetatable({ device = device, ids = table.concat(list, ",") }, Placement)
end

--- Places the ops made by `body` on a device. Outside of a job, without a body, it gives the placement, for
--- function_config's default_placement_scope.
function scope.placement(device, ids, body)
  if body == nil and type(ids) == "function" then ids, body = nil, ids end
  local placement = scope.new_placement(device, ids, "flow.scope.placement")
  if body == nil and not trace.current() then return placement end
  local t = trace.need("flow.scope.placement")
  need_body("flow.scope.placement", body)
  local where = "cpu"
  if device == "gpu" then where = open_gpu(placement) end
  return within(t.placements, { placement = placement, where = where }, body)
end

--- Enters the default placement of a job: a Placement, or { "gpu", "0:0" }. The CPU as a default has no say against ops
--- that are placed elsewhere.
function scope.enter_default_placement(t, value)
  if value == nil then return end
  if getmetatable(value) ~= Placement then
    if type(value) ~= "table" then
      errors.raise("invalid_argument", "placement must be a list such as { \"cpu\", \"0:0\" }, got "
        .. arguments.describe(value))
    end
    value = scope.new_placement(value[1], value[2], "placement")
  end
  local where
  if value.device == "gpu" then where = open_gpu(value) end
  t.placements[1] = { placement = value, where = where }
end

--- Prefixes the names of variables and ops made by `body` with "name-".
function scope.namespace(name, body)
  local t = trace.need("flow.scope.namespace")
  if type(name) ~= "string" or name == "" then
    errors.raise("invalid_argument", "flow.scope.namespace wants a name, got " .. arguments.describe(name))
  end
  need_body("flow.scope.namespace", body)
  return within(t.namespaces, name, body)
end

--- Lets each layer that `body` makes share the variables of the layer of its name, where the job has one already, which
--- is an error otherwise. So one net is laid over several inputs. Sizes and dtypes must agree; initializers,
--- regularizers and `trainable` are those of the layer that came first. Ops whose name is taken are numbered, as in
--- "conv1-1".
function scope.reuse_variables(body)
  local t = trace.need("flow.scope.reuse_variables")
  need_body("flow.scope.reuse_variables", body)
  return within(t.reuses, true, body)
end

-- ---- memory -------------------------------------------------------------------------------------------------------

local function part_ended(t, fine, ...)
  t.graph:part(0)
  t.in_part = false
  if not fine then error((...), 0) end
  return ...
end

--- Of what `body` computes only its results are kept for gradients; the rest is computed once more when they want it,
--- from what `body` has read. So a deep net whose blocks stand in such scopes takes less memory, and about a third more
--- time, as it goes forward twice: `for i = 1, 24 do x = flow.scope.recompute(function() return block(x, i) end) end`.
--- Random numbers are those of the first time, variables are written once, and what is watched is shown once. A scope
--- within another one changes nothing, nor does one in a job that takes no gradients. Known as activation or gradient
--- checkpointing and as rematerialisation too (Chen and others, "Training deep nets with sublinear memory cost", 2016).
--- @error outside of a job's body; a body that is no function
function scope.recompute(body)
  local t = trace.need("flow.scope.recompute")
  need_body("flow.scope.recompute", body)
  if t.in_part then return body() end
  t.in_part, t.parts = true, t.parts + 1
  t.graph:part(t.parts)
  return part_ended(t, xpcall(body, errors.traced))
end

-- ---- views --------------------------------------------------------------------------------------------------------

local View = { kind = "view" }
View.__index = View
function View.__tostring(self) return self.name end

local function view(name)
  local value = setmetatable({ name = name }, View)
  return function(body)
    if body == nil and not trace.current() then return value end
    local where = "flow.scope." .. name
    local t = trace.need(where)
    need_body(where, body)
    return within(t.views, name, body)
  end
end

--- One logical value over all devices (the default).
scope.consistent_view = view("consistent_view")
--- One value per device; with one device it is the same.
scope.mirrored_view = view("mirrored_view")

local function current_view(name)
  local t = trace.current()
  local top = t and (t.views[#t.views] or t.config.view and t.config.view.name) or "consistent_view"
  return top == name
end

--- Is the innermost view, or else that of the job, the consistent one?
function scope.consistent_view_enabled() return current_view("consistent_view") end
--- Is the innermost view, or else that of the job, the mirrored one?
function scope.mirrored_view_enabled() return current_view("mirrored_view") end

--- The innermost placement, or nil.
function scope.current_placement()
  local t = trace.current()
  local innermost = t and t.placements[#t.placements]
  return innermost and innermost.placement
end

return scope
