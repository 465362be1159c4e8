// Cutting and joining: slices with and without steps, pads, concat and stack.
#include <catch2/catch.hpp>
#include <cstring>
#include <limits>

#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

constexpr int64_t kLeftOut = std::numeric_limits<int64_t>::min();

Tensor count_up(const Shape& shape) {
  Tensor tensor = Tensor::allocate({DType::Int32, shape});
  for (int64_t i = 0; i < tensor.count(); ++i) tensor.data<int32_t>()[i] = static_cast<int32_t>(i);
  return tensor;
}

using Values = std::vector<double>;

}  // namespace

TEST_CASE("slice cuts a box") {
  Session session = make_session();
  const Tensor x = count_up({3, 4});
  const auto cut = [&](const Ints& begin, const Ints& size) {
    return numbers(session.evaluate("slice", {x}, {{"begin", begin}, {"size", size}})[0]);
  };
  CHECK(cut({1, 1}, {2, 2}) == Values{5, 6, 9, 10});
  CHECK(cut({2}, {-1}) == Values{8, 9, 10, 11});
  CHECK(cut({0, -1}, {-1, 1}) == Values{3, 7, 11});
  CHECK(cut({0, 4}, {-1, -1}).empty());
  CHECK(message_of([&] { cut({1, 1}, {1, 4}); }) == "axis 1: begin 1 with size 4 leaves x (3, 4)");
  CHECK(message_of([&] { cut({4}, {-1}); }) == "axis 0: begin 4 is outside [0, 3]");
  CHECK(message_of([&] { cut({0, 0}, {1}); }) == "begin {0, 0} and size {1} differ in length");
  for (const int64_t hostile : {INT64_MIN, INT64_MAX, int64_t{-2}}) {
    CHECK_THROWS_AS(cut({0}, {hostile}), Error);
    if (hostile != -2) CHECK_THROWS_AS(cut({hostile}, {1}), Error);
  }
}

// Source: the same expressions on list(range(6)) in Python.
TEST_CASE("slice_v2 follows Python's rules") {
  Session session = make_session();
  const Tensor x = count_up({6});
  const auto cut = [&](int64_t start, int64_t stop, int64_t step) {
    return numbers(session.evaluate("strided_slice", {x},
                                    {{"start", Ints{start}}, {"stop", Ints{stop}}, {"step", Ints{step}}})[0]);
  };
  CHECK(cut(1, 5, 2) == Values{1, 3});
  CHECK(cut(1, 6, 2) == Values{1, 3, 5});
  CHECK(cut(-2, kLeftOut, 1) == Values{4, 5});
  CHECK(cut(kLeftOut, -2, 1) == Values{0, 1, 2, 3});
  CHECK(cut(kLeftOut, kLeftOut, -1) == Values{5, 4, 3, 2, 1, 0});
  CHECK(cut(4, 0, -2) == Values{4, 2});
  CHECK(cut(4, kLeftOut, -2) == Values{4, 2, 0});
  CHECK(cut(-100, 100, 4) == Values{0, 4});
  CHECK(cut(100, -100, -4) == Values{5, 1});
  CHECK(cut(3, 3, 1).empty());
  CHECK(cut(2, 4, -1).empty());
  CHECK(cut(0, 6, INT64_MAX) == Values{0});
  CHECK(cut(5, kLeftOut, -INT64_MAX) == Values{5});
  CHECK(message_of([&] { cut(0, 6, 0); }) == "axis 0: step is 0");
}

TEST_CASE("slice_v2 over several axes, and its gradient back at the same places") {
  Session session = make_session();
  const Tensor x = count_up({4, 6});
  Attrs attrs{{"start", Ints{3, 0}}, {"stop", Ints{0, 5}}, {"step", Ints{-2, 3}}};
  const Tensor part = session.evaluate("strided_slice", {x}, attrs)[0];
  CHECK(numbers(part) == Values{18, 21, 6, 9});
  attrs.set("shape", Ints{4, 6});
  const Values back = numbers(session.evaluate("strided_slice_grad", {part}, attrs)[0]);
  for (int64_t i = 0; i < 24; ++i) CHECK(back[i] == (i == 18 || i == 21 || i == 6 || i == 9 ? i : 0));
}

