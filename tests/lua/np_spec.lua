-- flow.np: arrays, their operators, reductions and slices. Golden values are NumPy's.
local checks = require "checks"
local np = require "moonflow.np"

local raises, same = checks.raises, checks.same

describe("making arrays", function()
  it("takes tables, numbers, arrays and tables of arrays", function()
    same(np.array({ { 1, 2 }, { 3, 4 } }), "float32", { { 1, 2 }, { 3, 4 } })
    same(np.array({ 1, 2 }, "int32"), "int32", { 1, 2 })
    same(np.array({ 1, 2 }, { dtype = "int64" }), "int64", { 1, 2 })
    assert.equal(0, np.array(3).rank)
    local a = np.array({ 1, 2 })
    local b = np.array(a)
    b[0] = 9
    assert.equal(1, a[0])
    same(np.array({ a, b }), "float32", { { 1, 2 }, { 9, 2 } })
  end)

  it("makes identity matrices, whose rows are one-hot", function()
    same(np.eye(2), "float32", { { 1, 0 }, { 0, 1 } })
    same(np.eye(3, { dtype = "int32" }):take(np.array({ 2, 0 }, "int32"), 0), "int32", { { 0, 0, 1 }, { 1, 0, 0 } })
    same(np.eye(2, 3), "float32", { { 1, 0, 0 }, { 0, 1, 0 } })
    same(np.eye(2, 3, 1, "int8"), "int8", { { 0, 1, 0 }, { 0, 0, 1 } })
    same(np.eye(3, { M = 2, k = -2 }), "float32", { { 0, 0 }, { 0, 0 }, { 1, 0 } })
    same(np.eye(2, "int32"), "int32", { { 1, 0 }, { 0, 1 } })  -- an order of its own, from before
    same(np.eye(2, 2, 7), "float32", { { 0, 0 }, { 0, 0 } })
    raises("invalid_argument", "np.eye: sizes must be at least 0, got 2 and -1", function() return np.eye(2, -1) end)
  end)

  it("takes other diagonals than the main one", function()
    same(np.diag({ 1, 2 }, 1), "float32", { { 0, 1, 0 }, { 0, 0, 2 }, { 0, 0, 0 } })
    same(np.diag({ 1 }, -1), "float32", { { 0, 0 }, { 1, 0 } })
    local a = np.arange(6):reshape(2, 3)
    same(np.diag(a, 1), "int64", { 1, 5 })
    same(np.diag(a, -1), "int64", { 3 })
    same(np.diag(a, { k = 3 }), "int64", {})
  end)

  it("makes powers and multiples", function()
    assert.is_true(np.allclose(np.logspace(-4, -1, 4), { 1e-4, 1e-3, 1e-2, 1e-1 }))
    same(np.logspace(0, 3, 4, { base = 2, dtype = "int32" }), "int32", { 1, 2, 4, 8 })
    same(np.logspace(0, 1, { num = 0 }), "float32", {})
    assert.is_true(np.allclose(np.geomspace(-1, -1000, 4), { -1, -10, -100, -1000 }))
    same(np.geomspace(1, 256, 9, "int64"), "int64", { 1, 2, 4, 8, 16, 32, 64, 128, 256 })
    assert.equal(0.7, np.geomspace(0.7, 9, 3, "float64")[0])
    raises("invalid_argument", "np.logspace: the count must be at least 0, got -1", function()
      return np.logspace(0, 1, -1)
    end)
    raises("invalid_argument", "np.geomspace: from -1 to 2 no number is", function() return np.geomspace(-1, 2) end)
  end)

  it("takes lengths and sums of exponentials that are too large on their way", function()
    local a, b = np.array({ 3e200, 0, 3 }, "float64"), np.array({ 4e200, 0, -4 }, "float64")
    assert.is_true(np.allclose(np.hypot(a, b), np.array({ 5e200, 0, 5 }, "float64")))
    same(np.hypot({ math.huge, 1 }, { 0 / 0, -math.huge }), "float32", { math.huge, math.huge })
    same(np.hypot(np.array({ 3 }, "int32"), 4), "float64", { 5 })
    -- Two numbers make a number, as all that Lua computes with them.
    assert.same({ 1, 5, 0.1 + 0.2, 1, 2 ^ 53 },
      { np.mod(2 ^ 25 + 1, 2), np.hypot(3, 4), np.add(0.1, 0.2), np.less(1, 2), np.maximum(2 ^ 53, 1) })
    assert.is_true(np.isnan(np.hypot({ 0 / 0 }, 1)):all())
    assert.is_true(np.allclose(np.logaddexp({ 1000, -2000 }, { 1000, -2000 }), { 1000.6931472, -1999.3068528 }))
    same(np.logaddexp({ -math.huge, -math.huge, math.huge }, { -math.huge, 3, math.huge }), "float32",
      { -math.huge, 3, math.huge })
  end)

  it("fills", function()
    same(np.zeros(2), "float32", { 0, 0 })
    same(np.ones({ 1, 2 }, "int8"), "int8", { { 1, 1 } })
    same(np.full({ 2 }, 7, { dtype = "float64" }), "float64", { 7, 7 })
    same(np.full_like(np.zeros({ 1, 2 }, "int32"), 7), "int32", { { 7, 7 } })
    same(np.diag({ 1, math.huge }), "float32", { { 1, 0 }, { 0, math.huge } })
    same(np.diag(np.arange(6):reshape(2, 3)), "int64", { 0, 4 })
    same(np.diag(np.arange(6):reshape(3, 2)), "int64", { 0, 3 })
    same(np.diag(np.zeros({ 0, 3 })), "float32", {})
    same(np.zeros_like(np.array({ 1, 2 }, "int32")), "int32", { 0, 0 })
    same(np.ones_like(np.zeros({ 2, 1 }), "int32"), "int32", { { 1 }, { 1 } })
    same(np.arange(4), "int64", { 0, 1, 2, 3 })
    same(np.arange(1, 2, 0.5), "float32", { 1, 1.5 })
    same(np.arange(3, 0, -1, { dtype = "int32" }), "int32", { 3, 2, 1 })
    same(np.arange(-1.5, 1, { dtype = "int8" }), "int8", { -1, 0, 0 })
    raises("out_of_memory", "no memory", function() return np.arange(2 ^ 45) end)
    raises("out_of_memory", "no memory", function() return np.linspace(0, 1, 2 ^ 45) end)
    raises("invalid_argument", "finite", function() return np.arange(1 / 0) end)
    same(np.linspace(0, 1, 3), "float32", { 0, 0.5, 1 })
    same(np.linspace(3, -1, 3, "float64"), "float64", { 3, 1, -1 })
    same(np.linspace(5, 7, 1), "float32", { 5 })
    same(np.linspace(5, 7, 0), "float32", {})
    assert.is_true(np.array_equal(np.linspace(0, 49, 50, "float64"), np.arange(50)))
    assert.is_true(np.array_equal(np.linspace(0, 49, 50, "int32"), np.arange(50)))
    assert.equal(0.3, np.linspace(-0.1, 0.3, 8, "float64")[7])
    same(np.linspace(0, 1, 4, { endpoint = false }), "float32", { 0, 0.25, 0.5, 0.75 })
    same(np.linspace(1, 0, { count = 1, endpoint = false }), "float32", { 1 })
    raises("invalid_argument", "not all whole", function() return np.linspace(0, 1, 3, "int32") end)
    raises("out_of_range", "300 is no uint8", function() return np.linspace(0, 300, 4, "uint8") end)
    raises("invalid_argument", "at least 0, got -1", function() return np.linspace(0, 1, -1) end)
    same(np.from_string("\1\0\255\255", { 2, 2 }, "int8"), "int8", { { 1, 0 }, { -1, -1 } })
    same(np.from_string("\1\0\255\255\0\128", { 3 }, "int16"), "int32", { 1, -1, -32768 })
    same(np.from_string("\1\0\255\255", { 2, 1 }, { dtype = "uint16" }), "int32", { { 1 }, { 65535 } })
    raises("shape_mismatch", "int16 (2) needs 4 bytes, got 3", np.from_string, "abc", { 2 }, "int16")
    raises("invalid_argument", 'must be a dtype such as flow.float32, or "int16" or "uint16", got \'long\'; did you '
      .. "mean 'int64'?", np.from_string, "", { 0 }, "long")
    raises("invalid_argument", "np.from_string(ffi.string(pointer, bytes), shape, dtype) makes an array of it",
      np.array, require("ffi").new("float[3]"))
  end)

  it("takes sizes one by one too", function()
    same(np.zeros(2, 3), "float32", { { 0, 0, 0 }, { 0, 0, 0 } })
    same(np.ones(1, 2, 2, "int32"), "int32", { { { 1, 1 }, { 1, 1 } } })
    same(np.ones(2, 1, { dtype = "int8" }), "int8", { { 1 }, { 1 } })
    assert.equal("(4, 0)", tostring(np.empty(4, 0).shape))
    raises("invalid_argument", "np.zeros: argument 2 ('dtype') must be a dtype", function() np.zeros({ 2 }, 3) end)
    raises("invalid_argument", "np.zeros takes at most 2 arguments (shape, dtype), got 3",
      function() np.zeros(2, 3, "int8", 4) end)
  end)

  it("refuses unknown options at the user's line, and says what is near", function()
    local problem = raises("invalid_argument", "did you mean 'dtype'", function() np.zeros(2, { dtpye = "int8" }) end)
    assert.truthy(problem.where:find("np_spec.lua:", 1, true))
  end)
end)

