// Reductions over shapes large enough for blocks and threads, against plain sums, and where values are special.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "engine/session.h"
#include "kernels/catalog.h"
#include "values.h"

using namespace moonflow;
using moonflow::testing::same;

namespace {

Tensor drawn(const Shape& shape) {
  Tensor tensor = Tensor::allocate({DType::Float32, shape});
  std::mt19937 random(3);
  for (int64_t i = 0; i < tensor.count(); ++i) tensor.data<float>()[i] = static_cast<float>(random() / 4294967296.0);
  return tensor;
}

// Sums in the simplest way: every element added, in order, to the output it belongs to.
std::vector<double> plain_sums(const Tensor& x, const std::vector<bool>& reduced) {
  int64_t outputs = 1;
  for (int axis = 0; axis < x.shape().rank(); ++axis) outputs *= reduced[axis] ? 1 : x.shape()[axis];
  std::vector<double> sums(outputs, 0.0);
  for (int64_t i = 0; i < x.count(); ++i) {
    int64_t rest = i, at = 0, step = 1;
    for (int axis = x.shape().rank(); axis-- > 0; rest /= x.shape()[axis]) {
      if (reduced[axis]) continue;
      at += rest % x.shape()[axis] * step;
      step *= x.shape()[axis];
    }
    sums[at] += x.data<float>()[i];
  }
  return sums;
}

Tensor square_of(const Tensor& x) {
  Tensor square = Tensor::allocate(x.type());
  for (int64_t i = 0; i < x.count(); ++i) square.data<float>()[i] = x.data<float>()[i] * x.data<float>()[i];
  return square;
}

Tensor reduced_by(const char* op, int threads, const Tensor& x, const Ints& axes) {
  Session session(all_ops(), make_cpu_device(threads));
  return session.evaluate(op, {x}, {{"axis", axes}})[0];
}

}  // namespace

TEST_CASE("sums and variances over any axes are right, with the same bits for any number of threads") {
  // Long runs at the end, short ones, and few columns.
  for (const Shape& shape : {Shape{7, 37, 11, 133}, Shape{5, 301, 3, 7}, Shape{3, 2, 1000, 6}, Shape{2, 3, 90, 16}}) {
    const Tensor x = drawn(shape);
    for (const Ints& axes :
         {Ints{0, 1, 2, 3}, Ints{0}, Ints{3}, Ints{2, 3}, Ints{0, 2, 3}, Ints{1, 2}, Ints{0, 1}, Ints{0, 2}}) {
      std::vector<bool> reduced(4, false);
      for (const int64_t axis : axes) reduced[axis] = true;
      CAPTURE(shape, str(AttrValue(axes)));
      const Tensor one = reduced_by("reduce_sum", 1, x, axes), three = reduced_by("reduce_sum", 3, x, axes);
      const Tensor variance = reduced_by("reduce_variance", 1, x, axes);
      const std::vector<double> expected = plain_sums(x, reduced), squares = plain_sums(square_of(x), reduced);
      const double count = static_cast<double>(x.count()) / static_cast<double>(expected.size());
      bool right = same(variance, reduced_by("reduce_variance", 3, x, axes));
      for (size_t i = 0; i < expected.size(); ++i) {
        right = right && one.data<float>()[i] == three.data<float>()[i];
        right = right && one.data<float>()[i] == Approx(expected[i]).epsilon(1e-7);
        const double mean = expected[i] / count;
        right = right && variance.data<float>()[i] == Approx(squares[i] / count - mean * mean).margin(1e-6);
      }
      CHECK(right);
    }
  }
}

TEST_CASE("sums and products of integers wrap around in their own bits, and extremes are found in runs of any length") {
  Session session(all_ops(), make_cpu_device(2));
  for (const DType dtype : {DType::Int8, DType::UInt8, DType::Int32, DType::Int64}) {
    for (const int64_t columns : {1, 5, 32, 63, 64, 100, 1000}) {
      constexpr int64_t kRows = 37;
      Tensor x = Tensor::allocate({dtype, {kRows, columns}});
      std::mt19937_64 random(columns);
      visit(dtype, [&](auto zero) {
        using T = decltype(zero);
        T* const values = x.data<T>();
        for (int64_t i = 0; i < x.count(); ++i) values[i] = static_cast<T>(random() | 1);
        for (const int64_t axis : {0, 1}) {
          CAPTURE(x.type(), axis);
          const int64_t outputs = axis == 0 ? columns : kRows, count = axis == 0 ? kRows : columns;
          const int64_t step = axis == 0 ? columns : 1, apart = axis == 0 ? 1 : columns;
          std::vector<T> sums(outputs), products(outputs), largest(outputs), smallest(outputs);
          for (int64_t k = 0; k < outputs; ++k) {
            uint64_t sum = 0, product = 1;
            T most = values[k * apart], least = most;
            for (int64_t i = 0; i < count; ++i) {
              const T value = values[k * apart + i * step];
              sum += static_cast<uint64_t>(value);
              product *= static_cast<uint64_t>(value);
              most = std::max(most, value);
              least = std::min(least, value);
            }
            sums[k] = static_cast<T>(sum);
            products[k] = static_cast<T>(product);
            largest[k] = most;
            smallest[k] = least;
          }
          const auto reduced = [&](const char* op) {
            const Tensor out = session.evaluate(op, {x}, {{"axis", Ints{axis}}})[0];
            return std::vector<T>(out.data<T>(), out.data<T>() + outputs);
          };
          CHECK(reduced("reduce_sum") == sums);
          CHECK(reduced("reduce_prod") == products);
          CHECK(reduced("reduce_max") == largest);
          CHECK(reduced("reduce_min") == smallest);
        }
      });
    }
  }
}

