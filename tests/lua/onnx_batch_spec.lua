-- job:export_onnx with any_batch: one file for batches of any size, read again and compared with jobs of these sizes.
local flow = require "moonflow"
local np, tp = flow.np, flow.typing
local Placeholder = tp.Numpy.Placeholder

local path
before_each(function()
  path = os.tmpname()
  flow.clear_default_session()
  flow.set_seed(1)
end)
after_each(function() os.remove(path) end)

-- Defines the job of a body for one input whose first size is `size`.
local function define(size, rest, dtype, body)
  local shape = { size, unpack(rest) }
  return flow.global_function { inputs = { x = Placeholder(shape, { dtype = dtype }) }, returns = tp.Numpy } (body)
end

-- The file of a body, written by a job for 4, gives what the body gives for other sizes.
local function is_free(rest, body, dtype)
  dtype = dtype or "float32"
  define(4, rest, dtype, body):export_onnx(path, { outputs = { "y" }, any_batch = true })
  local model = flow.onnx.load(path, { name = "read" })
  for _, size in ipairs { 1, 4, 7 } do
    local value = np.random.randint(0, 5, { size, unpack(rest) }):astype(dtype)
    local read = define(size, rest, dtype, function(x) return (model { x = x }) end)(value)
    local wanted = define(size, rest, dtype, body)(value)
    assert.equal(tostring(wanted.shape), tostring(read.shape))
    assert.is_true(np.allclose(wanted, read, 1e-5, 1e-5), "batch " .. size)
  end
end

local function refused(text, rest, body)
  local job = define(4, rest, "float32", body)
  local fine, problem = pcall(job.export_onnx, job, path, { any_batch = true })
  assert.is_false(fine)
  assert.truthy(tostring(problem):find(text, 1, true), tostring(problem))
end

