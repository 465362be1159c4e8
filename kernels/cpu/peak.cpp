// How fast the cores can multiply and add when no memory is in the way.
#include <algorithm>
#include <chrono>

#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"

namespace moonflow {
namespace {

constexpr int kChains = 10;  // independent sums: enough to hide the latency of one, and no more than registers hold

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The operations of `rounds` rounds. `result` depends on each of them, so that none is left out.
double multiply_and_add(int64_t rounds, float& result) {
  double flops = 0;
  cpu::widest_register([&](auto wide) {
    using R = decltype(wide);
    typename R::Vector sums[kChains], factor{}, addend{};
    for (int lane = 0; lane < R::kWidth; ++lane) {
      factor[lane] = 0.5f;
      addend[lane] = 1.0f + static_cast<float>(lane);
    }
    // All different, or the compiler would keep one chain only.
    for (int chain = 0; chain < kChains; ++chain) sums[chain] = addend + static_cast<float>(chain * rounds);
    for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
      for (auto& sum : sums) sum = sum * factor + addend;
    }
    for (const auto& sum : sums) result += sum[0];
    flops = 2.0 * R::kWidth * kChains * static_cast<double>(rounds);
  });
  return flops;
}

}  // namespace

double measure_peak_flops(int threads) {
  constexpr int64_t kRounds = 200000;
  double best = 0;
  for (int repetition = 0; repetition < 5; ++repetition) {
    double flops = 0;
    float sum = 0;
    const double begin = seconds();
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(+ : flops, sum)
    for (int thread = 0; thread < threads; ++thread) {
      float result = 0;
      flops += multiply_and_add(kRounds, result);
      sum += result;
    }
    [[maybe_unused]] volatile const float sink = sum;  // so that the products are made
    best = std::max(best, flops / (seconds() - begin));
  }
  return best;
}

}  // namespace moonflow
