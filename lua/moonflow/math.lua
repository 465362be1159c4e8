--- Other names and small combinations of ops: flow.matmul and flow.linalg.matmul, flow.math.relu, flow.math.add_n, ...

local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local errors = require "moonflow.errors"
local ops = require "moonflow.ops"
local trace = require "moonflow.trace"

local mathematics = {}

-- Where the same function stands under another path.
local aliases = {
  ["linalg.matmul"] = "matmul", ["math.matmul"] = "matmul",
  ["math.relu"] = "nn.relu", ["nn.gelu"] = "math.gelu", ["nn.sigmoid"] = "math.sigmoid", ["nn.tanh"] = "math.tanh",
  ["nn.log_softmax"] = "nn.logsoftmax", ["math.sigmoid_v2"] = "math.sigmoid", ["math.tanh_v2"] = "math.tanh",
  ["math.clip_by_value"] = "clip_by_value", ["math.clip"] = "clip_by_value", ["math.clamp"] = "clip_by_value",
  ["math.clip_by_scalar"] = "clip_by_value", ["clip"] = "clip_by_value", ["clip_by_scalar"] = "clip_by_value",
  ["clamp"] = "clip_by_value", ["math.reduce_variance"] = "math.reduce_var", ["math.floormod"] = "math.mod",
  ["math.smooth_l1_loss"] = "smooth_l1_loss", ["nn.smooth_l1_loss"] = "smooth_l1_loss",
}

local function at(flow, path)
  local value = flow
  for word in path:gmatch("[^.]+") do
    value = type(value) == "table" and rawget(value, word)
    if value == nil then return nil end
  end
  return value
end

local matmul_signature = arguments.signature("flow.matmul", {
  { "a", "operand" }, { "b", "operand" },
  { "transpose_a", "boolean", false, text = "take the transpose of a's last two axes" },
  { "transpose_b", "boolean", false, text = "take the transpose of b's last two axes" },
  { "name", "string?" },
})

local function rank_of(operand) return type(operand) == "number" and 0 or #operand.shape end

-- The product of each matrix of a stack with one matrix: that of all their rows, so nothing is repeated. A stack whose
-- matrices are to be transposed is transposed first.
local function stack_by_matrix(given, t)
  local a, b = blob.of(given.a, t, nil, "flow.matmul"), blob.of(given.b, t, nil, "flow.matmul")
  local rank = rank_of(a)
  if given.transpose_a then
    local turned = {}
    for axis = 1, rank do turned[axis] = axis - 1 end
    turned[rank - 1], turned[rank] = rank - 1, rank - 2
    a = ops.apply("transpose", { a }, { perm = turned })
  end
  local sizes = a.shape:table()
  local inner, columns = b.shape[0], b.shape[1]
  if given.transpose_b then inner, columns = columns, inner end
  if sizes[rank] ~= inner then
    matmul_signature:fail((": inner sizes differ: a is %s, b is %s, so %d against %d"):format(
      tostring(given.a.shape), tostring(b.shape), sizes[rank], inner))
  end
  local rows = 1
  for axis = 1, rank - 1 do rows = rows * sizes[axis] end
  local flat = ops.apply("reshape", { a }, { shape = { rows, inner } })
  local out = ops.apply("matmul", { flat, b }, { transpose_b = given.transpose_b }, given.name)
  sizes[rank] = columns
  return ops.apply("reshape", { out }, { shape = sizes })
end

local kMostResults = 7000  -- all values of a call are not to be 8,000 for LuaJIT

-- A value of few bits as one that sums of it fit into.
local function widened(x)
  if not blob.is(x) or x.dtype ~= "int8" and x.dtype ~= "uint8" then return x end
  return (ops.apply("cast", { x }, { dtype = "int64" }))
end

