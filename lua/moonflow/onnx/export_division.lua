--- Quotients and what is left as ONNX has them: a table as that of export_ops.

local types = require "moonflow.onnx.types"

local ops = {}

-- What is left of floats by truncated division, which is exact, and whether it has another sign than y. A quotient
-- would be rounded, to the next whole number too.
local function rest_of(w, x, y)
  local rest = w:emit("Mod", { x, y }, { fmod = { i = 1 } }, "rest")
  local turned = w:emit("Mul", { w:emit("Sign", { rest }, nil, "rest_sign"), w:emit("Sign", { y }, nil, "sign") }, nil,
    "signs")
  return rest, w:emit("Less", { turned, w:number(0) }, nil, "is_turned")
end

local function is_float(w) return w:dtype(1):match("float") ~= nil end

-- Is the divisor known, and has it no 0 and no -1?
local function is_harmless(w)
  local divisor = w.graph:constant_value(w.op.inputs[2])
  if not divisor then return false end
  for _, value in ipairs(divisor:reshape(-1):totable()) do
    if value == 0 or value == -1 then return false end
  end
  return true
end

-- A division of whole numbers: `divide(x, y, number)` names what it gives, `over_minus(x, number)` what it gives over
-- -1, and over 0 it gives 0. To divide by these ends some runtimes. Bytes go over it as int32, which all of them
-- divide; `number(value)` is one of the dtype on the way.
local function of_whole(w, divide, over_minus)
  local dtype = w:dtype(1)
  local wide = dtype == "int64" and dtype or "int32"
  local function number(value) return w:number(value, wide) end
  local function input(i)
    return dtype == wide and w:input(i) or w:emit("Cast", { w:input(i) }, { to = types.attribute(wide) }, "wide_" .. i)
  end
  local x, y = input(1), input(2)
  local result
  if is_harmless(w) then
    result = divide(x, y, number)
  else
    local is_zero = w:emit("Equal", { y, number(0) }, nil, "is_zero")
    local is_minus = w:emit("Equal", { y, number(-1) }, nil, "is_minus")
    local is_special = w:emit("Or", { is_zero, is_minus }, nil, "is_special")
    local others = divide(x, w:emit("Where", { is_special, number(1), y }, nil, "divisor"), number)
    others = w:emit("Where", { is_minus, over_minus(x, number), others }, nil, "others")
    result = w:emit("Where", { is_zero, number(0), others }, nil, "of_all")
  end
  return dtype == wide and result or w:emit("Cast", { result }, { to = types.attribute(dtype) })
end

-- With the sign of y, which of whole numbers is what ONNX calls so.
function ops.mod(w)
  if not is_float(w) then
    return of_whole(w, function(x, y) return w:emit("Mod", { x, y }, nil, "rest") end,
      function(_, number) return number(0) end)
  end
  local x, y = w:input(1), w:input(2)
  local rest, is_turned = rest_of(w, x, y)
  return w:emit("Where", { is_turned, w:emit("Add", { rest, y }, nil, "turned"), rest })
end

-- The truncated quotient, and 1 less where something is left and the signs differ: x less the rest would wrap.
local function floor_of_whole(w, x, y, number)
  local quotient = w:emit("Div", { x, y }, nil, "quotient")
  local is_whole = w:emit("Equal", { w:emit("Mod", { x, y }, nil, "rest"), number(0) }, nil, "is_whole")
  local signs_differ = w:emit("Xor", {
    w:emit("Less", { x, number(0) }, nil, "is_below"), w:emit("Less", { y, number(0) }, nil, "is_divisor_below"),
  }, nil, "signs_differ")
  local is_less = w:emit("And", { signs_differ, w:emit("Not", { is_whole }, nil, "is_broken") }, nil, "is_less")
  return w:emit("Where", { is_less, w:emit("Sub", { quotient, number(1) }, nil, "below"), quotient }, nil, "floor")
end

function ops.floordiv(w)
  if not is_float(w) then
    return of_whole(w, function(x, y, number) return floor_of_whole(w, x, y, number) end,
      function(x) return w:emit("Neg", { x }, nil, "negative") end)
  end
  local x, y = w:input(1), w:input(2)
  local rest, is_turned = rest_of(w, x, y)
  local quotient = w:emit("Div", { w:emit("Sub", { x, rest }, nil, "multiple"), y }, nil, "quotient")
  local whole = w:emit("Round", { quotient }, nil, "whole")
  return w:emit("Where", { is_turned, w:emit("Sub", { whole, w:number(1) }, nil, "below"), whole })
end

return ops
