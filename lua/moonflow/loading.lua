--- Loading: opens the library, moonflow/core.so, and says in one line why it does not open and what to do; finds the
--- other files of Moonflow.

local builtins = require "moonflow.builtins"
setfenv(1, builtins)

local package = package
local folder = debug.getinfo(1, "S").source:match("^@(.*)loading%.lua$")

local loading = {}

-- What the dynamic linker says, and what to do about it.
local function remedy(complaint)
  local missing = complaint:match("^([^%s:/]+): cannot open shared object file")
  if missing then
    return "; install what has " .. missing .. " (`ldd` of the library lists all that is missing, and `bash .ci/setup` "
      .. "in Moonflow's sources installs it on Debian)"
  end
  if complaint:find("undefined symbol: luaL?_") then
    local version = type(jit) == "table" and jit.version or _VERSION
    if not version:find("^LuaJIT 2%.[1-9]") then return "; it needs LuaJIT 2.1, and this is " .. version end
    return "; the program hides its LuaJIT: it must export the lua_ functions, or open LuaJIT with RTLD_GLOBAL (see "
      .. "'Link' in docs/embedding.md)"
  end
  if complaint:find("undefined symbol:", 1, true) or complaint:find("version `[^']*' not found") then
    return "; it was built with other versions of the libraries below it: build it on this machine"
  end
  if complaint:find("ELF", 1, true) or complaint:find("file too short", 1, true) then
    return "; the file is damaged or for another machine: build or install it again"
  end
  return ""
end

local function explain(problem)
  if type(problem) ~= "string" then return problem end
  if problem:find("^module 'moonflow%.core' not found") then
    return "moonflow: its library moonflow/core.so is nowhere on package.cpath; add lua/?.so of the build folder, or "
      .. "lib/lua/5.1/?.so of the installation, to what is now '" .. package.cpath .. "'"
      .. (type(rawget(_G, "love")) == "table"
        and ", or the folder inside of the game by love.filesystem.setCRequirePath('??;lib/??'); see 'A LÖVE game' in "
          .. "docs/embedding.md" or "")
  end
  local file, complaint = problem:match("^error loading module 'moonflow%.core' from file '(.-)':%s+(.*)$")
  if not file then return problem end
  if complaint:sub(1, #file + 2) == file .. ": " then complaint = complaint:sub(#file + 3) end
  return "moonflow: its library '" .. file .. "' does not open: " .. complaint .. remedy(complaint)
end

--- The module moonflow.core.
--- @error the library is not there, or does not open
function loading.core()
  local fine, core = pcall(require, "moonflow.core")
  if not fine then error(explain(core), 0) end
  return core
end

--- Lets `require` look for Moonflow's other files beside this one first, and take what the library has of them: they
--- were compiled when it was built, for the LuaJIT it was built with. Whatever globals a script makes, they see Lua's
--- own functions. Each is run once: where a script has taken them out of package.loaded, `require` gives those that
--- there are, with all that they hold.
function loading.find_beside(core)
  if not folder or core.find_beside or type(package.loaders) ~= "table" then return end
  local compiled = type(jit) == "table" and jit.version == core.build_info().lua

  local modules = { ["moonflow.builtins"] = builtins, ["moonflow.core"] = core, ["moonflow.loading"] = loading }
  core.modules = modules

  function core.find_beside(name)
    local stem = name:match("^moonflow%.([%w_.]+)$")
    if not stem then return nil end
    if modules[name] then return function() return modules[name] end end
    local path = folder .. stem:gsub("%.", "/") .. ".lua"
    local fine, chunk, complaint = pcall(core.load_file, path, compiled)
    if not fine then return "\n\t" .. (chunk.code == "not_found" and "no file '" .. path .. "'" or tostring(chunk)) end
    if not chunk then error(("error loading module '%s' from file '%s':\n\t%s"):format(name, path, complaint), 0) end
    setfenv(chunk, builtins)
    return function(...)
      modules[name] = chunk(...) or true  -- as require notes a file that gives nothing
      return modules[name]
    end
  end
  table.insert(package.loaders, 2, core.find_beside)
end

--- What `require "moonflow"` has given in this Lua state before, with its files back in package.loaded; or nil. Where a
--- script has taken them out, to have its own files run again, it goes on with the engine, jobs and weights it has.
function loading.again(core)
  if not core.flow then return nil end
  for name, module in pairs(core.modules or {}) do package.loaded[name] = module end
  return core.flow
end

return loading
