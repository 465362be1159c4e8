// Hosts with more than one session, or with a Lua of their own.
#include <catch2/catch.hpp>

#include <dirent.h>
#include <fenv.h>
#include <unistd.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include <lua.hpp>

#include "moonflow.hpp"

namespace {

using Floats = std::vector<float>;

moonflow::Options options(void* lua_state = nullptr) {
  moonflow::Options options;
  options.threads = 1;
  options.lua_state = lua_state;
  return options;
}

struct CloseState {
  void operator()(lua_State* L) const { lua_close(L); }
};
std::unique_ptr<lua_State, CloseState> new_state() {
  std::unique_ptr<lua_State, CloseState> state(luaL_newstate());
  luaL_openlibs(state.get());
  return state;
}

// Runs Lua in a state of the host's own.
void run(lua_State* L, const char* text) {
  const bool failed = luaL_dostring(L, text);
  INFO((failed ? lua_tostring(L, -1) : ""));
  REQUIRE(!failed);
  lua_settop(L, 0);
}

int entries(const char* folder) {
  int count = 0;
  DIR* const directory = opendir(folder);
  while (readdir(directory)) ++count;
  closedir(directory);
  return count;
}

long resident_kib() {
  long pages = 0, all = 0;
  FILE* const file = std::fopen("/proc/self/statm", "r");
  REQUIRE(std::fscanf(file, "%ld %ld", &all, &pages) == 2);
  std::fclose(file);
  return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

// Whether the thread takes denormal numbers for zero, as factors and as results.
#if defined(__x86_64__)
constexpr unsigned kFlushes = 0x8040;
unsigned float_control() { return _mm_getcsr(); }
void set_float_control(unsigned control) { _mm_setcsr(control); }
#elif defined(__aarch64__)
constexpr unsigned kFlushes = 1 << 24;
unsigned float_control() { return __builtin_aarch64_get_fpcr(); }
void set_float_control(unsigned control) { __builtin_aarch64_set_fpcr(control); }
#endif
// The x87 has a control of its own.
#if defined(__x86_64__)
constexpr unsigned kOldDefault = 0x37f;
unsigned old_float_control() {
  uint16_t control;
  __asm__ volatile("fnstcw %0" : "=m"(control));
  return control;
}
void raise_old() {
  volatile long double zero = 0, one = 1;
  one = one / zero;
}
#else
constexpr unsigned kOldDefault = 0;
unsigned old_float_control() { return 0; }
void raise_old() {}
#endif
void flush_denormals(bool flush) {
  set_float_control(flush ? float_control() | kFlushes : float_control() & ~kFlushes);
}
bool flushes_denormals() { return (float_control() & kFlushes) == kFlushes; }

}  // namespace

TEST_CASE("two sessions live on two threads, each with weights of its own") {
  float last[2] = {0, 0};
  const auto live = [&](int which) {
    moonflow::Session session(options());
    session.load_file(MOONFLOW_TEST_JOBS);
    moonflow::Job scale = session.job("scale");
    for (int i = 0; i < 100; ++i) {
      session.write("factor", Floats(3, static_cast<float>(i * (which + 1))));
      last[which] = scale({Floats{1, 1, 1}})[0][0];
      scale.launch({Floats{1, 1, 1}}, [](const moonflow::Result& result) { result.output(0); });
      session.sync();
    }
  };
  std::thread first(live, 0), second(live, 1);
  first.join();
  second.join();
  CHECK(last[0] == 99);
  CHECK(last[1] == 198);
}

TEST_CASE("two sessions live on one thread") {
  moonflow::Session first(options()), second(options());
  first.load_file(MOONFLOW_TEST_JOBS);
  second.load_file(MOONFLOW_TEST_JOBS);
  first.write("factor", Floats{7, 7, 7});
  CHECK(second.job("scale")({Floats{1, 1, 1}})[0] == Floats{2, 2, 2});
  CHECK(first.job("scale")({Floats{1, 1, 1}})[0] == Floats{7, 7, 7});
}

TEST_CASE("a thousand sessions are opened and closed without a trace") {
  const auto live = [] {
    moonflow::Session session(options());
    session.load_file(MOONFLOW_TEST_JOBS);
    moonflow::Job scale = session.job("scale");
    REQUIRE(scale({Floats{1, 2, 3}})[0] == Floats{2, 4, 6});
    scale.launch({Floats{1, 2, 3}}, [](const moonflow::Result&) {});
    moonflow::Prepared prepared = scale.prepare();
    REQUIRE(prepared.run() == MF_OK);
  };
  for (int i = 0; i < 200; ++i) live();  // what is kept for good is there by now
  [[maybe_unused]] const long memory = resident_kib();
  const int descriptors = entries("/proc/self/fd"), threads = entries("/proc/self/task");
  for (int i = 0; i < 800; ++i) live();
  CHECK(entries("/proc/self/fd") == descriptors);
  CHECK(entries("/proc/self/task") == threads);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep what was freed for a while
  CHECK(resident_kib() - memory < 4 * 1024);                         // 5 KiB a session would show
#endif
}

TEST_CASE("a host may trap what floating point raises, and flush denormal numbers") {
  const int before = fegetexcept();
  feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW | FE_UNDERFLOW);
  const int trapped = fegetexcept();  // hardly any processor of ARM can
  const unsigned old_control = old_float_control();
  unsigned old_inside = 0;
  flush_denormals(true);
  Floats now, later, prepared_now;
  {
    moonflow::Options two = options();
    two.threads = 2;
    moonflow::Session session(two);
    session.load_text(
        "local flow, tp = require 'moonflow', require('moonflow').typing\n"
        "for name, returns in pairs { now = tp.Numpy, later = tp.Callback[tp.Numpy] } do\n"
        "  flow.global_function { name = name, inputs = { x = tp.Numpy.Placeholder({ 40000 }) }, returns = returns } "
        "(\n"
        "    function(x)\n"
        "      local bad = flow.math.log(x - 2) + flow.math.exp(x * 1000) + x / (x - x)\n"
        "      return flow.where(bad:eq(bad), bad, x * 1e-39)\n"
        "    end)\n"
        "end\n"
        "assert(flow.np.sqrt(flow.np.array { -1 }):item() ~= 0)",
        "trapped.lua");
    const Floats x(40000, 1);
    now = session.job("now")({x})[0];
    moonflow::Job job = session.job("later");
    job.launch({x}, [&](const moonflow::Result& result) {
      const auto values = result.output<float>(0);
      later.assign(values.begin(), values.end());
      old_inside = old_float_control();
      raise_old();
    });
    session.sync();
    moonflow::Prepared prepared = session.job("now").prepare();
    for (float& value : prepared.input<float>(0)) value = 1;
    REQUIRE(prepared.run() == MF_OK);
    const auto values = prepared.output<float>(0);
    prepared_now.assign(values.begin(), values.end());
  }
  const int after = fegetexcept();
  const unsigned old_after = old_float_control();
  fedisableexcept(FE_ALL_EXCEPT);
  feenableexcept(before);
  CHECK(flushes_denormals());
  flush_denormals(false);
  CHECK(after == trapped);
  CHECK(old_after == old_control);
  CHECK(old_inside == kOldDefault);
  CHECK(now == Floats(40000, 1e-39f));
  CHECK(later == now);
  CHECK(prepared_now == now);
}

