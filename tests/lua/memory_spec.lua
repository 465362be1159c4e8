-- The memory of a plan against the least that the lives of its values allow, for a real network: a residual net of 50
-- layers (three convolutions a block, 3, 4, 6 and 3 blocks) on images of 32x32.
local flow = require "moonflow"
local session = require "moonflow.session"
local np, tp = flow.np, flow.typing

local function conv(x, filters, size, strides, name)
  local pad = math.floor(size / 2)
  local y = flow.layers.conv2d(x, filters, size, {
    strides = strides, padding = { pad, pad }, use_bias = false, name = name })
  return flow.layers.batch_normalization(y, { name = name .. "-norm" })
end

local function bottleneck(x, width, strides, name)
  local y = flow.nn.relu(conv(x, width, 1, 1, name .. "-1"))
  y = flow.nn.relu(conv(y, width, 3, strides, name .. "-2"))
  y = conv(y, 4 * width, 1, 1, name .. "-3")
  if strides ~= 1 or x.shape[1] ~= 4 * width then x = conv(x, 4 * width, 1, strides, name .. "-shortcut") end
  return flow.nn.relu(y + x)
end

local function resnet50(images)
  local x = flow.nn.relu(conv(images, 64, 3, 1, "stem"))
  for stage, blocks in ipairs { 3, 4, 6, 3 } do
    for block = 1, blocks do
      local strides = stage > 1 and block == 1 and 2 or 1
      x = bottleneck(x, 32 * 2 ^ stage, strides, ("stage%d-%d"):format(stage, block))
    end
  end
  return flow.layers.dense(flow.math.reduce_mean(x, { axis = { 2, 3 } }), 10, { name = "output" })
end

local function train_job(batch)
  return flow.global_function {
    type = "train",
    inputs = {
      images = tp.Numpy.Placeholder({ batch, 3, 32, 32 }),
      labels = tp.Numpy.Placeholder({ batch }, { dtype = flow.int32 }),
    },
    returns = tp.Numpy,
  } (function(images, labels)
    local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, resnet50(images))
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler({}, { 0.1 }), { momentum = 0.9 }):minimize(loss)
    return loss
  end)
end

local function predict_job(batch)
  return flow.global_function {
    type = "predict",
    inputs = { images = tp.Numpy.Placeholder({ batch, 3, 32, 32 }) },
    returns = tp.Numpy,
  } (resnet50)
end

-- Bytes of the plan's values, and their lower bound: most bytes alive at any one step.
local function memory_of(job)
  local taken, least = job:summary({ plan = true }):match("values take ([%d,]+) bytes, at least ([%d,]+)")
  local function bytes(text) return tonumber((text:gsub(",", ""))) end
  return bytes(taken), bytes(least)
end

describe("the memory of a residual net of 50 layers", function()
  before_each(function()
    flow.clear_default_session()
    np.random.seed(1)
  end)

  for _, batch in ipairs { 1, 4 } do
    local images = np.zeros({ batch, 3, 32, 32 }):astype(flow.float)

    it(("is at most a tenth above what its values need at once, training with batch %d"):format(batch), function()
      local job = train_job(batch)
      job(images, np.zeros({ batch }):astype(flow.int32))
      local taken, least = memory_of(job)
      assert.is_true(taken <= 1.1 * least, ("%d bytes, at least %d"):format(taken, least))
    end)

    it(("is at most a tenth above what its values need at once, predicting with batch %d"):format(batch), function()
      local job = predict_job(batch)
      job(images)
      local taken, least = memory_of(job)
      assert.is_true(taken <= 1.1 * least, ("%d bytes, at least %d"):format(taken, least))
    end)
  end
end)

-- What malloc has given out and not got back, but for the large arrays that wait to be used again; nil under the
-- sanitizers, which bring a malloc of their own and look for leaks themselves.
local function bytes_in_use()
  if require("moonflow.core").build_info().sanitizer ~= "" then
    pending("the sanitizers look for leaks themselves")
    return nil
  end
  local ffi = require "ffi"
  if not pcall(ffi.typeof, "struct moonflow_malloc_counts") then
    ffi.cdef [[
      struct moonflow_malloc_counts {
        size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks, keepcost;
      };
      struct moonflow_malloc_counts mallinfo2(void);
    ]]
  end
  collectgarbage()
  collectgarbage()
  local counts = ffi.C.mallinfo2()
  local spare = require("moonflow.session").handle():memory().spare_bytes
  return tonumber(counts.uordblks + counts.hblkhd) - spare
