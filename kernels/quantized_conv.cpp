// Convolution of bytes: what layers of quantised models compute, on whole numbers all the way to their sums.
#include "kernels/quantized_conv.h"

#include "kernels/catalog.h"
#include "kernels/cpu/conv_quantized.h"
#include "kernels/lacks_gradient.h"
#include "kernels/types.h"

namespace moonflow {

namespace {

std::vector<TensorType> infer_types(const OpCall& call) {
  const DType dtype = call.dtype(0);
  require(dtype == DType::UInt8 || dtype == DType::Int8, ErrorCode::DtypeMismatch, "x must be uint8 or int8, got ",
          dtype);
  require(call.dtype(1) == DType::Int8, ErrorCode::DtypeMismatch, "filter must be int8, got ", call.dtype(1));
  const QuantizedConv sizes = quantized_conv_of(call.attrs, call.type(0), call.shape(1));
  const Conv& conv = sizes.conv;
  const TensorType of_each = f32({conv.filters()});
  require_type(call, 2, "scale", of_each);
  if (call.has(3)) require_type(call, 3, "bias", of_each);
  return {{sizes.dtype, conv.out.shape(conv.format)}};
}

std::vector<Example> examples() {
  const auto u8 = [](Shape shape) { return TensorType{DType::UInt8, shape}; };
  const auto i8 = [](Shape shape) { return TensorType{DType::Int8, shape}; };
  const std::string same = "SAME", nhwc = "NHWC";
  std::vector<Example> all = {
      {{u8({2, 3, 5, 6}), i8({4, 3, 3, 2}), f32({4})}, {{"padding", same}}},
      {{u8({1, 16, 6, 5}), i8({20, 16, 3, 3}), f32({20}), f32({20})},
       {{"padding", same}, {"zero_point", int64_t{128}}}},
      {{i8({1, 5, 7, 7}), i8({33, 5, 3, 2}), f32({33}), f32({33})},
       {{"dilations", Ints{2, 3}}, {"zero_point", int64_t{-128}}}},
      {{i8({1, 2, 5, 5}), i8({3, 2, 2, 4}), f32({3})},
       {{"strides", Ints{2, 1}}, {"padding", same}, {"zero_point", int64_t{3}}}},
      {{u8({1, 8, 4, 4}), i8({6, 4, 3, 3}), f32({6}), f32({6})},
       {{"groups", int64_t{2}}, {"pads", Ints{0, 0, 0, 0, 2, 0, 1, 3}}, {"zero_point", int64_t{7}}}},
      {{i8({1, 6, 4, 5}), i8({38, 3, 2, 2}), f32({38}), f32({38})},
       {{"groups", int64_t{2}}, {"zero_point", int64_t{-5}}}},
      {{u8({2, 19, 6, 9}), i8({19, 1, 3, 3}), f32({19}), f32({19})},
       {{"groups", int64_t{19}}, {"padding", same}, {"zero_point", int64_t{128}}}},
      {{i8({1, 9, 9, 16}), i8({16, 3, 3, 1}), f32({16})},
       {{"data_format", nhwc}, {"groups", int64_t{16}}, {"strides", Ints{2}}, {"padding", same}}},
      {{u8({1, 3, 4, 4}), i8({6, 1, 2, 2}), f32({6})}, {{"groups", int64_t{3}}, {"zero_point", int64_t{255}}}},
      {{u8({2, 3, 9, 8}), i8({35, 1, 1, 8}), f32({35}), f32({35})},
       {{"data_format", nhwc}, {"zero_point", int64_t{128}}}},
      {{u8({1, 5, 5, 64}), i8({32, 3, 3, 64}), f32({32}), f32({32})},
       {{"data_format", nhwc}, {"padding", same}, {"zero_point", int64_t{1}}}},
      {{i8({2, 7, 8, 3}), i8({5, 3, 3, 3}), f32({5})},
       {{"data_format", nhwc}, {"padding", same}, {"strides", Ints{2}}}},
      {{u8({1, 64, 9, 17}), i8({48, 64, 1, 1}), f32({48}), f32({48})}, {{"zero_point", int64_t{128}}}},
      {{i8({1, 68, 2, 2}), i8({16, 68, 3, 3}), f32({16})}, {{"padding", same}, {"zero_point", int64_t{127}}}},
  };
  // And the same in bytes, whose sums spread over more than there are.
  for (size_t i = all.size(); i-- > 0;) {
    const bool is_signed = i % 2 == 0;
    Example bytes = all[i];
    bytes.attrs.set("dtype", is_signed ? DType::Int8 : DType::UInt8);
    bytes.attrs.set("out_zero_point", is_signed ? int64_t{-7} : int64_t{130});
    bytes.low = -0.01, bytes.high = 0.01;
    all.push_back(std::move(bytes));
  }
  for (Example& example : all) example.int_below = 256;  // all bytes
  return all;
}

}  // namespace

void add_quantized_conv(Catalog& catalog) {
  OpDef op;
  op.name = "quantized_conv2d";
  op.lua = "nn.quantized_conv2d";
  op.doc =
      "conv2d of bytes, as layers of quantised models have it.\n"
      "  out[n, f, y, x] = scale[f] * sum over c, i, j of (x[n, c, y*stride - before + i*dilation, ...] - zero_point)\n"
      "                               * filter[f, c, i, j] + bias[f]\n"
      "  The sums are exact whole numbers of 32 bits, which are rounded to float32. Places outside of x count as\n"
      "  zero_point. padding as in conv2d. With a dtype of bytes:\n"
      "  out = the nearest whole number to that, halves to the even one, + out_zero_point, cut to what the dtype has\n"
      "shapes: x (batch, channels, height, width), filter (filters, channels / groups, kernel height, kernel width),\n"
      "  scale and bias (filters) -> (batch, filters, out height, out width);\n"
      "  with data_format \"NHWC\" x (batch, height, width, channels), filter (filters, kernel height, kernel width,\n"
      "  channels / groups)\n"
      "dtypes: x uint8 or int8, filter int8, scale and bias float32 -> float32, or the uint8 or int8 that dtype says\n"
      "errors: as conv2d; a zero_point that x cannot have; more than 65536 terms of a sum; there is no gradient";
  op.inputs = {{"x"}, {"filter"}, {"scale"}, {"bias", InputDef::Optional}};
  op.attrs = quantized_conv_attrs();
  op.infer = infer_types;
  op.grad = LacksGradient{
      "a gradient goes through it, and it has none: it is for models that have learned; compute with floats, or "
      "keep it from the loss with flow.stop_gradient"};
  op.cpu.prepare = [](KernelCall& call) {
    return cpu::quantized_conv(quantized_conv_of(call.attrs, call.inputs[0], call.inputs[1].shape), call);
  };
  op.cpu.layouts = [](LayoutCall& call) {
    cpu::quantized_conv_layouts(quantized_conv_of(call.attrs, call.input_types[0], call.input_types[1].shape), call);
  };
  op.cpu.heeds_readers = true;
  op.flops = [](const KernelCall& call) {
    return conv_flops(quantized_conv_of(call.attrs, call.inputs[0], call.inputs[1].shape).conv);
  };
  op.examples = examples();
  catalog.add(std::move(op));
}

}  // namespace moonflow
