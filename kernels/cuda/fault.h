// What a kernel found wrong with the values it was given: where the CPU throws before it writes, a card has long been
// asked to go on. The first fault of a run stays noted in the device's memory, every kernel that changes variables
// looks there first and leaves them alone, and at the end of the run it becomes the error of the step that found it.
#pragma once

#include <cstdint>

#include "kernels/cuda/block.h"

namespace moonflow::cuda {

struct FaultNote {
  int found;  // 0: nothing. 1: somebody has found one, and it is being written down
  Fault fault;
};

// Where the launches of this stream note a fault: device memory.
FaultNote* fault_note(Stream& stream);

template <class Block>
MOONFLOW_DEVICE void note_fault(const Block& block, FaultNote* note, int step, int64_t place, int64_t value) {
  if (block.compare_and_swap(&note->found, 0, 1) == 0) note->fault = {step, place, value};
}

}  // namespace moonflow::cuda
