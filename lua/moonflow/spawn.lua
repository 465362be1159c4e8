--- Spawn: tasks, which are functions that may wait for results without stopping their host.
-- A task is a coroutine that the session resumes, under the rules of a handler: it may launch runs, and what would wait
-- for other runs is refused. In two places it is suspended instead: in :await(), until whoever delivers the awaited
-- result resumes it; and in an asynchronous call that finds no room, until a run has ended. So a task is never "busy".

local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local handlers = require "moonflow.handlers"
local interrupts = require "moonflow.interrupts"
local session = require "moonflow.session"
local trace = require "moonflow.trace"
local debug = debug

local spawn = {}

local running, resume, yield, can_yield = coroutine.running, coroutine.resume, coroutine.yield, coroutine.isyieldable

-- What a task may not have yet is false, so that a name that no task has can be told from it.
local Task = { kind = "task", thread = false, awake = false, awaits = false, awaited = false, waiters = false,
               failed = false, problem = false }
Task.__index = Task
arguments.publish("Task", "task", Task, "done await")

setmetatable(Task, { __index = function(_, key)
  errors.raise("not_found", "a task has no '" .. tostring(key) .. "'; task:await() gives what it returns, and "
    .. "task:done() tells whether it has ended")
end })

local current = nil     -- the task that was resumed last and has not stopped since
local kSuspended = {}   -- what a task yields; a yield of anything else is not ours

-- The task whose own code runs now: not a coroutine it made, a handler called while it waits for a run of its own, or a
-- function that C calls, as string.gsub does.
local function running_task()
  if current and current.thread == running() and handlers.running() ~= current.thread and can_yield() then
    return current
  end
  return nil
end

-- ---- running ------------------------------------------------------------------------------------------------------

local function settle(task, fine, ...)
  if fine then
    task.count, task.results = select("#", ...), { ... }
  else
    task.failed, task.problem = true, (...)
  end
  task.ended = true
end

local function body(task, fn, ...)
  settle(task, xpcall(fn, handlers.traced, ...))
end

-- One stretch of a task, from where it was suspended to where it is suspended again or ends.
local function stretch(task, ...)
  local outer = current
  current, task.awake = task, true
  local _, token = resume(task.thread, ...)
  current, task.awake = outer, false
  if not task.ended and token ~= kSuspended then
    local info = debug.getinfo(task.thread, 1, "Sl")
    task.ended, task.failed = true, true
    task.problem = errors.new("wrong_state", "a task has called coroutine.yield itself; it waits only in :await() and "
      .. "in calls that need room", info and errors.place(info.source, info.currentline))
  end
  -- Whoever awaits the task gets its error; else it is reported like that of a handler.
  local awaited = task.waiters or task.awaited
  if task.failed and (not awaited or task.problem == "interrupted") then error(task.problem, 0) end
end

