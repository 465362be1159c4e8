--- Stacks of matrices for flow.np.linalg: what takes one matrix takes each of those in the last two axes, one after the
-- other, or all in one pass where they are small.

local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"

local as_array = ndarray.as_array

local stacks = {}

--- Is it an array with an axis before those of a matrix?
function stacks.is(a)
  return type(a) ~= "number" and as_array(a, "np.linalg").rank > 2
end

-- The sizes of the axes from `first` to `last`.
local function sizes_of(a, first, last)
  local sizes = {}
  for axis = first, last do sizes[#sizes + 1] = a.shape[axis] end
  return sizes
end

local function joined(one, other)
  local sizes = { unpack(one) }
  for _, size in ipairs(other) do sizes[#sizes + 1] = size end
  return sizes
end

local function outer_of(a) return sizes_of(a, 0, a.rank - 3) end

-- The matrices of an array repeated to these sizes before them, along one axis.
local function along_one(a, outer, count)
  local matrix = sizes_of(a, a.rank - 2, a.rank - 1)
  return np.broadcast_to(a, joined(outer, matrix)):reshape(joined({ count }, matrix))
end

--- The matrices of `a`, and those of `b` where there is one, along one axis each, repeated as the axes before them
--- broadcast; and behind these two arrays the sizes of such axes that both have together.
--- @return ndarray, ndarray?, number[]
function stacks.along_one(a, b)
  a = as_array(a, "np.linalg")
  local outer = outer_of(a)
  if b then outer = (np.zeros(outer, "int8") + np.zeros(outer_of(b), "int8")).shape:table() end
  local count = 1
  for _, size in ipairs(outer) do count = count * size end
  return along_one(a, outer, count), b and along_one(b, outer, count), outer
end

--- What has one entry for each matrix along its first axis, with the axes of these sizes in its place.
function stacks.spread(whole, outer) return whole:reshape(joined(outer, sizes_of(whole, 1, whole.rank - 1))) end

--- What `compute` gives of each matrix of `a`, and of that of `b` that belongs to it where there is one, as arrays of
--- all of them. The axes before the matrices broadcast. Where it gives numbers, `dtype` is that of their array.
function stacks.each(compute, a, b, dtype)
  local one, other, outer = stacks.along_one(a, b)
  local count, lists = one.shape[0], {}
  local function note(place, ...)
    for k = 1, select("#", ...) do
      lists[k] = lists[k] or {}
      lists[k][place] = select(k, ...)
    end
  end
  for i = 0, count - 1 do
    if b then note(i + 1, compute(one[i], other[i])) else note(i + 1, compute(one[i])) end
  end
  if count == 0 then  -- the shapes are those of another matrix's results
    local some = np.eye(one.shape[1], one.shape[2], 0, one.dtype)
    if b then note(1, compute(some, np.zeros(sizes_of(other, 1, 2), other.dtype))) else note(1, compute(some)) end
  end
  for k, list in ipairs(lists) do
    local whole = type(list[1]) == "number" and np.array(list, dtype) or np.stack(list)
    if count == 0 then whole = whole:rows(0, 0) end
    lists[k] = stacks.spread(whole, outer)
  end
  return unpack(lists)
end

return stacks
