// dense_sparse_cross_entropy: the last layer of a classifier, its loss, and the way back through both, for few classes.
// A row of it is little work that needs nothing of other rows, so a training step does all of that in one go over the
// rows instead of in five steps that are each too short for a second thread.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/plan.h"
#include "kernels/bad_index.h"
#include "kernels/catalog.h"
#include "kernels/cpu.h"
#include "kernels/dense_loss.h"
#include "kernels/dots.h"
#include "kernels/matmul.h"
#include "kernels/product.h"
#include "kernels/softmax_row.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

// Beyond these the products pay for packing.
constexpr int64_t kMostClasses = 32;

std::vector<TensorType> infer_loss(const OpCall& call) {
  const DType dtype = call.dtype(2);
  require_floating(call, 2, "x");
  const Product sizes = dense_product(call.shape(2), call.shape(3));
  require(!is_floating(call.dtype(1)), ErrorCode::DtypeMismatch, "labels must be integers (int32 or int64), got ",
          call.dtype(1));
  require(call.shape(1) == Shape{sizes.rows} || call.shape(1) == Shape{sizes.rows, 1}, ErrorCode::ShapeMismatch,
          "labels is ", call.shape(1), ", x is ", call.shape(2), ", so labels should be ", Shape{sizes.rows});
  require_type(call, 0, "dy", {dtype, call.shape(1)});
  require(call.dtype(3) == dtype, ErrorCode::DtypeMismatch, "x is ", dtype, ", weight is ", call.dtype(3));
  if (call.has(4)) require_type(call, 4, "bias", {dtype, {sizes.columns}});
  require(sizes.columns > 0 && sizes.columns <= kMostClasses, ErrorCode::ShapeMismatch, "weight is ", call.shape(3),
          ", of which the first axis must be 1 to ", kMostClasses);
  return {{dtype, call.shape(1)}, {dtype, {sizes.rows, sizes.columns}}, call.type(2)};
}

template <class T>
struct Rows {
  int64_t count, classes, inner;
  const T *dy, *x, *weight, *bias;
  const int64_t* labels;
  bool relu;
  T *out, *dlogits, *dx;
};

// From the logits of a row, which has room for kMostClasses, to the loss and its gradient.
template <class T>
inline void end_row(const Rows<T>& work, int64_t row, T* logits) {
  const int64_t label = work.labels[row], classes = work.classes;
  if (work.bias)
    for (int64_t j = 0; j < classes; ++j) logits[j] += work.bias[j];
  // Whole registers, of which what is beyond the classes counts nothing.
  const int64_t filled = (classes + 15) / 16 * 16;
  for (int64_t j = classes; j < filled; ++j) logits[j] = -std::numeric_limits<T>::infinity();
  const T top = cpu::largest(logits, filled), at_label = logits[label] - top;
  const double sum = cpu::exponentials(logits, filled, top, logits);
  const T scale = static_cast<T>(1 / sum), dy = work.dy[row];
  work.out[row] = static_cast<T>(std::log(sum) - at_label);
  T* dlogits = work.dlogits + row * classes;
  for (int64_t j = 0; j < classes; ++j) dlogits[j] = logits[j] * scale * dy;
  dlogits[label] = (logits[label] * scale - 1) * dy;
}

// ---- float32: rows in tiles ------------------------------------------------------------------------------------

// Ends a sum in dx, where x is positive or without relu.
struct Gate {
  static constexpr bool kBeginsFromThere = false;
  const float *x, *dx;
  template <class R>
  void end(const typename R::Vector& sum, float* to) const {
    const typename R::Vector at = R::at(x + (to - dx));
    R::at(to) = at > 0 ? sum : typename R::Vector{};
  }
};