TEST_CASE("a long sum of float32 keeps its digits") {
  Tensor x = Tensor::allocate({DType::Float32, {1 << 22}});
  std::fill(x.data<float>(), x.data<float>() + x.count(), 0.1f);
  CHECK(reduced_by("reduce_sum", 2, x, {}).data<float>()[0] ==
        Approx(static_cast<double>(0.1f) * (1 << 22)).epsilon(1e-7));
}

TEST_CASE("extremes and their positions treat a NaN as the winner, and the first of equals wins") {
  Session session(all_ops(), make_cpu_device(1));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = Tensor::of<float>({2, 4}, {1, 3, 3, 2, 5, nan, 7, nan});
  const auto call = [&](const char* op, const char* key) {
    return session.evaluate(op, {x}, {{key, key[0] == 'a' ? AttrValue(Ints{1}) : AttrValue(false)}})[0];
  };
  CHECK(call("reduce_max", "axis").data<float>()[0] == 3);
  CHECK(std::isnan(call("reduce_max", "axis").data<float>()[1]));
  CHECK(std::isnan(call("reduce_min", "axis").data<float>()[1]));
  const Tensor best = session.evaluate("argmax", {x})[0];
  CHECK(best.data<int64_t>()[0] == 1);
  CHECK(best.data<int64_t>()[1] == 1);
}

TEST_CASE("argmax and argmin name the first of equals and the first NaN, in long rows and across them") {
  Session session(all_ops(), make_cpu_device(2));
  const Shape shape{3, 200, 70};
  for (const bool with_nan : {false, true}) {
    Tensor x = Tensor::allocate({DType::Float32, shape});
    uint32_t state = 7;
    for (int64_t i = 0; i < x.count(); ++i) {
      state = state * 1664525 + 1013904223;
      const uint32_t drawn = state >> 24;  // few values, so there are ties
      x.data<float>()[i] =
          with_nan && drawn == 0 ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(drawn % 50);
    }
    for (const int64_t axis : {0, 1, 2}) {
      const int64_t n = shape[static_cast<int>(axis)], stride = shape.count(static_cast<int>(axis) + 1, 3);
      const Tensor most = session.evaluate("argmax", {x}, {{"axis", axis}})[0];
      const Tensor least = session.evaluate("argmin", {x}, {{"axis", axis}})[0];
      for (int64_t lane = 0; lane < most.count(); ++lane) {
        const float* const first = x.data<float>() + lane / stride * n * stride + lane % stride;
        int64_t largest = 0, smallest = 0;
        for (int64_t i = 1; i < n; ++i) {
          const auto leads = [&](int64_t leader, bool ahead) {
            const float other = first[leader * stride];
            return !std::isnan(other) && (ahead || std::isnan(first[i * stride]));
          };
          if (leads(largest, first[i * stride] > first[largest * stride])) largest = i;
          if (leads(smallest, first[i * stride] < first[smallest * stride])) smallest = i;
        }
        REQUIRE(most.data<int64_t>()[lane] == largest);
        REQUIRE(least.data<int64_t>()[lane] == smallest);
      }
    }
  }
}

TEST_CASE("moments of shifted values keep their digits, and exponentials do not overflow") {
  Session session(all_ops(), make_cpu_device(1));
  const Tensor x = Tensor::of<float>({4}, {10000, 10001, 10002, 10003});
  CHECK(session.evaluate("reduce_variance", {x})[0].data<float>()[0] == 1.25f);
  CHECK(session.evaluate("reduce_logsumexp", {x})[0].data<float>()[0] == Approx(10003.44019));
  const float infinity = std::numeric_limits<float>::infinity();
  const Tensor nothing = Tensor::of<float>({2}, {-infinity, -infinity});
  CHECK(session.evaluate("reduce_logsumexp", {nothing})[0].data<float>()[0] == -infinity);
}

TEST_CASE("the gradient of a product survives zeros") {
  Session session(all_ops(), make_cpu_device(1));
  const Tensor dy = Tensor::of<float>({3}, {1, 1, 2});
  const Tensor x = Tensor::of<float>({3, 3}, {2, 3, 4, 0, 3, 4, 0, 0, 4});
  const Tensor dx = session.evaluate("reduce_prod_grad", {dy, x}, {{"axis", Ints{1}}})[0];
  const std::vector<float> got(dx.data<float>(), dx.data<float>() + 9);
  CHECK(got == std::vector<float>{12, 8, 6, 12, 0, 0, 0, 0, 0});
}

TEST_CASE("an axis outside the value, named twice or without elements is refused") {
  Session session(all_ops(), make_cpu_device(1));
  const Tensor x = Tensor::of<float>({2}, {1, 2}), none = Tensor::allocate({DType::Float32, {0}});
  CHECK_THROWS(session.evaluate("reduce_sum", {x}, {{"axis", Ints{1}}}));
  CHECK_THROWS_WITH(session.evaluate("reduce_sum", {x}, {{"axis", Ints{0, -1}}}), "axis -1 is named twice");
  CHECK_THROWS_WITH(session.evaluate("reduce_max", {none}), "there is nothing to choose from in x float32 (0)");
  CHECK_THROWS_WITH(session.evaluate("sum_to_shape", {x}, {{"shape", Ints{3}}}),
                    "x is (2), which nothing of shape (3) broadcasts to");
}
