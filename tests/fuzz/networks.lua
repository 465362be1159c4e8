-- Draws networks as people build them: layers, residual sums, cuts and joins, reductions, a loss and an optimizer, with
-- sizes that lean to what breaks things. A network is a seed and what is left out of it, so that the same one is built
-- again, in another dtype or beside another job, by building from the same seed.
local flow = require "moonflow"
local draws = require "draws"
local near_fusion = require "near_fusions"

local networks = {}

-- No value of a batch of the size that is trained has more, so that networks do not depend on the batch.
local MOST_ELEMENTS = 20000

-- Elements of one sample: a batch may have none.
local function inner(x)
  local n = 1
  for axis = 1, #x.shape - 1 do n = n * x.shape[axis] end
  return n
end

local function count(x, net) return inner(x) * net.batch end

-- ---- element-wise -------------------------------------------------------------------------------------------------

local nn, math_ = flow.nn, flow.math
local activations = {
  nn.relu, nn.relu, nn.relu, nn.relu6, nn.leaky_relu, nn.elu, nn.mish, nn.swish, nn.hardswish, nn.hardsigmoid,
  nn.hardtanh, math_.sigmoid, math_.tanh, math_.gelu, math_.softplus, math_.log_sigmoid,
}
local functions = {
  math_.sin, math_.cos, math_.abs, math_.square, math_.negative, math_.erf, math_.tanh, math_.sigmoid, nn.relu,
  function(x) return math_.exp(math_.minimum(x, x * 0 + 1)) end,
  function(x) return math_.sqrt(math_.abs(x) + 0.25) end,
  function(x) return math_.rsqrt(x * x + 0.5) end,
  function(x) return math_.log(x * x + 1) end,
  function(x) return 1 / (x * x + 1) end,
  function(x) return flow.clip_by_value(x, -0.75, 0.8) end,
  function(x) return flow.where(math_.greater(x, x * 0.5 + 0.1), x, 1 - x) end,
  function(x) return x * 1.5 - 0.25 end,
}
local binaries = {
  math_.add, math_.subtract, math_.multiply, math_.maximum, math_.minimum, math_.squared_difference,
  function(x, y) return x / (math_.abs(y) + 0.5) end,
}

-- ---- steps --------------------------------------------------------------------------------------------------------
-- Each takes the draws, the value so far, the name its layers are to have, and the network, and gives the next value,
-- or nil where the value is not one for it.

local function channel_axis(net) return net.format == "NCHW" and 1 or 3 end

local function layer_options(g, name)
  local options = { name = name, use_bias = not g.chance(4), trainable = not g.chance(12) }
  if g.chance(2) then options.activation = g.chance(2) and nn.relu or g.one_of(activations) end
  if g.chance(6) then options.kernel_regularizer = flow.regularizers.l2(0.01) end
  if g.chance(8) then options.bias_regularizer = flow.regularizers.l1_l2(0.01, 0.02) end
  return options
end

local function window(g, s, net)
  local h, w = 1, 2
  if net.format == "NCHW" then h, w = 2, 3 end
  return s[h + 1], s[w + 1], g.one_of { "SAME", "SAME", "VALID", "SAME_UPPER" }
end

local function convolution(g, x, name, net)
  local s = x.shape:table()
  local height, width, padding = window(g, s, net)
  local channels = s[channel_axis(net) + 1]
  local options = layer_options(g, name)
  local taps = g.one_of { 1, 3, 3, 3, 5, 5, 7, 2 }
  local kernel = { taps, g.chance(5) and g.one_of { 1, 2, 3 } or taps }
  local dilation = g.chance(8) and 2 or 1
  if padding == "VALID" and ((kernel[1] - 1) * dilation >= height or (kernel[2] - 1) * dilation >= width) then
    padding = "SAME"
  end
  if g.chance(10) then
    local reach = (kernel[1] - 1) * dilation
    local pair = { reach, g.below(reach + 1) }
    padding = net.format == "NCHW" and { { 0, 0 }, { 0, 0 }, pair, { (kernel[2] - 1) * dilation, 0 } }
      or { { 0, 0 }, pair, { (kernel[2] - 1) * dilation, 0 }, { 0, 0 } }
  end
  options.padding, options.data_format, options.dilation_rate = padding, net.format, dilation
  options.strides = g.chance(4) and g.one_of { 2, 2, 3 } or 1
  local filters = g.one_of { 1, 2, 3, 4, 5, 6, 8, 8, 13, 16, 16, 17, 24, 32, 48 }
  if net.format == "NCHW" and g.chance(8) then
    options.groups = channels
    filters = channels * g.one_of { 1, 2 }
  end
  if filters * height * width * net.batch > MOST_ELEMENTS then return nil end
  return flow.layers.conv2d(x, filters, kernel, options)
