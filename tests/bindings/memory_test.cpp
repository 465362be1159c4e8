// A host whose memory runs out, at every place in turn: the allocator that it gave, and operator new. Each call then
// gives a status or succeeds, the same call made again succeeds, and nothing is left alive at the end.
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include <catch2/catch.hpp>

#include "abi_host.h"
#include "bindings/json.h"

namespace {

// Fails the allocation that it counts down to; 0: none.
std::atomic<int64_t> new_countdown{0};
std::atomic<bool> in_library{false};  // the test's own allocations do not count
std::atomic<int64_t> new_count{0};
std::atomic<bool> others_are_out{false};  // of memory: all threads but the first
std::atomic<bool> all_are_out{false};
const std::thread::id first_thread = std::this_thread::get_id();

bool fails() {
  if (all_are_out) return true;
  if (others_are_out && std::this_thread::get_id() != first_thread) return true;
  if (!in_library || new_countdown.load(std::memory_order_relaxed) <= 0) return false;
  return new_countdown.fetch_sub(1) == 1;
}

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (in_library) ++new_count;
  if (fails()) return nullptr;
  return alignment <= alignof(std::max_align_t)
             ? std::malloc(bytes ? bytes : 1)
             : std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  if (void* memory = allocate(bytes, alignment)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate_or_throw(bytes, 1); }
void* operator new[](std::size_t bytes) { return allocate_or_throw(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t align) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(align));
}
void* operator new[](std::size_t bytes, std::align_val_t align) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(align));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, 1); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t align, const std::nothrow_t&) noexcept {
  return allocate(bytes, static_cast<std::size_t>(align));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace {

mf_session_options on_one_thread() {
  mf_session_options options{};
  options.struct_size = sizeof options;
  options.threads = 1;
  return options;
}

// A host's allocator that counts, and fails the allocation that it counts down to; where it stays out of memory, all
// that follow too.
struct Heap {
  std::atomic<int64_t> live{0}, allocations{0}, countdown{0};
  std::atomic<bool> is_out{false};
  bool stays_out = false;
  size_t largest = SIZE_MAX;  // what is larger is refused

  mf_session_options options() {
    mf_session_options options = on_one_thread();
    options.allocator.user = this;
    options.allocator.allocate = [](void* user, size_t bytes, size_t alignment) -> void* {
      Heap& heap = *static_cast<Heap*>(user);
      ++heap.allocations;
      if (heap.countdown > 0 && heap.countdown-- == 1) {
        heap.is_out = heap.stays_out;
        return nullptr;
      }
      if (heap.is_out || bytes > heap.largest) return nullptr;
      ++heap.live;
      return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    };
    options.allocator.release = [](void* user, void* memory) {
      --static_cast<Heap*>(user)->live;
      std::free(memory);
    };
    return options;
  }
};

const std::string kFolder = std::filesystem::temp_directory_path() / ("moonflow-memory-" + std::to_string(getpid()));

// Where memory runs out as compiled code is left LuaJIT falls over, so whoever may meet that does without its compiler.
const std::string kNet = std::string("jit.off()\n") + moonflow_test::kNet;

// One life of a host, call by call.
struct Life {
  mf_session_options options;
  mf_session* session = nullptr;
  mf_job *predict = nullptr, *train = nullptr;
  mf_prepared* prepared = nullptr;
  mf_bytes* bytes = nullptr;
  float x[3] = {1, 2, 3}, y[2] = {};
  mf_array input = mf_floats(x, 3), output = mf_floats(y, 2), loss = mf_floats(y, 1);

  std::vector<std::function<mf_status*()>> calls() {
    return {
        [this] { return mf_session_open(&options, &session); },
        [this] { return mf_session_load_text(session, kNet.data(), kNet.size(), "life.lua"); },
        [this] { return mf_job_find(session, "predict", &predict); },
        [this] { return mf_job_find(session, "train", &train); },
        [this] { return mf_job_call(train, &input, 1, &loss, 1); },
        [this] { return mf_job_call(predict, &input, 1, &output, 1); },
        [this] {
          return mf_job_call_async(
              predict, &input, 1, [](void*, const mf_status*, const mf_array*, int32_t) {}, nullptr);
        },
        [this] { return mf_session_sync(session); },
        [this] { return mf_job_call_for(predict, &input, 1, &output, 1, -1); },
        [this] { return mf_job_prepare(predict, &prepared); },
        [this] { return mf_prepared_publish(prepared); },
        [this] { return mf_session_save(session, kFolder.c_str(), 1); },
        [this] { return mf_session_load(session, kFolder.c_str()); },
        [this] {
          mf_bytes_free(std::exchange(bytes, nullptr));
          return mf_session_save_memory(session, &bytes);
        },
        [this] { return mf_session_load_memory(session, mf_bytes_data(bytes), mf_bytes_size(bytes)); },
    };
  }
  static constexpr size_t kFileCalls = 4;  // the last ones, which save and load

  void end() {
    if (prepared) CHECK(mf_prepared_close(prepared) == MF_OK);
    for (mf_job* job : {predict, train})
      if (job) CHECK(mf_job_close(job) == MF_OK);
    mf_bytes_free(bytes);
    if (session) CHECK(mf_session_close(session) == MF_OK);
  }
};

// Lives once with the n-th allocation failing. `arm(n)` sets the countdown, `disarm()` gives whether it was reached.
template <class Arm, class Disarm>
bool live(int64_t n, const mf_session_options& options, const Arm& arm, const Disarm& disarm) {
  Life life;
  life.options = options;
  bool reached = false;
  size_t index = 0;
  arm(n);
  for (const auto& call : life.calls()) {
    INFO("call " << index++ << ", allocation " << n);
    in_library = true;
    mf_status* status = call();
    in_library = false;
    if (status) {
      reached = disarm() || reached;
      const std::string message = mf_status_message(status);
      CHECK(!message.empty());
      CHECK(mf_status_free(status) == MF_OK);
      INFO(message);
      CHECK(reached);  // nothing fails but for want of memory
      status = call();
      const std::string again = status ? mf_status_message(status) : "";
      mf_status_free(status);
      REQUIRE(again == "");
    }
  }
  reached = disarm() || reached;
  life.end();
  return reached;
}

// Makes the call with its first allocation failing, then the second, until it needs no more: each time a status and,
// made again, success. Gives the number of allocations.
template <class Arm, class Disarm>
int64_t fail_each_allocation(const std::function<mf_status*()>& call, const Arm& arm, const Disarm& disarm) {
  for (int64_t n = 1;; ++n) {
    INFO("allocation " << n);
    arm(n);
    in_library = true;
    mf_status* status = call();
    in_library = false;
    const bool reached = disarm();
    if (!reached) {
      REQUIRE(status == nullptr);
      return n - 1;
    }
    if (status == nullptr) continue;  // what failed could be done without
    CHECK(mf_status_message(status)[0] != '\0');
    CHECK(mf_status_free(status) == MF_OK);
    mf_status* again = call();
    INFO(mf_status_message(again));
    REQUIRE(again == nullptr);
  }
}

// Every allocation at first, then with growing steps: a life has tens of thousands, most of them alike.
int64_t next(int64_t n) { return n + 1 + n / 40; }

}  // namespace

TEST_CASE("a host's allocator serves arrays, plans and Lua, and gets everything back") {
  Heap heap;
  const mf_session_options options = heap.options();
  Life life;
  life.options = options;
  for (const auto& call : life.calls()) {
    mf_status* status = call();
    INFO(mf_status_message(status));
    REQUIRE(status == nullptr);
  }
  CHECK(heap.allocations > 1000);
  CHECK(heap.live > 0);
  life.end();
  CHECK(heap.live == 0);
  std::filesystem::remove_all(kFolder);
}

TEST_CASE("prepared calls take no memory, one of a convolutional network and one that draws") {
  const char* script = R"(
local flow = require "moonflow"
local tp = flow.typing
flow.global_function { name = "look", inputs = { x = tp.Numpy.Placeholder({ 1, 1, 12, 12 }) }, returns = tp.Numpy } (
  function(x)
    local conv = flow.layers.conv2d(x, 8, 3, { padding = "SAME", activation = flow.nn.relu, name = "conv" })
    local pool = flow.nn.max_pool2d(conv, { ksize = 2, strides = 2, padding = "VALID" })
    local norm = flow.layers.batch_normalization(pool, { trainable = false, name = "norm" })
    local flat = flow.reshape(flow.math.tanh(norm), { 1, -1 })
    local hidden = flow.layers.dense(flat, 33, { activation = flow.nn.relu, name = "hidden" })
    return flow.nn.softmax(flow.layers.dense(hidden, 5, { name = "out" }))
  end)
flow.global_function { name = "draw", inputs = { x = tp.Numpy.Placeholder({ 3 }) }, returns = tp.Numpy } (
  function(x)
    local normal, uniform = flow.random.normal { shape = { 3 } }, flow.random.uniform(0, 1, { 3 })
    local whole = flow.cast(flow.random.randint(0, 9, { 3 }), flow.float)
    return flow.nn.dropout(x, 0.1) + normal + uniform + whole + flow.random.bernoulli(uniform)
  end)
)";
  Heap heap;
  const mf_session_options options = heap.options();
  moonflow_test::Host host(options);
  host.ok(mf_session_load_text(host.session, script, std::strlen(script), "look.lua"));
  std::vector<float> image(144);
  for (size_t i = 0; i < image.size(); ++i) image[i] = static_cast<float>(i % 7) - 3;
  const std::vector<float> wanted = host.call("look", image, 5);
  const auto check = [&](const char* name, const std::vector<float>& x, const auto& see) {
    mf_job* job = host.find(name);
    mf_prepared* prepared = nullptr;
    host.ok(mf_job_prepare(job, &prepared));
    mf_array input{}, output{};
    host.ok(mf_prepared_input(prepared, 0, &input));
    host.ok(mf_prepared_output(prepared, 0, &output));
    std::memcpy(input.data, x.data(), x.size() * sizeof(float));
    REQUIRE(mf_prepared_warm_up(prepared) == MF_OK);
    const float* const given = static_cast<const float*>(output.data);
    const float before_runs = given[0];
    std::vector<float> outside(output.count);
    const mf_array ring = mf_floats(outside.data(), outside.size()), given_input = mf_floats(x.data(), x.size());
    const int64_t before = heap.allocations;
    new_count = 0;
    in_library = true;
    for (int i = 0; i < 100; ++i) {
      mf_prepared_bind_input(prepared, 0, i % 3 ? &given_input : nullptr);
      mf_prepared_bind_output(prepared, 0, i % 2 ? nullptr : &ring);
      mf_prepared_run(prepared);
    }
    in_library = false;
    CHECK(new_count == 0);
    CHECK(heap.allocations == before);
    see(given, before_runs);
    CHECK(mf_prepared_close(prepared) == MF_OK);
    CHECK(mf_job_close(job) == MF_OK);
  };
  check("look", image, [&](const float* given, float) {
    for (int i = 0; i < 5; ++i) CHECK(given[i] == Approx(wanted[i]).margin(1e-6));
  });
  check("draw", {1, 2, 3}, [](const float* given, float before) { CHECK(given[0] != before); });
}

