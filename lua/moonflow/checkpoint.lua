-- flow.train.CheckPoint: the variables of the session on disk, optimizer slots and train steps among them. A checkpoint
-- is a directory with one file of raw bytes per variable, <variable>/out, and a manifest.json with shapes, dtypes and
-- checksums. It is written beside its place and renamed into it, so there is always a whole one.

local core = require "moonflow.core"
local answer = require "moonflow.answer"
local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local random_seed = require "moonflow.random_seed"
local session = require "moonflow.session"
local trace = require "moonflow.trace"
local update = require "moonflow.update"
local variable = require "moonflow.variable"
local io, os = io, os
local blaming = errors.blaming

local checkpoint = {}

-- ---- files --------------------------------------------------------------------------------------------------------

-- One file in the safetensors format, or a folder.
local function is_file(path)
  return path:find("%.safetensors$") ~= nil
end

-- What reads the checkpoint at `path`. Where a file of another kind is, it says so: the path of a folder it would be.
local function reader_of(where, path)
  if is_file(path) then return core.safetensors_read end
  local is_other = pcall(core.first_bytes, path, 0)  -- of a regular file alone
  if is_other and path:find("%.safetensors%.index%.json$") then
    errors.raise("io", ("%s: '%s' says which file has which array; flow.checkpoint.get reads each of these, "
      .. "model-00001-of-00002.safetensors and so on"):format(where, path))
  elseif is_other then
    errors.raise("io", ("%s: '%s' is a file, and a checkpoint is a folder, or a file whose name ends in "
      .. "\".safetensors\"; in Python, safetensors.torch.save_file(model.state_dict(), \"m.safetensors\") writes one")
      :format(where, path))
  end
  return core.checkpoint_read
end

local function check_any(where, values)
  if next(values) == nil then
    errors.raise("wrong_state", where .. ": there are no variables; define the job functions first")
  end
end

-- What a file of safetensors tells beside the arrays: texts by name. The script's metadata are one of them, as JSON.
local function noted(where, metadata)
  if metadata ~= nil and type(metadata) ~= "table" then
    errors.raise("invalid_argument", where .. ": metadata must be a table, got " .. arguments.describe(metadata))
  end
  return { seed = random_seed.text(), moonflow = core.version,
           metadata = metadata and core.json_write(metadata, where .. ": metadata") }
end

-- The script's own among these; nil where there are none. What others have written are theirs.
local function metadata_in(texts)
  if texts.metadata and texts.moonflow then return (core.json_read(texts.metadata)) end
  return not texts.moonflow and next(texts) and texts or nil
end

