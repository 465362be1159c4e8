#include "kernels/cpu/matmul_quantized.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/device.h"
#include "kernels/cpu/dots.h"
#include "kernels/cpu/marked_layout.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/words.h"

namespace moonflow::cpu {
namespace {

// The description of a quantized layout.
struct Form {
  static constexpr char kMark[] = "quantized";
  int64_t columns, inner;
  int64_t transpose_b;  // whether the weight is (columns, inner)
};

// ---- rounding ------------------------------------------------------------------------------------------------------

// A number of at most 22 bits, this added to it and taken away again, is the nearest whole one, of halves the even one:
// its last digit counts ones.
constexpr float kOnesAreLast = 12582912;  // 1.5 * 2^23

inline float nearest(float x) { return (x + kOnesAreLast) - kOnesAreLast; }

// The size of the largest of some numbers, whether all are finite, and whether all are whole.
struct Extent {
  float most = 0, none = 0, parts = 0;  // none is 0 while they are finite, parts while whole

  bool finite() const { return none == 0; }
  bool whole() const { return parts == 0; }

  template <class R>
  void add(int64_t count, const float* x) {
    using Vector = typename R::Vector;
    Vector sizes = {}, nones = {}, rests = {};
    int64_t k = 0;
    for (; k + R::kWidth <= count; k += R::kWidth) {
      const Vector each = R::at(x + k), size = each < 0 ? -each : each,
                   rest = size - ((size + kOnesAreLast) - kOnesAreLast);
      sizes = size > sizes ? size : sizes;
      nones += each - each;
      rests += rest < 0 ? -rest : rest;
    }
    for (int lane = 0; lane < R::kWidth; ++lane) {
      most = std::max(most, sizes[lane]);
      none += nones[lane];
      parts += rests[lane];
    }
    for (; k < count; ++k) {
      most = std::max(most, std::fabs(x[k]));
      none += x[k] - x[k];
      parts += std::fabs(x[k] - nearest(x[k]));
    }
  }
};

// The size of steps in which numbers are counted. Of what is not finite nothing is left but that; what is next to
// nothing is nothing.
float step_of(const Extent& of, float size) {
  constexpr float kNothing = 1e-30f;
  return !of.finite() ? std::numeric_limits<float>::quiet_NaN() : of.most < kNothing ? 0 : size;
}

// How many steps each is.
template <class Number>
inline void count_steps(int64_t count, const float* x, float step, Number* out) {
  if (!(step > 0)) {
    std::fill_n(out, count, Number(0));
    return;
  }
  const float per_one = 1 / step;
  for (int64_t k = 0; k < count; ++k) out[k] = static_cast<Number>(static_cast<int>(nearest(x[k] * per_one)));
}

// ---- a weight ------------------------------------------------------------------------------------------------------

constexpr float kMostByte = 127;
constexpr int64_t kColumns = 4, kLine = 64;

// What a weight has in its layout. A product reads it from the beginning to the end: kColumns columns at a time, of
// each of them by turns kLine numbers. Zeros stand where a column ends within a line, and for columns beyond the last.
struct Quantized {
  int64_t lines;    // of a column
  float* scales;    // (columns)
  int8_t* numbers;  // (groups of columns, lines, kColumns, kLine)

  Quantized(void* data, int64_t columns, int64_t inner)
      : lines(divide_up(inner, kLine)),
        scales(static_cast<float*>(data)),
        numbers(static_cast<int8_t*>(data) + scales_bytes(columns)) {}

  static int64_t scales_bytes(int64_t columns) { return aligned(columns * static_cast<int64_t>(sizeof(float))); }
  static int64_t bytes(int64_t columns, int64_t inner) {
    return scales_bytes(columns) + round_up(columns, kColumns) * round_up(inner, kLine);
  }

