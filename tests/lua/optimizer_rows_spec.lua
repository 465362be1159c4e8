-- Steps that change only the rows of a table that were picked, and clipping by value beside them.
local flow = require "moonflow"
local session = require "moonflow.session"
local np, tp = flow.np, flow.typing

before_each(function() flow.clear_default_session() end)

describe("LazyAdam of a table", function()
  local ROWS, WIDTH = 6, 2

  -- Trains a table whose rows are picked by `pick(table, ids)`, three values of `ids` for each step. Gives what the
  -- table, m and v are afterwards.
  local function trained(options, steps, pick, regularizer)
    flow.clear_default_session()
    local job = flow.global_function {
      name = "train", type = "train", inputs = { ids = tp.Numpy.Placeholder({ 3 }, flow.int32) }, returns = tp.Numpy,
    } (function(ids)
      local weight = flow.get_variable("table", { shape = { ROWS, WIDTH }, dtype = flow.double,
        initializer = flow.constant_initializer(1), regularizer = regularizer })
      local loss = (pick or flow.gather)(weight, ids) * flow.constant(3, { dtype = flow.double, shape = { 3, WIDTH } })
      flow.optimizer.LazyAdam(0.01, options):minimize(loss)
      return loss
    end)
    for _, ids in ipairs(steps) do job(np.array(ids, flow.int32)) end
    local after = {}
    for _, name in ipairs { "table", "table-m", "table-v" } do after[name] = session.handle():read(name):totable() end
    return after
  end

  -- The same by the formula; `counts[t][row]`: how often step t picks the row, nil where it does not.
  local function expected(counts, scale)
    local rows = {}
    for row = 1, ROWS do
      local w, m, v = 1, 0, 0
      for t, count in ipairs(counts) do
        if count[row] then
          local g = count[row] * 3 / (3 * WIDTH) * (scale or 1)
          m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
          w = w - 0.01 * math.sqrt(1 - 0.999 ^ t) / (1 - 0.9 ^ t) * m / (math.sqrt(v) + 1e-8)
        end
      end
      rows[row] = { w, m, v }
    end
    return rows
  end

  local function agree(after, rows)
    for i, name in ipairs { "table", "table-m", "table-v" } do
      for row = 1, ROWS do
        for column = 1, WIDTH do
          local got = after[name][row][column]
          local wanted = rows[row][i]
          assert.truthy(math.abs(got - wanted) < 1e-7, ("%s, row %d: %.9f, wanted %.9f"):format(name, row - 1, got,
            wanted))
        end
      end
    end
  end

  local steps, counts = { { 4, 1, 4 }, { 0, 0, 0 }, { 1, 2, 3 } }, { { [5] = 2, [2] = 1 }, { [1] = 3 },
    { [2] = 1, [3] = 1, [4] = 1 } }

  it("changes the rows that a step has picked, and the moments of these", function()
    agree(trained({}, steps), expected(counts))
  end)

  it("sums what several gathers pick", function()
    local function twice(weight, ids)
      local others = flow.constant(5, { dtype = flow.int64, shape = { 1, 3 } })
      return flow.gather(weight, ids) + flow.reshape(flow.gather(weight, others), { 3, WIDTH })
    end
    agree(trained({}, { { 4, 1, 4 } }, twice), expected { { [5] = 2, [2] = 1, [6] = 3 } })
  end)

  it("changes all rows where another op reads the table, or a regularizer does", function()
    local all = { [1] = 0, [2] = 1, [3] = 0, [4] = 0, [5] = 2, [6] = 0 }
    local function with_sum(weight, ids) return flow.gather(weight, ids) + flow.math.reduce_mean(weight) * 0 end
    agree(trained({}, { { 4, 1, 4 }, { 4, 1, 4 } }, with_sum), expected { all, all })
    local after = trained({}, { { 4, 1, 4 } }, nil, flow.regularizers.l2(0.1))
    for row = 1, ROWS do assert.truthy(after.table[row][1] < 1) end
  end)

  it("clips by the norm of the rows' sums", function()
    local clip = { grad_clipping = flow.optimizer.grad_clipping.by_global_norm(0.25) }
    local norm = math.sqrt(WIDTH * (1 ^ 2 + 0.5 ^ 2))
    agree(trained(clip, { { 4, 1, 4 } }), expected({ { [5] = 2, [2] = 1 } }, 0.25 / norm))
  end)

  it("clips the elements of the rows' sums, of tables of any rank and with a loss scale", function()
    local cut = flow.optimizer.grad_clipping.by_value(0.75)  -- of a sum of two picks, which is 1
    for _, options in ipairs {
      { grad_clipping = cut }, { grad_clipping = cut, loss_scale_factor = 8 },
      { grad_clipping = cut, loss_scale_policy = flow.optimizer.loss_scale.dynamic_loss_scale(64) },
    } do
      agree(trained(options, { { 4, 1, 4 }, { 1, 2, 3 } }), expected {
        { [5] = 1.5, [2] = 1 }, { [2] = 1, [3] = 1, [4] = 1 },
      })
    end
    local job = flow.global_function { name = "other", type = "train", returns = tp.None } (function()
      local ids = flow.cast(flow.range(1, 4), "int32")
      local weight = flow.get_variable("deep", { shape = { 4, 2, 3 }, initializer = flow.ones_initializer() })
      flow.optimizer.LazyAdam(0.5, { grad_clipping = cut }):minimize(flow.math.reduce_sum(flow.gather(weight, ids)))
    end)
    job()
    local deep = flow.get_all_variables().deep
    assert.is_true(np.all(np.equal(deep[0], 1)))
    for row = 1, 3 do assert.is_true(np.max(np.abs(deep[row] - 0.5)) < 1e-4) end
  end)

  it("leaves out a step that overflows", function()
    local scaled = { loss_scale_policy = flow.optimizer.loss_scale.dynamic_loss_scale(64) }
    agree(trained(scaled, steps), expected(counts))
    local function infinite(weight, ids) return flow.gather(weight, ids) * (1 / 0) end
    agree(trained(scaled, steps, infinite), expected {})
    scaled.grad_clipping = flow.optimizer.grad_clipping.by_value(0.75)
    agree(trained(scaled, steps, infinite), expected {})
  end)
end)

