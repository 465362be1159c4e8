-- What a script puts beside the variables of a checkpoint: words, sizes, names.
local checks = require "checks"
local flow = require "moonflow"
local process = require "process"
local np, tp = flow.np, flow.typing
local raises, refuses = checks.raises, checks.refuses

local folder
local metadata = {
  words = { "?", "Rome", "Åre" }, mean = { 0.1, -3e300 }, sizes = { hidden = 16, deep = true }, none = {},
}

local function define()
  return flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 1, 2 }) }, returns = tp.Numpy } (function(x)
    return flow.layers.dense(x, 3, { name = "layer" })
  end)
end

before_each(function()
  flow.clear_default_session()
  folder = process.folder("metadata")
  define()
end)

describe("metadata", function()
  local check_point = flow.train.CheckPoint()

  it("come back from a folder, a file and a string, with the variables or before them", function()
    for _, name in ipairs { "/folder", "/file.safetensors" } do
      local path = folder .. name
      check_point:save(path, { metadata = metadata })
      local before = flow.get_all_variables()["layer-weight"]
      assert.same(metadata, flow.checkpoint.metadata(path))
      check_point:init()
      assert.same(metadata, check_point:load(path))
      assert.is_true(before == flow.get_all_variables()["layer-weight"])
      assert.same(metadata, check_point:load(path, { slots = false }))
      -- Arrays that are no variables, or all of them by the option alone.
      flow.checkpoint.save(path, { a = np.ones { 2 } }, { overwrite = true, metadata = { 1, 2 } })
      assert.same({ 1, 2 }, flow.checkpoint.metadata(path))
      assert.equal(2, flow.checkpoint.get(path).a:sum())
      os.execute("rm -rf " .. process.quote(path))
      flow.checkpoint.save(path, { metadata = { "all" } })
      assert.same({ "all" }, flow.checkpoint.metadata(path))
      assert.same(before:totable(), flow.checkpoint.get(path)["layer-weight"]:totable())
    end
    assert.same(metadata, check_point:load_memory(check_point:save_memory { metadata = metadata }))
  end)

  it("go through a manager", function()
    local manager = flow.train.SimpleCheckPointManager(folder .. "/snapshots")
    assert.same({}, { manager:initialize_or_restore() })
    local name = manager:save { metadata = { best = 0.5 } }
    local loaded, given = manager:initialize_or_restore()
    assert.equal(name, loaded)
    assert.same({ best = 0.5 }, given)
    manager:save()
    assert.is_nil((select(2, manager:initialize_or_restore())))
  end)

  it("are nil where there are none", function()
    for _, name in ipairs { "/folder", "/file.safetensors" } do
      check_point:save(folder .. name)
      assert.is_nil(flow.checkpoint.metadata(folder .. name))
      assert.is_nil(check_point:load(folder .. name))
    end
    assert.is_nil(check_point:load_memory(check_point:save_memory()))
    raises("not_found", "nowhere", flow.checkpoint.metadata, folder .. "/nowhere")
    raises("not_found", "nowhere", flow.checkpoint.metadata, folder .. "/nowhere.safetensors")
  end)

  it("of a file of others are its texts", function()
    local header = '{"__metadata__":{"format":"pt","metadata":"of theirs"},'
      .. '"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    local path = folder .. "/theirs.safetensors"
    process.write(path, string.char(#header, 0, 0, 0, 0, 0, 0, 0) .. header .. "\0\0\128\63")
    assert.same({ format = "pt", metadata = "of theirs" }, flow.checkpoint.metadata(path))
    assert.equal(1, flow.checkpoint.get(path).a:at(0))
  end)

  it("are had without the arrays, of a file in which those are damaged too", function()
    local path = folder .. "/damaged.safetensors"
    check_point:save(path, { metadata = metadata })
    local bytes = process.read(path)
    process.write(path, bytes:sub(1, -2) .. string.char((bytes:byte(-1) + 1) % 256))
    assert.same(metadata, flow.checkpoint.metadata(path))
    raises("io", "do not match their checksum", flow.checkpoint.get, path)
    process.write(path, bytes:sub(1, -2))
    raises("io", "lie outside the data", flow.checkpoint.metadata, path)
    process.write(path, bytes:sub(1, 100))
    raises("io", "the header is longer than the file", flow.checkpoint.metadata, path)
  end)

  it("are what JSON can have, or nothing is written", function()
    local path = folder .. "/refused"
    local function fails(text, given)
      refuses("CheckPoint:save: metadata" .. text, check_point.save, check_point, path, { metadata = given })
      refuses("CheckPoint:save_memory: metadata" .. text, check_point.save_memory, check_point, { metadata = given })
      assert.is_nil(io.open(path))
    end
    fails(" must be a table, got 'words'", "words")
    fails(": a function cannot be saved", { print })
    fails(": an ndarray float32 (2) cannot be saved", { mean = np.ones { 2 } })
    fails(": the list has a hole", { 1, 2, nil, 4 })
    fails(": the number ", { 0 / 0 })
    fails(": text that goes into JSON must be UTF-8", { "\255" })
  end)
end)