local function define(flow, path, parameters, doc, make)
  local where = "flow." .. path
  parameters[#parameters + 1] = { "name", "string?" }
  local signature = arguments.signature(where, parameters)
  local function call(...)
    local t = trace.need(where)
    return ops.compose(where, make, signature:parse(...), t, signature)
  end
  ops.document(call, where, signature, doc)
  ops.place(flow, path, call)
end

-- A function that does more than one of the catalog's: `make(as_it_is, values)`, with the arguments by their names.
local function extended(as_it_is, where, doc, make)
  local signature = ops.signature(as_it_is):called(where)
  local function call(...)
    trace.need(where)
    return make(as_it_is, signature:parse(...))
  end
  ops.document(call, where, signature, ops.doc(as_it_is) .. "\n" .. doc)
  return call
end

--- Puts them under `flow`.
function mathematics.complete(flow)
  local equal_ranks = flow.matmul
  flow.matmul = function(...)
    local t = trace.need("flow.matmul")
    local given = matmul_signature:parse(...)
    if rank_of(given.a) > 2 and rank_of(given.b) == 2 then return stack_by_matrix(given, t) end
    return equal_ranks(given)
  end
  ops.document(flow.matmul, "flow.matmul", matmul_signature, [[
Matrix product, the products of two stacks of matrices pair by pair, or those of a stack with one matrix.
  out[..., i, j] = sum over k of a[..., i, k] * b[..., k, j]
shapes: a (..., rows, inner), b (..., inner, columns) or (inner, columns) -> (..., rows, columns); with transpose_a a is
  (..., inner, rows), with transpose_b b is (..., columns, inner)
dtypes: float32, float64, bfloat16 or float16, both inputs alike; sums of the last two are float32
errors: inner or leading sizes differ; a rank below 2]])

  -- Comparisons give int8, of whose ones a sum would go over 127 in a batch.
  for name, summed in pairs { reduce_sum = "x", reduce_prod = "x", cumsum = "x", unsorted_segment_sum = "data" } do
    flow.math[name] = extended(flow.math[name], "flow.math." .. name, "int8 and uint8, as comparisons give them, are "
      .. "taken as int64.", function(as_it_is, values)
        values[summed] = widened(values[summed])
        return as_it_is(values)
      end)
  end

  flow.nn.sigmoid_cross_entropy_with_logits = extended(flow.nn.sigmoid_cross_entropy_with_logits,
    "flow.nn.sigmoid_cross_entropy_with_logits", "Labels of 0 and 1 may be of an integer dtype.",
    function(as_it_is, values)
      local labels, logits = values.labels, values.logits
      if blob.is(labels) and blob.is(logits) and not arguments.floating[labels.dtype] then
        values.labels = ops.apply("cast", { labels }, { dtype = logits.dtype })
      end
      return as_it_is(values)
    end)

  for name, value in pairs { zeros_like = 0, ones_like = 1 } do
    local as_it_is = flow[name]
    local signature = arguments.signature("flow." .. name, {
      { "x", "blob" }, { "dtype", "dtype?", text = "of the result; that of x when left out" }, { "name", "string?" },
    })
    flow[name] = function(...)
      local given = signature:parse(...)
      if not given.dtype then return as_it_is { x = given.x, name = given.name } end
      return ops.apply("constant", {}, { value = value, dtype = given.dtype, shape = given.x.shape:table() },
        given.name)
    end
    ops.document(flow[name], "flow." .. name, signature, ops.doc(as_it_is))
  end

  local within_one = flow.nn.hardtanh
  local hardtanh = arguments.signature("flow.nn.hardtanh", {
    { "x", "blob" }, { "min_val", "finite", -1, text = "the smallest result" },
    { "max_val", "finite", 1, text = "the largest" }, { "name", "string?" },
  })
  flow.nn.hardtanh = function(...)
    local given = hardtanh:parse(...)
    if given.min_val == -1 and given.max_val == 1 then return within_one { x = given.x, name = given.name } end
    if given.min_val > given.max_val then hardtanh:fail(": min_val is above max_val") end
    return (ops.apply("clip_by_value", { given.x }, { min = given.min_val, max = given.max_val }, given.name))
  end
  ops.document(flow.nn.hardtanh, "flow.nn.hardtanh", hardtanh, [[
Identity between two bounds.
  out = min(max(x, min_val), max_val)
shapes: x of any shape -> out of the same shape
dtypes: float32, float64]])

  -- What the optimizer would write too is found when the job is compiled.
  for _, name in ipairs { "assign", "assign_add" } do
    flow[name] = extended(flow[name], "flow." .. name, "A variable that the job also trains is an error: that takes a "
      .. "job of its own, called after this one.", function(as_it_is, values)
        if not blob.is(values.variable) then
          errors.raise("invalid_argument", "flow." .. name .. ": argument 1 ('variable') must be a variable, got "
            .. arguments.describe(values.variable))
        end
        local assigned, variable = trace.current().assigned, values.variable.name
        if name == "assign" and assigned[variable] then
          errors.raise("invalid_argument", ("flow.assign: '%s' is written at %s already, which would be lost; a run "
            .. "leaves a variable one value"):format(variable, assigned[variable]))
        end
        as_it_is(values)
        assigned[variable] = errors.site() or "?"
      end)
  end

  for path, of in pairs(aliases) do
    local value = at(flow, of)
    if value then ops.place(flow, path, ops.alias(value, path)) end
  end

  define(flow, "math.add_n", { { "inputs", "operands" } }, "The sum of a list of blobs of one shape.",
    function(given, _, signature)
      local inputs = given.inputs
      if #inputs == 0 then signature:fail(": inputs must be a list of blobs, got an empty one") end
      for i, input in ipairs(inputs) do
        if not blob.is(input) then
          signature:fail((": entry %d of inputs must be a blob, got %s"):format(i, arguments.describe(input)))
        end
      end
      local sum = inputs[1]
      for i = 2, #inputs - 1 do sum = sum + inputs[i] end
      if #inputs == 1 then return ops.apply("identity", { sum }, nil, given.name) end
      return ops.apply("add", { sum, inputs[#inputs] }, nil, given.name)
    end)

  define(flow, "constant_scalar", { { "value", "number" }, { "dtype", "dtype", "float32" } },
    "A scalar that is `value` in every run.", function(given)
      return ops.apply("constant", {}, { value = given.value, dtype = given.dtype, shape = {} }, given.name)
    end)

  define(flow, "constant_like", { { "like", "blob" }, { "value", "number" }, { "dtype", "dtype?" } },
    "`value` in the shape of `like`.", function(given)
      return ops.apply("constant", {},
        { value = given.value, dtype = given.dtype or given.like.dtype, shape = given.like.shape:table() }, given.name)
    end)

  define(flow, "split", { { "x", "blob" }, { "parts", "list" }, { "axis", "integer", 0 } }, [[
The parts of x along an axis, one after another: so many equal ones, or one of each of a list of sizes.
  local query, key, value = flow.split(x, 3, { axis = -1 })
Their gradients are joined again.]],
    function(given, _, signature)
      local x, sizes = given.x, given.parts
      local rank = #x.shape
      local axis = given.axis < 0 and given.axis + rank or given.axis
      if axis < 0 or axis >= rank then
        signature:fail((": x is %s, it has no axis %d"):format(tostring(x.shape), given.axis))
      end
      local size, sum = x.shape[axis], 0
      if type(sizes) == "number" then
        local count = sizes
        if count < 1 or count % 1 ~= 0 or size % count ~= 0 then
          signature:fail((": axis %d of x %s does not divide into %g equal parts; a list gives the size of each")
            :format(axis, tostring(x.shape), count))
        end
        sizes = {}
        for i = 1, count do sizes[i] = size / count end
      end
      sizes = arguments.flat_list(sizes, "flow.split")
      if #sizes > kMostResults then
        signature:fail((": %d parts are more than the %d values that a function may give"):format(#sizes, kMostResults))
      end
      local begin, extent, parts = {}, x.shape:table(), {}
      for i = 1, rank do begin[i] = 0 end
      for i, part in ipairs(sizes) do
        if type(part) ~= "number" or part < 0 or part % 1 ~= 0 then
          signature:fail((": entry %d of parts must be a size, got %s"):format(i, arguments.describe(part)))
        end
        begin[axis + 1], extent[axis + 1], sum = sum, part, sum + part
        if sum > size then break end
        local name = given.name and given.name .. "_" .. i - 1
        parts[i] = ops.apply("slice", { x }, { begin = begin, size = extent }, name)
      end
      if sum ~= size then
        signature:fail((": parts { %s } do not add up to the size of axis %d of x %s"):format(table.concat(sizes, ", "),
          axis, tostring(x.shape)))
      end
      return unpack(parts)
    end)

  -- A None of the original is a hole in a list of Lua, or nothing at its end.
  local box = flow.slice
  local box_signature = arguments.signature("flow.slice", {
    { "x", "blob" }, { "begin", "any", text = "first index along each leading axis; negative counts from the end" },
    { "size", "any", text = "how many along each of them; -1 is all that is left" }, { "name", "string?" },
  })
  local function without_holes(list, rank, rest)
    local kind, filled = arguments.kind(list), {}
    if kind == "number" or kind == "shape" then list, kind = arguments.flat_list(list), "table" end
    if kind ~= "table" then return list end
    for key, value in pairs(list) do
      if type(key) ~= "number" or key % 1 ~= 0 or key < 1 or key > rank then return list end
      filled[key] = value
    end
    for axis = 1, rank do filled[axis] = filled[axis] == nil and rest or filled[axis] end
    return filled
  end
  flow.slice = function(...)
    local given = box_signature:parse(...)
    local rank = #given.x.shape
    return box { x = given.x, begin = without_holes(given.begin, rank, 0), size = without_holes(given.size, rank, -1),
                 name = given.name }
  end
  ops.document(flow.slice, "flow.slice", box_signature, [[
A box cut out of x.
  out[i, j] = x[begin[0] + i, begin[1] + j]
shapes: x (4, 5) with begin = {1, 0}, size = {2, -1} -> out (2, 5); axes not named are kept whole
dtypes: any -> the same
errors: a box that leaves x
note: a nil in begin is 0 and one in size is -1]])

  -- slice_v2 of the original takes one { start, stop, step } per leading axis; nil is "not given".
  local plain_slice = flow.slice_v2
  if plain_slice then
    local signature = arguments.signature("flow.slice_v2", {
      { "x", "blob" }, { "slices", "entries", text = "{ start, stop, step } for each leading axis; nil is not given" },
      { "name", "string?" },
    })
    local function has_slices(list)
      return type(list) == "table" and not blob.is(list) and (type(list[1]) == "table" or list.slices
        or list.slice_tup_list)
    end
    flow.slice_v2 = function(...)
      local first, second = ...
      if not has_slices(first) and not has_slices(second) then return plain_slice(...) end
      local given = signature:parse(...)
      local x, slices = given.x, given.slices
      local start, stop, step = {}, {}, {}
      for axis, slice in ipairs(slices) do
        local flaw = type(slice) ~= "table" and "is " .. arguments.describe(slice)
        for key, value in pairs(flaw and {} or slice) do
          if key ~= 1 and key ~= 2 and key ~= 3 then flaw = "has '" .. tostring(key) .. "'" end
          if type(value) ~= "number" then flaw = "has " .. arguments.describe(value) end
        end
        if flaw then
          signature:fail((": the slice of axis %d %s, wanted { start, stop, step }"):format(axis - 1, flaw))
        end
        local size = axis <= #x.shape and x.shape[axis - 1]
          or signature:fail(": " .. #slices .. " slices for " .. tostring(x.shape))
        step[axis] = slice[3] or 1
        local forward = step[axis] > 0
        start[axis] = slice[1] or forward and 0 or -1
        stop[axis] = slice[2] or forward and size or -size - 1
      end
      return ops.apply("strided_slice", { x }, { start = start, stop = stop, step = step }, given.name)
    end
    ops.document(flow.slice_v2, "flow.slice_v2", signature, [[
Every step-th element of the leading axes, by Python's rules for start:stop:step.
  flow.slice_v2(x, { { 0, 10, 2 }, { nil, -1 } }) is x[0:10:2, :-1]
Also as lists of all starts, stops and steps: flow.slice_v2(x, start, stop, step = {}); without steps these are 1, and
-2^63 is not given.
shapes: x (4, 6) with { { 3, nil, -2 }, { 0, 5, 3 } } -> (2, 2); axes not named are whole
dtypes: any -> the same
errors: a step of 0; lists that differ in length. An index beyond the axis is cut to it]])
  end

  -- range of the original takes the stop alone too, as NumPy's arange does.
  local between = flow.range
  local range_signature = arguments.signature("flow.range", {
    { "start", "number?", engine_default = 0, text = "the first value; alone it is `stop`" },
    { "stop", "number?", text = "the end, not included" },
    { "step", "number?", engine_default = 1, text = "distance of neighbours, may be negative" },
    { "dtype", "dtype?", engine_default = "float32", text = "of the result" }, { "name", "string?" },
  })
  flow.range = function(...)
    local given = range_signature:parse(...)
    if not given.stop then given.start, given.stop = nil, given.start end
    return between { start = given.start or 0, stop = given.stop, step = given.step, dtype = given.dtype,
                     name = given.name }
  end
  ops.document(flow.range, "flow.range", range_signature, [[
Evenly spaced values, start + i * step as long as that is before stop; flow.range(stop) counts from 0.
shapes: -> (ceil((stop - start) / step)), empty when stop lies behind start
dtypes: all; computed in float64
errors: step is 0; a bound that is not finite]])

  define(flow, "masked_fill", { { "x", "blob" }, { "mask", "blob" }, { "value", "number" } }, [[
x with `value` where the mask (int8, as comparisons give it) is not 0. The mask broadcasts against x.]],
    function(given)
      return flow.where(given.mask, given.value, given.x, given.name)
    end)

  define(flow, "math.tril", { { "x", "blob" }, { "diagonal", "integer", 0 }, { "fill_value", "number", 0 } }, [[
The lower triangle of the matrices in the last two axes of x, and `fill_value` above it:
  out[..., i, j] = x[..., i, j] where j <= i + diagonal, else fill_value]],
    function(given, _, signature)
      local x, diagonal = given.x, given.diagonal
      local rank = #x.shape
      if rank < 2 then signature:fail(": x is " .. tostring(x.shape) .. ", it needs two axes for its matrices") end
      local rows, columns = x.shape[rank - 2], x.shape[rank - 1]
      diagonal = math.max(-rows, math.min(diagonal, columns))  -- beyond, nothing changes and int32 ends
      local function numbers(first, count, shape)
        local range = ops.apply("range", {}, { start = first, stop = first + count, dtype = "int32" })
        return ops.apply("reshape", { range }, { shape = shape })
      end
      local kept = numbers(0, columns, { 1, columns }):le(numbers(diagonal, rows, { rows, 1 }))
      return flow.where(kept, x, given.fill_value, given.name)
    end)

  local function filled(value)
    return function(given)
      return ops.apply("constant", {}, { value = value, dtype = given.dtype, shape = given.shape }, given.name)
    end
  end
  define(flow, "zeros", { { "shape", "list" }, { "dtype", "dtype", "float32" } }, "Zeros.", filled(0))
  define(flow, "ones", { { "shape", "list" }, { "dtype", "dtype", "float32" } }, "Ones.", filled(1))

  local function define_in_flow(...) define(flow, ...) end
  require("moonflow.random")(flow, define_in_flow)
  require("moonflow.picks")(flow)
  require("moonflow.segments")(flow, define_in_flow)
  require("moonflow.ported")(flow, define_in_flow)
end

return mathematics
