-- What an array says when it is asked for a name that it has not: how one writes here what NumPy, Torch7 and PyTorch
-- have as methods and fields, or the nearest of its own.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local np = require "moonflow.np.functions"

local methods, fail = core.ndarray_methods, errors.raise

local PROPERTIES = { "shape", "dtype", "rank", "nbytes", "released" }
local FOREIGN = { T = "a:transpose()", ndim = "a.rank", size = "a.shape:count()", tolist = "a:totable()",
                  flatten = "a:ravel():copy()", dot = "np.matmul", view = "a:reshape", fill = 'a:set("...", value)',
                  round = "np.round", clip = "np.clip", abs = "np.abs", clamp = "np.clip",
                  clone = "a:copy()", contiguous = "a:copy()", zero = 'a:set("...", 0)', cmul = "a * b", mul = "a * b",
                  cdiv = "a / b", div = "a / b", sub = "a - b", t = "a:transpose()", permute = "a:transpose",
                  nElement = "a.shape:count()", numel = "a.shape:count()", dim = "a.rank", nDimension = "a.rank",
                  narrow = 'a:slice("2:5")', select = 'a:slice(":, 0")', index = "a:take", indexSelect = "a:take",
                  index_select = "a:take", gather = "np.take_along_axis", maskedSelect = "a[mask]",
                  masked_select = "a[mask]", maskedFill = "a[mask] = value", masked_fill = "a[mask] = value",
                  float = "a:astype(flow.float)", double = "a:astype(flow.double)", long = "a:astype(flow.int64)",
                  int = "a:astype(flow.int32)", byte = "a:astype(flow.uint8)", norm = "np.linalg.norm(a)",
                  topk = "np.argsort(a, { descending = true })", expand = "np.broadcast_to",
                  expandAs = "np.broadcast_to", ["repeat"] = "np.tile", repeatTensor = "np.tile",
                  unsqueeze = "np.expand_dims", scatter = "a:set(rows, places, values)", cat = "np.concat",
                  histc = "np.histogram(a)", csub = "a - b", mm = "np.matmul", bmm = "np.matmul", mv = "np.matmul",
                  addmm = "c + np.matmul(a, b)", ger = "np.outer", type = "a.dtype", pow = "a ^ n",
                  apply = "a function of np, or a:ptr() in a loop", map = "a function of np, or a:ptr() in a loop",
                  cinv = "1 / a", isContiguous = "a:copy()", chunk = "np.array_split",
                  maskedCopy = "a[mask] = values", indexCopy = "a[rows] = values", indexFill = "a[rows] = value",
                  indexAdd = "np.add_at(a, rows, values)", nonzero = "np.argwhere", storage = "a:ptr()",
                  data = "a:ptr()", uniform = "np.random.uniform(low, high, a.shape)",
                  normal = "np.random.normal(mean, deviation, a.shape)",
                  bernoulli = "np.random.binomial(1, p, a.shape)", random = "np.random.randint(low, high, a.shape)",
                  to = "a:astype, as flow.scope.placement says where a job runs",
                  detach = "a itself, which has no gradient",
                  cuda = "flow.scope.placement, which says where a job runs",
                  cpu = "flow.scope.placement, which says where a job runs" }

-- Asked for what is neither a method nor a property. What the user would be given is nil, which says nothing.
setmetatable(methods, { __index = function(_, key)
  local near = FOREIGN[key]
  if not near and key:find("^[%d%s:,.+-]+$") then near = ('a:slice("%s")'):format(key) end
  if not near and type(rawget(np, key)) == "function" then near = "np." .. key .. "(a)" end
  if not near then
    local names = { unpack(PROPERTIES) }
    for name in next, methods do names[#names + 1] = name end
    table.sort(names)
    near = arguments.nearest(key, names)
  end
  return fail("not_found", "an ndarray has no '" .. key .. "'" .. (near and "; did you mean " .. near .. "?" or ""))
end })
