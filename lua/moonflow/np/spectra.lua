--- Spectra in flow.np.fft: what flow.signal has in jobs, along any axis. A complex number is a pair, real and
-- imaginary, along an axis of its own behind the others. And NumPy's windows, by which a piece of a signal is weighed
-- before its spectrum.

local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local fourier = require "moonflow.formulas.fourier"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"
local tools_of = require "moonflow.np.tools"

local as_array, floating, signature = ndarray.as_array, ndarray.floating, arguments.signature

local fft = {}
np.fft = fft

-- Transforms x along an axis of its numbers, which is the last one of them then: compute(tools, x, axis).
local function along(called, x, axis, numbers, compute)
  local last = numbers - 1
  axis = called:axis(axis, numbers)
  local function turned(y) return axis == last and y or np.swapaxes(y, axis, last) end
  return turned(compute(tools_of(called), turned(x), last))
end

local function check_length(called, length, parameter)
  if length < 1 then called:fail((": %s must be 1 or more, got %d"):format(parameter, length)) end
end

-- An array with complex numbers.
local function pairs_of(a, called)
  local x = floating(as_array(a, called.where))
  if x.rank < 2 or x.shape[x.rank - 1] ~= 2 then
    errors.raise("shape_mismatch", ("%s: a is %s, wanted pairs along the last axis, real and imaginary; np.fft.rfft "
      .. "is for real numbers"):format(called.where, tostring(x.shape)))
  end
  return x
end

local function parameters() return { { "a", "any" }, { "n", "integer?" }, { "axis", "integer", -1 } } end

local rfft_signature = signature("np.fft.rfft", parameters())
--- The spectrum of real numbers, up to half of their rate:
--- out[k] = sum over m of a[m] * exp(-2 pi i k m / n), each a pair, real and imaginary, along a last axis.
--- `np.sum(np.fft.rfft(a) ^ 2, -1)` is the power, np.fft.rfftfreq tells the frequencies.
--- @param a ndarray|table   (..., length, ...); whole numbers become float64
--- @param n? integer        how many numbers to take, more of them being 0; all when left out
--- @param axis? integer     that of the numbers; default: the last one
--- @return ndarray          (..., floor(n / 2) + 1, ..., 2)
--- @error a length below 1
function fft.rfft(...)
  local given = rfft_signature:parse(...)
  local a = floating(as_array(given.a, "np.fft.rfft"))
  return along(rfft_signature, a, given.axis, a.rank, function(tools, x, last)
    local size = given.n or x.shape[last]
    check_length(rfft_signature, size, "the length")
    return fourier.of_real(tools, x, size)
  end)
end

local irfft_signature = signature("np.fft.irfft", parameters())
--- The real numbers that have a spectrum: np.fft.rfft's way back, divided by n.
--- @param a ndarray|table   (..., frequencies, ..., 2), pairs along the last axis
--- @param n? integer        how many numbers; 2 * (frequencies - 1) when left out
--- @param axis? integer     that of the frequencies, pairs not counted; default: the last one
--- @return ndarray          (..., n, ...)
--- @error a last axis other than of 2; a length below 1
function fft.irfft(...)
  local given = irfft_signature:parse(...)
  local a = pairs_of(given.a, irfft_signature)
  return along(irfft_signature, a, given.axis, a.rank - 1, function(tools, x, last)
    local size = given.n or 2 * (x.shape[last] - 1)
    check_length(irfft_signature, size, "n")
    return fourier.to_real(tools, fourier.of_length(tools, x, last, fourier.half(size)), size, size)
  end)
end

-- Both ways of complex numbers.
local function of_complex(called, way, ...)
  local given = called:parse(...)
  local a = pairs_of(given.a, called)
  return along(called, a, given.axis, a.rank - 1, function(tools, x, last)
    local size = given.n or x.shape[last]
    check_length(called, size, "the length")
    return fourier[way](tools, fourier.of_length(tools, x, last, size))
  end)
end

local fft_signature = signature("np.fft.fft", parameters())
--- The spectrum of complex numbers: out[k] = sum over m of a[m] * exp(-2 pi i k m / n), in np.fft.fftfreq's order.
--- @param a ndarray|table   (..., length, ..., 2), pairs along the last axis
--- @param n? integer        how many numbers to take, more of them being 0; all when left out
--- @param axis? integer     that of the numbers, pairs not counted; default: the last one
--- @return ndarray          (..., n, ..., 2)
--- @error a last axis other than of 2; a length below 1
function fft.fft(...) return of_complex(fft_signature, "forward", ...) end

