// Reductions on CUDA: what reduction.h says is folded, by the loop of kernels/cuda/fold.h. What is narrow is computed
// in float32.
#include <algorithm>

#include "kernels/cuda/elements.h"
#include "kernels/cuda/fold.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/layout.h"

namespace moonflow::cuda {
namespace {

using reduce::Groups;

// ---- reductions along axes -----------------------------------------------------------------------------------

template <class Op, class T, class Out>
struct Reduction {
  using Acc = typename Op::Acc;
  static constexpr bool kCentered = !std::is_same_v<typename Op::Center, reduce::NoCenter>;
  const T* x;
  const double* centers;  // of each output, where the op has some
  Out* out;
  int64_t count;

  MOONFLOW_DEVICE Acc start() const { return Op::kStart; }
  MOONFLOW_DEVICE double own(int64_t k) const {
    if constexpr (kCentered) return centers[k];
    return 0;
  }
  MOONFLOW_DEVICE Acc fold(Acc acc, double center, int64_t, int64_t at) const {
    return Op::fold(acc, Computed<T>(x[at]), center);
  }
  MOONFLOW_DEVICE Acc merge(Acc a, Acc b) const { return Op::merge(a, b); }
  MOONFLOW_DEVICE void finish(int64_t k, Acc acc) const { out[k] = static_cast<Out>(Op::finish(acc, count, own(k))); }
};

// The product of what is not zero, and how many zeros there are.
struct Product {
  double product;
  int64_t zeros;
};

template <class T>
struct ProductAndZeros {
  using Acc = Product;
  const T* x;
  Product* out;

  MOONFLOW_DEVICE Product start() const { return {1, 0}; }
  MOONFLOW_DEVICE int own(int64_t) const { return 0; }
  MOONFLOW_DEVICE Product fold(Product acc, int, int64_t, int64_t at) const {
    return x[at] == 0 ? Product{acc.product, acc.zeros + 1} : Product{acc.product * x[at], acc.zeros};
  }
  MOONFLOW_DEVICE Product merge(Product a, Product b) const { return {a.product * b.product, a.zeros + b.zeros}; }
  MOONFLOW_DEVICE void finish(int64_t k, Product acc) const { out[k] = acc; }
};

// dx = dy * (product of the others), which is 0 where another one is.
template <class T>
struct ProductGrad {
  const T *dy, *x;
  const Product* products;
  T* dx;
  FoldShape shape;

  MOONFLOW_DEVICE void operator()(int64_t e) const {
    int64_t k;
    const int64_t at = shape.element(e, k);
    const Product of = products[k];
    const bool is_zero = x[at] == 0, other_zero = of.zeros > (is_zero ? 1 : 0);
    dx[at] = static_cast<T>(other_zero ? 0 : is_zero ? dy[k] * of.product : dy[k] * (of.product / x[at]));
  }
};

// ---- argmax, argmin ------------------------------------------------------------------------------------------

template <class T>
struct Found {
  T value;
  int64_t place;  // -1: none yet
};

// The first of equals, and the first NaN where there is one.
template <class T, bool kLargest>
struct Arg {
  using Acc = Found<Computed<T>>;
  const T* x;
  int64_t* out;

