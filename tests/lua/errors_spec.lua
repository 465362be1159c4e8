-- What a user is told who gives a function, a job or a feed what it does not take. See golden.lua.
local flow = require "moonflow"
local goldens = require "golden"
local process = require "process"

local np = flow.np
local told, golden, golden_start = goldens.told, goldens.whole, goldens.start

before_each(goldens.begin)
teardown(goldens.finish)

describe("arguments that a function does not take", function()
  it("are not lost without a word", function()
    golden("np.maximum takes at most 2 arguments (a, b), got 3", ">>np.maximum(1, 2, 3)")
    golden("np.log takes at most 1 argument (x), got 2", ">>np.log(8, 2)")
    golden("np.where takes at most 3 arguments (condition, x, y), got 4", ">>np.where(1, 2, 3, { out = 4 })")
    golden("np.matmul takes at most 2 arguments (a, b), got 3; a:transpose() turns a matrix",
      ">>np.matmul({ { 1 } }, { { 2 } }, { transpose_b = true })")
    golden("np.trace has no option 'dtype'; its parameters are a", ">>np.trace({ { 1 } }, { dtype = 'int8' })")
    golden("np.isin has no option 'invert'; its parameters are a, values", ">>np.isin({ 1 }, { 2 }, { invert = true })")
    golden("flow.train.CheckPoint takes no arguments; check_point:save(path) and check_point:load(path) take the "
      .. "folder", ">>flow.train.CheckPoint('weights')")
    golden("job:prepare takes no arguments: a prepared call is for one thread of the CPU, and reads the buffers in its "
      .. "inputs", [[
  local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 2 }) } } (function(x) return x + 1 end)
>>job:prepare({ threads = 2 })]])
    assert.equal("(2, 1)", tostring(np.squeeze(np.ones { 1, 2, 1 }, { axis = 0 }).shape))
  end)

  it("are a few words of text, whatever bytes they hold", function()
    golden("np.ones: argument 1 ('shape') must be a number or a list, got '\\255\\216\\255\\0\\n'",
      [[>>np.ones("\255\216\255\0\n")]])
    golden("np.ones: argument 1 ('shape') must be a number or a list, got 'größe\\n\\27'",
      [[>>np.ones("größe\n\27")]])
    golden("np.ones: argument 1 ('shape') must be a number or a list, got '" .. ("x"):rep(60) .. "'... (300 bytes)",
      [[>>np.ones(("x"):rep(300))]])
    golden("np.ones: argument 1 ('shape') must be a number or a list, got 'x" .. ("ö"):rep(29) .. "'... (301 bytes)",
      [[>>np.ones("x" .. ("ö"):rep(150))]])
  end)

  it("say what the file is that stands in the place of a path or of bytes", function()
    golden("np.loadtxt: argument 1 ('path') must be a string, got an open file; it takes the path, and opens the file "
      .. "itself", [[>>np.loadtxt(io.stdout)]])
    golden("np.load_memory: argument 1 ('bytes') must be a string, got an open file; file:read(\"*a\") gives those of "
      .. "a file", [[>>np.load_memory(io.stdout)]])
    golden("flow.checkpoint.get: argument 1 ('path') must be a string, got nil", [[>>flow.checkpoint.get(nil)]])
    golden("np.loadtxt: the path is the text itself, '1,2\\n3,4'; it takes the path of a file that has it",
      [[>>np.loadtxt("1,2\n3,4")]])
    golden("np.load: the path is the bytes of a file, which np.load_memory(bytes) takes", [[>>np.load("\147NUMPY\1")]])
  end)

  it("name the function of np where a value is no array", function()
    golden("np.exp: entry 1 of a list on axis 0: expected a number, got the string 'a'", [[>>np.exp { "a" }]])
    golden("np.array: expected a number, got a function", [[>>np.array(print)]])
    golden("np.add: a list on axis 0 has the key 'no' among its entries", [[>>np.add(np.ones { 2 }, { no = 1 })]])
    golden("np.eq wants an ndarray, a table or a number, got nil", [[>>np.eq(np.ones { 2 })]])
    golden("np.power wants an ndarray, a table or a number, got nil", [[>>np.power(2)]])
    golden("np.clip wants an ndarray, a table or a number, got 'what'", [[>>np.clip(np.ones { 2 }, "what")]])
    golden("np.roll: an axis is a whole number, got nan", [[>>np.roll(np.ones { 2 }, 1, 0 / 0)]])
    golden("np.power: shapes (2) and (3) do not broadcast: axis 0 is 2 against 3",
      [[>>np.power(np.ones { 2 }, np.ones { 3 })]])
    golden("np.gt: shapes (2) and (3) do not broadcast: axis 0 is 2 against 3",
      [[>>np.gt(np.ones { 2 }, np.ones { 3 })]])
    golden("a:gt: shapes (2) and (3) do not broadcast: axis 0 is 2 against 3",
      [[>>np.ones({ 2 }):gt(np.ones { 3 })]])
    golden("a:take: axis 1 of an array of rank 1", [[>>np.take(np.ones { 2 }, 0, 1)]])
    golden("a:take: the number 0.5 is no int64 (-9223372036854775808 to 9223372036854775807, without a fraction)",
      [[>>np.take(np.ones { 2 }, 0.5)]])
  end)

  it("of minimize have a place of their own", function()
    golden("flow.optimizer.SGD:minimize takes at most 1 argument (loss), got 2; several losses go to it as a list, and "
      .. "what is to be trained to the optimizer's 'variables'", [[
flow.global_function { type = "train", returns = tp.None } (function()
  local w = flow.get_variable("w", { shape = { 2 }, initializer = flow.ones_initializer() })
>>flow.optimizer.SGD(0.1):minimize(w, "w")
end)]])
    golden("flow.losses.add_loss takes at most 1 argument (loss), got 2; each loss gets a call of its own", [[
flow.global_function { type = "train", returns = tp.None } (function()
  local w = flow.get_variable("w", { shape = { 2 }, initializer = flow.ones_initializer() })
>>flow.losses.add_loss(w, w)
end)]])
  end)
