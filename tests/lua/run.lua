-- Runs busted inside whatever program runs this file: `moonflow tests/lua/run.lua tests/lua/job_spec.lua`.
-- Its arguments are busted's. Modules beside this file can be required by the specs.
-- With MOONFLOW_TEST_PLACEMENT=gpu every job that does not say otherwise is placed there. MOONFLOW_TEST_NUMBERS is a
-- locale by which C writes and reads numbers, as a host may have set it.
local here = arg[0]:match("^(.*)/") or "."
package.path = here .. "/?.lua;" .. package.path

local numbers = os.getenv("MOONFLOW_TEST_NUMBERS")
if numbers then assert(os.setlocale(numbers, "numeric"), "there is no locale " .. numbers) end

local placement = os.getenv("MOONFLOW_TEST_PLACEMENT")
if placement then
  local flow = require "moonflow"
  flow.config.strict_placement(true)
  local global_function = flow.global_function
  local function placed(spec)
    local copy = { placement = { placement, "0:0" } }
    for name, value in pairs(spec) do copy[name] = value end
    return copy
  end
  -- By tail calls, so that the library sees the spec's own lines.
  function flow.global_function(spec, inputs, body)
    if type(spec) == "function" then return global_function(placed({}), spec) end
    if spec == nil or type(spec) == "table" and not getmetatable(spec) then spec = placed(spec or {}) end
    return global_function(spec, inputs, body)
  end
end

-- On a failure busted leaves the process itself. Called through pcall it takes itself for a program without a file of
-- its own, and then says the failure by its exit code instead of an error without a message.
local fine, problem = pcall(require "busted.runner", { standalone = false })
if not fine then
  io.stderr:write(tostring(problem), "\n")
  os.exit(1, true)
end
