// Products that leave out the zeros of a factor: against float64, and what is not to be left out.
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include <catch2/catch.hpp>

#include "kernels/cpu/device.h"
#include "kernels/cpu/matmul_bfloat16_sparse.h"
#include "kernels/cpu/matmul_sparse.h"
#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

// Of which about that part is not zero.
Tensor sparse_values(const Shape& shape, double share, uint32_t seed) {
  Tensor values = random_values({DType::Float32, shape}, seed);
  const Tensor kept = random_values({DType::Float32, shape}, seed + 1000, 0, 1);
  for (int64_t i = 0; i < values.count(); ++i) {
    if (kept.data<float>()[i] >= static_cast<float>(share)) values.data<float>()[i] = i % 2 == 0 ? 0.0f : -0.0f;
  }
  return values;
}

// b^T, of columns in whole panels, as multiply_panels has it.
Tensor in_panels(const Tensor& b) {
  constexpr int64_t lanes = cpu::kPanelLanes;
  const int64_t columns = b.shape()[0], inner = b.shape()[1];
  Tensor panels = Tensor::allocate({DType::Float32, {columns, inner}});
  for (int64_t j = 0; j < columns; ++j)
    for (int64_t k = 0; k < inner; ++k)
      panels.data<float>()[(j / lanes * inner + k) * lanes + j % lanes] = b.data<float>()[j * inner + k];
  return panels;
}

struct Sample {
  int64_t rows, columns, inner;
  bool transpose_a = false, transpose_b = false;
  bool left_is_sparse = true;

  // The same turned over, so that the zeros are in the second factor.
  Sample turned() const { return {columns, rows, inner, !transpose_b, !transpose_a, !left_is_sparse}; }
  Tensor a(double share) const {
    return left_is_sparse ? sparse_values(left(), share, 1) : random_values({DType::Float32, left()}, 1);
  }
  Tensor b(double share) const {
    return left_is_sparse ? random_values({DType::Float32, right()}, 2) : sparse_values(right(), share, 2);
  }

  cpu::SparseProduct product() const { return {{1, rows, columns, inner, transpose_a, transpose_b}}; }
  Shape left() const { return transpose_a ? Shape{inner, rows} : Shape{rows, inner}; }
  Shape right() const { return transpose_b ? Shape{columns, inner} : Shape{inner, columns}; }
  Attrs attrs() const { return {{"transpose_a", transpose_a}, {"transpose_b", transpose_b}}; }
};

// Rows and columns that fill registers, panels and blocks of rows and that do not; one slice of terms and many, and
// more than are listed together.
std::vector<Sample> samples() {
  std::vector<Sample> all;
  for (const auto& [rows, columns, inner] :
       {std::array<int64_t, 3>{100, 128, 100}, {37, 80, 700}, {300, 64, 61}, {33, 1040, 105}, {129, 208, 209}}) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) all.push_back({rows, columns, inner, ta, tb});
    }
  }
  for (size_t i = 0, count = all.size(); i < count; ++i) all.push_back(all[i].turned());
  return all;
}

// With as many threads; empty where it was declined.
std::optional<Tensor> multiplied(const cpu::SparseProduct& product, const Tensor& a, const Tensor& b, int threads = 1) {
  const cpu::ThreadLimit limit(threads);
  std::vector<char> scratch(static_cast<size_t>(product.scratch_bytes()));
  Tensor out = Tensor::zeros({DType::Float32, {product.sizes.rows, product.sizes.columns}});
  if (!cpu::multiply_sparse(product, a.data<float>(), b.data<float>(), out.data<float>(), scratch.data()))
    return std::nullopt;
  return out;
}

}  // namespace

TEST_CASE("sparse products agree with float64 in all directions, the same for any number of threads") {
  Session session = make_session();
  for (const Sample& sample : samples()) {
    for (const double share : {0.0, 0.05, 0.4}) {
      CAPTURE(sample.rows, sample.columns, sample.inner, sample.transpose_a, sample.transpose_b, share);
      CAPTURE(sample.left_is_sparse);
      const Tensor a = sample.a(share), b = sample.b(share);
      const std::optional<Tensor> c = multiplied(sample.product(), a, b);
      REQUIRE(c);
      const Tensor exact = session.evaluate("matmul", {as_double(a), as_double(b)}, sample.attrs())[0];
      CHECK(distance(*c, exact) < 5e-6);  // sums of up to 300 terms, each rounded at 6e-8
      for (const int threads : {2, 3}) CHECK(same(*multiplied(sample.product(), a, b, threads), *c));
      CHECK(distance(session.evaluate("matmul", {a, b}, sample.attrs())[0], exact) < 5e-6);
      if (!sample.transpose_b || !sample.left_is_sparse) continue;
      cpu::SparseProduct of_panels = sample.product();
      of_panels.b_in_panels = true;
      CHECK(same(*multiplied(of_panels, a, in_panels(b)), *c));
    }
  }
}

