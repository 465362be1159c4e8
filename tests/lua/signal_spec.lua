-- flow.signal: frames, spectra, mel bands. Spectra are held to sums written out here; single figures are NumPy's, of
-- the formulas in the documentation.
local checks = require "checks"
local flow = require "moonflow"
local np, tp, signal = flow.np, flow.typing, flow.signal
local near, run, refuses = checks.near, checks.run, checks.refuses

before_each(function() flow.clear_default_session() end)

local function doubles(list) return np.array(list, flow.double) end
local function noise(shape, seed) return np.random.default_rng(seed or 1):normal(0, 1, shape, flow.double) end

-- What a job without inputs gives.
local function value(body) return run({}, body) end

-- sum over n of x[n] exp(-2 pi i k n / size), a pair for each k up to size / 2, of a vector in float64.
local function spectrum_of(x, size)
  local pairs_of = {}
  for k = 0, math.floor(size / 2) do
    local real, imaginary = 0, 0
    for n = 0, math.min(size, x.shape[0]) - 1 do
      local angle = 2 * math.pi * (k * n % size) / size
      real, imaginary = real + x[n] * math.cos(angle), imaginary - x[n] * math.sin(angle)
    end
    pairs_of[k + 1] = { real, imaginary }
  end
  return doubles(pairs_of)
end

describe("frames", function()
  local function framed(x, length, step, options)
    return run({ x }, function(a) return signal.frame(a, length, step, options) end)
  end

  it("begin a step apart, and are whole", function()
    checks.same(framed(np.arange(7, { dtype = flow.int32 }), 3, 2), "int32", { { 0, 1, 2 }, { 2, 3, 4 }, { 4, 5, 6 } })
    checks.same(framed(np.arange(8, { dtype = flow.int32 }), 4, 2), "int32",
      { { 0, 1, 2, 3 }, { 2, 3, 4, 5 }, { 4, 5, 6, 7 } })
    checks.same(framed(np.arange(9, { dtype = flow.int32 }), 3, 3), "int32", { { 0, 1, 2 }, { 3, 4, 5 }, { 6, 7, 8 } })
    checks.same(framed(np.arange(9, { dtype = flow.int32 }), 2, 4), "int32", { { 0, 1 }, { 4, 5 } })
    checks.same(framed(np.arange(3, { dtype = flow.int32 }), 3, 9), "int32", { { 0, 1, 2 } })
  end)

  it("are as many as begin within the signal, with pad_end", function()
    local five = np.arange(5, { dtype = flow.int32 })
    checks.same(framed(five, 3, 2, { pad_end = true, pad_value = 9 }), "int32",
      { { 0, 1, 2 }, { 2, 3, 4 }, { 4, 9, 9 } })
    checks.same(framed(five, 8, 4, { pad_end = true }), "int32",
      { { 0, 1, 2, 3, 4, 0, 0, 0 }, { 4, 0, 0, 0, 0, 0, 0, 0 } })
    checks.same(framed(five, 1, 3, { pad_end = true }), "int32", { { 0 }, { 3 } })
  end)

  it("may be along any axis", function()
    local x = np.arange(24, { dtype = flow.int32 }):reshape(2, 4, 3)
    local y = framed(x, 2, 1, { axis = 1 })
    assert.same({ 2, 3, 2, 3 }, y.shape:table())
    checks.same(y[1], "int32",
      { x[1]:slice("0:2"):totable(), x[1]:slice("1:3"):totable(), x[1]:slice("2:4"):totable() })
  end)

  it("add up to a signal where they overlap", function()
    local function summed(x, step) return run({ x }, function(a) return signal.overlap_and_add(a, step) end) end
    near(doubles { { 1, 2, 3 + 4, 5, 6 + 7, 8, 9 } }, summed(doubles { { { 1, 2, 3 }, { 4, 5, 6 }, { 7, 8, 9 } } }, 2))
    near(doubles { 1, 2 + 4, 3 + 5 + 7, 6 + 8, 9 }, summed(doubles { { 1, 2, 3 }, { 4, 5, 6 }, { 7, 8, 9 } }, 1))
    near(doubles { 1, 2, 3, 4 }, summed(doubles { { 1, 2 }, { 3, 4 } }, 2))
    near(doubles { 1, 2, 0, 3, 4 }, summed(doubles { { 1, 2 }, { 3, 4 } }, 3))
  end)

  it("name what does not fit", function()
    local five = np.arange(5)
    refuses("the 5 samples of 'a' (5) are less than a frame of 6; pad_end = true fills frames up", framed, five, 6, 1)
    refuses("(0) are less than a frame of 6", run, { five },
      function(a) return signal.frame(flow.slice(a, { 0 }, { 0 }), 6, 1, { pad_end = true }) end)
    refuses("frame_length must be 1 or more, got 0", framed, five, 0, 1)
    refuses("frame_step must be 1 or more, got -1", framed, five, 2, -1)
    refuses("axis 1 is out of range for rank 1", framed, five, 2, 1, { axis = 1 })
    refuses("'a' is (5), wanted (..., frames, frame_length)", run, { five },
      function(a) return signal.overlap_and_add(a, 1) end)
  end)
end)

