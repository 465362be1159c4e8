-- Writes docs/reference.md: the help of what docs/ops.md lacks, functions by their folder and methods by their class.
--   build/moonflow docs/write_reference.lua > docs/reference.md
require "moonflow"
local arguments = require "moonflow.arguments"
local help = require "moonflow.help"
local ops = require "moonflow.ops"

local function sorted(set)
  local keys = {}
  for key in pairs(set) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end

-- A function has a section under the name that its signature has, or else the first of its names, and the others are
-- told there; names of an op stand in a list.
local paths, folders, others, of_ops = help.paths(), {}, {}, {}
do
  local first = {}
  for path, value in pairs(paths) do
    local signature = type(value) == "function" and arguments.signature_of(value)
    if signature and signature.where:gsub("^np%.", "flow.np.") == path then first[value] = path end
  end
  for _, path in ipairs(sorted(paths)) do
    local value, folder = paths[path], path:match("^(.*)%.")
    local is_told = help.text_only(value, path) ~= nil
    local signature = is_told and ops.signature(value)
    if signature then
      if signature.where ~= path then of_ops[#of_ops + 1] = ("* `%s` is `%s`"):format(path, signature.where) end
    elseif is_told and (first[value] or path) ~= path then
      local own = first[value]
      others[own] = others[own] or {}
      table.insert(others[own], "`" .. path .. "`")
    elseif is_told then
      first[value] = path
      folders[folder] = folders[folder] or {}
      table.insert(folders[folder], path)
    end
  end
end

local function put_section(path, f)
  print(("\n### %s\n\n```\n%s\n```"):format(path, help.text_only(f, path)))
  local names = others[path] or {}
  if #names > 0 then print("\nAlso " .. table.concat(names, ", ") .. ".") end
end

-- "flow.np" -> the anchor of its heading.
local function linked(heading)
  return ("[%s](#%s)"):format(heading, heading:lower():gsub("%.", ""):gsub(" ", "-"))
end

table.sort(arguments.classes, function(one, other) return one.name < other.name end)
local headings = {}
for _, folder in ipairs(sorted(folders)) do headings[#headings + 1] = linked(folder) end
for _, class in ipairs(arguments.classes) do headings[#headings + 1] = linked("Methods of " .. class.name) end
headings[#headings + 1] = linked("Other names of ops")

print("# Reference\n")
print([[
Every function and type of the library that is no op, and the methods of what they give, as `? flow.np.zeros` at the
prompt and `flow.help` explain them: written by `docs/write_reference.lua`. What computes in a job is in
[ops.md](ops.md).

Where a call is shown with defaults, any parameter may be positional, in the order given, or a key of a trailing table.
One in brackets may be left out, and so may one with a default. A method is called with a colon. Of the optimizers whose
parameters OneFlow has in another order only the first are positional: two of SGD and SGDW, four of LAMB, five of AdamW.
]])
print(table.concat(headings, ",\n"))
for _, folder in ipairs(sorted(folders)) do
  print("\n## " .. folder)
  for _, path in ipairs(folders[folder]) do put_section(path, paths[path]) end
end
local methods = help.methods()
for _, class in ipairs(arguments.classes) do
  print("\n## Methods of " .. class.name)
  for _, name in ipairs(class.methods) do
    local path = class.receiver .. ":" .. name
    put_section(path, methods[path])
  end
end
print("\n## Other names of ops\n\n" .. table.concat(of_ops, "\n"))
