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
