-- np.minimize: the least value of a function by its gradients.
local checks = require "checks"
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

local raises = checks.raises

-- Rosenbrock's valley, least at (1, 1, ...), as a job.
local function valley(size, dtype)
  return flow.global_function {
    inputs = { x = tp.Numpy.Placeholder({ size }, { dtype = dtype }) }, returns = tp.Tuple { tp.Numpy, tp.Numpy },
  } (function(x)
    local a, b = x:slice(":-1"), x:slice("1:")
    local value = flow.math.reduce_sum(100 * (b - a ^ 2) ^ 2 + (1 - a) ^ 2)
    return value, flow.gradients(value, x)
  end)
end

local function bowl(x) return np.sum((x - 3) ^ 2), 2 * (x - 3) end

describe("np.minimize", function()
  it("finds where a job's value is least, in no more steps than PyTorch's LBFGS", function()
    local begin = np.array({ -1.2, 1 }, "float64")
    local x, value, how = np.minimize(valley(2, "float64"), begin)
    assert.is_true(np.allclose(x, np.ones({ 2 }), { atol = 1e-5 }))
    -- torch.optim.LBFGS of 1.13, strong_wolfe, history_size = 10, tolerance_grad = 1e-5: 35 and 44, to 4.5e-13
    assert.is_true(how.iterations <= 38 and how.calls <= 48)
    assert.is_true(value < 1e-9)
    assert.is_true(how.converged)
    assert.is_nil(how.why)
    assert.is_true(how.gradient < 1e-5)
    assert.same({ -1.2, 1 }, begin:totable())
  end)

  it("keeps shape and floating dtype, and takes tables and whole numbers as float64", function()
    local x, value = np.minimize(bowl, np.zeros({ 2, 3 }))
    assert.equal("float32", x.dtype)
    assert.equal("(2, 3)", tostring(x.shape))
    assert.is_true(np.allclose(x, np.full({ 2, 3 }, 3)))
    assert.is_true(value < 1e-9)
    assert.equal("float64", np.minimize(bowl, np.zeros({ 2 }, "int32")).dtype)
    local of_scalar = np.minimize(bowl, np.array(10, "float64"))
    assert.equal("()", tostring(of_scalar.shape))
    assert.is_true(math.abs(of_scalar:item() - 3) < 1e-5)
  end)

  it("is there at once where it begins at the least", function()
    local x, value, how = np.minimize(bowl, { 3, 3 })
    assert.same({ 3, 3 }, x:totable())
    assert.equal(0, value)
    assert.same({ iterations = 0, calls = 1, converged = true, gradient = 0 }, how)
  end)

  it("goes around places without a value", function()
    -- x - log(x), least at 1; the first step from 0.01 would go far below 0
    local function f(x) return np.sum(x - np.log(x)), 1 - 1 / x end
    local x, value, how = np.minimize(f, np.array({ 0.01, 5 }, "float64"))
    assert.is_true(np.allclose(x, np.ones({ 2 }), { atol = 1e-4 }))
    assert.is_true(math.abs(value - 2) < 1e-8)
    assert.is_true(how.converged)
  end)

  it("goes around places without a gradient", function()
    -- The root has none at 0, which the first step would reach from 0.5: 0.5 - 0.5.
    local function f(x) return np.sum((np.sqrt(np.abs(x)) - 2) ^ 2), (1 - 2 / np.sqrt(np.abs(x))) * np.sign(x) end
    local function walled(x)
      local value, gradient = f(x)
      return value, np.where(x:lt(0.75), 0 / 0, gradient)
    end
    local x, _, how = np.minimize(walled, np.array({ 9 }, "float64"))
    assert.is_true(how.converged)
    assert.is_true(math.abs(x:item() - 4) < 1e-3)
  end)

  it("goes around places where f catches its own error, as its help says", function()
    -- 100 x - log(x), least at 0.01, of a matrix (1, 1) that is positive definite above 0; the first step ends at 0
    local fit_job = flow.global_function {
      inputs = { x = tp.Numpy.Placeholder({ 1, 1 }, { dtype = flow.float64 }) },
      returns = tp.Tuple { tp.Numpy, tp.Numpy },
    } (function(x)
      local diagonal = flow.linalg.diag_part(flow.linalg.cholesky(x))
      local value = flow.math.reduce_sum(100 * x) - 2 * flow.math.reduce_sum(flow.math.log(diagonal))
      return value, flow.gradients(value, x)
    end)
    local begin, caught = np.array({ { 1 } }, "float64"), 0
    local x, _, how = np.minimize(function(x)
      local fine, value, gradient = pcall(fit_job, x)
      if fine then return value, gradient end
      if not tostring(value):find("not positive definite") then error(value, 0) end
      caught = caught + 1
      return math.huge, x
    end, begin)
    assert.is_true(how.converged)
    assert.is_true(math.abs(x:item() - 0.01) < 1e-6)
    assert.is_true(caught > 0)
    raises("invalid_argument", "the matrix is not positive definite", function() fit_job(-begin) end)
  end)

  it("tells why it has ended where it was not there", function()
    local _, _, how = np.minimize(valley(10, "float64"), np.full({ 10 }, -1.2, "float64"), { iterations = 3 })
    assert.same({ 3, false, "it has come to the last iteration" }, { how.iterations, how.converged, how.why })
    local seen = {}
    _, _, how = np.minimize(valley(2, "float64"), np.zeros({ 2 }, "float64"), { callback = function(x, value, iteration)
      seen[iteration] = { tostring(x.shape), value }
      return iteration == 5
    end })
    assert.equal("the callback has ended it", how.why)
    assert.equal(5, #seen)
    assert.equal("(2)", seen[1][1])
    for i = 2, 5 do assert.is_true(seen[i][2] < seen[i - 1][2]) end
    -- A gradient of the wrong sign leads nowhere.
    _, _, how = np.minimize(function(x) return np.sum(x ^ 2), -2 * x end, np.ones({ 2 }, "float64"))
    assert.equal("no smaller value was found along the gradient", how.why)
    assert.equal(0, how.iterations)
    -- Where rounding hides what is left, unless it leaves nothing, as fused products and sums may.
    local least, _
    least, _, how = np.minimize(valley(100, "float32"), np.full({ 100 }, -1.2), { iterations = 1000, tolerance = 0 })
    local _, gradient = valley(100, "float32")(least)
    assert.equal(np.abs(gradient):max() == 0, how.converged)
    assert.is_true(how.iterations < 1000)
  end)

  it("says what is wrong with f and its options", function()
    raises("invalid_argument", "np.minimize: f must give a number and a gradient, got nil",
      function() np.minimize(function() end, { 1 }) end)
    raises("invalid_argument", "np.minimize: f must give a gradient of the shape (2) beside the value, got an ndarray",
      function() np.minimize(function() return 1, np.zeros({ 3 }) end, { 1, 2 }) end)
    for _, f in ipairs { function(x) return 0 / 0, x end, function(x) return 0, x * math.huge end } do
      raises("invalid_argument", "np.minimize: f has no finite value and gradient where the search begins",
        function() np.minimize(f, { 1, 2 }) end)
    end
    raises("invalid_argument", "np.minimize: x is (0) and has no elements to choose",
      function() np.minimize(bowl, np.zeros({ 0 })) end)
    raises("invalid_argument", "np.minimize: iterations must be at least 1, got 0",
      function() np.minimize(bowl, { 1 }, { iterations = 0 }) end)
    raises("invalid_argument", "np.minimize: argument 1 ('f') must be a function", function() np.minimize(3, { 1 }) end)
  end)
end)
