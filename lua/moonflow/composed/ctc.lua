--- The loss of labels that lie somewhere along a sequence, put together from ops: what is likely of a step, summed over
-- all ways through the steps, one after the other.

local blob = require "moonflow.blob"
local define_loss = require "moonflow.composed.losses"
local dtypes = require "moonflow.dtypes"
local ops = require "moonflow.ops"
local trace = require "moonflow.trace"

local function constant(value, dtype)
  return ops.apply("constant", {}, { value = value, dtype = dtype, shape = {} })
end

local function numbers(count, dtype)
  return ops.apply("range", {}, { start = 0, stop = count, dtype = dtype })
end

local function column(x) return ops.apply("expand_dims", { x }, { axis = 1 }) end

local function choose(condition, x, y) return ops.apply("where", { condition, x, y }) end

local function both(a, b) return ops.apply("logical_and", { a, b }) end

-- Rows moved on by some places, with `value` in front.
local function moved(x, places, value)
  local rows, width = x.shape[0], x.shape[1]
  local kept = ops.apply("slice", { x }, { begin = { 0, 0 }, size = { rows, width - places } })
  return ops.apply("pad", { kept }, { paddings = { 0, 0, places, 0 }, constant_value = value })
end

-- Picked from all there can be, so that one which cannot be is an error of the run, under the name of the input.
local function checked(x, count, name)
  return ops.apply("gather", { numbers(count, x.dtype), x }, { axis = 0 }, name)
end

-- (batch, labels), one at least: blank where there are no more of them.
local function labels_of(given, lengths, name)
  local target, dtype = given.target, given.target.dtype
  local batch, labels = target.shape[0], target.shape[1]
  if labels == 0 then
    return ops.apply("constant", {}, { value = given.blank, dtype = dtype, shape = { batch, 1 } })
  end
  local is_there = ops.apply("less", { numbers(labels, lengths.dtype), column(lengths) })
  return checked(choose(is_there, target, constant(given.blank, dtype)), given.input.shape[2], name)
end

-- (batch, 2 labels + 1): the labels with a blank before, between and behind them.
local function with_blanks(labels, blank)
  local batch, count = labels.shape[0], labels.shape[1]
  local blanks = ops.apply("constant", {}, { value = blank, dtype = labels.dtype, shape = { batch, count } })
  local flat = ops.apply("reshape", { ops.apply("stack", { blanks, labels }, { axis = 2 }) },
    { shape = { batch, 2 * count } })
  return ops.apply("pad", { flat }, { paddings = { 0, 0, 0, 1 }, constant_value = blank })
end

local function check(given, signature)
  local x, y = given.input, given.target
  if #x.shape ~= 3 or not dtypes.floating[x.dtype] then
    signature:fail((": input must be floating (batch, steps, classes), '%s' is %s %s"):format(x.name, x.dtype,
      tostring(x.shape)))
  end
  local batch, classes = x.shape[0], x.shape[2]
  if #y.shape ~= 2 or y.shape[0] ~= batch then
    local turned = #y.shape == 2 and y.shape[0] == x.shape[1]
    signature:fail((": input '%s' is %s and target '%s' %s, wanted (batch, steps, classes) and (batch, labels)%s")
      :format(x.name, tostring(x.shape), y.name, tostring(y.shape), turned and "; the batch comes first here, and "
        .. "flow.transpose(input, { 1, 0, 2 }) puts it there" or ""))
  end
  for _, name in ipairs { "target", "input_lengths", "target_lengths" } do
    local value = given[name]
    local counts = value.dtype == "int32" or value.dtype == "int64"
    local fits = name == "target" or #value.shape == 1 and value.shape[0] == batch
    if not counts or not fits then
      signature:fail((": %s must be int32 or int64 (%s), '%s' is %s %s"):format(name,
        name == "target" and "batch, labels" or batch, value.name, value.dtype, tostring(value.shape)))
    end
  end
  if given.blank < 0 or given.blank >= classes then
    signature:fail((": blank must be one of the %d classes, from 0 on, got %d"):format(classes, given.blank))
  end
end

