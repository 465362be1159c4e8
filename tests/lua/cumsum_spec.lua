-- flow.math.cumsum: sums of all elements up to each one, and from each one on.
local checks = require "checks"
local flow = require "moonflow"
local np = flow.np
local run = checks.run

describe("cumsum", function()
  it("adds up along an axis, from either end", function()
    local a = np.array({ { 1, 2, 3 }, { 4, 5, 6 } })
    assert.same({ { 1, 2, 3 }, { 5, 7, 9 } }, run({ a }, function(x) return flow.math.cumsum(x) end):totable())
    assert.same({ { 1, 3, 6 }, { 4, 9, 15 } }, run({ a }, function(x) return flow.math.cumsum(x, -1) end):totable())
    assert.same({ { 6, 5, 3 }, { 15, 11, 6 } },
      run({ a }, function(x) return flow.math.cumsum(x, { axis = 1, reverse = true }) end):totable())
  end)

  it("leaves the element itself out on demand", function()
    local a = np.array({ { 1, 2, 3 }, { 4, 5, 6 } })
    assert.same({ { 0, 1, 3 }, { 0, 4, 9 } },
      run({ a }, function(x) return flow.math.cumsum(x, { axis = 1, exclusive = true }) end):totable())
    assert.same({ { 5, 3, 0 }, { 11, 6, 0 } },
      run({ a }, function(x) return flow.math.cumsum(x, { axis = 1, exclusive = true, reverse = true }) end):totable())
  end)

  it("reaches over axes of any size, and keeps the dtype", function()
    for size = 1, 17 do
      local a = np.arange(1, size + 1):astype("int32"):reshape(size, 1)
      local sums = run({ a }, function(x) return flow.math.cumsum(x, { name = "sums" }) end)
      assert.equal("int32", sums.dtype)
      assert.is_true(np.array_equal(sums, np.cumsum(a, 0)))
    end
  end)

  it("counts what a comparison gives beyond what its dtype holds, as other sums do", function()
    local a = np.ones { 300 }
    local function of_mask(sum) return run({ a }, function(x) return sum(x:greater(0)) end) end
    assert.equal(300, of_mask(flow.math.cumsum)[299])
    assert.equal(300, of_mask(flow.math.reduce_sum):item())
    assert.equal("int64", of_mask(flow.math.reduce_sum).dtype)
    assert.equal(300, of_mask(function(mask) return flow.math.reduce_sum { x = mask, name = "count" } end):item())
    assert.same({ 300 }, of_mask(function(mask) return flow.math.reduce_sum(mask, { axis = 0, keepdims = true }) end)
      :totable())
    assert.equal(2 ^ 8, run({ np.full({ 8 }, 2):astype("uint8") }, function(x) return flow.math.reduce_prod(x) end)
      :item())
  end)

  it("rounds each sum once", function()
    -- Ones end at 256 in bfloat16 and at 2048 in float16, where sums are rounded on the way; so does 2^24 in float32.
    for dtype, ends in pairs { bfloat16 = 2 ^ 8, float16 = 2 ^ 11, float32 = 2 ^ 24 } do
      local a = np.concat({ np.array({ ends }), np.ones({ 6 }), np.array({ -ends }), np.ones({ 6 }) }, 0):astype(dtype)
      local sums = run({ a }, function(x) return flow.math.cumsum(x, { name = "sums" }) end)
      assert.equal(dtype, sums.dtype)
      assert.is_true(np.array_equal(sums, np.cumsum(a:astype(flow.double), 0):astype(dtype)))
      local from_the_end = run({ a }, function(x) return flow.math.cumsum(x, 0, true) end)
      assert.equal(12, from_the_end:astype(flow.float)[0])
      assert.equal(6, from_the_end:astype(flow.float)[8])
    end
  end)

  it("keeps an infinity from the sums that it is no part of", function()
    assert.same({ 1, 1 / 0, 1 / 0 },
      run({ np.array({ 1, 1 / 0, 2 }) }, function(x) return flow.math.cumsum(x) end):totable())
  end)

  it("has the sums from the other end as its gradient", function()
    local dx = run({ np.array({ 3, 1, 2, 5, 4 }) }, function(x)
      return flow.gradients(flow.math.cumsum(x) * np.array({ 1, 10, 100, 1000, 10000 }), { x })[1]
    end)
    assert.same({ 11111, 11110, 11100, 11000, 10000 }, dx:totable())
    dx = run({ np.array({ 3, 1, 2 }) }, function(x)
      return flow.gradients(flow.math.cumsum(x, { exclusive = true }) * np.array({ 1, 10, 100 }), { x })[1]
    end)
    assert.same({ 110, 100, 0 }, dx:totable())
    dx = run({ np.array({ 3, 1, 2 }) }, function(x)
      return flow.gradients(flow.math.cumsum(x, 0, true) * np.array({ 1, 10, 100 }), { x })[1]
    end)
    assert.same({ 1, 11, 111 }, dx:totable())
  end)

  it("wants an axis that there is", function()
    checks.raises("out_of_range", "axis 1 is outside rank 1 (axes count from 0; -1 is the last)", run,
      { np.zeros({ 2 }) }, function(x) return flow.math.cumsum(x, 1) end)
  end)
end)
