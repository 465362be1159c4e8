-- Moonflow's side of the benchmark. Serves measurements: reads "NAME<tab>SECONDS" and answers with lines
-- "VALUE<tab>CONFIGURATION", then "done"; values are seconds, or what the row's unit says. With a name as argument it
-- measures that row once and ends: for rows that need a process of their own.
--   moonflow tests/bench/ours.lua [NAME]
-- MOONFLOW_BENCH_DEVICE=gpu in the environment places all jobs there, and is an error without one.
package.path = arg[0]:match("^(.*/)") .. "?.lua;" .. package.path
local flow = require "moonflow"
local models = require "models"
local ops = require "ops"
local now = require "clock"
local np, tp, m = flow.np, flow.typing, flow.math

local function median(values)
  table.sort(values)
  return values[math.ceil(#values / 2)]
end

-- Median seconds of one of `n` calls that `body(n)` makes. Each sample is long enough for the clock, or as long as
-- said.
local function seconds_per_call(body, seconds, seconds_of_sample)
  body(2) -- compiles
  local start = now()
  body(1)
  local n = math.max(1, math.ceil((seconds_of_sample or 1e-3) / (now() - start)))
  local samples = {}
  start = now()
  repeat
    local before = now()
    body(n)
    samples[#samples + 1] = (now() - before) / n
  until now() - start > seconds and #samples >= 5
  return median(samples)
end

-- ---- jobs -----------------------------------------------------------------------------------------------------------

local BATCH = 100
np.random.seed(1)
local digits = np.random.uniform(0, 1, { BATCH, 1, 28, 28 }):astype(flow.float)
local pictures = np.random.uniform(0, 1, { BATCH, 3, 32, 32 }):astype(flow.float)
local photos = np.random.uniform(0, 1, { 32, 3, 96, 96 }):astype(flow.float)
local targets = np.random.randint(0, 10, { BATCH }):astype(flow.int32)
local sequences = np.random.uniform(0, 1, { 16, 128, 256 }):astype(flow.float)
local steps = np.random.uniform(-1, 1, { 16, 20, 8 }):astype(flow.float)
local observations = np.random.uniform(-1, 1, { 32, 8 }):astype(flow.float)
local five = np.random.uniform(-1, 1, { 5 }):astype(flow.float)

local device = os.getenv("MOONFLOW_BENCH_DEVICE")
if device then flow.config.strict_placement(true) end
if device == "gpu" then
  local _, reason = flow.config.gpu_devices()
  if reason then
    io.stderr:write("no GPU: ", reason, "\n")
    os.exit(1)
  end
end
local placement = device and { device, "0:0" }

-- The precisions of a row: none, strict float32; "bf16", as PyTorch's autocast to it; "tf32", on a gpu.
local function config(precision, slots)
  return { enable_auto_mixed_precision = precision == "bf16" or nil, allow_tf32 = precision == "tf32" or nil,
           enable_weight_quantization = precision == "8 bits" or nil, concurrency_width = slots }
end

local function train_job(model, inputs, classes, precision, watch, handler, slots)
  local job = flow.global_function {
    type = "train",
    placement = placement,
    function_config = config(precision, slots),
    inputs = {
      images = tp.Numpy.Placeholder(inputs.shape:table(), { dtype = flow.float }),
      labels = tp.Numpy.Placeholder(classes.shape:table(), { dtype = flow.int32 }),
    },
    returns = handler and tp.Callback[tp.Numpy] or tp.Numpy,
  } (function(images, labels)
    local logits = model(images, true)
    if watch then flow.watch(logits, watch) end
    local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    -- So small that thousands of steps on one batch do not change what is computed.
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler({}, { 1e-4 }), { momentum = 0 }):minimize(loss)
    return loss
  end)
  if not handler then
    return function(n)
      for _ = 1, n do job(inputs, classes) end
    end, job
  end
  return function(n)
    for _ = 1, n do job(inputs, classes)(handler) end
    flow.sync()
  end, job
end

local function predict_job(model, inputs, precision)
  local job = flow.global_function {
    type = "predict",
    placement = placement,
    function_config = config(precision),
    inputs = { images = tp.Numpy.Placeholder(inputs.shape:table(), { dtype = flow.float }) },
    returns = tp.Numpy,
  } (function(images) return model(images, false) end)
  return function(n)
    for _ = 1, n do job(inputs) end
  end, job
end

-- The smallest job: relu(x + 1) of five numbers.
local function relu_job(returns, watch)
  local inputs = { x = tp.Numpy.Placeholder({ 5 }) }
  return flow.global_function { inputs = inputs, returns = returns, placement = placement } (function(x)
    local y = flow.nn.relu(x + 1)
    if watch then flow.watch(y, watch) end
    return y
  end)
end

-- ---- rows -----------------------------------------------------------------------------------------------------------
-- A row makes its measurement: a function of the seconds it may take. One that this build cannot do gives nil.

local function first(n, images) return images:slice("0:" .. n):copy() end

-- Measures calls of a job. One that is to compute in mixed precision must have such steps.
local function calling(precision, body, job)
  if precision == "bf16" then
    flow.train.CheckPoint():init()
    body(1)
    if not job:summary({ plan = true }):find("bfloat16", 1, true) then return nil end
  end
  return function(seconds) return seconds_per_call(body, seconds) end
end

local function training(model, inputs, precision)
  return calling(precision, train_job(model, inputs, first(inputs.shape[0], targets), precision))
end

-- As a script trains that looks at each loss when it comes. Long samples: at the end of each all is waited for.
-- `slots`: how many steps may be in flight.
local function training_asynchronously(model, inputs, precision, slots)
  local last
  local body = train_job(model, inputs, first(inputs.shape[0], targets), precision, nil,
    function(loss) last = loss[0] end, slots)
  return function(seconds)
    local value = seconds_per_call(body, seconds, 0.03)
    assert(last == last and math.abs(last) < 100, "the loss is " .. tostring(last))
    return value
  end
end

local function predicting(model, images, precision)
  return calling(precision, predict_job(model, images, precision))
end

-- What a caller pays for a step that has a free slot, which is copying its feeds and starting it.
local function starting(model)
  local ignore = function() end
  local _, job = train_job(model, digits, targets, nil, nil, ignore)
  return function(seconds)
    local times, start = {}, now()
    repeat
      local before = now()
      job(digits, targets)(ignore)
      times[#times + 1] = now() - before
      flow.sync()
    until now() - start > seconds and #times >= 100
    return median(times)
  end
end

-- How much slower, in percent, a step is with the watch than without; steps of both kinds in turn, since the machine
-- drifts by more than the difference.
local function watching()
  local plain = train_job(models.lenet, digits, targets)
  local watched = train_job(models.lenet, digits, targets, nil, function() end)
  plain(3)
  watched(3)
  return function(seconds)
    local without, with = {}, {}
    local start = now()
    repeat
      local a = now()
      plain(1)
      local b = now()
      watched(1)
      local c = now()
      without[#without + 1], with[#with + 1] = b - a, c - b
    until now() - start > 4 * seconds
    return 100 * (median(with) / median(without) - 1)
  end
end

-- How many times as fast a script trains that prepares each batch while earlier steps are under way, as one that does
-- one after the other. Preparing goes pixel by pixel in Lua, and takes about twice as long as a step. Where a step
-- keeps both of two cores busy, these have work for two steps' time, and one after the other takes three: 1.5 is the
-- bound.
local function preparing_beside(model)
  local train, job = train_job(model, digits, targets)
  local ignore = function() end
  local _, meanwhile = train_job(model, digits, targets, nil, nil, ignore)
  local function prepared(passes)
    local batch = np.zeros(digits.shape)
    local from, to = digits:ptr(), batch:ptr()
    for pass = 1, passes do
      local gain = 0.9 + 0.2 * pass / passes
      for i = 0, #digits * 28 * 28 - 1 do to[i] = math.min(1, from[i] * gain + 0.01) end
    end
    return batch
  end
  return function(seconds)
    local step = seconds_per_call(train, seconds / 4)
    local pass = seconds_per_call(prepared, seconds / 4, 0.1)
    local passes = math.ceil(2 * step / pass)
    local in_turn = seconds_per_call(function(n)
      for _ = 1, n do job(prepared(passes), targets) end
    end, seconds, 0.3)
    local beside = seconds_per_call(function(n)
      for _ = 1, n do meanwhile(prepared(passes), targets)(ignore) end
      flow.sync()
    end, seconds, 0.3)
    return in_turn / beside
  end
end

-- The 99th of a hundred calls in order of their time.
local function slow_calls(body)
  return function(seconds)
    body(100)
    local times, start = {}, now()
    repeat
      local before = now()
      body(1)
      times[#times + 1] = now() - before
    until now() - start > seconds and #times >= 1000
    table.sort(times)
    return times[math.ceil(#times * 0.99)]
  end
end

local function building()
  return function()
    local start = now()
    local body = train_job(models.lenet, digits, targets)
    flow.train.CheckPoint():init()
    body(1)
    local built = now() - start
    return built - seconds_per_call(body, 0.2)
  end
end

local function peak_memory()
  return function()
    train_job(models.lenet, digits, targets)(20)
    for line in io.lines("/proc/self/status") do
      local kib = line:match("^VmHWM:%s+(%d+) kB")
      if kib then return kib / 1024 end
    end
  end
end

local function relu_calls()
  local job = relu_job(tp.Numpy)
  return function(seconds)
    return seconds_per_call(function(n)
      for _ = 1, n do job(five) end
    end, seconds)
  end
end

local function prepared_calls(job, x)
  local call = job:prepare()
  return function(seconds)
    return seconds_per_call(function(n)
      for _ = 1, n do call(x) end
    end, seconds)
  end
end

local function prepared_net(body, data)
  local x = first(1, data)
  local _, job = predict_job(body, x)
  return prepared_calls(job, x)
end

local function watch_delivery()
  local plain, watched = relu_job(tp.Numpy), relu_job(tp.Numpy, function() end)
  return function(seconds)
    local function cost(job)
      return seconds_per_call(function(n)
        for _ = 1, n do job(five) end
      end, seconds / 2)
    end
    local alone = cost(plain)
    return cost(watched) - alone
  end
end

local function asynchronous_calls()
  local job, deliver = relu_job(tp.Callback[tp.Numpy]), function() end
  return function(seconds)
    return seconds_per_call(function(n)
      for _ = 1, n do job(five)(deliver) end
      flow.sync()
    end, seconds)
  end
end

-- What an op gives is dropped at once, as PyTorch's is.
local function row_of(count) return np.random.uniform(0, 1, { 1, count }):astype(flow.float) end
local function words(length) return np.random.uniform(0, 1, { length, 384 }):astype(flow.float) end

local function predicting_op(op)
  local x = np.random.uniform(op.low, 1, op.shape):astype(flow.float)
  return predicting(function(images) return op.body(images) end, x)
end

-- The op of a variable, whose gradient is that of a sum, and which is updated.
local function training_op(op)
  local job = flow.global_function { type = "train", returns = tp.None, placement = placement } (function()
    local x = flow.get_variable("x of " .. op.name, { shape = op.shape,
      initializer = flow.random_uniform_initializer(op.low, 1) })
    flow.optimizer.SGD(0, { momentum = 0 }):minimize(m.reduce_sum(op.body(x)))
  end)
  return calling(nil, function(n)
    for _ = 1, n do job() end
  end, job)
end

local rows = {
  ["LeNet training"] = function() return training(models.lenet, digits) end,
  ["LeNet training bf16"] = function() return training(models.lenet, digits, "bf16") end,
  ["MLP training"] = function() return training(models.mlp, digits) end,
  ["MLP training bf16"] = function() return training(models.mlp, digits, "bf16") end,
  ["LeNet predict, batch 1"] = function() return predicting(models.lenet, first(1, digits)) end,
  ["LeNet predict, batch 100"] = function() return predicting(models.lenet, digits) end,
  ["MLP predict, batch 1"] = function() return predicting(models.mlp, first(1, digits)) end,
  ["MLP predict, batch 1, bf16"] = function() return predicting(models.mlp, first(1, digits), "bf16") end,
  ["MLP predict, batch 100"] = function() return predicting(models.mlp, digits) end,
  ["dense 4096, batch 1"] = function() return predicting(models.wide, row_of(4096)) end,
  ["dense 4096, batch 1, 8 bits"] = function() return predicting(models.wide, row_of(4096), "8 bits") end,
  ["a word of a text, 124 million weights"] = function() return predicting(models.writer, row_of(768)) end,
  ["a word of a text, 124 million weights, 8 bits"] = function()
    return predicting(models.writer, row_of(768), "8 bits")
  end,
  ["ResNet-18 training"] = function() return training(models.resnet18, pictures) end,
  ["ResNet-18 training bf16"] = function() return training(models.resnet18, pictures, "bf16") end,
  ["ResNet-18 predict in bytes, batch 1"] = function()
    return predicting(models.resnet18_in_bytes, first(1, pictures))
  end,
  ["MobileNetV2 predict in bytes, batch 1"] = function()
    return predicting(models.mobilenet_in_bytes, first(1, photos))
  end,
  ["MiniLM predict in bytes, 128 words"] = function() return predicting(models.minilm_in_bytes, words(128)) end,
  ["MiniLM predict in bytes, 8 words"] = function() return predicting(models.minilm_in_bytes, words(8)) end,
  ["MobileNetV2 training, batch 32"] = function() return training(models.mobilenet, photos) end,
  ["MobileNetV2 predict, batch 1"] = function() return predicting(models.mobilenet, first(1, photos)) end,
  ["transformer training"] = function() return training(models.transformer, sequences) end,
  ["transformer training bf16"] = function() return training(models.transformer, sequences, "bf16") end,
  ["policy predict, batch 1"] = function() return predicting(models.policy, first(1, observations)) end,
  ["policy training, batch 32"] = function() return training(models.policy, observations) end,
  ["GRU training, 20 steps"] = function() return training(models.gru, steps) end,
  ["MLP training, asynchronous"] = function() return training_asynchronously(models.mlp, digits) end,
  ["LeNet training, asynchronous"] = function() return training_asynchronously(models.lenet, digits) end,
  ["MLP training bf16, asynchronous"] = function() return training_asynchronously(models.mlp, digits, "bf16") end,
  ["LeNet training bf16, asynchronous"] = function() return training_asynchronously(models.lenet, digits, "bf16") end,
  ["LeNet training, asynchronous, 1 slot"] = function()
    return training_asynchronously(models.lenet, digits, nil, 1)
  end,
  ["LeNet training, asynchronous, 2 slots"] = function()
    return training_asynchronously(models.lenet, digits, nil, 2)
  end,
  ["MLP training, asynchronous, 1 slot"] = function() return training_asynchronously(models.mlp, digits, nil, 1) end,
  ["MLP training, asynchronous, 2 slots"] = function() return training_asynchronously(models.mlp, digits, nil, 2) end,
  ["LeNet training tf32"] = function() return training(models.lenet, digits, "tf32") end,
  ["MLP training tf32"] = function() return training(models.mlp, digits, "tf32") end,
  ["LeNet training tf32, asynchronous"] = function() return training_asynchronously(models.lenet, digits, "tf32") end,
  ["MLP training tf32, asynchronous"] = function() return training_asynchronously(models.mlp, digits, "tf32") end,
  ["start of an MLP training step"] = function() return starting(models.mlp) end,
  ["start of a LeNet training step"] = function() return starting(models.lenet) end,
  ["MLP predict, batch 1, slowest of 100"] = function()
    return slow_calls(predict_job(models.mlp, first(1, digits)))
  end,
  ["ResNet-18 predict"] = function() return predicting(models.resnet18, pictures) end,
  ["ResNet-18 predict bf16"] = function() return predicting(models.resnet18, pictures, "bf16") end,
  ["call of relu(x + 1) on 5 floats"] = relu_calls,
  ["watch of the logits at every LeNet step"] = watching,
  ["LeNet training while batches are prepared"] = function() return preparing_beside(models.lenet) end,
  ["graph build and first compile of LeNet training"] = building,
  ["peak memory of LeNet training"] = peak_memory,
  ["delivery of a watch, beside its call"] = watch_delivery,
  ["asynchronous call with its callback"] = asynchronous_calls,
  ["prepared call of relu(x + 1) on 5 floats"] = function() return prepared_calls(relu_job(tp.Numpy), five) end,
  ["prepared call of the policy, batch 1"] = function() return prepared_net(models.policy, observations) end,
  ["prepared call of LeNet, batch 1"] = function() return prepared_net(models.lenet, digits) end,
  ["prepared call of MobileNetV2, batch 1"] = function() return prepared_net(models.mobilenet, photos) end,
}

for _, op in ipairs(ops) do
  rows[op.name] = function() return predicting_op(op) end
  rows[op.name .. ", training"] = function() return training_op(op) end
end

local function answer(name, measure, seconds)
  if measure then print(("%.9g\t"):format(measure(seconds))) end
  print("done")
  io.flush()
  return name
end

if arg[1] then
  answer(arg[1], rows[arg[1]](), 1)
  return
end

print("Moonflow " .. flow.version)
io.flush()
local made = {} -- by name; false where this build cannot
for request in io.lines() do
  local name, seconds = request:match("^(.-)\t(%S+)")
  if made[name] == nil then
    made[name] = rows[name] and rows[name]() or false
    flow.train.CheckPoint():init()
  end
  answer(name, made[name], tonumber(seconds))
end
