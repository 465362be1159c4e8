-- Checkpoints: what goes out comes back, and nothing damaged, foreign or half written comes in.
local checks = require "checks"
local flow = require "moonflow"
local core = require "moonflow.core"
local np = require "moonflow.np"
local process = require "process"
local random_seed = require "moonflow.random_seed"
local session = require "moonflow.session"

local tp = flow.typing
local raises, refuses = checks.raises, checks.refuses

-- A train job with one weight and Adam, so that there are slots and a step. `shape` is that of the weight.
local function define(shape, name, dtype)
  dtype = dtype or flow.float
  return flow.global_function {
    name = name or "train_job",
    type = "train",
    inputs = { x = tp.Numpy.Placeholder(shape, { dtype = dtype }) },
    returns = tp.Numpy,
  } (function(x)
    local initializer = flow.random_uniform_initializer(-1, 1)
    local w = flow.get_variable("w", { shape = shape, dtype = dtype, initializer = initializer })
    local loss = flow.cast(flow.math.multiply(w, x), dtype == flow.double and dtype or flow.float)
    flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler({}, { 0.1 })):minimize(loss)
    return loss
  end)
end

local function variables()
  local values = {}
  for _, entry in ipairs(session.handle():variables()) do values[entry.name] = session.handle():read(entry.name) end
  return values
end

