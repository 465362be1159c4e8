--- Session: the default session of this Lua state, and the pump that brings completions to their handlers.
-- Handlers run on the thread that calls, only inside poll, sync, a blocking job call, a future's get, or an
-- asynchronous call that makes room.
--
-- A run in flight is known by its number: `calls[run]` is whoever waits for it, held strongly until its end. A waiter
-- has :take(token, value, sequence) for a tapped value and :finish(error, sequence) for the end of the run.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local handlers = require "moonflow.handlers"
local interrupts = require "moonflow.interrupts"
local trace = require "moonflow.trace"
local io = io

local session = {}

local handle            -- core session
local next_completion   -- its method
local wait              -- its method
local generation = 0    -- rises with every new default session

local calls = {}        -- run -> waiter

-- Completions that a call inside a handler pulled although they belong to others, in order. Delivered before anything
-- newer is pulled.
local stash, stash_first, stash_last = {}, 1, 0

local lookout           -- core waiter behind flow.fd; made at the first use, and kept when the session is replaced
local services = {}     -- what else is to be served where the session delivers: prompts that others attach to
local serving = false

local late = {}         -- callbacks attached after their run had ended, in order
local epoch = 0         -- rises with every wait that is not inside a handler
local stopping = false  -- an interrupt is to end the waits
local ending = false    -- what is under way is delivered, and then the session is cleared

local settings = { pump = "script", inflight = 3, threads = nil, sink = nil, strict_placement = false }
session.settings = settings

-- ---- the core session ---------------------------------------------------------------------------------------------

-- flow.fd is readable when the queue of the session is.
local function follow_queue()
  local queue = lookout and handle and handle:fd()
  if queue then lookout:watch(queue) end
end

local function open()
  handle = core.session { threads = settings.threads }
  follow_queue()
  next_completion, wait = handle.next, handle.wait
  generation = generation + 1
  if settings.inflight > 3 then handle:set_max_in_flight(settings.inflight + 5) end
end

--- The core session; opened at the first use.
function session.handle()
  if not handle then open() end
  return handle
end

--- A number that changes when the default session is replaced.
function session.generation()
  if not handle then open() end
  return generation
end

-- ---- the log sink -------------------------------------------------------------------------------------------------

--- Sends a line to the log sink: the one given to flow.config.log, else standard error in script mode, else nowhere.
function session.log(line)
  if settings.sink then
    settings.sink(line)
  elseif settings.pump == "script" then
    io.stderr:write(line, "\n")
  end
end

local told = {}  -- what was said, as long as the session lasts

--- Sends a line that is said once.
--- @param key? string  what it is about, where that may be put in several ways; default: the line
function session.log_once(line, key)
  key = key or line
  if told[key] then return end
  told[key] = true
  session.log("moonflow: " .. line)
end

-- Whoever delivers has something to raise.
handlers.on_failure(function()
  if handle then handle:announce() end
end)

-- ---- services -----------------------------------------------------------------------------------------------------

-- A chunk that a service runs may itself poll or wait.
local function serve()
  if serving or handlers.slot[1] then return end
  serving = true
  local fine, problem = true, nil
  for _, service in ipairs({ unpack(services) }) do
    fine, problem = pcall(service.step, service)
    if not fine then break end
  end
  serving = false
  if not fine then error(problem, 0) end
end

local looking = {}  -- whoever wants to be asked at each poll, and after each run, also where C could do without Lua

--- From now on, or no longer, no poll of a host goes without Lua.
function session.look_at_each_poll(who, wanted)
  looking[who] = wanted or nil
  core.look_at_each_poll(next(looking) ~= nil)
end

