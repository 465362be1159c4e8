// Variables and checkpoints of the C ABI.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <catch2/catch.hpp>

#include "abi_host.h"

using namespace moonflow_test;

TEST_CASE("a session tells what it holds") {
  Host host;
  mf_memory before{}, after{};
  CHECK(taken(mf_session_memory(host.session, &before)) == MF_INVALID_ARGUMENT);
  before.struct_size = after.struct_size = sizeof(mf_memory);
  host.ok(mf_session_memory(host.session, &before));
  CHECK(before.variables == 0);
  CHECK(before.lua > 100000);
  host.load(R"(
    local flow = require "moonflow"
    kept = flow.np.zeros({ 1000, 1000 })
    flow.global_function { name = "net", inputs = { x = flow.typing.Numpy.Placeholder({ 1, 1000 }) },
                           returns = flow.typing.Numpy } (function(x)
      return flow.layers.dense(x, 100, { name = "out", use_bias = false })
    end))");
  host.ok(mf_session_memory(host.session, &after));
  CHECK(after.live - before.live >= 4000000);
  CHECK(after.variables == 400000);
  host.load("kept:release() require('moonflow').clear_default_session()", "end.lua");
  host.ok(mf_session_memory(host.session, &after));
  CHECK(after.live - before.live < 4000000);
#if !defined(__SANITIZE_ADDRESS__)  // there memory is given back at once
  CHECK(after.spare >= 4000000);
#endif
  CHECK(after.variables == 0);
}

TEST_CASE("variables are read and written by name") {
  Net host;
  int32_t count = 0;
  host.ok(mf_variable_count(host.session, &count));
  std::vector<std::string> names;
  for (int32_t i = 0; i < count; ++i) {
    mf_type type{};
    type.struct_size = sizeof type;
    host.ok(mf_variable_type(host.session, i, &type));
    names.push_back(type.name);
  }
  CHECK(std::is_sorted(names.begin(), names.end()));
  mf_type type{};
  type.struct_size = sizeof type;
  host.ok(mf_variable_find(host.session, "out-bias", &type));
  CHECK((type.count == 2 && type.rank == 1 && type.name == std::string("out-bias")));
  mf_status* unknown = mf_variable_find(host.session, "out-bais", &type);
  CHECK_THAT(mf_status_message(unknown), Catch::Contains("did you mean 'out-bias'"));
  CHECK(taken(unknown) == MF_NOT_FOUND);
  CHECK_THAT(names, Catch::VectorContains(std::string("out-bias")));
  CHECK_THAT(names, Catch::VectorContains(std::string("out-weight")));
  const float bias[] = {10, 20};
  mf_array value = mf_floats(bias, 2);
  host.ok(mf_variable_write(host.session, "out-bias", &value));
  float read[2] = {};
  mf_array into = mf_floats(read, 2);
  host.ok(mf_variable_read(host.session, "out-bias", &into));
  CHECK(read[1] == 20);
  CHECK(host.predict({0, 0, 0}) == std::vector<float>{10, 20});
  mf_status* status = mf_variable_read(host.session, "out-bais", &into);
  CHECK_THAT(mf_status_message(status), Catch::Contains("did you mean 'out-bias'"));
  CHECK(taken(status) == MF_NOT_FOUND);
  mf_array small = mf_floats(read, 1);
  CHECK(taken(mf_variable_read(host.session, "out-bias", &small)) == MF_SHAPE_MISMATCH);
  double wide[2] = {};
  mf_array doubles = mf_array_of(MF_FLOAT64, wide, 2);
  status = mf_variable_read(host.session, "out-bias", &doubles);
  CHECK_THAT(mf_status_message(status),
             Catch::Contains("the array for variable 'out-bias' is float64, wanted float32 (2)"));
  CHECK(taken(status) == MF_DTYPE_MISMATCH);
  CHECK(taken(mf_variable_write(host.session, "out-bias", &small)) == MF_SHAPE_MISMATCH);
  status = mf_variable_write(host.session, "out-bias", nullptr);
  CHECK(std::string(mf_status_message(status)) == "value is NULL");
  CHECK(taken(status) == MF_INVALID_ARGUMENT);
}

