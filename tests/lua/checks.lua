-- What many specs do and check alike.
local assert = require "luassert"
local flow = require "moonflow"
local session = require "moonflow.session"
local np, tp = flow.np, flow.typing

local checks = {}

--- What a job of `body` gives for `arrays`. Its inputs are named as the body's parameters, or a, b, c ... if it has
--- none of its own; `options` are those of flow.global_function, where `returns` is tp.Numpy if it is left out.
function checks.run(arrays, body, options)
  local given = { inputs = {}, returns = tp.Numpy }
  for i, array in ipairs(arrays) do
    local name = debug.getlocal(body, i) or ("abcdefgh"):sub(i, i)
    given.inputs[i] = { name, tp.Numpy.Placeholder(array.shape:table(), { dtype = array.dtype }) }
  end
  for name, value in pairs(options or {}) do given[name] = value end
  return flow.global_function(given)(body)(unpack(arrays))
end

--- "name shape" of all variables, by name.
function checks.variables()
  local list = {}
  for i, entry in ipairs(session.handle():variables()) do list[i] = entry.name .. " " .. tostring(entry.shape) end
  return list
end

--- Calling `body(...)` raises an error with this code, whose text has `part`, taken as it is, and whose line is none of
--- Moonflow's own. Gives the error.
function checks.raises(code, part, body, ...)
  local fine, problem = pcall(body, ...)
  assert.is_false(fine, "there was no error")
  assert.is_true(flow.is_error(problem), tostring(problem))
  assert.truthy(tostring(problem):find(part, 1, true), tostring(problem) .. "\nlacks: " .. part)
  assert.is_nil((problem.where or ""):find("lua/moonflow/", 1, true), problem.where)
  assert.equal(code, problem.code)
  return problem
end

--- The same where the code is "invalid_argument", as of a wrong argument.
function checks.refuses(part, body, ...) return checks.raises("invalid_argument", part, body, ...) end

--- The array has this dtype and these elements.
function checks.same(array, dtype, table)
  assert.equal(dtype, array.dtype)
  assert.same(table, array:totable())
end

--- The numbers from 0 on, float32, in this shape.
function checks.count_up(shape)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  return np.arange(count):astype(flow.float):reshape(shape)
end

--- Two arrays have one shape, and no elements of theirs are further apart than `tolerance`, 1e-12 if it is left out.
--- NaN is near nothing. `what` begins the message.
function checks.near(wanted, got, tolerance, what)
  what = what and what .. ": " or ""
  assert.equal(tostring(wanted.shape), tostring(got.shape), what .. "shapes")
  if got.nbytes == 0 then return end
  local apart = np.max(np.abs(wanted - got))
  assert.is_true(apart <= (tolerance or 1e-12), what .. "as far apart as " .. apart)
end

return checks
