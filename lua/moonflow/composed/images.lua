--- The part of flow.nn that is about images and put together from ops: transposed convolution, pooling along one axis,
-- normalisation of channels, PixelShuffle.

local arguments = require "moonflow.arguments"
local initializer = require "moonflow.initializer"
local ops = require "moonflow.ops"
local respond = require "moonflow.formulas.responses"
local tools = require "moonflow.composed.tools"
local variable = require "moonflow.variable"
local windows = require "moonflow.formulas.windows"

-- ---- transposed convolution ---------------------------------------------------------------------------------------

local transpose_doc = [[
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
dtypes: those of conv2d; mixed precision takes it as one]]

-- The axis of the channels and the first one of the image.
local function axes_of(given, signature)
  local value, filter, format = given.value, given.filter, given.data_format
  if format ~= "NCHW" and format ~= "NHWC" then
    signature:fail(": data_format is '" .. format .. "', wanted 'NCHW' or 'NHWC'")
  end
  local channel_axis, first_axis = format == "NCHW" and 1 or 3, format == "NCHW" and 2 or 1
  for _, x in ipairs { value, filter } do
    if #x.shape ~= 4 then
      signature:fail(": '" .. x.name .. "' is " .. tostring(x.shape) .. ", wanted rank 4, "
        .. (x == value and format or format == "NCHW" and "(channels, filters / groups, kernel height, kernel width)"
          or "(channels, kernel height, kernel width, filters / groups)"))
    end
  end
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

-- The shape of the image: the one that is asked for, where it leads to the value.
local function image_of(given, channel_axis, first_axis, strides, dilations, pads, signature)
  local value, filter = given.value, given.filter
  local shape = { value.shape[0] }
  shape[channel_axis + 1] = filter.shape[channel_axis] * given.groups
  local wanted = given.output_shape and arguments.flat_list(given.output_shape)
  local is_word = type(pads) == "string"
  local same = is_word and pads ~= "VALID"
  for i = 1, 2 do
    local axis, stride = first_axis + i - 1, strides[i]
    local reach = same and 1 or (filter.shape[axis] - 1) * dilations[i] + 1
    local padded = is_word and 0 or pads[i][1] + pads[i][2]
    local least = (value.shape[axis] - 1) * stride + reach - padded
    local size = same and least + stride - 1 or least
    local asked = wanted and wanted[axis + 1]
    if asked then
      if asked < least or asked > least + stride - 1 then
        signature:fail((": output_shape {%s} has %s %s; '%s' %s in steps of %d comes from %d to %d")
          :format(table.concat(wanted, ", "), i == 1 and "height" or "width", asked, value.name,
            tostring(value.shape), stride, least, least + stride - 1))
      end
      size = asked
    elseif size < 1 then
      signature:fail((": padding leaves nothing of '%s' %s"):format(value.name, tostring(value.shape)))
    end
    shape[axis + 1] = size
  end
  for i = 1, wanted and 4 or 0 do
    if #wanted ~= 4 or wanted[i] ~= shape[i] then
      signature:fail((": output_shape is {%s}, wanted {%s} of '%s' %s and filter %s"):format(
        table.concat(wanted, ", "), table.concat(shape, ", "), value.name, tostring(value.shape),
        tostring(filter.shape)))
    end
  end
  return shape
end

ops.define("nn.conv2d_transpose", {
  { "value", "blob" }, { "filter", "blob" }, { "output_shape", "list?" }, { "strides", "list", 1 },
  { "padding", "any", "VALID" }, { "data_format", "string", "NCHW" }, { "dilations", "list", 1 },
  { "groups", "integer", 1 },
}, transpose_doc,
function(given, t, signature)
  local channel_axis, first_axis = axes_of(given, signature)
  local strides = windows.numbers(given.strides, 2, "strides", signature)
  local dilations = windows.numbers(given.dilations, 2, "dilations", signature)
  local pads = windows.pads(given.padding, 2, first_axis, signature)
  return (ops.apply("conv2d_input_grad", { given.value, given.filter }, {
    shape = image_of(given, channel_axis, first_axis, strides, dilations, pads, signature),
    strides = strides, dilations = dilations, groups = given.groups, data_format = given.data_format,
    padding = pads == "SAME" and "SAME_UPPER" or windows.listed(pads, 4, first_axis),
  }, given.name or t:unnamed("Conv2dTranspose")))
end)

-- ---- pooling along one axis ---------------------------------------------------------------------------------------