  MOONFLOW_DEVICE Acc start() const { return {0, -1}; }
  MOONFLOW_DEVICE int own(int64_t) const { return 0; }
  MOONFLOW_DEVICE Acc fold(Acc acc, int, int64_t i, int64_t at) const { return merge(acc, {Computed<T>(x[at]), i}); }
  MOONFLOW_DEVICE Acc merge(Acc a, Acc b) const {
    if (a.place < 0 || b.place < 0) return a.place < 0 ? b : a;
    const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
    const bool equal = a.value == b.value || (a_is_nan && b_is_nan);
    if (equal) return a.place < b.place ? a : b;
    if (a_is_nan || b_is_nan) return a_is_nan ? a : b;
    return (kLargest ? a.value > b.value : a.value < b.value) ? a : b;
  }
  MOONFLOW_DEVICE void finish(int64_t k, Acc acc) const { out[k] = acc.place; }
};

// ---- global_norm ---------------------------------------------------------------------------------------------

// Some of the values, as many as a launch can take along. Block b has one piece of one of them.
template <class T>
struct Pieces {
  static constexpr int kMost = 64;
  static constexpr int64_t kElements = 1 << 14;  // of a piece
  const T* x[kMost];
  int64_t counts[kMost], first_block[kMost + 1];
};

template <class T>
struct SquaresOfPieces {
  static constexpr int kThreads = 256;
  Pieces<T> pieces;
  double* sums;  // one for each block

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    int v = 0;
    while (block.index() >= pieces.first_block[v + 1]) ++v;
    const int64_t first = (block.index() - pieces.first_block[v]) * Pieces<T>::kElements;
    const int64_t left = pieces.counts[v] - first, count = left < Pieces<T>::kElements ? left : Pieces<T>::kElements;
    const T* const x = pieces.x[v] + first;
    double sum = 0;
    MOONFLOW_UNROLL_BY(8)
    for (int64_t i = block.thread(); i < count; i += kThreads) sum += double{x[i]} * double{x[i]};
    sum = over_block(block, sum, Sum());
    if (block.thread() == 0) sums[block.index()] = sum;
  }
};

template <class T>
struct RootOfSum {
  static constexpr int kThreads = 1024;
  const double* sums;
  int64_t count;
  T* out;

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    double sum = 0;
    for (int64_t i = block.thread(); i < count; i += kThreads) sum += sums[i];
    sum = over_block(block, sum, Sum());
    if (block.thread() == 0) *out = static_cast<T>(std::sqrt(sum));
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

template <class Op, class T, class Out>
Launch launch_reduction(KernelCall& call, const Groups& groups) {
  using Folded = Reduction<Op, T, Out>;
  const FoldShape shape(groups);
  if constexpr (!Folded::kCentered) {
    call.scratch_bytes = shape.scratch_bytes<Folded>();
    return [shape](const LaunchCall& at) {
      fold(at.stream, shape, Folded{at.input<T>(0), nullptr, at.output<Out>(0), shape.count}, at.scratch);
    };
  } else {
    using Center = Reduction<typename Op::Center, T, double>;
    const int64_t center_bytes = aligned(shape.outputs * static_cast<int64_t>(sizeof(double)));
    call.scratch_bytes = center_bytes + std::max(shape.scratch_bytes<Folded>(), shape.scratch_bytes<Center>());
    return [shape, center_bytes](const LaunchCall& at) {
      double* const centers = static_cast<double*>(at.scratch);
      void* const parts = static_cast<char*>(at.scratch) + center_bytes;
      fold(at.stream, shape, Center{at.input<T>(0), nullptr, centers, shape.count}, parts);
      fold(at.stream, shape, Folded{at.input<T>(0), centers, at.output<Out>(0), shape.count}, parts);
    };
  }
}

// Of values that are stored as T.
template <template <class> class Op, class T>
Launch launch_reduction(KernelCall& call, const Groups& groups) {
  using Of = Op<Computed<T>>;
  using Result = decltype(Of::finish(Of::kStart, 1, 0));
  if constexpr (kNarrow<T> && std::is_same_v<Result, float>) {
    if (is_narrow(call.outputs[0].dtype)) return launch_reduction<Of, T, T>(call, groups);
  }
  return launch_reduction<Of, T, Result>(call, groups);
}

// The groups of the first input, as it lies in memory.
Groups groups_of(const KernelCall& call, const std::vector<bool>& reduced) {
  const Shape& shape = call.inputs[0].shape;
  if (!is_channels_last(call.input_layouts[0])) return Groups(shape, reduced);
  Shape lying{shape[0]};
  std::vector<bool> reduced_there{reduced[0]};
  for (int axis = 2; axis <= shape.rank(); ++axis) {
    const int from = axis < shape.rank() ? axis : 1;
    lying.push_back(shape[from]);
    reduced_there.push_back(reduced[from]);
  }
  return Groups(lying, reduced_there);
}

using ReducedAxes = std::vector<bool> (*)(const Attrs& attrs, const Shape& shape);

// An image may lie with its channels last where the results come in the order of rows all the same: where channels and
// places are not both kept.
template <ReducedAxes axes_of>
void reduce_channels_last(LayoutCall& call) {
  const Shape& shape = call.input_types[0].shape;
  if (is_channels_last(call.inputs[0])) {
    const std::vector<bool> reduced = axes_of(call.attrs, shape);
    bool keeps_places = false;
    for (int axis = 2; axis < shape.rank(); ++axis) keeps_places = keeps_places || (!reduced[axis] && shape[axis] > 1);
    if (!keeps_places || reduced[1] || shape[1] == 1) return;
  }
  call.inputs[0] = {};
}

std::vector<bool> arg_axis(const Attrs& attrs, const Shape& shape) {
  std::vector<bool> reduced(shape.rank());
  reduced[wrap_axis(attrs.integer("axis"), shape.rank())] = true;
  return reduced;
}
std::vector<bool> repeated_axes(const Attrs& attrs, const Shape& shape) {
  return reduce::broadcast_axes(shape, attrs.ints("shape"));
}

template <template <class> class Op, ReducedAxes axes_of = reduce::reduced_axes>
CudaKernel of_any() {
  const auto prepare = [](KernelCall& call) {
    return visit_stored(call.inputs[0].dtype, [&](auto zero) {
      return launch_reduction<Op, decltype(zero)>(call, groups_of(call, axes_of(call.attrs, call.inputs[0].shape)));
    });
  };
  return {{prepare, reduce_channels_last<axes_of>}, true};
}

template <template <class> class Op>
CudaKernel of_floats() {
  constexpr ReducedAxes axes_of = reduce::reduced_axes;
  const auto prepare = [](KernelCall& call) {
    return visit_fractions(call.inputs[0].dtype, [&](auto zero) {
      return launch_reduction<Op, decltype(zero)>(call, groups_of(call, axes_of(call.attrs, call.inputs[0].shape)));
    });
  };
  return {{prepare, reduce_channels_last<axes_of>}, true};
}

template <template <class> class Op>
CudaKernel of_whole() {
  constexpr ReducedAxes axes_of = reduce::reduced_axes;
  const auto prepare = [](KernelCall& call) {
    return reduce::visit_whole(call.inputs[0].dtype, [&](auto zero) {
      return launch_reduction<Op, decltype(zero)>(call, groups_of(call, axes_of(call.attrs, call.inputs[0].shape)));
    });
  };
  return {{prepare, reduce_channels_last<axes_of>}, false};
}

Launch prepare_prod_grad(KernelCall& call) {
  const Shape& x = call.inputs[1].shape;
  const FoldShape shape{Groups(x, reduce::reduced_axes(call.attrs, x))};
  return visit_floating(call.inputs[1].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    const int64_t product_bytes = shape.outputs * static_cast<int64_t>(sizeof(Product));
    call.scratch_bytes = product_bytes + shape.scratch_bytes<ProductAndZeros<T>>();
    return [shape, product_bytes](const LaunchCall& at) {
      Product* const products = static_cast<Product*>(at.scratch);
      const T *dy = at.input<T>(0), *x = at.input<T>(1);
      fold(at.stream, shape, ProductAndZeros<T>{x, products}, static_cast<char*>(at.scratch) + product_bytes);
      for_each(at.stream, shape.outputs * shape.count, ProductGrad<T>{dy, x, products, at.output<T>(0), shape});
    };
  });
}

template <bool kLargest>
CudaKernel arg() {
  const auto prepare = [](KernelCall& call) {
    const FoldShape shape(groups_of(call, arg_axis(call.attrs, call.inputs[0].shape)));
    return visit_stored(call.inputs[0].dtype, [&](auto zero) -> Launch {
      using T = decltype(zero);
      call.scratch_bytes = shape.scratch_bytes<Arg<T, kLargest>>();
      return [shape](const LaunchCall& at) {
        fold(at.stream, shape, Arg<T, kLargest>{at.input<T>(0), at.output<int64_t>(0)}, at.scratch);
      };
    });
  };
  return {{prepare, reduce_channels_last<arg_axis>}, true};
}

Launch prepare_global_norm(KernelCall& call) {
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    // The pointers are filled in by each launch, all else is known now.
    std::vector<Pieces<T>> launches;
    int64_t blocks = 0;
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      const int slot = static_cast<int>(i % Pieces<T>::kMost);
      if (slot == 0) launches.push_back({});
      Pieces<T>& pieces = launches.back();
      const int64_t count = call.inputs[i].count(), own = (count + Pieces<T>::kElements - 1) / Pieces<T>::kElements;
      pieces.counts[slot] = count;
      for (int after = slot; after < Pieces<T>::kMost; ++after) pieces.first_block[after + 1] += own;
      blocks += own;
    }
    call.scratch_bytes = checked_product(blocks, sizeof(double));
    return [launches, blocks, inputs = call.inputs.size()](const LaunchCall& at) {
      double* const sums = static_cast<double*>(at.scratch);
      int64_t done = 0;
      for (size_t first = 0; first < inputs; first += Pieces<T>::kMost) {
        Pieces<T> pieces = launches[first / Pieces<T>::kMost];
        for (size_t i = first; i < std::min(inputs, first + Pieces<T>::kMost); ++i)
          pieces.x[i - first] = at.input<T>(static_cast<int>(i));
        const int64_t own = pieces.first_block[Pieces<T>::kMost];
        if (own > 0) launch(at.stream, own, SquaresOfPieces<T>{pieces, sums + done});
        done += own;
      }
      launch(at.stream, 1, RootOfSum<T>{sums, blocks, at.output<T>(0)});
    };
  });
}

}  // namespace

