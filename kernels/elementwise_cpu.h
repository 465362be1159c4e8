// The loops of the element-wise ops on the CPU: one functor, applied to one or two values, in parallel and in the widest
// registers. Shared by the files of the family.
#pragma once

#include <string>

#include "kernels/broadcast.h"
#include "kernels/cpu.h"
#include "kernels/elementwise.h"
#include "kernels/simd.h"

namespace moonflow::elementwise {

using cpu::Broadcast;
using cpu::parallel_for;
using cpu::widest;

enum class Dtypes { Floating, All };

void check_dtype(Dtypes dtypes, const TensorType& type);

// The OpDef doc of a row.
std::string doc(const std::string& says, const std::string& formula, Dtypes dtypes, const std::string& shapes,
                const std::string& end = {});

// Where the inputs have the output's type (or are a single element), the first private layout among them serves all.
// Only one without padding: padding would be computed on, and must stay zero.
void keep_layout(LayoutCall& call);

// A functor with attributes is made from them; the others have none.
template <class F>
F make(const Attrs& attrs) {
  if constexpr (std::is_constructible_v<F, const Attrs&>) return F(attrs);
  else return F();
}

template <class F>
constexpr bool kCheap = std::is_base_of_v<functor::Cheap, F>;
template <class F, class T>
constexpr bool kVectorised = std::is_same_v<T, float> ? std::is_base_of_v<functor::Vectorised, F>
                                                      : kCheap<F> && kFloating<T>;

// Elements that pay for another thread. A call of the math library costs as much as dozens of cheap elements.
template <class F, class T>
constexpr int64_t kFunctorGrain = kCheap<F> ? cpu::kWideGrain : kVectorised<F, T> ? cpu::kGrain : cpu::kGrain / 8;

// Runs a loop over arithmetic on T in the widest registers when its functor is made for them. Not inlined: parallel_for
// calls its body from two places, and there are hundreds of loops.
template <class F, class T, class Loop>
[[gnu::noinline]] void run(const Loop& loop) {
  if constexpr (kVectorised<F, T>) widest(loop);
  else loop();
}

// A bool of a functor is an int8 of the engine.
template <class Result>
using Stored = std::conditional_t<std::is_same_v<Result, bool>, int8_t, Result>;

template <class F, class T>
Launch map_unary(F f, int64_t count) {
  using Out = Stored<std::invoke_result_t<F, T>>;
  return [f, count](const LaunchCall& call) {
    const T* x = static_cast<const T*>(call.inputs[0]);
    Out* y = static_cast<Out*>(call.outputs[0]);
    parallel_for(count, kFunctorGrain<F, T>, [=](int64_t first, int64_t last) {
      run<F, T>([=] {
#pragma GCC ivdep  // x and y are apart or the same, never shifted
        for (int64_t i = first; i < last; ++i) y[i] = f(x[i]);
      });
    });
  };
}

// A functor of two values of one type, such as a gradient of dy and x: no broadcasting, so one loop.
template <class F, class T>
Launch map_pair(F f, int64_t count) {
  return [f, count](const LaunchCall& call) {
    const T* x = static_cast<const T*>(call.inputs[0]);
    const T* y = static_cast<const T*>(call.inputs[1]);
    T* out = static_cast<T*>(call.outputs[0]);
    parallel_for(count, kFunctorGrain<F, T>, [=](int64_t first, int64_t last) {
      run<F, T>([=] {
#pragma GCC ivdep
        for (int64_t i = first; i < last; ++i) out[i] = f(x[i], y[i]);
      });
    });
  };
}

// `n` elements of out = f(x, y), where a step is 1 or, for a repeated element, 0.
template <class F, class T, class Out>
void map_run(F f, int64_t n, const T* x, bool x_steps, const T* y, bool y_steps, Out* out) {
  if (x_steps && y_steps) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = f(x[i], y[i]);
  } else if (x_steps) {
    const T value = *y;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = f(x[i], value);
  } else {
    const T value = *x;
    if (y_steps) {
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) out[i] = f(value, y[i]);
    } else {
      std::fill(out, out + n, static_cast<Out>(f(value, *y)));
    }
  }
}

template <class F, class T>
Launch map_binary(F f, const Shape& x_shape, const Shape& y_shape, const Shape& out_shape) {
  using Out = Stored<std::invoke_result_t<F, T, T>>;
  const Broadcast<2> geometry({x_shape, y_shape}, out_shape);
  return [f, geometry, count = out_shape.count()](const LaunchCall& call) {
    const T* x = static_cast<const T*>(call.inputs[0]);
    const T* y = static_cast<const T*>(call.inputs[1]);
    Out* out = static_cast<Out*>(call.outputs[0]);
    const auto& steps = geometry.axes.back().steps;
    parallel_for(count, kFunctorGrain<F, T>, [=, &geometry](int64_t first, int64_t last) {
      run<F, T>([=, &geometry] {
        geometry.for_each_run(first, last, [=](int64_t at, int64_t n, const std::array<int64_t, 2>& offsets) {
          map_run(f, n, x + offsets[0], steps[0] != 0, y + offsets[1], steps[1] != 0, out + at);
        });
      });
    });
  };
}

template <class F, Dtypes dtypes>
Kernel unary_kernel() {
  return {[](KernelCall& call) -> Launch {
            const F f = make<F>(call.attrs);
            const int64_t count = call.inputs[0].count();
            const auto launch = [&](auto zero) { return map_unary<F, decltype(zero)>(f, count); };
            if constexpr (dtypes == Dtypes::All) return visit(call.inputs[0].dtype, launch);
            else return visit_floating(call.inputs[0].dtype, launch);
          },
          keep_layout};
}

template <class F, Dtypes dtypes>
Kernel binary_kernel() {
  return {[](KernelCall& call) -> Launch {
            const F f = make<F>(call.attrs);
            const auto launch = [&](auto zero) {
              return map_binary<F, decltype(zero)>(f, call.inputs[0].shape, call.inputs[1].shape,
                                                   call.outputs[0].shape);
            };
            if constexpr (dtypes == Dtypes::All) return visit(call.inputs[0].dtype, launch);
            else return visit_floating(call.inputs[0].dtype, launch);
          },
          keep_layout};
}

template <class F>
Kernel pair_kernel() {
  return {[](KernelCall& call) -> Launch {
            const F f = make<F>(call.attrs);
            const int64_t count = call.inputs[0].count();
            return visit_floating(call.inputs[0].dtype,
                                  [&](auto zero) { return map_pair<F, decltype(zero)>(f, count); });
          },
          keep_layout};
}

// The ops of two and three inputs, in binary.cpp.
void add_binary_ops(Catalog& catalog);
void add_where(Catalog& catalog);

}  // namespace moonflow::elementwise
