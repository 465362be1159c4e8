// dense_softmax_cross_entropy on CUDA: a block has a few rows from end to end. Its warps sum the logits, which lie in
// shared memory; each then takes a row for the loss, whose gradient takes the logits' place; and all threads go back.
// Where there are few classes, as mostly, the weight is read once for both ways.
#include "kernels/bad_index.h"
#include "kernels/classifier.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"

namespace moonflow::cuda {
namespace {

using namespace classifier;

template <class T, class Loss>
struct Layer {
  const T *x, *weight, *bias, *y;
  const int8_t* mask;
  T scale;
  Loss loss;
  T *dlogits, *dx, *shown;  // dx and the logits where they are wanted
  int64_t rows, units, in;

  // What goes back through dropout and relu; y and mask are those of the element, where there are any.
  MOONFLOW_DEVICE T back(T sum, T own_y, int8_t own_mask) const {
    if (mask) sum = own_mask ? sum * scale : T(0);
    return y ? functor::ReluGrad()(sum, own_y) : sum;
  }
};

// Few units: the block has the weight in registers, each thread two columns of it. So all that a row needs is on its
// way before anything is summed, and what the weight costs is shared by the rows of a block. (For double there are no
// registers.)
template <class Loss>
struct FewClasses : Layer<float, Loss> {
  using Of = Layer<float, Loss>;
  using Of::x, Of::weight, Of::bias, Of::y, Of::mask, Of::loss, Of::dlogits, Of::dx, Of::shown, Of::rows, Of::units,
      Of::in, Of::back;
  static constexpr int kWarps = 8, kThreads = kWarps * kWarp, kUnits = 16;
  static constexpr int64_t kMostIn = 2 * kThreads;
  static constexpr int64_t kSharedBytes = (kWarps + 1) * kUnits * sizeof(float);

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    float *const parts = block.template shared<float>(), *const logits = parts + kWarps * kUnits;
    const int thread = block.thread(), warp = thread / kWarp, lane = thread % kWarp;
    const Team<Block, kWarp> team(block);
    const int64_t first = 2 * thread, rest = in - first;
    const bool even = in % 2 == 0 && rest > 0;
    Pack<float, 2> columns[kUnits];
    MOONFLOW_UNROLL
    for (int unit = 0; unit < kUnits; ++unit) {
      const bool there = unit < units;
      columns[unit] = pair(weight + unit * in + first, there ? rest : 0, even && there);
    }
    const float own_bias = bias && lane < units ? bias[lane] : 0.0f;
    for (int64_t row = block.index(); row < rows; row += block.count()) {
      const int64_t place = row * in + first;
      const Pack<float, 2> xs = pair(x + place, rest, even);
      Pack<float, 2> ys{};
      Pack<int8_t, 2> kept{};
      if (dx && y) ys = pair(y + place, rest, even);
      if (dx && mask) kept = pair(mask + place, rest, even);
      typename Loss::Own own{};
      if (warp == 0) own = loss.own(team, row);

      float sums[kUnits];
      MOONFLOW_UNROLL
      for (int unit = 0; unit < kUnits; ++unit)
        sums[unit] = xs.values[0] * columns[unit].values[0] + xs.values[1] * columns[unit].values[1];
      const float sum = scattered_sum(block, lane, sums);
      if (lane % 2 == 0) parts[warp * kUnits + lane / 2] = sum;
      block.sync();
      if (warp == 0) {
        if (lane < kUnits) {
          float logit = 0;
          for (int part = 0; part < kWarps; ++part) logit += parts[part * kUnits + lane];
          logits[lane] = lane < units ? logit + own_bias : 0.0f;
          if (shown && lane < units) shown[row * units + lane] = logits[lane];
        }
        loss(team, row, own, logits, logits, units);  // each thread reads what it has written
        if (lane < units) dlogits[row * units + lane] = logits[lane];
      }
      block.sync();
      if (!dx) continue;
      Pack<float, 2> gradient{};
      MOONFLOW_UNROLL
      for (int unit = 0; unit < kUnits; ++unit)
        for (int i = 0; i < 2; ++i) gradient.values[i] += logits[unit] * columns[unit].values[i];
      for (int i = 0; i < 2; ++i) gradient.values[i] = back(gradient.values[i], ys.values[i], kept.values[i]);
      write(gradient, dx + place, rest, even && is_aligned<float, 2>(dx));
    }
  }

