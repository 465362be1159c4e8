// Calls and runs with a time: waits that end, and runs that are stopped.
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "abi_host.h"

using namespace moonflow_test;

namespace {

constexpr size_t kSize = 256 * 256;

// A job of some tens of milliseconds, and one that learns as slowly and counts its steps.
const char* const kSlow = R"(
local flow = require "moonflow"
local tp = flow.typing
local function slow(x)
  for _ = 1, 20 do x = flow.matmul(x, x) end
  return x
end
flow.global_function { name = "slow", inputs = { x = tp.Numpy.Placeholder({ 256, 256 }) },
                       returns = tp.Callback[tp.Numpy] } (function(x) return flow.math.reduce_sum(slow(x)) end)
flow.global_function { name = "learn", type = "train", inputs = { x = tp.Numpy.Placeholder({ 256, 256 }) },
                       returns = tp.Callback[tp.Numpy] } (function(x)
  local w = flow.get_variable("w", { shape = { 1 }, initializer = flow.ones_initializer() })
  local loss = flow.math.reduce_sum(slow(x)) * w
  flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler({}, { 0.1 }), { momentum = 0 }):minimize(loss)
  return loss
end)
flow.global_function { name = "pick", inputs = { row = tp.Numpy.Placeholder({ 1 }, { dtype = flow.int32 }) },
                       returns = tp.Numpy } (function(row)
  return flow.gather(flow.constant(1, flow.float, { 3 }), row, { name = "picked" })
end)
)";

struct Slow : Net {
  // Of zeros kernels take care quickly; the product of this matrix with itself is itself.
  const std::vector<float> x = std::vector<float>(kSize, 1.0f / 256);
  const mf_array input = mf_floats(x.data(), x.size());
  mf_job* slow;

  Slow() {
    load(kSlow, "slow.lua");
    slow = find("slow");
  }
  ~Slow() { CHECK(mf_job_close(slow) == MF_OK); }

  // Keeps the codes of the runs that have ended.
  static void keep(void* user, const mf_status* error, const mf_array*, int32_t) {
    static_cast<std::vector<mf_code>*>(user)->push_back(mf_status_code(error));
  }
  mf_run launch(mf_job* job, std::vector<mf_code>& codes) {
    mf_run run = 0;
    ok(mf_job_launch(job, &input, 1, keep, &codes, &run));
    CHECK(run > 0);
    return run;
  }
  mf_code call_for(mf_job* job, double max_ms, float* y) {
    mf_array output = mf_floats(y, 1);
    return taken(mf_job_call_for(job, &input, 1, &output, 1, max_ms));
  }
};

}  // namespace

TEST_CASE("a call with a time gives what a call gives, or says that the time is over") {
  Slow host;
  mf_job* predict = host.find("predict");
  const float x[] = {1, 2, 3};
  float y[] = {0, 0};
  const mf_array input = mf_floats(x, 3);
  mf_array output = mf_floats(y, 2);
  const std::vector<float> wanted = host.predict({1, 2, 3});
  for (const double max_ms : {60e3, -1.0, 1e300}) {
    y[0] = 0;
    host.ok(mf_job_call_for(predict, &input, 1, &output, 1, max_ms));
    CHECK(y[0] == Approx(wanted[0]));
  }

  float sum = 7;
  const auto begin = std::chrono::steady_clock::now();
  const mf_code code = host.call_for(host.slow, 0.5, &sum);  // unless something else has held this thread up
  const bool in_time = std::chrono::steady_clock::now() - begin < std::chrono::microseconds(500);
  CHECK((code == MF_OK || (code == MF_TIMED_OUT && sum == 7 && !in_time)));
  CHECK(host.call_for(host.slow, -1, &sum) == MF_OK);
  CHECK(sum == 256);
  int32_t in_flight = -1;
  host.ok(mf_session_in_flight(host.session, &in_flight));
  CHECK(in_flight == 0);
  CHECK(mf_job_close(predict) == MF_OK);
}

