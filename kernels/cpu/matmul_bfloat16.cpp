#include "kernels/cpu/matmul_bfloat16.h"

#include <algorithm>

#include "kernels/cpu/device.h"
#include "kernels/cpu/matmul_bfloat16_sparse.h"

namespace moonflow::cpu {

#ifdef MOONFLOW_BFLOAT16
namespace {

constexpr int kTileRows = 6;   // with kVectors sums each, and a row of the panel, these fill the 32 registers
constexpr int64_t kLine = 64;  // bytes of a line of the cache

int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// The columns in panels of so many vectors at most. They differ by one vector at most: one that is narrower than the
// others would leave registers idle.
struct Panels {
  int64_t columns, vectors, count;

  Panels(const NarrowProduct& product, int64_t most)
      : columns(product.columns), vectors(vectors_of(columns)), count((vectors + most - 1) / most) {}
  int64_t begin(int64_t panel) const { return std::min(columns, vectors * panel / count * kLanes); }
};

// ---- packing ---------------------------------------------------------------------------------------------------

// A matrix as it is stored, in one of the two dtypes.
struct Stored {
  const void* data;
  int64_t row;  // elements from row to row
  bool narrow;

  const float* wide(int64_t i, int64_t j) const { return static_cast<const float*>(data) + i * row + j; }
  const uint16_t* half(int64_t i, int64_t j) const { return static_cast<const uint16_t*>(data) + i * row + j; }
};

// 32 neighbours of a row, of which `count` are there: 16 pairs.
[[MOONFLOW_BFLOAT16]] inline __m512i pairs_along(const Stored& from, int64_t i, int64_t j, int64_t count) {
  if (from.narrow) {
    const auto mask = static_cast<__mmask32>(count >= 32 ? 0xffffffffu : (1u << count) - 1);
    return _mm512_maskz_loadu_epi16(mask, from.half(i, j));
  }
  const __m512 first = _mm512_maskz_loadu_ps(lanes(count), from.wide(i, j));
  const __m512 second = _mm512_maskz_loadu_ps(lanes(count - kLanes), from.wide(i, j) + (count > kLanes ? kLanes : 0));
  return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}

// The pairs down two rows, of 16 columns of which `count` are there; there may be only one row.
[[MOONFLOW_BFLOAT16]] inline __m512i pairs_down(const Stored& from, int64_t i, bool two, int64_t j, int64_t count) {
  const __m512i zip = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                       5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __mmask16 upper = lanes(count), lower = two ? upper : __mmask16{0};
  __m512i both;
  if (from.narrow) {
    const __m256i first = _mm256_maskz_loadu_epi16(upper, from.half(i, j));
    const __m256i second = _mm256_maskz_loadu_epi16(lower, from.half(two ? i + 1 : i, j));
    both = _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
  } else {
    const __m512 first = _mm512_maskz_loadu_ps(upper, from.wide(i, j));
    const __m512 second = _mm512_maskz_loadu_ps(lower, from.wide(two ? i + 1 : i, j));
    both = (__m512i)_mm512_cvtne2ps_pbh(second, first);
  }
  return _mm512_permutexvar_epi16(zip, both);
}

// Rows of 16 pairs become columns.
[[MOONFLOW_BFLOAT16]] inline void transpose(__m512i (&rows)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    rows[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    rows[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    rows[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    rows[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0x88);
    t[i + 8] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xdd);
    t[i + 12] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xdd);
    rows[i + 4] = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88);
    rows[i + 12] = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xdd);
  }
}

