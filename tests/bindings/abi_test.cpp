// The C ABI as a host meets it: what it promises when used rightly, and that misuse gives a status, never a crash.
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <lua.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "abi_host.h"

using namespace moonflow_test;

namespace {

// A function of the ABI applied to a handle in place of the right one.
struct Use {
  const char* name;
  std::function<mf_code(void* handle)> call;
};

void nothing(void*, const mf_status*, const mf_array*, int32_t) {}

std::vector<Use> uses_of_session() {
  static mf_job* job;
  static mf_bytes* bytes;
  static void* pointer;
  static const char* name;
  static int32_t number;
  static float floats[2];
  static mf_array array = mf_floats(floats, 2);
  static mf_type type;
  type.struct_size = sizeof type;
  static mf_memory memory;
  memory.struct_size = sizeof memory;
  const auto as = [](void* handle) { return static_cast<mf_session*>(handle); };
  return {
      {"lua_state", [=](void* h) { return taken(mf_session_lua_state(as(h), &pointer)); }},
      {"load_file", [=](void* h) { return taken(mf_session_load_file(as(h), "/nowhere.lua")); }},
      {"load_text", [=](void* h) { return taken(mf_session_load_text(as(h), "x = 1", 5, "x")); }},
      {"poll", [=](void* h) { return taken(mf_session_poll(as(h), 0, &number)); }},
      {"sync", [=](void* h) { return taken(mf_session_sync(as(h))); }},
      {"sync_for", [=](void* h) { return taken(mf_session_sync_for(as(h), 0, &number)); }},
      {"run_wait", [=](void* h) { return taken(mf_run_wait(as(h), 1, 0, &number)); }},
      {"run_cancel", [=](void* h) { return taken(mf_run_cancel(as(h), 1)); }},
      {"in_flight", [=](void* h) { return taken(mf_session_in_flight(as(h), &number)); }},
      {"descriptor", [=](void* h) { return taken(mf_session_descriptor(as(h), &number)); }},
      {"memory", [=](void* h) { return taken(mf_session_memory(as(h), &memory)); }},
      {"hand_over", [=](void* h) { return taken(mf_session_hand_over(as(h))); }},
      {"take_over", [=](void* h) { return taken(mf_session_take_over(as(h))); }},
      {"find", [=](void* h) { return taken(mf_job_find(as(h), "predict", &job)); }},
      {"job_count", [=](void* h) { return taken(mf_job_count(as(h), &number)); }},
      {"job_name", [=](void* h) { return taken(mf_job_name(as(h), 0, &name)); }},
      {"variable_count", [=](void* h) { return taken(mf_variable_count(as(h), &number)); }},
      {"variable_type", [=](void* h) { return taken(mf_variable_type(as(h), 0, &type)); }},
      {"variable_find", [=](void* h) { return taken(mf_variable_find(as(h), "out-bias", &type)); }},
      {"variable_read", [=](void* h) { return taken(mf_variable_read(as(h), "out-bias", &array)); }},
      {"variable_write", [=](void* h) { return taken(mf_variable_write(as(h), "out-bias", &array)); }},
      {"save", [=](void* h) { return taken(mf_session_save(as(h), "/nowhere/x", 0)); }},
      {"load", [=](void* h) { return taken(mf_session_load(as(h), "/nowhere/x")); }},
      {"save_memory", [=](void* h) { return taken(mf_session_save_memory(as(h), &bytes)); }},
      {"load_memory", [=](void* h) { return taken(mf_session_load_memory(as(h), "x", 1)); }},
  };
}

std::vector<Use> uses_of_job() {
  static int32_t number;
  static float floats[3];
  static mf_array array = mf_floats(floats, 3), out = mf_floats(floats, 2);
  static mf_type type;
  static mf_prepared* prepared;
  static mf_run run;
  type.struct_size = sizeof type;
  const auto as = [](void* handle) { return static_cast<mf_job*>(handle); };
  return {
      {"input_count", [=](void* h) { return taken(mf_job_input_count(as(h), &number)); }},
      {"output_count", [=](void* h) { return taken(mf_job_output_count(as(h), &number)); }},
      {"input", [=](void* h) { return taken(mf_job_input(as(h), 0, &type)); }},
      {"output", [=](void* h) { return taken(mf_job_output(as(h), 0, &type)); }},
      {"call", [=](void* h) { return taken(mf_job_call(as(h), &array, 1, &out, 1)); }},
      {"call_async", [=](void* h) { return taken(mf_job_call_async(as(h), &array, 1, nothing, nullptr)); }},
      {"call_for", [=](void* h) { return taken(mf_job_call_for(as(h), &array, 1, &out, 1, -1)); }},
      {"launch", [=](void* h) { return taken(mf_job_launch(as(h), &array, 1, nothing, nullptr, &run)); }},
      {"prepare", [=](void* h) { return taken(mf_job_prepare(as(h), &prepared)); }},
  };
}

std::vector<Use> uses_of_prepared() {
  static mf_array array;
  const auto as = [](void* handle) { return static_cast<mf_prepared*>(handle); };
  return {
      {"input", [=](void* h) { return taken(mf_prepared_input(as(h), 0, &array)); }},
      {"output", [=](void* h) { return taken(mf_prepared_output(as(h), 0, &array)); }},
      {"warm_up", [=](void* h) { return mf_prepared_warm_up(as(h)); }},
      {"run", [=](void* h) { return mf_prepared_run(as(h)); }},
      {"reset", [=](void* h) { return mf_prepared_reset(as(h)); }},
      {"bind_input", [=](void* h) { return mf_prepared_bind_input(as(h), 0, nullptr); }},
      {"bind_output", [=](void* h) { return mf_prepared_bind_output(as(h), 0, nullptr); }},
      {"interrupt", [=](void* h) { return mf_prepared_interrupt(as(h)); }},
      {"failure", [=](void* h) { return taken(mf_prepared_failure(as(h))); }},
      {"publish", [=](void* h) { return taken(mf_prepared_publish(as(h))); }},
  };
}

void* foreign_number() { return reinterpret_cast<void*>(uintptr_t{0x123456789}); }

}  // namespace

