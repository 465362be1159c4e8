// Cross entropies over classes, by integer labels and by distributions, and what fuses them with their gradients.
// Labels are checked, all of them, before a kernel writes anything.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "engine/rewriter.h"
#include "kernels/bad_index.h"
#include "kernels/catalog.h"
#include "kernels/classifier.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/softmax_row.h"
#include "kernels/formula.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

// ---- meaning -------------------------------------------------------------------------------------------------

// Labels of pixels fit values that have their classes on axis 1, as PyTorch does.
void require_classes_last(const Shape& labels, const Shape& values, const char* values_name) {
  if (values.rank() < 3) return;
  Shape others = values;
  others.erase(1);
  if (labels != others) return;
  std::string perm = "0";
  for (int axis = 2; axis < values.rank(); ++axis) perm += ", " + std::to_string(axis);
  fail(ErrorCode::ShapeMismatch, "labels ", labels, " are for ", values_name, " with the ", values[1],
       " classes on the last axis, and in ", values, " they are on axis 1; flow.transpose(", values_name, ", { ", perm,
       ", 1 }) puts them there");
}

// Labels (rows...) or (rows..., 1) beside values (rows..., classes). The result has the shape of the labels.
std::vector<TensorType> infer_sparse(const OpCall& call, const char* values_name, bool with_prob) {
  const TensorType &labels = call.type(0), &values = call.type(1);
  require(!is_floating(labels.dtype) || labels.shape != values.shape, ErrorCode::DtypeMismatch, "labels is ", labels,
          " like ", values_name,
          "; it must be integers, one per row. Distributions are for "
          "flow.nn.softmax_cross_entropy_with_logits");
  require_labels(call, 0, "labels", 1, values_name);
  require_floating(call, 1, values_name);
  require(values.shape.rank() >= 1, ErrorCode::ShapeMismatch, values_name, " must have an axis of classes, got ",
          values.shape);
  Shape rows = values.shape;
  rows.erase(rows.rank() - 1);
  Shape column = rows;
  if (column.rank() < Shape::kMaxRank) column.push_back(1);
  if (labels.shape != rows && labels.shape != column) require_classes_last(labels.shape, values.shape, values_name);
  require(labels.shape == rows || labels.shape == column, ErrorCode::ShapeMismatch, "labels and ", values_name,
          " differ in rows: labels is ", labels.shape, ", ", values_name, " is ", values.shape,
          ", so labels should be ", rows);
  const TensorType out{values.dtype, labels.shape};
  return with_prob ? std::vector<TensorType>{values, out} : std::vector<TensorType>{out};
}

// (dy, labels, values) -> the type of values
Infer infer_sparse_grad(const char* values_name) {
  return [=](const OpCall& call) -> std::vector<TensorType> {
    const TensorType row = infer_sparse({{&call.type(1), &call.type(2)}, call.attrs}, values_name, false)[0];
    require_type(call, 0, "dy", row);
    return {call.type(2)};
  };
}

// Replaces a loss (labels, logits) and its gradient for the logits by one op. What the gradient of the loss is must be
// known without the loss; where it is one number for all rows, it goes along as that.
bool fuse_loss(Rewriter& graph, NodeId loss_id, ValueId loss, NodeId grad_id, const char* fused) {
  if (!graph.launches_cost()) return false;
  const std::vector<ValueId> inputs = graph.node(loss_id).inputs;
  const ValueId dy = graph.node(grad_id).inputs[0];
  const NodeId seed = graph.made_by(dy, "constant");
  if (seed == kNone && follows_from(graph, dy, loss_id)) return false;
  Attrs attrs;
  std::vector<NodeId> nodes{loss_id, grad_id};
  if (seed != kNone) attrs.set("seed", graph.node(seed).attrs.number("value"));
  if (seed != kNone && graph.sole_reader(dy) == grad_id) nodes.push_back(seed);
  graph.fuse(nodes, fused, {inputs[0], inputs[1], seed == kNone ? dy : kNone}, std::move(attrs),
             {loss, graph.node(grad_id).outputs[0]});
  return true;
}

constexpr const char *kSparseFused = "sparse_softmax_cross_entropy_and_grad",
                     *kDenseFused = "softmax_cross_entropy_and_grad";

