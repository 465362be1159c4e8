-- Writes docs/ops.md: one section per op of the catalog that scripts can call, and per function put together from ops.
--   build/moonflow docs/write_ops.lua > docs/ops.md
local flow = require "moonflow"
local core = require "moonflow.core"
local ops = require "moonflow.ops"

local function shown(value)
  if type(value) == "table" then
    local parts = {}
    for i, item in ipairs(value) do parts[i] = shown(item) end
    return "{" .. (#parts > 0 and " " .. table.concat(parts, ", ") .. " " or "") .. "}"
  end
  if type(value) == "string" then return '"' .. value .. '"' end
  return tostring(value)
end

-- Does the job supply it, for an op with random numbers?
local function is_source(op, name)
  return op.random and (name == "seed" or name == "step" or name == "key")
end

local function signature(op)
  local parts = {}
  for _, input in ipairs(op.inputs) do
    if not is_source(op, input.name) then
      parts[#parts + 1] = input.kind == "many" and "{ " .. input.name .. "... }"
        or input.kind == "optional" and input.name .. "?" or input.name
    end
  end
  for _, attr in ipairs(op.attrs) do
    if not is_source(op, attr.name) then
      parts[#parts + 1] = attr.required and attr.name or attr.name .. " = " .. shown(attr.default)
    end
  end
  if op.random then parts[#parts + 1] = "seed?" end
  return "flow." .. op.lua .. "(" .. table.concat(parts, ", ") .. ")"
end

local sections = {}  -- path below `flow` -> text

local function section_of(op)
  local lines = { "```\n" .. signature(op) .. "\n\n" .. op.doc .. "\n```" }
  if #op.attrs > 0 then lines[#lines + 1] = "" end
  for _, attr in ipairs(op.attrs) do
    if not is_source(op, attr.name) then lines[#lines + 1] = "* `" .. attr.name .. "`: " .. attr.doc end
  end
  if op.random then lines[#lines + 1] = "* `seed`: a seed of its own, in place of that of flow.set_seed" end
  return table.concat(lines, "\n")
end

for _, op in ipairs(core.session { threads = 1 }:ops()) do
  if op.lua and op.lua ~= "" then sections[op.lua] = section_of(op) end
end

-- What is written in Lua says by its signature where it belongs; elsewhere it has another name.
local function add_functions(folder, path)
  for name, value in pairs(folder) do
    local place = path .. name
    local text = type(value) == "function" and ops.help(value)
    if text and not sections[place] and text:match("^flow%.([%w_.]+)%(") == place then
      sections[place] = "```\n" .. text:gsub("%s+$", ""):gsub("\n", "\n\n", 1) .. "\n```"
    end
  end
end
add_functions(flow, "")
for _, name in ipairs { "layers", "math", "nn" } do add_functions(flow[name], name .. ".") end

local paths = {}
for path in pairs(sections) do paths[#paths + 1] = path end
table.sort(paths)

print("# Ops\n")
print([[
Every function that computes in a job, written by `docs/write_ops.lua` from the catalog of ops and from what is put
together from them. Any parameter may be positional, in the order given, or a key of the trailing table; `name` is a key
of all. One in brackets, or with a question mark, may be left out.

What takes float32 takes bfloat16 and float16 as well, and gives either where it would give float32: it computes in
float32 and rounds its result once, to the nearest. Learning rates and other scalars of an update stay float32.]])
for _, path in ipairs(paths) do print("\n## " .. path .. "\n\n" .. sections[path]) end
