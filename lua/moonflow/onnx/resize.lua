--- ONNX's Resize, and Upsample before it.
-- What enlarges an image by whole factors in the usual ways is an op of its own.

local resizing = require "moonflow.formulas.resizing"

local operators = {}

local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

-- ---- where a new place lies in the old axis -----------------------------------------------------------------------

-- The float32 next to a number. Runtimes divide in it, and so decide between two places that are as near: a scale of
-- 1.2 is a little more than that in a file, and 3 / 1.2 is 2.5 all the same.
local function single(x)
  local part, exponent = math.frexp(x)
  return math.ldexp(floor(part * 2 ^ 24 + 0.5), exponent - 24)
end

local coordinates = {
  half_pixel = function(at, axis) return single((at + 0.5) / axis.scale) - 0.5 end,
  asymmetric = function(at, axis) return single(at / axis.scale) end,
  align_corners = function(at, axis) return axis.to == 1 and 0 or at * (axis.from - 1) / (axis.to - 1) end,
  pytorch_half_pixel = function(at, axis) return axis.to > 1 and single((at + 0.5) / axis.scale) - 0.5 or 0 end,
  half_pixel_symmetric = function(at, axis)
    local length = axis.from * axis.scale  -- of the new axis, which is rounded to a whole number
    local offset = axis.from / 2 * (1 - axis.to / length)
    return single(offset + single((at + 0.5) / axis.scale) - 0.5)
  end,
  tf_crop_and_resize = function(at, axis)  -- of a part, from axis.first to axis.last of 1
    local most = axis.from - 1
    if axis.to == 1 then return single((axis.first + axis.last) / 2 * most) end
    return single((axis.first + at * (axis.last - axis.first) / (axis.to - 1)) * most)
  end,
}

local roundings = {
  round_prefer_floor = function(x) return ceil(x - 0.5) end,
  round_prefer_ceil = function(x) return floor(x + 0.5) end,
  floor = floor,
  ceil = ceil,
}

-- Before opset 11 there was no choice, and nothing was said; ONNX Runtime, and the standard's own examples, do this.
local function round_at_first(x, axis) return axis.scale < 1 and ceil(x) or floor(x) end

-- ---- the whole image ----------------------------------------------------------------------------------------------

-- The attributes of upsample_2d where it is what is asked for, else nil.
local function whole_factors(node, x, how, axes)
  if not node.is_floating(x) or #x.shape ~= 4 then return nil end
  if #axes ~= 2 or axes[1].index ~= 2 or axes[2].index ~= 3 then return nil end
  local size, mode, where = {}, how.mode, how.coordinate_name
  for i, axis in ipairs(axes) do
    size[i] = axis.to / axis.from
    if size[i] % 1 ~= 0 or size[i] ~= axis.scale then return nil end
  end
  if mode == "nearest" then
    local is_floor = where == "asymmetric" and how.rounding_name == "floor"
      or where == "half_pixel" and how.rounding_name == "round_prefer_floor"
    return is_floor and { size = size, interpolation = "nearest" } or nil
  elseif mode == "linear" and (where == "half_pixel" or where == "align_corners") then
    return { size = size, interpolation = "bilinear", align_corners = where == "align_corners" }
  end
end

