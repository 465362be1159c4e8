-- What of flow.np sums up data, joins and compares sets of values, and draws from other distributions.
local checks = require "checks"
local flow = require "moonflow"
local np = flow.np
local raises, refuses = checks.raises, checks.refuses

local function same(wanted, array) assert.same(wanted, array:totable()) end

describe("what was compared by ==", function()
  it("is told from the comparison of each element", function()
    local labels = np.array { 1, 2, 3 }
    for _, f in ipairs { np.sum, np.mean, np.all } do
      local fine, problem = pcall(f, labels == np.zeros { 3 })
      assert.is_false(fine)
      assert.truthy(tostring(problem):find("got false; a == b is one truth in Lua, and np.equal(a, b) that of each "
        .. "element", 1, true), tostring(problem))
    end
    assert.equal(2, np.sum(np.equal(labels, np.array { 1, 0, 3 })))
  end)
end)

describe("a table of arrays", function()
  local losses = { np.array(1), np.array(2), np.array(6) }  -- as jobs give them

  it("is taken where a table of numbers is", function()
    assert.equal(3, np.mean(losses))
    assert.equal(6, np.max(losses))
    assert.equal(2, np.median(losses))
    assert.equal(41, np.dot(losses, losses))
    assert.near(np.std { 1, 2, 6 }, np.std(losses), 1e-6)  -- the rounding of float32
    same({ 2, 3, 7 }, np.array(1) + losses)
    same({ 2, 2, 6 }, np.maximum(losses, 2))
    same({ 2, 3 }, np.mean({ np.array { 1, 2 }, np.array { 3, 4 } }, 0))
    same({ 4, 6 }, np.sum({ { losses[1], losses[2] }, { np.array(3), np.array(4) } }, 0))
    local a = np.zeros { 2, 3 }
    a[0] = losses
    a:set("1, :", losses)
    same({ { 1, 2, 6 }, { 1, 2, 6 } }, a)
    same({ { 1, 2, 6 } }, a:take({ np.array(1, "int64") }, 0))
  end)

  it("has the dtype that np.array gives it", function()
    local large = np.array({ 2 ^ 40 + 1, 2 }, "int64")
    checks.same(np.max({ large, large }, 0), "int64", { 2 ^ 40 + 1, 2 })
    checks.same(np.multiply({ large, large }, 1), "int64", { { 2 ^ 40 + 1, 2 }, { 2 ^ 40 + 1, 2 } })
    assert.equal("float64", np.exp({ np.array({ 1 }, "float64") }).dtype)
    assert.equal("float64", np.mean({ np.array({ 1 }, "float64") }, 0).dtype)
    assert.equal("float32", np.mean({ np.array { 1 } }, 0).dtype)
    checks.same(np.gcd({ np.array(4, "int64") }, 6), "int64", { 2 })
  end)

  it("has arrays of one shape", function()
    raises("shape_mismatch", "np.mean: inputs[0] is (1), inputs[1] is (2)", np.mean,
      { np.array { 1 }, np.array { 1, 2 } })
  end)
end)

it("what other libraries ask of an array is told in our words", function()
  refuses("did you mean 'int8'?", np.zeros, { 2 }, "bool")
  raises("not_found", "did you mean a:astype", function() return np.zeros { 2 }:to("gpu") end)
  raises("not_found", "did you mean a itself", function() return np.zeros { 2 }:detach() end)
end)

describe("a weighted mean", function()
  local a = np.array { { 1, 2, 3 }, { 4, 5, 9 } }

  it("counts each element by its weight", function()
    assert.equal(4, np.average(a))
    same({ 2.5, 3.5, 6 }, np.average(a, 0))
    assert.equal(7, np.average(a, { weights = { { 0, 0, 1 }, { 1, 1, 1 } } }) * 4 / 3)
    same({ 2.75, 8 }, np.average(a, { axis = 1, weights = { 0, 1, 3 } }))
    same({ 4, 5, 9 }, np.average(a, { axis = 0, weights = { 0, 2 } }))
  end)

  it("wants a weight for each", function()
    raises("shape_mismatch", "np.average: weights are (2) for (2, 3)", np.average, a, { axis = 1, weights = { 1, 2 } })
  end)
end)

