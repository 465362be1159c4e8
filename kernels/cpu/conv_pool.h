// What becomes of a convolution's sums in registers: an activation, or max pooling of 2x2 windows, as the kernels of
// conv2d_relu_pool store a window and read it back.
#pragma once

#include "kernels/activation.h"
#include "kernels/cpu/simd.h"

namespace moonflow::cpu {

// As activated() of each: a NaN stays one.
template <class R>
void activate(Activation activation, typename R::Vector& sums) {
  if (activation == Activation::None) return;
  sums = sums < 0 ? typename R::Vector{} : sums;
  if (activation == Activation::Relu6) sums = sums > 6 ? typename R::Vector{} + 6 : sums;
}

// The largest of a window after relu, and its number among them in row-major order; 4 where it is not positive.
template <class R>
void pool_window(const typename R::Vector& a, const typename R::Vector& b, const typename R::Vector& c,
                 const typename R::Vector& d, float* out, uint8_t* places) {
  using Vector = typename R::Vector;
  using Integers = typename R::Integers;
  const Vector zero{};
  // Selects of what is compared alone: what is done with comparisons themselves, GCC 12 does number by number.
  const Vector p = a > zero ? a : zero, q = b > zero ? b : zero, r = c > zero ? c : zero, s = d > zero ? d : zero;
  const Vector above = q > p ? q : p, below = s > r ? s : r, most = below > above ? below : above;
  const Integers place = below > above ? 2 - (s > r) : Integers{} - (q > p);
  // NaN where there is no number.
  const Vector first = a == a ? a : b, second = first == first ? first : c, last = second == second ? second : d;
  const Vector rest = last < zero ? zero : last;
  R::at(out) = most > zero ? most : rest;
  R::narrow(most > zero ? place : Integers{} + 4, places);
}

// What comes back to the place of that number: the gradient, where the maximum was there.
template <class R>
void pass_to_place(const typename R::Vector& gradient, const typename R::Integers& places, int place,
                   typename R::Vector& to) {
  to = places == place ? gradient : typename R::Vector{};
}

}  // namespace moonflow::cpu
