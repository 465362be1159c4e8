--- Pending: an asynchronous call whose run is under way.
-- It is the callbacker of a `tp.Callback` job (`job(x)(callback)`) and the future of an untyped one
-- (`job(x):get()`, `job(x):async_get(callback)`). Callbacks run only where the session delivers. Tasks await either.

local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local handlers = require "moonflow.handlers"
local interrupts = require "moonflow.interrupts"
local session = require "moonflow.session"
local spawn = require "moonflow.spawn"
local typing = require "moonflow.typing"

local pending = {}

-- What a call may not have yet is false, so that a name that no call has can be told from it.
local Pending = { kind = "pending call", callback = false, error_handler = false, attached = false, awaited = false,
                  waiters = false, problem = false, sequence = false, cancelled = false, known_over = false }
Pending.__index = Pending
arguments.publish("Pending", "pending", Pending, "get async_get on_error await ready wait cancel")

local kWhatToDo = "; its result comes to a function, job(x)(function(y) ... end), or to whoever waits for it, "
  .. "job(x):get(). Of a job with `returns = tp.Numpy` the call itself gives it"

setmetatable(Pending, { __index = function(_, key)
  errors.raise("not_found", "a call that is under way has no '" .. tostring(key) .. "'" .. kWhatToDo)
end })

-- Of two values of different types Lua compares none and asks nobody, so there this cannot be said.
for _, event in ipairs { "__add", "__sub", "__mul", "__div", "__mod", "__pow", "__unm", "__concat", "__lt", "__le" } do
  Pending[event] = function()
    errors.raise("invalid_argument", "a call that is under way is not its result yet" .. kWhatToDo)
  end
end

--- A call of `plan` submitted at `site`.
function pending.new(plan, run, site)
  return setmetatable({ plan = plan, run = run, site = site, values = {}, ended = false }, Pending)
end

--- A tapped value has arrived: a result, or a watched value for its handler.
function Pending:take(token, value, sequence)
  self.plan:take(self.values, token, value, sequence, self.site)
end

-- The results as the job's type of return has them.
local function results_of(self)
  return typing.build(self.plan.skeleton, self.values)
end

local function what_of(self)
  return "the callback of " .. self.plan.job_name
end

-- Has its own :cancel() ended it? Whoever has called that needs not be told.
local function was_stopped(self)
  return self.cancelled and errors.is_error(self.problem) and self.problem.code == "interrupted"
end

--- The run has ended.
function Pending:finish(problem, sequence)
  self.ended, self.sequence = true, sequence
  if problem then
    if type(problem) == "table" then
      problem.submitted = self.site
      problem.where = problem.where or self.site  -- where no op is to blame
    end
    self.problem = problem
    if self.error_handler then
      handlers.call(self.error_handler, "the error handler of " .. self.plan.job_name, sequence, self.site, problem)
    elseif not self.awaited and not self.waiters and not was_stopped(self) then
      handlers.fail(problem, not self.attached and self or nil)
    end
  elseif self.callback then
    self:deliver()
  end
  if self.waiters then spawn.wake(self, sequence) end
end

--- Calls the callback with the results.
function Pending:deliver()
  local callback = self.callback
  self.callback = nil
  handlers.call(callback, what_of(self), self.sequence, self.site, results_of(self))
end

-- Has the run ended, whether its end has been delivered or not? Who has been told so may have its results inside a
-- callback, where waiting is refused: to all others always, and not only where the run happens to be slow.
local function has_ended(self)
  if not self.known_over then
    self.known_over = self.ended or session.has_ended(self.run, self.plan.generation)
  end
  return self.known_over
end

--- Has the run ended? Does not wait or deliver: where it gives true, :get() gives the results at once, also inside a
--- callback, and a callback of its own comes in its turn. True as well where its session has been closed, and the run
--- given up.
function Pending:ready()
  arguments.check_self(self, Pending, "pending:ready")
  return has_ended(self)
end

