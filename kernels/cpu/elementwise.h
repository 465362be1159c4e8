// The loops of the element-wise ops on the CPU: one functor, applied to one or two values, in parallel and in the widest
// registers. Shared by the files of the family.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/broadcast.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"
#include "kernels/elementwise_rows.h"

namespace moonflow::elementwise {

using cpu::parallel_for;
using cpu::widest;

void check_dtype(Dtypes dtypes, const TensorType& type);

// The OpDef doc of a row.
std::string doc(const std::string& says, const std::string& formula, Dtypes dtypes, const std::string& shapes,
                const std::string& end = {});

// Of name_grad, the gradient of a row of one input; empty where nobody has written it.
Grad gradient_of_unary_grad(const std::string& name);

template <class F>
constexpr bool kCheap = std::is_base_of_v<functor::Cheap, F>;
template <class F, class T>
constexpr bool kHasNear = std::is_same_v<T, float>    ? std::is_base_of_v<functor::Near, F>
                          : std::is_same_v<T, double> ? std::is_base_of_v<functor::Angular, F>
                                                      : false;
template <class F, class T>
constexpr bool kVectorised =
    std::is_floating_point_v<T> ? std::is_base_of_v<functor::Vectorised, F> || kHasNear<F, T> : kCheap<F>;

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

// What a loop reads: neighbouring elements, or a single one again and again.
struct Operand {
  const void* data;
  bool steps;
};

// The one loop of a functor in a dtype, which launches and chains share: `n` neighbouring elements of the result, on the
// calling thread. The result may lie where an operand that steps does.
struct Loop {
  std::function<void(int64_t n, const Operand* operands, void* out)> run;
  int64_t grain;  // elements that pay for another thread
};
using MakeLoop = Loop (*)(const Attrs& attrs, DType dtype);

// Writes n elements of out, where at(i, form) is what `form` computes of the i-th values: the functor, or its near
// form. Which of the two is looked up for a block at a time, and for each element of a block that has far values.
template <class F, class T, class Out, class At>
void each(const F& f, int64_t n, Out* out, const At& at) {
  if constexpr (kHasNear<F, T>) {
    constexpr int64_t kBlock = 256;
    const auto near = [](auto... values) { return F::near(values...); };
    const auto is_far = [](auto... values) { return F::is_far(values...); };
    for (int64_t start = 0; start < n; start += kBlock) {
      const int64_t end = std::min(start + kBlock, n);
      int any_far = 0;  // not a bool, of whose bytes GCC makes numbers for each
      for (int64_t i = start; i < end; ++i) any_far |= at(i, is_far);
      if (any_far) {
        for (int64_t i = start; i < end; ++i) out[i] = at(i, is_far) ? at(i, f) : at(i, near);
      } else {
#pragma GCC ivdep
        for (int64_t i = start; i < end; ++i) out[i] = at(i, near);
      }
    }
  } else {
    // In registers: a loop that loads the functor where an element needs it stays scalar, and one that writes bytes
    // loads its bounds anew for each.
    const F held = f;
    const int64_t count = n;
    Out* const to = out;
    const At compute = at;
#pragma GCC ivdep  // what is read and what is written are apart or the same, never shifted
    for (int64_t i = 0; i < count; ++i) to[i] = compute(i, held);
  }
}

template <class F, class T>
Loop unary_loop(F f) {
  using Out = Stored<std::invoke_result_t<F, T>>;
  const auto loop = [f](int64_t n, const Operand* operands, void* to) {
    const T* x = static_cast<const T*>(operands[0].data);
    Out* out = static_cast<Out*>(to);
    run<F, T>([=] { each<F, T>(f, n, out, [=](int64_t i, const auto& form) { return form(x[i]); }); });
  };
  return {loop, kFunctorGrain<F, T>};
}

// A functor of two values of one type, such as a gradient of dy and x: no broadcasting, so one loop.
template <class F, class T>
Loop pair_loop(F f) {
  const auto loop = [f](int64_t n, const Operand* operands, void* to) {
    const T *x = static_cast<const T*>(operands[0].data), *y = static_cast<const T*>(operands[1].data);
    T* out = static_cast<T*>(to);
    run<F, T>([=] { each<F, T>(f, n, out, [=](int64_t i, const auto& form) { return form(x[i], y[i]); }); });
  };
  return {loop, kFunctorGrain<F, T>};
}

// x to one power that is a product, a quotient or a root, which takes a fraction of the time; false of any other.
template <class T>
bool raise_all(const T* x, T exponent, T* out, int64_t n) {
  const auto give = [=](auto form) {
    widest([=] {
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) out[i] = form(x[i]);
    });
    return true;
  };
  if (exponent == 2) return give([](T value) { return value * value; });
  if (exponent == 3) return give([](T value) { return value * value * value; });
  if (exponent == 4) return give([](T value) { return (value * value) * (value * value); });
  if (exponent == 1) return give([](T value) { return value; });
  if (exponent == 0) return give([](T) { return T(1); });
  if (exponent == -1) return give([](T value) { return 1 / value; });
  if (exponent == T(0.5)) {  // where roots of -0 and of the negative infinity are not those of pow
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    return give([](T value) { return value == -kInfinity ? kInfinity : std::sqrt(value + 0); });
  }
  return false;
}