describe("without NaN", function()
  local a = np.array { { 1, 0 / 0, 3 }, { 0 / 0, 0 / 0, 5 } }

  it("are sums, means and extremes", function()
    assert.equal(9, np.nansum(a))
    assert.equal(3, np.nanmean(a))
    assert.equal(5, np.nanmax(a))
    assert.equal(1, np.nanmin(a))
    same({ 4, 5 }, np.nansum(a, 1))
    same({ 2, 5 }, np.nanmean(a, { axis = 1 }))
    same({ 3, 5 }, np.nanmax(a, 1))
    same({ 1, 0, 3 }, np.where(np.isfinite(np.nanmin(a, 0)), np.nanmin(a, 0), 0))
  end)

  it("are taken along several axes, which stay where that is wanted", function()
    local cube = np.array { { { 1, 0 / 0 }, { 3, 4 } }, { { 5, 6 }, { 0 / 0, 10 } } }
    for name, wanted in pairs {
      nansum = { 9, 20 }, nanmean = { 3, 20 / 3 }, nanmax = { 5, 10 }, nanmin = { 1, 4 }, nanmedian = { 3, 6 },
      nanvar = { 8 / 3, 56 / 9 },
    } do
      local got = np[name](cube, { axis = { 0, 1 }, keepdims = true })
      assert.same({ 1, 1, 2 }, got.shape:table())
      assert.is_true(np.allclose(got:ravel(), wanted), name)
      assert.is_true(np.allclose(np[name](cube, { -2, 0 }), wanted), name)
      assert.near(np[name](cube), np[name](cube, { keepdims = true }):item(), 1e-6)
    end
    refuses("np.nanmean: axis 1 is named twice", np.nanmean, cube, { 1, -2 })
  end)

  it("have the dtype that other sums and means have", function()
    for _, name in ipairs { "nansum", "nanmean", "nanvar", "nanstd", "nanmax", "nanmin", "nanmedian" } do
      local plain = np[name:sub(4)]
      for _, dtype in ipairs { "float32", "float64", "float16", "int32" } do
        local full = np.array({ { 1, 2 }, { 4, 8 } }, dtype)
        assert.equal(plain(full, 0).dtype, np[name](full, 0).dtype, name .. " of " .. dtype)
        same(plain(full, 1):totable(), np[name](full, 1))
      end
    end
  end)

  it("are deviations and what is in the middle", function()
    assert.equal(8 / 3, np.nanvar(a:astype("float64")))
    assert.equal(4, np.nanvar(a, { ddof = 1 }))
    same({ 1, 0 }, np.nanstd(a, 1))
    assert.equal(3, np.nanmedian(a))
    same({ 2, 5 }, np.nanmedian(a, 1))
    assert.equal(2.5, np.nanmedian({ 4, 1, 0 / 0, 3, 2 }))
    -- Of what there is too little of, NaN.
    assert.equal(1, np.isnan(np.nanvar({ 0 / 0 })))
    same({ 0, 1, 0 }, np.isnan(np.nanmedian(a, 0)))
    same({ 0, 1 }, np.isnan(np.nanvar(a, 1, 1)))
    refuses("np.nanmedian of no values", np.nanmedian, np.zeros({ 2, 0 }), 1)
  end)
end)

it("integers have sums that hold what comes out, and means in float64", function()
  for dtype, most in pairs { int8 = 127, uint8 = 255, int32 = 2 ^ 31 - 1, int64 = 2 ^ 40 } do
    local a = np.array({ most, -most, most, 1, most, 3, most, most, most, 0, 7, most }, "float64"):reshape { 3, 2, 2 }
    if dtype == "uint8" then a = np.abs(a) end
    local whole = a:astype(dtype)
    for _, axis in ipairs { {}, { 0 }, { 1, 2 }, { 0, 2 }, { -1 } } do
      local axes = #axis > 0 and axis or nil
      local function both(name, ...)
        local wanted, got = a[name](a, ...), whole[name](whole, ...)
        if type(got) == "number" then return assert.is_true(math.abs(got - wanted) <= 1e-12 * math.abs(wanted)) end
        assert.equal(name == "sum" and "int64" or "float64", got.dtype)
        checks.near(wanted, got, 1e-12 * np.max(np.abs(wanted)), name .. " of " .. dtype)
      end
      both("sum", { axis = axes })
      both("mean", { axis = axes, keepdims = true })
      both("std", { axis = axes })
      both("var", { axis = axes, ddof = 1 })
    end
  end
  same({ 127 * 127, 6 }, np.array({ { 127, 2 }, { 127, 3 } }, "int8"):prod(0))
end)

