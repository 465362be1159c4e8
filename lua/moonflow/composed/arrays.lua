--- Values that are filled, cut and written: flow.zeros, flow.range, flow.split, flow.slice, flow.assign and others.

local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local borders = require "moonflow.formulas.borders"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local np = require "moonflow.np.functions"
local ops = require "moonflow.ops"
local tools = require "moonflow.composed.tools"
local trace = require "moonflow.trace"
local windows = require "moonflow.formulas.windows"

local flow = ops.functions

-- ---- filled -------------------------------------------------------------------------------------------------------

local function full(value, shape, given, t)
  return ops.apply("constant", {}, { value = value, dtype = given.dtype or ops.default_dtype(t), shape = shape },
    given.name)
end

for name, value in pairs { zeros = 0, ones = 1 } do
  ops.define(name, { { "shape", "list" }, ops.result_dtype }, value == 0 and "Zeros." or "Ones.",
    function(given, t) return full(value, given.shape, given, t) end)
end

ops.define("constant_scalar", { { "value", "number" }, ops.result_dtype }, "A scalar that is `value` in every run.",
  function(given, t) return full(given.value, {}, given, t) end)

ops.define("constant_like", {
    { "like", "blob" }, { "value", "number" },
    { "dtype", "dtype?", text = "of the result; that of `like` when left out" },
  },
  "`value` in the shape of `like`.", function(given)
    return ops.apply("constant", {},
      { value = given.value, dtype = given.dtype or given.like.dtype, shape = given.like.shape:table() }, given.name)
  end)

for name, value in pairs { zeros_like = 0, ones_like = 1 } do
  local as_it_is = flow[name]
  ops.define(name, {
    { "x", "blob" }, { "dtype", "dtype?", text = "of the result; that of x when left out" },
  }, ops.doc(as_it_is), function(given)
    if not given.dtype then return as_it_is { x = given.x, name = given.name } end
    return ops.apply("constant", {}, { value = value, dtype = given.dtype, shape = given.x.shape:table() }, given.name)
  end)
end

