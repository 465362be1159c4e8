--- flow.einsum and np.einsum: sums of products, as an equation of letters says. They are put together from transposes,
-- reshapes, matrix products and sums, in a job of its ops, which have gradients, and of arrays at once.
--
-- A term is a value with one label for each of its axes. Two of them are joined by what their labels are: of both and
-- still wanted (a stack of matrices), of both and done with (what the product sums over), or of one alone (its rows or
-- columns). What is of one term alone and not wanted is summed before. Of more than two terms those are joined first
-- that leave the least behind, as below.

local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local dtypes = require "moonflow.dtypes"
local ndarray = require "moonflow.ndarray"
local ops = require "moonflow.ops"
local trace = require "moonflow.trace"

local signature = arguments.signature("flow.einsum", {
  { "equation", "string" }, { "a", "any" }, { "b", "operand?" }, { "c", "operand?" }, { "d", "operand?" },
  { "name", "string?" },
})

-- One op, of the job or at once, as `like` is a value of a job or an array.
local function apply(like, op, inputs, attrs)
  if ndarray.is_array(like) then return (ndarray.evaluate(op, inputs, attrs, "np.einsum")) end
  return ops.apply(op, inputs, attrs)
end

-- What errors call the value of a term: that of a job has a name.
local function title(value, before)
  return ndarray.is_array(value) and "its value" or ("%s'%s'"):format(before or "", value.name)
end

-- ---- labels -------------------------------------------------------------------------------------------------------

local function set_of(labels)
  local set = {}
  for _, label in ipairs(labels) do set[label] = true end
  return set
end

