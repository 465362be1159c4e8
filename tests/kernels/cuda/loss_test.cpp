// Softmax and the losses on the card: teams of one thread, of a warp and of a block, and values that are special.
#include <limits>

#include "shifted.h"

using namespace moonflow;
using namespace moonflow::oracle;

namespace {

// Few rows and many; rows that a warp holds, that a block holds, and longer ones, of whole packs and not.
const Shape kShapes[] = {{3, 5}, {4100, 3}, {9, 500}, {2, 1023}, {3, 2052}, {2, 3001}, {2, 9001}};
const float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TEST_CASE("softmax agrees with the CPU for lanes of every length, along every axis") {
  const BesideCpu beside;
  for (const Shape& shape : kShapes) {
    const Tensor x = drawn({DType::Float32, shape}, 1, -5, 5), dy = drawn({DType::Float32, shape}, 2);
    for (const int64_t axis : {0, 1}) {
      const Attrs attrs{{"axis", axis}};
      const Tensor y = beside.check("softmax", {x}, attrs).outputs[0];
      const Tensor log_y = beside.check("log_softmax", {x}, attrs).outputs[0];
      beside.check("softmax_grad", {dy, y}, attrs);
      beside.check("log_softmax_grad", {dy, log_y}, attrs);
      beside.check("l2_normalize", {x}, attrs);
      beside.check("l2_normalize_grad", {dy, x}, attrs);
    }
  }
}

TEST_CASE("softmax and its logarithm keep their digits on the card where logits are large") {
  const BesideCpu beside;
  for (const int64_t n : {10, 100, 3000, 9000})
    for (const char* op : {"softmax", "log_softmax"})
      beside.check(op, {drawn({DType::Float32, {3, n}}, 1, 29990, 30010)}, {{"axis", int64_t{1}}});
}

TEST_CASE("rows that are shorter than epsilon lets them be go back by their scale alone on the card") {
  const BesideCpu beside;
  for (const int64_t n : {5, 100}) {
    const Tensor x = drawn({DType::Float32, {3, n}}, 1, -1e-3, 1e-3), dy = drawn({DType::Float32, {3, n}}, 2);
    beside.check("l2_normalize", {x}, {{"axis", int64_t{1}}, {"epsilon", 1e-2}});
    beside.check("l2_normalize_grad", {dy, x}, {{"axis", int64_t{1}}, {"epsilon", 1e-2}});
  }
}

TEST_CASE("the cross entropies agree with the CPU for rows of every length") {
  const BesideCpu beside;
  for (const Shape& shape : kShapes) {
    const Shape rows{shape[0]};
    const Tensor logits = drawn({DType::Float32, shape}, 1, -9, 9), dy = drawn({DType::Float32, rows}, 2);
    const Tensor probabilities = drawn({DType::Float32, shape}, 3, 0, 1);
    for (const DType dtype : {DType::Int32, DType::Int64, DType::UInt8}) {
      if (dtype != DType::Int32 && shape[1] > 5) continue;
      const Tensor labels = drawn({dtype, rows}, 4, 0, static_cast<double>(shape[1]));
      const Tensor prob = beside.check("sparse_softmax_cross_entropy_with_logits", {labels, logits}).outputs[0];
      beside.check("sparse_softmax_cross_entropy_grad", {dy, labels, prob});
      beside.check("sparse_cross_entropy", {labels, probabilities});
      beside.check("sparse_cross_entropy_grad", {dy, labels, probabilities});
    }
    beside.check("softmax_cross_entropy_with_logits", {probabilities, logits});
    beside.check("softmax_cross_entropy_grad", {dy, probabilities, logits});
    beside.check("sigmoid_cross_entropy_with_logits", {probabilities, logits});
    beside.check("sigmoid_cross_entropy_grad", {logits, probabilities, logits});
    beside.check("smooth_l1_loss", {logits, probabilities}, {{"beta", 0.0}});
    beside.check("smooth_l1_loss_grad", {logits, logits, probabilities}, {{"beta", 3.0}});
  }
}

TEST_CASE("the losses of single elements agree with the CPU where they are infinite, or are none") {
  const BesideCpu beside;
  const Tensor special = Tensor::of<float>({10}, {kInfinity, kInfinity, kInfinity, -kInfinity, -kInfinity, -kInfinity,
                                                  kNan, 1, 3e38f, -1e-42f});
  const Tensor labels = Tensor::of<float>({10}, {1, 0, 0.5f, 0, 1, 0.5f, 0, kNan, 0.5f, 0.5f});
  const Tensor dy = Tensor::of<float>({10}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  beside.check("sigmoid_cross_entropy_with_logits", {labels, special});
  beside.check("sigmoid_cross_entropy_grad", {dy, labels, special});
  for (const double beta : {0.0, 0.5}) {
    beside.check("smooth_l1_loss", {special, labels}, {{"beta", beta}});
    beside.check("smooth_l1_loss_grad", {dy, special, labels}, {{"beta", beta}});
  }
}

TEST_CASE("rows that are held are the same at addresses of every kind") {
  const Bench bench;
  for (const int64_t n : {64, 1500}) {
    const TensorType rows{DType::Float32, {3, n}}, row{DType::Float32, {n}};
    bench.check("softmax", {rows}, {});
    bench.check("softmax_grad", {rows, rows}, {});
    bench.check("softmax_cross_entropy_grad", {{DType::Float32, {3}}, rows, rows}, {});
    bench.check("layer_norm_core", {rows, row, row}, {{"begin_norm_axis", int64_t{1}}});
  }
}

TEST_CASE("losses take infinities and NaN as the CPU does") {
  const BesideCpu beside;
  Tensor logits = drawn({DType::Float32, {5, 40}}, 5, -500, 500), one = Tensor::zeros({DType::Float32, {5, 40}});
  logits.data<float>()[40 + 7] = kNan;
  logits.data<float>()[80 + 7] = kInfinity;
  for (int i = 0; i < 40; ++i) logits.data<float>()[120 + i] = -kInfinity;
  logits.data<float>()[160 + 39] = -kInfinity;
  for (int row = 0; row < 5; ++row) one.data<float>()[row * 40 + 3] = 1;
  const Tensor labels = Tensor::of<int32_t>({5}, {3, 3, 3, 3, 39});
  beside.check("softmax", {logits}, {{"axis", int64_t{1}}});
  beside.check("sparse_softmax_cross_entropy_with_logits", {labels, logits});
  beside.check("softmax_cross_entropy_with_logits", {one, logits});
  beside.check("softmax_cross_entropy_grad", {drawn({DType::Float32, {5}}, 6), one, logits});
  beside.check("sigmoid_cross_entropy_with_logits", {one, logits});
  beside.check("sparse_cross_entropy", {labels, logits});
}

TEST_CASE("losses of no rows are nothing") {
  const BesideCpu beside;
  const Tensor labels = Tensor::allocate({DType::Int32, {0}}), logits = Tensor::allocate({DType::Float32, {0, 4}});
  beside.check("sparse_softmax_cross_entropy_with_logits", {labels, logits});
  beside.check("softmax", {Tensor::allocate({DType::Float32, {3, 0}})}, {{"axis", int64_t{1}}});
}
