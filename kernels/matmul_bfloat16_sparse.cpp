#include "kernels/matmul_bfloat16_sparse.h"

#include "kernels/cpu.h"

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
  return product.transpose_a ? scratch_piece(4 * rows_together(product) * turned_row(pairs(product))) : 0;
}
int64_t listed(const NarrowProduct& product) { return rows_together(product) / 2 * slices(product); }
int64_t two_bytes(const NarrowProduct& product) {
  return scratch_piece(listed(product) * static_cast<int64_t>(sizeof(TermsOfTwo)));
}

// What is summed so far is in out until the last slice, so that must hold it.
bool may_pay(const NarrowProduct& product) {
  constexpr int64_t kLeast = 32, kLeastColumns = 64;
  constexpr double kLeastFlops = 4e6;
  const double flops = 2 * static_cast<double>(product.rows * product.columns) * static_cast<double>(product.inner);
  return product.batch == 1 && product.rows >= kLeast && product.columns >= kLeastColumns && product.inner >= kLeast &&
         flops >= kLeastFlops && (slices(product) == 1 || !product.narrow_out);
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
#pragma GCC unroll 4
  for (int v = 0; v < kCount; ++v)
    sum[v] = _mm512_dpbf16_ps(sum[v], x, (__m512bh)_mm512_loadu_si512(panel + k * kPanel + v * kLanes));
}

// `count` pairs of rows over a slice of a panel of kCount registers.
template <int kCount>
[[MOONFLOW_BFLOAT16, gnu::noinline]] void sum_listed(const TermsOfTwo* two, int64_t count, const Terms& left,
                                                     const TermLists& lists, const Pair* panel, const PanelEnding& end,
                                                     bool begins) {
  for (int64_t pair = 0; pair < count; ++pair, ++two) {
    __m512 sum[2][kCount];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const float* const so_far = static_cast<const float*>(end.out) + two->rows[i] * end.product.columns;
#pragma GCC unroll 4
      for (int v = 0; v < kCount; ++v) {
        sum[i][v] = _mm512_setzero_ps();
        if (!begins) sum[i][v] = _mm512_maskz_loadu_ps(lanes(end.columns - v * kLanes), so_far + v * kLanes);
        if (end.ending.descends) __builtin_prefetch(so_far + v * kLanes, 1);
      }
    }
    const Pair *const first = left.data + two->rows[0] * left.row, *const second = left.data + two->rows[1] * left.row;
    const uint8_t* const both = lists.both(pair);
    for (int32_t t = 0; t < two->both; ++t) {
      const int64_t k = both[t];
      const auto x = (__m512bh)_mm512_set1_epi32(static_cast<int>(first[k]));
      const auto y = (__m512bh)_mm512_set1_epi32(static_cast<int>(second[k]));
#pragma GCC unroll 4
      for (int v = 0; v < kCount; ++v) {
        __m512i right = _mm512_loadu_si512(panel + k * kPanel + v * kLanes);
        MOONFLOW_IN_REGISTER(right);  // or it would be read for each of the two
        sum[0][v] = _mm512_dpbf16_ps(sum[0][v], x, (__m512bh)right);
        sum[1][v] = _mm512_dpbf16_ps(sum[1][v], y, (__m512bh)right);
      }
    }
    const uint8_t *const of_first = lists.own(pair, 0), *const of_second = lists.own(pair, 1);
    for (int32_t t = 0; t < two->own[1]; ++t) {
      add_pair<kCount>(first, of_first[t], panel, sum[0]);
      add_pair<kCount>(second, of_second[t], panel, sum[1]);
    }
    for (int32_t t = two->own[1]; t < two->own[0]; ++t) add_pair<kCount>(first, of_first[t], panel, sum[0]);
    end_row<kCount>(end, two->rows[0], sum[0]);
    if (!two->alone) end_row<kCount>(end, two->rows[1], sum[1]);
  }
}

}  // namespace

int64_t ListedPairs::scratch_bytes(const NarrowProduct& product) {
  if (!may_pay(product)) return 0;
  return turned_bytes(product) + two_bytes(product) + scratch_piece(TermLists::bytes(listed(product), depth(product)));
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
  const int64_t count = (last + 1) / 2 - first / 2;
  for (int64_t slice = 0; slice < slices(product_); ++slice) {
    const Slice part(product_, end.ending, slice);
    const PanelEnding here{product_, part.ending, end.columns, part.ending.bias ? end.bias : nullptr, end.out};
    const int64_t pair = slice * ((count_ + 1) / 2) + first / 2, term = slice * depth(product_);
    const auto sum = [&](auto* sum_in_registers) {
      sum_in_registers(two_ + pair, count, {rows_.data + term, rows_.row, 1}, lists_.from(pair), panel + term * kPanel,
                       here, part.begins);
    };
    switch ((end.columns + kLanes - 1) / kLanes) {
      case 1:
        sum(sum_listed<1>);
        break;
      case 2:
        sum(sum_listed<2>);
        break;
      case 3:
        sum(sum_listed<3>);
        break;
      default:
        sum(sum_listed<kVectors>);
    }
  }
}

[[MOONFLOW_BFLOAT16]] bool is_finite(const Pair* panel, int64_t pairs, int64_t columns) {
  const __m512i exponents = _mm512_set1_epi32(0x7f807f80);
  uint32_t strange = 0;
  for (int64_t k = 0; k < pairs; ++k, panel += kPanel) {
    for (int64_t j = 0; j < columns; j += kLanes) {
      const __m512i exponent = _mm512_and_si512(_mm512_loadu_si512(panel + j), exponents);
      strange |= _mm512_cmpeq_epi16_mask(exponent, exponents);
    }
  }
  return strange == 0;
}

#endif

}  // namespace moonflow::cpu
