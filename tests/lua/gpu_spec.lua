-- Programs on machines without a usable GPU: each gets one clear message, jobs run on the CPU, and nothing of CUDA is
-- opened before somebody asks. What is here must also hold on a machine with a GPU.
local process = require "process"

local modules = process.build .. "/tests/kernels/cuda"  -- the odd ones of odd_module.cpp
local own = process.build .. "/libmoonflow_cuda.so"

local function exists(path)
  local file = io.open(path)
  return file and file:close() or false
end

-- Says what is open and asks for GPUs, with a job on the CPU before and one that wants a GPU behind.
local SCRIPT = [[
local flow = require "moonflow"
local tp = flow.typing
local function module_is_open()
  for line in io.lines("/proc/self/maps") do
    if line:find("moonflow_cuda", 1, true) or line:find("module_", 1, true) then return true end
  end
  return false
end
local function double(device)
  return flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 3 }) }, returns = tp.Numpy } (function(x)
    return flow.scope.placement(device, "0:0", function() return x + x end)
  end) (flow.np.ones({ 3 })):sum()
end
print("cpu", double("cpu"), module_is_open())
local devices, reason = flow.config.gpu_devices()
print("devices", #devices, reason)
if reason then print("gpu", double("gpu"), double("cpu")) end
]]

-- The reason that such a program gives. Without one it has found a GPU.
local function reason_with(env, launcher)
  local words = (launcher or process.quote(process.launcher)) .. " -e " .. process.quote(SCRIPT)
  local run = process.shell(words, { env = env })
  assert.equal(0, run.code, run.err)
  assert.truthy(run.out:find("^cpu\t6\tfalse\n"), run.out)
  local count, reason = run.out:match("\ndevices\t(%d+)\t([^\n]*)\n")
  if reason == "nil" then return nil, run end
  assert.equal("0", count)
  assert.truthy(run.out:find("\ngpu\t6\t6\n$"), run.out)
  local warning, more = run.err:match("^([^\n]*)\n(.*)$")
  assert.truthy(warning and warning:find('placement "gpu" runs on the CPU: ', 1, true), run.err)
  assert.equal("", more)
  return reason, run
end

local function assert_has(text, part)
  assert.truthy(text and text:find(part, 1, true), tostring(text) .. "\ndoes not have: " .. part)
end

describe("without a GPU a program is told", function()
  it("that there is no module, where it was looked for, and what to do", function()
    local folder = process.folder("gpu_without_module")
    -- The program, its library and the Lua files, in a place without the module.
    local command = "cd %s && cp moonflow libmoonflow.so.0 %s && cp -rP lua %s"
      .. " && ln -sf ../../libmoonflow.so.0 %s/lua/moonflow/core.so"
    local to = process.quote(folder)
    assert(os.execute(command:format(process.quote(process.build), to, to, to)) == 0)
    local reason = reason_with({}, process.quote(folder .. "/moonflow"))
    assert_has(reason, "there is no CUDA module (libmoonflow_cuda.so) in " .. folder .. " or on the loader's path")
    assert_has(reason, "-DMOONFLOW_CUDA=ON")
  end)

  it("that the module named is not there, is from another build, or lacks a symbol", function()
    local function with(module) return (reason_with({ MOONFLOW_CUDA_MODULE = module })) end
    assert_has(with("/nowhere/x.so"), "the CUDA module /nowhere/x.so that MOONFLOW_CUDA_MODULE names is not there")
    assert_has(with(modules .. "/module_another_version.so"), "take both from one build")
    assert_has(with(modules .. "/module_another_build.so"), "take both from one build")
    assert_has(with(modules .. "/module_with_undefined_symbol.so"), "cannot be opened: undefined symbol")
  end)

  it("that there is no driver", function()
    if not exists(own) then return pending("this build has no CUDA module") end
    -- A machine with a GPU shows what is said when the driver has none to give.
    local reason = reason_with({}) or reason_with({ CUDA_VISIBLE_DEVICES = "" })
    assert.truthy(reason:find("no NVIDIA driver is installed (CUDA error 35", 1, true)
      or reason:find("driver finds no card", 1, true), reason)
  end)

  it("that the toolkit's stub stands in the driver's place", function()
    local stub = os.getenv("MOONFLOW_CUDA_STUB") or ""
    if not exists(own) or not exists(stub) then return pending("this build has no CUDA module, or there is no stub") end
    local folder = process.folder("gpu_stub")
    assert(os.execute(("ln -s %s %s/libcuda.so.1"):format(process.quote(stub), process.quote(folder))) == 0)
    assert_has(reason_with({ LD_LIBRARY_PATH = folder }), "stub stands in the place of the driver's libcuda.so.1")
  end)
end)

describe("asking for a GPU without one", function()
  it("costs little time and memory", function()
    if not exists(own) then return pending("this build has no CUDA module") end
    local run = process.moonflow({ "-e", [[
      local flow = require "moonflow"
      local core = require "moonflow.core"
      flow.np.ones({ 3 }):sum()
      collectgarbage()
      -- Not the pages of files, of which as many come along as happen to be in memory already, and which can go again.
      local function taken()
        for line in io.lines("/proc/self/status") do
          local kib = line:match("^RssAnon:%s+(%d+) kB")
          if kib then return tonumber(kib) end
        end
      end
      local memory, start = taken(), core.clock()
      local devices = flow.config.gpu_devices()
      local seconds = core.clock() - start
      print(#devices, taken() - memory, seconds * 1000)
    ]] })
    local count, kib, ms = run.out:match("^(%d+)\t(%S+)\t(%S+)\n$")
    assert.truthy(count, run.out .. run.err)
    if count ~= "0" then return pending("this machine has a GPU") end
    assert.is_true(tonumber(kib) <= 2048, kib .. " KiB more memory of its own")
    assert.is_true(tonumber(ms) < 500, ms .. " ms")
  end)
end)

describe("a GPU that there is", function()
  it("is listed with its memory, by the program and at the prompt", function()
    local env = { MOONFLOW_CUDA_MODULE = modules .. "/module_good.so" }
    local run = process.moonflow({ "-e", [[
      local devices, reason = require("moonflow").config.gpu_devices()
      for _, device in ipairs(devices) do print(device.name, device.memory_bytes, device.capability) end
      print(require("moonflow.repl").gpu_line(), reason)
    ]] }, { env = env })
    assert.equal("", run.err)
    assert.equal("first card\t1048576\t9\nsecond card\t2097152\t8\n"
      .. "2 GPUs: first card, 0.0 GiB; second card, 0.0 GiB\n\tnil\n", run.out)
  end)
end)
