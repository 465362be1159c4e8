// sort, argsort, top_k, in_top_k and search_sorted: one order for every dtype, whatever sorts, and for any number of
// threads.
#include <catch2/catch.hpp>

#include <cstring>
#include <numeric>

#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

const float kNan = std::nanf(""), kInfinity = INFINITY;

const Attrs kFalling{{"direction", std::string("DESCENDING")}};

std::vector<int64_t> places(const Tensor& tensor) {
  return {tensor.data<int64_t>(), tensor.data<int64_t>() + tensor.count()};
}

// Values with many equals, both zeros, infinities and, in fractions, NaN.
Tensor mixed(const TensorType& type, uint32_t seed) {
  Tensor tensor = Tensor::allocate(type);
  std::mt19937 random(seed);
  visit(type.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < tensor.count(); ++i) {
      const uint32_t kind = random() % 64;
      T value = static_cast<T>(static_cast<int64_t>(random() % 200) - 100);
      if (kind < 16) value = static_cast<T>(static_cast<int64_t>(random()) << 30 | random());
      if constexpr (std::is_floating_point_v<T>) {
        if (kind == 16) value = T(random() % 2 ? NAN : -NAN);
        if (kind == 17) value = -T(INFINITY);
        if (kind == 18) value = T(INFINITY);
        if (kind >= 19 && kind < 24) value = kind % 2 ? T(0) : -T(0);
      }
      tensor.data<T>()[i] = value;
    }
  });
  return tensor;
}

// The order, said in the plainest way.
std::vector<int64_t> expected_places(const Tensor& x, bool falling) {
  const int64_t length = x.shape().back();
  std::vector<int64_t> all;
  visit(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t row = 0; row < x.count() / length; ++row) {
      const T* const values = x.data<T>() + row * length;
      std::vector<int64_t> order(length);
      std::iota(order.begin(), order.end(), 0);
      const auto below = [](T a, T b) { return a < b || (a == a && b != b); };  // a NaN is above all numbers
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return falling ? below(values[b], values[a]) : below(values[a], values[b]);
      });
      all.insert(all.end(), order.begin(), order.end());
    }
  });
  return all;
}

std::vector<int64_t> first_of_each(const std::vector<int64_t>& rows, int64_t length, int64_t kept) {
  std::vector<int64_t> first;
  for (size_t row = 0; row < rows.size(); row += length)
    first.insert(first.end(), rows.begin() + row, rows.begin() + row + kept);
  return first;
}

}  // namespace

TEST_CASE("a NaN is above all, and equal values keep their places") {
  Session session = make_session();
  const Tensor x = Tensor::of<float>({8}, {3, kNan, -0.0f, 1, 0.0f, -kInfinity, kNan, 3});
  CHECK(places(session.evaluate("argsort", {x})[0]) == std::vector<int64_t>{5, 2, 4, 3, 0, 7, 1, 6});
  CHECK(places(session.evaluate("argsort", {x}, kFalling)[0]) == std::vector<int64_t>{1, 6, 0, 7, 3, 2, 4, 5});
  CHECK(places(session.evaluate("top_k", {x}, {{"k", int64_t{3}}})[0]) == std::vector<int64_t>{1, 6, 0});
  const Tensor sorted = session.evaluate("sort", {x})[0];
  CHECK(std::signbit(sorted.data<float>()[1]));  // the values themselves, not what they compare as
  CHECK_FALSE(std::signbit(sorted.data<float>()[2]));
}

TEST_CASE("rows of every dtype and length are in the one order") {
  Session session = make_session();
  for (const DType dtype : {DType::Float32, DType::Float64, DType::Int8, DType::UInt8, DType::Int32, DType::Int64}) {
    for (const int64_t length : {1, 2, 95, 96, 97, 1000, 40000}) {
      const Tensor x = mixed({dtype, {3, length}}, static_cast<uint32_t>(length));
      for (const bool falling : {false, true}) {
        INFO(x.type() << (falling ? " falling" : " rising"));
        const Attrs attrs = falling ? kFalling : Attrs{};
        const std::vector<int64_t> expected = expected_places(x, falling);
        const std::vector<Tensor> sorted = session.evaluate("sort", {x}, attrs);
        CHECK(places(sorted[1]) == expected);
        CHECK(places(session.evaluate("argsort", {x}, attrs)[0]) == expected);
        bool same = true;
        const int64_t size = size_of(dtype);
        for (int64_t i = 0; i < x.count(); ++i)
          same = same && std::memcmp(sorted[0].data<char>() + i * size,
                                     x.data<char>() + (i / length * length + expected[i]) * size, size) == 0;
        CHECK(same);
        // Also where all values are told by their keys.
        for (const Tensor& of : {x, session.evaluate("maximum", {x, session.evaluate("ones_like", {x})[0]})[0]}) {
          const Tensor values = session.evaluate("sort_values", {of}, attrs)[0];
          const Tensor wanted = session.evaluate("sort", {of}, attrs)[0];
          CHECK(std::memcmp(values.data<char>(), wanted.data<char>(), of.type().bytes()) == 0);
        }
      }
      for (const int64_t k : {int64_t{1}, std::min<int64_t>(length, 5), length / 20, length / 2, length}) {
        if (k == 0) continue;
        INFO("the first " << k << " of " << x.type());
        CHECK(places(session.evaluate("top_k", {x}, {{"k", k}})[0]) ==
              first_of_each(expected_places(x, true), length, k));
      }
    }
  }
}