bool fuse_sparse_softmax(Rewriter& graph, NodeId id) {
  const Node& loss = graph.node(id);
  const NodeId grad = graph.sole_reader(loss.outputs[0]);  // of prob
  if (grad == kNone || graph.node(grad).op->name != "sparse_softmax_cross_entropy_grad") return false;
  const std::vector<ValueId>& its = graph.node(grad).inputs;
  if (its[1] != loss.inputs[0] || its[2] != loss.outputs[0]) return false;
  return fuse_loss(graph, id, loss.outputs[1], grad, kSparseFused);
}

bool fuse_dense_softmax(Rewriter& graph, NodeId id) {
  const Node& loss = graph.node(id);
  for (const NodeId grad : graph.readers(loss.inputs[1])) {
    const Node& node = graph.node(grad);
    if (node.op->name != "softmax_cross_entropy_grad" || node.inputs[1] != loss.inputs[0] ||
        node.inputs[2] != loss.inputs[1])
      continue;
    return fuse_loss(graph, id, loss.outputs[0], grad, kDenseFused);
  }
  return false;
}

AttrDef seed_attr() { return {"seed", 1.0, "the gradient of every loss, where dy is left out"}; }

// ---- CPU -----------------------------------------------------------------------------------------------------

// The label check and the rows that need it. Labels of any integer dtype become int64 in the step's scratch.
struct LabelledRows {
  DType dtype;
  int64_t rows, classes;

  LabelledRows(KernelCall& call, int labels, int values)
      : dtype(call.inputs[labels].dtype), rows(call.inputs[labels].count()), classes(call.inputs[values].shape.back()) {
    call.scratch_bytes = checked_product(rows, sizeof(int64_t));
  }

  const int64_t* check(const void* labels, void* scratch) const {
    int64_t* checked = static_cast<int64_t*>(scratch);
    visit(dtype, [&](auto zero) {
      const auto* given = static_cast<const decltype(zero)*>(labels);
      for (int64_t row = 0; row < rows; ++row) {
        checked[row] = static_cast<int64_t>(given[row]);
        if (checked[row] < 0 || checked[row] >= classes) fail_label(row, checked[row], classes);
      }
    });
    return checked;
  }

  // `cost`: simple operations per value.
  int64_t grain(int64_t cost) const { return cpu::kGrain / cost / std::max<int64_t>(classes, 1) + 1; }
};

// Calls body(row) for every row, shared between the threads.
template <class Body>
void for_each_row(int64_t rows, int64_t grain, const Body& body) {
  cpu::parallel_for(rows, grain, [&](int64_t first, int64_t last) {
    cpu::widest([&] {
      for (int64_t row = first; row < last; ++row) body(row);
    });
  });
}

template <class T>
constexpr bool kHasShortRows = std::is_same_v<T, float>;

// The largest value, and sum(exp(x - largest)). NaN comes out as NaN.
template <class T>
struct LogSumExp {
  T top;
  double sum;

  LogSumExp(const T* x, int64_t n) : top(cpu::largest(x, n)), sum(cpu::sum_of_exponentials(x, n, top)) {}
};

Launch prepare_sparse_softmax(KernelCall& call) {
  const LabelledRows rows(call, 0, 1);
  return visit_floating(call.inputs[1].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [rows](const LaunchCall& launch) {
      const int64_t* labels = rows.check(launch.inputs[0], launch.scratch);
      const T* logits = launch.input<T>(1);
      T *prob = launch.output<T>(0), *out = launch.output<T>(1);
      if constexpr (kHasShortRows<T>) {
        if (cpu::are_short_rows(rows.rows, rows.classes)) {
          cpu::for_rows_together(rows.rows, rows.grain(8), [&](int64_t row, int64_t count) {
            cpu::ShortLosses losses(logits + row * rows.classes, labels + row, count, rows.classes);
            losses.rows.scale_into(losses.scale, count, rows.classes, prob + row * rows.classes);
            std::copy_n(losses.loss, count, out + row);
          });
          return;
        }
      }
      for_each_row(rows.rows, rows.grain(8), [&](int64_t row) {
        const T* x = logits + row * rows.classes;
        T* p = prob + row * rows.classes;  // may be x itself, so the label's logit is read first
        const T top = cpu::largest(x, rows.classes);
        const T at_label = x[labels[row]] - top;
        const double sum = cpu::exponentials(x, rows.classes, top, p);
        const T scale = static_cast<T>(1 / sum);
        for (int64_t i = 0; i < rows.classes; ++i) p[i] *= scale;
        out[row] = static_cast<T>(std::log(sum) - at_label);
      });
    };
  });
}

