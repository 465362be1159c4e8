-- Handwritten-like digits drawn from strokes, so that a first run needs no download. Every picture is a glyph of a few
-- strokes whose points, slant, size, place, pen and ink vary; equal seeds give equal pictures on every machine.
-- Plain Lua on purpose: it works without FFI and with the JIT off, only slower (about 10 us a picture with the JIT).

local floor, sqrt, min, max = math.floor, math.sqrt, math.min, math.max
local cos, sin = math.cos, math.sin

local SIDE = 28
local PIXELS = SIDE * SIDE
local CURVE_STEPS = 5 -- straight pieces between two points of a curve

-- Glyphs, by digit: a list of variants; a variant is a list of strokes; a stroke is x, y, x, y, ... in a box of
-- [0, 1] x [0, 1] with y downwards. A stroke is a smooth curve through its points, or straight pieces where `straight`.
local GLYPHS = {
  [0] = {
    { { .50, .00, .20, .15, .10, .50, .22, .87, .52, 1.0, .80, .86, .90, .50, .78, .13, .50, .00 } },
    { { .60, .02, .28, .10, .12, .45, .20, .85, .50, .99, .82, .80, .88, .42, .70, .08, .42, .05 } },
  },
  [1] = {
    { { .52, .00, .50, 1.0, straight = true } },
    { { .30, .22, .55, .00, .52, 1.0, straight = true } },
    { { .28, .24, .54, .00, .52, 1.0, straight = true }, { .25, 1.0, .80, .99, straight = true } },
  },
  [2] = {
    { { .12, .26, .30, .04, .65, .03, .84, .25, .68, .52, .38, .78, .10, .97 },
      { .10, .97, .90, .95, straight = true } },
    { { .15, .22, .40, .00, .75, .10, .78, .40, .45, .75, .15, .95, .12, .80, .35, .82, .60, .97, .92, .90 } },
  },
  [3] = {
    { { .14, .12, .45, .00, .80, .14, .74, .38, .38, .47 }, { .38, .47, .80, .56, .86, .84, .50, 1.0, .10, .88 } },
    { { .12, .03, .80, .03, .42, .40, straight = true }, { .42, .40, .82, .52, .86, .82, .50, 1.0, .10, .90 } },
  },
  [4] = {
    { { .22, .02, .10, .55, .90, .52, straight = true }, { .74, .15, .68, 1.0, straight = true } },
    { { .66, .00, .08, .66, .94, .64, straight = true }, { .68, .00, .67, 1.0, straight = true } },
  },
  [5] = {
    { { .86, .02, .26, .04, .20, .42, straight = true },
      { .20, .42, .55, .35, .86, .60, .72, .92, .36, 1.0, .08, .88 } },
    { { .28, .04, .22, .45, straight = true }, { .22, .45, .60, .38, .84, .66, .60, .97, .12, .92 },
      { .28, .04, .88, .00, straight = true } },
  },
  [6] = {
    { { .76, .02, .42, .18, .16, .58, .24, .92, .56, 1.0, .82, .78, .62, .52, .20, .66 } },
    { { .55, .00, .25, .30, .14, .70, .35, .98, .70, .95, .82, .70, .58, .54, .22, .78 } },
  },
  [7] = {
    { { .10, .05, .88, .05, .40, 1.0, straight = true } },
    { { .10, .06, .88, .04, .42, 1.0, straight = true }, { .28, .50, .76, .48, straight = true } },
    { { .12, .20, .14, .05, .86, .06, straight = true }, { .86, .06, .58, .45, .44, 1.0 } },
  },
  [8] = {
    { { .50, .47, .20, .26, .50, .00, .80, .24, .50, .47, .14, .75, .50, 1.0, .86, .74, .50, .47 } },
    { { .82, .12, .45, .00, .22, .24, .55, .48, .82, .76, .50, 1.0, .18, .80, .50, .48, .80, .22, .74, .08 } },
  },
  [9] = {
    { { .80, .22, .50, .02, .18, .22, .38, .50, .78, .28 }, { .80, .22, .76, .65, .62, 1.0 } },
    { { .78, .18, .45, .00, .18, .26, .45, .48, .78, .24, .80, .60, .60, .95, .22, .94 } },
  },
}

-- L'Ecuyer's combined generator (Commun. ACM 31, 1988): exact in doubles, so equal everywhere. Gives [0, 1).
local function generator(seed)
  local a, b = 1 + seed % 2147483562, 1 + (seed * 69621 + 12345) % 2147483398
  local function uniform()
    a = (40014 * a) % 2147483563
    b = (40692 * b) % 2147483399
    return ((a - b) % 2147483562) / 2147483562
  end
  for _ = 1, 16 do uniform() end -- near seeds part from each other
  return uniform
end

