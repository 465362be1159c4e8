#include "given_card.h"

#include "kernels/simulated/device.h"

namespace moonflow::cuda {

std::unique_ptr<Device> make_given_card() { return make_simulated_device(); }

}  // namespace moonflow::cuda