TEST_CASE("a long row is sorted by several threads as by one") {
  Session one = make_session(1), three = make_session(3);
  for (const int64_t length : {70000, 200003}) {
    const Tensor x = mixed({DType::Float32, {length}}, 5);
    const std::vector<int64_t> expected = expected_places(x, false);
    CHECK(places(one.evaluate("argsort", {x})[0]) == expected);
    CHECK(places(three.evaluate("argsort", {x})[0]) == expected);
    const Tensor whole = one.evaluate("cast", {x}, {{"dtype", DType::Int32}})[0];
    const Tensor by_one = one.evaluate("sort_values", {whole})[0], by_three = three.evaluate("sort_values", {whole})[0];
    CHECK(std::is_sorted(by_one.data<int32_t>(), by_one.data<int32_t>() + length));
    CHECK(std::memcmp(by_one.data<char>(), by_three.data<char>(), whole.type().bytes()) == 0);
    for (const int64_t k : {int64_t{7}, length / 17, length / 3}) {
      const Attrs attrs{{"k", k}};
      CHECK(places(three.evaluate("top_k", {x}, attrs)[0]) == places(one.evaluate("top_k", {x}, attrs)[0]));
    }
  }
}

TEST_CASE("rows with few values, in order already or alike in their upper bits, are in the one order") {
  Session session = make_session(1);
  for (const DType dtype : {DType::Float64, DType::Int64, DType::Float32, DType::Int32}) {
    for (const int64_t length : {15, 130, 3000, 150000}) {
      for (int pattern = 0; pattern < 6; ++pattern) {
        Tensor x = Tensor::allocate({dtype, {length}});
        visit(dtype, [&](auto zero) {
          using T = decltype(zero);
          for (int64_t i = 0; i < length; ++i) {
            const int64_t scattered = i * 7919 % length;
            const int64_t values[] = {5, scattered % 2, i, length - i, std::min(i, length - i), scattered};
            T value = static_cast<T>(values[pattern]);
            if (pattern == 5 && std::is_same_v<T, double>) value = i == 3 ? T(-1e300) : 1 + value * T(1e-15);
            x.data<T>()[i] = value;
          }
        });
        INFO(x.type() << " pattern " << pattern);
        const std::vector<int64_t> expected = expected_places(x, false);
        CHECK(places(session.evaluate("argsort", {x})[0]) == expected);
        const Tensor values = session.evaluate("sort_values", {x})[0], wanted = session.evaluate("sort", {x})[0];
        CHECK(std::memcmp(values.data<char>(), wanted.data<char>(), x.type().bytes()) == 0);
      }
    }
  }
}

TEST_CASE("order statistics are what stands there when all is in order") {
  Session session = make_session();
  for (const DType dtype : {DType::Float32, DType::Float64, DType::Int8, DType::UInt8, DType::Int32, DType::Int64}) {
    for (const int64_t length : {1, 40, 1000, 150000}) {
      const Tensor x = mixed({dtype, {2, length}}, static_cast<uint32_t>(length));
      // Also where all values are told by their keys.
      for (const Tensor& of : {x, session.evaluate("maximum", {x, session.evaluate("ones_like", {x})[0]})[0]}) {
        Ints places{0, length / 3, length / 2, length - 1};
        places.erase(std::unique(places.begin(), places.end()), places.end());
        const Tensor picked = session.evaluate("order_statistics", {of}, {{"places", places}})[0];
        const Tensor sorted = session.evaluate("sort_values", {of})[0];
        const int64_t size = size_of(dtype), count = static_cast<int64_t>(places.size());
        bool same = picked.shape() == Shape{2, count};
        for (int64_t i = 0; same && i < 2 * count; ++i)
          same = std::memcmp(picked.data<char>() + i * size,
                             sorted.data<char>() + (i / count * length + places[i % count]) * size, size) == 0;
        INFO(of.type());
        CHECK(same);
      }
    }
  }
  const Tensor x = Tensor::of<float>({3}, {1, 2, 3});
  CHECK(session.evaluate("order_statistics", {x}, {{"places", Ints{}}})[0].shape() == Shape{0});
  CHECK(message_of([&] {
          session.evaluate("order_statistics", {x}, {{"places", Ints{1, 1}}});
        }) == "place 1 does not ascend within [0, 3), the last axis of x (3)");
}

