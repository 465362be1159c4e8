-- What a user is told about the body of a job: while it is traced, and about what came out of it. See golden.lua.
local flow = require "moonflow"
local goldens = require "golden"

local np = flow.np
local told, golden, golden_start, body = goldens.told, goldens.whole, goldens.start, goldens.body

before_each(goldens.begin)
teardown(goldens.finish)

describe("inside a body", function()
  it("a wrong shape names op, name, shapes and line", function()
    golden("flow.matmul: b is (3), wanted a matrix or a stack of them; flow.expand_dims(b, -1) makes one of a vector",
      body [[
>>  local y = flow.matmul(x, flow.zeros({ 3 }))]])
    golden("flow.reshape: argument 3 ('name') must be a string, got 3; several numbers are one argument as a list, "
      .. "such as { 2, 3 }", body [[
>>  local y = flow.reshape(x, 2, 3)]])
    golden("matmul 'hidden': inner sizes differ: a is (100, 784), b is (512, 28) transposed, so 784 against 28", body [[
  local w = flow.get_variable("w", { shape = { 512, 28 }, initializer = flow.zeros_initializer() })
>>  local y = flow.matmul(x, w, { transpose_b = true, name = "hidden" })
  return y]])
  end)

  it("a tail call does not hide the line", function()
    local text, place = told [[
local function layer(x)
  local y = flow.nn.relu(x)
>>  return flow.reshape(y, { 3, 3 })
end
local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 4 }) } } (function(x)
  return layer(x)
end)]]
    assert.equal(place .. "reshape 'Reshape_0': ", text:sub(1, #place + 21), text)
  end)

  it("nor does one of Lua's own functions, which LuaJIT has as bytecode, when it runs after such a call", function()
    local text, place = told [[
local job = flow.global_function {
  inputs = { x = tp.Numpy.Placeholder({ 2, 3, 4 }), y = tp.Numpy.Placeholder({ 2, 4 }, { dtype = flow.int32 }) },
} (function(x, y)
>>  return flow.nn.CrossEntropyLoss(x, y)
end)]]
    assert.equal(place .. "flow.nn.CrossEntropyLoss: ", text:sub(1, #place + 26), text)
  end)

  it("an unknown option is named, with what was meant", function()
    golden("flow.layers.conv2d has no option 'stride'; did you mean 'strides'?", [[
local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 1, 1, 8, 8 }) } } (function(x)
>>  local y = flow.layers.conv2d(x, 4, 3, { stride = 2 })
  return y
end)]])
    golden("flow.layers.dense has no option 'kernel_initialiser'; did you mean 'kernel_initializer'?", body [[
>>  local y = flow.layers.dense(x, 4, { kernel_initialiser = flow.zeros_initializer() })
  return y]])
    golden("flow.layers.dense has no option 'initializer'; did you mean 'kernel_initializer'?", body [[
>>  local y = flow.layers.dense(x, 4, { initializer = flow.zeros_initializer() })
  return y]])
    golden("flow.layers.dense: argument 10 ('name') must be a string, got 5", body [[
>>  local y = flow.layers.dense(x, 4, { name = 5 })
  return y]])
    golden_start("flow.layers.dense: argument 5 ('kernel_initializer') must be an initializer, got 'zeros'; write what "
      .. "makes it, such as flow.zeros_initializer()", body [[
>>  local y = flow.layers.dense(x, 4, { kernel_initializer = "zeros" })
  return y]])
    golden("flow.nn.softmax has no option 'dim'; did you mean 'axis'?", body [[
>>  local y = flow.nn.softmax(x, { dim = -1 })
  return y]])
    golden("flow.nn.dot_product_attention has no option 'is_causal'; did you mean 'causal'?", body [[
  local heads = flow.reshape(x, { 1, 1, 1, -1 })
>>  return flow.nn.dot_product_attention(heads, heads, heads, { is_causal = true })]])
    for layer, size in pairs { dense = "3", conv2d = "3, 3" } do
      golden("flow.layers." .. layer .. " has no option 'bias'; did you mean 'use_bias'?",
        body(">>  return flow.layers." .. layer .. "(x, " .. size .. ", { bias = false })"))
    end
    golden("flow.nn.dropout has no option 'p'; did you mean 'rate'?", body [[
>>  return flow.nn.dropout(x, { p = 0.1 })]])
    golden("flow.layers.embedding has no option 'padding_idx'; times flow.cast(flow.expand_dims(ids:ne(0), -1), "
      .. "flow.float) the vectors of the padding, here of id 0, are 0 and have no gradient", body [[
>>  return flow.layers.embedding(x, 10, 4, { padding_idx = 0 })]])
    golden("flow.layers.lstm has no option 'hidden_size'; did you mean 'units'?", body [[
>>  return flow.layers.lstm(x, { hidden_size = 4 })]])
    golden("flow.layers.lstm has no option 'initial_state'; did you mean 'initial_hidden'?", body [[
>>  return flow.layers.lstm(x, 4, { initial_state = x })]])
    golden("flow.layers.gru has no option 'initial_hidden'; did you mean 'initial_state'?", body [[
>>  return flow.layers.gru(x, 4, { initial_hidden = x })]])
    golden("flow.layers.conv2d_transpose has no option 'output_padding'; did you mean 'output_shape'?", body [[
>>  return flow.layers.conv2d_transpose(x, 4, 3, { output_padding = 1 })]])
    golden("flow.nn.relu has no option 'dim'; its parameters are x, name", body [[
>>  local y = flow.nn.relu(x, { dim = -1 })
  return y]])
    golden("flow.nn.relu has no option 'nam'; did you mean 'name'?", body [[
>>  local y = flow.nn.relu(x, { nam = "r" })
  return y]])
  end)

  it("a wrong argument is named", function()
    golden("flow.layers.dense: argument 1 ('inputs') must be a blob, got nil", body [[
>>  local y = flow.layers.dense(nil, 4)
  return y]])
    golden("flow.layers.dense: argument 2 ('units') must be an integer, got 2.5", body [[
>>  local y = flow.layers.dense(x, 2.5)
  return y]])
    golden("flow.layers.dense: argument 2 ('units') must be an integer, got 1e+300", body [[
>>  local y = flow.layers.dense(x, 1e300)
  return y]])
    golden("flow.nn.sigmoid: argument 1 ('x') must be a blob, got nil", body [[
>>  local y = flow.nn.sigmoid()
  return y]])
    golden("flow.math.sigmoid: argument 1 ('x') must be a blob, got nil", body [[
>>  local y = flow.math.sigmoid()
  return y]])
    golden("flow.clip has no option 'mim'; did you mean 'min'?", body [[
>>  local y = flow.clip(x, { mim = 0, max = 1 })
  return y]])
    golden("flow.math.add_n: entry 2 of inputs must be a blob, got 3", body [[
>>  local y = flow.math.add_n({ x, 3 })
  return y]])
    golden("flow.layers.dense: argument 2 ('units') must be an integer, got a table", body [[
>>  local y = flow.layers.dense(x, {})
  return y]])
    golden("flow.layers.dense: 'units' is given by position and as an option", body [[
>>  local y = flow.layers.dense(x, 4, { units = 5 })
  return y]])
    golden_start("flow.nn.relu takes at most 2 arguments (", body [[
>>  local y = flow.nn.relu(x, "a", 3)
  return y]])
    golden("flow.layers.dense: argument 1 ('inputs') must be a blob, got an ndarray float32 (2, 2); inside a job body "
      .. "values are blobs: take it as an input of the job, or where it stays the same for ever as the constant "
      .. "flow.identity(it)", body [[
>>  local y = flow.layers.dense(np.zeros({ 2, 2 }), 4)
  return y]])
  end)

  it("two names alike are refused", function()
    golden("the name 'r' is taken in this job by the op at user.lua:2; give this one another name", body [[
  local y = flow.nn.relu(x, { name = "r" })
>>  y = flow.nn.relu(y, { name = "r" })
  return y]])
    golden("the name 'x' is taken in this job by the input at user.lua:1; give this one another name", body [[
>>  return flow.nn.relu(x, { name = "x" })]])
    golden("the name 'v' is taken in this job by the variable at user.lua:2; give this one another name", body [[
  local v = flow.get_variable("v", { shape = { 1 }, initializer = flow.zeros_initializer() })
>>  return flow.nn.relu(x + v, { name = "v" })]])
    golden("flow.get_variable: the name 'x' is taken in this job by the input at user.lua:1; give one of them another "
      .. "name", body [[
>>  return x * flow.get_variable("x", { shape = { 1 }, initializer = flow.zeros_initializer() })]])
    golden("flow.layers.dense: the name 'd-weight' is taken in this job by the op at user.lua:2; give one of them "
      .. "another name", body [[
  local y = flow.nn.relu(x, { name = "d-weight" })
>>  return flow.layers.dense(y, 4, { name = "d" })]])
    golden("flow.layers.dense: variable 'd-weight' already exists in this job (made at user.lua:2); give the layer "
      .. "another name, or share its variables on purpose, in flow.scope.reuse_variables", body [[
  local y = flow.layers.dense(x, 784, { name = "d" })
>>  y = flow.layers.dense(y, 784, { name = "d" })
  return y]])
    -- Those of layers that begin with another op than that of their variables, too.
    for _, layer in ipairs { "dense(z, 4, ", "gru(z, 4, ", "lstm(z, 4, " } do
      local call = "flow.layers." .. layer .. "{ name = \"d\" })"
      golden(layer:gsub("(%l+).*", "flow.layers.%1") .. ": variable 'd-weight' already exists in this job (made at "
        .. "user.lua:3); give the layer another name, or share its variables on purpose, in flow.scope.reuse_variables",
        body("  local z = flow.expand_dims(x, 0)\n  " .. call .. "\n>>  " .. call .. "\n  return x"))
    end
  end)

  it("variables keep their shape when a job is defined again", function()
    golden("flow.layers.dense: variable 'd-weight' is float32 (2, 4) since user.lua:3, this asks for float32 (3, 4); "
      .. "it lives on when its job is defined again, so another shape or dtype needs another name, or "
      .. "flow.forget_variables(\"d\") before the definition", [[
local function define(units)
  return flow.global_function { name = "net", inputs = { x = tp.Numpy.Placeholder({ 1, 4 }) } } (function(x)
>>  return flow.layers.dense(x, units, { name = "d" })
  end)
end
define(2)
define(3)]])
  end)

  it("variables must agree with what they are", function()
    golden("flow.get_variable: variable 'w' is float32 (2, 2) since user.lua:2, this asks for float32 (3)", body [[
  flow.get_variable("w", { shape = { 2, 2 }, initializer = flow.zeros_initializer() })
>>  flow.get_variable("w", { shape = { 3 } })]])
    golden_start("flow.get_variable: variable 'v' has no initializer, and the job has no default one", body [[
>>  flow.get_variable("v", { shape = { 3 } })]])
    golden("flow.get_variable: there is no variable 'v' yet; give a shape to make it", body [[
>>  flow.get_variable("v")]])
    golden("flow.get_variable: there is no variable 'wieght' yet; did you mean 'weight'?", body [[
  flow.get_variable("weight", { shape = { 2, 2 }, initializer = flow.zeros_initializer() })
>>  flow.get_variable("wieght")]])
  end)

  it("a blob is no number, no function and no data", function()
    golden("'<' and '<=' cannot compare graph values, they have no data yet; use a:less(b), a:less_equal(b), "
      .. "a:greater(b) or a:greater_equal(b), and flow.where to choose by it; `if` cannot ask for it", body [[
  local y = x + 1
>>  if x < y then return x end]])
    golden("'Add_0' is a graph value with no data, so it has no 'mean'; return it from the job or watch it with "
      .. "flow.watch, or compute with it by flow.math.reduce_mean(x)", body [[
  local y = x + 1
>>  print(y:mean())]])
    golden("'x' is a graph value with no data, so it has no 'copy'; return it from the job or watch it with "
      .. "flow.watch", body [[
>>  local y = x:copy() - x]])
    golden("'x' is a graph value with no data, so it has no 'item'; return it from the job or watch it with flow.watch",
      body [[
>>  local y = x:item()]])
    golden("'x' is a graph value, not a function", body [[
>>  x(1)]])
    golden("operator '+' wants blobs, arrays or numbers, got a table; np.array(it) is a constant of the job, and goes "
      .. "here", body [[
>>  local y = x + { 1, 2, 3 }
  return y]])
    golden("operator '*' wants blobs, arrays or numbers, got a table; flow.stack(it) and flow.concat(it) make one of "
      .. "several", body [[
>>  local y = { x, x } * x
  return y]])
    golden("operator '+' wants blobs, arrays or numbers, got 'text'", body [[
>>  local y = x + "text"
  return y]])
  end)

  it("a blob of another job is refused", function()
    golden("flow.watch: 'kept' is a value of the job 'first' (made at user.lua:4); a job sees only its own values", [[
local kept
local spec = { inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.None }
local first = flow.global_function(spec, function(x)
  kept = flow.nn.relu(x, { name = "kept" })
end)
local second = flow.global_function(spec, function(x)
>>  flow.watch(kept, print)
end)]])
    golden_start("operator '+': 'kept' is a value of the job 'first'", [[
local kept
local spec = { inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.None }
local first = flow.global_function(spec, function(x)
  kept = flow.nn.relu(x, { name = "kept" })
end)
local second = flow.global_function(spec, function(x)
>>  local y = x + kept
end)]])
  end)

  it("watch takes a function of one parameter, or a prompt", function()
    golden("flow.watch: the handler must be a function or a prompt, got 5", body [[
>>  flow.watch(x, 5)]])
    golden("flow.watch: the handler takes one parameter, this one has 2", body [[
>>  flow.watch(x, function(a, b) return a, b end)]])
    golden("flow.watch: a watched value is a Numpy, ListNumpy or ListListNumpy, not None", body [[
>>  flow.watch(x, tp.None, print)]])
    golden("flow.watch has no option 'evry'; did you mean 'every'?", body [[
>>  flow.watch(x, print, { evry = 2 })]])
    golden("flow.watch: argument 1 ('value') must be a blob, got nil", body [[
>>  flow.watch(nil, print)]])
  end)

  it("so does the watch of a job that is there already", function()
    local job = [[
local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Numpy } (function(x)
  return flow.nn.relu(x, { name = "y" })
end)
]]
    golden("job:watch: the handler must be a function, got 'y:'", job .. [[
>>job:watch("y", "y:")]])
    golden("job:watch: the name must be a string, got 7", job .. [[
>>job:watch(7, print)]])
  end)

  it("a colon in the place of a point is told", function()
    for call, where in pairs {
      ["flow.nn:relu(x)"] = "flow.nn.relu", ["flow:reshape(x, { 1, 2 })"] = "flow.reshape",
      ["flow.layers:dense(x, 5)"] = "flow.layers.dense", ["np:zeros({ 2 })"] = "np.zeros",
      ["flow.optimizer:SGD(0.1)"] = "flow.optimizer.SGD",
    } do
      golden(where .. " is no method: call it with '.' in place of ':'", body(">>  local y = " .. call))
    end
    golden("np.sum wants an ndarray, a table or a number, got flow.np, as a call with ':' in place of '.' gives it",
      ">>np:sum({ 1, 2 })")
  end)

  it("and so is a point in the place of a colon", function()
    golden("generator:integers is a method: call it with ':'", ">>np.random.default_rng(3).integers(0, 10)")
    golden("a:eq is a method: call it with ':'", ">>np.ones({ 2 }).eq(1)")
    golden("config:default_data_type is a method: call it with ':'", [[
local config = flow.FunctionConfig()
>>config.default_data_type = flow.float64]])
    golden("config.train:primary_lr is a method: call it with ':'", [[
local config = flow.FunctionConfig()
>>config.train.primary_lr = 0.1]])
  end)

  it("a function that is put together from ops is named with the op that fails", function()
    local function job(call)
      return ([[
local job = flow.global_function { inputs = {
  x = tp.Numpy.Placeholder({ 2, 3 }), i = tp.Numpy.Placeholder({ 3 }, flow.int32),
} } (function(x, i)
>>  local y = %s
end)]]):format(call)
    end
    golden("flow.nn.KLDivLoss: xlogy 'Xlogy_0': needs float32 or float64, got int32 (2, 3); "
      .. "cast it first", job "flow.nn.KLDivLoss(x, flow.cast(x, flow.int32))")
    golden("flow.math.unsorted_segment_mean: unsorted_segment_sum 'UnsortedSegmentSum_0': segment_ids are (3), they "
      .. "must be axes of data (2, 3) from axis 0 on", job "flow.math.unsorted_segment_mean(x, i, 3)")
    golden("flow.layers.dense: inputs must be of a floating dtype, 'Cast_0' is int32 (2, 3); flow.cast(inputs, "
      .. "flow.float) makes it one", job "flow.layers.dense(flow.cast(x, flow.int32), 4, { name = 'd' })")
  end)

  it("a variable and a slot of an optimizer are never one", function()
    local function trained(names, optimizer)
      return ([[
flow.global_function { type = "train", inputs = { x = tp.Numpy.Placeholder({ 4 }) } } (function(x)
  local all = {}
  for i, name in ipairs(%s) do all[i] = flow.get_variable(name, { 4 }, { initializer = flow.ones_initializer() }) end
  flow.optimizer.%s:minimize(flow.math.reduce_mean(all[1] * all[2] * x))
end)]]):format(names, optimizer)
    end
    golden("flow.optimizer.Adam: its own 'w-v' would be the variable of that name, made at user.lua:3; give that "
      .. "another name", (trained('{ "w", "w-v" }', "Adam(0.1)"):gsub("\n  (flow.optimizer)", "\n>>  %1")))
    golden("flow.get_variable: 'w-momentum' is the name of what a train job keeps for itself, such as the slots of its "
      .. "optimizer; give the variable another one", trained('{ "w", "u" }', "SGD(0.1)") .. "\n"
      .. (trained('{ "w", "w-momentum" }', "SGD(0.1, { momentum = 0 })"):gsub("\n  (for i)", "\n>>  %1")))
  end)

  it("what one word of a variable cannot change is named", function()
    golden("flow.get_variable: variable 'w' is trainable since user.lua:2, and is so for the whole job; this asks for "
      .. "trainable = false", [[
flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 4 }) } } (function(x)
  local w = flow.get_variable("w", { 4 }, { initializer = flow.ones_initializer() })
>>  return x * w + flow.get_variable("w", { 4 }, { trainable = false })
end)]])
    golden("flow.load_variables: variables have names, one of the keys is 1", [[
flow.global_function {} (function() return flow.get_variable("w", { 2 }, { initializer = flow.ones_initializer() }) end)
>>flow.load_variables({ np.ones({ 2 }) })]])
    golden("flow.global_function: inputs.x has a hole: nothing stands at 2, but something at 3", [[
local T = tp.Numpy.Placeholder({ 2 })
>>flow.global_function { inputs = { x = { T, nil, T } } } (function(x) return x[1] end)]])
    golden("flow.split: 9000 parts are more than the 7000 values that a function may give", [[
flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 9000 }) } } (function(x)
>>  return flow.split(x, 9000)
end)]])
  end)

  it("a loss of probabilities wants a target like its input", function()
    for _, name in ipairs { "BCELoss", "BCEWithLogitsLoss", "KLDivLoss" } do
      golden("flow.nn." .. name .. ": target 't' is (4), wanted the shape of input 'x', (4, 1); flow.squeeze, "
        .. "flow.expand_dims or flow.reshape makes them alike", ([[
local job = flow.global_function { inputs = {
  x = tp.Numpy.Placeholder({ 4, 1 }), t = tp.Numpy.Placeholder({ 4 }),
} } (function(x, t)
>>  return flow.nn.%s(x, t)
end)]]):format(name))
    end
  end)

  it("a convolution names the layouts that it has", function()
    golden("flow.layers.conv1d: data_format is 'NCHW', wanted 'NCW' or 'NWC'", [[
local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 1, 2, 8 }) } } (function(x)
>>  flow.layers.conv1d(x, 4, 3, { data_format = "NCHW" })
end)]])
  end)

  it("a value is cut within it", function()
    golden("slice: index 100 is out of range for axis 0 of size 100 (0..99; arrays count from 0, Lua tables from 1)",
      body [[
>>  local y = x:slice(100)]])
    golden("slice \"None, 0\": 'None' is not start, start:stop or start:stop:step; np.expand_dims(a, axis) adds an "
      .. "axis, and in a job flow.expand_dims", body [[
>>  local y = x:slice("None, 0")]])
    golden("slice: the entry of axis 0 is a blob; it wants a number or { start, stop, step }, known before a run, and "
      .. "flow.gather takes places that are values", body [[
>>  local y = x:slice(x)]])
    golden("blob:slice is a method: call it with ':'", body [[
>>  local y = x.slice("0")]])
  end)

  it("slices are lists", function()
    golden_start("flow.slice: argument 2 ('begin') must be ", body [[
>>  local y = flow.slice(x, "abc", { 1 })]])
    golden("flow.slice_v2: the slice of axis 0 has 'start', wanted { start, stop, step }", body [[
>>  local y = flow.slice_v2(x, { { start = 0 } })]])
    golden("flow.slice_v2: the slice of axis 1 is 1, wanted { start, stop, step }", body [[
>>  local y = flow.slice_v2(x, { { 0 }, 1 })]])
  end)

  it("einsum takes its values in one way", function()
    golden("flow.einsum: the values stand in a table or one by one, not both", body [[
>>  local y = flow.einsum("i,i->", { x, x }, x)]])
  end)

  it("scopes check what they are given", function()
    golden("flow.scope.placement: the device must be \"cpu\" or \"gpu\", got 'gpuu'; did you mean 'gpu'?", body [[
>>  flow.scope.placement("gpuu", "0:0", function() return x end)]])
    golden_start("flow.scope.namespace: the last argument must be the function that runs in the scope, got nil", body [[
>>  flow.scope.namespace("a")]])
    golden("flow.scope.placement: the list of devices is empty", body [[
>>  flow.scope.placement("cpu", {}, function() return x end)]])
  end)

  it("numbers that would make every weight a NaN are refused where they are given", function()
    for program, expected in pairs {
      ["flow.optimizer.SGD(0 / 0)"] = "flow.optimizer.SGD: a learning rate must be a finite number, got nan",
      ["flow.optimizer.Adam(1 / 0)"] = "flow.optimizer.Adam: a learning rate must be a finite number, got inf",
      ["flow.optimizer.SGD(0.1, { momentum = 1 / 0 })"] =
        "flow.optimizer.SGD: argument 2 ('momentum') must be a finite number, got inf",
      ["flow.optimizer.Adam(0.1, { beta1 = 2 })"] = "flow.optimizer.Adam: beta1 must lie in [0, 1), got 2",
      ["flow.optimizer.AdamW(0.1, { beta2 = 1 })"] = "flow.optimizer.AdamW: beta2 must lie in [0, 1), got 1",
      ["flow.optimizer.Adam(0.1, { weight_decay = 0.01 })"] =
        "flow.optimizer.Adam has no option 'weight_decay'; flow.optimizer.AdamW has it",
      ["flow.optimizer.SGD { lr_scheduler = 0.1, weight_decay = 0.01 }"] =
        "flow.optimizer.SGD has no option 'weight_decay'; regularizer = flow.regularizers.l2(rate) adds it to the "
        .. "gradients, as PyTorch's SGD and Torch7's do, and flow.optimizer.SGDW keeps it out of the momentum"
        .. "; where gradients are clipped the decay counts in their norm, and PyTorch's comes after clip_grad_norm_",
      ["flow.optimizer.SGD { learningRate = 0.1 }"] =
        "flow.optimizer.SGD has no option 'learningRate'; the learning rate is the first argument, or 'lr_scheduler'",
      ["flow.optimizer.SGD(0.1, { learningRateDecay = 1e-7 })"] = "flow.optimizer.SGD has no option "
        .. "'learningRateDecay'; the rate flow.optimizer.InverseTimeScheduler(rate, 1, decay) falls so",
      ["flow.optimizer.RMSProp(0.1, { weight_decay = 0.01 })"] = "flow.optimizer.RMSProp has no option 'weight_decay'; "
        .. "regularizer = flow.regularizers.l2(rate) adds it to the gradients",
      ["flow.optimizer.Adam { lr = 0.1 }"] =
        "flow.optimizer.Adam has no option 'lr'; the learning rate is the first argument, or 'lr_scheduler'",
      ["flow.optimizer.Adam(0.1, { betas = { 0.9, 0.99 } })"] =
        "flow.optimizer.Adam has no option 'betas'; they are 'beta1' and 'beta2'",
      ["flow.optimizer.AdamW(0.1, { amsgrad = true })"] = "flow.optimizer.AdamW has no option 'amsgrad'; it is not "
        .. "there, and PyTorch leaves it out too where nothing is said; a train job with flow.gradients and "
        .. "flow.assign has a rule of its own",
      ["flow.optimizer.SGD(0.1, { max_grad_norm = 1 })"] = "flow.optimizer.SGD has no option 'max_grad_norm'; "
        .. "grad_clipping = flow.optimizer.grad_clipping.by_global_norm(x) does it",
      ["flow.np.zeros({ 3, 3 }):slice({ 0, 2 }, { stip = 2 })"] = "slice: the entry of axis 1 has 'stip'; it is "
        .. "{ start, stop, step }",
      ["flow.np.zeros({ 3, 3 }):take({ 0 }, { axsi = 1 })"] = "a:take has no option 'axsi'; did you mean 'axis'?",
      ["flow.np.take(flow.np.zeros({ 3, 3 }), { 0 }, { 1 })"] = "a:take wants the number of an axis, got a table",
      ["flow.np.zeros({ 3, 3 }):set(0, '0, 1:3', 5)"] = "slice: the entry of axis 1 is '0, 1:3'; a text stands alone "
        .. "and is for all axes, as in a:slice(\"0, 1:3\") and a:set(\"0, 1:3\", value), and among numbers 1:3 is the "
        .. "table { 1, 3 }",
      ["flow.optimizer.LazyAdam(0.1, { beta2 = -1 })"] = "flow.optimizer.LazyAdam: beta2 must lie in [0, 1), got -1",
      ["flow.optimizer.CosineScheduler(-1, 10)"] = "flow.optimizer.CosineScheduler: base_lr must be 0 or more, got -1",
      ["flow.optimizer.PiecewiseConstantScheduler({ 2 }, { 0.1, 0 / 0 })"] =
        "flow.optimizer.PiecewiseConstantScheduler: values are finite and 0 or more, got nan",
      ["flow.optimizer.AdamW(0.1, { weight_decay = 0.1, weight_decay_excludes = true })"] =
        "flow.optimizer.AdamW: weight_decay_excludes wants parts of names, got true",
      ["flow.np.meshgrid(nil, flow.np.ones({ 3 }))"] = "np.meshgrid: argument 1 is nil, wanted an array",
      ["flow.np.gradient(flow.np.array(5))"] = "np.gradient: there is no axis to go along",
      ["flow.zip({ 1, nil, 3 })"] = "flow.zip: the list has a hole: nothing stands at 2, but something at 3",
      ["flow.np.roll(flow.np.ones({ 3 }), 1, { 'a' })"] =
        "np.roll: argument 3 ('axis'): entry 1 of a list is 'a', wanted numbers",
      ["flow.optimizer.CosineScheduler(1 / 0, 10)"] =
        "flow.optimizer.CosineScheduler: argument 1 ('base_lr') must be a finite number, got inf",
      ["flow.optimizer.grad_clipping.by_global_norm(0 / 0)"] =
        "flow.optimizer.grad_clipping.by_global_norm: clip_norm must be above 0, got nan",
      ["flow.regularizers.l2(1 / 0)"] = "flow.regularizers.l2: argument 1 ('l') must be a finite number, got inf",
      ["flow.random_normal_initializer(0, 1 / 0)"] =
        "flow.random_normal_initializer: argument 2 ('stddev') must be a finite number, got inf",
      ["flow.xavier_uniform_initializer('HNWC')"] = "flow.xavier_uniform_initializer: data_format must be one of "
        .. "NCDHW, NCHW, NCW, NDHWC, NHWC, NWC, got 'HNWC'; did you mean 'NHWC'?",
    } do
      local text, place = told(">>" .. program)
      assert.equal(place .. expected, (text:gsub("got %-nan", "got nan")))
    end
    golden("flow.nn.L1Loss has no option 'weight'; its parameters are input, target, reduction, name", body [[
>>  local y = flow.nn.L1Loss(x, x, { weight = { 1, 2 } })
  return y]])
    golden("flow.nn.BCELoss: argument 3 ('weight') must be a blob, got a table; np.array(it) is a constant of the job, "
      .. "and goes here", body [[
>>  local y = flow.nn.BCELoss(x, x, { weight = { 1, 2 } })
  return y]])
    golden("flow.nn.dropout: argument 2 ('rate') must be a finite number, got inf", body [[
>>  local y = flow.nn.dropout(x, 1 / 0)
  return y]])
  end)

  it("minimize wants one optimizer and losses that are alike", function()
    local function train(text)
      return "flow.global_function({ type = 'train', inputs = { x = tp.Numpy.Placeholder({ 2 }) } }, function(x)\n"
        .. text .. "\nend)"
    end
    golden("flow.optimizer.Adam:minimize: the job 'job@user.lua:1' already minimises its loss (since user.lua:2). "
      .. "Losses that are to be added up go to minimize as a list, optimizers for several groups of variables to "
      .. "flow.optimizer.CombinedOptimizer, and a loss that only some variables are to follow into a job of its own",
      train [[
  flow.optimizer.SGD(0.1):minimize(x)
>>  flow.optimizer.Adam(0.1):minimize(x)]])
    golden("flow.optimizer.SGD:minimize: the losses of a job must be alike: 'x' is float32 (2), 'Reduce_mean_0' is "
      .. "float32 (); flow.math.reduce_mean(loss) of each makes one number of it", (train [[
>>  flow.optimizer.SGD(0.1):minimize({ x, flow.math.reduce_mean(x, { name = "Reduce_mean_0" }) })]]))
    golden("flow.optimizer.SGD:minimize: the losses of a job must be alike: 'x' is float32 (2), 'wide' is float64 (2); "
      .. 'flow.cast(loss, "float32") makes them so', (train [[
>>  flow.optimizer.SGD(0.1):minimize({ x, flow.cast(x, "float64", { name = "wide" }) })]]))
    golden("flow.optimizer.SGD:minimize: the list of losses has a hole: nothing stands at 2, but something at 3",
      train [[
>>  flow.optimizer.SGD(0.1):minimize({ x, nil, x })]])
    golden_start("flow.optimizer.SGD: lr_scheduler must be a scheduler", train [[
>>  flow.optimizer.SGD("fast"):minimize(x)]])
    golden("flow.optimizer.SGD: argument 1 ('lr_scheduler') must be a learning rate such as 0.001 or a scheduler, "
      .. "got nil", train [[
>>  flow.optimizer.SGD():minimize(x)]])
    golden("flow.optimizer.SGD: argument 5 ('grad_clipping') must be a clipping such as "
      .. "flow.optimizer.grad_clipping.by_global_norm(1), got 0.5", train [[
>>  flow.optimizer.SGD(0.1, { grad_clipping = 0.5 }):minimize(x)]])
    golden("flow.layers.dense: argument 7 ('kernel_regularizer') must be a regularizer such as "
      .. "flow.regularizers.l2(0.01), got 0.01", train [[
>>  flow.layers.dense(x, 2, { kernel_regularizer = 0.01 })]])
    golden("flow.optimizer.PiecewiseConstantScheduler: 1 boundaries need 2 values, got 1", train [[
>>  flow.optimizer.PiecewiseConstantScheduler({ 5 }, { 0.1 })]])
  end)
