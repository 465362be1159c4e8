--- Layers of quantised models in bytes: convolutions and products whose values and weights are whole numbers of 8 bits,
--- as ops that sum them exactly; and which of the nodes behind such a layer are part of its op.
-- A layer is a function `ended(scale, bias, out)` that gives its sums times `scale` (one number, or one of each filter)
-- plus `bias` (one of each filter, or none), in float32 or as the bytes that `out` says; without a scale the sums
-- themselves, in int32. All of it gives nil where there is no op for what a node computes.

local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local onnx_layers = require "moonflow.onnx.layers"

local in_bytes = {}

local is_byte = { int8 = true, uint8 = true }

local function is_array(value) return arguments.kind(value) == "ndarray" end

local function is_line(value, count) return #value.shape == 1 and value.shape[0] == count end

-- The number that all of a zero point are, or nil where they differ or only a run knows them; 0 where it is left out.
local function number_of(node, zero)
  if zero == nil then return 0 end
  if not is_array(zero) or zero.shape:count() == 0 then return nil end
  local list = node.list_of(zero)
  for _, number in ipairs(list) do
    if number ~= list[1] then return nil end
  end
  return list[1]
end

--- The bytes about a zero point as a layer gives them, or nil where only a run knows it.
function in_bytes.about(node, zero, dtype)
  local number = number_of(node, zero)
  if zero and zero.shape:count() ~= 1 or not is_byte[dtype] then return nil end
  return number and { dtype = dtype, zero = number }
end

-- ---- layers -------------------------------------------------------------------------------------------------------

-- Bytes as int8.
local function signed(node, bytes, word)
  if bytes.dtype == "int8" then return bytes end
  return node:cast(node:add(node:cast(bytes, "float32", word .. "_wide"), -128, word .. "_moved"), "int8", word)
end

-- What the file knows of weights, in int8, and one zero point for each place along their axis or none where all are 0;
-- nil where only a run knows them.
local function known_weights(node, weights, zero, axis)
  local count = weights.shape[axis]
  if not is_array(weights) or not is_byte[weights.dtype] or weights.shape:count() == 0 then return nil end
  if zero == nil then zero = node:filled(0, weights.dtype) end
  if not is_array(zero) or zero.dtype ~= weights.dtype then return nil end
  if zero.shape:count() ~= 1 and not is_line(zero, count) then return nil end
  local is_zero = number_of(node, zero) == (weights.dtype == "int8" and 0 or 128)
  if not is_zero then
    zero = node:spread(node:reshape(signed(node, zero, "weights_zero"), { zero.shape:count() }), { count })
  end
  return signed(node, weights, "weights"), not is_zero and zero or nil
end

-- More terms of a sum than these 32 bits may not hold: of weights, and of such with a zero point.
local kMostTerms, kMostMovedTerms = 65536, 32768

-- A layer of so many terms a sum. `apply(inputs, attrs)` applies its op to the inputs behind the weights.
local function layer(node, x, x_zero, weights_zero, filters, terms, apply)
  if not node.reading.in_bytes or not is_byte[x.dtype] then return nil end
  if terms < 1 or terms > (weights_zero and kMostMovedTerms or kMostTerms) then return nil end
  if x_zero and (x_zero.shape:count() ~= 1 or x_zero.dtype ~= x.dtype) then return nil end
  local number = number_of(node, x_zero)
  local zero = not number and node:reshape(x_zero, {}, "zero")
  return function(scale, bias, out)
    local sizes = scale and (scale.shape:count() == 1 and {} or { filters })
    return apply({
      scale and node:reshape(scale, sizes, "scale") or false, bias or false, zero or false, weights_zero or false,
    }, { zero_point = number or 0, dtype = out and out.dtype or not scale and "int32" or nil,
         out_zero_point = out and out.zero })
  end
end

--- A convolution, whose filters are on the first axis of its weights.
function in_bytes.convolution(node, x, x_zero, weights, weights_zero)
  if #x.shape < 3 or #x.shape > 4 or #x.shape ~= #weights.shape then return nil end
  local filter, zero = known_weights(node, weights, weights_zero, 0)
  if not filter then return nil end
  local filters, groups = filter.shape[0], node:int("group", 1)
  local terms = filter.shape:count() / filters
  if zero and groups > 1 and groups == x.shape[1] and groups == filters then return nil end
  return layer(node, x, x_zero, zero, filters, terms, function(others, attrs)
    return onnx_layers.Conv(node:taking { x, filter }, nil, function(_, image, taps, windows)
      for name, value in pairs(attrs) do windows[name] = value end
      return node:apply("quantized_conv2d", { image, taps, unpack(others) }, windows)
    end)
  end)
