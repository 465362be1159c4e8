-- Ordering and indexing in jobs: sort, argsort, top_k, in_top_k, gather_nd and its kin, masks, and what is said of
-- wrong arguments.
local checks = require "checks"
local flow = require "moonflow"
local np, tp = flow.np, flow.typing
local run = checks.run

local nan = 0 / 0

local function same(expected, array)
  assert.same(expected, array:totable())
end

-- The message of what goes wrong there, without the place and the name of the job.
local function message(arrays, body)
  local fine, problem = pcall(run, arrays, body)
  assert.is_false(fine, "nothing was raised")
  assert.truthy(tostring(problem):find("ordering_spec.lua:%d+: "), tostring(problem))
  return (tostring(problem):gsub("^.-:%d+: ", ""):gsub("^job@checks.lua:%d+: ", ""))
end

before_each(function() flow.clear_default_session() end)

describe("the order", function()
  it("puts a NaN above all and keeps equal values as they stood", function()
    local x = np.array({ { 2, 3, 1, 3 }, { nan, 0, -1, 5 } }, flow.float)
    same({ { 2, 0, 1, 3 }, { 2, 1, 3, 0 } }, run({ x }, function(a) return flow.argsort(a) end))
    same({ { 1, 3, 0, 2 }, { 0, 3, 1, 2 } }, run({ x }, function(a) return flow.argsort(a, "DESCENDING") end))
    same({ 1, 2, 3, 3 }, run({ x }, function(a) return flow.sort(a) end)[0])
    same({ 3, 3, 2, 1 }, run({ x }, function(a) return flow.sort(a, { direction = "DESCENDING" }) end)[0])
  end)

  it("is that of top_k, which gives places", function()
    local x = np.array({ { 2, 3, 1, 3 }, { 9, 0, 10, 5 } }, flow.int32)
    same({ { 1 }, { 2 } }, run({ x }, function(a) return flow.math.top_k(a) end))
    same({ { 1, 3, 0 }, { 2, 0, 3 } }, run({ x }, function(a) return flow.math.top_k(a, 3, { sorted = true }) end))
    same({ { 3, 3 }, { 10, 9 } }, run({ x }, function(a) return flow.dim_gather(a, 1, flow.math.top_k(a, 2)) end))
  end)

  it("counts a target that is among the k largest", function()
    local targets = np.array({ 0, 3, 2 }, flow.int32)
    local x = np.array({ { 5, 5, 5, 5 }, { 5, 5, 5, 5 }, { 1, 4, 2, 3 } }, flow.float)
    local in_top = run({ targets, x }, function(a, b) return flow.math.in_top_k(a, b, 2) end)
    assert.equal("int8", in_top.dtype)
    same({ 1, 0, 0 }, in_top)
  end)

  it("sends gradients back to where the values came from", function()
    local diff
    flow.global_function { type = "train", returns = tp.None } (function()
      local w = flow.get_variable("w", { shape = { 1, 3 }, initializer = flow.constant_initializer(0) })
      local x = w + flow.range(3, 0, -1)
      flow.watch_diff(x, function(d) diff = d end)
      flow.optimizer.SGD(0.1):minimize(flow.sort(x) * flow.range(1, 4))
    end)()
    same({ { 3, 2, 1 } }, diff)
  end)

  it("needs a direction and a k that exist", function()
    local x = np.zeros({ 2, 3 })
    assert.equal("sort 'Sort_0': direction is \"UP\", wanted \"ASCENDING\" or \"DESCENDING\"",
      message({ x }, function(a) return flow.sort(a, "UP") end))
    assert.equal("top_k 'TopK_0': k is 4, the last axis of x (2, 3) has 3 values; k must be in [1, 3]",
      message({ x }, function(a) return flow.math.top_k(a, 4) end))
    assert.equal("flow.sort has no option 'order'; its parameters are x, direction, name, axis",
      message({ x }, function(a) return flow.sort(a, { order = "ASCENDING" }) end))
  end)
end)

describe("indices", function()
  it("name rows by coordinates, to read and to add", function()
    local x = np.array({ { 1, 2 }, { 3, 4 }, { 5, 6 } }, flow.float)
    local rows = np.array({ { 2 }, { 0 }, { 2 } }, flow.int32)
    same({ { 5, 6 }, { 1, 2 }, { 5, 6 } }, run({ x, rows }, function(a, b) return flow.gather_nd(a, b) end))
    same({ { 3, 4 }, { 0, 0 }, { 6, 8 } }, run({ x, rows }, function(a, b) return flow.scatter_nd(b, a, { 3, 2 }) end))
    same({ { 4, 6 }, { 3, 4 }, { 11, 14 } },
      run({ x, rows }, function(a, b) return flow.tensor_scatter_nd_add(a, b, a) end))
    same({ { 3, 4 }, { 3, 4 }, { 5, 6 } },
      run({ x, rows }, function(a, b) return flow.tensor_scatter_nd_update(a, b, a) end))
  end)

  it("name segments to sum, and places along an axis in both orders of arguments", function()
    local x = np.array({ { 1, 2 }, { 3, 4 }, { 5, 6 } }, flow.float)
    local ids = np.array({ 1, 1, 0 }, flow.int32)
    same({ { 5, 6 }, { 4, 6 }, { 0, 0 } },
      run({ x, ids }, function(a, b) return flow.math.unsorted_segment_sum(a, b, 3) end))
    local index = np.array({ { 1 }, { 0 }, { 1 } }, flow.int32)
    same({ { 2 }, { 3 }, { 6 } }, run({ x, index }, function(a, b) return flow.dim_gather(a, 1, b) end))
    same({ { 2 }, { 3 }, { 6 } }, run({ x, index }, function(a, b) return flow.dim_gather(a, b, { dim = -1 }) end))
    same({ { 2 }, { 3 }, { 6 } },
      run({ x, index }, function(a, b) return flow.dim_gather(a, { dim = 1, index = b }) end))
  end)

  it("outside their bounds are named by place", function()
    local x, bad = np.zeros({ 3, 2 }), np.array({ { 0, 1 }, { 1, 2 } }, flow.int32)
    assert.equal("gather_nd 'GatherNd_0': indices at (1, 1) is 2, outside [0, 2)",
      message({ x, bad }, function(a, b) return flow.gather_nd(a, b) end))
    local targets = np.array({ 0, 2, 1 }, flow.int32)
    assert.equal("in_top_k 'InTopK_0': row 1: label 2 is outside [0, 2)",
      message({ x, targets }, function(a, b) return flow.math.in_top_k(b, a, 1) end))
  end)
end)

