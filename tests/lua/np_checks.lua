-- What the specs of flow.np check alike.
local assert = require "luassert"

local checks = {}

--- Calling `body` raises an error with this code, whose message has `pattern`, taken as it is. Gives the error.
function checks.raises(code, pattern, body)
  local fine, problem = pcall(body)
  assert.is_false(fine)
  assert.equal(code, problem.code)
  assert.truthy(problem.message:find(pattern, 1, true), problem.message .. "\nlacks: " .. pattern)
  return problem
end

--- The array has this dtype and these elements.
function checks.same(array, dtype, table)
  assert.equal(dtype, array.dtype)
  assert.same(table, array:totable())
end

return checks
