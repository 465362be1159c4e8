-- What is written as files, as strings: each is the bytes of the file, and its reader takes them.
local checks = require "checks"
local flow = require "moonflow"

local np, tp, raises = flow.np, flow.typing, checks.raises

local folder
before_each(function()
  flow.clear_default_session()
  flow.set_seed(3)
  folder = os.tmpname()
  os.remove(folder)
  assert(os.execute("mkdir " .. folder) == 0)
end)
after_each(function() os.execute("rm -r " .. folder) end)

local function bytes_of(name)
  local file = assert(io.open(folder .. "/" .. name, "rb"))
  local bytes = file:read("*a")
  file:close()
  return bytes
end

describe("arrays as a string", function()
  it("are an npy file's bytes, and come back", function()
    for _, a in ipairs { np.array { { 1, 2 }, { 3, 4 } }, np.array({ 5 }, "int64"), np.zeros { 0, 3 }, np.array(7) } do
      np.save(folder .. "/a", a)
      local bytes = np.save_memory(a)
      assert.equal(bytes_of("a.npy"), bytes)
      assert.equal(a, np.load_memory(bytes))
    end
    assert.equal(2, np.load_memory(np.save_memory(2)):item())
  end)

  it("are an npz file's bytes where they have names, and come back", function()
    local replay = { states = np.random.normal(0, 1, { 50, 4 }), ["a/b"] = np.zeros({ 0 }), [1] = np.arange(3) }
    np.savez(folder .. "/r", replay)
    local bytes = np.save_memory(replay)
    assert.equal(bytes_of("r.npz"), bytes)
    local again = np.load_memory(bytes)
    assert.equal(replay.states, again.states)
    assert.equal(replay[1], again.arr_0)
    assert.equal("(0)", tostring(again["a/b"].shape))
    assert.equal(replay.states, np.load_memory(bytes, "states").states)
  end)

  it("say what they cannot be made of", function()
    raises("invalid_argument", "np.save_memory takes 1 argument (a) and no options", np.save_memory, np.zeros { 1 }, {})
    raises("invalid_argument", "an archive needs at least one array", np.save_memory, {})
    raises("invalid_argument", "'../a' cannot name an array in an archive", np.save_memory,
      { ["../a"] = np.ones { 1 } })
    raises("unsupported", "np.save_memory: npy and npz have no bfloat16", np.save_memory, np.zeros({ 1 }, "bfloat16"))
    raises("invalid_argument", "np.save_memory wants an ndarray, a table or a number, got 'x'", np.save_memory, "x")
    raises("invalid_argument", "np.save_memory wants an ndarray, a table or a number, got 'x'", np.save_memory, { "x" })
  end)
end)

describe("pictures and sounds as a string", function()
  local picture = np.arange(24):reshape({ 2, 4, 3 }):astype("uint8")

  it("are the bytes of their files", function()
    np.save_png(folder .. "/p", picture)
    assert.equal(bytes_of("p.png"), np.encode_png(picture))
    assert.equal(picture, np.decode_png(np.encode_png(picture)))
    np.save_jpeg(folder .. "/p", picture, 40)
    assert.equal(bytes_of("p.jpg"), np.encode_jpeg(picture, { quality = 40 }))
    assert.is_true(#np.encode_jpeg(picture) > #np.encode_jpeg(picture, 1))
    local sound = np.sin(np.arange(100))
    np.save_wav(folder .. "/s", sound, 8000)
    assert.equal(bytes_of("s.wav"), np.encode_wav(sound, 8000))
    assert.is_true(#np.encode_wav(sound, { rate = 8000, encoding = "float32" }) > 400)
  end)

  it("refuse what their files do", function()
    raises("shape_mismatch", "np.encode_png: the picture is (2), wanted (height, width)", np.encode_png, { 1, 2 })
    raises("invalid_argument", "np.encode_png takes 1 argument (a) and no options", np.encode_png, picture, 9)
    raises("invalid_argument", "np.encode_jpeg: quality is from 1 to 100, got 0", np.encode_jpeg, picture, 0)
    raises("shape_mismatch", "np.encode_jpeg: the picture has 2 channels", np.encode_jpeg, np.zeros { 2, 2, 2 })
    raises("invalid_argument", "np.encode_wav: the encoding is 'mp3'", np.encode_wav, np.zeros { 2 }, 8000, "mp3")
  end)
end)

describe("a job as a string", function()
  local function policy(shape)
    return flow.global_function {
      name = "policy", inputs = { x = tp.Numpy.Placeholder(shape or { 2, 3 }) }, returns = tp.Numpy,
    } (function(x) return flow.layers.dense(x, 4, { name = "out", activation = flow.nn.relu }) end)
  end

  it("is the bytes of its ONNX file", function()
    local job, states = policy(), np.random.normal(0, 1, { 2, 3 })
    for _, options in ipairs { { any_batch = false }, { outputs = { "action" } }, { any_batch = true } } do
      job:export_onnx(folder .. "/p.onnx", options)
      assert.equal(bytes_of("p.onnx"), flow.onnx.export_memory(job, options))
    end
    local model = flow.onnx.load_memory(flow.onnx.export_memory(job), { name = "again" })
    local again = flow.global_function {
      name = "again", inputs = { x = tp.Numpy.Placeholder { 2, 3 } }, returns = tp.Numpy,
    } (function(x) return model(x) end)
    assert.is_true(np.allclose(job(states), again(states)))
  end)

  it("says what it cannot be, under its own name", function()
    raises("invalid_argument", "flow.onnx.export_memory: wants a job, got a table", flow.onnx.export_memory, {})
    raises("invalid_argument", "flow.onnx.export_memory: outputs has 2 names", flow.onnx.export_memory, policy(),
      { outputs = { "a", "b" } })
    raises("invalid_argument", "flow.onnx.export_memory: any_batch wants a job with a batch", flow.onnx.export_memory,
      flow.global_function { inputs = { x = tp.Numpy.Placeholder {} }, returns = tp.Numpy } (function(x) return x end),
      { any_batch = true })
  end)
end)

describe("weights of a string", function()
  it("are taken under other names, without what optimizers remember", function()
    local function net(x, name) return flow.layers.dense(x, 2, { name = name }) end
    local train = flow.global_function {
      name = "learn", type = "train", inputs = { x = tp.Numpy.Placeholder { 1, 3 } }, returns = tp.Numpy,
    } (function(x)
      local loss = flow.math.reduce_mean(net(x, "own") ^ 2)
      flow.optimizer.Adam(0.1):minimize(loss)
      return loss
    end)
    local play = flow.global_function { inputs = { x = tp.Numpy.Placeholder { 1, 3 } }, returns = tp.Numpy } (
      function(x) return net(x, "other") end)
    local x = np.ones { 1, 3 }
    train(x)
    play(x)
    local saved = flow.train.CheckPoint():save_memory()
    local all, weights = flow.checkpoint.get_memory(saved), flow.checkpoint.get_memory(saved, { slots = false })
    assert.is_truthy(all["System-Train-TrainStep-learn"])
    local names = {}
    for name in pairs(weights) do names[#names + 1] = name end
    table.sort(names)
    assert.same({ "other-bias", "other-weight", "own-bias", "own-weight" }, names)
    flow.load_variables({ ["other-weight"] = weights["own-weight"], ["other-bias"] = weights["own-bias"] })
    assert.is_true(np.allclose(play(x), np.matmul(x, weights["own-weight"]:transpose()) + weights["own-bias"]))
    raises("io", "flow.checkpoint.get_memory", flow.checkpoint.get_memory, "nothing of it")
  end)
end)
