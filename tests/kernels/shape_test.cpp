// Ops that move data: against plain loops over indices, in all dtypes, at sizes that reach blocks and threads.
#include <catch2/catch.hpp>
#include <cstring>

#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

constexpr DType kAllDTypes[] = {DType::Float32, DType::Float64, DType::Int8, DType::UInt8, DType::Int32, DType::Int64};

// 0, 1, 2, ... (modulo 120, so that every dtype holds them)
Tensor count_up(DType dtype, const Shape& shape) {
  Tensor tensor = Tensor::allocate({dtype, shape});
  visit(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < tensor.count(); ++i) tensor.data<T>()[i] = static_cast<T>(i % 120);
  });
  return tensor;
}

// out[index] = x[source(index)] for every index of `shape`, the slow and plain way.
template <class SourceIndex>
Tensor expected(const Tensor& x, const Shape& shape, const SourceIndex& source) {
  Tensor out = Tensor::allocate({x.dtype(), shape});
  const int64_t bytes = size_of(x.dtype());
  for (int64_t flat = 0; flat < out.count(); ++flat) {
    std::vector<int64_t> index(shape.rank());
    for (int64_t axis = shape.rank() - 1, rest = flat; axis >= 0; --axis) {
      index[axis] = rest % shape[static_cast<int>(axis)];
      rest /= shape[static_cast<int>(axis)];
    }
    const std::vector<int64_t> from = source(index);
    int64_t at = 0;
    for (int axis = 0; axis < x.shape().rank(); ++axis) at = at * x.shape()[axis] + from[axis];
    std::memcpy(out.data<char>() + flat * bytes, x.data<char>() + at * bytes, bytes);
  }
  return out;
}

Tensor one(Session& session, const char* op, const Tensor& x, const Attrs& attrs) {
  return session.evaluate(op, {x}, attrs)[0];
}

}  // namespace

TEST_CASE("transpose puts every element where perm says") {
  Session session = make_session();
  const std::vector<std::pair<Shape, Ints>> cases = {{{5, 7}, {1, 0}},
                                                     {{300, 70}, {1, 0}},
                                                     {{33, 65}, {}},
                                                     {{3, 40, 50}, {0, 2, 1}},
                                                     {{4, 5, 6}, {2, 0, 1}},
                                                     {{4, 5, 6}, {1, 0, 2}},
                                                     {{4, 5, 6}, {2, 1, 0}},
                                                     {{2, 3, 34, 35}, {0, 2, 3, 1}},
                                                     {{2, 34, 35, 3}, {0, 3, 1, 2}},
                                                     {{2, 34, 35, 4}, {0, 3, 1, 2}},
                                                     {{1190, 2}, {1, 0}},
                                                     {{2, 3, 4, 5, 6}, {4, 2, 0, 3, 1}},
                                                     {{3, 4, 16}, {1, 0, 2}},  // rows are kept whole
                                                     {{3, 4, 37}, {1, 0, 2}},
                                                     {{2, 3, 256}, {1, 0, 2}},
                                                     {{2, 3, 257}, {1, 0, 2}},
                                                     {{1, 6, 1}, {2, 1, 0}},
                                                     {{4}, {0}}};
  for (const auto& [shape, perm] : cases) {
    Ints axes = perm;
    if (axes.empty()) axes = {1, 0};
    Shape out_shape;
    for (const int64_t axis : axes) out_shape.push_back(shape[static_cast<int>(axis)]);
    for (const DType dtype : kAllDTypes) {
      INFO(shape << " by " << str(perm) << " in " << dtype);
      const Tensor x = count_up(dtype, shape);
      const Tensor wanted = expected(x, out_shape, [&, &axes = axes](const std::vector<int64_t>& index) {
        std::vector<int64_t> from(index.size());
        for (size_t axis = 0; axis < index.size(); ++axis) from[axes[axis]] = index[axis];
        return from;
      });
      CHECK(same(one(session, "transpose", x, {{"perm", perm}}), wanted));
    }
  }
}

