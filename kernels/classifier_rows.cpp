// dense_softmax_cross_entropy on the CPU, for few classes. A row of it is little work that needs nothing of other rows,
// so a training step does all of that in one go over the rows instead of in five steps that are each too short for a
// second thread.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/bad_index.h"
#include "kernels/classifier.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/dots.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/softmax_row.h"
#include "kernels/matmul.h"
#include "kernels/types.h"

namespace moonflow {

using namespace classifier;

namespace {

// Beyond these the products pay for packing.
constexpr int64_t kMostClasses = 32;

template <class T>
struct Rows {
  int64_t count, classes, inner;
  const T *x, *weight, *bias, *y, *dy;  // all but the first two may be left out
  T seed;
  const int64_t* labels;
  T *out, *dlogits, *dx;
  T* logits;  // may be left out
};

template <class T>
inline void finish_logits(const Rows<T>& work, int64_t row, T* logits) {
  if (work.bias)
    for (int64_t j = 0; j < work.classes; ++j) logits[j] += work.bias[j];
  if (work.logits) std::copy_n(logits, work.classes, work.logits + row * work.classes);
}

// From the logits of a row, which has room for kMostClasses, to the loss and its gradient.
template <class T>
inline void end_row(const Rows<T>& work, int64_t row, T* logits) {
  const int64_t label = work.labels[row], classes = work.classes;
  finish_logits(work, row, logits);
  // Whole registers, of which what is beyond the classes counts nothing.
  const int64_t filled = (classes + 15) / 16 * 16;
  for (int64_t j = classes; j < filled; ++j) logits[j] = -std::numeric_limits<T>::infinity();
  const T top = cpu::largest(logits, filled), at_label = logits[label] - top;
  const double sum = cpu::exponentials(logits, filled, top, logits);
  const T scale = static_cast<T>(1 / sum), dy = work.dy ? work.dy[row] : work.seed;
  work.out[row] = static_cast<T>(std::log(sum) - at_label);
  T* dlogits = work.dlogits + row * classes;
  for (int64_t j = 0; j < classes; ++j) dlogits[j] = logits[j] * scale * dy;
  dlogits[label] = (logits[label] * scale - 1) * dy;
}

// ---- float32: rows in tiles ------------------------------------------------------------------------------------

// Ends a sum in dx behind a relu, whose result is y.
struct Gate {
  static constexpr bool kBeginsFromThere = false;
  const float *y, *dx;
  template <class R>
  void end(const typename R::Vector& sum, float* to) const {
    const typename R::Vector at = R::at(y + (to - dx));
    R::at(to) = at > 0 ? sum : typename R::Vector{};
  }
};

// The logits of kRows rows from `row` on, `apart` from each other.
template <class R, int kRows>
inline void multiply_forward(const Rows<float>& work, int64_t row, float* logits, int64_t apart) {
  constexpr int kColumns = 5;
  const float* x = work.x + row * work.inner;
  int64_t j = 0;
  for (; j + kColumns <= work.classes; j += kColumns) {
    float tile[kRows * kColumns];
    cpu::dots<R, kRows, kColumns, 1>(work.inner, x, work.inner, work.weight + j * work.inner, work.inner, tile);
    for (int i = 0; i < kRows; ++i)
      for (int c = 0; c < kColumns; ++c) logits[i * apart + j + c] = tile[i * kColumns + c];
  }
  for (; j < work.classes; ++j) {
    float tile[kRows];
    cpu::dots<R, kRows, 1, 1>(work.inner, x, work.inner, work.weight + j * work.inner, work.inner, tile);
    for (int i = 0; i < kRows; ++i) logits[i * apart + j] = tile[i];
  }
}

// dx of `rows` rows.
template <class R>
inline void multiply_back(const Rows<float>& work, int64_t row, int64_t rows) {
  const float* dlogits = work.dlogits + row * work.classes;
  const int64_t at = row * work.inner, whole = work.inner / 16 * 16;
  const auto multiply = [&](const auto& ending) {
    cpu::multiply_row<R>(rows, whole, work.classes, dlogits, work.classes, 1, work.weight, work.inner, work.dx + at,
                         work.inner, ending);
  };
  if (work.y) {
    multiply(Gate{work.y, work.dx});
  } else {
    multiply(cpu::Replace());
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = whole; k < work.inner; ++k) {
      const int64_t place = at + i * work.inner + k;
      float sum = 0;
      for (int64_t j = 0; j < work.classes; ++j) sum += dlogits[i * work.classes + j] * work.weight[j * work.inner + k];
      work.dx[place] = work.y && !(work.y[place] > 0) ? 0 : sum;
    }
  }
}

// From the logits of `rows` rows, one behind the other, to the losses and their gradients.
inline void end_short_rows(const Rows<float>& work, int64_t row, int64_t rows, float* logits) {
  for (int64_t i = 0; i < rows; ++i) finish_logits(work, row + i, logits + i * work.classes);
  const int64_t* labels = work.labels + row;
  cpu::ShortLosses losses(logits, labels, rows, work.classes);
  losses.gradients_into(labels, work.dy ? work.dy + row : nullptr, work.seed, rows, work.classes,
                        work.dlogits + row * work.classes);
  std::copy_n(losses.loss, rows, work.out + row);
}

// A tile at a time: its rows of x are read twice, and its gradients are written while they are near.
template <class R>
inline void descend_rows(const Rows<float>& work, int64_t first, int64_t last) {
  constexpr int kRows = R::kCount == 32 ? 4 : 2, kTile = cpu::kTileRows<R> / kRows * kRows;
  static_assert(kTile <= cpu::kTogether);
  alignas(64) float logits[kTile * kMostClasses];
  const bool are_short = work.classes < cpu::kShort;
  const int64_t apart = are_short ? work.classes : kMostClasses;
  for (int64_t row = first; row < last; row += kTile) {
    const int64_t rows = std::min<int64_t>(kTile, last - row);
    int64_t i = 0;
    for (; i + kRows <= rows; i += kRows) multiply_forward<R, kRows>(work, row + i, logits + i * apart, apart);
    for (; i < rows; ++i) multiply_forward<R, 1>(work, row + i, logits + i * apart, apart);
    if (are_short)
      end_short_rows(work, row, rows, logits);
    else
      for (i = 0; i < rows; ++i) end_row(work, row + i, logits + i * apart);
    multiply_back<R>(work, row, rows);
  }
}

void run(const Rows<float>& work) {
  constexpr double kGrainFlops = 1 << 19;
  const double flops = 4.0 * static_cast<double>(work.classes * work.inner);
  cpu::parallel_for(work.count, static_cast<int64_t>(kGrainFlops / (flops + 1)) + 1, [&](int64_t first, int64_t last) {
    cpu::widest_register([&](auto wide) { descend_rows<decltype(wide)>(work, first, last); });
  });
}

// ---- float64: plain loops --------------------------------------------------------------------------------------

void run(const Rows<double>& work) {
  for (int64_t row = 0; row < work.count; ++row) {
    const double* x = work.x + row * work.inner;
    double logits[kMostClasses] = {};
    for (int64_t j = 0; j < work.classes; ++j)
      for (int64_t k = 0; k < work.inner; ++k) logits[j] += x[k] * work.weight[j * work.inner + k];
    end_row(work, row, logits);
    for (int64_t k = 0; k < work.inner; ++k) {
      double sum = 0;
      for (int64_t j = 0; j < work.classes; ++j)
        sum += work.dlogits[row * work.classes + j] * work.weight[j * work.inner + k];
      const int64_t place = row * work.inner + k;
      work.dx[place] = work.y && !(work.y[place] > 0) ? 0 : sum;
    }
  }
}

}  // namespace