  int8_t* line(int64_t column, int64_t k) const {
    return numbers + ((column / kColumns * lines + k / kLine) * kColumns + column % kColumns) * kLine;
  }
};

constexpr int64_t kNeighbours = 16;  // columns that are quantized together: those of one line of floats
static_assert(kNeighbours % kColumns == 0);

// `columns` neighbouring columns of a weight.
template <class R>
inline void quantize_columns(const Form& form, const float* weight, int64_t column, int64_t columns,
                             const Quantized& to) {
  constexpr int64_t kPart = 256;
  static_assert(kPart % kLine == 0);
  float gathered[kNeighbours][kPart];
  const auto each_part = [&](const auto& use) {  // use(which column, from, count, numbers)
    for (int64_t k = 0; k < form.inner; k += kPart) {
      const int64_t count = std::min(kPart, form.inner - k);
      for (int64_t l = 0; l < count && !form.transpose_b; ++l)
        for (int64_t i = 0; i < columns; ++i) gathered[i][l] = weight[(k + l) * form.columns + column + i];
      for (int64_t i = 0; i < columns; ++i)
        use(i, k, count, form.transpose_b ? weight + (column + i) * form.inner + k : gathered[i]);
    }
  };
  Extent extents[kNeighbours];
  each_part([&](int64_t i, int64_t, int64_t count, const float* x) { extents[i].template add<R>(count, x); });
  for (int64_t i = 0; i < columns; ++i) {
    const Extent& extent = extents[i];
    const bool fits = extent.whole() && extent.most <= kMostByte;
    to.scales[column + i] = step_of(extent, fits ? 1 : extent.most / kMostByte);
  }
  each_part([&](int64_t i, int64_t k, int64_t count, const float* x) {
    for (int64_t l = 0; l < count; l += kLine) {
      int8_t* const line = to.line(column + i, k + l);
      const int64_t numbers = std::min(kLine, count - l);
      count_steps(numbers, x + l, to.scales[column + i], line);
      std::fill(line + numbers, line + kLine, int8_t{0});
    }
  });
  for (int64_t i = columns; i < round_up(columns, kColumns); ++i)
    for (int64_t k = 0; k < form.inner; k += kLine) std::fill_n(to.line(column + i, k), kLine, int8_t{0});
}

void quantize(const Form& form, const float* weight, void* out) {
  const Quantized to(out, form.columns, form.inner);
  const int64_t groups = divide_up(form.columns, kNeighbours);
  parallel_for(groups, kGrain / (kNeighbours * std::max<int64_t>(1, form.inner)) + 1, [&](int64_t first, int64_t last) {
    widest_register([&](auto wide) {
      const int64_t end = std::min(last * kNeighbours, form.columns);
      for (int64_t j = first * kNeighbours; j < end; j += kNeighbours)
        quantize_columns<decltype(wide)>(form, weight, j, std::min(kNeighbours, end - j), to);
    });
  });
}

// ---- the product ---------------------------------------------------------------------------------------------------

// So many neighbours of a are rounded in steps of one size. Their products with bytes sum up within 32 bits.
constexpr int64_t kPiece = 256;

// A power of two, so that whole numbers stay what they are, and their sums too.
float word_step(float most) {
  constexpr float kMostWord = 32767;
  int exponent = 0;
  std::frexp(most / kMostWord, &exponent);
  return std::ldexp(1.0f, exponent);
}

struct Rounded {
  int64_t inner, row;  // numbers of a row, and from one to the next: zeros fill the last line
  int64_t pieces;
  int16_t* words;  // (rows, row)
  float* steps;    // (rows, pieces)

  Rounded(const Product& sizes, void* scratch)
      : inner(sizes.inner),
        row(round_up(inner, kLine)),
        pieces(divide_up(inner, kPiece)),
        words(static_cast<int16_t*>(scratch)),
        steps(reinterpret_cast<float*>(static_cast<char*>(scratch) + words_bytes(sizes))) {}

  static int64_t words_bytes(const Product& sizes) {
    return aligned(sizes.rows * round_up(sizes.inner, kLine) * static_cast<int64_t>(sizeof(int16_t)));
  }

