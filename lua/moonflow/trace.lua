--- The trace of the job that is being built: its graph, its names, its scopes, and what the body asked for.
-- At most one at a time. `trace.run` runs a body with the line hook on and puts everything back, also after an error.

local core = require "moonflow.core"
local errors = require "moonflow.errors"
local debug = debug

local trace = {}

local current = nil  -- the trace being built

local Trace = {}
Trace.__index = Trace

--- Makes a trace.
--- @param graph userdata  the graph the job appends to
--- @param about table     job (name), type ("train" or "predict"), config, legacy (the oldest dialect: one counter for
---                        all unnamed things, as its programs print), inputs (how many)
function trace.new(graph, about)
  return setmetatable({
    graph = graph,
    job = about.job,
    draws_as = about.draws_as,  -- in the keys of its random numbers
    type = about.type,
    config = about.config,
    legacy = about.legacy,
    fed = about.fed or "",    -- see alike.fed
    -- The oldest dialect counted each input twice, once for its definition and once for its use in the job.
    count = 2 * (about.inputs or 0),
    counts = {},        -- of the newer dialect: one counter per kind
    taken = {},         -- name -> who has it, and where
    numbers = {},       -- name -> the number from which on it may be free with one
    variables = {},     -- name -> blob
    assigned = {},      -- names of variables that flow.assign and flow.assign_add write -> where
    replaced = {},      -- names of those that flow.assign does -> true
    variable_list = {}, -- { record, id }, in the order they were met
    records = {},       -- of variable.lua; the session's once the job is compiled
    namespaces = {},
    placements = {},    -- { placement, where }, the innermost last; where: "cpu", the index of a gpu, nil for no say
    where = nil,        -- the same of the job: what the first op that has a say says
    views = {},
    reuses = {},        -- one entry per open scope.reuse_variables
    parts = 0,          -- of scope.recompute
    in_part = false,
    composing = {},     -- functions of the library under way that are made of ops
    truths = {},        -- what the body itself compares: { id, op, name, site }
    watch_scopes = {},
    watches = {},       -- watch handles, in the order they were asked for
    diff_watches = {},
    losses = {},
    statistics = {},    -- of batches, towards which running ones are to move; see Trace:note_statistics
    has_lone_values = false, -- one of them is of single values, which has been said
    targets = {},       -- what losses were given: { loss, site, names, target, prediction }
    hidden = {},        -- feeds that the job supplies itself: { name, id }
    optimizer = nil,
    corrections = {}, -- of update.lua: what the means of moments lack -> id
    sums_of_steps = {}, -- of update.lua: names of other jobs' steps -> id of their sum with the job's own
  }, Trace)
end

--- The trace being built, or nil. A body that yielded is given up: it may never be resumed.
function trace.current()
  if current and current.thread and coroutine.status(current.thread) == "suspended" then current:leave() end
  return current
end

--- The trace being built; an error that names `what` when there is none.
function trace.need(what)
  if not trace.current() then
    errors.raise("wrong_state", what .. " is used outside of a job function; it belongs in the body given to "
      .. "flow.global_function")
  end
  return current
end

-- Puts everything back as it was before the body. First what needs no memory, since that may be why the body ended.
function Trace:leave()
  current = nil
  local source, line = core.leave_lines()
  self.namespaces, self.placements, self.views, self.reuses, self.watch_scopes = {}, {}, {}, {}, {}
  self.composing = {}
  if source then self.last_site = errors.place(source, line) end
end

--- Gives up what a failure has left open since `outer` (what trace.current gave before), where memory ran out between
--- the beginning of a trace and its body.
function trace.abandon(outer)
  if current and current ~= outer then current:leave() end
  current = outer
end

local function ended(self, ...)
  if current ~= self then errors.raise("wrong_state", "the body of the job '" .. self.job .. "' has yielded") end
  self:leave()
  return ...
end

-- All of this is protected: the error of a script's own hook may come at any place.
local function begin(self, body, ...)
  self.thread, current = coroutine.running(), self
  core.follow_lines()
  return ended(self, body(...))
