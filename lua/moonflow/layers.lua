--- Layers: ops together with their variables.
-- A named layer calls its parts name-weight, name-bias, name-bias_add; an unnamed one is numbered per job, as in the
-- oldest dialect: Dense_6-weight, Dense_6_matmul, Dense_6_bias_add.

local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local errors = require "moonflow.errors"
local initializer = require "moonflow.initializer"
local nn = require "moonflow.nn"
local ops = require "moonflow.ops"
local trace = require "moonflow.trace"
local variable = require "moonflow.variable"

local layers = {}

-- How a layer names its parts. `name` nil: a made-up one, with "_" before the names of ops.
local function naming(t, name, kind)
  if name then return { name = name, joint = "-" } end
  return { name = t:unnamed(kind), joint = "_" }
end

local function part(names, word)
  return names.name .. names.joint .. word
end

-- A variable of a layer. `given` are the layer's arguments.
local function weight(t, where, names, word, shape, init, options)
  options = options or {}
  return variable.get(where, {
    name = options.full_name or t:scoped(names.name .. "-" .. word), shape = shape, dtype = options.dtype,
    initializer = init, regularizer = options.regularizer, trainable = options.trainable, reuse = false,
    owner = "layer", model_name = word,
  })
end

-- Applies an activation: a function such as flow.nn.relu, called with the value and the name of the new op.
local function activate(value, activation, names)
  if not activation then return value end
  local result = activation(value, { name = part(names, "activation") })
  if not blob.is(result) then
    errors.raise("invalid_argument", "the activation of '" .. names.name .. "' must return a blob, got "
      .. arguments.describe(result))
  end
  return result
end

local zeros = initializer.zeros_initializer()
local ones = initializer.ones_initializer()

-- What help says of parameters that mean the same in all layers.
local texts = {
  activation = "a function such as flow.nn.relu, applied to the result",
  use_bias = "add a bias",
  kernel_initializer = "of the weight; xavier uniform when left out",
  recurrent_initializer = "of the state's weight; xavier uniform when left out",
  bias_initializer = "of the bias; zeros when left out",
  beta_initializer = "of what is added; zeros when left out",
  gamma_initializer = "of what multiplies; ones when left out",
  moving_mean_initializer = "of the running mean; zeros when left out",
  moving_variance_initializer = "of the running variance; ones when left out",
  alpha_initializer = "of the slopes; zeros when left out",
  embeddings_initializer = "of the vectors; random normal of deviation 1 when left out",
  kernel_regularizer = "of the weight, such as flow.regularizers.l2(0.01)",
  recurrent_regularizer = "of the state's weight",
  bias_regularizer = "of the bias",
  beta_regularizer = "of what is added",
  gamma_regularizer = "of what multiplies",
  alpha_regularizer = "of the slopes",
  embeddings_regularizer = "of the vectors",
  trainable = "false: no optimizer changes the variables",
  name = "what its variables and ops are called after; else it is numbered",
  model_distribute = "the original's, without effect",
  units = "size of the last axis of the result",
  filters = "channels of the result",
  kernel_size = "size of the window: one number, or one for each axis",
  strides = "steps of the window: one number, or one for each axis",
  padding = "see above",
  data_format = "where the channels are: on axis 1, or last when it ends in C",
  dilation_rate = "distance between neighbours in the window: one number, or one for each axis",
  groups = "parts into which channels and filters are split; each filter sees the channels of its part",
  weight_name = "the whole name of the weight",
  bias_name = "the whole name of the bias",
  gamma_name = "the whole name of gamma",
  beta_name = "the whole name of beta",
  moving_mean_name = "the whole name of the running mean",
  moving_variance_name = "the whole name of the running variance",
  output_shape = "see above",
  center = "add a learned beta",
  scale = "multiply by a learned gamma",
  epsilon = "added to the variance under the root",
  lengths = "how many steps each sequence has; all of them when left out",
  reverse = "from the last step to the first",
  num_embeddings = "how many vectors there are",
  embedding_dim = "how long each is",
  dtype = "of the vectors and the result; the job's default_data_type when left out",
  shared_axes = "axes, counted from the batch as 0, that have a single alpha",
  addend = "what is added before the relu",
  begin_norm_axis = "the first axis of what is normalised together",
  begin_params_axis = "the first axis that beta and gamma have",
}

-- Weights have the dtype of what they meet, and are drawn. An embedding meets numbers of vectors.
local function check_floating(name, x, signature)
  if name ~= "embedding" and not arguments.floating[x.dtype] then
    signature:fail((": inputs must be of a floating dtype, '%s' is %s %s; flow.cast(inputs, flow.float) makes it one")
      :format(x.name, x.dtype, tostring(x.shape)))
  end
end

