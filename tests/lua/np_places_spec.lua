-- flow.np: where something is, and what is picked, written or left out there, also by arrays as indices. Golden values
-- are NumPy's.
local checks = require "checks"
local np = require("moonflow").np

local raises, same = checks.raises, checks.same

local a = np.array({ { 3, 1, 2 }, { 9, 7, 8 } })
local none = np.zeros({ 0 })

local function places(list) return np.array(list, "int64") end
local function mask(list) return np.array(list, "int8") end

describe("places", function()
  it("finds what is not 0", function()
    same(np.flatnonzero(a:gt(2)), "int64", { 0, 3, 4, 5 })
    same(np.flatnonzero({ 0, 0 }), "int64", {})
    same(np.flatnonzero(none), "int64", {})
    local rows, columns = np.nonzero(a:gt(2))
    same(rows, "int64", { 0, 1, 1, 1 })
    same(columns, "int64", { 0, 0, 1, 2 })
    assert.equal(3, select("#", np.nonzero(np.zeros({ 2, 0, 3 }))))
  end)

  it("picks by a condition", function()
    same(np.compress({ 0, 1 }, a, 0), "float32", { { 9, 7, 8 } })
    same(np.delete(a, 0, 0), "float32", { { 9, 7, 8 } })
    same(np.delete(a, { -1, 0, 0 }, { axis = 1 }), "float32", { { 1 }, { 7 } })
    same(np.delete(a, np.array({ 1, 4 }, "int64")), "float32", { 3, 2, 9, 8 })
    same(np.delete(a, np.zeros({ 0 }, "int64"), 0), "float32", { { 3, 1, 2 }, { 9, 7, 8 } })
    same(np.delete(a, np.array({ 0, 1, 1 }, "int8"), 1), "float32", { { 3 }, { 9 } })
    same(np.delete(a, np.gt(a, 2)), "float32", { 1, 2 })
    raises("shape_mismatch", "np.delete: a mask of 2 for an axis of size 3", function()
      return np.delete(a, np.zeros({ 2 }, "int8"), 1)
    end)
    for _, index in ipairs { 2, -3 } do
      raises("out_of_range", "np.delete: index " .. index .. " is out of range for axis 0 of size 2", function()
        return np.delete(a, { 0, index }, 0)
      end)
    end
    raises("dtype_mismatch", "np.delete wants integers", function() return np.delete(a, np.ones { 1 }, 0) end)
    same(np.compress({ 1, 0, 1 }, a, -1), "float32", { { 3, 2 }, { 9, 8 } })
    same(np.compress(a:gt(2), a), "float32", { 3, 9, 7, 8 })
    raises("shape_mismatch", "a condition (3) for 2 slices along axis 0", function()
      return np.compress({ 0, 1, 1 }, a, 0)
    end)
  end)

  it("are written through a mask", function()
    local b = a:copy()
    assert.is_nil(np.putmask(b, b:gt(7), 0))
    same(b, "float32", { { 3, 1, 2 }, { 0, 7, 0 } })
    np.putmask(b, b:eq(0), { 10, 20, 30 })
    same(b, "float32", { { 3, 1, 2 }, { 10, 7, 30 } })
    np.putmask(b:rows(0, 1), { { 1, 0, 0 } }, b:rows(1, 1))
    same(b, "float32", { { 10, 1, 2 }, { 10, 7, 30 } })
    local whole = np.array({ 1, 2 }, "int8")
    np.putmask(whole, { 0, 1 }, np.array({ 5 }, "int64"))
    same(whole, "int8", { 1, 5 })
    raises("shape_mismatch", "np.putmask: the mask is (3), the array (2, 3)", function()
      np.putmask(b, { 1, 0, 1 }, 0)
    end)
    np.putmask(whole, { 1, 0 }, { 9, 9 })
    same(whole, "int8", { 9, 5 })
    raises("shape_mismatch", "the place is float32 (2, 3), the value is float32 (2)", function()
      np.putmask(b, b:gt(7), { 1, 2 })
    end)
    raises("dtype_mismatch", "np.putmask: the place is int8, the value is float32; :astype says", function()
      np.putmask(whole, whole:gt(0), np.ones({ 2 }))
    end)
    raises("out_of_range", "np.putmask: the value has numbers from 300 to 300, and the place is int8", function()
      np.putmask(whole, whole:gt(0), np.array({ 300 }, "int32"))
    end)
    assert.has_error(function() np.putmask(whole, whole:gt(0), 300) end)
    assert.has_error(function() np.putmask(whole, whole:gt(0), { 0.5, 0.5 }) end)
    raises("invalid_argument", "np.putmask: argument 1 ('a') must be", function() np.putmask({ 1 }, { 1 }, 0) end)
  end)

  it("are those of a condition alone", function()
    local rows, columns = np.where(a:gt(7))
    same(rows, "int64", { 1, 1 })
    same(columns, "int64", { 0, 2 })
    raises("invalid_argument", "np.where wants an ndarray, a table or a number, got nil", function()
      return np.where(a:gt(2), 1)
    end)
  end)
end)

