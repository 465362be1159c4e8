// Ops about the place of a value in an order, search_sorted in one that is there and in_top_k in one that is not made.
#include <algorithm>

#include "kernels/bad_index.h"
#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"
#include "kernels/sort.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

using order::Key;

// ---- search_sorted ---------------------------------------------------------------------------------------------

// How many of `count` values in their order come before each of n others: by bisection, of a block of them at a time,
// so that the memory is asked for many at once. A NaN is above all numbers.
template <class T, class ComesBefore>
void search(const T* sorted, int64_t count, const T* values, int64_t n, int64_t* places, ComesBefore comes_before) {
  constexpr int64_t kBlock = 32;
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t many = std::min(kBlock, n - start);
    const T* const x = values + start;
    int64_t* const at = places + start;
    std::fill_n(at, many, 0);
    for (int64_t rest = count; rest > 0; rest -= rest > 1 ? rest / 2 : 1) {
      const int64_t step = rest > 1 ? rest / 2 : 1;
      for (int64_t i = 0; i < many; ++i)
        at[i] += step & -static_cast<int64_t>(comes_before(sorted[at[i] + step - 1], x[i]));
    }
  }
}

Launch prepare_search(KernelCall& call) {
  const int64_t count = call.inputs[0].count(), values = call.inputs[1].count();
  const bool right = call.attrs.flag("right");
  return visit(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& at) {
      const T *const sorted = at.input<T>(0), *const x = at.input<T>(1);
      int64_t* const places = at.output<int64_t>(0);
      cpu::parallel_for(values, cpu::kGrain / 16, [=](int64_t first, int64_t last) {
        const auto look = [=](auto comes_before) {
          cpu::widest([=] { search(sorted, count, x + first, last - first, places + first, comes_before); });
        };
        // By bits, as above, since of truths branches would be made that nobody foretells.
        if (right)
          look([](T own, T other) { return (own <= other) | (other != other); });
        else
          look([](T own, T other) { return (own < other) | ((other != other) & (own == own)); });
      });
    };
  });
}

void add_search_sorted(Catalog& catalog) {
  OpDef op;
  op.name = "search_sorted";
  op.doc =
      "How many of sorted values come before each of x, with `right` those equal to it too. A NaN is above "
      "all others.\n"
      "For arrays. No gradient.\n"
      "shapes: sorted (n), x of any shape -> out of the shape of x\n"
      "dtypes: sorted and x of one dtype, any -> int64";
  op.inputs = {{"sorted"}, {"x"}};
  op.attrs = {{"right", false, "whether what equals x comes before it"}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require(call.shape(0).rank() == 1 && call.dtype(0) == call.dtype(1), ErrorCode::ShapeMismatch, "sorted is ",
            call.type(0), ", x is ", call.type(1), "; wanted (n), and one dtype");
    return {{DType::Int64, call.shape(1)}};
  };
  op.cpu = {prepare_search};
  op.on_host = true;  // where arrays are
  op.examples = {{{f32({1}), f32({2, 3})}},
                 {{{DType::Float64, {1}}, {DType::Float64, {40}}}, {{"right", true}}},
                 {{{DType::Int64, {1}}, {DType::Int64, {5}}}},
                 {{{DType::UInt8, {1}}, {DType::UInt8, {}}}, {{"right", true}}},
                 {{i32({0}), i32({5})}}};
  catalog.add(op);
}

// ---- in_top_k --------------------------------------------------------------------------------------------------

// How many of a row come before the one at `target` when the largest comes first.
template <class T>
int64_t count_before(const T* row, int64_t length, int64_t target) {
  int64_t count = 0;
  const Key<T> own = order::key_of(row[target]);
  cpu::widest([&] {
    int64_t ahead = 0;
    for (int64_t i = 0; i < target; ++i) ahead += order::key_of(row[i]) >= own;
    for (int64_t i = target + 1; i < length; ++i) ahead += order::key_of(row[i]) > own;
    count = ahead;
  });
  return count;
}

Launch prepare_in_top_k(KernelCall& call) {
  const int64_t rows = call.inputs[1].shape[0], classes = call.inputs[1].shape[1], k = call.attrs.integer("k");
  call.scratch_bytes = checked_product(rows, sizeof(int64_t));
  return visit_floating(call.inputs[1].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=, target_dtype = call.inputs[0].dtype](const LaunchCall& at) {
      int64_t* const targets = static_cast<int64_t*>(at.scratch);
      visit(target_dtype, [&](auto target_zero) {
        const auto* given = at.input<decltype(target_zero)>(0);
        for (int64_t row = 0; row < rows; ++row) {
          targets[row] = static_cast<int64_t>(given[row]);
          if (targets[row] < 0 || targets[row] >= classes) fail_label(row, targets[row], classes);
        }
      });
      const T* const x = at.input<T>(1);
      int8_t* const out = at.output<int8_t>(0);
      cpu::parallel_for(rows, cpu::kGrain / std::max<int64_t>(classes, 1) + 1, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row)
          out[row] = count_before(x + row * classes, classes, targets[row]) < k;
      });
    };
  });
}

void add_in_top_k(Catalog& catalog) {
  OpDef op;
  op.name = "in_top_k";
  op.lua = "math.in_top_k";
  op.doc =
      "Whether the target of each row is among the k largest predictions. No gradient.\n"
      "  out[i] = 1 where targets[i] is in top_k(predictions[i], k), else 0\n"
      "So of predictions that are equal the first ones count as larger, as they do for argmax.\n"
      "shapes: targets (rows), predictions (rows, classes) -> out (rows)\n"
      "dtypes: targets of an integer dtype; predictions float32, float64 -> int8\n"
      "errors: k below 1; targets and predictions differ in rows; a target outside [0, classes) names its row";
  op.inputs = {{"targets"}, {"predictions"}};
  op.attrs = {{"k", int64_t{1}, "how many of the largest", true}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_labels(call, 0, "targets", 1, "predictions");
    require_floating(call, 1, "predictions");
    require(call.shape(1).rank() == 2 && call.shape(0) == Shape{call.shape(1)[0]}, ErrorCode::ShapeMismatch,
            "targets are ", call.shape(0), ", predictions are ", call.shape(1), "; wanted (rows) and (rows, classes)");
    require(call.attrs.integer("k") >= 1, ErrorCode::OutOfRange, "k is ", call.attrs.integer("k"),
            ", it must be at least 1");
    return {{DType::Int8, call.shape(0)}};
  };
  op.cpu = {prepare_in_top_k};
  op.examples = {{{i32({6}), f32({6, 4})}, {{"k", int64_t{2}}}},
                 {{{DType::Int64, {3}}, f32({3, 40})}, {{"k", int64_t{9}}}}};
  catalog.add(op);
}

}  // namespace

void add_ranks(Catalog& catalog) {
  add_search_sorted(catalog);
  add_in_top_k(catalog);
}

}  // namespace moonflow
