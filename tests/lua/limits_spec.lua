-- Limits that the system sets to a process, seen from outside: of the address space, and of files.
local process = require "process"

describe("a limit of", function()
  local folder

  before_each(function() folder = process.folder("limits") end)

  -- Runs a script under `ulimit` with these words.
  local function limited(words, text)
    process.write(folder .. "/limited.lua", text)
    return process.shell("bash -c " .. process.quote(("ulimit -c 0; ulimit %s; exec %s limited.lua"):format(words,
      process.quote(process.launcher))), { folder = folder })
  end

  -- Sanitizers reserve more than any limit of the address space.
  if process.sanitizer == "" then
    it("the address space makes a convolution, whose code has no room, an error, and the next works", function()
      local run = limited("-v 400000", [[
        jit.off() jit.flush()
        local flow = require "moonflow"
        local np, tp = flow.np, flow.typing
        local function conv(size)
          local image = tp.Numpy.Placeholder({ 8, 1, size, size })
          local job = flow.global_function { name = "job" .. size, inputs = { x = image }, returns = tp.Numpy } (
            function(x) return flow.layers.conv2d(x, 8, 3, { name = "c" }) end)
          return job(np.ones({ 8, 1, size, size })).shape[2]
        end
        print(conv(10))
        local held, size = {}, 1e6
        while size > 1e3 do
          local fine, array = pcall(np.ones, { size })
          if fine then held[#held + 1] = array else size = size / 2 end
        end
        local _, problem = pcall(conv, 12)
        print(problem.code, problem.message)
        for _ = 1, 12 do table.remove(held, 1) end
        collectgarbage() collectgarbage()
        print(conv(14))
      ]])
      assert.equal(0, run.code, run.err)
      assert.equal("8\nout_of_memory\tno room for 8.0 MiB of oneDNN's code on the cpu: the address space of the "
        .. "process is limited to 390.6 MiB, by ulimit -v or LimitAS=\n12\n", run.out)
    end)

    it("the address space is named where it is what binds, with advice that fits", function()
      local run = limited("-v 400000", [[
        local flow = require "moonflow"
        local np, tp = flow.np, flow.typing
        local function job_of(rows, body)
          local x = tp.Numpy.Placeholder({ rows, 8000 })
          return flow.global_function { inputs = { x = x }, returns = tp.Numpy } (body)
        end
        local _, problem = pcall(function()
          job_of(1, function(x) return flow.layers.dense(x, 16000, { name = "wide" }) end)(np.ones({ 1, 8000 }))
        end)
        print(problem.message)
        _, problem = pcall(job_of, 10, function(x)
          return flow.math.reduce_sum(flow.math.exp(flow.broadcast_to(flow.reshape(x, { 1, 80000 }), { 2000, 80000 })))
        end)
        print(problem.message)
      ]])
      assert.equal(0, run.code, run.err)
      local weight, batch = run.out:match("^([^\n]*)\n([^\n]*)\n$")
      assert.is_string(weight, run.out)
      assert.truthy(weight:find("no room for 488.2 MiB on the cpu: the address space of the process is limited to "
        .. "390.6 MiB", 1, true), weight)
      assert.is_nil(weight:find("batch", 1, true), weight)
      assert.truthy(batch:find("limited to 390.6 MiB, by ulimit -v or LimitAS=. So much is in use", 1, true), batch)
      assert.truthy(batch:find("; take a smaller batch$"), batch)
    end)

    it("the address space that leaves Lua nothing ends in words", function()
      for kilobytes = 70000, 76000, 400 do
        local run = limited("-v " .. kilobytes, [[
          local flow = require "moonflow"
          print(flow.np.ones({ 3 }))
        ]])
        assert.is_nil(run.err:find("PANIC", 1, true), run.err)
      end
    end)
  end

  it("files fails what is written, leaves nothing behind, and is that of programs that a script starts", function()
    local run = limited("-f 16", [[
      local flow = require "moonflow"
      local fine, problem = pcall(flow.np.save, "big.npy", flow.np.ones({ 100000 }))
      print(fine, problem)
      io.flush()
      print(os.execute("head -c 100000 /dev/zero > other") ~= 0)
    ]])
    assert.equal(0, run.code, run.err)
    assert.truthy(run.out:find("^false\t[^\n]*big.npy': File too large[^\n]*\ntrue\n$"), run.out)
    run = limited("-f 16", [=[os.execute("sh -c 'head -c 100000 /dev/zero > other'; echo $?")]=])
    assert.equal("153\n", run.out, run.err) -- 128 + SIGXFSZ
    assert.equal("limited.lua\nother\n", process.shell("ls -A", { folder = folder }).out)
  end)
end)
