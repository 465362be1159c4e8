// Softmax and its logarithm along one axis. Both are shifted by the largest value of their lane, so nothing overflows.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/catalog.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/softmax_row.h"
#include "kernels/formula.h"

namespace moonflow {
namespace {

using cpu::for_each_lane;
using cpu::kBeside;

// An exponential costs about as much as eight simple operations.
int64_t grain(const Lanes& lanes) { return cpu::kGrain / 8 / std::max<int64_t>(lanes.n, 1) + 1; }

// The largest value of each of `count` lanes.
template <class T>
void largest(const T* x, const Lanes& lanes, int64_t count, T* top) {
  std::fill_n(top, count, -std::numeric_limits<T>::infinity());
  for (int64_t i = 0; i < lanes.n; ++i, x += lanes.stride) {
    for (int64_t j = 0; j < count; ++j) top[j] = x[j] > top[j] ? x[j] : top[j];
  }
}

// ---- meaning -------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_softmax(const OpCall& call) {
  const TensorType& x = call.type(0);
  require(is_floating(x.dtype), ErrorCode::DtypeMismatch, "logits must be float32 or float64, got ", x.dtype);
  wrap_axis(call.attrs.integer("axis"), x.shape.rank());
  return {x};
}

std::vector<TensorType> infer_softmax_grad(const OpCall& call) {
  require(call.type(0) == call.type(1), ErrorCode::ShapeMismatch, "dy is ", call.type(0), ", y is ", call.type(1));
  return infer_softmax(call);
}

// ---- CPU -----------------------------------------------------------------------------------------------------

// Calls body(short rows, offset of the first, how many) for all lanes, where they are short rows; else gives false.
template <class Body>
bool by_short_rows(const Lanes& lanes, const float* logits, const Body& body) {
  if (lanes.stride != 1 || !cpu::are_short_rows(lanes.count, lanes.n)) return false;
  cpu::for_rows_together(lanes.count, grain(lanes), [&](int64_t lane, int64_t count) {
    cpu::ShortRows rows(logits + lane * lanes.n, count, lanes.n);
    body(rows, lane * lanes.n, count);
  });
  return true;
}

template <class T>
void softmax(const Lanes& lanes, const T* logits, T* out) {
  if constexpr (std::is_same_v<T, float>) {
    const auto body = [=](cpu::ShortRows& rows, int64_t offset, int64_t count) {
      float scale[cpu::kTogether];
      for (int64_t j = 0; j < cpu::kTogether; ++j) scale[j] = 1 / rows.sum[j];
      rows.scale_into(scale, count, lanes.n, out + offset);
    };
    if (by_short_rows(lanes, logits, body)) return;
  }
  const auto row = [=](int64_t lane) {
    const int64_t offset = lane * lanes.n;
    const T* x = logits + offset;
    T* y = out + offset;
    const T scale = static_cast<T>(1 / cpu::exponentials(x, lanes.n, cpu::largest(x, lanes.n), y));
    for (int64_t i = 0; i < lanes.n; ++i) y[i] *= scale;
  };
  for_each_lane(lanes, grain(lanes), row, [=](int64_t lane, int64_t count) {
    const int64_t offset = lanes.start(lane);
    T top[kBeside], scale[kBeside];
    double sum[kBeside] = {};
    largest(logits + offset, lanes, count, top);
    for (int64_t i = 0; i < lanes.n; ++i) {
      const T* x = logits + offset + i * lanes.stride;
      T* y = out + offset + i * lanes.stride;
#pragma GCC ivdep
      for (int64_t j = 0; j < count; ++j) {
        const T e = elementary::exp(x[j] - top[j]);
        y[j] = e;
        sum[j] += e;
      }
    }
    for (int64_t j = 0; j < count; ++j) scale[j] = static_cast<T>(1 / sum[j]);
    for (int64_t i = 0; i < lanes.n; ++i) {
      T* y = out + offset + i * lanes.stride;
      for (int64_t j = 0; j < count; ++j) y[j] *= scale[j];
    }
  });
}

template <class T>
void log_softmax(const Lanes& lanes, const T* logits, T* out) {
  if constexpr (std::is_same_v<T, float>) {
    const auto body = [=](cpu::ShortRows& rows, int64_t offset, int64_t count) {
      float log_sum[cpu::kTogether];
      for (int64_t j = 0; j < cpu::kTogether; ++j) log_sum[j] = elementary::log(rows.sum[j]);
      for (int64_t j = 0; j < count; ++j) {
        const int64_t at = offset + j * lanes.n;
#pragma GCC ivdep
        for (int64_t i = 0; i < lanes.n; ++i) out[at + i] = logits[at + i] - rows.top[j] - log_sum[j];
      }
    };
    if (by_short_rows(lanes, logits, body)) return;
  }
  const auto row = [=](int64_t lane) {
    const int64_t offset = lane * lanes.n;
    const T* x = logits + offset;
    T* y = out + offset;
    const T top = cpu::largest(x, lanes.n);
    const T log_sum = static_cast<T>(std::log(cpu::sum_of_exponentials(x, lanes.n, top)));
#pragma GCC ivdep
    for (int64_t i = 0; i < lanes.n; ++i) y[i] = x[i] - top - log_sum;
  };
  for_each_lane(lanes, grain(lanes), row, [=](int64_t lane, int64_t count) {
    const int64_t offset = lanes.start(lane);
    T top[kBeside], log_sum[kBeside];
    double sum[kBeside] = {};
    largest(logits + offset, lanes, count, top);
    for (int64_t i = 0; i < lanes.n; ++i) {
      const T* x = logits + offset + i * lanes.stride;
      for (int64_t j = 0; j < count; ++j) sum[j] += elementary::exp(x[j] - top[j]);
    }
    for (int64_t j = 0; j < count; ++j) log_sum[j] = static_cast<T>(std::log(sum[j]));
    for (int64_t i = 0; i < lanes.n; ++i) {
      const T* x = logits + offset + i * lanes.stride;
      T* y = out + offset + i * lanes.stride;
#pragma GCC ivdep
      for (int64_t j = 0; j < count; ++j) y[j] = x[j] - top[j] - log_sum[j];
    }
  });
}

template <class T>
void softmax_grad(const Lanes& lanes, const T* dy, const T* y, T* dx) {
  const auto row = [=](int64_t lane) {
    const int64_t offset = lane * lanes.n;
    const T *dy_row = dy + offset, *y_row = y + offset;
    T* dx_row = dx + offset;
    const T along = static_cast<T>(cpu::dot(dy_row, y_row, lanes.n));
#pragma GCC ivdep
    for (int64_t i = 0; i < lanes.n; ++i) dx_row[i] = y_row[i] * (dy_row[i] - along);
  };
  for_each_lane(lanes, grain(lanes), row, [=](int64_t lane, int64_t count) {
    const int64_t offset = lanes.start(lane);
    T along[kBeside];
    double dot[kBeside] = {};
    for (int64_t i = 0; i < lanes.n; ++i) {
      const int64_t at = offset + i * lanes.stride;
      for (int64_t j = 0; j < count; ++j) dot[j] += double{dy[at + j]} * y[at + j];
    }
    for (int64_t j = 0; j < count; ++j) along[j] = static_cast<T>(dot[j]);
    for (int64_t i = 0; i < lanes.n; ++i) {
      const int64_t at = offset + i * lanes.stride;
#pragma GCC ivdep
      for (int64_t j = 0; j < count; ++j) dx[at + j] = y[at + j] * (dy[at + j] - along[j]);
    }
  });
}

template <class T>
void log_softmax_grad(const Lanes& lanes, const T* dy, const T* y, T* dx) {
  const auto row = [=](int64_t lane) {
    const int64_t offset = lane * lanes.n;
    const T *dy_row = dy + offset, *y_row = y + offset;
    T* dx_row = dx + offset;
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < lanes.n; ++i) sum += dy_row[i];
    const T mass = static_cast<T>(sum);
#pragma GCC ivdep
    for (int64_t i = 0; i < lanes.n; ++i) dx_row[i] = dy_row[i] - elementary::exp(y_row[i]) * mass;
  };
  for_each_lane(lanes, grain(lanes), row, [=](int64_t lane, int64_t count) {
    const int64_t offset = lanes.start(lane);
    T mass[kBeside];
    double sum[kBeside] = {};
    for (int64_t i = 0; i < lanes.n; ++i) {
      for (int64_t j = 0; j < count; ++j) sum[j] += dy[offset + i * lanes.stride + j];
    }
    for (int64_t j = 0; j < count; ++j) mass[j] = static_cast<T>(sum[j]);
    for (int64_t i = 0; i < lanes.n; ++i) {
      const int64_t at = offset + i * lanes.stride;
#pragma GCC ivdep
      for (int64_t j = 0; j < count; ++j) dx[at + j] = dy[at + j] - elementary::exp(y[at + j]) * mass[j];
    }
  });
}

