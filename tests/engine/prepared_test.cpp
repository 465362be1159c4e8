#include "engine/prepared.h"

#include <atomic>
#include <thread>

#include <catch2/catch.hpp>

#include "toy.h"

using namespace moonflow;
using namespace moonflow::toy;

namespace {

// y = x * w + w, with a watched product; the token of the watch is 1, of the result 2.
struct Net {
  std::shared_ptr<FakeDevice> device = std::make_shared<FakeDevice>();
  std::shared_ptr<const Catalog> ops = catalog();
  Graph graph{*ops};

  Net() {
    const ValueId x = graph.feed("x", vec(2)), w = graph.variable("w", vec(2));
    const ValueId product = graph.append("mul", {x, w})[0];
    graph.tap(product, 1);
    graph.tap(graph.append("add", {product, w})[0], 2);
    graph.tap(w, 3);
  }
};

void feed(PreparedCall& call, std::vector<float> input) {
  std::copy(input.begin(), input.end(), call.inputs()[0].data<float>());
}

}  // namespace

TEST_CASE("a prepared call runs from its inputs to its outputs with the newest weights") {
  Net net;
  PreparedCall call(net.graph, "net", net.device, 2, 3, {}, nullptr);
  REQUIRE(call.outputs().size() == 2);
  REQUIRE(call.weights().size() == 1);
  CHECK(call.weights()[0]->name == "w");
  feed(call, {2, 3});
  call.run();
  CHECK(values(call.outputs()[0]) == std::vector<float>{0, 0});
  CHECK(call.generation() == 0);
  for (const float w : {1.0f, 2.0f, 5.0f, 7.0f}) {
    call.publish([&](const Variable&) { return floats({w, w}); });
    call.run();
    CHECK(values(call.outputs()[0]) == std::vector<float>{3 * w, 4 * w});
    CHECK(values(call.outputs()[1]) == std::vector<float>{w, w});
  }
  CHECK(call.generation() == 4);
  call.publish([&](const Variable&) { return floats({8, 8}); });
  call.publish([&](const Variable&) { return floats({9, 9}); });
  call.run();
  CHECK(values(call.outputs()[1]) == std::vector<float>{9, 9});
  CHECK(call.generation() == 5);
}

TEST_CASE("of what is tapped, a prepared call gives what it is asked for") {
  Net net;
  PreparedCall call(net.graph, "net", net.device, 2, 2, {}, nullptr);
  REQUIRE(call.outputs().size() == 1);
  call.publish([&](const Variable&) { return floats({5, 7}); });
  feed(call, {2, 3});
  call.run();
  CHECK(values(call.outputs()[0]) == std::vector<float>{15, 28});
}

TEST_CASE("a prepared call makes what follows from its weights once per publication") {
  Net net;
  Graph graph(*net.ops);
  const ValueId turned = graph.append("reversing", {graph.variable("w", vec(2))})[0];
  graph.tap(graph.append("add", {turned, graph.feed("x", vec(2))})[0], 1);
  PreparedCall call(graph, "net", net.device, 1, 1, {}, nullptr);
  for (const float w : {1.0f, 2.0f, 3.0f, 4.0f}) {
    const int before = net.device->reorders;
    call.publish([&](const Variable&) { return floats({w, 2 * w}); });
    CHECK(net.device->reorders == before + 2);
    for (int run = 0; run < 3; ++run) {
      call.run();
      CHECK(values(call.outputs()[0]) == std::vector<float>{w + 1, 2 * w + 1});
    }
    CHECK(net.device->reorders == before + 2);  // the runs were spared them
  }
}

TEST_CASE("what follows from weights that fail is told to who publishes them, and runs go on with those before") {
  Net net;
  Graph graph(*net.ops);
  const ValueId picked = graph.append("picky", {graph.variable("w", vec(2))})[0];
  const ValueId squared = graph.append("square", {graph.append("square", {picked})[0]})[0];
  graph.tap(graph.append("add", {squared, graph.feed("x", vec(2))})[0], 1);
  graph.tap(squared, 2);
  PreparedCall call(graph, "net", net.device, 1, 2, {}, nullptr);
  const auto publish = [&](std::vector<float> w) { call.publish([&](const Variable&) { return floats(w); }); };
  publish({1, 2});
  CHECK_THROWS_WITH(publish({1, -3}), "element 1 is -3");
  call.run();
  CHECK(values(call.outputs()[0]) == std::vector<float>{1, 16});
  publish({2, 3});
  CHECK(values(call.outputs()[1]) == std::vector<float>{1, 16});
  call.run();
  CHECK(values(call.outputs()[1]) == std::vector<float>{16, 81});
}

