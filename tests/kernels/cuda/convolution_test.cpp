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
      for (const DType dtype : {DType::Float32, DType::Float64})
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

TEST_CASE("a convolution on the card takes bias, sum and relu along, and gives the bias its gradient") {
  Beside beside;
  for_each_case([&](const Attrs& attrs, const TensorType& x, const TensorType& filter, const Conv& conv) {
    const TensorType dy{x.dtype, conv.out.shape(conv.format)}, bias{x.dtype, {conv.filters()}};
    for (const char* activation : {"none", "relu"}) {
      const Attrs active = with(attrs, "activation", std::string(activation));
      beside.check("conv2d_bias", {x, filter, bias}, active);
      beside.check("conv2d_bias_add", {x, filter, bias, dy}, active);
    }
    beside.check("conv2d_filter_bias_grad", {dy, x}, with(attrs, "shape", filter.shape.dims()));
  });
}
