--- What Torch7's torch.save has written: numbers, strings, tables, tensors and the objects of its classes.
-- Every object is the number of its kind and what belongs to that. Of a table, or an object of a class, this begins
-- with a number of its own, under which it is met again. Binary files have ints of 4 bytes and longs of 8, the lowest
-- first; text files the same numbers in decimals, with one character between two of them.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local refuse_others = require "moonflow.np.beginnings"
local np = require "moonflow.np.functions"

local kNumber, kString, kTable, kTorch, kBoolean, kFunction = 1, 2, 3, 4, 5, 6
local is_function_with_number = { [7] = true, [8] = true }

-- What tensors and storages hold, by the word in their class: dtype, and bytes of an element in the file.
local elements = {
  Double = { "float64", 8 }, Float = { "float32", 4 }, Half = { "float16", 2 }, Long = { "int64", 8 },
  Int = { "int32", 4 }, Short = { "int32", 2 }, Char = { "int8", 1 }, Byte = { "uint8", 1 },
}

-- Those of "torch.FloatTensor", where `what` is "Tensor". A "torch.CudaTensor" has floats, a "torch.CudaLongTensor"
-- longs.
local function elements_of(class, what)
  local word = class:match("^torch%.(%a+)" .. what .. "$")
  word = word and word:gsub("^Cuda", "")
  return elements[word == "" and "Float" or word]
end

local MOST_REPEATED = 2 ^ 20  -- elements that a small storage may be repeated to

local Reader = {}
Reader.__index = Reader

-- What stands here makes no sense: a class that writes itself in a way of its own comes to this too.
function Reader:damaged(how)
  errors.raise("io", ("np.load_t7: '%s' is damaged, or no file of torch.save: at byte %d %s%s"):format(self.path,
    self.file:seek(), how, self.class and (", after an object of the class %s"):format(self.class) or ""))
end

-- The next bytes.
function Reader:bytes(count)
  if count < 0 or count > self.size - self.file:seek() then self:damaged(("%.0f bytes are missing"):format(count)) end
  return count > 0 and self.file:read(count) or ""
end

-- Of one below 0 the bits are turned, since 2^64 leaves a double no room for small numbers.
local function whole_number(bytes)
  local value, is_negative = 0, bytes:byte(-1) >= 128
  for i = #bytes, 1, -1 do value = value * 256 + (is_negative and 255 - bytes:byte(i) or bytes:byte(i)) end
  return is_negative and -1 - value or value
end

-- The next number of a text, and the character behind it.
function Reader:decimal()
  local number = self.file:read("*n") or self:damaged("a number is missing")
  self.file:read(1)
  return number
end

function Reader:int() return self.is_text and self:decimal() or whole_number(self:bytes(4)) end
function Reader:long() return self.is_text and self:decimal() or whole_number(self:bytes(8)) end

function Reader:double()
  return self.is_text and self:decimal() or core.array(self:bytes(8), "float64", { 1 }):item()
end

-- Characters, which stand in a text as they are.
function Reader:characters(count)
  local bytes = self:bytes(count)
  if self.is_text and count > 0 then self.file:read(1) end
  return bytes
end

function Reader:string() return self:characters(self:int()) end

function Reader:storage(of)
  local dtype, width = of[1], of[2]
  local count = self:long()
  if width == 1 then return core.array(self:characters(count), dtype, { count }) end
  if not self.is_text and dtype ~= "int32" then
    return core.array(self:bytes(count * width), dtype, { count })
  end
  if count < 0 or count > self.size - self.file:seek() then
    self:damaged(("%.0f elements are missing"):format(count))
  end
  local numbers = {}
  for i = 1, count do numbers[i] = self.is_text and self:decimal() or whole_number(self:bytes(width)) end
  return count > 0 and core.array(numbers, dtype) or core.zeros(dtype, { 0 })
end