// 16 rows from row i on, 32 neighbours of each from j on: as columns of a panel.
[[MOONFLOW_BFLOAT16]] inline void turn_block(const Stored& from, int64_t i, int64_t j, Pair* to, int64_t row) {
  __m512i block[kLanes];
  if (from.narrow) {
#pragma GCC unroll 16
    for (int c = 0; c < kLanes; ++c) block[c] = _mm512_loadu_si512(from.half(i + c, j));
  } else {
#pragma GCC unroll 16
    for (int c = 0; c < kLanes; ++c) {
      const float* const numbers = from.wide(i + c, j);
      block[c] = (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(numbers + kLanes), _mm512_loadu_ps(numbers));
    }
  }
  transpose(block);
#pragma GCC unroll 16
  for (int k = 0; k < kLanes; ++k) _mm512_storeu_si512(to + k * row, block[k]);
}

// The same where there are fewer: `columns` rows of `numbers` neighbours, of whose pairs `count` are wanted.
[[MOONFLOW_BFLOAT16]] void turn_part(const Stored& from, int64_t i, int64_t columns, int64_t j, int64_t numbers,
                                     int64_t count, Pair* to, int64_t row) {
  __m512i block[kLanes];
  for (int64_t c = 0; c < kLanes; ++c)
    block[c] = c < columns ? pairs_along(from, i + c, j, numbers) : _mm512_setzero_si512();
  transpose(block);
  for (int64_t k = 0; k < count; ++k) _mm512_storeu_si512(to + k * row, block[k]);
}

// Columns [first, first + width) of b' as a panel: one row of pairs after the other, filled up with zeros.
[[MOONFLOW_BFLOAT16]] void pack_panel(const NarrowProduct& product, const void* b, int64_t first, int64_t width,
                                      Pair* panel) {
  const int64_t all_pairs = pairs(product);
  const int64_t vectors = vectors_of(width), row = vectors * kLanes;
  const Stored from{b, product.transpose_b ? product.inner : product.columns, product.narrow_b};
  if (!product.transpose_b) {
    for (int64_t k = 0; k < all_pairs; ++k, panel += row)
      for (int64_t v = 0; v < vectors; ++v)
        _mm512_storeu_si512(panel + v * kLanes,
                            pairs_down(from, 2 * k, 2 * k + 1 < product.inner, first + v * kLanes, width - v * kLanes));
    return;
  }
  for (int64_t v = 0; v < vectors; ++v) {
    const int64_t columns = std::min(kLanes, width - v * kLanes);
    for (int64_t k = 0; k < all_pairs; k += kLanes) {
      const int64_t count = std::min(kLanes, all_pairs - k);
      Pair* const to = panel + k * row + v * kLanes;
      if (columns == kLanes && product.inner - 2 * k >= 2 * kLanes) {
        turn_block(from, first + v * kLanes, 2 * k, to, row);
      } else {
        turn_part(from, first + v * kLanes, columns, 2 * k, product.inner - 2 * k, count, to, row);
      }
    }
  }
}

// In pairs as it is: no row begins in the middle of one.
bool left_is_packed(const NarrowProduct& product) {
  return product.narrow_a && !product.transpose_a && product.inner % 2 == 0;
}

int64_t left_pairs(const NarrowProduct& product) {
  if (left_is_packed(product)) return 0;
  return product.transpose_a ? pairs(product) * round_up(product.rows, kLanes)
                             : product.rows * round_up(pairs(product), kLanes);
}

[[MOONFLOW_BFLOAT16]] void pack_rows(const Stored& from, int64_t inner, int64_t row, Pair* to) {
  for (int64_t k = 0; k < inner; k += 2 * kLanes) _mm512_storeu_si512(to + k / 2, pairs_along(from, row, k, inner - k));
}

[[MOONFLOW_BFLOAT16]] void pack_pair_of_rows(const Stored& from, int64_t inner, int64_t columns, int64_t pair,
                                             Pair* to) {
  for (int64_t j = 0; j < columns; j += kLanes)
    _mm512_storeu_si512(to + j, pairs_down(from, 2 * pair, 2 * pair + 1 < inner, j, columns - j));
}

