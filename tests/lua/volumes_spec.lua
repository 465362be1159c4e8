-- Convolution and pooling along three axes: against sums over each window.
local checks = require "checks"
local flow = require "moonflow"
local np, tp = flow.np, flow.typing
local near, refuses = checks.near, checks.refuses

before_each(function() flow.clear_default_session() end)

local function values(shape, seed)
  np.random.seed(seed)
  return np.random.uniform(-1, 1, shape):astype(flow.double)
end

-- Calls visit(n, out, at): for each sample, each place of the result along three axes, and each place of its window in
-- the volume that lies in there.
local function for_each_window(depths, kernel, given, visit)
  local out = {}
  for i = 1, 3 do
    local reach = (kernel[i] - 1) * given.dilations[i] + 1
    out[i] = math.floor((depths[i] + 2 * given.pads[i] - reach) / given.strides[i]) + 1
  end
  for place = 0, out[1] * out[2] * out[3] - 1 do
    local at = { math.floor(place / (out[2] * out[3])), math.floor(place / out[3]) % out[2], place % out[3] }
    for tap = 0, kernel[1] * kernel[2] * kernel[3] - 1 do
      local taps = { math.floor(tap / (kernel[2] * kernel[3])), math.floor(tap / kernel[3]) % kernel[2],
        tap % kernel[3] }
      local from, is_inside = {}, true
      for i = 1, 3 do
        from[i] = at[i] * given.strides[i] - given.pads[i] + taps[i] * given.dilations[i]
        is_inside = is_inside and from[i] >= 0 and from[i] < depths[i]
      end
      if is_inside then visit(at, from, taps) end
    end
  end
  return out
end

-- The result, and the gradients of sum(result * r) for x and the filter.
local function by_sums(x, filter, given)
  local batch, channels = x.shape[0], x.shape[1]
  local filters, part = filter.shape[0], filter.shape[1]
  local places, kernel = { unpack(x.shape:table(), 3) }, { unpack(filter.shape:table(), 3) }
  local out = for_each_window(places, kernel, given, function() end)
  local r = values({ batch, filters, unpack(out) }, 3)
  local y, dx, dw = np.zeros_like(r), np.zeros_like(x), np.zeros_like(filter)
  for_each_window(places, kernel, given, function(at, from, taps)
    for n = 0, batch - 1 do
      for f = 0, filters - 1 do
        local group = math.floor(f / (filters / given.groups))
        for c = 0, part - 1 do
          local channel = group * part + c
          assert(channel < channels)
          local a = x:at(n, channel, unpack(from))
          local b = filter:at(f, c, unpack(taps))
          local down = r:at(n, f, unpack(at))
          y[n][f][at[1]][at[2]][at[3]] = y:at(n, f, unpack(at)) + a * b
          dx[n][channel][from[1]][from[2]][from[3]] = dx:at(n, channel, unpack(from)) + down * b
          dw[f][c][taps[1]][taps[2]][taps[3]] = dw:at(f, c, unpack(taps)) + down * a
        end
      end
    end
  end)
  return r, y, dx, dw
end

local function channels_last(array) return np.transpose(array, { 0, 2, 3, 4, 1 }) end

local cases = {
  { filter = { 4, 2, 2, 3, 2 }, strides = { 1, 1, 1 }, pads = { 0, 0, 0 }, dilations = { 1, 1, 1 }, groups = 1 },
  { filter = { 3, 2, 3, 2, 1 }, strides = { 2, 1, 3 }, pads = { 1, 0, 1 }, dilations = { 1, 2, 1 }, groups = 1 },
  { filter = { 4, 1, 2, 2, 2 }, strides = { 1, 2, 1 }, pads = { 2, 1, 0 }, dilations = { 2, 1, 1 }, groups = 2 },
  { filter = { 2, 2, 1, 2, 2 }, strides = { 2, 1, 1 }, pads = { 0, 0, 0 }, dilations = { 1, 1, 1 }, groups = 1 },
}

