// Convolution in tile registers. Where there are none the same ops compute in float32, of which less is asked.
#include <catch2/catch.hpp>

#include "kernels/cpu/conv.h"
#include "kernels/cpu/simd.h"
#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

struct Sample {
  std::string name;
  Shape x, filter;
  Attrs attrs;

  Attrs with(const std::string& attr, AttrValue value) const {
    Attrs all = attrs;
    all.set("rounds_to", DType::BFloat16);
    all.set(attr, std::move(value));
    return all;
  }
};

std::vector<Sample> samples() {
  const Attrs valid, same = {{"padding", std::string("SAME")}}, nhwc = {{"data_format", std::string("NHWC")}};
  Attrs nhwc_same = nhwc;
  nhwc_same.set("padding", std::string("SAME"));
  Attrs nhwc_strides = nhwc_same;
  nhwc_strides.set("strides", Ints{2});
  return {
      {"LeNet", {3, 32, 14, 14}, {64, 32, 5, 5}, same},
      {"rows that two tiles share", {2, 32, 20, 20}, {32, 32, 3, 3}, same},
      {"short rows, one after the other", {33, 32, 4, 4}, {32, 32, 3, 3}, same},
      {"an odd number of tiles", {9, 48, 8, 8}, {64, 48, 3, 3}, same},
      {"channels that do not fill blocks", {5, 41, 10, 12}, {23, 41, 3, 3}, same},
      {"single taps", {2, 96, 16, 18}, {160, 96, 1, 1}, valid},
      {"taps that are not square", {8, 48, 13, 11}, {32, 48, 2, 6}, valid},
      {"uneven pads", {6, 32, 9, 11}, {48, 32, 3, 3}, {{"pads", Ints{0, 0, 0, 0, 2, 1, 0, 2}}}},
      {"pads wider than the filter", {3, 32, 6, 7}, {48, 32, 3, 3}, {{"pads", Ints{5, 4}}}},
      {"one image", {1, 48, 24, 24}, {80, 48, 3, 3}, same},
      {"channels last", {5, 10, 12, 48}, {64, 3, 3, 48}, nhwc_same},
      {"strides", {8, 48, 16, 16}, {64, 48, 3, 3}, {{"strides", Ints{2}}, {"pads", Ints{1}}}},
      {"strides that do not fit", {24, 32, 11, 14}, {48, 32, 3, 2}, {{"strides", Ints{2, 3}}}},
      {"strides wider than the filter", {32, 64, 12, 9}, {96, 64, 1, 1}, {{"strides", Ints{3, 2}}}},
      {"filters side by side", {12, 96, 16, 16}, {64, 96, 2, 2}, {{"strides", Ints{2}}}},
      {"wide filters with strides",
       {4, 32, 23, 21},
       {48, 32, 7, 5},
       {{"strides", Ints{2}}, {"padding", std::string("SAME")}}},
      {"dilations", {3, 48, 15, 17}, {64, 48, 3, 3}, {{"dilations", Ints{2, 3}}, {"padding", std::string("SAME")}}},
      {"strides and dilations",
       {12, 48, 19, 18},
       {64, 48, 3, 3},
       {{"strides", Ints{2, 3}}, {"dilations", Ints{3, 2}}, {"pads", Ints{2, 1}}}},
      {"strides, channels last", {9, 17, 15, 48}, {64, 3, 3, 48}, nhwc_strides},
  };
}

Tensor rounded(const TensorType& type, uint32_t seed) {
  Tensor values = random_values(type, seed);
  for (int64_t i = 0; i < values.count(); ++i)
    values.data<float>()[i] = static_cast<float>(BFloat16(values.data<float>()[i]));
  return values;
}

Shape pooled(Shape shape, bool channels_last) {
  const int height = channels_last ? 1 : 2;
  std::vector<int64_t> dims = shape.dims();
  dims[height] /= 2;
  dims[height + 1] /= 2;
  return Shape(dims);
}

bool is_even(const Shape& shape, bool channels_last) {
  const int height = channels_last ? 1 : 2;
  return shape[height] % 2 == 0 && shape[height + 1] % 2 == 0;
}

}  // namespace

