// What is not zero in the rows of a matrix, listed for two rows at a time: a product that follows such a list reads a
// row of its second factor once for both. A term is a float, or two bfloat16: 4 bytes, moved as they are.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/tensor.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/square.h"

namespace moonflow::cpu {

typedef uint32_t Term __attribute__((may_alias));

// A matrix of terms: that of row i and column k at data[i * row + k * step]. One of the strides is 1.
struct Terms {
  const Term* data;
  int64_t row, step;
};

// Of two rows' terms that are not zero: how many both have at a place, and how many only one of them has there. The
// first has as many as the second, or more.
struct TermsOfTwo {
  int32_t rows[2];
  bool alone;  // the first is both rows, and nothing is the second's
  int32_t both, own[2];
};

// Where those terms stand in their rows, a byte each, for rows of as many terms at most.
struct TermLists {
  static constexpr int64_t kMostTerms = 255, kRoom = 16;  // for a whole register that is written
  static constexpr int64_t bytes(int64_t pairs, int64_t terms) { return pairs * 3 * (terms + kRoom); }

  uint8_t* data;
  int64_t terms;

  TermLists from(int64_t pair) const { return {data + bytes(pair, terms), terms}; }
  uint8_t* both(int64_t pair) const { return data + bytes(pair, terms); }
  uint8_t* own(int64_t pair, int row) const { return both(pair) + (1 + row) * (terms + kRoom); }
};

// Of rows that are turned, which end with a register.
constexpr int64_t turned_row(int64_t terms) { return (terms + 15) / 16 * 16; }

// What a term has beside its sign, or the signs of its two numbers.
constexpr int kFloatDigits = 0x7fffffff, kPairDigits = 0x7fff7fff;

// Bit i tells whether lane i is not zero, of either sign.
template <class R, int kDigits>
uint32_t find_terms(const Term* lanes) {
#ifdef MOONFLOW_SIMD_VERSIONS
  const typename R::Integers from = *reinterpret_cast<const typename R::StoredIntegers*>(lanes);
  const typename R::Integers digits = typename R::Integers{} + kDigits;
  if constexpr (R::kWidth == 16) {
    uint16_t found;
    asm("vptestmd %1, %2, %0" : "=Yk"(found) : "v"(from), "v"(digits));
    return found;
  } else if constexpr (R::kWidth == 8) {
    const typename R::Integers is_found = (from & digits) != 0;
    uint32_t found;
    asm("vmovmskps %1, %0" : "=r"(found) : "x"(is_found));
    return found;
  }
#endif
  uint32_t found = 0;
  for (int i = 0; i < R::kWidth; ++i) found |= static_cast<uint32_t>((lanes[i] & kDigits) != 0) << i;
  return found;
}

// The numbers of the bits that are set, counted from `first`. Returns where the next goes; more may be written.
template <class R>
uint8_t* list_bits(uint32_t bits, int64_t first, uint8_t* to) {
#ifdef MOONFLOW_SIMD_VERSIONS
  if constexpr (R::kWidth == 16) {
    typedef int Four __attribute__((vector_size(16), may_alias, aligned(1)));
    const auto mask = static_cast<uint16_t>(bits);
    const typename R::Integers lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const typename R::Integers numbers = lanes + static_cast<int>(first);
    typename R::Integers packed;
    asm("vpcompressd %1, %0%{%2%}%{z%}" : "=v"(packed) : "v"(numbers), "Yk"(mask));
    asm("vpmovdb %1, %0" : "=m"(*reinterpret_cast<Four*>(to)) : "v"(packed));
    return to + __builtin_popcount(bits);
  }
#endif
  for (; bits != 0; bits &= bits - 1) *to++ = static_cast<uint8_t>(first + __builtin_ctz(bits));
  return to;
}

// Of `depth` rows of a matrix from `from` on, `step` apart, `count` neighbours: as rows of their own, `row` apart.
template <class R>
void turn_terms(const Term* from, int64_t step, int64_t count, int64_t depth, Term* to, int64_t row) {
  int64_t i = 0;
  for (; i + R::kWidth <= count; i += R::kWidth, from += R::kWidth, to += R::kWidth * row) {
    int64_t k = 0;
    for (; k + R::kWidth <= depth; k += R::kWidth)
      copy_square<R>(reinterpret_cast<const float*>(from + k * step), step, reinterpret_cast<float*>(to + k), row,
                     [](const auto&) {});
    for (; k < depth; ++k)
      for (int64_t l = 0; l < R::kWidth; ++l) to[l * row + k] = from[k * step + l];
  }
  for (int64_t k = 0; k < depth; ++k)
    for (int64_t l = 0; l < count - i; ++l) to[l * row + k] = from[k * step + l];
}

// Of so many rows those with about as many terms are paired, which have the most in common.
constexpr int64_t kRowsTogether = 16;

// Lists `terms` terms of each of `count` rows from row `begin` of `rows` on, which lie `row` apart: pairs of rows. To
// the end of a register they are read only where they are `padded`. With `all` zeros are listed too.
template <class R, int kDigits>
void list_rows(const Term* rows, int64_t row, int64_t begin, int64_t count, int64_t terms, bool padded, bool all,
               const TermLists& lists, TermsOfTwo* pairs) {
  uint16_t has[kRowsTogether][TermLists::kMostTerms / R::kWidth + 1];
  Term rest[R::kWidth] = {};  // of a row, and zeros
  const int64_t end = begin + count;
  int64_t pair = 0;
  for (int64_t i = begin; i < end; i += kRowsTogether) {
    const int64_t here = std::min(kRowsTogether, end - i);
    uint32_t order[kRowsTogether];  // of the rows by their terms: how many, and the row
    for (int64_t l = 0; l < here; ++l) {
      const Term* const from = rows + (i + l) * row;
      uint32_t found = 0;
      for (int64_t k = 0, c = 0; k < terms; k += R::kWidth, ++c) {
        const int64_t left = std::min<int64_t>(terms - k, R::kWidth);
        uint32_t bits = (1u << left) - 1;
        if (!all) {
          const bool reads = padded || left == R::kWidth;
          if (!reads) std::copy_n(from + k, left, rest);
          bits &= find_terms<R, kDigits>(reads ? from + k : rest);
        }
        has[l][c] = static_cast<uint16_t>(bits);
        found += static_cast<uint32_t>(__builtin_popcount(bits));
      }
      const uint32_t entry = found * kRowsTogether + static_cast<uint32_t>(l);
      int64_t place = l;
      for (; place > 0 && order[place - 1] < entry; --place) order[place] = order[place - 1];
      order[place] = entry;
    }

    for (int64_t l = 0; l < here; l += 2, ++pair) {
      const bool has_second = l + 1 < here;
      const auto first = static_cast<int64_t>(order[l] % kRowsTogether);
      const auto second = has_second ? static_cast<int64_t>(order[l + 1] % kRowsTogether) : first;
      uint8_t *both = lists.both(pair), *own[2] = {lists.own(pair, 0), lists.own(pair, 1)};
      for (int64_t k = 0, c = 0; k < terms; k += R::kWidth, ++c) {
        const uint32_t of_first = has[first][c], of_second = has_second ? has[second][c] : 0;
        both = list_bits<R>(of_first & of_second, k, both);
        own[0] = list_bits<R>(of_first & ~of_second, k, own[0]);
        own[1] = list_bits<R>(of_second & ~of_first, k, own[1]);
      }
      pairs[pair].rows[0] = static_cast<int32_t>(i + first);
      pairs[pair].rows[1] = static_cast<int32_t>(i + second);
      pairs[pair].alone = !has_second;
      pairs[pair].both = static_cast<int32_t>(both - lists.both(pair));
      for (int j = 0; j < 2; ++j) pairs[pair].own[j] = static_cast<int32_t>(own[j] - lists.own(pair, j));
    }
  }
}

// How much there is to leave out is seen by looking at scattered places: `look` times this, by how many there are. It
// is 2^64 by the golden ratio, so neighbours fall far apart.
constexpr uint64_t kScatter = 0x9e3779b97f4a7c15;
constexpr int64_t kFewLooks = 32, kManyLooks = 256;  // to see that it is nothing, and how much it is

// How much of the terms is not zero, as a part of 1, by one line of the cache in sixteen, scattered, and by `most` of
// them at most. `lines` neighbours of 16 terms each stand at one of `count` places, `step` terms apart.
template <int kDigits>
double share_of_terms(const Term* terms, int64_t count, int64_t step, int64_t lines, int64_t most = kManyLooks) {
  constexpr int64_t kLine = 16;
  const int64_t all = count * lines, looks = std::clamp<int64_t>(all / 16, std::min(all, kLine), most);
  int64_t found = 0;
  for (int64_t look = 0; look < looks; ++look) {
    const auto line = static_cast<int64_t>(static_cast<uint64_t>(look) * kScatter % static_cast<uint64_t>(all));
    const Term* const at = terms + line / lines * step + line % lines * kLine;
    for (int64_t i = 0; i < kLine; ++i) found += (at[i] & kDigits) != 0;
  }
  return static_cast<double>(found) / static_cast<double>(looks * kLine);
}

}  // namespace moonflow::cpu
