-- Calls as OneFlow's scripts have them: its order of arguments, its names, and what there is in place of what it had.
local arguments = require "moonflow.arguments"
local call_forms = require "moonflow.call_forms"
local checks = require "checks"
local flow = require "moonflow"
local ops = require "moonflow.ops"
local np, tp = flow.np, flow.typing

before_each(function()
  flow.clear_default_session()
end)

local x = np.array({ { 3, 1, 2 }, { 6, 5, 4 } }, flow.float)

-- What `body` gives for an array.
local function run(body, value)
  local result = checks.run({ value or x }, function(a) return body(a) end, { name = "job" })
  flow.clear_default_session()
  return result
end

local function same(expected, body, value)
  assert.same(expected, run(body, value):totable())
end

local function refused(text, body)
  local fine, problem = pcall(run, body)
  assert.is_false(fine)
  assert.truthy(tostring(problem):find(text, 1, true), tostring(problem))
end

-- The function at a path below flow.
local function at(path)
  local value = flow
  for word in path:gsub("^flow%.", ""):gmatch("[^.]+") do value = value and rawget(value, word) end
  return value
end

describe("the table of call forms", function()
  for where, form in pairs(call_forms) do
    it("has parameters of " .. where .. " only", function()
      local public = assert(at(where), where .. " is missing")
      local draw = where:match("^np%.random%.(.*)")  -- the method of a generator has the signature
      if draw then public = getmetatable(np.random.default_rng(0))[draw] end
      local signature = ops.signature(public) or arguments.signature_of(public)
      local known = {}
      for _, parameter in ipairs(signature.parameters) do known[parameter.name] = true end
      for _, entry in ipairs(form) do
        if type(entry) == "table" then
          assert.is_nil(known[entry[1]], entry[1] .. " is there, and need not be passed over")
        else
          local ours = entry:match("=(.*)$") or entry
          assert.is_true(known[ours], where .. " has no parameter " .. ours)
        end
      end
    end)
  end
end)

describe("the original's order of arguments", function()
  it("is taken where ours does not fit", function()
    same({ { 0, 2 }, { 0, 1 } }, function(a) return flow.math.top_k(a, -1, 2) end)
    same({ { 3, 2, 1 }, { 6, 5, 4 } }, function(a) return flow.sort(a, -1, "DESCENDING") end)
    same({ { 0, 2, 1 }, { 0, 1, 2 } }, function(a) return flow.argsort(a, -1, "DESCENDING", "order") end)
    same({ { 1 }, { 5 } }, function(a) return flow.gather(a, np.array({ 1 }, flow.int32), nil, 1) end)
    same({ { 1 }, { 5 } }, function(a) return flow.gather(a, np.array({ 1 }, flow.int32), true, 1, 0, "picked") end)
    same({ { 3, 6 }, { 1, 5 }, { 2, 4 } }, function(a) return flow.transpose(a, { 1, 0 }, false, false, "turned") end)
    same({ { 2 }, { 5 } }, function(a) return flow.math.reduce_mean(a, 1, true, "mean") end)
  end)

  it("has the shape of a draw first, as TensorFlow has it", function()
    local function draws(body)
      flow.set_seed(5)
      local drawn = checks.run({}, body, { name = "job" })
      flow.clear_default_session()
      return drawn
    end
    local normal = draws(function() return flow.random.normal(2, 3, { 2, 4 }) end)
    assert.is_true(normal == draws(function() return flow.random.normal({ 2, 4 }, 2, 3) end))
    assert.is_true(np.allclose(normal, 2 + 3 * draws(function() return flow.random.normal({ 2, 4 }) end)))
    local uniform = draws(function() return flow.random.uniform(-1, 1, { 3 }) end)
    assert.is_true(uniform == draws(function() return flow.random.uniform({ 3 }, -1, 1) end))
    assert.is_true(uniform == draws(function() return flow.random.uniform({ 3 }, { minval = -1, maxval = 1 }) end))
  end)

  it("leaves ours as it is", function()
    same({ { 0, 2 }, { 0, 1 } }, function(a) return flow.math.top_k(a, 2, true) end)
    same({ { 3, 2, 1 }, { 6, 5, 4 } }, function(a) return flow.sort(a, "DESCENDING") end)
    same({ { 1 }, { 5 } }, function(a) return flow.gather(a, np.array({ 1 }, flow.int32), 1) end)
  end)

  it("has the name of a convolution after its groups", function()
    local ones, name = np.ones { 1, 1, 2, 2 }, nil
    same({ { { { 10 } } } }, function(a)
      local y = flow.nn.conv2d(a, flow.constant(1, flow.float, { 1, 1, 2, 2 }), 1, "VALID", "NCHW", nil, 1, "window")
      name = y.name
      return y
    end, ones * 2.5)
    assert.equal("window", name)
  end)

  it("is refused where both orders would take a number for something else", function()
    refused("flow.optimizer.SGD: arguments after the first 2 go by name, as OneFlow has them in another order",
      function() flow.optimizer.SGD(0.1, nil, 0.9) end)
    assert.equal(0.5, flow.optimizer.SGD(0.1, 0.5).options.momentum)
    refused("flow.optimizer.AdamW: arguments after the first 5 go by name",
      function() flow.optimizer.AdamW(0.1, 0.9, 0.999, 1e-8, false, nil, 0.01) end)
  end)
end)

