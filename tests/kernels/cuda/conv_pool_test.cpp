// Convolution, relu and pooling in one on the card, and pooling by itself with its places: sizes that leave tiles,
// warps and groups of filters half empty, and images in either order.
#include "beside.h"
#include "beside_cpu.h"
#include "given_card.h"
#include "kernels/conv.h"
#include "kernels/conv_few_channels.h"
#include "kernels/cuda/layout.h"
#include "kernels/types.h"

using namespace moonflow;
using namespace moonflow::oracle;
using moonflow::testing::Beside;

namespace {

struct Case {
  ImageSize image;
  int64_t filters, size;
  Ints pads;  // one number, or {above, left, below, right}
};
const std::vector<Case> kCases = {
    {{3, 1, 28, 28}, 32, 5, {2}},         // LeNet's: a tile of rows over three images
    {{1, 3, 9, 7}, 33, 3, {1, 0, 0, 1}},  // odd image, one filter in a group of its own
    {{3, 4, 8, 12}, 6, 7, {3}},
    {{1, 3, 8, 950}, 5, 7, {0}},     // more pairs of windows in a row than threads
    {{700, 1, 2, 2}, 1, 3, {1}},     // a window to an image: most rows of the tile are padding
    {{1, 4, 120, 128}, 70, 3, {1}},  // several tiles of rows to a part
    {{2, 4, 6, 6}, 3, 5, {0}},
    {{2, 3, 8, 512}, 33, 7, {3}},  // a single row of windows is cut, or it would not fit the smallest cards
};

Attrs attrs_of(const Case& c, bool last) {
  Ints pads = c.pads;
  if (pads.size() == 4)
    pads = last ? Ints{0, 0, pads[0], pads[2], pads[1], pads[3], 0, 0}
                : Ints{0, 0, 0, 0, pads[0], pads[2], pads[1], pads[3]};
  return {{"data_format", std::string(last ? "NHWC" : "NCHW")}, {"pads", pads}, {"algorithm", std::string("direct")}};
}

template <class Check>
void for_each_case(const Check& check) {
  const auto catalog = all_ops();
  for (const Case& c : kCases) {
    for (const bool last : {false, true}) {
      const ImageFormat format{2, last};
      const Attrs attrs = complete(catalog->at("conv2d"), attrs_of(c, last));
      const Shape x = c.image.shape(format),
                  filter = ImageSize{c.filters, c.image.channels, c.size, c.size}.shape(format);
      const Conv conv = conv_of(attrs, x, filter, 2);
      REQUIRE(card_sums_few_channels(conv, DType::Float32));
      check(attrs_of(c, last), x, filter, conv);
    }
  }
}

// Of sixteenths float32 holds every sum of products, so both sides agree to the bit on what is largest in a window.
Tensor sixteenths(const TensorType& type, unsigned seed) {
  const Tensor tensor = drawn(type, seed, -16, 16);
  visit_floating(type.dtype, [&](auto zero) {
    auto* const values = tensor.data<decltype(zero)>();
    for (int64_t i = 0; i < tensor.count(); ++i) values[i] = std::round(values[i]) / 16;
  });
  return tensor;
}

std::vector<Tensor> sixteenths_for(const Conv& conv, DType dtype, const Shape& x, const Shape& filter) {
  return {sixteenths({dtype, x}, 1), sixteenths({dtype, filter}, 2), sixteenths({dtype, {conv.filters()}}, 3)};
}

Shape pooled(const Conv& conv) {
  return ImageSize{conv.out.batch, conv.out.channels, conv.out.height / 2, conv.out.width / 2}.shape(conv.format);
}

// Launches with images channels last, but where `in_rows` says otherwise, of each input and then of each output.
std::vector<Tensor> launch_channels_last(const Trial& trial, Device& card, const std::vector<bool>& in_rows) {
  size_t asked = 0;
  const auto layout = [&](const TensorType& type) {
    const bool rows = asked < in_rows.size() && in_rows[asked];
    ++asked;
    return type.shape.rank() > 2 && !rows ? cuda::channels_last(type) : Layout{};
  };
  Layouts layouts;
  for (const Tensor& input : trial.inputs) layouts.inputs.push_back(layout(input.type()));
  for (const TensorType& output : trial.infer()) layouts.outputs.push_back(layout(output));
  const Launched got = launch(trial, card, nullptr, layouts);
  CHECK(got.damage == "");
  return got.outputs;
}

}  // namespace

TEST_CASE("few channels are convolved and pooled on the card as on the CPU") {
  const cuda::SmallBlocks small;
  Beside beside;
  for_each_case([&](const Attrs& attrs, const Shape& x, const Shape& filter, const Conv& conv) {
    for (const DType dtype : {DType::Float32, DType::Float64})
      beside.check(beside.trial("conv2d_relu_pool", sixteenths_for(conv, dtype, x, filter), attrs));
  });
}

TEST_CASE("the gradients of filter and bias come from the places on the card as on the CPU") {
  const cuda::SmallBlocks small;
  Beside beside;
  for_each_case([&](Attrs attrs, const Shape& x, const Shape& filter, const Conv& conv) {
    attrs.set("shape", filter.dims());
    for (const DType dtype : {DType::Float32, DType::Float64}) {
      const std::vector<TensorType> types{{dtype, pooled(conv)}, {DType::UInt8, pooled(conv)}, {dtype, x}};
      // Each side rounds sums of up to 15,360 products.
      beside.check("conv2d_relu_pool_filter_grad", types, attrs, 2e-5, -1, 1, 5);
    }
  });
}

