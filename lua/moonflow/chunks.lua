--- Chunks: what is typed at a prompt, or pasted there: whether it wants more lines, the pieces that it is evaluated in,
-- and how a piece becomes a function that returns its values and keeps its locals.
-- Plain Lua, no engine.

setfenv(1, require "moonflow.builtins")

local tokens = require "moonflow.tokens"

local chunks = {}

--- What compiled chunks call for their locals, which become its fields, and for the values of an expression.
chunks.HOLDER = "_locals_of_the_prompt"
local HOLDER = chunks.HOLDER

-- ---- commands -----------------------------------------------------------------------------------------------------

--- The word of a `:` command and what follows it; nil for a method, as in ":rep(3)".
function chunks.command_in(text)
  local word, rest = text:match("^%s*:(%a+)(.*)$")
  if word and rest:sub(1, 1) ~= "(" then return word, rest:match("^%s*(.-)%s*$") end
end

local function is_command(text)
  return chunks.command_in(text) or text:find("^%s*%?") or text:find("^%s*[%a_][%w_.:]*%s*%?%??%s*$")
end

-- The line from `from` on, and its last place.
local function line_at(text, from)
  local to = (text:find("\n", from, true) or #text + 1) - 1
  return text:sub(from, to), to
end

-- ---- pieces -------------------------------------------------------------------------------------------------------

local function expression_of(text)
  return (text:gsub("^%s*=", ""))
end

-- Statements and the expression behind their last `;`, as in "x = f(); x"; nil where a text is no such thing.
local function with_value(text)
  local list = tokens.scan(text)
  for i = #list - 1, 2, -1 do
    if list[i].text == ";" then
      local statements, expression = text:sub(1, list[i].to), text:sub(list[i].to + 1)
      if load("return " .. expression, "=typed", "t") and load(statements, "=typed", "t") then
        return statements, expression
      end
    end
  end
end

local function ends_in_eof(problem)
  return problem:sub(-7) == "'<eof>'"
end

-- Did the compiler miss something at the end of a piece, as an expression or a statement?
local function wants_more(text)
  text = text .. "\n"  -- a string in quotes ends with its line
  local chunk, expression_problem = load("return " .. expression_of(text), "=typed", "t")
  if chunk then return false end
  local _, problem = load(text, "=typed", "t")
  return problem ~= nil and (ends_in_eof(problem) or ends_in_eof(expression_problem)) and not with_value(text)
end

local goes_on = {}
for word in (": . .. + - * / % ^ == ~= < > <= >= and or"):gmatch("%S+") do goes_on[word] = true end

--- Does a text begin as one that goes on with a line before it?
function chunks.goes_on(text)
  local first = tokens.next(text, 1)
  return first ~= nil and goes_on[first.text] == true
end

-- The same of a line behind another, where ":rep 'x'" is a method with its argument.
local function line_goes_on(text, first)
  if first.text ~= ":" then return goes_on[first.text] end
  local word, rest = chunks.command_in((line_at(text, first.from)))
  return not word or rest:find("^[({\"'%[]")
end

-- Would the prompt evaluate what begins at `from` before it reads the line of the token behind `last`?
local function ends_between(text, from, last, following)
  return text:sub(last.to + 1, following.from - 1):find("\n", 1, true) and not goes_on[last.text]
    and not line_goes_on(text, following) and not wants_more(text:sub(from, last.to))
end

--- The pieces of a text of several lines: { from, to, before, is_command }, the third the number of lines before it.
--- Each ends where the prompt would have evaluated it, had it been typed, unless the next line that is not blank or a
--- comment goes on with it, as one that begins with an operator does.
function chunks.pieces(text)
  local list = {}
  local before, counted = 0, 1
  local function add(from, to, command)
    before = before + select(2, text:sub(counted, from - 1):gsub("\n", ""))
    counted = from
    list[#list + 1] = { from = from, to = to, before = before, is_command = command }
  end
  local from, depth = nil, 0  -- of the piece under way
  local token, open = tokens.next(text, 1)
  while token do
    local line, line_end = nil, nil
    if not from then line, line_end = line_at(text, token.from) end
    if line and is_command(line) then
      add(token.from, line_end, true)
      token, open = tokens.next(text, line_end + 1)
    else
      from = from or token.from
      depth = depth + (tokens.nesting[token.text] or 0)
      local last = token
      token, open = tokens.next(text, last.to + 1)
      -- Only outside of blocks and brackets is the compiler asked, for each time it reads the piece from its beginning.
      if token and depth <= 0 and ends_between(text, from, last, token) then
        add(from, last.to)
        from, depth = nil, 0
      end
    end
  end
  from = from or open and open.from
  if from then add(from, #text) end
  return list
end

--- Does a text want more lines? It does when its last piece does.
function chunks.incomplete(text)
  local list
  if text:find("\n", 1, true) then
    local chunk, problem = load(text .. "\n", "=typed", "t")
    if chunk then return false end
    -- Something is open. That is known without the pieces while a long function is typed line by line.
    if problem:find("' expected.* near '<eof>'$") and not problem:find("'=' expected", 1, true) then return true end
    list = chunks.pieces(text)
  else
    list = { { from = 1, is_command = is_command(text) } }
  end
  local last = list[#list]
  return last ~= nil and not last.is_command and wants_more(text:sub(last.from))
end

-- ---- compiling ----------------------------------------------------------------------------------------------------

-- The text without a `;` at its end, and whether there was one.
local function without_semicolon(text)
  local list = tokens.scan(text)
  local last = list[#list]
  if not last or last.text ~= ";" then return text, false end
  return text:sub(1, last.from - 1) .. text:sub(last.to + 1), true
end

-- What is typed as one expression, without comments behind it: they would hide what is put there.
local function up_to_last_token(text)
  local list = tokens.scan(text)
  return list[1] and text:sub(1, list[#list].to) or text
end

--- The function of a piece: an expression first, then statements with an expression behind them, then statements.
--- @param before number      of lines in the session before it, so that line 12 is the twelfth that was typed
--- @param name string        of the chunk
--- @param environment table  of the function, with HOLDER in it
--- @return function|nil, string|nil, boolean  the second: why there is none; the third: is it silent about its values
function chunks.compile(text, before, name, environment)
  local lines = ("\n"):rep(before)
  local function try(body)
    return load(lines .. body, name, "t", environment)
  end
  local expression, silent = without_semicolon(expression_of(text))
  -- The bracket stands in the last line, since the compiler takes what it ends to be there.
  local chunk = load("return " .. expression, "=typed", "t")
    and try("return " .. HOLDER .. "(" .. up_to_last_token(expression) .. ")")
  if chunk then return chunk, nil, silent end
  local statements, value = with_value(expression)
  chunk = statements and try(tokens.keep_locals(statements, HOLDER) .. " return " .. HOLDER .. "("
    .. up_to_last_token(value) .. ")")
  if chunk then return chunk, nil, silent end
  -- Errors of syntax are about the user's own text.
  if load(text .. "\n", "=typed", "t") then text = tokens.keep_locals(text, HOLDER) end
  local body, problem = try(text .. "\n")
  return body, problem, silent
end

return chunks