describe("the original's names of parameters", function()
  it("stand for ours", function()
    same({ { 3, 2, 2 }, { 3, 3, 3 } }, function(a)
      return flow.clip_by_value { values = a, min_value = 2, max_value = 3 }
    end)
    same({ { 3, 2, 2 }, { 3, 3, 3 } }, function(a) return flow.math.clip(a, { min_value = 2, max_value = 3 }) end)
    same({ 6, 15 }, function(a) return flow.math.reduce_sum { input_tensor = a, axis = 1 } end)
    same({ 6, 15 }, function(a) return flow.math.reduce_sum(a, { axis = 1 }) end)
    same({ 0, 2, 4 }, function() return flow.range(0, { limit = 6, delta = 2 }) end)
    same({ { 3, 1, 2 } }, function(a) return flow.slice_v2(a, { slice_tup_list = { { 0, 1 } } }) end)
    same({ { 3, 1, 2 } }, function(a) return flow.slice_v2 { x = a, slices = { { 0, 1 } } } end)
    same({ { 3 }, { 4 } }, function(a)
      return flow.dim_gather { input = a, dim = 1, index = np.array({ { 0 }, { 2 } }, flow.int32) }
    end)
    same({ { 14, 32 }, { 32, 77 } }, function(a) return flow.matmul { a = a, b = a, transpose_b = true } end,
      np.array({ { 1, 2, 3 }, { 4, 5, 6 } }, flow.float))
    same({ { { { 4 } } } }, function(a)
      local filters = flow.constant(1, flow.float, { 1, 1, 2, 2 })
      return flow.nn.conv2d { input = a, filters = filters, strides = 1, padding = "VALID" }
    end, np.ones { 1, 1, 2, 2 })
  end)

  it("are refused beside ours", function()
    refused("flow.math.clip: 'min' is given under two names",
      function(a) return flow.math.clip(a, { min = 2, min_value = 2 }) end)
    refused("flow.math.clip: 'min' is given by position and as an option",
      function(a) return flow.math.clip(a, 2, { min_value = 2 }) end)
  end)

  it("may have the only value that there is here", function()
    same({ { 3, 6 }, { 1, 5 }, { 2, 4 } }, function(a)
      return flow.transpose(a, { perm = { 1, 0 }, conjugate = false })
    end)
    refused("flow.transpose: 'conjugate' can only be false here, got true",
      function(a) return flow.transpose(a, { perm = { 1, 0 }, conjugate = true }) end)
  end)

  it("says what is done of arrays anyway", function()
    assert.is_true(np.sort({ 3, 1, 2 }, { kind = "stable" }) == np.array { 1, 2, 3 })
    assert.is_true(np.argsort({ 3, 1, 2 }, -1, "quicksort") == np.array({ 1, 2, 0 }, "int64"))
    assert.equal(3, select("#", np.linalg.svd(np.eye(3), { full_matrices = false })))
    assert.equal(2, select("#", np.linalg.qr(np.eye(3), "reduced")))
    checks.refuses("np.linalg.svd: 'full_matrices' can only be false here, got true", np.linalg.svd, np.eye(3),
      { full_matrices = true })
    checks.refuses("np.linalg.eigh(a:transpose()) reads the upper triangle", np.linalg.eigh, np.eye(3),
      { UPLO = "U" })
  end)
end)

describe("flow.slice", function()
  it("takes nil for the whole of an axis, wherever it stands", function()
    same({ { 1, 2 }, { 5, 4 } }, function(a) return flow.slice(a, { nil, 1 }, { nil, 2 }) end)
    same({ { 6, 5, 4 } }, function(a) return flow.slice(a, { 1, nil }, { 1, nil }, "row") end)
    same({ { 6, 5, 4 } }, function(a) return flow.slice(a, 1, { 1 }) end)
    same({ { 1 }, { 5 } }, function(a) return flow.slice { x = a, begin = { 0, 1 }, size = { nil, 1 } } end)
  end)

  it("refuses what is no place of an axis", function()
    refused("begin {0, 0, 0} has more numbers than x (2, 3) has axes",
      function(a) return flow.slice(a, { 0, 0, 0 }, { 1, 1, 1 }) end)
    refused("argument 2 ('begin') has a hole", function(a) return flow.slice(a, { [3] = 1 }, { 1, 1 }) end)
  end)
end)

