-- Automatic mixed precision: what users see of it, and that networks learn as well in it. Also on a gpu, which computes
-- in either narrow dtype, and always gains by it.
local flow = require "moonflow"
local np = require "moonflow.np"
local process = require "process"

local tp = flow.typing
local BATCH, IN, HIDDEN = 64, 784, 192
local on_gpu = os.getenv("MOONFLOW_TEST_PLACEMENT") == "gpu"

local function network(x)
  local init = flow.random_uniform_initializer(-0.05, 0.05)
  local hidden = flow.layers.dense(x, HIDDEN, { activation = flow.nn.relu, kernel_initializer = init, name = "hidden" })
  hidden = flow.layers.dense(hidden, HIDDEN, { activation = flow.nn.relu, kernel_initializer = init, name = "second" })
  return flow.layers.dense(hidden, 10, { kernel_initializer = init, name = "out" }), hidden
end

local function train_job(config, watch)
  return flow.global_function {
    name = "train_job", type = "train", function_config = config, returns = tp.Numpy,
    inputs = { x = tp.Numpy.Placeholder({ BATCH, IN }),
               labels = tp.Numpy.Placeholder({ BATCH }, { dtype = flow.int32 }) },
  } (function(x, labels)
    local logits, hidden = network(x)
    if watch then
      flow.watch(hidden, watch)
      flow.watch_diff(hidden, watch)
    end
    local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    flow.optimizer.SGD(0.3, { momentum = 0 }):minimize(loss)
    return loss
  end)
end

-- Rows around ten centres, so that there is something to learn.
local function batch(seed)
  local random = np.random.default_rng(seed)
  local centres = np.random.default_rng(1):uniform(0, 1, { 10, IN })
  local labels = random:randint(0, 10, { BATCH }):astype("int32")
  return (np.take(centres, labels, 0) + random:uniform(-0.5, 0.5, { BATCH, IN })):astype("float32"), labels
end

local MIXED = { enable_auto_mixed_precision = true }