TEST_CASE("a call whose time is over leaves the runs before it alone") {
  Slow host;
  mf_job* predict = host.find("predict");
  host.predict({1, 2, 3});  // a first call delivers what has come while it initialises the variables
  std::vector<mf_code> codes;
  for (int i = 0; i < 3; ++i) host.launch(host.slow, codes);
  const float x[] = {1, 2, 3};
  float y[2] = {7, 7}, sum = 7;
  const mf_array input = mf_floats(x, 3);
  mf_array output = mf_floats(y, 2);
  CHECK(taken(mf_job_call_for(predict, &input, 1, &output, 1, 0)) == MF_TIMED_OUT);
  CHECK(codes.size() <= 1);
  CHECK(host.call_for(host.slow, 0, &sum) == MF_TIMED_OUT);
  CHECK((y[0] == 7 && sum == 7));
  CHECK(host.call_for(host.slow, -1, &sum) == MF_OK);
  CHECK(codes == std::vector<mf_code>(3, MF_OK));
  host.ok(mf_session_sync(host.session));
  CHECK(codes.size() == 3);
  CHECK(mf_job_close(predict) == MF_OK);
}

TEST_CASE("a call with a time fails as its run does, and is refused inside a result function") {
  Slow host;
  mf_job* pick = host.find("pick");
  int32_t row = 7;
  float y = 0;
  const mf_array input = mf_int32s(&row, 1);
  mf_array output = mf_floats(&y, 1);
  mf_status* status = mf_job_call_for(pick, &input, 1, &output, 1, 60e3);
  CHECK_THAT(mf_status_message(status), Catch::Contains("gather 'picked': ") && Catch::Contains("7"));
  CHECK(std::string(mf_status_job(status)) == "pick");
  CHECK(taken(status) == MF_OUT_OF_RANGE);
  CHECK(taken(mf_job_call_for(pick, &input, 1, nullptr, 1, 60e3)) == MF_INVALID_ARGUMENT);
  row = 1;
  host.ok(mf_job_call_for(pick, &input, 1, &output, 1, 60e3));
  CHECK(y == 1);

  struct Inside {
    Slow& host;
    mf_run next = 0;
    mf_code call = -1, wait = -1;
  } inside{host};
  std::vector<mf_code> codes;
  mf_run run = 0;
  host.ok(mf_job_launch(
      host.slow, &host.input, 1,
      [](void* user, const mf_status*, const mf_array*, int32_t) {
        Inside& inside = *static_cast<Inside*>(user);
        float sum = 0;
        inside.call = inside.host.call_for(inside.host.slow, -1, &sum);
        inside.wait = taken(mf_run_wait(inside.host.session, inside.next, -1, nullptr));
      },
      &inside, &run));
  inside.next = host.launch(host.slow, codes);
  host.ok(mf_session_sync(host.session));
  CHECK(inside.call == MF_WRONG_STATE);
  CHECK(inside.wait == MF_WRONG_STATE);
  CHECK(codes == std::vector<mf_code>{MF_OK});
  CHECK(mf_job_close(pick) == MF_OK);
}

TEST_CASE("an interrupt ends a call with a time") {
  Slow host;
  float sum = 7;
  CHECK(mf_session_interrupt(host.session) == MF_OK);
  CHECK(host.call_for(host.slow, -1, &sum) == MF_INTERRUPTED);
  CHECK(host.call_for(host.slow, -1, &sum) == MF_OK);
}

TEST_CASE("a run is waited for as long as there is time, and goes on") {
  Slow host;
  std::vector<mf_code> codes;
  const mf_run first = host.launch(host.slow, codes), second = host.launch(host.slow, codes);
  CHECK(second != first);
  int32_t done = 1;
  host.ok(mf_run_wait(host.session, second, 0, &done));
  CHECK(done == 0);
  host.ok(mf_run_wait(host.session, first, -1, &done));
  CHECK(done == 1);
  CHECK(codes.size() == 1);
  while (host.ok(mf_run_wait(host.session, second, 0.5, &done)), !done) CHECK(codes.size() == 1);
  CHECK(codes == std::vector<mf_code>(2, MF_OK));
  host.ok(mf_run_wait(host.session, first, 0, &done));
  CHECK(done == 1);
  for (const mf_run none : {mf_run{0}, second + 1}) {
    CHECK(taken(mf_run_wait(host.session, none, 0, &done)) == MF_NOT_FOUND);
    CHECK(done == 0);
    CHECK(taken(mf_run_cancel(host.session, none)) == MF_NOT_FOUND);
  }
}

