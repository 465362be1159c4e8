-- Are two runs of LeNet with one seed the same, bit for bit? Trains the network of the sample and prints a checksum of
-- all losses; run it again, or with another OMP_NUM_THREADS, and compare. MNIST as data.load_mnist finds it.
--   build/moonflow tests/bench/repeat.lua [steps]
local flow = require "moonflow"
local tp = flow.typing

local STEPS, BATCH = tonumber((...)) or 200, 100
flow.set_seed(7)

local train_job = flow.global_function {
  type = "train",
  inputs = { images = tp.Numpy.Placeholder({ BATCH, 1, 28, 28 }),
             labels = tp.Numpy.Placeholder({ BATCH }, { dtype = flow.int32 }) },
  returns = tp.Numpy,
} (function(images, labels)
  local init = flow.truncated_normal(0.1)
  local function block(x, filters, name)
    local conv = flow.layers.conv2d(x, filters, 5, {
      padding = "SAME", activation = flow.nn.relu, name = name, kernel_initializer = init })
    return flow.nn.max_pool2d(conv, { ksize = 2, strides = 2, padding = "SAME" })
  end
  local pooled = block(block(images, 32, "conv1"), 64, "conv2")
  local flat = flow.reshape(pooled, { BATCH, -1 })
  local hidden = flow.layers.dense(flat, 512, { activation = flow.nn.relu, kernel_initializer = init, name = "dense1" })
  hidden = flow.nn.dropout(hidden, { rate = 0.5, name = "dropout" })
  local logits = flow.layers.dense(hidden, 10, { kernel_initializer = init, name = "dense2" })
  local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
  flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler({}, { 0.1 }), { momentum = 0 }):minimize(loss)
  return loss
end)

-- FNV-1a over the bytes of every loss, in 32 bits.
local hash, bit = 2166136261, require "bit"
local function add(bytes)
  for i = 1, #bytes do
    hash = bit.bxor(hash, bytes:byte(i)) % 4294967296
    hash = (hash % 65536 * 16777619 + math.floor(hash / 65536) * 16777619 % 65536 * 65536) % 4294967296
  end
end

local last
local train = flow.data.load_mnist(BATCH)
for i, images, labels in train:batches() do
  if i == STEPS then break end
  last = train_job(images, labels)
  add(last:tobytes())
end
print(("%d steps, last loss %.9g, checksum of all losses %08x"):format(STEPS, last:mean(), hash))
