--- Signals at another rate: flow.signal.resample, np.resample. What lies between samples is the sum of a sinc for each,
-- under a window, which passes no more than both rates can hold:
--   out[j] = sum over n of x[n] * h(n / from - j / to)
--   h(t) = cutoff / from * sinc(cutoff * t) * cos(pi / 2 * cutoff * t / width)^2  where |cutoff * t| < width, else 0
--   cutoff = rolloff * min(from, to)
-- After from / divisor samples the weights are those of the beginning again, so whole blocks of samples are multiplied
-- by one matrix.
--
-- `tools` computes, by apply(op, inputs, attrs, word) and check_list(count).

local core = require "moonflow.core"
local frames = require "moonflow.formulas.frames"

local rates = {}

local ceil = math.ceil

-- h for t = phase / cutoff, but for its factor.
local function weight(phase, width)
  if math.abs(phase) >= width then return 0 end
  local angle = math.pi * phase
  return (angle == 0 and 1 or math.sin(angle) / angle) * math.cos(angle / (2 * width)) ^ 2
end

--- The parameters of a function that does it: those of the signals and of whatever is `last` around its own.
function rates.parameters_of(signals, last)
  return {
    signals,
    { "orig_freq", "integer", text = "samples of a second" },
    { "new_freq", "integer", text = "how many of them the result has" },
    { "lowpass_filter_width", "integer", 6, text = "zeros of the sinc on each side: more of them cut sharper" },
    { "rolloff", "finite", 0.99, text = "what passes of the frequencies that both rates hold, above 0 and up to 1" },
    last,
  }
end

--- x (rows, samples) -> (rows, ceil(samples * to / from)). `given` has the parameters, `signature` says what is wrong.
function rates.resample(tools, x, given, signature, word)
  local from, to, width, rolloff = given.orig_freq, given.new_freq, given.lowpass_filter_width, given.rolloff
  if from < 1 or to < 1 then
    signature:fail((": the rates are %d and %d, wanted samples of a second"):format(from, to))
  elseif width < 1 then
    signature:fail((": lowpass_filter_width must be 1 or more, got %d"):format(width))
  elseif not (rolloff > 0 and rolloff <= 1) then
    signature:fail((": rolloff must be above 0 and up to 1, got %g"):format(rolloff))
  end
  local rows, samples, common = x.shape[0], x.shape[1], frames.divisor(from, to)
  if samples == 0 then signature:fail ": there are no samples" end
  from, to = from / common, to / common
  if from == to then return x end
  local cutoff = rolloff * math.min(from, to)
  local reach = ceil(width * from / cutoff)      -- samples before and after the one in the middle
  local repeats = ceil(2 * reach / from)         -- so many that a frame of two blocks has all that one block asks for
  local block, made = repeats * from, repeats * to
  tools:check_list(2 * block * made)
  local list = {}
  for n = 0, 2 * block - 1 do
    for j = 0, made - 1 do
      list[#list + 1] = cutoff / from * weight(cutoff * ((n - reach) / from - j / to), width)
    end
  end
  local blocks = ceil(samples / block)
  x = tools:apply("pad", { x }, { paddings = { 0, 0, reach, (blocks + 1) * block - samples - reach } }, "padded")
  x = tools:apply("reshape", { x }, { shape = { rows, (blocks + 1) * block, 1 } }, "column")
  x = frames.cut(tools, x, 2 * block, block, "frames")
  x = tools:apply("reshape", { x }, { shape = { rows * blocks, 2 * block } }, "rows")
  x = tools:apply("matmul", { x, core.array(list, x.dtype, { 2 * block, made }) }, { precise = true }, "product")
  x = tools:apply("reshape", { x }, { shape = { rows, blocks * made } }, "signals")
  return tools:apply("slice", { x }, { begin = { 0, 0 }, size = { rows, ceil(samples * to / from) } }, word)
end

return rates
