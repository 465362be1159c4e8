// A chain with leaves of every kind: rows, values of the result's type, a single number.
#pragma once

#include "engine/op.h"

inline moonflow::Attrs chain_trial_attrs() {
  using namespace moonflow;
  return {{"ops", std::string("multiply leaky_relu add exp tanh_grad subtract multiply clip_by_value")},
          {"operands", Ints{1, 0, -1, -2, 2, -3, -4, -3, -5, 3, -6, -2, -7}},
          {"numbers", Floats{0.1, -0.5, 1e300}}};
}

inline std::vector<moonflow::TensorType> chain_trial_leaves(moonflow::DType dtype) {
  return {{dtype, {70}}, {dtype, {5, 70}}, {dtype, {5, 70}}, {dtype, {}}};
}
