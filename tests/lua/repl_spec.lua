-- The prompt as a person meets it: typed into a pipe, and in a terminal.
local process = require "process"
local terminal = require "terminal"
local jobs = require "prompt_jobs"

local here = terminal.place("repl")
local prompt = here.prompt

local function write(name, text)
  process.write(here.folder .. "/" .. name, text)
end

local function typed(text)
  local run = process.moonflow({}, { input = text, folder = here.folder })
  -- 0, or 1 after an error, which is on stderr: else it is the process that ended, and what it had to say is lost.
  assert(run.code == 0 or run.code == 1 and run.err ~= "", "the prompt ended with " .. run.code .. ": " .. run.err)
  return run
end

before_each(here.begin)
teardown(terminal.close_all)

describe("the evaluator", function()
  it("keeps locals of the top level between chunks, also functions and those that are nil", function()
    local run = typed([[
local a, b = 1, 2
local function double(n) return 2 * n end
local nothing
nothing = 5
double(a + b), _G.nothing, nothing
do local a = 10 end
a
local a = a + 1; local a = a * 10
a
local print = print
print("shadowed by itself")
local t = { local_ = 1, ["local"] = function() local inner = 3 return inner end }
t["local"]()
inner
]])
    assert.equal("", run.err)
    assert.equal("6\tnil\t5\n1\n20\nshadowed by itself\n3\nnil\n", run.out)
  end)

  it("names the table of all globals without showing what is in it", function()
    assert.equal("_G, the table of all globals; `:who` lists yours\n", typed("setmetatable(_G, {})\n").out)
  end)

  it("numbers the lines of a very long session anew, under another name", function()
    local run = typed("local kept = 1\nfunction first() error('early') end\n" .. ("kept = kept + 1\n"):rep(9998)
      .. "kept\nfirst()\nerror('late')\nfirst??\n")
    assert.equal("9999\n", run.out:match("^%d+\n"))
    assert.truthy(run.err:find("stdin:2: early", 1, true), run.err)
    assert.truthy(run.err:find("stdin (2):3: late", 1, true), run.err)
  end)

  it("keeps a local without a value that a semicolon ends", function()
    local run = typed([[
local x; local y = 2
x, y
local t, u = {}, 1;local f; f = 3
#t, u, f
x = 1
local x;
x = 5; x, _G.x
local a; a = 3; a
local none
(print)("called")
]])
    assert.equal("", run.err)
    assert.equal("nil\t2\n0\t1\t3\n5\tnil\n3\ncalled\n", run.out)
  end)

  it("goes on where a global has the name of a function of Lua's, and so does the library", function()
    local run = typed([[
for _, name in ipairs { "error", "getmetatable", "ipairs", "jit", "load", "math", "next", "pairs", "pcall", "rawget",
  "select", "setfenv", "setmetatable", "string", "table", "tonumber", "tostring", "type", "unpack", "xpcall",
} do _G[name] = name end
type
{ 1, { name = select } }
]] .. jobs .. [[
job(x)
? flow.nn.relu
:summary job
nothing.here
type = nil
:who
]])
    assert.equal("stdin:23: attempt to index global 'nothing' (a nil value)\nstack traceback:\n"
      .. "\tstdin:23: in main chunk\n", run.err)
    assert.truthy(run.out:find("^type\n{ 1, { name = \"select\" } }\n%[1%. 0%. 2%. 0%.%]\nfloat32 %(4%)\n"), run.out)
    for _, text in ipairs { "\n  out = max(x, 0)\n", "\n  rectified ", "\nunpack = unpack\n" } do
      assert.truthy(run.out:find(text, 1, true), run.out)
    end
    assert.falsy(run.out:find("\ntype = ", 1, true))
  end)

  it("knows flow, and names the line typed, where a strict mode watches the globals", function()
    local run = typed([[
declared = 1
local function refuse(_, name) error("undeclared " .. name, 2) end
setmetatable(_G, { __index = refuse, __newindex = refuse });
flow.np.ones({ 1 })
declared, declared == nil
declared = 2
declared
missing
missing = 1
]])
    assert.equal("[1.]\nfloat32 (1)\n1\tfalse\n2\n", run.out)
    local places = {}
    for place in run.err:gmatch("[^\n]*undeclared missing") do places[#places + 1] = place end
    assert.same({ "stdin:8: undeclared missing", "stdin:9: undeclared missing" }, places, run.err)
  end)

  it("shows functions typed before the local as it is now", function()
    assert.equal("2\n", typed("local n = 1\nfunction get() return n end\nlocal n = 2\nget()\n").out)
  end)

  it("prints values, keeps the last one in _, and is silent after a semicolon", function()
    local run = typed("1, nil, 'x'\n= 2\n3;\n_ + 1\n-- a remark\nnil\n'a\\0b'\n")
    assert.equal("1\tnil\tx\n2\n4\nnil\na\0b\n", run.out)
    assert.equal(0, run.code)
  end)

  it("prints the value behind the last semicolon of statements", function()
    local run = typed("x = 5; x\nlocal y = x + 1; y * 2 -- a remark\nz = 3; z;\n_\n"
      .. "for i = 1, 2 do local q = i; print(q) end; x\nf = function() local a = 8; return a end; f()\n"
      .. "x = 1; y = 2\ny\nx = 6; -- a remark\nx = 7; y = 9;\nx\n")
    assert.equal("5\n12\n3\n1\n2\n5\n8\n2\n7\n", run.out)
    assert.equal("", run.err)
    run = typed("x = 1; error('deep')\nx = ; 3\n")
    assert.equal("stdin:1: deep\nstack traceback:\n\t[C]: in function 'error'\n\tstdin:1: in main chunk\n"
      .. "stdin:2: unexpected symbol near ';'\n", run.err)
  end)

  it("waits for more lines only when the text is cut off", function()
    local run = typed("f = function()\n\nreturn [[a\nb]]\nend\nf()\n{ 1,\n\n2 }\n'open\n1 +\n1\n")
    assert.equal("a\nb\n{ 1, 2 }\n2\n", run.out)
    assert.equal("stdin:10: unfinished string near ''open'\n", run.err)
  end)

  it("shows what an op or a layer is made of", function()
    local run = typed("?? flow.nn.relu\n?? flow.layers.dense\n")
    assert.truthy(run.out:find("^the op 'relu' of the engine, which is no Lua\n"), run.out)
    assert.truthy(run.out:find("composed/layers.lua:%d+\n$"), run.out)
  end)

  it("says that the input has ended where its last text lacks an end", function()
    local run = typed("x = 1\nfor i = 1, 2 do\n  print(i)\n")
    assert.truthy(run.err:find("near '<eof>'; the input has ended, and what begins at line 2 was not complete", 1,
      true), run.err)
  end)

  it("inspects tables by sorted keys, with cycles, limits and no metamethod but __tostring", function()
    local run = typed([[
t = { 3, 2, z = { a = 1 }, ["a b"] = true, [10] = "\n" } t.self = t
t
{ { { { { 1 } } } } }
#require("moonflow.inspect").text((function() local t = {} for i = 1, 1000 do t[i] = i end return t end)()) < 500
setmetatable({}, { __index = error, __tostring = function() return "mine" end })
setmetatable({ 1 }, { __index = error, __call = error, __len = error })
]])
    assert.equal("", run.err)
    assert.equal([[
{ 3, 2, [10] = "\n", ["a b"] = true, self = <cycle>, z = { a = 1 } }
{ { { { { ... } } } } }
true
mine
{ 1 }
]], run.out)
  end)

  it("shows arrays with dtype and shape in a last line", function()
    local run = typed("flow.np.zeros({ 2, 2 })\n{ w = flow.np.zeros({ 50, 50 }), b = flow.np.ones({ 2 }) }\n")
    assert.equal("[[0. 0.]\n [0. 0.]]\nfloat32 (2, 2)\n{ b = [1. 1.] float32 (2), w = ndarray float32 (50, 50) }\n",
      run.out)
  end)

  it("says an error as one traceback that counts the lines typed", function()
    local run = typed("function f()\n  error('deep')\nend\n\nlocal r = f()\nflow.np.zeros('many')\n")
    assert.equal(1, run.code)
    assert.equal([[
stdin:2: deep
stack traceback:
	[C]: in function 'error'
	stdin:2: in function 'f'
	stdin:5: in main chunk
stdin:6: np.zeros: argument 1 ('shape') must be a number or a list, got 'many'
stack traceback:
	(5 frames inside moonflow)
	stdin:6: in main chunk
]], run.err)
  end)

  it("shows what is in a table that is raised, here or in a callback", function()
    local run = typed(jobs .. "error({ code = 3, message = 'disk full' })\n"
      .. "later(square)(function() error({ code = 4 }) end); flow.sync()\n")
    assert.truthy(run.err:find('^{ code = 3, message = "disk full" }\nstack traceback:\n'), run.err)
    assert.truthy(run.err:find("\n{ code = 4 }\n  in the callback of ", 1, true), run.err)
  end)

  it("names jobs after what they are assigned to, and lets them be redefined and run again", function()
    local run = typed(jobs .. [[
job(x)
job = flow.global_function {
  inputs = { x = tp.Numpy.Placeholder({ 4 }) }, returns = tp.Numpy,
} (function(x) return flow.math.square(x) end)
job
job(x)
]])
    assert.equal("", run.err)
    assert.equal("[1. 0. 2. 0.]\nfloat32 (4)\njob(x: float32[4]) -> Numpy  [predict, 1 op]\n"
      .. "[1. 1. 4. 4.]\nfloat32 (4)\n", run.out)
  end)

  it("works without the engine, and says why it is not there", function()
    local run = process.moonflow({ "-e", "package.preload['moonflow.core'] = function() error('no driver') end", "-i" },
      { input = "1 + 1\n? print\n" })
    assert.equal("2\n", run.out)
    assert.truthy(run.err:find("no driver", 1, true))
    assert.equal(1, run.code)
  end)

  it("explains functions of the catalog and of the library, and suggests the nearest", function()
    local run = typed("? flow.layers.conv2d\nflow.nn.relu?\n?flow.watch\n? flow.optimizer.SGD\n?convd2\n")
    for _, text in ipairs({
      "flow.layers.conv2d(inputs, filters, kernel_size = 1", "shapes: weight (filters", "flow.nn.relu(x",
      "flow.watch(value, [dtype], [handler], [options])", "errors: outside a job",
      "flow.optimizer.SGD(lr_scheduler, momentum = 0.9", "w = w - rate * g",
    }) do assert.truthy(run.out:find(text, 1, true), text) end
    assert.truthy(run.err:find("did you mean flow.layers.conv2d, flow.nn.conv2d?", 1, true))
  end)

  it("finds functions by words of their help, best first and a screen of them", function()
    local run = typed("? learning rate\n? padding\n? gradient clipping\n?Linear\n? nothing has these words\n? shapes\n")
    local function first_of(pattern) return run.out:find(pattern) end
    assert.truthy(first_of("^flow%.optimizer%.%a+Scheduler +%S"), run.out)
    assert.truthy(first_of("\nflow%.layers%.conv2d +A convolution with bias and activation%.\n"))
    assert.truthy(first_of("\nflow%.pad +x with a border of one value, or one in which"))
    assert.truthy(first_of("\nflow%.optimizer%.grad_clipping%.by_global_norm +%S"))
    assert.truthy(first_of("\nflow%.layers%.dense +A linear layer"))
    local list, more = run.out:match("([^\n]*\n[^\n]*)\nand (%d+) more\n$")
    assert.truthy(list and tonumber(more) > 100, run.out)
    for line in run.out:gmatch("[^\n]+") do assert.truthy(#line <= 80, line) end
    assert.equal("no help has all of the words 'nothing has these words'\n", run.err)
  end)

  it("names recipes and samples below them, or alone", function()
    local run = typed("? early stopping\n? gradient clipping\n? gan\n")
    assert.truthy(run.out:find("^docs/training.md  The best so far, and an early end\n"), run.out)
    assert.truthy(run.out:find("\nflow%.optimizer%.grad_clipping%.by_global_norm .*"
      .. "\ndocs/training%.md +Rates, clipping, weight decay\n"), run.out)
    assert.truthy(run.out:find("\nsamples/gan_mnist%.lua +A DCGAN draws digits\n"), run.out)
    assert.equal("", run.err)
  end)

  it("takes a word that nothing has for the beginning of one, in flow.help too", function()
    local run = typed("?conv\n?zz\n")
    assert.truthy(run.out:find("flow.layers.conv2d ", 1, true), run.out)
    assert.truthy(run.out:find("flow.nn.conv2d_transpose ", 1, true))
    assert.equal("nothing is called 'zz'\n", run.err)
    assert.equal(run.out, typed("flow.help 'conv'\n").out)
    assert.truthy(typed("? exponen decay\n").out:find("flow.optimizer.ExponentialScheduler ", 1, true))
    assert.truthy(typed("flow.help 'learning rate'\n").out:find("^flow%.optimizer%.%a+Scheduler +%S"))
    assert.truthy(typed("flow.help()\n").out:find("^flow has\n.* get_variable%s.*%slayers%s"))
    assert.equal("nil\n", typed("flow.help 'zz'\n").out)
  end)

  it("says what to write in place of a name of other libraries, as reading it does, in flow.help too", function()
    local run = typed("? flow.nn.GLU\n? GLU\n? vmap\n? flow.nn.BatchNorm2d\n")
    local _, times = run.out:gsub("there is no flow%.nn%.GLU; a %* flow%.math%.sigmoid%(b%) is it", "")
    assert.equal(2, times, run.out)
    assert.truthy(run.out:find("there is no flow.vmap; ops take a batch", 1, true), run.out)
    assert.equal("nothing is called 'flow.nn.BatchNorm2d'; did you mean flow.layers.batch_normalization?\n", run.err)
    for name, part in pairs { cdist = "flow.cdist; flow.math", jvp = "flow.jvp", DiceLoss = "flow.DiceLoss",
                              ReduceLROnPlateau = "ReduceLROnPlateau", ["nn.spectral_norm"] = "flow.nn.spectral" } do
      local text = typed(("flow.help '%s'\n"):format(name)).out
      assert.truthy(text:find("there is no ", 1, true) and text:find(part, 1, true), text)
    end
    assert.truthy(typed("? roll\n").out:find("^there is no [^\n]+\n.*flow%.np%.roll "))
  end)

  it("answers what people type at prompts of other kinds, unless it is a name of theirs", function()
    assert.truthy(typed("help\n").out:find("^%? name, name%?"))
    assert.equal("1\n", typed("1\nquit\n2\n").out)
    assert.equal("", typed(" exit\n2\n").out)
    assert.equal("3\n4\n", typed("local exit = 3\nexit\nquit = 4\nquit\n").out)
    assert.equal("1\n", typed("1\nexit()\n2\n").out)
    assert.equal(typed(":help\n").out, typed("help()\n").out)
    local relu = typed("? flow.nn.relu\n").out
    for _, asked in ipairs { 'help("flow.nn.relu")', "help(flow.nn.relu)", "help 'nn.relu'" } do
      assert.equal(relu, typed(asked .. "\n").out)
    end
    assert.equal("7\n", typed("function help(x) return x + 1 end\nhelp(6)\n").out)
  end)

  it("counts the lines of what is typed, also where an expression ends", function()
    local run = typed("1;\nno.thing\n(no\n.thing) -- with a word behind it\n\nlocal a = no.thing\n"
      .. "assert(load('\\n\\nerror()', '=chunk'))()\n2 -- two\n")
    assert.equal("2\n", run.out)
    local places = {}
    for place in run.err:gmatch("([%w:]+): in main chunk") do places[#places + 1] = place end
    assert.same({ "stdin:2", "stdin:4", "stdin:6", "chunk:3", "stdin:7" }, places)
  end)

  it("explains the function of a call under way, and methods of what functions give", function()
    local run = typed("? flow.layers.conv2d(x, 32\n? y = flow.layers.dense(flow.nn.relu(x), 10, { use_bi\n"
      .. "? flow.optimizer.Adam.minimize\n? optimizer:minimize\ncheck_point = flow.train.CheckPoint()\n"
      .. "? check_point.save\n? flow.np.zeros\n")
    local texts = {
      "flow.layers.conv2d(inputs, filters", "\nflow.layers.dense(inputs, units", "\noptimizer:minimize(loss)\n",
      "\nCheckPoint:save(path, overwrite = false, slots = true, [metadata])\nWrites all variables",
      "\n  slots? (boolean)", "\nnp.zeros(shape, dtype = \"float32\")\nZeros in this shape",
    }
    for _, text in ipairs(texts) do assert.truthy(run.out:find(text, 1, true), text) end
    assert.falsy(run.out:find("values? (table)", 1, true))
    assert.falsy(run.out:find("flow.nn.relu(x", 1, true))
    assert.equal("nothing is called 'flow.optimizer.Adam.minimize'; did you mean optimizer:minimize?\n", run.err)
  end)

  it("says what each function of the library does", function()
    local run = process.moonflow({ "-e", [[
      local flow = require "moonflow"
      local seen, none = {}, {}
      local function walk(folder, path)
        if seen[folder] then return end
        seen[folder] = true
        for name, value in pairs(folder) do
          if type(value) == "table" and not rawget(getmetatable(value) or {}, "kind") then
            walk(value, path .. "." .. name)
          end
          local is_function, full = type(value) == "function", path .. "." .. name
          for _, text in ipairs(is_function and { flow.help(value, full), flow.help(value) } or {}) do
            local said = text:match("^[^\n]+\n([^\n]+)") or "defined at"
            local place = text:match("\ndefined at ([^\n]+)$") or "moonflow/catalog.lua:1"
            if said:find("^defined at") or not place:find("^moonflow/[%w_/]+%.lua:%d+$") then none[#none + 1] = full end
          end
        end
      end
      walk(flow, "flow")
      print(table.concat(none, " "))
      print((flow.help(flow.np.sum):match("^[^(]+")), (flow.help(flow.np.zeros({ 1 }).take):match("^[^\n]+")))
      print((flow.help("typing.ListNumpy.Placeholder"):match("An input with one array per device")))
    ]] })
    assert.equal("\na:sum\ta:take(indices, [axis])\nAn input with one array per device\n", run.out)
  end)

  it("can be stopped while it searches", function()
    require "moonflow"
    local interrupts = require "moonflow.interrupts"
    local search = coroutine.create(require("moonflow.help").found_text)  -- as a prompt calls it, without a script
    debug.sethook(function()
      if coroutine.running() == search and interrupts.may_stop(1) then error("interrupted", 0) end
    end, "", 1000)
    local fine, problem = coroutine.resume(search, "gru", 80)
    debug.sethook()
    assert.is_false(fine)
    assert.equal("interrupted", problem)
    assert.truthy(require("moonflow.help").found_text("gru", 80):find("flow.layers.gru ", 1, true))
  end)

  it("loads a file, tells the time, lists what is defined, and leaves", function()
    write("defines.lua", "from_file = ... or 7\n")
    local run = typed(":load defines.lua\nfrom_file\n:time 1 + 1\nlocal mine = 'here'\n:who\n:load nowhere.lua\n"
      .. ":quit\n3\n")
    assert.truthy(run.out:find("^7\n2\ntook %d+%.%d+ ms\n"))
    assert.truthy(run.out:find("from_file = 7\nlocal mine = here\n$"))
    assert.truthy(run.err:find("nowhere.lua", 1, true))
  end)

  it("says what a command lacks", function()
    local run = typed(":load\n:time\n:summary\n:summary { 1 }\n")
    assert.equal("", run.out)
    assert.equal(":load wants the path of a Lua file\n:time wants an expression\n:summary wants an expression\n"
      .. ":summary wants a job, got { 1 }\n", run.err)
  end)

  it("takes no method for a command, and says that the line before it has run", function()
    local run = typed("s = ('x')\n  :rep(3)\n  .. 'y'\n:load(1)\n(s\n  :rep(3)\n  .. 'y')\n")
    assert.equal("xxxy\n", run.out)
    local advice = "; what stands before it was complete and has run: end a line that is to go on with an operator, or "
      .. "put the whole into brackets\n"
    assert.equal("stdin:2: unexpected symbol near ':'" .. advice .. "stdin:3: unexpected symbol near '..'" .. advice
      .. "stdin:4: unexpected symbol near ':'" .. advice, run.err)
  end)

  it("suggests what a command may have meant", function()
    assert.equal("there is no command ':wach'; did you mean ':watch'?\nthere is no command ':zz'; `:help` lists them\n"
      .. ":watch wants a job and one of its values, such as train_job.conv1; nothing here is a job yet\n",
      typed(":wach job.y\n:zz\n:watch job.y\n").err)
    local wanted = ":watch wants a job and one of its values, such as train_job.conv1"
    assert.equal(wanted .. "; did you mean 'job'?\n" .. wanted .. "; jobs here are job, later\n"
      .. ":watch wants one of the values of job as well, such as job.x; `:summary job` lists them\n"
      .. "job has no value 'rectifed'; did you mean 'rectified'?\n"
      .. ":summary wants a job, got nil; did you mean 'later'?\n",
      typed(jobs .. ":watch jop.y\n:watch model.y\n:watch job\n:watch job.rectifed\n:summary latr\n").err)
  end)

  it("lets go of a job that is defined anew, though it was watched", function()
    local run = typed(jobs .. [[
alive = setmetatable({ job }, { __mode = "v" })
:watch job.rectified
job = flow.global_function {
  inputs = { x = tp.Numpy.Placeholder({ 4 }) }, returns = tp.Numpy,
} (function(x) return flow.nn.relu(x, { name = "rectified" }) end)
_ = nil
collectgarbage() collectgarbage()
#alive
:watch
:watch job.rectified
job(x);
]])
    assert.equal("", run.err)
    assert.equal("0\nnothing is watched; `:watch job.name` begins\njob.rectified: [1. 0. 2. 0.]\nfloat32 (4)\n",
      run.out)
  end)

  it("lists and ends the watches of job:watch, though nobody has kept their handles", function()
    local run = typed(jobs .. [[
job:watch("rectified", function() error("seen") end);
:watch job.rectified
:watch
:watch off
:watch
job(x);
job:watch("rectified", function() error("seen") end);
:watch job.other off
:watch
:watch job.rectified off
job(x);
]])
    assert.equal("", run.err)
    assert.equal("watching job.rectified\nwatching job.rectified\nnothing is watched; `:watch job.name` begins\n"
      .. "watching job.rectified\n", run.out)
  end)

  it("summarises a job and watches one of its values from outside", function()
    local run = typed(jobs .. [[
:summary job
:watch job.rectified
job(x);
:watch off
job(x);
:watch job.rectified
job(x);
:watch
:watch job.rectifed
later(square)(function(y) print("later", y:sum()) end)
flow.sync()
]])
    assert.truthy(run.out:find("rectified%s+relu%s+float32 %(4%)"))
    local _, shown = run.out:gsub("job%.rectified: %[1%. 0%. 2%. 0%.%]\n", "")
    assert.equal(2, shown)
    assert.truthy(run.out:find("watching job.rectified\nlater\t0\n", 1, true))
    assert.truthy(run.err:find("job has no value 'rectifed'; did you mean 'rectified'?", 1, true))
  end)
end)

describe("completion", function()
  local function choices(line, before)
    local run = typed((before or "") .. "table.concat(select(2, require('moonflow.complete').candidates(" ..
      ("%q"):format(line) .. ", { _G, { flow = require('moonflow') } })), ' ')\n")
    assert.equal("", run.err)
    return (run.out:gsub("\n$", ""))
  end

  it("knows nested names, methods and keywords", function()
    assert.equal("layer_norm", choices("flow.layers.lay"))
    assert.equal("conv2d conv2d_transpose", choices("x = flow.layers.conv2"))
    local a = "a = flow.np.zeros({ 2 })\n"
    assert.equal("reshape", choices("flow.np.zeros(a).x, a:resh", a))
    assert.equal("rank ravel release released reshape rows", (choices("a.r", a):gsub(" repeat_%w+", "")))
    assert.equal("", choices("a:sh", a))
    assert.equal("layers", choices("?lay"))
    assert.equal("layer_norm", choices("? layers.lay"))
    assert.equal("gmatch gsub", choices("s:g", "s = 'text'\n"):match("gmatch gsub"))
    assert.equal("repeat", choices("repe"))
  end)

  it("knows the options of a call by its signature", function()
    assert.equal("padding", choices("flow.layers.conv2d(x, 32, 5, { pad"))
    assert.equal("padding", choices("flow.layers.conv2d(x, f(1, { 2 }), { strides = { 1, 1 }, pad"))
    assert.equal("momentum", choices("flow.optimizer.SGD { mom"))
    assert.equal("type", choices("job = flow.global_function {\n  ty"))
    assert.equal("padding", choices("flow.nn.max_pool2d(x, { pa"))
  end)

  it("completes files inside strings", function()
    process.write(here.folder .. "/weights_of_lenet.npz", "")
    assert.equal("weights_of_lenet.npz", choices("flow.np.load('weights_of_"))
    -- A link that leads to itself is no folder, and no fault either.
    process.shell("ln -s loop_of_links " .. here.folder .. "/loop_of_links")
    assert.equal("loop_of_links", choices("flow.np.load('loop_of_"))
  end)

  it("completes keys of a table inside brackets", function()
    local before = "run = { res = { loss = 1, ['loss/aux'] = 2, [3] = 4 } }\n"
    assert.equal("loss loss/aux", choices('x = run.res["lo', before))
  end)

  it("calls nothing while it looks", function()
    local before = "trap = setmetatable({ inner = {} }, { __index = function() print('called') end })\n"
    assert.equal("inner", choices("trap.inn", before))
    assert.equal("", choices("trap.nothing.m", before))
    assert.equal("cpu_threads", choices("flow.config.cpu_t"))
  end)
end)

describe("the prompt in a terminal", function()
  it("shows what is running, edits lines and evaluates them", function()
    local t = terminal.open("env MOONFLOW_HISTORY= " .. process.quote(process.launcher), { columns = 100 })
    local screen = t:wait_for_last(">")
    assert.truthy(screen:find("^Moonflow %d+%.%d+%.%d+, LuaJIT [^\n]+ threads?[^\n]*\n[no%d ]*GPUs?: "), screen)
    assert.truthy(screen:find("\n%? name explains[^\n]+\n>\n$"), screen)
    t:type("1 + 2"):press("Left", "BSpace", "F5", "PPage", "F1", "IC"):type("40 + "):press("Enter")
    t:wait_for("> 1 +40 + 2\n43\n>")
    t:close()
  end)

  it("recalls entries of earlier sessions, those of several lines whole, each once", function()
    local t = prompt()
    for _, line in ipairs({ "a = 1", "for i = 1, 2 do", "print('line', i)", "end", "a = 1" }) do t:enter(line) end
    t:wait_for("2\n> a = 1\n>")
    t:press("C-d"):wait_for("ended with 0")
    t:close()
    assert.equal("a = 1\nfor i = 1, 2 do\\nprint('line', i)\\nend\na = 1\n", process.read(here.history))

    t = prompt()
    t:press("Up"):wait_for("> a = 1")
    t:press("Up"):wait_for("> for i = 1, 2 do\nprint('line', i)\nend")
    t:press("Up"):press("Enter")
    t:wait_for("line    2\n>")
    t:close()
  end)

  it("completes names, options and files, and lists several choices", function()
    write("a_file_of_numbers.npz", "")
    local t = prompt()
    t:type("flow.layers.conv2d(x, 32, 5, { pad"):press("Tab"):wait_for_last("> flow.layers.conv2d(x, 32, 5, { padding")
    t:drop_line():type("flow.np.load('a_file"):press("Tab"):wait_for("load('a_file_of_numbers.npz")
    -- Names that part within a letter of two bytes part before it.
    write("namen_é1", "")
    write("namen_è2", "")
    t:drop_line():type("io.open('name"):press("Tab"):wait_for_last("> io.open('namen_")
    t:drop_line():type("flow.layers.batch"):press("Tab"):wait_for("> flow.layers.batch_normalization")
    t:press("Tab"):wait_for("batch_normalization_add_relu")
    t:wait_for_last("> flow.layers.batch_normalization")
    t:close()
  end)

  it("prints what comes meanwhile above the half-typed line", function()
    write("jobs.lua", jobs)
    local t = prompt({ "-i", "jobs.lua" }, { columns = 60 })
    -- One call after the other, which are heard of only once the file is there: when the line is half typed.
    write("again.lua", [[
      local left = 3
      function again()
        later(square)(function()
          if left > 0 and io.open("go") then
            left = left - 1
            io.write("result ", 3 - left, left > 0 and "\n" or "")
          end
          if left > 0 then again() end
        end)
      end
    ]])
    os.remove(here.folder .. "/go")
    t:enter(":load again.lua"):wait_for("> :load again.lua\n>")  -- what is typed before is echoed twice
    t:enter("again()"):wait_for("> again()\n>")
    t:type("half_typed(1, 'and so long that it needs a second line of the terminal, ä"):wait_for("ä")
    write("go", "")
    local screen = t:wait_for("result 1\nresult 2\nresult 3\n> half_typed(1, 'and so long that it needs a second line "
      .. "of\nthe terminal, ä")
    local _, prompts = screen:gsub("half_typed", "")
    assert.equal(1, prompts, screen)
    t:drop_line():enter("'still ' .. 'here'"):wait_for("still here")
    t:close()
  end)

  it("adapts to a new size", function()
    local t = prompt()
    t:resize(40, 20):enter(("'%s'"):format(("x"):rep(60))):wait_for(("x"):rep(40))
    t:enter("{ ('y'):rep(30), ('y'):rep(30) }"):wait_for("{\n  \"yyy")
    t:close()
  end)

  describe("on Ctrl-C", function()
    it("clears the line, empty or half typed, and drops a half-typed chunk", function()
      local t = prompt()
      t:press("C-c"):wait_for(">\n>")
      t:type("half("):wait_for_last("> half(")
      t:drop_line():enter("function f()"):wait_for_last(">>")
      t:drop_line():enter("1 + 1"):wait_for("> 1 + 1\n2\n>")
      t:close()
    end)

    it("puts the script's own hook back", function()
      local t = prompt()
      t:enter("hits = 0"):enter("debug.sethook(function() hits = hits + 1 end, '', 1000)")
      for i, loop in ipairs { "while true do end", "flow.global_function {} (function() while true do end end)" } do
        t:enter(("io.write('begun %d\\n') %s"):format(i, loop)):wait_for("begun " .. i .. "\n")
        t:press("C-c"):wait_for("interrupted\n>")
        t:enter("before = hits for i = 1, 1e5 do end"):enter(("print(%d, hits > before)"):format(i))
        t:wait_for(i .. "       true\n>")
      end
      t:close()
    end)

    it("stops loops, plain, of jobs and of waiting, and goes on with everything as it was", function()
      write("jobs.lua", jobs)
      local t = prompt({ "-i", "jobs.lua" }, { rows = 100 })
      t:enter("kept, counted = 41, 0"):enter("function count() counted = counted + 1 end")
      for i, loop in ipairs({
        "while true do end",
        "for i = 1, math.huge do kept = 41 end",
        "while true do job(x) end",
        "while true do pcall(job, x) end",
        "while true do later(square)(count) end",
        "repeat for i = 1, 8 do later(square)(function() later(square)(count) end) end flow.sync() until false",
      }) do
        t:enter(("print('begun', %d) %s"):format(i, loop)):wait_for("begun   " .. i)
        local screen = t:press("C-c"):wait_for_last(">")
        assert.truthy(screen:find("begun   " .. i .. "\n[^>]*interrupted\n>\n$"), screen)
        t:enter(("flow.sync() print('synced', %d)"):format(i)):wait_for("synced  " .. i .. "\n>")
      end
      t:enter("kept + 1"):wait_for("\n42\n>")
      t:enter("job(x)"):wait_for("[1. 0. 2. 0.]\nfloat32 (4)\n>")
      t:close()
    end)
  end)

  it("says once that callbacks have been stopped, also those that come at the prompt", function()
    write("jobs.lua", jobs)
    write("loops.lua", [[
      local function loop()
        for i = 1, 3 do
          later(square)(function()
            if i == 1 then io.write("loo", "ping\n") end
            while true do end
          end)
        end
      end
      function await_file()
        later(square)(function() if io.open("begin") then loop() else await_file() end end)
      end
    ]])
    os.remove(here.folder .. "/begin")
    local t = prompt({ "-i", "jobs.lua" })
    t:enter(":load loops.lua"):wait_for("> :load loops.lua\n>")
    t:enter("await_file()"):wait_for("> await_file()\n>")
    write("begin", "")
    t:wait_for("looping\n")
    t:press("C-c"):wait_for("interrupted\n>")
    t:enter("'fi' .. 'rst'"):wait_for("first\n>")
    t:enter("'sec' .. 'ond'"):wait_for("second\n>")
    local _, count = t:enter("'la' .. 'st'"):wait_for("last\n>"):gsub("interrupted", "")
    assert.equal(1, count)
    t:close()
  end)

  it("stops a single run that would take minutes", function()
    write("slow.lua", [[
      flow = require "moonflow"
      local tp = flow.typing
      slow = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 1024, 1024 }) }, returns = tp.Numpy } (
        function(x)
          local y = x
          for _ = 1, 6000 do y = flow.matmul(y, x) end
          return y
        end)
      x = flow.np.zeros({ 1024, 1024 }):astype(flow.float)
    ]])
    local t = prompt({ "-i", "slow.lua" })
    t:enter("io.write('be', 'gun\\n') slow(x)"):wait_for("begun")
    t:press("C-c"):wait_for("interrupted\n>")
    t:enter("x:sum()"):wait_for("\n0\n>")
    t:close()
  end)

  it("leaves on Ctrl-D, and delivers what is pending", function()
    write("jobs.lua", jobs)
    local t = prompt({ "-i", "jobs.lua" })
    t:enter("later(square)(function() io.write('deliv', 'ered\\n') end)"):press("C-d")
    assert.truthy(t:wait_for("ended with 0"):find("delivered", 1, true))
    t:close()
  end)

  it("leaves on a Ctrl-D that is pressed while something runs, and not on a Ctrl-Space at the prompt", function()
    write("wait.lua", "function wait(file) repeat until io.open(file) end\n")
    local t = prompt({ "-i", "wait.lua" })
    t:press("C-Space"):enter("io.write('be', 'gun\\n') wait('pressed')"):wait_for("begun")
    t:press("C-d")
    write("pressed", "")
    t:wait_for("ended with 0")
    t:close()
  end)
end)

for _, document in ipairs({ "README.md", "docs/repl.md" }) do
  describe("the session in " .. document, function()
    it("is what a terminal shows", function()
      local text = process.read(process.source .. "/" .. document):match("\n```\n(> .-)```\n"):gsub("\t", "        ")
      local t = prompt(nil, { columns = 100, rows = 250 })
      local shown = ""
      for line in text:gmatch("[^\n]*\n") do
        if line:find("^>>? ") then
          t:wait_for("\n" .. shown .. line:match("^>+") .. "\n")
          t:enter(line:match("^>+ (.*)\n$"))
        end
        shown = shown .. line
      end
      t:wait_for("\n" .. shown .. ">\n")
      t:close()
    end)
  end)
end
