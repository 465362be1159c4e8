-- Sequences in ONNX files, which are lists while a job is traced.
local flow = require "moonflow"
local models = require "onnx_models"

local np = flow.np
local floats, whole, node, value = models.floats, models.whole, models.node, models.value
local result_of, raises, same = models.result_of, models.raises, models.same

before_each(models.begin)
after_each(models.finish)

local function at(place) return whole(place) end

describe("a sequence", function()
  -- What is at a place of the rows 10, 20 and 30 of x, after some nodes that make `list` of `rows`.
  local function row_of(nodes, weights, place)
    weights.place = at(place)
    local all = { node("SplitToSequence", { "x" }, { "rows" }, { keepdims = { i = 0 } }) }
    for _, one in ipairs(nodes) do all[#all + 1] = one end
    all[#all + 1] = node("SequenceAt", { "list", "place" }, { "y" })
    return result_of(floats { 10, 20, 30 }, { weights = weights, nodes = all }):item()
  end

  it("takes and gives its values by their places, from the end too", function()
    local same_list = { node("Identity", { "rows" }, { "list" }) }
    assert.same({ 10, 30, 30 }, { row_of(same_list, {}, 0), row_of(same_list, {}, 2), row_of(same_list, {}, -1) })
    local put = { node("SequenceInsert", { "rows", "one", "here" }, { "list" }) }
    assert.same({ 7, 10 }, { row_of(put, { one = floats(7), here = at(0) }, 0),
                             row_of(put, { one = floats(7), here = at(0) }, 1) })
    assert.equal(7, row_of(put, { one = floats(7), here = at(3) }, 3))
    assert.equal(7, row_of(put, { one = floats(7), here = at(-1) }, 2))
    local drop = { node("SequenceErase", { "rows", "here" }, { "list" }) }
    assert.same({ 10, 30 }, { row_of(drop, { here = at(1) }, 0), row_of(drop, { here = at(1) }, 1) })
    assert.equal(20, row_of({ node("SequenceErase", { "rows" }, { "list" }) }, {}, -1))
    raises("(SequenceAt): place 3 of a sequence of 3", function() row_of(same_list, {}, 3) end)
    raises("(SequenceAt): place -4 of a sequence of 3", function() row_of(same_list, {}, -4) end)
    raises("(SequenceInsert): place 4 of a sequence of 3", function()
      row_of(put, { one = floats(7), here = at(4) }, 0)
    end)
    raises("(SequenceErase): input 2, 'x', is computed in each run", function()
      row_of({ node("SequenceErase", { "rows", "x" }, { "list" }) }, {}, 0)
    end)
  end)

  it("is split and joined", function()
    local x = floats { { 1, 2, 3 }, { 4, 5, 6 } }
    local function joined(sizes, attributes, split)
      split = split or {}
      split.axis = { i = 1 }
      return result_of(x, { weights = { sizes = sizes }, nodes = {
        node("SplitToSequence", { "x", sizes and "sizes" or "" }, { "list" }, split),
        node("ConcatFromSequence", { "list" }, { "y" }, attributes) } })
    end
    same({ { 1, 2, 3 }, { 4, 5, 6 } }, joined(whole(2), { axis = { i = -1 } }))
    same({ { 1, 2 }, { 4, 5 }, { 3, 3 }, { 6, 6 } }, result_of(x, {
      weights = { sizes = whole(2), first = at(0), last = at(1), shape = whole { 2, 2 } }, nodes = {
        node("SplitToSequence", { "x", "sizes" }, { "list" }, { axis = { i = 1 } }),
        node("SequenceAt", { "list", "first" }, { "one" }), node("SequenceAt", { "list", "last" }, { "other" }),
        node("Expand", { "other", "shape" }, { "wide" }), node("SequenceConstruct", { "one", "wide" }, { "two" }),
        node("ConcatFromSequence", { "two" }, { "y" }, { axis = { i = 0 } }),
      } }))
    local keepdims = { keepdims = { i = 0 } }
    same({ { 1, 4 }, { 2, 5 }, { 3, 6 } }, joined(nil, { axis = { i = 0 }, new_axis = { i = 1 } }, keepdims))
    same({ { 1, 2, 3 }, { 4, 5, 6 } }, joined(nil, { axis = { i = -1 }, new_axis = { i = 1 } }, keepdims))
    same({ { 1, 2, 3 }, { 4, 5, 6 } }, joined(whole { 1, 2 }, { axis = { i = 1 } }))
    raises("parts { 3, 1 } of 3 places", function() joined(whole { 3, 1 }, { axis = { i = 1 } }) end)
  end)

  it("grows in a loop, as a list of a script does", function()
    local function values(...)
      local list = { ... }
      for i, name in ipairs(list) do list[i] = value(name) end
      return list
    end
    local body = { name = "", initializers = {}, inputs = values("round", "goes_on", "state", "list"),
                   outputs = values("goes_on", "next", "longer"), nodes = {
      node("Add", { "state", "x" }, { "next" }), node("SequenceInsert", { "list", "next" }, { "longer" }) } }
    local function grown(last, attributes)
      return result_of(floats { 1, 10 }, { weights = { count = whole(3) }, nodes = {
        node("SequenceEmpty", {}, { "none" }),
        node("Loop", { "count", "", "x", "none" }, { "", "all" }, { body = { g = body } }),
        node(last, { "all" }, { "y" }, attributes) } })
    end
    same({ { 2, 20 }, { 3, 30 }, { 4, 40 } },
      grown("ConcatFromSequence", { axis = { i = 0 }, new_axis = { i = 1 } }))
    assert.equal(3, grown("SequenceLength"):item())
    raises("node '/Neg' (Neg): input 1 is a sequence, wanted a tensor", function() grown "Neg" end)
  end)

  it("is refused where a tensor should be, and as what a job gives", function()
    local file = models.write { shape = { 2 }, nodes = {
      node("SplitToSequence", { "x" }, { "list" }), node("SequenceLength", { "list" }, { "y" }),
    } }
    raises("output 'list' is a sequence, which a job does not give", function()
      models.job_of(flow.onnx.load(file, { outputs = { "list" } }), { 2 })
    end)
    local function branch(one)
      return { g = { name = "", initializers = {}, inputs = {}, outputs = { value("made") }, nodes = { one } } }
    end
    raises("a run can choose only between branches of one shape, and these give sequences", function()
      result_of(floats { 1, 2 }, { nodes = {
        node("ReduceMax", { "x" }, { "most" }),
        node("If", { "most" }, { "list" }, { then_branch = branch(node("SplitToSequence", { "x" }, { "made" })),
                                             else_branch = branch(node("SequenceEmpty", {}, { "made" })) }),
        node("SequenceLength", { "list" }, { "y" }),
      } })
    end)
    raises("(SequenceLength): input 1 is a tensor, wanted a sequence", function()
      result_of(np.ones { 2 }, { nodes = { node("SequenceLength", { "x" }, { "y" }) } })
    end)
  end)
end)
