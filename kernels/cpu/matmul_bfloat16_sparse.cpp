#include "kernels/cpu/matmul_bfloat16_sparse.h"

#include "kernels/cpu/device.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/turned_sums.h"

namespace moonflow::cpu {

#ifdef MOONFLOW_BFLOAT16
namespace {

constexpr int64_t kDepth = 104;       // pairs of a slice, whose part of a panel fills the first-level cache
constexpr int64_t kListed = 1 << 18;  // pairs of all rows together
constexpr double kMostShare = 0.7;    // of a', of which more is multiplied faster as it is

// Slices differ by one pair at most, so that none is short.
int64_t slices(const NarrowProduct& product) { return (pairs(product) + kDepth - 1) / kDepth; }
int64_t depth(const NarrowProduct& product) { return (pairs(product) + slices(product) - 1) / slices(product); }

int64_t rows_together(const NarrowProduct& product) {
  const int64_t most = kListed / pairs(product) / kRowsTogether * kRowsTogether;
  return std::min(std::max(most, kRowsTogether), (product.rows + 1) / 2 * 2);
}

int64_t turned_bytes(const NarrowProduct& product) {
  return product.transpose_a ? aligned(4 * rows_together(product) * turned_row(pairs(product))) : 0;
}
int64_t listed(const NarrowProduct& product) { return rows_together(product) / 2 * slices(product); }
int64_t two_bytes(const NarrowProduct& product) {
  return aligned(listed(product) * static_cast<int64_t>(sizeof(TermsOfTwo)));
}

// What is summed so far is in out until the last slice, so that must hold it. Tiles take the zeros in less time than it
// takes to list the others.
bool may_pay(const NarrowProduct& product) {
  constexpr int64_t kLeast = 32, kLeastColumns = 64;
  constexpr double kLeastFlops = 4e6;
  const double flops = 2 * static_cast<double>(product.rows * product.columns) * static_cast<double>(product.inner);
  return !has_tiles() && product.batch == 1 && product.rows >= kLeast && product.columns >= kLeastColumns &&
         product.inner >= kLeast && flops >= kLeastFlops && (slices(product) == 1 || !product.narrow_out);
}

// Where the sums of a slice go: all but the last slice leave them in out as they are, and all but the first begin
// there.
struct Slice {
  NarrowEnding ending;
  bool begins;

  Slice(const NarrowProduct& product, const NarrowEnding& whole, int64_t slice)
      : ending(whole), begins(slice == 0 || whole.descends) {
    if (slice + 1 == slices(product)) return;
    ending.bias = nullptr;
    ending.relu = false;
  }
};

template <int kCount>
[[MOONFLOW_BFLOAT16, gnu::always_inline]] inline void add_pair(const Pair* row, int64_t k, const Pair* panel,
                                                               __m512 (&sum)[kCount]) {
  const auto x = (__m512bh)_mm512_set1_epi32(static_cast<int>(row[k]));
#pragma GCC unroll 8
  for (int v = 0; v < kCount; ++v)
    sum[v] = _mm512_dpbf16_ps(sum[v], x, (__m512bh)_mm512_loadu_si512(panel + k * kCount * kLanes + v * kLanes));
}

// What follows the lists of a slice: the terms of the rows, and a panel of kCount registers.
struct Sources {
  const TermsOfTwo* two;
  Terms left;
  TermLists lists;
  const Pair* panel;
};

// Adds what a pair of rows has in a slice to their sums.
template <int kCount>
[[MOONFLOW_BFLOAT16, gnu::always_inline]] inline void add_two(const Sources& from, int64_t pair,
                                                              __m512 (&sum)[2][kCount]) {
  const TermsOfTwo& two = from.two[pair];
  const Pair* const first = from.left.data + two.rows[0] * from.left.row;
  const Pair* const second = from.left.data + two.rows[1] * from.left.row;
  const uint8_t* const both = from.lists.both(pair);
  for (int32_t t = 0; t < two.both; ++t) {
    const int64_t k = both[t];
    const auto x = (__m512bh)_mm512_set1_epi32(static_cast<int>(first[k]));
    const auto y = (__m512bh)_mm512_set1_epi32(static_cast<int>(second[k]));
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v) {
      __m512i right = _mm512_loadu_si512(from.panel + k * kCount * kLanes + v * kLanes);
      MOONFLOW_IN_REGISTER(right);  // or it would be read for each of the two
      sum[0][v] = _mm512_dpbf16_ps(sum[0][v], x, (__m512bh)right);
      sum[1][v] = _mm512_dpbf16_ps(sum[1][v], y, (__m512bh)right);
    }
  }
  const uint8_t *const of_first = from.lists.own(pair, 0), *const of_second = from.lists.own(pair, 1);
  for (int32_t t = 0; t < two.own[1]; ++t) {
    add_pair<kCount>(first, of_first[t], from.panel, sum[0]);
    add_pair<kCount>(second, of_second[t], from.panel, sum[1]);
  }
  for (int32_t t = two.own[1]; t < two.own[0]; ++t) add_pair<kCount>(first, of_first[t], from.panel, sum[0]);
}

// `count` pairs of rows.
template <int kCount>
[[MOONFLOW_BFLOAT16, gnu::noinline]] void sum_listed(const Sources& from, int64_t count, const PanelEnding& end,
                                                     bool begins) {
  for (int64_t pair = 0; pair < count; ++pair) {
    const TermsOfTwo& two = from.two[pair];
    __m512 sum[2][kCount];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const float* const so_far = static_cast<const float*>(end.out) + two.rows[i] * end.product.columns;
#pragma GCC unroll 8
      for (int v = 0; v < kCount; ++v) {
        sum[i][v] = _mm512_setzero_ps();
        if (!begins) sum[i][v] = _mm512_maskz_loadu_ps(lanes(end.columns - v * kLanes), so_far + v * kLanes);
        if (end.ending.descends) __builtin_prefetch(so_far + v * kLanes, 1);
      }
    }
    add_two<kCount>(from, pair, sum);
    end_row<kCount>(end, two.rows[0], sum[0]);
    if (!two.alone) end_row<kCount>(end, two.rows[1], sum[1]);
  }
}

