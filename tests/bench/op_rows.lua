-- The rows of --ops: each op of ops.lua, predicting and training, without a goal but to be ahead.
local rows = {}
for _, op in ipairs(require "ops") do
  rows[#rows + 1] = { name = op.name, unit = "us" }
  if op.trains then rows[#rows + 1] = { name = op.name .. ", training", unit = "us" } end
end
return rows
