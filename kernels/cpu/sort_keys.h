// Sorting of numbers without a sign, which order.h's keys are. The result is the same whatever sorts.
#pragma once

#include <cstdint>

namespace moonflow::cpu {

// Puts `count` keys in order, with room for as many; gives where they are then. The lowest `known` bits, a multiple of
// eight, are in order already among keys that are otherwise alike.
template <class K>
K* sort_keys(K* keys, K* room, int64_t count, int known = 0);

// Puts at each of some places, which ascend, the key that would be there if all were in order. Gives where they are.
template <class K>
K* pick_keys(K* keys, K* room, int64_t count, const int64_t* places, int64_t how_many);

}  // namespace moonflow::cpu