-- What lies outside of the image, where a cut goes beyond it, has one value.
local function extrapolated(node, x, how, axis)
  local flags, is_any = {}, false
  for at = 0, axis.to - 1 do
    local place = how.coordinate(at, axis)
    local is_outside = place < 0 or place > axis.from - 1
    flags[at + 1], is_any = is_outside and 1 or 0, is_any or is_outside
  end
  if not is_any then return x end
  local outside = node:along(node.array(flags, "int8"), #x.shape, axis.index)
  return node:apply("where", { outside, node:filled(how.outside, x.dtype), x }, nil, "outside_" .. axis.index)
end

local function resize(node, x, how, axes)
  if how.mode ~= "nearest" and #axes > 0 and not node.is_floating(x) then
    local mean = resize(node, node:cast(x, "float32", "wide"), how, axes)
    if how.smooths then mean = node:apply("round", { mean }, nil, "rounded") end  -- others are cut, as by runtimes
    return node:cast(mean, x.dtype, "whole")
  end
  local attrs = whole_factors(node, x, how, axes)
  if attrs then return node:apply("upsample_2d", { x }, attrs) end
  for _, axis in ipairs(axes) do
    x = (how.mode == "nearest" and resizing.nearest or resizing.weighted)(node, x, how, axis)
  end
  for _, axis in ipairs(how.is_crop and axes or {}) do x = extrapolated(node, x, how, axis) end
  return x
end

-- A scale of a file is a float32, so 10 places by 0.7 are a little less than 7; they are 7 where the product is rounded
-- to float32 too, as it is by whoever wrote the file.
local function scaled_size(from, scale)
  local size = from * scale
  local whole = floor(size + 0.5)
  return math.abs(size - whole) <= whole * 2 ^ -24 and whole or floor(size)
end

local kLongest = 2 ^ 24  -- of an axis, as of resample_axis: tables are made of its places

-- The axes whose size or scale says that they change, from their scales or their new sizes.
local function changed_axes(node, x, named, how, scales, sizes)
  local axes = {}
  for i, index in ipairs(named) do
    local from = x.shape[index]
    -- Corners meet at the size that is whole, as in ONNX Runtime and PyTorch; ONNX's words leave it open.
    local to = sizes and sizes[i] or scaled_size(from, scales[i])
    local scale = scales and scales[i] or single(to / from)
    if not (to >= 1 and (to < kLongest or to == from) and scale > 0) then
      node:fail(("axis %d would have size %g, wanted 1 to 2^24 - 1"):format(index, to), "shape_mismatch")
    end
    local first, last = 0, 1
    if how.is_crop then first, last = how.part[i], how.part[#named + i] end
    if to ~= from or scale ~= 1 or first ~= 0 or last ~= 1 then
      axes[#axes + 1] = { index = index, from = from, to = to, scale = scale, first = first, last = last }
    end
  end
  table.sort(axes, function(one, other) return one.index < other.index end)
  return axes
end

-- Sizes that keep the proportions of the image, where the node asks for that.
local function proportioned(node, x, named, sizes)
  local policy = node:text("keep_aspect_ratio_policy", "stretch")
  if policy == "stretch" then return sizes end
  local choose = policy == "not_larger" and min or policy == "not_smaller" and max
  if not choose then node:fail("keep_aspect_ratio_policy = " .. policy .. " is not supported") end
  local scale
  for i, index in ipairs(named) do
    local own = sizes[i] / x.shape[index]
    scale = scale and choose(scale, own) or own
  end
  local kept, scales = {}, {}
  for i, index in ipairs(named) do kept[i], scales[i] = floor(scale * x.shape[index] + 0.5), scale end
  return kept, scales
end

local function lookup(node, table, name, word)
  if not table[name] then node:fail(word .. " = " .. name .. " is not supported") end
  return table[name]
end

local function manner(node, mode, coordinate, rounding)
  local how = {
    mode = mode, coordinate_name = coordinate, rounding_name = rounding,
    coordinate = lookup(node, coordinates, coordinate, "coordinate_transformation_mode"),
    rounding = lookup(node, roundings, rounding, "nearest_mode"),
    excludes_outside = node:int("exclude_outside", 0) ~= 0,
    smooths = node:int("antialias", 0) ~= 0,
    is_crop = coordinate == "tf_crop_and_resize",
    outside = node:float("extrapolation_value", 0),
    coefficient = node:float("cubic_coeff_a", -0.75),  -- PyTorch writes it for every mode
  }
  if mode == "linear" or mode == "cubic" then
    how.filter = mode
  elseif mode ~= "nearest" then
    node:fail("mode = " .. mode .. " is not supported")
  elseif how.smooths then
    node:fail("antialias is not supported for the nearest place, only for mode = linear and cubic")
  end
  return how
end

local function all_axes(x)
  local axes = {}
  for i = 1, #x.shape do axes[i] = i - 1 end
  return axes
end

local function checked_count(node, list, axes, word)
  if list and #list ~= #axes then
    node:fail(("%d %s for %d axes"):format(#list, word, #axes), "shape_mismatch")
  end
  return list
end

function operators.Upsample(node)
  local x, mode = node:input(1), node:text("mode", "nearest")
  local axes, scales = all_axes(x), node:floats("scales") or node:numbers(2)
  checked_count(node, node:need(scales, "scales"), axes, "scales")
  local how = manner(node, mode, "asymmetric", "floor")
  return resize(node, x, how, changed_axes(node, x, axes, how, scales))
end

function operators.Resize(node)
  node:ignore("keep_aspect_ratio_policy")  -- of sizes, where they are given
  local x, mode = node:input(1), node:text("mode", "nearest")
  if node.opset < 11 then
    local how = manner(node, mode, "asymmetric", "floor")
    how.rounding = round_at_first
    local axes = all_axes(x)
    return resize(node, x, how, changed_axes(node, x, axes, how, checked_count(node,
      node:need(node:numbers(2), "scales"), axes, "scales")))
  end
  local how = manner(node, mode, node:text("coordinate_transformation_mode", "half_pixel"),
    node:text("nearest_mode", "round_prefer_floor"))
  local named = node:ints("axes")
  named = named and node:axes_of(named, #x.shape) or all_axes(x)
  local scales, sizes = node:numbers(3), node:numbers(4)
  if scales and #scales == 0 then scales = nil end
  if sizes and #sizes == 0 then sizes = nil end
  if (scales == nil) == (sizes == nil) then node:fail("it wants either scales or sizes", "invalid_argument") end
  checked_count(node, scales or sizes, named, scales and "scales" or "sizes")
  if how.is_crop then
    how.part = node:need(node:numbers(2), "roi")
    if #how.part ~= 2 * #named then
      node:fail(("roi has %d numbers for %d axes, wanted two for each"):format(#how.part, #named), "shape_mismatch")
    end
    if not sizes then node:fail("a cut by scales is not supported; export the model with sizes") end
  end
  if sizes then sizes, scales = proportioned(node, x, named, sizes) end
  return resize(node, x, how, changed_axes(node, x, named, how, scales, sizes))
end

return operators
