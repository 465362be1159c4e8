// Matrix products by the library that the card's maker has for them: a kernel chooses at prepare, and launches. On the
// simulated device plain loops take the library's place.
#pragma once

#include <functional>
#include <memory>

#include "engine/device.h"
#include "kernels/matmul.h"

namespace moonflow::cuda {

// What products of float32 factors are computed with.
enum class Precision { Float32, Tf32 };

struct ProductCall {
  Product sizes;
  DType in = DType::Float32;   // of both factors; those of what is narrow are summed in float32
  DType out = DType::Float32;  // of the result and of the bias
  bool bias = false;           // one per column, added to the sums
  Precision precision = Precision::Float32;
  // Where set, the library's algorithms are timed on this device when the product is first prepared, and the fastest is
  // remembered, for other processes too. Else it is the one that the library holds to be the fastest.
  Device* timed_on = nullptr;
};

struct ProductBuffers {
  const void *a, *b, *bias;
  void* out;
  void* scratch;
};
// Algorithms are chosen for factors and results that begin at a multiple of kAlignment, as values of a plan do. One of
// them reads beside what begins elsewhere, or the card gives up; so a launch looks.
inline void check_alignment(const ProductBuffers& at) {
  for (const void* const data : {at.a, at.b, at.bias, static_cast<const void*>(at.out)})
    require(reinterpret_cast<uintptr_t>(data) % kAlignment == 0, ErrorCode::Internal,
            "a factor, bias or result of a product of the library's is not aligned to ", kAlignment, " bytes");
}

using ProductLaunch = std::function<void(Stream&, const ProductBuffers&)>;

class Products {
 public:
  virtual ~Products() = default;
  // Says how much scratch a launch needs. An empty launch: the library has no algorithm for it.
  virtual ProductLaunch prepare(const ProductCall& call, int64_t& scratch_bytes) = 0;
};

// Of the current card.
std::shared_ptr<Products> make_products();

}  // namespace moonflow::cuda
