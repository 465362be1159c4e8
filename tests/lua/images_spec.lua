-- What is about images and made of ops: pooling along one axis, normalisation, PixelShuffle, upsampling, reflection,
-- sampling at places that are computed, other sizes.
local checks = require "checks"
local flow = require "moonflow"
local np, tp = flow.np, flow.typing
local count_up, near, refuses, run = checks.count_up, checks.near, checks.refuses, checks.run

local function one(x, body) return run({ x }, body) end

before_each(function()
  flow.clear_default_session()
  flow.set_seed(3)
end)

describe("a bias", function()
  it("has no gradient of images without a place", function()
    local x, b = np.ones { 2, 3, 4, 4 }, np.zeros { 3 }
    local slope = checks.run({ x, b }, function(a, c)
      local none = flow.slice(a, { 0, 0, 0, 0 }, { 2, 3, 4, 0 })
      local both = flow.math.reduce_sum(flow.nn.bias_add(none, c)) + flow.math.reduce_sum(flow.nn.bias_add(a, c))
      return flow.gradients(both, c)
    end)
    assert.same({ 32, 32, 32 }, slope:totable())
  end)
end)

describe("padding", function()
  it("goes on as np.pad does, and gives back the gradients of what stands in it", function()
    local x, w = count_up { 2, 3 }, count_up { 3, 7 }
    for _, mode in ipairs { "edge", "reflect", "symmetric", "wrap" } do
      local padded, slope = run({ x, w }, function(v, f)
        local y = flow.pad(v, { 0, 1, 2, 2 }, { mode = mode })
        return y, flow.gradients(y * f, v)
      end, { returns = tp.Tuple { tp.Numpy, tp.Numpy } })
      assert.is_true(padded == np.pad(x, { { 0, 1 }, { 2, 2 } }, mode))
      local wanted, places = np.zeros(6), np.pad(np.arange(6):reshape(2, 3), { { 0, 1 }, { 2, 2 } }, mode)
      np.add_at(wanted, places:ravel(), w:ravel())
      assert.is_true(slope == wanted:reshape(2, 3))
    end
    refuses("flow.pad: there is no mode 'mirror'; there are constant, edge, reflect, symmetric and wrap", function()
      one(x, function(v) return flow.pad(v, { 0, 1, 2, 2 }, { mode = "mirror" }) end)
    end)
    refuses("paddings has 3 numbers, 'v' (2, 3) needs a pair for each of its 2 axes", function()
      one(x, function(v) return flow.pad(v, { 0, 1, 2 }, { mode = "edge" }) end)
    end)
    refuses('constant_value is of the mode "constant", and it is "edge"', function()
      one(x, function(v) return flow.pad(v, 1, { mode = "edge", constant_value = 3 }) end)
    end)
  end)

  it("is a pair for each spatial axis, as for each of all", function()
    local x, w = np.arange(64):astype(flow.float):reshape(1, 1, 8, 8), np.ones { 1, 1, 3, 3 }
    local function same(shape, all, body, nhwc)
      local input = nhwc and x:reshape(1, 8, 8, 1) or x
      local function result(padding) return checks.run({ input, w }, function(v, f) return body(v, f, padding) end) end
      local wanted = result(all)
      assert.same(shape, wanted.shape:table())
      assert.is_true(result({ { 0, 1 }, { 2, 0 } }) == wanted)
    end
    local all, last = { 0, 0, 0, 0, 0, 1, 2, 0 }, { 0, 0, 0, 1, 2, 0, 0, 0 }
    same({ 1, 1, 7, 8 }, all, function(v, f, padding) return flow.nn.conv2d(v, f, { padding = padding }) end)
    same({ 1, 7, 8, 1 }, last, function(v, _, padding)
      return flow.nn.max_pool2d(v, { ksize = 3, strides = 1, padding = padding, data_format = "NHWC" })
    end, true)
    same({ 1, 1, 9, 8 }, all, function(v, f, padding) return flow.nn.conv2d_transpose(v, f, { padding = padding }) end)
    same({ 1, 1, 9, 10 }, { 2, 0, 0, 1 }, function(v, _, padding) return flow.reflection_pad2d(v, padding) end)
    for _, padding in ipairs { { { 2, 0 } }, { { 0, 0 }, { 0, 0 }, { 2, 0 } } } do
      local sums = checks.run({ np.arange(5):astype(flow.float):reshape(1, 1, 5), np.ones { 1, 1, 3 } }, function(v, f)
        return flow.nn.conv1d(v, f, { padding = padding })
      end)
      assert.same({ { { 0, 1, 3, 6, 9 } } }, sums:totable())
    end
  end)
end)

