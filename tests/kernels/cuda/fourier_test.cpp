// Fourier transforms on the card: passes of every factor, large primes among them.
#include "beside_cpu.h"

using namespace moonflow;
using namespace moonflow::oracle;

TEST_CASE("Fourier transforms agree with the CPU for sizes with all kinds of factors") {
  const BesideCpu beside;
  for (const DType dtype : {DType::Float32, DType::Float64}) {
    for (const int64_t size : {1, 2, 8, 30, 67, 128, 300}) {
      for (const bool inverse : {false, true})
        beside.check("fft", {drawn({dtype, {3, size, 2}}, 1, -1, 1)}, {{"inverse", inverse}, {"scale", 0.5}});
      for (const int64_t length : {size, size + 2, size / 2}) {
        const Attrs attrs = {{"size", size}, {"edge", 0.5}, {"middle", 2.0}};
        beside.check("rfft", {drawn({dtype, {3, length}}, 2, -1, 1)}, attrs);
        Attrs back = attrs;
        back.set("length", length);
        beside.check("irfft", {drawn({dtype, {3, size / 2 + 1, 2}}, 3, -1, 1)}, back);
      }
    }
  }
}
