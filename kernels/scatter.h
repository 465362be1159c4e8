// Reading rows that indices name, and putting rows there, on the CPU. Indices are checked before anything is written.
#pragma once

#include "engine/op.h"
#include "kernels/into.h"
#include "kernels/picked_rows.h"

namespace moonflow::cpu {

// The rows of their blocks that indices of the type name, each from `given` to `rows`, which has room for
// places.tuples(). Of indices out of bounds the first one is the error.
void find_rows(const PickedRows& places, const TensorType& indices, const void* given, int64_t* rows);

// The one output is the rows that the input `indices` names in the first input, pick by pick.
Launch take_rows(KernelCall& call, const PickedRows& places, int indices);

// The one output is the value of the input `initial`, or what is unpicked where there is none (-1), into which each row
// of `updates` goes in the order of the picks.
Launch scatter_rows(KernelCall& call, const PickedRows& places, Into into, int initial, int indices, int updates);

}  // namespace moonflow::cpu
