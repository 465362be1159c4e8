--- Functions of OneFlow that are put together from ops: what its scripts call and little else needs.

local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local ops = require "moonflow.ops"
local scope = require "moonflow.scope"

local flow = ops.functions

-- The shape of `like`, with sizes of 1 at `axes`, which x lacks.
local function with_axes(like, axes)
  local sizes = like.shape:table()
  for _, axis in ipairs(axes) do sizes[axis + 1] = 1 end
  return sizes
end

-- How a value is split over devices, of which a job has one: what takes it, passes over it.
local Distribute = { kind = "distribute" }
function Distribute.__tostring(self) return self.text end

local function distribute(text)
  return setmetatable({ text = text }, Distribute)
end

--- flow.distribute.
local distributes = {
  --- A part of the axis on each device, in the original; without effect on the one of a job.
  split = function(axis) return distribute("split(" .. tostring(axis) .. ")") end,
  --- The whole value on each device, in the original; without effect on the one of a job.
  broadcast = function() return distribute("broadcast") end,
  --- As the original chooses; without effect on the one device of a job.
  auto = function() return distribute("auto") end,
  --- flow.scope.consistent_view by its oldest name.
  consistent_strategy = function(body) return scope.consistent_view(body) end,
  --- flow.scope.mirrored_view by its oldest name.
  mirrored_strategy = function(body) return scope.mirrored_view(body) end,
  --- flow.scope.consistent_view_enabled by its oldest name.
  consistent_strategy_enabled = function() return scope.consistent_view_enabled() end,
  --- flow.scope.mirrored_view_enabled by its oldest name.
  mirrored_strategy_enabled = function() return scope.mirrored_view_enabled() end,
}

ops.define("reshape_like", { { "x", "blob" }, { "like", "blob" } }, "The elements of x in the shape of `like`.",
  function(given)
    return ops.apply("reshape", { given.x }, { shape = given.like.shape:table() }, given.name)
  end)

