-- Jobs placed on a gpu: that of this machine, or the simulated ones, which MOONFLOW_CUDA_MODULE names.
local flow = require "moonflow"
local np, tp = flow.np, flow.typing
local process = require "process"
local session = require "moonflow.session"

local gpus = require "gpus" (describe, it, pending)
if not gpus then return end
local last = #gpus - 1

local function vector(...)
  return np.array({ ... }, flow.float)
end

local T = tp.Numpy.Placeholder({ 2 })

local lines
before_each(function()
  flow.clear_default_session()
  lines = {}
  flow.config.log(function(line) lines[#lines + 1] = line end)
end)
after_each(function()
  flow.config.log(nil)
end)

local function on_gpu(body)
  return flow.scope.placement("gpu", "0:0", body)
end

local function device_of(job)
  return job.plan.handle:info().device
end

-- The error that the definition of a job with this body raises.
local function problem_of(body)
  local fine, problem = pcall(function()
    flow.global_function { inputs = { x = T }, returns = tp.Numpy, name = "net" } (body)
  end)
  assert.is_false(fine)
  return problem
end

describe("a job", function()
  it("runs on the gpu when one of its ops is placed there, or its default is", function()
    local function define(spec, body)
      spec.inputs, spec.returns = { x = T }, tp.Numpy
      return flow.global_function(spec) (body)
    end
    local jobs = {
      define({}, function(x) return on_gpu(function() return x * 2 end) + 1 end),
      define({ placement = { "gpu", "0:" .. last } }, function(x) return x * 2 + 1 end),
      define({ function_config = { default_placement_scope = flow.scope.placement("gpu", "0:0") } },
        function(x) return x * 2 + 1 end),
      define({ placement = { "cpu", "0:0" } }, function(x) return on_gpu(function() return x * 2 end) + 1 end),
    }
    for _, job in ipairs(jobs) do
      for i = 1, 3 do assert.is_true(job(vector(i, 2)) == vector(2 * i + 1, 5)) end
      assert.truthy(device_of(job):find("multiprocessors"), device_of(job))
    end
    local job = define({}, function(x) return x * 2 end)
    assert.truthy(device_of(job):find("^cpu"), device_of(job))
    assert.same({}, lines)
  end)

  it("cannot have ops on several devices", function()
    local line = debug.getinfo(1, "l").currentline
    local problem = problem_of(function(x)
      local y = on_gpu(function() return x * 2 end)
      return flow.scope.placement("cpu", "0:0", function() return y + 1 end)
    end)
    assert.equal("unsupported", problem.code)
    assert.truthy(problem.where:find("placement_spec.lua:" .. line + 3, 1, true), problem.where)
    assert.truthy(problem.message:find("this op is placed on the cpu, and others of 'net' on gpu 0 (", 1, true),
      problem.message)
    assert.truthy(problem.message:find("placement_spec.lua:" .. line + 2 .. ")", 1, true), problem.message)
  end)

  it("names the line of a gpu or a machine that is not there", function()
    local line = debug.getinfo(1, "l").currentline
    local problem = problem_of(function(x)
      return flow.scope.placement("gpu", "0:" .. last + 1, function() return x + 1 end)
    end)
    assert.equal("out_of_range", problem.code)
    assert.truthy(problem.where:find("placement_spec.lua:" .. line + 2, 1, true), problem.where)
    local there = last == 0 and "one, gpu 0" or "gpu 0 to " .. last
    assert.truthy(problem.message:find(('placement "gpu", "0:%d": there is no gpu %d: this machine has %s'):format(
      last + 1, last + 1, there), 1, true), problem.message)
    problem = problem_of(function(x)
      return flow.scope.placement("gpu", "1:0", function() return x + 1 end)
    end)
    assert.truthy(problem.message:find("there is one machine", 1, true), problem.message)
  end)

  it("that wants more memory than the gpu has names its line, and leaves room for others", function()
    local line
    local fine, problem = pcall(function()
      line = debug.getinfo(1, "l").currentline + 2  -- of the ops
      flow.global_function { inputs = { x = T }, returns = tp.Numpy, placement = { "gpu", "0:0" } } (function(x)
        return flow.math.reduce_sum(flow.math.exp(flow.broadcast_to(x, { gpus[1].memory_bytes, 2 })))
      end)
    end)
    assert.is_false(fine)
    assert.equal("out_of_memory", problem.code)
    assert.truthy(problem.where:find("placement_spec.lua:" .. line, 1, true), problem.where)
    assert.truthy(problem.message:find("no room for .* on the gpu: .* are free; take a smaller batch"), problem.message)
    local job = flow.global_function {
      inputs = { x = T }, returns = tp.Numpy, placement = { "gpu", "0:0" },
    } (function(x) return x + 1 end)
    assert.is_true(job(vector(1, 2)) == vector(2, 3))
  end)

  it("placed on several gpus runs on the first, and says so once", function()
    if last == 0 then return pending("there is one gpu") end
    for _ = 1, 2 do
      local job = flow.global_function {
        inputs = { x = T }, returns = tp.Numpy, placement = { "gpu", "0:0-1" },
      } (function(x) return x + 1 end)
      assert.is_true(job(vector(1, 2)) == vector(2, 3))
    end
    assert.equal(1, #lines)
    assert.truthy(lines[1]:find('placement "gpu", "0:0-1" runs on gpu 0 alone', 1, true), lines[1])
  end)

  it("says on the gpu what it says on the cpu of a label outside of the classes, and changes nothing", function()
    local messages = {}
    for _, device in ipairs { "cpu", "gpu" } do
      flow.clear_default_session()
      local job = flow.global_function {
        type = "train", returns = tp.Numpy, placement = { device, "0:0" }, name = "train",
        inputs = { x = tp.Numpy.Placeholder({ 3, 2 }), labels = tp.Numpy.Placeholder({ 3 }, { dtype = flow.int32 }) },
      } (function(x, labels)
        local logits = flow.layers.dense(x, 4, { name = "output", kernel_initializer = flow.ones_initializer() })
        local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits, { name = "loss" })
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler({}, { 0.5 }), { momentum = 0 }):minimize(loss)
        return loss
      end)
      local x = np.array({ { 1, 2 }, { 3, 4 }, { 5, 6 } }, flow.float)
      for _ = 1, 3 do  -- the later ones are recorded on the gpu
        local fine, problem = pcall(job, x, np.array({ 0, 9, 1 }, flow.int32))
        assert.is_false(fine)
        -- On either device the loss may be a part of a larger step, whose op it then is.
        messages[#messages + 1] = tostring(problem):gsub("train: [%w_]+ 'loss'", "train: 'loss'")
      end
      local weight = session.handle():read("output-weight")
      assert.is_true(weight == np.ones(weight.shape:table()), device .. ": " .. tostring(weight))
      assert.truthy(pcall(job, x, np.array({ 0, 3, 1 }, flow.int32)))
    end
    assert.truthy(messages[1]:find("'loss': row 1: label 9 is outside [0, 4)", 1, true))
    assert.equal(messages[1], messages[4])
    assert.equal(messages[1], messages[6])
  end)
end)

-- ---- training ----------------------------------------------------------------------------------------------------

local function mlp(images)
  local hidden = flow.layers.dense(flow.reshape(images, { images.shape[0], -1 }), 32, {
    activation = flow.nn.relu, name = "hidden", kernel_initializer = flow.truncated_normal(0.1) })
  return flow.layers.dense(hidden, 10, { name = "output", kernel_initializer = flow.truncated_normal(0.1) })
end

local function lenet(images)
  local initializer = flow.truncated_normal(0.1)
  local function stage(x, filters, name)
    local conv = flow.layers.conv2d(x, filters, 5, { padding = "SAME", activation = flow.nn.relu, name = name,
                                                     kernel_initializer = initializer })
    return flow.nn.max_pool2d(conv, { ksize = 2, strides = 2, padding = "SAME" })
  end
  local pooled = stage(stage(images, 4, "conv1"), 8, "conv2")
  local hidden = flow.layers.dense(flow.reshape(pooled, { pooled.shape[0], -1 }), 16, {
    activation = flow.nn.relu, name = "dense1", kernel_initializer = initializer })
  hidden = flow.nn.dropout(hidden, { rate = 0.5, name = "dropout" })
  return flow.layers.dense(hidden, 10, { name = "dense2", kernel_initializer = initializer })
end

local BATCH = 8
local IMAGES = tp.Numpy.Placeholder({ BATCH, 1, 28, 28 })
local LABELS = tp.Numpy.Placeholder({ BATCH }, { dtype = flow.int32 })

local function training(net, device, optimizer, returns)
  return flow.global_function {
    type = "train", inputs = { images = IMAGES, labels = LABELS }, returns = returns or tp.Numpy,
    placement = { device, "0:0" }, name = "train",
  } (function(images, labels)
    local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, net(images))
    optimizer():minimize(loss)
    return loss
  end)
end

local function sgd()
  return flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler({ 3 }, { 0.1, 0.05 }), { momentum = 0 })
