--- Job functions: flow.global_function and the objects it makes.
-- A job is traced and compiled when it is defined. Inputs of fixed shape have one plan; inputs whose arrays may have
-- other shapes (ListNumpy) get one plan per shape, the latest few of which are kept.

local answer = require "moonflow.answer"
local arguments = require "moonflow.arguments"
local core = require "moonflow.core"
local errors = require "moonflow.errors"
local function_config = require "moonflow.function_config"
local job_inputs = require "moonflow.job_inputs"
local job_spec = require "moonflow.job_spec"
local plan = require "moonflow.plan"
local prepared = require "moonflow.prepared"
local random_seed = require "moonflow.random_seed"
local session = require "moonflow.session"
local source = require "moonflow.source"
local summary = require "moonflow.summary"
local trace = require "moonflow.trace"
local typing = require "moonflow.typing"
local watch = require "moonflow.watch"
local debug, require = debug, require

local job = {}

local Job = { kind = "job" }
Job.__index = Job
arguments.publish("Job", "job", Job, "prepare summary dot watch value_names dump export_onnx train_steps")
do
  local called = "a job is called, job(x)"
  local mode = "a job trains when its type is \"train\", one step at each call; another of type \"predict\" shares its "
    .. "variables by their names"
  local step = "optimizer:minimize(loss) in the body of a train job makes each call of it a step"
  local values = "flow.get_all_variables() has all variables, and flow.load_variables(values) sets them"
  local place = "flow.scope.placement(\"gpu\", \"0:0\", function() ... end) around what it computes says where it runs"
  answer(Job, "a job", {
    call = called, forward = called, run = called, predict = called, train = mode, eval = mode, fit = mode,
    training = mode, evaluate = mode, backward = step, updateParameters = step, zeroGradParameters = step,
    zero_grad = step, step = step, parameters = values, getParameters = values, state_dict = values, weights = values,
    variables = values, clone = "the "
      .. "function that builds it may build another one, whose variables are others in another flow.scope.namespace",
    cuda = place, to = place,
    save = "flow.train.CheckPoint():save(path) writes all variables",
    load = "flow.train.CheckPoint():load(path) reads variables",
  })
end

--- The newest job of each name, as long as anyone holds it and its session lasts.
job.named = setmetatable({}, { __mode = "v" })

job.changes = 1  -- of these names, so far; but for jobs that nobody holds any more

--- Lets the name mean that job, or none.
function job.give_name(name, named)
  job.named[name] = named
  job.changes = job.changes + 1
end

-- All jobs. One that does not train counts its calls, over all of its plans: what it draws depends on that, on its
-- name, and on how many jobs of that name had drawn before it since the seed was set.
local counted, namesakes = setmetatable({}, { __mode = "k" }), {}

random_seed.on_set(function()
  for counting in pairs(counted) do counting.calls, counting.preparations, counting.namesake = 0, 0, false end
  namesakes = {}
end)

local have_ended = false  -- jobs, with a session
session.on_close(function()
  have_ended = have_ended or next(job.named) ~= nil
  for name in pairs(job.named) do job.give_name(name, nil) end
  namesakes = {}
end)

--- Called with each new job, and the one that had its name; for hosts, which keep the jobs of a file.
job.on_define = nil

-- ---- the name -----------------------------------------------------------------------------------------------------

-- Lua does not tell a value the name it is assigned to, but the source does: `local train_job = flow.global_function`.
local function assigned_name(info)
  local lines = source.lines(info.source)
  local line = lines and lines[info.currentline]
  return line and line:match("([%a_][%w_]*)%s*=%s*[%w_%.]*global_function")
end

-- The frame of the user who calls flow.global_function.
local function user_frame()
  local level = 2
  while true do
    local info = debug.getinfo(level, "Sl")
    if not info then return nil end
    if info.currentline > 0 and not errors.is_own(info.source) then return info end
    level = level + 1
  end
end

local function default_name()
  local info = user_frame()
  if not info then return "job" end
  return assigned_name(info) or "job@" .. errors.place(info.source, info.currentline):match("([^/\\]*)$")
end

-- ---- defining -----------------------------------------------------------------------------------------------------