ops.define("broadcast_like", { { "x", "blob" }, { "like", "blob" }, { "broadcast_axes", "list?" } }, [[
x repeated to the shape of `like`. broadcast_axes are those axes of it that x lacks; else the axes of x are its last.]],
  function(given, _, signature)
    local x, like = given.x, given.like
    if given.broadcast_axes then
      local axes = {}
      for i, axis in ipairs(arguments.flat_list(given.broadcast_axes)) do
        axes[i] = signature:axis(axis, #like.shape)
      end
      if #like.shape > #x.shape then x = ops.apply("reshape", { x }, { shape = with_axes(like, axes) }) end
    end
    return ops.apply("broadcast_to", { x }, { shape = like.shape:table() }, given.name)
  end)

ops.define("broadcast_to_compatible_with", { { "x", "blob" }, { "compatible", "operands" } }, [[
x repeated to the shape that it and all of a list of blobs broadcast to.]],
  function(given, _, signature)
    local shape = {}  -- from the last axis on
    for i, value in ipairs { given.x, unpack(given.compatible) } do
      if not blob.is(value) then
        signature:fail((": entry %d of 'compatible' must be a blob, got %s"):format(i - 1, arguments.describe(value)))
      end
      local rank = #value.shape
      for k = 1, rank do
        local size = value.shape[rank - k]
        if (shape[k] or 1) ~= 1 and size ~= 1 and size ~= shape[k] then
          signature:fail((": '%s' is %s, and does not broadcast with those before it: %d against %d"):format(
            value.name, tostring(value.shape), size, shape[k]))
        end
        shape[k] = (shape[k] or 1) == 1 and size or shape[k]
      end
    end
    local sizes = {}
    for i = 1, #shape do sizes[i] = shape[#shape + 1 - i] end
    return ops.apply("broadcast_to", { given.x }, { shape = sizes }, given.name)
  end)

for _, path in ipairs { "cast_to_current_logical_view", "cast_to_static_shape" } do
  ops.define(path, { { "x", "blob" } }, "x itself: there is one device, and shapes are known.", function(given)
    return given.x
  end)
end
ops.define("parallel_cast", { { "input", "blob" }, { "distribute", "any?" }, { "gradient_distribute", "any?" } },
  "The input itself: there is one device.", function(given) return given.input end)

ops.define("math.reduce_euclidean_norm", { { "x", "blob" }, { "axis", "list?" }, { "keepdims", "boolean", false } }, [[
The root of the sum of squares along axes, all of them when left out.
  out = sqrt(sum of x^2)
shapes: x of any shape -> out without the reduced axes, or with 1 in their place (keepdims)
dtypes: float32, float64. The gradient of a norm of 0 is 0]],
  function(given)
    local x = given.x
    local sum = ops.apply("reduce_sum", { ops.apply("square", { ops.widened(x) }) },
      { axis = given.axis, keepdims = given.keepdims })
    -- The root's slope there would be infinite.
    local is_zero = sum:eq(0)
    local root = ops.apply("sqrt", { ops.apply("where", { is_zero, flow.ones_like(sum), sum }) })
    return ops.apply_narrowed("where", { is_zero, sum, root }, x.dtype, given.name)
  end)

ops.define("math.polyval", { { "coeffs", "entries" }, { "x", "blob" } }, [[
A polynomial of x by Horner's rule, the highest power first:
  out = coeffs[1] * x^(n - 1) + ... + coeffs[n]
coeffs: a list of n numbers or blobs, at least one]],
  function(given, _, signature)
    local coeffs, x = given.coeffs, given.x
    if #coeffs == 0 then signature:fail(": coeffs is empty; a polynomial has at least one") end
    local sum = blob.is(coeffs[1]) and coeffs[1] or flow.constant_like(x, coeffs[1])
    for i = 2, #coeffs do sum = sum * x + coeffs[i] end
    return given.name and ops.apply("identity", { sum }, nil, given.name) or sum
  end)

ops.define("math.fused_scale_tril", {
  { "x", "blob" }, { "diagonal", "integer", 0 }, { "fill_value", "number", 0 }, { "scale", "number", 1 },
}, "flow.math.tril(x, diagonal, fill_value) with what is kept multiplied by `scale`.", function(given)
  return flow.math.tril(given.x * given.scale, given.diagonal, given.fill_value, given.name)
end)

ops.define("ctc_loss", {
  { "log_probs", "blob" }, { "targets", "operand" }, { "input_lengths", "operand" }, { "target_lengths", "operand" },
  { "blank", "integer", 0 }, { "reduction", "string", "mean" }, { "zero_infinity", "boolean", false },
}, "flow.nn.CTCLoss of log_probs whose steps come first, (steps, batch, classes).", function(given)
  local logs = ops.apply("transpose", { given.log_probs }, { perm = { 1, 0, 2 } })
  return flow.nn.CTCLoss(logs, given.targets, given.input_lengths, given.target_lengths, {
    blank = given.blank, reduction = given.reduction, zero_infinity = given.zero_infinity, name = given.name })
end)

ops.define("combined_margin_loss", {
  { "x", "blob" }, { "label", "operand" }, { "m1", "finite", 1 }, { "m2", "finite", 0 }, { "m3", "finite", 0 },
}, [=[
The logits of a softmax with margins, for classes that are told apart by angles (Deng and others, ArcFace,
arXiv:1801.07698): x are cosines between features and classes, and that of the label becomes harder to reach.
  out[i, label[i]] = cos(m1 * acos(x[i, label[i]]) + m2) - m3, all others as they are
shapes: x (rows, classes), label (rows) -> out (rows, classes)
dtypes: x float32 or float64; label of an integer dtype
note: a scale of the logits and the cross entropy follow it, as in
  flow.nn.sparse_softmax_cross_entropy_with_logits(label, 64 * out)
note: where m1 is not 1 or m2 not 0, a cosine next to 1 or -1, or beyond by rounding, counts as 2^-23 away from it, in
  float64 2^-50, and has no gradient
errors: in a run, a label outside [0, classes)]=],
  function(given, t, signature)
    local x, label = given.x, blob.of(given.label, t, "int64", "flow.combined_margin_loss: label")
    if #x.shape ~= 2 or tostring(label.shape) ~= "(" .. x.shape[0] .. ")" then
      signature:fail((": x is %s and label %s, wanted (rows, classes) and (rows)"):format(tostring(x.shape),
        tostring(label.shape)))
    end
    local column = ops.apply("expand_dims", { label }, { axis = 1 })
    local target = ops.apply("dim_gather", { x, column }, { dim = 1 })
    if given.m1 ~= 1 or given.m2 ~= 0 then
      local most = 1 - (x.dtype == "float64" and 2 ^ -50 or 2 ^ -23)
      target = ops.apply("clip_by_value", { target }, { min = -most, max = most })
      target = ops.apply("cos", { ops.apply("acos", { target }) * given.m1 + given.m2 })
    end
    local is_target = ops.apply("one_hot", { label }, { depth = x.shape[1], dtype = "int8" })
    return ops.apply("where", { is_target, target - given.m3, x }, nil, given.name)
  end)

flow.distribute = distributes
flow.name_scope, flow.fixed_placement = scope.namespace, scope.placement
flow.device_prior_placement = scope.placement
