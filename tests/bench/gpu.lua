-- Measures Moonflow on a GPU beside PyTorch on the same one, in turn, and writes what it found: speed.json, and the
-- page speed.md with medians and the spread of the rounds. gpu_check.sh runs it; a figure is written as soon as it is
-- there, so what ends it early costs only the rest.
--   moonflow tests/bench/gpu.lua FOLDER [--python PYTHON] [--rounds 3] [--seconds 0.3] [--limit SECONDS] [--device gpu]
--     [--log FILE] [--only TEXT, rows whose name has it]
-- An empty --python measures ours alone.
package.path = arg[0]:match("^(.*/)") .. "?.lua;" .. package.path
local now = require "clock"
local Server = require "server"

local folder = assert(arg[1], "the first argument is the folder of the results")
local options = { python = "python3", rounds = 3, seconds = 0.3, limit = 200, device = "gpu" }
for i = 2, #arg, 2 do
  local name = arg[i]:match("^%-%-(%a+)$")
  local known = name and (options[name] or name == "log" or name == "only")
  if not known then error("gpu.lua has no option " .. arg[i], 0) end
  options[name] = tonumber(arg[i + 1]) or arg[i + 1]
end
local here, moonflow = arg[0]:match("^(.*/)"), arg[-1] or "moonflow"
local start = now()
local log = options.log or folder .. "/speed.log"

-- What is measured, in the order of the page. `eager` and `graph`: how many times as fast as PyTorch's so called
-- configurations we are to be. `most`: what our own value may be. `own`: rows without PyTorch.
local rows = {
  { name = "LeNet training tf32, asynchronous", unit = "us", eager = 3, graph = 1.3, most = 130 },
  { name = "MLP training tf32, asynchronous", unit = "us", eager = 6, graph = 2, most = 25 },
  { name = "LeNet training, asynchronous", unit = "us" },
  { name = "MLP training, asynchronous", unit = "us" },
  { name = "MLP predict, batch 1", unit = "us", most = 20 },
  { name = "MLP predict, batch 1, slowest of 100", unit = "us", own = true },
  { name = "watch of the logits at every LeNet step", unit = "%", own = true, most = 3 },
  { name = "start of an MLP training step", unit = "us", own = true, most = 8 },
  { name = "start of a LeNet training step", unit = "us", own = true, most = 8 },
  { name = "LeNet training", unit = "us" },
  { name = "MLP training", unit = "us" },
  { name = "LeNet training tf32", unit = "us" },
  { name = "MLP training tf32", unit = "us" },
  { name = "LeNet training, asynchronous, 1 slot", unit = "us", own = true },
  { name = "LeNet training, asynchronous, 2 slots", unit = "us", own = true },
  { name = "MLP training, asynchronous, 1 slot", unit = "us", own = true },
  { name = "MLP training, asynchronous, 2 slots", unit = "us", own = true },
  { name = "LeNet predict, batch 100", unit = "us" },
  { name = "MLP predict, batch 100", unit = "us" },
  { name = "LeNet training bf16, asynchronous", unit = "us" },
  { name = "MLP training bf16, asynchronous", unit = "us" },
  { name = "call of relu(x + 1) on 5 floats", unit = "us", own = true },
}
-- Compiling takes PyTorch long, so it comes last and for these rows alone.
local compiled = { ["LeNet training tf32, asynchronous"] = true, ["MLP training tf32, asynchronous"] = true,
                   ["MLP predict, batch 1"] = true }
if options.only then
  for i = #rows, 1, -1 do
    if not rows[i].name:find(options.only, 1, true) then table.remove(rows, i) end
  end
end

-- ---- results --------------------------------------------------------------------------------------------------------

local names = {} -- side -> what it calls itself
local found = {}               -- row -> side -> configuration -> values of the rounds

local function note(row, side, values)
  for configuration, value in pairs(values) do
    local of_row = found[row.name] or {}
    local of_side = of_row[side] or {}
    found[row.name], of_row[side] = of_row, of_side
    of_side[configuration] = of_side[configuration] or {}
    table.insert(of_side[configuration], value)
  end
end