local function make(spec, name, site, body)
  if type(body) ~= "function" then
    errors.raise("invalid_argument", "this is a decorator, not a job yet: the global_function at " .. site
      .. " has no body. Write flow.global_function { ... } (function(...) ... end)")
  end
  local t = trace.current()
  if t then
    errors.raise("wrong_state", "a job function cannot be defined inside the body of another one ('" .. t.job .. "')")
  end
  local config = function_config.settle(spec.function_config)
  local inputs = job_inputs.settle(spec.inputs, body)
  local leaves = job_inputs.leaves(inputs)
  local self = setmetatable({
    name = name, site = site, body = body, returns = spec.returns, config = config, placement = spec.placement,
    type = spec.type or (config.trains and "train" or "predict"), inputs = inputs, leaves = leaves,
    legacy = config.trains or false, dynamic = false, plain = #leaves == #inputs, plan = false, plans = {},
    board = { selective = 0, turns = {} }, watched = {}, calls = 0, preparations = 0, draws_as = name, namesake = false,
  }, Job)
  local rank = core.processes()
  if rank > 0 then self.draws_as = "process " .. rank .. "/" .. name end
  for i, leaf in ipairs(leaves) do
    if leaf.placeholder.legacy then self.legacy = true end
    if leaf.placeholder.family == "ListNumpy" then self.dynamic, self.plain = true, false end
    if leaf.placeholder ~= (inputs[i] or {}).type then self.plain = false end
  end
  self.plan = plan.make(self, leaves)
  counted[self] = true
  if self.dynamic then self.plans[1] = { signature = self:signature_of(leaves), plan = self.plan } end
  local earlier = job.named[name]
  job.give_name(name, self)
  if job.on_define then job.on_define(self, earlier) end
  return self
end

-- Whoever tells of a definition that fails is told of which job it was; of one in its body the trace knows more.
local function told(name, fine, ...)
  if fine then return ... end
  local problem = ...
  local job_name, traceback = errors.take_definition(problem)
  errors.note_definition(problem, job_name or name, traceback)
  error(problem, 0)
end

local function define(spec, name, site, body)
  return told(name, pcall(make, spec, name, site, body))
end

--- The names of all jobs, in alphabetical order.
function job.names()
  return arguments.sorted_keys(job.named)
end