describe("operators", function()
  it("broadcast as NumPy does", function()
    local a = np.array({ { 1, 2, 3 }, { 4, 5, 6 } })
    same(a + np.array({ 10, 20, 30 }), "float32", { { 11, 22, 33 }, { 14, 25, 36 } })
    same(a * np.array({ { 2 }, { 3 } }), "float32", { { 2, 4, 6 }, { 12, 15, 18 } })
    same(10 - np.array({ 1, 2 }), "float32", { 9, 8 })
    same(np.array({ 7, -7 }) % 3, "float32", { 1, 2 })
    same(-np.array({ 1, -2 }), "float32", { -1, 2 })
    same(-np.array({ 1, -2 }, "int32"), "int32", { -1, 2 })
    same(np.array({ 1, 2 }) + { 1, 1 }, "float32", { 2, 3 })
    raises("shape_mismatch", "(2, 3)", function() return a + np.zeros({ 2 }) end)
  end)

  it("promote dtypes as NumPy does", function()
    local function dtype(a, b) return (np.zeros({ 1 }, a) + np.zeros({ 1 }, b)).dtype end
    assert.equal("float32", dtype("float32", "int8"))
    assert.equal("float32", dtype("uint8", "float32"))
    assert.equal("float64", dtype("float32", "int32"))
    assert.equal("float64", dtype("int64", "float32"))
    assert.equal("float64", dtype("float32", "float64"))
    assert.equal("int32", dtype("int8", "int32"))
    assert.equal("int32", dtype("int8", "uint8"))
    assert.equal("int64", dtype("int32", "int64"))
    assert.equal("bfloat16", dtype("bfloat16", "bfloat16"))
    assert.equal("float32", dtype("bfloat16", "float32"))
    assert.equal("float32", dtype("uint8", "bfloat16"))
    assert.equal("float64", dtype("bfloat16", "int32"))
    assert.equal("float16", dtype("float16", "float16"))
    assert.equal("float16", dtype("float16", "int8"))
    assert.equal("float16", dtype("uint8", "float16"))
    assert.equal("float32", dtype("float16", "float32"))
    assert.equal("float32", dtype("bfloat16", "float16"))
    assert.equal("float64", dtype("int32", "float16"))
  end)

  it("let a number take the dtype of its array", function()
    local bytes = np.array({ 1, 2 }, "uint8")
    assert.equal("float32", (np.zeros({ 1 }) + 0.5).dtype)
    assert.equal("uint8", (bytes + 1).dtype)
    same(bytes + 0.5, "float64", { 1.5, 2.5 })
    raises("out_of_range", "300 does not fit uint8", function() return bytes + 300 end)
    same(bytes / -4, "float64", { -0.25, -0.5 })
    same(600 / bytes, "float64", { 600, 300 })
    same(bytes:lt(300), "int8", { 1, 1 })
    same(bytes:eq(-1), "int8", { 0, 0 })
  end)

  it("let a table, or a number that joins it, hold what the array does", function()
    local ids, x = np.array({ 2 ^ 24 + 1, 2 ^ 24, 5 }, "int64"), np.array({ 0.1, 0.2 }, "float64")
    same(ids:eq({ 2 ^ 24 + 1, 2 ^ 24, 5 }), "int8", { 1, 1, 1 })
    same(np.array({ 1, 2 }, "int32") + { 1, 2 }, "int32", { 2, 4 })
    same(np.array({ 1, 2 }, "int32") + { 1, 2.5 }, "float64", { 2, 4.5 })
    same(np.array({ 1 }, "int8") + { 300 }, "int64", { 301 })
    same(x:eq({ 0.1, 0.2 }), "int8", { 1, 1 })
    same(np.array({ 1 }) + { 0.5 }, "float32", { 1.5 })
    same(np.eq(0.1, x), "int8", { 1, 0 })
    same(np.lt({ 0.1, 0.2 }, x), "int8", { 0, 0 })
    same(np.append(ids, 2 ^ 24 + 1), "int64", { 2 ^ 24 + 1, 2 ^ 24, 5, 2 ^ 24 + 1 })
    same(np.append(np.array({ 1 }, "int8"), 300), "int64", { 1, 300 })
    same(np.concat({ x, { 0.1 } }), "float64", { 0.1, 0.2, 0.1 })
    same(np.hstack({ { 0.1 }, x }), "float64", { 0.1, 0.1, 0.2 })
    same(np.isin(ids, { 2 ^ 24 + 1 }), "int8", { 1, 0, 0 })
    same(np.isin({ 0.1 }, x), "int8", { 1 })
    same(np.setdiff1d(ids, { 2 ^ 24 + 1 }), "int64", { 5, 2 ^ 24 })
    same(np.intersect1d({ 2 ^ 24 + 1 }, ids), "int64", { 2 ^ 24 + 1 })
    same(np.union1d(x, { 0.1 }), "float64", { 0.1, 0.2 })
    same(np.histogram(x, { 0, 0.1, 0.2, 0.3 }), "int64", { 0, 1, 1 })
    same(np.digitize(x, { 0.1, 0.2 }), "int64", { 1, 2 })
    assert.equal(1, np.searchsorted(x, 0.1, "right"))
    assert.equal(2, np.searchsorted(np.array({ 1, 2 }, "int8"), 300))
    assert.is_true(np.array_equal(x, { 0.1, 0.2 }))
    same(np.isclose({ 0.1, 0.2 }, x, 0, 0), "int8", { 1, 1 })
    same(np.dot(0.1, np.ones({ 1 }, "float64")), "float64", { 0.1 })
    same(np.outer({ 0.1 }, x), "float64", { { 0.1 * 0.1, 0.1 * 0.2 } })
    assert.equal(0.1 * 0.3 + 0.2 * 0.7, np.vdot(x, { 0.3, 0.7 }))
    same(np.linalg.solve({ { 0.1 } }, x:slice({ 0, 1 })), "float64", { 1 })
    assert.equal((0.1 * 0.1 + 0.2 * 0.9) / (0.1 + 0.9), np.average(x, nil, { 0.1, 0.9 }))
    assert.equal((0.1 + 0.2) * (0.2 - 0.1) / 2, np.trapezoid({ 0.1, 0.2 }, x))
    same(np.einsum("i,i->i", x, { 0.1, 0.2 }), "float64", { 0.1 * 0.1, 0.2 * 0.2 })
    assert.equal(0.1 / 0.3, np.interp(0.1, { 0, 0.3 }, { 0, 1 }))
    raises("invalid_argument", "expected a number, got the string 'a'", function() return ids + { "a" } end)
  end)

  it("divide integers into floats and keep their powers whole", function()
    same(np.array({ 1, 2 }, "int32") / 2, "float64", { 0.5, 1 })
    same(np.array({ 2, -3 }, "int32") ^ 3, "int32", { 8, -27 })
    same(np.array({ 2, 3 }, "int64") ^ 0, "int64", { 1, 1 })
    same(np.array({ 4, 9 }, "int32") ^ 0.5, "float64", { 2, 3 })
    same(np.array({ 2, -3 }) ^ 2, "float32", { 4, 9 })
    local a = np.array({ 5 }, "int32")
    local b = a ^ 1
    b[0] = 1
    assert.equal(5, a[0])
  end)

  it("compare element by element with methods and as a whole with ==", function()
    local a, b = np.array({ 1, 2, 3 }), np.array({ 1, 0, 4 })
    same(a:eq(b), "int8", { 1, 0, 0 })
    same(a:ne(b), "int8", { 0, 1, 1 })
    same(a:lt(b), "int8", { 0, 0, 1 })
    same(a:le(b), "int8", { 1, 0, 1 })
    same(a:gt(2), "int8", { 0, 0, 1 })
    same(a:ge(2), "int8", { 0, 1, 1 })
    assert.is_true(a == np.array({ 1, 2, 3 }))
    assert.is_false(a == b)
    assert.is_false(a == a:astype("float64"))
    assert.is_false(a == a:reshape(3, 1))
    assert.is_false(np.array({ 0 / 0 }) == np.array({ 0 / 0 }))
    raises("invalid_argument", "a:lt(b)", function() return a < b end)
  end)

  it("give way to the operators of other kinds", function()
    local other = setmetatable({}, { __add = function() return "theirs" end })
    assert.equal("theirs", np.array({ 1 }) + other)
    raises("invalid_argument", "wants an ndarray", function() return np.array({ 1 }) + "2" end)
    raises("invalid_argument", "a:transpose: entry 1 of a list is 'x', wanted numbers",
      function() return np.eye(2):transpose("x") end)
    raises("invalid_argument", "wants the number of an axis", function() return np.eye(2):take(0, "x") end)
    raises("invalid_argument", "('decimals') must be an integer", function() return np.round(1.5, { 1 }) end)
    raises("invalid_argument", "('decimals') must be an integer", function() return np.round(1.5, 1 / 0) end)
    raises("invalid_argument", "permutation wants", function() return np.random.permutation() end)
    raises("invalid_argument", "np.load: argument 1 ('path') must be a string, got 3", function() return np.load(3) end)
    raises("invalid_argument", "sizes", function() return require "moonflow".kaiming_initializer({ 2.5 }) end)
  end)
end)

