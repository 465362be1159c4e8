--- ONNX's GridSample, which takes an image at places that are computed, and AffineGrid, which computes such: a table
--- from an operator's name to the function that applies it to a node.

local sampling = require "moonflow.formulas.sampling"

local operators = {}

-- As they are called at opset 20, and before it.
local modes = {
  nearest = "nearest", linear = "bilinear", bilinear = "bilinear", cubic = "bicubic", bicubic = "bicubic",
}

function operators.GridSample(node)
  local x, grid = node:input(1), node:input(2)
  local sizes, points = x.shape:table(), grid.shape:table()
  local count = #sizes - 2
  if count ~= 2 and count ~= 3 then node:fail("only images of two or three axes of places are supported") end
  if #points ~= #sizes or points[#points] ~= count or points[1] ~= sizes[1] or math.min(unpack(sizes, 3)) < 1 then
    node:fail(("a grid %s for an image %s"):format(tostring(grid.shape), tostring(x.shape)), "shape_mismatch")
  end
  local mode = modes[node:text("mode", node.opset < 20 and "bilinear" or "linear")]
  local padding = node:text("padding_mode", "zeros")
  if not mode or count == 3 and mode == "bicubic" then
    node:fail("mode = " .. node:text("mode") .. " is not supported", "invalid_argument")
  elseif padding ~= "zeros" and padding ~= "border" and padding ~= "reflection" then
    node:fail("padding_mode = " .. padding .. " is not supported", "invalid_argument")
  end
  local is_aligned = node:int("align_corners", 0) ~= 0
  return sampling[count == 2 and "at_grid" or "in_volume"](node, x, grid, mode, padding, is_aligned)
end

-- theta is (batch, 2, 3) for images, (batch, 3, 4) for volumes.
function operators.AffineGrid(node)
  local theta, sizes = node:input(1), node:need(node:numbers(2), "size")
  local batch, count = table.remove(sizes, 1), #sizes - 1
  table.remove(sizes, 1)  -- the channels
  local wanted = ("(%s, %d, %d)"):format(tostring(batch), count, count + 1)
  if (count ~= 2 and count ~= 3) or tostring(theta.shape) ~= wanted then
    node:fail(("theta is %s for images of %d axes of places, wanted %s of 2 or 3"):format(tostring(theta.shape), count,
      wanted), "shape_mismatch")
  end
  return sampling.affine_grid(node, theta, sizes, node:int("align_corners", 0) ~= 0)
end

return operators
