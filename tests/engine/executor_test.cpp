#include "engine/executor.h"

#include <poll.h>
#include <signal.h>

#include <cmath>

#include <catch2/catch.hpp>
#include <thread>

#include "toy.h"

using namespace moonflow;
using namespace moonflow::toy;

namespace {

// A job that gives `op(x)` under token 1.
std::shared_ptr<Plan> unary(ToySession& toy, std::string_view op, const std::string& job = "job") {
  Graph graph(toy.session.catalog());
  graph.tap(graph.append(op, {graph.feed("x", vec(2))}, {}, "y", "net.lua:2")[0], 1);
  return toy.session.compile(graph, job);
}

}  // namespace

TEST_CASE("runs on the worker are delivered in the order they were submitted") {
  ToySession toy;
  const auto plan = unary(toy, "square");
  plan->max_in_flight = 100;
  toy.session.executor().max_in_flight = 100;
  for (int i = 0; i < 100; ++i) REQUIRE(toy.session.submit(plan, feed({float(i), 0})) == RunId(i + 1));
  uint64_t sequence = 0;
  for (int i = 0; i < 100; ++i) {
    const Completion value = next(toy.session), end = next(toy.session);
    CHECK(value.run == RunId(i + 1));
    CHECK(values(value.tensor)[0] == float(i * i));
    CHECK((value.sequence == ++sequence && end.sequence == ++sequence));
    CHECK((end.end && !end.error));
  }
  CHECK(toy.session.executor().in_flight() == 0);
}

TEST_CASE("a full plan is refused until an end has been pulled") {
  ToySession toy;
  const auto plan = unary(toy, "square");
  plan->max_in_flight = 2;
  CHECK(toy.session.submit(plan, feed({1, 1})) == 1);
  CHECK(toy.session.submit(plan, feed({1, 1})) == 2);
  CHECK(toy.session.submit(plan, feed({1, 1})) == 0);
  next(toy.session);
  CHECK(toy.session.submit(plan, feed({1, 1})) == 0);  // the value came, the end did not
  next(toy.session);
  CHECK(toy.session.submit(plan, feed({1, 1})) == 3);
}

TEST_CASE("a synchronous run happens on the calling thread, unless something is in flight") {
  ToySession toy;
  const auto plan = unary(toy, "square"), slow = unary(toy, "slow");
  toy.session.submit(plan, feed({3, 0}, true));
  CHECK_FALSE(toy.session.completions().empty());  // it is done before submit returns
  next(toy.session);
  next(toy.session);

  Gate::close();
  toy.session.submit(slow, feed({1, 1}));
  toy.session.submit(plan, feed({4, 0}, true));  // must queue behind the slow run
  CHECK(toy.session.completions().empty());
  Gate::open();
  CHECK(next(toy.session).run == 2);
  next(toy.session);
  CHECK(values(next(toy.session).tensor)[0] == 16);
}

TEST_CASE("a run is known to have ended before anybody has pulled it") {
  ToySession toy;
  const auto slow = unary(toy, "slow");
  const CompletionQueue& completions = toy.session.completions();
  Gate::close();
  const RunId first = toy.session.submit(slow, feed({1, 1})), second = toy.session.submit(slow, feed({1, 1}));
  CHECK_FALSE(completions.has_ended(first));
  Gate::open();
  toy.session.executor().wait_idle();
  CHECK(completions.has_ended(first));
  CHECK(completions.has_ended(second));
  CHECK_FALSE(completions.has_ended(second + 1));
  CHECK(toy.session.executor().in_flight() == 2);
}