end

local function finish(self, ok, ...)
  if current == self then self:leave() end
  if not ok then error((...), 0) end
  return ...
end

-- What Lua itself refuses to do with a value of a job, and what does it.
local instead = {
  { "attempt to compare .*table", "; a value of the job is compared by x:greater(y), x:less(y), x:equal(y) and the "
    .. "like, and chosen by flow.where; `if` cannot ask for it, as it has no data yet" },
  { "bad argument #%d+ to '[%w_? ]+' %(number expected, got table%)", "; Lua's own functions take no value of the job: "
    .. "flow.math has those that do, such as flow.math.exp" },
}

-- Lua's error in a body, with a word of help. One that a tail call has put into this file is the script's.
local function explained(value)
  if type(value) == "string" then
    local text = value:match("trace%.lua:%d+: (bad argument #%d+ to 'body' .*)$")
    if text then value = (errors.site() or "?") .. ": " .. text:gsub("to 'body'", "to 'a function'") end
    for _, entry in ipairs(instead) do
      if value:find(entry[1]) then value = value .. entry[2] break end
    end
  end
  local has_room = not errors.is_out_of_memory(value)  -- for a traceback
  if current then errors.note_definition(value, current.job, has_room and debug.traceback("", 2) or nil) end
  return errors.traced(value)
end

--- Runs `body(...)` as the body of this trace and gives what it returns.
function Trace:run(body, ...)
  if trace.current() then
    errors.raise("wrong_state", "a job function cannot be defined inside the body of another one ('" .. current.job
      .. "')")
  end
  return finish(self, xpcall(begin, explained, self, body, ...))
end

