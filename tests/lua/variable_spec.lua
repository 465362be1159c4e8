-- Variables that are assigned, chosen and forgotten: what is gone with them, and what goes on.
local checks = require "checks"
local flow = require "moonflow"

local np, tp = flow.np, flow.typing

-- Jobs of a net that is trained with Adam, of so many units.
local function define(name, units)
  local function body(x)
    local hidden = flow.layers.dense(x, units, { name = name .. "-hidden" })
    return flow.layers.dense(hidden, 1, { name = name .. "-out" })
  end
  local inputs = { x = tp.Numpy.Placeholder({ 2, 3 }) }
  local predict = flow.global_function { name = name, inputs = inputs, returns = tp.Numpy } (body)
  local train = flow.global_function {
    name = name .. "-train", type = "train", inputs = inputs, returns = tp.Numpy,
  } (function(x)
    local loss = flow.math.reduce_mean(flow.math.square(body(x) - 1))
    flow.optimizer.Adam(0.01):minimize(loss)
    return loss
  end)
  return predict, train
end

local batch = np.linspace(-1, 1, 6):reshape(2, 3)

local function names()
  local list = {}
  for name in pairs(flow.get_all_variables()) do list[#list + 1] = name end
  table.sort(list)
  return list
end

describe("flow.get_variable", function()
  before_each(flow.clear_default_session)

  local T = tp.Numpy.Placeholder({ 1 })
  local function first_job(options)
    flow.global_function { name = "first", inputs = { x = T }, returns = tp.Numpy } (function(x)
      return x * flow.get_variable("w", options)
    end)
  end

  it("of a name alone trains as the job said that has made it", function()
    first_job { shape = { 1 }, initializer = flow.ones_initializer(), regularizer = flow.regularizers.l2(10) }
    local train = flow.global_function { name = "train", type = "train", inputs = { x = T }, returns = tp.Numpy } (
      function(x)
        flow.get_variable("w")
        local w = flow.get_variable("w")
        flow.optimizer.SGD(0.01, { momentum = 0 }):minimize(x * w)
        return w + 0
      end)
    train(np.zeros { 1 })
    assert.near(0.9, flow.get_all_variables().w:item(), 1e-6)
    flow.clear_default_session()
    first_job { shape = { 1 }, initializer = flow.ones_initializer(), model_name = "bias" }
    local config = flow.function_config()
    config.train:primary_lr(0)
    config.train:secondary_lr(0.5)
    local legacy = flow.global_function { name = "train", inputs = { x = T }, returns = tp.None,
                                          function_config = config } (function(x)
      flow.losses.add_loss(x * flow.get_variable("w"))
    end)
    legacy(np.ones { 1 })
    assert.equal(0.5, flow.get_all_variables().w:item())
  end)

  it("refuses to begin or to train one variable of a job in two ways", function()
    local made = { shape = { 2 }, initializer = flow.constant_initializer(np.array { 1, 2 }) }
    local function twice(more)
      return function()
        local second = { shape = { 2 } }
        for key, value in pairs(more) do second[key] = value end
        flow.global_function { inputs = { x = T }, returns = tp.Numpy } (function(x)
          return x * flow.get_variable("w", made) + flow.get_variable("w", second)
        end)
      end
    end
    twice({ initializer = flow.constant_initializer(np.array { 1, 2 }), trainable = true })()
    checks.refuses("variable 'w' has initializer = constant(an ndarray float32 (2)) since ",
      twice { initializer = flow.constant_initializer(np.array { 1, 3 }) })
    checks.refuses("and is so for the whole job; this asks for initializer = constant(0)",
      twice { initializer = flow.zeros_initializer() })
    checks.refuses("has no regularizer since ", twice { regularizer = flow.regularizers.l2(1) })
    checks.refuses("has no random_seed since ", twice { random_seed = 4 })
    checks.refuses("has no model_name = bias since ", twice { model_name = "bias" })
    checks.refuses("is trainable since ", twice { trainable = false })
  end)
end)

describe("flow.trainable_variables", function()
  before_each(flow.clear_default_session)

  local function named_in(body)
    local list
    flow.global_function { type = "train", inputs = { x = tp.Numpy.Placeholder({ 2, 3 }) }, returns = tp.Numpy } (
      function(x)
        list = body(x)
        local loss = flow.math.reduce_mean(flow.layers.dense(x, 1, { name = "last" }) ^ 2)
        flow.optimizer.SGD(0.1):minimize(loss)
        return loss
      end)
    for i, value in ipairs(list) do list[i] = value.name end
    return list
  end
  local function net(x)
    flow.get_variable("kept", { shape = { 2 }, trainable = false, initializer = flow.zeros_initializer() })
    flow.get_variable("whole", { shape = { 2 }, dtype = flow.int32, initializer = flow.zeros_initializer() })
    flow.scope.namespace("deep", function() flow.layers.dense(x, 2, { name = "b" }) end)
    flow.layers.dense(x, 2, { name = "a" })
  end

  it("are those that an optimizer would train, in the order they came up in", function()
    assert.same({ "deep-b-weight", "deep-b-bias", "a-weight", "a-bias" }, named_in(function(x)
      net(x)
      return flow.trainable_variables()
    end))
    assert.same({}, named_in(function() return flow.trainable_variables() end))
  end)

  it("are chosen by their names, layers and namespaces", function()
    for choice, expected in pairs {
      deep = { "deep-b-weight", "deep-b-bias" }, ["deep-b"] = { "deep-b-weight", "deep-b-bias" },
      ["a-bias"] = { "a-bias" },
    } do
      assert.same(expected, named_in(function(x) net(x) return flow.trainable_variables(choice) end))
    end
    assert.same({ "deep-b-weight", "deep-b-bias", "a-bias" }, named_in(function(x)
      net(x)
      return flow.trainable_variables { "a-bias", "deep" }
    end))
  end)

  it("says what it does not know", function()
    local function told(...)
      local fine, problem = pcall(...)
      assert.is_false(fine)
      return tostring(problem)
    end
    local outside = told(flow.trainable_variables)
    assert.truthy(outside:find("flow.trainable_variables is used outside of a job function", 1, true), outside)
    local function chosen(choice)
      return told(named_in, function(x) net(x) return flow.trainable_variables(choice) end)
    end
    local near = chosen("dep")
    assert.truthy(near:find("has no trainable variable 'dep', and none in a layer or namespace of this name, behind "
      .. "which a name goes on with '-', '.' or '/'; did you mean 'deep'?", 1, true), near)
    local empty, number = chosen {}, chosen { 5 }
    assert.truthy(empty:find("flow.trainable_variables: names must name at least one variable", 1, true), empty)
    assert.truthy(number:find("flow.trainable_variables: names must be a list of names, entry 1 is 5", 1, true), number)
  end)

  it("make steps of one's own: those of SGD with momentum", function()
    local function momentum(loss, rate, beta)
      local weights = flow.trainable_variables()
      for i, gradient in ipairs(flow.gradients(loss, weights)) do
        local speed = flow.get_variable(weights[i].name .. "-speed", {
          shape = weights[i].shape, trainable = false, initializer = flow.zeros_initializer() })
        local new = beta * speed - rate * gradient
        flow.assign(speed, new)
        flow.assign(weights[i], weights[i] + new)
      end
    end
    local trained = {}
    for i, step in ipairs {
      function(loss) momentum(loss, 0.125, 0.5) end,
      function(loss) flow.optimizer.SGD(0.125, { momentum = 0.5 }):minimize(loss) end,
    } do
      flow.clear_default_session()
      flow.set_seed(3)
      local job = flow.global_function {
        type = "train", inputs = { x = tp.Numpy.Placeholder({ 2, 3 }) }, returns = tp.None,
      } (function(x)
        local hidden = flow.layers.dense(x, 4, { name = "hidden", activation = flow.math.tanh })
        step(flow.math.reduce_sum((flow.layers.dense(hidden, 1, { name = "out" }) - 1) ^ 2))
      end)
      for _ = 1, 5 do job(batch) end
      trained[i] = flow.get_all_variables()
    end
    for _, name in ipairs { "hidden-weight", "hidden-bias", "out-weight", "out-bias" } do
      assert.is_true(np.allclose(trained[1][name], trained[2][name], { rtol = 1e-6, atol = 1e-7 }), name)
    end
  end)
end)

describe("what a job assigns", function()
  before_each(function() flow.clear_default_session() end)

  -- The variables "a", "b" and "c", which begin at 1, 2 and 4, after the steps of a body that gets them.
  local function after(body, dtype)
    flow.global_function { returns = tp.None } (function()
      local function one(name, start)
        return flow.get_variable(name, {
          shape = { 3 }, dtype = dtype, initializer = flow.constant_initializer(start) })
      end
      body(one("a", 1), one("b", 2), one("c", 4))
    end)()
    local values = {}
    for name, variable in pairs(flow.get_all_variables()) do values[name] = variable:numpy():totable()[1] end
    return values
  end

  it("is from before the run, where variables are exchanged or go round", function()
    assert.same({ a = 2, b = 1, c = 4 }, after(function(a, b, c)
      flow.assign(a, b)
      flow.assign(b, a)
      flow.assign(c, c)
    end))
    flow.clear_default_session()
    assert.same({ a = 2, b = 4, c = 1 }, after(function(a, b, c)
      flow.assign(a, flow.identity(b))
      flow.assign(b, c)
      flow.assign(c, flow.reshape(a, { 3 }))
    end, flow.int64))
    flow.clear_default_session()
    assert.same({ a = 3, b = 3, c = 8 }, after(function(a, b, c)
      flow.assign_add(a, b)
      flow.assign_add(b, a)
      flow.assign_add(c, c)
    end))
  end)

  it("is from before the run, where a variable is added to twice", function()
    assert.same({ a = 4, b = 2 }, after(function(a, b)
      flow.assign_add(a, b)
      flow.assign_add(a, a)
      flow.assign(b, b)
    end))
  end)
end)

describe("flow.forget_variables", function()
  before_each(flow.clear_default_session)

  it("forgets what a body has asked for and computed nothing with", function()
    local function ask(name, size, and_use)
      return flow.global_function { name = name, returns = tp.Numpy } (function()
        local w = flow.get_variable("unused", { size }, { initializer = flow.ones_initializer() })
        return and_use and w or flow.zeros { 1 }
      end)
    end
    ask("first", 2)
    checks.raises("shape_mismatch", 'flow.forget_variables("unused") before the definition', ask, "second", 3, true)
    assert.equal(1, flow.forget_variables("unused"))
    assert.same({ 3 }, ask("second", 3, true)().shape:table())
    assert.equal(1, flow.forget_variables("unused"))
  end)

  it("takes as many names as there are", function()
    local many = {}
    for i = 1, 20000 do many[i] = "w" .. i end
    checks.raises("not_found", "flow.forget_variables: there is no variable 'w1'", flow.forget_variables, many)
    assert.truthy(flow.optimizer.AdamW(0.1, { variables = many, weight_decay = 0.1, weight_decay_includes = many }))
  end)

  it("is named by what was forgotten, and not by what the optimizer or the job keeps beside it", function()
    local train = flow.global_function { name = "j", type = "train" } (function()
      local w = flow.get_variable("w", { shape = { 2 }, initializer = flow.ones_initializer() })
      flow.optimizer.Adam(0.1):minimize(flow.math.reduce_sum(w))
    end)
    train()
    assert.equal(1, flow.forget_variables("w"))
    checks.raises("wrong_state", "computes with the variable 'w', which has been forgotten", train)
  end)

  it("lets a job be defined again with other sizes, and leaves the rest as it is", function()
    local old, train = define("net", 4)
    for _ = 1, 3 do train(batch) end
    local before = flow.get_all_variables()
    local steps, count = before["System-Train-TrainStep-net-train"]:item(), #names()
    assert.equal(3, steps)
    assert.equal(2, flow.forget_variables("net-hidden"))
    assert.equal(count - 2 * 3, #names())  -- with both moments of each
    for _, job in ipairs { old, train } do
      local fine, problem = pcall(job, batch)
      assert.is_false(fine)
      assert.equal("wrong_state", problem.code)
      assert.truthy(tostring(problem):find("computes with the variable 'net-hidden-", 1, true), tostring(problem))
      assert.truthy(tostring(problem):find("which has been forgotten; define it again", 1, true), tostring(problem))
      assert.has_error(function() job:prepare() end)
      assert.has_error(function() job:watch("net-out", print) end)
    end
    assert.equal(1, flow.forget_variables("net-out-weight"))
    old, train = define("net", 5)
    assert.same({ 2, 1 }, old(batch).shape:table())
    local said = {}
    flow.config.log(function(line) said[#said + 1] = line end)
    train(batch)
    flow.config.log(nil)
    assert.truthy(said[1]:find("begin at 0 while the steps of 'net-train' go on from 3", 1, true))
    local now = flow.get_all_variables()
    assert.same({ 5, 3 }, now["net-hidden-weight"].shape:table())
    assert.equal(4, now["System-Train-TrainStep-net-train"]:item())
    assert.equal(count, #names())
  end)

  it("takes layers, namespaces and lists, and all memory of a model with its steps", function()
    local empty = flow.memory().variables
    define("a", 4)
    local other, train = define("b", 4)
    train(batch)
    local bytes, value = flow.memory().variables, other(batch):totable()
    local first_half = #names()
    local _, train_a = define("a", 4)
    train_a(batch)
    assert.equal(4, flow.forget_variables("a"))
    assert.same(value, other(batch):totable())
    assert.equal(4, flow.forget_variables { "b-out", "b-hidden" })
    assert.same({}, names())
    assert.equal(empty, flow.memory().variables)
    assert.is_true(bytes > empty and first_half > 0)
  end)

  it("leaves weights to what was prepared", function()
    local job = define("net", 4)
    local act = job:prepare()
    local value = act(batch):totable()
    flow.forget_variables("net")
    assert.same(value, act(batch):totable())
    local fine, problem = pcall(act.publish, act)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("has been forgotten; prepare it again", 1, true), tostring(problem))
    job = define("net", 6)
    job(batch)
    assert.equal(0, flow.publish())
    assert.same(value, act(batch):totable())
    act = job:prepare()
    assert.equal(1, flow.publish())
    assert.is_true(np.allclose(job(batch), act(batch), 1e-5))
  end)

  it("waits for runs that are under way", function()
    define("net", 4)
    local later = flow.global_function {
      name = "later", inputs = { x = tp.Numpy.Placeholder({ 2, 3 }) }, returns = tp.Callback[tp.Numpy],
    } (function(x) return flow.layers.dense(x, 4, { name = "net-hidden" }) end)
    local count = 0
    for _ = 1, 10 do later(batch)(function() count = count + 1 end) end
    flow.forget_variables("net")
    flow.sync()
    assert.equal(10, count)
  end)

  it("says what there is not, and where it does not belong", function()
    define("net", 4)
    local function problem_of(...)
      local fine, problem = pcall(flow.forget_variables, ...)
      assert.is_false(fine)
      return tostring(problem)
    end
    assert.truthy(problem_of("net-hiden"):find("there is no variable 'net-hiden', and none in a layer or namespace of "
      .. "this name; did you mean 'net-hidden'?", 1, true))
    assert.truthy(problem_of({ "net", 7 }):find("entry 2 is 7", 1, true))
    assert.truthy(problem_of({ "net", "other" }):find("'other'", 1, true))
    assert.equal(4, flow.forget_variables("net"))
    assert.truthy(problem_of("net"):find("there is no variable 'net'", 1, true))
    assert.truthy(problem_of():find("names", 1, true))
    local fine, problem = pcall(flow.global_function { name = "inside", inputs = { x = tp.Numpy.Placeholder({ 2 }) } },
      function(x)
        flow.forget_variables("net")
        return x
      end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("the body of the job 'inside' is under way", 1, true), tostring(problem))
  end)
end)
