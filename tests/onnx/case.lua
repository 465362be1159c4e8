-- Runs a test that cases.py has written, and prints its name, how it went and what there is to say.
-- usage: moonflow case.lua FOLDER
local flow = require "moonflow"
local core = require "moonflow.core"

local tp = flow.typing
local folder = arg[1]

local function values()
  local found = { i = {}, o = {} }
  for _, entry in ipairs(core.onnx_read(folder .. "/values.onnx").initializers) do
    local kind, index = entry.name:match("^(.)(%d+)$")
    found[kind][index + 1] = entry.value
  end
  return found.i, found.o
end

-- What the model gives; `known` are the inputs, by their places, that it is given as arrays.
local function run(inputs, known)
  flow.clear_default_session()
  local model = flow.onnx.load(folder .. "/model.onnx")
  local placeholders, names, feeds = {}, {}, {}
  for i, x in ipairs(inputs) do
    if not known[i] then
      placeholders[#placeholders + 1] = { "x" .. i, tp.Numpy.Placeholder(x.shape:table(), { dtype = x.dtype }) }
      names[#names + 1], feeds[#feeds + 1] = "x" .. i, x
    end
  end
  local function body(given)
    local all = {}
    for i, x in ipairs(inputs) do all[i] = known[i] and x or given["x" .. i] end
    return model(unpack(all))
  end
  -- A job function has a parameter for each placeholder.
  local list, fields = table.concat(names, ", "), {}
  for i, name in ipairs(names) do fields[i] = name .. " = " .. name end
  local job = loadstring(("local body = ... return function(%s) return body { %s } end"):format(list,
    table.concat(fields, ", ")))(body)
  return { flow.global_function({ name = "job", inputs = placeholders }, job)(unpack(feeds)):get() }
end

-- An input that decides about shapes is given as an array, as the error says; so is one without elements.
local function results(inputs)
  local known = {}
  for i, x in ipairs(inputs) do known[i] = x.shape:count() == 0 end
  while true do
    local fine, result = pcall(run, inputs, known)
    if fine then return result end
    local names, is_any = tostring(result):match("from the values of input (.-): give it as an ndarray"), false
    local declared = names and flow.onnx.load(folder .. "/model.onnx").inputs or {}
    for i, input in ipairs(declared) do
      if names:find("'" .. input.name .. "'", 1, true) and not known[i] then known[i], is_any = true, true end
    end
    if not is_any then error(result, 0) end
  end
end

local function difference(got, wanted, relative, absolute)
  if got.dtype ~= wanted.dtype or tostring(got.shape) ~= tostring(wanted.shape) then
    return ("is %s %s, wanted %s %s"):format(got.dtype, tostring(got.shape), wanted.dtype, tostring(wanted.shape))
  end
  if got.shape:count() == 0 then return nil end
  if got.dtype == "bfloat16" then relative = math.max(relative, 2 ^ -6) end  -- as ONNX's own runner does
  local function list(array) return array:astype("float64"):reshape(-1):totable() end
  local one, other = list(got), list(wanted)
  for i, x in ipairs(one) do
    local y = other[i]
    local is_near = x == y or math.abs(x - y) <= absolute + relative * math.abs(y) or x ~= x and y ~= y
    if not is_near then return ("has %.9g at %d, wanted %.9g"):format(x, i - 1, y) end
  end
end

-- A word for how it went, and what there is to say.
local function check()
  local file = io.open(folder .. "/values.onnx")
  if not file then
    flow.onnx.load(folder .. "/model.onnx")
    return "loaded", "though it takes or gives other types than tensors"
  end
  file:close()
  local inputs, outputs = values()
  local result = results(inputs)
  if #result ~= #outputs then return "wrong", #result .. " outputs, wanted " .. #outputs end
  local relative, absolute = io.open(folder .. "/tolerance"):read("*n", "*n")
  for i, wanted in ipairs(outputs) do
    local text = difference(result[i], wanted, relative, absolute)
    if text then return "wrong", ("output %d %s"):format(i, text) end
  end
  return "passes"
end

local function class_of(problem)
  if not flow.is_error(problem) then return "failed" end
  local is_of_types = problem.message:find("which there is none of here", 1, true)
    or problem.message:find("no dense tensor", 1, true)
  return is_of_types and "of other types" or "refused"
end

local fine, class, text = pcall(check)
if not fine then class, text = class_of(class), tostring(class) end
print(("%s\t%s\t%s"):format(folder:match("[^/]*$"), class, text and text:gsub("%s*\n%s*", " ") or ""))
