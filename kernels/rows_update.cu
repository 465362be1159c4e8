// On CUDA: updates of the rows that a step has picked, and sums of their picks. A thread for each column of each pick;
// those of a row's first pick sum the row and write it, and the others leave.
#include "kernels/rows_update.h"

#include <algorithm>

#include "kernels/cuda/axes.h"
#include "kernels/cuda/indices.h"
#include "kernels/cuda/kernels.h"
#include "kernels/update_rules.h"

namespace moonflow::cuda {
namespace {

// The picks in the order of their rows, as picks_by_row gives it.
struct OrderedPicks {
  Indices indices;
  const int64_t* order;
  int64_t count, row_elements;

  MOONFLOW_DEVICE int64_t row(int64_t place) const { return indices.at(order[place]); }
  MOONFLOW_DEVICE bool is_first_of(int64_t row, int64_t place) const {
    return place == 0 || this->row(place - 1) != row;
  }
  // `start`, and the picks of the row from `place` on, which `dy` has in the order that they were picked in.
  template <class T>
  MOONFLOW_DEVICE T sum(T start, int64_t row, int64_t place, const T* dy) const {
    for (; place < count && this->row(place) == row; ++place) start += dy[order[place] * row_elements];
    return start;
  }
};

template <class Rule, class T>
struct UpdateRows {
  Rule rule;
  void* data[Rule::kInputs];
  OrderedPicks picks;
  LongDivisor columns;

  MOONFLOW_DEVICE void operator()(int64_t e) const {
    if (picks.indices.note->found != 0 || !update::changes<Rule>(data)) return;
    int64_t column;
    const int64_t place = columns.quotient(e, column), row = picks.row(place);
    if (!picks.is_first_of(row, place)) return;
    const int64_t at = row * picks.row_elements + column;
    // From 0 on, as gather_grad makes it.
    const T gradient = picks.sum(T(0), row, place, static_cast<const T*>(data[Rule::kGradient]) + column);
    const auto step = rule.template step<T, T>(data);
    T* const w = static_cast<T*>(data[0]) + at;
    if constexpr (Rule::kWritten == 1)
      step(*w, gradient);
    else if constexpr (Rule::kWritten == 2)
      step(*w, static_cast<T*>(data[1])[at], gradient);
    else
      step(*w, static_cast<T*>(data[1])[at], static_cast<T*>(data[2])[at], gradient);
  }
};

template <class T>
struct SumPicks {
  const T* dy;
  T* out;
  OrderedPicks picks;
  LongDivisor columns;

  MOONFLOW_DEVICE void operator()(int64_t e) const {
    int64_t column;
    const int64_t place = columns.quotient(e, column), row = picks.row(place);
    const int64_t at = picks.order[place] * picks.row_elements + column;
    out[at] = picks.is_first_of(row, place) ? picks.sum(dy[at], row, place + 1, dy + column) : T(0);
  }
};

Launch prepare_sums(KernelCall& call) {
  const int64_t picks = call.inputs[1].count(), columns = picks == 0 ? 0 : call.inputs[0].count() / picks;
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    return [=, dtype = call.inputs[1].dtype](const LaunchCall& at) {
      using T = decltype(zero);
      for_each(at.stream, picks * columns,
               SumPicks<T>{at.input<T>(0),
                           at.output<T>(0),
                           {Indices(at, 1, dtype, 0), at.input<int64_t>(2), picks, columns},
                           LongDivisor(columns)});
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
          rule, {}, {Indices(at, kIndices, dtype, 0), at.input<int64_t>(kOrder), picks, columns}, LongDivisor(columns)};
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
