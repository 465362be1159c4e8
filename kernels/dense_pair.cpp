// dense_pair: two dense layers of a few rows, as a small network that predicts one sample has them. The time is that of
// reading the first weight; what the second layer adds to it is done by all threads on their way, since each goes on
// with the hidden units it has just computed.
#include <algorithm>

#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/dots.h"
#include "kernels/dense_pair.h"
#include "kernels/matmul.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

constexpr int64_t kMostRows = 8, kMostColumns = 64;
// Hidden units that one thread takes as a whole. What they add to the result is summed by itself, and these sums are
// added in order, so the result does not depend on the number of threads.
constexpr int64_t kUnits = 32;

bool is_activation(const std::string& name) { return name == "none" || name == "relu"; }

std::vector<TensorType> infer_pair(const OpCall& call) {
  const DType dtype = call.dtype(0);
  require_floating(call, 0, "x");
  const Product first = dense_product(call.shape(0), call.shape(1));
  require(first.rows <= kMostRows, ErrorCode::ShapeMismatch, "x is ", call.shape(0), ", it may have ", kMostRows,
          " rows");
  require(call.dtype(1) == dtype, ErrorCode::DtypeMismatch, "x is ", dtype, ", weight is ", call.dtype(1));
  require_type(call, 2, "bias", {dtype, {first.columns}});
  require(call.dtype(3) == dtype && call.shape(3).rank() == 2 && call.shape(3)[1] == first.columns,
          ErrorCode::ShapeMismatch, "weight is ", call.type(1), ", weight2 is ", call.type(3), ", wanted ", dtype,
          " (units, ", first.columns, ")");
  const int64_t columns = call.shape(3)[0];
  require_type(call, 4, "bias2", {dtype, {columns}});
  for (const char* name : {"activation", "activation2"}) {
    require(is_activation(call.attrs.string(name)), ErrorCode::InvalidArgument, name, " is \"",
            call.attrs.string(name), "\", wanted \"none\" or \"relu\"");
  }
  return {{dtype, {first.rows, columns}}};
}

template <class T>
struct Pair {
  int64_t rows, inner, hidden, columns;
  const T *x, *weight, *bias, *weight2, *bias2;
  bool relu, relu2;
  T *out, *parts;  // parts: (blocks, rows, columns)

  int64_t blocks() const { return (hidden + kUnits - 1) / kUnits; }
};

template <class T>
T activated(T y, bool relu) {
  return relu && y < 0 ? T(0) : y;
}

// out[j] = sum over k of a[k] * b[j, k] for `count` rows of b.
template <class R>
inline void multiply_row(int64_t inner, const float* a, const float* b, int64_t b_row, int64_t count, float* out) {
  int64_t j = 0;
  for (; j + 4 <= count; j += 4) cpu::dots<R, 1, 4, 2>(inner, a, inner, b + j * b_row, b_row, out + j);
  for (; j < count; ++j) cpu::dots<R, 1, 1, 2>(inner, a, inner, b + j * b_row, b_row, out + j);
}

template <class R>
inline void run_block(const Pair<float>& work, int64_t block) {
  const int64_t first = block * kUnits, units = std::min(kUnits, work.hidden - first);
  alignas(64) float hidden[kMostRows][kUnits];
  // Four units at a time, so that what is read of the weight serves all rows.
  for (int64_t j = 0; j < units; j += 4) {
    for (int64_t i = 0; i < work.rows; ++i) {
      multiply_row<R>(work.inner, work.x + i * work.inner, work.weight + (first + j) * work.inner, work.inner,
                      std::min<int64_t>(4, units - j), hidden[i] + j);
    }
  }
  for (int64_t i = 0; i < work.rows; ++i) {
    for (int64_t j = 0; j < units; ++j) hidden[i][j] = activated(hidden[i][j] + work.bias[first + j], work.relu);
    multiply_row<R>(units, hidden[i], work.weight2 + first, work.hidden, work.columns,
                    work.parts + (block * work.rows + i) * work.columns);
  }
}

void run_blocks(const Pair<float>& work, bool backwards) {
  const int64_t each = std::max<int64_t>(1, work.inner * work.rows * kUnits);
  cpu::parallel_for(work.blocks(), std::max<int64_t>(1, cpu::kWideGrain / each), [&](int64_t first, int64_t last) {
    cpu::widest_register([&](auto wide) {
      for (int64_t i = first; i < last; ++i) run_block<decltype(wide)>(work, backwards ? first + last - 1 - i : i);
    });
  });
}

