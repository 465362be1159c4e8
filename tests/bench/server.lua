-- Processes that serve measurements, as ours.lua and peer.py do.
local Server = {}
Server.__index = Server

--- Starts one; nil when it ends at once.
--- @param log string  the file for what it says on standard error
function Server.start(command, log)
  local fifo = os.tmpname()
  assert(os.execute(("rm %s && mkfifo %s"):format(fifo, fifo)) == 0, "no mkfifo")
  local to = io.popen(("exec >%s 2>>%s; echo $$; %s"):format(fifo, log, command), "w")
  local from = io.open(fifo)
  os.remove(fifo)
  local pid, name = from:read("*l"), from:read("*l")
  local server = setmetatable({ to = to, from = from, log = log, pid = pid, name = name }, Server)
  if server.name then return server end
  to:close()
end

-- CPU seconds of this process and its children, in ticks.
function Server:ticks()
  local file = io.open("/proc/" .. self.pid .. "/stat")
  local after = file:read("*a"):match("%) (.*)")
  file:close()
  local fields = {}
  for field in after:gmatch("%S+") do fields[#fields + 1] = tonumber(field) or 0 end
  return fields[12] + fields[13] + fields[14] + fields[15]
end

-- All CPU time of the machine: busy, and in all.
local function machine_ticks()
  local file = io.open("/proc/stat")
  local busy, all, index = 0, 0, 0
  for field in file:read("*l"):gmatch("%d+") do
    index = index + 1
    if index <= 8 then all = all + field end
    if index <= 8 and index ~= 4 and index ~= 5 then busy = busy + field end -- 4 and 5 are idle and waiting for a disk
  end
  file:close()
  return busy, all
end

-- Values by configuration, and the share of the machine that others took meanwhile.
function Server:measure(name, seconds, configurations)
  local own, busy, all = self:ticks(), machine_ticks()
  self.to:write(name, "\t", seconds, "\t", configurations or "", "\n")
  self.to:flush()
  local values = {}
  while true do
    local line = self.from:read("*l")
    if not line then error(self.name .. " ended while it measured '" .. name .. "'; see " .. self.log, 0) end
    if line == "done" then break end
    local value, configuration = line:match("^(.-)\t(.*)$")
    values[configuration] = tonumber(value)
  end
  local busy_after, all_after = machine_ticks()
  local others = (busy_after - busy - (self:ticks() - own)) / math.max(1, all_after - all)
  return values, math.max(0, others)
end

function Server:stop()
  self.to:close()
  self.from:close()
end

return Server
