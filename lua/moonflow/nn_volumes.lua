--- The part of flow.nn that is about volumes: convolution and pooling along three axes.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local errors = require "moonflow.errors"
local ops = require "moonflow.ops"
local volumes = require "moonflow.volumes"

local words = { VALID = true, SAME = true, SAME_LOWER = true, SAME_UPPER = true }

-- Three numbers out of a list, or of one number for all axes.
local function for_each_axis(value, what, signature)
  local list = arguments.flat_list(value)
  if #list == 1 then list[2], list[3] = list[1], list[1] end
  if #list ~= 3 then
    signature:fail(": " .. what .. " must be one number, or one each for depth, height and width, got " .. #list)
  end
  for _, number in ipairs(list) do
    if type(number) ~= "number" or number < 1 or number % 1 ~= 0 then
      signature:fail(": " .. what .. " must be positive whole numbers, got " .. tostring(number))
    end
  end
  return list
end

-- A word, or { before, after } of depth, height and width.
local function padding_of(padding, first_axis, signature)
  if type(padding) == "string" then
    if not words[padding] then
      signature:fail(": padding is '" .. padding .. "', wanted VALID, SAME, SAME_LOWER, SAME_UPPER or a list")
    end
    return padding
  end
  local list = arguments.flat_list(padding)
  for _, number in ipairs(list) do
    if type(number) ~= "number" or number < 0 or number % 1 ~= 0 then
      signature:fail(": padding must be whole numbers from 0 on, got " .. tostring(number))
    end
  end
  local pairs_of_axes = {}
  for i = 1, 3 do
    local at = first_axis + i
    local number = #list == 1 and list[1] or #list == 3 and list[i] or #list == 5 and list[at]
    if number then
      pairs_of_axes[i] = { number, number }
    elseif #list == 10 then
      pairs_of_axes[i] = { list[2 * at - 1], list[2 * at] }
    else
      signature:fail(": padding has " .. #list .. " numbers, wanted a pair { before, after } for each of 5 axes, one "
        .. "number for each of them, or one or three for depth, height and width")
    end
  end
  return pairs_of_axes
end

-- How a body of a job computes, for `volumes`.
local Tools = {}
Tools.__index = Tools

function Tools:apply(op, inputs, attrs, word)
  return (ops.apply(op, inputs, attrs, word and self.name .. "-" .. word or self.last))
end

function Tools:pick(x, axis, indices, word)
  local numbers = blob.new(self.trace, self.trace:constant(core.array(indices, "int64")), "constant", errors.site())
  return self:apply("gather", { x, numbers }, { axis = axis }, word)
end

-- Applies `make(tools, x)` to a volume whose channels come first, and gives the result in the order that was asked for.
local function with_channels_first(t, x, name, format, make)
  local first = format == "NCDHW"
  local tools = setmetatable({ trace = t, name = name, last = first and name or name .. "-first" }, Tools)
  if not first then x = tools:apply("transpose", { x }, { perm = { 0, 4, 1, 2, 3 } }, "channels_first") end
  local result = make(tools, x)
  if first then return result end
  return (ops.apply("transpose", { result }, { perm = { 0, 2, 3, 4, 1 } }, name))
end

local function check_volume(x, what, format, signature)
  if format ~= "NCDHW" and format ~= "NDHWC" then
    signature:fail(": data_format is '" .. format .. "', wanted 'NCDHW' or 'NDHWC'")
  end
  if #x.shape ~= 5 then
    signature:fail((": %s '%s' is %s, wanted rank 5 (%s)"):format(what, x.name, tostring(x.shape), format))
  end
end

-- The window must lie within the padded depth; of height and width the op of images says it.
local function check_depth(x, depth, reach, padding, signature)
  if type(padding) == "string" and padding ~= "VALID" then return end
  local pads = type(padding) == "string" and { 0, 0 } or padding[1]
  if depth + pads[1] + pads[2] < reach then
    signature:fail((": a window of %d is larger than the depth of '%s' %s, padded by %d and %d"):format(reach, x.name,
      tostring(x.shape), pads[1], pads[2]))
  end
end

local conv_doc = [[
Convolution of volumes as networks mean it: the filter is not flipped (cross-correlation).
  out[n, f, z, y, x] = sum over c, h, i, j of x[n, c, z*stride - before + h*dilation, ...] * filter[f, c, h, i, j]
  Places outside of x count as zero; sizes and paddings are those of flow.nn.conv2d along each of three axes.
shapes: x (batch, channels, depth, height, width), filter (filters, channels / groups, kernel depth, kernel height,
  kernel width) -> (batch, filters, out depth, out height, out width); with data_format "NDHWC" x (batch, depth,
  height, width, channels), filter (filters, kernel depth, kernel height, kernel width, channels / groups)
padding: "VALID", "SAME" (= "SAME_LOWER": an odd pad goes to the front, top and left), "SAME_UPPER", or pairs
  { before, after } for all five axes, or one or three numbers for depth, height and width
dtypes, precision: those of flow.nn.conv2d, which computes it, with the depths that a filter spans as channels: that
  takes memory for as many copies of x
errors: a rank, a channel count or groups that do not fit; a window larger than the padded volume]]

local function define_conv(define)
  define("conv3d", {
    { "x", "blob" }, { "filter", "blob" }, { "strides", "list", 1 }, { "padding", "any", "VALID" },
    { "data_format", "string", "NCDHW" }, { "dilations", "list", 1 }, { "groups", "integer", 1 },
  }, conv_doc,
  function(given, t, signature)
    local x, filter, format, groups = given.x, given.filter, given.data_format, given.groups
    check_volume(x, "x", format, signature)
    check_volume(filter, "filter", format, signature)
    local last = format == "NDHWC"
    local channels, part = x.shape[last and 4 or 1], filter.shape[last and 4 or 1]
    if groups < 1 or part * groups ~= channels or filter.shape[0] % groups ~= 0 then
      signature:fail((": '%s' %s has %d channels, filter '%s' %s is for %d in %d %s"):format(x.name, tostring(x.shape),
        channels, filter.name, tostring(filter.shape), part * groups, groups, groups == 1 and "group" or "groups"))
    end
    local settings = {
      strides = for_each_axis(given.strides, "strides", signature), groups = groups,
      dilations = for_each_axis(given.dilations, "dilations", signature),
      padding = padding_of(given.padding, last and 1 or 2, signature),
    }
    local depth_axis = last and 1 or 2
    local reach = (filter.shape[depth_axis] - 1) * settings.dilations[1] + 1
    check_depth(x, x.shape[depth_axis], reach, settings.padding, signature)
    return with_channels_first(t, x, given.name or t:unnamed("Conv3d"), format, function(tools, volume)
      if last then filter = tools:apply("transpose", { filter }, { perm = { 0, 4, 1, 2, 3 } }, "filter_first") end
      return volumes.conv(tools, volume, filter, settings)
    end)
  end)
end

local function define_pooling(define, kind, title, doc)
  define(kind .. "_pool3d", {
    { "x", "blob" }, { "ksize", "list" }, { "strides", "list?" }, { "padding", "any", "VALID" },
    { "data_format", "string", "NCDHW" }, { "ceil_mode", "boolean", false },
  }, doc .. [[

shapes: x (batch, channels, depth, height, width) -> (batch, channels, out depth, out height, out width); channels last
  with data_format "NDHWC"
padding: as in flow.nn.conv3d
The rest is as in flow.nn.]] .. kind .. "_pool2d along each axis: strides (default: ksize), ceil_mode, dtypes, errors.",
  function(given, t, signature)
    local x, format = given.x, given.data_format
    check_volume(x, "x", format, signature)
    local first_axis = format == "NDHWC" and 1 or 2
    local settings = { ksize = for_each_axis(given.ksize, "ksize", signature), ceil_mode = given.ceil_mode }
    settings.strides = given.strides and for_each_axis(given.strides, "strides", signature) or settings.ksize
    settings.padding = padding_of(given.padding, first_axis, signature)
    check_depth(x, x.shape[first_axis], settings.ksize[1], settings.padding, signature)
    return with_channels_first(t, x, given.name or t:unnamed(title), format, function(tools, volume)
      return volumes.pool(tools, kind .. "_pool2d", volume, settings)
    end)
  end)
end

--- Adds them to flow.nn through its `define`.
return function(define)
  define_conv(define)
  define_pooling(define, "max", "MaxPool3d", "The largest element of each window of the volume, channel by channel.")
  define_pooling(define, "avg", "AvgPool3d",
    "The average of each window of the volume, channel by channel; padding does not count.")
end