describe("pooling along one axis", function()
  it("is pooling of images of height 1", function()
    local x = np.array({ { { 1, 5, 2, 4, 3 } } }, flow.float)
    local function pool(kind, options)
      return one(x, function(b) return flow.nn[kind .. "_pool1d"](b, options) end)
    end
    assert.is_true(pool("max", { ksize = 2 }) == np.array({ { { 5, 4 } } }, flow.float))
    assert.is_true(pool("max", { ksize = 3, strides = 1 }) == np.array({ { { 5, 5, 4 } } }, flow.float))
    assert.is_true(pool("avg", { ksize = 2, padding = "SAME" }) == np.array({ { { 1, 3.5, 3.5 } } }, flow.float))
    assert.is_true(pool("avg", { ksize = 2, ceil_mode = true }) == np.array({ { { 3, 3, 3 } } }, flow.float))
    assert.is_true(pool("max", { ksize = 2, padding = { { 0, 0 }, { 0, 0 }, { 1, 0 } } })
      == np.array({ { { 1, 5, 4 } } }, flow.float))
    assert.is_true(pool("max", { ksize = 3, padding = 1 }) == np.array({ { { 5, 4 } } }, flow.float))
  end)

  it("takes channels last", function()
    local x = np.array({ { { 1, 10 }, { 2, 30 }, { 3, 20 } } }, flow.float)
    local y = one(x, function(b)
      return flow.nn.max_pool1d(b, 2, 1, { { 0, 0 }, { 1, 0 }, { 0, 0 } }, { data_format = "NWC" })
    end)
    assert.is_true(y == np.array({ { { 1, 10 }, { 2, 30 }, { 3, 30 } } }, flow.float))
  end)

  it("says what does not fit", function()
    local function fails(pattern, x, options)
      refuses(pattern, function() one(x, function(b) return flow.nn.max_pool1d(b, options) end) end)
    end
    fails("'b' is (2, 3), wanted rank 3 (NCW)", np.ones({ 2, 3 }), { ksize = 2 })
    fails("ksize must be one number for the width, got 2", np.ones({ 1, 1, 4 }), { ksize = { 2, 2 } })
    fails("padding has 2 numbers", np.ones({ 1, 1, 4 }), { ksize = 2, padding = { 1, 1 } })
  end)
end)