describe("a convolution of volumes", function()
  it("sums over each window, and so do its gradients", function()
    for i, given in ipairs(cases) do
      local x, filter = values({ 2, 2, 5, 4, 6 }, 1), values(given.filter, 2)
      local r, y, dx, dw = by_sums(x, filter, given)
      for _, format in ipairs { "NCDHW", "NDHWC" } do
        local is_last = format == "NDHWC"
        local function ordered(array) return is_last and channels_last(array) or array end
        local job = flow.global_function {
          name = "job", inputs = {
            volume = tp.Numpy.Placeholder(ordered(x).shape, { dtype = flow.double }),
            weight = tp.Numpy.Placeholder(ordered(filter).shape, { dtype = flow.double }),
            down = tp.Numpy.Placeholder(ordered(r).shape, { dtype = flow.double }),
          }, returns = tp.Tuple { tp.Numpy, tp.Numpy, tp.Numpy },
        } (function(volume, weight, down)
          local out = flow.nn.conv3d(volume, weight, { strides = given.strides, dilations = given.dilations,
            groups = given.groups, padding = given.pads, data_format = format, name = "conv" .. i })
          local gradients = flow.gradients(out * down, { volume, weight })
          return out, gradients[1], gradients[2]
        end)
        local got, got_dx, got_dw = job(ordered(x), ordered(filter), ordered(r))
        near(ordered(y), got)
        near(ordered(dx), got_dx)
        near(ordered(dw), got_dw)
      end
    end
  end)

  it("pads as conv2d does", function()
    local x, filter = values({ 1, 1, 4, 5, 4 }, 1), values({ 1, 1, 2, 2, 3 }, 2)
    local function result(padding, strides)
      local job = flow.global_function {
        name = "job", inputs = { volume = tp.Numpy.Placeholder(x.shape, { dtype = flow.double }),
          weight = tp.Numpy.Placeholder(filter.shape, { dtype = flow.double }) }, returns = tp.Numpy,
      } (function(volume, weight) return flow.nn.conv3d(volume, weight, { padding = padding, strides = strides }) end)
      return job(x, filter)
    end
    near(result({ { 0, 0 }, { 0, 0 }, { 1, 0 }, { 1, 0 }, { 1, 1 } }), result("SAME"))
    near(result({ { 0, 0 }, { 0, 0 }, { 0, 1 }, { 0, 1 }, { 1, 1 } }), result("SAME_UPPER"))
    near(result({ 0, 0, 0, 0, 0, 0, 1, 0, 1, 0 }, 2), result("SAME_LOWER", 2))
    near(result({ { 0, 0 }, { 0, 0 }, { 1, 0 }, { 1, 0 }, { 1, 1 } }, { 3, 1, 1 }), result("SAME", { 3, 1, 1 }))
    near(result(0), result("VALID"))
    near(result({ 1, 1, 1 }), result(1))
  end)

  it("is a layer", function()
    local train = flow.global_function {
      type = "train", inputs = { x = tp.Numpy.Placeholder { 2, 3, 4, 4, 4 } }, returns = tp.Numpy,
    } (function(x)
      local y = flow.layers.conv3d(x, 5, 3, { padding = "SAME", activation = flow.nn.relu, name = "conv" })
      assert.equal("(2, 5, 4, 4, 4)", tostring(y.shape))
      local loss = flow.math.reduce_mean((y - 1) ^ 2)
      flow.optimizer.SGD(0.5):minimize(loss)
      return loss
    end)
    local variables = flow.get_all_variables()
    assert.equal("(5, 3, 3, 3, 3)", tostring(variables["conv-weight"].shape))
    assert.equal("(5)", tostring(variables["conv-bias"].shape))
    local x = values({ 2, 3, 4, 4, 4 }, 1):astype("float32")
    local first = train(x):item()
    local last
    for _ = 1, 30 do last = train(x):item() end
    assert.is_true(last < first / 2, first .. " to " .. last)
  end)

  it("says what does not fit", function()
    local function applied(x_shape, filter_shape, options)
      flow.global_function {
        name = "job", inputs = { x = tp.Numpy.Placeholder(x_shape), w = tp.Numpy.Placeholder(filter_shape) },
        returns = tp.Numpy,
      } (function(x, w) return flow.nn.conv3d(x, w, options) end)
    end
    refuses("flow.nn.conv3d: x 'x' is (2, 3, 4, 4), wanted rank 5 (NCDHW)",
      function() applied({ 2, 3, 4, 4 }, { 1, 3, 1, 1, 1 }) end)
    refuses("flow.nn.conv3d: 'x' (2, 3, 4, 4, 4) has 3 channels, filter 'w' (1, 2, 1, 1, 1) is for 2 in 1 group",
      function() applied({ 2, 3, 4, 4, 4 }, { 1, 2, 1, 1, 1 }) end)
    refuses("flow.nn.conv3d: a window of 5 is larger than the depth of 'x' (1, 1, 2, 9, 9), padded by 1 and 1",
      function() applied({ 1, 1, 2, 9, 9 }, { 1, 1, 3, 1, 1 }, { padding = { 1, 0, 0 }, dilations = { 2, 1, 1 } }) end)
    refuses("flow.nn.conv3d: padding has 4 numbers, wanted a pair { before, after } for each of 5 axes",
      function() applied({ 1, 1, 2, 9, 9 }, { 1, 1, 1, 1, 1 }, { padding = { 1, 1, 1, 1 } }) end)
    refuses("flow.nn.conv3d: strides must be one number, or one each for depth, height and width, got 2",
      function() applied({ 1, 1, 2, 9, 9 }, { 1, 1, 1, 1, 1 }, { strides = { 1, 1 } }) end)
    refuses('flow.nn.conv3d: padding is "valid", wanted "VALID", "SAME", "SAME_LOWER", "SAME_UPPER" or a pair',
      function() applied({ 1, 1, 2, 9, 9 }, { 1, 1, 1, 1, 1 }, { padding = "valid" }) end)
  end)
end)

