--- Whether the variables of a train job are the same in all processes that train it together: they look before the
--- first call of the job, and before the first one after variables were loaded. Steps keep them alike from there on.

local core = require "moonflow.core"
local errors = require "moonflow.errors"
local session = require "moonflow.session"

local alike = {}

--- What is fed to a plan, for the topics of what it comes to with the others: so those with other shapes say so.
function alike.fed(leaves)
  if select(2, core.processes()) == 1 or #leaves == 0 then return "" end
  local words = {}
  for i, leaf in ipairs(leaves) do words[i] = ("%s (%s)"):format(leaf.name, table.concat(leaf.shape, ", ")) end
  return ", fed with " .. table.concat(words, ", ")
end

-- Plan -> what its optimizer is. Empty where this process is alone.
local plans = setmetatable({}, { __mode = "k" })

--- The plan looks before its next call, if several processes train it together, by this optimizer.
function alike.watch_over(plan, optimizer)
  if not optimizer or select(2, core.processes()) == 1 then return end
  plans[plan], plan.is_to_compare = tostring(optimizer), true
end

--- So do all plans, as variables have other values now.
function alike.look_again()
  for plan in pairs(plans) do plan:compare_again() end
end

-- The largest, or smallest, elements that any process has.
local function of_all(values, reduction, topic)
  return { session.handle():evaluate("all_reduce", values, { reduction = reduction, topic = topic }) }
end

-- A NaN differs from itself, but not from that of another process.
local function differs(largest, smallest)
  return largest ~= smallest and (largest:ne(smallest) * largest:eq(largest)):max() ~= 0
end

--- Compares these variables of a plan, a list of names, the first of which is told, with those of the other processes.
--- @error they differ, in all processes alike; another optimizer or other variables there
function alike.compare(plan, names)
  session.sync()
  local job, handle, values = plan.job_name, session.handle(), {}
  of_all({ core.array(0, "int32", {}) }, "max",
    ("variables, new or loaded, of %s by %s%s"):format(job, plans[plan], plan.fed))
  for i, name in ipairs(names) do values[i] = handle:read(name) end
  local topic = ("the variables of %s"):format(job)
  local largest, smallest = of_all(values, "max", topic), of_all(values, "min", topic)
  for i, name in ipairs(names) do
    if differs(largest[i], smallest[i]) then
      errors.raise("wrong_state", ("%s: variable '%s' has other values in other processes, so they would train apart; "
        .. "load one checkpoint in all of them, from a folder that all can read, or give all what process 0 has by "
        .. "flow.distributed.broadcast and flow.load_variables"):format(job, name))
    end
  end
end

return alike
