-- moonflow.core: text, JSON, npy, npz, IDX and checkpoints. Whatever a file holds, reading it gives the right value or
-- an error.
local bit = require "bit"
local core = require "moonflow.core"

local folder
before_each(function()
  folder = os.tmpname()
  os.remove(folder)
  assert.equal(0, os.execute("mkdir " .. folder))
end)
after_each(function() os.execute("rm -rf " .. folder .. "*") end)

local function write(name, bytes)
  local path = folder .. "/" .. name
  os.remove(path) -- some file systems wait for the disk when a file is written again
  local file = assert(io.open(path, "wb"))
  file:write(bytes)
  file:close()
  return path
end

local function read(path)
  local file = assert(io.open(path, "rb"))
  local bytes = file:read("*a")
  file:close()
  return bytes
end

local function gzip(bytes)
  local path = write("to_pack", bytes)
  assert.equal(0, os.execute("gzip -nf " .. path))
  return read(path .. ".gz")
end

local function fails(texts, f, ...)
  local fine, problem = pcall(f, ...)
  assert.is_false(fine, "there was no error")
  assert.equal(core.error_metatable, getmetatable(problem), tostring(problem))
  for _, text in ipairs(type(texts) == "table" and texts or { texts }) do
    assert.is_truthy(tostring(problem):find(text, 1, true), "'" .. tostring(problem) .. "' lacks '" .. text .. "'")
  end
  return problem
end

-- Reads every prefix of `bytes` and every copy with one bit turned. A turned bit may be one that means nothing, but
-- then the array is the same, unless `payload` says from which byte on no checksum guards the elements.
local function damage(bytes, reader, same, payload)
  for length = 0, #bytes - 1 do
    assert.is_false(pcall(reader, write("cut", bytes:sub(1, length))), "cut at " .. length)
  end
  for at = 1, #bytes do
    for b = 0, 7 do
      local turned = bytes:sub(1, at - 1) .. string.char(bit.bxor(bytes:byte(at), 2 ^ b)) .. bytes:sub(at + 1)
      local fine, result = pcall(reader, write("turned", turned))
      if fine and not (payload and at > payload) then assert.is_true(same(result), "bit " .. b .. " of byte " .. at) end
      if not fine then assert.equal(core.error_metatable, getmetatable(result), tostring(result)) end
    end
  end
end

describe("text", function()
  it("is written in the place of what was there, or behind it, and read whole", function()
    local path = folder .. "/notes.txt"
    core.text_append(path, "one\n")
    core.text_append(path, "two\0\n")
    assert.equal("one\ntwo\0\n", core.text_read(path))
    assert.same({ "o\0\n", 9 }, { core.text_read(path, 3) })
    assert.same({ "one\ntwo\0\n", 9 }, { core.text_read(path, 10) })
    assert.same({ "", 9 }, { core.text_read(path, 0) })
    fails("last", core.text_read, path, -1)
    core.text_cut(path, 4)
    assert.equal("one\n", read(path))
    core.text_write(path, "three")
    assert.equal("three", read(path))
    core.text_write(path, "")
    assert.equal("", core.text_read(path))
    assert.same({ "notes.txt" }, core.list_directory(folder))
  end)

  it("is not written in the place of a pipe or a device, which others write to", function()
    local pipe = folder .. "/pipe"
    assert.equal(0, os.execute("mkfifo " .. pipe))
    fails({ "cannot write '" .. pipe, "it is no regular file" }, core.text_write, pipe, "text")
    fails("it is no regular file", core.npy_write, pipe, core.array({ 1, 2 }, "float32"))
    assert.equal(0, os.execute("test -p " .. pipe))
  end)

  it("names the file that cannot be read or written", function()
    assert.equal("not_found", fails("/none", core.text_read, folder .. "/none").code)
    fails(folder, core.text_read, folder)
    fails("/none/notes.txt", core.text_append, folder .. "/none/notes.txt", "x")
    fails("/none/notes.txt", core.text_write, folder .. "/none/notes.txt", "x")
    fails("text", core.text_append, folder .. "/notes.txt", {})
    assert.equal("not_found", fails("/none", core.text_cut, folder .. "/none", 0).code)
  end)
end)

