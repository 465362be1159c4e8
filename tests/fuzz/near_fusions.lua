-- Steps of networks that look like what is fused, a convolution with its bias, activation, normalisation and pooling,
-- and are not quite: a number comes between, a bias or a normalisation goes along another axis, a part is cut out, or
-- somebody else reads a value.
local flow = require "moonflow"

local nn, math_ = flow.nn, flow.math

-- What is done to a value between two ops; mostly nothing. `axis` is that of the channels.
local function between(g, x, name, net, axis)
  local s = x.shape:table()
  local other = net.format == "NCHW" and "NHWC" or "NCHW"
  local function vector(size)
    return flow.get_variable(name, { shape = { size }, dtype = net.dtype, initializer = flow.zeros_initializer() })
  end
  return g.one_of {
    function() return x end,
    function() return x end,
    function() return x end,
    function() return x + 0.5 end,
    function() return x * 0.75 end,
    function() return nn.relu6(x) end,
    function() return x + math_.tanh(x) * 0.5 end,
    function() return nn.bias_add(x, vector(other == "NHWC" and s[4] or s[2]), { data_format = other }) end,
    function()
      return flow.layers.batch_normalization(x, { axis = other == "NHWC" and 3 or 1, name = name, momentum = 0.9,
                                                  training = g.chance(2) })
    end,
    function()
      local begin, size = { 0, 0, 0, 0 }, { -1, -1, -1, -1 }
      local cut = g.one_of { axis, 1, 2, 3 }
      begin[cut + 1] = g.below(s[cut + 1])
      size[cut + 1] = 1 + g.below(s[cut + 1] - begin[cut + 1])
      return flow.slice(x, begin, size)
    end,
    function() return flow.reshape(flow.reshape(x, { s[1], s[2] * s[3], s[4] }), s) end,
    function() return flow.pad(x, { paddings = { 0, 0, 0, 1, 0, 0, 0, 0 } })
      + flow.pad(x, { paddings = { 0, 0, 1, 0, 0, 0, 0, 0 } }) end,
  } ()
end

--- A step, as networks.lua has them; `most` is how many elements it may give.
return function(g, x, name, net, most)
  local s = x.shape:table()
  local axis = net.format == "NCHW" and 1 or 3
  local channels = s[axis + 1]
  local filters, taps = g.one_of { s[4], s[2], 4, 8, 16, 32 }, g.one_of { 1, 3, 3, 5 }
  if net.batch * s[2] * s[3] * s[4] / channels * filters * 2 > most then return nil end
  local function variable(word, shape)
    return flow.get_variable(name .. word, { shape = shape, dtype = net.dtype, initializer = flow.zeros_initializer() })
  end
  local function perhaps(value, word) return between(g, value, name .. word, net, axis) end
  local shape = net.format == "NCHW" and { filters, channels, taps, taps } or { filters, taps, taps, channels }
  local value = nn.conv2d(x, variable("-weight", shape), { padding = "SAME", data_format = net.format })
  value = perhaps(value, "-first")
  if g.chance(4) then
    value = flow.layers.batch_normalization(value, { axis = axis, name = name .. "-norm", momentum = 0.9 })
  else
    value = nn.bias_add(value, variable("-bias", { value.shape[axis] }), { data_format = net.format })
  end
  value = perhaps(g.one_of { nn.relu, nn.relu, nn.relu, nn.relu6 } (perhaps(value, "-second")), "-third")
  if g.chance(3) then return value end
  local pool = net.repeats and nn.avg_pool2d or g.one_of { nn.max_pool2d, nn.max_pool2d, nn.avg_pool2d }
  return pool(value, { ksize = 2, strides = 2, padding = "SAME", data_format = net.format, name = name .. "-pool" })
end
