-- Puts the rounds of ours and of the peer side by side: medians, lowest to highest, how many times as fast we are.
-- usage: moonflow summary.lua OURS.tsv PEER.tsv

-- Rounds by name and configuration, names in the order of their first line.
local function read(path)
  local names, by_name = {}, {}
  for line in io.lines(path) do
    local name, unit, value, configuration = line:match("^(.-)\t(.-)\t(.-)\t(.*)$")
    if not by_name[name] then
      by_name[name] = { unit = unit, configurations = {} }
      names[#names + 1] = name
    end
    local configurations = by_name[name].configurations
    configurations[configuration] = configurations[configuration] or {}
    table.insert(configurations[configuration], tonumber(value))
  end
  return names, by_name
end

local function median(values)
  table.sort(values)
  local middle = #values / 2
  if middle == math.floor(middle) then return (values[middle] + values[middle + 1]) / 2 end
  return values[math.ceil(middle)]
end

-- The median, the rounds and the name of the fastest configuration.
local function best(measurement)
  local rate = measurement.unit == "images/s"
  local chosen, rounds, name
  for configuration, values in pairs(measurement.configurations) do
    local value = median(values)
    if not chosen or (rate and value > chosen) or (not rate and value < chosen) then
      chosen, rounds, name = value, values, configuration
    end
  end
  return chosen, rounds, name
end

local function show(value, rounds)
  return ("%.4g (%.4g to %.4g)"):format(value, rounds[1], rounds[#rounds])
end

local names, ours = read(arg[1])
local _, peers = read(arg[2])
print(("%-38s %-9s %-30s %-30s %-8s %s"):format("", "", "Moonflow", "PyTorch", "faster", "PyTorch's configuration"))
for _, name in ipairs(names) do
  local value, rounds = best(ours[name])
  local line = ("%-38s %-9s %-30s"):format(name, ours[name].unit, show(value, rounds))
  if peers[name] then
    local other, other_rounds, configuration = best(peers[name])
    local ratio = ours[name].unit == "images/s" and value / other or other / value
    line = line .. (" %-30s %-8s %s"):format(show(other, other_rounds), ("%.2f x"):format(ratio), configuration)
  end
  print(line)
end
