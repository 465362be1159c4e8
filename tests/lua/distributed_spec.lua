-- Collectives of a process that is alone, and the share of a data set that each of several would have: those are in
-- processes_spec.lua.
local flow = require "moonflow"

local np = flow.np

describe("a process alone", function()
  it("is 0 of 1, and has its own values", function()
    assert.same({ 0, 1 }, { flow.distributed.join() })
    assert.same({ 0, 1, 0 }, { flow.distributed.rank(), flow.distributed.size(), flow.distributed.local_rank() })
    local x = np.array({ 1, 2.5, -3 })
    for _, reduction in ipairs { "sum", "mean", "max", "min" } do
      assert.equal(x:totable()[2], flow.distributed.all_reduce(x, reduction):totable()[2])
    end
    assert.same({ 1, 2.5, -3 }, flow.distributed.broadcast(x):totable())
    assert.same({ 1, 2.5, -3 }, flow.distributed.all_gather(x):totable())
    flow.distributed.barrier()
    local job = flow.global_function { returns = flow.typing.Numpy } (function()
      return flow.distributed.all_reduce(3)
    end)
    assert.equal(3, job():item())
  end)

  it("is told what cannot be", function()
    assert.has_error(function() flow.distributed.broadcast(np.zeros({ 2 }), { root = 1 }) end)
    local fine, problem = pcall(flow.distributed.all_reduce, np.zeros({ 2 }), "product")
    assert.is_false(fine)
    assert.truthy(tostring(problem):find('"sum", "mean", "max" or "min"', 1, true), tostring(problem))
    fine, problem = pcall(flow.distributed.all_reduce, np.array({ 1, 2 }, "int32"), "mean")
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("a mean needs floating values, got int32 (2)", 1, true), tostring(problem))
    fine, problem = pcall(flow.distributed.join, 0)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("patience must be above 0", 1, true), tostring(problem))
  end)

  it("has the batches of a share of a data set", function()
    local set = flow.data.Dataset({ np.arange(0, 11) }, { batch_size = 2 })
    local function rows(share)
      local list = {}
      for i, x in set:batches { share = share } do
        assert.equal(#list / 2, i)
        for _, value in ipairs(x:totable()) do list[#list + 1] = value end
      end
      return list
    end
    assert.same({ 0, 1, 4, 5 }, rows { 0, 2 })
    assert.same({ 2, 3, 6, 7 }, rows { 1, 2 })
    assert.same({ 8, 9 }, (function()
      local list = {}
      for i, x in set:batches { share = { 0, 2 }, first = 1, batch_size = 1 } do
        if i == 4 then list = { x[0], x[0] + 1 } end
      end
      return list
    end)())
    for _, share in ipairs { { 2, 2 }, { -1, 2 }, { 0, 0 }, { 1 } } do
      local fine, problem = pcall(rows, share)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find("share must be { rank, size }", 1, true), tostring(problem))
    end
  end)
end)