TEST_CASE("a job is found, described and called") {
  Net host;
  mf_job* job = nullptr;
  host.ok(mf_job_find(host.session, "pair", &job));
  int32_t count = 0;
  host.ok(mf_job_input_count(job, &count));
  CHECK(count == 2);
  mf_type type{};
  type.struct_size = sizeof type;
  host.ok(mf_job_input(job, 1, &type));
  CHECK(std::string(type.name) == "b");
  CHECK(type.dtype == MF_INT32);
  CHECK(type.rank == 1);
  CHECK(type.dims[0] == 2);
  CHECK(type.count == 2);
  host.ok(mf_job_output(job, 0, &type));
  CHECK(type.dtype == MF_FLOAT32);

  host.ok(mf_job_count(host.session, &count));
  const char* name = nullptr;
  host.ok(mf_job_name(host.session, count - 1, &name));
  CHECK(name == std::string("train"));
  mf_status* none = mf_job_name(host.session, count, &name);
  CHECK_THAT(mf_status_message(none), Catch::Contains("none at index"));
  CHECK(taken(none) == MF_OUT_OF_RANGE);

  const float a[] = {3, 4};
  const int32_t b[] = {5, 6};
  float squares[2] = {};
  int32_t same[2] = {};
  const mf_array inputs[] = {mf_floats(a, 2), mf_int32s(b, 2)};
  mf_array outputs[] = {mf_floats(squares, 2), mf_int32s(same, 2)};
  host.ok(mf_job_call(job, inputs, 2, outputs, 2));
  CHECK(squares[1] == 16);
  CHECK(same[0] == 5);
  CHECK(mf_job_close(job) == MF_OK);
}

