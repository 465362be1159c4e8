-- flow.gather within a batch: beside a gather of each part, its gradient, and what it refuses.
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

before_each(function() flow.clear_default_session() end)

local function picked(params, indices, options)
  return flow.global_function {
    inputs = { x = tp.Numpy.Placeholder(params.shape:table(), { dtype = params.dtype }) }, returns = tp.Numpy,
  } (function(x) return flow.gather(x, indices, options) end)(params)
end

-- The same part by part, in one axis of a batch.
local function by_parts(params, indices)
  local parts = {}
  for n = 0, #params - 1 do parts[n + 1] = params[n]:take(indices[n], 0) end
  return np.stack(parts)
end

describe("flow.gather within a batch", function()
  it("picks from each part by its own indices", function()
    local x = np.random.uniform(-1, 1, { 3, 5, 4 }):astype("float32")
    for _, dtype in ipairs { "int8", "int32", "int64" } do
      for _, shape in ipairs { { 3, 2 }, { 3, 2, 2 }, { 3, 7 } } do
        local i = np.random.randint(0, 5, shape):astype(dtype)
        local got = picked(x, i, { batch_dims = 1 })
        local want = by_parts(x, i)
        assert.same(want.shape:table(), got.shape:table())
        assert.same(want:totable(), got:totable())
        assert.same(want:totable(), picked(x, i, { axis = -2, batch_dims = 1 - #shape }):totable())
      end
    end
  end)

  it("takes one index for each part, and several axes as the batch", function()
    local x = np.array { { { 1, 2, 3 }, { 4, 5, 6 } }, { { 7, 8, 9 }, { 10, 11, 12 } } }
    assert.same({ { 4, 5, 6 }, { 7, 8, 9 } },
      picked(x, np.array({ 1, 0 }, flow.int32), { batch_dims = 1 }):totable())
    assert.same({ { { 3, 1 }, { 4, 4 } }, { { 8, 9 }, { 10, 12 } } },
      picked(x, np.array({ { { 2, 0 }, { 0, 0 } }, { { 1, 2 }, { 0, 2 } } }, flow.int8), { axis = 2, batch_dims = 2 })
        :totable())
  end)

  it("counts a batch of more parts than its indices' dtype has numbers", function()
    local x = np.arange(600):reshape { 300, 2 }
    assert.same(np.arange(1, 600, 2):totable(), picked(x, np.ones({ 300 }, flow.int8), { batch_dims = 1 }):totable())
  end)

  it("gives the gradient to what was picked, and twice where it was twice", function()
    local gradient
    flow.global_function { type = "train", returns = tp.Numpy } (function()
      local x = flow.get_variable("x", { shape = { 2, 3, 2 }, initializer = flow.ones_initializer() })
      flow.watch_diff(x, function(d) gradient = d:copy() end)
      local loss = flow.gather(x, np.array({ { 0, 2 }, { 1, 1 } }, flow.int32), { batch_dims = 1 })
      flow.optimizer.SGD(0):minimize(loss)
      return loss
    end)()
    assert.same({ { { 1, 1 }, { 0, 0 }, { 1, 1 } }, { { 0, 0 }, { 2, 2 }, { 0, 0 } } }, gradient:totable())
  end)

  it("says what it cannot take", function()
    local x = np.zeros { 2, 3, 4 }
    local function refused(text, shape, options)
      local fine, problem = pcall(picked, x, np.zeros(shape, flow.int32), options)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find(text, 1, true), tostring(problem))
      assert.truthy(tostring(problem):find("picks_spec.lua:%d+: flow.gather"), tostring(problem))
    end
    refused("axis is 2, wanted that behind the batch, 1", { 2, 2 }, { axis = 2, batch_dims = 1 })
    refused("axis 0 differs: params are (2, 3, 4), indices (3, 2)", { 3, 2 }, { batch_dims = 1 })
    refused("axis 1 differs: params are (2, 3, 4), indices (2, 2); to pick for each of the last axis of indices it is "
      .. "axis = 1, batch_dims = 1", { 2, 2 }, { axis = 2, batch_dims = 2 })
    refused("batch_dims is 3", { 2, 3, 4 }, { batch_dims = 3 })
    refused("batch_dims is 2", { 2 }, { batch_dims = 2 })
  end)

  it("names an index that is out of bounds", function()
    local fine, problem = pcall(picked, np.zeros { 2, 3 }, np.array({ { 0 }, { 3 } }, flow.int32), { batch_dims = 1 })
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("3", 1, true))
  end)
end)