end
local function adam()
  return flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler({}, { 0.01 }))
end

local function batch(step)
  local images, labels = {}, {}
  for i = 1, BATCH do
    local label, image = (i * 7 + step) % 10, {}
    for row = 1, 28 do
      image[row] = {}
      for column = 1, 28 do image[row][column] = row == 2 * label + 5 and 0.9 or (row * column % 7) / 20 end
    end
    images[i], labels[i] = { image }, label
  end
  return np.array(images, flow.float), np.array(labels, flow.int32)
end

describe("precision on the gpu", function()
  local left = np.random.uniform(-1, 1, { 160, 300 }):astype(flow.float)
  local right = np.random.uniform(-1, 1, { 300, 150 }):astype(flow.float)

  -- The norm of the error of x w, computed by a job of this configuration, relative to the norm of x w in float64.
  local function error_with(config)
    local job = flow.global_function {
      inputs = { x = tp.Numpy.Placeholder({ 160, 300 }), w = tp.Numpy.Placeholder({ 300, 150 }) },
      returns = tp.Numpy, placement = { "gpu", "0:0" }, function_config = config,
    } (function(x, w) return flow.matmul(x, w) end)
    local got = job(left, right):astype(flow.double)
    local cpu = flow.global_function {
      inputs = { x = tp.Numpy.Placeholder({ 160, 300 }, { dtype = flow.double }),
                 w = tp.Numpy.Placeholder({ 300, 150 }, { dtype = flow.double }) },
      returns = tp.Numpy,
    } (function(x, w) return flow.matmul(x, w) end)
    local exact = cpu(left:astype(flow.double), right:astype(flow.double))
    local off = got - exact
    return math.sqrt((off * off):sum() / (exact * exact):sum())
  end

  it("is float32's, unless a job allows TF32, bfloat16 or float16", function()
    local function check(config, least, most)
      local off = error_with(config)
      assert.is_true(off >= least and off < most, ("off by %g, not from %g to %g"):format(off, least, most))
    end
    check({}, 0, 1e-6)
    check({ allow_tf32 = true }, 0, 1e-3)  -- which of the library's algorithms is fastest may be one in float32
    check({ enable_auto_mixed_precision = true }, 1e-3, 1e-2)
    check({ enable_auto_mixed_precision = true, mixed_precision_dtype = flow.float16 }, 1e-4, 1e-3)
  end)
end)

