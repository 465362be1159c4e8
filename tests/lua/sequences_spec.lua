-- The loss of labels along a sequence: its values against a sum over every way that there is, its gradients against
-- differences in float64.
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

before_each(function()
  flow.clear_default_session()
  flow.set_seed(3)
end)

local STEPS, CLASSES = 4, 3
local function ints(values) return np.array(values, flow.int32) end

-- What is left of a way when blanks and repetitions are taken out, as text.
local function collapsed(way, blank)
  local kept, last = {}, nil
  for _, class in ipairs(way) do
    if class ~= last and class ~= blank then kept[#kept + 1] = class end
    last = class
  end
  return table.concat(kept, " ")
end

-- Sums the chances of all ways through so many steps that say the target.
local function written_out(logs, steps, target, blank)
  local sum, way = 0, {}
  local wanted = table.concat(target, " ")
  local function go_on(t, chance)
    if t == steps then
      if collapsed(way, blank) == wanted then sum = sum + chance end
      return
    end
    for class = 0, CLASSES - 1 do
      way[t + 1] = class
      go_on(t + 1, chance * math.exp(logs:at(t, class)))
      way[t + 1] = nil
    end
  end
  go_on(0, 1)
  return -math.log(sum)
end

local function job_of(batch, labels, options)
  local lengths = tp.Numpy.Placeholder({ batch }, { dtype = flow.int32 })
  return flow.global_function {
    returns = tp.Tuple { tp.Numpy, tp.Numpy },
    inputs = { x = tp.Numpy.Placeholder({ batch, STEPS, CLASSES }, { dtype = flow.double }),
               target = tp.Numpy.Placeholder({ batch, labels }, { dtype = flow.int32 }),
               steps = lengths, counts = lengths },
  } (function(x, target, steps, counts)
    local loss = flow.nn.CTCLoss(flow.nn.log_softmax(x), target, steps, counts, options)
    return loss, flow.gradients(loss, x)
  end)
end

local function logs_of(x) return x - np.log(np.sum(np.exp(x), 2, { keepdims = true })) end

describe("flow.nn.CTCLoss", function()
  local x = np.random.normal(0, 1, { 6, STEPS, CLASSES }):astype(flow.double)
  local target = ints { { 1, 2, -1 }, { 1, 1, 7 }, { 2, 1, 2 }, { 2, 0, 0 }, { -5, -5, -5 }, { 1, 2, 1 } }
  local steps, counts = ints { 4, 4, 3, 1, 4, 4 }, ints { 2, 2, 3, 1, 0, 3 }

  it("sums over all ways that say the target, whatever fills it up", function()
    local loss = job_of(6, 3, { reduction = "none" })(x, target, steps, counts)
    local logs, total = logs_of(x), 0
    for row = 0, 5 do
      local labels = {}
      for i = 1, counts[row] do labels[i] = target:at(row, i - 1) end
      local wanted = written_out(logs[row], steps[row], labels, 0)
      assert.near(wanted, loss[row], 1e-12)
      total = total + wanted / math.max(1, counts[row])
    end
    assert.near(loss:sum(), job_of(6, 3, { reduction = "sum" })(x, target, steps, counts):item(), 1e-12)
    assert.near(total / 6, job_of(6, 3)(x, target, steps, counts):item(), 1e-12)
  end)

  it("has its gradient, and none for steps that do not count", function()
    local job = job_of(6, 3, { reduction = "sum" })
    local _, slope = job(x, target, steps, counts)
    assert.equal(0, np.max(np.abs(slope[2]:rows(3, 1))))
    assert.equal(0, np.max(np.abs(slope[3]:rows(1, 3))))
    for _ = 1, 3 do
      local direction, step = np.random.normal(0, 1, x.shape:table()):astype(flow.double), 1e-5
      local above, below = job(x + step * direction, target, steps, counts), job(x - step * direction, target, steps,
        counts)
      -- The third derivative times the step's square, and the last digits of float64 divided by the step.
      assert.near((above:item() - below:item()) / (2 * step), np.sum(slope * direction), 1e-8)
    end
  end)

  it("takes another class for the blank", function()
    local job = job_of(1, 2, { blank = 2, reduction = "none" })
    local loss = job(x:rows(0, 1), ints { { 0, 1 } }, ints { 4 }, ints { 2 })
    assert.near(written_out(logs_of(x)[0], 4, { 0, 1 }, 2), loss[0], 1e-12)
  end)

  it("costs infinity without room, or nothing where that is asked for, and spoils no other row", function()
    -- Two equal labels need a blank between them, and a step that is there.
    local given = { x:rows(0, 3), ints { { 1, 1 }, { 1, 2 }, { 1, 0 } }, ints { 2, 4, 0 }, ints { 2, 2, 1 } }
    local loss, slope = job_of(3, 2, { reduction = "none" })(unpack(given))
    assert.same({ math.huge, true, math.huge }, { loss[0], loss[1] < math.huge, loss[2] })
    assert.truthy(np.isfinite(slope):all() and np.max(np.abs(slope[1])) > 0)
    assert.equal(0, np.max(np.abs(slope[0])))
    local forgiving = job_of(3, 2, { reduction = "none", zero_infinity = true })
    local without = forgiving(unpack(given))
    assert.same({ 0, loss[1], 0 }, without:totable())
    given[1] = given[1]:copy()
    given[1][1][2][0] = 0 / 0
    assert.is_true(np.isnan((forgiving(unpack(given))))[1] == 1, "a net that has diverged costs nothing")
  end)

  it("takes arrays for a target and lengths that stay as they are", function()
    local labels, of_steps, of_labels = ints { { 1, 2 }, { 2, 0 } }, ints { 4, 3 }, ints { 2, 1 }
    local wanted = job_of(2, 2)(x:rows(0, 2), labels, of_steps, of_labels)
    local loss = flow.global_function {
      returns = tp.Numpy, inputs = { logits = tp.Numpy.Placeholder({ 2, STEPS, CLASSES }, { dtype = flow.double }) },
    } (function(logits)
      return flow.nn.CTCLoss(flow.nn.log_softmax(logits), labels, of_steps, of_labels)
    end) (x:rows(0, 2))
    assert.equal(wanted:item(), loss:item())
  end)

  it("takes a batch without a label", function()
    local job = flow.global_function {
      returns = tp.Tuple { tp.Numpy, tp.Numpy },
      inputs = { logits = tp.Numpy.Placeholder({ 2, 4, 3 }, { dtype = flow.double }) },
    } (function(logits)
      local loss = flow.nn.CTCLoss(flow.nn.log_softmax(logits), flow.zeros({ 2, 0 }, flow.int32),
        flow.constant(4, flow.int32, { 2 }) - ints { 0, 1 }, flow.zeros({ 2 }, flow.int32), { reduction = "none" })
      return loss, flow.gradients(loss, logits)
    end)
    local loss, slope = job(x:rows(0, 2))
    local logs = logs_of(x)
    for row = 0, 1 do assert.near(written_out(logs[row], 4 - row, {}, 0), loss[row], 1e-12) end
    assert.is_true(np.isfinite(slope):all())
  end)

  it("says what does not fit", function()
    local function refused(text, shape, target_shape, options)
      local fine, problem = pcall(flow.global_function {
        inputs = { a = tp.Numpy.Placeholder(shape), b = tp.Numpy.Placeholder(target_shape, { dtype = flow.int32 }),
                   n = tp.Numpy.Placeholder({ 2 }, { dtype = flow.int32 }) }, returns = tp.Numpy,
      }, function(a, b, n) return flow.nn.CTCLoss(a, b, n, n, options) end)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find(text, 1, true), tostring(problem))
    end
    refused("wanted (batch, steps, classes) and (batch, labels); the batch comes first here, and flow.transpose(input, "
      .. "{ 1, 0, 2 }) puts it there", { 5, 2, 3 }, { 2, 4 })
    refused("input must be floating (batch, steps, classes), 'a' is float32 (2, 3)", { 2, 3 }, { 2, 4 })
    refused("input_lengths must be int32 or int64 (3), 'n' is int32 (2)", { 3, 5, 3 }, { 3, 4 })
    refused("blank must be one of the 3 classes, from 0 on, got 3", { 2, 5, 3 }, { 2, 4 }, { blank = 3 })
    local function outside(input, at, text, ...)
      local fine, problem = pcall(job_of(1, 2), x:rows(0, 1), ...)
      assert.is_false(fine)
      text = ("'CTCLoss_0': %s at (%s) is %s"):format(input, at, text)
      assert.truthy(tostring(problem):find(text, 1, true), tostring(problem))
    end
    outside("input_lengths", "0", "5, outside [0, 5)", ints { { 1, 2 } }, ints { 5 }, ints { 2 })
    outside("target_lengths", "0", "3, outside [0, 3)", ints { { 1, 2 } }, ints { 4 }, ints { 3 })
    outside("target", "0, 1", "-1, outside [0, 3)", ints { { 1, -1 } }, ints { 4 }, ints { 2 })
  end)

  it("is one step with its gradient, for any number of steps, and has no second one", function()
    local function job(count, body)
      return flow.global_function {
        inputs = { logs = tp.Numpy.Placeholder({ 1, count, CLASSES }) }, returns = tp.Tuple { tp.Numpy, tp.Numpy },
      } (function(logs)
        local loss = flow.nn.CTCLoss(logs, ints { { 1, 2 } }, ints { count }, ints { 2 })
        return body(loss, logs)
      end)
    end
    local function steps_of(count)
      local plan = job(count, function(loss, logs) return loss, flow.gradients(loss, logs) end):dump()
      assert.truthy(plan:find("ctc_loss_and_grad", 1, true), plan)
      return select(2, plan:gsub("\n", ""))
    end
    assert.equal(steps_of(3), steps_of(50))
    local fine, problem = pcall(job, 3, function(loss, logs)
      local slope = flow.gradients(loss, logs)
      return loss, flow.gradients(flow.math.reduce_sum(slope * slope), logs)
    end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("ctc_loss_grad", 1, true), tostring(problem))
  end)

  it("is flow.ctc_loss of OneFlow with the steps first", function()
    local job = flow.global_function {
      inputs = { logs = tp.Numpy.Placeholder({ STEPS, 1, CLASSES }),
                 labels = tp.Numpy.Placeholder({ 1, 2 }, { dtype = flow.int32 }) },
      returns = tp.Numpy,
    } (function(logs, labels)
      local function length(n) return flow.constant(n, flow.int32, { 1 }) end
      return flow.ctc_loss(logs, labels, length(4), length(2), 0, "sum", true)
    end)
    local logs = logs_of(x:rows(0, 1))
    assert.near(written_out(logs[0], 4, { 1, 2 }, 0), job(logs[0]:reshape(STEPS, 1, CLASSES):astype(flow.float),
      ints { { 1, 2 } }):item(), 1e-5)
  end)
end)
