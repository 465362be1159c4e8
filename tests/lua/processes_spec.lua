-- Processes that compute together: really several, started by mpirun on this machine.
local process = require "process"

local ENV = { OMPI_ALLOW_RUN_AS_ROOT = "1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM = "1", OMP_NUM_THREADS = "1",
              OMP_WAIT_POLICY = "passive" }

-- What every script here begins with. `say` writes one line at a time, so that those of processes do not mix.
local HEAD = [[
local flow = require "moonflow"
local np, tp, distributed = flow.np, flow.typing, flow.distributed
local function say(...)
  local words = {}
  for i = 1, select("#", ...) do words[i] = tostring((select(i, ...))) end
  io.stdout:write(table.concat(words, " ") .. "\n")
end
]]

-- Before a script: its jobs are placed on the gpu, which is a simulated one here.
local ON_GPU = [[
flow.config.strict_placement(true)
PLACE = { "gpu", "0:0" }
]]

-- Trains by batches of 12, of which each process has its share; gives the loss of all and the weights at the end.
local TRAIN = [[
local rank, size = distributed.join()
local SHARE = 12 / size
local train = flow.global_function {
  name = "train", type = "train",
  inputs = { x = tp.Numpy.Placeholder({ SHARE, 5 }, { dtype = flow.double }),
             y = tp.Numpy.Placeholder({ SHARE, 2 }, { dtype = flow.double }) },
  function_config = { default_data_type = flow.double, default_placement_scope = PLACE },
  returns = tp.Numpy,
} (function(x, y)
  local hidden = flow.layers.dense(x, 7, { activation = flow.math.tanh, name = "hidden" })
  local loss = flow.math.reduce_mean((flow.layers.dense(hidden, 2, { name = "out" }) - y) ^ 2)
  flow.optimizer.Adam(0.01, { grad_clipping = flow.optimizer.grad_clipping.by_global_norm(0.5) }):minimize(loss)
  return distributed.all_reduce(loss, "mean")
end)
local rng = np.random.default_rng(5)
local xs, ys = rng:normal(0, 1, { 48, 5 }, "float64"), rng:normal(0, 1, { 48, 2 }, "float64")
local set = flow.data.Dataset({ xs, ys }, { batch_size = SHARE, shuffle = 3 })
local last
for epoch = 1, 25 do
  for _, x, y in set:batches { share = { rank, size } } do last = train(x, y):item() end
end
]]

local folder

