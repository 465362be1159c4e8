// What a convolution does to its sums before it stores them.
#pragma once

#include "kernels/elementary.h"

namespace moonflow {

enum class Activation { None, Relu, Relu6 };

// As the ops of these names compute it, which let a NaN through.
template <class T>
MOONFLOW_BOTH T activated(Activation activation, T y) {
  if (activation == Activation::None) return y;
  if (y < 0) return T(0);
  return activation == Activation::Relu6 && y > 6 ? T(6) : y;
}

// Whether a gradient passes it, by what it was given and by what it gave alike.
template <class T>
MOONFLOW_BOTH bool passes(Activation activation, T y) {
  return activation == Activation::None || (y > 0 && (activation != Activation::Relu6 || y < 6));
}

}  // namespace moonflow
