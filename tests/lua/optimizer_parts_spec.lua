-- Which variables an optimizer trains, several optimizers of one job, and what training as a whole keeps to.
local flow = require "moonflow"
local session = require "moonflow.session"
local np, tp = flow.np, flow.typing

before_each(function() flow.clear_default_session() end)

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

  it("trains what is in a namespace by the names of other systems", function()
    local function moved_by(variables)
      flow.clear_default_session()
      local tuned = flow.global_function { type = "train", returns = tp.None } (function()
        local sum = 0
        for _, name in ipairs { "lora.a", "lora/b", "lora2.a", "lora_a" } do
          sum = sum + flow.get_variable(name, { shape = { 1 }, initializer = flow.zeros_initializer() })
        end
        flow.optimizer.SGD { lr_scheduler = 1, variables = variables }:minimize(sum)
      end)
      tuned()
      local moved = {}
      for name, value in pairs(flow.get_all_variables { slots = false }) do
        if np.abs(value):sum() > 0 then moved[#moved + 1] = name end
      end
      table.sort(moved)
      return moved
    end
    assert.same({ "lora.a", "lora/b" }, moved_by("lora"))
    assert.same({ "lora.a" }, moved_by("lora.a"))
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
      assert.truthy(problem.where:find("optimizer_parts_spec.lua:", 1, true))
    end
    fails("flow.optimizer.SGD: the job 'train' has no trainable variable 'maker-weigth', and none in a layer or "
      .. "namespace of this name, behind which a name goes on with '-', '.' or '/'; did you mean 'maker-weight'?",
      { "maker-weigth" }, "train")
    fails("'.' or '/'; did you mean 'maker'?", { "makre" }, "train")
    fails("'.' or '/'; it has 'maker-weight'", { "lora" }, "train")
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

  it("leaves what no part names, and says so", function()
    local lines = {}
    flow.config.log(function(line) lines[#lines + 1] = line end)
    finally(function() flow.config.log(nil) end)
    check_moves({ -0.5, -0.5, -1, 0 }, function()
      return o.CombinedOptimizer { body {}, o.SGD(1, { momentum = 0, variables = "head-a" }) }
    end)
    assert.equal(1, #lines)
    assert.truthy(lines[1]:find("^moonflow: .*optimizer_parts_spec.lua:%d+: flow.optimizer.CombinedOptimizer: none of "
      .. "its optimizers trains head%-b. Where this job is not to leave that as it is, one without 'variables' "
      .. "trains all others$"), lines[1])
    step(function() return o.CombinedOptimizer { body {}, o.SGD(1) } end)
    step(function() return body {} end)
    assert.equal(1, #lines)
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

  it("clips the gradients of all together, or of each part", function()
    local norm, value = o.grad_clipping.by_global_norm(1), o.grad_clipping.by_value(0.25)
    local function head(options)
      options.momentum = 0
      return o.SGD(0.125, options)
    end
    -- Each of the four gradients is 1: their length is 2, and that of the body's two the root of 2. Each step goes on
    -- from the last.
    check_moves({ -0.25, -0.25, -0.0625, -0.0625 }, function()
      return o.CombinedOptimizer({ body {}, head {} }, { grad_clipping = norm })
    end)
    check_moves({ -0.375, -0.375, -0.09375, -0.09375 }, function()
      return o.CombinedOptimizer({ body {}, head {} }, { grad_clipping = value, loss_scale_factor = 8 })
    end)
    local body_at = -0.375 - 0.5 * math.sqrt(0.5)
    check_moves({ body_at, body_at, -0.125, -0.125 }, function()
      return o.CombinedOptimizer { body { grad_clipping = norm }, head { grad_clipping = value } }
    end)
    local own = o.grad_clipping.by_norm(0.5)  -- of each of the four
    body_at = body_at - 0.25
    check_moves({ body_at, body_at, -0.1875, -0.1875 }, function()
      return o.CombinedOptimizer({ body {}, head {} }, { grad_clipping = own })
    end)
  end)

  it("says what does not fit together", function()
    local function fails(pattern, make)
      flow.clear_default_session()
      local fine, problem = pcall(step, make)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find(pattern, 1, true), tostring(problem))
      assert.truthy(problem.where:find("optimizer_parts_spec.lua:", 1, true))
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
    fails("entry 2 of the optimizers has a grad_clipping of its own, beside that of all together; leave one out",
      function()
        local clips = { grad_clipping = o.grad_clipping.by_value(1) }
        return o.CombinedOptimizer({ body {}, o.SGD(0.1, clips) }, clips)
      end)
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

describe("training", function()
  it("of many variables is defined in a time that grows as they do", function()
    if os.getenv("MOONFLOW_TEST_PLACEMENT") then
      return pending("a simulated card looks at all of its memory each time that it is given some")
    end
    local function seconds(count)
      flow.clear_default_session()
      local start = os.clock()
      flow.global_function { name = "train", type = "train", returns = tp.None } (function()
        local product = 1
        for i = 1, count do
          product = product * flow.get_variable("w" .. i, { shape = { 8 }, initializer = flow.ones_initializer() })
        end
        flow.optimizer.SGD(0.001):minimize(product)
      end)
      return os.clock() - start
    end
    seconds(500)  -- what is made once
    -- Eight times as many take about eight times as long, and took forty times as long where each update looked at all.
    assert.is_true(seconds(4000) < 20 * seconds(500))
  end)

  it("adds what a regularizer asks for, also to the gradient of a loss of one number", function()
    local job = flow.global_function { name = "train", type = "train", returns = tp.None } (function()
      local w = flow.get_variable("w", { shape = { 2 }, initializer = flow.constant_initializer(2),
                                         regularizer = flow.regularizers.l2(0.5) })
      flow.optimizer.SGD(0.1, { momentum = 0 }):minimize(flow.math.reduce_sum(w))
    end)
    job()
    assert.near(2 - 0.1 * (1 + 0.5 * 2), flow.get_all_variables().w[0], 1e-6)
  end)

  it("adds what the optimizer's regularizer asks for, but of a variable that has its own", function()
    local job = flow.global_function { name = "train", type = "train", returns = tp.None } (function()
      local function variable(name, regularizer)
        return flow.get_variable(name, { shape = { 2 }, initializer = flow.constant_initializer(2),
                                         regularizer = regularizer })
      end
      local sum = flow.math.reduce_sum(variable("w") + variable("b", flow.regularizers.l2(0)))
      flow.optimizer.SGD(0.1, { momentum = 0, regularizer = flow.regularizers.l2(0.5) }):minimize(sum)
    end)
    job()
    assert.near(2 - 0.1 * (1 + 0.5 * 2), flow.get_all_variables().w[0], 1e-6)
    assert.near(2 - 0.1, flow.get_all_variables().b[0], 1e-6)
  end)

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

describe("an l1 regularizer", function()
  it("pulls at each element where the loss is one of several numbers", function()
    local rate = flow.optimizer.PiecewiseConstantScheduler({}, { 1 })
    local inputs = { x = tp.Numpy.Placeholder({ 2 }) }
    flow.global_function { type = "train", inputs = inputs, returns = tp.None } (function(x)
      local w = flow.get_variable("w", { shape = { 2 }, initializer = flow.constant_initializer(2),
                                         regularizer = flow.regularizers.l1(0.5) })
      flow.optimizer.SGD(rate, { momentum = 0 }):minimize(flow.math.reduce_sum(w * x))
    end)(np.array { 0, 1 })
    assert.is_true(flow.get_all_variables().w == np.array { 1.5, 0.5 })
  end)
end)
