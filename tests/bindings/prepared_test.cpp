// Prepared calls as a control loop meets them: weights that are published, failures, and what they draw.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "abi_host.h"

using namespace moonflow_test;

TEST_CASE("a prepared call gives what the job gives, takes published weights, and outlives its session") {
  auto host = std::make_unique<Net>();
  mf_job* job = host->find("predict");
  mf_prepared* prepared = nullptr;
  host->ok(mf_job_prepare(job, &prepared));
  mf_array input{}, output{};
  host->ok(mf_prepared_input(prepared, 0, &input));
  host->ok(mf_prepared_output(prepared, 0, &output));
  CHECK(input.count == 3);
  CHECK(output.count == 2);
  const float x[] = {1, 2, 3};
  std::memcpy(input.data, x, sizeof x);
  const auto run = [&] {
    CHECK(mf_prepared_run(prepared) == MF_OK);
    const float* y = static_cast<const float*>(output.data);
    return std::vector<float>{y[0], y[1]};
  };
  CHECK(mf_prepared_warm_up(prepared) == MF_OK);
  const std::vector<float> before = host->predict({1, 2, 3});
  CHECK(run()[0] == Approx(before[0]));
  host->train({1, 2, 3});
  CHECK(run()[0] == Approx(before[0]));  // not yet published
  host->ok(mf_prepared_publish(prepared));
  const std::vector<float> after = host->predict({1, 2, 3});
  CHECK(run()[0] == Approx(after[0]));
  CHECK(after[0] != Approx(before[0]));
  host->train({1, 2, 3});
  host->ok(mf_session_load_text(host->session, "assert(require('moonflow').publish() == 1)", 42, "publish.lua"));
  CHECK(run()[0] == Approx(host->predict({1, 2, 3})[0]));
  CHECK(mf_prepared_generation(prepared) == 3);

  mf_prepared* none = nullptr;
  CHECK(taken(mf_job_prepare(host->find("train"), &none)) == MF_UNSUPPORTED);
  CHECK(none == nullptr);
  host.reset();
  run();
  CHECK(taken(mf_prepared_publish(prepared)) == MF_INVALID_HANDLE);
  CHECK(mf_prepared_close(prepared) == MF_OK);
  CHECK(mf_prepared_close(prepared) == MF_INVALID_HANDLE);
  CHECK(mf_job_close(job) == MF_OK);
}

TEST_CASE("what a prepared call has failed with is told whole, also beside the thread that runs it") {
  Host host;
  host.load(
      "local flow, tp = require 'moonflow', require('moonflow').typing\n"
      "flow.global_function { name = 'pick', inputs = { row = tp.Numpy.Placeholder({ 1 }, { dtype = flow.int32 }) },\n"
      "  returns = tp.Numpy } (function(row)\n"
      "  local rows = flow.get_variable('rows', { shape = { 4, 2 }, initializer = flow.ones_initializer() })\n"
      "  return flow.gather(rows, row, { name = 'picked' })\n"
      "end)");
  mf_job* job = host.find("pick");
  mf_prepared* prepared = nullptr;
  host.ok(mf_job_prepare(job, &prepared));
  mf_array input{};
  host.ok(mf_prepared_input(prepared, 0, &input));
  int32_t& row = *static_cast<int32_t*>(input.data);
  CHECK(mf_prepared_run(prepared) == MF_OK);
  CHECK(mf_prepared_failure(prepared) == nullptr);

  row = 7;
  CHECK(mf_prepared_run(prepared) == MF_OUT_OF_RANGE);
  row = 0;
  CHECK(mf_prepared_run(prepared) == MF_OK);
  for (int i = 0; i < 2; ++i) {  // it stays
    mf_status* failure = mf_prepared_failure(prepared);
    CHECK(std::string(mf_status_where(failure)) == "net.lua:5");
    CHECK(std::string(mf_status_job(failure)) == "pick");
    CHECK_THAT(mf_status_op(failure), Catch::Contains("'picked'"));
    CHECK_THAT(mf_status_message(failure),
               Catch::Contains("net.lua:5: pick: gather 'picked': ") && Catch::Contains("7"));
    CHECK(taken(failure) == MF_OUT_OF_RANGE);
  }

  const auto text_of = [&](int32_t wrong) {
    row = wrong;
    CHECK(mf_prepared_run(prepared) == MF_OUT_OF_RANGE);
    mf_status* const failure = mf_prepared_failure(prepared);
    const std::string text = mf_status_message(failure);
    mf_status_free(failure);
    return text;
  };
  const std::string short_text = text_of(9), long_text = text_of(2000000000);
  std::atomic<bool> done{false};
  std::thread control([&] {
    for (int i = 0; i < 2000; ++i) {
      row = i % 2 ? 9 : 2000000000;
      mf_prepared_run(prepared);
    }
    done = true;
  });
  const auto ask = [&] {
    bool whole = true;
    while (!done) {
      mf_status* const failure = mf_prepared_failure(prepared);
      const std::string text = mf_status_message(failure);
      whole = whole && (text == short_text || text == long_text);
      mf_status_free(failure);
    }
    return whole;
  };
  bool whole_there = false;
  std::thread another([&] { whole_there = ask(); });
  CHECK(ask());
  another.join();
  control.join();
  CHECK(whole_there);
  CHECK(mf_prepared_close(prepared) == MF_OK);
  CHECK(mf_job_close(job) == MF_OK);
}

