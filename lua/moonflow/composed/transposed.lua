--- The part of flow.nn that takes convolutions backwards, from their results to what these are of: along the width of a
-- signal, over images and over volumes.

local arguments = require "moonflow.arguments"
local ops = require "moonflow.ops"
local tools = require "moonflow.composed.tools"
local volumes = require "moonflow.formulas.volumes"
local windows = require "moonflow.formulas.windows"

-- What a function of so many axes of places says of them: its formats, the axes of a filter, and how the result is
-- called where it has no name.
local kinds = {
  { first = "NCW", last = "NWC", kernel = "kernel width", words = { "width" }, title = "Conv1dTranspose" },
  {
    first = "NCHW", last = "NHWC", kernel = "kernel height, kernel width", words = { "height", "width" },
    title = "Conv2dTranspose",
  },
  {
    first = "NCDHW", last = "NDHWC", kernel = "kernel depth, kernel height, kernel width",
    words = { "depth", "height", "width" }, title = "Conv3dTranspose",
  },
}

-- The axis of the channels and the first one of places.
local function axes_of(given, kind, signature)
  local value, filter, format = given.value, given.filter, given.data_format
  if format ~= kind.first and format ~= kind.last then
    signature:fail(": data_format is '" .. format .. "', wanted '" .. kind.first .. "' or '" .. kind.last .. "'")
  end
  local rank, is_first = #kind.words + 2, format == kind.first
  for _, x in ipairs { value, filter } do
    if #x.shape ~= rank then
      signature:fail(": '" .. x.name .. "' is " .. tostring(x.shape) .. ", wanted rank " .. rank .. ", "
        .. (x == value and format or is_first and "(channels, filters / groups, " .. kind.kernel .. ")"
          or "(channels, " .. kind.kernel .. ", filters / groups)"))
    end
  end
  local channel_axis, first_axis = is_first and 1 or rank - 1, is_first and 2 or 1
  local channels = value.shape[channel_axis]
  if filter.shape[0] ~= channels then
    signature:fail((": '%s' %s has %d channels, filter '%s' %s is for %d"):format(value.name, tostring(value.shape),
      channels, filter.name, tostring(filter.shape), filter.shape[0]))
  end
  if given.groups < 1 or channels % given.groups ~= 0 then
    signature:fail(": " .. channels .. " channels cannot be split into " .. given.groups .. " groups")
  end
  return channel_axis, first_axis
end

-- The shape of the result: the one that is asked for, where it leads to the value.
local function shape_of_result(given, kind, channel_axis, first_axis, strides, dilations, pads, signature)
  local value, filter = given.value, given.filter
  local shape, rank = { value.shape[0] }, #kind.words + 2
  shape[channel_axis + 1] = filter.shape[channel_axis] * given.groups
  local wanted = given.output_shape and arguments.flat_list(given.output_shape)
  local is_word = type(pads) == "string"
  local same = is_word and pads ~= "VALID"
  for i, word in ipairs(kind.words) do
    local axis, stride = first_axis + i - 1, strides[i]
    local reach = same and 1 or (filter.shape[axis] - 1) * dilations[i] + 1
    local padded = is_word and 0 or pads[i][1] + pads[i][2]
    local least = (value.shape[axis] - 1) * stride + reach - padded
    local size = same and least + stride - 1 or least
    local asked = wanted and wanted[axis + 1]
    if asked then
      if asked < least or asked > least + stride - 1 then
        signature:fail((": output_shape {%s} has %s %s; '%s' %s in steps of %d comes from %d to %d")
          :format(table.concat(wanted, ", "), word, asked, value.name, tostring(value.shape), stride, least,
            least + stride - 1))
      end
      size = asked
    elseif size < 1 then
      signature:fail((": padding leaves nothing of '%s' %s"):format(value.name, tostring(value.shape)))
    end
    shape[axis + 1] = size
  end
  for i = 1, wanted and rank or 0 do
    if #wanted ~= rank or wanted[i] ~= shape[i] then
      signature:fail((": output_shape is {%s}, wanted {%s} of '%s' %s and filter %s"):format(
        table.concat(wanted, ", "), table.concat(shape, ", "), value.name, tostring(value.shape),
        tostring(filter.shape)))
    end
  end
  return shape
