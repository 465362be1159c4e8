-- Ops of jobs that draw random numbers, choose among ways to compute, or take more forms than one.
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

before_each(function()
  flow.clear_default_session()
  flow.set_seed(7)
end)

describe("Winograd's convolution", function()
  it("is forbidden by the job's configuration", function()
    local images = np.random.uniform(-1, 1, { 8, 16, 16, 16 }):astype(flow.float)
    local function convolve(config)
      return flow.global_function {
        inputs = { x = tp.Numpy.Placeholder({ 8, 16, 16, 16 }) }, returns = tp.Numpy, function_config = config,
        placement = { "cpu", "0:0" },  -- which has it for this size
      } (function(x)
        return flow.layers.conv2d(x, 16, 5, { kernel_initializer = flow.random_uniform_initializer(-1, 1),
          name = "conv" })
      end)(images)
    end
    local difference = np.abs(convolve() - convolve({ winograd = false })):max()
    assert.is_true(difference > 0 and difference < 0.01)
  end)

  it("takes true or false there", function()
    local ok, err = pcall(function() flow.function_config():winograd("no") end)
    assert.is_false(ok)
    assert.equal("winograd wants true or false, got 'no'", err.message)
  end)
end)

describe("cuDNN's options for convolutions", function()
  -- What a job with this configuration asks of its convolution.
  local function algorithm(config)
    local graph
    flow.global_function {
      inputs = { x = tp.Numpy.Placeholder({ 1, 1, 4, 4 }) }, returns = tp.Numpy, function_config = config,
    } (function(x)
      local y = flow.layers.conv2d(x, 1, 3, { name = "conv" })
      graph = require("moonflow.trace").need("this test").graph:dump()
      return y
    end)
    return graph:match("algorithm='(%a+)'")
  end

  it("have engines timed unless the choice is to be the same everywhere", function()
    assert.equal("auto", algorithm())
    assert.equal("auto", algorithm { cudnn_conv_heuristic_search_algo = true })
    assert.equal("timed", algorithm { cudnn_conv_heuristic_search_algo = false })
    assert.equal("auto", algorithm {
      cudnn_conv_heuristic_search_algo = false, cudnn_conv_use_deterministic_algo_only = true,
    })
    assert.equal("direct", algorithm { cudnn_conv_heuristic_search_algo = false, winograd = false })
    local ok, err = pcall(algorithm, { cudnn_conv_heuristic_search_algo = 1 })
    assert.is_false(ok)
    assert.truthy(tostring(err.message):find("cudnn_conv_heuristic_search_algo wants true or false, got", 1, true))
  end)
end)