TEST_CASE("a prepared call takes no memory of its device once it is made") {
  Net net;
  PreparedCall call(net.graph, "net", net.device, 2, 3, {}, nullptr);
  const int live = net.device->live_buffers;
  net.device->refuse_above = 0;
  for (int i = 0; i < 10; ++i) {
    call.publish([&](const Variable&) { return floats({1, 1}); });
    call.run();
  }
  CHECK(net.device->live_buffers == live);
}

TEST_CASE("a weight that runs read in another layout is there in rows but once") {
  Net net;
  const auto buffers_of = [&](const char* op) {
    const int before = net.device->live_buffers;
    Graph graph(*net.ops);
    graph.tap(graph.append(op, {graph.feed("x", vec(2)), graph.variable("w", vec(2))})[0], 1);
    PreparedCall call(graph, "net", net.device, 1, 1, {}, nullptr);
    feed(call, {10, 100});
    for (const float w : {1.0f, 2.0f, 3.0f, 4.0f}) {
      call.publish([&](const Variable&) { return floats({w, w + 1}); });
      for (int run = 0; run < 2; ++run) {
        call.run();
        CHECK(values(call.outputs()[0]) == std::vector<float>{10 * w, 100 * (w + 1)});
      }
    }
    return net.device->live_buffers - before;
  };
  const int in_rows = buffers_of("mul");        // a set of weights of each of three generations
  CHECK(buffers_of("against") == in_rows + 1);  // the same of what they are reversed, and one in rows
}

TEST_CASE("a prepared call counts its runs in the last of its feeds") {
  Net net;
  net.graph.tap(net.graph.feed("seed", {DType::Int64, {}}), 4);
  net.graph.tap(net.graph.feed("run", {DType::Int64, {}}), 5);
  PreparedCall call(net.graph, "net", net.device, 2, 5, {{-7, 0}, {1000, 3}}, nullptr);
  CHECK(call.inputs().size() == 1);
  for (const int64_t run : {1000, 1003, 1006}) {
    call.run();
    CHECK(*call.outputs()[2].data<int64_t>() == -7);
    CHECK(*call.outputs()[3].data<int64_t>() == run);
  }
  CHECK_THROWS_WITH(PreparedCall(net.graph, "net", net.device, 2, 5, {{0, 0}, {0, 0}, {0, 0}}, nullptr),
                    Catch::Contains("the feed 'x' is float32 (2)"));
}

TEST_CASE("variables that a graph writes are the prepared call's own") {
  Net net;
  const ValueId left = net.graph.variable("left", vec(1));
  net.graph.tap(net.graph.append("add", {left, net.graph.constant(floats({0}), "zero")})[0], 4);
  net.graph.append("assign_sub", {left, net.graph.constant(floats({1}), "one")}, {}, "update");
  {
    PreparedCall call(net.graph, "net", net.device, 4, 4, {}, nullptr);
    REQUIRE(call.weights().size() == 1);
    REQUIRE(call.states().size() == 1);
    CHECK(call.states()[0]->name == "left");
    call.begin([](const Variable&) { return floats({7}); });
    for (int round = 0; round < 2; ++round, call.reset()) {
      for (const float value : {7.0f, 6.0f, 5.0f}) {
        call.publish([](const Variable& weight) {
          CHECK(weight.name == "w");
          return floats({1, 1});
        });
        call.run();
        CHECK(values(call.outputs()[0]) == std::vector<float>{value});
      }
    }
  }
  CHECK(net.device->live_buffers == 0);
}

TEST_CASE("weights of the wrong type are refused and the old ones stay") {
  Net net;
  PreparedCall call(net.graph, "net", net.device, 2, 3, {}, nullptr);
  CHECK_THROWS_WITH(call.publish([](const Variable&) { return floats({1}); }), Catch::Contains("'w'"));
  call.run();
  CHECK(values(call.outputs()[1]) == std::vector<float>{0, 0});
}

