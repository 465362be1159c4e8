--- Prepared: a predict job with buffers, weights and a plan of its own, for loops with deadlines.
-- A call waits for no run under way, leaves no garbage, and gives the same arrays each time.

local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local random_seed = require "moonflow.random_seed"
local session = require "moonflow.session"
local summary = require "moonflow.summary"
local trace = require "moonflow.trace"
local typing = require "moonflow.typing"
local variable = require "moonflow.variable"

local prepared = {}

local Prepared = { kind = "prepared call" }
Prepared.__index = Prepared
arguments.publish("Prepared", "prepared", Prepared, "reset publish generation summary")

setmetatable(Prepared, { __index = function(_, key)
  errors.raise("not_found", "a prepared call has no '" .. tostring(key) .. "', but inputs, outputs, reset, publish, "
    .. "generation and summary; it is called as its job is")
end })

-- What is to be done instead of an assignment that would reach no buffer.
local function by_name(self, key)
  local leaves = self.job.leaves
  local name = leaves[1] and leaves[1].name
  for _, leaf in ipairs(leaves) do name = leaf.name == key and key or name end
  return name and "; call.inputs." .. name .. " = array copies an array into the input '" .. name .. "'" or ""
end

function Prepared.__newindex(self, key)
  errors.raise("wrong_state", "a prepared call of '" .. self.job.name .. "' has nothing to set at "
    .. arguments.describe(key) .. by_name(self, key))
end

-- What a prepared call draws differs from what the job draws, and its other prepared calls: each has this many numbers
-- of runs for itself. There are so many of them before they come again.
local kRuns, kStreams = 2 ^ 40, 2 ^ 13 - 1