local function define(name, parameters, doc, make)
  local where = "flow.layers." .. name
  arguments.explain(parameters, texts)
  local signature = arguments.signature(where, parameters)
  layers[name] = function(...)
    local t = trace.need(where)
    local given = signature:parse(...)
    check_floating(name, given.inputs, signature)
    return ops.compose(where, make, t, given, where, signature)
  end
  ops.document(layers[name], where, signature, doc)
end

-- ---- dense --------------------------------------------------------------------------------------------------------

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
function(t, given, where, signature)
  local x, units = given.inputs, given.units
  local rank = #x.shape
  if units < 1 then signature:fail(": units must be at least 1, got " .. units) end
  if rank < 2 then
    signature:fail(": inputs must have rank 2 or more, '" .. x.name .. "' is " .. tostring(x.shape))
  end
  local names = naming(t, given.name, "Dense")
  local sizes = x.shape:table()
  local width = sizes[rank]

  local w = weight(t, where, names, "weight", { units, width },
    given.kernel_initializer or initializer.xavier_uniform_initializer(),
    { dtype = x.dtype, regularizer = given.kernel_regularizer, trainable = given.trainable })
  -- Behind the variable, for the error of a name that is taken is to be that of the variable.
  local flat = x
  if rank > 2 then flat = ops.apply("reshape", { x }, { shape = { -1, width } }, part(names, "flat")) end
  local out = ops.apply("matmul", { flat, w }, { transpose_b = true }, part(names, "matmul"))
  if given.use_bias then
    local b = weight(t, where, names, "bias", { units }, given.bias_initializer or zeros,
      { dtype = x.dtype, regularizer = given.bias_regularizer, trainable = given.trainable })
    out = ops.apply("bias_add", { out, b }, nil, part(names, "bias_add"))
  end
  out = activate(out, given.activation, names)
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
function(t, given, where, signature)
  local x, count, width = given.inputs, given.num_embeddings, given.embedding_dim
  if count < 1 or width < 1 then
    signature:fail((": num_embeddings and embedding_dim must be at least 1, got %d and %d"):format(count, width))
  end
  if arguments.floating[x.dtype] then
    signature:fail(": inputs are numbers of rows, integers, and '" .. x.name .. "' is " .. x.dtype)
  end
  local names = naming(t, given.name, "Embedding")
  local w = weight(t, where, names, "weight", { count, width },
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
shapes: weight (filters, channels / groups, kernel...), channels last (filters, kernel..., channels / groups);
  bias (filters)
padding: "VALID", "SAME" (= "SAME_LOWER": an odd pad goes to the top and left), "SAME_UPPER", or pairs
  { before, after } for all axes: { { 0, 0 }, { 0, 0 }, { 2, 0 } } lets a conv1d of 3 look at nothing that comes later
]]

