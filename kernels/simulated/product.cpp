// Matrix products as plain loops: what the simulated device has in place of the library.
#include "kernels/cuda/product.h"

#include "kernels/cuda/block.h"

namespace moonflow::cuda {
namespace {

// One thread for each row of the result.
template <class In, class Out, class Wide>
struct Rows {
  static constexpr int kThreads = 1;
  Product s;
  const In *a, *b;
  const Out* bias;
  bool relu;
  Out* out;

  template <class Block>
  void operator()(const Block& block) const {
    const int64_t batch = block.index() / s.rows, row = block.index() % s.rows;
    const In *const left = a + batch * s.rows * s.inner, *const right = b + batch * s.inner * s.columns;
    for (int64_t column = 0; column < s.columns; ++column) {
      Wide sum = 0;
      for (int64_t k = 0; k < s.inner; ++k) {
        const Wide x = static_cast<Wide>(left[s.transpose_a ? k * s.rows + row : row * s.inner + k]);
        sum += x * static_cast<Wide>(right[s.transpose_b ? column * s.inner + k : k * s.columns + column]);
      }
      if (bias) sum += static_cast<Wide>(bias[column]);
      if (relu && sum < 0) sum = 0;
      out[block.index() * s.columns + column] = static_cast<Out>(sum);
    }
  }
};

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
      launch(stream, call.sizes.batch * call.sizes.rows,
             Rows<In, Out, Wide>{call.sizes, static_cast<const In*>(at.a), static_cast<const In*>(at.b),
                                 call.bias ? static_cast<const Out*>(at.bias) : nullptr, call.relu,
                                 static_cast<Out*>(at.out)});
    };
  }
};

}  // namespace

std::shared_ptr<Products> make_products() { return std::make_shared<SimulatedProducts>(); }

}  // namespace moonflow::cuda
