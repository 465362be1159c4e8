#include "kernels/cpu/matmul_sparse.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/device.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/sparse_terms.h"
#include "kernels/cpu/square.h"
#include "kernels/cpu/turned_sums.h"

namespace moonflow::cpu {
namespace {

// What of two rows of a' is not zero is listed, with where the row of b' lies that it is multiplied with. Where b' is
// the one with the zeros, the product is turned over: that of b'^T and a'^T, whose rows are columns of out. The sums of
// both rows in some columns, a panel, stay in registers along such a list, while that part of b' lies in the
// first-level cache: a panel of as many terms as fit there, a slice.

// Registers across a panel at most. The more there are, the better is the latency of a sum hidden.
template <class R>
constexpr int kMostVectors = R::kWidth == 16 ? 6 : 4;
// The terms of a slice at most, for four registers: 26 KiB.
template <class R>
constexpr int64_t kDepth = std::min<int64_t>(104 * 16 / R::kWidth, TermLists::kMostTerms);
constexpr int64_t kPanelFloats = kDepth<Register<16>> * kMostVectors<Register<16>> * 16;

// Six fill a cache of 48 KiB, where one of 32 would not hold them.
template <class R>
int64_t most_vectors() {
  return std::min<int64_t>(kMostVectors<R>, first_cache_bytes() >= 40 << 10 ? 6 : 4);
}

constexpr int64_t kTerms = 512;       // that are listed together of each row at most
constexpr int64_t kListed = 1 << 17;  // of all rows together: to copy a slice is little beside what they take

struct Scratch {
  float* panel;
  Term* turned;       // the rows of a transposed a
  TermsOfTwo* pairs;  // of rows: those of the first slice, and so on
  uint8_t* lists;
};

// The most that is listed together.
int64_t listed_terms(const Product& sizes) { return std::min(kTerms, sizes.inner); }
int64_t listed_rows(const Product& sizes) {
  const int64_t most = kListed / listed_terms(sizes) / kRowsTogether * kRowsTogether;
  return std::min(most, (sizes.rows + 1) / 2 * 2);
}
int64_t listed_pairs(const Product& sizes) {
  constexpr int64_t kLeastDepth = kDepth<Register<16>> / 2;  // of a slice, where there are several
  return listed_rows(sizes) / 2 * (listed_terms(sizes) / kLeastDepth + 1);
}

int64_t turned_bytes(const Product& sizes) {
  return sizes.transpose_a ? aligned(4 * listed_rows(sizes) * turned_row(listed_terms(sizes))) : 0;
}
int64_t pairs_bytes(const Product& sizes) {
  return aligned(listed_pairs(sizes) * static_cast<int64_t>(sizeof(TermsOfTwo)));
}
int64_t part_bytes(const Product& sizes) {
  const int64_t pairs = listed_pairs(sizes);
  const int64_t lists = TermLists::bytes(pairs, 1) + 3 * listed_rows(sizes) / 2 * listed_terms(sizes);
  return 4 * kPanelFloats + turned_bytes(sizes) + pairs_bytes(sizes) + aligned(lists);
}

Scratch scratch_of(const Product& sizes, void* memory) {
  char* const begin = static_cast<char*>(memory);
  char* const turned = begin + 4 * kPanelFloats;
  char* const pairs = turned + turned_bytes(sizes);
  return {reinterpret_cast<float*>(begin), reinterpret_cast<Term*>(turned), reinterpret_cast<TermsOfTwo*>(pairs),
          reinterpret_cast<uint8_t*>(pairs + pairs_bytes(sizes))};
}

// What becomes of the sums: they are put into out, or out descends by `factor` times them.
struct Aim {
  float* out;
  bool descends;
  float factor;
  bool turned;  // a row of a' is a column of out
};

struct Work {
  const SparseProduct& product;
  const float *a, *b;
  Aim aim;

  const Product& sizes() const { return product.sizes; }
  // Where an element of the result lies, and how far it is from one row of out to the next.
  float* out(int64_t i, int64_t j) const { return aim.out + (aim.turned ? j * out_row() + i : i * out_row() + j); }
  int64_t out_row() const { return aim.turned ? sizes().rows : sizes().columns; }
};

// Some rows from `row` on, and some terms from `term` on, in slices of `depth`.
struct Block {
  int64_t row, rows, term, terms, depth;

  int64_t pairs() const { return (rows + 1) / 2; }
  int64_t slices() const { return (terms + depth - 1) / depth; }
  int64_t depth_of(int64_t slice) const { return std::min(depth, terms - slice * depth); }
};

// ---- lists ---------------------------------------------------------------------------------------------------------

// The terms of a block's rows, which lie `row` apart, and their lists in a slice.
struct Listed {
  const Term* terms;
  int64_t row;
  bool padded;
  TermsOfTwo* pairs;
  TermLists lists;