TEST_CASE("convolutions in bfloat16 are those of the rounded factors, summed in float32") {
  const double most = cpu::has_tiles() ? 5e-6 : 1e-4;
  Session session = make_session(), many = make_session(3);
  for (const Sample& sample : samples()) {
    CAPTURE(sample.name);
    const bool last = sample.attrs.find("data_format") != nullptr;
    const auto check = [&](const std::string& op, const std::vector<Tensor>& inputs, const Attrs& attrs) {
      CAPTURE(op);
      std::vector<Tensor> exact;
      for (const Tensor& input : inputs) exact.push_back(input.dtype() == DType::Float32 ? as_double(input) : input);
      const std::vector<Tensor> expected = planned(session, op, exact, attrs),
                                got = planned(session, op, inputs, attrs);
      for (size_t i = 0; i < got.size(); ++i) {
        if (got[i].dtype() == DType::UInt8)
          CHECK(same(got[i], expected[i]));
        else
          CHECK(distance(got[i], expected[i]) < most);
      }
      if (!cpu::has_tiles()) return got[0];
      CHECK(same(planned(many, op, inputs, attrs)[0], got[0]));
      return got[0];
    };
    const Tensor x = rounded({DType::Float32, sample.x}, 1), filter = rounded({DType::Float32, sample.filter}, 2),
                 bias = random_values({DType::Float32, {sample.filter[0]}}, 3);
    const auto conv = [&](const char* activation) {
      return check("conv2d_bias", {x, filter, bias}, sample.with("activation", std::string(activation)));
    };
    const Shape out = check("conv2d", {x, filter}, sample.with("groups", int64_t{1})).shape();
    conv("none");
    conv("relu");
    conv("relu6");
    check("conv2d_bias_add", {x, filter, bias, random_values({DType::Float32, out}, 4)},
          sample.with("activation", std::string("relu")));
    const Attrs shape = sample.with("shape", sample.x.dims());
    check("conv2d_input_grad", {rounded({DType::Float32, out}, 5), filter}, shape);
    const Attrs filter_shape = sample.with("shape", sample.filter.dims());
    check("conv2d_filter_grad", {rounded({DType::Float32, out}, 5), x}, filter_shape);
    check("conv2d_filter_bias_grad", {rounded({DType::Float32, out}, 5), x}, filter_shape);
    if (!is_even(out, last)) continue;
    check("conv2d_relu_pool", {x, filter, bias}, sample.with("groups", int64_t{1}));
    const Shape half = pooled(out, last);
    Tensor places = Tensor::allocate({DType::UInt8, half});
    for (int64_t i = 0; i < places.count(); ++i) places.data<uint8_t>()[i] = static_cast<uint8_t>(i * 7 % 5);
    check("conv2d_relu_pool_input_grad", {rounded({DType::Float32, half}, 6), places, filter}, shape);
    check("conv2d_relu_pool_filter_grad", {rounded({DType::Float32, half}, 6), places, x}, filter_shape);
  }
}

TEST_CASE("a convolution in bfloat16 rounds its factors where there are tile registers") {
  Session session = make_session();
  for (const Sample& sample : samples()) {
    const Tensor x = random_values({DType::Float32, sample.x}, 1),
                 filter = random_values({DType::Float32, sample.filter}, 2);
    const auto check = [&](const std::string& op, const Tensor& a, const Tensor& b, const Attrs& attrs) {
      CAPTURE(sample.name, op);
      const Tensor exact = planned(session, op, {as_double(a), as_double(b)}, attrs)[0];
      const double apart = distance(planned(session, op, {a, b}, attrs)[0], exact);
      CHECK(apart < 1e-2);
      CHECK((apart > 1e-4) == cpu::has_tiles());
      return exact.shape();
    };
    const Shape out = check("conv2d", x, filter, sample.with("groups", int64_t{1}));
    const Tensor dy = random_values({DType::Float32, out}, 3);
    check("conv2d_input_grad", dy, filter, sample.with("shape", sample.x.dims()));
    check("conv2d_filter_grad", dy, x, sample.with("shape", sample.filter.dims()));
  }
}

TEST_CASE("a convolution of few places stays float32, since packing the filter would take the most") {
  Session session = make_session();
  const Sample sample{"", {1, 64, 10, 10}, {64, 64, 5, 5}, {{"padding", std::string("SAME")}}};
  const Tensor x = random_values({DType::Float32, sample.x}, 1),
               filter = random_values({DType::Float32, sample.filter}, 2);
  const Attrs attrs = sample.with("groups", int64_t{1});
  CHECK(distance(planned(session, "conv2d", {x, filter}, attrs)[0],
                 planned(session, "conv2d", {as_double(x), as_double(filter)}, attrs)[0]) < 1e-4);
}
