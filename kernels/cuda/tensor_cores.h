// Products of small tiles in shared memory by a warp, whose factors are rounded to TF32: numbers of float32 with 10
// bits of fraction. On a card whose machine code we build tensor cores multiply; elsewhere, and on the simulated card,
// each thread computes the sums that it would have there.
#pragma once

#include <cstring>

#include "kernels/cuda/device.h"
#include "kernels/cuda/elements.h"

namespace moonflow::cuda {

// Other cards than those of 9.0 are given PTX for 7.5, which does not know TF32: there float32 is faster.
inline bool has_tensor_cores(Device& device) { return runtime(device).properties().capability / 10 == 9; }

// The bits of x rounded to TF32: to the nearest one, and from the middle away from zero. A card cuts off the last 13
// bits of what it multiplies, half of a last place on the average, and as much is added here, by a multiplication: that
// takes one instruction and leaves infinities and NaN alone, where the card's rounding takes two and waits in between.
// So what is within 0.15 of a last place of a middle may go the other way, and what is in TF32 stays what it is.
MOONFLOW_DEVICE inline uint32_t tf32_bits(float x) {
#if __CUDA_ARCH__ >= 800
  return __float_as_uint(x * 1.000341796875f);  // 1 + 0.7 / 2^11: from 0.35 to 0.7 of a last place more
#else
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7f800000) != 0x7f800000) bits = (bits + 0x1000) & ~uint32_t{0x1fff};
  return bits;
#endif
}
MOONFLOW_DEVICE inline float to_tf32(float x) {
  const uint32_t bits = tf32_bits(x);
  memcpy(&x, &bits, sizeof x);
  return x;
}

// Whether the code that is being compiled is for a card whose tensor cores multiply.
MOONFLOW_DEVICE constexpr bool on_tensor_cores() {
#if __CUDA_ARCH__ >= 800
  return true;
#else
  return false;
#endif
}

// The sums of a tile of the result, kRows * kColumns of them (multiples of 16 and 8), each thread of the warp has those
// of pairs of neighbours in a row.
template <int kRows, int kColumns>
class WarpSums {
 public:
  static constexpr int kDepth = 8;  // what is added at a time
  static constexpr int kPairs = kRows * kColumns / 64;
  static MOONFLOW_DEVICE int row(int lane, int pair) { return pair / 2 / kTilesAcross * 16 + pair % 2 * 8 + lane / 4; }
  static MOONFLOW_DEVICE int column(int lane, int pair) { return pair / 2 % kTilesAcross * 8 + lane % 4 * 2; }
  MOONFLOW_DEVICE float of(int pair, int i) const { return sums_[2 * pair + i]; }

  // Adds the product of a, (kRows, kDepth), and b, (kDepth, kColumns), whose elements are a(row, k) and b(k, column).
  // All threads of the warp take part.
  template <class A, class B>
  MOONFLOW_DEVICE void add(int lane, const A& a, const B& b) {
#if __CUDA_ARCH__ >= 800
    // Where each thread has its elements of the factors is as the instruction wants it (PTX, "matrix fragments for
    // mma.m16n8k8").
    const int group = group_of(lane), own = lane & 3;
    uint32_t as[kRows / 16][4], bs[kTilesAcross][2];
    MOONFLOW_UNROLL
    for (int i = 0; i < kRows / 16 * 4; ++i)
      as[i / 4][i % 4] = tf32_bits(a(i / 4 * 16 + i % 2 * 8 + group, i % 4 / 2 * 4 + own));
    MOONFLOW_UNROLL
    for (int i = 0; i < kTilesAcross * 2; ++i) bs[i / 2][i % 2] = tf32_bits(b(i % 2 * 4 + own, i / 2 * 8 + group));
    multiply(as, bs);
#else
    for (int k = 0; k < kDepth; ++k) {
      MOONFLOW_UNROLL
      for (int at = 0; at < 2 * kPairs; ++at)
        sums_[at] += to_tf32(a(row(lane, at / 2), k)) * to_tf32(b(k, column(lane, at / 2) + at % 2));
    }
#endif
  }

