--- Numbers in text files: what spreadsheets and loggers write, as an array.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"

local signature, flat_list, fail = arguments.signature, arguments.flat_list, errors.raise
local open = io.open

local byte, find = string.byte, string.find

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

-- Goes through the lines of a text, of which Lua's own reading would lose what stands behind a zero byte.
local function lines_of(text)
  local from = 1
  return function()
    if from > #text then return nil end
    local at = find(text, "\n", from, true) or #text + 1
    local line = text:sub(from, at - 1)
    from = at + 1
    return line
  end
end

-- Each `what` in a text, as it stands, gives way to `to`.
local function replaced(text, what, to)
  local parts, from = {}, 1
  repeat
    local at, behind = find(text, what, from, true)
    parts[#parts + 1] = text:sub(from, (at or 0) - 1)
    from = (behind or 0) + 1
  until not at
  return table.concat(parts, to)
end

-- A line without its quotes. Two of them within a pair are one, and `marks`, { text = byte }, stand for what means
-- nothing there. nil where a quote is not closed.
local function without_quotes(line, quote, marks)
  local pieces, from = {}, 1
  while true do
    local at = find(line, quote, from, true)
    pieces[#pieces + 1] = line:sub(from, (at or 0) - 1)
    if not at then return table.concat(pieces) end
    local start, inside, stop = at + 1, ""
    repeat
      stop = find(line, quote, start, true)
      if not stop then return nil end
      local is_one_of_two = line:sub(stop + 1, stop + 1) == quote
      inside = inside .. line:sub(start, is_one_of_two and stop or stop - 1)
      start = stop + 2
    until not is_one_of_two
    for text, mark in pairs(marks) do inside = replaced(inside, text, mark) end
    pieces[#pieces + 1] = inside
    from = stop + 1
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
  return sign * (point and number / power_of_ten[digits - point] or number)
end

-- tonumber knows hexadecimal numbers too, which are more likely the names of something.
local function number_of(field)
  local word = field:lower():match("^[+-]?(%a+)$")
  if word == "nan" then return 0 / 0 end
  if word == "inf" or word == "infinity" then return field:sub(1, 1) == "-" and -math.huge or math.huge end
  return field:find("^[+-]?[%d.]+[eE]?[+-]?%d*$") and tonumber(field) or nil
end

return function(np)
  local loadtxt_signature = signature("np.loadtxt", {
    { "path", "string" }, { "dtype", "dtype", "float32" }, { "delimiter", "string?" }, { "skiprows", "integer", 0 },
    { "usecols", "list?" }, { "comments", "string", "#" }, { "max_rows", "integer?" }, { "filling_values", "number?" },
    { "converters", "any?" }, { "quotechar", "string?" },
  })
  --- The numbers of a text file, (rows, columns), a row from each line:
  --- `np.loadtxt("log.csv", { delimiter = ",", skiprows = 1 })`
  --- Without a delimiter columns stand apart by white space. `usecols` are the columns that are wanted, from 0,
  --- and only these have to be numbers; `skiprows` leaves out the first lines, such as a head, and what stands behind
  --- `comments` is left out, as are empty lines. `nan` and `inf` are numbers. float32, which NumPy's are not, has all
  --- whole numbers up to 2^24: Unix times and the like want `dtype = flow.float64` or flow.int64.
  --- `filling_values` stands for empty fields: `filling_values = np.nan`. `converters` make numbers of the text of
  --- columns, by their places: `converters = { [2] = function(text) return number_of[text] end }`; one function is
  --- for all columns. Between two `quotechar`, such as '"', a delimiter is a part of the text.
  --- @error a field that is no number, or a line with another number of columns, by its line
  function np.loadtxt(...)
    local given = loadtxt_signature:parse(...)
    local delimiter, quote, converters = given.delimiter, given.quotechar, given.converters
    if delimiter == "" then loadtxt_signature:fail(": delimiter must be a text such as \",\", got ''") end
    if quote and (#quote ~= 1 or not delimiter) then
      loadtxt_signature:fail((": quotechar is one character, beside a delimiter, got '%s'"):format(quote))
    end
    local kind = type(converters)
    if converters ~= nil and kind ~= "function" and kind ~= "table" then
      loadtxt_signature:fail(": converters must be a function, or functions by columns, got "
        .. arguments.describe(converters))
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
    local wanted, values, rows, width, line_number = given.usecols and flat_list(given.usecols), {}, 0, nil, 0
    local first, last, count = {}, {}, 0
    local least, most = dtypes.least[given.dtype], dtypes.most[given.dtype]
    local function refuse(text, ...)
      fail("invalid_argument", ("np.loadtxt: %s:%d: "):format(given.path, line_number) .. text:format(...))
    end
    -- Of a field that is not a plain number.
    local function value_of(text, column, converter)
      for meant, mark in pairs(marks) do text = replaced(text, mark, meant) end
      if converter then
        local value = converter(text)
        if type(value) ~= "number" then
          refuse("column %d is '%s', of which its converter makes %s, which is no number", column, text:sub(1, 40),
            arguments.describe(value))
        end
        return value
      end
      if text == "" and given.filling_values then return given.filling_values end
      local number = number_of(text)
      if number and least and number % 1 ~= 0 then
        refuse("column %d is '%s', which is no whole number, and dtype is %s", column, text:sub(1, 40), given.dtype)
      elseif number and least and (number < least or number > most) then
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
    for line in lines_of(all) do
      line_number = line_number + 1
      if line_number == 1 then line = line:gsub("^\239\187\191", "") end  -- the mark of UTF-8
      if quote and find(line, quote, 1, true) then
        line = without_quotes(line, quote, marks) or refuse("a quote is not closed")
      end
      local comment = given.comments ~= "" and find(line, given.comments, 1, true)
      if comment then line = line:sub(1, comment - 1) end
      if line_number > given.skiprows and find(line, "%S") then
        if given.max_rows and rows >= given.max_rows then break end
        if byte(line, #line) == 13 then line = line:sub(1, -2) end
        local columns = spans_of(line, delimiter, first, last)
        if not wanted then
          width = width or columns
          if columns ~= width then refuse("%d columns, and %d before", columns, width) end
        end
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
  --- `np.savetxt("log.csv", a, { fmt = "%.6g", delimiter = "," })`. np.loadtxt reads it. `fmt` is how string.format
  --- writes one number. A header stands behind `comments`, in each of its lines.
  --- @return nil
  --- @error more than two axes; a fmt that takes no number; a file that cannot be written
  function np.savetxt(...)
    local given = savetxt_signature:parse(...)
    local a = ndarray.as_array(given.a, "np.savetxt")
    if a.rank < 1 or a.rank > 2 then
      fail("shape_mismatch", "np.savetxt writes an array of rank 1 or 2, got " .. tostring(a.shape))
    end
    if not given.fmt:gsub("%%%%", ""):find("^[^%%]*%%[-+ #0]*%d*%.?%d*[dieEfgGxX][^%%]*$") then
      fail("invalid_argument", "np.savetxt: fmt writes one number, as \"%.6g\" does, got '" .. given.fmt .. "'")
    end
    local lines = {}
    for line in (given.header == "" and "" or given.header .. "\n"):gmatch("(.-)\n") do
      lines[#lines + 1] = given.comments .. line
    end
    for _, row in ipairs(a:totable()) do
      local fields = {}
      for i, value in ipairs(type(row) == "table" and row or { row }) do fields[i] = given.fmt:format(value) end
      lines[#lines + 1] = table.concat(fields, given.delimiter)
    end
    lines[#lines + 1] = ""
    local file, problem = open(given.path, "wb")
    if not file then fail("io", "np.savetxt: " .. problem) end
    local written, why = file:write(table.concat(lines, "\n"))
    local closed, why_not = file:close()
    if not (written and closed) then fail("io", "np.savetxt: " .. given.path .. ": " .. (why or why_not)) end
  end
end
