--- The discrete Fourier transform by the ops that compute it: flow.signal, and ONNX's DFT and STFT.
--   X[k] = sum over n of x[n] * exp(-2 pi i k n / size)
-- `tools` computes, by apply(op, inputs, attrs, word). Complex numbers are pairs along a last axis.

local fourier = {}

local floor = math.floor

--- Cosine and sine of i / size of a turn. Those of whole quarters are exact, since what is left of an angle is taken
--- from the nearest of these.
function fourier.turn(i, size)
  local quarter = floor(4 * i / size + 0.5)
  local angle = math.pi / 2 * (4 * i - quarter * size) / size
  local cosine, sine = math.cos(angle), math.sin(angle)
  for _ = 1, quarter % 4 do cosine, sine = -sine, cosine end
  return cosine, sine
end

--- How many frequencies real numbers have, up to half of their rate.
function fourier.half(size) return floor(size / 2) + 1 end

--- x with `size` places along an axis, from 0: cut, or filled up with zeros.
function fourier.of_length(tools, x, axis, size)
  local sizes, begin, paddings = x.shape:table(), {}, {}
  local have = sizes[axis + 1]
  if size == have then return x end
  for i = 1, 2 * #sizes do paddings[i] = 0 end
  for i = 1, #sizes do begin[i] = 0 end
  sizes[axis + 1], paddings[2 * axis + 2] = size, size - have
  if size > have then return tools:apply("pad", { x }, { paddings = paddings }, "filled") end
  return tools:apply("slice", { x }, { begin = begin, size = sizes }, "cut")
end

--- The spectra of real numbers: x (..., length) -> (..., half(size), 2), of `size` numbers, of which those that lack
--- are 0.
function fourier.of_real(tools, x, size, word) return tools:apply("rfft", { x }, { size = size }, word) end

--- What has these spectra: x (..., half(size), 2) -> (..., length), zeros from size on. Imaginary parts that no real
--- numbers have, of the first and of size / 2, are not heeded.
function fourier.to_real(tools, x, size, length, word)
  return tools:apply("irfft", { x }, { size = size, length = length, edge = 1 / size, middle = 2 / size }, word)
end

--- The spectra of complex numbers, x (..., size, 2), and what has them.
function fourier.forward(tools, x, word) return tools:apply("fft", { x }, nil, word) end
function fourier.back(tools, x, word)
  local size = x.shape[#x.shape - 2]
  return tools:apply("fft", { x }, { inverse = true, scale = 1 / size }, word)
end

return fourier
