#include "bindings/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace moonflow {

std::string checksum_of(const void* data, size_t bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  XXH64_hash_t value = XXH3_64bits(data, bytes);
  std::string digits(16, '0');
  for (size_t i = 16; i-- > 0; value >>= 4) digits[i] = kDigits[value & 15];
  return digits;
}

}  // namespace moonflow
