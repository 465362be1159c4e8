#include "engine/plan.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "toy.h"

using namespace moonflow;
using namespace moonflow::toy;

namespace {

std::vector<std::string> labels(const Plan& plan) {
  std::vector<std::string> labels;
  for (const Step& step : plan.steps) labels.push_back(step.label);
  return labels;
}

ValueId append(Graph& graph, std::string_view op, std::vector<ValueId> inputs, std::string name = {}) {
  return graph.append(op, std::move(inputs), {}, std::move(name), "net.lua:1")[0];
}

}  // namespace

TEST_CASE("a node that nothing depends on is dropped") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(2));
  append(graph, "square", {x}, "dead");
  graph.tap(append(graph, "add", {x, x}, "live"), 1);
  CHECK(labels(*toy.session.compile(graph, "job")) == std::vector<std::string>{"add 'live'"});
}

TEST_CASE("equal nodes are computed once, and so is what follows from them") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(2));
  const auto cube = [&](const std::string& of) {
    return append(graph, "mul", {append(graph, "mul", {x, x}, "square_" + of), x}, "cube_" + of);
  };
  const ValueId first = cube("a"), second = cube("b");
  graph.tap(append(graph, "mul", {first, second}, "product"), 1);
  const auto plan = toy.session.compile(graph, "job");
  CHECK(labels(*plan) == std::vector<std::string>{"mul 'square_a'", "mul 'cube_a'", "mul 'product'"});
  CHECK(plan->merged_ops == 2);
  CHECK(values(toy.call(plan, {floats({2, 3})})[0]) == std::vector<float>{64, 729});
}

TEST_CASE("equal nodes that lead nowhere are no reason to compute what they equal") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(2));
  append(graph, "mul", {x, x}, "dead");
  graph.tap(append(graph, "mul", {x, x}, "live"), 1);
  const auto plan = toy.session.compile(graph, "job");
  CHECK(labels(*plan) == std::vector<std::string>{"mul 'live'"});
  CHECK(plan->merged_ops == 0);
}

TEST_CASE("nodes are equal by op, inputs, what is left out, and attributes to the bit") {
  ToySession toy;
  const auto steps = [&](const auto& build) {
    Graph graph(toy.session.catalog());
    const ValueId x = graph.feed("x", vec(2)), y = graph.feed("y", vec(2));
    Token token = 0;
    for (const ValueId value : build(graph, x, y)) graph.tap(value, ++token);
    return toy.session.compile(graph, "job")->steps.size();
  };
  using Values = std::vector<ValueId>;
  CHECK(steps([](Graph& graph, ValueId x, ValueId y) {
          return Values{append(graph, "mul", {x, y}), append(graph, "add", {x, y}), append(graph, "mul", {x, x})};
        }) == 3);
  CHECK(steps([](Graph& graph, ValueId x, ValueId y) {
          return Values{append(graph, "plus", {x}), append(graph, "plus", {x, y}), append(graph, "plus", {x, kNone})};
        }) == 2);
  const auto halves = [](std::vector<double> scales) {
    return [scales](Graph& graph, ValueId x, ValueId) {
      Values outputs;
      for (const double scale : scales) outputs.push_back(graph.append("halves", {x}, {{"scale", scale}})[0]);
      return outputs;
    };
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(steps(halves({0.5, 0.25, 0.5})) == 2);
  CHECK(steps(halves({0.0, -0.0})) == 2);
  CHECK(steps(halves({nan, nan})) == 1);
  // Two draws by one key are one, as they would give the same.
  CHECK(steps([](Graph& graph, ValueId x, ValueId) {
          Values drawn;
          for (const char* const key : {"a", "bc", "a"}) drawn.push_back(graph.append("draw", {x}, {{"key", key}})[0]);
          return drawn;
        }) == 2);
}

TEST_CASE("each output of a node takes the place of the same output of an equal one") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(1));
  const std::vector<ValueId> first = graph.append("halves", {x}, {}, "first");
  const std::vector<ValueId> second = graph.append("halves", {x}, {}, "second");
  graph.tap(append(graph, "mul", {first[0], x}, "product"), 1);
  graph.tap(append(graph, "mul", {second[1], x}, "other"), 2);
  graph.tap(append(graph, "mul", {second[0], x}, "again"), 3);
  const auto plan = toy.session.compile(graph, "job");
  CHECK(labels(*plan) == std::vector<std::string>{"halves 'first'", "mul 'product'", "mul 'other'"});
  const std::vector<Tensor> out = toy.call(plan, {floats({4})});
  for (const Tensor& tensor : out) CHECK(values(tensor) == std::vector<float>{8});
  CHECK(out.size() == 3);
}