// Sums of rows that are listed together, from row `first` on.
template <int kCount>
[[MOONFLOW_BFLOAT16, gnu::noinline]] void sum_together(const Sources& from, int64_t pair, int64_t count, int64_t first,
                                                       float (*sums)[kCount * kLanes]) {
  for (const int64_t last = pair + count; pair < last; ++pair) {
    __m512 sum[2][kCount];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i)
#pragma GCC unroll 8
      for (int v = 0; v < kCount; ++v) sum[i][v] = _mm512_setzero_ps();
    add_two<kCount>(from, pair, sum);
    const TermsOfTwo& two = from.two[pair];
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v) {
      _mm512_store_ps(sums[two.rows[0] - first] + v * kLanes, sum[0][v]);
      if (!two.alone) _mm512_store_ps(sums[two.rows[1] - first] + v * kLanes, sum[1][v]);
    }
  }
}

// Rows [first, last) of a product that was turned over.
template <int kCount>
void sum_turned(const Sources& from, int64_t first, int64_t last, const PanelEnding& end, bool begins) {
  using R = Register<kLanes>;
  alignas(kAlignment) float sums[kRowsTogether][kCount * kLanes] = {};
  for (int64_t i = first; i < last; i += kRowsTogether) {
    const int64_t here = std::min(kRowsTogether, last - i);
    sum_together<kCount>(from, (i - first) / 2, (here + 1) / 2, i, sums);
    float* const out = static_cast<float*>(end.out) + i;
    const auto finish = [&](const auto& ending) {
      stand_alone(
          R(), [&] { end_as_columns<R>(sums[0], kCount * kLanes, here, end.columns, out, end.product.rows, ending); });
    };
    if (end.ending.descends)
      finish(Descend{end.ending.factor});
    else if (begins)
      finish(Replace());
    else
      finish(Add());
  }
}

}  // namespace

int64_t ListedPairs::vectors(const NarrowProduct& product) {
  return may_pay(product) && pairs(product) * kMostVectors <= kDepth * kVectors ? kMostVectors : kVectors;
}

int64_t ListedPairs::scratch_bytes(const NarrowProduct& product) {
  if (!may_pay(product)) return 0;
  return turned_bytes(product) + two_bytes(product) + aligned(TermLists::bytes(listed(product), depth(product)));
}

ListedPairs::ListedPairs(const NarrowProduct& product, const Terms& left, void* scratch)
    : product_(product), left_(left) {
  if (!may_pay(product)) return;
  const bool in_rows = left.step == 1;
  const int64_t count = in_rows ? product.rows : pairs(product), length = in_rows ? pairs(product) : product.rows;
  pays_ = share_of_terms<kPairDigits>(left.data, count, in_rows ? left.row : left.step, length / 16) <= kMostShare;
  char* const memory = static_cast<char*>(scratch);
  turned_ = reinterpret_cast<Term*>(memory);
  two_ = reinterpret_cast<TermsOfTwo*>(memory + turned_bytes(product));
  lists_ = {reinterpret_cast<uint8_t*>(memory + turned_bytes(product) + two_bytes(product)), depth(product)};
}

int64_t ListedPairs::most_rows() const { return rows_together(product_); }

