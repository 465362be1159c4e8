--- Numbers in text files: what spreadsheets and loggers write, as an array.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"

local signature, flat_list, fail = arguments.signature, arguments.flat_list, errors.raise
local open = io.open

-- The pieces of a line between delimiters, without the white space around them; nil is any white space.
local function fields_of(line, delimiter)
  local fields = {}
  if not delimiter then
    for field in line:gmatch("%S+") do fields[#fields + 1] = field end
    return fields
  end
  local from = 1
  repeat
    local first, last = line:find(delimiter, from, true)
    fields[#fields + 1] = line:sub(from, (first or 0) - 1):match("^%s*(.-)%s*$")
    from = (last or 0) + 1
  until not first
  return fields
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
    { "usecols", "list?" }, { "comments", "string", "#" }, { "max_rows", "integer?" },
  })
  --- The numbers of a text file, (rows, columns), a row from each line:
  --- `np.loadtxt("log.csv", { delimiter = ",", skiprows = 1 })`
  --- Without a delimiter columns stand apart by white space. `usecols` are the columns that are wanted, from 0,
  --- and only these have to be numbers; `skiprows` leaves out the first lines, such as a head, and what stands behind
  --- `comments` is left out, as are empty lines. `nan` and `inf` are numbers.
  --- @error a field that is no number, or a line with another number of columns, by its line
  function np.loadtxt(...)
    local given = loadtxt_signature:parse(...)
    if given.delimiter == "" then loadtxt_signature:fail(": delimiter must be a text such as \",\", got ''") end
    local file, problem = open(given.path, "rb")
    if not file then fail("io", "np.loadtxt: " .. problem) end
    local wanted, values, rows, width, line_number = given.usecols and flat_list(given.usecols), {}, 0, nil, 0
    local function refuse(text, ...)
      file:close()
      fail("invalid_argument", ("np.loadtxt: %s:%d: "):format(given.path, line_number) .. text:format(...))
    end
    for line in file:lines() do
      line_number = line_number + 1
      if line_number == 1 then line = line:gsub("^\239\187\191", "") end  -- the mark of UTF-8
      local comment = given.comments ~= "" and line:find(given.comments, 1, true)
      if comment then line = line:sub(1, comment - 1) end
      if line_number > given.skiprows and line:find("%S") then
        if given.max_rows and rows >= given.max_rows then break end
        local fields = fields_of(line, given.delimiter)
        if not wanted then
          width = width or #fields
          if #fields ~= width then refuse("%d columns, and %d before", #fields, width) end
        end
        for i = 1, wanted and #wanted or #fields do
          local column = wanted and wanted[i] or i - 1
          local field = fields[(column < 0 and #fields + column or column) + 1]
          if not field then refuse("no column %d among %d", column, #fields) end
          local value = number_of(field)
          if not value then
            refuse("column %d is '%s', which is no number%s", column, field:sub(1, 40), not given.delimiter
              and field:find("[,;]") and "; delimiter = \",\" or \";\" parts columns"
              or rows == 0 and "; skiprows leaves out a head" or "")
          end
          values[#values + 1] = value
        end
        rows = rows + 1
      end
    end
    file:close()
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
    if given.header ~= "" then lines[1] = given.comments .. given.header:gsub("\n", "\n" .. given.comments) end
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
