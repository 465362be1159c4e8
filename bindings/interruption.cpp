#include "bindings/interruption.h"

#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>

#include "bindings/lua_glue.h"
#include "bindings/traceback.h"

namespace moonflow::interruption {

namespace {

// Whoever stops processes may send all of them a signal, of which the first one to get it tells the others: then the
// one that comes after that is the same stop, and no second one.
enum Told { kNot, kTold, kHeeded };

// Signal handlers reach nothing else, so this is the launcher's one static object.
struct State {
  lua_State* lua = nullptr;
  pthread_t owner = {};
  bool ends_process = true;
  volatile sig_atomic_t asked = 0;       // how often, since it was last answered
  volatile sig_atomic_t terminated = 0;  // by SIGTERM
  volatile sig_atomic_t told = kNot;     // by processes that this one has joined
  volatile sig_atomic_t answered = 0;
  bool raised = false;
  lua_Hook earlier = nullptr;  // of the script, put back when the Ctrl-C is answered
  int earlier_mask = 0, earlier_count = 0;
  lua::Given engine;  // the flag that stops all sessions of the state
};
State state;

// How long a script has that catches every error, or runs a compiled loop or a long step.
constexpr int kPatienceUs = 900 * 1000;

// Takes a value off the stack and gives what a function of the library says of it; `otherwise` where the library is not
// loaded or the function fails.
bool ask(lua_State* L, const char* module, const char* function, bool otherwise) {
  const int top = lua_gettop(L);
  lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
  lua_getfield(L, -1, module);
  bool answer = otherwise;
  if (lua_istable(L, -1)) {
    lua_getfield(L, -1, function);
    lua_pushvalue(L, top);
    if (lua_pcall(L, 1, 1, 0) == 0) answer = lua_toboolean(L, -1);
  }
  lua_settop(L, top - 1);
  return answer;
}

// The library knows where an error would make it lose something; without it nothing does.
bool may_stop(lua_State* L) {
  lua_pushinteger(L, 0);
  return ask(L, "moonflow.interrupts", "may_stop", true);
}

bool is_own(lua_State* L, const char* source) {
  lua_pushstring(L, source);
  return ask(L, "moonflow.errors", "is_own", false);
}

// A call that waits, as for a pipe, ends with an error of its own when the signal comes. Nobody has caught it where its
// description begins, in which an error would be lost: it becomes this one.
bool turns_into_ours(lua_State* L, lua_Debug* event) {
  if (event->event != LUA_HOOKCALL) return false;
  lua_getinfo(L, "f", event);
  const bool is_description = lua_tocfunction(L, -1) == lua::describe_error;
  lua_pop(L, 1);
  if (!is_description) return false;
  lua_pushliteral(L, "interrupted");
  lua_setlocal(L, event, 1);
  return true;
}

// Scripts may catch every error, so it is raised again until the Ctrl-C is answered, though only in their own code: the
// library and the prompt must be able to pass it on.
void raise_interrupted(lua_State* L, lua_Debug* event) {
  if (!state.asked) {  // put back by who had found it here
    lua_sethook(L, nullptr, 0, 0);
    return;
  }
  if (!state.raised && turns_into_ours(L, event)) {
    state.raised = true;
    lua_sethook(L, nullptr, 0, 0);
    return;
  }
  if (state.raised) {
    if (event->event != LUA_HOOKCOUNT) return;
    lua_getinfo(L, "Sl", event);
    if (event->currentline <= 0 || is_own(L, event->source)) return;  // LuaJIT's own functions have no lines
  } else if (!may_stop(L)) {
    return;
  }
  state.raised = true;
  lua_sethook(L, raise_interrupted, LUA_MASKCOUNT, 1);
  lua_pushliteral(L, "interrupted");  // just so: the library lets exactly this error through its callbacks
  lua_error(L);
}

// As if nobody had listened, so that whoever has sent it sees that it was heeded.
void die_of_sigterm() {
  signal(SIGTERM, SIG_DFL);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, SIGTERM);
  pthread_sigmask(SIG_UNBLOCK, &only, nullptr);  // its own handler blocks it
  raise(SIGTERM);
}

void end_at_once() {
  if (state.terminated) die_of_sigterm();
  _exit(kExitCode);
}

void on_patience_over(int) { end_at_once(); }

void on_signal(int number) {
  if (!pthread_equal(pthread_self(), state.owner)) {  // only the owner may touch its state
    pthread_kill(state.owner, number);
    return;
  }
  if (state.told == kTold) {
    const bool is_known = state.asked || state.answered;
    state.told = is_known ? kNot : kHeeded;
    if (is_known) return;
  } else if (state.told == kHeeded) {
    state.told = kNot;
    if (number == SIGTERM) state.terminated = 1;
    return;
  }
  if (number == SIGTERM) state.terminated = 1;
  if (state.terminated && !state.ends_process) end_at_once();
  if (state.asked >= (state.ends_process ? 1 : 2)) end_at_once();
  state.asked = state.asked + 1;
  state.raised = false;
  state.engine.interrupted->store(true, std::memory_order_release);
  if (const lua_Hook hook = lua_gethook(state.lua); hook != raise_interrupted) {
    state.earlier = hook;
    state.earlier_mask = lua_gethookmask(state.lua);
    state.earlier_count = lua_gethookcount(state.lua);
  }
  lua_sethook(state.lua, raise_interrupted, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
  if (state.ends_process) end_soon();
}

void on_others_stopped() {
  state.told = kTold;
  pthread_kill(state.owner, SIGINT);
}

}  // namespace

void listen(lua_State* L) {
  state.lua = L;
  state.owner = pthread_self();
  state.engine.interrupted = std::make_shared<std::atomic<bool>>(false);
  static_assert(std::atomic<bool>::is_always_lock_free);
  state.engine.interrupt = on_others_stopped;
  lua_pushlightuserdata(L, &state.engine);
  lua_setfield(L, LUA_REGISTRYINDEX, lua::kGivenKey);
  struct sigaction action = {};
  action.sa_handler = on_patience_over;
  sigaction(SIGALRM, &action, nullptr);
  action.sa_handler = on_signal;  // without SA_RESTART: a prompt that waits for a line gets to know
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void ends_process(bool ends) { state.ends_process = ends; }

bool asked() { return state.asked != 0; }

int exit_code() {
  if (state.terminated) {
    std::fflush(nullptr);
    die_of_sigterm();
  }
  return kExitCode;
}

void end_soon() {
  const itimerval patience = {{0, 0}, {0, kPatienceUs}};
  setitimer(ITIMER_REAL, &patience, nullptr);
}

bool take() {
  if (!state.asked) return false;
  state.asked = 0;
  state.answered = state.ends_process;
  const itimerval no_limit = {};
  setitimer(ITIMER_REAL, &no_limit, nullptr);
  state.engine.interrupted->store(false, std::memory_order_release);
  if (lua_gethook(state.lua) == raise_interrupted)  // and not one that the script has set meanwhile
    lua_sethook(state.lua, state.earlier, state.earlier_mask, state.earlier_count);
  return true;
}

}  // namespace moonflow::interruption
