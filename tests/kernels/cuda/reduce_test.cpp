// Reductions on the card where the oracle's examples are too small: several blocks, several parts, odd sizes.
#include <limits>

#include "beside_cpu.h"
#include "kernels/cuda/axes.h"

using namespace moonflow;
using namespace moonflow::oracle;

TEST_CASE("reductions over any axes agree with the CPU") {
  const BesideCpu beside;
  const Tensor x = drawn({DType::Float32, {5, 17, 6, 133}}, 1);
  for (const Ints& axes : {Ints{0, 1, 2, 3}, Ints{0}, Ints{3}, Ints{0, 2, 3}, Ints{1, 2}, Ints{0, 2}, Ints{1, 3}}) {
    const Attrs attrs{{"axis", axes}};
    for (const char* op : {"reduce_sum", "reduce_max", "reduce_std", "reduce_logsumexp"}) beside.check(op, {x}, attrs);
  }
  for (const int64_t axis : {0, 1, 2, 3})
    for (const char* op : {"argmax", "argmin"}) beside.check(op, {x}, {{"axis", axis}}, 1e-9);
  const Shape alternating{2, 3, 2, 3, 2, 3, 2, 3};
  beside.check("reduce_sum", {drawn({DType::Float32, alternating}, 2)}, {{"axis", Ints{0, 2, 4, 6}}});
  beside.check("reduce_sum", {drawn({DType::Float32, alternating}, 3)}, {{"axis", Ints{1, 3, 5, 7}}});
}

TEST_CASE("images with their channels last are reduced where they lie, unless channels and places are kept") {
  const BesideCpu beside;
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16}) {
    const Tensor x = drawn({dtype, {3, 40, 7, 7}}, 1);
    const double tolerance = is_narrow(dtype) ? two_roundings(dtype) : 1e-5;
    for (const Ints& axes : {Ints{2, 3}, Ints{0, 2, 3}, Ints{1}, Ints{0, 1}, Ints{0, 1, 2, 3}}) {
      for (const char* op : {"reduce_mean", "reduce_sum", "reduce_max", "reduce_variance"})
        beside.check_both_layouts(beside.trial(op, {x}, {{"axis", axes}}), tolerance);
    }
    beside.check_both_layouts(beside.trial("argmax", {x}, {{"axis", int64_t{1}}}), 1e-9);
    beside.check_both_layouts(beside.trial("sum_to_shape", {x}, {{"shape", Ints{40, 1, 1}}}), tolerance);
    for (const Ints& axes : {Ints{0}, Ints{3}}) {
      const Trial kept = beside.trial("reduce_mean", {x}, {{"axis", axes}});
      beside.check(kept, tolerance);
      CHECK_FALSE(channels_last_layouts(kept, *beside.card));
    }
  }
}

TEST_CASE("a mean of what is narrow may be given as float32, which it is not rounded for") {
  const BesideCpu beside;
  for (const DType dtype : {DType::BFloat16, DType::Float16}) {
    const Tensor x = drawn({dtype, {2, 9, 7, 5}}, 1);
    const Attrs attrs{{"axis", Ints{2, 3}}, {"mixed", std::string("float32")}};
    for (const char* op : {"reduce_mean", "reduce_sum"})
      CHECK(beside.check_both_layouts(beside.trial(op, {x}, attrs), 1e-6).outputs[0].dtype() == DType::Float32);
  }
}

TEST_CASE("one output from a million inputs has the same bits each time") {
  const BesideCpu beside;
  for (const Shape& shape : {Shape{1000003}, Shape{250001, 3}}) {
    const Trial trial = beside.trial("reduce_sum", {drawn({DType::Float32, shape}, 4)}, {{"axis", Ints{0}}});
    const Launched once = beside.check(trial, 1e-7), twice = launch(trial, *beside.card);
    CHECK(same(once.outputs[0], twice.outputs[0]));
  }
}

