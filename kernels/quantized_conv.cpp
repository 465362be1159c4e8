// Convolutions and products of bytes: what layers of quantised models compute, on whole numbers all the way to their
// sums.
#include "kernels/quantized_conv.h"

#include "kernels/catalog.h"
#include "kernels/cpu/conv_quantized.h"
#include "kernels/dynamic_quantize.h"
#include "kernels/lacks_gradient.h"
#include "kernels/types.h"

namespace moonflow {

namespace {

using Inputs = QuantizedInputs;

void check_bytes(const OpCall& call, const char* filter) {
  const DType dtype = call.dtype(Inputs::kX);
  require(dtype == DType::UInt8 || dtype == DType::Int8, ErrorCode::DtypeMismatch, "x must be uint8 or int8, got ",
          dtype);
  require(call.dtype(Inputs::kFilter) == DType::Int8, ErrorCode::DtypeMismatch, filter, " must be int8, got ",
          call.dtype(Inputs::kFilter));
}

// What comes with x and its filters. `filter` and `filter_zero` are their names.
void check_others(const OpCall& call, const QuantizedConv& sizes, const char* filter, const char* filter_zero) {
  const int64_t filters = sizes.conv.filters();
  const bool has_scale = call.has(Inputs::kScale);
  require(has_scale || sizes.gives_sums(), ErrorCode::InvalidArgument, "it has no scale, without which dtype is int32");
  require(!sizes.gives_sums() || !(has_scale || call.has(Inputs::kBias)), ErrorCode::InvalidArgument,
          "dtype is int32, of sums, which have neither scale nor bias");
  if (has_scale && call.shape(Inputs::kScale).rank() > 0) require_type(call, Inputs::kScale, "scale", f32({filters}));
  if (has_scale)
    require(call.dtype(Inputs::kScale) == DType::Float32, ErrorCode::DtypeMismatch, "scale is ",
            call.type(Inputs::kScale), ", wanted float32");
  if (call.has(Inputs::kBias)) require_type(call, Inputs::kBias, "bias", f32({filters}));
  if (call.has(Inputs::kZero)) {
    require_type(call, Inputs::kZero, "zero", {call.dtype(Inputs::kX), {}});
    require(sizes.zero_point == 0, ErrorCode::InvalidArgument, "it has a zero and a zero_point; give one of them");
  }
  if (!call.has(Inputs::kFilterZero)) return;
  require_type(call, Inputs::kFilterZero, filter_zero, {DType::Int8, {filters}});
  constexpr int64_t kMostTerms = 32768;  // times 255 * 255, which is below 2^31
  const int64_t terms = call.shape(Inputs::kFilter).count() / filters;
  require(terms <= kMostTerms, ErrorCode::Unsupported, "each sum has ", terms, " terms, and with a zero point of ",
          filter, " 32 bits have those of ", kMostTerms);
  require(!sizes.is_depthwise(), ErrorCode::Unsupported, filter, " of a depthwise convolution has no zero point here");
}

std::vector<TensorType> infer_conv(const OpCall& call) {
  check_bytes(call, "filter");
  const QuantizedConv sizes = quantized_conv_of(call.attrs, call.type(Inputs::kX), call.shape(Inputs::kFilter));
  check_others(call, sizes, "filter", "filter_zero");
  return {{sizes.dtype, sizes.conv.out.shape(sizes.conv.format)}};
}

std::vector<TensorType> infer_dense(const OpCall& call) {
  check_bytes(call, "weight");
  const QuantizedConv sizes = quantized_dense_of(call.attrs, call.type(Inputs::kX), call.shape(Inputs::kFilter));
  check_others(call, sizes, "weight", "weight_zero");
  Shape out = call.shape(Inputs::kX);
  out[out.rank() - 1] = sizes.conv.filters();
  return {{sizes.dtype, out}};
}

TensorType u8(const Shape& shape) { return {DType::UInt8, shape}; }
TensorType i8(const Shape& shape) { return {DType::Int8, shape}; }

// These, and the same in bytes, whose sums spread over more than there are.
std::vector<Example> in_all_dtypes(std::vector<Example> all) {
  for (size_t i = all.size(); i-- > 0;) {
    const bool is_signed = i % 2 == 0;
    Example bytes = all[i];
    bytes.attrs.set("dtype", is_signed ? DType::Int8 : DType::UInt8);
    bytes.attrs.set("out_zero_point", is_signed ? int64_t{-7} : int64_t{130});
    bytes.low = -0.01, bytes.high = 0.01;
    all.push_back(std::move(bytes));
  }
  return all;
}

std::vector<Example> of_all_bytes(std::vector<Example> all) {
  for (Example& example : all) example.int_below = 256;
  return all;
}

std::vector<Example> conv_examples() {
  const std::string same = "SAME", nhwc = "NHWC";
  std::vector<Example> all = in_all_dtypes({
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
      {{u8({2, 6, 5, 4}), i8({18, 3, 2, 3}), f32({18}), f32({18}), u8({}), i8({18})},
       {{"groups", int64_t{2}}, {"padding", same}}},
      {{i8({2, 4, 3, 64}), i8({33, 1, 1, 64}), f32({}), f32({33}), i8({}), i8({33})}, {{"data_format", nhwc}}},
      {{u8({1, 4, 5, 6}), i8({4, 1, 3, 3}), f32({4}), f32({4}), u8({})}, {{"groups", int64_t{4}}, {"padding", same}}},
  });
  all.push_back({{u8({2, 5, 4, 6}), i8({7, 5, 3, 3})}, {{"dtype", DType::Int32}, {"zero_point", int64_t{9}}}});
  return of_all_bytes(std::move(all));
}

std::vector<Example> dense_examples() {
  std::vector<Example> all = in_all_dtypes({
      {{u8({5, 7}), i8({3, 7}), f32({3})}, {{"zero_point", int64_t{128}}}},
      {{i8({2, 3, 64}), i8({18, 64}), f32({}), f32({18}), i8({})}},
      {{u8({41, 128}), i8({40, 128}), f32({40}), f32({40}), u8({}), i8({40})}},
      {{i8({1, 70}), i8({33, 70}), f32({33}), f32({33}), i8({}), i8({33})}},
      {{u8({64}), i8({16, 64}), f32({16})}},
      {{u8({3, 1}), i8({1, 1}), f32({}), f32({1}), u8({}), i8({1})}},
  });
  for (const int64_t rows : {1, 9})
    all.push_back({{u8({rows, 200}), i8({20, 200})}, {{"dtype", DType::Int32}, {"zero_point", int64_t{3}}}});
  return of_all_bytes(std::move(all));
}

// What both ops say alike.
OpDef quantized_op(const char* name, std::vector<AttrDef> attrs) {
  OpDef op;
  op.name = name;
  op.lua = std::string("nn.") + name;
  op.attrs = std::move(attrs);
  op.grad = LacksGradient{
      "a gradient goes through it, and it has none: it is for models that have learned; compute with floats, or "
      "keep it from the loss with flow.stop_gradient"};
  return op;
}

constexpr char kResult[] =
    "  The sums are exact whole numbers of 32 bits, which are rounded to float32. With a dtype of bytes:\n"
    "  out = the nearest whole number to that, halves to the even one, + out_zero_point, cut to what the dtype has\n"
    "  and with dtype int32 the sums themselves, without scale and bias. zero, a number of x's dtype, is zero_point\n"
    "  where only a run knows it.\n";

void add_quantized_conv2d(Catalog& catalog) {
  OpDef op = quantized_op("quantized_conv2d", quantized_conv_attrs());
  op.doc =
      std::string(
          "conv2d of bytes, as layers of quantised models have it.\n"
          "  out[n, f, y, x] = scale[f] * sum over c, i, j of (x[n, c, y*stride - before + i*dilation, ...] - "
          "zero_point)\n"
          "                               * (filter[f, c, i, j] - filter_zero[f]) + bias[f]\n"
          "  Places outside of x count as zero_point. padding as in conv2d.\n") +
      kResult +
      "shapes: x (batch, channels, height, width), filter (filters, channels / groups, kernel height, kernel width),\n"
      "  scale (filters) or one number, bias and filter_zero (filters), zero a number\n"
      "  -> (batch, filters, out height, out width);\n"
      "  with data_format \"NHWC\" x (batch, height, width, channels), filter (filters, kernel height, kernel width,\n"
      "  channels / groups)\n"
      "dtypes: x and zero uint8 or int8, filter and filter_zero int8, scale and bias float32 -> float32, or the "
      "uint8,\n"
      "  int8 or int32 that dtype says\n"
      "errors: as conv2d; a zero_point that x cannot have; more than 65536 terms of a sum, or 32768 with filter_zero;\n"
      "  a filter_zero of a depthwise convolution; there is no gradient";
  op.inputs = {{"x"},
               {"filter"},
               {"scale", InputDef::Optional},
               {"bias", InputDef::Optional},
               {"zero", InputDef::Optional},
               {"filter_zero", InputDef::Optional}};
  op.infer = infer_conv;
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
  op.examples = conv_examples();
  catalog.add(std::move(op));
}

void add_quantized_dense(Catalog& catalog) {
  OpDef op = quantized_op("quantized_dense", quantized_dense_attrs());
  op.doc =
      std::string(
          "A dense layer of bytes, as quantised models have it.\n"
          "  out[..., u] = scale[u] * sum over i of (x[..., i] - zero_point) * (weight[u, i] - weight_zero[u]) + "
          "bias[u]\n") +
      kResult +
      "shapes: x (..., in), weight (units, in), scale (units) or one number, bias and weight_zero (units), zero a\n"
      "  number -> (..., units)\n"
      "dtypes: x and zero uint8 or int8, weight and weight_zero int8, scale and bias float32 -> float32, or the "
      "uint8,\n"
      "  int8 or int32 that dtype says\n"
      "errors: inner sizes differ; a zero_point that x cannot have; more than 65536 terms of a sum, or 32768 with\n"
      "  weight_zero; there is no gradient";
  op.inputs = {{"x"},
               {"weight"},
               {"scale", InputDef::Optional},
               {"bias", InputDef::Optional},
               {"zero", InputDef::Optional},
               {"weight_zero", InputDef::Optional}};
  op.infer = infer_dense;
  op.cpu.prepare = [](KernelCall& call) {
    return cpu::quantized_conv(quantized_dense_of(call.attrs, call.inputs[0], call.inputs[1].shape), call);
  };
  op.cpu.layouts = [](LayoutCall& call) {
    cpu::quantized_dense_layouts(quantized_dense_of(call.attrs, call.input_types[0], call.input_types[1].shape), call);
  };
  op.flops = [](const KernelCall& call) {
    return conv_flops(quantized_dense_of(call.attrs, call.inputs[0], call.inputs[1].shape).conv);
  };
  op.examples = dense_examples();
  catalog.add(std::move(op));
}

}  // namespace

void add_quantized_conv(Catalog& catalog) {
  add_quantized_conv2d(catalog);
  add_quantized_dense(catalog);
  add_dynamic_quantize(catalog);
}

}  // namespace moonflow
