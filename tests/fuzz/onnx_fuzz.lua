-- ONNX files that nobody means. First a good file is cut at each of its bytes, which must be found. Of the others, half
-- are that file with bytes turned, cut out, doubled and moved. The rest are well formed, and their nodes have any
-- operator with any inputs and attributes. Each is loaded, and traced in a job: that must work, or raise an error of
-- ours; an error out of the library's own Lua code is a fault of the library, and the process ends in no case. Then
-- random networks are written and read again, and must give what they gave.
--   moonflow tests/fuzz/onnx_fuzz.lua [files] [seed] [first file to print]
local here = arg[0]:match("^(.*)/") or "."
package.path = here .. "/?.lua;" .. package.path
local flow = require "moonflow"
local core = require "moonflow.core"
local draws = require "draws"
local networks = require "networks"

local np, tp = flow.np, flow.typing
local FILES, SEED, LOUD = tonumber((...)) or 4000, tonumber((select(2, ...))) or 1, tonumber((select(3, ...)))

flow.config.log(function() end)
local g = draws(SEED, 4000)
local path = os.tmpname()

-- ---- damaged files ------------------------------------------------------------------------------------------------

local function value_of(name, shape, dtype) return { name = name, dtype = dtype or "float32", shape = shape } end

-- A graph for a node, of one node that makes `output`.
local function branch_of(op, inputs, output)
  return { g = { name = "branch", inputs = {}, initializers = {}, outputs = { { name = output } },
                 nodes = { { op = op, name = "b_" .. op, inputs = inputs, outputs = { output }, attributes = {} } } } }
end

local function good_model()
  return {
    opset = 17, producer = "fuzz", name = "net",
    inputs = { value_of("x", { "batch", 3 }) }, outputs = { value_of("y", { "batch", 2 }) },
    initializers = {
      { name = "w", value = np.random.uniform(-1, 1, { 2, 3 }):astype("float32") },
      { name = "b", value = np.zeros({ 2 }):astype("float32") },
      { name = "shape", value = np.array({ 0, -1 }):astype("int64") },
    },
    nodes = {
      { op = "Gemm", name = "fc", inputs = { "x", "w", "b" }, outputs = { "h" },
        attributes = { transB = { i = 1 }, alpha = { f = 1 } } },
      { op = "Constant", name = "c", inputs = {}, outputs = { "k" },
        attributes = { value = { t = np.ones({ 2 }):astype("float32") } } },
      { op = "Mul", name = "", inputs = { "h", "k" }, outputs = { "m" }, attributes = {} },
      { op = "Constant", name = "", inputs = {}, outputs = { "flag" }, attributes = { value_int = { i = 1 } } },
      { op = "If", name = "if", inputs = { "flag" }, outputs = { "n" }, attributes = {
        then_branch = branch_of("Neg", { "m" }, "t"), else_branch = branch_of("Relu", { "m" }, "e") } },
      { op = "Reshape", name = "r", inputs = { "n", "shape" }, outputs = { "y" }, attributes = {} },
    },
  }
end

core.onnx_write(path, good_model())
local good = core.text_read(path)

