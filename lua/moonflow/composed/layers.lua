--- The layers of single steps: dense, embedding, convolution, normalisation, prelu.

local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local initializer = require "moonflow.initializer"
local layer = require "moonflow.composed.layer"
local ops = require "moonflow.ops"
local session = require "moonflow.session"

local nn = ops.functions.nn
local define, naming, part, weight, activate = layer.define, layer.naming, layer.part, layer.weight, layer.activate
local zeros = initializer.zeros_initializer()
local ones = initializer.ones_initializer()

-- ---- dense --------------------------------------------------------------------------------------------------------

-- What multiplies the inputs of a layer.
local function kernel_of(given, t, signature, names, shape)
  return weight(t, signature.where, names, "weight", shape,
    given.kernel_initializer or initializer.xavier_uniform_initializer(given.data_format),
    { dtype = given.inputs.dtype, regularizer = given.kernel_regularizer, trainable = given.trainable,
      full_name = given.weight_name })
end

-- The product with that, with a bias of so many numbers and the activation where the layer has them.
local function finished(product, given, t, signature, names, size)
  if given.use_bias then
    local bias = weight(t, signature.where, names, "bias", { size }, given.bias_initializer or zeros,
      { dtype = given.inputs.dtype, regularizer = given.bias_regularizer, trainable = given.trainable,
        full_name = given.bias_name })
    product = ops.apply("bias_add", { product, bias }, { data_format = given.data_format }, part(names, "bias_add"))
  end
  return activate(product, given.activation, names)
end

define("dense", {
  { "inputs", "blob" }, { "units", "integer" }, { "activation", "callable?" }, { "use_bias", "boolean", true },
  { "kernel_initializer", "initializer?" }, { "bias_initializer", "initializer?" },
  { "kernel_regularizer", "regularizer?" }, { "bias_regularizer", "regularizer?" }, { "trainable", "boolean", true },
  { "name", "string?" }, { "model_distribute", "any?" },
}, [[
A linear layer over the last axis: activation(inputs . weight^T + bias).
shapes: inputs (..., in) -> (..., units); weight (units, in); bias (units)
defaults: kernel_initializer xavier uniform (the original: zeros), bias_initializer zeros
variables: name-weight, name-bias; ops: name-matmul, name-bias_add, name-activation]],
function(given, t, signature)
  local x, units = given.inputs, given.units
  local rank = #x.shape
  if units < 1 then signature:fail(": units must be at least 1, got " .. units) end
  if rank < 2 then
    signature:fail(": inputs must have rank 2 or more, '" .. x.name .. "' is " .. tostring(x.shape))
  end
  local names = naming(t, given.name, "Dense")
  local sizes = x.shape:table()
  local width = sizes[rank]

  local w = kernel_of(given, t, signature, names, { units, width })
  -- Behind the variable, for the error of a name that is taken is to be that of the variable.
  local flat = x
  if rank > 2 then flat = ops.apply("reshape", { x }, { shape = { -1, width } }, part(names, "flat")) end
  local out = ops.apply("matmul", { flat, w }, { transpose_b = true }, part(names, "matmul"))
  out = finished(out, given, t, signature, names, units)
  if rank > 2 then
    sizes[rank] = units
    out = ops.apply("reshape", { out }, { shape = sizes }, part(names, "shape"))
  end
  return out
end)

-- ---- embedding ----------------------------------------------------------------------------------------------------

