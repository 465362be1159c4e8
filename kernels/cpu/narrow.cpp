#include "kernels/cpu/narrow.h"

#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"
#include "kernels/widened.h"

namespace moonflow::cpu {
namespace {

template <class From, class To>
void convert(const From* from, To* to, int64_t count) {
  parallel_for(count, kWideGrain, [=](int64_t first, int64_t last) {
    widest([=] {
#pragma GCC ivdep
      for (int64_t i = first; i < last; ++i) to[i] = To(from[i]);
    });
  });
}

template <class From, class To>
void convert_all(Stream&, const Conversion* arrays, int count) {
  for (const Conversion* array = arrays; array != arrays + count; ++array)
    convert(static_cast<const From*>(array->from), static_cast<To*>(array->to), array->count);
}

}  // namespace

void widen(const BFloat16* from, float* to, int64_t count) { convert(from, to, count); }

Kernel widened(Kernel kernel, std::function<bool(size_t)> is_written) {
  return moonflow::widened(std::move(kernel), std::move(is_written), [](DType dtype) {
    return visit_narrow(dtype, [](auto zero) {
      using Half = decltype(zero);
      return Conversions{convert_all<Half, float>, convert_all<float, Half>};
    });
  });
}

}  // namespace moonflow::cpu
