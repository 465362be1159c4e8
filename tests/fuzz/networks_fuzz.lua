-- Random networks, each run in several ways that must agree: fused, and with every inner value and gradient watched,
-- which keeps its ops apart; with some of them computed once more on the way back; in float64; with one thread and two;
-- by prepared calls; on the CPU and on a GPU where there is one; in mixed precision there. Each way trains some steps
-- and predicts between them, by jobs that share the weights. What is compared is every loss, prediction, watched value
-- and gradient, and all variables at the end.
--   moonflow tests/fuzz/networks_fuzz.lua [networks] [first seed] [way]
-- A network that fails is made smaller and printed with its seed; then the next one follows, and at the end an error.
local here = arg[0]:match("^(.*)/") or "."
package.path = here .. "/?.lua;" .. package.path
local flow = require "moonflow"
local draws = require "draws"
local networks = require "networks"

local np, tp = flow.np, flow.typing
local NETWORKS, SEED, ONLY = tonumber((...)) or 40, tonumber((select(2, ...))) or 1, (select(3, ...))

flow.config.log(function() end)
flow.config.strict_placement(true)
local gpus, no_gpu = flow.config.gpu_devices()
local has_gpu = #gpus > 0
if os.getenv("MOONFLOW_REQUIRE_GPU") == "1" then assert(has_gpu, no_gpu) end

-- How far a result may be from the reference: by its own size, and by how far the reference moves, relative to how far
-- what goes in is moved (`step`). The second is what a network makes of an error: some amplify it much. Sizes are the
-- largest element; of narrow dtypes the root of the mean of squares, since there some relu always goes the other way.
local function largest(array)
  return array.shape:count() == 0 and 0 or np.abs(array):max()
end

local function mean_size(array)
  return array.shape:count() == 0 and 0 or math.sqrt((array * array):mean())
end

local WIDE, NARROW = { size = largest, step = 1e-6 }, { size = mean_size, step = 1 / 256 }
local FLOAT32 = { own = 2e-4, moved = 3e-5, scale = WIDE }  -- a Winograd convolution is good to 2e-5
local FLOAT64 = { own = 1e-9, moved = 1e-9, scale = WIDE }
local TF32 = { own = 0.05, moved = 0.1, scale = NARROW }
local BFLOAT16 = { own = 0.2, moved = 0.4, scale = NARROW }
local MOST = 1e5  -- networks whose values grow beyond say nothing

local ways = {
  { name = "fused", within = FLOAT32, threads = 1 },
  { name = "some watched", within = FLOAT32, threads = 2, watched = 3 },
  { name = "all watched", within = FLOAT32, threads = 2, watched = 1 },
  { name = "in flight", within = FLOAT32, threads = 2, watched = 5, in_flight = true },
  { name = "recomputed", within = FLOAT32, threads = 2, watched = 5, recomputed = 2 },
  { name = "prepared", within = FLOAT32, threads = 2, prepared = true },
  { name = "prepared, float64", within = FLOAT64, threads = 2, dtype = flow.double, prepared = true },
  { name = "float64", within = FLOAT64, threads = 2, dtype = flow.double },
  { name = "bfloat16", within = BFLOAT16, threads = 2, dtype = flow.bfloat16 },
  { name = "gpu", within = FLOAT32, threads = 1, device = "gpu" },
  { name = "gpu, some watched", within = FLOAT32, threads = 1, device = "gpu", watched = 3 },
  { name = "gpu, in flight", within = FLOAT32, threads = 1, device = "gpu", watched = 5, in_flight = true },
  { name = "gpu, recomputed", within = FLOAT32, threads = 1, device = "gpu", recomputed = 2 },
  { name = "gpu, float64", within = FLOAT64, threads = 1, device = "gpu", dtype = flow.double },
  { name = "gpu, TF32", within = TF32, threads = 1, device = "gpu", config = { allow_tf32 = true } },
  { name = "gpu, bfloat16", within = BFLOAT16, threads = 1, device = "gpu",
    config = { enable_auto_mixed_precision = true } },
  { name = "gpu, float16", within = TF32, threads = 1, device = "gpu", watched = 4,
    config = { enable_auto_mixed_precision = true, mixed_precision_dtype = flow.float16 } },
}
local reference = { name = "reference", threads = 1, watched = 1, dtype = flow.double }

-- ---- running one way ----------------------------------------------------------------------------------------------

local function number_of(text)
  local n = 0
  for i = 1, #text do n = (n * 31 + text:byte(i)) % 1000003 end
  return n
end

-- Values of a network are multiples of 1/256 below 4, so that each dtype holds them.
local function drawn(random, low, high, shape)
  return np.round(random:uniform(low, high, shape, "float64") * 256) / 256
end

local function moved(values, way, random)
  if way.step then values = values * (random:uniform(-way.step, way.step, values.shape:table(), "float64") + 1) end
  return values:astype(way.dtype or "float32")
end

