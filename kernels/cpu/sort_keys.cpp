// With AVX-512 keys are sorted by a quicksort: a vector is split into what is below a pivot and what is not by a few
// instructions, and what fits into some registers is sorted there by a bitonic network (as in Bramas, A Novel Hybrid
// Quicksort Algorithm Vectorized using AVX-512, IJACSA 2017). Elsewhere, and where they differ in one digit, they are
// sorted by their digits, from the last to the first (a radix sort).
#include "kernels/cpu/sort_keys.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/avx512.h"

namespace moonflow::cpu {
namespace {

constexpr int kValues = 256;  // of a digit

// ---- by digits ---------------------------------------------------------------------------------------------------

template <class K>
K* sort_digits(K* keys, K* room, int64_t count, int first_digit) {
  constexpr int64_t kFew = 96;  // the digits' counts alone cost more
  if (count <= kFew) {
    std::sort(keys, keys + count);
    return keys;
  }
  constexpr int kDigits = sizeof(K);
  uint32_t starts[kDigits][kValues] = {};
  for (int64_t i = 0; i < count; ++i)
    for (int digit = first_digit; digit < kDigits; ++digit) ++starts[digit][keys[i] >> 8 * digit & 0xff];
  for (int digit = first_digit; digit < kDigits; ++digit) {
    uint32_t* const start = starts[digit];
    if (start[keys[0] >> 8 * digit & 0xff] == count) continue;  // all are alike in this one
    uint32_t sum = 0;
    for (int v = 0; v < kValues; ++v) {
      const uint32_t own = start[v];
      start[v] = sum;
      sum += own;
    }
    for (int64_t i = 0; i < count; ++i) room[start[keys[i] >> 8 * digit & 0xff]++] = keys[i];
    std::swap(keys, room);
  }
  return keys;
}

#ifdef MOONFLOW_AVX512

// ---- in registers ------------------------------------------------------------------------------------------------

template <class K>
struct Lanes {
  static constexpr int kCount = 64 / sizeof(K);
  typedef K Vector __attribute__((vector_size(64)));
  using Each = std::make_integer_sequence<int, kCount>;

  // The first of `few` lanes that are read, the others above all keys; and the first `few` written.
  [[MOONFLOW_AVX512, gnu::always_inline]] static inline void load(const K* from, int64_t few, Vector& to) {
    if (few >= kCount) {
      std::memcpy(&to, from, sizeof to);
      return;
    }
#ifdef MOONFLOW_SIMD_VERSIONS
    const __m512i none = _mm512_set1_epi32(-1);
    if constexpr (sizeof(K) == 4)
      to = reinterpret_cast<Vector>(_mm512_mask_loadu_epi32(none, first(few), from));
    else
      to = reinterpret_cast<Vector>(_mm512_mask_loadu_epi64(none, first(few), from));
#else
    to = ~Vector{};
    for (int i = 0; i < few; ++i) to[i] = from[i];
#endif
  }
  [[MOONFLOW_AVX512, gnu::always_inline]] static inline void store(const Vector& from, int64_t few, K* to) {
#ifdef MOONFLOW_SIMD_VERSIONS
    if constexpr (sizeof(K) == 4)
      _mm512_mask_storeu_epi32(to, first(few), reinterpret_cast<__m512i>(from));
    else
      _mm512_mask_storeu_epi64(to, first(few), reinterpret_cast<__m512i>(from));
#else
    for (int i = 0; i < few && i < kCount; ++i) to[i] = from[i];
#endif
  }

  // A bit for each lane that is below the pivot, or with `up_to` not above it.
  [[MOONFLOW_AVX512, gnu::always_inline]] static inline uint32_t below(const Vector& v, const Vector& pivot,
                                                                     bool up_to) {
#ifdef MOONFLOW_SIMD_VERSIONS
    const auto a = reinterpret_cast<__m512i>(v), b = reinterpret_cast<__m512i>(pivot);
    if constexpr (sizeof(K) == 4)
      return up_to ? _mm512_cmple_epu32_mask(a, b) : _mm512_cmplt_epu32_mask(a, b);
    else
      return up_to ? _mm512_cmple_epu64_mask(a, b) : _mm512_cmplt_epu64_mask(a, b);
#else
    uint32_t found = 0;
    for (int i = 0; i < kCount; ++i) found |= uint32_t(up_to ? v[i] <= pivot[i] : v[i] < pivot[i]) << i;
    return found;
#endif
  }
  // The lanes of these bits side by side, behind them the others.
  [[MOONFLOW_AVX512, gnu::always_inline]] static inline void part(const Vector& v, uint32_t lanes, int count,
                                                                Vector& parted) {
#ifdef MOONFLOW_SIMD_VERSIONS
    const auto all = reinterpret_cast<__m512i>(v);
    if constexpr (sizeof(K) == 4) {
      const auto low = static_cast<__mmask16>(lanes), rest = static_cast<__mmask16>(~lanes);
      parted = reinterpret_cast<Vector>(_mm512_mask_expand_epi32(_mm512_maskz_compress_epi32(low, all),
                                                                 static_cast<__mmask16>(-1u << count),
                                                                 _mm512_maskz_compress_epi32(rest, all)));
    } else {
      const auto low = static_cast<__mmask8>(lanes), rest = static_cast<__mmask8>(~lanes);
      parted = reinterpret_cast<Vector>(_mm512_mask_expand_epi64(_mm512_maskz_compress_epi64(low, all),
                                                                 static_cast<__mmask8>(-1u << count),
                                                                 _mm512_maskz_compress_epi64(rest, all)));
    }
#else
    for (int i = 0, at = 0, behind = count; i < kCount; ++i) parted[lanes >> i & 1 ? at++ : behind++] = v[i];
#endif
  }

