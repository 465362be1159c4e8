--- Memory: how much of that of the process is the session's, for who keeps a program running.

local job = require "moonflow.job"
local session = require "moonflow.session"

--- How many bytes the session holds. What `live` names goes up until garbage is collected, and comes down to what the
--- script holds; a number that rises from day to day after a `collectgarbage()` is of something that is never let go.
--- @return table  `live`: arrays, plans and prepared calls, with those that wait to be collected; `spare`: kept for the
---                next arrays; `variables`: with what optimizers remember, the layouts that jobs read them in, and the
---                copies on GPUs; `lua`: Lua's heap; `jobs`: of the plans of each job, by its name, which are a part of
---                `live`
return function()
  local counts = session.handle():memory()
  return {
    live = counts.live_bytes, spare = counts.spare_bytes, variables = counts.variable_bytes,
    lua = 1024 * collectgarbage("count"), jobs = job.bytes(),
  }
end
