--- Errors: tables with a stable code, a message and the user's own line.
-- They are of the same kind as those of the engine: fields code, message, op, job, where; `tostring` joins them.
-- `errors.site` finds the user's line: the nearest frame outside this folder, or, where a tail call has removed that
-- frame, the one that ran last while a job is traced.

local core = require "moonflow.core"
local debug = debug

local errors = {}

-- Chunk names of the library's own files start with this.
local own_folder = debug.getinfo(1, "S").source:match("^(.*[/\\])") or "@"
local own_length = #own_folder
core.own_lines(own_folder)

--- Is this chunk name one of the library's own files?
function errors.is_own(source)
  return source:sub(1, own_length) == own_folder
end

--- "file:line" of a chunk name (as debug.getinfo gives it) and a line.
function errors.place(source, line)
  local first = source:sub(1, 1)
  local file = (first == "@" or first == "=") and source:sub(2)
    or '[string "' .. (source:match("^[^\r\n]*")):sub(1, 40) .. '"]'
  return file .. ":" .. line
end

--- "file:line" of the user's code that is running now; nil when there is none (called from C).
function errors.site()
  local source, line = core.user_line()
  return source and errors.place(source, line)
end

local kLongest = 4000  -- bytes of a message; whatever it quotes may be of any length

--- An error object. `site` defaults to the user's line. The message goes to terminals: what is no text shows as "?".
function errors.new(code, message, site)
  if #message > kLongest then message = message:sub(1, kLongest - 500) .. " ... " .. message:sub(-490) end
  message = message:gsub("[%z\1-\8\11-\31\127]", "?")
  return setmetatable({ code = code, message = message, where = site or errors.site() }, core.error_metatable)
end

--- Raises an error object of this code at the user's line.
--- @param code string     as the engine spells them: "invalid_argument", "shape_mismatch", "wrong_state", ...
--- @param message string  starts with what was called
--- @param site? string    "file:line"; default: the user's line
function errors.raise(code, message, site)
  error(errors.new(code, message, site or errors.site()), 0)
end

local function blamed(called, fine, ...)
  if fine then return ... end
  local problem = ...
  if errors.is_error(problem) and (problem.op or "") == "" then problem.op = called end
  error(problem, 0)
end

--- Gives what `work(...)` gives. An error of the engine that leaves it gets the name of what the user called, unless it
--- has one.
function errors.blaming(called, work, ...)
  return blamed(called, pcall(work, ...))
end

-- What is asked of strings is asked of its text: scripts look into errors by err:find and err:match.
function core.error_metatable.__index(_, key)
  local of_text = string[key]
  return of_text and function(self, ...) return of_text(tostring(self), ...) end or nil
end

--- Is `value` an error object of the library or the engine?
function errors.is_error(value)
  return type(value) == "table" and getmetatable(value) == core.error_metatable
end

--- What an error of any kind says, also where it has a __tostring that fails or gives no string.
function errors.text(value)
  local meta = debug.getmetatable(value)
  if type(value) == "table" and not (type(meta) == "table" and rawget(meta, "__tostring")) then
    return require("moonflow.inspect").line(value)
  end
  local fine, text = pcall(tostring, value)
  return fine and type(text) == "string" and text or "(an error whose __tostring fails)"
end

--- Is this Lua's own error for want of memory? Its text is all that a pcall leaves of it, and `require` puts its own
--- before it.
function errors.is_out_of_memory(value)
  return value == "not enough memory" or type(value) == "string" and value:find("\tnot enough memory$") ~= nil
end

local broken = {}  -- what the definition of a job has failed with last; a string has no room for more

--- Notes that the definition of a job fails with `value`, and where the script is.
function errors.note_definition(value, job, traceback)
  broken = { value = value, job = job, traceback = traceback }
end

--- The job whose definition has failed with this value, and the traceback of then. Once: later it may be another error
--- of the same text.
function errors.take_definition(value)
  local note = broken
  if value == nil or not rawequal(note.value, value) then return nil end
  broken = {}
  return note.job, note.traceback
end

--- Message handler for xpcall: keeps the error as it is and remembers where it was raised.
--- Strings keep their text, so their traceback travels beside them.
function errors.traced(value)
  if errors.is_error(value) and not value.traceback then value.traceback = debug.traceback("", 2) end
  return value
end

--- A text that ends with a traceback, with the library's own frames folded.
function errors.folded(text)
  return core.fold_traceback(text, own_folder:sub(2))
end

local function as_text(value)
  local is_text = type(value) == "string" and value ~= "interrupted" and not errors.is_out_of_memory(value)
  if not is_text and not errors.is_error(value) then return value end
  return errors.folded(core.describe_error(value))
end

local function raised_as_text(fine, ...)
  if not fine then error(..., 0) end
  return ...
end

--- Gives a function that does what `fn` does, gives what it gives and yields where it yields. What it raises is text:
--- an error object of the library, and Lua's own, become what they say and the traceback, with the library's frames
--- folded. For hosts that show nothing of an error which is an object, such as nginx ("unknown reason"), Minetest
--- ("<no description>") and the threads of LÖVE 11: they get this in the place of `fn`. Other values are raised as they
--- are.
--- @param fn function
--- @return function
function errors.text_errors(fn)
  if type(fn) ~= "function" then
    errors.raise("invalid_argument", "flow.text_errors: argument 1 ('fn') must be a function, got " .. type(fn))
  end
  return function(...) return raised_as_text(xpcall(fn, as_text, ...)) end
end

return errors
