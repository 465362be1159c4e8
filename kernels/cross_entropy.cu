// Cross entropies over classes on CUDA. Labels are checked as they are read: a bad one is noted, its row is left as it
// is, and the run ends with the error.
#include "kernels/cuda/cross_entropy.h"

#include <cmath>

#include "kernels/bad_index.h"
#include "kernels/cuda/exponentials.h"
#include "kernels/cuda/indices.h"
#include "kernels/cuda/kernels.h"

namespace moonflow::cuda {
namespace {

// Below this a probability counts as this, so that its logarithm stays finite.
constexpr double kSmallestProbability = 1e-20;

template <class T>
MOONFLOW_DEVICE T at_least(T x, double least) {
  return x < static_cast<T>(least) ? static_cast<T>(least) : x;  // a NaN stays
}

// ---- a lane is a row -----------------------------------------------------------------------------------------

template <class T>
struct SparseSoftmax {
  static constexpr bool kHolds = sizeof(T) == 4;
  Indices labels;
  const T* logits;
  T *prob, *out;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t row, int64_t start, int64_t n, int64_t) const {
    const auto x = team.values(logits + start, n, 1);
    const int64_t label = labels.checked(team.block, row);
    if (label < 0) return;
    const T top = largest_of<T>(x);
    // prob may be the logits themselves, so the thread that writes at the label reads there first.
    const bool has_label = x.has(label);
    const T at_label = has_label ? x.own(label) - top : T(0);
    const auto e = exponentials_of(x, top);
    const double sum = e.sum();
    const T scale = static_cast<T>(1 / sum);
    e.map([=](T value) { return value * scale; }).write(prob + start);
    if (has_label) out[row] = static_cast<T>(std::log(sum) - at_label);
  }
};

template <class T>
struct SparseSoftmaxGrad {
  static constexpr bool kHolds = sizeof(T) == 4;
  Indices labels;
  const T *dy, *prob;
  T* dlogits;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t row, int64_t start, int64_t n, int64_t) const {
    const auto probs = team.values(prob + start, n, 1);
    const int64_t label = labels.checked(team.block, row);
    if (label < 0) return;
    const T down = dy[row];
    probs.map([=](T value, bool is_label) { return (is_label ? value - 1 : value) * down; }, Chosen{label})
        .write(dlogits + start);
  }
};

template <class T>
struct SparseCrossEntropy {
  Indices labels;
  const T* prediction;
  T* out;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t row, int64_t start, int64_t, int64_t) const {
    const int64_t label = labels.checked(team.block, row);
    if (label >= 0) out[row] = -std::log(at_least(prediction[start + label], kSmallestProbability));
  }
};

template <class T>
struct SparseCrossEntropyGrad {
  static constexpr bool kHolds = false;
  Indices labels;
  const T *dy, *prediction;
  T* dprediction;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t row, int64_t start, int64_t n, int64_t) const {
    const int64_t label = labels.checked(team.block, row);
    if (label < 0) return;
    for (int64_t i = team.thread(); i < n; i += team.size())
      dprediction[start + i] = i == label ? -dy[row] / at_least(prediction[start + i], kSmallestProbability) : T(0);
  }
};

template <class T>
struct SoftmaxCrossEntropy {
  static constexpr bool kHolds = sizeof(T) == 4;
  const T *labels, *logits;
  T* out;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t row, int64_t start, int64_t n, int64_t) const {
    const auto x = team.values(logits + start, n, 1), label = team.values(labels + start, n, 1);
    const T top = largest_of<T>(x);
    const double below = label.sum(BelowTop<T>{top}, x), mass = label.sum();
    const double loss = mass * std::log(exponentials_of(x, top).sum()) + below;
    if (team.thread() == 0) out[row] = static_cast<T>(loss);
  }
};

template <class T>
struct SoftmaxCrossEntropyGrad {
  static constexpr bool kHolds = sizeof(T) == 4;
  const T *dy, *labels, *logits;
  T* dlogits;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t row, int64_t start, int64_t n, int64_t) const {
    const auto x = team.values(logits + start, n, 1), label = team.values(labels + start, n, 1);
    const auto e = exponentials_of(x, largest_of<T>(x));
    const T scale = static_cast<T>(label.sum() / e.sum()), down = dy[row];
    e.map([=](T value, T of) { return down * (value * scale - of); }, label).write(dlogits + start);
  }
};