end)

describe("flow.gradients", function()
  local function within(body)
    return [[
local job = flow.global_function {
  inputs = { x = tp.Numpy.Placeholder({ 4 }), y = tp.Numpy.Placeholder({ 4 }), i = tp.Numpy.Placeholder({ 4 },
             { dtype = flow.int32 }) },
  returns = tp.Numpy,
} (function(x, y, i)
]] .. body .. "\nend)"
  end

  it("says which value a loss does not depend on", function()
    golden("flow.gradients: 'loss' does not depend on 'y' (made at user.lua:2), so there is no gradient; compute the "
      .. "loss from it, leave it out of the values, or say unconnected_gradients = \"zero\"", within [[
  local loss = flow.math.exp(x, { name = "loss" })
>>local g = flow.gradients(loss, { x, y })]])
  end)

  it("says which op lets no gradient by", function()
    golden("flow.gradients: 'loss' depends on 'y' (made at user.lua:2) only by ways that let no gradient by, such as "
      .. "floor 'whole' (user.lua:6); use an op that has a gradient there, leave it out of the values, or say "
      .. "unconnected_gradients = \"zero\"", within [[
  local whole = flow.math.floor(y, { name = "whole" })
  local loss = flow.math.multiply(x, flow.math.exp(whole), { name = "loss" })
>>local g = flow.gradients(loss, { x, y })]])
    golden_start("flow.gradients: 'loss' depends on 'y' (made at user.lua:2) only by ways that let no gradient by, "
      .. "such as cast 'number' (user.lua:6)", within [[
  local number = flow.cast(y, flow.int32, { name = "number" })
  local loss = flow.math.multiply(x, flow.cast(number, flow.float), { name = "loss" })
>>local g = flow.gradients(loss, y)]])
  end)

  it("says which op's gradient has none of its own", function()
    golden("digamma_grad 'slope_digamma_grad': a gradient of a gradient goes through it, and it has none "
      .. "of its own; make what it is the gradient of from simpler ops, or keep that from the loss with "
      .. "flow.stop_gradient", within [[
>>local slope = flow.math.digamma(x, { name = "slope" })
  return flow.gradients(flow.gradients(slope, x), x)]])
  end)

  it("says what it cannot take", function()
    golden("flow.gradients: 'i' among the values is int32; only floats have gradients", within [[
>>local g = flow.gradients(x * 2, i)]])
    golden("flow.gradients: losses must be a blob or a list of blobs, got 3", within [[
>>local g = flow.gradients(3, x)]])
    golden("flow.gradients: values must be a blob or a list of blobs, got an empty one", within [[
>>local g = flow.gradients(x, {})]])
    golden("flow.gradients: the list of values has a hole: nothing stands at 2, but something at 3", within [[
>>local g = flow.gradients(x, { x, nil, y })]])
    golden("flow.gradients: values are nested more than 8 deep", within [[
local list = { x }
list[2] = list
>>local g = flow.gradients(x, list)]])
    golden("flow.gradients: entry 2.1 of values must be a blob, got 'y'", within [[
>>local g = flow.gradients(x, { x, { "y" } })]])
    golden("flow.gradients: entry 2 of values must be a blob, got 'y'", within [[
>>local g = flow.gradients(x, { x, "y" })]])
    golden("flow.gradients: grad_ys must be one for each loss, got 1 for 2", within [[
>>local g = flow.gradients({ x, y }, x, { grad_ys = 1 })]])
    golden("flow.gradients: the entry of grad_ys for 'x' is float32 (3), and the loss is float32 (4)", within [[
>>local g = flow.gradients(x, x, { grad_ys = np.ones({ 3 }) })]])
    golden("flow.gradients has no option 'grad_y'; did you mean 'grad_ys'?", within [[
>>local g = flow.gradients(x, x, { grad_y = 1 })]])
  end)
end)

describe("a feed", function()
  local define = [[
local train_job = flow.global_function {
  inputs = {
    images = tp.Numpy.Placeholder({ 4, 3 }, { dtype = flow.float }),
    labels = tp.Numpy.Placeholder({ 4 }, { dtype = flow.int32 }),
  },
  returns = tp.Numpy,
} (function(images, labels) return flow.nn.sparse_softmax_cross_entropy_with_logits(labels, images, { name = "l" }) end)
]]

  it("of the wrong dtype, shape, kind or number is refused at the call", function()
    golden("train_job: input 'labels' is float64 (4), its placeholder wants int32 (4); x:astype(flow.int32) makes one",
      define .. [[
>>train_job(np.zeros({ 4, 3 }), np.zeros({ 4 }, flow.double))]])
    golden("train_job: input 'images' is float32 (3, 4), its placeholder wants float32 (4, 3)", define .. [[
>>train_job(np.zeros({ 3, 4 }), np.zeros({ 4 }, flow.int32))]])
    golden("train_job: input 'labels' is a table, its placeholder wants an ndarray int32 (4); np.array(it, flow.int32) "
      .. "makes one", define .. [[
>>train_job(np.zeros({ 4, 3 }), { 1, 2, 3, 4 })]])
    golden("train_job: input 'images' is 0.5, its placeholder wants an ndarray float32 (4, 3)", define .. [[
>>train_job(0.5, np.zeros({ 4 }, flow.int32))]])
    golden("job: input 'step' is 0.5, its placeholder wants int32 (): the number 0.5 is no int32 (-2147483648 to "
      .. "2147483647, without a fraction)", [[
  local step = tp.Numpy.Placeholder({}, { dtype = flow.int32 })
  local job = flow.global_function { inputs = { step = step } } (function(step) return step end)
>>job(0.5)]])
    golden("train_job: takes 2 inputs (images, labels), got 1", define .. [[
>>train_job(np.zeros({ 4, 3 }))]])
    golden("train_job: takes 2 inputs (images, labels), got 3", define .. [[
>>train_job(np.zeros({ 4, 3 }), np.zeros({ 4 }, flow.int32), 1)]])
    golden("train_job: input 'images' is nil, its placeholder wants an ndarray float32 (4, 3)", define .. [[
>>train_job(nil, np.zeros({ 4 }, flow.int32))]])
    golden("train_job: input 'images' is a released ndarray, its placeholder wants an ndarray float32 (4, 3)", define
      .. [[
  local images = np.zeros({ 4, 3 })
  images:release()
>>train_job(images, np.zeros({ 4 }, flow.int32))]])
  end)

  it("of another copy of the library is told from what is no array", function()
    local folder = process.folder("another_copy")
    local foreign = ([[
  local copy = %q .. "/core.so"
  os.execute("cp -L '" .. package.searchpath("moonflow.core", package.cpath) .. "' '" .. copy .. "'")
  local second = package.loadlib(copy, "luaopen_moonflow_core")()
]]):format(folder)
    golden("train_job: input 'images' is an ndarray of another copy of the library, which is loaded twice here, its "
      .. "placeholder wants an ndarray float32 (4, 3)", define .. foreign .. [[
>>train_job(second.zeros("float32", { 4, 3 }), np.zeros({ 4 }, flow.int32))]])
    golden("train_job: input 'images' is an open file, its placeholder wants an ndarray float32 (4, 3)", define .. [[
>>train_job(io.stdout, np.zeros({ 4 }, flow.int32))]])
  end)

  it("is refused by asynchronous jobs alike", function()
    golden("job: input 'x' is float32 (3), its placeholder wants float32 (2)", [[
local job = flow.global_function({ inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Callback[tp.Numpy] },
  function(x) return x end)
>>job(np.zeros({ 3 }))(print)]])
  end)

  it("with a label outside the classes names the row, at the op's own line", function()
    local text, _, problem = told(define .. [[
>>train_job(np.zeros({ 4, 3 }), np.array({ 0, 1, 2, 3 }, flow.int32))]])
    assert.equal("out_of_range", problem.code)
    assert.equal("user.lua:7: train_job: sparse_softmax_cross_entropy_with_logits 'l': row 3: label 3 is outside "
      .. "[0, 3)", text)
  end)

  it("with such a label names the loss also where its layer is one op with it", function()
    local text = told([[
local job = flow.global_function {
  type = "train",
  inputs = { x = tp.Numpy.Placeholder({ 4, 8 }), labels = tp.Numpy.Placeholder({ 4 }, { dtype = flow.int32 }) },
} (function(x, labels)
  local hidden = flow.layers.dense(x, 8, { activation = flow.nn.relu, name = "hidden" })
  local logits = flow.layers.dense(hidden, 3, { name = "logits" })
  local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits, { name = "loss" })
  flow.optimizer.SGD(0.1):minimize(loss)
  return loss
end)
job(np.zeros({ 4, 8 }), np.array({ 0, 1, 2, 3 }, flow.int32)):get()]])
    assert.truthy(text:find("^user.lua:7: [%w_: ]*[%w_]+ 'loss': row 3: label 3 is outside %[0, 3%)$"), text)
  end)
end)