TEST_CASE("the error of a run names its job") {
  Net net;
  net.graph.tap(net.graph.append("bad", {net.graph.feed("z", vec(1))})[0], 4);
  PreparedCall call(net.graph, "net", net.device, 4, 4, {}, nullptr);
  std::string job;
  try {
    call.run();
  } catch (const Error& error) {
    job = error.job;
  }
  CHECK(job == "net");
}

TEST_CASE("a run never sees weights of two generations") {
  Net net;
  PreparedCall call(net.graph, "net", net.device, 2, 3, {}, nullptr);
  feed(call, {1, 1});
  std::atomic<bool> done{false};
  std::thread publisher([&] {
    for (int i = 1; i <= 2000; ++i) {
      const float w = static_cast<float>(i);
      call.publish([&](const Variable&) { return floats({w, w}); });
    }
    done = true;
  });
  bool whole = true, rising = true;
  float before = 0;
  while (!done) {
    call.run();
    const std::vector<float> sum = values(call.outputs()[0]), w = values(call.outputs()[1]);
    whole = whole && sum[0] == 2 * w[0] && sum[1] == sum[0] && w[1] == w[0];
    rising = rising && w[0] >= before;
    before = w[0];
  }
  publisher.join();
  call.run();
  CHECK(whole);
  CHECK(rising);
  CHECK(values(call.outputs()[1])[0] == 2000);
}

TEST_CASE("a value that follows from weights has room for the largest that shares its place") {
  const auto ops = catalog();
  Graph graph(*ops);
  const auto picky = [&](ValueId x) { return graph.append("picky", {x})[0]; };
  const ValueId a = picky(picky(picky(graph.variable("v", vec(2))))), b = picky(graph.variable("w", vec(4000)));
  graph.tap(graph.append("add", {a, graph.feed("x", vec(2))})[0], 1);
  graph.tap(graph.append("add", {b, graph.feed("y", vec(4000))})[0], 2);
  PreparedCall call(graph, "net", std::make_shared<FakeDevice>(), 1, 2, {}, nullptr);
  for (int i = 0; i < 4; ++i) {
    const float number = static_cast<float>(i);
    call.publish(
        [&](const Variable& of) { return floats(std::vector<float>(static_cast<size_t>(of.type.count()), number)); });
    call.run();
    CHECK(values(call.outputs()[0]) == std::vector<float>(2, number));
    CHECK(values(call.outputs()[1]) == std::vector<float>(4000, number));
  }
}

TEST_CASE("a value that only kept steps read gives its place to what a run makes") {
  const auto ops = catalog();
  Graph graph(*ops);
  const auto picky = [&](ValueId x) { return graph.append("picky", {x})[0]; };
  const ValueId a = picky(picky(graph.variable("w", vec(2)))), made = picky(picky(graph.feed("x", vec(2))));
  graph.tap(picky(graph.append("add", {made, a})[0]), 1);
  PreparedCall call(graph, "net", std::make_shared<FakeDevice>(), 1, 1, {}, nullptr);
  for (const float w : {1.0f, 2.0f, 3.0f, 4.0f}) {
    call.publish([&](const Variable&) { return floats({w, w}); });
    feed(call, {10, 10});
    call.run();
    CHECK(values(call.outputs()[0]) == std::vector<float>{10 + w, 10 + w});
  }
}

TEST_CASE("a profile sees the steps of a prepared call, from any thread, until it ends") {
  Net net;
  PreparedCall call(net.graph, "net", net.device, 2, 2, {}, nullptr);
  const auto profile = std::make_shared<Profile>();
  call.run();
  call.attach(profile);
  call.run();
  call.attach(nullptr);
  call.run();
  const std::vector<ProfileEvent> events = profile->end().first;
  REQUIRE(events.size() == call.plan().steps.size() + 1);  // and the run
  for (const ProfileEvent& event : events) CHECK(event.plan.get() == &call.plan());
  CHECK(events.back().step == -1);
  CHECK(call.plan().steps[0].spent.launches == 1);

  std::atomic<bool> over{false};
  std::thread loop([&] {
    while (!over) call.run();
  });
  for (int i = 0; i < 200; ++i) {
    const auto other = std::make_shared<Profile>();
    call.attach(other);
    call.attach(nullptr);
    other->end();
  }
  over = true;
  loop.join();
}
