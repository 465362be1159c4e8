// The C++ header as a host uses it: owners, exceptions, vectors, and handlers that throw.
#include <catch2/catch.hpp>

#include <poll.h>

#include <cstdint>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "moonflow.hpp"

namespace {

// A type of the host's own.
struct Narrow {
  uint16_t bits;
};

}  // namespace

template <>
struct moonflow::DtypeOf<Narrow> {
  static constexpr mf_dtype value = MF_BFLOAT16;
};

namespace {

moonflow::Session session() {
  moonflow::Options options;
  options.threads = 1;
  moonflow::Session session(std::move(options));
  session.load_file(MOONFLOW_TEST_JOBS);
  return session;
}

using Floats = std::vector<float>;

// The code that a statement fails with.
template <typename Work>
mf_code code_of(Work work) {
  try {
    work();
  } catch (const moonflow::Error& error) {
    return error.code();
  }
  return MF_OK;
}

}  // namespace

TEST_CASE("a job is called with vectors and gives vectors") {
  moonflow::Session host = session();
  moonflow::Job scale = host.job("scale");
  CHECK(scale({Floats{1, 2, 3}}) == std::vector<Floats>{{2, 4, 6}});

  moonflow::Job pick = host.job("pick");
  Floats picked(4);
  std::vector<int32_t> index = {1, 0}, same(2);
  pick.call({Floats{1, 2, 3, 4}, index}, {picked, same});
  CHECK(picked == Floats{3, 4, 1, 2});
  CHECK(same == index);
  CHECK(code_of([&] { pick({picked, index}); }) == MF_DTYPE_MISMATCH);  // its second output is not float32

  const std::vector<moonflow::Type> inputs = pick.inputs(), outputs = pick.outputs();
  REQUIRE(inputs.size() == 2);
  CHECK(inputs[1].name == "index");
  CHECK(inputs[1].dtype == MF_INT32);
  CHECK(outputs[0].dims == std::vector<int64_t>{2, 2});
}

TEST_CASE("the jobs are listed by name, and those of a text with it") {
  moonflow::Session host = session();
  const std::vector<std::string> of_file = {"learn", "pick", "predict", "scale"};
  CHECK(host.job_names() == of_file);
  host.load_text("local flow = require 'moonflow'\nflow.global_function { name = 'none' } (function() end)", "a.lua");
  CHECK(host.job_names() == std::vector<std::string>{"learn", "none", "pick", "predict", "scale"});
  host.load_text("require('moonflow').clear_default_session()", "b.lua");
  CHECK(host.job_names().empty());
}

TEST_CASE("an error of the script arrives whole") {
  moonflow::Session host = session();
  try {
    host.load_text("local flow = require 'moonflow'\nlocal function fall() error('oops') end\nfall()", "broken.lua");
    FAIL("nothing was thrown");
  } catch (const moonflow::Error& error) {
    CHECK(error.code() == MF_SCRIPT_ERROR);
    CHECK(std::string(error.what()).find("oops") != std::string::npos);
    CHECK(error.where() == "broken.lua:2");
    CHECK(error.traceback().find("broken.lua:3") != std::string::npos);
  }
  try {
    host.load_text("error(setmetatable({}, { __tostring = function() error('no text') end }))", "mute.lua");
    FAIL("nothing was thrown");
  } catch (const moonflow::Error& error) {
    CHECK(std::string(error.what()).find("(an error whose __tostring fails)") != std::string::npos);
    CHECK(error.traceback().find("mute.lua:1") != std::string::npos);
  }
  CHECK(code_of([&] { host.job("scales"); }) == MF_NOT_FOUND);
  CHECK(code_of([&] { host.job("scale")({Floats{1, 2}}); }) == MF_SHAPE_MISMATCH);
  CHECK(host.job("scale")({Floats{1, 1, 1}})[0] == Floats{2, 2, 2});
}

TEST_CASE("a host's own type of two bytes is a dtype") {
  moonflow::Session host = session();
  const std::string text =
      "local flow = require 'moonflow'\n"
      "local tp = flow.typing\n"
      "flow.global_function { name = 'twice', returns = tp.Numpy,\n"
      "  inputs = { x = tp.Numpy.Placeholder({ 2 }, { dtype = 'bfloat16' }) } } (function(x) return x + x end)";
  host.load_text(text, "twice.lua");
  const std::vector<Narrow> x = {{0x3f80}, {0xc040}};  // 1 and -3
  std::vector<Narrow> twice(2);
  host.job("twice").call({x}, {twice});
  CHECK(twice[0].bits == 0x4000);  // 2
  CHECK(twice[1].bits == 0xc0c0);  // -6
}

