// Checkpoints: a folder with one `<variable>/out` per variable, raw little-endian and row-major as the original system
// has it, plus a manifest with shapes, dtypes, checksums and whatever the caller adds. Reading trusts nothing in it,
// and takes what the original wrote, whose types stand in `<variable>/meta` or, with its first versions, nowhere.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings/json.h"
#include "engine/tensor.h"

namespace moonflow {

struct NamedType {
  std::string name;
  TensorType type;
};

struct Checkpoint {
  std::map<std::string, Tensor> values;
  Json manifest;  // null for a folder that the original system wrote
};

// On any error the old checkpoint stays as it was, and nothing new is left behind.
void write_checkpoint(const std::string& path, const std::map<std::string, Tensor>& values, const Json& meta,
                      bool overwrite);

// The values of those wanted variables that are there, or of all that are. A wrong shape, dtype, size or checksum is an
// error. One that is replaced meanwhile is read as it was or as it is then.
Checkpoint read_checkpoint(const std::string& path, const std::optional<std::vector<NamedType>>& wanted,
                           const std::shared_ptr<HostMemory>& memory);

}  // namespace moonflow
