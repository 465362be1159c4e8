// The checksum of values in checkpoints.
#pragma once

#include <cstddef>
#include <string>

namespace moonflow {

// XXH3 in 64 bits, as 16 hexadecimal digits.
std::string checksum_of(const void* data, size_t bytes);

}  // namespace moonflow
