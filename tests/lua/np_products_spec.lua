-- flow.np: products and sums of products. Golden values are NumPy's.
local checks = require "checks"
local np = require("moonflow").np

local raises, same = checks.raises, checks.same

local m, eye = np.array({ { 1, 2, 3 }, { 4, 5, 6 } }), np.eye(2)

describe("products", function()
  it("of matrices with vectors, which are rows on the left and columns on the right", function()
    assert.equal(11, np.matmul({ 1, 2 }, { 3, 4 }))
    same(np.matmul(m, { 1, 0, 2 }), "float32", { 7, 16 })
    same(np.matmul({ 1, 2 }, m), "float32", { 9, 12, 15 })
    same(np.matmul(np.stack({ m, m * 2 }), { 1, 0, 2 }), "float32", { { 7, 16 }, { 14, 32 } })
    same(np.matmul({ 1, 2 }, np.stack({ m, m * 2 })), "float32", { { 9, 12, 15 }, { 18, 24, 30 } })
    same(np.matmul(np.array({ 1, 2 }, "int32"), m), "float64", { 9, 12, 15 })
    same(np.matmul(np.zeros({ 2, 0 }), np.zeros({ 0 })), "float32", { 0, 0 })
    assert.equal(0, np.matmul(np.zeros({ 0 }), np.zeros({ 0 })))
  end)

  it("of stacks of matrices, whose other axes broadcast", function()
    local stack = np.stack({ m, m * 2 })
    same(np.matmul(eye * 3, stack), "float32", { { { 3, 6, 9 }, { 12, 15, 18 } }, { { 6, 12, 18 }, { 24, 30, 36 } } })
    local many = np.matmul(np.ones({ 4, 1, 2, 3 }), np.ones({ 5, 3, 6 }))
    assert.equal("(4, 5, 2, 6)", tostring(many.shape))
    assert.is_true(many:eq(3):all())
  end)

  it("name what was called, and both shapes", function()
    raises("shape_mismatch", "np.matmul: inner sizes differ: a is (2, 3), b is (2), so 3 against 2", function()
      np.matmul(m, { 1, 2 })
    end)
    raises("shape_mismatch", "np.dot: inner sizes differ: a is (2, 3), b is (2, 3), so 3 against 2", function()
      np.dot(m, m)
    end)
    raises("shape_mismatch", "np.matmul wants arrays with an axis: a is (), b is (2, 3); a * b", function()
      np.matmul(2, m)
    end)
    raises("shape_mismatch", "np.matmul: the stacks do not broadcast: a is (2, 2, 3), b is (3, 3, 2)", function()
      np.matmul(np.ones({ 2, 2, 3 }), np.ones({ 3, 3, 2 }))
    end)
  end)

  it("of all pairs with np.dot, where np.matmul takes stacks together", function()
    local stack = np.arange(12):reshape(2, 3, 2):astype("float64")
    local pairs_of = np.dot(m, stack)
    assert.equal("(2, 2, 2)", tostring(pairs_of.shape))
    for i = 0, 1 do
      for j = 0, 1 do same(pairs_of:slice({}, j), "float64", np.matmul(m, stack[j]):totable()) end
      assert.is_true(np.array_equal(pairs_of[i], np.matmul(m[i], stack)))
    end
    same(np.dot(2, { 1, 2 }), "float32", { 2, 4 })
    assert.equal(6, np.dot(2, 3))
    same(m:dot({ 1, 0, 2 }), "float32", { 7, 16 })
    raises("shape_mismatch", "np.dot: the last axis of a, (2, 3), and the last but one of b, (3, 2, 3)", function()
      np.dot(m, np.ones({ 3, 2, 3 }))
    end)
  end)

  it("of long vectors are as near as sums of their products", function()
    local a = np.full({ 2000000 }, 0.1)
    local wanted = a[0] * a[0] * #a
    for _, got in ipairs { np.dot(a, a), np.inner(a, a), np.einsum("i,i->", a, a) } do
      assert.near(1, got / wanted, 5e-6)
    end
    assert.near(1, np.matmul(np.ones({ 1, #a }), a:reshape({ #a, 1 })):item() / (a[0] * #a), 5e-6)
  end)

  it("over the last axes, over all, and over pairs of axes", function()
    same(np.inner(m, { { 1, 0, 2 }, { 0, 1, 0 } }), "float32", { { 7, 2 }, { 16, 5 } })
    assert.equal(11, np.inner({ 1, 2 }, { 3, 4 }))
    assert.equal(11, np.vdot({ { 1, 2 } }, { { 3 }, { 4 } }))
    local x, y = np.arange(60):reshape(3, 4, 5), np.arange(24):reshape(4, 3, 2)
    same(np.tensordot(x, y, { { 1, 0 }, { 0, 1 } }), "float64",
      { { 4400, 4730 }, { 4532, 4874 }, { 4664, 5018 }, { 4796, 5162 }, { 4928, 5306 } })
    assert.equal(91, np.tensordot(m, m))
    assert.equal("(2, 3, 2, 3)", tostring(np.tensordot(m, m, 0).shape))
    same(np.tensordot(m, m, { 0, 0 }), "float32", { { 17, 22, 27 }, { 22, 29, 36 }, { 27, 36, 45 } })
    raises("shape_mismatch", "np.tensordot: axis 1 of a has size 3, axis 0 of b has size 2", function()
      np.tensordot(m, m, 1)
    end)
    raises("invalid_argument", "np.tensordot: 2 axes of a and 1 of b", function()
      np.tensordot(m, m, { { 0, 1 }, { 0 } })
    end)
    raises("invalid_argument", "np.tensordot: axis 1 of b stands twice", function()
      np.tensordot(eye, eye, { { 0, 1 }, { 1, -1 } })
    end)
    for _, axes in ipairs { math.huge, -1, 1.5, 3 } do
      raises("invalid_argument", "b (2, 3), so axes is a whole number from 0 to 2, got", function()
        np.tensordot(m, m, axes)
      end)
    end
    raises("shape_mismatch", "np.inner: the last axes differ in size: a is (1), b is (2)", function()
      np.inner({ 1 }, { 1, 2 })
    end)
  end)

  it("of all pairs, and of vectors of three", function()
    same(np.outer({ 1, 2 }, { 3, 4 }), "float32", { { 3, 4 }, { 6, 8 } })
    same(np.cross({ 1, 0, 0 }, { { 0, 1, 0 }, { 0, 0, 2 } }), "float32", { { 0, 0, 1 }, { 0, -2, 0 } })
    same(np.cross(np.array({ 1, 2, 3 }, "int32"), np.array({ 4, 5, 6 }, "int32")), "int32", { -3, 6, -3 })
    raises("shape_mismatch", "np.cross wants a last axis of size 3, got (2)", function()
      np.cross({ 1, 2 }, { 1, 2 })
    end)
  end)
end)

describe("np.einsum", function()
  it("is a sum of products of arrays, as an equation says", function()
    local n = m:transpose()
    same(np.einsum("ij,jk->ik", m, n), "float32", np.matmul(m, n):totable())
    same(np.einsum("ij,jk", m, n), "float32", np.matmul(m, n):totable())
    same(np.einsum("ij->ji", m), "float32", n:totable())
    same(np.einsum("ij->j", m), "float32", { 5, 7, 9 })
    same(np.einsum("ii->i", { { 1, 2 }, { 3, 4 } }), "float32", { 1, 4 })
    same(np.einsum("i,j->ij", { 1, 2 }, { 3, 4 }), "float32", { { 3, 4 }, { 6, 8 } })
    same(np.einsum("...i,i->...", np.stack({ m, m * 2 }), { 1, 0, 2 }), "float32", { { 7, 16 }, { 14, 32 } })
    same(np.einsum("ij,kj->ik", np.array({ { 1, 2 } }, "int32"), np.array({ { 3, 4 } }, "int8")), "int32", { { 11 } })
    assert.equal(5, np.einsum("ii", { { 1, 2 }, { 3, 4 } }))
    assert.equal(33, np.einsum("i,i,i,i,i", { { 1, 2 }, { 1, 2 }, { 1, 2 }, { 1, 2 }, { 1, 2 } }))
  end)

  it("gives an array of its own, and names the term that does not fit", function()
    local own = np.array({ { 1, 2 } })
    np.einsum("ij->ij", own)[0] = 5
    same(own, "float32", { { 1, 2 } })
    raises("invalid_argument", "np.einsum: term 2, 'jk', of \"ij,jk\": its value is (2, 3), so 'j' is 2, and 3 before",
      function() np.einsum("ij,jk", m, m) end)
    raises("invalid_argument", "np.einsum: term 1, 'ijk', of \"ijk\" names 3 axes, and its value is (2, 3)", function()
      np.einsum("ijk", m)
    end)
  end)
end)