template <class F, class T>
Loop binary_loop(F f) {
  using Out = Stored<std::invoke_result_t<F, T, T>>;
  const auto loop = [f](int64_t n, const Operand* operands, void* to) {
    const T *x = static_cast<const T*>(operands[0].data), *y = static_cast<const T*>(operands[1].data);
    Out* out = static_cast<Out*>(to);
    const bool x_steps = operands[0].steps, y_steps = operands[1].steps;
    if constexpr (std::is_same_v<F, functor::Pow>)
      if (x_steps && !y_steps && raise_all(x, *y, out, n)) return;
    run<F, T>([=] {
      if (x_steps && y_steps) {
        each<F, T>(f, n, out, [=](int64_t i, const auto& form) { return form(x[i], y[i]); });
      } else if (x_steps) {
        each<F, T>(f, n, out, [=, value = *y](int64_t i, const auto& form) { return form(x[i], value); });
      } else if (y_steps) {
        each<F, T>(f, n, out, [=, value = *x](int64_t i, const auto& form) { return form(value, y[i]); });
      } else {
        std::fill(out, out + n, static_cast<Out>(f(*x, *y)));
      }
    });
  };
  return {loop, kFunctorGrain<F, T>};
}

// How to make the loop of a functor from an op's attributes, in any of its dtypes.
template <class F, Dtypes dtypes>
Loop make_unary_loop(const Attrs& attrs, DType dtype) {
  const auto loop = [&](auto zero) { return unary_loop<F, decltype(zero)>(make<F>(attrs)); };
  if constexpr (dtypes == Dtypes::All) return visit(dtype, loop);
  else return visit_floating(dtype, loop);
}
template <class F, Dtypes dtypes>
Loop make_binary_loop(const Attrs& attrs, DType dtype) {
  const auto loop = [&](auto zero) { return binary_loop<F, decltype(zero)>(make<F>(attrs)); };
  if constexpr (dtypes == Dtypes::All) return visit(dtype, loop);
  else return visit_floating(dtype, loop);
}
template <class F>
Loop make_pair_loop(const Attrs& attrs, DType dtype) {
  return visit_floating(dtype, [&](auto zero) { return pair_loop<F, decltype(zero)>(make<F>(attrs)); });
}

// What mixed precision may do with an element-wise op of this name, or with its gradient. Where cards are given what
// is narrow, and what comes out is wanted so, computing in float32 and rounding gains nothing over it. Not so for what
// magnifies what was rounded, and for what is summed or compared: that is left as it was traced.
NarrowUse narrow_use(const std::string& name);

// Where the inputs have the output's type (or are a single element), the first private layout among them serves all.
// What pads it is computed on and must stay zero, so a layout with padding serves only where `gives_zero` says that
// zeros give zero, and beside no single element, whose value nobody knows yet.
// With `takes_channels` one element for each channel of an image goes with a layout in blocks of channels, too.
void keep_layout(LayoutCall& call, const std::function<bool()>& gives_zero, bool takes_channels = false);
bool gives_zero(const Loop& loop);
// Room for an element of any dtype, zero at first.
struct AnyElement {
  alignas(8) char bytes[8] = {};
  bool is_zero() const {
    return std::all_of(bytes, bytes + sizeof bytes, [](char byte) { return byte == 0; });
  }
};
// Of a value, with what pads it.
int64_t stored_elements(const TensorType& type, const Layout& layout);

// A loop over all elements of values of one shape, shared between threads.
Launch launch_over(Loop loop, const KernelCall& call);
// The kernel of an op whose inputs all have the shape of the result, and of one whose two inputs broadcast.
Kernel kernel_over(MakeLoop make);
Kernel broadcast_kernel(MakeLoop make);

// The ops that may stand in a chain, by name, with the names of their attributes, which are all numbers.
struct Link {
  MakeLoop make;
  int operands;
  std::vector<std::string> attrs;
};
using Links = std::map<std::string, Link, std::less<>>;

// What the ops of the family are added to.
struct Family {
  Catalog& catalog;
  std::shared_ptr<Links> links;

  // Makes the op a link, which looks for the chain that it ends.
  void add_link(OpDef& op, MakeLoop make) const;
};

// The op that chains become, in chain.cpp.
void add_chain(const Family& family);
// The ops of two and three inputs, in binary.cpp.
void add_binary_ops(const Family& family);
void add_where(Catalog& catalog);

}  // namespace moonflow::elementwise
