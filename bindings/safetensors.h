// The safetensors format: an 8-byte length, a JSON header with dtype, shape and place of each tensor, then the bytes.
// Reading trusts nothing: every place is checked against the size and the other places before it is used.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "engine/tensor.h"

namespace moonflow {

using Metadata = std::map<std::string, std::string>;

// Little-endian and row-major, tensors by rising name, the first at a multiple of 8 bytes. The metadata also get a
// checksum of the whole, which reading looks at where there is one, and keeps to itself.
std::string write_safetensors(const std::map<std::string, Tensor>& tensors, const Metadata& metadata);
// The same into a file; see replace_file.
void save_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors, const Metadata& metadata);

struct Safetensors {
  std::map<std::string, Tensor> tensors;
  Metadata metadata;
  // Tensors that cannot be had here, as of eight bits of a float, and what to say to whoever wants one of them.
  std::map<std::string, std::string> left_out;
};
Safetensors read_safetensors(std::string_view bytes, const std::shared_ptr<HostMemory>& memory);
Safetensors load_safetensors(const std::string& path, const std::shared_ptr<HostMemory>& memory);
// From the header alone, so that the checksum is not looked at: it is one of all.
Metadata load_safetensors_metadata(const std::string& path);

}  // namespace moonflow
