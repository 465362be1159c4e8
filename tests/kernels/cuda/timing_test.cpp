// The choice by the clock, with launches whose times differ by more than any clock's noise.
#include "kernels/cuda/timing.h"

#include <cmath>
#include <cstdlib>

#include <catch2/catch.hpp>

#include "card.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/elements.h"

using namespace moonflow;
using namespace moonflow::cuda;

namespace {

struct Increment {
  int* to;
  MOONFLOW_DEVICE void operator()(int64_t i) const { ++to[i]; }
};

}  // namespace

TEST_CASE("the launch that takes least time is found, and one that fails is none") {
  Card card;
  const Memory<int> memory(card, std::vector<int>(4096, 0));
  int refused = 0;
  const auto with = [&](int times) -> TimedLaunch {
    return [&, times](Stream& stream) {
      for (int i = 0; i < times; ++i) for_each(stream, 4096, Increment{memory.data()});
    };
  };
  const TimedLaunch fails = [&](Stream&) {
    ++refused;
    fail(ErrorCode::Internal, "no");
  };
  CHECK(fastest(*card.device, {with(3), fails, with(1), with(6)}) == size_t{2});
  CHECK(refused == 1);
  CHECK(fastest(*card.device, {fails}) == std::nullopt);
  CHECK(fastest(*card.device, {}) == std::nullopt);
}

TEST_CASE("what is timed meets values of every dtype, and few zeros") {
  Card card;
  for (const int64_t count : {1, 1000, 65521, 200000}) {
    const Buffer wide = drawn_values(*card.device, DType::Float64, count);
    const Buffer narrow = drawn_values(*card.device, DType::BFloat16, count);
    REQUIRE(wide.bytes() == 8 * count);
    REQUIRE(narrow.bytes() == 2 * count);
    std::vector<double> values(count);
    std::vector<BFloat16> rounded(count);
    card.device->copy(*card.stream, values.data(), wide.data(), wide.bytes());
    card.device->copy(*card.stream, rounded.data(), narrow.data(), narrow.bytes());
    card.stream->wait();
    int64_t zeros = 0, outside = 0, unlike = 0;
    for (int64_t i = 0; i < count; ++i) {
      zeros += values[i] == 0;
      outside += !(values[i] >= -1 && values[i] <= 1);
      unlike += std::abs(static_cast<float>(rounded[i]) - values[i]) > 1.0 / 256;
    }
    CHECK(zeros <= count / 1000);
    CHECK(outside == 0);
    CHECK(unlike == 0);
  }
}

TEST_CASE("the environment leaves choices to the libraries") {
  CHECK(may_time());
  setenv("MOONFLOW_CUDA_TIMING", "0", 1);
  CHECK_FALSE(may_time());
  unsetenv("MOONFLOW_CUDA_TIMING");
}
