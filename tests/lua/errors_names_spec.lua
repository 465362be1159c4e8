-- What a user is told about a name or a word that there is not, and what an error is. See golden.lua.
local flow = require "moonflow"
local goldens = require "golden"

local told, golden, golden_start, body = goldens.told, goldens.whole, goldens.start, goldens.body

before_each(goldens.begin)
teardown(goldens.finish)

describe("a name that is not there", function()
  it("is an error with what may have been meant, also in another place or library", function()
    golden("flow has no 'relu'; did you mean flow.math.relu, flow.nn.relu?", ">>flow.relu()")
    golden("flow.nn has no 'Relu'; did you mean flow.nn.relu?", ">>flow.nn.Relu()")
    golden("flow.layers has no 'linear'; did you mean flow.layers.dense?", ">>flow.layers.linear()")
    golden("flow.typing has no 'numpy'; did you mean flow.typing.Numpy?", [[
>>flow.global_function { returns = tp.numpy }]])
    golden("flow.optimizer.warmup has no 'liner'; did you mean flow.optimizer.warmup.linear?", [[
>>flow.optimizer.warmup.liner(3)]])
    golden("flow has no 'quux'", ">>flow.quux()")
    golden("flow has no 'cuda'; flow.config.gpu_devices() says what there is, and flow.scope.placement puts a job "
      .. "there", ">>flow.cuda()")
    -- What a short name resembles elsewhere, it resembles by chance: that is floor.
    golden_start("flow.layers has no 'foo'; it has batch_normalization", ">>flow.layers.foo()")
    golden("flow has no 'clip_grad_norm_'; did you mean flow.optimizer.grad_clipping.by_global_norm?",
      ">>flow.clip_grad_norm_()")
    golden("flow.random has no 'multinomial'; did you mean flow.random.categorical?", ">>flow.random.multinomial()")
    golden("flow.math has no 'logsumexp'; did you mean flow.math.reduce_logsumexp?", ">>flow.math.logsumexp()")
    golden("flow.nn has no 'NLLLoss'; did you mean flow.nn.CrossEntropyLoss?", ">>flow.nn.NLLLoss()")
    golden("flow.nn has no 'MultiheadAttention'; did you mean flow.nn.dot_product_attention?",
      ">>flow.nn.MultiheadAttention()")
    golden("flow.layers has no 'bidirectional'; did you mean flow.layers.lstm?", ">>flow.layers.bidirectional()")
    golden("flow.optimizer has no 'CosineAnnealingLR'; did you mean flow.optimizer.CosineScheduler?",
      ">>flow.optimizer.CosineAnnealingLR()")
  end)

  it("stands for nothing of another kind: arrays are no values of a job", function()
    golden("flow.math has no 'mean'; did you mean flow.math.reduce_mean?", ">>flow.math.mean()")
    golden("flow.math has no 'amax'; did you mean flow.math.reduce_max?", ">>flow.math.amax()")
    golden("flow.math has no 'amin'; did you mean flow.math.reduce_min?", ">>flow.math.amin()")
    golden("flow has no 'logit'; flow.math.log(p / (1 - p)) is it", ">>flow.logit()")
    golden("flow has no 'numel'; x.shape:count() is how many elements x has", ">>flow.numel()")
    golden("flow has no 'chunk'; did you mean flow.split?", ">>flow.chunk()")
    golden("flow.nn has no 'silu'; did you mean flow.nn.swish?", ">>flow.nn.silu()")
    golden("flow.nn has no 'BatchNorm2d'; did you mean flow.layers.batch_normalization?", ">>flow.nn.BatchNorm2d(3)")
    golden("flow.nn has no 'AdaptiveAvgPool2d'; did you mean flow.math.reduce_mean?", ">>flow.nn.AdaptiveAvgPool2d(1)")
    golden("flow.nn has no 'NLLLoss'; did you mean flow.nn.CrossEntropyLoss?", ">>flow.nn.NLLLoss()")
    golden("flow has no 'flip'; did you mean flow.reverse?", ">>flow.flip()")
    golden("flow has no 'randn'; did you mean flow.random.normal?", ">>flow.randn()")
    golden_start("flow.np has no 'relu'", ">>np.relu()")
    golden("flow.nn has no 'kl_div'; did you mean flow.nn.KLDivLoss?", ">>flow.nn.kl_div()")
    golden("flow.np has no 'imread'; did you mean flow.np.load_png?", ">>np.imread('a.png')")
    golden("flow.data has no 'save_image'; did you mean flow.np.save_png?", ">>flow.data.save_image()")
    golden("flow.data has no 'DataLoader'; did you mean flow.data.Dataset?", ">>flow.data.DataLoader()")
    golden("flow.train has no 'Evaluator'; it has CheckPoint, SimpleCheckPointManager", ">>flow.train.Evaluator()")
    golden_start("flow.optimizer has no 'Muon'; it has Adagrad, Adam, AdamW, ", ">>flow.optimizer.Muon(1)")
    -- The original's own misspelling, which is there for its scripts.
    assert.is_nil((told(">>flow.optimizer.Muon(1)"):find("PolynomialSchduler", 1, true)))
    golden("flow.np has no 'extract'; did you mean flow.np.compress?", ">>np.extract()")
    golden("flow.np has no 'float'; did you mean flow.np.float32?", ">>np.zeros({ 2 }, np.float)")
    assert.is_nil((told(">>np.relu()"):find("flow.nn", 1, true)))
    golden("np.exp wants an ndarray, a table or a number, got a blob; values of a job are computed by functions of "
      .. "flow, such as flow.math.exp", body [[
>>  local y = np.exp(x)
  return y]])
  end)

  it("is an error of values in a job too", function()
    golden("'x' is a graph value and has no 'T'; flow.transpose(x) turns its axes around", body [[
>>  local y = x.T
  return y]])
    golden("'x' is a graph value and has no 'size'; x.shape[0] is its first size, x.shape:count() how many elements it "
      .. "has, #x.shape how many axes", body [[
>>  local n = x:size(1)
  return n]])
    golden("'x' is a graph value and has no 'float'; flow.cast(x, flow.float) is it in another dtype", body [[
>>  local y = x:float()
  return y]])
    golden("'x' is a graph value and has no 'device'; flow.scope.placement says where a job runs", body [[
>>  local where = x.device
  return x]])
    golden("'x' is a graph value with no data, so it has no 'data'; return it from the job or watch it with flow.watch",
      body [[
>>  local y = x.data
  return y]])
    golden("'x' is a graph value and has no 'split'; what computes with it is a function, flow.split(x)", body [[
>>  local y = x:split(2)
  return y]])
    golden("'x' is a graph value and has no 'strange'; what computes with it is a function, such as flow.transpose(x)",
      body [[
>>  local y = x:strange()
  return y]])
    golden("'x' is a graph value and has no 'reshape'; what computes with it is a function, flow.reshape(x)", body [[
>>  local y = x:reshape(3, 1)
  return y]])
    golden("'x' is a graph value and has no 'unsqueeze'; what computes with it is a function, flow.expand_dims(x)",
      body [[
>>  local y = x:unsqueeze(0)
  return y]])
    golden_start("'x' is a graph value and has no 'shapes'; did you mean 'shape'?", body [[
>>  local n = x.shapes[0]
  return n]])
    golden("'x' is a graph value with no data, so it has no element [x]; flow.where and flow.masked_fill choose by a "
      .. "mask, and flow.gather takes rows", body(">>  local y = x[x]\n  return y"))
    for key, named in pairs { ["0"] = "0", ["np.zeros { 2 }"] = "an ndarray float32 (2)" } do
      golden("'x' is a graph value with no data, so it has no element " .. named .. "; x:slice(\"0, 1:3\") and "
        .. "flow.gather take parts of it, and flow.dim_gather one element of each row",
        body(">>  local y = x[" .. key .. "]\n  return y"))
    end
  end)
end)