end)

describe("a comparison by ==", function()
  it("is told what compares elements", function()
    golden("flow.where: argument 1 ('condition') must be a blob, got false; x:eq(y), x:gt(y) and their like compare "
      .. "elements, and == tells whether two values are the same one", [[
local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 1 }) }, returns = tp.Numpy } (function(x)
>>return flow.where(x == 0, x, x)
end)]])
  end)
end)

describe("a shape beyond all memory", function()
  it("is refused where it comes to be", function()
    golden("broadcast_to 'BroadcastTo_0': a size overflows: 4611686018427387904 times 4", [[
local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 1 }) }, returns = tp.Numpy } (function(x)
>>return flow.broadcast_to(x, { shape = { 2 ^ 30, 2 ^ 30, 4 } })
end)]])
  end)
end)

describe("what is under way, or is gone through,", function()
  local call = [[
local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Callback[tp.Numpy] } (
  function(x) return x end)
]]

  it("is not the result yet", function()
    local told_so = "; its result comes to a function, job(x)(function(y) ... end), or to whoever waits for it, "
      .. "job(x):get(). Of a job with `returns = tp.Numpy` the call itself gives it"
    golden("a call that is under way has no 'mean'" .. told_so, call .. ">>local y = job(np.ones({ 2 })):mean()")
    golden("a call that is under way has no '0'" .. told_so, call .. ">>local y = job(np.ones({ 2 }))[0]")
    for _, use in ipairs { "job(np.ones({ 2 })) + 1", "2 ^ job(np.ones({ 2 }))", "-job(np.ones({ 2 }))",
                           "'l ' .. job(np.ones({ 2 }))", "job(np.ones({ 2 })) < job(np.ones({ 2 }))" } do
      golden("a call that is under way is not its result yet" .. told_so, call .. ">>local y = " .. use)
    end
    flow.sync()
  end)

  it("says how to go through it", function()
    golden("a data set is gone through by its batches: for i, x, y in set:batches() do", [[
>>for i, x in flow.data.Dataset({ np.ones({ 4 }) }, 2) do print(i, x) end]])
    golden("an ndarray is no function; for its rows write: for i, row in a:rows() do", [[
>>for row in np.ones({ 4 }) do print(row) end]])
    golden("the callback of job must be a function, got an ndarray float32 (2)", call .. [[
>>job(np.ones({ 2 }))(np.ones({ 2 }))]])
    flow.sync()
  end)
