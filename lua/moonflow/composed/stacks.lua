--- Stacks of matrices in a job, in the last two axes of values: those before them broadcast.

local blob = require "moonflow.blob"
local ops = require "moonflow.ops"

local stacks = {}

-- The sizes before those of a matrix.
local function outer(sizes) return { unpack(sizes, 1, #sizes - 2) } end

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
  local sizes = ops.broadcast(outer(left), outer(right))
  if not sizes then
    signature:fail((": %s is %s, %s is %s, whose axes before the last two do not broadcast"):format(one,
      tostring(a.shape), other, tostring(b.shape)))
  end
  return spread(a, left, sizes), spread(b, right, sizes)
end

return stacks