describe("random ops", function()
  local function define()
    return flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 50 }) }, returns = tp.Numpy } (function(x)
      return flow.nn.random_mask_like(x, 0.5)
    end)
  end

  it("follow seed and call in a predict job", function()
    local zeros = np.zeros({ 50 })
    local job = define()
    local first, second = job(zeros), job(zeros)
    assert.is_false(first == second)
    assert.equal("int8", first.dtype)
    flow.clear_default_session()
    flow.set_seed(7)
    assert.is_true(define()(zeros) == first)
  end)

  it("draw other numbers in another job, unless they are given one seed", function()
    local function job(name, seed)
      return flow.global_function { name = name, returns = tp.Numpy } (function()
        return flow.random.normal(0, 1, { 100 }, { seed = seed })
      end)
    end
    assert.is_false(job("a")() == job("b")())
    assert.is_true(job("c", 3)() == job("d", 3)())
  end)

  it("begin anew with each seed that is set", function()
    local job = flow.global_function { returns = tp.Numpy } (function() return flow.random.normal(0, 1, { 100 }) end)
    flow.set_seed(5)
    local first, second = job(), job()
    assert.is_false(first == second)
    flow.set_seed(5)
    assert.is_true(job() == first)
  end)

  it("do not count a call that is refused", function()
    local zeros = np.zeros({ 50 })
    local job = define()
    local first, second = job(zeros), job(zeros)
    flow.clear_default_session()
    flow.set_seed(7)
    local again = define()
    local function refuses(text, ...)
      local fine, problem = pcall(again, ...)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find(text, 1, true))
    end
    refuses("takes 1 input (x), got 0")
    refuses("takes 1 input (x), got 2", zeros, zeros)
    refuses("input 'x' is float32 (3)", np.zeros({ 3 }))
    assert.is_true(again(zeros) == first)
    refuses("input 'x' ", "zeros")
    assert.is_true(again(zeros) == second)
  end)

  local function draws(body)
    return flow.global_function { inputs = {}, returns = tp.Numpy } (body)
  end

  it("draw anew in each run, and what their parameters say", function()
    local double = { dtype = flow.double }
    local normal = draws(function() return flow.random.normal(3, 2, { 200, 100 }, double) end)
    local uniform = draws(function() return flow.random.uniform(-1, 3, { 200, 100 }, double) end)
    local integers = draws(function() return flow.random.randint(5, 8, { 200, 100 }) end)
    local chances = flow.np.array({ 0, 0.25, 1 })
    local coins = draws(function()
      return flow.random.bernoulli(flow.broadcast_to(flow.zeros({ 3 }) + chances, { 10000, 3 }))
    end)
    local a, b = normal(), normal()
    assert.is_false(a == b)
    -- Of 20000 draws a mean is within 4 deviations / sqrt(20000) = 2.8 % of a deviation, 31 of 32000 times.
    assert.near(3, a:mean(), 0.06)
    assert.near(2, a:std(), 0.06)
    a = uniform()
    assert.is_true(a:min() >= -1 and a:max() < 3)
    assert.near(1, a:mean(), 0.04)
    a = integers()
    assert.equal("int32", a.dtype)
    assert.equal(5, a:min())
    assert.equal(7, a:max())
    a = coins():mean(0)
    assert.equal(0, a[0])
    assert.near(0.25, a[1], 0.02)
    assert.equal(1, a[2])
  end)

  it("are constants to a gradient: noise scales, it is not learnt", function()
    local noise, gradient
    local job = flow.global_function { type = "train", inputs = {}, returns = tp.None } (function()
      local mean = flow.get_variable("mean", { shape = { 4 }, initializer = flow.zeros_initializer() })
      local deviation = flow.get_variable("deviation", { shape = { 4 }, initializer = flow.ones_initializer() })
      local z = flow.random.normal(0, 1, { 4 })
      flow.watch(z, function(value) noise = value end)
      flow.watch_diff(deviation, function(value) gradient = value end)
      flow.optimizer.SGD(0.1):minimize(mean + deviation * z)
    end)
    job()
    assert.is_true(gradient == noise)
  end)

  it("of np.random are refused in a body, which would draw them once for all runs", function()
    local fine, problem = pcall(draws, function() return flow.zeros({ 2 }) + np.random.normal(0, 1, { 2 }) end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("ops_spec.lua:%d+: np.random.normal in the body of a job would draw once"))
    local rng = np.random.default_rng(1)
    local constant = draws(function() return flow.zeros({ 2 }) + rng:normal(0, 1, { 2 }) end)
    assert.is_true(constant() == constant())
  end)
end)

describe("a square", function()
  it("is a product, and so is its gradient", function()
    local gradient
    local job = flow.global_function {
      type = "train", inputs = { x = tp.Numpy.Placeholder({ 3 }) }, returns = tp.Tuple { tp.Numpy, tp.Numpy },
    } (function(x)
      local w = flow.get_variable("w", { shape = { 3 }, initializer = flow.ones_initializer() })
      local square = (x * w) ^ 2
      flow.watch_diff(w, function(g) gradient = g end)
      flow.optimizer.SGD(0):minimize(square)
      return square, 2 ^ x
    end)
    local squares, powers = job(np.array({ -3, 0, 2 }))
    assert.same({ 9, 0, 4 }, squares:totable())
    assert.same({ 0.125, 1, 4 }, powers:totable())
    assert.same({ 18, 0, 8 }, gradient:totable())
    assert.truthy(job:summary():find("square", 1, true))
  end)
end)

describe("a range", function()
  it("goes from 0 where it has a stop alone", function()
    local job = flow.global_function { returns = tp.Tuple { tp.Numpy, tp.Numpy, tp.Numpy, tp.Numpy } } (function()
      return flow.range(3), flow.range { stop = 2, dtype = flow.int32 }, flow.range(4, { step = 2, name = "even" }),
        flow.range(2, 8, 3)
    end)
    local a, b, c, d = job()
    assert.same({ { 0, 1, 2 }, { 0, 1 }, { 0, 2 }, { 2, 5 } },
      { a:totable(), b:totable(), c:totable(), d:totable() })
    assert.same({ "float32", "int32" }, { a.dtype, b.dtype })
    assert.truthy(job:summary():find("even", 1, true))
  end)
end)