// The logits of kRows rows from `row` on, kMostClasses apart.
template <class R, int kRows>
inline void multiply_forward(const Rows<float>& work, int64_t row, float* logits) {
  constexpr int kColumns = 5;
  const float* x = work.x + row * work.inner;
  int64_t j = 0;
  for (; j + kColumns <= work.classes; j += kColumns) {
    float tile[kRows * kColumns];
    cpu::dots<R, kRows, kColumns, 1>(work.inner, x, work.inner, work.weight + j * work.inner, work.inner, tile);
    for (int i = 0; i < kRows; ++i)
      for (int c = 0; c < kColumns; ++c) logits[i * kMostClasses + j + c] = tile[i * kColumns + c];
  }
  for (; j < work.classes; ++j) {
    float tile[kRows];
    cpu::dots<R, kRows, 1, 1>(work.inner, x, work.inner, work.weight + j * work.inner, work.inner, tile);
    for (int i = 0; i < kRows; ++i) logits[i * kMostClasses + j] = tile[i];
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
  if (work.relu) {
    multiply(Gate{work.x, work.dx});
  } else {
    multiply(cpu::Replace());
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = whole; k < work.inner; ++k) {
      const int64_t place = at + i * work.inner + k;
      float sum = 0;
      for (int64_t j = 0; j < work.classes; ++j) sum += dlogits[i * work.classes + j] * work.weight[j * work.inner + k];
      work.dx[place] = work.relu && !(work.x[place] > 0) ? 0 : sum;
    }
  }
}

// A tile at a time: its rows of x are read twice, and its gradients are written while they are near.
template <class R>
inline void descend_rows(const Rows<float>& work, int64_t first, int64_t last) {
  constexpr int kRows = R::kCount == 32 ? 4 : 2, kTile = cpu::kTileRows<R>;
  alignas(64) float logits[kTile * kMostClasses];
  for (int64_t row = first; row < last; row += kTile) {
    const int64_t rows = std::min<int64_t>(kTile, last - row);
    int64_t i = 0;
    for (; i + kRows <= rows; i += kRows) multiply_forward<R, kRows>(work, row + i, logits + i * kMostClasses);
    for (; i < rows; ++i) multiply_forward<R, 1>(work, row + i, logits + i * kMostClasses);
    for (i = 0; i < rows; ++i) end_row(work, row + i, logits + i * kMostClasses);
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
      work.dx[row * work.inner + k] = work.relu && !(x[k] > 0) ? 0 : sum;
    }
  }
}

Launch prepare_loss(KernelCall& call) {
  const Product sizes = dense_product(call.inputs[2].shape, call.inputs[3].shape);
  const bool relu = call.attrs.flag("relu"), bias = call.has(4);
  const DType label = call.inputs[1].dtype;
  call.scratch_bytes = checked_product(sizes.rows, sizeof(int64_t));
  return visit_floating(call.inputs[2].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      int64_t* labels = static_cast<int64_t*>(launch.scratch);
      visit(label, [&](auto kind) {
        const auto* given = launch.input<decltype(kind)>(1);
        for (int64_t row = 0; row < sizes.rows; ++row) {
          labels[row] = static_cast<int64_t>(given[row]);
          if (labels[row] < 0 || labels[row] >= sizes.columns) fail_label(row, labels[row], sizes.columns);
        }
      });
      run(Rows<T>{sizes.rows, sizes.columns, sizes.inner, launch.input<T>(0), launch.input<T>(2), launch.input<T>(3),
                  bias ? launch.input<T>(4) : nullptr, labels, relu, launch.output<T>(0), launch.output<T>(1),
                  launch.output<T>(2)});
    };
  });
}

double loss_flops(const KernelCall& call) {
  return 2 * flops_of(dense_product(call.inputs[2].shape, call.inputs[3].shape));
}

// ---- fusion ----------------------------------------------------------------------------------------------------

// Whether a value follows from one of `values`; true as well where that takes long to find out.
bool follows_from(const Rewriter& graph, ValueId value, const std::vector<ValueId>& values) {
  constexpr size_t kMostNodes = 64;
  std::vector<ValueId> open{value};
  for (size_t i = 0; i < open.size(); ++i) {
    if (i == kMostNodes || std::count(values.begin(), values.end(), open[i]) > 0) return true;
    for (const ValueId input : graph.node(graph.maker(open[i])).inputs)
      if (input != kNone && std::count(open.begin(), open.end(), input) == 0) open.push_back(input);
  }
  return false;
}

}  // namespace

