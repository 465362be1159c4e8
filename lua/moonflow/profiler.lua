--- flow.profiler: what ran when, as a file that the timelines of Chrome (chrome://tracing) and Perfetto show.
-- One track per thread; each step with its shapes and bytes, each run, each callback, and an arrow from the end of a
-- run to its first delivery. While nobody looks it costs nothing.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local handlers = require "moonflow.handlers"
local session = require "moonflow.session"

local profiler = {}

local running  -- { path, handle, deliver } while a profile is taken

local start_signature = arguments.signature("flow.profiler.start", { { "path", "string?" } })

--- Begins a profile, after the runs submitted so far.
--- @param path? string  the file that stop writes, of the first million of events; without one only
---                      job:summary { plan = true } and prepared:summary() learn from it
--- @error a profile is being taken
function profiler.start(...)
  local path = start_signature:parse(...).path
  if running then errors.raise("wrong_state", "flow.profiler.start: a profile is being taken; stop it first") end
  local handle, deliver = session.handle(), handlers.call
  handle:profile_start(not path and 0 or nil)
  running = { path = path, handle = handle, deliver = deliver }
  handlers.call = function(handler, what, ...)
    local begin, run = core.clock(), session.handing() or 0
    deliver(handler, what, ...)
    handle:profile_note(what, begin, run)
  end
end

--- Ends the profile and writes the file that start was given.
--- @return number  how many events there were
--- @error no profile is being taken; the file cannot be written
function profiler.stop(...)
  if select("#", ...) > 0 then
    errors.raise("invalid_argument", "flow.profiler.stop takes no arguments; flow.profiler.start was given the file")
  end
  if not running then errors.raise("wrong_state", "flow.profiler.stop: no profile is being taken") end
  local ended = running
  running = nil
  handlers.call = ended.deliver
  local count, left_out = errors.blaming("flow.profiler.stop", ended.handle.profile_stop, ended.handle, ended.path)
  if ended.path and left_out > 0 then
    session.log(("moonflow: the profile '%s' has the first %d of %d events; the others were left out"):format(
      ended.path, count - left_out, count))
  end
  return count
end

session.on_close(function()
  if running then handlers.call = running.deliver end
  running = nil
end)

return profiler
