#include "kernels/cpu/matmul_bfloat16.h"

#include <algorithm>

#include "kernels/cpu/device.h"
#include "kernels/cpu/matmul_bfloat16_pack.h"
#include "kernels/cpu/matmul_bfloat16_sparse.h"
#include "kernels/cpu/matmul_bfloat16_tiles.h"

namespace moonflow::cpu {

#ifdef MOONFLOW_BFLOAT16
namespace {

constexpr int kTileRows = 6;  // with kVectors sums each, and a row of the panel, these fill the 32 registers

// The columns in panels of so many vectors at most. They differ by one vector at most: one that is narrower than the
// others would leave registers idle.
struct Panels {
  int64_t columns, vectors, count;

  Panels(const NarrowProduct& product, int64_t most)
      : columns(product.columns), vectors(vectors_of(columns)), count((vectors + most - 1) / most) {}
  int64_t begin(int64_t panel) const { return std::min(columns, vectors * panel / count * kLanes); }
};

// ---- tiles -----------------------------------------------------------------------------------------------------

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
  fetch_out(end, begin, kRows, kCount);
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
    next_panel.fetch(group, groups);
    for (int64_t v = 0; v < vectors; v += kVectors)
      kTiles[next - i - 1].of[std::min(kVectors, vectors - v) - 1](from, panel + v * kLanes, vectors * kLanes,
                                                                   end.from(v), i);
  }
}

// ---- few rows --------------------------------------------------------------------------------------------------
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
// rows, each then packing every panel for itself. So do tiles, which pack fast, where what is written is a weight: its
// rows stay with the thread that reads them when the layer multiplies by them.
struct Division {
  int64_t rows, together;  // which are not to be parted
  int64_t units;           // panels of the whole batch
  int64_t parts;
  bool by_rows;

  Division(const NarrowProduct& product, const Panels& panels, int64_t rows, int64_t together, bool keeps_rows)
      : rows(rows), together(together), units(product.batch * panels.count) {
    constexpr double kFlopsOfThread = 2e6;  // some microseconds
    constexpr int64_t kLeastRows = 32;      // that pay for packing a panel
    const double flops =
        2.0 * static_cast<double>(product.batch * rows) * static_cast<double>(product.columns * product.inner);
    parts = threads_for(flops, kFlopsOfThread);
    by_rows = product.batch == 1 && rows >= parts * kLeastRows && (keeps_rows || !columns_divide(panels, parts));
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

// Of a panel that no lists follow.
int64_t panel_vectors(const NarrowProduct& product) {
  return multiplies_in_tiles(product) ? vectors_of_tiles(product) : kVectors;
}

// Of the widest panel.
int64_t panel_pairs(const NarrowProduct& product) {
  const int64_t vectors = std::max(panel_vectors(product), ListedPairs::vectors(product));
  return is_few_rows(product) ? 0 : panel_depth(product) * vectors * kLanes;
}

int64_t scratch_bytes(const NarrowProduct& product) {
  const int64_t all = product.batch * PackedLeft::pairs_of_one(product) + threads() * panel_pairs(product);
  return all * static_cast<int64_t>(sizeof(Pair)) + ListedPairs::scratch_bytes(product) + kAlignment;
}

void multiply(const NarrowProduct& product, const void* a, const void* b, const NarrowEnding& ending, bool turned,
              void* out, void* scratch) {
  if (product.batch * product.rows * product.columns == 0) return;
  Pair* const packed = static_cast<Pair*>(scratch);
  const PackedLeft left(product, a, packed);
  if (is_few_rows(product)) {
    const int64_t grain = std::max<int64_t>(4, 2 * kWideGrain / std::max<int64_t>(1, product.inner * product.rows));
    return parallel_for(product.columns, grain, [&](int64_t first, int64_t last) {
      multiply_dots(product, left.terms(0), b, ending, first, last, out);
    });
  }

  const bool tiles = multiplies_in_tiles(product);
  const int64_t each_panel = panel_pairs(product);
  Pair* const panel_scratch = packed + product.batch * PackedLeft::pairs_of_one(product);
  ListedPairs listed(product, left.terms(0), panel_scratch + threads() * each_panel);
  const Panels panels(product, listed.pays() ? ListedPairs::vectors(product) : panel_vectors(product));
  const int64_t b_bytes = product.inner * product.columns * (product.narrow_b ? 2 : 4);
  const int64_t out_bytes = product.narrow_out ? 2 : 4;
  const int64_t block = listed.pays() ? listed.most_rows() : product.rows;
  for (int64_t begin = 0; begin < product.rows; begin += block) {
    const int64_t rows = std::min(block, product.rows - begin);
    if (listed.pays()) listed.list(begin, rows);
    const bool keeps_rows = tiles && ending.descends;
    const int64_t together = tiles ? kLanes : listed.pays() ? kRowsTogether : 1;
    const Division division(product, panels, rows, together, keeps_rows);
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
            continue;
          }
          const PiecesOfRows next_panel = pieces_of_panel(product, panels, right, at + 1);
          if (tiles) {
            multiply_in_tiles(left.tiles(n), panel, end, own.first, own.last, next_panel);
          } else {
            const Terms terms = left.terms(n);
            multiply_panel({terms.data + begin * terms.row, terms.row, terms.step}, panel, end, own.first, own.last,
                           next_panel);
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
