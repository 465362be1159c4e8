-- A game that learns while it is played: `love samples/love` from the root of the sources, after a build.
-- Two scenes: a net that reads the digit you draw, and a policy that learns to catch balls. Tab or a click on a name
-- changes the scene, T switches training off and on, F12 saves a picture of the window and the state of the scene as
-- JSON in LÖVE's save folder, Escape leaves.
--
-- All of Moonflow's part in the loop is here: host mode, one poll per frame, and a shutdown at the end.

-- The library of an installation, or of LUA_PATH and LUA_CPATH; else the one built beside these sources.
if not pcall(require, "moonflow") then
  local built = love.filesystem.getSource() .. "/../../build/lua/"
  package.path = package.path .. ";" .. built .. "?.lua;" .. built .. "?/init.lua"
  package.cpath = package.cpath .. ";" .. built .. "?.so"
end
local flow = require "moonflow"

local POLL_MS = 2          -- of each frame for results; what is not delivered then waits for the next one
local LEAST_FRAME = 0.015  -- seconds; the screen's own rhythm does the rest where there is one

flow.config.pump("host")
-- One thread computes. A second one would take the core that draws: threads of a kernel wait for one another by
-- spinning, so on two cores every frame would wait for them.
flow.config.cpu_threads(1)
flow.config.inflight(2)  -- what two polls are apart is time for two steps of training, not for more

local look = require "look"
local scenes = { require "scenes.draw", require "scenes.policy" }
local scene = scenes[1]

-- Only the scene that is shown has runs under way, so that its results are there within a frame.
local function switch(to)
  scene.leave()
  scene = to
  scene.enter()
end

function love.load()
  look.load()
  for _, each in ipairs(scenes) do each.load() end
  scene.enter()
end

function love.update(dt)
  flow.poll(POLL_MS)
  scene.update(dt)
end

function love.draw()
  look.header(scenes, scene)
  scene.draw()
end

function love.mousepressed(x, y, button)
  local tab = look.tab_at(scenes, x, y)
  if tab then switch(tab) elseif scene.mousepressed then scene.mousepressed(x, y, button) end
end

local wants_state = false

-- Of the frame that has just been drawn, so that picture and state are about the same moment.
local function save_state()
  wants_state = false
  local words = { '"scene": "' .. scene.title .. '"' }
  for name, value in pairs(scene.state()) do
    words[#words + 1] = ('"%s": %s'):format(name, type(value) == "table" and "[" .. table.concat(value, ", ") .. "]"
      or tostring(value))
  end
  love.filesystem.write("state.json", "{" .. table.concat(words, ", ") .. "}\n")
  love.graphics.captureScreenshot("screenshot.png")
end

function love.keypressed(key)
  if key == "escape" then
    love.event.quit()
  elseif key == "tab" then
    switch(scene == scenes[1] and scenes[2] or scenes[1])
  elseif key == "t" then
    scene.train(not scene.is_training())
  elseif key == "f12" then
    wants_state = true
  elseif scene.keypressed then
    scene.keypressed(key)
  end
end

function love.quit()
  flow.shutdown()
end

-- LÖVE's own loop with the picture first. So what an update starts is computed while the loop waits for the next frame,
-- and not while this one is drawn: where OpenGL is software, it draws on the same cores.
function love.run()
  love.load()
  love.timer.step()
  return function()
    local began = love.timer.getTime()
    love.graphics.origin()
    love.graphics.clear(love.graphics.getBackgroundColor())
    love.draw()
    if wants_state then save_state() end
    love.graphics.present()
    love.event.pump()
    for name, a, b, c, d, e, f in love.event.poll() do
      if name == "quit" then
        love.quit()
        return a or 0
      end
      love.handlers[name](a, b, c, d, e, f)
    end
    love.update(love.timer.step())
    love.timer.sleep(math.max(0, began + LEAST_FRAME - love.timer.getTime()))
  end
end