TEST_CASE("the gradient of a first layer takes dy as what follows has it") {
  const BesideCpu beside;
  const Attrs attrs{{"shape", Ints{40, 3, 5, 5}}, {"pads", Ints{2}}, {"algorithm", std::string("direct")}};
  const Shape windows{3, 40, 6, 7};
  const Trial trial = beside.trial("conv2d_relu_pool_filter_grad",
                                   {drawn({DType::Float32, windows}, 1), drawn({DType::UInt8, windows}, 2, 0, 5),
                                    drawn({DType::Float32, {3, 3, 12, 14}}, 3)},
                                   attrs);
  const Launched rows = beside.check(trial);
  for (const bool places_in_rows : {false, true}) {
    const auto last = launch_channels_last(trial, *beside.card, {false, places_in_rows, true, true});
    for (size_t i = 0; i < last.size(); ++i) CHECK(distance(last[i], rows.outputs[i]) < 1e-5);
  }
}

TEST_CASE("relu and pooling by two and their gradients agree with the CPU in either order") {
  const BesideCpu beside;
  // The last has more windows to a channel than one part of a bias's gradient takes.
  const Shape shapes[] = {{3, 8, 14, 14}, {1, 3, 6, 10}, {2, 5, 2, 34}, {2, 4, 190, 180}};
  for (const DType dtype : {DType::Float32, DType::Float64}) {
    for (const Shape& shape : shapes) {
      const Launched forward = beside.check_both_layouts(beside.trial("relu_max_pool2d", {drawn({dtype, shape}, 1)}));
      const Tensor places = forward.outputs[1];
      const Trial grad = beside.trial("relu_max_pool2d_grad", {drawn(forward.outputs[0].type(), 2), places});
      const Launched expected = beside.check_both_layouts(grad);
      // What is behind the last pooling is a matrix, whose gradient comes in rows.
      const auto mixed = launch_channels_last(grad, *beside.card, {true});
      for (size_t i = 0; i < mixed.size(); ++i) CHECK(distance(mixed[i], expected.outputs[i]) < 1e-5);
    }
    const Tensor x = drawn({dtype, {2, 6, 10, 5}}, 3);
    beside.check("relu_max_pool2d", {x}, {{"data_format", std::string("NHWC")}});
  }
}

// The kernels give these as they are taken.
TEST_CASE("what is pooled comes out in rows or with its channels last") {
  const BesideCpu beside;
  const auto check = [&](const Trial& trial, const std::vector<bool>& in_rows) {
    INFO(trial.describe());
    const Launched rows = beside.check(trial);
    const auto mixed = launch_channels_last(trial, *beside.card, in_rows);
    for (size_t i = 0; i < mixed.size(); ++i) CHECK(same(mixed[i], rows.outputs[i]));
  };
  for (const DType dtype : {DType::Float32, DType::Float64}) {
    for (const Shape& shape : {Shape{3, 8, 14, 14}, Shape{2, 5, 2, 34}})
      check(beside.trial("relu_max_pool2d", {drawn({dtype, shape}, 1)}), {false, true, false});
    for_each_case([&](const Attrs& attrs, const Shape& x, const Shape& filter, const Conv& conv) {
      if (conv.format.channels_last || !card_sums_few_channels(conv, dtype)) return;
      check(beside.trial("conv2d_relu_pool", sixteenths_for(conv, dtype, x, filter), attrs), {true, true, false});
    });
  }
}

TEST_CASE("relu and pooling by two are max_pool2d and its gradients") {
  const BesideCpu beside;
  const Tensor x = drawn({DType::Float32, {3, 5, 8, 6}}, 1), dy = drawn({DType::Float32, {3, 5, 4, 3}}, 2);
  const auto op = [&](const char* name, std::vector<Tensor> inputs, const Attrs& attrs = {}) {
    return launch(beside.trial(name, std::move(inputs), attrs), *beside.card).outputs;
  };
  const Tensor active = op("relu", {x})[0];
  const std::vector<Tensor> pooled = op("relu_max_pool2d", {x});
  CHECK(same(pooled[0], op("max_pool2d", {active}, {{"ksize", Ints{2}}})[0]));
  const std::vector<Tensor> grads = op("relu_max_pool2d_grad", {dy, pooled[1]});
  const Tensor dx = op("max_pool2d_grad", {dy, active}, {{"ksize", Ints{2}}, {"relu", true}})[0];
  CHECK(same(grads[0], dx));
  CHECK(distance(grads[1], op("bias_grad", {dx})[0]) < 1e-6);
}

TEST_CASE("of equal maxima the first is the place, and of nothing positive none") {
  const BesideCpu beside;
  const Tensor x = Tensor::of<float>({1, 1, 2, 8}, {1, 1, 0, 2, -1, -2, 3, 0, 1, 1, 2, 2, -3, -1, 0, 3});
  const Launched got = beside.check("relu_max_pool2d", {x});
  const std::vector<uint8_t> expected{0, 1, 4, 0};
  for (size_t i = 0; i < expected.size(); ++i) CHECK(element(got.outputs[1], i) == expected[i]);
}
