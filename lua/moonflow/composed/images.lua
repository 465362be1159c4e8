--- The part of flow.nn that is about images and put together from ops: pooling along one axis, normalisation of
-- channels, PixelShuffle and its inverse.

local initializer = require "moonflow.initializer"
local ops = require "moonflow.ops"
local respond = require "moonflow.formulas.responses"
local tools = require "moonflow.composed.tools"
local variable = require "moonflow.variable"
local windows = require "moonflow.formulas.windows"

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

-- ---- depth to space, and back --------------------------------------------------------------------------------------

-- The input's sizes, where there are four, and r, where it is one.
local function sizes_and_factor(given, word, signature)
  local x, r = given.input, given[word]
  if #x.shape ~= 4 then
    signature:fail(": '" .. x.name .. "' is " .. tostring(x.shape) .. ", wanted (batch, channels, height, width)")
  end
  if r < 1 then signature:fail((": %s must be 1 or more, got %d"):format(word, r)) end
  return r, unpack(x.shape:table())
end

local function rearranged(x, apart, perm, together, name)
  local turned = ops.apply("transpose", { (ops.apply("reshape", { x }, { shape = apart })) }, { perm = perm })
  return (ops.apply("reshape", { turned }, { shape = together }, name))
end

ops.define("nn.PixelShuffle", { { "input", "blob" }, { "upscale_factor", "integer" } }, [[
Pixel shuffle, depth to space: channels become places, r = upscale_factor in both directions (Shi and others, "Real-time
single image and video super-resolution using an efficient sub-pixel convolutional neural network", 2016):
  out[n, c, y*r + i, x*r + j] = input[n, c*r*r + i*r + j, y, x]
shapes: input (batch, channels * r * r, height, width) -> (batch, channels, height * r, width * r)]],
function(given, _, signature)
  local x, r, batch, channels, height, width = given.input, sizes_and_factor(given, "upscale_factor", signature)
  if channels % (r * r) ~= 0 then
    signature:fail(": the " .. channels .. " channels of '" .. x.name .. "' are no multiple of upscale_factor^2 = "
      .. r * r)
  end
  channels = channels / (r * r)
  return rearranged(x, { batch, channels, r, r, height, width }, { 0, 1, 4, 2, 5, 3 },
    { batch, channels, height * r, width * r }, given.name)
end)

ops.define("nn.PixelUnshuffle", { { "input", "blob" }, { "downscale_factor", "integer" } }, [[
Pixel unshuffle, space to depth: places become channels, r = downscale_factor in both directions, as PixelShuffle
undoes it. What is along the channels are then the patches of the picture, as a vision transformer sees them:
  out[n, c*r*r + i*r + j, y, x] = input[n, c, y*r + i, x*r + j]
shapes: input (batch, channels, height * r, width * r) -> (batch, channels * r * r, height, width)]],
function(given, _, signature)
  local x, r, batch, channels, height, width = given.input, sizes_and_factor(given, "downscale_factor", signature)
  if height % r ~= 0 or width % r ~= 0 then
    signature:fail((": height and width of '%s' %s are no multiples of downscale_factor = %d"):format(x.name,
      tostring(x.shape), r))
  end
  height, width = height / r, width / r
  return rearranged(x, { batch, channels, height, r, width, r }, { 0, 1, 3, 5, 2, 4 },
    { batch, channels * r * r, height, width }, given.name)
end)
