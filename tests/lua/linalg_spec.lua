-- flow.linalg: factors and equations in the body of a job, by what they are factors and solutions of, and gradients.
local checks = require "checks"
local flow = require "moonflow"
local np, tp, linalg = flow.np, flow.typing, flow.linalg
local near, raises, run = checks.near, checks.raises, checks.run

local rng = np.random.default_rng(3)
local function drawn(...) return rng:normal(0, 1, { ... }, { dtype = "float64" }) end
local function turned(x) return flow.np.swapaxes(x, -1, -2) end

-- Symmetric matrices whose eigenvalues are 1 and above.
local function positive(...)
  local x = drawn(...)
  return np.matmul(x, turned(x)) + np.eye(x.shape[x.rank - 1], { dtype = "float64" })
end

-- The gradient that a job tells of the sum of body(x) * weights, and the same by differences.
local function check_slope(x, body)
  local weights = drawn(run({ x }, body).shape:unpack())
  local function weighted(value) return body(value) * weights end
  local told = run({ x }, function(value) return flow.gradients(weighted(value), value) end)
  local step, values = 1e-5, x:ravel()
  local value = flow.global_function {  -- one job for all differences
    inputs = { value = tp.Numpy.Placeholder(x.shape:table(), { dtype = x.dtype }) }, returns = tp.Numpy } (weighted)
  for i = 0, #values - 1 do
    local function at(change)
      local moved = values:copy()
      moved[i] = moved[i] + change
      return np.sum(value(moved:reshape(x.shape:table())))
    end
    local slope = (at(step) - at(-step)) / (2 * step)
    assert.is_true(math.abs(slope - told:ravel()[i]) < 1e-7 * math.max(1, math.abs(slope)), "element " .. i)
  end
end

-- The same of the gradient itself.
local function check_slopes(x, body)
  check_slope(x, body)
  local weights = drawn(run({ x }, body).shape:unpack())
  check_slope(x, function(value) return flow.gradients(body(value) * weights, value) end)
end