-- Resumes a task, then those that waited for its end, one after another: a chain of them needs no stack.
local function advance(task, sequence, ...)
  handlers.call(stretch, task.what, sequence, nil, task, ...)
  local ready = task.ended and task.waiters
  if not ready then return end
  task.waiters = nil
  local i = 1
  while ready[i] do
    local waiter = ready[i]
    handlers.call(stretch, waiter.what, sequence, nil, waiter)
    if waiter.ended and waiter.waiters then
      for _, next_one in ipairs(waiter.waiters) do ready[#ready + 1] = next_one end
      waiter.waiters = nil
    end
    i = i + 1
  end
end

-- Stops the running task until `advance`. Somebody else who resumes the coroutine gets it back at once.
local function suspend(task)
  task.awake = false
  repeat yield(kSuspended) until task.awake
end

-- ---- awaiting -----------------------------------------------------------------------------------------------------

local function refuse(reason)
  errors.raise("wrong_state", "await waits for a run, which is not possible " .. reason)
end

-- A task that awaits something which waits for that task, over however many others, would never be resumed. Only a task
-- that somebody awaits can be in such a ring, so a long chain is not walked for each of its links.
local function refuse_ring(task, thing)
  if task == thing then errors.raise("wrong_state", "a task cannot await itself") end
  if not task.waiters then return end
  local other = rawget(thing, "awaits")
  while other do
    if other == task then
      errors.raise("wrong_state", "a task cannot await one that waits for it: " .. thing.what)
    end
    other = rawget(other, "awaits")
  end
end

--- Suspends the task that is running until `thing` has ended, and its spawn.wake is called. Does nothing where it is
--- fine to wait without one: outside of handlers in script mode.
--- @error inside a plain callback or the body of a job; outside of a task in host mode
function spawn.await(thing)
  if trace.current() then refuse("in the body of a job function") end
  local task = running_task()
  if task then
    refuse_ring(task, thing)
    local waiters = thing.waiters or {}
    thing.waiters, waiters[#waiters + 1] = waiters, task
    task.awaits = thing
    suspend(task)
    task.awaits = false
  elseif handlers.running() then
    local here = running()
    if not current or here == nil or here == handlers.running() then refuse("inside a callback; use flow.spawn") end
    refuse(here == current.thread and "in a function that is called from C, such as those given to string.gsub"
      or "in a coroutine that a task has made; await in the task itself, or give its function to flow.spawn")
  elseif session.settings.pump == "host" then
    refuse("in host mode outside of a task; use flow.spawn, or give a callback")
  end
end

--- Resumes the tasks that await `thing`, in the order in which they began to.
function spawn.wake(thing, sequence)
  local waiters = thing.waiters
  if not waiters then return end
  thing.waiters = nil
  for _, task in ipairs(waiters) do advance(task, sequence) end
end

-- ---- room ---------------------------------------------------------------------------------------------------------

-- Plans that tasks wait for, each with its own queue. An entry stays at the head until the engine has taken its run.
local crowded = {}

local function set_crowded(plans)
  crowded = plans
  session.look_at_each_poll(spawn, plans[1] ~= nil)
end

session.on_close(function() set_crowded({}) end)

--- Is the caller a task, so that it can queue for room?
function spawn.can_queue()
  return running_task() ~= nil
end

--- Queues the running task for room in `plan`, and suspends it until `try()` in its turn gives a run. Gives that run.
function spawn.queue(plan, try)
  local task, queue = running_task(), plan.queue
  if not queue then
    queue = { first = 1, last = 0 }
    plan.queue, crowded[#crowded + 1] = queue, plan
    set_crowded(crowded)
  end
  queue.last = queue.last + 1
  queue[queue.last] = task
  local fine, run
  repeat
    suspend(task)
    fine, run = pcall(try)
  until not fine or run
  queue[queue.first] = nil
  queue.first = queue.first + 1
  if not fine then error(run, 0) end
  return run
end

-- Lets the heads of the queues try, as long as they succeed.
local function admit()
  local plans = crowded
  if #plans == 0 then return end
  crowded = {}
  for _, plan in ipairs(plans) do
    local queue = plan.queue
    while queue.first <= queue.last do
      local first = queue.first
      advance(queue[first])
      if queue.first == first then break end
    end
    if queue.first <= queue.last then
      crowded[#crowded + 1] = plan
    else
      plan.queue = nil
    end
  end
  set_crowded(crowded)
end
session.on_room(admit)

--- Suspends the task that is running for good, as one whose awaited run is given up. Does nothing without one.
function spawn.leave()
  local task = running_task()
  if task then suspend(task) end
end

-- ---- the interface -------------------------------------------------------------------------------------------------

--- Has the task ended?
function Task:done()
  arguments.check_self(self, Task, "task:done")
  return self.ended
end

--- Gives what the task returns, waiting for its end as a future's :await does.
--- @error what the task raised; where a future's :await is refused; when nothing is in flight that could resume it
function Task:await()
  arguments.check_self(self, Task, "task:await")
  if not self.ended then spawn.await(self) end
  if not self.ended then
    if not session.wait_for(self) then
      errors.raise("wrong_state", self.what .. " never ends: nothing is in flight that could resume it")
    end
  end
  if self.failed then
    handlers.withdraw(self.problem)
    error(self.problem, 0)
  end
  handlers.raise_failures()
  return unpack(self.results, 1, self.count)
end

function Task:__tostring()
  return self.what:gsub("^a ", "") .. (self.ended and " (done)" or "")
end

--- Runs `fn(...)` as a task, a coroutine of its own: at once, up to the first place where it has to wait. An error in
--- it goes to the tasks that await it; when there are none, it is reported like that of a callback.
--- @param fn function  may :await() futures, `tp.Callback` calls and tasks, also inside pcall
--- @return Task        :done() tells whether it has ended; :await() gives what it returns, or raises what it raised
--- @error not a function; outside of handlers, what the task has raised already
function spawn.spawn(fn, ...)
  arguments.check_callable(fn, "flow.spawn wants a function")
  local task = setmetatable({ what = "a task spawned at " .. (errors.site() or "?"), ended = false }, Task)
  task.thread = coroutine.create(body)
  advance(task, nil, task, fn, ...)
  handlers.raise_failures()
  return task
end

interrupts.keep_whole(body, advance, spawn.await, Task.await)

return spawn
