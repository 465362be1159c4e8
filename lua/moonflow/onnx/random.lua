--- ONNX operators that draw random numbers: a table from an operator's name to the function that applies it to a node.
-- They are drawn anew in each run, from flow.set_seed on. A node's own seed means other numbers in each runtime, and
-- is not looked at.

local operators = {}

local function dtype_of(node, default)
  node:ignore("seed")
  return (node:dtype("dtype", default))
end

-- The numbers of an op of this shape. No narrow dtype is drawn in.
local function drawn(node, op, attrs, shape, dtype)
  attrs.shape, attrs.dtype = shape, dtype == "float64" and dtype or "float32"
  return node:cast(node:draw(op, attrs, "drawn"), dtype)
end

local function normal(node, shape, dtype)
  local parameters = { mean = node:float("mean", 0), stddev = node:float("scale", 1) }
  return drawn(node, "random_normal", parameters, shape, dtype)
end

local function uniform(node, shape, dtype)
  local parameters = { low = node:float("low", 0), high = node:float("high", 1) }
  return drawn(node, "random_uniform", parameters, shape, dtype)
end

local function of_shape(draw)
  return function(node) return draw(node, node:need(node:ints("shape"), "shape"), dtype_of(node, "float32")) end
end

local function of_another(draw)
  return function(node)
    local x = node:input(1)
    return draw(node, x.shape:table(), dtype_of(node, x.dtype))
  end
end

operators.RandomNormal, operators.RandomNormalLike = of_shape(normal), of_another(normal)
operators.RandomUniform, operators.RandomUniformLike = of_shape(uniform), of_another(uniform)

-- 1 where a number is drawn below the chance.
function operators.Bernoulli(node)
  local x = node:input(1)
  local dtype = dtype_of(node, x.dtype)
  local u = drawn(node, "random_uniform", { low = 0, high = 1 }, x.shape:table(), x.dtype)
  return node:cast(node:apply("less", { u, x }, nil, "flips"), dtype)
end

-- Classes of each row, whose logarithms of chances, up to a sum, are x: the place of the largest, once each has had a
-- number of Gumbel's distribution added (Gumbel, 1954).
function operators.Multinomial(node)
  local x, count = node:input(1), node:int("sample_size", 1)
  local dtype = dtype_of(node, "int32")
  if #x.shape ~= 2 then
    node:fail("its input is " .. tostring(x.shape) .. ", wanted (batch, classes)", "shape_mismatch")
  end
  local batch, classes = x.shape[0], x.shape[1]
  node:check_list(batch * count * classes)
  local u = drawn(node, "random_uniform", { low = 0, high = 1 }, { batch, count, classes }, x.dtype)
  local function minus_log(value, word)
    return node:apply("negative", { node:apply("log", { value }, nil, word .. "_log") }, nil, word)
  end
  local noise = minus_log(minus_log(u, "exponential"), "gumbel")
  local sum = node:add(node:reshape(x, { batch, 1, classes }, "rows"), noise, "sum")
  return node:cast(node:apply("argmax", { sum }, { axis = 2 }, "places"), dtype)
end

return operators
