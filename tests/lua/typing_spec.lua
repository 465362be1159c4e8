-- flow.typing: how types read, what they check, flatten and build, without a job.
local checks = require "checks"
local typing = require "moonflow.typing"
local flow = require "moonflow"
local np, tp = flow.np, flow.typing
local refuses = checks.refuses

describe("types", function()
  it("nest, and print as they nest", function()
    local T = tp.Callback[tp.Tuple { tp.Numpy, tp.Dict { loss = tp.Numpy, all = tp.List[tp.Numpy] } }]
    assert.equal("Callback[Tuple{Numpy, Dict{all = List[Numpy], loss = Numpy}}]", tostring(T))
    assert.equal("Callback[Numpy]", tostring(tp.Callback(tp.Numpy)))
    assert.equal("Bundle[ListNumpy]", tostring(tp.Bundle[tp.ListNumpy]))
  end)

  it("refuse what is no type", function()
    refuses("Callback[T]: T must be a flow.typing type, got nil", function() return tp.Callback[nil] end)
    refuses("Callback[T]: T must be a flow.typing type, got nil", function() return tp.Callback() end)
    refuses("flow.typing.Callback has no field 'Numpy'", function() return tp.Callback.Numpy end)
    refuses("Tuple: T must be a flow.typing type, got 'float32'", tp.Tuple, { flow.float })
    refuses("Tuple wants at least one type", tp.Tuple, {})
    refuses("Tuple wants a list of types", tp.Tuple, tp.Numpy)
    refuses("Dict wants named types", tp.Dict, 3)
    refuses("Bundle[T]: T must be Numpy, ListNumpy or ListListNumpy, got None", tp.Bundle, tp.None)
    refuses("a callback cannot deliver a callback", tp.Callback, tp.Callback[tp.Numpy])
  end)
end)

