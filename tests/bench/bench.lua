-- Measures Moonflow as a script sees it. One line per measurement: name, unit, median of the round, configuration.
-- usage: moonflow bench.lua data FOLDER              makes the data that we and the peer read
--        moonflow bench.lua measure FOLDER SECONDS   measures each thing for so long
local ffi = require "ffi"
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

local command, folder, seconds = arg[1], arg[2], tonumber(arg[3] or 1)
local BATCH = 100

if command == "data" then
  np.random.seed(1)
  np.save(folder .. "/images.npy", np.random.uniform(0, 1, { BATCH, 1, 28, 28 }):astype(flow.float))
  np.save(folder .. "/labels.npy", np.random.randint(0, 10, { BATCH }):astype(flow.int32))
  return
end

ffi.cdef [[
  struct moonflow_bench_time { long seconds, nanoseconds; };
  int clock_gettime(int clock, struct moonflow_bench_time* time);
]]
local time = ffi.new("struct moonflow_bench_time")

local function now()
  ffi.C.clock_gettime(1, time) -- CLOCK_MONOTONIC
  return tonumber(time.seconds) + tonumber(time.nanoseconds) * 1e-9
end

-- Median seconds per call of `body(n)`, which does its work n times. The first calls, which compile, do not count.
local function seconds_per_call(body, n)
  body(n)
  body(n)
  local samples, start = {}, now()
  repeat
    local before = now()
    body(n)
    samples[#samples + 1] = (now() - before) / n
  until now() - start > seconds and #samples >= 5
  table.sort(samples)
  return samples[math.ceil(#samples / 2)]
end

local function report(name, unit, value)
  print(("%s\t%s\t%.6g\t"):format(name, unit, value))
end

-- ---- the models of the samples ------------------------------------------------------------------------------------

local function lenet(data, train)
  local conv1 = flow.layers.conv2d(data, 32, 5, { padding = "SAME", activation = flow.nn.relu, name = "conv1" })
  local pool1 = flow.nn.max_pool2d(conv1, { ksize = 2, strides = 2, padding = "SAME", name = "pool1" })
  local conv2 = flow.layers.conv2d(pool1, 64, 5, { padding = "SAME", activation = flow.nn.relu, name = "conv2" })
  local pool2 = flow.nn.max_pool2d(conv2, { ksize = 2, strides = 2, padding = "SAME", name = "pool2" })
  local flat = flow.reshape(pool2, { pool2.shape[0], -1 })
  local hidden = flow.layers.dense(flat, 512, { activation = flow.nn.relu, name = "dense1" })
  if train then hidden = flow.nn.dropout(hidden, { rate = 0.5, name = "dropout" }) end
  return flow.layers.dense(hidden, 10, { name = "dense2" })
end

local function mlp(data)
  local flat = flow.reshape(data, { data.shape[0], -1 })
  local hidden = flow.layers.dense(flat, 512, { activation = flow.nn.relu, name = "hidden" })
  return flow.layers.dense(hidden, 10, { name = "output" })
end

local function train_job(model)
  return flow.global_function {
    type = "train",
    inputs = {
      images = tp.Numpy.Placeholder({ BATCH, 1, 28, 28 }, { dtype = flow.float }),
      labels = tp.Numpy.Placeholder({ BATCH }, { dtype = flow.int32 }),
    },
    returns = tp.Numpy,
  } (function(images, labels)
    local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, true))
    -- So small that thousands of steps on one batch do not change what is computed.
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler({}, { 1e-4 }), { momentum = 0 }):minimize(loss)
    return loss
  end)
end

local function predict_job(model)
  return flow.global_function {
    type = "predict",
    inputs = { images = tp.Numpy.Placeholder({ 1, 1, 28, 28 }, { dtype = flow.float }) },
    returns = tp.Numpy,
  } (function(images) return model(images, false) end)
end

-- The smallest job: relu of five numbers.
local function relu_job(returns, watch)
  return flow.global_function {
    inputs = { x = tp.Numpy.Placeholder({ 5 }) },
    returns = returns,
  } (function(x)
    local y = flow.nn.relu(x)
    if watch then flow.watch(y, watch) end
    return y
  end)
end

-- ---- measurements ---------------------------------------------------------------------------------------------------

local images, labels = np.load(folder .. "/images.npy"), np.load(folder .. "/labels.npy")
local one_image = images:slice("0:1"):copy()

local function train(name, model, n)
  local job = train_job(model)
  flow.train.CheckPoint():init()
  report(name .. " training, batch 100", "images/s", BATCH / seconds_per_call(function(count)
    for _ = 1, count do job(images, labels) end
  end, n))
end

local function predict(name, model, n)
  local job = predict_job(model)
  report(name .. " predict, batch 1", "us", 1e6 * seconds_per_call(function(count)
    for _ = 1, count do job(one_image) end
  end, n))
end

train("LeNet", lenet, 1)
train("MLP", mlp, 5)
predict("LeNet", lenet, 10)
predict("MLP", mlp, 50)

local five = np.random.uniform(-1, 1, { 5 }):astype(flow.float)
local plain, watched = relu_job(tp.Numpy), relu_job(tp.Numpy, function() end)
local asynchronous, deliver = relu_job(tp.Callback[tp.Numpy]), function() end

local call = seconds_per_call(function(count)
  for _ = 1, count do plain(five) end
end, 2000)
local watched_call = seconds_per_call(function(count)
  for _ = 1, count do watched(five) end
end, 2000)
local asynchronous_call = seconds_per_call(function(count)
  for _ = 1, count do asynchronous(five)(deliver) end
  flow.sync()
end, 2000)
report("call of relu on 5 floats", "ns", 1e9 * call)
report("a watch's delivery, beside its call", "ns", 1e9 * (watched_call - call))
report("asynchronous call with its callback", "ns", 1e9 * asynchronous_call)