end

--- A product of rows by a matrix, (in, units) or `is_turned`.
function in_bytes.product(node, x, x_zero, weights, weights_zero, is_turned)
  if #x.shape < 1 or #weights.shape ~= 2 then return nil end
  local matrix, zero = known_weights(node, weights, weights_zero, is_turned and 0 or 1)
  if not matrix then return nil end
  if not is_turned then matrix = node:transpose(matrix, { 1, 0 }, "weights_turned") end
  if x.shape[#x.shape - 1] ~= matrix.shape[1] then return nil end
  return layer(node, x, x_zero, zero, matrix.shape[0], matrix.shape[1], function(others, attrs)
    return node:apply("quantized_dense", { x, matrix, unpack(others) }, attrs)
  end)
end

-- ---- what is part of them -----------------------------------------------------------------------------------------

-- Of each value that such a layer gives it is known how it would give another one: by `ended`, with the scale and bias
-- that it has, about the axis of its filters. `is_positive`: it has gone through a relu.
local function noted(node, y, layer_of)
  node.reading.layers_in_bytes[y] = layer_of
  return y
end

local function changed(layer_of, changes)
  local copy = {}
  for name, value in pairs(layer_of) do copy[name] = value end
  for name, value in pairs(changes) do copy[name] = value end
  return copy
end

--- The value of a layer with filters on an axis of it, and with this scale and bias; its sums without them.
function in_bytes.value(node, ended, axis, scale, bias)
  local y = ended(scale, bias)
  return noted(node, y, { ended = ended, axis = axis, filters = y.shape[axis], scale = scale, bias = bias })
end

-- The layer whose value is the i-th input, where nobody else wants it.
local function layer_behind(node, i)
  local layer_of = node.reading.layers_in_bytes[node:input(i)]
  return layer_of and node:is_sole_reader(i) and layer_of or nil
end

--- The i-th input as bytes, each worth `step`.
function in_bytes.bytes(node, i, step, out)
  local layer_of = out and layer_behind(node, i)
  if not layer_of or not layer_of.scale then return nil end
  -- Bytes whose least one stands for zero have nothing below it.
  if layer_of.is_positive and out.zero ~= dtypes.least[out.dtype] then return nil end
  local function in_places(value) return value and node:apply("divide", { value, step }, nil, "in_places") end
  return layer_of.ended(in_places(layer_of.scale), in_places(layer_of.bias), out)
end

--- `y`, which is a relu of the first input.
function in_bytes.positive(node, y)
  local layer_of = layer_behind(node, 1)
  return layer_of and layer_of.scale and noted(node, y, changed(layer_of, { is_positive = true })) or y
end

--- The first input, which are sums, in floats.
function in_bytes.floats(node)
  local layer_of = layer_behind(node, 1)
  if not layer_of or layer_of.scale then return nil end
  return in_bytes.value(node, layer_of.ended, layer_of.axis, node:filled(1, "float32"))
end

-- A value that broadcasts along the filters of y alone, as one number or a line; nil where it does not.
local function line_of(node, value, y, layer_of, word)
  local sizes, rank = value.shape:table(), #y.shape
  if value.dtype ~= "float32" or #sizes > rank then return nil end
  if value.shape:count() == 1 then return node:reshape(value, {}, word) end
  for i, size in ipairs(sizes) do
    if size ~= (rank - #sizes + i - 1 == layer_of.axis and layer_of.filters or 1) then return nil end
  end
  return node:reshape(value, { layer_of.filters }, word)
end

-- The sum or product of both inputs, of which either may come from a layer.
local function of_two(node, change)
  for i = 1, 2 do
    local layer_of = layer_behind(node, i)
    if layer_of and layer_of.scale and not layer_of.bias and not layer_of.is_positive then
      local line = line_of(node, node:input(3 - i), node:input(i), layer_of, "line")
      if line then return change(layer_of, line) end
    end
  end
end

function in_bytes.scaled(node)
  return of_two(node, function(layer_of, line)
    local is_one = is_array(layer_of.scale) and number_of(node, layer_of.scale) == 1
    local scale = is_one and line or node:multiply(layer_of.scale, line, "scales")
    return in_bytes.value(node, layer_of.ended, layer_of.axis, scale)
  end)
end

function in_bytes.with_bias(node)
  return of_two(node, function(layer_of, line)
    local bias = node:spread(line, { layer_of.filters }, "bias")
    return in_bytes.value(node, layer_of.ended, layer_of.axis, layer_of.scale, bias)
  end)
end

return in_bytes