local function median(values)
  if not values then return nil end
  local sorted = { unpack(values) }
  table.sort(sorted)
  return sorted[math.ceil(#sorted / 2)], sorted[1], sorted[#sorted]
end

local function json(value)
  if type(value) == "string" then return ("%q"):format(value) end
  if type(value) == "number" then return ("%.9g"):format(value) end
  local parts = {}
  if #value > 0 then
    for i, item in ipairs(value) do parts[i] = json(item) end
    return "[" .. table.concat(parts, ", ") .. "]"
  end
  local keys = {}
  for key in pairs(value) do keys[#keys + 1] = key end
  table.sort(keys)
  for i, key in ipairs(keys) do parts[i] = json(key) .. ": " .. json(value[key]) end
  return "{" .. table.concat(parts, ", ") .. "}"
end

local scale = { us = 1e6, ["%"] = 1 }

local function figure(row, values)
  local middle, least, greatest = median(values)
  if not middle then return "" end
  local by = scale[row.unit]
  return ("%.4g (%.4g to %.4g)"):format(middle * by, least * by, greatest * by)
end

local function best_of(side, configurations)
  local best
  for _, name in ipairs(configurations) do
    local values = side and side[name]
    if values and (not best or median(values) < median(best)) then best = values end
  end
  return best
end

local function ratio(theirs, ours)
  return theirs and ours and median(theirs) / median(ours)
end

-- "met", "missed", or what there is to say instead.
local function verdict(row, ours, eager, graph)
  if not ours then return "not measured" end
  local goals, missed = 0, {}
  local function goal(wanted, holds, words)
    if not wanted then return end
    goals = goals + 1
    if not holds then missed[#missed + 1] = words end
  end
  goal(row.eager, eager and eager >= (row.eager or 0), ("%g x eager"):format(row.eager or 0))
  goal(row.graph, graph and graph >= (row.graph or 0), ("%g x graph"):format(row.graph or 0))
  goal(row.most, median(ours) * scale[row.unit] <= (row.most or 0), ("at most %g %s"):format(row.most or 0, row.unit))
  if goals == 0 then return "" end
  return #missed == 0 and "met" or "**missed** " .. table.concat(missed, ", ")
end

local function page()
  local lines = {
    "| | ours | ours without graphs | PyTorch eager | PyTorch graph | PyTorch compiled | to eager | to graph | goals |",
    "|---|---|---|---|---|---|---|---|---|",
  }
  for _, row in ipairs(rows) do
    local of_row = found[row.name] or {}
    local ours, torch = of_row.ours and of_row.ours[""], of_row.torch or {}
    local eager, graph = ratio(torch.eager, ours), ratio(torch.graph, ours)
    local plain = of_row["ours without graphs"] and of_row["ours without graphs"][""]
    local cells = {
      row.name .. ", " .. row.unit, figure(row, ours), figure(row, plain), figure(row, torch.eager),
      figure(row, torch.graph), figure(row, best_of(torch, { "compile", "compile, graph" })),
      eager and ("%.2f"):format(eager) or "", graph and ("%.2f"):format(graph) or "", verdict(row, ours, eager, graph),
    }
    lines[#lines + 1] = "| " .. table.concat(cells, " | ") .. " |"
  end
  return table.concat(lines, "\n") .. "\n"
end

local function write(name, text)
  local file = assert(io.open(folder .. "/" .. name, "w"))
  file:write(text)
  file:close()
end

local function save()
  write("speed.json", json({ sides = names, seconds = found, rounds = options.rounds }) .. "\n")
  write("speed.md", page())
end

-- ---- measuring ------------------------------------------------------------------------------------------------------

local servers, failed = {}, false

local function open(side, command)
  local server = Server.start(command, log)
  if server then
    names[side] = server.name
  else
    failed = true
    local reason
    for line in io.lines(log) do
      if line:find("%S") then reason = line end
    end
    print(side .. " does not start: " .. tostring(reason))
  end
  servers[side] = server
  return server
end

local function out_of_time()
  return now() - start > options.limit
end

local function measure(row, side, configurations)
  if not servers[side] or out_of_time() then return end
  local fine, values = pcall(servers[side].measure, servers[side], row.name, options.seconds, configurations)
  if fine then
    note(row, side, values)
    return save()
  end
  failed = true
  servers[side]:stop()
  servers[side] = nil
  print(values)
end

local ours = ("MOONFLOW_BENCH_DEVICE=%s exec %s %sours.lua"):format(options.device, moonflow, here)
if not open("ours", ours) then os.exit(1) end
open("ours without graphs", "MOONFLOW_CUDA_GRAPH=0 " .. ours)
if options.python ~= "" then open("torch", ("exec %s %storch_gpu_peer.py"):format(options.python, here)) end

for round = 1, options.rounds do
  for _, row in ipairs(rows) do
    -- The order turns, so that a drift of the machine favours nobody.
    local sides = { "ours", "ours without graphs", not row.own and "torch" or nil }
    for i = 1, #sides do
      local side = sides[(i + round) % #sides + 1]
      measure(row, side, side == "torch" and "eager|graph" or nil)
    end
  end
end
for _ = 1, options.rounds do
  for _, row in ipairs(rows) do
    if compiled[row.name] then
      measure(row, "torch", "compile" .. (row.name:find("training") and "|compile, graph" or ""))
      measure(row, "ours")
    end
  end
end

for _, server in pairs(servers) do server:stop() end
io.write(page())
if out_of_time() then print("out of time: some of it was not measured") end
os.exit((failed or out_of_time()) and 1 or 0)
