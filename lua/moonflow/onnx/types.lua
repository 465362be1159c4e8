--- The types that elements have in ONNX files, by the numbers that files have for them. A bool is our int8.

local core = require "moonflow.core"

local types = core.onnx_types()
local numbers = {}  -- by dtype, and of "bool"

for number = #types, 0, -1 do
  local entry = types[number]
  if entry.name == "bool" then
    numbers.bool = number
  elseif entry.dtype then
    numbers[entry.dtype] = number
  end
end

return {
  --- The name and, where there is one here, the dtype of a number; nil where ONNX has no such type.
  of_number = function(number) return types[number] end,
  is_bool = function(number) return number == numbers.bool end,
  --- A dtype, or "bool", as an attribute of a node that is written.
  attribute = function(dtype) return { i = numbers[dtype] } end,
}