TEST_CASE("a launched call brings its result to the handler, and keeps the handler until then") {
  moonflow::Session host = session();
  moonflow::Job scale = host.job("scale");
  Floats got;
  auto token = std::make_shared<int>(0);
  scale.launch({Floats{1, 2, 3}}, [&got, token](const moonflow::Result& result) {
    got.assign(result.output(0).begin(), result.output(0).end());
  });
  CHECK(token.use_count() == 2);
  host.sync();
  CHECK(got == Floats{2, 4, 6});
  CHECK(token.use_count() == 1);
}

TEST_CASE("a sync with a time says whether all is done") {
  moonflow::Session host = session();
  moonflow::Job scale = host.job("scale");
  int results = 0;
  for (int i = 0; i < 3; ++i) scale.launch({Floats{1, 2, 3}}, [&results](const moonflow::Result&) { ++results; });
  CHECK(!host.sync(0));
  while (!host.sync(1)) {
  }
  CHECK(results == 3);
  CHECK(host.sync());
}

TEST_CASE("a call has a time, and a run that was launched is waited for or cancelled") {
  moonflow::Session host = session();
  moonflow::Job scale = host.job("scale");
  Floats y(3);
  CHECK(scale.call_for(60e3, {Floats{1, 2, 3}}, {y}));
  CHECK(y == Floats{2, 4, 6});
  host.load_text(
      "local flow, tp = require 'moonflow', require('moonflow').typing\n"
      "flow.global_function { name = 'slow', inputs = { x = tp.Numpy.Placeholder({ 256, 256 }) },\n"
      "  returns = tp.Numpy } (function(x)\n"
      "  for _ = 1, 20 do x = flow.matmul(x, x) end\n"
      "  return flow.math.reduce_sum(x)\n"
      "end)",
      "slow.lua");
  moonflow::Job slow = host.job("slow");
  const Floats x(256 * 256);
  Floats sum = {7};
  int ended = 0, stopped = 0;
  const auto on_result = [&](const moonflow::Result& result) { ++(result.failed() ? stopped : ended); };
  const mf_run first = slow.launch({x}, on_result), second = slow.launch({x}, on_result);
  host.cancel(second);
  CHECK_FALSE(host.wait(second, 0));
  CHECK_FALSE(slow.call_for(0, {x}, {sum}));
  CHECK(sum[0] == 7);
  CHECK(host.wait(first));
  CHECK(host.wait(second));
  CHECK(ended + stopped == 2);
  CHECK(code_of([&] { host.cancel(second + 100); }) == MF_NOT_FOUND);
}

TEST_CASE("what handlers throw is thrown by the polls, one by one, and harms nothing") {
  moonflow::Session host = session();
  moonflow::Job scale = host.job("scale");
  int calls = 0;
  for (int i = 0; i < 2; ++i) {
    scale.launch({Floats{1, 2, 3}}, [&calls, i](const moonflow::Result&) {
      ++calls;
      throw std::runtime_error("from handler " + std::to_string(i));
    });
  }
  scale.launch({Floats{1, 2, 3}}, [&calls](const moonflow::Result&) { ++calls; });
  CHECK_THROWS_WITH(host.sync(), "from handler 0");
  CHECK(calls == 3);
  CHECK_THROWS_WITH(host.poll(), "from handler 1");
  CHECK(host.poll() == 0);
  CHECK(scale({Floats{1, 1, 1}})[0] == Floats{2, 2, 2});
}

TEST_CASE("a handler that lets the failure of its run pass sees it thrown by the poll") {
  moonflow::Session host = session();
  moonflow::Job pick = host.job("pick");
  bool failed = false;
  const std::vector<int32_t> outside = {0, 9};
  pick.launch({Floats{1, 2, 3, 4}, outside}, [&failed](const moonflow::Result& result) {
    failed = result.failed();
    result.output(0);
  });
  CHECK(code_of([&] { host.sync(); }) == MF_OUT_OF_RANGE);
  CHECK(failed);
}

TEST_CASE("a handler may launch, and may not wait") {
  moonflow::Session host = session();
  moonflow::Job scale = host.job("scale");
  mf_code waiting = MF_OK;
  Floats second;
  scale.launch({Floats{1, 2, 3}}, [&](const moonflow::Result& first) {
    waiting = code_of([&] { host.sync(); });
    scale.launch({first.output(0)}, [&](const moonflow::Result& result) {
      second.assign(result.output(0).begin(), result.output(0).end());
    });
  });
  host.sync();
  CHECK(waiting == MF_WRONG_STATE);
  CHECK(second == Floats{4, 8, 12});
}

