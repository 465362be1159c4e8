--- Repl: evaluates what is typed at a prompt, be it in this program's terminal or in another one that is attached.
-- A chunk is tried as an expression first. Its values print themselves; a `;` at the end silences them; the last one
-- stays in `_`. Locals of the top level live on in the session: `local x = 1` becomes a field of a hidden table that
-- every later chunk sees before the globals. So all functions typed see the same `x`, also after a second `local x`.
-- Typed chunks are not compiled by the JIT: its loops would not look at hooks, and Ctrl-C is one.
--
-- Plain Lua works without the engine; what needs it says so. One evaluator belongs to one prompt.

local builtins = require "moonflow.builtins"
setfenv(1, builtins)

local chunks = require "moonflow.chunks"
local complete = require "moonflow.complete"
local inspect = require "moonflow.inspect"
local source = require "moonflow.source"
local debug, os, package = debug, os, package

local repl = {}

local Evaluator = {}
Evaluator.__index = Evaluator

-- ---- the session environment --------------------------------------------------------------------------------------

-- The table `flow`; nil where it is not loaded.
local function loaded_flow()
  local flow = package.loaded.moonflow
  return type(flow) == "table" and flow or nil
end

local function pack(...)
  return { n = select("#", ...), ... }
end

-- The function that the globals have for names they do not know, if any.
local function unknown_to(globals, event)
  local meta = debug.getmetatable(globals)
  local handler = type(meta) == "table" and rawget(meta, event)
  return type(handler) == "function" and handler
end

-- Locals of the prompt come first, then the globals, then `flow`. `names` knows also those that are nil. Functions that
-- look at unknown globals, as strict modes set them, are called last, so that their errors name the line typed.
local function make_environment(self, globals)
  local names, values = self.names, self.values
  values[chunks.HOLDER], names[chunks.HOLDER] = setmetatable({}, {
    __newindex = function(_, name, value) names[name], values[name] = true, value end,
    -- Wraps an expression, so that its call is no tail call and the typed line stays in tracebacks.
    __call = function(_, ...) return ... end,
  }), true
  return setmetatable({}, {
    __index = function(_, name)
      if names[name] then return values[name] end
      local value = rawget(globals, name)
      if value == nil and name == "flow" then value = loaded_flow() end
      if value ~= nil then return value end
      local unknown = unknown_to(globals, "__index")
      if unknown then return unknown(globals, name) end
      return globals[name]
    end,
    __newindex = function(_, name, value)
      if names[name] then
        values[name] = value
        return
      end
      local unknown = rawget(globals, name) == nil and unknown_to(globals, "__newindex")
      if unknown then return unknown(globals, name, value) end
      globals[name] = value
    end,
  })
end

-- Lines are counted on over the whole session, so that "stdin:12:" is the twelfth line typed. Each chunk is compiled
-- behind as many ends of lines. So a session of very many lines, which a script sends day and night, goes on under
-- another name, "stdin (2):1:", and the text of those before is forgotten.
local kMostLines = 10000

local function begin_lines(self)
  if self.chunk_name then source.remember(self.chunk_name, nil) end
  self.parts = self.parts + 1
  self.chunk_name = self.name .. (self.parts > 1 and " (" .. self.parts .. ")" or "")
  self.lines = {}
  source.remember(self.chunk_name, self.lines)
end

--- Makes an evaluator.
--- @param options table  write(text) and complain(text): where values and errors go; describe, fold: how errors are
---   described, as the launcher and the core have them; chunk_name ("=stdin"); width(): columns of the terminal;
---   print: what typed chunks call by that name, if it is not the global one; own_interrupt(): whether "interrupted"
---   was meant for this prompt, else it is raised on; is_guest: whether the program is another's, whose watches stay
function repl.new(options)
  local self = setmetatable({
    write = options.write, complain = options.complain, describe = options.describe, fold = options.fold,
    width = options.width or function() return 80 end, own_interrupt = options.own_interrupt,
    name = options.chunk_name or "=stdin", parts = 0, is_guest = options.is_guest, names = {}, values = {},
    watches = {}, watched = setmetatable({}, { __mode = "v" }),  -- target -> handle; target -> job, while it is alive
  }, Evaluator)
  self.environment = make_environment(self, _G)
  if options.print then self.names.print, self.values.print = true, options.print end
  begin_lines(self)
  local interrupts = package.loaded["moonflow.interrupts"]
  for _, fn in ipairs(interrupts and self.stoppable or {}) do interrupts.keep_open(fn) end
  return self
end

