// Runs on an asynchronous device.
#include "engine/slot.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "card.h"

using namespace moonflow;
using namespace moonflow::toy;

namespace {

ValueId append(Graph& graph, std::string_view op, std::vector<ValueId> inputs, std::string name = "y") {
  return graph.append(op, std::move(inputs), {}, std::move(name), "net.lua:2")[0];
}

// A job that gives `op(x)` under token 1.
std::shared_ptr<Plan> unary(CardSession& toy, std::string_view op, const std::string& job = "job") {
  Graph graph(toy.session.catalog());
  graph.tap(append(graph, op, {graph.feed("x", vec(2))}), 1);
  return toy.session.compile(graph, job);
}

// A job that takes x from the variable w, after passing x through `op`, and shows what w was before.
std::shared_ptr<Plan> countdown(CardSession& toy, std::string_view op = "same") {
  Graph graph(toy.session.catalog());
  const ValueId w = graph.variable("w", vec(2)), x = graph.feed("x", vec(2));
  graph.tap(w, 1);
  graph.append("assign_sub", {w, append(graph, op, {x})}, {}, "update", "net.lua:3");
  return toy.session.compile(graph, "train_job");
}

}  // namespace

TEST_CASE("a plan gives on an asynchronous device what it gives on the host, run by run and recorded") {
  for (const bool records : {false, true}) {
    CardSession toy;
    toy.device->wants_recordings = records;
    Graph graph(toy.session.catalog());
    const ValueId x = graph.feed("x", vec(2)), y = graph.feed("y", vec(3)), w = graph.variable("w", vec(2));
    graph.tap(x, 1);
    graph.tap(append(graph, "reversing", {append(graph, "square", {x}, "a")}, "b"), 2);
    graph.tap(append(graph, "mul", {y, graph.constant(floats({1, 2, 3}), "c")}, "d"), 3);
    graph.tap(append(graph, "same", {w}, "e"), 4);
    const auto plan = toy.session.compile(graph, "job");
    toy.session.write("w", floats({7, 8}));
    for (const float i : {1.f, 2.f, 3.f, 4.f}) {
      const std::vector<Tensor> out = toy.call(plan, {floats({i, -i}), floats({i, i, i})}, i < 3);
      REQUIRE(out.size() == 4);
      CHECK(values(out[0]) == std::vector<float>{i, -i});
      CHECK(values(out[1]) == std::vector<float>{i * i + 1, i * i + 1});
      CHECK(values(out[2]) == std::vector<float>{i, 2 * i, 3 * i});
      CHECK(values(out[3]) == std::vector<float>{7, 8});
    }
    CHECK(toy.device->recordings == (records ? 1 : 0));
    CHECK(toy.device->replays == (records ? 3 : 0));
    CHECK(toy.device->violations().empty());
  }
}

TEST_CASE("a synchronous call on an asynchronous device needs no other thread and no queue") {
  CardSession toy;
  const auto plan = countdown(toy);
  std::vector<Tensor> tapped(1);
  std::optional<Error> error;
  for (const float w : {0.f, -1.f, -2.f}) {
    const Tensor x = floats({1, 1});
    REQUIRE(toy.session.executor().run_now(*plan, &x, 1, tapped.data(), nullptr, error));
    CHECK_FALSE(error);
    CHECK(values(tapped[0])[0] == w);
  }
  CHECK(toy.session.completions().empty());
  toy.session.submit(plan, feed({1, 1}, true));
  CHECK_FALSE(toy.session.completions().empty());  // it is done before submit returns
  CHECK(plan->slots.size() == 1);
}

TEST_CASE("runs are accepted while an earlier one computes, and their arrays may change") {
  CardSession toy;
  const auto plan = unary(toy, "slow");
  Gate::close();
  for (float i = 0; i < 3; ++i) {
    Executor::Submission submission = feed({i, i});
    Tensor fed = submission.feeds[0];
    CHECK(toy.session.submit(plan, std::move(submission)) != 0);
    fed.data<float>()[0] = 99;
  }
  CHECK(toy.session.submit(plan, feed({9, 9})) == 0);  // as many as may be in flight
  CHECK(toy.session.completions().empty());
  CHECK(plan->slots.size() == 3);
  Gate::open();
  for (float i = 0; i < 3; ++i) {
    CHECK(values(next(toy.session).tensor) == std::vector<float>{i, i});
    CHECK(next(toy.session).end);
  }
  CHECK(toy.device->violations().empty());
}

