-- flow.einsum: sums of products. Golden values are NumPy's.
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

-- The values of a job over inputs x, y, z, each an array, in the order of what the body gives.
local function run(arrays, body, count)
  local inputs, returns = {}, {}
  for i, a in ipairs(arrays) do
    inputs[("xyz"):sub(i, i)] = tp.Numpy.Placeholder(a.shape:table(), { dtype = a.dtype })
  end
  for i = 1, count or 1 do returns[i] = tp.Numpy end
  return flow.global_function { name = "summing", inputs = inputs, returns = count and tp.Tuple(returns) or tp.Numpy } (
    body)(unpack(arrays))
end

-- A body takes no variable arguments.
local function body_of(equation, count)
  return ({
    function(x) return flow.einsum(equation, x) end,
    function(x, y) return flow.einsum(equation, x, y) end,
    function(x, y, z) return flow.einsum(equation, { x, y, z }) end,
  })[count]
end

local function summed(equation, ...)
  local result = run({ ... }, body_of(equation, select("#", ...)))
  return result.rank == 0 and result:item() or result:totable()
end

local function fails(pattern, equation, ...)
  local fine, problem = pcall(run, { ... }, body_of(equation, select("#", ...)))
  assert.is_false(fine)
  assert.equal("invalid_argument", problem.code)
  assert.truthy(problem.where:find("einsum_spec.lua:%d+$"), problem.where)
  assert.truthy(problem.message:find(pattern, 1, true), problem.message .. "\nlacks: " .. pattern)
end

local a = np.array({ { 1, 2, 3 }, { 4, 5, 6 } })
local b = np.array({ { 1, 0 }, { 0, 1 }, { 2, 2 } })
local square = np.array({ { 1, 2 }, { 3, 4 } })

