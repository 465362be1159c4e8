--- flow.signal: frames of a signal, their spectra, and what hearing makes of these. The names, and what they mean, are
-- those of tf.signal.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local fourier = require "moonflow.formulas.fourier"
local frames = require "moonflow.formulas.frames"
local ops = require "moonflow.ops"
local rates = require "moonflow.formulas.rates"
local tools = require "moonflow.composed.tools"

local flow = ops.functions

local texts = {
  frame_length = "samples of a frame",
  frame_step = "samples from the beginning of a frame to that of the next",
  pad_end = "as many frames as begin within the signal, where the last ones are filled up; else whole frames alone",
}

local function define(name, parameters, doc, make)
  arguments.explain(parameters, texts)
  ops.define("signal." .. name, parameters, doc, make)
end

local function check_size(value, what, signature)
  if value < 1 then signature:fail((": %s must be 1 or more, got %d"):format(what, value)) end
end

local function check_floating(x, signature)
  if dtypes.floating[x.dtype] then return end
  signature:fail((": '%s' is %s, wanted floats; flow.cast(x, flow.float32) / 32768 makes them of 16 bits"):format(
    x.name, x.dtype))
end

local function check_fractions(dtype, signature)
  if not dtypes.floating[dtype] then signature:fail(": dtype is " .. dtype .. ", wanted one with fractions") end
end

