// The CUDA kernels by the name of their op. One function per family, each in the .cu file of its name.
#pragma once

#include <map>
#include <string>

#include "engine/op.h"

namespace moonflow::cuda {

struct CudaKernel : Kernel {
  // It knows bfloat16. Others are given it widened to float32, and what they give is rounded.
  bool bfloat16 = false;
};
using Kernels = std::map<std::string, CudaKernel, std::less<>>;

// All of them.
Kernels make_kernels();

void add_binary(Kernels& kernels);
void add_elementwise(Kernels& kernels);
void add_loss(Kernels& kernels);
void add_matmul(Kernels& kernels);
void add_reduce(Kernels& kernels);
void add_softmax(Kernels& kernels);

}  // namespace moonflow::cuda