  Listed(const Work& work, const Block& block, const Scratch& scratch) : padded(work.sizes().transpose_a) {
    row = padded ? turned_row(block.terms) : work.sizes().inner;
    const auto* const a = reinterpret_cast<const Term*>(work.a);
    terms = padded ? scratch.turned : a + block.row * row + block.term;
    pairs = scratch.pairs;
    lists = {scratch.lists, block.depth};
  }

  Listed slice(const Block& block, int64_t slice) const {
    Listed part = *this;
    part.terms += slice * block.depth;
    part.pairs += slice * block.pairs();
    part.lists = lists.from(slice * block.pairs());
    return part;
  }
};

// With `all` zeros are listed too.
template <class R>
void list_slice(const Block& block, int64_t slice, const Listed& listed, bool all) {
  stand_alone(R(), [&] {
    const Listed part = listed.slice(block, slice);
    list_rows<R, kFloatDigits>(part.terms, part.row, 0, block.rows, block.depth_of(slice), part.padded, all, part.lists,
                               part.pairs);
  });
}

template <class R>
void list_block(const Work& work, const Block& block, const Listed& listed, const Scratch& scratch) {
  const Product& sizes = work.sizes();
  if (sizes.transpose_a) {
    stand_alone(R(), [&] {
      const auto* const a = reinterpret_cast<const Term*>(work.a) + block.term * sizes.rows + block.row;
      turn_terms<R>(a, sizes.rows, block.rows, block.terms, scratch.turned, listed.row);
    });
  }
  for (int64_t slice = 0; slice < block.slices(); ++slice) list_slice<R>(block, slice, listed, false);
}

// ---- sums ----------------------------------------------------------------------------------------------------------

// `depth` rows of b' from `term` on, `width` columns from `first` on, side by side. Returns whether all of it is
// finite.
template <class R>
bool copy_panel(const Work& work, int64_t term, int64_t depth, int64_t first, int64_t width, float* panel) {
  const Product& sizes = work.sizes();
  bool finite = true;
  stand_alone(R(), [&] {
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
        for (int64_t k = 0; k < depth; ++k) copy(from + k * kPanelLanes, to + k * width);
      } else if (sizes.transpose_b) {
        const float* from = work.b + column * sizes.inner + term;
        int64_t k = 0;
        for (; k + R::kWidth <= depth; k += R::kWidth)
          copy_square<R>(from + k, sizes.inner, to + k * width, width,
                         [&](const auto& numbers) { nothing += 0 * numbers; });
        for (; k < depth; ++k) {
          for (int64_t lane = 0; lane < R::kWidth; ++lane) to[k * width + lane] = from[lane * sizes.inner + k];
          nothing += 0 * R::at(to + k * width);
        }
      } else {
        const float* from = work.b + term * sizes.columns + column;
        for (int64_t k = 0; k < depth; ++k) copy(from + k * sizes.columns, to + k * width);
      }
    }
    for (int i = 0; i < R::kWidth; ++i) finite = finite && nothing[i] == 0;
  });
  return finite;
}

inline float number_of(const Term& term) {
  float number;
  std::memcpy(&number, &term, sizeof number);
  return number;
}

// Two rows of the result in a panel of kCount registers; of the second nothing is written where there is none.
template <class R, int kCount, class Ending>
void sum_two(const Listed& listed, int64_t pair, const float* panel, float* const (&out)[2], const Ending& ending) {
  using Vector = typename R::Vector;
  Vector sum[2][kCount];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
#pragma GCC unroll 6
    for (int v = 0; v < kCount; ++v)
      sum[i][v] = Ending::kBeginsFromThere && out[i] ? Vector(R::at(out[i] + v * R::kWidth)) : Vector{};
  }
  const TermsOfTwo& two = listed.pairs[pair];
  const Term* const rows[2] = {listed.terms + two.rows[0] * listed.row, listed.terms + two.rows[1] * listed.row};
  const uint8_t* const both = listed.lists.both(pair);
  for (int32_t t = 0; t < two.both; ++t) {
    const int64_t k = both[t];
    const float x = number_of(rows[0][k]), y = number_of(rows[1][k]);
#pragma GCC unroll 6
    for (int v = 0; v < kCount; ++v) {
      Vector right = R::at(panel + k * kCount * R::kWidth + v * R::kWidth);
      MOONFLOW_IN_REGISTER(right);  // or it would be read for each of the two
      sum[0][v] += x * right;
      sum[1][v] += y * right;
    }
  }
  const uint8_t* const own[2] = {listed.lists.own(pair, 0), listed.lists.own(pair, 1)};
  const auto add = [&](int i, int32_t t) {
    const int64_t k = own[i][t];
    const float x = number_of(rows[i][k]);
#pragma GCC unroll 6
    for (int v = 0; v < kCount; ++v) sum[i][v] += x * R::at(panel + k * kCount * R::kWidth + v * R::kWidth);
  };
  for (int32_t t = 0; t < two.own[1]; ++t) {
    add(0, t);
    add(1, t);
  }
  for (int32_t t = two.own[1]; t < two.own[0]; ++t) add(0, t);
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    if (out[i] == nullptr) continue;
#pragma GCC unroll 6
    for (int v = 0; v < kCount; ++v) ending.template end<R>(sum[i][v], out[i] + v * R::kWidth);
  }
}