local function popped(stack, fine, ...)
  stack[#stack] = nil
  if not fine then error((...), 0) end
  return ...
end

--- Runs `body` with an entry on top of a stack of the trace, such as its namespaces, and gives what it returns. The
--- entry goes also when the body raises.
function trace.within(stack, entry, body)
  stack[#stack + 1] = entry
  return popped(stack, xpcall(body, errors.traced))
end

--- Raises where the job does not train. `advice` ends the error.
function Trace:need_training(where, advice)
  if self.type ~= "train" then
    errors.raise("wrong_state", where .. ": the job '" .. self.job .. "' has type 'predict'" .. advice)
  end
end

--- "Conv2d" of "conv2d", for names that are made up.
local function kind_name(op)
  return (op:gsub("^%l", string.upper):gsub("_(%l)", function(letter) return letter:upper() end))
end

--- A fresh name for something unnamed: "Reshape_4".
function Trace:unnamed(kind)
  if self.legacy then
    self.count = self.count + 1
    return kind .. "_" .. (self.count - 1)
  end
  local count = self.counts[kind] or 0
  self.counts[kind] = count + 1
  return kind .. "_" .. count
end

--- `name` with the names of the open namespaces before it: "encoder-dense1".
function Trace:scoped(name)
  local scopes = self.namespaces
  if #scopes == 0 then return name end
  return table.concat(scopes, "-") .. "-" .. name
end

--- Do layers share the variables of those of their name?
function Trace:reuses_variables()
  return #self.reuses > 0
end

-- The first of name-1, name-2, ... that is free. A taken name stays so, and hundreds of steps may share one.
local function numbered(self, name)
  local i = self.numbers[name] or 1
  while self.taken[name .. "-" .. i] do i = i + 1 end
  self.numbers[name] = i + 1
  return name .. "-" .. i
end

--- The full name of a new op: the user's name in its namespaces, or a made-up one. A name is taken once per job; a net
--- that is made again for the sake of its variables has its ops numbered.
function Trace:claim(name, op, site)
  local full
  if name then
    full = self:scoped(name)
    local owner = self.taken[full]
    if owner and self:reuses_variables() then
      full = numbered(self, full)
    elseif owner then
      errors.raise("invalid_argument", "the name '" .. full .. "' is taken in this job by " .. owner
        .. "; give this one another name", site)
    end
  else
    repeat full = self:scoped(self:unnamed(kind_name(op))) until not self.taken[full]
  end
  self.taken[full] = "the op at " .. (site or "?")
  return full
end

local function device_name(where)
  return where == "cpu" and "the cpu" or "gpu " .. where
end

-- A job runs as a whole where its ops are placed.
local function place(self, site)
  local innermost = self.placements[#self.placements]
  local where = innermost and innermost.where
  if where == nil or where == self.where then return end
  if self.where ~= nil then
    errors.raise("unsupported", "this op is placed on " .. device_name(where) .. ", and others of '" .. self.job
      .. "' on " .. device_name(self.where) .. " (" .. self.where_site .. "): a job runs on one device; place all of "
      .. "its ops there", site)
  end
  self.where, self.where_site = where, site or "?"
end

local gives_truth = {}
for op in ([[equal not_equal less less_equal greater greater_equal logical_and logical_or logical_not reduce_all
reduce_any]]):gmatch("%S+") do gives_truth[op] = true end

--- Appends an op and gives its output ids. `inputs` are ids, `false` for a left-out one.
function Trace:append(op, inputs, attrs, name, site)
  place(self, site)
  if gives_truth[op] and site and #self.composing == 0 then
    local id = self.graph:append(op, inputs, attrs or {}, name, site)
    self.truths[#self.truths + 1] = { id = id, op = op, name = name, site = site }
    return id
  end
  return self.graph:append(op, inputs, attrs or {}, name, site or "")
end

--- Notes what a loss was given, for a warning where it is in the wrong order. Losses do so whose target and prediction
--- are of one type, so that only what is trained tells them apart, and where the order matters.
--- @param loss string       what the user calls it
--- @param names table       of the target and of the prediction
--- @param target Blob
--- @param prediction Blob
function Trace:note_target(loss, names, target, prediction)
  self.targets[#self.targets + 1] =
    { loss = loss, site = errors.site() or "?", names = names, target = target, prediction = prediction }
end

--- Notes the statistics of a batch, which move the running ones once the body has run.
--- @param moving table  ids of the running mean and variance, which are variables
--- @param mean id       of the batch
--- @param inv_std id    of the batch: 1 / sqrt(variance + epsilon)
--- @param attrs table   of moving_statistics_update
function Trace:note_statistics(moving, mean, inv_std, attrs, name)
  local site = errors.site()
  self.statistics[#self.statistics + 1] = {
    moving = moving, mean = mean, inv_std = inv_std, attrs = attrs,
    name = self:claim(name, "moving_statistics_update", site), site = site,
  }
end

--- Appends a constant and gives its id.
function Trace:constant(value, dtype, name, site)
  if type(value) ~= "userdata" then value = core.array(value, dtype) end
  return self.graph:constant(value, name or self:scoped(self:unnamed("Constant")), site or "")
end

-- The id of a feed that the job supplies by itself at each call.
local function hidden_feed(self, name)
  for _, feed in ipairs(self.hidden) do
    if feed.name == name then return feed.id end
  end
  local id = self.graph:feed(name, "int64", {}, "")
  self.hidden[#self.hidden + 1] = { name = name, id = id }
  return id
end

--- The id of the seed of all random numbers: fed at each call from flow.set_seed.
function Trace:seed_id()
  return hidden_feed(self, "System-Seed")
end

--- The name of a job as a part of a variable's name.
function trace.variable_part(job)
  return (job:gsub("[^%w_.-]", "_"))
end

--- The name of the variable that counts the steps of a train job.
function trace.step_name(job)
  return "System-Train-TrainStep-" .. trace.variable_part(job)
end

--- The id of what tells one run from the next: the step variable of a train job, the number of the call of another.
function Trace:step_id()
  if self.type ~= "train" then return hidden_feed(self, "System-Call") end
  return self.graph:variable(trace.step_name(self.job), "int64", {}, "")
end

return trace