TEST_CASE("a session lives in the host's own state, and shares the library with its scripts") {
  const auto state = new_state();
  lua_State* const L = state.get();
  moonflow::Session session(options(L));
  lua_pushinteger(static_cast<lua_State*>(session.lua_state()), 1);
  lua_setglobal(static_cast<lua_State*>(session.lua_state()), "from_the_host");
  run(L, "flow = require 'moonflow' assert(from_the_host == 1)");
  session.load_file(MOONFLOW_TEST_JOBS);
  session.write("factor", Floats{3, 3, 3});

  // What the host's script defines, the host finds; what it changes, the script sees.
  run(L,
      "local tp = flow.typing\n"
      "twice = flow.global_function { name = 'twice', inputs = { x = tp.Numpy.Placeholder({ 3 }) }, returns = tp.Numpy "
      "}(\n"
      "  function(x) return flow.math.multiply(x, flow.get_variable('factor', { shape = { 3 } })) end)\n"
      "assert(twice(flow.np.ones({ 3 })):sum() == 9)\n");
  CHECK(session.job("twice")({Floats{1, 2, 3}})[0] == Floats{3, 6, 9});
  CHECK(lua_gettop(L) == 0);
  try {
    moonflow::Session another(options(L));
    FAIL("two sessions in one state");
  } catch (const moonflow::Error& error) {
    CHECK(error.code() == MF_WRONG_STATE);
  }
}

