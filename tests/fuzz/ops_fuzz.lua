-- Random ops on random inputs with random options, most of them wrong: each must work or fail with an error, and never
-- end the process. Shapes lean to what breaks things: no elements, one, rank 0, many axes; numbers to 0, -1 and the
-- ends of their range. The same seed gives the same calls.
--   moonflow tests/fuzz/ops_fuzz.lua [calls] [seed] [first call to print]
local here = arg[0]:match("^(.*)/") or "."
package.path = here .. "/?.lua;" .. package.path
local core = require "moonflow.core"
local draws = require "draws"

local CALLS, SEED, LOUD = tonumber((...)) or 20000, tonumber((select(2, ...))) or 1, tonumber((select(3, ...)))
local g = draws(SEED, 5000)

local session = core.session { threads = 2 }
local ops = session:ops()
local dtypes = { "float32", "float32", "float32", "float64", "bfloat16", "float16", "int32", "int64", "int8", "uint8" }
local sizes = { 0, 1, 1, 2, 3, 4, 5, 7, 16 }
local wild_sizes = { 0, 1, 2, 3, -1, -2, 2 ^ 41, 2 ^ 53, -2 ^ 53 }  -- the large ones fit no memory
local tame_numbers = { 0, 1, -1, 2, 3, 0.5, 4 }
local wild_numbers = { 0, 1, -1, 2, 0.5, 1e300, -1e300, 1 / 0, -1 / 0, 0 / 0, 2 ^ 53 }
local words = { "VALID", "SAME", "SAME_LOWER", "SAME_UPPER", "EXPLICIT", "NCHW", "NHWC", "NCW", "NWC", "relu", "none",
                "float32", "bfloat16", "float16", "", "x" }

local function shape()
  local list = {}
  for axis = 1, g.one_of { 0, 1, 1, 2, 2, 2, 3, 4, 4, 4, 5, 8 } do list[axis] = axis > 4 and 1 or g.one_of(sizes) end
  if #list > 1 and g.chance(30) then  -- what has no elements may have a large size: nothing may count up to it
    local none = 1 + g.below(#list)
    list[none], list[1 + none % #list] = 0, 2 ^ 40
  end
  return list
end

local function ints(wild)
  local list = {}
  for i = 1, g.below(6) do list[i] = wild and g.one_of(wild_sizes) or g.one_of { 0, 1, 1, 2, 3, -1 } end
  return list
end

local makers = {
  bool = function() return g.chance(2) end,
  int = function(wild) return wild and g.one_of(wild_sizes) or g.one_of { 0, 1, 1, 2, 3, -1 } end,
  float = function(wild) return wild and g.one_of(wild_numbers) or g.one_of(tame_numbers) end,
  string = function() return g.one_of(words) end,
  dtype = function() return g.one_of(dtypes) end,
  ints = ints,
  floats = function(wild)
    local list = {}
    for i = 1, g.below(4) do list[i] = wild and g.one_of(wild_numbers) or g.one_of(tame_numbers) end
    return list
  end,
}

local function options(op)
  local wild = g.chance(3)
  local given = {}
  for _, attr in ipairs(op.attrs) do
    if attr.required or g.chance(2) then given[attr.name] = makers[attr.type](wild) end
  end
  return given
end

local function array(dtype, dims)
  local a = core.zeros(dtype, dims)
  local count = a.shape:count()
  if count == 0 then return a end
  local flat = a:reshape { count }
  for i = 0, math.min(count, 64) - 1 do
    flat[i] = dtype:match("^b?float") and (g.below(200) - 100) / 50 or g.below(6) - (dtype == "uint8" and 0 or 1)
  end
  return a
end

-- Inputs that often fit together: one dtype, and shapes that are repeated, broken only sometimes.
local function inputs(op)
  local dtype, dims, list = g.one_of(dtypes), shape(), {}
  local many = op.inputs[1] and op.inputs[1].kind == "many"
  for i = 1, many and g.below(4) or #op.inputs do
    if g.chance(3) then dims = shape() end
    local own = g.chance(6) and g.one_of(dtypes) or dtype
    if op.inputs[i] and op.inputs[i].name:match("label") or op.name:match("gather") and i == 2 then own = "int32" end
    list[i] = array(own, dims)
  end
  return list
end

local function describe(op, list, given)
  local parts = {}
  for i, a in ipairs(list) do parts[i] = a.dtype .. tostring(a.shape) end
  for name, value in pairs(given) do
    local shown = type(value) == "table" and "{" .. table.concat(value, ",") .. "}" or tostring(value)
    parts[#parts + 1] = name .. "=" .. shown
  end
  return op.name .. " " .. table.concat(parts, " ")
end

-- The op in a graph, with its gradients, compiled and run.
local function in_a_graph(op, list, given)
  local graph = session:graph("fuzz")
  local ids, wanted = {}, {}
  for i, a in ipairs(list) do
    local writes = false
    for _, written in ipairs(op.writes or {}) do writes = writes or written == i - 1 end
    if writes then return end  -- would leave a variable behind
    ids[i] = graph:feed("x" .. i, a.dtype, a.shape, "fuzz")
    if a.dtype:match("^b?float") then wanted[#wanted + 1] = ids[i] end
  end
  local outputs = { graph:append(op.name, ids, given, "op", "fuzz") }
  for i, id in ipairs(outputs) do graph:tap(id, i) end
  if #wanted > 0 and outputs[1] and graph:type(outputs[1]):match("^b?float") then
    local seed = graph:append("ones_like", { outputs[1] }, {}, "seed", "fuzz")
    for _, id in ipairs(graph:gradients({ outputs[1] }, { seed }, wanted)) do
      if id then graph:tap(id, 9) end
    end
  end
  local plan = session:compile(graph)
  plan:submit(g.chance(2), nil, unpack(list))
  session:wait_idle()
  while session:next() do end
end

local worked = 0
for call = 1, CALLS do
  local op = g.one_of(ops)
  local list, given = inputs(op), options(op)
  if LOUD and call >= LOUD then io.stderr:write(call, ": ", describe(op, list, given), "\n") end
  local how = g.chance(2) and in_a_graph or function() session:evaluate(op.name, list, given) end
  local fine, problem = pcall(how, op, list, given)
  if fine then
    worked = worked + 1
  elseif type(problem) ~= "table" or type(problem.code) ~= "string" then
    error(("call %d: %s\nfailed with what is no error of ours: %s"):format(call, describe(op, list, given),
      tostring(problem)))
  end
  if call % 100 == 0 then while session:next() do end end
end
print(("%d calls, %d of them worked, the others failed with an error"):format(CALLS, worked))
if worked < CALLS / 5 then error("too few of them worked", 0) end
