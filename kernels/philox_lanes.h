// Philox blocks side by side in registers, one in each lane; see philox.h for what a block is. From a loop over blocks
// the compiler makes twice the work: it widens every number to 64 bits and back.
#pragma once

#include "kernels/philox.h"
#include "kernels/simd.h"

namespace moonflow::philox {

template <int kLanes>
struct Lanes {
  typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
  typedef uint32_t Stored __attribute__((vector_size(4 * kLanes), may_alias, aligned(4)));
  typedef uint64_t Pairs __attribute__((vector_size(4 * kLanes)));

  // word[w] of lane i is that word of block `first + i`.
  Words word[4];

  // The first kLanes blocks from `first` on, which is a multiple of that.
  Lanes(const Sequence& sequence, uint64_t first) {
    if constexpr (kLanes > 4)
      mix(sequence, first);
    else
      copy(sequence, first);
  }

 private:
  // Registers of four have no product that is worth it.
  void copy(const Sequence& sequence, uint64_t first) {
    uint32_t numbers[4][kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const Block block = sequence.block(first + static_cast<uint64_t>(i));
      for (int w = 0; w < 4; ++w) numbers[w][i] = block.word[w];
    }
    for (int w = 0; w < 4; ++w) word[w] = reinterpret_cast<const Stored&>(numbers[w]);
  }

  void mix(const Sequence& sequence, uint64_t first) {
    const Block counter = sequence.counter(first, 0);
    uint32_t indices[kLanes];
    for (int i = 0; i < kLanes; ++i) indices[i] = counter.word[0] + static_cast<uint32_t>(i);  // has no carry
    word[0] = reinterpret_cast<const Stored&>(indices);
    for (int w = 1; w < 4; ++w) word[w] = Words{} + counter.word[w];
    uint32_t key0 = sequence.key_word(0), key1 = sequence.key_word(1);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      Words even_high, even_low, odd_high, odd_low;
      multiply(kEvenFactor, word[0], even_high, even_low);
      multiply(kOddFactor, word[2], odd_high, odd_low);
      word[0] = odd_high ^ word[1] ^ key0;
      word[1] = odd_low;
      word[2] = even_high ^ word[3] ^ key1;
      word[3] = even_low;
      key0 += kKeyStep0;
      key1 += kKeyStep1;
    }
  }

  // Both halves of the products with one factor.
  static void multiply(uint32_t factor, const Words& x, Words& high, Words& low) {
    const Words factors = Words{} + factor;
    const Pairs pairs = (Pairs)x, upper = pairs >> 32;
    Pairs even, odd;
    product(pairs, (Pairs)factors, even);
    product(upper, (Pairs)factors, odd);
    low = (Words)(even << 32 >> 32 | odd << 32);
    high = (Words)(even >> 32 | odd >> 32 << 32);
  }

  // Of the low halves of pairs: one instruction, which GCC 12 does not find.
  static void product(const Pairs& x, const Pairs& y, Pairs& to) {
#ifdef __x86_64__
    asm("vpmuludq %2, %1, %0" : "=v"(to) : "v"(x), "v"(y));
#else
    to = (x << 32 >> 32) * (y << 32 >> 32);
#endif
  }
};

}  // namespace moonflow::philox
