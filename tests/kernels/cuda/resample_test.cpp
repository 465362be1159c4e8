// Resampled images on the card, in either order of axes, either layout, and with channels that fill packs or do not.
#include <cmath>

#include "beside_cpu.h"

using namespace moonflow;
using namespace moonflow::oracle;

TEST_CASE("resampling and its gradients agree with the CPU in both orders of axes and either layout") {
  const BesideCpu beside;
  const std::string bilinear = "bilinear";
  const std::vector<std::pair<std::string, Attrs>> ops = {
      {"upsample_2d", {{"size", Ints{3, 2}}}},
      {"upsample_2d", {{"size", Ints{2, 5}}, {"interpolation", bilinear}}},
      {"upsample_2d", {{"size", Ints{4, 3}}, {"interpolation", bilinear}, {"align_corners", true}}},
      {"reflection_pad2d", {{"padding", Ints{5, 1, 0, 4}}}},
  };
  struct Case {
    DType dtype;
    int64_t channels;
  };
  for (const auto [dtype, channels] : {Case{DType::Float32, 5}, Case{DType::Float32, 8}, Case{DType::Float64, 2},
                                       Case{DType::BFloat16, 3}, Case{DType::BFloat16, 16}}) {
    for (const bool channels_last : {false, true}) {
      for (const auto& [op, own] : ops) {
        Attrs attrs = own;
        attrs.set("data_format", std::string(channels_last ? "NHWC" : "NCHW"));
        const TensorType type{dtype, channels_last ? Shape{2, 5, 7, channels} : Shape{2, channels, 5, 7}};
        const double tolerance = dtype == DType::BFloat16 ? 1.0 / 128 : 1e-5;
        const auto check = [&](const Trial& trial) {
          return channels_last ? beside.check(trial, tolerance) : beside.check_both_layouts(trial, tolerance);
        };
        const TensorType out = check(beside.trial(op.c_str(), {drawn(type, 1)}, attrs)).outputs[0].type();
        attrs.set("shape", type.shape.dims());
        check(beside.trial((op + "_grad").c_str(), {drawn(out, 2)}, attrs));
      }
    }
  }
}

TEST_CASE("a single place is made larger, and what comes back to it is rows") {
  const BesideCpu beside;
  const Attrs attrs{{"size", Ints{2, 3}}, {"interpolation", std::string("bilinear")}};
  const Tensor x = drawn({DType::Float32, {3, 8, 1, 1}}, 1);
  const TensorType out = beside.check(beside.trial("upsample_2d", {x}, attrs), 1e-6).outputs[0].type();
  Attrs with_shape = attrs;
  with_shape.set("shape", x.shape().dims());
  const Trial trial = beside.trial("upsample_2d_grad", {drawn(out, 2)}, with_shape);
  beside.check_both_layouts(trial, 1e-6);
  CHECK(channels_last_layouts(trial, *beside.card)->outputs[0].row_major());
}

TEST_CASE("an axis of another length agrees with the CPU, and so does its gradient") {
  const BesideCpu beside;
  struct Case {
    int64_t axis, size;
    double slope, offset, spread;
  };
  for (const DType dtype : {DType::Float32, DType::Float64, DType::BFloat16}) {
    for (const char* filter : {"linear", "cubic"}) {
      for (const bool extends : {true, false}) {
        for (const auto& [axis, size, slope, offset, spread] :
             {Case{2, 33, 0.5, -0.25, 1}, Case{1, 5, 2.6, 0.8, 2.6}, Case{3, 4, -2.0, 6.0, 1}, Case{0, 1, 0, 0.5, 2}}) {
          CAPTURE(filter, extends, axis, size);
          const TensorType type{dtype, {2, 13, 16, 7}};
          const double tolerance = dtype == DType::BFloat16 ? 1.0 / 128 : 1e-5;
          Attrs attrs = {{"axis", axis},
                         {"size", size},
                         {"slope", slope},
                         {"offset", offset},
                         {"filter", std::string(filter)},
                         {"spread", spread},
                         {"extends", extends}};
          const TensorType out =
              beside.check(beside.trial("resample_axis", {drawn(type, 1)}, attrs), tolerance).outputs[0].type();
          attrs.set("shape", type.shape.dims());
          beside.check(beside.trial("resample_axis_grad", {drawn(out, 2)}, attrs), tolerance);
        }
      }
    }
  }
}

TEST_CASE("an axis of bytes is resampled on the card, and a NaN comes back to what it was made of alone") {
  const BesideCpu beside;
  for (const bool extends : {true, false}) {
    Attrs attrs = {{"axis", int64_t{1}}, {"size", int64_t{9}}, {"slope", 1.5},
                   {"offset", 0.5},      {"spread", 1.5},      {"extends", extends}};
    const Tensor bytes = drawn({DType::UInt8, {3, 14, 5}}, 1, 0, 256);
    Tensor dy = drawn(beside.check(beside.trial("resample_axis", {bytes}, attrs)).outputs[0].type(), 2);
    dy.data<float>()[4 * 5 + 2] = NAN;
    attrs.set("shape", bytes.shape().dims());
    const Tensor dx = beside.check(beside.trial("resample_axis_grad", {dy}, attrs)).outputs[0];
    // Place 4 lies at 6.5; of the four places in its reach the outer ones weigh nothing.
    CHECK(std::count_if(dx.data<float>(), dx.data<float>() + dx.count(), [](float x) { return std::isnan(x); }) == 2);
  }
}
