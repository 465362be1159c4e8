-- A program that loses its gpu while runs are in flight: a kernel of somebody else in the process writes to an address
-- that is nobody's, for which CUDA ends the context that all of the process shares. What it is told then it says, a
-- line each, to gpu_errors_spec.lua.
local ffi = require "ffi"
local flow = require "moonflow"
local session = require "moonflow.session"
local np, tp = flow.np, flow.typing

-- ---- the kernel --------------------------------------------------------------------------------------------------

ffi.cdef [[
  void moonflow_end_simulated_context(void);
  int cuInit(unsigned flags);
  int cuDeviceGet(int *device, int index);
  int cuDevicePrimaryCtxRetain(void **context, int device);
  int cuCtxSetCurrent(void *context);
  int cuModuleLoadData(void **module, const char *image);
  int cuModuleGetFunction(void **kernel, void *module, const char *name);
  int cuStreamCreate(void **stream, unsigned flags);
  int cuLaunchKernel(void *kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared_bytes,
                     void *stream, void **arguments, void **extra);
]]

-- It writes after 0.3 s. Until then nothing else has a place on the card, if there are enough of its threads.
local KERNEL = [[
.version 6.3
.target sm_75
.address_size 64
.visible .entry write_to_nobody()
{
  .reg .pred %early;
  .reg .u32 %value;
  .reg .u64 %now, %end, %address;
  mov.u64 %end, %globaltimer;
  add.u64 %end, %end, 300000000;
again:
  mov.u64 %now, %globaltimer;
  setp.lt.u64 %early, %now, %end;
  @%early bra again;
  mov.u32 %value, 1;
  mov.u64 %address, 8;
  st.global.u32 [%address], %value;
  ret;
}
]]

-- What starts it, on the card of this machine; it is loaded already.
local function loaded_kernel()
  local driver = ffi.load("libcuda.so.1")
  local function call(name, ...)
    local status = driver[name](...)
    assert(status == 0, name .. " gave " .. status)
  end
  local function made(name, ...)
    local out = ffi.new("void *[1]")
    call(name, out, ...)
    return out[0]
  end
  call("cuInit", 0)
  local device = ffi.new("int[1]")
  call("cuDeviceGet", device, 0)
  call("cuCtxSetCurrent", made("cuDevicePrimaryCtxRetain", device[0]))
  local kernel = made("cuModuleGetFunction", made("cuModuleLoadData", KERNEL), "write_to_nobody")
  local NON_BLOCKING, BLOCKS, THREADS = 1, 4096, 512
  local stream = made("cuStreamCreate", NON_BLOCKING)
  return function() call("cuLaunchKernel", kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, nil, nil) end
end

-- The same on the simulated card, whose module says that it happened.
local function simulated_kernel()
  local path = os.getenv("MOONFLOW_CUDA_MODULE")
  local module = path and ffi.load(path)
  local fine, kernel = pcall(function() return module.moonflow_end_simulated_context end)
  return fine and kernel or nil
end

-- ---- the jobs ----------------------------------------------------------------------------------------------------

flow.config.strict_placement(true)

local X = tp.Numpy.Placeholder({ 4, 8 })
local values = np.arange(32):reshape({ 4, 8 }):astype(flow.float)

local function doubling(device, returns)
  return flow.global_function {
    inputs = { x = X }, returns = returns or tp.Numpy, placement = { device, "0:0" }, name = "double_on_" .. device,
  } (function(x) return x + x end)
end

local function training()
  return flow.global_function {
    type = "train", inputs = { x = X }, returns = tp.Callback[tp.Numpy], placement = { "gpu", "0:0" }, name = "train",
  } (function(x)
    local out = flow.layers.dense(x, 3, { name = "layer", kernel_initializer = flow.ones_initializer() })
    flow.optimizer.SGD(0.01):minimize(out)
    return out
  end)
end

local function say_problem(what, work)
  local fine, problem = pcall(work)
  print(what, fine and "no error" or problem)
end

-- ---- the loss ----------------------------------------------------------------------------------------------------

local lose_gpu = simulated_kernel() or loaded_kernel()
local train, double, on_cpu = training(), doubling("gpu", tp.Callback[tp.Numpy]), doubling("cpu")
-- As many as will be in flight, so that all that runs need is made.
local delivered = 0
for _ = 1, 3 do
  for _ = 1, 3 do
    for _, job in ipairs { train, double } do job(values)(function() delivered = delivered + 1 end) end
  end
  flow.sync()
end
print("delivered before", delivered)

lose_gpu()
for _ = 1, 3 do
  for _, job in ipairs { train, double } do
    job(values)(function() print("pending", "no error") end, function(problem) print("pending", problem) end)
  end
end
print("cpu beside it", on_cpu(values) == values + values)
flow.sync()
print("in flight", flow.in_flight())

say_problem("later run", function() return train(values):get() end)
say_problem("new job", function() return doubling("gpu")(values) end)
say_problem("its variable", function() return session.handle():read("layer-weight") end)
print("cpu after it", on_cpu(values) == values + values, doubling("cpu")(values + 1) == values + values + 2)
flow.clear_default_session()
say_problem("new session", function() return doubling("gpu")(values) end)
print("cpu in a new session", doubling("cpu")(values) == values + values)
