--- What flow.global_function is given, in each of its forms, as one table: type, inputs, returns, name, placement,
-- function_config.

local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local function_config = require "moonflow.function_config"
local typing = require "moonflow.typing"

local job_spec = {}

job_spec.fields = { "type", "inputs", "returns", "name", "placement", "function_config" }
local is_field = {}
for _, name in ipairs(job_spec.fields) do is_field[name] = true end

local function check_spec(spec)
  for name in pairs(spec) do
    if type(name) == "number" then
      errors.raise("invalid_argument", "flow.global_function: what stands at " .. name .. " needs a key, such as "
        .. "inputs = { x = tp.Numpy.Placeholder({ 4 }) }")
    elseif not is_field[name] then
      errors.raise("invalid_argument", "flow.global_function has no option '" .. tostring(name) .. "'"
        .. arguments.suggestion(name, job_spec.fields))
    end
  end
  if spec.type ~= nil and spec.type ~= "train" and spec.type ~= "predict" then
    errors.raise("invalid_argument", "flow.global_function: type must be 'train' or 'predict', got "
      .. arguments.describe(spec.type) .. arguments.suggestion(spec.type, { "train", "predict" }))
  end
  if spec.name ~= nil and type(spec.name) ~= "string" then
    errors.raise("invalid_argument", "flow.global_function: name must be a string, got "
      .. arguments.describe(spec.name))
  end
  if spec.returns ~= nil and not typing.is(spec.returns) then
    errors.raise("invalid_argument", "flow.global_function: returns must be a flow.typing type, got "
      .. arguments.describe(spec.returns) .. (type(spec.returns) == "table" and typing.is(spec.returns[1])
      and "; several values are flow.typing.Tuple { ... }" or ""))
  end
end

-- The spec of a call in the original's form, (type, [config], [spec], [body]), and its body.
local function spec_of_type(kind, config, given, body, ...)
  if config ~= nil and not function_config.is(config) then
    if body ~= nil then
      errors.raise("invalid_argument", "flow.global_function: behind the type a flow.function_config() is wanted, got "
        .. arguments.describe(config))
    end
    config, given, body = nil, config, given
  end
  if type(given) == "function" and body == nil then given, body = nil, given end
  local unplaced = ...
  if given ~= nil and (type(given) ~= "table" or getmetatable(given)) then unplaced = given end
  if unplaced == nil and body ~= nil and type(body) ~= "function" then unplaced = body end
  if unplaced ~= nil then
    errors.raise("invalid_argument", "flow.global_function: behind the type come a flow.function_config(), a table "
      .. "such as { inputs = ..., returns = ... } and the body, each where there is one, got "
      .. arguments.describe(unplaced))
  end
  local spec = { type = kind, function_config = config }
  for name, value in pairs(given or {}) do
    if spec[name] ~= nil then
      errors.raise("invalid_argument", "flow.global_function: '" .. name .. "' is given by position and in the table")
    end
    spec[name] = value
  end
  return spec, body
end

-- Is this a spec, where inputs by name might stand? Those are types, and not a table of types.
local function is_spec(given)
  if type(given) ~= "table" or getmetatable(given) then return false end
  for name in pairs(given) do
    if not is_field[name] then return false end
  end
  return typing.is(given.returns) or type(given.inputs) == "table" and not getmetatable(given.inputs)
end

--- The spec and the body, which may be absent, of a call.
--- @error an unknown field; a field of another kind than is wanted
function job_spec.of(spec, inputs, body, ...)
  if type(spec) == "string" then
    spec, body = spec_of_type(spec, inputs, body, ...)
    check_spec(spec)
    return spec, body
  end
  if type(spec) == "function" then spec, body = {}, spec end
  if type(inputs) == "function" then inputs, body = nil, inputs end
  if spec == nil then spec = {} end
  if function_config.is(spec) and is_spec(inputs) then
    spec = spec_of_type(nil, spec, inputs)
  elseif function_config.is(spec) then
    spec = { function_config = spec, inputs = inputs }
  elseif type(spec) ~= "table" or getmetatable(spec) then
    errors.raise("invalid_argument", "flow.global_function wants a table, got " .. arguments.describe(spec))
  elseif inputs ~= nil then
    errors.raise("invalid_argument", "flow.global_function: the second argument must be the body, got "
      .. arguments.describe(inputs))
  end
  check_spec(spec)
  return spec, body
end

return job_spec