 private:
  template <class N>
  MOONFLOW_DEVICE static Pack<N, 2> pair(const N* from, int64_t rest, bool even) {
    return read<N, 2>(from, rest, even && is_aligned<N, 2>(from));
  }

  // Thread 2 * i of the warp is given the sum of sums[i] over all: each exchange hands over half of what is left.
  template <class Block>
  MOONFLOW_DEVICE static float scattered_sum(const Block& block, int lane, float (&sums)[kUnits]) {
    MOONFLOW_UNROLL
    for (int half = kUnits / 2; half > 0; half /= 2) {
      const bool upper = (lane & 2 * half) != 0;
      MOONFLOW_UNROLL
      for (int i = 0; i < half; ++i) {
        const float given = upper ? sums[i] : sums[i + half];
        sums[i] = (upper ? sums[i + half] : sums[i]) + block.shuffle_xor(given, 2 * half);
      }
    }
    return sums[0] + block.shuffle_xor(sums[0], 1);
  }
};

// Several rows share what is read of the weight.
template <class T, class Loss, int kRows>
struct Classifier : Layer<T, Loss> {
  using Of = Layer<T, Loss>;
  using Of::x, Of::weight, Of::bias, Of::y, Of::mask, Of::loss, Of::dlogits, Of::dx, Of::shown, Of::rows, Of::units,
      Of::in, Of::back;
  static constexpr int kWarps = 8, kThreads = kWarps * kWarp;

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
    if (shown) {
      for (int64_t i = block.thread(); i < here * units; i += kThreads) shown[first * units + i] = logits[i];
      block.sync();
    }
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
        dx[place] = back(sums[row], y ? y[place] : T(0), mask ? mask[place] : int8_t{0});
      }
    }
  }
};

Launch prepare(KernelCall& call) {
  const Product sizes = dense_product(call.inputs[kX].shape, call.inputs[kWeight].shape);
  const DType labels = call.inputs[kLabels].dtype;
  const double seed = call.attrs.number("seed"), scale = 1 / (1 - call.attrs.number("rate"));
  const bool back = call.attrs.flag("back"), shown = call.attrs.flag("shown");
  if (!is_floating(labels))
    call.explain = [units = sizes.columns](int64_t row, int64_t label) { fail_label(row, label, units); };
  return visit_floating(call.inputs[kX].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& at) {
      const auto launch_with = [&](const auto& loss) {
        using Loss = std::decay_t<decltype(loss)>;
        const Layer<T, Loss> layer{at.input<T>(kX),
                                   at.input<T>(kWeight),
                                   at.input<T>(kBias),
                                   at.input<T>(kY),
                                   at.input<int8_t>(kMask),
                                   static_cast<T>(scale),
                                   loss,
                                   at.output<T>(1),
                                   back ? at.output<T>(2) : nullptr,
                                   shown ? at.output<T>(3) : nullptr,
                                   sizes.rows,
                                   sizes.columns,
                                   sizes.inner};
        if constexpr (std::is_same_v<T, float>) {
          using Few = FewClasses<Loss>;
          constexpr int64_t kMostBlocks = kProcessors * 3;  // that find a place on the card at once
          if (sizes.columns <= Few::kUnits && sizes.inner <= Few::kMostIn)
            return launch(at.stream, std::min(sizes.rows, kMostBlocks), Few{layer}, Few::kSharedBytes);
        }
        const auto launch_rows = [&](auto row_count) {
          constexpr int kRows = decltype(row_count)::value;
          launch(at.stream, (sizes.rows + kRows - 1) / kRows, Classifier<T, Loss, kRows>{layer},
                 kRows * sizes.columns * static_cast<int64_t>(sizeof(T)));
        };
        constexpr int64_t kFewRows = kProcessors * 8;  // up to here a block for each finds a place on the card at once
        constexpr int kShared = 8 / sizeof(T);  // rows of a block beyond; for more there are no registers
        if (sizes.rows <= kFewRows) return launch_rows(std::integral_constant<int, 1>());
        launch_rows(std::integral_constant<int, kShared>());
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