  template <class R>
  void round(const float* a, int64_t i) const {
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const int64_t k = piece * kPiece, count = std::min(kPiece, inner - k);
      Extent extent;
      extent.add<R>(count, a + i * inner + k);
      float& step = steps[i * pieces + piece];
      step = step_of(extent, word_step(extent.most));
      count_steps(count, a + i * inner + k, step, words + i * row + k);
    }
    std::fill(words + i * row + inner, words + (i + 1) * row, int16_t{0});
  }
};

// A weight is read this far ahead, across pages, where the processor does not.
constexpr int64_t kAhead = 2048;
// Backwards are whole blocks of groups, each of which is read forwards.
constexpr int64_t kBlock = 16;

// Of kRows rows from `i` on the elements in the columns from `j` on, of which there may be less than kColumns.
template <class R, int kRows>
inline void multiply_tile(const Rounded& a, int64_t i, const Quantized& weight, int64_t j, int64_t columns,
                          float* out) {
  constexpr int kCount = Words<R>::kCount;
  static_assert(kPiece % kLine == 0 && kLine % kCount == 0);
  const int8_t* numbers = weight.line(j, 0);
  typename R::Vector totals[kRows * kColumns] = {};
  for (int64_t piece = 0; piece < a.pieces; ++piece) {
    const int64_t end = std::min(a.row, (piece + 1) * kPiece);
    typename R::Integers sums[kRows * kColumns] = {};
    for (int64_t k = piece * kPiece; k < end; k += kLine, numbers += kColumns * kLine) {
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) __builtin_prefetch(numbers + kAhead + c * kLine);
#pragma GCC unroll 8
      for (int part = 0; part < kLine; part += kCount) {
        typename Words<R>::Vector left[kRows], right;
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) left[r] = Words<R>::at(a.words + (i + r) * a.row + k + part);
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c) {
          Words<R>::widen(numbers + c * kLine + part, right);
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) Words<R>::add_products(left[r], right, sums[r * kColumns + c]);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const float step = a.steps[(i + r) * a.pieces + piece];
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c)
        totals[r * kColumns + c] += __builtin_convertvector(sums[r * kColumns + c], typename R::Vector) * step;
    }
  }
  float sums[kRows * kColumns];
  sums_of_lanes<R, kRows * kColumns>(totals, sums);
  const int64_t count = std::min(kColumns, columns - j);
  for (int r = 0; r < kRows; ++r)
    for (int64_t c = 0; c < count; ++c) out[(i + r) * columns + j + c] = sums[r * kColumns + c] * weight.scales[j + c];
}

// All rows of kColumns columns, whose numbers are read from memory once. As many sums as registers hold beside the
// factors.
template <class R>
inline void multiply_columns(const Product& sizes, const Rounded& a, const Quantized& weight, int64_t j, float* out) {
  constexpr int kRows = 2;
  int64_t i = 0;
  for (; i + kRows <= sizes.rows; i += kRows) multiply_tile<R, kRows>(a, i, weight, j, sizes.columns, out);
  for (; i < sizes.rows; ++i) multiply_tile<R, 1>(a, i, weight, j, sizes.columns, out);
}

}  // namespace

Layout quantized_layout(const Product& sizes) {
  return marked_layout(Form{sizes.columns, sizes.inner, sizes.transpose_b},
                       Quantized::bytes(sizes.columns, sizes.inner));
}

bool is_quantized(const Layout& layout) { return is_marked<Form>(layout); }

Launch quantizer(const Layout& layout) {
  return [form = marked_form<Form>(layout)](const LaunchCall& call) {
    quantize(form, call.input<float>(0), call.outputs[0]);
  };
}

int64_t quantized_scratch_bytes(const Product& sizes) {
  const int64_t pieces = divide_up(sizes.inner, kPiece);
  return Rounded::words_bytes(sizes) + sizes.rows * pieces * static_cast<int64_t>(sizeof(float));
}

void multiply_quantized(const Product& sizes, const float* a, const void* weight, float* out, void* scratch,
                        bool backwards) {
  const Rounded rounded(sizes, scratch);
  widest_register([&](auto wide) {
    for (int64_t i = 0; i < sizes.rows; ++i) rounded.round<decltype(wide)>(a, i);
  });
  const Quantized numbers(const_cast<void*>(weight), sizes.columns, sizes.inner);
  const int64_t grain = std::max<int64_t>(2, kWideGrain / std::max<int64_t>(1, kColumns * sizes.inner * sizes.rows));
  parallel_for(divide_up(sizes.columns, kColumns), grain, [&](int64_t first, int64_t last) {
    const int64_t blocks = divide_up(last - first, kBlock);
    widest_register([&](auto wide) {
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t from = first + kBlock * (backwards ? blocks - 1 - block : block);
        for (int64_t group = from; group < std::min(from + kBlock, last); ++group)
          multiply_columns<decltype(wide)>(sizes, rounded, numbers, group * kColumns, out);
      }
    });
  });
}

}  // namespace moonflow::cpu