TEST_CASE("a poll without a budget delivers one result all the same") {
  moonflow::Session host = session();
  moonflow::Job scale = host.job("scale");
  int delivered = 0;
  for (int i = 0; i < 2; ++i) scale.launch({Floats{1, 2, 3}}, [&](const moonflow::Result&) { ++delivered; });
  pollfd ready = {host.descriptor(), POLLIN, 0};
  for (int expected = 1; expected <= 2; ++expected) {
    // The descriptor may be early, when a value is there and the end of its run is not.
    for (int32_t polled = 0; polled == 0;) {
      REQUIRE(poll(&ready, 1, 60 * 1000) == 1);
      polled = host.poll(0);
    }
    CHECK(delivered == expected);
  }
}

TEST_CASE("too many calls in flight are refused, and none is lost") {
  moonflow::Session host = session();
  moonflow::Job scale = host.job("scale");
  int launched = 0, delivered = 0;
  mf_code code = MF_OK;
  while (code == MF_OK && launched < 1000) {
    code = code_of([&] { scale.launch({Floats{1, 2, 3}}, [&](const moonflow::Result&) { ++delivered; }); });
    launched += code == MF_OK;
  }
  CHECK(code == MF_BUSY);
  host.sync();
  CHECK(delivered == launched);
  while (scale.try_launch({Floats{1, 2, 3}}, [&](const moonflow::Result&) { --delivered; })) --launched;
  CHECK(launched < delivered);
  host.sync();
  CHECK(delivered == launched);
  CHECK(code_of([&] { scale.try_launch({Floats{1, 2}}, [](const moonflow::Result&) {}); }) == MF_SHAPE_MISMATCH);
}

TEST_CASE("a session that ends takes the handlers of what was not delivered with it") {
  auto token = std::make_shared<int>(0);
  {
    moonflow::Session host = session();
    host.job("scale").launch({Floats{1, 2, 3}}, [token](const moonflow::Result&) {});
  }
  CHECK(token.use_count() == 1);
}

TEST_CASE("the handlers of what was not delivered end with their session, though a job of it lives on") {
  auto token = std::make_shared<int>(0);
  auto host = std::make_unique<moonflow::Session>(session());
  moonflow::Job scale = host->job("scale");
  scale.launch({Floats{1, 2, 3}}, [token](const moonflow::Result&) {});
  host.reset();
  CHECK(token.use_count() == 1);
  host = std::make_unique<moonflow::Session>(session());
  scale = host->job("scale");
  scale.launch({Floats{1, 2, 3}}, [token](const moonflow::Result&) {});
  *host = session();
  CHECK(token.use_count() == 1);
}

TEST_CASE("objects are moved, and end in any order") {
  moonflow::Session first = session();
  moonflow::Session host = std::move(first);
  CHECK(code_of([&] { first.job("scale"); }) == MF_INVALID_HANDLE);
  moonflow::Job scale = host.job("scale");
  moonflow::Prepared prepared = scale.prepare();
  host = session();  // ends the session of the job
  CHECK(code_of([&] { scale({Floats{1, 1, 1}}); }) == MF_INVALID_HANDLE);
  prepared.input<float>(0)[0] = 3;
  CHECK(prepared.run() == MF_OK);
  CHECK(prepared.output<float>(0)[0] == 6);
  CHECK(host.job("scale")({Floats{1, 1, 1}})[0] == Floats{2, 2, 2});
}

TEST_CASE("what has been moved away says that it has no handle") {
  moonflow::Session session;
  session.load_file(MOONFLOW_TEST_JOBS);
  moonflow::Job job = session.job("scale");
  const moonflow::Job kept = std::move(job);
  const moonflow::Session moved = std::move(session);
  const std::vector<float> x = {1, 2, 3};
  std::vector<float> y(3);
  CHECK_THROWS_WITH(job.launch({x}, [](const moonflow::Result&) {}), "NULL is no handle of a job");
  CHECK_THROWS_WITH(job.call({x}, {y}), "NULL is no handle of a job");
  CHECK_THROWS_WITH(session.poll(), "NULL is no handle of a session");
}

