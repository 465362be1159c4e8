-- Programs with a LuaJIT of their own, from the folder that tests/hosts.sh has unpacked, and the programs for them in
-- docs/embedding.md.
local process = require "process"

local host = {}

local root, prefix = os.getenv("MOONFLOW_HOSTS"), os.getenv("MOONFLOW_PREFIX")
host.root = root

--- What a host needs in its environment to find its own libraries and Moonflow.
host.env = {
  LD_LIBRARY_PATH = io.popen("ls -d " .. root .. "/usr/lib/*-linux-gnu"):read("*l"),
  LUA_PATH = ("R/usr/share/lua/5.1/?.lua;P/share/lua/5.1/?.lua;P/share/lua/5.1/?/init.lua;;")
    :gsub("[RP]", { R = root, P = prefix }),
  LUA_CPATH = prefix .. "/lib/lua/5.1/?.so;;",
}

--- The shell words of a program of the host's, with its environment.
function host.command(program, ...)
  local words = { "env" }
  for name, value in pairs(host.env) do words[#words + 1] = name .. "=" .. process.quote(value) end
  words[#words + 1] = process.quote(root .. program)
  for _, argument in ipairs { ... } do words[#words + 1] = process.quote(argument) end
  return table.concat(words, " ")
end

--- The indented program below this heading of docs/embedding.md.
function host.program(heading)
  local document = process.read(process.source .. "/docs/embedding.md")
  local section = assert(document:match("\n###? " .. heading .. "\n(.-)\n##"), heading)
  local lines = {}
  for line in section:gmatch("[^\n]*") do
    if line:find("^    ") then lines[#lines + 1] = line:sub(5) end
  end
  assert(#lines > 0, heading)
  return table.concat(lines, "\n") .. "\n"
end

return host
