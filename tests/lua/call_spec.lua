-- The synchronous call, whatever it gives: straight from its plan where nothing else is in flight, through the queue
-- where something is, and in handlers. Results belong to whoever has them, as long as they are held.
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

local function vector(...)
  return np.array({ ... }, flow.float)
end

before_each(function()
  flow.clear_default_session()
end)

describe("a synchronous call", function()
  local shapes = {
    { name = "no value", count = 0, body = function(x) local _ = x + 1 end },
    { name = "one value", count = 1, returns = tp.Numpy, body = function(x) return x + 1 end },
    { name = "two values", count = 2, returns = tp.Tuple { tp.Numpy, tp.Numpy },
      body = function(x) return x + 1, x + 2 end },
    { name = "three values", count = 3, returns = tp.Tuple { tp.Numpy, tp.Numpy, tp.Numpy },
      body = function(x) return x + 1, x + 2, x + 3 end },
    { name = "four values", count = 4, returns = tp.Tuple { tp.Numpy, tp.Numpy, tp.Numpy, tp.Numpy },
      body = function(x) return x + 1, x + 2, x + 3, x + 4 end },
    { name = "one value thrice", count = 3, returns = tp.Tuple { tp.Numpy, tp.Numpy, tp.Numpy },
      body = function(x) local y = x + 1; return y, x + 2, y end, adds = { 1, 2, 1 } },
    { name = "a list", count = 2, returns = tp.List[tp.Numpy], is_table = true,
      body = function(x) return { x + 1, x + 2 } end },
  }
  for _, shape in ipairs(shapes) do
    it("gives " .. shape.name .. " alike, whatever else is in flight", function()
      local inputs = { x = tp.Numpy.Placeholder({ 2 }) }
      local job = flow.global_function { inputs = inputs, returns = shape.returns } (shape.body)
      local other = flow.global_function { inputs = inputs, returns = tp.Callback[tp.Numpy] } (function(x)
        return x * 2
      end)
      local held = {}
      local function check(start)
        local results = { job(vector(start, 0)) }
        if shape.is_table then
          assert.equal(1, #results)
          results = results[1]
        end
        assert.equal(shape.count, #results)
        held[#held + 1] = { start = start, results = results }
      end
      for start = 1, 300 do
        local delivered
        if start % 3 == 0 then other(vector(start, 0))(function(y) delivered = y[0] end) end
        check(start)
        if start % 50 == 0 then collectgarbage() end
        if start % 3 == 0 then
          flow.sync()
          assert.equal(2 * start, delivered)
        end
      end
      for _, call in ipairs(held) do
        for i, y in ipairs(call.results) do
          local add = (shape.adds or { 1, 2, 3, 4 })[i]
          assert.is_true(y == vector(call.start + add, add))
        end
      end
    end)
  end

  it("gives its results inside a handler, and after an error", function()
    local inputs = { x = tp.Numpy.Placeholder({ 2 }), i = tp.Numpy.Placeholder({ 1 }, { dtype = flow.int32 }) }
    local pick = flow.global_function { inputs = inputs, returns = tp.Tuple { tp.Numpy, tp.Numpy } } (function(x, i)
      return flow.gather(x, i), x + 1
    end)
    local function check(start)
      local a, b = pick(vector(start, 5), np.array({ 1 }, flow.int32))
      assert.is_true(a == vector(5))
      assert.is_true(b == vector(start + 1, 6))
    end
    local function check_error(text, ...)
      local fine, problem = pcall(pick, ...)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find(text, 1, true))
    end
    local function check_errors()
      check_error("gather", vector(1, 2), np.array({ 7 }, flow.int32))
      check_error("takes 2 inputs", vector(1, 2))
      check_error("input 'x'", vector(1, 2, 3), np.array({ 0 }, flow.int32))
    end
    local other = flow.global_function { inputs = { x = inputs.x }, returns = tp.Callback[tp.Numpy] } (function(x)
      return x * 2
    end)
    local delivered = 0
    for start = 1, 100 do
      check(start)
      check_errors()
      check(start)
      other(vector(start, 0))(function(y)
        check(y[0])
        check_errors()
        delivered = delivered + 1
      end)
      if start % 2 == 0 then flow.sync() end
    end
    assert.equal(100, delivered)
  end)

  it("leaves results that outlive their session alone", function()
    local function make()
      return flow.global_function {
        inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Tuple { tp.Numpy, tp.Numpy },
      } (function(x) return x + 1, x + 2 end)
    end
    local held = {}
    for round = 1, 3 do
      local job = make()
      for start = 1, 200 do held[#held + 1] = { round * start, job(vector(round * start, 0)) } end
      flow.clear_default_session()
      collectgarbage()
    end
    for _, call in ipairs(held) do
      assert.is_true(call[2] == vector(call[1] + 1, 1))
      assert.is_true(call[3] == vector(call[1] + 2, 2))
    end
  end)

  it("takes a number for an input without axes, whatever the form", function()
    local scalar, whole = tp.Numpy.Placeholder({}), tp.Numpy.Placeholder({}, { dtype = flow.int32 })
    local function define(returns, inputs, body)
      return flow.global_function { inputs = inputs, returns = returns } (body)
    end
    local function blend(x, share, step) return x * share + flow.cast(step, flow.float) end
    local inputs = { x = tp.Numpy.Placeholder({ 2 }), share = scalar, step = whole }
    local job, later = define(tp.Numpy, inputs, blend), define(tp.Callback[tp.Numpy], inputs, blend)
    local wanted = vector(3.5, 4)
    assert.is_true(job(vector(1, 2), 0.5, 3) == wanted)
    assert.is_true(job { x = vector(1, 2), share = 0.5, step = np.array(3, flow.int32) } == wanted)
    local delivered = 0
    for _ = 1, 20 do
      later(vector(1, 2), 0.5, 3)(function(y)
        assert.is_true(y == wanted)
        delivered = delivered + 1
      end)
      assert.is_true(job(vector(1, 2), 0.5, 3) == wanted)
    end
    flow.sync()
    assert.equal(20, delivered)
    local watched = 0
    job:watch("share", function(value) watched = watched + value:item() end)
    job(vector(1, 2), 0.5, 3)
    assert.equal(0.5, watched)

    local double = define(tp.Numpy, { share = scalar }, function(share) return share * 2 end)
    assert.equal(3, double(1.5):item())
    local nested = define(tp.Numpy, { parts = { scalar, tp.Numpy.Placeholder({ 2 }) } }, function(parts)
      return parts[1] * parts[2]
    end)
    assert.is_true(nested { 2, vector(1, 2) } == vector(2, 4))
    local drawing = define(tp.Numpy, { share = scalar }, function(share)
      return share + 0 * flow.random.normal(0, 1, { 1 })
    end)
    assert.equal(2, drawing(2):item())
    local list = define(tp.Numpy, { x = tp.ListNumpy.Placeholder({ 4 }), share = scalar }, function(x, share)
      return x * share
    end)
    assert.is_true(list({ vector(1, 2) }, 3) == vector(3, 6))
    assert.is_true(list({ vector(1, 2, 3) }, 3) == vector(3, 6, 9))
  end)
end)

describe("what a function takes", function()
  it("is read anew where reading it was interrupted", function()
    local arguments = require "moonflow.arguments"
    for n = 1, 200 do
      local signature = arguments.signature("flow.nn.conv2d", { { "x", "blob" }, { "strides", "list", 1 } })
      pcall(function()
        debug.sethook(function()
          debug.sethook()
          error("interrupted")
        end, "", n)
        local _ = signature.names
        debug.sethook()
      end)
      assert.same({ "x", "strides" }, signature.names)
    end
  end)
end)

describe("a script's own hook that asks", function()
  it("loses no result, wherever it raises", function()
    local double = flow.global_function {
      inputs = { x = tp.Numpy.Placeholder { 3 } }, returns = tp.Callback[tp.Numpy],
    } (function(x) return x * 2 end)
    local raised = 0
    for n = 1, 200 do
      local came, stopped = 0, nil
      local function receive() came = came + 1 end
      double(np.ones { 3 })(receive)
      pcall(function()
        debug.sethook(function()
          if not flow.may_interrupt() then return end
          debug.sethook()
          stopped, raised = debug.getinfo(2, "f").func, raised + 1
          error("too long")
        end, "", n)
        flow.sync()
        debug.sethook()
      end)
      pcall(flow.sync)
      assert.is_true(came == 1 or stopped == receive, "lost at " .. n)
      flow.sync()
    end
    assert.is_true(raised > 20, raised)
  end)
end)
