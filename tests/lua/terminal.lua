-- A real terminal for specs: tmux without a client, one window per terminal. What a person would see is asked for until
-- it is there, so nothing depends on how fast the machine is; only what never comes costs the patience.
local process = require "process"

local terminal = {}

local PATIENCE = tonumber(os.getenv("MOONFLOW_PATIENCE") or 60)  -- seconds; for a busy machine
local server = "moonflow-" .. tostring({}):match("0x(%x+)") .. "-" .. os.time()

local Terminal = {}
Terminal.__index = Terminal

local function tmux(...)
  local words = { "tmux", "-u", "-L", server, "-f", "/dev/null" }
  for _, word in ipairs({ ... }) do words[#words + 1] = process.quote(word) end
  return process.shell(table.concat(words, " "), { env = { LC_ALL = "C.UTF-8", TERM = "xterm-256color" } })
end

local count = 0

--- Opens a terminal that runs a shell command. When it has ended, the screen shows "ended with <code>".
--- @param options? table  folder, columns (80), rows (40)
function terminal.open(command, options)
  options = options or {}
  -- A server whose last window has gone ends, and may be ending when the next one is opened.
  if count == 0 then tmux("new-session", "-d", "-s", "first", "sleep 3600") end
  count = count + 1
  local self = setmetatable({ name = "t" .. count }, Terminal)
  local line = ("cd %s && %s; echo \"ended with $?\"; exec sleep 1000"):format(process.quote(options.folder or "."),
    command)
  local run = tmux("new-session", "-d", "-s", self.name, "-x", options.columns or 80, "-y", options.rows or 40, line)
  assert(run.code == 0, run.err)
  return self
end

--- A terminal with our program in it, its prompt waiting.
--- @param options? table  env, columns, rows
function terminal.prompt(arguments, options, folder, history)
  options = options or {}
  local env = { MOONFLOW_HISTORY = history, OMP_WAIT_POLICY = "passive" }
  for name, value in pairs(options.env or {}) do env[name] = value end
  local words = { "env" }
  for name, value in pairs(env) do words[#words + 1] = name .. "=" .. process.quote(value) end
  words[#words + 1] = process.quote(process.launcher)
  for _, word in ipairs(arguments or {}) do words[#words + 1] = process.quote(word) end
  local self = terminal.open(table.concat(words, " "), { folder = folder, columns = options.columns,
                                                         rows = options.rows })
  self:wait_for_last(">")
  return self
end

--- Where the specs of a file meet prompts: an empty folder of this name, and a history, which `begin` takes away.
function terminal.place(name)
  local place = { folder = process.folder(name) }
  place.history = place.folder .. "/history"
  function place.begin() os.remove(place.history) end
  function place.prompt(arguments, options)
    return terminal.prompt(arguments, options, place.folder, place.history)
  end
  return place
end

--- Types text as it is.
function Terminal:type(text)
  tmux("send-keys", "-t", self.name, "-l", (text:gsub(";$", "\\;")))  -- tmux takes a last ; for its own
  return self
end

--- Presses keys by tmux's names: "Enter", "Up", "Tab", "C-c", "C-d".
function Terminal:press(...)
  tmux("send-keys", "-t", self.name, ...)
  return self
end

--- Pastes text as terminals do: line breaks become CR, and the whole stands between two marks if the program asks for
--- them.
--- @param as_it_is? boolean  keep LF and CR
function Terminal:paste(text, as_it_is)
  local path = os.tmpname()
  process.write(path, text)
  tmux("load-buffer", "-b", self.name, path)
  tmux("paste-buffer", "-dp" .. (as_it_is and "r" or ""), "-b", self.name, "-t", self.name)
  os.remove(path)
  return self
end

--- Types a line and presses Enter.
function Terminal:enter(line)
  return self:type(line):press("Enter")
end

--- Drops a half-typed line with Ctrl-C, and waits for the next prompt: keys that come between two lines are echoed by
--- the terminal itself.
function Terminal:drop_line()
  self:press("C-c"):wait_for_last(">")
  return self
end

--- From now on all that the program sends to the terminal goes to a file as well.
function Terminal:log(path)
  tmux("pipe-pane", "-t", self.name, "exec cat > " .. process.quote(path))
  return self
end

--- What is on the screen, without blanks at the ends of lines and empty lines at its end.
function Terminal:screen()
  local text = tmux("capture-pane", "-p", "-t", self.name).out
  return (text:gsub("[ \t]+\n", "\n"):gsub("\n+$", "") .. "\n")
end

local function wait(is_there, self, complaint, ...)
  local stop = os.time() + PATIENCE
  repeat
    local screen = self:screen()
    if is_there(screen) then return screen end
    os.execute("sleep 0.05")
  until os.time() > stop
  error(complaint:format(...) .. "\n" .. self:screen(), 3)
end

--- Waits until the screen holds `text`, and gives the screen.
function Terminal:wait_for(text)
  return wait(function(screen) return screen:find(text, 1, true) end, self, "the terminal never showed %q, but", text)
end

--- Waits until the last line of the screen is `text`, and gives the screen.
function Terminal:wait_for_last(text)
  return wait(function(screen) return screen:match("([^\n]*)\n$") == text end, self,
    "the last line of the terminal never was %q, but", text)
end

--- Waits until what has been logged, which comes after what is on the screen, matches `pattern`.
function Terminal:wait_for_log(path, pattern)
  wait(function() return process.read(path):find(pattern) end, self, "the terminal was never sent %q, but", pattern)
  return self
end

--- The process that runs in the terminal under its shell.
function Terminal:pid()
  local shell = tmux("display-message", "-p", "-t", self.name, "#{pane_pid}").out:match("%d+")
  return process.shell("pgrep -P " .. shell).out:match("%d+")
end

function Terminal:resize(columns, rows)
  tmux("resize-window", "-t", self.name, "-x", columns, "-y", rows)
  return self
end

function Terminal:close()
  tmux("kill-session", "-t", self.name)
end

--- Closes all terminals of this process.
function terminal.close_all()
  if count > 0 then tmux("kill-server") end
end

return terminal
