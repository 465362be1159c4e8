-- flow.watch, flow.watch_diff, flow.watch_scope: what is shown, in which order, and how it is switched.
local checks = require "checks"
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

local function vector(...)
  return np.array({ ... }, flow.float)
end

local T = tp.Numpy.Placeholder({ 2 })

before_each(function()
  flow.clear_default_session()
end)

describe("a watch", function()
  it("shows the value of each run, as a copy that may be kept", function()
    local seen = {}
    local job = flow.global_function { inputs = { x = T }, returns = tp.Numpy } (function(x)
      local y = flow.nn.relu(x)
      flow.watch(y, function(value) seen[#seen + 1] = value end)
      return y + 1
    end)
    job(vector(-1, 2))
    job(vector(3, -4))
    assert.equal(2, #seen)
    assert.is_true(seen[1] == vector(0, 2))
    assert.is_true(seen[2] == vector(3, 0))
  end)

  it("is told by its handle", function()
    local handle
    local job = flow.global_function { inputs = { x = T }, returns = tp.None } (function(x)
      handle = flow.watch(x, function() end)
    end)
    assert.equal("the watch of 'x' in job", tostring(handle))
    assert.equal("the watch of 'x' in job (off) (every 3 runs)", tostring(handle:every(3):off()))
    assert.equal("the watch of 'x' in job", tostring(job:watch("x", function() end)))
  end)

  it("shows inputs, variables and constants too", function()
    local seen = {}
    local job = flow.global_function { inputs = { x = T }, returns = tp.None } (function(x)
      flow.watch(x, function(value) seen.x = value end)
      flow.watch(flow.get_variable("w", { shape = { 1 }, initializer = flow.constant_initializer(3) }),
        function(value) seen.w = value end)
      flow.watch(flow.constant(7, flow.int32, { 1 }), function(value) seen.c = value end)
    end)
    job(vector(1, 2))
    assert.is_true(seen.x == vector(1, 2))
    assert.equal(3, seen.w[0])
    assert.equal(7, seen.c[0])
  end)

  it("is delivered in the order of the graph, before the result", function()
    local order = {}
    local job = flow.global_function { inputs = { x = T }, returns = tp.Callback[tp.Numpy] } (function(x)
      local a = x + 1
      local b = a * 2
      flow.watch(b, function() order[#order + 1] = "b" end)
      flow.watch(a, function() order[#order + 1] = "a1" end)
      flow.watch(a, function() order[#order + 1] = "a2" end)
      return b
    end)
    job(vector(1, 2))(function() order[#order + 1] = "result" end)
    flow.sync()
    assert.same({ "a1", "a2", "b", "result" }, order)
  end)

  it("comes as a list where the type says so", function()
    local seen
    local job = flow.global_function { inputs = { x = T }, returns = tp.None } (function(x)
      flow.watch(x, tp.ListNumpy, function(list) seen = list end)
    end)
    job(vector(1, 2))
    assert.equal(1, #seen)
    assert.is_true(seen[1] == vector(1, 2))
  end)

  it("prints after a prompt, or after the name", function()
    local printed = {}
    local real = print
    _G.print = function(...) printed[#printed + 1] = { ... } end
    local fine, problem = pcall(function()
      local job = flow.global_function { inputs = { x = T }, returns = tp.None } (function(x)
        flow.watch(x, "relu out")
        flow.watch(flow.nn.relu(x, { name = "r" }))
      end)
      job(vector(1, 2))
    end)
    _G.print = real
    assert.is_true(fine, tostring(problem))
    assert.equal("relu out", printed[1][1])
    assert.is_true(printed[1][2] == vector(1, 2))
    assert.truthy(printed[2][1]:find("^r %(.*watch_spec.lua:%d+%):$"))
  end)

  it("can be switched off, on, and thinned without another trace", function()
    local seen, traced = {}, 0
    local handle, other
    local job = flow.global_function { inputs = { x = T }, returns = tp.Numpy } (function(x)
      traced = traced + 1
      handle = flow.watch(x, function(value) seen[#seen + 1] = value[0] end)
      other = flow.watch(x + 1, function() seen.other = (seen.other or 0) + 1 end, { every = 3 })
      return x
    end)
    local function run(from, to)
      for i = from, to do assert.equal(i, job(vector(i, 0))[0]) end
    end
    run(1, 2)
    handle:off()
    run(3, 4)
    handle:on()
    run(5, 5)
    handle:every(2)
    run(6, 9)
    assert.same({ 1, 2, 5, 6, 8 }, { unpack(seen) })
    assert.equal(3, seen.other) -- runs 1, 4 and 7
    handle:every(1)
    other:off()
    run(10, 10)
    assert.equal(10, seen[6])
    assert.equal(3, seen.other)
    assert.equal(1, traced)
  end)

  it("shows a variable before the update of its run", function()
    local seen = {}
    local job = flow.global_function { type = "train", inputs = { x = T }, returns = tp.Numpy } (function(x)
      local w = flow.get_variable("w", { shape = { 2 }, initializer = flow.constant_initializer(1) })
      local loss = w * x
      flow.optimizer.SGD(0.5, { momentum = 0 }):minimize(loss)
      flow.watch(w, function(value) seen[#seen + 1] = value[0] end)
      return loss
    end)
    job(vector(2, 2))
    job(vector(2, 2))
    assert.same({ 1, 0.5 }, seen) -- gradient 2, divided by the two elements of the loss
  end)
end)

describe("a gradient watch", function()
  local function train(body)
    local input = tp.Numpy.Placeholder({ 3, 3 })
    return flow.global_function { type = "train", inputs = { x = input }, returns = tp.Numpy } (body)
  end

  it("shows the gradient of the sum of the loss, undivided", function()
    local seen
    train(function(x)
      local w = flow.get_variable("w", { shape = { 3, 4 }, initializer = flow.constant_initializer(2) })
      local loss = flow.matmul(x, w)
      flow.watch_diff(w, function(g) seen = g end)
      flow.optimizer.SGD(0.1):minimize(loss)
      return loss
    end)(np.ones({ 3, 3 }))
    assert.equal("(3, 4)", tostring(seen.shape))
    assert.equal(3, seen:min())
    assert.equal(3, seen:max())
  end)

  it("of a convolution's weight is the sum of what it sees", function()
    local seen
    local job = flow.global_function {
      type = "train", inputs = { x = tp.Numpy.Placeholder({ 1, 1, 4, 4 }) }, returns = tp.Numpy,
    } (function(x)
      local w = flow.get_variable("w", { shape = { 1, 1, 3, 3 }, initializer = flow.ones_initializer() })
      local loss = flow.nn.conv2d(x, w, { strides = 1, padding = "VALID" })
      flow.watch_diff(w, function(g) seen = g end)
      flow.optimizer.SGD(0.1):minimize(loss)
      return loss
    end)
    job((np.arange(16) + 1):astype(flow.float):reshape({ 1, 1, 4, 4 }))
    assert.is_true(seen == np.array({ { { { 14, 18, 22 }, { 30, 34, 38 }, { 46, 50, 54 } } } }, flow.float))
  end)

  it("of a variable that is the loss is ones", function()
    local seen
    train(function(x)
      local w = flow.get_variable("w", { shape = { 3, 3 }, initializer = flow.zeros_initializer() })
      flow.watch_diff(w, function(g) seen = g end)
      flow.optimizer.SGD(0.1):minimize(w)
      return w + x
    end)(np.ones({ 3, 3 }))
    assert.equal(1, seen:min())
    assert.equal(1, seen:max())
  end)

  it("comes after the watches and before the result", function()
    local order = {}
    local job = flow.global_function {
      type = "train", inputs = { x = tp.Numpy.Placeholder({ 3, 3 }) }, returns = tp.Callback[tp.Numpy],
    } (function(x)
      local w = flow.get_variable("w", { shape = { 3, 3 }, initializer = flow.zeros_initializer() })
      local y = flow.matmul(x, w)
      flow.watch_diff(y, function() order[#order + 1] = "dy" end)
      flow.optimizer.SGD(0.1):minimize(y)
      flow.watch(w, function() order[#order + 1] = "w" end)
      return y
    end)
    job(np.ones({ 3, 3 }))(function() order[#order + 1] = "result" end)
    flow.sync()
    assert.same({ "w", "dy", "result" }, order)
  end)

  it("shows the gradient of an input in a job that has no variables", function()
    local seen
    local job = flow.global_function { type = "train", inputs = { x = T }, returns = tp.Numpy } (function(x)
      flow.watch_diff(x, function(g) seen = g end)
      local loss = flow.math.square(x)
      flow.optimizer.SGD(0.1):minimize(loss)
      return loss
    end)
    job(vector(1, 2))
    assert.is_true(seen == vector(2, 4))
  end)

  it("says so in the log when no loss depends on the value", function()
    local lines = {}
    flow.config.log(function(line) lines[#lines + 1] = line end)
    local called = false
    train(function(x)
      local w = flow.get_variable("w", { shape = { 3, 3 }, initializer = flow.zeros_initializer() })
      flow.watch_diff(x + 1, function() called = true end)
      flow.optimizer.SGD(0.1):minimize(w)
      return w
    end)(np.ones({ 3, 3 }))
    flow.config.log(nil)
    assert.is_false(called)
    assert.truthy(lines[1]:find("no loss depends on it", 1, true))
  end)

  it("says so in the log when the value is of whole numbers", function()
    local lines = {}
    flow.config.log(function(line) lines[#lines + 1] = line end)
    flow.global_function { type = "train", returns = tp.None } (function()
      local w = flow.get_variable("w", { shape = { 3 }, initializer = flow.zeros_initializer() })
      local count = flow.cast(flow.range(3), flow.int32)
      flow.watch_diff(count, function() end)
      flow.optimizer.SGD(0.1):minimize(w * flow.cast(count, flow.float))
    end)
    flow.config.log(nil)
    assert.truthy(lines[1]:find("shows nothing: there is no gradient of int32", 1, true), lines[1])
  end)

  it("of logits under softmax cross entropy has rows that sum to zero", function()
    local seen
    local job = flow.global_function {
      type = "train",
      inputs = { x = tp.Numpy.Placeholder({ 20, 6 }), labels = tp.Numpy.Placeholder({ 20 }, flow.int32) },
      returns = tp.Numpy,
    } (function(x, labels)
      local logits = flow.layers.dense(x, 5, { name = "logits" })
      local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
      flow.watch_diff(logits, function(g) seen = g end)
      flow.optimizer.SGD(0.1):minimize(loss)
      return loss
    end)
    np.random.seed(1)
    job(np.random.uniform(-1, 1, { 20, 6 }), np.random.randint(0, 5, { 20 }):astype(flow.int32))
    local sums = seen:sum(1)
    for i = 0, 19 do assert.truthy(math.abs(sums[i]) < 1e-5) end
    assert.truthy(seen:max() > 0.05) -- not divided by the batch
  end)
end)

describe("a watch scope", function()
  local function define(values, grads)
    return flow.global_function {
      type = "train", inputs = { x = tp.Numpy.Placeholder({ 4, 6 }) }, returns = tp.Numpy,
    } (function(x)
      local hidden = flow.layers.dense(x, 5, { name = "hidden" })
      local logits = flow.watch_scope(values, grads, function()
        return flow.layers.dense(hidden, 3, { name = "logits" })
      end)
      local loss = logits * logits
      flow.optimizer.SGD(0.01):minimize(loss)
      return loss
    end)
  end

  local keys = { "logits-bias/out", "logits-bias_add/out_0", "logits-matmul/out_0", "logits-weight/out" }

  local function sorted(t)
    local list = {}
    for key in pairs(t) do list[#list + 1] = key end
    table.sort(list)
    return list
  end

  it("fills tables by logical blob name", function()
    local values, grads = {}, {}
    local job = define(values, grads)
    assert.same({}, sorted(values))
    job(np.ones({ 4, 6 }))
    assert.same(keys, sorted(values))
    assert.same(keys, sorted(grads))
    local entry = values["logits-weight/out"]
    assert.equal("(3, 5)", tostring(entry.blob.shape))
    assert.equal("logits-weight/out", entry.blob_def.logical_blob_name)
    assert.equal(entry.blob:ndarray(), entry.blob)
    local first = entry.blob
    job(np.ones({ 4, 6 }))
    assert.is_false(values["logits-weight/out"].blob == first)
  end)

  it("calls functions, and may watch values alone", function()
    local seen = {}
    define(function(blob, blob_def) seen[blob_def.logical_blob_name] = blob end)(np.ones({ 4, 6 }))
    assert.same(keys, sorted(seen))
  end)

  it("passes over values without a gradient, of which it says nothing", function()
    local grads, lines = {}, {}
    flow.config.log(function(line) lines[#lines + 1] = line end)
    local job = flow.global_function { type = "train", inputs = { x = T }, returns = tp.Numpy } (function(x)
      return flow.watch_scope(nil, grads, function()
        local unused = x + 1
        local loss = flow.get_variable("w", { shape = { 2 }, initializer = flow.zeros_initializer() }) * x
        assert.truthy(unused)
        flow.optimizer.SGD(0.1):minimize(loss)
        return loss
      end)
    end)
    job(vector(1, 2))
    flow.config.log(nil)
    assert.same({ "Multiply_0/out_0", "w/out" }, sorted(grads))
    assert.same({}, lines)
  end)

  it("ends also when its body raises", function()
    local values = {}
    local job = flow.global_function { inputs = { x = T }, returns = tp.Numpy } (function(x)
      pcall(flow.watch_scope, values, function() error("stop") end)
      return x + 1
    end)
    job(vector(1, 2))
    assert.same({}, sorted(values))
  end)

  it("raises what its body raises", function()
    assert.error_matches(function()
      flow.global_function { returns = tp.None } (function() flow.watch_scope({}, function() error("stop") end) end)
    end, "stop")
  end)
end)

describe("a handler that raises", function()
  it("stops neither the run nor the other handlers", function()
    local seen = 0
    local job = flow.global_function { inputs = { x = T }, returns = tp.Numpy } (function(x)
      flow.watch(x, function() error("first") end)
      flow.watch(x + 1, function() seen = seen + 1 end)
      return x
    end)
    local fine, problem = pcall(job, vector(1, 2))
    assert.is_false(fine)
    assert.equal("callback_failed", problem.code)
    assert.truthy(tostring(problem):find("watch_spec.lua:%d+: first\n  in the watch of 'x' in job %(delivery %d+%)"))
    assert.equal(1, seen)
    assert.equal(0, flow.in_flight())
    pcall(job, vector(1, 2))
    assert.equal(2, seen)
  end)
end)

describe("a watch from outside", function()
  it("shows a value that the body does not watch, in the runs from now on", function()
    local seen, inner = {}, 0
    local job = flow.global_function { inputs = { x = T }, returns = tp.Tuple { tp.Numpy, tp.Numpy } } (function(x)
      local y = flow.nn.relu(x, { name = "rectified" })
      flow.watch(y, function() inner = inner + 1 end)
      return y + 1, y * 2
    end)
    job(vector(-1, 2))
    local handle = job:watch("rectified", function(value) seen[#seen + 1] = value end)
    local plus, times = job(vector(3, -4))
    assert.is_true(plus == vector(4, 1) and times == vector(6, 0))
    assert.equal(1, #seen)
    assert.is_true(seen[1] == vector(3, 0))
    handle:off()
    job(vector(5, 5))
    assert.equal(1, #seen)
    handle:on()
    job:watch("rectified/out_0", function(value) seen[#seen + 1] = value end)
    job(vector(5, 5))
    assert.equal(3, #seen)
    assert.equal(4, inner)
  end)

  it("takes the options of flow.watch, and neither takes what nothing is made of", function()
    local function inside(...)
      local rest = { ... }
      return flow.global_function { inputs = { x = T }, returns = tp.Numpy } (function(x)
        flow.watch(x, unpack(rest))
        return flow.nn.relu(x, { name = "rectified" })
      end)
    end
    local seen, inner = 0, 0
    local job = inside(function() inner = inner + 1 end, { every = 3 })
    job:watch("rectified", function() seen = seen + 1 end, { every = 3 })
    for _ = 1, 6 do job(vector(1, 2)) end
    assert.same({ 2, 2 }, { seen, inner })
    local function handler() end
    checks.refuses("job:watch has no option 'evry'; did you mean 'every'?", job.watch, job, "rectified", handler,
      { evry = 3 })
    checks.refuses("job:watch: options must be a table, got 3", job.watch, job, "rectified", handler, 3)
    checks.refuses("job:watch takes nothing behind its options, got 7", job.watch, job, "rectified", handler, nil, 7)
    checks.refuses("watch:every wants a whole number from 1 on, got 0", job.watch, job, "rectified", handler,
      { every = 0 })
    checks.refuses("flow.watch takes nothing behind its options, got 7", inside, tp.Numpy, handler, { every = 3 }, 7)
    checks.refuses("flow.watch takes nothing behind its options, got 7", inside, { every = 3 }, 7)
  end)

  it("leaves runs under way as they were, and training too", function()
    local job = flow.global_function { type = "train", inputs = { x = T }, returns = tp.Callback[tp.Numpy] } (
      function(x)
        local w = flow.get_variable("w", { shape = { 2 }, initializer = flow.ones_initializer() })
        local loss = w * x
        flow.optimizer.SGD(1, { momentum = 0 }):minimize(loss)
        return loss
      end)
    local losses, weights = {}, {}
    local function take(loss) losses[#losses + 1] = loss end
    job(vector(2, 2))(take)
    local handle = job:watch("w", function(w) weights[#weights + 1] = w end)
    job(vector(2, 2))(take)
    handle:off()
    job(vector(2, 2))(take)
    flow.sync()
    assert.equal(3, #losses)
    assert.is_true(losses[1] == vector(2, 2) and losses[2] == vector(0, 0) and losses[3] == vector(-2, -2))
    assert.equal(1, #weights)
    assert.is_true(weights[1] == vector(0, 0))
  end)

  it("takes the place of an earlier one that is off, also where there are always runs under way", function()
    local job = flow.global_function { inputs = { x = T }, returns = tp.Callback[tp.Numpy] } (function(x)
      return flow.nn.relu(x, { name = "rectified" })
    end)
    local runs, results, wrong = 0, 0, 0
    local shown = {}  -- by the number of the watch: the first value of each run that it saw
    local function launch()
      runs = runs + 1
      job(vector(runs, 0))(function() results = results + 1 end)
    end
    launch()
    for i = 1, 50 do
      local first = runs + 1
      local handle = job:watch("rectified", function(value)
        if value[0] < first or value[0] > first + 1 then wrong = wrong + 1 end
        shown[i] = (shown[i] or 0) + 1
      end)
      launch()
      launch()
      handle:off()
      launch()
      assert.is_true(flow.in_flight() > 0)
    end
    flow.sync()
    assert.equal(0, wrong)
    assert.equal(runs, results)
    for i = 1, 50 do assert.equal(2, shown[i]) end
    assert.is_true(job.plan.tap_count <= 5, job.plan.tap_count)  -- its result, and a place for each run under way
  end)

  it("holds for every shape of a job, and is switched for all by one handle", function()
    local job = flow.global_function { inputs = { x = tp.ListNumpy.Placeholder({ 4, 2 }) }, returns = tp.ListNumpy } (
      function(x) return flow.nn.relu(x, { name = "rectified" }) end)
    local function rows(count) return { np.ones({ count, 2 }):astype(flow.float) } end
    job(rows(2))
    local sizes = {}
    local handle = job:watch("rectified", function(value) sizes[#sizes + 1] = value.shape[0] end)
    for count = 1, 4 do job(rows(count)) end
    handle:off()
    for count = 1, 4 do job(rows(count)) end
    assert.same({ 1, 2, 3, 4 }, sizes)
  end)

  it("takes the place of one that is off, which comes back when it is switched on", function()
    local job = flow.global_function { inputs = { x = T }, returns = tp.Numpy } (function(x)
      return flow.nn.relu(x, { name = "rectified" })
    end)
    local seen = {}
    local function watched(n)
      return job:watch("rectified", function() seen[#seen + 1] = n end)
    end
    local handles = {}
    for n = 1, 50 do
      handles[n] = watched(n)
      job(vector(1, 2))
      handles[n]:off()
    end
    assert.equal(50, #seen)
    assert.equal(50, seen[50])
    assert.equal(2, job.plan.tap_count)  -- its result's, and one for all of them
    handles[1]:on()
    handles[2]:every(2):on()
    for _ = 1, 4 do job(vector(1, 2)) end
    assert.same({ 1, 2, 1, 1, 2, 1 }, { select(51, unpack(seen)) })
    handles[1]:off()
    handles[2]:off()
    assert.equal(3, job.plan.tap_count)
    job(vector(1, 2))
    assert.equal(56, #seen)
  end)

  it("takes no place from one that a run under way still calls", function()
    local job = flow.global_function { inputs = { x = T }, returns = tp.Callback[tp.Numpy] } (function(x)
      return flow.nn.relu(x, { name = "rectified" })
    end)
    local seen = {}
    local handle = job:watch("rectified", function() seen[#seen + 1] = "first" end)
    job(vector(1, 2))(function() end)
    handle:off()
    job:watch("rectified", function() seen[#seen + 1] = "second" end)
    flow.sync()
    assert.same({ "first" }, seen)
    job(vector(1, 2))(function() end)
    flow.sync()
    assert.same({ "first", "second" }, seen)
  end)

  it("that cannot be compiled leaves the job as it was, for the next one too", function()
    local session = require "moonflow.session"
    local job = flow.global_function { inputs = { x = T }, returns = tp.Tuple { tp.Numpy, tp.Numpy } } (function(x)
      return flow.nn.relu(x, { name = "rectified" }), x
    end)
    local lost, seen = 0, 0
    local handle_of = session.handle
    session.handle = function() return { compile = function() error("no memory for a plan", 0) end } end
    local fine, problem = pcall(job.watch, job, "rectified", function() lost = lost + 1 end)
    session.handle = handle_of
    assert.is_false(fine)
    assert.equal("no memory for a plan", problem)
    for _ = 1, 2 do
      local y, x = job(vector(-1, 2))
      assert.is_true(y == vector(0, 2) and x == vector(-1, 2))
      job:watch("rectified", function() seen = seen + 1 end)
    end
    job(vector(1, 1))
    assert.equal(0, lost)
    assert.equal(3, seen)
  end)

  it("names what it does not find", function()
    local job = flow.global_function { inputs = { x = T }, returns = tp.Numpy } (function(x)
      return flow.nn.relu(x, { name = "rectified" })
    end)
    local fine, problem = pcall(job.watch, job, "rectifeid", print)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("job has no value 'rectifeid'; did you mean 'rectified'?", 1, true))
  end)

  it("tells the values of a layer from its name, also a misspelt one, and those there are", function()
    local job = flow.global_function { inputs = { x = T }, returns = tp.Numpy } (function(x)
      local y = flow.reshape(x, { 1, 2 })
      for i = 1, 2 do y = flow.layers.dense(y, 3, { name = "hidden" .. i, use_bias = false }) end
      return y
    end)
    local function refuses(name, advice)
      local fine, problem = pcall(job.watch, job, name, print)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find("job has no value '" .. name .. "'" .. advice, 1, true), problem)
    end
    refuses("hidden2", "; did you mean 'hidden2-weight', 'hidden2-matmul'?")
    refuses("hiden1", "; did you mean 'hidden1-weight', 'hidden1-matmul'?")
    refuses("conv", "; it has 'x', 'Reshape_0', 'hidden1-weight', 'hidden1-matmul', 'hidden2-weight', 'hidden2-matmul'")
  end)

  it("may be added while calls wait for room whose watches skip runs", function()
    local watched
    local job = flow.global_function { inputs = { x = T }, returns = tp.Callback[tp.Numpy] } (function(x)
      flow.watch(x, print, { every = 100 }):off()
      return flow.nn.relu(x, { name = "rectified" })
    end)
    local seen, results = 0, 0
    local function take()
      results = results + 1
      watched = watched or job:watch("rectified", function() seen = seen + 1 end)
    end
    for i = 1, 20 do job(vector(i, i))(take) end
    flow.sync()
    assert.equal(20, results)
    assert.truthy(seen > 10 and seen < 20, seen)
    for i = 1, 20 do flow.spawn(function() take(job(vector(i, i)):await()) end) end
    flow.sync()
    assert.equal(40, results)
    assert.truthy(seen > 30, seen)
  end)
end)