describe("a job that is written for any batch", function()
  it("convolves, pools and flattens", function()
    is_free({ 2, 9, 9 }, function(x)
      local y = flow.layers.conv2d(x, 4, 3, { padding = "SAME", activation = flow.nn.relu, name = "conv" })
      y = flow.nn.max_pool2d(y, 2, 2, "VALID")
      return flow.layers.dense(flow.reshape(y, { y.shape[0], -1 }), 3, { name = "dense" })
    end)
  end)

  it("has no nodes for that where a size can be left open", function()
    local job = define(4, { 2, 3 }, "float32", function(x) return flow.reshape(x, { x.shape[0], 6 }) end)
    job:export_onnx(path, { any_batch = true })
    local bytes = assert(io.open(path, "rb")):read("*a")
    assert.truthy(bytes:find("Reshape", 1, true))
    assert.falsy(bytes:find("batch_size", 1, true))
    assert.truthy(bytes:find("batch", 1, true))
  end)

  it("attends over heads, whose rows are batch times steps on the way", function()
    is_free({ 5, 8 }, function(x)
      local batch, steps = x.shape[0], x.shape[1]
      local rows = flow.layers.dense(flow.reshape(x, { batch * steps, 8 }), 8, { name = "query" })
      local heads = flow.reshape(rows, { batch, steps, 2, 4 })
      local y = flow.reshape(flow.nn.dot_product_attention(heads, heads, heads, { causal = true }), { batch, steps, 8 })
      return flow.layers.layer_norm(x + y, { name = "norm" })
    end)
  end)

  it("cuts and joins what stands beside the batch, and the batch itself", function()
    is_free({ 4, 3 }, function(x)
      local last = flow.slice(x, { 0, 3, 0 }, { x.shape[0], 1, 3 })
      local others = flow.slice_v2(x, { { nil, nil, nil }, { 0, 3, 2 } })
      local rows = flow.concat({ others, last }, 1)
      return rows - flow.slice(rows, { 0, 0, 0 }, { 1, 3, 3 }) + flow.math.reduce_mean(rows, 0, true)
    end)
  end)

  it("has a recurrent layer, whose state begins as zeros", function()
    is_free({ 3, 4 }, function(x) return (flow.layers.gru(x, 5, { name = "gru" })) end)
  end)

  it("counts its rows, picks by them and compares them", function()
    is_free({ 3 }, function(x)
      local batch = x.shape[0]
      local words = flow.get_variable("words", { shape = { 5, 2 },
                                                 initializer = flow.random_uniform_initializer(-1, 1) })
      local flat = flow.reshape(flow.gather(words, x), { batch, 6 })
      local rows = flow.reshape(flow.range(batch, { dtype = "int32" }), { batch, 1 })
      local is_same = flow.cast(flow.math.equal(rows, flow.transpose(rows, { 1, 0 })), "float32")
      return flow.matmul(flat, flat, false, true) * is_same
    end, "int32")
  end)

  it("counts its rows in floats", function()
    is_free({ 3 }, function(x) return x + flow.reshape(flow.range(1, 2 * x.shape[0], 2), { -1, 1 }) end)
  end)

  it("has a batch where the placeholder says", function()
    local job = flow.global_function {
      inputs = { x = Placeholder({ 3, 4 }, { batch_axis = -1 }), scale = Placeholder({ 3 }, { batch_axis = false }) },
      returns = tp.Numpy,
    } (function(x, scale) return flow.transpose(x, { 1, 0 }) * scale end)
    job:export_onnx(path, { outputs = { "y" }, any_batch = true })
    local model = flow.onnx.load(path, { name = "read" })
    local read = flow.global_function { inputs = { x = Placeholder { 3, 2 }, scale = Placeholder { 3 } },
                                        returns = tp.Numpy } (function(x, scale)
      return (model { x = x, scale = scale })
    end)
    assert.same({ { 0, 2, 8 }, { 1, 3, 10 } },
      read(np.arange(6):reshape(3, 2):astype("float32"), np.array({ 1, 1, 2 })):totable())
  end)

  it("repeats a constant once for each sample, as the first states of recurrent layers are", function()
    is_free({ 3 }, function(x)
      local rows = np.tile(np.arange(3):astype("float32"):reshape(1, 3), { x.shape[0], 1 })
      return flow.concat({ x * rows, np.zeros { x.shape[0], 2 } }, 1)
    end)
  end)

  it("counts samples, as what gathers one place of each does", function()
    is_free({ 3 }, function(x)
      local count = x.shape[0]
      local samples = np.arange(count):astype("int64"):reshape(count, 1)
      local places = np.concat({ samples, np.full({ count, 1 }, 2, "int64") }, 1)
      return flow.gather_nd(x, places) + flow.cast(np.arange(count):astype("int32") * 5, flow.float)
    end)
  end)

  it("averages over the batch, and has what else is a multiple of it or a part", function()
    is_free({ 3 }, function(x)
      local count = x.shape[0]
      return flow.math.reduce_sum(x, { axis = 0 }) / count + flow.reshape(x, { -1, 3 }) * (0.1 * count)
        + x * (3 / (2 * count + 1)) + (count - 0.5)
    end)
    is_free({ 3 }, function(x) return flow.gradients(flow.math.reduce_mean(x ^ 3), x) end)
    is_free({ 3 }, function(x) return x * (1 / x.shape[0]) end, "float64")
    refused("has a value that depends on the batch", { 3 }, function(x) return x * math.sqrt(x.shape[0]) end)
  end)

  it("is refused where even batches and odd ones differ", function()
    local text = "has a size that is no multiple of the batch"
    refused(text, { 3 }, function(x) return flow.pad(x, { 0, x.shape[0] % 2, 0, 0 }) end)
    refused(text, { 3 }, function(x) return flow.ones_like(flow.slice_v2(x, { { nil, nil, 2 } })) end)
    refused("write it without any_batch where not every size will do", { 3 }, function(x) return (flow.split(x, 2)) end)
    refused("has a value that depends on the batch", { 3 }, function(x) return x * (x.shape[0] % 2) end)
  end)

  it("is refused where it could not tell the batch from any input", function()
    local text = "none reads an input that has it"
    refused(text, { 4 }, function(x) return flow.zeros { x.shape[0], 4 } end)
    refused(text, { 4 }, function(x) return flow.range(x.shape[0], { dtype = "int64" }) end)
  end)

  it("says what depends on the batch in another way", function()
    refused("with any_batch the body of", { 3 }, function(x) return flow.reshape(x, { 2, 6 }) end)
    refused("has a value that depends on the batch", { 3 }, function(x)
      return x * np.arange(x.shape[0] * 3):reshape(-1, 3):astype("float32")
    end)
    refused("has a size that is no multiple of the batch", { 3 }, function(x)
      local all = x.shape[0] * x.shape[0]
      return flow.reshape(flow.matmul(x, x, false, true), { all }) + flow.zeros { all }
    end)
    refused("nodes for a batch of 12", { 3 }, function(x)
      local sum = x
      for _ = 1, x.shape[0] do sum = sum + x end
      return sum
    end)
    local job = flow.global_function {
      inputs = { x = Placeholder({ 3 }, { batch_axis = false }) }, returns = tp.Numpy,
    } (function(x) return x + 1 end)
    local fine, problem = pcall(job.export_onnx, job, path, { any_batch = true })
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("no input of", 1, true), tostring(problem))
  end)
end)
