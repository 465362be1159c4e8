-- flow.scope.recompute: what is between is not kept, and nothing else of a job changes.
local checks = require "checks"
local flow = require "moonflow"
local np, tp = flow.np, flow.typing
local near, raises = checks.near, checks.raises

before_each(function()
  flow.clear_default_session()
  flow.set_seed(7)
  np.random.seed(1)
end)

local function vector(...) return np.array({ ... }, flow.float) end

-- Bytes of the plan's values.
local function bytes_of(job)
  local taken = job:summary({ plan = true }):match("values take ([%d,]+) bytes")
  return tonumber((taken:gsub(",", "")))
end

-- Trains `net(x, scope)` for some steps in each of the two ways; gives losses, variables and bytes of each.
local function both(x, steps, net, config)
  local ways = {}
  for i, scope in ipairs { function(body) return body() end, flow.scope.recompute } do
    flow.clear_default_session()
    flow.set_seed(7)
    local job = flow.global_function {
      type = "train", name = "learn", inputs = { input = tp.Numpy.Placeholder(x.shape:table()) }, returns = tp.Numpy,
      function_config = config,
    } (function(input)
      local loss = flow.math.reduce_mean(flow.math.square(net(input, scope)))
      flow.optimizer.SGD(0.05, { momentum = 0.9 }):minimize(loss)
      return loss
    end)
    local way = { losses = {}, bytes = bytes_of(job), variables = flow.get_all_variables() }
    for step = 1, steps do way.losses[step] = job(x):item() end
    for name, variable in pairs(way.variables) do way.variables[name] = variable:numpy() end
    ways[i] = way
  end
  return unpack(ways)
end

