-- Job functions: definition, calls, results, variables, what is collected.
local checks = require "checks"
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

local function vector(...)
  return np.array({ ... }, flow.float)
end

before_each(function()
  flow.clear_default_session()
  flow.set_seed(7)
end)

describe("a synchronous job", function()
  it("gives the one value it is declared to give", function()
    local T = tp.Numpy.Placeholder({ 3 })
    local double = flow.global_function { inputs = { x = T }, returns = tp.Numpy } (function(x) return x * 2 end)
    local y = double(vector(1, 2, 3))
    assert.is_true(y == vector(2, 4, 6))
    assert.is_true(double(vector(0, 0, 1)) == vector(0, 0, 2))
    assert.is_true(y == vector(2, 4, 6)) -- a later run leaves earlier results alone
  end)

  it("gives several values as Lua values", function()
    local both = flow.global_function {
      inputs = { x = tp.Numpy.Placeholder({ 2 }) },
      returns = tp.Tuple { tp.Numpy, tp.Numpy, tp.Numpy },
    } (function(x) return x, x + 1, x - 1 end)
    local a, b, c = both(vector(1, 2))
    assert.is_true(a == vector(1, 2))
    assert.is_true(b == vector(2, 3))
    assert.is_true(c == vector(0, 1))
    assert.equal(3, select("#", both(vector(1, 2))))
  end)

  it("gives named values as a table", function()
    local job = flow.global_function {
      inputs = { x = tp.Numpy.Placeholder({ 2 }) },
      returns = tp.Dict { double = tp.Numpy, parts = tp.List[tp.Numpy] },
    } (function(x) return { double = x * 2, parts = { x, -x } } end)
    local result = job(vector(1, 2))
    assert.is_true(result.double == vector(2, 4))
    assert.equal(2, #result.parts)
    assert.is_true(result.parts[2] == vector(-1, -2))
  end)

  it("may be called by the names of its inputs", function()
    local T = tp.Numpy.Placeholder({ 2 })
    local job = flow.global_function { inputs = { left = T, right = T }, returns = tp.Numpy } (function(left, right)
      return left - right
    end)
    assert.is_true(job { right = vector(1, 2), left = vector(5, 5) } == vector(4, 3))
  end)

  it("gives nothing when declared so, and has delivered its watches", function()
    local seen
    local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 1 }) }, returns = tp.None } (function(x)
      flow.watch(x + 1, function(y) seen = y[0] end)
    end)
    assert.equal(0, select("#", job(vector(4))))
    assert.equal(5, seen)
    assert.equal(0, flow.in_flight())
  end)

  it("may give an input, a variable and one value twice", function()
    local job = flow.global_function {
      inputs = { x = tp.Numpy.Placeholder({ 1 }) }, returns = tp.Tuple { tp.Numpy, tp.Numpy, tp.Numpy },
    } (function(x)
      local w = flow.get_variable("w", { shape = { 2 }, initializer = flow.constant_initializer(2.5) })
      return x, w, x
    end)
    local a, w, b = job(vector(3))
    assert.is_true(a == b)
    assert.is_true(w == vector(2.5, 2.5))
  end)

  it("takes no inputs at all", function()
    local job = flow.global_function({ returns = tp.Numpy }, function()
      return flow.constant(4, flow.float, { 2 })
    end)
    assert.is_true(job() == vector(4, 4))
  end)
end)