Launch prepare_classifier_rows(KernelCall& call) {
  const Product sizes = dense_product(call.inputs[kX].shape, call.inputs[kWeight].shape);
  const DType label = call.inputs[kLabels].dtype;
  if (is_floating(label) || call.has(kMask) || !call.attrs.flag("back")) return {};
  if (sizes.columns == 0 || sizes.columns > kMostClasses) return {};
  call.scratch_bytes = checked_product(sizes.rows, sizeof(int64_t));
  return visit_floating(call.inputs[kX].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [sizes, label, seed = static_cast<T>(call.attrs.number("seed")),
            shown = call.attrs.flag("shown")](const LaunchCall& at) {
      int64_t* labels = static_cast<int64_t*>(at.scratch);
      visit(label, [&](auto kind) {
        const auto* given = at.input<decltype(kind)>(kLabels);
        for (int64_t row = 0; row < sizes.rows; ++row) {
          labels[row] = static_cast<int64_t>(given[row]);
          if (labels[row] < 0 || labels[row] >= sizes.columns) fail_label(row, labels[row], sizes.columns);
        }
      });
      const auto input = [&](int i) { return at.input<T>(i); };
      run(Rows<T>{sizes.rows, sizes.columns, sizes.inner, input(kX), input(kWeight), input(kBias), input(kY),
                  input(kDy), seed, labels, at.output<T>(0), at.output<T>(1), at.output<T>(2),
                  shown ? at.output<T>(3) : nullptr});
    };
  });
}

