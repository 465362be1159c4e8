--- Answer: what the objects that scripts hold say of words that they lack, read or set.

local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"

local function methods_of(class)
  for _, known in ipairs(arguments.classes) do
    if known.class == class then return known.methods end
  end
  return {}
end

--- Lets a class answer words that it lacks: what users know from elsewhere, and its own methods misspelt. What to write
--- in their place is the error of reading one; all other words are nil. To set any of them is an error too, since
--- nothing would read it: what the library itself sets later is a field from the beginning.
--- @param class table    whose metatable it becomes
--- @param what string    "an optimizer"
--- @param words? table   { word = "what to do" }
local function answer(class, what, words)
  local function fail_known(key)
    local known = words and words[key]
    if known then errors.raise("not_found", what .. " has no '" .. key .. "'; " .. known) end
  end

  local strange = {}  -- words that are near to no method
  setmetatable(class, { __index = function(_, key)
    if strange[key] or type(key) ~= "string" then return nil end
    fail_known(key)
    local near = arguments.nearest(key, methods_of(class))
    if near then errors.raise("not_found", what .. " has no '" .. key .. "'; did you mean " .. near .. "?") end
    strange[key] = true
  end })

  function class.__newindex(_, key)
    fail_known(key)
    errors.raise("not_found", ("%s has no '%s' that can be set; what it does was said when it was made, and what a "
      .. "script notes about it goes into a table of its own"):format(what, tostring(key)))
  end
end

return answer
