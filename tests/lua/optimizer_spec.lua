-- Optimizers, schedules, clipping, regularisers: the numbers of a few steps, against the formulas written out here.
local flow = require "moonflow"
local session = require "moonflow.session"
local np, tp = flow.np, flow.typing

before_each(function()
  flow.clear_default_session()
end)

-- Trains w (starting at `start`) for `steps` steps on loss = x * w; with x = (g1, g2) the gradient of w before division
-- is x itself, and the loss has two elements. Gives w after each step.
local function train(make_optimizer, options)
  options = options or {}
  local dtype = options.dtype or flow.double
  local job = flow.global_function {
    name = "train", type = "train", inputs = { x = tp.Numpy.Placeholder({ 2 }, dtype) }, returns = tp.Numpy,
    function_config = options.function_config,
  } (function(x)
    local w = flow.get_variable("w", {
      shape = { 2 }, dtype = dtype, initializer = flow.constant_initializer(options.start or 1),
      regularizer = options.regularizer,
    })
    local loss = x * w
    if make_optimizer then make_optimizer():minimize(loss) else flow.losses.add_loss(loss) end
    return w
  end)
  local seen = {}
  for t = 1, options.steps or 4 do
    job(np.array(options.gradient and options.gradient(t) or { 2, 4 * t }, dtype))
    seen[t] = session.handle():read("w"):totable()
  end
  return seen
end

-- The same by the formula `update(w, g, t, slots)` -> w, with g already divided; t from 0.
local function check(seen, update, options, tolerance)
  options = options or {}
  local w, slots = { options.start or 1, options.start or 1 }, { {}, {} }
  for t = 1, #seen do
    local x = options.gradient and options.gradient(t) or { 2, 4 * t }
    for i = 1, 2 do
      w[i] = update(w[i], x[i] / 2, t - 1, slots[i])
      local difference = math.abs(seen[t][i] - w[i])
      -- The learning rate is float32, so a step carries its rounding: about 1e-7 of the step.
      assert.truthy(difference <= (tolerance or 2e-6), ("step %d: %.9f, wanted %.9f"):format(t, seen[t][i], w[i]))
    end
  end
end

describe("an optimizer", function()
  it("leaves a job as it was where its losses are refused", function()
    local job = flow.global_function { type = "train", returns = tp.Numpy } (function()
      local w = flow.get_variable("w", { shape = { 2 }, initializer = flow.constant_initializer(1) })
      assert.falsy((pcall(function() flow.optimizer.SGD(1):minimize({ w, flow.math.reduce_mean(w) }) end)))
      assert.falsy((pcall(function() flow.optimizer.SGD(1):minimize("w") end)))
      flow.optimizer.SGD(0.5, { momentum = 0 }):minimize(w)
      return w
    end)
    job()
    assert.same({ 0.75, 0.75 }, job():totable())  -- one loss, whose mean has a gradient of a half
  end)
end)

describe("SGD", function()
  it("without momentum subtracts rate times gradient", function()
    check(train(function() return flow.optimizer.SGD(0.1, { momentum = 0 }) end),
      function(w, g) return w - 0.1 * g end)
  end)

  it("has momentum 0.9, with the rate inside", function()
    local rate = flow.optimizer.PiecewiseConstantScheduler({ 1 }, { 0.1, 0.01 })
    check(train(function() return flow.optimizer.SGD(rate) end),
      function(w, g, t, s)
        s.m = 0.9 * (s.m or 0) - (t <= 1 and 0.1 or 0.01) * g
        return w + s.m
      end)
  end)

  it("takes an empty table behind the rate for options", function()
    check(train(function() return flow.optimizer.SGD(0.1, {}) end), function(w, g, _, s)
      s.m = 0.9 * (s.m or 0) - 0.1 * g
      return w + s.m
    end)
  end)

  it("works in float32 too", function()
    check(train(function() return flow.optimizer.SGD(0.1) end, { dtype = flow.float }), function(w, g, _, s)
      s.m = 0.9 * (s.m or 0) - 0.1 * g
      return w + s.m
    end, nil, 1e-5)
  end)

  it("decays weights beside the gradient as SGDW", function()
    check(train(function() return flow.optimizer.SGDW(0.1, { weight_decay = 0.5, momentum = 0 }) end),
      function(w, g) return w - 0.1 * g - 0.1 * 0.5 * w end)
    flow.clear_default_session()
    check(train(function()
      return flow.optimizer.SGDW(0.1, { weight_decay = 0.5, momentum = 0, weight_decay_excludes = { "w" } })
    end), function(w, g) return w - 0.1 * g end)
  end)
end)

local function adam(corrected, decay)
  return function(w, g, t, s)
    s.m = 0.9 * (s.m or 0) + 0.1 * g
    s.v = 0.999 * (s.v or 0) + 0.001 * g * g
    local rate = 0.01
    if corrected then rate = rate * math.sqrt(1 - 0.999 ^ (t + 1)) / (1 - 0.9 ^ (t + 1)) end
    return w - rate * (s.m / (math.sqrt(s.v) + 1e-8) + (decay or 0) * w)
  end
end