TEST_CASE("pad puts a border round x") {
  Session session = make_session();
  const Tensor x = count_up({2, 2});
  const auto pad = [&](const Ints& paddings, double value) {
    return numbers(session.evaluate("pad", {x}, {{"paddings", paddings}, {"constant_value", value}})[0]);
  };
  CHECK(pad({1, 0, 0, 1}, 7) == Values{7, 7, 7, 0, 1, 7, 2, 3, 7});
  CHECK(pad({0, 0, 0, 0}, 7) == Values{0, 1, 2, 3});
  CHECK(message_of([&] {
          pad({0, 0}, 0);
        }) == "paddings {0, 0} has 2 numbers, x (2, 2) needs a pair for each of its 2 axes");
  CHECK(message_of([&] { pad({0, 0, -1, 0}, 0); }) == "axis 1: padding (-1, 0) is below 0; slice cuts");
  for (const double value : {0.5, 3e9, std::numeric_limits<double>::quiet_NaN()}) {
    CHECK_THROWS_AS(pad({1, 0, 0, 1}, value), Error);
  }
  CHECK_THROWS_AS(pad({INT64_MAX, 1, 0, 0}, 0), Error);
}

TEST_CASE("concat and stack put their inputs in order") {
  Session session = make_session();
  const Tensor a = Tensor::of<int32_t>({2, 2}, {1, 2, 3, 4}), b = Tensor::of<int32_t>({2, 1}, {5, 6});
  const Attrs last{{"axis", int64_t{-1}}};
  CHECK(numbers(session.evaluate("concat", {a, b}, last)[0]) == Values{1, 2, 5, 3, 4, 6});
  CHECK(numbers(session.evaluate("concat", {a, a})[0]) == Values{1, 2, 3, 4, 1, 2, 3, 4});
  const Tensor stacked = session.evaluate("stack", {a, a, a}, last)[0];
  CHECK(stacked.shape() == Shape{2, 2, 3});
  CHECK(numbers(stacked) == Values{1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4});
  CHECK(message_of([&] {
          session.evaluate("concat", {a, b});
        }) == "inputs[0] is (2, 2), inputs[1] is (2, 1); they may differ along axis 0 only");
  CHECK(message_of([&] {
          session.evaluate("stack", {a, b});
        }) == "inputs[0] is (2, 2), inputs[1] is (2, 1); they must be alike");
  CHECK(message_of([&] {
          session.evaluate("concat", {a, as_double(b)}, last);
        }) == "inputs[0] is int32 (2, 2), inputs[1] is float64 (2, 1); cast one of them");
}

TEST_CASE("gradients of slices that make up the whole are joined, others are added") {
  Session session = make_session();
  using Boxes = std::vector<std::pair<Ints, Ints>>;  // begin and size of each slice
  const Tensor x = random_values({DType::Float32, {4, 7}}, 1);
  // How many steps of the plan are `op`. The k-th slice of x gets the gradient k + 2.
  const auto steps_of = [&](const std::string& op, const Boxes& boxes, bool watched) {
    Graph graph(session.catalog());
    const ValueId whole = graph.feed("x", x.type());
    std::vector<ValueId> slices, seeds;
    Tensor wanted = Tensor::zeros(x.type());
    for (const auto& [begin, size] : boxes) {
      const float number = static_cast<float>(slices.size() + 2);
      Tensor seed = Tensor::zeros({DType::Float32, Shape(size.begin(), size.end())});
      std::fill_n(seed.data<float>(), seed.count(), number);
      seeds.push_back(graph.constant(seed, "seed"));
      slices.push_back(graph.append("slice", {whole}, {{"begin", begin}, {"size", size}}, "part")[0]);
      for (int64_t i = 0; i < size[0]; ++i)
        for (int64_t j = 0; j < size[1]; ++j) wanted.data<float>()[(begin[0] + i) * 7 + begin[1] + j] += number;
    }
    const ValueId gradient = gradients(graph, slices, seeds, {whole})[0];
    graph.tap(gradient, 1);
    if (watched) graph.tap(graph.node(graph.value(gradient).node).inputs[0], 2);
    const auto plan = session.compile(graph, "slices");
    CHECK(distance(run(session, plan, {x})[0], wanted) == 0);
    const std::vector<std::string> steps = labels(*plan);
    return std::count_if(steps.begin(), steps.end(), [&](const auto& step) { return step.rfind(op + " ", 0) == 0; });
  };
  const Boxes columns{{{0, 2}, {4, 3}}, {{0, 0}, {4, 2}}, {{0, 5}, {4, 2}}}, rows{{{0, 0}, {1, 7}}, {{1, 0}, {3, 7}}};
  for (const Boxes& boxes : {columns, rows}) {
    CHECK(steps_of("concat", boxes, false) == 1);
    CHECK(steps_of("pad", boxes, false) == 0);
    CHECK(steps_of("concat", boxes, true) == 0);
  }
  const Boxes gap{{{0, 0}, {4, 2}}, {{0, 3}, {4, 4}}}, overlap{{{0, 0}, {4, 4}}, {{0, 3}, {4, 4}}};
  const Boxes two_axes{{{0, 0}, {4, 3}}, {{0, 3}, {2, 4}}, {{2, 3}, {2, 4}}};
  for (const Boxes& boxes : {gap, overlap, two_axes}) {
    CHECK(steps_of("concat", boxes, false) == 0);
    CHECK(steps_of("pad", boxes, false) == static_cast<int64_t>(boxes.size()));
  }
}

