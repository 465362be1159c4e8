// The tile registers of AMX, 0 to 7, and their product of bfloat16: of 16 rows of 16 pairs by 16 pairs of 16 columns,
// in one instruction. To be used where has_tiles(). MOONFLOW_SIMULATED_AVX512 makes them of plain C++.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd.h"

#ifdef MOONFLOW_SIMULATED_AVX512
#include <cstring>
#endif

namespace moonflow::cpu::amx {

constexpr int64_t kRows = 16, kRowBytes = 64;  // of a whole tile

// How much of each tile there is, as the processor reads it.
struct alignas(64) Shapes {
  uint8_t palette = 1, begin = 0, none[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t its_rows) {
    rows[tile] = static_cast<uint8_t>(its_rows);
    row_bytes[tile] = kRowBytes;
  }
};

// Four sums, of two tiles of rows and two of columns, so that what is loaded is used twice.
enum Tile { kSum, kSumRight, kSumBelow, kSumBelowRight, kLeft, kLeftBelow, kRight, kRightNext };

inline Shapes four_sums(int64_t rows, int64_t rows_below) {
  Shapes shapes;
  for (const Tile tile : {kSum, kSumRight, kLeft}) shapes.set(tile, rows);
  for (const Tile tile : {kSumBelow, kSumBelowRight, kLeftBelow}) shapes.set(tile, rows_below);
  for (const Tile tile : {kRight, kRightNext}) shapes.set(tile, kRows);
  return shapes;
}

#if defined(MOONFLOW_SIMD_VERSIONS)

// All tiles become zero.
inline void configure(const Shapes& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes)); }
inline void release() { asm volatile("tilerelease"); }

template <int kTile>
[[gnu::always_inline]] inline void zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
template <int kTile>
[[gnu::always_inline]] inline void load(const void* from, int64_t stride_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride_bytes), "i"(kTile) : "memory");
}
template <int kTile>
[[gnu::always_inline]] inline void store(void* to, int64_t stride_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride_bytes), "i"(kTile) : "memory");
}
// sum += left * right, in float32.
template <int kSum, int kLeft, int kRight>
[[gnu::always_inline]] inline void multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
}
// sum += left * right, of four bytes each, those of left without signs and those of right with them, in 32 bits.
template <int kSum, int kLeft, int kRight>
[[gnu::always_inline]] inline void multiply_bytes() {
  asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
}

#elif defined(MOONFLOW_SIMULATED_AVX512)

struct Registers {
  Shapes shapes;
  uint32_t tiles[8][kRows][kRows] = {};
};
inline thread_local Registers registers;

inline void configure(const Shapes& shapes) { registers = {shapes}; }
inline void release() { registers = {}; }

template <int kTile>
void zero() {
  std::memset(registers.tiles[kTile], 0, sizeof registers.tiles[kTile]);
}
template <int kTile>
void load(const void* from, int64_t stride_bytes) {
  zero<kTile>();
  for (int64_t i = 0; i < registers.shapes.rows[kTile]; ++i)
    std::memcpy(registers.tiles[kTile][i], static_cast<const char*>(from) + i * stride_bytes,
                registers.shapes.row_bytes[kTile]);
}
template <int kTile>
void store(void* to, int64_t stride_bytes) {
  for (int64_t i = 0; i < registers.shapes.rows[kTile]; ++i)
    std::memcpy(static_cast<char*>(to) + i * stride_bytes, registers.tiles[kTile][i],
                registers.shapes.row_bytes[kTile]);
}

inline float number(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// The first numbers of the pairs are summed for themselves, and so are the second ones.
template <int kSum, int kLeft, int kRight>
void multiply() {
  for (int64_t i = 0; i < registers.shapes.rows[kSum]; ++i) {
    for (int64_t j = 0; j < kRows; ++j) {
      float sums[2] = {};
      for (int64_t k = 0; k < registers.shapes.rows[kRight]; ++k) {
        const uint32_t a = registers.tiles[kLeft][i][k], b = registers.tiles[kRight][k][j];
        sums[0] += number(a << 16) * number(b << 16);
        sums[1] += number(a & 0xffff0000) * number(b & 0xffff0000);
      }
      uint32_t& sum = registers.tiles[kSum][i][j];
      const float next = number(sum) + (sums[0] + sums[1]);
      std::memcpy(&sum, &next, sizeof sum);
    }
  }
}

#endif

#if defined(MOONFLOW_SIMD_VERSIONS) || defined(MOONFLOW_SIMULATED_AVX512)
inline void zero_four_sums() {
  zero<kSum>();
  zero<kSumRight>();
  zero<kSumBelow>();
  zero<kSumBelowRight>();
}

// Adds to these sums the products of a tile of rows, or two, and a tile of columns, or two, each in one piece of
// memory. What there is no second one of is not read.
template <bool kBelow, bool kBeside>
[[gnu::always_inline]] inline void add_products(const void* left, const void* below, int64_t left_row_bytes,
                                                const void* right, const void* beside) {
  load<kLeft>(left, left_row_bytes);
  load<kRight>(right, kRowBytes);
  multiply<kSum, kLeft, kRight>();
  if constexpr (kBeside) {
    load<kRightNext>(beside, kRowBytes);
    multiply<kSumRight, kLeft, kRightNext>();
  }
  if constexpr (kBelow) {
    load<kLeftBelow>(below, left_row_bytes);
    multiply<kSumBelow, kLeftBelow, kRight>();
    if constexpr (kBeside) multiply<kSumBelowRight, kLeftBelow, kRightNext>();
  }
}
#endif

}  // namespace moonflow::cpu::amx
