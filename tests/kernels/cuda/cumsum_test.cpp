// Cumulative sums on the card: lanes for a thread and for a block, of any length.
#include "beside_cpu.h"

using namespace moonflow;
using namespace moonflow::oracle;

TEST_CASE("cumulative sums agree with the CPU for lanes of every length, in both directions") {
  const BesideCpu beside;
  for (const Shape& shape : {Shape{3, 64, 2}, Shape{2, 65, 1}, Shape{2, 1023, 2}, Shape{1, 1024, 1}, Shape{2, 1025, 1},
                             Shape{1, 5000, 3}, Shape{128, 70, 32}, Shape{0, 70, 3}, Shape{3, 0, 3}}) {
    for (const DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Int32, DType::UInt8}) {
      const Tensor x = drawn({dtype, shape}, 1, 0, 9);
      for (const bool reverse : {false, true})
        for (const bool exclusive : {false, true})
          beside.check("cumsum", {x}, {{"axis", int64_t{1}}, {"reverse", reverse}, {"exclusive", exclusive}});
    }
  }
}