describe("an array as an index", function()
  it("picks what a mask says", function()
    same(a[a:gt(2)], "float32", { 3, 9, 7, 8 })
    same(a[mask { 0, 1 }], "float32", { { 9, 7, 8 } })
    same(a[a:gt(100)], "float32", {})
    assert.equal("(0, 3)", tostring(a[mask { 0, 0 }].shape))
    same(a:at(mask { 0, 1 }, 2), "float32", { 8 })
    same(a:at(1, mask { 1, 0, 1 }), "float32", { 9, 8 })
    same(np.arange(8):reshape(2, 2, 2)[mask { { 0, 1 }, { 1, 0 } }], "int64", { { 2, 3 }, { 4, 5 } })
    same(none[none:gt(0)], "float32", {})
  end)

  it("picks places, the rows of one and of several an element for each", function()
    same(a[places { 1, -2, 1 }], "float32", { { 9, 7, 8 }, { 3, 1, 2 }, { 9, 7, 8 } })
    same(a[np.array({ { 1 }, { 0 } }, "uint8")], "float32", { { { 9, 7, 8 } }, { { 3, 1, 2 } } })
    same(a[places(1)], "float32", { 9, 7, 8 })
    same(a:at(np.arange(2), places { 2, -3 }), "float32", { 2, 9 })
    same(a:at(places { { 1 }, { 0 } }, places { 0, 2 }), "float32", { { 9, 8 }, { 3, 2 } })
    same(a:at(-1, places { 0, 2 }), "float32", { 9, 8 })
    assert.equal(8, a:at(places(1), 2))
    assert.equal("(0, 3)", tostring(a[places {}].shape))
    assert.equal(2, np.arange(3)[places { 2 }]:item())
    local picked = a[places { 0 }]
    picked[0] = 0
    assert.equal(3, a:at(0, 0))  -- a copy
  end)

  it("writes what it picks", function()
    local b = a:copy()
    b[b:gt(7)] = 0
    same(b, "float32", { { 3, 1, 2 }, { 0, 7, 0 } })
    b[b:eq(0)] = { 10, 20 }
    same(b, "float32", { { 3, 1, 2 }, { 10, 7, 20 } })
    b[places { 1, 0 }] = b  -- which reads what it writes
    same(b, "float32", { { 10, 7, 20 }, { 3, 1, 2 } })
    b:set(np.arange(2), places { 2, 0 }, b:at(np.arange(2), places { 2, 0 }) - 1)
    same(b, "float32", { { 10, 7, 19 }, { 2, 1, 2 } })
    b[mask { 0, 1 }] = np.array({ 4, 5, 6 }, "int32")
    b:set(0, mask { 1, 1, 0 }, 8)
    same(b, "float32", { { 8, 8, 19 }, { 4, 5, 6 } })
    b[places { 1, 1 }] = { { 0, 0, 0 }, { 7, 7, 7 } }  -- the last one remains
    b[b:gt(100)] = 1
    same(b, "float32", { { 8, 8, 19 }, { 7, 7, 7 } })
    for _, dtype in ipairs({ "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64" }) do
      local c = np.arange(4, { dtype = dtype })
      c[c:gt(1)] = 5
      c[places { 0, 1 }] = c[places { 3, 0 }]
      same(c, dtype, { 5, 0, 5, 5 })
    end
    local own = np.arange(4)
    own[own] = -own
    same(own, "int64", { 0, -1, -2, -3 })
  end)

  it("says what is no index of this array", function()
    local b = a:copy()
    for _, index in ipairs({ 2, -3 }) do
      raises("out_of_range", ("index: %d is out of range for axis 0 of size 2"):format(index), function()
        return a[places { 0, index }]
      end)
      raises("out_of_range", "is out of range for axis 0 of size 2", function() b[places { 0, index }] = 0 end)
    end
    raises("out_of_range", "index: 3 is out of range for axis 1 of size 3", function()
      return a:at(0, places { 3 })
    end)
    raises("shape_mismatch", "index: a mask (3) from axis 0 on of an array (2, 3)", function()
      return a[mask { 1, 0, 1 }]
    end)
    raises("shape_mismatch", "index: a mask (2) from axis 1 on of an array (2, 3)", function()
      b:set(0, mask { 1, 0 }, 5)
    end)
    raises("invalid_argument", "index: int8 is a mask of 0 and 1, and has numbers from 0 to 2; :ne(0) makes a mask",
      function() return a[mask { 0, 2 }] end)
    raises("dtype_mismatch", "index: an ndarray float32 (2) is no index; integers are places", function()
      return a[np.zeros({ 2 })]
    end)
    raises("invalid_argument", "beside an array each index is an array or a whole number, got '1:'", function()
      return a:at(places { 0 }, "1:")
    end)
    raises("invalid_argument", "an ndarray of shape (2, 3) takes at most 2 indices", function()
      return a:at(places { 0 }, 1, 1)
    end)
    raises("shape_mismatch", "the place is float32 (4), the value is float32 (3)", function()
      b[b:gt(2)] = { 1, 2, 3 }
    end)
    raises("dtype_mismatch", "a:set: the place is int64, the value is float32", function()
      local whole = np.arange(3)
      whole[whole:gt(0)] = np.ones({ 2 })
    end)
    raises("invalid_argument", "a:set: the value must be a number, a table or an ndarray, got 'x'", function()
      b[b:gt(2)] = "x"
    end)
    b:release()
    raises("wrong_state", "the ndarray was released", function() return b[places { 0 }] end)
    raises("wrong_state", "the ndarray was released", function() return a[b] end)
  end)
end)