--- Loads the library, so that `flow` is there.
--- @return string|nil  why it is not
function repl.load_library()
  local fine, problem = pcall(require, "moonflow")
  return not fine and tostring(problem):match("^[^\n]*") or nil
end

-- ---- running ------------------------------------------------------------------------------------------------------

-- By Ctrl-C: raised by the hook in Lua, or the end of a run that the engine has stopped.
local function is_interrupt(problem)
  return problem == "interrupted" or type(problem) == "table" and rawget(problem, "code") == "interrupted"
end

local library = debug.getinfo(1, "S").source:match("^@(.*[/\\])") or ""

-- Calls f(...) and gives { n = number of results, ... }; nil after an error, which has been reported as one traceback.
local function protected(self, f, ...)
  local interrupted = false
  local describe = self.describe
  local results = pack(xpcall(f, function(problem)
    interrupted = is_interrupt(problem)
    return describe(interrupted and "interrupted" or problem)  -- wherever in a run that was
  end, ...))
  if results[1] then return pack(unpack(results, 2, results.n)) end
  -- Below the prompt's own call there is only the way to it.
  local text = tostring(results[2])
  local below = text:find("[^\n]*repl%.lua:%d+: in function 'protected'")
  if below then text = text:sub(1, below - 1):gsub("\t%[C%]: in function 'xpcall'\n$", "") end
  if interrupted and self.own_interrupt and not self.own_interrupt() then error("interrupted", 0) end
  if interrupted and self.interrupted then return nil end  -- asynchronous calls that were stopped with the chunk
  self.interrupted = interrupted
  text = self.fold(text, library, interrupted):gsub("\nstack traceback:\n\t%(%d+ frames? inside moonflow%)$", "")
  self.complain(text .. "\n")
  return nil
end

local function show(self, values)
  self.write(inspect.values(values, values.n, self.width()) .. "\n")
end

local function compile(self, text, before)
  return chunks.compile(text, before, self.chunk_name, self.environment)
end

-- Runs what is compiled and shows its values.
local function run(self, chunk, silent)
  if jit then jit.off(chunk, true) end
  local results = protected(self, chunk)
  if not results then return false end
  if results.n == 0 then return true end
  self.names._, self.values._ = true, results[results.n]
  return silent or protected(self, show, self, results) ~= nil
end

-- What people type at a prompt that they do not know, where nothing has that name: the command it stands for, and what
-- it is about.
local plain_words = { help = "help", quit = "quit", exit = "quit" }

local function plain_word(self, text)
  local word, about = text:match("^%s*(%a+)%s*(.-)%s*$")
  local meant = plain_words[word]
  if not meant or self.values[word] ~= nil or rawget(_G, word) ~= nil then return nil end
  if about == "" then return meant, "" end
  local inside = about:match("^%(%s*(.-)%s*%)$") or meant == "help" and about:match("^[\"'].*$")
  return inside and meant, inside and (inside:match("^([\"'])(.*)%1$") and inside:sub(2, -2) or inside)
end