describe("windows", function()
  it("have one period, or are alike from both ends", function()
    near(doubles { 0, 0.5, 1, 0.5 }, value(function() return signal.hann_window(4, { dtype = flow.double }) end))
    near(doubles { 0, 0.75, 0.75 }, value(function() return signal.hann_window(3, { dtype = flow.double }) end))
    near(doubles { 0, 0.75, 0.75, 0 }, value(function() return signal.hann_window(4, false, flow.double) end))
    near(doubles { 0.08, 0.54, 1, 0.54 },
      value(function() return signal.hamming_window(4, { dtype = flow.double }) end))
    checks.same(value(function() return signal.hann_window(1) end), "float32", { 1 })
    checks.same(value(function() return signal.hann_window(1, false) end), "float32", { 1 })
  end)

  it("name what does not fit", function()
    refuses("window_length must be 1 or more, got 0", value, function() return signal.hann_window(0) end)
    refuses("dtype is int32, wanted one with fractions", value,
      function() return signal.hamming_window(4, { dtype = flow.int32 }) end)
  end)
end)

describe("a spectrum", function()
  local function spectrum(x, size) return run({ x }, function(a) return signal.rfft(a, size) end) end
  local function back(x, size) return run({ x }, function(a) return signal.irfft(a, size) end) end

  it("is that of the sums, for lengths with factors and without", function()
    for _, size in ipairs { 1, 2, 3, 4, 5, 7, 12, 30, 31, 45, 128, 150, 210, 225, 256, 257 } do
      local x = noise({ size }, size)
      near(spectrum_of(x, size), spectrum(x), 1e-12 * size, "of " .. size)
    end
  end)

  it("may be of a second of sound", function()
    for _, size in ipairs { 48000, 44100, 65536, 44101, 2 ^ 17 } do  -- 44101 is a prime
      local tone = np.cos(np.arange(size, { dtype = flow.double }) * (2 * np.pi * 440 / size))
      local power = np.sum(spectrum(tone:astype(flow.float)) ^ 2, 1)
      assert.equal(440, np.argmax(power))
      assert.near(1, np.sqrt(power[440]) * 2 / size, 1e-6)
      power[440] = 0
      assert.is_true(power:max() < 1e-3)  -- 116 dB below the tone
    end
  end)

  it("is of each row, in float32 too", function()
    local x = noise { 2, 3, 512 }
    local y = spectrum(x:astype(flow.float))
    assert.equal("float32", y.dtype)
    assert.same({ 2, 3, 257, 2 }, y.shape:table())
    -- Sums of 512 products of about 1 each: 23 on the whole, of which float32 has 1e-6.
    near(spectrum_of(x[1][2], 512), y[1][2]:astype(flow.double), 3e-5)
  end)

  it("is exact where cosines are", function()
    checks.same(spectrum(np.array { 1, 2, 0, 4 }), "float32", { { 7, 0 }, { 1, 2 }, { -5, 0 } })
  end)

  it("is of numbers that are cut, or filled up with zeros", function()
    local x = noise { 20 }
    near(spectrum_of(x, 12), spectrum(x, 12), 1e-12)
    near(spectrum_of(x, 64), spectrum(x, 64), 1e-12)
    near(spectrum_of(x, 256), spectrum(x, 256), 1e-12)
  end)

  it("goes back to its numbers, without what no real numbers have", function()
    for _, size in ipairs { 1, 2, 3, 30, 31, 128, 225, 256 } do
      local x = noise({ 2, size }, size)
      near(x, back(spectrum(x), size), 1e-12, "of " .. size)
    end
    near(doubles { 1, 2, 0, 4 }, back(doubles { { 7, 9 }, { 1, 2 }, { -5, 9 } }))
    near(doubles { 2, -2, 2, -2 }, back(doubles { { 0, 0 }, { 0, 0 }, { 8, 0 }, { 5, 5 } }, 4))
    near(doubles { 2, 2, 2, 2 }, back(doubles { { 8, 0 } }, 4))
  end)

  it("may be of complex numbers, and go back to them", function()
    for _, size in ipairs { 1, 6, 31, 64, 134, 256 } do
      local real, imaginary = noise({ size }, size), noise({ size }, size + 1)
      local both = np.stack({ real, imaginary }, -1)
      local y = run({ both }, function(a) return signal.fft(a) end)
      -- Of i * b the spectrum is i * that of b.
      local a, b = spectrum_of(real, size), spectrum_of(imaginary, size)
      for k = 0, a.shape[0] - 1 do
        near(doubles { a[k][0] - b[k][1], a[k][1] + b[k][0] }, y[k], 1e-12 * size)
      end
      near(both, run({ y }, function(spectra) return signal.ifft(spectra) end), 1e-12)
    end
    refuses("'a' is (4), wanted (..., length, 2)", run, { noise { 4 } }, function(a) return signal.fft(a) end)
    refuses("the length must be 1 or more, got 0", run, { noise { 4, 2 } },
      function(a) return signal.ifft(flow.slice(a, { 0, 0 }, { 0, 2 })) end)
  end)

  it("has as gradient of power 2 * length * the signal", function()  -- by Parseval's theorem
    local x = noise { 3, 90, 2 }
    for _, way in ipairs { "fft", "ifft" } do
      local slope = run({ x }, function(a)
        return flow.gradients(flow.math.reduce_sum(flow.math.square(signal[way](a))), a)
      end)
      near(x * 2 * (way == "fft" and 90 or 1 / 90), slope, 1e-10)
    end
  end)

  it("is computed in float32 of narrow numbers", function()
    local x = noise { 64 }
    for _, dtype in ipairs { flow.bfloat16, flow.float16 } do
      local y = run({ x:astype(flow.float) }, function(a)
        local narrow = signal.rfft(flow.cast(a, dtype))
        assert.equal(dtype, narrow.dtype)
        return flow.cast(narrow, flow.float)
      end)
      near(spectrum_of(x, 64), y:astype(flow.double), 0.15)
    end
  end)

  it("keeps its digits in mixed precision, and so does the way back", function()
    local x = noise { 16, 512 }:astype(flow.float)
    local function there_and_back(a) return signal.irfft(signal.rfft(a) * 2) end
    for _, dtype in ipairs { flow.bfloat16, flow.float16 } do
      local config = flow.function_config()
      config:enable_auto_mixed_precision(true, dtype)
      near(run({ x }, there_and_back), run({ x }, there_and_back, { function_config = config }), 0)
    end
  end)

  it("names what does not fit", function()
    refuses("'a' is int32, wanted floats; flow.cast(x, flow.float32) / 32768 makes them of 16 bits", spectrum,
      np.array({ 1, 2 }, flow.int32))
    refuses("fft_length must be 1 or more, got 0", spectrum, noise { 4 }, 0)
    refuses("fft_length must be 1 or more, got 0", run, { noise { 4 } },
      function(a) return signal.rfft(flow.slice(a, { 0 }, { 0 })) end)
    for _, size in ipairs { 2 ^ 27 + 1, 2 ^ 53 } do
      checks.raises("out_of_range", ("size must be 1 to 134217728, got %.0f"):format(size), spectrum, noise { 4 }, size)
    end
    refuses("has no option 'hop_length'; did you mean 'frame_step'?", run, { noise { 4 } },
      function(a) return signal.stft(a, 4, { hop_length = 2 }) end)
    refuses("'a' is (4, 3), wanted (..., frequencies, 2)", back, noise { 4, 3 })
    refuses("'a' is (4), wanted (..., frequencies, 2)", back, noise { 4 })
  end)
end)