-- Roughly normal with deviation 1, and never beyond 3.
local function bell(uniform)
  return (uniform() + uniform() + uniform() + uniform() - 2) * 1.7320508
end

-- Lays ink of a round pen along a straight piece; where strokes cross, the darker ink stays.
local function draw_piece(ink, x1, y1, x2, y2, radius, softness)
  local reach = radius + softness
  local left, right = max(0, floor(min(x1, x2) - reach)), min(SIDE - 1, floor(max(x1, x2) + reach) + 1)
  local top, bottom = max(0, floor(min(y1, y2) - reach)), min(SIDE - 1, floor(max(y1, y2) + reach) + 1)
  local dx, dy = x2 - x1, y2 - y1
  local inverse = 1 / (dx * dx + dy * dy + 1e-9)
  for y = top, bottom do
    for x = left, right do
      local px, py = x - x1, y - y1
      local t = max(0, min(1, (px * dx + py * dy) * inverse))
      local ex, ey = px - t * dx, py - t * dy
      local shade = (radius - sqrt(ex * ex + ey * ey)) / softness + 0.5
      local at = y * SIDE + x + 1
      if shade > ink[at] then ink[at] = min(1, shade) end
    end
  end
end

-- A Catmull-Rom curve through the points, as straight pieces.
local function draw_curve(ink, points, count, radius, softness)
  local x, y = points[1], points[2]
  for i = 1, count - 1 do
    local at, before, after = 2 * i - 1, 2 * max(1, i - 1) - 1, 2 * min(count, i + 2) - 1
    local x0, y0, x1, y1 = points[before], points[before + 1], points[at], points[at + 1]
    local x2, y2, x3, y3 = points[at + 2], points[at + 3], points[after], points[after + 1]
    for step = 1, CURVE_STEPS do
      local t = step / CURVE_STEPS
      local a, b = t * t, t * t * t
      local w0, w1, w2, w3 = -t + 2 * a - b, 2 - 5 * a + 3 * b, t + 4 * a - 3 * b, b - a
      local nx = (w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3) / 2
      local ny = (w0 * y0 + w1 * y1 + w2 * y2 + w3 * y3) / 2
      draw_piece(ink, x, y, nx, ny, radius, softness)
      x, y = nx, ny
    end
  end
end

local function draw_digit(digit, ink, uniform)
  for i = 1, PIXELS do ink[i] = 0 end
  local variants = GLYPHS[digit]
  local glyph = variants[1 + floor(uniform() * #variants)]

  local turn, slant = 0.18 * bell(uniform), 0.16 + 0.22 * bell(uniform)
  local width, height = 13 + 2.5 * bell(uniform), 18 + 1.8 * bell(uniform)
  local middle_x, middle_y = 13.5 + 1.2 * bell(uniform), 13.5 + 1.1 * bell(uniform)
  local wobble = 0.02 + 0.045 * uniform()
  local radius, softness = 0.65 + 0.85 * uniform(), 0.9 + 0.5 * uniform()
  local c, s = cos(turn), sin(turn)

  local points = {}
  for _, stroke in ipairs(glyph) do
    local count = #stroke / 2
    for i = 1, count do
      local y = (stroke[2 * i] - 0.5 + wobble * bell(uniform)) * height
      local x = (stroke[2 * i - 1] - 0.5 + wobble * bell(uniform)) * width - slant * y
      points[2 * i - 1], points[2 * i] = middle_x + c * x - s * y, middle_y + s * x + c * y
    end
    if stroke.straight then
      for i = 1, 2 * count - 3, 2 do
        draw_piece(ink, points[i], points[i + 1], points[i + 2], points[i + 3], radius, softness)
      end
    else
      draw_curve(ink, points, count, radius, softness)
    end
  end

  -- Uneven ink and a grain over the whole picture, both different from picture to picture.
  local darkness, grain = 170 + 85 * uniform(), 60 * uniform() * uniform()
  for i = 1, PIXELS do
    ink[i] = max(0, min(255, floor(ink[i] * darkness + grain * (2 * uniform() - 1) + 0.5)))
  end
end

local digits = { SIDE = SIDE }

--- Draws `count` digits.
--- @param count number     how many pictures
--- @param seed number      integer; equal seeds give equal pictures and labels
--- @return string pixels   count * 28 * 28 bytes, row by row, 0 is paper and 255 is ink
--- @return string labels   count bytes, each 0..9
function digits.draw(count, seed)
  local uniform = generator(seed)
  local ink, pictures, labels = {}, {}, {}
  for i = 1, count do
    local digit = floor(uniform() * 10)
    draw_digit(digit, ink, uniform)
    pictures[i] = string.char(unpack(ink, 1, PIXELS))
    labels[i] = string.char(digit)
  end
  return table.concat(pictures), table.concat(labels)
end

return digits
