#include "engine/device.h"

#include "engine/op.h"

namespace moonflow {

const char* name(DeviceKind kind) { return kind == DeviceKind::Cpu ? "cpu" : "gpu"; }

const Kernel& Device::kernel(const OpDef& op) const { return op.cpu; }

bool Device::computes_in(DType narrow, const OpDef& op, const OpCall& call) const {
  return !op.narrow.pays || op.narrow.pays(call, narrow);
}

bool Device::rounds_to(DType narrow, const OpDef& op, const OpCall& call) const {
  return op.narrow.rounds && op.narrow.rounds(call, narrow);
}

}  // namespace moonflow