describe("a signal at another rate", function()
  -- The sum of its formula, for one signal in float64.
  local function resampled(x, from, to, width, rolloff)
    width, rolloff = width or 6, rolloff or 0.99
    local cutoff, list = rolloff * math.min(from, to), {}
    for j = 0, math.ceil(x.shape[0] * to / from) - 1 do
      local sum = 0
      for n = 0, x.shape[0] - 1 do
        local u = cutoff * (n / from - j / to)
        local sinc = u == 0 and 1 or math.sin(math.pi * u) / (math.pi * u)
        local weight = math.abs(u) < width and sinc * math.cos(math.pi * u / (2 * width)) ^ 2 or 0
        sum = sum + x[n] * cutoff / from * weight
      end
      list[j + 1] = sum
    end
    return doubles(list)
  end

  local function at_rate(x, ...)
    local given = { ... }
    return run({ x }, function(a) return signal.resample(a, unpack(given)) end)
  end

  it("is the sum of what its samples add", function()
    for _, samples in ipairs { 1, 6, 100 } do
      local x = noise { samples }
      for _, pair in ipairs { { 3, 1 }, { 1, 3 }, { 8000, 6000 }, { 5, 7 }, { 147, 160 } } do
        near(resampled(x, pair[1], pair[2]), at_rate(x, pair[1], pair[2]), 1e-12)
      end
    end
    local x = noise { 50 }
    near(resampled(x, 4, 3, 16, 0.8), at_rate(x, 4, 3, { lowpass_filter_width = 16, rolloff = 0.8 }), 1e-12)
    checks.same(at_rate(x, 44100, 44100), "float64", x:totable())
  end)

  it("is that of each row, in its own dtype", function()
    local x = noise { 2, 3, 40 }
    local y = at_rate(x:astype(flow.float), 4, 6)
    assert.same({ 2, 3, 60 }, y.shape:table())
    near(resampled(x[1][2], 4, 6), y[1][2], 1e-6)
    assert.equal("float64", at_rate(x, 4, 6).dtype)
    near(at_rate(x, 4, 6), value(function()
      return flow.cast(signal.resample(flow.cast(x, flow.bfloat16), 4, 6), flow.float)
    end), 0.05)
  end)

  it("keeps a tone, but for what the new rate cannot hold", function()
    local time = np.arange(4000, { dtype = flow.double }) / 8000
    local later = np.arange(8000, { dtype = flow.double }) / 16000
    local tone, there = np.sin(time * (2 * np.pi * 440)), np.sin(later * (2 * np.pi * 440))
    near(there:slice("100:7900"), at_rate(tone, 8000, 16000):slice("100:7900"), 2e-3)
    local high = np.sin(time * (2 * np.pi * 3500))
    assert.is_true(np.abs(at_rate(high, 8000, 4000):slice("100:1900")):max() < 1e-3)
  end)

  it("has a gradient, and is the same outside of a job, along any axis", function()
    local x = noise { 30, 2 }
    near(at_rate(np.transpose(x), 3, 2), np.transpose(np.resample(x, 3, 2)), 1e-12)
    near(np.resample(x, 3, 2), np.transpose(np.resample(np.transpose(x), 3, 2, { axis = -1 })), 0)
    assert.equal("float32", np.resample(x:astype(flow.float), 3, 2).dtype)
    local ones = run({ x[0] }, function(a) return flow.gradients(signal.resample(a, 3, 2), a) end)
    local weights = {}
    for n = 0, 1 do weights[n + 1] = np.sum(np.resample(np.arange(2):eq(n):astype(flow.double), 3, 2)) end
    near(doubles(weights), ones, 1e-12)
  end)

  it("names what does not fit", function()
    local function refused(message, x, ...)
      refuses("np.resample" .. message, np.resample, x, ...)
      local given = { ... }
      refuses("flow.signal.resample" .. message, value,
        function() return signal.resample(flow.constant(0, { shape = x.shape:table() }), unpack(given)) end)
    end
    refused(": the rates are 0 and 8000, wanted samples of a second", np.zeros { 4 }, 0, 8000)
    refused(": lowpass_filter_width must be 1 or more, got 0", np.zeros { 4 }, 3, 2, 0)
    refused(": rolloff must be above 0 and up to 1, got 1.5", np.zeros { 4 }, 3, 2, 6, 1.5)
    refused(": there are no samples", np.zeros { 0 }, 3, 2)
    refused(": it would need a list of 5.12032e+08 numbers", np.zeros { 4 }, 16000, 16001)
  end)
end)

