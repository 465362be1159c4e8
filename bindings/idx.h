// The IDX format of the MNIST files, plain or gzip-compressed, judged by the first bytes and not by the name.
#pragma once

#include <memory>
#include <string>

#include "engine/tensor.h"

namespace moonflow {

Tensor read_idx(const std::string& path, const std::shared_ptr<HostMemory>& memory);

}  // namespace moonflow
