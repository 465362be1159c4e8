-- flow.data: data sets in batches, MNIST and OFRecord files good and bad, synthetic digits; flow.zip.
local checks = require "checks"
local data = require "moonflow.data"
local iterator = require "moonflow.iterator"
local config = require "moonflow.config"
local np = require "moonflow.np"
local process = require "process"
local raises = checks.raises

describe("a data set", function()
  local xs, ys = np.arange(20):reshape(10, 2), np.arange(10)

  it("gives its batches in order, as views, i from 0", function()
    local set = data.Dataset({ xs, ys }, { batch_size = 5 })
    assert.equal(10, #set)
    assert.equal(2, #set:batches())
    local seen = {}
    for i, x, y in set:batches() do
      assert.equal("(5, 2)", tostring(x.shape))
      assert.is_true(y == np.arange(5 * i, 5 * i + 5))
      seen[#seen + 1] = i
      y[0] = y[0]
    end
    assert.same({ 0, 1 }, seen)
  end)

  it("gives the order of any epoch, for a script that goes on", function()
    local function order(set, options)
      local list = {}
      for _, x in set:batches(options) do list[#list + 1] = x[0][0] end
      return list
    end
    local whole, rest = data.Dataset({ xs }, 1, 7), data.Dataset({ xs }, 1, 7)
    local orders = { order(whole), order(whole), order(whole) }
    assert.not_same(orders[2], orders[3])
    assert.same(orders[2], order(rest, { epoch = 1 }))
    assert.same(orders[3], order(rest)) -- the one after
    raises("invalid_argument", "at least 0, got -1", order, rest, { epoch = -1 })
    raises("invalid_argument", "give shuffle a seed", order, rest, { shuffle = true, epoch = 1 })
    local asked = data.Dataset({ xs }, 1)  -- each time, and by two seeds in turn
    for epoch = 1, 3 do
      assert.same(orders[epoch], order(asked, { shuffle = 7 }))
      assert.not_same(orders[epoch], order(asked, { shuffle = 8 }))
    end
    assert.same(orders[1], order(asked, { shuffle = 7, epoch = 0 }))
    assert.same(orders[2], order(asked, { shuffle = 7 }))
  end)

  it("begins within an epoch, for a script that goes on there", function()
    local function rows(options)
      local set, list = data.Dataset({ xs }, { batch_size = 2, shuffle = 7, drop_last = false }), {}
      for i, x in set:batches(options) do list[#list + 1] = ("%d: %s"):format(i, tostring(x)) end
      return list, #set:batches(options)
    end
    local whole, count = rows { epoch = 3 }
    for first = 0, count do
      local rest, left = rows { epoch = 3, first = first }
      assert.same({ unpack(whole, first + 1) }, rest)
      assert.equal(count - first, left)
    end
    raises("out_of_range", ("there are %d batches, it cannot begin with batch %d"):format(count, count + 1),
      rows, { first = count + 1 })
    raises("out_of_range", "it cannot begin with batch -1", rows, { first = -1 })
  end)

  it("shuffles by a seed: alike in every run, another order in every epoch", function()
    local function orders(shuffle)
      local set = data.Dataset({ xs, ys }, { batch_size = 2, shuffle = shuffle })
      local epochs = {}
      for epoch = 1, 2 do
        local order = {}
        for _, x, y in set:batches() do
          assert.is_true((x:slice(":, 0")) == y * 2) -- rows stay together
          for _, v in ipairs(y:totable()) do order[#order + 1] = v end
        end
        epochs[epoch] = table.concat(order, " ")
        table.sort(order)
        assert.same({ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 }, order)
      end
      return epochs
    end
    local first = orders(7)
    assert.same(first, orders(7))
    assert.are_not.equal(first[1], first[2])
    assert.are_not.same(first, orders(8))
    orders(true)
    raises("invalid_argument", "shuffle must be", orders, "yes")
  end)

  it("asks what to do with a rest", function()
    local set = data.Dataset({ ys }, { batch_size = 4 })
    raises("invalid_argument", "drop_last = true", function() set:batches() end)
    assert.equal(2, #set:batches({ drop_last = true }))
    local sizes = {}
    for _, y in set:batches({ drop_last = false }) do sizes[#sizes + 1] = #y end
    assert.same({ 4, 4, 2 }, sizes)
    local lines = {}
    config.log(function(line) lines[#lines + 1] = line end)
    finally(function() config.log(nil) end)
    assert.equal(0, #set:batches({ batch_size = 11, drop_last = true }))
    assert.truthy(lines[1]:find("10 examples do not fill a batch of 11, so drop_last leaves no batch", 1, true))
  end)

  it("names its arrays and checks them", function()
    local set = data.Dataset({ xs, ys }, { names = { "x", "y" } })
    assert.is_true(set.x == xs)
    assert.equal("Dataset(10 examples; x: int64 (10, 2), y: int64 (10))", tostring(set))
    raises("invalid_argument", "needs a batch size", function() set:batches() end)
    raises("invalid_argument", "at least 1", function() set:batches(0) end)
    raises("shape_mismatch", "array 2 has 3 rows, array 1 has 10", function() data.Dataset({ xs, np.zeros(3) }) end)
    raises("invalid_argument", "array 1 must be an ndarray", function() data.Dataset({ { 1, 2 } }) end)
    for _, size in ipairs({ 0, -1 }) do
      raises("invalid_argument", "flow.data.Dataset: the batch size must be at least 1, got " .. size,
        function() data.Dataset({ xs }, { batch_size = size }) end)
    end
    raises("invalid_argument", "there are 2 names for 1 array", function()
      data.Dataset({ xs }, { names = { "x", "y" } })
    end)
    for _, name in ipairs({ "arrays", "batches", 1 }) do
      raises("invalid_argument", "name 1 must be a string that a data set has no field of, got ", function()
        data.Dataset({ xs }, { names = { name } })
      end)
    end
    local count = 0
    for _, x in data.batches({ xs }, 5) do count = count + #x end
    assert.equal(10, count)
  end)

  it("is gone through beside others by zip", function()
    local seen = {}
    for i, x, y, word in iterator.zip(data.batches({ xs, ys }, 2), { "a", "b", "c" }) do
      seen[#seen + 1] = ("%d %d %d %s"):format(i, x:sum(), y:sum(), word)
    end
    assert.same({ "0 6 1 a", "1 22 5 b", "2 38 9 c" }, seen)
    assert.equal(3, #iterator.zip(xs, { 1, 2, 3 }))
    for i, row, y in iterator.zip(xs, ys) do
      assert.equal(2 * i, row[0])
      assert.equal(i, y)
    end
    raises("invalid_argument", "flow.zip cannot go through", iterator.zip, "text")
    raises("invalid_argument", "at least one", iterator.zip)
  end)
end)

-- ---- MNIST files --------------------------------------------------------------------------------------------------

local function u32(n)
  return string.char(math.floor(n / 2 ^ 24) % 256, math.floor(n / 2 ^ 16) % 256, math.floor(n / 2 ^ 8) % 256, n % 256)
end

-- Pictures whose first pixel is their number, with labels 0, 1, ... 9, 0, ...
local function images_file(count, side)
  local parts = { "\0\0\8\3", u32(count), u32(side or 28), u32(side or 28) }
  for i = 1, count do parts[#parts + 1] = string.char(i - 1) .. ("\255"):rep((side or 28) ^ 2 - 1) end
  return table.concat(parts)
end

local function labels_file(count)
  local parts = { "\0\0\8\1", u32(count) }
  for i = 1, count do parts[#parts + 1] = string.char((i - 1) % 10) end
  return table.concat(parts)
end

local TRAIN, TEST = 40, 20

-- A fresh folder with the four files; `changed` replaces some of them by name, false leaves one out.
local function mnist_folder(changed)
  local folder = process.folder("data_mnist")
  local files = {
    ["train-images-idx3-ubyte"] = images_file(TRAIN), ["train-labels-idx1-ubyte"] = labels_file(TRAIN),
    ["t10k-images-idx3-ubyte"] = images_file(TEST), ["t10k-labels-idx1-ubyte"] = labels_file(TEST),
  }
  for name, text in pairs(changed or {}) do files[name] = text end
  for name, text in pairs(files) do
    if text then process.write(folder .. "/" .. name, text) end
  end
  return folder
end

local function gzip(path)
  assert.equal(0, process.shell("gzip -n " .. process.quote(path)).code)
  return path .. ".gz"
end

local function load(folder, options)
  options = options or {}
  options.dir = folder
  return data.load_mnist(10, 10, options)
end

describe("load_mnist", function()
  local function check(train, test)
    assert.equal(TRAIN, #train)
    assert.equal(TEST, #test)
    assert.equal("(40, 1, 28, 28)", tostring(train.images.shape))
    assert.equal("float32", train.images.dtype)
    assert.equal("int32", test.labels.dtype)
    assert.is_true(train.images:at(39, 0, 0, 0) == np.array({ 39 / 255 })[0])
    assert.equal(1, train.images:at(39, 0, 27, 27))
    assert.equal(9, train.labels[39])
    local batches = 0
    for i, images, labels in train:batches() do
      assert.equal("(10, 1, 28, 28)", tostring(images.shape))
      assert.is_true(labels == np.arange(10, nil, nil, { dtype = "int32" }))
      assert.is_true(math.abs(images:at(0, 0, 0, 0) - 10 * i / 255) < 1e-7)
      batches = batches + 1
    end
    assert.equal(4, batches)
  end

  it("reads the four files, plain", function() check(load(mnist_folder())) end)

  it("reads them packed and with a dot in their names", function()
    local folder = mnist_folder()
    gzip(folder .. "/train-images-idx3-ubyte")
    gzip(folder .. "/t10k-labels-idx1-ubyte")
    os.rename(folder .. "/t10k-images-idx3-ubyte", folder .. "/t10k-images.idx3-ubyte")
    check(load(folder))
  end)

  it("reads mnist.npz", function()
    local train, test = load(mnist_folder())
    local function bytes(a) return np.round(a * 255):astype("uint8") end
    local folder = process.folder("data_npz")
    local arrays = {
      x_train = bytes(train.images):reshape(TRAIN, 28, 28), y_train = train.labels:astype("uint8"),
      x_test = bytes(test.images):reshape(TEST, 28, 28), y_test = test.labels:astype("int64"),
    }
    np.savez(folder .. "/mnist", arrays)
    check(load(folder))
    arrays.y_test = nil
    np.savez(folder .. "/mnist", arrays)
    raises("io", "no array 'y_test'", load, folder)
  end)

  it("takes its options", function()
    local folder = mnist_folder()
    local train, test = load(folder, { data_format = "NHWC", train_examples = 20, shuffle = 1 })
    assert.equal("(20, 28, 28, 1)", tostring(train.images.shape))
    assert.equal("(20, 28, 28, 1)", tostring(test.images.shape))
    local order = {}
    for _, _, labels in train:batches() do order[#order + 1] = table.concat(labels:totable()) end
    assert.are_not.equal("0123456789", order[1])
    for _, _, labels in test:batches() do assert.equal("0123456789", table.concat(labels:totable())) end
    raises("invalid_argument", "'NCHW' or 'NHWC'", load, folder, { data_format = "CHW" })
    raises("out_of_range", "train_examples is 41, there are 40", load, folder, { train_examples = 41 })
    raises("invalid_argument", "must be at least 1", load, folder, { test_examples = 0 })
    raises("invalid_argument", "did you mean 'shuffle'", load, folder, { shufle = 1 })
    raises("invalid_argument", "batches of 7 do not divide 40 examples", data.load_mnist, 7, 10, { dir = folder })
    assert.equal(5, #(data.load_mnist(7, 10, { dir = folder, drop_last = true })):batches())
  end)

  it("refuses damaged files by name and never falls back", function()
    local images = "train-images-idx3-ubyte"
    local function refuses(part, changed, code) raises(code or "io", part, load, mnist_folder(changed)) end
    refuses(images, { [images] = images_file(TRAIN):sub(1, -2) })
    refuses(images, { [images] = images_file(TRAIN) .. "\0" })
    refuses(images, { [images] = images_file(TRAIN):sub(1, 9) })
    refuses(images, { [images] = "" })
    refuses(images, { [images] = "\0\0\8\3" .. u32(2 ^ 32 - 1):rep(3) })
    refuses(images, { [images] = "\0\0\8\3" .. u32(0) .. u32(28) .. u32(28) }, "shape_mismatch")
    refuses(images, { [images] = "\0\0\7\3" .. images_file(TRAIN):sub(5) })
    refuses("wanted uint8 (n, 28, 28)", { [images] = images_file(TRAIN, 27) }, "shape_mismatch")
    refuses("wanted uint8 (n, 28, 28)", { [images] = labels_file(TRAIN) }, "shape_mismatch")
    refuses("39 labels", { ["train-labels-idx1-ubyte"] = labels_file(39) }, "shape_mismatch")
    refuses("no train-labels-idx1-ubyte", { ["train-labels-idx1-ubyte"] = false }, "not_found")
    refuses("label 11 at position 3 is outside [0, 10)",
      { ["t10k-labels-idx1-ubyte"] = "\0\0\8\1" .. u32(TEST) .. "\1\2\3\11" .. ("\0"):rep(16) }, "out_of_range")
  end)

  it("finds a flipped bit anywhere in a packed file", function()
    local folder = mnist_folder()
    local path = gzip(folder .. "/train-labels-idx1-ubyte")
    local text = process.read(path)
    for _, at in ipairs({ 1, 3, 12, 20, 30, #text - 6, #text - 1 }) do
      local byte = text:byte(at)
      local flipped = byte % 2 == 0 and byte + 1 or byte - 1
      process.write(path, text:sub(1, at - 1) .. string.char(flipped) .. text:sub(at + 1))
      raises("io", "train-labels", load, folder)
    end
    process.write(path, text:sub(1, -9))
    raises("io", "train-labels", load, folder)
    process.write(path, text)
    load(folder)
  end)

  it("says where it looked when a folder was named and has nothing", function()
    local empty = process.folder("data_empty")
    raises("not_found", "no MNIST files in '" .. empty .. "'", load, empty)
    local run = process.moonflow({ "-e", "require('moonflow.data').load_mnist()" }, { env = { MOONFLOW_DATA = empty } })
    assert.equal(1, run.code)
    assert.truthy(run.err:find("MOONFLOW_DATA", 1, true))
  end)

  it("finds the folder that MOONFLOW_DATA names", function()
    local folder = mnist_folder()
    local root = process.folder("data_root")
    os.rename(folder, root .. "/mnist")
    local script = "local train = require('moonflow.data').load_mnist(10, 10) print(#train)"
    local run = process.moonflow({ "-e", script }, { env = { MOONFLOW_DATA = root } })
    assert.equal("", run.err)
    assert.equal("40\n", run.out)
  end)

  it("says in one line that it makes synthetic digits", function()
    local folder = process.folder("data_nothing")
    process.folder("data_nothing/below")
    local script = "local options = { train_examples = 30, test_examples = 10 }"
      .. " local train = require('moonflow.data').load_mnist(10, 10, options)"
      .. " print(train.images:mean(), table.concat(train.labels:totable()))"
    local options = { folder = folder .. "/below", env = { MOONFLOW_DATA = "" } }
    local run = process.moonflow({ "-e", script }, options)
    assert.equal(0, run.code)
    assert.truthy(run.err:find("30 + 10 synthetic digits", 1, true))
    assert.equal(1, select(2, run.err:gsub("\n", "")))
    assert.equal(run.out, process.moonflow({ "-e", script }, options).out)
  end)

  it("reads the real files", function()
    local named, folder = os.getenv("MOONFLOW_DATA") or "", nil
    for _, candidate in ipairs({ named .. "/mnist", process.source .. "/../shared/data/mnist" }) do
      local file = io.open(candidate .. "/train-images-idx3-ubyte.gz", "rb")
      if file then
        file:close()
        folder = candidate
      end
    end
    if not folder then
      pending("MNIST is not here (set MOONFLOW_DATA)")
      return
    end
    local train, test = data.load_mnist(100, 100, { dir = folder })
    assert.equal(600, #train:batches())
    assert.equal(100, #test:batches())
    assert.same({ 5, 0, 4, 1, 9 }, train.labels:rows(0, 5):totable())
    assert.same({ 7, 2, 1, 0, 4 }, test.labels:rows(0, 5):totable())
    -- The well-known mean and deviation of the training pixels.
    assert.is_true(math.abs(train.images:mean() - 0.1307) < 1e-4)
    assert.is_true(math.abs(train.images:std() - 0.3081) < 1e-4)
    train.images:release()
  end)
end)

describe("ofrecords", function()
  -- A message of protobuf: its fields, each with its length.
  local function varint(n)
    local bytes = {}
    repeat
      local low = n % 128
      n = (n - low) / 128
      bytes[#bytes + 1] = string.char(n > 0 and low + 128 or low)
    until n == 0
    return table.concat(bytes)
  end
  local function field(number, bytes) return varint(8 * number + 2) .. varint(#bytes) .. bytes end
  local function feature(name, kind, list) return field(1, field(1, name) .. field(2, field(kind, list))) end
  local function record(...)
    local message = table.concat({ ... })
    return np.array({ #message }, { dtype = "int64" }):tobytes() .. message
  end

  local function file(text, name)
    local path = process.folder(name or "data_ofrecord") .. "/part-0"
    process.write(path, text)
    return path
  end

  local BYTES, FLOATS, DOUBLES, INT32S, INT64S = 1, 2, 3, 4, 5
  local minus_one = ("\255"):rep(9) .. "\1"

  it("gives every kind of feature", function()
    local path = file(record(
      feature("pixels", FLOATS, field(1, np.array({ 0, 0.5, 1 }):tobytes())),
      feature("exact", DOUBLES, field(1, np.array({ 0.1, -2 }, { dtype = "float64" }):tobytes())),
      feature("label", INT32S, field(1, varint(300) .. minus_one)),
      feature("id", INT64S, "\8" .. varint(2 ^ 40)),  -- a list that is not packed
      feature("encoded", BYTES, field(1, "\0\1jpeg")),
      feature("words", BYTES, field(1, "two") .. field(1, "words")),
      feature("empty", FLOATS, "")) .. record(feature("label", INT32S, field(1, varint(7)))))
    local records = {}
    for i, found in data.ofrecords(path) do
      assert.equal(#records, i)
      records[i + 1] = found
    end
    assert.equal(2, #records)
    local first = records[1]
    assert.is_true(first.pixels == np.array({ 0, 0.5, 1 }))
    assert.equal("float64", first.exact.dtype)
    assert.equal(0.1, first.exact[0])
    assert.equal("int32", first.label.dtype)
    assert.same({ 300, -1 }, first.label:totable())
    assert.equal("int64", first.id.dtype)
    assert.equal(2 ^ 40, first.id[0])
    assert.equal("\0\1jpeg", first.encoded)
    assert.same({ "two", "words" }, first.words)
    assert.equal("(0)", tostring(first.empty.shape))
    assert.same({ 7 }, records[2].label:totable())
    assert.is_nil(records[2].pixels)
  end)

  it("goes on from file to file", function()
    local function labelled(label) return record(feature("label", INT32S, field(1, varint(label)))) end
    local seen, paths = {}, {}
    for k, text in ipairs({ labelled(1) .. labelled(2), "", labelled(3) }) do
      paths[k] = file(text, "data_ofrecord" .. k)
    end
    for i, found in data.ofrecords(paths) do seen[i + 1] = found.label[0] end
    assert.same({ 1, 2, 3 }, seen)
  end)

  it("refuses what is damaged, and says where", function()
    local good = record(feature("label", INT32S, field(1, varint(1))))
    local function refuses(pattern, text)
      raises("io", pattern, function() for _ in data.ofrecords(file(text)) do end end)
    end
    refuses(("byte %d: a record begins with its length, 8 bytes, and 3 are left"):format(#good), good .. "\1\0\0")
    refuses("byte 0: a record of " .. #good - 8 .. " bytes stands where " .. #good - 9 .. " are left", good:sub(1, -2))
    refuses("byte 0: a record of -1 bytes", ("\255"):rep(8) .. good)
    refuses("record at byte " .. #good .. ": byte 0: ", good .. record("\10\127"))
    refuses("a field of 4 bytes stands where 3 are left", record(feature("pixels", FLOATS, field(1, "\1\2\3"))))
    local path = file(good .. good)
    raises("io", ("has 1 bytes now, and a record ended at byte %d; it was cut short"):format(#good), function()
      for _ in data.ofrecords(path) do process.write(path, "x") end
    end)
    raises("not_found", "data/none", function() for _ in data.ofrecords("data/none") do end end)
    raises("invalid_argument", "wants a path or a list of paths, got 5", data.ofrecords, 5)
    raises("invalid_argument", "wants a path or a list of paths", data.ofrecords, {})
  end)
end)

describe("synthetic digits", function()
  local function draw(seed)
    return data.load_mnist(100, 100, { synthetic = seed, train_examples = 2000, test_examples = 500 })
  end

  it("are the same for the same seed, and others for another", function()
    local a, b, c = draw(1), draw(1), draw(2)
    assert.is_true(a.images == b.images and a.labels == b.labels)
    assert.is_false(a.images == c.images)
  end)

  it("hold every digit, on dark paper", function()
    local train, test = draw(true)
    for digit = 0, 9 do
      assert.is_true(np.sum(train.labels:eq(digit)) > 100)
      assert.is_true(np.sum(test.labels:eq(digit)) > 20)
    end
    assert.equal(0, train.images:min())
    assert.is_true(train.images:max() > 0.9)
    assert.is_true(train.images:mean() > 0.05 and train.images:mean() < 0.2)
  end)

  -- The nearest mean picture knows most digits, so there is something to learn, and not all, so it is not trivial.
  it("can be told apart, but not by a ruler", function()
    local train, test = draw(1)
    local means = {}
    local pixels = train.images:reshape(2000, 784)
    for digit = 0, 9 do
      local member = train.labels:eq(digit):astype("float32")
      means[digit + 1] = np.matmul(member:reshape(1, 2000), pixels):reshape(784) / member:sum()
    end
    local centers = np.stack(means)
    local scores = np.matmul(test.images:reshape(500, 784), centers:transpose()) - (centers * centers):sum(1) / 2
    local right = np.sum(np.argmax(scores, 1):eq(test.labels)) / 500
    assert.is_true(right > 0.5 and right < 0.95, "nearest mean: " .. right)
  end)
end)
