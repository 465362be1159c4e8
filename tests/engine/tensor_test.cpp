#include "engine/tensor.h"

#include <catch2/catch.hpp>
#include <cstdint>

using namespace moonflow;

TEST_CASE("a shape prints as a tuple and knows its count") {
  CHECK(Shape{100, 10}.str() == "(100, 10)");
  CHECK(Shape{5}.str() == "(5)");
  CHECK(Shape{}.str() == "()");
  CHECK(Shape{}.count() == 1);
  CHECK(Shape{3, 0, 4}.count() == 0);
}

TEST_CASE("sizes that overflow are an error, not a small number") {
  const Shape huge{int64_t{1} << 40, int64_t{1} << 40};
  CHECK_THROWS_AS(huge.count(), Error);
  CHECK_THROWS_AS((TensorType{DType::Float64, {INT64_MAX / 4}}.bytes()), Error);
  CHECK_THROWS_AS(Tensor::allocate({DType::Float32, {int64_t{1} << 50}}), Error);
}

TEST_CASE("an empty axis does not hide others that overflow") {
  CHECK_NOTHROW(check_size({DType::Float32, {0, 1000}}));
  CHECK_THROWS_AS(check_size({DType::Float32, {0, int64_t{1} << 40, int64_t{1} << 40}}), Error);
}

TEST_CASE("a shape refuses negative sizes and more than eight axes") {
  CHECK_THROWS_AS(Shape({2, -1}), Error);
  CHECK_THROWS_AS(Shape({1, 1, 1, 1, 1, 1, 1, 1, 1}), Error);
}

TEST_CASE("broadcasting follows NumPy") {
  CHECK(broadcast({5, 1, 3}, {4, 1}) == Shape{5, 4, 3});
  CHECK(broadcast({}, {2}) == Shape{2});
  CHECK(broadcast({1}, {0}) == Shape{0});
  CHECK_THROWS_WITH(broadcast({2, 3}, {2, 4}), Catch::Contains("(2, 3) and (2, 4)"));
}

TEST_CASE("a view shares the memory of its origin, a copy does not") {
  Tensor tensor = Tensor::of<float>({3, 2}, {0, 1, 2, 3, 4, 5});
  Tensor middle = tensor.rows(1, 1);
  middle.data<float>()[0] = 20;
  CHECK(tensor.data<float>()[2] == 20);
  CHECK(middle.shape() == Shape{1, 2});
  CHECK_FALSE(tensor.copy().shares_memory(tensor));
  CHECK_THROWS_AS(tensor.rows(2, 2), Error);
  CHECK_THROWS_AS(tensor.rows(-1, 1), Error);
  CHECK_THROWS_AS(tensor.reshaped({4}), Error);
}

TEST_CASE("host memory counts the bytes that are alive") {
  auto memory = std::make_shared<HostMemory>();
  {
    const Tensor tensor = Tensor::allocate({DType::Float32, {1000}}, memory);
    const Tensor view = tensor.rows(0, 1);
    CHECK(memory->live_bytes >= 4000);
    CHECK(reinterpret_cast<uintptr_t>(tensor.data()) % kAlignment == 0);
  }
  CHECK(memory->live_bytes == 0);
}

TEST_CASE("dtypes are found by name") {
  CHECK(dtype_named("int8") == DType::Int8);
  CHECK_FALSE(dtype_named("float16").has_value());
  CHECK(size_of(DType::Int64) == 8);
}
