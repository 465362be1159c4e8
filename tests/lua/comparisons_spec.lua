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
