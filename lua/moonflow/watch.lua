--- Watching values and gradients of a job while it runs.

local answer = require "moonflow.answer"
local arguments = require "moonflow.arguments"
local blob = require "moonflow.blob"
local errors = require "moonflow.errors"
local session = require "moonflow.session"
local trace = require "moonflow.trace"
local typing = require "moonflow.typing"
local debug = debug

local watch = {}

-- ---- handles ------------------------------------------------------------------------------------------------------

local Watch = { kind = "watch" }
Watch.__index = Watch
arguments.publish("Watch", "watch", Watch, "off on every")
answer(Watch, "the handle of a watch", { remove = "watch:off() stops it", stop = "watch:off() stops it" })

-- A handle that asks for each run needs no look before a call; the others are counted in the board of their job.
local function is_selective(turn)
  return not turn.enabled or turn.period > 1
end

local function change(self, enabled, period)
  local turn = self.turn
  local before = is_selective(turn)
  turn.enabled, turn.period = enabled, period
  turn.off_since = not enabled and session.mark() or nil
  local now = is_selective(turn)
  if turn.board and now ~= before then turn.board.selective = turn.board.selective + (now and 1 or -1) end
  return self
end

--- Stops the handler from the next run on. The value is then not even copied.
function Watch:off()
  arguments.check_self(self, Watch, "watch:off")
  return change(self, false, self.turn.period)
end

--- Starts it again.
function Watch:on()
  arguments.check_self(self, Watch, "watch:on")
  local come_back = self.come_back
  self.come_back = false
  if come_back then come_back() end
  return change(self, true, self.turn.period)
end

--- Calls the handler only in each n-th run, beginning with the next one.
function Watch:every(period)
  arguments.check_self(self, Watch, "watch:every")
  if type(period) ~= "number" or period < 1 or period ~= math.floor(period) then
    errors.raise("invalid_argument", "watch:every wants a whole number from 1 on, got " .. arguments.describe(period))
  end
  self.turn.count = 0
  return change(self, self.turn.enabled, period)
end

--- Does what options say.
function Watch:follow(options)
  return options and options.every ~= nil and self:every(options.every) or self
end

--- Is it on?
function Watch:is_on()
  arguments.check_self(self, Watch, "watch:is_on")
  return self.turn.enabled
end

--- Is it on in this run? Counts the run.
function Watch:due()
  local turn = self.turn
  if not turn.enabled then return false end
  local count = turn.count
  turn.count = count + 1
  return count % turn.period == 0
end

--- The run that was counted last does not take place.
function Watch:retract()
  local turn = self.turn
  if turn.enabled and turn.count > 0 then turn.count = turn.count - 1 end
end

--- Puts the handle under the board of its job: { selective = number of turns that skip runs, turns = by name }. Under
--- one name all plans of the job, each of which has traced its body anew, have one turn: the first one's.
function Watch:join(board, name)
  local known = name and board.turns[name]
  if known then
    self.turn = known
  elseif not self.turn.board then
    local turn = self.turn
    turn.board = board
    if name then board.turns[name] = turn end
    if is_selective(turn) then board.selective = board.selective + 1 end
  end
end

--- Is it off, and does no run that is under way show it any more?
function Watch:is_free()
  local turn = self.turn
  if turn.enabled then return false end
  return session.in_flight() == 0 or session.is_past(turn.off_since)
end

--- Takes a handle that is off from the board, until it is switched on: then `come_back` puts it there again.
function Watch:leave(come_back)
  local board = self.turn.board
  board.selective = board.selective - 1
  self.turn.board, self.come_back = false, come_back
end

function Watch.__tostring(self)
  local turn = self.turn
  return self.what .. (turn.enabled and "" or " (off)")
    .. (turn.period > 1 and " (every " .. turn.period .. " runs)" or "")
end

--- A handle: `handler` receives each value, `what` names it in errors. Its turn says in which runs.
function watch.new(value, handler, what)
  return setmetatable({ blob = value, handler = handler, what = what, order = 0, optional = false,
                        shows_gradient = false, come_back = false,
                        turn = { enabled = true, period = 1, count = 0, board = false } }, Watch)
end

--- The options of a watch, { every = n }, or nil: what stands last in the call of `where`.
function watch.check_options(where, options, ...)
  if options ~= nil and type(options) ~= "table" then
    errors.raise("invalid_argument", where .. ": options must be a table, got " .. arguments.describe(options))
  end
  for name in pairs(options or {}) do
    if name ~= "every" then
      errors.raise("invalid_argument", where .. " has no option '" .. tostring(name) .. "'"
        .. arguments.suggestion(name, { "every" }))
    end
  end
  if ... ~= nil then
    errors.raise("invalid_argument", where .. " takes nothing behind its options, got " .. arguments.describe((...)))
  end
  return options
end

-- ---- flow.watch, flow.watch_diff ----------------------------------------------------------------------------------

local types = { Numpy = true, ListNumpy = true, ListListNumpy = true }