-- A tensor is a part of a storage, which others may share: so do arrays where its elements lie one behind another.
function Reader:tensor(of)
  local rank = self:int()
  if rank < 0 or rank > 64 then self:damaged(("a tensor has %.0f axes"):format(rank)) end
  local sizes, strides, count, last, is_dense = {}, {}, 1, 0, true
  for axis = 1, rank do sizes[axis] = self:long() end
  for axis = 1, rank do strides[axis] = self:long() end
  local first = self:long() - 1
  local storage = self:object()
  for axis = rank, 1, -1 do
    if sizes[axis] < 0 or strides[axis] < 0 or strides[axis] == 0 and sizes[axis] > arguments.most_listed then
      self:damaged(("a tensor has %.0f elements along an axis, %.0f apart"):format(sizes[axis], strides[axis]))
    end
    is_dense = is_dense and (sizes[axis] == 1 or strides[axis] == count)
    last, count = last + (sizes[axis] - 1) * strides[axis], count * sizes[axis]
  end
  if rank == 0 or count == 0 or not storage then return core.zeros(of[1], rank == 0 and { 0 } or sizes) end
  if not ndarray.is_array(storage) or first < 0 or first + last >= #storage then
    self:damaged("a tensor lies outside of its storage")
  end
  if is_dense then return storage:rows(first, count):reshape(sizes) end
  if count > MOST_REPEATED + 16 * #storage then
    self:damaged(("a tensor repeats %d elements until they are %.0f"):format(#storage, count))
  end
  local places = core.array(first, "int64", {})
  for axis = 1, rank do
    local shape = {}
    for other = 1, rank do shape[other] = other == axis and -1 or 1 end
    local steps = {}
    for i = 1, sizes[axis] do steps[i] = (i - 1) * strides[axis] end
    places = places + core.array(steps, "int64"):reshape(shape)
  end
  return storage:take(places)
end

-- Fills `object` with so many pairs of a key and a value.
function Reader:pairs_into(object, count)
  for _ = 1, count do
    local key, value = self:object(), self:object()
    if key ~= nil and key == key then object[key] = value end
  end
  return object
end

function Reader:list_into(object, count)
  for i = 1, count do object[i] = self:object() end
  return object
end

-- An object of a class. `remember` is told it before what it holds, which may name it.
function Reader:instance(remember)
  local version = self:string()
  local class = version:find("^V %-?%d+$") and self:string() or version  -- the oldest files have no version
  self.class = class
  local of = elements_of(class, "Tensor")
  if of then return remember(self:tensor(of)) end
  of = elements_of(class, "Storage")
  if of then return remember(self:storage(of)) end
  local object = remember({ __typename = class })
  if class == "tds.Hash" then return self:pairs_into(object, self:long()) end
  if class == "tds.Vec" or class == "tds.AtomicVec" then return self:list_into(object, self:long()) end
  local fields = self:object()
  if type(fields) ~= "table" then self:damaged("the fields of an object are missing") end
  for key, value in pairs(fields) do object[key] = value end
  return object
end

-- Bytecode is not run, nor kept: what it calls is not here.
function Reader:skip_function()
  self:string()
  self:object()
end

function Reader:object()
  local kind = self:int()
  if kind == kNumber then return self:double() end
  if kind == kBoolean then return self:int() == 1 end
  if kind == kString then return self:string() end
  if kind == kFunction then return self:skip_function() end
  if kind ~= kTable and kind ~= kTorch and not is_function_with_number[kind] then
    return kind ~= 0 and self:damaged(("an object has the kind %.0f"):format(kind)) or nil
  end
  local number = self:int()
  if self.known[number] ~= nil then return self.known[number] or nil end
  local function remember(object)
    self.known[number] = object
    return object
  end
  if kind == kTable then return self:pairs_into(remember({}), self:int()) end
  if kind == kTorch then return self:instance(remember) end
  remember(false)
  self:skip_function()
end

local signature = arguments.signature("np.load_t7", { { "path", "string" } })
--- What Torch7's torch.save has written, binary or as text, as its torch.load gives it: numbers, strings, booleans,
--- tables, and tensors and storages as ndarrays of their dtypes (of shorts as int32). An object of a class is a table
--- of its fields and of `__typename`: `np.load_t7("net.t7").modules[1].weight` of an nn.Sequential. Dense weights are
--- (units, in) there as here, those of convolutions (filters, channels, height, width). Arrays share memory where
--- tensors did. Functions are nil: no code of a file is run.
--- @return any
--- @error a file that cannot be read, is none, or damaged; an object that writes itself in a way of its own
function np.load_t7(...)
  local path = signature:parse(...).path
  local is_text = refuse_others(path, "np.load_t7"):find("^%d") ~= nil  -- binary ones begin with the kind as a byte
  local file, problem = io.open(path, "rb")
  if not file then errors.raise("io", "np.load_t7: " .. problem) end
  local size = file:seek("end") or 0
  file:seek("set")
  local reader = setmetatable({ file = file, path = path, size = size, is_text = is_text, known = {} }, Reader)
  local fine, result = pcall(reader.object, reader)
  file:close()
  if not fine then error(result, 0) end
  return result
end
