-- The gpus that specs about them run on. Where there is none it gives nil, and the spec file has one test: pending for
-- that reason, or failing with it where MOONFLOW_REQUIRE_GPU says that a check of a card must not pass unseen.
-- `describe`, `it` and `pending` are the spec's own.
return function(describe, it, pending)
  local gpus, reason = require("moonflow").config.gpu_devices()
  if #gpus > 0 then return gpus end
  describe("a gpu", function()
    if os.getenv("MOONFLOW_REQUIRE_GPU") == "1" then
      it("is there", function() error(reason, 0) end)
    else
      pending(reason)
    end
  end)
end
