--- The ops over images as ONNX has them, which keeps channels on axis 1: a table as that of export_ops.

local core = require "moonflow.core"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np"
local types = require "moonflow.onnx.types"
local windows = require "moonflow.formulas.windows"

local ops = {}

-- Channels last for ONNX, and back: a permutation of the axes.
local function perm_to_first(rank)
  local perm = { 0, rank - 1 }
  for axis = 1, rank - 2 do perm[#perm + 1] = axis end
  return perm
end

local function perm_to_last(rank)
  local perm = { 0 }
  for axis = 2, rank - 1 do perm[#perm + 1] = axis end
  perm[#perm + 1] = 1
  return perm
end

local function is_last(w) return w.attrs.data_format:sub(-1) == "C" and #w.attrs.data_format > 2 end

-- The name of an image or filter with channels on axis 1, and its sizes in that order.
local function channels_first(w, i, word)
  local sizes = w:sizes(i)
  if not is_last(w) then return w:input(i), sizes end
  local perm, turned = perm_to_first(#sizes), {}
  for k, axis in ipairs(perm) do turned[k] = sizes[axis + 1] end
  return w:emit("Transpose", { w:input(i) }, { perm = { ints = perm } }, word), turned
end

local function places(w, sizes, from_last)
  if from_last and is_last(w) then return { unpack(sizes, 2, #sizes - 1) } end
  return { unpack(sizes, 3) }
end

local function per_axis(list, count)
  local all = {}
  for i = 1, count do all[i] = list[#list == 1 and 1 or i] end
  return all
end

-- The pads before each axis of places, of windows that go from `large` to `small` places.
local function pads_before(w, count, large, small, reaches, strides)
  local pads, before = windows.pairs_of(w.attrs.pads, count, is_last(w) and 1 or 2), {}
  for i = 1, count do
    if pads then
      before[i] = pads[i][1]
    elseif w.attrs.padding == "VALID" then
      before[i] = 0
    else
      before[i] = windows.split(math.max(0, (small[i] - 1) * strides[i] + reaches[i] - large[i]), w.attrs.padding)
    end
  end
  return before
end

-- Attributes of a node whose windows go from `large` to `small` places, with pads that leave just these.
local function window_attributes(w, kernel, large, small, strides, dilations)
  local count, reaches, pads = #kernel, {}, {}
  for i = 1, count do reaches[i] = (kernel[i] - 1) * dilations[i] + 1 end
  local before = pads_before(w, count, large, small, reaches, strides)
  local extra, has_extra = {}, false
  for i = 1, count do
    local after = (small[i] - 1) * strides[i] + reaches[i] - large[i] - before[i]
    pads[i], pads[count + i], extra[i] = before[i], math.max(0, after), math.max(0, -after)
    has_extra = has_extra or extra[i] > 0
  end
  return { kernel_shape = { ints = kernel }, strides = { ints = strides }, pads = { ints = pads } },
    has_extra and extra or nil
end

-- What has been emitted with channels on axis 1, as the op gives it. `emit(word)` emits it.
local function back(w, emit)
  if not is_last(w) then return emit() end
  local _, sizes = w:result()
  return w:emit("Transpose", { emit("first") }, { perm = { ints = perm_to_last(#sizes) } })
end

-- `step`: the word of a step on the way, if it is one; `factors` gives names for those of image and filter, and what
-- else `operator` takes, which is Conv where nothing is said.
local function convolution(w, step, factors, operator)
  local x, x_sizes = channels_first(w, 1, "image")
  local filter, filter_sizes = channels_first(w, 2, "filter")
  local inputs = factors and { factors(x, filter) } or { x, filter }
  local _, result = w:result()
  local kernel = { unpack(filter_sizes, 3) }
  local strides, dilations = per_axis(w.attrs.strides, #kernel), per_axis(w.attrs.dilations, #kernel)
  local attributes = window_attributes(w, kernel, { unpack(x_sizes, 3) }, places(w, result, true), strides, dilations)
  attributes.dilations, attributes.group = { ints = dilations }, { i = w.attrs.groups }
  return back(w, function(word) return w:emit(operator or "Conv", inputs, attributes, word or step) end)
end
function ops.conv2d(w) return convolution(w) end
ops.conv1d = ops.conv2d

-- What stands for zero in x, and in filters: the name of a number, and of one of each or nil.
local function zeros_of(w)
  return w:has(5) and w:input(5) or w:number(w.attrs.zero_point, w:dtype(1)), w:has(6) and w:input(6) or nil
end

-- Places of a layer of bytes from their sums in floats, by a scale and a bias that broadcast to them: `beside(i, word)`
-- gives the i-th input so.
local function from_sums(w, y, beside)
  local dtype = w:result()
  local is_rounded = dtype ~= "float32"
  y = w:emit("Mul", { y, beside(3, "scales") }, nil, (w:has(4) or is_rounded) and "scaled" or nil)
  if w:has(4) then y = w:emit("Add", { y, beside(4, "biases") }, nil, is_rounded and "moved" or nil) end
  local one = w:number(1, "float32")
  return is_rounded and w:emit("QuantizeLinear", { y, one, w:number(w.attrs.out_zero_point, dtype) }) or y
end

-- Of places that are worth 1 each, whose sums are scaled: whoever computes so has the bytes as they are.
function ops.quantized_conv2d(w)
  local zero, filter_zero = zeros_of(w)
  local dtype, sizes = w:result()
  if dtype == "int32" then
    return convolution(w, nil, function(x, filter) return x, filter, zero, filter_zero end, "ConvInteger")
  end
  local one = w:number(1, "float32")
  local y = convolution(w, "sums", function(x, filter)
    local worth = filter_zero and w:array(np.ones(w:sizes(6)), "filter_scale") or one
    return w:emit("DequantizeLinear", { x, one, zero }, nil, "x"),
      w:emit("DequantizeLinear", { filter, worth, filter_zero }, filter_zero and { axis = { i = 0 } },
        "filter_in_floats")
  end)
  local line = {}
  for i = 1, #sizes do line[i] = 1 end
  line[is_last(w) and #sizes or 2] = -1
  return from_sums(w, y, function(i, word) return w:emit("Reshape", { w:input(i), w:ints(line) }, nil, word) end)
end

function ops.dynamic_quantize(w) return w:emit("DynamicQuantizeLinear", { w:input(1) }, nil, nil, 3) end

function ops.quantized_dense(w)
  local zero, weight_zero = zeros_of(w)
  local weight = w:emit("Transpose", { w:input(2) }, { perm = { ints = { 1, 0 } } }, "weight")
  local is_sums = w:result() == "int32"
  local y = w:emit("MatMulInteger", { w:input(1), weight, zero, weight_zero }, nil, not is_sums and "sums" or nil)
  if is_sums then return y end
  y = w:emit("Cast", { y }, { to = types.attribute("float32") }, "in_floats")
  return from_sums(w, y, function(i) return w:input(i) end)
end

-- From few places to many: what the pads leave over is an output_padding.
local function transposed(w)
  local x, x_sizes = channels_first(w, 1, "image")
  local filter, filter_sizes = channels_first(w, 2, "filter")
  local _, result = w:result()
  local kernel = { unpack(filter_sizes, 3) }
  local strides, dilations = per_axis(w.attrs.strides, #kernel), per_axis(w.attrs.dilations, #kernel)
  local attributes, extra = window_attributes(w, kernel, places(w, result, true), { unpack(x_sizes, 3) }, strides,
    dilations)
  attributes.dilations, attributes.group = { ints = dilations }, { i = w.attrs.groups }
  attributes.output_padding = extra and { ints = extra } or nil
  return back(w, function(word) return w:emit("ConvTranspose", { x, filter }, attributes, word) end)
end
ops.conv2d_input_grad, ops.conv1d_input_grad = transposed, transposed

-- Attributes of a pool of an image of these sizes, with channels on axis 1, that has so many places.
local function pool_attributes(w, sizes, small)
  local kernel = per_axis(w.attrs.ksize, #sizes - 2)
  local strides = #w.attrs.strides > 0 and per_axis(w.attrs.strides, #kernel) or kernel
  return (window_attributes(w, kernel, { unpack(sizes, 3) }, small, strides, per_axis({ 1 }, #kernel)))
end

local function pooling(operator)
  return function(w)
    local x, sizes = channels_first(w, 1, "image")
    local _, result = w:result()
    local attributes = pool_attributes(w, sizes, places(w, result, true))
    return back(w, function(word) return w:emit(operator, { x }, attributes, word) end)
  end
end
ops.max_pool2d = pooling("MaxPool")
ops.avg_pool2d = pooling("AveragePool")

-- dy and x: each dy is added where the largest of its window stands, counted over all of x.
function ops.max_pool2d_grad(w)
  local x, sizes = channels_first(w, 2, "image")
  local dy, small = channels_first(w, 1, "dy")
  local _, largest = w:emit("MaxPool", { x }, pool_attributes(w, sizes, { unpack(small, 3) }), "pool", 2)
  local count = 1
  for _, size in ipairs(sizes) do count = count * size end
  local zeros = { value = { t = core.array({ 0 }, w:dtype(1)) } }
  local sums = w:emit("ScatterND", {
    w:emit("ConstantOfShape", { w:ints { count } }, zeros, "zeros"),
    w:emit("Reshape", { largest, w:ints { -1, 1 } }, nil, "places"),
    w:emit("Reshape", { dy, w:ints { -1 } }, nil, "list"),
  }, { reduction = { s = "add" } }, "sums")
  return back(w, function(word) return w:emit("Reshape", { sums, w:ints(sizes) }, nil, word) end)
end

function ops.upsample_2d(w)
  local x, sizes = channels_first(w, 1, "image")
  local size, attrs = per_axis(w.attrs.size, 2), w.attrs
  local mode = attrs.interpolation == "nearest" and "nearest" or "linear"
  local where = mode == "nearest" and "asymmetric" or attrs.align_corners and "align_corners" or "half_pixel"
  local wanted = w:ints { sizes[1], sizes[2], sizes[3] * size[1], sizes[4] * size[2] }
  return back(w, function(word)
    return w:emit("Resize", { x, "", "", wanted }, {
      mode = { s = mode }, coordinate_transformation_mode = { s = where }, nearest_mode = { s = "floor" },
    }, word)
  end)
end

-- Each new place is a sum of old ones, so the axis is multiplied by a matrix: that into which the op makes the unit
-- matrix.
function ops.resample_axis(w)
  local sizes, attrs = w:sizes(1), w.attrs
  local axis, rank = w:axis(attrs.axis, #sizes), #sizes
  local of_rows = { axis = 0 }
  for name, value in pairs(attrs) do of_rows[name] = of_rows[name] or value end
  local unit = np.eye(sizes[axis + 1], { dtype = w:dtype(1) })
  local matrix = ndarray.evaluate("resample_axis", { unit }, of_rows)
  if axis == rank - 1 then
    return w:emit("MatMul", { w:input(1), w:array(matrix:transpose(), "weights") })
  end
  local perm, x = {}, w:input(1)
  for i = 1, rank do perm[i] = i - 1 end
  perm[axis + 1], perm[rank - 1] = rank - 2, axis
  if axis == rank - 2 then return w:emit("MatMul", { w:array(matrix, "weights"), x }) end
  x = w:emit("Transpose", { x }, { perm = { ints = perm } }, "turned")
  x = w:emit("MatMul", { w:array(matrix, "weights"), x }, nil, "product")
  return w:emit("Transpose", { x }, { perm = { ints = perm } })
end

function ops.grid_sample(w)
  local attrs = w.attrs
  return w:emit("GridSample", { w:input(1), w:input(2) }, {
    mode = { s = attrs.mode }, padding_mode = { s = attrs.padding_mode },
    align_corners = { i = attrs.align_corners and 1 or 0 },
  })
end

-- A bias goes into the convolution or the product before it, if it has its dtype: one of float32 is cast for others.
function ops.bias_add(w)
  local sizes, dtype = w:sizes(1), w:dtype(1)
  local is_alike = w:dtype(2) == dtype
  local node = not is_last(w) and w:maker(1, "Conv") or #sizes == 2 and w:maker(1, "Gemm")
  if node and is_alike and not node.inputs[3] and w.given[w.op.inputs[2]] then
    node.inputs[3] = w:input(2)
    return node.outputs[1]
  end
  local bias = w:input(2)
  if not is_alike then bias = w:emit("Cast", { bias }, { to = types.attribute(dtype) }, "bias") end
  if #sizes > 2 and not is_last(w) then
    local shape = { sizes[2] }
    for i = 2, #sizes - 1 do shape[i] = 1 end
    bias = w:emit("Reshape", { bias, w:ints(shape) }, nil, "bias_of_channels")
  end
  return w:emit("Add", { w:input(1), bias })
end

function ops.batch_norm_infer(w)
  local rank = #w:sizes(1)
  local axis, inputs = w:axis(w.attrs.axis, rank), w:inputs()
  local attributes = { epsilon = { f = w.attrs.epsilon } }
  if axis == 1 then return w:emit("BatchNormalization", inputs, attributes) end
  if rank == 1 then w:fail("has no axis beside that of the channels") end
  local perm, back_again = {}, {}
  for i = 0, rank - 1 do
    if i ~= axis then perm[#perm + 1] = i end
  end
  table.insert(perm, 2, axis)
  for place, i in ipairs(perm) do back_again[i + 1] = place - 1 end
  inputs[1] = w:emit("Transpose", { inputs[1] }, { perm = { ints = perm } }, "first")
  local normal = w:emit("BatchNormalization", inputs, attributes, "normal")
  return w:emit("Transpose", { normal }, { perm = { ints = back_again } })
end

return ops