describe("flow.linalg", function()
  it("factors and solves matrices of any size, float32 in float64, and stacks of them", function()
    for _, n in ipairs { 1, 2, 31, 32, 33, 64, 131 } do
      local x, general, rhs = positive(n, n), drawn(n, n) + 3 * np.eye(n, { dtype = "float64" }), drawn(n, 70)
      local root = run({ x }, function(a) return linalg.cholesky(a) end)
      near(x, np.matmul(root, turned(root)), 1e-10, "cholesky " .. n)
      near(np.tril(root), root, 0)
      near(root, run({ np.tril(x) }, function(a) return linalg.cholesky(a, { symmetrize = false }) end), 1e-12)
      near(rhs, np.matmul(general, run({ general, rhs }, function(a, b) return linalg.solve(a, b) end)), 1e-8)
      near(np.eye(n, { dtype = "float64" }), np.matmul(general, run({ general }, function(a) return linalg.inv(a) end)),
        1e-8, "inv " .. n)
      local _, values = np.linalg.svd(general)
      local told = run({ general }, function(a)
        local sign, size = linalg.slogdet(a)
        return flow.stack({ size, flow.math.log(linalg.det(a) * sign) }, 0)
      end)
      near(np.ones({ 2 }, "float64") * np.sum(np.log(values)), told, 1e-9, "slogdet " .. n)
      for _, lower in ipairs { true, false } do
        local kept = lower and np.tril(x) or np.triu(x)
        near(rhs, np.matmul(kept, run({ x, rhs }, function(a, b)
          return linalg.triangular_solve(a, b, { lower = lower })
        end)), 1e-8, "triangular_solve " .. n)
        near(rhs, np.matmul(turned(kept), run({ x, rhs }, function(a, b)
          return linalg.triangular_solve(a, b, lower, true)
        end)), 1e-8, "its adjoint " .. n)
      end
      near(rhs, np.matmul(turned(general), run({ general, rhs }, function(a, b)
        return linalg.solve(a, b, { adjoint = true })
      end)), 1e-8, "the adjoint of solve " .. n)
    end
    local stack = drawn(2, 40, 3, 3)
    local unit = np.broadcast_to(np.eye(3, { dtype = "float64" }), { 2, 40, 3, 3 })
    near(unit, np.matmul(stack, run({ stack }, function(a) return linalg.inv(a) end)), 1e-10)
    local nearly_singular = np.array({ { 1, 1 }, { 1, 1.0001 } })
    local told = run({ nearly_singular }, function(a) return linalg.inv(a) end)
    assert.equal("float32", told.dtype)
    near(np.eye(2), np.matmul(nearly_singular, told:astype("float64")):astype("float32"), 1e-3)  -- 1e4 times 6e-8
  end)

  it("tells signs, and the determinant of what has none other than 0", function()
    local function signs(x) return run({ np.array(x) }, function(a) return flow.stack({ linalg.slogdet(a) }, 0) end) end
    assert.same({ -1, 0 }, signs({ { 0, 1 }, { 1, 0 } }):totable())
    assert.same({ 1, 0 }, signs({ { 0, 1, 0 }, { 0, 0, 1 }, { 1, 0, 0 } }):totable())
    assert.same({ 0, -math.huge }, signs({ { 1, 2 }, { 2, 4 } }):totable())
    local matrices = np.array { { { 0, 2 }, { 4, 2 } }, { { 1, 2 }, { 2, 4 } } }
    assert.same({ -8, 0 }, run({ matrices }, function(a) return linalg.det(a) end):totable())
  end)

  it("has the diagonals of matrices", function()
    local x = np.arange(12):reshape(2, 2, 3)
    assert.same({ { 0, 4 }, { 6, 10 } }, run({ x }, function(a) return linalg.diag_part(a) end):totable())
    assert.same({ 0, 3 }, run({ np.arange(6):reshape(3, 2) }, function(a) return linalg.diag_part(a) end):totable())
    raises("invalid_argument", "x is (3), it needs two axes", function()
      run({ np.ones { 3 } }, function(a) return linalg.diag_part(a) end)
    end)
  end)

  it("solves with one matrix for a stack of right sides, and with one of these for a stack of matrices", function()
    for _, shapes in ipairs { { { 4, 4 }, { 5, 4, 2 } }, { { 5, 4, 4 }, { 4, 1 } }, { { 5, 1, 4, 4 }, { 3, 4, 2 } } } do
      local matrix, rhs = positive(unpack(shapes[1])), drawn(unpack(shapes[2]))
      for _, name in ipairs { "solve", "triangular_solve" } do
        local x, slope = run({ matrix, rhs }, function(a, b)
          local x = linalg[name](a, b)
          return x, flow.gradients(x * x, a)
        end, { returns = tp.Tuple { tp.Numpy, tp.Numpy } })
        local left = name == "solve" and matrix or np.tril(matrix)
        near(np.matmul(left, x), rhs + np.zeros_like(x), 1e-10)
        assert.equal(tostring(matrix.shape), tostring(slope.shape))
      end
    end
    raises("invalid_argument", "flow.linalg.solve: matrix is (2, 3, 3), rhs is (5, 3, 1), whose axes before the last",
      function() run({ positive(2, 3, 3), drawn(5, 3, 1) }, function(a, b) return linalg.solve(a, b) end) end)
  end)

  it("has exp of matrices, as the array function has it", function()
    -- A quarter of a turn about an axis, and a velocity that is added up.
    local quarter = math.pi / 2
    local matrices = np.array({ { { 0, -quarter }, { quarter, 0 } }, { { 0, 7 }, { 0, 0 } } }, "float64")
    local exps = np.array({ { { 0, -1 }, { 1, 0 } }, { { 1, 7 }, { 0, 1 } } }, "float64")
    near(exps, run({ matrices }, function(a) return linalg.expm(a) end), 1e-13)
    near(exps, np.linalg.expm(matrices), 1e-13)
    local none = run({ np.ones({ 2, 3, 3 }) }, function(a)
      return linalg.expm(flow.slice(a, { 0, 0, 0 }, { 0, 3, 3 }))
    end)
    assert.equal("(0, 3, 3)", tostring(none.shape))
    local heat = (np.eye(40, 40, 1, "float64") + np.eye(40, 40, -1, "float64") - 2 * np.eye(40, "float64")) * 41 ^ 2
    local warmth = run({ heat }, function(a) return linalg.expm(a) end)
    near(warmth, np.linalg.expm(heat), 1e-13)
    local values, modes = np.linalg.eigh(heat)
    near(warmth, np.matmul(modes * np.exp(values), modes:transpose()), 1e-13)
    for _, size in ipairs { 1e-9, 0.5, 20, 300 } do
      local x = drawn(4, 4) * size
      local turn = np.linalg.expm(x - turned(x))
      near(np.eye(4, { dtype = "float64" }), np.matmul(turn, turned(turn)), 1e-12)
      near(turn, run({ x - turned(x) }, function(a) return linalg.expm(a) end), 1e-13)
    end
    near(np.exp(np.array { { 2 } }), run({ np.array { { 2 } } }, function(a) return linalg.expm(a) end), 1e-6)
    local large = np.array({ { { -6e6 } }, { { 3 } } }, "float64")
    assert.equal("nan", tostring(run({ large }, function(a) return linalg.expm(a) end):ravel()[0]))
    near(np.array({ { { 0 } }, { { math.exp(3) } } }, "float64"), np.linalg.expm(large), 1e-13)
    assert.same({ 0, 2, 2 }, np.linalg.expm(np.zeros { 0, 2, 2 }).shape:table())
    assert.is_true(np.isnan(np.linalg.expm { { 1 / 0, 0 }, { 0, 1 } }):all())
    check_slopes(drawn(3, 3) * 4, function(a) return linalg.expm(a) end)
    raises("invalid_argument", "x is (2, 3), it needs square matrices in its last two axes", function()
      run({ np.ones { 2, 3 } }, function(a) return linalg.expm(a) end)
    end)
    raises("invalid_argument", "x is int32, wanted float32 or float64", function()
      run({ np.ones({ 2, 2 }, "int32") }, function(a) return linalg.expm(a) end)
    end)
  end)

  it("has gradients, and these have gradients too", function()
    local x, rhs = positive(3, 3), drawn(3, 2)
    check_slopes(x, function(a) return linalg.cholesky(a) end)
    check_slopes(x, function(a) return linalg.cholesky(a, { symmetrize = false }) end)
    check_slopes(x, function(a) return linalg.inv(a) end)
    check_slopes(x, function(a) return linalg.det(a) end)
    check_slopes(x, function(a) return (select(2, linalg.slogdet(a))) end)
    check_slopes(drawn(2, 2, 2), function(a) return (select(2, linalg.slogdet(a))) end)
    for _, adjoint in ipairs { false, true } do
      check_slopes(x, function(a) return linalg.solve(a, rhs, { adjoint = adjoint }) end)
      check_slopes(rhs, function(b) return linalg.solve(x, b * b, { adjoint = adjoint }) end)
      for _, lower in ipairs { false, true } do
        check_slopes(x, function(a) return linalg.triangular_solve(a, rhs, lower, adjoint) end)
        check_slopes(rhs, function(b) return linalg.triangular_solve(x, b * b, lower, adjoint) end)
      end
    end
    check_slope(x, function(a) return linalg.diag_part(linalg.cholesky(a)) end)
  end)

  it("says what it cannot factor or solve", function()
    local function cholesky(x) return run({ x }, function(a) return linalg.cholesky(a, { name = "root" }) end) end
    raises("invalid_argument", "cholesky 'root': the matrix is not positive definite, as its first 2 rows and columns",
      cholesky, np.array({ { 1, 2 }, { 2, 1 } }))
    raises("invalid_argument", "as its first 1 row and column show", cholesky, np.array({ { 0 / 0 } }))
    raises("invalid_argument", "the matrix at 1 of the stack is not positive definite", cholesky,
      np.stack({ np.eye(2), -np.eye(2) }, 0))
    raises("invalid_argument", "the matrix is singular", function()
      run({ np.array({ { 1, 2 }, { 2, 4 } }) }, function(a) return linalg.inv(a) end)
    end)
    raises("invalid_argument", "the matrix is singular", function()
      run({ np.array({ { 1, 2 }, { 2, 0 } }) }, function(a) return linalg.triangular_solve(a, a) end)
    end)
    raises("shape_mismatch", "x is float32 (2, 3), wanted a square matrix", cholesky, np.ones { 2, 3 })
    raises("dtype_mismatch", "x must be float32 or float64, got int32", cholesky, np.ones({ 2, 2 }, "int32"))
    raises("shape_mismatch", "a vector is one column, flow.expand_dims(rhs, -1)", function()
      run({ np.eye(2), np.ones { 2 } }, function(a, b) return linalg.solve(a, b) end)
    end)
  end)

  it("trains a Gaussian process by its likelihood, in one job", function()
    local n = 40
    local places = np.linspace(-3, 3, n, { dtype = "float64" }):reshape(n, 1)
    local heights = np.sin(2 * places) + 0.1 * drawn(n, 1)
    local Column = tp.Numpy.Placeholder({ n, 1 }, { dtype = "float64" })
    local step = flow.global_function {
      type = "train", name = "gaussian process", inputs = { x = Column, y = Column }, returns = tp.Numpy,
    } (function(x, y)
      local function positive_number(name, value)
        return flow.math.exp(flow.get_variable("process-" .. name, {
          shape = {}, dtype = "float64", initializer = flow.constant_initializer(math.log(value)) }))
      end
      local squares = (x - flow.transpose(x)) ^ 2
      local kernel = flow.math.exp(-0.5 * squares / positive_number("width", 3) ^ 2)
      local root = linalg.cholesky(kernel + positive_number("noise", 1) * np.eye(n, { dtype = "float64" }))
      local loss = flow.math.reduce_sum(linalg.triangular_solve(root, y) ^ 2) / 2
        + flow.math.reduce_sum(flow.math.log(linalg.diag_part(root)))
      flow.optimizer.Adam(0.05):minimize(loss)
      return loss
    end)
    local kernel = np.exp(-(places - turned(places)) ^ 2 / 18) + np.eye(n, { dtype = "float64" })
    local _, size = np.linalg.slogdet(kernel)
    local first, last = step(places, heights):item(), nil
    assert.is_true(math.abs(first - (np.sum(heights * np.linalg.solve(kernel, heights)) + size) / 2) < 1e-10)
    for _ = 1, 200 do last = step(places, heights):item() end
    assert.is_true(last < first - 4, first .. " became " .. last)
  end)
end)