describe("the definition of a job", function()
  it("checks inputs against parameters, both ways", function()
    golden("parameter 'x' has no placeholder in inputs, which go by name: images, labels", [[
flow.global_function { inputs = { images = tp.Numpy.Placeholder({ 2 }), labels = tp.Numpy.Placeholder({ 2 }) } } (
>>function(x, y) return x + y end)]])
    golden("parameter 'states' has no placeholder in inputs, and inputs.s has no parameter; give both one name, for "
      .. "they go by name", [[
flow.global_function { inputs = { s = tp.Numpy.Placeholder({ 2 }), a = tp.Numpy.Placeholder({ 2 }) } } (
>>function(states, a) return states + a end)]])
    golden("parameter 'x' has no placeholder in inputs", [[
>>flow.global_function {} (function(x) return x end)]])
    golden("parameter 'lables' has no placeholder in inputs; did you mean 'labels'?", [[
local spec = { inputs = { labels = tp.Numpy.Placeholder({ 2 }) } }
local job = flow.global_function(spec,
>>  function(lables)
    return lables
  end)]])
    golden("inputs.labels (declared at user.lua:3) matches no parameter of the job function", [[
local spec = { inputs = {
  x = tp.Numpy.Placeholder({ 2 }),
  labels = tp.Numpy.Placeholder({ 2 }),
} }
>>flow.global_function(spec, function(x) return x end)]])
    golden("a job function takes no variable arguments (...)", [[>>flow.global_function(print)]])
    golden("a job function takes no variable arguments (...)", [[
>>flow.global_function({}, function(...) return ... end)]])
    golden("parameter 1 of the job function is 'x', but inputs[1] is 'y'", [[
>>flow.global_function({ inputs = { { "y", tp.Numpy.Placeholder({ 2 }) } } }, function(x) return x end)]])
    golden("flow.global_function: inputs.x must be a placeholder, got a type; write tp.Numpy.Placeholder({ ...shape "
      .. "})", [[
>>flow.global_function({ inputs = { x = tp.Numpy } }, function(x) return x end)]])
  end)

  it("checks its options", function()
    golden("flow.global_function: type must be 'train' or 'predict', got 'training'; did you mean 'train'?", [[
>>flow.global_function { type = "training" }]])
    golden("flow.global_function has no option 'return'; did you mean 'returns'?", [[
>>flow.global_function { ["return"] = tp.Numpy }]])
    golden("flow.global_function: returns must be a flow.typing type, got 'Numpy'", [[
>>flow.global_function { returns = "Numpy" }]])
    golden("flow.global_function: returns must be a flow.typing type, got a table; "
      .. "several values are flow.typing.Tuple { ... }", [[
>>flow.global_function { returns = { tp.Numpy, tp.Numpy } }]])
    golden("function_config has no option 'default_dtype'; did you mean 'default_data_type'?", [[
local f = flow.global_function { function_config = { default_dtype = flow.float } }
>>f(function() end)]])
    golden("config:default_data_type is a method: call it with ':'", [[
local config = flow.function_config()
>>config.default_data_type(flow.float)]])
  end)

  it("tells a decorator from a job", function()
    local text = told [[
local job = flow.global_function { returns = tp.None }
>>job(np.zeros({ 2 }))]]
    assert.equal("user.lua:2: this is a decorator, not a job yet: the global_function at user.lua:1 has no body. "
      .. "Write flow.global_function { ... } (function(...) ... end)", text)
  end)

  it("checks what is returned against the annotation, at the line of the return", function()
    golden("the job 'job' returns 2 values but is declared '-> Numpy', which takes 1", [[
local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Numpy } (function(x)
  local y = x + 1
>>  return x, y
end)]])
  end)

  it("does not end its session in its body", function()
    for _, call in ipairs { "flow.shutdown", "flow.clear_default_session" } do
      golden(call .. " ends the session that the job 'unfinished' belongs to, and so cannot be called in its body", [[
local job = flow.global_function { name = "unfinished" } (function()
>>  ]] .. call .. [[()
end)]])
    end
  end)

  it("is refused inside the body of another job, and so is a call", function()
    -- With every job placed, that line is run.lua's.
    if not os.getenv("MOONFLOW_TEST_PLACEMENT") then
      golden("a job function cannot be defined inside the body of another one ('outer')", [[
local outer = flow.global_function { returns = tp.None } (function()
>>  flow.global_function({}, function() end)
end)]])
    end
    for _, value in ipairs { "x", "np.ones({ 2 })" } do
      golden("inner: a job cannot be called inside the body of another one ('outer'), which runs once and would keep "
        .. "the result", ([[
local spec = { inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Numpy }
local inner = flow.global_function(spec, function(x) return x end)
local outer = flow.global_function(spec, function(x)
>>  return (inner(%s))
end)]]):format(value))
    end
  end)

  it("has two values for one variable", function()
    golden("flow.assign: 'v' is written at user.lua:3 already, which would be lost; a run leaves a variable one "
      .. "value", [[
flow.global_function({}, function()
  local v = flow.get_variable("v", { shape = { 1 }, initializer = flow.zeros_initializer() })
  flow.assign_add(v, v)
>>  flow.assign(v, v + 1)
end)]])
    golden("flow.assign_add: 'v' is written at user.lua:3 already; a run leaves a variable one value", [[
flow.global_function({}, function()
  local v = flow.get_variable("v", { shape = { 1 }, initializer = flow.zeros_initializer() })
  flow.assign(v, v + 1)
>>  flow.assign_add(v, v)
end)]])
  end)

  it("wants something to train in a train job", function()
    local function train(body)
      return ([[
local train_job = flow.global_function {
  type = "train", inputs = { x = tp.Numpy.Placeholder({ 4, 3 }) },
} (function(x)
%s
>>  flow.optimizer.SGD(0.1):minimize(loss)
end)]]):format(body)
    end
    golden("train_job: minimising 'Square_0' changes nothing, for the job has no variables. Make some, with "
      .. 'flow.layers or flow.get_variable, or give the job type = "predict"', train [[
  local loss = flow.math.square(x)]])
    golden("train_job: minimising 'loss' changes nothing, for all variables of the job stay as they are (out-weight, "
      .. 'out-bias). Leave out trainable = false where one is to learn, or give the job type = "predict"', train [[
  local y = flow.layers.dense(x, 2, { name = "out", trainable = false })
  local loss = flow.math.square(y, { name = "loss" }) ]])
    golden("train_job: minimising 'loss' changes nothing, for no gradient reaches what is to be trained (a-weight, "
      .. "a-bias, b-weight, b-bias and 2 more). Compute the loss from it, by ops that have a gradient, or give the job "
      .. 'type = "predict"', train [[
  for _, name in ipairs { "a", "b", "c" } do flow.layers.dense(x, 2, { name = name }) end
  local loss = flow.math.square(x, { name = "loss" }) ]])
  end)

  it("wants a loss minimised in a train job, and none in a predict job", function()
    golden("the job 'job' has type 'train' but minimises no loss; call flow.optimizer.SGD(0.1):minimize(loss) in its "
      .. "body, take flow.gradients for a step of your own, or give it type = \"predict\"", [[
>>local job = flow.global_function { type = "train", returns = tp.None } (function() end)]])
    golden("flow.optimizer.SGD:minimize: the job 'job' has type 'predict'; give it type = \"train\"", [[
local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 2 }) } } (function(x)
>>  flow.optimizer.SGD(0.1):minimize(x)
end)]])
    golden("flow.watch_diff: the job 'job' has type 'predict', which minimises no loss; flow.gradients(y, x) is a "
      .. "gradient in any job, and one of a loss wants type = \"train\"", [[
local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 2 }) } } (function(x)
>>  flow.watch_diff(x, print)
end)]])
  end)
