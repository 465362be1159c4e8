--- Handlers: callbacks, watches and stretches of tasks, called protected, and what becomes of their errors.
-- An error in a handler leaves the queue alone. It waits here until the queue is consistent again, and is then raised
-- by whoever delivered, or given to flow.config.on_error.

local errors = require "moonflow.errors"
local debug = debug

local handlers = {}

local running = coroutine.running

local failures = {}     -- errors of handlers and of runs nobody waits for, in order
-- From such an error to the call or task that has it, as long as a script holds that and may still ask for it.
local owners = setmetatable({}, { __mode = "kv" })
local slot = { false }  -- [1], inside a handler: the coroutine it runs in, or true on the main one and in a function of
                        -- a host
local called = 0
local last_traceback
local after_interrupt = false  -- what a Ctrl-C has cut short is no failure any more
local announce = function() end

--- Where it stands which handler runs; a table, because the C interface sets it too.
handlers.slot = slot

--- Takes an error that no caller waits for, and raises what it has against it; nil for none. For flow.config.on_error.
handlers.on_error = nil

--- `fn` is called when a failure begins to wait for whoever delivers.
function handlers.on_failure(fn)
  announce = fn
end

--- How many have been called so far.
function handlers.called()
  return called
end

--- Is one running now? The coroutine it runs in, or true, or false. One that yielded is not running, and may never be
--- resumed.
function handlers.running()
  local thread = slot[1]
  if thread and thread ~= true and coroutine.status(thread) == "suspended" then
    slot[1] = false
    return false
  end
  return thread
end

-- ---- calling ------------------------------------------------------------------------------------------------------

-- What is raised for an error in a handler: the user's own message and line, then whose handler it was.
local function failure_of(value, what, sequence, submitted)
  if value == "interrupted" then return value end  -- the launcher's Ctrl-C
  local message, where, code = errors.text(value), nil, "callback_failed"
  if errors.is_error(value) then
    message, where, code = value.message, value.where, value.code
    if value.op and value.op ~= "" then message = value.op .. ": " .. message end
  elseif type(value) == "string" then
    local place, rest = value:match("^([^\n]-:%d+): (.*)$")
    if place then where, message = place, rest end
    if errors.is_out_of_memory(message) then code = "out_of_memory" end
  end
  -- A task may fail before anything was delivered.
  local origin = {}
  if sequence then origin[1] = "delivery " .. sequence end
  if submitted then origin[#origin + 1] = "submitted at " .. submitted end
  local failure = errors.new(code, message .. "\n  in " .. what
    .. (#origin > 0 and " (" .. table.concat(origin, ", ") .. ")" or ""), where or "?")
  if not where then failure.where = nil end
  failure.cause, failure.sequence, failure.submitted = value, sequence, submitted
  return failure
end

--- Message handler of everything that is protected. A task is protected inside its coroutine and again by whoever
--- resumes it; the first one sees the user's frames.
function handlers.traced(value)
  last_traceback = last_traceback or debug.traceback("", 2)
  return value
end

-- The note that a handler runs is made and taken back where it is protected: the error of a script's own hook, or of a
-- full stack, may come at any place, and would leave a session that holds itself to be inside a handler for good.
local function noted(handler, was, ...)
  slot[1] = running() or true
  handler(...)
  slot[1] = was
end

local function after(fine, value, what, sequence, submitted)
  called = called + 1
  local traceback = last_traceback
  last_traceback = nil
  if fine then return end
  local failure = failure_of(value, what, sequence, submitted)
  if type(failure) == "table" then failure.traceback = traceback end
  handlers.fail(failure)
end

--- Calls a handler protected. `what` says whose it is, for its error.
function handlers.call(handler, what, sequence, submitted, ...)
  local was = slot[1]
  local fine, value = xpcall(noted, handlers.traced, handler, was, ...)
  slot[1] = was
  after(fine, value, what, sequence, submitted)
end

-- ---- failures -----------------------------------------------------------------------------------------------------

local function is_cut_run(failure)
  return type(failure) == "table" and rawget(failure, "code") == "interrupted"
end

-- What waits when on_error has raised `problem` for `failure`: the failure where it says no more than that, what it
-- raised where that tells of the failure, and else both.
local function refused(problem, failure, traceback)
  local text = errors.text(failure)
  if problem == nil or rawequal(problem, failure) then return failure end
  if problem == "interrupted" or errors.text(problem):find(text, 1, true) then return problem end
  local both = failure_of(problem, "flow.config.on_error, which was given:\n" .. text)
  both.given, both.traceback = failure, traceback
  return both
end

--- Reports an error that no caller waits for: to flow.config.on_error, else raised by whoever delivers. `owner`, if
--- there is one, raises it when it is asked for its result, and withdraws it then.
function handlers.fail(failure, owner)
  if after_interrupt and is_cut_run(failure) then return end
  if handlers.on_error then
    local fine, problem = xpcall(handlers.on_error, handlers.traced, failure)
    local traceback = last_traceback
    last_traceback = nil
    if fine then return end
    failure = refused(problem, failure, traceback)
  end
  failures[#failures + 1] = failure
  if type(failure) == "table" then owners[failure] = owner end
  announce()
end

--- A problem is told by its owner from now on, and by nobody else: neither as it is nor as the failure of a task.
function handlers.withdraw(problem)
  for i, failure in ipairs(failures) do
    if rawequal(failure, problem) or type(failure) == "table" and rawequal(rawget(failure, "cause"), problem) then
      table.remove(failures, i)
      return
    end
  end
end

--- Has a Ctrl-C ended a handler?
function handlers.interrupted()
  return failures[1] == "interrupted"
end

--- At the end of a call: raises the first failure that waits. The others go with it in `also`; where on_error has
--- raised it, they wait on. In a handler all wait on, for whoever delivers. Without `all` those wait on too whose owner
--- may still be asked: what a call gives is not lost by another's failure.
function handlers.raise_failures(all)
  if failures[1] == nil or handlers.running() then return end
  local raised, held = {}, {}
  for _, failure in ipairs(failures) do
    table.insert(not all and owners[failure] and held or raised, failure)
  end
  failures = held
  if #raised == 0 then return end
  local first = table.remove(raised, 1)
  if #raised > 0 then
    if errors.is_error(first) then
      first.also = raised
    else
      for i, failure in ipairs(raised) do table.insert(failures, i, failure) end
    end
  end
  error(first, 0)
end

--- From now on the runs and handlers that a Ctrl-C has cut short are no failures.
function handlers.excuse_interrupted()
  after_interrupt = true
  local kept = {}
  for _, failure in ipairs(failures) do
    if failure ~= "interrupted" and not is_cut_run(failure) then kept[#kept + 1] = failure end
  end
  failures = kept
end

--- Drops the failures of a session that ends.
function handlers.forget_failures()
  failures = {}
end

return handlers
