-- Writes docs/ops.md from the catalog: one section per op that scripts can call.
--   build/moonflow docs/write_ops.lua > docs/ops.md
local core = require "moonflow.core"

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

local public = {}
for _, op in ipairs(core.session { threads = 1 }:ops()) do
  if op.lua and op.lua ~= "" then public[#public + 1] = op end
end
table.sort(public, function(a, b) return a.lua < b.lua end)

print("# Ops\n")
print([[
Every op that a job function can call, written from the catalog by `docs/write_ops.lua`. Any parameter may be
positional, in the order given, or a key of the trailing table; `name` is a key of every op. Layers, optimizers and
initialisers are made of these.

What takes float32 takes bfloat16 and float16 as well, and gives either where it would give float32: it computes in
float32 and rounds its result once, to the nearest. Learning rates and other scalars of an update stay float32.]])
for _, op in ipairs(public) do
  print("\n## " .. op.lua .. "\n\n```\n" .. signature(op) .. "\n\n" .. op.doc .. "\n```")
  if #op.attrs > 0 then print() end
  for _, attr in ipairs(op.attrs) do
    if not is_source(op, attr.name) then print("* `" .. attr.name .. "`: " .. attr.doc) end
  end
  if op.random then print("* `seed`: a seed of its own, in place of that of flow.set_seed") end
end
