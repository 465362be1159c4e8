// A session that goes from thread to thread, as games do that load beside a menu, and robots that set up in main().
#include <lua.hpp>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "abi_host.h"

using namespace moonflow_test;

namespace {

const std::vector<float> kX = {1, 2, 3};

// The text of a status that must have that code.
std::string said(mf_status* status, mf_code code) {
  CHECK(mf_status_code(status) == code);
  const std::string text = mf_status_message(status);
  mf_status_free(status);
  return text;
}

// For threads side by side, since Catch's macros are one thread's at a time.
mf_code code_of(mf_status* status) {
  const mf_code code = mf_status_code(status);
  mf_status_free(status);
  return code;
}
void must(mf_status* status) {
  if (status) throw std::runtime_error(mf_status_message(status));
}

// Waits in the way of a game, which asks in each frame.
void take_over_when_free(mf_session* session) {
  while (code_of(mf_session_take_over(session)) != MF_OK) std::this_thread::yield();
}

void count(void* user, const mf_status* error, const mf_array*, int32_t) {
  *static_cast<int*>(user) += error == nullptr;
}

// Gives the state a function `hand_over()`, which returns the code and the text of the attempt.
void give_hand_over(mf_session* session) {
  void* state = nullptr;
  Host::ok(mf_session_lua_state(session, &state));
  lua_State* const L = static_cast<lua_State*>(state);
  lua_pushlightuserdata(L, session);
  lua_pushcclosure(
      L,
      [](lua_State* inside) {
        mf_status* status = mf_session_hand_over(static_cast<mf_session*>(lua_touserdata(inside, lua_upvalueindex(1))));
        lua_pushinteger(inside, mf_status_code(status));
        lua_pushstring(inside, mf_status_message(status));
        mf_status_free(status);
        return 2;
      },
      1);
  lua_setglobal(L, "hand_over");
}

constexpr const char* kRefused =
    "local code, text = hand_over()\n"
    "assert(code == 11 and text:find('is under way on this thread', 1, true), text)";
static_assert(MF_WRONG_STATE == 11);

}  // namespace

TEST_CASE("a session that a thread has loaded goes on on another one, with its jobs and what is in flight") {
  // Nothing but the session brings what the loading thread has done to this one.
  std::atomic<mf_session*> opened{nullptr};
  int results = 0;
  mf_job* train = nullptr;
  mf_prepared* prepared = nullptr;
  std::thread loading([&] {
    mf_session* session = nullptr;
    must(mf_session_open(nullptr, &session));
    opened.store(session, std::memory_order_relaxed);
    must(mf_session_load_text(session, kNet, std::strlen(kNet), "net.lua"));
    mf_job* predict = nullptr;
    must(mf_job_find(session, "predict", &predict));
    must(mf_job_prepare(predict, &prepared));
    mf_job_close(predict);
    must(mf_job_find(session, "train", &train));
    const mf_array x = mf_floats(kX.data(), kX.size());
    for (int i = 0; i < 3; ++i) must(mf_job_call_async(train, &x, 1, count, &results));
    must(mf_session_hand_over(session));
  });
  mf_session* session = nullptr;
  while ((session = opened.load(std::memory_order_relaxed)) == nullptr) std::this_thread::yield();
  take_over_when_free(session);

  must(mf_session_sync(session));
  CHECK(results == 3);
  must(mf_prepared_publish(prepared));
  float y[2] = {};
  const mf_array x = mf_floats(kX.data(), kX.size());
  mf_array loss = mf_floats(y, 1);
  must(mf_job_call(train, &x, 1, &loss, 1));
  CHECK(mf_session_interrupt(session) == MF_OK);
  CHECK(taken(mf_job_call(train, &x, 1, &loss, 1)) == MF_INTERRUPTED);
  must(mf_job_call(train, &x, 1, &loss, 1));
  CHECK(mf_prepared_run(prepared) == MF_OK);
  CHECK(mf_prepared_generation(prepared) > 0);
  loading.join();
  CHECK(mf_session_close(session) == MF_OK);
  CHECK(mf_job_close(train) == MF_OK);
  CHECK(mf_prepared_close(prepared) == MF_OK);
}

