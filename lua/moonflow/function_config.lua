--- The configuration of a job function: a plain table in the spec, or the object of the oldest dialect with methods.
-- Options that steer what this engine does not have (memory reuse, ...) are accepted and change nothing.

local absent = require "moonflow.absent"
local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local initializer = require "moonflow.initializer"

local function_config = {}

-- The value of an option, which is refused where it is not what is wanted.
local function check(name, value, is_fine, wanted, hint)
  if is_fine then return value end
  errors.raise("invalid_argument", name .. " wants " .. wanted .. ", got " .. arguments.describe(value) .. (hint or ""))
end

local function check_switch(name, value, hint)
  return check(name, value, type(value) == "boolean", "true or false", hint)
end

local function check_narrow(name, value)
  return check(name, value, dtypes.narrow[value], "flow.bfloat16 or flow.float16")
end

local function check_count_from_one(name, value)
  return check(name, value, arguments.is_size(value), "a whole number from 1 on")
end

local function check_view(name, value)
  return check(name, value, arguments.kind(value) == "view",
    "flow.scope.consistent_view() or flow.scope.mirrored_view()")
end

-- Options with an effect here. Each gives the key and value to keep in the config, or two of both.
local effective = {
  default_data_type = function(value)
    return "default_data_type", check("default_data_type", value, dtypes.is(value), "a dtype such as flow.float")
  end,
  default_initializer_conf = function(value)
    return "default_initializer", initializer.from(value, "default_initializer_conf")
  end,
  default_initializer = function(value)
    return "default_initializer", initializer.from(value, "default_initializer")
  end,
  default_placement_scope = function(value) return "placement", value end,
  default_logical_view = function(value) return "view", check_view("default_logical_view", value) end,
  default_distribute_strategy = function(value) return "view", check_view("default_distribute_strategy", value) end,
  concurrency_width = function(value) return "max_in_flight", check_count_from_one("concurrency_width", value) end,
  kept_plans = function(value) return "kept_plans", check_count_from_one("kept_plans", value) end,
  indexed_slices_optimizer_conf = function(value)
    check("indexed_slices_optimizer_conf", value, type(value) == "table", "a table")
    return "indexed_slices", true
  end,
  winograd = function(value) return "winograd", check_switch("winograd", value) end,
  cudnn_conv_heuristic_search_algo = function(value)
    return "conv_heuristics", check_switch("cudnn_conv_heuristic_search_algo", value)
  end,
  cudnn_conv_use_deterministic_algo_only = function(value)
    return "deterministic_convs", check_switch("cudnn_conv_use_deterministic_algo_only", value)
  end,
  allow_tf32 = function(value)
    if value == nil then value = true end
    return "allow_tf32", check_switch("allow_tf32", value)
  end,
  enable_auto_mixed_precision = function(value, dtype)
    if value == nil then value = true end
    check_switch("enable_auto_mixed_precision", value,
      dtypes.narrow[value] and "; mixed_precision_dtype beside it takes the dtype")
    if dtype == nil then return "mixed_precision", value end
    return "mixed_precision", value,
      "mixed_precision_dtype", check_narrow("enable_auto_mixed_precision's second argument", dtype)
  end,
  enable_weight_quantization = function(value)
    if value == nil then value = true end
    return "weight_quantization", check_switch("enable_weight_quantization", value)
  end,
  mixed_precision_dtype = function(value)
    return "mixed_precision_dtype", check_narrow("mixed_precision_dtype", value)
  end,
}

