// `moonflow`: runs a Lua script with the library on its path, or opens a prompt, here or inside another process, or
// makes the page of the logs of runs.
// It promises: everything pending is delivered before the end, an uncaught error is one traceback and exit code 1, and
// Ctrl-C ends a script within a second with exit code 130. The only program of the project that links LuaJIT.
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <lua.hpp>

#include "bindings/calling.h"
#include "bindings/interruption.h"
#include "bindings/prompt.h"
#include "bindings/traceback.h"

namespace {

namespace fs = std::filesystem;
namespace interruption = moonflow::interruption;
using moonflow::calling::call;
using moonflow::calling::call_library;
using moonflow::calling::loaded;

constexpr const char* kAttach = "attach";  // commands: these two in the place of a script
constexpr const char* kReport = "report";

enum Exit { kOk = 0, kFailed = 1, kUsage = 2 };

// ---- where the library is --------------------------------------------------------------------------------------

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

// ---- running ---------------------------------------------------------------------------------------------------

struct Options {
  struct First {
    bool is_module;
    std::string text;
  };
  std::vector<First> first;         // -e and -l, in their order
  std::vector<std::string> jit;     // -j
  bool interactive = false;         // -i
  std::string command;              // attach, report or none
  std::vector<std::string> script;  // the file and its arguments, or the command's
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

// The module is also the global of its name, for what is typed in one line, unless it has set that itself.
bool load_module(lua_State* L, const std::string& name) {
  lua_pushlstring(L, name.data(), name.size());
  lua_getglobal(L, "require");
  lua_pushvalue(L, -2);
  if (!call(L, 1, 1)) return false;
  lua_pushvalue(L, -2);
  lua_rawget(L, LUA_GLOBALSINDEX);  // raw, as strict modes refuse what is new
  const bool is_new = lua_isnil(L, -1);
  lua_pop(L, 1);
  is_new ? lua_rawset(L, LUA_GLOBALSINDEX) : lua_pop(L, 2);
  return true;
}

// Scripts build many distinct ops, so the default limits of the compiler are soon full and everything is thrown away.
// `-joff` and `-jon` switch it; `-jname=option` loads jit.name as the stock program does.
bool set_up_jit(lua_State* L, const std::vector<std::string>& commands) {
  bool fine = run_statement(L, "jit.opt.start('maxtrace=8000', 'maxrecord=16000', 'maxmcode=40960')");
  for (const std::string& command : commands) {
    const char* switch_or_module =
        "local name, option = (...):match('^(%w*)=?(.*)$')\n"
        "if name == 'on' or name == 'off' or name == 'flush' then return jit[name]() end\n"
        "local found, module = pcall(require, 'jit.' .. name)\n"
        "if not found then error('-j knows no ' .. (...) .. ', and there is no module jit.' .. name, 0) end\n"
        "module.start(option ~= '' and option or nil)";
    if (!loaded(L, luaL_loadbuffer(L, switch_or_module, std::strlen(switch_or_module), "=(command line)")))
      return false;
    lua_pushstring(L, command.c_str());
    fine = call(L, 1) && fine;
  }
  return fine;
}

// Pushes require(module)[function].
bool push_function(lua_State* L, const char* module, const char* function) {
  lua_getglobal(L, "require");
  lua_pushstring(L, module);
  if (!call(L, 1, 1)) return false;
  lua_getfield(L, -1, function);
  lua_remove(L, -2);
  return true;
}

// ---- the prompt --------------------------------------------------------------------------------------------------

int write_to(std::FILE* file, lua_State* L) {
  size_t size;
  const char* text = luaL_checklstring(L, 1, &size);
  std::fwrite(text, 1, size, file);
  return 0;
}

int write_out(lua_State* L) { return write_to(stdout, L); }

int write_error(lua_State* L) {
  std::fflush(stdout);
  return write_to(stderr, L);
}

int columns(lua_State* L) {
  winsize size{};
  ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
  lua_pushinteger(L, size.ws_col > 0 ? size.ws_col : 80);
  return 1;
}

// Calls require(module)[function] with a table of what this program gives to a prompt, and pushes what it returns.
bool open_conversation(lua_State* L, const char* module, const char* function, const std::string& socket) {
  const luaL_Reg given[] = {{"write", write_out},
                            {"complain", write_error},
                            {"width", columns},
                            {"describe", moonflow::lua::describe_error},
                            {"fold", moonflow::lua::fold_traceback}};
  if (!push_function(L, module, function)) return false;
  lua_createtable(L, 0, 8);
  for (const luaL_Reg& entry : given) {
    lua_pushcfunction(L, entry.func);
    lua_setfield(L, -2, entry.name);
  }
  lua_pushboolean(L, isatty(STDIN_FILENO) && isatty(STDOUT_FILENO));
  lua_setfield(L, -2, "terminal");
  lua_pushstring(L, LUAJIT_VERSION);
  lua_setfield(L, -2, "lua_version");
  if (!socket.empty()) {
    lua_pushstring(L, socket.c_str());
    lua_setfield(L, -2, "socket");
  }
  return call(L, 1, 1);
}

bool prompt(lua_State* L, const char* module, const char* function, const std::string& socket = {}) {
  interruption::ends_process(false);
  const bool opened = open_conversation(L, module, function, socket) && !lua_isnil(L, -1);
  const bool fine = opened && moonflow::run_prompt(L);
  interruption::ends_process(true);
  return fine;
}

// ---- the report --------------------------------------------------------------------------------------------------

bool report(lua_State* L, const std::vector<std::string>& words) {
  if (!push_function(L, "moonflow.report", "command")) return false;
  lua_createtable(L, static_cast<int>(words.size()), 0);
  for (size_t i = 1; i < words.size(); ++i) {
    lua_pushstring(L, words[i].c_str());
    lua_rawseti(L, -2, static_cast<int>(i));
  }
  return call(L, 1, 1) && lua_toboolean(L, -1);
}

// ---- one of them -------------------------------------------------------------------------------------------------

bool run_first(lua_State* L, const Options& options) {
  return std::all_of(options.first.begin(), options.first.end(), [L](const Options::First& first) {
    return first.is_module ? load_module(L, first.text) : run_statement(L, first.text);
  });
}

bool has_nothing_to_run(const Options& options) {
  return options.script.empty() && std::all_of(options.first.begin(), options.first.end(),
                                               [](const Options::First& first) { return first.is_module; });
}

bool run(lua_State* L, const Options& options) {
  if (!set_up_jit(L, options.jit)) return false;
  bool fine = run_first(L, options);
  if (fine && options.command == kAttach) return prompt(L, "moonflow.serve", "attach", options.script[1]);
  if (fine && options.command == kReport) return report(L, options.script);
  if (fine && !options.script.empty()) fine = run_script(L, options.script);
  // What a script that failed has left in globals may say why. One that was stopped is to end.
  if (!fine && (!options.interactive || interruption::asked())) return false;
  if (options.interactive || has_nothing_to_run(options)) fine = prompt(L, "moonflow.repl", "at_prompt") && fine;
  return call_library(L, "_finish") && fine;  // delivers what is pending
}

// How often libgomp looks for what it waits for in a microsecond. Its pause takes some ten cycles on one processor and
// more than a hundred on another, and where there is none a look takes a cycle or two.
double looks_per_microsecond() {
  using Clock = std::chrono::steady_clock;
  constexpr int kLooks = 500, kTries = 3;
  const std::atomic<int> awaited{0};
  std::chrono::duration<double, std::micro> least = std::chrono::seconds(1);
  for (int i = 0; i < kTries; ++i) {
    const Clock::time_point start = Clock::now();
    for (int look = 0; look < kLooks && awaited.load(std::memory_order_acquire) == 0; ++look) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    least = std::min<decltype(least)>(least, Clock::now() - start);
  }
  return kLooks / least.count();
}

// The threads of a kernel wait for one another by spinning, by default for milliseconds: beside other work that takes
// the core from the one that is waited for. A short spin covers the gaps within a step of training and then gives the
// core away. libgomp reads this when the library is loaded, which a script does; whoever has chosen a policy keeps it.
void choose_spinning() {
  constexpr double kMicroseconds = 70;
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) return;
  setenv("GOMP_SPINCOUNT", std::to_string(std::lround(kMicroseconds * looks_per_microsecond())).c_str(), 0);
}

// A file beyond `ulimit -f` fails the write, which is an error that says so, and ends no program. A handler and not
// SIG_IGN, since programs that a script starts would inherit that.
void outlive_limit_of_files() {
  struct sigaction there {};
  if (sigaction(SIGXFSZ, nullptr, &there) != 0 || there.sa_handler != SIG_DFL) return;
  struct sigaction ours {};
  ours.sa_handler = [](int) {};
  ours.sa_flags = SA_RESTART;
  sigaction(SIGXFSZ, &ours, nullptr);
}

// Exits where there is nothing to run; what is wrong, or asked for, has been said then.
Options parse(int argc, char** argv) {
  CLI::App app("Runs a Lua script with Moonflow, or opens a prompt without one.", "moonflow");
  Options options;
  std::vector<std::string> statements, modules;
  bool version = false;
  const auto list = [&app](const char* name, std::vector<std::string>& texts, const char* about) {
    return app.add_option(name, texts, about)->allow_extra_args(false);
  };
  const CLI::Option* statement = list("-e", statements, "Run this statement first; may be given again");
  const CLI::Option* module =
      list("-l", modules, "Load this module first, as the global of its name; may be given again");
  app.add_flag("-i", options.interactive, "Open the prompt after the script, also one that failed");
  list("-j", options.jit, "The compiler: on, off, or a module such as v or dump");
  app.add_flag("-v,--version", version, "Show the versions");
  app.footer(
      "Then: script.lua and its arguments; - reads the script from standard input, and -- before it ends the options.\n"
      "Or: attach path.sock opens a prompt inside a process that called flow.serve_repl(\"path.sock\").\n"
      "Or: report folder... [-o page.html] makes a page of the logs in these folders and below them.");
  app.prefix_command();
  try {
    app.parse(argc, argv);
    std::vector<std::string>& words = options.script = app.remaining();
    if (!words.empty() && words[0] == "--") {
      words.erase(words.begin());
    } else if (!words.empty()) {
      if (words[0].size() > 1 && words[0][0] == '-') throw CLI::ExtrasError({words[0]});
      if (words[0] == kAttach || words[0] == kReport) options.command = words[0];
    }
    if (options.command == kAttach && words.size() != 2) {
      throw CLI::ValidationError(kAttach, "wants the path of one socket, as in: moonflow attach path.sock");
    }
    if (options.command == kReport && words.size() < 2) {
      throw CLI::ValidationError(kReport, "wants the folder of a log, as in: moonflow report runs");
    }
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? kOk : kUsage);
  }
  if (version) {
    std::printf("moonflow %s, %s\n", MOONFLOW_VERSION, LUAJIT_VERSION);
    std::exit(kOk);
  }
  size_t statements_taken = 0, modules_taken = 0;
  for (const CLI::Option* given : app.parse_order()) {
    if (given == statement) options.first.push_back({false, statements.at(statements_taken++)});
    if (given == module) options.first.push_back({true, modules.at(modules_taken++)});
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  choose_spinning();
  outlive_limit_of_files();
  // Line by line, so that a file shows how far a script is, and keeps it if the script is killed.
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  lua_State* L = luaL_newstate();
  if (!L) {
    std::fputs("moonflow: not enough memory\n", stderr);
    return kFailed;
  }
  luaL_openlibs(L);
  moonflow::calling::prepare(L);
  const SearchPath library = find_library();
  const std::string lua = library.lua.string(), c = library.c.string();
  prepend(L, "path", lua + "/?.lua;" + lua + "/?/init.lua");
  prepend(L, "cpath", c + "/?.so");
  lua_pushfstring(L, "%s/moonflow/", lua.c_str());
  lua_setfield(L, LUA_REGISTRYINDEX, moonflow::calling::kLibrary);
  set_arg(L, options, argv, argc);
  interruption::listen(L);

  const bool fine = run(L, options);
  const bool interrupted = interruption::take();
  if (interrupted) {
    call_library(L, "_interrupted");
    call_library(L, "_part");  // also where the script's action has failed
    interruption::end_soon();
  }
  lua_close(L);
  return interrupted ? interruption::exit_code() : fine ? kOk : kFailed;
}
