// The passes of a Fourier transform and the sizes of its ops, for every device.
#include "kernels/fourier.h"

namespace moonflow {

std::vector<FourierPass> fourier_passes(int64_t size) {
  std::vector<int64_t> factors;
  int64_t rest = size;
  for (; rest % 4 == 0; rest /= 4) factors.push_back(4);
  for (int64_t factor = 2; factor * factor <= rest; ++factor)
    for (; rest % factor == 0; rest /= factor) factors.push_back(factor);
  if (rest > 1) factors.push_back(rest);
  std::vector<FourierPass> passes;
  int64_t stride = 1;
  for (const int64_t factor : factors) {
    passes.push_back({factor, stride, size / stride / factor});
    stride *= factor;
  }
  return passes;
}

FourierCall fourier_call(const KernelCall& call, FourierCall::Kind kind) {
  using Kind = FourierCall::Kind;
  const Shape &x = call.inputs[0].shape, &y = call.outputs[0].shape;
  const int pairs_in_x = kind != Kind::OfReal, pairs_in_y = kind != Kind::ToReal;
  FourierCall result;
  result.kind = kind;
  result.rows = x.count(0, x.rank() - 1 - pairs_in_x);
  result.from = x.count(x.rank() - 1 - pairs_in_x, x.rank());
  result.to = y.count(y.rank() - 1 - pairs_in_y, y.rank());
  if (kind == Kind::Complex) {
    result.size = x[x.rank() - 2];
    result.inverse = call.attrs.flag("inverse");
    result.scale = call.attrs.number("scale");
  } else {
    result.size = call.attrs.integer("size");
    result.weights = {call.attrs.number("edge"), call.attrs.number("middle")};
  }
  return result;
}

}  // namespace moonflow
