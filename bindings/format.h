// Arrays as text, by NumPy's rules.
#pragma once

#include <string>

#include "engine/tensor.h"

namespace moonflow {

struct FormatOptions {
  int precision = 8;         // most digits after the point
  int64_t threshold = 1000;  // arrays of more elements are summarised
  int64_t edge_items = 3;    // shown at each end of a summarised axis
  int64_t line_width = 75;
  bool suppress = false;  // never scientific for small numbers or large ratios
};

std::string format(const Tensor& array, const FormatOptions& options);

}  // namespace moonflow
