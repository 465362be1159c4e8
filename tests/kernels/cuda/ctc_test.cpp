// The loss of labels along a sequence on the card: labels for one thread each and several, ways in shared memory and
// beside it.
#include "beside_cpu.h"

using namespace moonflow;
using namespace moonflow::oracle;

TEST_CASE("the loss of labels along a sequence agrees with the CPU, and so does its gradient") {
  const BesideCpu beside;
  // The last two have more labels than a block has threads, and more than shared memory has room for.
  for (const auto& [steps, classes, labels] : {std::array<int64_t, 3>{12, 5, 4},
                                               {0, 3, 2},
                                               {7, 2, 0},
                                               {9, 1000, 3},
                                               {30, 3, 28},
                                               {310, 6, 150},
                                               {530, 40, 510}}) {
    for (const DType dtype : {DType::Float32, DType::Float64, DType::BFloat16}) {
      CAPTURE(steps, classes, labels, dtype);
      const Tensor input = drawn({dtype, {3, steps, classes}}, 1, -4, 0), dy = drawn({dtype, {3}}, 2);
      const Tensor target = drawn({DType::Int32, {3, labels}}, 3, 0, static_cast<double>(classes));
      // Of the first row all counts, and the last is like to have no room.
      const Tensor lengths = Tensor::of<int64_t>({3}, {steps, 2 * steps / 3, steps / 8});
      const Tensor counts = Tensor::of<int64_t>({3}, {labels, labels / 3, labels});
      const Attrs attrs{{"blank", classes / 2}};
      const double tolerance = dtype == DType::BFloat16 ? 1.0 / 64 : 1e-6;
      const auto check = [&](const char* op, const std::vector<Tensor>& inputs) {
        beside.check(beside.trial(op, inputs, attrs), tolerance);
      };
      check("ctc_loss", {input, target, lengths, counts});
      check("ctc_loss_grad", {dy, input, target, lengths, counts});
      check("ctc_loss_and_grad", {input, target, lengths, counts, dy});
    }
  }
}