TEST_CASE("a state that has loaded the library already gets a session") {
  const auto state = new_state();
  lua_State* const L = state.get();
  lua_getglobal(L, "package");
  lua_pushliteral(L, MOONFLOW_TEST_LUA "/?.lua;" MOONFLOW_TEST_LUA "/?/init.lua");
  lua_setfield(L, -2, "path");
  lua_pushliteral(L, MOONFLOW_TEST_LUA "/?.so");
  lua_setfield(L, -2, "cpath");
  lua_settop(L, 0);
  run(L,
      "local flow = require 'moonflow'\n"
      "local tp = flow.typing\n"
      "relu = flow.global_function { name = 'relu', inputs = { x = tp.Numpy.Placeholder({ 3 }) }, returns = tp.Numpy "
      "}(\n"
      "  function(x) return flow.nn.relu(x) end)\n");
  moonflow::Options options;  // and no number of threads: it is settled
  options.lua_state = L;
  moonflow::Session session(std::move(options));
  CHECK(session.job("relu")({Floats{-1, 0, 1}})[0] == Floats{0, 0, 1});
}

TEST_CASE("a state that lacks a library of Lua is told which one, and gets a session once it has it") {
  for (const char* library : {"package", "debug", "io", "os"}) {
    const auto state = new_state();
    lua_State* const L = state.get();
    lua_getglobal(L, library);
    lua_pushnil(L);
    lua_setglobal(L, library);
    std::string said;
    try {
      moonflow::Session session(options(L));
    } catch (const moonflow::Error& error) {
      said = error.what();
    }
    CHECK_THAT(said, Catch::Contains("Lua's library '" + std::string(library) + "'"));
    lua_setglobal(L, library);
    moonflow::Session session(options(L));
    session.load_file(MOONFLOW_TEST_JOBS);
    CHECK(session.job("scale")({Floats{1, 1, 1}})[0] == Floats{2, 2, 2});
  }
}

TEST_CASE("a session that does not open leaves nothing in the host's state") {
  const auto state = new_state();
  lua_State* const L = state.get();
  run(L, "package.preload.moonflow = function() error('not today') end");
  const auto next_reference = [&] {
    lua_pushboolean(L, true);
    const int reference = luaL_ref(L, LUA_REGISTRYINDEX);
    luaL_unref(L, LUA_REGISTRYINDEX, reference);
    return reference;
  };
  int before = 0;
  for (int i = 0; i < 3; ++i) {  // what the first one loads, stays
    CHECK_THROWS_WITH(moonflow::Session(options(L)), Catch::Contains("not today"));
    if (i > 0) CHECK(next_reference() == before);
    before = next_reference();
  }
  run(L, "package.preload.moonflow = nil");
  moonflow::Session session(options(L));
  session.load_file(MOONFLOW_TEST_JOBS);
  CHECK(session.job("scale")({Floats{1, 1, 1}})[0] == Floats{2, 2, 2});
}

// Wherever a hook of the host stops it.
TEST_CASE("a session that does not open can be opened later") {
  int failed = 0;
  for (int steps = 100, done = 0; done == 0; steps += steps / 2) {
    const auto state = new_state();
    lua_State* const L = state.get();
    lua_sethook(
        L, [](lua_State* at, lua_Debug*) { luaL_error(at, "not now"); }, LUA_MASKCOUNT, steps);
    try {
      moonflow::Session session(options(L));
      done = 1;
    } catch (const moonflow::Error& error) {
      ++failed;
    }
    lua_sethook(L, nullptr, 0, 0);
    moonflow::Session session(options(L));
    session.load_file(MOONFLOW_TEST_JOBS);
    CHECK(session.job("scale")({Floats{1, 1, 1}})[0] == Floats{2, 2, 2});
  }
  CHECK(failed > 5);
}

TEST_CASE("a host takes libraries of Lua away from its scripts, and opens another session all the same") {
  const auto state = new_state();
  for (int i = 0; i < 2; ++i) {
    moonflow::Session session(options(state.get()));
    run(state.get(), "debug, io, os = nil");
    session.load_file(MOONFLOW_TEST_JOBS);
    CHECK(session.job("scale")({Floats{1, 1, 1}})[0] == Floats{2, 2, 2});
  }
}

