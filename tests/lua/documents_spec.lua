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

-- All that has recipes, beside what else tells of Moonflow.
local documents, is_of_recipes = { "README.md", "docs/design.md" }, {}
for _, recipe in ipairs(require "moonflow.recipes") do
  local file = recipe[1]
  if file:find("%.md$") and is_of_recipes[file] == nil then
    documents[#documents + 1] = file
    is_of_recipes[file] = process.read(process.source .. "/" .. file):find("^# [^\n]*: recipes\n") ~= nil
  end
end

-- The headings of a document, each with its number of marks, in order.
local function headings_of(file)
  local all, is_code = {}, false
  for line in process.read(process.source .. "/" .. file):gmatch("[^\n]+") do
    if line:find("^```") then is_code = not is_code end
    local marks, text = line:match("^(#+) (.*)")
    if marks and not is_code then all[#all + 1] = { text = text, marks = #marks } end
  end
  return all
end

-- "below" or "above" and the number, where the last print of a block says so of what it prints.
local function promise(text)
  local last
  for line in text:gmatch("[^\n]+") do
    if line:find("^print%(") then last = line end
  end
  local side, bound = (last or ""):match("%-%- (%l+) ([%d.]*%d)")
  if side == "below" or side == "above" then return side, tonumber(bound) end
end

describe("the Lua block", function()
  local folder, data
  local promised = 0

  setup(function()
    data = small_mnist()
    folder = process.folder("documents")
  end)

  for _, document in ipairs(documents) do
    for _, block in ipairs(blocks(process.source .. "/" .. document)) do
      it(("of %s at line %d runs"):format(document, block.line), function()
        local file = document:gsub("/", "_")
        -- Of what begins by chance one in some hundred ends in a worse place. The first line of a block is empty.
        process.write(folder .. "/" .. file, "require('moonflow').set_seed(1)" .. block.text)
        local run = process.moonflow({ file }, { folder = folder, env = { MOONFLOW_DATA = data } })
        assert.equal(0, run.code, run.err)
        local side, bound = promise(block.text)
        if side then
          local said = tonumber(run.out:match("(%S+)%s*$"))
          assert.truthy(said, run.out)
          if side == "below" then assert.is_true(said < bound, run.out) else assert.is_true(said > bound, run.out) end
          promised = promised + 1
        end
      end)
    end
  end

  it("prints what its last line says, where that is a bound", function() assert.is_true(promised >= 4, promised) end)
end)

describe("a link of a document", function()
  -- As on the pages that show documents: lower case, without marks, "-" for a space.
  local function anchors(file)
    local all = {}
    for _, heading in ipairs(headings_of(file)) do
      all[heading.text:lower():gsub("[^%w%s_-]", ""):gsub(" ", "-")] = true
    end
    return all
  end

  it("leads to a file, and to a heading in it", function()
    local count, lost = 0, {}
    for _, document in ipairs(documents) do
      local folder = document:match("^(.*/)") or ""
      for target in process.read(process.source .. "/" .. document):gmatch("%]%(([^%s)]+)%)") do
        local file, anchor = target:match("^([^#]*)#?(.*)$")
        file = file == "" and document or folder .. file
        if not target:find("^https?:") then
          count = count + 1
          local found = io.open(process.source .. "/" .. file)
          if found then found:close() end
          if not found or anchor ~= "" and not anchors(file)[anchor] then
            lost[#lost + 1] = document .. ": " .. target
          end
        end
      end
    end
    assert.same({}, lost)
    assert.is_true(count > 100, count)
  end)
end)

describe("a document of recipes", function()
  it("begins with what it has, in this order", function()
    for file, has_recipes in pairs(is_of_recipes) do
      local listed, there = {}, {}
      for text in process.read(process.source .. "/" .. file):gmatch("\n%* %[([^%]]+)%]%(#[^\n]*") do
        listed[#listed + 1] = text
      end
      for _, heading in ipairs(headings_of(file)) do
        if heading.marks == 2 then there[#there + 1] = heading.text end
      end
      if has_recipes and #there > 1 then assert.same(there, listed, file) end
    end
  end)
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
      "---@param inputs moonflow.Blob\n", "---@param units integer # size of the last axis of the result\n",
      "---@field use_bias? boolean # add a bias; default true\n",
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

-- How a value stands in a script; written here anew, so that what is compared has two sources.
local function written(value)
  if type(value) == "string" then return '"' .. value .. '"' end
  if type(value) ~= "table" then return tostring(value) end
  local items = {}
  for i, item in ipairs(value) do items[i] = written(item) end
  return "{" .. table.concat(items, ", ") .. "}"
end

describe("the help of a function", function()
  local flow = require "moonflow"
  local core, arguments, ops = require "moonflow.core", require "moonflow.arguments", require "moonflow.ops"

  -- "flow.nn.relu" and its parts as { path, function }, of folders of the library.
  local function functions_of(folder, path, list)
    for name, value in next, folder do
      if type(value) == "function" then list[#list + 1] = { path .. "." .. name, value } end
      if type(value) == "table" then functions_of(value, path .. "." .. name, list) end
    end
    return list
  end

  it("has what the catalog says of an op: its defaults, and the texts of its parameters", function()
    -- These take more or other forms than the op, and say so in their own words.
    local own = { slice = true, slice_v2 = true, range = true, gather = true, dim_gather = true,
                  matmul = true }
    local lacking, count = {}, 0
    local function expect(text, part, what)
      count = count + 1
      if not text:find(part, 1, true) then lacking[#lacking + 1] = what end
    end
    for _, op in ipairs(core.session { threads = 1 }:ops()) do
      local text = op.lua and not own[op.lua] and flow.help(op.lua)
      local flat = text and text:gsub("%s+", " ")
      local fills_in = {}  -- for the list that another one may be
      for _, attr in ipairs(op.attrs) do fills_in[attr.table_form or ""] = true end
      for _, attr in ipairs(text and op.attrs or {}) do
        local of_job = attr.name == "dtype" and attr.default == "float32"  -- which is the job's default_data_type
        local shown = attr.required and attr.name or of_job and "[dtype]" or attr.name .. " = " .. written(attr.default)
        if not fills_in[attr.name] and not (op.random and attr.name == "key") then
          expect(text:match("^[^\n]+"), shown, op.lua .. "(" .. shown)
          expect(flat, shown .. ": " .. attr.doc:gsub("%s+", " "), op.lua .. ": " .. shown)
        end
      end
      if text and op.random then expect(flat, "[seed]: a seed of its own", op.lua .. ": seed") end
    end
    assert.same({}, lacking)
    assert.truthy(count > 200, count)
  end)

  it("names each parameter with its default", function()
    local lacking, count = {}, 0
    local list = {}
    for _, folder in ipairs({ "nn", "layers", "math", "optimizer", "random" }) do
      functions_of(flow[folder], "flow." .. folder, list)
    end
    for _, op in ipairs(core.session { threads = 1 }:ops()) do
      list[#list + 1] = op.lua and { "flow." .. op.lua, loadstring("return (...)." .. op.lua)(flow) } or nil
    end
    for _, entry in ipairs(list) do
      local path, f = unpack(entry)
      local text = flow.help(f, path)
      local first = "," .. text:match("^[^\n]+%b()"):match("%((.*)%)$") .. ","
      local signature = ops.signature(f) or arguments.signature_of(f)
      count = count + 1
      for _, parameter in ipairs(signature and signature.parameters or {}) do
        local default = parameter.default
        if default == nil then default = parameter.engine_default end
        local name = parameter.name
        local shown = default ~= nil and name .. " = " .. written(default)
          or parameter.kind == "operands" and "{ " .. name .. "... }" or name
        if default == nil and not parameter.required then shown = "[" .. shown .. "]" end
        local is_there = first:gsub(", ", ","):find("," .. shown:gsub(", ", ",") .. ",", 1, true)
        if not is_there then lacking[#lacking + 1] = path .. ": " .. shown end
      end
      if not signature then lacking[#lacking + 1] = path .. ": no signature" end
    end
    assert.same({}, lacking)
    assert.truthy(count > 300, count)
  end)

  it("says what each parameter of an optimizer, a schedule and a layer means", function()
    local lacking = {}
    local list = functions_of(flow.layers, "flow.layers", functions_of(flow.optimizer, "flow.optimizer", {}))
    for _, entry in ipairs(list) do
      local text = flow.help(entry[2], entry[1])
      local signature = ops.signature(entry[2]) or arguments.signature_of(entry[2])
      for _, parameter in ipairs(signature.parameters) do
        local is_value = parameter.kind == "blob" or parameter.kind == "operand"
        if not is_value and parameter.name ~= "name"
          and not text:find("\n  %[?" .. parameter.name .. "[^\n]*: ") then
          lacking[#lacking + 1] = entry[1] .. ": " .. parameter.name
        end
      end
    end
    assert.same({}, lacking)
    local adam = flow.help("optimizer.AdamW")
    for _, said in ipairs({
      "weight_decay = 0: share of itself", "PyTorch's AdamW: 0.01", "c = sqrt(1 - beta2^t) / (1 - beta1^t)",
      "w = w - rate * c * m / (sqrt(v) + epsilon) - rate * weight_decay * w",
    }) do assert.truthy(adam:find(said, 1, true), said) end
  end)

  it("says the order that calls take", function()
    assert.equal("flow.dim_gather(x, dim, index, [name])", flow.help("dim_gather"):match("^[^\n]+"))
    assert.truthy(flow.help("dim_gather"):find("flow.dim_gather(x, index, dim)", 1, true))
    assert.equal("flow.watch(value, [dtype], [handler], [options])", flow.help("watch"):match("^[^\n]+"))
    assert.equal("flow.zip(...)", flow.help("zip"):match("^[^\n]+"))
    assert.equal("flow.np.random.rand(...)", flow.help("np.random.rand"):match("^[^\n]+"))
    assert.equal("flow.typing.Callback\nMakes a job whose calls wait for nothing",
      flow.help("typing.Callback"):match("^[^:]+"))
    assert.equal(flow.help("typing.Callback"), flow.help(flow.typing.Callback))
    assert.is_nil(flow.help(flow.typing.Tuple { flow.typing.Numpy }))
  end)
end)

for _, page in ipairs({ "ops", "reference" }) do
  describe("docs/" .. page .. ".md", function()
    it(("is what help says; if not: build/moonflow docs/write_%s.lua > docs/%s.md"):format(page, page), function()
      local run = process.moonflow({ process.source .. "/docs/write_" .. page .. ".lua" })
      assert.equal(0, run.code, run.err)
      assert.equal(process.read(process.source .. "/docs/" .. page .. ".md"), run.out)
    end)
  end)
end

describe("docs/ops.md and docs/reference.md", function()
  local function headings(page, before)
    local found = {}
    for line in process.read(process.source .. "/docs/" .. page .. ".md"):gmatch("[^\n]+") do
      local name = line:match("^##+ ([%w_.:]+)$")
      if name then found[before .. name] = true end
      for other in line:find("^Also `") and line:gmatch("`([%w_.]+)`") or function() end do found[other] = true end
      if line:match("^%* `") then found[line:match("`([%w_.]+)`")] = true end
    end
    return found
  end

  it("have every function and method between them, each with a text", function()
    local help = require "moonflow.help"
    local ops, others, lacking = headings("ops", "flow."), headings("reference", ""), {}
    local function check(path, value)
      local is_there = ops[path] or others[path]
      local said = type(value) == "function" and help.text_only(value, path):match("^[^\n]+\n[^\n]+")
      if not is_there or not said then lacking[#lacking + 1] = path end
    end
    for path, value in pairs(help.paths()) do
      if type(value) == "function" then check(path, value) end
    end
    for path, value in pairs(help.methods()) do check(path, value) end
    for _, class in ipairs(require("moonflow.arguments").classes) do
      for _, name in ipairs(class.methods) do
        local method = rawget(class.class, name)
        local is_told = type(method) == "function" and help.methods()[class.receiver .. ":" .. name] == method
        if not is_told then lacking[#lacking + 1] = class.name .. ":" .. name end
      end
    end
    assert.same({}, lacking)
  end)

  it("explain a function that has several names under its own", function()
    local page = process.read(process.source .. "/docs/reference.md")
    for path, said in pairs {
      ["flow.xavier_normal_initializer"] = "normal with variance 2 / (fan_in + fan_out)",
      ["flow.optimizer.PolynomialScheduler"] = "(base_lr - end_learning_rate)", ["flow.np.gt"] = "1 where a > b",
    } do
      local section = page:match("\n### " .. path:gsub("%.", "%%.") .. "\n(.-)\n##")
      assert.truthy(section and section:find(said, 1, true), path)
    end
  end)
end)

describe("functions", function()
  it("are found by the words that people use", function()
    local help = require "moonflow.help"
    for words, path in pairs {
      topk = "flow.math.top_k", ["cumulative sum"] = "flow.math.cumsum", ["pixel shuffle"] = "flow.nn.PixelShuffle",
      patches = "flow.nn.PixelUnshuffle", ["space to depth"] = "flow.nn.PixelUnshuffle",
      ["stochastic depth"] = "flow.nn.dropout",
      ["mean squared error"] = "flow.nn.MSELoss", ["kl divergence"] = "flow.nn.KLDivLoss",
      ["he initialization"] = "flow.he_normal_initializer", ["cosine annealing"] = "flow.optimizer.CosineScheduler",
      ["global average pooling"] = "flow.math.reduce_mean", ["positional encoding"] = "flow.nn.rotary_embedding",
      ["multi head attention"] = "flow.nn.dot_product_attention", ["l2 regularization"] = "flow.regularizers.l2",
    } do
      local first = help.search(words)[1]
      assert.equal(path, first and first[1], words)
    end
  end)
end)

describe("the recipes that the prompt names", function()
  local recipes = require "moonflow.recipes"

  it("are in files that there are, and all that are in those of recipes", function()
    local named, told = {}, {}
    for _, document in ipairs(documents) do
      named[document] = {}
      for _, heading in ipairs(headings_of(document)) do named[document][heading.text] = heading.marks end
    end
    for _, recipe in ipairs(recipes) do
      local file, what = recipe[1], recipe[2]
      assert(io.open(process.source .. "/" .. file)):close()
      if is_of_recipes[file] then assert.truthy(named[file][what], what .. " is no heading of " .. file) end
      told[what] = true
    end
    for file in pairs(is_of_recipes) do
      for heading, marks in pairs(is_of_recipes[file] and named[file] or {}) do
        if marks == 2 then assert.truthy(told[heading], heading .. " is not among them") end
      end
    end
  end)

  it("are found by the words that people use", function()
    local help = require "moonflow.help"
    for words, what in pairs {
      ["early stopping"] = "The best so far, and an early end", ["GAN"] = "A DCGAN draws digits",
      ["reinforcement learning"] = "A policy that learns by trying", ["data augmentation"] =
        "Pictures that are never twice the same", ["k-fold"] = "Folds", ["lstm"] = "A state from step to step",
      ["bounding box"] = "Boxes around what is seen", nms = "The boxes of a detector", ["grad-cam"] =
        "A picture that is trained", segmentation = "A class of each pixel",
    } do
      local found = {}
      for _, recipe in ipairs(help.recipes(words)) do found[recipe[2]] = true end
      assert.truthy(found[what], words)
    end
    assert.same({}, help.recipes("nothing has these words"))
    assert.same({}, help.recipes("?"))
  end)
end)