describe("the definition", function()
  local T = tp.Numpy.Placeholder({ 1 })

  it("takes the order of inputs from the parameters", function()
    local job = flow.global_function { inputs = { b = T, a = T }, returns = tp.Numpy } (function(a, b) return a - b end)
    assert.equal(2, job(vector(5), vector(3))[0])
  end)

  it("takes inputs in order, also for stripped bytecode", function()
    local source = "local flow = ... return function(x, y) return x - y end"
    local body = loadstring(string.dump(loadstring(source), true))(flow)
    local job = flow.global_function { inputs = { { "x", T }, { "y", T } }, returns = tp.Numpy } (body)
    assert.equal(2, job(vector(5), vector(3))[0])
    local fine, problem = pcall(flow.global_function { inputs = { x = T, y = T }, returns = tp.Numpy }, body)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("give inputs in order", 1, true))
  end)

  it("needs no line of a script, as where a coroutine begins or all is stripped", function()
    local decorator = coroutine.wrap(flow.global_function) { name = "j", inputs = { x = T }, returns = tp.Numpy }
    assert.equal(4, decorator(function(x) return x + 1 end)(vector(3))[0])
    assert.truthy(tostring(decorator):find("global_function at ?", 1, true))
  end)

  it("is named after the variable it is assigned to", function()
    local my_job = flow.global_function { inputs = { x = T }, returns = tp.Numpy } (function(x) return x end)
    assert.equal("my_job", my_job.name)
    local named = flow.global_function { name = "other", inputs = { x = T }, returns = tp.Numpy } (function(x)
      return x + 1
    end)
    assert.equal("other(x: float32[1]) -> Numpy  [predict, 1 op]", tostring(named))
  end)

  it("shows what it is made of", function()
    local input = tp.Numpy.Placeholder({ 4, 3 })
    local job = flow.global_function { inputs = { x = input }, returns = tp.Numpy } (function(x)
      return flow.layers.dense(x, 5, { name = "out", activation = flow.nn.relu })
    end)
    local text = job:summary()
    assert.truthy(text:find("job(x: float32[4,3]) -> Numpy  [predict, 3 ops]", 1, true))
    assert.truthy(text:find("out%-matmul%s+matmul%s+float32 %(4, 5%)%s+15%s+%S*job_spec.lua:%d+"))
    assert.truthy(text:find("out%-activation%s+relu"))
    assert.truthy(text:find("parameters: 20", 1, true))
    local train = flow.global_function { type = "train", inputs = { x = input }, returns = tp.Numpy } (function(x)
      local y = flow.nn.dropout(x * flow.get_variable("w", { 3 }, { initializer = flow.ones_initializer() }), 0.5)
      y = flow.layers.dense(y, 2000, { name = "still", trainable = false })
      flow.optimizer.SGD(0.1):minimize(y)
      return y
    end)
    text = train:summary()
    assert.truthy(text:find("parameters: 8,003, of them 8,000 frozen", 1, true))
    assert.truthy(text:find("Dropout_0%s+dropout%s+float32 %(4, 3%)")) -- not its mask
    assert.is_nil(text:find("sgd_update", 1, true)) -- what the optimizer appends is not the user's
    assert.truthy(#job:dump() > 0)
  end)

  it("computes once what the body says twice, but draws once for each name", function()
    local input, seen = tp.Numpy.Placeholder({ 40, 3 }), {}
    local job = flow.global_function {
      type = "train", inputs = { x = input }, returns = tp.Tuple { tp.Numpy, tp.Numpy, tp.Numpy },
    } (function(x)
      local function hidden()
        return flow.scope.reuse_variables(function()
          return flow.layers.dense(x, 64, { name = "hidden", activation = flow.math.tanh })
        end)
      end
      local first, second = hidden(), hidden()
      flow.watch(second, function(value) seen.second = value end)
      local a, b = flow.nn.dropout(first, { rate = 0.5 }), flow.nn.dropout(second, { rate = 0.5 })
      flow.optimizer.SGD(0.1):minimize(a + b)
      return first, a, b
    end)
    local first, a, b = job(np.random.uniform(-1, 1, { 40, 3 }))
    assert.is_true(first == seen.second)
    assert.is_false(a == b)
    local text = job:summary { plan = true }
    assert.truthy(text:find(" steps, 3 ops computed with equal ones, the last", 1, true))
    assert.is_nil(text:find("'hidden-activation-1'", 1, true))
  end)

  it("numbers the ops of a net that is made again, past names that are taken", function()
    local names = {}
    flow.global_function { inputs = { x = T }, returns = tp.Numpy } (function(x)
      return flow.scope.reuse_variables(function()
        for _, name in ipairs { "y", "y-2", "y", "y", "y", "y-2" } do
          x = flow.math.tanh(x, { name = name })
          names[#names + 1] = x.name
        end
        return x
      end)
    end)
    assert.same({ "y", "y-2", "y-1", "y-3", "y-4", "y-2-1" }, names)
  end)

  it("may happen at any time, again under the same name, and in a handler", function()
    local function make(k)
      return flow.global_function { name = "f", inputs = { x = T }, returns = tp.Numpy } (function(x) return x * k end)
    end
    local a = make(2)
    assert.equal(6, a(vector(3))[0])
    local b = make(5)
    assert.equal(15, b(vector(3))[0])
    assert.equal(6, a(vector(3))[0])
    local inner
    local outer = flow.global_function { inputs = { x = T }, returns = tp.None } (function(x)
      flow.watch(x, function(y) inner = make(y[0]) end)
    end)
    outer(vector(7))
    assert.equal(14, inner(vector(2))[0])
  end)

  it("leaves no trace behind when the body raises", function()
    local spec = { inputs = { x = T }, returns = tp.Numpy }
    local fine = pcall(flow.global_function(spec), function(x)
      return flow.scope.namespace("a", function() return x + nil end)
    end)
    assert.is_false(fine)
    assert.is_nil(debug.gethook())
    assert.has_error(function() flow.nn.relu(1) end)
    local job = flow.global_function(spec, function(x) return x + 1 end)
    assert.equal(2, job(vector(1))[0])
  end)

  it("gives up a body that yields", function()
    local spec = { inputs = { x = T }, returns = tp.Numpy }
    local sleeper = coroutine.create(function()
      return flow.global_function(spec, function(x)
        coroutine.yield()
        return x
      end)
    end)
    assert.is_true(coroutine.resume(sleeper))
    local job = flow.global_function(spec, function(x) return x + 1 end)
    assert.equal(2, job(vector(1))[0])
    assert.is_nil(debug.gethook())
    local fine, problem = coroutine.resume(sleeper)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("has yielded", 1, true))
  end)

  it("keeps and puts back a hook of the user", function()
    local lines = 0
    local function hook() lines = lines + 1 end
    debug.sethook(hook, "l")
    flow.global_function({ inputs = { x = T }, returns = tp.Numpy }, function(x)
      local y = x + 1
      return y
    end)
    local kept = debug.gethook()
    debug.sethook()
    assert.equal(hook, kept)
    assert.truthy(lines > 2)
  end)
end)

