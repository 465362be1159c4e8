-- flow.np.linalg: factors of matrices, and what is made of them. Golden values are NumPy's.
local checks = require "checks"
local np = require("moonflow").np
local linalg = np.linalg

local near, raises, same = checks.near, checks.raises, checks.same

local function has_orthogonal_columns(a, what)
  near(np.matmul(a:transpose(), a), np.eye(a.shape[1], "float64"), nil, what)
end

-- A panel has 64 columns; matrices of less than full rank, and with much smaller and larger elements, are among these.
local draws = np.random.default_rng(4)
local function normal(rows, columns) return draws:normal(0, 1, { rows, columns }, "float64") end
local matrices = {
  one = normal(1, 1), row = normal(1, 5), column = normal(5, 1), square = normal(65, 65), tall = normal(140, 70),
  wide = normal(70, 140), none = np.zeros({ 0, 3 }, "float64"), nothing = np.zeros({ 3, 0 }, "float64"),
  zeros = np.zeros({ 5, 4 }, "float64"), ones = np.ones({ 7, 9 }, "float64"), eye = np.eye(66, "float64"),
  deficient = np.matmul(normal(80, 7), normal(7, 70)), twice = np.concat({ normal(30, 1), normal(30, 1) * 1e-160 }, 1),
  graded = normal(12, 12) * 10 ^ (np.arange(12):astype("float64") * -25),
}

describe("cholesky", function()
  it("is the root of a positive definite matrix, of which it reads the lower triangle", function()
    same(linalg.cholesky({ { 4, 99 }, { 2, 5 } }), "float32", { { 2, 0 }, { 1, 2 } })
    for _, n in ipairs({ 1, 64, 65, 150 }) do
      local x = normal(n, n)
      local a = np.matmul(x, x:transpose()) / n + np.eye(n, "float64")
      local l = linalg.cholesky(a)
      near(np.matmul(l, l:transpose()), a, nil, n)
      near(np.tril(l), l, nil, n)
    end
    assert.equal("(0, 0)", tostring(linalg.cholesky(np.zeros({ 0, 0 })).shape))
    raises("invalid_argument", "np.linalg.cholesky: the matrix is not positive definite, as its first 2 rows and",
      function() linalg.cholesky({ { 1, 2 }, { 2, 1 } }) end)
    raises("invalid_argument", "as its first 1 row and", function() linalg.cholesky({ { -1, 0 / 0 }, { 0, 1 } }) end)
    for _, matrix in ipairs { { { 0 / 0 } }, { { 4, 0 }, { 1 / 0, 1 } }, { { { 1 } }, { { 0 / 0 } } } } do
      raises("invalid_argument", "np.linalg.cholesky: the matrix has elements that are not finite",
        function() linalg.cholesky(matrix) end)
    end
    raises("shape_mismatch", "np.linalg.cholesky wants a square matrix, got (2, 3)", function()
      linalg.cholesky(np.ones({ 2, 3 }))
    end)
  end)
end)

describe("qr", function()
  it("gives orthogonal columns and a triangle, whose product is the matrix", function()
    for name, a in pairs(matrices) do
      local q, r = linalg.qr(a)
      near(np.matmul(q, r), a, nil, name)
      has_orthogonal_columns(q, name)
      near(np.triu(r), r, nil, name)
    end
  end)

  it("has the signs of LAPACK, and the dtype of the matrix", function()
    local q, r = linalg.qr({ { 3, 1 }, { 4, 2 } })
    assert.equal("float32", q.dtype)
    assert.is_true(np.allclose(q, { { -0.6, -0.8 }, { -0.8, 0.6 } }))
    assert.is_true(np.allclose(r, { { -5, -2.2 }, { 0, 0.4 } }))
    raises("shape_mismatch", "np.linalg.qr wants a matrix, got (2)", function() linalg.qr({ 1, 2 }) end)
  end)

  it("takes stacks, of which those of few rows or columns are alike the matrices by themselves", function()
    for _, sizes in ipairs { { 3, 3 }, { 5, 2 }, { 2, 5 }, { 20, 8 }, { 1, 4 }, { 12, 12 } } do
      local stack = draws:normal(0, 1, { 2, 3, sizes[1], sizes[2] }, "float64")
      stack:set("1, 2, ..., 0", 0)
      local q, r = linalg.qr(stack)
      near(np.matmul(q, r), stack, 1e-14)
      for i = 0, 1 do
        for j = 0, 2 do
          local one, other = linalg.qr(stack[i][j])
          near(q[i][j], one, 1e-14)
          near(r[i][j], other, 1e-14)
          has_orthogonal_columns(one)
        end
      end
    end
  end)
end)

