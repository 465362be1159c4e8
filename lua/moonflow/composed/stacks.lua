--- Stacks of matrices in a job, in the last two axes of values: those before them broadcast.

local blob = require "moonflow.blob"
local ops = require "moonflow.ops"

local stacks = {}

-- The axes before the matrices that both have together, the shorter list filled up with 1 in front; nil where they do
-- not fit.
local function common(left, right)
  local sizes, count = {}, math.max(#left, #right) - 2
  for i = 1, count do
    local one, other = left[#left - 2 - count + i] or 1, right[#right - 2 - count + i] or 1
    if one ~= other and one ~= 1 and other ~= 1 then return nil end
    sizes[i] = one == 1 and other or one
  end
  return sizes
end

local function spread(value, own, sizes)
  local shape, is_same = { unpack(sizes) }, #own == #sizes + 2
  for i, size in ipairs(sizes) do is_same = is_same and own[i] == size end
  if is_same then return value end
  shape[#shape + 1], shape[#shape + 2] = own[#own - 1], own[#own]
  return ops.apply("broadcast_to", { value }, { shape = shape })
end

--- Two values or arrays, named so among those given, with each repeated along the axes before its matrices that the
--- other one has more of. What is no matrix stays as it is.
function stacks.alike(given, one, other, t, signature)
  local a, b = blob.of(given[one], t, nil, signature.where), blob.of(given[other], t, nil, signature.where)
  local left, right = a.shape:table(), b.shape:table()
  if #left < 2 or #right < 2 then return a, b end
  local sizes = common(left, right) or signature:fail((": %s is %s, %s is %s, whose axes before the last two do not "
    .. "broadcast"):format(one, tostring(a.shape), other, tostring(b.shape)))
  return spread(a, left, sizes), spread(b, right, sizes)
end

return stacks