TEST_CASE("a call that has no memory for its second result keeps none for its first") {
  Heap heap;
  heap.stays_out = true;
  const mf_session_options options = heap.options();
  moonflow_test::Host host(options);
  host.load(R"(
jit.off()
local flow = require "moonflow"
local tp = flow.typing
flow.global_function { name = "both", inputs = { x = tp.Numpy.Placeholder({ 1, 3 }) },
                       returns = tp.Tuple { tp.Numpy, tp.Numpy } } (function(x) return x * 2, x * 3 end)
function live_bytes()
  collectgarbage()
  collectgarbage()
  return require("moonflow.session").handle():memory().live_bytes
end
)");
  mf_job* job = host.find("both");
  float x[3] = {1, 2, 3}, y[3] = {}, z[3] = {};
  const mf_array input = mf_floats(x, 3);
  mf_array outputs[] = {mf_floats(y, 3), mf_floats(z, 3)};
  host.ok(mf_job_call(job, &input, 1, outputs, 2));
  host.load("before = live_bytes()", "before.lua");
  int64_t n = 1;
  for (bool reached = true; reached; ++n) {
    INFO("allocation " << n);
    heap.countdown = n;
    mf_status_free(mf_job_call(job, &input, 1, outputs, 2));
    reached = heap.countdown == 0;
    heap.countdown = 0;
    heap.is_out = false;
    host.load("assert(live_bytes() == before, live_bytes() - before)", "after.lua");
  }
  CHECK(n > 5);
  CHECK(mf_job_close(job) == MF_OK);
}

