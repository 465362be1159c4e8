// Scripts that a host loads through the C ABI: what they leave behind, and how those that fail are told.
#include <cstring>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "abi_host.h"

using namespace moonflow_test;

TEST_CASE("a script's error keeps its line, and the session stays usable") {
  Net host;
  const char* wrong = "local x = 1\nerror('no luck')";
  mf_status* status = mf_session_load_text(host.session, wrong, std::strlen(wrong), "wrong.lua");
  REQUIRE(status);
  CHECK(mf_status_code(status) == MF_SCRIPT_ERROR);
  CHECK(std::string(mf_status_message(status)) == "wrong.lua:2: no luck");
  CHECK(std::string(mf_status_where(status)) == "wrong.lua:2");
  CHECK(std::string(mf_status_traceback(status)) ==
        "stack traceback:\n\t[C]: in function 'error'\n\twrong.lua:2: in main chunk");
  CHECK(mf_status_free(status) == MF_OK);
  CHECK(mf_status_free(status) == MF_INVALID_HANDLE);
  CHECK(std::string(mf_status_message(status)) == "this is no status, or it has been freed");

  status = mf_session_load_text(host.session, "x = = 1", 7, "wrong.lua");
  CHECK(std::string(mf_status_where(status)) == "wrong.lua:1");
  CHECK(taken(status) == MF_SCRIPT_ERROR);
  status = mf_session_load_text(host.session, "\nx = = 1", 8, "pack:level 2/wrong.lua");
  CHECK(std::string(mf_status_where(status)) == "pack:level 2/wrong.lua:2");
  CHECK(taken(status) == MF_SCRIPT_ERROR);
  CHECK(taken(mf_session_load_file(host.session, "/nowhere.lua")) == MF_NOT_FOUND);
  CHECK(taken(mf_session_load_file(host.session, "/")) == MF_IO);
  status = mf_session_load_text(host.session, "\x1bLJ bytecode", 12, "b");
  CHECK_THAT(mf_status_message(status),
             Catch::Equals("b: this is bytecode, which can break the process; load the source"));
  CHECK(taken(status) == MF_SCRIPT_ERROR);
  CHECK(host.predict({1, 2, 3}).size() == 2);
}

TEST_CASE("an error in the definition of a job names the job, the line and the frames of its body") {
  Host host;
  const auto fail = [&](const std::string& body, const char* where, const char* traceback) {
    const std::string text =
        "local flow, tp = require 'moonflow', require('moonflow').typing\n"
        "flow.global_function { name = 'steer', inputs = { x = tp.Numpy.Placeholder({ 1, 3 }) } } (function(x)\n" +
        body + "\nend)";
    INFO(body);
    mf_status* status = mf_session_load_text(host.session, text.data(), text.size(), "robot.lua");
    CHECK(std::string(mf_status_job(status)) == "steer");
    CHECK(std::string(mf_status_where(status)) == where);
    CHECK_THAT(mf_status_traceback(status), Catch::Contains(traceback));
    CHECK_THAT(mf_status_message(status), !Catch::Contains("steer"));
    return taken(status);
  };
  CHECK(fail("local y = flow.matmul(x, x) return y", "robot.lua:3", "robot.lua:3: in function 'body'") ==
        MF_SHAPE_MISMATCH);
  CHECK(fail("local function fall() error('no luck') end fall()", "robot.lua:3", "robot.lua:3: in function 'fall'") ==
        MF_SCRIPT_ERROR);
  CHECK(fail("local y = nil y()", "robot.lua:3", "robot.lua:3: in function 'body'") == MF_SCRIPT_ERROR);

  std::string text = "require('moonflow').global_function { name = 'steer' } (function(x) return x end)";
  mf_status* status = mf_session_load_text(host.session, text.data(), text.size(), "robot.lua");
  CHECK(std::string(mf_status_job(status)) == "steer");
  CHECK(std::string(mf_status_where(status)) == "robot.lua:1");
  CHECK(taken(status) == MF_INVALID_ARGUMENT);

  text = "error('no luck')";  // of no job
  status = mf_session_load_text(host.session, text.data(), text.size(), "robot.lua");
  CHECK(std::string(mf_status_job(status)).empty());
  CHECK(taken(status) == MF_SCRIPT_ERROR);
}