describe("Adam", function()
  it("corrects its bias unless told otherwise", function()
    check(train(function() return flow.optimizer.Adam(0.01) end), adam(true))
    flow.clear_default_session()
    check(train(function() return flow.optimizer.Adam(0.01, { do_bias_correction = false }) end), adam(false))
    flow.clear_default_session()
    check(train(function() return flow.optimizer.LazyAdam(0.01) end), adam(true))
  end)

  it("decays weights beside the gradient as AdamW, where the name says so", function()
    check(train(function()
      return flow.optimizer.AdamW(0.01, { weight_decay = 0.3, do_bias_correction = false })
    end), adam(false, 0.3))
    flow.clear_default_session()
    check(train(function()
      return flow.optimizer.AdamW(0.01, {
        weight_decay = 0.3, do_bias_correction = false, weight_decay_includes = "bias",
      })
    end), adam(false))
  end)

  it("says where no name has what is to decay in it", function()
    local lines = {}
    flow.config.log(function(line) lines[#lines + 1] = line end)
    finally(function() flow.config.log(nil) end)
    local function warned(options)
      lines = {}
      flow.clear_default_session()
      options.weight_decay = 0.3
      train(function() return flow.optimizer.AdamW(0.01, options) end)
      return #lines
    end
    assert.equal(1, warned { weight_decay_excludes = { "biass", "norm" } })
    assert.truthy(lines[1]:find("flow.optimizer.AdamW: nothing of weight_decay_excludes { biass, norm } is part of "
      .. "a name "
      .. "that it trains: w", 1, true), lines[1])
    assert.equal(0, warned { weight_decay_excludes = { "biass", "w" } })
    assert.equal(0, warned {})
  end)
end)

-- Stages of training, each a job that trains w by Adam: the moments are w's, and so is the number of their steps.
describe("Adam in several jobs", function()
  local function stage(name, rate, make)
    local define = flow.global_function {
      name = name, type = "train", inputs = { x = tp.Numpy.Placeholder({ 2 }, flow.double) }, returns = tp.None,
    }
    return define(function(x)
      local w = flow.get_variable("w", { shape = { 2 }, dtype = flow.double, initializer = flow.ones_initializer() })
      ;(make or flow.optimizer.Adam)(rate):minimize(x * w)
    end)
  end

  -- w after each of these jobs, in turn.
  local function train_in(jobs)
    local seen = {}
    for t, job in ipairs(jobs) do
      job(np.array({ 2, 4 * t }, flow.double))
      seen[t] = session.handle():read("w"):totable()
    end
    return seen
  end

  it("goes on in a later one where the first has left off", function()
    for _, make in ipairs { flow.optimizer.Adam, flow.optimizer.LazyAdam } do
      flow.clear_default_session()
      local head, all = stage("head", 0.01, make), stage("all", 0.01, make)
      check(train_in { head, head, head, all, all }, adam(true))
      assert.equal(3, session.handle():read("System-Train-TrainStep-head"):item())
      assert.equal(2, session.handle():read("System-Train-TrainStep-all"):item())  -- its schedule is its own
    end
  end)

  it("counts the steps of all that are defined before it, once each", function()
    local first, second, third = stage("first", 0.01), stage("second", 0.01), stage("third", 0.01)
    check(train_in { first, second, third, third }, adam(true))
    flow.clear_default_session()
    stage("first", 0.01)
    second = stage("second", 0.01)
    first = stage("first", 0.01)  -- defined anew, it knows of the second
    check(train_in { first, second, first, second }, adam(true))
  end)

  it("says where one name counts the steps of two nets", function()
    local lines = {}
    flow.config.log(function(line) lines[#lines + 1] = line end)
    finally(function() flow.config.log(nil) end)
    local function net(name, job_name)
      local job = flow.global_function { name = job_name, type = "train", returns = tp.None } (function()
        local w = flow.get_variable(name, { shape = { 2 }, initializer = flow.ones_initializer() })
        flow.optimizer.Adam(0.1):minimize(w)
      end)
      job()
    end
    net("a")
    net("a")  -- defined anew
    assert.same({}, lines)
    net("b")
    assert.equal(1, #lines)
    assert.truthy(lines[1]:find("optimizer_spec.lua:%d+: a train job before this one is called 'job' too, and trains "
      .. "other variables %(a%)"), lines[1])
    net("c", "of its own")
    flow.clear_default_session()
    net("d")
    assert.equal(1, #lines)
  end)

  it("begins anew with what another has not trained so", function()
    local plain = stage("plain", 0.01, function(rate) return flow.optimizer.SGD(rate, { momentum = 0 }) end)
    local later = stage("later", 0.01)
    plain(np.zeros({ 2 }, flow.double))
    check(train_in { later, later }, adam(true))
  end)
end)

describe("LazyAdam of a table", function()
  local ROWS, WIDTH = 6, 2

  -- Trains a table whose rows are picked by `pick(table, ids)`, three values of `ids` for each step. Gives what the
  -- table, m and v are afterwards.
  local function trained(options, steps, pick, regularizer)
    flow.clear_default_session()
    local job = flow.global_function {
      name = "train", type = "train", inputs = { ids = tp.Numpy.Placeholder({ 3 }, flow.int32) }, returns = tp.Numpy,
    } (function(ids)
      local weight = flow.get_variable("table", { shape = { ROWS, WIDTH }, dtype = flow.double,
        initializer = flow.constant_initializer(1), regularizer = regularizer })
      local loss = (pick or flow.gather)(weight, ids) * flow.constant(3, { dtype = flow.double, shape = { 3, WIDTH } })
      flow.optimizer.LazyAdam(0.01, options):minimize(loss)
      return loss
    end)
    for _, ids in ipairs(steps) do job(np.array(ids, flow.int32)) end
    local after = {}
    for _, name in ipairs { "table", "table-m", "table-v" } do after[name] = session.handle():read(name):totable() end
    return after
  end

  -- The same by the formula; `counts[t][row]`: how often step t picks the row, nil where it does not.
  local function expected(counts, scale)
    local rows = {}
    for row = 1, ROWS do
      local w, m, v = 1, 0, 0
      for t, count in ipairs(counts) do
        if count[row] then
          local g = count[row] * 3 / (3 * WIDTH) * (scale or 1)
          m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
          w = w - 0.01 * math.sqrt(1 - 0.999 ^ t) / (1 - 0.9 ^ t) * m / (math.sqrt(v) + 1e-8)
        end
      end
      rows[row] = { w, m, v }
    end
    return rows
  end

  local function agree(after, rows)
    for i, name in ipairs { "table", "table-m", "table-v" } do
      for row = 1, ROWS do
        for column = 1, WIDTH do
          local got = after[name][row][column]
          local wanted = rows[row][i]
          assert.truthy(math.abs(got - wanted) < 1e-7, ("%s, row %d: %.9f, wanted %.9f"):format(name, row - 1, got,
            wanted))
        end
      end
    end
  end

  local steps, counts = { { 4, 1, 4 }, { 0, 0, 0 }, { 1, 2, 3 } }, { { [5] = 2, [2] = 1 }, { [1] = 3 },
    { [2] = 1, [3] = 1, [4] = 1 } }

  it("changes the rows that a step has picked, and the moments of these", function()
    agree(trained({}, steps), expected(counts))
  end)

  it("sums what several gathers pick", function()
    local function twice(weight, ids)
      local others = flow.constant(5, { dtype = flow.int64, shape = { 1, 3 } })
      return flow.gather(weight, ids) + flow.reshape(flow.gather(weight, others), { 3, WIDTH })
    end
    agree(trained({}, { { 4, 1, 4 } }, twice), expected { { [5] = 2, [2] = 1, [6] = 3 } })
  end)

  it("changes all rows where another op reads the table, or a regularizer does", function()
    local all = { [1] = 0, [2] = 1, [3] = 0, [4] = 0, [5] = 2, [6] = 0 }
    local function with_sum(weight, ids) return flow.gather(weight, ids) + flow.math.reduce_mean(weight) * 0 end
    agree(trained({}, { { 4, 1, 4 }, { 4, 1, 4 } }, with_sum), expected { all, all })
    local after = trained({}, { { 4, 1, 4 } }, nil, flow.regularizers.l2(0.1))
    for row = 1, ROWS do assert.truthy(after.table[row][1] < 1) end
  end)

  it("clips by the norm of the rows' sums", function()
    local clip = { grad_clipping = flow.optimizer.grad_clipping.by_global_norm(0.25) }
    local norm = math.sqrt(WIDTH * (1 ^ 2 + 0.5 ^ 2))
    agree(trained(clip, { { 4, 1, 4 } }), expected({ { [5] = 2, [2] = 1 } }, 0.25 / norm))
  end)

  it("leaves out a step that overflows", function()
    local scaled = { loss_scale_policy = flow.optimizer.loss_scale.dynamic_loss_scale(64) }
    agree(trained(scaled, steps), expected(counts))
    local function infinite(weight, ids) return flow.gather(weight, ids) * (1 / 0) end
    agree(trained(scaled, steps, infinite), expected {})
  end)
end)

describe("a table from which several gathers pick", function()
  local ROWS, WIDTH = 40, 3

  -- Trains a table from which `counts` places are picked at a time; the losses are its sums, by 1, 2, ... Gives the job
  -- and the table afterwards.
  local function trained(optimizer, ...)
    flow.clear_default_session()
    local types, values = {}, {}
    for i, list in ipairs({ ... }) do
      types[i], values[i] = tp.Numpy.Placeholder({ #list }, flow.int32), np.array(list, flow.int32)
    end
    local job = flow.global_function {
      name = "train", type = "train", inputs = { picks = types }, returns = tp.None,
    } (function(picks)
      local weight = flow.get_variable("table", { shape = { ROWS, WIDTH }, dtype = flow.double,
        initializer = flow.constant_initializer(1) })
      local loss = 0
      for i, ids in ipairs(picks) do loss = loss + flow.math.reduce_sum(flow.gather(weight, ids)) * i end
      optimizer:minimize(loss)
    end)
    job(values)
    return job, session.handle():read("table"):totable()
  end

  local function agree(after, counts, change)
    for row = 1, ROWS do
      local wanted = 1 - change(counts[row - 1] or 0)
      for column = 1, WIDTH do assert.truthy(math.abs(after[row][column] - wanted) < 1e-7, "row " .. row - 1) end
    end
  end

  local counts = { [4] = 4, [1] = 1, [7] = 2, [39] = 5 }  -- 4 by the first once, once by the last

  it("changes the rows that any of them picks, and makes no gradient of its size", function()
    local job, after = trained(flow.optimizer.SGD(0.1, { momentum = 0 }), { 4, 1 }, { 7, 39 }, { 4, 39 })
    agree(after, counts, function(count) return 0.1 * count end)
    assert.truthy(job:dump():find("rows_sgd_update", 1, true))
    assert.falsy(job:dump():find("gather_grad", 1, true))
  end)

  it("has one gradient for any rule, and two where they pick more rows than there are", function()
    local function gradients(...)
      local job = trained(flow.optimizer.RMSProp(0.1), ...)
      local _, count = job:dump():gsub("%d: gather_grad", "")
      return count
    end
    local many = {}
    for i = 1, ROWS do many[i] = i - 1 end
    assert.equal(1, gradients({ 4, 1 }, { 7, 39 }))
    assert.equal(2, gradients(many, { 7 }))
  end)

  it("has only these rows changed where it is clipped, and all where comparing the picks takes longer", function()
    local clip = flow.optimizer.grad_clipping.by_global_norm(0.5)
    local many = {}
    for i = 1, 19 do many[i] = i end
    for count, by_rows in pairs { [2] = true, [18] = false } do
      local picks = { unpack(many, 1, count) }
      for _, optimizer in ipairs { flow.optimizer.SGD(0.1, { momentum = 0, grad_clipping = clip }),
                                   flow.optimizer.LazyAdam(0.1, { grad_clipping = clip }) } do
        local text = trained(optimizer, picks):dump()
        assert.equal(by_rows, text:find("gather_grad", 1, true) == nil, text)
      end
    end
  end)

  it("clips and unscales as ever", function()
    local clip = flow.optimizer.grad_clipping.by_global_norm(0.5)
    local norm = math.sqrt(WIDTH * (4 ^ 2 + 1 + 2 ^ 2 + 5 ^ 2))
    local _, after = trained(flow.optimizer.SGD(0.1, { momentum = 0, grad_clipping = clip }),
      { 4, 1 }, { 7, 39 }, { 4, 39 })
    agree(after, counts, function(count) return 0.1 * count * 0.5 / norm end)
    local scaled = flow.optimizer.loss_scale.dynamic_loss_scale(64)
    _, after = trained(flow.optimizer.SGD(0.1, { momentum = 0, loss_scale_policy = scaled }),
      { 4, 1 }, { 7, 39 }, { 4, 39 })
    agree(after, counts, function(count) return 0.1 * count end)
  end)
end)

describe("RMSProp", function()
  it("divides by the root of the mean square", function()
    check(train(function() return flow.optimizer.RMSProp(0.01) end), function(w, g, _, s)
      s.s = 0.99 * (s.s or 0) + 0.01 * g * g
      return w - 0.01 * g / math.sqrt(s.s + 1e-8)
    end)
  end)

  it("may be centred", function()
    check(train(function() return flow.optimizer.RMSProp(0.01, { centered = true }) end), function(w, g, _, s)
      s.s = 0.99 * (s.s or 0) + 0.01 * g * g
      s.m = 0.99 * (s.m or 0) + 0.01 * g
      return w - 0.01 * g / math.sqrt(s.s - s.m * s.m + 1e-8)
    end)
  end)
end)

describe("LARS", function()
  it("scales the rate by the norms of weight and gradient", function()
    local seen = train(function() return flow.optimizer.LARS(0.5, { lars_coefficient = 0.1, momentum_beta = 0 }) end,
      { steps = 1 })
    local norm = math.sqrt((1 + 4) / 2)
    local rate = 0.5 * 0.1 * 1 / (norm + 1e-9)
    assert.truthy(math.abs(seen[1][1] - (1 - rate * 1)) < 1e-6)
    assert.truthy(math.abs(seen[1][2] - (1 - rate * 2)) < 1e-6)
  end)
end)

describe("the way of a gradient", function()
  it("divides, unscales, regularises, clips, updates, in this order", function()
    local function update(w, g, norm)
      g = g + 0.1 * (w > 0 and 1 or -1) + 0.2 * w
      return w - g * math.min(1, 0.5 / norm)
    end
    local seen = train(function()
      return flow.optimizer.SGD(1, { momentum = 0, loss_scale_factor = 1024,
                                     grad_clipping = flow.optimizer.grad_clipping.by_global_norm(0.5) })
    end, { regularizer = flow.regularizers.l1_l2(0.1, 0.2), steps = 1 })
    local g1, g2 = 1 + 0.1 + 0.2, 2 + 0.1 + 0.2
    local norm = math.sqrt(g1 * g1 + g2 * g2)
    assert.truthy(math.abs(seen[1][1] - update(1, 1, norm)) < 1e-6)
    assert.truthy(math.abs(seen[1][2] - update(1, 2, norm)) < 1e-6)
  end)

  it("leaves a gradient below the norm alone", function()
    check(train(function()
      return flow.optimizer.SGD(0.1, { momentum = 0, grad_clipping = flow.optimizer.grad_clipping.by_global_norm(100) })
    end), function(w, g) return w - 0.1 * g end)
  end)

  it("clips variables of several dtypes by one norm", function()
    for _, dtypes in ipairs { { "float32", "bfloat16" }, { "float16", "float16" }, { "bfloat16", "float64" } } do
      flow.clear_default_session()
      local job = flow.global_function { type = "train", returns = tp.Numpy } (function()
        local parts = {}
        for i, dtype in ipairs(dtypes) do
          local w = flow.get_variable("w" .. i, { shape = { 1 }, dtype = dtype,
                                                  initializer = flow.constant_initializer(1) })
          parts[i] = flow.cast(w, flow.float) * ((i == 1 and 3 or 4) * 14336)  -- their norm is beyond float16
        end
        local loss = parts[1] + parts[2]
        flow.optimizer.SGD(1, { momentum = 0, grad_clipping = flow.optimizer.grad_clipping.by_global_norm(0.625) })
          :minimize(loss)
        return loss
      end)
      job()
      assert.truthy(math.abs(session.handle():read("w1")[0] - 0.625) < 1e-6)
      assert.truthy(math.abs(session.handle():read("w2")[0] - 0.5) < 1e-6)
    end
  end)

  it("passes by variables that are not trainable, and those no loss depends on", function()
    local unused
    local job = flow.global_function {
      type = "train", inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Numpy,
    } (function(x)
      local function one(name, trainable)
        return flow.get_variable(name, {
          shape = { 2 }, initializer = flow.ones_initializer(), trainable = trainable,
        })
      end
      local loss = x * one("trained") * one("fixed", false)
      flow.watch(one("unused"), function(value) unused = value end)
      flow.optimizer.SGD(0.1, { momentum = 0 }):minimize(loss)
      return loss
    end)
    for _ = 1, 2 do job(np.ones({ 2 })) end
    local values = flow.get_all_variables()
    assert.same({ 1, 1 }, values.fixed:totable())
    assert.same({ 1, 1 }, unused:totable())
    assert.near(0.9, values.trained[0], 1e-6)
  end)

  it("adds the means of several losses", function()
    local T = tp.Numpy.Placeholder({ 2 })
    local job = flow.global_function { type = "train", inputs = { x = T }, returns = tp.Numpy } (
      function(x)
        local w = flow.get_variable("w", { shape = { 1 }, initializer = flow.constant_initializer(1) })
        flow.optimizer.SGD(1, { momentum = 0 }):minimize({ w * x, w * x * 3 })
        return w
      end)
    job(np.array({ 1, 3 }, flow.float))
    assert.equal(1 - (2 + 6), session.handle():read("w")[0])
  end)

  it("shows the loss scale in watch_diff", function()
    local seen
    local T = tp.Numpy.Placeholder({ 2 })
    local job = flow.global_function { type = "train", inputs = { x = T }, returns = tp.Numpy } (
      function(x)
        local w = flow.get_variable("w", { shape = { 2 }, initializer = flow.constant_initializer(1) })
        flow.watch_diff(w, function(g) seen = g end)
        flow.optimizer.SGD(0.1, { loss_scale_policy = flow.optimizer.loss_scale.static_loss_scale(8) }):minimize(w * x)
        return w
      end)
    job(np.array({ 1, 3 }, flow.float))
    assert.is_true(seen == np.array({ 8, 24 }, flow.float))
  end)
end)

describe("a gradient clipped by value", function()
  it("has no element beyond it, for dense variables and for picked rows", function()
    local function moved(make)
      flow.clear_default_session()
      local job = flow.global_function { type = "train", returns = tp.None } (function()
        local w = flow.get_variable("w", { shape = { 3, 2 }, initializer = flow.ones_initializer() })
        local rows = flow.gather(w, flow.cast(flow.range(0, 2), "int32"))
        local again = flow.gather(w, flow.cast(flow.range(0, 1), "int32"))
        -- The sum of the elements' gradients: 5 for row 0, which is picked twice, 0.5 for row 1.
        local scale = np.array { { 3, 3 }, { 0.5, -0.5 } }
        make():minimize(flow.math.reduce_sum(rows * scale) + flow.math.reduce_sum(again) * 2)
      end)
      job()
      return (1 - flow.get_all_variables().w):totable()
    end
    local clipping = flow.optimizer.grad_clipping.by_value(4)
    assert.same({ { 4, 4 }, { 0.5, -0.5 }, { 0, 0 } }, moved(function()
      return flow.optimizer.SGD(1, { momentum = 0, grad_clipping = clipping })
    end))
    local dense = moved(function() return flow.optimizer.Adam(1, { grad_clipping = clipping }) end)
    local lazy = moved(function() return flow.optimizer.LazyAdam(1, { grad_clipping = clipping }) end)
    assert.same(dense[1], lazy[1])
  end)

  it("has a bound above 0", function()
    local fine, problem = pcall(flow.optimizer.grad_clipping.by_value, 0)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("clip_value must be above 0, got 0", 1, true), tostring(problem))
  end)
end)

describe("an optimizer with variables", function()
  -- A job whose loss has a gradient for each of four variables in two namespaces.
  local function job(variables, name, optimizer)
    return flow.global_function { name = name, type = "train", inputs = { x = tp.Numpy.Placeholder({ 1 }) },
                                  returns = tp.Numpy } (function(x)
      local sum = x * 0
      for _, part in ipairs { "maker", "judge" } do
        flow.scope.namespace(part, function()
          for _, word in ipairs { "weight", "weight2" } do
            sum = sum + x * flow.get_variable(word, { shape = { 1 }, initializer = flow.zeros_initializer() })
          end
        end)
      end
      optimizer = optimizer or flow.optimizer.SGD
      optimizer { lr_scheduler = 1, variables = variables }:minimize(sum)
      return sum
    end)
  end

  local function values()
    local read = {}
    for i, name in ipairs { "maker-weight", "maker-weight2", "judge-weight", "judge-weight2" } do
      read[i] = session.handle():read(name)[0]
    end
    return read
  end

  local x = np.ones({ 1 })

  it("trains these and leaves the others, by names of variables, layers or namespaces", function()
    for _, case in ipairs {
      { { "maker" }, { 1, 1, 0, 0 } }, { "judge", { 0, 0, 1, 1 } }, { { "maker-weight" }, { 1, 0, 0, 0 } },
      { { "judge-weight2", "maker" }, { 1, 1, 0, 1 } }, { nil, { 1, 1, 1, 1 } },
    } do
      flow.clear_default_session()
      job(case[1], "train")(x)
      local moved = values()
      for i, value in ipairs(moved) do moved[i] = value ~= 0 and 1 or 0 end
      assert.same(case[2], moved)
    end
  end)

  it("lets two jobs train a part each, with slots of their own", function()
    local make, judge = job("maker", "make", flow.optimizer.Adam), job("judge", "judge", flow.optimizer.Adam)
    make(x)
    make(x)
    judge(x)
    local read = values()
    assert.near(-2, read[1], 1e-5)
    assert.near(-1, read[3], 1e-5)
    assert.is_true(session.handle():read("judge-weight-m")[0] ~= 0)
  end)

  it("says which name is unknown, and where", function()
    local function fails(pattern, ...)
      local fine, problem = pcall(job, ...)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find(pattern, 1, true), tostring(problem))
      assert.truthy(problem.where:find("optimizer_spec.lua:", 1, true))
    end
    fails("flow.optimizer.SGD: the job 'train' has no trainable variable 'maker-weigth', and none in a layer or "
      .. "namespace of this name; did you mean 'maker-weight'?", { "maker-weigth" }, "train")
    fails("no trainable variable 'makre', and none in a layer or namespace of this name; did you mean 'maker'?",
      { "makre" }, "train")
    fails("variables must name at least one", {}, "train")
    fails("variables must be a list of names, entry 1 is 3", 3, "train")
  end)
end)

describe("a combined optimizer", function()
  local o = flow.optimizer

  -- One step on a gradient of 1 for each of four variables that start at 0. Gives where they went.
  local function step(make)
    local names = { "body-a", "body-b", "head-a", "head-b" }
    local job = flow.global_function {
      name = "train", type = "train", inputs = { x = tp.Numpy.Placeholder({ 1 }) }, returns = tp.Numpy,
    } (function(x)
      local loss = x
      for _, name in ipairs(names) do
        loss = loss + x * flow.get_variable(name, { shape = { 1 }, initializer = flow.zeros_initializer() })
      end
      make():minimize(loss)
      return loss
    end)
    job(np.ones({ 1 }))
    local read = {}
    for i, name in ipairs(names) do read[i] = session.handle():read(name)[0] end
    return read
  end

  local function body(options)
    options.momentum, options.variables = 0, "body"
    return o.SGD(0.5, options)
  end

  local function check_moves(wanted, make)
    for i, value in ipairs(step(make)) do assert.near(wanted[i], value, 1e-6) end
  end

  it("trains some variables in one way and all others in another", function()
    check_moves({ -0.5, -0.5, -0.125, -0.125 }, function()
      return o.CombinedOptimizer { body {}, o.SGD(0.125, { momentum = 0 }) }
    end)
  end)

  it("clips the gradients of each part by their own norm", function()
    check_moves({ -0.5 * 0.25 / 2 ^ 0.5, -0.5 * 0.25 / 2 ^ 0.5, -0.125, -0.125 }, function()
      return o.CombinedOptimizer {
        body { grad_clipping = o.grad_clipping.by_global_norm(0.25) },
        o.SGD(0.125, { momentum = 0, grad_clipping = o.grad_clipping.by_global_norm(2) }),
      }
    end)
  end)

  it("leaves what no part names", function()
    check_moves({ -0.5, -0.5, -1, 0 }, function()
      return o.CombinedOptimizer { body {}, o.SGD(1, { momentum = 0, variables = "head-a" }) }
    end)
  end)

  it("scales the loss of the whole", function()
    check_moves({ -0.5, -0.5, -1, -1 }, function()
      return o.CombinedOptimizer({ body {}, o.SGD(1, { momentum = 0 }) }, { loss_scale_factor = 8 })
    end)
    check_moves({ -1, -1, -2, -2 }, function()
      return o.CombinedOptimizer({ body {}, o.SGD(1, { momentum = 0 }) },
        { loss_scale_policy = o.loss_scale.dynamic_loss_scale() })
    end)
  end)

  it("says what does not fit together", function()
    local function fails(pattern, make)
      flow.clear_default_session()
      local fine, problem = pcall(step, make)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find(pattern, 1, true), tostring(problem))
      assert.truthy(problem.where:find("optimizer_spec.lua:", 1, true))
    end
    fails("two of the optimizers train 'body-b', flow.optimizer.SGD and flow.optimizer.Adam; a variable belongs to one",
      function() return o.CombinedOptimizer { body {}, o.Adam(0.1, { variables = "body-b" }) } end)
    fails("entry 2 of the optimizers names no variables, nor does entry 1, which trains all others",
      function() return o.CombinedOptimizer { o.SGD(0.1), o.Adam(0.1) } end)
    fails("entry 1 of the optimizers has a loss scale of its own; give it to CombinedOptimizer",
      function() return o.CombinedOptimizer { o.SGD(0.1, { loss_scale_factor = 2 }) } end)
    fails("entry 1 of the optimizers must be one such as flow.optimizer.Adam(0.001), got 3",
      function() return o.CombinedOptimizer { 3 } end)
    fails("entry 2 of the optimizers is entry 1 again", function()
      local part = body {}
      return o.CombinedOptimizer { part, part }
    end)
    fails("it is empty", function() return o.CombinedOptimizer {} end)
  end)
end)

describe("a variable", function()
  it("is either trained or assigned by a job", function()
    local fine, problem = pcall(flow.global_function { name = "job", type = "train", returns = tp.None }, function()
      local w = flow.get_variable("w", { shape = { 2 }, initializer = flow.ones_initializer() })
      flow.optimizer.SGD(0.1):minimize(w ^ 2)
      flow.assign(w, w * 0)
    end)
    assert.is_false(fine)
    local begin = "flow.optimizer.SGD: the job 'job' trains 'w' and assigns it too (at "
    assert.truthy(tostring(problem):find(begin, 1, true), tostring(problem))
    assert.truthy(tostring(problem):find("; assign it in a job of its own, called after this one", 1, true))
  end)
end)

describe("a learning rate", function()
  it("does not go up", function()
    local fine, problem = pcall(flow.optimizer.SGD, -0.1)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("flow.optimizer.SGD: a learning rate must be 0 or more, got -0.1; "
      .. "minimize(-x) "
      .. "makes x grow", 1, true), tostring(problem))
  end)

  local function define(make)
    return flow.global_function {
      name = "train", type = "train", returns = tp.Numpy,
      inputs = { x = tp.Numpy.Placeholder({ 1 }), rate = tp.Numpy.Placeholder({ 1 }, { dtype = flow.double }) },
    } (function(x, rate)
      local w = flow.get_variable("w", { shape = { 1 }, initializer = flow.zeros_initializer() })
      flow.optimizer.SGD(make(rate), { momentum = 0 }):minimize(x * w)
      return w
    end)
  end

  it("may be an input, or what the job computes", function()
    local job = define(function(rate) return rate * 2 end)
    for _, rate in ipairs { 0.5, 0.25, 0 } do job(np.ones({ 1 }), np.array({ rate }, flow.double)) end
    assert.equal(-1.5, session.handle():read("w")[0])
  end)

  it("may be a variable, which the script sets between steps", function()
    local job = define(function()
      return flow.get_variable("rate", {
        shape = {}, trainable = false, initializer = flow.constant_initializer(0.5) })
    end)
    local one, none = np.ones({ 1 }), np.zeros({ 1 }, flow.double)
    job(one, none)
    flow.load_variables({ rate = np.array(0.125) })
    job(one, none)
    assert.equal(-0.625, session.handle():read("w")[0])
  end)

  it("is one floating-point number", function()
    for _, make in ipairs {
      function(rate) return flow.concat({ rate, rate }) end, function(rate) return flow.cast(rate, flow.int32) end,
    } do
      local fine, problem = pcall(define, make)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find("flow.optimizer.SGD: a learning rate is one floating-point number", 1, true))
    end
  end)
end)

describe("schedules", function()
  -- The rate of each step, seen through SGD on a gradient of one.
  local function rates(scheduler, steps)
    flow.clear_default_session()
    local seen = train(function() return flow.optimizer.SGD(scheduler, { momentum = 0 }) end,
      { steps = steps, gradient = function() return { 2, 2 } end, start = 0 })
    local list, before = {}, 0
    for t, w in ipairs(seen) do
      list[t] = before - w[1]
      before = w[1]
    end
    return list
  end

  local function check_rates(scheduler, formula, steps)
    for t, rate in ipairs(rates(scheduler, steps or 8)) do
      local wanted = formula(t - 1)
      assert.truthy(math.abs(rate - wanted) < 1e-6, ("t = %d: %.8f, wanted %.8f"):format(t - 1, rate, wanted))
    end
  end

  local o = flow.optimizer

  it("count from 0 and follow their formulas", function()
    check_rates(o.PiecewiseConstantScheduler({ 2, 4 }, { 0.3, 0.2, 0.1 }),
      function(t) return t <= 2 and 0.3 or t <= 4 and 0.2 or 0.1 end)
    check_rates(o.PiecewiseScalingScheduler(0.4, { 2, 4 }, { 0.5, 0.1 }),
      function(t) return 0.4 * (t <= 2 and 1 or t <= 4 and 0.5 or 0.1) end)
    check_rates(o.CosineScheduler(0.4, 5, { alpha = 0.1 }), function(t)
      return 0.4 * (0.9 * 0.5 * (1 + math.cos(math.pi * math.min(t, 5) / 5)) + 0.1)
    end)
    check_rates(o.ExponentialScheduler(0.4, 3, 0.5), function(t) return 0.4 * 0.5 ^ (t / 3) end)
    check_rates(o.ExponentialScheduler(0.4, 3, 0.5, true), function(t) return 0.4 * 0.5 ^ math.floor(t / 3) end)
    check_rates(o.InverseTimeScheduler(0.4, 3, 0.5), function(t) return 0.4 / (1 + 0.5 * t / 3) end)
    check_rates(o.NaturalExpScheduler(0.4, 3, { decay_rate = 0.5 }),
      function(t) return 0.4 * math.exp(-0.5 * t / 3) end)
    check_rates(o.PolynomialScheduler(0.4, 5, { end_learning_rate = 0.1, power = 2 }),
      function(t) return 0.3 * (1 - math.min(t, 5) / 5) ^ 2 + 0.1 end)
    check_rates(o.LinearCosineScheduler(0.4, 5, { num_periods = 1, alpha = 0.1, beta = 0.01 }), function(t)
      t = math.min(t, 5)
      return 0.4 * ((0.1 + (5 - t) / 5) * 0.5 * (1 + math.cos(2 * math.pi * t / 5)) + 0.01)
    end)
  end)

  it("give way to a warm-up while it lasts, and are not shifted by it", function()
    check_rates(o.CosineScheduler(0.4, 6, { warmup = o.warmup.linear(3, 0.1) }), function(t)
      if t < 3 then return 0.4 * (0.1 + 0.9 * t / 3) end
      return 0.4 * 0.5 * (1 + math.cos(math.pi * math.min(t, 6) / 6))
    end)
    check_rates(o.PiecewiseConstantScheduler({}, { 0.4 }, { warmup = o.warmup.constant(2, 0.5) }),
      function(t) return t < 2 and 0.2 or 0.4 end)
  end)

  it("keep their step in a variable of the job", function()
    train(function() return o.SGD(o.CosineScheduler(0.1, 10)) end, { steps = 3 })
    local step = session.handle():read("System-Train-TrainStep-train")
    assert.equal("int64", step.dtype)
    assert.equal(3, step:item())
  end)
end)

describe("the oldest dialect", function()
  local function config(conf)
    local c = flow.function_config()
    c.train:primary_lr(0.01)
    c.train:model_update_conf(conf)
    return c
  end

  it("chooses optimizer, schedule and clipping by tables", function()
    check(train(nil, { function_config = config { naive_conf = {} } }), function(w, g) return w - 0.01 * g end)
    flow.clear_default_session()
    check(train(nil, { function_config = config { momentum_conf = { beta = 0.5 } } }), function(w, g, _, s)
      s.m = 0.5 * (s.m or 0) - 0.01 * g
      return w + s.m
    end)
    flow.clear_default_session()
    check(train(nil, { function_config = config { adam_conf = { do_bias_correction = false } } }), adam(false))
    flow.clear_default_session()
    check(train(nil, { function_config = config {
      naive_conf = {}, learning_rate_decay = { exponential_conf = { decay_batches = 2, decay_rate = 0.5 } },
      warmup_conf = { constant_conf = { warmup_batches = 1, multiplier = 0.1 } },
    } }), function(w, g, t) return w - (t < 1 and 0.001 or 0.01 * 0.5 ^ (t / 2)) * g end)
  end)

  it("decays weights under plain descent too", function()
    local decay = { weight_decay_rate = 0.1 }
    check(train(nil, { function_config = config { naive_conf = {}, weight_decay_conf = decay } }),
      function(w, g) return w - 0.01 * g - 0.01 * 0.1 * w end)
  end)

  it("loses nothing that it was told", function()
    local function refuses(message, f)
      local fine, problem = pcall(f)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find(message, 1, true), tostring(problem))
      flow.clear_default_session()
    end
    refuses("model_update_conf has no entry 'learning_rate_decy'; did you mean 'learning_rate_decay'?", function()
      train(nil, { function_config = config { naive_conf = {}, learning_rate_decy = {} } })
    end)
    refuses("weight_decay_conf goes with adam_conf, lamb_conf, momentum_conf and naive_conf", function()
      train(nil, { function_config = config { rmsprop_conf = {}, weight_decay_conf = { weight_decay_rate = 0.1 } } })
    end)
    refuses("num_gradient_accumulation_steps: gradients are not added up", function()
      local c = config { naive_conf = {} }
      c.train:num_gradient_accumulation_steps(4)
      train(nil, { function_config = c })
    end)
    refuses("config.train:primary_lr takes one argument, got 2", function()
      flow.function_config().train:primary_lr(0.1, 0.2)
    end)
    refuses("config:winograd takes one argument, got 2", function() flow.function_config():winograd(true, false) end)
  end)
end)

describe("training", function()
  it("twice with one seed gives bit-equal losses", function()
    local function losses()
      flow.clear_default_session()
      flow.set_seed(5)
      np.random.seed(9)
      local job = flow.global_function {
        type = "train",
        inputs = { x = tp.Numpy.Placeholder({ 32, 10 }), labels = tp.Numpy.Placeholder({ 32 }, flow.int32) },
        returns = tp.Numpy,
      } (function(x, labels)
        local hidden = flow.layers.dense(x, 16, { activation = flow.nn.relu, name = "hidden" })
        hidden = flow.nn.dropout(hidden, 0.3)
        local logits = flow.layers.dense(hidden, 4, { name = "logits" })
        local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        flow.optimizer.Adam(0.01):minimize(loss)
        return loss
      end)
      local list = {}
      for i = 1, 40 do
        local labels = np.random.randint(0, 4, { 32 }):astype(flow.int32)
        local x = np.random.uniform(0, 1, { 32, 10 }):astype(flow.float)
        for row = 0, 31 do x:set(row, labels[row], x:at(row, labels[row]) + 2) end
        list[i] = job(x, labels):mean()
      end
      return list
    end
    local first = losses()
    assert.same(first, losses())
    assert.truthy(first[40] < 0.5 * first[1])
  end)

  it("of two jobs shares weights, each with its own steps", function()
    local function define(name)
      return flow.global_function {
        name = name, type = "train", inputs = { x = tp.Numpy.Placeholder({ 1 }) }, returns = tp.Numpy,
      } (function(x)
        local w = flow.get_variable("w", { shape = { 1 }, initializer = flow.constant_initializer(1) })
        flow.optimizer.SGD(0.5, { momentum = 0 }):minimize(w * x)
        return w
      end)
    end
    local a, b = define("a"), define("b")
    local one = np.ones({ 1 })
    a(one)
    a(one)
    assert.equal(0, b(one)[0])
    assert.equal(-0.5, a(one)[0])
    assert.equal(3, session.handle():read("System-Train-TrainStep-a"):item())
    assert.equal(1, session.handle():read("System-Train-TrainStep-b"):item())
  end)
end)

-- The gradient of such a weight goes straight into the weight, and a job that only predicts lays the weight out anew.
describe("a dense layer's weight", function()
  local function define(name, optimize, watch)
    return flow.global_function {
      name = name, type = optimize and "train" or "predict", returns = tp.Numpy,
      inputs = { x = tp.Numpy.Placeholder({ 12, 70 }), labels = tp.Numpy.Placeholder({ 12 }, flow.int32) },
    } (function(x, labels)
      local logits = flow.layers.dense(x, 40, { name = "layer" })
      if not optimize then return logits end
      local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
      optimize():minimize(loss)
      if watch then flow.watch_diff(flow.get_variable("layer-weight", { shape = { 40, 70 } }), watch) end
      return loss
    end)
  end

  local function sgd() return flow.optimizer.SGD(0.1, { momentum = 0 }) end

  -- Weight and bias after three steps of `optimize`.
  local function trained(optimize, watch)
    flow.clear_default_session()
    flow.set_seed(3)
    np.random.seed(4)
    local job = define("train", optimize, watch)
    for _ = 1, 3 do
      job(np.random.uniform(-1, 1, { 12, 70 }):astype(flow.float), np.random.randint(0, 40, { 12 }):astype(flow.int32))
    end
    local handle = session.handle()
    return handle:read("layer-weight"), handle:read("layer-bias"), job:summary { plan = true }
  end

  local function distance(a, b)
    local largest = 0
    for i, row in ipairs(a:totable()) do
      for j, value in ipairs(row) do largest = math.max(largest, math.abs(value - b:at(i - 1, j - 1))) end
    end
    return largest
  end

  it("learns the same whether its gradient is watched or not", function()
    local weight, bias, plan = trained(sgd)
    assert.truthy(plan:find("matmul_sgd_update", 1, true)
      or plan:find("dense_sgd_update", 1, true))  -- on a card one step updates all
    local gradients = 0
    local watched, watched_bias, watched_plan = trained(sgd, function(gradient)
      assert.equal(40, gradient.shape[0])
      gradients = gradients + 1
    end)
    assert.equal(3, gradients)
    assert.falsy(watched_plan:find("matmul_sgd_update", 1, true))
    assert.truthy(distance(weight, watched) < 1e-6)  -- steps of 0.1 times sums of 12 float32
    for unit = 0, 39 do assert.truthy(math.abs(bias:at(unit) - watched_bias:at(unit)) < 1e-6) end
  end)

  it("is stored for an optimizer that keeps something of it", function()
    local _, _, plan = trained(function() return flow.optimizer.Adam(0.1) end)
    assert.falsy(plan:find("matmul_sgd_update", 1, true))
  end)

  it("is seen in its newest form by a job that predicts", function()
    flow.clear_default_session()
    local learn, predict = define("train", sgd), define("predict")
    local x, labels = np.ones({ 12, 70 }), np.zeros({ 12 }, flow.int32)
    for _ = 1, 3 do
      learn(x, labels)
      local weight = session.handle():read("layer-weight"):totable()
      local bias = session.handle():read("layer-bias"):totable()
      local logits = predict(x, labels)
      for unit = 1, 40 do
        local sum = bias[unit]
        for i = 1, 70 do sum = sum + weight[unit][i] end
        assert.truthy(math.abs(logits:at(11, unit - 1) - sum) < 1e-5)
      end
    end
  end)
end)

it("a schedule says its rates", function()
  local plain = flow.optimizer.CosineScheduler(0.5, 10)
  assert.near(0.5, plain:at(0), 1e-7)
  assert.near(0.25, plain:at(5), 1e-7)
  assert.near(0, plain:at(10), 1e-7)
  local warm = flow.optimizer.PiecewiseConstantScheduler({ 100 }, { 1, 0.1 }, {
    warmup = flow.optimizer.warmup.linear(10, 0) })
  assert.near(0.5, warm:at(5), 1e-6)
  assert.near(1, warm:at(50), 1e-7)
  assert.near(0.1, warm:at(101), 1e-7)
end)
