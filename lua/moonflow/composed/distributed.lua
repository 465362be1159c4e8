--- Collectives: what the processes that compute together do with each other's values, in jobs and with arrays. How they
-- come together is in moonflow.distributed.

local blob = require "moonflow.blob"
local ndarray = require "moonflow.ndarray"
local ops = require "moonflow.ops"
local session = require "moonflow.session"
local trace = require "moonflow.trace"

-- In a job it is the op; outside of one the same is done with arrays at once, when the runs before have ended: all
-- processes are to come to everything in one order.
local function define(word, op, parameters, doc)
  local path = "distributed." .. word
  table.insert(parameters, 1, { "x", "operand" })
  local function attrs_of(given) return { reduction = given.reduction, root = given.root, topic = given.name } end
  local function with_arrays(...)
    local signature = ops.signature(ops.at(path))
    local given = signature:parse(...)
    local x = ndarray.as_array(given.x, signature.where)
    session.sync()
    return (ndarray.evaluate(op, { x }, attrs_of(given), signature.where))
  end
  ops.define(path, parameters, doc, function(given, t)
    local x = blob.is(given.x) and given.x or ops.constant(t, ndarray.as_array(given.x, "flow." .. path))
    return ops.apply(op, { x }, attrs_of(given), given.name)
  end, function() return not trace.current() and with_arrays end)
end

define("all_reduce", "all_reduce",
  { { "reduction", "string", "sum", text = "\"sum\", \"mean\", \"max\" or \"min\"" } },
  [[A value of all processes, reduced element by element in the order of their ranks, so that all get the same bits: in
a job a value of it, elsewhere an array. All processes have to call it, as they have to call their jobs, in one order.
A process alone gets what it gave. A train job's gradients are reduced without it. Where it is a part of the loss, the
gradient is that of all processes' losses together, as each depends on the x of all.
  out[i] = sum over ranks of x[i], or their mean, maximum or minimum
shapes: x of any shape, the same in all processes -> the same
dtypes: all; a mean wants floating ones
gradient: the same reduction of the gradients; that of a maximum or minimum is an error
errors: processes that have come to different calls; one that has not come within the patience of `join`]])

define("broadcast", "broadcast_from",
  { { "root", "integer", 0, text = "the rank of the process whose value it is" } },
  [[The value of one process, in all of them: in a job a value of it, elsewhere an array.
  out = x of the process `root`
shapes: x of any shape, the same in all processes -> the same
dtypes: all
gradient: at the root the sum of those of all processes, elsewhere 0
errors: a root that there is not; processes that have come to different calls; one that has not come within the
  patience of `join`]])

define("all_gather", "all_gather", {},
  [[The rows of all processes, in the order of their ranks: in a job a value of it, elsewhere an array. A loss that
compares each example with those of all, as a contrastive one does, is of these.
  out = the x of all processes, joined along axis 0
shapes: x (n, ...), the same in all processes -> (size * n, ...)
dtypes: all
gradient: of the own rows, the sum of those of all processes
errors: processes that have come to different calls; one that has not come within the patience of `join`]])
