--- Typing: what goes into a job and what comes out of it. Types nest: tp.Callback[tp.Tuple { tp.Numpy, tp.Numpy }].
-- A type knows how to flatten what the body returned into values to deliver, and leaves a skeleton by which the
-- delivered values are put together again at each call.
--
-- A skeleton is a number (the index of a delivered value), or { kind = "list" | "dict" | "tuple", [key] = skeleton }.

local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local core = require "moonflow.core"
local errors = require "moonflow.errors"

local typing = {}

local Type = { kind = "type" }
Type.__index = Type

function Type.__tostring(self)
  return self.text
end

local function new_type(family, text, fields)
  local self = fields or {}
  self.family, self.text = family, text
  return setmetatable(self, Type)
end

--- Is `value` a type of flow.typing?
function typing.is(value)
  return getmetatable(value) == Type
end

local function need_type(value, where)
  if not typing.is(value) then
    errors.raise("invalid_argument", where .. ": T must be a flow.typing type, got " .. arguments.describe(value))
  end
  return value
end

-- ---- placeholders -------------------------------------------------------------------------------------------------

local Placeholder = { kind = "placeholder" }
Placeholder.__index = Placeholder

--- "float32[100,1,28,28]".
local function type_text(dtype, shape)
  return dtype .. "[" .. table.concat(shape, ",") .. "]"
end

function Placeholder.__tostring(self)
  local text = type_text(self.dtype, self.shape)
  return self.family == "ListNumpy" and "list of " .. text or text
end

