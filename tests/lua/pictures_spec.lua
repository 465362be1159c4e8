-- Pictures in files with labels, read in batches while the script does something else: flow.data.Pictures.
local checks = require "checks"
local flow = require "moonflow"
local process = require "process"
local np, raises = flow.np, checks.raises

local root

-- A folder of classes, of so many pictures each: all pixels of one are its number.
local function make(counts)
  root = os.tmpname()
  os.remove(root)
  local number = 0
  for class, count in pairs(counts) do
    process.shell(("mkdir -p '%s/%s'"):format(root, class))
    for i = 1, count do
      np.save_png(("%s/%s/%02d.png"):format(root, class, i), np.full({ 8 + i, 9, 3 }, number, "uint8"))
      number = number + 1
    end
  end
  return root
end

local function lines_of(body)
  local lines = {}
  flow.config.log(function(line) lines[#lines + 1] = line end)
  finally(function() flow.config.log(nil) end)
  body()
  flow.config.log(nil)
  return lines
end

-- The number that a file's pixels are.
local function pixel(path) return np.load_png(path)[0][0][0] end

after_each(function()
  if root then process.shell("rm -rf '" .. root .. "'") end
  root = nil
end)

describe("pictures in folders", function()
  it("have their folders' names as classes, and are read with their labels", function()
    local set = flow.data.Pictures(make { dog = 3, cat = 2, ["Möwe am Meer"] = 1 } .. "/")
    assert.same({ "Möwe am Meer", "cat", "dog" }, set.classes)
    assert.equal(6, #set)
    assert.equal("int32", set.labels.dtype)
    assert.same({ 0, 1, 1, 2, 2, 2 }, set.labels:totable())
    assert.equal(root .. "/cat/01.png", set.paths[2])
    assert.equal("Pictures(6 files; 3 classes)", tostring(set))
    local seen = 0
    for i, pictures, labels, numbers in set:batches { batch_size = 2, size = { 5, 4 } } do
      assert.equal(seen, i)
      assert.same({ 2, 5, 4, 3 }, pictures.shape:table())
      for k = 0, 1 do
        local number = numbers[k]
        assert.equal(2 * i + k, number)
        assert.equal(set.labels[number], labels[k])
        assert.is_true(pictures[k] == np.full({ 5, 4, 3 }, pixel(set.paths[number + 1]), "uint8"))
      end
      seen = seen + 1
    end
    assert.equal(3, seen)
    assert.equal(3, #set:batches { batch_size = 2, size = 4 })
  end)

  it("are found below the class as well, and what is no picture is left out, and said", function()
    local folder = make { a = 1, b = 1 }
    process.shell("mkdir -p a/more/deep .git && cp b/01.png a/more/deep/X.PNG && cp b/01.png b/.hidden.png && "
      .. "touch a/one.webp a/two.webp b/README Thumbs.db", { folder = folder })
    local set
    local lines = lines_of(function() set = flow.data.Pictures(folder) end)
    assert.same({ folder .. "/a/01.png", folder .. "/a/more/deep/X.PNG", folder .. "/b/01.png" }, set.paths)
    assert.same({ "moonflow: flow.data.Pictures: only JPEG and PNG files are read; left out: 1 without an ending, "
      .. "2 .webp" }, lines)
  end)

  it("keep the labels of other folders", function()
    local set = flow.data.Pictures(make { a = 1, c = 2 }, { classes = { "a", "b", "c" } })
    assert.same({ 0, 2, 2 }, set.labels:totable())
    raises("not_found", "/c' is none of the 1 classes that are given", flow.data.Pictures, root, { classes = { "a" } })
  end)

  it("that are none are refused", function()
    raises("not_found", "flow.data.Pictures: cannot list 'nowhere'", flow.data.Pictures, "nowhere")
    raises("not_found", "has no folders with pictures; each folder in it is a class", flow.data.Pictures,
      make { a = 1 } .. "/a")
    process.shell(("mkdir '%s/empty'"):format(root))
    raises("not_found", "/empty' has no JPEG or PNG picture, and would be a class", flow.data.Pictures, root)
    raises("invalid_argument", "labels go with a list of paths", flow.data.Pictures, root, { 1 })
    raises("invalid_argument", "wanted a folder or a list of paths, got 5", flow.data.Pictures, 5)
    raises("invalid_argument", "wanted a folder or a list of paths, got an empty list", flow.data.Pictures, {})
    raises("invalid_argument", "path 2 must be a string, got 5", flow.data.Pictures, { "a", 5 })
    raises("shape_mismatch", "there are 2 paths, and labels are (3)", flow.data.Pictures, { "a", "b" }, { 1, 2, 3 })
  end)
end)

describe("masks", function()
  -- A set of pictures with masks of their sizes: a mask is 7 where its picture is light, else 3.
  local function with_masks(count)
    local paths, masks = {}, {}
    make { a = count }
    for i = 1, count do
      local light = np.random.uniform(0, 1, { 3, 4 }):gt(0.5):astype "uint8"
      light = np.repeat_interleave(np.repeat_interleave(light, 8 + i, 0), 9, 1)
      paths[i], masks[i] = ("%s/a/%02d.png"):format(root, i), ("%s/%02d_mask.png"):format(root, i)
      np.save_png(paths[i], light * 200)
      np.save_png(masks[i], light * 4 + 3)
    end
    return paths, masks
  end

  it("are cut, mirrored and resized as their pictures are", function()
    local paths, masks = with_masks(6)
    local set, seen = flow.data.Pictures(paths, { masks = masks }), 0
    for part, count in pairs { [set:split(0.5, 1)] = 3, [set] = 6 } do
      assert.equal(count, #part.masks)
      for _, pictures, labels, numbers, classes in part:batches { batch_size = 3, size = { 60, 60 }, shuffle = 4,
                                                                  crop = { 0.3, 1 }, mirror = 0.5, channels = 1 } do
        assert.same({ 3 }, labels.shape:table())
        assert.same({ 3, 60, 60 }, classes.shape:table())
        for k = 0, 2 do
          assert.equal((part.paths[numbers[k] + 1]:gsub("/a/(%d+)", "/%1_mask")), part.masks[numbers[k] + 1])
        end
        assert.is_true(np.isin(classes, { 3, 7 }):all())
        -- Of the four pixels of a mean the nearest has a quarter at least, of a larger picture.
        local light = pictures:reshape { 3, 60, 60 }:astype("float32")
        assert.is_true(np.where(light:gt(151), classes:eq(7), np.where(light:lt(49), classes:eq(3), 1)):all())
        seen = seen + 1
      end
    end
    assert.equal(3, seen)
  end)

  it("of another number or size, or none that hold numbers, are refused", function()
    local paths, masks = with_masks(2)
    raises("shape_mismatch", "there are 2 paths, and 1 masks", flow.data.Pictures, paths, { masks = { masks[1] } })
    raises("invalid_argument", "mask 2 must be a string, got 5", flow.data.Pictures, paths,
      { masks = { masks[1], 5 } })
    local function read(skips)
      local set = flow.data.Pictures(paths, { masks = masks })
      local _, _, _, numbers, classes = set:batches({ batch_size = 2, size = 8, skip_broken = skips })()
      return numbers, classes
    end
    np.save_png(masks[2], np.zeros({ 5, 6 }, "uint8"))
    raises("io", "_mask.png' is (5, 6), and the picture '" .. paths[2] .. "' that it belongs to (30, 36)", read)
    local lines = lines_of(function()
      local numbers, classes = read(true)
      assert.same({ 0, 0 }, numbers:totable())
      assert.is_true(classes[0] == classes[1])
    end)
    assert.truthy(lines[1]:find("another picture of the batch stands for one that cannot be read", 1, true))
    np.save_png(masks[2], np.zeros({ 30, 36, 3 }, "uint8"))
    raises("io", "uint8 (30, 36, 3), wanted one number of up to 8 bits for each pixel", read)
    os.remove(masks[2])
    raises("io", "_mask.png'", read)
  end)
end)

describe("a set of pictures", function()
  it("may be of paths, with whatever is wanted of each", function()
    local paths = flow.data.Pictures(make { a = 2 }).paths
    assert.equal("int32", flow.data.Pictures(paths, { 1, 0 }).labels.dtype)
    assert.equal("float32", flow.data.Pictures(paths, { 1, 0.5 }).labels.dtype)
    assert.same({ 16777217, 3 }, flow.data.Pictures(paths, { 16777217, 3 }).labels:totable())
    assert.equal("int64", flow.data.Pictures(paths, { -1, 3e9 }).labels.dtype)
    local boxes = np.arange(8):reshape({ 2, 4 })
    for _, _, wanted in flow.data.Pictures(paths, boxes):batches { batch_size = 2, size = 4 } do
      assert.is_true(wanted == boxes)
    end
  end)

  it("is split by classes, alike in every run", function()
    local set = flow.data.Pictures(make { a = 10, b = 30 })
    local train, valid = set:split(0.8, 3)
    assert.same({ 32, 8 }, { #train, #valid })
    assert.same({ 24, 6 }, { train.labels:sum(), valid.labels:sum() })
    assert.same(train.paths, (set:split(0.8, 3)).paths)
    assert.not_same(train.paths, (set:split(0.8, 4)).paths)
    assert.same(set.classes, valid.classes)
    local all = {}
    for _, part in ipairs { train, valid } do
      for _, path in ipairs(part.paths) do all[#all + 1] = path end
    end
    table.sort(all)
    assert.same(set.paths, all)
    raises("invalid_argument", "share is above 0 and below 1, got 1", set.split, set, 1)
    raises("invalid_argument", "a share of 0.01 of 40 pictures leaves none for part 1", set.split, set, 0.01)
  end)

  it("draws what follows from the seed, the epoch and the batch", function()
    local folder = make { b = 7 }
    for i = 1, 7 do
      np.save_png(("%s/b/%02d.png"):format(folder, i), np.random.randint(0, 256, { 20, 30 }):astype "uint8")
    end
    local function seen(options)
      local given = { batch_size = 2, size = 8, shuffle = 5, drop_last = false, crop = { 0.2, 1 }, mirror = 0.5 }
      for name, value in pairs(options or {}) do given[name] = value end
      local list = {}
      for i, pictures, _, numbers in flow.data.Pictures(folder):batches(given) do
        local means = pictures:astype("float64"):mean({ 1, 2, 3 })
        list[#list + 1] = ("%d %s %s"):format(i, tostring(numbers), tostring(means))
      end
      return list
    end
    local whole = seen { epoch = 2 }
    assert.equal(4, #whole)
    np.random.seed(99)
    assert.same(whole, seen { epoch = 2, workers = 0 })
    assert.same(whole, seen { epoch = 2, workers = 3 })
    assert.same({ whole[3], whole[4] }, seen { epoch = 2, first = 2 })
    assert.not_same(whole, seen { epoch = 1 })
    local set, epochs = flow.data.Pictures(folder), {}
    for epoch = 1, 2 do
      for _, pictures in set:batches { batch_size = 7, size = 8, shuffle = 5, crop = { 0.2, 1 } } do
        epochs[epoch] = pictures
      end
    end
    assert.is_false(epochs[1] == epochs[2])
    -- A call that is refused counts for none.
    set = flow.data.Pictures(folder)
    raises("invalid_argument", "batches of 4 do not divide 7 examples", set.batches, set,
      { batch_size = 4, size = 8, shuffle = 5 })
    for _, pictures in set:batches { batch_size = 7, size = 8, shuffle = 5, crop = { 0.2, 1 } } do
      assert.is_true(pictures == epochs[1])
    end
    np.random.seed(3)
    local first = seen { shuffle = true }
    np.random.seed(3)
    assert.same(first, seen { shuffle = true })
  end)

  it("draws classes that are rare as often as others", function()
    local set, count = flow.data.Pictures(make { a = 4, b = 36 }), np.zeros({ 2 })
    for epoch = 0, 9 do
      for _, pictures, labels, numbers in set:batches { batch_size = 8, size = 4, shuffle = 1, epoch = epoch,
                                                        weights = "balanced" } do
        for k, number in ipairs(numbers:totable()) do
          assert.equal(set.labels[number], labels[k - 1])
          assert.equal(pixel(set.paths[number + 1]), pictures[k - 1][0][0][0])
        end
        count = count + np.array({ labels:eq(0):astype("float32"):sum(), labels:sum() })
      end
    end
    assert.equal(400, count:sum())
    assert.near(200, count[0], 60)  -- six standard errors
    local weights = np.zeros({ 40 })
    weights[7] = 2
    for _, _, _, numbers in set:batches { batch_size = 40, size = 4, shuffle = 1, weights = weights } do
      assert.is_true(numbers == np.full({ 40 }, 7, "int64"))
    end
    local function refuses(text, options)
      options.batch_size, options.size = 4, 4
      raises("invalid_argument", text, set.batches, set, options)
    end
    refuses("weights is 'balanced' or a number for each picture, got 'equal'", { weights = "equal", shuffle = 1 })
    refuses("weights is (2), wanted (40)", { weights = { 1, 2 }, shuffle = 1 })
    refuses("weights are numbers from 0 on, not all 0", { weights = np.zeros({ 40 }), shuffle = 1 })
    refuses("weights draw by a seed", { weights = "balanced" })
    refuses("the epoch must be at least 0, got -1", { weights = "balanced", shuffle = 1, epoch = -1 })
    refuses("workers is from 0 to 256, got -1", { workers = -1 })
    refuses("mirror is a chance from 0 to 1, got 2", { mirror = 2 })
  end)

  it("tells the path of one that cannot be read, or goes on without it", function()
    local set = flow.data.Pictures(make { a = 3, b = 3 })
    local torn, text = set.paths[2], set.paths[6]
    process.write(torn, process.read(torn):sub(1, 60))
    process.write(text, "no picture")
    for _, workers in ipairs { 0, 2 } do
      raises("io", "file '" .. torn .. "' is a damaged picture", function()
        for _ in set:batches { batch_size = 3, size = 4, workers = workers } do end -- luacheck: ignore
      end)
    end
    raises("io", "{ skip_broken = true } puts another one of the batch in its place", function()
      for _ in set:batches { batch_size = 6, size = 4 } do end -- luacheck: ignore
    end)
    local seen = {}
    local lines = lines_of(function()
      for _ = 1, 2 do
        for i, pictures, labels, numbers in set:batches { batch_size = 3, size = 4, skip_broken = true } do
          seen[i] = numbers:totable()
          for k, number in ipairs(seen[i]) do
            assert.equal(pixel(set.paths[number + 1]), pictures[k - 1][0][0][0])
            assert.equal(set.labels[number], labels[k - 1])
          end
        end
      end
    end)
    assert.same({ 0, 2, 2 }, seen[0])
    assert.same({ 3, 4, 3 }, seen[1])
    assert.equal(2, #lines)
    assert.truthy(lines[1]:find("stands for one that cannot be read: file '" .. torn, 1, true))
    assert.truthy(set.broken[text]:find("is neither a JPEG nor a PNG picture", 1, true))
    raises("io", "none of a batch can be read: file '" .. torn, function()
      for _ in set:batches { batch_size = 1, size = 4, skip_broken = true } do end -- luacheck: ignore
    end)
    os.remove(torn)
    raises("io", "cannot open '" .. torn, function()
      for _ in set:batches { batch_size = 6, size = 4 } do end -- luacheck: ignore
    end)
  end)

  it("holds two batches and no more, and gives up what nobody takes", function()
    local set = flow.data.Pictures(make { a = 40 })
    local one, most = 4 * 64 * 64 * 3, 0
    collectgarbage()
    local before = flow.memory().live
    for epoch = 1, 6 do
      for i, pictures in set:batches { batch_size = 4, size = 64, workers = 2 } do
        collectgarbage()
        most = math.max(most, flow.memory().live - before)
        pictures:release()
        if epoch % 2 == 0 and i == 3 then break end
      end
    end
    assert.is_true(most >= one and most < 2.5 * one, most)
    collectgarbage()
    collectgarbage()
    assert.is_true(flow.memory().live - before < one)
  end)
end)