TEST_CASE("each allocation of the host's allocator may fail, and all after it until the call is over") {
  Heap heap;
  heap.stays_out = GENERATE(false, true);
  const mf_session_options options = heap.options();
  int64_t n = 1;
  for (bool reached = true; reached; n = next(n)) {
    reached = live(
        n, options, [&](int64_t count) { heap.countdown = count; },
        [&] {
          const bool was_reached = heap.countdown == 0;
          heap.countdown = 0;
          heap.is_out = false;
          return was_reached;
        });
    REQUIRE(heap.live == 0);
  }
  CHECK(n > 1000);
  std::filesystem::remove_all(kFolder);
}

TEST_CASE("a session that one allocation is missing for says so by its code") {
  Heap heap;
  const mf_session_options options = heap.options();
  int refused = 0;
  bool reached = true;
  for (int64_t n = 1; reached; n = next(n)) {
    heap.countdown = n;
    mf_session* session = nullptr;
    mf_status* status = mf_session_open(&options, &session);
    reached = heap.countdown == 0;
    heap.countdown = 0;
    INFO("allocation " << n << ": " << mf_status_message(status));
    CHECK(mf_status_code(status) == (session == nullptr ? MF_OUT_OF_MEMORY : MF_OK));
    refused += session == nullptr;
    mf_status_free(status);
    mf_session_close(session);
    REQUIRE(heap.live == 0);
  }
  CHECK(refused > 50);
}