TEST_CASE("taps on equal nodes are delivered each, whatever becomes of the value") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(2));
  const ValueId sum = append(graph, "add", {x, x}, "sum"), same_sum = append(graph, "add", {x, x}, "same_sum");
  graph.tap(same_sum, 2);
  graph.tap(sum, 1);
  graph.tap(append(graph, "square", {same_sum}, "in_place"), 3);  // may overwrite what it reads
  graph.tap(append(graph, "same", {sum}, "view"), 4);
  graph.tap(append(graph, "same", {same_sum}, "same_view"), 5);
  graph.tap(append(graph, "reversing", {sum}, "turned"), 6);
  graph.tap(append(graph, "reversing", {same_sum}, "same_turned"), 7);
  const auto plan = toy.session.compile(graph, "job");
  std::vector<Token> tokens;
  for (const PlannedTap& tap : plan->taps) tokens.push_back(tap.token);
  CHECK(tokens == std::vector<Token>{2, 1, 3, 4, 5, 6, 7});
  for (const bool inlined : {true, false}) {
    const std::vector<Tensor> out = toy.call(plan, {floats({1, 2})}, inlined);
    std::vector<std::vector<float>> delivered;
    for (const Tensor& tensor : out) delivered.push_back(values(tensor));
    const std::vector<float> sums{2, 4}, turned{3, 5}, squares{4, 16};
    CHECK(delivered == std::vector<std::vector<float>>{sums, sums, squares, sums, sums, turned, turned});
    out[0].data<float>()[0] = 7;  // none is another's memory
    CHECK(values(out[1])[0] != 7);
  }
}

TEST_CASE("what equals a tapped value is not fused into its reader") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(2));
  graph.tap(append(graph, "add", {append(graph, "square", {x}, "read"), x}, "sum"), 1);
  graph.tap(append(graph, "square", {x}, "tapped"), 2);
  const auto plan = toy.session.compile(graph, "job");
  CHECK(labels(*plan) == std::vector<std::string>{"square 'read'", "add 'sum'"});
  const std::vector<Tensor> out = toy.call(plan, {floats({2, 3})});
  CHECK(values(out[0]) == std::vector<float>{6, 12});
  CHECK(values(out[1]) == std::vector<float>{4, 9});
}

TEST_CASE("constants of equal type and bytes are one, and others are not") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(2));
  const auto scaled = [&](std::vector<float> by, const std::string& name) {
    return append(graph, "mul", {x, graph.constant(floats(std::move(by)), name)}, name);
  };
  for (const float by : {2.f, 2.f, 0.f, -0.f, 3.f}) graph.tap(scaled({by, 1}, "by " + std::to_string(by)), 1);
  graph.tap(graph.constant(floats({2, 1}), "tapped"), 6);
  graph.tap(graph.constant(floats({2, 1, 0}), "longer"), 7);
  graph.tap(graph.constant(floats({2, 1}).reshaped({2, 1}), "column"), 8);
  const auto plan = toy.session.compile(graph, "job");
  CHECK(plan->constants.size() == 6);
  CHECK(plan->steps.size() == 4);
  const std::vector<Tensor> out = toy.call(plan, {floats({1, 1})});
  CHECK(values(out[1]) == std::vector<float>{2, 1});
  CHECK(std::signbit(values(out[3])[0]));
  CHECK(values(out[5]) == std::vector<float>{2, 1});
  CHECK(values(out[6]) == std::vector<float>{2, 1, 0});
  CHECK(out[7].shape() == Shape{2, 1});
}

TEST_CASE("equal writes happen each") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId w = graph.variable("w", vec(1)), one = graph.constant(floats({1}), "one");
  graph.append("assign_sub", {w, one}, {}, "update");
  graph.append("assign_sub", {w, one}, {}, "same_update");
  graph.tap(append(graph, "mul", {w, w}, "before"), 1);
  graph.tap(append(graph, "mul", {w, w}, "too"), 2);  // built behind the writes, and yet of the old value
  const auto plan = toy.session.compile(graph, "job");
  toy.session.write("w", floats({5}));
  const std::vector<Tensor> out = toy.call(plan, {});
  CHECK(values(out[0]) == std::vector<float>{25});
  CHECK(values(out[1]) == std::vector<float>{25});
  CHECK(values(toy.session.read("w")) == std::vector<float>{3});
  CHECK(plan->steps.size() == 3);
}

TEST_CASE("what fails is named by the first of equal nodes") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(1));
  graph.tap(graph.append("bad", {x}, {}, "first", "net.lua:3")[0], 1);
  graph.tap(graph.append("bad", {x}, {}, "second", "net.lua:9")[0], 2);
  try {
    toy.call(toy.session.compile(graph, "job"), {floats({1})});
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.op == "bad 'first'");
    CHECK(error.where == "net.lua:3");
  }
}

TEST_CASE("of two long chains that are equal one is computed") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(1));
  for (Token token = 1; token <= 2; ++token) {
    ValueId value = x;
    for (int i = 0; i < 10000; ++i) value = append(graph, "add", {value, x});
    graph.tap(value, token);
  }
  const auto plan = toy.session.compile(graph, "chains");
  CHECK(plan->steps.size() == 10000);
  for (const Tensor& out : toy.call(plan, {floats({1})})) CHECK(values(out) == std::vector<float>{10001});
}