TEST_CASE("thousands of runs of two plans read and write a variable in the order they were submitted") {
  CardSession toy;
  const auto slow = countdown(toy, "slow"), fast = countdown(toy, "square");
  const int count = 3000;
  int submitted = 0, ended = 0;
  float expected = 0;
  bool right = true;
  while (ended < count) {
    if (submitted < count && toy.session.submit(submitted % 3 == 0 ? slow : fast, feed({1, 1}))) ++submitted;
    while (const auto completion = toy.session.pull()) {
      if (completion->end) {
        ++ended;
        right = right && !completion->error && completion->run == RunId(ended);
      } else {
        right = right && values(completion->tensor) == std::vector<float>{expected, expected};
        --expected;
      }
    }
  }
  CHECK(right);
  CHECK(values(toy.session.read("w"))[0] == -count);
  CHECK(toy.device->recordings <= 6);  // one for each slot of a plan
  CHECK(toy.device->replays >= count - 2 * 3 - 6);
  CHECK(toy.device->violations().empty());
}

TEST_CASE("taps that are off leave the device alone, and the others come as ever") {
  CardSession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(20));
  ValueId value = x;
  for (Token token = 1; token <= 5; ++token)
    graph.tap(value = append(graph, "add", {value, x}, text("t", token)), token);
  const auto plan = toy.session.compile(graph, "job");
  for (unsigned mask = 0; mask < 32; ++mask) {
    Executor::Submission submission;
    submission.feeds = {floats(std::vector<float>(20, 1))};
    for (unsigned tap = 0; tap < 5; ++tap) submission.taps_on.push_back((mask >> tap & 1) != 0);
    toy.session.submit(plan, std::move(submission));
    for (unsigned tap = 0; tap < 5; ++tap) {
      if (!(mask >> tap & 1)) continue;
      const Completion completion = next(toy.session);
      CHECK(completion.token == tap + 1);
      CHECK(values(completion.tensor) == std::vector<float>(20, static_cast<float>(tap + 2)));
    }
    CHECK(next(toy.session).end);
  }
}

TEST_CASE("small values go in and out with the steps, and of large ones those that are wanted are copied") {
  CardSession toy;
  Graph graph(toy.session.catalog());
  const ValueId few = graph.feed("few", vec(2)), many = graph.feed("many", vec(20));
  graph.tap(append(graph, "square", {many}, "a"), 1);
  graph.tap(append(graph, "square", {few}, "b"), 2);
  const auto plan = toy.session.compile(graph, "job"), small = unary(toy, "square");
  for (int run = 0; run < 4; ++run) {
    const bool wants_many = run % 2 == 0;
    toy.device->copies = 0;
    Executor::Submission submission;
    submission.feeds = {floats({1, 2}), floats(std::vector<float>(20, 3))};
    submission.taps_on = {wants_many, true};
    toy.session.submit(plan, std::move(submission));
    if (wants_many) CHECK(values(next(toy.session).tensor) == std::vector<float>(20, 9));
    CHECK(values(next(toy.session).tensor) == std::vector<float>{1, 4});
    CHECK(next(toy.session).end);
    CHECK(toy.device->copies == (wants_many ? 2 : 1));
    CHECK(values(toy.call(small, {floats({3, 4})})[0]) == std::vector<float>{9, 16});
    CHECK(toy.device->copies == (wants_many ? 2 : 1));
  }
  CHECK(toy.device->violations().empty());
}

TEST_CASE("a bad value found on the device fails its own run with op, line and job, and writes nothing") {
  CardSession toy;
  const auto plan = countdown(toy, "picky");
  const std::vector<std::vector<float>> fed = {{1, 1}, {2, 2}, {1, -3}, {1, 1}, {-5, 1}, {1, 1}};
  plan->max_in_flight = 10;
  for (int round = 0; round < 3; ++round) {
    toy.session.write("w", floats({0, 0}));
    for (const auto& x : fed) REQUIRE(toy.session.submit(plan, feed(x, round == 2)));
    std::vector<std::string> errors;
    for (size_t ends = 0; ends < fed.size();) {
      const Completion completion = next(toy.session);
      if (!completion.end) continue;
      ++ends;
      errors.push_back(completion.error ? completion.error->describe() : "");
    }
    CHECK(errors == std::vector<std::string>{"", "", "net.lua:2: train_job: picky 'y': element 1 is -3", "",
                                             "net.lua:2: train_job: picky 'y': element 0 is -5", ""});
    CHECK(values(toy.session.read("w")) == std::vector<float>{-5, -5});
  }
}

TEST_CASE("a step that cannot be launched ends its run in its turn, and the session goes on") {
  CardSession toy;
  const auto bad = unary(toy, "bad", "train_job"), slow = unary(toy, "slow");
  for (const bool may_run_inline : {true, false}) {
    std::thread opener;
    if (!may_run_inline) {
      Gate::close();
      toy.session.submit(slow, feed({1, 2}));
      opener = std::thread([] { Gate::open(); });  // while the failed start waits for what is under way
    }
    toy.session.submit(bad, feed({1, 1}, may_run_inline));
    if (!may_run_inline) {
      opener.join();
      CHECK(values(next(toy.session).tensor) == std::vector<float>{1, 2});
      CHECK(next(toy.session).end);
    }
    const Completion end = next(toy.session);
    REQUIRE((end.end && end.error));
    CHECK(end.error->describe() == "net.lua:2: train_job: bad 'y': row 3 is bad");
  }
  CHECK(values(toy.call(unary(toy, "square"), {floats({3, 4})})[0]) == std::vector<float>{9, 16});
}