describe("a choice", function()
  it("between numbers has their dtype, or that of an array, and not that of its condition", function()
    local job = flow.global_function {
      inputs = { x = tp.Numpy.Placeholder({ 3 }) }, returns = tp.List[tp.Numpy],
    } (function(x)
      local holds, ids = x:gt(0), np.array({ 7, 8, 9 }, "int32")
      return { flow.where(holds, 0, -1e9), flow.where(holds, 0.5, 1.5), flow.where(holds, ids, 0),
               flow.where(holds, x, 0) }
    end)
    local mask, numbers, picked, clipped = unpack(job(np.array { -1, 1, 2 }))
    assert.is_true(mask == np.array { -1e9, 0, 0 } and numbers == np.array { 1.5, 0.5, 0.5 })
    assert.is_true(picked == np.array({ 0, 8, 9 }, "int32") and clipped == np.array { 0, 1, 2 })
  end)
end)

describe("what is made of numbers", function()
  it("has the job's default_data_type", function()
    for _, dtype in ipairs { flow.float, flow.double } do
      local job = flow.global_function {
        inputs = { x = tp.Numpy.Placeholder({ 3 }, { dtype = dtype }) }, returns = tp.Numpy,
        function_config = { default_data_type = dtype },
      } (function(x)
        local made = {
          flow.zeros { 3 }, flow.ones { 3 }, flow.constant(1, { shape = { 3 } }), flow.constant_scalar(1),
          flow.range(3), flow.one_hot(flow.constant(1, { dtype = flow.int32 }), 3), flow.random.normal { 3 },
          flow.random.uniform { 3 }, flow.where(x:gt(0), 0.25, 0.75),
        }
        for i, value in ipairs(made) do
          assert.equal(dtype, value.dtype, i)
          x = x + value
        end
        assert.equal(flow.int8, flow.ones({ 3 }, flow.int8).dtype)
        return x
      end)
      assert.equal(dtype, job(np.ones({ 3 }, dtype)).dtype)
    end
    flow.global_function { name = "narrow", function_config = { default_data_type = flow.bfloat16 } } (function()
      assert.equal(flow.bfloat16, flow.signal.hann_window(4).dtype)
      assert.equal(flow.bfloat16, flow.signal.linear_to_mel_weight_matrix(4, 9).dtype)
      assert.equal(flow.bfloat16, flow.signal.inverse_stft_window_fn(2)(4).dtype)
      assert.equal(flow.float, flow.range(300).dtype)  -- places that bfloat16 does not tell apart
      return flow.zeros { 2 }
    end)
  end)
end)

describe("clip_by_value", function()
  it("keeps to the bounds it is given", function()
    local job = flow.global_function {
      inputs = { x = tp.Numpy.Placeholder({ 3 }), n = tp.Numpy.Placeholder({ 3 }, { dtype = flow.int32 }) },
      returns = tp.Tuple { tp.Numpy, tp.Numpy, tp.Numpy, tp.Numpy },
    } (function(x, n)
      return flow.clip_by_value(x, { min = 0 }), flow.clamp(x, { max = 0.5 }), flow.clip_by_value(n, { max = 1 }),
        flow.clip(x, -1, 1)
    end)
    local above, below, whole, both = job(np.array({ -2, 0.25, 3 }), np.array({ -2147483648, 0, 7 }, flow.int32))
    assert.same({ 0, 0.25, 3 }, above:totable())
    assert.same({ -2, 0.25, 0.5 }, below:totable())
    assert.same({ -2147483648, 0, 1 }, whole:totable())
    assert.same({ -1, 0.25, 1 }, both:totable())
  end)

  it("takes no bound between whole numbers for whole numbers", function()
    local function clip(x) return flow.clip_by_value(x, 0.5, 2) end
    local fine, problem = pcall(flow.global_function {
      inputs = { x = tp.Numpy.Placeholder({ 3 }, { dtype = flow.int32 }) }, returns = tp.Numpy,
    }, clip)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("min is 0.5, and int32 (3) has whole numbers; cast it first", 1, true),
      tostring(problem))
  end)
end)

