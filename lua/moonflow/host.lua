--- What the C interface asks of the Lua side. Each function is called protected, on the thread that owns the session.
-- A job's results cross as a flat list of arrays, in the order of its signature, whatever its type of return is.

local core = require "moonflow.core"
local checkpoint = require "moonflow.checkpoint"
local config = require "moonflow.config"
local errors = require "moonflow.errors"
local handlers = require "moonflow.handlers"
local job = require "moonflow.job"
local prepared = require "moonflow.prepared"
local random_seed = require "moonflow.random_seed"
local session = require "moonflow.session"
local trace = require "moonflow.trace"
local typing = require "moonflow.typing"
local variable = require "moonflow.variable"
local debug = debug

local host = {}

-- ---- errors -------------------------------------------------------------------------------------------------------

--- Message handler of every call: keeps an error object, makes one of anything else, and adds the traceback.
function host.traced(value)
  local defining, traceback = errors.take_definition(value)
  if errors.is_error(value) then
    value.defining = value.defining or defining
    return errors.traced(value)
  end
  local message = errors.text(value)
  local where, rest = message:match("^([^\n]-:%d+): (.*)$")
  rest = rest or message
  local made = errors.new(errors.is_out_of_memory(rest) and "out_of_memory" or "script_error", rest, where)
  made.defining, made.traceback = defining, traceback or debug.traceback("", 2)
  return made
end