describe("JSON", function()
  it("is plain data there and back, on one line", function()
    local value = { name = "a \"b\"\n", list = { 1, 2.5, true }, none = {}, inner = { deep = { -3 } } }
    local text = core.json_write(value)
    assert.is_nil(text:find("\n", 1, true))
    assert.same(value, core.json_read(text))
    assert.equal('{"a":1,"b":[false]}', core.json_write { b = { false }, a = 1 })
  end)

  it("takes bytes of any kind for text, and refuses what is no plain data", function()
    assert.equal('"\239\191\189"', core.json_write("\255"))
    fails("value", core.json_write, { print })
  end)

  it("says what is wrong with a text, and makes nothing of null", function()
    assert.same({ a = 1 }, core.json_read('{"a": 1, "b": null}'))
    for _, text in ipairs { "", '{"a":1', "{a:1}", "[1] 2", "NaN", '"\255"', ("["):rep(100) } do
      local value, problem = core.json_read(text)
      assert.is_nil(value)
      assert.equal("string", type(problem))
    end
  end)
end)

describe("npy", function()
  local function npy(header, data, version)
    version = version or "\1\0"
    local length = #header
    local bytes = version == "\1\0" and string.char(length % 256, math.floor(length / 256))
      or string.char(length % 256, math.floor(length / 256) % 256, math.floor(length / 65536) % 256, 0)
    return "\147NUMPY" .. version .. bytes .. header .. data
  end
  local function header(descr, fortran, shape)
    return ("{'descr': '%s', 'fortran_order': %s, 'shape': %s, }\n"):format(descr, fortran, shape)
  end
  local function reads(bytes) return core.npy_read(write("a.npy", bytes)) end

  it("brings every dtype and shape there and back", function()
    for _, dtype in ipairs { "float16", "float32", "float64", "int8", "uint8", "int32", "int64" } do
      for _, shape in ipairs { {}, { 3 }, { 2, 3 }, { 0, 4 }, { 1, 1, 1, 1, 1, 1, 1, 2 } } do
        local a = core.zeros(dtype, shape)
        if #a:reshape(-1) > 0 then a:reshape(-1)[-1] = 7 end
        core.npy_write(folder .. "/a.npy", a)
        assert.is_true(core.npy_read(folder .. "/a.npy") == a)
      end
    end
    assert.equal(0, #read(folder .. "/a.npy"):match("^.-\n") % 64)
    assert.same({ "a.npy" }, core.list_directory(folder))
  end)

  it("reads what others write: versions, byte orders, Fortran order, bool", function()
    local two = "\0\0\128\63\0\0\0\64"
    assert.same({ 1, 2 }, reads(npy(header("<f4", "False", "(2,)"), two)):totable())
    assert.same({ 1, 2 }, reads(npy(header("<f4", "False", "(2,)"), two, "\2\0")):totable())
    assert.same({ 1, 2 }, reads(npy(header("<f4", "False", "(2L,)"), two)):totable())
    assert.same({ 1, 2 }, reads(npy(header("=f4", "False", "(2,)"), two, "\3\0")):totable())
    assert.same({ 258 }, reads(npy(header(">i4", "False", "(1,)"), "\0\0\1\2")):totable())
    assert.same({ 1.5 }, reads(npy(header(">f2", "False", "(1,)"), "\62\0")):totable())
    assert.same({ { 0, 2, 4 }, { 1, 3, 5 } }, reads(npy(header("|u1", "True", "(2, 3)"), "\0\1\2\3\4\5")):totable())
    assert.same({ { 1.5, 2 } }, reads(npy(header("<f2", "True", "(1, 2)"), "\0\62\0\64")):totable())
    for _, case in ipairs {
      { "<i2", "int32", { -2, 32767 }, "\254\255\255\127" }, { ">i2", "int32", { -2, 258 }, "\255\254\1\2" },
      { "<u2", "int32", { 65534, 258 }, "\254\255\2\1" }, { ">u2", "int32", { 65534, 1 }, "\255\254\0\1" },
      { "<u4", "int64", { 2 ^ 32 - 1, 1 }, "\255\255\255\255\1\0\0\0" }, { ">u4", "int64", { 1 }, "\0\0\0\1" },
      { "<u8", "int64", { 2 ^ 40 }, "\0\0\0\0\0\1\0\0" }, { ">u8", "int64", { 1, 2 }, "\0\0\0\0\0\0\0\1"
        .. "\0\0\0\0\0\0\0\2" },
    } do
      local kind, dtype, values, bytes = unpack(case)
      local a = reads(npy(header(kind, "False", "(" .. #values .. ",)"), bytes))
      assert.equal(dtype, a.dtype)
      assert.same(values, a:totable(), kind)
    end
    assert.same({ { 1, 3 }, { 2, 4 } }, reads(npy(header("<u2", "True", "(2, 2)"), "\1\0\2\0\3\0\4\0")):totable())
    assert.same({}, reads(npy(header("<u2", "False", "(0,)"), "")):totable())
    assert.same({ 1, 0, 1 }, reads(npy(header("|b1", "False", "(3,)"), "\1\0\7")):totable())
    assert.equal(5, reads(npy('{"shape":(),"fortran_order":False,"descr":"|i1"}', "\5")):item())
  end)

  it("refuses what is no plain array, and says where", function()
    fails({ "a.npy", "byte 0", "no npy file: it has 0 bytes" }, reads, "")
    fails("does not start with", reads, ("x"):rep(100))
    fails("version 9.0", reads, npy("", "", "\9\0"))
    fails("refused", reads, npy(header("|O", "False", "(1,)"), "\128\3N."))
    fails("structured", reads, npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "\0\0\0\0"))
    fails("'<c8' is not supported", reads, npy(header("<c8", "False", "(1,)"), ("\0"):rep(8)))
    fails("'<U4' is text", reads, npy(header("<U4", "False", "(1,)"), ("\0"):rep(16)))
    fails("needs 12 bytes, the file has 8", reads, npy(header("<f4", "False", "(3,)"), ("\0"):rep(8)))
    fails("int32 (3) needs 6 bytes, the file has 4", reads, npy(header("<u2", "False", "(3,)"), ("\0"):rep(4)))
    fails("2 bytes too many", reads, npy(header("<u2", "False", "(3,)"), ("\0"):rep(8)))
    fails({ "the uint64 18446744073709551615 is beyond int64", "byte 76" }, reads,
      npy(header("<u8", "False", "(2,)"), ("\0"):rep(8) .. ("\255"):rep(8)))
    fails("4 bytes too many", reads, npy(header("<f4", "False", "(1,)"), ("\0"):rep(8)))
    fails("at most 10000", reads, npy((" "):rep(10001), ""))
    fails("the file ends", reads, npy((" "):rep(300), ""):sub(1, 50))
    fails("too large", reads, npy(header("<f8", "False", "(4294967296, 4294967296)"), ""))
    fails("overflows", reads, npy(header("<f8", "False", "(99999999999999999999,)"), ""))
    fails("more than 8 axes", reads, npy(header("|i1", "False", "(1,1,1,1,1,1,1,1,1)"), "\0"))
    fails("negative", reads, npy(header("|i1", "False", "(-1,)"), ""))
    fails("no tuple", reads, npy(header("|i1", "False", "(1)"), "\0"))
    fails("begins with 0", reads, npy(header("|i1", "False", "(01,)"), "\0"))
    fails("neither True nor False", reads, npy(header("|i1", "1", "(1,)"), "\0"))
    fails("twice", reads, npy("{'shape': (1,), 'shape': (1,)}", "\0"))
    fails("unknown key", reads, npy("{'x': (1,)}", "\0"))
    fails("not all there", reads, npy("{'shape': (1,)}", "\0"))
    fails("text after", reads, npy(header("|i1", "False", "(1,)") .. "x", "\0"))
    fails("", reads, npy("__import__('os')", ""))
    fails("more than 8 axes", reads, npy(header("|i1", "False", "(" .. ("1,"):rep(32) .. ")"), "\0"))
  end)

  it("refuses what is no regular file", function()
    local missing = fails("no_such", core.npy_read, folder .. "/no_such.npy")
    assert.equal("not_found", missing.code)
    fails("no regular file", core.npy_read, folder)
    fails("no regular file", core.npy_read, "/dev/zero")
    os.execute("mkfifo " .. folder .. "/pipe")
    fails("no regular file", core.npy_read, folder .. "/pipe")
    fails("names no file", core.npy_read, "a\0b")
    fails("names no file", core.npy_read, "")
    fails({ "cannot", "folder.npy'" }, core.npy_write, folder .. "/no/such/folder.npy", core.array { 1 })
  end)

  it("writes through links, to what is there and to what is not, and keeps the file's mode", function()
    local a = core.array({ 1, 2 }, "float32")
    write("data.npy", "old")
    assert(os.execute(("cd %s; chmod 640 data.npy; mkdir links; ln -s ../data.npy links/one; ln -s one links/two; "
      .. "ln -s new.npy links/three; ln -s four links/four"):format(folder)) == 0)
    core.npy_write(folder .. "/links/two", a)
    core.npy_write(folder .. "/links/three", a)
    assert.is_true(core.npy_read(folder .. "/data.npy") == a)
    assert.is_true(core.npy_read(folder .. "/links/new.npy") == a)
    assert.same({ "four", "new.npy", "one", "three", "two" }, core.list_directory(folder .. "/links"))
    assert(os.execute(("cd %s; test -h links/two -a -h links/one -a -h links/three -a $(stat -c %%a data.npy) = 640")
      :format(folder)) == 0)
    fails("symbolic links", core.npy_write, folder .. "/links/four", a)
    core.npz_write(folder .. "/links/two", { a = a, b = a })
    assert.is_true(core.npz_read(folder .. "/data.npy").b == a)
    assert(os.execute(("cd %s; test -h links/two"):format(folder)) == 0)
  end)

  it("survives every truncation and every turned bit", function()
    local a = core.array({ { 1, 2, 3 }, { 4, 5, 6 } }, "int32")
    core.npy_write(folder .. "/a.npy", a)
    local bytes = read(folder .. "/a.npy")
    -- No checksum guards an npy file: a header of another meaning is another array, so only crashes count here.
    damage(bytes, core.npy_read, function() return true end)
  end)
end)

describe("IDX", function()
  local function be32(n) return string.char(0, 0, math.floor(n / 256) % 256, n % 256) end
  local images = "\0\0\8\3" .. be32(2) .. be32(2) .. be32(3) .. "\1\2\3\4\5\6\7\8\9\10\11\12"
  local function reads(bytes) return core.idx_read(write("idx", bytes)) end

  it("reads plain and packed files, whatever they are called", function()
    local expected = { { { 1, 2, 3 }, { 4, 5, 6 } }, { { 7, 8, 9 }, { 10, 11, 12 } } }
    assert.same(expected, reads(images):totable())
    assert.same(expected, reads(gzip(images)):totable())
    assert.same(expected, reads(gzip(images:sub(1, 7)) .. gzip(images:sub(8))):totable(), "two members")
    assert.same({ 258 }, reads("\0\0\12\1\0\0\0\1\0\0\1\2"):totable())
    assert.equal("(0, 5)", tostring(reads("\0\0\8\2" .. be32(0) .. be32(5)).shape))
  end)

  it("refuses what does not add up", function()
    fails({ "byte 0", "the file ends" }, reads, "")
    fails("two zero bytes", reads, "PK\3\4")
    fails("type 11", reads, "\0\0\11\1\0\0\0\1\0\0")
    fails("axes", reads, "\0\0\8\9" .. ("\0\0\0\1"):rep(9) .. "\0")
    fails("cannot hold", reads, images:sub(1, -2))
    fails("too many", reads, images .. "x")
    fails("too large", reads, "\0\0\14\3" .. ("\255"):rep(12))
    fails("cannot hold", reads, "\0\0\8\1\255\255\255\255")
    fails("cannot hold", reads, gzip("\0\0\8\1\255\255\255\255"))
    fails("more bytes than announced", reads, gzip(images .. "x"))
    fails("bad gzip data", reads, gzip(images) .. "garbage")
    fails("too early", reads, gzip(images):sub(1, -9))
    fails("bad gzip data", reads, "\31\139" .. ("\255"):rep(30))
  end)

  it("survives every truncation and every turned bit", function()
    local same = function(a) return a == reads(images) end
    damage(images, core.idx_read, same, 0)
    damage(gzip(images), core.idx_read, same)
  end)
end)

describe("npz", function()
  -- CRC-32, to build archives that others might send.
  local function crc32(bytes)
    local crc = 0xffffffff
    for i = 1, #bytes do
      crc = bit.bxor(crc, bytes:byte(i))
      for _ = 1, 8 do
        crc = bit.bxor(bit.rshift(crc, 1), bit.band(crc, 1) == 1 and 0xedb88320 or 0)
      end
    end
    return bit.bnot(crc)
  end
  local function le(n, size)
    local out = {}
    for i = 1, size do
      out[i] = string.char(bit.band(n, 255))
      n = bit.rshift(n, 8)
    end
    return table.concat(out)
  end
  -- An archive of { name =, data =, method =, size =, crc =, packed = }; one with `at` lies in another's data.
  local function zip(members)
    local locals, central, offset = {}, {}, 0
    for _, m in ipairs(members) do
      local packed = m.packed or m.data
      local facts = le(20, 2) .. le(m.flags or 0, 2) .. le(m.method or 0, 2) .. le(0, 2) .. le(33, 2)
        .. le(m.crc or crc32(m.data), 4) .. le(#packed, 4) .. le(m.size or #m.data, 4) .. le(#m.name, 2) .. le(0, 2)
      if not m.at then locals[#locals + 1] = "PK\3\4" .. facts .. m.name .. packed end
      central[#central + 1] = "PK\1\2" .. le(20, 2) .. facts .. le(0, 2) .. le(0, 2) .. le(0, 2) .. le(0, 4)
        .. le(m.at or offset, 4) .. m.name
      if not m.at then offset = offset + #locals[#locals] end
    end
    local directory = table.concat(central)
    return table.concat(locals) .. directory .. "PK\5\6" .. le(0, 4) .. le(#members, 2) .. le(#members, 2)
      .. le(#directory, 4) .. le(offset, 4) .. le(0, 2)
  end
  local function npy(a)
    core.npy_write(folder .. "/member.npy", a)
    return read(folder .. "/member.npy")
  end
  local function reads(bytes, budget) return core.npz_read(write("a.npz", bytes), budget) end
  -- The deflate stream inside a gzip file without a name.
  local function deflate(bytes) return gzip(bytes):sub(11, -9) end

  it("brings named arrays there and back, byte for byte the same each time", function()
    local given = { x = core.array { { 1, 2 }, { 3, 4 } }, labels = core.array({ 5, 6 }, "int32"), s = core.array(7) }
    core.npz_write(folder .. "/a.npz", given)
    local got = core.npz_read(folder .. "/a.npz")
    for name, a in pairs(given) do assert.is_true(got[name] == a) end
    local first = read(folder .. "/a.npz")
    core.npz_write(folder .. "/a.npz", given)
    assert.equal(first, read(folder .. "/a.npz"))
    assert.same({ "a.npz" }, core.list_directory(folder))
  end)

  it("reads deflated members", function()
    local a = core.array { 1, 2, 3 }
    local data = npy(a)
    local packed = { name = "y.npy", data = data, packed = deflate(data), method = 8 }
    local got = reads(zip { { name = "x.npy", data = data }, packed })
    assert.is_true(got.x == a and got.y == a)
  end)

  it("needs no more than it may for all members together", function()
    local data = npy(core.zeros("float32", { 200 }))
    local two = zip { { name = "a.npy", data = data }, { name = "b.npy", data = data } }
    assert.equal(200, #reads(two, 1900).b)
    fails("member 'b.npy': the arrays need more than the 1500 bytes", reads, two, 1500)
  end)

  it("refuses archives that no honest writer makes", function()
    local data = npy(core.array { 1, 2, 3 })
    fails("no npz archive", reads, "")
    fails("no npz archive", reads, "PK\3\4")
    fails("no npz archive", reads, ("x"):rep(1000))
    fails("no .npy", reads, zip { { name = "readme.txt", data = "x" } })
    fails("leaves the archive", reads, zip { { name = "../x.npy", data = data } })
    fails("leaves the archive", reads, zip { { name = "/x.npy", data = data } })
    fails("leaves the archive", reads, zip { { name = "a/../../x.npy", data = data } })
    fails("method 12", reads, zip { { name = "x.npy", data = data, method = 12 } })
    fails("", reads, zip { { name = "x.npy", data = data, flags = 1 } })
    fails("", reads, zip { { name = "x.npy", data = data }, { name = "x.npy", data = data } })
    fails("", reads, zip { { name = "x.npy", data = data }, { name = "y.npy", data = data, at = 0 } })
    fails("", reads, zip { { name = "x.npy", data = data }, { name = "y.npy", data = data, at = 99999 } })
    fails("", reads, zip { { name = "x.npy", data = data, crc = 5 } })
    fails("", reads, zip { { name = "x.npy", data = data, packed = deflate(data), method = 8, size = #data - 4 } })
    fails("", reads, zip { { name = "x.npy", data = data, packed = deflate(data), method = 8, size = #data + 4 } })
    fails("refused", reads, zip { { name = "x.npy", data = (data:gsub("'<f4'", "'|O' ")) } })
    -- One member inside another: each is consistent by itself, together they are larger than the file.
    local inner = { name = "y.npy", data = ("y"):rep(2000) }
    local outer = { name = "x.npy", data = zip({ inner }):sub(1, 2035) .. ("x"):rep(50) }
    inner.at = 35
    fails("overlaps", reads, zip { outer, inner })
  end)

  it("refuses a bomb before it is inflated", function()
    local zeros = ("\0"):rep(2 ^ 24)
    local bomb = zip { { name = "x.npy", data = "", packed = deflate(zeros), method = 8, size = #zeros, crc = 1 } }
    assert.is_true(#bomb < 20000)
    fails("more than the 1000000 bytes", reads, bomb, 1000000)
    fails("does not start", reads, bomb)
    -- The directory announces terabytes.
    local lie = zip { { name = "x.npy", data = "", packed = deflate("abc"), method = 8, size = 2 ^ 32 - 2, crc = 1 } }
    fails("more than the 1073741824 bytes", reads, lie)
  end)

  it("refuses to write names that cannot be read back", function()
    local a = core.array { 1 }
    fails("cannot name", core.npz_write, folder .. "/a.npz", { ["../x"] = a })
    fails("cannot name", core.npz_write, folder .. "/a.npz", { [""] = a })
    fails("at least one", core.npz_write, folder .. "/a.npz", {})
    fails("expected a string", core.npz_write, folder .. "/a.npz", { a })
    fails("expected an ndarray", core.npz_write, folder .. "/a.npz", { x = 1 })
    fails("cannot write", core.npz_write, folder .. "/no/such.npz", { x = a })
  end)

  it("survives every truncation and every turned bit", function()
    local a = core.array({ 1, 2, 3 }, "uint8")
    core.npz_write(folder .. "/b.npz", { x = a })
    damage(read(folder .. "/b.npz"), core.npz_read, function(got)
      local name, value = next(got)
      return value == a and next(got, name) == nil
    end)
  end)
end)

describe("a checkpoint", function()
  local w, b = core.array { { 1, 2, 3 }, { 4, 5, 6 } }, core.array({ 7, 8 }, "int64")
  local values = { { name = "conv1-weight", value = w }, { name = "step", value = b } }
  local wanted = { { name = "conv1-weight", dtype = "float32", shape = { 2, 3 } },
                   { name = "step", dtype = "int64", shape = b.shape } }
  local path
  before_each(function() path = folder .. "/model" end)

  local function saved(meta)
    core.checkpoint_write(path, values, meta)
    return path
  end
  local function holds_both(got) return got["conv1-weight"] == w and got.step == b end

  it("is a folder of raw values that the original could read, and a manifest", function()
    local meta = { seed = 5, schedule = { kind = "cosine", steps = { 1, 2, 3 }, warm = true }, note = "é" }
    saved(meta)
    assert.same({ "conv1-weight", "manifest.json", "snapshot_done", "step" }, core.list_directory(path))
    assert.equal(w:tobytes(), read(path .. "/conv1-weight/out"))
    assert.same({ "model" }, core.list_directory(folder))
    local got, manifest = core.checkpoint_read(path)
    assert.is_true(holds_both(got))
    assert.same(meta, manifest.meta)
    assert.same({ 2, 3 }, manifest.variables["conv1-weight"].shape)
    assert.equal(1, manifest.version)
    assert.is_true(holds_both(core.checkpoint_read(path .. "/", wanted)))
  end)

  it("leaves out what is missing, and refuses other types", function()
    saved()
    local got = core.checkpoint_read(path, { wanted[2], { name = "new", dtype = "int8", shape = {} } })
    assert.is_true(got.step == b)
    assert.is_nil(got.new)
    local texts = { "variable 'step'", "is int64 (2), the program wants int64 (3)" }
    local problem = fails(texts, core.checkpoint_read, path,
      { { name = "step", dtype = "int64", shape = { 3 } } })
    assert.equal("shape_mismatch", problem.code)
    problem = fails("wants float64 (2)", core.checkpoint_read, path,
      { { name = "step", dtype = "float64", shape = { 2 } } })
    assert.equal("dtype_mismatch", problem.code)
    problem = fails("no_such", core.checkpoint_read, folder .. "/no_such")
    assert.equal("not_found", problem.code)
  end)

  it("is not overwritten unless asked, and nothing but a checkpoint ever is", function()
    saved { n = 1 }
    fails({ "not empty", "overwrite = true" }, core.checkpoint_write, path, values)
    core.checkpoint_write(path, { values[2] }, { n = 2 }, true)
    local got, manifest = core.checkpoint_read(path)
    assert.equal(2, manifest.meta.n)
    assert.is_nil(got["conv1-weight"])
    assert.same({ "model" }, core.list_directory(folder))
    write("model/notes.txt", "mine")
    fails("holds 'notes.txt'", core.checkpoint_write, path, values, nil, true)
    assert.equal("mine", read(path .. "/notes.txt"))
    os.execute("mkdir -p " .. folder .. "/home/letters")
    write("home/letters/out", "dear")
    fails("no checkpoint", core.checkpoint_write, folder .. "/home", values, nil, true)
    assert.equal("dear", read(folder .. "/home/letters/out"))
    write("file", "x")
    fails("no folder", core.checkpoint_write, folder .. "/file", values, nil, true)
    os.execute("ln -s model " .. folder .. "/link")
    fails("no folder", core.checkpoint_write, folder .. "/link", values, nil, true)
    os.execute("mkdir " .. folder .. "/empty")
    core.checkpoint_write(folder .. "/empty", values)
    assert.is_true(holds_both(core.checkpoint_read(folder .. "/empty")))
  end)

  it("stays as it was when the disk is full", function()
    saved { n = 1 }
    local script = write("save.lua", ([[
      local core = require "moonflow.core"
      local big = core.zeros("float32", { 1000000 })
      local fine, problem = pcall(core.checkpoint_write, %q, { { name = "big", value = big } }, { n = 2 }, true)
      assert(not fine and problem.code == "io", tostring(problem))
    ]]):format(path))
    -- A limit on the size of files fails a write as a full disk does.
    local launcher = os.getenv("MOONFLOW_LAUNCHER") or arg[-1] or "luajit"
    assert.equal(0, os.execute(("trap '' XFSZ; ulimit -f 1000; %s %s"):format(launcher, script)))
    local got, manifest = core.checkpoint_read(path)
    assert.equal(1, manifest.meta.n)
    assert.is_true(holds_both(got))
    assert.same({ "model", "save.lua" }, core.list_directory(folder))
  end)

  it("is found whole after a crash at any moment, and the next save cleans up", function()
    saved { n = 1 }
    -- A killed writer leaves its temporary folder.
    os.execute(("cp -r %s %s.moonflow-tmp-1-0; rm %s.moonflow-tmp-1-0/manifest.json"):format(path, path, path))
    core.checkpoint_write(path, values, { n = 2 }, true)
    assert.same({ "model" }, core.list_directory(folder))
    -- Between the two renames of a file system that cannot exchange, only the previous one is there.
    os.execute(("mv %s %s.moonflow-previous"):format(path, path))
    local got, manifest = core.checkpoint_read(path)
    assert.is_true(holds_both(got))
    assert.equal(2, manifest.meta.n)
    fails("not empty", core.checkpoint_write, path, values)
    core.checkpoint_write(path, values, { n = 3 }, true)
    assert.equal(3, select(2, core.checkpoint_read(path)).meta.n)
    assert.same({ "model" }, core.list_directory(folder))
  end)

  it("detects every turned bit and every truncation", function()
    core.checkpoint_write(path, { values[2] }, { n = 1 })
    for _, name in ipairs { "manifest.json", "step/out" } do
      local bytes = read(path .. "/" .. name)
      for at = 1, #bytes do
        for turn = 0, 7 do
          local turned = string.char(bit.bxor(bytes:byte(at), 2 ^ turn))
          write("model/" .. name, bytes:sub(1, at - 1) .. turned .. bytes:sub(at + 1))
          local fine, problem = pcall(core.checkpoint_read, path)
          assert.is_false(fine, name .. ", bit " .. turn .. " of byte " .. at)
          assert.equal(core.error_metatable, getmetatable(problem), tostring(problem))
        end
        write("model/" .. name, bytes:sub(1, at - 1))
        assert.is_false((pcall(core.checkpoint_read, path)))
      end
      write("model/" .. name, bytes .. " ")
      assert.is_false((pcall(core.checkpoint_read, path)))
      write("model/" .. name, bytes)
    end
    assert.is_true(core.checkpoint_read(path).step == b)
  end)

  it("has any name as that of a folder within it", function()
    local entries = {}
    for i, name in ipairs { "../model/step", "a/b", "a%2Fb", "..", ".", "x\0y", "manifest.json", "snapshot_done",
                            ".hidden", "a\\b", "größe", ("n"):rep(255) } do
      entries[i] = { name = name, value = core.array(i, "int64") }
    end
    core.checkpoint_write(path, entries)
    local all = core.checkpoint_read(path)
    for _, entry in ipairs(entries) do
      assert.is_true(all[entry.name] == entry.value, entry.name)
      local one = core.checkpoint_read(path, { { name = entry.name, dtype = "int64", shape = {} } })
      assert.is_true(one[entry.name] == entry.value, entry.name)
    end
    assert.same({ "model" }, core.list_directory(folder))
    local folders = {}
    for _, name in ipairs(core.list_directory(path)) do folders[name] = true end
    for _, name in ipairs { "%2E.%2Fmodel%2Fstep", "a%2Fb", "a%252Fb", "%2E.", "%6Danifest.json", "manifest.json" } do
      assert.is_true(folders[name], name)
    end
  end)

  it("wants names in UTF-8, and says which is not", function()
    fails({ "name 'gr\246\223e' of a variable", "must be UTF-8" }, core.checkpoint_write, path,
      { { name = "gr\246\223e", value = b } })
  end)

  it("does not follow links and does not leave its folder", function()
    saved()
    write("secret", b:tobytes())
    os.execute(("rm %s/step/out; ln -s %s/secret %s/step/out"):format(path, folder, path))
    fails("symbolic link", core.checkpoint_read, path, wanted)
    os.execute(("rm -r %s/step; mkdir %s/other; cp %s/secret %s/other/out; ln -s %s/other %s/step"):format(
      path, folder, folder, folder, folder, path))
    fails("is no folder, or a link", core.checkpoint_read, path, wanted)
    os.execute(("rm %s/step; mkdir %s/step; mkfifo %s/step/out"):format(path, path, path))
    fails("no regular file", core.checkpoint_read, path, wanted)
    for _, name in ipairs { "", ("n"):rep(256), ("/"):rep(86) } do
      fails("cannot be that of a folder", core.checkpoint_write, folder .. "/bad", { { name = name, value = b } })
    end
    assert.same({ "model", "other", "secret" }, core.list_directory(folder))
  end)

  it("of the original is read by sizes", function()
    saved()
    os.remove(path .. "/manifest.json")
    local none = { name = "none", dtype = "int8", shape = {} }
    local got, manifest = core.checkpoint_read(path, { wanted[1], none })
    assert.is_true(got["conv1-weight"] == w)
    assert.is_nil(manifest)
    assert.is_nil(got.none)
    fails("must be given", core.checkpoint_read, path)
    fails("has 24 bytes, float32 (7) has 28", core.checkpoint_read, path,
      { { name = "conv1-weight", dtype = "float32", shape = { 7 } } })
  end)

  it("takes plain data as meta, and nothing else", function()
    local loop = {}
    loop.loop = loop
    local refused = { { f = print }, loop, { [1.5] = 1 }, { n = 0 / 0 }, { n = math.huge }, { s = "\255" }, { b } }
    for _, meta in ipairs(refused) do
      fails("", core.checkpoint_write, path, values, meta)
      assert.same({}, core.list_directory(folder))
    end
    fails("given twice", core.checkpoint_write, path, { values[1], values[1] })
    fails("expected a table", core.checkpoint_write, path, { 1 })
    fails("expected an ndarray", core.checkpoint_write, path, { { name = "x" } })
    fails("overwrite: expected true or false", core.checkpoint_write, path, values, nil, 1)
    fails("cannot", core.checkpoint_write, folder .. "/no/such/model", values)
    fails("nested more", core.checkpoint_read, (function()
      saved()
      write("model/manifest.json", ("["):rep(100000))
      return path
    end)())
  end)
end)
