--- The scene in which a person draws a digit with the mouse and sees, every frame, what the net takes it for.
local digits = require "digits"
local look = require "look"

local SIDE = 28
local BOARD_X, BOARD_Y, BOARD = look.square.x, look.square.y, look.square.size
local CELL = BOARD / SIDE
local BRUSH = 1.6  -- radius in cells

local scene = { title = "Read a digit" }

local ink = {}        -- brightness of each cell as drawn, row by row
local picture         -- what the net gets: the drawing as MNIST frames its digits
local bars = {}       -- the heights shown, which follow the probabilities
local is_empty, is_changed = true, true
local board_image, board_data, seen_image, seen_data
local last_x, last_y  -- where the stroke was, in cells

local function clear()
  for i = 1, SIDE * SIDE do ink[i] = 0 end
  is_empty, is_changed = true, true
  digits.forget()
end

local function new_image()
  local data = love.image.newImageData(SIDE, SIDE)
  local image = love.graphics.newImage(data)
  image:setFilter("nearest", "nearest")
  return image, data
end

function scene.load()
  board_image, board_data = new_image()
  seen_image, seen_data = new_image()
  for class = 1, 10 do bars[class] = 0 end
  clear()
  digits.load()
end

local trains_when_shown = not digits.is_ready

function scene.enter()
  digits.train(trains_when_shown)
end

function scene.leave()
  trains_when_shown = digits.training
  digits.train(false)
end

-- ---- drawing with the mouse ---------------------------------------------------------------------------------------

-- Cells within the brush's radius of a point (in cells) take ink, softly at its edge.
local function dab(x, y)
  for row = math.max(0, math.floor(y - 3)), math.min(SIDE - 1, math.floor(y + 3)) do
    for column = math.max(0, math.floor(x - 3)), math.min(SIDE - 1, math.floor(x + 3)) do
      local distance = math.sqrt((column + 0.5 - x) ^ 2 + (row + 0.5 - y) ^ 2)
      local i = row * SIDE + column + 1
      ink[i] = math.max(ink[i], math.max(0, math.min(1, (BRUSH - distance) / 0.8)))
    end
  end
  is_empty, is_changed = false, true
end

local function stroke(x, y)
  local steps = math.max(1, math.ceil(math.max(math.abs(x - last_x), math.abs(y - last_y)) * 3))
  for i = 1, steps do dab(last_x + (x - last_x) * i / steps, last_y + (y - last_y) * i / steps) end
  last_x, last_y = x, y
end

-- In cells; nil outside of the board.
local function mouse_cell()
  local x, y = (love.mouse.getX() - BOARD_X) / CELL, (love.mouse.getY() - BOARD_Y) / CELL
  if x < 0 or y < 0 or x > SIDE or y > SIDE then return nil end
  return x, y
end

function scene.mousepressed(_, _, button)
  local x, y = mouse_cell()
  if not x then return end
  if button == 1 then
    last_x, last_y = x, y
    dab(x, y)
  else
    clear()
  end
end

function scene.keypressed(key)
  if key == "c" or key == "space" or key == "backspace" then clear() end
end

-- ---- framing ------------------------------------------------------------------------------------------------------

-- The least box around the ink, in cells from 0, ends included.
local function ink_box()
  local left, top, right, bottom = SIDE, SIDE, -1, -1
  for i = 1, SIDE * SIDE do
    if ink[i] > 0.2 then
      local row, column = math.floor((i - 1) / SIDE), (i - 1) % SIDE
      left, right = math.min(left, column), math.max(right, column)
      top, bottom = math.min(top, row), math.max(bottom, row)
    end
  end
  return left, top, right, bottom
end

local function ink_at(row, column)
  if row < 0 or column < 0 or row >= SIDE or column >= SIDE then return 0 end
  return ink[row * SIDE + column + 1]
end

-- Between the middles of four cells.
local function sample(x, y)
  local column, row = math.floor(x), math.floor(y)
  local fx, fy = x - column, y - row
  local above = ink_at(row, column) * (1 - fx) + ink_at(row, column + 1) * fx
  local below = ink_at(row + 1, column) * (1 - fx) + ink_at(row + 1, column + 1) * fx
  return above * (1 - fy) + below * fy
end

