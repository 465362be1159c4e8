--- Convolution, its transposed and pooling of volumes, (batch, channels, depth, height, width), by way of those of
--- images.
-- The depths that a window of a convolution spans become channels of an image, and each place along the depth an image:
-- so every way there is to convolve images, on any device and in any precision, is one for volumes. Pooling goes over
-- height and width first, and then over the depth.
--
-- `tools` computes: apply(op, inputs, attrs, word), where `word` names a step on the way and the last one has none, and
-- pick(x, axis, indices, word). The pads are those of `windows`.

local windows = require "moonflow.formulas.windows"

local volumes = {}

--- The pads before and behind the depth.
function volumes.depth_pads(pads, size, reach, stride)
  if type(pads) == "string" then return windows.around(pads, size, reach, stride) end
  return pads[1][1], pads[1][2]
end

-- The pads that an image is left with.
local function of_image(pads)
  return windows.listed(type(pads) == "string" and pads or { pads[2], pads[3] }, 4, 2)
end

local function reshape(tools, value, shape, word)
  return tools:apply("reshape", { value }, { shape = shape }, word)
end

-- Channels and depths in each other's place.
local function swapped(tools, value, word)
  return tools:apply("transpose", { value }, { perm = { 0, 2, 1, 3, 4 } }, word)
end

