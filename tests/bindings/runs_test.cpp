// Runs that a host launches, and the functions that hear of them: straight from the queue, or through Lua.
#include <lua.hpp>

#include <chrono>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "abi_host.h"

using namespace moonflow_test;

namespace {

const float kA[] = {1, 2};
const int32_t kB[] = {1, 2};

mf_status* launch_pair(mf_job* job, mf_result_function function, void* user) {
  const mf_array inputs[] = {mf_floats(kA, 2), mf_int32s(kB, 2)};
  return mf_job_call_async(job, inputs, 2, function, user);
}

// Delivers what is in flight: in polls, where results go straight from the queue, or in a wait, which is Lua's.
void deliver(const Host& host, bool by_polls) {
  if (!by_polls) return Host::ok(mf_session_sync(host.session));
  int32_t in_flight = 1;
  while (in_flight > 0) {
    Host::ok(mf_session_poll(host.session, 1, nullptr));
    Host::ok(mf_session_in_flight(host.session, &in_flight));
  }
}

}  // namespace

TEST_CASE("asynchronous results come to their function, in order, inside poll and sync only") {
  Net host;
  mf_job* job = host.find("pair");
  std::vector<float> got;
  const int32_t b[] = {5, 6};
  int busy = 0;
  for (int i = 0; i < 50; ++i) {
    const float input[] = {static_cast<float>(i), 0};
    const mf_array inputs[] = {mf_floats(input, 2), mf_int32s(b, 2)};
    for (;;) {
      mf_status* status = mf_job_call_async(
          job, inputs, 2,
          [](void* user, const mf_status* error, const mf_array* outputs, int32_t count) {
            REQUIRE(error == nullptr);
            REQUIRE(count == 2);
            static_cast<std::vector<float>*>(user)->push_back(static_cast<float*>(outputs[0].data)[0]);
          },
          &got);
      if (taken(status) == MF_OK) break;
      ++busy;
      host.ok(mf_session_poll(host.session, 5, nullptr));
    }
  }
  host.ok(mf_session_sync(host.session));
  CHECK(busy > 0);
  REQUIRE(got.size() == 50);
  for (int i = 0; i < 50; ++i) CHECK(got[i] == static_cast<float>(i * i));
}

TEST_CASE("a sync with a time leaves what it has no time for to the next one") {
  using Clock = std::chrono::steady_clock;
  Host host;
  host.load(
      "local flow, tp = require 'moonflow', require('moonflow').typing\n"
      "flow.global_function { name = 'slow', inputs = { x = tp.Numpy.Placeholder({ 256, 256 }) },\n"
      "  returns = tp.Callback[tp.Numpy] } (function(x)\n"
      "  for _ = 1, 20 do x = flow.matmul(x, x) end\n"
      "  return flow.math.reduce_sum(x)\n"
      "end)");
  mf_job* job = host.find("slow");
  const std::vector<float> x(256 * 256);
  const mf_array input = mf_floats(x.data(), x.size());
  int results = 0;
  const auto launch = [&] {
    const mf_result_function on_result = [](void* user, const mf_status*, const mf_array*, int32_t) {
      ++*static_cast<int*>(user);
    };
    for (int i = 0; i < 3; ++i) host.ok(mf_job_call_async(job, &input, 1, on_result, &results));
  };
  launch();
  int32_t done = 1;
  host.ok(mf_session_sync_for(host.session, 0, &done));
  CHECK(done == 0);
  CHECK(results <= 1);
  host.ok(mf_session_sync_for(host.session, std::numeric_limits<double>::quiet_NaN(), &done));  // is no time
  CHECK(done == 0);
  while (!done) {
    const Clock::time_point begin = Clock::now();
    host.ok(mf_session_sync_for(host.session, 0.5, &done));
    CHECK((done || Clock::now() - begin >= std::chrono::microseconds(500)));
  }
  CHECK(results == 3);
  host.ok(mf_session_sync_for(host.session, 0, &done));
  CHECK(done == 1);
  launch();
  host.ok(mf_session_sync_for(host.session, -1, &done));
  CHECK(done == 1);
  CHECK(results == 6);
  launch();
  host.ok(mf_session_sync_for(host.session, 1e300, nullptr));
  CHECK(results == 9);
  CHECK(mf_job_close(job) == MF_OK);
}

