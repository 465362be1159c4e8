// dense_softmax_cross_entropy on CUDA: a block has a few rows from end to end. Its warps sum the logits, which lie in
// shared memory; each then takes a row for the loss, whose gradient takes the logits' place; and all threads go back.
#include "kernels/bad_index.h"
#include "kernels/classifier.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/kernels.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"

namespace moonflow::cuda {
namespace {

using namespace classifier;

// Several rows share what is read of the weight.
template <class T, class Loss, int kRows>
struct Classifier {
  static constexpr int kWarps = 8, kThreads = kWarps * kWarp;
  const T *x, *weight, *bias, *y;
  const int8_t* mask;
  T scale;
  Loss loss;
  T *dlogits, *dx;  // the second where it is wanted
  int64_t rows, units, in;

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    T* const logits = block.template shared<T>();
    const int warp = block.thread() / kWarp, lane = block.thread() % kWarp;
    const int64_t first = block.index() * kRows, here = rows - first < kRows ? rows - first : kRows;
    for (int64_t unit = warp; unit < units; unit += kWarps) {
      const T* const of_unit = weight + unit * in;
      T sums[kRows] = {};
      for (int64_t k = lane; k < in; k += kWarp) {
        const T w = of_unit[k];
        MOONFLOW_UNROLL
        for (int row = 0; row < kRows; ++row) sums[row] += x[(first + (row < here ? row : 0)) * in + k] * w;
      }
      MOONFLOW_UNROLL
      for (int row = 0; row < kRows; ++row) {
        const T sum = over_warp(block, sums[row], Sum());
        if (lane == 0) logits[row * units + unit] = bias ? sum + bias[unit] : sum;
      }
    }
    block.sync();
    for (int64_t row = warp; row < here; row += kWarps)
      loss(Team<Block, kWarp>(block), first + row, logits + row * units, logits + row * units, units);
    block.sync();
    for (int64_t i = block.thread(); i < here * units; i += kThreads) dlogits[first * units + i] = logits[i];
    if (!dx) return;
    for (int64_t k = block.thread(); k < in; k += kThreads) {
      T sums[kRows] = {};
      for (int64_t unit = 0; unit < units; ++unit) {
        const T w = weight[unit * in + k];
        MOONFLOW_UNROLL
        for (int row = 0; row < kRows; ++row) sums[row] += logits[row * units + unit] * w;
      }
      MOONFLOW_UNROLL
      for (int row = 0; row < kRows; ++row) {
        if (row >= here) continue;
        const int64_t place = (first + row) * in + k;
        T sum = sums[row];
        if (mask) sum = mask[place] ? sum * scale : T(0);
        dx[place] = y ? functor::ReluGrad()(sum, y[place]) : sum;
      }
    }
  }
};

Launch prepare(KernelCall& call) {
  const Product sizes = dense_product(call.inputs[kX].shape, call.inputs[kWeight].shape);
  const DType labels = call.inputs[kLabels].dtype;
  const double seed = call.attrs.number("seed"), scale = 1 / (1 - call.attrs.number("rate"));
  const bool back = call.attrs.flag("back");
  if (!is_floating(labels))
    call.explain = [units = sizes.columns](int64_t row, int64_t label) { fail_label(row, label, units); };
  return visit_floating(call.inputs[kX].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& at) {
      const auto launch_rows = [&](auto row_count, const auto& loss) {
        constexpr int kRows = decltype(row_count)::value;
        using Kernel = Classifier<T, std::decay_t<decltype(loss)>, kRows>;
        const Kernel kernel{at.input<T>(kX), at.input<T>(kWeight),      at.input<T>(kBias), at.input<T>(kY),
                            at.input<int8_t>(kMask), static_cast<T>(scale), loss, at.output<T>(1),
                            back ? at.output<T>(2) : nullptr, sizes.rows, sizes.columns, sizes.inner};
        launch(at.stream, (sizes.rows + kRows - 1) / kRows, kernel,
               kRows * sizes.columns * static_cast<int64_t>(sizeof(T)));
      };
      const auto launch_with = [&](const auto& loss) {
        constexpr int64_t kFewRows = 132 * 8;   // up to here a block for each finds a place on the card at once
        constexpr int kShared = 8 / sizeof(T);  // rows of a block beyond; for more there are no registers
        if (sizes.rows <= kFewRows) return launch_rows(std::integral_constant<int, 1>(), loss);
        launch_rows(std::integral_constant<int, kShared>(), loss);
      };
      if (sizes.rows == 0) return;
      const RowGradient<T> dy{at.input<T>(kDy), static_cast<T>(seed)};
      if (is_floating(labels))
        return launch_with(DenseRowLoss<T>{at.input<T>(kLabels), sizes.columns, dy, at.output<T>(0)});
      launch_with(SparseRowLoss<T>{Indices(at, kLabels, labels, sizes.columns), dy, at.output<T>(0)});
    };
  });
}

}  // namespace

void add_classifier(Kernels& kernels) { kernels["dense_softmax_cross_entropy"] = {{prepare}}; }

}  // namespace moonflow::cuda
