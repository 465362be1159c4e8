// Matrix products as plain loops: what the simulated device has in place of the library.
#include "kernels/cuda/product.h"

#include <algorithm>
#include <cstring>
#include <vector>

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
Wide widen(In x, Precision precision) {
  if constexpr (std::is_same_v<In, float>)
    if (precision == Precision::Tf32) return to_tf32(x);
  return static_cast<Wide>(x);
}

// A factor as the sums read it: widened once, in rows, whichever way it is stored.
template <class Wide, class In>
void read_factor(const In* from, int64_t rows, int64_t columns, bool transposed, Precision precision,
                 std::vector<Wide>& to) {
  to.resize(static_cast<size_t>(rows * columns));
  Wide* next = to.data();
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column)
      *next++ = widen<Wide>(from[transposed ? column * rows + row : row * columns + column], precision);
}

template <class In, class Out, class Wide>
void multiply(const ProductCall& call, const ProductBuffers& at) {
  const Product& s = call.sizes;
  std::vector<Wide> left, right, sums(static_cast<size_t>(s.columns));
  for (int64_t batch = 0; batch < s.batch; ++batch) {
    read_factor(static_cast<const In*>(at.a) + batch * s.rows * s.inner, s.rows, s.inner, s.transpose_a, call.precision,
                left);
    read_factor(static_cast<const In*>(at.b) + batch * s.inner * s.columns, s.inner, s.columns, s.transpose_b,
                call.precision, right);
    for (int64_t row = 0; row < s.rows; ++row) {
      std::fill(sums.begin(), sums.end(), Wide{});
      for (int64_t k = 0; k < s.inner; ++k) {
        const Wide x = left[static_cast<size_t>(row * s.inner + k)];
        const Wide* const factors = right.data() + k * s.columns;
        for (int64_t column = 0; column < s.columns; ++column) sums[column] += x * factors[column];
      }
      Out* const out = static_cast<Out*>(at.out) + (batch * s.rows + row) * s.columns;
      for (int64_t column = 0; column < s.columns; ++column) {
        Wide sum = sums[column];
        if (call.bias) sum += static_cast<Wide>(static_cast<const Out*>(at.bias)[column]);
        out[column] = static_cast<Out>(sum);
      }
    }
  }
}

class SimulatedProducts final : public Products {
 public:
  ProductLaunch prepare(const ProductCall& call, int64_t& scratch_bytes) override {
    require(call.precision != Precision::Tf32 || call.in == DType::Float32, ErrorCode::Internal,
            "the library rounds nothing to TF32 but float32");
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
