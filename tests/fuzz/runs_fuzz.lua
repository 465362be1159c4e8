-- Calls of several jobs in any order: synchronous and not, from the script and from callbacks and tasks, while jobs are
-- defined anew, watched, dropped and collected, variables are read and written, and handlers raise errors. Each call
-- must deliver once, in the order of the calls of its job, what its inputs and the state before it say; each error must
-- be raised once.
--   moonflow tests/fuzz/runs_fuzz.lua [actions] [seed]
local here = arg[0]:match("^(.*)/") or "."
package.path = here .. "/?.lua;" .. package.path
local flow = require "moonflow"
local draws = require "draws"

local np, tp = flow.np, flow.typing
local ACTIONS, SEED = tonumber((...)) or 3000, tonumber((select(2, ...))) or 1
local g = draws(SEED, 4000)

local problems = {}
local function check(holds, ...)
  if not holds then problems[#problems + 1] = string.format(...) end
end

-- ---- jobs ---------------------------------------------------------------------------------------------------------

local jobs, made = {}, 0
local depth = 0           -- of callbacks
local thrown, caught = 0, 0
local sums = {}           -- of each call that adds to the variable: { before, after }
local lost = 0            -- what calls have added that raised what a handler threw, and so gave nothing
local act

-- An array of n values, so that some feeds are small and some are not.
local function vector(value, n) return np.full({ n }, value) end

-- `kind`: "plain" gives factor * x, "count" adds x[0] to the variable and gives what it was before.
local function define(kind)
  made = made + 1
  local job = { kind = kind, factor = 1 + g.below(5), size = g.one_of { 1, 3, 2000 }, called = 0, delivered = 0,
                watched = 0, asynchronous = g.chance(2), name = kind .. made, watches = {} }
  local annotation = job.asynchronous and tp.Callback[tp.Numpy] or tp.Numpy
  local future = not job.asynchronous and g.chance(3)
  job.future = future
  local spec = { name = job.name, inputs = { x = tp.Numpy.Placeholder({ job.size }) } }
  if not future then spec.returns = annotation end
  job.run = flow.global_function(spec) (function(x)
    if kind == "count" then
      local w = flow.get_variable("total", { shape = { 1 }, initializer = flow.zeros_initializer() })
      flow.assign_add(w, flow.slice(x, { 0 }, { 1 }))
      return w + flow.math.reduce_sum(x) * 0
    end
    local y = flow.nn.relu(x * job.factor, { name = "inner" })
    if g.chance(3) then
      job.watches[1] = flow.watch(y, function(value)
        job.watched = job.watched + 1
        check(value[0] % job.factor == 0, "%s: watched %g", job.name, value[0])
      end)
    end
    return y + 0
  end)
  return job
end

-- What a call gave: a product, or what the variable was, from which the order of the calls follows.
-- `ordered`: it comes in the order of its job's calls.
local function look(job, value, y, ordered)
  local size = job.kind == "count" and 1 or job.size
  check(y.shape[0] == size and y[0] == y[-1], "%s gave %s", job.name, tostring(y))
  if job.kind == "count" then
    if ordered then
      check(y[0] > (job.before or -1), "%s gave %g after %g", job.name, y[0], job.before or -1)
      job.before = y[0]
    end
    sums[#sums + 1] = { y[0], y[0] + value }
  else
    check(y[0] == value * job.factor, "%s gave %g, wanted %g", job.name, y[0], value * job.factor)
  end
end

-- Calls a job and checks what it gives, when it gives it.
local function call(job)
  local value = 1 + g.below(100)
  local number  -- of the call, among the asynchronous ones of its job
  local function deliver(y)
    job.delivered = job.delivered + 1
    check(job.delivered == number, "%s: call %d was delivered as number %d", job.name, number, job.delivered)
    look(job, value, y, true)
    if depth < 3 then
      depth = depth + 1
      for _ = 1, g.below(3) do act(true) end
      depth = depth - 1
    end
    if g.chance(15) then
      thrown = thrown + 1
      error("thrown " .. thrown, 0)
    end
  end
  local x = vector(value, job.size)
  local fine, given = pcall(job.run, x)
  if not fine then
    if job.kind == "count" then lost = lost + value end
    error(given, 0)
  end
  x[0] = -1  -- what a call was given is its own
  if not job.asynchronous and not job.future then return look(job, value, given) end
  job.called = job.called + 1
  number = job.called
  if job.asynchronous then given(deliver) else given:async_get(deliver) end
end

-- A task that waits for its calls one after another.
local tasks, tasks_ended = 0, 0
local function task()
  tasks = tasks + 1
  flow.spawn(function()
    for _ = 1, 1 + g.below(3) do
      local job, value = g.one_of(jobs), 1 + g.below(100)
      if job.asynchronous or job.future then
        local x = vector(value, job.size)
        local pending = job.run(x)
        x[0] = -1
        look(job, value, pending:await())
        if g.chance(3) then collectgarbage("step", 50) end
      end
    end
    tasks_ended = tasks_ended + 1
  end)
end

-- ---- actions ------------------------------------------------------------------------------------------------------

-- Runs something that may raise what handlers threw, and counts those errors.
local function pumping(body)
  local fine, problem = pcall(body)
  if fine then return end
  local text = tostring(problem)
  if not text:find("thrown %d+") then return check(false, "raised %s", text) end
  caught = caught + 1
  for _ in ipairs(type(problem) == "table" and problem.also or {}) do caught = caught + 1 end
end

local outside = {
  function() pumping(function() flow.poll(g.one_of { 0, 0, 1, 1e9 }) end) end,
  function() pumping(flow.poll) end,
  function() pumping(flow.sync) end,
}

local anywhere = {
  function() pumping(task) end,  -- the first call of a task may make room, and deliver others' results
  function() collectgarbage() end,
  function() collectgarbage("step", 100) end,
  function()
    local at = 1 + g.below(6)
    jobs[at] = define(g.one_of { "plain", "plain", "count" })
  end,
  function(inside)
    local job = g.one_of(jobs)
    local watch = job.watches[1]
    if watch then g.one_of { watch.on, watch.off, function(w) w:every(2) end } (watch) end
    if job.kind == "plain" and not inside and g.chance(4) then
      job.run:watch("inner", function() job.watched = job.watched + 1 end)
    end
  end,
  function() check(flow.in_flight() >= 0, "in flight") end,
  function()
    local values = flow.get_all_variables()
    if values.total then flow.load_variables({ total = values.total + 0 }) end
  end,
  function(inside)
    if inside then
      for _, name in ipairs { "poll", "sync", "clear_default_session", "shutdown" } do
        local fine, problem = pcall(flow[name])
        check(not fine and tostring(problem):find("callback"), "%s inside a callback: %s", name, tostring(problem))
      end
    end
  end,
}

function act(inside)
  if g.chance(3) and not inside then return g.one_of(outside)(false) end
  if g.chance(4) then return g.one_of(anywhere)(inside) end
  local job = g.one_of(jobs)
  -- A synchronous call delivers what others have waiting, and raises what their handlers throw.
  if inside then
    call(job)
  else
    pumping(function() call(job) end)
  end
end

for at = 1, 6 do jobs[at] = define(at % 2 == 0 and "count" or "plain") end
local all = {}
for _ = 1, ACTIONS do
  for _, job in ipairs(jobs) do all[job] = true end
  act(false)
end
for _ = 1, 100 do
  if flow.in_flight() == 0 then break end
  pumping(flow.sync)
end
pumping(flow.sync)
local calls, watched = 0, 0
for job in pairs(all) do
  calls, watched = calls + job.called, watched + job.watched
  check(job.delivered == job.called, "%s: %d calls, %d delivered", job.name, job.called, job.delivered)
end
check(tasks == tasks_ended, "%d tasks, %d ended", tasks, tasks_ended)
check(thrown == caught, "%d errors thrown, %d raised", thrown, caught)
table.sort(sums, function(a, b) return a[1] < b[1] end)
local total = 0
local gaps = 0
for _, sum in ipairs(sums) do
  check(sum[1] >= total, "a call found %g in the variable, where another had left %g", sum[1], total)
  gaps, total = gaps + sum[1] - total, sum[2]
end
local left = flow.get_all_variables().total
gaps = gaps + (left and left[0] or 0) - total
check(gaps == lost, "%g were added by nobody", gaps - lost)
print(("%d actions, %d calls of %d jobs, %d values watched, %d errors thrown"):format(ACTIONS, calls, made, watched,
  thrown))
if #problems > 0 then error("wrong:\n" .. table.concat(problems, "\n", 1, math.min(#problems, 20)), 0) end
