-- What an ndarray can do from Lua: operators with broadcasting, comparisons, reductions, shapes and printing; slices
-- are in ndarray_slices.lua. The C module makes the arrays and reads their elements; these files extend its method
-- table. Every computation is one op of the catalog, run at once by the default session, so no arithmetic is written
-- twice.
-- Arrays count from 0, Lua tables from 1.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local session = require "moonflow.session"

local methods, metatable = core.ndarray_methods, core.ndarray_metatable
arguments.publish("NdArray", "a", methods, [[
  address all any argmax argmin astype at copy eq ge gt item le lt max mean min ne prod ptr ravel release reshape rows
  set slice std sum take tobytes totable transpose var]])
local floor = math.floor
local fail = errors.raise

local ndarray = {}

-- ---- dtypes -------------------------------------------------------------------------------------------------------

function ndarray.is_array(x)
  return type(x) == "userdata" and getmetatable(x) == metatable
end
local is_array = ndarray.is_array

--- Runs one op. `attrs` may be left out. `called` is what its errors name, where that is not the op: the function that
--- the user has called.
function ndarray.evaluate(op, inputs, attrs, called)
  return session.handle():evaluate(op, inputs, attrs, called)
end
local evaluate = ndarray.evaluate

function ndarray.cast(a, dtype)
  if a.dtype == dtype then return a end
  return (evaluate("cast", { a }, { dtype = dtype }))
end
local cast = ndarray.cast

--- An array of a dtype that loops over memory read: those of two bytes, which C has not, as float32.
function ndarray.readable(a)
  return dtypes.narrow[a.dtype] and cast(a, "float32") or a
end

-- Integers become float64, floats stay: the domain of means, roots and quotients.
function ndarray.floating(a)
  return dtypes.floating[a.dtype] and a or cast(a, "float64")
end
local floating = ndarray.floating

-- The array of a number or a table that meets an array of this dtype: float64 or an integer dtype it takes over, where
-- that holds what is there, and else it is a wider one.
local function made_for(x, dtype)
  if not dtype or dtypes.floating[dtype] then return core.array(x, dtype == "float64" and dtype or nil) end
  for _, whole in ipairs({ dtype, "int64" }) do
    local fine, array = pcall(core.array, x, whole)
    if fine then return array end
  end
  return core.array(x, "float64")
end

-- Is it a (nested) Lua table of arrays? The first of all says so.
local function holds_arrays(x)
  while type(x) == "table" do x = rawget(x, 1) end
  return is_array(x)
end

--- An ndarray of `x`: itself, or one made of a number or a (nested) Lua table, float32 where no `dtype` is said. With
--- one it is made for an array of that dtype. Arrays in a table keep theirs.
function ndarray.as_array(x, what, dtype)
  if is_array(x) then return x end
  local kind = arguments.kind(x)
  if kind == "number" then return made_for(x, dtype) end
  if kind == "table" and holds_arrays(x) then return (evaluate("stack", ndarray.alike(x, what), { axis = 0 }, what)) end
  if kind == "table" and not arguments.folder(x) then return errors.blaming(what, made_for, x, dtype) end
  local got = arguments.describe(x)
  return fail("invalid_argument", what .. " wants an ndarray, a table or a number, got " .. got
    .. (kind == "blob" and "; values of a job are computed by functions of flow, such as flow.math.exp"
      or kind == "boolean" and "; a == b is one truth in Lua, and np.equal(a, b) that of each element"
      or got:find("LL$") and "; np.array({ " .. got .. " }, flow.int64) is an array" or ""))
end
local as_array = ndarray.as_array
ndarray.holds_arrays = holds_arrays

--- Both as arrays, of dtypes of their own: a number or a table is made for the array that it meets.
function ndarray.both(a, b, what)
  if holds_arrays(a) then a = as_array(a, what) end
  if holds_arrays(b) then b = as_array(b, what) end
  return as_array(a, what, is_array(b) and b.dtype), as_array(b, what, is_array(a) and a.dtype)
end
local both = ndarray.both

--- An array of what is reduced, compared or looked for: a table or a number is read in float64, so that no two numbers
--- that differ are taken as one.
function ndarray.exact(x, what) return as_array(x, what, "float64") end

