-- What loops of games do with arrays in each frame, and what it leaves to be collected.
local checks = require "checks"
local flow = require "moonflow"

local np, raises = flow.np, checks.raises

-- Bytes that a call leaves, in the interpreter: what is compiled may leave less.
local function left_by(call)
  for _ = 1, 100 do call() end
  collectgarbage()
  collectgarbage("stop")
  local before = collectgarbage("count")
  for _ = 1, 1000 do call() end
  local bytes = (collectgarbage("count") - before) * 1024 / 1000
  collectgarbage("restart")
  return bytes
end

describe("arrays in a loop", function()
  setup(function()
    jit.off()
    jit.flush()
  end)
  teardown(function() jit.on() end)

  local function check_each(calls)
    for name, call in pairs(calls) do
      local bytes = left_by(call)
      assert.truthy(bytes < 4, name .. " leaves " .. bytes .. " bytes")
    end
  end

  it("are read and written without garbage", function()
    local x, row, wide = np.zeros { 2, 4 }, { 1, 2, 3, 4 }, np.array({ { 5, 6, 7, 8 } }, "float64")
    local same, bytes, counts = np.ones { 4 }, np.array({ 1, 2, 3, 255 }, "uint8"), np.zeros({ 4 }, "int64")
    local actions = np.array { 0.1, 0.7, 0.2 }
    check_each {
      table = function() x[0] = row end, table_by_set = function() x:set(1, row) end,
      alike = function() x[1] = same end, float64_with_an_axis_more = function() x[0] = wide end,
      bytes = function() x[1] = bytes end, an_element = function() x:set(0, 1, 5) end,
      an_element_read = function() return x:at(0, 1) end, of_one_axis = function() same[1] = same[2] end,
      argmax = function() return actions:argmax() end, np_argmax = function() return np.argmax(actions) end,
      max = function() return x:max() end, sum = function() return np.sum(counts) end,
      mean = function() return bytes:mean() end, std = function() return x:std() end,
    }
  end)

  it("need no garbage for single draws", function()
    local rng = np.random.default_rng(2)
    check_each {
      random = function() rng:random() end, uniform = function() rng:uniform(-1, 1) end,
      normal = function() rng:normal(0, 2) end, integers = function() rng:integers(0, 10) end,
      randint = function() rng:randint(4) end, of_all_scripts = function() return np.random.random() end,
    }
  end)

  it("take a row of another kind as they always did", function()
    local x = np.zeros { 2, 3 }
    x[0] = { 1, 2, 3 }
    x[-1] = np.array({ { { 4, 5, 6.5 } } }, "float64")
    assert.same({ { 1, 2, 3 }, { 4, 5, 6.5 } }, x:totable())
    x[0] = { true, 0, -1 }
    x[1] = np.array({ 2 }, "int32")
    assert.same({ { 1, 0, -1 }, { 2, 2, 2 } }, x:totable())
    x[0] = { 7 }
    assert.same({ 7, 7, 7 }, x[0]:totable())
    x:set({ { 1, 2, 3 }, { 4, 5, 6 } })
    assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, x:totable())
    local bytes = np.zeros({ 2, 3 }, "int8")
    bytes[1] = { 1, -128, 127 }
    raises("out_of_range", "the number 128 is no int8", function() bytes[1] = { 5, 5, 128 } end)
    raises("out_of_range", "the number 0.5 is no int8", function() bytes[1] = { 5, 0.5, 1 } end)
    raises("dtype_mismatch", "the place is int8, the value is float32", function() bytes[1] = np.ones { 3 } end)
    assert.same({ 1, -128, 127 }, bytes[1]:totable())
    for text, row in pairs {
      ["has the key 'n'"] = { 1, 2, 3, n = 3 }, ["(3), the value is float32 (2)"] = { 1, 2 },
      ["expected a number, got the string 'x'"] = { 1, "x", 3 },
    } do
      local fine, problem = pcall(function() x[0] = row end)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find(text, 1, true), tostring(problem))
    end
    raises("out_of_range", "index 2 is out of range for axis 0 of size 2", function() x[2] = { 1, 2, 3 } end)
    raises("out_of_range", "index 2 is out of range for axis 0 of size 2", function()
      x[2] = np.ones({ 3 }, "float64")
    end)
    assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, x:totable())
  end)

  it("are reduced as with the axis named", function()
    local a = np.random.default_rng(1):normal(0, 1, { 7, 11 })
    a:set(3, 4, 9)
    for _, name in ipairs { "sum", "prod", "mean", "max", "min", "std", "var" } do
      assert.equal(a[name](a, { 0, 1 }, true):item(), a[name](a), name)
    end
    assert.same({ 37, 37 }, { a:argmax(), a:argmax({ keepdims = true }):item() })
    a:set(2, 0, 0 / 0)
    assert.same({ 22, 22 }, { a:argmax(), a:argmin() })
    assert.equal(4, np.array(4):max())
    assert.equal(0, np.zeros({ 0 }):sum())
    raises("invalid_argument", "a:argmax of an array of shape (0)", function() np.zeros({ 0 }):argmax() end)
    raises("out_of_range", "is beyond 2^53", function() np.array({ 2 ^ 53, 2 ^ 53 }, "int64"):sum() end)
  end)
end)