local function names(values)
  local list = {}
  for name in pairs(values) do list[#list + 1] = name end
  table.sort(list)
  return list
end

local function exists(path)
  local file = io.open(path, "rb")
  if file then file:close() end
  return file ~= nil
end

describe("all variables", function()
  before_each(function() flow.clear_default_session() end)

  it("are a state to go back to", function()
    local job = define({ 2 })
    local best = flow.get_all_variables()
    assert.equal(4, #names(best))
    local first = job(np.ones({ 2 }))
    job(np.ones({ 2 }))
    assert.is_false(best.w == flow.get_all_variables().w)
    flow.load_variables(best)
    assert.is_true(best.w == flow.get_all_variables().w)
    assert.is_true(first == job(np.ones({ 2 })))
    assert.same({ "w" }, names(flow.get_all_variables { slots = false }))
  end)

  it("are set as a whole or not at all, and names that there are not are told of", function()
    define({ 2 })
    local before, lines, sink = flow.get_all_variables().w, {}, session.settings.sink
    raises("shape_mismatch", "variable 'w-m' is float32 (2), the value is float32 (3)", function()
      flow.load_variables { w = np.ones({ 2 }), ["w-m"] = np.ones({ 3 }) }
    end)
    refuses("the value of 'w' must be an ndarray, got a table; np.array(it) makes one", function()
      flow.load_variables { w = { 1, 2 } }
    end)
    raises("not_found", "'v' is no variable of the jobs defined so far", function()
      flow.load_variables({ w = np.ones({ 2 }), v = np.ones({ 2 }) }, { ignore_mismatch = false })
    end)
    assert.is_true(before == flow.get_all_variables().w)
    session.settings.sink = function(line) lines[#lines + 1] = line end
    flow.load_variables({ w = np.ones({ 2 }), v = np.ones({ 2 }) })
    flow.load_variables { w = np.ones({ 2 }), ["w.m"] = np.ones({ 2 }), a = np.ones({ 2 }), b = np.ones({ 2 }) }
    assert.equal("flow.load_variables: 'a', 'b', 'w.m' are no variables of the jobs defined so far; they are left out",
      table.remove(lines))
    flow.load_variables { ["w.m"] = np.ones({ 2 }) }
    assert.equal("flow.load_variables: 'w.m' is no variable of the jobs defined so far; it is left out; did you mean "
      .. "'w-m'?", table.remove(lines))
    session.settings.sink = sink
    assert.same({ "flow.load_variables: 'v' is no variable of the jobs defined so far; it is left out" }, lines)
    assert.is_true(np.ones({ 2 }) == flow.get_all_variables().w)
  end)

  it("need jobs", function()
    assert.same({}, flow.get_all_variables())
    raises("wrong_state", "there are no variables to load into", flow.load_variables, { w = np.ones({ 2 }) })
  end)
end)

describe("a checkpoint", function()
  local folder, lines, before_sink

  before_each(function()
    flow.clear_default_session()
    folder = process.folder("checkpoints")
    lines = {}
    before_sink = session.settings.sink
    session.settings.sink = function(line) lines[#lines + 1] = line end
  end)
  after_each(function() session.settings.sink = before_sink end)

  it("of two stages goes on as if there had been no stop", function()
    local x = np.array({ 1, -2 })
    local function stages() return define({ 2 }, "head"), define({ 2 }, "all") end
    local head, all = stages()
    for _ = 1, 5 do head(x) end
    for _ = 1, 2 do all(x) end
    local check_point = flow.train.CheckPoint()
    check_point:save(folder .. "/stages")
    for _ = 1, 3 do all(x) end
    local wanted = variables()

    flow.clear_default_session()
    all = select(2, stages())
    flow.train.CheckPoint():load(folder .. "/stages")
    for _ = 1, 3 do all(x) end
    local got = variables()
    assert.same(names(wanted), names(got))
    for name, value in pairs(wanted) do assert.is_true(value == got[name], name) end
  end)

  it("brings every variable back bit by bit, slots and steps among them", function()
    local job = define({ 2, 3 })
    local check_point = flow.train.CheckPoint()
    check_point:init()
    for _ = 1, 3 do job(np.ones({ 2, 3 })) end
    local saved = variables()
    assert.is_true(#names(saved) >= 4) -- weight, two slots, step
    check_point:save(folder .. "/a")
    assert.equal(saved.w:tobytes(), process.read(folder .. "/a/w/out"))
    local going_on = job(np.ones({ 2, 3 }))

    flow.clear_default_session()
    local again = define({ 2, 3 })
    flow.train.CheckPoint():load(folder .. "/a")
    local loaded = variables()
    assert.same(names(saved), names(loaded))
    for name, value in pairs(saved) do assert.is_true(value == loaded[name], name) end
    assert.same({}, lines)
    assert.is_true(going_on == again(np.ones({ 2, 3 })))
    assert.is_true(variables().w ~= saved.w)
  end)

  for _, dtype in ipairs({ flow.bfloat16, flow.float16 }) do
    it("brings " .. dtype .. " back, and what Adam keeps beside it", function()
      local job = define({ 2, 3 }, "train_job", dtype)
      local check_point = flow.train.CheckPoint()
      check_point:init()
      local first = variables().w
      assert.equal(dtype, first.dtype)
      for _ = 1, 3 do job(np.ones({ 2, 3 }, dtype)) end
      local saved = variables()
      assert.is_true(np.abs(first:astype("float32") - saved.w:astype("float32")):min() > 0.2) -- three steps of 0.1
      check_point:save(folder .. "/a")
      assert.equal(12, #process.read(folder .. "/a/w/out"))
      flow.clear_default_session()
      define({ 2, 3 }, "train_job", dtype)
      flow.train.CheckPoint():load(folder .. "/a")
      for name, value in pairs(variables()) do assert.is_true(value == saved[name], name) end
    end)
  end

  it("takes values of narrower floats for what they are, as files of others have them, and no wider ones", function()
    define({ 2 })
    local path = folder .. "/half.safetensors"
    for _, dtype in ipairs({ flow.bfloat16, flow.float16 }) do
      flow.checkpoint.save(path, { w = np.array({ 1.5, -3 }, dtype) }, { overwrite = true })
      flow.load_variables { w = np.zeros({ 2 }) }
      flow.train.CheckPoint():load(path)
      assert.equal(np.array({ 1.5, -3 }, flow.float), variables().w)
      flow.load_variables { w = np.array({ 7, 0.25 }, dtype) }
      assert.equal(np.array({ 7, 0.25 }, flow.float), variables().w)
    end
    raises("dtype_mismatch", "the value is float64 (2); value:astype says that it is to be rounded",
      flow.load_variables, { w = np.zeros({ 2 }, flow.double) })
    raises("dtype_mismatch", "the value is int32 (2); value:astype", flow.load_variables,
      { w = np.zeros({ 2 }, flow.int32) })
    raises("shape_mismatch", "the value is bfloat16 (3); nothing has changed. Once values['w'] = nil has left it out",
      flow.load_variables, { w = np.zeros({ 3 }, flow.bfloat16) })
  end)

  it("names the weight of a layer that has changed before what an optimizer remembers of it", function()
    local function define_head(classes)
      flow.clear_default_session()
      local train_job = flow.global_function { type = "train", inputs = { x = tp.Numpy.Placeholder { 2, 3 } } } (
        function(x)
          local y = flow.layers.dense(flow.layers.dense(x, 4, { name = "body" }), classes, { name = "head" })
          flow.optimizer.SGD(0.1, { momentum = 0.9 }):minimize(flow.math.reduce_mean(y))
        end)
      train_job(np.ones { 2, 3 })
    end
    define_head(5)
    local values = flow.get_all_variables()
    define_head(2)
    raises("shape_mismatch", "variable 'head-bias' is float32 (2), the value is float32 (5)", flow.load_variables,
      values)
    values["head-bias"] = nil
    raises("shape_mismatch", "variable 'head-weight' is float32 (2, 4), the value is float32 (5, 4)",
      flow.load_variables, values)
    values["head-weight"] = nil
    raises("shape_mismatch", "variable 'head-bias-momentum'", flow.load_variables, values)
  end)

  it("is seen by a job that keeps what follows from variables, as is every other write", function()
    local train_job = define({ 2 })
    local square = flow.global_function { returns = tp.Numpy } (function()
      return flow.math.square(flow.get_variable("w", { shape = { 2 } }))
    end)
    local function fits()
      local w = variables().w
      for _ = 1, 2 do assert.is_true(square() == w * w) end
      return w
    end
    local check_point = flow.train.CheckPoint()
    check_point:init()
    local first = fits()
    check_point:save(folder .. "/a")
    train_job(np.ones(2))
    assert.is_true(fits() ~= first)
    check_point:load(folder .. "/a")
    assert.is_true(fits() == first)
    session.handle():write("w", np.array({ 3, 4 }))
    assert.is_true(fits() == np.array({ 3, 4 }))
    local assign = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.None } (
    function(x)
      flow.assign(flow.get_variable("w", { shape = { 2 } }), x)
    end)
    assign(np.array({ 5, 6 }))
    assert.is_true(fits() == np.array({ 5, 6 }))
  end)

  it("refuses a directory that is not empty, and says how to replace it", function()
    define({ 1 })
    local check_point = flow.train.CheckPoint()
    check_point:init()
    check_point:save(folder .. "/a")
    local before = process.read(folder .. "/a/w/out")
    session.handle():write("w", np.array({ 42 }))
    raises("io", "overwrite = true", function() check_point:save(folder .. "/a") end)
    assert.equal(before, process.read(folder .. "/a/w/out"))
    check_point:save(folder .. "/a", { overwrite = true })
    assert.equal(np.array({ 42 }):tobytes(), process.read(folder .. "/a/w/out"))
    assert.equal("a\n", process.shell("ls -A " .. process.quote(folder)).out)
  end)

  it("never deletes a directory that is no checkpoint", function()
    define({ 1 })
    os.execute("mkdir " .. process.quote(folder .. "/mine"))
    process.write(folder .. "/mine/thesis.txt", "years of work")
    raises("io", "mine", function() flow.train.CheckPoint():save(folder .. "/mine", { overwrite = true }) end)
    assert.equal("years of work", process.read(folder .. "/mine/thesis.txt"))
  end)

  it("waits for what was submitted", function()
    local job = flow.global_function {
      type = "train", inputs = { x = tp.Numpy.Placeholder({ 1 }) }, returns = tp.Callback[tp.Numpy],
    } (function(x)
      local w = flow.get_variable("w", { shape = { 1 }, initializer = flow.constant_initializer(0) })
      local loss = flow.math.multiply(w, x)
      flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler({}, { 1 }), { momentum = 0 }):minimize(loss)
      return loss
    end)
    for _ = 1, 3 do job(np.ones(1))(function() end) end
    flow.train.CheckPoint():save(folder .. "/a")
    assert.equal(np.array({ -3 }):tobytes(), process.read(folder .. "/a/w/out"))
    flow.sync()
  end)

  it("tells of variables that it lacks and initialises them", function()
    define({ 1 })
    flow.train.CheckPoint():save(folder .. "/a")
    flow.clear_default_session()
    flow.global_function { type = "predict", inputs = { x = tp.Numpy.Placeholder({ 1 }) }, returns = tp.Numpy } (
    function(x)
      local w = flow.get_variable("w", { shape = { 1 }, initializer = flow.constant_initializer(0) })
      local more = flow.get_variable("more", { shape = { 1 }, initializer = flow.constant_initializer(7) })
      return w + more + x
    end)
    flow.train.CheckPoint():load(folder .. "/a")
    assert.equal(1, #lines)
    assert.truthy(lines[1]:find("'more'", 1, true))
    assert.equal(7, session.handle():read("more"):item())
    assert.equal(session.handle():read("w"):tobytes(), process.read(folder .. "/a/w/out"))
  end)

  it("refuses another shape or dtype by the name of the variable, and changes nothing", function()
    define({ 2, 3 })
    flow.train.CheckPoint():save(folder .. "/a")
    local others = { shape_mismatch = { { 3, 2 }, flow.float }, dtype_mismatch = { { 2, 3 }, flow.double } }
    for code, other in pairs(others) do
      flow.clear_default_session()
      define(other[1], nil, other[2])
      flow.train.CheckPoint():init()
      local before = variables()
      local problem = raises(code, "w", function() flow.train.CheckPoint():load(folder .. "/a") end)
      assert.truthy(tostring(problem):find("(2, 3)", 1, true))
      for name, value in pairs(before) do assert.is_true(value == variables()[name], name) end
    end
  end)

  it("finds flipped bits and cut or missing files, and changes nothing", function()
    define({ 2, 3 })
    flow.train.CheckPoint():save(folder .. "/a")
    local path = folder .. "/a/w/out"
    local text, manifest = process.read(path), process.read(folder .. "/a/manifest.json")
    local before = variables()
    local function refused(pattern, code)
      raises(code or "io", pattern, function() flow.train.CheckPoint():load(folder .. "/a") end)
      for name, value in pairs(before) do assert.is_true(value == variables()[name], name) end
    end
    for _, at in ipairs({ 1, 7, #text }) do
      local byte = text:byte(at)
      process.write(path, text:sub(1, at - 1) .. string.char((byte + 128) % 256) .. text:sub(at + 1))
      refused("w")
    end
    process.write(path, text:sub(1, -2))
    refused("w", "shape_mismatch")
    process.write(path, text .. "\0")
    refused("w", "shape_mismatch")
    os.remove(path)
    refused("w")
    process.write(path, text)
    flow.train.CheckPoint():load(folder .. "/a")
    process.write(folder .. "/a/manifest.json", manifest:sub(1, -10))
    refused("manifest.json")
    os.remove(folder .. "/a/manifest.json")
    os.remove(folder .. "/a/snapshot_done")
    refused("is no checkpoint")
    raises("not_found", "nowhere", function() flow.train.CheckPoint():load(folder .. "/nowhere") end)
  end)

  -- A limit on the size of files stands for a full disk: writing fails part way, with the signal switched off.
  it("keeps the old checkpoint when the disk is full", function()
    local script = folder .. "/save.lua"
    process.write(script, ([[
      local flow = require "moonflow"
      local tp = flow.typing
      flow.global_function { type = "predict", inputs = { x = tp.Numpy.Placeholder({ 1 }) }, returns = tp.Numpy } (
      function(x)
        local initializer = flow.constant_initializer(tonumber(arg[1]))
        local w = flow.get_variable("w", { shape = { 100000 }, initializer = initializer })
        return flow.math.reduce_sum(w) + x
      end)
      flow.train.CheckPoint():save(%q, { overwrite = true })
    ]]):format(folder .. "/a"))
    local command = ("%s %s"):format(process.quote(process.launcher), process.quote(script))
    assert.equal(0, process.shell(command .. " 1").code)
    local before = process.read(folder .. "/a/w/out")
    local full = process.shell("sh -c " .. process.quote("trap '' XFSZ; ulimit -f 16; exec " .. command .. " 2"))
    assert.equal(1, full.code)
    assert.truthy(full.err:find(folder, 1, true), full.err)
    assert.equal(before, process.read(folder .. "/a/w/out"))
    assert.equal(0, process.shell(command .. " 3").code)
    assert.are_not.equal(before, process.read(folder .. "/a/w/out"))
    assert.equal("a\nsave.lua\n", process.shell("ls -A " .. process.quote(folder)).out) -- no litter
  end)

  it("of the original system is read, and the log sink told that nothing vouches for it", function()
    define({ 2, 3 })
    flow.train.CheckPoint():save(folder .. "/a")
    local before = variables()
    os.remove(folder .. "/a/manifest.json")
    flow.train.CheckPoint():load(folder .. "/a")
    assert.equal(1, #lines)
    assert.truthy(lines[1]:find("no manifest", 1, true))
    assert.is_true(before.w == variables().w)
  end)

  it("of the original system has types where its later versions wrote it", function()
    define({ 2, 3 })
    local path = folder .. "/a"
    flow.train.CheckPoint():save(path, { slots = false })
    local before, meta = variables(), path .. "/w/meta"
    os.remove(path .. "/manifest.json")
    local function load() flow.train.CheckPoint():load(path) end
    raises("io", "has no manifest.json, nor a meta beside its values, so their types must be given; "
      .. "flow.train.CheckPoint():load takes them from the jobs", flow.checkpoint.get, path)
    process.write(path .. "/readme", "no variable")
    for _, text in ipairs {
      "shape {\n  dim: 2\n  dim: 3\n}\ndata_type: kFloat\n", "data_type: kFloat, shape: { dim: [2, 3] }",
    } do
      process.write(meta, text)
      local got = flow.checkpoint.get(path)
      assert.is_true(before.w == got.w)
      assert.equal("float32", got.w.dtype)
      load()
      assert.is_true(before.w == variables().w)
    end
    -- It escapes nothing in names.
    process.shell(("cp -r %s %s"):format(process.quote(path .. "/w"), process.quote(path .. "/a%b")))
    assert.is_true(before.w == flow.checkpoint.get(path)["a%b"])
    process.shell("rm -r " .. process.quote(path .. "/a%b"))
    process.shell("mkdir " .. process.quote(path .. "/v"))
    raises("io", "has no meta beside 'v', as others have", flow.checkpoint.get, path)
    process.shell("rmdir " .. process.quote(path .. "/v"))
    process.shell("mkdir " .. process.quote(path .. "/.cache"))  -- no variable, and of no matter
    assert.is_true(before.w == flow.checkpoint.get(path).w)
    process.write(meta, "shape { dim: 3 dim: 2 } data_type: kFloat")
    raises("shape_mismatch", "is float32 (3, 2), the program wants float32 (2, 3)", load)
    process.write(meta, "shape { dim: 2 dim: 3 } data_type: kInt32")
    raises("dtype_mismatch", "is int32 (2, 3), the program wants float32 (2, 3)", load)
    for _, case in ipairs {
      { "shape { dim: 2 dim: 2 } data_type: kFloat", "has 24 bytes, float32 (2, 2) has 16", "shape_mismatch" },
      { "shape { dim: 2 dim: 3 } data_type: kOFRecord", "data_type kOFRecord is not known here", "unsupported" },
      { "shape { dim: 2 dim: -3 } data_type: kFloat", "not a shape and a data_type, at '-3'" },
      { "shape { dim: 2 size: 3 } data_type: kFloat", "not a shape and a data_type, at 'size'" },
      { "shape { dim: 4611686018427387904 dim: 4611686018427387904 } data_type: kFloat", "a size overflows",
        "out_of_range" },
      { "shape { dim: 2", "not a shape and a data_type, at ''" },
      { "shape { dim: 2 dim: 3 }", "no data_type" },
      { ("x"):rep(5000), "has 5000 bytes, at most 4096 are read" },
      { "dim: 2", "not a shape and a data_type, at 'dim'" },
    } do
      process.write(meta, case[1])
      raises(case[3] or "io", case[2], flow.checkpoint.get, path)
    end
  end)

  it("lets another process go on as if nothing had stopped, dropout and all", function()
    local script = folder .. "/train.lua"
    process.write(script, ([[
      local flow = require "moonflow"
      local tp, np = flow.typing, flow.np
      local job = flow.global_function {
        name = "train_job", type = "train", inputs = { x = tp.Numpy.Placeholder({ 50 }) }, returns = tp.Numpy,
      } (function(x)
        local w = flow.get_variable("w", { shape = { 50 }, initializer = flow.truncated_normal(1) })
        local loss = flow.nn.dropout(w * x, { rate = 0.5, name = "dropout" })
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler({ 3 }, { 0.1, 0.2 })):minimize(loss)
        return loss
      end)
      local check_point = flow.train.CheckPoint()
      if arg[1] == "first" then check_point:init() else check_point:load(%%q) end
      for step = 1, 5 do
        local loss = job(np.ones(50))
        if arg[1] == "first" and step == 2 then check_point:save(%%q) end
        if arg[1] == "first" and step > 2 or arg[1] == "second" and step <= 3 then print(loss:sum()) end
      end
    ]]):gsub("%%%%", "%%"):format(folder .. "/a", folder .. "/a"))
    local first, second = process.moonflow({ script, "first" }), process.moonflow({ script, "second" })
    assert.equal("", first.err .. second.err)
    assert.equal(3, select(2, first.out:gsub("\n", "")))
    assert.equal(first.out, second.out)
  end)

  it("may be one file in the safetensors format, seed and all, or without what the optimizer keeps", function()
    local job = define({ 2, 3 })
    local check_point = flow.train.CheckPoint()
    check_point:init()
    for _ = 1, 3 do job(np.ones({ 2, 3 })) end
    local saved, seed, path = variables(), random_seed.value(), folder .. "/all.safetensors"
    check_point:save(path)
    raises("io", "all.safetensors' exists; { overwrite = true }", function() check_point:save(path) end)
    check_point:save(path, { overwrite = true })
    local going_on = job(np.ones({ 2, 3 }))

    flow.clear_default_session()
    random_seed.adopt(seed + 1)
    local again = define({ 2, 3 })
    flow.train.CheckPoint():load(path)
    assert.equal(seed, random_seed.value())
    for name, value in pairs(saved) do assert.is_true(value == variables()[name], name) end
    assert.is_true(going_on == again(np.ones({ 2, 3 })))

    flow.train.CheckPoint():save(folder .. "/weights.safetensors", { slots = false })
    assert.same({ "w" }, names(flow.checkpoint.get(folder .. "/weights.safetensors")))
    assert.equal(4, #names(flow.checkpoint.get(path)))
    assert.same({ "w" }, names(flow.checkpoint.get(path, { slots = false })))
    local text = process.read(folder .. "/weights.safetensors")
    local header = text:sub(9, 8 + text:byte(1) + 256 * text:byte(2))
    assert.truthy(header:find('"w":{"data_offsets":[0,24],"dtype":"F32","shape":[2,3]}', 1, true), header)
    assert.same({}, lines)
    flow.train.CheckPoint():load(folder .. "/weights.safetensors")
    assert.equal(1, #lines)
    assert.truthy(lines[1]:find("weights.safetensors has no variables 'System-Train-TrainStep-", 1, true), lines[1])
    assert.truthy(lines[1]:find("', 'w-m', 'w-v'; they keep their values", 1, true), lines[1])
    flow.checkpoint.save(folder .. "/other.safetensors", { w = variables().w })
    flow.global_function { type = "train", returns = tp.None } (function()
      local new = flow.get_variable("zz", { shape = { 1 }, initializer = flow.ones_initializer() })
      flow.optimizer.Adam(0.1):minimize(new * flow.get_variable("w"))
    end)
    flow.train.CheckPoint():load(folder .. "/other.safetensors")
    assert.truthy(lines[#lines]:find("other.safetensors has no variable 'zz', and none of 3 that train jobs keep; "
      .. "they get their first values", 1, true), table.concat(lines, "\n"))
  end)

  it("may be a string, which is what the file has in it", function()
    local job, check_point = define({ 2, 3 }), flow.train.CheckPoint()
    check_point:init()
    for _ = 1, 3 do job(np.ones({ 2, 3 })) end
    local saved, seed, path = variables(), random_seed.value(), folder .. "/all.safetensors"
    local bytes, weights = check_point:save_memory(), check_point:save_memory({ slots = false })
    check_point:save(path)
    assert.equal(process.read(path), bytes)
    local going_on = job(np.ones({ 2, 3 }))

    flow.clear_default_session()
    random_seed.adopt(seed + 1)
    local again = define({ 2, 3 })
    flow.train.CheckPoint():load_memory(bytes, #bytes)  -- as love.filesystem.read gives them
    assert.equal(seed, random_seed.value())
    for name, value in pairs(saved) do assert.is_true(value == variables()[name], name) end
    assert.is_true(going_on == again(np.ones({ 2, 3 })))

    local moments = variables()["w-m"]
    assert.same({}, lines)
    check_point:load_memory(weights)
    assert.truthy(lines[1]:find("CheckPoint:load_memory has no variables 'System-Train-TrainStep-", 1, true), lines[1])
    check_point:load_memory(bytes, { slots = false })
    assert.equal(1, #lines)
    assert.is_true(saved.w == variables().w and moments == variables()["w-m"])
  end)

  it("as a string that is damaged, or of other jobs, changes nothing", function()
    raises("wrong_state", "CheckPoint:save_memory: there are no variables; define the job", function()
      flow.train.CheckPoint():save_memory()
    end)
    define({ 2, 3 })
    local check_point = flow.train.CheckPoint()
    check_point:init()
    local bytes, before = check_point:save_memory(), variables().w
    for _, cut in ipairs { 0, 7, 100, #bytes - 1 } do
      raises("io", "these are no safetensors", function() check_point:load_memory(bytes:sub(1, cut)) end)
    end
    raises("io", "the bytes do not match their checksum", function()
      check_point:load_memory(bytes:sub(1, -2) .. string.char((bytes:byte(-1) + 1) % 256))
    end)
    refuses("CheckPoint:load_memory: argument 1 ('bytes') must be a string", function()
      check_point:load_memory(before)
    end)
    assert.is_true(before == variables().w)
    flow.clear_default_session()
    define({ 3, 2 })
    raises("shape_mismatch", "variable 'w' is float32 (3, 2), the value is float32 (2, 3)", function()
      check_point:load_memory(bytes, { slots = false })
    end)
  end)

  it("as one file never writes to what has another name, or is protected", function()
    local path = folder .. "/a.npy"
    process.write(folder .. "/important", "precious")
    assert.equal(0, os.execute(("ln %s/important %s.moonflow-tmp-0"):format(folder, path)))
    np.save(path, np.ones { 3 })
    assert.equal("precious", process.read(folder .. "/important"))
    assert.is_true(np.load(path) == np.ones { 3 })
    assert.equal(0, os.execute("chmod 777 " .. folder .. " && chmod 444 " .. path))
    -- Root may write it all the same.
    local script = "require('moonflow').np.save('" .. path .. "', require('moonflow').np.zeros { 3 })"
    local run = process.shell(("setpriv --reuid=65534 --regid=65534 --clear-groups %s -e %s"):format(
      process.quote(process.launcher), process.quote(script)))
    if not run.err:find("setpriv:", 1, true) then
      assert.truthy(run.err:find("Permission denied", 1, true), run.err)
      assert.is_true(np.load(path) == np.ones { 3 })
    end
  end)

  it("as one file leaves no more behind when killed than the next save clears away", function()
    define({ 2, 3 })
    local path = folder .. "/all.safetensors"
    process.write(path .. ".moonflow-tmp-0", ("x"):rep(10000))
    assert.equal(0, os.execute("mkdir -p " .. path .. ".moonflow-tmp-1"))
    flow.train.CheckPoint():init()
    flow.train.CheckPoint():save(path)
    flow.checkpoint.get(path)
    assert.same({ "all.safetensors", "all.safetensors.moonflow-tmp-1" }, core.list_directory(folder))
    -- One that is being written is locked, and left alone.
    local held = path .. ".moonflow-tmp-0"
    process.write(held, "another's")
    local run = process.shell(("flock %s %s -e %s"):format(process.quote(held), process.quote(process.launcher),
      process.quote(("require('moonflow').checkpoint.save(%q, { w = require('moonflow').np.ones({ 3 }) }, "
        .. "{ overwrite = true })"):format(path))))
    assert.equal("", run.err)
    assert.equal("another's", process.read(held))
    assert.same({ "w" }, names(flow.checkpoint.get(path)))
    assert.same({ "all.safetensors", "all.safetensors.moonflow-tmp-0", "all.safetensors.moonflow-tmp-1" },
      core.list_directory(folder))
  end)

  it("is read whole while another process replaces it", function()
    local path, values = folder .. "/replaced", {}
    for i = 1, 20 do values["v" .. i] = np.full({ 2 }, i) end
    flow.checkpoint.save(path, values)
    local writer = ([[
      local flow = require "moonflow"
      local values = flow.checkpoint.get(%q)
      for _ = 1, 1000 do flow.checkpoint.save(%q, values, { overwrite = true }) end
    ]]):format(path, path)
    assert(os.execute(("%s -e %s & echo $! > %s"):format(process.quote(process.launcher), process.quote(writer),
      process.quote(folder .. "/writer"))) == 0)
    local fine, problem = pcall(function()
      for _ = 1, 1500 do
        local read = flow.checkpoint.get(path)
        for i = 1, 20 do assert.equal(i, read["v" .. i]:at(0)) end
      end
    end)
    local pid = process.read(folder .. "/writer"):match("%d+")
    os.execute(("kill -9 %s; while kill -0 %s 2>&-; do sleep 0.01; done"):format(pid, pid))
    assert.is_true(fine, problem)
  end)

  it("is overwritten by several processes at once, and whole in the end", function()
    local path = folder .. "/contested"
    local writer = ([[
      local flow = require "moonflow"
      local values = {}
      for i = 1, 20 do values["v" .. i] = flow.np.full({ 2 }, i) end
      for _ = 1, 100 do flow.checkpoint.save(%q, values, { overwrite = true }) end
    ]]):format(path)
    local run = process.shell("sh -c " .. process.quote(("for i in 1 2 3; do %s -e %s & done; wait"):format(
      process.quote(process.launcher), process.quote(writer))))
    assert.equal("", run.err)
    local read = flow.checkpoint.get(path)
    for i = 1, 20 do assert.equal(i, read["v" .. i]:at(0)) end
    assert.same({ "contested" }, core.list_directory(folder))
  end)

  it("in one file has no variable by the name that the format keeps for itself", function()
    refuses("the format keeps the name '__metadata__' for itself", function()
      flow.checkpoint.save(folder .. "/m.safetensors", { __metadata__ = np.ones({ 2 }) })
    end)
  end)

  it("gives no seed that is none", function()
    define({ 2, 3 })
    flow.train.CheckPoint():init()
    local path, seed = folder .. "/seed.safetensors", random_seed.value()
    for _, text in ipairs { "inf", "1e300", "nan", "0.5", "many", "" } do
      core.safetensors_write(path, { w = np.zeros({ 2, 3 }) }, { seed = text })
      flow.train.CheckPoint():load(path)
      assert.equal(seed, random_seed.value(), text)
    end
  end)

  it("that is a damaged file, or of another shape, changes nothing", function()
    define({ 2, 3 })
    flow.train.CheckPoint():init()
    local path = folder .. "/a.safetensors"
    flow.train.CheckPoint():save(path)
    local text, before = process.read(path), variables().w
    for _, cut in ipairs { 0, 7, 100, #text - 1 } do
      process.write(folder .. "/cut.safetensors", text:sub(1, cut))
      raises("io", "cut.safetensors': these are no safetensors", function()
        flow.train.CheckPoint():load(folder .. "/cut.safetensors")
      end)
    end
    -- Four tensors share eight bytes, as many could share a large file's; or some bytes are nobody's.
    local function misplaced(places, bytes, problem)
      local entries = {}
      for i, place in ipairs(places) do
        entries[i] = ('"%d":{"dtype":"F32","shape":[2],"data_offsets":[%d,%d]}'):format(i, place, place + 8)
      end
      local header = "{" .. table.concat(entries, ",") .. "}"
      process.write(folder .. "/places.safetensors",
        string.char(#header % 256, math.floor(#header / 256)) .. ("\0"):rep(6) .. header .. ("\0"):rep(bytes))
      raises("io", "these are no safetensors: " .. problem, function()
        flow.checkpoint.get(folder .. "/places.safetensors")
      end)
    end
    misplaced({ 0, 0, 0, 0 }, 8, "the bytes of '2' belong to another tensor too")
    misplaced({ 8, 0, 12 }, 20, "the bytes of '3' belong to another tensor too")
    misplaced({ 0, 12 }, 20, "nothing is said of the bytes before '2'")
    misplaced({ 8, 0 }, 17, "nothing is said of the last 1 bytes")
    misplaced({ 8, 0 }, 15, "the bytes of '1' lie outside the data")
    raises("not_found", "missing.safetensors", function()
      flow.train.CheckPoint():load(folder .. "/missing.safetensors")
    end)
    flow.checkpoint.save(folder .. "/b.safetensors", { w = np.zeros({ 3, 2 }), ["w-m"] = np.zeros({ 2, 3 }) })
    raises("shape_mismatch", "variable 'w' is float32 (2, 3), the value is float32 (3, 2)", function()
      flow.train.CheckPoint():load(folder .. "/b.safetensors")
    end)
    process.write(path, text:sub(1, -2) .. string.char((text:byte(-1) + 1) % 256))
    raises("io", "a.safetensors': the bytes do not match their checksum, xxh3_64_of_all of the metadata", function()
      flow.train.CheckPoint():load(path)
    end)
    -- Where the name of the checksum is damaged, and something else too.
    process.write(path, (text:gsub("xxh3_64_of_all", "xxh3_64_of_alm"):gsub('"w"', '"u"')))
    raises("io", "do not match their checksum", function() flow.train.CheckPoint():load(path) end)
    assert.is_true(before == variables().w)
  end)

  it("in one file of an earlier version, or of others, is read", function()
    local path = folder .. "/a.safetensors"
    local data = "\0\0\128?\0\0\0@"
    local tensor = '"w":{"data_offsets":[0,8],"dtype":"F32","shape":[2]}}'
    local function file(header)
      header = header .. (" "):rep(-#header % 8)
      return string.char(#header) .. ("\0"):rep(7) .. header .. data
    end
    local function as_before(digits)
      return file('{"__metadata__":{"moonflow":"0.1.0","seed":"5","xxh3_64":"' .. digits .. '"},' .. tensor)
    end
    for _, text in ipairs {
      as_before("4de8d78f7134f4b7"), file("{" .. tensor), file('{"__metadata__":{"format":"pt"},' .. tensor),
      file('{"__metadata__":{"moonflow":"0.1.0","seed":"5"},' .. tensor),
    } do
      process.write(path, text)
      assert.is_true(flow.checkpoint.get(path).w == np.array({ 1, 2 }))
    end
    process.write(path, as_before("5de8d78f7134f4b7"))
    raises("io", "the bytes do not match their checksum, xxh3_64 of the metadata", flow.checkpoint.get, path)
  end)

  it("without any variable of the jobs is refused", function()
    define({ 2, 3 })
    flow.train.CheckPoint():init()
    local before = variables().w
    local others = { v = np.ones({ 2 }), u = np.ones({ 3 }) }
    for _, path in ipairs { folder .. "/others", folder .. "/others.safetensors" } do
      flow.checkpoint.save(path, others)
      raises("not_found", path .. " has none of the variables of the jobs defined so far, 'w' and others; "
        .. "it has 'u' and others", function() flow.train.CheckPoint():load(path) end)
    end
    assert.is_true(before == variables().w)
  end)

  it("of arrays of one's own needs no job", function()
    local values = { a = np.arange(3), b = np.ones({ 2, 2 }) }
    for _, path in ipairs { folder .. "/own", folder .. "/own.safetensors" } do
      flow.checkpoint.save(path, values)
      raises("io", "overwrite", function() flow.checkpoint.save(path, values) end)
      local got = flow.checkpoint.get(path)
      assert.same({ "a", "b" }, names(got))
      assert.is_true(got.a == values.a and got.b == values.b)
    end
    raises("io", "overwrite", function() flow.checkpoint.save(folder .. "/own", { overwrite = np.ones({ 1 }) }) end)
    flow.checkpoint.save(folder .. "/overwrite", { overwrite = np.ones({ 1 }) })  -- a name as any other
    assert.same({ "overwrite" }, names(flow.checkpoint.get(folder .. "/overwrite")))
    define({ 2, 3 })
    flow.checkpoint.save(folder .. "/own", { overwrite = true })
    assert.is_true(flow.checkpoint.get(folder .. "/own").w == variables().w)
    flow.clear_default_session()
    raises("not_found", "cannot open the folder '" .. folder .. "/no'", function()
      flow.checkpoint.save(folder .. "/no/such", values)
    end)
    raises("not_found", "cannot make the folder '/proc/x'", function() flow.checkpoint.save("/proc/x", values) end)
    local none = "there are no variables; define the job"
    raises("wrong_state", none, flow.checkpoint.save, folder .. "/none")
    refuses("flow.checkpoint.save: the table of arrays is empty", flow.checkpoint.save, folder .. "/none", {})
    raises("wrong_state", none, function() flow.train.CheckPoint():save(folder .. "/none") end)
  end)

  it("says how it is called", function()
    refuses("':'", function() flow.train.CheckPoint().init() end)
    raises("wrong_state", "no variables", function() flow.train.CheckPoint():save(folder .. "/a") end)
    raises("wrong_state", "no variables", function() flow.train.CheckPoint():load(folder .. "/a") end)
    define({ 1 })
    refuses("did you mean 'overwrite'", function()
      flow.train.CheckPoint():save(folder .. "/a", { overwite = true })
    end)
    assert.is_false(exists(folder .. "/a"))
  end)

  it("gives the weights alone to a training that begins anew", function()
    local train_job = define({ 1 })
    train_job(np.ones { 1 })
    flow.train.CheckPoint():save(folder .. "/pretrained")
    local trained = variables()
    train_job(np.ones { 1 })
    local later = variables()
    flow.train.CheckPoint():load(folder .. "/pretrained", { slots = false })
    for name, value in pairs(variables()) do
      assert.equal((name == "w" and trained or later)[name]:item(), value:item(), name)
    end
  end)

  it("does not take the place of a seed that the script has set", function()
    define({ 1 })
    flow.set_seed(3)
    flow.train.CheckPoint():save(folder .. "/seeded")
    flow.clear_default_session()
    flow.set_seed(9)
    define({ 1 })
    flow.train.CheckPoint():load(folder .. "/seeded")
    assert.equal(9, random_seed.value())
  end)

  it("is not replaced where a folder with files of others lies in it", function()
    define({ 1 })
    local path = folder .. "/kept"
    flow.train.CheckPoint():save(path)
    local hidden = path .. "/w/out"
    os.remove(hidden)
    assert.equal(0, os.execute(("mkdir %s && echo precious > %s/file"):format(hidden, hidden)))
    raises("io", "it holds 'w/out', which is no part of a checkpoint", function()
      flow.train.CheckPoint():save(path, { overwrite = true })
    end)
    assert.equal("precious\n", process.read(hidden .. "/file"))
  end)

  it("says whose steps it has where a train job was renamed", function()
    local told = {}
    flow.config.log(function(line) told[#told + 1] = line end)
    finally(function() flow.config.log(nil) end)
    local function train_as(name)
      flow.clear_default_session()
      flow.global_function { name = name, type = "train", returns = tp.None } (function()
        local w = flow.get_variable("w", { shape = { 2 }, initializer = flow.ones_initializer() })
        flow.optimizer.SGD(0.1, { momentum = 0 }):minimize(w)
      end)
    end
    train_as("job@net.lua:4")
    flow.train.CheckPoint():save(folder .. "/named")
    train_as("job@net.lua:5")
    flow.train.CheckPoint():load(folder .. "/named", { slots = false })
    assert.same({}, told)
    flow.train.CheckPoint():load(folder .. "/named")
    assert.equal(2, #told)
    assert.truthy(told[2]:find("has the steps of the train job 'job_net.lua_4', and none of 'job_net.lua_5', whose", 1,
      true), told[2])
    train_as("job_net.lua_4")
    flow.train.CheckPoint():load(folder .. "/named")
    assert.equal(2, #told)
  end)

  it("is one of many for the manager", function()
    define({ 1 })
    local manager = flow.train.SimpleCheckPointManager(folder .. "/many")
    assert.same({}, manager:list_checkpoints())
    assert.is_nil(manager:initialize_or_restore())
    local first = manager:save()
    session.handle():write("w", np.array({ 5 }))
    local second = manager:save()
    assert.same({ first, second }, manager:list_checkpoints())
    assert.equal(second, manager:latest_checkpoint())
    session.handle():write("w", np.array({ 6 }))
    assert.equal(second, manager:initialize_or_restore())
    assert.equal(5, session.handle():read("w"):item())
    assert.truthy(first:find("^snapshot_%d+_%d+"))
  end)

  it("is one of few for a manager that keeps so many", function()
    define({ 1 })
    local manager = flow.train.SimpleCheckPointManager(folder .. "/few", { keep = 2 })
    local saved = {}
    for i = 1, 4 do saved[i] = manager:save() end
    assert.same({ saved[3], saved[4] }, manager:list_checkpoints())
    assert.same({ saved[3], saved[4] }, core.list_directory(folder .. "/few"))
    process.write(folder .. "/few/" .. saved[3] .. "/thesis.txt", "years of work")
    raises("io", saved[3] .. "' is not removed: it holds 'thesis.txt', which is no part of a checkpoint", manager.save,
      manager)
    assert.equal("years of work", process.read(folder .. "/few/" .. saved[3] .. "/thesis.txt"))
    assert.equal(3, #manager:list_checkpoints())
    refuses("keep is how many checkpoints there may be, from 1 on, got 0", flow.train.SimpleCheckPointManager, folder,
      { keep = 0 })
  end)

  it("of another prefix, or with a name that a script gave, is none of the manager's", function()
    define({ 1 })
    local root = folder .. "/shared"
    local plain = flow.train.SimpleCheckPointManager(root, { keep = 1 })
    local best = flow.train.SimpleCheckPointManager(root, { prefix = "snapshot_best_", keep = 1 })
    best:initialize_or_restore()
    session.handle():write("w", np.array({ 1 }))
    local kept = best:save()
    flow.train.CheckPoint():save(root .. "/snapshot_before_finetuning")
    flow.train.CheckPoint():save(root .. "/snapshot_20250101_000000_old")
    plain:save()
    session.handle():write("w", np.array({ 5 }))
    local newest = plain:save()
    assert.truthy(newest:find("^snapshot_%d+_%d+"))
    assert.same({ newest }, plain:list_checkpoints())
    assert.same({ kept }, best:list_checkpoints())
    local all = { newest, "snapshot_20250101_000000_old", "snapshot_before_finetuning", kept }
    table.sort(all)
    assert.same(all, core.list_directory(root))
    assert.equal(kept, best:initialize_or_restore())
    assert.equal(1, session.handle():read("w"):item())
    local original = "snapshot_20200101_000000_123456"
    os.execute(("cd %s && mv %s %s"):format(root, newest, original))
    assert.equal(original, plain:latest_checkpoint())
  end)

  it("is the newest for the manager though the clock was ahead before", function()
    define({ 1 })
    local many = folder .. "/many"
    local manager = flow.train.SimpleCheckPointManager(many)
    local ahead = "snapshot_29990101_000000"
    os.execute(("cd %s && mv %s %s"):format(many, manager:save(), ahead))
    local saved = { ahead }
    for i = 2, 4 do saved[i] = manager:save() end
    os.execute(("cd %s && mv %s %s_999"):format(many, saved[4], ahead))
    saved[4] = ahead .. "_999"
    for i = 5, 6 do saved[i] = manager:save() end
    assert.same({ ahead, ahead .. "_001", ahead .. "_002", ahead .. "_999", ahead .. "_999_001", ahead .. "_999_002" },
      saved)
    assert.same(saved, manager:list_checkpoints())
  end)

  -- A folder, its manager, and the name of the first checkpoint there.
  local function one_saved(options)
    define({ 1 })
    local many = folder .. "/many"
    local manager = flow.train.SimpleCheckPointManager(many, options)
    return many, manager, manager:save()
  end

  it("that a killed process left half written is none for the manager, whose next save removes it", function()
    local many, manager, first = one_saved()
    for _, rest in ipairs { "1-0", "1-1" } do
      os.execute(("cp -r %s/%s %s/%s_001.moonflow-tmp-%s"):format(many, first, many, first, rest))
    end
    os.execute(("rm %s/%s_001.moonflow-tmp-1-1/manifest.json"):format(many, first))
    assert.same({ first }, manager:list_checkpoints())
    local second = manager:save()
    assert.same({ first, second }, core.list_directory(many))
  end)

  it("that are removed while they are read are passed over for a newer one", function()
    local many, manager, first = one_saved()
    local before = variables()
    local second = manager:save()
    local latest, asked = manager.latest_checkpoint, 0
    rawset(manager, "latest_checkpoint", function() -- the first time as before the second was there
      asked = asked + 1
      return asked == 1 and first or latest(manager)
    end)
    core.checkpoint_remove(many .. "/" .. first)
    assert.equal(second, (manager:initialize_or_restore()))
    assert.is_true(before.w == variables().w)
    process.write(many .. "/" .. second .. "/manifest.json", "{}")
    raises("io", "no manifest of a checkpoint", manager.initialize_or_restore, manager)
  end)

  it("that was killed while it was removed is not found, and the next save removes the rest", function()
    local many, manager, first = one_saved()
    local second = manager:save()
    -- As it is killed before it has removed a file.
    local trace = ("strace -f -qq -o /dev/null -e trace=unlinkat -e inject=unlinkat:signal=KILL %s -e %s"):format(
      process.quote(process.launcher),
      process.quote(("require('moonflow.core').checkpoint_remove(%q)"):format(many .. "/" .. first)))
    if process.sanitizer ~= "" or os.execute("command -v strace >/dev/null") ~= 0 then
      return pending("there is no strace")
    end
    process.shell(trace)
    local left = core.list_directory(many)
    assert.equal(2, #left)
    assert.truthy(left[1]:find(first .. ".moonflow-tmp-", 1, true), left[1])
    assert.same({ second }, manager:list_checkpoints())
    local third = manager:save()
    assert.same({ second, third }, core.list_directory(many))
  end)

  it("of two managers with one folder, saved in the same second, have names of their own", function()
    local many, manager, first = one_saved { keep = 1 }
    local latest, asked = manager.latest_checkpoint, 0
    rawset(manager, "latest_checkpoint", function() -- the first time as before the other process had saved
      asked = asked + 1
      return asked > 1 and latest(manager) or nil
    end)
    local date = os.date
    os.date = function() return first:sub(#manager.prefix + 1) end -- luacheck: ignore
    local fine, second = pcall(manager.save, manager)
    os.date = date -- luacheck: ignore
    assert.is_true(fine, tostring(second))
    assert.equal(first .. "_001", second)
    assert.same({ second }, core.list_directory(many))
  end)

  it("that another process is writing is left to it", function()
    local path = folder .. "/a"
    local held = path .. ".moonflow-tmp-1-0"
    assert.equal(0, os.execute("mkdir -p " .. held))
    process.write(held .. "/manifest.json", "")
    local save = ("require('moonflow').checkpoint.save(%q, { w = require('moonflow').np.ones({ 3 }) }, "
      .. "{ overwrite = true })"):format(path)
    local command = ("%s -e %s"):format(process.quote(process.launcher), process.quote(save))
    assert.equal("", process.shell(("flock %s %s"):format(process.quote(held), command)).err)
    assert.same({ "a", "a.moonflow-tmp-1-0" }, core.list_directory(folder))
    assert.equal("", process.shell(command).err)
    assert.same({ "a" }, core.list_directory(folder))
  end)
end)
