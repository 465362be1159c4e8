-- The functions of `flow` and the methods of what they give, called with what nobody means: NaN, sizes beyond all
-- memory, values of other types, too many of them, objects of other jobs. Each call must work, or raise an error of
-- ours; an error out of the library's own Lua code is a fault of the library, and the process ends in no case.
-- Between the calls, garbage is collected, and a job runs that must still give what it gave at the beginning.
--   moonflow tests/fuzz/surface_fuzz.lua [calls] [seed] [first call to print]
local here = arg[0]:match("^(.*)/") or "."
package.path = here .. "/?.lua;" .. package.path
local flow = require "moonflow"
local draws = require "draws"

local np, tp = flow.np, flow.typing
local CALLS, SEED, LOUD = tonumber((...)) or 20000, tonumber((select(2, ...))) or 1, tonumber((select(3, ...)))

flow.config.log(function() end)
local g = draws(SEED, 3000)

-- ---- what is called -----------------------------------------------------------------------------------------------

-- What ends the session or the script, waits for somebody, prints, or writes files.
local left_out = {}
for name in ([[
flow.shutdown flow.serve_repl flow.spawn flow.clear_default_session flow._finish flow.publish flow.help
flow.config.log flow.config.on_error flow.config.pump flow.config.cpu_threads flow.progress
flow.np.save flow.np.savez flow.np.savetxt flow.np.save_png flow.np.save_jpeg flow.np.save_wav flow.checkpoint.save
flow.profiler.stop flow.profiler.start flow.data.load_mnist flow.log.open flow.report
]]):gmatch("%S+") do left_out[name] = true end