describe("variables", function()
  it("are shared by name between jobs", function()
    local function weights() return flow.get_variable("w", { 2 }, { initializer = flow.zeros_initializer() }) end
    local add = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.None } (function(x)
      flow.assign(weights(), weights() + x)
    end)
    local read = flow.global_function { returns = tp.Numpy } (function() return weights() end)
    assert.is_true(read() == vector(0, 0))
    add(vector(1, 2))
    add(vector(1, 2))
    assert.is_true(read() == vector(2, 4))
  end)

  it("start from the seed: alike in every session, each with its own numbers", function()
    local function start(name)
      local job = flow.global_function { returns = tp.Numpy } (function()
        return flow.get_variable(name, { shape = { 4 }, initializer = flow.random_normal_initializer() })
      end)
      return job()
    end
    local a, b = start("a"), start("b")
    assert.is_false(a == b)
    flow.clear_default_session()
    assert.is_true(start("a") == a)
    flow.clear_default_session()
    flow.set_seed(8)
    assert.is_false(start("a") == a)
  end)

  it("keep to their own seed, when they have one", function()
    local function start()
      local job = flow.global_function { returns = tp.Numpy } (function()
        local init = flow.random_normal_initializer()
        return flow.get_variable("a", { shape = { 4 }, initializer = init, random_seed = 3 })
      end)
      return job()
    end
    local a = start()
    flow.clear_default_session()
    flow.set_seed(100)
    assert.is_true(start() == a)
  end)

  it("are had once per job, again by name", function()
    local job = flow.global_function { returns = tp.Numpy } (function()
      local a = flow.get_variable("a", { shape = { 1 }, initializer = flow.constant_initializer(3) })
      assert.equal(a, flow.get_variable("a", { shape = { 1 } }))
      return a
    end)
    assert.equal(3, job()[0])
  end)

  it("are had by name alone where a job before has made them", function()
    local T = tp.Numpy.Placeholder({ 1, 3 })
    local train = flow.global_function { type = "train", inputs = { x = T }, returns = tp.Numpy } (function(x)
      local y = flow.layers.dense(x, 2, { name = "out" }) * flow.get_variable("scale", { shape = { 1 },
        dtype = flow.float, trainable = false, initializer = flow.constant_initializer(4) })
      flow.optimizer.SGD(0.1):minimize(y)
      return y
    end)
    train(np.ones({ 1, 3 }))
    local job = flow.global_function { type = "train", returns = tp.Numpy } (function()
      local weight, scale = flow.get_variable("out-weight"), flow.get_variable("scale")
      assert.same({ 2, 3 }, weight.shape:table())
      assert.equal(weight, flow.get_variable("out-weight"))
      flow.optimizer.SGD(1, { momentum = 0 }):minimize(flow.math.reduce_sum(weight) * scale)
      return weight
    end)
    local before = job()
    local all = flow.get_all_variables()
    assert.is_true(np.allclose(all["out-weight"], before - 4))
    assert.is_true(all.scale == vector(4))  -- it stays one that is not trained
  end)

  it("take dtype and initialiser from the job's configuration", function()
    local job = flow.global_function {
      function_config = { default_data_type = flow.double, default_initializer = flow.constant_initializer(2) },
      returns = tp.Numpy,
    } (function() return flow.get_variable("a", { 2 }) end)
    assert.equal("float64", job().dtype)
    assert.equal(2, job()[1])
  end)
