-- flow.np: a small NumPy, enough to prepare data and to look at results. Makes arrays and compares them.
-- What goes element by element is in np/elementwise.lua, and what only whole numbers have in np/whole_numbers.lua; what
-- draws is in np/random.lua and the files of that name, what sorts and counts in np/order.lua, what gives and takes
-- places in np/places.lua, what cuts and repeats in np/shape.lua, what sums up data in np/statistics.lua, what goes
-- along curves in np/curves.lua and np/polynomials.lua, what reads and writes files in np/files.lua, np/sounds.lua,
-- np/text.lua and np/torch7.lua, other sizes of pictures in np/pictures.lua; linear algebra is in np/products.lua,
-- np/linear.lua, np/equations.lua, np/factors.lua and np/eigenvalues.lua; methods and operators of arrays are in
-- ndarray.lua.
-- float32 is the default dtype. Arrays, axes and indices count from 0; Lua tables from 1.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"

local evaluate, cast, as_array, is_array = ndarray.evaluate, ndarray.cast, ndarray.as_array, ndarray.is_array
local signature, flat_list = arguments.signature, arguments.flat_list
local fail = errors.raise

np.random = require "moonflow.np.random"

-- ---- making arrays ------------------------------------------------------------------------------------------------

local array_signature = signature("np.array", { { "source", "any" }, { "dtype", "dtype?" } })
--- An array of a number, a (nested) table of numbers, a table of arrays of one shape, or another array (copied).
--- Numbers become float32 where no dtype is said, whole ones too: `np.array({ 2, 0, 1 }, "int64")`. Arrays keep theirs.
--- It has `shape` (`a.shape[0]` is the first size, `a.shape:count()` how many elements, `a.shape:table()` a list),
--- `rank`, `dtype`, `nbytes` and `released`; `#a` is the first size, a[i] row i, from 0, and `==` tells whether all is
--- equal. The operators + - * / % ^ go element by element, and broadcast, with arrays, tables and numbers. Two dtypes
--- become one that holds both, as in NumPy, where int32 and float32 give float64; a number takes that of the array, but
--- a fraction makes float64 of integers, as their division does.
function np.array(source, ...)
  local dtype = array_signature:parse(source, ...).dtype
  if is_array(source) then return source:astype(dtype or source.dtype) end
  if ndarray.holds_arrays(source) then
    local stacked = as_array(source, "np.array")
    return dtype and cast(stacked, dtype) or stacked
  end
  if type(source) == "cdata" and not tonumber(source) then
    fail("invalid_argument", "np.array: of memory of the FFI it does not know how many elements there are, got "
      .. arguments.describe(source) .. "; np.from_string(ffi.string(pointer, bytes), shape, dtype) makes an array of "
      .. "it, and ffi.copy(a:ptr(), pointer, a.nbytes) writes it into one")
  end
  return errors.blaming("np.array", core.array, source, dtype)
end

local asarray_signature = signature("np.asarray", { { "source", "any" }, { "dtype", "dtype?" } })
--- The array itself where it has the dtype, else an array of it as np.array makes one.
function np.asarray(...)
  local given = asarray_signature:parse(...)
  local source = given.source
  if is_array(source) and (given.dtype == nil or given.dtype == source.dtype) then return source end
  return np.array(source, given.dtype)
end

local from_string_signature = signature("np.from_string",
  { { "bytes", "string" }, { "shape", "list" }, { "dtype", "stored", "float32" } })
--- An array of raw little-endian bytes. There is no dtype of two bytes for whole numbers; those of the buffers of
--- sounds and maps of depth, "int16" and "uint16", become int32: `np.from_string(bytes, { n }, "int16") / 32768`.
function np.from_string(...)
  local given = from_string_signature:parse(...)
  if dtypes.stored[given.dtype] then return core.widened(given.bytes, given.dtype, flat_list(given.shape)) end
  return core.array(given.bytes, given.dtype, flat_list(given.shape))
end