TEST_CASE("a script that one allocation is missing for says so by its code") {
  const std::string text =
      GENERATE(as<std::string>(), "jit.off() local t = {} for i = 1, 200 do t[i] = { i } end", kNet);
  Heap heap;
  const mf_session_options options = heap.options();
  bool reached = true;
  for (int64_t n = 1; reached; n = next(n)) {
    moonflow_test::Host host(options);
    heap.countdown = n;
    mf_status* status = mf_session_load_text(host.session, text.data(), text.size(), "net.lua");
    reached = heap.countdown == 0;
    heap.countdown = 0;
    INFO("allocation " << n << ": " << mf_status_message(status));
    CHECK((mf_status_code(status) == MF_OUT_OF_MEMORY || mf_status_code(status) == MF_OK));
    mf_status_free(status);
  }
}

TEST_CASE("a file that a script requires and has no memory for is out of memory too") {
  std::filesystem::create_directories(kFolder);
  const std::string path = kFolder + "/large.lua";
  std::ofstream(path) << "return {" << std::string(1 << 20, ' ') << "'" << std::string(1 << 20, 'x') << "'}";
  Heap heap;
  const mf_session_options options = heap.options();
  moonflow_test::Host host(options);
  host.load(("package.path = '" + kFolder + "/?.lua;' .. package.path").c_str(), "path.lua");
  heap.largest = 1 << 18;
  const std::string script = "require 'large'";
  mf_status* status = mf_session_load_text(host.session, script.data(), script.size(), "game.lua");
  INFO(mf_status_message(status));
  CHECK(mf_status_code(status) == MF_OUT_OF_MEMORY);
  mf_status_free(status);
  heap.largest = SIZE_MAX;
  host.load("assert(require 'large'[1]:sub(1, 1) == 'x')", "game.lua");
  std::filesystem::remove_all(kFolder);
}

