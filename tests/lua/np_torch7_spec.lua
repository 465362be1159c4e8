-- Files of Torch7's torch.save, which these tests put together number by number. What it wrote itself, a net of nngraph
-- among it, was read once beside Python's torchfile, with the same numbers.
local checks = require "checks"
local np = require "moonflow.np"

local raises, same = checks.raises, checks.same
local path = os.tmpname()
after_each(function() os.remove(path) end)

-- A number as so many bytes, the lowest first.
local function whole(number, count)
  local bytes = {}
  for i = 1, count do bytes[i], number = string.char(number % 256), math.floor(number / 256) end
  return table.concat(bytes)
end

local binary, text = {}, {}
function binary.int(n) return whole(n, 4) end
function binary.longs(list)
  for i, n in ipairs(list) do list[i] = whole(n, 8) end
  return table.concat(list)
end
function binary.characters(s) return s end
function binary.elements(a) return a:tobytes() end
function text.int(n) return n .. "\n" end
function text.longs(list) return #list > 0 and table.concat(list, " ") .. "\n" or "" end
function text.characters(s) return #s > 0 and s .. "\n" or "" end
function text.elements(a) return text.longs(a:totable()) end

-- The kinds of objects, in either way of writing.
local function objects(as)
  local o = {}
  local function string_of(s) return as.int(#s) .. as.characters(s) end
  function o.number(n) return as.int(1) .. as.elements(np.array({ n }, "float64")) end
  function o.string(s) return as.int(2) .. string_of(s) end
  function o.table(number, count, body) return as.int(3) .. as.int(number) .. as.int(count) .. body end
  function o.again(kind, number) return as.int(kind) .. as.int(number) end
  function o.boolean(b) return as.int(5) .. as.int(b and 1 or 0) end
  function o.instance(number, class, body)
    return as.int(4) .. as.int(number) .. string_of("V 1") .. string_of(class) .. body
  end
  function o.storage(number, class, a)
    return o.instance(number, class, as.longs { a.shape[0] } .. as.elements(a))
  end
  function o.tensor(number, class, sizes, strides, first, storage)
    return o.instance(number, class, as.int(#sizes) .. as.longs(sizes) .. as.longs(strides) .. as.longs { first }
      .. storage)
  end
  return o
end

local function load(bytes)
  local file = assert(io.open(path, "wb"))
  file:write(bytes)
  file:close()
  return np.load_t7(path)
end

for name, as in pairs { ["a binary file"] = binary, ["a text"] = text } do
  local o = objects(as)
  describe(name .. " of Torch7", function()
    it("has numbers, strings, booleans and tables that hold themselves", function()
      assert.equal(-1.5, load(o.number(-1.5)))
      assert.equal("two\nlines", load(o.string("two\nlines")))
      assert.equal("", load(o.string("")))
      assert.is_nil(load(as.int(0)))
      local t = load(o.table(1, 4, o.number(1) .. o.string("one") .. o.string("yes") .. o.boolean(true)
        .. o.string("no") .. o.boolean(false) .. o.string("self") .. o.again(3, 1)))
      assert.equal("one", t[1])
      assert.is_true(t.yes)
      assert.is_false(t.no)
      assert.equal(t, t.self)
    end)

    it("has tensors of every type, of rows and columns, which share a storage", function()
      local a = np.arange(6)
      for class, dtype in pairs { Double = "float64", Float = "float32", Int = "int32", Long = "int64",
                                  Cuda = "float32", CudaDouble = "float64" } do
        local storage = o.storage(2, "torch." .. class .. "Storage", a:astype(dtype))
        local t = load(o.table(4, 2,
          o.number(1) .. o.tensor(1, "torch." .. class .. "Tensor", { 2, 2 }, { 2, 1 }, 3, storage)
          .. o.number(2) .. o.tensor(3, "torch." .. class .. "Tensor", { 3, 2 }, { 1, 3 }, 1, o.again(4, 2))))
        same(t[1], dtype, { { 2, 3 }, { 4, 5 } })
        same(t[2], dtype, { { 0, 3 }, { 1, 4 }, { 2, 5 } })
      end
      local t = load(o.table(4, 2,
        o.number(1) .. o.tensor(1, "torch.FloatTensor", { 2 }, { 1 }, 1, o.storage(2, "torch.FloatStorage",
          a:astype("float32")))
        .. o.number(2) .. o.tensor(3, "torch.FloatTensor", { 1, 6 }, { 99, 1 }, 1, o.again(4, 2))))
      t[1][1] = 42
      same(t[2], "float32", { { 0, 42, 2, 3, 4, 5 } })
    end)

    it("has bytes, and tensors without elements", function()
      local bytes = np.array({ 1, 10, 255 }, "uint8")
      same(load(o.instance(1, "torch.ByteStorage", as.longs { 3 } .. as.characters(bytes:tobytes()))), "uint8",
        { 1, 10, 255 })
      local empty = load(o.tensor(1, "torch.FloatTensor", {}, {}, 1, as.int(0)))
      assert.equal("(0)", tostring(empty.shape))
      assert.equal("float32", empty.dtype)
      local none = load(o.tensor(1, "torch.DoubleTensor", { 2, 0 }, { 1, 1 }, 1,
        o.storage(2, "torch.DoubleStorage", np.zeros({ 0 }, "float64"))))
      assert.equal("(2, 0)", tostring(none.shape))
    end)

    it("has objects of classes as tables of their fields, and no functions", function()
      local code = as.int(8) .. as.int(3) .. as.int(2) .. as.characters("\27L")
        .. o.table(4, 0, "")  -- what it closes over
      local bias = o.tensor(5, "torch.FloatTensor", { 2 }, { 1 }, 1,
        o.storage(6, "torch.FloatStorage", np.array({ 1, 2 })))
      local net = load(o.instance(1, "nn.Linear", o.table(2, 4, o.string("bias") .. bias .. o.string("hook") .. code
        .. o.string("again") .. o.again(8, 3) .. o.string("self") .. o.again(4, 1))))
      assert.equal("nn.Linear", net.__typename)
      same(net.bias, "float32", { 1, 2 })
      assert.is_nil(net.hook)
      assert.is_nil(net.again)
      assert.equal(net, net.self)
      local hash = load(o.instance(1, "tds.Hash", as.longs { 1 } .. o.string("a") .. o.number(3)))
      assert.equal(3, hash.a)
      assert.same({ 4, 5 }, { unpack(load(o.instance(1, "tds.Vec", as.longs { 2 } .. o.number(4) .. o.number(5)))) })
    end)

    it("that is cut off anywhere says so", function()
      local whole_file = o.table(1, 1, o.string("weight") .. o.tensor(2, "torch.FloatTensor", { 2 }, { 1 }, 1,
        o.storage(3, "torch.FloatStorage", np.array({ 1, 2 }))))
      local until_last = as == text and #whole_file - 3 or #whole_file - 1  -- of a text the last number may be shorter
      for length = 0, until_last do
        raises("io", "is damaged, or no file of torch.save: at byte", function() load(whole_file:sub(1, length)) end)
      end
      same(load(whole_file).weight, "float32", { 1, 2 })
    end)
  end)
end

describe("reading a file of Torch7", function()
  local o = objects(binary)

  it("reads halves, shorts, and the oldest files, which have no version", function()
    local halves = np.array({ 1.5, -2 }, "float16")
    same(load(o.storage(1, "torch.HalfStorage", halves)), "float16", { 1.5, -2 })
    same(load(o.instance(1, "torch.ShortStorage", binary.longs { 2 } .. whole(65535, 2) .. whole(300, 2))), "int32",
      { -1, 300 })
    same(load(binary.int(4) .. binary.int(1) .. binary.int(17) .. "torch.CharStorage" .. binary.longs { 1 } .. "\255"),
      "int8", { -1 })
  end)

  it("is named by np.load", function()
    local fine, problem = pcall(function()
      load(o.table(1, 0, ""))
      np.load(path)
    end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("is a file of Torch7, which np.load_t7 reads", 1, true), tostring(problem))
  end)

  it("refuses what is none, at the user's line", function()
    raises("not_found", "np.load_t7: cannot open 'no.t7': No such file", function() np.load_t7("no.t7") end)
    raises("io", "is an npy file, which np.load reads", function() load("\147NUMPY\1\0") end)
    raises("io", "at byte 4 an object has the kind 1752659017", function() load("Itwh") end)
    raises("io", "the fields of an object are missing, after an object of the class my.Own",
      function() load(o.instance(1, "my.Own", o.number(1))) end)
    raises("io", "bytes are missing, after an object of the class torch.FloatStorage",
      function() load(o.instance(1, "torch.FloatStorage", binary.longs { 2 ^ 40 })) end)
    raises("io", "a tensor lies outside of its storage", function()
      load(o.tensor(1, "torch.FloatTensor", { 3 }, { 1 }, 2, o.storage(2, "torch.FloatStorage", np.zeros({ 3 }))))
    end)
    for _, lies in ipairs { { -3, 1 }, { 2 ^ 40, 0 }, { 2, -1 } } do
      raises("io", ("a tensor has %.0f elements along an axis, %d apart"):format(unpack(lies)), function()
        load(o.tensor(1, "torch.FloatTensor", { lies[1] }, { lies[2] }, 2,
          o.storage(2, "torch.FloatStorage", np.zeros({ 3 }))))
      end)
    end
    raises("io", "a tensor has 1000 axes", function()
      load(o.instance(1, "torch.FloatTensor", binary.int(1000) .. binary.longs { 1 }))
    end)
    raises("invalid_argument", "np.load_t7: argument 1 ('path') must be a string", function() np.load_t7(3) end)
  end)
end)
