--- Sounds: files of them, WAV, and other rates.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local rates = require "moonflow.formulas.rates"
local refuse_others = require "moonflow.np.beginnings"
local np = require "moonflow.np.functions"
local tools_of = require "moonflow.np.tools"

local raw_parameter = { "raw", "boolean", false, text = "samples as the file has them: uint8 of 8 bits, where 128 is "
  .. "silence, int32 of 16, 24 and 32, float32 or float64" }

local load_signature = arguments.signature("np.load_wav", { { "path", "string" }, raw_parameter })
--- `local samples, rate = np.load_wav("voice.wav")`: the sound of a WAV file, and how many samples there are in a
--- second. (samples) where it has one channel, else (samples, channels); float32 from -1 to 1, integers of n bits
--- divided by 2^(n - 1). Integers of 8, 16, 24 or 32 bits and floats of 32 or 64 are read.
--- @return NdArray samples
--- @return number rate
--- @error a file that is none, or damaged, or compressed
function np.load_wav(...)
  local given = load_signature:parse(...)
  load_signature:refuse_bytes(given.path, { "^RIFF" }, "a sound", "np.decode_wav")
  refuse_others(given.path, "np.load_wav")
  return errors.blaming("np.load_wav", core.wav_read, given.path, given.raw)
end

local decode_signature = arguments.signature("np.decode_wav", { { "bytes", "string" }, raw_parameter })
--- The same of a string with the bytes of a WAV file, from a socket or an archive.
--- @return NdArray samples
--- @return number rate
--- @error bytes that are none, or damaged, or compressed
function np.decode_wav(...)
  local given = decode_signature:parse(arguments.of_bytes(...))
  return errors.blaming("np.decode_wav", core.wav_decode, given.bytes, given.raw)
end

local rate_parameter = { "rate", "integer", text = "samples of a second" }
local encoding_parameter = { "encoding", "string?", text = '"uint8", "int16", "int24", "int32", "float32" or '
  .. '"float64"; "int16" when left out, and "uint8" of uint8' }
local function encoding_of(given, a) return given.encoding or a.dtype == "uint8" and "uint8" or "int16" end

local save_signature = arguments.signature("np.save_wav", {
  { "path", "string" }, { "a", "any" }, rate_parameter, encoding_parameter,
})
--- Writes a sound, (samples) or (samples, channels), as WAV; the name gets `.wav` when it lacks it. Floats from -1 to
--- 1 are multiplied for integers and rounded, and what is outside of that becomes the nearer end; int32 and uint8 are
--- taken as they are.
--- @return nil
--- @error another shape or dtype; integers that the encoding does not have; more than 4 GiB
function np.save_wav(...)
  local given = save_signature:parse(...)
  local a, path = ndarray.as_array(given.a, "np.save_wav"), given.path
  if not path:lower():find("%.wav$") then path = path .. ".wav" end
  errors.blaming("np.save_wav", core.wav_write, path, a, given.rate, encoding_of(given, a))
end

local encode_signature = arguments.signature("np.encode_wav", { { "a", "any" }, rate_parameter, encoding_parameter })
--- The bytes of such a file, as a string.
--- @return string
--- @error what np.save_wav refuses
function np.encode_wav(...)
  local given = encode_signature:parse(...)
  local a = ndarray.as_array(given.a, "np.encode_wav")
  return errors.blaming("np.encode_wav", core.wav_encode, a, given.rate, encoding_of(given, a))
end

local resample_signature = arguments.signature("np.resample", rates.parameters_of({ "a", "any" },
  { "axis", "integer", 0, text = "that of the samples" }))
--- A sound at another rate, as flow.signal.resample has it in jobs, which are compiled for each length that comes:
--- `local samples, rate = np.load_wav(path)`, and `np.resample(samples, rate, 16000)` has 16000 of them in a second.
--- @param a ndarray|table             (samples) or (samples, channels), or whatever has samples at `axis`; whole
--- numbers become float64
--- @param orig_freq integer           samples of a second
--- @param new_freq integer            how many of them the result has
--- @param lowpass_filter_width? integer  zeros of the sinc on each side; default: 6
--- @param rolloff? number             what passes of the frequencies that both rates hold; default: 0.99
--- @param axis? integer               that of the samples; default: 0
--- @return ndarray                    with ceil(samples * new_freq / orig_freq) at the axis
--- @error a rate below 1; no samples; rates whose common divisor is so small that they ask for more than 2^24 weights
function np.resample(...)
  local given = resample_signature:parse(...)
  local a = ndarray.floating(ndarray.as_array(given.a, "np.resample"))
  local axis = resample_signature:axis(given.axis, a.rank)
  local x = np.moveaxis(a, axis, -1)
  local sizes, rows = x.shape:table(), 1
  local samples = table.remove(sizes)
  for _, size in ipairs(sizes) do rows = rows * size end
  local y = rates.resample(tools_of(resample_signature), x:reshape(rows, samples), given, resample_signature)
  sizes[#sizes + 1] = y.shape[1]
  return np.moveaxis(y:reshape(sizes), -1, axis)
end