// A kernel that calls `compute(lanes, input pointer, output pointer)` in the floating type of the first input.
template <class Compute>
Kernel unary(Compute compute) {
  return {[compute](KernelCall& call) {
    const Lanes lanes(call.inputs[0].shape, call.attrs.integer("axis"));
    return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
      using T = decltype(zero);
      return [=](const LaunchCall& launch) { compute(lanes, launch.input<T>(0), launch.output<T>(0)); };
    });
  }};
}

template <class Compute>
Kernel gradient(Compute compute) {
  return {[compute](KernelCall& call) {
    const Lanes lanes(call.inputs[0].shape, call.attrs.integer("axis"));
    return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
      using T = decltype(zero);
      return [=](const LaunchCall& launch) {
        compute(lanes, launch.input<T>(0), launch.input<T>(1), launch.output<T>(0));
      };
    });
  }};
}

// ---- the ops -------------------------------------------------------------------------------------------------

std::vector<Example> examples(int inputs) {
  const auto of = [&](const Shape& shape, int64_t axis) {
    const TensorType type{DType::Float32, shape};
    return Example{std::vector<TensorType>(inputs, type), {{"axis", axis}}, -3, 3};
  };
  return {of({3, 5}, -1), of({2, 3, 4}, 1), of({4}, 0)};
}

