-- What the CUDA module is made of, read off its files: what each kernel takes of a card, for which cards there is code,
-- and what the module wants of the system. No card is needed.
local process = require "process"

local module = process.build .. "/libmoonflow_cuda.so"
local library = process.build .. "/libmoonflow.so"
local objects = process.build .. "/kernels/cuda/CMakeFiles/moonflow_cuda.dir"
local budgets_path = process.source .. "/tests/kernels/cuda/budgets.txt"
local RENEW = "MOONFLOW_RENEW_BUDGETS"

local function exists(path)
  local file = io.open(path)
  return file and file:close() or false
end

local function output(command)
  local run = process.shell(command)
  assert.equal(0, run.code, run.err)
  return run.out
end

-- "softmax: ForEachLane<SoftmaxGrad<float>>" for an entry function of softmax.cu.
local function short_name(file, entry)
  local name = entry:match("run_kernel(%b<>)") or "<" .. entry .. ">"
  name = name:sub(2, -2):gsub("%(anonymous namespace%)::", ""):gsub("moonflow::", ""):gsub("cuda::", ""):gsub(" >", ">")
  return file .. ": " .. name:gsub("%s+$", "")
end

-- By name: registers, shared (bytes), stack (bytes), spills (bytes).
local function kernels_of_module()
  local list = output(("find %s -name '*.cu.o.ptxas'"):format(process.quote(objects)))
  local kernels, count = {}, 0
  for path in list:gmatch("[^\n]+") do
    local file = path:match("([^/]+)%.cu%.o%.ptxas$")
    local kernel
    for line in output("c++filt <" .. process.quote(path)):gmatch("[^\n]+") do
      local entry = line:match("Compiling entry function '(.*)' for 'sm_")
      if entry then
        kernel, count = { shared = 0 }, count + 1
        kernels[short_name(file, entry)] = kernel
      end
      if kernel then
        local stack, stores, loads = line:match("(%d+) bytes stack frame, (%d+) bytes spill stores, (%d+) bytes")
        if stack then kernel.stack, kernel.spills = tonumber(stack), tonumber(stores) + tonumber(loads) end
        kernel.registers = tonumber(line:match("Used (%d+) registers")) or kernel.registers
        kernel.shared = tonumber(line:match("(%d+) bytes smem")) or kernel.shared
      end
    end
  end
  return kernels, count
end