--- Both, where a number or a table that meets an array is made for that.
function ndarray.both_exact(a, b, what)
  if holds_arrays(a) or holds_arrays(b) then return ndarray.both(a, b, what) end
  return as_array(a, what, is_array(b) and b.dtype or "float64"),
    as_array(b, what, is_array(a) and a.dtype or "float64")
end

--- What has come of `x`, and of `y` where there is one: an array of float64 that was computed of tables of numbers and
--- numbers alone becomes float32, as np.array makes it of a table.
function ndarray.as_made(result, x, y)
  if not is_array(result) or result.dtype ~= "float64" or holds_arrays(x) or holds_arrays(y) then return result end
  return cast(result, "float32")
end

--- The same for a list, which stays as it is.
function ndarray.all_of(list, what)
  local dtype
  for _, x in ipairs(list) do
    if is_array(x) then dtype = dtype and dtypes.promote(dtype, x.dtype) or x.dtype end
  end
  local arrays = {}
  for i, x in ipairs(list) do arrays[i] = as_array(x, what, dtype) end
  return arrays
end

--- The same, all of the dtype that they have together, which is the second result: nil where the list is empty.
function ndarray.alike(list, what)
  local arrays, dtype = ndarray.all_of(list, what), nil
  for _, a in ipairs(arrays) do dtype = dtype and dtypes.promote(dtype, a.dtype) or a.dtype end
  for i, a in ipairs(arrays) do arrays[i] = cast(a, dtype) end
  return arrays, dtype
end

-- ---- operators ----------------------------------------------------------------------------------------------------

-- A number takes the dtype of the array it meets, as in NumPy 2: it never widens a float, and a whole number never
-- widens an integer. A fraction makes float64 of integers. A whole number outside the dtype is an error.
local function number_dtype(number, dtype, what)
  if dtypes.floating[dtype] then return dtype end
  if number % 1 ~= 0 then return "float64" end -- also inf and nan
  if number >= dtypes.least[dtype] and number <= dtypes.most[dtype] then return dtype end
  if what == "compare" then return "float64" end
  return fail("out_of_range", ("%s: %.17g does not fit %s; cast the array first, with a:astype")
    :format(what, number, dtype))
end

local SCALAR = {}  -- a shape

-- Both operands as arrays of one dtype, and that. One of them is an array already.
local function operands(a, b, what)
  if type(a) == "number" then
    local dtype = number_dtype(a, b.dtype, what)
    return core.array(a, dtype, SCALAR), cast(b, dtype), dtype
  elseif type(b) == "number" then
    local dtype = number_dtype(b, a.dtype, what)
    return cast(a, dtype), core.array(b, dtype, SCALAR), dtype
  end
  a, b = both(a, b, what)
  local x, y = a.dtype, b.dtype
  if x == y then return a, b, x end
  local dtype = dtypes.promote(x, y)
  return cast(a, dtype), cast(b, dtype), dtype
end
ndarray.operands = operands

-- `called` is what the user has called, where that is no operator.
function ndarray.binary(op, a, b, called)
  a, b = operands(a, b, called or op)
  return (evaluate(op, { a, b }, nil, called))
end
local binary = ndarray.binary

function ndarray.divide(a, b, called)
  local dtype
  -- Integers are divided as fractions, by any number.
  if type(b) == "number" then a = floating(a) elseif type(a) == "number" then b = floating(b) end
  a, b, dtype = operands(a, b, called or "divide")
  if not dtypes.floating[dtype] then a, b = floating(a), floating(b) end
  return (evaluate("divide", { a, b }, nil, called))
end

-- Integers raised to a whole number stay integers; everything else is a power of floats. A square is a product, which
-- is exact and takes a twentieth of the time.
function ndarray.pow(a, b, called)
  if b == 2 and is_array(a) then return binary("multiply", a, a) end
  if is_array(a) and not dtypes.floating[a.dtype] and type(b) == "number" and b % 1 == 0 and b >= 0 then
    local result, square = nil, a
    while b > 0 do
      if b % 2 == 1 then result = result and binary("multiply", result, square) or square end
      b = floor(b / 2)
      if b > 0 then square = binary("multiply", square, square) end
    end
    if not result then return (evaluate("ones_like", { a })) end
    return rawequal(result, a) and a:copy() or result
  end
  a, b = operands(a, b, called or "pow")
  return (evaluate("pow", { floating(a), floating(b) }, nil, called))
