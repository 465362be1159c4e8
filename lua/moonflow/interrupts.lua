--- Interrupts: where a Ctrl-C may stop the Lua code of a state, and what is then still to be done.
-- A Ctrl-C, here or at an attached terminal, raises "interrupted" from a hook, between any two instructions. Between
-- the pull of a completion and the end of a wait that would lose a result, or the error of a run. So some functions are
-- kept whole: a hook does not raise in them and in what they call of the library, only in code of users that they call.

local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local debug = debug

local interrupts = {}

local whole = setmetatable({}, { __mode = "k" })

--- Keeps functions whole.
function interrupts.keep_whole(...)
  for i = 1, select("#", ...) do whole[(select(i, ...))] = true end
end

--- Lets a hook raise in `fn`, whoever calls it.
function interrupts.keep_open(fn)
  whole[fn] = false
end

--- May a hook raise where it was called? It may in code of users, and in what that calls unless it is kept whole; where
--- no user has called, only in what is kept open.
--- @param frames number  of the hook itself on the stack: 1 for a hook in Lua, 0 for one in C
function interrupts.may_stop(frames)
  local level = 2 + frames
  while true do
    local info = debug.getinfo(level, "Slf")
    if not info then return false end
    local kept = whole[info.func]
    if kept ~= nil then return not kept end
    if info.currentline > 0 and not errors.is_own(info.source) then return true end
    level = level + 1
  end
end

--- For a hook that a script or a host has set, as one that ends loops that run too long: may it raise an error where it
--- was called? Not while a result is handed over, where the error would lose it:
---   debug.sethook(function()
---     if os.clock() > limit and flow.may_interrupt() then error("too long") end
---   end, "", 1000)
function interrupts.may_interrupt()
  return interrupts.may_stop(2)
end

local last  -- what a script has asked for

--- Calls `action` when a Ctrl-C, or SIGTERM, has ended the script, before the program ends with exit code 130, or of
--- SIGTERM: to save what has been learnt. Jobs run in it as ever; another of these signals ends the program. nil takes
--- it back. Only for scripts that the program moonflow runs: hosts decide by themselves what an interrupt is, and
--- within uv.run() luv ends the program. Of processes that have joined all are stopped with one, and exchange nothing
--- in it.
--- @param action function?  without arguments; the one that was given last counts
--- @error it is no function
function interrupts.on_interrupt(action)
  if action ~= nil then arguments.check_callable(action, "flow.on_interrupt wants a function") end
  last = action
end

--- The action that on_interrupt was given last, and no longer.
function interrupts.take_action()
  local action = last
  last = nil
  return action
end

return interrupts