Launch prepare_sparse_softmax_grad(KernelCall& call) {
  const LabelledRows rows(call, 1, 2);
  return visit_floating(call.inputs[2].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [rows](const LaunchCall& launch) {
      const int64_t* labels = rows.check(launch.inputs[1], launch.scratch);
      const T *dy = launch.input<T>(0), *prob = launch.input<T>(2);
      T* dlogits = launch.output<T>(0);
      for_each_row(rows.rows, rows.grain(1), [&](int64_t row) {
        const T* p = prob + row * rows.classes;
        T* dx = dlogits + row * rows.classes;
        const T at_label = p[labels[row]] - 1;
        for (int64_t i = 0; i < rows.classes; ++i) dx[i] = p[i] * dy[row];
        dx[labels[row]] = at_label * dy[row];
      });
    };
  });
}

// A loss with its gradient: what prob and its gradient give, in one pass. The gradient may lie where the logits are.
Launch prepare_sparse_softmax_and_grad(KernelCall& call) {
  const LabelledRows rows(call, 0, 1);
  const double seed = call.attrs.number("seed");
  return visit_floating(call.inputs[1].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [rows, seed = static_cast<T>(seed)](const LaunchCall& launch) {
      const int64_t* labels = rows.check(launch.inputs[0], launch.scratch);
      const T *logits = launch.input<T>(1), *dy = launch.input<T>(2);
      T *out = launch.output<T>(0), *dlogits = launch.output<T>(1);
      if constexpr (kHasShortRows<T>) {
        if (cpu::are_short_rows(rows.rows, rows.classes)) {
          cpu::for_rows_together(rows.rows, rows.grain(8), [&](int64_t row, int64_t count) {
            cpu::ShortLosses losses(logits + row * rows.classes, labels + row, count, rows.classes);
            losses.gradients_into(labels + row, dy ? dy + row : nullptr, seed, count, rows.classes,
                                  dlogits + row * rows.classes);
            std::copy_n(losses.loss, count, out + row);
          });
          return;
        }
      }
      for_each_row(rows.rows, rows.grain(8), [&](int64_t row) {
        const T* x = logits + row * rows.classes;
        T* dx = dlogits + row * rows.classes;
        const T top = cpu::largest(x, rows.classes), at_label = x[labels[row]] - top, down = dy ? dy[row] : seed;
        const double sum = cpu::exponentials(x, rows.classes, top, dx);
        const T scale = static_cast<T>(1 / sum), prob = dx[labels[row]] * scale;
        for (int64_t i = 0; i < rows.classes; ++i) dx[i] = dx[i] * scale * down;
        dx[labels[row]] = (prob - 1) * down;
        out[row] = static_cast<T>(std::log(sum) - at_label);
      });
    };
  });
}

// Below this a probability counts as this, so that its logarithm stays finite.
constexpr double kSmallestProbability = 1e-20;

Launch prepare_sparse_cross_entropy(KernelCall& call) {
  const LabelledRows rows(call, 0, 1);
  return visit_floating(call.inputs[1].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [rows](const LaunchCall& launch) {
      const int64_t* labels = rows.check(launch.inputs[0], launch.scratch);
      const T* prediction = launch.input<T>(1);
      T* out = launch.output<T>(0);
      for (int64_t row = 0; row < rows.rows; ++row) {
        out[row] = -std::log(std::max(prediction[row * rows.classes + labels[row]], T(kSmallestProbability)));
      }
    };
  });
}

Launch prepare_sparse_cross_entropy_grad(KernelCall& call) {
  const LabelledRows rows(call, 1, 2);
  return visit_floating(call.inputs[2].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [rows](const LaunchCall& launch) {
      const int64_t* labels = rows.check(launch.inputs[1], launch.scratch);
      const T *dy = launch.input<T>(0), *prediction = launch.input<T>(2);
      T* dprediction = launch.output<T>(0);
      for_each_row(rows.rows, rows.grain(1), [&](int64_t row) {
        T* dx = dprediction + row * rows.classes;
        const T p = prediction[row * rows.classes + labels[row]];
        std::fill_n(dx, rows.classes, T(0));
        dx[labels[row]] = -dy[row] / std::max(p, T(kSmallestProbability));
      });
    };
  });
}

