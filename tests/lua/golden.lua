-- What users are told when something is wrong: each message whole, with the user's own file and line. The programs are
-- given as text; `>>` marks the line that the message must name. They stand in user.lua for the time, so two specs that
-- use this do not run in one folder at once.
local assert = require "luassert"
local flow = require "moonflow"

local golden = {}

--- Runs a program and gives the text of its error. The line to be named begins with ">>".
function golden.told(program)
  local line, number = nil, 0
  program = ("\n" .. program):gsub("\n([^\n]*)", function(text)
    number = number + 1
    if text:match("^%s*>>") then line = number end
    return "\n" .. text:gsub(">>", "  ", 1)
  end):sub(2)
  local file = assert(io.open("user.lua", "w")) -- a file, for a job is named by the line that defines it
  file:write(program)
  file:close()
  local chunk = assert(loadfile("user.lua"))
  setfenv(chunk, setmetatable({ flow = flow, np = flow.np, tp = flow.typing }, { __index = _G }))
  local fine, problem = pcall(chunk)
  assert.is_false(fine, "nothing was raised")
  return tostring(problem), "user.lua:" .. tostring(line) .. ": ", problem
end

--- The message must be `expected`, at the marked line.
function golden.whole(expected, program)
  local text, place = golden.told(program)
  assert.equal(place .. expected, text)
end

--- The message must begin so, at the marked line.
function golden.start(expected, program)
  local text, place = golden.told(program)
  assert.equal(place .. expected, text:sub(1, #place + #expected), text)
end

--- A program with a body that sees x of float32 (100, 784).
function golden.body(text)
  return "local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 100, 784 }) } } (function(x)\n"
    .. text .. "\nend)"
end

--- Before each, and after all of them.
function golden.begin() flow.clear_default_session() end
function golden.finish() os.remove("user.lua") end

return golden