// All rows of a block over a slice, in a panel of kCount registers.
template <class R, int kCount, class Ending>
void sum_lists(const Listed& listed, int64_t pairs, const float* panel, float* out, int64_t row, const Ending& ending) {
  stand_alone(R(), [=] {
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const TermsOfTwo &two = listed.pairs[pair], &next = listed.pairs[std::min(pair + 1, pairs - 1)];
      for (const int32_t i : next.rows)
#pragma GCC unroll 6
        for (int v = 0; v < kCount; ++v) __builtin_prefetch(out + i * row + v * R::kWidth, 1);
      float* const to[2] = {out + two.rows[0] * row, two.alone ? nullptr : out + two.rows[1] * row};
      sum_two<R, kCount>(listed, pair, panel, to, ending);
    }
  });
}

// The same where out has a column for each row: kRowsTogether rows are summed before they are turned over.
template <class R, int kCount, class Ending>
void sum_turned(const Listed& listed, int64_t rows, const float* panel, float* out, int64_t row, const Ending& ending) {
  stand_alone(R(), [=] {
    alignas(kAlignment) float sums[kRowsTogether][kCount * R::kWidth] = {};
    for (int64_t i = 0; i < rows; i += kRowsTogether) {
      const int64_t here = std::min(kRowsTogether, rows - i);
      for (int64_t pair = i / 2; pair < (i + here + 1) / 2; ++pair) {
        const TermsOfTwo& two = listed.pairs[pair];
        float* const to[2] = {sums[two.rows[0] - i], two.alone ? nullptr : sums[two.rows[1] - i]};
        sum_two<R, kCount>(listed, pair, panel, to, Replace());
      }
      end_as_columns<R>(sums[0], kCount * R::kWidth, here, kCount * R::kWidth, out + i, row, ending);
    }
  });
}

template <class R, int kCount, class Ending>
void sum_panel(const Work& work, const Block& block, const Listed& listed, const float* panel, int64_t column,
               const Ending& ending) {
  float* const out = work.out(block.row, column);
  if (work.aim.turned)
    sum_turned<R, kCount>(listed, block.rows, panel, out, work.out_row(), ending);
  else
    sum_lists<R, kCount>(listed, block.pairs(), panel, out, work.out_row(), ending);
}

// The columns [first, last) of a block's rows.
template <class R>
void sum_block(const Work& work, const Block& block, const Listed& listed, int64_t first, int64_t last, float* panel) {
  const int64_t vectors = (last - first) / R::kWidth, panels = (vectors + most_vectors<R>() - 1) / most_vectors<R>();
  for (int64_t at = 0; at < panels; ++at) {
    const int64_t begin = vectors * at / panels, count = vectors * (at + 1) / panels - begin;
    const int64_t column = first + begin * R::kWidth, width = count * R::kWidth;
    for (int64_t slice = 0; slice < block.slices(); ++slice) {
      const auto sum = [&](const auto& ending) {
        const Listed part = listed.slice(block, slice);
        with_count<kMostVectors<R>>(count, [&](auto registers) {
          sum_panel<R, decltype(registers)::value>(work, block, part, panel, column, ending);
        });
      };
      const bool finite =
          copy_panel<R>(work, block.term + slice * block.depth, block.depth_of(slice), column, width, panel);
      if (!finite) list_slice<R>(block, slice, listed, true);
      if (work.aim.descends)
        sum(Descend{work.aim.factor});
      else if (block.term + slice == 0)
        sum(Replace());
      else
        sum(Add());
      if (!finite) list_slice<R>(block, slice, listed, false);
    }
  }
}

template <class R>
void multiply_part(const Work& work, int64_t first_row, int64_t last_row, int64_t first_column, int64_t last_column,
                   const Scratch& scratch) {
  const int64_t inner = work.sizes().inner, slices = (inner + kDepth<R> - 1) / kDepth<R>;
  const int64_t depth = (inner + slices - 1) / slices, most = kTerms / depth * depth;
  const int64_t rows = listed_rows(work.sizes());
  for (int64_t row = first_row; row < last_row; row += rows) {
    for (int64_t term = 0; term < inner; term += most) {
      const Block block{row, std::min(rows, last_row - row), term, std::min(most, inner - term), depth};
      const Listed listed(work, block, scratch);
      list_block<R>(work, block, listed, scratch);
      sum_block<R>(work, block, listed, first_column, last_column, scratch.panel);
    }
  }
}