describe("normalisation of channels", function()
  it("GroupNorm gives each group of each sample mean 0 and variance 1, then scales and shifts each channel", function()
    np.random.seed(5)
    local x = np.random.normal(3, 2, { 2, 6, 3, 4 }):astype(flow.float)
    local y = one(x, function(b) return flow.nn.GroupNorm(b, 2, { affine = false }) end)
    assert.same({}, checks.variables())
    local groups = y:reshape({ 4, 36 })
    near(groups:mean(1), np.zeros({ 4 }), 1e-5)
    near(groups:std(1), np.ones({ 4 }), 1e-4)
    near(one(x, function(b) return flow.nn.GroupNorm(b, { num_groups = 2, name = "g" }) end), y, 1e-6)
    assert.same({ "g-beta (6)", "g-gamma (6)" }, checks.variables())
  end)

  it("GroupNorm takes what has no places, as a dense layer gives it", function()
    local x = np.array({ { 1, 3, 5, 9 }, { 0, 2, -1, 1 } }, flow.float)
    local y = one(x, function(b) return flow.nn.GroupNorm(b, 2, { eps = 1e-12 }) end)
    near(y, np.array({ { -1, 1, -1, 1 }, { -1, 1, -1, 1 } }, flow.float), 1e-6)
    refuses("'b' is (4), wanted (batch, channels, ...)", function()
      one(np.ones({ 4 }), function(b) return flow.nn.GroupNorm(b, 2) end)
    end)
  end)

  it("LocalResponseNorm divides by what the channels around have", function()
    local x = np.array({ { { 1, -1 }, { 2, 0 }, { 2, 3 } } }, flow.double)
    local function responses(...)
      local how = { ... }
      return one(x, function(b) return flow.nn.LocalResponseNorm(b, unpack(how)) end)
    end
    near(responses(3, 3, 1), np.array({ { { 1 / 6, -1 / 2 }, { 2 / 10, 0 }, { 2 / 9, 3 / 10 } } }, flow.double), 1e-12)
    -- Of an even number one more before than behind.
    near(responses(2, 2, 1), np.array({ { { 1 / 2, -1 / 2 }, { 2 / 6, 0 }, { 2 / 9, 3 / 10 } } }, flow.double), 1e-12)
    near(responses(1, { alpha = 3, beta = 0.5, k = 2 }), x / np.sqrt(3 * x ^ 2 + 2), 1e-12)
    refuses("size is from 1 to 1024, got 0", function() responses(0) end)
    refuses("'b' is (4), wanted (batch, channels, ...)", function()
      one(np.ones({ 4 }), function(b) return flow.nn.LocalResponseNorm(b, 3) end)
    end)
  end)

  it("trains gamma and beta", function()
    np.random.seed(6)
    local x = np.random.normal(0, 1, { 2, 4, 3, 3 }):astype(flow.float)
    local normal, gamma, beta
    run({ x }, function(b)
      local y = flow.nn.InstanceNorm2d(b, { name = "n" })
      local plain = flow.nn.InstanceNorm2d(b, { affine = false })
      flow.optimizer.SGD(1, { momentum = 0 }):minimize(flow.math.reduce_sum(y * plain))
      return plain
    end, { type = "train" })
    normal = one(x, function(b) return flow.nn.InstanceNorm2d(b, { affine = false }) end)
    gamma, beta = run({}, function()
      local function get(name) return flow.get_variable(name, { shape = { 4 } }) end
      return get("n-gamma") * 1, get("n-beta") * 1
    end, { returns = tp.Tuple { tp.Numpy, tp.Numpy } })
    local planes = normal:transpose({ 1, 0, 2, 3 }):reshape({ 4, 18 })
    near(gamma, 1 - (planes * planes):sum(1), 1e-4)
    near(beta, 0 - planes:sum(1), 1e-4)
  end)

  it("GroupNorm of an empty batch is one", function()
    local job = flow.global_function { inputs = { x = tp.ListNumpy.Placeholder({ 2, 4, 3 }) }, returns = tp.Numpy } (
      function(x) return flow.nn.GroupNorm(x, 2) end)
    assert.equal("(0, 4, 3)", tostring(job({ np.zeros({ 0, 4, 3 }) }).shape))
  end)

  it("InstanceNorm is GroupNorm with a group per channel, for each rank", function()
    np.random.seed(7)
    for dims = 1, 3 do
      local shape = { 2, 3, 4 }
      for i = 2, dims do shape[i + 2] = 3 end
      local x = np.random.normal(1, 2, shape):astype(flow.float)
      near(one(x, function(b) return flow.nn["InstanceNorm" .. dims .. "d"](b) end),
        one(x, function(b) return flow.nn.GroupNorm(b, 3) end), 1e-6)
    end
  end)

  it("says what does not fit", function()
    refuses("the 6 channels of 'b' cannot be split into 4 groups", function()
      one(np.ones({ 1, 6, 2 }), function(b) return flow.nn.GroupNorm(b, 4) end)
    end)
    refuses("'b' is (1, 6, 2), wanted rank 4: batch, channels and 2 more axes", function()
      one(np.ones({ 1, 6, 2 }), function(b) return flow.nn.InstanceNorm2d(b) end)
    end)
  end)
end)

