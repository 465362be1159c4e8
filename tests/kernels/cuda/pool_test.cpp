// Pooling on the card, in either layout and precision: windows that overlap, leave gaps, stick out, and dx in the memory of x.
#include "beside_cpu.h"

using namespace moonflow;
using namespace moonflow::oracle;

namespace {

struct Windows {
  int64_t size, stride;
  const char* padding;
};
const Windows kWindows[] = {{2, 2, "VALID"}, {3, 2, "SAME"},       {2, 3, "VALID"},
                            {3, 3, "SAME"},  {3, 1, "SAME_UPPER"}, {5, 3, "SAME"}};

}  // namespace

TEST_CASE("pooling and its gradients agree with the CPU in both orders of axes and either layout") {
  const BesideCpu beside;
  // Channels that fill packs, and channels that do not.
  struct Case {
    DType dtype;
    int64_t channels;
  };
  for (const auto [dtype, channels] :
       {Case{DType::Float32, 5}, Case{DType::Float32, 8}, Case{DType::Float64, 5}, Case{DType::Float64, 2},
        Case{DType::BFloat16, 3}, Case{DType::BFloat16, 16}, Case{DType::Float16, 3}, Case{DType::Float16, 16}}) {
    for (const bool channels_last : {false, true}) {
      for (const Windows& window : kWindows) {
        const Attrs attrs{{"ksize", Ints{window.size}},
                          {"strides", Ints{window.stride}},
                          {"padding", std::string(window.padding)},
                          {"data_format", std::string(channels_last ? "NHWC" : "NCHW")}};
        const TensorType type{dtype, channels_last ? Shape{2, 13, 17, channels} : Shape{2, channels, 13, 17}};
        const Tensor x = drawn(type, 1);
        const double tolerance = is_narrow(dtype) ? two_roundings(dtype) : 1e-5;
        const auto check = [&](const Trial& trial) {
          return channels_last ? beside.check(trial, tolerance) : beside.check_both_layouts(trial, tolerance);
        };
        const TensorType out = check(beside.trial("max_pool2d", {x}, attrs)).outputs[0].type();
        check(beside.trial("avg_pool2d", {x}, attrs));
        const Tensor dy = drawn(out, 2);
        Attrs with_shape = attrs;
        with_shape.set("shape", type.shape.dims());
        check(beside.trial("avg_pool2d_grad", {dy}, with_shape));
        for (const bool relu : {false, true}) {
          Attrs with_relu = attrs;
          with_relu.set("relu", relu);
          const Trial trial = beside.trial("max_pool2d_grad", {dy, x}, with_relu);
          const Launched apart = check(trial);
          const Sharing over_x{0, 1};
          const Launched shared = launch(trial, *beside.card, &over_x);
          CHECK(shared.damage == "");
          CHECK(same(shared.outputs[0], apart.outputs[0]));
        }
      }
    }
  }
}

TEST_CASE("the places of a window are told apart where a byte could not number them") {
  const BesideCpu beside;
  for (const int64_t size : {15, 16, 17}) {
    const Attrs attrs{{"ksize", Ints{size}}, {"strides", Ints{2}}, {"relu", true}};
    const Tensor dy = drawn({DType::Float32, {1, 8, 3, 3}}, 1, 1, 2);
    const Shape shape{1, 8, size + 4, size + 4};
    beside.check_both_layouts(beside.trial("max_pool2d_grad", {dy, drawn({DType::Float32, shape}, 2)}, attrs));
    beside.check_both_layouts(beside.trial("max_pool2d_grad", {dy, drawn({DType::Float32, shape}, 3, -2, -1)}, attrs));
  }
}

TEST_CASE("pooling of a whole image gives what is rows and channels last at once") {
  const BesideCpu beside;
  const Attrs attrs{{"ksize", Ints{7}}};
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16}) {
    const Tensor x = drawn({dtype, {3, 24, 7, 7}}, 1);
    for (const char* op : {"avg_pool2d", "max_pool2d"}) {
      const Trial trial = beside.trial(op, {x}, attrs);
      beside.check_both_layouts(trial, is_narrow(dtype) ? two_roundings(dtype) : 1e-5);
      CHECK(channels_last_layouts(trial, *beside.card)->outputs[0].row_major());
    }
  }
}

TEST_CASE("the gradient goes to the first of equal maxima") {
  const BesideCpu beside;
  const Tensor x = Tensor::zeros({DType::Float32, {1, 1, 6, 6}});
  for (const int64_t stride : {1, 3}) {
    const Attrs attrs{{"ksize", Ints{3}}, {"strides", Ints{stride}}};
    const Tensor dy = drawn(beside.check("max_pool2d", {x}, attrs).outputs[0].type(), 3, 1, 2);
    const Launched got = beside.check_both_layouts(beside.trial("max_pool2d_grad", {dy, x}, attrs));
    CHECK(element(got.outputs[0], 0) == element(dy, 0));
    CHECK(element(got.outputs[0], 35) == 0);
  }
}
