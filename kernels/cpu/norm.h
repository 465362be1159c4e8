// The loops of batch normalisation on the CPU, for values in rows, channels last, or in blocks of channels.
#pragma once

#include "engine/op.h"
#include "kernels/norm.h"

namespace moonflow::cpu {

// Keeps the private layout of a value where it is a form of channels; all inputs of its type, and the outputs, follow.
void batch_norm_layouts(LayoutCall& call);

// The ops of norm.cpp, which has their inputs and outputs. Checked there.
Launch batch_norm_train(KernelCall& call, double epsilon, Tail tail);
Launch batch_norm_train_grad(KernelCall& call, Tail tail);
Launch batch_norm_infer(KernelCall& call, double epsilon);
Launch batch_norm_infer_grad(KernelCall& call, double epsilon);

}  // namespace moonflow::cpu