  // The lesser of each lane in a, the greater in b. Of 64 bits min and max take four instructions, not two.
  [[MOONFLOW_AVX512, gnu::always_inline]] static inline void order(Vector& a, Vector& b) {
    const Vector one = a, other = b;
#ifdef MOONFLOW_SIMD_VERSIONS
    if constexpr (sizeof(K) == 8) {
      const auto x = reinterpret_cast<__m512i>(one), y = reinterpret_cast<__m512i>(other);
      const __mmask8 low = _mm512_cmplt_epu64_mask(x, y);
      a = reinterpret_cast<Vector>(_mm512_mask_blend_epi64(low, y, x));
      b = reinterpret_cast<Vector>(_mm512_mask_blend_epi64(low, x, y));
      return;
    }
#endif
    a = one < other ? one : other;
    b = one < other ? other : one;
  }
  // Puts each lane i and lane i ^ kWith in order, the greater where i has the bit kBit.
  template <int kWith, int kBit, int... i>
  [[MOONFLOW_AVX512, gnu::always_inline]] static inline void exchange(Vector& v, std::integer_sequence<int, i...>) {
    const Vector other = __builtin_shufflevector(v, v, (i ^ kWith)...);
#ifdef MOONFLOW_SIMD_VERSIONS
    if constexpr (sizeof(K) == 8) {
      constexpr uint32_t kGreater = ((i & kBit ? 1u << i : 0u) | ...);
      const auto x = reinterpret_cast<__m512i>(v), y = reinterpret_cast<__m512i>(other);
      const __mmask8 own = _kxor_mask8(_mm512_cmplt_epu64_mask(x, y), kGreater);
      v = reinterpret_cast<Vector>(_mm512_mask_blend_epi64(own, y, x));
      return;
    }
#endif
    const Vector least = v < other ? v : other, most = v < other ? other : v;
    v = __builtin_shufflevector(least, most, (i & kBit ? i + kCount : i)...);
  }
  template <int... i>
  [[MOONFLOW_AVX512, gnu::always_inline]] static inline void reverse(Vector& v, std::integer_sequence<int, i...>) {
    v = __builtin_shufflevector(v, v, (kCount - 1 - i)...);
  }
  // Sorts a bitonic run of 2 * kDistance lanes, and each of those beside it.
  template <int kDistance>
  [[MOONFLOW_AVX512, gnu::always_inline]] static inline void merge(Vector& v) {
    if constexpr (kDistance > 0) {
      exchange<kDistance, kDistance>(v, Each());
      merge<kDistance / 2>(v);
    }
  }
  // Sorts runs of kRun lanes, each half of which is in order, and so on up to the whole vector.
  template <int kRun = 2>
  [[MOONFLOW_AVX512, gnu::always_inline]] static inline void sort(Vector& v) {
    if constexpr (kRun <= kCount) {
      exchange<kRun - 1, kRun / 2>(v, Each());
      merge<kRun / 4>(v);
      sort<2 * kRun>(v);
    }
  }
  // Sorts several vectors as one run.
  template <int kVectors>
  [[MOONFLOW_AVX512, gnu::always_inline]] static inline void sort_all(Vector* v) {
    if constexpr (kVectors == 1) {
      sort(*v);
    } else {
      sort_all<kVectors / 2>(v);
      sort_all<kVectors / 2>(v + kVectors / 2);
#pragma GCC unroll 16
      for (int i = 0; i < kVectors / 2; ++i) {
        reverse(v[kVectors - 1 - i], Each());
        order(v[i], v[kVectors - 1 - i]);
      }
#pragma GCC unroll 16
      for (int distance = kVectors / 4; distance > 0; distance /= 2)
#pragma GCC unroll 16
        for (int i = 0; i < kVectors; ++i)
          if ((i & distance) == 0) order(v[i], v[i + distance]);
#pragma GCC unroll 16
      for (int i = 0; i < kVectors; ++i) merge<kCount / 2>(v[i]);
    }
  }

