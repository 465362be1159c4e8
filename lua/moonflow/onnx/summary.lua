--- The table of what a model of ONNX computes, `model:summary()`: its values by the names that `outputs` of
--- flow.onnx.load takes.

local tables = require "moonflow.summary"

local summary = {}

--- The table as text.
--- @param model table  of flow.onnx; `model.types` are the types of its values in the last job, by name, where there
---                     is one: what was known while that was traced is not among them, and is left out
function summary.text(model)
  local rows, total, counted = { { "value", "operator", "output", "parameters" } }, 0, {}
  for _, raw in ipairs(model._nodes) do
    local parameters = 0
    for _, input in ipairs(raw.inputs) do
      local weight = model._weights[input]
      if weight and not counted[input] then
        parameters, counted[input] = parameters + weight.value.shape:count(), true  -- counted where it is read first
      end
    end
    total = total + parameters
    for i, name in ipairs(raw.outputs) do
      local kind = model.types and model.types[name]
      if name ~= "" and raw.op ~= "Constant" and (kind or not model.types) then
        local count = i == 1 and parameters > 0 and tables.marked(parameters) or ""
        rows[#rows + 1] = { name, raw.op, kind or "", count }
      end
    end
  end
  local text = tostring(model) .. "\n" .. tables.text_of(rows, { parameters = true }) .. "\n  parameters: "
    .. tables.marked(total)
  return model.types and text or text .. "; shapes are known once a job has called it"
end

return summary
