// Sorting on the card: rows of one tile and of many, runs of all lengths, few of many, and the CPU's bits in each.
#include "beside_cpu.h"

using namespace moonflow;
using namespace moonflow::oracle;

namespace {

// Few different values, so that the places decide; in fractions also NaN, infinities and both zeros.
Tensor with_equals(const TensorType& type, unsigned seed) {
  Tensor tensor = drawn(type, seed, -20, 100);
  visit_stored(type.dtype, [&](auto zero) {
    using T = decltype(zero);
    std::mt19937 random(seed + 1);
    if constexpr (kFloating<T>) {
      const double odd[] = {NAN, -INFINITY, INFINITY, 0.0, -0.0};
      for (int64_t i = 0; i < tensor.count(); ++i) {
        T& value = tensor.data<T>()[i];
        value = static_cast<T>(std::floor(static_cast<double>(value)));
        if (const uint32_t kind = random() % 40; kind < 5) value = static_cast<T>(odd[kind]);
      }
    }
  });
  return tensor;
}

const Attrs kFalling{{"direction", std::string("DESCENDING")}};

// The bits, so that the two zeros are told apart.
void check_bits(const BesideCpu& beside, const char* op, const Tensor& x, const Attrs& attrs = {}) {
  const Trial trial = beside.trial(op, {x}, attrs);
  INFO(trial.describe());
  const Launched expected = launch(trial, *beside.cpu), got = launch(trial, *beside.card);
  CHECK(got.damage == "");
  for (size_t i = 0; i < expected.outputs.size(); ++i) CHECK(same(got.outputs[i], expected.outputs[i]));
}

}  // namespace

TEST_CASE("rows of one tile are sorted as on the CPU") {
  const BesideCpu beside;
  for (const DType dtype :
       {DType::Float32, DType::Float64, DType::Int8, DType::UInt8, DType::Int32, DType::Int64, DType::BFloat16}) {
    for (const int64_t length : {1, 2, 5, 6, 319, 320, 321, 1000}) {
      const Tensor x = with_equals({dtype, {2, length}}, static_cast<unsigned>(length));
      check_bits(beside, "sort", x);
      check_bits(beside, "argsort", x, kFalling);
      check_bits(beside, "top_k", x, {{"k", (length + 1) / 2}});
    }
  }
}

TEST_CASE("tiles of a longer row are merged, whatever is left at the end") {
  const BesideCpu beside;
  for (const int64_t length : {2816, 2817, 5632, 3 * 2816 + 7, 5 * 2816}) {
    const Tensor x = with_equals({DType::Float32, {2, length}}, 3);
    check_bits(beside, "sort", x, kFalling);
    for (const int64_t k : {int64_t{2000}, length - 1}) check_bits(beside, "top_k", x, {{"k", k}});
  }
  check_bits(beside, "argsort", with_equals({DType::Int64, {9000}}, 4));
}

TEST_CASE("a few of a long row are found tile by tile") {
  const BesideCpu beside;
  // The second one takes three rounds of tiles.
  check_bits(beside, "top_k", with_equals({DType::Float32, {3, 20000}}, 5), {{"k", int64_t{5}}});
  check_bits(beside, "top_k", with_equals({DType::Float32, {40000}}, 6), {{"k", int64_t{1400}}});
  check_bits(beside, "top_k", with_equals({DType::Float64, {2, 9000}}, 7), {{"k", int64_t{1408}}});
  check_bits(beside, "top_k", with_equals({DType::Float64, {2, 9000}}, 8), {{"k", int64_t{1409}}});
}

TEST_CASE("targets are in the top k as on the CPU") {
  const BesideCpu beside;
  for (const DType dtype : {DType::Float32, DType::Float64, DType::BFloat16}) {
    for (const int64_t classes : {3, 31, 100}) {
      const Tensor x = with_equals({dtype, {37, classes}}, 9);
      const Tensor targets = drawn({DType::UInt8, {37}}, 10, 0, static_cast<double>(classes));
      for (const int64_t k : {1, 3, 50}) beside.check("in_top_k", {targets, x}, {{"k", k}}, 1e-9);
    }
  }
}
