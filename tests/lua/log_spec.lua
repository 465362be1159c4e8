-- flow.log: what a run says about itself, line by line, whole after a kill, and continued after one.
local core = require "moonflow.core"
local flow = require "moonflow"
local process = require "process"

local np, tp = flow.np, flow.typing

local function records_of(path)
  local records = {}
  for line in process.read(path .. "/metrics.jsonl"):gmatch("[^\n]*\n") do
    records[#records + 1] = assert(core.json_read(line))
  end
  return records
end

-- The rows of numbers, without when they were written.
local function rows_of(path)
  local rows = {}
  for _, record in ipairs(records_of(path)) do
    if not record.kind then
      record.seconds = nil
      rows[#rows + 1] = record
    end
  end
  return rows
end

local function of_kind(path, kind)
  local found = {}
  for _, record in ipairs(records_of(path)) do
    if record.kind == kind then found[#found + 1] = record end
  end
  return found
end

local function fails(text, f, ...)
  local fine, problem = pcall(f, ...)
  assert.is_false(fine, "there was no error")
  assert.truthy(tostring(problem):find(text, 1, true), tostring(problem))
  return problem
end

local X = tp.Numpy.Placeholder({ 4, 3 })

local function make_train_job(returns)
  return flow.global_function {
    type = "train", name = "train_job", inputs = { x = X }, returns = returns or tp.Numpy,
  } (function(x)
    local loss = flow.layers.dense(x, 1, { name = "out" }) ^ 2
    flow.optimizer.SGD(0.1):minimize(loss)
    return loss
  end)
end

describe("a log", function()
  local path
  before_each(function() path = process.folder("log") .. "/run" end)

  it("is a file of JSON lines that can be read while it is written", function()
    local log = flow.log.open(path)
    log:write { step = 0, loss = 2.5, accuracy = 0.1 }
    assert.same({ { step = 0, loss = 2.5, accuracy = 0.1 } }, rows_of(path))
    log:write { step = 1, loss = np.array({ 1.25 }), ["valid/loss"] = 3 }
    assert.same({ step = 1, loss = 1.25, ["valid/loss"] = 3 }, rows_of(path)[2])
    local seconds = records_of(path)[3].seconds
    assert.is_true(seconds >= 0 and seconds < 60)
    log:close()
    assert.equal(3, #records_of(path))
  end)

  it("refuses a configuration that JSON would lose something of", function()
    for flaw, config in pairs {
      ["flow.log.open: config cannot be kept as JSON: the list has the key 'activation'"] =
        { layers = { 64, 32, activation = "relu" } },
      ["the list has an entry 0"] = { betas = { [0] = 0.9, [1] = 0.99 } },
      ["a hole: nothing stands at 2, but something at 3"] = { dropout = { 0.1, nil, 0.3 } },
    } do
      local fine, problem = pcall(flow.log.open, path .. "/", { config = config })
      assert.is_false(fine, flaw)
      assert.truthy(tostring(problem):find(flaw, 1, true), problem)
    end
  end)

  it("begins with what the run is", function()
    flow.set_seed(7)
    local log = flow.log.open(path .. "/", { config = { batch_size = 100, optimizer = "Adam" } })
    assert.same({}, records_of(path)) -- until something is written a script may set its seed
    log:write { loss = 1 }
    local run = records_of(path)[1]
    assert.equal("run", run.kind)
    assert.equal("run", run.name)
    assert.equal(7, run.seed)
    assert.same({ batch_size = 100, optimizer = "Adam" }, run.config)
    assert.truthy(run.time:find("^%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%dZ$"))
    assert.truthy(run.command:find("log_spec.lua", 1, true))
    assert.truthy(run.device:find("^cpu"))
  end)

  it("counts the steps where none are given", function()
    local log = flow.log.open(path)
    for _, row in ipairs { { a = 1 }, { a = 2 }, { step = 10, a = 3 }, { a = 4 } } do log:write(row) end
    local steps = {}
    for i, row in ipairs(rows_of(path)) do steps[i] = row.step end
    assert.same({ 0, 1, 10, 11 }, steps)
  end)

  it("tells numbers apart as float32 does, and says what was not finite", function()
    local log = flow.log.open(path)
    local values = np.array({ 0.1, 1 / 3, 1e-30, 16777215, -3e38 })
    log:write { a = values[0], b = values[1], c = values[2], d = values[3], e = values[4] }
    local row = rows_of(path)[1]
    assert.is_true(values == np.array({ row.a, row.b, row.c, row.d, row.e }))
    log:write { nan = 0 / 0, inf = 1 / 0, minus = -1 / 0, fine = 1 }
    assert.same({ step = 1, fine = 1, not_finite = { nan = "nan", inf = "inf", minus = "-inf" } }, rows_of(path)[2])
  end)

  it("keeps all digits of a number of the script", function()
    local log = flow.log.open(path)
    log:write { seconds_of_day = 0.1234567890123, share = 0.98, third = 1 / 3 }
    assert.same({ step = 0, seconds_of_day = 0.1234567890123, share = 0.98, third = 1 / 3 }, rows_of(path)[1])
    assert.truthy(process.read(path .. "/metrics.jsonl"):find('"share":0.98,', 1, true))
  end)

  it("asks what an array is that may be one colour picture", function()
    local log = flow.log.open(path)
    fails("log:images: (64, 48, 3) is one colour picture with its channels last, or 64 pictures of 3 columns; "
      .. "np.expand_dims(it, 0) is the one", log.images, log, "p", np.zeros({ 64, 48, 3 }))
    fails("(64, 48, 4) is one colour picture", log.images, log, "p", np.zeros({ 64, 48, 4 }))
    log:images("p", np.expand_dims(np.zeros({ 64, 48, 3 }), 0), 0)
    log:images("p", np.expand_dims(np.zeros({ 2, 48, 3 }), 1), 0)
    log:images("filters", np.zeros({ 8, 3, 3 }), 0)
    local counts = {}
    for i, record in ipairs(of_kind(path, "images")) do counts[i] = record.count end
    assert.same({ 1, 2, 8 }, counts)
  end)

  it("refuses what is no number, with the script's line and a way to go", function()
    local log = flow.log.open(path)
    local problem = fails("log:write: 'loss' must be a number", log.write, log, { loss = np.zeros({ 4 }) })
    assert.truthy(problem.message:find("array:mean()", 1, true))
    assert.truthy(problem.where:find("log_spec.lua:%d+"))
    fails("'kind' is a word of the log itself", log.write, log, { kind = 1 })
    fails("the step must be a whole number", log.write, log, { step = 0.5, loss = 1 })
    fails("a name must be a string", log.write, log, { 3 })
    fails("wants a table", log.write, log, 3)
    fails("call it with ':'", log.write, { loss = 1 })
    log:close()
    fails("is closed", log.write, log, { loss = 1 })
    assert.same({}, rows_of(path))
  end)

  it("is not written over by chance", function()
    local log = flow.log.open(path)
    log:write { loss = 1 }
    fails("{ append = true } goes on in it", flow.log.open, path)
    fails("either overwrite or append", flow.log.open, path, { overwrite = true, append = true })
    log:images("digits", np.ones({ 2, 2 }), 0)
    flow.log.open(path, { overwrite = true }):write { loss = 2 }
    assert.same({ { step = 0, loss = 2 } }, rows_of(path))
    assert.same({}, core.list_directory(path .. "/images"))
  end)

  it("goes on where it was, without the line that a kill has torn", function()
    local log = flow.log.open(path)
    log:write { step = 41, loss = 1 }
    core.text_append(path .. "/metrics.jsonl", '{"step":42,"seco')
    log = flow.log.open(path, { append = true })
    log:write { loss = 2 }
    assert.same({ { step = 41, loss = 1 }, { step = 42, loss = 2 } }, rows_of(path))
    assert.equal(2, #of_kind(path, "run"))
    flow.log.open(path .. "2", { append = true }):write { loss = 1 } -- there is none yet
    assert.equal(1, #rows_of(path .. "2"))
  end)

  it("is not read as a whole where it goes on", function()
    local file = path .. "/metrics.jsonl"
    local log = flow.log.open(path)
    log:write { step = 7, loss = 1 }
    local function step_behind(bytes, torn)
      core.text_append(file, '{"kind":"job","text":"' .. ("x"):rep(bytes) .. '"}\n' .. torn)
      local read, most = core.text_read, 0
      core.text_read = function(...)
        local text, size = read(...)
        most = math.max(most, #text)
        return text, size
      end
      finally(function() core.text_read = read end)
      log = flow.log.open(path, { append = true })
      core.text_read = read
      log:write { loss = 2 }
      local rows = rows_of(path)
      return rows[#rows].step, most
    end
    assert.equal(8, (step_behind(100, ('{"step":9'):rep(10))))
    for _ = 1, 20 do core.text_append(file, '{"kind":"job","text":"' .. ("x"):rep(2 ^ 17) .. '"}\n') end
    log:write { loss = 3 }
    assert.same({ 10, 2 ^ 16 }, { step_behind(10, "") })
    assert.same({ 11, 2 ^ 20 }, { step_behind(2 ^ 17, '{"st') })  -- the row is beyond what is looked at first
  end)

  it("begins anew as a run where its file was moved away or emptied", function()
    local log = flow.log.open(path, { config = { rate = 0.5 } })
    log:write({ loss = 3 }, 1)
    local file = path .. "/metrics.jsonl"
    local first = process.read(file):match("^[^\n]*\n")
    for step, take in ipairs { function() os.rename(file, file .. ".1") end, function() process.write(file, "") end } do
      take()
      log:write({ loss = 2 }, step + 1)
      log:write({ loss = 1 }, step + 2)
      local text = process.read(file)
      assert.equal(first, text:sub(1, #first))
      assert.equal(3, select(2, text:gsub("\n", "")))
    end
    assert.equal(first, process.read(file .. ".1"):sub(1, #first))
  end)

  it("holds whole lines, all that were written, when its process is killed", function()
    local script = path .. ".lua"
    process.write(script, ([[
      local flow = require "moonflow"
      local log = flow.log.open(%q, { append = true })
      for i = 1, math.huge do
        log:write { loss = 1 / i, step = i }
        if i >= 500 then io.write(i, "\n") io.flush() end
      end
    ]]):format(path))
    -- The first number that comes through the pipe tells that so many rows are written.
    local command = ("rm -f %s.pipe; mkfifo %s.pipe; %s %s > %s.pipe & read count < %s.pipe; kill -9 $!; echo $count")
      :format(path, path, process.launcher, script, path, path)
    local run = process.shell("sh -c " .. process.quote(command))
    assert.equal("500\n", run.out, run.err)
    assert.equal("\n", process.read(path .. "/metrics.jsonl"):sub(-1))
    local before = rows_of(path)
    assert.is_true(#before >= 500)
    for i, row in ipairs(before) do assert.equal(i, row.step) end
    local log = flow.log.open(path, { append = true })
    log:write { loss = 0 }
    local after = rows_of(path)
    assert.equal(#before + 1, #after)
    assert.equal(#before + 1, after[#after].step)
  end)

  it("does not stop a training when the disk is full, and says so once", function()
    local script = path .. ".lua"
    process.write(script, ([[
      local flow = require "moonflow"
      local log = flow.log.open(%q)
      local told = 0
      flow.config.log(function(text) told = told + 1 io.write(text) end)
      for i = 1, 1000 do log:write { loss = 1 / i } end
      print(told)
    ]]):format(path))
    -- A limit on the size of files fails a write as a full disk does.
    local run = process.shell("sh -c " .. process.quote("trap '' XFSZ; ulimit -f 8; "
      .. process.launcher .. " " .. script))
    assert.equal(0, run.code, run.err)
    assert.truthy(run.out:find("the log of the run is not whole: .*/metrics.jsonl"), run.out)
    assert.truthy(run.out:find("\n?1\n$"))
  end)

  it("takes values of watches and callbacks", function()
    local log, train_job = flow.log.open(path), make_train_job(tp.Callback[tp.Numpy])
    train_job:watch("out-weight", log:histogram_of("weight")):every(2)
    for _ = 1, 4 do
      train_job(np.ones({ 4, 3 }))(function(loss) log:write { loss = loss:mean() } end)
    end
    flow.sync()
    assert.equal(4, #rows_of(path))
    local steps = {}
    for i, record in ipairs(of_kind(path, "histogram")) do steps[i] = record.step end
    assert.same({ 0, 2 }, steps) -- of the runs whose rows they are
  end)

  it("has what waits for a row when it is closed, and leaves late watches alone", function()
    local log, job = flow.log.open(path), make_train_job()
    job:watch("out-weight", log:histogram_of("weight"))
    job(np.ones({ 4, 3 }))
    assert.equal(0, #of_kind(path, "histogram"))
    log:close()
    log:close()
    assert.equal(1, #of_kind(path, "histogram"))
    job(np.ones({ 4, 3 }))
    assert.equal(1, #of_kind(path, "histogram"))
  end)
end)

describe("a histogram of a log", function()
  local path, log
  before_each(function()
    path = process.folder("log") .. "/run"
    log = flow.log.open(path)
  end)

  local function written(array)
    log:histogram("values", array, 3)
    local all = of_kind(path, "histogram")
    return all[#all]
  end

  it("counts the values between the least and the greatest", function()
    local record = written(np.arange(64))
    assert.same({ 3, "values", 0, 63, 31.5, 64 },
      { record.step, record.name, record.low, record.high, record.mean, record.count })
    assert.equal(32, #record.counts)
    for _, count in ipairs(record.counts) do assert.equal(2, count) end
  end)

  it("is of any dtype, of equal values, of extremes, of one and of none", function()
    local function total(record)
      local sum = 0
      for _, count in ipairs(record.counts or {}) do sum = sum + count end
      return sum
    end
    for _, array in ipairs {
      np.zeros({ 5 }), np.full({ 5 }, 1e20), np.array({ 1e-45, 0, 0, 0, 0 }), np.array({ 1, 2, 2, 3, 9 }, "int64"),
      np.array({ { 1, 2, 3, 4, 5 } }, "float16"), np.array({ -1e308, 0, 1, 2, 1e308 }, "float64"),
    } do
      assert.equal(5, total(written(array)), tostring(array))
    end
    assert.equal(1, total(written(7)))
    assert.equal(0, written(np.zeros({ 0 })).count)
  end)

  it("leaves out what is not finite, and says how much that is", function()
    local record = written(np.array({ 1, 2, 0 / 0, 1 / 0, -1 / 0 }))
    assert.same({ 2, 3, 1, 2 }, { record.count, record.not_finite, record.low, record.high })
    record = written(np.array({ 0 / 0 }))
    assert.same({ 0, 1 }, { record.count, record.not_finite })
  end)
end)

describe("pictures of a log", function()
  local path, log
  before_each(function()
    path = process.folder("log") .. "/run"
    log = flow.log.open(path)
  end)

  it("lie side by side in a PNG file, with nothing between", function()
    log:images("conv1/filters", np.ones({ 5, 2, 4 }) * 0.5, 12)
    local record = of_kind(path, "images")[1]
    assert.equal("images/conv1%2Ffilters-12.png", record.file)
    assert.same({ 5, 5, 14 }, { record.count, record.height, record.width }) -- 2 rows of 3
    local sheet = np.load_png(path .. "/" .. record.file)
    assert.same({ 5, 14, 2 }, sheet.shape:table())
    assert.same({ 128, 255 }, sheet[0][0]:totable())
    assert.same({ 0, 0 }, sheet[2][0]:totable())   -- between the rows
    assert.same({ 0, 0 }, sheet[4][13]:totable())  -- the sixth
  end)

  it("come in all usual forms, and are seen whatever their values are", function()
    local function written(array)
      log:images("one", array, 0)
      return np.load_png(path .. "/images/one-0.png")
    end
    assert.same({ 2, 3, 2 }, written(np.zeros({ 2, 3 })).shape:table())
    assert.same({ 2, 7, 4 }, written(np.zeros({ 2, 3, 2, 3 })).shape:table())
    assert.same({ 2, 7, 4 }, written(np.zeros({ 2, 2, 3, 3 })).shape:table())
    assert.same({ 2, 7, 2 }, written(np.zeros({ 2, 2, 3, 1 })).shape:table())
    assert.equal(200, written(np.full({ 2, 3 }, 200):astype("uint8"))[0][0][0])
    local filters = written(np.array({ { -2, 0, 2 } }))
    assert.same({ 0, 128, 255 }, { filters[0][0][0], filters[0][1][0], filters[0][2][0] })
    fails("log:images wants (height, width)", log.images, log, "one", np.zeros({ 2, 5, 3, 4 }))
    fails("there is nothing in", log.images, log, "one", np.zeros({ 0, 3, 3 }))
  end)
end)

describe("a job in a log", function()
  it("has its ops with what they read, and the steps of its plan", function()
    local path = process.folder("log") .. "/run"
    local log, job = flow.log.open(path), make_train_job()
    log:job(job)
    local record = of_kind(path, "job")[1]
    local names, by_name = {}, {}
    for i, op in ipairs(record.ops) do names[i], by_name[op.name] = op.name, op end
    assert.equal("x", names[1])
    assert.same({ 1 }, by_name["out-matmul"].inputs)
    assert.equal(3, by_name["out-matmul"].parameters)
    assert.equal("float32 (4, 1)", by_name["out-bias_add"].output)
    assert.equal(4, record.parameters)
    assert.equal(#names, record.losses[1])
    assert.is_true(by_name[names[#names]].returned)
    assert.is_true(#record.steps > 0 and record.backward > 0)
    fails("log:job wants a job", log.job, log, 3)
  end)
end)