describe("a name by position", function()
  it("is no mixed precision of a product", function()
    local name
    run(function(a)
      local y = flow.matmul(a, a, false, true, "product")
      name = y.name
      return y
    end)
    assert.equal("product", name)
  end)
end)

describe("flow.global_function with the type first", function()
  local function of_inputs(inputs) return inputs * 2 end

  local inputs = { a = tp.Numpy.Placeholder({ 2, 3 }) }

  local function doubled(a) return a * 2 end

  it("takes a config, a table and a body behind it, each where there is one", function()
    local config = flow.function_config()
    config:default_data_type(flow.double)
    local dtype
    local job = flow.global_function("predict", config, { inputs = inputs, returns = tp.Numpy }) (function(a)
      dtype = flow.get_variable("w", { 1 }, nil, flow.constant_initializer(1)).dtype
      return doubled(a)
    end)
    assert.equal(12, job(x):at(1, 0))
    assert.equal(flow.double, dtype)
    assert.equal(12, flow.global_function("predict", { inputs = inputs, returns = tp.Numpy }, doubled)(x):at(1, 0))
    assert.equal(12, flow.global_function("predict", nil, { inputs = inputs, returns = tp.Numpy })(doubled)(x):at(1, 0))
    local ran = false
    flow.global_function("predict", function() ran = true end)
    assert.is_true(ran)
  end)

  it("takes a table behind a config alone for what it is, inputs or all of it", function()
    local config = flow.function_config()
    config:default_data_type(flow.double)
    for _, given in ipairs { inputs, { inputs = inputs, returns = tp.Numpy }, { inputs = inputs },
                             { returns = tp.Numpy, inputs = inputs, name = "of_config" } } do
      local result = flow.global_function(config, given)(doubled)(x)
      assert.equal(12, (given.returns and result or result:get()):at(1, 0))
    end
    -- An input may be called so too.
    assert.equal(12, flow.global_function(config, { inputs = inputs.a })(of_inputs)(x):get():at(1, 0))
  end)

  it("trains where that is its type", function()
    local job = flow.global_function("train", { inputs = inputs, returns = tp.Numpy }) (function(a)
      local w = flow.get_variable("w", { 3 }, flow.float, flow.constant_initializer(1))
      flow.optimizer.SGD(1, 0):minimize(a * w)
      return w
    end)
    job(x)
    assert.truthy(math.abs(job(x):at(0) - (1 - 9 / 6)) < 1e-6)
  end)

  it("refuses what has no place", function()
    refused("type must be 'train' or 'predict', got 'trian'; did you mean 'train'?",
      function() flow.global_function("trian") end)
    refused("'type' is given by position and in the table", function()
      flow.global_function("train", { type = "predict" })
    end)
    refused("behind the type come a flow.function_config(), a table such as { inputs = ..., returns = ... } and the "
      .. "body, each where there is one, got 5", function() flow.global_function("train", 5) end)
    refused("behind the type a flow.function_config() is wanted, got a table", function()
      flow.global_function("train", {}, {}, doubled)
    end)
  end)
end)

describe("a table of arrays", function()
  it("may stand under its own name, or the original's", function()
    local path = os.tmpname()
    os.remove(path)
    path = path .. ".safetensors"
    finally(function() os.remove(path) end)
    flow.checkpoint.save(path, { var_dict = { w = x } })
    assert.is_true(flow.checkpoint.get(path).w == x)
    flow.checkpoint.save(path, { values = { values = x * 2 }, overwrite = true })
    assert.is_true(flow.checkpoint.get(path).values == x * 2)
    flow.checkpoint.save(path, { values = x }, true)  -- an array of this name
    assert.is_true(flow.checkpoint.get(path).values == x)

    flow.global_function { name = "job" } (function()
      return flow.get_variable("w", { 2, 3 }, flow.float, flow.constant_initializer(0))
    end)
    flow.load_variables { value_dict = { w = x } }
    assert.is_true(flow.get_all_variables().w == x)
    flow.load_variables { w = x * 2 }
    assert.is_true(flow.get_all_variables().w == x * 2)
  end)
end)

describe("flow.data.load_mnist", function()
  it("says that it downloads nothing", function()
    refused("flow.data.load_mnist has no option 'url'; nothing is downloaded, dir is the folder of the files",
      function() flow.data.load_mnist(100, 100, { url = "mnist.npz" }) end)
  end)
end)
