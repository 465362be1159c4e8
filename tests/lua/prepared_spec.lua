-- Prepared calls: what the job gives, in arrays that stay; published weights; independent of what is in flight.
local checks = require "checks"
local flow = require "moonflow"
local session = require "moonflow.session"
local np, tp = flow.np, flow.typing
local raises = checks.raises

local function vector(...)
  return np.array({ ... }, flow.float)
end

local x2 = { x = tp.Numpy.Placeholder({ 2 }) }

local function weight(initial)
  return flow.get_variable("w", { shape = { 2 }, initializer = flow.constant_initializer(initial) })
end

local function scaling()
  return flow.global_function { name = "scale", inputs = x2, returns = tp.Numpy } (function(x) return x * weight(3) end)
end

-- Takes 1 from w; gives nothing before the script asks.
local function learning()
  return flow.global_function { type = "train", inputs = x2, returns = tp.Callback[tp.Numpy] } (function(x)
    local loss = flow.math.reduce_sum(weight(3) * x)
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler({}, { 1 }), { momentum = 0 }):minimize(loss)
    return loss
  end)
end

before_each(function()
  flow.clear_default_session()
  flow.set_seed(7)
end)

describe("a prepared call", function()
  it("gives what its job gives, whatever the form", function()
    local shapes = {
      { body = function(x) local _ = x + 1 end },
      { returns = tp.Numpy, body = function(x) return x + 1 end },
      { returns = tp.Tuple { tp.Numpy, tp.Numpy }, body = function(x) return x + 1, x end },
      { returns = tp.Tuple { tp.Numpy, tp.Numpy, tp.Numpy }, body = function(x) return x + 1, x, x + 1 end },
      { returns = tp.Tuple { tp.Numpy, tp.Numpy, tp.Numpy, tp.Numpy },
        body = function(x) return x + 1, x + 2, x + 3, x + 4 end },
    }
    for count, shape in ipairs(shapes) do
      local job = flow.global_function { inputs = x2, returns = shape.returns } (shape.body)
      local call = job:prepare()
      for start = 1, 3 do
        local wanted, got = { job(vector(start, 0)) }, { call(vector(start, 0)) }
        assert.equal(count - 1, #got)
        for i, y in ipairs(wanted) do assert.is_true(y == got[i]) end
      end
    end
    local named = flow.global_function {
      inputs = x2,
      returns = tp.Dict { twice = tp.Numpy, parts = tp.List[tp.Numpy] },
    } (function(x) return { twice = 2 * x, parts = { x, -x } } end)
    local got = named:prepare()(vector(1, 2))
    assert.is_true(got.twice == vector(2, 4))
    assert.is_true(got.parts[2] == vector(-1, -2))
    local later = flow.global_function { inputs = x2, returns = tp.Callback[tp.Numpy] } (function(x) return x + 1 end)
    assert.is_true(later:prepare()(vector(1, 2)) == vector(2, 3))
  end)

  it("is filled by the names of its inputs", function()
    local job = flow.global_function { inputs = { state = x2.x }, returns = tp.Numpy } (function(state)
      return state + 1
    end)
    local call = job:prepare()
    local buffer = call.inputs.state
    call.inputs.state = vector(1, 2)
    assert.is_true(call() == vector(2, 3))
    assert.is_true(buffer == vector(1, 2))
    assert.equal(1, #call.inputs)
    raises("not_found", "a prepared call of 'job' has no input 'stat'; did you mean 'state'?", function()
      call.inputs.stat = buffer
    end)
    raises("not_found", "a prepared call of 'job' has no input 'stat'", function() return call.inputs.stat end)
    raises("shape_mismatch", "job: input 'state': a:set: the place is float32 (2), the value is float32 (3)", function()
      call.inputs.state = np.ones({ 3 })
    end)
    raises("invalid_argument", "job: input 'state': a:set: the value must be", function() call.inputs.state = "1" end)
  end)

  it("is called by the names of its inputs", function()
    local job = flow.global_function {
      name = "apart", inputs = { x = x2.x, y = x2.x }, returns = tp.Numpy,
    } (function(x, y) return x - y end)
    local call = job:prepare()
    assert.is_true(call { y = vector(1, 2), x = vector(5, 5) } == vector(4, 3))
    raises("invalid_argument", "apart: has no input 'z'", call, { x = vector(1, 2), z = vector(1, 2) })
    raises("invalid_argument", "apart: input 'y' has no value", call, { x = vector(1, 2) })
    raises("invalid_argument", "apart: takes 2 inputs (x, y), got 1", call, { 1, 2 })
  end)

  it("does not lose what is assigned beside its inputs", function()
    local job = flow.global_function {
      name = "act",
      inputs = { state = x2.x, gain = tp.Numpy.Placeholder({}) },
      returns = tp.Numpy,
    } (function(state, gain) return gain * state end)
    local call = job:prepare()
    local inputs = call.inputs
    call.inputs.state, call.inputs.gain = vector(1, 2), 2
    raises("wrong_state", "a prepared call of 'act' has nothing to set at 'gain'; call.inputs.gain = array copies",
      function() call.gain = 3 end)
    raises("wrong_state", "has nothing to set at 'input'; call.inputs.state = array copies an array into the input "
      .. "'state'", function() call.input = { state = vector(5, 6) } end)
    call.inputs = { state = vector(5, 6) }
    raises("wrong_state", "act: the inputs of this prepared call were replaced, which fills none of them; they are "
      .. "back; call.inputs.state = array copies", call)
    assert.equal(inputs, call.inputs)
    assert.is_true(call() == vector(2, 4))
    local buffer = call.inputs[1]
    call.inputs[1] = vector(5, 6)
    raises("wrong_state", "act: input 1 of this prepared call was replaced, which does not fill it; it is back; "
      .. "call.inputs.state = array copies an array into the input 'state'", call)
    assert.equal(buffer, call.inputs[1])
    assert.is_true(call() == vector(2, 4))
  end)

  it("agrees with its job for a network of convolutions and products", function()
    local T = tp.Numpy.Placeholder({ 2, 1, 12, 12 })
    local job = flow.global_function { inputs = { x = T }, returns = tp.Numpy } (function(x)
      local maps = flow.layers.conv2d(x, 8, 5, { padding = "SAME", activation = flow.nn.relu, name = "conv" })
      local pooled = flow.nn.max_pool2d(maps, { ksize = 2, strides = 2, padding = "SAME" })
      return flow.nn.softmax(flow.layers.dense(flow.reshape(pooled, { 2, -1 }), 10, { name = "dense" }))
    end)
    local call = job:prepare()
    for _ = 1, 3 do
      local x = np.random.uniform(-1, 1, { 2, 1, 12, 12 }):astype(flow.float)
      assert.is_true(np.max(np.abs(job(x) - call(x))) < 1e-5)
    end
  end)

  it("pools what a normed convolution leaves in blocks of channels", function()
    local job = flow.global_function {
      inputs = { x = tp.Numpy.Placeholder({ 1, 16, 32, 32 }) }, returns = tp.Tuple { tp.Numpy, tp.Numpy },
    } (function(x)
      local maps = flow.layers.conv2d(x, 16, 3, { padding = "SAME", name = "conv" })
      maps = flow.nn.relu(flow.layers.batch_normalization(maps, { name = "norm" }))
      return flow.nn.max_pool2d(maps, 3, 2, "SAME"), flow.nn.avg_pool2d(maps, 32, 1, "VALID")
    end)
    local call, x = job:prepare(), np.random.uniform(-1, 1, { 1, 16, 32, 32 }):astype(flow.float)
    local most, mean = job(x)
    local prepared_most, prepared_mean = call(x)
    assert.is_true(np.max(np.abs(most - prepared_most)) < 1e-5)
    assert.is_true(np.max(np.abs(mean - prepared_mean)) < 1e-5)
  end)

  it("takes lists of arrays where its job does", function()
    local T = tp.Numpy.Placeholder({ 2 })
    local job = flow.global_function { inputs = { pair = { T, T }, z = T }, returns = tp.Numpy } (function(pair, z)
      return pair[1] - pair[2] + z
    end)
    local call = job:prepare()
    assert.is_true(call({ vector(5, 5), vector(1, 2) }, vector(0, 1)) == vector(4, 4))
    raises("invalid_argument", "wants a list of 2 arrays", call, vector(1, 2), vector(0, 1))
  end)

  it("gives the same arrays each time, and runs from its inputs when it is called without arguments", function()
    local call = scaling():prepare()
    local y = call(vector(1, 2))
    assert.is_true(y == vector(3, 6))
    assert.equal(y, call.outputs[1])
    assert.equal(y, call(vector(2, 4)))
    assert.is_true(y == vector(6, 12))
    call.inputs.x[1] = 5
    assert.equal(call.inputs.x, call.inputs[1])
    call()
    assert.is_true(y == vector(6, 15))
    y:release()
    assert.is_true(call(vector(1, 1)) == vector(3, 3)) -- is there again
  end)

  it("takes a number for an input without axes, or says that it is none of its dtype", function()
    local call = flow.global_function {
      name = "step", returns = tp.Numpy,
      inputs = { x = tp.Numpy.Placeholder({ 2 }), step = tp.Numpy.Placeholder({}, { dtype = flow.int32 }) },
    } (function(x, step) return x + flow.cast(step, flow.float) end):prepare()
    assert.is_true(call(vector(1, 2), 3) == vector(4, 5))
    call.inputs.step = 4
    assert.is_true(call() == vector(5, 6))
    raises("invalid_argument", "input 'step' is 0.5, its placeholder wants int32 (): the number 0.5 is no int32", call,
      vector(7, 7), 0.5)
    assert.is_true(call() == vector(5, 6))
  end)

  it("can be fed with what it gave", function()
    local T = tp.Numpy.Placeholder({ 2 })
    local job = flow.global_function { inputs = { x = T, h = T }, returns = tp.Numpy } (function(x, h)
      return x + h / 2
    end)
    local call = job:prepare()
    local h = np.zeros({ 2 }, flow.float)
    for _ = 1, 3 do h = call(vector(4, 8), h) end
    assert.is_true(h == vector(7, 14))
  end)

  it("can be fed with what lies in its inputs, as they are before", function()
    local now_and_before = { { "now", tp.Numpy.Placeholder({ 2 }) }, { "before", tp.Numpy.Placeholder({ 2 }) } }
    local job = flow.global_function { inputs = now_and_before, returns = tp.Numpy } (function(now, before)
      return now - before
    end)
    local call = job:prepare()
    call(vector(1, 2), vector(0, 0))
    assert.is_true(call(vector(10, 20), call.inputs.now) == vector(9, 18))
    assert.is_true(call(call.inputs.before, call.inputs.now) == vector(-9, -18))
    assert.is_true(call(call.inputs.now, vector(1, 1)) == vector(0, 1))
  end)

  it("computes with the weights that were published last", function()
    local job, learn = scaling(), learning()
    local call, other = job:prepare(), job:prepare()
    assert.is_true(call(vector(1, 1)) == vector(3, 3))
    learn(vector(1, 1))
    call:publish() -- what will be after the run that is under way
    learn(vector(1, 1))
    flow.sync()
    assert.is_true(call(vector(1, 1)) == vector(2, 2))
    assert.is_true(other(vector(1, 1)) == vector(3, 3))
    assert.equal(2, flow.publish())
    assert.is_true(other(vector(1, 1)) == vector(1, 1))
    assert.equal(2, other:generation())
    other = nil -- luacheck: ignore
    collectgarbage()
    assert.equal(1, flow.publish())
  end)

  it("is given weights without garbage, however many variables the session has", function()
    local many = flow.global_function { returns = tp.Numpy } (function()
      local all = {}
      for i = 1, 300 do
        all[i] = flow.get_variable("w" .. i, { shape = { 1 }, initializer = flow.zeros_initializer() })
      end
      return flow.concat(all, 0)
    end)
    many()
    local call = scaling():prepare()
    flow.publish()
    collectgarbage()
    collectgarbage("stop")
    local before = collectgarbage("count")
    for _ = 1, 20 do flow.publish() end
    local garbage = collectgarbage("count") - before
    collectgarbage("restart")
    assert.is_true(garbage < 50, garbage .. " KB")  -- a table for each variable would be 20 times as much
    assert.is_true(call(vector(1, 1)) == vector(3, 3))
  end)

  it("waits for nothing that is in flight, and delivers nothing", function()
    local call, learn = scaling():prepare(), learning()
    local delivered = 0
    for _ = 1, 2 do learn(vector(1, 1))(function() delivered = delivered + 1 end) end
    assert.is_true(call(vector(1, 2)) == vector(3, 6))
    assert.equal(0, delivered)
    assert.equal(2, flow.in_flight())
    flow.sync()
    assert.equal(2, delivered)
  end)

  it("may be called in a handler, in a task, and in a handler of its own job", function()
    local seen = {}
    local call
    local job = flow.global_function { inputs = x2, returns = tp.Numpy } (function(x)
      local y = x + 1
      flow.watch(y, function(value) seen[#seen + 1] = call(value)[0] end)
      return y
    end)
    call = job:prepare()
    job(vector(1, 2))
    assert.same({ 3 }, seen) -- and calls no watch itself
    flow.spawn(function() seen[#seen + 1] = call(vector(10, 0))[0] end)
    assert.same({ 3, 11 }, seen)
  end)

  it("does not give what is watched from outside", function()
    local job = flow.global_function { inputs = x2, returns = tp.Numpy } (function(x)
      return flow.nn.relu(flow.math.negative(x, { name = "negated" }))
    end)
    job:watch("negated", function() end)
    local call = job:prepare()
    assert.equal(1, #call.outputs)
    assert.is_true(call(vector(1, -2)) == vector(0, 2))
  end)

  it("leaves no garbage", function()
    jit.off()
    jit.flush()  -- traces of earlier tests would grow side traces here all the same
    local several = flow.global_function {
      inputs = x2, returns = tp.Tuple { tp.Numpy, tp.Dict { twice = tp.Numpy, parts = tp.List[tp.Numpy] } },
    } (function(x) return x, { twice = 2 * x, parts = { x + 1, -x } } end)
    local four = flow.global_function {
      inputs = x2, returns = tp.Tuple { tp.Numpy, tp.Numpy, tp.Numpy, tp.Numpy },
    } (function(x) return x, x + 1, x + 2, x + 3 end)
    local x = vector(1, 2)
    for _, job in ipairs { scaling(), several, four } do
      local call = job:prepare()
      call(x)
      collectgarbage()
      collectgarbage("stop")
      local before = collectgarbage("count")
      for _ = 1, 100 do call(x) end
      local after = collectgarbage("count")
      collectgarbage("restart")
      assert.equal(before, after)
    end
    jit.on()
  end)

  it("gives the same tables each time, and others once their arrays are", function()
    local job = flow.global_function {
      inputs = x2, returns = tp.Tuple { tp.Numpy, tp.Dict { twice = tp.Numpy, parts = tp.List[tp.Numpy] } },
    } (function(x) return x, { twice = 2 * x, parts = { x + 1, -x } } end)
    local call = job:prepare()
    local _, first = call(vector(1, 2))
    local same, again = call(vector(3, 4))
    assert.is_true(rawequal(first, again))
    assert.is_true(same == vector(3, 4) and again.twice == vector(6, 8) and again.parts[2] == vector(-3, -4))
    again.twice:release()
    _, again = call(vector(5, 6))
    assert.is_true(again.twice == vector(10, 12) and again.parts[1] == vector(6, 7))
  end)

  it("is collected before its memory piles up, though Lua sees only small boxes", function()
    local inputs = { x = tp.Numpy.Placeholder({ 4, 1000 }) }
    local job = flow.global_function { inputs = inputs, returns = tp.Numpy } (function(x)
      return flow.layers.dense(x, 1000)
    end)
    local function alive() return session.handle():memory().live_bytes end
    collectgarbage()
    local before, most = alive(), 0
    for _ = 1, 60 do  -- each with three times its weights
      job:prepare()
      most = math.max(most, alive() - before)
    end
    assert.is_true(most > 12e6 and most < 400e6, most / 1e6 .. " MB")
    collectgarbage()
    collectgarbage()
    assert.is_true(alive() - before < 1e6)
  end)

  it("is refused in the body of a job, which would keep its numbers", function()
    local call = scaling():prepare()
    raises("wrong_state", "a prepared call cannot be made inside the body of a job ('outer')", function()
      flow.global_function { name = "outer", inputs = x2, returns = tp.Numpy } (function(x)
        return x + call(vector(1, 2))
      end)
    end)
  end)

  it("outlives its session, whose weights it then keeps", function()
    local call = scaling():prepare()
    flow.clear_default_session()
    assert.is_true(call(vector(1, 2)) == vector(3, 6))
    raises("wrong_state", "the session of this prepared call is closed; prepare it again", call.publish, call)
    assert.equal(0, flow.publish())
  end)

  it("says what does not fit", function()
    local call = scaling():prepare()
    raises("invalid_argument", "scale: takes 1 input (x), got 2", call, vector(1, 2), vector(1, 2))
    raises("shape_mismatch", "scale: input 'x' is float32 (3), its placeholder wants float32 (2)", call,
      vector(1, 2, 3))
    raises("dtype_mismatch", "scale: input 'x' is int32 (2)", call, np.array({ 1, 2 }, flow.int32))
    raises("invalid_argument", "scale: input 'x' is 1", call, 1)
    local gone = vector(1, 2)
    gone:release()
    raises("wrong_state", "released", call, gone)
    raises("not_found", "a prepared call has no 'output'", function() return call.output end)
    assert.equal("scale(x: float32[2]) -> Numpy  [prepared]", tostring(call))
  end)

  it("raises what its run raises, and runs again", function()
    local job = flow.global_function { name = "pick", inputs = {
      x = x2.x, i = tp.Numpy.Placeholder({ 1 }, { dtype = flow.int32 }),
    }, returns = tp.Numpy } (function(x, i) return flow.gather(x, i) end)
    local call = job:prepare()
    local problem = raises("out_of_range", ": pick: gather", call, vector(1, 2), np.array({ 7 }, flow.int32))
    assert.truthy(problem.where:find("prepared_spec.lua", 1, true))
    assert.is_true(call(vector(1, 2), np.array({ 1 }, flow.int32)) == vector(2))
  end)
end)

describe("a prepared call that draws", function()
  local function drawing()
    return flow.global_function { name = "draws", inputs = x2, returns = tp.Numpy } (function(x)
      return x + flow.random.uniform(0, 1, { 2 }) + 10 * flow.random.uniform(0, 1, { 2 })
    end)
  end
  -- The next results for zeros, as text; also a prepared call's where `from_buffers` says to give it no array.
  local function next_of(call, count, from_buffers)
    local list = {}
    for i = 1, count or 4 do list[i] = tostring(from_buffers and call() or call(vector(0, 0))) end
    return list
  end

  it("draws anew in each run, and otherwise than its job and the job's other prepared calls", function()
    flow.set_seed(5)
    local job, seen = drawing(), {}
    for _, call in ipairs { job, job:prepare(), job:prepare() } do
      for _, drawn in ipairs(next_of(call)) do
        assert.is_nil(seen[drawn])
        seen[drawn] = true
      end
    end
  end)

  it("draws the same again after the same seed, whatever else is drawn", function()
    local job = drawing()
    flow.set_seed(5)
    local one, other = next_of(job:prepare()), next_of(job:prepare())
    flow.set_seed(6)
    assert.not_same(one, next_of(job:prepare()))
    flow.set_seed(5)
    job(vector(0, 0))
    assert.same(one, next_of(job:prepare()))
    assert.same(other, next_of(job:prepare()))
  end)

  it("draws from the seed that it was made with, whatever is set later, and from its buffers as from arrays", function()
    flow.set_seed(5)
    local job = drawing()
    local wanted = next_of(job:prepare(), 6)
    flow.set_seed(5)
    local call = job:prepare()
    local drawn = next_of(call, 3)
    flow.set_seed(7)
    for _, text in ipairs(next_of(call, 3, true)) do drawn[#drawn + 1] = text end
    assert.same(wanted, drawn)
  end)
end)

describe("a prepared call that assigns", function()
  -- Sums up what it is given, times a weight, in a variable that is at first what `start` says.
  local function counting(start)
    return flow.global_function { name = "count", inputs = x2, returns = tp.Numpy } (function(x)
      local sum = flow.get_variable("sum", {
        shape = { 2 }, trainable = false, initializer = flow.constant_initializer(start or 0) })
      local now = sum + x * weight(3)
      flow.assign(sum, now)
      return now
    end)
  end

  it("keeps what it has assigned, beside its job and other prepared calls", function()
    local job = counting()
    job(vector(1, 1))
    local one, other = job:prepare(), job:prepare()
    assert.is_true(one(vector(1, 2)) == vector(6, 9))
    assert.is_true(one(vector(1, 2)) == vector(9, 15))
    assert.is_true(other(vector(0, 1)) == vector(3, 6))
    assert.is_true(job(vector(0, 1)) == vector(3, 6))
    assert.is_true(one() == vector(12, 21))
    assert.is_true(flow.get_all_variables().sum == vector(3, 6))
  end)

  it("begins again after a reset, and takes weights without it", function()
    local job = counting(5)
    local call = job:prepare()
    call(vector(1, 1))
    call:reset()
    assert.is_true(call(vector(1, 1)) == vector(8, 8))
    flow.load_variables { w = vector(1, 10), sum = vector(100, 100) }
    call:publish()
    assert.is_true(call(vector(1, 1)) == vector(9, 18))
    call:reset()
    assert.is_true(call(vector(1, 1)) == vector(6, 15))
    assert.is_true(job:prepare()(vector(1, 1)) == vector(101, 110))
    raises("invalid_argument", "prepared:reset is a method", call.reset)
  end)

  it("leaves its variables alone where a run fails", function()
    local job = flow.global_function { name = "log", returns = tp.Numpy, inputs = {
      at = tp.Numpy.Placeholder({ 1, 1 }, { dtype = flow.int32 }), row = tp.Numpy.Placeholder({ 1, 2 }),
    } } (function(at, row)
      local rows = flow.get_variable("rows", {
        shape = { 3, 2 }, trainable = false, initializer = flow.zeros_initializer() })
      local now = flow.tensor_scatter_nd_update(rows, at, row)
      flow.assign(rows, now)
      return now
    end)
    local call = job:prepare()
    local function at(k) return np.array({ { k } }, flow.int32) end
    call(at(2), np.array({ { 1, 2 } }, flow.float))
    raises("out_of_range", "log: ", call, at(3), np.array({ { 7, 7 } }, flow.float))
    local got = call(at(0), np.array({ { 3, 4 } }, flow.float))
    assert.is_true(got == np.array({ { 3, 4 }, { 0, 0 }, { 1, 2 } }, flow.float))
  end)
end)

describe("a job that cannot be prepared", function()
  it("says why", function()
    local learn = learning()
    raises("unsupported", "prepare a predict job", learn.prepare, learn)
    local L = tp.ListNumpy.Placeholder({ 2 })
    local list = flow.global_function { inputs = { x = L }, returns = tp.ListNumpy } (function(x) return x end)
    raises("unsupported", "needs inputs of fixed shape", list.prepare, list)
    local old = scaling()
    flow.clear_default_session()
    raises("wrong_state", "belongs to a session that is closed", old.prepare, old)
  end)
end)