-- The drawing scaled into a box of 20 x 20 and moved so that its centre of mass is the middle, as MNIST has it.
local function framed()
  local left, top, right, bottom = ink_box()
  local result = {}
  if right < 0 then
    for i = 1, SIDE * SIDE do result[i] = 0 end
    return result
  end
  local mass, mean_x, mean_y = 0, 0, 0
  for row = top, bottom do
    for column = left, right do
      local value = ink_at(row, column)
      mass, mean_x, mean_y = mass + value, mean_x + value * column, mean_y + value * row
    end
  end
  local scale = math.max(right - left + 1, bottom - top + 1) / 20
  for row = 0, SIDE - 1 do
    for column = 0, SIDE - 1 do
      result[#result + 1] = sample(mean_x / mass + (column - 13.5) * scale, mean_y / mass + (row - 13.5) * scale)
    end
  end
  return result
end

local function show(image, data, values, color)
  local back, front = look.colors.ground, look.colors[color]
  data:mapPixel(function(x, y)
    local v = values[y * SIDE + x + 1]
    return back[1] + (front[1] - back[1]) * v, back[2] + (front[2] - back[2]) * v, back[3] + (front[3] - back[3]) * v
  end)
  image:replacePixels(data)
end

-- ---- each frame ---------------------------------------------------------------------------------------------------

function scene.update(dt)
  if love.mouse.isDown(1) and last_x then
    local x, y = mouse_cell()
    if x then stroke(x, y) else last_x = nil end
  else
    last_x = nil
  end
  if is_changed then
    picture = framed()
    show(board_image, board_data, ink, "text")
    show(seen_image, seen_data, picture, "text")
    is_changed = false
  end
  if not is_empty then digits.read(picture) end
  local quickness = 1 - math.exp(-14 * dt)
  for class = 1, 10 do
    local goal = digits.probabilities and not is_empty and digits.probabilities[class] or 0
    bars[class] = bars[class] + (goal - bars[class]) * quickness
  end
end

local function draw_board()
  love.graphics.setColor(1, 1, 1)
  love.graphics.draw(board_image, BOARD_X, BOARD_Y, 0, CELL, CELL)
  love.graphics.setLineWidth(1)
  look.color("line", 0.55)
  for i = 1, SIDE - 1 do
    local at = i * CELL + 0.5
    love.graphics.line(BOARD_X + at, BOARD_Y, BOARD_X + at, BOARD_Y + BOARD)
    love.graphics.line(BOARD_X, BOARD_Y + at, BOARD_X + BOARD, BOARD_Y + at)
  end
  look.color("line")
  love.graphics.rectangle("line", BOARD_X, BOARD_Y, BOARD, BOARD, 4, 4)
  if is_empty then
    look.text("draw a digit here", BOARD_X + BOARD / 2, BOARD_Y + BOARD / 2 - 14, "title", "quiet", "center")
  end
  look.hint("left button draws, right button clears; T " .. (digits.training and "stops" or "starts") .. " training")
end

local function likeliest()
  local best = 1
  for class = 2, 10 do
    if bars[class] > bars[best] then best = class end
  end
  return best
end

local BAR_X, BAR_Y, BAR_STEP, BAR_LENGTH = look.column.x + 44, look.column.y + 48, 20, 200

local function draw_bars()
  local x, y, width = look.column.x, look.column.y, look.column.width
  look.panel(x, y, width, 264, "The net reads", "what it sees")
  love.graphics.setColor(1, 1, 1)
  love.graphics.draw(seen_image, x + width - 104, y + 48, 0, 3, 3)
  local best = likeliest()
  if bars[best] > 0.05 then
    look.text(tostring(best - 1), x + width - 62, y + 164, "big", bars[best] > 0.5 and "moon" or "quiet", "center")
  end
  for class = 1, 10 do
    local top = BAR_Y + (class - 1) * BAR_STEP
    local is_best = class == best and bars[class] > 0.05
    look.text(tostring(class - 1), x + 28, top - 3, "body", is_best and "moon" or "quiet", "center")
    look.color("line")
    love.graphics.rectangle("fill", BAR_X, top, BAR_LENGTH, 10, 5, 5)
    if bars[class] > 0.005 then
      look.color(is_best and "moon" or "blue")
      love.graphics.rectangle("fill", BAR_X, top, math.max(10, BAR_LENGTH * bars[class]), 10, 5, 5)
    end
    look.text(("%.0f %%"):format(100 * bars[class]), BAR_X + BAR_LENGTH + 48, top - 3, "body",
      is_best and "text" or "quiet", "right")
  end
end

local function percent(value)
  return ("%.0f %%"):format(100 * value)
end

local function draw_training()
  local x, y, width, height = look.column.x, look.column.y + 280, look.column.width, look.column.height - 280
  look.panel(x, y, width, height, "Training", digits.source)
  local accuracy = digits.accuracy and ("%.1f %%"):format(100 * digits.accuracy) or "..."
  local right = look.text(accuracy, x + 20, y + 42, "title", "good")
  look.text("of 1000 unseen digits are read right", right + 12, y + 49, "body", "quiet")
  look.curve(digits.accuracy_curve, x + 58, y + 88, width - 84, height - 128,
    { low = 0, high = 1, format = percent, color = "good" })
  look.text(("%d steps"):format(digits.steps), x + 58, y + height - 28, "small", "quiet")
  look.text(digits.loss and ("loss %.3f"):format(digits.loss) or "", x + width - 26, y + height - 28, "small", "quiet",
    "right")
end

function scene.draw()
  draw_board()
  draw_bars()
  draw_training()
end

scene.train = digits.train

function scene.is_training()
  return digits.training
end

--- What the scene shows, for tests.
function scene.state()
  local sum = 0
  for _, value in ipairs(ink) do sum = sum + value end
  return {
    ink = sum, steps = digits.steps, accuracy = digits.accuracy or "null", training = digits.training,
    probabilities = digits.probabilities or {},
    board = { BOARD_X, BOARD_Y, BOARD }, bars = { BAR_X, BAR_Y, BAR_LENGTH, BAR_STEP },
  }
end

return scene