TEST_CASE("what a script has ended is not found, and comes back with the next file") {
  const std::string text = "require('moonflow')." + std::string(GENERATE("clear_default_session", "shutdown")) + "()";
  Net host;
  mf_job* const kept = host.find("predict");
  float data[3] = {1, 2, 3};
  mf_array input = mf_floats(data, 3), value = mf_floats(data, 2);
  mf_type type{};
  type.struct_size = sizeof type;
  const auto end = [&] { host.load(text.c_str(), "end.lua"); };
  const auto is_gone = [](mf_status* status, const char* what) {
    CHECK_THAT(mf_status_message(status), Catch::Equals(what));
    CHECK(taken(status) == MF_NOT_FOUND);
  };

  end();
  is_gone(mf_variable_find(host.session, "out-bias", &type), "there is no variable 'out-bias'");
  end();
  is_gone(mf_variable_read(host.session, "out-bias", &value), "there is no variable 'out-bias'");
  end();
  is_gone(mf_variable_write(host.session, "out-bias", &value), "there is no variable 'out-bias'");
  end();
  mf_bytes* bytes = nullptr;
  mf_status* const status = mf_session_save_memory(host.session, &bytes);
  CHECK_THAT(mf_status_message(status), Catch::StartsWith("there are no variables to save"));
  CHECK(taken(status) == MF_WRONG_STATE);
  mf_job* job = nullptr;
  CHECK(taken(mf_job_find(host.session, "predict", &job)) == MF_NOT_FOUND);
  CHECK(taken(mf_job_call(kept, &input, 1, &value, 1)) == MF_WRONG_STATE);

  host.load(kNet);
  host.ok(mf_variable_write(host.session, "out-bias", &value));
  CHECK(host.predict({0, 0, 0}) == std::vector<float>{1, 2});
}

TEST_CASE("a checkpoint in memory carries the weights to another session, and a damaged one changes nothing") {
  Net one, other;
  one.train({1, 2, 3});
  mf_bytes* bytes = nullptr;
  one.ok(mf_session_save_memory(one.session, &bytes));
  const auto* data = static_cast<const char*>(mf_bytes_data(bytes));
  std::string copy(data, mf_bytes_size(bytes));
  const std::vector<float> before = other.predict({1, 2, 3});
  for (size_t cut = 0; cut < copy.size(); cut += 7)
    CHECK(taken(mf_session_load_memory(other.session, copy.data(), cut)) != MF_OK);
  for (size_t i = 0; i < copy.size(); ++i) {
    std::string damaged = copy;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    INFO("at byte " << i);
    CHECK(taken(mf_session_load_memory(other.session, damaged.data(), damaged.size())) != MF_OK);
  }
  std::string turned = copy;
  turned.back() = static_cast<char>(turned.back() ^ 1);
  mf_status* status = mf_session_load_memory(other.session, turned.data(), turned.size());
  CHECK_THAT(mf_status_message(status), Catch::Contains("the bytes do not match their checksum"));
  CHECK(taken(status) == MF_IO);
  other.ok(mf_session_load_memory(other.session, copy.data(), copy.size()));
  CHECK(other.predict({1, 2, 3}) == one.predict({1, 2, 3}));
  CHECK(other.predict({1, 2, 3}) != before);
  CHECK(mf_bytes_free(bytes) == MF_OK);
  CHECK(mf_bytes_free(bytes) == MF_INVALID_HANDLE);
  CHECK(mf_bytes_data(bytes) == nullptr);
  CHECK(mf_bytes_size(bytes) == 0);
}

