#include "kernels/cpu/matmul_quantized.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/device.h"
#include "kernels/cpu/dots.h"
#include "kernels/cpu/marked_layout.h"
#include "kernels/cpu/rounding.h"

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
constexpr int64_t kNeighbours = 16;  // columns that are quantized together: those of one cache line

int64_t scales_bytes(int64_t columns) { return aligned(columns * static_cast<int64_t>(sizeof(float))); }

// What a weight has in its layout.
struct Quantized {
  float* scales;    // (columns)
  int8_t* numbers;  // (columns, inner)
  Quantized(void* data, int64_t columns)
      : scales(static_cast<float*>(data)), numbers(static_cast<int8_t*>(data) + scales_bytes(columns)) {}
};

// `columns` neighbouring columns of a weight.
template <class R>
inline void quantize_columns(const Form& form, const float* weight, int64_t column, int64_t columns,
                             const Quantized& to) {
  constexpr int64_t kPart = 256;
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
    count_steps(count, x, to.scales[column + i], to.numbers + (column + i) * form.inner + k);
  });
}

void quantize(const Form& form, const float* weight, void* out) {
  const Quantized to(out, form.columns);
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

// A register of numbers of 16 bits: twice as many as of float32.
template <class R>
struct Words {
  static constexpr int kCount = 2 * R::kWidth;
  using Sums = typename R::Integers;
  typedef int16_t Vector __attribute__((vector_size(2 * kCount), may_alias));
  typedef int16_t Stored __attribute__((vector_size(2 * kCount), may_alias, aligned(2)));
  typedef int8_t Packed __attribute__((vector_size(kCount)));
  typedef int8_t Bytes __attribute__((vector_size(kCount), may_alias, aligned(1)));

  static void widen(const int8_t* bytes, Vector& to) {
#ifdef MOONFLOW_SIMD_VERSIONS
    if constexpr (R::kWidth > 4) {  // as Register::widen
      asm("vpmovsxbw %1, %0" : "=v"(to) : "m"(*reinterpret_cast<const Bytes*>(bytes)));
      return;
    }
#endif
    Packed from;  // a template takes a vector for aligned
    std::memcpy(&from, bytes, sizeof from);
    convert(from, to);
  }

  static const Stored& at(const int16_t* place) { return *reinterpret_cast<const Stored*>(place); }

  // Each lane of `sums` gets the products of two neighbours.
  static void add_products(const Vector& a, const Vector& b, Sums& sums) {
#ifdef MOONFLOW_SIMD_VERSIONS
    if constexpr (R::kWidth > 4) {
      Sums products;
      asm("vpmaddwd %2, %1, %0" : "=v"(products) : "v"(a), "v"(b));
      sums += products;
    } else {
      Vector products = a;
      asm("pmaddwd %1, %0" : "+x"(products) : "x"(b));
      sums += Sums(products);
    }
#else
    add_pairs(a, b, sums);
#endif
  }

 private:
  template <class From, class To>
  static void convert(const From& from, To& to) {
    to = __builtin_convertvector(from, To);
  }
  template <class Factor, class To>
  static void add_pairs(const Factor& a, const Factor& b, To& sums) {
    for (int lane = 0; lane < R::kWidth; ++lane)
      sums[lane] += a[2 * lane] * b[2 * lane] + a[2 * lane + 1] * b[2 * lane + 1];
  }
};

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
  int64_t inner, pieces;
  int16_t* words;  // (rows, inner)
  float* steps;    // (rows, pieces)

  Rounded(const Product& sizes, void* scratch)
      : inner(sizes.inner),
        pieces(divide_up(inner, kPiece)),
        words(static_cast<int16_t*>(scratch)),
        steps(reinterpret_cast<float*>(static_cast<char*>(scratch) + words_bytes(sizes))) {}

  static int64_t words_bytes(const Product& sizes) {
    return aligned(sizes.rows * sizes.inner * static_cast<int64_t>(sizeof(int16_t)));
  }

  template <class R>
  void round(const float* a, int64_t row) const {
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const int64_t at = row * inner + piece * kPiece, count = std::min(kPiece, inner - piece * kPiece);
      Extent extent;
      extent.add<R>(count, a + at);
      float& step = steps[row * pieces + piece];
      step = step_of(extent, word_step(extent.most));
      count_steps(count, a + at, step, words + at);
    }
  }
};