describe("placeholders", function()
  it("have a shape and a dtype, given by position or by name", function()
    assert.equal("float32[2,3]", tostring(tp.Numpy.Placeholder({ 2, 3 })))
    assert.equal("int32[4]", tostring(tp.Numpy.Placeholder({ 4 }, flow.int32)))
    assert.equal("int32[4]", tostring(tp.Numpy.Placeholder({ 4 }, { dtype = flow.int32, batch_axis = 0 })))
    assert.equal("int32[4]", tostring(tp.Numpy.Placeholder { shape = { 4 }, dtype = flow.int32 }))
    assert.equal("float32[]", tostring(tp.Numpy.Placeholder({})))
    assert.equal("list of float32[5]", tostring(tp.ListNumpy.Placeholder({ 5 })))
    assert.equal("float32[5]", tostring(flow.FixedTensorDef({ 5 })))
  end)

  it("refuse shapes and dtypes that are none", function()
    refuses("Placeholder: shape has 9 axes, at most 8 are possible",
      tp.Numpy.Placeholder, { 1, 2, 3, 4, 5, 6, 7, 8, 9 })
    assert.equal(8, #tp.Numpy.Placeholder({ 1, 2, 3, 4, 5, 6, 7, 8 }).shape)
    refuses("entry 2 is -1", tp.Numpy.Placeholder, { 2, -1 })
    refuses("entry 1 is 2.5", tp.Numpy.Placeholder, { 2.5 })
    local where = "flow.typing.Numpy.Placeholder: "
    refuses(where .. "an axis is a whole number, got '0'", tp.Numpy.Placeholder, { 2, 3 }, { batch_axis = "0" })
    refuses(where .. "an axis is a whole number, got 0.5", tp.Numpy.Placeholder, { 2, 3 }, { batch_axis = 0.5 })
    refuses(where .. "axis 7 is out of range for rank 2", tp.Numpy.Placeholder, { 2, 3 }, { batch_axis = 7 })
    refuses(where .. "axis 1 is out of range for rank 0", tp.Numpy.Placeholder, {}, { batch_axis = 1 })
    assert.equal("float32[]", tostring(tp.Numpy.Placeholder({}, { batch_axis = 0 })))  -- as the original's default
    refuses("('dtype') must be a dtype such as flow.float32, got 'float23'", tp.Numpy.Placeholder, { 2 }, "float23")
    refuses("has no option 'dype'; did you mean 'dtype'?", tp.Numpy.Placeholder, { 2 }, { dype = flow.int32 })
  end)

  it("say what is wrong with a feed", function()
    local T = tp.Numpy.Placeholder({ 2, 3 })
    assert.is_nil(T:fault(np.zeros({ 2, 3 })))
    assert.equal("is float32 (3, 2), its placeholder wants float32 (2, 3)", T:fault(np.zeros({ 3, 2 })))
    assert.equal("is float64 (2, 3), its placeholder wants float32 (2, 3); x:astype(flow.float32) makes one",
      T:fault(np.zeros({ 2, 3 }, flow.double)))
    assert.equal("is a table, its placeholder wants an ndarray float32 (2, 3); np.array(it) makes one",
      T:fault({ 1, 2 }))
    assert.equal("is 1, its placeholder wants an ndarray float32 (2, 3)", T:fault(1))
    assert.equal("is nil, its placeholder wants an ndarray float32 (2, 3)", T:fault(nil))
    local L = tp.ListNumpy.Placeholder({ 4, 3 })
    assert.is_nil(L:fault({ np.zeros({ 2, 3 }) }))
    assert.is_nil(L:fault({ np.zeros({ 2, 6 }) }))
    assert.equal("is float32 (5, 3), its placeholder wants a float32 of 2 axes with at most 12 elements, as (4, 3) has",
      L:fault({ np.zeros({ 5, 3 }) }))
    assert.truthy(L:fault({ np.zeros({ 12 }) }):find("of 2 axes", 1, true))
    assert.equal("is float64 (4, 2), its placeholder wants a float32 of 2 axes with at most 12 elements, as (4, 3) "
      .. "has; x:astype(flow.float32) makes one", L:fault({ np.zeros({ 4, 2 }, flow.double) }))
    assert.equal("is an ndarray float32 (4, 3), its placeholder wants a list of one ndarray (one device), { x }",
      L:fault(np.zeros({ 4, 3 })))
  end)
end)

describe("returns", function()
  -- What a job that returns `...` would deliver: each leaf is fed with its own number.
  local function through(annotation, make)
    local leaves
    flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 1 }) }, returns = tp.None } (function(x)
      local context = { job = "f", trace = x.trace, site = "here:1" }
      local results = { n = select("#", make(x)), make(x) }
      leaves = { typing.flatten(context, annotation, results), #context.leaves }
    end)
    local values = {}
    for i = 1, leaves[2] do values[i] = i end
    return typing.build(leaves[1], values)
  end

  it("come back in the form of their type", function()
    assert.equal(1, through(tp.Numpy, function(x) return x end))
    assert.same({ 1 }, through(tp.ListNumpy, function(x) return x end))
    assert.same({ 1, 2, 3 }, { through(tp.Tuple { tp.Numpy, tp.Numpy, tp.Numpy }, function(x) return x, x, x end) })
    assert.same({ 1, 2 }, { through(tp.Tuple { tp.Numpy, tp.Numpy }, function(x) return { x, x } end) })
    assert.same({ 1, 2, 3 }, through(tp.List[tp.Numpy], function(x) return { x, x, x } end))
    local named = tp.Dict { a = tp.Numpy, b = tp.Tuple { tp.Numpy, tp.Numpy } }
    assert.same({ a = 1, b = { 2, 3 } }, through(named, function(x) return { a = x, b = { x, x } } end))
    assert.same({ 1, { k = { 2, 3 } } }, through(tp.Bundle[tp.Numpy], function(x) return { x, { k = { x, x } } } end))
    assert.same({ 1 }, through(tp.Callback[tp.ListNumpy], function(x) return x end))
    assert.is_nil(through(tp.None, function() end))
  end)

  it("without a type come back as they are", function()
    assert.equal(1, through(nil, function(x) return x end))
    assert.same({ 1, 2 }, { through(nil, function(x) return x, x end) })
    assert.same({ a = 1, b = { 2 } }, through(nil, function(x) return { a = x, b = { x } } end))
    assert.equal(0, select("#", through(nil, function() end)))
  end)

  it("that do not fit are named with what was wanted", function()
    local function misfit(annotation, pattern, make)
      local problem = refuses(pattern, through, annotation, make)
      assert.equal("here:1", problem.where)
    end
    misfit(tp.Numpy, "the job 'f' returns 2 values but is declared '-> Numpy', which takes 1",
      function(x) return x, x end)
    misfit(tp.None, "returns 1 value but is declared '-> None', which takes 0", function(x) return x end)
    misfit(tp.Numpy, "returns 0 values but is declared '-> Numpy', which takes 1", function() end)
    misfit(tp.Numpy, "returns 5, but is declared '-> Numpy', which takes a blob there", function() return 5 end)
    misfit(tp.Callback[tp.Tuple { tp.Numpy, tp.Numpy }], "returns 1 value but is declared '-> Callback[Tuple{Numpy, "
      .. "Numpy}]', which takes 2", function(x) return x end)
    misfit(tp.Dict { loss = tp.Numpy }, "returns no 'loss'", function(x) return { lost = x } end)
    misfit(tp.Dict { loss = tp.Numpy }, "returns 'lost', which is not in '-> Dict{loss = Numpy}'; did you mean 'loss'?",
      function(x) return { loss = x, lost = x } end)
    misfit(tp.List[tp.Numpy], "returns a blob, but is declared '-> List[Numpy]', which takes a list there",
      function(x) return x end)
    misfit(tp.List[tp.Numpy], "returns 'x' at place 2, but", function(x) return { x, "x" } end)
    misfit(tp.List[tp.Numpy], "returns a list that has the key 'loss' among its entries",
      function(x) return { x, loss = x } end)
    misfit(tp.Tuple { tp.Numpy, tp.Numpy }, "returns a list that has a hole", function(x) return { x, nil, x } end)
    misfit(nil, "returns a table with a table as a key", function(x) return { [{}] = x } end)
    misfit(nil, "returns tables that are nested more than 100 deep", function()
      local endless = {}
      endless.endless = endless
      return endless
    end)
  end)
end)