TEST_CASE("a fault of a run whose launch failed is not told of the next one") {
  CardSession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(2));
  graph.tap(append(graph, "bad", {append(graph, "picky", {x}, "p")}, "b"), 1);
  const auto failing = toy.session.compile(graph, "failing"), fine = unary(toy, "picky");
  CHECK_THROWS_WITH(toy.call(failing, {floats({-1, 1})}), "row 3 is bad");
  CHECK(values(toy.call(fine, {floats({1, 1})})[0]) == std::vector<float>{1, 1});
}

TEST_CASE("what follows from variables alone is made again only once one of them has been written, on any device") {
  CardSession toy;
  Graph graph(toy.session.catalog());
  const ValueId w = graph.variable("w", vec(2));
  const ValueId kept = append(graph, "picky", {append(graph, "square", {w}, "kept")}, "picked");
  graph.tap(append(graph, "add", {kept, graph.feed("x", vec(2))}, "sum"), 1);
  graph.tap(kept, 2);
  const auto plan = toy.session.compile(graph, "job");
  CHECK(plan->kept_steps == 2);
  const auto update = countdown(toy);
  const auto sum = [&](float x) { return values(toy.call(plan, {floats({x, x})}, false)[0]); };
  toy.session.write("w", floats({1, 2}));
  CHECK(sum(10) == std::vector<float>{11, 14});
  toy.device->launches = 0;
  for (int run = 0; run < 6; ++run) CHECK(sum(20) == std::vector<float>{21, 24});
  CHECK(toy.device->launches == 6);
  toy.session.submit(update, feed({1, 1}));  // the next run follows it closely
  CHECK(sum(10) == std::vector<float>{10, 11});
  CHECK(values(toy.call(plan, {floats({0, 0})})[1]) == std::vector<float>{0, 1});
}

TEST_CASE("a kept step that finds a bad value is made again by the next run") {
  CardSession toy;
  Graph graph(toy.session.catalog());
  graph.tap(append(graph, "picky", {graph.variable("w", vec(1))}), 1);
  const auto plan = toy.session.compile(graph, "job");
  toy.session.write("w", floats({-1}));
  for (int run = 0; run < 2; ++run) CHECK_THROWS_WITH(toy.call(plan, {}), "element 0 is -1");
  toy.session.write("w", floats({1}));
  CHECK(values(toy.call(plan, {})[0]) == std::vector<float>{1});
}

TEST_CASE("a device without memory for a slot each lets runs take turns") {
  CardSession toy;
  const auto plan = unary(toy, "square");
  toy.session.executor().max_in_flight = 100;
  plan->max_in_flight = 100;
  REQUIRE(toy.session.submit(plan, feed({0, 0})));
  toy.device->refuse_above = 0;
  for (float i = 1; i < 50; ++i) REQUIRE(toy.session.submit(plan, feed({i, i})));
  for (float i = 0; i < 50; ++i) {
    CHECK(values(next(toy.session).tensor)[0] == i * i);
    CHECK_FALSE(next(toy.session).error);
  }
  CHECK(plan->slots.size() == 1);
}

TEST_CASE("a device without memory for any slot fails the run and not the session") {
  CardSession toy;
  const auto plan = unary(toy, "square");
  toy.device->refuse_above = 0;
  CHECK_THROWS_WITH(toy.call(plan, {floats({1, 1})}), Catch::Contains("no memory for"));
  toy.device->refuse_above = -1;
  CHECK(values(toy.call(plan, {floats({3, 1})})[0]) == std::vector<float>{9, 1});
}

TEST_CASE("an interrupt stops what has not begun on an asynchronous device, and the session stays usable") {
  CardSession toy;
  const auto slow = countdown(toy, "slow");
  toy.session.executor().interrupt();
  for (const bool may_run_inline : {true, false}) {
    toy.session.submit(slow, feed({1, 1}, may_run_inline));
    const Completion end = next(toy.session);
    REQUIRE((end.end && end.error));
    CHECK(end.error->code == ErrorCode::Interrupted);
  }
  CHECK(toy.session.executor().interrupt_heeded());
  toy.session.executor().clear_interrupt();
  CHECK(values(toy.session.read("w"))[0] == 0);
  for (int run = 0; run < 3; ++run) toy.call(slow, {floats({1, 1})}, run == 0);
  CHECK(values(toy.session.read("w"))[0] == -3);
}

