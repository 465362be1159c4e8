--- What lies between two neighbours of a sorted array, for quantiles of all values and of those that are not NaN.

local dtypes = require "moonflow.dtypes"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"

local cast = ndarray.cast

--- below * (1 - share) + above * share, where a number or an array says the share: no step of it is too large for the
--- dtype, and between two equal ones, infinities too, there is nothing else.
return function(below, above, share)
  local dtype = below.dtype
  if dtypes.narrow[dtype] then below, above = cast(below, "float32"), cast(above, "float32") end
  if ndarray.is_array(share) then share = cast(share, below.dtype) end
  return cast(np.where(below:eq(above), below, below * (1 - share) + above * share), dtype)
end
