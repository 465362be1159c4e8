#include "engine/tensor.h"

#include <cmath>
#include <cstring>
#include <limits>

#include <catch2/catch.hpp>
#include <cstdint>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

using namespace moonflow;

namespace {

float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
Float16 half_of(uint32_t bits) {
  Float16 x;
  x.bits = static_cast<uint16_t>(bits);
  return x;
}

#ifdef __x86_64__
[[gnu::target("f16c")]] uint16_t rounded_by_processor(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
[[gnu::target("f16c")]] float widened_by_processor(uint16_t half) { return _cvtsh_ss(half); }
#endif

}  // namespace

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
  CHECK_FALSE(dtype_named("float128").has_value());
  CHECK(size_of(DType::Int64) == 8);
  CHECK(dtype_named("bfloat16") == DType::BFloat16);
  CHECK(size_of(DType::BFloat16) == 2);
  CHECK(dtype_named("float16") == DType::Float16);
  CHECK(size_of(DType::Float16) == 2);
  CHECK(is_floating(DType::Float16));
  CHECK((is_narrow(DType::Float16) && is_narrow(DType::BFloat16) && !is_narrow(DType::Float32)));
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

TEST_CASE("float16 takes the nearest value, of two the even one, and keeps a NaN") {
  const auto rounded = [](auto x) { return static_cast<float>(Float16(x)); };
  CHECK(rounded(1.0f) == 1.0f);
  CHECK(rounded(-3.25f) == -3.25f);
  CHECK(rounded(1.0f + 1.0f / 2048) == 1.0f);  // between 1 and 1 + 2/2048, whose last bit is 1
  CHECK(rounded(1.0f + 3.0f / 2048) == 1.0f + 4.0f / 2048);
  CHECK(rounded(65504.0f) == 65504.0f);
  CHECK(rounded(65519.0f) == 65504.0f);
  CHECK(std::isinf(rounded(65520.0f)));
  CHECK(rounded(-1e30f) == -std::numeric_limits<float>::infinity());
  CHECK(rounded(std::ldexp(1.0f, -24)) == std::ldexp(1.0f, -24));  // the least denormal
  CHECK(rounded(std::ldexp(1.0f, -25)) == 0);
  CHECK(rounded(std::ldexp(1.1f, -25)) == std::ldexp(1.0f, -24));
  CHECK(rounded(1e-40f) == 0);
  CHECK(std::signbit(rounded(-0.0f)));
  CHECK(std::signbit(rounded(-1e-30f)));
  CHECK(std::isnan(rounded(float_of(0x7f800001))));  // its upper bits alone are an infinity
  CHECK(std::isnan(rounded(std::nan(""))));
  // From float64 once: through float32 it would be a tie, and go the other way.
  CHECK(rounded(1.0 + 1.0 / 2048 + 1e-12) == 1.0f + 2.0f / 2048);
  CHECK(rounded(-1.0 - 3.0 / 2048 + 1e-12) == -1.0f - 2.0f / 2048);
  CHECK(rounded(std::ldexp(1.0, -25) + 1e-20) == std::ldexp(1.0f, -24));
  CHECK(std::isinf(rounded(1e300)));
  CHECK(rounded(int64_t{2049}) == 2048);
  CHECK(rounded(BFloat16(0.5f)) == 0.5f);
}

TEST_CASE("every float16 is widened to its value, and comes back") {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    CAPTURE(bits);
    const uint32_t exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    const float wide = half_of(bits);
    if (exponent == 31) {
      REQUIRE((fraction == 0 ? std::isinf(wide) : std::isnan(wide)));
      REQUIRE(std::signbit(wide) == (bits >= 0x8000));
      continue;
    }
    const double size =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, static_cast<int>(exponent) - 25);
    REQUIRE(wide == (bits < 0x8000 ? size : -size));
    REQUIRE(std::signbit(wide) == (bits >= 0x8000));
    REQUIRE(Float16(wide).bits == bits);
    REQUIRE(Float16(double{wide}).bits == bits);
  }
}

TEST_CASE("float16 rounds on either side of the middle between each two neighbours") {
  for (uint32_t lower = 0; lower < 0x7c00; ++lower) {
    CAPTURE(lower);
    // The next behind the largest would be 65536.
    const float next = lower == 0x7bff ? 65536.0f : static_cast<float>(half_of(lower + 1));
    const float middle = (static_cast<float>(half_of(lower)) + next) / 2;  // exact
    const uint32_t even = lower + (lower & 1);
    for (const uint32_t sign : {0u, 0x8000u}) {
      const float way = sign ? -1.0f : 1.0f;
      REQUIRE(Float16(way * middle).bits == (sign | even));
      REQUIRE(Float16(way * std::nextafter(middle, 0.0f)).bits == (sign | lower));
      REQUIRE(Float16(way * std::nextafter(middle, 1e9f)).bits == (sign | (lower + 1)));
      REQUIRE(Float16(double{way} * std::nextafter(double{middle}, 0.0)).bits == (sign | lower));
      REQUIRE(Float16(double{way} * std::nextafter(double{middle}, 1e9)).bits == (sign | (lower + 1)));
    }
  }
}

#ifdef __x86_64__
TEST_CASE("float16 has the bits that the processor's instructions give") {
  if (!__builtin_cpu_supports("f16c")) return;
  for (uint32_t bits = 0; bits < 0x10000; ++bits)
    REQUIRE(bits_of(half_of(bits)) == bits_of(widened_by_processor(static_cast<uint16_t>(bits))));
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 251) {
    const float x = float_of(static_cast<uint32_t>(bits));
    if (Float16(x).bits != rounded_by_processor(x)) FAIL(bits);
  }
}
#endif

#if defined(__SANITIZE_ADDRESS__)
TEST_CASE("a write in front of an array's elements is found, though its bookkeeping lies there") {
  for (const int64_t count : {0, 1, 1000}) {
    const Tensor tensor = Tensor::allocate({DType::Float32, {count}});
    const char* const elements = tensor.data<char>();
    for (int64_t i = 1; i <= kAlignment; ++i) CHECK(__asan_address_is_poisoned(elements - i) != 0);
    for (int64_t i = 0; i < tensor.bytes(); ++i) CHECK(__asan_address_is_poisoned(elements + i) == 0);
  }
}
#endif

TEST_CASE("whose memory it is may use all of a block that is given back") {
  struct Clearing : HostMemory {
    void* allocate(size_t bytes) noexcept override { return last = HostMemory::allocate(size = bytes); }
    void release(void* block) noexcept override {
      if (block == last) std::memset(block, 0, size);
      HostMemory::release(block);
    }
    void* last = nullptr;
    size_t size = 0;
  };
  const auto memory = std::make_shared<Clearing>();
  Tensor::allocate({DType::Float32, {1000}}, memory);
  CHECK(memory->live_bytes == 0);
  CHECK(memory->size >= 4000);
}
