--- The scene in which a policy learns to catch balls: one court in large, all of them in small, and how it goes.
local catch = require "catch"
local look = require "look"

local COURT_X, COURT_Y, COURT = look.square.x, look.square.y, look.square.size
local COLUMNS, CELL, GAP = 16, 22, 2
local TRAIL = 14

local scene = { title = "Catch" }

local trail = {}  -- of the large court's ball: the latest places, x and y in turn, newest last

function scene.load() end

function scene.enter() end

function scene.leave() end

function scene.update(dt)
  catch.update(dt)
  local x, y = catch.x[1], catch.y[1]
  if #trail > 0 and y < trail[#trail] then trail = {} end
  if x ~= trail[#trail - 1] or y ~= trail[#trail] then
    trail[#trail + 1], trail[#trail + 2] = x, y
    if #trail > 2 * TRAIL then
      table.remove(trail, 1)
      table.remove(trail, 1)
    end
  end
end

-- A court glows green for a while after a catch and red after a miss.
local function glow(i, strength)
  local value = catch.glow[i]
  if math.abs(value) > 0.03 then
    look.color(value > 0 and "good" or "bad", math.abs(value) * strength)
    return true
  end
  return false
end

-- Of a point of the large court, given in its own lengths.
local function place(x, y)
  return COURT_X + 12 + x * (COURT - 24), COURT_Y + 18 + y * (COURT - 60)
end

local function draw_court()
  look.color("panel")
  love.graphics.rectangle("fill", COURT_X, COURT_Y, COURT, COURT, 10, 10)
  if glow(1, 0.25) then love.graphics.rectangle("fill", COURT_X, COURT_Y, COURT, COURT, 10, 10) end
  for i = 1, #trail, 2 do
    local x, y = place(trail[i], trail[i + 1])
    look.color("moon", 0.35 * i / #trail)
    love.graphics.circle("fill", x, y, 4 + 7 * i / #trail, 24)
  end
  local x, y = place(catch.x[1], catch.y[1])
  look.color("moon")
  look.disc(x, y, 12)
  x, y = place(catch.paddle[1], 1)
  local half = catch.half * (COURT - 24)
  look.color("blue")
  love.graphics.rectangle("fill", x - half, y + 12, 2 * half, 12, 6, 6)
  look.hint("one of the " .. catch.count .. " games that it learns from; T " .. (catch.training and "stops" or "starts")
    .. " training")
end

local function draw_courts()
  local x, y, width = look.column.x, look.column.y, look.column.width
  look.panel(x, y, width, 216, "All games", "green: caught, red: missed")
  local left = x + (width - COLUMNS * (CELL + GAP) + GAP) / 2
  for i = 1, catch.count do
    local cx = left + (i - 1) % COLUMNS * (CELL + GAP)
    local cy = y + 52 + math.floor((i - 1) / COLUMNS) * (CELL + GAP)
    look.color("ground")
    love.graphics.rectangle("fill", cx, cy, CELL, CELL)
    if glow(i, 0.7) then love.graphics.rectangle("fill", cx, cy, CELL, CELL) end
    look.color("moon")
    love.graphics.rectangle("fill", cx + catch.x[i] * (CELL - 3), cy + catch.y[i] * (CELL - 6), 3, 3)
    look.color("blue")
    local half = catch.half * CELL
    love.graphics.rectangle("fill", cx + catch.paddle[i] * CELL - half, cy + CELL - 3, 2 * half, 2)
  end
end

local function percent(value)
  return ("%.0f %%"):format(100 * value)
end

local function draw_learning()
  local x, y, width, height = look.column.x, look.column.y + 232, look.column.width, look.column.height - 232
  look.panel(x, y, width, height, "REINFORCE", ("%d updates, %d balls"):format(catch.updates, catch.balls))
  local right = look.text(("%.0f %%"):format(100 * catch.caught), x + 20, y + 42, "title", "good")
  look.text("of the latest balls are caught", right + 12, y + 49, "body", "quiet")
  local half = (width - 40) / 2
  look.curve(catch.caught_curve, x + 58, y + 90, half - 50, height - 130,
    { low = 0, high = 1, format = percent, color = "good" })
  look.curve(catch.return_curve, x + half + 72, y + 90, half - 50, height - 130,
    { low = -0.4, high = 0.4, format = function(v) return ("%.1f"):format(v) end, color = "blue" })
  look.text("balls caught", x + 58, y + height - 28, "small", "quiet")
  look.text("mean return, smoothed", x + half + 72, y + height - 28, "small", "quiet")
end

function scene.draw()
  draw_court()
  draw_courts()
  draw_learning()
end

function scene.train(on)
  catch.training = on
end

function scene.is_training()
  return catch.training
end

--- What the scene shows, for tests.
function scene.state()
  return {
    updates = catch.updates, balls = catch.balls, caught = catch.caught, training = catch.training,
    ball = { place(catch.x[1], catch.y[1]) },
  }
end

return scene