-- Gives the variables values that depend on their names only.
local function set_variables(way, data_seed)
  local values = {}
  for name, value in pairs(flow.get_all_variables(false)) do
    local shape = value.shape:table()
    local random = np.random.default_rng(data_seed * 1000003 + number_of(name))
    local reach = #shape > 1 and math.min(1, math.sqrt(3 * shape[1] / value.shape:count())) or 0.5
    local low, high = -reach, reach
    if name:find("gamma") or name:find("variance") then low, high = 0.5, 1.5 end
    if value.dtype ~= "int64" then
      local set = moved(drawn(random, low, high, shape), way, np.random.default_rng((way.draw or 0) + 7))
      values[name] = set:astype(value.dtype)
    end
  end
  flow.load_variables(values)
end

-- The jobs of one way, and a prepared call where it has one. What is watched goes into `seen`, by the values' names.
local function define(network, way, seen)
  local dtype = way.dtype or flow.float
  local function around(training)
    return function(place, step)
      -- The same whenever the body is traced, since a variable that nothing reads exists only where it is watched.
      local choice = draws(network.seed, 2000 + 100 * #way.name + 2 * place + (training and 1 or 0))
      if way.recomputed and choice.chance(way.recomputed) then
        local kept = step
        step = function() return flow.scope.recompute(kept) end
      end
      if not way.watched or choice.below(way.watched) > 0 then return step() end
      local grads = training and (way.watched == 1 or choice.chance(2)) or false
      local values = (way.watched == 1 or not grads or choice.chance(2)) and seen.values or nil
      if grads then return flow.watch_scope(values, seen.grads, step) end
      return flow.watch_scope(values, step)
    end
  end
  local X = networks.placeholder(network, network.shape, dtype)
  local Labels = networks.placeholder(network, { network.shape[1] }, flow.int32)
  local function config()
    local given = { default_data_type = dtype }
    for name, value in pairs(way.config or {}) do given[name] = value end
    return given
  end
  local shows_logits = draws(network.seed, 1000).chance(3)
  local placement = { way.device or "cpu", "0:0" }
  local function returned(annotation) return way.in_flight and tp.Callback[annotation] or annotation end
  local function train_job(penalised)
    return flow.global_function {
      name = "train", type = "train", inputs = { x = X, labels = Labels }, placement = placement,
      function_config = config(), returns = returned(shows_logits and tp.Tuple { tp.Numpy, tp.Numpy } or tp.Numpy),
    } (function(x, labels)
      local each = around(true)
      local logits = networks.prediction(network, networks.body(network, x, each), each)
      local loss = networks.loss(network, labels, logits, each)
      if penalised then loss = networks.penalised(network, loss, x) end
      networks.minimize(network, loss)
      if shows_logits then return loss, logits end
      return loss
    end)
  end
  local fine, train = pcall(train_job, true)
  if not fine then  -- an op whose gradient has none
    assert(tostring(train):find("a gradient of a gradient goes through it", 1, true), train)
    train = train_job(false)
  end
  -- What the optimizer makes of the gradients: that keeps its updates apart from what they are made of. Which ops it
  -- needs for that depends on the batch.
  for _, name in ipairs(way.watched == 1 and network.input == "Numpy" and train:value_names() or {}) do
    if name:match("%-gradient$") or name:match("%-clipped$") then
      train:watch(name, function(value) seen.updates[name] = { blob = value } end)
    end
  end
  local function predict_job(name, Predicted)
    return flow.global_function {
      name = name, inputs = { x = Predicted }, placement = placement, function_config = config(),
      returns = returned(tp.Numpy),
    } (function(x)
      local each = around(false)
      return networks.prediction(network, networks.body(network, x, each), each)
    end)
  end
  local predict = predict_job("predict", networks.placeholder(network, network.predicted, dtype))
  local act = way.prepared and predict_job("act", tp.Numpy.Placeholder(network.predicted, { dtype = dtype })):prepare()
  return train, predict, act
end

-- Runs a network one way; gives what it showed, { name = ndarray of float64 }.
local function run(network, way, data_seed)
  flow.clear_default_session()
  flow.config.cpu_threads(way.threads)
  flow.set_seed(11)
  local seen = { values = {}, grads = {}, updates = {} }
  local train, predict, act = define(network, way, seen)
  set_variables(way, data_seed)
  local shown = {}
  local function show(name, array)
    if array then shown[name] = array:astype("float64") end
  end
  for at, word in ipairs(networks.calls) do
    local random = np.random.default_rng(data_seed * 100 + at)
    local prefix = at .. ": " .. word .. ": "
    local function deliver(first, logits)
      show(prefix .. "result", first)
      show(prefix .. "logits", logits)
      for kind, table_of in pairs(seen) do
        for name, entry in pairs(table_of) do
          show(prefix .. kind .. " of " .. name, entry.blob)
          table_of[name] = nil
        end
      end
    end
    local training = word == "train"
    local shape = { network.batches[at], unpack(network.shape, 2) }
    local x = moved(drawn(random, -1, 1, shape), way, np.random.default_rng(at + (way.draw or 0)))
    local job, feeds = predict, { networks.feed(network, x) }
    if act and not training and shape[1] == network.predicted[1] then
      job, feeds = act, { x }
      act:publish()
    elseif training then
      job, feeds = train, { feeds[1],
        networks.feed(network, random:randint(0, network.classes, { shape[1] }):astype("int32")) }
    end
    if way.in_flight then
      job(unpack(feeds))(deliver)
      if x.shape:count() > 0 then x:reshape({ x.shape:count() })[0] = 7 end  -- what a call was given is its own
    else
      deliver(job(unpack(feeds)))
    end
  end
  flow.sync()
  for name, value in pairs(flow.get_all_variables()) do show("variable " .. name, value) end
  return shown
end

-- ---- comparing ----------------------------------------------------------------------------------------------------

-- What the network gives in the reference, and functions that tell how far each value moves when what goes in is moved;
-- nil and a reason where its values grow too large. A value that is no number is a fault, unless another one grew.
local function known(network, data_seed)
  local shown = run(network, reference, data_seed)
  local most, no_number = 0, nil
  for name, value in pairs(shown) do
    local size = largest(value)
    if size >= MOST then return nil, name .. " grows without bounds" end
    if size ~= size then no_number = name else most = math.max(most, size) end
  end
  if no_number then error(no_number .. " is no number in the reference", 0) end
  local moves = {}
  local function moves_of(scale)
    if moves[scale] then return moves[scale] end
    local found = {}
    for i = 1, 2 do
      local way = { name = "moved", threads = 1, watched = 1, dtype = flow.double, step = scale.step, draw = i * 1000 }
      for name, value in pairs(run(network, way, data_seed)) do
        found[name] = math.max(found[name] or 0, scale.size(value - shown[name]) / scale.step)
      end
    end
    moves[scale] = found
    return found
  end
  -- Where large terms cancel, nothing is left but their rounding.
  return { shown = shown, moves_of = moves_of, least = math.max(0.05, most / 200) }
end

-- What is wrong with a way: text, or nil.
local function fault(network, way, data_seed, truth)
  local fine, shown = pcall(run, network, way, data_seed)
  if not fine then return "raises " .. tostring(shown) end
  local names = {}
  for name in pairs(shown) do names[#names + 1] = name end
  table.sort(names)
  local within, scale = way.within, way.within.scale
  local moves = truth.moves_of(scale)
  for _, name in ipairs(names) do
    local wanted, got = truth.shown[name], shown[name]
    if not wanted then return name .. " is nothing that the reference has" end
    if wanted.shape ~= got.shape then
      return name .. " is " .. tostring(got.shape) .. ", wanted " .. tostring(wanted.shape)
    end
    local size, off = scale.size(wanted), scale.size(got - wanted)
    local allowed = within.own * math.max(size, truth.least) + within.moved * moves[name]
    if off > allowed or off ~= off then  -- or NaN
      return ("%s %s is off by %g of %g, and %g is allowed"):format(name, tostring(got.shape), off, size, allowed)
    end
  end
end

-- A fault of all of three batches of numbers: of one alone it may be a maximum or a relu that went the other way.
local function lasting_fault(network, way, first, truth)
  local found = fault(network, way, first, truth)
  for i = 1, 2 do
    if not found then return end
    local fine, other = pcall(known, network, first + i)
    if not (fine and other) then return end
    found = fault(network, way, first + i, other) and found
  end
  return found
end

-- Leaves out of the network what the fault does not need.
local function shrink(network, way, found)
  for place = network.steps, 1, -1 do
    network.skipped[place] = true
    local fine, truth = pcall(known, network, network.seed)
    local still = fine and truth and lasting_fault(network, way, network.seed, truth)
    if still then found = still else network.skipped[place] = nil end
  end
  return found
end

local function describe(network, way)
  local fine, text = pcall(function()
    flow.clear_default_session()
    local train = define(network, way, { values = {}, grads = {}, updates = {} })
    return train:summary() .. "\n" .. train:summary { plan = true }
  end)
  return fine and text or tostring(text)
end

local passed_over, failures = 0, {}
for seed = SEED, SEED + NETWORKS - 1 do
  local network = networks.draw(seed)
  local fine, truth, why = pcall(known, network, seed)
  if not fine then
    failures[#failures + 1] = seed
    print(("\nnetwork %d raises %s"):format(seed, tostring(truth)))
  elseif not truth then
    passed_over = passed_over + 1
    if ONLY then print(seed, why) end
  else
    for _, way in ipairs(ways) do
      if (has_gpu or way.device ~= "gpu") and (not ONLY or way.name == ONLY) then
        local found = lasting_fault(network, way, seed, truth)
        if found then
          failures[#failures + 1] = seed
          print(("\nnetwork %d, %s: %s"):format(seed, way.name, found))
          found = shrink(network, way, found)
          local skipped = {}
          for place in pairs(network.skipped) do skipped[#skipped + 1] = place end
          print(("without its steps %s: %s\n%s"):format(table.concat(skipped, ", "), found, describe(network, way)))
          network.skipped = {}
          io.stdout:flush()
        end
      end
    end
  end
  collectgarbage()
end
print(("%d networks, %d of them passed over"):format(NETWORKS, passed_over))
if passed_over > NETWORKS / 4 then error("too many of them were passed over", 0) end
if #failures > 0 then error("these networks differ: " .. table.concat(failures, ", "), 0) end
