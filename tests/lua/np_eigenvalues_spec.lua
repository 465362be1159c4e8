-- flow.np: eigenvalues of matrices that need not be symmetric, and what is made of them.
local checks = require "checks"
local np = require("moonflow").np
local linalg = np.linalg

local near, raises, same = checks.near, checks.raises, checks.same

local draws = np.random.default_rng(4)
local function normal(...) return draws:normal(0, 1, { ... }, "float64") end

-- The real and the imaginary parts of pairs.
local function parts(x) return x:take(0, -1), x:take(1, -1) end

local matrices = {
  one = normal(1, 1), two = normal(2, 2), three = normal(3, 3), some = normal(17, 17), many = normal(130, 130),
  zeros = np.zeros({ 4, 4 }, "float64"), eye = np.eye(5, "float64"), shifted = np.eye(50, 50, 1, "float64"),
  around = np.roll(np.eye(9, "float64"), 1, 0), low = normal(60, 1) * normal(1, 60),
  triangular = np.triu(normal(20, 20)), symmetric = np.array({ { 2, 1 }, { 1, 2 } }, "float64"),
  jordan = np.array({ { 2, 1, 0 }, { 0, 2, 1 }, { 0, 0, 2 } }, "float64"),
  graded = np.array({ { 1, 1e8, 0 }, { 1e-8, 2, 1e6 }, { 0, 1e-7, 3 } }, "float64"),
  large = np.array({ { 1, 2 }, { -3, 4 } }, "float64") * 1e300, small = normal(3, 3) * 1e-300,
  stack = normal(2, 3, 4, 4),
}

describe("eig", function()
  it("gives numbers and vectors that the matrix makes longer by them", function()
    for name, a in pairs(matrices) do
      local values, vectors = linalg.eig(a)
      local size = np.maximum(np.max(np.abs(a)), 2 ^ -1000)
      local wr, wi = parts(np.expand_dims(values / size, -3))
      local vr, vi = parts(vectors)
      near(np.matmul(a / size, vr), vr * wr - vi * wi, 2e-13, name)
      near(np.matmul(a / size, vi), vr * wi + vi * wr, 2e-13, name)
      near(np.ones(values.shape:table(), "float64"):take(0, -1), np.sum(vr ^ 2 + vi ^ 2, -2), 1e-14, name)
      near(values, linalg.eigvals(a), 0, name)
    end
  end)

  it("has those that are conjugate side by side, and real ones without an imaginary part", function()
    near(linalg.eigvals { { 0, 1 }, { -1, 0 } }, np.array { { 0, 1 }, { 0, -1 } })
    near(linalg.eigvals { { 1, 2 }, { 3, 2 } }, np.array { { -1, 0 }, { 4, 0 } }, 1e-6)
    local values = linalg.eigvals(matrices.around)
    local real, imaginary = parts(values)
    near(np.ones({ 9 }, "float64"), np.sqrt(real ^ 2 + imaginary ^ 2), 1e-14)
    assert.equal(1, imaginary:eq(0):sum())
    assert.equal(0, imaginary:sum())
    near(np.sort(real), np.sort(np.cos(np.arange(9):astype("float64") * (2 * math.pi / 9))), 1e-14)
    near(np.sort(linalg.eigvals(matrices.triangular):take(0, -1)), np.sort(np.diag(matrices.triangular)), 1e-14)
  end)

  it("tells of matrices that have none", function()
    assert.same({ 0, 2 }, linalg.eigvals(np.zeros { 0, 0 }).shape:table())
    assert.same({ 0, 3, 3, 2 }, select(2, linalg.eig(np.zeros { 0, 3, 3 })).shape:table())
    raises("shape_mismatch", "np.linalg.eig wants a square matrix, got (1, 2)", function() linalg.eig { { 1, 2 } } end)
    raises("invalid_argument", "np.linalg.eigvals: the matrix has elements that are not finite", function()
      linalg.eigvals { { 1, 0 / 0 }, { 1, 2 } }
    end)
  end)
end)

describe("roots", function()
  it("is where a polynomial is 0", function()
    same(np.roots(np.array { 2, 4 }), "float32", { { -2, 0 } })
    local product = { 1 }  -- of x - 1 up to x - 12
    for k = 1, 12 do
      for i = #product + 1, 2, -1 do product[i] = (product[i] or 0) - k * product[i - 1] end
    end
    near(np.sort(np.roots(product):take(0, -1)), np.arange(1, 13):astype("float64"), 1e-4)
    local real, imaginary = parts(np.roots(np.array({ 1, -6, 11, -6 }, "float64")))
    near(np.sort(real), np.array({ 1, 2, 3 }, "float64"), 1e-13)
    same(imaginary, "float64", { 0, 0, 0 })
    near(np.roots { 0, 0, 1, 0, 1, 0 }, np.array { { 0, 1 }, { 0, -1 }, { 0, 0 } })
    for _, none in ipairs { { 3 }, { 0 }, {} } do
      assert.same({ 0, 2 }, np.roots(np.array(none, "float64")).shape:table())
    end
    raises("shape_mismatch", "np.roots wants the coefficients along one axis, got (1, 2)", function()
      np.roots { { 1, 2 } }
    end)
  end)
end)