TEST_CASE("a checkpoint in memory of other variables is refused") {
  Net one;
  Host other;
  std::string renamed = kNet;
  renamed.replace(renamed.find("\"out\""), 5, "\"aut\"");
  other.load(renamed.c_str());
  mf_bytes* bytes = nullptr;
  other.ok(mf_session_save_memory(other.session, &bytes));
  mf_status* status = mf_session_load_memory(one.session, mf_bytes_data(bytes), mf_bytes_size(bytes));
  mf_bytes_free(bytes);
  CHECK_THAT(mf_status_message(status), Catch::Contains("the checkpoint in memory has none of the variables"));
  CHECK(taken(status) == MF_NOT_FOUND);
}

TEST_CASE("a checkpoint in memory keeps every digit of the seed") {
  Net one;
  constexpr const char* kSeed = R"(require("moonflow").set_seed(281474976710655))";
  one.ok(mf_session_load_text(one.session, kSeed, std::strlen(kSeed), "seed.lua"));
  mf_bytes* bytes = nullptr;
  one.ok(mf_session_save_memory(one.session, &bytes));
  const std::string_view text(static_cast<const char*>(mf_bytes_data(bytes)), mf_bytes_size(bytes));
  CHECK(text.find(R"("seed":"281474976710655")") != std::string_view::npos);
  mf_bytes_free(bytes);
}

TEST_CASE("weights in two bytes pass through the host's memory and a checkpoint in it") {
  struct Case {
    mf_dtype dtype;
    const char *name, *in_files;
    uint16_t bits[2];  // 2 and -1
  };
  const auto [dtype, name, in_files, bits] = GENERATE(Case{MF_BFLOAT16, "bfloat16", "\"BF16\"", {0x4000, 0xbf80}},
                                                      Case{MF_FLOAT16, "float16", "\"F16\"", {0x4000, 0xbc00}});
  const std::string narrow = std::string(R"(
    local flow = require "moonflow"
    flow.global_function({ name = "read", returns = flow.typing.Numpy }, function()
      local w = flow.get_variable("w", { shape = { 2 }, dtype = flow.)") +
                             name + R"(, initializer = flow.constant_initializer(1.5) })
      return flow.cast(w, flow.float)
    end)
  )";
  Net one, other;
  for (Net* host : {&one, &other})
    host->ok(mf_session_load_text(host->session, narrow.c_str(), narrow.size(), "n.lua"));
  mf_array value = mf_array_of(dtype, bits, 2);
  one.ok(mf_variable_write(one.session, "w", &value));
  mf_bytes* bytes = nullptr;
  one.ok(mf_session_save_memory(one.session, &bytes));
  const std::string_view text(static_cast<const char*>(mf_bytes_data(bytes)), mf_bytes_size(bytes));
  CHECK(text.find(in_files) != std::string_view::npos);
  other.ok(mf_session_load_memory(other.session, text.data(), text.size()));
  mf_bytes_free(bytes);
  uint16_t read[2] = {};
  mf_array into = mf_array_of(dtype, read, 2);
  other.ok(mf_variable_read(other.session, "w", &into));
  CHECK(std::equal(bits, bits + 2, read));
}

TEST_CASE("where no file can be opened any more, a session and a checkpoint say so") {
  const std::string folder = std::filesystem::temp_directory_path() / ("moonflow-no-files-" + std::to_string(getpid()));
  Net host;
  host.ok(mf_session_save(host.session, folder.c_str(), 0));
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit few{64, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  std::vector<int> files;
  for (int file; (file = open("/dev/null", O_RDONLY)) >= 0;) files.push_back(file);
  mf_session* other = nullptr;
  mf_status* const statuses[] = {mf_session_save(host.session, folder.c_str(), 1), mf_session_open(nullptr, &other)};
  for (const int file : files) close(file);
  setrlimit(RLIMIT_NOFILE, &before);
  for (mf_status* status : statuses) {
    CHECK_THAT(mf_status_message(status), Catch::Contains("Too many open files"));
    CHECK(taken(status) == MF_IO);
  }
  std::filesystem::remove_all(folder);
}
