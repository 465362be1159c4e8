--- The part of flow.nn that takes images at places that are computed: grid_sample and affine_grid.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local errors = require "moonflow.errors"
local ops = require "moonflow.ops"
local sampling = require "moonflow.sampling"

-- How a body of a job computes, for `sampling`. A word may come more than once.
local Tools = {}
Tools.__index = Tools

function Tools:apply(op, inputs, attrs, word)
  if not word then return (ops.apply(op, inputs, attrs, self.name)) end
  self.count = self.count + 1
  return (ops.apply(op, inputs, attrs, self.name .. "-" .. word .. self.count))
end

local sample_doc = [[
An image at the places of a grid, as where it is turned or bent (Jaderberg and others, "Spatial transformer networks",
2015).
  out[n, c, i, j] = x[n, c] at column grid[n, i, j, 0] and row grid[n, i, j, 1], from -1, the left or top edge of the
  image, to 1, the right or bottom one; with align_corners from the middle of the first pixel to that of the last
shapes: x (batch, channels, height, width), grid (batch, rows, columns, 2) -> (batch, channels, rows, columns)
mode: "bilinear", between the four pixels around a place; "bicubic", between sixteen; "nearest", which has
  no gradient for the grid
padding_mode: what lies outside of the image is "zeros", the nearest pixel of its "border", or its "reflection"
dtypes: float32, float64, bfloat16 or float16
errors: a grid of another rank or batch, or without two numbers for each place]]

local function define_sample(define)
  define("grid_sample", {
    { "x", "blob" }, { "grid", "blob" }, { "mode", "string", "bilinear" },
    { "padding_mode", "string", "zeros" },
    { "align_corners", "boolean", false, text = "-1 and 1 are the middles of the outermost pixels, not their edges" },
  }, sample_doc,
  function(given, t, signature)
    local x, grid, mode, padding = given.x, given.grid, given.mode, given.padding_mode
    if #x.shape ~= 4 then
      signature:fail((": x '%s' is %s, wanted (batch, channels, height, width)"):format(x.name, tostring(x.shape)))
    end
    local batch = x.shape[0]
    if #grid.shape ~= 4 or grid.shape[3] ~= 2 or grid.shape[0] ~= batch then
      signature:fail((": grid '%s' is %s, wanted (%d, rows, columns, 2) for x '%s' %s"):format(grid.name,
        tostring(grid.shape), batch, x.name, tostring(x.shape)))
    end
    if not sampling.modes[mode] then
      signature:fail(": mode is '" .. mode .. "', wanted 'bilinear', 'bicubic' or 'nearest'")
    end
    if not sampling.paddings[padding] then
      signature:fail(": padding_mode is '" .. padding .. "', wanted 'zeros', 'border' or 'reflection'")
    end
    local tools = setmetatable({ name = given.name or t:unnamed("GridSample"), count = 0 }, Tools)
    return sampling.at_grid(tools, x, grid, mode, padding, given.align_corners)
  end)
end

local affine_doc = [[
The grid for flow.nn.grid_sample that turns, scales, shears and shifts an image:
  out[n, i, j] = theta[n] * (x, y, 1), where x and y are the column and row of the pixel, from -1 to 1
  So theta says where each pixel of the result comes from: { { 2, 0, 0 }, { 0, 2, 0 } } shows twice as much, half as
  large.
shapes: theta (batch, 2, 3), size = { batch, channels, height, width } -> (batch, height, width, 2)
errors: a theta of another shape; a size of other than four numbers, or of another batch]]

-- The rows (x, y, 1) of all pixels, row by row.
local function pixels(height, width, is_aligned)
  local function place(i, size)
    if not is_aligned then return (2 * i + 1) / size - 1 end
    return size == 1 and 0 or 2 * i / (size - 1) - 1
  end
  local list = {}
  for i = 0, height - 1 do
    for j = 0, width - 1 do
      list[#list + 1], list[#list + 2], list[#list + 3] = place(j, width), place(i, height), 1
    end
  end
  return list
end

local function define_affine(define)
  define("affine_grid", {
    { "theta", "blob" }, { "size", "list" },
    { "align_corners", "boolean", false, text = "as grid_sample has it" },
  }, affine_doc,
  function(given, t, signature)
    local theta, size = given.theta, arguments.flat_list(given.size)
    if #theta.shape ~= 3 or theta.shape[1] ~= 2 or theta.shape[2] ~= 3 then
      signature:fail((": theta '%s' is %s, wanted (batch, 2, 3)"):format(theta.name, tostring(theta.shape)))
    end
    local batch = theta.shape[0]
    for i = 1, 4 do
      if #size ~= 4 or not arguments.is_size(size[i]) or size[1] ~= batch then
        signature:fail((": size is {%s}, wanted {%d, channels, height, width} for theta '%s' %s"):format(
          table.concat(size, ", "), batch, theta.name, tostring(theta.shape)))
      end
    end
    local height, width = size[3], size[4]
    local name = given.name or t:unnamed("AffineGrid")
    local list = core.array(pixels(height, width, given.align_corners), theta.dtype, { height * width, 3 })
    local places = blob.new(t, t:constant(list), "constant", errors.site())
    local rows = ops.apply("reshape", { theta }, { shape = { batch * 2, 3 } }, name .. "-rows")
    local grid = ops.apply("matmul", { rows, places }, { transpose_b = true }, name .. "-places")
    grid = ops.apply("reshape", { grid }, { shape = { batch, 2, height, width } }, name .. "-image")
    return (ops.apply("transpose", { grid }, { perm = { 0, 2, 3, 1 } }, name))
  end)
end

--- Adds them to flow.nn through its `define`.
return function(define)
  define_sample(define)
  define_affine(define)
end
