// The losses on CUDA. Labels are checked as they are read: a bad one is noted, its row is left as it is, and the run
// ends with the error.
#include <cmath>

#include "kernels/bad_index.h"
#include "kernels/cuda/cross_entropy.h"
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

// ---- cross entropies over classes: a lane is a row -----------------------------------------------------------

template <class T>
struct SparseSoftmax {
  Indices labels;
  const T* logits;
  T *prob, *out;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t row, int64_t start, int64_t n, int64_t) const {
    const int64_t label = labels.checked(team.block, row);
    if (label < 0) return;
    const T* const x = logits + start;
    const T top = largest_of(team, x, n, 1);
    // prob may be the logits themselves, so the thread that writes at the label reads there first.
    const bool has_label = label % team.size() == team.thread();
    const T at_label = has_label ? x[label] - top : T(0);
    const double sum = sum_of_exponentials(team, x, n, 1, top);
    const T scale = static_cast<T>(1 / sum);
    for (int64_t i = team.thread(); i < n; i += team.size()) prob[start + i] = elementary::exp(x[i] - top) * scale;
    if (has_label) out[row] = static_cast<T>(std::log(sum) - at_label);
  }
};

template <class T>
struct SparseSoftmaxGrad {
  Indices labels;
  const T *dy, *prob;
  T* dlogits;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t row, int64_t start, int64_t n, int64_t) const {
    const int64_t label = labels.checked(team.block, row);
    if (label < 0) return;
    for (int64_t i = team.thread(); i < n; i += team.size())
      dlogits[start + i] = (i == label ? prob[start + i] - 1 : prob[start + i]) * dy[row];
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

// sum_i labels[i] * (lse - logits[i]) has no cancellation between large terms when the labels are a one.
template <class T>
struct SoftmaxCrossEntropy {
  const T *labels, *logits;
  T* out;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t row, int64_t start, int64_t n, int64_t) const {
    const T *const x = logits + start, *const label = labels + start;
    const T top = largest_of(team, x, n, 1);
    const double log_sum = std::log(sum_of_exponentials(team, x, n, 1, top));
    // A label of zero takes no part, also where the logit is minus infinity.
    const double loss =
        team.sum(n, [=](int64_t i) { return label[i] != 0 ? label[i] * (log_sum - (x[i] - top)) : 0.0; });
    if (team.thread() == 0) out[row] = static_cast<T>(loss);
  }
};

template <class T>
struct SoftmaxCrossEntropyGrad {
  const T *dy, *labels, *logits;
  T* dlogits;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t row, int64_t start, int64_t n, int64_t) const {
    const T *const x = logits + start, *const label = labels + start;
    const T top = largest_of(team, x, n, 1);
    const double mass = team.sum(n, [=](int64_t i) { return double{label[i]}; });
    const T scale = static_cast<T>(mass / sum_of_exponentials(team, x, n, 1, top));
    for (int64_t i = team.thread(); i < n; i += team.size())
      dlogits[start + i] = dy[row] * (elementary::exp(x[i] - top) * scale - label[i]);
  }
};

// A loss with its gradient; the gradient may lie where the logits are.
template <class T, class Row>
struct WithGradient {
  Row loss;
  const T* logits;
  T* dlogits;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t row, int64_t start, int64_t n, int64_t) const {
    loss(team, row, logits + start, dlogits + start, n);
  }
};

// ---- element by element --------------------------------------------------------------------------------------

template <class T>
struct SigmoidCrossEntropy {
  const T *labels, *logits;
  T* out;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    const T x = logits[i];
    out[i] = (x > 0 ? x : T(0)) - x * labels[i] + std::log1p(elementary::exp(-std::abs(x)));
  }
};

template <class T>
struct SigmoidCrossEntropyGrad {
  const T *dy, *labels, *logits;
  T* dlogits;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    dlogits[i] = dy[i] * (elementary::sigmoid(logits[i]) - labels[i]);
  }
};

template <class T>
struct SmoothL1 {
  const T *prediction, *label;
  T* out;
  T knee;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    const T distance = std::abs(prediction[i] - label[i]);
    out[i] = distance < knee ? distance * distance / (2 * knee) : distance - knee / 2;
  }
};

template <class T>
struct SmoothL1Grad {
  const T *dy, *prediction, *label;
  T* dprediction;
  T knee;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    const T difference = prediction[i] - label[i];
    dprediction[i] = dy[i] * (std::abs(difference) < knee ? difference / knee : T((difference > 0) - (difference < 0)));
  }
};

// ---- l2_normalize --------------------------------------------------------------------------------------------

template <class T>
struct L2Normalize {
  const T* x;
  T* out;
  T epsilon;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t, int64_t start, int64_t n, int64_t stride) const {
    const T* const from = x + start;
    const double squares = team.sum(n, [=](int64_t i) { return double{from[i * stride]} * from[i * stride]; });
    const T scale = static_cast<T>(1 / std::sqrt(squares < epsilon ? double{epsilon} : squares));
    for (int64_t i = team.thread(); i < n; i += team.size()) out[start + i * stride] = from[i * stride] * scale;
  }
};

