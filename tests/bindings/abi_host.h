// A host for tests: a session and what most tests do with it. A status that should be none fails the test with its
// text.
#pragma once

#include <cstring>
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

  // Jobs are kept until a text of the same name is loaded.
  void load(const char* script, const char* name = "net.lua") {
    ok(mf_session_load_text(session, script, std::strlen(script), name));
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

// A net of one layer, to be trained and asked.
inline const char* const kNet = R"(
local flow = require "moonflow"
local tp = flow.typing
flow.set_seed(1)
local function net(x) return flow.layers.dense(x, 2, { name = "out" }) end
flow.global_function { name = "predict", inputs = { x = tp.Numpy.Placeholder({ 1, 3 }) }, returns = tp.Numpy } (net)
flow.global_function { name = "train", type = "train", inputs = { x = tp.Numpy.Placeholder({ 1, 3 }) },
                       returns = tp.Numpy } (function(x)
  local loss = flow.math.reduce_sum(flow.math.square(net(x)))
  flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler({}, { 0.1 }), { momentum = 0 }):minimize(loss)
  return loss
end)
)";
// A job with two inputs and two outputs, without a wait.
inline const char* const kPair = R"(
local flow = require "moonflow"
local tp = flow.typing
flow.global_function { name = "pair", inputs = { a = tp.Numpy.Placeholder({ 2 }),
                       b = tp.Numpy.Placeholder({ 2 }, { dtype = flow.int32 }) },
                       returns = tp.Callback[tp.Tuple { tp.Numpy, tp.Numpy }] } (function(a, b)
  return flow.math.square(a), b
end)
)";

// A host of both.
struct Net : Host {
  Net() {
    load(kNet);
    load(kPair, "pair.lua");
  }
};

// The code of a status that must have words, and is freed.
inline mf_code taken(mf_status* status) {
  const mf_code code = mf_status_code(status);
  if (status) CHECK(std::strlen(mf_status_message(status)) > 0);
  CHECK(mf_status_free(status) == MF_OK);
  return code;
}

}  // namespace moonflow_test