local accepted = {}
for name in ([[
  enable_float_compute_for_half_gemm cudnn_conv_enable_pseudo_half
  cudnn_conv_enable_true_half enable_true_half_config_when_conv enable_cudnn cudnn_buf_limit_mbyte
  cudnn_conv_force_fwd_algo cudnn_conv_force_bwd_data_algo cudnn_conv_force_bwd_filter_algo
  enable_cudnn_fused_normalization_add_relu
  enable_fuse_add_to_output enable_fuse_model_update_ops enable_fuse_cast_scale enable_reused_mem enable_inplace
  use_memory_allocation_algorithm_v2 enable_keep_header_only prune_parallel_cast_ops prune_cast_to_static_shape_ops
  do_parallel_cast_before_widening_type_cast enable_non_distributed_optimizer optimizer_placement_optimization_mode
  optimizer_placement_optimization_threshold use_xla_jit use_tensorrt enable_gradients_stats_aggregation
  allow_cpu_return_op exp_run_conf enable_nccl use_boxing_v2 all_reduce_fp16 all_reduce_group_min_mbyte
  all_reduce_group_num all_reduce_group_size_warmup all_reduce_lazy_ratio disable_all_reduce_sequence
  enable_all_reduce_group enable_cudnn_conv_pseudo_half enable_inplace_in_reduce_struct
  non_distributed_optimizer_group_size_mbyte use_nccl_inter_node_communication
]]):gmatch("%S+") do accepted[name] = true end

