-- flow.np.random: what is drawn, from which seed, and how often.
local checks = require "checks"
local flow = require "moonflow"
local np = flow.np

local raises = checks.raises

describe("random arrays", function()
  it("repeat with a seed and differ from draw to draw", function()
    np.random.seed(5)
    local a, b = np.random.uniform(-1, 1, { 100 }), np.random.uniform(-1, 1, 100)
    assert.is_false(a == b)
    np.random.seed(5)
    assert.is_true(a == np.random.uniform(-1, 1, { 100 }))
    local function of_its_own() return np.random.default_rng(5):uniform(-1, 1, { 100 }) end
    assert.is_true(of_its_own() == of_its_own())
    assert.is_true(math.abs(np.corrcoef(a, of_its_own())[0][1]) < 0.4, "a script has one seed for both")
    assert.equal("float32", a.dtype)
    assert.is_true(a:min() >= -1 and a:max() < 1)
    assert.equal("number", type(np.random.uniform()))
    raises("invalid_argument", "seed", function() np.random.seed("x") end)
  end)

  it("are the same numbers one by one", function()
    local calls = {
      uniform = { { 0, 1 }, { -3, 5 }, { 1, 1 + 2 ^ -23 }, { 2, 2 } }, normal = { { 0, 1 }, { 5, 0.1 }, { 1, 0 } },
      integers = { { 0, 10 }, { -2 ^ 53, 2 ^ 53 }, { -1, 0 } }, randint = { { 1, 7 } },
    }
    for name, bounds in pairs(calls) do
      for _, pair in ipairs(bounds) do
        local one, other = np.random.default_rng(-7), np.random.default_rng(-7)
        for _ = 1, 200 do
          assert.equal(one[name](one, pair[1], pair[2], { 1 }):item(), other[name](other, pair[1], pair[2]))
        end
        assert.equal(200, other.draws)
      end
    end
    local rng, twin = np.random.default_rng(2 ^ 53), np.random.default_rng(2 ^ 53)
    assert.same({ rng:random { 1 }[0], rng:standard_normal { 1 }[0], rng:integers(9, { shape = { 1 } })[0],
                  rng:uniform { shape = { 1 } }[0], rng:rand(1)[0] },
      { twin:random(), twin:standard_normal(), twin:integers(9), twin:uniform(), twin:rand() })
    assert.equal(rng:choice(9, { 1 })[0], twin:choice(9))
    np.random.seed(5)
    local shared = np.random.uniform(2, 3, { 1 })[0]
    np.random.seed(5)
    assert.equal(shared, np.random.uniform(2, 3))
    raises("invalid_argument", "low must not be above high, got 2 and 1", function() rng:uniform(2, 1) end)
    raises("invalid_argument", "low must not be above high", function() rng:uniform(0, math.huge) end)
    raises("invalid_argument", "no whole number lies in [3, 3)", function() rng:integers(3, 3) end)
  end)

  it("have the distribution asked for", function()
    np.random.seed(1)
    local normal = np.random.normal(3, 2, { 20000 })
    assert.is_true(math.abs(normal:mean() - 3) < 0.1) -- 7 standard errors
    assert.is_true(math.abs(normal:std() - 2) < 0.1)
    local dice = np.random.randint(1, 7, { 6000 }, { dtype = "int32" })
    assert.equal("int32", dice.dtype)
    assert.equal(1, dice:min())
    assert.equal(6, dice:max())
    assert.equal("(2, 3)", tostring(np.random.randn(2, 3).shape))
    raises("invalid_argument", "no whole number", function() np.random.randint(0, 0) end)
  end)

  it("permute", function()
    np.random.seed(2)
    local order = np.random.permutation(1000)
    assert.equal("int64", order.dtype)
    local seen = {}
    for _, v in ipairs(order:totable()) do seen[v] = true end
    for v = 0, 999 do assert.is_true(seen[v]) end
    assert.is_false(order == np.arange(1000))
    local rows = np.random.permutation(np.arange(6):reshape(3, 2))
    assert.equal(15, rows:sum())
    assert.same({ 1, 1, 1 }, (rows:slice(":, 1") - rows:slice(":, 0")):totable())
    assert.equal(0, #np.random.permutation(0))
  end)

  it("shuffle in place, in the order of a permutation", function()
    local rows, list = np.arange(12):reshape(6, 2), { "a", "b", "c", "d", "e", "f" }
    local whole = rows:reshape(3, 4)
    np.random.seed(2)
    local order = np.random.permutation(6)
    for _, entries in ipairs({ rows, list }) do
      np.random.seed(2)
      assert.is_nil(np.random.shuffle(entries))
    end
    assert.same(order:totable(), (rows:slice(":, 0") / 2):totable())
    assert.equal(rows:at(0, 0), whole:at(0, 0))  -- the same memory
    for i, letter in ipairs(list) do assert.equal(order[i - 1], ("abcdef"):find(letter) - 1) end
    local long = np.arange(20000):totable()
    np.random.shuffle(long)
    table.sort(long)
    assert.same(np.arange(20000):totable(), long)
    raises("invalid_argument", "shuffle wants an array or a list, got 3", function() np.random.shuffle(3) end)
    list = { 1, nil, 3 }
    assert.is_false(pcall(np.random.shuffle, list))
    assert.equal(3, list[3])
  end)

  it("permute and shuffle along another axis", function()
    local a = np.arange(12):reshape(3, 4)
    np.random.seed(2)
    local order = np.random.permutation(4)
    np.random.seed(2)
    assert.equal(a:take(order, 1), np.random.permutation(a, -1))
    local shuffled = a:copy()
    np.random.seed(2)
    assert.is_nil(np.random.shuffle(shuffled, { axis = 1 }))
    assert.equal(a:take(order, 1), shuffled)
    assert.is_false(a == shuffled)
    raises("invalid_argument", "np.random.permutation: axis 2 is out of range for rank 2", function()
      np.random.permutation(a, 2)
    end)
    raises("invalid_argument", "np.random.shuffle: axis 1 is out of range", function()
      np.random.shuffle({ 1, 2 }, 1)
    end)
    raises("invalid_argument", "np.random.shuffle has no option 'order'", function()
      np.random.shuffle(a, { order = 1 })
    end)
  end)

  it("choose", function()
    np.random.seed(3)
    assert.truthy(({ [0] = true, true })[np.random.choice(2)])
    local many = np.random.choice(3, { 100, 200 })
    assert.equal("int64 (100, 200)", many.dtype .. " " .. tostring(many.shape))
    assert.equal(0, many:min())
    assert.equal(2, many:max())
    local rows = np.random.choice({ { 1, 2 }, { 3, 4 } }, { 5 })
    assert.equal("(5, 2)", tostring(rows.shape))
    assert.same({ 1, 1, 1, 1, 1 }, (rows:slice(":, 1") - rows:slice(":, 0")):totable())
    -- Of 20000 draws a part of 0.25 is within 4 deviations, 4 sqrt(0.25 * 0.75 / 20000) = 0.0122, 15999 of 16000 times.
    many = np.random.choice(4, { 20000 }, { p = np.array({ 0.25, 0, 0.5, 0.25 }) })
    assert.near(0.25, many:eq(0):sum() / 20000, 0.0122)
    assert.equal(0, many:eq(1):sum())
    assert.near(0.25, many:eq(3):sum() / 20000, 0.0122)
  end)

  it("choose a copy of a row, and a number as it is", function()
    local rows = np.arange(2):reshape(1, 2)
    for _, options in ipairs { {}, { replace = false } } do
      np.random.choice(rows, options):set(0, 9)
      assert.same({ { 0, 1 } }, rows:totable())
    end
    for _ = 1, 9 do assert.equal(16777217, np.random.choice({ 16777217, 16777217 })) end
    assert.equal("float32", np.random.choice({ { 1, 2 } }).dtype)
  end)

  it("choose none twice", function()
    local seen = {}
    for _, v in ipairs(np.random.choice(20000, { 20000 }, { replace = false }):totable()) do seen[v] = true end
    for v = 0, 19999 do assert.is_true(seen[v]) end
    -- Few of very many, of which there can be no list.
    local few = np.random.choice(2 ^ 50, { 100 }, { replace = false })
    assert.equal(100, #np.unique(few))
    assert.is_true(np.min(few) >= 0 and np.max(few) > 2 ^ 40 and np.max(few) < 2 ^ 50)
    assert.equal("(0)", tostring(np.random.choice(5, { 0 }, { replace = false }).shape))
    local first = 0
    for _ = 1, 2000 do
      local drawn = np.random.choice(3, { 2 }, { replace = false, p = { 0.75, 0.25, 0 } })
      assert.equal(1, drawn:sum())
      if drawn[0] == 0 then first = first + 1 end
    end
    assert.near(0.75, first / 2000, 0.039) -- 4 sqrt(0.75 * 0.25 / 2000)
  end)

  it("choose by the sums of chances in float64, whatever dtype these have", function()
    local chances = np.random.default_rng(9):random({ 5000 })
    chances = chances / chances:sum()
    for _, replace in ipairs { true, false } do
      local function drawn(p) return np.random.default_rng(1):choice(5000, { 5000 }, { replace = replace, p = p }) end
      assert.is_true(drawn(chances) == drawn(chances:astype("float64")))
    end
    assert.near(1, chances:sum(), 1e-5)  -- they stay as they are
  end)

  it("say what cannot be chosen", function()
    local function fails(pattern, ...)
      local given = { ... }
      raises("invalid_argument", pattern, function() return np.random.choice(unpack(given)) end)
    end
    fails("5 cannot be drawn without replacement from 3", 3, { 5 }, { replace = false })
    fails("2 cannot be drawn without replacement from 1 with a chance", 3, { 2 }, { replace = false, p = { 0, 1, 0 } })
    fails("wants an array with a row, or how many numbers, got 0", 0)
    fails("p must be 3 chances, one for each, and has the shape (2)", 3, { 2 }, { p = { 0.5, 0.5 } })
    fails("the chances add up to 3, not to 1", 3, { 2 }, { p = { 1, 1, 1 } })
    fails("that of 1 is -1", 2, { 2 }, { p = { 2, -1 } })
  end)

  it("count what succeeds, and what happens at random", function()
    np.random.seed(4)
    -- Of 40000 draws the mean is off by a 200th of the deviation, the variance by a 100th or so of itself.
    local function counts(of, mean, variance, ...)
      local drawn = np.random[of](...)
      assert.equal("int64", drawn.dtype)
      assert.is_true(math.abs(drawn:mean() - mean) <= 0.03 * math.sqrt(variance), of .. " " .. drawn:mean())
      assert.is_true(math.abs(drawn:var() - variance) <= 0.05 * variance, of .. " " .. drawn:var())
      assert.is_true(drawn:min() >= 0)
    end
    local many = { 200, 200 }
    counts("binomial", 3, 2.1, 10, 0.3, many)
    counts("binomial", 9, 0.9, 10, 0.9, many)
    counts("binomial", 5e5, 2.5e5, 1e6, 0.5, many)
    counts("binomial", 15e9, 7.5e9, 3e10, 0.5, { 20, 20000 })
    counts("binomial", 7, 0, 7, 1, many)
    counts("binomial", 0, 0, 7, 0, many)
    counts("poisson", 0.2, 0.2, 0.2, many)
    counts("poisson", 4, 4, 4, many)
    counts("poisson", 1e6, 1e6, 1e6, many)
    counts("poisson", 0, 0, 0, many)
    -- 1 / 32 of five fair tries all succeed, and of e^-2 nothing happens.
    assert.is_true(math.abs(np.random.binomial(5, 0.5, many):eq(5):mean() * 32 - 1) < 0.1)
    assert.is_true(math.abs(np.random.poisson(2, many):eq(0):mean() - math.exp(-2)) < 0.01)
    assert.equal("number", type(np.random.binomial(10, 0.5)))
    assert.equal("number", type(np.random.poisson()))
    assert.equal("int32", np.random.poisson(4, { 2 }, { dtype = "int32" }).dtype)
    -- With a mean for each draw.
    local means = np.repeat_interleave({ 0, 0.3, 5, 400 }, 20000):reshape(4, 20000)
    local drawn = np.random.poisson(means)
    assert.equal("int64", drawn.dtype)
    assert.is_true(np.allclose(drawn:mean(1), { 0, 0.3, 5, 400 }, { rtol = 0.03 }))
    assert.is_true(np.allclose(drawn:var(1), { 0, 0.3, 5, 400 }, { rtol = 0.06 }))
    drawn = np.random.binomial(10, np.repeat_interleave({ 0, 0.3, 0.9, 1 }, 20000):reshape(4, 20000))
    assert.is_true(np.allclose(drawn:mean(1), { 0, 3, 9, 10 }, { rtol = 0.02 }))
    assert.is_true(np.allclose(drawn:var(1), { 0, 2.1, 0.9, 0 }, { rtol = 0.06 }))
    drawn = np.random.normal({ { -5 }, { 5 } }, { 1, 2, 0 }, { 10000, 2, 3 })
    assert.is_true(np.allclose(drawn:mean(0), { { -5, -5, -5 }, { 5, 5, 5 } }, { atol = 0.1 }))
    assert.is_true(np.allclose(drawn:std(0), { { 1, 2, 0 }, { 1, 2, 0 } }, { atol = 0.05 }))
    local bounds = np.random.uniform({ 0, 10 }, { 1, 20 }, { dtype = "float64" })
    checks.refuses("np.random.uniform: high must be at least low, got 1; the list is taken as low, for a draw of each: "
      .. "that of sizes is named, { size = { 2, 3 } }", np.random.uniform, { 0, 3 }, 1)
    assert.is_true(bounds[0] < 1 and bounds[1] >= 10 and bounds.dtype == "float64")
    assert.is_true(np.random.exponential({ 1e-6, 1e6 })[0] < 1)
    assert.equal("(0)", tostring(np.random.poisson(np.zeros({ 0 })).shape))
    raises("shape_mismatch", "np.random.normal: mean is (2), which does not go into draws of shape (3)", function()
      np.random.normal({ 1, 2 }, 1, { 3 })
    end)
    raises("out_of_memory", "no memory for float64 (100000000, 1000000, 2)", function()
      np.random.normal({ 1, 2 }, 1, { 1e8, 1e6, 2 })
    end)
    raises("invalid_argument", "np.random.poisson: lam must be at least 0, got -2", function()
      np.random.poisson({ 1, -2 })
    end)
    raises("invalid_argument", "n must be from 0 to 2^53, got -1", function() np.random.binomial(-1, 0.5) end)
    raises("invalid_argument", "p must be a chance from 0 to 1, got 2", function() np.random.binomial(1, 2) end)
    raises("invalid_argument", "p must be a chance from 0 to 1, got 1.5", function()
      np.random.binomial(1, { 0.5, 1.5 })
    end)
    raises("invalid_argument", "n must be whole, got 0.5", function() np.random.binomial(0.5, 0.5) end)
    raises("invalid_argument", "n must be whole, got 1.5", function() np.random.binomial({ 2, 1.5 }, 0.5) end)
    raises("invalid_argument", "lam must be at least 0, got -1", function() np.random.poisson(-1) end)
    for _, chance in ipairs { 0.5, { 0.5 } } do
      raises("out_of_range", "np.random.binomial: the variance is 1.25e+10", np.random.binomial, 5e10, chance)
    end
    raises("out_of_range", "np.random.poisson: the variance is 1e+11", function() np.random.poisson(1e11) end)
  end)

  it("have NumPy's other names too", function()
    np.random.seed(6)
    local a = np.random.random({ 2, 3 })
    np.random.seed(6)
    assert.equal(np.random.uniform(0, 1, { 2, 3 }), a)
    np.random.seed(6)
    a = np.random.standard_normal({ 4 }, { dtype = "float64" })
    np.random.seed(6)
    assert.equal(np.random.normal(0, 1, { 4 }, "float64"), a)
    assert.equal("number", type(np.random.random()))
    assert.equal("number", type(np.random.standard_normal()))
  end)

  it("go on from a state that was kept", function()
    np.random.seed(7)
    np.random.normal()
    local state = np.random.get_state()
    local a = np.random.permutation(9)
    np.random.seed(8)
    np.random.set_state(np.array(state:totable(), "int64"))
    assert.equal(a, np.random.permutation(9))
    local own = np.random.default_rng(1)
    own:set_state(state)
    assert.equal(a, own:permutation(9))
    assert.equal(np.random.get_state(), own:get_state())
    own:set_state({ 123456789, 16777217 })
    assert.same({ 123456789, 16777217 }, own:get_state():totable())
    raises("invalid_argument", "set_state wants what np.random.get_state gives", function()
      np.random.set_state({ 1 })
    end)
    assert.is_false(pcall(np.random.set_state, { 2 ^ 60, 0 }))
  end)
end)

describe("a seed", function()
  it("is a whole number", function()
    raises("invalid_argument", "np.random.default_rng wants a whole number as seed, got '7'", function()
      np.random.default_rng("7")
    end)
    raises("invalid_argument", "np.random.seed wants a whole number as seed, got 0.5", function()
      np.random.seed(0.5)
    end)
    raises("invalid_argument", "; up to 2^53 each is one of Lua's", function() np.random.seed(2 ^ 60) end)
  end)

  it("is all that there is to say of a generator", function()
    checks.refuses("np.random.default_rng takes at most 1 argument (seed), got 2", np.random.default_rng, 7, "PCG64")
    checks.refuses("np.random.seed takes at most 1 argument (seed), got 2", np.random.seed, 7, 8)
    checks.refuses("np.random.get_state takes at most 0 arguments", np.random.get_state, 5)
  end)
end)

describe("draws that are a formula of others", function()
  local COUNT, root, pi = 20000, math.sqrt, math.pi
  local rng
  before_each(function() rng = np.random.default_rng(11) end)

  -- For each: its draws, its mean and deviation, and the share of draws up to some value.
  local distributions = {
    laplace = { function(shape) return rng:laplace(1, 2, shape) end, 1, 2 * root(2), 1 + 2 * math.log(2), 0.75 },
    logistic = { function(shape) return rng:logistic(1, 2, shape) end, 1, 2 * pi / root(3), 3, 1 / (1 + math.exp(-1)) },
    gumbel = { function(shape) return rng:gumbel(1, 2, shape) end, 2.154431, 2 * pi / root(6), 3,
      math.exp(-math.exp(-1)) },
    pareto = { function(shape) return rng:pareto(5, shape) end, 1 / 4, root(5 / 48), 1, 1 - 2 ^ -5 },
    weibull = { function(shape) return rng:weibull(2, shape) end, root(pi) / 2, root(1 - pi / 4), 1, 1 - math.exp(-1) },
    rayleigh = { function(shape) return rng:rayleigh(3, shape) end, 3 * root(pi / 2), 3 * root(2 - pi / 2), 3,
      1 - math.exp(-0.5) },
    geometric = { function(shape) return rng:geometric(0.25, shape) end, 4, root(12), 2, 1 - 0.75 ^ 2 },
    triangular = { function(shape) return rng:triangular(1, 2, 5, shape) end, 8 / 3, root(13 / 18), 2, 0.25 },
    lognormal = { function(shape) return rng:lognormal(0.5, 0.25, shape) end, math.exp(0.53125),
      math.exp(0.53125) * root(math.exp(0.0625) - 1), math.exp(0.5), 0.5 },
    chisquare = { function(shape) return rng:chisquare(2, shape) end, 2, 2, 2, 1 - math.exp(-1) },
    standard_t = { function(shape) return rng:standard_t(10, shape) end, 0, root(10 / 8), 1.812461, 0.95 },
    zipf = { function(shape) return rng:zipf(5, shape) end, 1.0823232 / 1.0369278, 0.2542, 1, 1 / 1.0369278 },
  }
  for name, known in pairs(distributions) do
    it("are of " .. name, function()
      local draw, mean, deviation, value, share = unpack(known)
      local drawn = draw({ COUNT })
      assert.equal((name == "geometric" or name == "zipf") and "int64" or "float32", drawn.dtype)
      assert.near(mean, drawn:mean(), 5 * deviation / root(COUNT))
      assert.near(share, np.mean(drawn:le(value):astype("float64")), 5 * root(share * (1 - share) / COUNT))
      assert.is_false(np.isnan(drawn):any() or np.isinf(drawn):any())
      assert.equal("number", type(draw()))
      assert.equal("(2, 3)", tostring(draw({ 2, 3 }).shape))
    end)
  end

  it("take an array for each of what they are given by", function()
    local means = { 0, 100 }
    for name, drawn in pairs {
      laplace = rng:laplace(means, 0.1), logistic = rng:logistic(means, 0.1), gumbel = rng:gumbel(means, 0.1),
      lognormal = np.log(rng:lognormal(means, 0.1, { dtype = "float64" })),
      geometric = rng:geometric({ 1, 0.01 }) - 1, triangular = rng:triangular({ -1, 99 }, { 0, 100 }, { 1, 101 }),
    } do
      assert.equal("(2)", tostring(drawn.shape), name)
      assert.is_true(drawn[0] < drawn[1], name)
    end
    assert.equal("(5, 2)", tostring(rng:pareto({ 1, 2 }, { 5, 2 }).shape))
    local many = { COUNT, 2 }
    -- For each its draws, and their means and deviations.
    for name, known in pairs {
      gamma = { rng:gamma({ 0.5, 9 }, { 1, 2 }, many), { 0.5, 18 }, { root(0.5), 6 } },
      beta = { rng:beta({ 0.5, 9 }, { 0.5, 1 }, many), { 0.5, 0.9 }, { root(1 / 8), root(0.09 / 11) } },
      chisquare = { rng:chisquare({ 1, 9 }, many), { 1, 9 }, { root(2), root(18) } },
      standard_t = { rng:standard_t({ 5, 10 }, many), { 0, 0 }, { root(5 / 3), root(10 / 8) } },
      zipf = { rng:zipf({ 5, 60 }, many), { 1.0823232 / 1.0369278, 1 }, { 0.2542, 0 } },
      binomial = { rng:binomial({ 4, 100 }, { 0.5, 0.9 }, many), { 2, 90 }, { 1, 3 } },
    } do
      local drawn, means_of, deviations = unpack(known)
      for i = 1, 2 do
        assert.near(means_of[i], drawn:mean(0)[i - 1], 5 * deviations[i] / root(COUNT), name)
      end
    end
    raises("invalid_argument", "np.random.beta: b must be above 0, got 0", function() rng:beta({ 1, 2 }, { 1, 0 }) end)
    assert.same({ 1, 1 }, { rng:geometric(1), rng:geometric({ 1 })[0] })
  end)

  it("are numbers at the least forms, and end where a tail is endless", function()
    for _, form in ipairs { 1e-310, { 1e-310, 1e-310, 1e-310 } } do
      local shares = rng:beta(form, 1e-310, { 1000, 3 })
      assert.is_true((shares:eq(0) + shares:eq(1)):all())
      assert.near(0.5, shares:mean(), 5 * 0.5 / root(3000))
    end
    assert.near(0.25, rng:dirichlet({ 1e-310, 3e-310 }, { 2000 }):mean(0)[0], 5 * root(3 / 16 / 2000))
    -- Of k from 1 to 2^62 in proportion to 1 / k half are up to 2^31, but for the start of the sums.
    local ranks = rng:zipf(1 + 1e-12, { 4000 })
    assert.near(0.5, ranks:lt(2 ^ 31):sum() / 4000, 0.007 + 5 * 0.5 / root(4000))
    assert.is_true(ranks:min() == 1)
  end)

  it("repeat with a seed, from the shared generator too", function()
    local function drawn()
      np.random.seed(11)
      return np.random.laplace(0, 1, { 9 })
    end
    assert.is_true(drawn() == drawn())
  end)

  it("refuse what gives no distribution", function()
    for text, call in pairs {
      ["laplace: scale must be above 0, got -1"] = function() rng:laplace(0, -1) end,
      ["pareto: a must be above 0, got 0"] = function() rng:pareto { 1, 0 } end,
      ["geometric: p must be a chance above 0 and up to 1, got 0"] = function() rng:geometric(0) end,
      ["geometric: p must be a chance above 0 and up to 1, got 2"] = function() rng:geometric { 0.5, 2 } end,
      ["triangular: left, mode and right must come in this order"] = function() rng:triangular(3, 2, 1) end,
      ["chisquare: df must be above 0, got -1"] = function() rng:chisquare(-1) end,
      ["standard_t: df must be above 0, got 0"] = function() rng:standard_t(0) end,
      ["zipf: a must be above 1, got 1"] = function() rng:zipf(1) end,
    } do
      raises("invalid_argument", "np.random." .. text, call)
    end
  end)
end)

describe("a generator without a seed", function()
  it("has one that np.random draws", function()
    flow.set_seed(5)
    local one, other = np.random.default_rng(), np.random.default_rng()
    assert.is_false(one:uniform(0, 1, { 8 }) == other:uniform(0, 1, { 8 }))
    flow.set_seed(5)
    assert.equal(one.seed, np.random.default_rng().seed)
  end)
end)

describe("the dtype of draws", function()
  it("is a floating one of real numbers", function()
    local three = { 3 }
    local function refuses(name, ...)
      checks.refuses("('dtype') must be a floating dtype such as flow.float32, got 'int32'; of real numbers :astype",
        np.random[name], ...)
    end
    refuses("uniform", 0, 10, three, "int32")
    refuses("uniform", np.zeros(three), 10, three, "int32")
    for _, name in ipairs { "random", "standard_normal", "exponential", "rayleigh", "laplace", "lognormal" } do
      refuses(name, { shape = three, dtype = "int32" })
    end
    for _, name in ipairs { "gamma", "pareto", "weibull", "chisquare", "standard_t" } do
      refuses(name, 2, { shape = three, dtype = "int32" })
      for _, dtype in ipairs { "float16", "bfloat16", "float64" } do
        assert.equal(dtype, np.random[name](2, { shape = three, dtype = dtype }).dtype)
      end
    end
    refuses("dirichlet", { 1, 1 }, three, "int32")
    refuses("multivariate_normal", { 0, 1 }, np.eye(2), three, "int32")
  end)

  it("holds the counts that are drawn", function()
    np.random.seed(1)
    for name, of in pairs { poisson = { 300 }, binomial = { 1000, 0.3 }, geometric = { 1e-9 } } do
      for _, listed in ipairs { false, true } do
        local given = { unpack(of) }
        if listed then given[#given] = { given[#given] } end
        given[#given + 1] = { shape = { 3, 1 }, dtype = "uint8" }
        local text = tostring(raises("out_of_range", "np.random." .. name .. ": a draw of ", np.random[name],
          unpack(given)))
        assert.truthy(text:find("does not fit uint8; dtype = flow.int64 holds it", 1, true), text)
      end
    end
    raises("out_of_range", "does not fit int64; dtype = flow.float64 holds it", np.random.geometric, 1e-25, { 3 })
    assert.is_true(np.random.geometric(1e-25, { 3 }, "float64"):min() > 2 ^ 63)
    assert.equal("uint8", np.random.poisson(3, { 9 }, "uint8").dtype)
  end)
end)

describe("what a distribution is given by", function()
  it("is finite, as a number and in an array", function()
    local inf, nan = math.huge, 0 / 0
    for _, value in ipairs { inf, -inf, nan } do
      for _, name in ipairs { "uniform", "normal", "laplace", "logistic", "gumbel", "lognormal" } do
        assert.is_false(pcall(np.random[name], value, 1, { 2 }), name)
        assert.is_false(pcall(np.random[name], { value, 0 }, 1), name)
        assert.is_false(pcall(np.random[name], { 0, 0 }, value), name)
      end
      for _, name in ipairs { "exponential", "pareto", "weibull", "rayleigh", "geometric", "poisson" } do
        assert.is_false(pcall(np.random[name], value, { 2 }), name)
        assert.is_false(pcall(np.random[name], { value, 0.5 }), name)
      end
      assert.is_false(pcall(np.random.triangular, -1, 0, value, { 2 }))
      assert.is_false(pcall(np.random.triangular, { value, -1 }, 0, 1))
    end
    raises("invalid_argument", "np.random.lognormal: stddev must be at least 0, got -1", function()
      np.random.lognormal(0, { -1 })
    end)
    raises("invalid_argument", "np.random.lognormal: mean must be finite and stddev at least 0", function()
      np.random.lognormal(0, -1)
    end)
  end)

  it("may be as wide as float64 is", function()
    for _, low in ipairs { -1e308, np.array({ -1e308 }, "float64") } do
      local drawn = np.random.uniform(low, 1e308, { 1000 }, "float64")
      assert.is_true(drawn:min() > -1e308 and drawn:min() < -9e307 and drawn:max() > 9e307)
      drawn = np.random.triangular(low, 0, 1e308, { 1000 }, "float64")
      assert.is_true(drawn:min() > -1e308 and drawn:min() < -5e307 and drawn:max() > 5e307)
    end
  end)
end)

describe("errors of draws", function()
  it("name what was called, not what it draws by", function()
    local sizes = { -1 }
    for name, of in pairs { exponential = {}, gamma = { 1 }, poisson = { 1 }, pareto = { { 1, 2 } }, zipf = { 2 },
                            choice = { 5 }, dirichlet = { { 1, 1 } }, multinomial = { 3, { 1 } },
                            multivariate_normal = { { 0 }, { { 1 } } } } do
      of[#of + 1] = { shape = sizes }
      checks.refuses("np.random." .. name .. ": a size of the shape is a whole number from 0 on, got -1",
        np.random[name], unpack(of))
    end
    checks.refuses("np.random.rand: a size of the shape is a whole number from 0 on, got 2.5", np.random.rand, 2.5)
    raises("shape_mismatch", "np.random.beta: shapes (2) and (3)", np.random.beta, { 1, 2 }, { 3, 4, 5 })
    checks.refuses("np.random.choice wants an array with a row, or how many numbers", np.random.choice, np.array(3))
    checks.refuses("np.random.choice wants an array with a row, or how many numbers", np.random.choice, 2 ^ 60, { 2 })
    checks.refuses("the mean has elements that are not finite", np.random.multivariate_normal, { 0 / 0 },
      { { 1 } })
  end)
end)

describe("bounds in arrays", function()
  it("are not reached from below", function()
    np.random.seed(1)
    local x = np.random.uniform(np.zeros { 1 }, 1, { 20, 1000000 })
    assert.equal(0, np.sum(x:ge(1)))
    assert.same({ 3 }, np.random.uniform({ 3 }, { 3 }):totable())
  end)
end)
