// Ways between the narrow dtypes and float32 on CUDA, and with them the kernel of every op that knows neither bfloat16
// nor float16.
#include "kernels/cuda/arrays.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/hosted.h"
#include "kernels/cuda/kernels.h"
#include "kernels/widened.h"

namespace moonflow::cuda {
namespace {

template <class From, class To>
struct ConvertArrays {
  static constexpr int kPointers = 2, kN = 4;
  using Row = ArrayRow<kPointers>;

  static bool is_aligned(const Row& row) {
    return cuda::is_aligned<To, kN>(row.data[0]) && cuda::is_aligned<From, kN>(row.data[1]);
  }
  MOONFLOW_DEVICE bool skips() const { return false; }
  MOONFLOW_DEVICE ConvertArrays begin(const Row&) const { return {}; }
  MOONFLOW_DEVICE void operator()(const Row& row, int64_t first, int64_t rest, bool whole) const {
    const auto values = read<From, kN>(static_cast<const From*>(row.data[1]) + first, rest, whole);
    Pack<To, kN> results;
    for (int i = 0; i < kN; ++i) results.values[i] = To(values.values[i]);
    write(results, static_cast<To*>(row.data[0]) + first, rest, whole);
  }
};

template <class From, class To>
void convert(Stream& stream, const Conversion* arrays, int count) {
  over_arrays(stream, ConvertArrays<From, To>(), count, [&](int64_t i) {
    return ArrayRow<2>{{arrays[i].to, const_cast<void*>(arrays[i].from)}, arrays[i].count};
  });
}

}  // namespace

CudaKernel* KernelTable::find(const OpDef& op) const {
  const auto found = kernels_.find(op.name);
  if (found != kernels_.end()) return &found->second;
  if (!op.on_host) return nullptr;
  CudaKernel& kernel = kernels_[op.name];
  static_cast<Kernel&>(kernel) = hosted(op);
  kernel.narrow = op.narrow.in_kernels;
  return &kernel;
}

const Kernel& KernelTable::of(const OpDef& op) const {
  static const Kernel none;
  const std::lock_guard<std::mutex> lock(mutex_);
  CudaKernel* const known = find(op);
  if (known == nullptr) return none;
  CudaKernel& kernel = *known;
  if (!kernel.narrow && !kernel.is_widened) {
    std::function<bool(size_t)> is_written;
    if (!op.writes.empty()) is_written = [op](size_t place) { return op.updates(place); };
    static_cast<Kernel&>(kernel) = widened(kernel, std::move(is_written), [](DType dtype) {
      return visit_narrow(dtype, [](auto zero) {
        using Half = decltype(zero);
        return Conversions{convert<Half, float>, convert<float, Half>};
      });
    });
    kernel.is_widened = true;
  }
  return kernel;
}

bool KernelTable::computes_narrow(const OpDef& op) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const CudaKernel* const known = find(op);
  return known != nullptr && known->narrow;
}

}  // namespace moonflow::cuda