describe("pooling of volumes", function()
  local given = { strides = { 2, 1, 2 }, pads = { 1, 0, 1 }, dilations = { 1, 1, 1 } }
  local kernel = { 3, 2, 2 }

  it("takes the largest of each window, or their mean without the padding", function()
    local x = values({ 2, 3, 5, 4, 6 }, 1)
    local places = { 5, 4, 6 }
    local out = for_each_window(places, kernel, given, function() end)
    local largest = np.full({ 2, 3, unpack(out) }, -math.huge, flow.double)
    local sums, counts = np.zeros_like(largest), np.zeros_like(largest)
    for_each_window(places, kernel, given, function(at, from)
      for n = 0, 1 do
        for c = 0, 2 do
          local number, a, b, d = x:at(n, c, unpack(from)), unpack(at)
          largest[n][c][a][b][d] = math.max(largest:at(n, c, a, b, d), number)
          sums[n][c][a][b][d] = sums:at(n, c, a, b, d) + number
          counts[n][c][a][b][d] = counts:at(n, c, a, b, d) + 1
        end
      end
    end)
    for name, wanted in pairs { max_pool3d = largest, avg_pool3d = sums / counts } do
      for _, format in ipairs { "NCDHW", "NDHWC" } do
        local function ordered(array) return format == "NDHWC" and channels_last(array) or array end
        local job = flow.global_function {
          name = "job", inputs = { volume = tp.Numpy.Placeholder(ordered(x).shape, { dtype = flow.double }) },
          returns = tp.Numpy,
        } (function(volume)
          return flow.nn[name](volume, kernel, { strides = given.strides, padding = given.pads, data_format = format })
        end)
        near(ordered(wanted), job(ordered(x)))
      end
    end
  end)

  it("sends a gradient to the largest, and shares it out among all", function()
    local x = np.array { { { { { 1, 2 }, { 3, 4 } }, { { 8, 7 }, { 6, 5 } } } } }:astype(flow.double)
    local function gradient(name)
      return flow.global_function {
        name = "job", inputs = { volume = tp.Numpy.Placeholder({ 1, 1, 2, 2, 2 }, { dtype = flow.double }) },
        returns = tp.Numpy,
      } (function(volume) return flow.gradients(flow.nn[name](volume, 2), { volume })[1] end)(x):reshape(-1):totable()
    end
    assert.same({ 0, 0, 0, 0, 1, 0, 0, 0 }, gradient("max_pool3d"))
    assert.same({ 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125 }, gradient("avg_pool3d"))
  end)

  it("keeps windows that stick out with ceil_mode", function()
    local job = flow.global_function {
      inputs = { x = tp.Numpy.Placeholder { 1, 1, 3, 3, 3 } }, returns = tp.Numpy,
    } (function(x) return flow.nn.max_pool3d(x, 2, { ceil_mode = true }) end)
    local got = job(np.arange(27):reshape({ 1, 1, 3, 3, 3 }):astype("float32"))
    assert.same({ { { { { 13, 14 }, { 16, 17 } }, { { 22, 23 }, { 25, 26 } } } } }, got:totable())
  end)

  it("goes on by whole numbers from 1 on", function()
    for _, strides in ipairs { 0, -1, 1.5 } do
      refuses("flow.nn.max_pool3d: strides must be whole numbers from 1", function()
        flow.global_function { inputs = { x = tp.Numpy.Placeholder { 1, 1, 4, 4, 4 } } } (function(x)
          flow.nn.max_pool3d(x, 2, { strides = strides })
        end)
      end)
    end
  end)
end)