describe("hardtanh", function()
  it("goes from -1 to 1 where it is told nothing else", function()
    local job = flow.global_function {
      inputs = { x = tp.Numpy.Placeholder({ 3 }) }, returns = tp.Tuple { tp.Numpy, tp.Numpy },
    } (function(x) return flow.nn.hardtanh(x), flow.nn.hardtanh(x, 0, 4) end)
    local plain, told = job(np.array { -2, 0.5, 2 })
    assert.same({ -1, 0.5, 1 }, plain:totable())
    assert.same({ 0, 0.5, 2 }, told:totable())
  end)
end)

describe("slices", function()
  it("go by start, stop and step, each of which may be left out", function()
    local job = flow.global_function {
      inputs = { x = tp.Numpy.Placeholder({ 4, 5 }) }, returns = tp.Tuple { tp.Numpy, tp.Numpy, tp.Numpy },
    } (function(x)
      return flow.slice_v2(x, { { 1, 3 } }), flow.slice_v2(x, { {}, { nil, nil, -2 } }),
        flow.slice(x, { 0, 1 }, { 2, -1 })
    end)
    local x = np.arange(20):astype(flow.float):reshape({ 4, 5 })
    local a, b, c = job(x)
    assert.is_true(a == x:slice("1:3"))
    assert.equal("(4, 3)", tostring(b.shape))
    assert.same({ 4, 2, 0 }, b[0]:totable())
    assert.is_true(c == x:slice("0:2, 1:"))
  end)

  it("of values are those of arrays, and so are their gradients", function()
    local array = np.arange(24):reshape(4, 6):astype(flow.float)
    for _, text in ipairs { ":", "0", "-1", "1:3", "::2", "::-1", "3:0:-2, :5", "..., -1", "1, 2", ":, 2", "2:0:-1, 1",
                            "2:1", "5:9", "..., ::3", "-3:-1, 4:1:-1", "0:4, 0:6" } do
      local job = flow.global_function {
        inputs = { x = tp.Numpy.Placeholder({ 4, 6 }) }, returns = tp.Tuple { tp.Numpy, tp.Numpy },
      } (function(x)
        local part = x:slice(text)
        return part, flow.gradients(flow.math.reduce_sum(part ^ 2), x)
      end)
      local part, slope = job(array)
      local wanted, of_square = array:slice(text), np.zeros_like(array)
      of_square:set(text, 2 * wanted)
      if type(wanted) == "number" then wanted = np.array(wanted, flow.float) end
      assert.is_true(part == wanted, text)
      assert.is_true(slope == of_square, text)
    end
  end)

  it("of values take numbers and tables too", function()
    local job = flow.global_function {
      inputs = { x = tp.Numpy.Placeholder({ 2, 3 }) }, returns = tp.Tuple { tp.Numpy, tp.Numpy },
    } (function(x)
      assert.equal(x, x:slice("..."))  -- a whole value is itself: nothing changes it
      return x:slice({}, 1), x:slice(-1, { nil, 2 })
    end)
    local column, part = job(np.array({ { 1, 2, 3 }, { 4, 5, 6 } }))
    assert.same({ 2, 5 }, column:totable())
    assert.same({ 4, 5 }, part:totable())
  end)
end)

describe("a border", function()
  it("has a value of the dtype of what it goes around", function()
    local function bordered(value)
      local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 2 }, "int8") }, returns = tp.Numpy } (
        function(x) return flow.pad(x, { paddings = { 1, 0 }, constant_value = value }) end)
      return job(np.array({ 1, 2 }, "int8")):totable()
    end
    assert.same({ 127, 1, 2 }, bordered(127))
    assert.same({ -128, 1, 2 }, bordered(-128))
    for _, value in ipairs { 128, -129 } do
      local fine, problem = pcall(bordered, value)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find(value .. " is not a value of int8", 1, true), tostring(problem))
    end
  end)
end)

describe("a constant", function()
  it("is a value of its dtype", function()
    local function constant(value, dtype)
      local job = flow.global_function { returns = tp.Numpy } (function() return flow.constant(value, dtype) end)
      return job():item()
    end
    assert.same({ 255, -128, 0.5 }, { constant(255, flow.uint8), constant(-128, flow.int8), constant(0.5, flow.float) })
    for text, given in pairs {
      ["value 300 is not a value of uint8"] = { 300, flow.uint8 },
      ["value 1.5 is not a value of int32"] = { 1.5, flow.int32 },
      ["value nan is not a value of int64"] = { 0 / 0, flow.int64 },
    } do
      local fine, problem = pcall(constant, given[1], given[2])
      assert.is_false(fine)
      assert.truthy(tostring(problem):find(text, 1, true), tostring(problem))
    end
  end)
end)
