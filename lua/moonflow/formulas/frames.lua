--- Frames of a signal, which may overlap, and the signal that frames add up to: flow.signal, and ONNX's STFT.
-- All frames begin at multiples of a block, the greatest common divisor of their length and step; so blocks are moved,
-- and not single numbers.
--
-- `tools` computes, by apply(op, inputs, attrs, word) and check_list(count).

local core = require "moonflow.core"

local frames = {}

--- The greatest one that two numbers have in common.
function frames.divisor(a, b)
  while b > 0 do a, b = b, a % b end
  return a
end

--- How many whole frames there are in `samples`.
function frames.count(samples, length, step) return math.floor((samples - length) / step) + 1 end

--- x (batch, samples, width) -> (batch, frames, length, width), of whole frames, of which there is one at least.
function frames.cut(tools, x, length, step, word)
  local batch, samples, width = unpack(x.shape:table())
  local count, block = frames.count(samples, length, step), frames.divisor(length, step)
  local used = (count - 1) * step + length
  if used < samples then
    x = tools:apply("slice", { x }, { begin = { 0, 0, 0 }, size = { batch, used, width } }, "used")
  end
  if step ~= length and count > 1 then
    tools:check_list(count * length / block)
    local list = {}
    for frame = 0, count - 1 do
      for i = 0, length / block - 1 do list[#list + 1] = frame * step / block + i end
    end
    x = tools:apply("reshape", { x }, { shape = { batch, used / block, block * width } }, "blocks")
    x = tools:apply("gather", { x, core.array(list, "int64") }, { axis = 1 }, "picked")
  end
  return tools:apply("reshape", { x }, { shape = { batch, count, length, width } }, word)
end

--- x (batch, frames, length) -> (batch, (frames - 1) * step + length): the sums of what overlaps, 0 between frames.
function frames.sum(tools, x, step, word)
  local batch, count, length = unpack(x.shape:table())
  local samples, block = (count - 1) * step + length, frames.divisor(length, step)
  if step ~= length and count > 1 then
    local all, blocks = samples / block, length / block
    local overlaps = math.ceil(length / step)
    tools:check_list(all * overlaps)
    local list = {}
    for i = 0, all - 1 do
      local newest = math.min(count - 1, math.floor(i * block / step))
      for back = overlaps - 1, 0, -1 do
        local frame = newest - back
        local at = i - frame * step / block
        list[#list + 1] = frame >= 0 and at < blocks and frame * blocks + at or count * blocks
      end
    end
    x = tools:apply("reshape", { x }, { shape = { batch, count * blocks, block } }, "blocks")
    x = tools:apply("pad", { x }, { paddings = { 0, 0, 0, 1, 0, 0 } }, "and_nothing")
    x = tools:apply("gather", { x, core.array(list, "int64") }, { axis = 1 }, "picked")
    x = tools:apply("reshape", { x }, { shape = { batch, all, overlaps, block } }, "overlaps")
    x = tools:apply("reduce_sum", { x }, { axis = { 2 } }, "sums")
  end
  return tools:apply("reshape", { x }, { shape = { batch, samples } }, word)
end

return frames