describe("a split", function()
  it("gives parts that are equal or as long as a list says", function()
    local x = np.array({ { 1, 2, 3, 4 }, { 5, 6, 7, 8 } }, flow.float)
    same({ { 3, 4 }, { 7, 8 } }, run({ x }, function(a) return select(2, flow.split(a, 2, { axis = -1 })) end))
    same({ { 5, 6, 7, 8 } }, run({ x }, function(a)
      local first, second, third = flow.split(a, 2)
      assert.is_nil(third)
      assert.same({ 1, 4 }, first.shape:table())
      return second
    end))
    local sizes = {}
    same({ { 2, 3, 4 }, { 6, 7, 8 } }, run({ x }, function(a)
      local parts = { flow.split(a, { 1, 3, 0 }, 1) }
      for i, part in ipairs(parts) do sizes[i] = part.shape[1] end
      return parts[2]
    end))
    assert.same({ 1, 3, 0 }, sizes)
  end)

  it("joins the gradients of its parts", function()
    local inputs = { x = tp.Numpy.Placeholder({ 1, 4 }) }
    local job = flow.global_function { inputs = inputs, returns = tp.Numpy } (function(x)
      local left, right = flow.split(x, { 1, 3 }, 1)
      return flow.gradients(left * flow.math.reduce_sum(right * right), x)
    end)
    same({ { 29, 4, 6, 8 } }, job(np.array({ { 1, 2, 3, 4 } }, flow.float)))
    assert.truthy(tostring(job:summary { plan = true }):find("\n  concat "), "they are padded and added")
  end)

  it("says what does not fit", function()
    local x = np.ones({ 2, 4 })
    local function said(...)
      local parts = { ... }
      return message({ x }, function(a) return (flow.split(a, unpack(parts))) end)
    end
    assert.equal("flow.split: axis 1 of x (2, 4) does not divide into 3 equal parts; a list gives the size of each",
      said(3, 1))
    assert.equal("flow.split: parts { 1, 2 } do not add up to the size of axis 1 of x (2, 4)", said({ 1, 2 }, 1))
    assert.equal("flow.split: parts { 3, 2 } do not add up to the size of axis 1 of x (2, 4)", said({ 3, 2 }, 1))
    assert.equal("flow.split: entry 2 of parts must be a size, got -1", said({ 2, -1 }, 1))
    assert.equal("flow.split: x is (2, 4), it has no axis 2", said(2, 2))
  end)
end)

describe("masks", function()
  it("fill what they name", function()
    local x, mask = np.array({ 1, 2, 3 }, flow.float), np.array({ { 0, 1, 0 }, { 1, 0, 0 } }, flow.int8)
    same({ { 1, -1, 3 }, { -1, 2, 3 } }, run({ x, mask }, function(a, b) return flow.masked_fill(a, b, -1) end))
  end)

  it("may be arrays, and so may the places of flow.dim_gather", function()
    local x, mask = np.array({ 1, 2, 3 }, flow.float), np.array({ { 0, 1, 0 }, { 1, 0, 0 } }, flow.int8)
    same({ { 1, -1, 3 }, { -1, 2, 3 } }, run({ x }, function(a) return flow.masked_fill(a, mask, -1) end))
    local places = np.array({ { 2, 0 }, { 1, 1 } }, flow.int64)
    local rows = np.array({ { 1, 2, 3 }, { 4, 5, 6 } }, flow.float)
    same({ { 3, 1 }, { 5, 5 } }, run({ rows }, function(a) return flow.dim_gather(a, 1, places) end))
    same({ { 3, 1 }, { 5, 5 } }, run({ rows }, function(a) return flow.dim_gather(a, places, 1) end))
  end)

  it("keep the lower triangle of each matrix", function()
    local x = np.ones({ 2, 3, 4 }, flow.int32)
    local low = run({ x }, function(a) return flow.math.tril(a) end)
    same({ { 1, 0, 0, 0 }, { 1, 1, 0, 0 }, { 1, 1, 1, 0 } }, low[1])
    local above = run({ x }, function(a) return flow.math.tril(a, 1, { fill_value = 7 }) end)
    same({ { 1, 1, 7, 7 }, { 1, 1, 1, 7 }, { 1, 1, 1, 1 } }, above[0])
    local far = 2 ^ 40  -- beyond what int32 counts: all of it, or nothing
    assert.is_true(run({ x }, function(a) return flow.math.tril(a, far) end) == x)
    assert.is_false(run({ x }, function(a) return flow.math.tril(a, -far) end):any())
    assert.equal("flow.math.tril: x is (3), it needs two axes for its matrices",
      message({ np.ones({ 3 }) }, function(a) return flow.math.tril(a) end))
  end)
end)
