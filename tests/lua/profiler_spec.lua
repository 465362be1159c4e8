-- The profiler: its file, its arrows, and what the summary of a plan learns from it.

local flow = require "moonflow"
local core = require "moonflow.core"
local tp, np = flow.typing, flow.np

local function define(returns)
  local inputs = { x = tp.Numpy.Placeholder({ 32, 64 }) }
  return flow.global_function { name = "product", inputs = inputs, returns = returns } (function(x)
    local y = flow.layers.dense(x, 16, { activation = flow.nn.relu, name = "dense1" })
    flow.watch(y, function() end)
    return y
  end)
end

-- The trace file as text; each event stands on its own line.
local function profile(work)
  local path = os.tmpname()
  flow.profiler.start(path)
  work()
  local count = flow.profiler.stop()
  local file = assert(io.open(path, "r"))
  local text = file:read("*a")
  file:close()
  os.remove(path)
  return text, count
end

local function message_of(work)
  local fine, problem = pcall(work)
  assert.is_false(fine)
  return tostring(problem)
end

local function count_of(text, pattern)
  return select(2, text:gsub(pattern, ""))
end

describe("a profile", function()
  it("shows steps with shapes and lines, runs, callbacks and arrows", function()
    local job = define(tp.Callback[tp.Numpy])
    local x = np.ones({ 32, 64 })
    job(x)(function() end)
    flow.sync()
    local text, count = profile(function()
      for _ = 1, 5 do job(x)(function() end) end
      flow.sync()
    end)
    assert.truthy(text:match("^%[\n{") and text:match("}\n%]\n$"))
    assert.equal(5, count_of(text, '"cat":"run"'))
    assert.equal(10, count_of(text, '"cat":"delivery"'))  -- the watch and the callback of each run
    assert.equal(5, count_of(text, '"ph":"s"'))
    assert.equal(5, count_of(text, '"ph":"f"'))
    assert.truthy(text:find('"name":"dense \'dense1-matmul\'"', 1, true))
    assert.truthy(text:find('"inputs":["float32 (32, 64)"', 1, true))
    assert.truthy(text:find('profiler_spec.lua:', 1, true))
    assert.equal(count, count_of(text, '"ph":"X"'))
  end)

  it("shows what prepared calls do, made before it and while it is taken", function()
    local job = define(tp.Numpy)
    local before, while_it_is = job:prepare()
    before()
    assert.truthy(before:summary():find("no times yet", 1, true))
    local text = profile(function()
      before()
      while_it_is = job:prepare()
      while_it_is()
      while_it_is()
    end)
    before()
    assert.equal(3, count_of(text, '"cat":"run"'))
    assert.truthy(text:find('"name":"dense \'dense1-matmul\'"', 1, true))
    for _, call in ipairs { before, while_it_is } do
      assert.truthy(call:summary():match("product%(x: float32%[32,64%]%) %-> Numpy  %[prepared%]\n"))
      assert.truthy(call:summary():match("dense 'dense1%-matmul' [^\n]- %d+%.%d%d%d+ "))
      assert.truthy(call:summary { plan = true }:find("ms in steps", 1, true))
    end
    assert.truthy(job:summary { plan = true }:find("no times yet", 1, true))
    assert.equal(job:summary(), before:summary { plan = false })
    assert.truthy(message_of(function() before:summary("plan") end):find("prepared:summary: ", 1, true))
  end)

  it("tells the summary of the plan how long its steps take", function()
    local job = define(tp.Numpy)
    local x = np.ones({ 32, 64 })
    assert.truthy(job:summary { plan = true }:find("no times yet", 1, true))
    flow.profiler.start()
    for _ = 1, 20 do job(x) end
    flow.profiler.stop()
    local text = job:summary { plan = true }
    local ms, gflops, _, share = text:match("dense 'dense1%-matmul' +float32 %(32, 16%) +(%S+) +(%S+) +(%S+) +(%d+)%%")
    assert.is_true(tonumber(ms) >= 0)
    assert.is_true(tonumber(gflops) > 0)
    assert.is_true(tonumber(share) >= 0)
    assert.truthy(text:find("steps, the last 0 write variables", 1, true))
  end)

  it("keeps no event that nobody will read, and no more than there is room for", function()
    local session = require("moonflow.session").handle()
    local job = define(tp.Numpy)
    local x = np.ones({ 32, 64 })
    job(x)
    local function events_of(most)
      session:profile_start(most)
      for _ = 1, 20 do job(x) end
      return session:profile_stop()
    end
    local all, none_left_out = events_of()
    assert.is_true(all >= 40 and none_left_out == 0)  -- a step or more in each run, and the run
    assert.same({ all, all - 7 }, { events_of(7) })
    flow.profiler.start()
    local kept = session:profile_stop()
    assert.equal(0, kept)
    flow.profiler.stop()
    assert.same({ all, all }, { events_of(0) })
  end)

  it("is over when it is stopped", function()
    local job = define(tp.Numpy)
    local text, count = profile(function() end)
    assert.equal(0, count)
    assert.equal(0, count_of(text, '"ph":"X"'))
    job(np.ones({ 32, 64 }))
  end)

  it("is refused twice, and when there is none to stop", function()
    assert.truthy(message_of(function() flow.profiler.stop() end):find("no profile is being taken", 1, true))
    flow.profiler.start()
    assert.truthy(message_of(function() flow.profiler.start() end):find("a profile is being taken", 1, true))
    assert.truthy(message_of(function() flow.profiler.stop("p.json") end):find("takes no arguments", 1, true))
    flow.profiler.stop()
  end)

  it("says which file it cannot write", function()
    flow.profiler.start("/nowhere/trace.json")
    assert.truthy(message_of(function() flow.profiler.stop() end):find("/nowhere", 1, true))
    assert.equal("number", type(core.measure_peak_flops(1)))
  end)
end)