describe("spectra of short times", function()
  local function stft(x, ...)
    local given = { ... }
    return run({ x }, function(a) return signal.stft(a, unpack(given)) end)
  end
  local function windowed(x, first, length)
    local list = {}
    for i = 0, length - 1 do
      list[i + 1] = first + i < x.shape[0] and x[first + i] * (0.5 - 0.5 * math.cos(2 * math.pi * i / length)) or 0
    end
    return doubles(list)
  end

  it("are of frames under a window", function()
    local x = noise { 2, 700 }
    local y = stft(x, 256, 100)
    assert.same({ 2, 5, 129, 2 }, y.shape:table())
    for _, frame in ipairs { 0, 4 } do
      near(spectrum_of(windowed(x[1], 100 * frame, 256), 256), y[1][frame], 1e-10)
    end
  end)

  it("are as long as the next power of two, or as is said", function()
    local x = noise { 100 }
    near(spectrum_of(windowed(x, 30, 25), 32), stft(x, 25, 10)[3], 1e-12)
    near(spectrum_of(windowed(x, 30, 25), 25), stft(x, 25, 10, 25)[3], 1e-12)
    near(spectrum_of(windowed(x, 30, 25), 10), stft(x, 25, 10, 10)[3], 1e-12)
    near(spectrum_of(windowed(x, 30, 25), 48), stft(x, 25, 10, { fft_length = 48 })[3], 1e-12)
  end)

  it("go on to the end with pad_end", function()
    local x = noise { 50 }
    local y = stft(x, 64, 16, { pad_end = true })
    assert.same({ 4, 33, 2 }, y.shape:table())
    near(spectrum_of(windowed(x, 48, 64), 64), y[3], 1e-12)
  end)

  it("have the window that is given: weights, a function of them, or none", function()
    local x, weights = noise { 40 }, noise({ 8 }, 2)
    local wanted = spectrum_of(x:slice("4:12") * weights, 8)
    near(wanted, stft(x, 8, 4, { window_fn = weights })[1], 1e-12)
    near(wanted, stft(x, 8, 4, { window_fn = function(length)
      assert.equal(8, length)
      return weights
    end })[1], 1e-12)
    near(wanted, run({ x, weights }, function(a, b) return signal.stft(a, 8, 4, { window_fn = b }) end)[1], 1e-12)
    near(spectrum_of(x:slice("4:12"), 8), stft(x, 8, 4, { window_fn = false })[1], 1e-12)
  end)

  it("go back to the signal", function()
    local x = noise { 2, 300 }
    local function there_and_back(length, step, fft_length, window)
      local y = run({ x }, function(a)
        local spectra = signal.stft(a, length, step, fft_length, window)
        return signal.inverse_stft(spectra, length, step, fft_length, signal.inverse_stft_window_fn(step, window))
      end)
      local last = y.shape[1] - length
      local inner = length .. ":" .. last
      near(x:slice(":, " .. inner), y:slice(":, " .. inner), 1e-12)
    end
    there_and_back(64, 16)
    there_and_back(50, 20, 60)
    there_and_back(32, 32, nil, signal.hamming_window)
    there_and_back(30, 7, 30, signal.hamming_window)
    there_and_back(32, 8, nil, false)
  end)

  it("have gradients as differences have them", function()
    local x, weights = noise { 24 }, noise({ 3, 9, 2 }, 2)
    local function loss(a) return flow.math.reduce_sum(flow.math.square(signal.stft(a, 12, 6, 16) * weights)) end
    local slope = run({ x }, function(a) return flow.gradients(loss(a), a) end)
    local at, step = flow.global_function {
      inputs = { a = tp.Numpy.Placeholder({ 24 }, { dtype = flow.double }) }, returns = tp.Numpy,
    } (function(a) return loss(a) end), 1e-5
    for _, i in ipairs { 1, 7, 13, 22 } do
      local up, down = x:copy(), x:copy()
      up[i], down[i] = x[i] + step, x[i] - step
      assert.near((at(up):item() - at(down):item()) / (2 * step), slope[i], 1e-6)
    end
  end)

  it("name what does not fit", function()
    local x = noise { 40 }
    refuses("the 40 samples of 'a' (40) are less than a frame of 64; pad_end = true", stft, x, 64, 16)
    refuses("the window is (5), wanted (8), one weight for each sample of a frame", stft, x, 8, 4,
      { window_fn = noise { 5 } })
    refuses("window_fn gives 3, wanted a blob or an array of the 8 weights of a frame", stft, x, 8, 4,
      { window_fn = function() return 3 end })
    refuses("'a' is (3, 4, 2), wanted (..., frames, 5, 2) for an fft_length of 8", run, { noise { 3, 4, 2 } },
      function(a) return signal.inverse_stft(a, 8, 4) end)
    refuses("'a' is (40), wanted (..., frames, 5, 2)", run, { x }, function(a) return signal.inverse_stft(a, 8, 4) end)
  end)
end)

