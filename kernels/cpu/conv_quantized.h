// Convolutions and products of bytes on the CPU: exact sums in 32 bits.
#pragma once

#include "kernels/quantized_conv.h"

namespace moonflow::cpu {

// For all sizes. The filter has a layout of its own, and images may have all channels of a place side by side.
void quantized_conv_layouts(const QuantizedConv& sizes, LayoutCall& call);
void quantized_dense_layouts(const QuantizedConv& sizes, LayoutCall& call);
// Of either.
Launch quantized_conv(const QuantizedConv& sizes, KernelCall& call);

// Of such a filter. `quantized_filter` puts a row-major one there.
bool is_quantized_filter(const Layout& layout);
Launch quantized_filter(const Layout& layout);

}  // namespace moonflow::cpu