void ListedPairs::list(int64_t first, int64_t count) {
  const bool is_turned = left_.step != 1;
  count_ = count;
  rows_.row = is_turned ? turned_row(pairs(product_)) : left_.row;
  rows_.data = is_turned ? turned_ : left_.data + first * left_.row;
  constexpr int64_t kListGrain = 1 << 12;  // terms, which take about two microseconds
  const int64_t groups = (count + kRowsTogether - 1) / kRowsTogether, two = (count + 1) / 2;
  const int64_t grain = std::max<int64_t>(1, kListGrain / (kRowsTogether * pairs(product_)));
  parallel_for(groups, grain, [&](int64_t first_group, int64_t last_group) {
    const int64_t begin = first_group * kRowsTogether, here = std::min(last_group * kRowsTogether, count) - begin;
    widest_register([&](auto wide) {
      using R = decltype(wide);
      if (is_turned) {
        turn_terms<R>(left_.data + first + begin, left_.step, here, pairs(product_), turned_ + begin * rows_.row,
                      rows_.row);
      }
      for (int64_t slice = 0; slice < slices(product_); ++slice) {
        const int64_t term = slice * depth(product_), terms = std::min(depth(product_), pairs(product_) - term);
        const int64_t pair = slice * two + begin / 2;
        list_rows<R, kPairDigits>(rows_.data + term, rows_.row, begin, here, terms, is_turned, false, lists_.from(pair),
                                  two_ + pair);
      }
    });
  });
}

void ListedPairs::multiply(const Pair* panel, const PanelEnding& end, int64_t first, int64_t last) const {
  const int64_t count = (last + 1) / 2 - first / 2, row = vectors_of(end.columns) * kLanes;
  for (int64_t slice = 0; slice < slices(product_); ++slice) {
    const Slice part(product_, end.ending, slice);
    const PanelEnding here{product_, part.ending, end.columns, part.ending.bias ? end.bias : nullptr,
                           end.out,  end.turned};
    const int64_t pair = slice * ((count_ + 1) / 2) + first / 2, term = slice * depth(product_);
    const Sources from{two_ + pair, {rows_.data + term, rows_.row, 1}, lists_.from(pair), panel + term * row};
    const auto sum = [&](auto registers) {
      constexpr int kCount = decltype(registers)::value;
      if (end.turned)
        sum_turned<kCount>(from, first, last, here, part.begins);
      else
        sum_listed<kCount>(from, count, here, part.begins);
    };
    with_count<kMostVectors>(vectors_of(end.columns), sum);
  }
}

NarrowProduct turned(const NarrowProduct& product) {
  NarrowProduct other = product;
  std::swap(other.rows, other.columns);
  std::swap(other.narrow_a, other.narrow_b);
  other.transpose_a = !product.transpose_b;
  other.transpose_b = !product.transpose_a;
  return other;
}

namespace {

// About the part of the pairs of a matrix (inner, length) that is not two zeros, by `looks` short pieces of two rows.
template <class T>
double share_of_pairs(const T* data, int64_t inner, int64_t length, int64_t looks) {
  constexpr int64_t kPiece = 16;
  const auto pieces = static_cast<uint64_t>(length / kPiece), all = pieces * static_cast<uint64_t>(inner / 2);
  int64_t found = 0;
  for (int64_t look = 0; look < looks; ++look) {
    const uint64_t at = static_cast<uint64_t>(look) * kScatter % all;
    const T* const first = data + 2 * static_cast<int64_t>(at / pieces) * length + at % pieces * kPiece;
    for (int64_t i = 0; i < kPiece; ++i) found += !(first[i] == T(0)) || !(first[length + i] == T(0));
  }
  return static_cast<double>(found) / static_cast<double>(looks * kPiece);
}

double share_of_pairs(const void* data, bool narrow, int64_t inner, int64_t length, int64_t looks) {
  return narrow ? share_of_pairs(static_cast<const BFloat16*>(data), inner, length, looks)
                : share_of_pairs(static_cast<const float*>(data), inner, length, looks);
}

}  // namespace

bool is_better_turned(const NarrowProduct& product, const void* a, const void* b) {
  constexpr double kTurning = 0.8;              // as much less must it take, to pay for turning the result
  constexpr double kSurely = kMostShare - 0.1;  // so that its pairs are listed, which other ones of them decide
  if (!product.transpose_a || product.transpose_b || product.narrow_out || !may_pay(turned(product))) return false;
  const auto of_b = [&](int64_t looks) {
    return share_of_pairs(b, product.narrow_b, product.inner, product.columns, looks);
  };
  if (of_b(kFewLooks) > kMostShare + 0.1) return false;
  const double share = of_b(kManyLooks);
  return share <= kSurely &&
         share < kTurning * share_of_pairs(a, product.narrow_a, product.inner, product.rows, kManyLooks);
}

[[MOONFLOW_BFLOAT16]] bool is_finite(const Pair* panel, int64_t pairs, int64_t columns) {
  const __m512i exponents = _mm512_set1_epi32(0x7f807f80);
  uint32_t strange = 0;
  for (const Pair* const end = panel + pairs * vectors_of(columns) * kLanes; panel < end; panel += kLanes) {
    const __m512i exponent = _mm512_and_si512(_mm512_loadu_si512(panel), exponents);
    strange |= _mm512_cmpeq_epi16_mask(exponent, exponents);
  }
  return strange == 0;
}

#endif

}  // namespace moonflow::cpu
