-- The losses of flow.nn: their formulas written out here, their gradients, and what they do at the ends of the range.
local checks = require "checks"
local flow = require "moonflow"
local np, tp = flow.np, flow.typing
local near = checks.near

local names = { "a", "b", "c" }
-- A job's parameters are counted.
local with_parameters = {
  [2] = function(body) return function(a, b) return body { a, b } end end,
  [3] = function(body) return function(a, b, c) return body { a, b, c } end end,
}

-- Runs `loss(a, b, ...)` on arrays. Gives the loss and the gradients of its sum.
local function loss_of(arrays, loss, options)
  local inputs = {}
  for i, array in ipairs(arrays) do
    inputs[i] = { names[i], tp.Numpy.Placeholder(array.shape:table(), { dtype = array.dtype }) }
  end
  local gradients = {}
  local job = flow.global_function {
    type = "train", inputs = inputs, returns = tp.Numpy,
  } (with_parameters[#arrays](function(values)
    for i, value in ipairs(values) do
      local one = flow.get_variable("one" .. i, { shape = { 1 }, dtype = value.dtype,
                                                  initializer = flow.ones_initializer() })
      values[i] = value * one
      flow.watch_diff(values[i], function(d) gradients[i] = d end)
    end
    values[#values + 1] = options
    local y = loss(unpack(values))
    flow.optimizer.SGD(0):minimize(y)
    return y
  end))
  return job(unpack(arrays)), gradients
end

-- formula(a[i], b[i], ...) for each element.
local function each(arrays, formula)
  local out = {}
  for i = 0, arrays[1].shape:count() - 1 do
    local values = {}
    for k, array in ipairs(arrays) do values[k] = array:ravel()[i] end
    out[i + 1] = formula(unpack(values))
  end
  return np.array(out, flow.double):reshape(arrays[1].shape:table())
end

-- Checks values and reductions in float64 against a formula.
local function check(loss, arrays, formula, options)
  local function with(reduction)
    local all = { reduction = reduction }
    for key, value in pairs(options or {}) do all[key] = value end
    return (loss_of(arrays, loss, all))
  end
  local wanted = each(arrays, formula)
  near(with("none"), wanted)
  near(with("mean"), np.array(wanted:mean(), flow.double))
  near(with("sum"), np.array(wanted:sum(), flow.double))
end

local function double(values) return np.array(values, flow.double) end

local x = double { { 0.3, -2.5, 1.5 }, { 0, 4, -0.25 } }
local y = double { { 1, -2, 0 }, { 0.5, 1, 0.25 } }
local p = double { { 0.3, 0.5, 0.999 }, { 1e-6, 0.75, 0.2 } }
local t = double { { 1, 0, 1 }, { 0, 0.5, 0.25 } }

before_each(function() flow.clear_default_session() end)

describe("the losses", function()
  it("are their formulas, reduced as asked for", function()
    check(flow.nn.L1Loss, { x, y }, function(a, b) return math.abs(a - b) end)
    check(flow.nn.MSELoss, { x, y }, function(a, b) return (a - b) ^ 2 end)
    check(flow.nn.BCELoss, { p, t }, function(a, b) return -(b * math.log(a) + (1 - b) * math.log(1 - a)) end)
    check(flow.nn.KLDivLoss, { x, t }, function(a, b) return b == 0 and 0 or b * (math.log(b) - a) end)
    check(flow.nn.KLDivLoss, { x, y }, function(a, b) return math.exp(b) * (b - a) end, { log_target = true })
    for _, name in ipairs { "BCELoss", "BCEWithLogitsLoss", "MSELoss", "L1Loss" } do
      local whole = np.array({ 0, 1, 1 }, "int32")
      local function loss(target)
        return checks.run({ np.array { 0.25, 0.5, 0.75 }, target }, function(a, b) return flow.nn[name](a, b) end)
      end
      assert.is_true(loss(whole) == loss(whole:astype("float32")), name)
      flow.clear_default_session()
    end
    local function soft(v) return math.log(1 + math.exp(v)) end
    check(flow.nn.BCEWithLogitsLoss, { x, t }, function(a, b) return b * soft(-a) + (1 - b) * soft(a) end)
  end)

  it("take arrays as targets, whole numbers too, and a number where each is it", function()
    local input, labels = np.array { { 0.25, 0.5 }, { 0.75, 0.125 } }, np.array({ 1, 0 }, "int32")
    local targets = {
      BCELoss = np.array({ { 0, 1 }, { 1, 0 } }, "int32"), BCEWithLogitsLoss = np.array { { 0, 1 }, { 1, 0 } },
      MSELoss = np.array({ { 0, 1 }, { 1, 0 } }, "float64"), L1Loss = np.array({ { 0, 1 }, { 1, 0 } }, "int64"),
      KLDivLoss = np.array { { 0.5, 0.5 }, { 1, 0 } }, CrossEntropyLoss = labels,
    }
    for name, target in pairs(targets) do
      flow.clear_default_session()
      local as_array = checks.run({ input }, function(a) return flow.nn[name](a, target) end)
      local given = target.dtype == "float64" and target:astype("float32") or target
      assert.is_true(as_array == checks.run({ input, given }, function(a, b) return flow.nn[name](a, b) end), name)
    end
    local zeros = checks.run({ input }, function(a) return flow.nn.MSELoss(a, 0) end)
    assert.equal((0.25 ^ 2 + 0.5 ^ 2 + 0.75 ^ 2 + 0.125 ^ 2) / 4, zeros:item())
    checks.refuses("target 'Constant' is float32", checks.run, { input },
      function(a) return flow.nn.CrossEntropyLoss(a, np.array { 1, 0 }) end)
  end)

  it("give the mean unless told otherwise", function()
    assert.near(each({ x, y }, function(a, b) return (a - b) ^ 2 end):mean(),
      loss_of({ x, y }, flow.nn.MSELoss):item(), 1e-12)
  end)

  it("give the mean over the batch of a divergence, which is the one as defined", function()
    local value, g = loss_of({ x, t }, flow.nn.KLDivLoss, { reduction = "batchmean" })
    local sum, of_sum = loss_of({ x, t }, flow.nn.KLDivLoss, { reduction = "sum" })
    assert.near(sum:item() / x.shape[0], value:item(), 1e-12)
    near(g[1], of_sum[1] / x.shape[0])
    local fine, problem = pcall(loss_of, { x, t }, flow.nn.MSELoss, { reduction = "batchmean" })
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("reduction must be 'mean', 'sum' or 'none', got 'batchmean'", 1, true))
    problem = select(2, pcall(loss_of, { x, t }, flow.nn.KLDivLoss, { reduction = "avg" }))
    assert.truthy(tostring(problem):find("reduction must be 'mean', 'batchmean', 'sum' or 'none', got 'avg'", 1, true))
  end)

  it("have the gradients of their formulas", function()
    local _, g = loss_of({ x, y }, flow.nn.MSELoss, { reduction = "sum" })
    near(g[1], 2 * (x - y))
    near(g[2], 2 * (y - x))
    _, g = loss_of({ p, t }, flow.nn.BCELoss, { reduction = "sum" })
    near(g[1], each({ p, t }, function(a, b) return (a - b) / (a * (1 - a)) end), 1e-6)
    _, g = loss_of({ x, t }, flow.nn.BCEWithLogitsLoss, { reduction = "mean" })
    near(g[1], each({ x, t }, function(a, b) return (1 / (1 + math.exp(-a)) - b) / 6 end))
  end)

  it("keep the digits of a probability that is nearly 0, whose rest is 1 in float32", function()
    local small = np.array({ 1e-30, 1e-10, 1e-7, 1e-4, 0.3 }, flow.float)
    local loss = loss_of({ small, np.zeros { 5 } }, flow.nn.BCELoss, { reduction = "none" })
    for i = 0, 4 do
      local q = small[i]
      local wanted = q > 0.1 and -math.log(1 - q) or q + q ^ 2 / 2 + q ^ 3 / 3
      assert.near(1, loss[i] / wanted, 5e-7)
    end
  end)

  it("weigh elements and positives", function()
    local w = double { 1, 2, 0.5 }
    local function soft(v) return math.log(1 + math.exp(v)) end
    local function formula(weight, positive)
      local out = {}
      for i = 0, 1 do
        out[i + 1] = {}
        for j = 0, 2 do
          local a, b = x:at(i, j), t:at(i, j)
          local pw, each_weight = positive and w[j] or 1, weight and w[j] or 1
          out[i + 1][j + 1] = each_weight * (pw * b * soft(-a) + (1 - b) * soft(a))
        end
      end
      return double(out)
    end
    for _, case in ipairs { { true, false }, { false, true }, { true, true } } do
      local got = loss_of({ x, t, w }, function(a, b, c)
        return flow.nn.BCEWithLogitsLoss(a, b, {
          weight = case[1] and c or nil, pos_weight = case[2] and c or nil, reduction = "none",
        })
      end)
      near(got, formula(case[1], case[2]))
    end
    near(loss_of({ p, t, w }, function(a, b, c) return flow.nn.BCELoss(a, b, c, "none") end),
      loss_of({ p, t }, flow.nn.BCELoss, { reduction = "none" }) * w)
  end)

  it("take arrays and numbers as weights that stay as they are", function()
    local w = double { 1, 2, 0.5 }
    for name, loss in pairs { weight = flow.nn.BCELoss, pos_weight = flow.nn.BCEWithLogitsLoss } do
      local input = name == "weight" and p or x
      for _, weight in ipairs { w, 3 } do
        local array = np.zeros({ 3 }, flow.double) + weight
        local given = loss_of({ input, t, array }, function(a, b, c) return loss(a, b, { [name] = c }) end)
        assert.is_true(given == loss_of({ input, t }, loss, { [name] = weight }))
      end
    end
    -- Class weights written down as float32 fit logits of any dtype.
    local rows, classes = double { { 0, 1 }, { 2, 0 } }, np.array({ 0, 1 }, flow.int32)
    local got = flow.global_function {
      inputs = { a = tp.Numpy.Placeholder({ 2, 2 }, { dtype = flow.double }),
                 b = tp.Numpy.Placeholder({ 2 }, { dtype = flow.int32 }) }, returns = tp.Numpy,
    } (function(a, b) return flow.nn.CrossEntropyLoss(a, b, np.array { 1, 3 }) end)(rows, classes)
    near(got, np.array((math.log(1 + math.exp(1)) + 3 * math.log(1 + math.exp(2))) / 4, flow.double))
  end)

  it("stay finite at the ends of the range", function()
    local ends = np.array({ 0, 0, 1, 1 }, flow.float)
    local wanted = np.array({ 0, 1, 0, 1 }, flow.float)
    local loss, g = loss_of({ ends, wanted }, flow.nn.BCELoss, { reduction = "none" })
    near(loss, np.array({ 0, 126 * math.log(2), 126 * math.log(2), 0 }, flow.float), 1e-4)
    assert.is_true(np.all(np.abs(g[1]):lt(math.huge)))
    -- Far out a logit's loss is the logit itself, or nothing at all.
    local far = np.array({ -200, -200, 200, 200 }, flow.float)
    for _, weighted in ipairs { false, true } do
      loss, g = loss_of({ far, wanted }, function(a, b)
        local pos_weight = weighted and flow.ones({ 1 }) or nil
        return flow.nn.BCEWithLogitsLoss(a, b, { reduction = "none", pos_weight = pos_weight })
      end)
      near(loss, np.array({ 0, 200, 200, 0 }, flow.float), 0)
      near(g[1], np.array({ 0, -1, 1, 0 }, flow.float), 1e-6)
    end
    -- The small one counts: exp(-30), which 1 + would swallow.
    loss = loss_of({ np.array({ -30 }, flow.float), np.array({ 0 }, flow.float) }, function(a, b)
      return flow.nn.BCEWithLogitsLoss(a, b, { reduction = "none", pos_weight = flow.ones({ 1 }) })
    end)
    assert.near(1, loss:at(0) / math.exp(-30), 1e-5)
  end)

  it("take an infinite logit, as a mask leaves it, for the certainty that it is", function()
    local inf = math.huge
    local input = double { -inf, -inf, inf, inf, 2 }
    local target = double { 0, 1, 0, 1, 0.25 }
    for _, weighted in ipairs { false, true } do
      flow.clear_default_session()  -- infinite inputs have left the factors of loss_of without a value
      local loss, g = loss_of({ input, target }, function(a, b)
        local pos_weight = weighted and flow.ones({ 1 }, flow.double) or nil
        return flow.nn.BCEWithLogitsLoss(a, b, { reduction = "none", pos_weight = pos_weight })
      end)
      assert.same({ 0, inf, inf, 0 }, loss:rows(0, 4):totable())
      near(loss:rows(4, 1), double { 0.25 * math.log(1 + math.exp(-2)) + 0.75 * math.log(1 + math.exp(2)) })
      near(g[1], double { 0, -1, 1, 0, 1 / (1 + math.exp(-2)) - 0.25 })
    end
    flow.clear_default_session()
    -- What neither of two distributions has adds nothing to how far they are apart.
    local log_probability = double { -inf, math.log(0.5), math.log(0.5) }
    local loss, g = loss_of({ log_probability, double { 0, 0.25, 0.75 } }, flow.nn.KLDivLoss, { reduction = "none" })
    near(loss, double { 0, 0.25 * math.log(0.5), 0.75 * math.log(1.5) })
    near(g[1], double { 0, -0.25, -0.75 })
    flow.clear_default_session()
    loss, g = loss_of({ log_probability, double { -inf, math.log(0.25), math.log(0.75) } }, flow.nn.KLDivLoss,
      { reduction = "none", log_target = true })
    near(loss, double { 0, 0.25 * math.log(0.5), 0.75 * math.log(1.5) })
    near(g[1], double { 0, -0.25, -0.75 })
  end)

  describe("CrossEntropyLoss", function()
    local logits = double { { 0.3, -2.5, 1.5 }, { 0, 4, -0.25 }, { 1, 2, 3 }, { 0.5, 0.25, -1 } }
    local classes = np.array({ 2, 0, -100, 1 }, flow.int64)

    -- The loss of the logits and its gradient for them.
    local function entropy(options, target, dtype)
      local got = flow.global_function {
        inputs = { a = tp.Numpy.Placeholder({ 4, 3 }, { dtype = dtype or flow.double }),
                   b = tp.Numpy.Placeholder({ 4 }, { dtype = (target or classes).dtype }) },
        returns = tp.List[tp.Numpy],
      } (function(a, b)
        local loss = flow.nn.CrossEntropyLoss(a, b, options)
        return { loss, flow.gradients(loss, a) }
      end)(logits:astype(dtype or flow.double), target or classes)
      return got[1], got[2]
    end

    -- The formula in plain Lua.
    local function wanted(weight, s)
      local losses, shares = { 0, 0, 0, 0 }, 0
      for i = 0, 3 do
        local class = classes[i]
        if class ~= -100 then
          local sum = 0
          for c = 0, 2 do sum = sum + math.exp(logits:at(i, c)) end
          for c = 0, 2 do
            local q = s / 3 + (c == class and 1 - s or 0)
            losses[i + 1] = losses[i + 1] + weight[c] * q * (math.log(sum) - logits:at(i, c))
          end
          shares = shares + weight[class]
        end
      end
      return double(losses), shares
    end

    it("weighs classes, smooths labels and leaves out what is to be ignored", function()
      for _, weight in ipairs { false, double { 1, 2, 0.5 } } do
        for _, s in ipairs { 0, 0.2 } do
          flow.clear_default_session()
          local function with(reduction)
            return entropy { weight = weight or nil, label_smoothing = s, ignore_index = -100, reduction = reduction }
          end
          local losses, shares = wanted(weight or double { 1, 1, 1 }, s)
          near((with("none")), losses)
          near((with("sum")), np.array(losses:sum(), flow.double))
          local mean, slope = with("mean")
          near(mean, np.array(losses:sum() / shares, flow.double))
          near(slope[2], double { 0, 0, 0 }, 0)
          near(slope:sum(1), double { 0, 0, 0, 0 })
        end
      end
      -- PyTorch 2's F.cross_entropy of the same, for the last of these.
      local mean, slope = entropy { weight = double { 1, 2, 0.5 }, label_smoothing = 0.2, ignore_index = -100 }
      assert.near(1.7675046591046697, mean:item(), 1e-12)
      near(slope[3], double { 0.24260452514025543, -0.2914632004522665, 0.04885867531201097 })
    end)

    it("of nothing but what is ignored is 0, and so is its gradient", function()
      local mean, slope = entropy({ ignore_index = -1 }, np.array({ -1, -1, -1, -1 }, flow.int32), flow.float)
      assert.equal(0, mean:item())
      assert.equal(0, np.max(np.abs(slope)))
    end)

    it("ignores nothing of bytes where they do not hold the number, and what they hold", function()
      for _, dtype in ipairs { "uint8", "int8" } do
        local bytes = np.array({ 2, 0, 1, 0 }, dtype)
        local all = entropy({ reduction = "none" }, bytes):totable()
        for _, number in ipairs { -100, 255 } do
          if dtype == "uint8" or number == 255 then
            flow.clear_default_session()
            assert.same(all, entropy({ reduction = "none", ignore_index = number }, bytes):totable())
          end
        end
      end
      local some = entropy({ reduction = "none", ignore_index = 255 }, np.array({ 2, 255, 1, 255 }, "uint8")):totable()
      assert.same({ 0, 0 }, { some[2], some[4] })
    end)

    it("has a mean over more rows than half precision can count", function()
      local rows = 70000
      local mean, slope = unpack(flow.global_function {
        inputs = { a = tp.Numpy.Placeholder({ rows, 2 }, { dtype = "float16" }) }, returns = tp.List[tp.Numpy],
      } (function(a)
        local loss = flow.nn.CrossEntropyLoss(a, flow.zeros({ rows }, { dtype = flow.int32 }), { ignore_index = -1 })
        return { loss, flow.math.reduce_max(flow.gradients(loss, a)) }
      end)(np.zeros({ rows, 2 }, "float16")))
      assert.near(math.log(2), mean:item(), 1e-3)
      assert.near(0.5 / rows, slope:item(), 1e-7)
    end)

    it("names the row of a class that is not there, and what its arguments must be", function()
      local function fails(pattern, ...)
        local fine, problem = pcall(entropy, ...)
        assert.is_false(fine)
        assert.truthy(tostring(problem):find(pattern, 1, true), tostring(problem))
      end
      fails("-100", {})
      fails("label_smoothing must lie in [0, 1], got 2", { label_smoothing = 2 })
      fails("weight is (2), wanted one for each class of input (4, 3), so (3)", { weight = double { 1, 2 } })
      fails("target 'b' is float64 (4), wanted class numbers", {}, double { 0, 1, 2, 0 })
    end)

    it("says how classes on axis 1 come to the last one", function()
      local fine, problem = pcall(flow.global_function, {
        inputs = { a = tp.Numpy.Placeholder({ 2, 3, 4, 5 }),
                   b = tp.Numpy.Placeholder({ 2, 4, 5 }, { dtype = flow.int32 }) },
        returns = tp.Numpy,
      }, function(a, b) return flow.nn.CrossEntropyLoss(a, b) end)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find("flow.transpose(input, { 0, 2, 3, 1 })", 1, true), tostring(problem))
    end)
  end)

  it("take labels of 0 and 1 in an integer dtype, as the original does", function()
    local loss = flow.nn.sigmoid_cross_entropy_with_logits
    local function of(dtype)
      return flow.global_function {
        inputs = {
          labels = tp.Numpy.Placeholder({ 2, 3 }, { dtype = dtype }), logits = tp.Numpy.Placeholder({ 2, 3 }),
        },
        returns = tp.Numpy,
      } (function(labels, logits) return loss(labels, logits) end)
    end
    local labels, logits = np.array { { 1, 0, 1 }, { 0, 0, 1 } }, x:astype("float32")
    local want = of("float32")(labels:astype("float32"), logits)
    for _, dtype in ipairs { "int8", "int32", "int64" } do
      assert.same(want:totable(), of(dtype)(labels:astype(dtype), logits):totable())
    end
  end)

  it("rank pairs by a margin", function()
    local target = double { { 1, -1, 1 }, { -1, 1, -1 } }
    for _, margin in ipairs { 0, 0.5 } do
      local got = loss_of({ x, y, target }, function(a, b, c)
        return flow.nn.MarginRankingLoss(a, b, c, { margin = margin, reduction = "none" })
      end)
      near(got, each({ x, y, target }, function(a, b, c) return math.max(0, margin - c * (a - b)) end))
    end
  end)

  it("hold an anchor nearer to its positive than to its negative", function()
    local anchor, positive = double { { 0, 0 }, { 1, 1 } }, double { { 3, 4 }, { 1, 2 } }
    local negative = double { { 6, 8 }, { 1, 1.5 } }
    local function triplet(options)
      options.reduction = "none"
      return (loss_of({ anchor, positive, negative }, function(a, b, c)
        return flow.nn.TripletMarginLoss(a, b, c, options)
      end))
    end
    -- Distances 5 and 10, 1 and 0.5; eps shifts each by a millionth.
    near(triplet({}), double { 0, 1.5 }, 1e-5)
    near(triplet({ margin = 6 }), double { 1, 6.5 }, 1e-5)
    near(triplet({ p = 1 }), double { 0, 1.5 }, 1e-5)  -- 7 and 14
    near(triplet({ p = 3, margin = 6 }), double { 6 - 91 ^ (1 / 3), 6.5 }, 1e-5)
    near(triplet({ p = math.huge, margin = 6 }), double { 2, 6.5 }, 1e-5)  -- 4 and 8
    near(triplet({ swap = true, margin = 6 }), double { 6, 6.5 }, 1e-5)  -- positive to negative: 5 and 0.5
    local _, g = loss_of({ anchor, anchor * 1, negative }, flow.nn.TripletMarginLoss, { margin = 100 })
    assert.is_true(np.all(np.abs(g[1]):lt(math.huge)))
    _, g = loss_of({ anchor, anchor * 1, negative }, flow.nn.TripletMarginLoss, { p = math.huge, margin = 100 })
    assert.is_true(np.all(np.abs(g[1]):lt(math.huge)))
  end)

  it("measure distances of half precision in float32", function()
    -- The squares of a wide row leave the range of float16, their root does not: 16 * 64 and 17 * 64.
    local function half(value) return np.full({ 1, 4096 }, value):astype(flow.float16) end
    local loss, of_halves = loss_of({ half(0), half(17), half(16) }, function(a, b, c)
      local distance = flow.nn.TripletMarginLoss(a, b, c)
      assert.equal("float16", distance.dtype)
      return flow.cast(distance, flow.float)
    end)
    assert.equal(65, loss:item())
    assert.is_true(np.all(np.abs(of_halves[2]):lt(1)) and np.all(of_halves[2]:ne(0)))
  end)

  it("say what they cannot take", function()
    local function fails(pattern, body)
      local fine, problem = pcall(loss_of, { x, y }, body)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find(pattern, 1, true), tostring(problem))
      assert.truthy(problem.where:find("losses_spec.lua:", 1, true))
    end
    fails("reduction must be 'mean', 'sum' or 'none', got 'avg'", function(a, b)
      return flow.nn.L1Loss(a, b, { reduction = "avg" })
    end)
    fails("p must be at least 1, got 0", function(a, b) return flow.nn.TripletMarginLoss(a, b, b, { p = 0 }) end)
  end)

  it("warn where input and target meet in pairs", function()
    local lines = {}
    flow.config.log(function(line) lines[#lines + 1] = line end)
    local function warnings(loss, input, target)
      lines = {}
      flow.global_function {
        inputs = { a = tp.Numpy.Placeholder(input), b = tp.Numpy.Placeholder(target) },
      } (function(a, b) return loss(a, b) end)
      return lines
    end
    for _, name in ipairs { "MSELoss", "L1Loss" } do
      local loss = flow.nn[name]
      local warned = warnings(loss, { 4, 1 }, { 4 })
      assert.equal(1, #warned)
      assert.truthy(warned[1]:find("^moonflow: [^ ]*losses_spec.lua:%d+: flow.nn." .. name .. ": input is %(4, 1%) and "
        .. "target is %(4%), so each element of one meets all of the other; flow.squeeze or flow.expand_dims makes "
        .. "them alike$"), warned[1])
      assert.equal(1, #warnings(loss, { 3, 1, 2 }, { 1, 5, 2 }))
      for _, shapes in ipairs { { { 4 }, { 4 } }, { { 4, 3 }, { 3 } }, { { 4, 1 }, { 4, 3 } }, { { 1 }, { 4, 3 } } } do
        assert.equal(0, #warnings(loss, shapes[1], shapes[2]))
      end
    end
    -- A class number for each row is nothing of the kind, also where there are more rows than classes.
    local function of_classes(a, b) return flow.nn.CrossEntropyLoss(a, flow.cast(b, flow.int32)) end
    for _, shapes in ipairs { { { 40, 3 }, { 40 } }, { { 3, 3 }, { 3 } }, { { 8, 1, 3 }, { 8, 1 } } } do
      assert.equal(0, #warnings(of_classes, shapes[1], shapes[2]))
    end
    flow.config.log(nil)
  end)

  it("warn where what is trained is given as the labels", function()
    local function warnings(loss)
      local lines = {}
      flow.config.log(function(line) lines[#lines + 1] = line end)
      flow.global_function {
        type = "train", inputs = { a = tp.Numpy.Placeholder({ 4, 3 }), b = tp.Numpy.Placeholder({ 4, 3 }) },
      } (function(a, b)
        flow.optimizer.SGD(0.1):minimize(loss(flow.layers.dense(a, 3, { name = "out" }), b))
      end)
      flow.config.log(nil)
      return lines
    end
    local nn = flow.nn
    local function target_first(loss)
      return function(target, input) return loss(input, target) end
    end
    local function softmax_of(loss)
      return function(target, input) return loss(nn.softmax(input), target) end
    end
    local losses = {
      { nn.softmax_cross_entropy_with_logits, "softmax_cross_entropy_with_logits", "labels", "logits" },
      { nn.sigmoid_cross_entropy_with_logits, "sigmoid_cross_entropy_with_logits", "labels", "logits" },
      { target_first(nn.BCEWithLogitsLoss), "BCEWithLogitsLoss", "target", "input" },
      { softmax_of(nn.BCELoss), "BCELoss", "target", "input" },
      { target_first(nn.KLDivLoss), "KLDivLoss", "target", "input" },
      { function(target, input) return nn.KLDivLoss(input, target, { log_target = true }) end, "KLDivLoss", "target",
        "input" },
      { function(target, input) return nn.MarginRankingLoss(input, input * 2, target) end, "MarginRankingLoss",
        "target", "input1" },
    }
    for _, case in ipairs(losses) do
      local loss, name, target, input = unpack(case)
      local lines = warnings(loss)
      assert.truthy(lines[1], name)
      assert.truthy(lines[1]:find("losses_spec.lua:%d+: flow.nn." .. name .. ": its " .. target .. ", 'out%-bias_add', "
        .. "depends on what is trained, and its " .. input .. ", '[^']+', does not; were they given in the wrong "
        .. "order%?$"), lines[1])
      assert.equal(name == "MarginRankingLoss" and 2 or 1, #lines)
      assert.equal(0, #warnings(function(a, b) return loss(b, a) end))
      assert.equal(0, #warnings(function(a) return loss(nn.softmax(a), a) end))
    end
    -- The order makes no difference to these.
    for _, loss in ipairs { nn.L1Loss, nn.MSELoss, nn.smooth_l1_loss } do
      assert.equal(0, #warnings(loss))
      assert.equal(0, #warnings(target_first(loss)))
    end
  end)
end)

describe("the cross entropy of a probability of 0", function()
  it("has a gradient that is a number", function()
    flow.clear_default_session()
    flow.global_function { type = "train", inputs = { labels = tp.Numpy.Placeholder({ 1 }, "int32") },
                           returns = tp.None } (function(labels)
      local w = flow.get_variable("w", { shape = { 1, 2 }, initializer = flow.zeros_initializer() })
      flow.optimizer.SGD(1e-20, { momentum = 0 }):minimize(flow.nn.sparse_cross_entropy(labels, w))
    end)(np.array({ 0 }, "int32"))
    assert.is_true(np.allclose(flow.get_all_variables().w, np.array { { 1, 0 } }, { atol = 1e-6 }))
  end)
end)
