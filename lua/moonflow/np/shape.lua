--- The functions of flow.np that cut, join and repeat arrays or lay them out anew, in their own dtype.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local borders = require "moonflow.formulas.borders"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"

local evaluate, as_array = ndarray.evaluate, ndarray.as_array
local axis_of, cut, part = ndarray.axis_of, ndarray.cut, ndarray.part
local signature, flat_list, fail = arguments.signature, arguments.flat_list, errors.raise

-- 1 where the column of a matrix is at most `diagonal` places to the right of its row.
local function lower_triangle(given, called)
  local a = as_array(given.a, called)
  if a.rank < 2 then
    fail("shape_mismatch", called .. " wants matrices in the last two axes, got " .. tostring(a.shape))
  end
  local rows, columns = np.arange(a.shape[a.rank - 2]), np.arange(a.shape[a.rank - 1])
  return a, columns:le((rows + given.diagonal):reshape({ -1, 1 }))
end

-- ---- another order ------------------------------------------------------------------------------------------------

local swap_signature = signature("np.swapaxes",
  { { "a", "any" }, { "axis1", "integer" }, { "axis2", "integer" } })
--- A copy with these two axes in each other's place.
function np.swapaxes(...)
  local given = swap_signature:parse(...)
  local a = as_array(given.a, "np.swapaxes")
  local one, other = axis_of(a, given.axis1, "np.swapaxes"), axis_of(a, given.axis2, "np.swapaxes")
  local order = {}
  for i = 1, a.rank do order[i] = i - 1 end
  order[one + 1], order[other + 1] = other, one
  return a:transpose(order)
end

local move_signature = signature("np.moveaxis",
  { { "a", "any" }, { "source", "integer" }, { "destination", "integer" } })