TEST_CASE("a device rests on the thread that hands a run over, and on the worker when no further one comes") {
  ToySession toy;
  const auto plan = unary(toy, "square");
  const auto run = [&](bool may_run_inline) {
    toy.session.submit(plan, feed({3, 0}, may_run_inline));
    next(toy.session);
    next(toy.session);
  };
  run(true);
  CHECK(toy.device->rests_here == 0);
  for (int rests = 1; rests <= 2; ++rests) {
    run(false);
    CHECK(toy.device->rests_here == rests);
    while (toy.device->rests_elsewhere < rests) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(toy.device->rests_elsewhere == 2);  // once for all the time without a run
}

TEST_CASE("what else has its turn comes after the runs before it and before those after it") {
  ToySession toy;
  Executor& executor = toy.session.executor();
  std::vector<std::string> order;
  const std::thread::id own = std::this_thread::get_id();
  executor.in_turn([&] { order.push_back(std::this_thread::get_id() == own ? "at once" : "elsewhere"); });

  Graph graph(toy.session.catalog());
  const ValueId w = graph.variable("w", vec(1));
  graph.append("assign_sub", {w, graph.append("slow", {graph.feed("x", vec(1))})[0]});
  const auto plan = toy.session.compile(graph, "job");
  plan->max_in_flight = 2;
  Gate::close();
  toy.session.submit(plan, {{floats({1})}});
  executor.in_turn([&] {
    Tensor value = Tensor::allocate(vec(1));
    toy.session.variables().at("w").read(value.data());
    order.push_back("w is " + std::to_string(static_cast<int>(values(value)[0])));
  });
  toy.session.submit(plan, {{floats({10})}});
  CHECK(order == std::vector<std::string>{"at once"});
  Gate::open();
  while (executor.in_flight() > 0) toy.session.pull();
  executor.wait_idle();
  CHECK(order == std::vector<std::string>{"at once", "w is -1"});
}

TEST_CASE("the worker leaves signals to the host's threads, but for a fault of its own and a profiler's") {
  ToySession toy;
  const auto plan = unary(toy, "slow");
  Gate::close();
  toy.session.submit(plan, feed({1, 1}));
  sigset_t blocked;
  toy.session.executor().in_turn([&] { pthread_sigmask(SIG_SETMASK, nullptr, &blocked); });
  Gate::open();
  toy.session.executor().wait_idle();
  for (const int other : {SIGINT, SIGTERM, SIGALRM, SIGCHLD, SIGUSR1}) CHECK(sigismember(&blocked, other) == 1);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGPROF}) CHECK(sigismember(&blocked, own) == 0);
}

TEST_CASE("a synchronous run waits for a turn before it, and the next turn throws what one threw") {
  ToySession toy;
  Executor& executor = toy.session.executor();
  Graph graph(toy.session.catalog());
  graph.tap(graph.append("slow", {graph.feed("x", vec(1))})[0], 1);
  const auto plan = toy.session.compile(graph, "job");
  Gate::close();
  toy.session.submit(plan, {{floats({1})}});
  bool taken = false;
  std::atomic<bool> may_end{false};
  executor.in_turn([&] {
    while (!may_end) std::this_thread::yield();
    taken = true;
    fail(ErrorCode::OutOfMemory, "no room");
  });
  Gate::open();
  while (executor.in_flight() > 0) toy.session.pull();
  std::thread opener([&] { may_end = true; });
  const Tensor feed = floats({2});
  Tensor tapped;
  std::optional<Error> error;
  CHECK(executor.run_now(*plan, &feed, 1, &tapped, nullptr, error));
  CHECK(taken);
  opener.join();
  CHECK_THROWS_WITH(executor.in_turn([] {}), "no room");
  taken = false;
  executor.in_turn([&] { taken = true; });
  CHECK(taken);
}

TEST_CASE("closing does not wait for ever for turns that wait") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  graph.tap(graph.append("slow", {graph.feed("x", vec(1))})[0], 1);
  const auto plan = toy.session.compile(graph, "job");
  Gate::close();
  toy.session.submit(plan, {{floats({1})}});
  toy.session.executor().in_turn([] {});
  std::thread opener([] { Gate::open(); });
  toy.session.close();
  opener.join();
  CHECK_THROWS_WITH(toy.session.executor().in_turn([] {}), "the session is closed");
}

TEST_CASE("an array may be changed once an asynchronous call has returned") {
  ToySession toy;
  const auto plan = unary(toy, "slow");
  Gate::close();
  Executor::Submission submission = feed({1, 2});
  Tensor fed = submission.feeds[0];
  toy.session.submit(plan, std::move(submission));
  fed.data<float>()[0] = 99;
  Gate::open();
  CHECK(values(next(toy.session).tensor) == std::vector<float>{1, 2});
}

TEST_CASE("an error of a step ends the run with job, op and line, and the session goes on") {
  ToySession toy;
  const auto bad = unary(toy, "bad", "train_job");
  for (const bool may_run_inline : {true, false}) {
    toy.session.submit(bad, feed({1, 1}, may_run_inline));
    const Completion end = next(toy.session);
    REQUIRE((end.end && end.error));
    CHECK(end.error->describe() == "net.lua:2: train_job: bad 'y': row 3 is bad");
  }
  CHECK(values(toy.call(unary(toy, "square"), {floats({3, 4})})[0]) == std::vector<float>{9, 16});
}

