-- Models in ONNX files, made out of tables, and jobs that call them.
local flow = require "moonflow"
local core = require "moonflow.core"
local assert = require "luassert"

local np, tp = flow.np, flow.typing

local models = {}

local path

--- To be called before each test: a new session, and a new path for a file.
function models.begin()
  flow.clear_default_session()
  path = os.tmpname()
  return path
end

--- To be called after each.
function models.finish() os.execute("rm -f " .. path .. "*") end

function models.floats(list) return np.array(list):astype("float32") end
function models.whole(list) return np.array(list):astype("int64") end

function models.node(op, inputs, outputs, attributes)
  return { op = op, name = "/" .. op, inputs = inputs, outputs = outputs, attributes = attributes or {} }
end

function models.value(name, shape, dtype) return { name = name, shape = shape, dtype = dtype or "float32" } end

--- Writes a model and gives its path; `weights` are { name = array }.
function models.write(given)
  local initializers = {}
  for name, array in pairs(given.weights or {}) do initializers[#initializers + 1] = { name = name, value = array } end
  table.sort(initializers, function(one, other) return one.name < other.name end)
  core.onnx_write(path, {
    opset = given.opset or 17, producer = "spec", name = "net", nodes = given.nodes, initializers = initializers,
    inputs = given.inputs or { models.value("x", given.shape) }, outputs = given.outputs or { models.value("y") },
  })
  return path
end

--- A job that calls a model with one input.
function models.job_of(model, shape, dtype)
  return flow.global_function {
    name = "job", inputs = { x = tp.Numpy.Placeholder(shape, { dtype = dtype or "float32" }) }, returns = tp.Numpy,
  } (function(x) return (model(x)) end)
end

--- What a model as `write` takes it gives for `x`, in a session of its own.
function models.result_of(x, given)
  flow.clear_default_session()
  given.shape = given.shape or x.shape:table()
  given.inputs = { models.value("x", given.shape, x.dtype) }
  return models.job_of(flow.onnx.load(models.write(given)), x.shape:table(), x.dtype)(x)
end

function models.raises(pattern, body)
  local fine, problem = pcall(body)
  assert.is_false(fine, "there was no error")
  assert.is_true(flow.is_error(problem), tostring(problem))
  assert.truthy(tostring(problem):find(pattern, 1, true), tostring(problem) .. "\nlacks: " .. pattern)
end

function models.same(wanted, array) assert.same(wanted, array:totable()) end

return models