--- A copy with one axis in another place, and the others in their order: `np.moveaxis(images, 3, 1)` puts channels
--- that come last first.
function np.moveaxis(...)
  local given = move_signature:parse(...)
  local a = as_array(given.a, "np.moveaxis")
  local source, place = axis_of(a, given.source, "np.moveaxis"), axis_of(a, given.destination, "np.moveaxis")
  local order = {}
  for i = 0, a.rank - 1 do
    if i ~= source then order[#order + 1] = i end
  end
  table.insert(order, place + 1, source)
  return a:transpose(order)
end

-- ---- triangles and grids ------------------------------------------------------------------------------------------

local tril_signature = signature("np.tril", { { "a", "any" }, { "diagonal", "integer", 0 } })
--- The matrices in the last two axes with 0 above a diagonal: 0 is the main one, 1 the one above it.
function np.tril(...)
  local a, is_below = lower_triangle(tril_signature:parse(...), "np.tril")
  return np.where(is_below, a, 0)
end

local triu_signature = signature("np.triu", { { "a", "any" }, { "diagonal", "integer", 0 } })
--- The matrices in the last two axes with 0 below a diagonal: 0 is the main one, 1 the one above it.
function np.triu(...)
  local given = triu_signature:parse(...)
  given.diagonal = given.diagonal - 1
  local a, is_below = lower_triangle(given, "np.triu")
  return np.where(is_below, 0, a)
end

--- The coordinates of a grid, an array for each axis: `local x, y = np.meshgrid(xs, ys)`, both (#ys, #xs), for the
--- first two axes change places, as rows are counted by y. A last `{ indexing = "ij" }` leaves them: (#xs, #ys). With
--- `sparse = true` each has only its own axis, and 1 for the size of the others: what computes with them broadcasts.
--- @return any
function np.meshgrid(...)
  local axes, indexing, is_sparse = { ... }, "xy", false
  for i = 1, select("#", ...) do
    if axes[i] == nil then fail("invalid_argument", "np.meshgrid: argument " .. i .. " is nil, wanted an array") end
  end
  local last = axes[#axes]
  if type(last) == "table" and not getmetatable(last) and (last.indexing ~= nil or last.sparse ~= nil) then
    indexing, is_sparse, axes[#axes] = last.indexing or "xy", last.sparse, nil
  end
  if indexing ~= "xy" and indexing ~= "ij" then
    fail("invalid_argument", "np.meshgrid: the indexing is \"xy\" or \"ij\", got " .. arguments.describe(indexing))
  end
  local rank, shape = #axes, {}
  local function axis_at(i)
    return indexing == "xy" and rank > 1 and i <= 2 and 3 - i or i
  end
  for i, axis in ipairs(axes) do
    axes[i] = as_array(axis, "np.meshgrid"):ravel()
    shape[axis_at(i)] = #axes[i]
  end
  for i, axis in ipairs(axes) do
    local sizes = {}
    for k = 1, rank do sizes[k] = k == axis_at(i) and #axis or 1 end
    axis = axis:reshape(sizes)
    axes[i] = is_sparse and axis:copy() or evaluate("broadcast_to", { axis }, { shape = shape }, "np.meshgrid")
  end
  return unpack(axes)
end

-- ---- joining ------------------------------------------------------------------------------------------------------

local vstack_signature = signature("np.vstack", { { "arrays", "entries" } })
--- The rows of the arrays one below the other; an array of rank 1 is one row.
function np.vstack(...)
  local arrays = vstack_signature:parse(...).arrays
  local list = {}
  for i, a in ipairs(ndarray.all_of(arrays, "np.vstack")) do
    list[i] = a.rank < 2 and a:reshape({ 1, -1 }) or a
  end
  return np.concat(list, 0)
end

local hstack_signature = signature("np.hstack", { { "arrays", "entries" } })
--- The arrays side by side: along axis 1, and those of rank 1 one behind the other.
function np.hstack(...)
  local arrays = hstack_signature:parse(...).arrays
  local list, axis = ndarray.all_of(arrays, "np.hstack"), 0
  for i in ipairs(list) do
    if list[i].rank == 0 then list[i] = list[i]:reshape({ 1 }) end
    if list[i].rank > 1 then axis = 1 end
  end
  return np.concat(list, axis)
end

local column_signature = signature("np.column_stack", { { "arrays", "entries" } })
--- The arrays as columns of a matrix: one of rank 1 is a column, one of rank 2 several.
function np.column_stack(...)
  local list = {}
  for i, a in ipairs(ndarray.all_of(column_signature:parse(...).arrays, "np.column_stack")) do
    list[i] = a.rank < 2 and a:reshape({ -1, 1 }) or a
  end
  return np.concat(list, 1)
end

local append_signature = signature("np.append", { { "a", "any" }, { "values", "any" }, { "axis", "integer?" } })
--- The array with values behind it along `axis`, as a copy; without an axis both flattened.
function np.append(...)
  local given = append_signature:parse(...)
  local list = ndarray.alike({ given.a, given.values }, "np.append")
  if not given.axis then list = { list[1]:ravel(), list[2]:ravel() } end
  return (evaluate("concat", list, { axis = given.axis or 0 }, "np.append"))
end

local dstack_signature = signature("np.dstack", { { "arrays", "entries" } })
--- The arrays behind one another along axis 2, as colour planes of a picture; a matrix is one plane, an array of rank
--- 1 one row of it.
function np.dstack(...)
  local list = {}
  for i, a in ipairs(ndarray.all_of(dstack_signature:parse(...).arrays, "np.dstack")) do
    list[i] = np.atleast_3d(a)
  end
  return np.concat(list, 2)
end

-- np.atleast_1d and so on: shape_of(sizes) is that of an array of lower rank.
local function define_atleast(name, rank, shape_of)
  local called = "np." .. name
  local own = signature(called, { { "a", "any" } })
  np[name] = function(...)
    local a = as_array(own:parse(...).a, called)
    return a.rank < rank and a:reshape(shape_of(a.shape:table())) or a
  end
end
--- The array, or a number as one of shape (1).
define_atleast("atleast_1d", 1, function() return { 1 } end)
--- The array, or one of rank 1 as a row (1, size).
define_atleast("atleast_2d", 2, function(sizes) return { 1, sizes[1] or 1 } end)
--- The array, or a matrix as (rows, columns, 1), and one of rank 1 as (1, size, 1).
define_atleast("atleast_3d", 3, function(sizes)
  if #sizes == 2 then return { sizes[1], sizes[2], 1 } end
  return { 1, sizes[1] or 1, 1 }
end)

-- ---- cutting and repeating ----------------------------------------------------------------------------------------

-- The parts of an array before, between and behind these places along an axis.
local function cut_at(places, a, axis)
  local parts = {}
  for i = 0, #places do parts[i + 1] = cut(a, axis, { places[i] or 0, places[i + 1] or a.shape[axis] }) end
  return parts
end

local MOST_PARTS = 2 ^ 20  -- a list of arrays, of which a slip makes more than memory holds

-- np.split and np.array_split: `places_of(size, count, axis)` gives the places where so many parts meet.
local function define_split(name, places_of)
  local where = "np." .. name
  local split_signature = signature(where, { { "a", "any" }, { "parts", "list" }, { "axis", "integer", 0 } })
  np[name] = function(...)
    local given = split_signature:parse(...)
    local a = as_array(given.a, where)
    local axis = axis_of(a, given.axis, where)
    if type(given.parts) ~= "number" then return cut_at(flat_list(given.parts), a, axis) end
    if given.parts < 1 or given.parts % 1 ~= 0 then
      fail("invalid_argument", ("%s: parts must be a whole number above 0, got %g"):format(where, given.parts))
    elseif given.parts > MOST_PARTS then
      fail("invalid_argument", ("%s: %g parts are too many, at most %d are possible"):format(where, given.parts,
        MOST_PARTS))
    end
    return cut_at(places_of(a.shape[axis], given.parts, axis), a, axis)
  end
end

--- A list of parts along `axis`: so many equal ones, or cut before each of a list of places.
define_split("split", function(size, count, axis)
  if size % count ~= 0 then
    fail("invalid_argument", ("np.split: axis %d of size %d does not divide into %g equal parts; np.array_split "
      .. "makes such as differ by one, and a list gives the places to cut at"):format(axis, size, count))
  end
  local places = {}
  for i = 1, count - 1 do places[i] = i * size / count end
  return places
end)

--- np.split into so many parts where the size does not divide: the first ones are then longer by one.
define_split("array_split", function(size, count)
  local places, least, longer = {}, math.floor(size / count), size % count
  for i = 1, count - 1 do places[i] = i * least + math.min(i, longer) end
  return places
end)

local hsplit_signature = signature("np.hsplit", { { "a", "any" }, { "parts", "list" } })
--- np.split along axis 1, that of the columns; of an array of rank 1 along its only axis.
--- @return any
function np.hsplit(...)
  local given = hsplit_signature:parse(...)
  local a = as_array(given.a, "np.hsplit")
  return np.split(a, given.parts, a.rank == 1 and 0 or 1)
end

local vsplit_signature = signature("np.vsplit", { { "a", "any" }, { "parts", "list" } })
--- np.split along axis 0, that of the rows.
--- @return any
function np.vsplit(...)
  local given = vsplit_signature:parse(...)
  return np.split(given.a, given.parts, 0)
end

local tile_signature = signature("np.tile", { { "a", "any" }, { "reps", "list" } })
--- The array laid side by side, so often along each axis.
function np.tile(...)
  local given = tile_signature:parse(...)
  return (evaluate("tile", { as_array(given.a, "np.tile") }, { reps = flat_list(given.reps) }, "np.tile"))
end

local repeat_signature = signature("np.repeat_interleave",
  { { "a", "any" }, { "repeats", "any" }, { "axis", "integer?" } })
--- Each element, or each slice along `axis`, so often in a row: NumPy's `repeat`, a word that Lua keeps for itself,
--- under PyTorch's name. `repeats` is one number, or one for each. Without an axis of the flattened array.
function np.repeat_interleave(...)
  local given = repeat_signature:parse(...)
  local a = as_array(given.a, "np.repeat_interleave")
  if not given.axis then a = a:ravel() end
  local axis = axis_of(a, given.axis or 0, "np.repeat_interleave")
  local size, times = a.shape[axis], as_array(given.repeats, "np.repeat_interleave"):ravel():totable()
  if #times ~= 1 and #times ~= size then
    fail("shape_mismatch", ("np.repeat_interleave: %d repeats for axis %d of size %d"):format(#times, axis, size))
  end
  local total = 0
  for _, count in ipairs(times) do
    if not (count >= 0 and count < 2 ^ 31 and count % 1 == 0) then
      fail("invalid_argument", ("np.repeat_interleave: nothing is repeated %g times"):format(count))
    end
    total = total + count
  end
  if #times == 1 then
    local slices, joined = 1, a.shape:table()
    for i = 1, axis + 1 do slices = slices * joined[i] end
    local inner = 1
    for i = axis + 2, #joined do inner = inner * joined[i] end
    joined[axis + 1] = size * times[1]
    return evaluate("broadcast_to", { a:reshape(slices, 1, inner) }, { shape = { slices, times[1], inner } },
      "np.repeat_interleave"):reshape(joined)
  end
  local places, at = core.zeros("int64", { total }), 0
  local p = places:ptr()
  for place = 0, size - 1 do
    for _ = 1, times[place + 1] do
      p[at] = place
      at = at + 1
    end
  end
  return a:take(places, axis)
end

local broadcast_signature = signature("np.broadcast_to", { { "a", "any" }, { "shape", "list" } })
--- The array repeated along axes of size 1, and along new ones before its own, as a copy.
function np.broadcast_to(...)
  local given = broadcast_signature:parse(...)
  return (evaluate("broadcast_to", { as_array(given.a, "np.broadcast_to") }, { shape = flat_list(given.shape) },
    "np.broadcast_to"))
end

local flip_signature = signature("np.flip", { { "a", "any" }, { "axis", "list?" } })
--- The array running backwards along these axes, or all.
function np.flip(...)
  local given = flip_signature:parse(...)
  local a = as_array(given.a, "np.flip")
  local axes = given.axis and flat_list(given.axis) or {}
  for axis = 1, given.axis and 0 or a.rank do axes[axis] = axis - 1 end
  return (evaluate("reverse", { a }, { axis = axes }, "np.flip"))
end

-- np.fliplr and np.flipud: np.flip along one axis.
local function define_flip(name, axis)
  local where = "np." .. name
  local own = signature(where, { { "a", "any" } })
  np[name] = function(...)
    local a = as_array(own:parse(...).a, where)
    return (evaluate("reverse", { a }, { axis = { axis_of(a, axis, where) } }, where))
  end
end
--- The array with its columns, axis 1, running backwards: a picture in a mirror.
define_flip("fliplr", 1)
--- The array with its rows, axis 0, running backwards.
define_flip("flipud", 0)

local rot90_signature = signature("np.rot90", { { "a", "any" }, { "k", "integer", 1 }, { "axes", "list?" } })
--- The array turned by `k` times 90 degrees in the plane of two axes, the first two without a word, from the first
--- towards the second: of a matrix against the clock.
--- @error axes that are not two different ones
function np.rot90(...)
  local given = rot90_signature:parse(...)
  local a, axes = as_array(given.a, "np.rot90"), given.axes and flat_list(given.axes) or { 0, 1 }
  if #axes ~= 2 then fail("invalid_argument", ("np.rot90 wants two axes, got %d"):format(#axes)) end
  local one, other = axis_of(a, axes[1], "np.rot90"), axis_of(a, axes[2], "np.rot90")
  if one == other then
    fail("invalid_argument", ("np.rot90: both axes are axis %d, and it turns in the plane of two"):format(one))
  end
  local turns = given.k % 4
  if turns == 0 then return a:copy() end
  if turns == 2 then return np.flip(a, { one, other }) end
  if turns == 1 then return np.swapaxes(np.flip(a, other), one, other) end
  return np.flip(np.swapaxes(a, one, other), other)
end

local roll_signature = signature("np.roll",
  { { "a", "any" }, { "shift", "list" }, { "axis", "list?" } })
--- The elements moved on by `shift` places along `axis`, those at the end to the beginning; without an axis as if
--- there were one. Several axes may be moved along at once, by one number or by one for each: a picture is moved by
--- `np.roll(x, { 2, -1 }, { 0, 1 })`.
--- @param shift integer|table
--- @param axis? integer|table
--- @error shifts and axes of which there are not as many, where neither is one; a shift that is no whole number
function np.roll(...)
  local given = roll_signature:parse(...)
  local a = as_array(given.a, "np.roll")
  local shifts, axes = flat_list(given.shift), given.axis and flat_list(given.axis) or { 0 }
  if #shifts * #axes == 0 or #shifts ~= #axes and #shifts ~= 1 and #axes ~= 1 then
    fail("invalid_argument", ("np.roll: %d shifts for %d axes"):format(#shifts, #axes))
  end
  local moved = given.axis and a or a:ravel()
  for i = 1, math.max(#shifts, #axes) do
    local shift, axis = shifts[#shifts == 1 and 1 or i], axis_of(moved, axes[#axes == 1 and 1 or i], "np.roll")
    if type(shift) ~= "number" or shift % 1 ~= 0 then
      fail("invalid_argument", ("np.roll: shift must be whole numbers, got %s"):format(tostring(shift)))
    end
    local size = moved.shape[axis]
    local first = size == 0 and 0 or (-shift) % size
    moved = np.concat({ part(moved, axis, first, size), part(moved, axis, 0, first) }, axis)
  end
  return moved:reshape(a.shape:table())
end

-- What stands before and behind each axis: { before, after, before, after, ... }.
local function pad_widths(given, rank)
  local widths = flat_list(given)
  -- One number for each axis, in a list of its own, is before and after it.
  local is_single = type(given) == "table" and #given > 1
  for _, pair in ipairs(is_single and given or {}) do
    is_single = is_single and type(pair) == "table" and #pair == 1
  end
  if is_single then
    if #widths ~= rank then fail("invalid_argument", ("np.pad: widths of %d axes for %d"):format(#widths, rank)) end
    for i = rank, 1, -1 do widths[2 * i - 1], widths[2 * i] = widths[i], widths[i] end
  end
  if #widths == 1 then widths = { widths[1], widths[1] } end
  for i = 3, #widths == 2 and 2 * rank or 0 do widths[i] = widths[i - 2] end
  if #widths ~= 2 * rank and rank > 0 then
    fail("invalid_argument", ("np.pad: %d widths for %d axes; it wants one, { before, after }, or such a pair for "
      .. "each axis"):format(#widths, rank))
  end
  for _, width in ipairs(widths) do
    if type(width) ~= "number" or width < 0 or width % 1 ~= 0 then
      fail("invalid_argument", "np.pad: a width is a whole number from 0 on, got " .. arguments.describe(width))
    end
  end
  return widths
end

local pad_signature = signature("np.pad", { { "a", "any" }, { "pad_width", "list" }, { "mode", "string", "constant" },
  { "constant_values", "number", 0 } })
--- The array within a border: so wide on all sides, { before, after } along each axis, or a list of such pairs, or of
--- lists of one, one for each axis. In the border stands, by `mode`,
---   "constant": constant_values, one number
---   "edge": the element at the end of the axis
---   "reflect": the axis running backwards, without its last element again, as in a mirror that stands on it
---   "symmetric": the axis running backwards, with its last element again
---   "wrap": the axis from its other end on
--- @error other widths; an empty axis that is to go on in another mode than "constant"
function np.pad(...)
  local given = pad_signature:parse(...)
  local a, mode, continue = as_array(given.a, "np.pad"), given.mode, borders[given.mode]
  if not continue and mode ~= "constant" then
    fail("invalid_argument", "np.pad: there is no mode '" .. mode .. "'; there are constant, edge, reflect, "
      .. "symmetric and wrap")
  elseif continue and given.constant_values ~= 0 then
    fail("invalid_argument", ("np.pad: constant_values are of the mode \"constant\", and it is \"%s\""):format(mode))
  end
  local widths = pad_widths(given.pad_width, a.rank)
  if a.rank == 0 then return a:copy() end
  if not continue then
    return (evaluate("pad", { a }, { paddings = widths, constant_value = given.constant_values }, "np.pad"))
  end
  for axis = 0, a.rank - 1 do
    local size, before, after = a.shape[axis], widths[2 * axis + 1], widths[2 * axis + 2]
    if before + after > 0 then
      if size == 0 then
        fail("invalid_argument", ("np.pad: axis %d is empty, so there is nothing to go on with; mode = \"constant\" "
          .. "fills it"):format(axis))
      end
      a = a:take(continue(np.arange(-before, size + after), size), axis)
    end
  end
  return a
end