struct DenseRows {
  int64_t rows, classes;

  explicit DenseRows(const Shape& values) : rows(values.count(0, values.rank() - 1)), classes(values.back()) {}
  int64_t grain() const { return cpu::kGrain / 8 / std::max<int64_t>(classes, 1) + 1; }
};

// sum_i labels[i] * (lse - logits[i]) has no cancellation between large terms when the labels are a one.
Launch prepare_softmax_cross_entropy(KernelCall& call) {
  const DenseRows rows(call.inputs[1].shape);
  return visit_floating(call.inputs[1].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [rows](const LaunchCall& launch) {
      const T *labels = launch.input<T>(0), *logits = launch.input<T>(1);
      T* out = launch.output<T>(0);
      for_each_row(rows.rows, rows.grain(), [&](int64_t row) {
        const T *x = logits + row * rows.classes, *label = labels + row * rows.classes;
        const LogSumExp<T> lse(x, rows.classes);
        const double log_sum = std::log(lse.sum);
        double loss = 0;
        for (int64_t i = 0; i < rows.classes; ++i) {
          // A label of zero takes no part, also where the logit is minus infinity.
          if (label[i] != 0) loss += label[i] * (log_sum - (x[i] - lse.top));
        }
        out[row] = static_cast<T>(loss);
      });
    };
  });
}

Launch prepare_softmax_cross_entropy_grad(KernelCall& call) {
  const DenseRows rows(call.inputs[2].shape);
  return visit_floating(call.inputs[2].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [rows](const LaunchCall& launch) {
      const T *dy = launch.input<T>(0), *labels = launch.input<T>(1), *logits = launch.input<T>(2);
      T* dlogits = launch.output<T>(0);
      for_each_row(rows.rows, rows.grain(), [&](int64_t row) {
        const T *x = logits + row * rows.classes, *label = labels + row * rows.classes;
        T* dx = dlogits + row * rows.classes;
        const LogSumExp<T> lse(x, rows.classes);
        double mass = 0;
        for (int64_t i = 0; i < rows.classes; ++i) mass += label[i];
        const T scale = static_cast<T>(mass / lse.sum);
        for (int64_t i = 0; i < rows.classes; ++i)
          dx[i] = dy[row] * (elementary::exp(x[i] - lse.top) * scale - label[i]);
      });
    };
  });
}

Launch prepare_softmax_cross_entropy_and_grad(KernelCall& call) {
  const DenseRows rows(call.inputs[1].shape);
  const double seed = call.attrs.number("seed");
  return visit_floating(call.inputs[1].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [rows, seed = static_cast<T>(seed)](const LaunchCall& launch) {
      const T *labels = launch.input<T>(0), *logits = launch.input<T>(1), *dy = launch.input<T>(2);
      T *out = launch.output<T>(0), *dlogits = launch.output<T>(1);
      for_each_row(rows.rows, rows.grain(), [&](int64_t row) {
        const T *x = logits + row * rows.classes, *label = labels + row * rows.classes;
        T* dx = dlogits + row * rows.classes;
        const T down = dy ? dy[row] : seed;
        const LogSumExp<T> lse(x, rows.classes);
        const double log_sum = std::log(lse.sum);
        double loss = 0, mass = 0;
        for (int64_t i = 0; i < rows.classes; ++i) {
          if (label[i] != 0) loss += label[i] * (log_sum - (x[i] - lse.top));
          mass += label[i];
        }
        out[row] = static_cast<T>(loss);
        const T scale = static_cast<T>(mass / lse.sum);
        for (int64_t i = 0; i < rows.classes; ++i) dx[i] = down * (elementary::exp(x[i] - lse.top) * scale - label[i]);
      });
    };
  });
}

// ---- gradients of the gradients ------------------------------------------------------------------------------

// One value for each row, with an axis of one class.
Term column(Term value, const Term& rows) {
  Shape shape = rows.shape();
  shape[shape.rank() - 1] = 1;
  return value.reshaped(shape);
}

// 1 at the label of each row.
Term at_label(Term labels, const Term& rows) {
  Shape shape = rows.shape();
  const int64_t classes = shape.back();
  shape.erase(shape.rank() - 1);
  return labels.reshaped(shape).op("one_hot", {{"depth", classes}, {"dtype", rows.dtype()}});
}

