#include "kernels/matmul_sparse.h"

#include <algorithm>

#include "kernels/cpu.h"
#include "kernels/product.h"
#include "kernels/square.h"

namespace moonflow::cpu {
namespace {

// What of a row of a' is not zero is listed, with where the row of b' lies that it is multiplied with. The sums of a
// row of the result in some columns, a panel, stay in registers along such a list, while that part of b' lies in the
// first-level cache: a panel of as many terms as fit there, a slice.

constexpr int kVectors = 4;  // registers across a panel
constexpr int kChains = 2;   // sums of each element, by turns, so that no addition waits for the one before
template <class R>
constexpr int64_t kPanel = kVectors* R::kWidth;
constexpr int64_t kPanelFloats = 104 * kPanel<Register<16>>;  // 26 KiB
template <class R>
constexpr int64_t kDepth = kPanelFloats / kPanel<R>;  // terms of a slice at most

constexpr int64_t kRows = 128;   // that are listed together; to copy a slice is little beside them
constexpr int64_t kTerms = 512;  // of each at most; with their places half a second-level cache
constexpr int64_t kSpare = 16;   // a register may reach beyond the last list

struct Scratch {
  float *values, *panel;
  int32_t* places;  // of each value's row of b' in the panel, in floats
  int32_t* begins;  // of the list of each row in each slice, and where the last ends
};

// The most that is listed together.
int64_t listed_rows(const ProductSizes& sizes) { return std::min(kRows, sizes.rows); }
int64_t listed_terms(const ProductSizes& sizes) { return listed_rows(sizes) * std::min(kTerms, sizes.inner) + kSpare; }
int64_t lists(const ProductSizes& sizes) {
  constexpr int64_t kLeastDepth = kDepth<Register<16>> / 2;  // of a slice, where there are several
  return listed_rows(sizes) * (std::min(kTerms, sizes.inner) / kLeastDepth + 1);
}

int64_t part_bytes(const ProductSizes& sizes) {
  const int64_t bytes = 4 * (kPanelFloats + 2 * listed_terms(sizes) + lists(sizes) + 1);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

Scratch scratch_of(const ProductSizes& sizes, void* memory) {
  Scratch scratch;
  scratch.panel = static_cast<float*>(memory);
  scratch.values = scratch.panel + kPanelFloats;
  scratch.places = reinterpret_cast<int32_t*>(scratch.values + listed_terms(sizes));
  scratch.begins = scratch.places + listed_terms(sizes);
  return scratch;
}

struct Work {
  const SparseProduct& product;
  const float *a, *b;
  bool descends;
  float factor;
  float* out;

  const ProductSizes& sizes() const { return product.sizes; }
};

// Some rows from `row` on, and some terms from `term` on, in slices of `depth`.
struct Block {
  int64_t row, rows, term, terms, depth;

  int64_t slices() const { return (terms + depth - 1) / depth; }
  int64_t depth_of(int64_t slice) const { return std::min(depth, terms - slice * depth); }
};

// ---- lists ---------------------------------------------------------------------------------------------------------

// Puts the lanes that are not 0, and what belongs to each, side by side; returns how many. Of both a whole register is
// written.
template <class R>
int64_t pack(const float* lanes, const typename R::Integers& beside, float* values, int32_t* places) {
#ifdef MOONFLOW_SIMD_VERSIONS
  if constexpr (R::kWidth == 16) {
    typedef int32_t Stored __attribute__((vector_size(4 * R::kWidth), may_alias, aligned(4)));
    uint16_t some;  // a NaN is something
    const typename R::Vector from = R::at(lanes);
    typename R::Vector packed;
    typename R::Integers packed_beside;
    asm("vcmpneqps %1, %2, %0" : "=Yk"(some) : "v"(from), "v"(typename R::Vector{}));
    asm("vcompressps %1, %0%{%2%}%{z%}" : "=v"(packed) : "v"(from), "Yk"(some));
    asm("vpcompressd %1, %0%{%2%}%{z%}" : "=v"(packed_beside) : "v"(beside), "Yk"(some));
    R::at(values) = packed;
    *reinterpret_cast<Stored*>(places) = packed_beside;
    return __builtin_popcount(some);
  }
#endif
  int64_t count = 0;
  for (int i = 0; i < R::kWidth; ++i) {
    values[count] = lanes[i];
    places[count] = beside[i];
    count += lanes[i] != 0;  // no branch, which nothing could foresee
  }
  return count;
}

template <class R>
int64_t list_row(const float* from, int64_t count, const Scratch& scratch, int64_t at) {
  typename R::Integers places;
  for (int i = 0; i < R::kWidth; ++i) places[i] = i * static_cast<int>(kPanel<R>);
  int64_t k = 0;
  for (; k + R::kWidth <= count; k += R::kWidth, places += static_cast<int>(R::kWidth * kPanel<R>))
    at += pack<R>(from + k, places, scratch.values + at, scratch.places + at);
  for (int lane = 0; k < count; ++k, ++lane) {
    scratch.values[at] = from[k];
    scratch.places[at] = places[lane];
    at += from[k] != 0;
  }
  return at;
}

// Of `depth` rows of a transposed a, `step` apart, `count` neighbours: as rows of a'.
template <class R>
void turn_rows(const float* from, int64_t step, int64_t count, int64_t depth, float* to) {
  int64_t k = 0;
  if (count == R::kWidth) {
    for (; k + R::kWidth <= depth; k += R::kWidth)
      copy_square<R>(from + k * step, step, to + k, depth, [](const auto&) {});
  }
  for (; k < depth; ++k)
    for (int64_t i = 0; i < count; ++i) to[i * depth + k] = from[k * step + i];
}

// Calls visit(row of the block, its `depth` numbers from `term` on) for the rows of a' in a block.
template <class R, class Visit>
void each_row(const Work& work, const Block& block, int64_t term, int64_t depth, const Visit& visit) {
  const ProductSizes& sizes = work.sizes();
  alignas(64) float turned[R::kWidth * kDepth<R>];
  for (int64_t i = 0; i < block.rows; i += R::kWidth) {
    const int64_t here = std::min<int64_t>(R::kWidth, block.rows - i), row = block.row + i;
    if (sizes.transpose_a) turn_rows<R>(work.a + term * sizes.rows + row, sizes.rows, here, depth, turned);
    for (int64_t l = 0; l < here; ++l)
      visit(i + l, sizes.transpose_a ? turned + l * depth : work.a + (row + l) * sizes.inner + term);
  }
}

template <class R>
void list_terms(const Work& work, const Block& block, const Scratch& scratch) {
  int64_t at = 0;
  int32_t* begin = scratch.begins;
  for (int64_t slice = 0; slice < block.slices(); ++slice) {
    const int64_t depth = block.depth_of(slice);
    each_row<R>(work, block, block.term + slice * block.depth, depth, [&](int64_t, const float* row) {
      *begin++ = static_cast<int32_t>(at);
      at = list_row<R>(row, depth, scratch, at);
    });
  }
  *begin = static_cast<int32_t>(at);
}

// ---- sums ----------------------------------------------------------------------------------------------------------

// `depth` rows of b' from `term` on, `width` columns from `first` on. Returns whether all of it is finite.
template <class R>
bool copy_panel(const Work& work, int64_t term, int64_t depth, int64_t first, int64_t width, float* panel) {
  const ProductSizes& sizes = work.sizes();
  typename R::Vector nothing{};  // or NaN
  const auto copy = [&](const float* from, float* to) {
    const typename R::Vector numbers = R::at(from);
    nothing += 0 * numbers;
    R::at(to) = numbers;
  };
  for (int64_t j = 0; j < width; j += R::kWidth) {
    const int64_t column = first + j;
    float* const to = panel + j;
    if (work.product.b_in_panels) {
      const float* from = work.b + (column / kPanelLanes * sizes.inner + term) * kPanelLanes + column % kPanelLanes;
      for (int64_t k = 0; k < depth; ++k) copy(from + k * kPanelLanes, to + k * kPanel<R>);
    } else if (sizes.transpose_b) {
      const float* from = work.b + column * sizes.inner + term;
      int64_t k = 0;
      for (; k + R::kWidth <= depth; k += R::kWidth)
        copy_square<R>(from + k, sizes.inner, to + k * kPanel<R>, kPanel<R>,
                       [&](const auto& numbers) { nothing += 0 * numbers; });
      for (; k < depth; ++k) {
        for (int64_t lane = 0; lane < R::kWidth; ++lane) to[k * kPanel<R> + lane] = from[lane * sizes.inner + k];
        nothing += 0 * R::at(to + k * kPanel<R>);
      }
    } else {
      const float* from = work.b + term * sizes.columns + column;
      for (int64_t k = 0; k < depth; ++k) copy(from + k * sizes.columns, to + k * kPanel<R>);
    }
  }
  bool finite = true;
  for (int i = 0; i < R::kWidth; ++i) finite = finite && nothing[i] == 0;
  return finite;
}

// One row of the result in a panel of kCount registers.
template <class R, int kCount, class Ending>
void sum_list(const float* value, const int32_t* place, int64_t count, const float* panel, float* out,
              const Ending& ending) {
  using Vector = typename R::Vector;
  Vector sum[kChains][kCount];
#pragma GCC unroll 4
  for (int v = 0; v < kCount; ++v) {
    sum[0][v] = Ending::kBeginsFromThere ? Vector(R::at(out + v * R::kWidth)) : Vector{};
    sum[1][v] = Vector{};
  }
  const auto add = [&](int chain, float factor, int32_t at) {
#pragma GCC unroll 4
    for (int v = 0; v < kCount; ++v) sum[chain][v] += factor * R::at(panel + at + v * R::kWidth);
  };
  const float* const end = value + count;
  for (; end - value >= kChains; value += kChains, place += kChains) {
    add(0, value[0], place[0]);
    add(1, value[1], place[1]);
  }
  if (value != end) add(0, *value, *place);
#pragma GCC unroll 4
  for (int v = 0; v < kCount; ++v) ending.template end<R>(sum[0][v] + sum[1][v], out + v * R::kWidth);
}

// All rows of a block over a slice, in a panel of kCount registers.
template <class R, int kCount, class Ending>
void sum_panel(const Work& work, const Block& block, int64_t slice, bool finite, const Scratch& scratch, float* out,
               const Ending& ending) {
  const int64_t row = work.sizes().columns;
  if (finite) {
    const int32_t* begin = scratch.begins + slice * block.rows;
    for (int64_t i = 0; i < block.rows; ++i, ++begin, out += row) {
#pragma GCC unroll 4
      for (int v = 0; v < kCount; ++v) __builtin_prefetch(out + row + v * R::kWidth, 1);
      sum_list<R, kCount>(scratch.values + begin[0], scratch.places + begin[0], begin[1] - begin[0], scratch.panel, out,
                          ending);
    }
    return;
  }
  const int64_t depth = block.depth_of(slice);
  int32_t places[kDepth<R>];  // of all terms, since each may matter
  for (int64_t k = 0; k < depth; ++k) places[k] = static_cast<int32_t>(k * kPanel<R>);
  each_row<R>(work, block, block.term + slice * block.depth, depth, [&](int64_t i, const float* values) {
    sum_list<R, kCount>(values, places, depth, scratch.panel, out + i * row, ending);
  });
}

template <class R, class Ending>
void sum_panel(const Work& work, const Block& block, int64_t slice, int64_t first, int64_t vectors,
               const Scratch& scratch, const Ending& ending) {
  const bool finite = copy_panel<R>(work, block.term + slice * block.depth, block.depth_of(slice), first,
                                    vectors * R::kWidth, scratch.panel);
  float* const out = work.out + block.row * work.sizes().columns + first;
  switch (vectors) {
    case 1:
      return sum_panel<R, 1>(work, block, slice, finite, scratch, out, ending);
    case 2:
      return sum_panel<R, 2>(work, block, slice, finite, scratch, out, ending);
    case 3:
      return sum_panel<R, 3>(work, block, slice, finite, scratch, out, ending);
    default:
      return sum_panel<R, kVectors>(work, block, slice, finite, scratch, out, ending);
  }
}

// The columns [first, last) of a block's rows.
template <class R>
void sum_block(const Work& work, const Block& block, int64_t first, int64_t last, const Scratch& scratch) {
  const int64_t vectors = (last - first) / R::kWidth, panels = (vectors + kVectors - 1) / kVectors;
  for (int64_t panel = 0; panel < panels; ++panel) {  // which differ by one register at most
    const int64_t begin = vectors * panel / panels, count = vectors * (panel + 1) / panels - begin;
    for (int64_t slice = 0; slice < block.slices(); ++slice) {
      const auto sum = [&](const auto& ending) {
        sum_panel<R>(work, block, slice, first + begin * R::kWidth, count, scratch, ending);
      };
      if (work.descends)
        sum(Descend{work.factor});
      else if (block.term + slice == 0)
        sum(Replace());
      else
        sum(Add());
    }
  }
}

template <class R>
void multiply_part(const Work& work, int64_t first_row, int64_t last_row, int64_t first_column, int64_t last_column,
                   const Scratch& scratch) {
  const int64_t inner = work.sizes().inner, slices = (inner + kDepth<R> - 1) / kDepth<R>;
  const int64_t depth = (inner + slices - 1) / slices, most = kTerms / depth * depth;
  for (int64_t row = first_row; row < last_row; row += kRows) {
    for (int64_t term = 0; term < inner; term += most) {
      const Block block{row, std::min(kRows, last_row - row), term, std::min(most, inner - term), depth};
      list_terms<R>(work, block, scratch);
      sum_block<R>(work, block, first_column, last_column, scratch);
    }
  }
}

// ---- looking -------------------------------------------------------------------------------------------------------

// How much of so many numbers is not zero, as a part of 1, by one line of the cache in sixteen, scattered, and by 256
// of them at most.
double share_of_something(const float* a, int64_t count) {
  constexpr int64_t kLine = 16, kMost = 256;
  constexpr uint64_t kScatter = 0x9e3779b97f4a7c15;  // 2^64 by the golden ratio: neighbours fall far apart
  const int64_t lines = count / kLine, looks = std::clamp<int64_t>(lines / 16, std::min(lines, kLine), kMost);
  int64_t found = 0;
  for (int64_t look = 0; look < looks; ++look) {
    const uint64_t line = static_cast<uint64_t>(look) * kScatter % static_cast<uint64_t>(lines);
    for (int64_t i = 0; i < kLine; ++i) found += a[static_cast<int64_t>(line) * kLine + i] != 0;
  }
  return static_cast<double>(found) / static_cast<double>(looks * kLine);
}

bool is_sparse(const SparseProduct& product, const float* a) {
  const double most = product.or_bfloat16 ? 0.3 : simd() == Simd::Avx512 ? 0.6 : 0.45;
  return share_of_something(a, product.sizes.rows * product.sizes.inner) <= most;
}

// How the result is divided: by columns, where each thread lists all rows, or by rows, where each copies all of b'. So
// a part has some of them.
struct Division {
  bool by_rows;
  int64_t count, parts;

  explicit Division(const ProductSizes& sizes) {
    constexpr int64_t kLeastRows = 32, kLeastColumns = 64;
    by_rows = sizes.columns <= 4 * sizes.rows;
    count = by_rows ? sizes.rows : sizes.columns / kPanelLanes;
    const int64_t flops = 2 * sizes.rows * sizes.columns * sizes.inner;
    const int64_t most = by_rows ? sizes.rows / kLeastRows : sizes.columns / kLeastColumns;
    parts = std::clamp<int64_t>(flops / kPartFlops, 1, std::min<int64_t>(threads(), std::max<int64_t>(most, 1)));
  }
};

bool multiply(const Work& work, void* scratch) {
  if (!is_sparse(work.product, work.a)) return false;
  const ProductSizes& sizes = work.sizes();
  const Division division(sizes);
  parallel_for(division.parts, 1, [&](int64_t first_part, int64_t last_part) {
    for (int64_t part = first_part; part < last_part; ++part) {
      const Scratch own = scratch_of(sizes, static_cast<char*>(scratch) + part * part_bytes(sizes));
      const int64_t first = division.count * part / division.parts, last = division.count * (part + 1) / division.parts;
      widest_register([&](auto wide) {
        using R = decltype(wide);
        if (division.by_rows)
          multiply_part<R>(work, first, last, 0, sizes.columns, own);
        else
          multiply_part<R>(work, 0, sizes.rows, first * kPanelLanes, last * kPanelLanes, own);
      });
    }
  });
  return true;
}

}  // namespace

bool SparseProduct::may_pay() const {
  constexpr int64_t kLeast = 32, kLeastColumns = 64, kLeastFlops = 2'000'000;
  return sizes.columns % kPanelLanes == 0 && sizes.columns >= kLeastColumns && sizes.rows >= kLeast &&
         sizes.inner >= kLeast && 2 * sizes.rows * sizes.columns * sizes.inner >= kLeastFlops;
}

int64_t SparseProduct::scratch_bytes() const { return may_pay() ? Division(sizes).parts * part_bytes(sizes) : 0; }

bool multiply_sparse(const SparseProduct& product, const float* a, const float* b, float* out, void* scratch) {
  return product.may_pay() && multiply({product, a, b, false, 0, out}, scratch);
}

bool descend_sparse(const SparseProduct& product, const float* a, const float* b, float factor, float* out,
                    void* scratch) {
  return product.may_pay() && multiply({product, a, b, true, factor, out}, scratch);
}

}  // namespace moonflow::cpu
