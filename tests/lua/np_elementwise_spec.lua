-- flow.np element by element: what the operators do not have.
local checks = require "checks"
local np = require("moonflow").np

local near, raises, same = checks.near, checks.raises, checks.same

describe("of one array", function()
  it("there are powers of 2 and third roots", function()
    same(np.exp2({ 1, 3, -1 }), "float32", { 2, 8, 0.5 })
    local roots = np.cbrt(np.array({ 27, -64, 0, 1e300, math.huge, -math.huge }, "float64"))
    assert.same({ 3, -4, 0, 1e100, math.huge, -math.huge }, roots:totable())
    assert.equal(7, np.cbrt(343))
    assert.equal(-math.huge, 1 / np.cbrt(-0.0))
    assert.same({ 0, 2 ^ -1074, 2 ^ 1023, math.huge },
      np.exp2(np.array({ -1080, -1074, 1023, 1024 }, "float64")):totable())
    assert.is_true(np.isnan(np.cbrt(np.nan)) == 1)
    near(np.sinc(np.array({ 0, 0.5, 1, -0.5 }, "float64")), np.array({ 1, 2 / math.pi, 0, 2 / math.pi }, "float64"),
      1e-15)
  end)
end)

describe("of two arrays", function()
  it("there are signs and what is left over", function()
    same(np.copysign({ 1, -2, 3 }, { -0.0, 1, -1 }), "float32", { -1, 2, -3 })
    assert.equal(-math.huge, 1 / np.copysign(0, -1))
    same(np.fmod({ -7, 7, -6 }, { 3, -3, 4 }), "float32", { -1, 1, -2 })
    same(np.fmod(np.array({ -7, 7 }, "int32"), 3), "int32", { -1, 1 })
    assert.equal(math.fmod(-5.3, 2.1), np.fmod(-5.3, 2.1))
    -- The least number of a dtype has none of the other sign.
    same(np.fmod(np.array({ -2 ^ 31, 100, 7 }, "int32"), np.array({ 104, -2 ^ 31, -3 }, "int32")), "int32",
      { -24, 100, 1 })
  end)

  it("there is the one that is a number", function()
    same(np.fmax({ 1, 0 / 0, 3 }, { 2, 1, 0 / 0 }), "float32", { 2, 1, 3 })
    same(np.fmin({ 1, 0 / 0, 3 }, { 2, 1, 0 / 0 }), "float32", { 1, 1, 3 })
    raises("shape_mismatch", "np.fmin: shapes (2) and (3) do not broadcast", function()
      np.fmin(np.ones { 2 }, np.ones { 3 })
    end)
    assert.is_true(np.isnan(np.fmax(np.nan, np.nan)) == 1)
  end)

  it("there is a step", function()
    same(np.heaviside({ -1, 0, 2 }, 0.5), "float32", { 0, 0.5, 1 })
    assert.is_true(np.isnan(np.heaviside(np.nan, 1)) == 1)
  end)
end)
