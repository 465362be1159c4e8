--- What the channels around one take off it (Krizhevsky and others, "ImageNet classification with deep convolutional
--- neural networks", 2012): flow.nn.LocalResponseNorm, and ONNX's LRN.
--   out[n, c, ...] = x[n, c, ...] / (bias + alpha / size * sum of x[n, i, ...]^2) ^ beta
-- over the `size` channels i from c - before on, of which there may be fewer at the ends.
--
-- `tools` computes, by apply(op, inputs, attrs, word).

local core = require "moonflow.core"

--- x (batch, channels, ...) -> the same. `how` has size, before, alpha, beta and bias.
return function(tools, x, how, word)
  local sizes, paddings, begin = x.shape:table(), {}, {}
  for i = 1, #sizes do paddings[2 * i - 1], paddings[2 * i], begin[i] = 0, 0, 0 end
  paddings[3], paddings[4] = how.before, how.size - 1 - how.before
  local squares = tools:apply("square", { x }, nil, "squares")
  squares = tools:apply("pad", { squares }, { paddings = paddings }, "padded")
  local sum
  for first = 0, how.size - 1 do
    begin[2] = first
    local one = tools:apply("slice", { squares }, { begin = begin, size = sizes }, "channel" .. first)
    sum = sum and tools:apply("add", { sum, one }, nil, "sum" .. first) or one
  end
  local function number(value) return core.array(value, x.dtype, {}) end
  local base = tools:apply("multiply", { sum, number(how.alpha / how.size) }, nil, "mean")
  base = tools:apply("add", { base, number(how.bias) }, nil, "base")
  local power = tools:apply("pow", { base, number(how.beta) }, nil, "power")
  return tools:apply("divide", { x, power }, nil, word)
end
