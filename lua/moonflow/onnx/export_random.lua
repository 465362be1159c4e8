--- The ops that draw random numbers as ONNX has them: a table as that of export_ops.
-- No seed is written, so whoever runs the file draws numbers of its own, others in each run.

local types = require "moonflow.onnx.types"

local ops = {}

-- Numbers like a value of these sizes, which may depend on the batch.
local function drawn(w, operator, attributes, dtype, word)
  local _, sizes = w:result()
  local like = w:emit("ConstantOfShape", { w:ints(sizes) }, nil, "like")
  attributes.dtype = types.attribute(dtype)
  return w:emit(operator, { like }, attributes, word)
end

local function uniform(w, low, high, dtype, word)
  return drawn(w, "RandomUniformLike", { low = { f = low }, high = { f = high } }, dtype, word)
end

function ops.random_uniform(w) return uniform(w, w.attrs.low, w.attrs.high, w.attrs.dtype) end

function ops.random_normal(w)
  return drawn(w, "RandomNormalLike", { mean = { f = w.attrs.mean }, scale = { f = w.attrs.stddev } }, w.attrs.dtype)
end

-- Whole numbers of [low, high) are what uniform ones of it are rounded down to, where a double has them all.
function ops.random_int(w)
  local attrs = w.attrs
  if attrs.high - attrs.low > 2 ^ 32 then w:fail("has more than 2^32 numbers to draw from") end
  local share = uniform(w, 0, 1, "float64", "share")
  local distance = w:emit("Mul", { share, w:number(attrs.high - attrs.low, "float64") }, nil, "distance")
  local number = w:emit("Add", { w:emit("Floor", { distance }, nil, "whole"), w:number(attrs.low, "float64") }, nil,
    "number")
  return w:emit("Cast", { number }, { to = types.attribute(attrs.dtype) })
end

-- ONNX has an operator for it too, of which ONNX Runtime gives 1 where 0 is due.
function ops.random_bernoulli(w)
  local dtype = w:dtype(1)
  local is_one = w:emit("Less", { uniform(w, 0, 1, dtype, "draws"), w:input(1) }, nil, "is_one")
  return w:emit("Cast", { is_one }, { to = types.attribute(dtype) })
end

-- Which elements a dropout keeps.
local function kept(w)
  return w:emit("GreaterOrEqual", { uniform(w, 0, 1, "float32", "draws"), w:number(w.attrs.rate, "float32") }, nil,
    "kept")
end
function ops.random_mask(w) return nil, kept(w) end
ops.random_mask_like = ops.random_mask

-- Gives the mask too, which its gradient reads.
function ops.dropout(w)
  local is_kept = kept(w)
  w.bools[w.op.outputs[2]] = is_kept
  local scaled = w:emit("Mul", { w:input(1), w:number(1 / (1 - w.attrs.rate)) }, nil, "scaled")
  return w:emit("Where", { is_kept, scaled, w:number(0) })
end

return ops
