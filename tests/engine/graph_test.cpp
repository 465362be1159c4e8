#include "engine/graph.h"

#include <catch2/catch.hpp>

#include "toy.h"

using namespace moonflow;
using namespace moonflow::toy;

TEST_CASE("an op's type is inferred when it is appended") {
  const auto ops = catalog();
  Graph graph(*ops);
  const ValueId x = graph.feed("x", vec(3));
  const ValueId y = graph.append("square", {x}, {}, "sq", "net.lua:4")[0];
  CHECK(graph.type(y) == vec(3));
  CHECK(graph.blob_name(y) == "sq/out_0");
  CHECK(graph.blob_name(graph.variable("w", vec(3))) == "w/out");
}

TEST_CASE("a fault names the op, its node and the script's line") {
  const auto ops = catalog();
  Graph graph(*ops);
  const ValueId x = graph.feed("x", vec(3)), y = graph.feed("y", vec(4));
  try {
    graph.append("add", {x, y}, {}, "sum", "net.lua:7");
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.describe() == "net.lua:7: add 'sum': x is (3), y is (4)");
    CHECK(error.code == ErrorCode::ShapeMismatch);
  }
  CHECK_THROWS_WITH(graph.append("squaer", {x}), "there is no op 'squaer'; did you mean 'square'?");
  CHECK_THROWS_WITH(graph.append("add", {x}), "misses its input 'y'");
  CHECK_THROWS_WITH(graph.append("square", {x, x}), "takes 1 values, got 2");
  CHECK_THROWS_WITH(graph.append("square", {99}), "there is no value 99 in this graph");
}

TEST_CASE("options are checked by name and type, and defaults are filled in") {
  const auto ops = catalog();
  Graph graph(*ops);
  const ValueId x = graph.feed("x", vec(3));
  CHECK_THROWS_WITH(graph.append("halves", {x}, {{"scael", 1.0}}),
                    "halves has no option 'scael'; did you mean 'scale'?");
  CHECK_THROWS_WITH(graph.append("halves", {x}, {{"scale", true}}), Catch::Contains("wants a float"));
  const ValueId a = graph.append("halves", {x})[0];
  CHECK(graph.node(graph.value(a).node).attrs.number("scale") == 0.5);
}

TEST_CASE("a failed append leaves the graph as it was") {
  const auto ops = catalog();
  Graph graph(*ops);
  const ValueId x = graph.feed("x", vec(3)), y = graph.feed("y", vec(4));
  CHECK_THROWS(graph.append("add", {x, y}));
  CHECK(graph.nodes().size() == 2);
  CHECK(graph.values().size() == 2);
}

TEST_CASE("a variable asked for twice is one value, and keeps its type") {
  const auto ops = catalog();
  Graph graph(*ops);
  const ValueId w = graph.variable("w", vec(3), "net.lua:1");
  CHECK(graph.variable("w", vec(3)) == w);
  CHECK_THROWS_WITH(graph.variable("w", vec(4)), Catch::Contains("is float32 (3) already"));
}

TEST_CASE("the nearest name is the one that was meant") {
  const std::vector<std::string> names{"elu", "relu", "minimize", "reduce_sum"};
  CHECK(nearest("rleu", names) == &names[1]);   // swapped
  CHECK(nearest("RELU", names) == &names[1]);   // in other letters
  CHECK(nearest("minim", names) == &names[2]);  // the beginning
  CHECK(nearest("reduce_smu", names) == &names[3]);
  CHECK(nearest("softmax", names) == nullptr);
  CHECK(nearest(std::string(1000, 'e'), names) == nullptr);
}