end)

describe("a value of a job", function()
  local function within(lines)
    return "flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Numpy } (function(x)\n"
      .. lines .. "\nend)"
  end

  it("takes nothing at a place or under a name", function()
    golden("'x' is a graph value with no data, so nothing can be put at place 0; flow.where, flow.stack, "
      .. "flow.concat and "
      .. "flow.tensor_scatter_nd_update make a new value", within ">>x[0] = 1")
    golden_start("'x' is a graph value with no data, so nothing can be put at 'rate'; ", within ">>x.rate = 3")
    golden("'x' is a graph value, whose shape stays; flow.reshape(x, shape) is it in another shape",
      within ">>x.shape = { 6 }")
    golden("'x' is a graph value, whose name stays; flow.identity(x, { name = name }) is it under another name",
      within '>>x.name = "y"')
  end)

  it("is nothing for Lua's own functions and comparisons", function()
    local instead = "; Lua's own functions take no value of the job: flow.math has those that do, such as flow.math.exp"
    golden("bad argument #1 to 'exp' (number expected, got table)" .. instead, within [[
>>  local y = math.exp(x)
  return y]])
    golden("bad argument #1 to 'a function' (number expected, got table)" .. instead, within ">>  return math.exp(x)")
    golden("attempt to compare number with table; a value of the job is compared by x:greater(y), x:less(y), "
      .. "x:equal(y) "
      .. "and the like, and chosen by flow.where; `if` cannot ask for it, as it has no data yet", within [[
>>  if x > 0 then return x end
  return x]])
  end)

  it("is one, where an op takes one", function()
    golden("flow.math.reduce_mean: argument 1 ('x') must be a blob, got a table; flow.stack(it) and flow.concat(it) "
      .. "make "
      .. "one of several", within ">>  return flow.math.reduce_mean { x, x }")
  end)
end)