TEST_CASE("graphs with many equal nodes give what each node says by itself") {
  int merged = 0;
  for (unsigned seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](size_t n) { return random() % n; };
    ToySession toy;
    Graph graph(toy.session.catalog());
    const ValueId x = graph.feed("x", vec(1));
    const std::vector<ValueId> variables{graph.variable("v", vec(1)), graph.variable("w", vec(1))};
    std::vector<ValueId> made{x, variables[0], variables[1]};
    std::vector<float> wanted{3, 2, 5};  // of `made`
    const auto note = [&](ValueId value, float is) {
      made.push_back(value);
      wanted.push_back(is);
    };
    std::vector<float> left{2, 5};  // in the variables
    const auto update = [&](size_t variable) {
      graph.append("assign_sub", {variables[variable], x});
      left[variable] -= 3;
    };
    for (int i = 0; i < 100; ++i) {
      // Few to choose from, so that many nodes are equal.
      const size_t first = below(std::min<size_t>(made.size(), 4)), second = below(std::min<size_t>(made.size(), 5));
      const ValueId a = made[first], b = made[second];
      const float is_a = wanted[first], is_b = wanted[second], drawn = static_cast<float>(below(2));
      switch (below(8)) {
        case 0:
          note(append(graph, "plus", {a}), is_a);
          break;
        case 1:
          note(append(graph, "plus", {a, b}), is_a + is_b);
          break;
        case 2:
          note(append(graph, "add", {a, b}), is_a + is_b);
          break;
        case 3:
          note(append(graph, "same", {b}), is_b);
          break;
        case 4:
          note(graph.append("reversing", {b}, {{"by", static_cast<double>(drawn)}})[0], is_b + drawn);
          break;
        case 5:
          note(graph.constant(floats({drawn}), "constant"), drawn);
          break;
        case 6:
          for (const ValueId half : graph.append("halves", {a}, {{"scale", 0.5 + drawn}}))
            note(half, is_a * (0.5f + drawn));
          break;
        default:
          update(below(2));
      }
    }
    for (const size_t variable : {0, 1}) update(variable);
    std::vector<float> tapped;
    for (Token token = 1; token <= 30; ++token) {
      const size_t at = below(made.size());
      graph.tap(made[at], token);
      tapped.push_back(wanted[at]);
    }
    const auto plan = toy.session.compile(graph, "job");
    merged += plan->merged_ops;
    toy.session.write("v", floats({2}));
    toy.session.write("w", floats({5}));
    std::vector<float> delivered;
    for (const Tensor& out : toy.call(plan, {floats({3})})) delivered.push_back(values(out)[0]);
    CHECK(delivered == tapped);
    CHECK(values(toy.session.read("v"))[0] == left[0]);
    CHECK(values(toy.session.read("w"))[0] == left[1]);
  }
  CHECK(merged > 400);
}

TEST_CASE("a family's pattern is fused unless an inner value is tapped or read elsewhere") {
  ToySession toy;
  const auto build = [&](bool tap_inner, bool read_inner) {
    Graph graph(toy.session.catalog());
    const ValueId x = graph.feed("x", vec(2));
    const ValueId squared = append(graph, "square", {x}, "sq");
    graph.tap(append(graph, "add", {squared, x}, "sum"), 1);
    if (tap_inner) graph.tap(squared, 2);
    if (read_inner) graph.tap(append(graph, "mul", {squared, x}, "product"), 3);
    const auto plan = toy.session.compile(graph, "job");
    CHECK(values(toy.call(plan, {floats({2, 3})})[0]) == std::vector<float>{6, 12});
    return plan->steps.size();
  };
  CHECK(build(false, false) == 1);
  CHECK(build(true, false) == 2);
  CHECK(build(false, true) == 3);
}

TEST_CASE("whoever writes a variable comes after every reader of its old value, also through an alias") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId w = graph.variable("w", vec(2));
  const ValueId one = graph.constant(floats({1, 1}), "one");
  const ValueId seen = append(graph, "same", {w}, "view");
  graph.append("assign_sub", {w, one}, {}, "update");
  graph.tap(append(graph, "add", {seen, seen}, "late"), 1);  // built after the write, shows the value before it
  const auto plan = toy.session.compile(graph, "job");
  toy.session.write("w", floats({10, 20}));
  CHECK(values(toy.call(plan, {})[0]) == std::vector<float>{20, 40});
  CHECK(values(toy.call(plan, {})[0]) == std::vector<float>{18, 38});
  CHECK(values(toy.session.read("w")) == std::vector<float>{8, 18});
  CHECK(labels(*plan) == std::vector<std::string>{"add 'late'", "assign_sub 'update'"});
  CHECK(plan->first_write == 1);
}

TEST_CASE("two writers of one variable keep their order, and both read its old value") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId w = graph.variable("w", vec(1));
  graph.append("assign_sub", {w, graph.constant(floats({1}), "one")}, {}, "first");
  graph.append("assign_sub", {w, append(graph, "same", {w})}, {}, "second");
  const auto plan = toy.session.compile(graph, "job");
  CHECK(labels(*plan) == std::vector<std::string>{"cast 'second'", "assign_sub 'first'", "assign_sub 'second'"});
  toy.session.write("w", floats({10}));
  toy.call(plan, {});
  CHECK(values(toy.session.read("w")) == std::vector<float>{-1});
}

