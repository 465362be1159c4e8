// The source of a chain's kernel, compiled by the host's compiler with stand-ins for the words of CUDA, beside the op
// of the CPU: in every dtype, with whole packs and with ends.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "chain_trial.h"
#include "kernels/elementwise.h"
#include "oracle.h"

#define __global__
#define __launch_bounds__(threads)

namespace {

struct Index {
  unsigned x;
};
Index blockIdx, threadIdx;

namespace single {
#define chain chain_float32
#include "chain_float32.inc"
#undef chain
}  // namespace single

namespace wide {
#define chain chain_float64
#include "chain_float64.inc"
#undef chain
}  // namespace wide

namespace brain {
#define chain chain_bfloat16
#include "chain_bfloat16.inc"
#undef chain
}  // namespace brain

namespace half {
#define chain chain_float16
#include "chain_float16.inc"
#undef chain
}  // namespace half

using namespace moonflow;

// How far the chain is from the CPU's, of `count` elements; what lies behind them must stay.
template <class T, class Chain>
double distance_from_cpu(const Chain& chain, DType dtype, int64_t count) {
  const std::shared_ptr<const Catalog> catalog = all_ops();
  const std::unique_ptr<Device> cpu = make_cpu_device(1);
  Example example{chain_trial_leaves(dtype), chain_trial_attrs()};
  const oracle::Trial trial = oracle::draw(catalog->at("element_chain"), example, 1);
  const Tensor expected = oracle::launch(trial, *cpu).outputs[0];
  Tensor got = Tensor::allocate(expected.type());
  std::memset(got.data(), 0xff, static_cast<size_t>(got.bytes()));
  const auto leaf = [&](int i) { return trial.inputs[i].data<T>(); };
  for (blockIdx.x = 0; blockIdx.x < 2; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < 256; ++threadIdx.x)
      chain(count, leaf(0), leaf(1), leaf(2), leaf(3), got.data<T>());
  double largest = 0;
  for (int64_t i = 0; i < expected.count(); ++i) {
    const double x = got.data<T>()[i], y = expected.data<T>()[i];
    if (i >= count && std::isnan(x)) continue;
    largest = std::isnan(x) || i >= count ? INFINITY : std::max(largest, std::abs(x - y) / std::max(1.0, std::abs(y)));
    if (!std::isfinite(largest)) break;
  }
  return largest;
}

}  // namespace

int main() {
  int failed = 0;
  for (const int64_t count : {350, 349, 348, 3, 1, 0}) {
    const double single_distance = distance_from_cpu<float>(single::chain_float32, DType::Float32, count);
    const double wide_distance = distance_from_cpu<double>(wide::chain_float64, DType::Float64, count);
    const double brain_distance = distance_from_cpu<BFloat16>(brain::chain_bfloat16, DType::BFloat16, count);
    const double half_distance = distance_from_cpu<Float16>(half::chain_float16, DType::Float16, count);
    // Both compute what is narrow in float32, and may round to different sides.
    const bool narrow_fits = brain_distance < 1.5 / 256 && half_distance < 1.5 / 2048;
    if (single_distance < 1e-6 && wide_distance < 1e-14 && narrow_fits) continue;
    std::printf("FAILED: of %d elements, float32 is off by %g, float64 by %g, bfloat16 by %g, float16 by %g\n",
                static_cast<int>(count), single_distance, wide_distance, brain_distance, half_distance);
    ++failed;
  }
  return failed;
}
