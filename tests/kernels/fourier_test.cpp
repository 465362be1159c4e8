// Fourier transforms against the sums that define them: every way to compute them, by factors, in lanes and in rows.
#include <catch2/catch.hpp>

#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

// out[k] = sum over n of x[n] * exp(-2 pi i k n / size) of each row, of which those from its length on are 0.
Tensor sums(const Tensor& x, int64_t size, bool inverse) {
  const int64_t rows = x.shape()[0], length = x.shape()[1];
  const Tensor result = Tensor::zeros({DType::Float64, {rows, size, 2}});
  const std::vector<double> given = numbers(x);
  std::vector<double> cosines, sines;
  for (int64_t i = 0; i < size; ++i) {
    const double angle = 2 * std::acos(-1.0) * static_cast<double>(i) / static_cast<double>(size);
    cosines.push_back(std::cos(angle));
    sines.push_back(inverse ? std::sin(angle) : -std::sin(angle));
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < size; ++k) {
      double real = 0, imaginary = 0;
      for (int64_t n = 0; n < std::min(size, length); ++n) {
        const double a = given[2 * (row * length + n)], b = given[2 * (row * length + n) + 1];
        real += a * cosines[k * n % size] - b * sines[k * n % size];
        imaginary += a * sines[k * n % size] + b * cosines[k * n % size];
      }
      double* const place = const_cast<double*>(result.data<double>()) + 2 * (row * size + k);
      place[0] = real;
      place[1] = imaginary;
    }
  }
  return result;
}

Tensor with_imaginary_parts(const Tensor& x) {
  Tensor result = Tensor::zeros({x.dtype(), {x.shape()[0], x.shape()[1], 2}});
  visit_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < x.count(); ++i) result.data<T>()[2 * i] = x.data<T>()[i];
  });
  return result;
}

// The first `count` places of axis 1.
Tensor first_of(Session& session, const Tensor& x, int64_t count) {
  std::vector<int64_t> sizes = x.shape().dims();
  sizes[1] = count;
  return session.evaluate("slice", {x}, {{"begin", Ints(sizes.size(), 0)}, {"size", Ints(sizes)}})[0];
}

// Of what is 1 at most, in sums of `size` that grow as its root.
double tolerance(DType dtype, int64_t size) {
  return (dtype == DType::Float64 ? 1e-15 : 4e-7) * 4 * std::sqrt(static_cast<double>(size));
}

// All of up to 70; factors of every kind; what goes by rows in every register; primes, alone and multiplied.
std::vector<int64_t> sizes() {
  std::vector<int64_t> result;
  for (int64_t size = 1; size <= 70; ++size) result.push_back(size);
  for (const int64_t size : {100, 121, 128, 134, 250, 256, 400, 512, 720, 1018, 1024, 1536, 2048})
    result.push_back(size);
  return result;
}

}  // namespace

TEST_CASE("the transform of complex numbers is that of the sums, both ways") {
  Session session = make_session();
  for (const DType dtype : {DType::Float32, DType::Float64}) {
    for (const int64_t size : sizes()) {
      INFO(dtype << " " << size);
      const Tensor x = random_values({dtype, {3, size, 2}}, 7);
      for (const bool inverse : {false, true}) {
        const Tensor y = session.evaluate("fft", {x}, {{"inverse", inverse}})[0];
        CHECK(distance(as_double(y), sums(x, size, inverse)) < tolerance(dtype, size));
      }
    }
  }
}

TEST_CASE("the transform of real numbers is the half of theirs, of numbers that are cut or filled up") {
  Session session = make_session();
  for (const DType dtype : {DType::Float32, DType::Float64}) {
    for (const int64_t size : sizes()) {
      for (const int64_t length : {size, size - 1, size + 3}) {
        INFO(dtype << " " << size << " of " << length);
        const Tensor x = random_values({dtype, {2, length}}, 8);
        const Tensor y = session.evaluate("rfft", {x}, {{"size", size}})[0];
        const Tensor wanted = sums(with_imaginary_parts(x), size, false);
        CHECK(distance(as_double(y), first_of(session, wanted, size / 2 + 1)) < tolerance(dtype, size));
      }
    }
  }
}

TEST_CASE("real numbers come back from their spectrum, and are 0 beyond the size") {
  Session session = make_session();
  for (const DType dtype : {DType::Float32, DType::Float64}) {
    for (const int64_t size : sizes()) {
      const Tensor x = random_values({dtype, {2, size}}, 9);
      const Tensor spectrum = session.evaluate("rfft", {x}, {{"size", size}})[0];
      const double share = 1 / static_cast<double>(size);
      for (const int64_t length : {size, size - 1, size + 3}) {
        INFO(dtype << " " << size << " to " << length);
        const Tensor back = session.evaluate(
            "irfft", {spectrum}, {{"size", size}, {"length", length}, {"edge", share}, {"middle", 2 * share}})[0];
        const int64_t kept = std::min(size, length);
        CHECK(distance(first_of(session, back, kept), first_of(session, x, kept)) < tolerance(dtype, size));
        if (length > size) CHECK(back.shape()[1] == length);
        for (int64_t i = size; i < length; ++i) CHECK(numbers(back)[i] == 0);
      }
    }
  }
}

