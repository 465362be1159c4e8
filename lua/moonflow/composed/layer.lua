--- What all layers have: names, variables, an activation, texts about their parameters.
-- A named layer calls its parts name-weight, name-bias, name-bias_add; an unnamed one is numbered per job, as in the
-- oldest dialect: Dense_6-weight, Dense_6_matmul, Dense_6_bias_add.

local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local ops = require "moonflow.ops"
local variable = require "moonflow.variable"

local layer = {}

--- How a layer names its parts. `name` nil: a made-up one, with "_" before the names of ops.
function layer.naming(t, name, kind)
  if name then return { name = name, joint = "-" } end
  return { name = t:unnamed(kind), joint = "_" }
end

--- The name of a part of a layer.
function layer.part(names, word)
  return names.name .. names.joint .. word
end

--- A variable of the layer that is called `where`.
--- @param options? table  dtype, regularizer, trainable, and full_name where it is not called after the layer
function layer.weight(t, where, names, word, shape, init, options)
  options = options or {}
  return variable.get(where, {
    name = options.full_name or t:scoped(names.name .. "-" .. word), shape = shape, dtype = options.dtype,
    initializer = init, regularizer = options.regularizer, trainable = options.trainable, reuse = false,
    owner = "layer", model_name = word,
  })
end

--- Applies an activation: a function such as flow.nn.relu, called with the value and the name of the new op.
function layer.activate(value, activation, names)
  if not activation then return value end
  local result = activation(value, { name = layer.part(names, "activation") })
  if not blob.is(result) then
    errors.raise("invalid_argument", "the activation of '" .. names.name .. "' must return a blob, got "
      .. arguments.describe(result))
  end
  return result
end

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
  trainable = "false freezes the variables: no optimizer changes them",
  name = "what its variables and ops are called after; else it is numbered, and jobs share what has one number",
  model_distribute = "the original's, without effect",
  units = "size of the last axis of the result",
  filters = "channels of the result",
  kernel_size = "size of the window: one number, or one for each axis",
  strides = "steps of the window: one number, or one for each axis",
  padding = "see above",
  data_format = "where the channels are: on axis 1, or last when it ends in C",
  dilation_rate = "distance between neighbours in the window: one number, or one for each axis",
  groups = "parts into which channels and filters are split; each filter sees the channels of its part. As many as "
    .. "channels make it a depthwise convolution",
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
  if name ~= "embedding" and not dtypes.floating[x.dtype] then
    signature:fail((": inputs must be of a floating dtype, '%s' is %s %s; flow.cast(inputs, flow.float) makes it one")
      :format(x.name, x.dtype, tostring(x.shape)))
  end
end

--- Makes the layer flow.layers.<name>, as ops.define does.
function layer.define(name, parameters, doc, make)
  arguments.explain(parameters, texts)
  ops.define("layers." .. name, parameters, doc, function(given, t, signature)
    check_floating(name, given.inputs, signature)
    return make(given, t, signature)
  end, nil, make)
end

return layer