TEST_CASE("variables that take each other's value, in circles of any length, all take the old ones") {
  for (const int length : {2, 3, 7}) {
    ToySession toy;
    Graph graph(toy.session.catalog());
    std::vector<ValueId> variables;
    for (int i = 0; i < length; ++i) variables.push_back(graph.variable("w" + std::to_string(i), vec(1)));
    for (int i = 0; i < length; ++i) {
      const ValueId next = variables[(i + 1) % length];
      graph.append("assign_sub", {variables[i], i == 0 ? append(graph, "same", {next}) : next});
    }
    const auto plan = toy.session.compile(graph, "job");
    CHECK(plan->first_write == static_cast<int>(plan->steps.size()) - length);
    for (int i = 0; i < length; ++i) toy.session.write("w" + std::to_string(i), floats({std::exp2f(i)}));
    toy.call(plan, {});
    for (int i = 0; i < length; ++i)
      CHECK(values(toy.session.read("w" + std::to_string(i)))[0] == std::exp2f(i) - std::exp2f((i + 1) % length));
  }
}

TEST_CASE("an update reads a variable that another writes without a copy where an order allows that") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId a = graph.variable("a", vec(1)), b = graph.variable("b", vec(1)), c = graph.variable("c", vec(1));
  graph.append("assign_sub", {b, c}, {}, "first_said");
  graph.append("assign_sub", {a, b}, {}, "first_done");
  CHECK(labels(*toy.session.compile(graph, "job")) ==
        std::vector<std::string>{"assign_sub 'first_done'", "assign_sub 'first_said'"});
}

TEST_CASE("one update of several variables writes each of them") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId u = graph.variable("u", vec(1)), w = graph.variable("w", vec(2)), x = graph.feed("x", vec(1));
  graph.append("assign_sub", {u, x, w, append(graph, "square", {w})}, {}, "both");
  graph.tap(append(graph, "add", {u, x}, "before"), 1);
  const auto plan = toy.session.compile(graph, "job");
  CHECK(labels(*plan).back() == "assign_sub 'both'");
  CHECK(plan->written.size() == 2);
  toy.session.write("u", floats({1}));
  toy.session.write("w", floats({2, 3}));
  CHECK(values(toy.call(plan, {floats({10})})[0]) == std::vector<float>{11});
  CHECK(values(toy.session.read("u")) == std::vector<float>{-9});
  CHECK(values(toy.session.read("w")) == std::vector<float>{-2, -6});
  CHECK_THROWS_WITH(graph.append("assign_sub", {u, x, w}, {}, "half"), Catch::Contains("takes groups of 2 values"));
}

TEST_CASE("a kernel learns which of its inputs last from run to run") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId still = graph.variable("still", vec(2)), moved = graph.variable("moved", vec(2)),
                x = graph.feed("x", vec(2));
  for (const ValueId value : {still, moved, x}) graph.tap(append(graph, "turning", {value}), value);
  graph.append("assign_sub", {moved, x});
  const auto plan = toy.session.compile(graph, "job");
  toy.session.write("still", floats({1, 2}));
  toy.session.write("moved", floats({3, 4}));
  for (int run = 0; run < 2; ++run) CHECK(values(toy.call(plan, {floats({0, 5})})[0]) == std::vector<float>{1, 4});
  CHECK(toy.device->reorders == 2);  // there and back, in the first run; the others stay in rows
}

TEST_CASE("what follows from variables alone lasts as they do, and so do constants and views") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId w = graph.variable("w", vec(2)), x = graph.feed("x", vec(2));
  const ValueId square = append(graph, "square", {w}, "square");
  graph.tap(append(graph, "turning", {square}, "kept"), 1);
  graph.tap(append(graph, "turning", {append(graph, "add", {square, x}, "sum")}, "moving"), 2);
  const auto plan = toy.session.compile(graph, "job");
  CHECK(labels(*plan) == std::vector<std::string>{"square 'square'", "reorder of 'square'", "turning 'kept'",
                                                  "reorder of 'kept'", "add 'sum'", "turning 'moving'"});
  CHECK(plan->kept_steps == 4);
  toy.session.write("w", floats({1, 2}));
  for (int run = 0; run < 2; ++run) {
    const std::vector<Tensor> results = toy.call(plan, {floats({0, 1})});
    CHECK(values(results[0]) == std::vector<float>{1, 16});
    CHECK(values(results[1]) == std::vector<float>{1, 25});
  }
}

TEST_CASE("a tapped variable shows its value before the update") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId w = graph.variable("w", vec(1));
  graph.append("assign_sub", {w, graph.constant(floats({1}), "one")}, {}, "update");
  graph.tap(w, 1);
  const auto plan = toy.session.compile(graph, "job");
  toy.session.write("w", floats({5}));
  CHECK(values(toy.call(plan, {})[0]) == std::vector<float>{5});
  CHECK(values(toy.call(plan, {})[0]) == std::vector<float>{4});
}

TEST_CASE("updating what is not a variable is an error") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(1));
  graph.append("assign_sub", {x, x}, {}, "update", "net.lua:3");
  try {
    toy.session.compile(graph, "job");
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.describe() == "net.lua:3: job: assign_sub 'update': updates a value that is not a variable");
  }
}

