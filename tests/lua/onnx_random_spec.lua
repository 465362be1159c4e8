-- The operators of ONNX that draw random numbers, of policies that choose what to do above all.
local flow = require "moonflow"
local models = require "onnx_models"

local np = flow.np
local floats, node, result_of = models.floats, models.node, models.result_of

before_each(models.begin)
after_each(models.finish)

describe("random numbers", function()
  local zeros = np.zeros({ 100, 200 }):astype("float32")

  it("are normal or uniform, of a shape or like another value", function()
    local function drawn(op, inputs, attributes)
      return result_of(zeros, { nodes = { node(op, inputs, { "y" }, attributes) } })
    end
    local parameters = { mean = { f = 5 }, scale = { f = 2 }, seed = { f = 1 } }
    local normal = drawn("RandomNormalLike", { "x" }, parameters)
    assert.near(5, normal:mean(), 0.1) -- 20000 of them: seven standard errors
    assert.near(2, normal:std(), 0.1)
    local uniform = drawn("RandomUniformLike", { "x" }, { low = { f = -1 }, dtype = { i = 11 } })
    assert.equal("float64", uniform.dtype)
    assert.near(0, uniform:mean(), 0.03)
    assert.is_true(uniform:min() >= -1 and uniform:max() < 1)

    parameters.shape = { ints = { 3, 4 } }
    local noise = node("RandomNormal", {}, { "noise" }, parameters)
    local sum = result_of(floats { 1 }, { nodes = { noise, node("Add", { "x", "noise" }, { "y" }) } })
    assert.same({ 3, 4 }, sum.shape:table())
  end)

  it("are others in each run, and the same from one seed on", function()
    local function two()
      flow.clear_default_session()
      flow.set_seed(7)
      local model = flow.onnx.load(models.write {
        shape = { 2 }, nodes = { node("RandomNormalLike", { "x" }, { "y" }) },
      })
      local job = models.job_of(model, { 2 })
      return job(floats { 0, 0 })[0], job(floats { 0, 0 })[0]
    end
    local first, second = two()
    assert.is_true(first ~= second)
    assert.same({ first, second }, { two() })
  end)

  it("choose by chances", function()
    local classes = result_of(floats { { 0, math.log(3) }, { 100, 0 } }, {
      nodes = { node("Multinomial", { "x" }, { "y" }, { sample_size = { i = 10000 } }) },
    })
    assert.equal("int32", classes.dtype)
    assert.near(0.75, classes:slice("0"):astype("float32"):mean(), 0.03) -- seven standard errors
    assert.equal(0, classes:slice("1"):max())
    local flips = result_of(zeros + 0.25, { nodes = { node("Bernoulli", { "x" }, { "y" }, { dtype = { i = 7 } }) } })
    assert.equal("int64", flips.dtype)
    assert.near(0.25, flips:astype("float32"):mean(), 0.022)
  end)
end)

describe("a job that draws", function()
  local tp = flow.typing
  local path = os.tmpname()
  after_each(function() os.remove(path) end)

  -- What a file gives for rows of these logits, which was written by a job for another number of rows.
  local function read_back(logits)
    local returns = {}
    for name in ("normal uniform whole flips kept left class rows"):gmatch("%a+") do returns[name] = tp.Numpy end
    local job = flow.global_function {
      inputs = { x = tp.Numpy.Placeholder({ 5, 3 }) }, returns = tp.Dict(returns),
    } (function(x)
      local shape = { x.shape[0], 3 }
      return {
        normal = flow.random.normal(5, 2, shape), uniform = flow.random.uniform(-1, 3, shape, { dtype = flow.double }),
        whole = flow.random.randint(-2, 5, shape, { dtype = flow.int8 }),
        flips = flow.random.bernoulli(flow.nn.sigmoid(x)),
        kept = flow.nn.random_mask_like(x, 0.25),
        left = flow.nn.dropout(flow.ones_like(x), 0.25, { training = true }),
        class = flow.random.categorical(x), rows = flow.random.shuffle(x),
      }
    end)
    job:export_onnx(path, { any_batch = true })
    flow.set_seed(3)
    local model = flow.onnx.load(path)
    for _, entry in ipairs(model._nodes) do assert.is_not.equal("Bernoulli", entry.op) end  -- other runtimes turn it
    return flow.global_function {
      inputs = { x = tp.Numpy.Placeholder(logits.shape:table()) }, returns = tp.Dict(returns),
    } (function(x)
      local given, named = { model(x) }, {}
      for i, output in ipairs(model.outputs) do named[output.name] = given[i] end
      return named
    end)(logits)
  end

  it("is written with its draws, for a batch of any size", function()
    local got = read_back(np.tile(floats { { 0, math.log(3), -100 } }, { 6000, 1 }))
    -- seven standard errors of 18000, and of 6000
    assert.near(5, got.normal:mean(), 0.1)
    assert.near(2, got.normal:std(), 0.1)
    assert.equal("float64", got.uniform.dtype)
    assert.near(1, got.uniform:mean(), 0.06)
    assert.is_true(got.uniform:min() >= -1 and got.uniform:max() < 3)
    assert.equal("int8", got.whole.dtype)
    assert.same({ -2, 4 }, { got.whole:min(), got.whole:max() })
    assert.near(1, got.whole:astype("float32"):mean(), 0.1)
    assert.near(0.75, got.flips:slice(":, 1"):mean(), 0.04)
    assert.equal(0, got.flips:slice(":, 2"):max())
    assert.near(0.75, got.kept:astype("float32"):mean(), 0.023)
    assert.near(1, got.left:mean(), 0.031)
    assert.same({ 0, 1.3333 }, { got.left:min(), math.floor(got.left:max() * 1e4) / 1e4 })
    assert.near(0.75, got.class:astype("float32"):mean(), 0.04)
    assert.equal(1, got.class:max())
  end)

  it("shuffles in the file too", function()
    local rows = np.arange(30):astype("float32"):reshape({ 10, 3 })
    local got = read_back(rows).rows
    assert.is_false(np.array_equal(rows, got))
    assert.is_true(np.array_equal(rows, got:take(np.argsort(got:slice(":, 0")), 0)))
  end)
end)
