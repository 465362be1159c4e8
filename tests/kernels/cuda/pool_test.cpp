// Pooling on the card: windows that overlap, leave gaps, stick out, and dx in the memory of x.
#include "beside_cpu.h"

using namespace moonflow;
using namespace moonflow::oracle;

namespace {

struct Windows {
  int64_t size, stride;
  const char* padding;
};
const Windows kWindows[] = {{2, 2, "VALID"}, {3, 2, "SAME"}, {2, 3, "VALID"}, {3, 1, "SAME_UPPER"}, {5, 3, "SAME"}};

}  // namespace

TEST_CASE("pooling and its gradients agree with the CPU in both orders of axes and either layout") {
  const BesideCpu beside;
  for (const DType dtype : {DType::Float32, DType::Float64}) {
    for (const bool channels_last : {false, true}) {
      for (const Windows& window : kWindows) {
        const Attrs attrs{{"ksize", Ints{window.size}},
                          {"strides", Ints{window.stride}},
                          {"padding", std::string(window.padding)},
                          {"data_format", std::string(channels_last ? "NHWC" : "NCHW")}};
        const TensorType type{dtype, channels_last ? Shape{2, 13, 17, 5} : Shape{2, 5, 13, 17}};
        const Tensor x = drawn(type, 1);
        const auto check = [&](const Trial& trial) {
          return channels_last ? beside.check(trial) : beside.check_both_layouts(trial);
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
          CHECK(same_bytes(shared.outputs[0], apart.outputs[0]));
        }
      }
    }
  }
}

TEST_CASE("the gradient goes to the first of equal maxima") {
  const BesideCpu beside;
  const Tensor x = Tensor::zeros({DType::Float32, {1, 1, 6, 6}});
  for (const int64_t stride : {1, 3}) {
    const Attrs attrs{{"ksize", Ints{3}}, {"strides", Ints{stride}}};
    const Tensor dy = drawn(beside.check("max_pool2d", {x}, attrs).outputs[0].type(), 3, 1, 2);
    const Launched got = beside.check("max_pool2d_grad", {dy, x}, attrs);
    CHECK(element(got.outputs[0], 0) == element(dy, 0));
    CHECK(element(got.outputs[0], 35) == 0);
  }
}
