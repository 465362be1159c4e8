-- Runs programs for the specs that look at our own from outside: the launcher, the samples, the README.
local process = {}

local launcher = os.getenv("MOONFLOW_LAUNCHER") or "moonflow"

local function quote(word)
  return "'" .. tostring(word):gsub("'", "'\\''") .. "'"
end

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

--- An empty folder of this name, below `scratch` in the working directory, which may be that of the source.
--- @return string  its path
function process.folder(name)
  local pwd = io.popen("pwd"):read("*l")
  local path = pwd .. "/scratch/" .. name
  assert(os.execute(("rm -rf %s && mkdir -p %s"):format(quote(path), quote(path))) == 0)
  return path
end

--- An empty folder with a short path, for sockets, whose paths have 107 bytes at most.
--- @return string  its path; whoever made it removes it
function process.short_folder()
  return io.popen("mktemp -d /tmp/moonflow.XXXXXX"):read("*l")
end

function process.write(path, text)
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
end

process.read = read

--- Runs a shell command and waits for it.
--- @param command string   words that come from outside go through `process.quote`
--- @param options? table   folder to run in, env = { NAME = value }, input = text for standard input
--- @return table           code, out, err
function process.shell(command, options)
  options = options or {}
  local words = {}
  if options.folder then words[#words + 1] = "cd " .. quote(options.folder) .. " &&" end
  local names = {}
  for name in pairs(options.env or {}) do names[#names + 1] = name end
  table.sort(names)
  words[#words + 1] = "env"
  for _, name in ipairs(names) do words[#words + 1] = name .. "=" .. quote(options.env[name]) end
  words[#words + 1] = command
  local err, input = os.tmpname(), os.tmpname()
  process.write(input, options.input or "")
  local pipe = io.popen(("(%s) 2>%s <%s; printf 'exit %%d' $?"):format(table.concat(words, " "), err, input))
  local text = pipe:read("*a")
  pipe:close()
  local out, code = text:match("^(.*)exit (%d+)$")
  local result = { code = tonumber(code), out = out, err = read(err) }
  os.remove(err)
  os.remove(input)
  return result
end

--- Runs our launcher with these arguments.
function process.moonflow(arguments, options)
  local words = { quote(launcher) }
  for _, argument in ipairs(arguments) do words[#words + 1] = quote(argument) end
  return process.shell(table.concat(words, " "), options)
end

process.quote = quote
process.launcher = launcher
process.source = os.getenv("MOONFLOW_SOURCE") or "."
process.build = os.getenv("MOONFLOW_BUILD") or "build"
--- By which a program with a LuaJIT of its own finds the library of the build.
process.paths = {
  LUA_PATH = process.build .. "/lua/?.lua;" .. process.build .. "/lua/?/init.lua;;",
  LUA_CPATH = process.build .. "/lua/?.so;;",
}
process.sanitizer = os.getenv("MOONFLOW_SANITIZE") or ""

return process
