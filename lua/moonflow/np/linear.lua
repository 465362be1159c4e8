--- The norms and covariances of flow.np.

local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"

local as_array, cast, floating = ndarray.as_array, ndarray.cast, ndarray.floating
local axis_of = ndarray.axis_of
local signature, flat_list, fail = arguments.signature, arguments.flat_list, errors.raise

-- ---- covariances --------------------------------------------------------------------------------------------------

local function covariance(given, called)
  local y = given.y
  local x = floating(ndarray.exact(given.m, called))
  -- A table has none of its own.
  local dtype = floating(as_array(given.m, called, ndarray.is_array(y) and y.dtype)).dtype
  if ndarray.is_array(y) then dtype = dtypes.promote(dtype, floating(y).dtype) end
  if x.rank > 2 then fail("shape_mismatch", called .. " wants rank 1 or 2, got " .. tostring(x.shape)) end
  local function variables(a)
    if a.rank < 2 then return a:reshape({ 1, -1 }) end
    return given.rowvar and a or a:transpose()
  end
  local is_number = x.rank < 2 and y == nil
  x = variables(x)
  if y ~= nil then x = np.concat({ x, variables(floating(ndarray.exact(y, called))) }, 0) end
  x = cast(x, "float64")
  local count = x.shape[1] - (given.ddof or given.bias and 0 or 1)
  if count <= 0 then
    fail("invalid_argument", ("%s: %d observations are too few; the last axis counts them, or the first one with "
      .. "rowvar = false"):format(called, x.shape[1]))
  end
  local centred = x - x:mean({ axis = 1, keepdims = true })
  return np.matmul(centred, centred:transpose()) / count, is_number, dtype
end

local cov_signature = signature("np.cov", { { "m", "any" }, { "y", "any?" }, { "rowvar", "boolean", true },
  { "bias", "boolean", false }, { "ddof", "integer?" } })
--- The covariances of variables, (variables, variables): each is a row of `m`, of observations, or with
--- `rowvar = false` a column; `y` has more of them. Divided by one less than there are observations, with
--- `bias = true` by all, else by `ddof` less. Of one variable of rank 1 its variance, a number. Computed in float64, of
--- the dtype of the data.
--- @return any
function np.cov(...)
  local result, is_number, dtype = covariance(cov_signature:parse(...), "np.cov")
  return is_number and result:item() or cast(result, dtype)
end

local corrcoef_signature = signature("np.corrcoef",
  { { "m", "any" }, { "y", "any?" }, { "rowvar", "boolean", true } })
--- The correlations of variables, from -1 to 1: np.cov divided by the deviations of both. Of what never changes NaN.
--- Computed in float64, of the dtype of the data.
--- @return any
function np.corrcoef(...)
  local result, is_number, dtype = covariance(corrcoef_signature:parse(...), "np.corrcoef")
  local deviation = np.sqrt(np.diag(result))
  -- One after the other, for the product of both deviations may be too large or too small for the dtype.
  result = np.clip(result / deviation / deviation:reshape({ -1, 1 }), -1, 1)
  return is_number and result:item() or cast(result, dtype)
end

-- ---- norms ------------------------------------------------------------------------------------------

local linalg = {}
np.linalg = linalg

local vector_norm
function vector_norm(x, order, axes, keepdims)
  local options = { axis = axes, keepdims = keepdims }
  if dtypes.narrow[x.dtype] then  -- whose squares may be too large
    local norm = vector_norm(ndarray.cast(x, "float32"), order, axes, keepdims)
    return type(norm) == "number" and norm or ndarray.cast(norm, x.dtype)
  end
  if order == 2 then return np.sqrt(np.sum(x * x, options)) end
  if order == 0 then return np.sum(ndarray.cast(x:ne(0), x.dtype), options) end
  local size = np.abs(x)
  if order == math.huge then return np.max(size, options) end
  if order == -math.huge then return np.min(size, options) end
  if order == 1 then return np.sum(size, options) end
  local sum = np.sum(np.power(size, order), options)
  return type(sum) == "number" and sum ^ (1 / order) or np.power(sum, 1 / order)
