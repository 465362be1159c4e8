-- Asynchronous calls: order, back-pressure, errors, launching and waiting inside callbacks, host mode.
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

local T = tp.Numpy.Placeholder({ 1 })

local function number(value)
  return np.array({ value }, flow.float)
end

local function define(returns, body)
  return flow.global_function { name = "f", inputs = { x = T }, returns = returns } (body)
end

before_each(function()
  flow.clear_default_session()
  flow.config.pump("script")
  flow.config.on_error(nil)
end)

after_each(function()
  flow.config.pump("script")
  flow.config.on_error(nil)
  flow.config.inflight(3)
end)

describe("10,000 asynchronous calls with a watch each", function()
  local calls = 10000

  local function check(bad)
    local count, wrong = 0, 0
    local expected, watching = 0, true
    local job = define(tp.Callback[tp.Numpy], function(x)
      local y = x + 1
      flow.watch(y, function(value)
        count = count + 1
        if not watching or value[0] ~= expected + 1 then wrong = wrong + 1 end
        watching = false
        if expected == bad then error("bad one") end
      end)
      return y
    end)
    local function callback(value)
      count = count + 1
      if watching or value[0] ~= expected + 1 then wrong = wrong + 1 end
      watching, expected = true, expected + 1
    end
    local failures = {}
    for i = 0, calls - 1 do
      local fine, problem = pcall(function() job(number(i))(callback) end)
      if not fine then failures[#failures + 1] = problem end
      assert.truthy(flow.in_flight() <= 3)
    end
    local fine, problem = pcall(flow.sync)
    if not fine then failures[#failures + 1] = problem end
    return count, wrong, failures
  end

  it("are 20,000 deliveries in exact order", function()
    local count, wrong, failures = check(nil)
    assert.equal(2 * calls, count)
    assert.equal(0, wrong)
    assert.equal(0, #failures)
  end)

  it("lose nothing when one handler raises, and report it once", function()
    local count, wrong, failures = check(calls / 2)
    assert.equal(2 * calls, count)
    assert.equal(0, wrong)
    assert.equal(1, #failures)
    assert.truthy(tostring(failures[1]):find("async_spec.lua:%d+: bad one\n  in the watch of"))
    assert.truthy(failures[1].submitted:find("async_spec.lua:%d+$"))
    assert.is_nil(failures[1].also)
  end)

  it("hold under an aggressive collector", function()
    collectgarbage("setpause", 1)
    local count, wrong = check(nil)
    collectgarbage("setpause", 200)
    assert.equal(2 * calls, count)
    assert.equal(0, wrong)
  end)
end)

describe("a callback", function()
  it("takes a tuple as several arguments", function()
    local got
    local job = define(tp.Callback[tp.Tuple { tp.Numpy, tp.Numpy }], function(x) return x, x + 1 end)
    job(number(1))(function(...) got = { n = select("#", ...), ... } end)
    flow.sync()
    assert.equal(2, got.n)
    assert.equal(2, got[2][0])
  end)

  it("takes nothing from a job without results", function()
    local count
    local job = define(tp.Callback[tp.None], function(x) flow.watch(x, function() end) end)
    job(number(1))(function(...) count = select("#", ...) end)
    flow.sync()
    assert.equal(0, count)
  end)

  it("runs only where the session delivers", function()
    local got = 0
    local job = define(tp.Callback[tp.Numpy], function(x) return x end)
    job(number(1))(function() got = got + 1 end)
    for _ = 1, 1e5 do assert(true) end
    assert.equal(0, got)
    repeat local handled = flow.poll() until handled > 0
    assert.equal(1, got)
    assert.equal(0, flow.poll())
  end)

  it("may be attached after its run has ended", function()
    local got
    local job = define(tp.Callback[tp.Numpy], function(x) return x end)
    local call = job(number(5))
    flow.sync()
    assert.is_true(call:ready())
    call(function(y) got = y[0] end)
    assert.is_nil(got)
    flow.poll()
    assert.equal(5, got)
    assert.has_error(function() call(print) end)
  end)

  it("is not delivered in the body of a job, whose graph it would add to", function()
    local job = define(tp.Callback[tp.Numpy], function(x) return x end)
    local called, refused = 0, {}
    local call = job(number(1))
    call(function() called = called + 1 end)
    define(tp.Numpy, function(x)
      for i, wait in ipairs { flow.sync, flow.poll, function() call:get() end } do
        local fine, problem = pcall(wait)
        refused[i] = not fine and problem.code
      end
      return x
    end)
    assert.same({ "wrong_state", "wrong_state", "wrong_state" }, refused)
    assert.equal(0, called)
    flow.sync()
    assert.equal(1, called)
  end)

  it("gets what the call was given, also where that has waited for room", function()
    local job = define(tp.Callback[tp.Numpy], function(x) return x * 10 end)
    local buffer, got, tasks = number(0), {}, {}
    for i = 1, 12 do
      buffer[0] = i
      job(buffer)(function(y)
        got[i] = y[0]
        buffer[0] = -1
      end)
    end
    flow.sync()
    for i = 1, 12 do
      buffer[0] = i
      flow.spawn(function() tasks[i] = job(buffer):await()[0] end)
    end
    flow.sync()
    for i = 1, 12 do
      assert.equal(10 * i, got[i])
      assert.equal(10 * i, tasks[i])
    end
    local now = define(tp.Numpy, function(x) return x * 10 end)
    for i = 1, 12 do
      buffer[0] = i
      job(buffer)(function() buffer[0] = -1 end)
    end
    buffer[0] = 13
    assert.equal(130, now(buffer)[0])
    flow.sync()
  end)

  it("may be left out: the call runs all the same", function()
    local seen = 0
    local job = define(tp.Callback[tp.Numpy], function(x)
      flow.watch(x, function() seen = seen + 1 end)
      return x
    end)
    for i = 1, 10 do job(number(i)) end
    flow.sync()
    assert.equal(10, seen)
  end)

  it("may launch runs, asynchronous and synchronous, and define jobs", function()
    local order = {}
    local plus = define(tp.Numpy, function(x) return x + 1 end)
    local job
    job = define(tp.Callback[tp.Numpy], function(x) return x * 2 end)
    local function again(y)
      order[#order + 1] = y[0]
      if y[0] < 64 then job(y)(again) end
    end
    job(number(1))(function(y)
      order[#order + 1] = plus(y)[0]
      local minus = define(tp.Numpy, function(x) return x - 1 end)
      order[#order + 1] = minus(y)[0]
      for _ = 1, 10 do job(number(100))(function(z) order[#order + 1] = z[0] end) end
      job(number(1))(again)
    end)
    flow.sync()
    assert.same({ 3, 1, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200, 2, 4, 8, 16, 32, 64 }, order)
  end)

  it("must not wait for other runs", function()
    local problems = {}
    local job = define(tp.Callback[tp.Numpy], function(x) return x end)
    local future = flow.global_function { inputs = { x = flow.FixedTensorDef({ 1 }) } } (function(x) return x end)
    job(number(1))(function()
      for i, wait in ipairs { flow.poll, flow.sync, flow.sync_default_session, flow.shutdown,
                              function() future(number(1)):get() end } do
        local fine, problem = pcall(wait)
        problems[i] = not fine and problem
      end
    end)
    flow.sync()
    assert.equal(5, #problems)
    for _, problem in ipairs(problems) do
      assert.equal("wrong_state", problem.code)
      assert.truthy(tostring(problem):find("not possible inside a callback", 1, true))
    end
  end)

  it("of a synchronous job cannot call it again", function()
    local problem
    local job
    job = define(tp.Numpy, function(x)
      flow.watch(x, function(value)
        local fine
        fine, problem = pcall(job, value)
        assert.is_false(fine)
      end)
      return x
    end)
    assert.equal(1, job(number(1))[0])
    assert.truthy(tostring(problem):find("inside a handler of its own run", 1, true))
    assert.equal(2, job(number(2))[0])
  end)

  it("may call a synchronous job that the script waits for", function()
    local job = define(tp.Callback[tp.Numpy], function(x) return x end)
    local twice = flow.global_function {
      inputs = { x = T }, returns = tp.Tuple { tp.Numpy, tp.Numpy },
    } (function(x) return x, x * 2 end)
    local got = {}
    for i = 1, 3 do
      job(number(i))(function(y)
        local same, double = twice(y)
        got[i] = { same[0], double[0] }
      end)
    end
    local same, double = twice(number(10))
    assert.same({ 10, 20 }, { same[0], double[0] })
    flow.sync()
    assert.same({ { 1, 2 }, { 2, 4 }, { 3, 6 } }, got)
  end)

  it("that calls its job again, while another call of it waits for room, leaves that one's watches alone", function()
    local seen, job = {}
    job = define(tp.Callback[tp.Numpy], function(x)
      flow.watch(x, function(value) seen[#seen + 1] = value[0] end):every(2)
      return x
    end)
    local calls, again = 0, true
    for i = 1, 20 do
      calls = calls + 1
      local own = calls
      job(number(own))(function()
        if not again then return end
        again = false
        calls = calls + 1
        job(number(100 + own))(function() end)
      end)
      if not again and i % 2 == 0 then break end
    end
    flow.sync()
    -- Every second call is watched, and the callback's stands between those of the script.
    assert.equal(math.ceil(calls / 2), #seen)
  end)

  it("that raises is reported with its job, its delivery and the line of its call", function()
    local job = define(tp.Callback[tp.Numpy], function(x) return x end)
    job(number(1))(function() error({ kind = "own" }) end)
    job(number(2))(function() error("second") end)
    local fine, problem = pcall(flow.sync)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("in the callback of f %(delivery %d+, submitted at .*async_spec.lua:%d+%)"))
    assert.equal("own", problem.cause.kind)
    assert.equal(1, #problem.also)
    assert.truthy(tostring(problem.also[1]):find("second", 1, true))
    assert.truthy(problem.also[1].traceback)
    flow.sync()
  end)

  it("that raises goes to on_error where one is set", function()
    local got = {}
    flow.config.on_error(function(problem) got[#got + 1] = problem end)
    local job = define(tp.Callback[tp.Numpy], function(x) return x end)
    for i = 1, 3 do job(number(i))(function() error("number " .. i) end) end
    flow.sync()
    assert.equal(3, #got)
    assert.truthy(tostring(got[2]):find("number 2", 1, true))
  end)

  it("that raises what says nothing of itself is reported all the same, and so is the next", function()
    local job = define(tp.Callback[tp.Numpy], function(x) return x end)
    for _, says in ipairs({ function() error("no text") end, function() return {} end }) do
      job(number(1))(function() error(setmetatable({}, { __tostring = says })) end)
      job(number(2))(function() error("second") end)
      local fine, problem = pcall(flow.sync)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find("whose __tostring fails%)\n  in the callback of f %(delivery"))
      assert.truthy(tostring(problem.also[1]):find("second", 1, true))
      flow.sync()
    end
  end)

  it("loses nothing to an on_error that raises, whatever that is", function()
    local closed = setmetatable({}, { __newindex = function() error("closed") end })
    local raised = { closed, "text", false }
    flow.config.inflight(4)
    flow.config.on_error(function(problem) error(raised[tonumber(problem.message:match("number (%d)"))], 0) end)
    local job = define(tp.Callback[tp.Numpy], function(x) return x end)
    for i = 1, 4 do job(number(i))(function() error("number " .. i, 0) end) end
    local got = {}
    while #got < 4 do
      local fine, problem = pcall(flow.sync)
      assert.is_false(fine)
      got[#got + 1] = problem
      for _, other in ipairs(problem.also or {}) do got[#got + 1] = other end
    end
    assert.is_true(rawequal(closed, got[1].cause))
    assert.equal("text", got[2].cause)
    assert.is_false(got[3].cause)
    for i, problem in ipairs(got) do assert.truthy(tostring(problem):find("number " .. i, 1, true)) end
    flow.sync()
  end)

  it("is told with the error of an on_error that fails, and alone where that raises it again", function()
    local job = define(tp.Callback[tp.Numpy], function(x) return x end)
    local function problem_of(on_error)
      flow.config.on_error(on_error)
      job(number(1))(function() error("the cause") end)
      local fine, problem = pcall(flow.sync)
      assert.is_false(fine)
      return problem
    end
    local problem = problem_of(function(given) return given.no_such.field end)
    assert.truthy(tostring(problem):find("^[^\n]*attempt to index field 'no_such' %(a nil value%)\n  "
      .. "in flow.config.on_error, which was given:\n[^\n]*async_spec.lua:%d+: the cause\n  in the callback of f "))
    assert.truthy(problem.traceback:find("async_spec", 1, true))
    assert.truthy(tostring(problem.given):find("the cause", 1, true))
    local again = problem_of(function(given) error(given, 0) end)
    assert.truthy(tostring(again):find("^[^\n]*the cause\n  in the callback of f "))
    assert.is_nil(again.given)
    local retold = problem_of(function(given) error("game: " .. tostring(given), 0) end)
    assert.truthy(retold:find("^game: [^\n]*the cause\n  in the callback of f "))
  end)
end)

describe("a handler that yields", function()
  it("stops neither later deliveries nor later waits", function()
    local seen = 0
    local job = define(tp.Callback[tp.Numpy], function(x) return x end)
    local sleeper = coroutine.create(function()
      job(number(1))(function() coroutine.yield() end)
      flow.sync()
    end)
    assert.is_true(coroutine.resume(sleeper))
    for i = 1, 5 do job(number(i))(function() seen = seen + 1 end) end
    flow.sync()
    assert.equal(5, seen)
  end)

  it("leaves its call without a result where others deliver meanwhile, and not waiting for good", function()
    for _, deliver in ipairs { flow.sync, flow.shutdown } do
      local job = define(tp.Numpy, function(x)
        flow.watch(x, function() coroutine.yield() end)
        return x
      end)
      local sleeper = coroutine.create(function()
        local y = job(number(1))
        return y[0]
      end)
      assert.is_true(coroutine.resume(sleeper))
      deliver()
      local fine, problem = coroutine.resume(sleeper)
      assert.is_false(fine)
      assert.equal("wrong_state", problem.code)
      assert.truthy(tostring(problem):find("async_spec.lua:%d+: .*a handler must not yield"), tostring(problem))
      assert.equal(2, define(tp.Numpy, function(x) return x * 2 end)(number(1))[0])
    end
  end)
end)

describe("a synchronous call", function()
  it("delivers what became ready before it, in order", function()
    local order = {}
    local async = define(tp.Callback[tp.Numpy], function(x) return x end)
    local sync = define(tp.Numpy, function(x) return x * 10 end)
    for i = 1, 3 do async(number(i))(function(y) order[#order + 1] = y[0] end) end
    local last = sync(number(4))
    order[#order + 1] = last[0]
    assert.same({ 1, 2, 3, 40 }, order)
  end)
end)

describe("a failing run", function()
  local function gathering(returns)
    return flow.global_function {
      name = "g", inputs = { i = tp.Numpy.Placeholder({ 1 }, flow.int32) }, returns = returns,
    } (function(i)
      return flow.gather(flow.constant(1, flow.float, { 3 }), i, { name = "pick" })
    end)
  end
  local function index(i) return np.array({ i }, flow.int32) end

  it("raises from the synchronous call, which stays usable", function()
    local job = gathering(tp.Numpy)
    local fine, problem = pcall(job, index(9))
    assert.is_false(fine)
    assert.equal("out_of_range", problem.code)
    assert.truthy(tostring(problem):find("async_spec.lua:%d+: g: gather 'pick': "))
    assert.equal(1, job(index(2))[0])
  end)

  it("is raised once, from whoever delivers its end", function()
    local job = gathering(tp.Callback[tp.Numpy])
    local called = 0
    for _, i in ipairs { 0, 9, 1 } do job(index(i))(function() called = called + 1 end) end
    local fine, problem = pcall(flow.sync)
    assert.is_false(fine)
    assert.equal("out_of_range", problem.code)
    assert.truthy(problem.submitted:find("async_spec.lua"))
    assert.equal(2, called)
    flow.sync()
  end)

  it("is raised by its own future alone, as long as a script holds that, and else from whoever delivers", function()
    local job = define(nil, function(x) return flow.gather(flow.ones { 3 }, flow.cast(x, flow.int32)) end)
    local bad, good = job(number(9)), job(number(0))
    assert.equal(1, good:get():item())
    local fine, problem = pcall(bad.get, bad)
    assert.is_false(fine)
    assert.equal("out_of_range", problem.code)
    flow.sync()

    local caught
    flow.spawn(function()
      local worse, better = job(number(9)), job(number(0))
      assert.equal(1, better:await():item())
      caught = select(2, pcall(worse.await, worse))
    end)
    flow.sync()
    assert.equal("out_of_range", caught.code)

    job(number(9))
    good = job(number(0))
    fine = true
    for _ = 1, 3 do  -- until nobody can ask for it any more
      collectgarbage()
      fine = fine and pcall(good.get, good)
    end
    assert.is_false(fine)
    assert.is_true((pcall(flow.sync)))

    local held = job(number(9))
    assert.is_false((pcall(flow.sync)))
    assert.is_true(held:ready())
  end)

  it("goes to the call's own error handler, or to get", function()
    local job = gathering(tp.Callback[tp.Numpy])
    local got
    job(index(9))(print, function(problem) got = problem end)
    flow.sync()
    assert.equal("out_of_range", got.code)
    got = nil
    job(index(9)):on_error(function(problem) got = problem end)(print)
    flow.sync()
    assert.equal("out_of_range", got.code)
    local failed = job(index(9))
    assert.is_false((pcall(flow.sync)))
    got = nil
    failed:on_error(function(problem) got = problem end)
    assert.equal("out_of_range", got.code)
    local fine, wrong = pcall(failed.on_error, failed, 5)
    assert.is_false(fine)
    assert.truthy(tostring(wrong):find("the error handler of g must be a function, got 5", 1, true), wrong)
    local future = flow.global_function { inputs = { i = flow.FixedTensorDef({ 1 }, flow.int32) } } (function(i)
      return flow.gather(flow.constant(1, flow.float, { 3 }), i)
    end)
    local call = future(index(9))
    local gave, problem = pcall(call.get, call)
    assert.is_false(gave)
    assert.equal("out_of_range", problem.code)
    flow.sync()
  end)
end)

describe("a call that is waited for or cancelled", function()
  -- On the CPU, also where tests go to a GPU: runs there are started at once, and then go on to their ends.
  local function slow_job()
    return flow.global_function {
      name = "slow", inputs = { x = tp.Numpy.Placeholder({ 256, 256 }) }, returns = tp.Callback[tp.Numpy],
      placement = { "cpu", "0:0" },
    } (function(x)
      local y = x
      for _ = 1, 20 do y = flow.matmul(y, x) end
      return flow.math.reduce_sum(y)
    end)
  end
  local x = np.zeros({ 256, 256 })

  it("goes on when the time is over, and says so", function()
    local job, got = slow_job(), 0
    local first, second = job(x), job(x)
    first(function() got = got + 1 end)
    assert.is_false(second:wait(0))
    assert.is_true(first:wait())
    assert.equal(1, got)
    repeat local ended = second:wait(0.5) until ended
    assert.is_true(second:wait(0))
    assert.equal(0, second:get():item())
    local fine, problem = pcall(second.wait, second, "soon")
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("pending:wait wants milliseconds, got ", 1, true))
  end)

  it("is refused a wait inside a callback, until it has ended", function()
    local job, problem = slow_job(), nil
    local first, second = job(x), job(x)
    first(function() problem = select(2, pcall(second.wait, second, 1)) end)
    flow.sync()
    assert.equal("wrong_state", problem.code)
    assert.is_true(second:wait(0))
  end)

  it("raises what its run has failed with, once", function()
    local job = flow.global_function {
      inputs = { i = tp.Numpy.Placeholder({ 1 }, flow.int32) }, returns = tp.Callback[tp.Numpy],
    } (function(i) return flow.gather(flow.constant(1, flow.float, { 3 }), i) end)
    local call = job(np.array({ 9 }, flow.int32))
    local fine, problem = pcall(call.wait, call)
    assert.is_false(fine)
    assert.equal("out_of_range", problem.code)
    flow.sync()
  end)

  it("stops without a word to others, and those around it go on", function()
    local job, calls, tries, got, cancelled = slow_job(), {}, 0
    repeat  -- this thread may be held up
      tries = tries + 1
      got = {}
      for i = 1, 3 do
        calls[i] = job(x)
        calls[i](function() got[#got + 1] = i end)
      end
      cancelled = calls[2]:cancel()
      assert.is_true(flow.sync())
    until #got < 3 or tries == 100
    assert.is_true(cancelled)
    assert.same({ 1, 3 }, got)
    assert.is_false(calls[3]:cancel())
    local fine, problem = pcall(calls[2].get, calls[2])
    assert.is_false(fine)
    assert.equal("interrupted", problem.code)
  end)

  it("is ready when its run has ended, and not to be cancelled any more, though nothing has been delivered", function()
    local job, got = slow_job(), 0
    for _, call in ipairs { job(x), job(x) } do
      call(function() got = got + 1 end)
      while not call:ready() do end
      assert.is_false(call:cancel())
      assert.equal(0, got)
    end
    assert.equal(2, flow.in_flight())
    flow.sync()
    assert.equal(2, got)
  end)

  it("gives its results once it is ready, also inside a callback", function()
    local job, results, order = slow_job(), {}, {}
    local first, second, third = job(x), job(x), job(x)
    first(function()
      order[#order + 1] = 1
      while not third:ready() do end
      results[1] = third:get():item()
      results[2] = third:get():item()
    end)
    second(function() order[#order + 1] = 2 end)
    assert.is_true(flow.sync())
    assert.same({ 0, 0 }, results)
    assert.same({ 1, 2 }, order)
    flow.config.pump("host")
    local call = job(x)
    while not call:ready() do end
    assert.equal(0, call:await():item())
  end)

  it("is over when its session is closed", function()
    local job = slow_job()
    local first, last = job(x), job(x)
    flow.shutdown()
    assert.is_true(first:ready() and last:ready())
    local other = slow_job()
    local running, queued = other(x), other(x)  -- whose numbers are those of the others
    assert.is_false(last:cancel())
    assert.is_true(last:ready())
    assert.equal(0, running:get():item() + queued:get():item())
    local fine, problem = pcall(last.get, last)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("given up when its session was closed", 1, true), tostring(problem))
  end)

  it("tells its error handler and the task that awaits it", function()
    local job, told, tries = slow_job(), {}, 0
    local function tell(problem) told[#told + 1] = problem.code end
    repeat
      tries = tries + 1
      local first, second, third = job(x), job(x), job(x)
      second:on_error(tell)
      flow.spawn(function()
        local fine, problem = pcall(third.await, third)
        if not fine then tell(problem) end
      end)
      second:cancel()
      third:cancel()
      first:wait()
      flow.sync()
    until #told >= 2 or tries == 100
    assert.equal("interrupted", told[1])
    assert.equal("interrupted", told[2])
  end)
end)

describe("host mode", function()
  it("says busy instead of waiting, and delivers in poll only", function()
    flow.config.pump("host")
    flow.config.inflight(2)
    local job = define(tp.Callback[tp.Numpy], function(x) return x end)
    local got = {}
    local function keep(y) got[#got + 1] = y[0] end
    job(number(1))(keep)
    job(number(2))(keep)
    local call, why = job(number(3))
    assert.is_nil(call)
    assert.equal("busy", why)
    assert.same({}, got)
    while #got < 2 do flow.poll(5) end
    assert.same({ 1, 2 }, got)
    job(number(3))(keep)
    flow.sync()
    assert.same({ 1, 2, 3 }, got)
  end)

  it("takes as many calls as were asked for, set in a session or before it opens", function()
    flow.config.pump("host")
    local function check(most)
      local job = define(tp.Callback[tp.Numpy], function(x) return x end)
      local accepted = 0
      for i = 1, 30 do accepted = accepted + (job(number(i)) and 1 or 0) end
      assert.equal(most, accepted)
      flow.sync()
    end
    define(tp.Numpy, function(x) return x end)(number(1))
    flow.config.inflight(20)
    check(20)
    flow.clear_default_session()
    check(20)
  end)

  it("counts no call that it refuses, neither for what the job draws nor for its watches", function()
    flow.config.pump("host")
    flow.config.inflight(1)
    local function draws(is_pressed)
      flow.clear_default_session()
      flow.set_seed(5)
      local drawn, watched = {}, {}
      local function keep(value) watched[#watched + 1] = value[0] end
      local job = define(tp.Callback[tp.Numpy], function(x)
        flow.watch(x, keep, { every = 2 })
        return x + flow.random.uniform(0, 1, { shape = { 1 }, name = "noise" })
      end)
      job:watch("x", keep):every(3)
      for i = 1, 4 do
        job(number(i))(function(y) drawn[i] = y[0] end)
        if is_pressed then
          assert.same({ nil, "busy" }, { job(number(9)) })
          assert.is_false(pcall(job, np.zeros({ 2 }, flow.float)))
        end
        flow.sync()
      end
      return drawn, watched
    end
    local drawn, watched = draws(false)
    assert.same({ 1, 1, 3, 4 }, watched)
    assert.same({ drawn, watched }, { draws(true) })
  end)
end)

describe("the descriptor", function()
  it("is a number, and the same one each time", function()
    assert.equal("number", type(flow.fd()))
    assert.equal(flow.fd(), flow.fd())
  end)

  it("is readable when a callback comes after its run has ended", function()
    local ffi = require "ffi"
    ffi.cdef [[struct mf_test_pollfd { int fd; short events, revents; };
      int poll(struct mf_test_pollfd *, unsigned long, int);]]
    local request = ffi.new("struct mf_test_pollfd", flow.fd(), 1)
    local function readable() return ffi.C.poll(request, 1, 0) == 1 end
    flow.sync()
    assert.is_false(readable())
    local job = define(tp.Callback[tp.Numpy], function(x) return x end)
    local call = job(number(1))
    flow.sync()
    assert.is_false(readable())
    local got
    call(function(x) got = x:item() end)
    assert.is_true(readable())
    assert.equal(1, flow.poll())
    assert.equal(1, got)
    assert.is_false(readable())
  end)

  it("is readable while something can be delivered, also after the session is replaced", function()
    local core = require "moonflow.core"
    local descriptor = flow.fd()
    local waiter = core.waiter()
    waiter:watch(descriptor)
    for _ = 1, 2 do
      local job = define(tp.Callback[tp.Numpy], function(x) return x end)
      assert.is_false(waiter:wait(0))
      local called = 0
      job(number(1))(function() called = called + 1 end)
      assert.is_true(waiter:wait(60000))
      assert.equal(0, called)
      flow.sync()
      assert.equal(1, called)
      assert.is_false(waiter:wait(0))
      flow.clear_default_session()
      assert.equal(descriptor, flow.fd())
    end
  end)
end)

describe("poll with a budget", function()
  it("leaves what its handlers begin to the next one", function()
    local job = define(tp.Callback[tp.Numpy], function(x) return x + 1 end)
    local count = 0
    local function again()
      count = count + 1
      if count < 50 then job(number(1))(again) end
      local start = flow.clock()
      while flow.clock() - start < 0.002 do end  -- so that the run of that has ended
    end
    job(number(1))(again)
    job(number(1))(again)
    assert.is_true(flow.poll() <= 2)
    assert.is_true(count <= 2)
    flow.sync()
    assert.equal(51, count)
  end)

  it("stops when the time is over", function()
    local job = define(tp.Callback[tp.Numpy], function(x) return x end)
    local handled = 0
    for i = 1, 3 do job(number(i))(function() handled = handled + 1 end) end
    while handled == 0 do flow.poll(0) end
    assert.truthy(handled < 3)
    flow.sync()
    assert.equal(3, handled)
  end)

  it("calls one handler where there is no time, also behind a run that has none yet", function()
    flow.config.inflight(1)
    local job = define(tp.Callback[tp.Numpy], function(x) return x end)
    local got, call = {}, nil
    job(number(0))(function()
      call = job(number(1))
      job(number(2))(function(x) got[#got + 1] = x:item() end)
      job(number(3))  -- has room only when both have ended
    end)
    while not call do flow.poll(0) end
    assert.same({}, got)
    assert.equal(1, flow.poll(0))
    assert.same({ 2 }, got)
    call(function(x) got[#got + 1] = x:item() end)
    flow.sync()
    assert.same({ 2, 1 }, got)
  end)
end)

describe("sync with a time", function()
  local handled
  local function launch()
    local job = define(tp.Callback[tp.Numpy], function(x) return x end)
    handled = 0
    for i = 1, 3 do job(number(i))(function() handled = handled + 1 end) end
  end

  it("says whether all is done, and leaves the rest to the next one", function()
    launch()
    assert.is_false(flow.sync(0))
    assert.truthy(handled <= 1)
    repeat local done = flow.sync(1) until done
    assert.equal(3, handled)
    assert.is_true(flow.sync(0))
    launch()
    assert.is_true(flow.sync(math.huge))
    assert.equal(3, handled)
    assert.is_true(flow.sync())
  end)

  it("keeps flow.fd readable while something is left", function()
    launch()
    local waiter = require("moonflow.session").waiter()
    while not flow.sync(0) do assert.is_true(waiter:wait(60000)) end
    assert.equal(3, handled)
  end)

  it("raises what a handler raised, as ever", function()
    local job = define(tp.Callback[tp.Numpy], function(x) return x end)
    job(number(1))(function() error("bad one") end)
    local fine, problem = pcall(flow.sync, 60000)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("bad one", 1, true))
    assert.is_true(flow.sync(0))
  end)

  it("wants milliseconds", function()
    local fine, problem = pcall(flow.sync, "soon")
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("flow.sync wants milliseconds, got ", 1, true))
  end)
end)

describe("an interrupt", function()
  local function in_library()
    return require("moonflow.errors").is_own(debug.getinfo(3, "S").source)
  end

  -- Raises "interrupted" as a Ctrl-C does, after `moment` instructions of `fn` and where the library lets it; not in
  -- callbacks, which would do without their rest.
  -- Gives whether there were as many, and what pcall(fn) gives.
  local function interrupted(moment, fn)
    local count, raised = 0, false
    local function look()
      count = count + 1
      if raised or count < moment or not in_library() or not require("moonflow.interrupts").may_stop(1) then return end
      raised = true
      error("interrupted", 0)
    end
    local function watched()
      debug.sethook(look, "", 1)
      fn()
    end
    local fine, problem = pcall(watched)
    debug.sethook()
    return count >= moment, fine, problem
  end

  local jit_was_on
  before_each(function()
    jit_was_on = jit.status()
    jit.off() -- compiled code looks at no hooks
    jit.flush()
  end)
  after_each(function()
    if jit_was_on then jit.on() end
  end)

  local function at_every_moment(check)
    local moment = 0
    repeat moment = moment + 1 until not check(moment)
    assert.truthy(moment > 50)
  end

  it("of a wait loses neither the error of its run nor the results of others", function()
    local pick = flow.global_function {
      name = "pick", inputs = { x = tp.Numpy.Placeholder({ 1 }, { dtype = flow.int32 }) },
    } (function(x) return flow.nn.sparse_softmax_cross_entropy_with_logits(x, flow.zeros({ 1, 2 })) end)
    local same = define(tp.Callback[tp.Numpy], function(x) return x end)
    local bad = np.array({ 7 }, flow.int32)
    at_every_moment(function(moment)
      local seen = 0
      same(number(1))(function() seen = seen + 1 end)
      local failing = pick(bad)
      same(number(1))(function() seen = seen + 1 end)
      local came, fine, problem = interrupted(moment, function() failing:await() end)
      assert.is_false(fine)
      if problem == "interrupted" then
        fine, problem = pcall(flow.sync)
        assert.is_false(fine, "the error is lost at " .. moment)
      end
      assert.truthy(tostring(problem):find("label 7 is outside", 1, true), tostring(problem))
      flow.sync()
      assert.equal(2, seen, "a result is lost at " .. moment)
      assert.equal(0, flow.in_flight())
      return came
    end)
  end)

  -- Raises an error of a script's own hook after `moment` instructions of `fn`, if that is in the library.
  -- Gives whether there were as many.
  local function ended_by_hook(moment, fn)
    local count = 0
    local function look()
      count = count + 1
      if count == moment and in_library() then error("time is over", 0) end
    end
    pcall(function()
      debug.sethook(look, "", 1)
      fn()
    end)
    debug.sethook()
    return count >= moment
  end

  it("that is the error of a script's own hook, at any place, leaves the session outside of callbacks", function()
    local same = define(tp.Callback[tp.Numpy], function(x) return x end)
    at_every_moment(function(moment)
      same(number(1))(function() end)
      local came = ended_by_hook(moment, flow.sync)
      pcall(flow.sync) -- has what was left
      flow.sync()
      return came
    end)
  end)

  it("that is the error of a script's own hook, at any place, leaves no body of a job open", function()
    at_every_moment(function(moment)
      local came = ended_by_hook(moment, function() define(tp.Numpy, function(x) return x end) end)
      assert.is_nil(require("moonflow.trace").current(), "open at " .. moment)
      return came
    end)
    define(tp.Numpy, function(x) return x end)
  end)

  it("of a wait for a task does not keep the error of the task back", function()
    local same = define(tp.Callback[tp.Numpy], function(x) return x end)
    at_every_moment(function(moment)
      local task = flow.spawn(function()
        local call = same(number(1))
        pcall(call.await, call)
        error("of the task", 0)
      end)
      local came, fine, problem = interrupted(moment, function() task:await() end)
      if problem == "interrupted" then fine, problem = pcall(flow.sync) end
      assert.is_false(fine, "no error at " .. moment)
      assert.truthy(tostring(problem):find("of the task", 1, true), tostring(problem))
      return came
    end)
  end)
end)