local function placeholder(where, family, legacy)
  local signature = arguments.signature(where, {
    { "shape", "list" }, { "dtype", "dtype", "float32" },
    { "batch_axis", "any?", text = "that of the samples, for job:export_onnx(path, { any_batch = true }): 0 when left "
      .. "out, negative ones count from the last, false for none" },
  })
  return function(...)
    local values = signature:parse(...)
    local shape = arguments.flat_list(values.shape)
    if #shape > 8 then signature:fail((": shape has %d axes, at most 8 are possible"):format(#shape)) end
    for i, size in ipairs(shape) do
      if not arguments.is_size(size) then
        signature:fail(": shape must be a list of positive whole numbers, entry " .. i .. " is "
          .. arguments.describe(size) .. (type(size) == "number" and size <= 0 and "; arrays of several sizes are "
          .. "for flow.typing.ListNumpy.Placeholder" or ""))
      end
    end
    local batch_axis = values.batch_axis
    if batch_axis == nil or #shape == 0 and batch_axis == 0 then batch_axis = #shape > 0 and 0 end
    if batch_axis then batch_axis = signature:axis(batch_axis, #shape) end
    return setmetatable({ family = family, shape = shape, dtype = values.dtype, site = errors.site(),
                          legacy = legacy, batch_axis = batch_axis }, Placeholder)
  end
end

--- Is `value` a placeholder?
function typing.is_placeholder(value)
  return getmetatable(value) == Placeholder
end

-- Same shape, as numbers.
local function same_shape(shape, list)
  if #shape ~= #list then return false end
  for i = 1, #list do
    if shape[i - 1] ~= list[i] then return false end
  end
  return true
end

--- What is wrong with a feed, in words, or nil.
--- @param feed any      what the user gave
--- @param shape? table  the shape wanted now, when the placeholder leaves it open
function Placeholder:fault(feed, shape)
  shape = shape or self.shape
  local is_list = self.family == "ListNumpy"
  if is_list then
    if type(feed) ~= "table" or #feed ~= 1 then
      return "is " .. arguments.describe(feed) .. ", its placeholder wants a list of one ndarray (one device)"
        .. (arguments.kind(feed) == "ndarray" and ", { x }" or "")
    end
    feed = feed[1]
  end
  local want = self.dtype .. " (" .. table.concat(shape, ", ") .. ")"
  if type(feed) == "number" and #shape == 0 and not is_list then
    local fits, problem = pcall(core.array, feed, self.dtype)
    return not fits and ("is %s, its placeholder wants %s: %s"):format(feed, want, problem.message) or nil
  end
  if arguments.kind(feed) ~= "ndarray" or feed.released then
    return "is " .. arguments.describe(feed) .. ", its placeholder wants an ndarray " .. want
      .. arguments.maker(feed, self.dtype, shape)
  end
  local fits = same_shape(feed.shape, shape)
  if is_list then
    fits = #feed.shape == #self.shape and feed.shape:count() <= self:count()
    want = ("a %s of %d axes with at most %d elements, as (%s) has"):format(self.dtype, #self.shape, self:count(),
      table.concat(self.shape, ", "))
  end
  if not fits or feed.dtype ~= self.dtype then
    local hint = fits and "; x:astype(flow." .. self.dtype .. ") makes one" or ""
    return "is " .. feed.dtype .. " " .. tostring(feed.shape) .. ", its placeholder wants " .. want .. hint
  end
  return nil
end

function Placeholder:count()
  local count = 1
  for _, size in ipairs(self.shape) do count = count * size end
  return count
end

-- ---- leaves -------------------------------------------------------------------------------------------------------

--- One ndarray: `returns = tp.Numpy`. As an input it is tp.Numpy.Placeholder, with a shape and a dtype.
typing.Numpy = new_type("Numpy", "Numpy")
--- An input of fixed shape and dtype: `tp.Numpy.Placeholder({ 100, 10 }, { dtype = flow.float })`. One without axes,
--- of shape {}, takes a number too: `job(x, 0.1)`.
typing.Numpy.Placeholder = placeholder("flow.typing.Numpy.Placeholder", "Numpy")

--- A list of one ndarray, as a job has one device. As an input it is tp.ListNumpy.Placeholder, which takes several
--- shapes.
typing.ListNumpy = new_type("ListNumpy", "ListNumpy")
--- An input with one array per device, so a list of one, `job({ x })`, of any shape with as many axes and at most as
--- many elements as this one. The job is traced anew for each shape, and keeps the plans of the latest eight: for
--- batches of a few lengths, and for the rest of a data set.
typing.ListNumpy.Placeholder = placeholder("flow.typing.ListNumpy.Placeholder", "ListNumpy")

--- A list of a list of one ndarray, in results and watches that were written for the original.
typing.ListListNumpy = new_type("ListListNumpy", "ListListNumpy")

--- No result: a call waits for its run, delivers what is watched, and gives nothing.
typing.None = new_type("None", "None")

--- An input of the oldest dialect: flow.typing.Numpy.Placeholder.
typing.FixedTensorDef = placeholder("flow.FixedTensorDef", "Numpy", true)
--- An input of the oldest dialect, a list with one array: flow.typing.ListNumpy.Placeholder.
typing.MirroredTensorDef = placeholder("flow.MirroredTensorDef", "ListNumpy", true)

-- ---- composites ---------------------------------------------------------------------------------------------------

-- tp.List[T] and tp.List(T).
local function generic(family, check)
  local function make(_, inner)
    need_type(inner, family .. "[T]")
    if check then check(inner) end
    return new_type(family, family .. "[" .. inner.text .. "]", { inner = inner })
  end
  return setmetatable({}, {
    __index = function(_, key)
      if type(key) == "string" then
        errors.raise("invalid_argument", "flow.typing." .. family .. " has no field '" .. key .. "'")
      end
      return make(nil, key)
    end,
    __call = make,
    __tostring = function() return family end,
    kind = "generic",
  })
end

--- A list, of as many values as the body puts into one: `returns = tp.List[tp.Numpy]`.
typing.List = generic("List", function(inner)
  if inner.family == "None" or inner.family == "Callback" then
    errors.raise("invalid_argument", "List[T]: T must be a type of values, got " .. inner.text)
  end
end)

--- Tables of values however they are nested, lists and names, as the body returns them: `tp.Bundle[tp.Numpy]`.
typing.Bundle = generic("Bundle", function(inner)
  if inner.family ~= "Numpy" and inner.family ~= "ListNumpy" and inner.family ~= "ListListNumpy" then
    errors.raise("invalid_argument", "Bundle[T]: T must be Numpy, ListNumpy or ListListNumpy, got " .. inner.text)
  end
end)

--- Makes a job whose calls wait for nothing: `returns = tp.Callback[tp.Numpy]`, or of a tp.Tuple, a tp.Dict and so on,
--- and `job(x)(function(y) ... end)`. The function gets the results when flow.poll, flow.sync, a later call that wants
--- room or the end of the script delivers them, in the order of the calls. A call gives a Pending, whose methods wait.
typing.Callback = generic("Callback", function(inner)
  if inner.family == "Callback" then
    errors.raise("invalid_argument", "Callback[T]: a callback cannot deliver a callback")
  end
end)

--- Several values, `tp.Tuple { tp.Numpy, tp.Numpy }`: multiple values of Lua in returns, calls and callbacks; a list
--- where it is nested.
function typing.Tuple(types)
  if type(types) ~= "table" or getmetatable(types) then
    errors.raise("invalid_argument", "Tuple wants a list of types: tp.Tuple { tp.Numpy, tp.Numpy }")
  end
  local texts = {}
  for i, item in ipairs(arguments.check_list(types, "Tuple: the list of types")) do
    texts[i] = need_type(item, "Tuple").text
  end
  if #texts == 0 then errors.raise("invalid_argument", "Tuple wants at least one type") end
  return new_type("Tuple", "Tuple{" .. table.concat(texts, ", ") .. "}", { items = types })
end

--- Named values: `tp.Dict { loss = tp.Numpy, logits = tp.Numpy }`.
function typing.Dict(types)
  if type(types) ~= "table" or getmetatable(types) then
    errors.raise("invalid_argument", "Dict wants named types: tp.Dict { loss = tp.Numpy }")
  end
  local names, texts = arguments.sorted_keys(types), {}
  for i, name in ipairs(names) do
    texts[i] = tostring(name) .. " = " .. need_type(types[name], "Dict").text
  end
  if #texts == 0 then errors.raise("invalid_argument", "Dict wants at least one named type") end
  return new_type("Dict", "Dict{" .. table.concat(texts, ", ") .. "}", { items = types, names = names })
end

-- ---- from what the body returned to values, and back ---------------------------------------------------------------

-- Where something does not fit: { job, type (the whole annotation), site, leaves }.
local function misfit(context, message)
  errors.raise("invalid_argument", "the job '" .. context.job .. "' " .. message, context.site)
end

local function misfit_kind(context, value, where, wanted)
  misfit(context, "returns " .. arguments.describe(value) .. where .. ", but is declared '-> " .. context.text
    .. "', which takes " .. wanted .. " there")
end

local function add_leaf(context, value, where)
  if not blob.is(value) then misfit_kind(context, value, where, "a blob") end
  blob.id_of(value, context.trace, "the return of '" .. context.job .. "'")
  context.leaves[#context.leaves + 1] = value
  return #context.leaves
end

-- Raises where something of a list would be left out.
local function check_list(context, value, where)
  local flaw = core.list_flaw(value)
  if flaw then misfit(context, "returns a list" .. where .. " that" .. flaw) end
end

local flatten

local function flatten_dict(context, dtype, value, where)
  if type(value) ~= "table" or blob.is(value) then misfit_kind(context, value, where, "a table") end
  local node = { kind = "dict", keys = {} }
  for _, name in ipairs(dtype.names) do
    if value[name] == nil then
      misfit(context, "returns no '" .. tostring(name) .. "'" .. where .. ", which '-> " .. context.text
        .. "' asks for")
    end
    node.keys[name] = flatten(context, dtype.items[name], value[name], where .. " in '" .. tostring(name) .. "'")
  end
  local names = {}
  for i, name in ipairs(dtype.names) do names[i] = tostring(name) end
  for name in pairs(value) do
    if dtype.items[name] == nil then
      misfit(context, "returns '" .. tostring(name) .. "'" .. where .. ", which is not in '-> " .. context.text .. "'"
        .. arguments.suggestion(name, names))
    end
  end
  return node
end

local kDeepest = 100  -- of nested tables; deeper ones hold themselves

-- Any nesting of tables of blobs, as it is.
local function flatten_bundle(context, inner, value, where, depth)
  if type(value) ~= "table" or blob.is(value) then return flatten(context, inner, value, where) end
  depth = (depth or 0) + 1
  if depth > kDeepest then misfit(context, "returns tables that are nested more than " .. kDeepest .. " deep") end
  local node, keys = { kind = "dict", keys = {} }, {}
  for key in pairs(value) do
    if type(key) == "table" or type(key) == "userdata" then
      misfit(context, "returns a table" .. where .. " with " .. arguments.describe(key) .. " as a key; names and "
        .. "numbers can be keys")
    end
    keys[#keys + 1] = key
  end
  table.sort(keys, function(a, b)
    if type(a) == type(b) and type(a) ~= "boolean" then return a < b end
    return type(a) < type(b)
  end)
  for _, key in ipairs(keys) do
    node.keys[key] = flatten_bundle(context, inner, value[key], where .. " in '" .. tostring(key) .. "'", depth)
  end
  return node
end

function flatten(context, dtype, value, where)
  local family = dtype.family
  if family == "Numpy" then return add_leaf(context, value, where) end
  if family == "ListNumpy" then return { kind = "list", add_leaf(context, value, where) } end
  if family == "ListListNumpy" then return { kind = "list", { kind = "list", add_leaf(context, value, where) } } end
  if family == "Dict" then return flatten_dict(context, dtype, value, where) end
  if family == "Bundle" then return flatten_bundle(context, dtype.inner, value, where) end
  if type(value) ~= "table" or blob.is(value) then misfit_kind(context, value, where, "a list") end
  check_list(context, value, where)
  local node = { kind = "list" }
  if family == "Tuple" and #value ~= #dtype.items then
    misfit(context, "returns a list of " .. #value .. where .. ", but '-> " .. context.text .. "' takes "
      .. #dtype.items .. " there")
  end
  for i = 1, #value do
    node[i] = flatten(context, dtype.inner or dtype.items[i], value[i], where .. " at place " .. i)
  end
  return node
end

local function count_text(count)
  return count .. (count == 1 and " value" or " values")
end

--- Checks what the body returned against the annotation.
--- @param context table  job, trace, site; `leaves` is filled with the blobs to deliver
--- @param annotation table|nil  the type; nil: whatever comes
--- @param results table  the returned values, with their number in `n`
--- @return any            the skeleton; nil when nothing is returned
function typing.flatten(context, annotation, results)
  context.leaves = {}
  local count = results.n
  while count > 0 and results[count] == nil do count = count - 1 end
  if not annotation then
    context.text = "any"
    if count == 0 then return nil end
    if count == 1 then return flatten_bundle(context, typing.Numpy, results[1], "") end
    local node = { kind = "tuple" }
    for i = 1, count do node[i] = flatten_bundle(context, typing.Numpy, results[i], " at place " .. i) end
    return node
  end
  context.text = annotation.text
  local inner = annotation.family == "Callback" and annotation.inner or annotation
  local wants = inner.family == "None" and 0 or inner.family == "Tuple" and #inner.items or 1
  -- A tuple may also come as one list, as in the original.
  if inner.family == "Tuple" and count == 1 and wants ~= 1 and type(results[1]) == "table" and not blob.is(results[1])
  then
    check_list(context, results[1], "")
    results, count = results[1], #results[1]
  end
  if count ~= wants then
    misfit(context, "returns " .. count_text(count) .. " but is declared '-> " .. annotation.text .. "', which takes "
      .. wants)
  end
  if wants == 0 then return nil end
  if inner.family ~= "Tuple" then return flatten(context, inner, results[1], "") end
  local node = { kind = "tuple" }
  for i = 1, wants do node[i] = flatten(context, inner.items[i], results[i], " at place " .. i) end
  return node
end

local function build(node, values)
  if type(node) == "number" then return values[node] end
  local result = {}
  if node.kind == "dict" then
    for key, child in pairs(node.keys) do result[key] = build(child, values) end
  else
    for i = 1, #node do result[i] = build(node[i], values) end
  end
  return result
end

--- The keys of the values that a dictionary delivers: { [number of the value] = key }.
function typing.keys(node)
  local keys = {}
  for key, child in pairs(type(node) == "table" and node.kind == "dict" and node.keys or {}) do
    if type(child) == "number" then keys[child] = tostring(key) end
  end
  return keys
end

--- Are the values given one by one, as they are delivered?
function typing.is_flat(node)
  if type(node) ~= "table" then return true end
  if node.kind ~= "tuple" then return false end
  for i = 1, #node do
    if node[i] ~= i then return false end
  end
  return true
end

--- Puts delivered values together; a tuple at the top gives multiple values.
function typing.build(node, values)
  if type(node) == "number" then return values[node] end
  if node == nil then return end
  if node.kind ~= "tuple" then return build(node, values) end
  local count = #node
  if count == 2 then return build(node[1], values), build(node[2], values) end
  local results = {}
  for i = 1, count do results[i] = build(node[i], values) end
  return unpack(results, 1, count)
end

return typing