describe("larger images", function()
  it("PixelShuffle makes channels places", function()
    local y = one(count_up({ 1, 8, 1, 2 }), function(b) return flow.nn.PixelShuffle(b, 2) end)
    assert.is_true(y == np.array({ { { { 0, 2, 1, 3 }, { 4, 6, 5, 7 } }, { { 8, 10, 9, 11 }, { 12, 14, 13, 15 } } } },
      flow.float))
    refuses("the 6 channels of 'b' are no multiple of upscale_factor^2 = 4", function()
      one(np.ones({ 1, 6, 2, 2 }), function(b) return flow.nn.PixelShuffle(b, 2) end)
    end)
  end)

  it("PixelUnshuffle makes places channels", function()
    -- PyTorch's F.pixel_unshuffle(torch.arange(16.).reshape(1, 2, 2, 4), 2)
    local y = one(count_up({ 1, 2, 2, 4 }), function(b) return flow.nn.PixelUnshuffle(b, 2) end)
    assert.is_true(y == np.array({ { { { 0, 2 } }, { { 1, 3 } }, { { 4, 6 } }, { { 5, 7 } },
                                     { { 8, 10 } }, { { 9, 11 } }, { { 12, 14 } }, { { 13, 15 } } } }, flow.float))
    local x, slope = count_up({ 2, 3, 6, 9 }), count_up({ 2, 27, 2, 3 })
    assert.is_true(x == one(x, function(b) return flow.nn.PixelShuffle(flow.nn.PixelUnshuffle(b, 3), 3) end))
    local dx = one(x, function(b)
      return flow.gradients(flow.math.reduce_sum(flow.nn.PixelUnshuffle(b, 3) * slope), b)
    end)
    assert.is_true(dx == one(slope, function(b) return flow.nn.PixelShuffle(b, 3) end))
    refuses("height and width of 'b' (1, 6, 2, 3) are no multiples of downscale_factor = 2", function()
      one(np.ones({ 1, 6, 2, 3 }), function(b) return flow.nn.PixelUnshuffle(b, 2) end)
    end)
    refuses("downscale_factor must be 1 or more, got 0", function()
      one(np.ones({ 1, 6, 2, 3 }), function(b) return flow.nn.PixelUnshuffle(b, 0) end)
    end)
  end)

  it("upsample_2d is a layer without variables", function()
    local y = one(np.array({ { { { 1, 2 } } } }, flow.float), function(b)
      return flow.layers.upsample_2d(b, { size = { 1, 2 }, interpolation = "bilinear", name = "up" })
    end)
    assert.is_true(y == np.array({ { { { 1, 1.25, 1.75, 2 } } } }, flow.float))
    assert.same({}, checks.variables())
  end)

  it("reflection_pad2d mirrors the border", function()
    local y = one(np.array({ { { { 1, 2, 3 } } } }, flow.float), function(b)
      return flow.reflection_pad2d(b, { 2, 1, 0, 0 })
    end)
    assert.is_true(y == np.array({ { { { 3, 2, 1, 2, 3, 2 } } } }, flow.float))
  end)
end)

