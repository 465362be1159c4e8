-- flow.progress: the bar on a terminal and the plain lines elsewhere.
local data = require "moonflow.data"
local np = require "moonflow.np"
local process = require "process"
local progress = require "moonflow.progress"

describe("progress", function()
  local written, now
  before_each(function() written, now = {}, 0 end)

  -- Each look at the clock costs a hundredth of a second.
  local function clock()
    now = now + 0.01
    return now
  end

  local function shown(source, options)
    options.clock = clock
    options.write = function(text) written[#written + 1] = text end
    return progress(source, options)
  end

  it("passes everything through", function()
    local set, seen = data.Dataset({ np.arange(6), np.arange(6) }, { batch_size = 2 }), {}
    local bar = shown(set:batches(), { terminal = false })
    assert.equal(3, #bar)
    for i, x, y in bar do seen[#seen + 1] = i .. ":" .. x:sum() .. ":" .. y:sum() end
    assert.same({ "0:1:1", "1:5:5", "2:9:9" }, seen)
    seen = {}
    for i in shown(3, { terminal = false }) do seen[#seen + 1] = i end
    for i, v in shown({ "a", "b" }, { terminal = false }) do seen[#seen + 1] = i .. v end
    assert.same({ 0, 1, 2, "0a", "1b" }, seen)
  end)

  it("writes a plain line for every tenth when there is no terminal", function()
    local bar = shown(200, { desc = "epoch 1", terminal = false })
    for i in bar do bar:set("loss %.1f", i) end
    assert.equal(10, #written)
    local wanted = "^epoch 1:  10%% 20/200 %[%d%d:%d%d<%d%d:%d%d, [%d.]+ it/s, loss 19.0%]\n$"
    assert.truthy(written[1]:find(wanted), written[1])
    assert.truthy(written[10]:find("100%% 200/200"))
    for _, line in ipairs(written) do assert.is_nil(line:find("[\r\27]")) end
  end)

  it("takes an array of one element for its number in a text, and says what does not fit it", function()
    local bar = shown(1, { terminal = false })
    for _ in bar do bar:set("loss %.1f", np.array { 2.5 }) end
    assert.truthy(written[1]:find("loss 2.5", 1, true), written[1])
    local fine, problem = pcall(bar.set, bar, "loss %d", "x")
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("progress_spec.lua:%d+: progress:set: the values do not fit 'loss %%d': "
      .. "number expected, got string$"), tostring(problem))
  end)

  it("draws a bar at most ten times a second on a terminal", function()
    local bar = shown(1000, { desc = "epoch", terminal = true })
    for i in bar do bar:set({ loss = 0.5, i = i }) end
    -- 1000 looks at the clock are ten seconds.
    assert.is_true(#written > 50 and #written <= 110, #written)
    for k, text in ipairs(written) do
      if k < #written then assert.truthy(text:find("^\repoch: .*\27%[K$"), text) end
    end
    assert.equal("\n", written[#written])
    assert.truthy(written[#written - 1]:find("100%", 1, true))
    assert.truthy(written[#written - 1]:find("1000/1000 [00:10<00:00, ", 1, true), written[#written - 1])
    assert.truthy(written[#written - 1]:find("i=999, loss=0.5", 1, true))
  end)

  it("rounds its percent once", function()
    local bar = shown(100, { terminal = true })
    bar:update(29)  -- 0.29 * 100 is less than 29
    bar:close()
    assert.truthy(written[#written - 1]:find(" 29%|", 1, true), written[#written - 1])
  end)

  it("asks for its text only when it draws", function()
    local asked = 0
    for _ in shown(100, { terminal = false, postfix = function() asked = asked + 1 return "x" .. asked end }) do end
    assert.equal(10, asked)
    assert.truthy(written[10]:find("x10]", 1, true))
  end)

  it("counts what has no known end, and nothing", function()
    local left = 5
    for _ in shown(function() left = left - 1 return left >= 0 and left or nil end, { terminal = true }) do end
    assert.truthy(written[#written - 1]:find("\r5 [", 1, true))
    written = {}
    for _ in shown(0, { terminal = true }) do end
    assert.equal("\n", written[#written])
  end)

  it("can be closed early and moved by hand", function()
    local bar = shown(10, { terminal = true })
    bar:update(4)
    bar:close()
    bar:close()
    assert.truthy(written[#written - 1]:find("4/10", 1, true))
    assert.equal("\n", written[#written])
  end)

  it("prints above the bar", function()
    local bar = shown(10, { terminal = true })
    local printed, real = {}, print
    _G.print = function(...) printed[#printed + 1] = table.concat({ ... }, " ") end
    bar:print("before")
    for i in bar do
      if i == 5 then bar:print("loss", 0.5) end
    end
    bar:print("after")
    _G.print = real
    assert.same({ "before", "loss 0.5", "after" }, printed)
    local cleared = 0
    for k, text in ipairs(written) do
      if text == "\r\27[K" then
        cleared = cleared + 1
        assert.truthy(written[k + 1]:find("5/10", 1, true))
      end
    end
    assert.equal(1, cleared)
  end)

  it("refuses what it cannot go through", function()
    local fine, problem = pcall(progress, "text")
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("cannot go through", 1, true))
  end)

  it("writes plain lines to standard error when that is a pipe", function()
    local run = process.moonflow({ "-e", "for i in require('moonflow.progress')(20) do io.write(i, ' ') end" })
    assert.equal(0, run.code)
    assert.equal(10, select(2, run.err:gsub("\n", "")))
    assert.truthy(run.out:find("^0 1 2 "))
  end)
end)