// a' of every product of the batch, on all threads that pay.
void pack_left(const NarrowProduct& product, const void* a, Pair* packed) {
  const int64_t each = left_pairs(product), bytes = product.rows * product.inner * (product.narrow_a ? 2 : 4);
  const int64_t runs = product.transpose_a ? pairs(product) : product.rows;  // of one product
  const int64_t run = product.transpose_a ? round_up(product.rows, kLanes) : round_up(pairs(product), kLanes);
  parallel_for(product.batch * runs, std::max<int64_t>(1, kWideGrain / run), [=](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t n = i / runs, at = i % runs;
      const Stored from{static_cast<const char*>(a) + n * bytes, product.transpose_a ? product.rows : product.inner,
                        product.narrow_a};
      Pair* const to = packed + n * each + at * run;
      if (product.transpose_a) {
        pack_pair_of_rows(from, product.inner, product.rows, at, to);
      } else {
        pack_rows(from, product.inner, at, to);
      }
    }
  });
}

// ---- tiles -----------------------------------------------------------------------------------------------------

// The lines of a tile that is read and written are fetched together while it is summed.
inline void fetch_tile(const float* out, int64_t rows, int64_t row, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i, out += row) {
    for (int64_t j = 0; j < columns; j += kLanes) __builtin_prefetch(out + j, 1);
    __builtin_prefetch(out + columns - 1, 1);
  }
}

// One tile of the result in registers, from row `begin` on.
template <int kRows, int kCount>
[[MOONFLOW_BFLOAT16, gnu::noinline]] void multiply_tile(const Terms& left, const Pair* panel, int64_t panel_row,
                                                        const PanelEnding& end, int64_t begin) {
  __m512 sum[kRows][kCount];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kCount; ++v) sum[i][v] = _mm512_setzero_ps();
  constexpr int kBases = (kRows + 2) / 3;  // rows are addressed from every third, which needs no arithmetic
  const Pair* base[kBases];
#pragma GCC unroll 2
  for (int i = 0; i < kBases; ++i) base[i] = left.data + 3 * i * left.row;
  const int64_t columns = end.product.columns;
  if (end.ending.descends && !end.turned)
    fetch_tile(static_cast<const float*>(end.out) + begin * columns, kRows, columns, end.columns);
  const int64_t row = left.row, step = left.step;
  for (int64_t k = pairs(end.product); k > 0; --k, panel += panel_row) {
    __m512bh right[kCount];
#pragma GCC unroll 4
    for (int v = 0; v < kCount; ++v) right[v] = (__m512bh)_mm512_loadu_si512(panel + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const auto spread = (__m512bh)_mm512_set1_epi32(static_cast<int>(base[i / 3][i % 3 * row]));
#pragma GCC unroll 4
      for (int v = 0; v < kCount; ++v) sum[i][v] = _mm512_dpbf16_ps(sum[i][v], spread, right[v]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < kBases; ++i) base[i] += step;
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) end_row<kCount>(end, begin + i, sum[i]);
}

using Tile = void (*)(const Terms&, const Pair*, int64_t, const PanelEnding&, int64_t);

struct TilesOfRows {
  Tile of[kVectors];
};

template <int kRows>
constexpr TilesOfRows tiles_of() {
  return {{multiply_tile<kRows, 1>, multiply_tile<kRows, 2>, multiply_tile<kRows, 3>, multiply_tile<kRows, 4>}};
}

constexpr TilesOfRows kTiles[kTileRows] = {tiles_of<1>(), tiles_of<2>(), tiles_of<3>(),
                                           tiles_of<4>(), tiles_of<5>(), tiles_of<6>()};

// What a panel is packed from. The columns of a b' that lies in rows are short pieces far apart, which the hardware
// does not guess; so while one panel is multiplied, those of the next are fetched.
struct PiecesOfRows {
  const char* data = nullptr;
  int64_t rows = 0, row_bytes = 0, bytes = 0;

  void fetch(int64_t first, int64_t last) const {
    for (int64_t i = first; i < last; ++i)
      for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(data + i * row_bytes + at, 0, 2);
  }
};

