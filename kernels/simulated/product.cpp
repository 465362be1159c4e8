// Matrix products as plain loops: what the simulated device has in place of the library.
#include "kernels/cuda/product.h"

#include "kernels/cuda/block.h"

namespace moonflow::cuda {
namespace {

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
        const Wide x = static_cast<Wide>(left[s.transpose_a ? k * s.rows + row : row * s.inner + k]);
        sum += x * static_cast<Wide>(right[s.transpose_b ? column * s.inner + k : k * s.columns + column]);
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
    if (call.out == DType::Float32) return rows<BFloat16, float, float>(call);
    return rows<BFloat16, BFloat16, float>(call);
  }

 private:
  template <class In, class Out, class Wide>
  ProductLaunch rows(const ProductCall& call) {
    return [call](Stream& stream, const ProductBuffers& at) {
      simulated::enqueue(stream, "matrix product", [call, at] { multiply<In, Out, Wide>(call, at); });
    };
  }
};

}  // namespace

std::shared_ptr<Products> make_products() { return std::make_shared<SimulatedProducts>(); }

}  // namespace moonflow::cuda
