--- Moonflow: deep learning with job functions. `local flow = require "moonflow"`.
-- This file puts the table `flow` together; what is in it is defined in the files beside it.

-- Whoever could not load it may mend that and try again: `require` notes a module before it has run, by a light
-- userdata or a number that Lua does not make, and keeps that where it fails.
if type(package) == "table" and type(package.loaded) == "table" then
  if ... then package.loaded[(...)] = nil end
  for name, module in pairs(package.loaded) do
    local has_failed = type(module) == "userdata" or type(module) == "number"
    if has_failed and tostring(name):find("^moonflow%.") then package.loaded[name] = nil end
  end
end

-- What is used of these is taken while the files are loaded, so that a host may keep them from its scripts afterwards.
for _, name in ipairs { "debug", "io", "os", "package" } do
  if type(_G[name]) ~= "table" then
    error("moonflow needs Lua's library '" .. name .. "' while it is loaded; afterwards it may be taken away", 0)
  end
end

local loading = require "moonflow.loading"
local core = loading.core()
loading.find_beside(core)
local before = loading.again(core)
if before then return before end

-- What runs once need not be compiled; and where memory runs out as compiled code is left, LuaJIT falls over.
local compiles = type(jit) == "table" and jit.status()
if compiles then jit.off() end
-- Where LuaJIT 2.1.0-beta3 puts loads of ARM together, as Debian 12 has it, some become no instruction at all.
if compiles and jit.arch == "arm64" and jit.version == "LuaJIT 2.1.0-beta3" and jit.opt then jit.opt.start("-fuse") end

local checkpoint = require "moonflow.checkpoint"
local data = require "moonflow.data"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local function_config = require "moonflow.function_config"
local gradients = require "moonflow.gradients"
local help = require "moonflow.help"
local initializer = require "moonflow.initializer"
local interrupts = require "moonflow.interrupts"
local iterator = require "moonflow.iterator"
local job = require "moonflow.job"
local log = require "moonflow.log"
local np = require "moonflow.np"
local onnx = require "moonflow.onnx"
local ops = require "moonflow.ops"
local prepared = require "moonflow.prepared"
local profiler = require "moonflow.profiler"
local progress = require "moonflow.progress"
local random_seed = require "moonflow.random_seed"
local scope = require "moonflow.scope"
local serve = require "moonflow.serve"
local session = require "moonflow.session"
local spawn = require "moonflow.spawn"
local typing = require "moonflow.typing"
local variable = require "moonflow.variable"
local watch = require "moonflow.watch"

ops.learn(session.handle)
require "moonflow.composed"

-- A module as scripts see it: without what is there for the other files.
local function public(module, ...)
  local seen = {}
  for name, value in pairs(module) do seen[name] = value end
  for i = 1, select("#", ...) do seen[select(i, ...)] = nil end
  return seen
end

local flow = ops.functions
for name, value in pairs {
  version = core.version,

  -- dtypes, beside those by their own names below
  float = "float32", double = "float64",

  -- jobs
  global_function = job.global_function,
  function_config = function_config.new,
  FunctionConfig = function_config.new,
  typing = public(typing, "build", "flatten", "is", "is_flat", "is_placeholder", "keys"),
  FixedTensorDef = typing.FixedTensorDef,
  MirroredTensorDef = typing.MirroredTensorDef,
  scope = public(scope, "enter_default_placement", "new_placement"),
  config = require "moonflow.config",

  -- inside a job
  get_variable = variable.get_variable,
  get_all_variables = variable.get_all_variables,
  trainable_variables = variable.trainable_variables,
  load_variables = variable.load_variables,
  forget_variables = variable.forget_variables,
  losses = require "moonflow.losses",
  optimizer = public(require "moonflow.optimizer", "add_loss"),
  regularizers = require "moonflow.regularizer",
  watch = watch.watch,
  watch_diff = watch.watch_diff,
  watch_scope = watch.watch_scope,
  gradients = gradients,

  -- runs and results
  spawn = spawn.spawn,
  poll = session.poll,
  sync = session.sync,
  sync_default_session = session.sync,
  clear_default_session = session.clear,
  in_flight = session.in_flight,
  memory = require("moonflow.memory"),
  fd = session.fd,
  clock = session.clock,
  serve_repl = serve.serve_repl,
  shutdown = session.shutdown,
  set_seed = random_seed.set,
  publish = prepared.publish,
  on_interrupt = interrupts.on_interrupt, may_interrupt = interrupts.may_interrupt,
  -- what the launcher calls when a script has ended, and when a Ctrl-C has ended it
  _finish = session.sync,
  _interrupted = session.end_interrupted, _part = core.part,

  -- data
  np = np,
  data = data,
  checkpoint = { get = checkpoint.get, get_memory = checkpoint.get_memory, save = checkpoint.save,
                 metadata = checkpoint.metadata },
  onnx = onnx,
  train = { CheckPoint = checkpoint.CheckPoint, SimpleCheckPointManager = checkpoint.SimpleCheckPointManager },
  profiler = profiler,
  progress = progress,
  log = { open = log.open },
  report = log.report,
  zip = iterator.zip,
  help = help.text,
  is_error = errors.is_error,
  text_errors = errors.text_errors,
} do flow[name] = value end

for _, name in ipairs(dtypes.names) do flow[name] = name end
for _, name in ipairs {
  "constant_initializer", "zeros_initializer", "ones_initializer", "random_uniform_initializer",
  "random_normal_initializer", "truncated_normal_initializer", "truncated_normal", "variance_scaling_initializer",
  "glorot_uniform_initializer", "glorot_normal_initializer", "xavier_uniform_initializer", "xavier_normal_initializer",
  "he_normal_initializer", "he_uniform_initializer", "lecun_normal_initializer", "lecun_uniform_initializer",
  "kaiming_initializer", "kaiming_normal_initializer", "kaiming_uniform_initializer", "orthogonal_initializer",
  "identity_initializer",
} do flow[name] = initializer[name] end

flow.einsum = require("moonflow.einsum").of_values
for name, value in pairs(require "moonflow.distributed") do flow.distributed[name] = value end  -- beside its ops
help.close("flow", flow)

core.flow = flow
if compiles then jit.on() end
return flow