describe("an error", function()
  it("answers what strings are asked", function()
    local _, _, problem = told(">>np.zeros(-1)")
    assert.truthy(problem:find("user.lua", 1, true))
    assert.equal("user.lua:1", problem:match("^[^ ]+:%d+"))
    assert.equal(#tostring(problem), problem:len())
    assert.is_nil(problem.nothing)
  end)
end)

describe("what is not called", function()
  it("is said where a function's name or the function was meant", function()
    local function layer(options)
      return "flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 2, 3 }) }, returns = tp.Numpy } "
        .. "(function(x)\n"
        .. ">>  return flow.layers.dense(x, 2, " .. options .. ")\nend)"
    end
    golden("flow.layers.dense: argument 3 ('activation') must be a function, got 'relu'; write the function itself, "
      .. "such "
      .. "as flow.nn.relu", layer "{ activation = 'relu' }")
    golden("flow.layers.dense: argument 5 ('kernel_initializer') must be an initializer, got a function; such a "
      .. "function "
      .. "gives one when it is called, as flow.zeros_initializer() does",
      layer "{ kernel_initializer = flow.ones_initializer }")
    golden("flow.global_function: inputs.x must be a placeholder, got a table; tp.Numpy.Placeholder(it) is one of "
      .. "these "
      .. "sizes", ">>flow.global_function { inputs = { x = { 2, 3 } }, returns = tp.Numpy } (function(x) return x end)")
  end)

  it("is said of layers without a name, which jobs have in common", function()
    golden("flow.layers.dense: variable 'Dense_0-weight' is float32 (2, 3) since user.lua:1, this asks for float32 "
      .. "(2, 4); "
      .. "it lives on when its job is defined again, so another shape or dtype needs another name. It is of a layer "
      .. "without a name, and those of all jobs are numbered alike: name it, "
      .. "or flow.forget_variables(\"Dense_0\") before the definition", [[
local function body(x) return (flow.layers.dense(x, 2)) end
flow.global_function { name = "a", inputs = { x = tp.Numpy.Placeholder({ 2, 3 }) }, returns = tp.Numpy } (body)
flow.global_function { name = "b", inputs = { x = tp.Numpy.Placeholder({ 2, 4 }) }, returns = tp.Numpy } (function(x)
>>  local y = flow.layers.dense(x, 2)
  return y
end)]])
  end)
end)

describe("a list", function()
  it("of options names the parameters when none of them is near", function()
    golden_start("flow.optimizer.SGD has no option 'damping'; its parameters are lr_scheduler, momentum, ", [[
>>flow.optimizer.SGD { damping = 0.1 }]])
  end)

  it("of sizes has none left open", function()
    golden("flow.typing.Numpy.Placeholder: a list has a hole: nothing stands at 1, but something at 2; sizes cannot be "
      .. "left open", ">>tp.Numpy.Placeholder({ nil, 3 })")
    golden("flow.typing.Numpy.Placeholder: argument 1 ('shape') has a hole: nothing stands at 2, but something at 3",
      ">>tp.Numpy.Placeholder({ 2, [3] = 3 })")
    golden("np.zeros: argument 1 ('shape') has a hole: nothing stands at 1, but something at 2",
      ">>local x = np.zeros({ { [2] = 3 }, 4 })")
    golden("flow.get_variable: argument 2 ('shape') has a hole: nothing stands at 1, but something at 2", [[
local job = flow.global_function {} (function()
>>  flow.get_variable("w", { shape = { nil, 2 } })
end)]])
  end)

  it("is whole where some of its entries would be lost", function()
    golden("np.zeros: argument 1 ('shape') has an entry 0; Lua tables count from 1", ">>np.zeros({ [0] = 1, 2 })")
    golden("np.zeros: argument 1 ('shape') has the key 'dtype' among its entries",
      ">>np.zeros({ 2, dtype = flow.int32 })")
    golden("flow.optimizer.SGD: the list of variables has a hole: nothing stands at 2, but something at 3",
      ">>flow.optimizer.SGD(0.1, { variables = { 'a', nil, 'b' } })")
    golden("flow.optimizer.CombinedOptimizer: argument 1 ('optimizers') has a hole: nothing stands at 2, but something "
      .. "at 3",
      ">>flow.optimizer.CombinedOptimizer({ flow.optimizer.SGD(0.1), nil, flow.optimizer.SGD(0.2) })")
    golden("np.stack: argument 1 ('arrays') has a hole: nothing stands at 2, but something at 3",
      ">>np.stack({ np.ones { 2 }, nil, np.ones { 2 } })")
    golden("np.vstack: argument 1 ('arrays') has a hole: nothing stands at 2, but something at 3",
      ">>np.vstack({ np.ones { 2 }, nil, np.ones { 2 } })")
    golden("flow.data.Dataset: argument 1 ('arrays') has a hole: nothing stands at 2, but something at 3",
      ">>flow.data.Dataset({ np.ones { 2 }, nil, np.ones { 2 } })")
    golden("a:reshape: the list has a hole: nothing stands at 2, but something at 3",
      ">>np.ones({ 6 }):reshape({ 2, [3] = 3 })")
    golden("a:reshape: the list has a hole: nothing stands at 2, but something at 3",
      ">>np.ones({ 6 }):reshape({ 2, nil, 3 })")
    golden("Tuple: the list of types has a hole: nothing stands at 2, but something at 3",
      ">>local T = tp.Tuple { tp.Numpy, nil, tp.Numpy }")
    golden("flow.math.add_n: argument 1 ('inputs') has a hole: nothing stands at 2, but something at 3", [[
local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 2 }) } } (function(x)
>>  flow.math.add_n({ x, nil, x })
end)]])
    golden("flow.concat: argument 1 ('inputs') has a hole: nothing stands at 2, but something at 3", [[
local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 2 }) } } (function(x)
>>  flow.concat({ x, nil, x }, 0)
end)]])
  end)

  it("that holds itself has no end", function()
    for call, what in pairs {
      ["np.zeros(list)"] = "np.zeros: argument 1 ('shape')", ["np.zeros({ 2, 3 }):transpose(list)"] = "a:transpose",
      ["tp.Numpy.Placeholder(list)"] = "flow.typing.Numpy.Placeholder: argument 1 ('shape')",
    } do
      golden(what .. ": lists are nested more than 8 deep", "local list = {}; list[1] = list\n>>local x = " .. call)
    end
  end)

  it("of sizes has none that no array can have", function()
    for _, size in ipairs { 1 / 0, 2 ^ 62 } do
      golden("flow.typing.Numpy.Placeholder: shape must be a list of positive whole numbers, entry 1 is " .. size,
        (">>tp.Numpy.Placeholder({ %s })"):format(size == 1 / 0 and "1 / 0" or "2 ^ 62"))
    end
    golden("flow.typing.Numpy.Placeholder: shape must be a list of positive whole numbers, entry 1 is -1; arrays of "
      .. "several sizes are for flow.typing.ListNumpy.Placeholder", ">>tp.Numpy.Placeholder({ -1, 2 })")
  end)

  it("of what makes a job has keys", function()
    golden_start("flow.global_function: what stands at 1 needs a key, such as inputs = { x = ", [[
>>flow.global_function { { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Numpy }]])
  end)
end)