std::vector<Term> sparse_softmax_grad_formula(GradCall&, const Terms& in) {
  const Term prob = *in[2];
  return {(prob - at_label(*in[1], prob)) * column(*in[0], prob)};
}

std::vector<Term> sparse_grad_formula(GradCall&, const Terms& in) {
  const Term prediction = *in[2], at_least = prediction.op("maximum", prediction.number(1e-20));
  return {-at_label(*in[1], prediction) * column(*in[0], prediction) / at_least};
}

std::vector<Term> dense_softmax_grad_formula(GradCall&, const Terms& in) {
  const Term labels = *in[1], logits = *in[2];
  return {column(*in[0], logits) * (logits.op("softmax") * sum(labels, {-1}) - labels)};
}

// ---- the ops -------------------------------------------------------------------------------------------------

void add_sparse_softmax(Catalog& catalog) {
  OpDef op;
  op.name = "sparse_softmax_cross_entropy_with_logits";
  op.lua = "nn.sparse_softmax_cross_entropy_with_logits";
  op.doc =
      "Cross entropy between integer labels and softmax(logits), one value per row.\n"
      "  out[i] = log(sum_j exp(logits[i, j])) - logits[i, labels[i]]\n"
      "  prob[i, j] = softmax(logits[i])[j], kept for the gradient\n"
      "shapes: labels (rows) or (rows, 1), logits (rows, classes); more leading axes are rows too -> out as labels\n"
      "dtypes: labels of an integer dtype; logits float32 or float64 -> the same, in nats\n"
      "errors: labels and logits differ in rows; a label outside [0, classes) names its row, nothing is written\n"
      "source: shifted by the row maximum as in Blanchard, Higham, Higham, IMA J. Numer. Anal. 2021";
  op.inputs = {{"labels"}, {"logits"}};
  op.outputs = {"prob", "out"};
  op.infer = [](const OpCall& call) { return infer_sparse(call, "logits", true); };
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    ValueId dlogits = kNone;
    if (g.grads[1] != kNone) {
      dlogits = g.op("sparse_softmax_cross_entropy_grad", {g.grads[1], g.inputs[0], g.outputs[0]});
    }
    if (g.grads[0] != kNone) {
      const ValueId through_prob = g.op("softmax_grad", {g.grads[0], g.outputs[0]});
      dlogits = dlogits == kNone ? through_prob : g.op("add", {dlogits, through_prob});
    }
    return {kNone, dlogits};
  };
  op.cpu = {prepare_sparse_softmax};
  op.rewrites = {{"sparse softmax cross entropy + its gradient", {kSparseFused}, fuse_sparse_softmax}};
  op.inplace = {{0, 1}};
  op.examples = {{{i32({4}), f32({4, 5})}, {}, -3, 3, 5}, {{i32({2, 1}), f32({2, 3})}, {}, -3, 3, 3}};
  catalog.add(op);

  OpDef grad;
  grad.name = "sparse_softmax_cross_entropy_grad";
  grad.doc =
      "Gradient of sparse_softmax_cross_entropy_with_logits.\n"
      "  dlogits[i, j] = (prob[i, j] - (j == labels[i])) * dy[i]\n"
      "shapes: dy as labels, prob (rows, classes) -> dlogits as prob";
  grad.inputs = {{"dy"}, {"labels"}, {"prob"}};
  grad.outputs = {"dlogits"};
  grad.infer = infer_sparse_grad("prob");
  grad.grad = gradient_of(sparse_softmax_grad_formula);
  grad.cpu = {prepare_sparse_softmax_grad};
  grad.inplace = {{0, 2}};
  grad.examples = {{{f32({4}), i32({4}), f32({4, 5})}, {}, 0, 1, 5}};
  catalog.add(grad);

  OpDef both;
  both.name = kSparseFused;
  both.doc =
      "sparse_softmax_cross_entropy_with_logits and its gradient for the logits. Made by fusion.\n"
      "  out[i] = log(sum_j exp(logits[i, j])) - logits[i, labels[i]]\n"
      "  dlogits[i, j] = (softmax(logits[i])[j] - (j == labels[i])) * dy[i], with seed for dy where that is left out\n"
      "shapes: labels (rows) or (rows, 1), logits (rows, classes), dy as labels -> out as labels, dlogits as logits\n"
      "errors: a label outside [0, classes) names its row";
  both.inputs = {{"labels"}, {"logits"}, {"dy", InputDef::Optional}};
  both.outputs = {"out", "dlogits"};
  both.attrs = {seed_attr()};
  both.infer = [](const OpCall& call) -> std::vector<TensorType> {
    const TensorType out = infer_sparse(call, "logits", false)[0];
    if (call.has(2)) require_type(call, 2, "dy", out);
    return {out, call.type(1)};
  };
  both.cpu = {prepare_sparse_softmax_and_grad};
  both.inplace = {{1, 1}};
  both.rewrites = {{"dense + softmax cross entropy", {"dense_softmax_cross_entropy"}, fuse_classifier}};
  both.examples = {{{i32({4}), f32({4, 5})}, {{"seed", 0.5}}, -3, 3, 5}, {{i32({1, 1}), f32({1, 1})}, {}, -3, 3, 1}};
  for (const int64_t rows : {1, 3, 100})
    for (const int64_t classes : {2, 10, 64})
      both.examples.push_back({{i32({rows}), f32({rows, classes}), f32({rows})}, {}, -3, 3, classes});
  catalog.add(both);
}