TEST_CASE("reverse, broadcast_to and tile repeat the right elements") {
  Session session = make_session();
  for (const DType dtype : kAllDTypes) {
    INFO(dtype);
    const Tensor x = count_up(dtype, {3, 4, 5});
    const Tensor turned = expected(x, x.shape(), [](const std::vector<int64_t>& i) {
      return std::vector<int64_t>{2 - i[0], i[1], 4 - i[2]};
    });
    CHECK(same(one(session, "reverse", x, {{"axis", Ints{0, -1}}}), turned));

    const Tensor column = count_up(dtype, {3, 1});
    const Tensor spread = expected(column, {2, 3, 4}, [](const std::vector<int64_t>& i) {
      return std::vector<int64_t>{i[1], 0};
    });
    CHECK(same(one(session, "broadcast_to", column, {{"shape", Ints{2, 3, 4}}}), spread));

    const Tensor tiled = expected(x, {6, 4, 15}, [](const std::vector<int64_t>& i) {
      return std::vector<int64_t>{i[0] % 3, i[1], i[2] % 5};
    });
    CHECK(same(one(session, "tile", x, {{"reps", Ints{2, 1, 3}}}), tiled));
  }
}

TEST_CASE("many rows of any length are turned round, cut and repeated") {
  Session session = make_session();
  for (const DType dtype : kAllDTypes) {
    for (const int64_t n : {1, 2, 3, 7, 8, 9, 15, 16, 17, 40}) {
      INFO(n << " of " << dtype);
      const Tensor x = count_up(dtype, {2, 301, n + 1});
      const Tensor turned = expected(x, x.shape(), [n](const std::vector<int64_t>& i) {
        return std::vector<int64_t>{i[0], i[1], n - i[2]};
      });
      CHECK(same(one(session, "reverse", x, {{"axis", Ints{2}}}), turned));

      const Tensor cut = expected(x, {2, 301, n}, [](const std::vector<int64_t>& i) {
        return std::vector<int64_t>{i[0], i[1], i[2] + 1};
      });
      CHECK(same(one(session, "slice", x, {{"begin", Ints{0, 0, 1}}, {"size", Ints{-1, -1, n}}}), cut));

      const Tensor column = count_up(dtype, {2, 301, 1});
      const Tensor spread = expected(column, {2, 301, n}, [](const std::vector<int64_t>& i) {
        return std::vector<int64_t>{i[0], i[1], 0};
      });
      CHECK(same(one(session, "broadcast_to", column, {{"shape", Ints{2, 301, n}}}), spread));

      const Tensor last = expected(x, {2, n + 1, 301}, [](const std::vector<int64_t>& i) {
        return std::vector<int64_t>{i[0], i[2], i[1]};
      });
      CHECK(same(one(session, "transpose", x, {{"perm", Ints{0, 2, 1}}}), last));
      CHECK(same(one(session, "transpose", last, {{"perm", Ints{0, 2, 1}}}), x));
    }
  }
}

TEST_CASE("bits are repeated as they are, also those of a signalling NaN") {
  Session session = make_session();
  const Tensor column = Tensor::of<int32_t>({2, 1}, {0x7f800001, 1});
  Tensor bits = Tensor::allocate({DType::Float32, {2, 1}});
  std::memcpy(bits.data(), column.data(), 8);
  const Tensor spread = one(session, "broadcast_to", bits, {{"shape", Ints{2, 20}}});
  for (int64_t i = 0; i < 40; ++i)
    CHECK(std::memcmp(spread.data<float>() + i, column.data<int32_t>() + i / 20, sizeof(float)) == 0);
}

TEST_CASE("tile gives the shorter of shape and reps leading ones") {
  Session session = make_session();
  const Tensor x = Tensor::of<float>({2}, {1, 2});
  const Tensor up = one(session, "tile", x, {{"reps", Ints{2, 2}}});
  CHECK(up.shape() == Shape{2, 4});
  CHECK(numbers(up) == std::vector<double>{1, 2, 1, 2, 1, 2, 1, 2});
  CHECK(one(session, "tile", count_up(DType::Int8, {2, 3}), {{"reps", Ints{2}}}).shape() == Shape{2, 6});
  CHECK(one(session, "tile", x, {{"reps", Ints{0}}}).shape() == Shape{0});
}