TEST_CASE("a descent along a sparse product is the product, and then the descent") {
  Session session = make_session();
  for (const Sample& sample : samples()) {
    CAPTURE(sample.rows, sample.columns, sample.inner, sample.transpose_a, sample.transpose_b);
    const Tensor a = sample.a(0.3), b = sample.b(0.3);
    const Tensor start = random_values({DType::Float32, {sample.rows, sample.columns}}, 3);
    const auto descended = [&](int threads) {
      const cpu::ThreadLimit limit(threads);
      std::vector<char> scratch(static_cast<size_t>(sample.product().scratch_bytes()));
      Tensor variable = start.copy();
      REQUIRE(cpu::descend_sparse(sample.product(), a.data<float>(), b.data<float>(), 0.25f, variable.data<float>(),
                                  scratch.data()));
      return variable;
    };
    const Tensor gradient = session.evaluate("matmul", {as_double(a), as_double(b)}, sample.attrs())[0];
    Tensor expected = as_double(start);
    for (int64_t i = 0; i < expected.count(); ++i) expected.data<double>()[i] -= 0.25 * gradient.data<double>()[i];
    const Tensor variable = descended(1);
    CHECK(distance(variable, expected) < 5e-6);
    CHECK(same(descended(2), variable));
  }
}

TEST_CASE("a zero of a sparse factor still meets an infinity and a NaN") {
  Session session = make_session();
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const Sample& sample : samples()) {
    CAPTURE(sample.rows, sample.columns, sample.inner, sample.transpose_a, sample.transpose_b);
    Tensor a = sample.a(0.3), b = sample.b(0.3);
    for (const float strange : {kInfinity, -kInfinity, kNaN}) {
      b.data<float>()[b.count() - 3] = strange;
      a.data<float>()[7] = strange;
      const std::vector<double> got = numbers(*multiplied(sample.product(), a, b)),
                                exact = numbers(
                                    session.evaluate("matmul", {as_double(a), as_double(b)}, sample.attrs())[0]);
      for (size_t i = 0; i < got.size(); ++i) {
        if (std::isfinite(exact[i])) {
          REQUIRE(got[i] == Approx(exact[i]).margin(1e-4));
        } else {
          REQUIRE((std::isnan(exact[i]) ? std::isnan(got[i]) : got[i] == exact[i]));
        }
      }
    }
  }
}

TEST_CASE("of two sparse factors either is listed, to the same end") {
  Session session = make_session();
  const Sample sample{128, 96, 200};
  for (const auto& [of_a, of_b] : {std::array<double, 2>{0.1, 0.5}, {0.5, 0.1}, {0.3, 0.3}}) {
    CAPTURE(of_a, of_b);
    const Tensor a = sparse_values(sample.left(), of_a, 1), b = sparse_values(sample.right(), of_b, 2);
    const Tensor exact = session.evaluate("matmul", {as_double(a), as_double(b)}, sample.attrs())[0];
    CHECK(distance(*multiplied(sample.product(), a, b), exact) < 5e-6);
  }
}

TEST_CASE("a factor that is not sparse is declined, and nothing is written") {
  for (const Sample& sample : samples()) {
    const cpu::SparseProduct product = sample.product();
    for (const double share : {0.8, 1.0}) CHECK_FALSE(multiplied(product, sample.a(share), sample.b(share)));
  }
  for (const Sample& small : {Sample{31, 640, 640}, Sample{72, 72, 640}, Sample{640, 640, 31}, Sample{64, 64, 64}})
    CHECK_FALSE(small.product().may_pay());
}

#ifdef MOONFLOW_BFLOAT16

namespace {

// Slices of 104 pairs, one and several; few pairs, whose panels are wide; an odd number of rows, of terms, and columns
// that fill no register.
std::vector<Sample> narrow_samples() {
  std::vector<Sample> all;
  for (const auto& [rows, columns, inner] : {std::array<int64_t, 3>{100, 128, 208},
                                             {37, 83, 701},
                                             {300, 65, 211},
                                             {129, 208, 209},
                                             {300, 208, 100},
                                             {401, 83, 99}}) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) all.push_back({rows, columns, inner, ta, tb});
    }
  }
  return all;
}

cpu::NarrowProduct narrow_product(const Sample& sample) {
  return {1, sample.rows, sample.columns, sample.inner, sample.transpose_a, sample.transpose_b};
}

