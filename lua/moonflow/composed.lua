--- The functions of `flow` that are put together from ops, layers among them. Each family is a file, which adds its own
-- to ops.functions; those further down are made of those above too.

for _, family in ipairs {
  "arrays", "jacobians", "math", "linalg", "picks", "random", "segments", "nn", "signal", "images", "volumes",
  "transposed", "resampling", "losses", "ctc", "layers", "recurrent", "distributed", "ported", "names",
} do require("moonflow.composed." .. family) end