TEST_CASE("a prepared call needs no function that a script can take away") {
  moonflow::Session session(options());
  session.load_file(MOONFLOW_TEST_JOBS);
  session.load_text("require = nil", "taken.lua");
  const moonflow::Prepared scale = session.job("scale").prepare();
  session.load_text("assert(package.loaded.moonflow.publish() == 1)", "publish.lua");
}

TEST_CASE("jobs of a script that has cleared package.loaded, to load its files anew, are those of the session") {
  moonflow::Session session(options());
  for (int i = 0; i < 2; ++i) {
    session.load_text("for name in pairs(package.loaded) do package.loaded[name] = nil end", "clear.lua");
    session.load_file(MOONFLOW_TEST_JOBS);
    CHECK(session.job("scale")({Floats{1, 1, 1}})[0] == Floats{2, 2, 2});
  }
}

// Gives Lua a function `quit()`, which closes the session and returns the code of that.
void give_quit(lua_State* L, mf_session* session) {
  const auto quit = [](lua_State* state) {
    lua_pushinteger(state, mf_session_close(static_cast<mf_session*>(lua_touserdata(state, lua_upvalueindex(1)))));
    return 1;
  };
  lua_pushlightuserdata(L, session);
  lua_pushcclosure(L, quit, 1);
  lua_setglobal(L, "quit");
}

TEST_CASE("a finalizer that closes the session, which is being closed, is told so") {
  mf_session* session = nullptr;
  REQUIRE(mf_session_open(nullptr, &session) == nullptr);
  void* lua_state = nullptr;
  REQUIRE(mf_session_lua_state(session, &lua_state) == nullptr);
  lua_State* const L = static_cast<lua_State*>(lua_state);
  give_quit(L, session);
  static lua_Integer said;
  said = MF_OK;
  lua_pushcfunction(L, [](lua_State* state) {
    said = lua_tointeger(state, 1);
    return 0;
  });
  lua_setglobal(L, "say");
  run(L, "kept = newproxy(true) getmetatable(kept).__gc = function() say(quit()) end");
  CHECK(mf_session_close(session) == MF_OK);
  CHECK(said == MF_WRONG_STATE);
  CHECK(mf_session_close(session) == MF_INVALID_HANDLE);
}

TEST_CASE("functions of a closed session that a script has kept do nothing") {
  const auto state = new_state();
  lua_State* const L = state.get();
  static int lines;
  lines = 0;
  mf_session_options own{};
  own.struct_size = sizeof own;
  own.lua_state = L;
  own.log = [](void*, const char*) { ++lines; };
  mf_session* session = nullptr;
  REQUIRE(mf_session_open(&own, &session) == nullptr);
  run(L,
      "local host = require 'moonflow.host'\n"
      "kept = { log = require('moonflow.session').settings.sink, receive = host.receive, forget = host.forget }\n"
      "kept.log('open')\n");
  CHECK(lines == 1);
  CHECK(mf_session_close(session) == MF_OK);
  run(L,
      "kept.log('closed')\n"
      "kept.receive(1, 1, nil)\n"
      "kept.receive(1, 0, nil)\n"
      "kept.forget()\n");
  CHECK(lines == 1);
}

TEST_CASE("a job that is closed after its session leaves nothing in the host's own state") {
  const auto state = new_state();
  lua_State* const L = state.get();
  {
    auto session = std::make_unique<moonflow::Session>(options(L));
    session->load_text(
        "local flow = require 'moonflow'\n"
        "local tp = flow.typing\n"
        "seen = setmetatable({ flow.global_function {\n"
        "  name = 'late', inputs = { x = tp.Numpy.Placeholder({ 3 }) }, returns = tp.Numpy,\n"
        "}(function(x) return flow.nn.relu(x) end) }, { __mode = 'v' })\n",
        "late.lua");
    moonflow::Job job = session->job("late");
    session.reset();
    CHECK_THROWS(job({Floats{1, 2, 3}}));
  }
  run(L, "collectgarbage() collectgarbage()");
  lua_getglobal(L, "seen");
  CHECK(lua_objlen(L, -1) == 0);
}

