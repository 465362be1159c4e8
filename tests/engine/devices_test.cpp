// Jobs of one session on several devices, and the variables they share.
#include <catch2/catch.hpp>
#include <random>

#include "card.h"

using namespace moonflow;
using namespace moonflow::toy;

namespace {

struct Devices {
  std::shared_ptr<FakeDevice> cpu = std::make_shared<FakeDevice>();
  std::vector<std::shared_ptr<FakeCard>> cards{std::make_shared<FakeCard>(), std::make_shared<FakeCard>()};
  int opened = 0;
  Session session{catalog(), cpu, nullptr, nullptr, [this](int index) {
                    require(index < 2, ErrorCode::OutOfRange, "there is no gpu ", index);
                    ++opened;
                    return cards[index];
                  }};

  // A device by its number: the CPU, gpu 0, gpu 1.
  std::shared_ptr<Device> at(int number) { return number == 0 ? cpu : session.gpu(number - 1); }

  // Shows w and takes x from it.
  std::shared_ptr<Plan> train(int device) {
    Graph graph(session.catalog());
    const ValueId w = graph.variable("w", vec(2)), x = graph.feed("x", vec(2));
    graph.tap(w, 1);
    graph.append("assign_sub", {w, x});
    return session.compile(graph, "train", at(device));
  }

  // w + 1, of which a kept step makes the most.
  std::shared_ptr<Plan> predict(int device) {
    Graph graph(session.catalog());
    const ValueId turned = graph.append("reversing", {graph.variable("w", vec(2))})[0];
    graph.tap(graph.append("mul", {turned, graph.feed("x", vec(2))})[0], 1);
    return session.compile(graph, "predict", at(device));
  }

  std::vector<float> run(const std::shared_ptr<Plan>& plan, float x) {
    return values(call(session, plan, {floats({x, x})})[0]);
  }
};

}  // namespace

TEST_CASE("what one device trains, another one predicts with, and values move only when they must") {
  Devices toy;
  const auto train = toy.train(1), host_predict = toy.predict(0), card_predict = toy.predict(1);
  toy.session.write("w", floats({10, 20}));
  for (float step = 0; step < 3; ++step) {
    CHECK(toy.run(train, 1) == std::vector<float>{10 - step, 20 - step});
    CHECK(toy.run(host_predict, 2) == std::vector<float>{20 - 2 * step, 40 - 2 * step});
    CHECK(toy.run(card_predict, 2) == std::vector<float>{20 - 2 * step, 40 - 2 * step});
    const int copies = toy.cards[0]->copies;
    for (int run = 0; run < 3; ++run) toy.run(host_predict, 2);
    CHECK(toy.cards[0]->copies == copies);
    for (int run = 0; run < 3; ++run) toy.run(card_predict, 2);
    CHECK(toy.cards[0]->copies == copies);  // x and the tap are small, and go with the steps
  }
  CHECK(values(toy.session.read("w")) == std::vector<float>{7, 17});
  toy.session.write("w", floats({1, 2}));
  CHECK(toy.run(card_predict, 1) == std::vector<float>{2, 3});
  CHECK(toy.run(host_predict, 1) == std::vector<float>{2, 3});
  CHECK(toy.opened == 1);
}

TEST_CASE("runs on several devices take turns in the order they were submitted") {
  Devices toy;
  std::vector<std::shared_ptr<Plan>> plans;
  for (int device = 0; device < 3; ++device) plans.push_back(toy.train(device));
  std::minstd_rand luck(1);
  const int count = 2000;
  int submitted = 0, ended = 0, device = 0;
  float expected = 0;
  bool right = true;
  while (ended < count) {
    if (luck() % 3 == 0) device = static_cast<int>(luck() % 3);
    Executor::Submission submission;
    submission.feeds = {floats({1, 2})};
    submission.may_run_inline = luck() % 4 == 0;
    if (submitted < count && toy.session.submit(plans[device], std::move(submission))) ++submitted;
    while (const auto completion = toy.session.pull()) {
      if (completion->end) {
        ++ended;
        right = right && !completion->error && completion->run == RunId(ended);
      } else {
        right = right && values(completion->tensor) == std::vector<float>{expected, 2 * expected};
        --expected;
      }
    }
  }
  CHECK(right);
  CHECK(values(toy.session.read("w")) == std::vector<float>{-count, -2.f * count});
  for (const auto& card : toy.cards) CHECK(card->violations().empty());
}

