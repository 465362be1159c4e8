--- Plan: one compiled form of a job, and the ways to run it.
-- Making one traces the body, appends gradients and updates, taps what must reach the host (watches in the order of
-- the graph, gradient watches, results) and compiles. Tokens are the numbers of the taps in this order.
-- The synchronous call is the hot path: with up to three results it makes no table, and never a closure.

local alike = require "moonflow.alike"
local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local core = require "moonflow.core"
local descent = require "moonflow.descent"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local handlers = require "moonflow.handlers"
local interrupts = require "moonflow.interrupts"
local pending = require "moonflow.pending"
local random_seed = require "moonflow.random_seed"
local scope = require "moonflow.scope"
local session = require "moonflow.session"
local spawn = require "moonflow.spawn"
local trace = require "moonflow.trace"
local typing = require "moonflow.typing"
local variable = require "moonflow.variable"

local plan = {}

local Plan = {}
Plan.__index = Plan

-- ---- making -------------------------------------------------------------------------------------------------------

-- The blob that stands for a placeholder in this plan.
local function input_blob(t, leaf)
  local site = leaf.placeholder.site
  local id = t.graph:feed(leaf.name, leaf.placeholder.dtype, leaf.shape, site or "")
  t.taken[leaf.name] = "the input at " .. (site or "?")
  return blob.new(t, id, leaf.name, site)
end

-- `leaves` are the placeholders of the job in their order, each with the shape it has in this plan.
local function make_inputs(t, job, leaves)
  local at = 0
  local function build(input)
    if typing.is_placeholder(input) then
      at = at + 1
      return input_blob(t, leaves[at])
    end
    local nest = {}
    for i = 1, #input do nest[i] = build(input[i]) end
    return nest
  end
  local inputs = {}
  for i, input in ipairs(job.inputs) do inputs[i] = build(input.type) end
  return inputs
end

local function pack(...)
  return { n = select("#", ...), ... }
end

local function count_ops(graph)
  local count = 0
  for _, node in ipairs(graph:nodes()) do
    if node.kind == "op" then count = count + 1 end
  end
  return count
end

-- Says so where a comparison that the body makes goes nowhere: Lua has no way to be asked by `if`, and takes the value
-- as true.
local function warn_of_conditions(self, t)
  if #t.truths == 0 then return end
  local used = {}
  for _, node in ipairs(t.graph:nodes()) do
    for _, id in ipairs(node.inputs) do used[id] = true end
  end
  for _, handle in ipairs(t.watches) do used[handle.blob.id] = true end
  for _, handle in ipairs(t.diff_watches) do used[handle.blob.id] = true end
  for _, result in ipairs(self.results) do used[result.id] = true end
  for _, truth in ipairs(t.truths) do
    if not used[truth.id] then
      session.log_once(("%s: nothing uses '%s', which '%s' gives. A value of a job has no data while the job is "
        .. "traced, so `if`, `while`, `and`, `or` and `not` take it as true: flow.where chooses by it in a run, and "
        .. "Lua's own numbers decide before"):format(truth.site, truth.name, truth.op),
        "condition " .. truth.site)
    end
  end
end

-- In the order in which their values were made; sorting must keep equal ones in the order they were asked for.
local function graph_order(watches)
  for i, handle in ipairs(watches) do handle.order = i end
  table.sort(watches, function(a, b)
    if a.blob.id ~= b.blob.id then return a.blob.id < b.blob.id end
    return a.order < b.order
  end)
end