describe("an equation", function()
  it("of one value turns it, sums it or takes its diagonal", function()
    assert.same({ { 1, 4 }, { 2, 5 }, { 3, 6 } }, summed("ij->ji", a))
    assert.same({ 6, 15 }, summed("ij->i", a))
    assert.same(21, summed("ij->", a))
    assert.same({ 1, 4 }, summed("ii->i", square))
    assert.same(5, summed("ii", square))
    assert.same({ 1, 4 }, summed("ii->i", np.array({ { 1, 1 / 0 }, { 0 / 0, 4 } })))
  end)

  it("of two multiplies them, in stacks where a letter stays", function()
    assert.same({ { 7, 8 }, { 16, 17 } }, summed("ij,jk->ik", a, b))
    assert.same({ { 7, 16 }, { 8, 17 } }, summed("ij,jk->ki", a, b))
    assert.same({ { 7, 8 }, { 16, 17 } }, summed(" ij , jk ", a, b))
    assert.same({ { 17, 22, 27 }, { 22, 29, 36 }, { 27, 36, 45 } }, summed("ki,kj->ij", a, a))
    assert.same({ 14, 77 }, summed("ij,ij->i", a, a))
    assert.same({ { 3, 4 }, { 6, 8 } }, summed("i,j->ij", np.array({ 1, 2 }), np.array({ 3, 4 })))
    local stack = np.stack({ square, square * 2 })
    assert.same({ { { 7, 10 }, { 15, 22 } }, { { 28, 40 }, { 60, 88 } } }, summed("bij,bjk->bik", stack, stack))
    assert.same({ { 7, 8 }, { 16, 17 } }, summed("ij,jk->ik", a:astype("int32"), b:astype("int32")))
  end)

  it("of more joins first what leaves least behind", function()
    -- Gives the result and the sizes of all that is made on the way to it.
    local function traced(equation, ...)
      local made = {}
      local result = run({ ... }, function(x, y, z)
        return flow.watch_scope(function(array) made[#made + 1] = array.shape:count() end,
          function() return flow.einsum(equation, { x, y, z }) end)
      end)
      return result, math.max(unpack(made))
    end
    local m, n, v = np.random.uniform(-1, 1, { 20, 30 }), np.random.uniform(-1, 1, { 30, 40 }), np.random.rand(40)
    local result, largest = traced("ij,jk,k->i", m, n, v)
    assert.equal(40, largest)  -- a column of 40, never the 20 x 40 of the first two
    assert.is_true(np.allclose(result, np.matmul(m, np.matmul(n, v:reshape({ -1, 1 }))):ravel(), { rtol = 1e-5,
      atol = 1e-5 }))
    -- A bilinear form: from left to right it would be 8 x 30 x 40.
    local left, right = np.random.uniform(-1, 1, { 8, 30 }), np.random.uniform(-1, 1, { 8, 40 })
    result, largest = traced("bi,bj,ij->b", left, right, n)
    assert.equal(240, largest)
    assert.is_true(np.allclose(result, np.sum(np.matmul(left, n) * right, 1), { rtol = 1e-5, atol = 1e-5 }))
    -- Those without a common letter come last.
    result, largest = traced("i,j,jk->ik", np.random.rand(7), v:rows(0, 30), n)
    assert.equal(7 * 40, largest)
    assert.same({ 7, 40 }, result.shape:table())
  end)

  it("of more may have them in a list", function()
    assert.same(78, summed("i,ij,j->", np.array({ 1, 2 }), a, np.array({ 1, 2, 3 })))
    local y = run({ a, b }, function(x, y)
      return flow.einsum("ij,jk,k,l,l->i", { x, y, np.array({ 1, 1 }), np.array({ 1, 2 }), np.array({ 3, 4 }) })
    end)
    assert.same({ 165, 363 }, y:totable())
  end)

  it("has \"...\" for any axes, which broadcast", function()
    assert.same({ 14, 32 }, summed("...j,j->...", a, np.array({ 1, 2, 3 })))
    assert.same({ { 5, 11 }, { 11, 25 } }, summed("...ij,...kj->...ik", square, square))
    assert.same({ { 10, 20, 30 }, { 80, 100, 120 } }, summed("...,...->...", a, np.array({ { 10 }, { 20 } })))
    fails("so an axis of \"...\" is 2, and 3 before", "...,...", a, np.zeros({ 2, 2 }))
  end)

  it("names its result, and gives gradients", function()
    local y, dx, dy = run({ a, b }, function(x, y)
      local product = flow.einsum("ij,jk->ki", x, y, { name = "product" })
      assert.equal("product", product.name)
      return product, unpack(flow.gradients(product * np.array({ { 1, 0 }, { 0, 2 } }), { x, y }))
    end, 3)
    assert.same({ { 7, 16 }, { 8, 17 } }, y:totable())
    assert.same({ { 1, 0, 2 }, { 0, 2, 4 } }, dx:totable())
    assert.same({ { 1, 8 }, { 2, 10 }, { 3, 12 } }, dy:totable())
  end)
end)

describe("the ones of comparisons", function()
  it("are summed beyond 127, and stay what they are where nothing is summed", function()
    local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 300 }) }, returns = tp.List[tp.Numpy] } (
      function(x)
        local holds = x:gt(0)
        return { flow.einsum("i->", holds), flow.einsum("i,i->", holds, holds), flow.einsum("i->i", holds) }
      end)
    local sum, product, same = unpack(job(np.ones({ 300 })))
    assert.equal(300, sum:item())
    assert.equal(300, product:item())
    assert.equal("int8", same.dtype)
    local holds = np.ones({ 300 }):gt(0)
    assert.equal(300, np.einsum("i,i->", holds, holds))
  end)
end)

describe("an equation that does not fit", function()
  it("is told with its term", function()
    fails("flow.einsum: term 2, 'kl', of \"ij,kl->il\" names 2 axes, and its value 'y' is (2)", "ij,kl->il",
      a, np.zeros({ 2 }))
    fails("term 2, 'jk', of \"ij,jk\": 'y' is (2, 3), so 'j' is 2, and 3 before, in term 1, 'ij'", "ij,jk", a, a)
    fails("\"ij,jk\" has 2 terms, and there is 1 value", "ij,jk", a)
    fails("\"ij\" has 1 term, and there are 2 values", "ij", a, a)
    fails("the result of \"ij->ik\" has 'k', which is in no term", "ij->ik", a)
    fails("the result of \"ij->ii\" has 'i' twice", "ij->ii", a)
    fails("term 1, 'i1', of \"i1->i\" has '1', wanted letters", "i1->i", a)
  end)
end)
