--- What the dtypes are: a row for each, and what several of them give.

local dtypes = {}

-- least, most: the range of a whole number, of int64 what a Lua number holds exactly. sums: the dtype of their sums,
-- where that is another: the ones of a comparison, int8, would go over 127 in a batch. pointer: of its elements in C,
-- which has the bits of the narrow ones.
-- elsewhere: what other libraries call it.
local rows = {
  float32 = { is_floating = true, pointer = "float*", elsewhere = "float" },
  float64 = { is_floating = true, pointer = "double*", elsewhere = "double" },
  bfloat16 = { is_floating = true, is_narrow = true, pointer = "uint16_t*" },
  float16 = { is_floating = true, is_narrow = true, pointer = "uint16_t*", elsewhere = "half" },
  int8 = { least = -2 ^ 7, most = 2 ^ 7 - 1, sums = "int64", pointer = "int8_t*", elsewhere = "char" },
  uint8 = { least = 0, most = 2 ^ 8 - 1, sums = "int64", pointer = "uint8_t*", elsewhere = "byte" },
  int32 = { least = -2 ^ 31, most = 2 ^ 31 - 1, pointer = "int32_t*", elsewhere = "int" },
  int64 = { least = -2 ^ 53, most = 2 ^ 53, pointer = "int64_t*", elsewhere = "long" },
}

-- One column of the rows, by dtype.
local function column(word)
  local values = {}
  for name, row in pairs(rows) do values[name] = row[word] end
  return values
end

--- Those whose values have a fraction.
dtypes.floating = column "is_floating"
--- Those of two bytes, which are computed with in float32.
dtypes.narrow = column "is_narrow"
dtypes.least, dtypes.most, dtypes.sums, dtypes.pointers =
  column "least", column "most", column "sums", column "pointer"
--- All names, in order.
dtypes.names = {}
--- The dtype that other libraries call so.
dtypes.from_elsewhere = {}
for name, row in pairs(rows) do
  dtypes.names[#dtypes.names + 1] = name
  if row.elsewhere then dtypes.from_elsewhere[row.elsewhere] = name end
end
dtypes.from_elsewhere.bool = "int8"  -- as comparisons give it
table.sort(dtypes.names)

function dtypes.is(value) return rows[value] ~= nil end

--- What bytes may hold beside them, and is read as int32.
dtypes.stored = { int16 = true, uint16 = true }
function dtypes.is_stored(value) return rows[value] ~= nil or dtypes.stored[value] == true end

--- The dtype that holds values of both, by NumPy's rules. There is no 16-bit integer, so int8 with uint8 gives int32;
--- bfloat16 with anything else gives float32 or float64. float16 holds the integers of 8 bits.
function dtypes.promote(a, b)
  if a == b then return a end
  local other = a == "float16" and b or b == "float16" and a
  if other == "int8" or other == "uint8" then return "float16" end
  local is_wide = a == "int64" or b == "int64" or a == "float64" or b == "float64"
  if dtypes.floating[a] or dtypes.floating[b] then
    return (is_wide or a == "int32" or b == "int32") and "float64" or "float32"
  end
  return is_wide and "int64" or "int32"
end

return dtypes
