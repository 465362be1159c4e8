-- Serves predictions on a Unix socket, to many clients at once and on one thread: libuv's loop (Debian's lua-luv) waits
-- for the sockets and for Moonflow together. Requests that come close to one another are run as one batch.
-- usage: luajit luv_server.lua serve PATH [checkpoint]     until Ctrl-C
--        luajit luv_server.lua ask PATH [requests] [connections]
--
-- The protocol is one JSON array per line. A request is [id, x1, ..., x16] with a whole number as id; its answer is
-- [id, class, probability]. Answers may come in another order than the requests. What is no request is answered with
-- [id or null, "what is wrong with it"].
local uv = require "luv"
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

local INPUTS, CLASSES = 16, 4
local BATCH = 32             -- so many requests make a batch
local PATIENCE_MS = 2        -- or as many as there are when the first one has waited so long
local MAX_OUTSTANDING = 256  -- requests of one client; then nothing is read from it until answers have gone out
local MAX_LINE = 4096        -- bytes

local function network(x)
  local hidden = flow.layers.dense(x, 32, { activation = flow.nn.relu, name = "hidden" })
  return flow.nn.softmax(flow.layers.dense(hidden, CLASSES, { name = "output" }))
end

local function define(rows, returns)
  return flow.global_function {
    name = "predict", inputs = { x = tp.Numpy.Placeholder({ rows, INPUTS }) }, returns = returns,
  } (network)
end

-- The variables of `path`, or equal random ones in every process.
local function load_variables(path)
  flow.set_seed(1)
  local check_point = flow.train.CheckPoint()
  if path then check_point:load(path) else check_point:init() end
end