PiecesOfRows pieces_of_panel(const NarrowProduct& product, const Panels& panels, const char* b, int64_t panel) {
  constexpr int64_t kNear = 1 << 20, kMost = 1 << 18;  // bytes: of a b that stays in the second cache; of a panel there
  if (product.transpose_b || panel == panels.count) return {};
  const int64_t first = panels.begin(panel), size = product.narrow_b ? 2 : 4;
  const int64_t width = panels.begin(panel + 1) - first;
  if (product.columns * product.inner * size < kNear || width * product.inner * size > kMost) return {};
  return {b + first * size, product.inner, product.columns * size, width * size};
}

// Rows [first, last) of one product, through one packed panel.
void multiply_panel(const Terms& left, const Pair* panel, const PanelEnding& end, int64_t first, int64_t last,
                    const PiecesOfRows& next_panel) {
  const int64_t vectors = vectors_of(end.columns), rows = last - first, groups = (rows + kTileRows - 1) / kTileRows;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t i = first + rows * group / groups, next = first + rows * (group + 1) / groups;
    const Terms from{left.data + i * left.row, left.row, left.step};
    next_panel.fetch(next_panel.rows * group / groups, next_panel.rows * (group + 1) / groups);
    for (int64_t v = 0; v < vectors; v += kVectors)
      kTiles[next - i - 1].of[std::min(kVectors, vectors - v) - 1](from, panel + v * kLanes, vectors * kLanes,
                                                                   end.from(v), i);
  }
}

// ---- few rows --------------------------------------------------------------------------------------------------
// Each number of b is used once per row of a, so the speed is that of reading b: nothing is packed, and bfloat16 halves
// what is to be read.

constexpr int64_t kFewRows = 8;

bool is_few_rows(const NarrowProduct& product) {
  return product.batch == 1 && product.rows <= kFewRows && product.transpose_b && product.narrow_b &&
         !product.transpose_a;
}

[[MOONFLOW_BFLOAT16]] inline __m128 four_sums(const __m512& x) {
  const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  return _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
}

// The sums of four registers' lanes, in pairs.
[[MOONFLOW_BFLOAT16]] inline __m128 sums(const __m512 (&x)[4]) {
  const __m128 a = four_sums(x[0]), b = four_sums(x[1]), c = four_sums(x[2]), d = four_sums(x[3]);
  const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
  const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
  return _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
}

// Columns [first, last) of every row; `left` lies in rows.
[[MOONFLOW_BFLOAT16, gnu::noinline]] void multiply_dots(const NarrowProduct& product, const Terms& left, const void* b,
                                                        const NarrowEnding& ending, int64_t first, int64_t last,
                                                        void* out) {
  const Stored right{b, product.inner, true};
  constexpr int64_t kStep = 2 * kLanes;
  for (int64_t j = first; j < last; j += 4) {
    const int64_t count = std::min<int64_t>(4, last - j);
    for (int64_t i = 0; i < product.rows; ++i) {
      const Pair* const a = left.data + i * left.row;
      const uint16_t* column[4];
      for (int c = 0; c < 4; ++c) column[c] = right.half(std::min(j + c, last - 1), 0);
      __m512 even[4], odd[4];  // two sums, to hide the latency of one
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) even[c] = odd[c] = _mm512_setzero_ps();
      int64_t k = 0;
      for (; k + 2 * kStep <= product.inner; k += 2 * kStep) {
        const auto x = (__m512bh)_mm512_loadu_si512(a + k / 2), y = (__m512bh)_mm512_loadu_si512(a + k / 2 + kLanes);
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) even[c] = _mm512_dpbf16_ps(even[c], x, (__m512bh)_mm512_loadu_si512(column[c] + k));
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c)
          odd[c] = _mm512_dpbf16_ps(odd[c], y, (__m512bh)_mm512_loadu_si512(column[c] + k + kStep));
      }
      for (; k < product.inner; k += kStep) {
        const int64_t here = std::min(kStep, product.inner - k);
        const auto mask = static_cast<__mmask32>(here == kStep ? 0xffffffffu : (1u << here) - 1);
        const auto x = (__m512bh)_mm512_maskz_loadu_epi16(mask, a + k / 2);
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c)
          even[c] = _mm512_dpbf16_ps(even[c], x, (__m512bh)_mm512_maskz_loadu_epi16(mask, column[c] + k));
      }
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) even[c] = _mm512_add_ps(even[c], odd[c]);
      __m128 y = sums(even);
      const auto mask = static_cast<__mmask8>((1 << count) - 1);
      if (ending.bias) y = _mm_add_ps(y, _mm_maskz_loadu_ps(mask, ending.bias + j));
      if (ending.relu) y = _mm_max_ps(_mm_setzero_ps(), y);
      const int64_t at = i * product.columns + j;
      if (product.narrow_out) {
        _mm_mask_storeu_epi16(static_cast<uint16_t*>(out) + at, mask, (__m128i)_mm_cvtneps_pbh(y));
      } else {
        float* const to = static_cast<float*>(out) + at;
        if (ending.descends) y = _mm_fnmadd_ps(_mm_set1_ps(ending.factor), y, _mm_maskz_loadu_ps(mask, to));
        _mm_mask_storeu_ps(to, mask, y);
      }
    }
  }
}

