-- Names of other libraries that there are none of: reading one says what to write in its place, which is there.
local absent = require "moonflow.absent"
local flow = require "moonflow"

-- The folder of a path and its last name. "config" is the object of the oldest dialect.
local function folder_of(path)
  if path:find("^config%.train%.") then return flow.function_config().train, path:match("[%w_]+$") end
  if path:find("^config%.") then return flow.function_config(), path:match("[%w_]+$") end
  local folder, name = path:match("^flow%.?(.-)%.?([%w_]+)$")
  local value = flow
  for word in folder:gmatch("[^.]+") do value = rawget(value, word) end
  return value, name
end

describe("an absent name", function()
  for path, advice in pairs(absent) do
    it(path .. " says what to write in its place", function()
      local folder, name = folder_of(path)
      assert.is_table(folder, path .. " is in no folder")
      assert.is_nil(rawget(folder, name), path .. " is there, so nothing need stand for it")
      local fine, problem = pcall(function() return folder[name] end)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find("has no ", 1, true))
      assert.truthy(tostring(problem):find(advice, 1, true), tostring(problem))
      assert.truthy(tostring(problem):find("^[^:]*absent_spec.lua:%d+: "), tostring(problem))
      for ours in advice:gmatch("flow%.[%w_.]*[%w_]") do
        local place, word = folder_of(ours)
        assert.truthy(type(place) == "table" and rawget(place, word) ~= nil, ours .. " is missing too")
      end
    end)
  end

  it("of an option is told of in a table too", function()
    local fine, problem = pcall(function()
      flow.global_function { function_config = { enable_qat = true } } (function() end)
    end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("no option 'enable_qat'; training for int8 is not supported", 1, true))
  end)

  it("is no setting of several machines, which changes nothing", function()
    flow.config.thread_enable_local_message_queue(true)
    local config = flow.function_config()
    config:enable_all_reduce_group(true):non_distributed_optimizer_group_size_mbyte(100)
    flow.global_function("predict", config, { name = "job" }) (function() end)
  end)

  it("of what other libraries call otherwise gets ours", function()
    for path, ours in pairs {
      ["flow.nn.SpatialConvolution"] = "flow.layers.conv2d", ["flow.nn.LookupTable"] = "flow.layers.embedding",
      ["flow.nn.ClassNLLCriterion"] = "flow.nn.sparse_softmax_cross_entropy_with_logits",
      ["flow.nn.PReLU"] = "flow.layers.prelu", ["flow.nn.GRU"] = "flow.layers.gru", ["flow.Timer"] = "flow.clock",
      ["flow.nn.cross_entropy"] = "flow.nn.CrossEntropyLoss", ["flow.nn.binary_cross_entropy"] = "flow.nn.BCELoss",
      ["flow.nn.binary_cross_entropy_with_logits"] = "flow.nn.BCEWithLogitsLoss",
      ["flow.take_along_dim"] = "flow.dim_gather", ["flow.linalg.diagonal"] = "flow.linalg.diag_part",
      ["flow.np.cat"] = "flow.np.concat", ["flow.np.randperm"] = "flow.np.random.permutation",
    } do
      local folder, name = folder_of(path)
      local fine, problem = pcall(function() return folder[name] end)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find("has no '" .. name .. "'; did you mean " .. ours .. "?", 1, true),
        tostring(problem))
    end
  end)

  it("has a formula in its place that gives the same", function()
    local np, tp = flow.np, flow.typing
    local x, n = np.array({ { 1, -2, 3, -4 }, { 0.5, 6, -7, 8 } }), 4
    local formulas = {
      function(v) return 1.0507 * flow.nn.elu(v, { alpha = 1.67326 }) end,
      function(v) return 2 * flow.nn.elu(v / 2) end,
      function(v)
        local a, b = flow.split(v, 2, { axis = -1 })
        return a * flow.math.sigmoid(b)
      end,
      function(v) return flow.concat({ v:slice("-2:"), v:slice(":-2") }, 0) end,
      function(v) return v - flow.math.tril(v, -1) end,
      function(v) return flow.math.exp(flow.math.cumsum(flow.math.log(v * v), 1)) end,
      function(v) return flow.einsum("i,j->ij", v:slice("0, :"), v:slice("1, :")) end,
      function(v) return flow.gather(v, np.repeat_interleave(np.arange(n), 3), 1) end,
      function(v) return flow.math.reduce_euclidean_norm(flow.expand_dims(v, 1) - v, 2) end,
      function(v) return flow.expand_dims(v, -1) * np.eye(n) end,
      function(v) return 0.5 * flow.smooth_l1_loss(v, flow.zeros_like(v), 0.5) end,
      function(v) return flow.math.sign(v) * flow.math.floor(flow.math.abs(v)) end,
      function(v) return flow.math.reduce_logsumexp(flow.stack({ v, 2 * v }, 0), 0) end,
      function(v)
        local m = flow.math.reduce_max(v)
        return flow.math.log(flow.math.cumsum(flow.math.exp(v - m), 1)) + m
      end,
      function(v) return flow.math.reduce_sum(flow.linalg.diag_part(v), -1) end,
      function(v)
        local y, u = v * v, flow.ones_like(v)
        return flow.gradients(flow.gradients(y, v, { grad_ys = u }), u, { grad_ys = v })
      end,
      function(v)
        local odd = flow.stack({ v:slice("0, 0") / 0, v:slice("0, 1") / 0, v:slice("0, 2") - 3, v:slice("0, 3") }, 0)
        odd = flow.concat({ odd, flow.math.log(v:slice("0, 1:2")) }, 0)  -- inf, -inf, 0, -4, nan
        return flow.stack({ odd:ne(odd), (odd - odd):eq(0), flow.math.abs(odd):eq(math.huge) }, 0)
      end,
    }
    local job = flow.global_function { inputs = { v = tp.Numpy.Placeholder({ 2, 4 }) } } (function(v)
      local results = {}
      for i, formula in ipairs(formulas) do results[i] = formula(v) end
      return results
    end)
    local function elu(scale, alpha, stretch)
      return np.where(x:gt(0), x * scale, scale * alpha * np.expm1(x / stretch))
    end
    local apart = np.linalg.norm(x[0] - x[1])
    local wanted = {
      elu(1.0507, 1.67326, 1), elu(1, 2, 2), x:slice(":, :2") / (1 + np.exp(-x:slice(":, 2:"))),
      np.roll(x, 2, 0), np.triu(x), np.cumprod(x * x, 1), np.outer(x[0], x[1]), np.repeat_interleave(x, 3, 1),
      np.array { { 0, apart }, { apart, 0 } }, np.stack { np.diag(x[0]), np.diag(x[1]) },
      np.where(np.abs(x):lt(0.5), x * x / 2, 0.5 * (np.abs(x) - 0.25)),
      np.trunc(x), np.logaddexp(x, 2 * x), np.log(np.cumsum(np.exp(x), 1)), np.array(7), 2 * x * x,
      np.array { { 0, 0, 0, 0, 1 }, { 0, 0, 1, 1, 0 }, { 1, 1, 0, 0, 0 } },
    }
    local results = job(x):get()
    for i, result in ipairs(results) do
      assert.is_true(np.allclose(result, wanted[i], 1e-5), "formula " .. i .. " gives " .. tostring(result))
    end
    assert.equal(#wanted, #results)
  end)

  it("that nothing is known of gets the nearest one", function()
    local fine, problem = pcall(function() return flow.nn.sofmax end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("flow.nn has no 'sofmax'; did you mean flow.nn.softmax?", 1, true))
  end)
end)
