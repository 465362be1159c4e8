// Convolutions beyond the examples: windows that step, spread and stick out on one side only, groups, both data
// formats, empty batches, and the ops that fusion makes.
#include "beside.h"
#include "kernels/conv.h"
#include "kernels/types.h"

using namespace moonflow;
using moonflow::testing::Beside;

namespace {

struct Case {
  ImageSize image;
  int64_t filters;
  std::array<int64_t, 2> size;
  Ints strides = {1};
  Ints dilations = {1};
  Ints pads = {0};  // one number, or {before, after} for each axis as NCHW
  int64_t groups = 1;
};
const std::vector<Case> kCases = {
    {{3, 1, 12, 10}, 6, {5, 5}, {1}, {1}, {2}},
    {{2, 5, 9, 8}, 7, {3, 2}, {2}, {1}, {0, 0, 0, 0, 1, 0, 0, 2}},
    {{2, 6, 11, 13}, 4, {3, 3}, {2, 3}, {2, 1}, {0, 0, 0, 0, 3, 1, 2, 0}, 2},
    {{1, 2, 1, 5}, 2, {1, 4}, {1}, {1}, {0, 0, 0, 0, 0, 0, 2, 1}},
    {{1, 4, 7, 7}, 8, {1, 1}, {3}},
    {{2, 8, 6, 6}, 8, {3, 3}, {1}, {1}, {1}, 8},
    {{0, 3, 8, 8}, 4, {3, 3}},
};

// The same in the other data format.
Ints channels_last(const Ints& pads) {
  if (pads.size() == 1) return pads;
  return {pads[0], pads[1], pads[4], pads[5], pads[6], pads[7], pads[2], pads[3]};
}

template <class Check>
void for_each_case(const Check& check) {
  for (const Case& c : kCases) {
    for (const bool last : {false, true}) {
      const ImageFormat format{2, last};
      const Shape x = c.image.shape(format);
      const Shape filter = ImageSize{c.filters, c.image.channels / c.groups, c.size[0], c.size[1]}.shape(format);
      Attrs attrs{{"data_format", std::string(last ? "NHWC" : "NCHW")},
                  {"strides", c.strides},
                  {"dilations", c.dilations},
                  {"groups", c.groups},
                  {"pads", last ? channels_last(c.pads) : c.pads},
                  {"padding", std::string("VALID")},
                  {"algorithm", std::string("direct")}};
      for (const DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16})
        check(attrs, TensorType{dtype, x}, TensorType{dtype, filter}, conv_of(attrs, x, filter, 2));
    }
  }
}

Attrs with(Attrs attrs, const char* name, AttrValue value) {
  attrs.set(name, std::move(value));
  return attrs;
}

}  // namespace

TEST_CASE("a convolution on the card and its gradients are those of the CPU") {
  Beside beside;
  for_each_case([&](const Attrs& attrs, const TensorType& x, const TensorType& filter, const Conv& conv) {
    const TensorType dy{x.dtype, conv.out.shape(conv.format)};
    beside.check("conv2d", {x, filter}, attrs);
    beside.check("conv2d_input_grad", {dy, filter}, with(attrs, "shape", x.shape.dims()));
    beside.check("conv2d_filter_grad", {dy, x}, with(attrs, "shape", filter.shape.dims()));
  });
}

TEST_CASE("a convolution by the engine that is timed to be fastest is that of the CPU") {
  Beside beside;
  const ImageFormat format{2, false};
  const Shape x = ImageSize{3, 8, 12, 10}.shape(format), filter = ImageSize{6, 8, 5, 5}.shape(format),
              dy = ImageSize{3, 6, 12, 10}.shape(format);
  const Attrs timed{{"pads", Ints{2}}, {"algorithm", std::string("timed")}};
  constexpr double kTolerance = 4e-5;  // either side may be Winograd's, which is within 2e-5
  for (const DType dtype : {DType::Float32, DType::BFloat16}) {
    beside.check("conv2d", {{dtype, x}, {dtype, filter}}, timed, kTolerance);
    beside.check("conv2d_input_grad", {{dtype, dy}, {dtype, filter}}, with(timed, "shape", x.dims()), kTolerance);
    beside.check("conv2d_filter_grad", {{dtype, dy}, {dtype, x}}, with(timed, "shape", filter.dims()), kTolerance);
  }
}

// For which cuDNN names an engine that is Winograd's with large tiles and does not say so.
TEST_CASE("the gradient of a filter as LeNet has it keeps the digits of float32") {
  Beside beside;
  const Shape x{8, 32, 14, 14}, filter{64, 32, 5, 5}, dy{8, 64, 14, 14};
  constexpr double kTolerance = 2e-4;  // of 1568 products, each sum so far rounded at 6e-8; that engine's is 6e-3
  for (const char* const algorithm : {"auto", "timed", "direct"}) {
    beside.check("conv2d_filter_grad", {{DType::Float32, dy}, {DType::Float32, x}},
                 {{"pads", Ints{2}}, {"algorithm", std::string(algorithm)}, {"shape", filter.dims()}}, kTolerance);
  }
}