-- The handler as a function of one ndarray.
local function make_handler(where, dtype, handler, value)
  if handler == nil or type(handler) == "string" then
    local prompt = handler or (value.name .. (value.site and " (" .. value.site .. ")" or "") .. ":")
    return function(array) print(prompt, array) end
  end
  arguments.check_callable(handler, where .. ": the handler must be a function or a prompt")
  if type(handler) == "function" then
    local info = debug.getinfo(handler, "u")
    if info.nparams and info.nparams > 1 then
      errors.raise("invalid_argument", where .. ": the handler takes one parameter, this one has " .. info.nparams)
    end
  end
  local family = dtype and dtype.family or "Numpy"
  if family == "ListNumpy" then return function(array) return handler({ array }) end end
  if family == "ListListNumpy" then return function(array) return handler({ { array } }) end end
  return handler
end

-- (value, [type,] handler or prompt, [options])
local function parse(where, value, ...)
  local t = trace.need(where)
  if not blob.is(value) then
    errors.raise("invalid_argument", where .. ": argument 1 ('value') must be a blob, got "
      .. arguments.describe(value))
  end
  blob.id_of(value, t, where)
  local rest, dtype = { ... }, nil
  local at = 1
  if typing.is(rest[at]) then
    dtype = rest[at]
    if not types[dtype.family] then
      errors.raise("invalid_argument", where .. ": a watched value is a Numpy, ListNumpy or ListListNumpy, not "
        .. dtype.text)
    end
    at = at + 1
  end
  local handler = rest[at]
  if type(handler) == "table" and not arguments.is_callable(handler) then
    handler = nil
  else
    at = at + 1
  end
  local options = watch.check_options(where, unpack(rest, at, select("#", ...)))
  return t, make_handler(where, dtype, handler, value), options
end

local function finish(list, value, handler, what, options)
  local self = watch.new(value, handler, what):follow(options)
  list[#list + 1] = self
  return self
end

--- Calls `handler` with `value` each time the job runs. Without one the value is printed, behind its name and line.
--- The handler runs on the Lua thread, before the job's own result of that run is delivered.
--- @param value Blob             any value of the job being traced
--- @param dtype? Type            tp.Numpy (default), tp.ListNumpy
--- @param handler? function|string  receives one ndarray, may keep it; a string is a prompt to print before the value
--- @param options? table         every = n: only each n-th run (default 1)
--- @return Watch                 `:off()`, `:on()`, `:every(n)`
--- @overload fun(value: Blob, handler: function|string, options?: table): Watch
--- @error outside a job; handler not callable; blob from another job
function watch.watch(value, ...)
  local t, handler, options = parse("flow.watch", value, ...)
  return finish(t.watches, value, handler, "the watch of '" .. value.name .. "'", options)
end

local kNoLoss = ", which minimises no loss; flow.gradients(y, x) is a gradient in any job, and one of a loss wants "
  .. "type = \"train\""

--- Calls `handler` with the gradient of the sum of the job's losses with respect to `blob`, each time the job runs.
--- It is what autodiff gives: not divided by the number of losses, not regularised, not clipped, and with a loss scale
--- that many times as large.
--- @param value Blob
--- @param dtype? Type
--- @param handler? function|string
--- @param options? table
--- @return Watch
--- @overload fun(value: Blob, handler: function|string, options?: table): Watch
--- @error as flow.watch; in a predict job
function watch.watch_diff(value, ...)
  local t, handler, options = parse("flow.watch_diff", value, ...)
  t:need_training("flow.watch_diff", kNoLoss)
  return finish(t.diff_watches, value, handler, "the watch_diff of '" .. value.name .. "'", options)
end

-- ---- flow.watch_scope ---------------------------------------------------------------------------------------------

local Scope = {}
Scope.__index = Scope

local function scope_handler(into, value)
  local key = value.logical_blob_name
  if type(into) == "table" and not arguments.is_callable(into) then
    return function(array) into[key] = { blob = array, blob_def = value } end
  end
  return function(array) into(array, value) end
end

--- Takes note of a blob made inside the scope, once.
function Scope:note(value)
  local key = value.logical_blob_name
  if self.noted[key] then return end
  self.noted[key] = true
  local t = value.trace
  if self.values then
    finish(t.watches, value, scope_handler(self.values, value), "the watch_scope of '" .. key .. "'")
  end
  if self.grads then
    local handle = finish(t.diff_watches, value, scope_handler(self.grads, value),
      "the gradient watch_scope of '" .. key .. "'")
    handle.optional = true  -- values without a gradient are passed over
  end
end

local function is_watcher(value)
  return value == nil or type(value) == "table" or arguments.is_callable(value)
end

--- Watches every value that is made while `body` runs, and gives what `body` returns.
--- @param values table|function|nil  filled with [logical blob name] = { blob = ndarray, blob_def = Blob } at each run,
---                                   or called with (ndarray, Blob)
--- @param grads table|function|nil   the same for gradients; may be left out
--- @overload fun(values: table|function|nil, body: function): any
--- @param body function
function watch.watch_scope(values, grads, body)
  local t = trace.need("flow.watch_scope")
  if body == nil and type(grads) == "function" then grads, body = nil, grads end
  arguments.check_callable(body, "flow.watch_scope: the last argument must be the function to watch")
  if not is_watcher(values) or not is_watcher(grads) then
    errors.raise("invalid_argument", "flow.watch_scope wants tables to fill or functions to call")
  end
  if grads then t:need_training("flow.watch_scope with gradients", kNoLoss) end
  return trace.within(t.watch_scopes, setmetatable({ values = values, grads = grads, noted = {} }, Scope), body)
end

return watch
