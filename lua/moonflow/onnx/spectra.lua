--- ONNX operators of spectra, DFT and STFT: a table from an operator's name to the function that applies it to a node.
-- Complex numbers are pairs along a last axis, which has size 1 where all are real.

local fourier = require "moonflow.formulas.fourier"
local frames = require "moonflow.formulas.frames"
local count_of = require("moonflow.onnx.node").count_of

local operators = {}

-- Are the frequencies up to the half given alone? The others of real numbers mirror them.
local function is_half(node, default, parts)
  if node:int("onesided", default) == 0 then return false end
  if parts ~= 1 then node:fail("onesided = 1 of complex numbers is not supported") end
  return true
end

local function check_size(node, size)
  if not size or size < 1 then node:fail("its length is " .. tostring(size) .. ", wanted 1 or more", "out_of_range") end
end

-- Rows (count, size, parts) of real numbers, or of complex ones.
local function real(node, x) return node:reshape(x, { x.shape[0], x.shape[1] }, "real") end
local function complex(node, x)
  if x.shape[2] == 2 then return x end
  return node:apply("pad", { x }, { paddings = { 0, 0, 0, 0, 0, 1 } }, "complex")
end

-- The real numbers (count, size, 1) of half a spectrum.
local function mirrored(node, x, size)
  x = fourier.of_length(node, complex(node, x), 1, fourier.half(size))
  return node:reshape(fourier.to_real(node, x, size, size, "signals"), { x.shape[0], size, 1 }, "rows")
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

  x = node:swapped(x, axis, rank - 2, "turned")
  local sizes = x.shape:table()
  local count = count_of({ unpack(sizes, 1, rank - 2) })
  x = node:reshape(x, { count, sizes[rank - 1], parts }, "rows")
  local y = is_mirrored and mirrored(node, x, size)
    or not is_inverse and is_half(node, 0, parts) and fourier.of_real(node, real(node, x), size, "spectra")
    or fourier[is_inverse and "back" or "forward"](node, complex(node, fourier.of_length(node, x, 1, size)), "spectra")
  sizes[rank - 1], sizes[rank] = y.shape[1], y.shape[2]
  return node:swapped(node:reshape(y, sizes, "parts"), axis, rank - 2)
end

-- One spectrum for each frame of a signal, under the window.
function operators.STFT(node)
  local x, step, window = node:input(1), node:need(node:number(2), "frame_step"), node:optional(3)
  local parts = #x.shape == 3 and x.shape[2] or 1
  if #x.shape > 3 or #x.shape < 2 or parts > 2 then
    node:fail("its signal is " .. tostring(x.shape) .. ", wanted (batch, length, 1 or 2)", "shape_mismatch")
  end
  local batch, length = x.shape[0], x.shape[1]
  local size = node:number(4) or window and window.shape:count()
  check_size(node, size)
  if window and window.shape:count() ~= size then
    node:fail(("its window has %d numbers for frames of %d"):format(window.shape:count(), size), "shape_mismatch")
  elseif step < 1 then
    node:fail(("its frame_step is %d, wanted 1 or more"):format(step), "out_of_range")
  elseif length < size then
    node:fail(("its signal is %s, shorter than a frame of %d"):format(tostring(x.shape), size), "shape_mismatch")
  end
  local y = frames.cut(node, node:reshape(x, { batch, length, parts }, "signal"), size, step, "frames")
  local count = y.shape[1]
  if window then y = node:multiply(y, node:along(window, 4, 2, "window"), "windowed") end
  y = node:reshape(y, { batch * count, size, parts }, "rows")
  y = is_half(node, 1, parts) and fourier.of_real(node, real(node, y), size, "spectra")
    or fourier.forward(node, complex(node, y), "spectra")
  return node:reshape(y, { batch, count, y.shape[1], 2 }, "spectra")
end

return operators
