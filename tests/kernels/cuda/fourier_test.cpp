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

TEST_CASE("the many numbers of a large prime are summed in double on the card") {
  const BesideCpu beside;
  const Tensor x = drawn({DType::Float32, {1, 8209}}, 1, 0, 1);  // far from zero, so that the sums grow
  Trial trial = beside.trial("rfft", {x}, {{"size", int64_t{8209}}});
  const Launched got = launch(trial, *beside.card);
  trial.inputs[0] = Tensor::allocate({DType::Float64, x.shape()});
  std::copy_n(x.data<float>(), x.count(), trial.inputs[0].data<double>());
  const Launched exact = launch(trial, *beside.cpu);
  CHECK(got.damage == "");
  CHECK(distance(got.outputs[0], exact.outputs[0]) <= 1e-5);  // of turns in float32; sums in float32 are off by 1e-4
}
