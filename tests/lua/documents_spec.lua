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

describe("docs/ops.md", function()
  it("is what the catalog says; if not: build/moonflow docs/write_ops.lua > docs/ops.md", function()
    local run = process.moonflow({ process.source .. "/docs/write_ops.lua" })
    assert.equal(0, run.code, run.err)
    assert.equal(process.read(process.source .. "/docs/ops.md"), run.out)
  end)
end)
