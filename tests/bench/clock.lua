-- Seconds of a clock that only runs forward.
local ffi = require "ffi"

ffi.cdef [[
  struct moonflow_bench_time { long seconds, nanoseconds; };
  int clock_gettime(int clock, struct moonflow_bench_time* time);
]]
local time = ffi.new("struct moonflow_bench_time")

return function()
  ffi.C.clock_gettime(1, time) -- CLOCK_MONOTONIC
  return tonumber(time.seconds) + tonumber(time.nanoseconds) * 1e-9
end