-- Cuts what is read into lines. Gives the lines that are complete and what is left.
local function cut(text)
  local lines, first = {}, 1
  while true do
    local last = text:find("\n", first, true)
    if not last then return lines, text:sub(first) end
    lines[#lines + 1] = text:sub(first, last - 1)
    first = last + 1
  end
end

-- ---- the server ---------------------------------------------------------------------------------------------------

-- The id and the numbers of a request; or the id, if it can be told, nil and what is wrong.
local function parse(line)
  local inside = line:match("^%s*%[(.*)%]%s*$")
  if not inside then return nil, nil, "a request is an array in one line" end
  local values = {}
  for word in (inside .. ","):gmatch("([^,]*),") do values[#values + 1] = tonumber(word) or false end
  local id = table.remove(values, 1)
  if not id or id ~= math.floor(id) or math.abs(id) > 2 ^ 53 then return nil, nil, "the id is no whole number" end
  if #values ~= INPUTS then return id, nil, ("wanted %d numbers, got %d"):format(INPUTS, #values) end
  for i, value in ipairs(values) do
    if not value or value ~= value or math.abs(value) == math.huge then
      return id, nil, ("x%d is no number"):format(i)
    end
  end
  return id, values
end

local function serve(path, checkpoint)
  flow.config.pump("host")
  flow.config.on_error(function(problem) io.stderr:write(tostring(problem), "\n") end)
  local predict_job = define(BATCH, tp.Callback[tp.Numpy])
  load_variables(checkpoint)

  local waiting = {}   -- requests of the next batch, in order: { client, id, values }
  local patience = uv.new_timer()
  local requests, batches = 0, 0

  local function close(client)
    if client.open then
      client.open = false
      if not client.pipe:is_closing() then client.pipe:close() end
    end
  end

  -- A client that is gone needs no answer; one that has said its last word goes with its last answer. A request is
  -- outstanding until its answer has left, so that a client that does not read is not read from either.
  local function answer(client, text)
    if not client.open then return end
    client.pipe:write(text .. "\n", function(problem)
      client.outstanding = client.outstanding - 1
      if problem or client.said_all and client.outstanding == 0 then
        close(client)
      elseif client.paused and client.outstanding < MAX_OUTSTANDING then
        client:read()
      end
    end)
  end

  local function run_batch()
    patience:stop()
    local batch = waiting
    waiting = {}
    local numbers = {}
    for row = 1, BATCH do
      for column = 1, INPUTS do
        numbers[#numbers + 1] = batch[row] and batch[row].values[column] or 0
      end
    end
    batches = batches + 1
    -- A task, because there may be no room for the run yet.
    flow.spawn(function()
      local call = predict_job(np.array(numbers, flow.float):reshape({ BATCH, INPUTS }))
      local fine, probabilities = pcall(call.await, call)
      local classes = fine and np.argmax(probabilities, 1)
      for i, request in ipairs(batch) do
        local class = fine and classes[i - 1]
        answer(request.client, fine
          and ("[%d, %d, %.7g]"):format(request.id, class, probabilities:at(i - 1, class))
          or ('[%d, "the run has failed"]'):format(request.id))
      end
      if not fine then error(probabilities, 0) end
    end)
  end

  local function receive(client, line)
    requests = requests + 1
    client.outstanding = client.outstanding + 1
    local id, values, fault = parse(line)
    if fault then return answer(client, ('[%s, "%s"]'):format(id and ("%d"):format(id) or "null", fault)) end
    waiting[#waiting + 1] = { client = client, id = id, values = values }
    if #waiting == BATCH then
      run_batch()
    elseif #waiting == 1 then
      patience:start(PATIENCE_MS, 0, run_batch)
    end
  end

  -- Takes the lines that have been read, as long as the client may have more requests under way.
  local function take_lines(client)
    while client.open and #client.lines > 0 and client.outstanding < MAX_OUTSTANDING do
      receive(client, table.remove(client.lines, 1))
    end
  end

  local function read(client)
    client.paused = false
    take_lines(client)
    if not client.open or client.said_all then return end
    if client.outstanding >= MAX_OUTSTANDING then
      client.paused = true
      client.pipe:read_stop()
      return
    end
    client.pipe:read_start(function(problem, text)
      if problem then return close(client) end
      if not text then
        client.said_all = true
        if client.outstanding == 0 then close(client) end
        return
      end
      local lines
      lines, client.rest = cut(client.rest .. text)
      for _, line in ipairs(lines) do client.lines[#client.lines + 1] = line end
      if #client.rest > MAX_LINE then return close(client) end
      client:read()
    end)
  end

  local server = uv.new_pipe(false)
  assert(server:bind(path))
  assert(uv.fs_chmod(path, tonumber("600", 8)))
  server:listen(128, function(problem)
    if problem then return end
    local client = { pipe = uv.new_pipe(false), open = true, outstanding = 0, lines = {}, rest = "", read = read }
    server:accept(client.pipe)
    client:read()
  end)

  local results = uv.new_poll(flow.fd())
  results:start("r", function() flow.poll(2) end)

  -- Without an open handle the loop ends. Closing the server removes its socket.
  local function stop()
    uv.walk(function(handle)
      if not handle:is_closing() then handle:close() end
    end)
  end
  for _, name in ipairs { "sigint", "sigterm" } do uv.new_signal():start(name, stop) end
  uv.new_signal():start("sigpipe", function() end)  -- writing to a client that is gone is an error, not our end

  print("serving on " .. path)
  io.stdout:flush()
  uv.run()
  flow.shutdown()
  print(("%d requests in %d batches"):format(requests, batches))
end

-- ---- a client -----------------------------------------------------------------------------------------------------

-- Sends random requests over several connections, and compares each answer with a call of the job in this process.
local function ask(path, count, connections)
  local predict_job = define(1, tp.Numpy)
  load_variables()
  local expected, wrong, answered = {}, 0, 0

  local function check(line)
    local id, class, probability = line:match("^%[(%d+), (%d+), ([%d.e+-]+)%]$")
    local x = expected[tonumber(id)]
    expected[tonumber(id) or 0] = nil
    local right = x and predict_job(x)
    if not right or math.abs(right:at(0, tonumber(class)) - tonumber(probability)) > 1e-5
      or tonumber(class) ~= np.argmax(right, 1)[0] then
      wrong = wrong + 1
    end
    answered = answered + 1
  end

  for connection = 1, connections do
    local pipe, rest, outstanding = uv.new_pipe(false), "", 0
    pipe:connect(path, function(problem)
      assert(not problem, problem)
      for id = connection, count, connections do
        local x = np.random.uniform(-1, 1, { 1, INPUTS }):astype(flow.float)
        local words = { id }
        for i = 0, INPUTS - 1 do words[#words + 1] = ("%.9g"):format(x:at(0, i)) end
        expected[id], outstanding = x, outstanding + 1
        pipe:write("[" .. table.concat(words, ", ") .. "]\n")
      end
      pipe:read_start(function(failure, text)
        if failure or not text then return pipe:close() end
        local lines
        lines, rest = cut(rest .. text)
        for _, line in ipairs(lines) do check(line) end
        outstanding = outstanding - #lines
        if outstanding == 0 then pipe:close() end
      end)
    end)
  end
  uv.run()
  print(("%d answers to %d requests over %d connections, %d wrong"):format(answered, count, connections, wrong))
  if answered ~= count or wrong > 0 then os.exit(1) end
end

local verb, path = arg[1], arg[2]
if verb == "serve" and path then
  serve(path, arg[3])
elseif verb == "ask" and path then
  ask(path, tonumber(arg[3]) or 200, tonumber(arg[4]) or 8)
else
  print("usage: luv_server.lua serve PATH [checkpoint], or luv_server.lua ask PATH [requests] [connections]")
end