local function pooling(kind, doc)
  ops.define("nn." .. kind .. "_pool1d", {
    { "x", "blob" }, { "ksize", "list" }, { "strides", "list?" }, { "padding", "any", "VALID" },
    { "data_format", "string", "NCW" }, { "ceil_mode", "boolean", false },
  }, doc .. [[

shapes: x (batch, channels, width) -> (batch, channels, out width); channels last with data_format "NWC"
The rest is as in flow.nn.]] .. kind .. "_pool2d: strides (default: ksize), padding, ceil_mode, dtypes, errors.",
  function(given, _, signature)
    local x, last = given.x, given.data_format == "NWC"
    if not last and given.data_format ~= "NCW" then
      signature:fail(": data_format is '" .. given.data_format .. "', wanted 'NCW' or 'NWC'")
    end
    if #x.shape ~= 3 then
      signature:fail(": '" .. x.name .. "' is " .. tostring(x.shape) .. ", wanted rank 3 (" .. given.data_format .. ")")
    end
    local function along_width(word)
      return { 1, windows.numbers(given[word], 1, word, signature)[1] }
    end
    local first_axis = last and 1 or 2
    local pads = windows.pads(given.padding, 1, first_axis, signature)
    local height_at = first_axis + 1
    local sizes = x.shape:table()
    table.insert(sizes, height_at, 1)
    local image = ops.apply("reshape", { x }, { shape = sizes })
    local pooled = ops.apply(kind .. "_pool2d", { image }, {
      ksize = along_width "ksize", strides = given.strides and along_width "strides",
      padding = windows.listed(pads, 4, first_axis), data_format = last and "NHWC" or "NCHW",
      ceil_mode = given.ceil_mode,
    })
    sizes = pooled.shape:table()
    table.remove(sizes, height_at)
    return (ops.apply("reshape", { pooled }, { shape = sizes }, given.name))
  end)
end

pooling("max", "The largest element of each window along the width.")
pooling("avg", "The average of each window along the width; padding does not count.")

-- ---- normalisation of channels ------------------------------------------------------------------------------------

-- gamma * x + beta, one number of each per channel on axis 1.
local function scaled_and_shifted(x, given, t, where, name)
  if not given.affine then return x end
  local channels, ones = x.shape[1], {}
  for i = 1, #x.shape - 2 do ones[i] = 1 end
  local function vector(word, init)
    local value = variable.get(where, {
      name = t:scoped(name .. "-" .. word), shape = { channels }, dtype = x.dtype, initializer = init, reuse = false,
      owner = "layer",
    })
    return ops.apply("reshape", { value }, { shape = { channels, unpack(ones) } })
  end
  local gamma = vector("gamma", initializer.ones_initializer())
  local scaled = ops.apply("multiply", { x, gamma }, nil, name .. "-scale")
  return ops.apply("add", { scaled, vector("beta", initializer.zeros_initializer()) }, nil, name .. "-shift")
end

local epsilon = { "eps", "number", 1e-5, text = "added to the variance under the root" }

local normalisation_doc = [[

  gamma[c] * (x - mean) / sqrt(variance + eps) + beta[c], with the variance over the number of elements
defaults: eps 1e-5, affine true; without affine there are no gamma and beta
variables: name-gamma (ones), name-beta (zeros)]]

ops.define("nn.GroupNorm", {
  { "x", "blob" }, { "num_groups", "integer", 32, text = "how many groups, which divides the channels" }, epsilon,
  { "affine", "boolean", true },
}, [[
Normalises each group of neighbouring channels of each sample (Wu and He, "Group normalization", 2018).
shapes: x (batch, channels, ...) -> the same]] .. normalisation_doc,
function(given, t, signature)
  local sizes = given.x.shape:table()
  if #sizes < 2 then
    signature:fail(": '" .. given.x.name .. "' is " .. tostring(given.x.shape) .. ", wanted (batch, channels, ...)")
  end
  if given.num_groups < 1 or sizes[2] % given.num_groups ~= 0 then
    signature:fail(": the " .. sizes[2] .. " channels of '" .. given.x.name .. "' cannot be split into "
      .. given.num_groups .. " groups")
  end
  local width = sizes[2] / given.num_groups  -- of a group; no -1, which a batch of none leaves open
  for axis = 3, #sizes do width = width * sizes[axis] end
  local name = given.name or t:unnamed("GroupNorm")
  local grouped = ops.apply("reshape", { given.x }, { shape = { sizes[1], given.num_groups, width } })
  local normal = ops.apply("layer_norm_core", { grouped, false, false }, { begin_norm_axis = 2, epsilon = given.eps },
    name)
  local restored = ops.apply("reshape", { normal }, { shape = sizes })
  return scaled_and_shifted(restored, given, t, "flow.nn.GroupNorm", name)
end)

