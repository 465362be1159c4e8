-- flow.np of arrays laid out anew.
local checks = require "checks"
local np = require("moonflow").np

local same = checks.same

local function shape_of(a) return tostring(a.shape) end

describe("axes", function()
  it("are so many at least", function()
    assert.equal("(1)", shape_of(np.atleast_1d(3)))
    assert.equal("(1, 2)", shape_of(np.atleast_2d({ 1, 2 })))
    assert.equal("(1, 2, 1)", shape_of(np.atleast_3d({ 1, 2 })))
    assert.equal("(3, 2, 1)", shape_of(np.atleast_3d(np.ones { 3, 2 })))
    local a = np.ones { 2, 2, 2, 2 }
    assert.is_true(rawequal(a, np.atleast_3d(a)))
  end)
end)

describe("planes, columns and rows", function()
  it("are joined and cut", function()
    same(np.dstack { { 1, 2 }, { 3, 4 } }, "float32", { { { 1, 3 }, { 2, 4 } } })
    assert.equal("(2, 3, 2)", shape_of(np.dstack { np.ones { 2, 3 }, np.ones { 2, 3 } }))
    local a = np.arange(8):reshape(2, 4)
    local left, right = unpack(np.hsplit(a, 2))
    same(left, "int64", { { 0, 1 }, { 4, 5 } })
    same(right, "int64", { { 2, 3 }, { 6, 7 } })
    same(np.hsplit(np.arange(4), { 1 })[2], "int64", { 1, 2, 3 })
    same(np.vsplit(a, 2)[2], "int64", { { 4, 5, 6, 7 } })
  end)
end)

describe("a grid", function()
  it("has each axis by itself where it is sparse", function()
    local x, y = np.meshgrid({ 1, 2 }, { 3, 4, 5 }, { sparse = true })
    same(x, "float32", { { 1, 2 } })
    same(y, "float32", { { 3 }, { 4 }, { 5 } })
    local wide, high = np.meshgrid({ 1, 2 }, { 3, 4, 5 })
    assert.is_true(x + y == wide + high)
  end)
end)

describe("borders", function()
  it("may be one number for each axis, in lists of their own", function()
    assert.equal("(4, 6)", shape_of(np.pad(np.ones { 2, 2 }, { { 1 }, { 2 } })))
    assert.equal("(5, 5)", shape_of(np.pad(np.ones { 2, 2 }, { 1, 2 })))
    checks.refuses("np.pad: widths of 3 axes for 2", function() np.pad(np.ones { 2, 2 }, { { 1 }, { 2 }, { 3 } }) end)
  end)
end)

it("np.append names itself", function()
  checks.raises("shape_mismatch", "np.append: inputs[0] is", function() np.append(np.ones { 2, 2 }, { 1, 2 }, 0) end)
end)