-- Sizes that stand one by one, as those of a:reshape may, as a list of them, and what comes behind.
local function with_list(...)
  local given, sizes = { ... }, {}
  while type(given[#sizes + 1]) == "number" do sizes[#sizes + 1] = given[#sizes + 1] end
  if #sizes < 2 then return ... end
  return sizes, unpack(given, #sizes + 1, select("#", ...))
end

-- np.zeros(shape) and np.zeros_like(a), and so on.
local function filled(name, make)
  local called = "np." .. name
  local shape_and_dtype = signature(called, { { "shape", "list" }, { "dtype", "dtype", "float32" } })
  np[name] = function(...)
    local given = shape_and_dtype:parse(with_list(...))
    return make(given.dtype, flat_list(given.shape), called)
  end
  --- As np.zeros, np.ones or np.empty, in the shape of another array, and in its dtype where none is said.
  local array_and_dtype = signature(called .. "_like", { { "a", "ndarray" }, { "dtype", "dtype?" } })
  np[name .. "_like"] = function(...)
    local given = array_and_dtype:parse(...)
    return make(given.dtype or given.a.dtype, given.a.shape:table(), called .. "_like")
  end
end

local function full(dtype, shape, value, called)
  return (evaluate("broadcast_to", { core.array(value, dtype, {}) }, { shape = shape }, called))
end

--- Zeros in this shape: np.zeros({ 2, 3 }), and np.zeros(2, 3) as well.
--- @overload fun(...: integer): ndarray
filled("zeros", core.zeros)
--- An array of this shape whose elements are left open, for one that is written as a whole; shapes as of np.zeros.
--- @overload fun(...: integer): ndarray
filled("empty", core.empty)
--- Ones in this shape: np.ones({ 2, 3 }), and np.ones(2, 3) as well.
--- @overload fun(...: integer): ndarray
filled("ones", function(dtype, shape, called) return full(dtype, shape, 1, called) end)

local full_signature = signature("np.full",
  { { "shape", "list" }, { "value", "number" }, { "dtype", "dtype", "float32" } })
--- One value everywhere.
function np.full(...)
  local given = full_signature:parse(...)
  return full(given.dtype, flat_list(given.shape), given.value, "np.full")
end
local full_like_signature = signature("np.full_like",
  { { "a", "ndarray" }, { "value", "number" }, { "dtype", "dtype?" } })
--- One value everywhere, in the shape and dtype of another array.
function np.full_like(...)
  local given = full_like_signature:parse(...)
  return full(given.dtype or given.a.dtype, given.a.shape:table(), given.value, "np.full_like")
end

local arange_signature = signature("np.arange",
  { { "start", "number" }, { "stop", "number?" }, { "step", "number", 1 }, { "dtype", "dtype?" } })
--- Numbers from `start` (0 when only one is given) up to, not including, `stop`: int64 if all are whole, else float32.
function np.arange(...)
  local given = arange_signature:parse(...)
  local start, stop, step = given.start, given.stop, given.step
  if not stop then start, stop = 0, start end
  if step == 0 then fail("invalid_argument", "np.arange: the step is 0") end
  local whole = start % 1 == 0 and stop % 1 == 0 and step % 1 == 0
  local dtype = given.dtype or whole and "int64" or "float32"
  local count = math.ceil((stop - start) / step)
  if not dtypes.floating[dtype] and dtype ~= "int64" and count > 0 and count < math.huge then
    local last = start + (count - 1) * step
    local least, most = math.min(start, last), math.max(start, last)
    if least <= dtypes.least[dtype] - 1 or most >= dtypes.most[dtype] + 1 then
      fail("out_of_range", ("np.arange: the numbers go from %.17g to %.17g, and do not fit %s"):format(start, last,
        dtype))
    end
  end
  return (evaluate("range", {}, { start = start, stop = stop, step = step, dtype = dtype }, "np.arange"))
end

local function check_count(count, called)
  if count < 0 then fail("invalid_argument", ("%s: the count must be at least 0, got %d"):format(called, count)) end
end

local linspace_signature = signature("np.linspace",
  { { "start", "number" }, { "stop", "number" }, { "count", "integer", 50 }, { "dtype", "dtype", "float32" },
    { "endpoint", "boolean", true } })
--- `count` numbers from `start` to `stop`, both included; with `endpoint = false` those of one more but for the last.
--- With an integer dtype they must all be whole.
function np.linspace(...)
  local given = linspace_signature:parse(...)
  local start, stop, count, dtype = given.start, given.stop, given.count, given.dtype
  check_count(count, "np.linspace")
  local steps = given.endpoint and count - 1 or count
  local step = steps > 0 and (stop - start) / steps or 0
  if not dtypes.floating[dtype] and (start % 1 ~= 0 or step % 1 ~= 0) then
    fail("invalid_argument", ("np.linspace: %d numbers from %g to %g are not all whole, so they are no %s"):format(
      count, start, stop, dtype))
  end
  local places = evaluate("range", {}, { start = 0, stop = count, dtype = "float64" }, "np.linspace")
  local a = cast(places * step + start, dtype)
  -- Both ends are exact, and a dtype that does not reach them says so.
  if count > 0 then a[0] = start end
  if count > 1 and given.endpoint then a[count - 1] = stop end
  return a
end

-- Values of float64 in another dtype, rounded where it has no fractions. What does not fit is refused.
local function rounded_to(values, dtype, called)
  if dtypes.floating[dtype] then return cast(values, dtype) end
  values = np.rint(values)
  for _, value in ipairs(values.nbytes > 0 and { values:min(), values:max() } or {}) do
    if not (value >= dtypes.least[dtype] and value <= dtypes.most[dtype]) then
      fail("out_of_range", ("%s: %.17g does not fit %s"):format(called, value, dtype))
    end
  end
  return cast(values, dtype)
end

-- Powers of a base with equally spaced exponents; the whole ones of an integer dtype are rounded to it.
local function powers(base, exponents, dtype, called)
  return rounded_to(np.power(np.array(base, "float64"), exponents), dtype, called)
end

local logspace_signature = signature("np.logspace", { { "start", "number" }, { "stop", "number" },
  { "count", "integer", 50 }, { "base", "number", 10 }, { "dtype", "dtype", "float32" } })
--- `count` powers of `base`, whose exponents go from `start` to `stop` as np.linspace has them: learning rates to try,
--- `np.logspace(-4, -1, 4)`. In an integer dtype each is rounded.
function np.logspace(...)
  local given = logspace_signature:parse(...)
  check_count(given.count, "np.logspace")
  return powers(given.base, np.linspace(given.start, given.stop, given.count, "float64"), given.dtype, "np.logspace")
end

local geomspace_signature = signature("np.geomspace",
  { { "start", "number" }, { "stop", "number" }, { "count", "integer", 50 }, { "dtype", "dtype", "float32" } })
--- `count` numbers from `start` to `stop`, both included, each the same multiple of the one before it. In an integer
--- dtype each is rounded.
--- @error 0 as an end; ends of different signs
function np.geomspace(...)
  local given = geomspace_signature:parse(...)
  local start, stop, count, dtype = given.start, given.stop, given.count, given.dtype
  check_count(count, "np.geomspace")
  if start == 0 or stop == 0 or (start > 0) ~= (stop > 0) then
    fail("invalid_argument", ("np.geomspace: from %g to %g no number is the same multiple of the one before it; both "
      .. "ends are above 0, or both below"):format(start, stop))
  end
  local a = powers(stop / start, np.linspace(0, 1, count, "float64"), "float64") * start
  if count > 0 then a[0] = start end
  if count > 1 then a[count - 1] = stop end
  return rounded_to(a, dtype, "np.geomspace")
end

-- Where the diagonal of a matrix (rows, columns) that begins `k` columns to the right, or with a negative one so many
-- rows down, lies in the flattened matrix: { start, stop, step } of a slice.
local function diagonal(rows, columns, k)
  local size = math.max(0, math.min(rows + math.min(k, 0), columns - math.max(k, 0)))
  local start = size > 0 and (k < 0 and -k * columns or k) or 0
  return { start, start + size * (columns + 1), columns + 1 }
end

local eye_signature = signature("np.eye", { { "size", "integer" }, { "columns", "integer?" }, { "k", "integer", 0 },
  { "dtype", "dtype", "float32" } })
--- The identity matrix (size, size), or with `columns` of another number of them; its ones are `k` places to the right
--- of the diagonal, or to the left of it with a negative `k`. The rows of the identity picked by class ids are one-hot:
--- `np.eye(10):take(labels, 0)`.
function np.eye(...)
  local given = eye_signature:parse(...)
  local rows, columns = given.size, given.columns or given.size
  if rows < 0 or columns < 0 then
    fail("invalid_argument", ("np.eye: sizes must be at least 0, got %d and %d"):format(rows, columns))
  end
  local flat = np.zeros({ rows * columns }, given.dtype)
  flat:set(diagonal(rows, columns, given.k), 1)
  return flat:reshape({ rows, columns })
end

local diag_signature = signature("np.diag", { { "a", "any" }, { "k", "integer", 0 } })
--- The diagonal of a matrix; or of an array of rank 1 the square matrix that has it there and zeros elsewhere. `k` is
--- one so many places to the right of the main one, or to the left with a negative `k`.
function np.diag(...)
  local given = diag_signature:parse(...)
  local a, k = as_array(given.a, "np.diag"), given.k
  if a.rank ~= 1 and a.rank ~= 2 then
    fail("shape_mismatch", "np.diag wants an array of rank 1 or 2, got " .. tostring(a.shape))
  end
  if a.rank == 2 then return a:ravel():slice(diagonal(a.shape[0], a.shape[1], k)) end
  local size = #a + math.abs(k)
  local flat = np.zeros({ size * size }, a.dtype)
  flat:set(diagonal(size, size, k), a)
  return flat:reshape({ size, size })
end

local diagonal_signature = signature("np.diagonal",
  { { "a", "any" }, { "offset", "integer", 0 }, { "axis1", "integer", 0 }, { "axis2", "integer", 1 } })
--- The diagonals of the matrices along two axes, as the last axis of a copy. `offset` is 0 for the main one, 1 for the
--- one above it. np.diag also makes a matrix of one.
--- @error an array of rank below 2; an axis that stands twice
function np.diagonal(...)
  local given = diagonal_signature:parse(...)
  local called, a = "np.diagonal", as_array(given.a, "np.diagonal")
  if a.rank < 2 then fail("shape_mismatch", called .. " wants matrices, got " .. tostring(a.shape)) end
  local rows, columns = ndarray.axis_of(a, given.axis1, called), ndarray.axis_of(a, given.axis2, called)
  if rows == columns then
    fail("invalid_argument", ("%s: axis1 and axis2 are both %d"):format(called, rows))
  end
  local order, shape = {}, {}
  for axis = 0, a.rank - 1 do
    if axis ~= rows and axis ~= columns then
      order[#order + 1], shape[#shape + 1] = axis, a.shape[axis]
    end
  end
  order[#order + 1], order[#order + 2] = rows, columns
  shape[#shape + 1] = a.shape[rows] * a.shape[columns]
  local planes = a:transpose(order):reshape(shape)
  return ndarray.cut(planes, #shape - 1, diagonal(a.shape[rows], a.shape[columns], given.offset))
end

local fill_signature = signature("np.fill_diagonal", { { "a", "ndarray" }, { "value", "any" } })
--- Writes `value`, a number or one for each place, to the diagonal of a matrix. The matrix is changed itself; nothing
--- is given back.
--- @return nil
function np.fill_diagonal(...)
  local given = fill_signature:parse(...)
  local a = given.a
  if a.rank ~= 2 then fail("shape_mismatch", "np.fill_diagonal wants a matrix, got " .. tostring(a.shape)) end
  local size = math.min(a.shape[0], a.shape[1])
  a:reshape({ -1 }):set(diagonal(a.shape[0], a.shape[1], 0),
    ndarray.fitted(given.value, a.dtype, { size }, "np.fill_diagonal"))
end

-- ---- joining and shaping ------------------------------------------------------------------------------------------

local function join(op)
  local called = "np." .. op
  local join_signature = signature(called, { { "arrays", "entries" }, { "axis", "integer", 0 } })
  return function(...)
    local given = join_signature:parse(...)
    local list, dtype = ndarray.alike(given.arrays, called)
    if not dtype then fail("invalid_argument", called .. " wants at least one array") end
    return (evaluate(op, list, { axis = given.axis }, called))
  end
end

--- The arrays one after another along an axis they have: `np.concat({ a, b }, 0)`.
np.concat = join("concat")
--- Another name of np.concat.
np.concatenate = np.concat

--- The arrays, all of one shape, along a new axis.
np.stack = join("stack")

local expand_signature = signature("np.expand_dims", { { "a", "any" }, { "axis", "integer" } })
--- A copy with a new axis of size 1 before `axis`; -1 is after the last. a:reshape gives a view.
function np.expand_dims(...)
  local given = expand_signature:parse(...)
  return (evaluate("expand_dims", { as_array(given.a, "np.expand_dims") }, { axis = given.axis }, "np.expand_dims"))
end

local squeeze_signature = signature("np.squeeze", { { "a", "any" }, { "axis", "list?" } })
--- A copy without the axes of size 1, or without these. a:reshape gives a view.
function np.squeeze(...)
  local given = squeeze_signature:parse(...)
  local axes = given.axis and flat_list(given.axis) or {}
  return (evaluate("squeeze", { as_array(given.a, "np.squeeze") }, { axis = axes }, "np.squeeze"))
end

-- Functions that are methods of arrays too: np.sum(a, 1) is a:sum(1), and takes tables and numbers as well.
local reductions = { "sum", "prod", "mean", "std", "var", "max", "min", "any", "all", "argmax", "argmin" }
local shapings = { "reshape", "ravel", "transpose", "take", "copy" }

for _, name in ipairs(reductions) do
  local method, called = core.ndarray_methods[name], "np." .. name
  np[name] = function(a, ...)
    if is_array(a) then return method(a, ...) end
    return ndarray.as_made(method(ndarray.exact(a, called), ...), a)
  end
end

for _, name in ipairs(shapings) do
  local method, called = core.ndarray_methods[name], "np." .. name
  np[name] = function(a, ...) return method(as_array(a, called), ...) end
end

-- ---- comparing arrays ---------------------------------------------------------------------------------------------

local equal_signature = signature("np.array_equal", { { "a", "any" }, { "b", "any" } })
--- Same shape and all elements equal.
--- @return boolean
function np.array_equal(...)
  local given = equal_signature:parse(...)
  local a, b = ndarray.both_exact(given.a, given.b, "np.array_equal")
  return a.shape == b.shape and a:eq(b):all()
end

local closeness = { { "a", "any" }, { "b", "any" }, { "rtol", "number", 1e-5 }, { "atol", "number", 1e-8 },
                    { "equal_nan", "boolean", false } }
local isclose_signature = signature("np.isclose", closeness)
--- 1 where |a - b| <= atol + rtol * |b|, int8. An infinity is close to itself alone; so is a NaN with `equal_nan`, and
--- else to nothing. Of two numbers a number.
--- @return any
function np.isclose(...)
  local given = isclose_signature:parse(...)
  local a, b = ndarray.both_exact(given.a, given.b, "np.isclose")
  a, b = a:astype("float64"), b:astype("float64")
  local is_near = np.abs(a - b):le(given.atol + given.rtol * np.abs(b)) * np.isfinite(b)
  local is_close = np.logical_or(a:eq(b), is_near)
  if given.equal_nan then is_close = np.logical_or(is_close, np.isnan(a) * np.isnan(b)) end
  return type(given.a) == "number" and type(given.b) == "number" and is_close:item() or is_close
end

local allclose_signature = signature("np.allclose", closeness)
--- Whether np.isclose holds everywhere.
--- @return boolean
function np.allclose(...)
  local given = allclose_signature:parse(...)
  local is_close = np.isclose(given)
  if type(is_close) == "number" then return is_close == 1 end
  return is_close:all()
end

local printing_signature = signature("np.set_printoptions",
  { { "precision", "integer?" }, { "threshold", "integer?" }, { "edgeitems", "integer?" },
    { "linewidth", "integer?" } })
--- How arrays are printed: precision (8), threshold (1000), edgeitems (3), linewidth (75).
--- @return nil
function np.set_printoptions(...)
  for name, value in pairs(printing_signature:parse(...)) do ndarray.print_options[name] = value end
end

require "moonflow.np.elementwise"
require "moonflow.np.order"
require "moonflow.np.places"
require "moonflow.np.shape"
require "moonflow.np.products"
require "moonflow.np.linear"
require "moonflow.np.equations"
require "moonflow.np.factors"
require "moonflow.np.eigenvalues"
require "moonflow.np.spectra"
require "moonflow.np.statistics"
require "moonflow.np.curves"
require "moonflow.np.polynomials"
require "moonflow.np.whole_numbers"
require "moonflow.np.text"
require "moonflow.np.files"
require "moonflow.np.pictures"
require "moonflow.np.sounds"
require "moonflow.np.torch7"
require "moonflow.np.minimize"
--- The product with another array, and the elements no less than one number and no more than another, as np has them.
for _, name in ipairs({ "dot", "clip" }) do
  core.ndarray_methods[name] = function(a, ...) return np[name](ndarray.own(a, name), ...) end
end
for _, dtype in ipairs(dtypes.names) do np[dtype] = dtype end
np.pi, np.e, np.inf, np.nan = math.pi, math.exp(1), math.huge, 0 / 0

return np
