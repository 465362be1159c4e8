#include <catch2/catch.hpp>

#include "engine/session.h"
#include "kernels/catalog.h"

using namespace moonflow;

TEST_CASE("sums of integers wrap around, and those of floats are rounded once") {
  Session session(all_ops(), make_cpu_device(2));
  const auto last = [&](const Tensor& x) { return session.evaluate("cumsum", {x}, {})[0]; };
  CHECK(last(Tensor::of<int8_t>({3}, {100, 27, 1})).data<int8_t>()[2] == -128);
  CHECK(last(Tensor::of<uint8_t>({2}, {255, 1})).data<uint8_t>()[1] == 0);
  // Each step alone is half of a last place of 2^24, which float32 would lose.
  const Tensor sums = last(Tensor::of<float>({4}, {0x1p24f, 1, 1, 1}));
  CHECK(sums.data<float>()[1] == 0x1p24f);
  CHECK(sums.data<float>()[2] == 0x1p24f + 2);
  CHECK(sums.data<float>()[3] == 0x1p24f + 4);
}

TEST_CASE("rows that are summed some at a time have the sums of one alone") {
  Session session(all_ops(), make_cpu_device(2));
  constexpr int64_t kRows = 37, kColumns = 51;
  Tensor x = Tensor::allocate({DType::Float32, {kRows, kColumns}});
  for (int64_t i = 0; i < x.count(); ++i) x.data<float>()[i] = static_cast<float>(i % 7) - 2.75f;
  for (const bool reverse : {false, true}) {
    for (const bool exclusive : {false, true}) {
      const Attrs along{{"axis", int64_t{1}}, {"reverse", reverse}, {"exclusive", exclusive}};
      const Tensor sums = session.evaluate("cumsum", {x}, along)[0];
      bool right = true;
      for (int64_t row = 0; row < kRows; ++row) {
        double sum = 0;
        for (int64_t i = 0; i < kColumns; ++i) {
          const int64_t at = row * kColumns + (reverse ? kColumns - 1 - i : i);
          const double before = sum;
          sum += x.data<float>()[at];
          right = right && sums.data<float>()[at] == static_cast<float>(exclusive ? before : sum);
        }
      }
      CHECK(right);
    }
  }
}

TEST_CASE("sums over nothing are nothing") {
  Session session(all_ops(), make_cpu_device(2));
  for (const Shape& shape : {Shape{0, 3}, Shape{3, 0}})
    for (const int64_t axis : {0, 1})
      CHECK(session.evaluate("cumsum", {Tensor::zeros({DType::Float32, shape})}, {{"axis", axis}})[0].shape() == shape);
}