describe("reductions", function()
  local a = np.array({ { 1, 2, 3 }, { 4, 5, 9 } })

  it("give a Lua number without an axis", function()
    assert.equal(24, a:sum())
    assert.equal(4, a:mean())
    assert.equal(9, a:max())
    assert.equal(1, a:min())
    assert.equal(1080, a:prod())
    assert.equal(5, a:argmax())
    assert.equal(0, np.argmin(a))
    assert.is_true(math.abs(a:std() - 2.5819888) < 1e-6) -- numpy.std of the same
    assert.is_true(math.abs(np.std({ 1, 2, 4 }, { ddof = 1 }) - math.sqrt(7 / 3)) < 1e-15)
    assert.equal(1, np.var({ 1, 2, 3 }, { ddof = 1 }))
    assert.equal(3.5, np.var({ { 1, 2, 3 }, { 4, 5, 6 } }, { axis = { 0, 1LL }, ddof = 1 }):item())
    same(np.var({ { 1, 2, 3 } }, 1, { ddof = 1 }), "float32", { 1 })
    same(np.var({ { 1, 3 }, { 2, 6 } }, 1, { ddof = 1 }), "float32", { 2, 8 })
    same(np.var({ { 1, 3 }, { 2, 6 } }, { axis = 0, ddof = 1, keepdims = true }), "float32", { { 0.5, 4.5 } })
    raises("invalid_argument", "a:std: ddof 1 leaves nothing to divide by, of 1 element", function()
      return np.std({ 5 }, { ddof = 1 })
    end)
    assert.is_true(math.abs(a:var() - 6.6666667) < 1e-6)
    assert.equal(6, np.sum({ 1, 2, 3 }))
  end)

  it("give an array along an axis", function()
    same(a:sum(0), "float32", { 5, 7, 12 })
    same(a:sum(-1), "float32", { 6, 18 })
    same(a:sum({ 0, 1 }), "float32", 24)
    same(a:mean({ axis = 1, keepdims = true }), "float32", { { 2 }, { 6 } })
    same(a:max(1, { keepdims = true }), "float32", { { 3 }, { 9 } })
    same(a:sum(nil, { keepdims = true }), "float32", { { 24 } })
    same(a:argmax(1), "int64", { 2, 2 })
    same(np.argmax(a, 0), "int64", { 1, 1, 1 })
    same(a:argmin(1, { keepdims = true }), "int64", { { 0 }, { 0 } })
    same(a:argmin({ keepdims = true }), "int64", { { 0 } })
    raises("invalid_argument", "did you mean 'keepdims'", function() a:sum(0, { keepdim = true }) end)
    assert.has_error(function() a:sum(2) end)
  end)

  it("add integers without overflow and average them as floats", function()
    local bytes = np.full({ 1000 }, 255, "uint8")
    assert.equal(255000, bytes:sum())
    assert.equal("int64", bytes:reshape(10, 100):sum(0).dtype)
    assert.equal(255, bytes:mean())
    assert.equal(255, bytes:max())
    assert.equal(2, np.sum(np.array({ 1, 2, 3 }, "int64"):eq(np.array({ 1, 0, 3 }, "int32"))))
  end)

  it("give booleans for any and all", function()
    assert.is_true(a:all())
    assert.is_false((a - 1):all())
    assert.is_true((a - 1):any())
    assert.is_false(np.zeros(3):any())
    same(np.array({ { 0, 1 }, { 2, 3 } }):all(1), "int8", { 0, 1 })
    assert.is_true(np.array({ 0.25 }):any())
  end)

  it("refuse what has no answer", function()
    raises("invalid_argument", "no elements", function() np.zeros({ 0, 3 }):max() end)
    raises("invalid_argument", "no elements", function() np.zeros({ 0 }):argmax() end)
    raises("invalid_argument", "a:argmax takes one axis, got 2", function() a:argmax({ axis = { 0, 1 } }) end)
    assert.equal(0, np.zeros({ 0 }):sum())
  end)

  it("of an empty array ask only for what they go over", function()
    local rows = np.zeros({ 0, 3 }, "int32")
    for _, name in ipairs({ "mean", "std", "var", "max", "min", "argmax", "argmin" }) do
      local over_columns = rows[name](rows, 1)
      assert.equal("(0)", tostring(over_columns.shape))
      assert.equal(name:find("^arg") and "int64" or name:find("^m[ai][xn]") and "int32" or "float64",
        over_columns.dtype)
      assert.equal("(0, 1)", tostring(rows[name](rows, { axis = -1, keepdims = true }).shape))
      raises("invalid_argument", "a:" .. name .. " along axis 0 of an array of shape (0, 3), which has no elements",
        function() rows[name](rows, 0) end)
      raises("out_of_range", "axis 5 is outside rank 2", function() rows[name](rows, 5) end)
    end
    assert.equal("(0)", tostring(rows:std(1, { ddof = 1 }).shape))
  end)
end)