TEST_CASE("a value is found behind those that come before it") {
  Session session = make_session();
  for (const DType dtype : {DType::Float32, DType::Float64, DType::Int8, DType::UInt8, DType::Int32, DType::Int64}) {
    for (const int64_t count : {0, 1, 2, 3, 50, 1000}) {
      INFO(dtype << " " << count);
      const Tensor sorted = session.evaluate("sort_values", {mixed({dtype, {count}}, 3)})[0];
      const Tensor x = mixed({dtype, {3, 1111}}, 4);
      const std::vector<int64_t> left = places(session.evaluate("search_sorted", {sorted, x})[0]);
      const std::vector<int64_t> right = places(session.evaluate("search_sorted", {sorted, x}, {{"right", true}})[0]);
      visit(dtype, [&](auto zero) {
        using T = decltype(zero);
        const auto below = [](T a, T b) { return a < b || (a == a && b != b); };
        const T *const first = sorted.data<T>(), *const last = first + count;
        int64_t wrong = 0;
        for (int64_t i = 0; i < x.count(); ++i) {
          const T value = x.data<T>()[i];
          wrong += left[i] != std::lower_bound(first, last, value, below) - first;
          wrong += right[i] != std::upper_bound(first, last, value, below) - first;
        }
        CHECK(wrong == 0);
      });
    }
  }
}

TEST_CASE("what cannot be ordered is told apart") {
  Session session = make_session();
  const Tensor x = Tensor::of<float>({3}, {1, 2, 3}), scalar = Tensor::of<float>({}, {1});
  CHECK(message_of([&] {
          session.evaluate("top_k", {x}, {{"k", int64_t{4}}});
        }) == "k is 4, the last axis of x (3) has 3 values; k must be in [1, 3]");
  CHECK(message_of([&] {
          session.evaluate("sort", {x}, {{"direction", std::string("UP")}});
        }) == "direction is \"UP\", wanted \"ASCENDING\" or \"DESCENDING\"");
  CHECK(message_of([&] { session.evaluate("argsort", {scalar}); }) ==
        "x is a scalar; it needs an axis along which values are ordered");
  const Tensor empty = Tensor::allocate({DType::Float32, {0, 3}}),
               without_values = Tensor::allocate({DType::Int8, {3, 0}});
  CHECK(session.evaluate("sort", {empty})[1].shape() == Shape{0, 3});
  CHECK(session.evaluate("argsort", {without_values})[0].shape() == Shape{3, 0});
}

TEST_CASE("a target is in the top k where top_k has its place") {
  Session session = make_session();
  const int64_t rows = 200, classes = 70;
  Tensor x = mixed({DType::Float32, {rows, classes}}, 3);
  Tensor targets = Tensor::allocate({DType::Int32, {rows}});
  for (int64_t i = 0; i < rows; ++i) targets.data<int32_t>()[i] = static_cast<int32_t>(i * 7 % classes);
  for (const int64_t k : {1, 5, 30, 100}) {
    const Tensor in = session.evaluate("in_top_k", {targets, x}, {{"k", k}})[0];
    CHECK(in.type() == TensorType{DType::Int8, {rows}});
    const std::vector<int64_t> order = expected_places(x, true);
    bool same = true;
    for (int64_t row = 0; row < rows; ++row) {
      const auto first = order.begin() + row * classes, last = first + std::min(k, classes);
      same = same && (std::find(first, last, targets.data<int32_t>()[row]) != last) == (in.data<int8_t>()[row] != 0);
    }
    CHECK(same);
  }
}

TEST_CASE("a target outside the classes names its row") {
  Session session = make_session();
  const Tensor x = random_values({DType::Float32, {3, 4}}, 1), targets = Tensor::of<int32_t>({3}, {0, 4, -1});
  CHECK(message_of([&] {
          session.evaluate("in_top_k", {targets, x}, {{"k", int64_t{2}}});
        }) == "row 1: label 4 is outside [0, 4)");
}

TEST_CASE("the gradient of sort goes back to where the values came from") {
  Session session = make_session();
  Graph graph(session.catalog());
  const ValueId x = graph.feed("x", {DType::Float32, {2, 3}}), seed = graph.feed("seed", {DType::Float32, {2, 3}});
  const ValueId sorted = graph.append("sort", {x}, kFalling, "sort")[0];
  graph.tap(gradients(graph, {sorted}, {seed}, {x})[0], 1);
  const Tensor values = Tensor::of<float>({2, 3}, {2, 9, 4, 7, 7, 8}),
               dy = Tensor::of<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor dx = run(session, session.compile(graph, "sort"), {values, dy})[0];
  CHECK(numbers(dx) == std::vector<double>{3, 1, 2, 5, 6, 4});
}
