#include "kernels/cpu/small_product_tiles.h"

#include <algorithm>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/bfloat16_pairs.h"
#include "kernels/cpu/rounding.h"

namespace moonflow::cpu {

namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kDepth = 2 * kLanes;       // bfloat16 in a row of a tile
constexpr int64_t kTile = kLanes * kDepth;  // in a whole one

int64_t floats_of_tiles(int64_t rows, int64_t columns, int64_t inner) {
  return checked_product(checked_product(divide_up(rows, kLanes), divide_up(columns, kLanes)),
                         divide_up(inner, kDepth) * kTile / 2);
}

}  // namespace

int64_t packed_left_floats(int64_t rows, int64_t inner) { return floats_of_tiles(rows, 1, inner); }
int64_t packed_right_floats(int64_t inner, int64_t columns) { return floats_of_tiles(1, columns, inner); }

#ifdef MOONFLOW_BFLOAT16
namespace {

using namespace amx;  // its tiles, by name

// Rows of a matrix that lies in rows: 32 numbers of each are a row of a tile as they are.
[[MOONFLOW_BFLOAT16]] void pack_rows(const SmallProduct<float>& product, int64_t first, int64_t rows, uint16_t* to) {
  for (int64_t k = 0; k < product.inner; k += kDepth, to += kTile) {
    const __mmask16 low = lanes(product.inner - k), high = lanes(product.inner - k - kLanes);
    for (int64_t i = 0; i < rows; ++i) {
      const float* const from = product.a.data + (first + i) * product.a.row + k;
      _mm512_storeu_si512(to + i * kDepth, (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(high, from + kLanes),
                                                                       _mm512_maskz_loadu_ps(low, from)));
    }
  }
}

[[MOONFLOW_BFLOAT16]] __m512 column(const SmallProduct<float>& product, int64_t first, int64_t rows, int64_t k) {
  return _mm512_maskz_loadu_ps(lanes(k < product.inner ? rows : 0), product.a.data + first + k * product.a.column);
}

// Rows of a matrix that lies in columns.
[[MOONFLOW_BFLOAT16]] void pack_columns(const SmallProduct<float>& product, int64_t first, int64_t rows,
                                        uint16_t* to) {
  for (int64_t k = 0; k < product.inner; k += kDepth, to += kTile) {
    __m512i block[kLanes];
    for (int64_t pair = 0; pair < kLanes; ++pair)
      block[pair] = in_pairs(column(product, first, rows, k + 2 * pair), column(product, first, rows, k + 2 * pair + 1));
    transpose_pairs(block);
    for (int64_t i = 0; i < kLanes; ++i) _mm512_storeu_si512(to + i * kDepth, block[i]);
  }
}

// What a group of tiles is computed from: 16 rows or more, and 16 columns or more.
struct Group {
  const uint16_t *left, *right;
  int64_t depth;       // tiles along the inner axis
  int64_t right_step;  // from a tile of columns to the next one
  float* c;
  int64_t c_row;
  bool add;
};

template <bool kBelow, bool kBeside>
void multiply_group(const Group& group) {
  const int64_t row_bytes = group.c_row * static_cast<int64_t>(sizeof(float));
  float* const below = group.c + kLanes * group.c_row;
  amx::zero_four_sums();
  if (group.add) {
    amx::load<kSum>(group.c, row_bytes);
    if constexpr (kBeside) amx::load<kSumRight>(group.c + kLanes, row_bytes);
    if constexpr (kBelow) amx::load<kSumBelow>(below, row_bytes);
    if constexpr (kBelow && kBeside) amx::load<kSumBelowRight>(below + kLanes, row_bytes);
  }
  const uint16_t *left = group.left, *right = group.right;
  for (int64_t k = 0; k < group.depth; ++k, left += kTile, right += kTile) {
    amx::add_products<kBelow, kBeside>(left, left + group.depth * kTile, amx::kRowBytes, right,
                                       right + group.right_step);
  }
  amx::store<kSum>(group.c, row_bytes);
  if constexpr (kBeside) amx::store<kSumRight>(group.c + kLanes, row_bytes);
  if constexpr (kBelow) amx::store<kSumBelow>(below, row_bytes);
  if constexpr (kBelow && kBeside) amx::store<kSumBelowRight>(below + kLanes, row_bytes);
}

constexpr void (*kGroups[2][2])(const Group&) = {{multiply_group<false, false>, multiply_group<false, true>},
                                                 {multiply_group<true, false>, multiply_group<true, true>}};

}  // namespace

bool small_tiles_fit(int64_t rows, int64_t columns, int64_t inner) {
  return has_tiles() && std::min({rows, columns, inner}) >= kLanes;
}

[[MOONFLOW_BFLOAT16]] PackedRight pack_right(int64_t inner, int64_t columns, const float* b, int64_t b_row,
                                             float* scratch) {
  auto* const data = reinterpret_cast<uint16_t*>(scratch);
  uint16_t* to = data;
  for (int64_t j = 0; j < columns; j += kLanes) {
    for (int64_t k = 0; k < round_up(inner, kDepth); k += 2, to += kDepth) {
      const float* const row = b + k * b_row + j;
      const __m512 first = k < inner ? _mm512_loadu_ps(row) : _mm512_setzero_ps();
      const __m512 second = k + 1 < inner ? _mm512_loadu_ps(row + b_row) : _mm512_setzero_ps();
      _mm512_storeu_si512(to, in_pairs(first, second));
    }
  }
  return {data, inner};
}

void multiply(const SmallProduct<float>& product, const PackedRight& right, float* left_scratch) {
  auto* const left = reinterpret_cast<uint16_t*>(left_scratch);
  const int64_t depth = divide_up(product.inner, kDepth), right_step = divide_up(right.inner, kDepth) * kTile;
  for (int64_t i = 0; i < product.rows; i += kLanes) {
    const int64_t rows = std::min(kLanes, product.rows - i);
    uint16_t* const to = left + i / kLanes * depth * kTile;
    product.a.column == 1 ? pack_rows(product, i, rows, to) : pack_columns(product, i, rows, to);
  }
  int64_t configured = 0;
  for (int64_t i = 0; i < product.rows; i += 2 * kLanes) {
    const int64_t rows = std::min(2 * kLanes, product.rows - i), upper = std::min(rows, kLanes);
    if (rows != configured) amx::configure(amx::four_sums(upper, std::max<int64_t>(1, rows - upper)));
    configured = rows;
    for (int64_t j = 0; j < product.columns; j += 2 * kLanes) {
      const bool beside = product.columns - j > kLanes;
      kGroups[rows > kLanes][beside]({left + i / kLanes * depth * kTile, right.data + j / kLanes * right_step, depth,
                                      right_step, product.c + i * product.c_row + j, product.c_row, product.add});
    }
  }
  amx::release();
}

#else

bool small_tiles_fit(int64_t, int64_t, int64_t) { return false; }
PackedRight pack_right(int64_t inner, int64_t, const float*, int64_t, float*) { return {nullptr, inner}; }
void multiply(const SmallProduct<float>&, const PackedRight&, float*) {}

#endif

}  // namespace moonflow::cpu