  // The same of factors in shared memory, where the four neighbours of row `row` of a from k on (0 or 4) lie at
  // a(row, k), rounded already: the warp reads them together.
  template <class A, class B>
  MOONFLOW_DEVICE void add_rows(int lane, const A& a, const B& b) {
#if __CUDA_ARCH__ >= 800
    const int group = group_of(lane), own = lane & 3;
    uint32_t as[kRows / 16][4], bs[kTilesAcross][2];
    // Each eight threads say where eight rows begin, and each thread is given its own number of every eight.
    MOONFLOW_UNROLL
    for (int i = 0; i < kRows / 16; ++i) {
      const float* const row = a(i * 16 + (lane & 15), (lane >> 4 & 1) * 4);
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(as[i][0]), "=r"(as[i][1]), "=r"(as[i][2]), "=r"(as[i][3])
                   : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
                   : "memory");
    }
    MOONFLOW_UNROLL
    for (int i = 0; i < kTilesAcross * 2; ++i) bs[i / 2][i % 2] = tf32_bits(b(i % 2 * 4 + own, i / 2 * 8 + group));
    multiply(as, bs);
#else
    add(
        lane, [&](int row, int k) { return a(row, k / 4 * 4)[k % 4]; }, b);
#endif
  }

  // Adds the product of a, (kRows, inner), and b, (inner, kColumns), over every `step`-th run of 16 of the inner axis
  // from the `first` on. a(row, k) and b(column, k) give the four neighbours from k on, with zeros beyond the end.
  template <class A, class B>
  MOONFLOW_DEVICE void add_runs(int lane, int64_t inner, int first, int step, const A& a, const B& b) {
    constexpr int kRun = 16;
    const int runs = static_cast<int>((inner + kRun - 1) / kRun);
#if __CUDA_ARCH__ >= 800
    // In which order a sum takes its products is free, so a thread has neighbours of a run, which come at once. A few
    // runs are on their way at a time.
    constexpr int kAhead = 4;
    const int group = lane / 4, own = lane % 4 * 4;
    Pack<float, 4> of_a[kAhead][kRows / 8], of_b[kAhead][kTilesAcross];
    const auto fetch = [&](int slot, int run) {
      if (run >= runs) return;
      MOONFLOW_UNROLL
      for (int i = 0; i < kRows / 8; ++i) of_a[slot][i] = a(8 * i + group, run * kRun + own);
      MOONFLOW_UNROLL
      for (int i = 0; i < kTilesAcross; ++i) of_b[slot][i] = b(8 * i + group, run * kRun + own);
    };
    MOONFLOW_UNROLL
    for (int slot = 0; slot < kAhead; ++slot) fetch(slot, first + slot * step);
    for (int run = first; run < runs; run += kAhead * step) {
      MOONFLOW_UNROLL
      for (int slot = 0; slot < kAhead; ++slot) {
        if (run + slot * step >= runs) continue;
        MOONFLOW_UNROLL
        for (int half = 0; half < 2; ++half) {
          uint32_t as[kRows / 16][4], bs[kTilesAcross][2];
          MOONFLOW_UNROLL
          for (int i = 0; i < kRows / 16 * 4; ++i)
            as[i / 4][i % 4] = tf32_bits(of_a[slot][i / 4 * 2 + i % 2].values[half * 2 + i % 4 / 2]);
          MOONFLOW_UNROLL
          for (int i = 0; i < kTilesAcross * 2; ++i)
            bs[i / 2][i % 2] = tf32_bits(of_b[slot][i / 2].values[half * 2 + i % 2]);
          multiply(as, bs);
        }
        fetch(slot, run + (slot + kAhead) * step);
      }
    }
#else
    for (int run = first; run < runs; run += step) {
      for (int64_t k = int64_t{run} * kRun; k < (int64_t{run} + 1) * kRun; k += 4) {
        MOONFLOW_UNROLL
        for (int at = 0; at < 2 * kPairs; ++at) {
          const Pack<float, 4> of_a = a(row(lane, at / 2), k), of_b = b(column(lane, at / 2) + at % 2, k);
          for (int i = 0; i < 4; ++i) sums_[at] += to_tf32(of_a.values[i]) * to_tf32(of_b.values[i]);
        }
      }
    }
#endif
  }

 private:
  static constexpr int kTilesAcross = kColumns / 8;
  // The compiler sees that it is less than 8, so what depends on 8 * i + group / 8 is known to it.
  static MOONFLOW_DEVICE int group_of(int lane) { return lane >> 2 & 7; }

#if __CUDA_ARCH__ >= 800
  MOONFLOW_DEVICE void multiply(const uint32_t (&as)[kRows / 16][4], const uint32_t (&bs)[kTilesAcross][2]) {
    MOONFLOW_UNROLL
    for (int tile = 0; tile < kPairs / 2; ++tile) {
      float* const sums = sums_ + 4 * tile;
      const uint32_t *const left = as[tile / kTilesAcross], *const right = bs[tile % kTilesAcross];
      asm volatile(
          "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
          : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
    }
  }
#endif

  float sums_[2 * kPairs] = {};
};

}  // namespace moonflow::cuda