TEST_CASE("inside a result function launching and calling works, and waiting and closing are refused") {
  const bool by_polls = GENERATE(true, false);
  Net host;
  struct Seen {
    Host& host;
    mf_job* job;
    mf_code poll = -1, sync = -1, close = -1, call = -1;
    std::string lua_refusal = {};
    std::vector<float> predicted = {};
    int results = 0;
  } seen{host, host.find("pair")};
  const mf_result_function on_result = [](void* user, const mf_status*, const mf_array*, int32_t) {
    Seen& seen = *static_cast<Seen*>(user);
    if (++seen.results > 1) return;
    seen.poll = taken(mf_session_poll(seen.host.session, 0, nullptr));
    seen.sync = taken(mf_session_sync(seen.host.session));
    seen.close = mf_session_close(seen.host.session);
    void* state = nullptr;
    seen.host.ok(mf_session_lua_state(seen.host.session, &state));
    auto* const L = static_cast<lua_State*>(state);
    REQUIRE(luaL_dostring(L, "return tostring(select(2, pcall(require('moonflow').poll)))") == 0);
    seen.lua_refusal = lua_tostring(L, -1);
    lua_settop(L, 0);
    seen.call = taken(launch_pair(
        seen.job, [](void* again, const mf_status*, const mf_array*, int32_t) { ++static_cast<Seen*>(again)->results; },
        user));
    seen.predicted = seen.host.predict({0, 0, 0});  // waits for its own run only
    CHECK(seen.results == 1);
  };
  host.ok(launch_pair(seen.job, on_result, &seen));
  host.ok(launch_pair(seen.job, on_result, &seen));
  deliver(host, by_polls);
  CHECK(seen.results == 3);
  CHECK(seen.poll == MF_WRONG_STATE);
  CHECK(seen.sync == MF_WRONG_STATE);
  CHECK(seen.close == MF_WRONG_STATE);
  CHECK(seen.call == MF_OK);
  CHECK_THAT(seen.lua_refusal, Catch::Contains("inside a callback"));
  CHECK(seen.predicted.size() == 2);
  host.ok(mf_session_poll(host.session, 0, nullptr));  // and outside of it all is as before
}

TEST_CASE("a run of the host that Lua meets first, and one that fails, come to their function all the same") {
  const bool by_polls = GENERATE(true, false);
  Net host;
  const char* const kPick = R"(
    local flow = require "moonflow"
    local tp = flow.typing
    flow.global_function { name = "pick", inputs = { x = tp.Numpy.Placeholder({ 1, 2 }),
                           label = tp.Numpy.Placeholder({ 1 }, { dtype = flow.int32 }) }, returns = tp.Numpy
    } (function(x, label) return flow.nn.sparse_softmax_cross_entropy_with_logits(label, x) end)
  )";
  host.ok(mf_session_load_text(host.session, kPick, std::strlen(kPick), "pick.lua"));
  struct Seen {
    int results = 0;
    std::string failure = {}, where = {};
    mf_code code = MF_OK;
  } seen;
  const mf_result_function on_result = [](void* user, const mf_status* error, const mf_array* outputs, int32_t count) {
    Seen& seen = *static_cast<Seen*>(user);
    ++seen.results;
    if (error == nullptr) {
      REQUIRE(count == 1);
      CHECK(outputs[0].count == 1);
      return;
    }
    CHECK(outputs == nullptr);
    CHECK(count == 0);
    seen.code = mf_status_code(error);
    seen.failure = mf_status_message(error);
    seen.where = mf_status_where(error);
  };
  mf_job* const job = host.find("pick");
  for (const int32_t label : {1, 7}) {
    const mf_array inputs[] = {mf_floats(kA, 2), mf_int32s(&label, 1)};
    host.ok(mf_job_call_async(job, inputs, 2, on_result, &seen));
  }
  deliver(host, by_polls);
  CHECK(seen.results == 2);
  CHECK(seen.code == MF_OUT_OF_RANGE);
  CHECK_THAT(seen.where, Catch::StartsWith("pick.lua:6"));
  CHECK_THAT(seen.failure, Catch::StartsWith("pick.lua:6: pick: sparse_softmax") && Catch::Contains("7"));
}

