--- Tokens: the words of a Lua text, as far as the prompt needs to understand what is typed.
-- Plain Lua, no engine. Wrong text gives some tokens and no error; the compiler says what is wrong.

setfenv(1, require "moonflow.builtins")

local tokens = {}

local keywords = {}
for word in ([[and break do else elseif end false for function goto if in local nil not or repeat return then true
until while]]):gmatch("%a+") do keywords[word] = true end
tokens.keywords = keywords

-- The end of a long bracket that opens at `at`, or nil when none opens there; past the text when it is not closed.
local function long_bracket(text, at)
  local level = text:match("^%[(=*)%[", at)
  if not level then return nil end
  local _, last = text:find("]" .. level .. "]", at, true)
  return last or #text + 1
end

local function short_string(text, at)
  local quote = text:sub(at, at)
  local i = at + 1
  while i <= #text do
    local c = text:sub(i, i)
    if c == "\\" then
      i = i + 1
    elseif c == quote then
      return i
    elseif c == "\n" then
      return i - 1
    end
    i = i + 1
  end
  return #text + 1
end

--- The first token of `text` from `at` on: { kind = "name" | "keyword" | "number" | "string" | "symbol", text, from,
--- to }; nil where there is none.
--- @return table|nil, table|nil  the second: a string or comment that the text ends in, { kind, from }
function tokens.next(text, at)
  at = text:match("^%s*()", at)
  while text:find("^%-%-", at) do
    local to = long_bracket(text, at + 2) or (text:find("\n", at, true) or #text + 2) - 1
    if to > #text then return nil, { kind = "comment", from = at } end
    at = text:match("^%s*()", to + 1)
  end
  if at > #text then return nil end
  local function token(kind, to)
    return { kind = kind, text = text:sub(at, to), from = at, to = to }
  end
  local c = text:sub(at, at)
  if c:find("[%a_\128-\255]") then
    local to = select(2, text:find("^[%w_\128-\255]+", at))
    return token(keywords[text:sub(at, to)] and "keyword" or "name", to)
  elseif text:find("^%.?%d", at) then
    return token("number", select(2, text:find("^0[xX][%x.]*[%w]*", at))
      or select(2, text:find("^[%d.]*[eE][+-]?%w*", at)) or select(2, text:find("^[%w.]+", at)))
  end
  local to = long_bracket(text, at) or c:find("[\"']") and short_string(text, at)
  if to and to > #text then return nil, { kind = "string", from = at } end
  if to then return token("string", to) end
  local _, last = text:find("^%.%.%.?", at)
  if not last then _, last = text:find("^[=~<>]=", at) end
  if not last then _, last = text:find("^::", at) end
  return token("symbol", last or at)
end

--- The tokens of `text`, in their order.
--- @return table, table|nil  the second: a string or comment that the text ends in, { kind, from }
function tokens.scan(text)
  local list = {}
  local token, open = tokens.next(text, 1)
  while token do
    list[#list + 1] = token
    token, open = tokens.next(text, token.to + 1)
  end
  return list, open
end

-- By how much a token changes the depth of blocks and brackets.
local nesting = {}
for word in ("function do if repeat ( { ["):gmatch("%S+") do nesting[word] = 1 end
for word in ("end until ) } ]"):gmatch("%S+") do nesting[word] = -1 end
tokens.nesting = nesting

--- `text` with the locals of its top level made fields of `holder`: `local a, b = 1` becomes `holder.a,holder.b = 1`.
--- Lines stay where they are. Blocks and functions keep their own locals.
function tokens.keep_locals(text, holder)
  local list = tokens.scan(text)
  local parts, copied, depth = {}, 1, 0
  local function replace(from, to, by)
    parts[#parts + 1] = text:sub(copied, from - 1)
    parts[#parts + 1] = by
    copied = to + 1
  end
  local i = 1
  while i <= #list do
    local token = list[i]
    if token.text == "local" and depth == 0 then
      local following = list[i + 1]
      if following and following.text == "function" and list[i + 2] and list[i + 2].kind == "name" then
        replace(token.from, token.to, "")
        replace(list[i + 2].from, list[i + 2].from - 1, holder .. ".")
      elseif following and following.kind == "name" then
        replace(token.from, token.to, "")
        local last = i
        repeat
          last = last + 1
          replace(list[last].from, list[last].from - 1, holder .. ".")
          local comma = list[last + 1] and list[last + 1].text == ","
          if comma then last = last + 1 end
        until not comma or not list[last + 1] or list[last + 1].kind ~= "name"
        local behind = list[last + 1] and list[last + 1].text
        if behind ~= "=" then replace(list[last].to + 1, list[last].to, behind == ";" and " = nil" or " = nil;") end
        i = last
      end
    else
      depth = depth + (nesting[token.text] or 0)
    end
    i = i + 1
  end
  parts[#parts + 1] = text:sub(copied)
  return table.concat(parts)
end

return tokens