end)

describe("an untyped job", function()
  it("gives a future", function()
    local job = flow.global_function { inputs = { x = flow.FixedTensorDef({ 2 }) } } (function(x) return x * 3 end)
    local future = job(vector(1, 2))
    assert.is_true(future:get() == vector(3, 6))
    assert.is_true(future:ready())
    assert.is_true(job(vector(1, 2)):get():ndarray() == vector(3, 6))
    local got
    job(vector(0, 1)):async_get(function(y) got = y end)
    flow.sync()
    assert.is_true(got == vector(0, 3))
  end)

  it("gives whatever the body returns", function()
    local job = flow.global_function { inputs = { x = flow.FixedTensorDef({ 1 }) } } (function(x)
      return { loss = x, parts = { x + 1, x + 2 } }
    end)
    local got = job(vector(1)):get()
    assert.equal(1, got.loss[0])
    assert.equal(3, got.parts[2][0])
  end)

  it("ends with its run when there is nothing to wait for", function()
    local seen = 0
    local job = flow.global_function { inputs = { x = flow.FixedTensorDef({ 1 }) } } (function(x)
      flow.watch(x, function() seen = seen + 1 end)
    end)
    job(vector(1))
    assert.equal(1, seen)
  end)
end)

describe("an input of several shapes", function()
  it("has a plan for each, and keeps the latest", function()
    local traced = 0
    local job = flow.global_function {
      inputs = { x = tp.ListNumpy.Placeholder({ 12, 2 }) }, returns = tp.ListNumpy,
    } (function(x)
      traced = traced + 1
      return x * 2
    end)
    assert.equal(1, traced)
    for _, rows in ipairs { 3, 4, 3, 12 } do
      local y = job({ np.ones({ rows, 2 }) })[1]
      assert.equal("(" .. rows .. ", 2)", tostring(y.shape))
      assert.equal(2, y:at(rows - 1, 1))
    end
    assert.equal(3, traced)
    for rows = 1, 11 do job({ np.ones({ rows, 2 }) }) end
    assert.truthy(#job.plans <= 8)
  end)

  it("keeps as many plans as its config says", function()
    local traced = 0
    local job = flow.global_function {
      inputs = { x = tp.ListNumpy.Placeholder({ 9 }) }, returns = tp.ListNumpy, function_config = { kept_plans = 3 },
    } (function(x)
      traced = traced + 1
      return x + 1
    end)
    for _, sizes in ipairs { { 1, 2, 3 }, { 3, 2, 1 }, { 4 }, { 2, 1, 4 }, { 3 } } do
      for _, size in ipairs(sizes) do job { np.ones(size) } end
    end
    assert.equal(3, #job.plans)
    assert.equal(6, traced)  -- for what the placeholder says, for four others, and once more for one that made room
    checks.refuses("kept_plans wants a whole number from 1 on, got 0", function()
      flow.global_function { function_config = { kept_plans = 0 } } (function() end)
    end)
  end)

  it("is one job, which counts the steps of all of them", function()
    local function define(placeholder)
      flow.clear_default_session()
      return flow.global_function {
        type = "train", name = "train", inputs = { x = placeholder }, returns = tp.Numpy,
      } (function(x)
        local kept = flow.nn.dropout(x, { rate = 0.5, seed = 3, name = "kept" })
        local loss = (flow.layers.dense(kept, 1, { name = "out" }) - 1) ^ 2
        flow.optimizer.Adam(flow.optimizer.CosineScheduler(0.1, 10)):minimize(loss)
        return loss
      end)
    end
    local x, losses = np.ones({ 4, 2 }), {}
    local job = define(tp.Numpy.Placeholder({ 4, 2 }))
    for step = 1, 6 do losses[step] = job(x):totable() end
    job = define(tp.ListNumpy.Placeholder({ 4, 2 }))
    for step = 1, 6 do assert.same(losses[step], job({ x }):totable()) end
    job({ x:rows(0, 2) })
    job({ x:rows(0, 3) })
    assert.equal(8, flow.get_all_variables()["System-Train-TrainStep-train"]:item())
    assert.equal(8, job:train_steps())
    local other = flow.global_function { name = "other", returns = tp.Numpy } (function() return flow.ones { 1 } end)
    local fine, problem = pcall(other.train_steps, other)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("the job has type 'predict' and makes no steps", 1, true), tostring(problem))
  end)

  it("draws as the job of one shape does, call after call", function()
    local function define(placeholder)
      return flow.global_function { name = "draw", inputs = { x = placeholder }, returns = tp.Numpy } (function(x)
        return flow.random.uniform({ shape = { 3 }, name = "drawn" }) + 0 * flow.math.reduce_sum(x)
      end)
    end
    flow.set_seed(3)
    local drawn, job = {}, define(tp.Numpy.Placeholder({ 1 }))
    for call = 1, 24 do drawn[call] = job(np.zeros({ 1 })):totable() end
    flow.set_seed(3)
    job = define(tp.ListNumpy.Placeholder({ 64 }))
    for call = 1, 24 do assert.same(drawn[call], job({ np.zeros({ 1 + call % 12 }) }):totable()) end
    flow.set_seed(3)
    assert.same(drawn[1], job({ np.zeros({ 5 }) }):totable())
  end)

  it("draws other numbers than another job of its name", function()
    local function make()
      return flow.global_function { name = "draw", returns = tp.Numpy } (function()
        return flow.random.uniform({ shape = { 3 } })
      end)
    end
    local function draws()
      flow.set_seed(3)
      local one, other = make(), make()
      return { one():totable(), other():totable(), one():totable(), other():totable() }
    end
    local drawn = draws()
    for i = 1, 4 do
      for k = i + 1, 4 do assert.not_same(drawn[i], drawn[k]) end
    end
    assert.same(drawn, draws())
  end)

  it("has one handle for a watch in its body", function()
    local seen, handle = 0, nil
    local function count() seen = seen + 1 end
    local job = flow.global_function {
      inputs = { x = tp.ListNumpy.Placeholder({ 64 }) }, returns = tp.ListNumpy,
    } (function(x)
      local y = x * 2
      handle = flow.watch(y, count)
      return y
    end)
    local function run(count_of_runs)
      for i = 1, count_of_runs do job({ np.zeros({ 1 + i % 12 }) }) end
    end
    run(24)
    assert.equal(24, seen)
    handle:off()
    run(24)
    assert.equal(24, seen)
    handle:on():every(10)
    run(40)
    assert.equal(28, seen)
    handle:every(1)
    assert.equal(0, job.board.selective)
  end)
end)

describe("memory", function()
  it("lets a forgotten job go, with the closures it watches through", function()
    local gone = setmetatable({}, { __mode = "v" })
    local function define()
      local job
      job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 1000 }) }, returns = tp.Numpy } (function(x)
        local y = x + 1
        flow.watch(y, function() return job end) -- captures the job itself
        return y
      end)
      job(np.zeros({ 1000 }))
      gone[#gone + 1] = job
    end
    for _ = 1, 20 do define() end
    collectgarbage()
    collectgarbage()
    assert.is_nil(next(gone))
  end)

  it("keeps a job alive while a call of it is in flight", function()
    local got
    do
      local job = flow.global_function {
        inputs = { x = tp.Numpy.Placeholder({ 1 }) }, returns = tp.Callback[tp.Numpy],
      } (function(x) return x + 1 end)
      job(vector(1))(function(y) got = y[0] end)
    end
    collectgarbage()
    flow.sync()
    assert.equal(2, got)
  end)

  it("does not grow over many calls", function()
    local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 5 }) }, returns = tp.Numpy } (function(x)
      return flow.nn.relu(x)
    end)
    local x = np.zeros({ 5 })
    for _ = 1, 2000 do job(x) end
    collectgarbage()
    collectgarbage()
    local before = collectgarbage("count")
    for _ = 1, 5000 do job(x) end
    collectgarbage()
    collectgarbage()
    assert.truthy(collectgarbage("count") - before < 64)
  end)
