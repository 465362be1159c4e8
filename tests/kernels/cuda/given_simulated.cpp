#include "given_card.h"

#include "kernels/simulated/device.h"
#include "kernels/simulated/fibers.h"

namespace moonflow::cuda {

std::unique_ptr<Device> make_given_card() { return make_simulated_device(); }

SmallBlocks::SmallBlocks() { simulated::most_shared_bytes = (64 << 10) - 512; }  // beside what threads exchange
SmallBlocks::~SmallBlocks() { simulated::most_shared_bytes = simulated::kMostSharedBytes; }

}  // namespace moonflow::cuda
