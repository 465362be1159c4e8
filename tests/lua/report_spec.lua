-- flow.report and `moonflow report`: a page of the logs of runs, that needs nothing beside itself.
local core = require "moonflow.core"
local flow = require "moonflow"
local process = require "process"

local np, tp = flow.np, flow.typing

local folder
before_each(function() folder = process.folder("report") end)

-- What a page has in it as data: its runs.
local function runs_of(path)
  local json = process.read(path):match('<script type="application/json" id="data">(.-)</script>')
  return assert(core.json_read(json)).runs
end

local function write_run(name, values, options)
  local log = flow.log.open(folder .. "/" .. name, options)
  for i, value in ipairs(values) do log:write { step = i - 1, loss = value } end
  return log
end

describe("a report", function()
  it("has the curves of a run and what the run was", function()
    flow.set_seed(5)
    write_run("lenet", { 3, 2, 1 }, { config = { rate = 0.1 } })
    local path = flow.report(folder .. "/lenet")
    assert.equal(folder .. "/lenet/report.html", path)
    local run = runs_of(path)[1]
    assert.same({ 3, 2, 1 }, run.series.loss.mean)
    assert.same({ 0, 1, 2 }, run.series.loss.step)
    assert.same({ "lenet", 5, 2, 1 }, { run.name, run.seed, run.last_step, run.parts })
    assert.same({ rate = 0.1 }, run.config)
  end)

  it("lays all runs below a folder, or of a list, over one another", function()
    write_run("first", { 1 })
    write_run("sweep/a", { 2 })
    write_run("sweep/b", { 3 })
    local function names(runs)
      local list = {}
      for i, run in ipairs(runs_of(flow.report(runs, folder .. "/page.html"))) do list[i] = run.name end
      return list
    end
    assert.same({ "first", "sweep/a", "sweep/b" }, names(folder))
    assert.same({ "b", "first" }, names { folder .. "/sweep/b", folder .. "/first/" })
    assert.same({ folder .. "/first", "b", folder .. "/first" },
      names { folder .. "/first", folder .. "/sweep/b", folder .. "/first" })
  end)

  it("leaves out what a run did before it went on from a checkpoint", function()
    local log = write_run("run", { 9, 8, 7, 6, 5 })
    log:histogram("w", np.zeros({ 2 }), 1)
    log:histogram("w", np.zeros({ 2 }), 4)
    log = flow.log.open(folder .. "/run", { append = true })
    log:write { step = 3, loss = 60 }
    log:write { loss = 50 }
    local run = runs_of(flow.report(folder))[1]
    assert.same({ 9, 8, 7, 60, 50 }, run.series.loss.mean)
    assert.equal(1, #run.histograms.w)
    assert.equal(2, run.parts)
    for i = 2, 5 do assert.is_true(run.series.loss.seconds[i] >= run.series.loss.seconds[i - 1]) end
  end)

  it("keeps the least, the greatest and the mean where it thins a long curve", function()
    local values = {}
    for i = 1, 3000 do values[i] = i % 2 end
    values[1501] = 100
    write_run("run", values)
    local curve = runs_of(flow.report(folder))[1].series.loss
    assert.equal(600, #curve.mean)
    assert.same({ 3000, 5, 4, 2999 }, { curve.count, curve.width, curve.step[1], curve.step[600] })
    assert.same({ 0, 1 }, { curve.low[1], curve.high[1] })
    assert.equal(100, curve.high[301])
    local sum = 0
    for _, mean in ipairs(curve.mean) do sum = sum + 5 * mean end
    assert.near(1500 - 1 + 100, sum, 1e-2) -- six digits of each mean
  end)

  it("shows where values were not finite", function()
    write_run("run", { 1, 0 / 0, 3, 1 / 0 })
    local curve = runs_of(flow.report(folder))[1].series.loss
    assert.same({ "nan", "inf" }, { curve.strange[1].what, curve.strange[2].what })
    assert.same({ 1, 3 }, { curve.strange[1].step, curve.strange[2].step })
    assert.equal(1, curve.mean[1])
    assert.is_false(curve.mean[2])
    assert.equal(3, curve.mean[3])
  end)

  it("has pictures in itself, histograms and the newest form of each job", function()
    local log = write_run("run", { 1 })
    local job = flow.global_function {
      name = "judge", inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Numpy,
    } (function(x) return x * 2 end)
    log:job(job)
    job:watch("x", function() end)
    log:job(job)
    for step = 0, 99 do
      log:images("digit", np.full({ 1, 3 }, step / 100), step)
      log:histogram("weights", np.arange(10), step)
    end
    local path = flow.report(folder)
    local run = runs_of(path)[1]
    assert.equal(1, #run.jobs)
    assert.equal("value", run.jobs[1].ops[1].watched)
    assert.same({ 24, 0, 99 }, { #run.histograms.weights, run.histograms.weights[1].step,
                                 run.histograms.weights[24].step })
    assert.same({ 8, 0, 99 }, { #run.images.digit, run.images.digit[1].step, run.images.digit[8].step })
    local picture = folder .. "/copy.png"
    process.write(folder .. "/copy.txt", run.images.digit[8].source:match("^data:image/png;base64,(.*)$"))
    assert.equal(0, process.shell("base64 -d copy.txt > copy.png", { folder = folder }).code)
    assert.equal(process.read(folder .. "/run/images/digit-99.png"), process.read(picture))
  end)

  it("reads what a killed writer or a strange one has left", function()
    write_run("run", { 1, 2 })
    core.text_append(folder .. "/run/metrics.jsonl", '{"step":2,"loss\n3\n\n{"step":"x","loss":1}\n'
      .. '{"kind":"histogram","step":3}\n{"kind":"images","step":3,"name":"x","file":"../../secret.png"}\n'
      .. '{"kind":"job","name":3}\n{"kind":"later"}\n{"step":4,"seconds":-1,"loss":5,"note":"words"}\n{"step":5,"lo')
    process.write(folder .. "/secret.png", "secret")
    local run = runs_of(flow.report(folder .. "/run"))[1]
    assert.same({ 1, 2, 5 }, run.series.loss.mean)
    assert.equal(3, run.torn)
    assert.same({}, run.images)
  end)

  it("takes names for text, whatever is in them", function()
    local name = 'a</script><b>"&'
    local log = flow.log.open(folder .. "/<i>run", { config = { note = "</script>" } })
    log:write { [name] = 1 }
    local path = flow.report(folder .. "/<i>run")
    assert.truthy(runs_of(path)[1].series[name])
    local page = process.read(path)
    assert.is_nil(page:find("<b>", 1, true))
    assert.is_nil(page:find("<i>", 1, true))
  end)

  it("asks nothing of a network", function()
    write_run("run", { 1 })
    local page = process.read(flow.report(folder)):gsub("http://www.w3.org/2000/svg", "")
    for _, mark in ipairs { "http:", "https:", "src=", "@import", "url(//", "<link" } do
      assert.is_nil(page:find(mark, 1, true), mark)
    end
  end)

  it("says what it misses", function()
    local function fails(text, ...)
      local fine, problem = pcall(flow.report, ...)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find(text, 1, true), tostring(problem))
      assert.truthy(problem.where:find("report_spec.lua", 1, true))
    end
    fails("there is no log (metrics.jsonl) in '" .. folder .. "' or below it", folder)
    fails("there is no log", folder .. "/none")
    fails("cannot list '" .. ("n"):rep(300) .. "': File name too long", ("n"):rep(300))
    fails("wants the folder of a log", 3)
    fails("wants the folder of a log", {})
    fails("wants folders as text", { 3 })
  end)
end)

describe("moonflow report", function()
  it("writes the page and says where it is", function()
    write_run("a", { 1 })
    write_run("b", { 1 })
    local run = process.moonflow({ "report", "." }, { folder = folder })
    assert.same({ 0, "./report.html\n", "" }, { run.code, run.out, run.err })
    assert.equal(2, #runs_of(folder .. "/report.html"))
    run = process.moonflow({ "report", "a", "-o", "page.html" }, { folder = folder })
    assert.same({ 0, "page.html\n" }, { run.code, run.out })
  end)

  it("says in one line why there is none", function()
    for _, case in ipairs {
      { 2, "report: wants the folder of a log, as in: moonflow report runs", "report" },
      { 1, "moonflow report: there is no log (metrics.jsonl) in 'none' or below it", "report", "none" },
      { 1, "moonflow report: -o wants the file to write", "report", ".", "-o" },
    } do
      local run = process.moonflow({ unpack(case, 3) }, { folder = folder })
      assert.equal(case[1], run.code)
      assert.equal(case[2], run.err:sub(1, #case[2]))
      assert.is_nil(run.err:find("traceback", 1, true))
    end
  end)
end)

describe("the page", function()
  it("is drawn by a browser where there is one", function()
    if os.execute("which chromium >/dev/null 2>&1") ~= 0 then return pending("chromium is not installed") end
    local log = write_run("a", { 3, 2, 1 })
    log:histogram("weights", np.arange(10), 1)
    log:images("digit", np.ones({ 2, 2 }), 1)
    log:job(flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Numpy } (function(x)
      return flow.math.tanh(x, { name = "squashed" })
    end))
    write_run("b", { 0 / 0, 4 })
    local run = process.shell(("chromium --headless --no-sandbox --disable-gpu --user-data-dir=%s --dump-dom file://%s")
      :format(process.quote(folder .. "/browser"), process.quote(flow.report(folder))))
    local function count(text) return select(2, run.out:gsub(text, "")) end
    assert.equal(0, run.code, run.err)
    assert.same({ "Curves", "Histograms", "Pictures", "Runs", "Jobs" }, (function()
      local titles = {}
      for title in run.out:gmatch("<h2>(.-)</h2>") do titles[#titles + 1] = title end
      return titles
    end)())
    assert.equal(2, count('<path class="curve"')) -- of two runs
    assert.equal(1, count('class="strange"'))
    assert.equal(2, count('<circle cx="[%d.]+" cy="[%d.]+" r="4"')) -- an input and an op
    assert.truthy(run.out:find("squashed", 1, true))
    assert.is_nil(run.out:find("NaN", 1, true))
    assert.is_nil(run.out:find("undefined", 1, true))
  end)
end)
