--- Arrays made larger or smaller along an axis: flow.nn.interpolate, and ONNX's Resize.
-- An image is resized along one axis after the other. Where the nearest place is taken, that picks places; else each
-- new place is a weighted sum of old ones.
--
-- `tools` computes: apply(op, inputs, attrs, word), pick(x, axis, indices, word) and check_list(count), which refuses a
-- list of too many numbers. `axis` has its index, its sizes `from` and `to`, and the scale that is between them. `how`
-- has coordinate(at, axis), which says where a new place lies in the old axis, and rounding(place, axis), or the
-- `filter`, "linear" or "cubic" with its `coefficient`; and further what resizing.weighted says.

local arguments = require "moonflow.arguments"

local resizing = {}

local max, min = math.max, math.min

--- By the nearest old place to each new one.
function resizing.nearest(tools, x, how, axis)
  tools:check_list(axis.to)
  local places = {}
  for at = 0, axis.to - 1 do
    places[at + 1] = max(0, min(axis.from - 1, how.rounding(how.coordinate(at, axis), axis)))
  end
  return tools:pick(x, axis.index, places, "axis_" .. axis.index)
end

--- By a weighted sum of the old places around each new one. What lies outside of the image is its border, or nothing
--- where how.excludes_outside. An image that becomes smaller is smoothed, where how.smooths: each new place sees as
--- much as it stands for.
function resizing.weighted(tools, x, how, axis)
  local first = how.coordinate(0, axis)
  local slope = axis.to > 1 and (how.coordinate(axis.to - 1, axis) - first) / (axis.to - 1) or 0
  return tools:apply("resample_axis", { x }, {
    axis = axis.index, size = axis.to, slope = slope, offset = first,
    filter = how.filter, coefficient = how.coefficient, spread = how.smooths and max(1, 1 / axis.scale) or 1,
    extends = not how.excludes_outside, stays_inside = how.is_crop,
  }, "axis_" .. axis.index)
end

--- "nearest", "bilinear" and "bicubic": what takes an image along an axis, fn(tools, x, how, axis).
resizing.modes = { nearest = resizing.nearest, bilinear = resizing.weighted, bicubic = resizing.weighted }

function resizing.check_mode(mode, signature)
  if resizing.modes[mode] then return end
  signature:fail(": mode is '" .. mode .. "', wanted 'nearest', 'bilinear' or 'bicubic'")
end

--- { height, width } of `size`, such a list or one number for both.
function resizing.checked_size(size, signature)
  size = arguments.flat_list(size)
  if #size == 1 then size[2] = size[1] end
  if #size ~= 2 or not (arguments.is_size(size[1]) and arguments.is_size(size[2])) then
    signature:fail((": size is {%s}, wanted {height, width} of whole numbers from 1 on"):format(
      table.concat(size, ", ")))
  end
  return size
end

--- `how` for one of these. `is_aligned`: corners fall on corners; `smooths`: of a smaller image each place is a mean.
function resizing.manner(mode, is_aligned, smooths)
  local how = { smooths = smooths, excludes_outside = smooths, rounding = math.floor }
  if mode == "nearest" then
    how.coordinate = function(at, axis) return at * axis.from / axis.to end
  elseif is_aligned then
    how.coordinate = function(at, axis) return axis.to == 1 and 0 or at * (axis.from - 1) / (axis.to - 1) end
  else
    how.coordinate = function(at, axis) return (at + 0.5) * axis.from / axis.to - 0.5 end
  end
  how.filter = mode == "bicubic" and "cubic" or "linear"
  how.coefficient = smooths and -0.5 or -0.75  -- PyTorch's, which for thumbnails follows Pillow
  return how
end

return resizing
