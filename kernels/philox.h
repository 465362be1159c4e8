// Random numbers as a pure function of where they are used: Philox4x32 with ten rounds, keyed by (seed, name), counted
// by (step, element). No state, so every thread and every device can make its own part and all agree.
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include "kernels/rounded.h"

namespace moonflow::philox {

struct Block {
  uint32_t word[4];
};

constexpr uint32_t kEvenFactor = 0xD2511F53, kOddFactor = 0xCD9E8D57;
constexpr uint32_t kKeyStep0 = 0x9E3779B9, kKeyStep1 = 0xBB67AE85;  // golden ratio, sqrt(3) - 1

// One round mixes the words by two multiplications whose low and high halves go to different places.
MOONFLOW_HOST_DEVICE inline Block random_block(Block counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t even = uint64_t{kEvenFactor} * counter.word[0], odd = uint64_t{kOddFactor} * counter.word[2];
    counter = {{static_cast<uint32_t>(odd >> 32) ^ counter.word[1] ^ key0, static_cast<uint32_t>(odd),
                static_cast<uint32_t>(even >> 32) ^ counter.word[3] ^ key1, static_cast<uint32_t>(even)}};
    key0 += kKeyStep0;
    key1 += kKeyStep1;
  }
  return counter;
}

// The finaliser of splitmix64: every bit of the input changes about half of the output.
MOONFLOW_HOST_DEVICE inline uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// FNV-1a: the same on every machine, unlike std::hash.
inline uint64_t hash_of(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return hash;
}

// The numbers of one named use in one step: block(i) for i = 0, 1, ... below 2^56.
class Sequence {
 public:
  MOONFLOW_HOST_DEVICE Sequence(int64_t seed, uint64_t name_hash, int64_t step)
      : key_(mixed(mixed(static_cast<uint64_t>(seed) + 0x9E3779B97F4A7C15) ^ name_hash)),
        step_(static_cast<uint64_t>(step)) {}

  // `attempt`, at most 255, gives fresh blocks for the same index, for those who reject some.
  MOONFLOW_HOST_DEVICE Block block(uint64_t index, uint32_t attempt = 0) const {
    return random_block(counter(index, attempt), key_word(0), key_word(1));
  }
  // What the block is made of.
  MOONFLOW_HOST_DEVICE Block counter(uint64_t index, uint32_t attempt) const {
    return {{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32) | attempt << 24,
             static_cast<uint32_t>(step_), static_cast<uint32_t>(step_ >> 32)}};
  }
  MOONFLOW_HOST_DEVICE uint32_t key_word(int i) const { return static_cast<uint32_t>(key_ >> 32 * i); }

 private:
  uint64_t key_, step_;
};

// 64 bits from one half (0 or 1) of a block.
MOONFLOW_HOST_DEVICE inline uint64_t bits_of(const Block& block, int half) {
  return uint64_t{block.word[2 * half + 1]} << 32 | block.word[2 * half];
}

// Uniform in [0, 1), a multiple of 2^-53, or of 2^-24 where float32 must stay below 1. Both from the top bits, so the
// float32 number is the float64 one rounded down.
MOONFLOW_HOST_DEVICE inline double uniform53(uint64_t bits) {
  return double_of(static_cast<int64_t>(bits >> 11)) * 0x1p-53;
}
MOONFLOW_HOST_DEVICE inline float uniform24(uint64_t bits) {
  return static_cast<float>(static_cast<int32_t>(bits >> 40)) * 0x1p-24f;
}

// Uniform in [0, bound) for bound >= 1: the high half of bits * bound. Off from uniform by less than bound / 2^64.
MOONFLOW_HOST_DEVICE inline uint64_t below(uint64_t bits, uint64_t bound) {
  const uint64_t bits_low = bits & 0xFFFFFFFF, bits_high = bits >> 32;
  const uint64_t bound_low = bound & 0xFFFFFFFF, bound_high = bound >> 32;
  const uint64_t middle = bits_high * bound_low + (bits_low * bound_low >> 32);
  return bits_high * bound_high + (middle >> 32) + ((bits_low * bound_high + (middle & 0xFFFFFFFF)) >> 32);
}

// Two independent standard normals from one block, by Box and Muller. In double for every dtype, so that the float32
// number is the float64 one rounded. The radius is that of 1 - u, which is never 0.
struct NormalPair {
  double first, second;
};
MOONFLOW_HOST_DEVICE inline NormalPair normal_pair(const Block& block) {
  constexpr int64_t kOne = int64_t{1} << 53;
  const Rounded log = log_of_fraction(kOne - static_cast<int64_t>(bits_of(block, 0) >> 11));
  const Rounded radius{sqrt(-2 * log.value)};
  const Turn turn = turn_of_fraction(static_cast<int64_t>(bits_of(block, 1) >> 11));
  return {(radius * Rounded{turn.cosine}).value, (radius * Rounded{turn.sine}).value};
}

// A standard normal with |z| < 2: the first of the pairs' values that is. Each is refused with probability 0.0455, so
// 256 pairs never run out in practice; zero stands in if they do.
MOONFLOW_HOST_DEVICE inline double truncated_normal(const Sequence& sequence, uint64_t index, uint32_t attempt = 0) {
  for (; attempt < 256; ++attempt) {
    const NormalPair pair = normal_pair(sequence.block(index, attempt));
    if (fabs(pair.first) < 2) return pair.first;
    if (fabs(pair.second) < 2) return pair.second;
  }
  return 0;
}

}  // namespace moonflow::philox