describe("images at places that are computed", function()
  local function sampled(x, grid, ...)
    local options = { ... }
    return run({ x, grid }, function(b, g) return flow.nn.grid_sample(b, g, unpack(options)) end)
  end

  it("grid_sample takes grids of two bytes for images whose places these do not tell apart", function()
    for _, dtype in ipairs { "bfloat16", "float16" } do
      local width = dtype == "bfloat16" and 300 or 2100
      local columns = (np.arange(width):astype(flow.float) / width):reshape { 1, 1, 1, width }
      for _, padding in ipairs { "zeros", "border", "reflection" } do
        local got = run({ columns, np.array { { { 1, 0, 0 }, { 0, 1, 0 } } } }, function(x, theta)
          local grid = flow.cast(flow.nn.affine_grid(theta, { 1, 1, 1, width }), dtype)
          return flow.nn.grid_sample(x, grid, "bilinear", padding)
        end)
        near(columns, got, 1 / width)  -- the grid's own rounding is half a pixel
      end
    end
  end)

  it("grid_sample goes between pixels, and over the edge", function()
    -- A row of four, at the places -1, 0.25, 3 and 5 where its ends are the outer edges.
    local function place(x) return { (x + 0.5) / 2 - 1, 0 } end
    local x, grid = np.array { { { { 1, 2, 3, 4 } } } }, np.array { { { place(-1), place(0.25), place(3), place(5) } } }
    local function row(...) return np.array { { { { ... } } } } end
    assert.is_true(sampled(x, grid) == row(0, 1.25, 4, 0))
    assert.is_true(sampled(x, grid, { padding_mode = "border" }) == row(1, 1.25, 4, 4))
    assert.is_true(sampled(x, grid, "nearest", "reflection") == row(1, 1, 4, 3))
    -- By hand, with the weights of Keys for 1.25, 0.25, 0.75 and 1.75 of (1, 1, 2, 3).
    assert.near(-0.10546875 + 0.87890625 + 2 * 0.26171875 - 3 * 0.03515625,
      sampled(x, grid, "bicubic", "border"):at(0, 0, 0, 1), 1e-6)
    grid = np.array { { { { -1, 0 }, { 0, 0 }, { 1, 0 } } } }  -- from the middle of the first to that of the last
    assert.is_true(sampled(x, grid, { align_corners = true }) == row(1, 2.5, 4))
  end)

  it("affine_grid tells pixels apart in mixed precision", function()
    local function grid(theta) return flow.nn.affine_grid(theta, { 1, 1, 300, 300 }) end
    local theta, config = np.array { { { 1, 0, 0 }, { 0, 1, 0 } } }, flow.function_config()
    config:enable_auto_mixed_precision(true)
    near(one(theta, grid), run({ theta }, grid, { function_config = config }), 1e-6)
  end)

  it("grid_sample takes the nearest of classes as they are", function()
    local classes = np.arange(6):astype("uint8"):reshape { 1, 1, 2, 3 }
    local turned = run({ classes, np.array { { { -1, 0, 0 }, { 0, -1, 0 } } } }, function(b, theta)
      return flow.nn.grid_sample(b, flow.nn.affine_grid(theta, b.shape), "nearest")
    end)
    assert.equal("uint8", turned.dtype)
    assert.same({ { { { 5, 4, 3 }, { 2, 1, 0 } } } }, turned:totable())
  end)

  it("affine_grid is where each pixel comes from", function()
    local x = count_up { 1, 2, 2, 3 }
    local function turned(matrix, options)
      return run({ x, np.array { matrix } }, function(b, theta)
        return flow.nn.grid_sample(b, flow.nn.affine_grid(theta, b.shape, options), options)
      end)
    end
    for _, options in ipairs { { align_corners = false }, { align_corners = true } } do
      near(turned({ { 1, 0, 0 }, { 0, 1, 0 } }, options), x, 1e-6)
      near(turned({ { -1, 0, 0 }, { 0, -1, 0 } }, options), np.flip(x, { 2, 3 }), 1e-6)
    end
    -- One column to the left, of three from -1 to 1.
    local moved = np.array { { { { 1, 2, 0 }, { 4, 5, 0 } }, { { 7, 8, 0 }, { 10, 11, 0 } } } }
    near(turned { { 1, 0, 2 / 3 }, { 0, 1, 0 } }, moved, 1e-5)
  end)

  it("lets gradients by to the image and to the grid", function()
    np.random.seed(8)
    local x, grid = np.random.uniform(-1, 1, { 2, 3, 4, 5 }), np.random.uniform(-1.2, 1.2, { 2, 3, 2, 2 })
    for _, mode in ipairs { "bilinear", "bicubic" } do
      for _, padding in ipairs { "zeros", "border", "reflection" } do
        local function value(b, g)
          return flow.math.reduce_sum(flow.nn.grid_sample(b, g, mode, padding) ^ 2)
        end
        local inputs = { x:astype("float64"), grid:astype("float64") }
        local by_image, by_grid = run(inputs, function(b, g)
          return unpack(flow.gradients(value(b, g), { b, g }))
        end, { returns = tp.Tuple { tp.Numpy, tp.Numpy } })
        local function slope(which, i)
          local function at(step)
            local moved = { inputs[1]:copy(), inputs[2]:copy() }
            local flat = moved[which]:reshape({ -1 })
            flat[i] = flat[i] + step
            return run(moved, value):item()
          end
          return (at(1e-6) - at(-1e-6)) / 2e-6
        end
        for _, i in ipairs { 0, 7, 11 } do
          assert.near(slope(1, i), by_image:reshape({ -1 })[i], 1e-6)
          assert.near(slope(2, i), by_grid:reshape({ -1 })[i], 1e-6)
        end
      end
    end
  end)

  it("say what does not fit", function()
    local x, grid = np.ones { 2, 1, 4, 4 }, np.zeros { 2, 3, 3, 2 }
    checks.raises("shape_mismatch", "grid is (1, 3, 3, 2), wanted (2, rows, columns, 2) for x (2, 1, 4, 4)", function()
      sampled(x, grid:rows(0, 1))
    end)
    checks.raises("shape_mismatch", "x is (4, 4), wanted (batch, channels, height, width)", function()
      sampled(np.ones { 4, 4 }, grid)
    end)
    refuses('mode is "cubic", wanted "nearest", "bilinear" or "bicubic"', function()
      sampled(x, grid, "cubic")
    end)
    refuses('padding_mode is "wrap", wanted "zeros", "border" or "reflection"', function()
      sampled(x, grid, { padding_mode = "wrap" })
    end)
    refuses("theta 'b' is (2, 6), wanted (batch, 2, 3)", function()
      one(np.ones { 2, 6 }, function(b) return flow.nn.affine_grid(b, { 2, 1, 4, 4 }) end)
    end)
    refuses("size is {4, 4}, wanted {2, channels, height, width} for theta 'b' (2, 2, 3)", function()
      one(np.ones { 2, 2, 3 }, function(b) return flow.nn.affine_grid(b, { 4, 4 }) end)
    end)
  end)
end)