TEST_CASE("an op without a kernel here names itself, its line and a placement that works") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  graph.tap(append(graph, "gpu_only", {graph.feed("x", vec(1))}, "pick"), 1);
  try {
    toy.session.compile(graph, "job");
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code == ErrorCode::Unsupported);
    CHECK(error.where == "net.lua:1");
    CHECK_THAT(error.what(), Catch::Contains("no cpu kernel"));
  }
}

TEST_CASE("a private layout is carried along a chain, with reorders only at its ends") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(3));
  const ValueId a = append(graph, "reversing", {x}, "a");
  const ValueId b = append(graph, "reversing", {a}, "b");
  graph.tap(b, 1);
  const auto plan = toy.session.compile(graph, "job");
  CHECK(labels(*plan) ==
        std::vector<std::string>{"reorder of 'x'", "reversing 'a'", "reversing 'b'", "reorder of 'b'"});
  CHECK(values(toy.call(plan, {floats({1, 2, 3})})[0]) == std::vector<float>{3, 4, 5});
  CHECK(toy.device->reorders == 2);
}

TEST_CASE("consumers that want the same layout share one reorder") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(2));
  graph.tap(append(graph, "reversing", {x}, "a"), 1);
  graph.tap(graph.append("reversing", {x}, {{"by", 2.0}}, "b")[0], 2);
  const auto plan = toy.session.compile(graph, "job");
  toy.call(plan, {floats({1, 2})});
  CHECK(toy.device->reorders == 3);  // x once, a and b for their taps
}

TEST_CASE("a value is made as all its readers take it, where its kernel can") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(3));
  const ValueId a = append(graph, "yielding", {x}, "a");
  const ValueId b = append(graph, "reversing", {a}, "b");
  const ValueId c = append(graph, "yielding", {b}, "c");
  graph.tap(append(graph, "add", {append(graph, "reversing", {c}, "d"), b}, "sum"), 1);
  auto plan = toy.session.compile(graph, "job");
  // c is not tapped; b, which is read in both orders, is made once and turned once.
  CHECK(labels(*plan) == std::vector<std::string>{"yielding 'a'", "reversing 'b'", "reorder of 'b'", "yielding 'c'",
                                                  "reversing 'd'", "reorder of 'd'", "add 'sum'"});
  CHECK(values(toy.call(plan, {floats({1, 2, 3})})[0]) == std::vector<float>{5, 7, 9});

  graph.tap(a, 2);  // so somebody takes it in rows
  plan = toy.session.compile(graph, "job");
  CHECK(labels(*plan) == std::vector<std::string>{"yielding 'a'", "reorder of 'a'", "reversing 'b'", "reorder of 'b'",
                                                  "yielding 'c'", "reversing 'd'", "reorder of 'd'", "add 'sum'"});
  const std::vector<Tensor> out = toy.call(plan, {floats({1, 2, 3})});
  CHECK(values(out[0]) == std::vector<float>{5, 7, 9});
  CHECK(values(out[1]) == std::vector<float>{1, 2, 3});
}

TEST_CASE("a feed that is tapped, and a feed that nobody reads, keep their places") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  graph.feed("unused", vec(1));
  const ValueId x = graph.feed("x", vec(2));
  graph.tap(x, 1);
  graph.tap(append(graph, "same", {x}, "view"), 2);
  const auto plan = toy.session.compile(graph, "job");
  const Tensor fed = floats({1, 2});
  const std::vector<Tensor> out = toy.call(plan, {floats({0}), fed});
  CHECK(values(out[0]) == std::vector<float>{1, 2});
  CHECK(values(out[1]) == std::vector<float>{1, 2});
  CHECK_FALSE(out[0].shares_memory(fed));
}

TEST_CASE("a value made for one tap alone is made where it is delivered, and copied for no one") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(2));
  graph.tap(append(graph, "add", {x, x}, "alone"), 1);
  const ValueId read = append(graph, "square", {x}, "read"), sum = append(graph, "add", {read, x}, "sum");
  graph.tap(read, 2);
  graph.tap(sum, 3);
  const auto plan = toy.session.compile(graph, "job");
  const auto run = [&](std::vector<bool> taps_on) {
    Executor::Submission submission = feed({1, 2}, true);
    submission.taps_on = std::move(taps_on);
    toy.device->copies = 0;
    REQUIRE(toy.session.submit(plan, std::move(submission)) != 0);
    std::vector<std::vector<float>> delivered;
    for (Completion completion = next(toy.session); !completion.end; completion = next(toy.session))
      delivered.push_back(values(completion.tensor));
    return delivered;
  };
  const std::vector<float> alone{2, 4}, squares{1, 4}, sums{2, 6};
  CHECK(run({true, true, true}) == std::vector<std::vector<float>>{alone, squares, sums});
  CHECK(toy.device->copies == 1);  // of what "sum" reads too
  CHECK(run({false, true, true}) == std::vector<std::vector<float>>{squares, sums});
  CHECK(run({true, false, false}) == std::vector<std::vector<float>>{alone});
  CHECK(toy.device->copies == 0);
}

