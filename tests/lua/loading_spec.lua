-- How the files of Moonflow are loaded: as the bytecode that the library has of them, where their text is still that.
local core = require "moonflow.core"
local util = require "jit.util"
local process = require "process"

local own = debug.getinfo(require("moonflow").sync, "S").source:match("^@(.*)session%.lua$")

-- Of a function and of those within, one after another.
local function instructions(func)
  local seen = {}
  local function add(f)
    local info = util.funcinfo(f)
    for at = 0, info.bytecodes - 1 do seen[#seen + 1] = util.funcbc(f, at) end
    for i = 1, info.gcconsts do
      local constant = util.funck(f, -i)
      if type(constant) == "proto" then add(constant) end
    end
  end
  add(func)
  return table.concat(seen, " ")
end

describe("a file of Moonflow", function()
  local folder
  before_each(function() folder = process.folder("loading") end)

  it("is loaded as what it compiles to, with its lines and names", function()
    local count = 0
    for path in io.popen("find " .. process.quote(own) .. " -name '*.lua'"):lines() do
      local chunk, made = core.load_file(path)
      assert.is_true(made, path)
      assert.equal("@" .. path, debug.getinfo(chunk, "S").source)
      local compiled = assert(loadfile(path))
      assert.same(debug.getinfo(compiled, "L").activelines, debug.getinfo(chunk, "L").activelines)
      assert.equal(instructions(compiled), instructions(chunk), path)
      count = count + 1
    end
    assert.is_true(count > 100, tostring(count))
  end)

  it("is compiled where its text is another one, and may lie anywhere", function()
    local text = process.read(own .. "digits.lua")
    local deep = folder .. "/" .. ("long"):rep(40)
    assert.equal(0, os.execute("mkdir " .. process.quote(deep)))
    for _, path in ipairs { folder .. "/d.lua", deep .. "/d.lua" } do
      process.write(path, text)
      local chunk, made = core.load_file(path)
      assert.is_true(made)
      assert.equal("@" .. path, debug.getinfo(chunk, "S").source)
      process.write(path, text .. "--")
      assert.is_false(select(2, core.load_file(path)))
    end
    assert.is_false(select(2, core.load_file(own .. "digits.lua", false)))
    process.write(folder .. "/d.lua", "x = 1\nx = = 2")
    local chunk, complaint = core.load_file(folder .. "/d.lua")
    assert.is_nil(chunk)
    assert.truthy(complaint:find("d.lua:2: unexpected symbol", 1, true), complaint)
    assert.has_error(function() core.load_file(folder .. "/none.lua") end)
  end)

  -- The program `moonflow` with Moonflow's files from a copy.
  local function run(text)
    local set = ("package.path = %q .. package.path "):format(folder .. "/?.lua;" .. folder .. "/?/init.lua;")
    return process.moonflow({ "-e", set .. text }, { folder = folder })
  end

  it("needs neither ffi nor jit, but for what reads memory by pointers", function()
    local ended = process.moonflow({ "-e", [[
      ffi, jit, package.loaded.jit, package.loaded.ffi, package.preload.ffi = nil, nil, nil, nil, nil
      local found = require
      function require(name) return name == "ffi" and error("module 'ffi' not found") or found(name) end
      local flow = require "moonflow"
      local np, tp = flow.np, flow.typing
      local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Numpy } (function(x)
        return x + 1
      end)
      print(job(np.array { 1, 2 }))
      print(select(2, pcall(np.cumprod, { 1, 2 })).message)
    ]] })
    assert.equal("[2. 3.]\na:ptr(), by which this reads memory, needs LuaJIT's FFI, which is switched off here; a:at "
      .. "and a[i] of numbers work without it\n", ended.out, ended.err)
  end)

  it("sees Lua's own functions, whatever globals a script makes, but for print", function()
    local ended = process.moonflow({ "-e", [[
      local flow, write = require "moonflow", print
      type, next, select, table, unpack, pcall = "train", 5, 2, { 1, 2 }, 1, 0
      print = function(_, value) write("mine", value) end
      local job = flow.global_function { inputs = { x = flow.typing.Numpy.Placeholder({ 2 }) } } (function(x)
        flow.watch(x + 1, "x + 1")
      end)
      job(flow.np.ones { 2 })
      write((job:dot():match("^%a+")), (flow.help("np.zeros"):match("^[^\n]+")))
    ]] })
    assert.equal("mine\t[2. 2.]\ndigraph\tnp.zeros(shape, dtype = \"float32\")\n", ended.out, ended.err)
  end)

  it("may be changed: the next start takes what it says", function()
    local copy = "mkdir %s && cd %s && find . -name '*.lua' -exec cp --parents -L {} %s \\;"
    local to = process.quote(folder .. "/moonflow")
    assert.equal(0, os.execute(copy:format(to, process.quote(own), to)))
    local ended = run [[
      for _, one in ipairs { require("moonflow").poll, require("moonflow").np.sort } do
        print(debug.getinfo(one, "S").source)
      end
    ]]
    assert.equal(("@%s/moonflow/session.lua\n@%s/moonflow/np/order.lua\n"):format(folder, folder), ended.out, ended.err)

    local path = folder .. "/moonflow/progress.lua"
    local text = process.read(path)
    process.write(path, "print 'changed' " .. text)
    assert.equal("changed\n", run("require 'moonflow'").out)

    process.write(path, "return = 1")
    ended = run("require 'moonflow'")
    local says = "error loading module 'moonflow.progress' from file '" .. path .. "':"
    assert.truthy(ended.err:find(says, 1, true), ended.err)
    assert.truthy(ended.err:find("progress.lua:1: unexpected symbol", 1, true), ended.err)

    os.remove(path)
    ended = run("require 'moonflow'") -- then it comes from wherever else there is one
    assert.equal("", ended.err)
  end)

  it("gives the same functions where the library is loaded once more", function()
    local ended = process.moonflow({ "-e", [[
      local before, functions = require "moonflow", {}
      for name, value in pairs(before.math) do functions[name] = value end
      functions.matmul = before.matmul
      package.loaded.moonflow = nil
      local flow, same = require "moonflow", 0
      for name, value in pairs(functions) do
        same = same + ((name == "matmul" and flow or flow.math)[name] == value and 0 or 1)
      end
      print(same)
    ]] })
    assert.equal("0\n", ended.out, ended.err)
  end)

  it("stays the engine of a script that clears package.loaded to have its own files run again", function()
    local ended = process.moonflow({ "-e", [[
      local flow = require "moonflow"
      local function define(given)
        local Numpy = given.typing.Numpy
        return given.global_function({ name = "learn", type = "train", inputs = { x = Numpy.Placeholder({ 1, 2 }) },
          returns = Numpy }, function(x)
            local loss = given.layers.dense(x, 1, { name = "out" }) ^ 2
            given.optimizer.SGD(0.1):minimize(loss)
            return loss
          end)
      end
      local function clear()
        for name in pairs(package.loaded) do
          if name:find("^moonflow") then package.loaded[name] = nil end
        end
      end
      local x, learn = flow.np.ones { 1, 2 }, define(flow)
      learn(x)
      clear()
      flow.log.open("run"):write { step = 1, loss = learn(x) } -- its file is loaded when it is first asked for
      clear()
      local searchers, held = #package.loaders, nil
      for round = 1, 12 do
        clear()
        local again = require "moonflow"
        assert(again == flow and package.loaded["moonflow.session"] and package.loaded["moonflow.core"])
        assert(package.loaded["moonflow.np.order"])  -- a file that gives nothing
        learn = define(again)
        learn(x)
        if round == 2 then
          collectgarbage()
          held = collectgarbage("count")
        end
      end
      collectgarbage()
      print(learn:train_steps(), #package.loaders - searchers, collectgarbage("count") - held < 100)
    ]] }, { folder = folder })
    assert.equal("14\t0\ttrue\n", ended.out, ended.err)
  end)

  it("is compiled by another LuaJIT than that of the build", function()
    local ended = process.moonflow({ "-e", [[
      local version = jit.version
      jit.version = "LuaJIT 2.2"
      local flow = require "moonflow"
      print(flow.np.ones { 1 })
      debug, io, os, package, require, type = nil, nil, nil, nil, nil, "train"  -- what a host may keep from its scripts
      print((flow.help("np.zeros"):match("^[^\n]+")))
      jit.version = version
    ]] })
    assert.equal("[1.]\nnp.zeros(shape, dtype = \"float32\")\n", ended.out, ended.err)
  end)

  it("adds one searcher to those of require, whenever it is loaded", function()
    local ended = process.moonflow({ "-e", [[
      local before = #package.loaders
      for _ = 1, 2 do
        require "moonflow"
        for name in pairs(package.loaded) do
          if name:find("^moonflow") and name ~= "moonflow.core" then package.loaded[name] = nil end
        end
      end
      print(#package.loaders - before)
    ]] })
    assert.equal("1\n", ended.out, ended.err)
  end)
end)
