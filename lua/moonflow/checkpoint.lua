-- flow.train.CheckPoint: the variables of the session on disk, optimizer slots and train steps among them. A checkpoint
-- is a directory with one file of raw bytes per variable, <variable>/out, and a manifest.json with shapes, dtypes and
-- checksums. It is written beside its place and renamed into it, so there is always a whole one.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local session = require "moonflow.session"
local variable = require "moonflow.variable"

local checkpoint = {}

-- The object of a method call; a call with a dot has none.
local function check_self(self, class, call)
  if getmetatable(self) ~= class then
    local name = call:match("[%w_]+$")
    errors.raise("invalid_argument", call .. " is a method: call it with ':', as in check_point:" .. name .. "(...)")
  end
end

-- ---- CheckPoint ---------------------------------------------------------------------------------------------------

local CheckPoint = { kind = "checkpoint" }
CheckPoint.__index = CheckPoint

function checkpoint.CheckPoint()
  return setmetatable({}, CheckPoint)
end

--- Gives every variable of the jobs defined so far its first value. Variables of jobs that are defined later get theirs
--- before the first call of such a job.
function CheckPoint:init()
  check_self(self, CheckPoint, "CheckPoint:init")
  variable.reset()
end

local save_signature = arguments.signature("CheckPoint:save",
  { { "path", "string" }, { "overwrite", "boolean", false } })

--- Writes all variables, after the runs submitted so far. Whatever goes wrong, a checkpoint that was there stays whole.
--- @param path string         the directory to make
--- @param overwrite? boolean  true replaces a checkpoint that is there; default: refuse a directory that is not empty
function CheckPoint:save(...)
  check_self(self, CheckPoint, "CheckPoint:save")
  local given = save_signature:parse(...)
  variable.initialise()
  local handle = session.handle()
  local entries = {}
  for i, entry in ipairs(handle:variables()) do
    entries[i] = { name = entry.name, value = handle:read(entry.name) }
  end
  if #entries == 0 then
    errors.raise("wrong_state", "CheckPoint:save: there are no variables; define the job functions first")
  end
  core.checkpoint_write(given.path, entries, { seed = session.seed(), moonflow = core.version }, given.overwrite)
end

local load_signature = arguments.signature("CheckPoint:load", { { "path", "string" } })

--- Reads the variables of the jobs defined so far. Everything is checked before the first variable changes. A variable
--- that the checkpoint lacks keeps its value, or gets its first one, and the log sink is told; what the checkpoint has
--- beyond them is left alone. The seed of random numbers goes on too, unless the script has called flow.set_seed.
--- @param path string  the directory that save made
--- @error another shape or dtype, a damaged or missing file: nothing is changed
function CheckPoint:load(...)
  check_self(self, CheckPoint, "CheckPoint:load")
  local path = load_signature:parse(...).path
  local handle = session.handle()
  local wanted, initialised = {}, {}
  for i, entry in ipairs(handle:variables()) do
    wanted[i] = { name = entry.name, dtype = entry.dtype, shape = entry.shape }
    initialised[entry.name] = entry.initialised
  end
  if #wanted == 0 then
    errors.raise("wrong_state", "CheckPoint:load: there are no variables to load into; define the job functions first")
  end
  local values, manifest, missing = core.checkpoint_read(path, wanted)
  for name, value in pairs(values) do handle:write(name, value) end
  for _, name in ipairs(missing) do
    session.log(("CheckPoint:load: %s has no variable '%s'; it %s")
      :format(path, name, initialised[name] and "keeps its value" or "gets its first value"))
  end
  if manifest then
    session.adopt_seed(manifest.meta and manifest.meta.seed)
  else
    session.log(("CheckPoint:load: %s has no manifest, so its dtypes and checksums could not be checked"):format(path))
  end
  variable.initialise()
end

-- ---- SimpleCheckPointManager --------------------------------------------------------------------------------------

local Manager = { kind = "checkpoint manager" }
Manager.__index = Manager

local manager_signature = arguments.signature("flow.train.SimpleCheckPointManager",
  { { "root_path", "string" }, { "prefix", "string", "snapshot_" } })

--- Checkpoints with times as names in one directory: `flow.train.SimpleCheckPointManager("snapshots")`.
function checkpoint.SimpleCheckPointManager(...)
  local given = manager_signature:parse(...)
  return setmetatable({ root_path = given.root_path, prefix = given.prefix }, Manager)
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

--- The names of the whole checkpoints, oldest first.
function Manager:list_checkpoints()
  check_self(self, Manager, "SimpleCheckPointManager:list_checkpoints")
  local names = {}
  for _, name in ipairs(core.list_directory(self.root_path) or {}) do
    local is_ours = name:sub(1, #self.prefix) == self.prefix
    if is_ours and is_whole(self.root_path .. "/" .. name) then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

--- The name of the newest whole checkpoint, or nil.
function Manager:latest_checkpoint()
  check_self(self, Manager, "SimpleCheckPointManager:latest_checkpoint")
  local names = self:list_checkpoints()
  return names[#names]
end

--- Loads the newest checkpoint, or initialises when there is none. Gives the name of what was loaded, or nil.
function Manager:initialize_or_restore()
  check_self(self, Manager, "SimpleCheckPointManager:initialize_or_restore")
  local name = self:latest_checkpoint()
  if name then
    checkpoint.CheckPoint():load(self.root_path .. "/" .. name)
  else
    checkpoint.CheckPoint():init()
  end
  return name
end

--- Saves under a new name made of the prefix and the time (UTC), and gives the name.
function Manager:save()
  check_self(self, Manager, "SimpleCheckPointManager:save")
  local stem = self.prefix .. os.date("!%Y%m%d_%H%M%S")
  local name, count = stem, 0
  -- Several within one second are numbered, so that the order of names stays the order of time.
  while is_whole(self.root_path .. "/" .. name) do
    count = count + 1
    name = ("%s_%03d"):format(stem, count)
  end
  core.make_directory(self.root_path)
  checkpoint.CheckPoint():save(self.root_path .. "/" .. name)
  return name
end

return checkpoint