-- Runs a script in so many processes, by our launcher or another one, and mpirun or something like it. Gives code, out,
-- err, and the lines of out in alphabetical order.
local function together(count, script, launcher, mpirun)
  local path = folder .. "/script.lua"
  process.write(path, HEAD .. script)
  local result = process.shell(("timeout -k 5 120 %s --oversubscribe --bind-to none -n %d %s %s"):format(
    mpirun or "mpirun", count, launcher or process.quote(process.launcher), process.quote(path)), { env = ENV })
  local lines = {}
  for line in result.out:gmatch("[^\n]+") do lines[#lines + 1] = line end
  table.sort(lines)
  result.lines = lines
  return result
end

local function lines_of(count, script)
  local result = together(count, script)
  assert.equal(0, result.code, result.err)
  return result.lines
end

describe("several processes", function()
  setup(function() folder = process.folder("distributed") end)

  it("reduce, broadcast and gather arrays of all dtypes and sizes", function()
    assert.same({ "0 of 3", "1 of 3", "2 of 3" }, lines_of(3, [[
      local rank, size = distributed.join()
      assert(rank == distributed.rank() and size == distributed.size() and select(2, distributed.join()) == 3)
      assert(distributed.local_rank() == rank)
      local function same(wanted, got)
        assert(#wanted == #got, #got)
        for i = 1, #wanted do assert(wanted[i] == got[i], ("%s, got %s"):format(wanted[i], got[i])) end
      end
      for _, dtype in ipairs { "float32", "float64", "bfloat16", "float16", "int8", "uint8", "int32", "int64" } do
        for _, count in ipairs { 0, 1, 2, 3, 7, 1000 } do
          local x = (np.arange(0, count) % 10 + rank):astype(dtype)
          local sum, most, least = {}, {}, {}
          for i = 1, count do
            local v = (i - 1) % 10
            sum[i], most[i], least[i] = 3 * v + 3, v + 2, v
          end
          same(sum, distributed.all_reduce(x):astype("float64"):totable())
          same(most, distributed.all_reduce(x, "max"):astype("float64"):totable())
          same(least, distributed.all_reduce(x, "min"):astype("float64"):totable())
          if dtype:find("float") then
            same(most, (distributed.all_reduce(x, "mean") + 1):astype("float64"):totable())
          end
          same(most, distributed.broadcast(x, { root = 2 }):astype("float64"):totable())
          local all = distributed.all_gather(x):astype("float64"):totable()
          assert(#all == 3 * count)
          if count > 0 then same({ 0, 1, 2 }, { all[1], all[count + 1], all[2 * count + 1] }) end
        end
      end
      distributed.barrier()
      say(rank, "of", size)
    ]]))
  end)

  it("sum in the order of their ranks, so that all have the same bits", function()
    local lines = lines_of(3, [[
      local rank = distributed.join()
      local x = np.random.default_rng(rank):normal(0, 1, { 1001 }):astype("float32")
      local sum = np.zeros({ 1001 })
      for r = 0, 2 do sum = sum + np.random.default_rng(r):normal(0, 1, { 1001 }):astype("float32") end
      local of_all = distributed.all_reduce(x)
      say(of_all == sum)
    ]])
    assert.same({ "true", "true", "true" }, lines)
  end)

  it("train one net as a process alone does, on gpus too", function()
    local script = "flow.set_seed(4)\n" .. TRAIN
      .. "say(('%.17g'):format(last), ('%.17g'):format(flow.get_all_variables(false)['hidden-weight']:sum()))"
    local alone = lines_of(1, script)
    for count, place in pairs { [2] = "", [3] = "", [4] = ON_GPU } do
      local lines = lines_of(count, place .. script)
      assert.equal(count, #lines)
      for i = 2, count do assert.equal(lines[1], lines[i]) end
      local loss, sum = lines[1]:match("(%S+) (%S+)")
      local wanted_loss, wanted_sum = alone[1]:match("(%S+) (%S+)")
      assert.near(tonumber(wanted_loss), tonumber(loss), 1e-12)
      assert.near(tonumber(wanted_sum), tonumber(sum), 1e-12)
    end
  end)

  it("exchange the rows that are picked from a table", function()
    local script = [[
      flow.set_seed(2)
      local rank, size = distributed.join()
      local SHARE = 6 / size
      local weights = {}
      for _, name in ipairs { "SGD", "LazyAdam", "Adagrad", "Adam" } do
        local train = flow.global_function {
          name = name, type = "train",
          function_config = { default_data_type = flow.double, default_placement_scope = PLACE },
          inputs = { left = tp.Numpy.Placeholder({ SHARE, 2 }, { dtype = flow.int32 }),
                     right = tp.Numpy.Placeholder({ SHARE }, { dtype = flow.int64 }) },
          returns = tp.Numpy,
        } (function(left, right)
          local weight = flow.get_variable(name, { shape = { 200, 3 }, initializer = flow.random_normal_initializer() })
          local a, b = flow.gather(weight, left), flow.gather(weight, right)
          local loss = flow.math.reduce_mean(flow.math.square(flow.math.reduce_sum(a, { axis = 1 }) * b - 1))
          flow.optimizer[name](0.1, { grad_clipping = flow.optimizer.grad_clipping.by_global_norm(0.8) }):minimize(loss)
          return loss
        end)
        local rng = np.random.default_rng(5)
        local left = rng:randint(0, 200, { 6, 2 }):astype("int32")
        local right = rng:randint(0, 200, { 6 })
        left:set(3, right[4])  -- both gathers pick it, in two processes
        for step = 1, 10 do
          train(left:rows(rank * SHARE, SHARE), right:rows(rank * SHARE, SHARE))
        end
        local values = flow.get_all_variables(false)[name]:ravel()
        weights[#weights + 1] = ("%s %.12f"):format(name, (values * np.arange(0, 600)):sum())
        if size > 1 then
          local steps = train:summary { plan = true }
          assert(steps:find("all_gather", 1, true) and not steps:find("all_reduce", 1, true), steps)
        end
      end
      say(table.concat(weights, " "))
    ]]
    local alone = lines_of(1, script)
    for count, place in pairs { [2] = ON_GPU, [3] = "" } do
      for _, line in ipairs(lines_of(count, place .. script)) do
        for name, sum in line:gmatch("(%a+) (%S+)") do
          assert.near(tonumber(alone[1]:match("%f[%a]" .. name .. " (%S+)")), tonumber(sum), 1e-8, name)
        end
      end
    end
  end)

  it("meet in every run, also where each gives nothing but a variable", function()
    assert.same({ "1 1", "1 1", "5 1", "5 1" }, lines_of(2, [[
      local rank = distributed.join()
      local w = function() return flow.get_variable("w", { shape = {}, initializer = flow.ones_initializer() }) end
      local job = flow.global_function { inputs = {}, returns = tp.Tuple { tp.Numpy, tp.Numpy } } (function()
        return distributed.broadcast(w()), distributed.all_reduce(w(), "min")
      end)
      local function tell()
        local first, least = job()
        distributed.barrier()
        say(first:item(), least:item())
      end
      tell()
      if rank == 0 then flow.load_variables { w = np.array(5):astype("float32") } end
      tell()
    ]]))
  end)

  it("descend through what they gather, reduce and broadcast as a process alone does", function()
    local script = [[
      flow.set_seed(5)
      local rank, size = distributed.join()
      local SHARE = 12 / size
      local train = flow.global_function {
        name = "train", type = "train", returns = tp.Numpy,
        inputs = { x = tp.Numpy.Placeholder({ SHARE, 5 }, { dtype = flow.double }) },
        function_config = { default_data_type = flow.double, default_placement_scope = PLACE },
      } (function(x)
        -- Batch norm by the statistics of all, and a loss that tells each example from all others.
        local h = flow.layers.dense(x, 6, { name = "hidden" })
        local mean = distributed.all_reduce(flow.math.reduce_mean(h, { axis = 0 }), "mean")
        local variance = distributed.all_reduce(flow.math.reduce_mean(flow.math.square(h - mean), { axis = 0 }), "mean")
        h = (h - mean) / flow.math.sqrt(variance + 0.01)
        local all = distributed.all_gather(h) + distributed.broadcast(flow.math.reduce_sum(mean))
        local own = flow.slice(all, { rank * SHARE, 0 }, { SHARE, 6 })
        local labels = flow.range(rank * SHARE, (rank + 1) * SHARE, 1, { dtype = flow.int32 })
        local loss = flow.math.reduce_mean(flow.nn.sparse_softmax_cross_entropy_with_logits(labels,
          flow.matmul(flow.math.sin(own), all, { transpose_b = true })))
        flow.optimizer.SGD(0.1):minimize(loss)
        return distributed.all_reduce(loss, "mean")
      end)
      local x = np.random.default_rng(1):normal(0, 1, { 12, 5 }, "float64")
      local loss
      for step = 1, 20 do loss = train(x:rows(rank * SHARE, SHARE)):item() end
      say(("%.15f"):format(loss))
    ]]
    local alone = tonumber(lines_of(1, script)[1])
    for count, place in pairs { [2] = ON_GPU, [3] = "" } do
      for _, line in ipairs(lines_of(count, place .. script)) do assert.near(alone, tonumber(line), 1e-11) end
    end
    local result = together(2, [[
      distributed.join()
      flow.global_function { name = "most", type = "train", inputs = { x = tp.Numpy.Placeholder({ 2 }) } } (function(x)
        local w = flow.get_variable("w", { shape = { 2 }, initializer = flow.ones_initializer() })
        flow.optimizer.SGD(0.1):minimize(distributed.all_reduce(x * w, "max", { name = "most" }))
      end)
    ]])
    assert.truthy(result.err:find("all_reduce 'most': a max over processes has no gradient", 1, true), result.err)
  end)

  it("move the running statistics of batch norms by the mean of their batches", function()
    local steps = { [""] = "flow.optimizer.SGD(0.1):minimize(loss)", [ON_GPU] = "flow.gradients(loss, x)" }
    for place, train in pairs(steps) do
      local lines = lines_of(2, place .. [[
        local rank, size = distributed.join()
        local step = flow.global_function {
          name = "step", type = "train", inputs = { x = tp.Numpy.Placeholder({ 4, 3 }) }, returns = tp.Numpy,
          function_config = { default_placement_scope = PLACE },
        } (function(x)
          local y = flow.layers.batch_normalization(x, { axis = 1, momentum = 0, name = "norm" })
          local loss = flow.math.reduce_mean(flow.math.square(y - 1))
          ]] .. train .. [[

          return loss
        end)
        local means, variances = np.zeros({ 3 }), np.zeros({ 3 })
        for r = 0, size - 1 do
          local x = np.random.default_rng(r):normal(r, 1 + r, { 4, 3 }):astype("float32")
          if r == rank then step(x) end
          means = means + np.mean(x, { axis = 0 }) / size
          variances = variances + np.var(x, { axis = 0, ddof = 1 }) / size
        end
        local weights = flow.get_all_variables(false)
        local mean, variance = weights["norm-moving_mean"], weights["norm-moving_variance"]
        assert(np.allclose(mean, means, 1e-5) and np.allclose(variance, variances, 1e-5), tostring(mean - means))
        say(("%.17g %.17g"):format(mean:sum(), variance:sum()))
      ]])
      assert.equal(2, #lines)
      assert.equal(lines[1], lines[2])
    end
  end)

  it("begin with one seed, which nobody has chosen, and draw differently in jobs", function()
    local lines = lines_of(2, [[
      distributed.join()
      local job = flow.global_function { name = "job", inputs = { x = tp.Numpy.Placeholder({ 1000 }) },
        returns = tp.Tuple { tp.Numpy, tp.Numpy } } (function(x)
        local w = flow.get_variable("w", { shape = { 1000 }, initializer = flow.random_normal_initializer() })
        return w, x + flow.random.uniform({ shape = { 1000 } })
      end)
      local w, drawn = job(np.zeros({ 1000 }))
      say("begin with", w:sum(), np.random.uniform(0, 1, { 4 }):sum())
      say("draw", drawn:sum())
    ]])
    assert.equal(4, #lines)
    assert.equal(lines[1], lines[2])
    assert.truthy(lines[3]:find("^draw") and lines[3] ~= lines[4], lines[4])
  end)

  it("are joined before jobs are defined, and before they do anything together", function()
    local lines = lines_of(2, [[
      flow.global_function { name = "early", inputs = { x = tp.Numpy.Placeholder({ 2 }) } } (function(x) return x end)
      say(select(2, pcall(distributed.all_reduce, np.ones({ 2 }))))
      for i = 1, 2 do say(i, select(2, pcall(distributed.join))) end
    ]])
    assert.equal(6, #lines)
    for i, line in ipairs(lines) do
      local wanted = i <= 2 and "it has not joined them: flow.distributed.join() comes first"
        or "the job 'early' was defined before the processes have joined"
      assert.truthy(line:find(wanted, 1, true), line)
    end
  end)

  it("deliver the results of calls that are under way, on stock luajit too", function()
    local script = [[
      local rank, size = distributed.join()
      local job = flow.global_function {
        name = "sum", inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Callback[tp.Numpy],
      } (function(x) return distributed.all_gather(distributed.all_reduce(x * x)) end)
      local sums = {}
      for i = 1, 20 do job(np.full({ 2 }, i + rank))(function(y) sums[#sums + 1] = y:sum() end) end
      flow.sync()
      for i = 1, 20 do assert(sums[i] == 4 * (i ^ 2 + (i + 1) ^ 2), i) end
      say(#sums)
    ]]
    assert.same({ "20", "20" }, lines_of(2, script))
    local lua = process.build .. "/lua/?"
    local paths = ("LUA_PATH='%s.lua;%s/init.lua' LUA_CPATH='%s.so'"):format(lua, lua, lua)
    local result = together(2, script, "env " .. paths .. " luajit")
    assert.same({ "20", "20" }, result.lines, result.err)
  end)

  it("say so where they have come to different calls", function()
    local result = together(2, [[
      local rank = distributed.join()
      local fine, problem = pcall(distributed.all_reduce, np.zeros({ 3 + rank }))
      say(fine, problem)
      os.exit(3)
    ]])
    assert.is_true(result.code ~= 0)
    assert.truthy(result.out:find("process 1 has come to all_reduce of float32 (4), reduction 'sum', and process 0, "
      .. "this one, to all_reduce of float32 (3), reduction 'sum'; all of them have to make the same calls", 1, true),
      result.out)
  end)

  it("say so where they train different nets of the same shapes, or come to other values of a job", function()
    local nets = together(2, [[
      local rank = distributed.join()
      local function trainer(name)
        return flow.global_function {
          name = name, type = "train", inputs = { x = tp.Numpy.Placeholder { 4, 3 } }, returns = tp.Numpy,
        } (function(x)
          local loss = flow.layers.dense(x, 2, { name = name }) ^ 2
          flow.optimizer.SGD(0.1):minimize(loss)
          return loss
        end)
      end
      local jobs = { trainer("a"), trainer("b") }
      say(pcall(jobs[rank + 1], np.ones { 4, 3 }))
      os.exit(3)
    ]])
    assert.is_true(nets.code ~= 0)
    assert.truthy(nets.out:find("of 'variables, new or loaded, of a by flow.optimizer.SGD(0.1), fed with x (4, 3)'", 1,
      true), nets.out)
    local values = together(2, [[
      local rank = distributed.join()
      local names = { "one", "two" }
      say(pcall(distributed.all_reduce, np.zeros { 3 }, { name = names[rank + 1] }))
      os.exit(3)
    ]])
    assert.truthy(values.out:find("reduction 'sum', of 'two', and process 0, this one, to all_reduce of float32 (3), "
      .. "reduction 'sum', of 'one'; all of them", 1, true), values.out)
  end)

  it("say so in a job on a gpu too, whose variables stay as they are", function()
    local result = together(2, ON_GPU .. [[
      local rank = distributed.join()
      local job = flow.global_function {
        name = "sum", inputs = { x = tp.Numpy.Placeholder({ 3 + rank }) }, returns = tp.Numpy,
        function_config = { default_placement_scope = PLACE },
      } (function(x)
        local seen = flow.get_variable("seen", { shape = { 1 }, initializer = flow.ones_initializer() })
        local sum = flow.math.reduce_sum(distributed.all_reduce(x, { name = "of_all" }))
        flow.assign(seen, seen + sum)
        return sum
      end)
      local fine, problem = pcall(job, np.zeros({ 3 + rank }))
      say(fine, problem.code, problem.op, problem.message)
      say(flow.get_all_variables(false).seen:item())
      os.exit(3)
    ]])
    assert.is_true(result.code ~= 0)
    assert.truthy(result.out:find("false wrong_state all_reduce 'of_all' process 1 has come to all_reduce of float32 "
      .. "(4), reduction 'sum', of 'of_all', and process 0, this one, to all_reduce of float32 (3)", 1, true),
      result.out .. result.err)
    assert.truthy(result.out:find("%f[%d]1%f[^%d]\n"), result.out)
  end)

  it("say so where one has come to its end before the others", function()
    local result = together(3, [[
      local rank = distributed.join()
      if rank ~= 1 then distributed.barrier() end
    ]])
    assert.is_true(result.code ~= 0 and result.code ~= 124, "code " .. result.code)
    assert.truthy(result.err:find("process 1 has come to the end of its program, and process ", 1, true), result.err)
  end)

  it("end with one that is killed", function()
    local result = together(2, [[
      local rank = distributed.join()
      if rank == 1 then os.execute("kill -KILL $PPID") end
      distributed.barrier()
    ]])
    assert.is_true(result.code ~= 0 and result.code ~= 124, "code " .. result.code)
  end)

  it("save one checkpoint if they save to one place, which stays whole, and say so", function()
    local lines = lines_of(2, ([[
      local rank = distributed.join()
      local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 2, 300 }) }, returns = tp.Numpy } (
        function(x) return flow.layers.dense(x, 300, { name = "out" }) end)
      job(np.zeros({ 2, 300 }))
      local check_point = flow.train.CheckPoint()
      for i = 1, 10 do
        local path = ("%s/same%%d"):format(i)
        distributed.barrier()
        local fine, problem = pcall(check_point.save, check_point, path)
        problem = tostring(problem)
        assert(fine or problem:find("one saves, where flow.distributed.rank() is 0", 1, true)
          or problem:find("exists and is not empty", 1, true), problem)
        local saved = distributed.all_reduce(np.array({ fine and 1 or 0 }))
        assert(saved:item() == 1, saved:item())
        check_point:save("%s/again", { overwrite = true })
        distributed.barrier()
        check_point:load(path)
        check_point:load("%s/again")
      end
      say("done")
    ]]):format(folder, folder, folder))
    assert.same({ "done", "done" }, lines)
  end)

  it("go on from a checkpoint after one was killed, to the bits of those that never were", function()
    local script = [[
      flow.set_seed(3)
      local rank = distributed.join()
      local train = flow.global_function {
        name = "train", type = "train", inputs = { x = tp.Numpy.Placeholder({ 8, 6 }) }, returns = tp.Numpy,
      } (function(x)
        local h = flow.layers.batch_normalization(flow.layers.dense(x, 16, { name = "hidden" }), { name = "norm" })
        h = flow.nn.dropout(flow.nn.relu(h), { rate = 0.3, name = "dropped" })
        local loss = flow.math.reduce_mean(flow.math.square(flow.layers.dense(h, 1, { name = "out" }) - 1))
        flow.optimizer.AdamW(0.01, { weight_decay = 0.01 }):minimize(loss)
        return loss
      end)
      local manager = flow.train.SimpleCheckPointManager(DIR)
      manager:initialize_or_restore()
      local first = flow.get_all_variables()["System-Train-TrainStep-train"]:item()
      for step = first, 39 do
        train(np.random.default_rng(100 * step + rank):normal(0, 1, { 8, 6 }))
        if step % 7 == 6 and rank == 0 then manager:save() end
        if step == DIES_AT and rank == 1 then os.execute("kill -KILL $PPID") end
      end
      local sums = {}
      for name, value in pairs(flow.get_all_variables()) do
        sums[#sums + 1] = ("%s %.17g"):format(name, (value:astype("float64"):ravel()
          * np.arange(1, value.shape:count() + 1)):sum())
      end
      table.sort(sums)
      say(first, table.concat(sums, ", "))
    ]]
    local function run(name, dies_at)
      return together(2, ("local DIES_AT, DIR = %s, '%s/%s'\n"):format(dies_at, folder, name) .. script)
    end
    local wanted = run("whole", nil)
    assert.equal(0, wanted.code, wanted.err)
    assert.equal(wanted.lines[1], wanted.lines[2])
    assert.is_true(run("killed", 25).code ~= 0)
    local resumed = run("killed", nil)
    assert.equal(0, resumed.code, resumed.err)
    local from, sums = resumed.lines[1]:match("^(%d+) (.*)")
    assert.is_true(from == "14" or from == "21", from)
    assert.equal(wanted.lines[1], "0 " .. sums)
    assert.equal(resumed.lines[1], resumed.lines[2])
  end)

  it("end with the one that fails, whatever the others wait for", function()
    local result = together(3, [[
      local rank = distributed.join()
      if rank == 1 then error("the data of process 1 is bad") end
      distributed.barrier()
    ]])
    assert.is_true(result.code ~= 0 and result.code ~= 124, "code " .. result.code)
    assert.truthy(result.err:find("the data of process 1 is bad", 1, true), result.err)
  end)

  it("wait for one that does not come no longer than their patience", function()
    local result = together(2, [[
      local rank = distributed.join { patience = 1 }
      if rank == 1 then
        local from = flow.clock()
        while flow.clock() < from + 60 do end
      end
      distributed.barrier()
    ]])
    assert.is_true(result.code ~= 0 and result.code ~= 124, "code " .. result.code)
    assert.truthy(result.err:find("waited 1 s for the other processes, of which one has not come here", 1, true),
      result.err)
  end)
end)

-- Two networks with a wire between them, each with a host's name of its own: what processes know of machines.
local machines = {}

function machines.sh(text, ...)
  return process.shell("sh -ec " .. process.quote(text:format(...)))
end

function machines.open()
  local pid = process.shell("sh -c 'echo $PPID'").out:match("%d+")
  machines.a, machines.b = "moonflow-" .. pid .. "a", "moonflow-" .. pid .. "b"
  machines.agent = folder .. "/agent"
  process.write(machines.agent, ([[
#!/bin/sh
case $1 in 10.77.0.1) machine=%s;; *) machine=%s;; esac
shift
exec ip netns exec $machine unshare --uts sh -c "hostname $machine; $*"
]]):format(machines.a, machines.b))
  return machines.sh([[
    chmod +x %s
    ip netns add %s; ip netns add %s
    ip link add wire netns %s type veth peer name wire netns %s
    for machine in "%s 10.77.0.1" "%s 10.77.0.2"; do
      set -- $machine
      ip -n $1 addr add $2/24 dev wire
      ip -n $1 link set lo up; ip -n $1 link set wire up
    done]], process.quote(machines.agent), machines.a, machines.b, machines.a, machines.b, machines.a, machines.b)
end

function machines.close()
  for _, machine in ipairs { machines.a, machines.b } do
    machines.sh("ip netns pids %s | xargs -r kill -KILL; ip netns del %s", machine, machine)
  end
end

-- The flags let a wire that is cut be noticed within seconds.
function machines.mpirun(slots)
  return ("ip netns exec %s unshare --uts sh -c 'hostname %s; exec mpirun \"$@\"' mpirun --mca plm_rsh_agent %s "
    .. "--mca oob_tcp_keepalive_time 3 --mca oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 3 "
    .. "-H 10.77.0.1:%d,10.77.0.2:%d"):format(machines.a, machines.a, process.quote(machines.agent), slots, slots)
end

-- Only root may have them, and not everywhere.
folder = process.folder("machines")
local are_open = machines.open().code == 0
machines.close()
local on_machines = are_open and describe or pending

on_machines("processes of two machines", function()
  setup(function()
    folder = process.folder("machines")
    local opened = machines.open()
    assert.equal(0, opened.code, opened.err)
  end)
  teardown(machines.close)

  it("train one net as a process alone does, and know their place on a machine", function()
    local script = "flow.set_seed(4)\n" .. TRAIN .. "say(('%.17g'):format(last), rank, distributed.local_rank())"
    local wanted = tonumber((lines_of(1, script)[1]:match("%S+")))
    local result = together(4, script, nil, machines.mpirun(2))
    assert.equal(0, result.code, result.err)
    local loss = result.lines[1]:match("%S+")
    assert.near(wanted, tonumber(loss), 1e-12)
    for i, place in ipairs { "0 0", "1 1", "2 0", "3 1" } do assert.equal(loss .. " " .. place, result.lines[i]) end
  end)

  it("end with one that fails on the other machine", function()
    local result = together(2, [[
      local rank = distributed.join()
      if rank == 1 then error("the disk of process 1 is full") end
      while true do distributed.barrier() end
    ]], nil, machines.mpirun(1))
    assert.is_true(result.code ~= 0 and result.code ~= 124, "code " .. result.code)
    assert.truthy(result.err:find("the disk of process 1 is full", 1, true), result.err)
  end)

  it("end where the wire between them is cut", function()
    local cut = folder .. "/cut"
    local result = together(2, ([[
      local rank = distributed.join { patience = 20 }
      local from, is_cut = flow.clock(), rank == 0
      while true do
        distributed.all_reduce(np.ones({ 100000 }))
        if not is_cut and flow.clock() > from + 1 then
          os.execute("ip link set wire down; touch %s")
          is_cut = true
        end
      end
    ]]):format(cut), nil, machines.mpirun(1))
    assert.is_true(result.code ~= 0 and result.code ~= 124, "code " .. result.code .. result.err)
    process.read(cut)
    for _ = 1, 100 do
      if machines.sh("ip netns pids %s", machines.b).out == "" then return end
      os.execute("sleep 0.1")
    end
    error("a process is left on the machine that was cut off")
  end)
end)