end

local function batch_norm(g, x, name, net)
  local rank = #x.shape
  local axis = rank == 4 and channel_axis(net) or 1
  local options = { axis = axis, name = name, epsilon = g.one_of { 1e-3, 1e-2 }, momentum = 0.9,
                    center = not g.chance(6), scale = not g.chance(6) }
  if g.chance(3) then return flow.layers.batch_normalization(x, options) end
  if g.chance(2) then return flow.layers.batch_normalization_relu(x, options) end
  return flow.layers.batch_normalization_add_relu(x, net.alike(g, x), options)
end

-- Of values that were repeated, or nearly, several are the largest but for their rounding, and which one gets the
-- gradient says nothing.
local function pool_of(g, n, net)
  return (g.chance(n) or net.repeats) and nn.avg_pool2d or nn.max_pool2d
end

local function pooling(g, x, name, net)
  local height, width, padding = window(g, x.shape:table(), net)
  local size = g.one_of { 2, 2, 2, 3, 1 }
  if padding == "VALID" and (size > height or size > width) then padding = "SAME" end
  local options = { ksize = size, padding = padding, data_format = net.format, name = name }
  if g.chance(3) then options.strides = g.one_of { 1, 2, 3 } end
  return pool_of(g, 3, net)(x, options)
end

-- conv, batch norm, relu, conv, batch norm, sum, relu; or the same with fewer of them.
local function residual(g, x, name, net)
  local s = x.shape:table()
  local channels = s[channel_axis(net) + 1]
  local value = x
  local blocks = 1 + g.below(2)
  local with_norm = not g.chance(3)
  for i = 1, blocks do
    value = flow.layers.conv2d(value, channels, g.one_of { 1, 3, 3 }, {
      padding = "SAME", data_format = net.format, use_bias = not with_norm, name = name .. "-conv" .. i,
      activation = not with_norm and i < blocks and nn.relu or nil })
    if with_norm then
      value = flow.layers.batch_normalization(value, { axis = channel_axis(net), name = name .. "-norm" .. i })
      if i < blocks then value = nn.relu(value) end
    end
  end
  local sum = g.chance(2) and value + x or x + value
  return g.chance(4) and sum or nn.relu(sum)
end

-- A stage of LeNet: what is pooled by two where the sizes allow it.
local function stage(g, x, name, net)
  local s = x.shape:table()
  local filters = g.one_of { 3, 8, 16, 16, 24, 32, 48 }
  if count(x, net) / s[channel_axis(net) + 1] * filters > MOST_ELEMENTS then return nil end
  local taps, channels = g.one_of { 3, 3, 5, 5, 1, 7 }, s[channel_axis(net) + 1]
  local value
  if g.chance(2) then
    value = flow.layers.conv2d(x, filters, taps, {
      name = name, padding = "SAME", data_format = net.format, activation = not g.chance(6) and nn.relu or nil,
      use_bias = not g.chance(6) })
  else  -- by an algorithm that it would not choose for so little
    local function variable(word, shape)
      return flow.get_variable(name .. word, { shape = shape, dtype = net.dtype,
                                               initializer = flow.zeros_initializer() })
    end
    local shape = net.format == "NCHW" and { filters, channels, taps, taps } or { filters, taps, taps, channels }
    value = nn.conv2d(x, variable("-weight", shape), { padding = "SAME", data_format = net.format,
                                                       algorithm = g.one_of { "winograd", "direct" } })
    value = nn.relu(nn.bias_add(value, variable("-bias", { filters }), { data_format = net.format }))
  end
  if g.chance(6) then return pooling(g, value, name .. "-pool", net) end
  local pool = pool_of(g, 6, net)
  local height, width, padding = window(g, s, net)
  if padding == "VALID" and (height < 2 or width < 2) then padding = "SAME" end
  return pool(value, { ksize = 2, strides = 2, padding = padding, data_format = net.format, name = name .. "-pool" })
end

local function dense(g, x, name)
  local units = g.one_of { 1, 2, 3, 7, 8, 10, 16, 17, 31, 32, 48, 64 }
  return flow.layers.dense(x, units, layer_options(g, name))
end

