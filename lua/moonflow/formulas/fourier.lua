--- The discrete Fourier transform: flow.signal, and ONNX's DFT and STFT.
--   X[k] = sum over n of x[n] * exp(-2 pi i k n / size)
-- It is a product with a matrix of cosines and sines. Where size is rows * columns, two products with smaller ones take
-- less: with n = a * columns + b and k = c + d * rows (Cooley and Tukey, 1965)
--   y[c, b] = sum over a of x[a, b] * exp(-2 pi i c a / rows)
--   X[c, d] = sum over b of y[c, b] * exp(-2 pi i k b / size)
-- Of real numbers half of the frequencies say all, since X[size - k] is the conjugate of X[k]: so c goes up to rows / 2
-- alone, and where k is beyond the half, what stands at its place is the conjugate.
-- The way back is the way there turned over: its matrices are transposed, and divided by the size.
--
-- `tools` computes, by apply(op, inputs, attrs, word). Complex numbers are pairs along a last axis. What is transformed
-- stands in columns within, so that no product needs its result in another order.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local ndarray = require "moonflow.ndarray"

local fourier = {}

local floor = math.floor

local function evaluate(op, inputs, attrs) return (ndarray.evaluate(op, inputs, attrs)) end
local function shaped(x, shape) return evaluate("reshape", { x }, { shape = shape }) end
local function turned(x, perm) return evaluate("transpose", { x }, { perm = perm }) end

local function counted(size, shape)
  return shaped(evaluate("range", {}, { start = 0, stop = size, step = 1, dtype = "int64" }), shape)
end

--- Cosine and sine of i / size of a turn. Those of whole quarters are exact, since what is left of an angle is taken
--- from the nearest of these.
function fourier.turn(i, size)
  local quarter = floor(4 * i / size + 0.5)
  local angle = math.pi / 2 * (4 * i - quarter * size) / size
  local cosine, sine = math.cos(angle), math.sin(angle)
  for _ = 1, quarter % 4 do cosine, sine = -sine, cosine end
  return cosine, sine
end