local function note_lines(self, text)
  if #self.lines >= kMostLines then begin_lines(self) end
  self.before = #self.lines
  for line in (text .. "\n"):gmatch("([^\n]*)\n") do self.lines[#self.lines + 1] = line end
end

-- What to say of a text that does not compile, since it was meant to go on with a line that has run, or since the input
-- has ended within it: else more lines would have been read.
local function about_continuing(self, text)
  if chunks.incomplete(text) then
    local pieces = chunks.pieces(text)
    return ("; the input has ended, and what begins at line %d was not complete"):format(
      self.before + pieces[#pieces].before + 1)
  end
  return self.before > 0 and chunks.goes_on(text) and "; what stands before it was complete and has run: end a line "
    .. "that is to go on with an operator, or put the whole into brackets" or ""
end

-- The one of two errors of syntax at which the compiler came further.
local function further(a, b)
  local function line(problem) return tonumber(problem:match(":(%d+):")) or 0 end
  return line(b) < line(a) and a or b
end

-- What a text does, step by step: { text, before, chunk, silent }, commands without a chunk. nil and a reason where it
-- does not compile. A piece that does not alone may belong to others, as a goto does to its label, so what stands
-- between two commands is one chunk then. If that fails too, it may be for an expression that is fine as a piece.
local function steps_of(self, text)
  local pieces, steps = chunks.pieces(text), {}
  local function step(first, last)
    local one = { text = text:sub(pieces[first].from, pieces[last].to), before = self.before + pieces[first].before }
    if pieces[first].is_command then return one end
    local problem
    one.chunk, problem, one.silent = compile(self, one.text, one.before)
    return one.chunk and one, problem
  end
  local function steps_between(first, last)
    local list = {}
    for i = first, last do
      local one, problem = step(i, i)
      if not one then
        local whole, about_whole = step(first, last)
        return whole and { whole }, not whole and further(problem, about_whole) or nil
      end
      list[#list + 1] = one
    end
    return list
  end
  local first = 1
  for i, piece in ipairs(pieces) do
    local following = pieces[i + 1]
    if piece.is_command or not following or following.is_command then
      local list, problem = steps_between(first, i)
      if not list then return nil, problem end
      for _, one in ipairs(list) do steps[#steps + 1] = one end
      first = i + 1
    end
  end
  return steps
end

local function take(self, step)
  self.before = step.before
  local meant, about = plain_word(self, step.text)
  if meant == "help" and about ~= "" then return self:help("? " .. about), false end
  if meant and about == "" then return self:command(meant, "") end
  if step.chunk then return run(self, step.chunk, step.silent), false end
  local command, rest = chunks.command_in(step.text)
  if command then return self:command(command, rest) end
  return self:help(step.text), false
end

-- What may be stopped though no user's code is in it: it takes long with a large table, or with a long paste.
Evaluator.stoppable = { chunks.incomplete, steps_of, show }

--- Evaluates a chunk, a `:` command or a question for help, and prints what it gives; several lines piece by piece, as
--- if they had been typed one after the other, up to the first piece that fails.
--- @return boolean, boolean  did it go well; is it the end of the session
function Evaluator:evaluate(text)
  self.interrupted = false
  note_lines(self, text)
  local results = protected(self, steps_of, self, text)
  if not results then return false, false end
  local steps, problem = results[1], results[2]
  if not steps then
    self.complain(problem .. about_continuing(self, text) .. "\n")
    return false, false
  end
  for _, step in ipairs(steps) do
    local fine, leave = take(self, step)
    if not fine or leave then return fine, leave end
  end
  return true, false
end

--- Delivers results that have come meanwhile; errors of handlers are reported.
--- @return boolean, boolean  did it go well; is it the end of the session
function Evaluator:pump()
  local flow = loaded_flow()
  if not flow then return true, false end
  local fine = protected(self, flow.poll) ~= nil
  -- A Ctrl-C has stopped the calls under way as well; their ends are not to surprise the next chunk.
  for _ = 1, self.interrupted and 100 or 0 do
    if protected(self, flow.sync) then break end
  end
  self.interrupted = false
  return fine, false
end

--- The descriptor that is readable when `pump` has something to do; nil without the library.
function Evaluator.descriptor()
  local flow = loaded_flow()
  return flow and flow.fd()
end

--- What could end `text`, as complete.candidates gives it.
function Evaluator:complete(text)
  return complete.candidates(text, { self.values, _G, { flow = loaded_flow() } })
end

--- Does `text` want more lines?
function Evaluator.incomplete(_, text)
  return chunks.incomplete(text)
end

-- ---- help ---------------------------------------------------------------------------------------------------------

local function resolve(self, path)
  return complete.resolve(path, { self.values, _G, { flow = loaded_flow() } })
end

local function value_help(self, path, wants_source)
  local fine, help = pcall(require, "moonflow.help")
  if not fine then return nil, "the help needs the engine, which is not there: " .. tostring(help):match("^[^\n]*") end
  path = complete.function_called(path) or path
  local is_path = path:find("^[%w_.:]+$")
  local value, full = is_path and resolve(self, path) or nil, path
  if value == nil and is_path then value, full = help.find(path) end
  if value == nil then
    local found = (path:find("^[%w_]+[.:]") and help.advice or help.found_text)(path, self.width())
    if found then return found end
    if not is_path then return nil, "no help has all of the words '" .. path .. "'" end
    local near = help.meant(path)
    return nil, "nothing is called '" .. path .. "'"
      .. (#near > 0 and "; did you mean " .. table.concat(near, ", ") .. "?" or "")
  end
  return wants_source and help.source_text(value) or help.text(value, full) or inspect.text(value, self.width())
end

--- Answers `?name`, `name?`, and with two marks with the text of the function; a call that is half typed with the help
--- of its function, and words with the functions in whose help they are.
function Evaluator:help(text)
  local before, name, after = text:match("^%s*(%?*)%s*(.-)%s*(%?*)%s*$")
  if name == "" then return self:command("help", "") end
  local answer, problem = value_help(self, name, #before + #after > 1)
  if not answer then
    self.complain(problem .. "\n")
    return false
  end
  self.write(answer .. "\n")
  return true
end

-- ---- commands -----------------------------------------------------------------------------------------------------

-- The value of an expression typed behind a command, or nil after a report.
local function value_of(self, expression, what)
  local chunk, problem = load("return " .. expression, "=(" .. what .. ")", "t", self.environment)
  if not chunk or expression == "" then
    self.complain((expression == "" and what .. " wants an expression" or problem) .. "\n")
    return nil
  end
  if jit then jit.off(chunk, true) end
  return protected(self, chunk)
end

local function kind_of(value)
  local meta = debug.getmetatable(value)
  return type(meta) == "table" and rawget(meta, "kind") or type(value)
end

local commands = {}

local function wants(self, message)
  self.complain(message .. "\n")
  return false
end

local function suggestion(name, candidates)
  local fine, arguments = pcall(require, "moonflow.arguments")
  return fine and arguments.suggestion(name, candidates) or ""
end

-- What to say where a job is wanted and `name` is none.
local function about_jobs(self, name)
  local names, seen = {}, { _ = true }
  for _, scope in ipairs({ self.values, _G }) do
    for known, value in next, scope do
      if type(known) == "string" and not seen[known] and kind_of(value) == "job" then names[#names + 1] = known end
      seen[known] = true
    end
  end
  table.sort(names)
  local near = suggestion(name, names)
  if near ~= "" then return near end
  return #names == 0 and "; nothing here is a job yet" or "; jobs here are " .. table.concat(names, ", ")
end

function commands.help(self)
  self.write([[
? name, name?       signature, shapes, defaults and errors of a function; ?? name shows its text
? some words        the functions in whose help they are
:time expr          evaluate and say how long it took
:summary job        the layers of a job
:watch job.name     print that value each time the job runs; `:watch off` ends all, `:watch` lists them
:load file          run a Lua file
:who                what you have defined
:quit               leave; so do `quit`, `exit` and Ctrl-D
An expression prints itself, a `;` at its end silences it, `_` is the last value, TAB completes, Ctrl-C stops.
]])
  return true
end

local clock = function()
  local core = package.loaded["moonflow.core"]
  return type(core) == "table" and core.clock() or os.clock()
end

function commands.time(self, expression)
  if expression == "" then return wants(self, ":time wants an expression") end
  local chunk, problem, silent = compile(self, expression, self.before)
  if not chunk then return wants(self, problem) end
  local start = clock()
  local fine = run(self, chunk, silent)
  local seconds = clock() - start
  self.write(seconds < 1 and ("took %.3f ms\n"):format(seconds * 1000) or ("took %.3f s\n"):format(seconds))
  return fine
end

function commands.summary(self, expression)
  local results = value_of(self, expression, ":summary")
  if not results then return false end
  local job = results[1]
  if kind_of(job) ~= "job" then
    return wants(self, ":summary wants a job, got " .. inspect.line(job)
      .. (job == nil and about_jobs(self, expression) or ""))
  end
  self.write(job:summary() .. "\n")
  return true
end

-- "models.train.conv1-bias_add": the job that a beginning leads to, and the rest.
local function job_and_value(self, target)
  for at in target:gmatch("()%.") do
    local job = resolve(self, target:sub(1, at - 1))
    if kind_of(job) == "job" then return job, target:sub(at + 1) end
  end
end

-- Calls see(target, handle) for each watch that is on: those that began here, and those of job:watch.
local function each_watch(self, see)
  local own = {}
  for target, handle in pairs(self.watches) do
    own[handle] = true
    if handle:is_on() and self.watched[target] then see(target, handle) end
  end
  local job = package.loaded["moonflow.job"]
  for name, known in pairs(type(job) == "table" and job.named or {}) do
    for _, watched in ipairs(known.watched) do
      local handle = watched.handle
      if not own[handle] and handle:is_on() then see(name .. "." .. watched.name, handle) end
    end
  end
end

local function list_watches(self)
  local lines = {}
  each_watch(self, function(target) lines[#lines + 1] = "watching " .. target .. "\n" end)
  table.sort(lines)
  self.write(#lines > 0 and table.concat(lines) or "nothing is watched; `:watch job.name` begins\n")
  return true
end

function commands.watch(self, target)
  if target == "" then return list_watches(self) end
  local only, off = target:match("^(%S*)%s*(off)$")
  if off then
    each_watch(self, function(name, handle)
      local began_here = handle == self.watches[name]
      if name == only or only == "" and (began_here or not self.is_guest) then handle:off() end
    end)
    return true
  end
  local job, name = job_and_value(self, target)
  if not job then
    job = resolve(self, target)
    if kind_of(job) == "job" then
      return wants(self, (":watch wants one of the values of %s as well, such as %s.%s; `:summary %s` lists them")
        :format(target, target, job:value_names()[1] or "conv1", target))
    end
    return wants(self, ":watch wants a job and one of its values, such as train_job.conv1"
      .. about_jobs(self, target:match("^[^.]*")))
  end
  local known = self.watches[target]
  if known and self.watched[target] == job then
    known:on()
    return true
  end
  local results = protected(self, job.watch, job, name, function(array)
    self.write(target .. ": " .. inspect.text(array, self.width()) .. "\n")
  end)
  if not results then return false end
  self.watches[target], self.watched[target] = results[1], job
  return true
end

function commands.load(self, path)
  if path == "" then return wants(self, ":load wants the path of a Lua file") end
  local chunk, problem = loadfile(path, "t")
  if not chunk then
    self.complain(problem .. "\n")
    return false
  end
  if jit then jit.off(chunk, true) end
  return protected(self, chunk) ~= nil
end

function commands.who(self)
  local lines = {}
  local function add(name, value)
    local text = inspect.line(value)
    lines[#lines + 1] = name .. " = " .. (#text > 60 and text:sub(1, 57) .. "..." or text)
  end
  for name in pairs(self.names) do
    if name ~= chunks.HOLDER and name ~= "_" and name ~= "print" then add("local " .. name, self.values[name]) end
  end
  for name, value in next, _G do
    local given = name == "arg" or name == "print" or rawget(builtins, name) == value
    if type(name) == "string" and not given then add(name, value) end
  end
  table.sort(lines)
  self.write(#lines > 0 and table.concat(lines, "\n") .. "\n" or "nothing yet\n")
  return true
end

--- Runs a `:` command; a beginning of its name will do when it is the only one.
function Evaluator:command(name, rest)
  local command, matches, names = commands[name], {}, { "quit" }
  if name == "quit" or name == "q" then return true, true end
  if not command then
    for known in pairs(commands) do
      names[#names + 1] = known
      if known:sub(1, #name) == name then matches[#matches + 1] = known end
    end
    command = #matches == 1 and commands[matches[1]]
  end
  if not command then
    local near = suggestion(name, names)
    self.complain("there is no command ':" .. name .. "'"
      .. (near ~= "" and near:gsub("'", "':", 1) or "; `:help` lists them") .. "\n")
    return false, false
  end
  return command(self, rest), false
end

-- ---- the banner ---------------------------------------------------------------------------------------------------

--- The GPUs in one line, or the first words of why there are none. Asking opens the driver, which a game would
--- notice.
function repl.gpu_line()
  local devices, reason = require("moonflow.core").gpu_devices()
  if reason then
    return "no GPU: " .. (reason:match("^[^;(\n]*[^;(%s]") or reason) .. " (flow.config.gpu_devices())\n"
  end
  local words = {}
  for i, device in ipairs(devices) do
    words[i] = ("%s, %.1f GiB"):format(device.name, device.memory_bytes / 2 ^ 30)
  end
  return (#words == 1 and "GPU: " or #words .. " GPUs: ") .. table.concat(words, "; ") .. "\n"
end

--- A few lines about what is running, and what is not.
--- @param lua string         the version of LuaJIT
--- @param problem? string    why the library did not load
--- @param gpus? string       a line about GPUs
function repl.banner(lua, problem, gpus)
  if problem then return "Moonflow without its engine, " .. lua .. "\n" .. problem .. "\n" end
  local info = require("moonflow.core").build_info()
  local threads = require("moonflow.session").handle():device():match("%d+ threads?") or "?"
  local features = #info.cpu > 0 and ", " .. table.concat(info.cpu, " ") or ""
  return ("Moonflow %s, %s, %s%s\n%s? name explains, :help lists commands, Ctrl-D leaves\n")
    :format(info.version, lua, threads, features, gpus or "")
end

--- The evaluator of this program's own terminal, with the library loaded.
--- @param given table  as for `new`; terminal: whether a person types, lua_version
function repl.at_prompt(given)
  local problem = repl.load_library()
  local self = repl.new(given)
  if given.terminal then
    given.write(repl.banner(given.lua_version, problem, not problem and repl.gpu_line() or nil))
  elseif problem then
    given.complain(problem .. "\n")
  end
  return self
end

return repl
