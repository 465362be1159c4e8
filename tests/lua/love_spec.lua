-- The game of samples/love, played on a screen in memory with a real mouse: what its scenes show, and how it ends.
local process = require "process"

local WIDTH = 960

-- The folder of MNIST that tests are told of, or that lies beside the sources.
local data = os.getenv("MOONFLOW_DATA")
for _, name in ipairs { "mnist.npz", "train-images-idx3-ubyte.gz", "train-images-idx3-ubyte" } do
  local beside = process.source .. "/../shared/data"
  local file = io.open(beside .. "/mnist/" .. name)
  if file then file:close() end
  data = data or file and beside
end

-- The state that the game has written: numbers, true and false, and lists of numbers.
local function read_state(path)
  local state = {}
  for name, value in process.read(path):gmatch('"(%w+)": ([^%[",}]+)') do
    state[name] = tonumber(value) or value == "true"
  end
  for name, list in process.read(path):gmatch('"(%w+)": (%b[])') do
    state[name] = {}
    for number in list:gmatch("[%d.e+-]+") do table.insert(state[name], tonumber(number)) end
  end
  return state
end

-- The red, green and blue of a picture's points.
local function read_picture(path)
  local pipe = io.popen("convert " .. process.quote(path) .. " -depth 8 rgb:-")
  local bytes = pipe:read("*a")
  pipe:close()
  assert.equal(WIDTH * 600 * 3, #bytes)
  return function(x, y)
    return bytes:byte((math.floor(y) * WIDTH + math.floor(x)) * 3 + 1, (math.floor(y) * WIDTH + math.floor(x)) * 3 + 3)
  end
end

local moon, good = { 0xf4, 0xd5, 0x8d }, { 0x5f, 0xd3, 0xa6 }

local function is_color(color, r, g, b)
  return math.abs(r - color[1]) + math.abs(g - color[2]) + math.abs(b - color[3]) < 12
end

local function count_color(picture, color, x, y, width, height)
  local count = 0
  for row = y, y + height - 1 do
    for column = x, x + width - 1 do
      if is_color(color, picture(column, row)) then count = count + 1 end
    end
  end
  return count
end

local paths = process.paths

describe("the game", function()
  if process.sanitizer ~= "" then
    pending("is not played in sanitized builds: LÖVE itself is not sanitized")
    return
  end

  local out

  setup(function()
    out = process.folder("love")
    local run = process.shell("timeout -k 10 400 xvfb-run -a -s '-screen 0 1280x800x24' bash "
      .. process.quote(process.source .. "/tests/lua/love_drive.sh") .. " "
      .. process.quote(process.source .. "/samples/love") .. " " .. process.quote(out), {
      folder = out,  -- where no LeNet lies that somebody has trained: with one the game need not learn
      env = { MOONFLOW_DATA = data, LUA_PATH = paths.LUA_PATH, LUA_CPATH = paths.LUA_CPATH },
    })
    assert.equal(0, run.code, run.out .. run.err)
  end)

  it("learns to read digits while one is drawn", function()
    local began, now = read_state(out .. "/began.json"), read_state(out .. "/digit.json")
    assert.is_true(now.training)
    assert.truthy(now.steps > began.steps)
    assert.truthy(now.accuracy >= 0.9)
    assert.equal(0, began.ink)
    assert.truthy(now.ink > 30)
  end)

  it("shows the digit, the bars of all classes and the rising curve", function()
    local state, picture = read_state(out .. "/digit.json"), read_picture(out .. "/digit.png")
    local x, y, size = unpack(state.board)
    assert.truthy(picture(232, 256) > 150)                      -- where the strokes of the 3 meet
    assert.truthy(picture(x + size - 20, y + size - 20) < 80)   -- where nobody drew
    local sum, best = 0, 1
    for class, probability in ipairs(state.probabilities) do
      sum = sum + probability
      if probability > state.probabilities[best] then best = class end
    end
    assert.equal(10, #state.probabilities)
    assert.truthy(math.abs(sum - 1) < 1e-3)
    local left, top, length, step = unpack(state.bars)
    for class = 1, 10 do
      local is_moon = is_color(moon, picture(left + 6, top + (class - 1) * step + 5))
      assert.equal(class == best, is_moon)
    end
    assert.truthy(picture(left + length - 2, top + (best % 10) * step + 5) < 80)
    assert.truthy(count_color(picture, good, 560, 440, 360, 100) > 100)
  end)

  it("reads the 3 that was drawn, with real data", function()
    if not data then return pending("no MNIST here, and synthetic digits may look otherwise") end
    local state = read_state(out .. "/digit.json")
    for class, probability in ipairs(state.probabilities) do
      assert.truthy(class == 4 and probability > 0.5 or class ~= 4 and probability < 0.5)
    end
  end)

  it("learns to catch, and shows the ball and the courts", function()
    local state, picture = read_state(out .. "/policy.json"), read_picture(out .. "/policy.png")
    assert.truthy(state.updates >= 12 and state.balls > 0)
    assert.is_true(is_color(moon, picture(unpack(state.ball))))
    assert.truthy(count_color(picture, moon, 508, 120, 420, 180) > 96)  -- a ball in each court
    assert.truthy(count_color(picture, good, 560, 400, 360, 150) > 20)
  end)

  it("leaves in the middle of training within a second", function()
    local code, milliseconds = process.read(out .. "/exit.txt"):match("(%d+) (%d+)")
    assert.equal(0, tonumber(code))
    assert.truthy(tonumber(milliseconds) < 1000)
  end)
end)

describe("a thread", function()
  if process.sanitizer ~= "" then
    pending("does not run in sanitized builds: LÖVE itself is not sanitized")
    return
  end

  it("tells of errors as text", function()
    local folder = process.folder("love_thread")
    process.write(folder .. "/conf.lua", [[
function love.conf(t)
  t.window, t.modules.window, t.modules.graphics, t.modules.audio, t.modules.joystick = nil, false, false, false, false
end
]])
    process.write(folder .. "/main.lua", [[
function love.load() love.thread.newThread("work.lua"):start() end
function love.threaderror(_, problem)
  print(problem)
  love.event.quit()
end
]])
    process.write(folder .. "/work.lua", [[
local flow = require "moonflow"
flow.text_errors(function()
  flow.np.ones({ 2, 3 }):reshape(4)
end)()
]])
    local env = { SDL_VIDEODRIVER = "dummy", LUA_PATH = paths.LUA_PATH, LUA_CPATH = paths.LUA_CPATH }
    local ended = process.shell("timeout 60 love " .. process.quote(folder), { folder = folder, env = env })
    assert.equal(0, ended.code, ended.out .. ended.err)
    assert.truthy(ended.out:find("^work%.lua:3: shape %(2, 3%) has 6 elements, shape %(4%) has 4\nstack traceback:\n"),
      ended.out .. ended.err)
  end)
end)