ops.define("pad", {
  { "x", "blob" }, { "paddings", "list", text = "pairs (before, after), one for each axis" },
  { "constant_value", "any?", text = "the value of the border, 0 when left out" }, { "mode", "string", "constant" },
}, [[
x with a border of one value, or one in which its axes go on. In it stands, by `mode`,
  "constant": constant_value
  "edge": the element at the end of the axis (also called replication)
  "reflect": the axis running backwards, without its last element again, as in a mirror that stands on it
  "symmetric": the axis running backwards, with its last element again
  "wrap": the axis from its other end on (also called circular)
shapes: x (3, 4) with paddings = {0, 1, 2, 2} -> out (4, 8): pairs (before, after), one for each axis
dtypes: any -> the same
errors: not two numbers for each axis; a number below 0; a value the dtype does not have; an empty axis that is to go on
  in another mode than "constant"]],
function(given, t, signature)
  local x, mode, continue = given.x, given.mode, borders[given.mode]
  if mode == "constant" then
    return (ops.apply("pad", { x }, { paddings = given.paddings, constant_value = given.constant_value }, given.name))
  elseif not continue then
    signature:fail(": there is no mode '" .. mode .. "'; there are constant, edge, reflect, symmetric and wrap")
  elseif given.constant_value ~= nil then
    signature:fail((': constant_value is of the mode "constant", and it is "%s"'):format(mode))
  end
  local widths = arguments.flat_list(given.paddings)
  if #widths ~= 2 * #x.shape then
    signature:fail((": paddings has %d numbers, '%s' %s needs a pair for each of its %d axes"):format(#widths, x.name,
      tostring(x.shape), #x.shape))
  end
  local axes = {}
  for axis = 0, #x.shape - 1 do
    local before, after = widths[2 * axis + 1], widths[2 * axis + 2]
    if not windows.is_whole(before, 0) or not windows.is_whole(after, 0) then
      signature:fail((": paddings are whole numbers from 0 on, got %s and %s for axis %d"):format(tostring(before),
        tostring(after), axis))
    end
    if before + after > 0 then
      if x.shape[axis] == 0 then
        signature:fail((': axis %d is empty, so there is nothing to go on with; mode = "constant" fills it'):format(
          axis))
      end
      axes[#axes + 1] = axis
    end
  end
  local of_job = tools.new(t, signature, given.name or t:unnamed("Pad"))
  for i, axis in ipairs(axes) do
    local size = x.shape[axis]
    local places = continue(np.arange(-widths[2 * axis + 1], size + widths[2 * axis + 2]), size)
    x = of_job:apply("gather", { x, places }, { axis = axis }, i < #axes and mode or nil)
  end
  return #axes > 0 and x or (ops.apply("identity", { x }, nil, given.name))
end)

ops.define("masked_fill", { { "x", "blob" }, { "mask", "operand" }, { "value", "number" } }, [[
x with `value` where the mask (int8, as comparisons give it) is not 0. The mask, a blob or an array, broadcasts against
x.]],
  function(given)
    return flow.where(given.mask, given.value, given.x, given.name)
  end)

-- range of the original takes the stop alone too, as NumPy's arange does.
local between = flow.range
ops.define("range", {
  { "start", "number?", engine_default = 0, text = "the first value; alone it is `stop`" },
  { "stop", "number?", text = "the end, not included" },
  { "step", "number?", engine_default = 1, text = "distance of neighbours, may be negative" },
  { "dtype", "dtype?", text = "of the result; the job's default_data_type when left out, float32 where that is a "
    .. "narrow one, which does not count far" },
}, [[
Evenly spaced values, start + i * step as long as that is before stop; flow.range(stop) counts from 0.
shapes: -> (ceil((stop - start) / step)), empty when stop lies behind start
dtypes: all; computed in float64
errors: step is 0; a bound that is not finite]],
function(given, t)
  if not given.stop then given.start, given.stop = nil, given.start end
  local dtype = given.dtype or ops.default_dtype(t)
  if not given.dtype and dtypes.narrow[dtype] then dtype = "float32" end
  return between { start = given.start or 0, stop = given.stop, step = given.step, dtype = dtype, name = given.name }
end)

-- ---- cut ----------------------------------------------------------------------------------------------------------

local kMostResults = 7000  -- all values of a call are not to be 8,000 for LuaJIT

ops.define("split", { { "x", "blob" }, { "parts", "list" }, { "axis", "integer", 0 } }, [[
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
ops.define("slice", {
  { "x", "blob" }, { "begin", "any", text = "first index along each leading axis; negative counts from the end" },
  { "size", "any", text = "how many along each of them; -1 is all that is left" },
}, [[
A box cut out of x.
  out[i, j] = x[begin[0] + i, begin[1] + j]
shapes: x (4, 5) with begin = {1, 0}, size = {2, -1} -> out (2, 5); axes not named are kept whole
dtypes: any -> the same
errors: a box that leaves x
note: a nil in begin is 0 and one in size is -1; x:slice("1:3, 0") cuts by NumPy's text for all axes]],
function(given)
  local rank = #given.x.shape
  return box { x = given.x, begin = without_holes(given.begin, rank, 0), size = without_holes(given.size, rank, -1),
               name = given.name }
end)

-- slice_v2 of the original takes one { start, stop, step } per leading axis; nil is "not given".
local function has_slices(list)
  return type(list) == "table" and not blob.is(list) and (type(list[1]) == "table" or list.slices
    or list.slice_tup_list)
end

local by_lists = flow.slice_v2
ops.define("slice_v2", {
  { "x", "blob" }, { "slices", "entries", text = "{ start, stop, step } for each leading axis; nil is not given" },
}, [[
Every step-th element of the leading axes, by Python's rules for start:stop:step.
  flow.slice_v2(x, { { 0, 10, 2 }, { nil, -1 } }) is x[0:10:2, :-1]
Also as lists of all starts, stops and steps, none of them left out: flow.slice_v2(x, start, stop, step = {}); without
steps these are 1.
shapes: x (4, 6) with { { 3, nil, -2 }, { 0, 5, 3 } } -> (2, 2); axes not named are whole
dtypes: any -> the same
errors: a step of 0; lists that differ in length. An index beyond the axis is cut to it]],
function(given, _, signature)
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
end, function(x, slices)
  return not has_slices(x) and not has_slices(slices) and by_lists
end)

-- ---- written ------------------------------------------------------------------------------------------------------

-- What the optimizer would write too is found when the job is compiled.
for _, name in ipairs { "assign", "assign_add" } do
  ops.extend(name, "A variable that the job also trains is an error: that takes a job of its own, called after this "
    .. "one.", function(as_it_is, given)
      if not blob.is(given.variable) then
        errors.raise("invalid_argument", "flow." .. name .. ": argument 1 ('variable') must be a variable, got "
          .. arguments.describe(given.variable))
      end
      local t, variable = trace.current(), given.variable.name
      local written, replaced = t.assigned[variable], t.replaced[variable]
      if replaced or name == "assign" and written then
        errors.raise("invalid_argument", ("flow.%s: '%s' is written at %s already%s; a run leaves a variable one value")
          :format(name, variable, written, name == "assign" and ", which would be lost" or ""))
      end
      as_it_is(given)
      t.assigned[variable] = errors.site() or "?"
      t.replaced[variable] = name == "assign" or nil
    end)
end
