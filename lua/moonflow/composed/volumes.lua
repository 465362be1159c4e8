--- The part of flow.nn that is about volumes: convolution and pooling along three axes.

local ops = require "moonflow.ops"
local tools = require "moonflow.composed.tools"
local volumes = require "moonflow.formulas.volumes"
local windows = require "moonflow.formulas.windows"

local function check_volume(x, what, format, signature)
  if format ~= "NCDHW" and format ~= "NDHWC" then
    signature:fail(": data_format is '" .. format .. "', wanted 'NCDHW' or 'NDHWC'")
  end
  if #x.shape ~= 5 then
    signature:fail((": %s '%s' is %s, wanted rank 5 (%s)"):format(what, x.name, tostring(x.shape), format))
  end
end

-- The window must lie within the padded depth; of height and width the op of images says it.
local function check_depth(x, depth, reach, pads, signature)
  local before, after = volumes.depth_pads(pads, depth, reach, 1)
  if depth + before + after < reach then
    signature:fail((": a window of %d is larger than the depth of '%s' %s, padded by %d and %d"):format(reach, x.name,
      tostring(x.shape), before, after))
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
  { before, after } for depth, height and width or for all five axes, or one or three numbers for the first
dtypes, precision: those of flow.nn.conv2d, which computes it, with the depths that a filter spans as channels: that
  takes memory for as many copies of x
errors: a rank, a channel count or groups that do not fit; a window larger than the padded volume]]

ops.define("nn.conv3d", {
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
    strides = windows.numbers(given.strides, 3, "strides", signature), groups = groups,
    dilations = windows.numbers(given.dilations, 3, "dilations", signature),
    pads = windows.pads(given.padding, 3, last and 1 or 2, signature),
  }
  local depth_axis = last and 1 or 2
  local reach = (filter.shape[depth_axis] - 1) * settings.dilations[1] + 1
  check_depth(x, x.shape[depth_axis], reach, settings.pads, signature)
  return tools.with_channels_first(t, signature, { x, filter }, given.name or t:unnamed("Conv3d"), last,
    function(of_job, volume, kernel) return volumes.conv(of_job, volume, kernel, settings) end)
end)

local function pooling(kind, title, doc)
  ops.define("nn." .. kind .. "_pool3d", {
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
    local settings = { ksize = windows.numbers(given.ksize, 3, "ksize", signature), ceil_mode = given.ceil_mode }
    settings.strides = given.strides and windows.numbers(given.strides, 3, "strides", signature) or settings.ksize
    settings.pads = windows.pads(given.padding, 3, first_axis, signature)
    check_depth(x, x.shape[first_axis], settings.ksize[1], settings.pads, signature)
    return tools.with_channels_first(t, signature, { x }, given.name or t:unnamed(title), format == "NDHWC",
      function(of_job, volume) return volumes.pool(of_job, kind .. "_pool2d", volume, settings) end)
  end)
end

pooling("max", "MaxPool3d", "The largest element of each window of the volume, channel by channel.")
pooling("avg", "AvgPool3d", "The average of each window of the volume, channel by channel; padding does not count.")
