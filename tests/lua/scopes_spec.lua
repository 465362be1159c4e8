-- What values and variables are called: names, namespaces and scopes.
local checks = require "checks"
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

local function vector(...)
  return np.array({ ... }, flow.float)
end

before_each(function()
  flow.clear_default_session()
  flow.set_seed(7)
end)

describe("names and scopes", function()
  it("put namespaces before variables and ops", function()
    local names = {}
    flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 2, 3 }) }, returns = tp.Numpy } (function(x)
      return flow.scope.namespace("a", function()
        local y = flow.scope.namespace("b", function() return flow.layers.dense(x, 4, { name = "d" }) end)
        names[1] = y.logical_blob_name
        local z = flow.nn.relu(y, { name = "r" })
        names[2] = z.logical_blob_name
        return z
      end)
    end)
    assert.same({ "a-b-d-bias_add/out_0", "a-r/out_0" }, names)
  end)

  it("let layers of one name share their variables on purpose", function()
    local names, layers = {}, 0
    -- One net over two halves of a batch, and over the whole: the same weights come of it.
    local function train(over_halves)
      local prefix = over_halves and "halves" or "whole"
      local function net(x)
        return flow.scope.namespace(prefix, function()
          local h = flow.layers.dense(x, 4, { activation = flow.nn.relu, name = "h",
                                              kernel_initializer = flow.constant_initializer(0.25) })
          local y = flow.layers.batch_normalization(h, { name = "norm", training = false })
          layers = layers + 1
          names[layers] = h.op_name
          return flow.layers.dense(y, 1, { name = "y", kernel_initializer = flow.constant_initializer(0.5) })
        end)
      end
      local half = tp.Numpy.Placeholder({ 2, 3 })
      local job = flow.global_function {
        name = prefix, type = "train", inputs = { a = half, b = half }, returns = tp.Numpy,
      } (
        function(a, b)
          local y
          if over_halves then
            y = flow.scope.reuse_variables(function() return flow.concat({ net(a), net(b) }, 0) end)
          else
            y = net(flow.concat({ a, b }, 0))
          end
          local loss = flow.math.square(y - 1)
          flow.optimizer.SGD(0.1, { momentum = 0 }):minimize(loss)
          return loss
        end)
      local a, b = np.array({ { 1, 2, 3 }, { -1, 0, 2 } }), np.array({ { 0, 1, 0 }, { 3, -2, 1 } })
      job(a, b)
      return job(a, b)
    end
    assert.is_true(np.allclose(train(true), train(false), 1e-6, 1e-6))
    assert.same({ "halves-h-activation", "halves-h-activation-1", "whole-h-activation" }, names)
  end)

  it("keep to that in the scope that says so", function()
    local function job(body)
      return pcall(flow.global_function, { inputs = { x = tp.Numpy.Placeholder({ 2, 3 }) }, returns = tp.Numpy }, body)
    end
    local function dense(x, units) return flow.layers.dense(x, units, { name = "shared" }) end
    local fine, problem = job(function(x)
      local y = flow.scope.reuse_variables(function() return dense(x, 3) end)
      return dense(y, 3)
    end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("variable 'shared-weight' already exists in this job", 1, true))
    fine, problem = job(function(x)
      return flow.scope.reuse_variables(function() return dense(dense(x, 4), 3) end)
    end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("variable 'shared-weight' is float32 (4, 3)", 1, true))
    fine, problem = job(function(x)
      local w = { shape = { 3, 3 }, initializer = flow.zeros_initializer(), reuse = false }
      return flow.scope.reuse_variables(function()
        return flow.matmul(x, flow.get_variable("w", w)) + flow.matmul(x, flow.get_variable("w", w))
      end)
    end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("give the variable another name, or leave out reuse = false", 1, true))
  end)

  it("number unnamed things per job", function()
    local function job()
      local names = {}
      flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 2, 3 }) }, returns = tp.Numpy } (function(x)
        local y = flow.layers.dense(x, 3)
        local z = flow.layers.dense(y, 3)
        names = { y.logical_blob_name, z.logical_blob_name, (z + 1).op_name, flow.nn.relu(z).op_name }
        return z
      end)
      return names
    end
    local first = job()
    assert.same({ "Dense_0_bias_add/out_0", "Dense_1_bias_add/out_0", "Add_0", "Relu_0" }, first)
    assert.same(first, job())
  end)

  it("give what their closures give", function()
    local got
    flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 1 }) }, returns = tp.Numpy } (function(x)
      got = { flow.scope.placement("cpu", "0:0", function() return 1, nil, x end) }
      return flow.scope.mirrored_view(function()
        assert.is_true(flow.scope.mirrored_view_enabled())
        return x
      end)
    end)
    assert.equal(1, got[1])
    assert.is_nil(got[2])
    assert.truthy(got[3])
  end)

  it("warn once that a gpu placement runs on the CPU, or refuse it", function()
    if #flow.config.gpu_devices() > 0 then return pending("there is a GPU") end
    local lines = {}
    flow.config.log(function(line) lines[#lines + 1] = line end)
    local function define()
      return flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 1 }) }, returns = tp.Numpy } (function(x)
        return flow.scope.placement("gpu", "0:0", function() return x + 1 end)
      end)
    end
    define()
    assert.equal(2, define()(vector(1))[0])
    assert.equal(1, #lines)
    assert.truthy(lines[1]:find("placement \"gpu\" runs on the CPU", 1, true))
    flow.config.strict_placement(true)
    local fine, problem = pcall(define)
    flow.config.strict_placement(false)
    flow.config.log(nil)
    assert.is_false(fine)
    assert.equal("unsupported", problem.code)
  end)
end)

describe("a function_config", function()
  it("is refused where it would not be followed", function()
    local function refuses(message, config)
      checks.refuses(message, function() flow.global_function { function_config = config } (function() end) end)
    end
    refuses("concurrency_width wants a whole number from 1 on, got 1.5", { concurrency_width = 1.5 })
    local views = " wants flow.scope.consistent_view() or flow.scope.mirrored_view(), got "
    refuses("default_logical_view" .. views .. "'mirrored_view'", { default_logical_view = "mirrored_view" })
    refuses("default_logical_view" .. views .. "5", { default_logical_view = 5 })
    refuses("default_logical_view" .. views .. "a function", { default_logical_view = flow.scope.mirrored_view })
    refuses("default_distribute_strategy" .. views .. "a table", { default_distribute_strategy = {} })
    flow.global_function { returns = tp.Numpy, function_config = {
      default_distribute_strategy = flow.distribute.mirrored_strategy() } } (function()
      assert.is_true(flow.scope.mirrored_view_enabled())
      return flow.ones({ 1 })
    end)
  end)
end)
