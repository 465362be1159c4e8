--- flow.linalg: what is made of matrices beside its ops.

local exponentials = require "moonflow.formulas.exponentials"
local np = require "moonflow.np.functions"
local ops = require "moonflow.ops"
local stacks = require "moonflow.composed.stacks"
local tools = require "moonflow.composed.tools"

local flow = ops.functions

for _, name in ipairs { "solve", "triangular_solve" } do
  ops.extend("linalg." .. name, "Leading axes broadcast: one matrix may be for a stack of right sides, and one of "
    .. "these for a stack of matrices.", function(as_it_is, given, t, signature)
    given.matrix, given.rhs = stacks.alike(given, "matrix", "rhs", t, signature)
    return as_it_is(given)
  end)
end

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

-- Enough for a norm of 5.6 million, as that of what stiff equations are made of.
local HALVINGS = 20

ops.define("linalg.expm", { { "x", "blob" } }, [[
exp of square matrices, in the last two axes of x: the sum of x^k / k! with powers of the matrix.
  x' = A x has the solution x(t) = expm(A t) x(0); of a skew-symmetric A expm(A) is a rotation.
shapes: x (..., n, n) -> out (..., n, n)
dtypes: float32, float64 -> the same
note: NaN where the sizes of the elements of a row add up to more than 5.6 million.
source: Higham, The scaling and squaring method for the matrix exponential revisited (2005)
errors: matrices that are not square]],
  function(given, t, signature)
    local x = given.x
    local rank = #x.shape
    if rank < 2 or x.shape[rank - 1] ~= x.shape[rank - 2] then
      signature:fail((": x is %s, it needs square matrices in its last two axes"):format(tostring(x.shape)))
    end
    if x.dtype ~= "float32" and x.dtype ~= "float64" then
      signature:fail((": x is %s, wanted float32 or float64; flow.cast(x, flow.float32) makes it one"):format(
        tostring(x.dtype)))
    end
    if x.shape:count() == 0 then return (ops.apply("identity", { x }, nil, given.name)) end
    local eye = np.eye(x.shape[rank - 1], { dtype = x.dtype })
    return exponentials.of(tools.new(t, signature, given.name or t:unnamed("Expm")), x, eye, HALVINGS)
  end)