end

-- An operator whose right side is a value of another kind (a Blob of a job) belongs to that kind.
local function operator(event, compute)
  metatable[event] = function(a, b)
    local other = is_array(a) and b or a
    if type(other) == "userdata" or type(other) == "table" then
      local of_other = getmetatable(other)
      local foreign = of_other ~= metatable and type(of_other) == "table" and of_other[event]
      if foreign then return foreign(a, b) end
    end
    return compute(a, b)
  end
end

operator("__add", function(a, b) return binary("add", a, b) end)
operator("__sub", function(a, b) return binary("subtract", a, b) end)
operator("__mul", function(a, b) return binary("multiply", a, b) end)
operator("__mod", function(a, b) return binary("mod", a, b) end)
operator("__div", ndarray.divide)
operator("__pow", ndarray.pow)

function metatable.__unm(a)
  if dtypes.floating[a.dtype] then return (evaluate("negative", { a })) end
  return binary("subtract", 0, a)
end

-- Lua makes one boolean of a comparison, so only whole-array equality (of the C module) can be an operator.
local function no_order()
  return fail("invalid_argument", "< and <= would give one boolean for two whole arrays; compare their elements with "
    .. "a:lt(b), a:le(b), a:gt(b) or a:ge(b), all or any of them by a:lt(b):all() and a:lt(b):any(), and arrays of one "
    .. "element as numbers, by a:item() < b:item()")
end
metatable.__lt, metatable.__le = no_order, no_order

-- "loss " .. loss
function metatable.__concat(a, b) return tostring(a) .. tostring(b) end

-- What `for row in a do` comes to, or a(i).
metatable.uncallable = true
function metatable.__call()
  return fail("invalid_argument", "an ndarray is no function; for its rows write: for i, row in a:rows() do")
end

ndarray.comparisons = {
  eq = "equal", ne = "not_equal", lt = "less", le = "less_equal", gt = "greater", ge = "greater_equal",
}

--- One of these, by its op.
function ndarray.compare(op, a, b, called)
  a, b = operands(a, b, "compare")
  return (evaluate(op, { a, b }, nil, called))
end

for name, op in pairs(ndarray.comparisons) do
  --- Element by element with an array, a table or a number, with broadcasting: int8, 1 where it holds and 0 elsewhere.
  methods[name] = function(a, b)
    if not is_array(a) then arguments.want_colon("a:" .. name) end
    return ndarray.compare(op, a, b, "a:" .. name)
  end
end

-- ---- reductions ---------------------------------------------------------------------------------------------------

-- The array that the method `name` is called of. A point in the place of the colon is why there may be something else.
function ndarray.own(a, name)
  if is_array(a) then return a end
  return fail("invalid_argument", ("a:%s: expected an ndarray before the colon, got %s")
    :format(name, arguments.describe(a)))
end
local own = ndarray.own

local function reduction(name, more)
  return arguments.signature("a:" .. name,
    { { "axis", "list?", text = "one or several, negative from the end; all when left out" },
      { "keepdims", "boolean", false, text = "keep the reduced axes with size 1" }, unpack(more or {}) })
end

local ALL = { keepdims = false, ddof = 0 }  -- what a call without arguments says

-- The arguments of a reduction; most calls have none, and make no table then.
local function parsed(signature, ...)
  return select("#", ...) == 0 and ALL or signature:parse(...)
end

local function axes_of(given)
  return given.axis and arguments.flat_list(given.axis) or {}
end

local function reduce(op, a, given, called)
  if given == ALL then return session.handle():reduce(op, a, called) end
  local axes = axes_of(given)
  if #axes == 0 and not given.keepdims then return evaluate(op, { a }, nil, called):item() end
  return (evaluate(op, { a }, { axis = axes, keepdims = given.keepdims }, called))
end

