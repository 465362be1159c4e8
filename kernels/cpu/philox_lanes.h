// Philox blocks side by side in registers, one in each lane; see philox.h for what a block is. From a loop over blocks
// the compiler makes twice the work: it widens every number to 64 bits and back.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/philox.h"

namespace moonflow::philox {

template <int kLanes>
struct Lanes {
  typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
  typedef uint32_t Stored __attribute__((vector_size(4 * kLanes), may_alias, aligned(4)));
  typedef uint64_t Pairs __attribute__((vector_size(4 * kLanes)));
  typedef uint64_t StoredPairs __attribute__((vector_size(4 * kLanes), may_alias, aligned(8)));

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

  // A product of two words fills a pair of lanes, so even and odd lanes go through the rounds apart, each word in the
  // lower half of a pair. What is in the upper halves is of no meaning: products take the lower ones only.
  void mix(const Sequence& sequence, uint64_t first) {
    const Block counter = sequence.counter(first, 0);
    static constexpr uint64_t kEven[] = {0, 2, 4, 6, 8, 10, 12, 14};
    const Pairs numbers = reinterpret_cast<const StoredPairs&>(kEven) + counter.word[0];  // has no carry
    Counters even{numbers, Pairs{} + counter.word[1], Pairs{} + counter.word[2], Pairs{} + counter.word[3]};
    Counters odd{numbers + 1, even.word1, even.word2, even.word3};
    uint32_t key0 = sequence.key_word(0), key1 = sequence.key_word(1);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      mix_once(key0, key1, even);
      mix_once(key0, key1, odd);
      key0 += kKeyStep0;
      key1 += kKeyStep1;
    }
    join(even.word0, odd.word0, word[0]);
    join(even.word1, odd.word1, word[1]);
    join(even.word2, odd.word2, word[2]);
    join(even.word3, odd.word3, word[3]);
  }

  static void join(const Pairs& even, const Pairs& odd, Words& to) { to = (Words)(even << 32 >> 32 | odd << 32); }

  struct Counters {
    Pairs word0, word1, word2, word3;
  };
  static void mix_once(uint32_t key0, uint32_t key1, Counters& counters) {
    Pairs even, odd;
    product(counters.word0, Pairs{} + kEvenFactor, even);
    product(counters.word2, Pairs{} + kOddFactor, odd);
    counters = {odd >> 32 ^ (counters.word1 ^ key0), odd, even >> 32 ^ (counters.word3 ^ key1), even};
  }

  // Of the lower halves of pairs: one instruction, which GCC 12 does not find.
  static void product(const Pairs& x, const Pairs& y, Pairs& to) {
#ifdef MOONFLOW_SIMD_VERSIONS
    asm("vpmuludq %2, %1, %0" : "=v"(to) : "v"(x), "v"(y));
#else
    to = (x << 32 >> 32) * (y << 32 >> 32);
#endif
  }
};

}  // namespace moonflow::philox