local transpose_doc = [[
A transposed convolution (flow.nn.conv2d_transpose) with bias and activation.
shapes: weight (channels, filters / groups, kernel...), channels last (channels, kernel...,
  filters / groups); bias (filters)
padding: "VALID", "SAME" (= "SAME_UPPER": height and width times strides), "SAME_LOWER", or pairs per axis
output_shape: (batch, filters, height, width), where strides leave several
]]

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
  function(t, given, where, signature)
    local x = given.inputs
    local sizes = x.shape:table()
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
    local kernel = per_axis(given.kernel_size, axes)
    local from, to = channels, given.filters
    if transposed then from, to = to, from end
    local shape = { to }
    if not last then shape[2] = from / given.groups end
    for _, size in ipairs(kernel) do shape[#shape + 1] = size end
    if last then shape[#shape + 1] = from / given.groups end

    local names = naming(t, given.name, kind)
    local w = weight(t, where, names, "weight", shape,
      given.kernel_initializer or initializer.xavier_uniform_initializer(given.data_format),
      { dtype = x.dtype, regularizer = given.kernel_regularizer, trainable = given.trainable,
        full_name = given.weight_name })
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
    if given.use_bias then
      local b = weight(t, where, names, "bias", { given.filters }, given.bias_initializer or zeros,
        { dtype = x.dtype, regularizer = given.bias_regularizer, trainable = given.trainable,
          full_name = given.bias_name })
      out = ops.apply("bias_add", { out, b }, { data_format = given.data_format }, part(names, "bias_add"))
    end
    return activate(out, given.activation, names)
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

local function batch_normalization(t, given, where, signature)
  local x = given.inputs
  local axis = signature:axis(given.axis, #x.shape)
  local size = x.shape[axis]
  local dtype = arguments.narrow[x.dtype] and "float32" or x.dtype
  local names = naming(t, given.name, "BatchNorm")
  local function parameter(word, init, regularizer, trainable)
    return weight(t, where, names, word, { size }, init,
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
    local out, batch_mean, inv_std = ops.apply("batch_norm_train", { x, gamma, beta },
      { axis = axis, epsilon = given.epsilon }, names.name)
    ops.apply("moving_statistics_update", { mean, variance, batch_mean, inv_std },
      { momentum = given.momentum, epsilon = given.epsilon, count = x.shape:count() / size }, part(names, "moving"))
    return out, names
  end
  return (ops.apply("batch_norm_infer", { x, gamma, beta, mean, variance },
    { axis = axis, epsilon = given.epsilon }, names.name)), names
end

define("batch_normalization", normalisation_parameters, [[
Normalises over every axis but `axis`, then scales and shifts: gamma * (x - mean) / sqrt(variance + epsilon) + beta.
In a train job with the statistics of the batch, which also move the running ones
(running = running * momentum + batch * (1 - momentum), unbiased variance); else with the running ones. These begin at 0
and 1, of which momentum^steps is left: 0.37 after 100 steps with 0.99. Short trainings predict better with 0.9.
defaults: axis 1, the channels of NCHW (the original: -1); momentum 0.99; epsilon 1e-3
variables: name-gamma, name-beta, name-moving_mean, name-moving_variance]], function(...)
  return (batch_normalization(...))
end)

define("batch_normalization_relu", normalisation_parameters, "relu(batch_normalization(x)).", function(...)
  local out, names = batch_normalization(...)
  return ops.apply("relu", { out }, nil, part(names, "relu"))
end)

local add_parameters = { { "inputs", "blob" }, { "addend", "blob?" } }
for i = 2, #normalisation_parameters do add_parameters[i + 1] = normalisation_parameters[i] end
define("batch_normalization_add_relu", add_parameters, "relu(batch_normalization(x) + addend).",
  function(t, given, where, signature)
    local out, names = batch_normalization(t, given, where, signature)
    if given.addend then out = ops.apply("add", { out, given.addend }, nil, part(names, "add")) end
    return ops.apply("relu", { out }, nil, part(names, "relu"))
  end)

define("layer_norm", {
  { "inputs", "blob" }, { "center", "boolean", true }, { "scale", "boolean", true }, { "trainable", "boolean", true },
  { "begin_norm_axis", "integer", 1 }, { "begin_params_axis", "integer", -1 }, { "epsilon", "finite", 1e-5 },
  { "name", "string?" },
}, [[
Normalises each sample over the axes from begin_norm_axis on, then scales and shifts.
shapes: gamma and beta have the sizes of the axes from begin_params_axis on
variables: name-gamma (ones), name-beta (zeros)]],
function(t, given, where, signature)
  local x = given.inputs
  local rank = #x.shape
  local shape = {}
  for axis = signature:axis(given.begin_params_axis, rank), rank - 1 do shape[#shape + 1] = x.shape[axis] end
  local names = naming(t, given.name, "LayerNorm")
  local options = { dtype = x.dtype, trainable = given.trainable }
  return nn.layer_norm(x, {
    gamma = given.scale and weight(t, where, names, "gamma", shape, ones, options) or nil,
    beta = given.center and weight(t, where, names, "beta", shape, zeros, options) or nil,
    begin_norm_axis = signature:axis(given.begin_norm_axis, rank), begin_params_axis = given.begin_params_axis,
    epsilon = given.epsilon, name = names.name,
  })
end)

define("prelu", {
  { "inputs", "blob" }, { "alpha_initializer", "initializer?" }, { "alpha_regularizer", "regularizer?" },
  { "shared_axes", "list?" }, { "trainable", "boolean", true }, { "name", "string?" }, { "model_distribute", "any?" },
}, [[
max(x, 0) + alpha * min(x, 0), with one alpha per element of a sample; shared_axes have a single one.
variables: name-alpha (zeros)]],
function(t, given, where, signature)
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
  local alpha = weight(t, where, names, "alpha", shape, given.alpha_initializer or zeros,
    { dtype = x.dtype, regularizer = given.alpha_regularizer, trainable = given.trainable })
  local above = ops.apply("relu", { x }, nil, part(names, "above"))
  local below = ops.apply("relu", { -x }, nil, part(names, "below"))
  return ops.apply("subtract", { above, ops.apply("multiply", { alpha, below }, nil, part(names, "slope")) }, nil,
    names.name)
end)

require("moonflow.layers_recurrent")(define, naming, part, weight)

--- Makes the layers whose ops are in the catalog.
function layers.complete()
  if ops.has("conv1d") then convolution("conv1d", 1, "NCW", "Conv1d") end
  convolution("conv2d", 2, "NCHW", "Conv2d")
  convolution("conv3d", 3, "NCDHW", "Conv3d", nn.conv3d)
  convolution("conv2d_transpose", 2, "NCHW", "Conv2dTranspose", nn.conv2d_transpose, true)
end

return layers