TEST_CASE("two threads train by turns what one thread would have trained") {
  constexpr int kTurns = 40;
  Net alone, shared;
  std::vector<float> wanted, got;
  for (int i = 0; i < 2 * kTurns; ++i) wanted.push_back(alone.train(kX)[0]);
  const auto turns = [&](int remainder) {
    for (int i = 0; i < kTurns; ++i) {
      for (;;) {
        take_over_when_free(shared.session);
        if (static_cast<int>(got.size()) % 2 == remainder) break;
        must(mf_session_hand_over(shared.session));
      }
      got.push_back(shared.train(kX)[0]);
      must(mf_session_hand_over(shared.session));
    }
  };
  must(mf_session_hand_over(shared.session));
  std::thread first(turns, 0), second(turns, 1);
  first.join();
  second.join();
  must(mf_session_take_over(shared.session));
  CHECK(got == wanted);
}

TEST_CASE("only who has a session hands it over, and only who has none takes over one that is free") {
  Net host;
  CHECK_THAT(said(mf_session_take_over(host.session), MF_WRONG_STATE), Catch::Contains("belongs to this thread"));
  std::thread([&] {
    const auto another = Catch::Contains("belongs to another thread, which has not handed it over");
    CHECK_THAT(said(mf_session_take_over(host.session), MF_WRONG_THREAD), another);
    CHECK_THAT(said(mf_session_hand_over(host.session), MF_WRONG_THREAD), another);
  }).join();
  host.predict(kX);  // neither has done any harm

  Host::ok(mf_session_hand_over(host.session));
  CHECK_THAT(said(mf_session_hand_over(host.session), MF_WRONG_THREAD), Catch::Contains("has been handed over"));
  CHECK_THAT(said(mf_session_sync(host.session), MF_WRONG_THREAD), Catch::Contains("has been handed over"));
  Host::ok(mf_session_take_over(host.session));
  host.predict(kX);
}

TEST_CASE("of several threads that would take a session over one does") {
  constexpr int kThreads = 3;
  Net host;
  for (int round = 0; round < 50; ++round) {
    Host::ok(mf_session_hand_over(host.session));
    std::atomic<int> ready{0}, tried{0}, owners{0};
    const auto meet = [](std::atomic<int>& count) {
      ++count;
      while (count < kThreads) std::this_thread::yield();
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        meet(ready);
        const bool mine = code_of(mf_session_take_over(host.session)) == MF_OK;
        owners += mine;
        meet(tried);
        if (mine) must(mf_session_hand_over(host.session));
      });
    }
    for (std::thread& thread : threads) thread.join();
    REQUIRE(owners == 1);
    Host::ok(mf_session_take_over(host.session));
  }
}

TEST_CASE("a session is not handed over from inside one of its calls") {
  Net host;
  give_hand_over(host.session);
  host.load(kRefused);  // a script

  struct Seen {
    mf_session* session;
    std::string text;
  } seen{host.session, {}};
  mf_job* train = host.find("train");
  const mf_array x = mf_floats(kX.data(), kX.size());
  const mf_result_function on_result = [](void* user, const mf_status*, const mf_array*, int32_t) {
    Seen& seen = *static_cast<Seen*>(user);
    seen.text = said(mf_session_hand_over(seen.session), MF_WRONG_STATE);
  };
  Host::ok(mf_job_call_async(train, &x, 1, on_result, &seen));
  Host::ok(mf_session_sync(host.session));
  CHECK_THAT(seen.text, Catch::Contains("hand the session over when that has returned"));

  // What the host runs in the state itself: a script, and a handler that it delivers.
  void* state = nullptr;
  Host::ok(mf_session_lua_state(host.session, &state));
  lua_State* const L = static_cast<lua_State*>(state);
  const std::string in_coroutine = "coroutine.wrap(function() " + std::string(kRefused) + " end)()";
  const std::string in_handler =
      "local flow = require 'moonflow'\n"
      "local job = flow.global_function { inputs = { x = flow.typing.Numpy.Placeholder({ 1 }) },\n"
      "  returns = flow.typing.Callback[flow.typing.Numpy] }(function(x) return x end)\n"
      "job(flow.np.ones({ 1 }))(function() " +
      std::string(kRefused) + " end) flow.sync()";
  for (const std::string& script : {std::string(kRefused), in_coroutine, in_handler}) {
    const bool failed = luaL_dostring(L, script.c_str());
    INFO((failed ? lua_tostring(L, -1) : ""));
    CHECK(!failed);
    lua_settop(L, 0);
  }
  Host::ok(mf_session_hand_over(host.session));
  Host::ok(mf_session_take_over(host.session));
  CHECK(mf_job_close(train) == MF_OK);
}

