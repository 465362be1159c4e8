// Packed products against sums in order, over sizes at the borders of tiles, panels and blocks.
#include "kernels/cpu/packed_product.h"

#include <catch2/catch.hpp>

#include "kernels/cpu/device.h"
#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

template <class T>
std::vector<T> numbers_of(int64_t count, uint64_t seed) {
  const Tensor values = random_values({DTypeOf<T>::value, {count}}, seed);
  return {values.data<T>(), values.data<T>() + count};
}

template <class T>
std::vector<T> in_order(const Product& p, const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<T> out(p.batch * p.rows * p.columns);
  for (int64_t n = 0; n < p.batch; ++n)
    for (int64_t i = 0; i < p.rows; ++i)
      for (int64_t j = 0; j < p.columns; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < p.inner; ++k)
          sum += double(a[n * p.rows * p.inner + (p.transpose_a ? k * p.rows + i : i * p.inner + k)]) *
                 b[n * p.inner * p.columns + (p.transpose_b ? j * p.inner + k : k * p.columns + j)];
        out[(n * p.rows + i) * p.columns + j] = static_cast<T>(sum);
      }
  return out;
}

template <class T>
double furthest(const std::vector<T>& a, const std::vector<T>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(double(a[i]) - double(b[i])));
  return most;
}

template <class T>
void check(const Product& p) {
  CAPTURE(p.batch, p.rows, p.columns, p.inner, p.transpose_a, p.transpose_b);
  const double close = std::is_same_v<T, float> ? 3e-5 : 1e-13;
  const std::vector<T> a = numbers_of<T>(p.batch * p.rows * p.inner, 1),
                       b = numbers_of<T>(p.batch * p.inner * p.columns, 2);
  const std::vector<T> wanted = in_order(p, a, b);
  const cpu::PackedSizes sizes = cpu::packed_sizes(p);
  std::vector<T> scratch(cpu::packed_scratch_bytes<T>(sizes) / sizeof(T));
  const auto left = cpu::left_factor(p, a.data()), right = cpu::right_factor(p, b.data());
  std::vector<T> out(wanted.size(), T(7)), alone(wanted.size());
  cpu::multiply_packed(sizes, left, right, cpu::packed_result(p, out.data()), scratch.data());
  CHECK(furthest(out, wanted) < close);
  {
    const cpu::ThreadLimit one(1);
    cpu::multiply_packed(sizes, left, right, cpu::packed_result(p, alone.data()), scratch.data());
  }
  CHECK(out == alone);
  cpu::descend_packed(sizes, left, right, T(1), cpu::packed_result(p, out.data()), scratch.data());
  CHECK(furthest(out, std::vector<T>(out.size())) < close);
}

}  // namespace

TEMPLATE_TEST_CASE("a packed product is the sum of its terms, whatever its sizes", "", float, double) {
  for (const int64_t rows : {1, 5, 14, 15, 29, 230})
    for (const int64_t columns : {1, 8, 16, 17, 33, 70})
      for (const int64_t inner : {0, 1, 7, 192, 400})
        for (const bool a : {false, true})
          for (const bool b : {false, true}) check<TestType>({1, rows, columns, inner, a, b});
  for (const bool b : {false, true}) check<TestType>({5, 20, 40, 30, false, b});
  // Several blocks of rows, for which panels of columns are kept, and more columns than are kept at once.
  for (const bool a : {false, true})
    for (const bool b : {false, true}) {
      check<TestType>({1, 600, 40, 400, a, b});
      check<TestType>({1, 300, 1100, 20, a, b});
    }
}