// Two threads meet in the variable, which ThreadSanitizer sees.
TEST_CASE("a job is compiled for another device while a run writes the variable that it reads") {
  Devices toy;
  const auto train = toy.train(0);
  REQUIRE(toy.session.submit(train, feed({1, 2})));
  const auto predict = toy.predict(1);
  while (!next(toy.session).end) {
  }
  CHECK(toy.run(predict, 1) == std::vector<float>{0, -1});
}

TEST_CASE("a card that failed keeps what it alone has, and nothing else") {
  Devices toy;
  const auto train = toy.train(1), predict = toy.predict(0);
  toy.run(train, 1);
  toy.cards[0]->fail("the card has fallen off the bus");
  const char* const lost = "variable 'w', last written on the gpu, cannot be moved: the card has fallen off the bus";
  CHECK_THROWS_WITH(toy.run(train, 1), "the card has fallen off the bus");
  CHECK_THROWS_WITH(toy.run(predict, 1), lost);
  CHECK_THROWS_WITH(toy.session.read("w"), lost);
  toy.session.write("w", floats({4, 5}));
  CHECK(toy.run(predict, 1) == std::vector<float>{5, 6});
  CHECK(values(toy.session.read("w")) == std::vector<float>{4, 5});
}

TEST_CASE("a device without the kernel of a fused op gets the ops unfused") {
  Devices toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(2));
  graph.tap(graph.append("add", {graph.append("square", {x})[0], x}, {}, "sum")[0], 1);
  for (const bool lacks : {false, true}) {
    if (lacks) toy.cards[0]->lacks.insert("square_add");
    const auto plan = toy.session.compile(graph, "job", toy.session.gpu(0));
    CHECK(plan->steps.size() == (lacks ? 2 : 1));
    CHECK(toy.run(plan, 3) == std::vector<float>{12, 12});
  }
  CHECK(toy.session.compile(graph, "job")->steps.size() == 1);
}

TEST_CASE("an op that a gpu has no kernel for says so, and where its job can run") {
  Devices toy;
  toy.cards[0]->lacks.insert("mul");
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(2));
  graph.tap(graph.append("mul", {x, x}, {}, "product", "net.lua:4")[0], 1);
  try {
    toy.session.compile(graph, "job", toy.session.gpu(0));
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.describe() ==
          "net.lua:4: job: mul 'product': has no gpu kernel in this build; "
          "place its job with flow.scope.placement(\"cpu\", \"0:0\")");
  }
  Graph there(toy.session.catalog());
  there.tap(there.append("gpu_only", {there.feed("x", vec(2))})[0], 1);
  CHECK(toy.run(toy.session.compile(there, "job", toy.session.gpu(0)), 3) == std::vector<float>{3, 3});
}

TEST_CASE("a gpu is opened when first asked for, and not being there is an error") {
  Devices toy;
  CHECK(toy.opened == 0);
  CHECK(toy.session.gpu(1) == toy.cards[1]);
  CHECK(toy.session.gpu(1) == toy.cards[1]);
  CHECK(toy.opened == 1);
  CHECK_THROWS_WITH(toy.session.gpu(2), "there is no gpu 2");
  ToySession alone;
  CHECK_THROWS_WITH(alone.session.gpu(0), "this session has no gpu");
}

TEST_CASE("devices outlive the plans of a session, and all of their memory is given back") {
  std::shared_ptr<FakeCard> card;
  std::shared_ptr<Plan> plan;
  {
    Devices toy;
    card = toy.cards[0];
    plan = toy.train(1);
    toy.run(plan, 1);
    toy.run(toy.predict(0), 1);
  }
  plan.reset();
  CHECK(card->live_buffers == 0);
  CHECK(card->live_staging == 0);
}