describe("pictures in another size", function()
  np.random.seed(9)
  local picture = np.random.randint(0, 256, { 7, 12, 3 }):astype "uint8"

  it("are what a job gives for images, rounded", function()
    for mode, bound in pairs { nearest = 0, bilinear = 0, bicubic = 0 } do
      for _, antialias in ipairs { true, false } do
        local size, smooths = { 4, 15 }, antialias and mode ~= "nearest"
        local wanted = one(picture:astype(flow.float):reshape({ 1, 7, 12, 3 }), function(b)
          return flow.nn.interpolate(b, size, { mode = mode, antialias = smooths, data_format = "NHWC" })
        end)[0]
        local got = np.resize_picture(picture, size, { mode = mode, antialias = antialias })
        assert.equal("uint8", got.dtype)
        near(np.clip(np.round(wanted), 0, 255), got:astype(flow.float), bound, mode)
        local share = np.resize_picture(picture:astype(flow.float) / 255, size, mode, antialias)
        near(wanted / 255, share, 1e-6, mode)
      end
    end
  end)

  it("are copies where the size is the same, and grey ones stay so", function()
    -- A pixel without a reading is missing where it has a part, and nowhere else.
    local depth = np.ones { 6, 6 }
    depth:set(1, 1, 0 / 0)
    assert.equal(9, np.isnan(np.resize_picture(depth, 9, { antialias = false })):sum())
    local same = np.resize_picture(picture, { 7, 12 })
    assert.is_true(same == picture)
    same:set("...", 0)
    assert.is_false(same == picture)
    assert.equal("(4, 4)", tostring(np.resize_picture(picture:slice(":, :, 0"), 4).shape))
  end)

  it("say what does not fit", function()
    refuses("the picture is (2), wanted (height, width)", np.resize_picture, { 1, 2 }, 3)
    refuses("size is {0, 1}, wanted {height, width}", np.resize_picture, picture, { 0, 1 })
    refuses("the picture is int64, wanted uint8 or floats", np.resize_picture, np.ones({ 2, 2 }, "int64"), 3)
    refuses("mode is 'area', wanted 'nearest'", np.resize_picture, picture, 3, "area")
    refuses("the picture (3, 8, 9) seems to have its channels first; a:transpose({ 1, 2, 0 }) puts them last",
      np.resize_picture, np.ones { 3, 8, 9 }, 3)
    refuses("the picture (0, 3) has no pixels", np.resize_picture, np.ones { 0, 3 }, 3)
  end)
end)

