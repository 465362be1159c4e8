-- Arrays as text, in memory and in files.
local checks = require "checks"
local core = require "moonflow.core"
local np = require "moonflow.np"
local process = require "process"

local raises, same = checks.raises, checks.same

-- "0aff" as the two bytes.
local function bytes_of(hex)
  return (hex:gsub("..", function(byte) return string.char(tonumber(byte, 16)) end))
end

describe("text and memory", function()
  it("print as NumPy does", function()
    local a = np.array({ 0.15727027, 0.45887455, 0.10939325, 0.66666406, 0 })
    assert.equal("[0.15727027 0.45887455 0.10939325 0.66666406 0.        ]", tostring(a))
    np.set_printoptions({ precision = 2 })
    assert.equal("[0.16 0.46 0.11 0.67 0.  ]", tostring(a))
    require("moonflow.ndarray").print_options = {}
    raises("invalid_argument", "did you mean 'precision'", function() np.set_printoptions({ precison = 2 }) end)
  end)

  it("print bfloat16 with the digits that tell its values apart", function()
    assert.equal("[ 0.1   1.02 -3.3 ]", tostring(np.array({ 0.1, 1.02, -3.3 }, "bfloat16")))
    assert.equal("0.1", tostring(np.array(0.1, "bfloat16")))
    assert.equal("[1.0205 1.1045]", tostring(np.array({ 1.0205078125, 1.1044921875 }, "float16")))
    assert.equal("1e+16", tostring(np.array(1e16)))
    assert.equal("[ 1. nan inf]", tostring(np.array({ 1, 0 / 0, math.huge }, "bfloat16")))
  end)

  it("hold bfloat16 in two bytes, rounded to nearest", function()
    local a = np.array({ { 1.1, -2 }, { 1e20, 256.5 } }, "bfloat16")
    assert.equal(8, a.nbytes)
    assert.equal(1.1015625, a:at(0, 0))
    same(a:astype("float32"), "float32", { { 1.1015625, -2 }, { 99727710148492263424, 256 } })
    same(a:astype("int32"), "int32", { { 1, -2 }, { 2 ^ 31 - 1, 256 } })
    same(np.array({ 1, 3 }, "bfloat16") + 1, "bfloat16", { 2, 4 })
    same(np.array({ 1.00390625, 257, 259 }):astype("bfloat16"), "bfloat16", { 1, 256, 260 }) -- ties go to even
    a:set(0, 1, 1.1)
    assert.equal(1.1015625, a:at(0, 1))
    assert.equal(1.1015625, a:slice("0, 1"))
    assert.equal("\205\63", np.array({ 1.6 }, "bfloat16"):tobytes())
    assert.equal(3.5, np.array({ 1, 2.5 }, "bfloat16"):sum())
  end)

  it("print float16 with the digits that tell its values apart", function()
    assert.equal("[ 0.1   1.02 -3.3 ]", tostring(np.array({ 0.1, 1.02, -3.3 }, "float16")))
    assert.equal("0.3333", tostring(np.array(1 / 3, "float16")))
    assert.equal("[ 1. nan inf]", tostring(np.array({ 1, 0 / 0, 65520 }, "float16")))
  end)

  it("hold float16 in two bytes, rounded to nearest", function()
    local a = np.array({ { 1.1, -2 }, { 1e20, 2049 } }, "float16")
    assert.equal(8, a.nbytes)
    assert.equal(1.099609375, a:at(0, 0))
    same(a:astype("float32"), "float32", { { 1.099609375, -2 }, { math.huge, 2048 } })
    same(np.array({ 1, 3 }, "float16") + 1, "float16", { 2, 4 })
    same(np.array({ 1, 3 }, "uint8") * np.array({ 0.5, 0.25 }, "float16"), "float16", { 0.5, 0.75 })
    same(np.array({ 2 ^ -24, 2 ^ -26, 65504 }):astype("float16"), "float16", { 2 ^ -24, 0, 65504 })
    same(np.array({ 1.6, 3 }, "float16"):astype("bfloat16"):astype("int32"), "int32", { 1, 3 })
    a:set(0, 1, 1.1)
    assert.equal(1.099609375, a:slice("0, 1"))
    assert.equal("\102\62", np.array({ 1.6 }, "float16"):tobytes())
    assert.equal(0x3e66, np.array({ 1.6 }, "float16"):ptr()[0])
    assert.equal(3.5, np.array({ 1, 2.5 }, "float16"):sum())
    assert.equal("float16", np.float16)
  end)

  it("give a pointer for hot loops", function()
    local a = np.array({ 1, 2, 3 })
    local p = a:ptr()
    assert.equal(2, p[1])
    p[1] = 5
    assert.equal(5, a[1])
  end)
end)

