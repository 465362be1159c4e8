--- Variables: named values that outlive runs and are shared by name between the jobs of the session.
-- Their records (initialiser, regulariser, trainable) live as long as the session. What has no value yet is
-- initialised: at a checkpoint's init, or before the first call of a job that needs it.

local core = require "moonflow.core"
local alike = require "moonflow.alike"
local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local choices = require "moonflow.choices"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local initializer = require "moonflow.initializer"
local random_seed = require "moonflow.random_seed"
local session = require "moonflow.session"
local trace = require "moonflow.trace"

local variable = {}

-- name -> { name, shape (list), dtype, initializer, regularizer, trainable, is_bias, seed, site }; of a slot `system`
-- and `moved_by` too
local records = {}
session.on_close(function() records = {} end)

local function shape_text(shape) return "(" .. table.concat(shape, ", ") .. ")" end

local function same_list(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do
    if a[i] ~= b[i] then return false end
  end
  return true
end

-- What is known of a variable: from this job, else from those before it.
local function record_of(t, name) return t.records[name] or records[name] end

-- Appends the variable to the job being traced and keeps its record.
local function declare(t, given, where)
  local known = record_of(t, given.name)
  local shape, dtype = given.shape, given.dtype
  if known and known.system then
    errors.raise("invalid_argument", where .. ": '" .. given.name .. "' is the name of what a train job keeps for "
      .. "itself, such as the slots of its optimizer; give the variable another one")
  end
  if known and (known.dtype ~= dtype or not same_list(known.shape, shape)) then
    errors.raise("shape_mismatch", where .. ": variable '" .. given.name .. "' is " .. known.dtype .. " "
      .. shape_text(known.shape) .. " since " .. (known.site or "?") .. ", this asks for " .. dtype .. " "
      .. shape_text(shape) .. "; it lives on when its job is defined again, so another shape or dtype needs another "
      .. "name" .. (given.name:find("^%u%w*_%d+%-") and ". It is of a layer without a name, and those of all jobs are "
        .. "numbered alike: name it" or "") .. ", or flow.forget_variables(\""
        .. (given.is_of_layer and given.name:match("^(.+)%-") or given.name) .. "\") before the definition")
  end
  if t.taken[given.name] then
    errors.raise("invalid_argument", where .. ": the name '" .. given.name .. "' is taken in this job by "
      .. t.taken[given.name] .. "; give one of them another name")
  end
  local site = errors.site()
  local id = t.graph:variable(given.name, dtype, shape, site or "")
  -- The latest definition says how to initialise: a job defined again in the REPL may change its mind.
  local record = {
    name = given.name, shape = shape, dtype = dtype, site = known and known.site or site,
    initializer = given.initializer, seed = given.seed, trainable = given.trainable, regularizer = given.regularizer,
    is_bias = given.is_bias,
  }
  t.records[given.name] = record
  t.taken[given.name] = "the variable at " .. (site or "?")
  local value = blob.new(t, id, given.name, site)
  t.variables[given.name] = value
  t.variable_list[#t.variable_list + 1] = { record = record, id = id }
  return value
end

local signature = arguments.signature("flow.get_variable", {
  { "name", "string" }, { "shape", "list?" }, { "dtype", "dtype?" }, { "initializer", "any?" },
  { "regularizer", "regularizer?" }, { "trainable", "boolean?" }, { "model_name", "string?" },
  { "random_seed", "integer?" }, { "distribute", "any?" }, { "reuse", "boolean", true },
})

-- Refuses to be asked for a variable that the job has as one that begins, or is trained, in another way.
local function check_alike(t, given, where, site)
  local function fail(what, is, wanted)
    errors.raise("invalid_argument", ("%s: variable '%s' %s since %s, and is so for the whole job; this asks for %s"
      ):format(where, given.name, is, site or "?", what .. " = " .. tostring(wanted)))
  end
  local record = t.records[given.name]
  if given.trainable ~= nil and given.trainable ~= record.trainable then
    fail("trainable", record.trainable and "is trainable" or "is not trainable", given.trainable)
  end
  local function check(name, is, wanted, is_alike)
    if wanted ~= nil and not is_alike then
      fail(name, is == nil and "has no " .. name or "has " .. name .. " = " .. tostring(is), wanted)
    end
  end
  local init, regularizer = initializer.from(given.initializer, where), given.regularizer
  check("initializer", record.initializer, init, init and init:is_like(record.initializer))
  check("regularizer", record.regularizer, regularizer, tostring(regularizer) == tostring(record.regularizer))
  check("random_seed", record.seed, given.seed, given.seed == record.seed)
  if given.model_name and (given.model_name == "bias") ~= record.is_bias then
    fail("model_name", record.is_bias and "has model_name = bias" or "has no model_name = bias", given.model_name)
  end
end

--- A variable of the job, by its full name; for layers.
--- @param where string  what the user called, for messages
--- @param given table   name (full), shape, dtype?, initializer?, regularizer?, trainable?, seed?, reuse?
function variable.get(where, given)
  local t = trace.need(where)
  local shape = arguments.flat_list(given.shape)
  for i, size in ipairs(shape) do
    if not arguments.is_size(size) then
      errors.raise("invalid_argument", where .. ": shape of '" .. given.name .. "' must be a list of positive whole "
        .. "numbers, entry " .. i .. " is " .. arguments.describe(size))
    end
  end
  local dtype = given.dtype or t.config.default_data_type
  local known = t.variables[given.name]
  if known then
    local of_layer = given.owner == "layer"
    if given.reuse == false and not (of_layer and t:reuses_variables()) then
      errors.raise("invalid_argument", where .. ": variable '" .. given.name .. "' already exists in this job (made "
        .. "at " .. (known.site or "?") .. "); give the " .. (given.owner or "variable") .. " another name, or "
        .. (of_layer and "share its variables on purpose, in flow.scope.reuse_variables" or "leave out reuse = false"))
    end
    if known.dtype ~= dtype or not same_list(known.shape:table(), shape) then
      errors.raise("shape_mismatch", where .. ": variable '" .. given.name .. "' is " .. known.dtype .. " "
        .. tostring(known.shape) .. " since " .. (known.site or "?") .. ", this asks for " .. dtype .. " "
        .. shape_text(shape))
    end
    if not of_layer then check_alike(t, given, where, known.site) end
    return known
  end
  local init = initializer.from(given.initializer, where) or t.config.default_initializer
  local earlier = record_of(t, given.name)
  if not init and not earlier then
    errors.raise("invalid_argument", where .. ": variable '" .. given.name .. "' has no initializer, and the job "
      .. "has no default one; give initializer = flow.truncated_normal(0.1)")
  end
  local misfit = init and init:misfit(shape, dtype)
  if misfit then
    errors.raise("invalid_argument", ("%s: the initializer %s does not fit the variable '%s', %s %s: %s"):format(
      where, tostring(init), given.name, dtype, shape_text(shape), misfit))
  end
  return declare(t, {
    name = given.name, shape = shape, dtype = dtype, initializer = init or earlier.initializer,
    regularizer = given.regularizer, trainable = given.trainable ~= false, seed = given.seed,
    is_bias = given.model_name == "bias", is_of_layer = given.owner == "layer",
  }, where)
end

-- Fills in the shape of a variable that is there already, and with it what else it is.
local function adopt(given, t)
  local known = record_of(t, given.name)
  if not known then
    local names = {}
    for _, all in ipairs({ t.records, records }) do
      for name in pairs(all) do names[#names + 1] = name end
    end
    table.sort(names)
    errors.raise("not_found", "flow.get_variable: there is no variable '" .. given.name .. "' yet"
      .. (arguments.nearest(given.name, names) and arguments.suggestion(given.name, names)
        or "; give a shape to make it"))
  end
  given.shape, given.dtype = known.shape, given.dtype or known.dtype
  if given.trainable == nil then given.trainable = known.trainable end
  -- In the job itself there is nothing to fill in.
  if not t.variables[given.name] then
    given.regularizer = given.regularizer or known.regularizer
    given.seed = given.seed or known.seed
    given.model_name = given.model_name or known.is_bias and "bias" or nil
  end
end

--- How a variable of this full name that is known already gets its first value, and where it was made; or nil.
function variable.first_value(t, name)
  local known = record_of(t, name)
  if known then return known.initializer, known.site end
end

--- The variable of this name, made if it is new. Shared by name between all jobs of the session. One that nothing in
--- its jobs computes with is not made: it is in no checkpoint, nor in flow.get_all_variables.
--- @param name string            in the open namespaces
--- @param shape? table           list of sizes; may be left out, with all else, where a job before this one has made it
--- @param dtype? string          default: the job's default_data_type (float32)
--- @param initializer? Initializer  required for a new variable, unless the job has a default one
--- @param regularizer? Regularizer
--- @param trainable? boolean     default true; false freezes it: no optimizer changes it
--- @param model_name? string    "bias": what config.train:secondary_lr is the learning rate of
--- @param random_seed? number    its own seed, instead of flow.set_seed's
--- @param distribute? any        the original's, without effect
--- @param reuse? boolean         default true; false: an error when the job has it already
--- @return Blob
--- @error another shape or dtype under this name; another initializer, regularizer or the like than the job has said
---        for it before; an input or op of this name in the job; without a shape, no variable of this name
function variable.get_variable(...)
  local t = trace.need("flow.get_variable")
  local given = signature:parse(...)
  given.name, given.seed = t:scoped(given.name), given.random_seed
  if not given.shape then adopt(given, t) end
  return variable.get("flow.get_variable", given)
end

--- A variable that belongs to the machinery of a train job (the step, an optimizer's slot): an id, not a blob. None of
--- the user's may have its name.
function variable.system(t, name, dtype, shape, value)
  local known = record_of(t, name)
  if known and not known.system then
    errors.raise("invalid_argument", ("%s: its own '%s' would be the variable of that name, made at %s; give that "
      .. "another name"):format(t.optimizer.where, name, known.site or "?"), t.optimizer_site)
  end
  if not known then
    t.records[name] = { name = name, shape = shape, dtype = dtype, system = true,
                        initializer = initializer.constant_initializer(value), trainable = false }
  end
  return t.graph:variable(name, dtype, shape, "")
end

--- Notes that the steps of the job being traced move this slot, a system variable.
--- @return table  names of all jobs that do, in the order of their definition
function variable.moved_by(t, slot)
  local record, jobs, is_new = {}, {}, true
  for key, value in pairs(record_of(t, slot)) do record[key] = value end
  for i, job in ipairs(record.moved_by or {}) do
    jobs[i] = job
    is_new = is_new and job ~= t.job
  end
  if is_new then jobs[#jobs + 1] = t.job end
  record.moved_by = jobs
  t.records[slot] = record
  return jobs
end

--- Notes the job whose steps a system variable counts, and the names of what they train. Gives the names that were
--- noted before.
--- @error a job of another name counts in it
function variable.counts_for(t, step, names, site)
  local record = {}
  for key, value in pairs(record_of(t, step)) do record[key] = value end
  local before, counted = record.counts_for, record.counted or t.job
  if counted ~= t.job then
    errors.raise("invalid_argument", ("the jobs '%s' and '%s' would count their steps in one variable, '%s', which has "
      .. "'_' for all but letters of ASCII, digits, '.' and '-'; flow.global_function { name = ... } gives one of them "
      .. "another name"):format(counted, t.job, step), site)
  end
  record.counts_for, record.counted = names, t.job
  t.records[step] = record
  return before
end

-- ---- choosing -----------------------------------------------------------------------------------------------------

--- The floating variables of the job so far that are not to stay as they are: entries, in the order they came up in.
--- @param chosen? table  list of choices (moonflow.choices); default: all
--- @param where? string  what wants them, for messages
--- @error a choice that stands for none
function variable.trainable(t, chosen, where, site)
  local list, names = {}, {}
  for _, entry in ipairs(t.variable_list) do
    if entry.record.trainable and dtypes.floating[entry.record.dtype] then
      list[#list + 1], names[#names + 1] = entry, entry.record.name
    end
  end
  if not chosen then return list end
  local is_chosen, unknown = choices.covered(chosen, names)
  if unknown then
    errors.raise("not_found", where .. ": the job '" .. t.job .. "' has no trainable variable '" .. unknown
      .. "', and none in a layer or namespace of this name, behind which a name goes on with '-', '.' or '/'"
      .. choices.near(unknown, names, "; it has "), site)
  end
  for i = #list, 1, -1 do
    if not is_chosen[names[i]] then table.remove(list, i) end
  end
  return list
end

local trainable_signature = arguments.signature("flow.trainable_variables", {
  { "names", "any?", text = "of variables, or of the layers and namespaces they are in; default: all" },
})

--- The variables of the job that an optimizer would train, as values of the job: all floating ones that have come up so
--- far and are not `trainable = false`, in this order. Each has its `name`, `shape` and `dtype`. For steps of your own,
--- averages that follow, sums of squares.
--- @param names? string|table  a name or a list
--- @return table               list of Blob
--- @error outside of a job function; a name of none
function variable.trainable_variables(...)
  local t = trace.need("flow.trainable_variables")
  local chosen = choices.read(trainable_signature:parse(...).names, trainable_signature, "names")
  local blobs = {}
  for i, entry in ipairs(variable.trainable(t, chosen, trainable_signature.where)) do
    blobs[i] = t.variables[entry.record.name]
  end
  return blobs
end

--- Keeps the records of a trace whose job is compiled. A job whose definition failed leaves none.
function variable.commit(t)
  for name, record in pairs(t.records) do records[name] = record end
end

-- ---- initialising -------------------------------------------------------------------------------------------------

local random_fills = {
  random_uniform = true, random_normal = true, truncated_normal = true, random_int = true, random_orthogonal = true,
}

-- The inputs of the op that fills a variable: seed and step of a random one.
local function fill_inputs(graph, record, op, inputs)
  if not random_fills[op] then return {} end
  inputs.step = inputs.step or graph:constant(core.array(0, "int64"), "step", "")
  if record.seed then
    return { graph:constant(core.array(record.seed, "int64"), record.name .. "-seed", ""), inputs.step }
  end
  inputs.seed = inputs.seed or graph:feed("System-Seed", "int64", {}, "")
  return { inputs.seed, inputs.step }
end

local function append_assignment(graph, record, inputs)
  local site = record.site or ""
  local op, attrs = record.initializer:op(record.shape, record.dtype)
  if random_fills[op] then attrs.key = record.name end
  local value = graph:append(op, fill_inputs(graph, record, op, inputs), attrs, record.name .. "-initializer", site)
  local id = graph:variable(record.name, record.dtype, record.shape, site)
  graph:append("assign", { id, value }, {}, record.name .. "-assign", site)
end

local function ignore() end

local function run_assignments(list)
  local handle = session.handle()
  local graph = handle:graph("System-Init")
  local inputs = {}
  for _, record in ipairs(list) do append_assignment(graph, record, inputs) end
  local plan = handle:compile(graph)
  local run
  while not run do
    if inputs.seed then run = plan:submit(true, nil, random_seed.array()) else run = plan:submit(true, nil) end
    if not run then session.make_room() end
  end
  local problem = session.finish(run, ignore)
  if problem then error(problem, 0) end
end

-- Arrays are written as they are, and all else by one run of assignments.
local function give_first_values(list)
  local rest = {}
  for _, record in ipairs(list) do
    local value, attrs = record.initializer:op(record.shape, record.dtype)
    if attrs then
      rest[#rest + 1] = record
    else
      session.handle():write(record.name, value)
    end
  end
  if #rest > 0 then run_assignments(rest) end
end

-- Says so where moments begin at 0 while the steps that correct them go on: after another optimizer, or of a new layer.
local function warn_of_late_moments(list)
  local handle, late, counting, steps = session.handle(), {}, nil, 0
  for _, record in ipairs(list) do
    local count = 0
    for _, job in ipairs(record.moved_by or {}) do
      local name = trace.step_name(job)
      local more = handle:has_value(name) and handle:read(name):item() or 0
      if more > 0 then count, counting = count + more, counting or job end
    end
    if count > 0 then late[#late + 1], steps = record.name, math.max(steps, count) end
  end
  if #late == 0 then return end
  table.sort(late)
  session.log(("moonflow: %s begin%s at 0 while the steps of '%s' go on from %d. Bias correction takes that for old, "
    .. "so first steps may be some times as long as the learning rate says; they count from 0 in a job of another "
    .. "name, and after check_point:load(path, { slots = false })"):format(arguments.some_quoted(late, 4),
    #late == 1 and "s" or "", counting, steps))
end

--- Initialises what has no value yet. Where all have one it makes no garbage: a game publishes in each frame.
--- @param names? table  list of names to look at, maybe several times each; default: all variables of the session
--- @return number        how many were initialised
function variable.initialise(names)
  local handle, list, listed = session.handle(), {}, {}
  for _, name in ipairs(names or handle:without_value()) do
    if not listed[name] and handle:has_value(name) == false then list[#list + 1] = records[name] end
    listed[name] = true
  end
  if #list > 0 then
    warn_of_late_moments(list)
    give_first_values(list)
  end
  return #list
end

--- Gives every variable its first value again.
function variable.reset()
  local list = {}
  for _, entry in ipairs(session.handle():variables()) do
    if records[entry.name] then list[#list + 1] = records[entry.name] end
  end
  give_first_values(list)
  alike.look_again()
  return #list
end

--- The variables of the session, each with a value: { name = ndarray }, copies. As the process ends no first values are
--- computed any more, and a variable without one is left out.
--- @param slots boolean  with what optimizers remember, and train steps
function variable.values(slots)
  if not core.process_ends() then variable.initialise() end
  local handle, values = session.handle(), {}
  for _, entry in ipairs(handle:variables()) do
    local record = records[entry.name]
    local is_wanted = entry.initialised and (slots or not (record and record.system))
    if is_wanted then values[entry.name] = handle:read(entry.name) end
  end
  return values
end

local all_signature = arguments.signature("flow.get_all_variables", { { "slots", "boolean", true } })

--- The values of all variables after the runs submitted so far, for which it waits: { name = ndarray }. They are
--- copies: a state to go back to, `best = flow.get_all_variables()`, and later `flow.load_variables(best)`.
--- @param slots? boolean  default true; false leaves out what optimizers remember and the steps of train jobs
--- @return table<string,ndarray>
function variable.get_all_variables(...)
  return variable.values(all_signature:parse(...).slots)
end

local load_signature = arguments.signature("flow.load_variables",
  { { "values", "dictionary" }, { "ignore_mismatch", "boolean", true } })

-- "; did you mean 'x'?", where `name` resembles a variable without a value.
local function suggestion(name, types, values)
  local free = {}
  for known in pairs(types) do
    if values[known] == nil then free[#free + 1] = known end
  end
  table.sort(free)
  return arguments.suggestion(name, free)
end

--- Gives variables the values of a table { name = ndarray }. Everything is checked before the first variable changes,
--- which is after the runs under way: it waits for them.
--- Values of a narrower floating dtype, such as weights that are stored in bfloat16, become the variable's.
--- @param values table              of flow.get_all_variables, flow.checkpoint.get or your own
--- @param ignore_mismatch? boolean  default true: names that no variable of the jobs so far has are left out, and the
---                                  log sink is told once; false: they are an error
--- @error another shape, or a dtype whose values the variable's does not hold; no ndarray
function variable.load_variables(...)
  local given = load_signature:parse(...)
  variable.load(given.values, "flow.load_variables", function(unknown, types)
    local is_one, near = #unknown == 1, suggestion(unknown[1], types, given.values)
    local text = ("flow.load_variables: %s %s of the jobs defined so far"):format(arguments.some_quoted(unknown, 4),
      is_one and "is no variable" or "are no variables")
    if not given.ignore_mismatch then errors.raise("not_found", text .. near) end
    session.log(text .. (is_one and "; it is left out" or "; they are left out") .. near)
  end)
end

--- The variables of the jobs defined so far; an error where there are none.
--- @param slots? boolean  default true; false: without what optimizers remember, and train steps
function variable.known(where, slots)
  local all, known = session.handle():variables(), {}
  if #all == 0 then
    errors.raise("wrong_state", where .. ": there are no variables to load into; define the job functions first")
  end
  if slots ~= false then return all end
  for _, entry in ipairs(all) do
    if not variable.is_system(entry.name) then known[#known + 1] = entry end
  end
  return known
end

--- Is it of the machinery of train jobs, and not of a script's or a layer's making?
function variable.is_system(name)
  return records[name] ~= nil and records[name].system == true
end

-- Does a variable of this dtype take values of that one as they are? Weights are often stored in 16 bits.
local function holds(dtype, from)
  return dtype == from or dtypes.floating[from] and dtypes.floating[dtype] and dtypes.promote(dtype, from) == dtype
end

--- Checks all values, calls `tell(names, types)` where some have no variable, and sets the others. `types` has those
--- that there are, by name.
function variable.load(values, where, tell)
  local handle, types, names = session.handle(), {}, {}
  for _, entry in ipairs(variable.known(where)) do
    types[entry.name] = entry
    local _ = values[entry.name]  -- an error where a checkpoint has it in a form that cannot be had
  end
  for name in pairs(values) do
    if type(name) ~= "string" then
      errors.raise("invalid_argument", where .. ": variables have names, one of the keys is "
        .. arguments.describe(name))
    end
    names[#names + 1] = name
  end
  -- Of a layer that has changed its weight is told of first, and not what an optimizer remembers of that.
  table.sort(names, function(a, b)
    local is_system, other = variable.is_system(a), variable.is_system(b)
    if is_system ~= other then return other end
    return a < b
  end)
  for _, name in ipairs(names) do
    local entry, value = types[name], values[name]
    if arguments.kind(value) ~= "ndarray" then
      errors.raise("invalid_argument", where .. ": the value of '" .. tostring(name) .. "' must be an ndarray, got "
        .. arguments.describe(value) .. (entry and arguments.maker(value, entry.dtype, entry.shape) or ""))
    elseif entry and (entry.shape ~= value.shape or not holds(entry.dtype, value.dtype)) then
      local fits = entry.shape == value.shape
      errors.raise(fits and "dtype_mismatch" or "shape_mismatch", where .. ": variable '" .. name .. "' is "
        .. entry.dtype .. " " .. tostring(entry.shape) .. ", the value is " .. value.dtype .. " "
        .. tostring(value.shape) .. (fits and "; value:astype says that it is to be rounded"
        or ("; nothing has changed. Once values['%s'] = nil has left it out, flow.load_variables(values) takes the "
          .. "others: of a snapshot values = flow.checkpoint.get(path, { slots = false })"):format(name)))
    end
  end
  local unknown = {}
  for _, name in ipairs(names) do
    if not types[name] then unknown[#unknown + 1] = name end
  end
  if #unknown > 0 then tell(unknown, types) end
  for _, name in ipairs(names) do
    local value, dtype = values[name], types[name] and types[name].dtype
    if dtype then handle:write(name, value.dtype == dtype and value or value:astype(dtype)) end
  end
  alike.look_again()
end

-- ---- forgetting ---------------------------------------------------------------------------------------------------

local forget_signature = arguments.signature("flow.forget_variables", {
  { "names", "any", text = "a name or a list: of variables, or of the layers and namespaces they are in" },
})

-- Of a train job's step: has all that it trains been chosen?
local function counts_for_chosen(record, chosen)
  local names = record and record.counts_for or {}
  for _, name in ipairs(names) do
    if not chosen[name] then return false end
  end
  return #names > 0
end

--- Ends variables and frees their names and memory: `flow.forget_variables("hidden")` before a job is defined again
--- whose layer 'hidden' has another size by now, or when a program that goes on is done with a model. A name stands for
--- the variable, or for all in a layer or namespace of this name, behind which theirs go on with '-', '.' or '/'. What
--- optimizers remember of them goes too, and the steps of train jobs that trained nothing else.
--- Runs under way end first. Jobs that compute with one of them cannot be called from then on, until they are defined
--- again; what was prepared from them keeps its weights.
--- @param names string|table  a name or a list of names
--- @return number             how many are gone, without those of optimizers
--- @error a name that no variable has; in the body of a job
function variable.forget_variables(...)
  local names = forget_signature:parse(...).names
  local t = trace.current()
  if t then
    errors.raise("wrong_state", "flow.forget_variables: the body of the job '" .. t.job .. "' is under way, and may "
      .. "have asked for one of them; it belongs before the definition")
  end
  local wanted, handle = choices.list(names, forget_signature, "names"), session.handle()
  local all, every, own, list = handle:variables(), {}, {}, {}
  for _, entry in ipairs(all) do every[#every + 1] = entry.name end
  -- Those that a body has asked for and nothing is computed with were never made, but their shapes are known.
  for name in pairs(records) do
    if handle:has_value(name) == nil then every[#every + 1] = name end
  end
  for _, name in ipairs(every) do
    if not variable.is_system(name) then own[#own + 1] = name end
  end
  local chosen, unknown = choices.covered(wanted, every)
  if unknown then
    errors.raise("not_found", "flow.forget_variables: there is no variable '" .. unknown .. "', and none in a layer "
      .. "or namespace of this name" .. choices.near(unknown, own, "; there are "))
  end
  -- What goes with them comes behind: of a job that computes with several the first is named.
  local with_them = {}
  for _, entry in ipairs(all) do
    if chosen[entry.name] or counts_for_chosen(records[entry.name], chosen) then
      local names_of_kind = variable.is_system(entry.name) and with_them or list
      names_of_kind[#names_of_kind + 1] = entry.name
    end
  end
  local count = #list
  for _, name in ipairs(with_them) do list[#list + 1] = name end
  handle:forget_variables(list)
  for _, name in ipairs(list) do records[name] = nil end
  for name in pairs(chosen) do
    if records[name] then records[name], count = nil, count + 1 end
  end
  return count
end

return variable