for dims = 1, 3 do
  local kind = "InstanceNorm" .. dims .. "d"
  ops.define("nn." .. kind, { { "x", "blob" }, epsilon, { "affine", "boolean", true } }, [[
Normalises each channel of each sample (Ulyanov and others, "Instance normalization", 2016).
shapes: x (batch, channels, ]] .. ("..., "):rep(dims):sub(1, -3) .. ") -> the same" .. normalisation_doc,
  function(given, t, signature)
    local x = given.x
    if #x.shape ~= dims + 2 then
      signature:fail(": '" .. x.name .. "' is " .. tostring(x.shape) .. ", wanted rank " .. dims + 2
        .. ": batch, channels and " .. dims .. (dims == 1 and " more axis" or " more axes"))
    end
    local name = given.name or t:unnamed(kind)
    local normal = ops.apply("layer_norm_core", { x, false, false },
      { begin_norm_axis = 2, epsilon = given.eps }, name)
    return scaled_and_shifted(normal, given, t, "flow.nn." .. kind, name)
  end)
end

ops.define("nn.LocalResponseNorm", {
  { "x", "blob" }, { "size", "integer", text = "channels whose squares count, the middle one being its own" },
  { "alpha", "finite", 1e-4, text = "by what share of their mean square" }, { "beta", "finite", 0.75 },
  { "k", "finite", 1, text = "what is there without them" },
}, [[
Divides each value by a power of what the channels around its own have at its place (Krizhevsky and others, "ImageNet
classification with deep convolutional neural networks", 2012).
  out[n, c, ...] = x[n, c, ...] / (k + alpha / size * sum over i of x[n, i, ...]^2) ^ beta, with i from
    c - floor(size / 2) to c + floor((size - 1) / 2), as far as there are channels
shapes: x (batch, channels, ...) -> the same
dtypes: float32, float64, bfloat16 or float16
errors: a size below 1 or above 1024; less than two axes
note: TensorFlow's local_response_normalization has a depth_radius r, of which size is 2 r + 1, and its alpha is
  alpha / size here]],
function(given, t, signature)
  local x, size = given.x, given.size
  if #x.shape < 2 then
    signature:fail(": '" .. x.name .. "' is " .. tostring(x.shape) .. ", wanted (batch, channels, ...)")
  end
  if size < 1 or size > 1024 then signature:fail((": size is from 1 to 1024, got %d"):format(size)) end
  return respond(tools.new(t, signature, given.name or t:unnamed("LocalResponseNorm")), x, {
    size = size, before = math.floor(size / 2), alpha = given.alpha, beta = given.beta, bias = given.k })
end)

-- ---- depth to space -----------------------------------------------------------------------------------------------

ops.define("nn.PixelShuffle", { { "input", "blob" }, { "upscale_factor", "integer" } }, [[
Pixel shuffle: channels become places, r = upscale_factor in both directions (Shi and others, "Real-time single image
and video super-resolution using an efficient sub-pixel convolutional neural network", 2016):
  out[n, c, y*r + i, x*r + j] = input[n, c*r*r + i*r + j, y, x]
shapes: input (batch, channels * r * r, height, width) -> (batch, channels, height * r, width * r)]],
function(given, _, signature)
  local x, r = given.input, given.upscale_factor
  if #x.shape ~= 4 then
    signature:fail(": '" .. x.name .. "' is " .. tostring(x.shape) .. ", wanted (batch, channels, height, width)")
  end
  local batch, channels, height, width = unpack(x.shape:table())
  if r < 1 or channels % (r * r) ~= 0 then
    signature:fail(": the " .. channels .. " channels of '" .. x.name .. "' are no multiple of upscale_factor^2 = "
      .. r * r)
  end
  channels = channels / (r * r)
  local apart = ops.apply("reshape", { x }, { shape = { batch, channels, r, r, height, width } })
  local turned = ops.apply("transpose", { apart }, { perm = { 0, 1, 4, 2, 5, 3 } })
  return (ops.apply("reshape", { turned }, { shape = { batch, channels, height * r, width * r } }, given.name))
end)
