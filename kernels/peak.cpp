// How fast the cores can multiply and add when no memory is in the way.
#include <algorithm>
#include <chrono>

#include "kernels/catalog.h"
#include "kernels/cpu.h"
#include "kernels/simd.h"

namespace moonflow {
namespace {

constexpr int kLanes = 16, kChains = 12;  // enough independent sums to hide the latency of one
using Lanes [[gnu::vector_size(kLanes * sizeof(float))]] = float;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Gives something that depends on every operation, so that none is left out.
float multiply_and_add(int64_t rounds) {
  float result = 0;
  cpu::widest([&] {
    Lanes sums[kChains], factor, addend;
    for (int lane = 0; lane < kLanes; ++lane) {
      factor[lane] = 0.5f;
      addend[lane] = 1.0f + static_cast<float>(lane);
      // All different, or the compiler would keep one chain only.
      for (int chain = 0; chain < kChains; ++chain) sums[chain][lane] = static_cast<float>(chain * rounds + lane);
    }
    for (int64_t i = 0; i < rounds; ++i)
      for (Lanes& sum : sums) sum = sum * factor + addend;
    for (const Lanes& sum : sums) result += sum[0];
  });
  return result;
}

}  // namespace

double measure_peak_flops(int threads) {
  constexpr int64_t kRounds = 200000;
  constexpr double kFlopsPerRound = 2.0 * kLanes * kChains;
  double best = 0;
  for (int repetition = 0; repetition < 5; ++repetition) {
    volatile float sink = 0;
    const double begin = seconds();
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int thread = 0; thread < threads; ++thread) sink = sink + multiply_and_add(kRounds);
    best = std::max(best, threads * kRounds * kFlopsPerRound / (seconds() - begin));
  }
  return best;
}

}  // namespace moonflow
