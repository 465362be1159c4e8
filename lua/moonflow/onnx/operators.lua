--- The operators of ONNX that can be read: a table from a name to the function that applies the operator to a node
--- (onnx/node) and gives its outputs in their order, as far as anybody wants them.

local operators = {}

local families = {
  "elementwise", "arrays", "indices", "layers", "products", "resize", "sample", "recurrent", "attention", "quantized",
  "fused", "spectra", "random", "losses", "loops", "columns", "sequences", "table_rows", "trees",
}
for _, family in ipairs(families) do
  for name, apply in pairs(require("moonflow.onnx." .. family)) do operators[name] = apply end
end

return operators