TEST_CASE("a callback that has no memory for a text is out of memory too") {
  Heap heap;
  const mf_session_options options = heap.options();
  moonflow_test::Host host(options);
  host.load("jit.off()", "off.lua");
  for (const std::string asks : {"job(flow.np.zeros({ 1 }))(eat) flow.sync()", "flow.spawn(eat) flow.sync()"}) {
    const std::string script =
        "local flow, tp = require 'moonflow', require('moonflow').typing\n"
        "local function eat() return ('x'):rep(2^20) end\n"
        "local job = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 1 }) },\n"
        "                                   returns = tp.Callback[tp.Numpy] } (function(x) return x end)\n" +
        asks;
    heap.largest = 1 << 18;
    mf_status* status = mf_session_load_text(host.session, script.data(), script.size(), "game.lua");
    heap.largest = SIZE_MAX;
    INFO(mf_status_message(status));
    CHECK(mf_status_code(status) == MF_OUT_OF_MEMORY);
    mf_status_free(status);
  }
}

TEST_CASE("each operator new may fail") {
  const mf_session_options options = on_one_thread();
  int64_t n = 1;
  for (bool reached = true; reached; n = next(n)) {
    reached = live(
        n, options, [](int64_t count) { new_countdown = count; }, [] { return new_countdown.exchange(0) <= 0; });
  }
  CHECK(n > 1000);
  std::filesystem::remove_all(kFolder);
}

TEST_CASE("a run whose thread has no memory at all ends with an error") {
  const mf_session_options options = on_one_thread();
  moonflow_test::Host host(options);
  host.load(R"(
local flow = require "moonflow"
local tp = flow.typing
flow.global_function { name = "a_job_whose_name_is_too_long_to_lie_within_a_string",
                       inputs = { at = tp.Numpy.Placeholder({ 1 }, { dtype = flow.int32 }) },
                       returns = tp.Callback[tp.Numpy] } (function(at)
  return flow.gather(flow.get_variable("table", { shape = { 3 }, initializer = flow.zeros_initializer() }), at)
end)
)");
  mf_job* job = host.find("a_job_whose_name_is_too_long_to_lie_within_a_string");
  int32_t outside = 3;
  const mf_array input = mf_int32s(&outside, 1);
  mf_code code = MF_OK;
  const auto keep = [](void* user, const mf_status* error, const mf_array*, int32_t) {
    *static_cast<mf_code*>(user) = mf_status_code(error);
  };
  others_are_out = true;
  mf_status* status = mf_job_call_async(job, &input, 1, keep, &code);
  if (status == nullptr) status = mf_session_sync(host.session);
  others_are_out = false;
  host.ok(status);
  CHECK(code == MF_OUT_OF_MEMORY);
  CHECK(mf_job_close(job) == MF_OK);
}

TEST_CASE("a host that has no memory at all is told so by each call, and can close") {
  Heap heap;
  Life life;
  life.options = heap.options();
  const auto calls = life.calls();
  for (const auto& call : calls) REQUIRE(call() == nullptr);
  Life again = life;  // what it looks up once more does not replace what is to be closed
  const auto more_calls = again.calls();
  std::array<mf_status*, 16> statuses{};
  heap.is_out = all_are_out = true;
  for (size_t i = 1; i < more_calls.size(); ++i) statuses[i] = more_calls[i]();
  const mf_code closed = mf_session_close(std::exchange(life.session, nullptr));
  heap.is_out = all_are_out = false;
  CHECK(closed == MF_OK);
  for (size_t i = 1; i < calls.size(); ++i) {
    INFO("call " << i);
    CHECK((statuses[i] == nullptr || mf_status_code(statuses[i]) == MF_OUT_OF_MEMORY));
    mf_status_free(statuses[i]);
  }
  life.bytes = again.bytes;
  life.end();
  CHECK(heap.live == 0);
  std::filesystem::remove_all(kFolder);
}

TEST_CASE("a message for which memory runs out is not half of one") {
  const mf_session_options options = on_one_thread();
  moonflow_test::Host host(options);
  host.load(moonflow_test::kNet);
  mf_type type{};
  type.struct_size = sizeof type;
  const auto ask = [&] {
    in_library = true;
    mf_status* status = mf_variable_find(host.session, "a_variable_that_nobody_has_made", &type);
    in_library = false;
    const std::string message = mf_status_message(status);
    const mf_code code = mf_status_code(status);
    mf_status_free(status);
    return std::make_pair(code, message);
  };
  const auto whole = ask();
  REQUIRE(whole.first == MF_NOT_FOUND);
  int64_t n = 1;
  for (bool reached = true; reached; ++n) {
    new_countdown = n;
    const auto told = ask();
    reached = new_countdown.exchange(0) <= 0;
    INFO("allocation " << n << ": " << told.second);
    CHECK((told == whole || told.first == MF_OUT_OF_MEMORY));
  }
  CHECK(n > 3);
}

