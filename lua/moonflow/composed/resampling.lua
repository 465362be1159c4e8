--- The part of flow.nn that takes images at other places: grid_sample and affine_grid at such as are computed in each
-- run, interpolate in another size.

local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local ops = require "moonflow.ops"
local resizing = require "moonflow.formulas.resizing"
local sampling = require "moonflow.formulas.sampling"
local tools = require "moonflow.composed.tools"

local sample_doc = [[
An image at the places of a grid, as where it is turned or bent (Jaderberg and others, "Spatial transformer networks",
2015).
  out[n, c, i, j] = x[n, c] at column grid[n, i, j, 0] and row grid[n, i, j, 1], from -1, the left or top edge of the
  image, to 1, the right or bottom one; with align_corners from the middle of the first pixel to that of the last
shapes: x (batch, channels, height, width), grid (batch, rows, columns, 2) -> (batch, channels, rows, columns)
mode: "bilinear", between the four pixels around a place; "bicubic", between sixteen; "nearest", which has
  no gradient for the grid. A place that is NaN is NaN in the result; a pixel that counts for nothing has no part in it
padding_mode: what lies outside of the image is "zeros", the nearest pixel of its "border", or its "reflection"
dtypes: float32, float64, bfloat16 or float16, and any for "nearest"
errors: a grid of another rank or batch, or without two numbers for each place; a gradient of the gradient for the
  grid]]

ops.define("nn.grid_sample", {
  { "x", "blob" }, { "grid", "blob" }, { "mode", "string", "bilinear" },
  { "padding_mode", "string", "zeros" },
  { "align_corners", "boolean", false, text = "-1 and 1 are the middles of the outermost pixels, not their edges" },
}, sample_doc,
function(given, t, signature)
  local of_job = tools.new(t, signature, given.name or t:unnamed("GridSample"))
  return sampling.at_grid(of_job, given.x, given.grid, given.mode, given.padding_mode, given.align_corners)
end)

local affine_doc = [[
The grid for flow.nn.grid_sample that turns, scales, shears and shifts an image:
  out[n, i, j] = theta[n] * (x, y, 1), where x and y are the column and row of the pixel, from -1 to 1
  So theta says where each pixel of the result comes from: { { 2, 0, 0 }, { 0, 2, 0 } } shows twice as much, half as
  large.
shapes: theta (batch, 2, 3), size = { batch, channels, height, width } -> (batch, height, width, 2)
errors: a theta of another shape; a size of other than four numbers, or of another batch]]

ops.define("nn.affine_grid", {
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
  local of_job = tools.new(t, signature, given.name or t:unnamed("AffineGrid"))
  return sampling.affine_grid(of_job, theta, { size[3], size[4] }, given.align_corners)
end)

local interpolate_doc = [[
An image in another size, larger or smaller.
  out[n, c, i, j] = x[n, c] at the row (i + 1/2) * in / out - 1/2 and the column alike; with align_corners at
  i * (in - 1) / (out - 1), so that corners fall on corners; beyond the border it goes on as it ends
shapes: x (batch, channels, height, width), size = { height, width } of the result, or one number for both; channels
  last with data_format "NHWC"
mode: "nearest", at the row floor(i * in / out); "bilinear", between the four pixels around a place; "bicubic", between
  sixteen. With antialias each pixel of a smaller image is a mean of all that it stands for, as in a thumbnail
dtypes: float32, float64, bfloat16 or float16; "nearest" all
errors: a size below 1; align_corners or antialias with "nearest", or both]]

local function check_interpolate(given, signature)
  local x, mode, format = given.x, given.mode, given.data_format
  if format ~= "NCHW" and format ~= "NHWC" then
    signature:fail(": data_format is '" .. format .. "', wanted 'NCHW' or 'NHWC'")
  end
  if #x.shape ~= 4 then
    signature:fail((": x '%s' is %s, wanted rank 4, %s"):format(x.name, tostring(x.shape), format))
  end
  resizing.check_mode(mode, signature)
  if mode == "nearest" and (given.align_corners or given.antialias) then
    signature:fail((": %s is for 'bilinear' and 'bicubic', and mode is 'nearest'"):format(
      given.align_corners and "align_corners" or "antialias"))
  elseif given.align_corners and given.antialias then
    signature:fail ": align_corners and antialias exclude each other"
  elseif mode ~= "nearest" and not dtypes.floating[x.dtype] then
    signature:fail((": x '%s' is %s, and '%s' computes with floats; flow.cast it, or take 'nearest'"):format(x.name,
      x.dtype, mode))
  end
  return resizing.checked_size(given.size, signature)
end

ops.define("nn.interpolate", {
  { "x", "blob" }, { "size", "list" }, { "mode", "string", "nearest" }, { "align_corners", "boolean", false },
  { "antialias", "boolean", false }, { "data_format", "string", "NCHW" },
}, interpolate_doc,
function(given, t, signature)
  local x, mode, first_axis = given.x, given.mode, given.data_format == "NHWC" and 1 or 2
  local size, axes, factors = check_interpolate(given, signature), {}, {}
  for i = 1, 2 do
    local from = x.shape[first_axis + i - 1]
    if from < 1 then signature:fail(": x '" .. x.name .. "' " .. tostring(x.shape) .. " has no pixels") end
    axes[i] = { index = first_axis + i - 1, from = from, to = size[i], scale = size[i] / from }
    factors[i] = size[i] / from
  end
  local name = given.name or t:unnamed("Interpolate")
  if mode ~= "bicubic" and dtypes.floating[x.dtype] and factors[1] % 1 == 0 and factors[2] % 1 == 0 then
    return (ops.apply("upsample_2d", { x }, { size = factors, data_format = given.data_format, interpolation = mode,
                                              align_corners = given.align_corners }, name))
  end
  local of_job, how = tools.new(t, signature, name), resizing.manner(mode, given.align_corners, given.antialias)
  for _, axis in ipairs(axes) do
    if axis.from ~= axis.to then x = resizing.modes[mode](of_job, x, how, axis) end
  end
  return (ops.apply("identity", { x }, nil, name))
end)
