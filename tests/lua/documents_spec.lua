-- Every Lua block of the README and of the documents runs as it stands, each in a process of its own. A block that is
-- only a part of a program is marked ```lua fragment.
local process = require "process"
local small_mnist = require "small_mnist"

local function blocks(path)
  local all, line_number, block = {}, 0, nil
  for line in (process.read(path) .. "\n"):gmatch("(.-)\n") do
    line_number = line_number + 1
    if block and line:match("^```") then
      all[#all + 1] = block
      block = nil
    elseif block then
      block.text = block.text .. line .. "\n"
    elseif line == "```lua" then
      -- Empty lines first, so that an error names the line of the document.
      block = { line = line_number, text = string.rep("\n", line_number) }
    end
  end
  return all
end

describe("the Lua block", function()
  local folder, data

  setup(function()
    data = small_mnist()
    folder = process.folder("documents")
  end)

  for _, name in ipairs({ "README", "docs/porting", "docs/training", "docs/design", "docs/embedding" }) do
    local document = name .. ".md"
    for _, block in ipairs(blocks(process.source .. "/" .. document)) do
      it(("of %s at line %d runs"):format(document, block.line), function()
        local file = document:gsub("/", "_")
        process.write(folder .. "/" .. file, block.text)
        local run = process.moonflow({ file }, { folder = folder, env = { MOONFLOW_DATA = data } })
        assert.equal(0, run.code, run.err)
      end)
    end
  end
end)

describe("what editors are told", function()
  local text, told

  setup(function()
    local run = process.moonflow({ process.source .. "/docs/write_editor.lua" })
    assert.equal(0, run.code, run.err)
    text = run.out
    told = assert(loadstring(text))()
  end)

  it("is of every function, and of nothing that there is not", function()
    local differing = {}
    local function compare(real, written, path)
      for name in next, written do
        if rawget(real, name) == nil then differing[#differing + 1] = path .. "." .. name end
      end
      for name, value in next, real do
        local is_public = type(name) == "string" and not name:find("^_")
        if is_public and type(value) == "function" and type(written[name]) ~= "function" then
          differing[#differing + 1] = path .. "." .. name
        elseif is_public and type(value) == "table" and type(written[name]) == "table" then
          compare(value, written[name], path .. "." .. name)
        end
      end
    end
    compare(require "moonflow", told, "flow")
    assert.same({}, differing)
    for _, folder in ipairs({ "nn", "layers", "np", "optimizer", "typing" }) do assert.truthy(next(told[folder])) end
  end)

  it("names no type that it does not explain", function()
    local known, unknown = {}, {}
    for name in text:gmatch("%-%-%-@class (moonflow[%w_.]*)") do known[name] = true end
    for name in text:gmatch("%-%-%-@alias (moonflow[%w_.]*)") do known[name] = true end
    for line in text:gmatch("[^\n]+") do
      local annotation = line:match("^%-%-%-@%a+ ([^#]*)")
      for name in (annotation or ""):gmatch("moonflow%.[%w_.]+") do
        if not known[name] then unknown[#unknown + 1] = name end
      end
    end
    assert.same({}, unknown)
  end)

  it("has the parameters, types, defaults and options of a call, and what it gives", function()
    for _, line in ipairs({
      "---@param inputs moonflow.Blob\n", "---@param units integer\n",
      "---@field use_bias? boolean # default true\n",
      "function flow.layers.dense(inputs, units, activation, use_bias,",
      "---@overload fun(inputs: moonflow.Blob, units: integer, options: moonflow.layers.dense.Options): moonflow.Blob",
      "---@return moonflow.NdArray\n---@overload fun(self: moonflow.NdArray): number\n",
      "function flow.np.random.uniform(low, high, shape, dtype)",
      "---@return moonflow.Dataset, moonflow.Dataset\n",
      "---@return moonflow.NdArray, moonflow.NdArray, moonflow.NdArray\n",
      "---@return moonflow.Blob, moonflow.Blob, moonflow.Blob\n---@overload fun(inputs: moonflow.Blob, "
        .. "options: moonflow.layers.lstm.Options)",
    }) do assert.truthy(text:find(line, 1, true), line) end
  end)
end)

describe("docs/ops.md", function()
  it("is what the catalog says; if not: build/moonflow docs/write_ops.lua > docs/ops.md", function()
    local run = process.moonflow({ process.source .. "/docs/write_ops.lua" })
    assert.equal(0, run.code, run.err)
    assert.equal(process.read(process.source .. "/docs/ops.md"), run.out)
  end)
end)