TEST_CASE("a file that fails to load leaves the jobs as they were") {
  Net host;
  const std::vector<float> before = host.predict({1, 2, 3});
  const char* text =
      "local flow = require 'moonflow'\n"
      "flow.global_function { name = 'predict' } (function() return nil end)\nerror('late')";
  CHECK(taken(mf_session_load_text(host.session, text, std::strlen(text), "net.lua")) == MF_SCRIPT_ERROR);
  CHECK(host.predict({1, 2, 3}) == before);
  host.load(kNet);  // again: weights live on
  CHECK(host.predict({1, 2, 3}) == before);
}

TEST_CASE("a job goes when another file takes its name") {
  Host host;
  const std::string text = R"(
    local flow = require "moonflow"
    flow.global_function { name = "large", inputs = { x = flow.typing.Numpy.Placeholder({ 1000, 1000 }) },
                           returns = flow.typing.Numpy } (function(x)
      return flow.math.cumsum(flow.math.cumsum(x, 0), 1)
    end))";
  const auto live_after = [&](int first, int last) {
    for (int i = first; i <= last; ++i) host.load(text.c_str(), ("level " + std::to_string(i)).c_str());
    host.load("collectgarbage() collectgarbage()", "collect.lua");
    mf_memory memory{};
    memory.struct_size = sizeof memory;
    host.ok(mf_session_memory(host.session, &memory));
    return memory.live;
  };
  const uint64_t one = live_after(1, 1);
  CHECK(one >= 4000000);
  CHECK(live_after(2, 10) < one + 1000);
  CHECK(mf_job_close(host.find("large")) == MF_OK);
}

TEST_CASE("jobs whose session a script has cleared are not found, and what is left of them says so") {
  Net host;
  mf_job *kept = nullptr, *found = nullptr;
  host.ok(mf_job_find(host.session, "predict", &kept));
  const auto load = [&](const std::string& text, const char* name) {
    return mf_session_load_text(host.session, text.c_str(), text.size(), name);
  };
  const std::string clear = "require('moonflow').clear_default_session()\n";
  host.ok(load(clear, "clear.lua"));
  mf_status* status = mf_job_find(host.session, "predict", &found);
  CHECK(std::string(mf_status_message(status)) ==
        "there is no job 'predict'; those that scripts have defined went with a session that has been cleared");
  CHECK(taken(status) == MF_NOT_FOUND);
  CHECK(found == nullptr);
  float x[3] = {}, y[2] = {};
  mf_array input = mf_floats(x, 3), output = mf_floats(y, 2);
  status = mf_job_call(kept, &input, 1, &output, 1);
  CHECK_THAT(mf_status_message(status), Catch::Contains("belongs to a session that is closed; define it again"));
  CHECK(taken(status) == MF_WRONG_STATE);

  // A file that has begun so and fails does not bring them back.
  host.load(kNet);
  CHECK(host.predict({1, 2, 3}).size() == 2);
  const std::string redefined =
      "require('moonflow').global_function { name = 'predict' } (function() return nil end)\n";
  CHECK(taken(load(redefined + clear + "error('late')", "late.lua")) == MF_SCRIPT_ERROR);
  CHECK(taken(mf_job_find(host.session, "predict", &found)) == MF_NOT_FOUND);
  CHECK(mf_job_close(kept) == MF_OK);
}

TEST_CASE("what a job gives as a Dict goes by its keys, in their order") {
  Host host;
  host.load(R"(
local flow = require "moonflow"
local tp = flow.typing
flow.global_function {
  name = "keyed", inputs = { x = tp.Numpy.Placeholder({ 2 }) },
  returns = tp.Dict { value = tp.Numpy, action = tp.Numpy, pair = tp.Bundle[tp.Numpy] },
} (function(x) return { value = x + 1, action = x * 2, pair = { x * 3, x * 4 } } end)
)");
  mf_job* const job = host.find("keyed");
  mf_type type{};
  type.struct_size = sizeof type;
  host.ok(mf_job_output(job, 0, &type));
  CHECK(type.name == std::string("action"));
  host.ok(mf_job_output(job, 3, &type));
  CHECK(type.name == std::string("value"));
  const float x[] = {1, 1};
  float y[4][2];
  const mf_array input = mf_floats(x, 2);
  mf_array outputs[] = {mf_floats(y[0], 2), mf_floats(y[1], 2), mf_floats(y[2], 2), mf_floats(y[3], 2)};
  host.ok(mf_job_call(job, &input, 1, outputs, 4));
  CHECK((y[0][0] == 2 && y[1][0] == 3 && y[2][0] == 4 && y[3][0] == 2));
}
