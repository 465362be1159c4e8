// The CPU's loop of an optimizer's rule over elements that lie side by side.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/update_rules.h"

namespace moonflow::cpu {

// `written` are the variable and what the rule keeps beside it, each from the first of these elements on.
template <class Rule, class Step, class T>
void move_elements(const Step& step, T* const* written, const T* g, int64_t count) {
  T* const w = written[0];
  if constexpr (Rule::kWritten == 1) {
    widest([=] {
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) step(w[i], g[i]);
    });
  } else if constexpr (Rule::kWritten == 2) {
    T* const m = written[1];
    widest([=] {
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) step(w[i], m[i], g[i]);
    });
  } else {
    T *const m = written[1], *const v = written[2];
    widest([=] {
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) step(w[i], m[i], v[i], g[i]);
    });
  }
}

}  // namespace moonflow::cpu
