-- The models of the benchmark. Those of torch_peer.py and onnx_peer.py are the same, layer for layer.
local flow = require "moonflow"
local np = flow.np

local models = {}

--- Two 5x5 convolutions of 32 and 64 filters with pooling, 512 hidden units, dropout 0.5. Images (batch, 1, 28, 28).
--- init: of the weights; nil: the layers' own.
function models.lenet(images, train, init)
  local function block(x, filters, name)
    local conv = flow.layers.conv2d(x, filters, 5, {
      padding = "SAME", activation = flow.nn.relu, kernel_initializer = init, name = name })
    return flow.nn.max_pool2d(conv, { ksize = 2, strides = 2, padding = "SAME" })
  end
  local pooled = block(block(images, 32, "lenet-conv1"), 64, "lenet-conv2")
  local flat = flow.reshape(pooled, { pooled.shape[0], -1 })
  local hidden = flow.layers.dense(flat, 512, {
    activation = flow.nn.relu, kernel_initializer = init, name = "lenet-dense1" })
  if train then hidden = flow.nn.dropout(hidden, { rate = 0.5 }) end
  return flow.layers.dense(hidden, 10, { kernel_initializer = init, name = "lenet-dense2" })
end

--- 784-512-10. Images (batch, 1, 28, 28).
function models.mlp(images)
  local flat = flow.reshape(images, { images.shape[0], -1 })
  local hidden = flow.layers.dense(flat, 512, { activation = flow.nn.relu, name = "mlp-hidden" })
  return flow.layers.dense(hidden, 10, { name = "mlp-output" })
end

--- One layer of 4096 units, as nets that write texts have many. Values (batch, 4096).
function models.wide(values) return flow.layers.dense(values, 4096, { name = "wide" }) end

--- The next word of a text: the 12 layers of 12 heads of GPT-2 with 124 million weights (Radford and others, 2019),
--- over 128 earlier words, whose keys and values are kept. What the word is read as, (1, 768); logits (1, 50257).
function models.writer(x)
  local width, heads, words, earlier = 768, 12, 50257, 128
  for i = 1, 12 do
    local name = ("writer-%d-"):format(i)
    local function dense(y, units, part) return flow.layers.dense(y, units, { name = name .. part }) end
    local function kept(part)
      return flow.get_variable(name .. part, { shape = { 1, earlier, heads, width / heads }, trainable = false,
                                               initializer = flow.random_normal_initializer() })
    end
    local y = flow.layers.layer_norm(x, { name = name .. "norm1" })
    local function of_heads(part) return flow.reshape(dense(y, width, part), { 1, 1, heads, -1 }) end
    local seen = flow.nn.dot_product_attention(of_heads("query"), of_heads("key"), of_heads("value"),
      { past_key = kept("keys"), past_value = kept("values") })
    x = x + dense(flow.reshape(seen, { 1, width }), width, "out")
    local hidden = dense(flow.layers.layer_norm(x, { name = name .. "norm2" }), 4 * width, "hidden")
    x = x + dense(flow.math.gelu(hidden), width, "output")
  end
  local table_of_words = flow.get_variable("writer-words", { shape = { words, width },
                                                             initializer = flow.random_normal_initializer() })
  return flow.matmul(flow.layers.layer_norm(x, { name = "writer-norm" }), table_of_words, { transpose_b = true })
end

--- ResNet-18 for images of CIFAR's size, (batch, 3, 32, 32): a 3x3 stem without pooling, then four stages of two
--- residual blocks with 64, 128, 256 and 512 channels.
function models.resnet18(images)
  local function conv(x, filters, size, strides, name)
    local pad = math.floor(size / 2)
    return flow.layers.conv2d(x, filters, size, { strides = strides, padding = { pad, pad }, use_bias = false,
                                                  name = name })
  end
  local norm = flow.layers.batch_normalization
  local function block(x, filters, strides, name)
    local y = conv(x, filters, 3, strides, name .. "-conv1")
    y = flow.nn.relu(norm(y, { name = name .. "-norm1" }))
    y = norm(conv(y, filters, 3, 1, name .. "-conv2"), { name = name .. "-norm2" })
    if strides ~= 1 or x.shape[1] ~= filters then
      x = norm(conv(x, filters, 1, strides, name .. "-shortcut"), { name = name .. "-norm3" })
    end
    return flow.nn.relu(y + x)
  end
  local x = flow.nn.relu(norm(conv(images, 64, 3, 1, "resnet-stem"), { name = "resnet-norm" }))
  for stage, filters in ipairs { 64, 128, 256, 512 } do
    x = block(x, filters, stage > 1 and 2 or 1, "resnet-" .. stage .. "a")
    x = block(x, filters, 1, "resnet-" .. stage .. "b")
  end
  return flow.layers.dense(flow.math.reduce_mean(x, { axis = { 2, 3 } }), 10, { name = "resnet-output" })
end