local targets = {}
local function collect(path, value, seen)
  if left_out[path] or path:find("._", 1, true) then return end
  if type(value) == "function" then
    targets[#targets + 1] = { path, value }
  elseif type(value) == "table" and not seen[value] then
    seen[value] = true
    local names = {}
    for name in pairs(value) do
      if type(name) == "string" then names[#names + 1] = name end
    end
    table.sort(names)
    for _, name in ipairs(names) do collect(path .. "." .. name, value[name], seen) end
  end
end
collect("flow", flow, {})

-- Methods, of an object that is made anew.
local function method(what, make, names)
  for name in names:gmatch("%S+") do
    targets[#targets + 1] = { what .. ":" .. name, function(...)
      local object = make()
      return object[name](object, ...)
    end }
  end
end

local function array() return np.arange(6):astype(g.one_of { "float32", "int32", "bfloat16" }):reshape({ 2, 3 }) end
local X = tp.Numpy.Placeholder({ 2, 3 })
local function steady_body(x) return flow.layers.dense(x, 2, { name = "steady" }) end
local steady = flow.global_function { inputs = { x = X }, returns = tp.Numpy, name = "steady" } (steady_body)

method("ndarray", array, [[at set item reshape copy rows tobytes totable astype slice mean sum max min prod std argmax
  argmin any all transpose take ptr numpy tolist release squeeze expand_dims clip dot]])
local watched = flow.global_function { inputs = { x = X }, returns = tp.Numpy, name = "watched" } (steady_body)
method("job", function() return watched end, "watch summary value_names dump run_flat start_flat prepare")
local prepared = steady:prepare()
method("prepared", function() return prepared end, "publish generation")
method("rng", function() return np.random.default_rng(3) end, "uniform normal randint rand randn permutation")
method("optimizer", function() return flow.optimizer.SGD(0.1) end, "minimize")
targets[#targets + 1] = { "job()", function(...) return steady(...) end }
targets[#targets + 1] = { "prepared()", function(...) return prepared(...) end }
targets[#targets + 1] = { "ndarray[]", function(key, value)
  local a = array()
  a[key] = value
  return a[key]
end }

-- ---- with what ----------------------------------------------------------------------------------------------------

local stale  -- a blob of a job that is done
flow.global_function { inputs = { x = X }, name = "left" } (function(x)
  stale = flow.nn.relu(x)
  return stale
end)
local cycle = {}
cycle.self = cycle
local angry = setmetatable({}, { __index = function() error("angry") end, __call = function() error("called") end,
                                 __tostring = function() error("silent") end })

local values = {
  function() return nil end, function() return nil end,
  function() return g.one_of { true, false } end,
  function() return g.one_of { 0, 1, -1, 2, 3, 0.5, -0.5, 7 } end,
  function() return g.one_of { 0, 1, -1, 2, 3, 0.5, -0.5, 7 } end,
  function() return g.one_of { 0 / 0, 1 / 0, -1 / 0, 2 ^ 53, -2 ^ 53, 2 ^ 63, -2 ^ 63, 1e300 } end,
  function() return g.one_of { "", "x", "float32", "int64", "SAME", "NHWC", "gpu", "0:0", "0:99", "\0",
                              ("x"):rep(999) } end,
  function() return g.one_of { {}, { 1, 2 }, { -1 }, { 2 ^ 41, 2 ^ 41 }, { 0 / 0 }, { 1.5 }, { "x" }, { {}, {} } } end,
  function() return g.one_of { cycle, angry, { x = 1 }, { name = "x" }, { name = 3 }, { axis = 9 },
                               { shape = { 2, 3 } } } end,
  function() return g.one_of { print, error, function() error("mine") end, function() end,
                               coroutine.create(print) } end,
  function() return g.one_of { io.stdout, stale, steady, X, tp.Numpy, flow, np } end,
  array, array,
  function() return np.zeros({ 0, 3 }) end,
  function() return np.array(0 / 0) end,
  function() return flow.optimizer.SGD(0.1) end,
}

local blob  -- of the job that is being traced, if one is
local function value()
  if blob and g.chance(2) then return g.one_of { blob, blob, -blob, blob * 2 } end
  return g.one_of(values)()
end

local function shown(x)
  local fine, text = pcall(tostring, x)
  return (fine and text or "?"):gsub("%s+", " "):sub(1, 40)
end

-- ---- calling ------------------------------------------------------------------------------------------------------

local faults = {}

local function attempt(number, target)
  local count, arguments, words = g.below(6), {}, {}
  for i = 1, count do
    arguments[i] = value()
    words[i] = shown(arguments[i])
  end
  if LOUD and number >= LOUD then
    io.stderr:write(("%d: %s(%s)\n"):format(number, target[1], table.concat(words, ", ")))
  end
  local fine, problem = pcall(target[2], unpack(arguments, 1, count))
  if fine or flow.is_error(problem) then return fine end
  if type(problem) == "userdata" then return false end  -- `error`, taken for a function of arrays, raises what it gets
  local text = shown(problem)
  if type(problem) == "string" then text = problem end
  if text:find("angry") or text:find("mine") or text:find("called") or text:find("silent") then return false end
  local key = text:match("^%S+:%d+:") or text
  if not faults[key] then
    faults[key] = true
    faults[#faults + 1] = ("call %d: %s(%s)\n  %s"):format(number, target[1], table.concat(words, ", "), text)
  end
  return false
end

local x = np.ones({ 2, 3 })
local first = steady(x)
local worked, call = 0, 0
while call < CALLS do
  -- Some in the body of a job, whose definition then mostly fails.
  local inside = g.below(2) == 0 and 1 + g.below(6) or 0
  local function several(count)
    for _ = 1, count do
      call = call + 1
      if attempt(call, g.one_of(targets)) then worked = worked + 1 end
    end
  end
  if inside > 0 then
    pcall(function()
      flow.global_function {
        type = g.one_of { "train", "predict" }, inputs = { x = X }, returns = g.one_of { tp.Numpy, tp.None },
      } (function(given)
        blob = given
        several(inside)
        blob = nil
        return given
      end)
    end)
    blob = nil
  else
    several(1)
  end
  if call % 50 == 0 then collectgarbage() end
  if call % 20 == 0 and steady(x) ~= first then error("after call " .. call .. " another job gives something else") end
end
print(("%d calls of %d functions, %d of them worked, the others failed with an error"):format(call, #targets, worked))
if #faults > 0 then error("these fail with what is no error of ours:\n" .. table.concat(faults, "\n"), 0) end