end

-- How many bytes `live` leaves behind in so many lives, after as many that bring what stays for good. The last life
-- follows the collection of those before it, so that it may clear up behind them.
local function growth_of(live, lives)
  local function bytes_after(count)
    for _ = 1, count do live() end
    collectgarbage()
    collectgarbage()
    live()
    return bytes_in_use()
  end
  local before = bytes_after(lives)
  return before and bytes_after(lives) - before or 0
end

describe("a collector that the host has stopped", function()
  it("stays stopped, whatever arrays there are", function()
    collectgarbage()
    collectgarbage("stop")
    finally(function() collectgarbage("restart") end)
    local held = setmetatable({ {} }, { __mode = "v" })
    for _ = 1, 30 do np.zeros({ 1024, 1024 }) end
    assert.truthy(held[1])
  end)
end)

describe("flow.memory", function()
  local function now()
    collectgarbage()
    collectgarbage()
    return flow.memory()
  end

  before_each(function() flow.clear_default_session() end)

  it("tells how much arrays, variables and the plans of each job take", function()
    local before = now()
    assert.same({}, before.jobs)
    local array = np.zeros({ 1000, 1000 })
    assert.is_true(flow.memory().live - before.live >= 4e6)
    local x = np.ones({ 10, 1000 })
    local jobs = {}
    for _, name in ipairs { "small", "large" } do
      jobs[name] = flow.global_function {
        name = name, type = "train", inputs = { input = tp.Numpy.Placeholder({ 10, 1000 }) }, returns = tp.Numpy,
      } (function(input)
        local width = name == "small" and 10 or 100
        local loss = flow.layers.dense(input, width, { name = name, use_bias = false }) ^ 2
        flow.optimizer.SGD(0.1, { momentum = 0.9 }):minimize(loss)
        return loss
      end)
      jobs[name](x)
    end
    local with_jobs = now()
    -- Two of each weight, of 40 KB and of 400 KB, and two steps of 8 bytes; a line of memory each at most beside them.
    assert.is_true(with_jobs.variables >= 880e3 and with_jobs.variables < 880e3 + 6 * 64, with_jobs.variables)
    assert.is_true(with_jobs.jobs.large > 0 and with_jobs.jobs.small > 0)
    assert.is_true(with_jobs.live - before.live >= with_jobs.jobs.large + with_jobs.jobs.small)
    jobs.large = nil
    assert.is_nil(now().jobs.large)
    array:release()
    assert.is_true(with_jobs.live - now().live >= 4e6)
    assert.is_true(with_jobs.lua > 1e5 and with_jobs.spare >= 0)
  end)

  it("counts the plans of a job for each size of batch, and what they hold beside their arena", function()
    local job = flow.global_function {
      name = "by_batch", inputs = { x = tp.ListNumpy.Placeholder({ 500, 500 }) }, returns = tp.Numpy,
    } (function(x) return flow.math.reduce_sum(x + np.ones({ x.shape[0], 500 })) end)
    job({ np.ones({ 100, 500 }) })
    local one = now().jobs.by_batch
    assert.is_true(one >= 600 * 500 * 4)  -- of the rows it was defined with, and of these
    job({ np.ones({ 200, 500 }) })
    assert.is_true(now().jobs.by_batch >= one + 200 * 500 * 4)
  end)
end)

