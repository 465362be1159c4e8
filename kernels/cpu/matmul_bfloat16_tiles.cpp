#include "kernels/cpu/matmul_bfloat16_tiles.h"

#include <algorithm>

#include "kernels/cpu/amx.h"

namespace moonflow::cpu {

#ifdef MOONFLOW_BFLOAT16
namespace {

using namespace amx;  // its tiles, by name

constexpr int64_t kRowsOfTiles = 2 * amx::kRows;

// `rows` rows from row `begin` of end.out on by kVectors vectors of columns.
template <bool kBelow, int kVectors>
[[MOONFLOW_BFLOAT16, gnu::noinline]] void multiply_group(const LeftTiles& left, const Pair* panel,
                                                         const PanelEnding& end, int64_t begin, int64_t rows) {
  constexpr int64_t kNumber = sizeof(Pair), kTile = kLanes * kLanes;
  fetch_out(end, begin, rows, kVectors);
  amx::zero_four_sums();
  const int64_t depth = panel_depth(end.product), row = left.row * kNumber, next = left.next;
  const Pair *tile = left.data, *below = left.data + left.below, *beside = panel + depth * kLanes;
  for (int64_t k = 0; k < depth; k += kLanes, tile += next, below += next, panel += kTile, beside += kTile) {
    amx::add_products<kBelow, kVectors == 2>(tile, below, row, panel, beside);
  }

  alignas(kAlignment) float sums[kRowsOfTiles][kVectors * kLanes];
  amx::store<kSum>(sums[0], sizeof sums[0]);
  if constexpr (kVectors == 2) amx::store<kSumRight>(sums[0] + kLanes, sizeof sums[0]);
  if constexpr (kBelow) amx::store<kSumBelow>(sums[kLanes], sizeof sums[0]);
  if constexpr (kBelow && kVectors == 2) amx::store<kSumBelowRight>(sums[kLanes] + kLanes, sizeof sums[0]);
  for (int64_t i = 0; i < rows; ++i) {
    __m512 sum[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[v] = _mm512_load_ps(sums[i] + v * kLanes);
    end_row<kVectors>(end, begin + i, sum);
  }
}

using Group = void (*)(const LeftTiles&, const Pair*, const PanelEnding&, int64_t, int64_t);

constexpr Group kGroups[2][2] = {{multiply_group<false, 1>, multiply_group<false, 2>},
                                 {multiply_group<true, 1>, multiply_group<true, 2>}};

}  // namespace

int64_t vectors_of_tiles(const NarrowProduct& product) {
  constexpr int64_t kBytes = 1 << 18, kMost = 32;
  return std::clamp<int64_t>(kBytes / (panel_depth(product) * amx::kRowBytes) / 2 * 2, kVectors, kMost);
}

void multiply_in_tiles(const LeftTiles& left, const Pair* panel, const PanelEnding& end, int64_t first, int64_t last,
                       const PiecesOfRows& next_panel) {
  const int64_t vectors = vectors_of(end.columns), groups = (last - first + kRowsOfTiles - 1) / kRowsOfTiles;
  const PanelLayout layout(end.product, vectors);
  int64_t configured = 0;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t begin = first + group * kRowsOfTiles, rows = std::min(kRowsOfTiles, last - begin);
    const int64_t upper = std::min(rows, amx::kRows);
    if (rows != configured) amx::configure(amx::four_sums(upper, std::max<int64_t>(1, rows - upper)));
    configured = rows;
    next_panel.fetch(group, groups);
    const LeftTiles from{left.data + begin / kLanes * left.below, left.row, left.below, left.next};
    for (int64_t v = 0; v < vectors; v += 2)
      kGroups[rows > kLanes][vectors - v > 1](from, panel + v * layout.vector, end.from(v), begin, rows);
  }
  amx::release();
}

#endif

}  // namespace moonflow::cpu