TEST_CASE("a prepared call keeps what its job assigns until it is reset") {
  Host host;
  host.load(
      "local flow, tp = require 'moonflow', require('moonflow').typing\n"
      "flow.global_function { name = 'count', inputs = { x = tp.Numpy.Placeholder({ 1 }) }, returns = tp.Numpy } (\n"
      "  function(x)\n"
      "    local sum = flow.get_variable('sum', { shape = { 1 }, initializer = flow.zeros_initializer() })\n"
      "    flow.assign(sum, sum + x)\n"
      "    return sum + x\n"
      "  end)");
  mf_job* job = host.find("count");
  mf_prepared* prepared = nullptr;
  host.ok(mf_job_prepare(job, &prepared));
  mf_array input{}, output{};
  host.ok(mf_prepared_input(prepared, 0, &input));
  host.ok(mf_prepared_output(prepared, 0, &output));
  *static_cast<float*>(input.data) = 2;
  CHECK(mf_prepared_warm_up(prepared) == MF_OK);
  CHECK(*static_cast<const float*>(output.data) > 4);
  for (int round = 0; round < 2; ++round) {
    CHECK(mf_prepared_reset(prepared) == MF_OK);
    for (const float wanted : {2.0f, 4.0f, 6.0f}) {
      CHECK(mf_prepared_run(prepared) == MF_OK);
      CHECK(*static_cast<const float*>(output.data) == wanted);
    }
  }
  float value = 1;
  mf_array sum = mf_floats(&value, 1);
  host.ok(mf_variable_read(host.session, "sum", &sum));
  CHECK(value == 0);
  CHECK(mf_prepared_close(prepared) == MF_OK);
  CHECK(mf_prepared_reset(prepared) == MF_INVALID_HANDLE);
  CHECK(mf_job_close(job) == MF_OK);
}

