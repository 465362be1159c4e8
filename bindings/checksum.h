// The checksum of values in checkpoints.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace moonflow {

// XXH3 in 64 bits, as 16 hexadecimal digits.
std::string checksum_of(const void* data, size_t bytes);
// The same of bytes that lie in several places, as if they stood one behind the other.
std::string checksum_of(const std::vector<std::string_view>& parts);

}  // namespace moonflow
