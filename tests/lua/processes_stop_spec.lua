-- Processes that are stopped while they train one net: really several, by mpirun.
local process = require "process"

local ENV = { OMPI_ALLOW_RUN_AS_ROOT = "1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM = "1", OMP_NUM_THREADS = "1",
              OMP_WAIT_POLICY = "passive" }

-- Trains until it is stopped, by a signal that comes to some of the ranks at its twentieth step.
local TRAIN = [[
local flow = require "moonflow"
local np, tp, distributed = flow.np, flow.typing, flow.distributed
local function say(...) io.stdout:write(table.concat({ ... }, " ") .. "\n") end
local rank = distributed.join { patience = 60 }
local learn = flow.global_function {
  name = "learn", type = "train", inputs = { x = tp.Numpy.Placeholder({ 8, 20 }) },
  returns = IS_ASYNCHRONOUS and tp.Callback[tp.Numpy] or tp.Numpy,
} (function(x)
  local loss = flow.math.reduce_mean(flow.layers.dense(x, 30, { name = "out" }) ^ 2)
  flow.optimizer.Adam(0.01):minimize(loss)
  return distributed.all_reduce(loss, "mean")
end)
local pids = distributed.all_gather(np.array({ tonumber(io.popen("echo $PPID"):read("*l")) }, "int64")):totable()
local function steps() return flow.get_all_variables()["System-Train-TrainStep-learn"]:item() end
local function wait(seconds)
  local till = flow.clock() + seconds
  while flow.clock() < till do end
end
local function train(signal, ...)
  local x, command = np.ones({ 8, 20 }), "sleep 0.05; kill -" .. signal
  for _, r in ipairs { ... } do command = ("%s %d"):format(command, pids[r + 1]) end
  for step = 1, math.huge do
    if IS_ASYNCHRONOUS then learn(x)(function() end) else learn(x) end
    if step == 20 and rank == 0 then os.execute("(" .. command .. ") &") end
  end
end
]]

describe("processes that are stopped", function()
  local folder

  before_each(function() folder = process.folder("processes_stop") end)

  -- The lines that they write, in alphabetical order.
  local function said(script, count)
    process.write(folder .. "/script.lua", script)
    local result = process.shell(("timeout -k 5 60 mpirun --oversubscribe --bind-to none -n %d %s script.lua"):format(
      count or 2, process.quote(process.launcher)), { env = ENV, folder = folder })
    assert.is_true(result.code ~= 0 and result.code ~= 124, "code " .. result.code .. result.err)
    local lines = {}
    for line in result.out:gmatch("[^\n]+") do lines[#lines + 1] = line end
    table.sort(lines)
    return lines, result
  end

  local function check_steps(lines, count)
    assert.equal(count, #lines, table.concat(lines, "\n"))
    local steps = lines[1]:match("%d+$")
    for i, line in ipairs(lines) do assert.equal(("%d saved after %s"):format(i - 1, steps), line) end
  end

  for _, way in ipairs { "synchronously", "asynchronously" } do
    local head = (way == "asynchronously" and "IS_ASYNCHRONOUS = true\n" or "") .. TRAIN
    for _, signal in ipairs { "INT", "TERM" } do
      it(("wait for one that saves, whoever got %s, training %s"):format(signal, way), function()
        for _, to in ipairs { "0", "1", "0, 1" } do
          local lines, result = said(head .. ([[
            if rank == 0 then
              flow.on_interrupt(function()
                wait(0.5)
                flow.train.CheckPoint():save("saved")
                say(0, "saved after", steps())
              end)
            end
            train("%s", %s)
          ]]):format(signal, to))
          assert.equal(1, #lines, to .. table.concat(lines, "\n") .. result.err)
          process.shell("rm -r saved", { folder = folder })
        end
      end)
    end

    it("stop after the same step, training " .. way, function()
      for _, to in ipairs { "2", "0, 1, 2" } do
        check_steps(said(head .. ([[
          flow.on_interrupt(function() say(rank, "saved after", steps()) end)
          train("TERM", %s)
        ]]):format(to), 3), 3)
      end
    end)
  end

  it("do not wait for ever for one that hangs, and exchange nothing any more", function()
    local lines = said(TRAIN .. [[
      flow.on_interrupt(function() say(select(2, pcall(distributed.barrier)).message) end)
      if rank == 1 then
        os.execute(("(sleep 0.2; kill -INT %d) &"):format(pids[1]))
        wait(60)
      end
      while true do wait(0.01) end
    ]])
    for _, line in ipairs(lines) do
      assert.truthy(line:find("the processes are being stopped, and exchange nothing any more", 1, true), line)
    end
    assert.is_true(#lines >= 1)
  end)
end)
