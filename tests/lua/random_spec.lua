-- What flow.random draws of rows, coins and classes.
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

before_each(function()
  flow.clear_default_session()
  flow.set_seed(3)
end)

-- A job of `body` with an input for each array.
local function job_of(arrays, body)
  local inputs = {}
  for i, array in ipairs(arrays) do
    inputs[i] = { "x", tp.Numpy.Placeholder(array.shape:table(), { dtype = array.dtype }) }
  end
  return flow.global_function { name = "job", inputs = inputs, returns = tp.Numpy } (
    #arrays == 0 and function() return body() end or function(x) return body(x) end)
end

local function run(arrays, body)
  return job_of(arrays, body)(unpack(arrays))
end

describe("random.shuffle", function()
  local rows = np.arange(40):reshape { 20, 2 }:astype(flow.float)

  it("keeps the rows and changes their order, another one in each run", function()
    local job = job_of({ rows }, function(a) return flow.random.shuffle(a) end)
    local first, orders = job(rows), {}
    for run_number = 1, 3 do
      local shuffled = run_number == 1 and first or job(rows)
      local seen, order = {}, {}
      for i = 0, 19 do
        local a, b = shuffled:at(i, 0), shuffled:at(i, 1)
        assert.equal(a + 1, b)
        assert.is_nil(seen[a])
        seen[a], order[i + 1] = true, a
      end
      orders[run_number] = table.concat(order, " ")
    end
    assert.not_equal(orders[1], orders[2])
    assert.not_equal(orders[2], orders[3])
    assert.not_equal(table.concat(rows:slice(":, 0"):totable(), " "), orders[1])
  end)

  it("is repeated by a seed", function()
    local function once() return run({ rows }, function(a) return flow.random.shuffle(a, 7) end):totable() end
    assert.same(once(), once())
  end)

  it("gives the same order as numbers of rows", function()
    local order = run({ rows }, function(a) return flow.random.generate_random_batch_permutation_indices(a) end)
    assert.equal(flow.int32, order.dtype)
    assert.same(np.arange(20):totable(), np.sort(order):astype(flow.int64):totable())
  end)
end)

describe("random.coin_flip", function()
  it("has the probability that is asked for", function()
    local flips = run({}, function() return flow.random.coin_flip(4000, nil, 0.3) end)
    assert.equal(flow.int8, flips.dtype)
    local share = flips:astype(flow.double):mean()
    assert.truthy(math.abs(share - 0.3) < 4 * math.sqrt(0.21 / 4000), share)  -- four standard deviations
    assert.equal(0, np.sum(run({}, function() return flow.random.CoinFlip(50, { probability = 0 }) end)))
  end)
end)

describe("random.categorical", function()
  -- The same logits in each of many rows.
  local function rows_of(chances, count, dtype)
    local logits = np.log(np.array(chances, "float64")):reshape { 1, #chances }
    return np.broadcast_to(logits, { count, #chances }):astype(dtype)
  end

  it("draws each class with its probability, whatever the dtype of the logits", function()
    for _, dtype in ipairs { "float32", "float64", "bfloat16", "float16" } do
      local chances, count = { 0.125, 0.5, 0, 0.375 }, 20000
      local drawn = run({ rows_of(chances, count, dtype) }, function(x) return flow.random.categorical(x) end)
      assert.equal(flow.int32, drawn.dtype)
      for class, found in ipairs(np.bincount(drawn, { minlength = 4 }):totable()) do
        local chance = chances[class]
        -- Four standard deviations, and what bfloat16 rounds off a logit.
        local most = 4 * math.sqrt(count * chance * (1 - chance)) + 0.004 * count * chance
        assert.truthy(math.abs(found - count * chance) <= most, dtype .. " " .. class - 1 .. ": " .. found)
      end
    end
  end)

  it("draws anew in each run, and the same with one seed and one name", function()
    local logits = np.zeros { 50, 5 }
    local job = job_of({ logits }, function(x) return flow.random.categorical(x) end)
    assert.is_false(np.array_equal(job(logits), job(logits)))
    local function once(before)
      return run({ logits }, function(x)
        for _ = 1, before do flow.random.uniform(0, 1, { 2 }) end
        return flow.random.categorical(x, { seed = 7, name = "pick" })
      end)
    end
    assert.is_true(np.array_equal(once(0), once(3)))
  end)

  it("takes one row, stacks of rows, and a dtype", function()
    local one = run({ np.array { -math.huge, 0, -1e9 } }, function(x)
      return flow.random.categorical(x, { dtype = flow.int64 })
    end)
    assert.equal(flow.int64, one.dtype)
    assert.equal("()", tostring(one.shape))
    assert.equal(1, one:item())
    local stack = run({ np.zeros { 2, 3, 4 } }, function(x) return flow.random.categorical(x) end)
    assert.equal("(2, 3)", tostring(stack.shape))
  end)

  it("says what it wants", function()
    local function refuses(array, dtype, text)
      local _, problem = pcall(run, { array }, function(x) return flow.random.categorical(x, { dtype = dtype }) end)
      assert.truthy(problem.message:find(text, 1, true), problem.message)
    end
    refuses(np.zeros({ 3 }, "int32"), nil, "logits are floating (..., classes), 'x' is int32 (3)")
    refuses(np.zeros {}, nil, "'x' is float32 ()")
    refuses(np.zeros { 3 }, "int8", "dtype can be int32 or int64, got int8")
  end)

  it("refuses a row that has no class to draw, and goes on with the next run", function()
    local nan, inf = 0 / 0, math.huge
    for _, dtype in ipairs { "float32", "float64", "bfloat16" } do
      local good = np.array({ { 1, 2, 3 }, { -inf, 0, -inf } }, dtype)
      local job = job_of({ good }, function(x) return flow.random.categorical(x, { name = "action" }) end)
      for _, row in ipairs { { nan, nan, nan }, { nan, 0, 1 }, { 0, 1, nan }, { -inf, -inf, -inf } } do
        local logits = good:copy()
        logits[1] = row
        local fine, problem = pcall(job, logits)
        assert.is_false(fine)
        assert.equal("invalid_argument", problem.code)
        assert.truthy(tostring(problem):find("'action'", 1, true), tostring(problem))
        assert.truthy(problem.message:find("row 1 has no class to draw: its logits are all -inf or there is a NaN", 1,
          true), problem.message)
      end
      assert.equal(1, job(good)[1])
    end
  end)
end)

describe("random.bernoulli", function()
  it("refuses a chance that is NaN, and takes those beyond 0 and 1 as these", function()
    for _, dtype in ipairs { "float32", "float64", "bfloat16" } do
      local job = job_of({ np.zeros({ 2, 3 }, dtype) }, function(x)
        return flow.random.bernoulli(x, { name = "coin" })
      end)
      local fine, problem = pcall(job, np.array({ { 0, 1, 0.5 }, { 1, 0 / 0, 0 } }, dtype))
      assert.is_false(fine)
      assert.truthy(tostring(problem):find("'coin'", 1, true), tostring(problem))
      assert.truthy(problem.message:find("the chance at (1, 1) is NaN, wanted 0 to 1", 1, true), problem.message)
      assert.same({ { 0, 1, 0 }, { 1, 1, 0 } }, job(np.array({ { 0, 1, -1 }, { 2, 1, 0 } }, dtype)):totable())
    end
  end)
end)

describe("whole numbers of one byte", function()
  it("may be all that there are", function()
    local job = flow.global_function { returns = tp.Numpy } (function()
      return flow.random.randint(0, 256, { shape = { 2000 }, dtype = flow.uint8 })
    end)
    local drawn = job()
    assert.equal("uint8", drawn.dtype)
    assert.is_true(drawn:max() > 250 and drawn:min() < 5)
  end)
end)

describe("a job that is defined again", function()
  local zeros = np.zeros { 1, 9 }

  local function define()
    return job_of({ zeros }, function(x) return flow.random.categorical(x) end)
  end

  local function draws(call)
    local drawn = {}
    for i = 1, 12 do drawn[i] = call(zeros):item() end
    return table.concat(drawn)
  end

  local first, wanted, prepared

  before_each(function()
    first = define()
    wanted, prepared = draws(first), draws(first:prepare())
    flow.set_seed(3)
  end)

  it("goes on with other draws, while the one before it goes on with its own", function()
    local seen = { [draws(first)] = true }
    for _ = 1, 3 do
      local after = define()
      for _, drawn in ipairs { draws(after), draws(after:prepare()), draws(first) } do
        assert.is_nil(seen[drawn])
        seen[drawn] = true
      end
    end
  end)

  it("draws after a seed what it draws in a fresh process, however often it has been defined", function()
    local kept, job = {}, nil
    for times = 1, 4 do
      for _ = 1, times do
        job = define()
        if times % 2 == 0 then kept[#kept + 1] = job end  -- others may have been collected or not
        draws(job)
      end
      flow.set_seed(3)
      assert.equal(wanted, draws(job))
      assert.equal(prepared, draws(job:prepare()))
      flow.set_seed(3)
      assert.equal(prepared, draws(define():prepare()))
    end
    assert.equal(6, #kept)
  end)

  it("begins as the first where the one before it has drawn nothing since the seed", function()
    local job = define()
    assert.equal(wanted, draws(job))
    assert.not_equal(wanted, draws(first))
  end)

  it("draws after the same seed as it did when it went on", function()
    local function match()
      flow.set_seed(4)
      local before = draws(define())
      local job = define()
      return before .. draws(job) .. draws(job:prepare())
    end
    assert.equal(match(), match())
  end)
end)
