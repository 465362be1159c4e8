// Counts in wholes: of blocks, tiles, lines.
#pragma once

#include <cstdint>

namespace moonflow::cpu {

constexpr int64_t divide_up(int64_t count, int64_t by) { return (count + by - 1) / by; }
constexpr int64_t round_up(int64_t count, int64_t unit) { return divide_up(count, unit) * unit; }

}  // namespace moonflow::cpu