local ifft_signature = signature("np.fft.ifft", parameters())
--- The complex numbers that have a spectrum: np.fft.fft's way back, divided by n.
--- @param a ndarray|table   (..., length, ..., 2), pairs along the last axis
--- @param n? integer        how many frequencies to take, more of them being 0; all when left out
--- @param axis? integer     that of the frequencies, pairs not counted; default: the last one
--- @return ndarray          (..., n, ..., 2)
--- @error a last axis other than of 2; a length below 1
function fft.ifft(...) return of_complex(ifft_signature, "back", ...) end

local function frequencies(called, given, first, count)
  check_length(called, given.n, "n")
  return np.arange(first, first + count, { dtype = "float64" }) / (given.n * given.d)
end

local function of_samples() return { { "n", "integer" }, { "d", "number", 1 } } end

local rfftfreq_signature = signature("np.fft.rfftfreq", of_samples())
--- The frequencies of np.fft.rfft: 0, 1, ..., floor(n / 2), divided by n * d.
--- @param n integer   how many numbers were transformed
--- @param d? number   from one of them to the next, 1 / rate in seconds for hertz; default: 1
--- @return ndarray    float64 (floor(n / 2) + 1)
--- @error n below 1
function fft.rfftfreq(...)
  local given = rfftfreq_signature:parse(...)
  return frequencies(rfftfreq_signature, given, 0, fourier.half(given.n))
end

local fftfreq_signature = signature("np.fft.fftfreq", of_samples())
--- The frequencies of np.fft.fft: 0, 1, ..., then those below 0 up to -1, divided by n * d.
--- @param n integer   how many numbers were transformed
--- @param d? number   from one of them to the next, 1 / rate in seconds for hertz; default: 1
--- @return ndarray    float64 (n)
--- @error n below 1
function fft.fftfreq(...)
  local given = fftfreq_signature:parse(...)
  local negative = math.floor(given.n / 2)
  return np.roll(frequencies(fftfreq_signature, given, -negative, given.n), -negative)
end

-- ---- windows ------------------------------------------------------------------------------------------------------

-- A window of `count` numbers by at(x), where x goes from -1 to 1.
local function window(name, at, more)
  local called = "np." .. name
  local own = signature(called, { { "count", "integer" }, more })  -- and perhaps one more
  np[name] = function(...)
    local given = own:parse(...)
    if given.count < 0 then own:fail(": count must be at least 0, got " .. given.count) end
    if given.count == 1 then return np.ones({ 1 }, "float64") end
    return at(np.linspace(-1, 1, given.count, "float64"), given)
  end
end

--- 0.5 + 0.5 cos(pi x) at `count` places from -1 to 1, float64: NumPy's window, which ends in 0 on both sides, so that
--- flow.signal.hann_window(count - 1) has all but the last of it.
window("hanning", function(x) return 0.5 + 0.5 * np.cos(math.pi * x) end)
--- 0.54 + 0.46 cos(pi x) at `count` places from -1 to 1, float64.
window("hamming", function(x) return 0.54 + 0.46 * np.cos(math.pi * x) end)
--- 0.42 + 0.5 cos(pi x) + 0.08 cos(2 pi x) at `count` places from -1 to 1, float64.
window("blackman", function(x) return 0.42 + 0.5 * np.cos(math.pi * x) + 0.08 * np.cos(2 * math.pi * x) end)
--- 1 - |x| at `count` places from -1 to 1, float64: a triangle.
window("bartlett", function(x) return 1 - np.abs(x) end)
--- i0(beta sqrt(1 - x^2)) / i0(beta) at `count` places from -1 to 1, float64, with np.i0: the greater `beta`, the wider
--- the peak of a spectrum and the lower what is beside it.
window("kaiser", function(x, given)
  return np.i0(given.beta * np.sqrt(np.maximum(1 - x * x, 0))) / np.i0(given.beta)
end, { "beta", "finite" })

local i0_signature = signature("np.i0", { { "x", "any" } })
--- The modified Bessel function of the first kind and order 0, the sum of (x^2 / 4)^k / k!^2 over k from 0 on. Computed
--- in float64; of a number a number.
--- @return any
function np.i0(...)
  local x = i0_signature:parse(...).x
  local is_number = type(x) == "number"
  local a = is_number and np.array(x, "float64") or floating(as_array(x, "np.i0"))
  local quarter = a:astype("float64") ^ 2 / 4
  local sum, term, k = np.ones_like(quarter), np.ones_like(quarter), 0
  repeat
    k = k + 1
    term = term * quarter / (k * k)
    sum = sum + term
  until not (term:gt(sum * 1e-17) * term:lt(math.huge)):any()
  return is_number and sum:item() or ndarray.cast(sum, a.dtype)
end
