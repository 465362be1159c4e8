// The source of a CUDA kernel for a chain of element-wise ops. The functors are those of kernels/elementwise.h: its
// text is part of this library, and the kernel's names them. Plain text in and out; nothing of CUDA is needed here.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/op.h"

namespace moonflow::cuda {

// Elements that a thread takes: 16 bytes of them.
constexpr int elements_of_thread(DType dtype) { return dtype == DType::Float64 ? 2 : is_narrow(dtype) ? 8 : 4; }
constexpr int kChainThreads = 256;

// A kernel `chain(count, leaf0, ..., out)` for the op element_chain with these attributes and types. Throws where the
// attributes name what is not an element-wise op of numbers.
std::string chain_source(const Attrs& attrs, const std::vector<TensorType>& leaves, const TensorType& out);

// The names of all ops that may stand in a chain, with the numbers their attributes need and how many operands.
struct ChainLink {
  std::string op;
  int operands;
  int numbers;
};
std::vector<ChainLink> chain_links();

// What the source includes: the name and the text of each header. A compiler for the card has no headers of its own.
std::vector<std::pair<std::string, std::string>> chain_headers();

}  // namespace moonflow::cuda