end

local function transposed(axes, doc, apply)
  local kind = kinds[axes]
  ops.define("nn.conv" .. axes .. "d_transpose", {
    { "value", "blob" }, { "filter", "blob" }, { "output_shape", "list?" }, { "strides", "list", 1 },
    { "padding", "any", "VALID" }, { "data_format", "string", kind.first }, { "dilations", "list", 1 },
    { "groups", "integer", 1 },
  }, doc, function(given, t, signature)
    local channel_axis, first_axis = axes_of(given, kind, signature)
    local strides = windows.numbers(given.strides, axes, "strides", signature)
    local dilations = windows.numbers(given.dilations, axes, "dilations", signature)
    local pads = windows.pads(given.padding, axes, first_axis, signature)
    if pads == "SAME" then pads = "SAME_UPPER" end
    local attrs = {
      shape = shape_of_result(given, kind, channel_axis, first_axis, strides, dilations, pads, signature),
      strides = strides, dilations = dilations, groups = given.groups, data_format = given.data_format,
    }
    return apply(given, attrs, pads, first_axis, given.name or t:unnamed(kind.title), t, signature)
  end)
end

-- By the gradient of the convolution, which has it for its own.
local function by_gradient(given, attrs, pads, first_axis, name)
  local axes = #attrs.strides
  attrs.padding = windows.listed(pads, axes + 2, first_axis)
  return (ops.apply("conv" .. axes .. "d_input_grad", { given.value, given.filter }, attrs, name))
end

transposed(1, [[
Transposed convolution of signals, as voices and sounds are made by: conv1d with the same filter, taken backwards.
  out[n, f, x*stride - before + i*dilation] += value[n, c, x] * filter[c, f, i]
shapes: value (batch, channels, width), filter (channels, filters / groups, kernel width) -> output_shape, (batch,
  filters, out width); with data_format "NWC" value (batch, width, channels), filter (channels, kernel width, filters /
  groups)
output_shape, padding, dtypes: as of flow.nn.conv2d_transpose]], by_gradient)

transposed(2, [[
Transposed convolution, or deconvolution: conv2d with the same filter, taken backwards from its result to its image.
Each place of the value is spread over a window of the output, and what overlaps is summed.
  out[n, f, y*stride - before + i*dilation, ...] += value[n, c, y, x] * filter[c, f, i, j]
shapes: value (batch, channels, height, width), filter (channels, filters / groups, kernel height, kernel width)
  -> output_shape, (batch, filters, out height, out width); with data_format "NHWC" value (batch, height, width,
  channels), filter (channels, kernel height, kernel width, filters / groups)
output_shape: several images lead to one result, so it may be said which of them is meant. With reach = (kernel - 1) *
  dilation + 1 that is (in - 1) * stride + reach - padding and up to stride - 1 more. It may be left out:
  VALID the smallest, SAME in * stride
padding: "VALID"; "SAME" = "SAME_UPPER", where an odd pad goes to the bottom and right (conv2d's SAME is SAME_LOWER);
  "SAME_LOWER"; or a list as conv2d has it
dtypes: those of conv2d; mixed precision takes it as one]], by_gradient)

transposed(3, [[
Transposed convolution of volumes: conv3d with the same filter, taken backwards.
  out[n, f, z*stride - before + h*dilation, ...] += value[n, c, z, y, x] * filter[c, f, h, i, j]
shapes: value (batch, channels, depth, height, width), filter (channels, filters / groups, kernel depth, kernel height,
  kernel width) -> output_shape, (batch, filters, out depth, out height, out width); with data_format "NDHWC" value
  (batch, depth, height, width, channels), filter (channels, kernel depth, kernel height, kernel width, filters /
  groups)
output_shape, padding, dtypes: as of flow.nn.conv2d_transpose, which computes it]],
function(given, attrs, pads, first_axis, name, t, signature)
  attrs.sizes, attrs.pads = { unpack(attrs.shape, first_axis + 1, first_axis + 3) }, pads
  return tools.with_channels_first(t, signature, { given.value, given.filter }, name, given.data_format == "NDHWC",
    function(of_job, value, filter) return volumes.transposed(of_job, value, filter, attrs) end)
end)
