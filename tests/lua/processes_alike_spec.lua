-- Processes that would train apart, since their variables or optimizers differ, say so: really several, by mpirun.
local process = require "process"

local ENV = { OMPI_ALLOW_RUN_AS_ROOT = "1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM = "1", OMP_NUM_THREADS = "1" }

local TRAIN = [[
local flow = require "moonflow"
local np, tp, o = flow.np, flow.typing, flow.optimizer
local rank = flow.distributed.join { patience = 20 }
local function train_by(optimizer, input)
  return flow.global_function {
    name = "learn", type = "train", inputs = { x = input or tp.Numpy.Placeholder({ 4, 3 }) }, returns = tp.Numpy,
  } (function(x)
    local loss = flow.math.reduce_mean(flow.layers.dense(x, 2, { name = "out" }) ^ 2)
    optimizer:minimize(loss)
    return loss
  end)
end
local x = np.ones({ 4, 3 })
local function try(body)
  local fine, problem = pcall(body)
  io.stdout:write(tostring(fine), " ", fine and "" or tostring(problem), "\n")
end
]]

describe("processes that train one net", function()
  local folder

  before_each(function() folder = process.folder("processes_alike") end)

  local function said(script)
    process.write(folder .. "/script.lua", TRAIN .. script)
    local result = process.shell(("timeout -k 5 120 mpirun --oversubscribe --bind-to none -n 2 %s script.lua"):format(
      process.quote(process.launcher)), { env = ENV, folder = folder })
    local lines = {}
    for line in result.out:gmatch("[^\n]+") do lines[#lines + 1] = line end
    assert.equal(2, #lines, result.out .. result.err)
    return lines
  end

  it("say which variable differs where one has loaded a checkpoint that the other has not", function()
    for _, line in ipairs(said([[
      local train = train_by(o.Adam(0.1))
      try(function()
        if rank == 0 then train_by(o.Adam(0.1)) flow.load_variables { ["out-bias"] = np.ones({ 2 }) } end
        train(x)
      end)
    ]])) do
      assert.truthy(line:find("^false .*: learn: variable 'out%-bias' has other values in other processes"), line)
      assert.truthy(line:find("flow.distributed.broadcast", 1, true), line)
    end
  end)

  it("go on where all have loaded the same, also in the midst of a training", function()
    assert.same({ "true ", "true " }, said([[
      local train = train_by(o.Adam(0.1))
      try(function()
        for step = 1, 4 do
          if step % 2 == 0 then flow.load_variables { ["out-weight"] = np.full({ 2, 3 }, 0 / 0) } end
          train(x)
        end
        flow.train.CheckPoint():init()
        train(x)
      end)
    ]]))
  end)

  it("leave it to the next call inside a callback, where nothing waits, and look in tasks", function()
    assert.same({ "true ", "true " }, said([[
      local train = train_by(o.Adam(0.1))
      try(function()
        local one = flow.global_function { returns = tp.Callback[tp.Numpy] } (function() return flow.ones({ 1 }) end)
        one()(function() train(x) end)
        flow.sync()
        flow.spawn(function() train(x) train(x) end)
        flow.sync()
      end)
    ]]))
  end)

  it("say so where one has another optimizer, or loads alone in the midst of it", function()
    for _, line in ipairs(said("try(function() train_by(rank == 0 and o.SGD(0.1) or o.Adam(0.1))(x) end)")) do
      assert.truthy(line:find("learn by flow.optimizer.SGD(0.1)", 1, true), line)
      assert.truthy(line:find("learn by flow.optimizer.Adam(0.1)", 1, true), line)
    end
    for _, line in ipairs(said([[
      local train = train_by(o.SGD(0.1))
      try(function()
        train(x)
        if rank == 1 then flow.load_variables { ["out-bias"] = np.ones({ 2 }) } end
        train(x)
      end)
    ]])) do
      assert.truthy(line:find("variables, new or loaded, of learn by flow.optimizer.SGD(0.1)", 1, true), line)
    end
  end)

  it("say so at the first call where their batches have other shapes, and at any later one", function()
    for _, before in ipairs { "", "train({ x })" } do
      for _, line in ipairs(said(([[
        local train = train_by(o.Adam(0.1), tp.ListNumpy.Placeholder({ 9, 3 }))
        try(function()
          %s
          train({ np.ones({ rank == 0 and 4 or 3, 3 }) })
        end)
      ]]):format(before))) do
        assert.truthy(line:find("^false "), line)
        assert.truthy(line:find("learn.-, fed with x %(4, 3%)"), line)
        assert.truthy(line:find("learn.-, fed with x %(3, 3%)"), line)
      end
    end
  end)
end)
