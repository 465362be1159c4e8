--- Call forms: what OneFlow calls the parameters of a function, and of flow.np NumPy, and their order there, where
-- either is not ours. With it a call of a ported script means what it did. np.eye and np.pad take what was their own
-- order before they had NumPy's. Draws in a job, which OneFlow had not, are as TensorFlow's.
-- A form lists the original's parameters: "name", "original=ours", or, of one that there is none of here, a table: its
-- name, its kind, the only value it may have (any of its kind when nil), and what to do about others. The order is
-- taken where what is given by position does not fit ours; the names are always taken. Where both orders would take the
-- same values for different parameters, those after the first `named_after` go by name.

local validate_indices = { "validate_indices", "boolean" }
local conjugate, batch_axis_stays = { "conjugate", "boolean", false }, { "batch_axis_non_change", "boolean" }
local of_its_own_type = { "dtype", "dtype" }
local train_step_lbn = { "train_step_lbn", "string" }
local sort_kind = { "kind", "string" }  -- equal ones stay in their order in any case
local max_dim_size = { "max_dim_size", "integer" }

local pooling = { "input=x", "ksize", "strides", "padding", "data_format", "ceil_mode", "name" }
local pooling_of_rows = { "input=x", "ksize", "strides", "padding", "data_format", "name" }
local convolution = { "input=x", "filters=filter", "strides", "padding", "data_format", "dilations", "groups", "name" }
local clipping = { "values=x", "min_value=min", "max_value=max", "name" }
local like_another = { "like=x", "name" }
local one_input = { "input=x" }
local reduction = { "input_tensor=x", "axis", "keepdims", "name" }
local sorting = { "input=x", "axis", "direction", "name" }