TEST_CASE("going through the names of jobs lists them once, until there are others") {
  Host host;
  host.load(R"(
local flow = require "moonflow"
for i = 1, 300 do
  flow.global_function { name = "job" .. i, inputs = { x = flow.typing.Numpy.Placeholder({ 1 }) },
                         returns = flow.typing.Numpy } (function(x) return x end)
end
jit.off()
jit.flush()
)");
  void* state = nullptr;
  host.ok(mf_session_lua_state(host.session, &state));
  static int hundreds;  // of Lua's steps
  hundreds = 0;
  lua_sethook(
      static_cast<lua_State*>(state), [](lua_State*, lua_Debug*) { ++hundreds; }, LUA_MASKCOUNT, 100);
  const char* name = nullptr;
  for (int32_t i = 0; i < 300; ++i) host.ok(mf_job_name(host.session, i, &name));
  lua_sethook(static_cast<lua_State*>(state), nullptr, 0, 0);
  CHECK(name == std::string("job99"));
  CHECK(hundreds > 0);
  CHECK(hundreds < 300);
  host.load(kPair, "pair.lua");
  host.ok(mf_job_name(host.session, 300, &name));
  CHECK(name == std::string("pair"));
}

TEST_CASE("several callbacks that fail in one poll are all told") {
  Net host;
  const char* text =
      "local flow, tp = require 'moonflow', require('moonflow').typing\n"
      "local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 1 }) },\n"
      "  returns = tp.Callback[tp.Numpy] } (function(x) return x end)\n"
      "for i = 1, 3 do job(flow.np.ones({ 1 }))(function() error('handler ' .. i) end) end";
  host.ok(mf_session_load_text(host.session, text, std::strlen(text), "handlers.lua"));
  mf_status* status = mf_session_sync(host.session);
  int told = 0;
  for (const mf_status* each = status; each; each = mf_status_cause(each)) {
    CHECK_THAT(mf_status_message(each), Catch::Contains("handler " + std::to_string(++told)));
    CHECK_THAT(mf_status_where(each), Catch::Contains("handlers.lua:4"));
  }
  CHECK(told == 3);
  mf_status_free(status);
  host.ok(mf_session_sync(host.session));
}

TEST_CASE("thousands of callbacks that fail are told, and freed on a thread with a small stack") {
  constexpr int kCallbacks = 5000;
  constexpr size_t kStack = 256 << 10;
  Net host;
  host.load(
      "local flow, tp = require 'moonflow', require('moonflow').typing\n"
      "local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 1 }) },\n"
      "  returns = tp.Callback[tp.Numpy] } (function(x) return x end)\n"
      "local x, left = flow.np.ones({ 1 }), 5000\n"
      "local function again()\n"
      "  left = left - 1\n"
      "  if left > 0 then job(x)(again) end\n"
      "  error('left: ' .. left)\n"
      "end\n"
      "job(x)(again)");
  mf_status* const status = mf_session_sync(host.session);
  int told = 0;
  for (const mf_status* each = status; each; each = mf_status_cause(each)) ++told;
  CHECK(told == kCallbacks);
  pthread_attr_t attributes;
  REQUIRE(pthread_attr_init(&attributes) == 0);
  REQUIRE(pthread_attr_setstacksize(&attributes, kStack) == 0);
  pthread_t thread;
  const auto free_it = [](void* given) -> void* {
    return reinterpret_cast<void*>(static_cast<intptr_t>(mf_status_free(static_cast<mf_status*>(given))));
  };
  REQUIRE(pthread_create(&thread, &attributes, free_it, status) == 0);
  void* code = nullptr;
  REQUIRE(pthread_join(thread, &code) == 0);
  pthread_attr_destroy(&attributes);
  CHECK(code == reinterpret_cast<void*>(static_cast<intptr_t>(MF_OK)));
  CHECK(mf_status_free(status) == MF_INVALID_HANDLE);
}

