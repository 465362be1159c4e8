--- Arrays made larger or smaller along an axis: flow.nn.interpolate, and ONNX's Resize.
-- An image is resized along one axis after the other. Where the nearest place is taken, that picks places; else each
-- new place is a sum of old ones, so it is a product with a matrix that is known when the job is traced.
--
-- `tools` computes: apply(op, inputs, attrs, word), pick(x, axis, indices, word) and check_list(count), which refuses a
-- list of too many numbers. `axis` has its index, its sizes `from` and `to`, and the scale that is between them. `how`
-- has coordinate(at, axis), which says where a new place lies in the old axis, and rounding(place, axis), or
-- weight(distance) and the `reach` within which that is not 0; and further what weight_matrix says.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"

local resizing = {}

local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

-- The weight of an old place at the distance `d`, which is not above how.reach.
function resizing.linear_weight(d) return 1 - d end

-- Keys, "Cubic convolution interpolation for digital image processing", 1981.
function resizing.cubic_weight(d, a)
  if d <= 1 then return ((a + 2) * d - (a + 3)) * d * d + 1 end
  return (((d - 5) * d + 8) * d - 4) * a
end

--- By the nearest old place to each new one.
function resizing.nearest(tools, x, how, axis)
  tools:check_list(axis.to)
  local places = {}
  for at = 0, axis.to - 1 do
    places[at + 1] = max(0, min(axis.from - 1, how.rounding(how.coordinate(at, axis), axis)))
  end
  return tools:pick(x, axis.index, places, "axis_" .. axis.index)
end

-- The matrix (to, from) by which an axis is multiplied. What lies outside of the image is its border, or nothing where
-- how.excludes_outside. An image that becomes smaller is smoothed, where how.smooths: each new place sees as much as it
-- stands for.
local function weight_matrix(how, axis)
  local values, shrinking = {}, how.smooths and min(1, axis.scale) or 1
  for i = 1, axis.to * axis.from do values[i] = 0 end
  for at = 0, axis.to - 1 do
    local row, sum = at * axis.from + 1, 0
    local x = how.coordinate(at, axis)
    if how.is_crop then x = max(0, min(axis.from - 1, x)) end
    for place = ceil(x - how.reach / shrinking), floor(x + how.reach / shrinking) do
      local weight = how.weight(math.abs(x - place) * shrinking)
      local is_outside = place < 0 or place >= axis.from
      place = max(0, min(axis.from - 1, place))
      if not (is_outside and how.excludes_outside) then
        values[row + place], sum = values[row + place] + weight, sum + weight
      end
    end
    for place = 0, axis.from - 1 do values[row + place] = values[row + place] / sum end
  end
  return values
end

-- x with an axis and the last one in each other's place.
local function turned(tools, x, axis, word)
  local rank, perm = #x.shape, {}
  if axis.index == rank - 1 then return x end
  for i = 1, rank do perm[i] = i - 1 end
  perm[axis.index + 1], perm[rank] = rank - 1, axis.index
  return tools:apply("transpose", { x }, { perm = perm }, word .. axis.index)
end

--- By a weighted sum of the old places around each new one.
function resizing.weighted(tools, x, how, axis)
  tools:check_list(axis.to * axis.from)
  local rank = #x.shape
  local matrix = core.array(weight_matrix(how, axis), x.dtype, { axis.to, axis.from })
  local last = turned(tools, x, axis, "turned_")
  local sizes, rows = last.shape:table(), 1
  for i = 1, rank - 1 do rows = rows * sizes[i] end
  local flat = tools:apply("reshape", { last }, { shape = { rows, axis.from } }, "rows_" .. axis.index)
  local product = tools:apply("matmul", { flat, matrix }, { transpose_b = true }, "axis_" .. axis.index)
  sizes[rank] = axis.to
  return turned(tools, tools:apply("reshape", { product }, { shape = sizes }, "stack_" .. axis.index), axis, "back_")
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
  how.weight, how.reach = resizing.linear_weight, 1
  if mode == "bicubic" then
    local a = smooths and -0.5 or -0.75  -- PyTorch's, which for thumbnails follows Pillow
    how.weight, how.reach = function(d) return resizing.cubic_weight(d, a) end, 2
  end
  return how
end

return resizing