local names = {}
for name in pairs(effective) do names[#names + 1] = name end
for name in pairs(accepted) do names[#names + 1] = name end

-- `what` has the options of `known`; where there is none of a name, `absent` may have advice under its `path`.
local function fail_option(what, path, name, known)
  local advice = absent[path .. "." .. tostring(name)]
  errors.raise("invalid_argument", what .. " has no option '" .. tostring(name) .. "'"
    .. (advice and "; " .. advice or arguments.suggestion(name, known)))
end

local function set(values, name, ...)
  local keep = effective[name]
  if keep then
    local key, value, other_key, other_value = keep(...)
    values[key] = value
    if other_key then values[other_key] = other_value end
  elseif not accepted[name] then
    fail_option("function_config", "config", name, names)
  end
end

-- ---- config.train of the oldest dialect ---------------------------------------------------------------------------

local TrainConfig = { kind = "train_config" }

local train_options = {
  primary_lr = "number", secondary_lr = "number", loss_scale_factor = "number", model_update_conf = "table",
  num_gradient_accumulation_steps = "number",
}
local train_names = arguments.sorted_keys(train_options)

-- What is given to a method of these objects beyond what it takes would be lost without a word.
local function check_count(where, most, ...)
  if select("#", ...) > most then
    errors.raise("invalid_argument", ("%s takes %s, got %d"):format(where,
      most == 1 and "one argument" or "at most " .. most .. " arguments", select("#", ...)))
  end
end

local function check_train(what, value, kind)
  if type(value) ~= kind then
    errors.raise("invalid_argument", what .. " wants a " .. kind .. ", got " .. arguments.describe(value))
  end
end

function TrainConfig.__index(self, name)
  local kind = train_options[name]
  if not kind then fail_option("config.train", "config.train", name, train_names) end
  return function(receiver, value, ...)
    if receiver ~= self then arguments.want_colon("config.train:" .. name) end
    check_count("config.train:" .. name, 1, value, ...)
    check_train("config.train:" .. name, value, kind)
    self.values[name] = value
    return self
  end
end

function TrainConfig.__newindex(_, name)
  arguments.want_colon("config.train:" .. tostring(name))
end

-- ---- the object ---------------------------------------------------------------------------------------------------

local FunctionConfig = { kind = "function_config" }

function FunctionConfig.__index(self, name)
  if not effective[name] and not accepted[name] then
    fail_option("function_config", "config", name, names)
  end
  return function(receiver, ...)
    if receiver ~= self then arguments.want_colon("config:" .. name) end
    check_count("config:" .. name, name == "enable_auto_mixed_precision" and 2 or 1, ...)
    set(self.values, name, ...)
    return self
  end
end

function FunctionConfig.__newindex(_, name)
  arguments.want_colon("config:" .. tostring(name))
end

--- A configuration to be filled by its methods, `config:default_data_type(flow.float)`,
--- `config.train:primary_lr(0.1)`. As `function_config` of a job's spec a plain table says the same:
--- { default_data_type = flow.float }.
--- default_data_type: the dtype of variables, constants and draws that say none (flow.float)
--- default_initializer: what variables of flow.get_variable begin with that say nothing; layers have their own
--- default_placement_scope: a flow.scope.placement for ops outside of one
--- default_logical_view: a flow.scope.consistent_view or mirrored_view, which on one device are the same
--- enable_auto_mixed_precision(true, dtype): ops may compute in flow.bfloat16 (default) or flow.float16, whose losses
---   want a loss_scale_policy, where that is faster; a step of less than 10 GFLOP on a gpu is as with allow_tf32
---   instead. In a table the dtype is mixed_precision_dtype
--- allow_tf32: on a gpu, products and convolutions may round their float32 factors to 10 bits of fraction; results are
---   good to about 1e-3 instead of 1e-5
--- enable_weight_quantization: on the CPU, products of up to 8 rows may read weights that the job only reads in 8 bits,
---   each row of them, or column, with its scale; predictions change by about a hundredth
--- winograd: false has convolutions computed as direct sums (true)
--- cudnn_conv_heuristic_search_algo: false has the ways to compute each convolution timed on a gpu when the job is
---   made, and the fastest kept, on disk too; runs of one machine are alike, those of another may differ in the last
---   bits, which cudnn_conv_use_deterministic_algo_only = true or winograd = false forbid
--- concurrency_width: how many calls of the job may be under way, of 8 of all jobs; flow.config.inflight asks for more
--- kept_plans: of how many shapes of its lists a job keeps the plans, those that were used last (8); each has memory of
---   its own
--- indexed_slices_optimizer_conf: a table asks for an optimizer that changes only the rows that were picked
--- train: of the oldest dialect, primary_lr, secondary_lr (that of biases), loss_scale_factor and model_update_conf
--- Other options of OneFlow, about memory, NCCL, cuDNN and such, are accepted and change nothing.
function function_config.new()
  local train = setmetatable({ values = {} }, TrainConfig)
  return setmetatable({ values = {}, train = train }, FunctionConfig)
end

--- Is `value` such an object?
function function_config.is(value)
  return getmetatable(value) == FunctionConfig
end

--- The settings of a job out of an object, a plain table or nothing, under the names that the library knows them by:
--- mixed_precision is the dtype or nil, times_convolutions whether to, and `trains` whether the oldest dialect does.
function function_config.settle(given)
  local settled = { default_data_type = "float32", kept_plans = 8, train = {} }
  if function_config.is(given) then
    for name, value in pairs(given.values) do settled[name] = value end
    for name, value in pairs(given.train.values) do settled.train[name] = value end
  elseif type(given) == "table" then
    for name, value in pairs(given) do
      if name == "train" and type(value) == "table" then
        for option, inner in pairs(value) do
          if not train_options[option] then
            fail_option("function_config.train", "config.train", option, train_names)
          end
          check_train("function_config.train." .. option, inner, train_options[option])
          settled.train[option] = inner
        end
      else
        set(settled, name, value)
      end
    end
  elseif given ~= nil then
    errors.raise("invalid_argument", "function_config must be a table or flow.function_config(), got "
      .. arguments.describe(given))
  end
  if (settled.train.num_gradient_accumulation_steps or 1) ~= 1 then
    errors.raise("unsupported", "num_gradient_accumulation_steps: gradients are not added up over several calls of a "
      .. "job by a setting; a job that adds them up and one that makes the step do it (flow.gradients, flow.assign)")
  end
  settled.mixed_precision = settled.mixed_precision and (settled.mixed_precision_dtype or "bfloat16") or nil
  settled.times_convolutions = settled.conv_heuristics == false and not settled.deterministic_convs
  settled.trains = settled.train.primary_lr ~= nil or settled.train.model_update_conf ~= nil
    or settled.train.secondary_lr ~= nil
  if settled.train.loss_scale_factor and not settled.trains then
    errors.raise("invalid_argument", "function_config: train.loss_scale_factor is that of the optimizer which "
      .. "train.primary_lr makes, and there is none; beside an optimizer of flow.optimizer it is an option of that, "
      .. "flow.optimizer.SGD(0.1, { loss_scale_factor = " .. settled.train.loss_scale_factor .. " })")
  end
  return settled
end

return function_config
