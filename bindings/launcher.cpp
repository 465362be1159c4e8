// `moonflow`: runs a Lua script with the library on its path, or reads, evaluates and prints without one.
// It promises: everything pending is delivered before the end, an uncaught error is one traceback and exit code 1, and
// Ctrl-C ends a script within a second with exit code 130. The only program of the project that links LuaJIT.
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <lua.hpp>

namespace {

namespace fs = std::filesystem;

enum Exit { kOk = 0, kFailed = 1, kUsage = 2, kInterrupted = 130 };

// ---- Ctrl-C ----------------------------------------------------------------------------------------------------

// Signal handlers reach nothing else, so this is the launcher's one static object.
struct Interruption {
  lua_State* lua = nullptr;
  pthread_t owner = {};
  bool ends_process = true;  // false while the read-eval-print loop is in charge
  volatile sig_atomic_t asked = 0;
};
Interruption interruption;

// Compiled loops never look at hooks, a script may catch every error, a step may be long: this is how long they have.
constexpr int kPatienceUs = 900 * 1000;

void raise_interrupted(lua_State* L, lua_Debug*) {
  lua_sethook(L, nullptr, 0, 0);
  lua_pushliteral(L, "interrupted");  // just so: the library lets exactly this error through its callbacks
  lua_error(L);
}

void on_patience_over(int) { _exit(kInterrupted); }

void on_interrupt(int) {
  if (!pthread_equal(pthread_self(), interruption.owner)) {  // only the owner may touch its state
    pthread_kill(interruption.owner, SIGINT);
    return;
  }
  if (interruption.asked) _exit(kInterrupted);
  interruption.asked = 1;
  lua_sethook(interruption.lua, raise_interrupted, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
  if (interruption.ends_process) {
    const itimerval patience = {{0, 0}, {0, kPatienceUs}};
    setitimer(ITIMER_REAL, &patience, nullptr);
  }
}

void listen_for_interrupts(lua_State* L) {
  interruption.lua = L;
  interruption.owner = pthread_self();
  struct sigaction action = {};
  action.sa_handler = on_patience_over;
  sigaction(SIGALRM, &action, nullptr);
  action.sa_handler = on_interrupt;  // without SA_RESTART: a prompt that waits for a line gets to know
  sigaction(SIGINT, &action, nullptr);
}

// True once per Ctrl-C; the state runs on as if nothing had happened.
bool take_interrupt() {
  if (!interruption.asked) return false;
  interruption.asked = 0;
  lua_sethook(interruption.lua, nullptr, 0, 0);
  return true;
}

// ---- where the library is --------------------------------------------------------------------------------------

constexpr const char* kLibrary = "moonflow.library";  // registry: the folder of the library's own Lua files

struct SearchPath {
  fs::path lua;  // holds moonflow/init.lua
  fs::path c;    // holds moonflow/core.so
};

// From the executable's own place: a build tree, whose folder `lua` holds both, or an installation.
SearchPath find_library() {
  std::error_code none;
  const fs::path here = fs::read_symlink("/proc/self/exe", none).parent_path();
  for (const fs::path& build : {here, here.parent_path()})
    if (fs::exists(build / "lua" / "moonflow" / "init.lua", none)) return {build / "lua", build / "lua"};
  const fs::path prefix = here.parent_path();
  return {prefix / "share" / "lua" / "5.1", prefix / "lib" / "lua" / "5.1"};
}

// Puts ours before what LUA_PATH, LUA_CPATH and the defaults gave.
void prepend(lua_State* L, const char* field, const std::string& path) {
  lua_getglobal(L, "package");
  lua_getfield(L, -1, field);
  lua_pushfstring(L, "%s;%s", path.c_str(), lua_tostring(L, -1));
  lua_setfield(L, -3, field);
  lua_pop(L, 2);
}

// ---- errors ----------------------------------------------------------------------------------------------------

// Message handler: turns any error into its text and a traceback. An error that brings a traceback keeps it: it was
// raised in a callback, and says more than the place that delivered it. Others that waited with it are counted.
int describe_error(lua_State* L) {
  lua_settop(L, 1);
  size_t others = 0;
  if (lua_istable(L, 1)) {
    lua_getfield(L, 1, "also");
    if (lua_istable(L, 2)) others = lua_objlen(L, 2);
    lua_getfield(L, 1, "traceback");
    lua_replace(L, 2);
  } else {
    lua_pushnil(L);
  }
  if (luaL_getmetafield(L, 1, "__tostring")) {
    lua_pushvalue(L, 1);
    if (lua_pcall(L, 1, 1, 0) != 0 || !lua_isstring(L, -1)) lua_pushliteral(L, "(an error whose __tostring fails)");
  } else if (lua_isstring(L, 1)) {
    lua_pushvalue(L, 1);
  } else {
    lua_pushfstring(L, "(error object is a %s value)", luaL_typename(L, 1));
  }
  if (others > 0) {
    lua_pushfstring(L, "\n  and %d more error%s", static_cast<int>(others), others == 1 ? "" : "s");
    lua_concat(L, 2);
  }
  if (lua_isstring(L, 2)) {
    lua_pushvalue(L, 2);
    lua_concat(L, 2);
  } else {
    luaL_traceback(L, L, lua_tostring(L, -1), 1);
  }
  return 1;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Whether a line of a traceback is in this folder. Lua shortens long names to "..." and their end.
bool is_in(const std::string& folder, const std::string& line) {
  const std::string path = line.substr(1, line.find(':') - 1);
  if (path.compare(0, 3, "...") != 0) return path.compare(0, folder.size(), folder) == 0;
  const std::string end = path.substr(3, path.rfind('/') - 2);
  return end.size() > 1 && ends_with(folder, end);
}

// The text with the frames of the library, and the C functions around them, folded into one line each time.
// With `only_place`: the first line alone, behind the place of the user's first frame.
std::string for_reading(const std::string& text, const std::string& library, bool only_place) {
  std::vector<std::string> lines;
  std::istringstream all(text);
  for (std::string line; std::getline(all, line);) lines.push_back(line);
  std::string result;
  int folded = 0;
  const auto end_fold = [&] {
    const std::string frames = std::to_string(folded) + (folded == 1 ? " frame" : " frames");
    if (folded > 0) result += "\n\t(" + frames + " inside moonflow)";
    folded = 0;
  };
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto is_frame = [&](size_t k) { return k < lines.size() && lines[k][0] == '\t'; };
    const auto is_c = [&](size_t k) { return is_frame(k) && lines[k][1] == '['; };
    size_t lua = i;
    while (is_c(lua)) ++lua;
    if (is_frame(i) && ((is_c(i) && folded > 0) || (is_frame(lua) && is_in(library, lines[lua])))) {
      ++folded;
      continue;
    }
    end_fold();
    if (only_place && is_frame(i) && !is_c(i)) {
      const size_t colon = lines[i].find(':', lines[i].find(':') + 1);
      return lines[i].substr(1, colon) + " " + lines[0];
    }
    result += (i > 0 ? "\n" : "") + lines[i];
  }
  end_fold();
  return only_place ? lines[0] : result;
}

// Calls the function below its arguments. On an error: says so once on stderr, and gives false.
bool call(lua_State* L, int arguments, int results = 0) {
  const int base = lua_gettop(L) - arguments;
  lua_pushcfunction(L, describe_error);
  lua_insert(L, base);
  const int status = lua_pcall(L, arguments, results, base);
  lua_remove(L, base);
  if (status == 0) return true;
  lua_getfield(L, LUA_REGISTRYINDEX, kLibrary);
  // What the user stopped needs no traceback, only its place.
  const std::string text = for_reading(lua_tostring(L, -2), lua_tostring(L, -1), interruption.asked);
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", text.c_str());
  lua_pop(L, 2);
  return false;
}

// For what luaL_load* gave: the chunk, or an error that needs no traceback.
bool loaded(lua_State* L, int status) {
  if (status == 0) return true;
  std::fprintf(stderr, "%s\n", lua_tostring(L, -1));
  lua_pop(L, 1);
  return false;
}

// Calls a function of the library without arguments, if a script has loaded the library at all.
bool call_library(lua_State* L, const char* function) {
  lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
  lua_getfield(L, -1, "moonflow");
  if (lua_istable(L, -1)) lua_getfield(L, -1, function);
  const bool fine = lua_isfunction(L, -1) ? call(L, 0) : true;
  lua_settop(L, 0);
  return fine;
}

// ---- running ---------------------------------------------------------------------------------------------------

struct Options {
  std::vector<std::string> statements;  // -e
  std::vector<std::string> jit;         // -j
  bool interactive = false;             // -i
  std::vector<std::string> script;      // the file and its arguments
};

// The table `arg` as every Lua has it: the script at 0, its arguments from 1, what came before below 0.
void set_arg(lua_State* L, const Options& options, char** argv, int argc) {
  const int before = argc - static_cast<int>(options.script.size());
  lua_createtable(L, argc, before);
  for (int i = 0; i < argc; ++i) {
    lua_pushstring(L, argv[i]);
    lua_rawseti(L, -2, i - (options.script.empty() ? 0 : before));
  }
  lua_setglobal(L, "arg");
}

bool run_script(lua_State* L, const std::vector<std::string>& script) {
  const char* file = script[0] == "-" ? nullptr : script[0].c_str();
  if (!loaded(L, luaL_loadfile(L, file))) return false;
  luaL_checkstack(L, static_cast<int>(script.size()), "too many arguments");
  for (size_t i = 1; i < script.size(); ++i) lua_pushstring(L, script[i].c_str());
  return call(L, static_cast<int>(script.size()) - 1);
}

bool run_statement(lua_State* L, const std::string& statement) {
  return loaded(L, luaL_loadbufferx(L, statement.data(), statement.size(), "=(command line)", "t")) && call(L, 0);
}

// Scripts build many distinct ops, so the default limits of the compiler are soon full and everything is thrown away.
// `-joff` and `-jon` switch it; `-jname=option` loads jit.name as the stock program does.
bool set_up_jit(lua_State* L, const std::vector<std::string>& commands) {
  bool fine = run_statement(L, "jit.opt.start('maxtrace=8000', 'maxrecord=16000', 'maxmcode=40960')");
  for (const std::string& command : commands) {
    const char* switch_or_module =
        "local name, option = (...):match('^(%w*)=?(.*)$')\n"
        "if name == 'on' or name == 'off' or name == 'flush' then return jit[name]() end\n"
        "require('jit.' .. name).start(option ~= '' and option or nil)";
    if (!loaded(L, luaL_loadstring(L, switch_or_module))) return false;
    lua_pushstring(L, command.c_str());
    fine = call(L, 1) && fine;
  }
  return fine;
}

// ---- the read-eval-print loop ------------------------------------------------------------------------------------

class Prompt {
 public:
  explicit Prompt(lua_State* L) : lua_(L), terminal_(isatty(STDIN_FILENO)) {}

  // Reads until the input ends. False when something failed and nobody was there to see it.
  bool run() {
    bool fine = true;
    for (std::string chunk; read(chunk);) fine = evaluate(chunk) && fine;
    if (terminal_) std::fputc('\n', stdout);
    return fine || terminal_;
  }

 private:
  enum Compiled { Complete, Incomplete, Wrong };

  // One chunk: lines until they compile or are wrong for good. False at the end of the input.
  bool read(std::string& chunk) {
    chunk.clear();
    for (std::string line; read_line(chunk.empty() ? "> " : ">> ", line);) {
      if (take_interrupt()) {  // drops what was typed
        if (terminal_) std::fputc('\n', stdout);
        chunk.clear();
        continue;
      }
      chunk += line;
      const Compiled compiled = compile(chunk);
      lua_settop(lua_, 0);
      if (compiled != Incomplete) return true;
      chunk += '\n';
    }
    return !chunk.empty();
  }

  // False at the end of the input. An interrupt gives an empty line.
  bool read_line(const char* prompt, std::string& line) {
    if (terminal_) {
      std::fputs(prompt, stdout);
      std::fflush(stdout);
    }
    line.clear();
    for (int c; (c = std::getc(stdin)) != '\n';) {
      if (c != EOF) {
        line += static_cast<char>(c);
      } else if (std::ferror(stdin) && errno == EINTR) {
        std::clearerr(stdin);
        return true;
      } else {
        return !line.empty();
      }
    }
    return true;
  }

  // Leaves the function, or the message, on the stack. An expression is compiled so that its values come back.
  Compiled compile(const std::string& chunk) {
    const std::string expression = "return " + chunk.substr(chunk[0] == '=' ? 1 : 0);
    const Compiled first = compiled(load(expression));
    if (first == Complete) return Complete;
    lua_pop(lua_, 1);
    const Compiled second = compiled(load(chunk));
    return second == Wrong && first == Incomplete ? Incomplete : second;
  }

  int load(const std::string& chunk) { return luaL_loadbufferx(lua_, chunk.data(), chunk.size(), "=stdin", "t"); }

  Compiled compiled(int status) {
    if (status == 0) return Complete;
    return ends_with(lua_tostring(lua_, -1), "'<eof>'") ? Incomplete : Wrong;
  }

  bool evaluate(const std::string& chunk) {
    if (compile(chunk) != Complete) return loaded(lua_, LUA_ERRSYNTAX);
    luaJIT_setmode(lua_, 1, LUAJIT_MODE_ALLFUNC | LUAJIT_MODE_OFF);  // what is typed sees hooks, so Ctrl-C stops it
    bool fine = call(lua_, 0, LUA_MULTRET);
    take_interrupt();
    if (const int values = lua_gettop(lua_); fine && values > 0) {
      lua_getglobal(lua_, "print");
      lua_insert(lua_, 1);
      fine = call(lua_, values);
    }
    lua_settop(lua_, 0);
    return call_library(lua_, "poll") && fine;  // results that came meanwhile
  }

  lua_State* lua_;
  const bool terminal_;
};

bool run(lua_State* L, const Options& options) {
  if (!set_up_jit(L, options.jit)) return false;
  for (const std::string& statement : options.statements) {
    if (!run_statement(L, statement)) return false;
  }
  if (!options.script.empty() && !run_script(L, options.script)) return false;
  bool fine = true;
  if (options.interactive || (options.script.empty() && options.statements.empty())) {
    interruption.ends_process = false;
    fine = Prompt(L).run();
    interruption.ends_process = true;
  }
  return call_library(L, "_finish") && fine;  // delivers what is pending
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Runs a Lua script with Moonflow, or reads, evaluates and prints without one.", "moonflow");
  Options options;
  bool version = false;
  app.add_option("-e", options.statements, "Run this statement first; may be given again")->allow_extra_args(false);
  app.add_flag("-i", options.interactive, "Read, evaluate and print after the script");
  app.add_option("-j", options.jit, "The compiler: on, off, or a module such as v or dump")->allow_extra_args(false);
  app.add_flag("-v,--version", version, "Show the versions");
  app.footer("Then: script.lua and its arguments; - reads the script from standard input.");
  app.prefix_command();
  try {
    app.parse(argc, argv);
    options.script = app.remaining();
    if (!options.script.empty() && options.script[0].size() > 1 && options.script[0][0] == '-') {
      throw CLI::ExtrasError({options.script[0]});
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  if (version) {
    std::printf("moonflow %s, %s\n", MOONFLOW_VERSION, LUAJIT_VERSION);
    return kOk;
  }

  lua_State* L = luaL_newstate();
  if (!L) {
    std::fputs("moonflow: not enough memory\n", stderr);
    return kFailed;
  }
  luaL_openlibs(L);
  const SearchPath library = find_library();
  const std::string lua = library.lua.string(), c = library.c.string();
  prepend(L, "path", lua + "/?.lua;" + lua + "/?/init.lua");
  prepend(L, "cpath", c + "/?.so");
  lua_pushfstring(L, "%s/moonflow/", lua.c_str());
  lua_setfield(L, LUA_REGISTRYINDEX, kLibrary);
  set_arg(L, options, argv, argc);
  listen_for_interrupts(L);

  const bool fine = run(L, options);
  const bool interrupted = interruption.asked;
  lua_close(L);  // the patience of an interrupt covers this too
  return interrupted ? kInterrupted : fine ? kOk : kFailed;
}
