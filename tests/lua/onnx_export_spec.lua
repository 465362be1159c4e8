-- job:export_onnx: jobs of ours, which are written, read again and compared.
local flow = require "moonflow"
local models = require "onnx_models"

local np, tp = flow.np, flow.typing
local floats, whole = models.floats, models.whole
local job_of, raises, same = models.job_of, models.raises, models.same

local path
before_each(function() path = models.begin() end)
after_each(models.finish)

describe("a job that is written", function()
  -- Defines a job of a body, writes it, and gives it and the model that is read again.
  local function written(shape, body, options, dtype)
    local job = flow.global_function {
      name = "net", inputs = { x = tp.Numpy.Placeholder(shape, { dtype = dtype or "float32" }) }, returns = tp.Numpy,
    } (body)
    job:export_onnx(path, options)
    return job, flow.onnx.load(path, { name = "again" })
  end

  -- What a job gives for numbers between -1 and 1, the model gives that is read again. `other`: a tolerance that is
  -- not 1e-6, another dtype of x, how far it goes from 0.
  local function comes_back(shape, body, other)
    other = other or {}
    local tolerance, dtype, reach = other.tolerance or 1e-6, other.dtype or "float32", other.reach or 1
    local job, model = written(shape, body, nil, dtype)
    local x = np.random.uniform(-reach, reach, shape):astype(dtype)
    local want, got = job(x), job_of(model, shape, dtype)(x)
    assert.same(want.shape:table(), got.shape:table())
    assert.is_true(np.allclose(got, want, { rtol = tolerance, atol = tolerance }), tostring(got))
    return model
  end

  it("is a network of convolutions, whose biases and layers are one node each", function()
    local model = comes_back({ 2, 1, 8, 8 }, function(x)
      local y = flow.layers.conv2d(x, 4, 3, { padding = "SAME", activation = flow.nn.relu, name = "conv" })
      y = flow.nn.max_pool2d(y, { ksize = 2, strides = 2 })
      y = flow.layers.batch_normalization(y, { name = "norm" })
      return flow.nn.softmax(flow.layers.dense(flow.reshape(y, { 2, -1 }), 3, { name = "out" }))
    end)
    local ops = {}
    for i, entry in ipairs(model._nodes) do ops[i] = entry.op end
    assert.same({ "Conv", "Relu", "MaxPool", "BatchNormalization", "Reshape", "Gemm", "Softmax" }, ops)
    assert.is_truthy(model.variables["again-conv-weight"])
  end)

  it("is a transformer", function()
    comes_back({ 2, 5, 8 }, function(x)
      local function heads(y) return flow.reshape(y, { 2, 5, 2, 4 }) end
      local normal = flow.layers.layer_norm(x, { begin_norm_axis = 2, begin_params_axis = 2, name = "norm" })
      local function layer(name) return heads(flow.layers.dense(normal, 8, { name = name })) end
      local y = flow.nn.dot_product_attention(layer("q"), layer("k"), layer("v"), { causal = true })
      local sum = flow.layers.dense(flow.reshape(y, { 2, 5, 8 }), 8, { name = "o" }) + x
      return flow.layers.dense(sum, 4, { activation = flow.math.gelu, name = "f" })
    end, { tolerance = 1e-5 })
  end)

  it("divides by the root mean square, with a scale or without", function()
    comes_back({ 2, 5, 8 }, function(x)
      return flow.layers.rms_norm(flow.nn.rms_norm(x, { begin_norm_axis = 1, epsilon = 0.1 }) + 1, { name = "norm" })
    end, { tolerance = 1e-5 })
  end)

  it("has losses, as of a job that tells how well a net predicts", function()
    comes_back({ 2, 3, 4 }, function(x)
      local labels, logits = flow.math.argmax(x, 1), flow.transpose(x, { 0, 2, 1 })  -- (2, 4) and (2, 4, 3)
      local plain = flow.nn.CrossEntropyLoss(logits, labels, { reduction = "none", ignore_index = 1 })
      local smoothed = flow.nn.CrossEntropyLoss(logits, labels, { reduction = "none", label_smoothing = 0.1 })
      local column = flow.nn.sparse_softmax_cross_entropy_with_logits(
        flow.cast(flow.reshape(labels, { 8, 1 }), flow.int32), flow.reshape(logits, { 8, 3 }))
      return plain + smoothed * 3 + flow.reshape(column, { 2, 4 }) * 5
    end, { tolerance = 1e-5 })
  end)

  it("has the loss of labels along a sequence, step by step", function()
    local function whole_rows(...) return np.array({ ... }, flow.int32) end
    local target, steps = whole_rows({ 1, 2, -9 }, { 2, 2, 1 }, { 3, 0, 0 }, { 2, 2, 2 }), whole_rows(6, 5, 4, 3)
    local counts = whole_rows(2, 3, 1, 3)  -- of the last row there is no room for all
    comes_back({ 4, 6, 4 }, function(x)
      local logs = flow.nn.log_softmax(x)
      local function loss(labels, of_labels, blank)
        return flow.nn.CTCLoss(logs, labels, steps, of_labels, { blank = blank, reduction = "none",
                                                                 zero_infinity = true })
      end
      return loss(target, counts, 0) + loss(flow.zeros({ 4, 0 }, flow.int64), whole_rows(0, 0, 0, 0), 3)
    end, { tolerance = 1e-5 })
  end)

  it("has class numbers of one dtype and vectors of another, in the dtypes that ONNX Runtime knows", function()
    for _, dtype in ipairs { "float32", "float64", "int32", "int8" } do
      local function body(x) return flow.one_hot(x, 3, 4, 1, { dtype = dtype }) end
      local job, model = written({ 2 }, body, nil, "int32")
      assert.same({ 1, 4, 1, 1, 1, 4 }, job(np.array({ 1, 2 }, flow.int32)):ravel():totable())
      assert.same({ "Cast", dtype }, { model._nodes[1].op, model.outputs[1].dtype })
    end
  end)

  it("has the vector of a single class number as a row, since ONNX Runtime takes no scalar there", function()
    for _, dtype in ipairs { "float32", "float64" } do
      local job, model = written({ 1 }, function(x)
        return flow.one_hot(flow.reshape(x, {}), 3, { dtype = dtype })
      end, nil, "int32")
      local x = np.array({ 2 }, flow.int32)
      assert.same({ 0, 0, 1 }, job(x):totable())
      assert.same({ 3 }, model.outputs[1].shape)
      for _, step in ipairs(model._nodes) do
        if step.op == "OneHot" then assert.truthy(step.inputs[1]:find("place")) end
      end
    end
  end)

  it("keeps borders that are infinite or beyond the whole numbers", function()
    for _, border in ipairs { -math.huge, math.huge, 2 ^ 60 } do
      local _, model = written({ 2 }, function(x) return flow.pad(x, { 1, 0 }, border) end)
      same({ border, 1, 2 }, job_of(model, { 2 })(floats { 1, 2 }))
    end
  end)

  -- Lines that are filled up in front, as a batch of texts that are to be continued is.
  it("gives 0 for a query that may look at no key", function()
    comes_back({ 2, 5, 2, 4 }, function(x)
      local is_there = flow.reshape(flow.range(5):ge(2), { 1, 1, 1, 5 })
      return flow.nn.dot_product_attention(x, x, x, { mask = is_there, causal = true })
    end)
  end)

  it("looks at keys of earlier calls beside those of this one, or at none", function()
    comes_back({ 2, 5, 2, 4 }, function(x)
      local is_there = flow.reshape(flow.range(10):lt(5), { 2, 1, 1, 5 })
      return flow.nn.dot_product_attention(x, x, x, {
        causal = true, past_key = x * 2, past_value = x + 1, past_mask = is_there })
    end, { tolerance = 1e-5 })
  end)

  it("turns images whose channels are last, and pads as they do", function()
    comes_back({ 1, 7, 6, 3 }, function(x)
      local y = flow.layers.conv2d(x, 4, 3, { padding = "SAME", strides = 2, data_format = "NHWC", name = "conv" })
      return flow.nn.avg_pool2d(y, { ksize = 3, strides = 2, padding = "SAME", data_format = "NHWC" })
    end)
  end)

  for name, body in pairs {
    log_sigmoid = function(x) return flow.math.log_sigmoid(x) end,
    hardsigmoid = function(x) return flow.nn.hardsigmoid(x) end,
    mish = function(x) return flow.nn.mish(x) end,
    swish = function(x) return flow.nn.swish(x) end,
    ["swish with a beta"] = function(x) return flow.nn.swish(x, 2) end,
    smooth_l1_loss = function(x) return flow.smooth_l1_loss(x, flow.zeros_like(x), { beta = 2 }) end,
    ["smooth_l1_loss without a knee"] = function(x) return flow.smooth_l1_loss(x, flow.zeros_like(x), { beta = 0 }) end,
    squared_difference = function(x) return flow.math.squared_difference(x, x * x) end,
    l2_normalize = function(x) return flow.math.l2_normalize(x, 1) end,
    top_k = function(x) return flow.math.top_k(x, 2) end,
    sort = function(x) return flow.sort(x) end,
    ["sort downwards"] = function(x) return flow.sort(x, { direction = "DESCENDING" }) end,
    argsort = function(x) return flow.argsort(x) end,
    atan2 = function(x) return flow.math.atan2(x, flow.reverse(x, { 1 })) end,
    argmin = function(x) return flow.math.argmin(x, 1) end,
    tile = function(x) return flow.tile(x, { 2, 1 }) end,
    reverse = function(x) return flow.reverse(x, { 0, 1 }) end,
    broadcast_like = function(x) return flow.broadcast_like(flow.slice(x, { 0, 0 }, { 1, 4 }), x) end,
    dim_gather = function(x) return flow.dim_gather(x, 0, flow.cast(flow.zeros_like(x), "int32")) end,
    ["matmul with a matrix turned"] = function(x) return flow.matmul(x, x, { transpose_a = true }) end,
    ["matmul of a stack of matrices turned"] = function(x)
      local stack = flow.reshape(x, { 3, 2, 2 })
      return flow.matmul(stack, stack, { transpose_a = true })
    end,
    ["norms of the first axis, one in between and the last"] = function(x)
      local means = flow.random_uniform_initializer(0, 1)
      x = flow.reshape(x, { 3, 1, 2, 2 })
      for axis = 0, 3 do
        x = flow.layers.batch_normalization(x, { axis = axis, moving_mean_initializer = means, name = "norm" .. axis })
      end
      return x
    end,
    ["a bias of channels that are last"] = function(x)
      local bias = flow.get_variable("bias", { shape = { 2 }, initializer = flow.random_uniform_initializer() })
      return flow.nn.bias_add(flow.reshape(x, { 1, 3, 2, 2 }), bias, { data_format = "NHWC" })
    end,
  } do
    it("may be one op: " .. name, function() comes_back({ 3, 4 }, body, { reach = 9, tolerance = 1e-5 }) end)
  end

  for _, format in ipairs { "NCHW", "NHWC" } do
    it("makes images larger, of " .. format, function()
      local shape = format == "NCHW" and { 2, 3, 5, 4 } or { 2, 5, 4, 3 }
      for _, padding in ipairs { "SAME", "VALID" } do
        comes_back(shape, function(x)
          return flow.layers.conv2d_transpose(x, 4, 3, { strides = 2, padding = padding, data_format = format,
                                                         name = "conv" })
        end, { tolerance = 1e-5 })
        flow.clear_default_session()
      end
      comes_back(format == "NCHW" and { 2, 3, 5 } or { 2, 5, 3 }, function(x)
        return flow.layers.conv1d_transpose(x, 4, 3, { strides = 2, data_format = format == "NCHW" and "NCW" or "NWC",
                                                       name = "conv" })
      end, { tolerance = 1e-5 })
      flow.clear_default_session()
      for _, options in ipairs {
        { interpolation = "nearest" }, { interpolation = "bilinear" },
        { interpolation = "bilinear", align_corners = true },
      } do
        options.size, options.data_format = 2, format
        comes_back(shape, function(x) return flow.layers.upsample_2d(x, options) end)
      end
      for _, options in ipairs {
        { mode = "bilinear" }, { mode = "bilinear", antialias = true }, { mode = "bicubic", align_corners = true },
      } do
        options.data_format = format
        comes_back(shape, function(x) return flow.nn.interpolate(x, { 5, 9 }, options) end, { tolerance = 1e-5 })
      end
      comes_back(shape, function(x) return flow.reflection_pad2d(x, { 1, 2, 3, 0 }) end)
    end)
  end

  it("takes images at places that are computed", function()
    for _, mode in ipairs { "nearest", "bilinear", "bicubic" } do
      for padding, align_corners in pairs { zeros = false, border = true, reflection = false } do
        comes_back({ 2, 3, 5, 4 }, function(x)
          local theta = flow.reshape(flow.slice(x, { 0, 0, 0, 0 }, { 2, 1, 3, 2 }), { 2, 2, 3 })
          local grid = flow.nn.affine_grid(theta, { 2, 3, 6, 7 }, align_corners)
          return flow.nn.grid_sample(x, grid, mode, padding, align_corners)
        end, { tolerance = 1e-5 })
      end
    end
  end)

  it("tells determinants", function()
    comes_back({ 3, 2, 4, 4 }, function(x) return flow.linalg.det(x) end)
    comes_back({ 5, 5 }, function(x) return flow.linalg.det(x) end)
  end)

  it("takes spectra of short times, and what hearing makes of them", function()
    comes_back({ 2, 900 }, function(x)
      local y = flow.signal.stft(x, 400, 160, { pad_end = true })
      local power = flow.math.reduce_sum(flow.math.square(y), { axis = -1 })
      local bands = flow.matmul(power, flow.signal.linear_to_mel_weight_matrix(20, 257, 16000, 60, 7600))
      return flow.signal.mfccs_from_log_mel_spectrograms(flow.math.log(bands + 1))
    end, { tolerance = 1e-4 })
    comes_back({ 2, 300 }, function(x)
      local window = flow.signal.inverse_stft_window_fn(16)
      return flow.signal.inverse_stft(flow.signal.stft(x, 64, 16), 64, 16, { window_fn = window })
    end, { tolerance = 1e-5 })
    for _, sizes in ipairs { { 12 }, { 3, 15 }, { 2, 3, 10 } } do  -- of one row, too, and of an odd number
      local count = sizes[#sizes]
      comes_back(sizes, function(x)
        return flow.signal.irfft(flow.signal.rfft(x, count + 3) * 2, count + 1)
      end, { tolerance = 1e-5 })
      comes_back(sizes, function(x)
        local spectrum = flow.signal.rfft(x, count - 2)
        local y = flow.gradients(flow.math.reduce_sum(spectrum * spectrum), x)
        local pairs_of_x = flow.stack({ x, y }, -1)
        return flow.signal.ifft(flow.signal.fft(pairs_of_x) * 3)
      end, { tolerance = 1e-5 })
    end
  end)

  for _, dtype in ipairs { "float32", "int32", "int64" } do
    it("divides and sums numbers of " .. dtype, function()
      local given = { dtype = dtype, reach = 9, tolerance = 1e-5 }
      comes_back({ 3, 4 }, function(x) return flow.math.reduce_sum(x, { axis = { 1 } }) end, given)
      for _, divisor in ipairs { 4, -4 } do
        local rest = comes_back({ 40 }, function(x) return flow.math.mod(x, divisor) end, given)
        local quotient = comes_back({ 40 }, function(x) return flow.math.floordiv(x, divisor) end, given)
        -- Only our own reader takes a Mod of floats without fmod.
        local last = { rest._nodes[#rest._nodes].op, quotient._nodes[#quotient._nodes].op }
        assert.same(dtype == "float32" and { "Where", "Where" } or { "Mod", "Where" }, last)
      end
    end)
  end

  it("rounds no quotient on the way, and loses nothing near 0", function()
    local inf = math.huge
    local function same_bits(list, body)
      local job, model = written({ #list }, body)
      local want, got = job(floats(list)), job_of(model, { #list })(floats(list))
      assert.is_true(np.allclose(got, want, { rtol = 0, atol = 0, equal_nan = true }), tostring(got) .. tostring(want))
    end
    for _, divisor in ipairs { 0.1, -0.3, 3, inf } do
      local numbers = { 1, 6, -1, 0.3, -2, 7, 0, 1e7, divisor }
      same_bits(numbers, function(x) return flow.math.mod(x, divisor) end)
      same_bits(numbers, function(x) return flow.math.floordiv(x, divisor) end)
    end
    local function close(list, body)
      local job, model = written({ #list }, body)
      local want, got = job(floats(list)), job_of(model, { #list })(floats(list))
      assert.is_true(np.allclose(got, want, { rtol = 1e-6, atol = 0 }), tostring(got) .. tostring(want))
    end
    close({ inf, -inf, 1, -1, 2, 0, 1e30 }, function(x)
      return flow.math.atan2(flow.reshape(x, { 7, 1 }), flow.reshape(x, { 1, 7 }))
    end)
    close({ 1e-10, 1e-5, -1e-9, 1e-30, 0.3, -0.7, 5, 0, inf, -1 }, function(x) return flow.math.log1p(x) end)
    close({ 1e-10, 1e-5, -1e-9, 1e-30, 0.3, -0.7, 5, 0, inf, -inf }, function(x) return flow.math.expm1(x) end)
  end)

  -- An attribute is a float32, so 0.1 would be 1e-9 off.
  it("has all digits of what is set in float64", function()
    for _, body in ipairs {
      function(x) return flow.nn.elu(x, 0.3) end, function(x) return flow.nn.leaky_relu(x, 0.1) end,
      function(x) return flow.nn.hardsigmoid(x) end, function(x) return flow.nn.hardswish(x) end,
      function(x) return flow.math.tan(x) end,
    } do
      local model = comes_back({ 20 }, body, { dtype = "float64", reach = 5, tolerance = 1e-14 })
      for _, entry in ipairs(model._nodes) do  -- which ONNX Runtime has of float32 alone
        assert.is_nil(({ Elu = true, HardSigmoid = true, HardSwish = true, Tan = true })[entry.op])
      end
    end
  end)

  it("keeps variables apart whose names are one in a file's reader", function()
    local job = flow.global_function {
      name = "net", inputs = { x = tp.Numpy.Placeholder { 2 } }, returns = tp.Numpy,
    } (function(x)
      local function weight(name, value)
        return flow.get_variable(name, { shape = { 2 }, initializer = flow.constant_initializer(value) })
      end
      return x * weight("w/a", 2) + weight("w.a", 3)
    end)
    job:export_onnx(path)
    local model = flow.onnx.load(path, { name = "again" })
    assert.equal(2, #require("moonflow.arguments").sorted_keys(model.variables))
    same({ 5, 7 }, job_of(model, { 2 })(floats { 1, 2 }))
  end)

  it("keeps bools to itself, and gives int8", function()
    local job, model = written({ 4 }, function(x)
      return flow.math.logical_and(x:gt(0), flow.math.logical_not(x:gt(2)))
    end)
    assert.equal("int8", model.outputs[1].dtype)
    local x = floats { -1, 1, 2, 3 }
    same({ 0, 1, 1, 0 }, job(x))
    same({ 0, 1, 1, 0 }, job_of(model, { 4 })(x))
  end)

  it("has numbers of classes in the types that ONNX Runtime takes", function()
    local function nodes_of(options, dtype)
      local job, model = written({ 3 }, function(x) return flow.one_hot(x, 4, options) end, nil, dtype)
      local x = np.array({ 2, 0, 3 }, dtype)
      same(job(x):totable(), job_of(model, { 3 }, dtype)(x))
      local ops = {}
      for i, entry in ipairs(model._nodes) do ops[i] = entry.op end
      return table.concat(ops, " ")
    end
    assert.equal("Constant OneHot", nodes_of({}, "int64"))
    assert.equal("Cast Constant OneHot", nodes_of({}, "int32"))
    for _, dtype in ipairs { "int8", "int32", "float16" } do
      local options = { dtype = dtype, axis = 0, on_value = 5, off_value = -1 }
      assert.equal("Cast OneHot Cast Where", nodes_of(options, "int32"))
    end
    local _, model = written({ 2 }, function(x) return flow.nn.relu(x) end, nil, "int64")
    assert.equal("Max", model._nodes[1].op)
    same({ 0, 7 }, job_of(model, { 2 }, "int64")(np.array({ -7, 7 }, "int64")))
  end)

  it("puts and adds rows, decides, and stops gradients", function()
    comes_back({ 4, 3 }, function(x)
      local at = np.array { { 2 }, { 0 }, { 2 }, { 4 } }:astype("int32")
      local base = flow.ones({ 5, 3 })
      local ids = whole { 1, 0, 1, 4 }
      return flow.concat({
        flow.scatter_nd(at, x, { 5, 3 }), flow.tensor_scatter_nd_add(base, at, x),
        flow.tensor_scatter_nd_update(base, whole { { 2 }, { 0 }, { 1 }, { 4 } }, x),
        flow.math.unsorted_segment_sum(x, ids, { num_segments = 5 }), flow.stop_gradient(x),
        flow.math.cumsum(x), flow.math.cumsum(x, { axis = 1, reverse = true, exclusive = true }),
      }, 0)
    end)
    comes_back({ 4, 3 }, function(x)
      local mean, variance = flow.nn.moments(x, { 0 }, true)
      return flow.concat({
        flow.cast(flow.math.reduce_any(x:gt(0.5), { axis = 0, keepdims = true }), "float32"),
        flow.cast(flow.math.reduce_all(x:gt(-0.5), { axis = { 0 }, keepdims = true }), "float32"),
        flow.math.reciprocal_no_nan(x - x), flow.math.xlogy(flow.nn.relu(x), x * x), flow.math.xdivy(x - x, x - x),
        mean, variance,
      }, 0)
    end)
  end)

  it("computes whole numbers as it does, where ONNX has no such operator for them", function()
    local function same_again(dtype, list, body, wanted)
      flow.clear_default_session()
      local x = np.array(list):astype(dtype)
      local job, model = written({ #list }, body, nil, dtype)
      same(wanted, job(x))
      local operators = {}
      for _, entry in ipairs(model._nodes) do operators[entry.op] = entry end
      same(wanted, job_of(model, { #list }, dtype)(x))
      return operators
    end
    -- Before opset 18 there is no Neg or Relu of numbers of a byte.
    assert.truthy(same_again("uint8", { 1, 2 }, function(x) return -x end, { 255, 254 }).Cast)
    assert.truthy(same_again("int8", { 100, -2 }, function(x) return flow.nn.relu(x) end, { 100, 0 }).Cast)
    same_again("int8", { 100, 2 }, function(x) return flow.math.reduce_prod(x, { axis = { 0 } }) end, 200)
    same_again("int32", { -3, 0, 3 }, function(x)
      return flow.clip_by_value(x, { min_value = -1, max_value = 2 ^ 40 })
    end, { -1, 0, 3 })
  end)

  it("tells how its result hangs on its input", function()
    local functions = {
      abs = flow.math.abs, cos = flow.math.cos, elu = flow.nn.elu, exp = flow.math.exp, gelu = flow.math.gelu,
      leaky_relu = flow.nn.leaky_relu, log = function(x) return flow.math.log(x + 2) end,
      log_softmax = flow.nn.log_softmax, reciprocal = function(x) return flow.math.reciprocal(x + 2) end,
      relu = flow.nn.relu, relu6 = function(x) return flow.nn.relu6(x * 8) end,
      rsqrt = function(x) return flow.math.rsqrt(x + 2) end, sigmoid = flow.math.sigmoid, sin = flow.math.sin,
      softmax = flow.nn.softmax, softplus = flow.math.softplus, sqrt = function(x) return flow.math.sqrt(x + 2) end,
      square = flow.math.square, swish = flow.nn.swish, tanh = flow.math.tanh,
      ["log_softmax of columns"] = function(x) return flow.nn.log_softmax(x, 0) end,
      ["softmax of columns"] = function(x) return flow.nn.softmax(x, 0) end,
      ["swish with a beta"] = function(x) return flow.nn.swish(x, 2) end,
    }
    -- Of several values, or with bounds and axes of their own.
    local composed = {
      acosh = function(x) return flow.math.acosh(x + 3) end,
      clip_by_value = function(x) return flow.clip_by_value(x, -0.3, 0.5) end,
      ["clip_by_value with one bound"] = function(x) return flow.clip_by_value(x, { min_value = -0.3 }) end,
      hardsigmoid = function(x) return flow.nn.hardsigmoid(x * 5) end,
      hardswish = function(x) return flow.nn.hardswish(x * 5) end,
      hardtanh = function(x) return flow.nn.hardtanh(x * 2) end,
      l2_normalize = function(x) return flow.math.l2_normalize(x, 0) end,
      ["l2_normalize that holds some"] = function(x) return flow.math.l2_normalize(x, { axis = 1, epsilon = 1.5 }) end,
      moments = function(x)
        local mean, variance = flow.nn.moments(x, { 0 })
        return mean * 2 + variance
      end,
      batch_normalization = function(x)
        return flow.layers.batch_normalization(x, {
          axis = 0, moving_variance_initializer = flow.random_uniform_initializer(0.5, 1), name = "norm" }) ^ 2
      end,
      layer_norm = function(x) return flow.layers.layer_norm(x, { begin_norm_axis = 1, name = "norm" }) end,
      rms_norm = function(x) return flow.layers.rms_norm(x, { name = "norm" }) end,
      ["the gradient of a norm's gradient"] = function(x)
        return flow.gradients(flow.nn.layer_norm(x, { begin_norm_axis = 1, epsilon = 1 }) * x, x)  -- 1: no cancelling
      end,
      ["the mean alone"] = function(x) return (flow.nn.moments(x, { -1 })) end,
      ["moments that stay"] = function(x)
        local _, variance = flow.nn.moments(x, { 1 }, true)
        return x * variance
      end,
      max_pool2d = function(x)
        local images = flow.reshape(x, { 1, 1, 3, 5 })
        local last = flow.reshape(x, { 1, 3, 5, 1 })
        return flow.reshape(flow.nn.max_pool2d(images, 3, 1, "SAME"), { 3, 5 })
          + flow.reshape(flow.nn.max_pool2d(last, 3, 1, "SAME", "NHWC"), { 3, 5 }) * x
      end,
      prelu = function(x) return flow.layers.prelu(x, { name = "slopes" }) end,
      reciprocal_no_nan = function(x) return flow.math.reciprocal_no_nan(flow.nn.relu(x) * 9) end,
      sigmoid_cross_entropy = function(x)
        return flow.nn.sigmoid_cross_entropy_with_logits(flow.math.sigmoid(x * 2), x)
      end,
      smooth_l1_loss = function(x) return flow.smooth_l1_loss(x, flow.zeros_like(x), { beta = 0.5 }) end,
      ["smooth_l1_loss without a knee"] = function(x)
        return flow.smooth_l1_loss(x, flow.zeros_like(x), { beta = 0 })
      end,
      softmax_cross_entropy = function(x) return flow.nn.softmax_cross_entropy_with_logits(x * x, x) end,
      sparse_softmax_cross_entropy = function(x)
        local labels = flow.math.argmin(x, 1)
        local column = flow.cast(flow.reshape(labels, { 3, 1 }), "int32")
        return flow.nn.sparse_softmax_cross_entropy_with_logits(labels, x)
          + flow.reshape(flow.nn.sparse_softmax_cross_entropy_with_logits(column, x * 2), { 3 })
      end,
      ["what is repeated"] = function(x)
        return flow.broadcast_to(flow.reshape(x, { 3, 1, 5 }), { 2, 3, 4, 5 }) ^ 2
      end,
      ["what is repeated in front"] = function(x) return flow.broadcast_to(x, { 2, 3, 5 }) ^ 2 end,
      ["what meets larger ones"] = function(x)
        return x * flow.slice(x, { 0, 0 }, { 1, 5 }) * flow.slice(x, { 0, 0 }, { 3, 1 })
      end,
    }
    for name, of in pairs(composed) do functions[name] = of end
    for name in ("acos asin asinh atan atanh cosh erf erfc expm1 log1p log_sigmoid negative sinh tan"):gmatch "%S+" do
      functions[name] = function(x) return flow.math[name](x * 0.9) end
    end
    functions.mish = flow.nn.mish
    for _, slope_of in pairs(functions) do
      comes_back({ 3, 5 }, function(x) return flow.gradients(slope_of(x) ^ 3, x) end, { tolerance = 1e-5 })
      flow.clear_default_session()
    end
    -- What an image's pixels have to do with the score of its class, and how badly an autoencoder tells it.
    comes_back({ 2, 1, 8, 8 }, function(x)
      local y = flow.layers.conv2d(x, 4, 3, { padding = "SAME", activation = flow.math.tanh, name = "conv" })
      local scores = flow.layers.dense(flow.reshape(y, { 2, -1 }), 3, { name = "out" })
      local slopes = flow.gradients(flow.math.reduce_max(scores, 1), x)
      local told = flow.nn.sigmoid_cross_entropy_with_logits(flow.math.sigmoid(x), slopes)
      return slopes + told
    end, { tolerance = 1e-5 })
  end)

  it("has the names of its inputs, and of its results those that are asked for", function()
    local function body(x) return flow.layers.dense(x, 2, { name = "fc" }) end
    local _, model = written({ 1, 3 }, body)
    assert.equal("x", model.inputs[1].name)
    assert.equal("fc-bias_add", model.outputs[1].name)
    flow.clear_default_session()
    _, model = written({ 1, 3 }, body, { outputs = { "action" } })
    assert.equal("action", model.outputs[1].name)
  end)

  it("casts a bias of float32 that is added to other floats", function()
    local function bias_of(count)
      return flow.get_variable("bias", { shape = { count }, initializer = flow.random_uniform_initializer() })
    end
    local function operators_of(shape, body)
      local operators = {}
      for i, entry in ipairs(comes_back(shape, body, { dtype = "float16", tolerance = 4e-3 })._nodes) do  -- 10 bits
        operators[i] = entry.op
      end
      flow.clear_default_session()
      return table.concat(operators, " ")
    end
    assert.equal("Gemm Cast Add", operators_of({ 3, 3 }, function(x)
      return flow.nn.bias_add(flow.matmul(x, x), bias_of(3))
    end))
    assert.equal("Cast Reshape Add", operators_of({ 2, 3, 4 }, function(x) return flow.nn.bias_add(x, bias_of(3)) end))
  end)

  it("may give an input, a weight, and one value twice", function()
    local job = flow.global_function {
      name = "net", inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Tuple { tp.Numpy, tp.Numpy, tp.Numpy,
                                                                                      tp.Numpy },
    } (function(x)
      local y = flow.math.exp(x)
      return x, flow.get_variable("w", { shape = { 2 }, initializer = flow.ones_initializer() }), y, y
    end)
    local fine, problem = pcall(job.export_onnx, job, path, { outputs = { "a", "x", "c", "d" } })
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("outputs has 'x', which is an input too", 1, true), tostring(problem))
    job:export_onnx(path, { outputs = { "a", "b", "c", "d" } })
    local model = flow.onnx.load(path, { name = "again" })
    local again = flow.global_function {
      name = "again", inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Dict {
        a = tp.Numpy, b = tp.Numpy, c = tp.Numpy, d = tp.Numpy },
    } (function(x)
      local a, b, c, d = model(x)
      return { a = a, b = b, c = c, d = d }
    end)
    local got = again(floats { 0, 0 })
    for name, wanted in pairs { a = { 0, 0 }, b = { 1, 1 }, c = { 1, 1 }, d = { 1, 1 } } do same(wanted, got[name]) end
  end)

  it("has the weights of the moment, and leaves constants what they are", function()
    local job = flow.global_function {
      name = "net", inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Numpy,
    } (function(x)
      return x * flow.get_variable("w", { shape = { 2 }, initializer = flow.zeros_initializer() }) + floats { 1, 2 }
    end)
    job(floats { 0, 0 })
    flow.load_variables { w = floats { 3, 4 } }
    job:export_onnx(path)
    local model = flow.onnx.load(path)
    local names = {}
    for name in pairs(model.variables) do names[#names + 1] = name end
    assert.same({ "w" }, names)
    same({ 3, 4 }, model.variables.w)
  end)

  it("has the keys of its results as their names", function()
    local job = flow.global_function {
      name = "both", inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Dict { twice = tp.Numpy, x = tp.Numpy },
    } (function(x) return { twice = 2 * x, x = -x } end)
    job:export_onnx(path)
    local names = {}
    for _, output in ipairs(flow.onnx.load(path).outputs) do names[output.name] = true end
    assert.same({ twice = true, x_1 = true }, names)  -- one name is the input's
  end)

  it("is refused where ONNX has no word for an op, or where it learns", function()
    raises("lgamma 'lg' (", function() written({ 2 }, function(x) return flow.math.lgamma(x, { name = "lg" }) end) end)
    raises("random_int 'ids' (", function()
      written({ 2 }, function(x)
        return flow.cast(flow.random.randint(0, 2 ^ 40, { 2 }, { dtype = flow.int64, name = "ids" }), flow.float) + x
      end)
    end)
    raises("net writes a variable in each run (assign_add at ", function()
      written({ 2 }, function(x)
        local sum = flow.get_variable("sum", { shape = { 2 }, initializer = flow.zeros_initializer() })
        flow.assign_add(sum, x)
        return sum + x
      end)
    end)
    raises("outputs has 2 names, and net returns 1 values", function()
      written({ 2 }, function(x) return x end, { outputs = { "a", "b" } })
    end)
    local train = flow.global_function { name = "train", type = "train", returns = tp.Numpy } (function()
      local loss = flow.get_variable("w", { shape = { 1 }, initializer = flow.ones_initializer() })
      flow.optimizer.SGD(0.1):minimize(loss)
      return loss
    end)
    raises("train trains; define a job of type \"predict\"", function() train:export_onnx(path) end)
  end)
end)