describe("outside of a body", function()
  it("ops, layers, watches and variables say where they belong", function()
    for call in ("flow.nn.relu flow.layers.dense flow.watch flow.watch_diff flow.get_variable"):gmatch("%S+") do
      golden(call .. " is used outside of a job function; it belongs in the body given to flow.global_function",
        ">>" .. call .. "(1)")
    end
  end)

  it("operators say it too", function()
    local kept
    flow.global_function { inputs = { x = flow.typing.Numpy.Placeholder({ 2 }) } } (function(x) kept = x end)
    local fine, problem = pcall(function() return kept + 1 end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("operator '+' is used outside of a job function", 1, true))
  end)

  it("a setting that is refused leaves the one before", function()
    golden("flow.config.cpu_threads wants a whole number from 1 to 4096, got 5000", [[
>>flow.config.cpu_threads(5000)]])
    golden("flow.config.inflight wants a whole number from 1 to 1000000, got 1099511627776", [[
>>flow.config.inflight(2 ^ 40)]])
    local tp = flow.typing
    local double_job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 1 }) }, returns = tp.Numpy } (
      function(x) return x * 2 end)
    assert.equal(6, double_job(np.full({ 1 }, 3)):item())
  end)

  it("settings are checked", function()
    golden("flow.config has no setting 'gpu_device'; did you mean 'gpu_devices'?", [[
>>flow.config.gpu_device(1)]])
    golden("flow.config.pump wants \"script\" or \"host\", got 'hots'", [[
>>flow.config.pump("hots")]])
    golden("flow.config.inflight wants a whole number from 1 to 1000000, got 0", [[
>>flow.config.inflight(0)]])
    golden("flow.config.in_flight is a function: call it with the value", [[
>>flow.config.in_flight = 3]])
    golden("flow.poll wants milliseconds, got 'soon'", [[
>>flow.poll("soon")]])
    golden("flow.set_seed wants a whole number below 2^53, got 1.5", [[
>>flow.set_seed(1.5)]])
  end)