-- One weight in two layers, as autoencoders and language models have it; or in one that reads it twice.
local function tied(g, x, name, net)
  if #x.shape ~= 2 then return nil end
  local width = x.shape[1]
  local units = g.one_of { width, width, 4, 16 }
  local w = flow.get_variable(name .. "-weight", { shape = { units, width }, dtype = net.dtype,
                                                   initializer = flow.zeros_initializer() })
  local b = flow.get_variable(name .. "-bias", { shape = { units }, dtype = net.dtype,
                                                 initializer = flow.zeros_initializer() })
  local value = nn.bias_add(flow.matmul(x, w, { transpose_b = true }), b)
  if g.chance(2) then value = nn.relu(value) end
  if units == width and g.chance(2) then
    return nn.bias_add(flow.matmul(value, w, { transpose_b = true }), b)
  end
  return g.one_of {
    function() return flow.matmul(value, w) end,
    function() return flow.matmul(value, flow.matmul(w, flow.matmul(w, w, { transpose_a = true }))) end,
    function() return value * math_.reduce_mean(w, { axis = { 1 } }) end,
    function() return flow.matmul(value, flow.transpose(flow.transpose(w, { 1, 0 }), { 1, 0 })) end,
    function() return flow.concat({ value, flow.matmul(x, flow.reshape(w, { width, units })) }, { axis = 1 }) end,
  } ()
end

-- The same convolution twice.
local function tied_convolution(g, x, name, net)
  local s = x.shape:table()
  local channels = s[channel_axis(net) + 1]
  local taps = g.one_of { 1, 3, 3 }
  local shape = net.format == "NCHW" and { channels, channels, taps, taps } or { channels, taps, taps, channels }
  local w = flow.get_variable(name .. "-weight", { shape = shape, dtype = net.dtype,
                                                   initializer = flow.zeros_initializer() })
  local options = { padding = "SAME", data_format = net.format }
  local value = nn.relu(nn.conv2d(x, w, options))
  if g.chance(2) then value = nn.relu(nn.conv2d(value, w, options)) end
  return g.chance(2) and value + x or value
end

-- One layer called twice, by the same weights, and what follows it too or not: the second is equal to the first.
local function again(g, x, name, net)
  local layer, seed = #x.shape == 4 and convolution or dense, g.below(1000)
  local follows = { g.one_of(activations), g.one_of(activations) }
  local first = layer(draws(seed, 1), x, name, net)
  if not first then return nil end
  local second = flow.scope.reuse_variables(function() return layer(draws(seed, 1), x, name, net) end)
  return g.one_of { math_.add, math_.multiply } (follows[1](first), follows[1 + g.below(2)](second))
end

local function dense_and_dropout(g, x, name)
  local value = flow.layers.dense(x, g.one_of { 8, 16, 40, 64 }, { name = name, activation = nn.relu })
  return nn.dropout(value, { rate = 0.5, name = name .. "-dropout" })
end

local function activation(g, x) return g.one_of(activations)(x) end

local function chain(g, x, _, net)
  local value = x
  for _ = 1, 1 + g.below(5) do
    if g.chance(3) then
      local other = net.alike(g, x) or x
      if g.chance(2) then value, other = other, value end
      value = g.one_of(binaries)(value, other)
    else
      value = g.one_of(functions)(value)
    end
  end
  return value
end

local function add_earlier(g, x, _, net)
  local other = net.alike(g, x)
  if not other then return nil end
  return g.chance(2) and x + other or other + x
end