--- Calls `service:step()` wherever the session delivers.
function session.add_service(service)
  services[#services + 1] = service
  session.look_at_each_poll(services, true)
end

function session.remove_service(service)
  for i = #services, 1, -1 do
    if services[i] == service then table.remove(services, i) end
  end
  session.look_at_each_poll(services, services[1] ~= nil)
end

-- ---- the pump -----------------------------------------------------------------------------------------------------

local handing  -- the run whose completion is being handed on

--- The run whose completion is being handed on, or nil; for the profiler.
function session.handing()
  return handing
end

local admit = function() end

--- `fn` is called after a run has ended and its waiter knows: there may be room for another one.
function session.on_room(fn)
  admit = fn
end

local otherwise  -- waiter of the runs that are not in `calls`

--- `waiter` is that of every run that nobody here expects: a host has launched it.
function session.otherwise(waiter)
  otherwise = waiter
end

local function hand(run, token, value, sequence)
  local waiter, outer = calls[run] or otherwise, handing
  handing = run
  if token == 0 then
    calls[run] = nil
    if waiter then waiter:finish(value, sequence) end
    admit()
  elseif waiter then
    waiter:take(token, value, sequence)
  end
  handing = outer
end

-- A hook of the script may raise between any two lines of these, and no entry is then half there.
local function put_aside(run, token, value, sequence)
  stash[stash_last + 1] = { run, token, value, sequence }
  stash_last = stash_last + 1
  handle:announce()
end

-- The next completion in order: what was put aside, then what the engine has.
local function take_next(_, with_end)
  if stash_first <= stash_last then
    local entry = stash[stash_first]
    stash_first = stash_first + 1
    stash[stash_first - 1] = nil
    if stash_first > stash_last then stash_first, stash_last = 1, 0 end
    if entry[1] == nil then return take_next(nil, with_end) end
    return entry[1], entry[2], entry[3], entry[4]
  end
  return next_completion(handle, with_end)
end

-- The next completion of one run, for a call inside a handler. Everything else is put aside.
local function take_own(run)
  for i = stash_first, stash_last do
    local entry = stash[i]
    if entry[1] == run then
      entry[1] = nil
      return run, entry[2], entry[3], entry[4]
    end
  end
  while true do
    local other, token, value, sequence = next_completion(handle)
    if other == nil or other == run then return other, token, value, sequence end
    put_aside(other, token, value, sequence)
  end
end

-- Delivers one thing; false when nothing is ready. And is it the end of a run, or a late callback?
local function step()
  if stopping then error("interrupted", 0) end
  epoch = epoch + 1
  if #late > 0 then
    table.remove(late, 1):deliver()
    return true, true
  end
  local run, token, value, sequence, ended = take_next(nil, true)
  if run == nil then return false end
  hand(run, token, value, sequence)
  if ended then hand(run, 0, nil, sequence + 1) end
  return true, ended or token == 0
end

-- How many of these there are to come of all that has begun.
local function ends_due()
  local count = handle:in_flight() + #late
  for i = stash_first, stash_last do
    if stash[i][1] ~= nil and stash[i][2] == 0 then count = count + 1 end
  end
  return count
end

--- A number that tells the waits of the script from one another, so that one left by an interrupt is known to be over.
function session.epoch()
  return epoch
end

--- Begins a wait, and gives its number: a new one outside of handlers.
function session.begin()
  if not handlers.running() then epoch = epoch + 1 end
  return epoch
end

-- Asks for a poll where there is something to deliver that the engine knows nothing of.
local function announce_rest()
  if late[1] or stash_first <= stash_last then handle:announce() end
end

-- A handler that yields suspends the wait that it was called from. Whoever delivers meanwhile delivers for that too.
local function fail_lost()
  errors.raise("wrong_state", "a call waits for a run whose end came while one of its handlers had yielded, so it has "
    .. "no result; a handler must not yield: flow.spawn a task in it, which may await")
end

--- Waits for a run of the caller's and gives its values to `take(owner, token, value, sequence)`.
-- Outside of handlers whatever else becomes ready is delivered too; inside one it is put aside for later.
-- Gives the error of the run, or nil.
function session.finish(run, take, owner)
  local pull, opened = handlers.running() and take_own or take_next, handle
  while true do
    if handle ~= opened then fail_lost() end
    local other, token, value, sequence = pull(run)
    if other == run then
      if token == 0 then
        announce_rest()  -- pulling has ended an announcement
        return value
      end
      take(owner, token, value, sequence)
    elseif other then
      hand(other, token, value, sequence)
    else
      if stopping and not handlers.running() then error("interrupted", 0) end
      if handle:in_flight() == 0 then fail_lost() end
      wait(handle, 50)
    end
  end
end

--- Registers who waits for a run.
function session.expect(run, waiter)
  calls[run] = waiter
end

--- A mark of now, for session.is_past.
function session.mark()
  local newest = 0
  for run in pairs(calls) do newest = math.max(newest, run) end
  return newest
end

--- Has all been delivered of the runs that were under way at a mark? False also where that cannot be told, since there
--- are runs that nobody expects here: that of a call that waits, or of a host.
function session.is_past(mark)
  local expected = 0
  for run in pairs(calls) do
    if run <= mark then return false end
    expected = expected + 1
  end
  return session.in_flight() <= expected
end

local function deliver_until_ended(thing, stop)
  while not thing.ended do
    if services[1] then serve() end
    if not handle then return false end
    if not step() then
      if handle:in_flight() == 0 then return false end
      wait(handle, stop and math.max(0, 1000 * (stop - core.clock())) or 50)
    end
    if handlers.interrupted() then handlers.raise_failures() end
    if stop and not thing.ended and core.clock() >= stop then return nil end
  end
  return true
end

--- Waits until `thing.ended`, delivering meanwhile. False when nothing is left that could bring it about; nil when the
--- time is over, which `stop` is on core.clock.
--- `thing.awaited` is true meanwhile: whoever waits raises its error. Where the wait is cut short nobody does, so an
--- error that has come is left to the next one who delivers.
function session.wait_for(thing, stop)
  local was = thing.awaited
  thing.awaited = true
  local fine, came = pcall(deliver_until_ended, thing, stop)
  thing.awaited = was
  if fine then return came end
  if thing.problem and not was then handlers.fail(thing.problem, thing) end
  error(came, 0)
end

--- Has a run of the session of that number ended, delivered or not? All have where that is closed.
function session.has_ended(run, of)
  return not handle or of ~= generation or handle:has_ended(run)
end

--- Delivers a run that has ended, before its turn, to who waits for it inside a handler.
function session.deliver_ended(run, waiter)
  while calls[run] == waiter do
    local own, token, value, sequence = take_own(run)
    if not own then break end  -- its last value is being handed on, and its end comes next
    hand(run, token, value, sequence)
  end
  announce_rest()
end

--- Asks a run to stop before it has written anything.
function session.cancel(run)
  if handle then handle:cancel(run) end
end

--- Makes room for one more run: delivers something, or inside a handler puts something aside; waits when there is
-- nothing.
function session.make_room()
  if handlers.running() then
    local run, token, value, sequence = next_completion(handle)
    if run then
      put_aside(run, token, value, sequence)
    else
      wait(handle, 50)
    end
  elseif not step() then
    wait(handle, 50)
  end
end

--- Queues a waiter whose callback came after its run had ended.
function session.deliver_late(waiter)
  late[#late + 1] = waiter
  handle:announce()
end

local function refuse_inside(what)
  local t = trace.current()
  if t then
    errors.raise("wrong_state", what .. " delivers, and what callbacks compute would become a part of the job '"
      .. t.job .. "', whose body runs; it belongs behind the definition")
  end
  if handlers.running() then
    errors.raise("wrong_state", what .. " waits for other runs, which is not possible inside a callback; "
      .. "launch asynchronously and return, or await in a task of flow.spawn")
  end
end
session.refuse_inside = refuse_inside

--- The time at which so many milliseconds are over, on core.clock; nil without a limit.
local function end_of(max_ms, what)
  if max_ms == nil then return nil end
  if type(max_ms) ~= "number" then
    errors.raise("invalid_argument", what .. " wants milliseconds, got " .. arguments.describe(max_ms))
  end
  return max_ms > 0 and core.clock() + max_ms / 1000 or 0
end
session.end_of = end_of

--- Delivers what is ready, without waiting. What handlers begin meanwhile is left to the next poll.
--- @param max_ms? number  stops after the delivery that uses up this budget. 0 or less, unlike in C, is no time: one
---                        delivery. Default: all that is ready
--- @return number          how many handlers were called
--- @error what a handler raised, after the queue is consistent; inside a callback or the body of a job
function session.poll(max_ms)
  refuse_inside("flow.poll")
  local stop = end_of(max_ms, "flow.poll")
  if services[1] then serve() end
  if not handle then return 0 end
  local before, left = handlers.called(), ends_due()
  -- Where all is done the queue is looked at once more, which ends an announcement.
  while handle and (left > 0 or handle:in_flight() == 0 and not late[1]) do
    local more, ends = step()
    if not more then break end
    if ends then left = left - 1 end
    if stop and handlers.called() > before and (stop == 0 or core.clock() >= stop) then break end
  end
  if handle then announce_rest() end
  handlers.raise_failures(true)
  return handlers.called() - before
end

-- Waits until all is done, or it is so late; says whether all is.
local function finish_until(stop)
  repeat
    if services[1] then serve() end
    if not handle then return true end  -- a service has closed it
    if not step() then
      local left_ms = stop and math.max(0, 1000 * (stop - core.clock()))
      if handle:in_flight() == 0 then return handle:wait_idle(left_ms) end  -- for weights that are being published
      wait(handle, left_ms)
    end
    if handlers.interrupted() then return false end
  until stop and core.clock() >= stop
  announce_rest()
  return session.in_flight() == 0 and not late[1] and handle:wait_idle(0)
end

--- Waits until nothing is in flight, everything is delivered, and published weights have reached their prepared calls;
--- or until the time is over: what is left then goes on, for a later poll or sync. What handlers and tasks begin
--- meanwhile is waited for too, so where they always begin anew only a time ends it.
--- @param max_ms? number  delivers nothing more once so much time is over. 0 or less, unlike in C, is no time: then it
---                        does not wait, and delivers something all the same, as flow.poll does. Default: waits until
---                        all is done
--- @return boolean        whether all is done
--- @error what handlers and runs raised: the first, the others in its field `also`; inside a callback or the body of a
---        job
function session.sync(max_ms)
  refuse_inside("flow.sync")
  local stop = end_of(max_ms, "flow.sync")
  local done = not handle or finish_until(stop)
  handlers.raise_failures(true)
  return done
end

-- ---- interrupts ---------------------------------------------------------------------------------------------------

interrupts.keep_whole(handlers.traced, handlers.call, session.finish, session.wait_for, session.make_room,
  session.poll, session.sync)
interrupts.keep_open(serve)

--- Lets waits outside of handlers raise "interrupted" from now on, or no longer. The launcher's Ctrl-C needs it not: it
--- ends the runs that are waited for.
function session.stop_waits(wanted)
  stopping = wanted
end

--- What the launcher calls when a Ctrl-C has ended a script. To the script's action the runs and handlers that were cut
--- short are no failures.
function session.end_interrupted()
  local action = interrupts.take_action()
  core.stop_processes()
  if not action then return end
  handlers.excuse_interrupted()
  action()
end

-- ---- what is in flight ---------------------------------------------------------------------------------------------

--- How many runs have an end that has not been delivered: in the engine, or put aside.
function session.in_flight()
  local count = handle and handle:in_flight() or 0
  for i = stash_first, stash_last do
    local run, token = stash[i][1], stash[i][2]
    if run and token == 0 then count = count + 1 end
  end
  return count
end

--- What waits for everything that the session delivers or serves.
function session.waiter()
  if not lookout then
    lookout = core.waiter()
    follow_queue()
  end
  return lookout
end

--- Seconds of a clock that only runs forward, from a point that means nothing: for measuring how long something takes.
function session.clock() return core.clock() end

--- A descriptor that is readable while something can be delivered, for event loops. It stays the same for good.
function session.fd()
  return session.waiter():fd()
end

local on_close = {}

--- Calls `forget` when the default session closes.
function session.on_close(forget)
  on_close[#on_close + 1] = forget
end

local function close()
  if not handle then return end
  if lookout and handle:fd() then lookout:forget(handle:fd()) end
  handle:close()
  handle, next_completion, wait = nil, nil, nil
  calls, stash, stash_first, stash_last, late = {}, {}, 1, 0, {}
  handlers.forget_failures()
  told = {}
  for _, forget in ipairs(on_close) do forget() end
  collectgarbage()  -- which sees little of how much the plans and variables hold, and would wait for long
end

-- Does a job's body, or a handler, ask for the end of the session that it belongs to?
local function refuse_end(what)
  local body = trace.current()
  if body then
    errors.raise("wrong_state", what .. " ends the session that the job '" .. body.job .. "' belongs to, and so cannot "
      .. "be called in its body")
  end
  refuse_inside(what)
end

--- Ends the session: refuses new runs, cancels queued ones, waits for the running one, discards what was not delivered.
-- Its jobs and variables are gone. Idempotent.
function session.shutdown()
  refuse_end("flow.shutdown")
  close()
end

--- Delivers what is under way, ends the session and forgets its jobs and variables; the next use opens a fresh one.
--- Nothing begins meanwhile: a task that calls a job asynchronously is left where it is, and a callback is told so.
--- @error what handlers and runs raised meanwhile, as of flow.sync, when all is cleared; inside a callback or the body
---        of a job
function session.clear()
  refuse_end("flow.clear_default_session")
  ending = true
  local fine, problem = pcall(session.sync)
  ending = false
  if fine or problem ~= "interrupted" then close() end  -- what a Ctrl-C has ended may still want to save something
  if not fine then error(problem, 0) end
end
interrupts.keep_whole(session.clear)

--- Is it being cleared, so that nothing may begin any more?
function session.is_ending()
  return ending
end

--- Replaces an unused session, for settings that it is made with. False when it holds variables or runs.
function session.renew()
  if handle then
    if #handle:variables() > 0 or handle:in_flight() > 0 then return false end
    close()
  end
  open()
  return true
end

return session