describe("a table from which several gathers pick", function()
  local ROWS, WIDTH = 40, 3

  -- Trains a table from which `counts` places are picked at a time; the losses are its sums, by 1, 2, ... Gives the job
  -- and the table afterwards.
  local function trained(optimizer, ...)
    flow.clear_default_session()
    local types, values = {}, {}
    for i, list in ipairs({ ... }) do
      types[i], values[i] = tp.Numpy.Placeholder({ #list }, flow.int32), np.array(list, flow.int32)
    end
    local job = flow.global_function {
      name = "train", type = "train", inputs = { picks = types }, returns = tp.None,
    } (function(picks)
      local weight = flow.get_variable("table", { shape = { ROWS, WIDTH }, dtype = flow.double,
        initializer = flow.constant_initializer(1) })
      local loss = 0
      for i, ids in ipairs(picks) do loss = loss + flow.math.reduce_sum(flow.gather(weight, ids)) * i end
      optimizer:minimize(loss)
    end)
    job(values)
    return job, session.handle():read("table"):totable()
  end

  local function agree(after, counts, change)
    for row = 1, ROWS do
      local wanted = 1 - change(counts[row - 1] or 0)
      for column = 1, WIDTH do assert.truthy(math.abs(after[row][column] - wanted) < 1e-7, "row " .. row - 1) end
    end
  end

  local counts = { [4] = 4, [1] = 1, [7] = 2, [39] = 5 }  -- 4 by the first once, once by the last

  it("changes the rows that any of them picks, and makes no gradient of its size", function()
    local job, after = trained(flow.optimizer.SGD(0.1, { momentum = 0 }), { 4, 1 }, { 7, 39 }, { 4, 39 })
    agree(after, counts, function(count) return 0.1 * count end)
    assert.truthy(job:dump():find("rows_sgd_update", 1, true))
    assert.falsy(job:dump():find("gather_grad", 1, true))
  end)

  it("has one gradient for any rule, and two where they pick more rows than there are", function()
    local function gradients(...)
      local job = trained(flow.optimizer.RMSProp(0.1), ...)
      local _, count = job:dump():gsub("%d: gather_grad", "")
      return count
    end
    local many = {}
    for i = 1, ROWS do many[i] = i - 1 end
    assert.equal(1, gradients({ 4, 1 }, { 7, 39 }))
    assert.equal(2, gradients(many, { 7 }))
  end)

  it("has only these rows changed where it is clipped, however many they are", function()
    local many = {}
    for i = 1, 38 do many[i] = i end
    local clipping = flow.optimizer.grad_clipping
    for _, clip in ipairs { clipping.by_global_norm(0.5), clipping.by_value(0.01) } do
      for _, optimizer in ipairs { flow.optimizer.SGD(0.1, { momentum = 0, grad_clipping = clip }),
                                   flow.optimizer.LazyAdam(0.1, { grad_clipping = clip }),
                                   flow.optimizer.Adagrad(0.1, { grad_clipping = clip }) } do
        for _, count in ipairs { 2, 38 } do
          local text = trained(optimizer, { unpack(many, 1, count) }):dump()
          assert.is_nil(text:find("gather_grad", 1, true), text)
        end
      end
    end
  end)

  it("clips and unscales as ever", function()
    local clip = flow.optimizer.grad_clipping.by_global_norm(0.5)
    local norm = math.sqrt(WIDTH * (4 ^ 2 + 1 + 2 ^ 2 + 5 ^ 2))
    local _, after = trained(flow.optimizer.SGD(0.1, { momentum = 0, grad_clipping = clip }),
      { 4, 1 }, { 7, 39 }, { 4, 39 })
    agree(after, counts, function(count) return 0.1 * count * 0.5 / norm end)
    local scaled = flow.optimizer.loss_scale.dynamic_loss_scale(64)
    _, after = trained(flow.optimizer.SGD(0.1, { momentum = 0, loss_scale_policy = scaled }),
      { 4, 1 }, { 7, 39 }, { 4, 39 })
    agree(after, counts, function(count) return 0.1 * count end)
  end)

  it("divides by the elements of the loss, also where the norm bounds nothing", function()
    flow.clear_default_session()
    local job = flow.global_function {
      name = "train", type = "train", inputs = { ids = tp.Numpy.Placeholder({ 2 }, flow.int32) }, returns = tp.None,
    } (function(ids)
      local weight = flow.get_variable("table", { shape = { 50, 1 }, initializer = flow.zeros_initializer() })
      local clip = flow.optimizer.grad_clipping.by_global_norm(100)
      flow.optimizer.SGD(1, { momentum = 0, grad_clipping = clip }):minimize(3 * flow.gather(weight, ids))
    end)
    job(np.array({ 4, 7 }, flow.int32))
    assert.near(-3 / 2, flow.get_all_variables().table:at(4, 0), 1e-6)
  end)
end)

describe("a gradient clipped by value", function()
  it("has no element beyond it, for dense variables and for picked rows", function()
    local function moved(make)
      flow.clear_default_session()
      local job = flow.global_function { type = "train", returns = tp.None } (function()
        local w = flow.get_variable("w", { shape = { 3, 2 }, initializer = flow.ones_initializer() })
        local rows = flow.gather(w, flow.cast(flow.range(0, 2), "int32"))
        local again = flow.gather(w, flow.cast(flow.range(0, 1), "int32"))
        -- The sum of the elements' gradients: 5 for row 0, which is picked twice, 0.5 for row 1.
        local scale = np.array { { 3, 3 }, { 0.5, -0.5 } }
        make():minimize(flow.math.reduce_sum(rows * scale) + flow.math.reduce_sum(again) * 2)
      end)
      job()
      return (1 - flow.get_all_variables().w):totable()
    end
    local clipping = flow.optimizer.grad_clipping.by_value(4)
    assert.same({ { 4, 4 }, { 0.5, -0.5 }, { 0, 0 } }, moved(function()
      return flow.optimizer.SGD(1, { momentum = 0, grad_clipping = clipping })
    end))
    local dense = moved(function() return flow.optimizer.Adam(1, { grad_clipping = clipping }) end)
    local lazy = moved(function() return flow.optimizer.LazyAdam(1, { grad_clipping = clipping }) end)
    assert.same(dense[1], lazy[1])
  end)

  it("has a bound above 0", function()
    local fine, problem = pcall(flow.optimizer.grad_clipping.by_value, 0)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("clip_value must be above 0, got 0", 1, true), tostring(problem))
  end)
end)