TEST_CASE("a step that finds no memory says so, and where") {
  ToySession toy;
  toy.session.submit(unary(toy, "greedy", "train_job"), feed({1, 1}, true));
  const Completion end = next(toy.session);
  REQUIRE((end.end && end.error));
  CHECK(end.error->code == ErrorCode::OutOfMemory);
  CHECK(end.error->describe() == "net.lua:2: train_job: greedy 'y': out of memory");
}

TEST_CASE("a kernel that finds no memory while it is made says so, and where") {
  ToySession toy;
  try {
    unary(toy, "greedy_kernel", "train_job");
    FAIL("it was made");
  } catch (const Error& error) {
    CHECK(error.code == ErrorCode::OutOfMemory);
    CHECK(error.describe() == "net.lua:2: train_job: greedy_kernel 'y': out of memory");
  }
}

TEST_CASE("a run that fails writes nothing") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId w = graph.variable("w", vec(1)), x = graph.feed("x", vec(1));
  graph.append("assign_sub", {w, x}, {}, "update");
  graph.tap(graph.append("bad", {x})[0], 1);
  const auto plan = toy.session.compile(graph, "job");
  CHECK_THROWS_AS(toy.call(plan, {floats({1})}), Error);
  CHECK(values(toy.session.read("w")) == std::vector<float>{0});
}

TEST_CASE("feeds are checked at the call") {
  ToySession toy;
  const auto plan = unary(toy, "square");
  CHECK_THROWS_WITH(toy.call(plan, {floats({1, 2, 3})}), "input 'x' is float32 (3), its placeholder wants float32 (2)");
  CHECK_THROWS_WITH(toy.call(plan, {Tensor::zeros({DType::Float64, {2}})}),
                    "input 'x' is float64 (2), its placeholder wants float32 (2)");
  CHECK_THROWS_WITH(toy.call(plan, {}), "takes 1 input, got 0");
}

TEST_CASE("a tap that is switched off delivers nothing") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(2));
  graph.tap(x, 1);
  graph.tap(graph.append("square", {x})[0], 2);
  const auto plan = toy.session.compile(graph, "job");
  Executor::Submission submission = feed({1, 2}, true);
  submission.taps_on = {false, true};
  toy.session.submit(plan, std::move(submission));
  CHECK(next(toy.session).token == 2);
  CHECK(next(toy.session).end);
}

TEST_CASE("an interrupt ends what runs and what waits with an error, and the session stays usable") {
  ToySession toy;
  const auto slow = unary(toy, "slow");
  Gate::close();
  toy.session.submit(slow, feed({1, 1}));
  toy.session.submit(slow, feed({2, 2}));
  toy.session.executor().interrupt();
  Gate::open();
  int interrupted = 0;
  for (int ends = 0; ends < 2;) {
    const Completion completion = next(toy.session);
    if (!completion.end) continue;
    ++ends;
    if (completion.error) {
      CHECK(completion.error->code == ErrorCode::Interrupted);
      ++interrupted;
    }
  }
  CHECK(interrupted >= 1);
  toy.session.executor().clear_interrupt();
  CHECK(values(toy.call(slow, {floats({3, 3})})[0]) == std::vector<float>{3, 3});
}

TEST_CASE("a run that is cancelled ends in its turn, and those around it go on") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId slow = graph.append("slow", {graph.feed("x", vec(1))})[0];
  graph.tap(graph.append("square", {slow})[0], 1);
  const auto plan = toy.session.compile(graph, "job");
  Executor& executor = toy.session.executor();
  Gate::close();
  std::vector<RunId> runs;
  for (int i = 0; i < 3; ++i) runs.push_back(toy.session.submit(plan, feed({float(i)})));
  SECTION("the one under way, and one that waits") {
    executor.cancel(runs[0]);
    executor.cancel(runs[1]);
  }
  SECTION("two that wait") {
    executor.cancel(runs[2]);
    executor.cancel(runs[1]);
  }
  Gate::open();
  std::vector<RunId> ended, stopped;
  while (ended.size() < 3) {
    const Completion completion = next(toy.session);
    if (!completion.end) continue;
    ended.push_back(completion.run);
    if (!completion.error) continue;
    CHECK(completion.error->code == ErrorCode::Interrupted);
    stopped.push_back(completion.run);
  }
  CHECK(ended == runs);
  CHECK(stopped.size() == 2);
  CHECK(std::find(stopped.begin(), stopped.end(), runs[1]) != stopped.end());
  CHECK_FALSE(executor.interrupt_heeded());
  executor.cancel(runs[1]);
  CHECK(values(toy.call(plan, {floats({3})})[0]) == std::vector<float>{9});
}

