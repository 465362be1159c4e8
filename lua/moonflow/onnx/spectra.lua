--- ONNX operators of spectra, DFT and STFT: a table from an operator's name to the function that applies it to a node.
-- A transform is a product with a matrix of sines and cosines, which is made when the job is traced. Complex numbers
-- are pairs along a last axis, which has size 1 where all are real.

local onnx_layers = require "moonflow.onnx.layers"

local operators = {}

-- The weight that part `from` of the element at `place` has in part `to` of the frequency `k`, of which there are
-- `size`, parts being 0 for real and 1 for imaginary: that of exp(-2 pi i k place / size), or of its inverse.
local function weights(size, is_inverse)
  local cosines, sines, sign = {}, {}, is_inverse and 1 or -1
  for i = 0, size - 1 do
    local angle = 2 * math.pi * i / size
    cosines[i], sines[i] = math.cos(angle), sign * math.sin(angle)
  end
  local scale = is_inverse and 1 / size or 1
  return function(place, from, k, to)
    local turn = k * place % size
    if from == to then return cosines[turn] * scale end
    return (to == 1 and sines[turn] or -sines[turn]) * scale
  end
end

-- How many frequencies are given: the others of real numbers mirror them.
local function frequencies(node, size, default, parts)
  if node:int("onesided", default) == 0 then return size end
  if parts ~= 1 then node:fail("onesided = 1 of complex numbers is not supported") end
  return math.floor(size / 2) + 1
end

local function check_size(node, size)
  if not size or size < 1 then node:fail("its length is " .. tostring(size) .. ", wanted 1 or more", "out_of_range") end
end

-- Cut or filled up with zeros, along the axis before the last.
local function of_length(node, x, size)
  local axis, sizes = #x.shape - 2, x.shape:table()
  local have = sizes[axis + 1]
  if size < have then return node:cut(x, axis, 0, size, "cut") end
  if size == have then return x end
  sizes[axis + 1] = size - have
  return node:apply("concat", { x, node:filled(0, x.dtype, sizes) }, { axis = axis }, "filled")
end

function operators.DFT(node)
  local x = node:input(1)
  local rank, is_new = #x.shape, node.opset >= 20
  local axis = node:axis_of(is_new and (node:number(3) or -2) or not is_new and node:int("axis", 1), rank)
  local parts = x.shape[rank - 1]
  if axis == rank - 1 or parts > 2 then
    node:fail(("axis %d of %s, whose last axis must be of 1 or 2 parts"):format(axis, tostring(x.shape)),
      "shape_mismatch")
  end
  local is_inverse = node:int("inverse", 0) ~= 0
  local is_mirrored = is_inverse and node:int("onesided", 0) ~= 0  -- from half a spectrum back to real numbers
  local size = node:number(2) or is_mirrored and 2 * (x.shape[axis] - 1) or x.shape[axis]
  check_size(node, size)
  local taken = is_mirrored and math.floor(size / 2) + 1 or size
  local count = is_mirrored and size or frequencies(node, size, 0, parts)
  local given = is_mirrored and 1 or 2
  node:check_list(taken * parts * count * given)
  local weight, list = weights(size, is_inverse), {}
  for place = 0, taken - 1 do
    local times = is_mirrored and place > 0 and 2 * place < size and 2 or 1
    for from = 0, parts - 1 do
      for k = 0, count - 1 do
        for to = 0, given - 1 do list[#list + 1] = times * weight(place, from, k, to) end
      end
    end
  end
  local matrix = node:reshape(node.array(list, x.dtype), { taken * parts, count * given }, "matrix")
  x = of_length(node, node:swapped(x, axis, rank - 2, "turned"), taken)
  local sizes = x.shape:table()
  sizes[rank - 1], sizes[rank] = count, given
  local y = node:apply("matmul", { node:flattened(x, rank - 2, "rows"), matrix }, {}, "product")
  return node:swapped(node:reshape(y, sizes, "parts"), axis, rank - 2)
end

-- One spectrum for each frame of a signal: a convolution with sines and cosines, under the window.
function operators.STFT(node)
  local x, step, window = node:input(1), node:need(node:number(2), "frame_step"), node:constant(3)
  local parts = #x.shape == 3 and x.shape[2] or 1
  if #x.shape > 3 or #x.shape < 2 or parts > 2 then
    node:fail("its signal is " .. tostring(x.shape) .. ", wanted (batch, length, 1 or 2)", "shape_mismatch")
  end
  local size = node:number(4) or window and window.shape:count()
  check_size(node, size)
  if window and window.shape:count() ~= size then
    node:fail(("its window has %d numbers for frames of %d"):format(window.shape:count(), size), "shape_mismatch")
  end
  local count = frequencies(node, size, 1, parts)
  node:check_list(size * parts * count * 2)
  local weight, heights, list = weights(size), window and node.list_of(window), {}
  for to = 0, 1 do
    for k = 0, count - 1 do
      for from = 0, parts - 1 do
        for place = 0, size - 1 do
          list[#list + 1] = weight(place, from, k, to) * (heights and heights[place + 1] or 1)
        end
      end
    end
  end
  local filter = node:reshape(node.array(list, x.dtype), { 2 * count, parts, size }, "filter")
  local batch, length = x.shape[0], x.shape[1]
  if parts == 2 then x = node:swapped(x, 1, 2, "channels") else x = node:reshape(x, { batch, 1, length }, "channel") end
  local y = onnx_layers.Conv(node:taking({ x, filter }, { strides = { ints = { step } } }))
  y = node:reshape(y, { batch, 2, count, y.shape[2] }, "parts")
  return node:transpose(y, { 0, 3, 2, 1 }, "spectra")
end

return operators