describe("a part that is computed once more", function()
  local function residual(x, scope)
    for i = 1, 6 do
      x = scope(function()
        local h = flow.layers.dense(x, 64, { activation = flow.math.tanh, name = "wide" .. i })
        h = flow.nn.dropout(flow.math.sigmoid(h), { rate = 0.2, name = "drop" .. i })
        return x + flow.layers.dense(h, 16, { name = "narrow" .. i })
      end)
    end
    return x
  end

  it("changes no bit of a training, random numbers among them, and takes less memory", function()
    local x = np.random.normal(0, 1, { 1024, 16 }):astype(flow.float)
    local kept, once_more = both(x, 5, residual)
    assert.same(kept.losses, once_more.losses)
    assert.is_true(kept.losses[5] < kept.losses[1])
    for name, value in pairs(kept.variables) do assert.is_true(value == once_more.variables[name], name) end
    assert.is_true(once_more.bytes < 0.6 * kept.bytes, once_more.bytes .. " of " .. kept.bytes)
  end)

  it("may be some steps of a recurrent net, whose weight has one gradient", function()
    local STEPS, WIDTH = 48, 32
    local function steps(x, scope)
      return flow.scope.reuse_variables(function()
        local h = x
        for _ = 1, STEPS / 6 do
          h = scope(function()
            local inner = h
            for _ = 1, 6 do
              local gates = flow.layers.dense(flow.concat({ inner, x }, 1), 2 * WIDTH, { name = "gates" })
              local open = flow.math.sigmoid(flow.slice(gates, { 0, 0 }, { 128, WIDTH }))
              inner = inner * open + flow.math.tanh(flow.slice(gates, { 0, WIDTH }, { 128, WIDTH }))
            end
            return inner
          end)
        end
        return h
      end)
    end
    local x = np.random.normal(0, 1, { 128, WIDTH }):astype(flow.float)
    local kept, once_more = both(x, 3, steps)
    near(np.array(kept.losses), np.array(once_more.losses), 1e-4)
    assert.is_true(once_more.bytes < 0.4 * kept.bytes, once_more.bytes .. " of " .. kept.bytes)
  end)

  it("moves the statistics of batches once", function()
    local function convolutions(x, scope)
      for i = 1, 3 do
        x = scope(function()
          local y = flow.layers.conv2d(x, 8, 3, { padding = "SAME", name = "conv" .. i })
          return flow.nn.relu(flow.layers.batch_normalization(y, { name = "norm" .. i }))
        end)
      end
      return x
    end
    local x = np.random.normal(0, 1, { 4, 3, 12, 12 }):astype(flow.float)
    local kept, once_more = both(x, 4, convolutions)
    near(np.array(kept.losses), np.array(once_more.losses), 1e-5)
    for name, value in pairs(kept.variables) do near(value, once_more.variables[name], 1e-4) end
  end)

  it("computes in mixed precision as the first time", function()
    local x = np.random.normal(0, 1, { 1024, 16 }):astype(flow.float)
    local kept, once_more = both(x, 3, residual, { enable_auto_mixed_precision = true })
    near(np.array(kept.losses), np.array(once_more.losses), 5e-3)  -- of what is fused nothing is rounded between
    assert.is_true(once_more.bytes < kept.bytes)
  end)

  it("is watched as any other, and its gradients are", function()
    local values, diffs = {}, {}
    local job = flow.global_function {
      type = "train", inputs = { x = tp.Numpy.Placeholder { 3 } }, returns = tp.Numpy,
    } (function(x)
      local w = flow.get_variable("w", { shape = { 3 }, initializer = flow.constant_initializer(2) })
      local y = flow.scope.recompute(function()
        local inner = flow.math.exp(x * w)
        flow.watch(inner, function(value) values[#values + 1] = value end)
        flow.watch_diff(inner, function(value) diffs[#diffs + 1] = value end)
        return flow.math.square(inner)
      end)
      local loss = flow.math.reduce_sum(y)
      flow.optimizer.SGD(0):minimize(loss)
      return loss
    end)
    job(vector(0, 0.5, 1))
    assert.equal(1, #values)
    near(np.exp(vector(0, 1, 2)), values[1], 1e-6)
    assert.equal(1, #diffs)
    near(2 * np.exp(vector(0, 1, 2)), diffs[1], 1e-6)
  end)

  it("has gradients of gradients", function()
    local function second(scope)
      return checks.run({ vector(-1, 0.5, 2) }, function(x)
        local y = scope(function() return flow.math.exp(flow.math.sin(x)) * x end)
        return flow.gradients(flow.math.square(flow.gradients(y, x)), x)
      end)
    end
    near(second(function(body) return body() end), second(flow.scope.recompute), 1e-6)
  end)

  it("may stand in another one, give several values, and end in an error", function()
    local job = flow.global_function {
      type = "train", inputs = { x = tp.Numpy.Placeholder { 2 } }, returns = tp.Numpy,
    } (function(x)
      local w = flow.get_variable("w", { shape = { 2 }, initializer = flow.constant_initializer(1) })
      local a, b = flow.scope.recompute(function()
        local inner = flow.scope.recompute(function() return flow.math.exp(x * w) end)
        return inner, flow.math.square(inner)
      end)
      assert.is_false((pcall(flow.scope.recompute, function() error "no" end)))
      local loss = flow.math.reduce_sum(a * b)
      flow.optimizer.SGD(1):minimize(loss)
      return loss
    end)
    near(np.array { 1 + math.exp(3) }, job(vector(0, 1)):reshape(1), 1e-4)
    near(vector(1, 1 - 3 * math.exp(3)), flow.get_all_variables().w:numpy(), 1e-4)
  end)

  it("changes nothing of a job that only predicts", function()
    local function steps(scope)
      local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder { 8, 16 } }, returns = tp.Numpy } (
        function(x) return flow.scope.reuse_variables(function() return residual(x, scope) end) end)
      return (job:summary({ plan = true }):gsub("^[^\n]*\n", ""):gsub("recompute_spec.lua:%d+", ""))
    end
    assert.equal(steps(function(body) return body() end), steps(flow.scope.recompute))
  end)

  it("names what does not fit", function()
    raises("wrong_state", "flow.scope.recompute is used outside of a job function", flow.scope.recompute, print)
    raises("invalid_argument", "flow.scope.recompute: the last argument must be the function that runs in the scope, "
      .. "got a blob", flow.global_function, { inputs = { x = tp.Numpy.Placeholder { 2 } }, returns = tp.Numpy },
      function(x) return flow.scope.recompute(x) end)
  end)
end)
