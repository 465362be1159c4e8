-- What flow.clear_default_session does with what is under way, and with what begins meanwhile.
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

local one = np.ones { 1 }

local function define(returns)
  return flow.global_function { name = "act", inputs = { x = tp.Numpy.Placeholder { 1 } }, returns = returns } (
    function(x) return x + 1 end)
end

local function is_cleared()
  return next(flow.get_all_variables()) == nil
end

before_each(function()
  flow.clear_default_session()
  flow.global_function { name = "keep", returns = tp.Numpy } (function()
    return flow.get_variable("kept", { shape = { 1 }, initializer = flow.ones_initializer() })
  end)()
end)

after_each(function()
  flow.config.pump("script")
  flow.config.on_error(nil)
end)

describe("clear_default_session", function()
  it("delivers what tasks wait for, and ends where they would always begin anew", function()
    for _, pump in ipairs { "script", "host" } do
      flow.config.pump(pump)
      local act, delivered = define(), {}
      for creature = 1, 10 do  -- more than there is room for
        delivered[creature] = 0
        flow.spawn(function()
          while true do
            act(one):await()
            delivered[creature] = delivered[creature] + 1
          end
        end)
      end
      flow.clear_default_session()
      for creature = 1, 10 do assert.truthy(delivered[creature] >= 1, pump .. " " .. creature) end
      assert.is_true(is_cleared())
      assert.equal(0, flow.in_flight())
    end
  end)

  it("ends where a task would go on after any error", function()
    local act = define()
    flow.spawn(function()
      while true do pcall(function() act(one):await() end) end
    end)
    flow.clear_default_session()
    assert.is_true(is_cleared())
  end)

  it("refuses what a callback begins meanwhile, and says so when all is done", function()
    local act, count, others = define(tp.Callback[tp.Numpy]), 0, 0
    local function again()
      count = count + 1
      act(one)(again)
    end
    act(one)(again)
    act(one)(function() others = others + 1 end)
    local _, problem = pcall(flow.clear_default_session)
    assert.truthy(tostring(problem):find("act: begins no more runs, since flow.clear_default_session ends its session",
      1, true), tostring(problem))
    assert.equal("wrong_state", problem.code == "callback_failed" and problem.cause.code or problem.code)
    assert.equal(1, count)
    assert.equal(1, others)
    assert.is_true(is_cleared())
    assert.equal(2, define(tp.Numpy)(one):item())  -- the next session is as any
  end)

  it("lets handlers call what ends at once", function()
    local act, twice, seen = define(tp.Callback[tp.Numpy]), define(tp.Numpy), nil
    act(one)(function(y) seen = twice(y):item() end)
    flow.clear_default_session()
    assert.equal(3, seen)
  end)

  it("clears also where a callback raises meanwhile, and raises that afterwards", function()
    local act, others = define(tp.Callback[tp.Numpy]), 0
    act(one)(function() error("a bad callback") end)
    act(one)(function() others = others + 1 end)
    local fine, problem = pcall(flow.clear_default_session)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("a bad callback", 1, true), tostring(problem))
    assert.equal(1, others)
    assert.is_true(is_cleared())
    flow.clear_default_session()
  end)
end)