TEST_CASE("a prepared call reads and writes memory of the host where that is bound") {
  Net host;
  host.load(
      "local flow, tp = require 'moonflow', require('moonflow').typing\n"
      "flow.global_function { name = 'act', inputs = { state = tp.Numpy.Placeholder({ 2 }) },\n"
      "  returns = tp.Dict { force = tp.Numpy, same = tp.Numpy, weight = tp.Numpy } } (function(state)\n"
      "  local w = flow.get_variable('w', { shape = { 2 }, initializer = flow.ones_initializer() })\n"
      "  return { force = state * w * 3, same = state, weight = w }\n"
      "end)",
      "act.lua");
  mf_job *job = host.find("act"), *predict = host.find("predict");
  mf_prepared *prepared = nullptr, *before = nullptr;
  host.ok(mf_job_prepare(job, &prepared));
  host.ok(mf_job_prepare(predict, &before));
  mf_array own{}, own_state{};
  host.ok(mf_prepared_output(prepared, 0, &own));
  host.ok(mf_prepared_input(prepared, 0, &own_state));
  const auto failure = [&] {
    mf_status* const status = mf_prepared_failure(prepared);
    const std::string text = mf_status_message(status);
    mf_status_free(status);
    return text;
  };

  float ring[3][7] = {}, state[2] = {1, 2};  // at odd places: no vector lies there by itself
  mf_array memory = mf_floats(state, 2);
  REQUIRE(mf_prepared_bind_input(prepared, 0, &memory) == MF_OK);
  for (float(&tick)[7] : ring) {
    const int64_t dims[] = {2};
    for (int32_t i = 0; i < 3; ++i) {
      memory = mf_floats(tick + 2 * i + 1, 2);
      memory.dims = dims;
      memory.rank = 1;
      REQUIRE(mf_prepared_bind_output(prepared, i, &memory) == MF_OK);
    }
    REQUIRE(mf_prepared_run(prepared) == MF_OK);
    ++state[0];
  }
  CHECK(std::vector<float>(ring[0], ring[0] + 7) == std::vector<float>{0, 3, 6, 1, 2, 1, 1});
  CHECK(std::vector<float>(ring[2], ring[2] + 7) == std::vector<float>{0, 9, 6, 3, 2, 1, 1});
  CHECK(static_cast<const float*>(own.data)[0] == 0);

  SECTION("what does not fit is refused, and the binding before stays") {
    const auto refuse = [&](mf_code code, const mf_array& wrong, const char* said) {
      CHECK(mf_prepared_bind_output(prepared, 0, &wrong) == code);
      CHECK_THAT(failure(), Catch::Contains(said));
    };
    double wide[2];
    refuse(MF_DTYPE_MISMATCH, mf_array_of(MF_FLOAT64, wide, 2), "act: output 'force' is float64, wanted float32 (2)");
    refuse(MF_SHAPE_MISMATCH, mf_floats(ring[0], 3), "act: output 'force' has 3 elements");
    refuse(MF_INVALID_ARGUMENT, mf_floats(nullptr, 2), "has no data");
    refuse(MF_INVALID_ARGUMENT, mf_array_of(MF_FLOAT32, reinterpret_cast<const char*>(ring) + 1, 2), "not aligned");
    refuse(MF_INVALID_ARGUMENT, mf_floats(state + 1, 2), "memory that input 0 is read from");
    refuse(MF_INVALID_ARGUMENT, mf_floats(ring[2] + 4, 2), "memory that output 1 is written to");
    memory = mf_floats(ring[2], 2);
    CHECK(mf_prepared_bind_input(prepared, 0, &memory) == MF_INVALID_ARGUMENT);
    CHECK_THAT(failure(), Catch::Contains("input 0 is bound to memory that output 0 is written to"));
    CHECK(mf_prepared_bind_output(prepared, 3, &memory) == MF_OUT_OF_RANGE);
    CHECK(mf_prepared_bind_input(prepared, -1, &memory) == MF_OUT_OF_RANGE);
    CHECK(mf_prepared_run(prepared) == MF_OK);
    CHECK(ring[2][1] == 12);
  }
  SECTION("its own buffers may be bound again") {
    static_cast<float*>(own_state.data)[0] = 5;
    CHECK(mf_prepared_bind_input(prepared, 0, nullptr) == MF_OK);
    CHECK(mf_prepared_bind_output(prepared, 0, nullptr) == MF_OK);
    CHECK(mf_prepared_run(prepared) == MF_OK);
    CHECK(static_cast<const float*>(own.data)[0] == 15);
    CHECK(ring[2][1] == 9);
    CHECK(ring[2][3] == 5);  // still bound
  }
  SECTION("it reads what another one writes") {
    host.ok(mf_prepared_output(before, 0, &memory));
    CHECK(mf_prepared_bind_input(prepared, 0, &memory) == MF_SHAPE_MISMATCH);
    CHECK_THAT(failure(), Catch::Contains("act: input 'state' is float32 (1, 2), wanted float32 (2)"));
    memory.dims = nullptr;
    CHECK(mf_prepared_bind_input(prepared, 0, &memory) == MF_OK);
    CHECK(mf_prepared_run(before) == MF_OK);
    CHECK(mf_prepared_run(prepared) == MF_OK);
    CHECK(ring[2][3] == static_cast<const float*>(memory.data)[0]);
  }
  for (mf_prepared* call : {prepared, before}) CHECK(mf_prepared_close(call) == MF_OK);
  for (mf_job* each : {job, predict}) CHECK(mf_job_close(each) == MF_OK);
}

TEST_CASE("prepared calls draw other numbers in each run, on their threads as on one") {
  const auto drawn = [](bool on_threads) {
    Host host;
    host.load(
        "local flow, tp = require 'moonflow', require('moonflow').typing\n"
        "flow.set_seed(4)\n"
        "flow.global_function { name = 'draw', inputs = { x = tp.Numpy.Placeholder({ 1 }) }, returns = tp.Numpy } (\n"
        "  function(x) return x + flow.random.uniform(0, 1, { 1 }, { dtype = flow.float }) end)");
    mf_job* job = host.find("draw");
    std::vector<std::vector<float>> lists(3);
    std::vector<mf_prepared*> calls(lists.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < lists.size(); ++i) {
      host.ok(mf_job_prepare(job, &calls[i]));
      const auto run = [call = calls[i], &list = lists[i]] {
        mf_array output{};
        mf_status_free(mf_prepared_output(call, 0, &output));
        for (int k = 0; k < 50; ++k)
          if (mf_prepared_run(call) == MF_OK) list.push_back(*static_cast<const float*>(output.data));
      };
      if (on_threads)
        threads.emplace_back(run);
      else
        run();
    }
    for (std::thread& thread : threads) thread.join();
    for (mf_prepared* call : calls) CHECK(mf_prepared_close(call) == MF_OK);
    CHECK(mf_job_close(job) == MF_OK);
    return lists;
  };
  const std::vector<std::vector<float>> lists = drawn(false);
  std::vector<float> all;
  for (const std::vector<float>& list : lists) {
    CHECK(list.size() == 50);
    all.insert(all.end(), list.begin(), list.end());
  }
  // Of 150 numbers in steps of 2^-24 none comes twice, but for once in 1500 seeds.
  std::sort(all.begin(), all.end());
  CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
  CHECK(drawn(true) == lists);
}