// dense, its loss, the loss' gradient, the product that takes it back to x, and perhaps relu's gradient there.
bool fuse_dense_loss(Rewriter& graph, NodeId dense_id) {
  const Node& dense = graph.node(dense_id);
  const ValueId x = dense.inputs[0], weight = dense.inputs[1], bias = dense.inputs[2], logits = dense.outputs[0];
  const DType dtype = graph.type(x).dtype;
  if (dense.attrs.string("activation") != "none" || !dense.attrs.string("mixed").empty()) return false;
  if ((dtype != DType::Float32 && dtype != DType::Float64) || graph.type(weight).dtype != dtype) return false;
  const int64_t classes = graph.type(weight).shape[0];
  if (classes == 0 || classes > kMostClasses) return false;

  const NodeId loss_id = graph.sole_reader(logits);
  if (loss_id == kNone || graph.node(loss_id).op->name != "sparse_softmax_cross_entropy_with_logits") return false;
  const Node& loss = graph.node(loss_id);
  const ValueId labels = loss.inputs[0], prob = loss.outputs[0], out = loss.outputs[1];
  const NodeId grad_id = graph.sole_reader(prob);
  if (grad_id == kNone || graph.node(grad_id).op->name != "sparse_softmax_cross_entropy_grad") return false;
  const Node& grad = graph.node(grad_id);
  const ValueId dy = grad.inputs[0], dlogits = grad.outputs[0];
  if (grad.inputs[1] != labels || follows_from(graph, dy, {logits, prob, out})) return false;

  NodeId product_id = kNone;
  for (const NodeId reader : graph.readers(dlogits)) {
    const Node& product = graph.node(reader);
    if (product.op->name == "matmul" && product.inputs[0] == dlogits && product.inputs[1] == weight &&
        !product.attrs.flag("transpose_a") && !product.attrs.flag("transpose_b") &&
        product.attrs.string("mixed").empty()) {
      product_id = reader;
    }
  }
  if (product_id == kNone) return false;
  ValueId dx = graph.node(product_id).outputs[0];

  std::vector<NodeId> nodes{dense_id, loss_id, grad_id, product_id};
  const NodeId relu_id = graph.sole_reader(dx);
  const bool relu = relu_id != kNone && graph.node(relu_id).op->name == "relu_grad" &&
                    graph.node(relu_id).inputs[0] == dx && graph.node(relu_id).inputs[1] == x;
  if (relu) {
    nodes.push_back(relu_id);
    dx = graph.node(relu_id).outputs[0];
  }
  graph.fuse(nodes, "dense_sparse_cross_entropy", {dy, labels, x, weight, bias}, {{"relu", relu}}, {out, dlogits, dx});
  return true;
}

void add_dense_loss(Catalog& catalog) {
  OpDef op;
  op.name = "dense_sparse_cross_entropy";
  op.doc =
      "The last layer of a classifier, its loss, and the gradients of both. Made by fusion.\n"
      "  logits = x weight^T + bias;  prob = softmax(logits)\n"
      "  out[i] = log(sum_j exp(logits[i, j])) - logits[i, labels[i]]\n"
      "  dlogits[i, j] = (prob[i, j] - (j == labels[i])) * dy[i];  dx = dlogits weight\n"
      "shapes: dy and labels (rows) or (rows, 1), x (rows, in), weight (classes, in) with at most 32 classes, bias\n"
      "  (classes) -> out as labels, dlogits (rows, classes), dx as x\n"
      "dtypes: labels of an integer dtype; float32 or float64, all others alike\n"
      "errors: labels and x differ in rows; a label outside [0, classes) names its row, nothing is written";
  op.inputs = {{"dy"}, {"labels"}, {"x"}, {"weight"}, {"bias", InputDef::Optional}};
  op.outputs = {"out", "dlogits", "dx"};
  op.attrs = {{"relu", false, "x is what relu gave, and dx goes on through it: 0 where x is not positive"}};
  op.infer = infer_loss;
  op.cpu = {prepare_loss};
  op.flops = loss_flops;
  op.examples = {
      {{f32({3}), i32({3}), f32({3, 5}), f32({4, 5}), f32({4})}},
      {{f32({27, 1}), i32({27, 1}), f32({27, 83}), f32({32, 83})}, {{"relu", true}}, -1, 1, 32},
      {{f32({60}), i32({60}), f32({60, 512}), f32({10, 512}), f32({10})}, {{"relu", true}}, -0.3, 0.3, 10},
  };
  catalog.add(std::move(op));
}

}  // namespace moonflow
