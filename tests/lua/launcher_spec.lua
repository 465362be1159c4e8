-- The program `moonflow` seen from outside: arguments, search path, errors, Ctrl-C, the read-eval-print loop.
local process = require "process"

local function lines(text)
  local all = {}
  for line in text:gmatch("[^\n]+") do all[#all + 1] = line end
  return all
end

describe("the launcher", function()
  local folder

  before_each(function() folder = process.folder("launcher") end)

  local function script(name, text)
    process.write(folder .. "/" .. name, text)
    return name
  end

  it("gives a script its arguments, also those that look like options", function()
    script("args.lua", "print(arg[0], #arg, ...)")
    local run = process.moonflow({ "args.lua", "-e", "--x", "y z" }, { folder = folder })
    assert.equal("args.lua\t3\t-e\t--x\ty z\n", run.out)
    assert.equal("", run.err)
    assert.equal(0, run.code)
  end)

  it("says where flow comes from in a file that lacks it", function()
    local path = script("lacks.lua", "print(flow.np)")
    local advice = "lacks.lua:1: attempt to index global 'flow' (a nil value); a file begins with: local flow = "
      .. "require \"moonflow\"\n"
    for _, run in ipairs {
      process.moonflow({ path }, { folder = folder }),
      process.moonflow({}, { folder = folder, input = ":load " .. path .. "\n" }),
    } do assert.equal(advice, run.err:match("^[^\n]*\n")) end
  end)

  it("runs statements before the script and a script from standard input", function()
    local run = process.moonflow({ "-e", "x = 1", "-e", "x = x + 1", "-", "word" }, { input = "print(x, ...)" })
    assert.equal("2\tword\n", run.out)
    assert.equal(0, run.code)
  end)

  it("loads modules by -l, in their order among the statements, as globals of their names", function()
    script("mine.lua", "print('loading', ..., early) return { name = 'mine' }")
    script("own.lua", "own = 'set by itself'")
    script("strictly.lua", "return setmetatable(_G, { __newindex = function(_, name) error('new ' .. name) end })")
    local run = process.moonflow({ "-e", "early = 1", "-lmine", "-e", "print(mine.name)", "-l", "own", "-l", "strictly",
      "-" }, { folder = folder, input = "print(own, strictly == _G, package.loaded.mine == mine)" })
    assert.equal("", run.err)
    assert.equal("loading\tmine\t1\nmine\nset by itself\ttrue\ttrue\n", run.out)
    run = process.moonflow({ "-l", "mine" }, { folder = folder, input = "mine.name\n" })
    assert.equal("loading\tmine\tnil\nmine\n", run.out)
    run = process.moonflow({ "-l", "nowhere", "-e", "print('not reached')" }, { folder = folder })
    assert.equal("", run.out)
    assert.equal("module 'nowhere' not found:", lines(run.err)[1])
    assert.equal(1, run.code)
  end)

  it("takes what follows -- for a script and its arguments", function()
    for _, name in ipairs { "args.lua", "-v", "attach" } do
      script(name, "print(arg[0], arg[-1], ...)")
      local run = process.moonflow({ "-e", "x = 1", "--", name, "--", "-e" }, { folder = folder })
      assert.equal(name .. "\t--\t--\t-e\n", run.out, run.err)
      assert.equal(0, run.code)
    end
    assert.equal("2\n", process.moonflow({ "--" }, { input = "1 + 1\n" }).out)
    assert.equal("1\n", process.moonflow({ "-e", "print(1)", "--" }, { input = "2\n" }).out)
  end)

  it("opens the prompt by -i also after a script that failed, and fails all the same", function()
    script("failing.lua", "found = 7\nerror('no luck')\n")
    local run = process.moonflow({ "-i", "failing.lua" }, { folder = folder, input = "found\n" })
    assert.equal("7\n", run.out)
    assert.equal("failing.lua:2: no luck", lines(run.err)[1])
    assert.equal(1, run.code)
    run = process.moonflow({ "-i", "-e", "nothing.here = 1", "failing.lua" }, { folder = folder, input = "found\n" })
    assert.equal("nil\n", run.out)
    assert.equal(1, run.code)
    assert.equal("", process.moonflow({ "failing.lua" }, { folder = folder, input = "found\n" }).out)
  end)

  it("asks OpenMP for a short spin, unless somebody has chosen how threads wait", function()
    local function spins(settings) -- this process has what its own launcher chose
      local command = ("-u OMP_WAIT_POLICY -u GOMP_SPINCOUNT %s %s -"):format(settings, process.quote(process.launcher))
      return tonumber(process.shell(command, { input = "print(os.getenv('GOMP_SPINCOUNT'))" }).out)
    end
    local chosen = spins("")
    assert.is_true(chosen >= 100 and chosen <= 1e6, tostring(chosen)) -- looks in 70 us
    assert.equal(7, spins("GOMP_SPINCOUNT=7"))
    assert.equal(nil, spins("OMP_WAIT_POLICY=passive"))
  end)

  it("refuses registers that it does not know", function()
    local function sum(limit)
      return process.shell(("MOONFLOW_SIMD=%s %s -"):format(limit, process.quote(process.launcher)),
        { input = "print(require('moonflow').np.ones({ 3 }):sum())" })
    end
    for _, limit in ipairs { "''", "plain", "avx2", "avx512" } do assert.equal("3\n", sum(limit).out, limit) end
    local run = sum("neon")
    assert.truthy(run.err:find("MOONFLOW_SIMD is 'neon', wanted plain, avx2 or avx512", 1, true), run.err)
    assert.equal(1, run.code)
  end)

  it("says why the library does not open, what to do, and opens it when that is done", function()
    assert(os.execute("mkdir -p " .. process.quote(folder .. "/moonflow")) == 0)
    local core = folder .. "/moonflow/core.so"
    local program = [[
      local good = package.cpath
      package.cpath = "./?.so"
      for _ = 1, 2 do
        local fine, problem = pcall(require, "moonflow")
        print(fine, problem)
      end
      package.cpath = good
      print(require("moonflow").version)
    ]]
    local function complaint()
      local run = process.moonflow({ "-e", program }, { folder = folder })
      assert.equal(0, run.code, run.err)
      local first, second, version = run.out:match("^false\t([^\n]*)\nfalse\t([^\n]*)\n([%d.]+)\n$")
      assert.truthy(version, run.out)
      assert.equal(first, second)
      return first
    end
    local function says(text, ...)
      for _, part in ipairs { ... } do assert.truthy(text:find(part, 1, true), text) end
    end
    says(complaint(), "moonflow/core.so is nowhere on package.cpath; add lua/?.so of the build folder", "'./?.so'")
    process.write(core, "")
    says(complaint(), "'./moonflow/core.so' does not open: file too short; the file is damaged")
    local library = process.read(process.build .. "/lua/moonflow/core.so")
    process.write(core, (library:gsub("libdnnl%.so", "libnone.so")))
    local missing = complaint()
    says(missing, "does not open: libnone.so", "; install what has libnone.so", "`bash .ci/setup`")
    local typed = process.moonflow({ "-e", "package.cpath = './?.so'", "-i" }, { folder = folder, input = "1 + 1\n" })
    assert.equal("2\n", typed.out)
    assert.equal(missing .. "\n", typed.err)
  end)

  it("finds the library from any folder, before LUA_PATH", function()
    local text = "local flow = require 'moonflow' print(type(flow), package.searchpath('moonflow', package.path))"
    local run = process.moonflow({ "-e", text }, { folder = "/", env = { LUA_PATH = "/nowhere/?.lua;;" } })
    assert.equal("", run.err)
    assert.truthy(run.out:find(process.build .. "/lua/moonflow/init.lua", 1, true))
  end)

  it("turns an uncaught error into one traceback and exit code 1", function()
    script("wrong.lua", "local function inner() error('no luck') end\nlocal function outer() inner() end\nouter()\n")
    local run = process.moonflow({ "wrong.lua" }, { folder = folder })
    assert.equal(1, run.code)
    assert.same({
      "wrong.lua:1: no luck",
      "stack traceback:",
      "\t[C]: in function 'error'",
      "\twrong.lua:1: in function 'inner'",
      "\twrong.lua:2: in function 'outer'",
      "\twrong.lua:3: in main chunk",
    }, lines(run.err))
  end)

  it("shows the way through the body of a job to an error of a script's own", function()
    for raised, shown in pairs { ["'no luck'"] = "body.lua:2: no luck", ["{ 'no luck' }"] = '{ "no luck" }' } do
      script("body.lua", "local flow = require 'moonflow'\nlocal function layer() error(" .. raised .. ") end\n"
        .. "flow.global_function {} (function()\n  local y = layer()\n  return y\nend)\n")
      local run = process.moonflow({ "body.lua" }, { folder = folder })
      assert.equal(1, run.code)
      local seen = lines((run.err:gsub("%d+ frames", "some frames")))
      assert.same({
        shown, "stack traceback:", "\t[C]: in function 'error'", "\tbody.lua:2: in function 'layer'",
        "\tbody.lua:4: in function 'body'", "\t(some frames inside moonflow)", "\tbody.lua:3: in main chunk",
      }, seen)
    end
  end)

  it("says how an array is compared with a number, of which Lua asks no array", function()
    for _, comparison in ipairs { "x > 0", "x <= 0" } do
      local run = process.moonflow({ "-e", "local x = require('moonflow').np.zeros { 2 } print(" .. comparison .. ")" })
      assert.equal(1, run.code)
      assert.truthy(lines(run.err)[1]:find("attempt to compare %a+ with %a+; elements of an array are compared by "
        .. "x:gt%(y%), x:ge%(y%), x:lt%(y%) and x:le%(y%), all or any of them by x:gt%(y%):all%(%) and "
        .. "x:gt%(y%):any%(%), and an array of one element is a number by x:item%(%)$"), run.err)
    end
    for _, use in ipairs { "('%.3f'):format(x)", "math.exp(x)" } do
      local run = process.moonflow({ "-e", "local x = require('moonflow').np.zeros {} print(" .. use .. ")" })
      assert.truthy(lines(run.err)[1]:find("number expected, got userdata); Lua's own functions take no array: "
        .. "np.sqrt(x), x:max() and their like do, tostring(x) is its text, and an array of one element is a number by "
        .. "x:item()", 1, true), run.err)
    end
    for _, use in ipairs { "ipairs(x)", "next(x)", "unpack(x)", "table.concat(x)", "table.sort(x)" } do
      local run = process.moonflow({ "-e", "local x = require('moonflow').np.zeros { 2 } print(" .. use .. ")" })
      assert.truthy(lines(run.err)[1]:find("table expected, got userdata); the rows of an array are gone through by: "
        .. "for i, row in a:rows() do, and a:totable() is a table of it", 1, true), run.err)
    end
    local called = process.moonflow({ "-e", "require('moonflow').np.float32({ 1 })" })
    assert.truthy(lines(called.err)[1]:find("(a string value); a dtype is a word: np.array(x, dtype)", 1, true),
      called.err)
    local run = process.moonflow({ "-e", "print(1 < {})" })
    assert.truthy(lines(run.err)[1]:find("attempt to compare number with table$"), run.err)
  end)

  it("shows an error object by its __tostring, and survives one that fails", function()
    local run = process.moonflow({ "-e", "error(setmetatable({}, { __tostring = function() return 'my words' end }))" })
    assert.equal("my words", lines(run.err)[1])
    run = process.moonflow({ "-e", "error(setmetatable({}, { __tostring = function() error('again') end }))" })
    assert.equal(1, run.code)
    assert.truthy(run.err:find("__tostring fails", 1, true))
  end)

  it("shows what is in a table without one", function()
    script("raise.lua", "local problem = { code = 3, message = 'disk full', traceback = 'mine', { 1, 2 } }\n"
      .. "error(setmetatable(problem, { __index = error }))\n")
    local shown = '{ { 1, 2 }, code = 3, message = "disk full", traceback = "mine" }'
    local run = process.moonflow({ "raise.lua" }, { folder = folder })
    assert.equal(1, run.code)
    assert.same({ shown, "stack traceback:", "\t[C]: in function 'error'", "\traise.lua:2: in main chunk" },
      lines(run.err))
    run = process.moonflow({ "-e", "require('moonflow').spawn(dofile, 'raise.lua')" }, { folder = folder })
    assert.equal(shown, lines(run.err)[1])
    run = process.moonflow({ "-e", "require = nil error({})" })
    assert.equal("(error object is a table value)", lines(run.err)[1])
  end)

  it("folds the library's own frames", function()
    local text = "local flow = require 'moonflow'\nlocal np = flow.np\nnp.zeros('many')\n"
    script("inside.lua", text)
    local run = process.moonflow({ "inside.lua" }, { folder = folder })
    assert.equal(1, run.code)
    assert.is_nil(run.err:match("stack traceback:.*lua/moonflow/"))
    assert.truthy(run.err:find("inside.lua:3:", 1, true))
  end)

  it("runs where the system gives no second thread", function()
    script("alone.lua", "local np = require('moonflow').np\nprint(np.matmul(np.ones({ 300, 300 }), "
      .. "np.ones({ 300, 300 })):sum())\n")
    -- A limit of processes holds for other users than root. A sanitizer wants a thread of its own.
    if process.sanitizer ~= "" then return pending("a sanitized build") end
    local limited = "setpriv --reuid=12345 --clear-groups prlimit --nproc=1 "
    os.execute("chmod a+r " .. process.quote(folder .. "/alone.lua"))  -- whatever umask says
    local command = process.quote(process.launcher) .. " " .. process.quote(folder .. "/alone.lua")
    if process.shell("chmod a+rx " .. process.quote(folder) .. " && " .. limited .. "test -r "
      .. process.quote(process.launcher)).code ~= 0 then return pending("only root can be another user") end
    local run = process.shell(limited .. "env OMP_NUM_THREADS=4 " .. command)
    assert.equal("27000000\n", run.out, run.err)
    assert.equal(0, run.code)
  end)

  it("takes a script in a folder that is called as the library's for the user's", function()
    assert.equal(0, os.execute("mkdir -p " .. process.quote(folder .. "/lua/moonflow")))
    script("lua/moonflow/own.lua", "local np = require('moonflow').np\nlocal a = np.ones({ 5 })\nprint(a[100])\n")
    local run = process.moonflow({ "lua/moonflow/own.lua" }, { folder = folder })
    assert.truthy(run.err:find("own.lua:3: index 100 is out of range", 1, true), run.err)
  end)

  it("says a missing file, a syntax error and an unknown option without a traceback", function()
    local run = process.moonflow({ "missing.lua" }, { folder = folder })
    assert.equal(1, run.code)
    assert.equal(1, #lines(run.err))
    script("syntax.lua", "x = = 1")
    run = process.moonflow({ "syntax.lua" }, { folder = folder })
    assert.equal(1, run.code)
    assert.equal(1, #lines(run.err))
    script("syntax.lua", "local job = type {\n}\n(print)")
    run = process.moonflow({ "syntax.lua" }, { folder = folder })
    assert.equal("syntax.lua:3: ambiguous syntax (function call x new statement) near '('; a '(' stands on the line of "
      .. "what it calls\n", run.err)
    assert.equal(2, process.moonflow({ "--unknown" }).code)
    run = process.moonflow({ "-jbogus", "-e", "print(1)" })
    assert.equal(1, run.code)
    assert.equal("-j knows no bogus, and there is no module jit.bogus", lines(run.err)[1])
  end)

  it("says what attach wants", function()
    for _, words in ipairs { { "attach" }, { "attach", "one.sock", "other.sock" } } do
      local run = process.moonflow(words)
      assert.equal(2, run.code)
      assert.equal("attach: wants the path of one socket, as in: moonflow attach path.sock", lines(run.err)[1])
    end
  end)

  it("delivers what is pending when the script ends", function()
    script("pending.lua", [[
      local flow = require "moonflow"
      local tp = flow.typing
      local job = flow.global_function {
        inputs = { x = tp.Numpy.Placeholder({ 5 }) }, returns = tp.Callback[tp.Numpy],
      } (function(x) return flow.nn.relu(x) end)
      for i = 1, 10 do job(flow.np.full({ 5 }, i))(function(y) print(y:mean()) end) end
      print("end of script")
    ]])
    local run = process.moonflow({ "pending.lua" }, { folder = folder })
    assert.equal("", run.err)
    assert.equal(0, run.code)
    local out = lines(run.out)
    assert.equal(11, #out)
    assert.equal("10", out[11])
  end)

  it("tells a script that has forked that its session stayed with the parent, and opens another one", function()
    script("fork.lua", [[
      local ffi, flow = require "ffi", require "moonflow"
      ffi.cdef [=[
        struct pollfd { int fd; short events, revents; };
        int poll(struct pollfd* descriptors, unsigned long count, int milliseconds);
        int fork(void); int waitpid(int process, int* status, int options); unsigned alarm(unsigned seconds);
      ]=]
      local tp, ones = flow.typing, flow.np.ones({ 200, 200 })
      local function define(returns)
        return flow.global_function {
          inputs = { x = tp.Numpy.Placeholder({ 200, 200 }) }, returns = returns,
        } (function(x) return flow.matmul(x, x) end)
      end
      local now, later = define(tp.Numpy), define(tp.Callback[tp.Numpy])
      later(ones)(function() end)
      local delivered = ffi.new("struct pollfd", { flow.fd(), 1 })
      if arg[1] == "quiet" then
        ffi.C.poll(delivered, 1, 60000)
        ffi.C.poll(nil, 0, 200)
      end
      local child = ffi.C.fork()
      if child == 0 then
        ffi.C.alarm(100)
        for _, call in ipairs { flow.poll, flow.sync, function() now(ones) end, function() later(ones) end } do
          print((select(2, pcall(call))))
        end
        flow.shutdown()
        print(define(tp.Numpy)(ones)[0][0])
        return
      end
      local status = ffi.new("int[1]")
      ffi.C.waitpid(child, status, 0)
      print("the child's code", status[0])
      flow.sync()
      print(now(ones)[0][0])
    ]])
    -- What only the stacks of the parent's threads held looks leaked in the child, so no sanitizer looks for leaks.
    local env = { OMP_NUM_THREADS = "2", ASAN_OPTIONS = "detect_leaks=0:allocator_may_return_null=1" }
    -- The sanitizer of GCC 12 hands a child the locks that threads of the parent held in its own allocator, and nobody
    -- ever opens them: there the child begins while the parent's threads wait, with a callback to deliver.
    local quiet = process.sanitizer ~= "" and "quiet" or nil
    local run = process.moonflow({ "fork.lua", quiet }, { folder = folder, env = env })
    assert.equal("", run.err)
    local out = lines(run.out)
    for i = 1, 4 do assert.truthy(out[i]:find("the process that opened it", 1, true), out[i]) end
    assert.same({ "200", "the child's code\t0", "200" }, { unpack(out, 5) })
  end)

  it("ends with exit code 1 when a pending callback fails", function()
    script("late.lua", [[
      local flow = require "moonflow"
      local tp = flow.typing
      local job = flow.global_function {
        inputs = { x = tp.Numpy.Placeholder({ 5 }) }, returns = tp.Callback[tp.Numpy],
      } (function(x) return flow.nn.relu(x) end)
      job(flow.np.zeros({ 5 }))(function() error("in a callback") end)
    ]])
    local run = process.moonflow({ "late.lua" }, { folder = folder })
    assert.equal(1, run.code)
    assert.truthy(run.err:find("late.lua:6: in a callback", 1, true))
  end)

  -- Sends a signal when the script's loop has begun, and after a minute SIGKILL, which gives 137. The shell would have
  -- what runs beside it leave SIGINT alone; without --foreground the whole group gets it, so the script twice, and a
  -- second signal ends it at once.
  local function stop_by(signal)
    return function(text, options, path)
      path = path or folder .. "/loop.lua"
      process.write(path, (text:gsub("while true do", "io.open('begun', 'w'):close() %0", 1)))
      os.remove(folder .. "/begun")
      local command = ("env --default-signal=INT timeout --foreground --preserve-status -s KILL 60 %s %s %s & "
        .. "until [ -e begun ] || ! kill -0 $!; do sleep 0.05; done; sleep 0.2; kill -s %s $!; wait $!"):format(
        process.quote(process.launcher), options or "", process.quote(path), signal)
      return process.shell("sh -c " .. process.quote(command), { folder = folder })
    end
  end

  describe("on Ctrl-C", function()
    local interrupt = stop_by("INT")

    it("stops a loop, interpreted or compiled, with exit code 130", function()
      assert.equal(130, interrupt("while true do end", "-joff").code)
      assert.equal(130, interrupt("local i = 0 while true do i = i + 1 end").code)
    end)

    it("stops a script that catches every error", function()
      assert.equal(130, interrupt("while true do pcall(string.rep, 'x', 10) end").code)
    end)

    it("stops such a script in order, whatever its folder is called", function()
      assert.equal(0, os.execute("mkdir -p " .. process.quote(folder .. "/moonflow")))
      local run = interrupt([[
        require "moonflow"
        io.write("said")  -- what is not flushed is lost where the process just ends
        while true do pcall(function() for i = 1, 1e9 do local _ = i end end) end
      ]], "-joff", folder .. "/moonflow/loop.lua")
      assert.equal(130, run.code)
      assert.equal("said", run.out)
    end)

    it("stops a job's loop without a traceback", function()
      local run = interrupt([[
        local flow = require "moonflow"
        local tp = flow.typing
        local job = flow.global_function {
          inputs = { x = tp.Numpy.Placeholder({ 5 }) }, returns = tp.Numpy,
        } (function(x) return flow.nn.relu(x) end)
        local x = flow.np.zeros({ 5 })
        while true do job(x) end
      ]])
      assert.equal(130, run.code)
      assert.is_nil(run.err:find("stack traceback", 1, true))
    end)

    it("lets a script save what it has learnt, however it was stopped", function()
      local script_text = [[
        local flow = require "moonflow"
        local job = flow.global_function { type = "train", returns = flow.typing.Numpy } (function()
          local w = flow.get_variable("w", { shape = { 64, 64 }, initializer = flow.ones_initializer() })
          flow.optimizer.SGD(0.1):minimize(flow.math.reduce_sum(w))
          return flow.math.reduce_sum(w)
        end)
        flow.on_interrupt(function()
          local before = job():item()
          print("steps on", job():item() < before)
          flow.train.CheckPoint():save("stopped", { overwrite = true })
          print("saved", flow.checkpoint.get("stopped").w.rank)
        end)
        print("begun")
      ]]
      for _, loop in ipairs { "while true do job() end", "while true do pcall(job) end", "while true do end" } do
        local run = interrupt(script_text .. loop, loop == "while true do end" and "-joff" or nil)
        assert.equal(130, run.code)
        assert.equal("begun\nsteps on\ttrue\nsaved\t2\n", run.out)
      end
    end)

    it("lets it wait for runs that were in flight, some of which the Ctrl-C has cut short", function()
      local run = interrupt([[
        local flow = require "moonflow"
        local tp = flow.typing
        local job = flow.global_function { type = "train", returns = tp.Callback[tp.Numpy] } (function()
          local w = flow.get_variable("w", { shape = { 256, 256 }, initializer = flow.ones_initializer() })
          local y = w
          for _ = 1, 10 do y = flow.matmul(y, w) end
          flow.optimizer.SGD(1e-9):minimize(flow.math.reduce_mean(y))
          return flow.math.reduce_mean(w)
        end)
        flow.on_interrupt(function()
          flow.sync()
          print("a step gives", job():get().rank)
          flow.train.CheckPoint():save("stopped", { overwrite = true })
          print("saved", flow.checkpoint.get("stopped").w.rank)
        end)
        print("begun")
        while true do job()(function(mean) mean:item() end) end
      ]])
      assert.equal("begun\na step gives\t0\nsaved\t2\n", run.out)
      assert.equal(130, run.code)
    end)

    it("has shown in a file what was printed, also where it ends at once", function()
      local run = interrupt("print('said') while true do for i = 1, 1e9 do local _ = i end end")
      assert.equal(130, run.code)
      assert.equal("said\n", run.out)
    end)

    it("leaves the last checkpoint whole", function()
      local job = [[
        local flow = require "moonflow"
        local job = flow.global_function { returns = flow.typing.Numpy } (function()
          return flow.get_variable("w", { shape = { 512, 512 }, initializer = flow.constant_initializer(2) })
        end)
        local check_point = flow.train.CheckPoint()
      ]]
      assert.equal(130, interrupt(job .. [[
        check_point:init()
        while true do check_point:save("model", { overwrite = true }) end
      ]]).code)
      script("load.lua", job .. "check_point:load('model') print(job():mean())")
      local run = process.moonflow({ "load.lua" }, { folder = folder })
      assert.equal("", run.err)
      assert.equal("2\n", run.out)
    end)
  end)

  describe("on SIGTERM", function()
    local terminate = stop_by("TERM")

    it("lets a script save what it has learnt, and dies of the signal", function()
      for _, loop in ipairs { "while true do job() end", "while true do pcall(job) end" } do
        local run = terminate([[
          local flow = require "moonflow"
          local job = flow.global_function { type = "train", returns = flow.typing.Numpy } (function()
            local w = flow.get_variable("w", { shape = { 64, 64 }, initializer = flow.ones_initializer() })
            flow.optimizer.SGD(0.1):minimize(flow.math.reduce_sum(w))
            return flow.math.reduce_sum(w)
          end)
          flow.on_interrupt(function()
            job()
            flow.train.CheckPoint():save("stopped", { overwrite = true })
            io.write("saved\t", flow.checkpoint.get("stopped").w.rank)
          end)
        ]] .. loop)
        assert.equal("saved\t2", run.out)
        assert.equal(143, run.code)
      end
    end)

    it("ends a script that waits for a pipe, in words", function()
      local run = terminate("io.write('said') io.flush() while true do for _ in io.popen('sleep 5'):lines() do end end")
      assert.equal("said", run.out)
      assert.truthy(run.err:find("%.lua:1: interrupted\n"), run.err)
      assert.equal(143, run.code)
    end)

    it("ends a script that takes no notice of it", function()
      local run = terminate("io.write('said') io.flush() while true do for i = 1, 1e9 do local _ = i end end")
      assert.equal("said", run.out)
      assert.equal(143, run.code)
    end)

    it("ends a prompt", function()
      local run = process.moonflow({}, { input = "os.execute('kill -s TERM $PPID')\nprint('still here')\n" })
      assert.equal("", run.out)
      assert.equal(143, run.code)
    end)
  end)

  describe("without a script", function()
    local function typed(text)
      return process.moonflow({}, { input = text })
    end

    it("prints the values of expressions, and runs statements of several lines", function()
      local run = typed("1 + 1\nfor i = 1, 2 do\nprint(i)\nend\nx = 'kept'\nx, nil\n{ 1,\n}\n")
      assert.equal("", run.err)
      assert.equal(0, run.code)
      assert.same({ "2", "1", "2", "kept\tnil", "{ 1 }" }, lines(run.out))
    end)

    it("goes on after an error and says so by its exit code", function()
      local run = typed("error('one')\nprint('two')\n")
      assert.equal("two\n", run.out)
      assert.equal(1, run.code)
    end)

    it("does not load bytecode", function()
      local run = typed(string.dump(function() return 1 end) .. "\n")
      assert.equal(1, run.code)
    end)

    it("defines and runs jobs, one after another", function()
      local run = typed([[
flow = require "moonflow"
tp = flow.typing
relu = flow.global_function {
  inputs = { x = tp.Numpy.Placeholder({ 2 }) },
  returns = tp.Numpy,
} (function(x) return flow.nn.relu(x) end)
relu(flow.np.array({ -1, 2 }))
square = flow.global_function {
  inputs = { x = tp.Numpy.Placeholder({ 2 }) },
  returns = tp.Numpy,
} (function(x) return flow.math.square(x) end)
square(flow.np.array({ -1, 2 }))
]])
      assert.equal("", run.err)
      assert.equal("[0. 2.]\nfloat32 (2)\n[1. 4.]\nfloat32 (2)\n", run.out)
    end)
  end)

  describe("a host that keeps libraries of Lua from its scripts", function()
    local take_away = [[
      for _, name in ipairs { "debug", "io", "os", "package", "ffi", "jit", "require", "load", "loadstring" } do
        _G[name] = nil
      end
    ]]

    it("takes them away once the library is loaded, and everything works", function()
      local run = process.moonflow({ script("sandbox.lua", [[
        local flow = require "moonflow"
      ]] .. take_away .. [[
        local np, tp = flow.np, flow.typing
        local train_job = flow.global_function {
          type = "train", inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Callback[tp.Numpy],
        } (function(x)
          local loss = flow.math.square(flow.layers.dense(flow.reshape(x, { 1, 2 }), 1, { name = "d" }))
          flow.watch(loss, function(value) print("watched", value.shape) end)
          flow.optimizer.SGD(0.1):minimize(loss)
          return loss
        end)
        flow.config.on_error(function(problem) print("failed", problem) end)
        train_job(np.ones({ 2 }))(function() print("delivered") end)
        train_job(np.ones({ 2 }))(function() error("mine", 0) end)
        flow.sync()
        flow.spawn(function() print("awaited", train_job(np.ones({ 2 })):await().shape) end)
        flow.sync()
        print(pcall(flow.nn.relu))
        print(pcall(train_job, 1))
        local check_point = flow.train.CheckPoint()
        check_point:save("sandboxed")
        check_point:load("sandboxed")
        np.save("sandboxed.npy", np.ones({ 2 }))
        print(np.load("sandboxed.npy"))
        print((flow.help("flow.nn.relu"):match("^[^\n]*")))
        print((train_job:summary():match("%-> (%S+)")))
        np.linalg.svd(np.random.poisson(3, { 2, 2 }))
      ]]) }, { folder = folder })
      assert.equal("", run.err)
      assert.equal(0, run.code)
      assert.equal([[
watched	(1, 1)
delivered
watched	(1, 1)
failed	mine
  in the callback of train_job (delivery 7, submitted at sandbox.lua:16)
watched	(1, 1)
awaited	(1, 1)
false	sandbox.lua:20: flow.nn.relu is used outside of a job function; it belongs in the body given to ]]
        .. [[flow.global_function
false	sandbox.lua:21: train_job: input 'x' is 1, its placeholder wants an ndarray float32 (2)
[1. 1.]
flow.nn.relu(x, [name])
Callback[Numpy]
]], run.out)
    end)

    it("is told where a prompt comes too late", function()
      local run = process.moonflow({ script("late.lua", [[
        local flow = require "moonflow"
        debug = nil
        print(pcall(flow.serve_repl, "late.sock"))
      ]]) }, { folder = folder })
      assert.equal("false\tlate.lua:3: flow.serve_repl needs Lua's library 'debug' when it begins; take it away "
        .. "afterwards\n", run.out)
    end)

    it("is told where that is too early", function()
      local run = process.moonflow({ script("early.lua", [[
        debug = nil
        print(pcall(require, "moonflow"))
      ]]) }, { folder = folder })
      assert.equal("false\tmoonflow needs Lua's library 'debug' while it is loaded; afterwards it may be taken away\n",
        run.out)
    end)
  end)
end)

-- The stock program cannot load a module that was built with a sanitizer.
if process.sanitizer == "" then
  describe("Debian's luajit", function()
    it("loads the library when its path is set", function()
      local run = process.shell("luajit -e 'print(require(\"moonflow\").np.zeros({ 2 }))'", {
        env = {
          LUA_PATH = process.source .. "/lua/?.lua;" .. process.source .. "/lua/?/init.lua;;",
          LUA_CPATH = process.build .. "/lua/?.so;;",
        },
      })
      assert.equal("", run.err)
      assert.equal("[0. 0.]\n", run.out)
    end)
  end)
end
