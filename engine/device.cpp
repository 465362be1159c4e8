#include "engine/device.h"

namespace moonflow {

const char* name(DeviceKind kind) { return kind == DeviceKind::Cpu ? "cpu" : "gpu"; }

}  // namespace moonflow
