--- Numbers in text files: what spreadsheets and loggers write, as an array.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"

local signature, fail = arguments.signature, errors.raise
local open = io.open

local byte, find = string.byte, string.find

local kPiece = 2 ^ 16  -- numbers that become text at a time, which is a string for a moment

-- Where the fields of a line begin and end, put into two lists, and how many they are; nil is any white space.
local function spans_of(line, delimiter, first, last)
  local count, from = 0, 1
  if not delimiter then
    local begin, stop = find(line, "%S+")
    while begin do
      count = count + 1
      first[count], last[count] = begin, stop
      begin, stop = find(line, "%S+", stop + 1)
    end
    return count
  end
  repeat
    local at, behind = find(line, delimiter, from, true)
    count = count + 1
    first[count], last[count] = from, (at or #line + 1) - 1
    from = (behind or 0) + 1
  until not at
  return count
end

-- Goes through the lines of a text, of which Lua's own reading would lose what stands behind a zero byte: the number of
-- each and what it says.
local function lines_of(text)
  local from, number = 1, 0
  return function()
    if from > #text then return nil end
    local begin, at = from, find(text, "\n", from, true) or #text + 1
    from, number = at + 1, number + 1
    return number, text:sub(begin, at - 1)
  end
end

-- Each `what` in a text, as it stands, gives way to `to`.
local function replaced(text, what, to)
  if not find(text, what, 1, true) then return text end
  local parts, from = {}, 1
  repeat
    local at, behind = find(text, what, from, true)
    parts[#parts + 1] = text:sub(from, (at or 0) - 1)
    from = (behind or 0) + 1
  until not at
  return table.concat(parts, to)
end

-- Goes through the lines of a text whose fields may stand between two quotes, as lines_of does. A quote is one at the
-- beginning of a field; there two of them are one, a line goes on, and `marks`, { text = byte }, stand for what means
-- nothing. A line whose quote is not closed is nil. The names in a `head`, the line of this number, may be a comment.
local function quoted_lines(text, quote, delimiter, comments, marks, head)
  local from, number, comment, lines = 1, 0, 0, 0
  local not_blank = delimiter == "\t" and "[^ ]" or delimiter == " " and "[^\t]" or "[^ \t]"
  -- What the field at `from` has between quotes, which end before the new `from`.
  local function quoted()
    local start, pieces = from, {}
    repeat
      local stop = find(text, quote, start, true)
      if not stop then return nil end
      local is_one_of_two = text:sub(stop + 1, stop + 1) == quote
      pieces[#pieces + 1] = text:sub(start, is_one_of_two and stop or stop - 1)
      start, from = stop + 2, stop + 1
    until not is_one_of_two
    local inside = table.concat(pieces)
    number = number + select(2, inside:gsub("\n", ""))
    for what, mark in pairs(marks) do inside = replaced(inside, what, mark) end
    return inside
  end
  return function()
    if from > #text then return nil end
    local pieces, first = {}, number + 1
    lines = lines + 1
    while true do
      local begin = find(text, not_blank, from)
      if begin and text:sub(begin, begin) == quote then
        from = begin + 1
        local inside = quoted()
        if not inside then
          from = #text + 1
          return first, nil
        end
        pieces[#pieces + 1] = inside
      end
      -- The rest of the field, or of the line, in which a quote is a letter.
      if comment and comment < from then comment = comments ~= "" and find(text, comments, from, true) end
      local stop = find(text, "\n", from, true) or #text + 1
      local at, behind = find(text, delimiter, from, true)
      if not at or at > stop or lines ~= head and comment and comment < at then
        pieces[#pieces + 1] = text:sub(from, stop - 1)
        from, number = stop + 1, number + 1
        return first, table.concat(pieces)
      end
      pieces[#pieces + 1] = text:sub(from, behind)
      from = behind + 1
    end
  end
end

-- A plain decimal, which is what most fields are: a whole number below 2^53 divided by a power of ten is rounded once,
-- and so is what the field says. nil for all else.
local power_of_ten = {}
for i = 0, 15 do power_of_ten[i] = 10 ^ i end
local function plain_number(line, from, last)
  local sign, number, digits, point = 1, 0, 0, nil
  local first = byte(line, from)
  if first == 45 or first == 43 then sign, from = 44 - first, from + 1 end  -- "-" and "+"
  for i = from, last do
    local code = byte(line, i)
    if code >= 48 and code <= 57 then
      number, digits = number * 10 + (code - 48), digits + 1
    elseif code == 46 and not point then
      point = digits
    else
      return nil
    end
  end
  if digits == 0 or digits > 15 then return nil end
  -- A quotient has a sign where it is 0; of LuaJIT's whole numbers, which it has on ARM, a product has not.
  return number / (sign * power_of_ten[point and digits - point or 0])
end

-- tonumber knows hexadecimal numbers too, which are more likely the names of something.
local function number_of(field)
  local word = field:lower():match("^[+-]?(%a+)$")
  if word == "nan" then return 0 / 0 end
  if word == "inf" or word == "infinity" then return field:sub(1, 1) == "-" and -math.huge or math.huge end
  return field:find("^[+-]?[%d.]+[eE]?[+-]?%d*$") and tonumber(field) or nil
end

-- The columns that are wanted, by places or names, or nil for all.
local function columns_wanted(usecols, call)
  if usecols == nil then return nil end
  local list, wanted = type(usecols) == "table" and usecols or { usecols }, {}
  for i, column in ipairs(arguments.check_list(list, call.where .. ": usecols")) do
    if type(column) ~= "string" and not (type(column) == "number" and column % 1 == 0) then
      call:fail((": entry %d of usecols is %s, wanted a column's place or name"):format(i, arguments.describe(column)))
    end
    wanted[i] = column
  end
  return wanted
end

-- Is one of the columns named?
local function has_names(wanted, converters)
  for _, column in ipairs(wanted or {}) do
    if type(column) == "string" then return true end
  end
  for column in pairs(type(converters) == "table" and converters or {}) do
    if type(column) == "string" then return true end
  end
  return false
end

local loadtxt_signature = signature("np.loadtxt", {
  { "path", "string" }, { "dtype", "dtype", "float32" }, { "delimiter", "string?" }, { "skiprows", "integer", 0 },
  { "usecols", "any?" }, { "comments", "string", "#" }, { "max_rows", "integer?" }, { "filling_values", "number?" },
  { "converters", "any?" }, { "quotechar", "string?" },
})
--- The numbers of a text file, (rows, columns), a row from each line:
--- `np.loadtxt("log.csv", { delimiter = ",", skiprows = 1 })`
--- Without a delimiter columns stand apart by white space. `usecols` are the columns that are wanted, in the order
--- that they are to have, by their places from 0, or by their names in the head, which is the last of the lines that
--- `skiprows` leaves out: `{ skiprows = 1, usecols = { "price", "city" } }`; only these have to be numbers. What
--- stands behind `comments` is left out, as are empty lines. `nan` and `inf` are numbers. float32, which NumPy's are
--- not, has all whole numbers up to 2^24: Unix times and the like want `dtype = flow.float64` or flow.int64.
--- `filling_values` stands for empty fields: `filling_values = np.nan`. `converters` make numbers of the text of
--- columns, by places or names: `converters = { city = function(text) return number_of[text] end }`; one function is
--- for all columns. Between two `quotechar`, such as '"', a delimiter and the end of a line are parts of the text; it
--- stands at the beginning of a field.
--- @error a field that is no number, or a line with another number of columns, by its line; no column of a name
function np.loadtxt(...)
  local given = loadtxt_signature:parse(...)
  local delimiter, quote, converters = given.delimiter, given.quotechar, given.converters
  if given.path:find("[%z\n]") then
    loadtxt_signature:fail(": the path is the text itself, " .. arguments.describe(given.path)
      .. "; it takes the path of a file that has it")
  end
  if given.max_rows and given.max_rows < 0 then
    loadtxt_signature:fail(": max_rows must be at least 0, got " .. given.max_rows)
  end
  local filling = given.filling_values
  if filling and dtypes.least[given.dtype] and not (filling % 1 == 0 and filling >= dtypes.least[given.dtype]
      and filling <= dtypes.most[given.dtype]) then
    loadtxt_signature:fail((": filling_values is %s, which is no %s"):format(arguments.describe(filling), given.dtype))
  end
  if delimiter == "" then loadtxt_signature:fail(": delimiter must be a text such as \",\", got ''") end
  if quote and (#quote ~= 1 or not delimiter) then
    loadtxt_signature:fail((": quotechar is one character, beside a delimiter, got '%s'"):format(quote))
  end
  local kind = type(converters)
  if converters ~= nil and kind ~= "function" and kind ~= "table" then
    loadtxt_signature:fail(": converters must be a function, or functions by columns, got "
      .. arguments.describe(converters))
  end
  local wanted = columns_wanted(given.usecols, loadtxt_signature)
  local is_named = has_names(wanted, converters)
  if is_named and given.skiprows < 1 then
    loadtxt_signature:fail(": columns have names in a head, which is the last line that skiprows leaves out; say "
      .. "skiprows = 1")
  end
  local marks = {}
  if quote then
    marks[delimiter] = "\1"
    if given.comments ~= "" then marks[given.comments] = "\2" end
  end
  local file, problem = open(given.path, "rb")
  if not file then fail("io", "np.loadtxt: " .. problem) end
  local all, fault = file:read("*a")
  file:close()
  if not all then fail("io", "np.loadtxt: " .. given.path .. ": " .. fault) end
  local values, rows, width, line_number, lines = {}, 0, nil, 0, 0
  local first, last, count = {}, {}, 0
  local least, most = dtypes.least[given.dtype], dtypes.most[given.dtype]
  local function refuse(text, ...)
    fail("invalid_argument", ("np.loadtxt: %s:%d: "):format(given.path, line_number) .. text:format(...))
  end
  local function as_meant(text)
    for meant, mark in pairs(marks) do text = replaced(text, mark, meant) end
    return text
  end
  -- Puts places where there are names, by a head.
  local function place_names(head)
    local _, behind = find(head, given.comments, 1, true)
    if behind == #given.comments then head = head:sub(behind + 1) end
    local names, place_of = {}, {}
    for i = 1, spans_of(head, delimiter, first, last) do
      local name = as_meant(head:sub(first[i], last[i])):match("^%s*(.-)%s*$")
      names[i], place_of[name] = name, place_of[name] or i - 1
    end
    local function placed(column)
      if type(column) ~= "string" then return column end
      return place_of[column] or refuse("the head has no column '%s'%s", column, arguments.suggestion(column, names))
    end
    for i, column in ipairs(wanted or {}) do wanted[i] = placed(column) end
    if kind ~= "table" then return end
    local by_place = {}
    for column, converter in pairs(converters) do by_place[placed(column)] = converter end
    converters = by_place
  end
  -- The converters by places from the front, among so many columns.
  local function counted_from_the_front(columns)
    local by_place = {}
    for column, converter in pairs(converters) do
      local place = type(column) == "number" and column < 0 and column + columns or column
      if type(place) ~= "number" or place % 1 ~= 0 or place < 0 or place >= columns then
        refuse("converters have no column %s to go to among %d", tostring(column), columns)
      end
      by_place[place] = converter
    end
    return by_place
  end
  -- Of a field that is not a plain number.
  local function value_of(text, column, converter)
    text = as_meant(text)
    if converter then
      local value = converter(text)
      if type(value) ~= "number" then
        refuse("column %d is '%s', of which its converter makes %s, which is no number", column, text:sub(1, 40),
          arguments.describe(value))
      end
      if least and (value % 1 ~= 0 or value < least or value > most) then
        refuse("column %d is '%s', of which its converter makes %s, which is no %s", column, text:sub(1, 40),
          arguments.describe(value), given.dtype)
      end
      return value
    end
    if text == "" and given.filling_values then return given.filling_values end
    local number = number_of(text)
    -- The last number that Lua tells from the next one.
    local is_beyond = number and math.abs(number) == 2 ^ 53 and not text:find("^[+-]?0*9007199254740992%.?0*$")
    if number and least and number % 1 ~= 0 then
      refuse("column %d is '%s', which is no whole number, and dtype is %s", column, text:sub(1, 40), given.dtype)
    elseif number and least and (number < least or number > most or is_beyond and given.dtype == "int64") then
      if given.dtype ~= "int64" then
        refuse("column %d is '%s', which does not fit into %s", column, text:sub(1, 40), given.dtype)
      end
      refuse("column %d is '%s', beyond 2^53, where not all whole numbers are one of Lua's; as float64 it is the "
        .. "nearest one, and converters may take a part of it", column, text:sub(1, 40))
    end
    return number or refuse("column %d is '%s', which is no number%s", column, text:sub(1, 40),
      not delimiter and text:find("[,;]") and "; delimiter = \",\" or \";\" parts columns"
        or text == "" and "; filling_values = np.nan stands for what is missing"
        or rows == 0 and given.skiprows == 0 and "; skiprows leaves out a head"
        or "; converters make numbers of texts, and usecols chooses columns")
  end
  if find(all, "^\239\187\191") then all = all:sub(4) end  -- the mark of UTF-8
  for number, line in quote and quoted_lines(all, quote, delimiter, given.comments, marks,
      is_named and given.skiprows) or lines_of(all) do
    if given.max_rows and rows >= given.max_rows then break end
    line_number, lines = number, lines + 1
    if not line then refuse("a quote is not closed") end
    if is_named and lines == given.skiprows then place_names(line) end
    local comment = given.comments ~= "" and find(line, given.comments, 1, true)
    if comment then line = line:sub(1, comment - 1) end
    if lines > given.skiprows and find(line, "%S") then
      if byte(line, #line) == 13 then line = line:sub(1, -2) end
      local columns = spans_of(line, delimiter, first, last)
      if not wanted then
        width = width or columns
        if columns ~= width then refuse("%d columns, and %d before", columns, width) end
      end
      if rows == 0 and type(converters) == "table" then converters = counted_from_the_front(columns) end
      for i = 1, wanted and #wanted or columns do
        local column = wanted and wanted[i] or i - 1
        local place = column < 0 and columns + column or column
        if place < 0 or place >= columns then refuse("no column %d among %d", column, columns) end
        local from, to = first[place + 1], last[place + 1]
        local converter = converters and (kind == "function" and converters or converters[place])
        count = count + 1
        local value = not converter and plain_number(line, from, to)
        if not value or least and (value % 1 ~= 0 or value < least or value > most) then
          value = value_of(line:sub(from, to):match("^%s*(.-)%s*$"), column, converter)
        end
        values[count] = value
      end
      rows = rows + 1
    end
  end
  return core.array(values, given.dtype, { rows, wanted and #wanted or width or 0 })
end

local savetxt_signature = signature("np.savetxt", {
  { "path", "string" }, { "a", "any" }, { "fmt", "string", "%.18e" }, { "delimiter", "string", " " },
  { "header", "string", "" }, { "comments", "string", "# " },
})
--- Writes an array as text, a row in each line; one of rank 1 has a number in each:
--- `np.savetxt("log.csv", a, { fmt = "%.6g", delimiter = "," })`. np.loadtxt reads it. `fmt` is how one number is
--- written, as by string.format, but for "#"; "%d" leaves out a fraction. A header stands behind `comments`, in each
--- of its lines. A file that was there is replaced when all is written.
--- @return nil
--- @error more than two axes; a fmt that takes no number; "%d" for what does not fit into 64 bits; a file that cannot
---        be written
function np.savetxt(...)
  local given = savetxt_signature:parse(...)
  local a = ndarray.as_array(given.a, "np.savetxt")
  if a.rank < 1 or a.rank > 2 then
    fail("shape_mismatch", "np.savetxt writes an array of rank 1 or 2, got " .. tostring(a.shape))
  end
  local pieces = {}
  for line in (given.header == "" and "" or given.header .. "\n"):gmatch("(.-)\n") do
    pieces[#pieces + 1] = given.comments .. line .. "\n"
  end
  local columns = a.rank == 2 and a.shape[1] or 1
  local rows = math.max(1, math.floor(kPiece / math.max(1, columns)))
  a = a:reshape({ a.shape[0], columns })
  for first = 0, math.max(0, a.shape[0] - 1), rows do
    pieces[#pieces + 1] = core.text_rows(a, first, rows, given.fmt, given.delimiter, "np.savetxt")
  end
  errors.blaming("np.savetxt", core.text_write, given.path, table.concat(pieces))
end