// Of kRows rows from `row` on, and kColumns columns of a weight, whose numbers and scales begin here.
template <class R, int kRows, int kColumns>
inline void multiply_tile(const Rounded& a, int64_t row, const int8_t* numbers, const float* scales, float* out,
                          int64_t out_row) {
  constexpr int kCount = Words<R>::kCount;
  typename R::Vector totals[kRows * kColumns] = {};
  float rests[kRows * kColumns] = {};  // of what fills no register
  for (int64_t piece = 0; piece < a.pieces; ++piece) {
    const int64_t end = std::min(a.inner, (piece + 1) * kPiece);
    typename R::Integers sums[kRows * kColumns] = {};
    int64_t k = piece * kPiece;
    for (; k + kCount <= end; k += kCount) {
      typename Words<R>::Vector left[kRows], right;
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) left[i] = Words<R>::at(a.words + (row + i) * a.inner + k);
#pragma GCC unroll 8
      for (int j = 0; j < kColumns; ++j) {
        Words<R>::widen(numbers + j * a.inner + k, right);
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) Words<R>::add_products(left[i], right, sums[i * kColumns + j]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const float step = a.steps[(row + i) * a.pieces + piece];
#pragma GCC unroll 8
      for (int j = 0; j < kColumns; ++j)
        totals[i * kColumns + j] += __builtin_convertvector(sums[i * kColumns + j], typename R::Vector) * step;
      for (int j = 0; j < kColumns && k < end; ++j) {
        int rest = 0;
        for (int64_t l = k; l < end; ++l) rest += a.words[(row + i) * a.inner + l] * numbers[j * a.inner + l];
        rests[i * kColumns + j] = static_cast<float>(rest) * step;
      }
    }
  }
  float sums[kRows * kColumns];
  sums_of_lanes<R, kRows * kColumns>(totals, sums);
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kColumns; ++j)
      out[i * out_row + j] = (sums[i * kColumns + j] + rests[i * kColumns + j]) * scales[j];
}

// All rows of some columns, which are read from memory once. As many sums as registers hold beside the factors.
template <class R, int kColumns>
inline void multiply_columns(const Product& sizes, const Rounded& a, const Quantized& weight, int64_t j, float* out) {
  constexpr int kRows = 8 / kColumns;
  const auto tile = [&](auto rows, int64_t i) {
    multiply_tile<R, rows, kColumns>(a, i, weight.numbers + j * sizes.inner, weight.scales + j,
                                     out + i * sizes.columns + j, sizes.columns);
  };
  int64_t i = 0;
  for (; i + kRows <= sizes.rows; i += kRows) tile(std::integral_constant<int, kRows>(), i);
  for (; i < sizes.rows; ++i) tile(std::integral_constant<int, 1>(), i);
}

template <class R, int kColumns>
inline void multiply_all(const Product& sizes, const Rounded& a, const Quantized& weight, int64_t first, int64_t last,
                         float* out, bool backwards) {
  const int64_t whole = (last - first) / kColumns;
  for (int64_t step = 0; step < whole; ++step)
    multiply_columns<R, kColumns>(sizes, a, weight, first + kColumns * (backwards ? whole - 1 - step : step), out);
  for (int64_t j = first + kColumns * whole; j < last; ++j) multiply_columns<R, 1>(sizes, a, weight, j, out);
}

}  // namespace

Layout quantized_layout(const Product& sizes) {
  return marked_layout(Form{sizes.columns, sizes.inner, sizes.transpose_b},
                       scales_bytes(sizes.columns) + sizes.columns * sizes.inner);
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
  const Quantized numbers(const_cast<void*>(weight), sizes.columns);
  const int64_t grain = std::max<int64_t>(8, kWideGrain / std::max<int64_t>(1, sizes.inner * sizes.rows));
  parallel_for(sizes.columns, grain, [&](int64_t first, int64_t last) {
    widest_register([&](auto wide) {
      using R = decltype(wide);
      if (sizes.rows == 1) return multiply_all<R, 8>(sizes, rounded, numbers, first, last, out, backwards);
      multiply_all<R, 4>(sizes, rounded, numbers, first, last, out, backwards);
    });
  });
}

}  // namespace moonflow::cpu
