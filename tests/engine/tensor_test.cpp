#include "engine/tensor.h"

#include <cmath>
#include <cstring>

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
  CHECK(dtype_named("bfloat16") == DType::BFloat16);
  CHECK(size_of(DType::BFloat16) == 2);
}

TEST_CASE("bfloat16 takes the nearest value, of two the even one, and keeps a NaN") {
  const auto rounded = [](auto x) { return static_cast<float>(BFloat16(x)); };
  CHECK(rounded(1.0f) == 1.0f);
  CHECK(rounded(-3.25f) == -3.25f);
  CHECK(rounded(1.0f + 1.0f / 256) == 1.0f);  // between 1 and 1 + 2/256, whose last bit is 1
  CHECK(rounded(1.0f + 3.0f / 256) == 1.0f + 4.0f / 256);
  CHECK(rounded(1.0f + 1.1f / 256) == 1.0f + 2.0f / 256);
  CHECK(rounded(3.0e38f) == Approx(3.0e38f).epsilon(1.0 / 256));
  CHECK(std::isinf(rounded(3.4e38f)));
  CHECK(rounded(9.3e-41f) == std::ldexp(1.0f, -133));  // the least subnormal
  CHECK(std::signbit(rounded(-0.0f)));
  uint32_t low_nan = 0x7f800001;  // its upper half alone is an infinity
  float nan;
  std::memcpy(&nan, &low_nan, sizeof nan);
  CHECK(std::isnan(rounded(nan)));
  CHECK(std::isnan(rounded(std::nan(""))));
  // From float64 once: through float32 it would be a tie, and go the other way.
  CHECK(rounded(1.0 + 1.0 / 256 + 1e-12) == 1.0f + 2.0f / 256);
  CHECK(rounded(1.0 + 3.0 / 256 - 1e-12) == 1.0f + 2.0f / 256);
  CHECK(rounded(-1.0 - 1.0 / 256 - 1e-12) == -1.0f - 2.0f / 256);
  CHECK(std::isinf(rounded(1e300)));
  CHECK(rounded(int64_t{255}) == 255);
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    BFloat16 x;
    x.bits = static_cast<uint16_t>(bits);
    if (!std::isnan(static_cast<float>(x))) REQUIRE(BFloat16(static_cast<float>(x)).bits == x.bits);
  }
}
