-- What the benchmark measures, in the order of its page. A row is one piece of work, known by its name to us
-- (ours.lua) and to the peers (torch_peer.py, onnx_peer.py). Where peers do it too, `floor` and `target` say how many
-- times as fast as the best of them we are to be with 1 and 2 threads; else they bound the value itself.
--   unit: of what is shown; us and ms are per call or training step, of the whole batch
--   fresh: needs a process of its own for every measurement
--   own: floor and target bound our value, whatever the peers do
local function both(ratio) return { ratio, ratio } end

return {
  { name = "LeNet training", unit = "ms", floor = both(2.2), target = both(3) },
  { name = "LeNet training bf16", unit = "ms", floor = both(2.0), target = both(2.7) },
  { name = "MLP training", unit = "ms", floor = { 1.35, 1.8 }, target = { 1.5, 2.1 } },
  { name = "MLP training bf16", unit = "ms", floor = both(1.8), target = { 2.1, 2.8 } },
  { name = "LeNet predict, batch 1", unit = "us", floor = both(1.5), target = both(2.0) },
  { name = "LeNet predict, batch 100", unit = "ms", floor = both(2.0), target = both(2.6) },
  { name = "MLP predict, batch 1", unit = "us", floor = both(1.15), target = { nil, 1.6 } },
  { name = "MLP predict, batch 1, bf16", unit = "us", target = { nil, 2.8 } },
  { name = "MLP predict, batch 100", unit = "us", floor = both(1.0), target = { nil, 1.2 } },
  { name = "ResNet-18 training", unit = "ms", floor = both(1.2), target = both(1.8) },
  { name = "ResNet-18 predict", unit = "ms", floor = both(1.1), target = both(1.5) },
  { name = "transformer training", unit = "ms", floor = both(1.3), target = both(2) },
  { name = "ResNet-18 training bf16", unit = "ms" },
  { name = "ResNet-18 predict bf16", unit = "ms" },
  { name = "transformer training bf16", unit = "ms" },
  { name = "MobileNetV2 training, batch 32", unit = "ms" },
  { name = "MobileNetV2 predict, batch 1", unit = "ms" },
  { name = "ResNet-18 predict in bytes, batch 1", unit = "ms" },
  { name = "MobileNetV2 predict in bytes, batch 1", unit = "ms" },
  { name = "MiniLM predict in bytes, 128 words", unit = "ms" },
  { name = "MiniLM predict in bytes, 8 words", unit = "ms" },
  { name = "dense 4096, batch 1", unit = "us" },
  { name = "dense 4096, batch 1, 8 bits", unit = "us" },
  { name = "a word of a text, 124 million weights", unit = "ms" },
  { name = "a word of a text, 124 million weights, 8 bits", unit = "ms" },
  { name = "policy predict, batch 1", unit = "us" },
  { name = "policy training, batch 32", unit = "us" },
  { name = "GRU training, 20 steps", unit = "us" },
  { name = "call of relu(x + 1) on 5 floats", unit = "us", own = true, floor = both(0.6), target = both(0.2) },
  { name = "watch of the logits at every LeNet step", unit = "% slower", own = true, floor = both(1),
    target = both(0.3) },
  { name = "graph build and first compile of LeNet training", unit = "ms", own = true, fresh = true,
    floor = both(100), target = both(30) },
  { name = "start of the process to the first relu(x + 1)", unit = "ms", own = true, fresh = true, floor = both(60),
    target = both(25) },
  { name = "peak memory of LeNet training", unit = "MiB", fresh = true, floor = both(2), target = both(4) },
  -- Without a goal: how many times as fast as one after the other, and what the calls of the language cost.
  { name = "LeNet training while batches are prepared", unit = "x" },
  { name = "delivery of a watch, beside its call", unit = "us" },
  { name = "asynchronous call with its callback", unit = "us" },
  { name = "prepared call of relu(x + 1) on 5 floats", unit = "us" },
  { name = "prepared call of the policy, batch 1", unit = "us" },
  { name = "prepared call of LeNet, batch 1", unit = "us" },
  { name = "prepared call of MobileNetV2, batch 1", unit = "ms" },
}