TEST_CASE("a callback that a script of the host's own state delivers does not close the session") {
  const auto state = new_state();
  lua_State* const L = state.get();
  mf_session_options options{};
  options.struct_size = sizeof options;
  options.lua_state = L;
  for (int i = 0; i < 2; ++i) {  // and what it has tried is no hindrance to the next session
    mf_session* session = nullptr;
    REQUIRE(mf_session_open(&options, &session) == nullptr);
    give_quit(L, session);
    run(L,
        "local flow = require 'moonflow'\n"
        "local tp = flow.typing\n"
        "local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 3 }) },\n"
        "  returns = tp.Callback[tp.Numpy] }(function(x) return flow.nn.relu(x) end)\n"
        "job(flow.np.ones({ 3 }))(function() code = quit() end)\n"
        "flow.sync()\n");
    lua_getglobal(L, "code");
    CHECK(lua_tointeger(L, -1) == MF_WRONG_STATE);
    lua_settop(L, 0);
    CHECK(mf_session_close(session) == MF_OK);
  }
}

TEST_CASE("a script that the host runs in the session's own state does not close the session") {
  mf_session* session = nullptr;
  REQUIRE(mf_session_open(nullptr, &session) == nullptr);
  void* state = nullptr;
  REQUIRE(mf_session_lua_state(session, &state) == nullptr);
  lua_State* const L = static_cast<lua_State*>(state);
  give_quit(L, session);
  for (const char* script : {"code = quit()", "coroutine.wrap(function() code = quit() end)()"}) {
    run(L, script);  // whose state would be gone when it goes on
    lua_getglobal(L, "code");
    CHECK(lua_tointeger(L, -1) == MF_WRONG_STATE);
    lua_settop(L, 0);
  }
  CHECK(mf_session_close(session) == MF_OK);
}

TEST_CASE("a script whose function of the host loads another file keeps the jobs of both") {
  moonflow::Session session;
  auto* const L = static_cast<lua_State*>(session.lua_state());
  lua_pushlightuserdata(L, &session);
  const auto include = [](lua_State* L) {
    const std::string text = lua_tostring(L, 1);
    static_cast<moonflow::Session*>(lua_touserdata(L, lua_upvalueindex(1)))->load_text(text, "inner.lua");
    return 0;
  };
  lua_pushcclosure(L, include, 1);
  lua_setglobal(L, "include");
  session.load_text(
      "local flow = require 'moonflow'\n"
      "function define(name)\n"
      "  flow.global_function { name = name, inputs = { x = flow.typing.Numpy.Placeholder({ 1 }) },\n"
      "    returns = flow.typing.Numpy } (function(x) return x + 1 end)\n"
      "end\n"
      "define('before') include \"define('inner')\" define('after')\n",
      "outer.lua");
  session.load_text("collectgarbage()", "collect.lua");
  for (const char* name : {"before", "inner", "after"}) CHECK(session.job(name)({std::vector<float>{1}})[0][0] == 2);
}

TEST_CASE("the library is required, and jobs are called, from inside a coroutine") {
  const auto state = new_state();
  lua_State* const L = state.get();
  moonflow::Session session(options(L));
  run(L,
      "local sum = coroutine.wrap(function()\n"
      "  local flow = require 'moonflow'\n"
      "  local tp = flow.typing\n"
      "  local job = flow.global_function { name = 'inside', inputs = { x = tp.Numpy.Placeholder({ 3 }) },\n"
      "    returns = tp.Numpy }(function(x) return flow.nn.relu(x) end)\n"
      "  coroutine.yield(job(flow.np.ones({ 3 })):sum())\n"
      "end)\n"
      "assert(sum() == 3)\n"
      "collectgarbage()\n");
  // The session may also be opened by a function that runs inside a coroutine of the host.
  const auto other = new_state();
  lua_State* const thread = lua_newthread(other.get());
  moonflow::Session second(options(thread));
  second.load_file(MOONFLOW_TEST_JOBS);
  lua_settop(other.get(), 0);  // the coroutine is garbage now
  lua_gc(other.get(), LUA_GCCOLLECT, 0);
  CHECK(second.job("scale")({Floats{1, 1, 1}})[0] == Floats{2, 2, 2});
}

TEST_CASE("a host closes its session and opens another one in the same state") {
  const auto state = new_state();
  for (int i = 0; i < 3; ++i) {
    moonflow::Session session(options(state.get()));
    session.load_file(MOONFLOW_TEST_JOBS);
    CHECK(session.job("scale")({Floats{1, 1, 1}})[0] == Floats{2, 2, 2});
  }
  // The jobs before are gone, so it may have another number of threads.
  moonflow::Options more = options(state.get());
  more.threads = 2;
  moonflow::Session session(more);
  CHECK_THROWS_WITH(session.job("scale"), Catch::Contains("there is no job 'scale'"));
}