void add_sparse_cross_entropy(Catalog& catalog) {
  OpDef op;
  op.name = "sparse_cross_entropy";
  op.lua = "nn.sparse_cross_entropy";
  op.doc =
      "Cross entropy between integer labels and probabilities, one value per row.\n"
      "  out[i] = -log(max(prediction[i, labels[i]], 1e-20))\n"
      "shapes: labels (rows) or (rows, 1), prediction (rows, classes) -> out as labels\n"
      "dtypes: labels of an integer dtype; prediction float32 or float64 -> the same, in nats\n"
      "errors: labels and prediction differ in rows; a label outside [0, classes) names its row";
  op.inputs = {{"labels"}, {"prediction"}};
  op.infer = [](const OpCall& call) { return infer_sparse(call, "prediction", false); };
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    return {kNone, g.op("sparse_cross_entropy_grad", {g.grads[0], g.inputs[0], g.inputs[1]})};
  };
  op.cpu = {prepare_sparse_cross_entropy};
  op.examples = {{{i32({4}), f32({4, 5})}, {}, 0.2, 1, 5}};
  catalog.add(op);

  OpDef grad;
  grad.name = "sparse_cross_entropy_grad";
  grad.doc =
      "Gradient of sparse_cross_entropy.\n"
      "  dprediction[i, j] = -dy[i] / max(prediction[i, j], 1e-20) where j == labels[i], else 0\n"
      "shapes: dy as labels, prediction (rows, classes) -> dprediction as prediction";
  grad.inputs = {{"dy"}, {"labels"}, {"prediction"}};
  grad.outputs = {"dprediction"};
  grad.infer = infer_sparse_grad("prediction");
  grad.grad = gradient_of(sparse_grad_formula);
  grad.cpu = {prepare_sparse_cross_entropy_grad};
  grad.examples = {{{f32({4}), i32({4}), f32({4, 5})}, {}, 0.2, 1, 5}};
  catalog.add(grad);
}