end)

describe("the session", function()
  it("is used up by shutdown, and the next use opens a fresh one", function()
    local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 1 }) }, returns = tp.Numpy } (function(x)
      return x
    end)
    flow.shutdown()
    flow.shutdown()
    local fine, problem = pcall(job, vector(1))
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("belongs to a session that is closed; define it again", 1, true))
    local again = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 1 }) }, returns = tp.Numpy } (function(x)
      return x
    end)
    assert.equal(1, again(vector(1))[0])
  end)

  it("has as many threads as asked, before anything is built", function()
    flow.config.cpu_threads(1)
    flow.config.cpu_threads(1)
    flow.global_function { returns = tp.Numpy } (function()
      return flow.get_variable("a", { shape = { 1 }, initializer = flow.zeros_initializer() })
    end)
    assert.has_error(function() flow.config.cpu_threads(2) end)
  end)
end)

describe("a definition that fails", function()
  it("leaves no variable behind, so that the next try may be right", function()
    local function define(rows)
      return flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 2, 3 }) }, returns = tp.Numpy } (function(x)
        return flow.matmul(x, flow.get_variable("w", { shape = { rows, 1 }, initializer = flow.ones_initializer() }))
      end)
    end
    assert.has_error(function() define(4) end)
    assert.is_true(define(3)(np.ones({ 2, 3 })) == np.full({ 2, 1 }, 3))
  end)
end)

describe("a definition that fails", function()
  local function define(is_broken)
    return flow.global_function { name = "draw", inputs = { x = tp.Numpy.Placeholder { 3 } }, returns = tp.Numpy } (
      function(x)
        if is_broken then error("in the body") end
        return x + flow.random.uniform(0, 1, { 3 })
      end)
  end

  it("leaves draws and the count of memory as they were", function()
    flow.set_seed(1)
    local wanted = define()(np.zeros { 3 })
    flow.clear_default_session()
    flow.set_seed(1)
    assert.is_false(pcall(define, true))
    assert.equal("table", type(flow.memory()))
    assert.is_true(wanted == define()(np.zeros { 3 }))
  end)
end)
