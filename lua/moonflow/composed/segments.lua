--- What is said of segments in terms of their sums and maxima: the mean, and a softmax within each.

local ops = require "moonflow.ops"

local flow = ops.functions

local parameters = { { "data", "blob" }, { "segment_ids", "operand" }, { "num_segments", "integer" },
                     { "axis", "integer", 0 } }

-- The axis from the front: the slices by segment may have fewer axes than the data.
local function axis_of(given) return given.axis < 0 and given.axis + #given.data.shape or given.axis end

local sum_of, max_of = flow.math.unsorted_segment_sum, flow.math.unsorted_segment_max

local function quotient(given, a, b)
  local dtype = given.data.dtype
  if a.dtype == dtype then return ops.apply("divide", { a, b }, nil, given.name) end
  return ops.apply("cast", { ops.apply("divide", { a, b }) }, { dtype = dtype }, given.name)
end

-- float32 cannot count beyond this, and a sum of so many is no better.
local kFloatCounts = 2 ^ 24

ops.define("math.unsorted_segment_mean", parameters, [[
Means of the slices of data that belong to one segment.
  out[a..., s, b...] = mean of data[a..., i..., b...] over all i with segment_ids[i...] == s; 0 where there are none
shapes: data (10, 4), segment_ids (10), num_segments = 3, axis = 0 -> out (3, 4)
  segment_ids have the axes of data from `axis` on
dtypes: data of a floating dtype -> the same; segment_ids of an integer dtype
errors: those of flow.math.unsorted_segment_sum]],
  function(given)
    local data, ids, count = ops.widened(given.data), given.segment_ids, given.num_segments
    local is_many = type(ids) ~= "number" and ids.shape:count() > kFloatCounts
    if is_many and data.dtype == "float32" then data = flow.cast(data, "float64") end
    local sums = sum_of(data, ids, count, given.axis)
    local axis = axis_of(given)
    local beside = { count }  -- as the sums have the segments, and 1 for each axis behind
    for _ = axis + 1, #sums.shape - 1 do beside[#beside + 1] = 1 end
    local counts = sum_of(flow.ones(ids.shape:table(), { dtype = data.dtype }), ids, count)
    return quotient(given, sums, flow.reshape(flow.math.maximum(counts, 1), beside))
  end)

ops.define("math.unsorted_segment_softmax", parameters, [[
The softmax of the elements within their segments, as a node of a graph weighs the edges that lead to it.
  out[i] = exp(data[i]) / sum of exp(data[j]) over all j with segment_ids[j] == segment_ids[i]
shapes: data (10, 4), segment_ids (10), num_segments = 3, axis = 0 -> out (10, 4), of each of the 4 for itself
  segment_ids have the axes of data from `axis` on
dtypes: data of a floating dtype -> the same; segment_ids of an integer dtype
errors: those of flow.math.unsorted_segment_sum
note: shifted by the maximum of each segment, so nothing overflows]],
  function(given)
    local data, ids, count, axis = ops.widened(given.data), given.segment_ids, given.num_segments, axis_of(given)
    local function of_each(by_segment) return flow.gather(by_segment, ids, axis) end
    local shift = of_each(max_of(flow.stop_gradient(data), ids, count, axis))
    local powers = flow.math.exp(data - shift)
    return quotient(given, powers, of_each(sum_of(powers, ids, count, axis)))
  end)