-- Calls `handler` with the error if the run fails, or has failed.
local function set_error_handler(self, handler)
  arguments.check_callable(handler, "the error handler of " .. self.plan.job_name .. " must be a function")
  self.error_handler = handler
  if self.problem then
    handlers.withdraw(self.problem)
    handlers.call(handler, "the error handler of " .. self.plan.job_name, self.sequence, self.site, self.problem)
  end
end

--- Calls `callback` with the results once they are there; `on_error` with the error if the run fails.
--- @error a second callback; not a function
function Pending:async_get(callback, on_error)
  arguments.check_self(self, Pending, "pending:async_get")
  arguments.check_callable(callback, what_of(self) .. " must be a function")
  if self.attached then
    errors.raise("wrong_state", what_of(self) .. " is set already; a call has one callback")
  end
  if on_error ~= nil then set_error_handler(self, on_error) end
  self.attached, self.callback = true, callback
  if self.ended and not self.problem then session.deliver_late(self) end
end

--- Calls `handler` with the error if the run fails, instead of raising it from the next flow call; now, if it has
--- failed. The one that was given last counts.
--- @error not a function
function Pending:on_error(handler)
  arguments.check_self(self, Pending, "pending:on_error")
  set_error_handler(self, handler)
  return self
end

-- Waits until it has ended; false when the time is over, which `stop` is on the session's clock.
local function wait_until(self, stop, what)
  if self.known_over and not self.ended and handlers.running() then session.deliver_ended(self.run, self) end
  if not self.ended then
    session.refuse_inside(what)
    local came = session.wait_for(self, stop)
    if came == nil then return false end
    if not came then
      errors.raise("wrong_state", "the run of " .. self.plan.job_name .. " was given up when its session was closed")
    end
  end
  if self.problem then
    handlers.withdraw(self.problem)
    error(self.problem, 0)
  end
  handlers.raise_failures()
  return true
end

--- Waits for the end of the run as long as there is time, delivering other things meanwhile. A run that is not done
--- goes on, and may be waited for again, or cancelled.
--- @param max_ms? number  as of flow.sync: 0 or less is no time. Default: waits until it has ended
--- @return boolean        whether it has ended
--- @error what the run failed with; inside a callback, unless the run has been delivered or :ready() has given true
function Pending:wait(max_ms)
  arguments.check_self(self, Pending, "pending:wait")
  return wait_until(self, session.end_of(max_ms, "pending:wait"), "wait")
end

--- Asks the run to stop. One that has not begun does nothing, and one under way ends between two steps. Either fails
--- with the code "interrupted", in its turn among the runs, which :get, :await, :wait and an error handler are told and
--- no one else. A run that has begun to change variables, or has been started on a GPU, goes on to its end: a step of
--- training happens whole or not at all. May be called inside a callback.
--- @return boolean  false where it had ended already
function Pending:cancel()
  arguments.check_self(self, Pending, "pending:cancel")
  if has_ended(self) then return false end
  self.cancelled = true
  session.cancel(self.run)
  return true
end

--- Waits for the run and gives its results, delivering other things meanwhile.
--- @error what the run failed with; inside a callback, unless the run has been delivered or :ready() has given true
function Pending:get()
  arguments.check_self(self, Pending, "pending:get")
  wait_until(self, nil, "get")
  return results_of(self)
end

--- Gives the results of the run. In a task of flow.spawn the task is suspended until they are there; outside of one it
--- waits as :get does.
--- @error what the run failed with; unless it has ended: inside a plain callback, and in host mode outside of a task
function Pending:await()
  arguments.check_self(self, Pending, "pending:await")
  -- A task gives way here in any case: one that always calls anew would keep whoever resumes it.
  if not self.ended and (handlers.running() or not self.known_over) then spawn.await(self) end
  return self:get()
end

--- `job(x)(callback)`. Raises what handlers have raised while the call made room, now that nothing can be lost by it.
function Pending:__call(callback, on_error)
  self:async_get(callback, on_error)
  handlers.raise_failures()
end

function Pending:__tostring()
  return "pending call of " .. self.plan.job_name .. (self.ended and " (done)" or "")
end

interrupts.keep_whole(wait_until, Pending.get, Pending.await)

return pending
