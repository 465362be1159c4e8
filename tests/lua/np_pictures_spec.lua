-- Many pictures as one array: np.load_pictures and np.decode_pictures.
local checks = require "checks"
local flow = require "moonflow"
local process = require "process"
local np, raises = flow.np, checks.raises

-- Red says how far to the right a pixel is, green how far down, blue nothing.
local function map(height, width)
  local x = np.broadcast_to(np.arange(width):reshape({ 1, width }) * 255 / math.max(1, width - 1), { height, width })
  local y = np.broadcast_to(np.arange(height):reshape({ height, 1 }) * 255 / math.max(1, height - 1), { height, width })
  return np.round(np.stack({ x, y, np.zeros({ height, width }) }, 2)):astype("uint8")
end

local folder, files = os.tmpname(), {}
os.remove(folder)

local function png(name, picture)
  local path = folder .. name .. ".png"
  np.save_png(path, picture)
  files[#files + 1] = path
  return path
end

local function jpeg(name, picture, quality)
  local path = folder .. name .. ".jpg"
  np.save_jpeg(path, picture, quality or 95)
  files[#files + 1] = path
  return path
end

-- The largest difference between two arrays of bytes.
local function apart(a, b) return np.abs(a:astype("int32") - b:astype("int32")):max() end

before_each(function() np.random.seed(4) end)
after_each(function()
  for _, path in ipairs(files) do os.remove(path) end
  files = {}
end)

describe("pictures as one array", function()
  it("are what each one gives by itself, whatever its kind and size", function()
    local noise = np.random.randint(0, 256, { 40, 30, 3 }):astype("uint8")
    local paths = { png("a", noise), jpeg("b", map(33, 90)), png("c", map(5, 4)), jpeg("d", noise) }
    for _, size in ipairs { { 16, 16 }, { 7, 50 }, { 40, 30 } } do
      local got = np.load_pictures(paths, size)
      assert.equal("uint8", got.dtype)
      assert.same({ 4, size[1], size[2], 3 }, got.shape:table())
      local bytes = {}
      for i, path in ipairs(paths) do
        local one = path:find "png$" and np.load_png(path) or np.load_jpeg(path)
        -- What lies in the middle between two numbers may go either way.
        assert.is_true(apart(np.resize_picture(one, size), got[i - 1]) <= 1, path)
        bytes[i] = process.read(path)
      end
      assert.is_true(got == np.decode_pictures(bytes, size))
    end
    assert.same({ 0, 8, 8, 3 }, np.load_pictures({}, 8).shape:table())
  end)

  it("have the channels that are asked for", function()
    local grey = np.arange(12):reshape({ 3, 4 }):astype("uint8")
    local colours = map(3, 4)
    local with_opacity = np.concatenate({ colours, np.full({ 3, 4, 1 }, 9, "uint8") }, 2)
    local grey_with_opacity = np.stack({ grey, np.full({ 3, 4 }, 9, "uint8") }, 2)
    local paths = { png("a", grey), png("b", colours), png("c", with_opacity), png("d", grey_with_opacity) }
    local three, one = np.load_pictures(paths, { 3, 4 }), np.load_pictures(paths, { 3, 4 }, { channels = 1 })
    assert.is_true(three[0] == np.stack({ grey, grey, grey }, 2))
    assert.is_true(three[1] == colours)
    assert.is_true(three[2] == colours)
    assert.is_true(three[3] == three[0])
    assert.same({ 4, 3, 4, 1 }, one.shape:table())
    assert.is_true(one[0]:reshape({ 3, 4 }) == grey)
    assert.is_true(one[3]:reshape({ 3, 4 }) == grey)
    local wide = colours:astype("float32")
    local luma = 0.299 * wide:slice(":, :, 0") + 0.587 * wide:slice(":, :, 1") + 0.114 * wide:slice(":, :, 2")
    assert.is_true(np.abs(one[1]:reshape({ 3, 4 }):astype("float32") - luma):max() <= 0.5)
  end)

  it("are cut in the middle, in the form that they become", function()
    local picture = np.random.randint(0, 256, { 20, 41, 3 }):astype("uint8")
    local path = png("a", picture)
    -- The largest square has sides of 20, half of which are 10: from row 5 on, and from column 16 of 15.5.
    local wanted = np.resize_picture(picture:slice("5:15, 16:26"), { 8, 8 })
    assert.is_true(apart(wanted, np.load_pictures({ path }, 8, { crop = 0.5 })[0]) <= 1)
    -- Of a form twice as wide as high: 20 rows, 40 columns.
    wanted = np.resize_picture(picture:slice(":, 1:"), { 5, 10 })
    assert.is_true(apart(wanted, np.load_pictures({ path }, { 5, 10 }, { crop = 1 })[0]) <= 1)
    local mirrored = np.load_pictures({ path }, { 20, 41 }, { mirror = 1 })[0]
    assert.is_true(mirrored == np.flip(picture, 1))
  end)

  it("are cut at random: a share of the area, a ratio, a place, and half of them mirrored", function()
    local path, paths, count = png("map", map(256, 256)), {}, 300
    for i = 1, count do paths[i] = path end
    local options = { crop = { 0.1, 0.4 }, aspect = { 0.5, 2 }, mirror = 0.5 }
    local got = np.load_pictures(paths, { 64, 64 }, options):astype("float32")
    -- Where the outermost of 64 places lie, half a place from the edges of the box.
    local x0, x1 = got:slice(":, 32, 0, 0"), got:slice(":, 32, 63, 0")
    local y0, y1 = got:slice(":, 0, 32, 1"), got:slice(":, 63, 32, 1")
    local wide, high = np.abs(x1 - x0) * 64 / 63, (y1 - y0) * 64 / 63
    local area, ratio = wide * high / 65536, wide / high
    assert.is_true(area:min() > 0.09 and area:max() < 0.42)
    assert.is_true(area:min() < 0.13 and area:max() > 0.36)
    assert.is_true(ratio:min() > 0.45 and ratio:max() < 2.2)
    assert.is_true(ratio:min() < 0.6 and ratio:max() > 1.7)
    assert.is_true(np.minimum(x0, x1):min() < 10 and np.maximum(x0, x1):max() > 245
      and y0:min() < 10 and y1:max() > 245)
    assert.near(0.5, x1:lt(x0):astype("float32"):mean(), 0.2) -- seven standard errors

    np.random.seed(4)
    assert.is_true(got == np.load_pictures(paths, { 64, 64 }, options):astype("float32"))
    assert.is_false(got == np.load_pictures(paths, { 64, 64 }, options):astype("float32"))
  end)

  it("are the same with any number of threads", function()
    local paths, options = {}, { crop = { 0.2, 1 }, mirror = 0.5 }
    for i = 1, 20 do paths[i] = jpeg(i, map(20 + i, 60 - i)) end
    local got = {}
    for i, threads in ipairs { 1, 2, 5 } do
      flow.config.cpu_threads(threads)
      np.random.seed(1)
      got[i] = np.load_pictures(paths, 24, options)
    end
    flow.clear_default_session()
    assert.is_true(got[1] == got[2] and got[1] == got[3])
  end)

  it("come from a smaller picture where a JPEG is much larger, with hardly a difference", function()
    local smooth = np.resize_picture(np.random.randint(0, 256, { 12, 18, 3 }):astype("uint8"), { 600, 900 }, "bicubic")
    local path = jpeg("large", smooth)
    for _, size in ipairs { { 150, 225 }, { 70, 110 }, { 30, 41 } } do
      local wanted, got = np.resize_picture(np.load_jpeg(path), size), np.load_pictures({ path }, size)[0]
      assert.is_true(apart(wanted, got) <= 4)
      assert.is_true(np.abs(wanted:astype("float32") - got:astype("float32")):mean() < 0.6)
    end
    local middle = np.resize_picture(np.load_jpeg(path):slice("150:450, 300:600"), 20)
    assert.is_true(apart(middle, np.load_pictures({ path }, 20, { crop = 0.5 })[0]) <= 4)
  end)
end)

describe("pictures of a camera that was turned", function()
  -- Before the next part of a JPEG: EXIF, of one tag.
  local function exif(number)
    return "\255\225\0\34Exif\0\0MM\0\42\0\0\0\8\0\1\1\18\0\3\0\0\0\1\0" .. string.char(number)
      .. ("\0"):rep(6)
  end

  it("are cut as they are seen, also where they are read from a smaller picture", function()
    local smooth = np.resize_picture(np.random.randint(0, 256, { 12, 18, 3 }):astype("uint8"), { 601, 905 }, "bicubic")
    local path = jpeg("turned", smooth)
    local bytes = process.read(path)
    for number = 1, 8 do
      process.write(path, bytes:sub(1, 2) .. exif(number) .. bytes:sub(3))
      local seen = np.load_jpeg(path)
      local sideways = number > 4
      assert.same(sideways and { 905, 601, 3 } or { 601, 905, 3 }, seen.shape:table())
      for _, size in ipairs { { 300, 200 }, { 70, 110 }, { 41, 30 } } do
        local whole, middle = np.load_pictures({ path }, size)[0], np.load_pictures({ path }, 50, { crop = 0.5 })[0]
        assert.is_true(apart(np.resize_picture(seen, size), whole) <= 5, number)
        local top, left = unpack(sideways and { 302, 150 } or { 150, 302 })
        local cut = seen:slice(("%d:%d, %d:%d"):format(top, top + 301, left, left + 301))
        assert.is_true(apart(np.resize_picture(cut, 50), middle) <= 5, number)
      end
      local stored = np.load_pictures({ path }, { 70, 110 }, { apply_exif_orientation = false })[0]
      assert.is_true(stored == np.decode_pictures({ bytes }, { 70, 110 })[0])
    end
  end)
end)

describe("pictures that a PNG file says were turned", function()
  local bit = require "bit"
  local function four(number)
    return string.char(bit.band(bit.rshift(number, 24), 255), bit.band(bit.rshift(number, 16), 255),
      bit.band(bit.rshift(number, 8), 255), bit.band(number, 255))
  end
  local function chunk(kind, held)
    local sum = -1
    for byte in (kind .. held):gmatch "." do
      sum = bit.bxor(sum, byte:byte())
      for _ = 1, 8 do
        sum = bit.bxor(bit.rshift(sum, 1), bit.band(sum, 1) == 1 and bit.tobit(0xEDB88320) or 0)
      end
    end
    return four(#held) .. kind .. held .. four(bit.bnot(sum))
  end
  -- As Pillow writes it, before the pixels.
  local function turned(bytes, number)
    local exif = "MM\0\42\0\0\0\8\0\1\1\18\0\3\0\0\0\1\0" .. string.char(number) .. ("\0"):rep(6)
    return bytes:sub(1, 33) .. chunk("eXIf", exif) .. bytes:sub(34)
  end

  it("are upright", function()
    for _, channels in ipairs { 1, 3 } do
      local stored = np.random.randint(0, 256, { 5, 7, channels }):astype "uint8"
      local across = stored:transpose { 1, 0, 2 }
      local seen = { stored, np.flip(stored, 1), np.flip(stored, { 0, 1 }), np.flip(stored, 0), across,
                     np.flip(across, 1), np.flip(across, { 0, 1 }), np.flip(across, 0) }
      local bytes = np.encode_png(stored)
      for number = 1, 8 do
        local function decoded(list, upright)
          return np.decode_pictures({ turned(bytes, number) }, list,
            { channels = channels, apply_exif_orientation = upright })[0]
        end
        local wanted = seen[number]
        assert.is_true(decoded({ wanted.shape[0], wanted.shape[1] }) == wanted, number)
        assert.is_true(decoded({ 5, 7 }, false) == stored)
      end
      for _, torn in ipairs { bytes:sub(1, 33) .. "\255\255\255\255eXIf", bytes:sub(1, 40) } do
        raises("io", "picture 1: the string of", np.decode_pictures, { torn }, 4)
      end
    end
  end)
end)

describe("raw pictures", function()
  it("keep the numbers of their pixels", function()
    local classes = np.random.randint(0, 256, { 12, 10 }):astype "uint8"
    local path = png("classes", classes)
    assert.is_true(np.load_pictures({ path }, { 12, 10 }, { raw = true }) == classes:reshape { 1, 12, 10 })
    local rows, columns = np.arange(4) * 3 + 1, np.arange(5) * 2 + 1
    local few = classes:take(rows:astype "int64", 0):take(columns:astype "int64", 1)
    assert.is_true(np.load_pictures({ path }, { 4, 5 }, { raw = true })[0] == few)
    assert.is_true(np.load_pictures({ path }, { 4, 5 }, { raw = true, mirror = 1 })[0] == np.flip(few, 1))
    assert.is_true(np.load_pictures({ path }, { 6, 5 }, { raw = true, crop = 0.5 })[0]
      == np.load_pictures({ path }, { 6, 5 }, { crop = 0.5, channels = 1 })[0]:reshape { 6, 5 })
    local twice = np.repeat_interleave(np.repeat_interleave(classes, 2, 0), 2, 1)
    assert.is_true(np.decode_pictures({ np.encode_png(classes) }, { 24, 20 }, { raw = true })[0] == twice)
  end)

  it("are PNG files, of one number for each pixel", function()
    raises("io", "is no PNG picture; in others numbers do not last", np.load_pictures, { jpeg("photo", map(9, 9)) }, 4,
      { raw = true })
    raises("io", "uint8 (4, 4, 3), wanted one number of up to 8 bits for each pixel", np.decode_pictures,
      { np.encode_png(np.zeros({ 4, 4, 3 }, "uint8")) }, 4, { raw = true })
  end)
end)

describe("pictures that cannot be one array", function()
  it("are told by their number, the first that cannot", function()
    local good = png("good", map(4, 4))
    local text, torn = folder .. "text.png", jpeg("torn", map(64, 64))
    process.write(text, "no picture at all")
    process.write(torn, process.read(torn):sub(1, 700))
    files[#files + 1] = text
    raises("io", "picture 2: file '" .. text .. "' is neither a JPEG nor a PNG picture",
      np.load_pictures, { good, text, torn, "nowhere" }, 4)
    raises("io", "picture 2: file '" .. torn .. "' is a damaged picture", np.load_pictures, { good, torn, text }, 4)
    raises("not_found", "picture 3: cannot open 'nowhere'", np.load_pictures, { good, good, "nowhere" }, 4)
    raises("io", "picture 1: the string of 3 bytes is neither", np.decode_pictures, { "abc" }, 4)
    raises("invalid_argument", "picture 2: the string of 0 bytes is no JPEG or PNG picture", np.decode_pictures,
      { process.read(good), "" }, 4)
  end)

  it("are those of arguments that do not fit", function()
    local function refuses(text, ...)
      raises("invalid_argument", "np.load_pictures: " .. text, np.load_pictures, ...)
    end
    refuses("argument 1 ('paths') must be a list, got 'a.png'", "a.png", 4)
    refuses("entry 2 must be a string, got 5", { "a.png", 5 }, 4)
    refuses("size is {0, 4}, wanted {height, width}", { "a.png" }, { 0, 4 })
    refuses("channels is 1 or 3, got 4", { "a.png" }, 4, { channels = 4 })
    refuses("crop is a share of the sides above 0 and up to 1, or {least, most} of the area, got 1.5", { "a.png" }, 4,
      { crop = 1.5 })
    refuses("crop is {0, 1}, wanted {least, most} of numbers above 0 and up to 1", { "a.png" }, 4, { crop = { 0, 1 } })
    refuses("aspect is {2, 1}, wanted {least, most} of numbers above 0", { "a.png" }, 4,
      { crop = { 0.1, 1 }, aspect = { 2, 1 } })
    refuses("aspect is of a crop that is drawn, {least, most}", { "a.png" }, 4, { aspect = { 1, 2 } })
    refuses("mirror is a chance from 0 to 1, got 2", { "a.png" }, 4, { mirror = 2 })
  end)
end)

describe("pictures side by side", function()
  it("lie row by row, in the order they have, whatever form they come in", function()
    local many = np.arange(5 * 2 * 3):reshape({ 5, 2, 3 }):astype("uint8")
    local sheet = np.join_pictures(many)
    assert.equal("uint8", sheet.dtype)
    assert.same({ 4, 9 }, sheet.shape:table())  -- 2 rows of 3
    for i = 0, 4 do
      local row, column = math.floor(i / 3) * 2, i % 3 * 3
      assert.is_true(sheet:slice({ row, row + 2 }, { column, column + 3 }) == many[i])
    end
    assert.equal(0, sheet:slice("2:, 6:"):max())
    assert.is_true(sheet == np.join_pictures(many:reshape({ 5, 1, 2, 3 })))
    assert.is_true(sheet == np.join_pictures(many:reshape({ 5, 2, 3, 1 }), 3))
    local coloured = np.random.uniform(0, 1, { 4, 3, 5, 6 })
    sheet = np.join_pictures(coloured, { columns = 4 })
    assert.is_true(sheet:slice("0:5, 12:18"):transpose({ 2, 0, 1 }) == coloured[2])
    assert.is_true(sheet == np.join_pictures(coloured:transpose({ 0, 2, 3, 1 }), { columns = 4 }))
    local narrow = np.random.uniform(0, 1, { 2, 2, 5, 3 })
    assert.same({ 2, 10, 3 }, np.join_pictures(narrow).shape:table())
    assert.same({ 5, 6, 2 }, np.join_pictures(narrow, { data_format = "NCHW" }).shape:table())
    assert.is_true(many[0] == np.join_pictures(many:rows(0, 1), { gap = 2 }))
  end)

  it("stand apart by a gap", function()
    local sheet = np.join_pictures(np.ones({ 4, 2, 2 }), { gap = 1 })
    assert.same({ { 1, 1, 0, 1, 1 }, { 1, 1, 0, 1, 1 }, { 0, 0, 0, 0, 0 }, { 1, 1, 0, 1, 1 }, { 1, 1, 0, 1, 1 } },
      sheet:totable())
  end)

  it("are refused where they are none", function()
    local function refuses(text, ...)
      raises("invalid_argument", "np.join_pictures: " .. text, np.join_pictures, ...)
    end
    refuses("the pictures are (4, 5), wanted (pictures, height, width)", np.ones({ 4, 5 }))
    refuses("the pictures are (4, 5, 6, 7), wanted", np.ones({ 4, 5, 6, 7 }))
    refuses("there is nothing in (0, 3, 3, 1)", np.ones({ 0, 3, 3 }))
    refuses("data_format is 'CHW', wanted 'NCHW' or 'NHWC'", np.ones({ 2, 3, 3, 3 }), { data_format = "CHW" })
    refuses("the pictures are (2, 3, 3, 5), wanted", np.ones({ 2, 3, 3, 5 }), { data_format = "NHWC" })
    refuses("columns must be 1 or more, got 0", np.ones({ 2, 3, 3 }), 0)
    refuses("gap must be 0 or more, got -1", np.ones({ 2, 3, 3 }), 2, -1)
  end)
end)
