--- The losses of flow.nn, put together from ops. Each is an element-wise formula and then "mean", "sum" or "none".

local blob = require "moonflow.blob"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local ops = require "moonflow.ops"
local session = require "moonflow.session"

-- The least number whose logarithm is taken: float32's smallest normal one, so that a loss stays finite.
local LEAST_PROBABILITY = 2 ^ -126

-- What the losses predict by that are others where it changes places with the target.
local predictions = {
  BCELoss = { "input" }, BCEWithLogitsLoss = { "input" }, CrossEntropyLoss = { "input" }, KLDivLoss = { "input" },
  MarginRankingLoss = { "input1", "input2" },
}

local function log_probability(p)
  return ops.apply("log", { ops.apply("clip_by_value", { p }, { min = LEAST_PROBABILITY, max = math.huge }) })
end

-- The logarithm of 1 - p. Below one half 1 - p is rounded, and above it is exact.
local function log_probability_of_rest(p)
  local below = ops.apply("log1p", { -ops.apply("clip_by_value", { p }, { max = 0.5 }) })
  return ops.apply("where", { p:lt(0.5), below, log_probability(1 - p) })
end

-- weight * x, and 0 where the weight is 0: a logit that a mask has made infinite does not make a NaN of it.
local function weighed(weight, x)
  local zero = ops.apply("constant", {}, { value = 0, dtype = x.dtype, shape = {} })
  return weight * ops.apply("where", { weight:ne(0), x, zero })
end

-- A weight or a target: a value of the job, or an array or a number that stays as it is. What is `whole` may be of an
-- integer dtype.
local function as_blob(value, t, like, what, whole)
  if value == nil or blob.is(value) then return value end
  if type(value) == "userdata" and not (whole and not dtypes.floating[value.dtype]) then
    value = value:astype(like.dtype)
  end
  return blob.of(value, t, like.dtype, what)
end

-- The mean of what has shares of its own.
local function mean_by_share(value, shares, name)
  local function sum(x) return ops.apply("reduce_sum", { ops.widened(x) }) end
  local of_nothing_0 = ops.apply("reciprocal_no_nan", { sum(shares) })
  return ops.apply_narrowed("multiply", { sum(value), of_nothing_0 }, value.dtype, name)
end

-- `shares` are those of the elements in the mean, where they are not alike; `batch`, where there is one, is for
-- "batchmean".
local function reduced(value, shares, batch, reduction, name, signature)
  if reduction == "none" then return ops.apply("identity", { value }, nil, name) end
  if reduction == "mean" and shares then return mean_by_share(value, shares, name) end
  if reduction == "mean" then return ops.apply("reduce_mean", { value }, nil, name) end
  if reduction == "sum" then return ops.apply("reduce_sum", { value }, nil, name) end
  if reduction == "batchmean" and batch then
    local part = ops.apply("constant", {}, { value = 1 / batch, dtype = value.dtype, shape = {} })
    return ops.apply("multiply", { ops.apply("reduce_sum", { value }), part }, nil, name)
  end
  signature:fail((": reduction must be 'mean', %s'sum' or 'none', got '%s'"):format(batch and "'batchmean', " or "",
    reduction))
end

-- Is `shape` repeated along an axis to fit the other one?
local function is_repeated(shape, other)
  local rank, wanted = #shape, #other
  for axis = 1, wanted do
    local size = axis <= rank and shape[rank - axis] or 1
    if size < other[wanted - axis] then return true end
  end
  return false
end

-- The value of each row, (rows, 1), and a target of (rows) would train all rows towards the mean of the targets.
local function warn_of_pairs(signature, input, target)
  if is_repeated(input.shape, target.shape) and is_repeated(target.shape, input.shape) then
    session.log(("moonflow: %s: %s: input is %s and target is %s, so each element of one meets all of the other; "
      .. "flow.squeeze or flow.expand_dims makes them alike"):format(errors.site() or "?", signature.where,
      tostring(input.shape), tostring(target.shape)))
  end
end

local function check_alike(signature, input, target)
  local came, wanted = tostring(target.shape), tostring(input.shape)
  if came == wanted then return end
  signature:fail((": target '%s' is %s, wanted the shape of input '%s', %s; flow.squeeze, flow.expand_dims or "
    .. "flow.reshape makes them alike"):format(target.name, came, input.name, wanted))
end

-- How those look at their shapes that take input and target element by element.
local by_element = {
  L1Loss = warn_of_pairs, MSELoss = warn_of_pairs,
  BCELoss = check_alike, BCEWithLogitsLoss = check_alike, KLDivLoss = check_alike,
}

-- The p-norm over the last axis; of infinity, its limit.
local function norm(x, p)
  local function over_width(powers) return ops.apply("reduce_sum", { powers }, { axis = { -1 } }) end
  if p == 2 then return ops.apply("sqrt", { over_width(ops.apply("square", { x })) }) end
  local size = ops.apply("abs", { x })
  if p == 1 then return over_width(size) end
  if p == math.huge then return ops.apply("reduce_max", { size }, { axis = { -1 } }) end
  return over_width(size ^ p) ^ (1 / p)
end