define("embedding", {
  { "inputs", "blob" }, { "num_embeddings", "integer" }, { "embedding_dim", "integer" },
  { "embeddings_initializer", "initializer?" }, { "embeddings_regularizer", "regularizer?" }, { "dtype", "dtype?" },
  { "trainable", "boolean", true }, { "name", "string?" },
}, [[
A learned vector for each of num_embeddings things, such as words, picked by their numbers from 0.
  out[i..., j] = weight[inputs[i...], j]
shapes: inputs (...) -> (..., embedding_dim); weight (num_embeddings, embedding_dim)
dtypes: inputs of an integer dtype; out and weight of `dtype`
defaults: embeddings_initializer random normal of deviation 1, dtype the job's default_data_type
errors: inputs of a floating dtype; in a run, a number outside [0, num_embeddings), with its position
variables: name-weight; ops: name]],
function(given, t, signature)
  local x, count, width = given.inputs, given.num_embeddings, given.embedding_dim
  if count < 1 or width < 1 then
    signature:fail((": num_embeddings and embedding_dim must be at least 1, got %d and %d"):format(count, width))
  end
  if dtypes.floating[x.dtype] then
    signature:fail(": inputs are numbers of rows, integers, and '" .. x.name .. "' is " .. x.dtype)
  end
  local names = naming(t, given.name, "Embedding")
  local w = weight(t, signature.where, names, "weight", { count, width },
    given.embeddings_initializer or initializer.random_normal_initializer(),
    { dtype = given.dtype, regularizer = given.embeddings_regularizer, trainable = given.trainable })
  return ops.apply("gather", { w, x }, { axis = 0 }, names.name)
end)

-- ---- convolution --------------------------------------------------------------------------------------------------

-- One number per spatial axis.
local function per_axis(value, axes)
  local list = arguments.flat_list(value)
  if #list == 1 then
    for i = 2, axes do list[i] = list[1] end
  end
  return list
end

local convolution_doc = [[
A convolution with bias and activation.
formula, sizes: those of flow.nn.conv1d, conv2d and conv3d
shapes: weight (filters, channels / groups, kernel...), channels last (filters, kernel..., channels / groups);
  bias (filters)
padding: "VALID", "SAME" (= "SAME_LOWER": an odd pad goes to the top and left), "SAME_UPPER"; a number, or one for each
  spatial axis, { 1, 2 } for height and width; or a pair { before, after } for each spatial axis, or for each of all:
  { { 2, 0 } } lets a conv1d of 3 look at nothing that comes later
]]

local transpose_doc = [[
A transposed convolution (flow.nn.conv1d_transpose, conv2d_transpose or conv3d_transpose) with bias and activation.
shapes: weight (channels, filters / groups, kernel...), channels last (channels, kernel...,
  filters / groups); bias (filters)
padding: "VALID", "SAME" (= "SAME_UPPER": sizes times strides), "SAME_LOWER", a number, or one or a pair
  { before, after } for each spatial axis
output_shape: (batch, filters, sizes...), where strides leave several
]]

