-- The operators of ONNX that make spectra.
local models = require "onnx_models"

local floats, whole, node = models.floats, models.whole, models.node
local result_of, raises = models.result_of, models.raises

before_each(models.begin)
after_each(models.finish)

local function near(wanted, array)
  assert.same(wanted.shape:table(), array.shape:table())
  assert.is_true(require("moonflow").np.abs(wanted - array):max() < 1e-6, tostring(array))
end

describe("a spectrum", function()
  local function spectrum(x, attributes, weights, inputs)
    return result_of(floats(x), { weights = weights, nodes = { node("DFT", inputs or { "x" }, { "y" }, attributes) } })
  end

  it("is of real numbers or of pairs, along any axis", function()
    near(floats { { { 6, 0 }, { 0, 2 }, { 2, 0 }, { 0, -2 } } }, spectrum { { { 2 }, { 0 }, { 2 }, { 2 } } })
    near(floats { { { 1, 1 }, { -1, 1 } } }, spectrum { { { 0, 1 }, { 1, 0 } } })
    near(floats { { { { 3, 0 }, { 0, 0 } }, { { -1, 0 }, { 0, 0 } } } },
      spectrum({ { { { 1 }, { 0 } }, { { 2 }, { 0 } } } }, { axis = { i = 1 } }))
  end)

  it("is cut or filled up to a length, and may be its first half alone", function()
    local wanted = floats { { { 3, 0 }, { 1, -2 }, { -1, 0 } } }
    local only_half, weights = { onesided = { i = 1 } }, { size = whole(4) }
    near(wanted, spectrum({ { { 1 }, { 2 } } }, only_half, weights, { "x", "size" }))
    near(wanted, spectrum({ { { 1 }, { 2 }, { 0 }, { 0 }, { 9 } } }, only_half, weights, { "x", "size" }))
  end)

  it("goes back to what it was of", function()
    near(floats { { { 2, 0 }, { 0, 0 }, { 2, 0 }, { 2, 0 } } },
      spectrum({ { { 6, 0 }, { 0, 2 }, { 2, 0 }, { 0, -2 } } }, { inverse = { i = 1 } }))
    near(floats { { { 2 }, { 0 }, { 2 }, { 2 } } },
      spectrum({ { { 6, 0 }, { 0, 2 }, { 2, 0 } } }, { inverse = { i = 1 }, onesided = { i = 1 } }))
  end)

  it("is one of each frame, under a window", function()
    local function frames(x, attributes)
      return result_of(floats(x), {
        weights = { step = whole(1), window = floats { 1, 3 } },
        nodes = { node("STFT", { "x", "step", "window" }, { "y" }, attributes) },
      })
    end
    near(floats { { { { 7, 0 }, { -5, 0 } }, { { 11, 0 }, { -7, 0 } } } }, frames { { { 1 }, { 2 }, { 3 } } })
    near(floats { { { { 1, 6 }, { 1, -6 } } } }, frames({ { { 1, 0 }, { 0, 2 } } }, { onesided = { i = 0 } }))
    raises("onesided = 1 of complex numbers is not supported", function() frames { { { 1, 0 }, { 0, 2 } } } end)
  end)
end)