local function described(value)
  if type(value) ~= "table" then value = { code = "script_error", message = errors.text(value) } end
  local parts = {}
  for _, field in ipairs { "where", "job", "op", "message" } do
    local part = value[field]
    if part and part ~= "" then parts[#parts + 1] = errors.text(part) end
  end
  local traceback = value.traceback
  if type(traceback) == "string" then traceback = errors.folded(traceback:match("^\n?(.*)$")) end
  local job_name = value.job ~= "" and value.job or value.defining
  return { code = value.code, text = table.concat(parts, ": "), where = value.where, job = job_name, op = value.op,
           traceback = traceback }
end

--- The error and those that waited with it, first things first: a list of { code, text, where, job, op, traceback }.
function host.describe(value)
  local list = { described(value) }
  for _, other in ipairs(type(value) == "table" and value.also or {}) do list[#list + 1] = described(other) end
  return list
end

-- ---- the session --------------------------------------------------------------------------------------------------

-- Waiter of the runs that a host has launched, where Lua meets them first: in a call that waits, or because something
-- in them is watched, which only Lua can deliver. host.receive(run, i, value) takes the i-th result of a run; with 0
-- its end, and what it failed with.
local HostRun = {}
HostRun.__index = HostRun

function HostRun:take(token, value, sequence)
  local plan = self.plan
  if plan and plan.watches[token] then
    plan:take(nil, token, value, sequence)
  else
    host.receive(session.handing(), token - (plan and plan.watch_count or 0), value)
  end
end

function HostRun.finish(_, problem, sequence)
  handlers.call(host.receive, "the result function of a host", sequence, nil, session.handing(), 0, problem)
end

local closings = 0  -- sessions that have ended, and their jobs with them
session.on_close(function()
  closings = closings + 1
  host.kept = {}
  if host.forget then host.forget() end
end)

--- Where C says that a function of the host runs.
host.delivering = handlers.slot

--- Is a handler running now?
host.inside_handler = handlers.running

--- Host mode: asynchronous calls never wait. `log` takes lines; `threads` = 0 leaves the choice; `receive` takes what
--- the host's runs give, and `forget` is called when they come to nothing.
function host.open(threads, log, receive, forget)
  host.receive, host.forget = receive, forget
  session.otherwise(setmetatable({}, HostRun))
  config.pump("host")
  config.log(log)
  if threads > 0 and threads ~= session.settings.threads then
    if next(job.named) then
      errors.raise("wrong_state", "this lua_State has jobs already, so its number of threads stands; give threads = 0")
    end
    config.cpu_threads(threads)
  end
  session.handle()
end

function host.close()
  host.receive, host.forget = nil, nil
  session.otherwise(nil)
  config.log(nil)
  session.shutdown()
end

--- The engine again, after a script has ended the session.
host.reopen = session.handle

host.poll = session.poll
host.sync = session.sync
host.fd = session.fd
host.in_flight = session.in_flight

-- ---- scripts ------------------------------------------------------------------------------------------------------

--- Name of a chunk -> the jobs it defined; without this they would be collected.
host.kept = {}

-- Lets go of jobs whose names mean others by now, and of chunks that have none left: a host may number its chunks.
local function forget_replaced()
  for chunk_name, jobs in pairs(host.kept) do
    for i = #jobs, 1, -1 do
      if job.named[jobs[i].name] ~= jobs[i] then table.remove(jobs, i) end
    end
    if not jobs[1] then host.kept[chunk_name] = nil end
  end
end

--- Runs a chunk and keeps the jobs it defines until a chunk of the same name has run to its end, or their names have
--- been given to others. When it fails, the jobs that were there before it stay what their names mean, unless it has
--- ended their session.
function host.load(chunk, name)
  local made, before, closings_before = {}, {}, closings
  local outer_define = job.on_define -- of a file whose function of the host loads this one
  job.on_define = function(defined, earlier)
    made[#made + 1] = defined
    if before[defined.name] == nil then before[defined.name] = earlier or false end
  end
  local outer = trace.current()
  local fine, problem = xpcall(chunk, host.traced)
  job.on_define = outer_define
  if not fine then trace.abandon(outer) end
  if fine then
    host.kept[name] = made
    if not outer_define then forget_replaced() end  -- a file that fails later gets those before it back
    return
  end
  local lives_on = closings == closings_before
  for job_name, earlier in pairs(before) do job.give_name(job_name, lives_on and earlier or nil) end
  error(problem, 0)
end

-- ---- jobs ---------------------------------------------------------------------------------------------------------

--- The names of all jobs, and a number that tells their lists apart; nothing where that is the one known.
function host.names(known)
  if known == job.changes then return nil end
  return job.names(), job.changes
end

function host.find(name)
  return job.find(name)
end

local function type_of(name, dtype, shape)
  return { name = name, dtype = dtype, shape = shape }
end

local function outputs_of(plan)
  local outputs, keys = {}, typing.keys(plan.skeleton)
  for i, result in ipairs(plan.results) do outputs[i] = type_of(keys[i] or result.name, result.dtype, result.shape) end
  return outputs
end

--- Inputs and outputs: two lists of { name, dtype, shape (list) }; and whether other shapes may come. What a Dict has
--- goes by its keys.
function host.signature(of)
  local inputs = {}
  for i, leaf in ipairs(of.leaves) do inputs[i] = type_of(leaf.name, leaf.placeholder.dtype, leaf.shape) end
  return inputs, outputs_of(of.plan), of.dynamic
end

--- The outputs of a call with these arrays, where other shapes may come.
function host.outputs(of, ...)
  return outputs_of(of:plan_flat(...))
end

--- Runs a job to its end and gives its results one by one.
function host.call(of, ...)
  return of:run_flat(...)
end

--- Starts a run. Gives its number, and whether only Lua can deliver it; nothing when too much is in flight.
function host.launch(of, ...)
  local run, plan = of:start_flat(...)
  if not run then return nil end
  local watched = plan:is_watched()
  if watched then session.expect(run, setmetatable({ plan = plan }, HostRun)) end
  return run, watched
end

host.parts = prepared.parts

-- ---- variables ----------------------------------------------------------------------------------------------------

host.initialise = variable.initialise

function host.save(path, overwrite)
  checkpoint.CheckPoint():save(path, overwrite)
end

function host.load_checkpoint(path)
  checkpoint.CheckPoint():load(path)
end

--- What a checkpoint tells beside the variables.
function host.meta()
  return random_seed.text(), core.version
end

--- Sets the variables to those of a checkpoint in memory.
function host.load_values(values, seed, left_out)
  local where = "the checkpoint in memory"
  checkpoint.adopt(where, checkpoint.without(values, left_out, where), tonumber(seed), values)
end

return host