end)

it("a message is text of some length, whatever it quotes", function()
  local text = told('>>flow.data.Dataset({ np.ones { 2 } }, { ["a\\27[31m" .. ("x"):rep(1e6)] = 1 })')
  assert.truthy(text:find("a?[31mxxx", 1, true))
  assert.truthy(#text < 4100)
end)

it("what is no variable is not written", function()
  for _, name in ipairs { "assign", "assign_add" } do
    golden("flow." .. name .. ": argument 1 ('variable') must be a variable, got 5",
      "flow.global_function({}, function()\n>>  flow." .. name .. "(5, 1)\nend)")
  end
end)

it("a window larger than any image is refused where it is asked for", function()
  golden("conv2d 'Conv2d_0': the window is larger than 2^24 along one axis", [[
flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 1, 1, 8, 8 }),
                                  filter = tp.Numpy.Placeholder({ 1, 1, 2 ^ 41 + 1, 1 }) }, returns = tp.Numpy } (
  function(x, filter)
>>  return flow.nn.conv2d(x, filter, { dilations = { 2 ^ 23, 1 } })
  end)]])
end)

it("a call by the names of the inputs names what is missing or unknown", function()
  local job = [[
local job = flow.global_function { inputs = { left = tp.Numpy.Placeholder({ 1 }), right = tp.Numpy.Placeholder({ 1 }) },
                                   returns = tp.Numpy } (function(left, right) return left - right end)
local one = np.ones({ 1 })
]]
  golden("job: input 'right' has no value", job .. ">>job { left = one }")
  golden("job: has no input 'rihgt'; did you mean 'right'?", job .. ">>job { left = one, right = one, rihgt = one }")
  golden("job: has no input 'rihgt'; did you mean 'right'?", job .. ">>job { left = one, rihgt = one }")
  golden("job: has no input 'z'; it takes left, right", job .. ">>job { z = one }")
end)
