--- Blob: a value of a job while the job is traced. It has a shape, a dtype and a name, and no data.
-- Operators and methods append ops to the job's graph.

local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local slices = require "moonflow.slices"
local trace = require "moonflow.trace"

local blob = {}

local Blob = { kind = "blob" }

local methods = {}
arguments.publish("Blob", "blob", methods,
  "eq ge gt le lt ne equal greater greater_equal less less_equal not_equal slice")

local kind_of = arguments.kind

-- What a value has beside its methods; `site` may be unknown.
local fields = { "shape", "dtype", "name", "site", "logical_blob_name", "unique_name", "op_name", "blob_name" }

-- Asked of data, not of a graph value.
local data_words = {}
for word in ([[mean sum max min prod std item numpy ndarray totable tolist at set ptr any all argmax argmin copy astype
numpy_list ndarray_list nbytes data]]):gmatch("%S+") do data_words[word] = true end

-- Methods of tensors elsewhere for which no function of one value stands, and what does.
local elsewhere = {}
for words, ours in pairs {
  ["size Size numel nElement dim ndim nDimension"] =
    "x.shape[0] is its first size, x.shape:count() how many elements it has, #x.shape how many axes",
  ["t T mT"] = "flow.transpose(x) turns its axes around",
  ["float double half int long byte to type type_as typeAs"] = "flow.cast(x, flow.float) is it in another dtype",
  ["cuda cpu gpu device"] = "flow.scope.placement says where a job runs",
  ["clone contiguous"] = "nothing changes a value, so it needs no copy",
  ["fill zero zero_ fill_"] = "flow.zeros_like(x) and flow.ones_like(x) are new values of its shape",
  ["mul div sub cmul cdiv csub mul_ div_ sub_ add add_"] = "+, -, * and / compute with it",
  ["expandAs expand_as"] = "flow.broadcast_like(x, y) has the shape of y",
  ["index indexSelect"] = "flow.gather(x, indices) takes rows",
  ["location"] = "x.site is the line that made it",
  ["batch_axis split_axis is_dynamic is_tensor_list parallel_conf parallel_size"] =
    "a job runs on one device, with the shapes of its placeholders: leave it out",
  ["grad backward requires_grad requires_grad_ gradInput"] = "flow.gradients(loss, x) is its gradient, and "
    .. "optimizer:minimize(loss) trains",
} do
  for word in words:gmatch("%S+") do elsewhere[word] = ours end
end

-- The function of a job that does what the word says. Help knows of all of them, and is made after this.
local function function_called(word)
  return require("moonflow.help").in_job(word)
end

-- What scripts read of a blob lies behind these keys, so that a script which sets it comes to __newindex.
local held = { shape = "(shape)", dtype = "(dtype)", name = "(name)" }

function Blob.__index(self, key)
  local at = held[key]
  if at then return rawget(self, at) end
  local method = methods[key]
  if method then return method end
  if key == "logical_blob_name" or key == "unique_name" then
    local name = self.trace.graph:blob_name(self.id)
    rawset(self, key, name)
    return name
  elseif key == "op_name" then
    return (self.logical_blob_name:match("^(.*)/[^/]*$"))
  elseif key == "blob_name" then
    return (self.logical_blob_name:match("([^/]*)$"))
  elseif data_words[key] then
    local name = function_called(key)
    errors.raise("wrong_state", "'" .. self.name .. "' is a graph value with no data, so it has no '" .. key
      .. "'; return it from the job or watch it with flow.watch"
      .. (name and ", or compute with it by " .. name .. "(x)" or ""))
  elseif type(key) ~= "string" then
    errors.raise("wrong_state", "'" .. self.name .. "' is a graph value with no data, so it has no element "
      .. (blob.is(key) and "[" .. key.name .. "]; flow.where and flow.masked_fill choose by a mask, and flow.gather "
        .. "takes rows" or arguments.describe(key) .. "; x:slice(\"0, 1:3\") and flow.gather take parts of it, and "
        .. "flow.dim_gather one element of each row"))
  elseif elsewhere[key] then
    errors.raise("not_found", "'" .. self.name .. "' is a graph value and has no '" .. key .. "'; " .. elsewhere[key])
  elseif key ~= "site" then
    local name = function_called(key)
    errors.raise("not_found", "'" .. self.name .. "' is a graph value and has no '" .. key .. "'"
      .. (name and "" or arguments.suggestion(key, fields)) .. "; what computes with it is a function, "
      .. (name or "such as flow.transpose") .. "(x)")
  end
  return nil
end