// A loss with its gradient; the gradient may lie where the logits are.
template <class T, class Row>
struct WithGradient {
  static constexpr bool kHolds = sizeof(T) == 4;
  Row loss;
  const T* logits;
  T* dlogits;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t row, int64_t start, int64_t n, int64_t) const {
    loss(team, row, logits + start, dlogits + start, n);
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

// `launch_rows` gets the launch's arguments, labels and rows, and the floating type as a zero. `labels` and `values`
// are inputs.
template <class LaunchRows>
CudaKernel sparse(int labels, int values, LaunchRows launch_rows) {
  return {{[=](KernelCall& call) {
    const Lanes rows(call.inputs[values].shape, -1);
    const DType dtype = call.inputs[labels].dtype;
    call.explain = [classes = rows.n](int64_t row, int64_t label) { fail_label(row, label, classes); };
    return visit_floating(call.inputs[values].dtype, [&](auto zero) -> Launch {
      return [=](const LaunchCall& at) { launch_rows(at, Indices(at, labels, dtype, rows.n), rows, zero); };
    });
  }}};
}

// `prepare_row` gives for each launch what computes the loss of a row.
template <class PrepareRow>
CudaKernel with_gradient(PrepareRow prepare_row) {
  return {{[=](KernelCall& call) {
    const Lanes rows(call.inputs[1].shape, -1);
    const double seed = call.attrs.number("seed");
    return visit_floating(call.inputs[1].dtype, [&](auto zero) -> Launch {
      using T = decltype(zero);
      return [rows, seed = static_cast<T>(seed), row = prepare_row(call, rows, zero)](const LaunchCall& at) {
        const auto loss = row(at, RowGradient<T>{at.input<T>(2), seed});
        using Row = std::decay_t<decltype(loss)>;
        for_each_lane(at.stream, rows, WithGradient<T, Row>{loss, at.input<T>(1), at.output<T>(1)});
      };
    });
  }}};
}

// `launch_values` gets the launch's arguments, input `x` seen as rows, and the floating type as a zero.
template <class LaunchValues>
CudaKernel rowwise(int x, LaunchValues launch_values) {
  return {{[=](KernelCall& call) {
    const Lanes rows(call.inputs[x].shape, -1);
    return visit_floating(call.inputs[x].dtype, [&](auto zero) -> Launch {
      return [=](const LaunchCall& at) { launch_values(at, rows, zero); };
    });
  }}};
}

}  // namespace

void add_cross_entropy(Kernels& kernels) {
  kernels["sparse_softmax_cross_entropy_with_logits"] =
      sparse(0, 1, [](const LaunchCall& at, const Indices& labels, const Lanes& rows, auto zero) {
        using T = decltype(zero);
        for_each_lane(at.stream, rows, SparseSoftmax<T>{labels, at.input<T>(1), at.output<T>(0), at.output<T>(1)});
      });
  kernels["sparse_softmax_cross_entropy_grad"] =
      sparse(1, 2, [](const LaunchCall& at, const Indices& labels, const Lanes& rows, auto zero) {
        using T = decltype(zero);
        for_each_lane(at.stream, rows, SparseSoftmaxGrad<T>{labels, at.input<T>(0), at.input<T>(2), at.output<T>(0)});
      });
  kernels["sparse_softmax_cross_entropy_and_grad"] = with_gradient([](KernelCall& call, const Lanes& rows, auto zero) {
    using T = decltype(zero);
    const DType dtype = call.inputs[0].dtype;
    call.explain = [classes = rows.n](int64_t row, int64_t label) { fail_label(row, label, classes); };
    return [=](const LaunchCall& at, const RowGradient<T>& dy) {
      return SparseRowLoss<T>{Indices(at, 0, dtype, rows.n), dy, at.output<T>(0)};
    };
  });
  kernels["softmax_cross_entropy_and_grad"] = with_gradient([](KernelCall&, const Lanes& rows, auto zero) {
    using T = decltype(zero);
    return [rows](const LaunchCall& at, const RowGradient<T>& dy) {
      return DenseRowLoss<T>{at.input<T>(0), rows.n, dy, at.output<T>(0)};
    };
  });
  kernels["sparse_cross_entropy"] =
      sparse(0, 1, [](const LaunchCall& at, const Indices& labels, const Lanes& rows, auto zero) {
        using T = decltype(zero);
        for_each_lane<1>(at.stream, rows, SparseCrossEntropy<T>{labels, at.input<T>(1), at.output<T>(0)});
      });
  kernels["sparse_cross_entropy_grad"] =
      sparse(1, 2, [](const LaunchCall& at, const Indices& labels, const Lanes& rows, auto zero) {
        using T = decltype(zero);
        const SparseCrossEntropyGrad<T> f{labels, at.input<T>(0), at.input<T>(2), at.output<T>(0)};
        for_each_lane(at.stream, rows, f);
      });
  kernels["softmax_cross_entropy_with_logits"] = rowwise(1, [](const LaunchCall& at, const Lanes& rows, auto zero) {
    using T = decltype(zero);
    const SoftmaxCrossEntropy<T> f{at.input<T>(0), at.input<T>(1), at.output<T>(0)};
    // A row of float64 takes more registers than one thread of a full processor has.
    if constexpr (SoftmaxCrossEntropy<T>::kHolds)
      for_each_lane(at.stream, rows, f);
    else
      for_each_lane<kWarp>(at.stream, rows, f);
  });
  kernels["softmax_cross_entropy_grad"] = rowwise(2, [](const LaunchCall& at, const Lanes& rows, auto zero) {
    using T = decltype(zero);
    const SoftmaxCrossEntropyGrad<T> f{at.input<T>(0), at.input<T>(1), at.input<T>(2), at.output<T>(0)};
    for_each_lane(at.stream, rows, f);
  });
}

}  // namespace moonflow::cuda
