-- np.loadtxt and np.savetxt: numbers in text files.
local np = require("moonflow").np
local process = require "process"

local path

local function load(text, options)
  process.write(path, text)
  return np.loadtxt(path, options or {})
end

local function fails(message, text, options, is_of_call)
  local fine, problem = pcall(load, text, options)
  assert.is_false(fine)
  assert.equal("np.loadtxt" .. (is_of_call and "" or ": " .. path) .. message, problem.message)
end

describe("numbers in a text file", function()
  setup(function() path = process.folder("np_text") .. "/log.csv" end)

  it("become rows", function()
    local a = load("1 2.5\n\n -3e2\t.5 # why\r\n# no row\n")
    assert.equal("float32", a.dtype)
    assert.same({ { 1, 2.5 }, { -300, 0.5 } }, a:totable())
    assert.same({ { 1, 2 } }, load("1;2", { delimiter = ";", dtype = "int32" }):totable())
    assert.equal("(0, 0)", tostring(load("").shape))
  end)

  it("stand below a head, in columns of which some are wanted", function()
    local text = "\239\187\191time,name,x\r\n0.5,start,-1\r\n1.5,end,inf\r\n"
    local options = { delimiter = ",", skiprows = 1, usecols = { -1, 0 } }
    assert.same({ { -1, 0.5 }, { math.huge, 1.5 } }, load(text, options):totable())
    options.max_rows = 1
    assert.same({ { -1, 0.5 } }, load(text, options):totable())
    assert.same({ { 7 } }, load("\239\187\1917\n"):totable())
    local unknown = load("nan\n-Infinity\n")
    assert.is_true(unknown:at(0, 0) ~= unknown:at(0, 0))
    assert.equal(-math.huge, unknown:at(1, 0))
  end)

  it("are read as they say, to the last digit", function()
    local words = { "0.1", "-0", "+3.", ".5", "123456789012345", "0.000123456789012", "1234567890.12345", "-7.25",
      "12345678901234567890", "0.12345678901234567890", "1e22", "-1.5E-7", "9007199254740993", "4.35", "99999.99999" }
    local read = load(table.concat(words, ","), { delimiter = ",", dtype = "float64" })
    for i, word in ipairs(words) do assert.equal(tonumber(word), read:at(0, i - 1)) end
    assert.equal(-math.huge, 1 / read:at(0, 1))
    assert.same({ { 1, 2 }, { 3, 4 } }, load("1 ,\t2\r\n 3, 4 \r\n", { delimiter = "," }):totable())
  end)

  it("may be missing, or made of words", function()
    local text = 'age,city,member\n31,"Oslo, ""#1""",yes\n,Rome,no # 7\n4.5, Rome ,\n'
    local number_of, count = {}, 0
    local function numbered(city)
      if not number_of[city] then number_of[city], count = count, count + 1 end
      return number_of[city]
    end
    local options = {
      delimiter = ",", skiprows = 1, quotechar = '"', filling_values = -1,
      converters = { numbered, function(word) return word == "yes" and 1 or 0 end },
    }
    assert.same({ { 31, 0, 1 }, { -1, 1, 0 }, { 4.5, 1, 0 } }, load(text, options):totable())
    assert.equal(0, number_of['Oslo, "#1"'])
    options.usecols = { 1 }
    assert.same({ { 0 }, { 1 }, { 1 } }, load(text, options):totable())
    assert.same({ { 2, 4 } }, load("1,2", { delimiter = ",", converters = function(x) return 2 * x end }):totable())
    fails(":2: column 1 is 'b', of which its converter makes nil, which is no number", "1,a\n1,b\n",
      { delimiter = ",", converters = { function(word) return ({ a = 1 })[word] end } })
    fails(":2: column 0 is '1? 2', which is no number; converters make numbers of texts, and usecols chooses columns",
      "7\n1\0 2\n", { delimiter = "," })
    fails(":1: column 1 is '1700000000123456789', beyond 2^53, where not all whole numbers are one of Lua's; as "
      .. "float64 it is the nearest one, and converters may take a part of it", "3 1700000000123456789",
      { dtype = "int64" })
    fails(":2: column 0 is '4.7', which is no whole number, and dtype is int32", "3\n4.7", { dtype = "int32" })
    fails(":1: column 0 is 'nan', which is no whole number, and dtype is int64", "nan", { dtype = "int64" })
    fails(":1: column 1 is '-1', which does not fit into uint8", "3 -1", { dtype = "uint8" })
    fails(":1: a quote is not closed", '1,"2\n', { delimiter = ",", quotechar = '"' })
    fails(": quotechar is one character, beside a delimiter, got '\"'", "1 2", { quotechar = '"' }, true)
    fails(": converters must be a function, or functions by columns, got 5", "1 2", { converters = 5 }, true)
  end)

  it("have quotes at their beginning alone", function()
    local quoted = { delimiter = ",", quotechar = '"' }
    assert.same({ { 1, 2 }, { 3, 4 } }, load('# height in 5"\n1,2\n# width in 6"\n3,4\n', quoted):totable())
    assert.same({ { 1, 2 }, { 3, 4 }, { 5, 6 } }, load('1,2 # 5" pipe\n3,4 # 6" pipe\n5,6\n', quoted):totable())
    local places = { delimiter = ",", quotechar = '"', usecols = { 0, 2 } }
    assert.same({ { 1, 2 }, { 3, 4 } }, load('1,5" pipe,2\n3,6" pipe,4\n', places):totable())
    quoted.converters = { [0] = function(text) return #text end }
    assert.same({ { 7, 2 }, { 1, 4 } }, load('"a,""b""\nc", "2"\n"#", 4 # x\n', quoted):totable())
    local apart = { delimiter = "\t", quotechar = '"', filling_values = -1 }
    assert.same({ { 1, -1, 2 }, { 3, 4, -1 } }, load('1\t\t"2"\n3\t "4"\t\n', apart):totable())
    fails(":2: a quote is not closed", '1,2\n"3,4\n', { delimiter = ",", quotechar = '"' })
  end)

  it("are whole numbers as they stand, or none", function()
    local wide = load("9007199254740992 -9007199254740992", { dtype = "int64" })
    assert.same({ { 2 ^ 53, -2 ^ 53 } }, wide:totable())
    fails(":1: column 0 is '9007199254740993', beyond 2^53, where not all whole numbers are one of Lua's; as "
      .. "float64 it is the nearest one, and converters may take a part of it", "9007199254740993", { dtype = "int64" })
    fails(":2: column 1 is '4', of which its converter makes 4.5, which is no int32", "1,2\n3,4",
      { delimiter = ",", dtype = "int32", converters = { [1] = function(x) return x == "4" and 4.5 or 2 end } })
    fails(": filling_values is 1.5, which is no int32", "1", { dtype = "int32", filling_values = 1.5 }, true)
    fails(": max_rows must be at least 0, got -1", "1", { max_rows = -1 }, true)
  end)

  it("are read by the names of their columns", function()
    local text = '# id, "price, EUR",city,city\r\n1,2.5,Rome,x\n2,7,Oslo,y\n'
    local function length(word) return #word end
    local options = { delimiter = ",", skiprows = 1, quotechar = '"', usecols = { "city", "price, EUR", 0 },
                      converters = { city = length } }
    assert.same({ { 4, 2.5, 1 }, { 4, 7, 2 } }, load(text, options):totable())
    assert.same({ "city", "price, EUR", 0 }, options.usecols)
    assert.same({ { 1, 2.5, 4, 1 }, { 2, 7, 4, 1 } }, load(text, { delimiter = ",", skiprows = 1, quotechar = '"',
      converters = { city = length, [3] = length } }):totable())
    assert.same({ { 2 }, { 4 } }, load("made by\na b\n1 2\n3 4\n", { skiprows = 2, usecols = "b" }):totable())
    fails(":1: the head has no column 'prise'; did you mean 'price'?", "id,price\n1,2\n",
      { delimiter = ",", skiprows = 1, usecols = { "prise" } })
    fails(": columns have names in a head, which is the last line that skiprows leaves out; say skiprows = 1", "a\n1\n",
      { usecols = { "a" } }, true)
    fails(": entry 2 of usecols is true, wanted a column's place or name", "a\n1\n",
      { skiprows = 1, usecols = { "a", true } }, true)
  end)

  it("may stand beside a text of several lines", function()
    local seen = {}
    local text = 'id,"said\nof it",x\r\n1,"two\r\nlines, ""quoted\n""",3\r\n\n4,"",5\n6,?,"7\n'
    local options = { delimiter = ",", skiprows = 1, quotechar = '"', max_rows = 2,
                      converters = { function(said) seen[#seen + 1] = said return 0 end } }
    assert.same({ { 1, 0, 3 }, { 4, 0, 5 } }, load(text, options):totable())
    assert.same({ 'two\r\nlines, "quoted\n"', "" }, seen)
    options.max_rows = nil
    fails(":8: a quote is not closed", text, options)
    fails(":4: column 0 is 'x', which is no number; converters make numbers of texts, and usecols chooses columns",
      'a,b\n1,"\n"\nx,y\n', { delimiter = ",", skiprows = 1, quotechar = '"',
        converters = { function() return 0 end } })
  end)

  it("are refused by their line", function()
    fails(":1: column 0 is 'time', which is no number; skiprows leaves out a head", "time,x\n1,2\n",
      { delimiter = "," })
    fails(":3: 1 columns, and 2 before", "1 2\n\n3\n")
    fails(":2: column 1 is '', which is no number; filling_values = np.nan stands for what is missing", "1,2\n3,\n",
      { delimiter = "," })
    fails(":1: column 0 is '1,2', which is no number; delimiter = \",\" or \";\" parts columns", "1,2\n")
    fails(":1: column 0 is '0x10', which is no number; skiprows leaves out a head", "0x10\n")
    fails(":2: no column 1 among 1", "1 2\n3\n", { usecols = { 1 } })
    local fine, problem = pcall(np.loadtxt, path .. ".none")
    assert.is_false(fine)
    assert.equal("io", problem.code)
    assert.truthy(problem.message:find("np.loadtxt: " .. path .. ".none: No such file", 1, true))
  end)
end)

describe("an array written as text", function()
  setup(function() path = process.folder("np_text") .. "/written.csv" end)

  it("is what np.loadtxt reads, and looks as NumPy's does", function()
    np.savetxt(path, np.array { { 1, 2.5 }, { 0 / 0, -1 / 0 } }, { fmt = "%.6g", delimiter = ",", header = "a\nb" })
    assert.equal("# a\n# b\n1,2.5\nnan,-inf\n", process.read(path))
    np.savetxt(path, { 1 }, { fmt = "%d", header = "a\nb\n", comments = "%1 " })
    assert.equal("%1 a\n%1 b\n%1 \n1\n", process.read(path))
    np.savetxt(path, { 1, -2 })
    assert.equal("1.000000000000000000e+00\n-2.000000000000000000e+00\n", process.read(path))
    local a = np.random.default_rng(1):normal(0, 1, { 3, 2 })
    np.savetxt(path, a)
    assert.same(a:totable(), np.loadtxt(path):totable())
  end)

  it("has at most two axes and numbers alone", function()
    for _, case in ipairs({
      { "np.savetxt writes an array of rank 1 or 2, got (1, 1, 1)", path, np.zeros({ 1, 1, 1 }) },
      { "np.savetxt: fmt writes one number, as \"%.6g\" does, got '%s'", path, { 1 }, "%s" },
      { "np.savetxt: cannot write '" .. path .. "/no.csv': ", path .. "/no.csv", { 1 } },
    }) do
      local fine, problem = pcall(np.savetxt, case[2], case[3], case[4])
      assert.is_false(fine)
      assert.truthy(tostring(problem):find(case[1], 1, true), tostring(problem))
    end
  end)

  it("takes the place of a file whose reader has it as it was", function()
    np.savetxt(path, { 1, 2 }, { fmt = "%d" })
    local reader = assert(io.open(path))
    np.savetxt(path, { 3 }, { fmt = "%d" })
    assert.equal("1\n2\n", reader:read("*a"))
    reader:close()
    assert.equal(3, np.loadtxt(path):item())
  end)

  it("has numbers as string.format writes them", function()
    local values = { 0, 1, -2.75, 0.1, 1e-7, 123456.789, -1e100, 5e-324, 1e308, 1 / 0, -1 / 0 }
    for _, fmt in ipairs({
      "%.18e", "%e", "%.0e", "%f", "%.3f", "%.0f", "%g", "%.17g", "%.0g", "%E", "%G", "%10.3f|", "%-12.4g|",
      "<%+.2e>", "% .3f", "%012.3f", "%-08.1f%%", "%+09g",
    }) do
      np.savetxt(path, np.array(values, "float64"), { fmt = fmt })
      local wanted = {}
      for i, value in ipairs(values) do wanted[i] = fmt:format(value) .. "\n" end
      assert.equal(table.concat(wanted), process.read(path), fmt)
    end
    local whole = { 0, 7, -42, 2 ^ 31, -2 ^ 40 }
    for _, fmt in ipairs({ "%d", "%i", "%5d|", "%-5d|", "%05d", "%+d", "% d", "%.3d", "%x", "%08X", "%.2f", "%g" }) do
      local wanted = {}
      for i, value in ipairs(whole) do wanted[i] = fmt:format(value) .. "\n" end
      for _, dtype in ipairs({ "float64", "int64" }) do
        np.savetxt(path, np.array(whole, dtype), { fmt = fmt })
        assert.equal(table.concat(wanted), process.read(path), fmt)
      end
    end
    np.savetxt(path, { -(0 / 0), 0 / 0 }, { fmt = "%5.1f" })
    assert.equal("  nan\n  nan\n", process.read(path))
    np.savetxt(path, np.zeros({ 0, 3 }))
    assert.equal("", process.read(path))
    np.savetxt(path, np.arange(200000):reshape({ 100000, 2 }), { fmt = "%d" })
    local text = process.read(path)
    assert.equal("0 1\n2 3\n", text:sub(1, 8))
    assert.equal("\n199998 199999\n", text:sub(-15))
    assert.equal(100000, select(2, text:gsub("\n", "")))
  end)

  it("is refused as whole numbers where it has none", function()
    for _, value in ipairs({ 0 / 0, 1 / 0, 2 ^ 63 }) do
      process.write(path, "before")
      local fine, problem = pcall(np.savetxt, path, np.array({ value }, "float64"), { fmt = "%d" })
      assert.is_false(fine)
      assert.truthy(tostring(problem):find("np.savetxt: fmt writes whole numbers of 64 bits, and one is ", 1, true))
      assert.equal("before", process.read(path))
    end
  end)
end)

describe("converters", function()
  setup(function() path = process.folder("np_text_converters") .. "/log.csv" end)

  it("count columns from the end as well, and name those that there are not", function()
    local function long(text) return #text end
    assert.same({ { 1, 2, 3 }, { 4, 5, 2 } }, load("1 2 abc\n4 5 de\n", { converters = { [-1] = long } }):totable())
    fails(":1: converters have no column 9 to go to among 3", "1 2 3\n", { converters = { [9] = long } })
  end)
end)
