// Products of small matrices in tile registers. Where there are none, nothing is asked of them.
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "engine/narrow.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/small_product_tiles.h"
#include "values.h"

using namespace moonflow;
using namespace moonflow::cpu;
using namespace moonflow::testing;

namespace {

float rounded(float x) { return static_cast<float>(BFloat16(x)); }

struct Case {
  int64_t rows, columns, inner;
  int64_t all_columns, all_inner;  // of what is packed
  bool turned;                     // a lies in columns
};

void check(const Case& c, bool add) {
  CAPTURE(c.rows, c.columns, c.inner, c.turned, add);
  const int64_t a_step = row_step(c.turned ? c.rows : c.inner), step = row_step(c.all_columns);
  const Tensor a = random_values({DType::Float32, {(c.turned ? c.inner : c.rows), a_step}}, 1);
  const Tensor b = random_values({DType::Float32, {c.all_inner, step}}, 2);
  Tensor got = random_values({DType::Float32, {c.rows, step}}, 3);
  const Tensor before = random_values({DType::Float32, {c.rows, step}}, 3);
  Tensor left = Tensor::allocate({DType::Float32, {packed_left_floats(c.rows, c.inner)}});
  Tensor right = Tensor::allocate({DType::Float32, {packed_right_floats(c.all_inner, c.all_columns)}});
  const PackedRight packed = pack_right(c.all_inner, c.all_columns, b.data<float>(), step, right.data<float>());
  const Strided<float> of_a{a.data<float>(), c.turned ? 1 : a_step, c.turned ? a_step : 1};
  multiply({c.rows, c.columns, c.inner, of_a, nullptr, 0, got.data<float>(), step, add}, packed, left.data<float>());
  for (int64_t i = 0; i < c.rows; ++i) {
    for (int64_t j = 0; j < c.columns; ++j) {
      double sum = add ? before.data<float>()[i * step + j] : 0;
      for (int64_t k = 0; k < c.inner; ++k)
        sum += static_cast<double>(rounded(of_a.data[i * of_a.row + k * of_a.column])) *
               rounded(b.data<float>()[k * step + j]);
      REQUIRE(std::abs(got.data<float>()[i * step + j] - sum) < 1e-4);
    }
  }
}

}  // namespace

TEST_CASE("small products in tiles, in bfloat16, are those of the rounded factors") {
  if (!has_tiles()) return;
  for (const bool turned : {false, true}) {
    for (const bool add : {false, true}) {
      check({32, 32, 32, 32, 32, turned}, add);
      check({16, 16, 16, 16, 16, turned}, add);
      check({17, 33, 31, 33, 31, turned}, add);
      check({50, 70, 65, 70, 65, turned}, add);
      check({128, 64, 100, 64, 100, turned}, add);
      check({23, 40, 48, 100, 150, turned}, add);  // of a longer factor the beginning
    }
  }
}
