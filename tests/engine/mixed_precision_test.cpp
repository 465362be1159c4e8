#include "engine/mixed_precision.h"

#include <catch2/catch.hpp>

#include "toy.h"

using namespace moonflow;
using namespace moonflow::toy;

namespace {

struct Net {
  std::shared_ptr<const Catalog> ops = catalog();
  Graph graph{*ops};

  ValueId op(std::string_view op, std::vector<ValueId> inputs, std::string name) {
    return graph.append(op, std::move(inputs), {}, std::move(name), "net.lua:1")[0];
  }
  ValueId feed(std::string name, TensorType type) { return graph.feed(std::move(name), type, "net.lua:1"); }
  // The ops of the graph in mixed precision: "product 'a' (float32, bfloat16) -> bfloat16".
  std::vector<std::string> mixed(DType narrow = DType::BFloat16) const {
    FakeDevice device;
    const Graph result = with_mixed_precision(graph, narrow, device);
    REQUIRE(result.taps().size() == graph.taps().size());
    for (size_t i = 0; i < result.taps().size(); ++i) {
      CHECK(result.taps()[i].token == graph.taps()[i].token);
      CHECK(result.type(result.taps()[i].value) == graph.type(graph.taps()[i].value));
    }
    std::vector<std::string> lines;
    for (const Node& node : result.nodes()) {
      if (node.kind != Node::Op) continue;
      std::string inputs, outputs;
      for (const ValueId input : node.inputs)
        inputs += (inputs.empty() ? "" : ", ") + (input == kNone ? "-" : text(result.type(input).dtype));
      for (const ValueId output : node.outputs) outputs += text(" -> ", result.type(output).dtype);
      lines.push_back(node.describe() + " (" + inputs + ")" + outputs);
      CHECK(node.site == "net.lua:1");
    }
    return lines;
  }
};

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("a chain of ops that compute and follow stays in bfloat16, and ends in float32 without a conversion") {
  Net net;
  const ValueId x = net.feed("x", vec(8)), bias = net.feed("bias", vec(8));
  const ValueId a = net.op("product", {x, net.feed("w", vec(8))}, "a");
  const ValueId b = net.op("follow", {a, bias}, "b");
  net.graph.tap(net.op("product", {net.op("follow", {b}, "c"), b}, "d"), 7);
  CHECK(net.mixed() == Lines{"cast 'x' (float32) -> bfloat16", "product 'a' (bfloat16, float32) -> bfloat16",
                             "follow 'b' (bfloat16, float32) -> bfloat16", "follow 'c' (bfloat16, -) -> bfloat16",
                             "product 'd' (bfloat16, bfloat16) -> float32"});
}

TEST_CASE("a graph that asks for float16 gets that, and products are told what to round to") {
  Net net;
  const ValueId x = net.feed("x", vec(8));
  const ValueId a = net.op("product", {x, net.feed("w", vec(8))}, "a");
  net.graph.tap(net.op("product", {net.op("follow", {a}, "b"), a}, "c"), 7);
  CHECK(net.mixed(DType::Float16) == Lines{"cast 'x' (float32) -> float16", "product 'a' (float16, float32) -> float16",
                                           "follow 'b' (float16, -) -> float16",
                                           "product 'c' (float16, float16) -> float32"});
  for (const DType narrow : {DType::BFloat16, DType::Float16}) {
    FakeDevice device;
    const Graph mixed = with_mixed_precision(net.graph, narrow, device);
    for (const Node& node : mixed.nodes())
      if (node.kind == Node::Op && node.op->attr("rounds_to")) CHECK(node.attrs.dtype("rounds_to") == narrow);
  }
}

TEST_CASE("a value inside of a chain that is tapped, or read in float32, is widened once") {
  Net net;
  const ValueId x = net.feed("x", vec(8));
  const ValueId a = net.op("product", {x, x}, "a");
  net.graph.tap(a, 1);
  const ValueId sum = net.op("add", {a, x}, "sum");
  net.graph.tap(sum, 2);
  net.graph.tap(net.op("product", {a, x}, "b"), 3);
  CHECK(net.mixed() == Lines{"cast 'x' (float32) -> bfloat16", "product 'a' (bfloat16, bfloat16) -> bfloat16",
                             "cast 'a' (bfloat16) -> float32", "add 'sum' (float32, float32) -> float32",
                             "product 'b' (bfloat16, bfloat16) -> float32"});
}

TEST_CASE("a result that nobody wants in bfloat16 is float32, and so is what follows it") {
  Net net;
  const ValueId x = net.feed("x", vec(8)), w = net.feed("w", vec(8));
  const ValueId a = net.op("follow", {net.op("product", {x, w}, "a")}, "b");
  net.graph.tap(net.op("add", {a, x}, "sum"), 1);
  CHECK(net.mixed() == Lines{"cast 'x' (float32) -> bfloat16", "product 'a' (bfloat16, float32) -> float32",
                             "follow 'b' (float32, -) -> float32", "add 'sum' (float32, float32) -> float32"});
}

TEST_CASE("a variable is rounded beforehand where it is only read, and as it is read where it is written") {
  Net net;
  const ValueId x = net.feed("x", vec(8));
  const ValueId frozen = net.graph.variable("frozen", vec(8), "net.lua:1"),
                trained = net.graph.variable("trained", vec(8), "net.lua:1");
  const ValueId a = net.op("product", {x, frozen}, "a");
  const ValueId gradient = net.op("product", {a, trained}, "gradient");
  net.graph.append("assign_sub", {trained, gradient}, {}, "update", "net.lua:1");
  CHECK(net.mixed() == Lines{"cast 'x' (float32) -> bfloat16", "cast 'frozen' (float32) -> bfloat16",
                             "product 'a' (bfloat16, bfloat16) -> bfloat16",
                             "product 'gradient' (bfloat16, float32) -> float32",
                             "assign_sub 'update' (float32, float32)"});
}

TEST_CASE("an alias goes along with its value") {
  Net net;
  const ValueId x = net.feed("x", vec(8));
  const ValueId view = net.op("same", {net.op("product", {x, x}, "a")}, "view");
  net.graph.tap(net.op("product", {view, view}, "b"), 1);
  CHECK(net.mixed() == Lines{"cast 'x' (float32) -> bfloat16", "product 'a' (bfloat16, bfloat16) -> bfloat16",
                             "same 'view' (bfloat16) -> bfloat16", "product 'b' (bfloat16, bfloat16) -> float32"});
}

TEST_CASE("an op follows only where that pays") {
  Net net;
  const ValueId x = net.feed("x", vec(101));
  const ValueId a = net.op("follow", {net.op("product", {x, x}, "a")}, "b");
  net.graph.tap(net.op("product", {a, x}, "c"), 1);
  CHECK(net.mixed() == Lines{"cast 'x' (float32) -> bfloat16", "product 'a' (bfloat16, bfloat16) -> float32",
                             "follow 'b' (float32, -) -> float32", "cast 'b' (float32) -> bfloat16",
                             "product 'c' (bfloat16, bfloat16) -> float32"});
}

TEST_CASE("an op with several inputs follows any of them to where that is wanted, and else no fewer than all") {
  Net net;
  const ValueId x = net.feed("x", vec(8)), y = net.feed("y", vec(8)), z = net.feed("z", vec(8));
  const ValueId a = net.op("product", {x, x}, "a"), wanted = net.op("join", {y, a}, "wanted");
  const ValueId b = net.op("product", {wanted, x}, "b");
  net.graph.tap(net.op("join", {a, z}, "unwanted"), 1);
  net.graph.tap(net.op("join", {a, wanted}, "all"), 2);
  net.graph.tap(b, 3);
  CHECK(net.mixed() == Lines{"cast 'x' (float32) -> bfloat16", "product 'a' (bfloat16, bfloat16) -> bfloat16",
                             "cast 'y' (float32) -> bfloat16", "join 'wanted' (bfloat16, bfloat16) -> bfloat16",
                             "product 'b' (bfloat16, bfloat16) -> float32", "cast 'a' (bfloat16) -> float32",
                             "join 'unwanted' (float32, float32) -> float32",
                             "join 'all' (bfloat16, bfloat16) -> bfloat16", "cast 'all' (bfloat16) -> float32"});
}

TEST_CASE("what the elements of a value share is not rounded for their sake") {
  Net net;
  const ValueId x = net.feed("x", vec(8)), factor = net.feed("factor", vec(1));
  const ValueId scaled = net.op("join", {net.op("product", {x, x}, "a"), factor}, "scaled");
  net.graph.tap(net.op("product", {scaled, x}, "b"), 1);
  CHECK(net.mixed() == Lines{"cast 'x' (float32) -> bfloat16", "product 'a' (bfloat16, bfloat16) -> bfloat16",
                             "cast 'a' (bfloat16) -> float32", "join 'scaled' (float32, float32) -> float32",
                             "cast 'scaled' (float32) -> bfloat16", "product 'b' (bfloat16, bfloat16) -> float32"});
}

TEST_CASE("an op that is told the dtype of its result takes bfloat16 where it is there") {
  Net net;
  const ValueId x = net.feed("x", vec(8)), narrow = net.op("product", {x, x}, "narrow");
  net.graph.tap(net.op("product", {narrow, x}, "reader"), 1);
  net.graph.tap(narrow, 2);
  net.graph.tap(net.op("total", {narrow}, "of narrow"), 3);
  net.graph.tap(net.op("total", {net.feed("y", vec(8))}, "of y"), 4);
  CHECK(net.mixed() ==
        Lines{"cast 'x' (float32) -> bfloat16", "product 'narrow' (bfloat16, bfloat16) -> bfloat16",
              "product 'reader' (bfloat16, bfloat16) -> float32", "total 'of narrow' (bfloat16) -> float32",
              "total 'of y' (float32) -> float32", "cast 'narrow' (bfloat16) -> float32"});
}

TEST_CASE("an op that rounds for itself is told to, and takes and gives float32") {
  Net net;
  const ValueId large = net.op("rounding", {net.feed("x", vec(8))}, "large");
  net.graph.tap(large, 7);
  net.graph.tap(net.op("rounding", {net.feed("y", vec(4))}, "small"), 8);
  CHECK(net.mixed() == Lines{"rounding 'large' (float32) -> float32", "rounding 'small' (float32) -> float32"});
  const auto told = [&](DType narrow) {
    FakeDevice device;
    const Graph mixed = with_mixed_precision(net.graph, narrow, device);
    std::vector<DType> dtypes;
    for (const Node& node : mixed.nodes())
      if (node.kind == Node::Op) dtypes.push_back(node.attrs.dtype("rounds_to"));
    return dtypes;
  };
  CHECK(told(DType::BFloat16) == std::vector<DType>{DType::BFloat16, DType::Float32});
  CHECK(told(DType::Float16) == std::vector<DType>{DType::Float32, DType::Float32});
}

TEST_CASE("where that does not pay, and for other dtypes, a graph stays as it is") {
  Net net;
  const ValueId small = net.feed("small", vec(7)), wide = net.feed("wide", {DType::Float64, {8}});
  net.graph.tap(net.op("product", {small, small}, "a"), 1);
  net.graph.tap(net.op("product", {wide, wide}, "b"), 2);
  CHECK(net.mixed() == Lines{"product 'a' (float32, float32) -> float32", "product 'b' (float64, float64) -> float64"});
}

TEST_CASE("an op that is said to be precise keeps float32 beside others, and is no reason for them") {
  Net net;
  const ValueId x = net.feed("x", vec(8));
  const ValueId a = net.graph.append("product", {x, x}, {{"precise", true}}, "a", "net.lua:1")[0];
  net.graph.tap(net.op("product", {a, x}, "b"), 1);
  CHECK(net.mixed() == Lines{"product 'a' (float32, float32) -> float32", "cast 'a' (float32) -> bfloat16",
                             "product 'b' (bfloat16, float32) -> float32"});
  FakeDevice device;
  for (const double least : {8, 9}) {
    device.least_flops = least;
    CHECK(with_mixed_precision(net.graph, DType::BFloat16, device).allow_tf32 == (least > 8));
  }
}

TEST_CASE("feeds keep their places, and what is dead goes") {
  Net net;
  net.feed("unread", vec(3));
  const ValueId x = net.feed("x", vec(8));
  net.op("product", {x, x}, "dead");
  net.graph.tap(x, 1);
  CHECK(net.mixed().empty());
  FakeDevice device;
  const Graph mixed = with_mixed_precision(net.graph, DType::BFloat16, device);
  REQUIRE(mixed.feeds().size() == 2);
  CHECK(mixed.node(mixed.feeds()[0]).name == "unread");
}

TEST_CASE("a graph that computes less than a device wants stays in float32, and may round like TF32") {
  Net net;
  const ValueId x = net.feed("x", vec(8));
  net.op("product", {x, x}, "dead");
  net.graph.tap(net.op("product", {net.op("product", {x, x}, "a"), x}, "b"), 1);
  FakeDevice device;
  for (const double least : {16, 17}) {
    device.least_flops = least;
    const Graph mixed = with_mixed_precision(net.graph, DType::BFloat16, device);
    CHECK(mixed.allow_tf32 == (least > 16));
    int casts = 0;
    for (const Node& node : mixed.nodes()) casts += node.kind == Node::Op && node.op->name == "cast";
    CHECK((casts == 0) == (least > 16));
  }
}