describe("shapes", function()
  local a = np.arange(6):reshape(2, 3)

  it("reshape, ravel and transpose", function()
    same(a, "int64", { { 0, 1, 2 }, { 3, 4, 5 } })
    same(a:reshape({ 3, -1 }), "int64", { { 0, 1 }, { 2, 3 }, { 4, 5 } })
    assert.equal("(6)", tostring(a:ravel().shape))
    same(a:transpose(), "int64", { { 0, 3 }, { 1, 4 }, { 2, 5 } })
    same(a:transpose(-1, 0), "int64", { { 0, 3 }, { 1, 4 }, { 2, 5 } })
    same(np.transpose(a, { 0, 1 }), "int64", a:totable())
    assert.has_error(function() a:reshape(4, -1) end)
  end)

  it("cast and copy", function()
    same(np.array({ 1.9, -1.9 }):astype("int32"), "int32", { 1, -1 })
    local c = a:astype("int64")
    c:set(0, 0, 42)
    assert.equal(0, a:at(0, 0))
    raises("invalid_argument", "a:copy takes no arguments and gives a new array; a:set(\"...\", values) writes into",
      function() c:copy(a) end)  -- Torch7's, which writes
  end)

  it("join", function()
    same(np.concat({ { 1, 2 }, { 3 } }), "float32", { 1, 2, 3 })
    same(np.concat({ a, a }, 1), "int64", { { 0, 1, 2, 0, 1, 2 }, { 3, 4, 5, 3, 4, 5 } })
    same(np.stack({ np.array({ 1 }), np.array({ 2 }, "int32") }, { axis = 1 }), "float64", { { 1, 2 } })
    local numbers = a:totable()
    np.expand_dims(a, 0):set("...", 9)  -- a copy
    np.squeeze(a):set("...", 9)
    same(np.squeeze(np.expand_dims(a, 0)), "int64", numbers)
    raises("invalid_argument", "at least one", function() np.concat({}) end)
  end)

  it("take", function()
    same(a:take({ 0, 5, -1 }), "int64", { 0, 5, 5 })
    same(a:take({ 1, 0 }, 0), "int64", { { 3, 4, 5 }, { 0, 1, 2 } })
    same(a:take(np.array({ 2 }, "int32"), 1), "int64", { { 2 }, { 5 } })
    assert.has_error(function() a:take({ 6 }) end)
    raises("dtype_mismatch", "wants integers", function() a:take(np.array({ 1 })) end)
  end)

  it("go through rows", function()
    local seen = {}
    for i, row in a:rows() do seen[#seen + 1] = i .. ":" .. row:sum() end
    assert.same({ "0:3", "1:12" }, seen)
    same(a:rows(1, 1), "int64", { { 3, 4, 5 } })
  end)
end)

describe("what an array lacks", function()
  it("is named, with what it is called here", function()
    local a = np.zeros({ 2, 3 })
    raises("not_found", "an ndarray has no 'T'; did you mean a:transpose()?", function() return a.T end)
    raises("not_found", "an ndarray has no 'shap'; did you mean shape?", function() return a.shap[0] end)
    raises("not_found", "an ndarray has no 'reshap'; did you mean reshape?", function() return a:reshap(6) end)
    raises("not_found", "an ndarray has no 'expand_dims'; did you mean np.expand_dims(a)?", function()
      return a:expand_dims(0)
    end)
    raises("not_found", "an ndarray has no 'fill'; did you mean a:set(\"...\", value)?", function() a:fill(1) end)
    a:set("...", 1)
    assert.equal(6, a:sum())
    raises("not_found", "an ndarray has no 'clone'; did you mean a:copy()?", function() return a:clone() end)
    raises("not_found", "an ndarray has no 'mm'; did you mean np.matmul?", function() return a:mm(a) end)
    raises("not_found", "an ndarray has no 'backpropagate'", function() return a:backpropagate() end)
    raises("not_found", "an ndarray has no '1:, -1'; did you mean a:slice(\"1:, -1\")?", function()
      return a["1:, -1"]
    end)
    raises("invalid_argument", "got a table; a:at(i, j) and a:set(i, j, value) take several", function()
      a[{ 0, 1 }] = 2
    end)
  end)
end)

describe("a mistake", function()
  local a = np.zeros({ 2, 3 })

  it("of a point in the place of a colon is named", function()
    for name in ([[sum prod mean std var max min any all argmax argmin ravel transpose astype take slice rows ptr
        at item reshape copy tobytes totable release address]]):gmatch("%S+") do
      local wanted = ("a:%s: expected an ndarray before the colon, got "):format(name)
      raises("invalid_argument", wanted, function() a[name]() end)
      raises("invalid_argument", wanted, function() a[name](1, 2) end)
    end
  end)

  it("is told by the name that was called, and not by the op that does the work", function()
    for name, call in pairs({
      ["np.zeros: shape: axis 0 has the negative size -1"] = function() np.zeros({ -1 }) end,
      ["np.zeros_like has no option 'x'"] = function() np.zeros_like(a, { x = 1 }) end,
      ["np.empty: a size overflows"] = function() np.empty({ 2 ^ 40, 2 ^ 40 }) end,
      ["np.ones: shape has the size -1, below 0"] = function() np.ones({ -1 }) end,
      ["np.full: shape has the size -2, below 0"] = function() np.full({ -2 }, 1) end,
      ["np.arange: a range of 1e+300 elements"] = function() np.arange(1e300) end,
      ["np.eye: argument 1 ('size') must be an integer, got 1e+300"] = function() np.eye(1e300) end,
      ["np.concat: axis 2 is outside rank 2"] = function() np.concat({ a, a }, 2) end,
      ["np.stack: axis 7 is outside rank 3"] = function() np.stack({ a, a }, 7) end,
      ["np.matmul: "] = function() np.matmul(a, a) end,
      ["np.dot: inner sizes differ: a is (1), b is (2), so 1 against 2"] = function() np.dot({ 1 }, { 1, 2 }) end,
      ["np.diag wants an array of rank 1 or 2, got ()"] = function() np.diag(3) end,
      ["np.random.uniform: shape has the size -1"] = function() np.random.uniform(0, 1, { -1 }) end,
      ["np.random.normal: mean must be finite"] = function() np.random.normal(0 / 0, 1) end,
      ["np.random.randint: shape has the size -1"] = function() np.random.randint(0, 9, { -1 }) end,
      ["np.load_png: argument 1 ('path') must be a string, got nil"] = function() np.load_png() end,
      ["a:sum: axis 5 is outside rank 2"] = function() a:sum(5) end,
      ["a:mean: option 'axis': expected an integer"] = function() a:mean(0.5) end,
      ["a:std: "] = function() a:std({ axis = 2, ddof = 1 }) end,
      ["a:argmax: axis 2 is outside rank 2"] = function() a:argmax(2) end,
      ["a:max of an array of shape (0)"] = function() np.zeros({ 0 }):max() end,
      ["a:astype: argument 1 ('dtype') must be a dtype such as flow.float32, got 'double'; did you mean 'float64'?"] =
        function() a:astype("double") end,
      ["np.zeros: argument 2 ('dtype') must be a dtype such as flow.float32, got 'int3'; did you mean 'int32'?"] =
        function() np.zeros(3, "int3") end,
      ["a:astype has no option 'copy'"] = function() a:astype("int32", { copy = false }) end,
      ["np.load has no option 'mmap_mode'"] = function() np.load("x.npy", { mmap_mode = "r" }) end,
      ["np.save takes 2 arguments (path, a) and no options"] = function() np.save("x.npy", a, true) end,
      ["np.median of no values"] = function() np.median(np.zeros({ 0 })) end,
      ["np.exp wants an ndarray, a table or a number, got 5LL; np.array({ 5LL }, flow.int64) is an array"] =
        function() np.exp(loadstring("return 5LL")()) end,
      ["np.full: argument 2 ('value') must be a number, got an open file"] = function() np.full(2, io.stdout) end,
      ["a:transpose: perm {0} names 1 axes"] = function() a:transpose(0) end,
      ["a:take wants an ndarray, a table or a number, got nil"] = function() a:take() end,
      ["a:take: indices at () is 9, outside [0, 6)"] = function() a:take(9) end,
      ["a:reshape: expected a list of sizes or a shape, got nil"] = function() a:reshape() end,
      ["a:rows: first: expected an integer, got the string 'x'"] = function() a:rows("x", 1) end,
    }) do
      local fine, problem = pcall(call)
      assert.is_false(fine)
      local text = tostring(problem):gsub("^%S+:%d+: ", "")
      assert.equal(name, text:sub(1, #name))
    end
  end)
end)

describe("slices", function()
  local a = np.arange(24):reshape(2, 3, 4)

  it("read NumPy's text", function()
    same(a:slice("0"), "int64", { { 0, 1, 2, 3 }, { 4, 5, 6, 7 }, { 8, 9, 10, 11 } })
    same(a:slice("1, 1:, ::2"), "int64", { { 16, 18 }, { 20, 22 } })
    same(a:slice("..., -1"), "int64", { { 3, 7, 11 }, { 15, 19, 23 } })
    same(a:slice(":, 0, ::-1"), "int64", { { 3, 2, 1, 0 }, { 15, 14, 13, 12 } })
    same(a:slice("0, 0, 3:0:-2"), "int64", { 3, 1 })
    same(a:slice("0, 0, 1:100"), "int64", { 1, 2, 3 })
    same(a:slice("0, 0, -3:-1"), "int64", { 1, 2 })
    assert.equal("(0, 3, 4)", tostring(a:slice("5:").shape))
    local rows = a:slice("1:")
    rows[0] = 0
    assert.equal(12, a:at(1, 0, 0))
    assert.equal(23, a:slice("1, 2, 3"))
  end)

  it("take numbers and tables", function()
    same(a:slice(1, { 0, 2 }, { nil, nil, 3 }), "int64", { { 12, 15 }, { 16, 19 } })
    same(a:slice({}, 0, { start = 1, stop = 3 }), "int64", { { 1, 2 }, { 13, 14 } })
    assert.equal("(2, 3, 4)", tostring(a:slice().shape))
  end)

  it("are set, with broadcasting and casts, as NumPy does", function()
    local b = np.zeros({ 3, 4 })
    b[0] = { 1, 2, 3, 4 }
    b[1] = np.array({ 5 }, "int64")
    b[-1] = { 6 }
    same(b, "float32", { { 1, 2, 3, 4 }, { 5, 5, 5, 5 }, { 6, 6, 6, 6 } })
    b[2] = 0
    b:set("1:, ::-2", { { 6, 7 } })
    same(b, "float32", { { 1, 2, 3, 4 }, { 5, 7, 5, 6 }, { 0, 7, 0, 6 } })
    b:set("..., 0", np.array({ 8, 9, 10 }, "int32"))
    b:set({ 0, 2 }, 2, -1)
    same(b, "float32", { { 8, 2, -1, 4 }, { 9, 7, -1, 6 }, { 10, 7, 0, 6 } })
    b:set("1:", b:rows(0, 2))
    same(b, "float32", { { 8, 2, -1, 4 }, { 8, 2, -1, 4 }, { 9, 7, -1, 6 } })
    b:set("0, 0", 3)
    b:set("3:", { 1, 2, 3, 4 })  -- no place at all
    assert.equal(3, b:at(0, 0))
    local classes = np.zeros({ 2 }, "int32")
    classes:set(":", np.argmax(np.eye(2), 1))
    same(classes, "int32", { 0, 1 })
  end)

  it("take what a job gives of a batch of one: axes of size 1 at the front are no matter", function()
    local b = np.zeros({ 3, 2 })
    b[1] = np.array({ { 5, 6 } })
    b:set("2:", np.ones({ 1, 1, 2 }))
    same(b, "float32", { { 0, 0 }, { 5, 6 }, { 1, 1 } })
    b[np.array({ 0 }, "int64")] = np.full({ 1, 1, 2 }, 7)
    same(b[0], "float32", { 7, 7 })
    raises("shape_mismatch", "the place is float32 (2), the value is float32 (2, 1)", function()
      b[0] = np.ones({ 2, 1 })
    end)
  end)

  it("are not set to what does not fit", function()
    local b = np.zeros({ 2, 3 }, "uint8")
    raises("shape_mismatch", "the place is uint8 (3), the value is uint8 (2)", function() b[0] = { 1, 2 } end)
    raises("shape_mismatch", "the place is uint8 (2, 2), the value is uint8 (3, 1)", function()
      b:set(":, 1:", { { 1 }, { 2 }, { 3 } })
    end)
    raises("dtype_mismatch", "the place is uint8, the value is float32; :astype", function() b[0] = np.ones(3) end)
    raises("out_of_range", "numbers from 0 to 256, and the place is uint8", function()
      b[0] = np.array({ 0, 256, 1 }, "int32")
    end)
    raises("out_of_range", "256 is no uint8", function() b:set(":", 256) end)
    local outside = raises("out_of_range", "index 2 is out of range for axis 0", function() b[2] = { 1, 2, 3 } end)
    assert.equal(1, (outside.message:find("index", 1, true)))
    raises("invalid_argument", "a number, a table or an ndarray, got true", function() b:set("0:1", true) end)
    raises("invalid_argument", "an ndarray has no field 'shape' that can be set; a:reshape(sizes) is the same memory "
      .. "in another shape", function() b.shape = { 3, 2 } end)
    raises("invalid_argument", "no field 'dtype' that can be set; a:astype(dtype) is a copy in another dtype",
      function() b.dtype = "int32" end)
    raises("invalid_argument", "no field '0:2' that can be set; a:set(\"0:2\", value) sets such a part",
      function() b["0:2"] = 1 end)
    raises("invalid_argument", "no field 'foo' that can be set; a[i] = value and a:set(i, j, value) set elements, from "
      .. "0 on", function() b.foo = 1 end)
    same(b, "uint8", { { 0, 0, 0 }, { 0, 0, 0 } })
    b:release()
    raises("wrong_state", "released", function() b[0] = { 1, 2, 3 } end)
  end)

  it("are copies", function()
    local part = a:slice("0:1")
    part:set(0, 0, 0, 99)
    assert.equal(0, a:at(0, 0, 0))
  end)

  it("say what is wrong", function()
    raises("out_of_range", "arrays count from 0", function() a:slice("2") end)
    raises("out_of_range", "4 entries", function() a:slice("0, 0, 0, 0") end)
    raises("invalid_argument", "'1:x'", function() a:slice("0, 1:x") end)
    raises("invalid_argument", "elements are compared by a:eq(b)", function() return a[a == 0] end)
    raises("invalid_argument", "np.logical_not(mask)", function() a[not a:gt(0)] = 1 end)
    raises("invalid_argument", "step; np.expand_dims(a, axis) adds an axis", function() a:slice("0, None") end)
    raises("invalid_argument", "step; a:take({ 0, 2 }, axis) picks several", function() a:slice("[0, 2]") end)
    raises("invalid_argument", "step", function() a:slice("::0") end)
    raises("invalid_argument", "only once", function() a:slice("..., ...") end)
    raises("invalid_argument", "start, start:stop", function() a:slice("1:2:3:4") end)
    raises("invalid_argument", "whole number", function() a:slice({ 0.5 }) end)
    raises("invalid_argument", "axis 0: a table is not a whole number", function() a:slice({ { 0, 1 } }) end)
    raises("invalid_argument", "wants a number", function() a:slice({}, true) end)
  end)
end)

describe("functions", function()
  it("work on arrays, tables and numbers", function()
    same(np.sqrt({ 4, 9 }), "float32", { 2, 3 })
    same(np.sqrt(np.array({ 4 }, "int32")), "float64", { 2 })
    assert.equal(math.exp(1), np.exp(1))
    same(np.abs(np.array({ -2, 2 }, "int8")), "int8", { 2, 2 })
    same(1 / np.abs(np.array({ 0, -0 })), "float32", { math.huge, math.huge })
    same(np.sign(np.array({ -2, 0, 2 }, "int32")), "int32", { -1, 0, 1 })
    assert.is_true(np.isnan(np.sign(0 / 0)) == 1 and np.isnan(np.sign(np.array { 3, 0 / 0 }))[1] == 1)
    same(np.round({ 0.5, 1.5, -0.5 }), "float32", { 0, 2, 0 })
    same(np.round({ 1.26, -0.14 }, 1), "float32", np.array({ 1.3, -0.1 }):totable())
    same(np.round(np.array({ 100, 7 }, "int8"), 1), "int8", { 100, 7 })
    same(np.round(np.array({ 1e9 }, "int32"), 2), "int32", { 1e9 })
    same(np.round(np.array({ 15, 25, -26 }, "int32"), -1), "int32", { 20, 20, -30 })
    assert.equal(1200, np.round(1234.5, -2))
    assert.is_true(np.allclose(np.arctan2({ 1, -1, 0, 0 }, { -1, -1, -1, 1 }),
      np.array { 0.75, -0.75, 1, 0 } * math.pi))
    for _, name in ipairs({ "floor", "ceil", "rint", "trunc", "round" }) do
      assert.equal("[9007199254740993]", tostring(np[name](np.array({ 9007199254740993LL }, "int64"))), name)
    end
    same(np.maximum({ 1, 5 }, 3), "float32", { 3, 5 })
    same(np.clip(np.array({ -1, 0.5, 2 }), 0, 1), "float32", { 0, 0.5, 1 })
    same(np.where({ 1, 0 }, { 1, 2 }, 0), "float32", { 1, 0 })
    same(np.isnan(np.array({ 0 / 0, 1 })), "int8", { 1, 0 })
    same(np.isfinite(np.array({ 0 / 0, 1, math.huge })), "int8", { 0, 1, 0 })
    same(np.isinf(np.array({ 0 / 0, 1, -math.huge })), "int8", { 0, 0, 1 })
    same(np.isfinite(np.array({ -128, 3 }, "int8")), "int8", { 1, 1 })
    same(np.matmul({ { 1, 2 } }, { { 3 }, { 4 } }), "float32", { { 11 } })
    same(np.dot({ { 1, 2 } }, { { 3 }, { 4 } }), "float32", { { 11 } })
    assert.equal(32, np.dot({ 1, 2, 3 }, { 4, 5, 6 }))
    same(np.matmul({ { { 1, 2 } }, { { 5, 6 } } }, np.array({ { 3 }, { 4 } })), "float32", { { { 11 } }, { { 39 } } })
  end)

  it("compare", function()
    assert.is_true(np.array_equal({ 1, 2 }, np.array({ 1, 2 }, "int32")))
    assert.is_false(np.array_equal({ 1, 2 }, { 1, 2, 3 }))
    assert.is_true(np.allclose({ 1, 2 }, { 1 + 1e-7, 2 }))
    assert.is_false(np.allclose({ 1 }, { 1.01 }))
    assert.is_true(np.allclose({ 1 }, { 1.01 }, 0.1))
    assert.is_true(np.allclose({ 1 }, { 1.01 }, { atol = 0.1 }))
    assert.is_false(np.allclose({ 1 }, { math.huge }))
    same(np.isclose({ 1, math.huge, -math.huge, 0 / 0, 2 }, { 1 + 1e-7, math.huge, math.huge, 0 / 0, 3 }), "int8",
      { 1, 1, 0, 0, 0 })
    same(np.isclose({ 0 / 0, 1 }, { 0 / 0, 0 / 0 }, { equal_nan = true }), "int8", { 1, 0 })
    same(np.clip({ -2, 0, 2 }, { a_max = 1 }), "float32", { -2, 0, 1 })
    same(np.clip({ -2, 0, 2 }, { 0, 1, 0 }, 1), "float32", { 0, 1, 1 })
    same(np.trunc({ -1.5, 1.5 }), "float32", { -1, 1 })
    same(np.log2({ 1, 8, 2 ^ 60 }), "float32", { 0, 3, 60 })
    same(np.log10({ 1, 1000, 1e30 }), "float32", { 0, 3, 30 })
    for k = -1074, 1023 do assert.equal(k, np.log2(2 ^ k)) end
    for k = -300, 300 do assert.equal(k, np.log10(tonumber("1e" .. k))) end
    assert.equal(math.pi, np.deg2rad(180))
    assert.equal(180, np.rad2deg(math.pi))
    same(np.floor_divide(np.array({ -7, 7 }, "int32"), 2), "int32", { -4, 3 })
    same(np.floor_divide(np.array({ 1, -1 }), 0.1), "float32", { 9, -10 }) -- float32's 0.1 is more than a tenth
    same(np.logical_xor({ 0, 2, 0, 3 }, { 0, 0, 1, 1 }), "int8", { 0, 1, 1, 0 })
    same(np.nan_to_num({ 0 / 0, math.huge, -math.huge, 2 }, { neginf = -1 }), "float32",
      { 0, 2 ^ 128 - 2 ^ 104, -1, 2 })
    same(np.nan_to_num(np.array({ 1, 2 }, "int32")), "int32", { 1, 2 })
  end)
end)

describe("numbers", function()
  it("in give numbers out", function()
    assert.equal(0, np.isclose(1, 2))
    assert.is_true(np.allclose(1, 1))
    assert.is_false(np.allclose(1, 2))
    assert.equal(1, np.isin(1.5, { 1.5, 2 }))
    assert.equal(2, np.digitize(2.5, { 1, 2, 3 }))
    assert.equal(0, np.nan_to_num(0 / 0))
    assert.equal(2, np.clip(2))
  end)

  it("that an integer dtype does not hold are refused", function()
    raises("out_of_range", "np.arange: the numbers go from 250 to 259, and do not fit uint8", function()
      np.arange(250, 260, 1, "uint8")
    end)
    raises("out_of_range", "np.geomspace: 1000 does not fit int8", function() np.geomspace(1, 1000, 4, "int8") end)
    raises("out_of_range", "np.logspace: 1000 does not fit", function() np.logspace(1, 3, 4, { dtype = "uint8" }) end)
    same(np.arange(5, 0, -2, "uint8"), "uint8", { 5, 3, 1 })
  end)
end)

it("np.clip without limits is a copy", function()
  local a = np.ones { 2 }
  assert.is_false(rawequal(a, np.clip(a)))
  same(np.clip({ 1, 2 }), "float32", { 1, 2 })
end)