Tensor multiplied_narrow(const cpu::NarrowProduct& product, const cpu::NarrowEnding& ending, const Tensor& a,
                         const Tensor& b, const Tensor& start, int threads = 1) {
  const cpu::ThreadLimit limit(threads);
  const Tensor scratch = Tensor::allocate({DType::Int8, {cpu::narrow_scratch_bytes(product)}});
  Tensor out = start.copy();
  cpu::multiply_narrow(product, a.data(), b.data(), ending, out.data(), scratch.data());
  return out;
}

// As it is multiplied: all in float32, whose values bfloat16 has.
Tensor rounded(const Tensor& values) {
  Tensor result = values.copy();
  for (int64_t i = 0; i < result.count(); ++i)
    result.data<float>()[i] = static_cast<float>(BFloat16(result.data<float>()[i]));
  return result;
}

// Whether the lists would be followed.
bool is_sparse(const cpu::NarrowProduct& product, const Tensor& rows) {
  const Tensor scratch = Tensor::allocate({DType::Int8, {cpu::narrow_scratch_bytes(product)}});
  Tensor pairs = Tensor::allocate({DType::BFloat16, {product.rows, cpu::turned_row(cpu::pairs(product)) * 2}});
  std::memset(pairs.data(), 0, static_cast<size_t>(pairs.bytes()));
  for (int64_t i = 0; i < product.rows; ++i)
    for (int64_t k = 0; k < product.inner; ++k)
      pairs.data<BFloat16>()[i * pairs.shape()[1] + k] = BFloat16(rows.data<float>()[i * product.inner + k]);
  const cpu::Terms terms{static_cast<const cpu::Term*>(pairs.data()), pairs.shape()[1] / 2, 1};
  return cpu::ListedPairs(product, terms, scratch.data()).pays();
}

}  // namespace

TEST_CASE("sparse products in bfloat16 agree with float64, the same for any number of threads") {
  if (!cpu::multiplies_bfloat16()) return;
  Session session = make_session();
  for (const Sample& sample : narrow_samples()) {
    for (const double share : {0.0, 0.05, 0.3, 0.9}) {
      CAPTURE(sample.rows, sample.columns, sample.inner, sample.transpose_a, sample.transpose_b, share);
      const Tensor a = rounded(sparse_values(sample.left(), share, 1)),
                   b = rounded(random_values({DType::Float32, sample.right()}, 2)),
                   start = random_values({DType::Float32, {sample.rows, sample.columns}}, 3),
                   bias = random_values({DType::Float32, {sample.columns}}, 4);
      const cpu::NarrowProduct product = narrow_product(sample);
      if (!sample.transpose_a) CHECK(is_sparse(product, a) == (share < 0.5 && !cpu::has_tiles()));
      const Tensor exact = session.evaluate("matmul", {as_double(a), as_double(b)}, sample.attrs())[0];
      cpu::NarrowEnding descends, relu;
      descends.descends = true;
      descends.factor = 0.25f;
      relu.relu = true;
      relu.bias = bias.data<float>();
      Tensor descended = as_double(start), layer = exact.copy();
      for (int64_t i = 0; i < exact.count(); ++i) {
        descended.data<double>()[i] -= 0.25 * exact.data<double>()[i];
        layer.data<double>()[i] = std::max(0.0, exact.data<double>()[i] + bias.data<float>()[i % sample.columns]);
      }
      for (const auto& [ending, expected] :
           {std::pair<cpu::NarrowEnding, Tensor>{{}, exact}, {descends, descended}, {relu, layer}}) {
        const Tensor c = multiplied_narrow(product, ending, a, b, start);
        CHECK(distance(c, expected) < 5e-6);
        for (const int threads : {2, 3}) {
          CAPTURE(threads, ending.descends, ending.relu);
          CHECK(same(multiplied_narrow(product, ending, a, b, start, threads), c));
        }
      }
    }
  }
}