describe("places of a flattened array", function()
  it("become places along its axes, and these become them again", function()
    local scores = np.array({ { 3, 1, 2 }, { 6, 9, 4 } })
    local row, column = np.unravel_index(np.argmax(scores), scores.shape)
    assert.same({ 1, 1 }, { row, column })
    local rows, columns = np.unravel_index({ 0, 5, 2 }, { 2, 3 })
    same(rows, "int64", { 0, 1, 0 })
    same(columns, "int64", { 0, 2, 2 })
    same(np.ravel_multi_index({ rows, columns }, scores.shape), "int64", { 0, 5, 2 })
    assert.equal(5, np.ravel_multi_index({ 1, 2 }, { 2, 3 }))
    same(np.ravel_multi_index({ np.array({ { 0 }, { 1 } }, "int64"), { 0, 2 } }, { 2, 3 }), "int64",
      { { 0, 2 }, { 3, 5 } })
  end)

  it("may be written from elements that they lie over, which are read first", function()
    local five = np.arange(5)
    five:set("3::-1", five:rows(1, 4))
    same(five, five.dtype, { 4, 3, 2, 1, 4 })
  end)

  it("may lie outside where that is said", function()
    same(np.ravel_multi_index({ { -1, 2 }, { 3, 1 } }, { 2, 3 }, "wrap"), "int64", { 3, 1 })
    same(np.ravel_multi_index({ { -1, 2 }, { 3, 1 } }, { 2, 3 }, { mode = "clip" }), "int64", { 2, 4 })
    raises("out_of_range", "np.ravel_multi_index: index 3 is out of range for axis 1 of size 3", function()
      return np.ravel_multi_index({ 0, 3 }, { 2, 3 })
    end)
    raises("out_of_range", "np.unravel_index: index -1 is out of range for an array whose number of elements is 6",
      function() return np.unravel_index(-1, { 2, 3 }) end)
    raises("shape_mismatch", "np.ravel_multi_index: 1 lists of places for 2 axes", function()
      return np.ravel_multi_index({ 1 }, { 2, 3 })
    end)
    raises("dtype_mismatch", "np.unravel_index wants integers as indices, got float32", function()
      return np.unravel_index(np.ones({ 2 }), { 2, 3 })
    end)
  end)
end)

describe("add_at", function()
  it("adds up what is for one place", function()
    local x = np.zeros { 3 }
    np.add_at(x, { 0, 0, 2 }, 1)
    np.add_at(x, places { -1, 1 }, { 5, 6 })
    same(x, "float32", { 2, 6, 6 })
    local matrix = np.zeros({ 3, 3 }, "int32")
    np.add_at(matrix, { places { 0, 0, 1 }, { 1, 1, -1 } }, { 1, 2, 3 })
    same(matrix, "int32", { { 0, 3, 0 }, { 0, 0, 3 }, { 0, 0, 0 } })
    local rows = np.zeros({ 3, 2 }, "float64")
    np.add_at(rows, places { 0, 2, 0 }, { { 1, 2 }, { 3, 4 }, { 5, 6 } })
    np.add_at(rows:rows(1, 1), 0, np.array({ 7, 8 }, "float64"))
    np.add_at(rows, mask { 0, 0, 1 }, 0.5)
    same(rows, "float64", { { 6, 8 }, { 7, 8 }, { 3.5, 4.5 } })
    np.add_at(rows, places {}, 1)
    same(rows, "float64", { { 6, 8 }, { 7, 8 }, { 3.5, 4.5 } })
  end)

  it("says what does not fit", function()
    raises("out_of_range", "index: 3 is out of range for axis 0 of size 3", np.add_at, np.zeros { 3 }, { 3 }, 1)
    raises("shape_mismatch", "np.add_at: the place is float32 (2), the value is float32 (3)", np.add_at, np.zeros { 3 },
      { 0, 1 }, { 1, 2, 3 })
    raises("invalid_argument", "np.add_at: argument 1 ('a') must be an ndarray", np.add_at, { 0, 0 }, { 0 }, 1)
  end)
end)