it("the reach of values is from the least to the greatest", function()
  local a = np.array { { 1, 2, 3 }, { 4, 5, 9 } }
  assert.equal(8, np.ptp(a))
  same({ 2, 5 }, np.ptp(a, 1))
  same({ { 8 } }, np.ptp(a, { keepdims = true }))
end)

it("digitize gives the class between bounds", function()
  same({ 0, 1, 1, 2, 3 }, np.digitize({ -1, 0, 0.5, 1, 7 }, { 0, 1, 2 }))
  same({ 0, 0, 1, 1, 3 }, np.digitize({ -1, 0, 0.5, 1, 7 }, { 0, 1, 2 }, { right = true }))
  same({ 3, 2, 1, 0, 0 }, np.digitize({ 0.5, 1, 2, 3, 4 }, { 3, 2, 1 }))
  same({ 3, 3, 2, 1, 0 }, np.digitize({ 0.5, 1, 2, 3, 4 }, { 3, 2, 1 }, { right = true }))
  local fine, problem = pcall(np.digitize, { 1 }, { 1, 3, 2 })
  assert.is_false(fine)
  assert.truthy(tostring(problem):find("the bounds neither rise nor fall", 1, true))
end)

it("sets of values have what both have, and what either has", function()
  same({ 2, 5 }, np.intersect1d({ 5, 2, 5, 9 }, { 2, 3, 5 }))
  same({ 2, 3, 5, 9 }, np.union1d({ 5, 2, 5, 9 }, { 2, 3, 5 }))
end)

it("arrays become columns, and go on behind their end", function()
  same({ { 1, 3, 5 }, { 2, 4, 6 } }, np.column_stack { { 1, 2 }, np.array { { 3, 5 }, { 4, 6 } } })
  same({ 1, 2, 3, 4 }, np.append({ { 1, 2 } }, { 3, 4 }))
  same({ { 1, 2 }, { 3, 4 } }, np.append({ { 1, 2 } }, { { 3, 4 } }, 0))
end)

it("matrices have a trace and a product of each element with another matrix", function()
  assert.equal(5, np.trace { { 1, 2 }, { 3, 4 } })
  same({ { 0, 1, 0, 2 }, { 1, 0, 2, 0 } }, np.kron({ { 1, 2 } }, { { 0, 1 }, { 1, 0 } }))
  raises("shape_mismatch", "np.trace wants a matrix, got (2)", np.trace, { 1, 2 })
  raises("shape_mismatch", "np.kron wants two matrices, got (1) and (1, 1)", np.kron, { 1 }, { { 1 } })
end)

it("an array is itself where an array is wanted", function()
  local a = np.ones { 2 }
  assert.equal(a:ptr(), np.asarray(a):ptr())
  assert.equal("int32", np.asarray(a, flow.int32).dtype)
  same({ 1, 2 }, np.asarray { 1, 2 })
  assert.equal(11, np.array({ 1, 2 }):dot({ 3, 4 }))
  same({ 1, 2, 2 }, np.array({ 0, 2, 5 }):clip(1, 2))
end)