TEST_CASE("in bfloat16 a weight's gradient leaves out zeros of what the layer read") {
  if (!cpu::multiplies_bfloat16()) return;
  Session session = make_session();
  for (const Sample& whole : narrow_samples()) {
    if (!whole.transpose_a || whole.transpose_b) continue;
    const Sample sample = whole.turned();  // transposes the same one
    for (const double share : {0.0, 0.1, 0.3}) {
      CAPTURE(sample.rows, sample.columns, sample.inner, share);
      const Tensor a = rounded(sample.a(share)), b = rounded(sample.b(share)),
                   start = random_values({DType::Float32, {sample.rows, sample.columns}}, 3);
      const cpu::NarrowProduct product = narrow_product(sample);
      CHECK(cpu::is_better_turned(product, a.data(), b.data()) != cpu::has_tiles());
      CHECK_FALSE(cpu::is_better_turned(cpu::turned(product), b.data(), a.data()));
      const Tensor exact = session.evaluate("matmul", {as_double(a), as_double(b)}, sample.attrs())[0];
      cpu::NarrowEnding descends;
      descends.descends = true;
      descends.factor = 0.25f;
      Tensor descended = as_double(start);
      for (int64_t i = 0; i < exact.count(); ++i) descended.data<double>()[i] -= 0.25 * exact.data<double>()[i];
      for (const auto& [ending, expected] : {std::pair<cpu::NarrowEnding, Tensor>{{}, exact}, {descends, descended}}) {
        const Tensor c = multiplied_narrow(product, ending, a, b, start);
        CHECK(distance(c, expected) < 5e-6);
        for (const int threads : {2, 3}) CHECK(same(multiplied_narrow(product, ending, a, b, start, threads), c));
      }
    }
  }
}

TEST_CASE("a sparse product in bfloat16 lists as many rows at a time as it has room for") {
  if (!cpu::multiplies_bfloat16()) return;
  Session session = make_session();
  const Sample sample{1045, 64, 520};
  const Tensor a = rounded(sparse_values(sample.left(), 0.1, 1)),
               b = rounded(random_values({DType::Float32, sample.right()}, 2)),
               start = Tensor::zeros({DType::Float32, {sample.rows, sample.columns}});
  const cpu::NarrowProduct product = narrow_product(sample);
  CHECK(is_sparse(product, a) != cpu::has_tiles());
  const Tensor c = multiplied_narrow(product, {}, a, b, start);
  CHECK(distance(c, session.evaluate("matmul", {as_double(a), as_double(b)}, sample.attrs())[0]) < 5e-6);
  CHECK(same(multiplied_narrow(product, {}, a, b, start, 2), c));
}

TEST_CASE("a zero of a sparse factor in bfloat16 still meets an infinity and a NaN") {
  if (!cpu::multiplies_bfloat16()) return;
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const Sample& sample : narrow_samples()) {
    for (const bool turned : {false, true}) {
      if (sample.transpose_b || (turned && !sample.transpose_a)) continue;
      // The other factor has one strange number, in a column of its own.
      const Sample used = turned ? sample.turned() : sample;
      const int64_t rows = sample.rows, columns = sample.columns, column = 3, term = sample.inner - 2;
      const Tensor sparse = rounded(sparse_values(turned ? used.right() : used.left(), 0.3, 1)),
                   start = Tensor::zeros({DType::Float32, {used.rows, used.columns}});
      for (const float strange : {kInfinity, -kInfinity, kNaN}) {
        Tensor other = rounded(random_values({DType::Float32, turned ? used.left() : used.right()}, 2));
        other.data<float>()[term * columns + column] = strange;
        const Tensor c =
            multiplied_narrow(narrow_product(used), {}, turned ? other : sparse, turned ? sparse : other, start);
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < columns; ++j) {
            const float got = c.data<float>()[turned ? j * rows + i : i * columns + j];
            const float met = sparse.data<float>()[sample.transpose_a ? term * rows + i : i * sample.inner + term];
            CAPTURE(rows, sample.inner, turned, strange, i, j, met);
            if (j != column)
              REQUIRE(std::isfinite(got));
            else if (met == 0 || std::isnan(strange))
              REQUIRE(std::isnan(got));
            else
              REQUIRE(got == met * strange);
          }
        }
      }
    }
  }
}

#endif

TEST_CASE("layers behind relu and dropout give what float64 gives, whichever way they are multiplied") {
  Session session = make_session();
  const Tensor weight = random_values({DType::Float32, {96, 300}}, 2), bias = random_values({DType::Float32, {96}}, 3);
  for (const double share : {0.2, 0.9}) {
    CAPTURE(share);
    const Tensor x = sparse_values({64, 300}, share, 1);
    const Attrs relu{{"activation", std::string("relu")}};
    const Tensor exact = session.evaluate("dense", {as_double(x), as_double(weight), as_double(bias)}, relu)[0];
    CHECK(distance(session.evaluate("dense", {x, weight, bias}, relu)[0], exact) < 5e-6);
    const Attrs mixed{{"activation", std::string("relu")}, {"mixed", std::string("float32")}};
    CHECK(distance(session.evaluate("dense", {x, weight, bias}, mixed)[0], exact) < 1e-2);
  }
}
