// On CUDA: updates of the rows that a step has picked, and sums of their picks. A thread for each column of each pick;
// those of a row's first pick sum the row and write it, and the others leave.
#include "kernels/rows_update.h"

#include <algorithm>

#include "kernels/cuda/axes.h"
#include "kernels/cuda/indices.h"
#include "kernels/cuda/kernels.h"
#include "kernels/elementwise.h"
#include "kernels/update_rules.h"

namespace moonflow::cuda {
namespace {

template <class Rule, class T>
struct UpdateRows {
  Rule rule;
  void* data[Rule::kInputs];
  Indices indices;
  const int64_t* order;
  int64_t picks, row_elements;
  LongDivisor columns;

  MOONFLOW_DEVICE void operator()(int64_t e) const {
    if (indices.note->found != 0 || !update::changes<Rule>(data)) return;
    int64_t column;
    const int64_t place = columns.quotient(e, column), row = row_of(place);
    if (place > 0 && row_of(place - 1) == row) return;
    const int64_t at = row * row_elements + column;
    const T gradient = sum(place, row, static_cast<const T*>(data[Rule::kGradient]) + column);
    const auto step = rule.template step<T, T>(data);
    T* const w = static_cast<T*>(data[0]) + at;
    if constexpr (Rule::kWritten == 1)
      step(*w, gradient);
    else if constexpr (Rule::kWritten == 2)
      step(*w, static_cast<T*>(data[1])[at], gradient);
    else
      step(*w, static_cast<T*>(data[1])[at], static_cast<T*>(data[2])[at], gradient);
  }

 private:
  MOONFLOW_DEVICE int64_t row_of(int64_t place) const { return indices.at(order[place]); }

  MOONFLOW_DEVICE T sum(int64_t place, int64_t row, const T* dy) const {
    T result = 0;
    for (; place < picks && row_of(place) == row; ++place)
      result = functor::Add()(result, dy[order[place] * row_elements]);
    return result;
  }
};

template <class T>
struct SumPicks {
  const T* dy;
  T* out;
  Indices indices;
  const int64_t* order;
  int64_t picks, row_elements;
  LongDivisor columns;

  MOONFLOW_DEVICE void operator()(int64_t e) const {
    if (indices.note->found != 0) return;
    int64_t column;
    const int64_t place = columns.quotient(e, column), row = row_of(place);
    const bool is_first = place == 0 || row_of(place - 1) != row;
    out[order[place] * row_elements + column] = is_first ? sum(place, row, dy + column) : T(0);
  }

 private:
  MOONFLOW_DEVICE int64_t row_of(int64_t place) const { return indices.at(order[place]); }
  MOONFLOW_DEVICE T sum(int64_t place, int64_t row, const T* from) const {
    T result = from[order[place] * row_elements];
    while (++place < picks && row_of(place) == row) result += from[order[place] * row_elements];
    return result;
  }
};

Launch prepare_sums(KernelCall& call) {
  const int64_t picks = call.inputs[1].count(), columns = picks == 0 ? 0 : call.inputs[0].count() / picks;
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    return [=, dtype = call.inputs[1].dtype](const LaunchCall& at) {
      using T = decltype(zero);
      for_each(at.stream, picks * columns,
               SumPicks<T>{at.input<T>(0), at.output<T>(0), Indices(at, 1, dtype, 0), at.input<int64_t>(2), picks,
                           columns, LongDivisor(columns)});
    };
  });
}

template <class Rule>
Launch prepare_rows(KernelCall& call) {
  constexpr int kIndices = RowsInput<Rule>::kIndices, kOrder = RowsInput<Rule>::kOrder;
  const Shape& variable = call.inputs[0].shape;
  const int64_t picks = call.inputs[kIndices].count(), columns = variable.count(1, variable.rank());
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    return [=, rule = Rule(call.attrs), dtype = call.inputs[kIndices].dtype](const LaunchCall& at) {
      using Update = UpdateRows<Rule, decltype(zero)>;
      Update update{
          rule, {}, Indices(at, kIndices, dtype, 0), at.input<int64_t>(kOrder), picks, columns, LongDivisor(columns)};
      std::copy_n(at.inputs, Rule::kInputs, update.data);
      for_each(at.stream, picks * columns, update);
    };
  });
}

}  // namespace

void add_rows_update(Kernels& kernels) {
  kernels["rows_sgd_update"] = {{prepare_rows<update::Descent>}};
  kernels["rows_adagrad_update"] = {{prepare_rows<update::Adagrad>}};
  kernels["rows_adam_update"] = {{prepare_rows<update::Adam>}};
  kernels["sum_picks"] = {{prepare_sums}};
}

}  // namespace moonflow::cuda