-- The depths that each place of the result sees: those of the first, then of the second, and so on.
local function depths_seen(places, taps, stride, dilation)
  local list = {}
  for place = 0, places - 1 do
    for tap = 0, taps - 1 do list[#list + 1] = place * stride + tap * dilation end
  end
  return list
end

--- The convolution. filter is (filters, channels / groups, kernel depth, kernel height, kernel width); given.strides
--- and given.dilations have three numbers.
function volumes.conv(tools, x, filter, given)
  local batch, channels, depth, height, width = unpack(x.shape:table())
  local filters, part, taps, kernel_height, kernel_width = unpack(filter.shape:table())
  local stride, dilation = given.strides[1], given.dilations[1]
  local before, after = volumes.depth_pads(given.pads, depth, (taps - 1) * dilation + 1, stride)
  local places = math.floor((depth + before + after - (taps - 1) * dilation - 1) / stride) + 1

  if before > 0 or after > 0 then
    x = tools:apply("pad", { x }, { paddings = { 0, 0, 0, 0, before, after, 0, 0, 0, 0 } }, "padded")
  end
  local images = swapped(tools, x, "depths")
  if taps > 1 or stride > 1 then
    images = tools:pick(images, 1, depths_seen(places, taps, stride, dilation), "seen")
  end
  if taps > 1 and given.groups > 1 then  -- each group's channels stand together
    local apart = { batch * places, taps, given.groups, channels / given.groups * height * width }
    images = tools:apply("transpose", { reshape(tools, images, apart, "taps") }, { perm = { 0, 2, 1, 3 } }, "groups")
  end
  images = reshape(tools, images, { batch * places, taps * channels, height, width }, "images")
  if taps > 1 then filter = swapped(tools, filter, "filter_depths") end
  filter = reshape(tools, filter, { filters, taps * part, kernel_height, kernel_width }, "filter")
  local result = tools:apply("conv2d", { images, filter }, {
    strides = { given.strides[2], given.strides[3] }, dilations = { given.dilations[2], given.dilations[3] },
    groups = given.groups, padding = of_image(given.pads), algorithm = given.algorithm,
  }, "conv2d")
  return swapped(tools, reshape(tools, result, { batch, places, filters, result.shape[2], result.shape[3] }, "places"))
end

-- The parts that each depth of a transposed convolution is the sum of, `most` for each: of tap t of the depth d of x
-- the one at d * taps + t, and where it has fewer than others one of nothing, behind them all.
local function parts_summed(places, depth, taps, before, stride, dilation)
  local sums, most, list, lacks = {}, 1, {}, false
  for place = 0, places - 1 do
    local parts = {}
    for tap = 0, taps - 1 do
      local at = (place + before - tap * dilation) / stride
      if at % 1 == 0 and at >= 0 and at < depth then parts[#parts + 1] = at * taps + tap end
    end
    sums[place + 1], most = parts, math.max(most, #parts)
  end
  for _, parts in ipairs(sums) do
    for i = 1, most do list[#list + 1] = parts[i] or depth * taps end
    lacks = lacks or #parts < most
  end
  return list, most, lacks
end

--- The transposed convolution, of given.sizes: each depth of x is spread as an image by all taps along the depth, and
--- what comes to the same depth is summed. filter is (channels, filters / groups, kernel depth, kernel height, kernel
--- width); given.strides, given.dilations and given.sizes have three numbers.
function volumes.transposed(tools, x, filter, given)
  local batch, channels, depth, rows, columns = unpack(x.shape:table())
  local _, part, taps, kernel_height, kernel_width = unpack(filter.shape:table())
  local places, height, width = unpack(given.sizes)
  local groups, filters = given.groups, part * given.groups

  local images = reshape(tools, swapped(tools, x, "depths"), { batch * depth, channels, rows, columns }, "images")
  if taps > 1 then filter = swapped(tools, filter, "filter_depths") end
  filter = reshape(tools, filter, { channels, taps * part, kernel_height, kernel_width }, "filter")
  local parts = tools:apply("conv2d_input_grad", { images, filter }, {
    shape = { batch * depth, taps * filters, height, width }, groups = groups,
    strides = { given.strides[2], given.strides[3] }, dilations = { given.dilations[2], given.dilations[3] },
    padding = of_image(given.pads),
  }, "spread")
  if taps > 1 and groups > 1 then  -- each tap's filters stand together
    local apart = { batch * depth, groups, taps, part * height * width }
    parts = tools:apply("transpose", { reshape(tools, parts, apart, "taps") }, { perm = { 0, 2, 1, 3 } }, "groups")
  end
  parts = reshape(tools, parts, { batch, depth * taps, filters * height * width }, "parts")

  local stride, dilation = given.strides[1], given.dilations[1]
  local before = volumes.depth_pads(given.pads, places, (taps - 1) * dilation + 1, stride)
  local list, most, lacks = parts_summed(places, depth, taps, before, stride, dilation)
  if lacks then parts = tools:apply("pad", { parts }, { paddings = { 0, 0, 0, 1, 0, 0 } }, "and_nothing") end
  local result = tools:pick(parts, 1, list, "picked")
  if most > 1 then
    result = reshape(tools, result, { batch, places, most, filters * height * width }, "overlaps")
    result = tools:apply("reduce_sum", { result }, { axis = { 2 } }, "sums")
  end
  return swapped(tools, reshape(tools, result, { batch, places, filters, height, width }, "places"))
end

--- Pooling by an op of images; given.ksize and given.strides have three numbers.
function volumes.pool(tools, op, x, given)
  local batch, channels, depth, height, width = unpack(x.shape:table())
  local function pooled(value, sizes, kernel, strides, padding, word)
    local image = reshape(tools, value, sizes, word .. "_image")
    return tools:apply(op, { image }, {
      ksize = kernel, strides = strides, padding = padding, ceil_mode = given.ceil_mode,
    }, word)
  end
  local kernel, strides, pads = given.ksize, given.strides, given.pads
  local flat = pooled(x, { batch, channels * depth, height, width }, { kernel[2], kernel[3] },
    { strides[2], strides[3] }, of_image(pads), "flat")
  height, width = flat.shape[2], flat.shape[3]
  local along = windows.listed(type(pads) == "string" and pads or { pads[1], { 0, 0 } }, 4, 2)
  local deep = pooled(flat, { batch, channels, depth, height * width }, { kernel[1], 1 }, { strides[1], 1 }, along,
    "deep")
  return reshape(tools, deep, { batch, channels, deep.shape[2], height, width })
end

return volumes
