// The attributes of convolutions, and the checked sizes they lead to.
#include "kernels/conv.h"
#include "kernels/quantized_conv.h"

namespace moonflow {

std::vector<AttrDef> conv_window_attrs(int spatial_axes) {
  return {
      {"strides", Ints{1}, "steps of the window: one number, or one for each spatial axis"},
      padding_attr(),
      data_format_attr({spatial_axes, false}),
      {"dilations", Ints{1}, "distance between neighbours in the window: one number, or one for each spatial axis"},
      {"groups", int64_t{1},
       "parts into which channels and filters are split; each filter sees the channels of its part. "
       "As many as channels make it a depthwise convolution"},
      pads_attr(),
  };
}

std::vector<AttrDef> conv_attrs(int spatial_axes) {
  std::vector<AttrDef> attrs = conv_window_attrs(spatial_axes);
  if (spatial_axes == 2) {
    attrs.push_back(
        {"algorithm", std::string("auto"),
         "\"auto\": what is held to be fastest; \"direct\": sums as the formula has them; \"winograd\": Winograd's, "
         "where it fits (3x3 and 5x5, strides and dilations of 1, one group, float32 on the cpu), else direct; "
         "\"timed\": on a gpu what is fastest when it is tried, so that two machines may differ in the last bits, "
         "else as \"auto\""});
    attrs.push_back({"rounds_to", DType::Float32,
                     "of automatic mixed precision: bfloat16 where the kernel rounds float32 factors to it"});
  }
  return attrs;
}

double conv_flops(const Conv& conv) {
  double flops = 2;
  for (const int64_t size : {conv.windows[0].size, conv.windows[1].size, conv.channels_per_group(), conv.out.batch,
                             conv.out.channels, conv.out.height, conv.out.width})
    flops *= static_cast<double>(size);
  return flops;
}

ConvWay conv_way(const Attrs& attrs) {
  if (!attrs.find("algorithm")) return {};
  return {attrs.string("algorithm"), attrs.dtype("rounds_to") == DType::BFloat16};
}

AttrDef activation_attr() { return {"activation", std::string("none"), "\"none\", \"relu\" or \"relu6\""}; }

Activation activation_of(const Attrs& attrs) {
  const AttrValue* const given = attrs.find("activation");
  if (given == nullptr || *given == AttrValue(std::string("none"))) return Activation::None;
  if (*given == AttrValue(std::string("relu"))) return Activation::Relu;
  if (*given == AttrValue(std::string("relu6"))) return Activation::Relu6;
  fail(ErrorCode::InvalidArgument, "activation is ", str(*given), ", wanted \"none\", \"relu\" or \"relu6\"");
}

AttrDef shape_attr(const char* of) { return {"shape", Ints{}, std::string("shape of ") + of, true}; }

// Checks everything there is to check about sizes.
Conv conv_of(const Attrs& attrs, const Shape& x, const Shape& filter, int spatial_axes) {
  Conv conv;
  conv.format = image_format(attrs.string("data_format"), spatial_axes);
  conv.groups = attrs.integer("groups");
  conv.image = image_size(x, conv.format, "x");
  // A filter has filters where an image has its batch.
  require(filter.rank() == conv.format.rank(), ErrorCode::ShapeMismatch, "filter is ", filter, ", wanted rank ",
          conv.format.rank(),
          conv.format.channels_last ? ": (filters, kernel..., channels / groups)"
                                    : ": (filters, channels / groups, kernel...)");
  const ImageSize size = image_size(filter, conv.format, "filter");
  require(conv.groups >= 1, ErrorCode::InvalidArgument, "groups is ", conv.groups, ", wanted 1 or more");
  require(conv.image.channels % conv.groups == 0 && size.batch % conv.groups == 0, ErrorCode::ShapeMismatch,
          "groups is ", conv.groups, ", which must divide the ", conv.image.channels, " channels of x and the ",
          size.batch, " filters");
  require(size.channels == conv.image.channels / conv.groups, ErrorCode::ShapeMismatch, "x ", x, " has ",
          conv.image.channels, " channels in ", conv.groups, conv.groups == 1 ? " group" : " groups", ", filter ",
          filter, " wants ", size.channels, " in each");
  require(size.batch > 0 && size.channels > 0 && size.height > 0 && size.width > 0, ErrorCode::ShapeMismatch, "filter ",
          filter, " is empty");
  conv.windows = windows(conv.image, conv.format,
                         {{size.height, size.width},
                          attrs.ints("strides"),
                          attrs.ints("dilations"),
                          attrs.string("padding"),
                          attrs.ints("pads"),
                          false});
  conv.out = {conv.image.batch, size.batch, conv.windows[0].out, conv.windows[1].out};
  if (!attrs.find("algorithm")) return conv;
  const std::string& algorithm = attrs.string("algorithm");
  require(algorithm == "auto" || algorithm == "direct" || algorithm == "winograd" || algorithm == "timed",
          ErrorCode::InvalidArgument, "algorithm is \"", algorithm,
          "\", wanted \"auto\", \"direct\", \"winograd\" or \"timed\"");
  return conv;
}

Conv conv_of_inputs(ConvKind kind, const Attrs& attrs, const Shape& first, const Shape& second, int spatial_axes) {
  if (is_forward(kind)) return conv_of(attrs, first, second, spatial_axes);
  const Shape shape(attrs.ints("shape"));
  const Conv conv =
      is_input_grad(kind) ? conv_of(attrs, shape, second, spatial_axes) : conv_of(attrs, second, shape, spatial_axes);
  require(first == conv.out.shape(conv.format), ErrorCode::ShapeMismatch, "dy is ", first, ", wanted ",
          conv.out.shape(conv.format));
  return conv;
}

// ---- of bytes -------------------------------------------------------------------------------------------------------

namespace {

void add_quantized_attrs(std::vector<AttrDef>& attrs) {
  attrs.push_back({"zero_point", int64_t{0}, "the place of x that stands for zero, unless zero says it"});
  attrs.push_back({"dtype", DType::Float32,
                   "of out: float32; uint8 or int8, which has the nearest whole numbers, halves to the even one, about "
                   "out_zero_point, and cut to what there is; or int32, the sums as they are, without scale and bias"});
  attrs.push_back({"out_zero_point", int64_t{0}, "the place of an out of bytes that stands for zero"});
}

QuantizedConv quantized(const Attrs& attrs, DType x, const Conv& conv) {
  const bool is_signed = x == DType::Int8;
  const QuantizedConv sizes{conv, attrs.integer("zero_point"), is_signed, attrs.dtype("dtype"),
                            attrs.integer("out_zero_point")};
  constexpr int64_t kPlaces = 256, kMostTerms = 65536;  // times 255 * 128, which is below 2^31
  const int64_t lowest = is_signed ? -128 : 0;
  require(sizes.unsigned_zero() >= 0 && sizes.unsigned_zero() < kPlaces, ErrorCode::OutOfRange, "zero_point is ",
          sizes.zero_point, ", x is ", x, ", wanted ", lowest, " to ", lowest + kPlaces - 1);
  require(sizes.dtype == DType::Float32 || sizes.gives_sums() || sizes.gives_bytes(), ErrorCode::DtypeMismatch,
          "dtype is ", sizes.dtype, ", wanted float32, uint8, int8 or int32");
  require(!sizes.gives_bytes() || (sizes.least() <= 0 && sizes.most() >= 0), ErrorCode::OutOfRange,
          "out_zero_point is ", sizes.out_zero_point, ", which ", sizes.dtype, " has not");
  const int64_t terms = conv.channels_per_group() * conv.windows[0].size * conv.windows[1].size;
  require(terms <= kMostTerms, ErrorCode::Unsupported, "each sum has ", terms, " terms, which 32 bits may not hold; ",
          kMostTerms, " at most are supported");
  return sizes;
}

}  // namespace

std::vector<AttrDef> quantized_conv_attrs() {
  std::vector<AttrDef> attrs = conv_window_attrs(2);
  add_quantized_attrs(attrs);
  return attrs;
}

std::vector<AttrDef> quantized_dense_attrs() {
  std::vector<AttrDef> attrs;
  add_quantized_attrs(attrs);
  return attrs;
}

QuantizedConv quantized_conv_of(const Attrs& attrs, const TensorType& x, const Shape& filter) {
  return quantized(attrs, x.dtype, conv_of(attrs, x.shape, filter, 2));
}

QuantizedConv quantized_dense_of(const Attrs& attrs, const TensorType& x, const Shape& weight) {
  const int rank = x.shape.rank();
  require(rank >= 1, ErrorCode::ShapeMismatch, "x is a scalar, wanted (..., in)");
  require(weight.rank() == 2, ErrorCode::ShapeMismatch, "weight is ", weight, ", wanted (units, in)");
  require(x.shape[rank - 1] == weight[1], ErrorCode::ShapeMismatch, "inner sizes differ: x is ", x.shape,
          ", weight is ", weight, ", so ", x.shape[rank - 1], " against ", weight[1]);
  require(weight.count() > 0, ErrorCode::ShapeMismatch, "weight is ", weight, ", wanted units and in from 1 on");
  Conv conv;
  conv.format = image_format("NHWC", 2);
  conv.image = {1, weight[1], 1, x.shape.count() / weight[1]};
  conv.out = {1, weight[0], 1, conv.image.width};
  conv.windows[1].in = conv.windows[1].out = conv.image.width;
  return quantized(attrs, x.dtype, conv);
}

}  // namespace moonflow