TEST_CASE("an interrupt from another thread stops a run, and the session stays usable") {
  Net host;
  CHECK(mf_session_interrupt(host.session) == MF_OK);
  const float x[] = {1, 2, 3};
  float y[2];
  const mf_array input = mf_floats(x, 3);
  mf_array output = mf_floats(y, 2);
  mf_job* job = host.find("predict");
  CHECK(taken(mf_job_call(job, &input, 1, &output, 1)) == MF_INTERRUPTED);
  host.ok(mf_job_call(job, &input, 1, &output, 1));
}

TEST_CASE("NULL, numbers, handles of another kind and closed handles give a status from every function") {
  Net host;
  mf_job* job = host.find("predict");
  mf_prepared* prepared = nullptr;
  host.ok(mf_job_prepare(job, &prepared));
  mf_session* closed_session = nullptr;
  host.ok(mf_session_open(nullptr, &closed_session));
  REQUIRE(mf_session_close(closed_session) == MF_OK);
  mf_job* closed_job = nullptr;
  host.ok(mf_job_find(host.session, "train", &closed_job));
  REQUIRE(mf_job_close(closed_job) == MF_OK);
  mf_prepared* closed_prepared = nullptr;
  host.ok(mf_job_prepare(job, &closed_prepared));
  REQUIRE(mf_prepared_close(closed_prepared) == MF_OK);

  const auto check = [](const std::vector<Use>& uses, const std::vector<void*>& handles) {
    for (const Use& use : uses) {
      INFO(use.name);
      for (void* handle : handles) CHECK(use.call(handle) == MF_INVALID_HANDLE);
    }
  };
  void* const stack = &host;
  check(uses_of_session(), {nullptr, foreign_number(), stack, job, prepared, closed_session});
  check(uses_of_job(), {nullptr, foreign_number(), stack, host.session, prepared, closed_job});
  check(uses_of_prepared(), {nullptr, foreign_number(), stack, host.session, job, closed_prepared});
  for (void* handle : {static_cast<void*>(nullptr), foreign_number(), static_cast<void*>(job)}) {
    CHECK(mf_session_close(static_cast<mf_session*>(handle)) == MF_INVALID_HANDLE);
    CHECK(mf_session_interrupt(static_cast<mf_session*>(handle)) == MF_INVALID_HANDLE);
  }
  CHECK(mf_session_close(closed_session) == MF_INVALID_HANDLE);
  CHECK(mf_job_close(closed_job) == MF_INVALID_HANDLE);
  CHECK(mf_job_close(nullptr) == MF_INVALID_HANDLE);
  CHECK(mf_prepared_close(nullptr) == MF_INVALID_HANDLE);
  CHECK(mf_prepared_generation(nullptr) == 0);
  CHECK(mf_bytes_free(nullptr) == MF_OK);
  CHECK(mf_status_free(nullptr) == MF_OK);
  CHECK(mf_status_code(reinterpret_cast<mf_status*>(job)) == MF_INVALID_HANDLE);
  CHECK(mf_status_cause(reinterpret_cast<mf_status*>(job)) == nullptr);
  CHECK(std::string(mf_status_where(nullptr)).empty());
  CHECK(std::string(mf_code_name(99)) == "unknown");
  CHECK(std::string(mf_code_name(MF_SHAPE_MISMATCH)) == "shape_mismatch");
  CHECK(std::string(mf_code_name(MF_INTERNAL)) == "internal");
  CHECK(std::string(mf_code_name(MF_SCRIPT_ERROR)) == "script_error");
  CHECK(std::string(mf_code_name(MF_TIMED_OUT)) == "timed_out");
  CHECK(std::string(mf_code_name(-1)) == "unknown");
  CHECK(mf_prepared_close(prepared) == MF_OK);
}