TEST_CASE("what a run has delivered stays as it was when the plan runs again") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  graph.tap(append(graph, "square", {graph.feed("x", vec(2))}), 1);
  const auto plan = toy.session.compile(graph, "job");
  const Tensor first = toy.call(plan, {floats({1, 2})})[0], second = toy.call(plan, {floats({3, 4})})[0];
  CHECK(values(first) == std::vector<float>{1, 4});
  CHECK(values(second) == std::vector<float>{9, 16});
}

TEST_CASE("what a run has delivered stays as it was when the next one does not want it") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  graph.tap(graph.append("picky", {graph.feed("x", vec(2))})[0], 1);
  const auto plan = toy.session.compile(graph, "job");
  const Tensor first = toy.call(plan, {floats({1, 2})})[0];
  Executor::Submission off = feed({3, 4}, true);
  off.taps_on = {false};
  toy.session.submit(plan, std::move(off));
  CHECK(next(toy.session).end);
  CHECK(values(first) == std::vector<float>{1, 2});
}

TEST_CASE("what follows from several variables is made anew when any of them is written") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId v = graph.variable("v", vec(1)), w = graph.variable("w", vec(1)), x = graph.feed("x", vec(1));
  const ValueId kept = graph.append("mul", {graph.append("square", {v})[0], graph.append("square", {w})[0]})[0];
  graph.tap(graph.append("mul", {kept, x})[0], 1);
  const auto plan = toy.session.compile(graph, "job");
  toy.session.write("v", floats({2}));
  toy.session.write("w", floats({3}));
  const auto run = [&] { return values(toy.call(plan, {floats({1})})[0])[0]; };
  CHECK(run() == 36);
  toy.session.write("w", floats({1}));
  CHECK(run() == 4);
  toy.session.write("v", floats({5}));
  CHECK(run() == 25);
}

TEST_CASE("a long chain needs the memory of two values, and less in place") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(1000));
  ValueId value = x;
  for (int i = 0; i < 50; ++i) value = append(graph, "mul", {value, x});
  graph.tap(value, 1);
  const auto plan = toy.session.compile(graph, "chain");
  CHECK(plan->arena_bytes <= 2 * 4096);
  CHECK(plan->arena_lower_bound == plan->arena_bytes);

  Graph in_place(toy.session.catalog());
  value = append(in_place, "mul", {in_place.feed("x", vec(1000)), 0});
  for (int i = 0; i < 50; ++i) value = append(in_place, "square", {value});
  in_place.tap(value, 1);
  CHECK(toy.session.compile(in_place, "chain")->arena_bytes <= 4096);
}

TEST_CASE("in place never overwrites a feed, a variable, or what somebody still reads") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(2)), w = graph.variable("w", vec(2));
  const ValueId sum = append(graph, "add", {x, w}, "sum");
  const ValueId squared = append(graph, "square", {sum}, "squared");
  graph.tap(append(graph, "mul", {squared, sum}, "cube"), 1);
  graph.tap(append(graph, "square", {x}), 2);
  graph.tap(append(graph, "square", {w}), 3);
  const auto plan = toy.session.compile(graph, "job");
  toy.session.write("w", floats({1, 1}));
  const Tensor fed = floats({1, 2});
  CHECK(values(toy.call(plan, {fed})[0]) == std::vector<float>{8, 27});
  CHECK(values(fed) == std::vector<float>{1, 2});
  CHECK(values(toy.session.read("w")) == std::vector<float>{1, 1});
}

TEST_CASE("what follows from variables alone is made again only once one of them has been written") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId w = graph.variable("w", vec(2));
  const ValueId turned = append(graph, "reversing", {w}, "turned");  // with a reorder before and behind it
  graph.tap(append(graph, "add", {turned, graph.feed("x", vec(2))}, "sum"), 1);
  const auto plan = toy.session.compile(graph, "job");
  CHECK(labels(*plan) ==
        std::vector<std::string>{"reorder of 'w'", "reversing 'turned'", "reorder of 'turned'", "add 'sum'"});
  CHECK(plan->kept_steps == 3);
  const auto sum = [&](float x) { return values(toy.call(plan, {floats({x, x})})[0]); };

  toy.session.write("w", floats({1, 2}));
  CHECK(sum(10) == std::vector<float>{12, 13});
  CHECK(sum(20) == std::vector<float>{22, 23});
  CHECK(toy.device->reorders == 2);
  toy.session.write("w", floats({5, 6}));
  CHECK(sum(10) == std::vector<float>{16, 17});
  CHECK(toy.device->reorders == 4);

  Graph update(toy.session.catalog());
  update.append("assign_sub", {update.variable("w", vec(2)), update.constant(floats({1, 1}), "one")}, {}, "update");
  toy.call(toy.session.compile(update, "update"), {});
  CHECK(sum(10) == std::vector<float>{15, 16});
  CHECK(sum(10) == std::vector<float>{15, 16});
  CHECK(toy.device->reorders == 6);
}