local mobilenet_stages = {  -- widening, filters, blocks, strides of the first
  { 1, 16, 1, 1 }, { 6, 24, 2, 2 }, { 6, 32, 3, 2 }, { 6, 64, 4, 2 }, { 6, 96, 3, 1 }, { 6, 160, 3, 2 },
  { 6, 320, 1, 1 },
}

--- MobileNetV2 (Sandler and others, 2018) in full width, as cameras and robots have it: each block widens its channels
--- six times, convolves them one by one, and narrows them again. Images (batch, 3, height, width).
function models.mobilenet(images)
  local count = 0
  local function conv(x, filters, size, strides, groups)
    count = count + 1
    local pad, name = math.floor(size / 2), "mobilenet-" .. count
    x = flow.layers.conv2d(x, filters, size, { strides = strides, padding = { pad, pad }, groups = groups,
                                               use_bias = false, name = name })
    return flow.layers.batch_normalization(x, { name = name .. "-norm" })
  end
  local function block(x, filters, strides, widening)
    local y, channels = x, x.shape[1] * widening
    if widening > 1 then y = flow.nn.relu6(conv(y, channels, 1, 1, 1)) end
    y = flow.nn.relu6(conv(y, channels, 3, strides, channels))
    y = conv(y, filters, 1, 1, 1)
    return strides == 1 and x.shape[1] == filters and x + y or y
  end
  local x = flow.nn.relu6(conv(images, 32, 3, 2, 1))
  for _, stage in ipairs(mobilenet_stages) do
    for i = 1, stage[3] do x = block(x, stage[2], i == 1 and stage[4] or 1, stage[1]) end
  end
  x = flow.nn.relu6(conv(x, 1280, 1, 1, 1))
  return flow.layers.dense(flow.math.reduce_mean(x, { axis = { 2, 3 } }), 10, { name = "mobilenet-output" })
end

-- What a tool that quantises makes of such a net for prediction, and reading its file of that: weights and what layers
-- give are bytes, sums become bytes at once, and where two meet they are floats.
local function in_bytes(name)
  local bytes, count, rng = {}, 0, np.random.default_rng(1)
  local step = 0.05  -- what a byte is worth

  -- A convolution of bytes about `zero` to bytes about `to`, or to floats without one. About 0 what is negative is cut
  -- off, as by relu.
  function bytes.conv(x, zero, filters, size, strides, groups, to)
    count = count + 1
    local pad, channels = math.floor(size / 2), x.shape[1]
    local weights = rng:integers(-127, 128, { filters, channels / groups, size, size }):astype("int8")
    local worth = np.full({ filters }, (to and 1 or step) / (127 * math.sqrt(channels / groups) * size))
    local function constant(values) return flow.identity(values) end
    return flow.nn.quantized_conv2d(x, constant(weights), constant(worth), constant(np.zeros { filters }), {
      strides = strides, padding = { pad, pad }, groups = groups, zero_point = zero, dtype = to and flow.uint8,
      out_zero_point = to, name = name .. "-" .. count,
    })
  end
  function bytes.of(x, zero)
    local places = flow.math.round(x * (1 / step)) + zero
    return flow.cast(flow.clip(places, { min_value = 0, max_value = 255 }), flow.uint8)
  end
  function bytes.floats(x, zero) return (flow.cast(x, flow.float) - zero) * step end
  return bytes
end

--- models.resnet18 in bytes.
function models.resnet18_in_bytes(images)
  local bytes = in_bytes "resnet-bytes"
  local function block(x, filters, strides)
    local y = bytes.conv(bytes.conv(x, 0, filters, 3, strides, 1, 0), 0, filters, 3, 1, 1)
    local is_wider = strides ~= 1 or x.shape[1] ~= filters
    local shortcut = is_wider and bytes.conv(x, 0, filters, 1, strides, 1) or bytes.floats(x, 0)
    return bytes.of(y + shortcut, 0)
  end
  local x = bytes.conv(bytes.of(images, 0), 0, 64, 3, 1, 1, 0)
  for stage, filters in ipairs { 64, 128, 256, 512 } do
    x = block(block(x, filters, stage > 1 and 2 or 1), filters, 1)
  end
  x = flow.math.reduce_mean(bytes.floats(x, 0), { axis = { 2, 3 } })
  return flow.layers.dense(x, 10, { name = "resnet-classes" })
end