// Where the norm is held at epsilon it is a constant, and only the scale is left of the gradient.
template <class T>
struct L2NormalizeGrad {
  const T *dy, *x;
  T* dx;
  T epsilon;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t, int64_t start, int64_t n, int64_t stride) const {
    const T *const from = x + start, *const gradient = dy + start;
    const double squares = team.sum(n, [=](int64_t i) { return double{from[i * stride]} * from[i * stride]; });
    const double dot = team.sum(n, [=](int64_t i) { return double{gradient[i * stride]} * from[i * stride]; });
    const double kept = squares < epsilon ? double{epsilon} : squares;
    const T scale = static_cast<T>(1 / std::sqrt(kept));
    const T along = squares > epsilon ? static_cast<T>(dot / kept) : T(0);
    for (int64_t i = team.thread(); i < n; i += team.size())
      dx[start + i * stride] = (gradient[i * stride] - from[i * stride] * along) * scale;
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

// The same with the number of elements.
template <class LaunchValues>
CudaKernel elementwise(LaunchValues launch_values) {
  return {{[=](KernelCall& call) {
    const int64_t count = call.outputs[0].count();
    return visit_floating(call.outputs[0].dtype, [&](auto zero) -> Launch {
      return [=](const LaunchCall& at) { launch_values(at, count, zero); };
    });
  }}};
}

template <template <class> class Loss>
Launch prepare_smooth_l1(KernelCall& call) {
  const int64_t count = call.outputs[0].count();
  const double beta = call.attrs.number("beta");
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& at) {
      if constexpr (std::is_same_v<Loss<T>, SmoothL1<T>>)
        for_each(at.stream, count, Loss<T>{at.input<T>(0), at.input<T>(1), at.output<T>(0), static_cast<T>(beta)});
      else
        for_each(at.stream, count,
                 Loss<T>{at.input<T>(0), at.input<T>(1), at.input<T>(2), at.output<T>(0), static_cast<T>(beta)});
    };
  });
}

// `x` is the input whose axis counts.
template <class LaunchLanes>
CudaKernel along_axis(int x, LaunchLanes launch_lanes) {
  return {{[=](KernelCall& call) {
    const Lanes lanes(call.inputs[x].shape, call.attrs.integer("axis"));
    const double epsilon = call.attrs.number("epsilon");
    return visit_floating(call.inputs[x].dtype, [&](auto zero) -> Launch {
      return [=](const LaunchCall& at) { launch_lanes(at, lanes, static_cast<decltype(zero)>(epsilon)); };
    });
  }}};
}

}  // namespace

void add_loss(Kernels& kernels) {
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
    for_each_lane(at.stream, rows, SoftmaxCrossEntropy<T>{at.input<T>(0), at.input<T>(1), at.output<T>(0)});
  });
  kernels["softmax_cross_entropy_grad"] = rowwise(2, [](const LaunchCall& at, const Lanes& rows, auto zero) {
    using T = decltype(zero);
    const SoftmaxCrossEntropyGrad<T> f{at.input<T>(0), at.input<T>(1), at.input<T>(2), at.output<T>(0)};
    for_each_lane(at.stream, rows, f);
  });
  kernels["sigmoid_cross_entropy_with_logits"] = elementwise([](const LaunchCall& at, int64_t count, auto zero) {
    using T = decltype(zero);
    for_each(at.stream, count, SigmoidCrossEntropy<T>{at.input<T>(0), at.input<T>(1), at.output<T>(0)});
  });
  kernels["sigmoid_cross_entropy_grad"] = elementwise([](const LaunchCall& at, int64_t count, auto zero) {
    using T = decltype(zero);
    const SigmoidCrossEntropyGrad<T> f{at.input<T>(0), at.input<T>(1), at.input<T>(2), at.output<T>(0)};
    for_each(at.stream, count, f);
  });
  kernels["smooth_l1_loss"] = {{prepare_smooth_l1<SmoothL1>}};
  kernels["smooth_l1_loss_grad"] = {{prepare_smooth_l1<SmoothL1Grad>}};
  kernels["l2_normalize"] = along_axis(0, [](const LaunchCall& at, const Lanes& lanes, auto epsilon) {
    using T = decltype(epsilon);
    for_each_lane(at.stream, lanes, L2Normalize<T>{at.input<T>(0), at.output<T>(0), epsilon});
  });
  kernels["l2_normalize_grad"] = along_axis(1, [](const LaunchCall& at, const Lanes& lanes, auto epsilon) {
    using T = decltype(epsilon);
    for_each_lane(at.stream, lanes, L2NormalizeGrad<T>{at.input<T>(0), at.input<T>(1), at.output<T>(0), epsilon});
  });
}

}  // namespace moonflow::cuda