describe("a job", function()
  it("is collected before its memory piles up, though Lua sees only small boxes", function()
    local function alive() return session.handle():memory().live_bytes end
    collectgarbage()
    local before, most = alive(), 0
    for _ = 1, 120 do  -- each has some 8 MB between its ops
      local job = flow.global_function { name = "again", type = "predict", returns = tp.Numpy,
                                         inputs = { x = tp.Numpy.Placeholder({ 1000, 1000 }) } } (function(x)
        local y = flow.math.cumsum(flow.transpose(x), 0)
        return flow.math.reduce_sum(flow.math.cumsum(y, 1) + y)
      end)
      job(np.zeros { 1000, 1000 })
      most = math.max(most, alive() - before)
    end
    assert.is_true(most > 8e6 and most < 600e6, most / 1e6 .. " MB")
    flow.clear_default_session()
    assert.is_true(alive() - before < 1e6)
  end)

  it("does not keep the arrays of its last call", function()
    local array = tp.Numpy.Placeholder({ 1000, 1000 })
    local job = flow.global_function { inputs = { { "x", array }, { "y", array } }, returns = tp.Numpy } (function(x, y)
      return flow.math.reduce_sum(x + y)
    end)
    local function alive()
      collectgarbage()
      collectgarbage()
      return session.handle():memory().live_bytes
    end
    job(np.zeros { 1000, 1000 }, np.zeros { 1000, 1000 })
    local before = alive()
    for _ = 1, 3 do job(np.zeros({ 1000, 1000 }), np.zeros({ 1000, 1000 })) end
    assert.is_true(alive() - before < 1e6)
  end)
end)

describe("one after another", function()
  it("sessions leave nothing behind", function()
    local growth = growth_of(function()
      local job = flow.global_function {
        type = "train", inputs = { x = tp.Numpy.Placeholder({ 32, 64 }) }, returns = tp.Numpy,
      } (function(x)
        local loss = flow.layers.dense(flow.layers.dense(x, 128, { name = "hidden" }), 128, { name = "out" }) ^ 2
        flow.optimizer.Adam(0.01):minimize(loss)
        return loss
      end)
      for _ = 1, 3 do job(np.ones({ 32, 64 })) end
      flow.clear_default_session()
    end, 30)
    -- The variables of one session and their slots are 300 KB.
    assert.is_true(growth < 150e3, growth .. " bytes")
  end)

  it("sessions give back what they held as they end, and not when Lua next collects", function()
    local held = setmetatable({}, { __mode = "v" })
    local function live()
      held[1] = flow.global_function { type = "train", returns = tp.None } (function()
        local w = flow.get_variable("w", { shape = { 8 }, initializer = flow.zeros_initializer() })
        flow.optimizer.SGD(0.1):minimize(w)
      end)
      held[1]()
    end
    for _, finish in ipairs { flow.clear_default_session, flow.shutdown } do
      live()
      assert.is_table(held[1])
      finish()
      assert.is_nil(held[1])
    end
  end)

  it("jobs with their watches leave nothing behind", function()
    local ones = np.ones({ 1, 3 })
    local handled, called = setmetatable({}, { __mode = "k" }), 0
    local function handler()
      local function handle(value)
        called = called + 1
        handled[value] = true
      end
      handled[handle] = true
      return handle
    end
    local growth = growth_of(function()
      local job = flow.global_function {
        type = "train", inputs = { x = tp.Numpy.Placeholder({ 1, 3 }) }, returns = tp.Callback[tp.Numpy],
      } (function(x)
        local loss = flow.layers.dense(x, 4, { name = "short-lived" })
        flow.watch(loss, handler())
        flow.watch_diff(loss, handler())
        flow.optimizer.SGD(0.1):minimize(loss)
        return loss
      end)
      job:watch(job:value_names()[1], handler())
      job(ones)(handler())
      flow.sync()
    end, 300)
    assert.equal(602 * 4, called)
    assert.is_nil(next(handled))
    assert.is_true(growth < 60e3, growth .. " bytes")  -- 200 a job
    flow.clear_default_session()
  end)

  it("prepared calls leave nothing behind", function()
    local job = flow.global_function {
      inputs = { x = tp.Numpy.Placeholder({ 1, 3 }) }, returns = tp.Numpy,
    } (function(x) return flow.layers.dense(x, 4, { name = "prepared" }) end)
    local growth = growth_of(function()
      local act = job:prepare()
      act(np.ones({ 1, 3 }))
      act:publish()
    end, 1000)
    assert.is_true(growth < 100e3, growth .. " bytes")  -- 100 a call
    flow.clear_default_session()
  end)
end)
