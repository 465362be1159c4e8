-- Writes docs/ops.md: the help of every function that computes in a job, be it an op of the catalog or put together
-- from ops.
--   build/moonflow docs/write_ops.lua > docs/ops.md
require "moonflow"
local help = require "moonflow.help"
local ops = require "moonflow.ops"

local sections, names = {}, {}  -- path below `flow` -> text
for path, value in pairs(help.paths()) do
  local signature = type(value) == "function" and ops.signature(value)
  -- Its signature says where a function belongs; elsewhere it has another name.
  if signature and signature.where == path then
    local name = path:match("^flow%.(.*)$")
    sections[name], names[#names + 1] = help.text(value, path), name
  end
end
table.sort(names)

print("# Ops\n")
print([[
Every function that computes in a job, as `? flow.nn.relu` at the prompt and `flow.help` explain it: written by
`docs/write_ops.lua` from the catalog of ops and from what is put together from them. Any parameter may be positional,
in the order given, or a key of the trailing table. One in brackets may be left out, and so may one with a default.
Everything else is in [reference.md](reference.md).

What takes float32 takes bfloat16 and float16 as well, and gives either where it would give float32: it computes in
float32 and rounds its result once, to the nearest; a function that is put together from several rounds after each of
them. A number beside such a value is rounded to its dtype before. Learning rates and other scalars of an update stay
float32.]])
for _, name in ipairs(names) do print("\n## " .. name .. "\n\n```\n" .. sections[name] .. "\n```") end