TEST_CASE("another thread is told so") {
  Net host;
  mf_job* job = host.find("predict");
  mf_prepared* prepared = nullptr;
  host.ok(mf_job_prepare(job, &prepared));
  std::thread other([&] {
    for (const Use& use : uses_of_session()) {
      INFO(use.name);
      CHECK(use.call(host.session) == MF_WRONG_THREAD);
    }
    CHECK(mf_session_close(host.session) == MF_WRONG_THREAD);
    for (const Use& use : uses_of_job()) {
      INFO(use.name);
      const bool any_thread = std::strstr(use.name, "put") != nullptr;
      CHECK(use.call(job) == (any_thread ? MF_OK : MF_WRONG_THREAD));
    }
    for (const Use& use : uses_of_prepared()) {
      INFO(use.name);
      CHECK(use.call(prepared) == (std::strcmp(use.name, "publish") == 0 ? MF_WRONG_THREAD : MF_OK));
    }
    CHECK(mf_session_interrupt(host.session) == MF_OK);
  });
  other.join();
  CHECK(mf_prepared_close(prepared) == MF_OK);
}

TEST_CASE("a session that has been handed over is nobody's until it is taken over") {
  Net host;
  mf_job* job = host.find("predict");
  host.ok(mf_session_hand_over(host.session));
  for (const Use& use : uses_of_session()) {
    INFO(use.name);
    if (std::strcmp(use.name, "take_over") != 0) CHECK(use.call(host.session) == MF_WRONG_THREAD);
  }
  for (const Use& use : uses_of_job()) {
    INFO(use.name);
    const bool any_thread = std::strstr(use.name, "put") != nullptr;
    CHECK(use.call(job) == (any_thread ? MF_OK : MF_WRONG_THREAD));
  }
  host.ok(mf_session_take_over(host.session));
  CHECK(host.predict({1, 2, 3}).size() == 2);
  CHECK(mf_job_close(job) == MF_OK);
}

