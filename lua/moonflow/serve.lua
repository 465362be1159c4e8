--- Serve: a prompt inside a running program, for one terminal of the same user at a time.
-- `flow.serve_repl("path.sock")` in the game or robot, `moonflow attach path.sock` in the terminal. The served side
-- works only where the program delivers anyway (flow.poll, flow.sync, a future's get) and never waits for the other.
--
-- Both sides send frames: a word, the length of what follows, a line break, and so many bytes.
--   to the program:  evaluate <chunk> | complete <number, text> | width <columns> | interrupt
--   to the terminal: hello <banner> | output <text> | error <text> | done <fine|failed|leave>
--                    | candidates <number, word, choices> | refused <reason>

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local interrupts = require "moonflow.interrupts"
local session = require "moonflow.session"
local debug = debug

local serve = {}

local function repl() return require "moonflow.repl" end  -- read when there is a prompt: few programs have one

local kMostBytes = 2 ^ 20           -- of one frame; whoever sends more is cut off
local kMostChunk = kMostBytes - 64  -- bytes of a chunk, whose frame is sent only whole
local kMostFrames = 1000            -- that wait to be answered
local kMostReads = 32               -- at once
local kLookSeconds = 0.05           -- between two looks for an interrupt while a chunk runs

-- ---- frames -------------------------------------------------------------------------------------------------------

local function frame(word, text)
  text = text or ""
  return word .. " " .. #text .. "\n" .. text
end

-- The first frame of `inbox` and what follows it; nil while it is not whole; nil and a reason when it is none.
local function take_frame(inbox)
  local first_line = inbox:match("^[^\n]*\n")
  if not first_line then
    if #inbox > 32 then return nil, "not a frame" end
    return nil
  end
  local word, length = first_line:match("^(%l+) (%d+)\n$")
  length = tonumber(length)
  if not word or #first_line > 32 or length > kMostBytes then return nil, "not a frame" end
  local last = #first_line + length
  if #inbox < last then return nil end
  return { word = word, text = inbox:sub(#first_line + 1, last) }, inbox:sub(last + 1)
end

-- One side of a conversation.
local Connection = {}
Connection.__index = Connection

local function new_connection(socket)
  return setmetatable({ socket = socket, inbox = "", frames = {}, left_out = 0 }, Connection)
end

--- Takes in what has come, some of it when it comes without end. False when the other side is gone, or sends what is
--- no frame.
function Connection:receive()
  for _ = 1, kMostReads do
    if self.gone then break end
    local text = self.socket:read()
    if text == "" then break end
    if not text then self.gone = true break end
    self.inbox = self.inbox .. text
    while true do
      local one, rest = take_frame(self.inbox)
      if not one then
        if rest then self.gone = true end
        break
      end
      self.inbox = rest
      self.frames[#self.frames + 1] = one
    end
    if self.served and #self.frames > kMostFrames then self.gone = true end
  end
  return not self.gone
end

--- Sends a frame. What finds no room, because the other side does not read, is left out and counted.
function Connection:send(word, text)
  if self.gone then return end
  local pieces = text and math.ceil(#text / 65536) or 0
  if pieces > 1 and (word == "output" or word == "error") then
    for i = 1, pieces do self:send(word, text:sub((i - 1) * 65536 + 1, i * 65536)) end
    return
  end
  local note = self.left_out > 0 and frame("output", "[" .. self.left_out .. " bytes left out]\n") or ""
  local waiting, problem = self.socket:write(note .. frame(word, text))
  if waiting then
    self.left_out, self.waiting = 0, waiting > 0
  elseif problem == "full" then
    self.left_out = self.left_out + #(text or "")
  else
    self.gone = true
  end
end

--- Sends on what has found no room yet.
function Connection:flush()
  if not self.waiting then return end
  local waiting, problem = self.socket:write("")
  self.waiting = waiting ~= nil and waiting > 0
  if problem == "gone" then self.gone = true end
end

-- ---- the served side ----------------------------------------------------------------------------------------------

local Server = { kind = "served prompt" }
Server.__index = Server
arguments.publish("Server", "server", Server, "close")

local function interrupted_by(client)
  if not client:receive() then return true end
  for i, one in ipairs(client.frames) do
    if one.word == "interrupt" then
      table.remove(client.frames, i)
      return true
    end
  end
  return false
end

-- A hook that raises "interrupted" when the terminal asks for it, or is gone.
local function look_for_interrupts(self)
  local next_look, raised = core.clock() + kLookSeconds, false
  local function look()
    if self.interrupting then
      -- A chunk may catch every error, so it is raised again, though not where the library passes it on.
      local info = raised and debug.getinfo(2, "Sl")
      if raised and (info.currentline <= 0 or errors.is_own(info.source)) or not interrupts.may_stop(1) then return end
      raised = true
      error("interrupted", 0)
    end
    local now = core.clock()
    if now < next_look then return end
    next_look = now + kLookSeconds
    if self.client and interrupted_by(self.client) then
      self.interrupting = true
      session.stop_waits(true)
      debug.sethook(look, "", 1)
    end
  end
  debug.sethook(look, "", 100)
end

-- What is raised behind the evaluator's back is an interrupt that came while it printed, or one of the program's own.
local function evaluate(self, text)
  local earlier, mask, count = debug.gethook()
  -- A hook that was set from C, such as that of a Ctrl-C, cannot be put back, so it is left alone.
  local hooked = type(earlier) ~= "string"
  self.interrupting = false
  local fine, result, leave = pcall(function()
    if hooked then look_for_interrupts(self) end
    return self.evaluator:evaluate(text)
  end)
  if hooked then debug.sethook(earlier, mask, count) end
  session.stop_waits(false)
  if not fine then
    if not self.interrupting then error(result, 0) end
    self.evaluator.complain("interrupted\n")
  end
  self.interrupting = false
  local outcome = fine and (leave and "leave" or result and "fine") or "failed"
  if self.client then self.client:send("done", outcome) end
end

local answers = { evaluate = evaluate }

function answers.complete(self, text)
  local number, line = text:match("^(%d+)\n(.*)$")
  if not number then return end
  -- A fault of what is completed is none of the host's, whose flow.poll this is in.
  local fine, word, choices = pcall(self.evaluator.complete, self.evaluator, line)
  if not fine then word, choices = "", {} end
  for i = #choices, 2001, -1 do choices[i] = nil end
  self.client:send("candidates", number .. "\n" .. word .. "\n" .. table.concat(choices, "\n"))
end

function answers.width(self, text)
  self.width = math.max(20, tonumber(text) or 80)
end

function answers.interrupt() end  -- nothing runs

local function greet(self, socket)
  local connection = new_connection(socket)
  if self.client then
    connection:send("refused", "another terminal is attached to '" .. self.path .. "'; one at a time")
    socket:close()
    return
  end
  self.client, connection.served = connection, true
  session.waiter():watch(socket:fd())
  connection:send("hello", repl().banner(core.build_info().lua))
end

local function dismiss(self)
  local client = self.client
  self.client = nil
  session.waiter():forget(client.socket:fd())
  client.socket:close()
  for _, handle in pairs(self.evaluator.watches) do handle:off() end  -- nobody would see them
end

local function attend(self)
  local client = self.client
  if not client then return end
  client:receive()
  while client.frames[1] and self.client == client do
    local one = table.remove(client.frames, 1)
    local answer = answers[one.word]
    if not answer then client.gone = true break end
    answer(self, one.text)
  end
  if self.client ~= client then return end
  client:flush()
  if client.gone then
    dismiss(self)
  elseif client.waiting ~= client.watched_for_writing then
    client.watched_for_writing = client.waiting
    session.waiter():watch(client.socket:fd(), client.waiting)
  end
end

--- Does what there is to do, without waiting. Called where the session delivers.
function Server:step()
  local newcomer = self.listener and self.listener:accept()
  while newcomer do
    attend(self)  -- first: a terminal that has left makes room for the one that came behind it
    if not self.listener then return newcomer:close() end
    greet(self, newcomer)
    newcomer = self.listener:accept()
  end
  attend(self)
end

--- Ends the service, sends an attached terminal away and removes the socket. Idempotent.
function Server:close()
  if not self.listener then return end
  session.remove_service(self)
  if self.client then dismiss(self) end
  session.waiter():forget(self.listener:fd())
  self.listener:close()
  self.listener = nil
end

function Server:__tostring()
  return "prompt served at " .. self.path .. (self.listener and (self.client and ", attached" or "") or " (closed)")
end

--- Serves a prompt at a Unix socket of mode 0600, to one terminal of the same user at a time:
--- `moonflow attach path.sock`. Chunks run inside flow.poll, flow.sync and a future's get, so a program without them
--- does not answer. What typed chunks print goes to that terminal. Nothing is served unless this is called.
--- @param path string  of the socket; it must not exist, unless it was left by a process that has ended
--- @return Server      `:close()` ends the service
--- @error a path that is in use, or cannot be bound; a program that has taken debug, io, os or package away before
function serve.serve_repl(path)
  if type(path) ~= "string" or path == "" then
    errors.raise("invalid_argument", "flow.serve_repl wants the path of a socket, got " .. tostring(path))
  end
  for _, name in ipairs({ "debug", "io", "os", "package" }) do
    if type(_G[name]) ~= "table" then
      errors.raise("unsupported", "flow.serve_repl needs Lua's library '" .. name .. "' when it begins; take it away "
        .. "afterwards")
    end
  end
  local listener = errors.blaming("flow.serve_repl", core.listen, path)
  local self = setmetatable({ path = path, listener = listener, width = 80 }, Server)
  local function to_client(word)
    return function(text)
      if self.client then self.client:send(word, text) end
    end
  end
  local write = to_client("output")
  self.evaluator = repl().new {
    write = write, complain = to_client("error"), describe = core.describe_error, fold = core.fold_traceback,
    width = function() return self.width end, chunk_name = "=attached", is_guest = true,
    own_interrupt = function() return self.interrupting end,
    print = function(...)
      local texts = {}
      for i = 1, select("#", ...) do texts[i] = tostring((select(i, ...))) end
      write(table.concat(texts, "\t") .. "\n")
    end,
  }
  session.waiter():watch(self.listener:fd())
  session.add_service(self)
  return self
end

-- ---- the terminal's side ------------------------------------------------------------------------------------------

-- A conversation as the prompt wants it (bindings/prompt.h), held with another process.
local Attached = {}
Attached.__index = Attached

-- Prints what has come until a frame of this word is there; its text. nil when the other side is gone, or when
-- `seconds` are over.
local function await(self, word, seconds)
  local stop = seconds and core.clock() + seconds
  while true do
    local connected = self.connection:receive()
    local frames = self.connection.frames
    while frames[1] do
      local one = table.remove(frames, 1)
      if one.word == word then return one.text end
      if one.word == "output" then self.write(one.text) end
      if one.word == "error" then self.complain(one.text) end
      if one.word == "refused" then
        self.complain(one.text .. "\n")
        self.refused = true
      end
    end
    if not connected or stop and core.clock() >= stop then return nil end
    self.connection:flush()
    self.waiter:watch(self.connection.socket:fd(), self.connection.waiting)
    self.waiter:wait(50)
  end
end
interrupts.keep_open(await)  -- a Ctrl-C is for the other side

local function farewell(self)
  if not self.parted and not self.refused then self.complain("the process has closed the connection\n") end
  self.parted = true
  return false, true
end

function Attached.incomplete(_, text)
  return require("moonflow.chunks").incomplete(text)
end

function Attached:evaluate(text)
  if #text > kMostChunk then
    self.complain(("a chunk of %d bytes is too long to be sent, it may have %d\n"):format(#text, kMostChunk))
    return false, false
  end
  local columns = self.width()
  if columns ~= self.columns then
    self.columns = columns
    self.connection:send("width", tostring(columns))
  end
  self.connection:send("evaluate", text)
  while true do
    local fine, outcome = pcall(await, self, "done")
    if fine and outcome then return outcome ~= "failed", outcome == "leave" end
    if fine then return farewell(self) end
    if outcome ~= "interrupted" then error(outcome, 0) end
    self.connection:send("interrupt")
  end
end

function Attached:complete(text)
  if #text > kMostChunk then return "", {} end
  self.asked = self.asked + 1
  self.connection:send("complete", self.asked .. "\n" .. text)
  local stop = core.clock() + 1
  repeat
    local answer = await(self, "candidates", stop - core.clock())
    local number, word, rest = (answer or ""):match("^(%d+)\n([^\n]*)\n(.*)$")
    if tonumber(number) == self.asked then
      local choices = {}
      for choice in rest:gmatch("[^\n]+") do choices[#choices + 1] = choice end
      return word, choices
    end
  until not answer
  return "", {}
end

function Attached:pump()
  if self.parted then return false, true end
  await(self, "nothing", 0)
  -- Chunks from a file may end the program with their last one; a further one would learn of it when it is evaluated.
  if self.connection.gone and self.terminal then return farewell(self) end
  return true, false
end

function Attached:descriptor()
  return not self.parted and self.waiter:fd() or nil
end

--- Connects to a served prompt.
--- @param given table     socket: its path; write, complain, width as repl.new has them; terminal: whether a person
---                        types
--- @return Attached|nil   nil after an error that has been said
function serve.attach(given)
  local fine, socket = pcall(core.connect, given.socket)
  if not fine then
    given.complain("cannot attach: " .. (type(socket) == "table" and socket.message or tostring(socket)) .. "\n")
    return nil
  end
  local self = setmetatable({ connection = new_connection(socket), waiter = core.waiter(), write = given.write,
                              complain = given.complain, width = given.width, terminal = given.terminal, asked = 0 },
                            Attached)
  self.waiter:watch(socket:fd())
  interrupts.keep_open(self.incomplete)
  local hello = await(self, "hello", 2)
  if not hello and not self.connection.gone then
    self.complain("attached; the process will answer when it calls flow.poll or flow.sync\n")
    hello = await(self, "hello")
  end
  if not hello then
    farewell(self)
    return nil
  end
  if given.terminal then
    self.write("attached to " .. given.socket .. "; Ctrl-D leaves, the process goes on\n" .. hello)
  end
  return self
end

return serve
