--- Images taken at places that are computed: flow.nn.grid_sample, and ONNX's GridSample.
--
-- `tools` computes: apply(op, inputs, attrs, word), where `word` names a step on the way and the last one has none.

local dtypes = require "moonflow.dtypes"

local sampling = {}

--- Samples x (batch, channels, height, width) at the places of grid (batch, rows, columns, 2), column before row. In
--- two bytes places of a larger image would not be told apart.
function sampling.at_grid(tools, x, grid, mode, padding, is_aligned)
  local wanted = dtypes.narrow[x.dtype] and "float32" or dtypes.floating[x.dtype] and x.dtype
    or dtypes.narrow[grid.dtype] and "float32" or grid.dtype
  if grid.dtype ~= wanted then grid = tools:apply("cast", { grid }, { dtype = wanted }, "grid") end
  return tools:apply("grid_sample", { x, grid }, { mode = mode, padding_mode = padding, align_corners = is_aligned })
end

return sampling