 private:
#ifdef MOONFLOW_SIMD_VERSIONS
  static uint32_t first(int64_t few) { return few >= kCount ? (1u << kCount) - 1 : (1u << few) - 1; }
#endif
};

constexpr int kMostVectors = 8;  // that are sorted in registers

// Sorts what fits into kVectors registers.
template <class K, int kVectors>
[[MOONFLOW_AVX512, gnu::noinline]] void sort_few(const K* from, int64_t count, K* to) {
  using Of = Lanes<K>;
  typename Of::Vector v[kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kVectors; ++i)
    Of::load(from + i * Of::kCount, std::max<int64_t>(count - i * Of::kCount, 0), v[i]);
  Of::template sort_all<kVectors>(v);
#pragma GCC unroll 16
  for (int i = 0; i < kVectors; ++i) Of::store(v[i], std::max<int64_t>(count - i * Of::kCount, 0), to + i * Of::kCount);
}
template <class K, int kVectors = 1>
void sort_few_of(const K* from, int64_t count, K* to) {
  if constexpr (kVectors < kMostVectors) {
    if (count > kVectors * Lanes<K>::kCount) return sort_few_of<K, 2 * kVectors>(from, count, to);
  }
  sort_few<K, kVectors>(from, count, to);
}

// ---- by splitting ------------------------------------------------------------------------------------------------

// Writes a vector's lanes below the pivot, or with kUpTo not above it, from `left` on, and the others up to `right`.
// All lanes are written at both ends, so there must be room for them at each, and the wrong ones are written over.
template <bool kUpTo, class K>
[[MOONFLOW_AVX512, gnu::always_inline]] inline void put(const typename Lanes<K>::Vector& v,
                                                        const typename Lanes<K>::Vector& pivots, K* to, int64_t& left,
                                                        int64_t& right) {
  using Of = Lanes<K>;
  typename Of::Vector parted;
  const uint32_t low = Of::below(v, pivots, kUpTo);
  const int few = __builtin_popcount(low);
  Of::part(v, low, few, parted);
  std::memcpy(to + left, &parted, sizeof parted);
  std::memcpy(to + right - Of::kCount, &parted, sizeof parted);
  left += few;
  right -= Of::kCount - few;
}

// Writes what is below the pivot, and behind it the rest; gives where that begins.
template <bool kUpTo, class K>
[[MOONFLOW_AVX512, gnu::noinline]] int64_t split(const K* from, int64_t count, K pivot, K* to) {
  using Of = Lanes<K>;
  typename Of::Vector pivots, v;
  for (int i = 0; i < Of::kCount; ++i) pivots[i] = pivot;
  int64_t left = 0, right = count, i = 0;
  for (; count - i >= 2 * Of::kCount; i += Of::kCount) {
    Of::load(from + i, Of::kCount, v);
    put<kUpTo>(v, pivots, to, left, right);
  }
  for (; i < count; ++i) {
    const K key = from[i];
    const bool low = kUpTo ? key <= pivot : key < pivot;
    to[left] = to[right - 1] = key;
    left += low;
    right -= !low;
  }
  return left;
}

// The same where they lie, for what no near cache holds twice. A block from either end is held back, and the next one
// is read where less room has been made, so that there is room for it at both ends.
template <bool kUpTo, class K>
[[MOONFLOW_AVX512, gnu::noinline]] int64_t split_in_place(K* keys, int64_t count, K pivot) {
  using Of = Lanes<K>;
  constexpr int64_t kVectors = 4, kBlock = kVectors * Of::kCount;
  K held[3 * kBlock];
  std::copy(keys, keys + kBlock, held);
  std::copy(keys + count - kBlock, keys + count, held + kBlock);
  typename Of::Vector pivots, v[kVectors];
  for (int i = 0; i < Of::kCount; ++i) pivots[i] = pivot;
  int64_t left = 0, right = count, first = kBlock, last = count - kBlock;
  while (last - first >= kBlock) {
    const bool is_left = first - left <= right - last;
    const K* const from = keys + (is_left ? first : last - kBlock);
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) Of::load(from + i * Of::kCount, Of::kCount, v[i]);
    first += is_left ? kBlock : 0;
    last -= is_left ? 0 : kBlock;
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) put<kUpTo>(v[i], pivots, keys, left, right);
  }
  std::copy(keys + first, keys + last, held + 2 * kBlock);
  return left + split<kUpTo>(held, right - left, pivot, keys + left);
}