TEST_CASE("gradients of filters and biases are float32 where mixed precision wants them so") {
  Beside beside;
  for_each_case([&](const Attrs& attrs, const TensorType& x, const TensorType& filter, const Conv& conv) {
    if (!is_narrow(x.dtype)) return;
    const TensorType dy{x.dtype, conv.out.shape(conv.format)};
    const Attrs mixed = with(with(attrs, "shape", filter.shape.dims()), "mixed", std::string("float32"));
    beside.check("conv2d_filter_grad", {dy, x}, mixed);
    beside.check("conv2d_filter_bias_grad", {dy, x}, mixed);
  });
}

TEST_CASE("a convolution that may round to TF32 has its channels last") {
  const std::shared_ptr<const Catalog> catalog = all_ops();
  const std::shared_ptr<Device> cpu = make_cpu_device(2), card = cuda::make_given_card();
  unsigned seed = 0;
  for_each_case([&](const Attrs& attrs, const TensorType& x, const TensorType& filter, const Conv& conv) {
    if (x.dtype != DType::Float32) return;
    const TensorType dy{x.dtype, conv.out.shape(conv.format)};
    const auto check = [&](const char* op, const std::vector<TensorType>& types, const Attrs& all) {
      const oracle::Trial trial = oracle::draw(catalog->at(op), {types, all}, ++seed);
      INFO(trial.describe());
      const oracle::Layouts wanted = oracle::layouts_of(trial, *card, [](const TensorType&) { return Layout{}; }, true);
      const oracle::Launched expected = oracle::launch(trial, *cpu), got = oracle::launch(trial, *card, nullptr, wanted);
      CHECK(got.damage == "");
      // Factors keep 10 bits of fraction; up to 75 products are summed.
      for (size_t i = 0; i < got.outputs.size(); ++i) CHECK(oracle::distance(got.outputs[i], expected.outputs[i]) < 0.02);
    };
    check("conv2d", {x, filter}, attrs);
    check("conv2d_bias_add", {x, filter, {x.dtype, {conv.filters()}}, dy}, attrs);
    check("conv2d_input_grad", {dy, filter}, with(attrs, "shape", x.shape.dims()));
    check("conv2d_filter_bias_grad", {dy, x}, with(attrs, "shape", filter.shape.dims()));
  });
}

// Of few channels over small images, for which there are kernels of our own: tiles with an edge, over the ends of rows
// and of images, chunks of channels, windows of one axis, and padding on one side.
TEST_CASE("a small convolution in TF32 is that of the CPU, but for what rounding its factors does") {
  const std::shared_ptr<const Catalog> catalog = all_ops();
  const std::shared_ptr<Device> cpu = make_cpu_device(2), card = cuda::make_given_card();
  const std::vector<Case> cases{
      {{3, 32, 9, 7}, 64, {5, 5}, {1}, {1}, {2}},
      {{2, 64, 14, 14}, 32, {5, 5}, {1}, {1}, {2}},
      {{2, 64, 9, 14}, 64, {3, 3}, {1}, {1}, {1}},
      {{1, 96, 13, 20}, 64, {5, 3}, {1}, {1}, {0, 0, 0, 0, 4, 0, 0, 2}},
      {{5, 32, 1, 40}, 128, {1, 5}, {1}, {1}, {0, 0, 0, 0, 0, 0, 2, 2}},
      {{2, 128, 1, 1}, 64, {3, 3}, {1}, {1}, {1}},
      {{9, 32, 5, 9}, 96, {4, 7}, {1}, {1}, {0}},
  };
  unsigned seed = 0;
  for (const Case& c : cases) {
    for (const bool last : {false, true}) {
      const ImageFormat format{2, last};
      const Shape x = c.image.shape(format);
      const Shape filter = ImageSize{c.filters, c.image.channels, c.size[0], c.size[1]}.shape(format);
      const Attrs attrs{{"data_format", std::string(last ? "NHWC" : "NCHW")},
                        {"pads", last ? channels_last(c.pads) : c.pads},
                        {"padding", std::string("VALID")},
                        {"algorithm", std::string("direct")}};
      const Conv conv = conv_of(complete(catalog->at("conv2d"), attrs), x, filter, 2);
      const TensorType dy{DType::Float32, conv.out.shape(format)}, image{DType::Float32, x},
          of_filter{DType::Float32, filter}, bias{DType::Float32, {c.filters}};
      const auto check = [&](const char* op, const std::vector<TensorType>& types, const Attrs& all) {
        const oracle::Trial trial = oracle::draw(catalog->at(op), {types, all}, ++seed);
        INFO(trial.describe());
        const oracle::Layouts wanted = oracle::layouts_of(
            trial, *card, [](const TensorType&) { return Layout{}; }, true);
        const oracle::Launched expected = oracle::launch(trial, *cpu),
                               got = oracle::launch(trial, *card, nullptr, wanted);
        CHECK(got.damage == "");
        for (size_t i = 0; i < got.outputs.size(); ++i)
          CHECK(oracle::distance(got.outputs[i], expected.outputs[i]) < 0.02);
      };
      check("conv2d", {image, of_filter}, attrs);
      check("conv2d_bias", {image, of_filter, bias}, with(attrs, "activation", std::string("relu")));
      check("conv2d_input_grad", {dy, of_filter}, with(attrs, "shape", x.dims()));
      check("conv2d_filter_bias_grad", {dy, image}, with(attrs, "shape", filter.dims()));
    }
  }
}