-- How many elements one result of a reduction comes from. An axis that there is not is left to the op.
local function reduced_count(a, axes)
  if #axes == 0 then return a.shape:count() end
  local count = 1
  for _, axis in ipairs(axes) do
    local place = type(axis) == "number" and axis % 1 == 0 and (axis < 0 and axis + a.rank or axis)
    if place and place >= 0 and place < a.rank then count = count * a.shape[place] end
  end
  return count
end

local function refuse_empty(a, what, given)
  if a.nbytes > 0 then return end
  local axes = axes_of(given)
  if reduced_count(a, axes) > 0 then return end
  fail("invalid_argument", ("a:%s%s of an array of shape %s, which has no elements"):format(what,
    #axes > 0 and " along axis " .. table.concat(axes, ", ") or "", tostring(a.shape)))
end

-- Is it of integers whose sums are given as int64, and means as float64, by ops that need no copy in these?
local function is_whole(a) return a.dtype == "int8" or a.dtype == "uint8" or a.dtype == "int32" end

--- a:sum adds the elements up and a:prod multiplies them, integers as int64. Without an axis and keepdims a Lua number,
--- else an ndarray, of the array's own dtype where that has fractions: float16 and bfloat16 too.
--- @overload fun(a: ndarray): number
for _, name in ipairs({ "sum", "prod" }) do
  local signature = reduction(name)
  methods[name] = function(a, ...)
    own(a, name)
    return reduce(is_whole(a) and "whole_" .. name or "reduce_" .. name, a, parsed(signature, ...), signature.where)
  end
end

local mean_signature = reduction("mean")
--- The mean of the elements; integers are taken as float64. Without an axis and keepdims a Lua number, else an ndarray.
--- @error no elements
--- @overload fun(a: ndarray): number
function methods.mean(a, ...)
  own(a, "mean")
  local given = parsed(mean_signature, ...)
  refuse_empty(a, "mean", given)
  if is_whole(a) then return reduce("whole_mean", a, given, mean_signature.where) end
  return reduce("reduce_mean", floating(a), given, mean_signature.where)
end

local function spread(word, of, given, called)
  return reduce(is_whole(of) and "whole_" .. word or "reduce_" .. word, of, given, called)
end

--- a:var is the variance and a:std its root, the standard deviation; integers are taken as float64. The sum of squared
--- distances from the mean is divided by the number of elements, or with `ddof = 1`, where they are a sample of what is
--- to be described, by one less. Without an axis a Lua number, with one an ndarray.
--- @error ddof not below the number of elements
--- @overload fun(a: ndarray): number
for name, word in pairs({ std = "std", var = "variance" }) do
  local signature = reduction(name, { { "ddof", "integer", 0 } })
  methods[name] = function(a, ...)
    own(a, name)
    local given = parsed(signature, ...)
    refuse_empty(a, name, given)
    if given.ddof == 0 then return spread(word, is_whole(a) and a or floating(a), given, signature.where) end
    local count = reduced_count(a, axes_of(given))
    if count <= given.ddof then
      fail("invalid_argument", ("a:%s: ddof %d leaves nothing to divide by, of %d element%s"):format(name, given.ddof,
        count, count == 1 and "" or "s"))
    end
    -- Rounded once, when it is scaled.
    local result = spread(word, is_whole(a) and a or cast(a, "float64"), given, signature.where)
    local factor = count / (count - given.ddof)
    result = result * (name == "std" and math.sqrt(factor) or factor)
    return ndarray.is_array(result) and cast(result, floating(a).dtype) or result
  end
end

--- a:max is the greatest element and a:min the least, and either is NaN where one is. Without an axis a Lua number,
--- with one an ndarray.
--- @error no elements
--- @overload fun(a: ndarray): number
for name, op in pairs({ max = "reduce_max", min = "reduce_min" }) do
  local signature = reduction(name)
  methods[name] = function(a, ...)
    own(a, name)
    local given = parsed(signature, ...)
    refuse_empty(a, name, given)
    return reduce(op, a, given, signature.where)
  end
end

--- a:any says whether one element differs from 0, a:all whether all do. Without an axis a Lua boolean (a Lua 0 would
--- count as true), with one an int8 ndarray.
--- @overload fun(a: ndarray): boolean
for name, op in pairs({ any = "reduce_any", all = "reduce_all" }) do
  local signature = reduction(name)
  methods[name] = function(a, ...)
    local result = reduce(op, own(a, name):ne(0), parsed(signature, ...), signature.where)
    if type(result) == "number" then return result ~= 0 end
    return result
  end
end

--- a:argmax is the place of the greatest element along `axis`, a:argmin that of the least: int64, the first of equals,
--- and a NaN counts as either. Without an axis the place in the flattened array, a Lua number.
--- @error several axes; no elements
--- @overload fun(a: ndarray): integer
for _, name in ipairs({ "argmax", "argmin" }) do
  local signature = reduction(name)
  methods[name] = function(a, ...)
    own(a, name)
    local given = parsed(signature, ...)
    if given == ALL then
      refuse_empty(a, name, given)
      return session.handle():reduce(name, a, signature.where)
    end
    local axes = axes_of(given)
    if #axes > 1 then
      fail("invalid_argument", ("a:%s takes one axis, got %d; a:reshape makes one of several"):format(name, #axes))
    end
    refuse_empty(a, name, given)
    local axis = axes[1]
    if not axis then
      local place, ones = evaluate(name, { a:ravel() }, { axis = 0 }), {}
      for i = 1, a.rank do ones[i] = 1 end
      return given.keepdims and place:reshape(ones) or place:item()
    end
    local result = evaluate(name, { a }, { axis = axis }, signature.where)
    return given.keepdims and (evaluate("expand_dims", { result }, { axis = axis })) or result
  end
end

-- ---- shapes -------------------------------------------------------------------------------------------------------

local ravel_signature = arguments.signature("a:ravel", {})
--- One axis, sharing memory.
function methods.ravel(a, ...)
  own(a, "ravel")
  if ... ~= nil then ravel_signature:fail(" takes no arguments; of a:transpose() it goes down the columns") end
  return a:reshape({ a.shape:count() })
end

--- Axes in another order, as a copy: `a:transpose()` reverses them, `a:transpose(0, 2, 1)` orders them; so does a list.
function methods.transpose(a, ...)
  own(a, "transpose")
  local perm = arguments.flat_list({ ... }, "a:transpose")
  for i, axis in ipairs(perm) do perm[i] = axis < 0 and axis + a.rank or axis end
  return (evaluate("transpose", { a }, { perm = perm }, "a:transpose"))
end

local astype_signature = arguments.signature("a:astype", { { "dtype", "dtype" } })
--- A copy in another dtype: `a:astype(flow.float64)`. Floats that become integers are cut towards zero; beyond the
--- range they become its nearer end, and nan becomes 0. Integers that become narrower ones keep their low bits.
--- @param dtype string  flow.float64, flow.float16, flow.bfloat16, flow.int8, flow.uint8, flow.int32 or flow.int64, ...
function methods.astype(a, ...)
  own(a, "astype")
  local dtype = astype_signature:parse(...).dtype
  if a.dtype == dtype then return a:copy() end
  return (evaluate("cast", { a }, { dtype = dtype }, "a:astype"))
end

--- Indices (ndarray, table or number) into an axis of this size, as the array that ops take: from 0, integers.
function ndarray.places(indices, size, called)
  if type(indices) == "number" or type(indices) == "table" and not holds_arrays(indices) then
    indices = errors.blaming(called, core.array, indices, "int64", type(indices) == "number" and {} or nil)
  end
  indices = as_array(indices, called)
  if dtypes.floating[indices.dtype] then
    fail("dtype_mismatch", called .. " wants integers as indices, got " .. indices.dtype
      .. "; cast them first, with :astype")
  end
  if indices.dtype ~= "int32" then indices = cast(indices, "int64") end
  if indices.nbytes > 0 and evaluate("reduce_min", { indices }):item() < 0 then
    indices = evaluate("where", { indices:lt(0), indices + size, indices })
  end
  return indices
end

local take_signature = arguments.signature("a:take", { { "indices", "any" }, { "axis", "integer?" } })
--- Elements at `indices` (ndarray, table or number, from 0, negative from the end) along `axis`; without an axis from
--- the flattened array.
function methods.take(a, indices, axis, ...)
  own(a, "take")
  if ... ~= nil then take_signature:too_many(2 + select("#", ...), "; np.clip keeps indices within the size") end
  if type(axis) == "table" and type(next(axis)) == "string" then
    for key in pairs(axis) do
      if key ~= "axis" then
        fail("invalid_argument", "a:take has no option '" .. key .. "'" .. arguments.suggestion(key, { "axis" }))
      end
    end
    axis = axis.axis
  end
  if axis == nil then a, axis = a:ravel(), 0 end
  if type(axis) ~= "number" then
    fail("invalid_argument", "a:take wants the number of an axis, got " .. arguments.describe(axis))
  end
  axis = ndarray.axis_of(a, axis, "a:take")
  indices = ndarray.places(indices, a.shape[axis], "a:take")
  return (evaluate("gather", { a, indices }, { axis = axis }, "a:take"))
end

-- ---- memory and text ----------------------------------------------------------------------------------------------

local has_ffi, ffi = pcall(require, "ffi")

--- FFI pointer to the first element, for hot loops. Unchecked, and it does not keep the array alive: keep `a` in a
--- local for as long as the pointer is used.
--- @return any
--- @error where this LuaJIT has no FFI
function methods.ptr(a)
  if not has_ffi then
    fail("unsupported", "a:ptr(), by which this reads memory, needs LuaJIT's FFI, which is switched off here; a:at and "
      .. "a[i] of numbers work without it")
  end
  return ffi.cast(dtypes.pointers[own(a, "ptr").dtype], a:address())
end

-- The oldest dialect asks a delivered value for its ndarray; delivered values are ndarrays here.
function methods.ndarray(a) return a end
function methods.numpy(a) return a end
function methods.ndarray_list(a) return { a } end
function methods.numpy_list(a) return { a } end

--- What help says of the methods that are written in C.
ndarray.texts = {
  [methods.at] = [[
a:at(i, j, ...)
The element at these indices, or with fewer of them the row or part, a view. a[i] is a:at(i).
Arrays of indices pick several, as a copy: a[rows] these rows, a:at(np.arange(#labels), labels) an element of each row.
An int8 array is a mask, as comparisons give it: a[a:gt(0)] has the elements where it is 1, one after the other, and of
a mask with fewer axes the rows or parts. Other arrays are broadcast against each other.
@return any
@error a place outside the array; a mask of another shape, or with another number than 0 and 1; floats]],
  [methods.set] = [[
a:set(i, j, ..., value)
Sets the element, or with fewer indices the row or part, to a number, a table or an array, with broadcasting.
a:set("0:10, ::2", value) sets a slice, as a:slice has them, and a[i] = value a row. Arrays are indices as in a:at:
a[a:lt(0)] = 0 sets what a mask says, a[rows] = value these rows; where a place stands twice the last value remains.
@return nil
@error what a:at refuses; a value that does not broadcast, or that the dtype would cut]],
  [methods.item] = [[
a:item()
The number that an array of one element holds.
@return number]],
  [methods.reshape] = [[
a:reshape(sizes)
The same memory in another shape; one size may be -1. Sizes as a list or as arguments.]],
  [methods.copy] = [[
a:copy()
The same values in memory of their own.
@error an argument: a:set("...", values) is what writes into an array]],
  [methods.tobytes] = [[
a:tobytes()
The raw little-endian bytes as a string; np.from_string reads them.
@return string]],
  [methods.totable] = [[
a:totable()
A (nested) Lua table of the numbers, from 1, as NumPy's tolist gives a list.
@return table]],
  [methods.release] = [[
a:release()
Gives the memory back now and not when garbage is collected. Views of it live on; `a.released` is true from then on.
@return nil]],
  [methods.address] = [[
a:address()
The first element as a light userdata; a:ptr() is an FFI pointer.
@return userdata]],
}

ndarray.print_options = {} -- of core.format

local core_tostring = metatable.__tostring
function metatable.__tostring(a)
  if next(ndarray.print_options) == nil then return core_tostring(a) end
  return core.format(a, ndarray.print_options)
end

require "moonflow.ndarray_slices"(ndarray)
require "moonflow.ndarray_names"

return ndarray
