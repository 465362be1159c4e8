// What the fused ops of batch normalisation do behind it, on every device.
#pragma once

namespace moonflow {

// In the same pass over memory.
enum class Tail { None, Relu, AddRelu, Relu6 };

}  // namespace moonflow
