-- Sounds in WAV files: np.load_wav, np.decode_wav, np.save_wav. Files are put together here, byte by byte.
local bit = require "bit"
local checks = require "checks"
local flow = require "moonflow"
local process = require "process"
local np, raises, same = flow.np, checks.raises, checks.same

local function little(number, count)
  local bytes = {}
  for i = 1, count do bytes[i], number = string.char(number % 256), math.floor(number / 256) end
  return table.concat(bytes)
end

local function chunk(name, body) return name .. little(#body, 4) .. body .. ("\0"):rep(#body % 2) end

local function format(kind, channels, rate, bits, more)
  local frame = channels * bits / 8
  return chunk("fmt ", little(kind, 2) .. little(channels, 2) .. little(rate, 4) .. little(rate * frame, 4)
    .. little(frame, 2) .. little(bits, 2) .. (more or ""))
end

local function wav(...)
  local body = "WAVE" .. table.concat { ... }
  return "RIFF" .. little(#body, 4) .. body
end

local path
before_each(function() path = os.tmpname() .. ".wav" end)
after_each(function()
  os.remove(path)
  os.remove((path:gsub("%.wav$", "")))
end)

describe("a sound of a file", function()
  it("is from -1 to 1, of integers of any size", function()
    local sounds = {
      [8] = { "\0\64\128\192\255", { -1, -0.5, 0, 0.5, 127 / 128 } },
      [16] = { "\0\128\0\192\0\0\255\127", { -1, -0.5, 0, 32767 / 32768 } },
      [24] = { "\0\0\128\0\0\192\1\0\0\255\255\127", { -1, -0.5, 2 ^ -23, 1 - 2 ^ -23 } },
      [32] = { "\0\0\0\128\0\0\0\64\0\1\0\0", { -1, 0.5, 2 ^ -23 } },
    }
    for bits, of in pairs(sounds) do
      local samples, rate = np.decode_wav(wav(format(1, 1, 16000, bits), chunk("data", of[1])))
      same(samples, "float32", of[2])
      assert.equal(16000, rate)
    end
  end)

  it("is as the file has it, raw", function()
    local function raw(bits, bytes)
      return (np.decode_wav(wav(format(1, 1, 8000, bits), chunk("data", bytes)), true))
    end
    same(raw(8, "\0\128\255"), "uint8", { 0, 128, 255 })
    same(raw(16, "\0\128\255\127"), "int32", { -32768, 32767 })
    same(raw(24, "\0\0\128\254\255\255"), "int32", { -8388608, -2 })
    same(raw(32, "\0\0\0\128\254\255\255\255"), "int32", { -2147483648, -2 })
  end)

  it("is of floats, which may go beyond 1", function()
    local double = wav(format(3, 1, 8000, 64), chunk("data", "\0\0\0\0\0\0\248\63\154\153\153\153\153\153\185\63"))
    same((np.decode_wav(double, true)), "float64", { 1.5, 0.1 })
    same((np.decode_wav(double)), "float32", np.array({ 1.5, 0.1 }):totable())
    same((np.decode_wav(wav(format(3, 1, 8000, 32), chunk("data", "\0\0\192\191")))), "float32", { -1.5 })
  end)

  it("has its channels last", function()
    local samples, rate = np.decode_wav(wav(format(1, 3, 44100, 8), chunk("data", "\0\128\192\64\128\128")))
    same(samples, "float32", { { -1, 0, 0.5 }, { -0.5, 0, 0 } })
    assert.equal(44100, rate)
  end)

  it("stands among whatever else is told, at even places", function()
    local extensible = format(0xFFFE, 2, 8000, 16, "\22\0\16\0\3\0\0\0\1\0\0\0\0\0\16\0\128\0\0\170\0\56\155\113")
    same((np.decode_wav(wav(chunk("LIST", "odd"), extensible, chunk("fact", "\1\0\0\0"),
      chunk("data", "\0\64\0\192"), chunk("cue ", "later")))), "float32", { { 0.5, -0.5 } })
    same((np.decode_wav(wav(format(1, 1, 8000, 8, "\0\0"), chunk("data", "\64")))), "float32", { -0.5 })
    assert.same({ 0 }, np.decode_wav(wav(format(1, 1, 8000, 16), chunk("data", ""))).shape:table())
    assert.same({ 0, 2 }, np.decode_wav(wav(format(1, 2, 8000, 16), chunk("data", ""))).shape:table())
  end)

  it("goes to the end of what came out of a pipe", function()
    local piped = wav(format(1, 2, 8000, 16), "data\255\255\255\255\0\64\0\192\0\0")
    same((np.decode_wav(piped)), "float32", { { 0.5, -0.5 } })
  end)

  it("goes to the end of what nobody has finished", function()
    local sound = wav(format(1, 2, 8000, 16), chunk("data", "\0\64\0\192"))
    local at = #sound - 8
    for _, size in ipairs { little(0, 4), little(0x7FFFFFFF - 36, 4), little(0xFFFFFFFF, 4) } do
      local unfinished = sound:sub(1, 4) .. size .. sound:sub(9, at) .. size .. sound:sub(at + 5)
      same((np.decode_wav(unfinished)), "float32", { { 0.5, -0.5 } })
    end
    assert.equal(0, np.decode_wav(sound:sub(1, at) .. little(0, 4)).shape:count())
  end)

  it("is written as it was read", function()
    local noise = np.random.default_rng(1):uniform(-1, 1, { 700, 2 }):astype(flow.float)
    for encoding, apart in pairs { uint8 = 2 ^ -8, int16 = 2 ^ -16, int24 = 2 ^ -24, int32 = 2 ^ -24, float32 = 0,
                                   float64 = 0 } do
      np.save_wav(path, noise, 22050, encoding)
      local samples, rate = np.load_wav(path)
      assert.equal(22050, rate)
      assert.same({ 700, 2 }, samples.shape:table())
      -- Half a step of the integers, but for what is nearest to 1, which may be a whole one.
      assert.is_true(np.abs(samples - noise):max() <= 2 * apart, encoding)
      local raw = np.load_wav(path, { raw = true })
      np.save_wav(path, raw, 22050, encoding:find "float" and encoding or { encoding = encoding })
      assert.is_true(np.load_wav(path, { raw = true }) == raw, encoding)
    end
  end)

  it("is written byte for byte", function()
    np.save_wav(path, np.array { -2, -1, 0.5, 1, 0 / 0 }, 8000)
    assert.equal(wav(format(1, 1, 8000, 16), chunk("data", "\0\128\0\128\0\64\255\127\0\0")), process.read(path))
    np.save_wav(path, np.array({ 0, 128, 255 }, flow.uint8), 8000)
    assert.equal(wav(format(1, 1, 8000, 8), chunk("data", "\0\128\255")), process.read(path))
    np.save_wav(path, np.array { { 1, -1 } }, 8000, "float32")
    assert.equal(wav(format(3, 2, 8000, 32, "\0\0"), chunk("fact", "\1\0\0\0"),
      chunk("data", "\0\0\128\63\0\0\128\191")), process.read(path))
    np.save_wav((path:gsub("%.wav$", "")), np.zeros { 2 }, 8000)
    assert.equal(48, #process.read(path))
  end)

  it("is refused where it cannot be written", function()
    local function refused(code, text, ...) raises(code, text, np.save_wav, path, ...) end
    refused("shape_mismatch", "the samples are (2, 16000), wanted (samples) or (samples, channels) with 1 to 256 "
      .. "channels; a:transpose() puts channels last", np.zeros { 2, 16000 }, 8000)
    refused("shape_mismatch", "the samples are (1, 2, 3)", np.zeros { 1, 2, 3 }, 8000)
    refused("dtype_mismatch", "the samples are int64, wanted floats from -1 to 1, int32 or uint8",
      np.zeros({ 2 }, flow.int64), 8000)
    refused("dtype_mismatch", "the samples are uint8, which do not go into int16 as they are",
      np.zeros({ 2 }, flow.uint8), 8000, "int16")
    refused("invalid_argument", "sample 1 is 40000, wanted for int16 are integers from -32768 to 32767",
      np.array({ 1, 40000 }, flow.int32), 8000)
    refused("invalid_argument", "the encoding is 'mp3', wanted 'uint8', 'int16'", np.zeros { 2 }, 8000, "mp3")
    refused("invalid_argument", "the rate is 0, wanted how many samples there are in a second", np.zeros { 2 }, 0)
    assert.is_nil(io.open(path))
  end)
end)

describe("a file that is no sound", function()
  local function refused(text, bytes) raises("io", text, np.decode_wav, bytes) end

  it("is named, with what is wrong in it and where", function()
    process.write(path, "RIFF\0\0\0\0AVI LIST")
    raises("io", ("file '%s', byte 0: no WAV file: it begins with 'RIFF....AVI ', wanted 'RIFF....WAVE'"):format(path),
      np.load_wav, path)
    raises("not_found", "cannot open '" .. path .. "no'", np.load_wav, path .. "no")
    checks.refuses("the path is the bytes of a sound, which np.decode_wav(bytes) takes", np.load_wav, wav())
    refused("no WAV file: it has 3 bytes", "RIF")
    refused("it begins with 'RF64....WAVE'", "RF64\255\255\255\255WAVE")
    refused("byte 12: it has no chunk 'data'", wav())
    refused("byte 12: the chunk 'data' comes before 'fmt '", wav(chunk("data", "")))
    refused("byte 20: the chunk 'fmt ' has 14 bytes, wanted 16 or more", wav(chunk("fmt ", ("\1"):rep(14))))
  end)

  it("is one whose sizes lie", function()
    local fine = format(1, 2, 8000, 16)
    refused("byte 40: the chunk 'data' announces 4294967292 bytes, the file has 4 more",
      wav(fine, "data\252\255\255\255\0\0\0\0"))
    refused("byte 16: the chunk 'LIST' announces 4026531840 bytes, the file has 0 more", wav("LIST\0\0\0\240"))
    refused("byte 40: the chunk 'data' has 6 bytes, which are no samples of 4", wav(fine, chunk("data", "123456")))
    refused("byte 22: 2 channels in 3 bytes are wrong for samples of 16 bits",
      wav((fine:gsub("\4\0\16\0$", "\3\0\16\0"))))
    refused("0 channels in 0 bytes", wav(format(1, 0, 8000, 16)))
    refused("300 channels in 300 bytes are wrong for samples of 8 bits; wanted are 1 to 256",
      wav(format(1, 300, 8000, 8)))
    refused("a rate of 0 samples in a second", wav(format(1, 1, 0, 16)))
  end)

  it("is one of what would have to be decoded", function()
    refused("samples of format 17 with 4 bits are not supported, only format 1, integers, with 8, 16, 24 or 32 bits, "
      .. "and format 3, floats, with 32 or 64; other programs convert them", wav(format(17, 1, 8000, 4)))
    refused("samples of format 1 with 12 bits", wav(format(1, 1, 8000, 12)))
    refused("samples of format 65534 with 16 bits", wav(format(0xFFFE, 1, 8000, 16)))
  end)

  it("is each part of one, and gives a sound or an error with any bit turned", function()
    for _, bytes in ipairs {
      wav(format(1, 2, 8000, 16), chunk("data", "\0\64\0\192\1\2\3\4")),
      wav(chunk("LIST", "odd"), format(1, 1, 8000, 24), chunk("data", "\0\64\0")),
      wav(format(3, 1, 8000, 64), chunk("data", ("\63"):rep(16))),
    } do
      for length = 0, #bytes - 2 do raises("io", "(bytes)", np.decode_wav, bytes:sub(1, length)) end
      for at = 1, #bytes do
        for b = 0, 7 do
          local turned = bytes:sub(1, at - 1) .. string.char(bit.bxor(bytes:byte(at), 2 ^ b)) .. bytes:sub(at + 1)
          local fine, result = pcall(np.decode_wav, turned)
          assert.is_true(fine and result.nbytes <= 4 * #bytes or flow.is_error(result), tostring(result))
        end
      end
    end
  end)
end)