TEST_CASE("views keep the elements and change the shape") {
  Session session = make_session();
  const Tensor x = count_up(DType::Int32, {2, 1, 6});
  const auto shape_of = [&](const char* op, const Attrs& attrs) {
    const Tensor out = one(session, op, x, attrs);
    CHECK(same(out.reshaped(x.shape()), x));
    return out.shape();
  };
  CHECK(shape_of("reshape", {{"shape", Ints{4, -1}}}) == Shape{4, 3});
  CHECK(shape_of("reshape", {{"shape", Ints{12}}}) == Shape{12});
  CHECK(shape_of("flatten", {}) == Shape{12});
  CHECK(shape_of("flatten", {{"start_dim", int64_t{1}}}) == Shape{2, 6});
  CHECK(shape_of("flatten", {{"end_dim", int64_t{-2}}}) == Shape{2, 6});
  CHECK(shape_of("squeeze", {}) == Shape{2, 6});
  CHECK(shape_of("squeeze", {{"axis", Ints{-2}}}) == Shape{2, 6});
  CHECK(shape_of("expand_dims", {{"axis", int64_t{0}}}) == Shape{1, 2, 1, 6});
  CHECK(shape_of("expand_dims", {{"axis", int64_t{-1}}}) == Shape{2, 1, 6, 1});
  CHECK(shape_of("identity", {}) == x.shape());
}

TEST_CASE("a view in a plan costs no step") {
  Session session = make_session();
  Graph graph(session.catalog());
  const Tensor x = random_values({DType::Float32, {2, 6}}, 1);
  const ValueId feed = graph.feed("x", x.type());
  const ValueId y = graph.append("negative", {feed})[0];
  const ValueId view = graph.append("reshape", {y}, {{"shape", Ints{3, 4}}})[0];
  graph.tap(graph.append("negative", {view})[0], 1);
  const std::shared_ptr<Plan> plan = session.compile(graph, "test");
  CHECK(plan->steps.size() == 2);
  CHECK(distance(run(session, plan, {x})[0], x.reshaped({3, 4})) == 0);
}

TEST_CASE("shapes that do not fit are refused with the numbers") {
  Session session = make_session();
  const Tensor x = count_up(DType::Float32, {2, 3});
  const auto fault = [&](const char* op, const Attrs& attrs) {
    return message_of([&] { session.evaluate(op, {x}, attrs); });
  };
  CHECK(fault("reshape", {{"shape", Ints{4, 2}}}) == "x is (2, 3), that is 6 elements, but shape (4, 2) has 8");
  CHECK(fault("reshape", {{"shape", Ints{4, -1}}}) ==
        "x is (2, 3), that is 6 elements, which shape {4, -1} cannot divide by 4");
  CHECK(fault("squeeze", {{"axis", Ints{0}}}) ==
        "axis 0 of x (2, 3) has size 2; only an axis of size 1 can be squeezed");
  CHECK(fault("transpose", {{"perm", Ints{0, 0}}}) == "perm {0, 0} names axis 0 twice");
  CHECK(fault("transpose", {{"perm", Ints{0}}}) == "perm {0} names 1 axes, x (2, 3) has 2");
  CHECK(fault("broadcast_to", {{"shape", Ints{3, 3}}}) == "x is (2, 3), which cannot be repeated to (3, 3)");
  for (const Ints& hostile : {Ints{-1, -1}, Ints{-2, 3}, Ints{INT64_MAX, INT64_MAX}, Ints{0, -1}}) {
    CHECK_THROWS_AS(session.evaluate("reshape", {x}, {{"shape", hostile}}), Error);
  }
  CHECK_THROWS_AS(session.evaluate("tile", {x}, {{"reps", Ints{INT64_MAX, 2}}}), Error);
}

TEST_CASE("empty values move too") {
  Session session = make_session();
  const Tensor x = Tensor::allocate({DType::Float32, {0, 3}});
  CHECK(one(session, "transpose", x, {}).shape() == Shape{3, 0});
  CHECK(one(session, "reshape", x, {{"shape", Ints{5, 0}}}).shape() == Shape{5, 0});
  CHECK(one(session, "reverse", x, {{"axis", Ints{0}}}).shape() == Shape{0, 3});
}
