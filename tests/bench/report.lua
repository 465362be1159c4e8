-- The page of the benchmark: the rounds of all sides as tables of medians, with the spread of the rounds.

local scale = { ms = 1e3, us = 1e6, ["% slower"] = 1, MiB = 1, x = 1 }

local function median(values)
  local sorted = { unpack(values) }
  table.sort(sorted)
  local middle = #sorted / 2
  if middle == math.floor(middle) then return (sorted[middle] + sorted[middle + 1]) / 2, sorted[1], sorted[#sorted] end
  return sorted[math.ceil(middle)], sorted[1], sorted[#sorted]
end

local function figure(value)
  if math.abs(value) >= 1000 then return ("%.0f"):format(value) end
  return ("%.3g"):format(value)
end

-- "12.3 (12.1 to 12.9)"
local function spread(middle, least, greatest)
  if least == greatest then return figure(middle) end
  return ("%s (%s to %s)"):format(figure(middle), figure(least), figure(greatest))
end

-- The configuration with the smallest median among all but ours: its rounds and what it is called.
local function best_peer(sides)
  local rounds, name
  for side, configurations in pairs(sides) do
    for configuration, values in pairs(side ~= "Moonflow" and configurations or {}) do
      if not rounds or median(values) < median(rounds) then
        rounds, name = values, side .. (configuration ~= "" and ", " .. configuration or "")
      end
    end
  end
  return rounds, name
end

-- Of the ratios of each round, the least and the greatest; and the ratio of the medians.
local function ratio_of(theirs, ours)
  local ratios = {}
  for i = 1, math.min(#theirs, #ours) do ratios[i] = theirs[i] / ours[i] end
  local _, least, greatest = median(ratios)
  return median(theirs) / median(ours), least, greatest
end

local function verdict(row, threads, value, ratio)
  local floor, target = row.floor and row.floor[threads], row.target and row.target[threads]
  local function reached(goal)
    if row.own then return value <= goal end
    return ratio and ratio >= goal
  end
  if not floor and not target then return "" end
  if not row.own and not ratio then return "no peer" end
  if target and reached(target) then return "target met" end
  if floor then return reached(floor) and "floor met" or "**not met**" end
  return "target not met"
end

local function goal(row, goals, threads)
  if not goals or not goals[threads] then return "" end
  return row.own and "at most " .. goals[threads] or goals[threads] .. " x"
end

local function line_of(row, threads, sides)
  local ours = sides.Moonflow and sides.Moonflow[""]
  if not ours then return ("| %s, %s | not in this build | | | | | |"):format(row.name, row.unit) end
  local by = scale[row.unit]
  local function shown(values)
    local middle, least, greatest = median(values)
    return spread(middle * by, least * by, greatest * by)
  end
  local theirs, name = best_peer(sides)
  local ratio, ratio_text = nil, ""
  if theirs then
    local least, greatest
    ratio, least, greatest = ratio_of(theirs, ours)
    ratio_text = ("%.2f (%.2f to %.2f)"):format(ratio, least, greatest)
  end
  return ("| %s, %s | %s | %s | %s | %s | %s | %s |"):format(row.name, row.unit, shown(ours),
    theirs and shown(theirs) .. "; " .. name or "", ratio_text, goal(row, row.floor, threads),
    goal(row, row.target, threads), verdict(row, threads, median(ours) * by, ratio))
end

local function first_match(path, pattern)
  for line in io.lines(path) do
    local found = line:match(pattern)
    if found then return found end
  end
  return "?"
end

local function command(text)
  local process = io.popen(text)
  local line = process:read("*l") or "?"
  process:close()
  return line
end

local report = { line = line_of }

--- `run` is what run.lua has gathered. Gives the page as text.
function report.page(rows, run)
  local peers = {}
  for name in pairs(run.peers) do peers[#peers + 1] = name end
  table.sort(peers)
  local taken, least, most = median(run.others[1] and run.others or { 0 })
  local lines = {
    "# CPU: Moonflow beside its peers",
    "",
    "Written whole by `bash tests/bench/run.sh`. [results.md](../results.md) has what it does not measure.",
    "",
    ("* %s, %s cores, %s GiB; Linux %s; %s"):format(first_match("/proc/cpuinfo", "^model name%s*:%s*(.*)"),
      command("nproc"), figure(first_match("/proc/meminfo", "^MemTotal:%s*(%d+)") / 1024 / 1024), command("uname -r"),
      command("date +%F")),
    ("* %s at commit %s; peers: %s"):format(run.version, command("git describe --always --dirty"),
      #peers > 0 and table.concat(peers, ", ") or "none"),
    ("* medians of %d rounds of %g s (least to greatest), all sides in turn; a ratio says how many times as long the "
      .. "best configuration of the best peer takes, with the spread of the rounds"):format(run.rounds, run.seconds),
    ("* of the machine others took %.1f %% (%.1f to %.1f %%) while something was measured; load %s at the end"):format(
      100 * taken, 100 * least, 100 * most, first_match("/proc/loadavg", "^(%S+)")),
  }
  if #run.round_trips > 0 then
    lines[#lines + 1] = ("* a cache line went from core to core and back in %s ns, measured after each row of several "
      .. "threads"):format(spread(median(run.round_trips)))
  end
  for _, threads in ipairs(run.threads) do
    lines[#lines + 1] = ""
    lines[#lines + 1] = ("| %d thread%s | Moonflow | best peer | ratio | floor | target | |"):format(threads,
      threads == 1 and "" or "s")
    lines[#lines + 1] = "|---|---|---|---|---|---|---|"
    for _, row in ipairs(rows) do
      local sides = run.results[threads][row.name]
      if sides then lines[#lines + 1] = line_of(row, threads, sides) end
    end
  end
  return table.concat(lines, "\n") .. "\n"
end

return report
