-- Weights in 8 bits: what users see of them. On a gpu they change nothing.
local flow = require "moonflow"
local np = require "moonflow.np"

local tp = flow.typing
local IN, UNITS = 256, 192
local on_gpu = os.getenv("MOONFLOW_TEST_PLACEMENT") == "gpu"

local function network(x)
  local hidden = flow.layers.dense(x, UNITS, { activation = flow.nn.relu, name = "hidden" })
  return flow.layers.dense(hidden, UNITS, { name = "out" })
end

local function predictor(name, config, rows)
  return flow.global_function {
    name = name, function_config = config, inputs = { x = tp.Numpy.Placeholder({ rows or 1, IN }) }, returns = tp.Numpy,
  } (network)
end

local function inputs(rows) return np.random.default_rng(3):normal(0, 1, { rows or 1, IN }):astype("float32") end

local function distance(a, b)
  local far, size = a - b, np.sqrt(np.mean(np.square(b)))
  return np.sqrt(np.mean(np.square(far))) / size
end

local quantized = { enable_weight_quantization = true }

describe("weights in 8 bits", function()
  before_each(function()
    flow.clear_default_session()
    flow.set_seed(5)
  end)

  it("change predictions of up to 8 rows by less than a hundredth, and the plan shows them", function()
    for _, rows in ipairs { 1, 8, 9 } do
      local plain, narrow = predictor("plain" .. rows, nil, rows), predictor("narrow" .. rows, quantized, rows)
      local far = distance(narrow(inputs(rows)), plain(inputs(rows)))
      if on_gpu or rows == 9 then
        assert.equal(0, far)
      else
        assert.is_true(far > 1e-4 and far < 0.01, rows .. ": " .. far)
      end
      local is_quantized = narrow:summary({ plan = true }):find("8 bits", 1, true) ~= nil
      assert.equal(not on_gpu and rows < 9, is_quantized)
      assert.is_nil(plain:summary({ plan = true }):find("8 bits", 1, true))
    end
  end)

  it("follow the variables, which stay as they are", function()
    local plain, narrow = predictor("plain"), predictor("narrow", quantized)
    local x = inputs()
    for seed = 1, 3 do
      local values = {}
      for name, value in pairs(flow.get_all_variables()) do
        values[name] = np.random.default_rng(seed):normal(0, 0.1, value.shape:table()):astype("float32")
      end
      flow.load_variables(values)
      assert.is_true(distance(narrow(x), plain(x)) < 0.01)
      for name, value in pairs(values) do
        assert.is_true(np.array_equal(value, flow.get_all_variables()[name]), name)
      end
    end
  end)

  it("are those of a product, of a prepared call, and of what is made of variables", function()
    local function product(name, config)
      return flow.global_function {
        name = name, function_config = config, inputs = { x = tp.Numpy.Placeholder({ 2, IN }) }, returns = tp.Numpy,
      } (function(x)
        local w = flow.get_variable("w", { shape = { IN, UNITS }, initializer = flow.random_normal_initializer(0, 1) })
        return flow.matmul(x, w * 0.5)
      end)
    end
    local wanted, narrow = product("plain")(inputs(2)), product("narrow", quantized)
    local got = narrow(inputs(2))
    local far = distance(got, wanted)
    assert.is_true(far < 0.01)
    if on_gpu then return end  -- where there are no prepared calls either
    assert.is_true(far > 1e-4)
    local call = narrow:prepare()
    assert.is_true(np.array_equal(got, call(inputs(2))))
  end)

  it("do not hinder training, whose weights change", function()
    local job = flow.global_function {
      name = "train", type = "train", function_config = quantized, returns = tp.Numpy,
      inputs = { x = tp.Numpy.Placeholder({ 4, IN }) },
    } (function(x)
      local loss = flow.math.reduce_mean(flow.math.square(network(x)))
      flow.optimizer.SGD(0.1):minimize(loss)
      return loss
    end)
    assert.is_nil(job:summary({ plan = true }):find("8 bits", 1, true))
    local first = job(inputs(4)):mean()
    for _ = 1, 10 do job(inputs(4)) end
    assert.is_true(job(inputs(4)):mean() < 0.5 * first)
  end)

  it("are asked for by a switch", function()
    local config = flow.function_config()
    config:enable_weight_quantization()
    local narrow = predictor("narrow", config)
    assert.equal(not on_gpu, narrow:summary({ plan = true }):find("8 bits", 1, true) ~= nil)
    local ok, err = pcall(predictor, "wrong", { enable_weight_quantization = flow.int8 })
    assert.is_false(ok)
    assert.truthy(tostring(err):find("enable_weight_quantization wants true or false, got", 1, true))
  end)
end)
