--- The loss of labels that lie somewhere along a sequence.

local blob = require "moonflow.blob"
local define_loss = require "moonflow.composed.losses"
local dtypes = require "moonflow.dtypes"
local ops = require "moonflow.ops"
local trace = require "moonflow.trace"

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
note: its gradient has none of its own
source: Graves and others, "Connectionist temporal classification", ICML 2006; the ways are summed in float64
mean: as in PyTorch, each loss is divided by its target's length before the mean over the batch is taken]],
function(given, signature)
  local t = trace.need("flow.nn.CTCLoss")
  for _, lengths in ipairs { "input_lengths", "target_lengths" } do
    given[lengths] = blob.of(given[lengths], t, "int64", signature.where .. ": " .. lengths)
  end
  check(given, signature)
  local loss = ops.apply("ctc_loss", { given.input, given.target, given.input_lengths, given.target_lengths },
    { blank = given.blank, zero_infinity = given.zero_infinity }, given.name or t:unnamed("CTCLoss"))
  if given.reduction == "mean" then
    local one = ops.apply("constant", {}, { value = 1, dtype = given.target_lengths.dtype, shape = {} })
    local counts = ops.apply("maximum", { given.target_lengths, one })
    loss = loss / ops.apply("cast", { counts }, { dtype = loss.dtype })
  end
  return loss
end)