// Whether the panels, in contiguous parts, give each thread about as many columns.
bool columns_divide(const Panels& panels, int64_t parts) {
  int64_t most = 0;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first = panels.count * part / parts, last = panels.count * (part + 1) / parts;
    most = std::max(most, panels.begin(last) - panels.begin(first));
  }
  constexpr double kUneven = 1.06;
  return static_cast<double>(most * parts) < kUneven * static_cast<double>(panels.columns);
}

struct Range {
  int64_t first, last;
};

// Threads take parts of the panels of the whole batch; of one product whose panels do not divide well, parts of the
// rows, each then packing every panel for itself.
struct Division {
  int64_t rows, together;  // which are not to be parted
  int64_t units;           // panels of the whole batch
  int64_t parts;
  bool by_rows;

  Division(const NarrowProduct& product, const Panels& panels, int64_t rows, int64_t together)
      : rows(rows), together(together), units(product.batch * panels.count) {
    constexpr double kFlopsOfThread = 2e6;  // some microseconds
    constexpr int64_t kLeastRows = 32;      // that pay for packing a panel
    const double flops =
        2.0 * static_cast<double>(product.batch * rows) * static_cast<double>(product.columns * product.inner);
    parts = threads_for(flops, kFlopsOfThread);
    by_rows = product.batch == 1 && rows >= parts * kLeastRows && !columns_divide(panels, parts);
  }

  Range rows_of(int64_t part) const {
    if (!by_rows) return {0, rows};
    const int64_t groups = (rows + together - 1) / together;
    return {groups * part / parts * together, std::min(rows, groups * (part + 1) / parts * together)};
  }
  Range panels_of(int64_t part) const {
    return by_rows ? Range{0, units} : Range{units * part / parts, units * (part + 1) / parts};
  }
};

}  // namespace

bool multiplies_bfloat16() {
  static const bool has = simd() == Simd::Avx512 && has_bfloat16();
  return has;
}