TEST_CASE("plans that read a variable in one layout share what it is there") {
  ToySession toy;
  const auto compile = [&](const char* op, const char* name) {
    Graph graph(toy.session.catalog());
    const ValueId w = graph.variable("w", vec(2)), x = graph.feed("x", vec(2));
    graph.tap(append(graph, "add", {x, append(graph, op, {append(graph, "mul", {x, x}), w}, "result")}), 1);
    return toy.session.compile(graph, name);
  };
  const auto result = [&](const std::shared_ptr<Plan>& plan) { return values(toy.call(plan, {floats({1, 2})})[0]); };
  std::shared_ptr<Plan> first = compile("against", "first"), second = compile("against", "second");
  CHECK(labels(*first)[0] == "reorder of 'w'");
  CHECK(labels(*second)[0] == "reorder of 'w'");
  CHECK(first->steps[0].outputs[0] == second->steps[0].outputs[0]);
  Variables& variables = toy.session.variables();
  CHECK(variables.bytes() == 2 * vec(2).bytes());
  toy.session.write("w", floats({3, 4}));
  for (int run = 0; run < 2; ++run) {
    CHECK(result(first) == std::vector<float>{4, 18});
    CHECK(result(second) == std::vector<float>{4, 18});
  }
  CHECK(toy.device->reorders == 1);

  // Whoever finds it behind makes it again, and the other sees that.
  toy.session.write("w", floats({5, 6}));
  CHECK(result(second) == std::vector<float>{6, 26});
  CHECK(result(first) == std::vector<float>{6, 26});
  CHECK(toy.device->reorders == 2);

  // In rows nobody lays it out, and the last that has the other layout takes it along.
  const auto in_rows = compile("mul", "in rows");
  CHECK(result(in_rows) == std::vector<float>{6, 26});
  first.reset();
  CHECK(result(second) == std::vector<float>{6, 26});
  second.reset();
  CHECK(variables.bytes() == vec(2).bytes());
  first = compile("against", "again");
  CHECK(result(first) == std::vector<float>{6, 26});
  CHECK(toy.device->reorders == 3);
}

TEST_CASE("a variable in another layout that only kept steps read gives its memory back") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId w = graph.variable("w", vec(2));
  graph.tap(append(graph, "add", {append(graph, "turning", {w}, "turned"), graph.feed("x", vec(2))}, "sum"), 1);
  const auto plan = toy.session.compile(graph, "job");
  CHECK(labels(*plan) ==
        std::vector<std::string>{"reorder of 'w'", "turning 'turned'", "reorder of 'turned'", "add 'sum'"});
  CHECK(toy.session.variables().bytes() == vec(2).bytes());
  toy.session.write("w", floats({1, 2}));
  CHECK(values(toy.call(plan, {floats({1, 1})})[0]) == std::vector<float>{2, 5});
}

TEST_CASE("what a kept step reads of a constant in another layout is there before it, and kept too") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId square = append(graph, "square", {graph.variable("w", vec(2))}, "square");
  graph.tap(append(graph, "against", {square, graph.constant(floats({3, 4}), "factors")}, "product"), 1);
  const auto plan = toy.session.compile(graph, "job");
  CHECK(labels(*plan) == std::vector<std::string>{"square 'square'", "reorder of 'factors'", "against 'product'"});
  CHECK(plan->kept_steps == 3);
  toy.session.write("w", floats({1, 2}));
  for (int run = 0; run < 2; ++run) CHECK(values(toy.call(plan, {})[0]) == std::vector<float>{3, 16});
  toy.session.write("w", floats({2, 2}));
  CHECK(values(toy.call(plan, {})[0]) == std::vector<float>{12, 16});
}

TEST_CASE("a constant in another layout is kept, also for a step of every run") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  graph.tap(append(graph, "against", {graph.feed("x", vec(2)), graph.constant(floats({3, 4}), "factors")}, "product"),
            1);
  const auto plan = toy.session.compile(graph, "job");
  CHECK(labels(*plan) == std::vector<std::string>{"reorder of 'factors'", "against 'product'"});
  CHECK(plan->kept_steps == 1);
  for (int run = 0; run < 2; ++run) CHECK(values(toy.call(plan, {floats({1, 4})})[0]) == std::vector<float>{3, 16});
  CHECK(toy.device->reorders == 1);
}

TEST_CASE("a plan that writes a variable keeps nothing of it, and all of another") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId w = graph.variable("w", vec(1)), frozen = graph.variable("frozen", vec(1));
  const ValueId grad = append(graph, "mul", {append(graph, "square", {w}, "moving"), graph.feed("x", vec(1))}, "grad");
  graph.tap(append(graph, "add", {grad, append(graph, "square", {frozen}, "still")}, "sum"), 1);
  graph.append("assign_sub", {w, grad}, {}, "update");
  const auto plan = toy.session.compile(graph, "job");
  CHECK(plan->kept_steps == 1);
  CHECK(labels(*plan)[0] == "square 'still'");
  toy.session.write("w", floats({2}));
  toy.session.write("frozen", floats({3}));
  CHECK(values(toy.call(plan, {floats({0.5})})[0]) == std::vector<float>{11});  // 9 + 4 / 2, and w is 0 now
  toy.session.write("frozen", floats({1}));
  CHECK(values(toy.call(plan, {floats({0.5})})[0]) == std::vector<float>{1});
}