local function joined(...)
  local all = {}
  for i = 1, select("#", ...) do
    for _, label in ipairs((select(i, ...))) do all[#all + 1] = label end
  end
  return all
end

local function place_of(labels, label)
  for i, other in ipairs(labels) do
    if other == label then return i end
  end
end

-- The letters of one side of a comma, and how many of them stand before "...", if it is there.
local function letters_of(text, equation, what, called)
  local labels, dots = {}, nil
  local rest = text
  while rest ~= "" do
    if rest:sub(1, 3) == "..." and not dots then
      dots, rest = #labels, rest:sub(4)
    else
      local letter = rest:match("^%a")
      if not letter then
        called:fail((": %s of \"%s\" has '%s', wanted letters and at most one \"...\""):format(what, equation,
          rest:sub(1, 1)))
      end
      labels[#labels + 1], rest = letter, rest:sub(2)
    end
  end
  return labels, dots
end

-- ---- terms --------------------------------------------------------------------------------------------------------

local function sum_over(term, is_dropped)
  local axes, kept = {}, {}
  for i, label in ipairs(term.labels) do
    if is_dropped(label) then axes[#axes + 1] = i - 1 else kept[#kept + 1] = label end
  end
  if #axes > 0 then term.value = apply(term.value, "reduce_sum", { term.value }, { axis = axes }) end
  term.labels = kept
end

-- The axes in this order of labels.
local function ordered(term, labels)
  local order, is_same = {}, true
  for i, label in ipairs(labels) do
    order[i] = place_of(term.labels, label) - 1
    is_same = is_same and order[i] == i - 1
  end
  return is_same and term.value or apply(term.value, "transpose", { term.value }, { perm = order })
end

local function reshaped(value, sizes)
  local shape = value.shape
  local is_same = #shape == #sizes
  for i, size in ipairs(sizes) do is_same = is_same and shape[i - 1] == size end
  if is_same then return value end
  return ndarray.is_array(value) and value:reshape(sizes) or apply(value, "reshape", { value }, { shape = sizes })
end

-- The diagonal of two axes with one letter: of both as one axis, the last, every (size + 1)-th place.
local function take_diagonal(term, label, first, second)
  local labels = {}
  for i, other in ipairs(term.labels) do
    if i ~= first and i ~= second then labels[#labels + 1] = other end
  end
  local rows, columns, last = label .. "'", label .. "''", #labels + 1
  term.labels[first], term.labels[second] = rows, columns
  local size, stop, start, step = term.value.shape[first - 1], {}, {}, {}
  for i, other in ipairs(labels) do
    start[i], stop[i], step[i] = 0, term.value.shape[place_of(term.labels, other) - 1], 1
  end
  start[last], stop[last], step[last] = 0, size * size, size + 1
  local whole = reshaped(ordered(term, joined(labels, { rows, columns })), stop)
  term.value = apply(whole, "strided_slice", { whole }, { start = start, stop = stop, step = step })
  labels[last] = label
  term.labels = labels
end

local function take_diagonals(term)
  local i = 2
  while i <= #term.labels do
    local label = term.labels[i]
    local first = place_of(term.labels, label)
    if first < i then
      take_diagonal(term, label, first, i)
      i = 1
    end
    i = i + 1
  end
end

-- The term as a stack of matrices of these labels. Where they lie the other way round they stay so, and it says so.
local function as_matrices(term, batch, rows, columns, count)
  local turned = joined(batch, columns, rows)
  local is_turned = #term.labels > 0
  for i, label in ipairs(turned) do is_turned = is_turned and term.labels[i] == label end
  if #rows == 0 or #columns == 0 then is_turned = false end
  local sizes = { count(rows), count(columns) }
  if is_turned then sizes[1], sizes[2] = sizes[2], sizes[1] end
  if #batch > 0 then table.insert(sizes, 1, count(batch)) end
  return reshaped(ordered(term, is_turned and turned or joined(batch, rows, columns)), sizes), is_turned
end

local function count_of(labels, sizes)
  local product = 1
  for _, label in ipairs(labels) do product = product * sizes[label] end
  return product
end

-- One term out of two. `is_wanted` tells which labels are in the result or in a term that is to come.
local function join(a, b, is_wanted, sizes)
  local of_a, of_b = set_of(a.labels), set_of(b.labels)
  sum_over(a, function(label) return not of_b[label] and not is_wanted[label] end)
  sum_over(b, function(label) return not of_a[label] and not is_wanted[label] end)
  local batch, summed, rows, columns = {}, {}, {}, {}
  for _, label in ipairs(a.labels) do
    local list = not of_b[label] and rows or is_wanted[label] and batch or summed
    list[#list + 1] = label
  end
  for _, label in ipairs(b.labels) do
    if not of_a[label] then columns[#columns + 1] = label end
  end
  local function sizes_of(labels)
    local list = {}
    for i, label in ipairs(labels) do list[i] = sizes[label] end
    return list
  end
  local function count(labels) return count_of(labels, sizes) end
  local labels = joined(batch, rows, columns)
  local are_vectors = #batch > 0 and #rows + #columns == 0  -- a stack of single numbers is no product of matrices
  if #summed > 0 and dtypes.floating[a.value.dtype] and not are_vectors then
    local left, turned_a = as_matrices(a, batch, rows, summed, count)
    local right, turned_b = as_matrices(b, batch, summed, columns, count)
    local product = apply(left, "matmul", { left, right }, { transpose_a = turned_a, transpose_b = turned_b })
    return { labels = labels, value = reshaped(product, sizes_of(labels)) }
  end
  -- Nothing to sum over, or vectors side by side, or integers, of which there are no matrix products.
  local function spread(term, own, all)
    local shape, has = {}, set_of(own)
    for i, label in ipairs(all) do shape[i] = has[label] and sizes[label] or 1 end
    return reshaped(ordered(term, own), shape)
  end
  local all = joined(labels, summed)
  local product = { labels = all, value = spread(a, joined(batch, rows, summed), all)
    * spread(b, joined(batch, columns, summed), all) }
  local is_done = set_of(summed)
  sum_over(product, function(label) return is_done[label] end)
  return product
end

-- ---- the order ----------------------------------------------------------------------------------------------------

-- The labels that are in the result or in a term other than these two.
local function wanted_beside(terms, i, j, result)
  local is_wanted = set_of(result)
  for k, term in ipairs(terms) do
    for _, label in ipairs(k ~= i and k ~= j and term.labels or {}) do is_wanted[label] = true end
  end
  return is_wanted
end

-- By how many elements the product of two terms is larger than both together, and whether they share a label.
local function growth(terms, i, j, result, sizes)
  local a, b = terms[i].labels, terms[j].labels
  local is_wanted, of_a, shares = wanted_beside(terms, i, j, result), set_of(a), false
  local left = {}
  for _, label in ipairs(a) do left[#left + 1] = is_wanted[label] and label or nil end
  for _, label in ipairs(b) do
    shares = shares or of_a[label]
    left[#left + 1] = is_wanted[label] and not of_a[label] and label or nil
  end
  return count_of(left, sizes) - count_of(a, sizes) - count_of(b, sizes), shares
end

-- Which two terms are joined next: greedily those whose product grows least, the first of several such. Terms without a
-- common label, of which all products are made, wait until there are no others. The best order is not always found so,
-- but a bad one is avoided, and a product of matrices with vectors never makes a matrix of a vector. Of many terms only
-- the first are looked at.
local kMostCompared = 16

local function next_pair(terms, result, sizes)
  local first, second, least, shared
  local count = math.min(#terms, kMostCompared)
  for i = 1, count - 1 do
    for j = i + 1, count do
      local grows, shares = growth(terms, i, j, result, sizes)
      if not least or shares and not shared or (not shared or shares) and grows < least then
        first, second, least, shared = i, j, grows, shares
      end
    end
  end
  return first, second
end

-- ---- the equation -------------------------------------------------------------------------------------------------

-- The terms on the left of an equation, without those labels that "..." stands for.
local function terms_of(left, equation, values, called)
  local terms = {}
  for part in (left .. ","):gmatch("(.-),") do
    local i = #terms + 1
    local what = ("term %d, '%s',"):format(i, part)
    local letters, dots = letters_of(part, equation, what, called)
    terms[i] = { labels = letters, dots = dots, what = what, value = values[i] }
  end
  if #terms ~= #values then
    called:fail((": \"%s\" has %d term%s, and there %s %d value%s"):format(equation, #terms,
      #terms == 1 and "" or "s", #values == 1 and "is" or "are", #values, #values == 1 and "" or "s"))
  end
  return terms
end

-- Gives the axes of "..." their labels, and says how many those are at most. An axis of "..." is a number, counted from
-- its end.
local function label_dots(terms, equation, called)
  local longest = 0
  for _, term in ipairs(terms) do
    local shape, extra = term.value.shape, #term.value.shape - #term.labels
    if extra < 0 or extra > 0 and not term.dots then
      called:fail((": %s of \"%s\" names %d ax%s%s, and %s is %s"):format(term.what, equation, #term.labels,
        #term.labels == 1 and "is" or "es", term.dots and " beside \"...\"" or "", title(term.value, "its value "),
        tostring(shape)))
    end
    for k = 1, extra do table.insert(term.labels, term.dots + k, extra + 1 - k) end
    longest = math.max(longest, extra)
  end
  return longest
end

-- The size of each label. Where an axis of "..." has size 1 and is longer in another term it is left out, and so
-- repeated.
local function sizes_of_labels(terms, equation, called)
  local sizes, found = {}, {}
  for _, term in ipairs(terms) do
    local shape = term.value.shape
    for k, label in ipairs(term.labels) do
      local size, known = shape[k - 1], sizes[label]
      if type(label) == "number" and (known == nil or known == 1) then
        sizes[label] = size
      elseif known == nil then
        sizes[label], found[label] = size, term.what
      elseif known ~= size and not (type(label) == "number" and size == 1) then
        called:fail((": %s of \"%s\": %s is %s, so %s is %d, and %d before%s"):format(term.what, equation,
          title(term.value), tostring(shape), found[label] and "'" .. label .. "'" or "an axis of \"...\"", size, known,
          found[label] and ", in " .. found[label]:gsub(",$", "") or ""))
      end
    end
  end
  return sizes
end

-- The letters that occur once, in the order of the alphabet.
local function single_letters(text)
  local letters, counts = {}, {}
  for letter in text:gmatch("%a") do counts[letter] = (counts[letter] or 0) + 1 end
  for letter, count in pairs(counts) do
    if count == 1 then letters[#letters + 1] = letter end
  end
  table.sort(letters)
  return letters
end

-- The letters of a result that is said, and how many of them stand before its "...".
local function letters_of_result(right, sizes, equation, called)
  local result, dots = letters_of(right, equation, ("the result, '%s',"):format(right), called)
  for i, label in ipairs(result) do
    if not sizes[label] then
      called:fail((": the result of \"%s\" has '%s', which is in no term"):format(equation, label))
    elseif place_of(result, label) < i then
      called:fail((": the result of \"%s\" has '%s' twice"):format(equation, label))
    end
  end
  return result, dots
end

-- The terms with their labels, the labels of the result, and the size of each label.
local function read(equation, values, called)
  local text = equation:gsub("%s", "")
  local left, right = text:match("^(.-)%->(.*)$")
  local terms = terms_of(left or text, equation, values, called)
  local longest = label_dots(terms, equation, called)
  local sizes = sizes_of_labels(terms, equation, called)
  local result, dots
  if right then
    result, dots = letters_of_result(right, sizes, equation, called)
  else
    result, dots = single_letters(text), 0
  end
  for k = 1, dots and longest or 0 do table.insert(result, dots + k, longest + 1 - k) end
  return terms, result, sizes
end

-- The values as blobs of one dtype.
local function values_of(given, t)
  local list = {}
  if arguments.kind(given.a) == "table" then
    if given.b ~= nil or given.c ~= nil or given.d ~= nil then
      signature:fail(": the values stand in a table or one by one, not both")
    end
    for i, value in ipairs(given.a) do list[i] = value end
  else
    list = { given.a, given.b, given.c, given.d }
  end
  local dtype
  for _, value in ipairs(list) do dtype = dtype or blob.is(value) and value.dtype end
  for i, value in ipairs(list) do
    value = blob.of(value, t, dtype or "float32", "flow.einsum")
    list[i] = value
    dtype = dtype or value.dtype
    if value.dtype ~= dtype then
      signature:fail((": value %d, '%s', is %s, and another one %s; flow.cast makes them alike"):format(i, value.name,
        value.dtype, dtype))
    end
  end
  return list
end

-- What the equation makes of values, all of one job or all arrays.
local function evaluated(equation, values, called)
  local terms, result, sizes = read(equation, values, called)
  local is_wanted, sums = set_of(result), false
  for label in pairs(sizes) do sums = sums or not is_wanted[label] end
  for _, term in ipairs(terms) do
    local value = term.value
    local wide = sums and dtypes.sums[value.dtype]
    if wide then term.value = apply(value, "cast", { value }, { dtype = wide }) end
    take_diagonals(term)
    sum_over(term, function(label)
      return type(label) == "number" and sizes[label] ~= 1 and term.value.shape[place_of(term.labels, label) - 1] == 1
    end)
  end
  while #terms > 1 do
    local i, j = next_pair(terms, result, sizes)
    terms[i] = join(terms[i], terms[j], wanted_beside(terms, i, j, result), sizes)
    table.remove(terms, j)
  end
  local term = terms[1]
  sum_over(term, function(label) return not is_wanted[label] end)
  return ordered(term, result)
end

local function einsum(...)
  local t = trace.need("flow.einsum")
  local given = signature:parse(...)
  local value = evaluated(given.equation, values_of(given, t), signature)
  return given.name and ops.apply("identity", { value }, nil, given.name) or value
end

ops.document(einsum, "flow.einsum", signature, [[
The sum of products that an equation says, as NumPy and PyTorch have it: flow.einsum("bqhd,bkhd->bhqk", query, key).
Each term names the axes of a value, one letter for each; what the result does not name is summed over.
  "ij,jk->ik" a matrix product, "bij,bjk->bik" of stacks   "ij->ji" a transpose   "ij->i" sums of rows
  "i,j->ij" all products   "ii->i" a diagonal, "ii" its sum   "...i,i->..." along the last of any axes
Without "->" the result has the letters that occur once, in the order of the alphabet, behind "...".
shapes: a letter has one size in all terms; "..." stands for any axes, which broadcast
dtypes: all of one; floating ones are multiplied by flow.matmul, and int8 and uint8, as comparisons give them, are
  summed as int64. A longer list of values than four goes as a table in the place of the first
order: of three values or more first those two are multiplied whose product is the smallest beside them, and so on
  (opt_einsum's greedy order), so that "ij,jk,k->i" is two products of a matrix and a vector
errors: names the term: another number of axes than its value has, a letter of two sizes, no letter]])

local array_signature = arguments.signature("np.einsum",
  { { "equation", "string" }, { "a", "any" }, { "b", "any?" }, { "c", "any?" }, { "d", "any?" } })

--- The sum of products that an equation of letters says, as flow.einsum has it for values of a job:
--- `np.einsum("ij,jk->ik", a, b)`. Each term names the axes of an array, one letter for each; what the result does not
--- name is summed over. Without "->" the result has the letters that occur once, in the order of the alphabet; "..."
--- stands for any axes, which broadcast. A longer list of arrays than four goes as a table in the place of the first.
--- dtypes: that of all together; sums of int8 and uint8 are int64. Where no axis is left, a number.
--- @return any
--- @error names the term: another number of axes than its array has, a letter of two sizes, no letter
local function einsum_of_arrays(...)
  local given = array_signature:parse(...)
  local values = { given.a, given.b, given.c, given.d }
  if given.b == nil and arguments.kind(given.a) == "table" and given.equation:find(",", 1, true) then
    values = { unpack(given.a) }
  end
  local has_array = false
  for _, value in ipairs(values) do has_array = has_array or ndarray.holds_arrays(value) end
  for i, value in ipairs(has_array and {} or values) do values[i] = ndarray.exact(value, "np.einsum") end
  local result = evaluated(given.equation, (ndarray.alike(values, "np.einsum")), array_signature)
  if result.rank == 0 then return result:item() end
  if not has_array then return ndarray.as_made(result) end
  -- Of "ij->ij" it is the array that was given.
  return rawequal(result, given.a) and result:copy() or result
end

return { of_values = einsum, of_arrays = einsum_of_arrays }