local function inner_axis(g, x) return 1 + g.below(#x.shape - 1) end

local function broadcast(g, x)
  local reduce = g.one_of { math_.reduce_mean, math_.reduce_max, math_.reduce_sum, math_.reduce_min }
  local axes = { inner_axis(g, x) }
  if #x.shape == 4 and g.chance(2) then axes = { 1, 2, 3 } end
  local less = reduce(x, { axis = axes, keepdims = true })
  return g.one_of { math_.subtract, math_.multiply, math_.add } (x, math_.tanh(less))
end

local function reduction(g, x)
  if #x.shape < 3 then return nil end
  return g.one_of { math_.reduce_mean, math_.reduce_max, math_.reduce_sum, math_.reduce_min, math_.reduce_variance,
                    math_.reduce_logsumexp } (x, { axis = { inner_axis(g, x) } })
end

local function transposition(g, x)
  local order = {}
  for axis = 1, #x.shape - 1 do table.insert(order, 1 + g.below(#order + 1), axis) end
  table.insert(order, 1, 0)
  return flow.transpose(x, order)
end

local function reshaping(g, x)
  local batch, rest = x.shape[0], inner(x)
  -- What is left out of a shape cannot be known where there are no elements.
  local function left(size) return batch > 0 and -1 or size end
  if g.chance(3) then return flow.reshape(x, { batch, left(rest) }) end
  local first = g.one_of { 1, 2, 3, 4, 5, 8 }
  if rest % first ~= 0 then return nil end
  local second = g.one_of { 1, 2, 4 }
  if g.chance(2) and rest / first % second == 0 then
    return flow.reshape(x, { batch, first, second, left(rest / first / second) })
  end
  return flow.reshape(x, { batch, first, left(rest / first) })
end

local function cut(g, x)
  local axis = inner_axis(g, x)
  local size = x.shape[axis]
  local begin, sizes = {}, {}
  for i = 1, axis do begin[i], sizes[i] = 0, -1 end
  begin[axis + 1] = g.below(size)
  sizes[axis + 1] = 1 + g.below(size - begin[axis + 1])
  return flow.slice(x, begin, sizes)
end

-- The last two axes the other way round; with a single one beside the batch, as it is.
local function order_of(rank)
  local order = {}
  for axis = 0, rank - 1 do order[axis + 1] = axis end
  if rank > 2 then order[rank - 1], order[rank] = order[rank], order[rank - 1] end
  return order
end

-- A part of no elements: what is made of it adds nothing to the value, and its gradient nothing to the gradient.
local function empty_part(g, x, _, net)
  local axis, rank = inner_axis(g, x), #x.shape
  local begin, sizes = {}, {}
  for i = 1, axis do begin[i], sizes[i] = 0, -1 end
  begin[axis + 1], sizes[axis + 1] = g.below(x.shape[axis] + 1), 0
  local part = flow.slice(x, begin, sizes)
  for _ = 1, g.below(4) do
    part = g.one_of {
      function() return g.one_of(activations)(part) end,
      function() return g.one_of(functions)(part) end,
      function() return g.one_of(binaries)(part, part * 0.5) end,
      function() return g.one_of { nn.softmax, nn.logsoftmax, flow.identity } (part) end,
      function() return flow.reverse(part, { axis = { axis } }) end,
      function() return flow.sort(part) end,
      function() return flow.concat({ part, part }, { axis = axis }) end,
      function() return flow.transpose(flow.transpose(part, order_of(rank)), order_of(rank)) end,
      function() return nn.dropout(part, { rate = 0.5 }) end,
    } ()
  end
  local function product()  -- a sum of no terms for each element
    if rank ~= 3 or net.batch * x.shape[1] * x.shape[1] > MOST_ELEMENTS then return nil end
    local along = axis == 1 and flow.matmul(part, part, { transpose_a = true })
      or flow.matmul(part, part, { transpose_b = true })
    return x + (axis == 1 and flow.matmul(x, along) or flow.matmul(along, x))
  end
  return g.one_of {
    function() return flow.concat({ x, part }, { axis = axis }) end,
    function() return flow.concat({ part, x, part }, { axis = axis }) end,
    function() return x + math_.reduce_sum(part, { axis = { axis }, keepdims = true }) end,
    function() return x * math_.reduce_prod(part, { axis = { axis }, keepdims = true }) end,
    product,
  } ()
end

local function join(g, x, _, net)
  if count(x, net) * 3 > MOST_ELEMENTS then return nil end
  local list = { x, net.alike(g, x) or x * 0.5 }
  if g.chance(3) then list[3] = list[1] end
  if g.chance(2) then list[1], list[2] = list[2], list[1] end
  return flow.concat(list, { axis = inner_axis(g, x) })
end

local function border(g, x, _, net)
  if count(x, net) * 2 > MOST_ELEMENTS then return nil end
  if #x.shape == 4 and g.chance(2) then
    local height, width = window(g, x.shape:table(), net)
    if height < 2 or width < 2 then return nil end
    return flow.reflection_pad2d(x, { padding = { 1, g.below(2), g.below(2), 1 }, data_format = net.format })
  end
  local paddings = { 0, 0 }
  for axis = 1, #x.shape - 1 do paddings[2 * axis + 1], paddings[2 * axis + 2] = g.below(2), g.below(2) end
  return flow.pad(x, { paddings = paddings, constant_value = g.one_of { 0, 0, 0.5 } })
end

local function upsampling(g, x, _, net)
  if count(x, net) * 4 > MOST_ELEMENTS then return nil end
  net.repeats = true
  return flow.layers.upsample_2d(x, { size = 2, data_format = net.format,
                                      interpolation = g.one_of { "nearest", "bilinear" } })
end

local function transposed_convolution(g, x, name, net)
  if count(x, net) * 8 > MOST_ELEMENTS then return nil end
  local options = layer_options(g, name)
  options.padding, options.data_format, options.strides = "SAME", net.format, g.one_of { 1, 2 }
  return flow.layers.conv2d_transpose(x, g.one_of { 1, 3, 8 }, g.one_of { 2, 3 }, options)
end

local function layer_norm(g, x, name)
  local last = #x.shape - 1
  return flow.layers.layer_norm(x, { name = name, begin_norm_axis = g.chance(3) and last or 1 + g.below(last),
                                     scale = not g.chance(4), center = not g.chance(4), epsilon = 1e-2 })
end

local function softmax(g, x)
  return g.one_of {
    nn.softmax, nn.logsoftmax, function(y) return math_.l2_normalize(y, -1, { epsilon = 0.01 }) end,
  } (x)
end

local function dropout(g, x, name) return nn.dropout(x, { rate = g.one_of { 0.25, 0.5 }, name = name }) end

-- By a vector along the last axis, or along that of the channels.
local function scaled(g, x, name, net)
  local s = x.shape:table()
  local shape = { s[#s] }
  if g.chance(2) then
    shape[1] = s[2]
    for axis = 2, #s - 1 do shape[axis] = 1 end
  end
  local w = flow.get_variable(name .. "-scale", { shape = shape, dtype = net.dtype,
                                                  initializer = flow.zeros_initializer() })
  return g.one_of(binaries)(x, w)
end

-- With rows of a table, one for each of the batch: some are picked twice, and some are not. Batches differ in size.
local function embedded(g, x, name, net)
  local s, batch = x.shape:table(), x.shape[0]
  s[1] = g.one_of { 12, 40 }
  local weight = flow.get_variable(name .. "-table", { shape = s, dtype = net.dtype,
                                                       initializer = flow.random_normal_initializer(0, 0.5) })
  local picks = flow.range({ start = 0, stop = batch }) * (0.6 * math.min(1, s[1] / math.max(batch, 1)))
  return x + flow.gather(weight, flow.cast(math_.floor(picks), flow.int32))
end

-- Parts that the original's networks have, of any rank.
local function rearranged(g, x, name, net)
  local axis = inner_axis(g, x)
  local size, rank = x.shape[axis], #x.shape
  local function along(value, other)
    local list = {}
    for i = 1, axis + 1 do list[i] = i == axis + 1 and value or other or x.shape[i - 1] end
    return list
  end
  return g.one_of {
    function() return flow.reverse(x, { axis = { axis } }) end,
    function() return flow.slice_v2(x, along(g.below(size), 0), along(size), along(1 + g.below(2), 1)) end,
    function() return flow.slice_v2(x, along(size - 1, 0), along(-size - 1), along(-1, 1)) end,
    function() return flow.squeeze(flow.expand_dims(x, axis), { axis = { axis } }) end,
    function()
      local picked = {}
      for i = 1, 1 + g.below(4) do picked[i] = g.below(size) end
      local indices = flow.cast(math_.round(flow.constant(picked[1], { shape = { #picked } })), flow.int32)
      return flow.gather(x, indices, { axis = axis })
    end,
    function()
      if rank > 3 or count(x, net) * 2 > MOST_ELEMENTS then return nil end
      return flow.stack({ x, net.alike(g, x) or -x }, { axis = axis })
    end,
    function()
      if count(x, net) * 2 > MOST_ELEMENTS then return nil end
      local times = along(2, 1)
      for i = #times + 1, rank do times[i] = 1 end
      return flow.tile(x, times)
    end,
    function() return flow.layers.prelu(x, { name = name }) end,
    function() return flow.sort(x, { direction = g.one_of { "ASCENDING", "DESCENDING" } }) end,
    function()
      local reduce = g.one_of { math_.reduce_prod, math_.reduce_std }
      return x * math_.tanh(reduce(math_.tanh(x) + 1.5, { axis = { axis }, keepdims = true }))
    end,
    function() return rank > 2 and net.format == "NCHW" and nn.GroupNorm(x, 1, { name = name, eps = 1e-2 }) or nil end,
    function() return flow.identity(x) + 0 end,
    function() return flow.flatten(x, 1, rank - 1) end,
  } ()
end

local function convolution_1d(g, x, name, net)
  if #x.shape ~= 3 then return nil end
  local is_first = net.format == "NCHW"
  local format, channels = is_first and "NCW" or "NWC", x.shape[is_first and 1 or 2]
  local filters = g.one_of { 1, 3, 8, 16, 16, 32, 48 }
  if filters * x.shape[is_first and 2 or 1] * net.batch > MOST_ELEMENTS then return nil end
  return flow.layers.conv1d(x, filters, g.one_of { 1, 2, 3, 5 }, {
    name = name, padding = "SAME", strides = g.one_of { 1, 1, 2 }, data_format = format,
    groups = filters % channels == 0 and g.chance(4) and channels or 1, use_bias = not g.chance(4),
    activation = g.chance(2) and nn.relu or nil })
end

-- Places of an image in one row, or a row as an image: the same memory under another shape.
local function row_or_image(g, x, name, net)
  local s = x.shape:table()
  local is_first, is_image = net.format == "NCHW", #s == 4
  local at = is_first and 3 or 2
  if is_image then
    s[at] = s[at] * table.remove(s, at + 1)
    return convolution_1d(g, flow.reshape(x, s), name, net)
  end
  table.insert(s, at, 1)
  return g.one_of { convolution, batch_norm, pooling } (g, flow.reshape(x, s), name, net)
end

local function product(g, x, _, net)
  if #x.shape ~= 3 then return nil end
  if net.batch * x.shape[1] * x.shape[1] > MOST_ELEMENTS then return nil end
  local weights = flow.matmul(x, x, { transpose_b = true }) * (1 / x.shape[2])
  if g.chance(2) then return math_.tanh(weights) end
  net.repeats = true  -- means of about the same are nearly equal
  return flow.matmul(nn.softmax(weights), x)
end

local function attention(g, x, name, net)
  if #x.shape ~= 3 then return nil end
  net.repeats = true  -- as those of product
  local heads = g.one_of { 1, 2, 4 }
  local width = heads * g.one_of { 1, 4, 8 }
  local parts = {}
  for i, word in ipairs { "-query", "-key", "-value" } do
    parts[i] = flow.reshape(flow.layers.dense(x, width, { name = name .. word }),
      { x.shape[0], x.shape[1], heads, width / heads })
  end
  local out = nn.dot_product_attention(parts[1], parts[2], parts[3], { causal = g.chance(2) })
  return flow.reshape(out, { x.shape[0], x.shape[1], width })
end

-- Two layers whose parts meet as the gates of a cell do, some of them with equal gradients.
local function gates(g, x, name)
  local parts, width = 2 + g.below(3), g.one_of { 1, 2, 5, 8, 16 }
  local sizes = {}
  for i = 1, parts do sizes[i] = width end
  local function layer(word)
    return { flow.split(flow.layers.dense(x, parts * width, { name = name .. word }),
      g.chance(2) and parts or sizes, { axis = -1 }) }
  end
  local ones, others = layer("-one"), layer("-other")
  local value = g.one_of { math_.tanh, nn.relu } (ones[1] + others[1])
  for i = 2, parts do
    local gate = g.one_of {
      function() return math_.sigmoid(ones[i] + others[i]) end,
      function() return math_.sigmoid(ones[i] * others[i]) end,
      function() return math_.sigmoid(ones[i]) end,  -- then nothing reads the other one's part
      function() return 1 - math_.sigmoid(others[i] - ones[1]) end,
    } ()
    value = g.one_of(binaries)(gate, value)
  end
  return value
end

-- A cell that goes from step to step along axis 1, by the same weights.
local function recurrent(g, x, name)
  local batch, steps, width = x.shape[0], x.shape[1], g.one_of { 1, 4, 8, 17 }
  if #x.shape ~= 3 or steps > 8 then return nil end
  local state, states = flow.zeros({ batch, width }, x.dtype), {}
  flow.scope.reuse_variables(function()
    for i, step in ipairs { flow.split(x, steps, 1) } do
      local new, gate = flow.split(flow.layers.dense(flow.squeeze(step, { 1 }), 2 * width, { name = name .. "-input" })
        + flow.layers.dense(state, 2 * width, { name = name .. "-state" }), 2, 1)
      gate = math_.sigmoid(gate)
      state = gate * state + (1 - gate) * math_.tanh(new)
      states[i] = state
    end
  end)
  return g.chance(2) and state or flow.stack(states, { axis = 1 })
end

-- A recurrent layer, or one for each way.
local function recurrent_layer(g, x, name)
  if #x.shape ~= 3 or x.shape[1] > 8 or x.shape[1] == 0 then return nil end
  local layer, units = g.one_of { flow.layers.lstm, flow.layers.gru }, g.one_of { 1, 4, 8, 17 }
  local function way(reverse, ending)
    return layer(x, units, { name = name .. ending, reverse = reverse, use_bias = not g.chance(4),
                             recurrent_regularizer = g.chance(6) and flow.regularizers.l2(0.01) or nil })
  end
  if g.chance(3) then return flow.concat({ way(false, "-on"), (way(true, "-back")) }, -1) end
  local out, state = way(g.chance(3), "")
  return g.chance(2) and out or state
end

local function nearly_fused(g, x, name, net) return near_fusion(g, x, name, net, MOST_ELEMENTS) end

local anywhere = { activation, activation, chain, chain, chain, add_earlier, add_earlier, broadcast, reduction, cut,
                   join, border, transposition, reshaping, layer_norm, softmax, dropout, scaled, embedded, rearranged,
                   rearranged, batch_norm, empty_part }
local by_rank = {
  [2] = { dense, dense, dense, dense, dense, dense_and_dropout, tied, again, gates },
  [3] = { dense, dense, product, attention, attention, convolution_1d, convolution_1d, row_or_image, gates,
          recurrent, recurrent_layer },
  [4] = { convolution, convolution, convolution, batch_norm, batch_norm, pooling, pooling, residual, residual, stage,
          stage, stage, stage, upsampling, transposed_convolution, tied_convolution, row_or_image,
          dense, again, nearly_fused, nearly_fused, nearly_fused },
}

-- ---- networks -----------------------------------------------------------------------------------------------------

--- The kinds of the jobs that a network is called as.
networks.calls = { "predict", "train", "predict", "train", "train", "predict" }

--- What stands before any op: sizes, how many steps, which loss, how often.
function networks.draw(seed)
  local g = draws(seed, 0)
  local self = { seed = seed, skipped = {}, classes = g.one_of { 1, 2, 3, 10, 10, 16, 33 } }
  local batch = g.one_of { 1, 1, 2, 3, 4, 5, 8, 9, 16, 17, 33 }
  local channels, side = g.one_of { 1, 1, 2, 3, 3, 4, 8, 16, 17 }, { 1, 2, 3, 4, 5, 7, 8, 8, 9, 12, 14, 16 }
  self.format = g.one_of { "NCHW", "NCHW", "NHWC" }
  local height, width = g.one_of(side), g.one_of(side)
  if batch * channels * height * width > MOST_ELEMENTS then batch = 2 end
  self.shape = self.format == "NCHW" and { batch, channels, height, width } or { batch, height, width, channels }
  if g.chance(4) then self.shape = { batch, g.one_of { 1, 3, 8, 17, 37, 64, 100 } } end
  if g.chance(8) then self.shape = { batch, g.one_of(side), g.one_of { 1, 3, 8, 17, 32 } } end
  -- Predictions may be of another batch.
  self.predicted = { g.chance(2) and self.shape[1] or g.one_of { 1, 2, 5, 16 }, unpack(self.shape, 2) }
  self.steps = 1 + g.below(g.chance(3) and 14 or 7)
  -- What the inputs are declared as. All but Numpy take smaller batches too; those of predictions may be empty.
  self.input, self.batches = g.one_of { "Numpy", "Numpy", "ListNumpy", "MirroredTensorDef" }, {}
  for call, kind in ipairs(networks.calls) do
    local most = (kind == "train" and self.shape or self.predicted)[1]
    local fewer = kind == "train" and 1 + g.below(most) or g.one_of { 0, g.below(most + 1) }
    self.batches[call] = self.input ~= "Numpy" and g.chance(2) and fewer or most
  end
  return self
end

-- A value of the same shape from before x, the last one, where there is one. It is told from x by its place: what a
-- dropout gives is x itself in a job that predicts.
local function alike_among(values)
  return function(g, x)
    local list = {}
    for i = 1, #values - 1 do
      if values[i].shape == x.shape then list[#list + 1] = values[i] end
    end
    return #list > 0 and g.one_of(list) or nil
  end
end

--- Builds the body of the network in the job being traced. `around(place, step)` calls each step, so that it may be
--- watched.
function networks.body(self, x, around)
  local values = { x }
  local net = { format = self.format, alike = alike_among(values), dtype = x.dtype,
                batch = self.shape[1] }
  local value = x
  for place = 1, self.steps do
    if not self.skipped[place] then
      value = around(place, function()
        local g = draws(self.seed, place)
        for try = 1, 8 do
          local own = by_rank[#value.shape]
          local step = g.one_of(own and not g.chance(3) and own or anywhere)
          local made = step(g, value, "step" .. place .. "-" .. try, net)
          if made and #made.shape >= 2 and count(made, net) <= MOST_ELEMENTS then return made end
          -- What was made and is too large stays, unread.
        end
        return value
      end) or value
      values[#values + 1] = value
    end
  end
  return value
end

-- What the network gives, as (batch, classes).
local function head(self, value)
  local flat = #value.shape > 2 and flow.reshape(value, { value.shape[0], inner(value) }) or value
  return flow.layers.dense(flat, self.classes, { name = "head" })
end

--- A placeholder of the kind that the network takes.
function networks.placeholder(self, shape, dtype)
  if self.input == "MirroredTensorDef" then return flow.MirroredTensorDef(shape, { dtype = dtype }) end
  return flow.typing[self.input].Placeholder(shape, { dtype = dtype })
end

--- What is fed to it: the value as it is, or the list of one that other placeholders than Numpy take.
function networks.feed(self, value) return self.input == "Numpy" and value or { value } end

--- The prediction of the network for its last value.
function networks.prediction(self, value, around)
  return around(self.steps + 1, function() return head(self, value) end)
end

local function sparse(labels, logits) return nn.sparse_softmax_cross_entropy_with_logits(labels, logits) end

local function targets(labels, logits)
  return flow.one_hot(labels, { depth = logits.shape[1], dtype = logits.dtype })
end

local losses = {
  sparse, sparse, sparse,
  function(labels, logits) return nn.softmax_cross_entropy_with_logits(targets(labels, logits), logits) end,
  function(labels, logits) return nn.sigmoid_cross_entropy_with_logits(targets(labels, logits), logits) end,
  function(labels, logits) return flow.smooth_l1_loss(logits, targets(labels, logits)) end,
  function(labels, logits) return math_.squared_difference(logits, targets(labels, logits)) end,
  function(labels, logits)
    return math_.reduce_mean(math_.square(logits)) + math_.reduce_mean(sparse(labels, logits))
  end,
  function(labels, logits) return nn.sparse_cross_entropy(labels, nn.softmax(logits)) end,
}

--- The loss of the network.
function networks.loss(self, labels, logits, around)
  return around(self.steps + 2, function()
    local g = draws(self.seed, 1001)
    if logits.dtype:match("16") then logits = flow.cast(logits, flow.float) end
    local loss = g.one_of(losses)(labels, logits)
    if g.chance(3) then loss = math_.reduce_mean(loss) end
    return g.chance(5) and loss * 0.5 or loss
  end)
end

--- The loss, of some networks with a penalty on its slope along the input, whose gradient is one of a gradient.
function networks.penalised(self, loss, x)
  if not draws(self.seed, 1003).chance(3) then return loss end
  local fine, slope = pcall(flow.gradients, loss, x)
  if not fine then return loss end  -- there is none, behind an embedding or a part that is cut off
  return loss + 0.1 * math_.reduce_mean(math_.square(math_.tanh(flow.cast(slope, loss.dtype))))
end

--- Minimises it.
function networks.minimize(self, loss)
  local g = draws(self.seed, 1002)
  local scheduler = flow.optimizer
  local rate = g.one_of { 0.1, 0.01, scheduler.PiecewiseConstantScheduler({ 1 }, { 0.1, 0.02 }),
                          scheduler.CosineScheduler(0.1, 4), scheduler.PolynomialScheduler(0.1, 5),
                          scheduler.ExponentialScheduler(0.1, 2, 0.5) }
  local options = {}
  if g.chance(6) then options.grad_clipping = flow.optimizer.grad_clipping.by_global_norm(g.one_of { 0.5, 5 }) end
  if g.chance(6) then
    options.loss_scale_policy = g.chance(2) and flow.optimizer.loss_scale.static_loss_scale(64)
      or flow.optimizer.loss_scale.dynamic_loss_scale(1024, 1, 2)
  end
  local rules = { "SGD", "SGD", "SGD", "Adam", "Adam", "SGDW", "AdamW", "RMSProp", "LARS", "LazyAdam",
                  "Adagrad" }
  local rule = g.one_of(rules)
  if rule == "SGD" or rule == "SGDW" then options.momentum = g.one_of { 0, 0, 0.9 } end
  if rule == "SGDW" or rule == "AdamW" then
    options.weight_decay = 0.05
    if g.chance(2) then options.weight_decay_excludes = { "bias", "gamma" } end
  end
  -- Where gradients are next to nothing, what they are divided by is not.
  if rule:find("Ada") then options.epsilon = 1e-3 end
  if rule == "RMSProp" then options.epsilon, options.centered = 1e-3, g.chance(2) end
  if g.chance(6) then options.regularizer = flow.regularizers.l2(0.02) end
  flow.optimizer[rule](rate, options):minimize(loss)
end

return networks