describe("bands of hearing", function()
  it("are triangles between edges that are evenly spaced in mel", function()
    near(doubles {
      { 0, 0, 0 }, { 0.8834769227170737, 0, 0 }, { 0.29526258587965504, 0.704737414120345, 0 },
      { 0, 0.6873361104830767, 0.3126638895169233 }, { 0, 0.2044583400179651, 0.795541659982035 },
      { 0, 0, 0.8038591877660037 }, { 0, 0, 0.4615394715219299 }, { 0, 0, 0.16267594184412773 }, { 0, 0, 0 },
    }, value(function() return signal.linear_to_mel_weight_matrix(3, 9, { dtype = flow.double }) end))
    local many = value(function()
      return signal.linear_to_mel_weight_matrix(40, 257, 16000, 60, 7600, { dtype = flow.double })
    end)
    assert.near(232.90729783189923, many:sum(), 1e-9)
  end)

  it("name edges that do not fit", function()
    for _, edges in ipairs { { -1, 100 }, { 200, 100 }, { 100, 4001 } } do
      refuses(("the edges are %g and %g hertz"):format(unpack(edges)), value, function()
        return signal.linear_to_mel_weight_matrix { lower_edge_hertz = edges[1], upper_edge_hertz = edges[2] }
      end)
    end
    refuses("num_mel_bins must be 1 or more", value, function() return signal.linear_to_mel_weight_matrix(0) end)
  end)

  it("become cosines, of four types", function()
    local function dct(...)
      local given = { ... }
      return run({ doubles { { 1, 2, 4, 8 } } }, function(a) return signal.dct(a, unpack(given)) end)
    end
    near(doubles { { 21, -9, 3, -3 } }, dct(1), 1e-8)
    near(doubles { { 30, -14.465047185, 4.242640687, -1.662049923 } }, dct(), 1e-8)
    near(doubles { { 16.475307297, -17.90819304, 8.594484541, -3.161598798 } }, dct(3), 1e-8)
    near(doubles { { 12.853456026, -15.852828035, 12.052235717, -10.872907876 } }, dct(4), 1e-8)
    near(doubles { { 7.5, -5.114166477, 1.5, -0.587623386 } }, dct { norm = "ortho" }, 1e-8)
    near(doubles { { 5.971347365, -6.185055759, 3.185055759, -0.971347365 } }, dct(3, { norm = "ortho" }), 1e-8)
    near(doubles { { 4.544382959, -5.604821102, 4.261108802, -3.844153445 } }, dct(4, { norm = "ortho" }), 1e-8)
    near(doubles { { 6, -1.414213562 } }, dct { n = 2 }, 1e-8)
    assert.same({ 1, 6 }, dct { n = 6 }.shape:table())
    refuses("type is 1, 2, 3 or 4, got 5", dct, 5)
    refuses("norm is 'forward', wanted 'ortho', or none", dct, 2, { norm = "forward" })
    refuses("type 1 has no norm 'ortho'", dct, 1, { norm = "ortho" })
    refuses("type 1 is of 2 numbers or more, got 1", dct, 1, { n = 1 })
  end)

  it("have cepstral coefficients", function()
    near(doubles { { 10.606601718, -5.114166477, 1.5, -0.587623386 } },
      run({ doubles { { 1, 2, 4, 8 } } }, function(a) return signal.mfccs_from_log_mel_spectrograms(a) end), 1e-8)
  end)
end)