TEST_CASE("weights are read, written, kept in memory and published") {
  moonflow::Session host = session();
  moonflow::Job scale = host.job("scale");
  moonflow::Prepared prepared = scale.prepare();
  const moonflow::Span<float> x = prepared.input<float>(0);
  const moonflow::Span<const float> y = prepared.output<float>(0);
  REQUIRE(x.size() == 3);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  CHECK(prepared.warm_up() == MF_OK);
  CHECK(prepared.run() == MF_OK);
  CHECK(y[2] == 4);
  CHECK_THROWS_AS(prepared.input<double>(0), std::invalid_argument);
  CHECK_THROWS_WITH(prepared.input<double>(0), "moonflow: prepared input 0 is float32, asked for as float64");
  CHECK_THROWS_WITH(prepared.output<int64_t>(0), "moonflow: prepared output 0 is float32, asked for as int64");
  scale.launch({Floats{1, 2, 3}}, [](const moonflow::Result& result) { result.output<int32_t>(0); });
  CHECK_THROWS_WITH(host.sync(), "moonflow: output 0 is float32, asked for as int32");
  CHECK(code_of([&] { prepared.input<float>(1); }) == MF_OUT_OF_RANGE);

  const moonflow::Bytes before = host.save_memory();
  host.write("factor", Floats{5, 5, 5});
  CHECK(host.read("factor") == Floats{5, 5, 5});
  prepared.publish();
  CHECK(prepared.run() == MF_OK);
  CHECK(y[2] == 10);
  host.load_memory(before);
  CHECK(scale({Floats{1, 1, 1}})[0] == Floats{2, 2, 2});
  const Floats ones{1, 1, 1};
  const std::vector<moonflow::Input> known_at_run_time(1, ones);
  CHECK(scale(known_at_run_time)[0] == Floats{2, 2, 2});
  int32_t inputs = 0;
  CHECK((mf_job_input_count(scale.handle(), &inputs) == nullptr && inputs == 1));
  host.load_text("require('moonflow').publish()", "publish.lua");
  CHECK(prepared.run() == MF_OK);
  CHECK(y[2] == 4);
  CHECK(code_of([&] { host.read("factors"); }) == MF_NOT_FOUND);
}

TEST_CASE("a prepared call says what it has failed with") {
  moonflow::Session host = session();
  moonflow::Prepared pick = host.job("pick").prepare();
  CHECK(!pick.failure());
  pick.input<int32_t>(1)[1] = 5;
  CHECK(pick.run() == MF_OUT_OF_RANGE);
  const std::optional<moonflow::Error> failure = pick.failure();
  REQUIRE(failure);
  CHECK(failure->code() == MF_OUT_OF_RANGE);
  CHECK(failure->job() == "pick");
  CHECK(failure->where().find("jobs.lua:") != std::string::npos);
}

TEST_CASE("a prepared call reads and writes vectors of the host") {
  moonflow::Session host = session();
  moonflow::Prepared scale = host.job("scale").prepare();
  const Floats x = {1, 2, 3};
  Floats y(3), wrong(2);
  scale.bind_input(0, x);
  scale.bind_output(0, y);
  CHECK(scale.run() == MF_OK);
  CHECK(y == Floats{2, 4, 6});
  CHECK(code_of([&] { scale.bind_output(0, wrong); }) == MF_SHAPE_MISMATCH);
  scale.bind_own_input(0);
  scale.bind_own_output(0);
  scale.input<float>(0)[0] = 5;
  CHECK(scale.interrupt() == MF_OK);  // without a run
  CHECK(scale.run() == MF_OK);
  CHECK(scale.output<float>(0)[0] == 10);
  CHECK(y[0] == 2);
}

TEST_CASE("the log goes to the host's function, wherever the session is moved to") {
  std::string log;
  moonflow::Options options;
  options.log = [&log](const char* line) {
    log += line;
    throw std::runtime_error("a log that fails");
  };
  moonflow::Session made(std::move(options));
  moonflow::Session host = std::move(made);
  host.load_text(
      "local flow = require 'moonflow'\n"
      "flow.global_function { inputs = { x = flow.typing.Numpy.Placeholder({ 3 }) }, returns = flow.typing.Numpy }(\n"
      "  function(x) return flow.scope.placement('gpu', '0:0', function() return flow.nn.relu(x) end) end)\n",
      "gpu.lua");
  CHECK(log.find("gpu") != std::string::npos);
}

TEST_CASE("a session is loaded beside the rest of a program, and goes on where it is wanted") {
  Floats got;
  std::future<moonflow::Session> loading = std::async(std::launch::async, [&got] {
    moonflow::Session host = session();
    host.job("scale").launch({Floats{1, 2, 3}}, [&got](const moonflow::Result& result) {
      got.assign(result.output(0).begin(), result.output(0).end());
    });
    host.hand_over();
    return host;
  });
  moonflow::Session host = loading.get();
  CHECK(code_of([&] { host.poll(); }) == MF_WRONG_THREAD);
  host.take_over();
  CHECK(code_of([&] { host.take_over(); }) == MF_WRONG_STATE);
  host.sync();
  CHECK(got == Floats{2, 4, 6});
  CHECK(host.job("scale")({Floats{1, 1, 1}})[0] == Floats{2, 2, 2});
}

TEST_CASE("another thread is told that the session is not its own, but may interrupt it") {
  moonflow::Session host = session();
  mf_code code = MF_OK;
  std::thread([&] {
    code = code_of([&] { host.poll(); });
    host.interrupt();
  }).join();
  CHECK(code == MF_WRONG_THREAD);
  CHECK(code_of([&] { host.job("scale")({Floats{1, 1, 1}}); }) == MF_INTERRUPTED);
  CHECK(host.job("scale")({Floats{1, 1, 1}})[0] == Floats{2, 2, 2});
}