void add_dense_softmax(Catalog& catalog) {
  OpDef op;
  op.name = "softmax_cross_entropy_with_logits";
  op.lua = "nn.softmax_cross_entropy_with_logits";
  op.doc =
      "Cross entropy between labels, given as one distribution per row, and softmax(logits).\n"
      "  out[i] = sum_j labels[i, j] * (log(sum_k exp(logits[i, k])) - logits[i, j])\n"
      "shapes: labels and logits (rows, classes), more leading axes are rows too -> out (rows)\n"
      "dtypes: float32 or float64, both the same -> the same, in nats\n"
      "errors: labels and logits differ in shape or dtype\n"
      "source: shifted by the row maximum as in Blanchard, Higham, Higham, IMA J. Numer. Anal. 2021";
  op.inputs = {{"labels"}, {"logits"}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    const TensorType &labels = call.type(0), &logits = call.type(1);
    require(!is_floating(labels.dtype) || is_floating(logits.dtype), ErrorCode::DtypeMismatch, "labels is ", labels,
            " and logits is ", logits, ", which looks swapped: labels come first");
    require_floating(call, 1, "logits");
    require(is_floating(labels.dtype), ErrorCode::DtypeMismatch, "labels is ", labels, ", logits is ", logits,
            "; it must be alike, a distribution per row. Integers are for "
            "flow.nn.sparse_softmax_cross_entropy_with_logits");
    require_same(call, 0, "labels", 1, "logits");
    require(call.shape(1).rank() >= 1, ErrorCode::ShapeMismatch, "logits must have an axis of classes, got ()");
    Shape rows = call.shape(1);
    rows.erase(rows.rank() - 1);
    return {{call.dtype(1), rows}};
  };
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    const ValueId dlogits = g.op("softmax_cross_entropy_grad", {g.grads[0], g.inputs[0], g.inputs[1]});
    const ValueId log_prob = g.op("log_softmax", {g.inputs[1]});
    const ValueId column = g.op("expand_dims", {g.op("negative", {g.grads[0]})}, {{"axis", int64_t{-1}}});
    return {g.op("multiply", {column, log_prob}), dlogits};
  };
  op.cpu = {prepare_softmax_cross_entropy};
  op.rewrites = {{"softmax cross entropy + its gradient", {kDenseFused}, fuse_dense_softmax}};
  op.examples = {{{f32({3, 4}), f32({3, 4})}}, {{f32({2, 2, 3}), f32({2, 2, 3})}}};
  catalog.add(op);

  OpDef grad;
  grad.name = "softmax_cross_entropy_grad";
  grad.doc =
      "Gradient of softmax_cross_entropy_with_logits for the logits.\n"
      "  dlogits[i, j] = dy[i] * (softmax(logits[i])[j] * sum_k labels[i, k] - labels[i, j])\n"
      "shapes: dy (rows), labels and logits (rows, classes) -> dlogits as logits";
  grad.inputs = {{"dy"}, {"labels"}, {"logits"}};
  grad.outputs = {"dlogits"};
  grad.infer = [forward = op.infer](const OpCall& call) -> std::vector<TensorType> {
    require_type(call, 0, "dy", forward({{&call.type(1), &call.type(2)}, call.attrs})[0]);
    return {call.type(2)};
  };
  grad.grad = gradient_of(dense_softmax_grad_formula);
  grad.cpu = {prepare_softmax_cross_entropy_grad};
  grad.examples = {{{f32({3}), f32({3, 4}), f32({3, 4})}}};
  catalog.add(grad);

  OpDef both;
  both.name = kDenseFused;
  both.doc =
      "softmax_cross_entropy_with_logits and its gradient for the logits. Made by fusion.\n"
      "  out[i] = sum_j labels[i, j] * (log(sum_k exp(logits[i, k])) - logits[i, j])\n"
      "  dlogits[i, j] = dy[i] * (softmax(logits[i])[j] * sum_k labels[i, k] - labels[i, j]), with seed for dy where\n"
      "  that is left out\n"
      "shapes: labels and logits (rows, classes), dy (rows) -> out (rows), dlogits as logits";
  both.inputs = {{"labels"}, {"logits"}, {"dy", InputDef::Optional}};
  both.outputs = {"out", "dlogits"};
  both.attrs = {seed_attr()};
  both.infer = [forward = op.infer](const OpCall& call) -> std::vector<TensorType> {
    const TensorType out = forward(call)[0];
    if (call.has(2)) require_type(call, 2, "dy", out);
    return {out, call.type(1)};
  };
  both.cpu = {prepare_softmax_cross_entropy_and_grad};
  both.inplace = {{1, 1}};
  both.rewrites = {{"dense + softmax cross entropy", {"dense_softmax_cross_entropy"}, fuse_classifier}};
  both.examples = {{{f32({3, 4}), f32({3, 4})}, {{"seed", 0.5}}}, {{f32({2, 2, 3}), f32({2, 2, 3}), f32({2, 2})}}};
  for (const int64_t rows : {1, 3, 100})
    for (const int64_t classes : {1, 10, 64})
      both.examples.push_back({{f32({rows, classes}), f32({rows, classes}), f32({rows})}});
  catalog.add(both);
}

}  // namespace

void add_cross_entropy(Catalog& catalog) {
  add_sparse_softmax(catalog);
  add_sparse_cross_entropy(catalog);
  add_dense_softmax(catalog);
}

}  // namespace moonflow