void add_reduce(Kernels& kernels) {
  kernels["reduce_sum"] = of_any<reduce::Sum>();
  kernels["reduce_mean"] = of_floats<reduce::Mean>();
  kernels["reduce_max"] = of_any<reduce::Max>();
  kernels["reduce_min"] = of_any<reduce::Min>();
  kernels["reduce_prod"] = of_any<reduce::Prod>();
  kernels["reduce_any"] = of_any<reduce::Any>();
  kernels["reduce_all"] = of_any<reduce::All>();
  kernels["reduce_variance"] = of_floats<reduce::Variance>();
  kernels["reduce_std"] = of_floats<reduce::Std>();
  kernels["reduce_logsumexp"] = of_floats<reduce::LogSumExp>();
  kernels["whole_sum"] = of_whole<reduce::WholeSum>();
  kernels["whole_prod"] = of_whole<reduce::WholeProd>();
  kernels["whole_mean"] = of_whole<reduce::WholeMean>();
  kernels["whole_variance"] = of_whole<reduce::WholeVariance>();
  kernels["whole_std"] = of_whole<reduce::WholeStd>();
  kernels["reduce_prod_grad"] = {{prepare_prod_grad}};
  kernels["argmax"] = arg<true>();
  kernels["argmin"] = arg<false>();
  kernels["sum_to_shape"] = of_any<reduce::Sum, repeated_axes>();
  kernels["global_norm"] = {{prepare_global_norm}};
}

}  // namespace moonflow::cuda
