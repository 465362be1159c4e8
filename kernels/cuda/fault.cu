#include "kernels/cuda/fault.h"

namespace moonflow::cuda {
namespace {

struct TakeFault {
  static constexpr int kThreads = kWarp;
  FaultNote* note;
  Fault* to;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    if (block.thread() != 0) return;
    *to = note->found ? note->fault : Fault{-1, 0, 0};
    note->found = 0;
  }
};

}  // namespace

void take_fault(Stream& stream, FaultNote* note, Fault* to) { launch(stream, 1, TakeFault{note, to}); }

}  // namespace moonflow::cuda