describe("eigh", function()
  it("gives the eigenvalues of a symmetric matrix, ascending, and its eigenvectors", function()
    local values, vectors = linalg.eigh({ { 2, 99 }, { 1, 2 } })
    assert.equal("float32", vectors.dtype)
    assert.is_true(np.allclose(values, { 1, 3 }))
    assert.is_true(np.allclose(np.abs(vectors), math.sqrt(0.5)))
    for _, n in ipairs({ 1, 2, 3, 65, 130 }) do
      local x = normal(n, n)
      local a = (x + x:transpose()) / math.sqrt(n)
      local w, v = linalg.eigh(a)
      near(np.matmul(a, v), v * w, nil, n)
      has_orthogonal_columns(v, n)
      near(np.sort(w), w, nil, n)
    end
    near((linalg.eigh(np.diag(np.array({ 3, 1, 2 }, "float64")))), np.array({ 1, 2, 3 }, "float64"))
    near((linalg.eigh(np.zeros({ 4, 4 }, "float64"))), np.zeros({ 4 }, "float64"))
    -- Elements whose squares are no numbers, beside one that is.
    near((linalg.eigh(np.array({ { 1, 0, 0 }, { 0, 0, 1e-200 }, { 0, 1e-200, 0 } }, "float64"))),
      np.array({ 0, 0, 1 }, "float64"))
    assert.equal("(0)", tostring(linalg.eigh(np.zeros({ 0, 0 })).shape))
    raises("invalid_argument", "np.linalg.eigh: the matrix has elements that are not finite", function()
      linalg.eigh({ { 1, 0 }, { 1 / 0, 1 } })
    end)
  end)
end)

