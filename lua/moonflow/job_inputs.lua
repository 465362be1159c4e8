--- Inputs of a job: the placeholders of `inputs` beside the parameters of the body, by name or in order.

local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local typing = require "moonflow.typing"
local debug = debug

local job_inputs = {}

local function body_site(body)
  local info = debug.getinfo(body, "S")
  return info.what ~= "C" and errors.place(info.source, info.linedefined) or nil  -- nil: where the script is
end

-- The names of a function's parameters; nil where the bytecode is stripped of them. And their number.
local function parameters_of(body)
  local info = debug.getinfo(body, "u")
  if info.isvararg then
    errors.raise("invalid_argument", "a job function takes no variable arguments (...)", body_site(body))
  end
  local names = {}
  for i = 1, info.nparams do names[i] = debug.getlocal(body, i) end
  return #names == info.nparams and names or nil, info.nparams
end

-- A placeholder, or a list of them for an input that is a tuple.
local function check_input_type(name, value)
  if typing.is_placeholder(value) then return end
  if type(value) == "table" and getmetatable(value) == nil and type(value[1]) == "table" then
    arguments.check_list(value, "flow.global_function: inputs." .. name)
    for _, item in ipairs(value) do check_input_type(name, item) end
    return
  end
  local hint = typing.is(value) and value.Placeholder
    and "; write tp." .. value.text .. ".Placeholder({ ...shape })"
    or type(value) == "table" and getmetatable(value) == nil and type(value[1]) == "number"
    and "; tp.Numpy.Placeholder(it) is one of these sizes" or ""
  errors.raise("invalid_argument", "flow.global_function: inputs." .. name .. " must be a placeholder, got "
    .. arguments.describe(value) .. hint)
end

local function keys_of(inputs)
  local keys = {}
  for key in pairs(inputs) do keys[#keys + 1] = tostring(key) end
  table.sort(keys)
  return keys
end

-- Positional form: { { "images", T }, ... }.
local function positional_inputs(inputs, names, count, site)
  local list = {}
  for i, pair in ipairs(inputs) do
    if type(pair) ~= "table" or type(pair[1]) ~= "string" then
      errors.raise("invalid_argument", "flow.global_function: inputs[" .. i .. "] must be a pair { name, placeholder }")
    end
    if names and names[i] and names[i] ~= pair[1] then
      errors.raise("invalid_argument", "parameter " .. i .. " of the job function is '" .. names[i] .. "', but inputs["
        .. i .. "] is '" .. pair[1] .. "'", site)
    end
    list[i] = { name = pair[1], type = pair[2] }
  end
  if #list ~= count then
    errors.raise("invalid_argument", "the job function has " .. count .. " parameters, but there are " .. #list
      .. " inputs", site)
  end
  return list
end

local function placeholder_site(value)
  while type(value) == "table" and not typing.is_placeholder(value) do value = value[1] end
  return value and value.site
end

-- What to do about a parameter without a placeholder: the key that was meant, or one that no parameter has.
local function hint_of_missing(name, names, keys)
  local near = arguments.suggestion(name, keys)
  if near ~= "" or #keys == 0 then return near end
  local is_parameter, left_over = {}, {}
  for _, parameter in ipairs(names) do is_parameter[parameter] = true end
  for _, key in ipairs(keys) do
    if not is_parameter[key] then left_over[#left_over + 1] = key end
  end
  if #left_over == 1 and #keys == #names then
    return ", and inputs." .. left_over[1] .. " has no parameter; give both one name, for they go by name"
  end
  return ", which go by name: " .. table.concat(keys, ", ")
end

-- Named form: the order is that of the parameters.
local function named_inputs(inputs, names, count, site)
  if not names then
    if count == 0 and next(inputs) == nil then return {} end
    errors.raise("invalid_argument", "the job function has no parameter names (stripped bytecode); "
      .. "give inputs in order: inputs = { { \"images\", T }, ... }", site)
  end
  local list, known = {}, {}
  for i, name in ipairs(names) do
    known[name] = true
    if inputs[name] == nil then
      errors.raise("invalid_argument", "parameter '" .. name .. "' has no placeholder in inputs"
        .. hint_of_missing(name, names, keys_of(inputs)), site)
    end
    list[i] = { name = name, type = inputs[name] }
  end
  for _, key in ipairs(keys_of(inputs)) do
    if not known[key] then
      local declared = placeholder_site(inputs[key])
      errors.raise("invalid_argument", "inputs." .. key .. (declared and " (declared at " .. declared .. ")" or "")
        .. " matches no parameter of the job function" .. arguments.suggestion(key, names), site)
    end
  end
  return list
end

--- The inputs of a job in the order of its body's parameters: a list of { name, type }.
--- @error what stands in `inputs` does not fit the parameters
function job_inputs.settle(inputs, body)
  local names, count = parameters_of(body)
  local site = body_site(body)
  if inputs == nil then inputs = {} end
  if type(inputs) ~= "table" or getmetatable(inputs) then
    errors.raise("invalid_argument", "flow.global_function: inputs must be a table, got " .. arguments.describe(inputs))
  end
  local list = (#inputs > 0 and positional_inputs or named_inputs)(inputs, names, count, site)
  for _, input in ipairs(list) do check_input_type(input.name, input.type) end
  return list
end

--- The placeholders in their order, with names for messages: a list of { name, placeholder, shape }.
function job_inputs.leaves(inputs)
  local leaves, taken = {}, {}
  local function walk(name, value)
    if typing.is_placeholder(value) then
      if taken[name] then
        errors.raise("invalid_argument", ("inputs: two are called '%s', one of them as a part of a list; give another "
          .. "name"):format(name))
      end
      taken[name], leaves[#leaves + 1] = true, { name = name, placeholder = value, shape = value.shape }
    else
      for i, child in ipairs(value) do walk(name .. "_" .. i, child) end
    end
  end
  for _, input in ipairs(inputs) do walk(input.name, input.type) end
  return leaves
end

return job_inputs
