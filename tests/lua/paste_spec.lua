-- Pasting into the prompt, as terminals do it: between two marks.
local process = require "process"
local terminal = require "terminal"

local here = terminal.place("paste")

local function prompt(options) return here.prompt({}, options) end

before_each(here.begin)
teardown(terminal.close_all)

describe("a paste", function()
  it("waits for Enter as text, whose lines go on with one another, and is one entry of the history", function()
    local t = prompt()
    t:paste("local x = ('ab')\n  :rep(2)\n-- a remark\nx\n\n")
    t:wait_for("> local x = ('ab')\n  :rep(2)\n-- a remark\nx\n")
    t:press("Enter"):wait_for("-- a remark\nx\nabab\n>")
    t:paste("function f()\n  return 'f'"):press("Enter"):wait_for_last(">>")
    t:paste("end\nf()"):press("Enter"):wait_for("end\nf()\nf\n>")
    t:press("Up", "Up", "Enter"):wait_for("\nf\n> local x = ('ab')\n  :rep(2)\n-- a remark\nx\nabab\n>")
    t:close()
    assert.equal("local x = ('ab')\\n  :rep(2)\\n-- a remark\\nx\nfunction f()\\n  return 'f'\\nend\\nf()\n"
      .. "local x = ('ab')\\n  :rep(2)\\n-- a remark\\nx\n", process.read(here.history))
  end)

  it("goes into the middle of a line as it is, but for control characters", function()
    local t = prompt()
    t:type("s = ('<>'); #s, s")
    for _ = 1, #">'); #s, s" do t:press("Left") end
    t:paste("\tö\027\1€\255x"):press("Enter"):wait_for("\n9   ")
    t:enter("s == '<\\t\\195\\182\\226\\130\\172x>'"):wait_for("true\n>")
    t:close()
  end)

  it("may end its lines with CR, LF or both", function()
    local t = prompt()
    for _, line_end in ipairs { "\r", "\n", "\r\n" } do
      t:paste((("s = [[a__b_]]; #s, s:byte(2, -2)"):gsub("_", line_end)), true):press("Enter")
      t:wait_for("5       10      10      98\n>")
      t:enter("print(('\\n'):rep(50))"):wait_for("\n\n\n\n>")
    end
    t:close()
  end)

  it("of many lines does not take long", function()
    local t = prompt()
    t:paste(("n = (n or 0) + 1 -- and so on\n"):rep(20000) .. "n + 0.5\n"):press("Enter"):wait_for("\n20000.5\n>")
    t:close()
  end)

  it("that does not end is dropped by Ctrl-C", function()
    local t = prompt()
    t:type("\027[200~n = 1\nn = 2"):press("C-c"):wait_for(">\n>")
    t:enter("n, 1 + 1"):wait_for("nil     2\n>")
    t:close()
  end)

  it("of any length is still there after a look at the history", function()
    local t = prompt()
    t:enter("'entry'"):wait_for("\nentry\n>")
    t:paste(("n = (n or 0) + 1\n"):rep(100) .. "n + 0.5"):wait_for_last("n + 0.5")
    t:press("Up"):wait_for_last("> 'entry'")
    t:press("Down"):wait_for_last("n + 0.5")
    t:press("Enter"):wait_for("\n100.5\n>")
    t:close()
  end)
end)

describe("the terminal's mode for pastes", function()
  -- When it was last turned to that.
  local ON, OFF = "%?2004h[^?]*$", "%?2004l[^?]*$"

  it("is off for programs that are run, and when the prompt has been left", function()
    local t = prompt()
    local path = here.folder .. "/left.log"
    t:log(path):enter("os.execute('cat -v')"):wait_for("> os.execute('cat -v')\n")
    t:paste("pasted"):press("Enter", "C-d"):wait_for("pasted\npasted\n0\n>")
    t:wait_for_log(path, ON)
    t:press("C-c"):wait_for(">\n>")
    t:wait_for_log(path, ON)
    t:press("C-d"):wait_for("ended with 0")
    t:wait_for_log(path, OFF)
    t:close()
  end)

  it("is off while Ctrl-Z has stopped the prompt", function()
    local t = terminal.open("PS1='$ ' dash -i", { folder = here.folder })
    t:wait_for_last("$")
    t:enter("MOONFLOW_HISTORY= " .. process.quote(process.launcher)):wait_for_last(">")
    local path = here.folder .. "/stopped.log"
    t:log(path):type("1 +"):wait_for_last("> 1 +")
    t:press("C-z"):wait_for_last("$")
    t:wait_for_log(path, OFF)
    t:enter("fg"):wait_for_last("> 1 +")
    t:paste(" 1\n2"):press("Enter"):wait_for("\n2\n2\n>")
    t:press("C-d"):wait_for_last("$")
    t:close()
  end)
end)
