// Matrix products as plain loops: what the simulated device has in place of the library.
#include "kernels/cuda/product.h"

#include <cstring>

#include "kernels/cuda/block.h"

namespace moonflow::cuda {
namespace {

// To the nearest number with 10 bits of fraction, as the units for TF32 read float32.
float to_tf32(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7f800000) == 0x7f800000) return x;
  bits = (bits + 0xfff + (bits >> 13 & 1)) & ~uint32_t{0x1fff};
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

template <class Wide, class In>
Wide factor(In x, Precision precision) {
  if constexpr (std::is_same_v<In, float>)
    if (precision == Precision::Tf32) return to_tf32(x);
  return static_cast<Wide>(x);
}

template <class In, class Out, class Wide>
void multiply(const ProductCall& call, const ProductBuffers& at) {
  const Product& s = call.sizes;
  for (int64_t row_of_all = 0; row_of_all < s.batch * s.rows; ++row_of_all) {
    const int64_t batch = row_of_all / s.rows, row = row_of_all % s.rows;
    const In* const left = static_cast<const In*>(at.a) + batch * s.rows * s.inner;
    const In* const right = static_cast<const In*>(at.b) + batch * s.inner * s.columns;
    for (int64_t column = 0; column < s.columns; ++column) {
      Wide sum = 0;
      for (int64_t k = 0; k < s.inner; ++k) {
        const Wide x = factor<Wide>(left[s.transpose_a ? k * s.rows + row : row * s.inner + k], call.precision);
        sum += x * factor<Wide>(right[s.transpose_b ? column * s.inner + k : k * s.columns + column], call.precision);
      }
      if (call.bias) sum += static_cast<Wide>(static_cast<const Out*>(at.bias)[column]);
      if (call.relu && sum < 0) sum = 0;
      static_cast<Out*>(at.out)[row_of_all * s.columns + column] = static_cast<Out>(sum);
    }
  }
}

class SimulatedProducts final : public Products {
 public:
  ProductLaunch prepare(const ProductCall& call, int64_t& scratch_bytes) override {
    scratch_bytes = 4096;  // as a library that wants some
    if (call.in == DType::Float64) return rows<double, double, double>(call);
    if (call.in == DType::Float32) return rows<float, float, float>(call);
    return visit_narrow(call.in, [&](auto zero) {
      using In = decltype(zero);
      return call.out == DType::Float32 ? rows<In, float, float>(call) : rows<In, In, float>(call);
    });
  }

 private:
  template <class In, class Out, class Wide>
  ProductLaunch rows(const ProductCall& call) {
    return [call](Stream& stream, const ProductBuffers& at) {
      check_alignment(at);
      simulated::enqueue(stream, "matrix product", [call, at] { multiply<In, Out, Wide>(call, at); });
    };
  }
};

}  // namespace

std::shared_ptr<Products> make_products() { return std::make_shared<SimulatedProducts>(); }

}  // namespace moonflow::cuda