local changed = {
  shape = "flow.reshape(x, shape) is it in another shape", dtype = "flow.cast(x, dtype) is it in another dtype",
  name = "flow.identity(x, { name = name }) is it under another name",
}

function Blob.__newindex(self, key)
  if changed[key] then
    errors.raise("wrong_state", "'" .. self.name .. "' is a graph value, whose " .. key .. " stays; " .. changed[key])
  end
  errors.raise("wrong_state", "'" .. self.name .. "' is a graph value with no data, so nothing can be put at "
    .. (type(key) == "number" and "place " .. key or arguments.describe(key))
    .. "; flow.where, flow.stack, flow.concat and flow.tensor_scatter_nd_update make a new value")
end

--- Wraps a value of a graph. Open watch scopes take note of it.
--- @param t table      the trace it belongs to
--- @param id number    its id in the graph
--- @param name string  what the user calls it
--- @param site string  "file:line" where it was made
function blob.new(t, id, name, site)
  local dtype, shape = t.graph:type(id)
  local self = setmetatable({ trace = t, id = id, site = site,
                              ["(name)"] = name, ["(dtype)"] = dtype, ["(shape)"] = shape }, Blob)
  for _, scope in ipairs(t.watch_scopes) do scope:note(self) end
  return self
end

--- Is `value` a blob?
function blob.is(value)
  return getmetatable(value) == Blob
end

--- Checks that a blob belongs to the job being traced, and gives its id.
function blob.id_of(value, t, what)
  if value.trace ~= t then
    errors.raise("invalid_argument", what .. ": '" .. value.name .. "' is a value of the job '" .. value.trace.job
      .. "'" .. (value.site and value.site ~= "" and " (made at " .. value.site .. ")" or "")
      .. "; a job sees only its own values" .. (value.trace.job == t.job and ", made in the same trace" or ""))
  end
  return value.id
end

-- Does the dtype hold the number, where it is one of integers?
local function holds(dtype, number)
  if dtypes.floating[dtype] then return true end
  if number % 1 ~= 0 then return false end
  if dtype == "int64" then return number >= -2 ^ 63 and number < 2 ^ 63 end
  return number >= dtypes.least[dtype] and number <= dtypes.most[dtype]
end

--- The id of an operand: a blob, or a number or ndarray that becomes a constant of this dtype.
function blob.operand(value, t, dtype, what)
  local kind = kind_of(value)
  if kind == "blob" then return blob.id_of(value, t, what) end
  if kind == "number" then
    if not holds(dtype, value) then
      local whole = value % 1 == 0
      errors.raise(whole and "out_of_range" or "dtype_mismatch", ("%s: %.14g %s, and the other operand is %s; cast it "
        .. "first"):format(what, value, whole and "does not fit" or "is not a whole number", dtype))
    end
    return t:constant(value, dtype, nil, errors.site())
  end
  if kind == "ndarray" then return t:constant(value, nil, nil, errors.site()) end
  errors.raise("invalid_argument", what .. " wants blobs, arrays or numbers, got " .. arguments.describe(value)
    .. arguments.hint_of("operand", value))
end

--- The ops whose operands are blob.compared.
blob.comparisons = { equal = true, not_equal = true, less = true, less_equal = true, greater = true,
                     greater_equal = true }

--- The operands of a comparison, ids, in the dtype that holds both where they are integers of two dtypes, as a class
--- of argmax, int64, and a label are. Beside a number that their dtype does not hold integers are compared in float64,
--- as those of arrays are. `dtype` is that of the operand which is no number.
function blob.compared(t, a, b, dtype, what, site)
  local number = type(a) == "number" and a or type(b) == "number" and b
  local wide = number and not holds(dtype, number) and "float64"
  local left, right = blob.operand(a, t, wide or dtype, what), blob.operand(b, t, wide or dtype, what)
  local of_left, of_right = t.graph:type(left), t.graph:type(right)
  if not wide then
    if of_left == of_right or dtypes.floating[of_left] or dtypes.floating[of_right] then return left, right end
    wide = dtypes.promote(of_left, of_right)
  end
  local function widened(id, of)
    if of == wide then return id end
    return t:append("cast", { id }, { dtype = wide }, t:claim(nil, "cast", site), site)
  end
  return widened(left, of_left), widened(right, of_right)
end

--- An operand as a blob.
function blob.of(value, t, dtype, what)
  if blob.is(value) then return value end
  return blob.new(t, blob.operand(value, t, dtype, what), "Constant", errors.site())
end

