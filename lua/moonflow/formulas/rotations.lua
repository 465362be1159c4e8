--- Rotary positions: flow.nn.rotary_embedding, and ONNX's RotaryEmbedding. Each pair of a head's numbers is turned by
--- an angle that grows with the place in the sequence, so that a product of a query and a key tells how far apart they
--- are (Su and others, RoFormer, 2021).
--
-- `tools` computes, by apply(op, inputs, attrs, word).

local rotations = {}

--- The heads with the first numbers of each turned, as many as `cos` and `sin` have pairs for.
--- @param x any                  (batch, length, heads, width)
--- @param cos any                of the angles (batch or 1, length, 1, pairs), as `sin`
--- @param is_neighbours boolean  is a pair two neighbours, or the i-th numbers of both halves of what is turned?
function rotations.turned(tools, x, cos, sin, is_neighbours)
  local batch, length, heads, width = unpack(x.shape:table())
  local pairs = cos.shape[3]
  local rest = width - 2 * pairs
  local single, column = { batch, length, heads, pairs }, { batch, length, heads, pairs, 1 }
  local function cut(value, first, size, word)
    local extent, begin = value.shape:table(), {}
    for i = 1, #extent do begin[i] = 0 end
    begin[#begin], extent[#extent] = first, size
    return tools:apply("slice", { value }, { begin = begin, size = extent }, word)
  end
  local function reshape(value, shape, word) return tools:apply("reshape", { value }, { shape = shape }, word) end
  local function times(a, b, word) return tools:apply("multiply", { a, b }, nil, word) end

  local first, second
  if is_neighbours then
    local part = rest > 0 and cut(x, 0, 2 * pairs, "part") or x
    local columns = reshape(part, { batch, length, heads, pairs, 2 }, "pairs")
    first = reshape(cut(columns, 0, 1, "firsts"), single, "first")
    second = reshape(cut(columns, 1, 1, "seconds"), single, "second")
  else
    first, second = cut(x, 0, pairs, "first"), cut(x, pairs, pairs, "second")
  end
  local real, imaginary = times(cos, first, "cos_first"), times(sin, first, "sin_first")
  real = tools:apply("subtract", { real, times(sin, second, "sin_second") }, nil, "real")
  imaginary = tools:apply("add", { imaginary, times(cos, second, "cos_second") }, nil, "imaginary")
  local parts = { real, imaginary }
  if is_neighbours then
    local columns = tools:apply("concat", { reshape(real, column, "real_column"),
      reshape(imaginary, column, "imaginary_column") }, { axis = 4 }, "turned_pairs")
    parts = { reshape(columns, { batch, length, heads, 2 * pairs }, rest > 0 and "turned" or nil) }
  end
  if rest > 0 then parts[#parts + 1] = cut(x, 2 * pairs, rest, "rest") end
  return #parts == 1 and parts[1] or tools:apply("concat", parts, { axis = 3 })
end

return rotations