describe("images in another size", function()
  local function resized(x, size, ...)
    local options = { ... }
    return one(x, function(b) return flow.nn.interpolate(b, size, unpack(options)) end)
  end
  local function row(...) return np.array { { { { ... } } } } end
  local function same_row(wanted, got) near(got, wanted, 1e-5) end

  it("takes the nearest pixel, or goes between them", function()
    local x = row(0, 10, 20, 30)
    same_row(row(0, 0, 10, 20, 20, 30), resized(x, { 1, 6 }))
    same_row(row(0, 10, 20), resized(x, { 1, 3 }))
    -- The middles of six pixels lie at -1/6, 1/2, 7/6, 11/6, 5/2 and 19/6 of four.
    same_row(row(0, 5, 70 / 6, 110 / 6, 25, 30), resized(x, { 1, 6 }, "bilinear"))
    same_row(row(0, 6, 12, 18, 24, 30), resized(x, { 1, 6 }, "bilinear", true))
    same_row(row(0, 15, 30), resized(x, { 1, 3 }, { mode = "bilinear", align_corners = true }))
    -- By hand, with the weights of Keys for 1.5, 0.5, 0.5 and 1.5 of (0, 10, 20, 30).
    same_row(row(15), resized(x, { 1, 1 }, "bicubic"))
    -- Of four pixels with the weights 1/8, 3/8, 3/8 and 1/8, and three that are left of them at the border.
    same_row(row(50 / 7, 160 / 7), resized(x, { 1, 2 }, "bilinear", { antialias = true }))
    -- PyTorch's.
    same_row(row(0.32644628, 5.62396694), resized(row(0, 1, 2, 10), { 1, 2 }, "bicubic", { antialias = true }))
  end)

  it("is upsample_2d by whole factors, and takes channels last", function()
    local x = count_up { 2, 3, 4, 5 }
    for _, mode in ipairs { "nearest", "bilinear" } do
      local want = one(x, function(b) return flow.layers.upsample_2d(b, { 2, 3 }, { interpolation = mode }) end)
      assert.is_true(want == resized(x, { 8, 15 }, mode))
    end
    for _, mode in ipairs { "nearest", "bilinear", "bicubic" } do
      local last = resized(x:transpose { 0, 2, 3, 1 }, { 3, 7 }, { mode = mode, data_format = "NHWC" })
      near(last:transpose { 0, 3, 1, 2 }, resized(x, { 3, 7 }, mode), 1e-4)
    end
    assert.equal("(2, 3, 6, 6)", tostring(resized(x, 6).shape))
    assert.equal("uint8", resized(x:astype(flow.uint8), { 3, 7 }).dtype)
  end)

  it("lets gradients by", function()
    local dx = one(row(1, 2, 3), function(b)
      return flow.gradients(flow.nn.interpolate(b, { 1, 2 }, "bilinear"), b)
    end)
    near(dx, row(0.75, 0.5, 0.75), 1e-6)  -- the middles lie at 1/4 and 7/4
  end)

  it("says what does not fit", function()
    local x = np.ones { 1, 2, 3, 4 }
    local function fails(pattern, ...)
      local given = { ... }
      refuses(pattern, function() resized(x, unpack(given)) end)
    end
    fails("size is {4, 0}, wanted {height, width} of whole numbers from 1 on", { 4, 0 })
    fails("size is {1.5, 1.5}, wanted {height, width}", 1.5)
    fails("it would need a list of 1.67772e+07 numbers", { 2 ^ 24 + 1, 1 })
    fails("mode is 'cubic', wanted 'nearest', 'bilinear' or 'bicubic'", 4, "cubic")
    fails("align_corners is for 'bilinear' and 'bicubic', and mode is 'nearest'", 4, { align_corners = true })
    fails("align_corners and antialias exclude each other", 4, "bilinear", true, true)
    refuses("x 'b' is int32, and 'bilinear' computes with floats; flow.cast it, or take 'nearest'", function()
      resized(x:astype(flow.int32), 4, "bilinear")
    end)
    refuses("x 'b' is (3, 4), wanted rank 4, NCHW", function() resized(np.ones { 3, 4 }, 4) end)
  end)
end)

describe("pooling by windows of which several stick out at the right", function()
  it("takes what lies within", function()
    local row = (np.arange(9):astype(flow.float) - 20):reshape({ 1, 1, 1, 9 })
    local function pooled(kind)
      return flow.global_function { name = kind, inputs = { x = tp.Numpy.Placeholder({ 1, 1, 1, 9 }) },
                                    returns = tp.Numpy } (function(x)
        return flow.nn[kind](x, { ksize = { 1, 5 }, strides = 1, padding = "SAME" })
      end)(row)[0][0][0]:totable()
    end
    assert.same({ -18, -17, -16, -15, -14, -13, -12, -12, -12 }, pooled "max_pool2d")
    assert.same({ -19, -18.5, -18, -17, -16, -15, -14, -13.5, -13 }, pooled "avg_pool2d")
  end)
end)