describe("training", function()
  for name, net in pairs { MLP = mlp, LeNet = lenet } do
    for rule, optimizer in pairs { SGD = sgd, Adam = adam } do
      it("of the " .. name .. " by " .. rule .. " follows the same curve on the gpu", function()
        local curves = {}
        for _, device in ipairs { "cpu", "gpu" } do
          flow.clear_default_session()
          flow.set_seed(11)
          local train, curve = training(net, device, optimizer), {}
          for step = 1, 6 do curve[step] = train(batch(step)):mean() end
          curves[device] = curve
        end
        for step, loss in ipairs(curves.cpu) do
          assert.is_true(math.abs(curves.gpu[step] - loss) <= 1e-4 * loss, step .. ": " .. loss .. " on the cpu, "
            .. curves.gpu[step] .. " on the gpu")
        end
      end)
    end
  end

  it("on the gpu shares its weights with evaluation on the cpu and with checkpoints", function()
    flow.set_seed(11)
    local train = training(mlp, "gpu", sgd)
    local function predicting(device)
      return flow.global_function {
        inputs = { images = IMAGES }, returns = tp.Numpy, placement = { device, "0:0" }, name = "predict_" .. device,
      } (function(images) return mlp(images) end)
    end
    local cpu, gpu = predicting("cpu"), predicting("gpu")
    local function check()
      local images = batch(0)
      local a, b = cpu(images), gpu(images)
      assert.is_true(np.allclose(a, b, 1e-4, 1e-5))
      return a
    end
    local first = check()
    for step = 1, 3 do
      train(batch(step))
      assert.is_false(check() == first)
    end
    local trained = check()
    local folder = process.folder("placement_checkpoint")
    local checkpoint = flow.train.CheckPoint()
    checkpoint:save(folder .. "/weights")
    train(batch(4))
    assert.is_false(check() == trained)
    checkpoint:load(folder .. "/weights")
    assert.is_true(check() == trained)
  end)

  it("on the gpu calls back in the order of the calls, between jobs on both devices", function()
    flow.set_seed(11)
    local train = training(mlp, "gpu", sgd, tp.Callback[tp.Numpy])
    local count = flow.global_function { inputs = { x = T }, returns = tp.Callback[tp.Numpy] } (function(x)
      return x + 1
    end)
    local order = {}
    for step = 1, 12 do
      train(batch(step))(function() order[#order + 1] = step end)
      count(vector(step, 0))(function(y) order[#order + 1] = y[0] - 1 end)
    end
    flow.sync()
    local expected = {}
    for step = 1, 12 do
      expected[2 * step - 1], expected[2 * step] = step, step
    end
    assert.same(expected, order)
  end)
end)