TEST_CASE("a kept value outlives the steps behind it, and taps see it in every run") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId w = graph.variable("w", vec(2)), x = graph.feed("x", vec(2));
  const ValueId kept = append(graph, "square", {w}, "kept");
  graph.tap(kept, 1);
  graph.tap(append(graph, "reversing", {w}, "turned"), 2);
  ValueId chain = append(graph, "mul", {append(graph, "square", {kept}, "again"), x}, "chain");
  for (int i = 0; i < 3; ++i) chain = append(graph, "square", {append(graph, "add", {chain, x})});
  graph.tap(chain, 3);
  const auto plan = toy.session.compile(graph, "job");
  toy.session.write("w", floats({1, 2}));
  const std::vector<Tensor> once = toy.call(plan, {floats({1, 1})});
  CHECK(values(once[0]) == std::vector<float>{1, 4});
  CHECK(values(once[1]) == std::vector<float>{2, 3});
  for (int run = 0; run < 3; ++run) {
    const std::vector<Tensor> again = toy.call(plan, {floats({1, 1})});
    for (size_t tap = 0; tap < once.size(); ++tap) CHECK(values(again[tap]) == values(once[tap]));
  }
}

TEST_CASE("a plan of kept steps alone gives its value in every run") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  graph.tap(append(graph, "square", {graph.variable("w", vec(1))}), 1);
  const auto plan = toy.session.compile(graph, "job");
  toy.session.write("w", floats({3}));
  for (int run = 0; run < 2; ++run) CHECK(values(toy.call(plan, {})[0]) == std::vector<float>{9});
}

TEST_CASE("a kept step that fails is launched again by the next run") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  graph.tap(append(graph, "bad", {graph.variable("w", vec(1))}), 1);
  const auto plan = toy.session.compile(graph, "job");
  for (int run = 0; run < 2; ++run) CHECK_THROWS_WITH(toy.call(plan, {}), Catch::Contains("row 3 is bad"));
}

TEST_CASE("a plan that does not fit in memory says at which step, and nothing stays allocated") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(1 << 20));
  const ValueId first = append(graph, "square", {x}, "first"), second = append(graph, "square", {first}, "second");
  graph.tap(append(graph, "add", {append(graph, "add", {first, second}, "both"), x}, "all"), 1);
  const int before = toy.device->live_buffers;
  toy.device->refuse_above = 1 << 16;
  try {
    toy.session.compile(graph, "job");
    FAIL("it fits");
  } catch (const Error& error) {
    CHECK(error.code == ErrorCode::OutOfMemory);
    CHECK(error.describe() ==
          "net.lua:1: job: add 'both': no memory for 12582912 bytes. So much is in use at this step; the largest is "
          "float32 (1048576) of square 'first', 4.0 MiB; take a smaller batch");
  }
  CHECK(toy.device->live_buffers == before);
}

TEST_CASE("a variable that does not fit in memory is named") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  graph.tap(graph.variable("w", vec(1 << 20)), 1);
  toy.device->refuse_above = 1 << 16;
  try {
    toy.session.compile(graph, "job");
    FAIL("it fits");
  } catch (const Error& error) {
    CHECK(error.describe() == "job: variable 'w', float32 (1048576): no memory for 4194304 bytes");
  }
}

TEST_CASE("a plan that cannot be had leaves no variable behind, so another shape may follow") {
  ToySession toy;
  const Variables& variables = toy.session.variables();
  const auto graph_of = [&](const TensorType& type) {
    Graph graph(toy.session.catalog());
    const ValueId sum = append(graph, "add", {graph.variable("v", vec(1)), graph.variable("v", vec(1))});
    graph.tap(sum, 1);
    graph.tap(append(graph, "square", {graph.variable("w", type)}), 2);
    return graph;
  };
  toy.device->refuse_above = 1 << 16;
  CHECK_THROWS_AS(toy.session.compile(graph_of(vec(1 << 20)), "job"), Error);
  CHECK(variables.names().empty());
  CHECK(toy.device->live_buffers == 0);
  toy.session.compile(graph_of(vec(2)), "job");
  CHECK(variables.names() == std::vector<std::string>{"v", "w"});

  // Nor does one whose variable is another here.
  Graph graph(toy.session.catalog());
  graph.tap(graph.variable("a", vec(1)), 1);
  graph.tap(graph.variable("w", vec(3)), 2);
  CHECK_THROWS_WITH(toy.session.compile(graph, "job"), Catch::Contains("variable 'w' is float32 (2)"));
  CHECK(variables.names().size() == 2);
}

TEST_CASE("the dump tells steps, writes and taps") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId w = graph.variable("w", vec(1));
  graph.append("assign_sub", {w, append(graph, "square", {w}, "sq")}, {}, "update");
  graph.tap(w, 9);
  const std::string dump = toy.session.compile(graph, "job")->dump();
  CHECK_THAT(dump, Catch::Contains("square 'sq'") && Catch::Contains("-- writes") && Catch::Contains("tap 9"));
}