TEST_CASE("wrong arrays and structs give a status that names them") {
  Net host;
  mf_job* job = host.find("predict");
  float data[4] = {};
  mf_array good = mf_floats(data, 3), out = mf_floats(data, 2);
  const auto call = [&](mf_array input, mf_array output, int32_t inputs = 1, int32_t outputs = 1) {
    return taken(mf_job_call(job, &input, inputs, &output, outputs));
  };
  CHECK(call(good, out) == MF_OK);
  CHECK(call(mf_floats(data, 4), out) == MF_SHAPE_MISMATCH);
  CHECK(call(good, mf_floats(data, 3)) == MF_SHAPE_MISMATCH);
  CHECK(call(mf_int32s(reinterpret_cast<int32_t*>(data), 3), out) == MF_DTYPE_MISMATCH);
  CHECK(call(mf_array_of(77, data, 3), out) == MF_DTYPE_MISMATCH);
  CHECK(call(mf_floats(nullptr, 3), out) == MF_INVALID_ARGUMENT);
  CHECK(call(good, out, 0) == MF_INVALID_ARGUMENT);
  mf_status* status = mf_job_call(job, &good, 2, &out, 1);
  CHECK_THAT(mf_status_message(status), Catch::Contains("predict: takes 1 input, got 2"));
  CHECK(taken(status) == MF_INVALID_ARGUMENT);
  CHECK(call(good, out, 1, 2) == MF_INVALID_ARGUMENT);
  CHECK(call(good, out, -1) == MF_INVALID_ARGUMENT);
  CHECK(taken(mf_job_call(job, nullptr, 1, &out, 1)) == MF_INVALID_ARGUMENT);
  CHECK(taken(mf_job_call(job, &good, 1, nullptr, 1)) == MF_INVALID_ARGUMENT);
  CHECK(taken(mf_job_call_async(job, &good, 1, nullptr, nullptr)) == MF_INVALID_ARGUMENT);
  mf_array truncated = good;
  truncated.struct_size = 8;
  CHECK(call(truncated, out) == MF_INVALID_ARGUMENT);
  truncated.struct_size = 0;
  CHECK(call(truncated, out) == MF_INVALID_ARGUMENT);
  mf_array shaped = good;
  const int64_t dims[] = {3, 1}, huge[] = {INT64_MAX, INT64_MAX}, negative[] = {-1, -3};
  shaped.dims = dims;
  shaped.rank = 2;
  CHECK(call(shaped, out) == MF_SHAPE_MISMATCH);
  shaped.rank = 99;
  CHECK(call(shaped, out) == MF_SHAPE_MISMATCH);
  shaped.rank = 2;
  shaped.dims = huge;
  CHECK(call(shaped, out) != MF_OK);
  shaped.dims = negative;
  CHECK(call(shaped, out) != MF_OK);

  mf_type type{};
  CHECK(taken(mf_job_input(job, 0, &type)) == MF_INVALID_ARGUMENT);
  CHECK(taken(mf_job_input(job, 0, nullptr)) == MF_INVALID_ARGUMENT);
  type.struct_size = sizeof type;
  CHECK(taken(mf_job_input(job, 1, &type)) == MF_OUT_OF_RANGE);
  CHECK(taken(mf_job_output(job, -1, &type)) == MF_OUT_OF_RANGE);
  CHECK(taken(mf_job_input_count(job, nullptr)) == MF_INVALID_ARGUMENT);
  CHECK(taken(mf_variable_type(host.session, 1000, &type)) == MF_OUT_OF_RANGE);
  CHECK(taken(mf_variable_read(host.session, nullptr, &good)) == MF_INVALID_ARGUMENT);
  CHECK(taken(mf_variable_read(host.session, "out-bias", nullptr)) == MF_INVALID_ARGUMENT);
  CHECK(taken(mf_job_find(host.session, nullptr, &job)) == MF_INVALID_ARGUMENT);
  CHECK(taken(mf_job_find(host.session, "predict", nullptr)) == MF_INVALID_ARGUMENT);
  CHECK(taken(mf_session_load_file(host.session, nullptr)) == MF_INVALID_ARGUMENT);
  CHECK(taken(mf_session_load_text(host.session, nullptr, 0, "x")) == MF_INVALID_ARGUMENT);
  CHECK(taken(mf_session_save(host.session, nullptr, 0)) == MF_INVALID_ARGUMENT);
  CHECK(taken(mf_session_load_memory(host.session, nullptr, 0)) == MF_INVALID_ARGUMENT);

  mf_session* none = nullptr;
  mf_session_options options{};
  CHECK(taken(mf_session_open(&options, &none)) == MF_INVALID_ARGUMENT);
  for (uint32_t size = 1; size < sizeof options; ++size) {  // ends within a pointer, for instance
    options.struct_size = size;
    CHECK(taken(mf_session_open(&options, &none)) == MF_INVALID_ARGUMENT);
  }
  options.struct_size = sizeof options;
  options.threads = -1;
  CHECK(taken(mf_session_open(&options, &none)) == MF_INVALID_ARGUMENT);
  options.threads = 1;
  options.library_path = "/nowhere";
  mf_status* nowhere = mf_session_open(&options, &none);
  CHECK(std::string(mf_status_message(nowhere)) ==
        "library_path is '/nowhere', and there is no moonflow/init.lua in it");
  CHECK(taken(nowhere) == MF_NOT_FOUND);
  options.library_path = nullptr;
  options.allocator.allocate = [](void*, size_t, size_t) -> void* { return nullptr; };
  CHECK(taken(mf_session_open(&options, &none)) == MF_INVALID_ARGUMENT);
  options.allocator.release = [](void*, void*) {};
  CHECK(taken(mf_session_open(&options, &none)) == MF_OUT_OF_MEMORY);
  CHECK(none == nullptr);
  CHECK(taken(mf_session_open(nullptr, nullptr)) == MF_INVALID_ARGUMENT);
}