describe("a word that an object lacks", function()
  it("leads to ours, where other libraries have it", function()
    golden("an optimizer has no 'step'; optimizer:minimize(loss) in the body of a train job says what is trained, and "
      .. "each call of the job is a step", [[
>>flow.optimizer.SGD(0.1):step()]])
    golden("an optimizer has no 'lr'; it keeps the rate that it was made with, or a schedule that goes by the step; a "
      .. "rate that the script sets is an input of the job, flow.optimizer.SGD(rate), and a job that is defined again "
      .. "with another one keeps its weights", [[
>>print(flow.optimizer.SGD(0.1).lr)]])
    golden("an optimizer has no 'momentum'; it keeps the options that it was made with to itself; a job that is "
      .. "defined again with others keeps its weights", [[
>>print(flow.optimizer.SGD(0.1).momentum)]])
    golden("a checkpoint has no 'restore'; check_point:load(path) reads one", [[
>>flow.train.CheckPoint():restore("x")]])
    golden("a data set has no 'shuffle'; flow.data.Dataset(arrays, size, { shuffle = true }) takes its rows in random "
      .. "order", [[
>>flow.data.Dataset({ np.ones { 4 } }, 2):shuffle()]])
    golden("a schedule has no 'get_lr'; what it gives is rate:at(step)", [[
>>flow.optimizer.CosineScheduler(0.1, 5):get_lr()]])
    golden("a job has no 'getParameters'; flow.get_all_variables() has all variables, and flow.load_variables(values) "
      .. "sets them", [[
local job = flow.global_function { name = "j", inputs = { x = tp.Numpy.Placeholder({ 1 }) }, returns = tp.Numpy } (
  function(x) return x end)
>>job:getParameters()]])
    golden("a job has no 'weights'; flow.get_all_variables() has all variables, and flow.load_variables(values) sets "
      .. "them", [[
local job = flow.global_function { name = "j" } (function() end)
>>print(job.weights)]])
    golden("a job has no 'predict'; a job is called, job(x)", [[
local job = flow.global_function { name = "j", inputs = { x = tp.Numpy.Placeholder({ 1 }) }, returns = tp.Numpy } (
  function(x) return x end)
>>job:predict(np.ones({ 1 }))]])
  end)

  it("leads to the nearest method, where it is misspelt", function()
    golden("an optimizer has no 'minimise'; did you mean minimize?", [[
>>flow.optimizer.SGD(0.1):minimise()]])
    golden("a checkpoint has no 'sav'; did you mean save?", [[
>>flow.train.CheckPoint():sav("x")]])
    golden("a data set has no 'batchs'; did you mean batches?", [[
>>flow.data.Dataset({ np.ones { 4 } }, 2):batchs()]])
    golden("a job has no 'sumary'; did you mean summary?", [[
local job = flow.global_function { name = "j", inputs = { x = tp.Numpy.Placeholder({ 1 }) }, returns = tp.Numpy } (
  function(x) return x end)
>>job:sumary()]])
    golden("the handle of a watch has no 'of'; did you mean off?", [[
local job = flow.global_function { name = "j", inputs = { x = tp.Numpy.Placeholder({ 1 }) }, returns = tp.Numpy } (
  function(x) return flow.nn.relu(x, { name = "y" }) end)
>>job:watch("y", print):of()]])
  end)

  it("is a method, which is called with a colon", function()
    local job = [[
local job = flow.global_function { name = "j", inputs = { x = tp.Numpy.Placeholder({ 1 }) } } (
  function(x) return flow.nn.relu(x, { name = "y" }) end)
]]
    for call, method in pairs {
      ["job.prepare()"] = "job:prepare", ["job.summary()"] = "job:summary", ["job.dot('x')"] = "job:dot",
      ["job.watch('y', print)"] = "job:watch", ["job:prepare().publish()"] = "prepared:publish",
      ["job(np.ones({ 1 })).get()"] = "pending:get", ["job:watch('y', print).off()"] = "watch:off",
      ["flow.data.Dataset({ np.ones { 4 } }, 2).batches()"] = "dataset:batches",
      ["flow.spawn(function() end).done()"] = "task:done",
    } do
      golden(method .. " is a method: call it with ':'", job .. ">>" .. call)
      flow.clear_default_session()
    end
  end)

  it("cannot be set: it would do nothing", function()
    golden("an optimizer has no 'lr'; it keeps the rate that it was made with, or a schedule that goes by the step; a "
      .. "rate that the script sets is an input of the job, flow.optimizer.SGD(rate), and a job that is defined again "
      .. "with another one keeps its weights", [[
local opt = flow.optimizer.SGD(0.1)
>>opt.lr = 0]])
    golden("a checkpoint has no 'every' that can be set; what it does was said when it was made, and what a script "
      .. "notes about it goes into a table of its own", [[
local check_point = flow.train.CheckPoint()
>>check_point.every = 10]])
    golden_start("a schedule has no 'last_epoch' that can be set; ", [[
local rate = flow.optimizer.CosineScheduler(0.1, 5)
>>rate.last_epoch = 3]])
    local job = [[
local job = flow.global_function { name = "j", inputs = { x = tp.Numpy.Placeholder({ 1 }) } } (
  function(x) return flow.nn.relu(x, { name = "y" }) end)
]]
    golden_start("a job has no 'foo' that can be set; ", job .. ">>job.foo = 1")
    golden_start("a job has no 'summary' that can be set; ", job .. ">>job.summary = print")
    golden_start("a job has no '1' that can be set; ", job .. ">>job[1] = 2")
    golden("a job has no 'training'; a job trains when its type is \"train\", one step at each call; another of type "
      .. "\"predict\" shares its variables by their names", job .. ">>job.training = false")
    golden_start("the handle of a watch has no 'enabled' that can be set; ", job .. [[
>>job:watch("y", print).enabled = false]])
  end)

  it("is nil, where it is near to none", function()
    assert.is_nil(flow.optimizer.SGD(0.1).nothing)
  end)
end)

describe("an error", function()
  it("is a table with a code, which may be joined to strings", function()
    local _, _, problem = told(">>flow.nn.relu(1)")
    assert.equal("wrong_state", problem.code)
    assert.equal("user.lua:1", problem.where)
    assert.is_true(flow.is_error(problem))
    assert.equal("string", type("so: " .. problem))
  end)

  it("of the user's own code in a body stays what it is", function()
    local text, place = told(body [[
>>  local y = x.shape.nothing.more
  return y]])
    assert.equal(place .. "attempt to index field 'nothing' (a nil value)", text)
  end)
end)
