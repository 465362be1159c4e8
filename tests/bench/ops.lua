-- Single ops, as the benchmark asks for them by --ops: { name, shape of x, what is computed of it, options }. PyTorch's
-- side is torch_ops.py.
--   positive: x lies between 0.1 and 1, else between -1 and 1
--   predicts: it has no gradient
local flow = require "moonflow"
local m, nn = flow.math, flow.nn

local ops = {}
local function add(name, shape, body, options)
  options = options or {}
  ops[#ops + 1] = { name = name, shape = shape, body = body, low = options.positive and 0.1 or -1,
                    trains = not options.predicts }
end

local matrix, images = { 256, 1024 }, { 16, 32, 32, 32 }

for _, name in ipairs { "abs", "sin", "tanh", "sigmoid", "gelu", "erf", "softplus", "atan" } do
  add(name, matrix, m[name])
end
for _, name in ipairs { "exp", "log", "log1p", "sqrt", "rsqrt", "lgamma" } do
  add(name, matrix, m[name], { positive = true })
end
for _, name in ipairs { "relu", "leaky_relu", "elu", "swish", "mish", "hardswish" } do add(name, matrix, nn[name]) end
add("pow 2.5", matrix, function(x) return x ^ 2.5 end, { positive = true })
add("where", matrix, function(x) return flow.where(m.greater(x, 0), x, x * 2) end)

add("sum of all", matrix, function(x) return m.reduce_sum(x) end)
for axis = 0, 1 do
  add("sum over axis " .. axis, matrix, function(x) return m.reduce_sum(x, { axis = axis }) end)
  add("max over axis " .. axis, matrix, function(x) return m.reduce_max(x, { axis = axis }) end)
  add("variance over axis " .. axis, matrix, function(x) return m.reduce_variance(x, { axis = axis }) end)
  add("softmax over axis " .. axis, matrix, function(x) return nn.softmax(x, { axis = axis }) end)
  add("argmax over axis " .. axis, matrix, function(x) return m.argmax(x, axis) end, { predicts = true })
end
add("log_softmax", matrix, function(x) return nn.log_softmax(x) end)
add("cross entropy", matrix, function(x) return nn.sparse_softmax_cross_entropy_with_logits(m.argmax(x, 1), x) end)
add("sort", { 64, 1024 }, function(x) return flow.sort(x) end, { predicts = true })
add("top_k 5", { 64, 1024 }, function(x) return (m.top_k(x, 5)) end, { predicts = true })

add("transpose", { 512, 512 }, function(x) return flow.transpose(x, { 1, 0 }) end)
add("transpose of heads", { 16, 32, 16, 32 }, function(x) return flow.transpose(x, { 0, 2, 1, 3 }) end)
add("concat", { 128, 512 }, function(x) return flow.concat({ x, x, x }, { axis = 1 }) end)
add("slice", { 512, 1024 }, function(x) return flow.slice(x, { 1, 3 }, { 500, 1000 }) end)
add("pad", { 16, 16, 30, 30 }, function(x) return flow.pad(x, { { 0, 0 }, { 0, 0 }, { 1, 1 }, { 1, 1 } }) end)

add("layer_norm", matrix, function(x) return nn.layer_norm(x) end)
add("l2_normalize", matrix, function(x) return m.l2_normalize(x, { axis = 1 }) end)
add("batch norm", images, function(x) return flow.layers.batch_normalization(x, { axis = 1, name = "norm" }) end)
add("group norm", images, function(x) return nn.GroupNorm(x, { num_groups = 8, affine = false }) end)
add("instance norm", images, function(x) return nn.InstanceNorm2d(x, { affine = false }) end)

local function pool(kind, ksize, strides)
  return function(x) return nn[kind](x, { ksize = ksize, strides = strides, padding = "VALID" }) end
end
add("max pool 2x2", images, pool("max_pool2d", 2, 2))
add("max pool 3x3, stride 2", images, pool("max_pool2d", 3, 2))
add("average pool 2x2", images, pool("avg_pool2d", 2, 2))
add("average pool 3x3, stride 1", images, pool("avg_pool2d", 3, 1))
add("upsample 2x", { 16, 32, 16, 16 }, function(x) return flow.layers.upsample_2d(x, { size = 2 }) end)

local function conv(name, shape, filters, kernel, options)
  options.name, options.use_bias = name, false
  add(name, shape, function(x) return flow.layers.conv2d(x, filters, kernel, options) end)
end
conv("conv 3x3", images, 32, 3, { padding = "SAME" })
conv("conv 3x3, stride 2", images, 64, 3, { padding = "SAME", strides = 2 })
conv("conv 3x3, batch 1", { 1, 16, 32, 32 }, 16, 3, { padding = "SAME" })
conv("conv 1x1", { 16, 64, 16, 16 }, 128, 1, {})
conv("conv 3x3, dilated", images, 32, 3, { padding = "SAME", dilation_rate = 2 })
conv("conv 3x3, 4 groups", { 16, 64, 16, 16 }, 64, 3, { padding = "SAME", groups = 4 })
conv("conv 3x3, depthwise", { 16, 64, 32, 32 }, 64, 3, { padding = "SAME", groups = 64 })
conv("conv 8x8, stride 4", { 32, 4, 84, 84 }, 32, 8, { padding = "VALID", strides = 4 })
add("conv transposed 4x4", { 16, 32, 16, 16 }, function(x)
  return flow.layers.conv2d_transpose(x, 16, { kernel_size = 4, strides = 2, padding = "SAME", use_bias = false,
    name = "conv transposed" })
end)
for _, size in ipairs { 512, 1000, 8192, 10007 } do  -- a power of two, other factors, a large power, a prime
  add("rfft of " .. size, { 8, size }, function(x) return flow.signal.rfft(x) end)
end
add("stft", { 8, 16000 }, function(x) return flow.signal.stft(x, 512, 160) end)
add("matmul", { 512, 512 }, function(x) return flow.matmul(x, x) end)
add("matmul of 4x4", { 10000, 4, 4 }, function(x) return flow.matmul(x, x) end)
add("matmul of 64", { 64, 32, 64 }, function(x) return flow.matmul(x, x, { transpose_b = true }) end)
add("dense", { 64, 1024 }, function(x) return flow.layers.dense(x, 1024, { name = "dense" }) end)

return ops
