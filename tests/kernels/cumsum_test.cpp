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

TEST_CASE("sums over nothing are nothing") {
  Session session(all_ops(), make_cpu_device(2));
  for (const Shape& shape : {Shape{0, 3}, Shape{3, 0}})
    for (const int64_t axis : {0, 1})
      CHECK(session.evaluate("cumsum", {Tensor::zeros({DType::Float32, shape})}, {{"axis", axis}})[0].shape() == shape);
}