describe("draws", function()
  local rng = np.random.default_rng(5)
  local count = 20000

  -- Within five deviations of the mean's own error.
  local function about(mean, deviation, draws)
    assert.near(mean, draws:mean(), 5 * deviation / math.sqrt(count))
    assert.near(deviation, draws:std(), 0.1 * deviation)
  end

  it("have the mean and the deviation of their distribution", function()
    about(2, 2, rng:exponential(2, { count }))
    for _, form in ipairs { 0.3, 1, 4.5 } do
      about(form * 3, math.sqrt(form) * 3, rng:gamma(form, 3, { count }))
    end
    for _, ab in ipairs { { 0.2, 0.2 }, { 2, 5 } } do
      local a, b = unpack(ab)
      local draws = rng:beta(a, b, { count })
      about(a / (a + b), math.sqrt(a * b / ((a + b) ^ 2 * (a + b + 1))), draws)
      assert.is_true(draws:min() >= 0 and draws:max() <= 1)
    end
  end)

  it("are numbers without a shape, of a dtype with one, and the same for equal seeds", function()
    assert.equal("number", type(rng:beta(1, 1)))
    assert.equal("float32", rng:gamma(2, 1, { 3 }).dtype)
    assert.equal("float64", rng:exponential(1, { 3 }, "float64").dtype)
    assert.is_true(np.array_equal(np.random.default_rng(3):beta(0.4, 0.4, { 50 }),
      np.random.default_rng(3):beta(0.4, 0.4, { 50 })))
  end)

  it("are shares of one also where forms are so small that nearly all goes to one", function()
    local draws = rng:beta(1e-3, 1e-3, { count })
    assert.is_true(np.isfinite(draws):all())
    about(0.5, 0.5, draws)
    local alpha = { 1, 2, 7 }
    local shares = rng:dirichlet(alpha, { count })
    assert.equal("float32", shares.dtype)
    assert.is_true(np.allclose(shares:sum(1), np.ones { count }))
    for i, form in ipairs(alpha) do
      about(form / 10, math.sqrt(form / 10 * (1 - form / 10) / 11), shares:slice({}, i - 1))
    end
    assert.is_true(np.allclose(rng:dirichlet({ 1e-3, 1e-3, 1e-3 }, { 50 }):sum(1), np.ones { 50 }))
    assert.equal("(2, 0, 3)", tostring(rng:dirichlet(alpha, { 2, 0 }).shape))
    same({ 1 }, rng:dirichlet({ 5 }))
    refuses("np.random.dirichlet: each alpha must be above 0, got 0", rng.dirichlet, rng, { 1, 0 })
    raises("shape_mismatch", "np.random.dirichlet wants an alpha of one axis with elements, got ()",
      rng.dirichlet, rng, 2)
  end)

  it("count how often each of several things happens", function()
    local p, tries = { 0.25, 0, 0.5, 0.25 }, 12
    local counts = rng:multinomial(tries, p, { count })
    assert.equal("int64", counts.dtype)
    assert.is_true(counts:sum(1):eq(tries):all())
    for i, chance in ipairs(p) do
      about(tries * chance, math.sqrt(tries * chance * (1 - chance)), counts:slice({}, i - 1))
    end
    same({ 0, 9, 0 }, rng:multinomial(9, { 0, 1, 0 }))
    assert.equal("(2, 0, 3)", tostring(rng:multinomial(9, { 0, 1, 0 }, { 2, 0 }).shape))
    refuses("np.random.multinomial: the chances add up to 1.5, not to 1", rng.multinomial, rng, 3, { 0.5, 1 })
    refuses("np.random.multinomial: p must be chances along one axis", rng.multinomial, rng, 3, { { 0.5, 0.5 } })
    refuses("np.random.multinomial: n must be at least 0, got -1", rng.multinomial, rng, -1, { 1 })
  end)

  it("are vectors with covariances, which may be singular", function()
    local cov = { { 2, -0.6 }, { -0.6, 0.5 } }
    local draws = rng:multivariate_normal({ 1, -2 }, cov, { count })
    assert.equal("float32", draws.dtype)
    about(1, math.sqrt(2), draws:slice(":, 0"))
    about(-2, math.sqrt(0.5), draws:slice(":, 1"))
    -- The deviation of a covariance of n draws is sqrt((1.0 + 0.36) / n).
    assert.near(-0.6, np.cov(draws, { rowvar = false }):at(0, 1), 5 * math.sqrt(1.36 / count))
    local line = rng:multivariate_normal({ 0, 0 }, { { 1, 2 }, { 2, 4 } }, { 5 }, "float64")
    assert.is_true(np.allclose(line:slice(":, 0") * 2, line:slice(":, 1")))
    assert.equal("(2)", tostring(rng:multivariate_normal({ 0, 0 }, cov).shape))
    refuses("cov gives a direction the variance -1", rng.multivariate_normal, rng, { 0, 0 }, { { 1, 2 }, { 2, 1 } })
    for _, odd in ipairs { 0 / 0, 1 / 0 } do
      refuses("np.random.multivariate_normal: cov has elements that are not finite", rng.multivariate_normal, rng,
        { 0, 0 }, { { 1, odd }, { odd, 1 } })
    end
    refuses("cov is not symmetric", rng.multivariate_normal, rng, { 0, 0 }, { { 1, 2 }, { 1, 1 } })
    raises("shape_mismatch", "the mean is (1) and cov is (2, 2)", rng.multivariate_normal, rng, { 0 }, cov)
  end)

  it("take NumPy's names", function()
    local one, other = np.random.default_rng(3), np.random.default_rng(3)
    same(one:randint(2, 9, { 5 }):totable(), other:integers { low = 2, high = 9, size = 5 })
    same(one:normal(2, 0.5, { 5 }):totable(), other:normal { loc = 2, scale = 0.5, size = 5 })
    same(one:lognormal(2, 0.5, { 5 }):totable(), other:lognormal { mean = 2, sigma = 0.5, size = 5 })
    assert.error_matches(function() one:normal { deviation = 2 } end, "did you mean 'stddev'?")
    same(one:randint(1, 7, { 50 }):totable(), other:integers(1, 6, { 50 }, { endpoint = true }))
    same(one:uniform(0, 1, { 2 }):totable(), other:uniform { size = { 2 } })
    refuses("np.random.integers: no whole number lies in [3, 3)", other.integers, other, 3, 3)
    for name, parameters in pairs {
      chisquare = { 2 }, geometric = { 0.5 }, gumbel = { 0, 1 }, laplace = { 0, 1 }, logistic = { 0, 1 },
      pareto = { 2 }, rayleigh = { 2 }, standard_t = { 3 }, triangular = { 0, 1, 2 }, weibull = { 2 }, zipf = { 3 },
    } do
      parameters[#parameters + 1] = { size = 5 }
      assert.equal("(5)", tostring(one[name](one, unpack(parameters)).shape), name)
    end
  end)

  it("have parameters above 0", function()
    refuses("np.random.beta: a must be above 0, got 0", rng.beta, rng, 0, 1)
    refuses("np.random.gamma: form must be above 0, got -1", rng.gamma, rng, -1)
    refuses("np.random.exponential: scale must be above 0, got 0", rng.exponential, rng, 0)
  end)
end)

describe("without NaN", function()
  local a = np.array({ { 1, 0 / 0, 3 }, { 4, 5, 6 } }, "float64")

  it("there are products, sums so far and places", function()
    assert.equal(360, np.nanprod(a))
    assert.same({ 3, 120 }, np.nanprod(a, 1):totable())
    assert.same({ { 1, 1, 4 }, { 4, 9, 15 } }, np.nancumsum(a, 1):totable())
    assert.equal(5, np.nanargmax(a))
    assert.same({ 0, 0 }, np.nanargmin(a, 1):totable())
    checks.refuses("np.nanargmax: there are NaN alone in a row along axis 1", function()
      np.nanargmax({ { 0 / 0 }, { 1 } }, 1)
    end)
  end)

  it("means are as wide as those of all", function()
    local some = np.array({ 300, -300, 0 / 0 }, "float16")
    assert.equal(300, np.nanstd(some))
    assert.equal(1, np.nanmean(np.ones({ 3000 }):astype("bfloat16")))
    assert.equal("float16", np.nanmean(some:reshape(1, 3), 1).dtype)
    assert.equal(500, np.linalg.norm(np.array({ 300, 400 }, "float16")))
  end)

  it("there are quantiles", function()
    assert.near(3.2, np.nanquantile(a, 0.3), 1e-12)
    checks.near(np.nanquantile(a, 0.3, 0), np.array({ 1.9, 5, 3.9 }, "float64"), 1e-12)
    assert.same({ { 2.5 }, { 5.5 } }, np.nanpercentile(a, 75, { axis = 1, keepdims = true }):totable())
    local x = np.random.uniform(0, 1, { 4, 7 })
    for _, q in ipairs { 0, 0.2, 0.5, 1 } do checks.near(np.nanquantile(x, q, 1), np.quantile(x, q, 1), 1e-6) end
    checks.raises("out_of_range", "np.nanquantile: 1.5 is beyond the ends of all values", function()
      np.nanquantile(a, 1.5)
    end)
  end)
end)

describe("numbers of a table beyond those of float32", function()
  local late, odd = { 1700000001, 1700000003 }, { 16777217 }
  it("are told apart where they are reduced or looked for", function()
    assert.same({ 0.5 }, np.interp(odd, { 16777216, 16777218 }, { 0, 1 }):totable())
    assert.equal(1700000002, np.median { 1700000001, 1700000002, 1700000003 })
    assert.equal(1, np.argmax { 16777216, 16777217 })
    assert.equal(2, np.ptp(late))
    assert.same({ 2 }, np.ptp({ late }, 1):totable())
    assert.same({ 2 }, np.diff(late):totable())
    assert.equal(1, np.searchsorted({ 16777216, 16777218 }, 16777217))
    for _, name in ipairs { "mean", "average", "nanmean", "median", "nanmedian" } do
      assert.equal(1700000002, np[name](late), name)
    end
    assert.equal(1700000002, np.percentile(late, 50))
    assert.equal(1700000002, np.average(late, { weights = { 1, 1 } }))
    assert.equal(1700000003, np.nanmax(late))
    for _, name in ipairs { "dot", "vdot", "inner", "matmul" } do assert.equal(16777217, np[name](odd, { 1 }), name) end
    assert.equal(16777217, np.einsum("i,i->", odd, { 1 }))
    assert.equal(16777217, np.trapezoid { 16777217, 16777217 })
  end)

  it("are told apart where they are compared", function()
    same({ 0 }, np.eq(odd, { 16777216 }))
    same({ 0 }, np.isin(odd, { 16777216 }))
    assert.is_false(np.array_equal(odd, { 16777216 }))
    same({ 2 }, np.digitize(odd, { 16777216, 16777217, 16777218 }))
    same({ 0 }, np.flatnonzero { 1e-60 })
    assert.is_true(np.any { 1e-60 })
  end)

  it("give arrays of float32", function()
    assert.equal("float32", np.mean({ late }, 0).dtype)
    assert.equal("float32", np.median({ late }, 0).dtype)
    assert.equal("float32", np.nansum({ late }, 0).dtype)
    assert.equal("float32", np.matmul({ late }, { { 1 }, { 1 } }).dtype)
    assert.equal("float64", np.average({ late }, 0, np.ones({ 1, 2 }, "float64")).dtype)
  end)
end)

it("weights of another shape or without a sum are refused", function()
  for _, weights in ipairs { { { 1, 1, 1 }, { 2, 2, 2 } }, { 1 } } do
    raises("shape_mismatch", "np.average: weights are (", function() np.average({ 1, 2, 3 }, { weights = weights }) end)
  end
  raises("shape_mismatch", "np.average: weights are (2, 1) for (2, 3)", function()
    np.average(np.ones { 2, 3 }, 0, { { 2 }, { 1 } })
  end)
  refuses("np.average: the weights have the sum 0", function() np.average({ 1, 2 }, { weights = { 1, -1 } }) end)
end)

it("places without NaN are those of no NaN where nothing is above -inf", function()
  local worst, none = -math.huge, 0 / 0
  assert.equal(1, np.nanargmax { none, worst, worst })
  assert.equal(2, np.nanargmax { none, worst, 3 })
  assert.equal(1, np.nanargmin { none, -worst })
  same({ 1, 0 }, np.nanargmax({ { none, worst }, { 2, worst } }, 1))
end)
