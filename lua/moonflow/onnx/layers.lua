--- ONNX operators that layers are made of: convolution, pooling and normalisation. A table from an operator's name
--- to the function that applies it to a node.
-- Images have one, two or three axes of places. Those of one are taken as images of height 1, of three as volumes.

local dtypes = require "moonflow.dtypes"
local onnx_node = require "moonflow.onnx.node"
local respond = require "moonflow.formulas.responses"
local volumes = require "moonflow.formulas.volumes"
local windows = require "moonflow.formulas.windows"

local operators = {}

local count_of = onnx_node.count_of

-- ---- windows ------------------------------------------------------------------------------------------------------

-- How many axes of places an image has: 1 to `most`.
local function place_axes(node, x, most)
  local count = #x.shape - 2
  if count < 1 or count > most then
    node:fail(("its input has %d axes; images of up to %d axes of places are supported, so 3 to %d")
      :format(#x.shape, most, most + 2))
  end
  return count
end

-- A number for each axis, from `least` on; `least` for all where the node says nothing.
local function per_axis(node, name, count, least)
  local list = node:ints(name)
  if not list then
    list = {}
    for i = 1, count do list[i] = least end
  elseif #list ~= count then
    node:fail(("%s has %d numbers, wanted %d"):format(name, #list, count), "invalid_argument")
  end
  for _, number in ipairs(list) do
    if not windows.is_whole(number, least) then
      node:fail(("%s has %s, wanted whole numbers from %d on"):format(name, tostring(number), least),
        "invalid_argument")
    end
  end
  return list
end

-- The pads of each axis of places, as the node's auto_pad or pads say. A window of `reaches[i]` places goes over
-- `sizes[i]` of them in steps of `strides[i]`.
local function pads_of(node, sizes, reaches, strides)
  local auto, count, pads = node:text("auto_pad", "NOTSET"), #sizes, {}
  local given = per_axis(node, "pads", 2 * count, 0)
  for i = 1, count do
    if auto == "SAME_UPPER" or auto == "SAME_LOWER" or auto == "VALID" then
      pads[i] = { windows.around(auto, sizes[i], reaches[i], strides[i]) }
    elseif auto == "NOTSET" or auto == "" then
      pads[i] = { given[i], given[count + i] }
    else
      node:fail("auto_pad = " .. auto .. " is not supported", "invalid_argument")
    end
  end
  return pads
end

-- What a window sees of an image, along each axis of places.
local function reaches_of(kernel, dilations)
  local reaches = {}
  for i, size in ipairs(kernel) do reaches[i] = (size - 1) * dilations[i] + 1 end
  return reaches
end

local function places_of(x)
  local sizes = x.shape:table()
  return { unpack(sizes, 3) }
end

-- An image of one axis as one of two, with its lists.
local function as_image(node, x, word)
  local sizes = x.shape:table()
  table.insert(sizes, 3, 1)
  return node:reshape(x, sizes, word)
end

local function with_height(number, list) return #list == 1 and { number, list[1] } or list end

-- The result of an op on images of two axes as such of one, if they had one before.
local function as_before(node, count, image)
  if count ~= 1 then return image end
  local sizes = image.shape:table()
  table.remove(sizes, 3)
  return node:reshape(image, sizes, "line")
end

-- ---- convolution --------------------------------------------------------------------------------------------------

local function with_bias(node, image, count, word)
  local bias = node:optional(3)
  if bias then image = node:apply("bias_add", { image, bias }, {}, word) end
  return as_before(node, count, image)
end

-- A filter without its outer places that see nothing but pads, wherever it stands, as with wide holes over a small
-- image. Changes the lists `kernel` and `pads` as well.
local function seeing(node, x, filter, kernel, strides, dilations, pads)
  for i, size in ipairs(places_of(x)) do
    local before, after = unpack(pads[i])
    local count, hole = kernel[i], dilations[i]
    local way = math.floor((size + before + after - (count - 1) * hole - 1) / strides[i]) * strides[i]
    local function sees(place) return place * hole - before + way >= 0 and place * hole - before < size end
    local first, last = 0, count - 1
    while first < last and not sees(first) and (first + 1) * hole <= before do first = first + 1 end
    while last > first and not sees(last) and (count - last) * hole <= after do last = last - 1 end
    if last - first + 1 < count then
      filter = node:cut(filter, i + 1, first, last - first + 1, "seeing_" .. i)
      kernel[i], pads[i] = last - first + 1, { before - first * hole, after - (count - 1 - last) * hole }
    end
  end
  return filter
end

-- What convolves images of two axes of places for a node, and adds its bias: by an algorithm of the op.
local function in_floats(algorithm)
  return function(node, x, filter, attrs)
    attrs.algorithm = algorithm
    local bias, image = node:optional(3), node:apply("conv2d", { x, filter }, attrs)
    return bias and node:apply("bias_add", { image, bias }, {}, "bias") or image
  end
end

-- Images of width 1 are convolved as such of height 1, for which kernels have more to do in a row.
local function column(node, x, filter, strides, dilations, pads, convolve)
  local function lying(value, word)
    local sizes = value.shape:table()
    return node:reshape(value, { sizes[1], sizes[2], 1, sizes[3] }, word)
  end
  local y = convolve(node, lying(x, "lying"), lying(filter, "filter_lying"), {
    strides = { 1, strides[1] }, dilations = { 1, dilations[1] }, groups = node:int("group", 1),
    padding = windows.listed({ { 0, 0 }, pads[1] }, 4, 2),
  })
  local sizes = y.shape:table()
  return node:reshape(y, { sizes[1], sizes[2], sizes[4], 1 }, "standing")
end

-- By an algorithm of the op, which is its own choice for a node of a file, or with `convolve` in the place of in_floats
-- for images of up to two axes.
function operators.Conv(node, algorithm, convolve)
  node:ignore("kernel_shape")
  local x, filter = node:input(1), node:input(2)
  local count = place_axes(node, x, 3)
  if #filter.shape ~= #x.shape then node:fail("its filter has " .. #filter.shape .. " axes", "shape_mismatch") end
  local kernel, strides = places_of(filter), per_axis(node, "strides", count, 1)
  local dilations = per_axis(node, "dilations", count, 1)
  local pads = pads_of(node, places_of(x), reaches_of(kernel, dilations), strides)
  filter = seeing(node, x, filter, kernel, strides, dilations, pads)
  if count == 3 then
    return with_bias(node, volumes.conv(node, x, filter, {
      strides = strides, dilations = dilations, groups = node:int("group", 1), pads = pads,
      algorithm = algorithm,
    }), count, "bias")
  end
  if count == 1 then x, filter = as_image(node, x, "image"), as_image(node, filter, "filter") end
  convolve = convolve or in_floats(algorithm)
  if count == 2 and x.shape[3] == 1 and kernel[2] == 1 and pads[2][1] + pads[2][2] == 0 then
    return column(node, x, filter, strides, dilations, pads, convolve)
  end
  return as_before(node, count, convolve(node, x, filter, {
    strides = with_height(1, strides), dilations = with_height(1, dilations), groups = node:int("group", 1),
    padding = windows.listed(pads, 4, 2),
  }))
end

-- The size that a transposed convolution has along each axis, and the pads that it is cut by.
local function transposed_sizes(node, x, reaches, strides)
  local count = #reaches
  local extra, wanted = per_axis(node, "output_padding", count, 0), node:ints("output_shape")
  local auto = node:text("auto_pad", "NOTSET")
  local given, places = per_axis(node, "pads", 2 * count, 0), places_of(x)
  local sizes, pads = {}, {}
  for i = 1, count do
    local full = (places[i] - 1) * strides[i] + reaches[i] + extra[i]
    local size = wanted and wanted[#wanted - count + i]
      or (auto == "SAME_UPPER" or auto == "SAME_LOWER") and places[i] * strides[i]
    local before, after = given[i], given[count + i]
    if size then
      before, after = windows.split(math.max(0, full - size), auto)
    elseif auto == "VALID" then
      before, after = 0, 0
    end
    sizes[i] = size or full - before - after
    if extra[i] >= strides[i] then after = after - extra[i] end
    pads[i] = { before, after }
  end
  return sizes, pads
end

function operators.ConvTranspose(node)
  node:ignore("kernel_shape")
  local x, filter = node:input(1), node:input(2)
  local count, groups = place_axes(node, x, 3), node:int("group", 1)
  if #filter.shape ~= #x.shape then node:fail("its filter has " .. #filter.shape .. " axes", "shape_mismatch") end
  if filter.shape[0] ~= x.shape[1] then
    node:fail(("%d channels meet a filter for %d"):format(x.shape[1], filter.shape[0]), "shape_mismatch")
  end
  local kernel, strides = places_of(filter), per_axis(node, "strides", count, 1)
  local dilations = per_axis(node, "dilations", count, 1)
  local sizes, pads = transposed_sizes(node, x, reaches_of(kernel, dilations), strides)
  for _, pair in ipairs(pads) do
    if pair[1] < 0 or pair[2] < 0 then node:fail("an output_padding as large as the stride is not supported") end
  end
  if count == 3 then
    return with_bias(node, volumes.transposed(node, x, filter, {
      sizes = sizes, strides = strides, dilations = dilations, groups = groups, pads = pads,
    }), count, "bias")
  end
  if count == 1 then x, filter = as_image(node, x, "image"), as_image(node, filter, "filter") end
  local height, width = unpack(with_height(1, sizes))
  local image = node:apply("conv2d_input_grad", { x, filter }, {
    shape = { x.shape[0], filter.shape[1] * groups, height, width }, strides = with_height(1, strides),
    dilations = with_height(1, dilations), groups = groups, padding = windows.listed(pads, 4, 2),
  })
  return with_bias(node, image, count, "bias")
end

-- ---- pooling ------------------------------------------------------------------------------------------------------

-- Pads that also make place for windows which stick out behind the image, as ceil_mode has them: all that begin in it
-- or before it.
local function ceiled(sizes, reaches, strides, pads)
  local list = {}
  for i, size in ipairs(sizes) do
    local before, after = pads[i][1], pads[i][2]
    local count = math.ceil((size + before + after - reaches[i]) / strides[i]) + 1
    if (count - 1) * strides[i] >= size + before then count = count - 1 end
    list[i] = { before, math.max(after, (count - 1) * strides[i] + reaches[i] - size - before) }
  end
  return list
end

-- What a node says of its windows: kernel, strides, dilations, reaches and sizes with a number for each axis of places,
-- and pads, those it `said` and those there are with what sticks out.
local function windows_of(node, x, most)
  local count = place_axes(node, x, most)
  node:need(node:ints("kernel_shape"), "kernel_shape")
  local w = { kernel = per_axis(node, "kernel_shape", count, 1), strides = per_axis(node, "strides", count, 1),
              dilations = per_axis(node, "dilations", count, 1), sizes = places_of(x), count = count }
  w.reaches, w.is_dilated = reaches_of(w.kernel, w.dilations), false
  for _, dilation in ipairs(w.dilations) do w.is_dilated = w.is_dilated or dilation ~= 1 end
  w.said = pads_of(node, w.sizes, w.reaches, w.strides)
  w.pads = node:int("ceil_mode", 0) ~= 0 and ceiled(w.sizes, w.reaches, w.strides, w.said) or w.said
  for i, size in ipairs(w.sizes) do
    if size + w.pads[i][1] + w.pads[i][2] < w.reaches[i] then
      node:fail(("a window that reaches over %d places does not fit axis %d, which has %d"):format(w.reaches[i], i + 1,
        size + w.pads[i][1] + w.pads[i][2]), "shape_mismatch")
    end
  end
  return w
end

local kMostFolded = 1024  -- parts of an axis, each of which is an op

-- A window of any kind, where no op does: along one axis after the other, from the last on, the i-th numbers of all
-- windows are a part of the axis with holes, and `fold(parts, i, axis)` gives one value out of these lists of parts.
-- `values` are all treated alike, and padded by their own number in `fills`.
local function folded_windows(node, values, fills, w, fold)
  for i = w.count, 1, -1 do
    if w.kernel[i] > kMostFolded then
      node:fail(("a window of %d places is not supported where it is folded, only of %d"):format(w.kernel[i],
        kMostFolded))
    end
    local axis, parts = i + 1, {}
    local length = w.sizes[i] + w.pads[i][1] + w.pads[i][2]
    local count = math.floor((length - w.reaches[i]) / w.strides[i]) + 1
    for v, value in ipairs(values) do
      local rank, paddings = #value.shape, {}
      for j = 1, 2 * rank do paddings[j] = 0 end
      paddings[2 * axis + 1], paddings[2 * axis + 2] = unpack(w.pads[i])
      if w.pads[i][1] + w.pads[i][2] > 0 then
        value = node:apply("pad", { value }, { paddings = paddings, constant_value = fills[v] }, "pad_" .. axis)
      end
      parts[v] = {}
      for k = 1, w.kernel[i] do
        local start, stop, step = {}, value.shape:table(), {}
        for j = 1, rank do start[j], step[j] = 0, 1 end
        start[axis + 1], step[axis + 1] = (k - 1) * w.dilations[i], w.strides[i]
        stop[axis + 1] = start[axis + 1] + (count - 1) * w.strides[i] + 1
        parts[v][k] = node:apply("strided_slice", { value }, { start = start, stop = stop, step = step },
          ("part_%d_%d"):format(axis, k))
      end
    end
    values = fold(parts, i, axis, count)
  end
  return values
end

local function folded(node, op, parts, word)
  local result = parts[1]
  for k = 2, #parts do result = node:apply(op, { result, parts[k] }, nil, word .. "_" .. k) end
  return result
end

-- How many places of its image each window along an axis has, or of the pads too that the node says.
local function window_counts(w, i, count, counts_pads)
  local least = counts_pads and -w.said[i][1] or 0
  local most, list = w.sizes[i] - 1 + (counts_pads and w.said[i][2] or 0), {}
  for at = 0, count - 1 do
    local there = 0
    for k = 0, w.kernel[i] - 1 do
      local place = at * w.strides[i] - w.pads[i][1] + k * w.dilations[i]
      if place >= least and place <= most then there = there + 1 end
    end
    list[at + 1] = math.max(1, there)
  end
  return list
end


-- The largest of each window and, where `places` says of each number of x which one it is, that of the first such.
local function largest(node, x, places, w)
  local fill = dtypes.least[x.dtype] or -math.huge
  return unpack(folded_windows(node, { x, places }, { fill, 0 }, w, function(parts, _, axis)
    if not places then return { folded(node, "maximum", parts[1], "largest_" .. axis) } end
    local best, place = parts[1][1], parts[2][1]
    for k = 2, #parts[1] do
      local is_more = node:apply("greater", { parts[1][k], best }, nil, "is_more")
      best = node:apply("where", { is_more, parts[1][k], best }, nil, "largest_" .. axis)
      place = node:apply("where", { is_more, parts[2][k], place }, nil, "place_" .. axis)
    end
    return { best, place }
  end))
end

-- The sum of each window.
local function window_sums(node, x, w, after)
  return folded_windows(node, { x }, { 0 }, w, function(parts, i, axis, count)
    local sum = folded(node, "add", parts[1], "sum_" .. axis)
    return { after and after(sum, i, axis, count) or sum }
  end)[1]
end

local function averaged(node, x, w, counts_pads)
  return window_sums(node, x, w, function(sum, i, axis, count)
    local counts = node.array(window_counts(w, i, count, counts_pads), x.dtype)
    counts = node:along(counts, #x.shape, axis, "counts")
    return node:apply("divide", { sum, counts }, nil, "mean_" .. axis)
  end)
end

local function pooled(node, op, x, w, counts_pads)
  local pads = w.pads
  if w.count == 1 then x = as_image(node, x, "image") end
  if counts_pads then  -- then they are zeros of the image, and what sticks out still does not count
    x = node:apply("pad", { x }, { paddings = windows.listed(w.said, #x.shape, 2) }, "pad")
    pads = {}
    for i, pair in ipairs(w.pads) do pads[i] = { 0, pair[2] - w.said[i][2] } end
  end
  if w.count == 3 then
    return volumes.pool(node, op, x, { ksize = w.kernel, strides = w.strides, pads = pads })
  end
  return as_before(node, w.count, node:apply(op, { x }, {
    ksize = with_height(1, w.kernel), strides = with_height(1, w.strides), padding = windows.listed(pads, 4, 2),
  }))
end

-- Which number of x each one is, counted over all of it: row by row, or along the first axis of places first.
local function all_places(node, x, goes_down)
  local sizes = x.shape:table()
  local order, turned = {}, {}
  for i = 1, #sizes do order[i] = goes_down and i > 2 and #sizes + 2 - i or i - 1 end
  for i = 1, #sizes do turned[i] = sizes[order[i] + 1] end
  local range = node:apply("range", {}, { start = 0, stop = count_of(sizes), dtype = "int64" }, "places")
  if not goes_down then return node:reshape(range, sizes, "all_places") end
  return node:transpose(node:reshape(range, turned, "lines"), order, "all_places")
end

function operators.MaxPool(node)
  local x, goes_down = node:input(1), node:int("storage_order", 0) ~= 0
  local w = windows_of(node, x, 3)
  if node:is_wanted(2) then return largest(node, x, all_places(node, x, goes_down), w) end
  if w.is_dilated or not node.is_floating(x) then return (largest(node, x, nil, w)) end
  return pooled(node, "max_pool2d", x, w)
end

function operators.AveragePool(node)
  local x, counts_pads = node:input(1), node:int("count_include_pad", 0) ~= 0
  local w = windows_of(node, x, 3)
  if w.is_dilated then return averaged(node, x, w, counts_pads) end
  return pooled(node, "avg_pool2d", x, w, counts_pads)
end

-- The p-th root of a sum of p-th powers: of each window, or of all places.
local function power_and_root(node, p)
  if p == 2 then return function(x) return node:apply("square", { x }, nil, "square") end, "sqrt" end
  return function(x)
    local size = node:apply("abs", { x }, nil, "abs")
    return p == 1 and size or node:apply("pow", { size, node:filled(p, x.dtype) }, nil, "power")
  end
end

local function root_of(node, sum, p, root)
  if p == 1 then return sum end
  return root and node:apply(root, { sum }) or node:apply("pow", { sum, node:filled(1 / p, sum.dtype) })
end

function operators.LpPool(node)
  local x, p = node:input(1), node:int("p", 2)
  local power, root = power_and_root(node, p)
  return root_of(node, window_sums(node, power(x), windows_of(node, x, 3)), p, root)
end

local function axes_of_places(node, x)
  local axes = {}
  for axis = 2, #x.shape - 1 do axes[#axes + 1] = axis end
  if #axes == 0 then node:fail("its input has no axis of places", "shape_mismatch") end
  return axes
end

function operators.GlobalLpPool(node)
  local x, p = node:input(1), node:int("p", 2)
  local axes = axes_of_places(node, x)
  local power, root = power_and_root(node, p)
  return root_of(node, node:apply("reduce_sum", { power(x) }, { axis = axes, keepdims = true }, "sum"), p, root)
end

-- Puts what a MaxPool took back to where it was, into zeros. The places count over all of the pool's input. Where that
-- was larger than the windows reach, the standard counts otherwise than those do who write such files.
function operators.MaxUnpool(node)
  local x, places, wanted = node:input(1), node:input(2), node:numbers(3)
  local count = place_axes(node, x, 3)
  node:need(node:ints("kernel_shape"), "kernel_shape")
  local kernel, strides = per_axis(node, "kernel_shape", count, 1), per_axis(node, "strides", count, 1)
  local pads, sizes = per_axis(node, "pads", 2 * count, 0), x.shape:table()
  local shape = { sizes[1], sizes[2] }
  for i = 1, count do
    shape[i + 2] = (sizes[i + 2] - 1) * strides[i] + kernel[i] - pads[i] - pads[count + i]
  end
  local said, own = table.concat(wanted or shape, ", "), table.concat(shape, ", ")
  if said ~= own then
    node:fail(("output_shape is (%s), and only what its windows reach, (%s), is supported"):format(said, own))
  end
  local total = x.shape:count()
  local flat = node:apply("tensor_scatter_nd_update", { node:filled(0, x.dtype, { count_of(shape) }),
    node:reshape(places, { total, 1 }, "places"), node:reshape(x, { total }, "numbers") }, nil, "put")
  return node:reshape(flat, shape)
end

local function over_places(op)
  return function(node)
    local x = node:input(1)
    return node:apply(op, { x }, { axis = axes_of_places(node, x), keepdims = true })
  end
end
operators.GlobalAveragePool = over_places("reduce_mean")
operators.GlobalMaxPool = over_places("reduce_max")

-- ---- normalisation ------------------------------------------------------------------------------------------------

function operators.BatchNormalization(node)
  node:ignore("momentum", "is_test")
  if node:int("training_mode", 0) ~= 0 or node.opset < 7 and node:int("is_test", 0) == 0 then
    node:fail("it is that of training; export the model in its eval mode")
  end
  if node.opset < 9 then node:expect("spatial", "i", 1) end
  local inputs = {}
  for i = 1, 5 do inputs[i] = node:input(i) end
  return (node:apply("batch_norm_infer", inputs, { axis = 1, epsilon = node:float("epsilon", 1e-5) }))
end

-- One number for each channel, on axis 1 of `rank`.
local function on_channels(node, value, rank, word)
  local sizes = { value.shape:count() }
  for i = 2, rank - 1 do sizes[i] = 1 end
  return node:reshape(value, sizes, word)
end

-- x * scale + bias, for each channel.
local function scaled_by_channel(node, x, scale, bias)
  local rank = #x.shape
  local product = node:multiply(x, on_channels(node, scale, rank, "scale"), "product")
  return node:add(product, on_channels(node, bias, rank, "shift"))
end

-- Rows of mean 0 and variance 1; a row is everything from `axis` on.
local function normal_rows(node, x, axis, epsilon, word)
  return (node:apply("layer_norm_core", { x, false, false }, { begin_norm_axis = axis, epsilon = epsilon }, word))
end

function operators.InstanceNormalization(node)
  local normal = normal_rows(node, node:input(1), 2, node:float("epsilon", 1e-5), "normal")
  return scaled_by_channel(node, normal, node:input(2), node:input(3))
end

-- Opset 18 has a scale for each group, and from 21 on there is one for each channel.
function operators.GroupNormalization(node)
  node:ignore("stash_type")
  local x, scale, bias, groups = node:input(1), node:input(2), node:input(3), node:int("num_groups")
  local sizes = x.shape:table()
  if #sizes < 2 or not groups or groups < 1 or sizes[2] % groups ~= 0 then
    node:fail(("%s groups of the channels of %s"):format(tostring(groups), tostring(x.shape)), "shape_mismatch")
  end
  local width = count_of({ unpack(sizes, 2) }) / groups
  local grouped = node:reshape(x, { sizes[1], groups, width }, "grouped")
  local normal = normal_rows(node, grouped, 2, node:float("epsilon", 1e-5), "normal")
  if node.opset < 21 then return node:reshape(scaled_by_channel(node, normal, scale, bias), sizes, "shape") end
  return scaled_by_channel(node, node:reshape(normal, sizes, "apart"), scale, bias)
end

-- The means and deviations of the rows are outputs too, each of size 1 where x has what is normalised over.
function operators.LayerNormalization(node)
  local x, stash = node:input(1), node:dtype("stash_type", "float32")  -- they are computed in float32 or wider
  local sizes = x.shape:table()
  local axis = node:axis_of(node:int("axis", -1), #sizes)
  local row, beside = { unpack(sizes, axis + 1) }, { unpack(sizes, 1, axis) }
  for i = axis + 1, #sizes do beside[i] = 1 end
  local width = count_of(row)
  local function parameter(i, word)
    local value = node:optional(i)
    return value and node:reshape(node:spread(value, row, word .. "_row"), { width }, word)
  end
  local flat = node:flattened(x, axis, "rows")
  local y, mean, inv_std = node:apply("layer_norm_core", { flat, parameter(2, "scale") or false,
    parameter(3, "bias") or false }, { begin_norm_axis = 1, epsilon = node:float("epsilon", 1e-5) })
  local function statistic(i, value, word)
    return node:is_wanted(i) and node:cast(node:reshape(value, beside, word), stash, word .. "_stash") or nil
  end
  return node:reshape(y, sizes, "shape"), statistic(2, mean, "mean"), statistic(3, inv_std, "inv_std")
end

-- Zhang and Sennrich, 2019: x / sqrt(mean(x^2) + epsilon) * scale, over the axes from `axis` on.
function operators.RMSNormalization(node)
  node:ignore("stash_type")
  local x = node:input(1)
  local row = node:apply("layer_norm_core", { x, false, false }, {
    begin_norm_axis = node:axis_of(node:int("axis", -1), #x.shape), epsilon = node:float("epsilon", 1e-5),
    centred = false }, "row")
  return node:multiply(row, node:input(2))
end

function operators.LRN(node)
  local x, size = node:input(1), node:need(node:int("size"), "size")
  if size < 1 or size > 1024 then node:fail("size = " .. size .. " is not supported") end
  return respond(node, x, { size = size, before = math.floor((size - 1) / 2), alpha = node:float("alpha", 1e-4),
                            beta = node:float("beta", 0.75), bias = node:float("bias", 1) })
end

return operators