TEST_CASE("a device that fails ends every run with its text, and closing does not hang") {
  CardSession toy;
  const auto plan = unary(toy, "slow", "train_job");
  Gate::close();
  for (int i = 0; i < 3; ++i) REQUIRE(toy.session.submit(plan, feed({1, 1})));
  toy.device->fail("an illegal memory access was encountered");
  Gate::open();
  for (int i = 0; i < 3; ++i) {
    const Completion end = next(toy.session);
    REQUIRE((end.end && end.error));
    CHECK(end.error->describe() == "train_job: an illegal memory access was encountered");
  }
  CHECK_THROWS_WITH(toy.call(plan, {floats({1, 1})}), "an illegal memory access was encountered");
  CHECK_THROWS_WITH(toy.call(plan, {floats({1, 1})}, false), "an illegal memory access was encountered");
  ToySession other;  // the process goes on
  Graph graph(other.session.catalog());
  graph.tap(append(graph, "square", {graph.feed("x", vec(1))}), 1);
  CHECK(values(other.call(other.session.compile(graph, "job"), {floats({3})})[0]) == std::vector<float>{9});
  REQUIRE(toy.session.submit(plan, feed({1, 1})));
  toy.session.close();
  CHECK(next(toy.session).error);
}

TEST_CASE("closing ends with every run on an asynchronous device posted") {
  CardSession toy;
  const auto slow = unary(toy, "slow");
  Gate::close();
  for (int i = 0; i < 3; ++i) toy.session.submit(slow, feed({1, 1}));
  std::thread opener([] { Gate::open(); });
  toy.session.close();
  opener.join();
  int ends = 0;
  while (const auto completion = toy.session.pull()) ends += completion->end && !completion->error;
  CHECK(ends == 3);
  CHECK_THROWS_WITH(toy.session.submit(slow, feed({1, 1})), "the session is closed");
  toy.session.close();
}

TEST_CASE("a session may be dropped with runs under way, and nothing stays allocated") {
  std::shared_ptr<FakeCard> card;
  for (int round = 0; round < 20; ++round) {
    CardSession toy;
    card = toy.device;
    const auto plan = countdown(toy, "square");
    for (int i = 0; i < 3; ++i) toy.session.submit(plan, feed({1, 1}));
  }
  CHECK(card->live_buffers == 0);
  CHECK(card->live_staging == 0);
}

TEST_CASE("a profile sees each step on an asynchronous device, and the recordings are there again without it") {
  CardSession toy;
  const auto plan = countdown(toy, "square");
  for (int run = 0; run < 3; ++run) toy.call(plan, {floats({1, 1})});
  CHECK(toy.device->replays == 2);
  const auto profile = std::make_shared<Profile>();
  toy.session.attach(profile);
  toy.call(plan, {floats({1, 1})}, false);
  toy.session.attach(nullptr);
  CHECK(toy.device->replays == 2);
  const std::vector<ProfileEvent> events = profile->end().first;
  REQUIRE(events.size() == 3);  // two steps and the run
  CHECK(events[0].step == 0);
  CHECK(events[1].step == 1);
  CHECK(events[2].run == 4);
  CHECK(plan->steps[0].spent.launches == 1);
  toy.call(plan, {floats({1, 1})});
  CHECK(toy.device->replays == 3);
  CHECK(values(toy.session.read("w"))[0] == -5);
}

TEST_CASE("a step that fails while it is recorded fails its run alone") {
  CardSession toy;
  const auto plan = unary(toy, "square");
  const auto square = [&](bool may_run_inline) { return values(toy.call(plan, {floats({3, 4})}, may_run_inline)[0]); };
  CHECK(square(true) == std::vector<float>{9, 16});
  toy.device->refuses_launches = true;
  for (const bool may_run_inline : {true, false}) CHECK_THROWS_WITH(square(may_run_inline), "the launch was refused");
  toy.device->refuses_launches = false;
  for (int run = 0; run < 3; ++run) CHECK(square(run == 0) == std::vector<float>{9, 16});
  CHECK(toy.device->replays == 3);
}

TEST_CASE("what has its turn waits for the runs before it, that a card has started") {
  CardSession toy;
  Graph graph(toy.session.catalog());
  graph.append("assign_sub", {graph.variable("w", vec(1)), graph.append("slow", {graph.feed("x", vec(1))})[0]});
  const auto plan = toy.session.compile(graph, "job");
  Gate::close();
  toy.session.submit(plan, {{floats({1})}});
  std::atomic<bool> has_had_turn = false;
  toy.session.executor().in_turn([&] { has_had_turn = true; });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_FALSE(has_had_turn);
  Gate::open();
  while (toy.session.executor().in_flight() > 0) toy.session.pull();
  toy.session.executor().wait_idle();
  CHECK(has_had_turn);
}