void run_blocks(const Pair<double>& work, bool) {
  std::fill_n(work.parts, work.blocks() * work.rows * work.columns, 0.0);
  for (int64_t i = 0; i < work.rows; ++i) {
    for (int64_t j = 0; j < work.hidden; ++j) {
      double y = work.bias[j];
      for (int64_t k = 0; k < work.inner; ++k) y += work.x[i * work.inner + k] * work.weight[j * work.inner + k];
      double* part = work.parts + (j / kUnits * work.rows + i) * work.columns;
      for (int64_t c = 0; c < work.columns; ++c) part[c] += activated(y, work.relu) * work.weight2[c * work.hidden + j];
    }
  }
}

template <class T>
void run(const Pair<T>& work, bool backwards) {
  run_blocks(work, backwards);
  for (int64_t i = 0; i < work.rows * work.columns; ++i) {
    T y = work.bias2[i % work.columns];
    for (int64_t block = 0; block < work.blocks(); ++block) y += work.parts[block * work.rows * work.columns + i];
    work.out[i] = activated(y, work.relu2);
  }
}

Launch prepare_pair(KernelCall& call) {
  const Product first = dense_product(call.inputs[0].shape, call.inputs[1].shape);
  const int64_t columns = call.outputs[0].shape[1];
  const bool relu = call.attrs.string("activation") == "relu", relu2 = call.attrs.string("activation2") == "relu";
  const int64_t blocks = (first.columns + kUnits - 1) / kUnits;
  call.scratch_bytes = blocks * first.rows * columns * static_cast<int64_t>(size_of(call.inputs[0].dtype));
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    // To and fro, as along_rows of cpu/matmul_kernels.cpp says.
    return [=, backwards = false](const LaunchCall& at) mutable {
      run(Pair<T>{first.rows, first.inner, first.columns, columns, at.input<T>(0), at.input<T>(1), at.input<T>(2),
                  at.input<T>(3), at.input<T>(4), relu, relu2, at.output<T>(0), static_cast<T*>(at.scratch)},
          backwards);
      backwards = !backwards;
    };
  });
}

double pair_flops(const KernelCall& call) {
  const Product first = dense_product(call.inputs[0].shape, call.inputs[1].shape);
  return flops_of(first) + 2.0 * static_cast<double>(first.rows * first.columns * call.outputs[0].shape[1]);
}

}  // namespace

bool fuse_dense_pair(Rewriter& graph, NodeId second_id) {
  const Node& second = graph.node(second_id);
  const ValueId hidden = second.inputs[0];
  const NodeId first_id = graph.made_by(hidden, "dense");
  if (first_id == kNone || graph.sole_reader(hidden) != second_id || second.inputs[1] == hidden) return false;
  const Node& first = graph.node(first_id);
  const DType dtype = graph.type(hidden).dtype;
  if (dtype != DType::Float32 && dtype != DType::Float64) return false;
  if (graph.quantizes_weights()) return false;
  for (const Node* dense : {&first, &second}) {
    if (!dense->attrs.string("mixed").empty() || dense->inputs[2] == kNone) return false;
  }
  const Shape out = graph.type(second.outputs[0]).shape;
  if (out[0] > kMostRows || out[1] > kMostColumns) return false;
  graph.fuse({first_id, second_id}, "dense_pair",
             {first.inputs[0], first.inputs[1], first.inputs[2], second.inputs[1], second.inputs[2]},
             {{"activation", first.attrs.string("activation")}, {"activation2", second.attrs.string("activation")}},
             second.outputs);
  return true;
}

void add_dense_pair(Catalog& catalog) {
  OpDef op;
  op.name = "dense_pair";
  op.doc =
      "Two fully connected layers of at most 8 rows. Made by fusion.\n"
      "  out = activation2(activation(x weight^T + bias) weight2^T + bias2)\n"
      "shapes: x (rows, in), weight (hidden, in), bias (hidden), weight2 (units, hidden), bias2 (units)\n"
      "  -> (rows, units)\n"
      "dtypes: float32 or float64, all alike";
  op.inputs = {{"x"}, {"weight"}, {"bias"}, {"weight2"}, {"bias2"}};
  op.attrs = {{"activation", std::string("none"), "\"none\" or \"relu\""},
              {"activation2", std::string("none"), "\"none\" or \"relu\""}};
  op.infer = infer_pair;
  op.cpu = {prepare_pair};
  op.flops = pair_flops;
  const std::string relu = "relu";
  op.examples = {
      {{f32({1, 7}), f32({5, 7}), f32({5}), f32({3, 5}), f32({3})}},
      {{f32({3, 53}), f32({70, 53}), f32({70}), f32({11, 70}), f32({11})}, {{"activation", relu}}},
      {{f32({8, 300}), f32({256, 300}), f32({256}), f32({2, 256}), f32({2})},
       {{"activation", relu}, {"activation2", relu}}, -0.2, 0.2},
  };
  catalog.add(std::move(op));
}

}  // namespace moonflow
