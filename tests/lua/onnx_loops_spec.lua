-- Graphs of ONNX that a node runs over and over.
local flow = require "moonflow"
local models = require "onnx_models"

local np = flow.np
local floats, whole, node, value = models.floats, models.whole, models.node, models.value
local result_of, raises, same = models.result_of, models.raises, models.same

before_each(models.begin)
after_each(models.finish)

local function graph(inputs, nodes, outputs)
  local function values(names)
    local list = {}
    for i, name in ipairs(names) do list[i] = value(name) end
    return list
  end
  return { g = { name = "", nodes = nodes, initializers = {}, inputs = values(inputs), outputs = values(outputs) } }
end

describe("a Loop", function()
  -- In each round state = state * w + round, and state * 10 is kept.
  local function looped(x, given)
    local nodes = {
      node("Mul", { "state", "w" }, { "grown" }), node("Cast", { "round" }, { "number" }, { to = { i = 1 } }),
      node("Add", { "grown", "number" }, { "next" }), node("Mul", { "next", "ten" }, { "row" }),
      given.condition or node("Identity", { "goes_on" }, { "still" }),
    }
    local loop = node("Loop", { given.rounds or "count", "yes", "x" }, { "last", "rows" }, {
      body = graph({ "round", "goes_on", "state" }, nodes, { "still", "next", "row" }) })
    return result_of(x, {
      weights = { w = floats { 2, 3 }, ten = floats(10), count = whole(given.count or 3), two = whole(2),
                  yes = np.array(given.yes or 1):astype("int8") },
      nodes = { loop, node("Identity", { given.output or "last" }, { "y" }) },
    })
  end
  local x = floats { 1, 1 }

  it("carries values on, and keeps what each round gives", function()
    same({ 12, 32 }, looped(x, {}))
    same({ { 20, 30 }, { 50, 100 }, { 120, 320 } }, looped(x, { output = "rows" }))
    same({ 1, 1 }, looped(x, { count = 0 }))
    same({ 1, 1 }, looped(x, { yes = 0 }))
  end)

  it("ends where its condition says so, if that is known", function()
    local below_two = node("Less", { "round", "two" }, { "still" })
    same({ { 20, 30 }, { 50, 100 }, { 120, 320 } }, looped(x, { condition = below_two, count = 9, output = "rows" }))
    same({ 12, 32 }, looped(x, { condition = below_two, rounds = "" }))
  end)

  it("trains the weights in its body", function()
    local model = flow.onnx.load(models.write {
      shape = { 1 }, weights = { w = floats { 2 }, count = whole(3) },
      nodes = { node("Loop", { "count", "", "x" }, { "y" }, { body = graph({ "round", "goes_on", "state" }, {
        node("Mul", { "state", "w" }, { "next" }) }, { "goes_on", "next" }) }) },
    })
    local train = flow.global_function {
      name = "train", type = "train", inputs = { given = flow.typing.Numpy.Placeholder({ 1 }) },
      returns = flow.typing.Numpy,
    } (function(given)
      local y = model(given)
      flow.optimizer.SGD(0.5):minimize(y)
      return y
    end)
    same({ 8 }, train(floats { 1 }))
    same({ -64 }, train(floats { 1 }))  -- w = 2 - 0.5 * 3 * 2^2 = -4
  end)

  it("is refused where a run decides how long it goes", function()
    raises("node '/Loop' (Loop): whether it goes on is computed in each run, and must be known when the job is traced",
      function() looped(x, { condition = node("Equal", { "next", "next" }, { "still" }) }) end)
    raises("(Loop): input 1, 'x', is computed in each run", function() looped(x, { rounds = "x" }) end)
    raises("1025 rounds are not supported, only up to 1024", function() looped(x, { count = 2000 }) end)
    raises("it has no round that would give output 2", function() looped(x, { count = 0, output = "rows" }) end)
    raises("(Loop): 1 of 0 values cannot be carried on", function()
      result_of(x, { weights = { count = whole(1) }, nodes = { node("Loop", { "count", "", "x" }, { "y" }, {
        body = graph({ "round", "goes_on", "state" }, {}, { "goes_on" }) }) } })
    end)
  end)
end)

describe("a Scan", function()
  -- Sums of the rows up to each one, and all of them.
  local function scanned(x, attributes, output, opset)
    local nodes = { node("Add", { "sum", "row" }, { "next" }), node("Identity", { "next" }, { "kept" }) }
    attributes.num_scan_inputs = attributes.num_scan_inputs or { i = 1 }
    attributes.body = graph({ "sum", "row" }, nodes, { "next", "kept" })
    return result_of(x, { opset = opset, weights = { zero = floats { 0, 0 } }, nodes = {
      node("Scan", { "zero", "x" }, { "all", "sums" }, attributes), node("Identity", { output or "sums" }, { "y" }) } })
  end
  local x = floats { { 1, 2 }, { 3, 4 }, { 5, 6 } }
  local function one(number) return { ints = { number } } end

  it("goes along the places of an axis, and keeps what each gives", function()
    same({ { 1, 2 }, { 4, 6 }, { 9, 12 } }, scanned(x, {}))
    same({ 9, 12 }, scanned(x, {}, "all"))
    same({ { 5, 6 }, { 8, 10 }, { 9, 12 } }, scanned(x, { scan_input_directions = one(1) }))
    same({ { 9, 12 }, { 4, 6 }, { 1, 2 } }, scanned(x, { scan_output_directions = one(1) }))
    same({ { 1, 4, 9 }, { 2, 6, 12 } }, scanned(x, { scan_output_axes = one(-1) }))
    same({ { 1, 3 }, { 3, 7 } }, scanned(floats { { 1, 2 }, { 3, 4 } }, { scan_input_axes = one(1),
                                                                          scan_output_axes = one(1) }))
  end)

  it("is refused before it was what it is, and with lists of other lengths", function()
    raises("(Scan): it is supported from opset 9 on", function() scanned(x, {}, nil, 8) end)
    raises("-1 of 2 values cannot be carried on", function() scanned(x, { num_scan_inputs = { i = 3 } }) end)
    raises("scan_input_axes has 2 numbers, wanted 1", function()
      scanned(x, { scan_input_axes = { ints = { 0, 1 } } })
    end)
  end)
end)