return {
  ["flow.argsort"] = sorting,
  ["flow.assign"] = { "ref=variable", "value", of_its_own_type, "name" },
  ["flow.checkpoint.save"] = { "path", "var_dict=values" },
  ["flow.clip_by_value"] = clipping,
  ["flow.concat"] = { "inputs", "axis", max_dim_size, "name", "values=inputs" },
  ["flow.data.load_mnist"] = { "out_dir=dir" },
  ["flow.dim_gather"] = one_input,
  ["flow.expand_dims"] = one_input,
  ["flow.flatten"] = one_input,
  ["flow.gather"] = { "params", "indices", validate_indices, "axis", "batch_dims", "name" },
  ["flow.layers.upsample_2d"] = { "x", "size", "data_format", "interpolation", "name" },
  ["flow.load_variables"] = { "value_dict=values" },
  ["flow.math.argmax"] = one_input,
  ["flow.math.l2_normalize"] = one_input,
  ["flow.math.reduce_euclidean_norm"] = reduction,
  ["flow.math.reduce_logsumexp"] = reduction,
  ["flow.math.reduce_mean"] = { "input_blob=x", "axis", "keepdims", "name" },
  ["flow.math.reduce_std"] = reduction,
  ["flow.math.reduce_sum"] = reduction,
  ["flow.math.reduce_variance"] = reduction,
  ["flow.math.top_k"] = { "input=x", "axis", "k", "sorted", "name" },
  ["flow.nn.avg_pool1d"] = pooling_of_rows,
  ["flow.nn.avg_pool2d"] = pooling,
  ["flow.nn.avg_pool3d"] = pooling,
  ["flow.nn.conv1d"] = convolution,
  ["flow.nn.conv2d"] = convolution,
  ["flow.nn.conv2d_transpose"] = {
    "value", "filter", "output_shape", "strides", "padding", "data_format", "name", "input=value", "filters=filter",
    "dilations",
  },
  ["flow.nn.conv3d"] = convolution,
  ["flow.nn.max_pool1d"] = pooling_of_rows,
  ["flow.nn.max_pool2d"] = pooling,
  ["flow.nn.max_pool3d"] = pooling,
  ["flow.ones_like"] = like_another,
  ["flow.optimizer.Adam"] = {
    "lr_scheduler", "beta1", "beta2", "epsilon", "do_bias_correction", "loss_scale_factor", "grad_clipping",
    train_step_lbn, "loss_scale_policy",
  },
  ["flow.optimizer.AdamW"] = {
    "lr_scheduler", "beta1", "beta2", "epsilon", "do_bias_correction", "loss_scale_factor", "weight_decay",
    "weight_decay_includes", "weight_decay_excludes", "grad_clipping", train_step_lbn, "loss_scale_policy",
    named_after = 5,
  },
  ["flow.optimizer.LAMB"] = {
    "lr_scheduler", "beta1", "beta2", "epsilon", "loss_scale_factor", "weight_decay", "weight_decay_includes",
    "weight_decay_excludes", "grad_clipping", train_step_lbn, "loss_scale_policy", named_after = 4,
  },
  ["flow.optimizer.LARS"] = {
    "lr_scheduler", "momentum_beta", "epsilon", "lars_coefficient", "loss_scale_factor", "grad_clipping",
    train_step_lbn, "loss_scale_policy",
  },
  ["flow.optimizer.LazyAdam"] = {
    "lr_scheduler", "beta1", "beta2", "epsilon", "loss_scale_factor", "grad_clipping", train_step_lbn,
    "loss_scale_policy",
  },
  ["flow.optimizer.RMSProp"] = {
    "lr_scheduler", "decay_rate", "epsilon", "centered", "loss_scale_factor", "grad_clipping", train_step_lbn,
    "loss_scale_policy",
  },
  ["flow.optimizer.SGD"] = {
    "lr_scheduler", "loss_scale_factor", "momentum", "grad_clipping", train_step_lbn, "loss_scale_policy",
    named_after = 2,
  },
  ["flow.optimizer.SGDW"] = {
    "lr_scheduler", "loss_scale_factor", "momentum", "weight_decay", "weight_decay_includes", "weight_decay_excludes",
    "grad_clipping", train_step_lbn, "loss_scale_policy", named_after = 2,
  },
  ["flow.random.bernoulli"] = { "x", "seed", of_its_own_type, "name" },
  ["flow.random.normal"] = { "shape", "mean", "stddev", "dtype", "seed", "name" },
  ["flow.random.uniform"] = { "shape", "minval=low", "maxval=high", "dtype", "seed", "name" },
  ["flow.range"] = { "start", "limit=stop", "delta=step", "dtype", "name" },
  ["flow.reverse"] = one_input,
  ["flow.slice_v2"] = { "x", "slice_tup_list=slices" },
  ["flow.sort"] = sorting,
  ["flow.squeeze"] = one_input,
  ["flow.transpose"] = { "a=x", "perm", conjugate, batch_axis_stays, "name" },
  ["flow.zeros_like"] = like_another,

  ["np.array"] = { "object=source", "dtype" },
  ["np.clip"] = { "a", "min=a_min", "max=a_max" },
  ["np.eye"] = { "size", "dtype", "N=size", "M=columns" },
  ["np.full"] = { "shape", "fill_value=value", "dtype" },
  ["np.full_like"] = { "a", "fill_value=value", "dtype" },
  ["np.geomspace"] = { "start", "stop", "num=count" },
  ["np.isin"] = { "element=a", "test_elements=values" },
  ["np.argsort"] = { "a", "axis", sort_kind },
  ["np.linalg.eigh"] = { "a", { "UPLO", "string", "L", "np.linalg.eigh(a:transpose()) reads the upper triangle" } },
  ["np.linalg.qr"] = { "a", { "mode", "string", "reduced" } },
  ["np.linalg.svd"] = { "a", { "full_matrices", "boolean", false } },
  ["np.linspace"] = { "start", "stop", "num=count" },
  ["np.logspace"] = { "start", "stop", "num=count" },
  ["np.pad"] = { "array=a", "pad_width", "constant_values" },
  ["np.random.beta"] = { "a", "b", "size=shape" },
  ["np.random.binomial"] = { "n", "p", "size=shape" },
  ["np.random.chisquare"] = { "df", "size=shape" },
  ["np.random.choice"] = { "a", "size=shape", "replace", "p" },
  ["np.random.dirichlet"] = { "alpha", "size=shape" },
  ["np.random.exponential"] = { "scale", "size=shape" },
  ["np.random.gamma"] = { "form", "scale", "size=shape" },
  ["np.random.geometric"] = { "p", "size=shape" },
  ["np.random.gumbel"] = { "loc", "scale", "size=shape" },
  ["np.random.integers"] = { "low", "high", "size=shape", "dtype", "endpoint" },
  ["np.random.laplace"] = { "loc", "scale", "size=shape" },
  ["np.random.logistic"] = { "loc", "scale", "size=shape" },
  ["np.random.lognormal"] = { "mean", "sigma=stddev", "size=shape" },
  ["np.random.multinomial"] = { "n", "pvals=p", "size=shape" },
  ["np.random.multivariate_normal"] = { "mean", "cov", "size=shape" },
  ["np.random.normal"] = { "loc=mean", "scale=stddev", "size=shape" },
  ["np.random.pareto"] = { "a", "size=shape" },
  ["np.random.poisson"] = { "lam", "size=shape" },
  ["np.random.randint"] = { "low", "high", "size=shape", "dtype" },
  ["np.random.random"] = { "size=shape" },
  ["np.random.rayleigh"] = { "scale", "size=shape" },
  ["np.random.standard_normal"] = { "size=shape" },
  ["np.random.standard_t"] = { "df", "size=shape" },
  ["np.random.triangular"] = { "left", "mode", "right", "size=shape" },
  ["np.random.uniform"] = { "low", "high", "size=shape" },
  ["np.random.weibull"] = { "a", "size=shape" },
  ["np.random.zipf"] = { "a", "size=shape" },
  ["np.ravel_multi_index"] = { "multi_index", "dims=shape" },
  ["np.sort"] = { "a", "axis", sort_kind },
  ["np.tril"] = { "m=a", "k=diagonal" },
  ["np.triu"] = { "m=a", "k=diagonal" },
}