TEST_CASE("what a convolution on tensor cores wants: channels last, few of them padded, and gradients of filters in rows") {
  const std::shared_ptr<const Catalog> catalog = all_ops();
  const std::shared_ptr<Device> card = cuda::make_given_card();
  const auto wanted = [&](const char* op, std::vector<TensorType> types, Attrs attrs, bool allow_tf32 = false) {
    const OpDef& def = catalog->at(op);
    const Attrs all = complete(def, std::move(attrs));
    std::vector<const TensorType*> inputs;
    for (const TensorType& type : types) inputs.push_back(&type);
    const std::vector<TensorType> outputs = infer(def, {inputs, all});
    const std::vector<bool> present(types.size(), true);
    LayoutCall call{*card,   all, types, present, outputs, std::vector<Layout>(types.size()),
                    std::vector<Layout>(outputs.size())};
    call.allow_tf32 = allow_tf32;
    card->kernel(def).layouts(call);
    std::string names;
    for (const Layout& layout : call.inputs) names += card->describe(layout) + ' ';
    names += "->";
    for (const Layout& layout : call.outputs) names += ' ' + card->describe(layout);
    return names;
  };
  const DType dtype = GENERATE(DType::BFloat16, DType::Float16);
  const auto narrow = [&](const Shape& shape) { return TensorType{dtype, shape}; };
  const auto wide = [](const Shape& shape) { return TensorType{DType::Float32, shape}; };
  const Shape rgb{2, 3, 8, 8}, image{2, 16, 8, 8};
  CHECK(wanted("conv2d", {narrow(rgb), narrow({4, 3, 1, 1})}, {}) == "NHWC8 NHWC8 -> NHWC");
  CHECK(wanted("conv2d", {narrow(image), narrow({4, 16, 3, 3})}, {}) == "NHWC NHWC -> NHWC");
  CHECK(wanted("conv2d", {narrow(image), narrow({4, 16, 1, 1})}, {}) == "NHWC rows -> NHWC");
  CHECK(wanted("conv2d", {narrow(image), narrow({16, 1, 3, 3})}, {{"groups", int64_t{16}}}) == "NHWC NHWC -> NHWC");
  CHECK(wanted("conv2d", {wide(image), wide({4, 16, 3, 3})}, {}) == "rows rows -> rows");
  CHECK(wanted("conv2d", {wide(rgb), wide({4, 3, 3, 3})}, {}, true) == "NHWC NHWC -> NHWC");
  CHECK(wanted("conv2d_filter_grad", {narrow({2, 4, 8, 8}), narrow(rgb)}, {{"shape", Ints{4, 3, 1, 1}}}) ==
        "NHWC NHWC8 -> rows");
  CHECK(wanted("conv2d_input_grad", {narrow({2, 4, 8, 8}), narrow({4, 3, 1, 1})}, {{"shape", Ints{2, 3, 8, 8}}}) ==
        "NHWC NHWC8 -> NHWC8");
  const Attrs last{{"data_format", std::string("NHWC")}};
  CHECK(wanted("conv2d", {narrow({2, 8, 8, 3}), narrow({4, 3, 3, 3})}, last) == "C8 C8 -> rows");
  CHECK(wanted("conv2d", {narrow({2, 8, 8, 16}), narrow({4, 3, 3, 16})}, last) == "rows rows -> rows");
}

TEST_CASE("a sum that is NaN stays so through the activation of a convolution on the card") {
  Beside beside;
  const Tensor x = oracle::drawn({DType::Float32, {2, 3, 6, 6}}, 1);
  x.data<float>()[40] = NAN;
  for (const char* activation : {"relu", "relu6"})
    beside.check(beside.trial(
        "conv2d_bias", {x, oracle::drawn({DType::Float32, {4, 3, 3, 3}}, 2), oracle::drawn({DType::Float32, {4}}, 3)},
        {{"activation", std::string(activation)}}));
}

TEST_CASE("a convolution on the card takes bias, sum and relu along, and gives the bias its gradient") {
  Beside beside;
  for_each_case([&](const Attrs& attrs, const TensorType& x, const TensorType& filter, const Conv& conv) {
    const TensorType dy{x.dtype, conv.out.shape(conv.format)}, bias{x.dtype, {conv.filters()}};
    for (const char* activation : {"none", "relu", "relu6"}) {
      const Attrs active = with(attrs, "activation", std::string(activation));
      beside.check("conv2d_bias", {x, filter, bias}, active);
      beside.check("conv2d_bias_add", {x, filter, bias, dy}, active);
    }
    beside.check("conv2d_filter_bias_grad", {dy, x}, with(attrs, "shape", filter.shape.dims()));
  });
}