-- The sizes of all axes but the last `count`, and how many there are of the rest together.
local function leading(x, count, wanted, signature)
  local sizes = x.shape:table()
  if #sizes < count then
    signature:fail((": '%s' is %s, wanted %s"):format(x.name, tostring(x.shape), wanted))
  end
  for _ = 1, count do sizes[#sizes] = nil end
  local rows = 1
  for _, size in ipairs(sizes) do rows = rows * size end
  return sizes, rows
end

local function with(sizes, ...)
  local list = { unpack(sizes) }
  for _, size in ipairs { ... } do list[#list + 1] = size end
  return list
end

local function reshape(x, shape, name) return (ops.apply("reshape", { x }, { shape = shape }, name)) end

-- In the dtype that the result of a function has, called by its name. What is narrow was widened before, since it
-- cannot tell a whisper beside a voice.
local function of_dtype(x, dtype, name)
  if x.dtype == dtype then return (ops.apply("identity", { x }, nil, name)) end
  return (ops.apply("cast", { x }, { dtype = dtype }, name))
end

-- The same, in that shape.
local function finished(x, shape, dtype, name)
  if x.dtype == dtype then return reshape(x, shape, name) end
  return of_dtype(reshape(x, shape), dtype, name)
end

-- x, where it has complex numbers.
local function pairs_of(x, wanted, signature)
  check_floating(x, signature)
  if #x.shape < 2 or x.shape[#x.shape - 1] ~= 2 then
    signature:fail((": '%s' is %s, wanted %s"):format(x.name, tostring(x.shape), wanted))
  end
  return x
end

-- Applies `make(of_job, rows)` to the last axis of x as rows.
local function along_last(x, name, t, signature, make)
  check_floating(x, signature)
  local sizes, rows = leading(x, 1, "(..., length)", signature)
  local wide = ops.widened(x)
  local y = make(tools.new(t, signature, name), reshape(wide, { rows, x.shape[#sizes] }))
  return finished(y, with(sizes, y.shape[1]), x.dtype, name)
end

-- ---- windows ------------------------------------------------------------------------------------------------------

-- a - (1 - a) cos(2 pi i / period), of doubles.
local function define_window(name, a, title)
  define(name, {
    { "window_length", "integer" },
    { "periodic", "boolean", true, text = "one period of the cosine, as spectra want it; false: alike from both ends" },
    ops.result_dtype,
  }, title .. [[

shapes: -> (window_length), a constant of the job
  periodic: period = window_length, as PyTorch and SciPy have it; else window_length - 1. TensorFlow takes the latter
  for odd lengths always
errors: a window_length below 1; a dtype that has no fractions]],
  function(given, t, signature)
    local length = given.window_length
    check_size(length, "window_length", signature)
    local dtype = given.dtype or ops.default_dtype(t)
    check_fractions(dtype, signature)
    tools.new(t, signature):check_list(length)
    local period, list = given.periodic and length or length - 1, {}
    for i = 0, length - 1 do list[i + 1] = length == 1 and 1 or a - (1 - a) * fourier.turn(i, period) end
    return ops.constant(t, core.array(list, dtype))
  end)
end

define_window("hann_window", 0.5, "The window of Hann, 0.5 - 0.5 * cos(2 pi i / period).")
define_window("hamming_window", 0.54, "The window of Hamming, 0.54 - 0.46 * cos(2 pi i / period).")

local window_parameter = { "window_fn", "any?",
  text = "window_fn(frame_length, { dtype = ... }) gives (frame_length) weights; or these themselves; false for none; "
    .. "flow.signal.hann_window when left out" }

-- The weights of a frame, or nil where there are none.
local function window_of(window, length, dtype, t, signature)
  if window == false then return nil end
  if window == nil then window = flow.signal.hann_window end
  if arguments.is_callable(window) then window = window(length, { dtype = dtype }) end
  local kind = arguments.kind(window)
  if kind ~= "blob" and kind ~= "ndarray" then
    signature:fail((": window_fn gives %s, wanted a blob or an array of the %d weights of a frame"):format(
      arguments.describe(window), length))
  elseif #window.shape ~= 1 or window.shape[0] ~= length then
    signature:fail((": the window is %s, wanted (%d), one weight for each sample of a frame"):format(
      tostring(window.shape), length))
  end
  if kind == "ndarray" then window = ops.constant(t, window) end
  return window.dtype == dtype and window or ops.apply("cast", { window }, { dtype = dtype })
end

-- x (rows, length) under that window.
local function windowed(of_job, x, window, t, signature)
  local weights = window_of(window, x.shape[1], x.dtype, t, signature)
  return weights and of_job:apply("multiply", { x, weights }, nil, "windowed") or x
end

define("inverse_stft_window_fn", {
  { "frame_step", "integer" },
  { "forward_window_fn", "any?", text = "what stft had as window_fn" },
}, [[
The window_fn with which inverse_stft gives back what stft was given, but for the first and the last frame_length -
frame_step samples, which fewer frames cover.
  window / (the sum of the squares of all weights that a sample between these meets)
  flow.signal.inverse_stft(y, 512, 128, { window_fn = flow.signal.inverse_stft_window_fn(128) })
gives: a function (frame_length, options) -> (frame_length)
errors: a frame_step below 1]],
function(given, t, signature)
  local step = given.frame_step
  check_size(step, "frame_step", signature)
  return function(length, options)
    local dtype = options and options.dtype or ops.default_dtype(t)
    local window = window_of(given.forward_window_fn, length, dtype, t, signature)
      or flow.ones({ length }, { dtype = dtype })
    local overlaps = math.ceil(length / step)
    local squares = flow.pad(flow.math.square(window), { 0, overlaps * step - length })
    local sums = flow.math.reduce_sum(reshape(squares, { overlaps, step }), { axis = 0, keepdims = true })
    sums = reshape(flow.broadcast_to(sums, { overlaps, step }), { overlaps * step })
    return window / flow.slice(sums, { 0 }, { length })
  end
end)

-- ---- frames -------------------------------------------------------------------------------------------------------

local function check_frames(given, signature)
  check_size(given.frame_length, "frame_length", signature)
  check_size(given.frame_step, "frame_step", signature)
end

-- x (outer, samples, inner) -> (outer, frames, frame_length, inner); `source` is what x was, for errors.
local function framed(of_job, x, given, source, signature)
  local samples, length, step = x.shape[1], given.frame_length, given.frame_step
  local lacking = given.pad_end and (math.ceil(samples / step) - 1) * step + length - samples or 0
  if lacking > 0 and samples > 0 then
    local filling = { paddings = { 0, 0, 0, lacking, 0, 0 }, constant_value = given.pad_value or 0 }
    x = of_job:apply("pad", { x }, filling, "filled")
  end
  if x.shape[1] < length then
    signature:fail((": the %d samples of '%s' %s are less than a frame of %d%s"):format(samples, source.name,
      tostring(source.shape), length, samples > 0 and "; pad_end = true fills frames up" or ""))
  end
  return frames.cut(of_job, x, length, step, "frames")
end

define("frame", {
  { "signal", "blob" }, { "frame_length", "integer" }, { "frame_step", "integer" }, { "pad_end", "boolean", false },
  { "pad_value", "finite", 0, text = "what they are filled up with" },
  { "axis", "integer", -1, text = "that of the samples" },
}, [[
Frames of a signal, which may overlap, or leave something out.
  out[..., f, i] = signal[..., f * frame_step + i]
shapes: signal (..., samples) -> (..., frames, frame_length), at `axis` alike; frames is
  floor((samples - frame_length) / frame_step) + 1, with pad_end ceil(samples / frame_step)
dtypes: any -> the same
errors: a length or a step below 1; a signal that is shorter than a frame, without pad_end]],
function(given, t, signature)
  check_frames(given, signature)
  local x, sizes = given.signal, given.signal.shape:table()
  local axis = signature:axis(given.axis, #sizes)
  local outer, inner = 1, 1
  for i = 1, axis do outer = outer * sizes[i] end
  for i = axis + 2, #sizes do inner = inner * sizes[i] end
  local name = given.name or t:unnamed("Frame")
  local y = framed(tools.new(t, signature, name), reshape(x, { outer, sizes[axis + 1], inner }), given, x, signature)
  sizes[axis + 1] = given.frame_length
  table.insert(sizes, axis + 1, y.shape[1])
  return reshape(y, sizes, name)
end)

define("overlap_and_add", { { "signal", "blob" }, { "frame_step", "integer" } }, [[
The signal that frames add up to where they overlap: frame's way back, but for a factor.
  out[..., s] = sum over f of signal[..., f, s - f * frame_step]
shapes: signal (..., frames, frame_length) -> (..., (frames - 1) * frame_step + frame_length)
dtypes: any -> the same
errors: a step below 1; no frames]],
function(given, t, signature)
  local x, step = given.signal, given.frame_step
  check_size(step, "frame_step", signature)
  local sizes, rows = leading(x, 2, "(..., frames, frame_length)", signature)
  local count, length = x.shape[#sizes], x.shape[#sizes + 1]
  if count < 1 or length < 1 then signature:fail((": '%s' %s has no frames"):format(x.name, tostring(x.shape))) end
  local name = given.name or t:unnamed("OverlapAndAdd")
  local y = frames.sum(tools.new(t, signature, name), reshape(x, { rows, count, length }), step, "sums")
  return reshape(y, with(sizes, y.shape[1]), name)
end)

-- ---- other rates --------------------------------------------------------------------------------------------------

define("resample", rates.parameters_of { "signals", "blob" }, [[
Signals, such as audio, at another rate, by interpolation with a sinc under Hann's window.
  out[..., j] = sum over n of signals[..., n] * h(n / orig_freq - j / new_freq)
  h(t) = cutoff / orig_freq * sinc(cutoff * t) * cos(pi / 2 * cutoff * t / lowpass_filter_width)^2 where
    |cutoff * t| < lowpass_filter_width, else 0, with sinc(u) = sin(pi u) / (pi u)
  cutoff = rolloff * min(orig_freq, new_freq) is twice the highest frequency that passes
shapes: signals (..., samples) -> (..., ceil(samples * new_freq / orig_freq))
dtypes: float32 or float64; bfloat16 and float16 are computed in float32
errors: a rate below 1; no samples; rates whose common divisor is so small that they ask for a list of more than 2^24
  weights
source: resample of torchaudio.functional]],
function(given, t, signature)
  return along_last(given.signals, given.name or t:unnamed("Resample"), t, signature, function(of_job, rows)
    return rates.resample(of_job, rows, given, signature, "resampled")
  end)
end)

-- ---- spectra ------------------------------------------------------------------------------------------------------

local complex_text = [[
A complex number is a pair, real and imaginary, along a last axis. So of y the power is
  flow.math.reduce_sum(flow.math.square(y), { axis = -1 }), and the magnitude flow.math.sqrt of it.]]

local how_text = [[
dtypes: float32 or float64; bfloat16 and float16 are computed in float32
Computed by passes for the factors of the length, n * log(n) of work; a prime above 61 among them makes it, on the CPU,
  two transforms of a power of two, and on a card a pass of as many terms. Mixed precision leaves them alone.]]

define("rfft", {
  { "input_tensor", "blob" },
  { "fft_length", "integer?", text = "how many numbers to take, more of them being 0; all when left out" },
}, [[
The spectrum of real numbers, up to half of their rate.
  out[..., k] = sum over n of input_tensor[..., n] * exp(-2 pi i k n / fft_length)
]] .. complex_text .. [[

shapes: input_tensor (..., length) -> (..., floor(fft_length / 2) + 1, 2)
]] .. how_text .. [[

errors: an fft_length below 1 or above 2^27]],
function(given, t, signature)
  local x = given.input_tensor
  check_floating(x, signature)
  leading(x, 1, "(..., length)", signature)
  local size = given.fft_length or x.shape[#x.shape - 1]
  check_size(size, "fft_length", signature)
  local name = given.name or t:unnamed("Rfft")
  return of_dtype(fourier.of_real(tools.new(t, signature, name), ops.widened(x), size, "spectra"), x.dtype, name)
end)

define("irfft", {
  { "input_tensor", "blob" },
  { "fft_length", "integer?", text = "how many real numbers; 2 * (frequencies - 1) when left out" },
}, [[
The real numbers that have a spectrum: rfft's way back, divided by fft_length.
shapes: input_tensor (..., frequencies, 2) -> (..., fft_length). Frequencies that lack are 0, those above
  floor(fft_length / 2) and the imaginary parts of the first and of fft_length / 2 are not heeded
]] .. how_text .. [[

errors: a last axis other than of 2; an fft_length below 1 or above 2^27]],
function(given, t, signature)
  local x = pairs_of(given.input_tensor, "(..., frequencies, 2)", signature)
  local axis = #x.shape - 2
  local size = given.fft_length or 2 * (x.shape[axis] - 1)
  check_size(size, "fft_length", signature)
  local name = given.name or t:unnamed("Irfft")
  local of_job = tools.new(t, signature, name)
  local y = fourier.of_length(of_job, ops.widened(x), axis, fourier.half(size))
  return of_dtype(fourier.to_real(of_job, y, size, size, "signals"), x.dtype, name)
end)

for name, way in pairs { fft = "forward", ifft = "back" } do
  define(name, { { "input", "blob" } }, (name == "fft" and [[
The spectrum of complex numbers.
  out[..., k] = sum over n of input[..., n] * exp(-2 pi i k n / length)
]] or [[
The complex numbers that have a spectrum: fft's way back, divided by their number.
  out[..., n] = 1 / length * sum over k of input[..., k] * exp(+2 pi i k n / length)
]]) .. complex_text .. [[

shapes: input (..., length, 2) -> the same
]] .. how_text .. [[

errors: a last axis other than of 2; no numbers]],
  function(given, t, signature)
    local x = pairs_of(given.input, "(..., length, 2)", signature)
    check_size(x.shape[#x.shape - 2], "the length", signature)
    local whole = given.name or t:unnamed(name == "fft" and "Fft" or "Ifft")
    return of_dtype(fourier[way](tools.new(t, signature, whole), ops.widened(x), "spectra"), x.dtype, whole)
  end)
end

-- fft_length, or the least power of two that holds a frame.
local function size_of_frames(given, signature)
  check_frames(given, signature)
  local size = given.fft_length
  if not size then
    size = 1
    while size < given.frame_length do size = 2 * size end
  end
  check_size(size, "fft_length", signature)
  return size
end

local fft_parameter = { "fft_length", "integer?",
  text = "of each spectrum: a frame is filled up with zeros or cut; the least power of two from frame_length on when "
    .. "left out" }

define("stft", {
  { "signals", "blob" }, { "frame_length", "integer" }, { "frame_step", "integer" }, fft_parameter, window_parameter,
  { "pad_end", "boolean", false },
}, [[
The spectra of short times: of each frame, under a window.
  out[..., f, k] = sum over n of window[n] * signals[..., f * frame_step + n] * exp(-2 pi i k n / fft_length)
]] .. complex_text .. [[

shapes: signals (..., samples) -> (..., frames, floor(fft_length / 2) + 1, 2); frames as flow.signal.frame has them.
  The frequency k is that of k * rate / fft_length hertz
]] .. how_text .. [[

errors: a signal that is shorter than a frame, without pad_end; a window of another length than frame_length
note: a frame begins with its first sample, as in TensorFlow; torch.stft is so with center = False, where a window
  that is shorter than n_fft stands in the middle]],
function(given, t, signature)
  local x = given.signals
  check_floating(x, signature)
  local size, dtype = size_of_frames(given, signature), x.dtype
  local sizes, rows = leading(x, 1, "(..., samples)", signature)
  local name = given.name or t:unnamed("Stft")
  local of_job = tools.new(t, signature, name)
  local y = framed(of_job, reshape(ops.widened(x), { rows, x.shape[#sizes], 1 }), given, x, signature)
  local count = y.shape[1]
  y = of_job:apply("reshape", { y }, { shape = { rows * count, given.frame_length } }, "frames")
  y = fourier.of_real(of_job, windowed(of_job, y, given.window_fn, t, signature), size, "spectra")
  return finished(y, with(sizes, count, y.shape[1], 2), dtype, name)
end)

define("inverse_stft", {
  { "stfts", "blob" }, { "frame_length", "integer" }, { "frame_step", "integer" }, fft_parameter, window_parameter,
}, [[
The signals of spectra of short times: irfft of each, under a window, and overlap_and_add of these frames. With
window_fn = flow.signal.inverse_stft_window_fn(frame_step) they are those that stft was given, but for the first and the
last frame_length - frame_step samples, which fewer frames cover: pad a signal by as many before stft to have all of it.
shapes: stfts (..., frames, floor(fft_length / 2) + 1, 2) -> (..., (frames - 1) * frame_step + frame_length)
]] .. how_text .. [[

errors: another number of frequencies; a window of another length than frame_length]],
function(given, t, signature)
  local x = given.stfts
  check_floating(x, signature)
  local size, dtype = size_of_frames(given, signature), x.dtype
  local wanted = ("(..., frames, %d, 2)"):format(fourier.half(size))
  local sizes, rows = leading(x, 3, wanted, signature)
  local count, frequencies, parts = x.shape[#sizes], x.shape[#sizes + 1], x.shape[#sizes + 2]
  if frequencies ~= fourier.half(size) or parts ~= 2 or count < 1 then
    signature:fail((": '%s' is %s, wanted %s for an fft_length of %d"):format(x.name, tostring(x.shape), wanted, size))
  end
  local name, length = given.name or t:unnamed("InverseStft"), given.frame_length
  local of_job = tools.new(t, signature, name)
  local y = reshape(ops.widened(x), { rows * count, frequencies, parts })
  y = fourier.to_real(of_job, y, size, length, "frames")
  y = windowed(of_job, y, given.window_fn, t, signature)
  y = frames.sum(of_job, reshape(y, { rows, count, length }), given.frame_step, "sums")
  return finished(y, with(sizes, y.shape[1]), dtype, name)
end)

-- ---- what hearing makes of them -----------------------------------------------------------------------------------

local function mel(hertz) return 1127 * math.log(1 + hertz / 700) end

define("linear_to_mel_weight_matrix", {
  { "num_mel_bins", "integer", 20 }, { "num_spectrogram_bins", "integer", 129 },
  { "sample_rate", "finite", 8000, text = "samples of a second" },
  { "lower_edge_hertz", "finite", 125, text = "where the lowest band begins" },
  { "upper_edge_hertz", "finite", 3800, text = "where the highest band ends" }, ops.result_dtype,
}, [[
What frequencies of a spectrum add to bands that hearing tells apart: triangles which overlap by half, between
num_mel_bins + 2 edges evenly spaced in mel = 1127 * log(1 + hertz / 700).
  flow.matmul(power, weights) of power (..., num_spectrogram_bins) is (..., num_mel_bins)
shapes: -> (num_spectrogram_bins, num_mel_bins), a constant of the job. The first frequency, 0, counts for nothing
errors: a number of bins below 1; edges that do not rise, or beyond half of sample_rate; a dtype without fractions]],
function(given, t, signature)
  local bins, bands, rate = given.num_spectrogram_bins, given.num_mel_bins, given.sample_rate
  local lower, upper = given.lower_edge_hertz, given.upper_edge_hertz
  check_size(bands, "num_mel_bins", signature)
  check_size(bins, "num_spectrogram_bins", signature)
  if not (lower >= 0 and lower < upper and upper <= rate / 2) then
    signature:fail((": the edges are %g and %g hertz, wanted such that rise from 0 on, up to half of the rate of %g")
      :format(lower, upper, rate))
  end
  local dtype = given.dtype or ops.default_dtype(t)
  check_fractions(dtype, signature)
  tools.new(t, signature):check_list(bins * bands)
  local first, step, list = mel(lower), (mel(upper) - mel(lower)) / (bands + 1), {}
  for bin = 0, bins - 1 do
    local place = bin > 0 and (mel(rate / 2 * bin / (bins - 1)) - first) / step or -1
    for band = 0, bands - 1 do list[#list + 1] = math.max(0, 1 - math.abs(place - band - 1)) end
  end
  return ops.constant(t, core.array(list, dtype, { bins, bands }))
end)

-- What x[n] adds to out[k], of `size`, by type; and what makes both ways the same, by norm = "ortho".
local cosines = {
  function(n, k, size)
    local is_end = n == 0 or n == size - 1
    return (is_end and 1 or 2) * fourier.turn(n * k % (2 * size - 2), 2 * size - 2)
  end,
  function(n, k, size, is_ortho)
    local scale = not is_ortho and 2 or math.sqrt((k == 0 and 1 or 2) / size)
    return scale * fourier.turn((2 * n + 1) * k % (4 * size), 4 * size)
  end,
  function(n, k, size, is_ortho)
    local scale = not is_ortho and (n == 0 and 1 or 2) or math.sqrt((n == 0 and 1 or 2) / size)
    return scale * fourier.turn(n * (2 * k + 1) % (4 * size), 4 * size)
  end,
  function(n, k, size, is_ortho)
    return (is_ortho and math.sqrt(2 / size) or 2) * fourier.turn((2 * n + 1) * (2 * k + 1) % (8 * size), 8 * size)
  end,
}

local function cosine_transform(of_job, x, kind, is_ortho, scale, size)
  of_job:check_list(size * size)
  local list = {}
  for n = 0, size - 1 do
    for k = 0, size - 1 do list[#list + 1] = scale * cosines[kind](n, k, size, is_ortho) end
  end
  return of_job:apply("matmul", { x, core.array(list, x.dtype, { size, size }) }, { precise = true },
    "product")
end

define("dct", {
  { "input", "blob" }, { "type", "integer", 2, text = "1, 2, 3 or 4" },
  { "n", "integer?", text = "how many numbers to take, more of them being 0; all when left out" },
  { "norm", "string?", text = '"ortho": so scaled that type 3 is the way back of type 2, and 4 its own' },
}, [[
The discrete cosine transform along the last axis, of which size is n:
  1: out[k] = x[0] + (-1)^k x[n - 1] + 2 * sum over 0 < i < n - 1 of x[i] * cos(pi * k * i / (n - 1))
  2: out[k] = 2 * sum over i of x[i] * cos(pi * k * (2 i + 1) / (2 n))
  3: out[k] = x[0] + 2 * sum over i > 0 of x[i] * cos(pi * (2 k + 1) * i / (2 n))
  4: out[k] = 2 * sum over i of x[i] * cos(pi * (2 k + 1) * (2 i + 1) / (4 n))
shapes: input (..., length) -> (..., n)
dtypes: float32 or float64; bfloat16 and float16 are computed in float32
errors: another type or norm; norm with type 1; type 1 of one number; an n below 1]],
function(given, t, signature)
  local x, kind, norm = given.input, given.type, given.norm
  if not cosines[kind] then signature:fail((": type is 1, 2, 3 or 4, got %d"):format(kind)) end
  if norm and norm ~= "ortho" then signature:fail((": norm is '%s', wanted 'ortho', or none"):format(norm)) end
  if norm and kind == 1 then signature:fail ": type 1 has no norm 'ortho'" end
  return along_last(x, given.name or t:unnamed("Dct"), t, signature, function(of_job, rows)
    local size = given.n or rows.shape[1]
    check_size(size, "n", signature)
    if kind == 1 and size < 2 then signature:fail ": type 1 is of 2 numbers or more, got 1" end
    return cosine_transform(of_job, fourier.of_length(of_job, rows, 1, size), kind, norm, 1, size)
  end)
end)

define("mfccs_from_log_mel_spectrograms", { { "log_mel_spectrograms", "blob" } }, [[
Cepstral coefficients of log mel spectrograms: their dct of type 2 along the bands, divided by sqrt(2 * bands), as HTK
has it. The first dozen are what is mostly kept: flow.slice(y, { 0, 0 }, { frames, 13 }).
shapes: log_mel_spectrograms (..., bands) -> the same
dtypes: float32 or float64; bfloat16 and float16 are computed in float32]],
function(given, t, signature)
  local name = given.name or t:unnamed("Mfccs")
  return along_last(given.log_mel_spectrograms, name, t, signature, function(of_job, rows)
    local bands = rows.shape[1]
    check_size(bands, "the number of bands", signature)
    return cosine_transform(of_job, rows, 2, false, 1 / math.sqrt(2 * bands), bands)
  end)
end)
