--- flow.config: settings of the process. Unknown names are errors.

local absent = require "moonflow.absent"
local arguments = require "moonflow.arguments"
local core = require "moonflow.core"
local errors = require "moonflow.errors"
local handlers = require "moonflow.handlers"
local session = require "moonflow.session"

local config = {}
local settings = session.settings

local function refuse(name, value, wanted)
  errors.raise("invalid_argument", ("flow.config.%s wants %s, got %s"):format(name, wanted, arguments.describe(value)))
end

local function check(name, value, kind)
  if type(value) ~= kind then refuse(name, value, "a " .. kind) end
end

local function check_count(name, value, most)
  if type(value) ~= "number" or value < 1 or value > most or value ~= math.floor(value) then
    refuse(name, value, ("a whole number from 1 to %d"):format(most))
  end
end

--- How many threads the CPU kernels use; before anything is built. Where nothing is said: OMP_NUM_THREADS, or one for
--- each core.
function config.cpu_threads(count)
  check_count("cpu_threads", count, 4096)
  if settings.threads == count then return end
  local before = settings.threads
  settings.threads = count
  if not session.renew() then
    settings.threads = before
    errors.raise("wrong_state", "flow.config.cpu_threads must be set before the first job or variable; "
      .. "flow.clear_default_session() starts afresh")
  end
end
config.compute_thread_pool_size = config.cpu_threads

--- How many runs of one job may be in flight (default 3), for jobs built later. Of all jobs together it is 8, or five
--- more than `count` where that is more: a game with many small jobs asks for as many as it launches between two polls.
function config.inflight(count)
  check_count("inflight", count, 1000000)
  settings.inflight = count
  session.handle():set_max_in_flight(math.max(8, count + 5))
end

--- Who brings results to their handlers: "script" (asynchronous calls wait and deliver when too much is in flight) or
--- "host" (they return nil, "busy"; the host calls flow.poll, and gets warnings only by flow.config.log).
function config.pump(mode)
  if mode ~= "script" and mode ~= "host" then
    errors.raise("invalid_argument", "flow.config.pump wants \"script\" or \"host\", got " .. arguments.describe(mode))
  end
  settings.pump = mode
end

--- Receives the errors of callbacks and of runs nobody waits for, instead of raising them; nil raises again. What the
--- handler itself raises is raised by whoever delivers, with the text of the error it was given, its field `given`.
function config.on_error(handler)
  if handler ~= nil then arguments.check_callable(handler, "flow.config.on_error wants a function") end
  handlers.on_error = handler
end

--- Receives the warnings of the library; nil: standard error in script mode, nowhere in host mode.
function config.log(sink)
  if sink ~= nil then arguments.check_callable(sink, "flow.config.log wants a function") end
  settings.sink = sink
end

--- true: a placement that cannot be had is an error instead of a warning.
function config.strict_placement(strict)
  check("strict_placement", strict, "boolean")
  settings.strict_placement = strict
end

--- The GPUs of this machine. The first call opens the CUDA module and the driver, which takes a moment.
--- @return table        a list of { name, memory_bytes, capability }; its i-th is placement("gpu", "0:" .. i - 1)
--- @return string|nil   with an empty list: why there is none, and what to do
function config.gpu_devices()
  return core.gpu_devices()
end

--- A setting of the original. There is one machine with one device of each kind here.
for _, name in ipairs { "gpu_device_num", "cpu_device_num", "machine_num" } do
  config[name] = function(count)
    check(name, count, "number")
  end
end
local without_meaning = {
  "enable_debug_mode", "reserved_host_mem_mbyte", "reserved_device_mem_mbyte", "use_rdma", "enable_model_io_v2",
  "enable_legacy_model_io", "nccl_use_compute_stream", "collect_act_event",
  "comm_net_worker_num", "enable_numa_aware_cuda_malloc_host", "max_mdsave_worker_num", "persistence_buf_byte",
  "rdma_mem_block_mbyte", "rdma_recv_msg_buf_mbyte", "save_downloaded_file_to_local_fs",
  "thread_enable_local_message_queue",
}
--- A setting of the original, which means nothing here.
for _, name in ipairs(without_meaning) do
  config[name] = function() end
end

--- A setting of the original, which changes nothing here: `allow_tf32` in the function_config of a job does.
function config.enable_tensor_float_32_compute() end

--- Ops from shared libraries, in the original; an error here.
function config.load_library()
  errors.raise("unsupported", "flow.config.load_library: ops from shared libraries are not supported")
end

local names = arguments.sorted_keys(config)

return setmetatable(config, {
  __index = function(_, name)
    local advice = absent["flow.config." .. tostring(name)]
    errors.raise("invalid_argument", "flow.config has no setting '" .. tostring(name) .. "'"
      .. (advice and "; " .. advice or arguments.suggestion(name, names)))
  end,
  __newindex = function(_, name)
    errors.raise("invalid_argument", "flow.config." .. tostring(name) .. " is a function: call it with the value")
  end,
})