local function damaged()
  local bytes = good
  for _ = 1, 1 + g.below(4) do
    local at, length = 1 + g.below(#bytes), 1 + g.below(8)
    local before, part, after = bytes:sub(1, at - 1), bytes:sub(at, at + length - 1), bytes:sub(at + length)
    bytes = g.one_of {
      function() return before .. string.char(g.below(256)) .. bytes:sub(at + 1) end,
      function() return before .. string.char(g.one_of { 0, 1, 127, 128, 255 }) .. bytes:sub(at + 1) end,
      function() return before .. after end,
      function() return before .. part .. part .. after end,
      function() return after .. before end,
      function() return before end,
      function() return before .. ("\255"):rep(length) .. after end,
    }()
    if bytes == "" then return bytes end
  end
  return bytes
end

-- ---- well formed ones -----------------------------------------------------------------------------------------------

local shapes = { {}, { 3 }, { 1 }, { 2, 3 }, { 3, 3 }, { 1, 3, 5 }, { 2, 3, 4, 4 }, { 1, 2, 3, 4, 5 } }
local dtypes = { "float32", "float32", "float32", "float64", "int64", "int32", "int8", "uint8", "float16" }
local numbers = { 0, 1, -1, 2, 3, 7, -3, 1000, 2 ^ 31, -2 ^ 40, 2 ^ 53 }
local floats = { 0, 1, -1, 0.5, 2, 1e30, 1 / 0, -1 / 0, 0 / 0 }
local words = {
  "", "NOTSET", "SAME_UPPER", "VALID", "nearest", "linear", "cubic", "reflect", "edge", "wrap", "constant",
  "half_pixel", "align_corners", "tf_crop_and_resize", "floor", "add", "mul", "max", "tanh", "CRD", "ij,jk->ik", "...i",
}
local attribute_names = {
  "axis", "axis", "axes", "perm", "kernel_shape", "strides", "pads", "dilations", "group", "auto_pad", "ceil_mode",
  "count_include_pad", "keepdims", "noop_with_empty_axes", "alpha", "beta", "transA", "transB", "epsilon", "mode",
  "to", "value", "value_int", "value_ints", "value_floats", "start", "end", "size", "blocksize", "num_groups", "split",
  "num_outputs", "output_padding", "output_shape", "allowzero", "upper", "k", "largest", "reverse", "exclusive", "p",
  "equation", "coordinate_transformation_mode", "nearest_mode", "exclude_outside", "cubic_coeff_a", "scales", "dtype",
  "then_branch", "else_branch", "layout", "direction", "storage_order", "reduction", "batch_dims", "select_last_index",
  "fmod", "approximate", "bias", "lambd", "keep_aspect_ratio_policy", "antialias", "extrapolation_value",
}

local function list_of(choices)
  local list = {}
  for i = 1, g.below(6) do list[i] = g.one_of(choices) end
  return list
end

local function any_array()
  local shape = g.one_of(shapes)
  if g.chance(3) then  -- a list of sizes, as Reshape, Slice and others want it
    local list = list_of { 0, 1, -1, 2, 3, 4, 1000, 2 ^ 53 }
    return #list > 0 and np.array(list):astype("int64") or np.zeros({ 0 }):astype("int64")
  end
  return np.random.uniform(-2, 4, shape):astype(g.one_of(dtypes))
end

local function any_attribute()
  return g.one_of {
    function() return { i = g.one_of(numbers) } end,
    function() return { i = g.below(4) } end,
    function() return { f = g.one_of(floats) } end,
    function() return { s = g.one_of(words) } end,
    function() return { ints = list_of(numbers) } end,
    function() return { ints = list_of { 0, 1, 2, 3 } } end,
    function() return { floats = list_of(floats) } end,
    function() return { t = any_array() } end,
    function() return { strings = { "a" } } end,
    function() return branch_of("Neg", { "x" }, "inner") end,
  }()
end

local operators = flow.onnx.operators()

local function drawn_model(shape, dtype)
  local model = {
    opset = g.one_of { 6, 9, 11, 13, 17, 18, 21 }, producer = "", name = "", nodes = {}, initializers = {},
    inputs = { value_of("x", shape, dtype) }, outputs = {},
  }
  local names = { "x" }
  for i = 1, 3 do
    model.initializers[i] = { name = "c" .. i, value = any_array() }
    names[#names + 1] = "c" .. i
  end
  for i = 1, 1 + g.below(3) do
    local node = { op = g.one_of(operators), name = "n" .. i, inputs = {}, outputs = {}, attributes = {} }
    for k = 1, g.below(5) do node.inputs[k] = g.chance(12) and "" or g.one_of(names) end
    for _ = 1, g.below(4) do node.attributes[g.one_of(attribute_names)] = any_attribute() end
    for k = 1, g.chance(6) and 2 or 1 do node.outputs[k] = ("y%d_%d"):format(i, k) end
    for _, output in ipairs(node.outputs) do names[#names + 1] = output end
    model.nodes[i], model.outputs[1] = node, { name = node.outputs[#node.outputs] }
  end
  return model
end

-- ---- loading ------------------------------------------------------------------------------------------------------

local function write(bytes)
  local file = assert(io.open(path, "wb"))
  file:write(bytes)
  file:close()
end

local faults, read_count, traced_count = {}, 0, 0

local function attempt(number, shape, dtype)
  flow.clear_default_session()
  local fine, problem = pcall(function()
    local model = flow.onnx.load(path)
    read_count = read_count + 1
    tostring(model)
    if #model.inputs ~= 1 or #model.outputs ~= 1 then return end
    local job = flow.global_function {
      name = "net", inputs = { x = tp.Numpy.Placeholder(shape, { dtype = dtype }) }, returns = tp.Numpy,
    } (function(x) return (model(x)) end)
    traced_count = traced_count + 1
    job(np.zeros(shape):astype(dtype))
  end)
  if fine or flow.is_error(problem) then return end
  local text = tostring(problem)
  local key = text:match("^%S+:%d+:") or text
  if faults[key] then return end
  faults[key] = true
  faults[#faults + 1] = ("file %d: %s"):format(number, text)
end

for length = 0, #good - 1 do
  write(good:sub(1, length))
  local fine, problem = pcall(flow.onnx.load, path)
  if fine then
    faults[#faults + 1] = ("the first %d bytes of a file are read as if they were all"):format(length)
  elseif not flow.is_error(problem) then
    faults[#faults + 1] = ("the first %d bytes of a file: %s"):format(length, tostring(problem))
  end
end

for number = 1, FILES do
  local shape, dtype = { 4, 3 }, "float32"
  if number % 2 == 0 then
    write(damaged())
  else
    shape, dtype = g.one_of(shapes), g.one_of(dtypes)
    local written, problem = pcall(core.onnx_write, path, drawn_model(shape, dtype))
    if not written and not flow.is_error(problem) then error(problem, 0) end
  end
  if LOUD and number >= LOUD then io.stderr:write(("%d: %d bytes\n"):format(number, #core.text_read(path))) end
  attempt(number, shape, dtype)
  if number % 50 == 0 then collectgarbage() end
end
-- ---- networks that come back ---------------------------------------------------------------------------------------

local NETWORKS = math.floor(FILES / 50)

local function come_back(seed)
  flow.clear_default_session()
  local net = networks.draw(seed)
  net.input = "Numpy"
  local function around(_, step) return step() end
  local function job_of(body)
    return flow.global_function {
      name = "net", inputs = { x = tp.Numpy.Placeholder(net.shape) }, returns = tp.Numpy,
    } (body)
  end
  local job = job_of(function(x) return networks.prediction(net, networks.body(net, x, around), around) end)
  local values = np.random.default_rng(seed):uniform(-1, 1, net.shape)
  local wanted = job(values)
  job:export_onnx(path)
  local model = flow.onnx.load(path, { name = "again" })
  local got = job_of(function(x) return (model(x)) end)(values)
  -- By the size of what is computed; fusions differ, and a Winograd convolution is good to 2e-5.
  local size = wanted.shape:count() > 0 and math.max(1, np.abs(wanted):max()) or 1
  if not np.allclose(got, wanted, { rtol = 0, atol = 2e-4 * size }) then
    faults[#faults + 1] = ("network %d gives something else when it is read again"):format(seed)
  end
end

for seed = SEED, SEED + NETWORKS - 1 do
  local fine, problem = pcall(come_back, seed)
  if not fine then faults[#faults + 1] = ("network %d: %s"):format(seed, tostring(problem)) end
  collectgarbage()
end

os.remove(path)
print(("%d files, %d of them were read, %d traced, the others failed with an error; %d networks"):format(FILES,
  read_count, traced_count, NETWORKS))
if read_count < FILES / 4 then error("too few of them were read", 0) end
if #faults > 0 then error("these are faults:\n" .. table.concat(faults, "\n"), 0) end