local function sorted(map)
  local names = {}
  for name in pairs(map) do names[#names + 1] = name end
  table.sort(names)
  return names
end

-- By name, the line for those without one, and the words above.
local function read_budgets()
  local budgets, common, head = {}, nil, {}
  for line in io.lines(budgets_path) do
    local registers, shared, stack, name = line:match("^%s*(%d+)%s+(%d+)%s+(%d+)%s+(.*)$")
    if line:match("^#") then
      head[#head + 1] = line
    elseif name == "every other kernel" then
      common = { registers = tonumber(registers), shared = tonumber(shared), stack = tonumber(stack) }
    elseif name then
      budgets[name] = { registers = tonumber(registers), shared = tonumber(shared), stack = tonumber(stack) }
    end
  end
  return budgets, common, head
end

local function within(kernel, budget, slack)
  return kernel.registers <= budget.registers + slack and kernel.shared <= budget.shared
    and kernel.stack <= budget.stack
end

local function renew(kernels)
  local _, common, head = read_budgets()
  local file = assert(io.open(budgets_path, "w"))
  file:write(table.concat(head, "\n"), "\n")
  local function line(kernel, name)
    file:write(("%3d %6d %5d  %s\n"):format(kernel.registers, kernel.shared, kernel.stack, name))
  end
  line(common, "every other kernel")
  for _, name in ipairs(sorted(kernels)) do
    if not within(kernels[name], common, 0) then line(kernels[name], name) end
  end
  file:close()
end

describe("the CUDA module", function()
  local function test(name, body)
    it(name, function()
      if not exists(module) then return pending("this build has no CUDA module") end
      body()
    end)
  end

  test("has kernels that spill nothing and keep to their budgets of registers and shared memory", function()
    local kernels, count = kernels_of_module()
    assert.is_true(count > 0)
    assert.equal(count, #sorted(kernels), "kernels of equal names")
    if os.getenv(RENEW) then renew(kernels) end
    local budgets, common = read_budgets()
    local faults = {}
    for _, name in ipairs(sorted(kernels)) do
      local kernel = kernels[name]
      if kernel.spills > 0 then faults[#faults + 1] = ("%s spills %d bytes"):format(name, kernel.spills) end
      if not within(kernel, budgets[name] or common, 8) then
        faults[#faults + 1] = ("%s takes %d registers, %d bytes of shared memory, %d of stack; budgeted are %d, %d, %d")
          :format(name, kernel.registers, kernel.shared, kernel.stack, (budgets[name] or common).registers,
            (budgets[name] or common).shared, (budgets[name] or common).stack)
      end
    end
    assert.equal("", table.concat(faults, "\n"), "where that is as it should be, " .. RENEW
      .. "=1 ctest -R cuda_module writes tests/kernels/cuda/budgets.txt anew")
  end)

  -- Its launch bounds and its launch are those of all.
  test("has one function that runs on the card, made for each kernel", function()
    local entries = output(("find %s -name '*.cu.o.ptxas' -exec grep -h 'Compiling entry function' {} +")
      :format(process.quote(objects)))
    local count = 0
    for entry in entries:gmatch("[^\n]+") do
      count = count + 1
      assert.truthy(entry:find("run_kernelI", 1, true), entry)
    end
    assert.is_true(count > 0)
  end)

  -- A section of fat binaries is a row of containers; each holds images with a kind and the number of the cards' kind.
  test("holds machine code for 9.0 and PTX for 7.5, which every later card can take", function()
    local path = os.tmpname()
    output(("objcopy -O binary --only-section=.nv_fatbin %s %s"):format(process.quote(module), path))
    local bytes = process.read(path)
    os.remove(path)
    local function number(at, size)
      local value = 0
      for i = size, 1, -1 do value = value * 256 + bytes:byte(at + i) end
      return value
    end
    local found, at = {}, 0
    while at + 16 <= #bytes do
      if number(at, 4) == 0xBA55ED50 then
        local header, length = number(at + 6, 2), number(at + 8, 8)
        local image = at + header
        while image < at + header + length do
          local kind = number(image, 2) == 1 and "PTX " or "code "
          found[kind .. number(image + 28, 4)] = true
          image = image + number(image + 4, 4) + number(image + 8, 8)
        end
        at = at + header + length
      else
        at = at + 8
      end
    end
    assert.same({ "PTX 75", "code 90" }, sorted(found))
  end)

  test("shows its door alone, and wants of the system what every machine has", function()
    local quoted = process.quote(module)
    assert.equal("moonflow_cuda_module\n", output("nm -D --defined-only " .. quoted .. " | awk '{ print $3 }'"))
    local usual = " libc libm libstdc++ libgcc_s libdl librt libpthread ld-linux-x86-64 "
    for name in output("readelf -dW " .. quoted):gmatch("NEEDED[^\n]*%[(.-)%.so") do
      assert.truthy(usual:find(" " .. name .. " ", 1, true), name)
    end
    -- All else of NVIDIA is opened at run time, where it is there.
    assert.equal("", output("nm -D --undefined-only " .. quoted .. " | grep -E ' (cu|nv|nccl)[A-Za-z]*[A-Z]' || true"))
  end)
end)

describe("the library", function()
  it("has nothing of CUDA in it", function()
    local quoted = process.quote(library)
    assert.is_nil(output("readelf -dW " .. quoted):find("NEEDED[^\n]*%[lib[cn][uv]"))
    assert.equal("", output("nm -D " .. quoted .. " | grep -E ' (cu(da|blas|dnn|[A-Z])|nvrtc|nccl)[A-Za-z]*' || true"))
  end)
end)
