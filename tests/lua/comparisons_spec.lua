-- Comparisons in a job: blobs' methods and flow.math's functions.
local assert = require "luassert"
local checks = require "checks"
local flow = require "moonflow"
local np = flow.np

describe("a comparison", function()
  -- Numbers that only the wider dtype tells apart.
  local cases = {
    { np.array({ 2 ^ 31 - 1, 2 ^ 32, -1 }, flow.int64), np.array({ 2 ^ 31 - 1, 0, -1 }, flow.int32) },
    { np.array({ 255, 128, 3 }, flow.uint8), np.array({ -1, -128, 3 }, flow.int8) },
    { np.array({ 7, -1, 300 }, flow.int32), np.array({ 7, 255, 44 }, flow.uint8) },
  }

  it("takes integers of two dtypes, as a class found and a label are", function()
    for _, case in ipairs(cases) do
      local a, b = unpack(case)
      for _, name in ipairs { "equal", "not_equal", "less", "less_equal", "greater", "greater_equal" } do
        local wanted = np[name](a, b)
        for _, got in ipairs {
          checks.run({ a, b }, function(x, y) return x[name](x, y) end),
          checks.run({ a, b }, function(x, y) return flow.math[name](x, y) end),
          checks.run({ a }, function(x) return x[name](x, b) end),
        } do
          checks.same(got, "int8", wanted:totable())
        end
      end
    end
    local logits, labels = np.array({ { 1, 3 }, { 2, 0 }, { 0, 1 } }), np.array({ 1, 1, 1 }, flow.int32)
    checks.same(checks.run({ logits, labels }, function(x, y) return flow.math.argmax(x, 1):eq(y) end), "int8",
      { 1, 0, 1 })
  end)

  it("takes no integer beside a number with a fraction, which may lie between two of them", function()
    for _, compare in ipairs { function(x, y) return x:eq(y) end, function(x, y) return flow.math.less(x, y) end } do
      checks.raises("dtype_mismatch", "cast one of them, both must have one dtype", checks.run,
        { np.array { 1 }, np.array({ 1 }, flow.int32) }, compare)
    end
  end)

  it("of integers takes any number, also one that their dtype does not hold, as that of arrays does", function()
    local arrays = { np.array({ 0, 1, 255 }, flow.uint8), np.array({ -128, -1, 127 }, flow.int8),
                     np.array({ -2 ^ 31, 0, 2 ^ 31 - 1 }, flow.int32), np.array({ -2 ^ 53, 0, 2 ^ 53 }, flow.int64) }
    for _, a in ipairs(arrays) do
      for _, number in ipairs { -100, -1, -0.5, 0.5, 1, 128, 255, 300, 2 ^ 31, 1e30, math.huge, -math.huge, 0 / 0 } do
        for _, name in ipairs { "equal", "not_equal", "less", "less_equal", "greater", "greater_equal" } do
          local wanted, turned = np[name](a, number):totable(), np[name](number, a):totable()
          checks.same(checks.run({ a }, function(x) return x[name](x, number) end), "int8", wanted)
          checks.same(checks.run({ a }, function(x) return flow.math[name](x, number) end), "int8", wanted)
          checks.same(checks.run({ a }, function(x) return flow.math[name](number, x) end), "int8", turned)
        end
      end
    end
    local large = np.array({ 2 ^ 60 }, flow.int64) + np.array({ 1 }, flow.int64)
    checks.same(checks.run({ large }, function(x) return x:eq(2 ^ 60) end), "int8", { 0 })
    checks.raises("out_of_range", "operator '+': 300 does not fit, and the other operand is uint8; cast it first",
      checks.run, { arrays[1] }, function(x) return x + 300 end)
  end)

  it("that nothing uses is told of, once for its line, as `if` takes it as true", function()
    local lines = {}
    flow.config.log(function(line) lines[#lines + 1] = line end)
    finally(function() flow.config.log(nil) end)
    local x = np.array { 1, 2 }
    local function chosen(a)
      for _ = 1, 2 do
        if flow.math.reduce_any(a:gt(0)) then a = a * 2 end
      end
      return a
    end
    for _ = 1, 2 do checks.run({ x }, chosen) end
    assert.equal(1, #lines)
    assert.truthy(lines[1]:find("^moonflow: .*comparisons_spec.lua:%d+: nothing uses 'ReduceAny_0', which 'reduce_any' "
      .. "gives. A value of a job has no data while .* flow.where chooses by it"), lines[1])
    checks.run({ x }, function(a) return flow.where(a:gt(0) and a:lt(2), a, 0) end)
    assert.equal(2, #lines)
    assert.truthy(lines[2]:find("nothing uses 'Greater_0'", 1, true), lines[2])
  end)

  it("that something uses, or that is made within a function of ours, is not told of", function()
    flow.config.log(function(line) error(line) end)
    finally(function() flow.config.log(nil) end)
    checks.run({ np.array { 1, 2 } }, function(a)
      local v = flow.get_variable("v", { shape = { 2 }, dtype = "int8", trainable = false,
        initializer = flow.zeros_initializer() })
      flow.watch(a:gt(3), function() end)
      flow.assign(v, a:lt(2))
      local ordered = flow.math.top_k(a, 1)
      return flow.where(a:ge(1), a, 0) + flow.nn.hardswish(a) + flow.cast(ordered, "float32")
    end)
  end)

  it("is named by the script's line, which has no other op", function()
    local names = {}
    checks.run({ cases[1][1], cases[1][2] }, function(x, y)
      names[1] = x:eq(y).name
      names[2] = x:eq(y).name
      return x
    end)
    assert.same({ "Equal_0", "Equal_1" }, names)
  end)
end)
