-- Drives the benchmark (run.sh has its usage). Every side is a process that serves measurements, one row at a time, so
-- that what is compared was measured within seconds. The order turns round after round, so a drift favours nobody.
package.path = arg[0]:match("^(.*/)") .. "?.lua;" .. package.path
local now = require "clock"
local report = require "report"
local rows = require "rows"
local Server = require "server"

local options = { threads = "1,2", rounds = 5, seconds = 1 }
local switches = { ours = true, ops = true }
local valued = { only = true, threads = true, rounds = true, seconds = true, page = true }
do
  local i = 1
  while arg[i] do
    local name = arg[i]:match("^%-%-(%a+)$")
    if switches[name] then
      options[name] = true
    elseif valued[name] then
      i = i + 1
      options[name] = arg[i] or error("--" .. name .. " needs a value", 0)
    else
      error("run.sh has no option " .. arg[i] .. "; its first lines say what it has", 0)
    end
    i = i + 1
  end
end
if options.ops then rows = require "op_rows" end
local is_whole = not (options.only or options.ours or options.ops)
options.page = options.page or is_whole and "docs/results/cpu.md"

-- ---- processes ------------------------------------------------------------------------------------------------------

local log = "build/bench.log" -- what the peers have to say

-- As many cores as threads for all. Ours runs as a user runs it.
local function alone(threads)
  return ("OMP_NUM_THREADS=%d exec taskset -c 0-%d "):format(threads, threads - 1)
end

-- PyTorch gets what is known to serve it best: memory is kept by malloc instead of given back to the system, threads
-- stay on their cores, and inductor compiles in the process itself, where its CPU time can be seen.
local tuned = table.concat({
  "LD_LIBRARY_PATH=" .. os.getenv("MOONFLOW_BENCH_BLAS"), "OMP_PROC_BIND=close", "MALLOC_MMAP_THRESHOLD_=4000000000",
  "MALLOC_TRIM_THRESHOLD_=8000000000", "MALLOC_TOP_PAD_=268435456", "TORCHINDUCTOR_COMPILE_THREADS=1",
  "TORCHINDUCTOR_CACHE_DIR=build/inductor ",
}, " ")

local function ours(threads)
  return alone(threads) .. "build/moonflow tests/bench/ours.lua"
end

-- A row in a process of its own: seconds of its whole life for "start of the process ...", else what it prints.
local function measure_fresh(row, command, threads_of_ours)
  local is_start = row.name:match("^start of the process")
  command = command .. (" %q"):format(row.name)
  if is_start and threads_of_ours then
    command = alone(threads_of_ours) .. "build/moonflow tests/bench/first_result.lua"
  end
  local before = now()
  local process = io.popen(command .. " 2>>" .. log)
  local text = process:read("*a")
  local life = now() - before
  process:close()
  if is_start then return text ~= "" and life or nil end
  return tonumber(text:match("^(.-)\t"))
end

-- ---- peers ----------------------------------------------------------------------------------------------------------