describe("files", function()
  local folder
  setup(function() folder = process.folder("np_files") end)

  it("come back as they were, every dtype and rank", function()
    for _, dtype in ipairs({ "float16", "float32", "float64", "int8", "uint8", "int32", "int64" }) do
      for _, shape in ipairs({ {}, { 0 }, { 3 }, { 2, 3 }, { 2, 0, 3 }, { 1, 2, 3, 4 } }) do
        local a = np.full(shape, 7, dtype)
        np.save(folder .. "/a.npy", a)
        assert.is_true(a == np.load(folder .. "/a.npy"))
      end
    end
  end)

  it("cannot hold bfloat16, and say what to save", function()
    raises("unsupported", "save a:astype", function() np.save(folder .. "/b.npy", np.ones({ 2 }, "bfloat16")) end)
    raises("unsupported", "save a:astype", function() np.savez(folder .. "/b.npz", { np.ones({ 2 }, "bfloat16") }) end)
  end)

  it("get NumPy's endings and names", function()
    np.save(folder .. "/plain", { 1, 2 })
    same(np.load(folder .. "/plain.npy"), "float32", { 1, 2 })
    raises("invalid_argument", "np.savez: two arrays are called 'arr_0'", function()
      np.savez(folder .. "/list", { np.array({ 1 }), arr_0 = np.array({ 2 }) })
    end)
    np.savez(folder .. "/list", { np.array({ 1 }), np.array({ 2 }) })
    local loaded = np.load(folder .. "/list.npz")
    same(loaded.arr_0, "float32", { 1 })
    same(loaded.arr_1, "float32", { 2 })
  end)

  it("of several arrays are read in part on demand, as where others are of text", function()
    local path = folder .. "/some.npz"
    np.savez(path, { a = { 1 }, b = { 2 }, classes = { 3 } })
    local some = np.load(path, { names = { "b", "a" } })
    same(some.a, "float32", { 1 })
    same(some.b, "float32", { 2 })
    assert.is_nil(some.classes)
    some = np.load(path, { names = "classes" })
    same(some.classes, "float32", { 3 })
    assert.is_nil(some.a)
    raises("not_found", "some.npz' has no array 'x'; it has a, classes", np.load, path, { names = { "b", "x" } })
    raises("invalid_argument", "np.load: names must be a list of names of arrays, got 5", np.load, path,
      { names = 5 })
    np.save(folder .. "/one.npy", { 1 })
    raises("invalid_argument", "np.load: names are those of an npz file", np.load, folder .. "/one.npy",
      { names = { "a" } })
    local whole = process.read(folder .. "/one.npy")
    process.write(folder .. "/text.npy", (whole:gsub("<f4", "<U1")))
    raises("io", "dtype '<U1' is text, which no array holds; np.load(path, { names", np.load, folder .. "/text.npy")
  end)

  it("are read from bytes as well", function()
    np.savez(folder .. "/bytes.npz", { a = { 1 }, b = { 2, 3 } })
    np.save(folder .. "/bytes.npy", np.array({ 4, 5 }, "int32"))
    local archive, array = process.read(folder .. "/bytes.npz"), process.read(folder .. "/bytes.npy")
    same(np.load_memory(archive).b, "float32", { 2, 3 })
    assert.is_nil(np.load_memory(archive, { names = { "a" } }).b)
    same(np.load_memory(array), "int32", { 4, 5 })
    same(np.load_memory(array, #array), "int32", { 4, 5 })  -- as love.filesystem.read gives it
    raises("io", "file '(bytes)', byte 128: the array int32 (2) needs 8 bytes, the file has 0", np.load_memory,
      array:sub(1, 128))
    raises("io", "file '(bytes)', byte 136: 1 bytes too many", np.load_memory, array .. "x")
    raises("io", "file '(bytes)': no npz archive", np.load_memory, archive:sub(1, -20))
    raises("not_found", "file '(bytes)' has no array 'c'; it has a, b", np.load_memory, archive, "c")
    raises("invalid_argument", "np.load_memory: names are those of an npz file, and these bytes are none",
      np.load_memory, array, { names = "a" })
  end)

  it("say what they want in the place of a path, and of the arrays", function()
    local a = np.ones({ 2 })
    for name, call in pairs({ save = np.save, savez = np.savez, save_png = np.save_png }) do
      raises("invalid_argument", "np." .. name .. " wants the path of a file, got an ndarray float32 (2)", function()
        call(a, "swapped")
      end)
    end
    raises("invalid_argument", "np.savez wants a table of arrays, such as { x = a, y = b }, got an ndarray", function()
      np.savez(folder .. "/no", a)
    end)
    raises("invalid_argument", "np.savez wants a table of arrays, such as { x = a, y = b }, got nil", function()
      np.savez(folder .. "/no")
    end)
  end)

  it("are written without a look at memory that was given back", function()
    process.write(folder .. "/save.lua", ([[
      local np = require("moonflow").np
      np.savez(%q, { a = np.array({ 1, 2 }) })]]):format(folder .. "/saved"))
    -- The C library overwrites what is freed.
    local program = process.moonflow({ folder .. "/save.lua" },
      { env = { GLIBC_TUNABLES = "glibc.malloc.tcache_count=0:glibc.malloc.perturb=165" } })
    assert.equal(0, program.code, program.err)
    same(np.load(folder .. "/saved.npz").a, "float32", { 1, 2 })
  end)

  it("say which file is missing or is no array", function()
    raises("not_found", "nowhere.npy", function() np.load(folder .. "/nowhere.npy") end)
    process.write(folder .. "/empty.npy", "")
    raises("io", "empty.npy', byte 0: no npy file: it has 0 bytes", function() np.load(folder .. "/empty.npy") end)
    os.execute("mkfifo " .. folder .. "/pipe")
    for _, path in ipairs({ folder .. "/pipe", "/dev/zero", folder }) do  -- a pipe's open would wait for its other end
      raises("io", path .. "' is no regular file", function() np.load(path) end)
    end
    np.save_png(folder .. "/grey.png", np.zeros({ 2, 2 }))
    np.save_jpeg(folder .. "/grey.jpg", np.zeros({ 2, 2 }))
    np.save_wav(folder .. "/silence.wav", np.zeros({ 8 }), 8000)
    require("moonflow").checkpoint.save(folder .. "/weights.safetensors", { w = np.zeros({ 2 }) })
    for name, reader in pairs { ["grey.png"] = "a PNG picture, which np.load_png", ["grey.jpg"] = "np.load_jpeg",
        ["silence.wav"] = "np.load_wav", ["weights.safetensors"] = "flow.checkpoint.get" } do
      raises("io", reader .. " reads", function() np.load(folder .. "/" .. name) end)
      for _, other in ipairs { "load_png", "load_jpeg", "load_wav" } do
        if not reader:find(other, 1, true) then
          raises("io", reader .. " reads", function() np[other](folder .. "/" .. name) end)
        end
      end
    end
    process.write(folder .. "/text.npy", "this is no array at all, only words")
    local fine, problem = pcall(np.load, folder .. "/text.npy")
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("text.npy", 1, true))
  end)

  -- The other side of the same files: NumPy itself reads what we wrote and writes what we read.
  it("are NumPy's, both ways", function()
    local numpy = process.shell("/usr/bin/python3 -c 'import numpy'")
    if numpy.code ~= 0 then
      pending("python3 has no numpy")
      return
    end
    np.random.seed(3)
    local ours, theirs = {}, folder .. "/theirs"
    for _, dtype in ipairs({ "float16", "float32", "float64", "int8", "uint8", "int32", "int64" }) do
      ours[dtype] = np.random.randint(0, 100, { 3, 1, 5 }):astype(dtype)
      np.save(folder .. "/ours_" .. dtype, ours[dtype])
    end
    ours.empty, ours.scalar = np.zeros({ 0, 4 }), np.array(2.5, "float64")
    np.savez(folder .. "/ours", ours)
    process.write(folder .. "/peer.py", ([[
import numpy as np
ours = np.load(%q)
for name in ['float16', 'float32', 'float64', 'int8', 'uint8', 'int32', 'int64']:
    single = np.load(%q + name + '.npy')
    assert single.dtype == np.dtype(name), name
    assert single.shape == (3, 1, 5), name
    assert (single == ours[name]).all() and ours[name].dtype == single.dtype, name
assert ours['empty'].shape == (0, 4) and ours['scalar'] == 2.5 and ours['scalar'].shape == ()
random = np.random.default_rng(1)
arrays = {name: ours[name] for name in ours.files}
arrays['fortran'] = np.asfortranarray(random.integers(0, 9, (3, 4)).astype(np.int32))
arrays['swapped'] = random.normal(size=(2, 3)).astype('>f4')
arrays['small'] = random.normal(size=(2, 3)).astype('>f2')
arrays['mask'] = np.array([True, False])
np.savez(%q, **arrays)
np.savez_compressed(%q, **arrays)
np.save(%q, arrays['fortran'])
for name in ['fortran', 'swapped', 'small']:
    print(name, ' '.join('%%.9g' %% v for v in arrays[name].ravel()))
]]):format(folder .. "/ours.npz", folder .. "/ours_", theirs .. ".npz", theirs .. "_packed.npz", theirs .. ".npy"))
    local peer = process.shell("/usr/bin/python3 " .. process.quote(folder .. "/peer.py"))
    assert.equal("", peer.err)
    assert.equal(0, peer.code)
    for _, file in ipairs({ theirs .. ".npz", theirs .. "_packed.npz" }) do
      local back = np.load(file)
      for name, array in pairs(ours) do assert.is_true(back[name] == array, file .. " " .. name) end
      assert.same({ 1, 0 }, back.mask:totable())
      for name, text in peer.out:gmatch("(%w+) ([^\n]+)\n") do
        local values = {}
        for word in text:gmatch("%S+") do values[#values + 1] = tonumber(word) end
        local wanted = core.array(values, back[name].dtype)
        assert.is_true(back[name]:ravel() == wanted, name)
      end
      assert.is_true(np.load(theirs .. ".npy") == back.fortran)
    end
  end)

  -- Width, height and then the pixels of a picture, as ImageMagick reads them.
  local function read_png(path, channels)
    local raw = ({ "gray", "graya", "rgb", "rgba" })[channels or 1]
    local picture = process.quote("png:" .. path)
    local size = process.shell("identify -format '%w %h' " .. picture)
    local pixels = process.shell(("convert %s -depth 8 %s:- | od -An -v -tu1"):format(picture, raw))
    assert.equal("", size.err .. pixels.err)
    local numbers = { size.out }
    for number in pixels.out:gmatch("%d+") do numbers[#numbers + 1] = number end
    return table.concat(numbers, " ")
  end

  it("are pictures too", function()
    if process.shell("convert -version").code ~= 0 then
      pending("there is no ImageMagick")
      return
    end
    local path = folder .. "/picture"
    np.save_png(path, np.array({ { 0, 1, 2 }, { 253, 254, 255 } }, "uint8"))
    assert.equal("3 2 0 1 2 253 254 255", read_png(path .. ".png"))
    -- Halves round up; what is outside and what is no number goes to the nearer end, and to 0.
    require("moonflow").config.log(function() end)
    finally(function() require("moonflow").config.log(nil) end)
    np.save_png(path .. ".png", { { 0, 0.5, 1 }, { -3, 7, 0 / 0 } })
    assert.equal("3 2 0 128 255 0 255 0", read_png(path .. ".png"))
    for channels = 1, 4 do
      np.save_png(path, np.arange(2 * channels):reshape({ 1, 2, channels }):astype("uint8"))
      local wanted = { 2, 1 }
      for i = 0, 2 * channels - 1 do wanted[#wanted + 1] = i end
      assert.equal(table.concat(wanted, " "), read_png(path .. ".png", channels))
    end
    -- 16 bits for each of three greys, 0, 128 * 257 and 255 * 257
    local deep = "89504e470d0a1a0a0000000d49484452000000030000000110000000006e1b972b0000000f49444154789c6360606868f8ff"
      .. "1f00068402ff4660deb60000000049454e44ae426082"
    process.write(path .. ".png", bytes_of(deep))
    same(np.load_png(path .. ".png"), "uint8", { { 0, 128, 255 } })
    raises("shape_mismatch", "the picture is (2), wanted (height, width)", function() np.save_png(path, { 1, 2 }) end)
    raises("shape_mismatch", "with 1 to 4 channels", function() np.save_png(path, np.ones({ 1, 1, 5 })) end)
    raises("shape_mismatch", "with 1 to 4 channels; a:transpose({ 1, 2, 0 }) puts them last", function()
      np.save_png(path, np.ones({ 3, 8, 8 }))
    end)
    raises("shape_mismatch", "with 1 to 4 channels; np.join_pictures(a) puts many side by side", function()
      np.save_png(path, np.ones({ 9, 1, 8, 8 }))
    end)
    raises("shape_mismatch", "wanted sides from 1", function() np.save_png(path, np.ones({ 0, 1 })) end)
    raises("dtype_mismatch", "the picture is int64", function() np.save_png(path, np.ones({ 1, 1 }, "int64")) end)
    raises("not_found", "nowhere", function() np.save_png(folder .. "/nowhere/a.png", { { 1 } }) end)
  end)

  it("that are pictures are read as they were written", function()
    local path = folder .. "/read.png"
    for channels = 1, 4 do
      local shape = channels == 1 and { 2, 3 } or { 2, 3, channels }
      local picture = (np.arange(6 * channels) * 10):reshape(shape):astype("uint8")
      np.save_png(path, picture)
      local read = np.load_png(path)
      assert.equal("uint8", read.dtype)
      assert.equal(tostring(picture.shape), tostring(read.shape))
      assert.is_true(np.all(read:eq(picture)))
    end
    local whole = process.read(path)
    local function refuses(message, bytes)
      process.write(path, bytes)
      raises("io", message, function() np.load_png(path) end)
    end
    refuses("read.png' is no PNG picture: ", "no picture")
    refuses("read.png' is no PNG picture: it is empty", "")
    refuses("read.png' is ", whole:sub(1, 20))
    refuses("read.png' is a damaged picture: ", whole:sub(1, -20))
    refuses("wanted less than 2^30 elements in all", "\137PNG\r\n\26\n\0\0\0\rIHDR\0\1\0\0\0\1\0\0\8\2\0\0\0"
      .. "\227\230\167\180" .. whole:sub(34))
    raises("not_found", "missing.png", function() np.load_png(folder .. "/missing.png") end)
  end)

  it("that are pictures are numbers, whatever a file says of how they are to be shown", function()
    local path = folder .. "/classes.png"
    np.save_png(path, np.array({ { 0, 5, 10, 200 } }, "uint8"))
    local whole = process.read(path)
    local gamma = bytes_of "0000000467414d41000186a031e8965f"  -- 1, as programs that make pictures write it
    same(np.decode_png(whole:sub(1, 33) .. gamma .. whole:sub(34)), "uint8", { { 0, 5, 10, 200 } })
  end)

  it("that are pictures can be had as they are", function()
    local palette = bytes_of("89504e470d0a1a0a0000000d4948445200000003000000010203000000668efc2700000009504c54450a1"
      .. "41e28323c46505a16ac84740000000a49444154789c635001000026002528d7d86b0000000049454e44ae426082")
    same(np.decode_png(palette), "uint8", { { { 10, 20, 30 }, { 70, 80, 90 }, { 40, 50, 60 } } })
    same(np.decode_png(palette, true), "uint8", { { 0, 2, 1 } })
    local deep = bytes_of("89504e470d0a1a0a0000000d494844520000000200000001100000000081d9fc150000000d49444154789c6360b9"
      .. "f4ff3f00058802d5378fb72a0000000049454e44ae426082")
    same(np.decode_png(deep), "uint8", { { 5, 255 } })
    local path = folder .. "/deep.png"
    process.write(path, deep)
    same(np.load_png(path, { raw = true }), "int32", { { 1234, 65535 } })
    local few = bytes_of("89504e470d0a1a0a0000000d4948445200000003000000010400000000fb7ba6690000000b49444154789c63e02f"
      .. "0000009100803dfd65010000000049454e44ae426082")
    same(np.decode_png(few), "uint8", { { 0, 255, 7 * 17 } })
    same(np.decode_png(few, { raw = true }), "uint8", { { 0, 15, 7 } })
    for bits = 8, 8 * #deep, 5 do  -- another picture, or an error, but no crash
      local at = math.floor(bits / 8)
      local spoiled = deep:sub(1, at - 1) .. string.char((deep:byte(at) + 2 ^ (bits % 8)) % 256) .. deep:sub(at + 1)
      pcall(np.decode_png, spoiled, bits % 2 == 0)
    end
  end)

  it("that are pictures may come as bytes", function()
    local path = folder .. "/bytes"
    local picture = np.arange(12):reshape({ 2, 2, 3 }):astype "uint8"
    np.save_png(path, picture)
    local png = process.read(path .. ".png")
    assert.is_true(np.decode_png(png) == picture)
    assert.is_true(np.decode_png(png, #png, { raw = true }) == picture)  -- as love.filesystem.read gives them
    np.save_jpeg(path, picture)
    local jpeg = process.read(path .. ".jpg")
    assert.is_true(np.decode_jpeg(jpeg, #jpeg) == np.load_jpeg(path .. ".jpg"))
    raises("invalid_argument", "np.load_png: the path is the bytes of a picture, which np.decode_png(bytes) takes",
      np.load_png, png)
    raises("invalid_argument", "which np.decode_jpeg(bytes) takes", np.load_jpeg, jpeg)
    raises("io", "the string of 4 bytes is no PNG picture: ", np.decode_png, "abcd")
    raises("io", "the string of 4 bytes is no JPEG picture: ", np.decode_jpeg, "abcd")
    raises("invalid_argument", "the string of 0 bytes is no PNG picture", np.decode_png, "")
    raises("io", ("the string of %d bytes is a damaged picture: "):format(#jpeg - 3), np.decode_jpeg, jpeg:sub(1, -4))
  end)

  it("that are JPEG pictures lose little, and are read as others read them", function()
    local path = folder .. "/photo.jpg"
    local places = np.arange(40 * 24):reshape({ 40, 24 })
    local grey = (places / 4):astype "uint8"
    local colours = np.stack({ grey, 255 - grey, grey }, 2):astype "uint8"
    for _, picture in ipairs { grey, colours } do
      np.save_jpeg(path, picture, { quality = 98 })
      local read = np.load_jpeg(path)
      assert.equal("uint8", read.dtype)
      checks.near(picture:astype "float32", read:astype "float32", 6)
      if process.shell("convert -version").code == 0 then
        assert.equal(0, process.shell(("convert %s %s.png"):format(path, path)).code)
        checks.near(np.load_png(path .. ".png"):astype "float32", read:astype "float32", 1)
      end
    end
    np.save_jpeg(folder .. "/named", colours:astype "float32" / 255, 98)
    checks.near(colours:astype "float32", np.load_jpeg(folder .. "/named.jpg"):astype "float32", 6)
    np.save_jpeg(folder .. "/named", colours, 5)
    assert.is_true(#process.read(folder .. "/named.jpg") < #process.read(path))
  end)

  it("that are JPEG pictures are upright however the camera was held", function()
    local stored = np.resize_picture(np.random.randint(0, 256, { 3, 5, 3 }):astype "uint8", { 24, 40 })
    np.save_jpeg(folder .. "/held", stored, 98)
    local bytes = process.read(folder .. "/held.jpg")
    local plain = np.decode_jpeg(bytes)
    local function u16(n, little)
      local high, low = string.char(math.floor(n / 256)), string.char(n % 256)
      return little and low .. high or high .. low
    end
    local function u32(n, little) return little and u16(n, true) .. "\0\0" or "\0\0" .. u16(n) end
    -- With a tag of EXIF before the orientation, and one behind it.
    local function held(number, little)
      local function tag(name, kind, value) return u16(name, little) .. u16(kind, little) .. u32(1, little) .. value end
      local tags = (little and "II" or "MM") .. u16(42, little) .. u32(8, little) .. u16(3, little)
        .. tag(0x100, 4, u32(6, little)) .. tag(0x112, 3, u16(number, little) .. "\0\0")
        .. tag(0x128, 3, u16(2, little) .. "\0\0") .. u32(0, little)
      return bytes:sub(1, 2) .. "\255\225" .. u16(#tags + 8) .. "Exif\0\0" .. tags .. bytes:sub(3), #tags
    end
    local function turned(a) return a:transpose { 1, 0, 2 } end
    -- What EXIF says of the stored picture's first row and first column, as numbers 1 to 8.
    local seen = {
      plain, np.flip(plain, 1), np.flip(plain, { 0, 1 }), np.flip(plain, 0),
      turned(plain), np.flip(turned(plain), 1), np.flip(turned(plain), { 0, 1 }), np.flip(turned(plain), 0),
    }
    for number, wanted in ipairs(seen) do
      for _, little in ipairs { true, false } do
        local whole, size = held(number, little)
        assert.is_true(np.decode_jpeg(whole) == wanted, number)
        assert.is_true(np.decode_jpeg(whole, { apply_exif_orientation = false }) == plain)
        process.write(folder .. "/held.jpg", whole)
        assert.is_true(np.load_jpeg(folder .. "/held.jpg") == wanted)
        assert.is_true(np.load_jpeg(folder .. "/held.jpg", { apply_exif_orientation = false }) == plain)
        if number == 6 then  -- a block that is wrong somewhere says something or nothing, and harms nobody
          for at = 3, size + 12 do pcall(np.decode_jpeg, whole:sub(1, at - 1) .. "\255" .. whole:sub(at + 1)) end
        end
      end
    end
    assert.is_true(np.decode_jpeg((held(9, true))) == plain)
    assert.is_true(np.decode_jpeg((held(0, true))) == plain)
  end)

  it("that are JPEG pictures in the colours of a press become red, green and blue", function()
    -- 8 by 8 pixels of one colour, made by hand: a mean of four bits and so many more for each ink, and no more.
    local function press(inks, adobe)
      local bits = {}
      for _, ink in ipairs(inks) do
        local value, size = ink - 128, 0
        while 2 ^ size <= math.abs(value) do size = size + 1 end
        if value < 0 then value = value + 2 ^ size - 1 end
        for _, number in ipairs { { size, 4 }, { value, size }, { 0, 1 } } do
          for at = number[2] - 1, 0, -1 do bits[#bits + 1] = math.floor(number[1] / 2 ^ at) % 2 end
        end
      end
      local scan = table.concat(bits)
      scan = (scan .. ("1"):rep(-#scan % 8)):gsub(("%d"):rep(8), function(byte)
        return string.char(tonumber(byte, 2)) .. (byte == "11111111" and "\0" or "")
      end)
      local function part(mark, held)
        return "\255" .. string.char(mark, 0, #held + 2) .. held
      end
      local frame, order = "\8\0\8\0\8\4", "\4"
      for k = 1, 4 do frame, order = frame .. string.char(k, 17, 0), order .. string.char(k, 0) end
      return "\255\216" .. (adobe and part(238, "Adobe\0\100\0\0\0\0\0") or "")
        .. part(219, "\0" .. ("\8"):rep(64)) .. part(192, frame)
        .. part(196, "\0\0\0\0\12" .. ("\0"):rep(12) .. "\0\1\2\3\4\5\6\7\8\9\10\11")
        .. part(196, "\16\1" .. ("\0"):rep(15) .. "\0") .. part(218, order .. "\0\63\0") .. scan .. "\255\217"
    end
    for _, inks in ipairs { { 255, 255, 255, 255 }, { 200, 100, 50, 255 }, { 200, 100, 50, 128 }, { 9, 90, 255, 0 } } do
      local wanted = {}
      for c = 1, 3 do wanted[c] = math.floor(inks[c] * inks[4] / 255 + 0.5) end
      for _, adobe in ipairs { true, false } do
        local picture = np.decode_jpeg(press(inks, adobe))
        assert.same({ 8, 8, 3 }, picture.shape:table())
        assert.is_true(picture == np.broadcast_to(np.array(wanted, "uint8"), { 8, 8, 3 }))
      end
    end
    assert.same({ 1, 4, 4, 3 }, np.decode_pictures({ press { 1, 2, 3, 4 } }, 4).shape:table())
  end)

  it("that are no JPEG pictures are refused", function()
    local path = folder .. "/broken.jpg"
    np.save_jpeg(path, np.arange(64 * 64 * 3):reshape({ 64, 64, 3 }):astype "uint8")
    local whole = process.read(path)
    local function refuses(message, bytes)
      process.write(path, bytes)
      raises("io", message, np.load_jpeg, path)
    end
    refuses("broken.jpg' is no JPEG picture: Not a JPEG file", "no picture")
    refuses("broken.jpg' is no JPEG picture: it is empty", "")
    refuses("broken.jpg' is ", whole:sub(1, 60))
    refuses("broken.jpg' is a damaged picture: ", whole:sub(1, -400))
    local frame = whole:find("\255\192", 1, true)  -- then its length, the bits, the height and the width
    refuses("wanted less than 2^30 elements in all",
      whole:sub(1, frame + 4) .. ("\255\0"):rep(2) .. whole:sub(frame + 9))
    process.write(path, whole)
    local picture = np.load_jpeg(path)
    process.write(path, whole:sub(1, -3) .. "bytes" .. whole:sub(-2))
    assert.is_true(np.load_jpeg(path) == picture, "bytes before the end are passed over")
    -- What cameras and others write that is not quite the standard's.
    local function changed(at, bytes, count)
      return whole:sub(1, at - 1) .. bytes .. whole:sub(at + (count or #bytes))
    end
    local scan = whole:find("\255\218", 1, true)  -- then its length, the channels and two bytes of each, and 0 63 0
    assert.equal("\0\63\0", whole:sub(scan + 11, scan + 13))
    for what, bytes in pairs {
      ["a scan from 0 to 0"] = changed(scan + 12, "\0"),
      ["revision 2 of the header"] = changed(whole:find("JFIF\0", 1, true) + 5, "\2"),
      ["a byte before a table"] = changed(whole:find("\255\196", 1, true), "x", 0),
    } do
      assert.is_true(np.decode_jpeg(bytes) == picture, what)
    end
    for at = 1, #whole, 7 do
      process.write(path, whole:sub(1, at - 1) .. string.char((whole:byte(at) + 128) % 256) .. whole:sub(at + 1))
      pcall(np.load_jpeg, path)  -- another picture, or none, but no crash
    end
    raises("not_found", "missing.jpg", np.load_jpeg, folder .. "/missing.jpg")
    raises("shape_mismatch", "the picture has 4 channels, and a JPEG has 1 or 3",
      np.save_jpeg, path, np.ones { 2, 2, 4 })
    raises("shape_mismatch", "wanted sides from 1 to 65500", np.save_jpeg, path, np.zeros({ 65501, 1 }, "uint8"))
    raises("invalid_argument", "quality is from 1 to 100, got 0", np.save_jpeg, path, np.ones { 2, 2 }, 0)
  end)

  it("that are none say which function was to read or write them", function()
    local junk, none = folder .. "/junk", folder .. "/none/x"
    process.write(junk, "no file of any kind")
    local function says(called, code, call, ...)
      local fine, problem = pcall(call, ...)
      assert.is_false(fine, called)
      assert.equal(code, problem.code, called)
      assert.truthy(tostring(problem):find("np_files_spec%.lua:%d+: " .. called .. ": "), tostring(problem))
    end
    for _, name in ipairs { "load", "load_png", "load_jpeg", "load_wav" } do
      says("np." .. name, "io", np[name], junk)
      says("np." .. name, "io", np[name], folder)
      says("np." .. name, "not_found", np[name], none)
      says("np." .. name, "invalid_argument", np[name], "")
    end
    for _, name in ipairs { "load_memory", "decode_png", "decode_jpeg", "decode_wav" } do
      says("np." .. name, "io", np[name], "no file of any kind")
    end
    says("np.load_pictures", "not_found", np.load_pictures, { none }, 4)
    says("np.decode_pictures", "io", np.decode_pictures, { "no picture" }, 4)
    local a = np.zeros { 2, 2 }
    for name, arguments in pairs { save = { a }, savez = { { x = a } }, save_png = { a }, save_jpeg = { a },
                                   save_wav = { a, 8000 } } do
      says("np." .. name, "not_found", np[name], none, unpack(arguments))
    end
    process.write(junk, "short")
    raises("io", "junk', byte 0: no npy file: it has 5 bytes", np.load, junk)
  end)

  it("of objects are refused by name", function()
    local made = process.shell(("/usr/bin/python3 -c \"import numpy as np; np.save('%s/objects.npy', "
      .. "np.array([{}], dtype=object)); np.save('%s/text.npy', np.array(['a']))\""):format(folder, folder))
    if made.code ~= 0 then
      pending("python3 has no numpy")
      return
    end
    for _, name in ipairs({ "objects", "text" }) do
      local fine, problem = pcall(np.load, folder .. "/" .. name .. ".npy")
      assert.is_false(fine)
      assert.truthy(tostring(problem):find(name .. ".npy", 1, true))
    end
  end)

  it("clear away what killed processes have left of any name, and leave alone what others write", function()
    local place = process.folder("leftovers")
    local function left(name) process.write(("%s/%s"):format(place, name), "half") end
    for _, name in ipairs { "x_15.npy.moonflow-tmp-0", "x_16.npy.moonflow-tmp-7-1", "held.npy.moonflow-tmp-0",
      "two.npy.moonflow-tmp-0", "own.moonflow-tmp-old" } do left(name) end
    assert.equal(0, os.execute(("ln %s/two.npy.moonflow-tmp-0 %s/other"):format(place, place)))
    assert.equal(0, os.execute(("mkdir %s/folder.moonflow-tmp-0"):format(place)))
    local save = ("require('moonflow').np.save(%q, require('moonflow').np.ones({ 3 }))"):format(place .. "/x_17.npy")
    local run = process.shell(("flock %s/held.npy.moonflow-tmp-0 %s -e %s"):format(process.quote(place),
      process.quote(process.launcher), process.quote(save)))
    assert.equal("", run.err)
    assert.same({ "folder.moonflow-tmp-0", "held.npy.moonflow-tmp-0", "other", "own.moonflow-tmp-old",
      "two.npy.moonflow-tmp-0", "x_17.npy" }, core.list_directory(place))
  end)

  it("of pictures whose floats go beyond 1, or are NaN, are told of once for each place", function()
    local config, lines = require("moonflow").config, {}
    config.log(function(line) lines[#lines + 1] = line end)
    finally(function() config.log(nil) end)
    for _, encode in ipairs { np.encode_png, np.encode_jpeg } do
      local function lines_of(list)
        lines = {}
        for _ = 1, 2 do encode(np.array(list)) end
        return lines
      end
      assert.same({}, lines_of { { 0, 0.5, 1.01 }, { 1.2, 1.1, -3 } })
      assert.same({}, lines_of { { 0 } })
      local bright = lines_of { { 0, 255, 17 }, { 100, 0 / 0, 2 } }
      assert.equal(1, #bright)
      assert.truthy(bright[1]:find("_spec.lua:%d+: np.encode_%w+: most of the picture lies above 1, up to 255, and "
        .. "becomes white; floats go from 0 to 1, so write a / 255"))
    end
    lines = {}
    for _ = 1, 2 do np.encode_png(np.array { { 0, 1, 0 / 0 } }) end
    assert.equal(1, #lines)
    assert.truthy(lines[1]:find("the picture has NaN, which becomes black", 1, true))
    np.encode_png(np.array({ { 0, 255, 17 } }, "uint8"))
    assert.equal(1, #lines)
  end)
end)