-- Most of their eigenvalues are rounding, and those of the last but for one nothing at all.
describe("matrices of low rank", function()
  local points = normal(40, 160)
  local line = np.linspace(0, 1, 250, { dtype = "float64" })
  local symmetric = {
    covariances = np.cov(points:transpose()), products = np.matmul(points:transpose(), points),
    outer = np.outer(line, line), equal = np.full({ 100, 100 }, 100, "float64"),
    tiny = np.full({ 90, 90 }, 1e-300, "float64"),
  }
  it("have eigenvectors at right angles", function()
    for name, a in pairs(symmetric) do
      local values, vectors = linalg.eigh(a)
      near(np.matmul(vectors:transpose(), vectors), np.eye(#a, "float64"), nil, name)
      local scale = np.abs(a):max()
      near(np.matmul(vectors * (values / scale), vectors:transpose()), a / scale, 1e-10, name)
    end
  end)
  it("have singular values, and a rank", function()
    for name, a in pairs(symmetric) do
      local u, s, v = linalg.svd(a)
      near(np.matmul(v, v:transpose()), np.eye(#a, "float64"), nil, name)
      near(np.matmul(u * (s / s[0]), v), a / s[0], 1e-10, name)
    end
    local low = np.matmul(normal(200, 10), normal(10, 200)):astype("float32")
    assert.equal(10, linalg.matrix_rank(low))
    near(np.matmul(np.matmul(low, linalg.pinv(low)), low), low, 1e-3)
  end)
end)

describe("svd", function()
  it("gives factors whose product is the matrix, of any shape and rank", function()
    for name, a in pairs(matrices) do
      local u, s, vt = linalg.svd(a)
      near(np.matmul(u * s, vt), a, nil, name)
      has_orthogonal_columns(u, name)
      has_orthogonal_columns(vt:transpose(), name)
      near(-np.sort(-np.abs(s)), s, nil, name)
    end
  end)

  it("takes very large and very small elements", function()
    for _, scale in ipairs({ 1e300, 1e-300 }) do
      local _, s = linalg.svd(np.array({ { 3, 0 }, { 0, -4 } }, "float64") * scale)
      assert.is_true(np.allclose(s, np.array({ 4, 3 }, "float64") * scale, 1e-14, 0))
    end
    raises("invalid_argument", "np.linalg.svd: the matrix has elements that are not finite", function()
      linalg.svd({ { 0 / 0 } })
    end)
  end)

  it("tells the rank", function()
    local ranks = {}
    for name, a in pairs(matrices) do ranks[name] = linalg.matrix_rank(a) end
    assert.same({ one = 1, row = 1, column = 1, square = 65, tall = 70, wide = 70, none = 0, nothing = 0, zeros = 0,
      ones = 1, eye = 66, deficient = 7, twice = 1, graded = 1 }, ranks)
    assert.equal(7, linalg.matrix_rank(matrices.ones * np.arange(9) + np.eye(9):rows(0, 7), 0.1))
    assert.equal(1, linalg.matrix_rank({ 0, 2 }))
    -- float32 leaves more of 0.
    assert.equal(7, linalg.matrix_rank(matrices.deficient:astype("float32")))
  end)
end)

-- Of up to 8 rows or columns a stack is taken at a time.
describe("many small matrices", function()
  local function turned(a) return a:transpose(0, 2, 1) end
  local function check_orthogonal(columns, what)
    near(np.matmul(turned(columns), columns), np.broadcast_to(np.eye(columns.shape[2], "float64"),
      { #columns, columns.shape[2], columns.shape[2] }), nil, what)
  end

  it("have factors each, of any shape, rank and size", function()
    for _, sizes in ipairs { { 1, 1 }, { 3, 3 }, { 8, 2 }, { 2, 8 }, { 8, 8 }, { 40, 3 }, { 5, 60 } } do
      local rows, columns = unpack(sizes)
      local some = draws:normal(0, 1, { 20, rows, columns }, "float64")
      local low = np.matmul(draws:normal(0, 1, { 20, rows, 1 }, "float64"),
        draws:normal(0, 1, { 20, 1, columns }, "float64"))
      for name, a in pairs { some = some, low = low, tiny = some * 1e-300, none = some * 0 } do
        local what, greatest = ("%s (%d, %d)"):format(name, rows, columns), np.abs(a):max()
        local scale = greatest > 0 and greatest or 1
        local u, s, vt = linalg.svd(a)
        near(np.matmul(u * (s / scale):reshape({ 20, 1, -1 }), vt), a / scale, nil, what)
        check_orthogonal(u, what)
        check_orthogonal(turned(vt), what)
        assert.is_true(s:slice(":, :1"):ge(s):all() and s:ge(0):all(), what)
        local x = linalg.pinv(a / scale)
        near(np.matmul(np.matmul(a / scale, x), a / scale), a / scale, 1e-10, what)
        if rows == columns then
          local symmetric = (a + turned(a)) / scale
          local values, vectors = linalg.eigh(np.tril(symmetric))
          near(np.matmul(vectors * values:reshape({ 20, 1, -1 }), turned(vectors)), symmetric, nil, what)
          check_orthogonal(vectors, what)
          near(np.sort(values), values, nil, what)
        end
      end
    end
  end)

  it("keep the axes before them, and the dtype", function()
    local values, vectors = linalg.eigh(np.ones({ 2, 0, 3, 3 }))
    assert.equal("(2, 0, 3) (2, 0, 3, 3) float32", ("%s %s %s"):format(values.shape, vectors.shape, vectors.dtype))
    local u, s, vt = linalg.svd(np.ones({ 2, 5, 4, 3 }, "float64"))
    assert.equal("(2, 5, 4, 3) (2, 5, 3) (2, 5, 3, 3) float64", ("%s %s %s %s"):format(u.shape, s.shape, vt.shape,
      vt.dtype))
    raises("invalid_argument", "np.linalg.eigh: the matrix has elements that are not finite", function()
      linalg.eigh(np.full({ 2, 2, 2 }, 0 / 0))
    end)
    raises("shape_mismatch", "np.linalg.eigh wants a square matrix, got (2, 3)", function()
      linalg.eigh(np.ones({ 4, 2, 3 }))
    end)
  end)
end)

describe("least squares", function()
  it("fit a line to points", function()
    local x = np.array({ 0, 1, 2, 3 }, "float64")
    local line, residuals, rank, s = linalg.lstsq(np.stack({ x, np.ones({ 4 }, "float64") }, 1),
      np.array({ -1, 0.2, 0.9, 2.1 }, "float64"))
    near(line, np.array({ 1, -0.95 }, "float64"))
    near(residuals, np.array({ 0.05 }, "float64"))
    assert.equal(2, rank)
    assert.is_true(np.allclose(s, np.array({ 4.10003045, 1.09075677 }, "float64")))
  end)

  it("are the shortest of all solutions, for columns of their own", function()
    local x, residuals, rank = linalg.lstsq({ { 1, 1 } }, { { 2, 4 } })
    assert.is_true(np.allclose(x, { { 1, 2 }, { 1, 2 } }))
    assert.equal("(0)", tostring(residuals.shape))
    assert.equal(1, rank)
    raises("shape_mismatch", "np.linalg.lstsq: a is (1, 2), b is (2), wanted (1) or (1, columns)", function()
      linalg.lstsq({ { 1, 1 } }, { 1, 2 })
    end)
    raises("shape_mismatch", "b is (1, 1, 1), wanted (1) or (1, columns)", function()
      linalg.lstsq({ { 1, 1 } }, { { { 1 } } })
    end)
  end)

  it("are what the pseudoinverse gives", function()
    for name, a in pairs(matrices) do
      local x = linalg.pinv(a)
      near(np.matmul(np.matmul(a, x), a), a, nil, name)
      near(np.matmul(a, x):transpose(), np.matmul(a, x), nil, name)
      near(np.matmul(x, a):transpose(), np.matmul(x, a), nil, name)
    end
    assert.is_true(np.allclose(linalg.pinv({ { 2, 0 }, { 0, 0.001 } }, 0.01), { { 0.5, 0 }, { 0, 0 } }))
    assert.same({ 0, 3, 2 }, linalg.pinv(np.zeros { 0, 2, 3 }).shape:table())
  end)
end)

describe("numbers at the end of float64", function()
  it("have factors too, and eigenvalues", function()
    local few = np.array({ { 1.7e308, 0 }, { 0, 1e308 } }, "float64")
    assert.same({ 1.7e308, 1e308 }, (select(2, linalg.svd(few)):totable()))
    assert.same({ 1e308, 1.7e308 }, (linalg.eigh(few)):totable())
    assert.equal(2, linalg.matrix_rank(few))
    local many = np.eye(10, "float64") * 1.7e308
    assert.same(np.full({ 10 }, 1.7e308, "float64"):totable(), (select(2, linalg.svd(many)):totable()))
    assert.same(np.full({ 10 }, 1.7e308, "float64"):totable(), (linalg.eigh(many)):totable())
  end)

  it("or none of one matrix leave the exponentials of the others as they are", function()
    local good = np.array({ { 0, 20 }, { -20, 0 } }, "float64")
    local bad = np.array({ { 0 / 0, 0 }, { 0, 1 } }, "float64")
    local both = linalg.expm(np.stack { good, bad, bad:eq(bad) * (1 / 0) })
    near(both[0], linalg.expm(good))
    assert.is_true(np.isnan(both[1]):all())
  end)
end)