TEST_CASE("a run that is cancelled tells its result function, in its turn, and the others go on") {
  Slow host;
  std::vector<mf_code> codes;
  for (int tries = 0; tries < 100 && (codes.empty() || codes[1] == MF_OK); ++tries) {  // this thread may be held up
    codes.clear();
    std::vector<mf_run> runs;
    for (int i = 0; i < 3; ++i) runs.push_back(host.launch(host.slow, codes));
    host.ok(mf_run_cancel(host.session, runs[1]));
    host.ok(mf_run_cancel(host.session, runs[0]));
    CHECK(codes.empty());
    host.ok(mf_session_sync(host.session));
    REQUIRE(codes.size() == 3);
    CHECK(codes[2] == MF_OK);
    host.ok(mf_run_cancel(host.session, runs[2]));
  }
  CHECK(codes[1] == MF_INTERRUPTED);
  CHECK(host.predict({0, 0, 0}).size() == 2);
}

TEST_CASE("a step of training that is cancelled, or whose time is over, has happened whole or not at all") {
  Slow host;
  mf_job* learn = host.find("learn");
  std::vector<mf_code> codes;
  for (int i = 0; i < 12; ++i) {
    const mf_run run = host.launch(learn, codes);
    int32_t done = 0;
    host.ok(mf_run_wait(host.session, run, 4.0 * i, &done));
    host.ok(mf_run_cancel(host.session, run));
    host.ok(mf_session_sync(host.session));
  }
  REQUIRE(codes.size() == 12);
  int64_t steps = -1;
  mf_array count = mf_array_of(MF_INT64, &steps, 1);
  host.ok(mf_variable_read(host.session, "System-Train-TrainStep-learn", &count));
  CHECK(steps == std::count(codes.begin(), codes.end(), MF_OK));
  CHECK(mf_job_close(learn) == MF_OK);
}

#if !defined(__SANITIZE_ADDRESS__)  // which does not see that the frames of a cancelled thread are gone
TEST_CASE("a thread that is cancelled while it waits ends when the call is over") {
  std::atomic<bool> waits{false};
  std::vector<mf_code> codes;
  std::thread thread([&] {
    int before = 0;
    {
      Slow host;
      pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);  // but for the call
      host.launch(host.slow, codes);
      host.launch(host.slow, codes);
      waits = true;
      pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
      mf_status* status = mf_session_sync(host.session);
      pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
      host.ok(status);
    }
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
    pthread_testcancel();
    codes.clear();
  });
  while (!waits) std::this_thread::yield();
  pthread_cancel(thread.native_handle());
  thread.join();
  CHECK(codes == std::vector<mf_code>(2, MF_OK));
}
#endif

TEST_CASE("a prepared call is stopped before it changes its state, and without a run nothing happens") {
  Host host;
  host.load(
      "local flow, tp = require 'moonflow', require('moonflow').typing\n"
      "flow.global_function { name = 'count', inputs = { x = tp.Numpy.Placeholder({ 128, 128 }) },\n"
      "  returns = tp.Numpy } (function(x)\n"
      "  local sum = flow.get_variable('sum', { shape = { 1 }, initializer = flow.zeros_initializer() })\n"
      "  for _ = 1, 20 do x = flow.matmul(x, x) end\n"
      "  local one = flow.reshape(flow.math.reduce_sum(x), { 1 }) * 0 + 1\n"
      "  flow.assign(sum, sum + one)\n"
      "  return sum + one\n"
      "end)");
  mf_job* job = host.find("count");
  mf_prepared* prepared = nullptr;
  host.ok(mf_job_prepare(job, &prepared));
  mf_array output{};
  host.ok(mf_prepared_output(prepared, 0, &output));
  CHECK(mf_prepared_interrupt(prepared) == MF_OK);
  CHECK(mf_prepared_run(prepared) == MF_OK);
  float whole = 1;
  std::atomic<bool> is_stopped{false};
  std::thread control([&] {
    while (!is_stopped) {
      const mf_code code = mf_prepared_run(prepared);
      whole += code == MF_OK;
      is_stopped = code == MF_INTERRUPTED;
    }
  });
  while (!is_stopped) {
    mf_prepared_interrupt(prepared);
    std::this_thread::yield();
  }
  control.join();
  CHECK(taken(mf_prepared_failure(prepared)) == MF_INTERRUPTED);
  CHECK(mf_prepared_run(prepared) == MF_OK);
  CHECK(*static_cast<const float*>(output.data) == whole + 1);
  CHECK(mf_prepared_close(prepared) == MF_OK);
  CHECK(mf_prepared_interrupt(prepared) == MF_INVALID_HANDLE);
  CHECK(mf_job_close(job) == MF_OK);
}
