--- Other names of functions, by which OneFlow, TensorFlow or PyTorch has them.

local ops = require "moonflow.ops"

local aliases = {
  ["linalg.matmul"] = "matmul", ["math.matmul"] = "matmul",
  ["math.relu"] = "nn.relu", ["nn.gelu"] = "math.gelu", ["nn.sigmoid"] = "math.sigmoid", ["nn.tanh"] = "math.tanh",
  ["nn.log_softmax"] = "nn.logsoftmax", ["math.sigmoid_v2"] = "math.sigmoid", ["math.tanh_v2"] = "math.tanh",
  ["math.clip_by_value"] = "clip_by_value", ["math.clip"] = "clip_by_value", ["math.clamp"] = "clip_by_value",
  ["math.clip_by_scalar"] = "clip_by_value", ["clip"] = "clip_by_value", ["clip_by_scalar"] = "clip_by_value",
  ["clamp"] = "clip_by_value", ["math.floormod"] = "math.mod",
  ["math.smooth_l1_loss"] = "smooth_l1_loss", ["nn.smooth_l1_loss"] = "smooth_l1_loss",
  ["random.CoinFlip"] = "random.coin_flip",
  ["nn.tril"] = "math.tril", ["nn.fused_scale_tril"] = "math.fused_scale_tril",
  ["in_top_k"] = "math.in_top_k", ["unsorted_segment_sum"] = "math.unsorted_segment_sum",
  ["math.broadcast_to_compatible_with"] = "broadcast_to_compatible_with",
  ["math.two_stage_reduce_max"] = "math.reduce_max", ["math.two_stage_reduce_min"] = "math.reduce_min",
}

for path, of in pairs(aliases) do ops.alias(path, of) end
