-- flow.np on bits and divisors: against what is counted by hand.
local checks = require "checks"
local flow = require "moonflow"
local np = flow.np
local raises = checks.raises

local function int(values, dtype) return np.array(values, dtype or "int64") end

describe("bits", function()
  it("are joined, in the dtype that holds both", function()
    assert.same({ 0, 4, 4 }, np.bitwise_and(int({ 1, 6, -1 }, "int32"), 4):totable())
    assert.same({ 9, -122, -1 }, np.bitwise_or(int({ 1, 6, -1 }, "int8"), int({ 8, -128, 3 }, "int8")):totable())
    assert.equal("uint8", np.bitwise_xor(int({ 255 }, "uint8"), int({ 1 }, "uint8")).dtype)
    assert.equal("int32", np.bitwise_xor(int({ 255 }, "uint8"), int({ 1 }, "int8")).dtype)
    assert.equal(2 ^ 40 + 4, np.bitwise_and(2 ^ 40 + 5, 2 ^ 40 + 4))
    assert.same({ { 1, 3 }, { 1, 2 } }, np.bitwise_or({ { 1 }, { 0 } }, { 1, 2 }):totable())
    assert.same({ 255, 250 }, np.bitwise_not(int({ 0, 5 }, "uint8")):totable())
    assert.same({ -1, -6 }, np.bitwise_not(int { 0, 5 }):totable())
    assert.same({ -2, -3 }, np.bitwise_not({ 1, 2 }):totable())
    raises("dtype_mismatch", "np.bitwise_not is for whole numbers", function() np.bitwise_not(1.5) end)
  end)

  it("are moved", function()
    assert.same({ 2, 8, 144 }, np.left_shift(int({ 1, 2, 200 }, "uint8"), int({ 1, 2, 1 }, "uint8")):totable())
    assert.same({ -3, 3 }, np.right_shift(int { -5, 7 }, 1):totable())
    assert.equal(2 ^ 50, np.left_shift(1, 50))
    raises("out_of_range", "np.left_shift: bits are shifted by 0 to 63 places", function()
      np.left_shift(int { 1 }, 64)
    end)
  end)

  it("are none of fractions", function()
    raises("dtype_mismatch", "np.bitwise_and is for whole numbers, got float32", function()
      np.bitwise_and(np.ones { 2 }, 1)
    end)
    raises("out_of_range", "1.5 is no int64", function() np.bitwise_and(1.5, 1) end)
  end)
end)

describe("divisors", function()
  it("are the greatest of both, with 0 too", function()
    assert.same({ 4, 6, 5, 7, 0 }, np.gcd({ 12, -18, 0, 7, 0 }, { 8, 12, 5, 0, 0 }):totable())
    assert.equal(21, np.gcd(1071, 462))
    -- Neighbours of Fibonacci's are the longest way there is.
    assert.equal(1, np.gcd(12586269025, 7778742049))
  end)

  it("have a least multiple", function()
    assert.same({ 24, 36, 0, 7 }, np.lcm({ 12, -18, 0, 7 }, { 8, 12, 5, 7 }):totable())
    assert.equal("int32", np.lcm(int({ 4 }, "int32"), int({ 6 }, "int32")).dtype)
  end)
end)
