-- Several lines at once, as a paste or a recalled entry hands them to the evaluator of the prompt.
require "moonflow"
local core = require "moonflow.core"
local chunks = require "moonflow.chunks"
local repl = require "moonflow.repl"

local function new_evaluator()
  local self = { out = "", err = "" }
  self.evaluator = repl.new {
    write = function(text) self.out = self.out .. text end, complain = function(text) self.err = self.err .. text end,
    describe = core.describe_error, fold = core.fold_traceback,
    print = function(...)
      local words = {}
      for i = 1, select("#", ...) do words[i] = tostring((select(i, ...))) end
      self.out = self.out .. table.concat(words, "\t") .. "\n"
    end,
  }
  return self
end

local function pasted(text, to)
  to = to or new_evaluator()
  to.out, to.err = "", ""
  to.fine, to.leave = to.evaluator:evaluate(text)
  return to
end

describe("several lines at once", function()
  it("print their values and keep their locals, as if typed one after the other", function()
    local run = pasted([[
local a = 1
a + 1
_ * 10 -- ten times

local function twice(n)
  return 2 * n
end
twice(a); twice(21)
a = 5;
'silent';
{ a,
  nil, "b" }
for i = 1, 2 do
  print(i)
end
= a]])
    assert.equal("", run.err)
    assert.equal("2\n20\n42\n{ 5, [3] = \"b\" }\n1\n2\n5\n", run.out)
    assert.is_true(run.fine)
    assert.is_false(run.leave)
  end)

  it("are one piece where a line goes on with the one before, past blank lines and comments", function()
    local run = pasted([[
local s = ("x")
  :rep(3)
  -- a remark

  .. "y"
s:upper()
  :lower()
1
  + 2 *
  3
true
  and nil
  or "else"
local t = { f = function(_, x) return x end }
t
  :f "said"
t
  :f { 1 }
]])
    assert.equal("xxxy\n7\nelse\nsaid\n{ 1 }\n", run.out)
    assert.equal("", run.err)
  end)

  it("take commands and questions on lines of their own", function()
    local run = pasted("x = 7\n:who\n? flow.nn.relu\nlocal text = [[\n:who\n? x\n]]\ntext\nflow.nn.relu?\n"
      .. ":time x + 1\n")
    assert.equal("", run.err)
    assert.truthy(run.out:find("^%S.-x = 7\n"), run.out)
    assert.equal(2, select(2, run.out:gsub("  out = max%(x, 0%)\n", "")))
    assert.truthy(run.out:find("\n:who\n? x\n", 1, true))
    assert.truthy(run.out:find("\n8\ntook %d+%.%d+ ms\n$"))
    _G.x = nil
  end)

  it("end with the first error, which names its line of the session", function()
    local run = pasted("local x = 1\nx")
    pasted("\n-- the fourth line\nx + 1\n\nlocal function f()\n  error('deep')\nend\nf()\n'not reached'", run)
    assert.equal("2\n", run.out)
    assert.equal("stdin:8: deep\nstack traceback:\n\t[C]: in function 'error'\n\tstdin:8: in function 'f'\n"
      .. "\tstdin:10: in main chunk\n", run.err)
    assert.is_false(run.fine)
    pasted("x\n:load nowhere.lua\n'not reached'", run)
    assert.equal("1\n", run.out)
    pasted("'last'\nquit\n'not reached'", run)
    assert.equal("last\n", run.out)
    assert.is_true(run.leave)
  end)

  it("run not at all where some of them is wrong, which is said of its line", function()
    local run = pasted("seen = 1\nseen = = 2\nseen = 3")
    assert.equal("stdin:2: unexpected symbol near '='\n", run.err)
    assert.is_nil(rawget(_G, "seen"))
    pasted("print('seen')\nfor i = 1, 2 do\n  print(i))\nend", run)
    assert.equal("stdin:6: unexpected symbol near ')'\n", run.err)
    assert.equal("", run.out)
    pasted("x = 1 +\n:who\n", run)
    assert.equal("stdin:9: unexpected symbol near ':'\n", run.err)
    assert.is_false(run.fine)
    -- As one chunk the first stops at line 2, and piece by piece the second.
    assert.equal("stdin:3: unexpected symbol near '='\n", pasted("seen = 1\nseen + 1\nseen = = 2").err)
    assert.equal("stdin:3: unexpected symbol near '='\n", pasted("seen = tostring\n{ 1 }(2)\nseen = = 2").err)
  end)

  it("are compiled as one chunk where they need one another", function()
    local run = pasted("local i = 0\n::again::\ni = i + 1\nif i < 3 then goto again end\nprint(i)")
    assert.equal("3\n", run.out, run.err)
    pasted(":who\nlocal j = 0\n::again::\nj = j + 1\nif j < 3 then goto again end\n:who\nj * 2", run)
    assert.truthy(run.out:find("\nlocal j = 3\n.*\n6\n$"), run.out)
    assert.equal("", run.err)
  end)

  it("want more where the last piece does", function()
    for _, text in ipairs {
      "x = 5\nx", "a = 1\na + 1", "f()\n-- a remark", "local s = [[\n]]", "f(1\n, 2)", ":who\n:summary job\n",
      "1\n:time 2", "x = 1\nx?", "\n\n", "x = = 1\n", "'it''s'\n? [[", "goto past\nx = 1\n::past::", "-- [[\n1",
      "'open\n",
    } do assert.is_false(chunks.incomplete(text), text) end
    for _, text in ipairs {
      "x = 5\nx +", "a + 1\nfunction f()", "1\n--[[ open", "f(1\n,", ":who\nx = {", "1\nlocal s = [[\n:who", "1\nlocal",
      "x\nif y then\nz = 1\n", "function f()\n  return {\n", "[[", "1\nrepeat x = 1 until",
    } do assert.is_true(chunks.incomplete(text), text) end
  end)

  it("can be stopped while they are taken apart", function()
    local interrupts = require "moonflow.interrupts"
    local run = new_evaluator()
    local text = ("seen = 1\n"):rep(5000)
    local function stopped(fn, ...)
      local prompt = coroutine.create(fn)  -- as a prompt calls it, without a script
      debug.sethook(function()
        if coroutine.running() == prompt and interrupts.may_stop(1) then error("interrupted", 0) end
      end, "", 100)
      local fine, result = coroutine.resume(prompt, ...)
      debug.sethook()
      return fine, result
    end
    assert.same({ true, false }, { stopped(run.evaluator.evaluate, run.evaluator, text) })
    assert.truthy(run.err:find("interrupted\n$"), run.err)
    assert.is_nil(rawget(_G, "seen"))
    assert.same({ false, "interrupted" }, { stopped(run.evaluator.incomplete, run.evaluator, text .. "seen") })
  end)

  it("may be many, and long pieces", function()
    local lines = {}
    for i = 1, 20000 do
      lines[i] = i % 2 == 0 and "local v" .. i .. " = " .. i or "sum = (sum or 0) + 1 -- of them"
    end
    local run = pasted(table.concat(lines, "\n") .. "\nsum, v20000")
    assert.equal("10000\t20000\n", run.out, run.err)
    _G.sum = nil
    for i = 1, 20000 do lines[i] = "  " .. i .. "," end
    run = pasted("local t = {\n" .. table.concat(lines, "\n") .. "\n}\n#t")
    assert.equal("20000\n", run.out, run.err)
    for i = 1, 20000 do lines[i] = "  '" .. i .. "'\n  .." end
    run = pasted("local s = #(\n" .. table.concat(lines, "\n", 1, 100) .. "'')\ns")
    assert.equal("192\n", run.out, run.err)
    assert.is_true(chunks.incomplete("1\nfunction f()\n" .. ("  x = x + 1\n"):rep(20000)))
  end)
end)