// A key in the middle of some that lie far apart.
template <class K>
K middle_of(const K* keys, int64_t count) {
  constexpr int kSample = 2 * Lanes<K>::kCount;
  K sample[kSample];
  const int taken = count < 1 << 12 ? kSample / 2 : kSample;
  const int64_t step = count / taken;
  for (int i = 0; i < taken; ++i) sample[i] = keys[i * step + step / 2];
  sort_few_of(sample, taken, sample);
  return sample[taken / 2];
}

// Sorts keys, where `places` are named only what stands there.
template <class K>
void quick_sort(K* keys, K* room, int64_t count, const int64_t* places, int64_t how_many) {
  constexpr int64_t kNear = (int64_t(1) << 19) / sizeof(K);
  struct Part {
    int64_t first, last;
    bool in_room;
    int rounds;  // that are left before it is taken to be badly split
  };
  Part parts[64];  // of two the longer one waits
  int waiting = 0;
  Part part{0, count, false, 2 * (64 - __builtin_clzll(count | 1))};
  const auto is_wanted = [&](const Part& p) {
    if (places == nullptr) return true;
    const int64_t* const place = std::lower_bound(places, places + how_many, p.first);
    return place != places + how_many && *place < p.last;
  };
  for (;;) {
    const int64_t length = part.last - part.first;
    const K* const from = (part.in_room ? room : keys) + part.first;
    K *const to = (part.in_room ? keys : room) + part.first, *const end = keys + part.first;
    bool is_done = !is_wanted(part);
    if (!is_done && length <= kMostVectors * Lanes<K>::kCount) {
      sort_few_of(from, length, end);
      is_done = true;
    } else if (!is_done && part.rounds == 0) {
      if (part.in_room) std::copy(from, from + length, end);
      std::sort(end, end + length);
      is_done = true;
    }
    if (is_done) {
      if (waiting == 0) return;
      part = parts[--waiting];
      continue;
    }
    const K pivot = middle_of(from, length);
    const bool moves = part.in_room || length <= kNear;
    int64_t left = moves ? split<false>(from, length, pivot, to) : split_in_place<false>(end, length, pivot);
    Part low{part.first, part.first + left, part.in_room != moves, part.rounds - 1};
    if (left == 0) {  // it is the least of them
      left = moves ? split<true>(from, length, pivot, to) : split_in_place<true>(end, length, pivot);
      std::fill(end, end + left, pivot);
      low.last = low.first;
    }
    const Part high{part.first + left, part.last, low.in_room, part.rounds - 1};
    const bool low_is_longer = low.last - low.first > high.last - high.first;
    parts[waiting++] = low_is_longer ? low : high;
    part = low_is_longer ? high : low;
  }
}

#endif  // MOONFLOW_AVX512

// The digits in which keys differ, from this one on.
template <class K>
int differing_digits(const K* keys, int64_t count, int first_digit) {
  K differing = 0;
  widest([&] {
    K some = 0;
    for (int64_t i = 0; i < count; ++i) some |= keys[i] ^ keys[0];
    differing = some;
  });
  int digits = 0;
  for (int digit = first_digit; digit < static_cast<int>(sizeof(K)); ++digit)
    digits += (differing >> 8 * digit & 0xff) != 0;
  return digits;
}

}  // namespace

template <class K>
K* sort_keys(K* keys, K* room, int64_t count, int known) {
#ifdef MOONFLOW_AVX512
  constexpr int64_t kFew = 1024;  // are soon split
  if (simd() == Simd::Avx512 && (count < kFew || differing_digits(keys, count, known / 8) > 1)) {
    quick_sort<K>(keys, room, count, nullptr, 0);
    return keys;
  }
#endif
  return sort_digits(keys, room, count, known / 8);
}

template <class K>
K* pick_keys(K* keys, K* room, int64_t count, const int64_t* places, int64_t how_many) {
#ifdef MOONFLOW_AVX512
  if (simd() == Simd::Avx512) {
    quick_sort(keys, room, count, places, how_many);
    return keys;
  }
#endif
  K* first = keys;
  for (int64_t i = 0; i < how_many; ++i) {
    std::nth_element(first, keys + places[i], keys + count);
    first = keys + places[i] + 1;
  }
  return keys;
}

template uint32_t* sort_keys(uint32_t*, uint32_t*, int64_t, int);
template uint64_t* sort_keys(uint64_t*, uint64_t*, int64_t, int);
template uint32_t* pick_keys(uint32_t*, uint32_t*, int64_t, const int64_t*, int64_t);
template uint64_t* pick_keys(uint64_t*, uint64_t*, int64_t, const int64_t*, int64_t);

}  // namespace moonflow::cpu