TEST_CASE("every single operator new of defining jobs may fail") {
  const mf_session_options options = on_one_thread();
  Life life;
  life.options = options;
  const auto calls = life.calls();
  REQUIRE(calls[0]() == nullptr);
  const int64_t count = fail_each_allocation(
      calls[1], [](int64_t n) { new_countdown = n; }, [] { return new_countdown.exchange(0) <= 0; });
  CHECK(count > 500);
  for (size_t i = 2; i < calls.size(); ++i) REQUIRE(calls[i]() == nullptr);
  life.end();
  std::filesystem::remove_all(kFolder);
}

TEST_CASE("a job that was defined although an operator new failed computes what it would have") {
  const mf_session_options options = on_one_thread();
  moonflow_test::Host host(options);
  const std::string script = R"(
local flow = require "moonflow"
local tp = flow.typing
flow.global_function { name = "chain", inputs = { x = tp.Numpy.Placeholder({ 3 }) }, returns = tp.Numpy } (function(x)
  return flow.math.square(flow.math.reciprocal_no_nan(flow.math.negative(x)))
end)
)";
  const std::vector<float> x = {1, 2, 4}, wanted = {1, 0.25f, 0.0625f};
  int64_t n = 1;
  for (bool reached = true; reached; ++n) {
    INFO("allocation " << n);
    new_countdown = n;
    in_library = true;
    mf_status* status = mf_session_load_text(host.session, script.data(), script.size(), "chain.lua");
    in_library = false;
    reached = new_countdown.exchange(0) <= 0;
    if (status == nullptr) REQUIRE(host.call("chain", x, 3) == wanted);
    mf_status_free(status);
  }
  CHECK(n > 100);
}

TEST_CASE("every single operator new of saving and loading may fail") {
  const mf_session_options options = on_one_thread();
  Life life;
  life.options = options;
  const auto calls = life.calls();
  for (const auto& call : calls) REQUIRE(call() == nullptr);
  for (size_t i = calls.size() - Life::kFileCalls; i < calls.size(); ++i) {
    INFO("call " << i);
    const int64_t count = fail_each_allocation(
        calls[i], [](int64_t n) { new_countdown = n; }, [] { return new_countdown.exchange(0) <= 0; });
    CHECK(count > 30);
  }
  life.end();
  std::filesystem::remove_all(kFolder);
}

TEST_CASE("every single allocation of reading, copying and writing JSON may fail") {
  using moonflow::Json;
  const std::string text =
      R"({"a list":[1,-2.5,true,null,"a text too long to lie within a string, with \"quotes\" and \u00fc",[[],{}]],)"
      R"("an object":{"x":{"y":{"z":[{"w":"another text that is too long to lie within a string"}]}}}})";
  const auto written_bytes = [&] {
    Json value;
    moonflow::JsonFault fault;
    if (!moonflow::read_json(text, value, fault)) return size_t{0};
    const Json copy = Json::Object{{"first", value}, {"second", Json::Array{value, std::move(value)}}};
    return moonflow::write_json(copy, moonflow::JsonStyle::Indented).size();
  };
  const size_t wanted = written_bytes();
  REQUIRE(wanted > 3 * text.size());
  int64_t failures = 0;
  for (bool reached = true; reached;) {
    size_t bytes = wanted;
    new_countdown = failures + 1;
    in_library = true;
    try {
      bytes = written_bytes();
    } catch (const std::bad_alloc&) {
    }
    in_library = false;
    reached = new_countdown.exchange(0) <= 0;
    failures += reached;
    INFO("allocation " << failures);
    REQUIRE(bytes == wanted);
  }
  CHECK(failures > 50);
}