--- The newest job of this name.
--- @error when there is none; suggests the nearest name
function job.find(name)
  local found = job.named[name]
  if found then return found end
  local names = job.names()
  local hint = #names > 0 and arguments.suggestion(name, names)
    or have_ended and "; those that scripts have defined went with a session that has been cleared"
    or "; no script has defined one"
  if hint == "" then
    hint = "; there are " .. table.concat(names, ", ", 1, math.min(#names, 6)) .. (#names > 6 and ", ..." or "")
      .. ". A job is called by `name` of its flow.global_function"
  end
  errors.raise("not_found", "there is no job '" .. tostring(name) .. "'" .. hint)
end

local Decorator = { kind = "decorator" }

function Decorator.__call(self, body, ...)
  if select("#", ...) > 0 then body = nil end
  return define(self.spec, self.name, self.site, body)
end

function Decorator.__tostring(self)
  return "a job function without a body (global_function at " .. self.site .. ")"
end

function Decorator.__index(self, key)
  errors.raise("invalid_argument", "this is a decorator, not a job yet: the global_function at "
    .. self.site .. " has no body, so no '" .. tostring(key)
    .. "'. Write flow.global_function { ... } (function(...) ... end)")
end

--- Makes a job function:
--- `flow.global_function { type = "train", inputs = { x = T }, returns = R } (function(x) ... end)`.
--- The body is called once, or for each shape of lists, with its inputs as Blobs: values of the job that have a `name`,
--- `shape` and `dtype` and no data yet. The operators + - * / % ^ go element by element, and broadcast, with blobs and
--- arrays of the same dtype and with numbers; all else is in docs/ops.md. The job is called with arrays in the order of
--- the body's parameters, or by name, `job { x = a }`.
--- @param spec? table     type ("predict" by default, or "train"), inputs (placeholders, by the names of the body's
---                        parameters), returns (a type such as tp.Numpy, tp.None, tp.Tuple { tp.Numpy, tp.Numpy } or
---                        tp.Callback[tp.Numpy]; left out, a call gives a Pending of what the body returns, or where
---                        that is nothing is as one of tp.None), name, placement (of all ops outside of a
---                        flow.scope.placement), function_config;
---                        or a function_config of the oldest dialect; or the type, with a function_config and such
---                        a table behind it: `flow.global_function("train", config, { inputs = ..., returns = R })`
--- @param inputs? table   after a function_config: the inputs
--- @param body? function  may be given here, or to what this returns
--- @return Decorator      which takes the body and gives the job; or the job, where a body is given
--- @overload fun(spec: table, body: function): Job
function job.global_function(spec, inputs, body, ...)
  spec, body = job_spec.of(spec, inputs, body, ...)
  local name, site = spec.name or default_name(), errors.site() or "?"
  if body ~= nil then return define(spec, name, site, body) end
  return setmetatable({ spec = spec, name = name, site = site }, Decorator)
end

-- ---- calling ------------------------------------------------------------------------------------------------------

local function input_names(self)
  local names = {}
  for i, input in ipairs(self.inputs) do names[i] = input.name end
  return names
end

local function check_count(self, count)
  if count == #self.inputs then return end
  local names = input_names(self)
  errors.raise("invalid_argument", self.name .. ": takes " .. #names .. (#names == 1 and " input" or " inputs")
    .. (#names > 0 and " (" .. table.concat(names, ", ") .. ")" or "") .. ", got " .. count)
end

local function check_feed(self, leaf, feed, shape)
  local fault = leaf.placeholder:fault(feed, shape)
  if not fault then return end
  if arguments.kind(feed) == "blob" then
    errors.raise("wrong_state", self.name .. ": input '" .. leaf.name .. "' is a blob, which has no data outside of "
      .. "its job's body")
  end
  local code = "invalid_argument"
  if arguments.kind(feed) == "ndarray" then
    code = feed.released and "wrong_state"
      or feed.dtype == leaf.placeholder.dtype and "shape_mismatch" or "dtype_mismatch"
  end
  errors.raise(code, self.name .. ": input '" .. leaf.name .. "' " .. fault)
end

--- Which one it is of the jobs of its name that have drawn since the seed was set, with this draw: the first draws as
--- the name says, whatever jobs there have been that did not. Those that train count their steps together.
function Job:turn_to_draw()
  if self.type == "train" then return 1 end
  if not self.namesake then
    self.namesake = (namesakes[self.name] or 0) + 1
    namesakes[self.name] = self.namesake
  end
  return self.namesake
end

--- Raises what is wrong with so many arguments, one array per input.
function Job:check_feeds(count, ...)
  check_count(self, count)
  for i, leaf in ipairs(self.leaves) do check_feed(self, leaf, (select(i, ...))) end
end

--- Raises why a submission was refused, in the user's words.
function Job:explain(of, problem, ...)
  of:check_open()
  of:retract()
  if self.plain then self:check_feeds(select("#", ...) - #of.hidden, ...) end
  if errors.is_error(problem) then
    problem.where = errors.site() or problem.where
    if not problem.job or problem.job == "" then problem.job = self.name end
  end
  error(problem, 0)
end

--- The arrays in the arguments of a call, as one list.
function Job:gather(...)
  local count = select("#", ...)
  check_count(self, count)
  local feeds = {}
  local function walk(input, value, name)
    if typing.is_placeholder(input) then
      local leaf = self.leaves[#feeds + 1]
      check_feed(self, leaf, value)
      feeds[#feeds + 1] = input.family == "ListNumpy" and value[1] or value
      return
    end
    if type(value) ~= "table" or #value ~= #input then
      errors.raise("invalid_argument", self.name .. ": input '" .. name .. "' wants a list of " .. #input
        .. " arrays, got " .. (type(value) == "table" and "a list of " .. #value or arguments.describe(value)))
    end
    for i, child in ipairs(input) do walk(child, value[i], name .. "_" .. i) end
  end
  for i, input in ipairs(self.inputs) do walk(input.type, (select(i, ...)), input.name) end
  return feeds
end

--- One text for the shapes of a list of { shape = list }.
function Job.signature_of(_, leaves)
  local texts = {}
  for i, leaf in ipairs(leaves) do texts[i] = table.concat(leaf.shape, ",") end
  return table.concat(texts, ";")
end

-- The plan for arrays of these shapes.
local function plan_for(self, feeds)
  if not self.dynamic then return self.plan end
  local leaves = {}
  for i, leaf in ipairs(self.leaves) do
    local shape = arguments.kind(feeds[i]) == "ndarray" and feeds[i].shape:table() or {}
    leaves[i] = { name = leaf.name, placeholder = leaf.placeholder, shape = shape }
  end
  local signature, plans = self:signature_of(leaves), self.plans
  for i, entry in ipairs(plans) do
    if entry.signature == signature then
      if i > 1 then table.insert(plans, 1, table.remove(plans, i)) end
      return entry.plan
    end
  end
  local made = plan.make(self, leaves)
  for _, watched in ipairs(self.watched) do made:watch(watched.name, watched.handle) end
  table.insert(plans, 1, { signature = signature, plan = made })
  plans[self.config.kept_plans + 1] = nil
  return made
end

local function call_gathered(self, ...)
  local feeds = self:gather(...)
  local of = plan_for(self, feeds)
  return of:call(unpack(feeds, 1, of:supply(feeds, #feeds)))
end

-- The inputs are what the plan takes, but for what the job supplies. What is wrong with them, the plan finds as well.
local function call_supplied(self, of, ...)
  local count = select("#", ...)
  check_count(self, count)
  local feeds = { ... }
  return of:call(unpack(feeds, 1, of:supply(feeds, count)))
end

--- The arguments of job { x = a, y = b } in the order of the inputs; nil where it is not called so.
function Job:named_arguments(first, ...)
  if select("#", ...) > 0 or getmetatable(first) or type(next(first)) ~= "string" then return nil end
  local values, names, place = {}, input_names(self), {}
  for i, name in ipairs(names) do place[name] = i end
  for name, value in pairs(first) do
    if not place[name] then
      local near = arguments.suggestion(tostring(name), names)
      errors.raise("invalid_argument", self.name .. ": has no input '" .. tostring(name) .. "'"
        .. (near == "" and #names > 0 and "; it takes " .. table.concat(names, ", ") or near))
    end
    values[place[name]] = value
  end
  for i, name in ipairs(names) do
    if values[i] == nil then errors.raise("invalid_argument", self.name .. ": input '" .. name .. "' has no value") end
  end
  return values
end

--- Runs the job: job(a, b), or by the names of its inputs, job { x = a, y = b }. What it gives is decided by its return
--- type: values, nothing, a callbacker, or a future.
--- @error an input that does not fit its placeholder; what the run or a handler raised; a call in the body of a job
function Job:__call(...)
  if type((...)) == "table" then
    local values = self:named_arguments(...)
    if values then return self(unpack(values)) end
  end
  local outer = trace.current()
  if outer then
    errors.raise("wrong_state", ("%s: a job cannot be called inside the body of another one ('%s'), which runs once "
      .. "and would keep the result"):format(self.name, outer.job))
  end
  local of = self.plan
  if of.plain then return of:call(...) end
  if self.plain then return call_supplied(self, of, ...) end
  return call_gathered(self, ...)
end

-- The plan for one array per leaf, with these as a list, and how many they are.
local function plan_flat(self, ...)
  local feeds, count = { ... }, select("#", ...)
  if count ~= #self.leaves then
    errors.raise("invalid_argument", self.name .. ": takes " .. #self.leaves .. " arrays, got " .. count)
  end
  for i, leaf in ipairs(self.leaves) do
    check_feed(self, leaf, leaf.placeholder.family == "ListNumpy" and { feeds[i] } or feeds[i])
  end
  return plan_for(self, feeds), feeds, count
end

-- The same plan, and the feeds with what the job supplies itself.
local function take_flat(self, ...)
  local of, feeds, count = plan_flat(self, ...)
  return of, unpack(feeds, 1, of:supply(feeds, count))
end

--- The plan that a run with one array per input would have.
function Job:plan_flat(...)
  return (plan_flat(self, ...))
end

local function run(of, ...)
  return of:run(...)
end

--- Runs the job to its end with one array per input; gives its results one by one, whatever its type of return.
function Job:run_flat(...)
  local of = self.plan
  if of.plain then return of:run(...) end
  return run(take_flat(self, ...))
end

local function start(of, ...)
  local number, why = of:start(...)
  return number, number and of or why
end

--- Starts such a run; gives its number and its plan. nil, "busy" in host mode when too much is in flight.
function Job:start_flat(...)
  if self.plan.plain then return start(self.plan, ...) end
  return start(take_flat(self, ...))
end

--- Makes a form of the job for loops with deadlines: `local act = policy_job:prepare()`, then `act(state)` in each
--- frame. It has buffers, weights and a plan of its own, for one thread of the CPU. A call runs at once, whatever
--- is being trained, leaves no garbage, and gives the same arrays each time, which the next call writes again;
--- `act.inputs` and `act.outputs` are its buffers. It computes with the weights it has until `act:publish()`, or
--- `flow.publish()` for all, hands it those of the session. Where the job draws random numbers, each of its runs draws
--- others, than those of the job and of its other prepared calls too: from the seed that is in use when it is made, so
--- after `flow.set_seed` one that is made anew draws what the first one drew. Variables that the job assigns are the
--- call's own: they begin with the session's values, keep what a call leaves there, and go back by `act:reset()`. They
--- can be neither read nor set otherwise, nor can the number of the next draw: a call with other values is one that is
--- prepared after flow.load_variables. To prepare waits for the runs under way.
--- @return Prepared
--- @error a job that trains or takes lists
function Job:prepare(...)
  arguments.check_self(self, Job, "job:prepare")
  if select("#", ...) > 0 then
    errors.raise("invalid_argument", "job:prepare takes no arguments: a prepared call is for one thread of the CPU, "
      .. "and reads the buffers in its inputs")
  end
  return prepared.new(self)
end

--- Writes the job as an ONNX file (opset 17) with the weights it has now, for other systems to run:
--- `policy_job:export_onnx("policy.onnx", { outputs = { "action" } })`. Inputs keep their names, and sizes are those of
--- the placeholders. What a comparison gives is an int8 there too. flow.onnx.export_memory gives it as a string. Waits
--- for the runs under way.
---
--- With any_batch = true the file takes any number of samples at once: along the axis that a placeholder calls its
--- batch_axis, 0 by default and `false` for none. The body is traced for batches of some sizes for that, so it must
--- take them from the shapes of its inputs, and do the same for each.
--- @param path string         the file, which is replaced
--- @param outputs? table      names of the results in their order, other than those of inputs; default: the keys of a
---                             Dict, else the names of the ops that make them, with a number where that is taken
--- @param any_batch? boolean  leave the size of the batch open; default: false
--- @error a train job, or one that takes lists; an op without a counterpart in ONNX, by name and line; with any_batch
---        what depends on the batch other than in its size
function Job:export_onnx(...)
  arguments.check_self(self, Job, "job:export_onnx")
  return require("moonflow.onnx.export")(self, ...)
end

-- ---- looking at it ------------------------------------------------------------------------------------------------

--- "train_job(images: float32[100,1,28,28]) -> Numpy  [train, 10 ops]".
function Job:__tostring()
  local parts = {}
  for i, input in ipairs(self.inputs) do
    local text = tostring(input.type)
    if not typing.is_placeholder(input.type) then
      local inner = {}
      for k, child in ipairs(input.type) do inner[k] = tostring(child) end
      text = "{" .. table.concat(inner, ", ") .. "}"
    end
    parts[i] = input.name .. ": " .. text
  end
  return self.name .. "(" .. table.concat(parts, ", ") .. ")" .. (self.returns and " -> " .. self.returns.text or "")
    .. "  [" .. self.type .. ", " .. self.plan.op_count .. (self.plan.op_count == 1 and " op]" or " ops]")
end

local function all_plans(self)
  local plans = { self.plan }
  for _, entry in ipairs(self.plans) do
    if entry.plan ~= self.plan then plans[#plans + 1] = entry.plan end
  end
  return plans
end

-- Puts a handle at a value of that name: in the place of one that is off, which comes back when it is switched on
-- again, or at a tap of its own. Deliveries under way would go to the wrong one, so only a place without any changes.
local function attach(self, name, handle)
  for _, watched in ipairs(self.watched) do
    local before = watched.handle
    if watched.name == name and before:is_free() then
      for _, of in ipairs(all_plans(self)) do of:hand_over(before, handle) end
      before:leave(function() attach(self, name, before) end)
      handle:join(self.board)
      watched.handle = handle
      return
    end
  end
  for _, of in ipairs(all_plans(self)) do of:watch(name, handle) end
  table.insert(self.watched, { name = name, handle = handle })
end

--- Bytes of the plans of the jobs that there are, by the names of the jobs.
function job.bytes()
  local bytes = {}
  for of in pairs(counted) do
    for _, each in ipairs(all_plans(of)) do bytes[of.name] = (bytes[of.name] or 0) + each.handle:info().bytes end
  end
  return bytes
end

--- How many steps a train job has made, those of before too where it goes on from a checkpoint, which keeps that.
--- Waits for the runs under way, whose steps count; a game that must not wait counts on, one in each callback.
--- @return integer
--- @error a job that does not train
function Job:train_steps()
  arguments.check_self(self, Job, "job:train_steps")
  if self.type ~= "train" then
    errors.raise("wrong_state", self.name .. ": job:train_steps: the job has type 'predict' and makes no steps")
  end
  local handle, name = session.handle(), trace.step_name(self.name)
  return handle:has_value(name) ~= nil and handle:read(name):item() or 0
end

--- Calls `handler` with a value of the job each time it runs from now on, though its body does not watch it.
--- @param name string       of an op ("conv1": what it gives) or of a blob ("conv1/out_0")
--- @param handler function  receives one ndarray
--- @param options? table    every = n: only each n-th run (default 1)
--- @return Watch            `:off()`, `:on()`, `:every(n)`
--- @error no value of that name; handler not callable
function Job:watch(name, handler, ...)
  arguments.check_self(self, Job, "job:watch")
  if type(name) ~= "string" then
    errors.raise("invalid_argument", "job:watch: the name must be a string, got " .. arguments.describe(name))
  end
  arguments.check_callable(handler, "job:watch: the handler must be a function")
  local options = watch.check_options("job:watch", ...)
  self.plan:check_open()
  local handle = watch.new({ name = name }, handler, "the watch of '" .. name .. "' in " .. self.name):follow(options)
  attach(self, name, handle)
  return handle
end

--- The names that `watch` knows.
--- @return string[]
function Job:value_names()
  arguments.check_self(self, Job, "job:value_names")
  return self.plan:value_names()
end

local summary_signature = arguments.signature("job:summary", { { "plan", "boolean", false } })

--- The ops of the body with their outputs, the parameters each one reads, and the lines they were made at.
--- @param plan? boolean  true: the steps of the compiled plan instead, with the layouts of their values, and what a
---                       profile has measured: milliseconds, GFLOP/s and the share of the machine's peak
function Job:summary(...)
  arguments.check_self(self, Job, "job:summary")
  local shows_plan = summary_signature:parse(...).plan
  return tostring(self) .. "\n" .. (shows_plan and summary.plan_text(self.plan.handle)
    or summary.text(self.plan.graph, self.plan.op_count, self.plan.frozen))
end

local dot_signature = arguments.signature("job:dot", { { "path", "string?" }, { "backward", "boolean", false },
                                                           { "plan", "boolean", false } })

--- The graph of the job as it was traced, in the language of Graphviz: `job:dot("train.dot")`, and then
--- `dot -Tsvg train.dot -o train.svg`. A box is an op with its name, what it does and what it gives, and a frame is a
--- layer or a namespace; the line of the script is its tooltip. Watched values are blue, results have a double border.
--- @param path? string       a file to write
--- @param backward? boolean  true: every op of the gradients and of the update too, dashed; default: one box for all
--- @param plan? boolean      true: the steps of the compiled plan instead, all of them. A fused op is one box there,
---                           and what took long in a profile is orange
--- @return string            the text
--- @error the file cannot be written
function Job:dot(...)
  arguments.check_self(self, Job, "job:dot")
  local given = dot_signature:parse(...)
  return require("moonflow.drawing").dot(self, given)  -- read when first used: few programs draw
end

--- The compiled plan as text: steps, buffers, order.
--- @return string
function Job:dump()
  arguments.check_self(self, Job, "job:dump")
  return self.plan.handle:dump()
end

arguments.options[job.global_function] = job_spec.fields

return job