end)

describe("errors as text", function()
  local function raised_by(fn)
    local results = { pcall(flow.text_errors(fn)) }
    assert.is_false(results[1])
    return results[2]
  end

  it("are what an error object says, and where it was raised", function()
    local function mean_of(list) return np.mean(list, { axis = 7 }) end
    local function handler() local mean = mean_of { 1, 2 } return mean end
    local _, object = pcall(handler)
    local text = raised_by(handler)
    assert.is_true(flow.is_error(object))
    assert.equal("string", type(text))
    assert.equal(tostring(object), text:match("^[^\n]+"))
    local line = tostring(object):match("errors_spec%.lua:(%d+)")
    assert.truthy(text:find("\n\t[^\n]*errors_spec%.lua:" .. line .. ": in function"), text)
    assert.is_nil(text:find("moonflow/np", 1, true), text)
    assert.truthy(text:find("frames? inside moonflow"), text)
  end)

  it("are Lua's own with their traceback", function()
    local text = raised_by(function() local x = nil; return x.y end)
    local first = "^[^\n]*errors_spec%.lua:%d+: attempt to index local 'x' %(a nil value%)\nstack traceback:\n"
    assert.truthy(text:find(first), text)
  end)

  it("leave other values, results and yields alone", function()
    local mark = {}
    assert.equal(mark, raised_by(function() error(mark) end))
    assert.is_nil(raised_by(function() error(nil) end))
    local add = coroutine.wrap(flow.text_errors(function(a, b)
      local c = coroutine.yield(a + b)
      return c, nil, "last"
    end))
    assert.equal(3, add(1, 2))
    local first, second, third = add(7)
    assert.same({ 7, "last" }, { first, third })
    assert.is_nil(second)
    golden("flow.text_errors: argument 1 ('fn') must be a function, got nil", ">>flow.text_errors(nil)")
  end)
end)