namespace {

// Of the widest panel.
int64_t panel_pairs(const NarrowProduct& product) {
  return is_few_rows(product) ? 0 : pairs(product) * ListedPairs::vectors(product) * kLanes;
}

int64_t scratch_bytes(const NarrowProduct& product) {
  const int64_t all = product.batch * left_pairs(product) + threads() * panel_pairs(product);
  return all * static_cast<int64_t>(sizeof(Pair)) + ListedPairs::scratch_bytes(product) + kAlignment;
}

void multiply(const NarrowProduct& product, const void* a, const void* b, const NarrowEnding& ending, bool turned,
              void* out, void* scratch) {
  if (product.batch * product.rows * product.columns == 0) return;
  Pair* const packed = static_cast<Pair*>(scratch);
  if (!left_is_packed(product)) pack_left(product, a, packed);
  const int64_t each = left_is_packed(product) ? product.rows * product.inner / 2 : left_pairs(product);
  const Pair* const left_data = left_is_packed(product) ? static_cast<const Pair*>(a) : packed;
  const auto left_of = [=](int64_t n) -> Terms {
    if (product.transpose_a) return {left_data + n * each, 1, round_up(product.rows, kLanes)};
    return {left_data + n * each, left_is_packed(product) ? product.inner / 2 : round_up(pairs(product), kLanes), 1};
  };
  if (is_few_rows(product)) {
    const int64_t grain = std::max<int64_t>(4, 2 * kWideGrain / std::max<int64_t>(1, product.inner * product.rows));
    return parallel_for(product.columns, grain, [&](int64_t first, int64_t last) {
      multiply_dots(product, left_of(0), b, ending, first, last, out);
    });
  }

  const int64_t each_panel = panel_pairs(product);
  Pair* const panel_scratch = packed + product.batch * left_pairs(product);
  ListedPairs listed(product, left_of(0), panel_scratch + threads() * each_panel);
  const Panels panels(product, listed.pays() ? ListedPairs::vectors(product) : kVectors);
  const int64_t b_bytes = product.inner * product.columns * (product.narrow_b ? 2 : 4);
  const int64_t out_bytes = product.narrow_out ? 2 : 4;
  const int64_t block = listed.pays() ? listed.most_rows() : product.rows;
  for (int64_t begin = 0; begin < product.rows; begin += block) {
    const int64_t rows = std::min(block, product.rows - begin);
    if (listed.pays()) listed.list(begin, rows);
    const Division division(product, panels, rows, listed.pays() ? kRowsTogether : 1);
    parallel_for(division.parts, 1, [&](int64_t first_part, int64_t last_part) {
      for (int64_t part = first_part; part < last_part; ++part) {
        Pair* const panel = panel_scratch + part * each_panel;
        const Range own = division.rows_of(part), units = division.panels_of(part);
        for (int64_t unit = units.first; unit < units.last; ++unit) {
          const int64_t n = unit / panels.count, at = unit % panels.count;
          const int64_t j = panels.begin(at), width = panels.begin(at + 1) - j;
          const char* const right = static_cast<const char*>(b) + n * b_bytes;
          pack_panel(product, right, j, width, panel);
          const int64_t to = turned ? j * product.rows + begin : (n * product.rows + begin) * product.columns + j;
          const PanelEnding end{
              product, ending, width, ending.bias ? ending.bias + j : nullptr, static_cast<char*>(out) + to * out_bytes,
              turned};
          if (listed.pays() && is_finite(panel, pairs(product), width)) {
            listed.multiply(panel, end, own.first, own.last);
          } else {
            const Terms left = left_of(n);
            multiply_panel({left.data + begin * left.row, left.row, left.step}, panel, end, own.first, own.last,
                           pieces_of_panel(product, panels, right, at + 1));
          }
        }
      }
    });
  }
}

}  // namespace

int64_t narrow_scratch_bytes(const NarrowProduct& product) {
  return std::max(scratch_bytes(product), scratch_bytes(turned(product)));
}

void multiply_narrow(const NarrowProduct& product, const void* a, const void* b, const NarrowEnding& ending, void* out,
                     void* scratch) {
  if (ending.is_plain() && is_better_turned(product, a, b))
    multiply(turned(product), b, a, ending, true, out, scratch);
  else
    multiply(product, a, b, ending, false, out, scratch);
}

#else

bool multiplies_bfloat16() { return false; }
int64_t narrow_scratch_bytes(const NarrowProduct&) { return 0; }
void multiply_narrow(const NarrowProduct&, const void*, const void*, const NarrowEnding&, void*, void*) {}

#endif

}  // namespace moonflow::cpu