end

-- Of the singular values of a matrix the greatest, the least, or the sum.
local function singular_norm(x, order, keepdims)
  if x.rank ~= 2 then
    fail("unsupported", ("np.linalg.norm: the order %s is that of one matrix at a time, got %s"):format(
      tostring(order), tostring(x.shape)))
  end
  local _, s = linalg.svd(x)
  local options = { axis = 0, keepdims = true }
  local result = order == "nuc" and np.sum(s, options) or order == 2 and np.max(s, options) or np.min(s, options)
  return result:reshape(keepdims and { 1, 1 } or {})
end

-- Sums along one axis of matrices, and the greatest or least of them along the other.
local function matrix_norm(x, order, axes, keepdims)
  if order == "fro" then return vector_norm(x, 2, axes, keepdims) end
  local rows, columns = axis_of(x, axes[1], "np.linalg.norm"), axis_of(x, axes[2], "np.linalg.norm")
  if order == 2 or order == -2 or order == "nuc" then return singular_norm(x, order, keepdims) end
  local size = math.abs(order)
  if size ~= 1 and size ~= math.huge then
    fail("invalid_argument", ("np.linalg.norm: there is no order %s of matrices; \"fro\", \"nuc\", 1, -1, 2, -2, inf "
      .. "and -inf are there"):format(tostring(order)))
  end
  local summed, other = rows, columns
  if size == math.huge then summed, other = columns, rows end
  local sums = np.sum(np.abs(x), { axis = summed, keepdims = true })
  local result = order > 0 and np.max(sums, { axis = other, keepdims = true })
    or np.min(sums, { axis = other, keepdims = true })
  return keepdims and result or np.squeeze(result, { rows, columns })
end

local norm_signature = signature("np.linalg.norm",
  { { "x", "any" }, { "ord", "any?" }, { "axis", "list?" }, { "keepdims", "boolean", false } })
--- The length of a vector, (sum |x|^ord)^(1 / ord): of all elements, or of those along `axis`. `ord` is 2 without a
--- word; inf is the greatest, -inf the least and 0 how many are not 0. With two axes, or of rank 2 with `ord`, that
--- of matrices: "fro", 1 and -1 (the greatest and least sum of a column), inf and -inf (of a row), and of a single
--- matrix 2, -2 and "nuc" (the greatest and least singular value, and their sum). Without an axis a number.
--- @return any
function linalg.norm(...)
  local given = norm_signature:parse(...)
  local order, keepdims, axes = given.ord, given.keepdims, given.axis and flat_list(given.axis)
  local x = floating(as_array(given.x, "np.linalg.norm", not axes and not keepdims and "float64" or nil))
  if type(order) ~= "number" and order ~= nil and order ~= "fro" and order ~= "nuc" then
    fail("invalid_argument", "np.linalg.norm: ord is a number, \"fro\" or \"nuc\", got " .. arguments.describe(order))
  end
  local of_matrix = order ~= nil and (axes and #axes == 2 or not axes and x.rank == 2)
  if axes and (#axes < 1 or #axes > 2) or order ~= nil and not axes and x.rank > 2
      or type(order) == "string" and not of_matrix then
    fail("shape_mismatch", ("np.linalg.norm: the norm %s of %s along %s: it is that of a vector, one axis, or of a "
      .. "matrix, two"):format(tostring(order or 2), tostring(x.shape),
      axes and "{ " .. table.concat(axes, ", ") .. " }" or "all axes"))
  end
  local result
  if of_matrix then
    result = matrix_norm(x, order, axes or { 0, 1 }, keepdims)
  else
    result = vector_norm(x, order or 2, axes, keepdims)
  end
  if axes or keepdims or type(result) == "number" then return result end
  return result:item()
end
