// Random numbers: the generator against its published answers, the shape of the distributions, and that a number
// depends on nothing but seed, key, step and element.
#include <array>
#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/philox.h"
#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

Tensor scalar(int64_t value) { return Tensor::of<int64_t>({}, {value}); }

struct Use {
  int64_t seed = 7, step = 0;
  std::string key = "w";
};

Tensor fill(Session& session, const char* op, int64_t count, Attrs attrs = {}, const Use& use = {}) {
  attrs.set("shape", Ints{count});
  attrs.set("key", use.key);
  return session.evaluate(op, {scalar(use.seed), scalar(use.step)}, attrs)[0];
}

struct Moments {
  double mean = 0, variance = 0, lowest = INFINITY, highest = -INFINITY;

  explicit Moments(const Tensor& tensor) {
    const std::vector<double> x = numbers(tensor);
    for (const double value : x) {
      mean += value / static_cast<double>(x.size());
      lowest = std::min(lowest, value);
      highest = std::max(highest, value);
    }
    for (const double value : x) variance += (value - mean) * (value - mean) / static_cast<double>(x.size());
  }
};

std::vector<Tensor> dropout(Session& session, const Tensor& x, double rate, const Use& use = {}) {
  return session.evaluate("dropout", {x, scalar(use.seed), scalar(use.step)}, {{"rate", rate}, {"key", use.key}});
}

constexpr int64_t kMany = 1000000;
// Sample means of n values stray from the true one by sigma / sqrt(n); five of those are allowed.
double stray(double sigma) { return 5 * sigma / std::sqrt(static_cast<double>(kMany)); }

}  // namespace