-- The feeds that a call supplies by itself, each as its first value and what every run adds.
local function counters_of(job)
  local counters = {}
  for _, feed in ipairs(job.plan.hidden) do
    local is_seed = feed.name == "System-Seed"
    counters[#counters + 1] = is_seed and random_seed.value(job:turn_to_draw())
      or (1 + job.preparations % kStreams) * kRuns
    counters[#counters + 1] = is_seed and 0 or 1
  end
  job.preparations = job.preparations + 1
  return counters
end

--- What a prepared call of the job is made from: its graph, the tokens of its first and its last result, and what it
--- counts.
function prepared.parts(job)
  local plan = job.plan
  plan:check_open()
  if job.type == "train" then
    errors.raise("unsupported", job.name .. ": trains, which a prepared call does not; prepare a predict job with the "
      .. "same network, whose variables it shares")
  end
  if job.dynamic then
    errors.raise("unsupported", job.name .. ": a prepared call needs inputs of fixed shape, and this job takes lists")
  end
  if not plan.ready then plan:prepare() end
  return plan.graph, plan.watch_count + 1, plan.watch_count + plan.result_count, counters_of(job)
end

-- Lets buffers be had by name, and filled so: act.inputs.x = array copies it.
local function inputs_by_name(job, buffers)
  local named, names = {}, {}
  for i, leaf in ipairs(job.leaves) do named[leaf.name], names[i] = buffers[i], leaf.name end
  local function fail_at(key)
    errors.raise("not_found", "a prepared call of '" .. job.name .. "' has no input '" .. tostring(key) .. "'"
      .. arguments.suggestion(tostring(key), names))
  end
  return setmetatable(buffers, {
    __index = function(_, key) return named[key] or type(key) == "string" and fail_at(key) or nil end,
    __newindex = function(_, key, value)
      local buffer = named[key] or fail_at(key)
      local fine, problem
      if buffer.rank == 0 then fine, problem = pcall(buffer.set, buffer, value)
      else fine, problem = pcall(buffer.set, buffer, "...", value) end
      if fine then return end
      if not errors.is_error(problem) then error(problem, 0) end
      errors.raise(problem.code, job.name .. ": input '" .. key .. "': " .. problem.message)
    end,
  })
end

--- A prepared call of the job, for job:prepare().
function prepared.new(job)
  local handle = session.handle():prepare(prepared.parts(job))
  local plan, buffers = job.plan, handle:inputs()
  local inputs = inputs_by_name(job, { unpack(buffers) })
  return setmetatable({
    job = job, handle = handle, run = handle.run, buffers = buffers, named = inputs, inputs = inputs,
    outputs = handle:outputs(),
    skeleton = plan.skeleton or false, flat_count = typing.is_flat(plan.skeleton) and plan.result_count,
    results = false, result_count = 0,
  }, Prepared)
end

local function fail(self, problem, refused, ...)
  if refused then self.job:check_feeds(select("#", ...), ...) end
  error(problem, 0)
end

local function count_of(...) return select("#", ...), { ... } end

-- Takes what a run gives. What the job gives is made of the arrays once, and again where a script has released some.
local function take(self, done, ...)
  if not done then return done, ... end
  local outputs, are_known = self.outputs, self.results
  for i = 1, select("#", ...) do
    local output = select(i, ...)
    if not rawequal(outputs[i], output) then outputs[i], are_known = output, false end
  end
  if not are_known then self.result_count, self.results = count_of(typing.build(self.skeleton, outputs)) end
  return done
end

-- Raises where a script has put something else in the place of a buffer: a run reads the buffers.
local function check_buffers(self)
  local inputs, buffers = self.inputs, self.buffers
  for i = 1, #buffers do
    if not rawequal(inputs[i], buffers[i]) then
      rawset(inputs, i, buffers[i])
      errors.raise("wrong_state", ("%s: input %d of this prepared call was replaced, which does not fill it; it is back"
        .. "%s"):format(self.job.name, i, by_name(self, self.job.leaves[i].name)))
    end
  end
end

local function run(self, ...)
  if self.inputs ~= self.named then  -- it would compute with what is in the buffers
    self.inputs = self.named
    errors.raise("wrong_state", self.job.name .. ": the inputs of this prepared call were replaced, which fills none "
      .. "of them; they are back" .. by_name(self))
  end
  if select("#", ...) == 0 then check_buffers(self) end
  local count = self.flat_count
  if not count or count > 3 then
    local done, problem, refused = take(self, self.run(self.handle, ...))
    if not done then fail(self, problem, refused, ...) end
    return unpack(self.results, 1, self.result_count)
  end
  local done, a, b, c = self.run(self.handle, ...)
  if not done then fail(self, a, b, ...) end
  if count == 1 then return a end
  if count == 0 then return end
  if count == 2 then return a, b end
  return a, b, c
end

--- Runs the job on the calling thread, from copies of the arguments, in order or by name as the job takes them, or,
--- called without any, from what lies in its inputs. Watches are not called.
--- @return any  what the job gives, in arrays that the next call writes again; tables of them are the same in each call
--- @error an argument that does not fit its placeholder; a call in the body of a job
function Prepared:__call(...)
  if type((...)) == "table" then
    local values = self.job:named_arguments(...)
    if values then return self(unpack(values)) end
  end
  local outer = trace.current()
  if outer then
    errors.raise("wrong_state", ("%s: a prepared call cannot be made inside the body of a job ('%s'), which runs once "
      .. "and would keep the result"):format(self.job.name, outer.job))
  end
  if self.job.plain or select("#", ...) == 0 then return run(self, ...) end
  return run(self, unpack(self.job:gather(...)))
end

--- Gives the variables that the job assigns the values that they had when the call was prepared: for a new episode, or
--- another text. Between two calls.
function Prepared:reset()
  arguments.check_self(self, Prepared, "prepared:reset")
  self.handle:reset()
end

--- Takes over the weights as they are after the runs submitted so far. Waits for none of them: calls compute with the
--- weights they have until those are there, which they are after flow.sync, and at once where nothing is in flight.
--- @error its session is closed
function Prepared:publish()
  arguments.check_self(self, Prepared, "prepared:publish")
  self.handle:publish()
end

--- How many times its calls have taken new weights.
--- @return number
function Prepared:generation()
  arguments.check_self(self, Prepared, "prepared:generation")
  return self.handle:generation()
end

local summary_signature = arguments.signature("prepared:summary", { { "plan", "boolean", true } })

--- The steps of its plan, which is another than the job's, with what a profile has measured of its calls, as
--- job:summary { plan = true } gives them.
--- @param plan? boolean  false: the ops of the body, as job:summary() gives them
--- @return string
function Prepared:summary(...)
  arguments.check_self(self, Prepared, "prepared:summary")
  if not summary_signature:parse(...).plan then return self.job:summary() end
  return tostring(self) .. "\n" .. summary.plan_text(self.handle, 1)
end

--- "policy, prepared".
function Prepared:__tostring()
  return (tostring(self.job):gsub("%[[^%[]*$", "[prepared]"))
end

--- Hands the weights to all prepared calls of the session, in Lua and of a host, as `publish` of each one does.
--- @return number  how many prepared calls there are
function prepared.publish()
  variable.initialise()
  return session.handle():publish()
end

return prepared