-- Those whose targets may be of an integer dtype: labels of 0 and 1, counts.
local takes_whole_targets = { BCELoss = true, BCEWithLogitsLoss = true, L1Loss = true, MSELoss = true }

--- Makes the loss flow.nn.<name>: `make(given, signature)` gives that of each element and, where the mean is a weighted
--- one, the weights. `reduction` becomes one of the parameters.
local function define_loss(name, parameters, doc, make)
  parameters[#parameters + 1] = { "reduction", "string", "mean" }
  ops.define("nn." .. name, parameters, doc .. [[

reduction: "mean" of all elements (default), their "sum", or "none", which keeps the shape]],
  function(given, t, signature)
    given.target = as_blob(given.target, t, given.input or given.input1, "flow.nn." .. name .. ": target", true)
    for _, prediction in ipairs(predictions[name] or {}) do
      t:note_target("flow.nn." .. name, { "target", prediction }, given.target, given[prediction])
    end
    if takes_whole_targets[name] and not dtypes.floating[given.target.dtype] then
      given.target = ops.apply("cast", { given.target }, { dtype = given.input.dtype })
    end
    local look = by_element[name]
    if look then look(signature, given.input, given.target) end
    for _, weight in ipairs { "weight", "pos_weight" } do
      given[weight] = as_blob(given[weight], t, given.input, "flow.nn." .. name .. ": " .. weight)
    end
    local value, shares = make(given, signature)
    local batch = name == "KLDivLoss" and (#value.shape > 0 and value.shape[0] or 1)
    return reduced(value, shares, batch, given.reduction, given.name, signature)
  end)
end

define_loss("L1Loss", { { "input", "blob" }, { "target", "operand" } }, [[
The absolute error (MAE): |input - target|.
shapes: input and target alike, or so that they broadcast]],
function(given)
  return ops.apply("abs", { given.input - given.target })
end)

define_loss("MSELoss", { { "input", "blob" }, { "target", "operand" } }, [[
The squared error (MSE): (input - target)^2.
shapes: input and target alike, or so that they broadcast]],
function(given)
  return ops.apply("squared_difference", { given.input, given.target })
end)

define_loss("BCELoss", { { "input", "blob" }, { "target", "operand" }, { "weight", "operand?" } }, [[
The binary cross entropy of probabilities, in nats:
  -weight * (target * log(input) + (1 - target) * log(1 - input))
A logarithm is taken of 2^-126 or more, so that the loss is finite (87.3 at most per element, where weight is 1) also
where input is 0 or 1. BCEWithLogitsLoss is exact there, and takes numbers that are no probabilities; here nothing looks
whether input is within 0 and 1.
dtypes: target may be of an integer dtype
shapes: input and target alike; weight, a blob, an array or a number, broadcasts to them]],
function(given)
  local x, y = given.input, given.target
  local loss = -(y * log_probability(x) + (1 - y) * log_probability_of_rest(x))
  return given.weight and loss * given.weight or loss
end)

define_loss("BCEWithLogitsLoss", {
  { "input", "blob" }, { "target", "operand" }, { "weight", "operand?" }, { "pos_weight", "operand?" },
}, [[
The binary cross entropy of sigmoid(input), in nats, without overflow for any input:
  weight * (pos_weight * target * softplus(-input) + (1 - target) * softplus(input)), softplus(x) = log(1 + exp(x))
An infinite input costs 0 where the target is the 1 or 0 that it stands for, and else infinity.
dtypes: target may be of an integer dtype
shapes: input and target alike; weight and pos_weight (mostly one number per class, on the last axis) broadcast to
  them; each is a blob, an array or a number
defaults: weight and pos_weight are 1]],
function(given)
  local x, y = given.input, given.target
  local loss
  if given.pos_weight then
    local positive = given.pos_weight * weighed(y, ops.apply("softplus", { -x }))
    loss = positive + weighed(1 - y, ops.apply("softplus", { x }))
  else
    loss = ops.apply("sigmoid_cross_entropy_with_logits", { y, x })
  end
  return given.weight and loss * given.weight or loss
end)

-- PyTorch has the classes on axis 1.
local function check_class_axis(signature, x, y)
  local sizes, labels = x.shape:table(), table.concat(y.shape:table(), ", ")
  local classes, perm = table.remove(sizes, 2), { 0 }
  if #sizes < 2 or labels ~= table.concat(sizes, ", ") then return end
  for axis = 2, #sizes do perm[axis] = axis end
  perm[#perm + 1] = 1
  if labels == table.concat({ unpack(x.shape:table(), 1, #sizes) }, ", ") then return end
  signature:fail((": the %d classes of input '%s' %s are on axis 1, as in PyTorch, and wanted on the last one; "
    .. "flow.transpose(input, { %s }) puts them there"):format(classes, x.name, tostring(x.shape),
    table.concat(perm, ", ")))
end

define_loss("CrossEntropyLoss", {
  { "input", "blob" }, { "target", "operand" }, { "weight", "operand?" }, { "ignore_index", "integer?" },
  { "label_smoothing", "finite", 0 },
}, [[
The cross entropy between class numbers and softmax(input), in nats, with s = label_smoothing and one weight per class:
  sum_c weight[c] * q[c] * (log(sum_k exp(input[k])) - input[c]), q = s / classes, and 1 - s more for c = target
Where target is ignore_index it is 0, without a gradient. "mean" is that of the others, weighed by the weights of their
targets; of nothing it is 0.
shapes: input (..., classes), the last axis as in all of flow.nn; target (...); weight (classes), a blob or
  an array
dtypes: target of an integer dtype. What is probabilities goes to softmax_cross_entropy_with_logits
defaults: no weight, no ignore_index, label_smoothing 0
errors: a target outside [0, classes), but for ignore_index, names its row]],
function(given, signature)
  local x, y, s = given.input, given.target, given.label_smoothing
  if dtypes.floating[y.dtype] then
    signature:fail((": target '%s' is %s %s, wanted class numbers of an integer dtype; probabilities are for "
      .. "flow.nn.softmax_cross_entropy_with_logits"):format(y.name, y.dtype, tostring(y.shape)))
  end
  if s < 0 or s > 1 then signature:fail(": label_smoothing must lie in [0, 1], got " .. s) end
  check_class_axis(signature, x, y)
  local classes = x.shape[#x.shape - 1]
  local wanted = "(" .. classes .. ")"
  if given.weight and tostring(given.weight.shape) ~= wanted then
    signature:fail((": weight is %s, wanted one for each class of input %s, so %s"):format(
      tostring(given.weight.shape), tostring(x.shape), wanted))
  end
  local function scalar(value, dtype)
    return ops.apply("constant", {}, { value = value, dtype = dtype, shape = {} })
  end
  local counts
  if given.ignore_index then
    counts = y:ne(given.ignore_index)
    y = ops.apply("where", { counts, y, scalar(0, y.dtype) })
  end
  local share = given.weight and ops.apply("gather", { given.weight, y })
  local loss
  if s == 0 then
    loss = ops.apply("sparse_softmax_cross_entropy_with_logits", { y, x })
    if share then loss = share * loss end
  else
    local q = ops.apply("one_hot", { y }, { depth = classes, on_value = 1 - s + s / classes,
      off_value = s / classes, dtype = x.dtype })
    loss = ops.apply("softmax_cross_entropy_with_logits", { given.weight and q * given.weight or q, x })
  end
  if not counts then return loss, share end
  local none = scalar(0, x.dtype)
  return ops.apply("where", { counts, loss, none }),
    ops.apply("where", { counts, share or scalar(1, x.dtype), none })
end)

define_loss("KLDivLoss", { { "input", "blob" }, { "target", "operand" }, { "log_target", "boolean", false } }, [[
The Kullback-Leibler (KL) divergence of the target from the input, element by element, in nats. The input is log
probabilities:
  target * (log(target) - input); with log_target exp(target) * (target - input); 0 where that probability is 0
shapes: input and target alike
note: reduction "batchmean" is the sum divided by the size of the first axis, which is the divergence where a row is a
  distribution; "mean" divides by the number of all elements]],
function(given)
  local x, y = given.input, given.target
  if given.log_target then return weighed(ops.apply("exp", { y }), y - x) end
  return ops.apply("xlogy", { y, y }) - weighed(y, x)
end)

define_loss("MarginRankingLoss", {
  { "input1", "blob" }, { "input2", "blob" }, { "target", "operand" }, { "margin", "number", 0 },
}, [[
Asks for input1 above input2 by the margin where target is 1, and below it where target is -1:
  max(0, margin - target * (input1 - input2))
shapes: all alike, or so that they broadcast
defaults: margin 0]],
function(given)
  return ops.apply("relu", { given.margin - given.target * (given.input1 - given.input2) })
end)

define_loss("TripletMarginLoss", {
  { "anchor", "blob" }, { "positive", "blob" }, { "negative", "blob" }, { "margin", "number", 1 },
  { "p", "number", 2 }, { "eps", "number", 1e-6 }, { "swap", "boolean", false },
}, [[
Asks for an anchor that is nearer to its positive example than to its negative one, by the margin:
  max(0, margin + d(anchor, positive) - d(anchor, negative)), d(a, b) = (sum_i |a_i - b_i + eps|^p)^(1/p)
With swap the distance to the negative example is the smaller one of anchor and positive (Balntas and others,
"Learning local feature descriptors with triplets and shallow convolutional neural networks", 2016).
shapes: all (batch, width) -> (batch)
p: 1 or more; math.huge takes the largest |a_i - b_i + eps|
defaults: margin 1, p 2, eps 1e-6, which keeps the gradient finite where two are the same]],
function(given, signature)
  if given.p < 1 or given.p ~= given.p then signature:fail(": p must be at least 1, got " .. given.p) end
  local function distance(a, b) return norm(ops.widened(a) - ops.widened(b) + given.eps, given.p) end
  local near, far = distance(given.anchor, given.positive), distance(given.anchor, given.negative)
  if given.swap then far = ops.apply("minimum", { far, distance(given.positive, given.negative) }) end
  return ops.apply_narrowed("relu", { near - far + given.margin }, given.anchor.dtype)
end)

return define_loss
