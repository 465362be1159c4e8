// Normalisation on the card: channels of many elements, in either layout, and means far from zero.
#include "beside_cpu.h"

using namespace moonflow;
using namespace moonflow::oracle;

namespace {

// Few channels with many places, many channels with few, one channel, and images of odd sizes.
const Shape kImages[] = {{4, 3, 31, 17}, {2, 70, 3, 3}, {5, 1, 9, 1}, {3, 16, 1, 1}, {700, 5, 2, 2}};

}  // namespace

TEST_CASE("batch normalisation agrees with the CPU in either layout") {
  const BesideCpu beside;
  for (const Shape& shape : kImages) {
    const TensorType image{DType::Float32, shape}, channel{DType::Float32, {shape[1]}};
    const Tensor x = drawn(image, 1, -2, 4), dy = drawn(image, 2), addend = drawn(image, 3);
    const Tensor gamma = drawn(channel, 4), beta = drawn(channel, 5), variance = drawn(channel, 6, 0.5, 2);
    const auto check = [&](const char* op, std::vector<Tensor> inputs) {
      return beside.check_both_layouts(beside.trial(op, std::move(inputs)), 2e-5);
    };
    const std::vector<Tensor> plain = check("batch_norm_train", {x, gamma, beta}).outputs;
    const Tensor mean = plain[1], inv_std = plain[2];
    check("batch_norm_train_grad", {x, gamma, mean, inv_std, dy});
    check("batch_norm_train_grad", {x, gamma, mean, inv_std, dy, beta, variance});
    check("batch_norm_relu", {x, gamma, beta});
    check("batch_norm_relu_grad", {x, gamma, beta, mean, inv_std, dy});
    const Tensor y = check("batch_norm_add_relu", {x, gamma, beta, addend}).outputs[0];
    check("batch_norm_add_relu_grad", {x, gamma, beta, mean, inv_std, dy, y});
    check("batch_norm_infer", {x, gamma, beta, mean, variance});
    check("batch_norm_infer_grad", {dy, x, gamma, mean, variance});
    beside.check("moving_statistics_update", {beta, variance, mean, inv_std}, {{"count", int64_t{8}}});
  }
}

TEST_CASE("batch statistics keep their digits where the mean is far from zero") {
  const BesideCpu beside;
  const TensorType channel{DType::Float32, {3}};
  Tensor x = drawn({DType::Float32, {20, 3, 40, 40}}, 7, 1000, 1001);
  for (const float first : {1000.5f, -1e5f}) {  // the distances are taken from it
    x.data<float>()[0] = first;
    beside.check("batch_norm_train", {x, drawn(channel, 8), drawn(channel, 9)});
  }
}

TEST_CASE("a gradient of batch normalisation may lie over what it is made of") {
  const BesideCpu beside;
  const TensorType image{DType::Float32, {9, 4, 7, 5}}, channel{DType::Float32, {4}};
  const Tensor x = drawn(image, 1), dy = drawn(image, 2), y = drawn(image, 3), c = drawn(channel, 4, 0.5, 1);
  const Trial trial = beside.trial("batch_norm_add_relu_grad", {x, c, c, c, c, dy, y});
  const Launched apart = launch(trial, *beside.card);
  for (const Sharing& share : trial.op->inplace) {
    const Launched shared = launch(trial, *beside.card, &share);
    CHECK(shared.damage == "");
    for (size_t i = 0; i < apart.outputs.size(); ++i) CHECK(same_bytes(shared.outputs[i], apart.outputs[i]));
  }
}

TEST_CASE("layer normalisation agrees with the CPU for rows of every length") {
  const BesideCpu beside;
  for (const Shape& shape : {Shape{4, 3, 5}, Shape{2, 70, 30}, Shape{2, 3, 1000}, Shape{2050, 2, 4}}) {
    const TensorType image{DType::Float32, shape}, last{DType::Float32, {shape[2]}},
        whole{DType::Float32, {shape[1], shape[2]}};
    const Tensor x = drawn(image, 1, -2, 4), dy = drawn(image, 2), gamma = drawn(last, 3), beta = drawn(whole, 4);
    for (const int64_t axis : {1, 2}) {
      const Attrs attrs{{"begin_norm_axis", axis}};
      const Tensor shift = axis == 1 ? beta : gamma;
      const std::vector<Tensor> y = beside.check("layer_norm_core", {x, gamma, shift}, attrs).outputs;
      beside.check("layer_norm_core", {x}, attrs);
      beside.check("layer_norm_grad", {x, y[1], y[2], dy, gamma, y[2], y[1]}, attrs);
      beside.check("layer_norm_grad", {x, y[1], y[2], dy}, attrs);
      Attrs with_shape = attrs;
      with_shape.set("shape", shift.shape().dims());
      beside.check("layer_norm_parameter_grad", {x, y[1], y[2], dy}, with_shape, 2e-5);
    }
  }
}

TEST_CASE("moments agree with the CPU over any axes") {
  const BesideCpu beside;
  const Tensor x = drawn({DType::Float32, {6, 50, 33}}, 1, 99, 100);
  for (const Ints& axes : {Ints{}, Ints{0}, Ints{1}, Ints{2}, Ints{0, 2}, Ints{1, 2}}) {
    const Attrs attrs{{"axes", axes}};
    const std::vector<Tensor> moments = beside.check("moments", {x}, attrs).outputs;
    beside.check("moments_grad", {x, moments[0], moments[1], moments[0]}, attrs);
    beside.check("moments_grad", {x, moments[0], Tensor(), moments[0]}, attrs);
  }
}
