-- flow.np.fft: its axes, lengths and frequencies. That spectra are right is for tests/kernels and signal_spec.
local checks = require "checks"
local flow = require "moonflow"
local np = flow.np
local near, raises = checks.near, checks.raises

local rng = np.random.default_rng(1)
local function drawn(...) return rng:normal(0, 1, { ... }, "float64") end

describe("flow.np.fft", function()
  it("has the spectrum of real numbers along an axis, and what has it", function()
    checks.same(np.fft.rfft { 1, 2, 0, 4 }, "float32", { { 7, 0 }, { 1, 2 }, { -5, 0 } })
    checks.same(np.fft.rfft(np.array({ 1, 1 }, "int32")), "float64", { { 2, 0 }, { 0, 0 } })
    local x = drawn(5, 6, 3)
    local y = np.fft.rfft(x, nil, 1)
    assert.same({ 5, 4, 3, 2 }, y.shape:table())
    near(np.fft.rfft(x[4]:transpose())[2], y[4]:transpose({ 1, 0, 2 })[2], 0)
    near(x, np.fft.irfft(y, nil, 1))
    near(x, np.fft.irfft(np.fft.rfft(x, { axis = 0 }), 5, { axis = 0 }))
  end)

  it("cuts or fills up", function()
    local x = drawn(2, 7)
    near(np.fft.rfft(x:slice(":, 0:5")), np.fft.rfft(x, 5), 1e-12)
    near(np.fft.rfft(np.concat({ x, np.zeros({ 2, 3 }, "float64") }, 1)), np.fft.rfft(x, 10), 1e-12)
    assert.same({ 2, 9 }, np.fft.irfft(np.fft.rfft(x), 9).shape:table())
  end)

  it("has that of complex numbers, which are pairs", function()
    local x = drawn(4, 9, 2)
    near(x, np.fft.ifft(np.fft.fft(x)))
    near(x, np.fft.ifft(np.fft.fft(x, { axis = 0 }), { axis = 0 }))
    assert.same({ 4, 12, 2 }, np.fft.fft(x, 12).shape:table())
    local real = drawn(8)
    local whole = np.fft.fft(np.stack({ real, np.zeros({ 8 }, "float64") }, -1))
    near(np.fft.rfft(real), whole:rows(0, 5), 1e-12)
  end)

  it("tells frequencies", function()
    checks.same(np.fft.rfftfreq(5), "float64", { 0, 0.2, 0.4 })
    checks.same(np.fft.rfftfreq(4, 0.5), "float64", { 0, 0.5, 1 })
    checks.same(np.fft.fftfreq(4), "float64", { 0, 0.25, -0.5, -0.25 })
    checks.same(np.fft.fftfreq(5), "float64", { 0, 0.2, 0.4, -0.4, -0.2 })
  end)

  it("names what does not fit", function()
    raises("shape_mismatch", "np.fft.fft: a is (8), wanted pairs along the last axis, real and imaginary; np.fft.rfft "
      .. "is for real numbers", function() np.fft.fft(np.ones { 8 }) end)
    raises("invalid_argument", "np.fft.rfft: the length must be 1 or more, got 0", function()
      np.fft.rfft(np.zeros { 0 })
    end)
    raises("invalid_argument", "np.fft.irfft: n must be 1 or more, got 0", function() np.fft.irfft { { 1, 0 } } end)
    raises("out_of_range", "np.fft.rfft", function() np.fft.rfft({ 1, 2 }, 2 ^ 40) end)
    raises("invalid_argument", "np.fft.rfft", function() np.fft.rfft({ 1, 2 }, nil, 1) end)
    raises("invalid_argument", "np.fft.fftfreq: n must be 1 or more, got 0", function() np.fft.fftfreq(0) end)
  end)
end)

describe("windows", function()
  it("are NumPy's", function()
    local function is(wanted, window) checks.near(window, np.array(wanted, "float64"), 1e-8) end
    is({ 0, 0.5, 1, 0.5, 0 }, np.hanning(5))
    is({ 0.08, 0.77, 0.77, 0.08 }, np.hamming(4))
    is({ 0, 0.34, 1, 0.34, 0 }, np.blackman(5))
    is({ 0, 0.5, 1, 0.5, 0 }, np.bartlett(5))
    is({ 0.00133251, 0.34039362, 1, 0.34039362, 0.00133251 }, np.kaiser(5, 8.6))
    is({ 1 }, np.hanning(1))
    assert.near(4.880792585865024, np.i0(3), 1e-14)
    assert.equal(0, #np.blackman(0))
  end)
end)
