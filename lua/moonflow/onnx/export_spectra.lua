--- The Fourier transforms as ONNX has them: a table as that of export_ops.

local core = require "moonflow.core"

local ops = {}

-- x (..., size, parts), transformed with exp(-2 pi i k n / size), or with exp(+...) and divided by the size.
local function transformed(w, x, axis, size, attributes, word)
  attributes.axis = { i = axis }
  return w:emit("DFT", { x, w:number(size, "int64") }, attributes, word)
end

local function scaled(w, x, factor, word)
  return factor == 1 and x or w:emit("Mul", { x, w:number(factor) }, nil, word)
end

-- What multiplies the frequencies, (floor(size / 2) + 1, 1).
local function weighted(w, x, factor, word)
  local size, edge, middle = w.attrs.size, factor * w.attrs.edge, factor * w.attrs.middle
  if edge == middle then return scaled(w, x, edge, word) end
  local list = {}
  for k = 0, math.floor(size / 2) do list[k + 1] = (k == 0 or 2 * k == size) and edge or middle end
  return w:emit("Mul", { x, w:array(core.array(list, w:dtype(1), { #list, 1 }), "weights") }, nil, word)
end

-- One row has no batch, which the operator wants.
local function in_batch(w, x, rank) return rank > 1 and x or w:emit("Unsqueeze", { x, w:ints { 0 } }, nil, "row") end
local function out_of_batch(w, x, rank) return rank > 1 and x or w:emit("Squeeze", { x, w:ints { 0 } }, nil, "rows") end

function ops.fft(w)
  local rank, attrs = #w:sizes(1) - 1, w.attrs
  local size = w:sizes(1)[rank]
  local x = transformed(w, in_batch(w, w:input(1), rank), math.max(rank, 2) - 1, size,
    { inverse = { i = attrs.inverse and 1 or 0 } }, "spectra")
  return out_of_batch(w, scaled(w, x, attrs.inverse and attrs.scale * size or attrs.scale, "scaled"), rank)
end

function ops.rfft(w)
  local rank = #w:sizes(1)
  local x = w:emit("Unsqueeze", { in_batch(w, w:input(1), rank), w:ints { -1 } }, nil, "real")
  x = transformed(w, x, math.max(rank, 2) - 1, w.attrs.size, { onesided = { i = 1 } }, "spectra")
  return out_of_batch(w, weighted(w, x, 1, "weighted"), rank)
end

-- With zeros for what the half of a spectrum lacks, the sums' real parts are the numbers.
function ops.irfft(w)
  local rank, attrs = #w:sizes(1) - 1, w.attrs
  local size, length, pads = attrs.size, attrs.length, {}
  local axis = math.max(rank, 2) - 1
  local x = in_batch(w, weighted(w, w:input(1), size, "weighted"), rank)
  for i = 1, 2 * axis + 4 do pads[i] = 0 end
  pads[#pads - 1] = size - math.floor(size / 2) - 1
  x = w:emit("Pad", { x, w:ints(pads), w:number(0) }, nil, "filled")
  x = transformed(w, x, axis, size, { inverse = { i = 1 } }, "numbers")
  x = w:emit("Slice", { x, w:ints { 0, 0 }, w:ints { math.min(size, length), 1 }, w:ints { axis, axis + 1 } }, nil,
    "real")
  x = w:emit("Squeeze", { x, w:ints { axis + 1 } }, nil, "signals")
  if length > size then
    pads = {}
    for i = 1, 2 * axis + 2 do pads[i] = 0 end
    pads[#pads] = length - size
    x = w:emit("Pad", { x, w:ints(pads), w:number(0) }, nil, "long")
  end
  return out_of_batch(w, x, rank)
end

return ops
