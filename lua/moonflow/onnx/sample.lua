--- ONNX's GridSample, which takes an image at places that are computed: a table from its name to the function that
--- applies it to a node.

local sampling = require "moonflow.formulas.sampling"

local operators = {}

-- As they are called at opset 20, and before it.
local modes = {
  nearest = "nearest", linear = "bilinear", bilinear = "bilinear", cubic = "bicubic", bicubic = "bicubic",
}

function operators.GridSample(node)
  local x, grid = node:input(1), node:input(2)
  local sizes, points = x.shape:table(), grid.shape:table()
  if #sizes ~= 4 or #points ~= 4 then node:fail("only images of two axes of places are supported") end
  if points[4] ~= 2 or points[1] ~= sizes[1] or sizes[3] < 1 or sizes[4] < 1 then
    node:fail(("a grid %s for an image %s"):format(tostring(grid.shape), tostring(x.shape)), "shape_mismatch")
  end
  local mode = node:text("mode", node.opset < 20 and "bilinear" or "linear")
  local padding = node:text("padding_mode", "zeros")
  local is_aligned = node:int("align_corners", 0) ~= 0
  if not modes[mode] then node:fail("mode = " .. mode .. " is not supported", "invalid_argument") end
  return sampling.at_grid(node, x, grid, modes[mode], padding, is_aligned)
end

return operators