// ---- fusion ----------------------------------------------------------------------------------------------------

// dense, its loss, the loss' gradient, the product that takes it back to x, and perhaps relu's gradient there.
bool fuse_classifier_rows(Rewriter& graph, NodeId dense_id) {
  if (graph.launches_cost()) return false;
  const Node& dense = graph.node(dense_id);
  const ValueId x = dense.inputs[0], weight = dense.inputs[1], bias = dense.inputs[2], logits = dense.outputs[0];
  const DType dtype = graph.type(x).dtype;
  if (dense.attrs.string("activation") != "none" || !dense.attrs.string("mixed").empty()) return false;
  if ((dtype != DType::Float32 && dtype != DType::Float64) || graph.type(weight).dtype != dtype) return false;
  const int64_t classes = graph.type(weight).shape[0];
  if (classes == 0 || classes > kMostClasses || graph.type(logits).shape.rank() != 2) return false;

  const NodeId loss_id = graph.sole_reader(logits);
  if (loss_id == kNone || graph.node(loss_id).op->name != "sparse_softmax_cross_entropy_with_logits") return false;
  const Node& loss = graph.node(loss_id);
  const ValueId labels = loss.inputs[0], prob = loss.outputs[0], out = loss.outputs[1];
  const NodeId grad_id = graph.sole_reader(prob);
  if (grad_id == kNone || graph.node(grad_id).op->name != "sparse_softmax_cross_entropy_grad") return false;
  const Node& grad = graph.node(grad_id);
  const ValueId dy = grad.inputs[0], dlogits = grad.outputs[0];
  if (grad.inputs[1] != labels || follows_from(graph, dy, dense_id)) return false;

  const NodeId product_id = product_back(graph, dlogits, weight);
  if (product_id == kNone) return false;
  ValueId dx = graph.node(product_id).outputs[0];

  std::vector<NodeId> nodes{loss_id, dense_id, grad_id, product_id};  // the first gives its name and line to errors
  const NodeId relu_id = graph.sole_reader(dx);
  const bool relu = relu_id != kNone && graph.node(relu_id).op->name == "relu_grad" &&
                    graph.node(relu_id).inputs[0] == dx && graph.node(relu_id).inputs[1] == x;
  if (relu) {
    nodes.push_back(relu_id);
    dx = graph.node(relu_id).outputs[0];
  }
  graph.fuse(nodes, "dense_softmax_cross_entropy", {x, weight, labels, bias, relu ? x : kNone, kNone, dy}, {},
             {out, dlogits, dx, graph.add_value({graph.type(logits).dtype, Shape{0}})});
  return true;
}

}  // namespace moonflow
