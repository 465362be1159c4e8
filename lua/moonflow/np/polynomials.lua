--- The functions of flow.np for polynomials: lists of coefficients, that of the highest power first. np.roots, where
-- one is 0, is in np/eigenvalues.lua.

local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"

local cast, as_array = ndarray.cast, ndarray.as_array
local signature, fail = arguments.signature, errors.raise

local polyfit_signature = signature("np.polyfit", { { "x", "any" }, { "y", "any" }, { "deg", "integer" },
  { "w", "any?" } })
--- The polynomial of degree `deg` that comes nearest to the points (x[i], y[i]), by least squares: its coefficients,
--- float64, that of the highest power first, as np.polyval takes them. `w`, one for each point, weighs its distance
--- before it is squared: 1 / deviation of a measurement.
--- shapes: x (n), y (n) or (n, curves) -> (deg + 1) or (deg + 1, curves)
--- @error deg below 0; x and y of other shapes or without points
function np.polyfit(...)
  local given = polyfit_signature:parse(...)
  local x, y = as_array(given.x, "np.polyfit", "float64"), as_array(given.y, "np.polyfit", "float64")
  x, y = x:astype("float64"), y:astype("float64")
  if given.deg < 0 then
    fail("invalid_argument", ("np.polyfit: deg must be at least 0, got %d"):format(given.deg))
  end
  if x.rank ~= 1 or #x == 0 or y.rank < 1 or y.rank > 2 or #y ~= #x then
    fail("shape_mismatch", ("np.polyfit: x is %s and y is %s, wanted (n) and (n) or (n, curves)"):format(
      tostring(x.shape), tostring(y.shape)))
  end
  local columns = np.vander(x, given.deg + 1)
  if given.w ~= nil then
    local w = as_array(given.w, "np.polyfit", "float64"):astype("float64")
    if w.shape ~= x.shape then
      fail("shape_mismatch", ("np.polyfit: w is %s for points %s"):format(tostring(w.shape), tostring(x.shape)))
    end
    columns, y = columns * w:reshape({ -1, 1 }), y * (y.rank == 2 and w:reshape({ -1, 1 }) or w)
  end
  -- Powers are of very different sizes; as vectors of length 1 they are told apart.
  local length = np.sqrt((columns * columns):sum(0))
  length = np.where(length:eq(0), 1, length)
  local fit = np.linalg.lstsq(columns / length, y, #x * 2 ^ -52)
  return fit / (y.rank == 2 and length:reshape({ -1, 1 }) or length)
end

local polyval_signature = signature("np.polyval", { { "p", "any" }, { "x", "any" } })
--- The polynomial with these coefficients, that of the highest power first, at `x`; of a number a number.
--- @return any
function np.polyval(...)
  local given = polyval_signature:parse(...)
  local p = as_array(given.p, "np.polyval")
  if p.rank ~= 1 then
    fail("shape_mismatch", "np.polyval wants coefficients along one axis, got " .. tostring(p.shape))
  end
  local x, value = given.x, 0
  if type(x) ~= "number" then
    x = as_array(x, "np.polyval", ndarray.is_array(given.p) and p.dtype)
    if ndarray.is_array(given.p) then x = cast(x, dtypes.promote(x.dtype, p.dtype)) end
    value = np.zeros_like(x)
  end
  local coefficients = ndarray.is_array(given.p) and p:totable() or given.p
  for _, coefficient in ipairs(coefficients) do value = value * x + coefficient end
  return value
end

-- Coefficients as an array; a number is a polynomial of degree 0.
local function coefficients(p, called)
  local a = as_array(p, called, "float64")
  if a.rank == 0 then a = a:reshape({ 1 }) end
  if a.rank ~= 1 or #a == 0 then
    fail("shape_mismatch", called .. " wants coefficients along one axis, got " .. tostring(a.shape))
  end
  return a
end

-- Both, and the longer length.
local function two_of(p, q, called)
  p, q = coefficients(p, called), coefficients(q, called)
  return p, q, math.max(#p, #q)
end

local function defined(name, compute)
  local called = "np." .. name
  local two = signature(called, { { "p", "any" }, { "q", "any" } })
  np[name] = function(...)
    local given = two:parse(...)
    return compute(two_of(given.p, given.q, called))
  end
end

-- With zeros for the higher powers of another one.
local function padded(p, length) return np.pad(p, { { length - #p, 0 } }) end

--- The sum of two polynomials.
defined("polyadd", function(p, q, length) return padded(p, length) + padded(q, length) end)
--- The difference of two polynomials.
defined("polysub", function(p, q, length) return padded(p, length) - padded(q, length) end)
--- The product of two polynomials, whose coefficients are np.convolve's of theirs.
defined("polymul", function(p, q) return np.convolve(p, q) end)
--- What the polynomial `p` divided by `q` is, and what is left over, of a lower degree than `q`:
--- `local quotient, rest = np.polydiv(p, q)`.
--- @return ndarray, ndarray
--- @error a `q` whose first coefficient is 0
defined("polydiv", function(p, q)
  local dtype = dtypes.promote(ndarray.floating(p).dtype, ndarray.floating(q).dtype)
  local rest, divisor = p:astype("float64"), q:astype("float64")
  local first = divisor:at(0)
  if first == 0 then fail("invalid_argument", "np.polydiv: the first coefficient of q is 0") end
  local steps = math.max(#p - #q + 1, 0)
  local quotient = np.zeros({ math.max(steps, 1) }, "float64")
  for i = 0, steps - 1 do
    quotient[i] = rest:at(i) / first
    rest:set({ i, i + #q }, rest:slice({ i, i + #q }) - divisor * quotient:at(i))
  end
  -- Of the places behind the quotient those from the first that is not 0.
  rest = rest:slice({ steps, #p })
  local left = np.flatnonzero(rest)
  rest = #left > 0 and rest:slice({ left:at(0), #rest }) or np.zeros({ 1 }, "float64")
  return cast(quotient, dtype), cast(rest, dtype)
end)

-- How often, for np.polyder and np.polyint.
local function check_times(times, called)
  if times < 0 then fail("invalid_argument", ("%s: m must be at least 0, got %d"):format(called, times)) end
end

local polyder_signature = signature("np.polyder", { { "p", "any" }, { "m", "integer", 1 } })
--- The `m`-th derivative of a polynomial.
function np.polyder(...)
  local given = polyder_signature:parse(...)
  check_times(given.m, "np.polyder")
  local p = coefficients(given.p, "np.polyder")
  for _ = 1, given.m do
    if #p == 1 then return np.zeros_like(p) end
    p = p:slice({ 0, #p - 1 }) * np.arange(#p - 1, 0, -1):astype(p.dtype)
  end
  return p
end

local polyint_signature = signature("np.polyint", { { "p", "any" }, { "m", "integer", 1 }, { "k", "number", 0 } })
--- What has a polynomial for its `m`-th derivative, and `k` for each constant that this leaves open.
function np.polyint(...)
  local given = polyint_signature:parse(...)
  check_times(given.m, "np.polyint")
  local p = ndarray.floating(coefficients(given.p, "np.polyint"))
  for _ = 1, given.m do
    p = np.append(p / np.arange(#p, 0, -1):astype(p.dtype), np.array({ given.k }, p.dtype))
  end
  return p
end

local vander_signature = signature("np.vander",
  { { "x", "any" }, { "n", "integer?" }, { "increasing", "boolean", false } })
--- The powers of each element of `x` as a row, from x^(n - 1) down to 1, or with `increasing` up; `n` is the size of
--- `x` where it is not said. np.polyval is their product with the coefficients.
--- shapes: x (points) -> (points, n)
function np.vander(...)
  local given = vander_signature:parse(...)
  local x = as_array(given.x, "np.vander", "float64")
  local count = given.n or x.rank == 1 and #x
  if x.rank ~= 1 or count < 0 then
    fail("shape_mismatch", ("np.vander: x is %s and n %s, wanted numbers along one axis and how many powers"):format(
      tostring(x.shape), tostring(given.n)))
  end
  local columns, power = {}, np.ones_like(x)
  for i = 1, count do
    columns[given.increasing and i or count + 1 - i] = power
    power = power * x
  end
  return count == 0 and np.zeros({ #x, 0 }, x.dtype) or np.stack(columns, 1)
end
