--- flow.linalg: what is made of matrices beside its ops.

local ops = require "moonflow.ops"
local tools = require "moonflow.composed.tools"

local flow = ops.functions

ops.define("linalg.diag_part", { { "x", "blob" } }, [[
The diagonals of the matrices in the last two axes of x.
  out[..., i] = x[..., i, i]
shapes: x (..., rows, columns) -> out (..., k), with k the smaller of rows and columns
dtypes: all -> the same
note: of L = flow.linalg.cholesky(x) the logarithm of det(x) is
  2 * flow.math.reduce_sum(flow.math.log(flow.linalg.diag_part(L)), -1)
errors: less than two axes]],
  function(given, t, signature)
    local sizes = given.x.shape:table()
    if #sizes < 2 then
      signature:fail((": x is %s, it needs two axes for its matrices"):format(tostring(given.x.shape)))
    end
    local columns, rows = table.remove(sizes), table.remove(sizes)
    local places = {}
    for i = 0, math.min(rows, columns) - 1 do places[i + 1] = i * (columns + 1) end
    sizes[#sizes + 1] = rows * columns
    return tools.new(t, signature, given.name):pick(flow.reshape(given.x, sizes), #sizes - 1, places)
  end)
