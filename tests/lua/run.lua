-- Runs busted inside whatever program runs this file: `moonflow tests/lua/run.lua tests/lua/job_spec.lua`.
-- Its arguments are busted's. Modules beside this file can be required by the specs.
local here = arg[0]:match("^(.*)/") or "."
package.path = here .. "/?.lua;" .. package.path

-- On a failure busted leaves the process itself. Called through pcall it takes itself for a program without a file of
-- its own, and then says the failure by its exit code instead of an error without a message.
local fine, problem = pcall(require "busted.runner", { standalone = false })
if not fine then
  io.stderr:write(tostring(problem), "\n")
  os.exit(1, true)
end
