-- What goes wrong with a gpu: each time the program is told, with its own line where one is to blame, and goes on. That
-- is the gpu of this machine, or a simulated one, which MOONFLOW_CUDA_MODULE names. A gpu that is not there, or has no
-- room, is in placement_spec.lua.
local flow = require "moonflow"
local process = require "process"
local tp = flow.typing

local simulated = (os.getenv("MOONFLOW_CUDA_MODULE") or ""):find("simulated", 1, true)

if not require "gpus" (describe, it, pending) then return end

local function assert_has(text, part)
  assert.truthy(text:find(part, 1, true), text .. "\ndoes not have: " .. part)
end

describe("a gpu that is lost while runs are in flight", function()
  local lines, order

  setup(function()
    local run = process.moonflow({ process.source .. "/tests/lua/lost_gpu.lua" })
    assert.equal("", run.err)
    assert.equal(0, run.code)
    lines, order = {}, {}
    for what, said in run.out:gmatch("([^\t\n]*)\t([^\n]*)\n") do
      lines[what] = lines[what] or {}
      table.insert(lines[what], said)
      order[#order + 1] = what
    end
  end)

  -- What CUDA says, and what is to be done; before that stands whose run it was.
  local function text_of(problem)
    local text = problem:match("CUDA error %d+ .*$")
    assert.truthy(text, problem)
    return text
  end

  it("fails each of them with its line, CUDA's text and what to do", function()
    assert.same({ "18" }, lines["delivered before"])
    assert.equal(6, #lines.pending)
    local text = text_of(lines.pending[1])
    assert_has(text, "CUDA error 700 (cudaErrorIllegalAddress): an illegal memory access was encountered; ")
    assert_has(text, 'this process cannot use the gpu any more: start it anew, or place its jobs with '
      .. 'flow.scope.placement("cpu", "0:0")')
    for _, problem in ipairs(lines.pending) do
      assert.truthy(problem:find("^.*lost_gpu%.lua:%d+: [%w_]+: CUDA error"), problem)
      assert.equal(text, text_of(problem))
    end
    assert.same({ "0" }, lines["in flight"])
  end)

  it("fails what follows with the same text", function()
    local text = text_of(lines.pending[1])
    for _, what in ipairs { "later run", "new job", "its variable" } do
      assert.equal(text, text_of(lines[what][1]), what)
    end
    assert_has(lines["its variable"][1], "variable 'layer-weight', last written on the gpu")
    assert_has(lines["new session"][1], "an illegal memory access was encountered")
  end)

  it("leaves the cpu alone", function()
    assert.same({ "true" }, lines["cpu beside it"])
    assert.same({ "true\ttrue" }, lines["cpu after it"])
    assert.same({ "true" }, lines["cpu in a new session"])
    assert.equal("cpu in a new session", order[#order])
  end)
end)

describe("what a gpu has no kernel for", function()
  it("is told at its line, and runs on the cpu", function()
    local line
    local function attending(device, dtype)
      local Heads = tp.Numpy.Placeholder({ 1, 1, 2, 500 }, { dtype = dtype })
      return flow.global_function {
        inputs = { x = Heads }, returns = tp.Numpy, placement = { device, "0:0" }, name = "net",
      } (function(x)
        line = debug.getinfo(1, "l").currentline + 1
        return flow.nn.dot_product_attention(x, x, x, { name = "heads" })
      end)
    end
    local x = flow.np.ones({ 1, 1, 2, 500 }, flow.double)
    local fine, problem = pcall(function() return attending("gpu", flow.double)(x) end)
    assert.is_false(fine)
    assert.equal("unsupported", problem.code)
    assert.truthy(problem.where:find("gpu_errors_spec.lua:" .. line, 1, true), problem.where)
    assert_has(tostring(problem), "dot_product_attention 'heads': heads of width 500 and 500 in float64 are too wide "
      .. 'for the gpu; place their job with flow.scope.placement("cpu", "0:0")')
    assert.is_true(flow.np.allclose(attending("cpu", flow.double)(x), x))
    local narrower = x:astype(flow.float)
    assert.is_true(flow.np.allclose(attending("gpu", flow.float)(narrower), narrower))
  end)
end)

-- What a script prints where a library of this name has none of the functions of NVIDIA's, and is found before it.
local function run_without(soname, script, env)
  local folder = process.folder("gpu_errors_library")
  local other = process.build .. "/tests/kernels/cuda/module_good.so"
  assert(os.execute(("cp %s %s"):format(process.quote(other), process.quote(folder .. "/" .. soname))) == 0)
  process.write(folder .. "/net.lua", script)
  local path = os.getenv("LD_LIBRARY_PATH")
  -- An empty MOONFLOW_CACHE keeps nothing, so that nothing is there without its library.
  local all = { LD_LIBRARY_PATH = folder .. (path and ":" .. path or ""), MOONFLOW_CACHE = "" }
  for name, value in pairs(env or {}) do all[name] = value end
  local run = process.moonflow({ "net.lua" }, { folder = folder, env = all })
  assert.equal("", run.err)
  assert.equal(0, run.code)
  return run.out
end

-- Each of NVIDIA's libraries has another in its place, found before it, that has none of its functions. The simulated
-- card needs none of them, and shows that the program is right.
describe("a library of NVIDIA's that cannot be used", function()
  local SCRIPT = [[
local flow = require "moonflow"
local np, tp = flow.np, flow.typing
local X = tp.Numpy.Placeholder({ 2, 8, 16, 16 })
local function define(body)
  return flow.global_function { inputs = { x = X }, returns = tp.Numpy, placement = { "gpu", "0:0" }, name = "net" } (
    body)
end
local ones = np.ones({ 2, 8, 16, 16 })
print(pcall(function()
  local job = define(function(x)
    return %s
  end)
  return job(ones):sum() > 0
end))
print(define(function(x) return x + x end)(ones) == ones + ones)
]]

  for soname, op in pairs {
    ["libcudnn.so.9"] = "flow.layers.conv2d(x, 8, 3, { kernel_initializer = flow.ones_initializer() })",
    ["libcublasLt.so.13"] =
      "flow.layers.dense(flow.reshape(x, { 128, 32 }), 2000, { kernel_initializer = flow.ones_initializer() })",
  } do
    it("is named at the op's line, and other ops do without: " .. soname, function()
      local out = run_without(soname, SCRIPT:format(op))
      if simulated then return assert.equal("true\ttrue\ntrue\n", out) end
      local problem, sum = out:match("^false\t([^\n]*)\n([^\n]*)\n$")
      assert.truthy(problem, out)
      assert_has(problem, "net.lua:11: net: ")
      assert_has(problem, ": " .. soname .. " has no ")
      assert_has(problem, ": it is too old; install a newer " .. soname)
      assert.equal("true", sum)
    end)
  end
end)

-- A driver comes without NVRTC, so many a machine has a card and nothing to compile for it with.
describe("a gpu without a compiler", function()
  local SCRIPT = [[
local flow = require "moonflow"
local tp = flow.typing
local function define(device)
  return flow.global_function {
    inputs = { x = tp.Numpy.Placeholder({ 5, 70 }) }, returns = tp.Numpy, placement = { device, "0:0" }, name = "net",
  } (function(x) return flow.math.exp(flow.math.tanh(x * 3) + x) end)
end
local x = flow.np.linspace(-1, 1, 350):reshape({ 5, 70 })
local job = define("gpu")
print(flow.np.allclose(job(x), define("cpu")(x), 1e-5, 1e-5))
print(job:summary { plan = true })
]]

  it("runs the ops of a chain one by one, and its plan says why", function()
    local out = run_without("libnvrtc.so.13", SCRIPT, { MOONFLOW_SIMULATED_COMPILER = "0" })
    assert.truthy(out:find("^true\n"), out)
    assert.is_nil(out:find("element_chain '", 1, true), out)
    for _, op in ipairs { "multiply", "tanh", "add", "exp" } do assert_has(out, "\n  " .. op .. " ") end
    assert.truthy(out:find("; without element_chain: [^\n]*libnvrtc%.so%.13"), out)
  end)

  it("is another than one that has it, where a chain is one step", function()
    local run = process.moonflow({ "-" }, { input = SCRIPT })
    assert.equal("", run.err)
    assert.truthy(run.out:find("^true\n"), run.out)
    assert_has(run.out, "element_chain '")
    assert.is_nil(run.out:find("without", 1, true), run.out)
  end)
end)