TEST_CASE("gradients of slices are joined in each of the sums that share some of them") {
  Session session = make_session();
  Graph graph(session.catalog());
  const TensorType part{DType::Float32, {4, 2}};
  std::vector<ValueId> padded;
  std::vector<Tensor> parts;
  for (const int64_t begin : {0, 2, 4, 4}) {  // two that might be the last
    parts.push_back(random_values(part, 1 + parts.size()));
    const ValueId feed = graph.feed(text("part", parts.size()), part);
    padded.push_back(graph.append("pad", {feed}, {{"paddings", Ints{0, 0, begin, 4 - begin}}}, "pad")[0]);
  }
  const auto sum = [&](ValueId a, ValueId b) { return graph.append("add", {a, b}, {}, "sum")[0]; };
  const ValueId shared = sum(padded[0], padded[1]);
  graph.tap(sum(shared, padded[2]), 1);
  graph.tap(sum(padded[3], shared), 2);
  ValueId doubled = padded[0];
  for (int k = 0; k < 60; ++k) doubled = sum(doubled, doubled);
  graph.tap(doubled, 3);
  const auto plan = session.compile(graph, "sums");
  const std::vector<std::string> steps = labels(*plan);
  const auto count = [&](const std::string& op) {
    return std::count_if(steps.begin(), steps.end(), [&](const auto& step) { return step.rfind(op + " ", 0) == 0; });
  };
  CHECK(count("concat") == 2);
  CHECK(count("pad") == 1);  // of what is doubled
  const std::vector<Tensor> results = run(session, plan, parts);
  for (int k : {0, 1}) {
    const std::vector<Tensor> of{parts[0], parts[1], parts[2 + k]};
    CHECK(distance(results[k], session.evaluate("concat", of, {{"axis", int64_t{1}}})[0]) == 0);
  }
}

TEST_CASE("what is cut apart and joined again is the same, at sizes that reach threads") {
  Session session = make_session();
  const Tensor x = count_up({70, 300, 5});
  for (int64_t axis = 0; axis < 3; ++axis) {
    std::vector<Tensor> parts;
    int64_t begin = 0;
    const int64_t size = x.shape()[static_cast<int>(axis)];
    for (const int64_t count : {int64_t{1}, size / 2, size - size / 2 - 1}) {
      Ints begins(3, 0), sizes(3, -1);
      begins[axis] = begin;
      sizes[axis] = count;
      begin += count;
      parts.push_back(session.evaluate("slice", {x}, {{"begin", begins}, {"size", sizes}})[0]);
    }
    const Tensor joined = session.evaluate("concat", parts, {{"axis", axis}})[0];
    REQUIRE(joined.shape() == x.shape());
    CHECK(std::memcmp(joined.data(), x.data(), x.bytes()) == 0);
  }
}