local function pythons()
  local named = os.getenv("MOONFLOW_BENCH_PYTHON")
  local found, seen = {}, {}
  for python in (named or "python3 /usr/bin/python3"):gmatch("%S+") do
    local process = io.popen(python .. " -c 'import sys; print(sys.executable)' 2>>" .. log)
    local path = process:read("*l")
    process:close()
    if path and not seen[path] then
      seen[path] = true
      found[#found + 1] = python
    elseif not path and named then
      error(python .. ", which MOONFLOW_BENCH_PYTHON names, does not run", 0)
    end
  end
  return found
end

-- Commands by kind: how a peer is started with so many threads.
local function peers()
  local list = {}
  if options.ours then return list end
  for _, python in ipairs(pythons()) do
    local function has(modules) return os.execute(("%s -c 'import %s' 2>>%s"):format(python, modules, log)) == 0 end
    if has("torch") then
      list[#list + 1] = {
        fresh = function(threads) return alone(threads) .. python .. " tests/bench/torch_peer.py " .. threads end,
        serving = function(threads)
          return tuned .. alone(threads) .. python .. " tests/bench/torch_peer.py " .. threads
        end,
      }
    end
    if has("onnx, onnxruntime, numpy") then
      list[#list + 1] = {
        serving = function(threads) return alone(threads) .. python .. " tests/bench/onnx_peer.py " .. threads end,
      }
    end
  end
  if #list == 0 then io.stderr:write("neither PyTorch nor ONNX Runtime found: Moonflow alone\n") end
  return list
end

-- ---- measuring ------------------------------------------------------------------------------------------------------

local run = { rounds = tonumber(options.rounds), seconds = tonumber(options.seconds), peers = {}, others = {},
              round_trips = {}, threads = {}, results = {} }
for count in options.threads:gmatch("%d+") do run.threads[#run.threads + 1] = tonumber(count) end

local function selected(row)
  return not options.only or (" " .. row.name:lower()):find(" " .. options.only:lower(), 1, true)
end

-- Adds one round: results[threads][row][side][configuration] is a list of values.
local function note(threads, row, side, values, others)
  local sides = run.results[threads][row.name] or {}
  run.results[threads][row.name] = sides
  sides[side] = sides[side] or {}
  for configuration, value in pairs(values) do
    sides[side][configuration] = sides[side][configuration] or {}
    table.insert(sides[side][configuration], value)
  end
  run.others[#run.others + 1] = others
end

-- Nanoseconds that a cache line takes between the cores just now.
local function note_round_trip()
  local process = io.popen("build/tests/round_trip")
  run.round_trips[#run.round_trips + 1] = tonumber((process:read("*a")))
  process:close()
end

-- The configurations of a peer worth another round: those that were not far behind the best of all in the first one.
local function worthwhile(sides, peer)
  local best = math.huge
  for side, configurations in pairs(sides) do
    for _, values in pairs(side ~= "Moonflow" and configurations or {}) do best = math.min(best, values[1]) end
  end
  local names = {}
  for name, values in pairs(sides[peer] or {}) do
    if values[1] < 1.6 * best then names[#names + 1] = name end
  end
  table.sort(names)
  return #names > 0 and table.concat(names, "|") or nil
end

local function in_turn(list, round)
  local turned = {}
  for i, item in ipairs(list) do turned[round % 2 == 1 and i or #list + 1 - i] = item end
  return ipairs(turned)
end

local kinds = peers()
for _, threads in ipairs(run.threads) do
  run.results[threads] = {}
  local servers = { Server.start(ours(threads), log) }
  for _, kind in ipairs(kinds) do
    local server = Server.start(kind.serving(threads), log)
    if server then
      server.fresh = kind.fresh and kind.fresh(threads)
      servers[#servers + 1] = server
      run.peers[server.name] = true
    end
  end
  run.version = servers[1].name
  servers[1].name = "Moonflow"
  servers[1].fresh = ours(threads)
  for round = 1, run.rounds do
    for _, row in ipairs(rows) do
      if selected(row) then
        io.stderr:write(("%d threads, round %d of %d: %s\n"):format(threads, round, run.rounds, row.name))
      end
      for _, server in in_turn(selected(row) and servers or {}, round) do
        local sides = run.results[threads][row.name]
        local is_ours = server == servers[1]
        if sides and sides.Moonflow and not next(sides.Moonflow) then break end  -- nothing to compare
        if row.fresh then
          local value = server.fresh and measure_fresh(row, server.fresh, is_ours and threads)
          if value then note(threads, row, server.name, { [""] = value }) end
        elseif round == 1 or is_ours then
          note(threads, row, server.name, server:measure(row.name, options.seconds))
        else
          local wanted = worthwhile(sides, server.name)
          if wanted then note(threads, row, server.name, server:measure(row.name, options.seconds, wanted)) end
        end
      end
      if threads > 1 and selected(row) then note_round_trip() end
      local so_far = run.results[threads][row.name]
      if so_far then io.stderr:write(report.line(row, threads, so_far), "\n") end
    end
  end
  for _, server in ipairs(servers) do server:stop() end
end

local text = report.page(rows, run)
io.write(text)
if options.page then
  os.execute("mkdir -p " .. (options.page:match("^(.*)/") or "."))
  local page = assert(io.open(options.page, "w"))
  page:write(text)
  page:close()
end