TEST_CASE("a mean far larger than the deviation costs a variance no digits") {
  const BesideCpu beside;
  beside.check("reduce_variance", {drawn({DType::Float32, {3, 5000}}, 5, 1000, 1001)}, {{"axis", Ints{1}}});
}

TEST_CASE("integers wrap around as they do on the CPU") {
  const BesideCpu beside;
  for (const DType dtype : {DType::Int8, DType::UInt8, DType::Int32, DType::Int64}) {
    const Tensor x = drawn({dtype, {70, 9}}, 6, 0, 100);
    for (const char* op : {"reduce_sum", "reduce_prod", "reduce_max", "reduce_any"})
      beside.check(op, {x}, {{"axis", Ints{0}}}, 1e-9);
  }
}

TEST_CASE("reductions of nothing give what the CPU gives") {
  const BesideCpu beside;
  for (const char* op : {"reduce_sum", "reduce_prod", "reduce_mean", "reduce_all", "reduce_logsumexp"}) {
    beside.check(op, {Tensor::allocate({DType::Float32, {0, 3}})}, {{"axis", Ints{0}}});
    beside.check(op, {Tensor::allocate({DType::Float32, {3, 0}})}, {{"axis", Ints{0}}});
  }
}

TEST_CASE("a NaN wins, and of equals the first") {
  const BesideCpu beside;
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  Tensor x = drawn({DType::Float32, {4, 700}}, 7);
  x.data<float>()[333] = x.data<float>()[600] = nan;
  x.data<float>()[700 + 650] = x.data<float>()[700 + 20] = infinity;
  for (int i = 0; i < 700; ++i) x.data<float>()[2 * 700 + i] = -infinity;
  for (const char* op : {"reduce_max", "reduce_min", "reduce_logsumexp", "reduce_variance"})
    beside.check(op, {x}, {{"axis", Ints{1}}});
  const Launched places = beside.check("argmax", {x}, {{"axis", int64_t{1}}}, 1e-9);
  CHECK(places.outputs[0].data<int64_t>()[0] == 333);
  CHECK(places.outputs[0].data<int64_t>()[1] == 20);
  CHECK(places.outputs[0].data<int64_t>()[2] == 0);
}

TEST_CASE("the gradient of a product asks whether another element is zero") {
  const BesideCpu beside;
  for (const Ints& axes : {Ints{0}, Ints{1}, Ints{0, 1}}) {
    Tensor x = drawn({DType::Float64, {40, 33}}, 8, 0.9, 1.1);
    x.data<double>()[5] = x.data<double>()[33 + 6] = x.data<double>()[33 + 9] = 0;
    const Shape dy = axes.size() == 2 ? Shape{} : axes[0] == 0 ? Shape{33} : Shape{40};
    beside.check("reduce_prod_grad", {drawn({DType::Float64, dy}, 9), x}, {{"axis", axes}}, 1e-9);
  }
}

TEST_CASE("the global norm takes more values than one launch can") {
  const BesideCpu beside;
  std::vector<Tensor> values;
  for (int64_t i = 0; i < 70; ++i) values.push_back(drawn({DType::Float32, {i * i % 23, i % 7 * 100}}, 10));
  values.push_back(drawn({DType::Float32, {50000}}, 11));
  beside.check("global_norm", values);
}

TEST_CASE("a long divisor divides as division does, up to the largest numbers") {
  const int64_t largest = std::numeric_limits<int64_t>::max();
  std::mt19937_64 random(12);
  bool right = true;
  for (int i = 0; i < 100000; ++i) {
    const int64_t by = std::max<int64_t>(1, static_cast<int64_t>(random() >> (1 + i % 63)));
    const cuda::LongDivisor divisor(by);
    for (const int64_t x : {int64_t{0}, by - 1, by, largest, largest - by, static_cast<int64_t>(random() >> 1)}) {
      int64_t rest;
      right = right && divisor.quotient(x, rest) == x / by && rest == x % by;
    }
  }
  CHECK(right);
}