TEST_CASE("results that need no Lua and deliveries that only Lua can make come in one order") {
  Net host;
  const char* const kWatched = R"(
    local flow = require "moonflow"
    local tp = flow.typing
    seen = {}
    flow.global_function { name = "watched", inputs = { x = tp.Numpy.Placeholder({ 2 }) }, returns = tp.Numpy
    } (function(x)
      local y = flow.math.square(x)
      flow.watch(y, function(value) seen[#seen + 1] = "watch " .. value[0] end)
      return flow.math.add(y, 1)
    end)
    plain = flow.global_function { name = "plain", inputs = { x = tp.Numpy.Placeholder({ 2 }) },
                                   returns = tp.Callback[tp.Numpy] } (function(x) return flow.math.square(x) end)
    function note(text) seen[#seen + 1] = text end
    function launch() plain(flow.np.ones({ 2 }))(function(value) note("lua " .. value[0]) end) end
  )";
  host.ok(mf_session_load_text(host.session, kWatched, std::strlen(kWatched), "watched.lua"));
  void* state = nullptr;
  host.ok(mf_session_lua_state(host.session, &state));
  auto* const L = static_cast<lua_State*>(state);
  const mf_result_function note = [](void* user, const mf_status* error, const mf_array* outputs, int32_t) {
    REQUIRE(error == nullptr);
    auto* const L = static_cast<lua_State*>(user);
    lua_getglobal(L, "note");
    lua_pushfstring(L, "host %f", static_cast<double>(static_cast<const float*>(outputs[0].data)[0]));
    lua_call(L, 1, 0);
  };
  const float two[] = {2, 2};
  const mf_array input = mf_floats(two, 2);
  for (const char* job : {"plain", "watched"}) host.ok(mf_job_call_async(host.find(job), &input, 1, note, L));
  REQUIRE(luaL_dostring(L, "launch()") == 0);
  host.ok(mf_job_call_async(host.find("plain"), &input, 1, note, L));
  deliver(host, true);
  REQUIRE(luaL_dostring(L, "return table.concat(seen, ', ')") == 0);
  CHECK(std::string(lua_tostring(L, -1)) == "host 4, watch 4, host 5, lua 1, host 4");
  lua_settop(L, 0);
}

TEST_CASE("a poll keeps its budget, and counts what it delivers") {
  Net host;
  mf_job* const job = host.find("pair");
  int results = 0;
  const mf_result_function count = [](void* user, const mf_status*, const mf_array*, int32_t) {
    ++*static_cast<int*>(user);
  };
  for (int i = 0; i < 3; ++i) host.ok(launch_pair(job, count, &results));
  void* state = nullptr;
  host.ok(mf_session_lua_state(host.session, &state));
  auto* const L = static_cast<lua_State*>(state);
  REQUIRE(luaL_dostring(L, "require('moonflow.session').handle():wait_idle()") == 0);
  int32_t delivered = -1;
  host.ok(mf_session_poll(host.session, 0, &delivered));  // one, however small the budget
  CHECK(delivered == 1);
  CHECK(results == 1);
  host.ok(mf_session_poll(host.session, -1, &delivered));
  CHECK(delivered == 2);
  CHECK(results == 3);
  host.ok(mf_session_poll(host.session, -1, &delivered));
  CHECK(delivered == 0);
}

TEST_CASE("an interrupt and a sync before the close bring every result function its call") {
  Host host;
  host.load("require('moonflow').config.inflight(200)");
  host.load(kPair);
  mf_job* job = host.find("pair");
  constexpr size_t kRuns = 200;
  int heard[kRuns] = {};  // what each run's `user` owns
  for (int& mine : heard) {
    host.ok(launch_pair(
        job,
        [](void* user, const mf_status* error, const mf_array*, int32_t) {
          ++*static_cast<int*>(user);
          CHECK((error == nullptr || mf_status_code(error) == MF_INTERRUPTED));
        },
        &mine));
  }
  CHECK(mf_session_interrupt(host.session) == MF_OK);
  while (taken(mf_session_sync(host.session)) != MF_OK) {
  }
  for (const int calls : heard) CHECK(calls == 1);
}

TEST_CASE("what a session that its script shuts down has not delivered is never heard of") {
  Net host;
  int results = 0;
  const mf_result_function count = [](void* user, const mf_status*, const mf_array*, int32_t) {
    ++*static_cast<int*>(user);
  };
  host.ok(launch_pair(host.find("pair"), count, &results));
  const char* const kAgain = "require('moonflow').shutdown()";
  host.ok(mf_session_load_text(host.session, kAgain, std::strlen(kAgain), "again.lua"));
  host.load(kPair);
  mf_job* const job = host.find("pair");
  host.ok(launch_pair(job, count, &results));  // its number is that of the run before
  deliver(host, true);
  CHECK(results == 1);
}
