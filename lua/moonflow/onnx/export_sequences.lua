--- The loss of labels along a sequence as ONNX has it: a table as that of export_ops. There is no operator for it, so
--- it is put together step by step, from logarithms.

local core = require "moonflow.core"
local types = require "moonflow.onnx.types"

local ops = {}

local function columns(w, count, dtype, value)
  local list = {}
  for i = 1, count do list[i] = value(i - 1) end
  return w:array(core.array(list, dtype, { 1, count }), "columns")
end

local function as_column(w, x) return w:emit("Unsqueeze", { x, w:ints { 1 } }, nil, "column") end

-- Rows moved on by some places, with `value` in front.
local function moved(w, x, width, places, value, word)
  local kept = w:emit("Slice", { x, w:ints { 0 }, w:ints { width - places }, w:ints { 1 } }, nil, word .. "_kept")
  return w:emit("Pad", { kept, w:ints { 0, places, 0, 0 }, value }, nil, word)
end

-- (batch, 2 labels + 1): the labels with a blank before, between and behind them. There is one at least: blank, as
-- where there are no more of them.
local function with_blanks(w, count, counts, blank)
  local labels
  if count == 0 then
    local zeros = w:emit("Mul", { counts, w:number(0, "int64") }, nil, "zeros")
    labels = w:emit("Add", { zeros, blank }, nil, "labels")
  else
    local places = columns(w, count, "int64", function(i) return i end)
    local is_there = w:emit("Less", { places, counts }, nil, "is_there")
    labels = w:emit("Where", { is_there, w:indices(2), blank }, nil, "labels")
  end
  local apart = w:emit("Unsqueeze", { labels, w:ints { 2 } }, nil, "apart")
  local pairs_of_both = w:emit("Pad", { apart, w:ints { 0, 0, 1, 0, 0, 0 }, blank }, nil, "pairs")
  local flat = w:emit("Reshape", { pairs_of_both, w:ints { 0, -1 } }, nil, "flat")
  return w:emit("Pad", { flat, w:ints { 0, 0, 0, 1 }, blank }, nil, "wanted")
end

-- input, target, input_lengths, target_lengths
function ops.ctc_loss(w)
  local dtype, steps, count = w:dtype(1), w:sizes(1)[2], w:sizes(2)[2]
  local width = 2 * math.max(count, 1) + 1
  local blank, nothing = w:number(w.attrs.blank, "int64"), w:number(-math.huge)
  local lengths, counts = as_column(w, w:indices(3)), as_column(w, w:indices(4))
  local wanted = with_blanks(w, count, counts, blank)
  local at_each_step = w:emit("Expand",
    { w:emit("Unsqueeze", { wanted, w:ints { 1 } }, nil, "step"), w:ints { 1, steps, 1 } }, nil, "steps")
  local given = w:emit("GatherElements", { w:input(1), at_each_step }, { axis = { i = 2 } }, "given")
  -- A label may follow the one before it without a blank, unless they are the same.
  local before = moved(w, wanted, width, 2, blank, "before")
  local stays = w:emit("Or", { w:emit("Equal", { wanted, blank }, nil, "is_blank"),
    w:emit("Equal", { wanted, before }, nil, "is_same") }, nil, "stays")

  -- Before the first step the ways are at the first blank.
  local zeros = w:emit("Cast", { w:emit("Mul", { wanted, w:number(0, "int64") }, nil, "zeros") },
    { to = types.attribute(dtype) }, "certain")
  local start = columns(w, width, dtype, function(i) return i == 0 and 0 or -math.huge end)
  local ways = w:emit("Add", { zeros, start }, nil, "start")
  for step = 0, steps - 1 do
    local skipping = w:emit("Where", { stays, nothing, moved(w, ways, width, 2, nothing, "skipping") }, nil, "skips")
    local together = {}
    for i, way in ipairs { ways, moved(w, ways, width, 1, nothing, "going_on"), skipping } do
      together[i] = w:emit("Unsqueeze", { way, w:ints { 2 } }, nil, "way")
    end
    local all = w:emit("Concat", together, { axis = { i = 2 } }, "together")
    local sum = w:emit("ReduceLogSumExp", { all }, { axes = { ints = { 2 } }, keepdims = { i = 0 } }, "sum")
    local now = w:emit("Gather", { given, w:number(step, "int64") }, { axis = { i = 1 } }, "now")
    local counted = w:emit("Greater", { lengths, w:number(step, "int64") }, nil, "counts")
    ways = w:emit("Where", { counted, w:emit("Add", { sum, now }, nil, "then"), ways }, nil, "ways")
  end

  -- They end on the last label or on the blank behind it.
  local last = w:emit("Mul", { counts, w:number(2, "int64") }, nil, "last")
  local missing = w:emit("Sub", { last, columns(w, width, "int64", function(i) return i end) }, nil, "missing")
  local ends = w:emit("And", { w:emit("GreaterOrEqual", { missing, w:number(0, "int64") }, nil, "is_near"),
    w:emit("LessOrEqual", { missing, w:number(1, "int64") }, nil, "is_behind") }, nil, "ends")
  local ended = w:emit("Where", { ends, ways, nothing }, nil, "ended")
  local logarithm = w:emit("ReduceLogSumExp", { ended }, { axes = { ints = { 1 } }, keepdims = { i = 0 } }, "logarithm")
  if not w.attrs.zero_infinity then return w:emit("Neg", { logarithm }) end
  local loss = w:emit("Neg", { logarithm }, nil, "loss")
  local is_infinite = w:emit("Equal", { loss, w:number(math.huge) }, nil, "is_infinite")
  return w:emit("Where", { is_infinite, w:number(0), loss })
end

return ops
