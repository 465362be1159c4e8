-- Functions of OneFlow that are put together from ops, against numbers worked out here.
local checks = require "checks"
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

before_each(function()
  flow.clear_default_session()
  flow.set_seed(3)
end)

local function run(arrays, body, options)
  local result = checks.run(arrays, body, options)
  flow.clear_default_session()
  return result
end

local function near(expected, array, tolerance)
  local got = array:ravel():totable()
  assert.equal(#expected, #got)
  for i, value in ipairs(expected) do
    assert.truthy(math.abs(value - got[i]) <= (tolerance or 1e-6), ("%d: %.9g, wanted %.9g"):format(i, got[i], value))
  end
end

local x = np.array({ { 3, 1, 2 }, { 6, 5, 4 } }, flow.float)

describe("combined_margin_loss", function()
  local cosines, labels = { { 0.5, -0.2, 0.1 }, { 0.3, 0.8, -0.6 } }, np.array({ 0, 2 }, flow.int32)

  it("makes the cosine of the label harder to reach", function()
    local m1, m2, m3 = 1.1, 0.4, 0.15
    local function target(c) return math.cos(m1 * math.acos(c) + m2) - m3 end
    near({ target(0.5), -0.2, 0.1, 0.3, 0.8, target(-0.6) },
      run({ np.array(cosines, flow.double), labels }, function(a, b)
        return flow.combined_margin_loss(a, b, m1, m2, m3)
      end), 1e-12)
  end)

  it("leaves an angle of 0 alone where only m3 is given", function()
    local cosine, label = np.array({ { 1, 0 }, { 0, 0.65 } }, flow.double), np.array({ 0, 1 }, flow.int32)
    near({ 0.65, 0, 0, 0.3 }, run({ cosine, label },
      function(a, b) return flow.combined_margin_loss(a, b, { m3 = 0.35 }) end), 1e-12)
    near({ 0.65, 0, 0, 0.3 }, run({ cosine },
      function(a) return flow.combined_margin_loss(a, label, { m3 = 0.35 }) end), 1e-12)
  end)

  it("stays a number where rounding puts a cosine beyond 1", function()
    local c, seen = np.array({ { 1 + 2 ^ -22, -1 - 2 ^ -22 }, { 1, 0.5 } }, flow.float)
    local out = checks.run({ c, np.array({ 0, 1 }, flow.int32) }, function(a, b)
      local w = flow.get_variable("w", { 2, 2 }, flow.float, flow.constant_initializer(1))
      local cosine = a * w
      flow.watch_diff(cosine, function(g) seen = g end)
      local result = flow.combined_margin_loss(cosine, b, 1, 0.5, 0)
      flow.optimizer.SGD(0.1):minimize(result)
      return result
    end, { type = "train" })
    assert.is_true(np.isfinite(out):all())
    assert.near(math.cos(0.5), out:at(0, 0), 1e-3)
    assert.is_true(np.isfinite(seen):all())
    assert.equal(0, seen:at(0, 0))
  end)

  it("has the gradient of its formula", function()
    local seen
    local c = np.array({ { 0.5, -0.2 } }, flow.double)
    run({ c, np.array({ 0 }, flow.int32) }, function(a, b)
      local w = flow.get_variable("w", { 1, 2 }, flow.double, flow.constant_initializer(1))
      local cosine = a * w
      local out = flow.combined_margin_loss(cosine, b, 2, 0.3, 0)
      flow.watch_diff(cosine, function(g) seen = g end)
      flow.optimizer.SGD(0.1):minimize(out)
      return out
    end, { type = "train" })
    local angle = math.acos(0.5)
    near({ 2 * math.sin(2 * angle + 0.3) / math.sin(angle), 1 }, seen, 1e-9)
  end)

  it("names the row of a label that is no class, and shapes that do not fit", function()
    local fine, problem = pcall(run, { np.array(cosines, flow.float), np.array({ 0, 3 }, flow.int32) },
      function(a, b) return flow.combined_margin_loss(a, b, 1, 0.5, 0) end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("3", 1, true))
    fine, problem = pcall(run, { x }, function(a) return flow.combined_margin_loss(a, flow.math.argmax(a, 0)) end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("x is (2, 3) and label (3), wanted (rows, classes) and (rows)", 1, true))
  end)
end)

describe("dropout with a noise_shape", function()
  local ones = np.ones { 50, 4, 6 }

  it("makes one choice for all elements along an axis of size 1", function()
    local y = run({ ones }, function(a)
      local w = flow.get_variable("w", { shape = { 1 }, initializer = flow.constant_initializer(1) })
      local out = flow.nn.dropout(a, 0.25, { 50, 1, 6 })
      flow.optimizer.SGD(0.1):minimize(out * w)
      return out
    end, { type = "train" })
    local kept = 0
    for i = 0, 49 do
      for k = 0, 5 do
        local value = y:at(i, 0, k)
        assert.truthy(value == 0 or math.abs(value - 4 / 3) < 1e-6, value)
        if value ~= 0 then kept = kept + 1 end
        for j = 1, 3 do assert.equal(value, y:at(i, j, k)) end
      end
    end
    assert.truthy(math.abs(kept / 300 - 0.75) < 4 * math.sqrt(0.1875 / 300), kept)
  end)

  it("is nothing in a predict job, and of the mask its shape", function()
    assert.is_true(run({ ones }, function(a) return flow.nn.dropout(a, 0.25, { 50, 1, 1 }) end) == ones)
    local mask = run({ ones }, function(a) return flow.nn.random_mask_like(a, 0.5, { noise_shape = { 50, 1, 1 } }) end)
    assert.equal("(50, 1, 1)", tostring(mask.shape))
  end)

  it("is refused where it does not fit", function()
    local fine, problem = pcall(run, { ones }, function(a) return flow.nn.dropout(a, 0.25, { 50, 2, 6 }) end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("noise_shape (50, 2, 6) does not fit 'a' of shape (50, 4, 6)", 1, true))
  end)
end)

describe("an order along an axis", function()
  local y = np.array({ { 3, 1, 2 }, { 6, 0, 4 }, { 5, 7, 3 } }, flow.float)

  it("is that of its columns for axis 0", function()
    assert.same({ { 3, 0, 2 }, { 5, 1, 3 }, { 6, 7, 4 } }, run({ y }, function(a)
      return flow.sort(a, { axis = 0 })
    end):totable())
    assert.same({ { 1, 2, 1 }, { 2, 0, 2 }, { 0, 1, 0 } }, run({ y }, function(a)
      return flow.argsort(a, 0, "DESCENDING")
    end):totable())
    assert.same({ { 1, 2, 1 }, { 2, 0, 2 } }, run({ y }, function(a) return flow.math.top_k(a, -2, 2) end):totable())
  end)

  it("is that of its rows for the last, and has the name that is given", function()
    local name
    assert.same({ { 1, 2, 3 }, { 0, 4, 6 }, { 3, 5, 7 } }, run({ y }, function(a)
      return flow.sort(a, { axis = 1 })
    end):totable())
    run({ y }, function(a)
      local order = flow.argsort(a, { axis = 0, name = "order" })
      name = order.name
      return order
    end)
    assert.equal("order", name)
  end)

  it("keeps the middle axes of a stack apart", function()
    local z = np.array({ { { 4, 1 }, { 2, 8 } }, { { 3, 5 }, { 9, 0 } } }, flow.float)
    assert.same({ { { 3, 1 }, { 2, 0 } }, { { 4, 5 }, { 9, 8 } } }, run({ z }, function(a)
      return flow.sort(a, { axis = 0 })
    end):totable())
    assert.same({ { { 2, 1 }, { 4, 8 } }, { { 3, 0 }, { 9, 5 } } }, run({ z }, function(a)
      return flow.sort(a, { axis = 1 })
    end):totable())
  end)

  it("is refused for an axis that there is none of", function()
    local fine, problem = pcall(run, { y }, function(a) return flow.sort(a, { axis = 2 }) end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("flow.sort: axis 2 is out of range for rank 2", 1, true))
  end)
end)

describe("a small function of the original", function()
  it("gives what its formula says", function()
    near({ math.sqrt(14), math.sqrt(77) }, run({ x }, function(a) return flow.math.reduce_euclidean_norm(a, 1) end))
    near({ math.sqrt(91) }, run({ x }, function(a) return flow.math.reduce_euclidean_norm(a) end))
    near({ 34, 6, 17, 121, 86, 57 }, run({ x }, function(a) return flow.math.polyval({ 3, 2, 1 }, a) end))
    near({ 7, 7, 7, 7, 7, 7 }, run({ x }, function(a) return flow.math.polyval({ 7 }, a) end))
    near({ 6, 9, 9, 12, 10, 9 }, run({ x }, function(a) return flow.math.fused_scale_tril(a, 0, 9, 2) end))
    near({ 6, 5, 4 }, run({ x }, function(a) return flow.math.two_stage_reduce_max(a, 0) end))
    near({ 3, 1, 2 }, run({ x }, function(a) return flow.math.two_stage_reduce_min(a, 0) end))
  end)

  it("has no slope where a norm is 0, as of points that are masked", function()
    local slopes = run({ np.array { { 3, 4 }, { 0, 0 } } }, function(a)
      return flow.gradients(flow.math.reduce_sum(flow.math.reduce_euclidean_norm(a, 1)), { a })[1]
    end)
    assert.is_true(np.allclose(slopes, np.array { { 0.6, 0.8 }, { 0, 0 } }))
  end)

  it("is rounded once in half precision, and its squares may be larger than that holds", function()
    for _, dtype in ipairs { flow.float16, flow.bfloat16 } do
      local norms = run({ np.array({ { 300, 400, 0 }, { 1, 16, 16 } }):astype(dtype) }, function(a)
        return flow.math.reduce_euclidean_norm(a, 1, { name = "norms" })
      end)
      assert.equal(dtype, norms.dtype)
      assert.is_true(np.array_equal(np.array({ 500, math.sqrt(513) }):astype(dtype), norms))
    end
  end)

  it("has the shape of another value", function()
    assert.equal("(3, 2)", tostring(run({ x, np.zeros { 3, 2 } }, function(a, b)
      return flow.reshape_like(a, b)
    end).shape))
    near({ 1, 1, 1, 2, 2, 2 }, run({ np.array({ 1, 2 }, flow.float), x }, function(a, b)
      return flow.broadcast_like(a, b, { 1 })
    end))
    near({ 1, 2, 3, 1, 2, 3 }, run({ np.array({ 1, 2, 3 }, flow.float), x }, function(a, b)
      return flow.broadcast_like(a, b)
    end))
    assert.equal("(4, 2, 3)", tostring(run({ x, np.zeros { 4, 1, 1 } }, function(a, b)
      return flow.math.broadcast_to_compatible_with(a, { b, flow.zeros { 3 } })
    end).shape))
    local fine, problem = pcall(run, { x }, function(a)
      return flow.broadcast_to_compatible_with(a, { flow.zeros { 2 } })
    end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("does not broadcast with those before it: 2 against 3", 1, true))
    assert.equal(flow.int32, run({ x }, function(a) return flow.ones_like(a, flow.int32) end).dtype)
    near({ 0, 0, 0, 0, 0, 0 }, run({ x }, function(a) return flow.zeros_like(a, "none") end))
    fine, problem = pcall(run, { x }, function(a) return flow.zeros_like(a, "double") end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("got 'double'; did you mean 'float64'?", 1, true))
  end)

  it("bounds as hardtanh is told", function()
    near({ 3, 2, 2, 4, 4, 4 }, run({ x }, function(a) return flow.nn.hardtanh(a, 2, 4) end))
    near({ 1, 1, 1, 1, 1, 1 }, run({ x }, function(a) return flow.nn.hardtanh(a) end))
  end)

  it("says what a device has of a value, and nothing changes", function()
    near({ 3, 1, 2, 6, 5, 4 }, run({ x }, function(a)
      local w = flow.get_variable("w", { shape = { 3 }, initializer = flow.constant_initializer(1),
        distribute = flow.distribute.broadcast() })
      assert.is_true(flow.distribute.consistent_strategy_enabled())
      return flow.parallel_cast(flow.cast_to_current_logical_view(a * w):with_distribute(flow.distribute.split(0)),
        { distribute = flow.distribute.auto() })
    end))
  end)

  it("opens scopes by their old names", function()
    local name
    run({ x }, function(a)
      return flow.fixed_placement("cpu", "0:0", function()
        return flow.name_scope("tower", function()
          local y = flow.nn.relu(a, { name = "relu" })
          name = y.name
          return y
        end)
      end)
    end)
    assert.equal("tower-relu", name)
  end)

  it("asks for steps of picked rows alone, which its optimizer has to make", function()
    local function trained(make)
      local config = flow.FunctionConfig()
      config:indexed_slices_optimizer_conf { include_op_names = { op_name = { "table" } } }
      local job = flow.global_function { type = "train", function_config = config, returns = tp.Numpy } (function()
        local rows = flow.get_variable("table", { shape = { 3, 1 }, initializer = flow.zeros_initializer() })
        local loss = flow.gather(rows, np.array({ 1 }, flow.int32))
        make():minimize(loss)
        return loss
      end)
      for _ = 1, 2 do job() end
      return flow.get_all_variables().table:ravel():totable()
    end
    assert.same({ 0, -2, 0 }, trained(function() return flow.optimizer.SGD(1, { momentum = 0 }) end))
    flow.clear_default_session()
    local lazy = trained(function() return flow.optimizer.LazyAdam(1) end)
    assert.same({ 0, 0 }, { lazy[1], lazy[3] })
    assert.is_true(lazy[2] < -1)
    flow.clear_default_session()
    local fine, problem = pcall(trained, function() return flow.optimizer.Adam(1) end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("ported_spec.lua:%d+: flow.optimizer.Adam changes all rows"),
      tostring(problem))
  end)
end)
