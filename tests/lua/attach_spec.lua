-- A prompt inside a running process: flow.serve_repl and `moonflow attach`.
local process = require "process"
local terminal = require "terminal"
local jobs = require "prompt_jobs"

local folder, history, sockets

local function prompt(arguments)
  return terminal.prompt(arguments, nil, folder, history)
end

local function write(name, text)
  process.write(folder .. "/" .. name, text)
end

setup(function()
  folder, sockets = process.folder("attach"), process.short_folder()
  history = folder .. "/history"
end)

teardown(function()
  terminal.close_all()
  process.shell("rm -rf " .. sockets)
end)

describe("an attached prompt", function()
  local socket

  -- A script in a terminal of its own, with the path of the socket.
  local function program(script)
    return terminal.open(("%s %s %s"):format(process.quote(process.launcher), script, process.quote(socket)),
      { folder = folder })
  end

  -- A program that serves until `quit` is set, in a terminal of its own.
  local function host(text)
    socket = sockets .. "/host.sock"
    os.remove(socket)
    write("host.lua", jobs .. [[
      steps = 0
      local waiter = require("moonflow.session").waiter()
      server = flow.serve_repl(arg[1])
      print("serving")
      repeat
        flow.poll(2)
        steps = steps + 1
        waiter:wait(5)
      until quit
      server:close()
    ]] .. (text or ""))
    local t = program("host.lua")
    t:wait_for("serving")
    return t
  end

  local function attached(text)
    return process.moonflow({ "attach", socket }, { input = text })
  end

  -- The same as soon as the terminal before it is known to be gone.
  local function attached_at_last(text)
    for _ = 1, 1000 do
      local run = attached(text)
      if run.code == 0 then return run end
    end
    error("it takes no other terminal")
  end

  it("looks at and changes the running process, and sees its own output", function()
    local h = host()
    local run = attached([[
print("hello", steps > 0)
local before = steps
x
:watch job.rectified
job(x);
error("mine")
function f()
  return "of several lines"
end
f()
]])
    assert.equal("hello\ttrue\n[ 1. -1.  2. -2.]\nfloat32 (4)\njob.rectified: [1. 0. 2. 0.]\nfloat32 (4)\n"
      .. "of several lines\n", run.out)
    assert.equal("attached:6: mine\nstack traceback:\n\t[C]: in function 'error'\n\tattached:6: in main chunk\n",
      run.err)
    assert.equal(1, run.code)
    assert.equal("true\n", attached("steps > before\n").out)
    assert.truthy(attached(":who\n").out:find("job = job(x: float32[4]) -> Numpy", 1, true))
    assert.equal("", attached("quit = true\n").err)
    assert.truthy(h:wait_for("ended with 0"))
    h:close()
    assert.equal(1, attached("1\n").code)
  end)

  it("ends its own watches by `:watch off`, and one of the program's by its name", function()
    local h = host()
    assert.equal("", attached("seen = 0; job:watch('rectified', function() seen = seen + 1 end);\n").err)
    local run = attached(":watch job.rectified\n:watch off\njob(x);\nseen\n:watch\n:watch job.rectified off\n"
      .. "job(x);\nseen\nquit = true\n")
    assert.equal("1\nwatching job.rectified\n1\n", run.out, run.err)
    h:wait_for("ended with 0")
    h:close()
  end)

  it("sees all of an output that is long", function()
    local h = host()
    local run = attached("list = {} for i = 1, 20000 do list[i] = i end print(table.concat(list, ' ')) quit = true\n")
    local wanted = {}
    for i = 1, 20000 do wanted[i] = i end
    assert.is_true(run.out == table.concat(wanted, " ") .. "\n", #run.out .. " bytes")
    h:wait_for("ended with 0")
    h:close()
  end)

  it("sends a chunk that is long, and says of one that is too long", function()
    local h = host()
    local function long(n) return "#'" .. ("x"):rep(n) .. "'\n" end
    assert.equal("1000000\n", attached(long(1000000)).out)
    local run = attached(long(2000000) .. "'here'\n")
    assert.equal("a chunk of 2000003 bytes is too long to be sent, it may have 1048512\n", run.err)
    assert.equal("here\n", run.out)
    assert.equal("", attached("quit = true\n").err)
    h:wait_for("ended with 0")
    h:close()
  end)

  it("takes several lines at once", function()
    local h = host()
    local t = prompt({ "attach", socket })
    t:paste("local n = ('x')\n  :rep(3)\n#n\nnothing.here\n"):press("Enter")
    t:wait_for("\n3\nattached:4: attempt to index")
    t:wait_for_last(">")
    t:enter("quit = true"):wait_for("ended with")
    h:wait_for("ended with 0")
    h:close()
    t:close()
  end)

  it("serves a process that has taken Lua's libraries away once it began", function()
    local h = host()
    local run = attached("debug, io, os, package = nil\n{ steps = steps > 0 }\n:who\nerror('mine')\n? flow.nn.relu\n")
    assert.truthy(run.out:find("{ steps = true }", 1, true), run.out)
    assert.truthy(run.out:find("job = job(x: float32[4]) -> Numpy", 1, true), run.out)
    assert.truthy(run.out:find("flow.nn.relu(x, [name])", 1, true), run.out)
    assert.truthy(run.err:find("^attached:4: mine\nstack traceback:"), run.err)
    assert.equal("", attached("quit = true\n").err)
    h:wait_for("ended with 0")
    h:close()
  end)

  it("finds no fault with a process that ends after the last of the chunks it was sent", function()
    local h = host()
    -- The connection is closed with the answer, so that both are there when the terminal's side looks.
    local run = attached([[
function server.client:send(word, text)
  getmetatable(self).__index.send(self, word, text)
  if word == "done" then self.gone = true end
end
]])
    assert.equal("", run.err)
    assert.equal(0, run.code)
    run = attached("quit = true os.exit(0)\n'more'\n")
    assert.equal("the process has closed the connection\n", run.err)
    assert.equal(1, run.code)
    h:close()
  end)

  it("edits, completes and recalls as the local one, and leaves on Ctrl-D", function()
    local h = host()
    local t = prompt({ "attach", socket })
    t:type("flow.layers.conv2d(x, 1, { pad"):press("Tab"):wait_for_last("> flow.layers.conv2d(x, 1, { padding")
    t:drop_line():type("steps_of = 'a' .. 1; ste"):press("Tab"):wait_for("1; steps")
    t:drop_line():enter("? flow.nn.relu"):wait_for("flow.nn.relu(x")
    t:wait_for_last(">")
    t:enter("job:summary()"):wait_for("rectified  relu")
    t:wait_for_last(">")
    t:press("C-d"):wait_for("ended with 0")
    t:close()
    assert.equal("still\n", attached("'still'\nquit = true\n").out)
    h:wait_for("ended with 0")
    h:close()
  end)

  it("stops a chunk on Ctrl-C while the process goes on", function()
    local h = host()
    local t = prompt({ "attach", socket })
    t:enter("print('be' .. 'gun') while true do end"):wait_for("begun")
    t:press("C-c"):wait_for("interrupted\n>")
    t:enter("'after ' .. 'it'"):wait_for("after it")
    t:enter("quit = true"):wait_for("ended with")
    h:wait_for("ended with 0")
    h:close()
    t:close()
  end)

  it("refuses a second terminal, and takes one when the first has gone", function()
    local h = host()
    local t = prompt({ "attach", socket })
    local run = attached("1\n")
    assert.equal("", run.out)
    assert.equal(1, run.code)
    assert.truthy(run.err:find("one at a time", 1, true))
    process.shell("kill -KILL " .. t:pid())
    t:wait_for("ended with 137")
    local taken = attached("'taken'\n")
    assert.equal("taken\n", taken.out)
    attached("quit = true\n")
    h:wait_for("ended with 0")
    h:close()
    t:close()
  end)

  it("takes one terminal after another, as a script opens them", function()
    local h = host()
    for i = 1, 20 do
      local run = attached(("%d * 2\n"):format(i))
      assert.equal(2 * i .. "\n", run.out)
      assert.equal("", run.err)
      assert.equal(0, run.code)
    end
    attached("quit = true\n")
    h:wait_for("ended with 0")
    h:close()
  end)

  it("survives a terminal that is killed while its chunk runs", function()
    local h = host()
    local t = prompt({ "attach", socket })
    t:enter("while true do print(('x'):rep(1000)) end"):wait_for(("x"):rep(80))
    process.shell("kill -KILL " .. t:pid())
    local run = attached_at_last("1 + 1\n")
    assert.equal("2\n", run.out)
    attached("quit = true\n")
    h:wait_for("ended with 0")
    h:close()
    t:close()
  end)

  it("never waits for a terminal that does not read", function()
    local h = host()
    write("silent.lua", [[
      local core = require "moonflow.core"
      local chunk = "for i = 1, 5000 do print(('x'):rep(1000)) end io.write('fini', 'shed\\n') io.flush()"
      local socket = core.connect(arg[1])
      socket:write("evaluate " .. #chunk .. "\n" .. chunk)
      io.read()
      local all = ""
      repeat
        local text = socket:read()
        all = all .. (text or "")
      until not text or all:find("done", 1, true)
      socket:write("evaluate 1\n1")
      repeat all = all .. socket:read() until all:find("bytes left out", 1, true)
      print("heard")
    ]])
    local t = program("silent.lua")
    h:wait_for("finished")
    t:press("Enter"):wait_for("heard")
    t:wait_for("ended with 0")
    attached("quit = true\n")
    h:wait_for("ended with 0")
    h:close()
    t:close()
  end)

  it("drops who sends garbage, without harm", function()
    local h = host()
    write("garbage.lua", [[
      local core = require "moonflow.core"
      for _, text in ipairs({ ("\0\255"):rep(100), "evaluate 99999999999\n", "evaluate -1\nx",
                              "unknown 1\nx", "complete 3\nabc", ("x"):rep(2 ^ 16), "evaluate 5\n1" }) do
        local socket
        repeat
          socket = core.connect(arg[1])
          repeat local answer = socket:read() until answer ~= ""  -- hello, refused or gone
          local sent = socket:write(text)
        until sent
        socket:close()
      end
      print("sent")
    ]])
    local run = process.moonflow({ "garbage.lua", socket }, { folder = folder })
    assert.equal("sent\n", run.out, run.err)
    run = attached_at_last("1 + 1\n")
    assert.equal("2\n", run.out)
    attached("quit = true\n")
    h:wait_for("ended with 0")
    h:close()
  end)

  it("leaves the socket of another that has taken its place", function()
    local path = sockets .. "/place.sock"
    local run = process.moonflow({ "-e", ([[
      local flow = require "moonflow"
      local first = flow.serve_repl(%q)
      os.remove(%q)
      local second = flow.serve_repl(%q)
      first:close()
      print(require("moonflow.core").connect(%q) ~= nil)
      second:close()
    ]]):format(path, path, path, path) })
    assert.equal("true\n", run.out, run.err)
    assert.is_nil(io.open(path))
  end)

  it("is a socket for its owner alone, that goes with the service, and never takes another file's place", function()
    local h = host()
    assert.equal("srw-------", process.shell("ls -l " .. process.quote(socket)).out:match("^%S+"))
    local run = process.moonflow({ "-e", "require('moonflow').serve_repl(arg[-1] or '" .. socket .. "')" })
    assert.truthy(run.err:find("in use", 1, true), run.err)
    attached("quit = true\n")
    h:wait_for("ended with 0")
    h:close()
    assert.is_nil(io.open(socket))
    write("plain", "text")
    run = process.moonflow({ "-e", "require('moonflow').serve_repl('plain')" }, { folder = folder })
    assert.truthy(run.err:find("flow.serve_repl: .*no socket"), run.err)
    assert.equal("text", process.read(folder .. "/plain"))
  end)

  it("does not poll for a process that never does, and says so", function()
    socket = sockets .. "/host.sock"
    write("deaf.lua", "flow = require 'moonflow' s = flow.serve_repl(arg[1]) print('serving') io.read()")
    local h = program("deaf.lua")
    h:wait_for("serving")
    local t = terminal.open(process.quote(process.launcher) .. " attach " .. process.quote(socket))
    t:wait_for("will answer when it calls flow.poll")
    t:press("C-c"):wait_for("ended with")
    h:press("Enter"):wait_for("ended with 0")
    h:close()
    t:close()
  end)
end)
