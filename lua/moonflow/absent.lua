--- Absent: names of OneFlow and of other libraries that there are none of here, and what to write in their place. It
-- ends the error of reading one. Names that mean the same as one of ours are no part of this: they are there, or help
-- knows them.

-- { folders, names, what to do }
local rows = {
  -- one device a job
  { "flow", "env machine_num current_machine_id current_resource",
    "mpirun starts the processes, here and on other machines, and flow.distributed.join() joins them" },
  { "flow", "eager_nccl_all_reduce", "flow.distributed.all_reduce does that between processes" },
  { "flow", "sbp advanced pack unpack repeat acc distributed_partial_fc_sample hierarchical_parallel_cast",
    "a job runs on one device: leave it out, or take parts with flow.split and join them with flow.concat" },
  { "flow", "inter_job_reuse_mem_strategy", "memory is planned for each job; leave it out" },
  { "flow", "current_scope", "flow.scope.current_placement() gives the placement" },
  { "flow.scope", "current_scope", "flow.scope.current_placement() gives the placement" },
  { "flow.config", "collective_boxing grpc_use_no_signal", "it is about several machines; leave it out" },
  { "flow.config", "ctrl_port machine data_port",
    "mpirun knows the machines, and flow.distributed.join() joins the processes; leave it out" },
  { "flow.config", "load_library_now", "ops from shared libraries are not supported" },
  { "flow.config", "default_data_type enable_auto_mixed_precision train use_xla_jit use_tensorrt enable_inplace "
    .. "default_placement_scope concurrency_width cudnn_buf_limit_mbyte all_reduce_group_num all_reduce_lazy_ratio "
    .. "all_reduce_group_min_mbyte all_reduce_fp16", "it is said of a job, by flow.function_config()" },

  -- options of flow.function_config(), here and as a table
  { "config", "enable_qat enable_quantization_aware_training qat",
    "training for int8 is not supported; enable_weight_quantization is for predictions with weights of 8 bits" },
  { "config", "tensorrt", "job:prepare() is for fast predictions, job:export_onnx(path) for other systems" },
  { "config", "static_mem_alloc_policy_white_list static_mem_alloc_algo_white_list",
    "memory is planned in one way; leave it out" },
  { "config.train", "weight_l2 bias_l2", "regularizer = flow.regularizers.l2(rate) is said of a layer or variable" },

  -- the session
  { "flow", "enable_eager_execution eager_execution_enabled",
    "a job is compiled as it is defined; flow.np computes at once" },
  { "flow", "current_global_function_desc find_or_create_module",
    "what a job is to know is an argument of the Lua function that builds it" },
  { "flow.nn", "Module", "a Lua function that makes layers is a module; flow.scope.namespace names its variables" },
  { "flow", "recompute_grad checkpoint_sequential",
    "flow.scope.recompute(body) keeps what body gives, and computes the rest once more for gradients" },
  { "flow.scope", "checkpointing config", "flow.scope.recompute(body) is what checkpointing = true was" },
  { "flow", "experimental", "what is there of it has left it: flow.scope.namespace, flow.slice_v2, and for values of "
    .. "variables flow.get_all_variables and flow.load_variables" },
  { "flow", "deprecated", "flow.scope.namespace is what variable_scope was; workers there are none" },
  { "flow", "compatible", "what its single_client was is flow itself" },
  { "flow", "core python", "what its messages set is set by flow.function_config() and flow.config" },
  { "flow", "system", "flow.assign(variable, value) is what system.assign was" },
  { "flow", "dtypes convert_oneflow_dtype_to_numpy_dtype",
    "a dtype is a word that flow.np takes as it is, such as flow.float32" },
  { "flow", "char record tensor_buffer tensor_buffer_to_tensor tensor_buffer_to_tensor_list tensor_to_tensor_buffer "
    .. "tensor_list_to_tensor_buffer tensor_list_split MirroredTensorListDef",
    "values are arrays of one shape: pad them, and give their lengths as an input" },
  { "flow", "user_op_builder consistent_user_op_builder user_op_module_builder consistent_user_op_module_builder",
    "put an op together from those of flow.math; the ops of docs/ops.md are all there are" },
  { "flow", "unittest sysconfig util", "it has no part in training; leave it out" },
  { "flow", "tensorrt saved_model serving",
    "job:prepare() is for fast predictions, job:export_onnx(path) for other systems" },
  { "flow.onnx", "export", "job:export_onnx(path) writes one" },
  { "flow", "quantization", "training for int8 is not supported; flow.function_config has enable_weight_quantization "
    .. "for predictions with weights of 8 bits" },

  -- shapes that only a run knows
  { "flow", "argwhere nonzero sync_dynamic_resize",
    "shapes are known before a run: flow.where and flow.masked_fill choose within one, flow.np.compress outside" },
  { "flow", "dynamic_reshape", "flow.reshape(x, shape) does it, as all shapes are known" },
  { "flow", "elem_cnt", "x.shape:count() is that number, while the job is traced" },
  { "flow.math", "reduced_shape_elem_cnt", "x.shape[axis] is that number, while the job is traced" },
  { "flow", "categorical_ordinal_encode", "number the categories before the job, in a Lua table" },
  { "flow.layers", "categorical_ordinal_encoder", "number the categories before the job, in a Lua table" },

  -- ops
  { "flow", "identity_n", "flow.identity(x) of each" },
  { "flow", "slice_update", "flow.tensor_scatter_nd_update(x, indices, updates) does it" },
  { "flow", "same_padding pad_grad", "padding = \"SAME\" of the convolution, or flow.pad" },
  { "flow", "amp amp_white_identity", "the job's function_config has enable_auto_mixed_precision" },
  { "flow", "count_not_finite multi_count_not_finite",
    "loss_scale_policy = flow.optimizer.loss_scale.dynamic_loss_scale() passes over such steps" },
  { "flow", "unsorted_segment_sum_like unsorted_batch_segment_sum",
    "flow.math.unsorted_segment_sum(data, segment_ids, num_segments)" },
  { "flow.math", "unsorted_segment_sum_like unsorted_batch_segment_sum",
    "flow.math.unsorted_segment_sum(data, segment_ids, num_segments)" },
  { "flow.math", "gelu_grad sigmoid_grad tanh_grad", "flow.gradients(losses, values) gives gradients" },
  { "flow.nn", "softmax_grad", "flow.gradients(losses, values) gives gradients" },
  { "flow.layers", "layer_norm_grad layer_norm_param_grad", "flow.gradients(losses, values) gives gradients" },
  { "flow.nn", "compat_conv2d", "flow.nn.conv2d with padding = \"SAME_UPPER\"" },
  { "flow.nn", "fused_bias_add_gelu fused_bias_add_dropout fused_self_attention_query_mul_key_and_value",
    "write its ops one by one: the plan fuses those that gain by it" },
  { "flow.math", "fused_scale_tril_softmax_dropout", "write its ops one by one: the plan fuses those that gain by it" },
  { "flow", "broadcast_add", "flow.math.add broadcasts, and so does +" },
  { "flow.nn", "torch_conv2d_transpose", "flow.nn.conv2d_transpose with padding as pairs" },
  { "flow.nn", "PixelShufflev2", "flow.nn.PixelShuffle(x, upscale_factor)" },
  { "flow.random", "gen_seed", "flow.set_seed(n) seeds everything" },
  { "flow.optimizer", "CustomScheduler",
    "give the optimizer the value of the job itself in place of a scheduler: flow.optimizer.SGD(rate)" },

  -- data and what is seen of it
  { "flow.data", "ofrecord_reader ofrecord_loader ofrecord_image_classification_reader ofrecord_raw_decoder "
    .. "ofrecord_bytes_decoder ofrecord_image_decoder ofrecord_image_decoder_random_crop OFRecordRawDecoder "
    .. "OFRecordBytesDecoder OFRecordImageDecoder OFRecordImageDecoderRandomCrop decode_ofrecord",
    "flow.data.ofrecords(paths) reads such files outside the job, and flow.np.decode_pictures(list, size) what is "
    .. "encoded in their records, cut, resized and mirrored, as one array to hand over" },
  { "flow.data", "onerec_reader onerec_decoder OneRecDecoder BlobConf RawCodec ImageCodec BytesListCodec "
    .. "ImagePreprocessor ImageResizePreprocessor NormByChannelPreprocessor coco_reader "
    .. "image_decoder_random_crop_resize ImageDecoderRandomCropResize",
    "read files outside the job, by flow.np.load, or flow.np.load_pictures, which cuts and resizes too, and hand over "
    .. "batches" },
  { "flow.data", "ImageFolder image_folder WeightedRandomSampler",
    "flow.data.Pictures(folder) has the pictures of folders with their labels, and reads them in batches ahead" },
  { "flow.data", "decode_random", "flow.random.uniform({ shape = shape }) makes such an input" },
  { "flow", "image image_decode image_resize image_target_resize image_batch_align image_normalize image_flip "
    .. "image_random_crop detection object_bbox_flip object_bbox_scale object_segmentation_polygon_flip "
    .. "object_segmentation_polygon_scale object_segmentation_polygon_to_mask",
    "prepare images outside the job, by flow.np.load_pictures and others, or in it by flow.reverse, flow.slice, "
    .. "flow.nn.interpolate and flow.nn.grid_sample" },
  { "flow.profiler", "nvtx_start nvtx_end profiler_start profiler_stop",
    "flow.profiler.start(path) has each op by its name" },
  { "flow", "summary", "flow.log.open(path) keeps numbers, flow.report shows them; job:summary() is the layer table" },

  -- Keras, PyTorch and scikit-learn
  { "flow", "keras", "flow.nn.relu, flow.math.tanh, flow.math.sigmoid and flow.math.gelu are its activations, and a "
    .. "Lua function that calls one layer of flow.layers after another is its model" },
  { "flow", "cuda device", "flow.config.gpu_devices() says what there is, and flow.scope.placement puts a job there" },
  { "flow.nn", "init", "initializers are functions such as flow.xavier_uniform_initializer" },
  { "flow", "Model Sequential models",
    "a Lua function that calls one layer of flow.layers after another; flow.global_function makes it a job" },
  { "flow.nn", "Sequential ModuleList FusedMLP",
    "a Lua function that calls one layer of flow.layers after another is a model" },
  { "flow.nn", "Graph", "flow.global_function makes a job of a Lua function" },
  { "flow.nn", "functional", "its functions are those of flow.nn and flow.math" },
  { "flow.nn", "DataParallel parallel", "flow.distributed.join() joins the processes that mpirun has started" },
  { "flow.distributed", "init_process_group get_rank get_world_size all_reduce_coalesced reduce",
    "join() gives rank and size, and all_reduce(x) the sum over the processes" },
  { "flow", "utils", "flow.data.batches and flow.data.Dataset hand over batches, flow.log.open(path) keeps numbers" },
  { "flow", "no_grad enable_grad",
    "a job of type \"predict\" has no gradients, and flow.stop_gradient(x) ends them at x" },
  { "flow", "custom_gradient py_func py_function custom_op Function",
    "flow.stop_gradient(f) + (h - flow.stop_gradient(h)) has the value of f and the gradient of h, and Lua's "
    .. "functions run between jobs" },
  { "flow", "one_embedding", "flow.layers.embedding is a table, and flow.optimizer.LazyAdam and flow.optimizer.Adagrad "
    .. "change only its rows that were picked" },
  { "flow", "Size", "a shape is a Lua table of sizes; that of a value is x.shape" },
  { "flow", "int long", "flow.int32 and flow.int64 say how many bits" },
  { "flow", "half", "flow.float16 and flow.bfloat16 have two bytes" },
  { "flow", "bool", "flow.int8 is what comparisons give: 1 where they hold, and 0" },
  { "flow.np", "one_hot", "flow.np.eye(n)[labels] has a row for each of the labels; flow.one_hot is for a job" },
  { "flow.typing", "Tensor", "flow.typing.Numpy.Placeholder(shape) is an input, flow.typing.Numpy a result" },
  { "flow", "callbacks", "the loop over batches is the script's own, and what is to happen in it stands there" },
  { "flow.optimizer", "ReduceLROnPlateau LambdaLR",
    "the rate may be a variable with trainable = false: flow.load_variables sets it where the loss no longer falls" },
  { "flow.optimizer", "OneCycleLR CyclicLR CosineAnnealingWarmRestarts",
    "the rate may be an input of the job, flow.optimizer.SGD(rate), that the script gives a number in each step; "
    .. "docs/training.md has this rule under \"A rate that the script gives\"" },
  { "flow.optimizer", "lr_scheduler", "flow.optimizer.CosineScheduler and others are the optimizer's first argument, "
    .. "and so may a value of the job be" },
  { "flow.optimizer", "Adadelta Adamax AdaBelief Adafactor ASGD NAdam Nadam RAdam Rprop Ftrl Lion adadelta adamax asgd "
    .. "nag rprop",
    "flow.optimizer.Adam and flow.optimizer.RMSProp are the nearest; a train job with flow.gradients and flow.assign "
    .. "has a rule of its own" },
  { "flow.optimizer", "SparseAdam", "flow.optimizer.LazyAdam changes only the rows that were picked" },
  { "flow.nn", "sampled_softmax_loss nce_loss", "draw classes with flow.np.random, hand them over as an input, gather "
    .. "their rows, and give the products to flow.nn.sparse_softmax_cross_entropy_with_logits" },
  { "flow flow.math", "searchsorted bucketize", "flow.math.reduce_sum(flow.cast(flow.expand_dims(x, -1):ge(bounds), "
    .. "flow.int32), -1) is the class of each, between few bounds" },
  { "flow.optimizer", "LBFGS lbfgs cg",
    "flow.np.minimize(f, x) is L-BFGS, of a job that gives a loss and its gradients" },
  { "flow", "metrics", "they are sums of flow.np over predictions: np.mean(p:eq(labels)) is the accuracy, and "
    .. "docs/training.md has others under \"Measures of a prediction\"" },
  { "flow.data", "train_test_split random_split",
    "take rows in the order of flow.np.random.permutation(#x): x[order:rows(0, n)], and the others" },
  { "flow.np", "fromfile frombuffer",
    "flow.np.from_string(io.open(path, \"rb\"):read(\"*a\"), shape, dtype) makes an array of bytes" },
  { "flow.np.fft", "fftshift", "flow.np.roll(x, math.floor(n / 2), axis) is it" },
  { "flow.np.fft", "fft2 fftn rfft2 rfftn",
    "flow.np.fft.fft goes along one axis after the other: flow.np.fft.fft(flow.np.fft.fft(x), { axis = 0 })" },
  { "flow.np", "fmin_bfgs fmin_cg fmin_l_bfgs_b", "flow.np.minimize(f, x) is it, with gradients" },
  { "flow", "scipy optimize",
    "flow.np.minimize(f, x) finds where a function is least, flow.np.linalg solves equations" },
  { "flow.np", "trapz", "flow.np.trapezoid is it" },
  { "flow.np", "mgrid ogrid indices", "flow.np.meshgrid has it, with indexing = \"ij\"" },
  { "flow.np.linalg", "eigvalsh", "the first value of flow.np.linalg.eigh(a) is it" },
  { "flow.np.linalg", "cond", "it is s:max() / s:min(), with _, s = flow.np.linalg.svd(a)" },
  { "flow.np.linalg", "solve_triangular", "flow.np.linalg.solve does it; flow.linalg.triangular_solve in a job" },
  { "flow", "eye linspace meshgrid", "flow.np has it: an array is a constant of the job" },
  { "flow flow.linalg", "diag diag_embed", "flow.expand_dims(v, -1) * flow.np.eye(n) is the matrix with v on its "
    .. "diagonal, and flow.linalg.diag_part(x) the diagonal of one" },
  { "flow flow.linalg", "matrix_exp matrix_exponential", "flow.linalg.expm is it" },
  { "flow.np flow.np.linalg", "matrix_exp matrix_exponential", "flow.np.linalg.expm is it" },
  { "flow", "hessian", "flow.jacobian(flow.gradients(loss, x), x) is it" },
  { "flow.np", "resize", "flow.np.resize_picture is for pictures, flow.np.tile repeats" },
  { "flow.np", "DataFrame",
    "flow.np.loadtxt reads a table, its columns by their names, and they are x:slice(\":, 0\")" },
  { "flow.linalg", "svd eigh qr lstsq pinv eigvalsh matrix_rank matrix_power",
    "flow.np.linalg has it, outside of jobs; the Gaussian process in docs/mathematics.md says how its gradient comes "
    .. "into one" },
  { "flow.linalg", "logdet", "flow.linalg.slogdet(x) gives the sign and that" },
  { "flow.linalg", "norm", "flow.math.reduce_euclidean_norm(x) is it" },
  { "flow.linalg", "cholesky_solve",
    "flow.linalg.triangular_solve(L, rhs) is half of it, and of that, with adjoint = true, the other one" },
  { "flow flow.math flow.nn flow.linalg", "triu",
    "x - flow.math.tril(x, -1) is it, of finite x; a flow.np.triu of ones is a mask" },
  { "flow flow.math", "logit", "flow.math.log(p / (1 - p)) is it" },
  { "flow flow.math", "numel", "x.shape:count() is how many elements x has" },
  { "flow flow.math", "roll",
    "flow.concat({ x:slice(\"-2:\"), x:slice(\":-2\") }, 0) moves it by 2 along its first axis" },
  { "flow flow.math", "cumprod", "flow.math.exp(flow.math.cumsum(flow.math.log(x), axis)) is it, of x above 0" },
  { "flow flow.math", "outer ger", "flow.einsum(\"i,j->ij\", a, b) is it" },
  { "flow", "repeat_interleave",
    "flow.gather(x, flow.np.repeat_interleave(flow.np.arange(n), times), axis) is it, where the axis has n places" },
  { "flow flow.math", "cdist", "flow.math.reduce_euclidean_norm(flow.expand_dims(a, 1) - b, 2) is it, of rows of a and "
    .. "rows of b" },
  { "flow", "scan while_loop fori_loop foldl", "a Lua loop in the body appends each of its steps, as many as are known "
    .. "before a run; where a result decides, the script's own loop calls a job" },
  { "flow", "cond", "flow.where(condition, a, b) chooses element by element in a run, and Lua's if while the job is "
    .. "traced" },
  { "flow", "vmap map_fn", "ops take a batch as the first axis of their values, and flow.batch_jacobian has the "
    .. "derivatives of each sample" },
  { "flow.nn", "huber_loss HuberLoss", "delta * flow.smooth_l1_loss(x, y, delta) is it, of each element" },
  { "flow.nn", "selu SELU", "1.0507 * flow.nn.elu(x, { alpha = 1.67326 }) is it" },
  { "flow.nn", "celu CELU", "alpha * flow.nn.elu(x / alpha) is it" },
  { "flow.nn", "gumbel_softmax",
    "flow.nn.softmax((x - flow.math.log(-flow.math.log(u))) / tau) is it, of "
    .. "local u = flow.random.uniform(1e-7, 1, { shape = x.shape })" },
  { "flow.nn", "PoissonNLLLoss", "flow.math.exp(x) - target * x is it, where x is the logarithm of the mean" },
  { "flow.nn", "GaussianNLLLoss",
    "0.5 * (log_variance + (target - x) ^ 2 / flow.math.exp(log_variance)) is it, and keeps the variance above 0" },
  { "flow.nn", "Conv1d Conv2d Conv3d", "flow.layers.conv2d and its like have weights of their own; "
    .. "flow.nn.conv2d takes a filter" },
  { "flow.nn", "ConvTranspose1d ConvTranspose2d ConvTranspose3d", "flow.layers.conv2d_transpose and its like have "
    .. "weights of their own; flow.nn.conv2d_transpose takes a filter" },
  { "flow.nn", "LayerNorm RMSNorm", "flow.layers.layer_norm and flow.layers.rms_norm have gamma of their own; "
    .. "flow.nn.layer_norm takes it" },
  { "flow.nn", "glu GLU", "a * flow.math.sigmoid(b) is it, of local a, b = flow.split(x, 2, { axis = -1 })" },
  { "flow.nn", "SoftMarginLoss SoftMarginCriterion", "flow.math.softplus(-target * x) is it, for targets of 1 and -1" },
  { "flow.nn", "HingeEmbeddingLoss MultiMarginLoss HingeEmbeddingCriterion L1HingeEmbeddingCriterion MarginCriterion "
    .. "MultiMarginCriterion MultiLabelMarginCriterion", "flow.nn.relu(margin - x) is a hinge" },
  { "flow.nn", "CosineEmbeddingLoss CosineEmbeddingCriterion CosineDistance",
    "1 - flow.math.reduce_sum(flow.math.l2_normalize(a, 1) * flow.math.l2_normalize(b, 1), 1) is the distance" },

  -- Torch7
  { "flow.nn", "PairwiseDistance", "flow.math.reduce_euclidean_norm(a - b, 1) is it" },
  { "flow.nn", "MultiCriterion ParallelCriterion", "losses are values of the job: add them up" },
  { "flow.nn", "Concat ConcatTable Parallel ParallelTable DepthConcat gModule Container",
    "values of a job are Lua variables: hand one to several layers, take several, give several back" },
  { "flow.nn", "CAddTable CSubTable CMulTable CDivTable", "+, -, * and / of two values are it" },
  { "flow.nn", "Narrow Select SelectTable NarrowTable Index",
    "x:slice(\"0, 1:3\") takes a part of a value, and flow.gather takes rows" },
  { "flow.nn", "MaskedSelect", "shapes are known before a run: flow.where and flow.masked_fill choose within one" },
  { "flow.nn", "CMul Mul CAdd Add", "flow.get_variable(name, { shape = shape }) is such a weight, with * or +" },
  { "flow.nn", "AddConstant MulConstant Power", "write x + 2, 2 * x or x ^ 3" },
  { "flow.nn", "DotProduct", "flow.math.reduce_sum(a * b, 1) is it" },
  { "flow.nn", "SoftSign", "x / (1 + flow.math.abs(x)) is it" },
  { "flow.nn", "Threshold", "flow.where(x:gt(threshold), x, value) is it" },
  { "flow.nn", "GradientReversal", "flow.stop_gradient(2 * x) - x is it" },
  { "flow.nn", "WeightNorm", "flow.math.l2_normalize(v, 1) * g is such a weight, of two variables" },
  { "flow.nn", "SpatialCrossMapLRN local_response_norm local_response_normalization lrn",
    "flow.nn.LocalResponseNorm(x, size) is it" },
  { "flow.nn", "Copy", "flow.cast(x, dtype) is it" },
  { "flow.nn", "Recurrent Recursor Sequencer AbstractRecurrent BiSequencer",
    "flow.layers.lstm and flow.layers.gru go over time; a step of your own is called in a Lua loop, within "
    .. "flow.scope.reuse_variables" },
  { "flow", "FloatTensor DoubleTensor HalfTensor IntTensor LongTensor ByteTensor CharTensor CudaTensor",
    "flow.np.array(table, dtype) and flow.np.zeros(shape, dtype) are arrays of any dtype" },
  { "flow", "randperm", "flow.np.random.permutation(n) is it, from 0" },
  { "flow", "serialize deserialize", "check_point:save_memory() makes a string of all variables, and "
    .. "flow.checkpoint.save writes a table of arrays" },
  { "flow", "setdefaulttensortype", "a job's default_data_type is said of it, flow.np.zeros takes a dtype" },
  { "flow", "optim", "flow.optimizer has such rules: in the body of a train job one minimises the loss" },
  { "flow.optimizer", "ConfusionMatrix", "flow.np.bincount(labels * n + predictions, { minlength = n * n }) counts "
    .. "it, as n rows of n" },
  { "flow.optimizer", "Logger", "flow.log.open(path) keeps numbers, and flow.report shows them" },
  { "flow.np", "apply map vectorize apply_along_axis frompyfunc",
    "functions of flow.np go over all elements; for one of your own, a:ptr() in a Lua loop" },
  { "flow.np", "mode", "flow.np.unique(x, { return_counts = true }) counts each value" },
  { "flow.np", "lerp", "a + t * (b - a) is it" },
  { "flow.np", "sliding_window_view", "x:take(starts:reshape(-1, 1) + steps, 0) has the windows that begin at starts, "
    .. "with steps = flow.np.arange(size, { dtype = flow.int64 }), and in a job flow.signal.frame" },
  { "flow.np", "convolve2d conv2", "flow.nn.conv2d in a job is it" },
  { "flow.np", "index_add scatter_add", "flow.np.add_at(a, places, values) is it" },
  { "flow flow.math", "isnan is_nan", "x:ne(x) is 1 where x is NaN" },
  { "flow flow.math", "isfinite is_finite", "(x - x):eq(0) is 1 where x is finite" },
  { "flow flow.math", "isinf is_inf", "flow.math.abs(x):eq(math.huge) is 1 where x is infinite" },
  { "flow flow.math", "trunc fix", "flow.math.sign(x) * flow.math.floor(flow.math.abs(x)) is it" },
  { "flow flow.math", "logaddexp", "flow.math.reduce_logsumexp(flow.stack({ a, b }, 0), 0) is it" },
  { "flow flow.math", "logcumsumexp",
    "flow.math.reduce_logsumexp(flow.where(mask, flow.expand_dims(x, -2), -math.huge), -1) is it, along a last axis of "
      .. "n places, with mask = flow.np.tril(flow.np.ones({ n, n }, \"int8\"))" },
  { "flow flow.math", "quantile median percentile", "flow.sort(x) has them at fixed places of the last axis" },
  { "flow flow.math flow.linalg", "trace", "flow.math.reduce_sum(flow.linalg.diag_part(x), -1) is it" },
  { "flow.math", "log10 log2", "flow.math.log(x) / math.log(10) is it, or / math.log(2)" },
  { "flow.math", "exp2", "2 ^ x is it" },
  { "flow.math", "unsorted_segment_min segment_min", "-flow.math.unsorted_segment_max(-x, ids, count) is it" },
  { "flow.math", "unsorted_segment_prod segment_prod",
    "of what is above 0, flow.math.exp(flow.math.unsorted_segment_sum(flow.math.log(x), ids, count)) is it" },
  { "flow flow.math", "segment_sum segment_max segment_mean",
    "flow.math.unsorted_segment_sum, _max and _mean take ids in any order, and their number" },
  { "flow.nn", "conv_transpose1d conv_transpose2d conv_transpose3d",
    "flow.nn.conv1d_transpose, conv2d_transpose and conv3d_transpose are it" },
  { "flow.nn", "utils",
    "what clips gradients is an optimizer's grad_clipping, flow.optimizer.grad_clipping; without utils, "
      .. "weight_norm and spectral_norm say how weights are normalised; and recurrent layers take "
      .. "lengths" },
  { "flow.nn", "weight_norm", "g * flow.math.l2_normalize(v, 1) is it, of two variables and a weight (out, in)" },
  { "flow.optimizer flow.train", "EMA ExponentialMovingAverage",
    "a job of its own averages the variables by flow.assign; docs/networks.md has one" },
  { "flow flow.nn flow.losses", "dice_loss DiceLoss dice",
    "1 - 2 * flow.math.reduce_sum(p * y) / flow.math.reduce_sum(p + y) is it" },
  { "flow flow.nn flow.losses", "focal_loss FocalLoss sigmoid_focal_loss",
    "flow.math.square(y - flow.math.sigmoid(x)) * flow.nn.BCEWithLogitsLoss(x, y, { reduction = \"none\" }) is it, of "
    .. "logits x and a y of ones and zeros" },
  { "flow flow.nn flow.math flow.np", "nms batched_nms non_max_suppression",
    "how many are left only a run knows: docs/onnx.md has it for the script under \"The boxes of a detector\"" },
  { "flow flow.nn flow.losses", "giou_loss GIoU GIoULoss generalized_box_iou generalized_box_iou_loss box_iou",
    "docs/networks.md has it under \"Boxes around what is seen\", beside the coding of boxes" },
  { "flow flow.nn", "roi_align RoIAlign roi_pool RoIPool crop_and_resize",
    "flow.nn.grid_sample(flow.gather(x, of), flow.nn.affine_grid(theta, { n, channels, 7, 7 })) takes n boxes, of the "
    .. "pictures `of`; theta (n, 2, 3) is (right - left) / width, 0, (left + right) / width - 1 for each, and 0, "
    .. "(bottom - top) / height, (top + bottom) / height - 1" },
  { "flow flow.nn flow.layers", "drop_path DropPath stochastic_depth StochasticDepth",
    "x + flow.nn.dropout(branch, rate, { noise_shape = { batch, 1, 1, 1 } }) drops the branch of some samples" },
  { "flow flow.math", "angle", "flow.math.atan2(imaginary, real) is it" },
  { "flow", "vjp", "flow.gradients(y, x, { grad_ys = v }) is it" },
  { "flow", "jvp", "flow.gradients(flow.gradients(y, x, { grad_ys = u }), u, { grad_ys = v }) is it, with a u of ones "
    .. "like y" },
  { "flow.signal", "fft2 rfft2 fftn", "flow.signal.fft goes along the last axis but the pairs', flow.transpose brings "
    .. "another one there" },
  { "flow", "clip_by_norm", "x * flow.math.minimum(1, most / flow.math.maximum(flow.math.reduce_euclidean_norm(x), "
    .. "1e-12)) is it; of gradients flow.optimizer.grad_clipping.by_norm(1) is an optimizer's grad_clipping" },
  { "flow", "clip_by_global_norm",
    "flow.optimizer.grad_clipping.by_global_norm(1) is an optimizer's grad_clipping" },
  { "flow", "GradientTape", "flow.gradients(losses, values) in the body of a job gives gradients" },
  { "flow.nn", "ctc_greedy_decoder ctc_beam_search_decoder",
    "take the argmax of each frame, once of those in a row that are alike, and leave the blanks out" },
  { "flow.nn", "spectral_norm", "w / s, with s = flow.math.reduce_sum(u * flow.matmul(w, v)) of two vectors that "
    .. "flow.assign carries on: v = l2_normalize(w^T u), u = l2_normalize(w v)" },
  { "flow flow.nn", "unfold Unfold extract_patches im2col extract_image_patches patchify",
    "flow.nn.PixelUnshuffle(x, size) has the patches of a picture that tile it, each along the channels; "
    .. "flow.nn.conv2d with a filter of ones and zeros picks any, and flow.signal.frame the frames of a signal" },
  { "flow.losses", "mse mean_squared_error MeanSquaredError", "flow.nn.MSELoss is it" },
  { "flow.losses", "mae mean_absolute_error MeanAbsoluteError", "flow.nn.L1Loss is it" },
  { "flow.losses", "Huber huber", "flow.smooth_l1_loss is it" },
  { "flow.nn flow.losses", "SparseCategoricalCrossentropy sparse_categorical_crossentropy CategoricalCrossentropy "
    .. "categorical_crossentropy", "flow.nn.sparse_softmax_cross_entropy_with_logits takes labels that are numbers of "
    .. "classes, flow.nn.softmax_cross_entropy_with_logits shares of each; both take what comes before the softmax" },
  { "flow.nn flow.losses", "BinaryCrossentropy binary_crossentropy", "flow.nn.BCEWithLogitsLoss takes what comes "
    .. "before the sigmoid, flow.nn.BCELoss probabilities" },
  { "flow.layers", "Input InputLayer",
    "what goes into a job is its placeholders, flow.typing.Numpy.Placeholder(shape)" },
  { "flow.layers", "Activation activation", "flow.nn.relu and others are functions, and the activation of a layer" },
  { "flow.layers", "Rescaling Normalization", "x * scale + offset is it" },
}

local advice = {}
for _, row in ipairs(rows) do
  for folder in row[1]:gmatch("%S+") do
    for name in row[2]:gmatch("%S+") do advice[folder .. "." .. name] = row[3] end
  end
end

--- path -> what to write in its place.
return advice
