--- Choices of variables by names: their own, or those of the layers and namespaces they are in.

local arguments = require "moonflow.arguments"

local choices = {}

-- Is `choice` this variable, or a layer or namespace that it is in? Networks of other systems part their names by "."
-- or "/".
local function covers(choice, name)
  return name:sub(1, #choice) == choice and (#name == #choice or name:find("^[-./]", #choice + 1) ~= nil)
end

--- What may be meant by a choice that stands for none of these names: layers and namespaces may be chosen too.
function choices.near(choice, names, there_are)
  local parts, is_known = {}, {}
  for _, name in ipairs(names) do
    for place in (name .. "-"):gmatch("()[-./]") do
      local part = name:sub(1, place - 1)
      if not is_known[part] then parts[#parts + 1] = part end
      is_known[part] = true
    end
  end
  local near = arguments.suggestion(choice, parts)
  return near == "" and #names > 0 and there_are .. arguments.some_quoted(names, 4) or near
end

--- The set of those names that choices stand for, and the first choice that stands for none.
function choices.covered(list, names)
  local chosen, unknown = {}, nil
  for _, choice in ipairs(list) do
    local found = false
    for _, name in ipairs(names) do
      if covers(choice, name) then chosen[name], found = true, true end
    end
    if not found then unknown = unknown or choice end
  end
  return chosen, unknown
end

--- A name or a list of names, as the argument `key` of the signature `of` gives them: a list.
function choices.list(value, of, key)
  local list, names = type(value) == "table" and value or { value }, {}  -- the caller's own may change
  for i, name in ipairs(arguments.check_list(list, of.where .. ": the list of " .. key)) do
    if type(name) ~= "string" then
      of:fail((": %s must be a list of names, entry %d is %s"):format(key, i, arguments.describe(name)))
    end
    names[i] = name
  end
  return names
end

--- The same of at least one, or nil for all.
function choices.read(value, of, key)
  if value == nil then return nil end
  local list = choices.list(value, of, key)
  if #list == 0 then
    of:fail(": " .. key .. " must name at least one variable, layer or namespace; without it all are meant")
  end
  return list
end

return choices
