// The choice by the clock. That of the tests is the work that the card has done, so a busy machine changes nothing.
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
  const auto work = [&] { return 1e-6 * memory.read()[0]; };
  CHECK(fastest(*card.device, {with(3), fails, with(1), with(6)}, work) == size_t{2});
  CHECK(refused == 1);
  CHECK(fastest(*card.device, {with(20), with(22), with(19)}, work) == size_t{0});  // all within a tenth of the last
  CHECK(fastest(*card.device, {with(20), with(25), with(18)}, work) == size_t{2});
  CHECK(fastest(*card.device, {fails}, work) == std::nullopt);
  CHECK(fastest(*card.device, {}, work) == std::nullopt);
}

TEST_CASE("the machine's clock finds one of the launches, whichever") {
  Card card;
  const Memory<int> memory(card, std::vector<int>(64, 0));
  const TimedLaunch launch = [&](Stream& stream) { for_each(stream, 64, Increment{memory.data()}); };
  CHECK(fastest(*card.device, {launch}) == size_t{0});
}

TEST_CASE("no more is tried once launches have taken their time") {
  Card card;
  const Memory<int> memory(card, std::vector<int>(64, 0));
  int launched = 0;
  const TimedLaunch launch = [&](Stream& stream) {
    ++launched;
    for_each(stream, 64, Increment{memory.data()});
  };
  const auto slow = [&] { return 1.0 * memory.read()[0]; };  // a second a launch
  CHECK(fastest(*card.device, {launch, launch, launch}, slow) == size_t{0});
  CHECK(launched == 2);  // the first, which loads the kernel, and the one that was timed
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
