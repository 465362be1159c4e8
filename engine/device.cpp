#include "engine/device.h"

#include "engine/op.h"

namespace moonflow {

const char* name(DeviceKind kind) { return kind == DeviceKind::Cpu ? "cpu" : "gpu"; }

const Kernel& Device::kernel(const OpDef& op) const { return op.cpu; }

bool Device::computes_bfloat16(const OpDef& op, const OpCall& call) const {
  return !op.bfloat16.pays || op.bfloat16.pays(call);
}

}  // namespace moonflow
