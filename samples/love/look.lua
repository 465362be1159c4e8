--- Look: colours, type and the pieces that both scenes are drawn with. Lengths are pixels.
local look = {
  margin = 32, header_height = 64,
  -- The places of both scenes: a square at the left with a hint below it, and a column of panels.
  square = { x = 32, y = 88, size = 448 },
  column = { x = 508, y = 88, width = 420, height = 480 },
}

local graphics = love.graphics

local function hex(text)
  local r, g, b = text:match("(%x%x)(%x%x)(%x%x)")
  return { tonumber(r, 16) / 255, tonumber(g, 16) / 255, tonumber(b, 16) / 255 }
end

look.colors = {
  ground = hex "0e1420", panel = hex "182132", line = hex "26324a", text = hex "e8ecf4", quiet = hex "8c98b0",
  moon = hex "f4d58d", good = hex "5fd3a6", bad = hex "ef6f6c", blue = hex "6ea8fe",
}
local colors = look.colors

function look.load()
  graphics.setBackgroundColor(colors.ground)
  look.fonts = {
    title = graphics.newFont(22), heading = graphics.newFont(15), body = graphics.newFont(13),
    small = graphics.newFont(11), big = graphics.newFont(40),
  }
end

--- Sets the colour, with an opacity from 0 to 1.
function look.color(name, opacity)
  local c = colors[name]
  graphics.setColor(c[1], c[2], c[3], opacity or 1)
end

--- Writes a line; align is "left" (x is where it begins), "right" (where it ends) or "center". Gives where it ends.
function look.text(text, x, y, font, color, align)
  local face = look.fonts[font]
  local width = face:getWidth(text)
  if align == "right" then x = x - width elseif align == "center" then x = x - width / 2 end
  graphics.setFont(face)
  look.color(color or "text")
  graphics.print(text, math.floor(x), math.floor(y))
  return x + width
end

--- Tells below the square what keys and buttons do.
function look.hint(text)
  look.text(text, look.square.x, look.square.y + look.square.size + 16, "body", "quiet")
end

--- A disc; its line is what makes the edge smooth.
function look.disc(x, y, radius)
  graphics.setLineWidth(1)
  graphics.circle("fill", x, y, radius - 0.5, 40)
  graphics.circle("line", x, y, radius - 0.5, 40)
end

--- A box with a heading, and quiet words at its right end.
function look.panel(x, y, width, height, heading, words)
  look.color("panel")
  graphics.rectangle("fill", x, y, width, height, 10, 10)
  if heading then look.text(heading, x + 20, y + 15, "heading") end
  if words then look.text(words, x + width - 20, y + 17, "body", "quiet", "right") end
end

-- ---- the header ---------------------------------------------------------------------------------------------------

local kTabX, kTabWidth = 196, 148

--- The scene whose name is at this point, or nil.
function look.tab_at(scenes, x, y)
  if y >= look.header_height then return nil end
  return scenes[math.floor((x - kTabX) / kTabWidth) + 1]
end

-- A crescent: the moon, and the ground's colour over a part of it.
local function moon(x, y, radius)
  look.color("moon")
  look.disc(x, y, radius)
  look.color("ground")
  look.disc(x + radius * 0.5, y - radius * 0.25, radius * 0.85)
end

function look.header(scenes, current)
  local margin, width = look.margin, graphics.getWidth()
  moon(margin + 11, 31, 11)
  look.text("Moonflow", margin + 34, 18, "title")
  for i, scene in ipairs(scenes) do
    local x, chosen = kTabX + (i - 1) * kTabWidth, scene == current
    look.text(scene.title, x + kTabWidth / 2, 23, "heading", chosen and "text" or "quiet", "center")
    if chosen then
      look.color("moon")
      graphics.rectangle("fill", x + 24, 50, kTabWidth - 48, 3, 1.5, 1.5)
    end
  end
  look.text(("%d frames/s"):format(love.timer.getFPS()), width - margin, 24, "body", "quiet", "right")
end

-- ---- curves -------------------------------------------------------------------------------------------------------

--- Draws a curve (curve.lua) with its latest value at the right.
--- @param options table  low, high: the ends of the axis; format: writes values of the axis; color
function look.curve(curve, x, y, width, height, options)
  local low, high = options.low, options.high
  local function place(value)
    return y + height * (1 - (math.max(low, math.min(high, value)) - low) / (high - low))
  end
  graphics.setLineWidth(1)
  for _, value in ipairs { low, (low + high) / 2, high } do
    local at = math.floor(place(value)) + 0.5
    look.color("line")
    graphics.line(x, at, x + width, at)
    look.text(options.format(value), x - 8, at - 7, "small", "quiet", "right")
  end
  local points, count = {}, #curve.points
  for i, value in ipairs(curve.points) do
    points[2 * i - 1], points[2 * i] = x + (count > 1 and width * (i - 1) / (count - 1) or 0), place(value)
  end
  if count < 2 then return end
  graphics.setLineWidth(2)
  look.color(options.color)
  graphics.line(points)
  look.disc(points[2 * count - 1], points[2 * count], 4)
end

return look
