-- Plays samples/love with a clock around every frame, and prints what training costs the frames. Phases with training
-- off and on take turns in the same scene; the mouse is a program's in both, and always draws. Started by love.sh.
-- usage: love tests/bench/love seconds-per-phase pairs-of-phases
local source = os.getenv("MOONFLOW_SOURCE") .. "/samples/love"
package.path = source .. "/?.lua;" .. package.path
dofile(source .. "/main.lua")

local flow = require "moonflow"
local session = require "moonflow.session"
local scenes = { require "scenes.draw", require "scenes.policy" }

local SETTLE = 1  -- seconds at the begin of a phase that do not count

local now = love.timer.getTime

-- ---- a mouse that draws -------------------------------------------------------------------------------------------

local function pen()
  local t = now() * 2
  return 256 + 110 * math.cos(t), 312 + 130 * math.sin(1.5 * t)
end

function love.mouse.getX() return (pen()) end
function love.mouse.getY() return select(2, pen()) end
function love.mouse.isDown() return true end

-- ---- measuring ----------------------------------------------------------------------------------------------------

-- Of one scene and mode, all in milliseconds: the work of a frame, the time from frame to frame, each poll and what it
-- took beyond its budget, and the handlers that it called.
local function new_record()
  return { work = {}, interval = {}, poll = {}, overrun = {}, handler = {} }
end

local record  -- what is measured now; nil while a phase settles

local function add(name, seconds)
  if record then table.insert(record[name], seconds * 1000) end
end

local poll, deliver, sleep = flow.poll, session.deliver, love.timer.sleep
local began  -- the frame

function flow.poll(max_ms)
  local begin = now()
  local count = poll(max_ms)
  local took = now() - begin
  add("poll", took)
  add("overrun", math.max(0, took - max_ms / 1000))
  return count
end

-- The game sleeps when a frame's work is done.
function love.timer.sleep(seconds)
  add("work", now() - began)
  sleep(seconds)
end

local depth = 0

function session.deliver(...)
  local begin = now()
  depth = depth + 1
  deliver(...)
  depth = depth - 1
  if depth == 0 then add("handler", now() - begin) end
end

local function percentile(values, share)
  return values[math.max(1, math.ceil(share * #values))] or 0
end

local function print_histograms(idle, training, name)
  local step, count = name == "work" and 1 or 2, 16
  local function counts(values)
    local bins = {}
    for i = 1, count do bins[i] = 0 end
    for _, value in ipairs(values) do
      local bin = math.min(count, math.floor(value / step) + 1)
      bins[bin] = bins[bin] + 1
    end
    return bins
  end
  local a, b = counts(idle[name]), counts(training[name])
  print(("  %-9s %7s  %-30s %7s"):format("ms", "idle", "", "training"))
  for i = 1, count do
    if a[i] + b[i] > 0 then
      local function bar(n, of) return ("#"):rep(math.ceil(28 * n / of)) end
      print(("  %3d-%-5s %7d  %-30s %7d  %s"):format((i - 1) * step, i < count and i * step or "", a[i],
        bar(a[i], #idle[name]), b[i], bar(b[i], #training[name])))
    end
  end
end

local function print_scene(scene, idle, training)
  print(("== %s: %d frames idle, %d frames training"):format(scene.title, #idle.work, #training.work))
  for _, each in ipairs { idle, training } do
    for _, values in pairs(each) do table.sort(values) end
  end
  local words = { work = "work of a frame", interval = "from frame to frame" }
  for _, name in ipairs { "work", "interval" } do
    print(words[name])
    print_histograms(idle, training, name)
    for _, share in ipairs { 0.5, 0.99 } do
      local before, after = percentile(idle[name], share), percentile(training[name], share)
      print(("  p%d: idle %.2f ms, training %.2f ms, ratio %.2f"):format(100 * share, before, after, after / before))
    end
  end
  print(("  %-20s %32s %32s"):format("ms: p50, p99, most", "idle", "training"))
  local labels = { poll = "a poll", overrun = "beyond its budget", handler = "a handler" }
  for _, name in ipairs { "poll", "overrun", "handler" } do
    local function figures(values)
      return ("%.3f %8.3f %8.3f of %5d"):format(percentile(values, 0.5), percentile(values, 0.99),
        percentile(values, 1), #values)
    end
    print(("  %-20s %32s %32s"):format(labels[name], figures(idle[name]), figures(training[name])))
  end
  io.stdout:flush()
end

-- ---- the loop -----------------------------------------------------------------------------------------------------

local function play(frame, seconds, into)
  local begin = now()
  while now() - begin < seconds do
    record = now() - begin > SETTLE and into or nil
    began = now()
    if frame() then return false end
    add("interval", now() - began)
  end
  record = nil
  return true
end

local run = love.run

function love.run()
  local seconds, pairs_of_phases = tonumber(arg[2]) or 10, tonumber(arg[3]) or 3
  local frame = run()
  for i, scene in ipairs(scenes) do
    local idle, training = new_record(), new_record()
    if i > 1 then love.keypressed("tab") end
    for _ = 1, pairs_of_phases do
      for _, phase in ipairs { { false, idle }, { true, training } } do
        scene.train(phase[1])
        love.keypressed("c")
        love.mousepressed(256, 312, 1)
        if not play(frame, seconds + SETTLE, phase[2]) then return function() return 1 end end
      end
    end
    print_scene(scene, idle, training)
  end
  -- The second scene is left while it trains.
  local begin = now()
  love.quit()
  print(("left in %.0f ms"):format(1000 * (now() - begin)))
  return function() return 0 end
end