// Source: the known-answer vectors that come with Random123, philox4x32 with ten rounds.
TEST_CASE("philox gives its published answers") {
  using Words = std::array<uint32_t, 4>;
  const auto words = [](philox::Block counter, uint32_t key0, uint32_t key1) {
    const philox::Block block = philox::random_block(counter, key0, key1);
    return Words{block.word[0], block.word[1], block.word[2], block.word[3]};
  };
  CHECK(words({{0, 0, 0, 0}}, 0, 0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const uint32_t ones = 0xffffffff;
  CHECK(words({{ones, ones, ones, ones}}, ones, ones) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(words({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a bounded number is the high half of a full product") {
  CHECK(philox::below(UINT64_MAX, 10) == 9);
  CHECK(philox::below(0, 10) == 0);
  CHECK(philox::below(uint64_t{1} << 63, 10) == 5);
  CHECK(philox::below(UINT64_MAX, UINT64_MAX) == UINT64_MAX - 1);
}

TEST_CASE("the logarithm, the cosine and the sine of random numbers are as precise as a math library's") {
  constexpr long double kTurn = 6.283185307179586476925286766559L;
  const auto units = [](double got, long double exact) {  // of the last place
    const double near = std::abs(static_cast<double>(exact));
    return static_cast<double>(std::abs(got - exact)) / (std::nextafter(near, INFINITY) - near);
  };
  double of_log = 0, of_cosine = 0, of_sine = 0;
  for (uint64_t i = 0; i < 200000; ++i) {
    // Of any size, so that logarithms near 0 come too, and near any quarter of a turn.
    const uint64_t bits = philox::mixed(i), size = bits % 54;
    const auto part = static_cast<int64_t>(bits >> 11 >> size), one = int64_t{1} << 53;
    for (const int64_t n : {part + 1, one - part})
      of_log = std::max(of_log, units(log_of_fraction(n).value, std::log(static_cast<long double>(n) / one)));
    const int64_t quarter = static_cast<int64_t>(i) % 4, eighth = part / 8;
    const long double angle = kTurn * static_cast<long double>(eighth) / one;
    const long double cosines[] = {std::cos(angle), -std::sin(angle), -std::cos(angle), std::sin(angle)};
    const Turn turn = turn_of_fraction(quarter * (one / 4) + eighth);
    of_cosine = std::max(of_cosine, units(turn.cosine, cosines[quarter]));
    of_sine = std::max(of_sine, units(turn.sine, cosines[(quarter + 3) % 4]));
  }
  CHECK(of_log < 1);
  CHECK(of_cosine < 1.6);
  CHECK(of_sine < 1.6);
  CHECK(log_of_fraction(int64_t{1} << 53).value == 0);
}

// Golden sums of bits: the same operations in Python, which rounds each for itself.
TEST_CASE("each operation behind a random number is rounded for itself") {
  uint64_t logs = 0, cosines = 0, sines = 0;
  for (uint64_t i = 0; i < 10000; ++i) {
    const auto bits = [](double x) { return __builtin_bit_cast(uint64_t, x); };
    const auto n = static_cast<int64_t>(philox::mixed(i) >> 11);
    const Turn turn = turn_of_fraction(n);
    logs += bits(log_of_fraction(n + 1).value);
    cosines += bits(turn.cosine);
    sines += bits(turn.sine);
  }
  CHECK(logs == 0x5dc78cf7a728ac41);
  CHECK(cosines == 0x77fce2b52dd84bd9);
  CHECK(sines == 0xba941dc6f0592d52);
}

TEST_CASE("uniform fills have the mean, the variance and the bounds of the uniform distribution") {
  Session session = make_session();
  for (const DType dtype : {DType::Float32, DType::Float64}) {
    const Moments moments(fill(session, "random_uniform", kMany, {{"low", -2.0}, {"high", 4.0}, {"dtype", dtype}}));
    CHECK(moments.mean == Approx(1).margin(stray(std::sqrt(3))));
    CHECK(moments.variance == Approx(3).epsilon(0.01));
    CHECK(moments.lowest >= -2);
    CHECK(moments.lowest < -1.999);
    CHECK(moments.highest < 4);
    CHECK(moments.highest > 3.999);
  }
}

TEST_CASE("a uniform number never reaches the upper bound, though rounding would carry it there") {
  Session session = make_session();
  const Moments moments(fill(session, "random_uniform", 10000, {{"low", 1e7}, {"high", 1e7 + 2}}));
  CHECK(moments.highest == 1e7 + 1);
  for (const auto& [dtype, step] : {std::pair{DType::BFloat16, 0x1p-8}, std::pair{DType::Float16, 0x1p-11}}) {
    CHECK(Moments(fill(session, "random_uniform", 10000, {{"dtype", dtype}})).highest == 1 - step);
    const Moments below_zero(fill(session, "random_uniform", 10000, {{"low", -1.0}, {"high", 0.0}, {"dtype", dtype}}));
    CHECK(below_zero.highest < 0);
    const Moments negative(fill(session, "random_uniform", 10000, {{"low", -2.0}, {"high", -1.0}, {"dtype", dtype}}));
    CHECK(negative.highest == -1 - 2 * step);
    const Moments constant(fill(session, "random_uniform", 10, {{"low", 3.0}, {"high", 3.0}, {"dtype", dtype}}));
    CHECK(constant.lowest == 3);
    CHECK(constant.highest == 3);
  }
  const Moments constant(fill(session, "random_uniform", 10, {{"low", 3.0}, {"high", 3.0}}));
  CHECK(constant.lowest == 3);
  CHECK(constant.highest == 3);
}

TEST_CASE("normal fills have the mean, the variance and the tails of the normal distribution") {
  Session session = make_session();
  const Tensor x = fill(session, "random_normal", kMany, {{"mean", 3.0}, {"stddev", 2.0}});
  const Moments moments(x);
  CHECK(moments.mean == Approx(3).margin(stray(2)));
  CHECK(moments.variance == Approx(4).epsilon(0.01));
  int64_t within_one = 0, beyond_three = 0;
  for (const double value : numbers(x)) {
    within_one += std::abs(value - 3) < 2;
    beyond_three += std::abs(value - 3) > 6;
  }
  CHECK(within_one / double{kMany} == Approx(0.682689).margin(0.0025));
  CHECK(beyond_three / double{kMany} == Approx(0.002700).margin(0.0003));
}

TEST_CASE("truncated normal fills stay within two standard deviations") {
  Session session = make_session();
  const Moments moments(fill(session, "truncated_normal", kMany, {{"mean", 1.0}, {"stddev", 0.1}}));
  CHECK(moments.mean == Approx(1).margin(stray(0.088)));
  // 0.8796256610342398 is the standard deviation of a normal cut off at two.
  CHECK(std::sqrt(moments.variance) == Approx(0.08796256610342398).epsilon(0.005));
  CHECK(moments.lowest >= 0.8 - 1e-7);
  CHECK(moments.highest <= 1.2 + 1e-7);
  CHECK(moments.highest > 1.199);
}

TEST_CASE("random whole numbers are spread evenly over their range") {
  Session session = make_session();
  const Tensor x = fill(session, "random_int", kMany, {{"low", int64_t{-3}}, {"high", int64_t{7}}});
  REQUIRE(x.dtype() == DType::Int32);
  std::array<int64_t, 10> hits{};
  for (int64_t i = 0; i < kMany; ++i) ++hits.at(x.data<int32_t>()[i] + 3);
  for (const int64_t count : hits) CHECK(count / double{kMany} == Approx(0.1).margin(stray(0.3)));

  const Attrs whole{{"low", INT64_MIN}, {"high", INT64_MAX}, {"dtype", DType::Int64}};
  CHECK(Moments(fill(session, "random_int", 1000, whole)).lowest < -9e18);
  CHECK(message_of([&] {
          fill(session, "random_int", 1, {{"low", int64_t{0}}, {"high", int64_t{300}}, {"dtype", DType::UInt8}});
        }) == "[0, 300) is not within uint8");
  CHECK(message_of([&] {
          fill(session, "random_int", 1, {{"low", int64_t{2}}, {"high", int64_t{2}}});
        }) == "low must be below high, got 2 and 2");
}

TEST_CASE("coin flips follow their chances") {
  Session session = make_session();
  Tensor x = Tensor::allocate({DType::Float32, {kMany}});
  std::fill_n(x.data<float>(), kMany, 0.3f);
  const Tensor flips = session.evaluate("random_bernoulli", {x, scalar(1), scalar(0)}, {{"key", std::string("b")}})[0];
  CHECK(Moments(flips).mean == Approx(0.3).margin(stray(0.46)));
  const Tensor sure = Tensor::of<float>({2}, {0, 1});
  CHECK(numbers(session.evaluate("random_bernoulli", {sure, scalar(1), scalar(0)}, {{"key", std::string("b")}})[0]) ==
        std::vector<double>{0, 1});
}

TEST_CASE("dropout keeps its part, scales it, and keeps the mean") {
  Session session = make_session();
  Tensor x = Tensor::allocate({DType::Float32, {kMany}});
  std::fill_n(x.data<float>(), kMany, 2.f);
  const std::vector<Tensor> out = dropout(session, x, 0.25);
  CHECK(Moments(out[1]).mean == Approx(0.75).margin(stray(0.433)));
  CHECK(Moments(out[0]).mean == Approx(2).margin(stray(2 * 0.577)));
  const std::vector<double> y = numbers(out[0]), mask = numbers(out[1]);
  int64_t wrong = 0;
  for (int64_t i = 0; i < kMany; ++i) wrong += y[i] != (mask[i] == 1 ? double{2.f * static_cast<float>(1 / 0.75)} : 0);
  CHECK(wrong == 0);
}

TEST_CASE("the mask of dropout is random_mask_like, is the same for both dtypes, and masks the gradient") {
  Session session = make_session();
  const Tensor x = random_values({DType::Float32, {37, 29}}, 1);
  const std::vector<Tensor> out = dropout(session, x, 0.5);
  CHECK(distance(dropout(session, as_double(x), 0.5)[1], out[1]) == 0);
  const Attrs attrs{{"rate", 0.5}, {"key", std::string("w")}};
  CHECK(distance(session.evaluate("random_mask_like", {x, scalar(7), scalar(0)}, attrs)[0], out[1]) == 0);
  CHECK(distance(session.evaluate("dropout_grad", {x, out[1]}, {{"rate", 0.5}})[0], out[0]) == 0);
}

TEST_CASE("a mask compares the numbers of philox one by one, in registers of any width") {
  Session session = make_session();
  const Attrs attrs{{"rate", 0.25}, {"key", std::string("mask")}, {"shape", Ints{1000, 3}}};
  const Tensor mask = session.evaluate("random_mask", {scalar(7), scalar(int64_t{5} << 33)}, attrs)[0];
  const philox::Sequence sequence(7, philox::hash_of("mask"), int64_t{5} << 33);
  int64_t wrong = 0;
  for (int64_t i = 0; i < mask.count(); ++i) {
    const uint32_t number = sequence.block(static_cast<uint64_t>(i / 4)).word[i % 4];
    wrong += mask.data<int8_t>()[i] != (number >= 0x40000000 ? 1 : 0);
  }
  CHECK(wrong == 0);
}

TEST_CASE("dropout hides what it drops, and with rate 0 drops nothing") {
  Session session = make_session();
  Tensor x = Tensor::allocate({DType::Float32, {1000}});
  std::fill_n(x.data<float>(), 1000, NAN);
  const std::vector<Tensor> out = dropout(session, x, 0.5);
  for (int64_t i = 0; i < 1000; ++i) CHECK(std::isnan(out[0].data<float>()[i]) == (out[1].data<int8_t>()[i] == 1));
  const Tensor y = random_values({DType::Float32, {1000}}, 2);
  CHECK(distance(dropout(session, y, 0)[0], y) == 0);
  for (const double rate : {1.0, -0.1, static_cast<double>(NAN)}) CHECK_THROWS_AS(dropout(session, y, rate), Error);
  CHECK(message_of([&] { dropout(session, y, 1); }) == "rate must be in [0, 1), got 1");
}

TEST_CASE("random numbers have the same bits for any number of threads") {
  Session one = make_session(1), two = make_session(2);
  const int64_t count = 100003;  // odd: parts end inside a block
  for (const char* op : {"random_uniform", "random_normal", "truncated_normal"}) {
    INFO(op);
    CHECK(distance(fill(one, op, count), fill(two, op, count)) == 0);
  }
  const Attrs range{{"low", int64_t{0}}, {"high", int64_t{1000}}};
  CHECK(distance(fill(one, "random_int", count, range), fill(two, "random_int", count, range)) == 0);
  const Tensor x = random_values({DType::Float32, {count}}, 1);
  CHECK(distance(dropout(one, x, 0.3)[0], dropout(two, x, 0.3)[0]) == 0);
}

TEST_CASE("another seed, key or step gives other numbers; the same ones give the same") {
  Session session = make_session();
  const auto draw = [&](const Use& use) { return fill(session, "random_uniform", 1000, {}, use); };
  const Tensor base = draw({7, 0, "w"});
  CHECK(distance(draw({7, 0, "w"}), base) == 0);
  for (const Use& other : {Use{8, 0, "w"}, Use{7, 1, "w"}, Use{7, 0, "v"}, Use{-7, 0, "w"}, Use{7, -1, "w"}}) {
    const std::vector<double> a = numbers(base), b = numbers(draw(other));
    double product = 0;
    for (size_t i = 0; i < a.size(); ++i) product += (a[i] - 0.5) * (b[i] - 0.5) / static_cast<double>(a.size());
    // Of two independent draws the mean product is 0, give or take 1 / 12 / sqrt(1000) = 0.0026.
    CHECK(std::abs(product) < 0.0132);
  }
}

TEST_CASE("a longer fill begins with the shorter one, and float32 follows float64") {
  Session session = make_session();
  for (const char* op : {"random_uniform", "random_normal", "truncated_normal"}) {
    INFO(op);
    const Tensor longer = fill(session, op, 1001);
    CHECK(distance(longer.rows(0, 777), fill(session, op, 777)) == 0);
    // float32 rounds to a part in 2^24; four times that for values up to 4.
    CHECK(distance(longer, fill(session, op, 1001, {{"dtype", DType::Float64}})) < 4e-7);
  }
}

TEST_CASE("an orthogonal matrix has orthogonal rows of one length, or columns where it is taller than wide") {
  Session session = make_session();
  const auto worst_product = [](const std::vector<double>& a, int64_t rows, int64_t columns, double square) {
    const bool by_rows = rows <= columns;
    const int64_t count = std::min(rows, columns), length = std::max(rows, columns);
    const auto at = [&](int64_t vector, int64_t i) {
      return by_rows ? a[vector * columns + i] : a[i * columns + vector];
    };
    double worst = 0;
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < length; ++k) sum += at(i, k) * at(j, k);
        worst = std::max(worst, std::fabs(sum - (i == j ? square : 0)));
      }
    }
    return worst;
  };
  // Panels that are full, begun and alone; a convolution's filter is (filters, all else).
  for (const Ints& shape : {Ints{48, 48}, Ints{33, 70}, Ints{70, 33}, Ints{1, 5}, Ints{5, 1}, Ints{8, 3, 2, 2}}) {
    const int64_t rows = shape[0];
    Attrs attrs{{"shape", shape}, {"key", std::string("w")}, {"gain", 3.0}, {"dtype", DType::Float64}};
    const std::vector<Tensor> source{scalar(7), scalar(0)};
    const Tensor exact = session.evaluate("random_orthogonal", source, attrs)[0];
    INFO(exact.shape());
    CHECK(worst_product(numbers(exact), rows, exact.count() / rows, 9) < 1e-13);  // a few hundred roundings
    attrs.set("dtype", DType::Float32);
    CHECK(distance(session.evaluate("random_orthogonal", source, attrs)[0], exact) < 2e-7);
  }
}

TEST_CASE("orthogonal matrices are any with the same likelihood") {
  // Each element of one that is drawn uniformly has mean 0 and, in n dimensions, variance 1 / n. Without the signs of
  // R's diagonal the first ones would lean to one side.
  Session session = make_session();
  double sum[4] = {}, squares[4] = {};
  constexpr int kDraws = 4000;
  for (int64_t draw = 0; draw < kDraws; ++draw) {
    const Attrs attrs{{"shape", Ints{2, 2}}, {"key", std::string("w")}, {"dtype", DType::Float64}};
    const std::vector<double> q = numbers(session.evaluate("random_orthogonal", {scalar(draw), scalar(0)}, attrs)[0]);
    for (int i = 0; i < 4; ++i) sum[i] += q[i] / kDraws, squares[i] += q[i] * q[i] / kDraws;
  }
  for (int i = 0; i < 4; ++i) {
    CHECK(std::fabs(sum[i]) < 5 * std::sqrt(0.5 / kDraws));
    CHECK(std::fabs(squares[i] - 0.5) < 5 * std::sqrt(0.125 / kDraws));
  }
}

TEST_CASE("an orthogonal matrix has the same bits for any number of threads and any registers") {
  Session one = make_session(1), two = make_session(2);
  const Attrs attrs{{"shape", Ints{200, 150}}, {"key", std::string("w")}};
  const Tensor q = one.evaluate("random_orthogonal", {scalar(7), scalar(0)}, attrs)[0];
  CHECK(same(q, two.evaluate("random_orthogonal", {scalar(7), scalar(0)}, attrs)[0]));
  // The sum of its bits, as first computed here: each run of these tests finds it, with MOONFLOW_SIMD=plain too.
  uint64_t bits = 0;
  for (int64_t i = 0; i < q.count(); ++i) bits += __builtin_bit_cast(uint32_t, q.data<float>()[i]);
  CHECK(bits == 62740797344563);
  CHECK(message_of([&] {
          one.evaluate("random_orthogonal", {scalar(7), scalar(0)}, {{"shape", Ints{3}}, {"key", std::string("w")}});
        }) == "an orthogonal matrix has two axes or more, got shape (3)");
}