// 8 times odd factors, a prime, and twice one: what is left of squares of lanes, and rows with a chirp.
TEST_CASE("of a long row each frequency is its sum, and the numbers come back") {
  Session session = make_session();
  for (const DType dtype : {DType::Float32, DType::Float64}) {
    for (const int64_t size : {8 * 1125, 16 * 1125, 8209, 2 * 8209, 2 * 9375}) {
      INFO(dtype << " " << size);
      const Tensor x = random_values({dtype, {2, size}}, 11);
      const Tensor spectrum = session.evaluate("rfft", {x}, {{"size", size}})[0];
      const std::vector<double> given = numbers(x), found = numbers(spectrum);
      for (const int64_t k : {int64_t{0}, int64_t{1}, size / 3, size / 2}) {
        double real = 0, imaginary = 0;
        for (int64_t n = 0; n < size; ++n) {
          const double angle = 2 * std::acos(-1.0) * static_cast<double>(k * n % size) / static_cast<double>(size);
          real += given[size + n] * std::cos(angle);
          imaginary -= given[size + n] * std::sin(angle);
        }
        const size_t at = 2 * static_cast<size_t>(size / 2 + 1 + k);
        CHECK(std::abs(found[at] - real) < 4 * tolerance(dtype, size));
        CHECK(std::abs(found[at + 1] - imaginary) < 4 * tolerance(dtype, size));
      }
      const double share = 1 / static_cast<double>(size);
      for (const int64_t length : {size, size - 1, size + 3}) {
        const Tensor back = session.evaluate(
            "irfft", {spectrum}, {{"size", size}, {"length", length}, {"edge", share}, {"middle", 2 * share}})[0];
        const int64_t kept = std::min(size, length);
        CHECK(distance(first_of(session, back, kept), first_of(session, x, kept)) < tolerance(dtype, size));
        for (int64_t i = size; i < length; ++i) CHECK(numbers(back)[i] == 0);
      }
      const Tensor pairs = random_values({dtype, {2, size, 2}}, 12);
      const Tensor there = session.evaluate("fft", {pairs})[0];
      const Tensor again = session.evaluate("fft", {there}, {{"inverse", true}, {"scale", share}})[0];
      CHECK(distance(again, pairs) < tolerance(dtype, size));
    }
  }
}

TEST_CASE("a row's spectrum is the same whatever rows are beside it") {
  Session session = make_session();
  for (const int64_t size : {30, 67, 128, 1024}) {
    const Tensor x = random_values({DType::Float32, {37, size}}, 10);
    const std::vector<double> all = numbers(session.evaluate("rfft", {x}, {{"size", size}})[0]);
    const Tensor first = session.evaluate("slice", {x}, {{"begin", Ints{0, 0}}, {"size", Ints{1, size}}})[0];
    const std::vector<double> alone = numbers(session.evaluate("rfft", {first}, {{"size", size}})[0]);
    CHECK(std::equal(alone.begin(), alone.end(), all.begin()));
  }
}

TEST_CASE("spectra of no numbers are refused, those of no rows are none") {
  Session session = make_session();
  CHECK_THROWS_WITH(session.evaluate("rfft", {Tensor::zeros({DType::Float32, {2, 3}})}, {{"size", int64_t{0}}}),
                    Catch::Contains("size must be 1 to 134217728, got 0"));
  CHECK_THROWS_WITH(session.evaluate("fft", {Tensor::zeros({DType::Float32, {3, 3}})}),
                    Catch::Contains("needs pairs along a last axis, real and imaginary, got (3, 3)"));
  CHECK_THROWS_WITH(session.evaluate("irfft", {Tensor::zeros({DType::Float32, {4, 2}})},
                                     {{"size", int64_t{8}}, {"length", int64_t{8}}}),
                    Catch::Contains("has 4 frequencies, size 8 wants 5"));
  const Tensor none = Tensor::zeros({DType::Float32, {0, 8}});
  CHECK(session.evaluate("rfft", {none}, {{"size", int64_t{8}}})[0].shape() == Shape{0, 5, 2});
  const Tensor of_nothing =
      session.evaluate("rfft", {Tensor::zeros({DType::Float32, {2, 0}})}, {{"size", int64_t{4}}})[0];
  CHECK(numbers(of_nothing) == std::vector<double>(12, 0));
}