TEST_CASE("an array that says another shape than what is put into it is refused, and not filled") {
  Net host;
  host.train({1, 2, 3});
  mf_job* job = host.find("predict");
  float x[3] = {1, 2, 3}, y[2] = {7, 7}, weight[6] = {7};
  const mf_array in = mf_floats(x, 3);
  mf_array out = mf_floats(y, 2), value = mf_floats(weight, 6);
  const int64_t of_y[] = {1, 2}, turned_y[] = {2, 1}, of_weight[] = {2, 3}, turned_weight[] = {3, 2};
  out.rank = value.rank = 2;
  out.dims = turned_y;
  mf_status* status = mf_job_call(job, &in, 1, &out, 1);
  CHECK_THAT(mf_status_message(status),
             Catch::Contains("predict: output ") && Catch::Contains("is float32 (2, 1), wanted float32 (1, 2)"));
  CHECK(taken(status) == MF_SHAPE_MISMATCH);
  value.dims = turned_weight;
  CHECK(taken(mf_variable_read(host.session, "out-weight", &value)) == MF_SHAPE_MISMATCH);
  CHECK(y[0] == 7);
  CHECK(weight[0] == 7);
  out.dims = of_y;
  host.ok(mf_job_call(job, &in, 1, &out, 1));
  value.dims = of_weight;
  host.ok(mf_variable_read(host.session, "out-weight", &value));
  CHECK(weight[0] != 7);
  CHECK(mf_job_close(job) == MF_OK);
}

TEST_CASE("a training step whose outputs do not fit is refused before it is made") {
  Net host;
  mf_job* job = host.find("train");
  float x[3] = {1, 2, 3}, loss[2] = {}, before[6] = {}, after[6] = {};
  const mf_array in = mf_floats(x, 3);
  mf_array out = mf_floats(loss, 2), weight = mf_floats(before, 6);
  host.ok(mf_variable_read(host.session, "out-weight", &weight));
  CHECK(taken(mf_job_call(job, &in, 1, &out, 1)) == MF_SHAPE_MISMATCH);
  weight = mf_floats(after, 6);
  host.ok(mf_variable_read(host.session, "out-weight", &weight));
  CHECK(std::equal(before, before + 6, after));
  out = mf_floats(loss, 1);
  host.ok(mf_job_call(job, &in, 1, &out, 1));
  host.ok(mf_variable_read(host.session, "out-weight", &weight));
  CHECK_FALSE(std::equal(before, before + 6, after));
  CHECK(mf_job_close(job) == MF_OK);
}

TEST_CASE("a training step on a list, whose outputs do not fit what these inputs give, is refused before it is made") {
  Host host;
  host.load(R"(
local flow = require "moonflow"
local tp = flow.typing
flow.global_function { name = "train", type = "train", inputs = { x = tp.ListNumpy.Placeholder({ 4, 3 }) },
                       returns = tp.ListNumpy } (function(x)
  local y = flow.layers.dense(x, 1, { name = "out" })
  flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler({}, { 0.1 }), { momentum = 0 }):minimize(y)
  return y
end)
)");
  mf_job* job = host.find("train");
  float x[6] = {1, 2, 3, 4, 5, 6}, y[4] = {}, before[3] = {}, after[3] = {};
  const int64_t dims[2] = {2, 3};
  mf_array in = mf_floats(x, 6), out = mf_floats(y, 4), weight = mf_floats(before, 3);
  in.dims = dims;
  in.rank = 2;
  host.ok(mf_variable_read(host.session, "out-weight", &weight));
  weight = mf_floats(after, 3);
  for (const double max_ms : {0., 1000.}) {
    const auto call = [&] {
      return max_ms > 0 ? mf_job_call_for(job, &in, 1, &out, 1, max_ms) : mf_job_call(job, &in, 1, &out, 1);
    };
    out = mf_floats(y, 4);  // as many as the signature says
    mf_status* status = call();
    CHECK_THAT(mf_status_message(status), Catch::Contains("has 4 elements, wanted float32 (2, 1) with 2"));
    CHECK(taken(status) == MF_SHAPE_MISMATCH);
    host.ok(mf_variable_read(host.session, "out-weight", &weight));
    CHECK(std::equal(before, before + 3, after));
    out = mf_floats(y, 2);
    host.ok(call());
    host.ok(mf_variable_read(host.session, "out-weight", &weight));
    CHECK_FALSE(std::equal(before, before + 3, after));
    std::copy(after, after + 3, before);
  }
  CHECK(mf_job_close(job) == MF_OK);
}