// One gradient rule for both: the helper op works from y, so the logits need not be kept.
Grad gradient_by(std::string helper) {
  return [helper](GradCall& g) -> std::vector<ValueId> {
    return {g.op(helper, {g.grads[0], g.outputs[0]}, {{"axis", g.attrs.integer("axis")}})};
  };
}

// ---- gradients of the gradients ------------------------------------------------------------------------------

// dx = y (dy - sum(dy y)), which is symmetric in dy and its gradient.
std::vector<ValueId> grad_softmax_grad(GradCall& call) {
  const Term g(call, call.grads[0]), dy(call, call.inputs[0]), y(call, call.inputs[1]);
  const Ints axis{call.attrs.integer("axis")};
  const Term of_y = g * (dy - sum(dy * y, axis)) - dy * sum(g * y, axis);
  return {g.op("softmax_grad", y, call.attrs).id(), of_y.id()};
}

// dx = dy - exp(y) sum(dy).
std::vector<ValueId> grad_log_softmax_grad(GradCall& call) {
  const Term g(call, call.grads[0]), dy(call, call.inputs[0]), y(call, call.inputs[1]);
  const Ints axis{call.attrs.integer("axis")};
  const Term along = g * y.op("exp");
  return {(g - sum(along, axis)).id(), (-along * sum(dy, axis)).id()};
}

}  // namespace

void add_softmax(Catalog& catalog) {
  OpDef op;
  op.name = "softmax";
  op.lua = "nn.softmax";
  op.doc =
      "The values of an axis as probabilities.\n"
      "  out[i] = exp(logits[i]) / sum_j exp(logits[j])\n"
      "shapes: logits (any, rank at least 1) -> out of the same shape\n"
      "dtypes: float32 or float64 -> the same\n"
      "errors: axis outside the rank\n"
      "source: shifted by the maximum as in Blanchard, Higham, Higham, IMA J. Numer. Anal. 2021";
  op.inputs = {{"logits"}};
  op.attrs = {{"axis", int64_t{-1}, "the axis whose values sum to one; negative counts from the last"}};
  op.infer = infer_softmax;
  op.grad = gradient_by("softmax_grad");
  op.cpu = unary([](auto... args) { softmax(args...); });
  op.inplace = {{0, 0}};
  op.examples = examples(1);
  catalog.add(op);

  op.name = "log_softmax";
  op.lua = "nn.logsoftmax";
  op.doc =
      "The logarithm of softmax, exact also where a probability is too small for its dtype.\n"
      "  out[i] = logits[i] - log(sum_j exp(logits[j]))\n"
      "shapes: logits (any, rank at least 1) -> out of the same shape\n"
      "dtypes: float32 or float64 -> the same, in nats\n"
      "errors: axis outside the rank\n"
      "source: shifted by the maximum as in Blanchard, Higham, Higham, IMA J. Numer. Anal. 2021";
  op.grad = gradient_by("log_softmax_grad");
  op.cpu = unary([](auto... args) { log_softmax(args...); });
  catalog.add(op);

  op.name = "softmax_grad";
  op.lua.clear();
  op.doc =
      "Gradient of softmax from its result.\n"
      "  dx[i] = y[i] * (dy[i] - sum_j dy[j] * y[j])\n"
      "shapes: dy and y alike -> dx alike\n"
      "dtypes: float32 or float64, all the same";
  op.inputs = {{"dy"}, {"y"}};
  op.outputs = {"dx"};
  op.infer = infer_softmax_grad;
  op.grad = grad_softmax_grad;
  op.cpu = gradient([](auto... args) { softmax_grad(args...); });
  op.inplace = {{0, 0}, {0, 1}};
  op.examples = examples(2);
  catalog.add(op);

  op.name = "log_softmax_grad";
  op.doc =
      "Gradient of log_softmax from its result.\n"
      "  dx[i] = dy[i] - exp(y[i]) * sum_j dy[j]\n"
      "shapes: dy and y alike -> dx alike\n"
      "dtypes: float32 or float64, all the same";
  op.grad = grad_log_softmax_grad;
  op.cpu = gradient([](auto... args) { log_softmax_grad(args...); });
  catalog.add(op);
}

}  // namespace moonflow
