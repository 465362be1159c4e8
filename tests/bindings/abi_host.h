// A host for tests: a session and what most tests do with it. A status that should be none fails the test with its
// text.
#pragma once

#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "bindings/moonflow.h"

namespace moonflow_test {

struct Host {
  mf_session* session = nullptr;

  Host() { ok(mf_session_open(nullptr, &session)); }
  explicit Host(const mf_session_options& options) { ok(mf_session_open(&options, &session)); }
  ~Host() { CHECK(mf_session_close(session) == MF_OK); }
  Host(const Host&) = delete;

  static void ok(mf_status* status) {
    const std::string message = status ? mf_status_message(status) : "";
    mf_status_free(status);
    REQUIRE(message == "");
  }

  mf_job* find(const char* name) {
    mf_job* job = nullptr;
    ok(mf_job_find(session, name, &job));
    return job;
  }

  std::vector<float> predict(const std::vector<float>& x) { return call("predict", x, 2); }
  std::vector<float> train(const std::vector<float>& x) { return call("train", x, 1); }

  std::vector<float> call(const char* name, const std::vector<float>& x, size_t count) {
    mf_job* job = find(name);
    std::vector<float> y(count);
    const mf_array input = mf_floats(x.data(), x.size());
    mf_array output = mf_floats(y.data(), y.size());
    ok(mf_job_call(job, &input, 1, &output, 1));
    CHECK(mf_job_close(job) == MF_OK);
    return y;
  }
};

}  // namespace moonflow_test