describe("mixed precision", function()
  -- Whether jobs are computed in bfloat16 at all; a permission changes nothing where that would be slower.
  local computes
  setup(function()
    for _, feature in ipairs(require("moonflow.core").build_info().cpu) do
      computes = computes or feature == "avx512_bf16"
    end
    -- A sanitized build has AVX-512 simulated, and bfloat16 with it.
    computes = on_gpu or (computes or process.sanitizer ~= "") and not os.getenv("MOONFLOW_SIMD")
  end)
  before_each(function()
    flow.clear_default_session()
    flow.set_seed(5)
  end)

  local function losses(config, steps)
    flow.clear_default_session()
    flow.set_seed(5)
    local job, all = train_job(config), {}
    for step = 1, steps do all[step] = job(batch(step)):mean() end
    return all
  end

  it("learns as float32 does", function()
    local wide, narrow = losses(nil, 40), losses(MIXED, 40)
    assert.is_true(wide[40] < 0.2 * wide[1])
    assert.is_true(narrow[40] < 0.2 * narrow[1])
    for step = 1, 5 do
      -- Each factor is rounded to 8 bits, which the sums average out.
      assert.is_true(math.abs(narrow[step] - wide[step]) < 0.01 * wide[step], step .. ": " .. narrow[step])
    end
    if computes then assert.is_true(narrow[5] ~= wide[5]) end
  end)

  it("keeps the dtypes that users see", function()
    local seen = {}
    local job = train_job(MIXED, function(value) seen[#seen + 1] = value end)
    assert.equal("float32", job(batch(1)).dtype)
    assert.equal(2, #seen)
    for _, value in ipairs(seen) do
      assert.equal("float32", value.dtype)
      assert.is_true(np.abs(value):max() > 0)
    end
    for _, entry in ipairs(require("moonflow.session").handle():variables()) do
      assert.is_true(entry.dtype == "float32" or entry.name:match("TrainStep") ~= nil, entry.name)
    end
  end)

  it("is told by the summary of the plan", function()
    local text = train_job(MIXED):summary { plan = true }
    assert.equal(computes or nil, text:find("dense 'hidden-matmul' in bfloat16", 1, true) and true)
    -- The gradient of the largest weight is not stored on its way into it.
    assert.equal(computes or nil, text:find("matmul_bfloat16_sgd_update", 1, true) and true)
    -- On the CPU it is too small to gain anything.
    assert.equal(on_gpu or nil, text:find("'out-matmul' in bfloat16", 1, true) and true)
    assert.is_nil(train_job():summary({ plan = true }):find("bfloat16", 1, true))
  end)

  it("rounds weights that are only read once, and again when they change", function()
    local function predict_job(config, size)
      return flow.global_function {
        inputs = { x = tp.Numpy.Placeholder({ size, IN }) }, returns = tp.Numpy, function_config = config,
      } (function(x) return (network(x)) end)
    end
    for _, size in ipairs { 1, BATCH } do
      flow.clear_default_session()
      flow.set_seed(5)
      local train, narrow, wide = train_job(), predict_job(MIXED, size), predict_job(nil, size)
      local text = narrow:summary { plan = true }
      assert.equal(computes or nil, text:find("cast 'hidden-weight'", 1, true) and true)
      if computes then assert.truthy(text:find("kept until a variable changes", 1, true)) end
      for step = 1, 3 do
        local images, labels = batch(step)
        local rows = images:slice("0:" .. size):copy()
        for _ = 1, 2 do
          local near, exact = narrow(rows), wide(rows)
          assert.is_true(np.abs(near - exact):max() < 0.01 * (np.abs(exact):max() + 0.1))
        end
        train(images, labels)
      end
    end
  end)

  it("is asked for in each dialect", function()
    local config = flow.function_config()
    config:enable_auto_mixed_precision()
    local text = train_job(config):summary { plan = true }
    assert.equal(computes or nil, text:find("in bfloat16", 1, true) and true)
    config:enable_auto_mixed_precision(false)
    assert.is_nil(train_job(config):summary({ plan = true }):find("in bfloat16", 1, true))
    local ok, problem = pcall(function() config:enable_auto_mixed_precision("yes") end)
    assert.is_false(ok)
    assert.truthy(tostring(problem):find("wants true or false, got 'yes'", 1, true))
    ok, problem = pcall(train_job, { enable_auto_mixed_precision = flow.float16 })
    assert.is_false(ok)
    assert.truthy(tostring(problem):find("got 'float16'; mixed_precision_dtype beside it takes the dtype", 1, true))
  end)

  it("takes the dtype beside the switch, in the dialect of methods", function()
    local config = flow.function_config()
    config:enable_auto_mixed_precision(true, flow.bfloat16)
    assert.equal(computes or nil, train_job(config):summary({ plan = true }):find("in bfloat16", 1, true) and true)
    config:enable_auto_mixed_precision(true, flow.float16)
    local text = train_job(config):summary({ plan = true })
    assert.is_nil(text:find("bfloat16", 1, true))
    assert.equal(on_gpu or nil, text:find("in float16", 1, true) and true)
    local ok, problem = pcall(function() config:enable_auto_mixed_precision(true, flow.float) end)
    assert.is_false(ok)
    assert.truthy(tostring(problem):find("enable_auto_mixed_precision's second argument wants flow.bfloat16 or "
      .. "flow.float16, got 'float32'", 1, true), tostring(problem))
    ok, problem = pcall(function() config:enable_auto_mixed_precision(true, flow.float16, 1024) end)
    assert.is_false(ok)
    assert.truthy(tostring(problem):find("takes at most 2 arguments, got 3", 1, true), tostring(problem))
  end)

  it("may be asked for in float16, for which the CPU has no instructions", function()
    local config = { enable_auto_mixed_precision = true, mixed_precision_dtype = flow.float16 }
    local text = train_job(config):summary({ plan = true })
    assert.equal(on_gpu or nil, text:find("dense 'hidden-matmul' in float16", 1, true) and true)
    assert.is_nil(text:find("bfloat16", 1, true))
    local wide, narrow = losses(nil, 3), losses(config, 3)
    for step = 1, 3 do
      -- Factors of 11 bits, where bfloat16 has 8: an eighth of what is allowed it.
      if on_gpu then assert.is_true(math.abs(narrow[step] - wide[step]) < 0.00125 * wide[step]) end
      assert.equal(on_gpu, narrow[step] ~= wide[step], step .. ": " .. narrow[step])
    end
    assert.same(wide, losses({ mixed_precision_dtype = flow.bfloat16 }, 3)) -- a choice is no permission
    local object = flow.function_config()
    assert.equal(object, object:mixed_precision_dtype(flow.float16))
    local ok, problem = pcall(train_job, { mixed_precision_dtype = flow.float })
    assert.is_false(ok)
    assert.truthy(tostring(problem):find("mixed_precision_dtype wants flow.bfloat16 or flow.float16, got 'float32'",
                                         1, true), tostring(problem))
  end)

  it("saves its master weights", function()
    local folder = process.folder("mixed")
    local job = train_job(MIXED)
    local check_point = flow.train.CheckPoint()
    check_point:init()
    job(batch(1))
    check_point:save(folder .. "/a", { overwrite = true })
    local after = job(batch(2))
    check_point:load(folder .. "/a")
    assert.is_true(after == job(batch(2)))
  end)
end)

local function computes_throughout(dtype)
  return function()
    before_each(function()
      flow.clear_default_session()
      flow.set_seed(5)
    end)

    it("computes in it throughout, and learns", function()
      local job = flow.global_function {
        type = "train", returns = tp.Tuple { tp.Numpy, tp.Numpy },
        inputs = { x = tp.Numpy.Placeholder({ BATCH, IN }, { dtype = dtype }),
                   labels = tp.Numpy.Placeholder({ BATCH }, { dtype = flow.int32 }) },
        function_config = { default_data_type = dtype },
      } (function(x, labels)
        local logits = network(x)
        local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, flow.cast(logits, flow.float))
        flow.optimizer.SGD(0.1, { momentum = 0 }):minimize(loss)
        return loss, logits
      end)
      local first, last, logits
      for step = 1, 30 do
        local images, labels = batch(step)
        last, logits = job(images:astype(dtype), labels)
        first = first or last:mean()
      end
      assert.equal(dtype, logits.dtype)
      assert.is_true(last:mean() < 0.7 * first)
    end)

    it("refuses a mixture, and says of what", function()
      local ok, problem = pcall(function()
        flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 2, 2 }, { dtype = dtype }) } } (function(x)
          return flow.matmul(x, flow.get_variable("w", { shape = { 2, 2 }, dtype = flow.float,
                                                         initializer = flow.zeros_initializer() }))
        end)
      end)
      assert.is_false(ok)
      assert.truthy(tostring(problem):find("the inputs differ in dtype: " .. dtype .. " and float32", 1, true))
    end)
  end
end

for _, dtype in ipairs({ flow.bfloat16, flow.float16 }) do
  describe("a job of " .. dtype, computes_throughout(dtype))
end
