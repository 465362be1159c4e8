-- moonflow.core: shapes, arrays, printing, graphs, plans, runs. Files are in core_files_spec.lua.
local core = require "moonflow.core"

-- Runs f, which must fail with an error table of this code and a message that contains each of the texts.
local function fails(code, texts, f, ...)
  local fine, problem = pcall(f, ...)
  assert.is_false(fine)
  assert.equal(core.error_metatable, getmetatable(problem), tostring(problem))
  assert.equal(code, problem.code, tostring(problem))
  for _, text in ipairs(type(texts) == "table" and texts or { texts }) do
    assert.is_truthy(tostring(problem):find(text, 1, true), "'" .. tostring(problem) .. "' lacks '" .. text .. "'")
  end
  return problem
end

-- The metamethods, as functions that can be tried.
local function get(a, i) return a[i] end
local function set(a, i, v) a[i] = v end
local function length(a) return #a end

describe("a shape", function()
  local s = core.shape { 100, 10 }

  it("counts its axes from 0, and from the end below 0", function()
    assert.equal(100, s[0])
    assert.equal(10, s[1])
    assert.equal(10, s[-1])
    assert.equal(2, #s)
    assert.equal(1000, s:count())
    assert.same({ 100, 10 }, s:table())
    assert.equal("(100, 10)", tostring(s))
    assert.equal("()", tostring(core.shape {}))
    assert.equal(1, core.shape({}):count())
  end)

  it("equals another of the same sizes", function()
    assert.is_true(s == core.shape(s))
    assert.is_false(s == core.shape { 10, 100 })
  end)

  it("gives its sizes as a list and one by one", function()
    local shape = core.shape { 2, 3, 4 }
    assert.same({ 2, 3, 4 }, shape:table())
    assert.same({ 2, 3, 4 }, shape:totable())
    assert.same({ 2, 3, 4 }, { shape:unpack() })
    assert.same({}, { core.shape({}):unpack() })
  end)

  it("refuses what is no shape", function()
    fails("out_of_range", "axis 2 is outside rank 2", get, s, 2)
    fails("invalid_argument", "expected an integer", get, s, 0.5)
    fails("invalid_argument", "negative size -1", core.shape, { -1 })
    fails("invalid_argument", "the number 1.5", core.shape, { 1.5 })
    fails("invalid_argument", "the string '3'", core.shape, { "3" })
    fails("invalid_argument", "nil", core.shape)
    fails("invalid_argument", "at most 8", core.shape, { 1, 1, 1, 1, 1, 1, 1, 1, 1 })
    fails("out_of_range", "overflows", core.shape, { 2 ^ 40, 2 ^ 40 })
    fails("invalid_argument", "expected an integer", core.shape, { 0 / 0 })
    fails("invalid_argument", "expected an integer", core.shape, { 2 ^ 60 })
  end)
end)

describe("an array", function()
  it("is made from nested lists, numbers and bytes", function()
    local a = core.array { { 1, 2, 3 }, { 4, 5, 6.5 } }
    assert.equal("float32", a.dtype)
    assert.equal("(2, 3)", tostring(a.shape))
    assert.equal(24, a.nbytes)
    assert.equal(2, a.rank)
    assert.equal(2, #a)
    assert.same({ { 1, 2, 3 }, { 4, 5, 6.5 } }, a:totable())
    assert.equal(7, core.array(7, "int64"):item())
    assert.equal("(2, 2)", tostring(core.array({ 1, 2, 3, 4 }, "uint8", { 2, 2 }).shape))
    assert.equal("(2, 0)", tostring(core.array({ {}, {} }).shape))
    assert.same({ 1, 0 }, core.array({ true, false }, "int8"):totable())
    local bytes = core.array("\1\0\0\0\2\0\0\0", "int32", { 2 })
    assert.same({ 1, 2 }, bytes:totable())
    assert.equal("\1\0\0\0\2\0\0\0", bytes:tobytes())
    assert.is_true(core.array(a) == a)
    assert.same({ 0, 0 }, core.zeros("float64", { 2 }):totable())
    assert.equal("(2, 3)", tostring(core.empty("int8", a.shape).shape))
  end)

  it("is not made from ragged lists or things that are no numbers", function()
    fails("shape_mismatch", "ragged", core.array, { { 1, 2 }, { 3 } })
    fails("shape_mismatch", "ragged", core.array, { { 1, 2 }, 3 })
    fails("shape_mismatch", "ragged", core.array, { 1, { 2 } })
    fails("invalid_argument", { "entry 2", "the string 'x'" }, core.array, { 1, "x" })
    fails("invalid_argument", "has the key 'x' among its entries", core.array, { x = 1 })
    fails("invalid_argument", { "hole", "nothing stands at 2, but something at 3" }, core.array, { 1, nil, 3, nil })
    fails("invalid_argument", "an entry 0; Lua tables count from 1", core.array, { [0] = 1, 2, 3 })
    fails("invalid_argument", { "axis 1", "has the key 'y' among its entries" }, core.array,
      { { 1, 2 }, { 1, 2, y = 3 } })
    fails("invalid_argument", "nil", core.array)
    fails("invalid_argument", "is no dtype", core.array, { 1 }, "float128")
    fails("shape_mismatch", "shape (3) has 3 elements, the lists have 2", core.array, { 1, 2 }, nil, { 3 })
    fails("shape_mismatch", "needs 8 bytes, got 7", core.array, ("x"):rep(7), "int32", { 2 })
    fails("invalid_argument", "dtype and a shape", core.array, "abc")
    fails("dtype_mismatch", "astype", core.array, core.array { 1 }, "int32")
    local loop = {}
    loop[1] = loop
    fails("invalid_argument", "nested more than 8 deep", core.array, loop)
  end)

  it("takes only numbers that its dtype can hold", function()
    fails("out_of_range", "256 is no uint8 (0 to 255", core.array, { 256 }, "uint8")
    fails("out_of_range", "-1 is no uint8", core.array, { -1 }, "uint8")
    fails("out_of_range", "-129 is no int8", core.array, { -129 }, "int8")
    fails("out_of_range", "0.5 is no int32", core.array, { 0.5 }, "int32")
    fails("out_of_range", "is no int64", core.array, { 2 ^ 63 }, "int64")
    fails("out_of_range", "is no int64", core.array, { 0 / 0 }, "int64")
    assert.same({ -128, 127 }, core.array({ -128, 127 }, "int8"):totable())
    assert.equal(math.huge, core.array(math.huge):item())
  end)

  it("writes into the places that a slice picks, and nowhere else", function()
    local a = core.zeros("uint8", { 3, 4 })
    local function write(starts, steps, sizes, values)
      core.write_places(a, starts, steps, sizes, core.array(values, "uint8"))
    end
    write({ 0, 3 }, { 2, -2 }, { 2, 2 }, { 1, 2, 3, 4 })
    assert.same({ { 0, 2, 0, 1 }, { 0, 0, 0, 0 }, { 0, 4, 0, 3 } }, a:totable())
    write({ 1, 0 }, { 1, 1 }, { 2, 4 }, { 5, 6, 7, 8, 9, 10, 11, 12 })
    assert.same({ { 0, 2, 0, 1 }, { 5, 6, 7, 8 }, { 9, 10, 11, 12 } }, a:totable())
    core.write_places(a, { 1, 0 }, { 1, 1 }, { 2, 4 }, a:rows(0, 2))  -- which reads what it writes
    assert.same({ { 0, 2, 0, 1 }, { 0, 2, 0, 1 }, { 5, 6, 7, 8 } }, a:totable())
    fails("out_of_range", "places outside axis 1 of (3, 4)", write, { 0, 1 }, { 1, 3 }, { 1, 2 }, { 1, 2 })
    fails("out_of_range", "places outside axis 0", write, { -1, 0 }, { 1, 1 }, { 1, 1 }, { 1 })
    fails("out_of_range", "places outside axis 0", write, { 0, 0 }, { 1, 1 }, { 4, 1 }, { 1, 2, 3, 4 })
    fails("out_of_range", "places outside axis 1", write, { 0, 0 }, { 1, 2 ^ 53 }, { 1, 4 }, { 1, 2, 3, 4 })
    fails("shape_mismatch", "there are 2 places of an array uint8 (3, 4), the source is uint8 (1)", write,
      { 0, 0 }, { 1, 1 }, { 2, 1 }, { 1 })
    fails("invalid_argument", "one for each axis of (3, 4)", write, { 0 }, { 1 }, { 1 }, { 1 })
  end)

  it("writes rows to their places, and nothing where one of them is none", function()
    local a = core.array({ 1, 2, 3, 4 }, "int64"):reshape(2, 2)
    local function write(places, source) core.write_rows(a, core.array(places, "int64"), source) end
    write({ 1, 0, 1 }, core.array({ 5, 6, 7, 8, 9, 10 }, "int64"))
    assert.same({ { 7, 8 }, { 9, 10 } }, a:totable())
    write({ 1, 0 }, a)  -- which reads what it writes
    assert.same({ { 9, 10 }, { 7, 8 } }, a:totable())
    local own = core.array({ 1, 2, 0 }, "int64")
    core.write_rows(own, own, own)
    assert.same({ 0, 1, 2 }, own:totable())
    fails("out_of_range", "place 2 of 2 rows", write, { 0, 2 }, core.array({ 1, 1, 1, 1 }, "int64"))
    fails("out_of_range", "place -1 of 2 rows", write, { -1 }, core.array({ 1, 1 }, "int64"))
    fails("shape_mismatch", "there are 1 places of rows of an array int64 (2, 2), the source is int64 (1)", write,
      { 0 }, core.array({ 1 }, "int64"))
    fails("shape_mismatch", "the source is int32 (2)", write, { 0 }, core.array({ 1, 2 }, "int32"))
    fails("invalid_argument", "places int64; got int64 (2, 2) and float32 (1)", core.write_rows, a,
      core.array({ 0 }, "float32"), a)
    assert.same({ { 9, 10 }, { 7, 8 } }, a:totable())
  end)

  it("gives elements and rows, counted from 0, from the end below 0", function()
    local a = core.array { { 1, 2, 3 }, { 4, 5, 6 } }
    assert.equal(5, a[1][1])
    assert.equal(6, a[-1][-1])
    assert.equal(2, a:at(0, 1))
    assert.same({ 4, 5, 6 }, a:at(1):totable())
    a[0][2] = 30
    a:set(1, 0, 40)
    a[1] = core.array { 7, 8, 9 }
    assert.same({ { 1, 2, 30 }, { 7, 8, 9 } }, a:totable())
    a[0] = 0
    assert.same({ { 0, 0, 0 }, { 7, 8, 9 } }, a:totable())
    local rows = a:rows(1, 1)
    rows[0][0] = -1
    assert.equal(-1, a:at(1, 0))
    assert.equal(3, core.array(3):at())
    fails("out_of_range", "index 2 is out of range for axis 0 of size 2 (0..1; arrays count from 0, Lua tables from 1)",
      get, a, 2)
    fails("out_of_range", "axis 1 of size 3", a.at, a, 0, 3)
    fails("invalid_argument", "takes 2 indices, got 3", a.at, a, 0, 0, 0)
    fails("invalid_argument", "an ndarray of shape () is one number and takes no index; a:item() gives it, and "
      .. "a:set(number) puts another one in its place", function() core.array(3, "float32", {})[0] = 2 end)
    fails("invalid_argument", "expected an integer", get, a, 0.5)
    fails("invalid_argument", "takes no index", get, core.array(1), 0)
    fails("shape_mismatch", "the place is float32 (3), the value is float32 (2)", set, a, 0, core.array { 1, 2 })
    fails("invalid_argument", "expected a number, got the string 'x'", set, a, 0, "x")
    fails("out_of_range", "2 rows from row 1 on", a.rows, a, 1, 2)
    fails("out_of_range", "rows", a.rows, a, -1, 1)
    fails("out_of_range", "rows", a.rows, a, 2 ^ 53, 2 ^ 53)
    assert.is_nil(a.no_such_thing)
  end)

  it("is seen under other shapes", function()
    local a = core.array { 1, 2, 3, 4, 5, 6 }
    local b = a:reshape(2, -1)
    assert.equal("(2, 3)", tostring(b.shape))
    b[0][0] = 10
    assert.equal(10, a[0])
    assert.equal("(6)", tostring(b:reshape(-1).shape))
    assert.equal("(3, 2)", tostring(b:reshape(core.shape { 3, 2 }).shape))
    assert.equal("(6, 1)", tostring(b:reshape({ 6, 1 }).shape))
    fails("shape_mismatch", "6 elements", a.reshape, a, 4)
    fails("shape_mismatch", "divide", a.reshape, a, 4, -1)
    fails("invalid_argument", "only one", a.reshape, a, -1, -1)
    fails("shape_mismatch", "divide", core.zeros("int8", { 0 }).reshape, core.zeros("int8", { 0 }), 0, -1)
  end)

  it("is copied, compared and released", function()
    local a = core.array { 1, 2 }
    local b = a:copy()
    assert.is_true(a == b)
    b[0] = 5
    assert.is_false(a == b)
    assert.is_false(a == core.array({ 1, 2 }, "float64"))
    assert.equal("userdata", type(a:address()))
    local view = b:rows(0, 1)
    b:release()
    b:release()
    assert.equal(5, view[0])
    assert.equal("released ndarray", tostring(b))
    assert.is_true(b.released)
    assert.is_false(view.released)
    fails("wrong_state", "released", get, b, 0)
    fails("wrong_state", "released", get, b, "shape")
    fails("wrong_state", "released", b.copy, b)
    fails("shape_mismatch", "one element", a.item, a)
    fails("invalid_argument", "no length", length, core.array(1))
  end)

  it("gives an int64 only where a Lua number holds it", function()
    local exact = core.array({ 2 ^ 53, -2 ^ 53 }, "int64")
    assert.equal(2 ^ 53, exact[0])
    local large = core.array("\1\0\0\0\0\0\32\0", "int64", { 1 })
    fails("out_of_range", { "a[i]", "9007199254740993", "2^53" }, get, large, 0)
    fails("out_of_range", "a:item", large.item, large)
    fails("out_of_range", "a:at", large.at, large, 0)
    fails("out_of_range", "a:totable", large.totable, large)
    local has_ffi, ffi = pcall(require, "ffi")
    if has_ffi then
      large[0] = ffi.new("int64_t", -7)
      assert.equal(-7, large[0])
      assert.equal(1, core.array(ffi.new("uint64_t", 1), "int64"):item())
      fails("invalid_argument", "expected a number", set, large, 0, ffi.new("int[2]"))
    end
  end)

  it("asks for impossible memory and gets an error", function()
    fails("out_of_memory", "no memory", core.empty, "float64", { 2 ^ 44 })
    fails("out_of_range", "overflows", core.empty, "float64", { 2 ^ 53, 2 ^ 10 })
    fails("out_of_memory", "no memory", core.zeros, "int8", { 2 ^ 53 })
    assert.equal(0, core.zeros("int8", { 1 })[0])
  end)

  it("is collected before its memory piles up, though Lua sees only small boxes", function()
    local session = core.session()
    collectgarbage()
    local before, most = session:memory().live_bytes, 0
    for _ = 1, 300 do
      core.empty("uint8", { 8 * 2 ^ 20 })
      most = math.max(most, session:memory().live_bytes - before)
    end
    assert.is_true(most < 600 * 2 ^ 20, most / 2 ^ 20 .. " MiB")
    collectgarbage()
    collectgarbage()
    assert.is_true(session:memory().live_bytes <= before)
  end)
end)

describe("printing", function()
  local function prints(expected, a, options) assert.equal(expected, core.format(a, options)) end

  -- The expected texts are what NumPy 1.24 prints for the same arrays.
  it("aligns columns and shows the shortest digits of the dtype", function()
    prints("[0.15727027 0.45887455 0.10939325 0.66666406 0.        ]",
      core.array { 0.15727027, 0.45887455, 0.10939325, 0.66666406, 0 })
    prints("[[1.  2.  3. ]\n [4.  5.  6.5]]", core.array { { 1, 2, 3 }, { 4, 5, 6.5 } })
    prints("[[[1 2]\n  [3 4]]\n\n [[5 6]\n  [7 8]]]",
      core.array({ { { 1, 2 }, { 3, 4 } }, { { 5, 6 }, { 7, 8 } } }, "int32"))
    prints("[ -1  20 300]", core.array({ -1, 20, 300 }, "int64"))
    prints("[0.1]", core.array { 0.1 })
    prints("[0.1]", core.array({ 0.1 }, "float64"))
    prints("[0.33333333]", core.array({ 1 / 3 }, "float64"))
    prints("[ 1. -2.]", core.array { 1, -2 })
    prints("[ 0. nan inf]", core.array { 0, 0 / 0, math.huge })
    prints("[-inf   1.]", core.array { -math.huge, 1 })
    prints("[]", core.zeros("float32", { 0, 3 }))
    prints("[33554432.]", core.array { 33554432 })
  end)

  it("turns scientific for large numbers, small ones and large ratios", function()
    prints("[1.e+08]", core.array { 1e8 })
    prints("[1.e-05 1.e+00]", core.array { 1e-5, 1 })
    prints("[1.000e+00 1.001e+03]", core.array { 1, 1001 })
    prints("[1.e+100 1.e+000]", core.array({ 1e100, 1 }, "float64"))
    prints("[   1. 1000.]", core.array { 1, 1000 })
    prints("[0.00001 1.     ]", core.array { 1e-5, 1 }, { suppress = true })
    prints("[0.12 1.  ]", core.array { 0.123, 1 }, { precision = 2 })
  end)

  it("prints a scalar as a number", function()
    prints("0.5", core.array(0.5))
    prints("3.0", core.array(3))
    prints("1e-05", core.array(1e-5))
    prints("7", core.array(7, "int8"))
  end)

  it("breaks lines at 75 columns", function()
    local list = {}
    for i = 1, 30 do list[i] = i - 1 end
    prints("[ 0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18 19 20 21 22 23\n 24 25 26 27 28 29]",
      core.array(list, "int32"))
    prints("[10  1\n  2  3]", core.array({ 10, 1, 2, 3 }, "int32"), { linewidth = 7 })
  end)

  it("shows only the edges above 1000 elements", function()
    local row = "[0. 0. 0. ... 0. 0. 0.]"
    local lines = { row, row, row, "...", row, row, row }
    prints("[" .. table.concat(lines, "\n ") .. "]", core.zeros("float32", { 100, 40 }))
    prints("[0. 0. 0. ... 0. 0. 0.]", core.zeros("float32", { 1001 }))
    prints("[0 ... 0]", core.zeros("int8", { 20 }), { threshold = 10, edgeitems = 1 })
  end)

  it("refuses unknown or absurd options", function()
    fails("invalid_argument", "no option 'prec'", core.format, core.array { 1 }, { prec = 1 })
    fails("out_of_range", "precision: -1", core.format, core.array { 1 }, { precision = -1 })
    fails("invalid_argument", "expected an ndarray", core.format, 3)
  end)
end)

describe("a session", function()
  local session = core.session { threads = 1 }

  local function relu_plan(token)
    local graph = session:graph("relu_job")
    local x = graph:feed("x", "float32", { 3 }, "script.lua:1")
    graph:tap(graph:append("relu", { x }, nil, "r", "script.lua:2"), token or 7)
    return session:compile(graph), graph
  end

  it("lists its ops with inputs, attributes and docs", function()
    local by_name = {}
    for _, op in ipairs(session:ops()) do by_name[op.name] = op end
    local leaky = by_name.leaky_relu
    assert.equal("nn.leaky_relu", leaky.lua)
    assert.equal("one", leaky.inputs[1].kind)
    assert.equal("alpha", leaky.attrs[1].name)
    assert.equal("float", leaky.attrs[1].type)
    assert.is_number(leaky.attrs[1].default)
    assert.is_false(leaky.attrs[1].required)
    assert.equal("many", by_name.concat.inputs[1].kind)
    assert.is_string(leaky.doc)
    assert.same(leaky, session:op("leaky_relu"))
    fails("not_found", "leaky_relu", session.op, session, "leaky_rely")
    local paths = session:op_paths()
    for name, op in pairs(by_name) do assert.equal(op.lua or false, paths[name]) end
  end)

  it("runs a plan on the calling thread and gives taps in order, then the end", function()
    local plan = relu_plan()
    assert.is_nil(session:next())
    local run = plan:submit(true, nil, core.array { -1, 2, -3 })
    assert.equal(1, session:in_flight())
    local got, token, value, first = session:next()
    assert.equal(run, got)
    assert.equal(7, token)
    assert.same({ 0, 2, 0 }, value:totable())
    local ended, none, problem, second = session:next()
    assert.same({ run, 0 }, { ended, none })
    assert.is_nil(problem)
    assert.is_true(second > first)
    assert.is_nil(session:next())
    assert.equal(0, session:in_flight())
  end)

  it("runs on a worker, wakes a waiter, and refuses what is too much", function()
    local plan = relu_plan()
    plan:set_max_in_flight(2)
    local x = core.array { -1, 2, -3 }
    assert.is_number(plan:submit(false, nil, x))
    assert.is_number(plan:submit(false, { false }, x))
    x[1] = 50 -- the runs have their own copy
    assert.same({ nil, "busy" }, { plan:submit(false, nil, x) })
    while not session:wait(1000) do end
    session:wait_idle()
    fails("invalid_argument", "got nan", session.wait_idle, session, 0 / 0)  -- which would wait for ever
    local _, token, value = session:next()
    assert.equal(7, token)
    assert.equal(2, value[1])
    assert.equal(0, select(2, session:next()))
    assert.equal(0, select(2, session:next()), "the second run has its tap off")
    assert.is_nil(session:next())
    assert.is_false(session:wait(0))
    assert.is_number(session:fd())
  end)

  it("blames feeds that do not fit", function()
    local plan = relu_plan()
    fails("shape_mismatch", "input 'x' is float32 (2), its placeholder wants float32 (3)", plan.submit, plan, true, nil,
      core.array { 1, 2 })
    fails("dtype_mismatch", "input 'x' is int32 (3)", plan.submit, plan, true, nil, core.array({ 1, 2, 3 }, "int32"))
    fails("invalid_argument", "takes 1 input, got 0", plan.submit, plan, true)
    fails("invalid_argument", "expected an ndarray, got nil", plan.submit, plan, true, nil, nil)
    fails("invalid_argument", "taps_on", plan.submit, plan, true, {}, core.zeros("float32", { 3 }))
    fails("invalid_argument", "may_inline", plan.submit, plan)
  end)

  it("blames the script's line for ops that cannot be built", function()
    local graph = session:graph("job")
    local x = graph:feed("x", "float32", { 2, 3 }, "s.lua:1")
    local problem = fails("shape_mismatch", "s.lua:5: add 'sum': ", graph.append, graph, "add",
      { x, graph:feed("y", "float32", { 4 }, "s.lua:2") }, {}, "sum", "s.lua:5")
    assert.equal("s.lua:5", problem.where)
    assert.equal("add 'sum'", problem.op)
    assert.equal("prefix s.lua", ("prefix " .. problem):sub(1, 12))
    fails("not_found", { "s.lua:6", "relu" }, graph.append, graph, "rely", { x }, {}, "r", "s.lua:6")
    fails("invalid_argument", "did you mean 'alpha'", graph.append, graph, "leaky_relu", { x }, { alhpa = 1 })
    fails("invalid_argument", "option 'alpha': expected a number, got true", graph.append, graph, "leaky_relu", { x },
      { alpha = true }, "l", "s:1")
    fails("invalid_argument", "takes 1 values, got 2", graph.append, graph, "relu", { x, x })
    fails("invalid_argument", "misses its input", graph.append, graph, "relu", {})
    fails("invalid_argument", "misses its input", graph.append, graph, "relu", { false })
    fails("invalid_argument", "left out", graph.append, graph, "concat", { x, false }, { axis = 0 })
    fails("out_of_range", "there is no value 99", graph.append, graph, "relu", { 99 })
    fails("out_of_range", "there is no value -1", graph.type, graph, -1)
    fails("out_of_range", "token: 0", graph.tap, graph, x, 0)
    fails("invalid_argument", "expected a graph", session.compile, session, session)
    local other = core.session()
    fails("invalid_argument", "another session", other.compile, other, graph)
  end)

  it("shows what a graph and a plan are", function()
    local plan, graph = relu_plan()
    local nodes = graph:nodes()
    assert.equal("feed", nodes[1].kind)
    assert.same({ "op", "relu", "r", "script.lua:2" }, { nodes[2].kind, nodes[2].op, nodes[2].name, nodes[2].site })
    assert.same({ 0 }, nodes[2].inputs)
    local dtype, shape = graph:type(nodes[2].outputs[1])
    assert.equal("float32 (3)", dtype .. " " .. tostring(shape))
    assert.equal("r/out_0", graph:blob_name(nodes[2].outputs[1]))
    assert.is_truthy(graph:dump():find("relu 'r'", 1, true))
    assert.is_truthy(plan:dump():find("relu", 1, true))
    local info = plan:info()
    assert.equal("relu_job", info.job)
    assert.equal(1, info.steps)
    assert.same({}, info.variables)
    assert.equal("x", info.feeds[1].name)
  end)

  it("tells which values of a graph are computed from others", function()
    local graph = session:graph("from")
    local x, y = graph:feed("x", "float32", { 3 }, ""), graph:feed("y", "float32", { 3 }, "")
    local of_x = graph:append("relu", { x }, {}, "a", "")
    local of_both = graph:append("add", { of_x, y }, {}, "b", "")
    local of_y = graph:append("relu", { y }, {}, "c", "")
    assert.same({ true, true, true, false, false }, graph:computed_from({ x }, { x, of_x, of_both, y, of_y }))
    assert.same({ true, true }, graph:computed_from({ of_x, y }, { of_both, of_y }))
    assert.same({ false }, graph:computed_from({}, { x }))
    assert.same({}, graph:computed_from({ x }, {}))
    fails("out_of_range", "sources: there is no value 99", graph.computed_from, graph, { 99 }, {})
  end)

  it("keeps variables that jobs share, reads and writes them", function()
    local graph = session:graph("train")
    local w = graph:variable("w", "float32", { 2 }, "v.lua:1")
    graph:append("assign_add", { w, graph:constant(core.array { 1, 10 }, "one") }, {}, "update", "v.lua:2")
    local plan = session:compile(graph)
    assert.same({ { "w" }, false }, { session:without_value(), session:has_value("w") })
    session:write("w", core.array { 5, 5 })
    assert.same({ {}, true }, { session:without_value(), session:has_value("w") })
    assert.is_nil(session:has_value("v"))
    for _ = 1, 2 do
      plan:submit(true, nil)
      session:next()
    end
    assert.same({ 7, 25 }, session:read("w"):totable())
    local listed = session:variables()[1]
    assert.same({ "w", "float32", "(2)" }, { listed.name, listed.dtype, tostring(listed.shape) })
    assert.is_true(listed.initialised)
    assert.same({ "w" }, plan:info().variables)
    fails("not_found", "no variable 'v'", session.read, session, "v")
    fails("shape_mismatch", "variable 'w' is float32 (2)", session.write, session, "w", core.array { 1 })
    local other = session:graph("other")
    fails("shape_mismatch", { "v.lua:9", "'w'" }, other.variable, other, "w", "float32", { 3 }, "v.lua:9")
  end)

  it("differentiates", function()
    local graph = session:graph("grad")
    local x = graph:feed("x", "float32", { 3 }, "")
    local y = graph:append("multiply", { x, x }, {}, "square", "")
    local unused = graph:feed("u", "float32", { 1 }, "")
    local grads = graph:gradients({ y }, { graph:constant(core.array { 1, 1, 1 }, "seed") }, { x, unused })
    assert.is_false(grads[2])
    graph:tap(grads[1], 1)
    local plan = session:compile(graph)
    plan:submit(true, nil, core.array { 1, 2, 3 }, core.array { 0 })
    local _, _, dx = session:next()
    assert.same({ 2, 4, 6 }, dx:totable())
    session:next()
    fails("invalid_argument", "losses", graph.gradients, graph, { y }, {}, { x })
  end)

  it("delivers what went wrong in a run at its end, and stays usable", function()
    local graph = session:graph("lookup")
    local table_ = graph:constant(core.array { 1, 2, 3 }, "table")
    local at = graph:feed("at", "int32", { 2 }, "g.lua:1")
    graph:tap(graph:append("gather", { table_, at }, {}, "pick", "g.lua:2"), 3)
    local plan = session:compile(graph)
    local run = plan:submit(true, nil, core.array({ 0, 7 }, "int32"))
    local ended, token, problem = session:next()
    assert.same({ run, 0 }, { ended, token })
    assert.equal(core.error_metatable, getmetatable(problem))
    assert.equal("out_of_range", problem.code)
    assert.equal("lookup", problem.job)
    assert.equal("g.lua:2", problem.where)
    plan:submit(true, nil, core.array({ 0, 2 }, "int32"))
    assert.same({ 1, 3 }, select(3, session:next()):totable())
    session:next()
  end)

  it("evaluates one op at once", function()
    assert.same({ 2, 4 }, session:evaluate("add", { core.array { 1, 2 }, core.array { 1, 2 } }):totable())
    local sum = session:evaluate("reduce_sum", { core.array { { 1, 2 }, { 3, 4 } } }, { axis = { 1 } })
    assert.same({ 3, 7 }, sum:totable())
    fails("invalid_argument", "add: misses its input 'y'", session.evaluate, session, "add", { core.array { 1 } })
    fails("invalid_argument", "misses", session.evaluate, session, "add", {})
    local two, three = core.array { 1, 2 }, core.array { 1, 2, 3 }
    fails("shape_mismatch", "broadcast", session.evaluate, session, "add", { two, three })
    fails("not_found", "ad", session.evaluate, session, "ad", {})
    fails("invalid_argument", "no option 'x'", session.evaluate, session, "relu", { core.array { 1 } }, { x = 1 })
  end)

  it("can be interrupted and goes on", function()
    local plan = relu_plan()
    session:interrupt()
    assert.is_true(session:interrupted())
    plan:submit(true, nil, core.array { 1, 2, 3 })
    local _, token, problem = session:next()
    assert.equal(0, token)
    assert.equal("interrupted", problem.code)
    session:clear_interrupt()
    plan:submit(true, nil, core.array { 1, 2, 3 })
    assert.equal(7, select(2, session:next()))
    session:next()
  end)

  it("refuses work after it was closed, once and for all", function()
    local closing = core.session()
    local graph = closing:graph("job")
    graph:tap(graph:append("relu", { graph:feed("x", "float32", { 1 }, "") }, {}, "", ""), 1)
    local plan = closing:compile(graph)
    plan:submit(false, nil, core.array { 1 })
    closing:close()
    closing:close()
    fails("wrong_state", "closed", plan.submit, plan, true, nil, core.array { 1 })
    fails("wrong_state", "closed", closing.graph, closing, "job")
    fails("wrong_state", "closed", closing.read, closing, "w")
    fails("wrong_state", "closed", closing.evaluate, closing, "relu", { core.array { 1 } })
    local ends = 0
    for _, token in closing.next, closing do if token == 0 then ends = ends + 1 end end
    assert.equal(1, ends)
  end)

  it("refuses options it does not have", function()
    fails("invalid_argument", "no option 'thread'", core.session, { thread = 1 })
    fails("out_of_range", "threads", core.session, { threads = -1 })
    fails("invalid_argument", "options", core.session, 4)
  end)

  it("lives as long as its plans and arrays, in whatever order they are collected", function()
    local kept
    do
      local short = core.session()
      local graph = short:graph("job")
      graph:tap(graph:append("relu", { graph:feed("x", "float32", { 2 }, "") }, {}, "", ""), 1)
      local plan = short:compile(graph)
      for _ = 1, 3 do plan:submit(false, nil, core.array { -1, 1 }) end
      while not short:wait(50) do end
      kept = select(3, short:next())
    end
    collectgarbage()
    collectgarbage()
    assert.same({ 0, 1 }, kept:totable())
  end)
end)

describe("misuse", function()
  local session = core.session { threads = 1 }

  -- Things that a script may hand to any function. As a size, the large numbers are beyond what a machine has.
  local function things()
    local graph = session:graph("g")
    local x = graph:feed("x", "float32", { 2 }, "f.lua:1")
    graph:tap(x, 1)
    local released = core.array { 1 }
    released:release()
    local list = {
      false, true, 0, 1, -1, 0.5, 2 ^ 42, 2 ^ 53, -2 ^ 63, math.huge, 0 / 0, "", "float32", "relu", "x\0y",
      {}, { 1 }, { {} }, { 0, 0 }, { x = 1 }, { "a" }, print, coroutine.create(print), io.stdout, newproxy(true),
      core.array { 1, 2 }, core.zeros("int64", { 0 }), released, core.shape { 2, 1 }, session, graph,
      session:compile(graph), core, setmetatable({}, { __index = error, __tostring = error }),
    }
    local has_ffi, ffi = pcall(require, "ffi")
    if has_ffi then
      list[#list + 1] = ffi.new("int64_t", 5)
      list[#list + 1] = ffi.new("struct { int a; }")
    end
    return list
  end

  local function functions(list)
    local found, seen = {}, {}
    local function add(holder, name, f)
      -- Left out: what waits for the user, closes the shared session or writes files where the test runs.
      if name == "close" or name:find("_write$") or name == "__gc" then return end
      if type(f) == "function" and not seen[f] then
        seen[f] = true
        found[#found + 1] = { name = holder .. "." .. name, call = f }
      end
    end
    for name, f in pairs(core) do add("core", name, f) end
    for name, f in pairs(core.ndarray_methods) do add("ndarray", name, f) end
    for name, f in pairs(core.ndarray_metatable) do add("ndarray", name, f) end
    for name, f in pairs(core.error_metatable) do add("error", name, f) end
    for _, thing in ipairs(list) do
      local metatable = type(thing) == "userdata" and debug.getmetatable(thing)
      if metatable and thing ~= io.stdout then
        for name, f in pairs(metatable) do add("metatable", name, f) end
        if type(metatable.__index) == "table" then
          for name, f in pairs(metatable.__index) do add("method", name, f) end
        end
      end
    end
    table.sort(found, function(a, b) return a.name < b.name end)
    return found
  end

  it("gives errors, never a crash, whatever is handed to whatever", function()
    local list = things()
    local all = functions(list)
    assert.is_true(#all > 60)
    local random = 12345
    local function pick(n)
      random = (random * 1103515245 + 12345) % 2 ^ 31
      return math.floor(random / 65536) % n + 1
    end
    for _, f in ipairs(all) do
      for first = 0, #list do
        for _ = 1, 3 do
          local given = { list[first], list[pick(#list)], list[pick(#list)], list[pick(#list)], list[pick(#list)] }
          local fine, problem = pcall(f.call, unpack(given, 1, pick(6) - 1))
          if not fine and debug.getmetatable(problem) == core.error_metatable then
            assert.is_string(problem.code, f.name)
          end
        end
      end
      -- Calls may have run plans, released arrays, or interrupted the session.
      session:clear_interrupt()
      while session:next() do end
      list = things()
    end
  end)

  it("folds what has no line", function()
    assert.equal("", core.fold_traceback("", "folder", true))
    assert.equal("", core.fold_traceback("", "folder", false))
    assert.equal("\n", core.fold_traceback("\n\n", "", false))
  end)

  it("survives finalizers that scripts call themselves", function()
    local a = core.array { 1, 2 }
    local finalize = core.ndarray_metatable.__gc
    finalize(a)
    finalize(a)
    finalize(io.stdout)
    finalize(core.shape { 1 })
    finalize()
    fails("invalid_argument", "expected an ndarray", a.copy or core.ndarray_methods.copy, a)
    assert.equal(2, core.array({ 1, 2 })[1])
  end)

  it("survives a metatable on the wrong userdata", function()
    local shape = core.shape { 1 }
    debug.setmetatable(shape, core.ndarray_metatable)
    fails("invalid_argument", "expected an ndarray", get, shape, 0)
  end)

  it("keeps the inputs of an op while a finalizer runs another", function()
    local a, b, wrong = core.array { { 1, 2 }, { 3, 4 } }, core.array { 5, 6 }, 0
    local pause, multiplier = collectgarbage("setpause", 50), collectgarbage("setstepmul", 1000)
    for _ = 1, 20000 do
      getmetatable(newproxy(true)).__gc = function() session:evaluate("add", { b, b }, {}) end
      local turned = session:evaluate("transpose", { a }, { perm = { 1LL, 0LL } })
      wrong = wrong + ((turned:at(0, 1) == 3 and turned:at(1, 0) == 2) and 0 or 1)
    end
    collectgarbage("setpause", pause)
    collectgarbage("setstepmul", multiplier)
    assert.equal(0, wrong)
  end)

  it("survives finalizers that use the module while it works", function()
    local graph = session:graph("g")
    graph:tap(graph:feed("x", "float32", { 2 }, ""), 1)
    local plan = session:compile(graph)
    local a = core.array { 1, 2, 3 }
    local pulled = 0
    local function disturb()
      pcall(core.array, { "x" })
      tostring(core.array { 1, 2 })
      a:release()
      if session:next() then pulled = pulled + 1 end
    end
    local pause, multiplier = collectgarbage("setpause", 1), collectgarbage("setstepmul", 1000)
    for _ = 1, 300 do
      getmetatable(newproxy(true)).__gc = disturb
      plan:submit(true, nil, core.array { 1, 2 })
      local _, _, value = session:next()
      if value then pulled = pulled + 1 end
      pcall(function() return a:totable(), a:tobytes(), tostring(a) end)
      local _, problem = pcall(core.shape, { -1 })
      assert.is_truthy(problem.message:find("negative size", 1, true))
      a = core.array { { 1, 2 }, { 3, 4 } }
      while session:next() do pulled = pulled + 1 end
    end
    collectgarbage("setpause", pause)
    collectgarbage("setstepmul", multiplier)
    collectgarbage()
    assert.equal(0, session:in_flight())
  end)
end)

describe("a socket", function()
  local folder = require("process").short_folder()
  local path = folder .. "/core_spec.sock"

  before_each(function() os.remove(path) end)
  teardown(function() require("process").shell("rm -rf " .. folder) end)

  it("carries text both ways, is readable by a waiter, and says when the other side is gone", function()
    local listener = core.listen(path)
    assert.is_nil(listener:accept())
    local waiter = core.waiter()
    waiter:watch(listener:fd())
    assert.is_false(waiter:wait(0))
    local there = core.connect(path)
    assert.is_true(waiter:wait(60000))
    local here = listener:accept()
    assert.is_nil(listener:accept())
    assert.equal("", here:read())
    assert.equal(0, there:write("a\0b"))
    assert.equal("a\0b", here:read())
    assert.equal(0, here:write("back"))
    assert.equal("back", there:read())
    there:close()
    assert.is_nil(here:read())
    assert.same({ nil, "gone" }, { here:write("lost") })
    here:close()
    here:close()
    listener:close()
    assert.is_nil(io.open(path))
  end)

  it("keeps a bounded amount for a side that does not read", function()
    local listener = core.listen(path)
    local there = core.connect(path)
    local here = listener:accept()
    local piece, sent = ("x"):rep(2 ^ 18), 0
    local waiting, problem
    repeat
      waiting, problem = here:write(piece)
      if waiting then sent = sent + #piece end
    until not waiting
    assert.equal("full", problem)
    local got = 0
    while got < sent do
      got = got + #there:read()
      assert.is_number(here:write(""))
    end
    assert.equal(sent, got)
    listener:close()
  end)

  it("takes the place of a dead one, and of nothing else", function()
    local listener = core.listen(path)
    fails("io", { "in use" }, core.listen, path)
    os.rename(path, path .. "_left")  -- as of a process that was killed
    listener:close()
    core.listen(path .. "_left"):close()
    local file = assert(io.open(path, "w"))
    file:close()
    fails("io", { "no socket" }, core.listen, path)
    os.remove(path)
    fails("not_found", { path }, core.connect, path)
    fails("invalid_argument", { "at most" }, core.listen, ("x"):rep(200))
  end)
end)