local function binary(op, a, b, what)
  local of = blob.is(a) and a or b
  local t = trace.need(what)
  local site = errors.site()
  local left, right
  if blob.comparisons[op] then
    left, right = blob.compared(t, a, b, of.dtype, what, site)
  else
    left, right = blob.operand(a, t, of.dtype, what), blob.operand(b, t, of.dtype, what)
  end
  local name = t:claim(nil, op, site)
  return blob.new(t, t:append(op, { left, right }, nil, name, site), name, site)
end

local function unary(op, a, what)
  local t = trace.need(what)
  local site = errors.site()
  local name = t:claim(nil, op, site)
  return blob.new(t, t:append(op, { blob.id_of(a, t, what) }, nil, name, site), name, site)
end

for symbol, entry in pairs {
  ["+"] = { "__add", "add" }, ["-"] = { "__sub", "subtract" }, ["*"] = { "__mul", "multiply" },
  ["/"] = { "__div", "divide" }, ["%"] = { "__mod", "mod" },
} do
  local op, what = entry[2], "operator '" .. symbol .. "'"
  Blob[entry[1]] = function(a, b) return binary(op, a, b, what) end
end

-- A square is a product, and so is its gradient: many times faster than a power.
function Blob.__pow(a, b)
  if b == 2 then return unary("square", a, "operator '^'") end
  return binary("pow", a, b, "operator '^'")
end

function Blob.__unm(a) return unary("negative", a, "operator '-'") end

-- Lua turns what these give into true or false, so they cannot build a graph.
local function no_order()
  errors.raise("wrong_state", "'<' and '<=' cannot compare graph values, they have no data yet; "
    .. "use a:less(b), a:less_equal(b), a:greater(b) or a:greater_equal(b), and flow.where to choose by it; `if` "
    .. "cannot ask for it")
end
Blob.__lt, Blob.__le = no_order, no_order

for name, short in pairs {
  equal = "eq", not_equal = "ne", less = "lt", less_equal = "le", greater = "gt", greater_equal = "ge",
} do
  local what = "blob:" .. name
  --- Element-wise comparison with a blob or a number; int8 with 1 where it holds.
  local function compare(a, b) return binary(name, a, b, what) end
  methods[name], methods[short] = compare, compare
end

--- Part of a value, as a:slice takes it of an array: NumPy's text for all axes, `x:slice("0:10, ::2, -1")`, or for
--- each a number or a table { start, stop, step }, `x:slice({ low, high }, {}, 3)`. Half open, from 0, negative from
--- the end, "..." for axes between. A number drops its axis: of (batch, length), `x:slice(":, " .. t)` is (batch).
--- shapes: x (4, 6) with "3:0:-2, :5" -> (2, 5); with "..., -1" -> (4); with "1, 2" -> ()
--- @return Blob
--- @error a number outside of its axis; more entries than axes; a step of 0
function methods.slice(x, ...)
  if not blob.is(x) then arguments.want_colon("blob:slice") end
  local t, site = trace.need("blob:slice"), errors.site()
  local id = blob.id_of(x, t, "blob:slice")
  local function apply(op, attrs)
    local name = t:claim(nil, op, site)
    id = t:append(op, { id }, attrs, name, site)
    x = blob.new(t, id, name, site)
  end
  local first, step, count, kept = slices.picked(x.shape, ...)
  local stop, is_box, is_whole = {}, true, true
  for axis, size in ipairs(count) do
    local whole = x.shape[axis - 1]
    is_box, is_whole = is_box and step[axis] == 1, is_whole and step[axis] == 1 and size == whole
    stop[axis] = first[axis] + size * step[axis]
    if stop[axis] < 0 then stop[axis] = -whole - 1 end  -- before the first; -1 would be the last
  end
  if is_box and not is_whole then
    apply("slice", { begin = first, size = count })
  elseif not is_box then
    apply("strided_slice", { start = first, stop = stop, step = step })
  end
  if #kept < #count then apply("reshape", { shape = kept }) end
  return x
end

--- Ways to split a value over devices; on one device it is the value itself.
local function itself(self) return self end
for _, name in ipairs { "with_distribute", "with_gradient_distribute", "with_split_distribute",
                        "with_broadcast_distribute" } do
  methods[name] = itself
end

Blob.uncallable = true
function Blob.__call(self)
  errors.raise("invalid_argument", "'" .. self.name .. "' is a graph value, not a function")
end

function Blob.__tostring(self)
  return "blob '" .. self.logical_blob_name .. "' " .. self.dtype .. " " .. tostring(self.shape)
    .. (self.site and self.site ~= "" and " (made at " .. self.site .. ")" or "")
end

function Blob.__concat(a, b)
  return tostring(a) .. tostring(b)
end

return blob
