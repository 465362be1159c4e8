-- What is taken together by segments: maxima, means and softmaxes, as of the edges that lead to one node of a graph.
local checks = require "checks"
local flow = require "moonflow"
local np = flow.np

-- What `body(a)` or `body(a, b)` gives for arrays.
local function run(body, ...) return checks.run({ ... }, body) end

describe("segments", function()
  local ids = np.array({ 2, 0, 2, 0, 2 }, "int64")
  local x = np.array { { 1, -1 }, { 2, 8 }, { 3, -3 }, { 4, 8 }, { 8, -2 } }

  it("have maxima, whose gradient goes to the largest elements alone", function()
    local none = -math.huge
    assert.same({ { 4, 8 }, { none, none }, { 8, -1 } },
      run(function(a, b) return flow.math.unsorted_segment_max(a, b, 3) end, x, ids):totable())
    local slope = run(function(a, b)
      local largest = flow.math.unsorted_segment_max(a, b, 3)
      local kept = flow.where(largest:gt(none), largest, 0)  -- what a node has to which no edge leads
      return flow.gradients(kept * np.array { { 10, 1 }, { 10, 1 }, { 100, 5 } }, a)
    end, x, ids)
    assert.same({ { 0, 5 }, { 0, 0.5 }, { 0, 0 }, { 10, 0.5 }, { 100, 0 } }, slope:totable())
  end)

  it("have means, 0 where nothing is in one", function()
    local function mean(...)
      local more = { ... }
      return function(a, b) return flow.math.unsorted_segment_mean(a, b, unpack(more)) end
    end
    assert.same({ { 3, 8 }, { 0, 0 }, { 4, -2 } }, run(mean(3), x, ids):totable())
    local stack = np.stack({ x, x * 2 }, 0)
    assert.same({ { { 3, 8 }, { 0, 0 }, { 4, -2 } }, { { 6, 16 }, { 0, 0 }, { 8, -4 } } },
      run(mean(3, 1), stack, ids):totable())
    assert.same({ { 0, 0 }, { 5, 0 } }, run(mean(2, { axis = -1 }), x:slice(":2"), np.zeros({ 2 }, "int32")):totable())
    assert.same({ { 0 }, { 5 }, { 0 }, { 6 }, { 3 } },
      run(mean(1, { axis = -1, name = "mean" }), x, np.zeros({ 2 }, "int32")):totable())
  end)

  it("have a softmax, which nothing makes overflow", function()
    local large = x * 100
    local function softmax(a, b) return flow.math.unsorted_segment_softmax(a, b, 3, { name = "weights" }) end
    local weights = run(softmax, large, ids)
    assert.is_true(np.allclose(weights, { { 0, 1 }, { 0, 0.5 }, { 0, 0 }, { 1, 0.5 }, { 1, 0 } }))
    -- Along two axes, which count from the front or from the back: each of them is one of the flat ids.
    local stack, places = np.random.normal(0, 1, { 4, 4, 4 }):astype("float32"), np.arange(16):reshape(4, 4) % 5
    places = places:astype("int32")
    local function along(axis, data, of) return run(function(a, b)
      return flow.math.unsorted_segment_softmax(a, b, 5, axis)
    end, data, of) end
    local flat = along(1, stack:reshape(4, 16), places:reshape(16)):reshape(4, 4, 4)
    assert.is_true(np.allclose(flat, along(1, stack, places)))
    assert.is_true(np.allclose(flat, along(-2, stack, places)))
    -- One segment: the softmax that there is.
    local one = np.zeros({ 5 }, "int32")
    local function slope(of) return function(a) return flow.gradients(of(a) * x, a) end end
    local wanted = run(slope(function(a) return flow.nn.softmax(a, 0) end), x)
    local got = run(slope(function(a) return flow.math.unsorted_segment_softmax(a, one, 1) end), x)
    assert.is_true(np.allclose(wanted, got, { atol = 1e-6 }))
  end)

  it("count beyond what half precision can", function()
    local many, one = np.ones({ 70000 }, "float16"), np.zeros({ 70000 }, "int32")
    local mean = run(function(a, b) return flow.math.unsorted_segment_mean(a, b, 1) end, many, one)
    assert.equal("float16", mean.dtype)
    assert.equal(1, mean[0])
    local weights = run(function(a, b) return flow.math.unsorted_segment_softmax(a, b, 1) end, many, one)
    assert.near(1 / 70000, weights[5], 1e-7)
  end)

  it("count beyond what float32 can", function()
    if os.getenv("MOONFLOW_TEST_PLACEMENT") then return pending("too many for a simulated card") end
    local members, ones = 2 ^ 24 + 2 ^ 20, 2 ^ 10
    local some = np.zeros({ members })
    some:set(":" .. ones, 1)
    local mean = run(function(a) return flow.math.unsorted_segment_mean(a, flow.zeros(a.shape:table(), "int8"), 1) end,
      some)
    assert.equal("float32", mean.dtype)
    assert.near(ones / members, mean[0], 1e-11)
  end)

  it("count the ones of comparisons beyond 127", function()
    local sums = run(function(a, b) return flow.math.unsorted_segment_sum(a:gt(0), b, 1) end, np.ones({ 300 }),
      np.zeros({ 300 }, "int32"))
    assert.equal("int64", sums.dtype)
    assert.equal(300, sums[0])
  end)

  it("name an index that is outside, and what is no list of indices", function()
    checks.raises("dtype_mismatch", "flow.math.unsorted_segment_mean: unsorted_segment_sum 'UnsortedSegmentSum_0': "
      .. "segment_ids must be integers", run, function(a) return flow.math.unsorted_segment_mean(a, 0, 2) end, x)
    local wrong = np.array({ 1, 0, 2, 0, 1 }, "int64")
    local fine, problem = pcall(run, function(a, b) return flow.math.unsorted_segment_softmax(a, b, 2) end, x, wrong)
    assert.is_false(fine)
    assert.truthy(problem.message:find("indices at (2) is 2, outside [0, 2)", 1, true), problem.message)
  end)
end)
