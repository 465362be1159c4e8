-- Files in the safetensors format that others have written, with dtypes that there are none of here.
local checks = require "checks"
local flow = require "moonflow"
local process = require "process"
local tp = flow.typing
local raises, same = checks.raises, checks.same

local path

-- A file of tensors in this order, { name, dtype, shape as text, bytes }.
local function text_of(tensors)
  local entries, data = {}, {}
  local at = 0
  for i, tensor in ipairs(tensors) do
    local name, dtype, shape, bytes = unpack(tensor)
    entries[i] = ('"%s":{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}'):format(name, dtype, shape, at, at + #bytes)
    data[i], at = bytes, at + #bytes
  end
  local header = "{" .. table.concat(entries, ",") .. "}"
  header = header .. (" "):rep(-#header % 8)
  return string.char(#header % 256, math.floor(#header / 256)) .. ("\0"):rep(6) .. header .. table.concat(data)
end

local one = "\0\0\128\63"  -- 1, float32

before_each(function()
  flow.clear_default_session()
  path = process.folder("dtypes") .. "/theirs.safetensors"
end)

describe("a file of others", function()
  it("has what there is no dtype for as a wider one, as np.load reads it", function()
    process.write(path, text_of {
      { "flags", "BOOL", "[2,2]", "\1\0\2\1" },
      { "short", "I16", "[2]", "\255\255\0\128" },
      { "word", "U16", "[2]", "\255\255\1\0" },
      { "many", "U32", "[1]", "\255\255\255\255" },
      { "long", "U64", "[1]", "\5\0\0\0\0\0\0\0" },
      { "none", "I16", "[0]", "" },
      { "w", "F32", "[1]", one },
    })
    local got = flow.checkpoint.get(path)
    same(got.flags, "int8", { { 1, 0 }, { 1, 1 } })
    same(got.short, "int32", { -1, -32768 })
    same(got.word, "int32", { 65535, 1 })
    same(got.many, "int64", { 4294967295 })
    same(got.long, "int64", { 5 })
    same(got.none, "int32", {})
    same(got.w, "float32", { 1 })
    assert.same(got.short:totable(), flow.checkpoint.get(path, { slots = false }).short:totable())
  end)

  it("is read without what cannot be had, until somebody asks for that", function()
    local text = text_of {
      { "scale", "F8_E4M3", "[3]", "\1\2\3" },
      { "phase", "C64", "[1]", ("\0"):rep(8) },
      { "large", "U64", "[1]", ("\255"):rep(8) },
      { "w", "F32", "[1]", one },
    }
    process.write(path, text)
    for _, options in ipairs { {}, { slots = false } } do
      local got = flow.checkpoint.get(path, options)
      local names = {}
      for name in pairs(got) do names[#names + 1] = name end
      assert.same({ "w" }, names)
      assert.is_nil(got.nothing)
      raises("unsupported", "flow.checkpoint.get: file '" .. path .. "': tensor 'scale' has dtype F8_E4M3, which is "
        .. "not supported", function() return got.scale end)
      raises("unsupported", "tensor 'phase' has dtype C64", function() return got.phase end)
      raises("unsupported", "'large' has the uint64 18446744073709551615, which is beyond int64",
        function() return got.large end)
    end

    local function define(name)
      flow.global_function {
        name = name .. "_job", inputs = { x = tp.Numpy.Placeholder { 1 } }, returns = tp.Numpy,
      } (function(x)
        return x * flow.get_variable(name, { shape = { 1 }, initializer = flow.zeros_initializer() })
      end)
    end
    local check_point = flow.train.CheckPoint()
    define("w")
    check_point:load(path)
    assert.equal(1, flow.get_all_variables().w:item())
    check_point:load_memory(text)
    flow.load_variables(flow.checkpoint.get(path))
    define("scale")
    local lacks = "tensor 'scale' has dtype F8_E4M3, which is not supported"
    raises("unsupported", "CheckPoint:load: file '" .. path .. "': " .. lacks, function() check_point:load(path) end)
    raises("unsupported", "CheckPoint:load_memory: " .. lacks, function() check_point:load_memory(text) end)
    raises("unsupported", lacks, flow.load_variables, flow.checkpoint.get(path))
  end)

  it("is damaged where a tensor has more or fewer bytes than its dtype wants", function()
    process.write(path, text_of { { "flags", "BOOL", "[3]", "\1\1" } })
    raises("io", "'flags' is int8 (3), but lies from byte 0 to 2", flow.checkpoint.get, path)
    process.write(path, text_of { { "short", "I16", "[1]", "\1\0\0\0" } })
    raises("io", "'short' is int32 (1), but lies from byte 0 to 4", flow.checkpoint.get, path)
  end)
end)

describe("a path that is no checkpoint's", function()
  it("says which files are, and how Python writes one", function()
    local function refuses(name, part)
      local file = process.folder("dtypes") .. "/" .. name
      process.write(file, "PK\3\4")
      raises("io", "flow.checkpoint.get: '" .. file .. "'" .. part, flow.checkpoint.get, file)
      raises("io", "CheckPoint:load: '" .. file .. "'" .. part, function() flow.train.CheckPoint():load(file) end)
      raises("io", "flow.checkpoint.metadata: '" .. file .. "'" .. part, flow.checkpoint.metadata, file)
    end
    flow.global_function { inputs = { x = tp.Numpy.Placeholder { 1 } }, returns = tp.Numpy } (function(x)
      return x * flow.get_variable("w", { shape = { 1 }, initializer = flow.zeros_initializer() })
    end)
    refuses("m.pth", ' is a file, and a checkpoint is a folder, or a file whose name ends in ".safetensors"; in '
      .. 'Python, safetensors.torch.save_file(model.state_dict(), "m.safetensors") writes one')
    refuses("model.safetensors.index.json", " says which file has which array; flow.checkpoint.get reads each of "
      .. "these, model-00001-of-00002.safetensors and so on")
    raises("not_found", "nowhere", flow.checkpoint.get, process.folder("dtypes") .. "/nowhere")
  end)
end)
