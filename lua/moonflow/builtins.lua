--- Builtins: the environment of the library's own files: Lua's functions as they are when the library is loaded.
-- A script may have a global `type` or `next` of its own, and the prompt in which one was typed must go on to work. All
-- else is looked up in the globals, `print` too: a script that replaces it also means what the library prints.
-- Plain Lua, no engine.

local builtins = {}

for name in ([[
  _G _VERSION assert bit collectgarbage coroutine debug dofile error gcinfo getfenv getmetatable io ipairs jit load
  loadfile loadstring math module newproxy next os package pairs pcall rawequal rawget rawset require select setfenv
  setmetatable string table tonumber tostring type unpack xpcall
]]):gmatch("%S+") do builtins[name] = rawget(_G, name) end

return setmetatable(builtins, { __index = _G })
