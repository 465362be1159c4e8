// Sizes of memory in messages.
#pragma once

#include <cstdint>
#include <string>

#include "engine/error.h"

namespace moonflow {

// "1.5 GiB", "10.2 MiB", "300 bytes"
inline std::string size_text(int64_t bytes) {
  const auto in = [&](int64_t unit, const char* name) {
    return text(bytes / unit, ".", bytes % unit * 10 / unit, " ", name);
  };
  if (bytes >= int64_t{1} << 30) return in(int64_t{1} << 30, "GiB");
  if (bytes >= int64_t{1} << 20) return in(int64_t{1} << 20, "MiB");
  return text(bytes, " bytes");
}

}  // namespace moonflow
