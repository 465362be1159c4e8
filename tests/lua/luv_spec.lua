-- The server of samples/luv_server.lua from outside: many clients, a client that leaves, requests that are none.
local process = require "process"
local uv = require "luv"

local sample = process.source .. "/samples/luv_server.lua"
local sockets

-- Runs the loop until `condition()`; with a bound, so that a fault is a failure and not a hang.
local function run_until(condition)
  local late, bound = false, uv.new_timer()
  bound:start(120000, 0, function() late = true end)
  while not condition() and not late do uv.run("once") end
  bound:close()
  assert.is_false(late)
end

-- The server as a child of this process: text is what it has printed, code its exit code.
local function serve(program)
  local socket = sockets .. "/" .. program:match("[^/]*$")
  local out = uv.new_pipe(false)
  local server = { socket = socket, text = "" }
  server.handle = assert(uv.spawn(program, {
    args = { sample, "serve", socket },
    stdio = { nil, out, 2 },
    env = {
      "PATH=" .. os.getenv("PATH"),
      "LUA_PATH=" .. process.paths.LUA_PATH, "LUA_CPATH=" .. process.paths.LUA_CPATH,
      "ASAN_OPTIONS=" .. (os.getenv("ASAN_OPTIONS") or ""), "LSAN_OPTIONS=" .. (os.getenv("LSAN_OPTIONS") or ""),
      "OMP_WAIT_POLICY=passive",
    },
  }, function(code) server.code = code end))
  out:read_start(function(_, text)
    if text then server.text = server.text .. text else out:close() end
  end)
  run_until(function() return server.text:find("serving on", 1, true) or server.code end)
  assert.is_nil(server.code)
  return server
end

-- A connection that collects the lines it is sent.
local function connect(server)
  local client = { lines = {}, pipe = uv.new_pipe(false) }
  local rest = ""
  client.pipe:connect(server.socket, function(problem)
    assert(not problem, problem)
    client.connected = true
    client.pipe:read_start(function(_, text)
      if not text then client.closed = true return client.pipe:close() end
      rest = (rest .. text):gsub("([^\n]*)\n", function(line) client.lines[#client.lines + 1] = line return "" end)
    end)
  end)
  run_until(function() return client.connected end)
  return client
end

local function request(id, value)
  return "[" .. id .. (", " .. value):rep(16) .. "]\n"
end

local programs = { [process.launcher] = "our launcher" }
if process.sanitizer == "" then programs["luajit"] = "stock luajit" end  -- which is not sanitized

for program, name in pairs(programs) do
  describe("the server on " .. name, function()
    local server

    before_each(function()
      uv.new_signal():start("sigpipe", function() end)  -- a server that is gone is a failure, not our end
      sockets = process.short_folder()
      server = serve(program)
    end)

    after_each(function()
      if server and not server.code then server.handle:kill("sigkill") end
      server = nil
      process.shell("rm -rf " .. sockets)
      uv.walk(function(handle)
        if not handle:is_closing() then handle:close() end
      end)
      uv.run()
    end)

    -- How many there are to so many requests of a client that says all at once.
    local function answers_to(count)
      local client, words = connect(server), {}
      for id = 1, count do words[id] = request(id, id / count) end
      client.pipe:write(table.concat(words))
      client.pipe:shutdown()
      run_until(function() return client.closed end)
      return #client.lines
    end

    it("gives many clients the answers of a direct call", function()
      local processes = {}
      for i = 1, 3 do
        processes[i] = process.quote(process.launcher) .. " " .. process.quote(sample) .. " ask "
          .. process.quote(server.socket) .. " 300 5"
      end
      local run = process.shell("sh -c " .. process.quote(table.concat(processes, " & ") .. " & wait"))
      local _, count = run.out:gsub("300 answers to 300 requests over 5 connections, 0 wrong\n", "")
      assert.equal(3, count, run.out .. run.err)
    end)

    it("answers what is no request, and goes on with the same client", function()
      local client = connect(server)
      client.pipe:write("hello\n[1, 2]\n[true]\n\n" .. request(7, "nan") .. request(8, "1e999") .. request("1.5", 0)
        .. request(9, "0.5"))
      run_until(function() return #client.lines == 8 end)
      table.sort(client.lines)
      assert.truthy(client.lines[1]:find('^%[1, "wanted 16 numbers, got 1"%]$'))
      assert.truthy(client.lines[2]:find('^%[7, "x1 is no number"%]$'))
      assert.truthy(client.lines[3]:find('^%[8, "x1 is no number"%]$'))
      assert.truthy(client.lines[4]:find("^%[9, %d, 0%.%d+%]$"))
      for i = 5, 8 do assert.truthy(client.lines[i]:find('^%[null, "')) end
      client.pipe:close()
    end)

    it("answers everything before it takes leave of a client that has said all", function()
      assert.equal(1000, answers_to(1000))
    end)

    it("loses nobody's answers when a client leaves in the middle, or sends a line without end", function()
      local stays, leaves, babbles = connect(server), connect(server), connect(server)
      for id = 1, 100 do
        stays.pipe:write(request(id, 0.25))
        leaves.pipe:write(request(id, 0.5))
      end
      leaves.pipe:write("[101, 0.5, 0.")
      leaves.pipe:close()
      babbles.pipe:write(("9"):rep(100000))
      run_until(function() return #stays.lines == 100 and babbles.closed end)
      local answers = {}
      for _, line in ipairs(stays.lines) do
        local id, answer = line:match("^%[(%d+), (.*)%]$")
        answers[tonumber(id)] = answer
      end
      for id = 2, 100 do assert.equal(answers[1], answers[id]) end
      stays.pipe:close()
    end)

    it("runs many requests as few batches, and ends cleanly", function()
      assert.equal(1000, answers_to(1000))
      server.handle:kill("sigint")
      run_until(function() return server.code and server.text:find("batches", 1, true) end)
      assert.equal(0, server.code)
      local requests, batches = server.text:match("(%d+) requests in (%d+) batches")
      assert.equal(1000, tonumber(requests))
      assert.truthy(tonumber(batches) < tonumber(requests) / 4)
      assert.is_nil(uv.fs_stat(server.socket))
    end)
  end)
end
