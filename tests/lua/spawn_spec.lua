-- Tasks: flow.spawn and :await(): order, errors, room, nesting, coroutines of the user, host mode, memory.
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

local T = tp.Numpy.Placeholder({ 1 })

local function number(value)
  return np.array({ value }, flow.float)
end

local function define(returns, body)
  return flow.global_function { name = "f", inputs = { x = T }, returns = returns } (body)
end

local function same(x) return x end
local function plus_one(x) return x + 1 end

-- A job that fails for index 9.
local function gathering()
  return flow.global_function {
    name = "g", inputs = { i = tp.Numpy.Placeholder({ 1 }, flow.int32) }, returns = tp.Callback[tp.Numpy],
  } (function(i)
    return flow.gather(flow.constant(1, flow.float, { 3 }), i, { name = "pick" })
  end)
end
local function index(i) return np.array({ i }, flow.int32) end

-- Polls as a host does, until `condition()`; with a bound, so that a fault is a failure and not a hang.
local function poll_until(condition)
  local stop = os.time() + 60
  while not condition() and os.time() < stop do flow.poll(5) end
  assert.is_true(condition())
end

-- Appends. Not list[#list + 1] = value: that index is computed before the value is awaited.
local function add(list, value)
  list[#list + 1] = value
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

describe("a task", function()
  it("starts at once, and goes on where the result is delivered", function()
    local job, order = define(tp.Callback[tp.Numpy], plus_one), {}
    local task = flow.spawn(function(first, second)
      order[#order + 1] = first + second
      local y = job(number(1)):await()
      order[#order + 1] = y[0]
      add(order, job(y):await()[0])
    end, 20, 3)
    order[#order + 1] = "spawned"
    assert.is_false(task:done())
    assert.truthy(tostring(task):find("^task spawned at .*spawn_spec.lua:%d+$"))
    flow.sync()
    assert.is_true(task:done())
    assert.same({ 23, "spawned", 2, 3 }, order)
  end)

  it("gets a tuple as several values, and nothing from a job without results", function()
    local two = define(tp.Callback[tp.Tuple { tp.Numpy, tp.Numpy }], function(x) return x, x + 1 end)
    local none = define(tp.Callback[tp.None], function(x) flow.watch(x, function() end) end)
    local counts = {}
    flow.spawn(function()
      counts[1] = select("#", two(number(1)):await())
      counts[2] = select("#", none(number(1)):await())
      local _, y = two(number(5)):await()
      counts[3] = y[0]
    end)
    flow.sync()
    assert.same({ 2, 0, 6 }, counts)
  end)

  it("awaits futures of jobs without a type, and results that are there already", function()
    local future = flow.global_function { inputs = { x = flow.FixedTensorDef({ 1 }) } } (plus_one)
    local call = future(number(1))
    flow.sync()
    local got = {}
    flow.spawn(function()
      got[1] = call:await()[0]
      got[2] = call:await()[0]
      got[3] = future(number(7)):await()[0]
    end)
    assert.equal(2, #got)
    flow.sync()
    assert.same({ 2, 2, 8 }, got)
  end)

  it("shares a result with a callback and with other tasks, in the order they asked", function()
    local call, order = define(tp.Callback[tp.Numpy], same)(number(3)), {}
    for i = 1, 3 do
      flow.spawn(function() add(order, i * 10 + call:await()[0]) end)
    end
    call(function(x) order[#order + 1] = x[0] end)
    flow.sync()
    assert.same({ 3, 13, 23, 33 }, order)
  end)

  it("may call a synchronous job, whose run ends before anything else is delivered", function()
    local async, sync = define(tp.Callback[tp.Numpy], same), define(tp.Numpy, plus_one)
    local order = {}
    async(number(1))(function() order[#order + 1] = "callback" end)
    flow.spawn(function()
      order[#order + 1] = sync(number(1))[0]
      async(number(1)):await()
      order[#order + 1] = sync(number(2))[0]
    end)
    flow.sync()
    assert.same({ 2, "callback", 3 }, order)
  end)

  it("gives its results to whoever awaits it", function()
    local job = define(tp.Callback[tp.Numpy], same)
    local inner = flow.spawn(function()
      job(number(1)):await()
      return 1, nil, 3, nil
    end)
    local outer = flow.spawn(function() return select("#", inner:await()), (inner:await()) end)
    assert.same({ 4, 1 }, { outer:await() })
    assert.same({ 4, 1 }, { outer:await() })
  end)

  it("may spawn tasks, also from a callback", function()
    local job, order = define(tp.Callback[tp.Numpy], same), {}
    local function work(name, depth)
      order[#order + 1] = name
      if depth > 0 then flow.spawn(work, name .. "a", depth - 1) end
      job(number(1)):await()
      order[#order + 1] = name .. "!"
    end
    job(number(1))(function() flow.spawn(work, "x", 2) end)
    flow.sync()
    assert.same({ "x", "xa", "xaa", "xaa!", "xa!", "x!" }, order)
  end)

  it("is no more than a handler: what waits for other runs is refused", function()
    local problems = {}
    local future = flow.global_function { inputs = { x = flow.FixedTensorDef({ 1 }) } } (same)
    flow.spawn(function()
      for i, wait in ipairs { flow.poll, flow.sync, flow.shutdown, function() future(number(1)):get() end } do
        local fine, problem = pcall(wait)
        problems[i] = not fine and problem
      end
    end)
    flow.sync()
    assert.equal(4, #problems)
    for _, problem in ipairs(problems) do
      assert.equal("wrong_state", problem.code)
      assert.truthy(tostring(problem):find("await in a task", 1, true))
    end
  end)
end)

describe("tasks that find no room", function()
  for _, mode in ipairs { "script", "host" } do
    it("wait for it in order, and are never told busy, in " .. mode .. " mode", function()
      flow.config.pump(mode)
      flow.config.inflight(2)
      local job, order, most = define(tp.Callback[tp.Numpy], same), {}, 0
      local tasks = {}
      for i = 1, 50 do
        tasks[i] = flow.spawn(function()
          add(order, job(number(i)):await()[0])
          most = math.max(most, flow.in_flight())
        end)
      end
      assert.same({}, order)
      poll_until(function() return tasks[50]:done() end)
      for i = 1, 50 do assert.equal(i, order[i]) end
      assert.truthy(most <= 2)
    end)
  end

  it("keep two runs in flight from a plain loop", function()
    flow.config.pump("host")
    flow.config.inflight(2)
    local job, got, ahead = define(tp.Callback[tp.Numpy], same), {}, 0
    local task = flow.spawn(function()
      for i = 1, 100 do
        job(number(i))(function(x) got[#got + 1] = x[0] end)
        ahead = math.max(ahead, i - #got)
      end
    end)
    assert.is_false(task:done())
    poll_until(function() return #got == 100 end)
    assert.is_true(task:done())
    assert.equal(2, ahead)
    for i = 1, 100 do assert.equal(i, got[i]) end
  end)

  it("do not hold up tasks of other jobs", function()
    flow.config.pump("host")
    flow.config.inflight(1)
    local slow, quick = define(tp.Callback[tp.Numpy], same), define(tp.Callback[tp.Numpy], same)
    local done = { slow = 0, quick = 0 }
    for _ = 1, 20 do
      flow.spawn(function() slow(number(1)):await() done.slow = done.slow + 1 end)
      flow.spawn(function() quick(number(1)):await() done.quick = done.quick + 1 end)
    end
    poll_until(function() return done.quick == 20 end)
    assert.truthy(done.slow >= 19)
    poll_until(function() return done.slow == 20 end)
  end)

  it("get the error of a bad input, and let the next one through", function()
    flow.config.pump("host")
    flow.config.inflight(1)
    local job, got, problem = define(tp.Callback[tp.Numpy], same), nil, nil
    job(number(1))
    flow.spawn(function()
      local fine
      fine, problem = pcall(job, np.zeros({ 2 }))
      assert.is_false(fine)
    end)
    flow.spawn(function() got = job(number(3)):await()[0] end)
    poll_until(function() return got ~= nil end)
    assert.equal(3, got)
    assert.equal("f: input 'x' is float32 (2), its placeholder wants float32 (1)", problem.message)
  end)

  it("see each the watches of their own call", function()
    flow.config.inflight(1)
    local seen, handle = {}, nil
    local job = define(tp.Callback[tp.Numpy], function(x)
      handle = flow.watch(x, function(value) seen[#seen + 1] = value[0] end)
      return x
    end)
    handle:every(2)
    for i = 1, 8 do flow.spawn(function() job(number(i)):await() end) end
    flow.sync()
    assert.equal(4, #seen)
    for i = 2, 4 do assert.equal(2, seen[i] - seen[i - 1]) end
  end)
end)

describe("an error in a task", function()
  it("is raised by spawn when it comes at once", function()
    local fine, problem = pcall(flow.spawn, function() error("too early") end)
    assert.is_false(fine)
    -- Nothing has been delivered yet, so there is no number to tell.
    assert.truthy(tostring(problem):find("spawn_spec.lua:%d+: too early\n  in a task spawned at .*spawn_spec.lua:%d+$"))
    flow.sync()
  end)

  it("is raised by whoever delivers, names the task, and has its traceback", function()
    local job, after = define(tp.Callback[tp.Numpy], same), false
    local function deep_inside() error("too late") end
    flow.spawn(function()
      job(number(1)):await()
      deep_inside()
    end)
    job(number(2))(function() after = true end)
    local fine, problem = pcall(flow.sync)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("spawn_spec.lua:%d+: too late\n  in a task spawned at .*spawn_spec.lua:%d+"))
    assert.truthy(problem.traceback:find("deep_inside", 1, true))
    assert.is_true(after)
    flow.sync()
  end)

  it("goes to on_error where one is set", function()
    local got
    flow.config.on_error(function(problem) got = problem end)
    flow.spawn(function() error({ kind = "own" }) end)
    assert.equal("own", got.cause.kind)
  end)

  it("goes to whoever awaits the task instead", function()
    local job, problem = define(tp.Callback[tp.Numpy], same), nil
    local inner = flow.spawn(function()
      job(number(1)):await()
      error({ kind = "own" })
    end)
    flow.spawn(function()
      local fine
      fine, problem = pcall(inner.await, inner)
      assert.is_false(fine)
    end)
    flow.sync()
    assert.equal("own", problem.kind)
  end)

  it("of a run is raised by its await, where pcall catches it", function()
    local job, got, problem = gathering(), nil, nil
    flow.spawn(function()
      local call = job(index(9))
      local fine
      fine, problem = pcall(call.await, call)
      assert.is_false(fine)
      got = job(index(1)):await()[0]
    end)
    flow.sync()
    assert.equal(1, got)
    assert.equal("out_of_range", problem.code)
    assert.truthy(tostring(problem):find("spawn_spec.lua:%d+: g: gather 'pick': "))
  end)

  it("of a run is reported once when the task lets it through", function()
    local job = gathering()
    flow.spawn(function() job(index(9)):await() end)
    local fine, problem = pcall(flow.sync)
    assert.is_false(fine)
    assert.equal("out_of_range", problem.code)
    assert.is_nil(problem.also)
    flow.sync()
  end)

  it("is one to yield by itself", function()
    local fine, problem = pcall(flow.spawn, function() coroutine.yield("mine") end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("coroutine.yield itself", 1, true))
    assert.truthy(tostring(problem):find("spawn_spec.lua:%d+"))
  end)

  it("is one to await itself, or to give flow.spawn no function", function()
    local task, fine, problem
    local job = define(tp.Callback[tp.Numpy], same)
    task = flow.spawn(function()
      job(number(1)):await()
      fine, problem = pcall(task.await, task)
      assert.is_false(fine)
    end)
    flow.sync()
    assert.truthy(tostring(problem):find("await itself", 1, true))
    fine, problem = pcall(function() return task:get() end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("a task has no 'get'; task:await() gives what it returns", 1, true))
    assert.has_error(function() flow.spawn(3) end)
    assert.has_error(function() flow.spawn() end)
  end)

  it("is a ring of tasks that await one another, told to the one that would close it", function()
    local job = define(tp.Callback[tp.Numpy], same)
    local tasks, ended = {}, {}
    for i = 1, 3 do
      tasks[i] = flow.spawn(function()
        job(number(i)):await()
        local fine, problem = pcall(tasks[i % 3 + 1].await, tasks[i % 3 + 1])
        ended[#ended + 1] = fine and i or problem.message:match("^(.*): a task spawned at .*spawn_spec%.lua:%d+$")
      end)
    end
    flow.sync()
    assert.same({ "a task cannot await one that waits for it", 2, 1 }, ended)
  end)
end)

describe("await outside of a task", function()
  it("waits in script mode, delivering meanwhile", function()
    local job, order = define(tp.Callback[tp.Numpy], same), {}
    job(number(1))(function(x) order[#order + 1] = x[0] end)
    add(order, job(number(2)):await()[0])
    assert.same({ 1, 2 }, order)
    local task = flow.spawn(function() return job(number(3)):await()[0] end)
    assert.equal(3, task:await())
  end)

  it("waits in a plain coroutine too, which nobody takes for a task", function()
    local job = define(tp.Callback[tp.Numpy], same)
    local got
    local thread = coroutine.create(function()
      got = job(number(1)):await()[0]
      coroutine.yield()
      flow.spawn(function() got = got + job(number(2)):await()[0] end)
      coroutine.yield()
    end)
    assert.is_true(coroutine.resume(thread))
    assert.equal(1, got)
    assert.is_true(coroutine.resume(thread))
    flow.sync()
    assert.equal(3, got)
    assert.equal("suspended", coroutine.status(thread))
  end)

  it("raises what the run failed with, and tells of a task that cannot end", function()
    local call = gathering()(index(9))
    local fine, problem = pcall(call.await, call)
    assert.is_false(fine)
    assert.equal("out_of_range", problem.code)
    local job = define(tp.Callback[tp.Numpy], same)
    local task = flow.spawn(function() job(number(1)):await() end)
    flow.shutdown()
    fine, problem = pcall(task.await, task)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("never ends", 1, true))
  end)

  it("takes over the error of a task, which is then raised nowhere else", function()
    local job = gathering()
    local task = flow.spawn(function() job(index(9)):await() end)
    local fine, problem = pcall(task.await, task)
    assert.is_false(fine)
    assert.equal("out_of_range", problem.code)
    flow.sync()
    assert.equal(0, flow.poll())
  end)

  it("is refused in host mode, unless the result is there", function()
    flow.config.pump("host")
    local job = define(tp.Callback[tp.Numpy], same)
    local call = job(number(1))
    local fine, problem = pcall(call.await, call)
    assert.is_false(fine)
    assert.equal("wrong_state", problem.code)
    assert.truthy(tostring(problem):find("host mode outside of a task; use flow.spawn", 1, true))
    poll_until(function() return call:ready() end)
    assert.equal(1, call:await()[0])
  end)

  it("is refused in a callback, in a watch of a run that a task waits for, and in the body of a job", function()
    local job = define(tp.Callback[tp.Numpy], same)
    local problems = {}
    local function attempt()
      local fine, problem = pcall(function() return job(number(9)):await() end)
      problems[#problems + 1] = not fine and tostring(problem) or "no error"
    end
    job(number(1))(attempt)
    flow.sync()
    local watched = define(tp.Numpy, function(x) flow.watch(x, attempt) return x end)
    local got
    flow.spawn(function() got = watched(number(5))[0] end)
    flow.sync()
    assert.equal(5, got)
    assert.equal(2, #problems)
    for _, text in ipairs(problems) do assert.truthy(text:find("inside a callback; use flow.spawn", 1, true)) end
    local call = job(number(1))
    local fine, problem = pcall(define, tp.Numpy, function(x) call:await() return x end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("body of a job", 1, true))
    flow.sync()
  end)
end)

describe("coroutines of the user inside a task", function()
  it("work, and await is refused in them", function()
    local job, got, problem = define(tp.Callback[tp.Numpy], same), {}, nil
    flow.spawn(function()
      local numbers = coroutine.wrap(function() for i = 1, 3 do coroutine.yield(i) end end)
      for i in numbers do add(got, job(number(i)):await()[0]) end
      coroutine.wrap(function()
        local fine
        fine, problem = pcall(function() return job(number(1)):await() end)
        assert.is_false(fine)
      end)()
    end)
    flow.sync()
    assert.same({ 1, 2, 3 }, got)
    assert.truthy(tostring(problem):find("in a coroutine that a task has made", 1, true))
  end)

  it("and functions that C calls cannot await", function()
    local job, problem = define(tp.Callback[tp.Numpy], same), nil
    flow.spawn(function()
      local call = job(number(1))
      ;("x"):gsub("x", function()
        local fine
        fine, problem = pcall(call.await, call)
        assert.is_false(fine)
      end)
    end)
    flow.sync()
    assert.truthy(tostring(problem):find("called from C", 1, true))
  end)

  it("cannot resume a task behind the session's back", function()
    local job, thread, got = define(tp.Callback[tp.Numpy], same), nil, nil
    flow.spawn(function()
      thread = coroutine.running()
      got = job(number(4)):await()[0]
    end)
    for _ = 1, 3 do coroutine.resume(thread, "not a result") end
    assert.is_nil(got)
    flow.sync()
    assert.equal(4, got)
    assert.equal("dead", coroutine.status(thread))
  end)
end)

describe("memory", function()
  it("does not grow over 20,000 awaits", function()
    local job, x = define(tp.Callback[tp.Numpy], same), number(1)
    local function awaits(count)
      for _ = 1, count do job(x):await() end
    end
    flow.spawn(awaits, 500)
    flow.sync()
    collectgarbage() collectgarbage()
    local before = collectgarbage("count")
    flow.spawn(awaits, 20000)
    flow.sync()
    collectgarbage() collectgarbage()
    assert.truthy(collectgarbage("count") - before < 32)
  end)

  it("holds for a chain of 20,000 tasks, each awaiting the one before", function()
    local job = define(tp.Callback[tp.Numpy], same)
    local last = flow.spawn(function() return job(number(0)):await()[0] end)
    for _ = 1, 20000 do
      local before = last
      last = flow.spawn(function() return before:await() + 1 end)
    end
    assert.equal(20000, last:await())
  end)

  it("of forgotten tasks is collected: of ended ones, and of those whose result never comes", function()
    local alive = setmetatable({}, { __mode = "k" })
    local job = define(tp.Callback[tp.Numpy], same)
    flow.config.inflight(1)
    local narrow = define(tp.Callback[tp.Numpy], same)
    for i = 1, 30 do
      local token = {}
      alive[token] = true
      flow.spawn(function()
        if i % 3 == 0 then job(number(1)):await() end
        if i % 3 == 1 then narrow(number(1)):await() end
        return token
      end)
      local one, other
      one = flow.spawn(function() job(number(1)):await() pcall(other.await, other) return token end)
      other = flow.spawn(function() job(number(1)):await() pcall(one.await, one) return token end)
    end
    collectgarbage() collectgarbage()
    assert.truthy(next(alive))
    flow.sync()
    require "jit".flush()  -- compiled code keeps closures that it has met
    collectgarbage() collectgarbage()
    assert.is_nil(next(alive))
    local token = {}
    alive[token] = true
    for _ = 1, 3 do flow.spawn(function() narrow(number(1)):await() return token end) end
    token = nil
    flow.shutdown()
    collectgarbage() collectgarbage()
    assert.is_nil(next(alive))
    assert.is_nil(token)
  end)
end)

describe("flow.fd", function()
  it("wakes the loop that resumes a task", function()
    local ffi = require "ffi"
    pcall(ffi.cdef, [[struct mf_test_pollfd { int fd; short events, revents; };
      int poll(struct mf_test_pollfd *, unsigned long, int);]])
    local request = ffi.new("struct mf_test_pollfd", flow.fd(), 1)
    flow.config.pump("host")
    local job, got = define(tp.Callback[tp.Numpy], plus_one), 0
    local task = flow.spawn(function()
      for _ = 1, 100 do got = job(number(got)):await()[0] end
    end)
    while not task:done() do
      assert.equal(1, ffi.C.poll(request, 1, 60000))
      flow.poll(0)
    end
    assert.equal(100, got)
  end)

  it("stays readable while results wait that a call inside a task has put aside", function()
    local ffi = require "ffi"
    local request = ffi.new("struct mf_test_pollfd", flow.fd(), 1)
    flow.config.pump("host")
    local async, sync = define(tp.Callback[tp.Numpy], same), define(tp.Numpy, same)
    local got = 0
    for _ = 1, 3 do async(number(1))(function() got = got + 1 end) end
    flow.spawn(function()
      for _ = 1, 20 do sync(number(1)) end
    end)
    while got < 3 do
      assert.equal(1, ffi.C.poll(request, 1, 60000))
      flow.poll(0)
    end
  end)
end)