local function add_taps(self, t, gradients, leaves)
  local graph = t.graph
  graph_order(t.watches)
  for _, handle in ipairs(t.watches) do
    self.watches[#self.watches + 1] = handle
    graph:tap(handle.blob.id, #self.watches)
  end
  for _, handle in ipairs(t.diff_watches) do
    local id = gradients[handle]
    if id then
      handle.shows_gradient = true
      self.watches[#self.watches + 1] = handle
      graph:tap(id, #self.watches)
    elseif not handle.optional then
      local dtype = handle.blob.dtype
      session.log("moonflow: " .. handle.what .. " of the job '" .. t.job .. "' shows nothing: "
        .. (dtypes.floating[dtype] and "no loss depends on it" or "there is no gradient of " .. dtype))
    end
  end
  local times = {}
  for token, handle in ipairs(self.watches) do
    local what = handle.what
    times[what] = (times[what] or 0) + 1
    self.shown[token] = handle.blob.id
    handle.what = what .. " in " .. t.job
    handle:join(self.board, what .. ", " .. times[what])
  end
  self.watch_count = #self.watches
  for i, leaf in ipairs(leaves) do graph:tap(leaf.id, self.watch_count + i) end
  self.result_count = #leaves
  self.tap_count = self.watch_count + self.result_count
end

-- Compiles the graph as it is now. Runs under way keep the plan they were submitted to.
local function compile(self)
  self.handle = session.handle():compile(self.graph, self.gpu)
  self.submit = self.handle.submit
  self:open_short_way()
  self.handle:set_max_in_flight(self.job.config.max_in_flight or session.settings.inflight)
end

--- Traces and compiles a job.
--- @param job Job       name, type, config, inputs, returns, body, site, board
--- @param leaves table  list of { name, placeholder, shape }
function plan.make(job, leaves)
  local config = job.config
  local graph = session.handle():graph(job.name, config.mixed_precision, config.allow_tf32, config.weight_quantization)
  local t = trace.new(graph, { job = job.name, draws_as = job.draws_as, type = job.type, config = config,
                               legacy = job.legacy, inputs = #leaves, fed = alike.fed(leaves) })
  local self = setmetatable({ job = job, job_name = job.name, graph = graph, watches = {}, shown = {}, values = {},
                              switches = {}, board = job.board, ready = false,
                              generation = session.generation() }, Plan)

  local results = pack(t:run(function()
    scope.enter_default_placement(t, job.placement or job.config.placement)
    local inputs = make_inputs(t, job, leaves)
    return job.body(unpack(inputs, 1, #job.inputs))
  end))
  self.gpu = t.where ~= "cpu" and t.where or nil  -- its index; nil: it runs on the CPU
  self.op_count, self.fed = count_ops(graph), t.fed
  self.frozen = {}  -- the names of variables that a train job leaves as they are
  for _, entry in ipairs(t.variable_list) do
    self.frozen[entry.record.name] = job.type == "train" and not entry.record.trainable or nil
  end

  local gradients = job.type == "train" and descent.finish(t, job.site) or {}
  self.moved = t.moved or {}  -- by name
  alike.watch_over(self, t.optimizer)
  local context = { job = job.name, trace = t, site = t.last_site or job.site }
  self.skeleton = typing.flatten(context, job.returns, results)
  self.results = {}  -- name, dtype and shape of each result, and its id in the graph
  for i, leaf in ipairs(context.leaves) do
    self.results[i] = { name = leaf.logical_blob_name, dtype = leaf.dtype, shape = leaf.shape:table(), id = leaf.id }
  end
  self.losses = {}  -- the values that are minimised
  for i, loss in ipairs(t.losses) do self.losses[i] = loss.id end
  add_taps(self, t, gradients, context.leaves)
  warn_of_conditions(self, t)

  compile(self)
  variable.commit(t)
  self.hidden = t.hidden
  self.plain = #t.hidden == 0 and job.plain
  self:choose_call()
  return self
end

-- ---- watching from outside ------------------------------------------------------------------------------------------

-- What users mean by the name of an op: its output "out" where it has one.
local function value_of(graph, name)
  for _, node in ipairs(graph:nodes()) do
    local shown = node.name == name and node.outputs[1]
    for _, id in ipairs(node.outputs) do
      local blob_name = graph:blob_name(id)
      if blob_name == name then return id end
      if shown and blob_name == name .. "/out_0" then shown = id end
    end
    if shown then return shown end
  end
end

--- The names of the ops, inputs and variables, in the order of the graph.
function Plan:value_names()
  local names = {}
  for _, node in ipairs(self.graph:nodes()) do
    if node.name ~= "" and #node.outputs > 0 and not node.name:match("^System%-") then names[#names + 1] = node.name end
  end
  return names
end

local function some_of(names) return arguments.some_quoted(names, 6) end

-- What to say of a name that none of `names` is: the values of a layer or scope of that name, else what resembles it,
-- or resembles a layer, else what there is.
local function advice(name, names)
  local layers, values_of = {}, {}
  for _, known in ipairs(names) do
    for at in known:gmatch("()%-") do
      local layer = known:sub(1, at - 1)
      if not values_of[layer] then
        values_of[layer] = {}
        layers[#layers + 1] = layer
      end
      table.insert(values_of[layer], known)
    end
  end
  local meant = values_of[name]
  if not meant and arguments.nearest(name, names) then return arguments.suggestion(name, names) end
  meant = meant or values_of[arguments.nearest(name, layers)]
  if meant then return "; did you mean " .. some_of(meant) .. "?" end
  return #names > 0 and "; it has " .. some_of(names) or ""
end

--- Raises where the session that the plan belongs to is closed, or has forgotten a variable of it.
function Plan:check_open()
  if self.generation ~= session.generation() then
    errors.raise("wrong_state", "the job '" .. self.job_name .. "' belongs to a session that is closed; define it "
      .. "again")
  end
  local forgotten = self.handle:forgotten()
  if forgotten then
    errors.raise("wrong_state", "the job '" .. self.job_name .. "' computes with the variable '" .. forgotten
      .. "', which has been forgotten; define it again")
  end
end

--- Watches a value that the body does not watch: one more tap behind the others, so that tokens under way stay true,
--- and the same graph compiled anew.
function Plan:watch(name, handle)
  self:check_open()
  local id = value_of(self.graph, name)
  if not id then
    errors.raise("not_found", self.job_name .. " has no value '" .. tostring(name) .. "'"
      .. advice(name, self:value_names()))
  end
  handle:join(self.board)
  local token = self.tap_count + 1
  self.graph:tap(id, token)
  self.tap_count, self.watches[token], self.shown[token] = token, handle, id
  local fine, problem = pcall(compile, self)
  if fine then return end
  handle:off()  -- the tap stays in the graph, for the next who compiles it
  error(problem, 0)
end

--- The tap of `before` calls the handler of `handle` from now on. No run that is under way may show it.
function Plan:hand_over(before, handle)
  for token, watched in pairs(self.watches) do
    if watched == before then self.watches[token] = handle end
  end
end

-- ---- calling ------------------------------------------------------------------------------------------------------

--- Gives first values to the variables that have none yet.
function Plan:prepare()
  variable.initialise(self.handle:info().variables)
  self.ready = not self.is_to_compare
  self:open_short_way()
end

--- The same before a call, for which several processes have to have the same variables.
function Plan:make_ready()
  self:prepare()
  -- Inside a callback, where nothing can wait for the runs before, it is left to the next call.
  if not self.is_to_compare or handlers.running() then return end
  local names, slots = {}, {}
  for _, name in ipairs(self.handle:info().variables) do
    local list = self.moved[name] and names or variable.is_system(name) and slots
    if list then list[#list + 1] = name end
  end
  table.sort(names)
  table.sort(slots)
  for _, name in ipairs(slots) do names[#names + 1] = name end
  alike.compare(self, names)
  self.is_to_compare = nil
  self:prepare()
end

--- Variables have been given other values.
function Plan:compare_again()
  self.is_to_compare, self.ready, self.run_now = true, false, nil
end

--- Lets calls run straight from the plan, and not through the queue, where nothing is watched and nothing has to be
--- done before.
function Plan:open_short_way()
  self.run_now = self.ready and not self:is_watched() and self.handle.call or nil
end

-- Which taps are on in this run; nil: all of them.
local function switches_of(self)
  if self.board.selective == 0 then return nil end
  local switches, watches = self.switches, self.watches
  for token = 1, self.tap_count do switches[token] = not watches[token] or watches[token]:due() end
  return switches
end

-- A copy of the switches, for the time until the run is submitted: later calls use the same list.
local function own(switches)
  return switches and { unpack(switches) }
end

-- The arrays of a run that waits, as they are now: the script may change or release its own meanwhile.
local function copied(...)
  local feeds, count = { ... }, select("#", ...)
  for i = 1, count do
    local feed = feeds[i]
    if arguments.kind(feed) == "ndarray" and not feed.released then feeds[i] = feed:copy() end
  end
  return feeds, count
end

-- The switches of a run that has waited: of the taps that were added meanwhile all are on.
local function up_to_date(self, switches)
  for token = switches and #switches + 1 or 1, switches and self.tap_count or 0 do switches[token] = true end
  return switches
end

-- Makes room for a run that there was none for, and submits it.
local function submit_with_room(self, may_run_inline, switches, ...)
  switches = own(switches)
  local feeds, count = copied(...)
  local run
  repeat
    session.make_room()
    run = self.submit(self.handle, may_run_inline, up_to_date(self, switches), unpack(feeds, 1, count))
  until run
  return run
end

--- A tapped value has arrived: a result goes into `values`, a watched value to its handler.
function Plan:take(values, token, value, sequence, site)
  local watched = self.watches[token]
  if watched then
    handlers.call(watched.handler, watched.what, sequence, site, value)
  else
    values[token - self.watch_count] = value
  end
end

-- While a handler of a run that the script waits for is called, `taking` is the number of that wait.
local function take(self, token, value, sequence)
  local before = self.taking
  self.taking = session.epoch()
  self:take(self.values, token, value, sequence)
  self.taking = before
end

-- Runs to the end and gives the table with the results, from which the caller takes them out. It is always the same
-- one, but for a call by the callback of another run, which is delivered while this plan is waited for.
local function run_to_end(self, ...)
  if not self.ready then self:make_ready() end
  if self.taking == session.epoch() and handlers.running() then
    errors.raise("wrong_state", self.job_name .. " is called inside a handler of its own run")
  end
  local switches = switches_of(self)
  local fine, run = pcall(self.submit, self.handle, true, switches, ...)
  if not fine then self.job:explain(self, run, ...) end
  run = run or submit_with_room(self, true, switches, ...)
  local outer, waiting = self.values, self.waiting
  local nested = waiting == session.epoch() and handlers.running()
  local values = nested and {} or outer
  self.values, self.waiting = values, session.begin()
  local problem = session.finish(run, take, self)
  self.values, self.waiting = outer, waiting
  if problem then error(problem, 0) end
  handlers.raise_failures()
  return values
end

local function emptied(values, count, ...)
  for i = 1, count do values[i] = nil end
  return ...
end

-- Raises why a run failed, or why it was refused.
local function fail(self, problem, refused, ...)
  if refused then self.job:explain(self, problem, ...) end
  error(problem, 0)
end

-- Runs to the end and gives up to three results one by one. They have a name each, so no table is made, and so that
-- LuaJIT compiles what is around the call: it does not where a function of C gives as many values as it likes.
local function call_few(self, ...)
  local count, run_now = self.result_count, self.run_now
  if run_now then
    local done, a, b, c = run_now(self.handle, ...)
    if done then
      handlers.raise_failures()
      if count == 1 then return a end
      if count == 0 then return end
      if count == 2 then return a, b end
      return a, b, c
    end
    if done == nil then fail(self, a, b, ...) end
  end
  local values = run_to_end(self, ...)
  return emptied(values, count, unpack(values, 1, count))
end

local function collect(done, ...)
  return done, { ... }
end

-- Runs to the end and gives the table with the results, from which the caller takes them out.
local function values_of(self, ...)
  local run_now = self.run_now
  if run_now then
    local done, values = collect(run_now(self.handle, ...))
    if done then
      handlers.raise_failures()
      return values
    end
    if done == nil then fail(self, values[1], values[2], ...) end
  end
  return run_to_end(self, ...)
end

local function call_many(self, ...)
  local values = values_of(self, ...)
  return emptied(values, self.result_count, typing.build(self.skeleton, values))
end

--- Runs to the end and gives the results one by one.
function Plan:run(...)
  if self.result_count <= 3 then return call_few(self, ...) end
  local values = values_of(self, ...)
  return emptied(values, self.result_count, unpack(values, 1, self.result_count))
end

local function submit(self, switches, ...)
  local fine, run = pcall(self.submit, self.handle, false, switches, ...)
  if not fine then self.job:explain(self, run, ...) end
  return run
end

-- In a task: waits for room behind those that wait already.
local function submit_in_turn(self, switches, ...)
  local feeds, count = copied(...)
  switches = own(switches)
  return spawn.queue(self, function() return submit(self, up_to_date(self, switches), unpack(feeds, 1, count)) end)
end

local function refuse_at_end(self)
  spawn.leave()
  errors.raise("wrong_state", self.job_name .. ": begins no more runs, since flow.clear_default_session ends its "
    .. "session; what begins anew in each callback stops before")
end

--- Starts a run and gives its number. When too much is in flight a task waits for its turn, and host mode gives
--- nil, "busy" to everybody else.
function Plan:start(...)
  if session.is_ending() then refuse_at_end(self) end
  if not self.ready then self:make_ready() end
  local switches = switches_of(self)
  local queued = spawn.can_queue()
  local run = not (queued and self.queue) and submit(self, switches, ...)
  if queued and not run then run = submit_in_turn(self, switches, ...) end
  if run then return run end
  if session.settings.pump == "host" then
    self:retract()
    return nil, "busy"
  end
  return submit_with_room(self, false, switches, ...)
end

--- Starts a run and gives its pending call, or nil, "busy".
function Plan:launch(...)
  local run, why = self:start(...)
  if not run then return nil, why end
  local call = pending.new(self, run, errors.site())
  session.expect(run, call)
  return call
end

--- Is anything watched in it?
function Plan:is_watched()
  return self.tap_count > self.result_count
end

--- Chooses how `self:call(...)` runs: by the return type of the job and what the body returned.
function Plan:choose_call()
  local returns = self.job.returns
  if returns and returns.family == "Callback" or not returns and self.skeleton ~= nil then
    self.call = self.launch
  elseif self.result_count <= 3 and typing.is_flat(self.skeleton) then
    self.call = call_few
  else
    self.call = call_many
  end
end

--- Appends to `feeds` what the job supplies by itself: the seed, the number of the call. Gives the number of feeds.
function Plan:supply(feeds, count)
  local hidden = self.hidden
  for i = 1, #hidden do
    if hidden[i].name == "System-Seed" then
      feeds[count + i] = random_seed.array(self.job:turn_to_draw())
    else
      feeds[count + i] = core.array(self.job.calls, "int64")
      self.job.calls = self.job.calls + 1
    end
  end
  return count + #hidden
end

--- The call that was begun last has been refused, and does not count.
function Plan:retract()
  for _, hidden in ipairs(self.hidden) do
    if hidden.name ~= "System-Seed" then self.job.calls = self.job.calls - 1 end
  end
  if self.board.selective == 0 then return end
  for _, handle in pairs(self.watches) do handle:retract() end
end

interrupts.keep_whole(Plan.launch)

return plan
