--- Processes that train one net together, on one machine or several: a program that mpirun has started several times.
-- Each has its own data, and all have the same weights, since a train job descends by the mean of all gradients.

local arguments = require "moonflow.arguments"
local core = require "moonflow.core"
local errors = require "moonflow.errors"
local job = require "moonflow.job"
local random_seed = require "moonflow.random_seed"
local session = require "moonflow.session"

local distributed = {}

local has_joined = false

local join_signature = arguments.signature("flow.distributed.join", {
  { "patience", "finite", 1800, text = "seconds that a process waits for the others, before it is an error" },
})

--- Joins the processes that were started with this one: `local rank, size = flow.distributed.join()`, before the jobs
--- are defined, in a script that `mpirun -n 4 moonflow train.lua` starts four times. A process that was started alone
--- is 0 of 1, and the same script does all by itself.
--- From then on a train job descends by the mean of the gradients of all processes, so all of them have to call the
--- same jobs equally often, with the same shapes; one that asks for flow.gradients reduces them itself. The seed of
--- process 0 is that of all, so their variables begin alike, and np.random draws alike: the option `share` of
--- `set:batches` gives each its own examples of one order. What jobs draw, as dropout does, differs. Results and
--- watched values are those of a process's own examples; `flow.distributed.all_reduce(loss, "mean")` is of all. Batch
--- norms normalise by a process's own examples, and move their running statistics by the mean of all. The script prints
--- and saves where `rank` is 0. Checkpoints are loaded by all: before the first call of a train job, and the next one
--- after variables were loaded, its optimizer and variables are compared, and it is an error where they differ.
--- A script that fails ends all processes; one that hangs does so after `patience` seconds.
--- @param patience? number  default 1800
--- @return number rank      of this process, from 0
--- @return number size      how many there are
--- @error the module for MPI is missing, as where Moonflow was built without one; a job is there already
function distributed.join(...)
  local given = join_signature:parse(...)
  if given.patience <= 0 then join_signature:fail(": patience must be above 0, got " .. given.patience) end
  local rank, size = core.join_processes(given.patience)
  if size > 1 and not has_joined then
    local name = next(job.bytes())
    if name then
      errors.raise("wrong_state", "flow.distributed.join: the job '" .. name .. "' was defined before the processes "
        .. "have joined, so it would run in each of them alone; join first")
    end
    local seed = core.array(random_seed.value(), "int64", {})
    random_seed.share(session.handle():evaluate("broadcast_from", { seed }, { root = 0 }):item())
    has_joined = true
  end
  return rank, size
end

--- The rank of this process, from 0; 0 where it is alone.
function distributed.rank()
  return (core.processes())
end

--- The rank of this process among those on its machine, from 0; 0 where it is alone. Each takes a card of its own by
--- `flow.scope.placement("gpu", "0:" .. flow.distributed.local_rank())`.
function distributed.local_rank()
  return (select(3, core.processes()))
end

--- How many processes compute together; 1 where this one is alone.
function distributed.size()
  return (select(2, core.processes()))
end

--- Waits until all processes have come here, and have ended the runs before.
function distributed.barrier()
  session.sync()
  session.handle():evaluate("all_reduce", { core.array(0, "int32", {}) }, {})
end

return distributed