// ---- looking -------------------------------------------------------------------------------------------------------

// Whether the first factor may be listed.
bool lists(const SparseProduct& product) {
  constexpr int64_t kLeast = 32, kLeastColumns = 64, kLeastFlops = 2'000'000;
  const Product& sizes = product.sizes;
  return sizes.columns % kPanelLanes == 0 && sizes.columns >= kLeastColumns && sizes.rows >= kLeast &&
         sizes.inner >= kLeast && 2 * sizes.rows * sizes.columns * sizes.inner >= kLeastFlops;
}

// The same product turned over: its first factor is the transpose of the second one.
SparseProduct turned(const SparseProduct& product) {
  const Product& sizes = product.sizes;
  return {{1, sizes.columns, sizes.rows, sizes.inner, !sizes.transpose_b, !sizes.transpose_a}};
}

// The part of a factor that is not zero, or 1 where that is too much; seen soon where it is.
double share_of(const SparseProduct& product, const float* a) {
  if (!lists(product)) return 1;
  const double most = simd() == Simd::Avx512 ? 0.65 : 0.45;
  const auto seen = [&](int64_t looks) {
    return share_of_terms<kFloatDigits>(reinterpret_cast<const Term*>(a), 1, 0,
                                        product.sizes.rows * product.sizes.inner / 16, looks);
  };
  if (seen(kFewLooks) > (1 + most) / 2) return 1;
  const double share = seen(kManyLooks);
  return share <= most ? share : 1;
}

// How the result is divided: by columns, where each thread lists all rows, or by rows, where each copies all of b'. So
// a part has some of them.
struct Division {
  bool by_rows;
  int64_t count, parts;  // of rows together, or of panels

  explicit Division(const Product& sizes) {
    constexpr int64_t kLeastRows = 32, kLeastColumns = 64;
    by_rows = sizes.columns <= 4 * sizes.rows;
    count = by_rows ? (sizes.rows + kRowsTogether - 1) / kRowsTogether : sizes.columns / kPanelLanes;
    const int64_t flops = 2 * sizes.rows * sizes.columns * sizes.inner;
    const int64_t most = by_rows ? sizes.rows / kLeastRows : sizes.columns / kLeastColumns;
    parts = std::clamp<int64_t>(flops / kPartFlops, 1, std::min<int64_t>(threads(), std::max<int64_t>(most, 1)));
  }
};

void multiply(const Work& work, void* scratch) {
  const Product& sizes = work.sizes();
  const Division division(sizes);
  parallel_for(division.parts, 1, [&](int64_t first_part, int64_t last_part) {
    for (int64_t part = first_part; part < last_part; ++part) {
      const Scratch own = scratch_of(sizes, static_cast<char*>(scratch) + part * part_bytes(sizes));
      const int64_t first = division.count * part / division.parts, last = division.count * (part + 1) / division.parts;
      widest_register([&](auto wide) {
        using R = decltype(wide);
        if (division.by_rows)
          multiply_part<R>(work, first * kRowsTogether, std::min(last * kRowsTogether, sizes.rows), 0, sizes.columns,
                           own);
        else
          multiply_part<R>(work, 0, sizes.rows, first * kPanelLanes, last * kPanelLanes, own);
      });
    }
  });
}

// Leaves out the zeros of the factor that has more of them.
bool multiply_either(const SparseProduct& product, const float* a, const float* b, Aim aim, void* scratch) {
  constexpr double kTurning = 0.8;  // as much less must it take, to pay for turning the result
  const SparseProduct other = turned(product);
  const double of_a = share_of(product, a), of_b = product.b_in_panels ? 1 : share_of(other, b);
  if (std::min(of_a, of_b) == 1) return false;
  aim.turned = of_b < kTurning * of_a;
  multiply(aim.turned ? Work{other, b, a, aim} : Work{product, a, b, aim}, scratch);
  return true;
}

}  // namespace

bool SparseProduct::may_pay() const { return lists(*this) || lists(turned(*this)); }

int64_t SparseProduct::scratch_bytes() const {
  int64_t bytes = 0;
  for (const SparseProduct& way : {*this, turned(*this)})
    if (lists(way)) bytes = std::max(bytes, Division(way.sizes).parts * part_bytes(way.sizes));
  return bytes;
}

bool multiply_sparse(const SparseProduct& product, const float* a, const float* b, float* out, void* scratch) {
  return multiply_either(product, a, b, {out, false, 0, false}, scratch);
}

bool descend_sparse(const SparseProduct& product, const float* a, const float* b, float factor, float* out,
                    void* scratch) {
  return multiply_either(product, a, b, {out, true, factor, false}, scratch);
}

}  // namespace moonflow::cpu