local function write(where, path, values, overwrite, metadata)
  local texts = noted(where, metadata)
  if is_file(path) then
    local there = not overwrite and io.open(path, "rb")
    if there then
      there:close()
      errors.raise("io", where .. ": file '" .. path .. "' exists; { overwrite = true } replaces it")
    end
    blaming(where, core.safetensors_write, path, values, texts)
    return
  end
  local entries = {}
  for name, value in pairs(values) do entries[#entries + 1] = { name = name, value = value } end
  blaming(where, core.checkpoint_write, path, entries,
    { seed = random_seed.value(), moonflow = core.version, metadata = metadata }, overwrite)
end

local save_values_signature = arguments.signature("flow.checkpoint.save",
  { { "path", "string" }, { "values", "dictionary?" }, { "overwrite", "boolean", false }, { "metadata", "any?" } })

--- Writes arrays by name, as CheckPoint:save writes variables.
--- @param path string          a folder to make, or one file, when it ends in ".safetensors"; the folder it is in must
---                             be there
--- @param values? table        { name = ndarray }; default: all variables
--- @param overwrite? boolean   true replaces what is there
--- @param metadata? table      as of CheckPoint:save
function checkpoint.save(...)
  local path, values, more = ...
  -- Options behind the path alone are not arrays by name.
  local is_options = more == nil and type(values) == "table"
    and (type(values.overwrite) == "boolean" or type(values.metadata) == "table")
  local given = is_options and save_values_signature:parse(path, nil, values) or save_values_signature:parse(...)
  if given.values and next(given.values) == nil then
    save_values_signature:fail ": the table of arrays is empty, and there is nothing to write"
  end
  local all = given.values or variable.values(true)
  check_any("flow.checkpoint.save", all)
  write("flow.checkpoint.save", given.path, all, given.overwrite, given.metadata)
end

-- A step that a job counts has the job's name, so that it may be in a checkpoint of another network.
local function is_system(name) return name:find("^System%-") ~= nil end

-- All of these arrays, or what is left of them without slots.
local function wanted_of(values, given)
  if given.slots then return values end
  local weights = {}
  for name, value in pairs(values) do
    if not is_system(name) and not update.is_slot(name, values) then weights[name] = value end
  end
  return weights
end

--- The arrays of a file, where asking for one that is left out, as its dtype is none of ours, is an error that says so.
--- @param values table     { name -> ndarray }
--- @param left_out? table  { name -> what to say }
--- @param where string     for messages
function checkpoint.without(values, left_out, where)
  if not left_out or next(left_out) == nil then return values end
  return setmetatable(values, { __index = function(_, name)
    if left_out[name] then errors.raise("unsupported", where .. ": " .. left_out[name]) end
  end })
end

local get_signature = arguments.signature("flow.checkpoint.get", { { "path", "string" }, { "slots", "boolean", true } })

--- The arrays of a checkpoint folder or a safetensors file, whatever jobs there are: { name = ndarray }. Of a file of
--- others, bool is int8, int16 and uint16 are int32, uint32 and uint64 int64. Others, as floats of 8 bits, complex
--- numbers and a uint64 from 2^63 on, are left out: to ask for one by its name is an error.
--- @param slots? boolean  default true; false leaves out what optimizers remember and the steps of train jobs, which
---                        their names tell: `flow.load_variables(flow.checkpoint.get(path, { slots = false }))`
--- @return table<string,ndarray>
--- @error a damaged or missing file
function checkpoint.get(...)
  local given = get_signature:parse(...)
  local path = given.path
  local where = "flow.checkpoint.get"
  local values, _, left_out = blaming(where, reader_of(where, path), path)
  return checkpoint.without(wanted_of(values, given), left_out, ("%s: file '%s'"):format(where, path))
end

local get_memory_signature = arguments.signature("flow.checkpoint.get_memory",
  { { "bytes", "string" }, { "slots", "boolean", true } })

--- The same of a string with what CheckPoint:save_memory gave, or all of a safetensors file: an opponent's weights from
--- a game's archive, to be taken under other names by `flow.load_variables`.
--- @param slots? boolean  as of flow.checkpoint.get
--- @return table<string,ndarray>
--- @error damaged bytes; asking for a tensor of a dtype that there is none of here
function checkpoint.get_memory(...)
  local given = get_memory_signature:parse(arguments.of_bytes(...))
  local where = "flow.checkpoint.get_memory"
  local values, _, left_out = blaming(where, core.safetensors_decode, given.bytes)
  return checkpoint.without(wanted_of(values, given), left_out, where)
end

local metadata_signature = arguments.signature("flow.checkpoint.metadata", { { "path", "string" } })

--- What a script has put beside the variables of a checkpoint, `check_point:save(path, { metadata = ... })`: words and
--- sizes that are wanted before its jobs are defined. Of a safetensors file of others, the texts that they have put
--- there. The arrays are not read, and so no checksum is looked at.
--- @param path string  a checkpoint folder or a safetensors file
--- @return table?      nil where there is nothing
--- @error a missing file; a damaged head
function checkpoint.metadata(...)
  local path = metadata_signature:parse(...).path
  local where = "flow.checkpoint.metadata"
  if is_file(path) then return metadata_in(blaming(where, core.safetensors_metadata, path)) end
  local _, manifest = blaming(where, reader_of(where, path), path, {})
  return manifest and manifest.meta and manifest.meta.metadata
end

-- ---- CheckPoint ---------------------------------------------------------------------------------------------------

local CheckPoint = { kind = "checkpoint" }
CheckPoint.__index = CheckPoint
arguments.publish("CheckPoint", "check_point", CheckPoint, "init save load save_memory load_memory")
answer(CheckPoint, "a checkpoint", {
  restore = "check_point:load(path) reads one", read = "check_point:load(path) reads one",
  write = "check_point:save(path) writes one", init_or_load = "check_point:init() and check_point:load(path) are two",
})

--- The variables of the session, on disk: `check_point:init()`, `check_point:save(path)`, `check_point:load(path)`;
--- `? check_point.save` explains one.
--- @return CheckPoint
function checkpoint.CheckPoint(...)
  if select("#", ...) > 0 then
    errors.raise("invalid_argument", "flow.train.CheckPoint takes no arguments; check_point:save(path) and "
      .. "check_point:load(path) take the folder")
  end
  return setmetatable({}, CheckPoint)
end

function CheckPoint.__tostring()
  return "CheckPoint: init, save, load, save_memory, load_memory"
end

--- Gives every variable of the jobs defined so far its first value. Variables of jobs that are defined later get theirs
--- before the first call of such a job. Waits for the runs under way.
function CheckPoint:init()
  arguments.check_self(self, CheckPoint, "CheckPoint:init")
  variable.reset()
end

local save_signature = arguments.signature("CheckPoint:save",
  { { "path", "string" }, { "overwrite", "boolean", false }, { "slots", "boolean", true }, { "metadata", "any?" } })

--- Writes all variables, after the runs submitted so far, for which it waits. Whatever goes wrong, a checkpoint that
--- was there stays whole. Several processes may save to one place: each replaces all of what another has saved.
--- @param path string         the directory to make, in one that is there; one file in the safetensors format, for
---                            Python among others, when it ends in ".safetensors"
--- @param overwrite? boolean  true replaces a checkpoint that is there; default: refuse a directory that is not empty
--- @param slots? boolean      default true; false leaves out what optimizers remember and the steps of train jobs,
---                            which a program that only predicts does not need
--- @param metadata? table     what else belongs to the model, for flow.checkpoint.metadata: words, sizes, names. Of
---                            strings, finite numbers, booleans and tables of them, lists without holes or by names;
---                            it is kept as JSON
function CheckPoint:save(...)
  arguments.check_self(self, CheckPoint, "CheckPoint:save")
  local given = save_signature:parse(...)
  local values = variable.values(given.slots)
  check_any("CheckPoint:save", values)
  write("CheckPoint:save", given.path, values, given.overwrite, given.metadata)
end

-- What `path` has of the variables wanted, or all of a file; the seed it was made with; a table by all of its names;
-- the script's metadata.
local function read(path, wanted)
  if is_file(path) then
    local values, texts, left_out = blaming("CheckPoint:load", core.safetensors_read, path)
    values = checkpoint.without(values, left_out, ("CheckPoint:load: file '%s'"):format(path))
    return values, tonumber(texts.seed), values, metadata_in(texts)
  end
  local values, manifest = blaming("CheckPoint:load", reader_of("CheckPoint:load", path), path, wanted)
  if manifest then
    local meta = manifest.meta or {}
    return values, meta.seed, manifest.variables, meta.metadata
  end
  session.log(("CheckPoint:load: %s has no manifest, so its dtypes and checksums could not be checked"):format(path))
  return values, nil, values
end

-- Some of these keys, for messages.
local function examples(held)
  local names = {}
  for name in pairs(held) do
    if not is_system(name) then names[#names + 1] = name end
  end
  table.sort(names)
  return names[1] and "'" .. names[1] .. "'" .. (names[2] and " and others" or "") or "nothing"
end

-- Tells of variables that a checkpoint lacks, in a line for those that keep their values and one for the others. What
-- train jobs keep for each of a script's own comes behind these, by its number.
local function tell_missing(where, missing)
  for _, keeps in ipairs { true, false } do
    local names, slots = {}, {}
    for _, entry in ipairs(missing) do
      local list = variable.is_system(entry.name) and slots or names
      if entry.initialised == keeps then list[#list + 1] = entry.name end
    end
    local others = #names > 0 and #slots > 0 and (", and none of %d that train jobs keep"):format(#slots) or ""
    if #names == 0 then names = slots end
    table.sort(names)
    if #names == 1 and others == "" then
      session.log(("%s has no variable '%s'; it %s"):format(where, names[1],
        keeps and "keeps its value" or "gets its first value"))
    elseif #names > 0 then
      session.log(("%s has no variable%s %s%s; they %s"):format(where, #names > 1 and "s" or "",
        arguments.some_quoted(names, 4), others,
        keeps and "keep their values" or "get their first values"))
    end
  end
end

-- Tells of train jobs whose steps a checkpoint has where others, defined so far, find none: they were renamed.
local function tell_renamed(where, missing, held, wanted)
  local prefix = trace.step_name("")
  local function job_of(name) return name:sub(1, #prefix) == prefix and name:sub(#prefix + 1) or nil end
  local lost, begun = {}, {}
  for name in pairs(held) do lost[#lost + 1] = not wanted[name] and job_of(name) or nil end
  for _, entry in ipairs(missing) do begun[#begun + 1] = job_of(entry.name) end
  if #lost == 0 or #begun == 0 then return end
  table.sort(lost)
  session.log(("%s has the steps of the train job %s, and none of %s, whose schedules begin anew. A job has its "
    .. "steps by its name, flow.global_function { name = '%s' }; without one it is called after its variable or line")
    :format(where, arguments.some_quoted(lost, 4), arguments.some_quoted(begun, 4), lost[1]))
end

--- Sets variables of the jobs defined so far to what a checkpoint has of them. Those that it lacks keep their values,
--- or get their first ones, and the log sink is told.
--- @param where string    the checkpoint, for messages
--- @param values table    { name -> ndarray }, of more variables maybe
--- @param seed? number    which it was made with
--- @param held table      by the names of all it has
--- @param known? table    the variables to set; default: those of variable.known
--- @error nothing of them in it, another shape or dtype: nothing is changed
function checkpoint.adopt(where, values, seed, held, known)
  local wanted, found, missing, is_ours = {}, {}, {}, false
  for _, entry in ipairs(known or variable.known(where)) do
    local name = entry.name
    wanted[name], found[name] = true, values[name]
    if not values[name] then missing[#missing + 1] = entry end
    is_ours = is_ours or values[name] ~= nil and not is_system(name)
  end
  if not is_ours then
    errors.raise("not_found", ("%s has none of the variables of the jobs defined so far, %s; it has %s"):format(where,
      examples(wanted), examples(held)))
  end
  variable.load(found, where)
  tell_missing(where, missing)
  tell_renamed(where, missing, held, wanted)
  random_seed.adopt(seed)
  variable.initialise()
end

local load_signature = arguments.signature("CheckPoint:load", { { "path", "string" }, { "slots", "boolean", true } })

--- Reads the variables of the jobs defined so far. Everything is checked before the first variable changes. A variable
--- that the checkpoint lacks keeps its value, or gets its first one, and the log sink is told; what the checkpoint has
--- beyond them is left alone. The seed of random numbers goes on too, unless the script has called flow.set_seed. Waits
--- for the runs under way.
--- @param path string     the directory that save made, or a file whose name ends in ".safetensors"
--- @param slots? boolean  default true; false leaves what optimizers remember and the steps of train jobs as they are,
---                        as for a training that begins anew from weights
--- @return table?         what flow.checkpoint.metadata gives of it
--- @error none of the variables in it, another shape or dtype, a damaged or missing file: nothing is changed
function CheckPoint:load(...)
  arguments.check_self(self, CheckPoint, "CheckPoint:load")
  local given = load_signature:parse(...)
  local where = "CheckPoint:load: " .. given.path
  local known = variable.known(where, given.slots)
  local values, seed, held, metadata = read(given.path, known)
  checkpoint.adopt(where, values, seed, held, known)
  return metadata
end

local save_memory_signature = arguments.signature("CheckPoint:save_memory",
  { { "slots", "boolean", true }, { "metadata", "any?" } })

--- All variables in one string, after the runs submitted so far, for which it waits: for a file system of one's own,
--- such as LÖVE's, or for the network. It is what a file in the safetensors format has in it.
--- @param slots? boolean   default true; false leaves out what optimizers remember and the steps of train jobs
--- @param metadata? table  as of save; load_memory gives them
--- @return string
function CheckPoint:save_memory(...)
  arguments.check_self(self, CheckPoint, "CheckPoint:save_memory")
  local given = save_memory_signature:parse(...)
  local values = variable.values(given.slots)
  check_any("CheckPoint:save_memory", values)
  return core.safetensors_encode(values, noted("CheckPoint:save_memory", given.metadata))
end

local load_memory_signature = arguments.signature("CheckPoint:load_memory",
  { { "bytes", "string" }, { "slots", "boolean", true } })

--- Reads the variables of the jobs defined so far, and the seed, as load does, from a string, after the runs under way.
--- Gives its metadata, if it has any.
--- @param bytes string    what save_memory gave, or all of a file in the safetensors format
--- @param slots? boolean  default true; false leaves what optimizers remember and the steps of train jobs as they are
--- @return table?
--- @error none of the variables in it, another shape or dtype, damaged bytes: nothing is changed
function CheckPoint:load_memory(...)
  arguments.check_self(self, CheckPoint, "CheckPoint:load_memory")
  local given = load_memory_signature:parse(arguments.of_bytes(...))
  local where = "CheckPoint:load_memory"
  local known = variable.known(where, given.slots)
  local values, texts, left_out = blaming(where, core.safetensors_decode, given.bytes)
  values = checkpoint.without(values, left_out, where)
  checkpoint.adopt(where, values, tonumber(texts.seed), values, known)
  return metadata_in(texts)
end

-- ---- SimpleCheckPointManager --------------------------------------------------------------------------------------

local Manager = { kind = "checkpoint manager" }
Manager.__index = Manager
arguments.publish("SimpleCheckPointManager", "manager", Manager,
  "list_checkpoints latest_checkpoint initialize_or_restore save")
answer(Manager, "a manager of checkpoints")

function Manager:__tostring()
  return "checkpoints in " .. self.root_path .. ": " .. self.prefix .. "*"
end

local manager_signature = arguments.signature("flow.train.SimpleCheckPointManager",
  { { "root_path", "string", text = "the directory, which is made" },
    { "prefix", "string", "snapshot_", text = "what the name of each begins with, before the time" },
    { "keep", "integer?", text = "of how many of the newest to keep; a save removes the others. All when left out" } })

--- Checkpoints with times as names in one directory: `flow.train.SimpleCheckPointManager("snapshots", { keep = 3 })`.
--- What else is there, checkpoints by other names or of another prefix among them, is neither listed nor removed.
--- @error a number to keep below 1
function checkpoint.SimpleCheckPointManager(...)
  local given = manager_signature:parse(...)
  if given.keep and given.keep < 1 then
    manager_signature:fail((": keep is how many checkpoints there may be, from 1 on, got %d"):format(given.keep))
  end
  return setmetatable({ root_path = given.root_path, prefix = given.prefix, keep = given.keep }, Manager)
end

-- Is there a checkpoint? The original system marked its own with the second file.
local function is_whole(path)
  for _, name in ipairs({ "manifest.json", "snapshot_done" }) do
    local file = io.open(path .. "/" .. name, "rb")
    if file then
      file:close()
      return true
    end
  end
  return false
end

-- Is `rest` what stands behind the prefix: a time, and maybe numbers of save, or microseconds of the original system?
-- All else, such as what another prefix begins like this one for, or a script has named, is not the manager's.
local kTime = "^" .. ("%d"):rep(8) .. "_" .. ("%d"):rep(6)
local function is_time(rest)
  local numbers = rest:match(kTime .. "(.*)$")
  return numbers ~= nil and numbers:gsub("_%d+", "") == ""
end

--- The names of the whole checkpoints with the manager's prefix and a time, oldest first.
function Manager:list_checkpoints()
  arguments.check_self(self, Manager, "SimpleCheckPointManager:list_checkpoints")
  local names = {}
  for _, name in ipairs(core.list_directory(self.root_path) or {}) do
    local is_ours = name:sub(1, #self.prefix) == self.prefix and is_time(name:sub(#self.prefix + 1))
    if is_ours and is_whole(self.root_path .. "/" .. name) then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

--- The name of the newest whole checkpoint, or nil.
function Manager:latest_checkpoint()
  arguments.check_self(self, Manager, "SimpleCheckPointManager:latest_checkpoint")
  local names = self:list_checkpoints()
  return names[#names]
end

-- Is that an error of what lies on the disk?
local function is_of_files(problem)
  return errors.is_error(problem) and (problem.code == "io" or problem.code == "not_found")
end

--- Loads the newest checkpoint, or initialises when there is none. Gives the name of what was loaded, or nil, and its
--- metadata.
function Manager:initialize_or_restore()
  arguments.check_self(self, Manager, "SimpleCheckPointManager:initialize_or_restore")
  local name = self:latest_checkpoint()
  while name do
    local fine, metadata = pcall(CheckPoint.load, checkpoint.CheckPoint(), self.root_path .. "/" .. name)
    if fine then return name, metadata end
    -- A training in another process may have removed it meanwhile, for a newer one.
    local newest = is_of_files(metadata) and self:latest_checkpoint()
    if not newest or newest <= name then error(metadata, 0) end
    name = newest
  end
  checkpoint.CheckPoint():init()
  return nil
end

-- The prefix and the time, or what comes behind the newest.
local function new_name(manager)
  local name, newest = manager.prefix .. os.date("!%Y%m%d_%H%M%S"), manager:latest_checkpoint()
  if newest and newest >= name then
    local stem, number = newest:match("^(.*)_(%d%d%d)$")
    if not stem or number == "999" then stem, number = newest, 0 end
    name = ("%s_%03d"):format(stem, number + 1)
  end
  return name
end

local manager_save_signature = arguments.signature("SimpleCheckPointManager:save", { { "metadata", "any?" } })

--- Saves under a new name made of the prefix and the time (UTC), and gives the name. Where the clock is not ahead of
--- the newest checkpoint it is that one's name with a number, so that the order of names stays the order of time. Once
--- it is written, those are removed that are not among the newest of which the manager keeps so many.
--- @param metadata? table  as of CheckPoint:save: `manager:save { metadata = { epoch = 3 } }`
--- @error a checkpoint to be removed that holds something else
function Manager:save(...)
  arguments.check_self(self, Manager, "SimpleCheckPointManager:save")
  local given = manager_save_signature:parse(...)
  blaming("SimpleCheckPointManager:save", core.make_directory, self.root_path)
  local name = new_name(self)
  while true do
    local fine, problem = pcall(CheckPoint.save, checkpoint.CheckPoint(), self.root_path .. "/" .. name,
      { metadata = given.metadata })
    if fine then break end
    -- Another process may have saved under this name meanwhile.
    local is_taken = is_of_files(problem) and problem.message:find("is not empty", 1, true)
    local next_name = new_name(self)
    if not is_taken or next_name == name then error(problem, 0) end
    name = next_name
  end
  if self.keep then
    local names = self:list_checkpoints()
    for i = 1, #names - self.keep do
      local path = self.root_path .. "/" .. names[i]
      local fine, problem = pcall(blaming, "SimpleCheckPointManager:save", core.checkpoint_remove, path)
      if not fine and is_whole(path) then error(problem, 0) end  -- else another process has removed it
    end
  end
  return name
end

return checkpoint
