-- What a million small predict calls leave behind: resident memory, Lua heap and open files after the first ten
-- thousand calls and at the end. Limits: 1 MiB, 64 KiB, 0 files.
--   build/moonflow tests/bench/soak.lua [calls]
local flow = require "moonflow"
local tp, np = flow.typing, flow.np

local CALLS = tonumber((...)) or 1000000
local WARM_UP = 10000

local function resident_kib()
  local file = io.open("/proc/self/status")
  local kib = file:read("*a"):match("VmRSS:%s+(%d+) kB")
  file:close()
  return tonumber(kib)
end

local function open_files()
  local listing = io.popen("ls /proc/$PPID/fd | wc -l")
  local count = listing:read("*n")
  listing:close()
  return count
end

local function state()
  collectgarbage()
  collectgarbage()
  return { resident = resident_kib(), heap = collectgarbage("count"), files = open_files() }
end

local predict = flow.global_function {
  inputs = { x = tp.Numpy.Placeholder({ 1, 16 }) },
  returns = tp.Numpy,
} (function(x)
  local hidden = flow.layers.dense(x, 32, { activation = flow.nn.relu, name = "hidden" })
  return flow.nn.softmax(flow.layers.dense(hidden, 4, { name = "output" }))
end)

local x = np.random.uniform(-1, 1, { 1, 16 }):astype(flow.float)
local before
for call = 1, CALLS do
  predict(x)
  if call == WARM_UP then before = state() end
end
local after = state()
print(("%d calls; since call %d: resident memory %+d KiB, Lua heap %+.1f KiB, open files %+d"):format(CALLS, WARM_UP,
  after.resident - before.resident, after.heap - before.heap, after.files - before.files))