-- What of a complex number (or a real one, where parts is 1) goes into which part of its product with
-- exp(-2 pi i turns / size): (..., 2, parts) for the places `turns` (...).
local function weights(turns, size, parts, dtype)
  local list = {}
  for i = 0, size - 1 do
    local cosine, sine = fourier.turn(i, size)
    local row = parts == 2 and { cosine, sine, -sine, cosine } or { cosine, -sine }
    for _, weight in ipairs(row) do list[#list + 1] = weight end
  end
  local shape = turns.shape:table()
  shape[#shape + 1], shape[#shape + 2] = 2, parts
  local rows = core.array(list, dtype, { size, 2 * parts })
  return shaped(evaluate("gather", { rows, turns % size }, { axis = 0 }), shape)
end

-- How many rows: those that leave least to multiply, where a second product costs some passes over memory too, and
-- each number of a matrix is read once; of those whose matrices are not too large, where there are any. And how many
-- numbers these have.
local kPasses = 32  -- in multiplications for each number that is transformed

local function rows_of(size, parts, is_half)
  local best, least, fewest
  for columns = 1, size do
    if size % columns == 0 then
      local rows = size / columns
      local kept = is_half and floor(rows / 2) + 1 or rows
      local second = columns > 1 and 4 * kept * columns * columns or 0
      local numbers = 2 * kept * rows * parts + second
      local cost = 2 * kept * parts * size + second + (columns > 1 and kPasses * size or 0) + numbers
      if numbers > arguments.most_listed then cost = cost + numbers * size end
      if not least or cost < least then best, least, fewest = rows, cost, numbers end
    end
  end
  return best, fewest
end

-- Which place in order of (c, d) each frequency has, from 0 on, and the sign of the imaginary part there.
local function places_of(how)
  local places, signs = {}, {}
  for k = 0, how.frequencies - 1 do
    local c, d, sign = k % how.rows, floor(k / how.rows), 1
    if c >= how.kept then c, d, sign = how.rows - c, how.columns - 1 - d, -1 end
    places[k + 1], signs[k + 1] = c * how.columns + d, sign
  end
  return places, signs
end

-- Both matrices, (2 kept, rows * parts) and, unless there is one column, (kept, 2 columns, 2 columns).
local function matrices(how, dtype)
  local size, rows, columns, kept, parts = how.size, how.rows, how.columns, how.kept, how.parts
  local first = weights(counted(kept, { kept, 1 }) * counted(rows, { 1, rows }), rows, parts, dtype)
  first = shaped(turned(first, { 0, 2, 1, 3 }), { 2 * kept, rows * parts })
  if columns == 1 then return first end
  local k = counted(kept, { kept, 1, 1 }) + counted(columns, { 1, columns, 1 }) * rows
  local second = weights(k * counted(columns, { 1, 1, columns }), size, 2, dtype)
  return first, shaped(turned(second, { 0, 1, 3, 4, 2 }), { kept, 2 * columns, 2 * columns })
end

-- The matrices with factors (frequency, real and imaginary) on what the last of them gives; frequencies that nobody
-- asks for get 0.
local function scaled(how, dtype, factor_of)
  local first, second = matrices(how, dtype)
  local list = {}
  for i = 1, 2 * how.kept * how.columns do list[i] = 0 end
  for i, place in ipairs(how.places) do
    local factor = factor_of(i - 1)
    list[2 * place + 1], list[2 * place + 2] = factor, factor * how.signs[i]
  end
  local factors = core.array(list, dtype)
  if not second then return first * shaped(factors, { 2 * how.kept, 1 }) end
  return first, second * shaped(factors, { how.kept, 2 * how.columns, 1 })
end

--- How numbers are transformed; the result has its `frequencies`, how many there are, and the `numbers` of its
--- matrices. With more of these than arguments.most_listed it is for nothing: a size that is large, or a prime.
--- @param size number      how many
--- @param parts number     1 for real numbers, 2 for complex ones
--- @param is_half boolean  only of the frequencies up to size / 2, which real numbers may have?
function fourier.transform(size, parts, is_half)
  local how = { size = size, parts = parts, is_half = is_half, numbers = 4 * size }
  how.frequencies = is_half and floor(size / 2) + 1 or size
  if how.numbers > arguments.most_listed then return how end
  how.rows, how.numbers = rows_of(size, parts, is_half)
  how.columns = size / how.rows
  how.kept = is_half and floor(how.rows / 2) + 1 or how.rows
  how.places, how.signs = places_of(how)
  return how
end

-- An order of rows, or nil where they are in it.
local function order_of(list, size)
  local is_same = #list == size
  for i, place in ipairs(list) do is_same = is_same and place == i - 1 end
  return not is_same and core.array(list, "int64") or nil
end

-- Its terms cancel but for what is soft beside what is loud, which must not be lost by rounding them.
local function product(tools, matrix, x, word)
  return tools:apply("matmul", { matrix, x }, { precise = true }, word)
end

--- The spectra: x (count, size, parts) -> (count, frequencies, 2).
function fourier.forward(tools, x, how, word)
  local count, parts, frequencies = x.shape[0], how.parts, how.frequencies
  local function reshape(value, shape) return tools:apply("reshape", { value }, { shape = shape }, "columns") end
  local first, second = scaled(how, x.dtype, function() return 1 end)
  if parts == 1 then
    x = tools:apply("transpose", { reshape(x, { count, how.size }) }, { perm = { 1, 0 } }, "numbers")
  else
    x = reshape(x, { count, how.rows, how.columns, parts })
    x = tools:apply("transpose", { x }, { perm = { 1, 3, 2, 0 } }, "numbers")
  end
  local y = product(tools, first, reshape(x, { how.rows * parts, how.columns * count }), "rows")
  if second then y = product(tools, second, reshape(y, { how.kept, 2 * how.columns, count }), "sums") end
  local order = order_of(how.places, how.kept * how.columns)
  if order then
    y = tools:apply("gather", { reshape(y, { how.kept * how.columns, 2 * count }), order }, { axis = 0 }, "order")
  end
  y = tools:apply("transpose", { reshape(y, { 2 * frequencies, count }) }, { perm = { 1, 0 } }, "spectra")
  return tools:apply("reshape", { y }, { shape = { count, frequencies, 2 } }, word)
end

--- What has these spectra: x (count, frequencies, 2) -> (count, size, parts). Where they are half of them, imaginary
--- parts that no real numbers have, of the first and of size / 2, are not heeded.
function fourier.back(tools, x, how, word)
  local count, size, parts = x.shape[0], how.size, how.parts
  local function reshape(value, shape) return tools:apply("reshape", { value }, { shape = shape }, "columns") end
  local first, second = scaled(how, x.dtype, function(k)
    return (how.is_half and k > 0 and 2 * k < size and 2 or 1) / size
  end)
  local order = {}
  for i = 1, how.kept * how.columns do order[i] = 0 end
  for i, place in ipairs(how.places) do order[place + 1] = i - 1 end
  x = tools:apply("transpose", { reshape(x, { count, 2 * how.frequencies }) }, { perm = { 1, 0 } }, "spectra")
  order = order_of(order, how.frequencies)
  if order then
    x = tools:apply("gather", { reshape(x, { how.frequencies, 2 * count }), order }, { axis = 0 }, "order")
  end
  if second then
    x = product(tools, turned(second, { 0, 2, 1 }), reshape(x, { how.kept, 2 * how.columns, count }), "sums")
  end
  x = product(tools, turned(first, { 1, 0 }), reshape(x, { 2 * how.kept, how.columns * count }), "rows")
  if parts == 1 then
    x = tools:apply("transpose", { reshape(x, { size, count }) }, { perm = { 1, 0 } }, "numbers")
  else
    x = tools:apply("transpose", { reshape(x, { how.rows, parts, how.columns, count }) }, { perm = { 3, 0, 2, 1 } },
      "numbers")
  end
  return tools:apply("reshape", { x }, { shape = { count, size, parts } }, word)
end

--- x (count, have, parts) with `size` numbers: cut, or filled up with zeros.
function fourier.of_length(tools, x, size)
  local count, have, parts = unpack(x.shape:table())
  if size < have then
    return tools:apply("slice", { x }, { begin = { 0, 0, 0 }, size = { count, size, parts } }, "cut")
  elseif size > have then
    return tools:apply("pad", { x }, { paddings = { 0, 0, 0, size - have, 0, 0 } }, "filled")
  end
  return x
end

return fourier
