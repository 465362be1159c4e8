#include "bindings/checksum.h"

#define XXH_INLINE_ALL
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define XXH_NO_INLINE_HINTS 1  // some of which cannot be met then, and that is an error
#endif
#include <xxhash.h>

namespace moonflow {

namespace {

std::string digits_of(XXH64_hash_t value) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string digits(16, '0');
  for (size_t i = 16; i-- > 0; value >>= 4) digits[i] = kDigits[value & 15];
  return digits;
}

}  // namespace

std::string checksum_of(const void* data, size_t bytes) { return digits_of(XXH3_64bits(data, bytes)); }

std::string checksum_of(const std::vector<std::string_view>& parts) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (const std::string_view part : parts)
    if (!part.empty()) XXH3_64bits_update(&state, part.data(), part.size());
  return digits_of(XXH3_64bits_digest(&state));
}

}  // namespace moonflow