TEST_CASE("warnings go to the host's log and nowhere else") {
  std::vector<std::string> lines;
  mf_session_options options{};
  options.struct_size = sizeof options;
  options.log = [](void* user, const char* line) { static_cast<std::vector<std::string>*>(user)->push_back(line); };
  options.log_user = &lines;
  Host host(options);
  const char* text =
      "local flow, tp = require 'moonflow', require('moonflow').typing\n"
      "flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 1 }) } } (function(x)\n"
      "  return flow.scope.placement('gpu', '0:0', function() return x + 1 end) end)";
  host.ok(mf_session_load_text(host.session, text, std::strlen(text), "gpu.lua"));
  CHECK_FALSE(lines.empty());
}

TEST_CASE("a prompt that a script serves answers in the host's polls") {
  Host host;
  const std::string path = "/tmp/moonflow-abi-" + std::to_string(getpid()) + ".sock";
  const std::string text = "server = require('moonflow').serve_repl('" + path + "')";
  host.ok(mf_session_load_text(host.session, text.data(), text.size(), "serve.lua"));
  host.ok(mf_session_poll(host.session, 0, nullptr));
  const int client = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  REQUIRE(::connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  const timeval patience{10, 0};
  ::setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  host.ok(mf_session_poll(host.session, 0, nullptr));
  char greeting[6] = {};
  CHECK(::recv(client, greeting, 5, MSG_WAITALL) == 5);
  CHECK(std::string(greeting) == "hello");
  ::close(client);
  const char* end = "server:close()";
  host.ok(mf_session_load_text(host.session, end, std::strlen(end), "end.lua"));
}

TEST_CASE("the table holds the same functions, and there is none for another version") {
  const mf_api* api = mf_get_api(MF_API_VERSION);
  REQUIRE(api);
  CHECK(api->struct_size == sizeof(mf_api));
  CHECK(api->session_open == mf_session_open);
  CHECK(api->prepared_close == mf_prepared_close);
  CHECK(api->prepared_interrupt == mf_prepared_interrupt);
  CHECK(std::string(api->library_version()) == mf_version());
  CHECK(mf_get_api(0) == nullptr);
  CHECK(mf_get_api(MF_API_VERSION + 1) == nullptr);
}

TEST_CASE("every function of the header says which thread may call it") {
  std::ifstream file(MOONFLOW_SOURCE "/bindings/moonflow.h");
  REQUIRE(file);
  const std::string header{std::istreambuf_iterator<char>(file), {}};
  const std::regex declaration("\n(MF_EXPORT [^;{]*?)(mf_[a-z_]+)\\(");
  int functions = 0;
  for (std::sregex_iterator it(header.begin(), header.end(), declaration), end; it != end; ++it) {
    ++functions;
    INFO((*it)[2]);
    const std::string words = (*it)[1];
    CHECK(std::regex_search(words, std::regex("MF_(ANY|OWNER|ONE)_THREAD|MF_REAL_TIME|MF_SIGNAL_SAFE")));
  }
  CHECK(functions == (sizeof(mf_api) - 8) / sizeof(void*) + 1);  // all but mf_get_api stand in the table
}
