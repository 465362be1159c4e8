// Numbers of 16 bits in registers, whose products are summed up in 32 bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/simd.h"

namespace moonflow::cpu {

// A register of numbers of 16 bits: twice as many as of float32.
template <class R>
struct Words {
  static constexpr int kCount = 2 * R::kWidth;
  using Sums = typename R::Integers;
  typedef int16_t Vector __attribute__((vector_size(2 * kCount), may_alias));
  typedef int16_t Stored __attribute__((vector_size(2 * kCount), may_alias, aligned(2)));
  typedef int8_t Packed __attribute__((vector_size(kCount)));
  typedef int8_t Bytes __attribute__((vector_size(kCount), may_alias, aligned(1)));

  static void widen(const int8_t* bytes, Vector& to) {
#ifdef MOONFLOW_SIMD_VERSIONS
    if constexpr (R::kWidth > 4) {  // as Register::widen
      asm("vpmovsxbw %1, %0" : "=v"(to) : "m"(*reinterpret_cast<const Bytes*>(bytes)));
      return;
    }
#endif
    Packed from;  // a template takes a vector for aligned
    std::memcpy(&from, bytes, sizeof from);
    convert(from, to);
  }

  static const Stored& at(const int16_t* place) { return *reinterpret_cast<const Stored*>(place); }

  // Each lane of `sums` gets the products of two neighbours.
  static void add_products(const Vector& a, const Vector& b, Sums& sums) {
#ifdef MOONFLOW_SIMD_VERSIONS
    if constexpr (R::kWidth > 4) {
      Sums products;
      asm("vpmaddwd %2, %1, %0" : "=v"(products) : "v"(a), "v"(b));
      sums += products;
    } else {
      Vector products = a;
      asm("pmaddwd %1, %0" : "+x"(products) : "x"(b));
      sums += Sums(products);
    }
#else
    add_pairs(a, b, sums);
#endif
  }

 private:
  template <class From, class To>
  static void convert(const From& from, To& to) {
    to = __builtin_convertvector(from, To);
  }
  template <class Factor, class To>
  static void add_pairs(const Factor& a, const Factor& b, To& sums) {
    for (int lane = 0; lane < R::kWidth; ++lane)
      sums[lane] += a[2 * lane] * b[2 * lane] + a[2 * lane + 1] * b[2 * lane + 1];
  }
};

}  // namespace moonflow::cpu
