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