TEST_CASE("the descriptor is readable exactly while something can be pulled") {
  ToySession toy;
  const auto plan = unary(toy, "square");
  const int descriptor = toy.session.completions().descriptor();
  REQUIRE(descriptor >= 0);
  const auto readable = [&] {
    pollfd request{descriptor, POLLIN, 0};
    return ::poll(&request, 1, 0) == 1;
  };
  CHECK_FALSE(readable());
  toy.session.submit(plan, feed({1, 1}, true));
  CHECK(readable());
  next(toy.session);
  CHECK(readable());  // the end is still to come
  next(toy.session);
  CHECK_FALSE(readable());
}

TEST_CASE("an announcement makes the queue ready until the next pull") {
  CompletionQueue queue;
  const int descriptor = queue.descriptor();
  const auto readable = [&] {
    pollfd request{descriptor, POLLIN, 0};
    return ::poll(&request, 1, 0) == 1;
  };
  REQUIRE(queue.empty());
  queue.announce();
  queue.announce();
  CHECK_FALSE(queue.empty());
  CHECK(readable());
  CHECK(queue.wait(0));
  CHECK(queue.front() == nullptr);
  CHECK(queue.empty());
  CHECK_FALSE(readable());
}

TEST_CASE("a wait has as much time as any number says: none for what is no number, and no end beyond the clock's") {
  ToySession toy;
  const auto slow = unary(toy, "slow");
  for (const double endless : {-1.0, 1e300, double(INFINITY)}) {
    Gate::close();
    toy.session.submit(slow, feed({1, 1}));
    for (const double none : {0.0, 1e-300, double(NAN)}) {
      CHECK_FALSE(toy.session.executor().wait_idle(none));
      CHECK_FALSE(toy.session.completions().wait(none));
    }
    std::thread opener([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      Gate::open();
    });
    CHECK(toy.session.completions().wait(endless));
    CHECK(toy.session.executor().wait_idle(endless));
    opener.join();
    while (toy.session.pull()) {
    }
  }
}

TEST_CASE("closing ends with every accepted run posted, and refuses new ones") {
  ToySession toy;
  const auto slow = unary(toy, "slow");
  Gate::close();
  toy.session.submit(slow, feed({1, 1}));
  toy.session.submit(slow, feed({2, 2}));
  std::thread opener([] { Gate::open(); });
  toy.session.close();
  opener.join();
  int ends = 0;
  while (const auto completion = toy.session.pull()) ends += completion->end;
  CHECK(ends == 2);
  CHECK_THROWS_WITH(toy.session.submit(slow, feed({1, 1})), "the session is closed");
  toy.session.close();
}

TEST_CASE("a session may be dropped with runs in flight and results nobody pulled") {
  for (int round = 0; round < 20; ++round) {
    ToySession toy;
    const auto plan = unary(toy, "square");
    for (int i = 0; i < 3; ++i) toy.session.submit(plan, feed({1, 1}));
  }
}

TEST_CASE("ten thousand runs keep their order while another thread looks at the queue") {
  ToySession toy;
  const auto plan = unary(toy, "square");
  std::atomic<bool> done{false};
  std::thread watcher([&] {
    while (!done) toy.session.completions().empty();
  });
  RunId submitted = 0, ended = 0;
  while (ended < 10000) {
    if (submitted < 10000 && toy.session.submit(plan, feed({1, 2}))) ++submitted;
    while (const auto completion = toy.session.pull())
      if (completion->end && completion->run == ended + 1) ++ended;
  }
  done = true;
  watcher.join();
  CHECK(submitted == 10000);
}

TEST_CASE("a descriptor that is first asked for when something waits is readable") {
  ToySession toy;
  const auto plan = unary(toy, "square");
  toy.session.submit(plan, feed({1, 1}, true));
  pollfd request{toy.session.completions().descriptor(), POLLIN, 0};
  CHECK(::poll(&request, 1, 0) == 1);
}