TEST_CASE("a session that nobody has taken over is closed by any thread") {
  mf_session* session = nullptr;
  Host::ok(mf_session_open(nullptr, &session));
  Host::ok(mf_session_load_text(session, kNet, std::strlen(kNet), "net.lua"));
  Host::ok(mf_session_hand_over(session));
  std::thread([&] { CHECK(mf_session_close(session) == MF_OK); }).join();
  CHECK(taken(mf_session_take_over(session)) == MF_INVALID_HANDLE);
}

#if !defined(__SANITIZE_ADDRESS__)  // nobody can close it any more, so it leaks
TEST_CASE("a session whose thread has ended is not that of a thread which gets its id") {
  mf_session* session = nullptr;
  std::thread::id owner, id;
  std::thread([&] {
    owner = std::this_thread::get_id();
    must(mf_session_open(nullptr, &session));
  }).join();
  mf_code closed = MF_OK;
  for (int i = 0; i < 100 && id != owner; ++i)
    std::thread([&] {
      id = std::this_thread::get_id();
      closed = mf_session_close(session);
    }).join();
  CHECK(id == owner);
  CHECK(closed == MF_WRONG_THREAD);
}
#endif

TEST_CASE("a thread that has handed a session over still closes what it made there") {
  Net host;
  mf_job* predict = host.find("predict");
  std::vector<mf_prepared*> prepared(20);
  for (mf_prepared*& each : prepared) Host::ok(mf_job_prepare(predict, &each));
  Host::ok(mf_session_hand_over(host.session));
  std::thread next([&] {  // makes and drops small arrays meanwhile
    must(mf_session_take_over(host.session));
    for (int i = 0; i < 200; ++i) host.predict(kX);
    must(mf_session_hand_over(host.session));
  });
  int closed = 0;
  for (mf_prepared* each : prepared) closed += mf_prepared_run(each) == MF_OK && mf_prepared_close(each) == MF_OK;
  next.join();
  CHECK(closed == 20);
  CHECK(mf_job_close(predict) == MF_OK);
  Host::ok(mf_session_take_over(host.session));
  host.predict(kX);
}

TEST_CASE("a session that computes on a GPU goes on there for its next thread") {
  setenv("MOONFLOW_CUDA_MODULE", MOONFLOW_TEST_CARD, 1);
  std::string net = kNet;
  const std::string layer = "flow.layers.dense(x, 2, { name = \"out\" })";
  net.replace(net.find(layer), layer.size(), "flow.scope.placement('gpu', '0:0', function() return " + layer + " end)");
  net = "require('moonflow').config.strict_placement(true) " + net;
  Net on_cpu;
  const std::vector<float> losses = {on_cpu.train(kX)[0], on_cpu.train(kX)[0], on_cpu.train(kX)[0]};
  Host host;
  Host::ok(mf_session_load_text(host.session, net.data(), net.size(), "net.lua"));
  CHECK(host.train(kX)[0] == Approx(losses[0]));
  Host::ok(mf_session_hand_over(host.session));
  std::thread([&] {
    Host::ok(mf_session_take_over(host.session));
    CHECK(host.train(kX)[0] == Approx(losses[1]));
    Host::ok(mf_session_hand_over(host.session));
  }).join();
  Host::ok(mf_session_take_over(host.session));
  CHECK(host.train(kX)[0] == Approx(losses[2]));
  unsetenv("MOONFLOW_CUDA_MODULE");
}