define_loss("CTCLoss", {
  { "input", "blob" }, { "target", "operand" }, { "input_lengths", "operand" }, { "target_lengths", "operand" },
  { "blank", "integer", 0, text = "the class of a step that says nothing" },
  { "zero_infinity", "boolean", false, text = "true: a target that its steps have no room for costs 0" },
}, [[
Connectionist temporal classification, in nats: how unlikely it is that the steps say the target, whose labels may each
take several steps and have blanks between them. Two equal labels in a row need a blank.
  -log(sum over all ways w with collapsed(w) = target of the product of exp(input[t, w(t)]) over all steps t)
shapes: input (batch, steps, classes), the logarithms of probabilities as flow.nn.log_softmax gives them; target (batch,
  labels); input_lengths and target_lengths (batch), how many of the steps and labels count. What is behind them may be
  anything
dtypes: target and lengths int32 or int64
defaults: blank 0, zero_infinity false. A target without room costs infinity, and has no gradient
errors: in a run, a label outside of the classes or a length beyond the axis, with its position
cost: some ten ops for each step, so a length of sequences that is new, as inputs of several sizes have them, takes as
  long to compile as some tens of runs. A few lengths to which all are filled up, and input_lengths, spare that
source: Graves and others, "Connectionist temporal classification", ICML 2006; the ways are summed forwards
mean: as in PyTorch, each loss is divided by its target's length before the mean over the batch is taken]],
function(given, signature)
  local t = trace.need("flow.nn.CTCLoss")
  for _, lengths in ipairs { "input_lengths", "target_lengths" } do
    given[lengths] = blob.of(given[lengths], t, "int64", signature.where .. ": " .. lengths)
  end
  check(given, signature)
  local name = given.name or t:unnamed("CTCLoss")
  local x = given.input
  local batch, steps = x.shape[0], x.shape[1]
  local input_lengths = column(checked(given.input_lengths, steps + 1, name .. "-input_lengths"))
  local target_lengths = checked(given.target_lengths, given.target.shape[1] + 1, name .. "-target_lengths")
  local wanted = with_blanks(labels_of(given, target_lengths, name .. "-target"), given.blank)
  local width = wanted.shape[1]
  local nothing, certain = constant(-math.huge, x.dtype), constant(0, x.dtype)

  -- What each step gives to each place of the wanted row.
  local index = ops.apply("broadcast_to", { ops.apply("expand_dims", { wanted }, { axis = 1 }) },
    { shape = { batch, steps, width } })
  local given_to = ops.apply("dim_gather", { x, index }, { dim = 2 })
  -- A label may follow the one before it without a blank, unless they are the same.
  local may_skip = both(wanted:ne(given.blank), ops.apply("not_equal", { wanted, moved(wanted, 2, given.blank) }))

  -- ways[place]: logarithm of the sum over all ways that are there after the steps so far. Before the first step they
  -- are at the first blank.
  local places = numbers(width, target_lengths.dtype)
  local start = choose(places:eq(0), certain, nothing)
  local ways = ops.apply("broadcast_to", { start }, { shape = { batch, width } })
  for step = 0, steps - 1 do
    local now = ops.apply("slice", { given_to }, { begin = { 0, step, 0 }, size = { batch, 1, width } })
    now = ops.apply("reshape", { now }, { shape = { batch, width } })
    local skipping = choose(may_skip, moved(ways, 2, -math.huge), nothing)
    local before = ops.apply("stack", { ways, moved(ways, 1, -math.huge), skipping }, { axis = 2 })
    local sum = ops.apply("reduce_logsumexp", { before }, { axis = { 2 } })
    ways = choose(input_lengths:gt(step), sum + now, ways)
  end

  -- They end on the last label or on the blank behind it.
  local missing = ops.apply("subtract", { column(target_lengths) * 2, places })
  local ends = both(missing:ge(0), missing:le(1))
  local loss = -ops.apply("reduce_logsumexp", { choose(ends, ways, nothing) }, { axis = { 1 } })
  if given.zero_infinity then loss = choose(loss:eq(math.huge), certain, loss) end
  if given.reduction == "mean" then
    local counts = ops.apply("maximum", { target_lengths, constant(1, target_lengths.dtype) })
    loss = loss / ops.apply("cast", { counts }, { dtype = x.dtype })
  end
  return loss
end)