-- The shape of the weight of a convolution, where its arguments fit one another.
local function shape_of_kernel(given, axes, default_format, transposed, signature)
  local x, sizes = given.inputs, given.inputs.shape:table()
  if #sizes ~= axes + 2 then
    signature:fail(": inputs must have rank " .. axes + 2 .. " (" .. given.data_format .. "), '" .. x.name .. "' is "
      .. tostring(x.shape))
  end
  local last_format = "N" .. default_format:sub(3) .. "C"
  if given.data_format ~= default_format and given.data_format ~= last_format then
    signature:fail((": data_format is '%s', wanted '%s' or '%s'"):format(given.data_format, default_format,
      last_format))
  end
  if given.filters < 1 or given.groups < 1 then signature:fail(": filters and groups must be at least 1") end
  local last = given.data_format == last_format
  local channels = last and sizes[axes + 2] or sizes[2]
  if channels % given.groups ~= 0 or given.filters % given.groups ~= 0 then
    signature:fail(": " .. channels .. " channels and " .. given.filters .. " filters cannot be split into "
      .. given.groups .. " groups")
  end
  local from, to = channels, given.filters
  if transposed then from, to = to, from end
  local shape = { to }
  if not last then shape[2] = from / given.groups end
  for _, size in ipairs(per_axis(given.kernel_size, axes)) do shape[#shape + 1] = size end
  if last then shape[#shape + 1] = from / given.groups end
  return shape
end

-- `convolve` is the function of flow.nn where it is no op of the catalog; is its filter `transposed`, taken backwards?
local function convolution(name, axes, default_format, kind, convolve, transposed)
  define(name, {
    { "inputs", "blob" }, { "filters", "integer" }, { "kernel_size", "list", 1 }, { "strides", "list", 1 },
    { "padding", "any", "VALID" }, { "data_format", "string", default_format }, { "dilation_rate", "list", 1 },
    { "groups", "integer", 1 }, { "activation", "callable?" }, { "use_bias", "boolean", true },
    { "kernel_initializer", "initializer?" }, { "bias_initializer", "initializer?" },
    { "kernel_regularizer", "regularizer?" }, { "bias_regularizer", "regularizer?" },
    { "trainable", "boolean", true }, { "name", "string?" }, { "weight_name", "string?" }, { "bias_name", "string?" },
    transposed and { "output_shape", "list?" } or nil,
  }, (transposed and transpose_doc or convolution_doc) .. [[
defaults: kernel_initializer xavier uniform, bias_initializer zeros
variables: name-weight, name-bias (weight_name and bias_name name them wholly); ops: name, name-bias_add,
name-activation]],
  function(given, t, signature)
    local x = given.inputs
    local shape = shape_of_kernel(given, axes, default_format, transposed, signature)
    local names = naming(t, given.name, kind)
    local w = kernel_of(given, t, signature, names, shape)
    local options = {
      strides = per_axis(given.strides, axes), padding = given.padding, data_format = given.data_format,
      dilations = per_axis(given.dilation_rate, axes), groups = given.groups,
    }
    local out
    if convolve then
      options.output_shape, options.name = given.output_shape, names.name
      out = convolve(x, w, options)
    else
      out = ops.apply(name, { x, w }, options, names.name)
    end
    return finished(out, given, t, signature, names, given.filters)
  end)
end

-- ---- normalisation ------------------------------------------------------------------------------------------------

local normalisation_parameters = {
  { "inputs", "blob" }, { "axis", "integer", 1, text = "that of the channels; a negative one counts from the end" },
  { "momentum", "finite", 0.99, text = "share of the running statistics that a step keeps; PyTorch's is 1 minus this" },
  { "epsilon", "finite", 0.001 }, { "center", "boolean", true }, { "scale", "boolean", true },
  { "beta_initializer", "initializer?" },
  { "gamma_initializer", "initializer?" }, { "beta_regularizer", "regularizer?" },
  { "gamma_regularizer", "regularizer?" }, { "moving_mean_initializer", "initializer?" },
  { "moving_variance_initializer", "initializer?" },
  { "trainable", "boolean", true, text = "false: no optimizer changes the variables, and training is false too" },
  { "training", "boolean", true, text = "false: with the running statistics in a train job too" },
  { "name", "string?" }, { "gamma_name", "string?" }, { "beta_name", "string?" }, { "moving_mean_name", "string?" },
  { "moving_variance_name", "string?" },
}

local function batch_normalization(given, t, signature)
  local x = given.inputs
  local axis = signature:axis(given.axis, #x.shape)
  local size = x.shape[axis]
  local dtype = dtypes.narrow[x.dtype] and "float32" or x.dtype
  local names = naming(t, given.name, "BatchNorm")
  local function parameter(word, init, regularizer, trainable)
    return weight(t, signature.where, names, word, { size }, init,
      { dtype = dtype, regularizer = regularizer, trainable = trainable, full_name = given[word .. "_name"] })
  end
  local beta = given.center
    and parameter("beta", given.beta_initializer or zeros, given.beta_regularizer, given.trainable)
    or ops.filled(t, 0, dtype, size)
  local gamma = given.scale
    and parameter("gamma", given.gamma_initializer or ones, given.gamma_regularizer, given.trainable)
    or ops.filled(t, 1, dtype, size)
  local mean = parameter("moving_mean", given.moving_mean_initializer or zeros, nil, false)
  local variance = parameter("moving_variance", given.moving_variance_initializer or ones, nil, false)
  if t.type == "train" and given.trainable and given.training then
    local count = x.shape:count() / size
    if count == 1 and not t.has_lone_values then
      t.has_lone_values = true
      session.log(("moonflow: %s: %s: inputs '%s' is %s, one value for each channel of axis %d. Trained with, it gives "
        .. "beta whatever it is, and moves the running variance towards 0; leave out a last batch of 1, give "
        .. "training = false, or take another norm, such as flow.layers.layer_norm"):format(errors.site() or "?",
        signature.where, x.name, tostring(x.shape), axis))
    end
    local out, batch_mean, inv_std = ops.apply("batch_norm_train", { x, gamma, beta },
      { axis = axis, epsilon = given.epsilon }, names.name)
    t:note_statistics({ mean.id, variance.id }, batch_mean.id, inv_std.id,
      { momentum = given.momentum, epsilon = given.epsilon, count = count }, part(names, "moving"))
    return out, names
  end
  return (ops.apply("batch_norm_infer", { x, gamma, beta, mean, variance },
    { axis = axis, epsilon = given.epsilon }, names.name)), names
end

define("batch_normalization", normalisation_parameters, [[
Normalises over every axis but `axis`, then scales and shifts: gamma * (x - mean) / sqrt(variance + epsilon) + beta.
In a train job with the statistics of the batch, its variance over the number of elements, which also move the running
ones (running = running * momentum + batch * (1 - momentum), unbiased variance); else with the running ones. These begin
at 0 and 1, of which momentum^steps is left: 0.37 after 100 steps with 0.99. Short trainings predict better with 0.9.
A batch with one value for each channel, such as a last one of 1, gives beta in a train job, which a line of log says.
defaults: axis 1, the channels of NCHW (the original: -1); momentum 0.99; epsilon 1e-3
variables: name-gamma, name-beta, name-moving_mean, name-moving_variance]], function(...)
  return (batch_normalization(...))
end)

define("batch_normalization_relu", normalisation_parameters, "relu(flow.layers.batch_normalization(inputs)).",
function(...)
  local out, names = batch_normalization(...)
  return ops.apply("relu", { out }, nil, part(names, "relu"))
end)

local add_parameters = { { "inputs", "blob" }, { "addend", "blob?" } }
for i = 2, #normalisation_parameters do add_parameters[i + 1] = normalisation_parameters[i] end
define("batch_normalization_add_relu", add_parameters, "relu(flow.layers.batch_normalization(inputs) + addend).",
  function(given, t, signature)
    local out, names = batch_normalization(given, t, signature)
    if given.addend then out = ops.apply("add", { out, given.addend }, nil, part(names, "add")) end
    return ops.apply("relu", { out }, nil, part(names, "relu"))
  end)

define("layer_norm", {
  { "inputs", "blob" }, { "center", "boolean", true }, { "scale", "boolean", true }, { "trainable", "boolean", true },
  { "begin_norm_axis", "integer", 1 }, { "begin_params_axis", "integer", -1 }, { "epsilon", "finite", 1e-5 },
  { "name", "string?" },
}, [[
Normalises each sample over the axes from begin_norm_axis on, then scales and shifts.
  out = (inputs - mean) / sqrt(variance + epsilon) * gamma + beta, with the variance over the number of elements
shapes: inputs (batch, ...) -> alike; gamma and beta have the sizes of the axes from begin_params_axis on
variables: name-gamma (ones), name-beta (zeros)]],
function(given, t, signature)
  local x = given.inputs
  local rank = #x.shape
  local shape = {}
  for axis = signature:axis(given.begin_params_axis, rank), rank - 1 do shape[#shape + 1] = x.shape[axis] end
  local names = naming(t, given.name, "LayerNorm")
  local options = { dtype = x.dtype, trainable = given.trainable }
  return nn.layer_norm(x, {
    gamma = given.scale and weight(t, signature.where, names, "gamma", shape, ones, options) or nil,
    beta = given.center and weight(t, signature.where, names, "beta", shape, zeros, options) or nil,
    begin_norm_axis = signature:axis(given.begin_norm_axis, rank), begin_params_axis = given.begin_params_axis,
    epsilon = given.epsilon, name = names.name,
  })
end)

define("rms_norm", {
  { "inputs", "blob" }, { "scale", "boolean", true }, { "trainable", "boolean", true },
  { "begin_norm_axis", "integer", -1 },
  { "epsilon", "finite", 1e-5, text = "added to the mean of the squares under the root" }, { "name", "string?" },
}, [[
Divides each row by the root of its mean square, then scales it: a layer_norm that takes no mean off, as nets that write
have it. A row is the last axis, or everything from begin_norm_axis on.
  out = inputs / sqrt(mean(inputs^2) + epsilon) * gamma
shapes: inputs (..., n...) -> alike; gamma (n...)
variables: name-gamma (ones)]],
function(given, t, signature)
  local x = given.inputs
  local axis = signature:axis(given.begin_norm_axis, #x.shape)
  local names = naming(t, given.name, "RmsNorm")
  return nn.rms_norm(x, {
    gamma = given.scale and weight(t, signature.where, names, "gamma", { unpack(x.shape:table(), axis + 1) }, ones,
      { dtype = x.dtype, trainable = given.trainable }) or nil,
    begin_norm_axis = axis, epsilon = given.epsilon, name = names.name,
  })
end)

define("prelu", {
  { "inputs", "blob" }, { "alpha_initializer", "initializer?" }, { "alpha_regularizer", "regularizer?" },
  { "shared_axes", "list?" }, { "trainable", "boolean", true }, { "name", "string?" }, { "model_distribute", "any?" },
}, [[
max(x, 0) + alpha * min(x, 0), with one alpha per element of a sample; shared_axes have a single one.
variables: name-alpha (zeros)]],
function(given, t, signature)
  local x = given.inputs
  local rank = #x.shape
  if rank < 2 then signature:fail(": inputs must have rank 2 or more, '" .. x.name .. "' is " .. tostring(x.shape)) end
  local shape = {}
  for axis = 1, rank - 1 do shape[axis] = x.shape[axis] end
  for _, axis in ipairs(given.shared_axes and arguments.flat_list(given.shared_axes) or {}) do
    axis = signature:axis(axis, rank)
    if axis == 0 then signature:fail(": shared_axes has axis 0, that of the samples, which share their alphas") end
    shape[axis] = 1
  end
  local names = naming(t, given.name, "PRelu")
  local alpha = weight(t, signature.where, names, "alpha", shape, given.alpha_initializer or zeros,
    { dtype = x.dtype, regularizer = given.alpha_regularizer, trainable = given.trainable })
  local above = ops.apply("relu", { x }, nil, part(names, "above"))
  local below = ops.apply("relu", { -x }, nil, part(names, "below"))
  return ops.apply("subtract", { above, ops.apply("multiply", { alpha, below }, nil, part(names, "slope")) }, nil,
    names.name)
end)

convolution("conv1d", 1, "NCW", "Conv1d")
convolution("conv2d", 2, "NCHW", "Conv2d")
convolution("conv3d", 3, "NCDHW", "Conv3d", nn.conv3d)
convolution("conv1d_transpose", 1, "NCW", "Conv1dTranspose", nn.conv1d_transpose, true)
convolution("conv2d_transpose", 2, "NCHW", "Conv2dTranspose", nn.conv2d_transpose, true)
convolution("conv3d_transpose", 3, "NCDHW", "Conv3dTranspose", nn.conv3d_transpose, true)