--- models.mobilenet in bytes.
function models.mobilenet_in_bytes(images)
  local bytes, middle = in_bytes "mobilenet-bytes", 128
  local function block(x, filters, strides, widening)
    local y, zero, channels = x, middle, x.shape[1] * widening
    if widening > 1 then y, zero = bytes.conv(y, zero, channels, 1, 1, 1, 0), 0 end
    y = bytes.conv(y, zero, channels, 3, strides, channels, 0)
    if strides ~= 1 or x.shape[1] ~= filters then return bytes.conv(y, 0, filters, 1, 1, 1, middle) end
    return bytes.of(bytes.conv(y, 0, filters, 1, 1, 1) + bytes.floats(x, middle), middle)
  end
  local x = bytes.conv(bytes.of(images, 0), 0, 32, 3, 2, 1, middle)
  for _, stage in ipairs(mobilenet_stages) do
    for i = 1, stage[3] do x = block(x, stage[2], i == 1 and stage[4] or 1, stage[1]) end
  end
  x = bytes.floats(bytes.conv(x, middle, 1280, 1, 1, 1, 0), 0)
  return flow.layers.dense(flow.math.reduce_mean(x, { axis = { 2, 3 } }), 10, { name = "mobilenet-classes" })
end

--- Two layers of width 256 with 4 heads and 1024 hidden units, normalised after each part, dropout 0.1; the mean over
--- the sequence goes to 10 classes. Inputs (batch, length, 256).
function models.transformer(x)
  local batch, length, width = x.shape[0], x.shape[1], 256
  local dense, dropped = flow.layers.dense, { rate = 0.1 }
  local function normal(y, name) return flow.layers.layer_norm(y, { begin_norm_axis = 2, name = name }) end
  for i = 1, 2 do
    local name = "transformer-" .. i
    local function heads(part)
      return flow.reshape(dense(x, width, { name = name .. "-" .. part }), { batch, length, 4, 64 })
    end
    local seen = flow.nn.dot_product_attention(heads("query"), heads("key"), heads("value"), dropped)
    seen = dense(flow.reshape(seen, { batch, length, width }), width, { name = name .. "-out" })
    x = normal(x + flow.nn.dropout(seen, dropped), name .. "-norm1")
    local hidden = dense(x, 1024, { activation = flow.nn.relu, name = name .. "-hidden" })
    hidden = dense(flow.nn.dropout(hidden, dropped), width, { name = name .. "-output" })
    x = normal(x + flow.nn.dropout(hidden, dropped), name .. "-norm2")
  end
  return dense(flow.math.reduce_mean(x, { axis = { 1 } }), 10, { name = "transformer-classes" })
end

--- The encoder of sentences of MiniLM (Wang and others, 2020), as a tool that quantises while a net runs makes it: 6
--- layers of width 384 with 12 heads and 1536 hidden units, whose weights are bytes, and what they are multiplied by
--- becomes bytes before each. Words (length, 384).
function models.minilm_in_bytes(x)
  local length, width, heads = x.shape[0], x.shape[1], 12
  local size, rng = width / heads, np.random.default_rng(1)
  -- Layers of so many units, each of them over all of x.
  local function dense(y, units, names)
    local places, scale, zero = flow.nn.dynamic_quantize(y)
    local outputs = {}
    for i, name in ipairs(names) do
      local channels = y.shape[1]
      local weights = rng:integers(-127, 128, { units, channels }):astype("int8")
      local worth = np.full({ units }, 1 / (73 * math.sqrt(channels)))  -- so that outputs are as large as inputs
      outputs[i] = flow.nn.quantized_dense(places, flow.identity(weights), {
        scale = scale * flow.identity(worth), bias = flow.identity(np.zeros { units }), zero = zero, name = name,
      })
    end
    return unpack(outputs)
  end
  local function of_heads(y, perm) return flow.transpose(flow.reshape(y, { length, heads, size }), { perm = perm }) end
  local function normal(y, name) return flow.layers.layer_norm(y, { begin_norm_axis = 1, name = name }) end
  for i = 1, 6 do
    local name = "minilm-" .. i
    local query, key, value = dense(x, width, { name .. "-query", name .. "-key", name .. "-value" })
    local scores = flow.matmul(of_heads(query, { 1, 0, 2 }), of_heads(key, { 1, 2, 0 })) / math.sqrt(size)
    local seen = flow.matmul(flow.nn.softmax(scores), of_heads(value, { 1, 0, 2 }))
    seen = flow.reshape(flow.transpose(seen, { perm = { 1, 0, 2 } }), { length, width })
    x = normal(x + dense(seen, width, { name .. "-out" }), name .. "-norm1")
    local hidden = flow.nn.gelu(dense(x, 4 * width, { name .. "-hidden" }))
    x = normal(x + dense(hidden, width, { name .. "-output" }), name .. "-norm2")
  end
  return x
end

--- What an agent asks at every step: 8-64-64-10 with tanh. Observations (batch, 8).
function models.policy(observations)
  local function hidden(x, name) return flow.layers.dense(x, 64, { activation = flow.math.tanh, name = name }) end
  return flow.layers.dense(hidden(hidden(observations, "policy-1"), "policy-2"), 10, { name = "policy-actions" })
end

--- Gated recurrent units of width 32, whose last state goes to 10 classes. Sequences (batch, length, 8).
function models.gru(sequences)
  local _, state = flow.layers.gru(sequences, 32, { name = "gru" })
  return flow.layers.dense(state, 10, { name = "gru-classes" })
end

return models
