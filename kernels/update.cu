// What changes variables, on CUDA. All variables of an op are one launch, and every one of these kernels leaves them
// alone where this run has found a fault before.
#include "kernels/cuda/arrays.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/fault.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/units.h"
#include "kernels/update_rules.h"

namespace moonflow::cuda {
namespace {

// One update rule over the variables of a network, which come with the addresses of all their inputs.
template <class Rule, class T>
struct Update {
  // Roots and quotients of float64 are subroutines that take many registers.
  static constexpr int kPointers = Rule::kInputs, kN = std::is_same_v<T, double> ? 1 : 4;
  using Row = ArrayRow<kPointers>;
  using C = Computed<T>;
  Rule rule;
  const FaultNote* note;

  static bool is_aligned(const Row& row) {
    for (int i = 0; i < Rule::kWritten; ++i)
      if (!cuda::is_aligned<T, kN>(row.data[i])) return false;
    return cuda::is_aligned<T, kN>(row.data[Rule::kGradient]);
  }

  MOONFLOW_DEVICE bool skips() const { return note->found != 0; }

  using Step = typename Rule::template Step<C>;
  struct Elements {
    Step step;
    bool changes;
    MOONFLOW_DEVICE void operator()(const Row& row, int64_t first, int64_t rest, bool whole) const {
      if (!changes) return;
      const auto gradients = read<T, kN>(static_cast<const T*>(row.data[Rule::kGradient]) + first, rest, whole);
      Pack<T, kN> written[Rule::kWritten];
      for (int v = 0; v < Rule::kWritten; ++v)
        written[v] = read<T, kN>(static_cast<const T*>(row.data[v]) + first, rest, whole);
      for (int i = 0; i < kN; ++i) {
        C values[Rule::kWritten];
        for (int v = 0; v < Rule::kWritten; ++v) values[v] = C(written[v].values[i]);
        const C g = C(gradients.values[i]);
        if constexpr (Rule::kWritten == 1)
          step(values[0], g);
        else if constexpr (Rule::kWritten == 2)
          step(values[0], values[1], g);
        else
          step(values[0], values[1], values[2], g);
        for (int v = 0; v < Rule::kWritten; ++v) written[v].values[i] = T(values[v]);
      }
      for (int v = 0; v < Rule::kWritten; ++v) write(written[v], static_cast<T*>(row.data[v]) + first, rest, whole);
    }
  };
  MOONFLOW_DEVICE Elements begin(const Row& row) const {
    return {rule.template step<C, C>(row.data), update::changes<Rule>(row.data)};
  }
};

// f(value of the variable, given value) becomes the variable's.
template <class F, class T>
struct Assign {
  static constexpr int kN = std::min(16 / static_cast<int>(sizeof(T)), 8);
  const FaultNote* note;
  T* variable;
  const T* value;
  MOONFLOW_DEVICE void operator()(const Neighbours<kN>& own) const {
    if (note->found != 0) return;
    auto values = own.of(value);
    if constexpr (!std::is_same_v<F, functor::None>) {
      const auto before = own.of(variable);
      for (int i = 0; i < kN; ++i)
        values.values[i] = T(F()(Computed<T>(before.values[i]), Computed<T>(values.values[i])));
    }
    own.put(values, variable);
  }
};

template <class T>
struct PrepareGradient {
  static constexpr int kN = 16 / static_cast<int>(sizeof(Computed<T>));
  update::Prepare<Computed<T>> prepare;
  const T *gradient, *variable;
  const float* factor;  // or none
  T* out;
  MOONFLOW_DEVICE void operator()(const Neighbours<kN>& own) const {
    using C = Computed<T>;
    const auto gradients = own.of(gradient), variables = own.of(variable);
    const auto scaled = prepare.times(factor);
    Pack<T, kN> results;
    for (int i = 0; i < kN; ++i) results.values[i] = T(scaled(C(gradients.values[i]), C(variables.values[i])));
    own.put(results, out);
  }
};

template <class T>
struct ClipFactor {
  const T* norm;
  T* out;
  T limit;
  MOONFLOW_DEVICE void operator()(int64_t) const { *out = *norm <= limit ? T(1) : limit / *norm; }
};

// ---- launchers -----------------------------------------------------------------------------------------------

template <class Rule>
Launch prepare_update(const KernelCall& call) {
  std::vector<int64_t> counts;
  for (size_t i = 0; i < call.inputs.size(); i += Rule::kInputs) counts.push_back(call.inputs[i].count());
  return visit_fractions(call.inputs[0].dtype, [&](auto zero) -> Launch {
    return [rule = Rule(call.attrs), counts](const LaunchCall& at) {
      using Body = Update<Rule, decltype(zero)>;
      over_arrays(at.stream, Body{rule, fault_note(at.stream)}, static_cast<int64_t>(counts.size()), [&](int64_t i) {
        typename Body::Row row{{}, counts[i]};
        std::copy_n(at.inputs + i * Rule::kInputs, Rule::kInputs, row.data);
        return row;
      });
    };
  });
}

template <class F, class T>
Launch launch_assign(int64_t count) {
  return [count](const LaunchCall& at) {
    const Assign<F, T> assign{fault_note(at.stream), static_cast<T*>(at.inputs[0]), at.input<T>(1)};
    for_each_pack(at.stream, count, assign, assign.variable, assign.value);
  };
}

// Takes elements by their size alone.
Launch prepare_assign(KernelCall& call) {
  return visit_element(size_of(call.inputs[0].dtype), [&](auto zero) {
    return launch_assign<functor::None, decltype(zero)>(call.inputs[0].count());
  });
}

Launch prepare_assign_add(KernelCall& call) {
  return visit_stored(call.inputs[0].dtype,
                      [&](auto zero) { return launch_assign<functor::Add, decltype(zero)>(call.inputs[0].count()); });
}

Launch prepare_prepare_gradient(KernelCall& call) {
  return visit_fractions(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [prepare = update::Prepare<Computed<T>>(call.attrs), count = call.inputs[0].count()](const LaunchCall& at) {
      const PrepareGradient<T> f{prepare, at.input<T>(0), at.input<T>(1), at.input<float>(2), at.output<T>(0)};
      for_each_pack(at.stream, count, f, f.gradient, f.variable, f.out);
    };
  });
}

Launch prepare_clip_factor(KernelCall& call) {
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [limit = static_cast<T>(call.attrs.number("clip_norm"))](const LaunchCall& at) {
      for_each(at.stream, 1, ClipFactor<T>{at.input<T>(0), at.output<T>(0), limit});
    };
  });
}

}  // namespace

void add_update(Kernels& kernels) {
  kernels["assign"] = {{prepare_assign}, true};
  kernels["assign_add"] = {{prepare_assign_add}, true};
  kernels["sgd_update"] = {{prepare_update<update::Descent>}, true};
  kernels["momentum_update"] = {{[](KernelCall& call) {
                                  return call.attrs.flag("nesterov") ? prepare_update<update::Momentum<true>>(call)
                                                                     : prepare_update<update::Momentum<false>>(call);
                                }},
                                true};
  kernels["adam_update"] = {{prepare_update<update::Adam>}, true};
  kernels["rmsprop_update"] = {{[](KernelCall& call) {
                                 return call.attrs.flag("centered") ? prepare_update<update::Rmsprop<true>>(call)
                                                                    : prepare_update<update::Rmsprop<false>>(call);
                               }},
                               true};
  kernels["adagrad_update"] = {{prepare_update<update::Adagrad>}, true};
  kernels["prepare_gradient"] = {{prepare_prepare_gradient}, true};
  kernels["clip_factor"] = {{prepare_clip_factor}};
}

}  // namespace moonflow::cuda
